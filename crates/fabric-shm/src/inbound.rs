//! The inbound ring of a queue pair, through which SEND and WRITE_WITH_IMM reach the other side.
//!
//! The memory belongs to the receiver and is granted to exactly one peer, the producer. It holds records of
//! whole 64-byte lines. The last 8 bytes of a record's first line are a tag that only the two sides can
//! predict, stored last. Nothing has to be cleared, and no payload is mistaken for a record after the ring
//! has wrapped.
//!
//! The receiver trusts nothing in the ring. It keeps its position and the next tag in private memory, copies
//! each first line once, and checks the length before it uses it. The ring's own first line carries
//! information back. The receiver only writes there (except for the exchange below), so a producer that
//! tampers with it harms only itself.
//!
//! Record: 24 bits of length, 8 of flags, 32 of immediate data (in the first of several records of one
//! message: the message's length); 48 bytes of payload; the tag; then lines with the rest of the payload.

use crate::memory::{Import, Mapping, ShmMemory};
use dunlin_fabric::copy;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

pub(crate) const LINE: usize = 64;
/// Bytes of payload in a record's first line.
const HEAD_PAYLOAD: usize = 48;
const TAG_AT: usize = 56;
/// Offset in the ring's first line: the number of lines that the receiver has taken.
const TAKEN_AT: usize = 0;
/// Offset in the ring's first line: the condition of the receiver.
const CONDITION_AT: usize = 8;
/// Offset in the ring's first line: whether the producer waits for room.
const WANTED_AT: usize = 16;

/// The first record of a message.
pub(crate) const FIRST: u8 = 1;
/// The last record of a message.
pub(crate) const LAST: u8 = 2;
/// The message carries immediate data.
pub(crate) const IMMEDIATE: u8 = 4;
/// Not a SEND, but the notice of a WRITE_WITH_IMM; its payload is the number of bytes written.
pub(crate) const WRITE: u8 = 8;
/// The producer waits for the acknowledgement of this message.
pub(crate) const ACKNOWLEDGE: u8 = 16;

const FINE: u64 = 0;
const NOT_READY: u64 = 1;
const GIVEN_UP: u64 = 2;
const FAILED: u64 = 3;

/// The keyed tags of one ring.
#[derive(Clone, Copy)]
struct Tags {
    key: [u64; 2],
}

impl std::fmt::Debug for Tags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tags")
    }
}

impl Tags {
    /// Derives the keys from the ring owner's secret and the ring's name on the link.
    fn new(secret: [u64; 2], ring: u64) -> Self {
        Tags {
            key: [
                fold(secret[0] ^ ring, secret[1] | 1),
                fold(secret[1] ^ ring.rotate_left(32), secret[0] | 1),
            ],
        }
    }

    #[inline]
    fn of(self, sequence: u64) -> u64 {
        // Never zero: fresh memory is zero and must not match a tag.
        fold(self.key[0] ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15), self.key[1] ^ sequence) | 1
    }
}

/// Multiplies and folds the two halves of the product (as in wyhash).
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1 << 63);
    product as u64 ^ (product >> 64) as u64 ^ a.rotate_left(23)
}

const fn lines_of(length: usize) -> usize {
    1 + length.saturating_sub(HEAD_PAYLOAD).div_ceil(LINE)
}

/// A position in a ring, which each side keeps in private memory.
#[derive(Debug)]
struct Place {
    capacity: usize,
    line: usize,
    lines: u64,
    sequence: u64,
    tags: Tags,
    next_tag: u64,
}

impl Place {
    fn new(mapping: &Mapping, secret: [u64; 2], ring: u64) -> Option<Self> {
        let capacity = (mapping.length() / LINE).checked_sub(1).filter(|c| *c >= 4)?;
        let tags = Tags::new(secret, ring);
        Some(Place { capacity, line: 0, lines: 0, sequence: 1, tags, next_tag: tags.of(1) })
    }

    /// Returns the maximum number of lines of one record. Two such records fit, so one is filled while the
    /// other is emptied.
    fn record_lines(&self) -> usize {
        self.capacity / 2
    }

