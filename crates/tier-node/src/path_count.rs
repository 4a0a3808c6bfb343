//! The default number of paths (K in section 6.1 of LITE) of a node, by its device, and the reason for it.

use dunlin_fabric::{ConnectionRow, Fabric, Host as _, Nic};
use std::fmt;

/// The least default.
const LEAST: u16 = 2;
/// The greatest default: "1 <= K <= 4 gives best performance" (section 6.1).
const MOST: u16 = 4;
/// The greatest default where the thread of an operation copies, so that no NIC holds the paths.
const MOST_THREADS: u16 = 8;
/// A NIC holds as many connections as it serves at this share of its best rate.
const LEVEL: f64 = 0.9;

/// The number of paths of a node, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCount {
    /// Queue pairs to each other node: K.
    pub count: u16,
    /// The reason.
    pub reason: PathReason,
}

/// The reason for a number of paths. Its text goes on after "K = 2: ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathReason {
    /// The settings of the node say so.
    Given,
    /// The processor of the operating thread copies.
    Processors {
        /// The processors that the process may use.
        processors: u32,
    },
    /// Processors execute the requests of the device.
    Emulated {
        /// The name of the driver or the library.
        name: &'static str,
    },
    /// The device holds a number of queue pairs.
    Holds {
        /// The device.
        device: String,
        /// Whether that was measured on this device, or is known of its kind.
        measured: bool,
        /// The queue pairs that it holds.
        queue_pairs: u32,
        /// The other nodes that there may be.
        others: u16,
    },
    /// Nothing is known about the device.
    Unknown,
}

impl fmt::Display for PathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathReason::Given => f.write_str("the settings of the node say so"),
            PathReason::Processors { processors } => write!(
                f,
                "the thread of an operation copies by itself, and this process may use {processors} processors"
            ),
            PathReason::Emulated { name } => write!(
                f,
                "processors of the hosts execute the requests of {name}, so more queue pairs would only divide them"
            ),
            PathReason::Holds { device, measured, queue_pairs, others } => {
                let how = if *measured { "by its measured rates" } else { "by its kind" };
                write!(
                    f,
                    "{device} holds {queue_pairs} queue pairs {how}, at both ends, to at most {others} other nodes; the \
                     paper finds 1 to 4 best"
                )
            }
            PathReason::Unknown => f.write_str(
                "this device is not known and its rates by connections are not measured (dunlin bench fetch-table); the \
                 paper finds 1 to 4 best",
            ),
        }
    }
}

/// The properties of a fabric and of the cluster on which the default depends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ground<'a> {
    /// The initiator's processor copies.
    pub(crate) initiator_copies: bool,
    /// Two-sided operations need the processor of the target: libfabric.
    pub(crate) target_progress: bool,
    /// The processors that this process may use; 0 if that is not known.
    pub(crate) processors: u32,
    /// The kind of the NIC, if it is known.
    pub(crate) nic: Option<Nic>,
    /// The measured rates by the number of connections. A device without measurements has no row.
    pub(crate) connections: &'a [ConnectionRow],
    /// The name of the device.
    pub(crate) device: &'a str,
    /// The most other nodes.
    pub(crate) others: u16,
    /// Nodes come and go, so that there may be far fewer.
    pub(crate) changes: bool,
}

/// Returns the number of connections that a device serves at nearly its best rate.
fn held(rows: &[ConnectionRow]) -> Option<u32> {
    let best = rows.iter().map(|row| row.writes).fold(0.0, f64::max);
    rows.iter().filter(|row| row.writes >= best * LEVEL).map(|row| row.connections).max()
}

/// Returns the default number of paths. A pair of nodes has 2 x K queue pairs, and K is the greatest number from 1 to 4
/// by which a NIC holds those to all nodes: a path is used by one thread at a time, so more are better until they miss.
pub(crate) fn default_paths(ground: &Ground<'_>) -> PathCount {
    let chosen = |count, reason| PathCount { count, reason };
    if ground.initiator_copies {
        let count = u16::try_from(ground.processors).unwrap_or(u16::MAX).clamp(LEAST, MOST_THREADS);
        return chosen(count, PathReason::Processors { processors: ground.processors });
    }
    if let Some(Nic::Emulated { name }) = ground.nic {
        return chosen(LEAST, PathReason::Emulated { name });
    }
    if ground.target_progress {
        return chosen(LEAST, PathReason::Emulated { name: "libfabric" });
    }
    let (measured, queue_pairs, device) = match (held(ground.connections), ground.nic) {
        (Some(held), _) => (true, held, ground.device),
        (None, Some(Nic::Hardware { name, queue_pairs })) => (false, queue_pairs, name),
        _ => return chosen(LEAST, PathReason::Unknown),
    };
    let each = queue_pairs / (2 * u32::from(ground.others.max(1)));
    let least = if ground.changes { LEAST } else { 1 };
    let count = u16::try_from(each).unwrap_or(u16::MAX).clamp(least, MOST);
    let (device, others) = (device.to_owned(), ground.others);
    chosen(count, PathReason::Holds { device, measured, queue_pairs, others })
}

