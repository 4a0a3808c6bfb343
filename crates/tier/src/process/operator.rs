//! Requests of the user who runs a node, and of root.

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;
use crate::place::LmrId;

/// Asks the node to leave the cluster and to end. Answer: [`Holdings`].
pub const LEAVE: u16 = 31;
/// Frees a region that was made at the node, whoever is its master.
pub const FREE_NAMED: u16 = 40;
/// Lists regions of other nodes that have bytes in the node's memory. Answer: [`Lent`].
pub const LENT: u16 = 41;
/// Moves a region of another node away from the node's memory.
pub const MOVE_AWAY: u16 = 42;
/// Asks for the regions that end with the node. Answer: [`Holdings`].
pub const HELD: u16 = 43;
/// Hands records of regions with a name to another node, which keeps them from then on. Answer: [`HandedOver`].
pub const HAND_OVER: u16 = 45;

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// [`LEAVE`].
    Leave {
        /// Leave also if regions end with the node.
        force: bool,
    },
    /// [`FREE_NAMED`].
    FreeNamed {
        /// The name of the region.
        name: Name,
    },
    /// [`LENT`].
    Lent {
        /// The last region of the answer before; none at the beginning.
        after: Option<LmrId>,
    },
    /// [`MOVE_AWAY`].
    MoveAway {
        /// The region.
        id: LmrId,
        /// The name of the node that shall store it.
        to: String,
    },
    /// [`HELD`].
    Held,
    /// [`HAND_OVER`].
    HandOver {
        /// The name of the node that shall keep them.
        to: String,
    },
}

impl OperatorRequest {
    /// Returns the function number.
    pub fn function(&self) -> u16 {
        match self {
            OperatorRequest::Leave { .. } => LEAVE,
            OperatorRequest::FreeNamed { .. } => FREE_NAMED,
            OperatorRequest::Lent { .. } => LENT,
            OperatorRequest::MoveAway { .. } => MOVE_AWAY,
            OperatorRequest::Held => HELD,
            OperatorRequest::HandOver { .. } => HAND_OVER,
        }
    }

    /// The name of a node has at most 255 bytes.
    pub(super) fn write(&self, writer: Writer) -> Writer {
        match self {
            OperatorRequest::Leave { force } => writer.u8(u8::from(*force)),
            OperatorRequest::FreeNamed { name } => writer.text(name.as_bytes()),
            OperatorRequest::Lent { after: Some(after) } => writer.u8(1).id(*after),
            OperatorRequest::Lent { after: None } => writer.u8(0),
            OperatorRequest::MoveAway { id, to } => writer.id(*id).text(to.as_bytes()),
            OperatorRequest::Held => writer,
            OperatorRequest::HandOver { to } => writer.text(to.as_bytes()),
        }
    }

    pub(super) fn read(function: u16, reader: &mut Reader<'_>) -> Result<OperatorRequest, Malformed> {
        Ok(match function {
            LEAVE => OperatorRequest::Leave { force: reader.flag()? },
            FREE_NAMED => OperatorRequest::FreeNamed { name: reader.name()? },
            LENT => OperatorRequest::Lent { after: if reader.flag()? { Some(reader.id()?) } else { None } },
            MOVE_AWAY => OperatorRequest::MoveAway { id: reader.id()?, to: reader.string()? },
            HELD => OperatorRequest::Held,
            HAND_OVER => OperatorRequest::HandOver { to: reader.string()? },
            _ => return Err(Malformed),
        })
    }
}

/// The answer to [`LEAVE`] and [`HELD`]: the regions that end with the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Whether the node leaves. It does if there are no such regions, or if it was told to leave all the same.
    pub leaves: bool,
    /// Names of regions that were made at the node, the first ones.
    pub names: Vec<Name>,
    /// The number of all of them.
    pub named: u64,
    /// The bytes of the node's memory that regions of other nodes use.
    pub bytes: u64,
}

/// The most names of [`Holdings`].
pub const MAX_HELD_NAMES: usize = 256;

impl Holdings {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::new()).u8(u8::from(self.leaves)).u64(self.named).u64(self.bytes);
        writer = writer.u16(self.names.len() as u16);
        for name in &self.names {
            writer = writer.text(name.as_bytes());
        }
        writer.0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<Holdings, Malformed> {
        let mut reader = Reader(bytes);
        let (leaves, named, bytes, count) = (reader.flag()?, reader.u64()?, reader.u64()?, reader.u16()?);
        if usize::from(count) > MAX_HELD_NAMES {
            return Err(Malformed);
        }
        let names = (0..count).map(|_| reader.name()).collect::<Result<_, _>>()?;
        reader.end(Holdings { leaves, names, named, bytes })
    }
}

/// The answer to [`HAND_OVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// The records that the other node has got.
    pub records: u64,
    /// The records of regions with a name that this node still keeps.
    pub left: u64,
}

impl HandedOver {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        Writer(Vec::new()).u64(self.records).u64(self.left).0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<HandedOver, Malformed> {
        let mut reader = Reader(bytes);
        let handed = HandedOver { records: reader.u64()?, left: reader.u64()? };
        reader.end(handed)
    }
}

/// A region of another node that has bytes in a node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentRegion {
    /// The region.
    pub id: LmrId,
    /// The bytes that it takes here.
    pub bytes: u64,
    /// The name of the node where it was made.
    pub node: String,
}

/// The answer to [`LENT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Regions in the order of their ids.
    pub regions: Vec<LentRegion>,
    /// There are more.
    pub more: bool,
}

/// The most regions of [`Lent`].
pub const MAX_LENT: usize = 256;

impl Lent {
    /// Encodes the answer. The name of a node has at most 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::new()).u8(u8::from(self.more)).u16(self.regions.len() as u16);
        for region in &self.regions {
            writer = writer.id(region.id).u64(region.bytes).text(region.node.as_bytes());
        }
        writer.0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<Lent, Malformed> {
        let mut reader = Reader(bytes);
        let (more, count) = (reader.flag()?, reader.u16()?);
        if usize::from(count) > MAX_LENT {
            return Err(Malformed);
        }
        let region = |_| Ok(LentRegion { id: reader.id()?, bytes: reader.u64()?, node: reader.string()? });
        let regions = (0..count).map(region).collect::<Result<_, Malformed>>()?;
        reader.end(Lent { regions, more })
    }
}