    /// Returns the maximum payload of one record.
    fn record_payload(&self) -> usize {
        ((self.record_lines() - 1) * LINE + HEAD_PAYLOAD).min((1 << 24) - 1)
    }

    #[inline]
    fn offset(&self) -> usize {
        (1 + self.line) * LINE
    }

    #[inline]
    fn advance(&mut self, lines: usize) {
        self.line += lines;
        if self.line >= self.capacity {
            self.line -= self.capacity;
        }
        self.lines += lines as u64;
        self.sequence += 1;
        self.next_tag = self.tags.of(self.sequence);
    }

    /// Returns the parts of the ring that hold `length` bytes of a record's payload from `from` on, where
    /// `from` is not in the first line: at most two, as (offset in the ring's memory, length).
    #[inline]
    fn stretches(&self, from: usize, length: usize) -> [(usize, usize); 2] {
        let mut start = (self.line + 1) * LINE + (from - HEAD_PAYLOAD);
        let end = self.capacity * LINE;
        if start >= end {
            start -= end;
        }
        let first = length.min(end - start);
        [(LINE + start, first), (LINE, length - first)]
    }
}

/// The receiver's condition, as the producer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Normal operation.
    Fine,
    /// The receiver has no RECV.
    NotReady,
    /// The receiver's queue pair failed at the next message.
    Failed,
}

/// Bytes that consist of several pieces.
pub(crate) trait Pieces {
    /// Calls `each` with the pieces of the range, in order.
    fn pieces(&self, from: usize, length: usize, each: &mut dyn FnMut(&[u8]));
}

/// The sender's half.
#[derive(Debug)]
pub(crate) struct Producer {
    import: Arc<Import>,
    place: Place,
    taken: u64,
}

impl Producer {
    /// Returns `None` if the granted memory is too small for a ring, or not writable for this side.
    pub(crate) fn new(import: Arc<Import>, secret: [u64; 2]) -> Option<Self> {
        let access = import.access();
        let place = Place::new(import.mapping(), secret, import.key().0)?;
        access.contains(dunlin_fabric::Access::WRITE).then_some(Producer { import, place, taken: 0 })
    }

    /// Returns the maximum payload of one record.
    pub(crate) fn record_payload(&self) -> usize {
        self.place.record_payload()
    }

    /// Returns the number of lines produced so far.
    #[inline]
    pub(crate) fn produced(&self) -> u64 {
        self.place.lines
    }

    /// Returns the number of lines known to be taken.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Reads the number of lines that the receiver has taken; returns `false` if the value is impossible.
    pub(crate) fn refresh(&mut self) -> bool {
        let taken = self.import.mapping().word(TAKEN_AT).load(Ordering::Acquire);
        let fits = taken >= self.taken && taken <= self.place.lines;
        if fits {
            self.taken = taken;
        }
        fits
    }

