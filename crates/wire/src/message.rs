//! Parses messages in two steps: the first line gives the length, then the whole message is checked.
//!
//! A receiver polls the 8 bytes at the position of the next first tag. When they match the prediction, it
//! copies the line into private memory, checks the tag of the *copy*, and calls [`parse_line`]. If there
//! are more lines, it waits for the trailing tag at [`FirstLine::trailing_tag_offset`], copies the whole
//! message into private memory once, and passes it to [`Message::parse`]. Nothing here may read memory that
//! a peer can still write: lengths could change between check and use.

use crate::batch::entry_time;
use crate::bytes;
use crate::error::Reject;
use crate::header::{Flags, Header, Kind};
use crate::single::{long_message_bytes, message_bytes};
use crate::status::Status;
use crate::tag::Tags;
use crate::{
    BODY_OFFSET, Descriptor, ENTRY_META_BYTES, HEADER_BYTES, INLINE_PAYLOAD, LINE, TAG_BYTES, TAG_OFFSET,
};

/// The set of checks that the parser makes. Production code uses [`Every`]. Tests disable one check at a
/// time to show that the fuzzer finds the bug. The members are constants, so an optional check has no
/// run-time cost.
pub(crate) trait Checks {
    /// The whole message is within the limit.
    const LIMIT: bool = true;
    /// Padding is zero.
    const PADDING: bool = true;
    /// An entry ends within the body.
    const ENTRY_BOUNDS: bool = true;
    /// Times of entries stand only where they are allowed.
    const ENTRY_TIME: bool = true;
    /// Flags of an entry are known, and a descriptor has its length.
    const ENTRY_FLAGS: bool = true;
    /// Statuses of entries are known.
    const ENTRY_STATUS: bool = true;
    /// The count of the header is the number of entries.
    const ENTRY_COUNT: bool = true;
}

/// All checks.
pub(crate) enum Every {}
impl Checks for Every {}

/// The first line of a message, checked on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLine {
    header: Header,
    total: usize,
}

/// Checks the first line of a message, which must be in private memory: the header is valid, and the whole
/// message has at most `limit` bytes (the size of the ring or of the receive buffer). The caller checks the
/// tag.
///
/// # Errors
/// The [`Reject`] of the first violation.
#[inline]
pub fn parse_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
    parse_line_with::<Every>(line, limit)
}

#[inline]
pub(crate) fn parse_line_with<C: Checks>(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
    let header = Header::decode(&bytes::get::<0, HEADER_BYTES, LINE>(line))?;
    let limit_applied = if C::LIMIT { limit } else { usize::MAX };
    let total = if header.kind.is_batch() {
        usize::try_from(long_message_bytes(header.length)).ok().filter(|total| *total <= limit_applied)
    } else {
        message_bytes(header.length, limit_applied)
    };
    match total {
        Some(total) => Ok(FirstLine { header, total }),
        None => Err(Reject::TooLong { total: long_message_bytes(header.length), limit }),
    }
}

/// A call, or a response without an error, that is one line in private memory and was checked: the frequent case. The
/// payload is no descriptor. Fields are read where they are used, so that they take no registers before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortMessage<'a>(&'a [u8; LINE]);

/// Checks a line in private memory that may be a [`ShortMessage`] of this kind. Returns `None` for every other message, and
/// for most of those that are invalid: use [`parse_line`]. The caller checks the tag.
///
/// # Errors
/// [`Reject::Padding`] if the bytes after the payload are not zero.
#[inline(always)]
pub fn parse_short(line: &[u8; LINE], kind: Kind) -> Result<Option<ShortMessage<'_>>, Reject> {
    let word0 = bytes::u64_at::<0, LINE>(line);
    let length = (word0 >> 32) as usize;
    if !kind.is_plain(word0) || length > INLINE_PAYLOAD {
        return Ok(None);
    }
    let inline = line.get(HEADER_BYTES..TAG_OFFSET).unwrap_or_default();
    if !bytes::padding_is_zero(inline, length) {
        return Err(Reject::Padding);
    }
    Ok(Some(ShortMessage(line)))
}

