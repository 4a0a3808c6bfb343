//! Lengths and building of messages that are not batches: one call, one response, or a control message.

use crate::bytes;
use crate::error::BuildError;
use crate::header::{Flags, Header, Kind};
use crate::tag::Tags;
use crate::{BODY_OFFSET, Descriptor, HEADER_BYTES, INLINE_PAYLOAD, LINE, TAG_BYTES, TAG_OFFSET};

/// Returns the length in bytes of a message of several lines with a body of `body` bytes. Never overflows.
#[inline]
pub(crate) const fn long_message_bytes(body: u32) -> u64 {
    (BODY_OFFSET as u64 + body as u64 + TAG_BYTES as u64 + LINE as u64 - 1) & !(LINE as u64 - 1)
}

/// Returns the length in bytes of a message with one payload of `payload` bytes, or `None` if it exceeds
/// `limit` bytes.
#[inline]
pub const fn message_bytes(payload: u32, limit: usize) -> Option<usize> {
    let total = if payload as usize <= INLINE_PAYLOAD { LINE as u64 } else { long_message_bytes(payload) };
    // At most `limit`, which is a usize, so the cast is lossless.
    if total <= limit as u64 { Some(total as usize) } else { None }
}

/// Returns the length in lines of a message with one payload of `payload` bytes, or `None` if it exceeds
/// `limit` lines.
#[inline]
pub const fn message_lines(payload: u32, limit: u32) -> Option<u32> {
    let total = if payload as usize <= INLINE_PAYLOAD { LINE as u64 } else { long_message_bytes(payload) };
    let lines = total / LINE as u64;
    if lines <= limit as u64 { Some(lines as u32) } else { None }
}

/// Encodes a one-line message. Sets `header.length` from `payload`. This is the fastest way to send a small message,
/// since every byte is written once. The line is stored as eight words; a copy that follows at once should load words
/// too, since wider loads wait until the stores have left the store queue.
///
/// # Errors
/// [`BuildError::PayloadLength`] if the payload exceeds 32 bytes, or if the kind does not carry a payload
/// of this length; [`BuildError::WrongKind`] for batches.
#[inline(always)]
pub fn encode_line(header: &Header, payload: &[u8], first_tag: u64) -> Result<Line, BuildError> {
    if !header.kind.is_single() || header.flags.contains(Flags::RENDEZVOUS) {
        // A copy: a header whose address nobody takes stays in registers.
        let header = *header;
        check_header(&header, payload.len() as u64)?;
    }
    let Some([p0, p1, p2, p3]) = bytes::inline_words(payload) else { return Err(over_inline(payload.len())) };
    let [h0, h1, h2] = Header { length: payload.len() as u32, ..*header }.words();
    Ok(Line(bytes::of_words([h0, h1, h2, p0, p1, p2, p3, first_tag])))
}

/// An encoded line. Aligned to words, so that it is assembled in registers wherever it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Line(pub [u8; LINE]);

/// Replaces the tag of a line.
#[inline]
pub fn set_line_tag(line: &mut [u8; LINE], first_tag: u64) {
    bytes::put::<TAG_OFFSET, TAG_BYTES, LINE>(line, first_tag.to_le_bytes());
}

#[cold]
fn over_inline(actual: usize) -> BuildError {
    BuildError::PayloadLength { expected: INLINE_PAYLOAD as u64, actual: actual as u64 }
}

/// Checks the header at the sender by the receiver's rules for its kind.
#[inline(never)]
fn check_header(header: &Header, length: u64) -> Result<(), BuildError> {
    if header.kind.is_batch() {
        return Err(BuildError::WrongKind);
    }
    let expected = match header.kind {
        Kind::Request | Kind::Response => {
            if !header.flags.contains(Flags::RENDEZVOUS) {
                return Ok(());
            }
            Descriptor::BYTES as u64
        }
        Kind::Release => u64::from(header.code) * 4,
        Kind::ClearToSend => Descriptor::BYTES as u64,
        Kind::Fragment => length.max(1),
        Kind::Skip
        | Kind::Credit
        | Kind::Drain
        | Kind::Written
        | Kind::Filled
        | Kind::RequestBatch
        | Kind::ResponseBatch => 0,
    };
    if length == expected { Ok(()) } else { Err(BuildError::PayloadLength { expected, actual: length }) }
}

