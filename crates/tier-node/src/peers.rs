//! The file with the list of nodes.

use crate::config::Peer;
use dunlin_fabric::{Address, AddressError, Scheme};
use thiserror::Error;

/// The reason why a text is not a list of nodes. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PeersError {
    /// A line has one word, or more than three.
    #[error("line {line}: write NAME ADDRESS, or NAME ADDRESS MEMORY-ADDRESS")]
    Words {
        /// The number of the line.
        line: usize,
    },
    /// A word is not an address.
    #[error("line {line}: a word is not an address that a node can have")]
    Address {
        /// The number of the line.
        line: usize,
        /// The reason.
        source: AddressError,
    },
    /// Nodes cannot reach each other by addresses of this kind.
    #[error(
        "line {line}: {address} is not of a fabric: use rdma:HOST:PORT, ofi:tcp:HOST:PORT, shm:NAME or auto:HOST:PORT"
    )]
    Scheme {
        /// The number of the line.
        line: usize,
        /// The address.
        address: Address,
    },
    /// Some nodes are at `auto:` addresses, others name a fabric.
    #[error(
        "line {line}: {address} is of another kind than the nodes before it: all must be on one fabric; write auto: for all of \
         them, or for none"
    )]
    Mixed {
        /// The number of the line.
        line: usize,
        /// The address.
        address: Address,
    },
    /// A node at an `auto:` address has a third word.
    #[error("line {line}: the address of the memory follows from auto:HOST:PORT; leave {memory} out")]
    AutoMemory {
        /// The number of the line.
        line: usize,
        /// The third word.
        memory: String,
    },
    /// Two addresses of a node are of different fabrics.
    #[error("line {line}: both addresses of a node must be of one fabric")]
    Fabrics {
        /// The number of the line.
        line: usize,
    },
    /// The name is too long.
    #[error("line {line}: the name has {length} bytes, and names of nodes have at most 255")]
    Name {
        /// The number of the line.
        line: usize,
        /// The length of the name in bytes.
        length: usize,
    },
    /// A name or an address stands in an earlier line, too.
    #[error("line {line}: {what} stands in line {before} already")]
    Twice {
        /// The number of the line.
        line: usize,
        /// The name or the address.
        what: String,
        /// The number of the earlier line.
        before: usize,
    },
    /// There is no node.
    #[error("there is no node: write one in each line, as in: node-1 rdma:10.0.0.1:7100")]
    Empty,
}

impl Peer {
    /// Makes a node with the address of its service. The address for memory follows from it: the next port, or
    /// `NAME-memory` for shared memory and the simulator.
    pub fn at(name: &str, calls: Address) -> Result<Peer, AddressError> {
        let memory = match calls.host_and_port() {
            Some((_, port)) => {
                let next = port.checked_add(1).ok_or(AddressError::BadName {
                    name: calls.name().to_owned(),
                    why: "the next port is that of the memory, so 65534 is the highest",
                })?;
                let start = calls.name().len() - port_digits(calls.name());
                Address::new(calls.scheme(), &format!("{}{next}", &calls.name()[..start]))?
            }
            None => Address::new(calls.scheme(), &format!("{}-memory", calls.name()))?,
        };
        Ok(Peer { name: name.to_owned(), calls, memory })
    }

    /// Parses a list of nodes. The addresses of all of them, or of none, are `auto:HOST:PORT`: then
    /// `dunlin_transport::Fabrics::agree` finds those of the fabric.
    ///
    /// In each line the name of a node, the address of its service, and if it does not follow
    /// from that ([`Peer::at`]) the address of its memory. Empty lines, and what follows a `#`, are ignored.
    pub fn list(text: &str) -> Result<Vec<Peer>, PeersError> {
        let mut peers: Vec<(usize, Peer)> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default();
            let mut words = content.split_whitespace();
            let Some(name) = words.next() else { continue };
            let (Some(calls), memory, None) = (words.next(), words.next(), words.next()) else {
                return Err(PeersError::Words { line });
            };
            let peer = peer_of(line, name, calls, memory)?;
            for (before, other) in &peers {
                let what = if other.name == peer.name {
                    Some(peer.name.clone())
                } else {
                    let taken = [&other.calls, &other.memory];
                    let twice =
                        [&peer.calls, &peer.memory].into_iter().find(|address| taken.contains(address));
                    twice.map(ToString::to_string)
                };
                if let Some(what) = what {
                    return Err(PeersError::Twice { line, what, before: *before });
                }
                if (other.calls.scheme() == Scheme::Auto) != (peer.calls.scheme() == Scheme::Auto) {
                    return Err(PeersError::Mixed { line, address: peer.calls });
                }
            }
            peers.push((line, peer));
        }
        if peers.is_empty() {
            return Err(PeersError::Empty);
        }
        Ok(peers.into_iter().map(|(_, peer)| peer).collect())
    }
}

