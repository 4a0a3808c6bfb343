//! The layout of a transaction: pure functions.
//!
//! ```text
//!   0  checksum over everything from byte 8 to the end of the payload
//!   8  position
//!  16  number of the writer
//!  24  length of the payload
//!  28  number of entries; 0 for a place that was given up, whose payload was not written and has no checksum
//!  32  payload: for each entry its length and its bytes
//! ```

use crate::layout::{SLOT, Shape, word};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length of the header of a transaction, in bytes.
pub(crate) const HEADER: usize = 32;
/// Length of the header of an entry, in bytes.
pub(crate) const ENTRY_HEADER: usize = 4;

/// A whole header that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) position: u64,
    pub(crate) writer: u64,
    /// Length of the payload, in bytes.
    pub(crate) length: u32,
    pub(crate) entries: u32,
}

impl Header {
    /// Returns the bytes of the ring that the transaction takes.
    pub(crate) fn extent(&self) -> u64 {
        (HEADER as u64 + u64::from(self.length)).next_multiple_of(SLOT)
    }

    /// Returns whether the place was given up.
    pub(crate) fn is_void(&self) -> bool {
        self.entries == 0
    }
}

/// The content of a place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A whole transaction.
    Whole(Header),
    /// A transaction may be here, and this number of its bytes is needed to find out.
    Needs(usize),
    /// No whole transaction of this position: none, a part of one, or one of another lap.
    Nothing,
}

/// Examines bytes of the ring that begin at the place of `position`. They are hostile.
pub(crate) fn examine(bytes: &[u8], shape: &Shape, position: u64) -> Found {
    if bytes.len() < HEADER {
        return Found::Needs(HEADER);
    }
    let found = word(bytes, 8);
    let lengths = word(bytes, 24);
    let header =
        Header { position, writer: word(bytes, 16), length: lengths as u32, entries: (lengths >> 32) as u32 };
    if found != position {
        return Found::Nothing;
    }
    let end = HEADER as u64 + u64::from(header.length);
    if end > shape.longest {
        return Found::Nothing;
    }
    let covered = if header.is_void() { HEADER } else { end as usize };
    if bytes.len() < covered {
        return Found::Needs(covered);
    }
    if word(bytes, 0) != xxh3_64_with_seed(&bytes[8..covered], shape.id) {
        return Found::Nothing;
    }
    let payload = &bytes[HEADER..covered];
    let (mut entries, mut count) = (Entries { left: payload }, 0u64);
    while entries.next().is_some() {
        count += 1;
    }
    if !entries.left.is_empty() || count != u64::from(header.entries) {
        return Found::Nothing;
    }
    Found::Whole(header)
}

/// A transaction that is being put together.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    entries: u32,
}