/// The layout of a message with one payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SingleLayout {
    payload: u32,
    total: usize,
}

impl SingleLayout {
    /// Creates the layout for a payload of `payload` bytes. Returns [`BuildError::Full`] if the message
    /// exceeds `limit` bytes.
    #[inline]
    pub const fn new(payload: u32, limit: usize) -> Result<SingleLayout, BuildError> {
        match message_bytes(payload, limit) {
            Some(total) => Ok(SingleLayout { payload, total }),
            None => Err(BuildError::Full { needed: long_message_bytes(payload), available: limit }),
        }
    }

    /// Returns the length of the payload, in bytes.
    #[inline]
    pub const fn payload_bytes(&self) -> usize {
        self.payload as usize
    }

    /// Returns the offset of the payload: 24 in a one-line message, else 64.
    #[inline]
    pub const fn payload_offset(&self) -> usize {
        if self.payload as usize <= INLINE_PAYLOAD { HEADER_BYTES } else { BODY_OFFSET }
    }

    /// Returns the length of the whole message, in bytes.
    #[inline]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Returns whether the message has a trailing tag, that is, several lines.
    #[inline]
    pub const fn has_trailing_tag(&self) -> bool {
        self.total > LINE
    }

    /// Encodes the first line of a message of several lines, whose payload follows at byte 64. A gather
    /// list can then send this line, the user's payload and [`SingleLayout::tail`] without a copy. Sets
    /// `header.length` from the layout.
    ///
    /// # Errors
    /// [`BuildError::PayloadLength`] if the payload fits the first line, or if the kind does not carry a
    /// payload of this length; [`BuildError::WrongKind`] for batches.
    #[inline]
    pub fn first_line(&self, header: &Header, first_tag: u64) -> Result<[u8; LINE], BuildError> {
        check_header(header, self.payload.into())?;
        if !self.has_trailing_tag() {
            return Err(over_inline(self.payload as usize));
        }
        Ok(first_line(&Header { length: self.payload, ..*header }, first_tag))
    }

    /// Returns the padding and the trailing tag that follow the payload of a message of several lines.
    /// Empty for one line.
    #[inline]
    pub fn tail(&self, trailing_tag: u64) -> Tail {
        let mut bytes = [0; Tail::MAX];
        bytes::put::<{ Tail::MAX - TAG_BYTES }, TAG_BYTES, { Tail::MAX }>(
            &mut bytes,
            trailing_tag.to_le_bytes(),
        );
        let length =
            if self.has_trailing_tag() { self.total - BODY_OFFSET - self.payload as usize } else { 0 };
        Tail { bytes, length }
    }

    /// Adds header, padding and tags to a payload at offset 64 of `buffer`, whatever its length: a payload
    /// that fits the first line is moved there. Returns the length in bytes of the whole message, which
    /// starts at offset 0 of `buffer`. Sets `header.length` from the layout.
    ///
    /// # Errors
    /// [`BuildError::Full`] if `buffer` is shorter than 64 bytes plus the payload, or than the message;
    /// [`BuildError::PayloadLength`] if the kind does not carry a payload of this length;
    /// [`BuildError::WrongKind`] for batches.
    #[inline]
    pub fn seal(&self, buffer: &mut [u8], header: &Header, tags: Tags) -> Result<usize, BuildError> {
        let payload = self.payload as usize;
        if !self.has_trailing_tag() {
            let available = buffer.len();
            let full = BuildError::Full { needed: (BODY_OFFSET + payload) as u64, available };
            let Some((first, rest)) = buffer.split_first_chunk_mut::<LINE>() else { return Err(full) };
            let Some(payload) = rest.get(..payload) else { return Err(full) };
            *first = encode_line(header, payload, tags.first)?.0;
            return Ok(LINE);
        }
        check_header(header, self.payload.into())?;
        seal_long(buffer, &Header { length: self.payload, ..*header }, tags)
    }
}