impl<'a> ShortMessage<'a> {
    /// Returns the header.
    #[inline(always)]
    pub fn header(self) -> Header {
        Header::of_plain(&bytes::get::<0, HEADER_BYTES, LINE>(self.0))
    }

    /// Returns the payload.
    #[inline(always)]
    pub fn payload(self) -> &'a [u8] {
        let length = bytes::u64_at::<0, LINE>(self.0) >> 32;
        let inline = self.0.get(HEADER_BYTES..TAG_OFFSET).unwrap_or_default();
        inline.get(..length as usize).unwrap_or_default()
    }

    /// Returns the call or the response.
    #[inline(always)]
    pub fn entry(self) -> Entry<'a> {
        self.header().entry(self.payload())
    }
}

impl FirstLine {
    /// Returns the header.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the length of the whole message, in bytes: a multiple of 64, at most the limit passed to
    /// [`parse_line`].
    #[inline]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the offset of the trailing tag in the message, or `None` for a one-line message.
    #[inline]
    pub fn trailing_tag_offset(&self) -> Option<usize> {
        (self.total > LINE).then_some(self.total - TAG_BYTES)
    }

    /// Checks the rest of the message. `bytes` is the private copy of the whole message and must begin with
    /// the bytes that this value was parsed from.
    ///
    /// # Errors
    /// The [`Reject`] of the first violation; [`Reject::WrongTotal`] unless `bytes` has
    /// [`FirstLine::total`] bytes.
    #[inline]
    pub fn complete(self, bytes: &[u8]) -> Result<Message<'_>, Reject> {
        complete_with::<Every>(self, bytes)
    }
}

/// A checked message that borrows its private copy. All its parts can be read without further checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    header: Header,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Checks a whole message in private memory: [`parse_line`] followed by [`FirstLine::complete`]. The
    /// caller checks the tags with [`verify_tags`].
    ///
    /// # Errors
    /// The [`Reject`] of the first violation.
    #[inline]
    pub fn parse(bytes: &'a [u8], limit: usize) -> Result<Message<'a>, Reject> {
        parse_with::<Every>(bytes, limit)
    }

    /// Returns the header.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the payload of a single message, the ids of a release list, or the encoded entries of a
    /// batch.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Iterates over the calls or responses: one of a single message, all of a batch, none of other kinds.
    #[inline]
    pub fn entries(&self) -> Entries<'a> {
        if self.header.kind.is_single() {
            Entries { lone: Some(self.header.entry(self.body)), rest: &[], left: 0, time: 0 }
        } else if self.header.kind.is_batch() {
            Entries { lone: None, rest: self.body, left: self.header.code, time: self.header.time }
        } else {
            Entries { lone: None, rest: &[], left: 0, time: 0 }
        }
    }

    /// Iterates over the call ids of a release list; empty for other kinds.
    #[inline]
    pub fn released(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let ids = if self.header.kind == Kind::Release { self.body } else { &[] };
        ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id))
    }
}

/// Compares the tags of a private copy of a whole message with the predicted tags.
///
/// # Errors
/// [`Reject::FirstTag`], [`Reject::TrailingTag`]; [`Reject::WrongTotal`] if `bytes` is shorter than a line.
#[inline]
pub fn verify_tags(bytes: &[u8], tags: Tags) -> Result<(), Reject> {
    let Some(line) = bytes.first_chunk::<LINE>() else {
        return Err(Reject::WrongTotal { expected: LINE, actual: bytes.len() });
    };
    if bytes::u64_at::<TAG_OFFSET, LINE>(line) != tags.first {
        return Err(Reject::FirstTag);
    }
    match bytes.last_chunk::<TAG_BYTES>() {
        Some(last) if bytes.len() > LINE && u64::from_le_bytes(*last) != tags.trailing => {
            Err(Reject::TrailingTag)
        }
        _ => Ok(()),
    }
}

