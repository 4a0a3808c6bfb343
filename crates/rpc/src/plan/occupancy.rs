//! Whether a server's workers and its clients on the same host have a core each.

use std::fmt;

/// The threads of a host that spin for a server's calls, and its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Workers of the server.
    pub workers: u32,
    /// Clients on the server's host: connections over shared memory.
    pub clients: u32,
    /// Cores that the server's threads may use.
    pub cores: u32,
}

impl Occupancy {
    /// Returns whether each worker and each client has a core of its own. Otherwise the server's workers wait
    /// adaptively, even under plans that let the server wait by
    /// [`CompletionMode::Busy`](crate::CompletionMode::Busy).
    pub const fn fits(&self) -> bool {
        self.workers.saturating_add(self.clients) <= self.cores
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (workers, clients) = (counted(self.workers, "worker"), counted(self.clients, "client"));
        let cores = counted(self.cores, "core");
        match self.fits() {
            true => write!(f, "{workers} and {clients} on {cores}: a core each"),
            false => write!(
                f,
                "{workers} and {clients} on {cores}: more threads than cores, so the workers wait adaptively"
            ),
        }
    }
}

/// The connections of a server, as it says in the handshake. Without hints, clients choose by them whether their threads
/// share connections, and whether they take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerConnections {
    /// The connections when the client connected, its own included; `None` before that, and if the server is of an older
    /// build.
    pub open: Option<u32>,
    /// The queue pairs that the server keeps active
    /// ([`ServerConfig::max_active_queue_pairs`](crate::ServerConfig::max_active_queue_pairs)); `None` as above.
    pub active_queue_pairs: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_fit_if_there_is_a_core_for_each() {
        let occupancy = |workers, clients| Occupancy { workers, clients, cores: 2 };
        assert!(occupancy(1, 1).fits() && occupancy(2, 0).fits());
        assert!(!occupancy(1, 2).fits() && !occupancy(u32::MAX, u32::MAX).fits());
        assert_eq!(occupancy(1, 1).to_string(), "1 worker and 1 client on 2 cores: a core each");
        let text = occupancy(4, 1).to_string();
        assert_eq!(
            text,
            "4 workers and 1 client on 2 cores: more threads than cores, so the workers wait adaptively"
        );
    }
}
