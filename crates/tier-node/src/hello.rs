//! The handshake of a path: three short messages on its control connection.

use crate::arena::MAX_EXTENTS;
use dunlin_fabric::{Endpoint, RegionKey};
use dunlin_tier::{Epoch, NodeId};

const MAGIC: [u8; 8] = *b"dunlinTM";
const VERSION: u16 = 7;

/// The first message, from the node that will post operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    /// The path of that node. A new connection of a path replaces its old one.
    pub(crate) path: u16,
    pub(crate) token: Vec<u8>,
    /// The node's incarnation in its view; the default with a fixed list.
    pub(crate) incarnation: Epoch,
    /// A random number of the node's process.
    pub(crate) life: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.node.0, self.path, self.token.len() as u16] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.incarnation.number, self.incarnation.directory, self.life] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.token);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Hello, &'static str> {
        let (head, rest) = bytes.split_first_chunk::<16>().ok_or("too short")?;
        check_version(head)?;
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (lives, token) = rest.split_first_chunk::<24>().ok_or("too short")?;
        let [number_of_view, directory, life] = [0, 8, 16].map(|at| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&lives[at..at + 8]);
            u64::from_le_bytes(eight)
        });
        if token.len() != usize::from(number(14)) {
            return Err("not as long as it says");
        }
        let incarnation = Epoch { number: number_of_view, directory };
        Ok(Hello { node: NodeId(number(10)), path: number(12), token: token.to_vec(), incarnation, life })
    }
}

fn check_version(head: &[u8; 16]) -> Result<(), &'static str> {
    if head[..8] != MAGIC {
        return Err("not the handshake of a path");
    }
    if u16::from_le_bytes([head[8], head[9]]) != VERSION {
        return Err("another version");
    }
    Ok(())
}

/// The answer of the node that stores memory. The poster answers with its own endpoint, and the storing node with an
/// empty message when its end is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// A random number of this life of the node.
    pub(crate) incarnation: u64,
    /// The number of times that the node has fenced the poster.
    pub(crate) fences: u64,
    /// The extents of the node's arena.
    pub(crate) extents: Vec<OfferedExtent>,
    pub(crate) endpoint: Endpoint,
}

/// An extent of a node's arena: a part of the memory that a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfferedExtent {
    pub(crate) key: RegionKey,
    /// The offset of its first byte in that memory.
    pub(crate) start: u64,
    /// The length in bytes.
    pub(crate) length: u64,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        // The first extent is always there.
        for number in [VERSION, self.extents.len().saturating_sub(1) as u16, 0, self.endpoint.0.len() as u16]
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let extents = self.extents.iter().flat_map(|extent| [extent.key.0, extent.start, extent.length]);
        for number in [self.incarnation, self.fences].into_iter().chain(extents) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.endpoint.0);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Offer, &'static str> {
        let (head, rest) = bytes.split_first_chunk::<16>().ok_or("too short")?;
        check_version(head)?;
        let count = usize::from(u16::from_le_bytes([head[10], head[11]])) + 1;
        if count > MAX_EXTENTS {
            return Err("more extents than a node has");
        }
        let (numbers, endpoint) = rest.split_at_checked(16 + count * 24).ok_or("too short")?;
        if endpoint.len() != usize::from(u16::from_le_bytes([head[14], head[15]])) {
            return Err("not as long as it says");
        }
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&numbers[at * 8..at * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        Ok(Offer {
            incarnation: number(0),
            fences: number(1),
            extents: (0..count).map(|at| offered([0, 1, 2].map(|part| number(2 + 3 * at + part)))).collect(),
            endpoint: Endpoint(endpoint.to_vec()),
        })
    }
}

fn offered([key, start, length]: [u64; 3]) -> OfferedExtent {
    OfferedExtent { key: RegionKey(key), start, length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_whole_and_cut_ones_are_refused(
            node in any::<u16>(), path in any::<u16>(), token in prop::collection::vec(any::<u8>(), 0..255),
            numbers in any::<[u64; 2]>(), endpoint in prop::collection::vec(any::<u8>(), 0..256),
            extents in prop::collection::vec(any::<[u64; 3]>(), 1..=MAX_EXTENTS),
            cut in any::<prop::sample::Index>(), life in any::<[u64; 3]>(), noise in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let [number, directory, life] = life;
            let incarnation = Epoch { number, directory };
            let hello = Hello { node: NodeId(node), path, token, incarnation, life };
            let bytes = hello.encode();
            prop_assert_eq!(Hello::parse(&bytes), Ok(hello));
            prop_assert!(Hello::parse(&bytes[..cut.index(bytes.len())]).is_err());
            let [incarnation, fences] = numbers;
            let endpoint = Endpoint(endpoint);
            let extents: Vec<_> = extents.into_iter().map(offered).collect();
            let mut offer = Offer { incarnation, fences, extents, endpoint };
            let bytes = offer.encode();
            prop_assert!(bytes.len() <= MAX_CONTROL_MESSAGE);
            prop_assert_eq!(Offer::parse(&bytes), Ok(offer.clone()));
            prop_assert!(Offer::parse(&bytes[..cut.index(bytes.len())]).is_err());
            offer.extents = vec![offered([0; 3]); MAX_EXTENTS + 1];
            prop_assert!(Offer::parse(&offer.encode()).is_err());
            prop_assert!(Hello::parse(&noise).is_err() && Offer::parse(&noise).is_err());
        }
    }
}