fn port_digits(name: &str) -> usize {
    name.bytes().rev().take_while(u8::is_ascii_digit).count()
}

fn peer_of(line: usize, name: &str, calls: &str, memory: Option<&str>) -> Result<Peer, PeersError> {
    let wrong = |source| PeersError::Address { line, source };
    let address = |text: &str| {
        let address: Address = text.parse().map_err(wrong)?;
        match address.scheme() {
            Scheme::Tcp | Scheme::Node => Err(PeersError::Scheme { line, address }),
            _ => Ok(address),
        }
    };
    if name.len() > 255 {
        return Err(PeersError::Name { line, length: name.len() });
    }
    let calls = address(calls)?;
    if calls.scheme() == Scheme::Auto && calls.host_and_port().is_none() {
        return Err(PeersError::Scheme { line, address: calls });
    }
    let Some(memory) = memory else { return Peer::at(name, calls).map_err(wrong) };
    if calls.scheme() == Scheme::Auto {
        return Err(PeersError::AutoMemory { line, memory: memory.to_owned() });
    }
    let memory = address(memory)?;
    if memory.scheme() != calls.scheme() {
        return Err(PeersError::Fabrics { line });
    }
    if memory == calls {
        return Err(PeersError::Twice { line, what: memory.to_string(), before: line });
    }
    Ok(Peer { name: name.to_owned(), calls, memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::WithSources;
    use proptest::prelude::*;

    #[test]
    fn a_list_has_a_node_in_each_line() {
        let text = "# name  service  memory\n\nnode-1 rdma:10.0.0.1:7100  # the first\n  node-2\trdma:[fe80::1]:7100\n\
                    node-3 rdma:h:7100 rdma:h:9000\nnode-4 shm:four\n";
        let peers = Peer::list(text).unwrap();
        let shown: Vec<String> =
            peers.iter().map(|peer| format!("{} {} {}", peer.name, peer.calls, peer.memory)).collect();
        assert_eq!(
            shown,
            [
                "node-1 rdma:10.0.0.1:7100 rdma:10.0.0.1:7101",
                "node-2 rdma:[fe80::1]:7100 rdma:[fe80::1]:7101",
                "node-3 rdma:h:7100 rdma:h:9000",
                "node-4 shm:four shm:four-memory"
            ]
        );
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("", "there is no node: write one in each line, as in: node-1 rdma:10.0.0.1:7100"),
            ("\n\na", "line 3: write NAME ADDRESS, or NAME ADDRESS MEMORY-ADDRESS"),
            ("a shm:a shm:b shm:c", "line 1: write NAME ADDRESS, or NAME ADDRESS MEMORY-ADDRESS"),
            (
                "a shm:a\nb b",
                "line 2: a word is not an address that a node can have: 'b' has no scheme; write for example shm:b",
            ),
            (
                "a tcp:h:1",
                "line 1: tcp:h:1 is not of a fabric: use rdma:HOST:PORT, ofi:tcp:HOST:PORT, shm:NAME or auto:HOST:PORT",
            ),
            (
                "a auto:h:1\nb rdma:h:3",
                "line 2: rdma:h:3 is of another kind than the nodes before it: all must be on one fabric; write auto: for all of \
                 them, or for none",
            ),
            (
                "a auto:h:1 auto:h:2",
                "line 1: the address of the memory follows from auto:HOST:PORT; leave auto:h:2 out",
            ),
            ("a shm:a\n\na shm:b", "line 3: a stands in line 1 already"),
            ("a shm:a\nb shm:b shm:a", "line 2: shm:a stands in line 1 already"),
            ("a rdma:h:1\nb rdma:h:2", "line 2: rdma:h:2 stands in line 1 already"),
            ("a shm:a shm:a", "line 1: shm:a stands in line 1 already"),
            ("a shm:a rdma:h:1", "line 1: both addresses of a node must be of one fabric"),
        ] {
            let found = Peer::list(text).unwrap_err();
            assert_eq!(WithSources(&found).to_string(), error, "{text:?}");
        }
        let error = WithSources(&Peer::list("a rdma:h:65535").unwrap_err()).to_string();
        assert!(error.starts_with("line 1: ") && error.contains("65534"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[a-z0-9:# \t\n.-]{0,120}", odd in any::<String>()) {
            let _ = (Peer::list(&text), Peer::list(&odd));
        }
    }
}