    /// Returns whether a record with `payload` bytes is known to fit now.
    #[inline]
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        self.place.lines - self.taken + lines_of(payload) as u64 <= self.place.capacity as u64
    }

    /// Returns whether a record with `payload` bytes fits; reads the receiver's progress if necessary.
    #[inline]
    pub(crate) fn find_room(&mut self, payload: usize) -> bool {
        self.has_room(payload) || (self.refresh() && self.has_room(payload))
    }

    /// Stores one record. The caller has checked that there is room; the payload is at most
    /// [`record_payload`](Producer::record_payload) bytes.
    #[inline]
    pub(crate) fn push(
        &mut self,
        flags: u8,
        immediate: u32,
        source: &impl Pieces,
        from: usize,
        length: usize,
    ) {
        let mapping = self.import.mapping();
        let mut line = [0u8; LINE];
        let word = length as u64 | u64::from(flags) << 24 | u64::from(immediate) << 32;
        line[..8].copy_from_slice(&word.to_le_bytes());
        line[TAG_AT..].copy_from_slice(&self.place.next_tag.to_le_bytes());
        let mut at = 0;
        let place = &self.place;
        source.pieces(from, length, &mut |piece| {
            let head = HEAD_PAYLOAD.saturating_sub(at).min(piece.len());
            if head > 0 {
                line[8 + at..8 + at + head].copy_from_slice(&piece[..head]);
            }
            let mut rest = &piece[head..];
            if !rest.is_empty() {
                for (offset, count) in place.stretches(at + head, rest.len()) {
                    if let Some(destination) = mapping.range(offset as u64, count as u64)
                        && let Some((now, later)) = rest.split_at_checked(count)
                    {
                        // SAFETY: the destination is in bounds for `count` bytes and does not overlap private
                        // memory.
                        unsafe { copy::to_peer(now.as_ptr(), destination, count) };
                        rest = later;
                    }
                }
            }
            at += piece.len();
        });
        if let Some(destination) = mapping.range(place.offset() as u64, LINE as u64) {
            // SAFETY: in bounds for a line, and aligned: a mapping starts at a page boundary and the offset
            // consists of whole lines.
            unsafe { copy::line_to_peer(&line, destination) };
        }
        self.place.advance(lines_of(length));
    }

    /// Returns the receiver's condition for the message at [`taken`](Producer::taken).
    #[inline]
    pub(crate) fn condition(&self) -> Condition {
        match self.import.mapping().word(CONDITION_AT).load(Ordering::Acquire) & 0xff {
            FINE => Condition::Fine,
            NOT_READY => Condition::NotReady,
            _ => Condition::Failed,
        }
    }

    /// Withdraws the message that the receiver was not ready for; returns `false` if it has become ready in
    /// the meantime.
    pub(crate) fn give_up(&self) -> bool {
        let word = self.import.mapping().word(CONDITION_AT);
        let seen = word.load(Ordering::Acquire);
        seen & 0xff == NOT_READY
            && word.compare_exchange(seen, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sets whether this side waits for room. If so, the receiver rings when it takes a record.
    pub(crate) fn want_room(&self, wanted: bool) {
        self.import.mapping().word(WANTED_AT).store(u64::from(wanted), Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// The ring contains something that no correct producer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// One record's first line, in private memory, with its length checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    line: [u8; LINE],
    /// The number of bytes of payload.
    pub(crate) length: usize,
    /// The flags.
    pub(crate) flags: u8,
    /// Immediate data, or the message's length.
    pub(crate) immediate: u32,
}

/// The receiver's half.
#[derive(Debug)]
pub(crate) struct Consumer {
    memory: Arc<ShmMemory>,
    place: Place,
    published: u64,
    /// Whether this side has reported that it is not ready.
    not_ready: bool,
}

impl Consumer {
    /// Returns `None` if the memory is too small for a ring.
    pub(crate) fn new(memory: Arc<ShmMemory>, secret: [u64; 2], ring: u64) -> Option<Self> {
        let place = Place::new(memory.mapping(), secret, ring)?;
        Some(Consumer { memory, place, published: 0, not_ready: false })
    }

    /// Returns whether there is a record.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        let tag = self.memory.mapping().word(self.place.offset() + TAG_AT).load(Ordering::Acquire);
        u64::from_le(tag) == self.place.next_tag
    }

    /// Returns the next record, if there is one.
    #[inline]
    pub(crate) fn peek(&self) -> Result<Option<Record>, Violation> {
        if !self.has_record() {
            return Ok(None);
        }
        let start = self.memory.mapping().range(self.place.offset() as u64, LINE as u64).ok_or(Violation)?;
        // SAFETY: in bounds for a line.
        let line = unsafe { copy::line_from_peer(start) };
        let word = u64::from_le_bytes(std::array::from_fn(|i| line[i]));
        let length = (word & 0xff_ffff) as usize;
        if length > self.place.record_payload() {
            return Err(Violation);
        }
        Ok(Some(Record { line, length, flags: (word >> 24) as u8, immediate: (word >> 32) as u32 }))
    }

    /// Copies a record's payload, up to the length of `into`, into private memory.
    #[inline]
    pub(crate) fn copy(&self, record: &Record, into: &mut [u8]) {
        let length = record.length.min(into.len());
        let head = length.min(HEAD_PAYLOAD);
        into[..head].copy_from_slice(&record.line[8..8 + head]);
        if length > head {
            let mut rest = &mut into[head..length];
            for (offset, count) in self.place.stretches(HEAD_PAYLOAD, rest.len()) {
                if let Some(source) = self.memory.mapping().range(offset as u64, count as u64)
                    && let Some((now, later)) = std::mem::take(&mut rest).split_at_mut_checked(count)
                {
                    // SAFETY: the source is in bounds for `count` bytes, and the destination is exclusively
                    // borrowed.
                    unsafe { copy::from_peer(source, now.as_mut_ptr(), count) };
                    rest = later;
                }
            }
        }
    }

    /// Moves past a record. The producer sees that only after [`publish`](Consumer::publish).
    #[inline]
    pub(crate) fn advance(&mut self, record: &Record) {
        self.place.advance(lines_of(record.length));
    }

    /// Publishes the progress to the producer; returns whether there was any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let told = self.published != self.place.lines;
        if told {
            self.published = self.place.lines;
            self.memory.mapping().word(TAKEN_AT).store(self.place.lines, Ordering::Release);
        }
        told
    }

    /// Returns whether the producer waits for room. Call after [`publish`](Consumer::publish) and a
    /// sequentially consistent fence.
    pub(crate) fn is_room_wanted(&self) -> bool {
        self.memory.mapping().word(WANTED_AT).load(Ordering::Acquire) != 0
    }

    /// Reports that the next message has to wait for a RECV; returns whether that is new.
    pub(crate) fn say_not_ready(&mut self) -> bool {
        self.publish();
        if !self.not_ready {
            self.not_ready = true;
            let word = NOT_READY | self.place.sequence << 8;
            self.memory.mapping().word(CONDITION_AT).store(word, Ordering::Release);
            return true;
        }
        false
    }

    /// Reports that there is a RECV now; returns whether the producer has not withdrawn the message.
    #[inline]
    pub(crate) fn say_ready(&mut self) -> bool {
        if !self.not_ready {
            return true;
        }
        self.not_ready = false;
        let expected = NOT_READY | self.place.sequence << 8;
        let word = self.memory.mapping().word(CONDITION_AT);
        word.compare_exchange(expected, FINE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Reports that neither the next message nor any later one will be taken.
    pub(crate) fn say_failed(&mut self) {
        self.publish();
        self.memory.mapping().word(CONDITION_AT).store(FAILED, Ordering::Release);
    }
}

/// Calls `each` with the pieces of a range of the concatenated parts.
#[inline]
pub(crate) fn range_of<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    from: usize,
    length: usize,
    each: &mut dyn FnMut(&[u8]),
) {
    let (mut skip, mut left) = (from, length);
    for part in parts {
        if left == 0 {
            break;
        }
        let Some(part) = part.get(skip..) else {
            skip -= part.len();
            continue;
        };
        skip = 0;
        let piece = &part[..part.len().min(left)];
        if !piece.is_empty() {
            each(piece);
            left -= piece.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::Source;
    use dunlin_fabric::{Access, RegionKey};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn ring(bytes: u64) -> (Producer, Consumer, Arc<ShmMemory>) {
        let memory = Arc::new(ShmMemory::new(bytes, Access::WRITE).unwrap());
        let descriptor = memory.descriptor().unwrap().unwrap();
        let key = RegionKey(5 << 32 | 1);
        let import = Import::new(&descriptor, bytes, Access::WRITE, Access::WRITE, key).unwrap();
        let producer = Producer::new(Arc::new(import), [1, 2]).unwrap();
        let consumer = Consumer::new(Arc::clone(&memory), [1, 2], key.0).unwrap();
        (producer, consumer, memory)
    }

    fn message(number: u32, length: usize) -> Vec<u8> {
        (0..length).map(|i| (i as u32).wrapping_mul(31).wrapping_add(number) as u8).collect()
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in(
            steps in prop::collection::vec((any::<bool>(), 0usize..1900, 0usize..1900), 1..300),
            pages in 1u64..4,
        ) {
            let (mut producer, mut consumer, _memory) = ring(pages * 4096);
            let mut on_the_way: VecDeque<(u32, usize)> = VecDeque::new();
            let mut number = 0;
            for (put, length, cut) in steps {
                let length = length.min(producer.record_payload());
                if put {
                    prop_assert!(producer.refresh());
                    if producer.has_room(length) {
                        number += 1;
                        let bytes = message(number, length);
                        let (one, two) = bytes.split_at(cut.min(length));
                        let parts: &[&[u8]] = &[one, &[], two];
                        producer.push(FIRST | LAST, number, &Source::Parts(parts), 0, length);
                        on_the_way.push_back((number, length));
                    }
                } else {
                    let record = consumer.peek().unwrap();
                    let expected = on_the_way.pop_front();
                    prop_assert_eq!(record.map(|r| (r.immediate, r.length)), expected);
                    if let Some(record) = record {
                        let mut out = vec![0; record.length];
                        consumer.copy(&record, &mut out);
                        prop_assert_eq!(out, message(record.immediate, record.length));
                        consumer.advance(&record);
                        consumer.publish();
                    }
                }
            }
        }

        #[test]
        fn nothing_a_peer_writes_breaks_the_receiver(
            writes in prop::collection::vec((0usize..512, any::<u64>(), 0usize..700), 1..100),
        ) {
            let (mut producer, mut consumer, memory) = ring(4096);
            for (word, value, length) in writes {
                producer.refresh();
                if producer.has_room(length) {
                    let bytes = message(1, length);
                    producer.push(value as u8, value as u32, &Source::One(&bytes), 0, length);
                }
                memory.mapping().word(word * 8).store(value, Ordering::Relaxed);
                // A correct tag with an arbitrary header and payload.
                let place = &consumer.place;
                memory.mapping().word(place.offset()).store(value, Ordering::Relaxed);
                memory.mapping().word(place.offset() + TAG_AT).store(place.next_tag, Ordering::Relaxed);
                match consumer.peek() {
                    Ok(Some(record)) => {
                        let mut out = vec![0; record.length];
                        consumer.copy(&record, &mut out);
                        consumer.advance(&record);
                        consumer.publish();
                    }
                    Ok(None) => prop_assert!(false, "the tag was right"),
                    Err(Violation) => return Ok(()),
                }
            }
        }
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_seen() {
        let (mut producer, _consumer, memory) = ring(4096);
        memory.mapping().word(TAKEN_AT).store(1, Ordering::Relaxed);
        assert!(!producer.refresh());
        assert_eq!(producer.taken(), 0);
    }

    #[test]
    fn either_the_receiver_takes_it_or_the_sender_takes_it_back() {
        let (producer, mut consumer, _memory) = ring(4096);
        assert!(!producer.give_up(), "nobody has said that it is not ready");
        assert!(consumer.say_not_ready());
        assert!(!consumer.say_not_ready());
        assert_eq!(producer.condition(), Condition::NotReady);
        assert!(producer.give_up());
        assert!(!consumer.say_ready());
        let (producer, mut consumer, _memory) = ring(4096);
        consumer.say_not_ready();
        assert!(consumer.say_ready());
        assert!(!producer.give_up());
        assert_eq!(producer.condition(), Condition::Fine);
        consumer.say_failed();
        assert_eq!(producer.condition(), Condition::Failed);
    }

    #[test]
    fn tags_differ_by_key_ring_and_sequence() {
        let tags = Tags::new([1, 2], 3);
        let others = [Tags::new([1, 3], 3), Tags::new([2, 2], 3), Tags::new([1, 2], 4)];
        for sequence in 0..1000 {
            assert_ne!(tags.of(sequence), tags.of(sequence + 1));
            assert!(others.iter().all(|o| o.of(sequence) != tags.of(sequence)));
            assert_ne!(tags.of(sequence), 0);
        }
    }
}
