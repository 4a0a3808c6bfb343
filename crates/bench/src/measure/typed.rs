//! `bench typed`: the overhead of generated code over raw calls of the same size and plan.

use std::fmt::Display;
use std::time::Duration;

use dunlin::thrift::ClientOptions;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, Client, ClientConfig};

use super::flow::{difference, stamp};
use super::peer::{Drive, ECHO, ServiceKind};
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar};
use crate::typed_service::{Handler, Point, TypedClient, TypedProcessor};
use dunlin_floor::{FloorError, FloorPair, Slice, compare, take_turns};
use dunlin_report::{Row, rounded};

/// Largest binary, bytes: it must still travel in a message.
const LARGEST: usize = 2048;
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(2);
/// Number of calls before timing starts.
const WARM_UP: usize = 64;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct TypedOptions {
    /// Size of binaries and texts in both directions, bytes.
    pub size: usize,
    /// Alternations of raw and typed calls per row; `None` for 300.
    pub rounds: Option<usize>,
}

/// Creates the service for the peer's side.
pub(super) fn processor() -> TypedProcessor<Handler> {
    TypedProcessor(Handler)
}

fn failed(function: &str, reason: String) -> MeasureError {
    MeasureError::TypedCall { protocol: function.to_owned(), reason }
}

/// Makes one typed call, and returns the difference of its response from the expected one (0 if none).
type CallOf = fn(&mut Caller) -> Result<u64, String>;

/// The measured functions: name, signature, whether the payload size is variable, and the call.
const FUNCTIONS: [(&str, &str, bool, CallOf); 5] = [
    ("echo", "binary echo(1: binary)", true, Caller::echo),
    ("look", "binary look(1: binary) throws", true, Caller::look),
    ("say", "string say(1: string)", true, Caller::say),
    ("sum", "i64 sum(1: i64, 2: i64, 3: i64, 4: i64)", false, Caller::sum),
    ("turn", "struct of four i64 turn(1: the same)", false, Caller::turn),
];
/// Payload size of the fixed-size functions, bytes.
const FIXED: usize = 32;

/// Alternates raw echo calls and typed calls in one pinned process pair with one plan. Rows have
/// `function`, `size_bytes`, the latency fields of the typed calls, `raw_p50_ns` and `overhead_ns`: the
/// median over alternations of typed minus raw latency. Functions with fixed-size arguments are measured
/// only at 32 bytes. Blocks for about two seconds per function.
///
/// # Errors
/// Any failure.
pub fn typed(session: &mut Session, options: &TypedOptions) -> Result<Findings, MeasureError> {
    let size = options.size;
    if size > LARGEST {
        return Err(MeasureError::BadArgument(format!(
            "{size} bytes are more than the {LARGEST} that typed calls are measured with"
        )));
    }
    let served = session.serve(ServiceKind::Typed, Drive::Busy)?;
    let mut typed = Caller::connect(session, &served, size)?;
    let plan = typed.client.inner().selections().iter().find_map(|selection| selection.plan);
    let Some(plan) = plan else {
        return Err(MeasureError::BadArgument("the service's functions have no plan".to_owned()));
    };
    let mut raw = RawCaller::connect(session, &ClientConfig::with_plan(plan), size)?;
    let functions: Vec<_> = FUNCTIONS.iter().filter(|(_, _, sized, _)| *sized || size == FIXED).collect();
    let rounds = options.rounds.unwrap_or(300);
    let progress = progress_bar(rounds * functions.len());
    let mut findings = Findings::default();
    for (name, signature, _, call) in functions {
        progress.set_message(*name);
        session.while_serving(&served, |_, _| {
            (0..WARM_UP).try_for_each(|_| typed.call(*call).map_err(|reason| failed(name, reason)))
        })?;
        let found = take_turns(
            &mut session.pair,
            rounds,
            |pair| raw.slice(pair),
            |pair| typed.slice(pair, *call),
            |_| progress.inc(1),
        )?;
        if typed.wrong != 0 || raw.wrong != 0 {
            return Err(MeasureError::WrongData((*name).to_owned()));
        }
        for comparison in compare(&found) {
            let mut row = Row::new().with("function", *signature).with("size_bytes", size);
            row.set_latency(&comparison.subject_latency)
                .set("p50_ns", rounded(comparison.subject_p50_ns))
                .set("raw_p50_ns", rounded(comparison.floor_p50_ns))
                .set("overhead_ns", rounded(comparison.latency_difference_ns));
            comparison.set_common(&mut row);
            findings.rows.push(row);
        }
    }
    progress.finish_and_clear();
    Ok(findings)
}

