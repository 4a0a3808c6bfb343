//! The answer of a node to a request for a direct mapping, and the reasons of a refusal.

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::rights::Rights;
use thiserror::Error;

/// Returns the name of the address at which a node gives processes memory to map, from the name of its address for
/// processes. The first message is the [`Secret`](super::Secret) of the process, and the answer is empty. Each further
/// message is the number of a mapping that is wanted back: 8 bytes, little-endian.
pub fn direct_name(name: &str) -> String {
    format!("{name}-direct")
}

/// The reason why a region cannot be mapped directly. Reads and writes through the node work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u8)]
pub enum NoDirect {
    /// Bytes are on other nodes.
    #[error("not all bytes of the region are on this process's own node: read and write it instead")]
    Elsewhere = 0,
    /// The region lies in memory that regions of other users may share.
    #[error(
        "the region may share its memory with regions of other users: its user has to make it with Spec::direct"
    )]
    Shared = 1,
    /// The node's memory is not shared memory.
    #[error("the memory of this node cannot be mapped by processes: its fabric is not shared memory")]
    Fabric = 2,
    /// The kernel does not say which process this is.
    #[error("the node cannot see this process, so it could not tell when its mapping ends")]
    Process = 3,
    /// There is no connection over which memory is given.
    #[error("the node gives this process no memory to map: bring both to the same release")]
    Line = 4,
    /// The node is one of other nodes than those that shall store the region.
    #[error("a region for direct mapping is on the own node alone: leave the nodes out")]
    Nodes = 5,
}

dunlin_numbered::numbered!(NoDirect: u8 { Elsewhere, Shared, Fabric, Process, Line, Nodes });

/// A part of a region that is mapped directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPart {
    /// The key of the granted memory.
    pub key: u64,
    /// The offset of the part in that memory, in bytes.
    pub offset: u64,
    /// The length of the part in bytes.
    pub length: u64,
}

/// The answer to [`DIRECT`](super::DIRECT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directed {
    /// The number of the mapping, for [`LET_GO`](super::LET_GO).
    pub number: u64,
    /// The rights of the handle.
    pub rights: Rights,
    /// The parts of the region in order.
    pub parts: Vec<DirectPart>,
}

impl Directed {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(16 + 24 * self.parts.len()));
        writer = writer.u64(self.number).rights(self.rights).u32(self.parts.len() as u32);
        for DirectPart { key, offset, length } in &self.parts {
            writer = writer.u64(*key).u64(*offset).u64(*length);
        }
        writer.0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<Directed, Malformed> {
        let mut reader = Reader(bytes);
        let (number, rights, count) = (reader.u64()?, reader.rights()?, reader.u32()? as usize);
        if count > reader.0.len() / size_of::<DirectPart>() {
            return Err(Malformed);
        }
        let part = |_| {
            let (key, offset) = (reader.u64()?, reader.u64()?);
            Ok(DirectPart { key, offset, length: reader.u64()? })
        };
        let parts = (0..count).map(part).collect::<Result<_, _>>()?;
        reader.end(Directed { number, rights, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn answers_come_back_whole_and_others_are_refused(
            number in any::<u64>(), parts in prop::collection::vec(any::<[u64; 3]>(), 0..6),
            cut in any::<prop::sample::Index>(), noise in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let part = |[key, offset, length]: [u64; 3]| DirectPart { key, offset, length };
            let directed = Directed { number, rights: Rights::READ, parts: parts.into_iter().map(part).collect() };
            let bytes = directed.encode();
            prop_assert_eq!(Directed::parse(&bytes), Ok(directed));
            prop_assert!(Directed::parse(&bytes[..cut.index(bytes.len())]).is_err());
            let _ = Directed::parse(&noise);
        }
    }

    #[test]
    fn reasons_have_numbers() {
        for reason in NoDirect::ALL {
            assert_eq!(NoDirect::from_wire(reason as u8), Some(reason));
        }
        assert!(NoDirect::from_wire(NoDirect::ALL.len() as u8).is_none());
    }
}