/// Returns the number of paths of a node on this fabric with at most `others` other nodes: `given`, unless it is 0.
pub(crate) fn paths_on<F: Fabric>(fabric: &F, given: u16, (others, changes): (u16, bool)) -> PathCount {
    if given != 0 {
        return PathCount { count: given, reason: PathReason::Given };
    }
    let (capabilities, device, rates) = (fabric.capabilities(), fabric.device(), fabric.rates());
    let topology = fabric.host().topology();
    let processors =
        topology.nodes().filter_map(|node| topology.cores(node).ok()).map(<[u32]>::len).sum::<usize>();
    let name = device.properties.iter().find(|property| property.0 == "device");
    default_paths(&Ground {
        initiator_copies: capabilities.initiator_copies,
        target_progress: capabilities.target_progress,
        processors: processors as u32,
        nic: Nic::of(&device),
        connections: rates.as_deref().map_or(&[], |rates| rates.connections()),
        device: name.map_or(capabilities.name, |property| &property.1),
        others,
        changes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT_X3: Nic = Nic::Hardware { name: "ConnectX-3", queue_pairs: 72 };

    fn of(ground: &Ground<'_>) -> (u16, String) {
        let PathCount { count, reason } = default_paths(ground);
        (count, reason.to_string())
    }

    #[test]
    fn on_shared_memory_processors_count() {
        let count = |processors| of(&Ground { initiator_copies: true, processors, ..Ground::default() });
        let counts = [0, 1, 2, 3, 8, 9, 1 << 20].map(|processors| count(processors).0);
        assert_eq!(counts, [2, 2, 2, 3, 8, 8, 8]);
        assert_eq!(
            count(3).1,
            "the thread of an operation copies by itself, and this process may use 3 processors"
        );
    }

    #[test]
    fn a_known_nic_keeps_the_queue_pairs_that_it_holds() {
        let count = |others| of(&Ground { nic: Some(CONNECT_X3), others, ..Ground::default() });
        let counts = [0, 1, 9, 10, 12, 18, 36, 1023].map(|others| count(others).0);
        assert_eq!(counts, [4, 4, 4, 3, 3, 2, 1, 1]);
        assert_eq!(
            count(9).1,
            "ConnectX-3 holds 72 queue pairs by its kind, at both ends, to at most 9 other nodes; the paper finds 1 to 4 best"
        );
        let changes =
            |others| of(&Ground { nic: Some(CONNECT_X3), others, changes: true, ..Ground::default() }).0;
        assert_eq!([9, 63].map(changes), [4, 2], "most of the nodes may never come");
        let later = Nic::Hardware { name: "ConnectX-5", queue_pairs: 896 };
        assert_eq!(of(&Ground { nic: Some(later), others: 63, ..Ground::default() }).0, 4);
    }

    #[test]
    fn measured_rates_go_before_the_kind() {
        let row = |connections, writes| ConnectionRow { connections, writes };
        let rows = [row(8, 19e6), row(16, 20e6), row(32, 18e6), row(64, 10e6), row(128, 2e6)];
        let count = |others| {
            let nic = Some(CONNECT_X3);
            of(&Ground { nic, connections: &rows, device: "mlx4_0", others, ..Ground::default() })
        };
        assert_eq!([1, 4, 5, 8, 16, 100].map(|others| count(others).0), [4, 4, 3, 2, 1, 1]);
        assert!(
            count(1).1.starts_with("mlx4_0 holds 32 queue pairs by its measured rates"),
            "{}",
            count(1).1
        );
        assert_eq!(held(&[]), None);
    }

    #[test]
    fn emulated_and_unknown_devices_have_two() {
        let (others, nic) = (500, Some(Nic::Emulated { name: "Soft-RoCE" }));
        let rxe = of(&Ground { nic, others, ..Ground::default() });
        assert_eq!(rxe.0, 2);
        assert!(rxe.1.contains("requests of Soft-RoCE"), "{}", rxe.1);
        let ofi = of(&Ground { target_progress: true, others, ..Ground::default() });
        assert_eq!(ofi.0, 2);
        assert!(ofi.1.contains("requests of libfabric"), "{}", ofi.1);
        let unknown = of(&Ground { others, ..Ground::default() });
        assert_eq!(unknown.0, 2);
        assert!(unknown.1.contains("dunlin bench fetch-table"), "{}", unknown.1);
    }

    /// A reason is a text of a message, which has 255 bytes at most.
    #[test]
    fn reasons_are_short() {
        let device = "d".repeat(64);
        for reason in [
            PathReason::Given,
            PathReason::Processors { processors: u32::MAX },
            PathReason::Emulated { name: "Soft-iWARP" },
            PathReason::Holds { device, measured: true, queue_pairs: u32::MAX, others: u16::MAX },
            PathReason::Unknown,
        ] {
            assert!(reason.to_string().len() <= 255, "{reason}");
        }
    }
}
