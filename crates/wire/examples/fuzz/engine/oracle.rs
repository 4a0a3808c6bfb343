//! The oracle: checks the properties that hold for every input. The parser never panics, every slice lies
//! inside the buffer, lengths add up, and an accepted input is encoded again to exactly the same bytes. A
//! second, deliberately simple implementation of the layout, independent of the library, decides which
//! inputs are messages.

use super::Parser;
use dunlin_wire::handshake::{FRAME_HEADER_BYTES, FrameHeader, MAX_BODY_BYTES};
use dunlin_wire::message::verify_tags;
use dunlin_wire::{
    BatchState, Descriptor, Entry, EntryMeta, FirstLine, Flags, Kind, LINE, Message, Reject, SingleLayout,
    Tags, parse_short,
};

/// Memory that is reused for every input.
#[derive(Default)]
pub(super) struct Scratch {
    buffer: Vec<u8>,
}

macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

/// Parses `input` as a receive buffer and as the beginning of a ring. Returns the verdict on the receive
/// buffer.
pub(super) fn message<P: Parser>(
    input: &[u8],
    limit: usize,
    expected: bool,
    scratch: &mut Scratch,
) -> Result<&'static str, String> {
    let whole = judge::<P>(input, limit, scratch)?;
    ensure!(!expected || whole.is_none(), "a valid message was rejected: {whole:?}");
    if let Some(line) = input.first_chunk::<LINE>() {
        match P::first_line(line, limit) {
            Ok(first) => {
                let total = first.total();
                ensure!(
                    total >= LINE && total.is_multiple_of(LINE) && total <= limit,
                    "total {total}, limit {limit}"
                );
                let offset = first.trailing_tag_offset();
                ensure!(offset == (total > LINE).then(|| total - 8), "trailing tag at {offset:?} of {total}");
                ensure!(whole.is_some() || total == input.len(), "accepted with another total, {total}");
                short_way(line, limit, &first)?;
                if let Some(prefix) = input.get(..total).filter(|prefix| prefix.len() != input.len()) {
                    judge::<P>(prefix, limit, scratch)?;
                }
            }
            Err(reject) => ensure!(whole == Some(reject), "line says {reject:?}, message {whole:?}"),
        }
    }
    Ok(whole.map_or("accepted", |reject| reject.reason()))
}

/// Checks that the fast path for one-line messages agrees with the general path.
fn short_way(line: &[u8; LINE], limit: usize, first: &FirstLine) -> Result<(), String> {
    for kind in [Kind::Request, Kind::Response] {
        let short = parse_short(line, kind);
        let header = first.header();
        let is_plain = first.total() == LINE
            && header.kind == kind
            && !header.flags.contains(Flags::RENDEZVOUS)
            && (kind == Kind::Request || header.code == 0);
        let long = Message::parse(line, limit);
        let long = long.map(|message| is_plain.then_some((*message.header(), message.body())));
        let short = short.map(|short| short.map(|short| (short.header(), short.payload())));
        if is_plain || short.is_err() {
            ensure!(short == long, "by the short way {short:?}, by the long way {long:?}");
        } else {
            ensure!(short == Ok(None), "a short message in a line that has none: {short:?}");
        }
    }
    Ok(())
}

/// Runs the parser once and checks its verdict. `None` means that the parser accepted the input.
fn judge<P: Parser>(input: &[u8], limit: usize, scratch: &mut Scratch) -> Result<Option<Reject>, String> {
    let expected = is_message(input, limit);
    match P::message(input, limit) {
        Ok(message) => {
            ensure!(expected, "accepted what is no message");
            accepted(input, &message, scratch)?;
            Ok(None)
        }
        Err(reject) => {
            ensure!(!expected, "a message was rejected: {reject:?}");
            Ok(Some(reject))
        }
    }
}

