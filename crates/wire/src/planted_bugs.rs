//! Parsers with one planted bug each. The fuzzer of `examples/fuzz` must find every bug, and must pass the
//! real parser.

#[path = "../examples/fuzz/engine/mod.rs"]
mod engine;

use crate::handshake::{Extension, FRAME_HEADER_BYTES, HandshakeError, Record};
use crate::message::{Checks, Every, parse_line_with, parse_with};
use crate::{FirstLine, LINE, Message, Reject};
use engine::{Parser, Report, run};
use std::marker::PhantomData;

/// Inputs per parser: more than any of the bugs needs. The real parser gets the same number.
const INPUTS: u64 = 200_000;

/// The message parser with the checks of `C`, and the real record parser.
struct With<C>(PhantomData<C>);

impl<C: Checks> Parser for With<C> {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line_with::<C>(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        parse_with::<C>(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        Record::decode(frame)
    }
}

fn finding<P: Parser>() -> Option<String> {
    let mut report = Report::default();
    run::<P>(7, 0..INPUTS, &mut report);
    report.failure.map(|failure| {
        // The input's index alone must replay it.
        let mut again = Report::default();
        run::<P>(7, failure.index..failure.index + 1, &mut again);
        let again = again.failure.expect("the finding replays");
        assert_eq!((&again.what, again.input), (&failure.what, failure.input));
        failure.what
    })
}

#[test]
fn the_real_parser_passes_and_every_reason_is_reached() {
    let mut report = Report::default();
    run::<With<Every>>(7, 0..INPUTS, &mut report);
    assert!(report.failure.is_none(), "{:?}", report.failure);
    assert_eq!(report.inputs, INPUTS);
    let of_messages = [
        "accepted",
        "unknown_kind",
        "unknown_flags",
        "unknown_status",
        "reserved_field",
        "empty_batch",
        "body_length",
        "too_long",
        "descriptor_length",
        "wrong_total",
        "padding",
        "entry_beyond_body",
        "entry_time",
        "entry_count",
    ];
    let of_records = [
        "accepted",
        "magic",
        "frame_version",
        "version_range",
        "unknown_record",
        "body_too_long",
        "truncated",
        "trailing_bytes",
        "not_utf8",
        "field_too_long",
        "ring_bytes",
        "unknown_extension",
        "repeated_extension",
        "misplaced_extension",
        "extension_length",
    ];
    let expected = of_messages.map(|reason| ("message", reason)).into_iter();
    for verdict in expected.chain(of_records.map(|reason| ("record", reason))) {
        assert!(report.verdicts.contains_key(&verdict), "{verdict:?} was never reached");
    }
    let mutated: u64 =
        report.origins.iter().filter(|(name, _)| name.contains("mutated")).map(|(_, n)| n).sum();
    assert!(mutated * 3 >= INPUTS, "{mutated} of {INPUTS} inputs are mutations of valid ones");
}

macro_rules! planted {
    ($($test:ident leaves_out $check:ident;)+) => {$(
        #[test]
        fn $test() {
            enum Broken {}
            impl Checks for Broken {
                const $check: bool = false;
            }
            let finding = finding::<With<Broken>>().expect("a finding");
            // A missing limit check can already show in the first line.
            let found = finding == "accepted what is no message" || finding.starts_with("total ");
            assert!(found, "{finding}");
        }
    )+};
}

planted! {
    a_forgotten_limit_is_found leaves_out LIMIT;
    forgotten_padding_is_found leaves_out PADDING;
    a_forgotten_bound_is_found leaves_out ENTRY_BOUNDS;
    forgotten_times_are_found leaves_out ENTRY_TIME;
    forgotten_entry_flags_are_found leaves_out ENTRY_FLAGS;
    a_forgotten_status_is_found leaves_out ENTRY_STATUS;
    a_forgotten_count_is_found leaves_out ENTRY_COUNT;
}

/// A record parser that ignores bytes after the last field.
struct Careless;

impl Parser for Careless {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line_with::<Every>(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        parse_with::<Every>(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        match Record::decode(frame) {
            Err(HandshakeError::TrailingBytes { count }) if frame.len() - count >= FRAME_HEADER_BYTES => {
                Record::decode(&frame[..frame.len() - count])
            }
            other => other,
        }
    }
}

/// A record parser that trusts the length that the peer sent.
struct Trusting;

impl Parser for Trusting {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line_with::<Every>(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        if let Some(line) = bytes.first_chunk() {
            let announced = Self::first_line(line, limit)?.total();
            assert!(bytes[..announced].len() == announced);
        }
        parse_with::<Every>(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        Record::decode(frame)
    }
}

/// A record parser that skips every extension that it does not know.
struct Indulgent;

impl Parser for Indulgent {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line_with::<Every>(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        parse_with::<Every>(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        match Record::decode(frame) {
            Err(HandshakeError::UnknownExtension { number, .. }) => {
                let place = frame.windows(2).rposition(|bytes| bytes == number.to_le_bytes());
                let mut frame = frame.to_vec();
                frame[place.expect("the number of the extension") + 1] |= 0x80;
                Record::decode(&frame)
            }
            other => other,
        }
    }
}

/// A record parser that reads the block of a request ring as two bytes.
struct Narrow;

impl Parser for Narrow {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line_with::<Every>(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        parse_with::<Every>(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        let mut record = Record::decode(frame)?;
        if let Record::LaneReady(ready) = &mut record {
            for extension in &mut ready.extensions.0 {
                if let Extension::RequestRing { block, .. } = extension {
                    *block &= 0xffff;
                }
            }
        }
        Ok(record)
    }
}

#[test]
fn a_field_of_an_extension_that_is_cut_short_is_found() {
    let finding = finding::<Narrow>().expect("a finding");
    assert!(finding.contains("is encoded otherwise"), "{finding}");
}

#[test]
fn an_extension_that_may_not_be_skipped_is_found() {
    let finding = finding::<Indulgent>().expect("a finding");
    assert!(finding.contains("is encoded otherwise") || finding.contains("by the oracle"), "{finding}");
}

#[test]
fn overlooked_trailing_bytes_are_found() {
    let finding = finding::<Careless>().expect("a finding");
    assert!(finding.contains("is encoded otherwise") || finding.contains("by the oracle"), "{finding}");
}

#[test]
fn a_panic_is_found() {
    let finding = finding::<Trusting>().expect("a finding");
    assert!(finding.contains("panicked: range end index"), "{finding}");
}