/// The raw side.
struct RawCaller {
    client: Client<ShmFabric>,
    subject: u8,
    request: Vec<u8>,
    sequence: u64,
    wrong: u64,
}

impl RawCaller {
    fn connect(session: &mut Session, config: &ClientConfig, size: usize) -> Result<Self, MeasureError> {
        let served = session.serve(ServiceKind::Bytes, Drive::Busy)?;
        let client = session.connect(&served, config)?;
        let mut caller =
            RawCaller { client, subject: served.index, request: vec![0; size], sequence: 0, wrong: 0 };
        session.while_serving(&served, |_, _| {
            (0..WARM_UP).try_for_each(|_| caller.call().map_err(MeasureError::from))
        })?;
        Ok(caller)
    }

    #[inline]
    fn call(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        stamp(&mut self.request, self.sequence);
        let answer = self.client.call(ECHO, &self.request)?;
        self.wrong |= difference(&answer, self.request.len(), self.sequence);
        Ok(())
    }

    fn slice(&mut self, pair: &mut FloorPair) -> Result<Slice, FloorError> {
        let (slice, _) = pair.subject_slice(self.subject, &[], |pair| {
            pair.time_subject(SLICE, |_| self.call().map_err(|error| error.to_string()))
        })?;
        Ok(slice)
    }
}

/// The typed side.
struct Caller {
    client: TypedClient<ShmFabric>,
    subject: u8,
    request: Vec<u8>,
    text: String,
    sequence: u64,
    wrong: u64,
}

impl Caller {
    fn connect(session: &mut Session, served: &Served, size: usize) -> Result<Self, MeasureError> {
        let client = session.while_serving(served, |fabric, address| {
            TypedClient::connect_with(fabric, address, ClientOptions::default()).map_err(|source| {
                MeasureError::ConnectTyped { protocol: "the selected plan".to_owned(), source }
            })
        })?;
        let (request, text) = (vec![0; size], "x".repeat(size));
        Ok(Caller { client, subject: served.index, request, text, sequence: 0, wrong: 0 })
    }

    #[inline]
    fn call(&mut self, call: CallOf) -> Result<(), String> {
        self.sequence += 1;
        self.wrong |= call(self)?;
        Ok(())
    }

    fn slice(&mut self, pair: &mut FloorPair, call: CallOf) -> Result<Slice, FloorError> {
        let (slice, _) =
            pair.subject_slice(self.subject, &[], |pair| pair.time_subject(SLICE, |_| self.call(call)))?;
        Ok(slice)
    }

    fn echo(&mut self) -> Result<u64, String> {
        stamp(&mut self.request, self.sequence);
        let answer = self.client.echo(&self.request).map_err(text)?;
        Ok(difference(&answer, self.request.len(), self.sequence))
    }

    fn look(&mut self) -> Result<u64, String> {
        stamp(&mut self.request, self.sequence);
        let answer = self.client.look(&self.request).map_err(text)?;
        Ok(difference(&answer, self.request.len(), self.sequence))
    }

    fn say(&mut self) -> Result<u64, String> {
        let answer = self.client.say(&self.text).map_err(text)?;
        Ok(u64::from(*answer != *self.text))
    }

    fn sum(&mut self) -> Result<u64, String> {
        let [a, b, c, d] = [1, 2, 3, 4].map(|factor| self.sequence as i64 * factor);
        let answer = self.client.sum(a, b, c, d).map_err(text)?;
        Ok((answer ^ (self.sequence as i64 * 10)) as u64)
    }

    fn turn(&mut self) -> Result<u64, String> {
        let [x, y, z, w] = [1, 2, 3, 4].map(|factor| self.sequence as i64 * factor);
        let answer = self.client.turn(&Point { x, y, z, w }).map_err(text)?;
        Ok(u64::from(answer != Point { x, y, z, w }))
    }
}

#[cold]
fn text(error: impl Display) -> String {
    error.to_string()
}