/// Decides whether `input` is a message, independently of the parser.
fn is_message(input: &[u8], limit: usize) -> bool {
    let number =
        |place: usize, width: usize| (0..width).rev().fold(0, |sum, i| sum << 8 | input[place + i] as u64);
    let zero = |from: usize, to: usize| input[from..to].iter().all(|byte| *byte == 0);
    let status = |code: u64| code <= 10 || code >= 0x100;
    let (total, limit) = (input.len() as u64, limit as u64);
    if total < 64 || total > limit || total % 64 != 0 {
        return false;
    }
    let (kind, flags, code, length) = (input[0], input[1], number(2, 2), number(4, 4));
    let rendezvous = flags & 8 != 0;
    if flags >= 32 {
        return false;
    }
    let batch = kind == 3 || kind == 4;
    let fields = match kind {
        1 => !rendezvous || length == 24,
        2 => (!rendezvous || length == 24) && status(code),
        3 | 4 => !rendezvous && code > 0 && zero(14, 20),
        5 | 8 => !rendezvous && zero(2, 8) && zero(14, 24),
        6 => !rendezvous && zero(4, 8) && zero(14, 24),
        7 => !rendezvous && code > 0 && length == 4 * code && zero(14, 24),
        9..=11 => {
            let fits = [length == 24, length == 0, length > 0][usize::from(kind) - 9];
            !rendezvous && code == 0 && fits && zero(14, 16) && zero(20, 24)
        }
        12 => !rendezvous && zero(2, 8) && zero(14, 16),
        _ => false,
    };
    if !fields {
        return false;
    }
    if !batch && length <= 32 {
        return total == 64 && zero(24 + length as usize, 56);
    }
    if total != (64 + length + 8).div_ceil(64) * 64 {
        return false;
    }
    let end = 64 + length as usize;
    if !zero(24, 56) || !zero(end, input.len() - 8) {
        return false;
    }
    if !batch {
        return true;
    }
    let (mut place, mut count) = (64, 0);
    while place < end {
        if end - place < 16 {
            return false;
        }
        let (length, flags) = (number(place, 4), input[place + 12]);
        let padded = length.div_ceil(8) * 8;
        let after = (end - place - 16) as u64;
        let own = match number(place + 13, 3) {
            0xff_ffff => 0xffff_ffff,
            own => own,
        };
        let bad_flags = flags >= 32 || flags & 8 != 0 && length != 24;
        if padded > after
            || bad_flags
            || own != 0 && (kind == 4 || own == number(20, 4))
            || kind == 4 && !status(number(place + 4, 2))
        {
            return false;
        }
        if !zero(place + 16 + length as usize, place + 16 + padded as usize) {
            return false;
        }
        place += 16 + padded as usize;
        count += 1;
    }
    count == code
}

/// Checks the properties of an accepted message.
fn accepted(input: &[u8], message: &Message<'_>, scratch: &mut Scratch) -> Result<(), String> {
    let header = message.header();
    let range = input.as_ptr_range();
    let inside = |slice: &[u8]| {
        let slice = slice.as_ptr_range();
        range.start <= slice.start && slice.end <= range.end
    };
    ensure!(inside(message.body()), "the body lies outside of the input");
    ensure!(message.body().len() == header.length as usize, "the body is not as long as the header says");
    let entries = message.entries();
    let announced = entries.len();
    let expected = if header.kind.is_single() {
        1
    } else {
        usize::from(header.code) * usize::from(header.kind.is_batch())
    };
    ensure!(announced == expected, "{announced} entries announced, {expected} expected");
    let (mut count, mut sum, mut last_end) = (0, 0, range.start);
    for entry in entries {
        ensure!(inside(entry.payload), "entry {count} lies outside of the input");
        let slice = entry.payload.as_ptr_range();
        ensure!(last_end <= slice.start, "entry {count} overlaps the one before");
        (last_end, count) = (slice.end, count + 1);
        sum += 16 + entry.payload.len().next_multiple_of(8);
        check_entry(header.kind.is_response(), &entry)?;
    }
    ensure!(count == expected, "{count} entries came, {expected} were expected");
    ensure!(
        !header.kind.is_batch() || sum == header.length as usize,
        "lengths sum to {sum}, not {}",
        header.length
    );
    ensure!(
        message.released().len() * 4 == if header.kind as u8 == 7 { message.body().len() } else { 0 },
        "released"
    );
    same_again(input, message, scratch)
}

