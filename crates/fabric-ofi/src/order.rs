//! Decides which operations must wait for earlier WRITEs if the provider does not order them. Pure.
//!
//! On such a provider a WRITE completes when it is delivered. Operations that must see it are posted after
//! that: messages (including notices of WRITEs), READs, and WRITEs to the same bytes.

use crate::handles::Remote;

/// A range of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) remote: Remote,
    pub(crate) bytes: u32,
}

impl Piece {
    /// Returns whether the two ranges overlap.
    fn meets(&self, other: &Piece) -> bool {
        let starts_within =
            |a: &Piece, b: &Piece| a.remote.address.wrapping_sub(b.remote.address) < u64::from(b.bytes);
        self.remote.key == other.remote.key && (starts_within(self, other) || starts_within(other, self))
    }
}

/// The next operation to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message or a READ, which sees earlier WRITEs.
    Sees,
    /// A WRITE.
    Write(Piece),
}

/// Returns whether the operation must wait for one of the WRITEs that are not delivered yet.
pub(crate) fn must_wait(next: Next, mut under_way: impl Iterator<Item = Piece>) -> bool {
    match next {
        Next::Sees => under_way.next().is_some(),
        Next::Write(piece) => under_way.any(|other| other.meets(&piece)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(key: u64, address: u64, bytes: u32) -> Piece {
        Piece { remote: Remote { address, key }, bytes }
    }

    #[test]
    fn messages_and_reads_wait_for_every_write() {
        assert!(!must_wait(Next::Sees, std::iter::empty()));
        assert!(must_wait(Next::Sees, [piece(1, 0, 8)].into_iter()));
    }

    #[test]
    fn writes_wait_for_those_to_the_same_bytes() {
        let under_way = [piece(1, 100, 8), piece(2, 0, 1000)];
        for (next, waits) in [
            (piece(1, 108, 8), false),
            (piece(1, 92, 8), false),
            (piece(1, 107, 1), true),
            (piece(1, 99, 2), true),
            (piece(1, 0, 4096), true),
            (piece(1, 102, 2), true),
            (piece(3, 100, 8), false),
        ] {
            assert_eq!(must_wait(Next::Write(next), under_way.into_iter()), waits, "{next:?}");
        }
        // Across the end of the address space, which a peer's address can cause.
        let end = piece(1, u64::MAX - 3, 8);
        assert!(must_wait(Next::Write(piece(1, 2, 4)), [end].into_iter()));
    }
}
