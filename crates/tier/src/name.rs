//! Names of regions, and the node that keeps a name.

use crate::place::NodeId;
use crate::rights::Principal;
use std::fmt;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The longest name, in bytes.
pub const MAX_NAME: usize = 255;

/// The reason why bytes are not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no bytes.
    #[error("the name is empty: write application/name")]
    Empty,
    /// The name is too long.
    #[error("the name has {0} bytes, and names have at most {MAX_NAME}: shorten it")]
    TooLong(usize),
}

/// A name of a region: 1 to 255 bytes, unique in the cluster. The part before the first `/` is the
/// application by convention; the meaning of the rest belongs to the application (section 4.1). If it is `~PRINCIPAL`, the
/// name [belongs](Name::is_open_to) to that principal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks the length and makes a name.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Name, NameError> {
        let bytes = bytes.as_ref();
        match bytes.len() {
            0 => Err(NameError::Empty),
            1..=MAX_NAME => Ok(Name(bytes.into())),
            length => Err(NameError::TooLong(length)),
        }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the principal to whom a name of the form `~PRINCIPAL/...` belongs, as bytes; `None` for a name of all.
    pub fn owner(&self) -> Option<&[u8]> {
        let rest = self.0.strip_prefix(b"~")?;
        let end = rest.iter().position(|byte| *byte == b'/')?;
        Some(&rest[..end])
    }

    /// Returns whether a principal may make regions of this name, take its lock, wait at its barrier, and serve and call a
    /// service of this name: names of the form `~PRINCIPAL/...` belong to one principal, and others to all.
    pub fn is_open_to(&self, principal: &Principal) -> bool {
        self.owner().is_none_or(|owner| owner == principal.as_str().as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns the node that keeps `name`, by rendezvous hashing: the node with the greatest hash of name and node.
/// A node that joins or leaves changes the home of no name except those that it gains or loses. `None` without
/// nodes.
pub fn home(name: &Name, nodes: impl IntoIterator<Item = NodeId>) -> Option<NodeId> {
    // The node's number breaks ties, so that all nodes agree.
    nodes.into_iter().max_by_key(|node| (xxh3_64_with_seed(&name.0, seed(*node)), *node))
}

/// Spreads consecutive numbers over all bits of a seed.
fn seed(node: NodeId) -> u64 {
    (u64::from(node.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_have_1_to_255_bytes() {
        assert_eq!(Name::new(b""), Err(NameError::Empty));
        assert_eq!(Name::new([b'x'; 256]), Err(NameError::TooLong(256)));
        assert_eq!(Name::new([b'x'; 255]).unwrap().as_bytes().len(), 255);
        assert_eq!(Name::new(b"graph/\xff7").unwrap().to_string(), "graph/\\xff7");
    }

    #[test]
    fn names_with_a_tilde_belong_to_one_principal() {
        let (alice, bob) = (Principal::new("alice").unwrap(), Principal::new("bob").unwrap());
        let may = |name: &[u8]| [&alice, &bob].map(|who| Name::new(name).unwrap().is_open_to(who));
        for of_all in [&b"a"[..], b"~", b"~alice", b"alice/x", b"x~alice/y", b"/~alice/y", b"~\xff"] {
            assert_eq!(may(of_all), [true; 2], "{of_all:?}");
        }
        for of_alice in [&b"~alice/"[..], b"~alice/x", b"~alice/x/~bob/y", b"~alice//"] {
            assert_eq!(may(of_alice), [true, false], "{of_alice:?}");
        }
        for of_nobody in [&b"~/"[..], b"~/x", b"~Alice/x", b"~alic/x", b"~alice /x", b"~\xff/x"] {
            assert_eq!(may(of_nobody), [false; 2], "{of_nobody:?}");
        }
    }

    #[test]
    fn names_spread_evenly_over_nodes() {
        let mut kept = [0u32; 10];
        for number in 0..10_000 {
            let name = Name::new(format!("graph/{number}")).unwrap();
            kept[usize::from(home(&name, (0..10).map(NodeId)).unwrap().0)] += 1;
        }
        assert!(kept.iter().all(|count| (800..1200).contains(count)), "{kept:?}");
    }

    proptest! {
        /// A node that leaves takes only its own names with it, in any order of the list.
        #[test]
        fn only_names_of_a_leaving_node_move(bytes in prop::collection::vec(any::<u8>(), 1..40), count in 1u16..20, leaving in any::<u16>()) {
            let name = Name::new(bytes).unwrap();
            let leaving = NodeId(leaving % count);
            let all: Vec<NodeId> = (0..count).map(NodeId).collect();
            let before = home(&name, all.iter().copied()).unwrap();
            prop_assert_eq!(home(&name, all.iter().rev().copied()), Some(before));
            let after = home(&name, all.iter().copied().filter(|node| *node != leaving));
            if before != leaving {
                prop_assert_eq!(after, Some(before));
            } else {
                prop_assert_eq!(after.is_none(), count == 1);
            }
        }
    }
}