#[inline]
pub(crate) fn parse_with<C: Checks>(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
    let Some(line) = bytes.first_chunk::<LINE>() else {
        return Err(Reject::WrongTotal { expected: LINE, actual: bytes.len() });
    };
    complete_with::<C>(parse_line_with::<C>(line, limit)?, bytes)
}

#[inline]
fn complete_with<C: Checks>(first: FirstLine, bytes: &[u8]) -> Result<Message<'_>, Reject> {
    let FirstLine { header, total } = first;
    let wrong_total = Reject::WrongTotal { expected: total, actual: bytes.len() };
    if bytes.len() != total {
        return Err(wrong_total);
    }
    let length = header.length as usize;
    let Some((line, rest)) = bytes.split_first_chunk::<LINE>() else { return Err(wrong_total) };

    if total == LINE {
        return Ok(Message { header, body: inline_body::<C>(line, &header)? });
    }
    let Some((rest, _tag)) = rest.split_last_chunk::<TAG_BYTES>() else { return Err(wrong_total) };
    let Some(body) = rest.get(..length) else { return Err(wrong_total) };
    let unused = bytes::get::<HEADER_BYTES, INLINE_PAYLOAD, LINE>(line);
    if C::PADDING && !(bytes::all_zero(&unused) && bytes::padding_is_zero(rest, length)) {
        return Err(Reject::Padding);
    }
    if header.kind.is_batch() {
        check_entries::<C>(&header, body)?;
    }
    Ok(Message { header, body })
}

/// Returns the payload in the first line of a one-line message.
#[inline]
fn inline_body<'a, C: Checks>(line: &'a [u8; LINE], header: &Header) -> Result<&'a [u8], Reject> {
    let length = header.length as usize;
    let inline = line.get(HEADER_BYTES..TAG_OFFSET).unwrap_or_default();
    if C::PADDING && !bytes::padding_is_zero(inline, length) {
        return Err(Reject::Padding);
    }
    inline.get(..length).ok_or(Reject::WrongTotal { expected: LINE, actual: BODY_OFFSET + length })
}

/// Checks all entries of a batch, so that iterating over them later cannot fail. Takes at most one step per
/// 16 bytes.
fn check_entries<C: Checks>(header: &Header, body: &[u8]) -> Result<(), Reject> {
    let mut rest = body;
    let mut index = 0_u32;
    while !rest.is_empty() {
        let Some((meta, after)) = rest.split_first_chunk::<ENTRY_META_BYTES>() else {
            return Err(Reject::EntryBeyondBody { index });
        };
        let raw = RawMeta::read(meta);
        let length = raw.length as usize;
        if raw.flags != 0 || raw.time != 0 || raw.code != 0 && header.kind != Kind::RequestBatch {
            check_meta::<C>(header, meta, index)?;
        }
        let padded = usize::try_from(bytes::pad_to_8(raw.length)).unwrap_or(usize::MAX);
        let Some((payload, following)) = after.split_at_checked(padded) else {
            if C::ENTRY_BOUNDS {
                return Err(Reject::EntryBeyondBody { index });
            }
            index += 1;
            break;
        };
        if C::PADDING && !bytes::padding_is_zero(payload, length) {
            return Err(Reject::Padding);
        }
        rest = following;
        index += 1;
    }
    if C::ENTRY_COUNT && index != u32::from(header.code) {
        return Err(Reject::EntryCount { expected: header.code, actual: index });
    }
    Ok(())
}

/// Checks the metadata of an entry. Without flags, time and error there is nothing to check.
#[inline(never)]
fn check_meta<C: Checks>(header: &Header, meta: &[u8; ENTRY_META_BYTES], index: u32) -> Result<(), Reject> {
    let meta = RawMeta::read(meta);
    // Each time has one encoding: that of the header is not repeated.
    let own_time = meta.time != 0;
    let may_have = !header.kind.is_response() && entry_time(meta.time) != header.time;
    if C::ENTRY_TIME && own_time && !may_have {
        return Err(Reject::EntryTime { index });
    }
    if C::ENTRY_FLAGS {
        let Some(flags) = Flags::from_bits(meta.flags) else {
            return Err(Reject::UnknownFlags(meta.flags));
        };
        if flags.contains(Flags::RENDEZVOUS) && meta.length as usize != Descriptor::BYTES {
            return Err(Reject::DescriptorLength(meta.length));
        }
    }
    if C::ENTRY_STATUS && header.kind.is_response() && !Status::is_known(meta.code) {
        return Err(Reject::UnknownStatus(meta.code));
    }
    Ok(())
}