fn check_entry(response: bool, entry: &Entry<'_>) -> Result<(), String> {
    ensure!(!response || entry.status().is_some(), "an unknown status got through");
    if entry.flags.contains(Flags::RENDEZVOUS) {
        match Descriptor::decode(entry.payload, 1 << 30) {
            Ok(descriptor) => {
                ensure!(descriptor.encode() == entry.payload, "the descriptor is encoded otherwise");
                ensure!(descriptor.length <= 1 << 30, "the descriptor is too long");
                ensure!(descriptor.offset.checked_add(descriptor.length).is_some(), "the descriptor wraps");
            }
            Err(reject) => {
                ensure!(matches!(reject, Reject::DescriptorRange { .. }), "descriptor: {reject:?}");
            }
        }
    }
    Ok(())
}

/// Encodes the message again and compares every byte.
fn same_again(input: &[u8], message: &Message<'_>, scratch: &mut Scratch) -> Result<(), String> {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let first = word(input.get(56..).and_then(|bytes| bytes.first_chunk()));
    let tags = Tags { first, trailing: word(input.last_chunk()) };
    let header = message.header();
    let buffer = &mut scratch.buffer;
    buffer.clear();
    buffer.resize(input.len().max(LINE + message.body().len()), 0xa5);
    let total = if header.kind.is_batch() {
        let mut state = BatchState::new();
        for entry in message.entries() {
            let Entry { function_or_status, thread, call, flags, time, payload } = entry;
            // Responses have no times, and the header's time is not repeated.
            let time = if header.kind.is_response() || time == header.time { 0 } else { time };
            let meta = EntryMeta { function_or_status, thread, call, flags, time };
            state.push(buffer, &meta, payload).map_err(|error| format!("cannot be built again: {error}"))?;
        }
        state.finish(buffer, header, tags)
    } else {
        let body = message.body();
        buffer[LINE..LINE + body.len()].copy_from_slice(body);
        SingleLayout::new(header.length, input.len()).and_then(|layout| layout.seal(buffer, header, tags))
    };
    let total = total.map_err(|error| format!("cannot be built again: {error}"))?;
    ensure!(buffer[..total] == *input, "is encoded otherwise");
    ensure!(verify_tags(input, tags).is_ok(), "its own tags are not its tags");
    let forged = Tags { first: !first, ..tags };
    ensure!(verify_tags(input, forged) == Err(Reject::FirstTag), "a forged tag passes");
    Ok(())
}

/// Passes `input` to the frame parser.
pub(super) fn record<P: Parser>(input: &[u8], expected: bool) -> Result<&'static str, String> {
    if let Some(Ok(header)) = input.first_chunk::<FRAME_HEADER_BYTES>().map(FrameHeader::decode) {
        ensure!(header.length <= MAX_BODY_BYTES, "a body of {} bytes passes", header.length);
    }
    let parsed = P::record(input);
    if input.get(6) == Some(&2) {
        let expected = is_hello_reply(input);
        ensure!(parsed.is_ok() == expected, "a HelloReply, {expected} by the oracle, is {parsed:?}");
    }
    match parsed {
        Ok(record) => {
            let again = record.encode();
            ensure!(again.as_deref() == Ok(input), "{record:?} is encoded otherwise: {again:?}");
            Ok("accepted")
        }
        Err(error) => {
            ensure!(!expected, "a valid record was rejected: {error:?}");
            Ok(error.reason())
        }
    }
}

/// Decides whether `input` is a frame with a `HelloReply`, independently of the parser. Its other fields may have
/// any value, so this is a check of its extensions.
fn is_hello_reply(input: &[u8]) -> bool {
    let number =
        |at: usize| input.get(at..at + 2).map(|bytes| usize::from(bytes[0]) | usize::from(bytes[1]) << 8);
    let length = input.len().wrapping_sub(12);
    if input.get(..8) != Some(b"DNLN\x01\x00\x02\x00") || number(8) != Some(length) || number(10) != Some(0) {
        return false;
    }
    if !(32..=4096).contains(&length) {
        return false;
    }
    let (mut at, mut seen) = (44, Vec::new());
    while at < input.len() {
        let (Some(name), Some(length)) = (number(at), number(at + 2)) else { return false };
        at += 4 + length;
        let fits = match name {
            // Those of a Hello are out of place.
            0x8001 | 0x8002 => false,
            0x8005 | 0x8008 => length == 4,
            0x8006 => length == 8,
            _ => length <= 96,
        };
        if name < 0x8000 || !fits || seen.contains(&name) || at > input.len() {
            return false;
        }
        seen.push(name);
    }
    seen.len() <= 8
}
