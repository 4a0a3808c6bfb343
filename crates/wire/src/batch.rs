//! Builds batches: several calls, or several responses, in one message.
//!
//! Entries start at byte 64. Each has 16 bytes of metadata and a payload padded to 8 bytes. Offsets are
//! known before a payload is written, so a leader can assign ranges to its followers (FLOCK section 4.2),
//! and a handler can write its result directly into the send buffer.

use crate::bytes;
use crate::error::BuildError;
use crate::header::{Flags, Header, Kind, TIME_OVER};
use crate::single::{encode_line, long_message_bytes, seal_long};
use crate::tag::Tags;
use crate::{BODY_OFFSET, Descriptor, ENTRY_META_BYTES, INLINE_PAYLOAD, LINE, TAG_BYTES};

/// The metadata of one batch entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryMeta {
    /// Function id of a request, or status number of a response.
    pub function_or_status: u16,
    /// Thread slot of the caller.
    pub thread: u16,
    /// Call id.
    pub call: u32,
    /// Flags of this entry.
    pub flags: Flags,
    /// Requests: microseconds until this entry's deadline, at most [`MAX_ENTRY_TIME`], or [`TIME_OVER`]; 0
    /// if it has the time of the batch's header. Responses: 0.
    pub time: u32,
}

/// The longest time that an entry of a batch can have for itself, in microseconds: about 16.8 seconds.
pub const MAX_ENTRY_TIME: u32 = ENTRY_TIME_OVER - 1;

/// The 24 bits that stand for [`TIME_OVER`] in an entry.
const ENTRY_TIME_OVER: u32 = (1 << 24) - 1;

/// Returns the time in the 24 bits of an entry.
#[inline]
pub(crate) const fn entry_time(bits: u32) -> u32 {
    if bits == ENTRY_TIME_OVER { TIME_OVER } else { bits }
}

impl EntryMeta {
    /// Encodes the 16 bytes that precede a payload of `length` bytes.
    #[inline]
    pub fn encode(&self, length: u32) -> [u8; ENTRY_META_BYTES] {
        let word0 = length as u64 | (self.function_or_status as u64) << 32 | (self.thread as u64) << 48;
        let time = if self.time < ENTRY_TIME_OVER { self.time } else { ENTRY_TIME_OVER };
        let word1 = self.call as u64 | (self.flags.bits() as u64) << 32 | (time as u64) << 40;
        let mut out = [0; ENTRY_META_BYTES];
        bytes::put::<0, 8, ENTRY_META_BYTES>(&mut out, word0.to_le_bytes());
        bytes::put::<8, 8, ENTRY_META_BYTES>(&mut out, word1.to_le_bytes());
        out
    }
}

/// Returns the number of bytes that an entry with a payload of `payload` bytes takes in a batch.
#[inline]
pub const fn entry_bytes(payload: u32) -> u64 {
    ENTRY_META_BYTES as u64 + bytes::pad_to_8(payload)
}

/// The longest message and the longest payload of an entry that a batch counts with, in bytes.
const MOST: u64 = u32::MAX as u64;

/// The progress of building a batch. It is small and `Copy`, so it can be stored apart from the buffer.
/// Every method must be given the same buffer; the buffer's length is the limit of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchState {
    body: u32,
    count: u16,
}

impl BatchState {
    /// Creates the state of an empty batch.
    #[inline]
    pub const fn new() -> BatchState {
        BatchState { body: 0, count: 0 }
    }

    /// Returns the number of entries added.
    #[inline]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Returns whether the batch has no entries.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the length of the whole message so far, in bytes.
    #[inline]
    pub const fn total(&self) -> u64 {
        long_message_bytes(self.body)
    }

    /// Returns the offset of the next entry's metadata; its payload follows 16 bytes later.
    #[inline]
    pub const fn next_offset(&self) -> usize {
        BODY_OFFSET + self.body as usize
    }