/// The metadata of an entry, before its checks.
struct RawMeta {
    length: u32,
    code: u16,
    thread: u16,
    call: u32,
    flags: u8,
    time: u32,
}

impl RawMeta {
    #[inline]
    fn read(meta: &[u8; ENTRY_META_BYTES]) -> RawMeta {
        let word0 = bytes::u64_at::<0, ENTRY_META_BYTES>(meta);
        let word1 = bytes::u64_at::<8, ENTRY_META_BYTES>(meta);
        RawMeta {
            length: word0 as u32,
            code: (word0 >> 32) as u16,
            thread: (word0 >> 48) as u16,
            call: word1 as u32,
            flags: (word1 >> 32) as u8,
            time: (word1 >> 40) as u32,
        }
    }
}

/// One call, or one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Function id of a request, or status number of a response: see [`Entry::status`].
    pub function_or_status: u16,
    /// Thread slot of the caller.
    pub thread: u16,
    /// Call id.
    pub call: u32,
    /// Flags of the entry. For a single message, all flags of the message.
    pub flags: Flags,
    /// The time of a request, as [`Header::time`] of a single request. For responses, the time of the header.
    pub time: u32,
    /// The payload, or an encoded [`Descriptor`] if [`Flags::RENDEZVOUS`] is set.
    pub payload: &'a [u8],
}

impl Entry<'_> {
    /// Returns the status of a response entry. Parsing has rejected unknown statuses of responses, so
    /// `None` means that the entry belongs to a request and its function id is not a status number.
    #[inline]
    pub const fn status(&self) -> Option<Status> {
        Status::from_wire(self.function_or_status)
    }
}

impl Header {
    /// Returns the one entry of a single message.
    #[inline]
    fn entry<'a>(&self, payload: &'a [u8]) -> Entry<'a> {
        let Header { code, thread, call, flags, time, .. } = *self;
        Entry { function_or_status: code, thread, call, flags, time, payload }
    }
}

/// Iterates over the entries of a checked message, in the order in which they were added.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    lone: Option<Entry<'a>>,
    rest: &'a [u8],
    left: u16,
    /// The time of entries without a time of their own.
    time: u32,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.left == 0 {
            return self.lone.take();
        }
        // `check_entries` has already excluded every `None` below.
        let (meta, after) = self.rest.split_first_chunk::<ENTRY_META_BYTES>()?;
        let meta = RawMeta::read(meta);
        let (payload, following) =
            after.split_at_checked(usize::try_from(bytes::pad_to_8(meta.length)).ok()?)?;
        let entry = Entry {
            function_or_status: meta.code,
            thread: meta.thread,
            call: meta.call,
            flags: Flags::from_bits(meta.flags)?,
            time: if meta.time == 0 { self.time } else { entry_time(meta.time) },
            payload: payload.get(..meta.length as usize)?,
        };
        self.rest = following;
        self.left -= 1;
        Some(entry)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.left) + usize::from(self.lone.is_some());
        (left, Some(left))
    }
}

