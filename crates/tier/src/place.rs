//! The identity of nodes and regions, and the place of a region's bytes.

use std::fmt;

/// The number of a node in the cluster's list of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The identity of a region in the cluster. The node that keeps its record assigns it; a slot is used again
/// with the next generation, so an old id names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LmrId {
    /// The node that keeps the record.
    pub node: NodeId,
    /// The slot in that node's directory.
    pub slot: u32,
    /// The generation of the slot. It differs from those of the node's earlier lives.
    pub generation: u64,
}

/// A contiguous part of a region: 16 bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// The node that stores the bytes.
    pub node: NodeId,
    /// The extent of that node's arena.
    pub extent: u16,
    /// The length in bytes.
    pub length: u32,
    /// The offset in the extent, in bytes.
    pub offset: u64,
}

const _: () = assert!(size_of::<Piece>() == 16);