    /// Returns the body length after one more entry of `length` bytes, or an error if it exceeds
    /// `buffer_length`.
    #[inline(always)]
    fn body_after(&self, length: u64, buffer_length: usize) -> Result<u32, BuildError> {
        // Nothing below overflows: a longer payload fits no buffer.
        let padded = (length.min(MOST) + 7) & !7;
        let body = padded + u64::from(self.body) + ENTRY_META_BYTES as u64;
        // The message is its end rounded up to lines. `available` is a multiple of a line, so comparing the end
        // without rounding is enough.
        let available = (buffer_length as u64).min(MOST) & !(LINE as u64 - 1);
        if body + (BODY_OFFSET + TAG_BYTES) as u64 > available || self.count == u16::MAX {
            return Err(self.refuse(length, buffer_length & !(LINE - 1)));
        }
        Ok(body as u32)
    }

    #[cold]
    fn refuse(&self, length: u64, available: usize) -> BuildError {
        if self.count == u16::MAX {
            return BuildError::TooManyEntries;
        }
        let padded = length.saturating_add(7) & !7;
        let body = padded.saturating_add(u64::from(self.body) + ENTRY_META_BYTES as u64);
        let needed = u32::try_from(body).map_or(body.saturating_add(2 * LINE as u64), long_message_bytes);
        BuildError::Full { needed, available }
    }

    /// Returns whether an entry with a payload of `length` bytes still fits a buffer of `buffer_length`
    /// bytes.
    #[inline]
    pub fn fits(&self, length: usize, buffer_length: usize) -> bool {
        self.body_after(length as u64, buffer_length).is_ok()
    }

    /// Adds an entry and copies its payload.
    ///
    /// # Errors
    /// [`BuildError::Full`] or [`BuildError::TooManyEntries`]: finish and send the batch.
    /// [`BuildError::PayloadLength`]: the entry has the rendezvous flag and the payload is not a
    /// descriptor. The batch is unchanged on error.
    #[inline(always)]
    pub fn push(&mut self, buffer: &mut [u8], meta: &EntryMeta, payload: &[u8]) -> Result<(), BuildError> {
        let (area, body) = self.area(buffer, meta, payload.len())?;
        bytes::copy(area, payload);
        bytes::clear_padding(area, payload.len());
        self.body = body;
        self.count += 1;
        Ok(())
    }

