//! The layout of the metadata, and the arithmetic of the ring: pure functions.

use crate::error::LogError;
use xxhash_rust::xxh3::xxh3_64;

/// The unit of the ring: transactions begin at multiples of it.
pub(crate) const SLOT: u64 = 64;
/// The magic number of a log.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"DUNLOG\x00\x01");
const VERSION: u32 = 2;
/// Length of the part that never changes, in bytes. The magic number is its first word.
pub(crate) const FIXED: usize = 64;
/// The place of the tail: the end of all reservations.
pub(crate) const TAIL: u64 = 64;
/// The place of the head: everything before it was cleaned.
pub(crate) const HEAD: u64 = 128;
/// The place of the cleaner's lease.
pub(crate) const CLEANER: u64 = 192;
/// The place of the table of writers.
pub(crate) const TABLE: u64 = 256;
/// Length of a writer's row, in bytes: number, watermark, label.
pub(crate) const ROW: usize = 64;
/// The longest label of a writer, in bytes.
pub(crate) const LABEL: usize = 48;
/// Positions end here, long before they could wrap.
pub(crate) const LAST_POSITION: u64 = 1 << 62;
/// The longest transaction that a log may permit, in bytes.
pub(crate) const MOST_LONGEST: u64 = 16 << 20;
const MOST_CAPACITY: u64 = 1 << 40;
const MOST_WRITERS: u32 = 1024;

/// The part of the metadata that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The number of the log: another log of the same name has another.
    pub(crate) id: u64,
    /// Bytes of reservations that the ring holds.
    pub(crate) capacity: u64,
    /// The longest transaction with its header, in bytes.
    pub(crate) longest: u64,
    /// Rows of the table of writers.
    pub(crate) writers: u32,
    /// The lease of a cleaner, in milliseconds.
    pub(crate) lease_ms: u32,
    /// The time for which a hole stands before a cleaner examines it, in milliseconds.
    pub(crate) hole_ms: u32,
    /// A hash of the name of the node that stores the log, or of the first one of several.
    pub(crate) store: u64,
}

/// Returns the place of a row in the metadata.
pub(crate) fn row_at(row: usize) -> u64 {
    TABLE + (row * ROW) as u64
}

/// Returns the hash of a node's name, as the metadata has it.
pub(crate) fn hash(node: &str) -> u64 {
    xxh3_64(node.as_bytes())
}

/// The two words of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) head: u64,
    pub(crate) tail: u64,
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

pub(crate) fn damaged(what: impl Into<String>) -> LogError {
    LogError::Damaged { what: what.into() }
}

impl Shape {
    /// Checks the settings.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        let out = |what, value, must| Err(LogError::Setting { what, value, must });
        if !self.longest.is_multiple_of(SLOT) || !(SLOT..=MOST_LONGEST).contains(&self.longest) {
            return out("the longest transaction", self.longest, "a multiple of 64 from 64 bytes to 16 MiB");
        }
        if !self.capacity.is_multiple_of(SLOT) || !(self.longest..=MOST_CAPACITY).contains(&self.capacity) {
            return out(
                "the capacity",
                self.capacity,
                "a multiple of 64 from the longest transaction to 1 TiB",
            );
        }
        if self.writers == 0 || self.writers > MOST_WRITERS {
            return out("the number of writers", self.writers.into(), "1 to 1024");
        }
        if self.lease_ms == 0 {
            return out("the lease in milliseconds", 0, "at least 1");
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> [u8; FIXED] {
        let mut bytes = [0; FIXED];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.writers.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.longest.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.id.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.lease_ms.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.hole_ms.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.store.to_le_bytes());
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the metadata of the log `name`.
    pub(crate) fn parse(bytes: &[u8; FIXED], name: &str) -> Result<Shape, LogError> {
        match word(bytes, 0) {
            MAGIC => {}
            0 => return Err(LogError::NotReady { name: name.to_owned() }),
            other => return Err(damaged(format!("the magic number is {other:#x}, so it is no log"))),
        }
        let version = half(bytes, 8);
        if version != VERSION {
            return Err(damaged(format!("version {version} is not known here, only {VERSION}")));
        }
        if word(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(damaged("the checksum of the settings is wrong"));
        }
        let shape = Shape {
            id: word(bytes, 32),
            capacity: word(bytes, 16),
            longest: word(bytes, 24),
            writers: half(bytes, 12),
            lease_ms: half(bytes, 40),
            hole_ms: half(bytes, 44),
            store: word(bytes, 48),
        };
        shape.check().map_err(|error| damaged(error.to_string()))?;
        Ok(shape)
    }

    /// Returns the length of the ring's region. The part behind the capacity holds the ends of transactions that begin
    /// before it.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.capacity + self.longest
    }

