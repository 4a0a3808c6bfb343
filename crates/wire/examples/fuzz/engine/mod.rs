//! The fuzzer: generates inputs from a seed, passes them to a parser, and checks the result with the
//! oracle.
//!
//! Input `index` of a seed always has the same bytes, so one number replays a finding. The parser is a type
//! parameter: the crate's tests run the same engine against parsers with planted bugs.

mod generate;
mod oracle;
mod random;

use dunlin_wire::handshake::{HandshakeError, Record};
use dunlin_wire::{FirstLine, LINE, Message, Reject};
use generate::Origin;
use random::Random;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The parser under test.
pub(crate) trait Parser {
    /// Parses a first line.
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject>;
    /// Parses a whole message.
    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject>;
    /// Parses a frame of the handshake.
    fn record(frame: &[u8]) -> Result<Record, HandshakeError>;
}

/// Statistics of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Number of inputs generated.
    pub(crate) inputs: u64,
    /// Number of inputs by type and origin.
    pub(crate) origins: BTreeMap<&'static str, u64>,
    /// Verdicts of the parser, by parsing step and reason.
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u64>,
    /// The first input for which parser and oracle disagree; it ends the run.
    pub(crate) failure: Option<Failure>,
}

/// An input that the parser handles wrongly.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Index of the input, for replay.
    pub(crate) index: u64,
    /// Description of the error.
    pub(crate) what: String,
    /// The bytes of the input.
    pub(crate) input: Vec<u8>,
}

/// Runs the inputs of `range` and adds the results to `report`. Stops at the first failure.
pub(crate) fn run<P: Parser>(seed: u64, range: std::ops::Range<u64>, report: &mut Report) {
    let mut scratch = oracle::Scratch::default();
    let mut input = Vec::new();
    for index in range {
        let mut random = Random::for_input(seed, index);
        report.inputs += 1;
        let (part, origin, verdict) = if random.one_in(4) {
            let origin = generate::record(&mut random, &mut input);
            let expected = matches!(origin, Origin::Valid);
            ("record", origin, guarded(|| oracle::record::<P>(&input, expected)))
        } else {
            let origin = generate::message(&mut random, &mut input);
            let expected = matches!(origin, Origin::Valid);
            let limit = generate::limit(&mut random, input.len(), expected);
            ("message", origin, guarded(|| oracle::message::<P>(&input, limit, expected, &mut scratch)))
        };
        *report.origins.entry(origin.name(part)).or_default() += 1;
        match verdict {
            Ok(reason) => *report.verdicts.entry((part, reason)).or_default() += 1,
            Err(what) => {
                report.failure = Some(Failure { index, what, input });
                return;
            }
        }
    }
}

/// Runs `check` and reports a panic as a finding.
fn guarded(check: impl FnOnce() -> Result<&'static str, String>) -> Result<&'static str, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}