    /// Writes the metadata of the next entry. Returns the range of its padded payload, and the new body
    /// length.
    #[inline(always)]
    fn area<'b>(
        &self,
        buffer: &'b mut [u8],
        meta: &EntryMeta,
        length: usize,
    ) -> Result<(&'b mut [u8], u32), BuildError> {
        if meta.flags.contains(Flags::RENDEZVOUS) && length != Descriptor::BYTES {
            return Err(BuildError::PayloadLength {
                expected: Descriptor::BYTES as u64,
                actual: length as u64,
            });
        }
        let available = buffer.len();
        let body = self.body_after(length as u64, available)?;
        // Wrapping, as the compiler cannot know that the body grows: the slices check what follows.
        let (start, bytes) = (self.next_offset(), body.wrapping_sub(self.body) as usize);
        let entry = buffer.get_mut(start..).and_then(|rest| rest.get_mut(..bytes));
        let Some((place, area)) = entry.and_then(|entry| entry.split_first_chunk_mut()) else {
            return Err(BuildError::Full { needed: long_message_bytes(body), available });
        };
        // Cannot exceed a u32, since the body length that includes it does not.
        *place = meta.encode(length as u32);
        Ok((area, body))
    }

    /// Reserves `length` bytes for the next entry's payload, to be written in place and then committed. The
    /// bytes keep the buffer's previous content. Reserving again without a commit returns the same range.
    ///
    /// # Errors
    /// [`BuildError::Full`], [`BuildError::TooManyEntries`].
    #[inline]
    pub fn reserve<'b>(&self, buffer: &'b mut [u8], length: usize) -> Result<&'b mut [u8], BuildError> {
        self.body_after(length as u64, buffer.len())?;
        let (start, available) = (self.next_offset() + ENTRY_META_BYTES, buffer.len());
        // Inside the buffer, since the body length that includes this entry fits.
        let place = buffer.get_mut(start..).and_then(|rest| rest.get_mut(..length));
        place.ok_or(BuildError::Full { needed: self.total(), available })
    }

    /// Adds the entry whose payload was written into the range from [`BatchState::reserve`]. The payload is
    /// the first `actual_length` bytes of that range.
    ///
    /// # Errors
    /// As [`BatchState::push`].
    #[inline(always)]
    pub fn commit(
        &mut self,
        buffer: &mut [u8],
        meta: &EntryMeta,
        actual_length: usize,
    ) -> Result<(), BuildError> {
        let (area, body) = self.area(buffer, meta, actual_length)?;
        bytes::clear_padding(area, actual_length);
        self.body = body;
        self.count += 1;
        Ok(())
    }

    /// Changes the times of the entries added so far: `time` gets each entry's call and current time (see
    /// [`EntryMeta::time`]) and returns its new time.
    pub fn change_times(&self, buffer: &mut [u8], mut time: impl FnMut(u32, u32) -> u32) {
        let mut rest = buffer.get_mut(BODY_OFFSET..self.next_offset()).unwrap_or_default();
        while let Some((meta, after)) = rest.split_first_chunk_mut::<ENTRY_META_BYTES>() {
            let (word0, word1) = (bytes::u64_at::<0, 16>(meta), bytes::u64_at::<8, 16>(meta));
            let changed = time(word1 as u32, entry_time((word1 >> 40) as u32));
            let bits = if changed < ENTRY_TIME_OVER { changed } else { ENTRY_TIME_OVER };
            let word1 = word1 & ((1 << 40) - 1) | (bits as u64) << 40;
            bytes::put::<8, 8, ENTRY_META_BYTES>(meta, word1.to_le_bytes());
            let padded = usize::try_from(bytes::pad_to_8(word0 as u32)).unwrap_or(usize::MAX);
            rest = after.get_mut(padded..).unwrap_or_default();
        }
    }

    /// Writes the first line, padding and tags, and returns the length in bytes of the whole message, which
    /// starts at offset 0 of `buffer`. `header` supplies kind, flags, head, credits, epoch and time; the
    /// state supplies count and length.
    ///
    /// # Errors
    /// [`BuildError::Empty`] without entries; [`BuildError::WrongKind`] unless the kind is a batch and
    /// RENDEZVOUS is not set; [`BuildError::Full`] if `buffer` is not the buffer that the entries were
    /// built in.
    #[inline]
    pub fn finish(self, buffer: &mut [u8], header: &Header, tags: Tags) -> Result<usize, BuildError> {
        if self.count == 0 {
            return Err(BuildError::Empty);
        }
        if !header.kind.is_batch() || header.flags.contains(Flags::RENDEZVOUS) {
            return Err(BuildError::WrongKind);
        }
        let header = Header { code: self.count, length: self.body, thread: 0, call: 0, ..*header };
        seal_long(buffer, &header, tags)
    }

    /// Finishes the batch as [`BatchState::finish`] does, but turns a single entry that fits the first line
    /// into a one-line message: half the bytes, and no trailing tag to wait for. The receiver sees the same
    /// entry, with the header's flags added to its own.
    ///
    /// # Errors
    /// As [`BatchState::finish`].
    #[inline]
    pub fn finish_compact(self, buffer: &mut [u8], header: &Header, tags: Tags) -> Result<usize, BuildError> {
        const META_END: usize = BODY_OFFSET + ENTRY_META_BYTES;
        let kind = match header.kind {
            Kind::RequestBatch => Kind::Request,
            Kind::ResponseBatch => Kind::Response,
            _ => return Err(BuildError::WrongKind),
        };
        let available = buffer.len();
        let lone = if self.count == 1 { buffer.split_first_chunk_mut::<META_END>() } else { None };
        let Some((head, payload)) = lone else { return self.finish(buffer, header, tags) };
        let meta = bytes::get::<BODY_OFFSET, ENTRY_META_BYTES, META_END>(head);
        let (word0, word1) = (bytes::u64_at::<0, 16>(&meta), bytes::u64_at::<8, 16>(&meta));
        let length = word0 as u32 as usize;
        if length > INLINE_PAYLOAD {
            return self.finish(buffer, header, tags);
        }
        let Some(entry_flags) = Flags::from_bits((word1 >> 32) as u8) else {
            return Err(BuildError::WrongKind);
        };
        let Some(payload) = payload.get(..length) else {
            return Err(BuildError::Full { needed: self.total(), available });
        };
        let time = match entry_time((word1 >> 40) as u32) {
            0 => header.time,
            own => own,
        };
        let single = Header {
            kind,
            flags: header.flags | entry_flags,
            code: (word0 >> 32) as u16,
            thread: (word0 >> 48) as u16,
            call: word1 as u32,
            time,
            ..*header
        };
        let line = encode_line(&single, payload, tags.first)?;
        let Some(first) = head.first_chunk_mut::<LINE>() else {
            return Err(BuildError::Full { needed: LINE as u64, available });
        };
        *first = line.0;
        Ok(LINE)
    }
}