impl Draft {
    pub(crate) fn new() -> Draft {
        Draft { bytes: vec![0; HEADER], entries: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the bytes of the ring that the transaction takes.
    pub(crate) fn extent(&self) -> u64 {
        (self.bytes.len() as u64).next_multiple_of(SLOT)
    }

    /// Returns the length of the transaction with one more entry.
    pub(crate) fn length_with(&self, entry: &[u8]) -> u64 {
        self.bytes.len() as u64 + (ENTRY_HEADER + entry.len()) as u64
    }

    /// Adds an entry. The caller has checked the length, which is below 4 GiB.
    pub(crate) fn push(&mut self, entry: &[u8]) {
        self.bytes.extend_from_slice(&(entry.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(entry);
        self.entries += 1;
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(HEADER);
        self.entries = 0;
    }

    /// Completes the header; returns the bytes to write.
    pub(crate) fn seal(&mut self, shape: &Shape, position: u64, writer: u64) -> &[u8] {
        let length = (self.bytes.len() - HEADER) as u32;
        head(&mut self.bytes, shape, Header { position, writer, length, entries: self.entries });
        &self.bytes
    }
}

/// Writes a header in front of a payload.
fn head(bytes: &mut [u8], shape: &Shape, header: Header) {
    bytes[8..16].copy_from_slice(&header.position.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.writer.to_le_bytes());
    bytes[24..28].copy_from_slice(&header.length.to_le_bytes());
    bytes[28..32].copy_from_slice(&header.entries.to_le_bytes());
    let checksum = xxh3_64_with_seed(&bytes[8..], shape.id);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the header of a place of `extent` bytes that is given up.
pub(crate) fn void(shape: &Shape, position: u64, extent: u64, writer: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let length = (extent - HEADER as u64) as u32;
    head(&mut bytes, shape, Header { position, writer, length, entries: 0 });
    bytes
}

/// A transaction, whole, in memory that nobody changes.
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'a> {
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
}

impl<'a> Transaction<'a> {
    /// Returns the position of the transaction.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.header.position
    }

    /// Returns the position behind the transaction.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.header.position + self.header.extent()
    }

    /// Returns the number of the writer.
    #[must_use]
    pub fn writer(&self) -> u64 {
        self.header.writer
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.entries as usize
    }

    /// Returns whether there are no entries, which no committed transaction has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// Returns the entries in the order in which they were appended.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries { left: self.payload }
    }
}

/// The entries of a transaction.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    left: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.left.split_first_chunk::<ENTRY_HEADER>()?;
        let (entry, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.left = rest;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape =
        Shape { id: 0xfeed, capacity: 8192, longest: 4096, writers: 3, lease_ms: 9, hole_ms: 8, store: 6 };

    fn sealed(entries: &[Vec<u8>], position: u64) -> Vec<u8> {
        let mut draft = Draft::new();
        entries.iter().for_each(|entry| draft.push(entry));
        draft.seal(&SHAPE, position, 5).to_vec()
    }

    #[test]
    fn another_log_and_another_lap_are_recognised() {
        let bytes = sealed(&[b"hello".to_vec(), Vec::new()], 640);
        let Found::Whole(header) = examine(&bytes, &SHAPE, 640) else { panic!("not whole") };
        assert_eq!((header.entries, header.writer, header.extent()), (2, 5, 64));
        assert_eq!(examine(&bytes, &Shape { id: 1, ..SHAPE }, 640), Found::Nothing);
        assert_eq!(examine(&bytes, &SHAPE, 640 + 8192), Found::Nothing, "an earlier lap");
        assert_eq!(
            examine(&sealed(&[b"x".to_vec()], 640 + 16384), &SHAPE, 640),
            Found::Nothing,
            "a later lap"
        );
        assert_eq!(examine(&sealed(&[b"x".to_vec()], 704), &SHAPE, 640), Found::Nothing, "not of this place");
        assert_eq!(examine(&bytes[..31], &SHAPE, 640), Found::Needs(32));
        assert_eq!(examine(&bytes[..32], &SHAPE, 640), Found::Needs(45));
    }

    #[test]
    fn a_void_place_has_its_length_and_no_payload() {
        let bytes = void(&SHAPE, 64, 192, 5);
        let Found::Whole(header) = examine(&bytes, &SHAPE, 64) else { panic!("not whole") };
        assert!(header.is_void() && header.extent() == 192);
        let whole = [&bytes[..], &[9; 500]].concat();
        assert_eq!(examine(&whole, &SHAPE, 64), Found::Whole(header), "old bytes behind it do not matter");
    }

    #[test]
    fn a_length_beyond_the_longest_is_nothing() {
        let mut bytes = sealed(&[vec![1; 100]], 0);
        bytes[24..28].copy_from_slice(&(4096u32 - 31).to_le_bytes());
        assert_eq!(examine(&bytes, &SHAPE, 0), Found::Nothing);
        bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(examine(&bytes, &SHAPE, 0), Found::Nothing);
    }

    #[test]
    fn entries_that_do_not_fill_the_payload_are_nothing() {
        let mut bytes = sealed(&[b"12345678".to_vec()], 0);
        bytes[32..36].copy_from_slice(&4u32.to_le_bytes());
        let header = Header { position: 0, writer: 5, length: 12, entries: 1 };
        head(&mut bytes, &SHAPE, header);
        assert_eq!(examine(&bytes, &SHAPE, 0), Found::Nothing);
    }

    proptest! {
        #[test]
        fn any_bytes_are_examined_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            length: u32, entries: u32, is_signed: bool,
        ) {
            let mut bytes = bytes;
            if bytes.len() >= HEADER {
                let length = length % 300;
                bytes[8..16].copy_from_slice(&64u64.to_le_bytes());
                bytes[24..28].copy_from_slice(&length.to_le_bytes());
                bytes[28..32].copy_from_slice(&(entries % 4).to_le_bytes());
                let end = HEADER + length as usize;
                if is_signed && end <= bytes.len() {
                    let checksum = xxh3_64_with_seed(&bytes[8..end], SHAPE.id);
                    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
                }
            }
            if let Found::Whole(header) = examine(&bytes, &SHAPE, 64) {
                prop_assert!(header.extent() <= SHAPE.longest);
                let end = HEADER + header.length as usize;
                if !header.is_void() {
                    let transaction = Transaction { header, payload: &bytes[HEADER..end] };
                    prop_assert_eq!(transaction.entries().count(), transaction.len());
                }
            }
        }

        #[test]
        fn a_transaction_comes_back_and_every_flipped_bit_and_cut_is_found(
            entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..9),
            lap in 0u64..1000, flip: prop::sample::Index, cut: prop::sample::Index,
        ) {
            let position = lap * 8192 + 4096;
            let bytes = sealed(&entries, position);
            let Found::Whole(header) = examine(&bytes, &SHAPE, position) else { panic!("not whole") };
            let transaction = Transaction { header, payload: &bytes[HEADER..] };
            prop_assert!(transaction.entries().eq(entries.iter().map(Vec::as_slice)));
            prop_assert_eq!(transaction.len(), entries.len());
            let mut wrong = bytes.clone();
            let bit = flip.index(bytes.len() * 8);
            wrong[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(examine(&wrong, &SHAPE, position), Found::Whole(_)));
            // A torn transaction: the rest is of an earlier lap.
            let mut torn = sealed(&[vec![0xaa; bytes.len() - HEADER - ENTRY_HEADER]], position.wrapping_sub(8192) % (1 << 40));
            let cut = cut.index(bytes.len());
            torn[..cut].copy_from_slice(&bytes[..cut]);
            if torn != bytes {
                prop_assert!(!matches!(examine(&torn, &SHAPE, position), Found::Whole(_)));
            }
        }
    }
}
