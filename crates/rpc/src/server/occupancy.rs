//! Whether a server's workers and its clients on the same host have a core each.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// Whether workers and clients of this host are more than its cores.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// The workers wait adaptively, even if all plans are busy.
    pub(crate) is_crowded: AtomicBool,
    /// The occupancy that was last found crowded, until it is logged.
    unlogged: Mutex<Option<Occupancy>>,
    logged: AtomicBool,
}

impl Crowd {
    /// Takes a new occupancy, and returns whether workers have to wait in another way.
    pub(crate) fn set(&self, occupancy: Occupancy) -> bool {
        let crowded = !occupancy.fits();
        if crowded {
            *self.unlogged.lock().unwrap_or_else(PoisonError::into_inner) = Some(occupancy);
        }
        self.is_crowded.swap(crowded, Ordering::Relaxed) != crowded
    }

    /// Logs, once for each server, that a worker does not wait as its plans say.
    pub(crate) fn log(&self) {
        if !self.logged.swap(true, Ordering::Relaxed)
            && let Some(occupancy) = *self.unlogged.lock().unwrap_or_else(PoisonError::into_inner)
        {
            tracing::warn!(target: "dunlin::server", "{occupancy}, although plans say busy");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata};

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<u32>>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "dunlin::server"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            *self.0.lock().unwrap() += 1;
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_server_that_is_crowded_again_is_logged_once() {
        let (lines, crowd) = (Lines::default(), Crowd::default());
        let occupancy = |clients| Occupancy { workers: 1, clients, cores: 2 };
        tracing::subscriber::with_default(lines.clone(), || {
            for clients in [5, 6] {
                assert!(crowd.set(occupancy(clients)), "its workers have to wait in another way");
                crowd.log();
                crowd.log();
                assert!(crowd.set(occupancy(1)));
            }
        });
        assert_eq!(*lines.0.lock().unwrap(), 1);
    }

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