/// Encodes the first line of a message of several lines.
#[inline]
fn first_line(header: &Header, first_tag: u64) -> [u8; LINE] {
    let [h0, h1, h2] = header.words();
    bytes::of_words([h0, h1, h2, 0, 0, 0, 0, first_tag])
}

/// Adds first line, padding and trailing tag to a body of `header.length` bytes at offset 64.
#[inline]
pub(crate) fn seal_long(buffer: &mut [u8], header: &Header, tags: Tags) -> Result<usize, BuildError> {
    let needed = long_message_bytes(header.length);
    let full = BuildError::Full { needed, available: buffer.len() };
    let Some(message) = usize::try_from(needed).ok().and_then(|total| buffer.get_mut(..total)) else {
        return Err(full);
    };
    let total = message.len();
    let Some((first, rest)) = message.split_first_chunk_mut::<LINE>() else { return Err(full) };
    *first = first_line(header, tags.first);
    let Some((rest, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else { return Err(full) };
    *tag = tags.trailing.to_le_bytes();
    bytes::clear_padding(rest, header.length as usize);
    Ok(total)
}

/// The padding and the trailing tag of a message of several lines.
#[derive(Debug, Clone, Copy)]
pub struct Tail {
    bytes: [u8; Tail::MAX],
    length: usize,
}

impl Tail {
    /// Largest length of a tail, in bytes: 63 bytes of padding and the tag.
    pub const MAX: usize = LINE - 1 + TAG_BYTES;

    /// Returns the bytes to send after the payload.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // `length` never exceeds MAX, so the default is never used.
        self.bytes.get(Tail::MAX - self.length..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: Tags = Tags { first: 0x1122_3344_5566_7789, trailing: 0x99aa_bbcc_ddee_ff02 };

    #[test]
    fn lengths_at_every_edge() {
        let total = |payload| message_bytes(payload, usize::MAX);
        assert_eq!(total(0), Some(64));
        assert_eq!(total(32), Some(64));
        assert_eq!(total(33), Some(128));
        assert_eq!(total(56), Some(128));
        assert_eq!(total(57), Some(192));
        assert_eq!(total(120), Some(192));
        assert_eq!(total(121), Some(256));
        assert_eq!(total(u32::MAX), Some((1 << 32) + 128));
        assert_eq!(message_bytes(33, 127), None);
        assert_eq!(message_bytes(33, 128), Some(128));
        assert_eq!(message_bytes(0, 63), None);
        assert_eq!(message_lines(32, 1), Some(1));
        assert_eq!(message_lines(33, 1), None);
        assert_eq!(message_lines(u32::MAX, u32::MAX), Some((1 << 26) + 2));
    }

    #[test]
    fn golden_line() {
        let header = Header { code: 7, call: 9, thread: 2, ..Header::new(Kind::Request) };
        let line = encode_line(&header, b"dunlin", TAGS.first).unwrap().0;
        let mut expected = [0; 64];
        expected[..24]
            .copy_from_slice(&[1, 0, 7, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        expected[24..30].copy_from_slice(b"dunlin");
        expected[56..].copy_from_slice(&[0x89, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(line, expected);
    }

    #[test]
    fn golden_control_lines() {
        for (kind, number) in [(Kind::Skip, 5), (Kind::Credit, 6), (Kind::Drain, 8)] {
            let header = Header { head: 0x0102_0304, credits: 32, epoch: 3, ..Header::new(kind) };
            let line = encode_line(&header, &[], TAGS.first).unwrap().0;
            let mut expected = [0; 64];
            expected[..14].copy_from_slice(&[number, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 32, 3]);
            expected[56..].copy_from_slice(&TAGS.first.to_le_bytes());
            assert_eq!(line, expected);
            assert!(encode_line(&header, &[1], TAGS.first).is_err());
        }
        let release = Header { code: 2, ..Header::new(Kind::Release) };
        let line = encode_line(&release, &[1, 0, 0, 0, 2, 0, 0, 0], TAGS.first).unwrap().0;
        assert_eq!(line[..8], [7, 0, 2, 0, 8, 0, 0, 0]);
        assert_eq!(line[24..32], [1, 0, 0, 0, 2, 0, 0, 0]);
        assert!(encode_line(&release, &[1, 0, 0, 0], TAGS.first).is_err());
    }

    #[test]
    fn a_line_takes_no_more_than_32_bytes_and_no_batch() {
        let header = Header::new(Kind::Request);
        assert!(encode_line(&header, &[1; 32], 1).is_ok());
        for length in [33, 40, 41, 1000] {
            let error = encode_line(&header, &vec![1; length], 1).unwrap_err();
            assert_eq!(error, BuildError::PayloadLength { expected: 32, actual: length as u64 });
        }
        assert_eq!(encode_line(&Header::new(Kind::RequestBatch), &[], 1), Err(BuildError::WrongKind));
        let rendezvous = Header { flags: Flags::RENDEZVOUS, ..header };
        assert!(encode_line(&rendezvous, &[0; 24], 1).is_ok());
        assert!(encode_line(&rendezvous, &[0; 25], 1).is_err());
    }

    #[test]
    fn sealing_in_place_equals_gathering_and_clears_stale_bytes() {
        let header = Header { code: 3, call: 5, ..Header::new(Kind::Response) };
        for length in [33_u32, 55, 56, 57, 63, 64, 119, 120, 121, 300] {
            let payload: Vec<u8> = (0..length).map(|i| i as u8 | 1).collect();
            let layout = SingleLayout::new(length, 4096).unwrap();
            assert_eq!(layout.payload_offset(), 64);
            let mut staging = vec![0xee; 4096];
            staging[64..64 + payload.len()].copy_from_slice(&payload);
            let total = layout.seal(&mut staging, &header, TAGS).unwrap();
            assert_eq!(total, layout.total());
            let mut gathered = layout.first_line(&header, TAGS.first).unwrap().to_vec();
            gathered.extend_from_slice(&payload);
            gathered.extend_from_slice(layout.tail(TAGS.trailing).as_bytes());
            assert_eq!(staging[..total], gathered);
            assert_eq!(staging[total], 0xee, "nothing is written behind the message");
            assert_eq!(gathered[total - 8..], TAGS.trailing.to_le_bytes());
            assert!(gathered[24..56].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn sealing_moves_a_small_payload_into_the_line() {
        let header = Header { code: 3, call: 5, ..Header::new(Kind::Request) };
        for length in [0_u32, 1, 31, 32] {
            let payload = vec![7; length as usize];
            let mut staging = vec![0xee; 128];
            staging[64..64 + payload.len()].copy_from_slice(&payload);
            let layout = SingleLayout::new(length, 64).unwrap();
            assert_eq!((layout.payload_offset(), layout.has_trailing_tag()), (24, false));
            assert_eq!(layout.seal(&mut staging, &header, TAGS), Ok(64));
            assert_eq!(staging[..64], encode_line(&header, &payload, TAGS.first).unwrap().0);
            assert!(layout.tail(TAGS.trailing).as_bytes().is_empty());
            assert!(layout.first_line(&header, 1).is_err());
        }
    }

    #[test]
    fn buffers_that_are_too_short_are_said_so() {
        let header = Header::new(Kind::Request);
        let layout = SingleLayout::new(57, 192).unwrap();
        let error = layout.seal(&mut [0; 191], &header, TAGS).unwrap_err();
        assert_eq!(error, BuildError::Full { needed: 192, available: 191 });
        assert_eq!(SingleLayout::new(57, 191), Err(BuildError::Full { needed: 192, available: 191 }));
        let layout = SingleLayout::new(8, 64).unwrap();
        assert!(layout.seal(&mut [0; 71], &header, TAGS).is_err());
        assert!(layout.seal(&mut [0; 72], &header, TAGS).is_ok());
    }
}