impl ExactSizeIterator for Entries<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, BuildError, EntryMeta, SingleLayout, encode_line};

    const TAGS: Tags = Tags { first: 0x1122_3344_5566_7789, trailing: 0x99aa_bbcc_ddee_ff02 };

    fn batch(kind: Kind, payloads: &[&[u8]]) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let mut builder = BatchBuilder::new(&mut buffer);
        for (index, payload) in payloads.iter().enumerate() {
            let meta = EntryMeta { thread: index as u16, call: 100 + index as u32, ..EntryMeta::default() };
            builder.push(&meta, payload).unwrap();
        }
        let total = builder.finish(&Header::new(kind), TAGS).unwrap();
        buffer.truncate(total);
        buffer
    }

    fn long(payload: &[u8]) -> Result<Vec<u8>, BuildError> {
        let mut buffer = vec![0; payload.len() + 256];
        buffer[64..64 + payload.len()].copy_from_slice(payload);
        let layout = SingleLayout::new(payload.len() as u32, buffer.len())?;
        let total = layout.seal(&mut buffer, &Header { call: 6, ..Header::new(Kind::Request) }, TAGS)?;
        buffer.truncate(total);
        Ok(buffer)
    }

    #[test]
    fn singles_of_every_size_come_back() {
        for length in 0..400 {
            let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let bytes = long(&payload).unwrap();
            verify_tags(&bytes, TAGS).unwrap();
            let first = parse_line(bytes.first_chunk().unwrap(), 4096).unwrap();
            assert_eq!(first.total(), bytes.len());
            assert_eq!(first.trailing_tag_offset(), (length > 32).then_some(bytes.len() - 8));
            let short = parse_short(bytes.first_chunk().unwrap(), Kind::Request).unwrap();
            assert_eq!(short.map(|short| short.payload()), (length <= 32).then_some(&payload[..]));
            assert_eq!(parse_short(bytes.first_chunk().unwrap(), Kind::Response), Ok(None));
            let message = first.complete(&bytes).unwrap();
            assert_eq!(Message::parse(&bytes, bytes.len()), Ok(message));
            let entries: Vec<_> = message.entries().collect();
            assert_eq!(entries.len(), 1);
            assert_eq!((entries[0].payload, entries[0].call), (&payload[..], 6));
            assert_eq!(message.released().len(), 0);
        }
    }

    #[test]
    fn batches_come_back() {
        let payloads: [&[u8]; 5] = [b"", b"a", b"12345678", b"123456789", &[7; 100]];
        for kind in [Kind::RequestBatch, Kind::ResponseBatch] {
            let bytes = batch(kind, &payloads);
            let message = Message::parse(&bytes, 4096).unwrap();
            assert_eq!(message.entries().len(), 5);
            for (index, entry) in message.entries().enumerate() {
                assert_eq!(entry.payload, payloads[index]);
                assert_eq!((entry.thread, entry.call), (index as u16, 100 + index as u32));
                assert_eq!(entry.status(), Some(Status::Ok));
            }
        }
    }

    #[test]
    fn release_lists_come_back() {
        for count in [1_u16, 8, 9, 100] {
            let ids: Vec<u8> = (0..u32::from(count)).flat_map(|id| (id * 3).to_le_bytes()).collect();
            let mut buffer = vec![0; 1024];
            buffer[64..64 + ids.len()].copy_from_slice(&ids);
            let header = Header { code: count, ..Header::new(Kind::Release) };
            let total =
                SingleLayout::new(ids.len() as u32, 1024).unwrap().seal(&mut buffer, &header, TAGS).unwrap();
            let message = Message::parse(&buffer[..total], 1024).unwrap();
            assert!(message.released().eq((0..u32::from(count)).map(|id| id * 3)));
            assert_eq!(message.entries().count(), 0);
        }
    }

    #[test]
    fn limits_hold() {
        let bytes = long(&[1; 33]).unwrap();
        let line = bytes.first_chunk().unwrap();
        assert_eq!(parse_line(line, 127), Err(Reject::TooLong { total: 128, limit: 127 }));
        assert!(parse_line(line, 128).is_ok());
        let mut lie = *line;
        lie[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            parse_line(&lie, 1 << 20),
            Err(Reject::TooLong { total: (1 << 32) + 128, limit: 1 << 20 })
        );
        let line = encode_line(&Header::new(Kind::Credit), &[], 1).unwrap().0;
        assert!(matches!(parse_line(&line, 63), Err(Reject::TooLong { .. })));
    }

    #[test]
    fn lengths_given_must_be_lengths_announced() {
        let bytes = long(&[1; 100]).unwrap();
        for actual in [0, 63, 64, 128, 191] {
            assert!(matches!(Message::parse(&bytes[..actual], 4096), Err(Reject::WrongTotal { .. })));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Message::parse(&longer, 4096), Err(Reject::WrongTotal { expected: 192, actual: 193 }));
    }

    #[test]
    fn every_byte_of_padding_counts() {
        let short = long(&[1; 5]).unwrap();
        let bytes = long(&[1; 33]).unwrap();
        let batch = batch(Kind::RequestBatch, &[b"abc", b""]);
        let places: [(&[u8], std::ops::Range<usize>); 6] = [
            (&short, 29..56),
            (&bytes, 24..56),
            (&bytes, 97..120),
            (&batch, 24..56),
            (&batch, 83..88),
            (&batch, 104..120),
        ];
        for (good, range) in places {
            assert!(Message::parse(good, 4096).is_ok());
            for place in range {
                let mut bad = good.to_vec();
                bad[place] = 1;
                assert_eq!(Message::parse(&bad, 4096), Err(Reject::Padding), "byte {place}");
                if bad.len() == LINE {
                    let line = bad.first_chunk().unwrap();
                    let kind = Kind::from_wire(line[0]).unwrap();
                    assert_eq!(parse_short(line, kind), Err(Reject::Padding));
                }
            }
        }
    }

    #[test]
    fn lies_about_entries_are_caught() {
        let good = batch(Kind::ResponseBatch, &[b"abc", b"12345678"]);
        let wrong = |place: usize, value: u8| {
            let mut bad = good.clone();
            bad[place] = value;
            Message::parse(&bad, 4096).unwrap_err()
        };
        assert_eq!(wrong(2, 1), Reject::EntryCount { expected: 1, actual: 2 });
        assert_eq!(wrong(2, 3), Reject::EntryCount { expected: 3, actual: 2 });
        assert_eq!(wrong(88, 200), Reject::EntryBeyondBody { index: 1 });
        assert_eq!(wrong(91, 255), Reject::EntryBeyondBody { index: 1 });
        assert_eq!(wrong(92, 11), Reject::UnknownStatus(11));
        assert_eq!(wrong(100, 32), Reject::UnknownFlags(32));
        assert_eq!(wrong(100, 8), Reject::DescriptorLength(8));
        for time in 101..104 {
            assert_eq!(wrong(time, 1), Reject::EntryTime { index: 1 });
        }
        // A shorter first entry makes part of its own payload look like metadata.
        assert_eq!(wrong(64, 0), Reject::EntryTime { index: 1 });
    }

    #[test]
    fn entries_of_requests_may_have_times() {
        let mut bytes = batch(Kind::RequestBatch, &[b"abc", b"12345678"]);
        bytes[20] = 9;
        bytes[101..104].copy_from_slice(&[8, 0, 0]);
        let times: Vec<_> = Message::parse(&bytes, 4096).unwrap().entries().map(|entry| entry.time).collect();
        assert_eq!(times, [9, 8]);
        bytes[101] = 9;
        assert_eq!(
            Message::parse(&bytes, 4096),
            Err(Reject::EntryTime { index: 1 }),
            "the time of the header"
        );
    }

    #[test]
    fn tags_are_compared() {
        let bytes = long(&[1; 33]).unwrap();
        assert_eq!(verify_tags(&bytes, TAGS), Ok(()));
        assert_eq!(verify_tags(&bytes, Tags { first: 1, ..TAGS }), Err(Reject::FirstTag));
        assert_eq!(verify_tags(&bytes, Tags { trailing: 2, ..TAGS }), Err(Reject::TrailingTag));
        // A one-line message has no second tag.
        assert_eq!(verify_tags(&bytes[..64], Tags { trailing: 2, ..TAGS }), Ok(()));
        assert!(matches!(verify_tags(&bytes[..63], TAGS), Err(Reject::WrongTotal { .. })));
    }
}
