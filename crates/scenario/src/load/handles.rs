//! The threads of a load on its connections, and both on the client hosts.

use super::{Extent, Load, LoadError};
use dunlin_rpc::Sharing;

impl Load {
    /// Returns how threads share a connection.
    pub(super) fn sharing(&self) -> Sharing {
        self.functions.first().map_or(Sharing::Dedicated, |function| function.plan.sharing)
    }

    /// Returns the number of connections.
    pub(super) fn checked_handles(&self) -> Result<usize, LoadError> {
        let (clients, hosts) = (self.clients, self.client_hosts.min(self.clients));
        let handles = self.handles.unwrap_or(clients);
        let must = match handles {
            few if few < hosts => "at least one for each host",
            many if many > clients => "at most one for each thread",
            few if few < clients && self.sharing() == Sharing::Dedicated => {
                "one for each thread, since the plan's sharing is dedicated"
            }
            _ => return Ok(handles),
        };
        Err(LoadError::Handles { clients, hosts, handles, must })
    }

    /// Returns the number of threads on each connection, by number of the connection. Connections and threads
    /// lie on hosts in turn.
    pub(super) fn threads_of_handles(&self) -> Vec<usize> {
        let handles = self.handles.unwrap_or(self.clients).max(1);
        let on = |all: usize, host: usize| (all + self.client_hosts - 1 - host) / self.client_hosts;
        (0..handles)
            .map(|handle| {
                let (host, place) = (handle % self.client_hosts, handle / self.client_hosts);
                let (threads, own) = (on(self.clients, host), on(handles, host));
                (threads + own - 1 - place) / own.max(1)
            })
            .collect()
    }

    /// Returns the most threads on one connection.
    pub(super) fn most_threads(&self) -> usize {
        self.threads_of_handles().into_iter().max().unwrap_or(1)
    }

    /// Returns the number of calls of a thread.
    pub(super) fn share_of(&self, number: usize) -> u64 {
        match self.extent {
            Extent::Calls(calls) => {
                let rest = calls % self.clients as u64;
                calls / self.clients as u64 + u64::from((number as u64) < rest)
            }
            Extent::Time { .. } => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Network;

    fn load(clients: usize, hosts: usize, handles: Option<usize>, sharing: Sharing) -> Load {
        let mut load = Load::bench(clients, 1, Network::Rates);
        load.functions[0].plan.sharing = sharing;
        Load { client_hosts: hosts, handles, ..load }
    }

    /// Every thread has a connection on its own host, and connections of a host differ by at most one thread.
    #[test]
    fn threads_are_dealt_evenly() {
        for (clients, hosts, handles) in [(736, 23, 256), (23, 23, 23), (48, 23, 30), (5, 8, 5), (7, 2, 3)] {
            let dealt = load(clients, hosts, Some(handles), Sharing::Combined).threads_of_handles();
            assert_eq!((dealt.len(), dealt.iter().sum::<usize>()), (handles, clients));
            for host in 0..hosts.min(clients) {
                let own: Vec<usize> = dealt.iter().skip(host).step_by(hosts).copied().collect();
                let on_host = (clients + hosts - 1 - host) / hosts;
                assert_eq!(own.iter().sum::<usize>(), on_host, "{clients}, {hosts}, {handles}");
                let (least, most) = (own.iter().min().unwrap(), own.iter().max().unwrap());
                assert!(*least >= 1 && most - least <= 1, "{own:?}");
            }
        }
        assert_eq!(load(9, 3, None, Sharing::Dedicated).threads_of_handles(), vec![1; 9]);
    }

    #[test]
    fn impossible_numbers_of_connections_are_refused() {
        for (handles, sharing, word) in [
            (2, Sharing::Combined, "each host"),
            (10, Sharing::Combined, "at most one"),
            (5, Sharing::Dedicated, "dedicated"),
        ] {
            let error = load(9, 3, Some(handles), sharing).checked_handles().expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
        for sharing in Sharing::shared() {
            assert_eq!(load(9, 3, Some(3), sharing).checked_handles().ok(), Some(3));
        }
    }
}
