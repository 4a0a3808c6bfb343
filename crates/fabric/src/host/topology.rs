//! NUMA nodes and their cores.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use thiserror::Error;

/// The NUMA nodes of a machine, each with the cores that threads may be bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: BTreeMap<u16, Vec<u32>>,
    here: u16,
}

/// An error of binding threads to a NUMA node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The machine has no node of that number.
    #[error("there is no NUMA node {node}: this machine has {there}; change the hint numa, or take it away")]
    NoSuchNode {
        /// The number.
        node: u16,
        /// The nodes of the machine, in words.
        there: String,
    },
    /// The node has no core that this process may use.
    #[error("this process may use no core of NUMA node {node}: look at its affinity (taskset) and cpuset")]
    NoCores {
        /// The node.
        node: u16,
    },
    /// The system call failed.
    #[error("a thread cannot be bound to cores {cores:?}: {error}")]
    System {
        /// The cores.
        cores: Vec<u32>,
        /// The system's error.
        error: io::Error,
    },
}

impl Topology {
    /// Makes a topology of nodes with their cores. `here` is the node to use where no device suggests a
    /// better one.
    pub fn new(nodes: impl IntoIterator<Item = (u16, Vec<u32>)>, here: u16) -> Self {
        Topology { nodes: nodes.into_iter().collect(), here }
    }

    /// Returns a machine of one node without cores to bind to.
    pub fn single() -> Self {
        Topology::new([(0, Vec::new())], 0)
    }

    /// Returns the number of nodes, at least 1.
    pub fn count(&self) -> u32 {
        self.nodes.len().max(1) as u32
    }

    /// Returns the numbers of the nodes, in increasing order.
    pub fn nodes(&self) -> impl Iterator<Item = u16> + '_ {
        self.nodes.keys().copied()
    }

    /// Returns the node of the core that read the topology.
    pub fn here(&self) -> u16 {
        self.here
    }

    /// Returns the cores of a node.
    ///
    /// # Errors
    /// The node does not exist or has no usable core.
    pub fn cores(&self, node: u16) -> Result<&[u32], BindError> {
        match self.nodes.get(&node) {
            Some(cores) if cores.is_empty() => Err(BindError::NoCores { node }),
            Some(cores) => Ok(cores),
            None => {
                let numbers: Vec<_> = self.nodes.keys().map(u16::to_string).collect();
                let plural = if numbers.len() == 1 { "node" } else { "nodes" };
                Err(BindError::NoSuchNode { node, there: format!("{plural} {}", numbers.join(", ")) })
            }
        }
    }

    /// Reads the topology from a Linux directory such as `/sys/devices/system/node`, with the cores that are
    /// `allowed`. `core` is the calling core. A missing directory means a machine of one node.
    pub(crate) fn read(folder: &Path, core: u32, allowed: impl Fn(u32) -> bool) -> Self {
        let mut nodes = BTreeMap::new();
        let mut here = 0;
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u16>().ok());
            let Some(number) = number else { continue };
            let list = std::fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
            let cores = parse_list(&list);
            if cores.contains(&core) {
                here = number;
            }
            // A node that has only memory has no cores, so threads cannot use it.
            if !cores.is_empty() {
                nodes.insert(number, cores.into_iter().filter(|core| allowed(*core)).collect());
            }
        }
        if nodes.is_empty() { Topology::single() } else { Topology { nodes, here } }
    }
}

/// Parses a list such as `0-3,8`. Malformed parts are skipped.
fn parse_list(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?))
    });
    // No machine has more cores; the limit guards against a malformed list.
    ranges.flat_map(|(first, last)| first..=last.min(first.saturating_add(65_535))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("5"), [5]);
        assert_eq!(parse_list("\n"), [0; 0]);
        assert_eq!(parse_list("x,2-,3"), [3]);
        assert_eq!(parse_list("0-4294967295").len(), 65_536);
    }

    #[test]
    fn a_machine_is_read() {
        let folder = std::env::temp_dir().join(format!("dunlin-topology-{}", std::process::id()));
        for (node, list) in [("node0", "0-1"), ("node2", "2-3\n"), ("node5", "\n"), ("power", "9")] {
            std::fs::create_dir_all(folder.join(node)).unwrap();
            std::fs::write(folder.join(node).join("cpulist"), list).unwrap();
        }
        let topology = Topology::read(&folder, 3, |core| core != 1);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((topology.count(), topology.here()), (2, 2));
        assert_eq!(topology.cores(0).unwrap(), [0]);
        assert_eq!(topology.cores(2).unwrap(), [2, 3]);
        let error = topology.cores(1).unwrap_err();
        assert!(matches!(&error, BindError::NoSuchNode { node: 1, .. }));
        assert!(error.to_string().contains("nodes 0, 2"), "{error}");
        assert!(matches!(Topology::read(&folder, 0, |_| true).cores(0), Err(BindError::NoCores { .. })));
        assert_eq!(Topology::read(&folder, 0, |_| true), Topology::single());
    }
}