    /// Returns the length of the metadata's region.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        TABLE + u64::from(self.writers) * ROW as u64
    }

    /// Returns the place of a position in the ring.
    pub(crate) fn place(&self, position: u64) -> u64 {
        position % self.capacity
    }

    /// Returns the largest possible distance between the words: each writer may have reserved past the room once.
    fn most_reserved(&self) -> u64 {
        self.capacity + u64::from(self.writers) * self.longest
    }

    /// Returns whether the words can be those of a log.
    pub(crate) fn check_words(&self, words: Words) -> Result<(), LogError> {
        let Words { head, tail } = words;
        if !head.is_multiple_of(SLOT) || !tail.is_multiple_of(SLOT) || tail > LAST_POSITION {
            return Err(damaged(format!("the head {head} or the tail {tail} is no position")));
        }
        if tail < head {
            return Err(damaged(format!("the tail {tail} is before the head {head}")));
        }
        if tail - head > self.most_reserved() {
            return Err(damaged(format!(
                "{} bytes between the head {head} and the tail {tail} are more than writers can reserve",
                tail - head
            )));
        }
        Ok(())
    }

    /// Returns whether a reservation up to `end` may be written.
    pub(crate) fn has_room(&self, head: u64, end: u64) -> bool {
        end <= head.saturating_add(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape =
        Shape { id: 7, capacity: 4096, longest: 1024, writers: 3, lease_ms: 9, hole_ms: 8, store: 6 };

    #[test]
    fn settings_travel_and_damage_is_found() {
        let bytes = SHAPE.encode();
        assert_eq!(Shape::parse(&bytes, "x").unwrap(), SHAPE);
        for at in 0..FIXED {
            let mut wrong = bytes;
            wrong[at] ^= 0x40;
            assert!(matches!(Shape::parse(&wrong, "x"), Err(LogError::Damaged { .. })), "{at}");
        }
        assert!(matches!(Shape::parse(&[0; FIXED], "x"), Err(LogError::NotReady { .. })));
    }

    #[test]
    fn words_that_no_log_has_are_refused() {
        let most = 4096 + 3 * 1024;
        for (head, tail) in [(0, 0), (64, 64), (0, most), (1 << 40, (1 << 40) + most)] {
            SHAPE.check_words(Words { head, tail }).unwrap();
        }
        for (head, tail) in [(64, 0), (0, most + 64), (1, 64), (0, 65), (0, u64::MAX), (!63, !63)] {
            let checked = SHAPE.check_words(Words { head, tail });
            assert!(matches!(checked, Err(LogError::Damaged { .. })), "{head} {tail}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::array::uniform32(any::<u8>()), is_signed: bool) {
            let mut metadata = [0; FIXED];
            metadata[16..48].copy_from_slice(&bytes);
            metadata[8..12].copy_from_slice(&VERSION.to_le_bytes());
            metadata[..8].copy_from_slice(&MAGIC.to_le_bytes());
            if is_signed {
                let checksum = xxh3_64(&metadata[..56]);
                metadata[56..].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Ok(shape) = Shape::parse(&metadata, "x") {
                prop_assert!(is_signed && shape.check().is_ok());
            }
        }

        /// Reservations that may be written at the same time do not overlap in the ring.
        #[test]
        fn reservations_with_room_do_not_overlap(
            head in (0u64..1 << 50).prop_map(|slot| slot * SLOT),
            lengths in prop::collection::vec(1u64..=16, 1..80),
        ) {
            let (mut position, mut taken) = (head, vec![None; (SHAPE.ring_bytes() / SLOT) as usize]);
            for length in lengths {
                let end = position + length * SLOT;
                if !SHAPE.has_room(head, end) {
                    break;
                }
                let first = SHAPE.place(position) / SLOT;
                for slot in first..first + length {
                    prop_assert!(taken[slot as usize].replace(position).is_none());
                }
                position = end;
            }
            prop_assert!(position - head <= SHAPE.capacity);
        }
    }
}