/// A [`BatchState`] together with its buffer.
#[derive(Debug)]
pub struct BatchBuilder<'a> {
    buffer: &'a mut [u8],
    state: BatchState,
}

impl<'a> BatchBuilder<'a> {
    /// Creates an empty batch in `buffer`, whose length is the limit of the message.
    #[inline]
    pub fn new(buffer: &'a mut [u8]) -> BatchBuilder<'a> {
        BatchBuilder { buffer, state: BatchState::new() }
    }

    /// Returns the state of the batch.
    #[inline]
    pub fn state(&self) -> BatchState {
        self.state
    }

    /// Calls [`BatchState::push`].
    ///
    /// # Errors
    /// As [`BatchState::push`].
    #[inline]
    pub fn push(&mut self, meta: &EntryMeta, payload: &[u8]) -> Result<(), BuildError> {
        self.state.push(self.buffer, meta, payload)
    }

    /// Calls [`BatchState::reserve`].
    ///
    /// # Errors
    /// As [`BatchState::reserve`].
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<&mut [u8], BuildError> {
        self.state.reserve(self.buffer, length)
    }

    /// Calls [`BatchState::commit`].
    ///
    /// # Errors
    /// As [`BatchState::commit`].
    #[inline]
    pub fn commit(&mut self, meta: &EntryMeta, actual_length: usize) -> Result<(), BuildError> {
        self.state.commit(self.buffer, meta, actual_length)
    }

    /// Calls [`BatchState::finish`].
    ///
    /// # Errors
    /// As [`BatchState::finish`].
    #[inline]
    pub fn finish(self, header: &Header, tags: Tags) -> Result<usize, BuildError> {
        self.state.finish(self.buffer, header, tags)
    }

    /// Calls [`BatchState::finish_compact`].
    ///
    /// # Errors
    /// As [`BatchState::finish_compact`].
    #[inline]
    pub fn finish_compact(self, header: &Header, tags: Tags) -> Result<usize, BuildError> {
        self.state.finish_compact(self.buffer, header, tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: Tags = Tags { first: 0x1122_3344_5566_7789, trailing: 0x99aa_bbcc_ddee_ff02 };

    fn meta(call: u32) -> EntryMeta {
        EntryMeta { function_or_status: 0x0102, thread: 0x0304, call, flags: Flags::MODE, time: 0 }
    }

    #[test]
    fn golden_batch() {
        let mut buffer = [0xee; 256];
        let mut batch = BatchBuilder::new(&mut buffer);
        batch.push(&meta(5), b"abc").unwrap();
        batch.push(&EntryMeta { time: 0x0c0d0e, ..meta(0x0607_0809) }, &[]).unwrap();
        let header = Header { credits: 4, time: 0x0a0b, ..Header::new(Kind::RequestBatch) };
        assert_eq!(batch.finish(&header, TAGS), Ok(128));
        let mut expected = [0; 128];
        expected[..24].copy_from_slice(&[
            3, 0, 2, 0, 40, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0a, 0, 0,
        ]);
        expected[56..64].copy_from_slice(&TAGS.first.to_le_bytes());
        expected[64..80].copy_from_slice(&[3, 0, 0, 0, 2, 1, 4, 3, 5, 0, 0, 0, 2, 0, 0, 0]);
        expected[80..83].copy_from_slice(b"abc");
        expected[88..104].copy_from_slice(&[0, 0, 0, 0, 2, 1, 4, 3, 9, 8, 7, 6, 2, 0xe, 0xd, 0xc]);
        expected[120..].copy_from_slice(&TAGS.trailing.to_le_bytes());
        assert_eq!(buffer[..128], expected);
        assert!(buffer[128..].iter().all(|byte| *byte == 0xee), "nothing is written behind the message");
    }

    #[test]
    fn a_full_batch_stays_as_it_was() {
        let mut buffer = [0; 191];
        let mut state = BatchState::new();
        // Two lines leave 56 bytes for entries.
        state.push(&mut buffer, &meta(1), &[1; 24]).unwrap();
        assert!(state.fits(0, 191) && !state.fits(1, 191));
        let before = (state, buffer);
        let error = state.push(&mut buffer, &meta(2), &[1]).unwrap_err();
        assert_eq!(error, BuildError::Full { needed: 192, available: 128 });
        assert_eq!((state, buffer), before);
        state.push(&mut buffer, &meta(2), &[]).unwrap();
        assert_eq!(state.finish(&mut buffer, &Header::new(Kind::RequestBatch), TAGS), Ok(128));
    }

    #[test]
    fn writing_in_place_equals_pushing() {
        let (mut pushed, mut placed) = ([0; 512], [0xee; 512]);
        let (mut a, mut b) = (BatchState::new(), BatchState::new());
        for length in [0, 1, 7, 8, 9, 40] {
            let payload = vec![length as u8; length];
            a.push(&mut pushed, &meta(length as u32), &payload).unwrap();
            let place = b.reserve(&mut placed, 64).unwrap();
            assert_eq!(place.len(), 64);
            place[..length].copy_from_slice(&payload);
            b.commit(&mut placed, &meta(length as u32), length).unwrap();
        }
        let header = Header::new(Kind::ResponseBatch);
        let total = a.finish(&mut pushed, &header, TAGS).unwrap();
        assert_eq!(b.finish(&mut placed, &header, TAGS), Ok(total));
        assert_eq!(pushed[..total], placed[..total]);
    }

    #[test]
    fn a_lone_small_entry_becomes_a_line() {
        for length in [0, 1, 32, 33] {
            let payload = vec![9; length];
            let mut buffer = [0xee; 256];
            let mut batch = BatchBuilder::new(&mut buffer);
            batch.push(&meta(77), &payload).unwrap();
            let header = Header { head: 5, flags: Flags::MORE, ..Header::new(Kind::RequestBatch) };
            let total = batch.finish_compact(&header, TAGS).unwrap();
            if length > 32 {
                assert_eq!((total, buffer[0]), (128, 3));
                continue;
            }
            let single = Header {
                kind: Kind::Request,
                flags: Flags::MORE | Flags::MODE,
                code: 0x0102,
                thread: 0x0304,
                call: 77,
                ..header
            };
            assert_eq!(buffer[..total], encode_line(&single, &payload, TAGS.first).unwrap().0);
        }
    }

    #[test]
    fn times_of_entries_change_in_place() {
        let mut buffer = [0; 512];
        let mut batch = BatchBuilder::new(&mut buffer);
        for (call, time) in [(1, 0), (2, 7), (3, MAX_ENTRY_TIME), (4, TIME_OVER)] {
            batch.push(&EntryMeta { time, ..meta(call) }, &[call as u8; 11]).unwrap();
        }
        let state = batch.state();
        let (mut seen, times) = (Vec::new(), [9, 0, TIME_OVER, 5]);
        state.change_times(&mut buffer, |call, time| {
            seen.push((call, time));
            times[call as usize - 1]
        });
        assert_eq!(seen, [(1, 0), (2, 7), (3, MAX_ENTRY_TIME), (4, TIME_OVER)]);
        let header = Header { time: 1000, ..Header::new(Kind::RequestBatch) };
        let total = state.finish(&mut buffer, &header, TAGS).unwrap();
        let message = crate::Message::parse(&buffer[..total], 512).unwrap();
        let found: Vec<_> = message.entries().map(|entry| (entry.call, entry.time)).collect();
        assert_eq!(found, [(1, 9), (2, 1000), (3, TIME_OVER), (4, 5)]);
        assert!(message.entries().all(|entry| entry.payload == [entry.call as u8; 11]));
    }

    #[test]
    fn a_lone_entry_keeps_its_time() {
        for (own, time) in [(0, 1000), (7, 7), (TIME_OVER, TIME_OVER)] {
            let mut buffer = [0; 128];
            let mut batch = BatchBuilder::new(&mut buffer);
            batch.push(&EntryMeta { time: own, ..meta(1) }, b"small").unwrap();
            let header = Header { time: 1000, ..Header::new(Kind::RequestBatch) };
            let total = batch.finish_compact(&header, TAGS).unwrap();
            let message = crate::Message::parse(&buffer[..total], 128).unwrap();
            assert_eq!((total, message.header().time), (LINE, time));
            assert_eq!(message.entries().next().map(|entry| entry.time), Some(time));
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let mut buffer = [0; 256];
        let header = Header::new(Kind::RequestBatch);
        assert_eq!(BatchState::new().finish(&mut buffer, &header, TAGS), Err(BuildError::Empty));
        assert_eq!(BatchState::new().finish_compact(&mut buffer, &header, TAGS), Err(BuildError::Empty));
        let mut state = BatchState::new();
        let descriptor = EntryMeta { flags: Flags::RENDEZVOUS, ..meta(1) };
        assert!(matches!(
            state.push(&mut buffer, &descriptor, &[0; 23]),
            Err(BuildError::PayloadLength { expected: 24, actual: 23 })
        ));
        state.push(&mut buffer, &descriptor, &[0; 24]).unwrap();
        let wrong = Header::new(Kind::Request);
        assert_eq!(state.finish(&mut buffer, &wrong, TAGS), Err(BuildError::WrongKind));
        assert_eq!(state.finish_compact(&mut buffer, &wrong, TAGS), Err(BuildError::WrongKind));
        assert_eq!(
            state.finish(&mut buffer[..127], &header, TAGS),
            Err(BuildError::Full { needed: 128, available: 127 })
        );
    }

    #[test]
    fn counts_end_at_65535() {
        let mut buffer = vec![0; 65536 * 16 + 128];
        let mut state = BatchState::new();
        for call in 0..65535 {
            state.push(&mut buffer, &meta(call), &[]).unwrap();
        }
        assert_eq!(state.push(&mut buffer, &meta(0), &[]), Err(BuildError::TooManyEntries));
    }

    #[test]
    fn lengths_that_would_overflow_are_full() {
        let state = BatchState { body: u32::MAX - 15, count: 1 };
        assert!(!state.fits(0, usize::MAX));
        assert!(!BatchState::new().fits(usize::MAX, usize::MAX));
    }
}
