//! `fetch_or_write`: results are fetched while that is cheaper, and written back otherwise (RF-RPC section
//! 3.2).
//!
//! Such a lane has two answer paths with separate rings and tags: the server publishes one ring and the
//! client READs it (`path/half/fetch.rs`); the server WRITEs the other ring into the client's memory.
//! [`Flags::MODE`] in each request selects the path, so calls of different functions can use different paths
//! at once. The head in a request's header belongs to the ring that the flag selects.
//!
//! A client whose READs have failed too often changes the path of calls in flight. It WRITEs the number of
//! requests sent so far to its *mode word* in the server's memory; from then on the server writes back the
//! answers to all of these. The word and an answer may cross. So the server reads the word again after it has
//! published an answer, and if the word covers the call, it writes the answer back too; the client posts one
//! more READ after its WRITE, and the NIC keeps their order. At least one side sees the other's action. If
//! both do, the client drops the second answer.
//!
//! A hostile client may write any value to its mode word. The word only decides which of the client's own
//! rings its own answers go to.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. As those of `fetch`, while
//! results are fetched.
//!
//! ```text
//! RF-RPC, client: posted_write 1040, posted_read 1024, posted_signaled 1040, posted_inline 1040, doorbells 2064,
//!   bytes_posted 326272, completed_write 16, completed_read 1024
//! RF-RPC, server: nothing
//! RF-RPC, 8 KiB, client: posted_write 2064, posted_read 2048, posted_signaled 2080, posted_inline 2064, doorbells
//!   4112, bytes_posted 8780416, completed_write 32, completed_read 2048
//! RF-RPC, 8 KiB, server: posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608,
//!   completed_read 1024
//! ```

use super::protocol::Protocol;
use super::{
    Ends, Facts, Half, Made, MakeError, Mechanism, Notice, Place, RequestHalf, ResponseHalf, RxHalf, TxHalf,
    fetch, ring,
};
use crate::path::awaited::Awaited;
use crate::path::call_id::{SLOT_BITS, split_call};
use crate::path::half::fetch::Fetcher;
use crate::path::{CONTROL_BYTES, Cx, Rx, Tx, TxError, Violation};
use crate::tune::mode::{FUNCTIONS, ModeSwitch};
use crate::tune::response_mode::ResponseMode;
use crate::tune::response_modes::ResponseModes;
use crate::tune::shared::FetchTuner;
use crate::tune::wait::EARLY;
use dunlin_fabric::{Fabric, Host, Nanos, RatesSource, Region};
use dunlin_wire::{Flags, Header, Kind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Results are fetched, or written as by `write`.
pub(super) struct FetchOrWrite;

impl Half for FetchOrWrite {
    const NAME: &'static str = "fetch_or_write";
    const RESPONSE: u8 = 10;
    const FACTS: Facts = Facts::reliable(Place::Either, Notice::Polled);
    const WRITTEN_BACK: Option<ResponseHalf> = Some(ResponseHalf::Write);
}

/// Results are fetched, or written as by `write_imm`.
pub(super) struct FetchOrWriteImm;

impl Half for FetchOrWriteImm {
    const NAME: &'static str = "fetch_or_write_imm";
    const RESPONSE: u8 = 11;
    const FACTS: Facts = Facts::reliable(Place::Either, Notice::Immediate);
    const WRITTEN_BACK: Option<ResponseHalf> = Some(ResponseHalf::WriteImm);
}

/// The mechanism: results that are written go the way of a ring.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[Protocol::row(
        "RF-RPC",
        (RequestHalf::Write, ResponseHalf::FetchOrWrite),
        "RF-RPC: the client READs its result, or has it written back where that takes too long",
    )];

    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        ring::Carrier::sender(facts, ends)
    }

    fn fetched_sender<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<TxHalf<F>>, MakeError> {
        fetch::publisher(0, ends).map(Some)
    }

    fn fetched_receiver<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<RxHalf<F>>, MakeError> {
        fetch::fetcher(0, ends).map(Some)
    }
}

/// Offset of the mode word in the server's control line; the head of the published ring follows it.
pub(crate) const MODE_WORD: usize = 8;
pub(crate) const PUBLISHED_HEAD: usize = 16;
const _: () = assert!(PUBLISHED_HEAD + 8 <= CONTROL_BYTES);

/// One of this many calls is timed: of the fetched ones, and of those written back.
const TIMED_FETCHED: u32 = 8;
const TIMED_WRITTEN: u32 = 4;
/// After this many consecutive timed calls that were written back, only one of `TIMED_WRITTEN_LONG` calls is
/// timed: two clock reads take about a tenth of a short call.
const WRITTEN_FOR_LONG: u32 = 256;
const TIMED_WRITTEN_LONG: u32 = 32;
const _: () = assert!(
    TIMED_FETCHED.is_power_of_two()
        && TIMED_WRITTEN.is_power_of_two()
        && TIMED_WRITTEN_LONG.is_power_of_two()
);
/// The first messages of a lane are all timed, so that its client soon has samples to choose from.
const TIMED_FIRST: u64 = 64;

/// A call is handed to the server after `RESCUE * R` failed READs, whatever other calls did.
const RESCUE: u32 = 4;

/// The client's part: the calls to fetch, and the choice between the paths.
#[derive(Debug)]
pub(crate) struct Hybrid<F: Fabric> {
    /// The fetching end.
    pub(crate) rx: Rx<F>,
    /// The calls sent, and those of them whose results are to be fetched.
    awaited: Awaited,
    /// Results to be fetched, without those of the open batch.
    outstanding: u32,
    /// Failed READs still to come until no response can be left that was published before the mode word
    /// arrived.
    last_looks: u8,
    /// Failed READs since the last result.
    missed: u32,
    /// R failed READs were counted for the current call: once for each call, even if R has decreased since.
    struck: bool,
    /// Failed READs at the last count.
    misses_before: u64,
    /// The open batch asks for results that are written back.
    batch_is_written: bool,
    modes: ModeSwitch,
    /// Shared with the other lanes of the client.
    tuner: Arc<FetchTuner>,
    /// The first call of the open batch.
    batch_first: u32,
    /// Function of the last timed answer, and the calls of its message.
    timed_last: (u16, u16),
    /// Calls that were handed to the server while the client fetched them.
    rescued: u64,
    /// Results that were fetched, and results that were written back.
    fetched: u64,
    written: u64,
    /// Second answers to calls that already had one.
    doubled: u64,
}

/// The state of a lane whose results are fetched or written back: the client's choices and their counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// R: failed READs that a call tolerates (RF-RPC section 3.2); 0 if results are better written back at
    /// once. Applies to the function and kind of message (one call or several) that this lane sampled last.
    pub retries: u32,
    /// F: bytes of a READ, for the same function and kind of message.
    pub fetch_bytes: u32,
    /// R and F of the functions that were called, in the order of their ids modulo 32; all lanes of the
    /// client choose them together.
    pub functions: Vec<FunctionTuning>,
    /// N: the largest useful R on this fabric.
    pub retries_at_most: u32,
    /// L and H: the bounds of F, in bytes.
    pub fetch_bytes_between: (u32, u32),
    /// Functions whose results are written back now, as remainders modulo 32. Functions with equal remainders
    /// share a mode.
    pub written_back: Vec<u16>,
    /// Results so far: fetched, and written back. If the rates rule out fetching, the second number counts
    /// the messages that asked for results.
    pub results: (u64, u64),
    /// READs so far, and how many of them found nothing.
    pub reads: (u64, u64),
    /// Mode changes so far: from fetching to writing back, and in the other direction.
    pub changes: (u64, u64),
    /// Calls that the server was asked to write back while the client fetched them.
    pub rescued: u64,
    /// Calls that were answered on both paths, because the client changed the path while the answer was in
    /// flight.
    pub doubled: u64,
    /// Changes of R or F, summed over all functions.
    pub retuned: u64,
    /// The source of the rates on which the choices rest.
    pub table: RatesSource,
}

/// R and F of the functions with one remainder modulo 32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionTuning {
    /// The remainder.
    pub function: u16,
    /// The names of the functions with this remainder, filled in by typed clients; empty for functions called
    /// by number.
    pub names: Vec<String>,
    /// R for calls that travel alone; 0 if their results are better written back at once.
    pub retries: u32,
    /// F for calls that travel alone, in bytes.
    pub fetch_bytes: u32,
    /// F for batches, in bytes, except for batch sizes that have a known F of their own.
    pub batch_fetch_bytes: u32,
    /// Delay from a request to the first READ of its result, in nanoseconds
    /// ([`FirstRead`](crate::FirstRead)); 0 means no delay.
    pub first_read_after: u32,
    /// The path that the server asks for ([`FetchChoice::Tuned`](crate::FetchChoice::Tuned)).
    pub mode: ResponseMode,
    /// Changes of R or F so far.
    pub changes: u32,
}

impl Tuning {
    /// Builds the tuning, with the R and F of messages with `calls` calls of `function`.
    fn of(tuner: &FetchTuner, (function, calls): (u16, u16)) -> Self {
        let (table, choice) = (tuner.table(), tuner.choice(function, calls));
        let of = |function| {
            let choice = tuner.choice(function, 1);
            FunctionTuning {
                function,
                names: Vec::new(),
                retries: choice.retries,
                fetch_bytes: choice.bytes,
                batch_fetch_bytes: tuner.choice(function, 0).bytes,
                first_read_after: tuner.wait(function, false),
                mode: tuner.mode(function),
                changes: tuner.changes(function),
            }
        };
        let used = (0..FUNCTIONS as u16).filter(|function| tuner.is_used(*function));
        Tuning {
            retries: choice.retries,
            fetch_bytes: choice.bytes,
            retries_at_most: table.reads_at_most(),
            fetch_bytes_between: (table.low(), table.high()),
            retuned: (0..FUNCTIONS as u16).map(|function| u64::from(tuner.changes(function))).sum(),
            functions: used.map(of).collect(),
            written_back: Vec::new(),
            results: (0, 0),
            reads: (0, 0),
            changes: (0, 0),
            rescued: 0,
            doubled: 0,
            table: table.source().clone(),
        }
    }

    /// Builds the tuning of a lane whose results are all written back because the rates rule out fetching.
    pub(crate) fn written_by_rates(tuner: &FetchTuner, messages: u64) -> Self {
        let written_back = (0..FUNCTIONS as u16).collect();
        Tuning { written_back, results: (0, messages), ..Tuning::of(tuner, (0, 1)) }
    }
}

/// The client's decision after failed READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Continue to READ.
    Left,
    /// Ask the server to write back all results.
    Over,
}

impl<F: Fabric> Hybrid<F> {
    /// Creates the client's part; `rx` is the fetching end.
    pub(crate) fn new(rx: Rx<F>, window: u16, tuner: Arc<FetchTuner>) -> Self {
        Hybrid {
            rx,
            batch_first: 0,
            awaited: Awaited::new(window),
            outstanding: 0,
            last_looks: 0,
            missed: 0,
            struck: false,
            misses_before: 0,
            batch_is_written: false,
            modes: ModeSwitch::new(),
            tuner,
            timed_last: (0, 1),
            rescued: 0,
            fetched: 0,
            written: 0,
            doubled: 0,
        }
    }

    /// Returns the current choices and counters.
    pub(crate) fn tuning(&self) -> Tuning {
        let written_back = (0..FUNCTIONS as u16)
            .filter(|function| self.modes.replies(*function) || self.tuner.is_used(*function))
            .filter(|function| self.is_written(*function, 1))
            .collect();
        Tuning {
            written_back,
            results: (self.fetched, self.written),
            reads: self.rx.reads(),
            changes: self.modes.changes(),
            rescued: self.rescued,
            doubled: self.doubled,
            ..Tuning::of(&self.tuner, self.timed_last)
        }
    }

    /// Returns whether results of `function` in messages of `calls` calls (0 for several) are written back.
    /// Failed READs, the server's request, or the rates decide.
    #[inline]
    fn is_written(&self, function: u16, calls: u16) -> bool {
        match self.tuner.mode(function) {
            ResponseMode::ClientChoice => {
                self.modes.replies(function) || self.tuner.is_written(function, calls)
            }
            ResponseMode::WriteBack => true,
            ResponseMode::FetchWhole | ResponseMode::FetchMoreRetries => false,
        }
    }

    /// Records the path that an answer asks for, as a [`ResponseMode`]'s number.
    #[inline]
    pub(crate) fn asked_for(&self, call: u32, mode: u8) {
        self.tuner.ask(self.awaited.function(split_call(call).0), mode);
    }

    /// Returns the flags and the head of a request for this function.
    #[inline]
    pub(crate) fn ask(&self, function: u16, written_head: u32) -> (Flags, u32) {
        match self.is_written(function, 1) {
            true => (Flags::MODE, written_head),
            false => (Flags::NONE, self.rx.head()),
        }
    }

    /// Records a request that was sent alone, with flags from [`ask`](Hybrid::ask).
    #[inline]
    pub(crate) fn sent(&mut self, call: u32, function: u16, flags: Flags, now: impl FnOnce() -> Nanos) {
        let fetched = !flags.contains(Flags::MODE);
        self.awaited.note(split_call(call).0, function, fetched);
        self.outstanding += u32::from(fetched);
        self.began(call, function, fetched, now);
    }

    /// Records the time of a message whose first call is `call`. Reads the clock only if the function's first
    /// READ is delayed.
    #[inline]
    fn began(&mut self, call: u32, function: u16, fetched: bool, now: impl FnOnce() -> Nanos) {
        if fetched && self.tuner.wait(function, false) > 0 {
            let (slot, generation) = split_call(call);
            self.awaited.sent_at(slot, now().max(1), generation.is_multiple_of(EARLY));
        }
    }

    /// Returns the time of the next READ; 0 for at once.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        if self.missed > 0 || self.last_looks > 0 {
            return 0;
        }
        let Some(oldest) = self.awaited.first() else { return 0 };
        match self.awaited.since(oldest) {
            0 => 0,
            since => since.saturating_add(
                self.tuner.wait(self.awaited.function(oldest), self.awaited.is_early(oldest)).into(),
            ),
        }
    }

    /// Returns whether the next READ may be posted. Reads the clock only if there is a time to wait for.
    #[inline]
    pub(crate) fn is_due(&self, now: impl FnOnce() -> Nanos) -> bool {
        let due = self.due();
        due == 0 || now() >= due
    }

    /// Returns whether a call of this function fits the open batch of `count` calls: all results of a message
    /// take the same path.
    #[inline]
    pub(crate) fn fits_batch(&self, function: u16, count: usize) -> bool {
        count == 0 || self.is_written(function, 0) == self.batch_is_written
    }

    /// Records a call in the open batch; `first` if it is the first one.
    #[inline]
    pub(crate) fn batched(&mut self, call: u32, function: u16, first: bool) {
        if first {
            (self.batch_is_written, self.batch_first) = (self.is_written(function, 0), call);
        }
        let slot = split_call(call).0;
        self.awaited.note(slot, function, !self.batch_is_written);
        if !first {
            self.awaited.together(slot, 0);
        }
    }

    /// Returns the flags and the head of the open batch.
    #[inline]
    pub(crate) fn ask_batch(&self, written_head: u32) -> (Flags, u32) {
        match self.batch_is_written {
            true => (Flags::MODE, written_head),
            false => (Flags::NONE, self.rx.head()),
        }
    }

    /// Records that the open batch of `count` calls was sent.
    #[inline]
    pub(crate) fn sent_batch(&mut self, count: usize, now: impl FnOnce() -> Nanos) {
        let (first, fetched) = (self.batch_first, !self.batch_is_written);
        if count > 1 {
            self.awaited.together(split_call(first).0, u16::try_from(count).unwrap_or(0));
        }
        if fetched {
            self.outstanding += count as u32;
        }
        self.began(first, self.awaited.function(split_call(first).0), fetched, now);
    }

    /// Returns the function and message size of the oldest awaited call, whose result is most likely the
    /// next.
    #[inline]
    fn oldest(&self) -> (u16, u16) {
        let of = |slot| (self.awaited.function(slot), self.awaited.calls(slot));
        self.awaited.first().map_or((0, 1), of)
    }

    /// Returns whether a result may be there to fetch.
    #[inline]
    pub(crate) fn is_fetching(&self) -> bool {
        self.outstanding > 0 || self.last_looks > 0
    }

    /// Counts the first answer of a call.
    #[inline]
    pub(crate) fn answered(&mut self, call: u32) {
        let slot = split_call(call).0;
        if !self.awaited.take(slot) {
            self.written += 1;
            return;
        }
        let function = self.awaited.function(slot);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.fetched += 1;
        self.struck = false;
        if std::mem::take(&mut self.missed) < self.tuner.choice(function, self.awaited.calls(slot)).retries {
            self.modes.fetched(function);
        }
    }

    /// Counts a second answer of a call.
    pub(crate) fn answered_again(&mut self) {
        self.doubled += 1;
    }

    /// Takes the server's time for the message of this call: `process` nanoseconds, for an answer of `bytes`
    /// bytes.
    pub(crate) fn timed(&mut self, call: u32, process: u32, bytes: usize) {
        let slot = split_call(call).0;
        let (function, calls) = (self.awaited.function(slot), self.awaited.calls(slot));
        self.timed_last = (function, calls);
        self.modes.replied(function, process < self.tuner.choice(function, calls).patience);
        self.tuner.sample(function, calls, process, bytes as u32, !self.is_written(function, calls));
    }

    /// Records that a READ has found a message.
    #[inline]
    pub(crate) fn hit(&mut self) {
        let early = self.awaited.first().is_some_and(|slot| self.awaited.is_early(slot));
        self.tuner.found(self.oldest().0, self.missed, early);
        // If a mode word was posted, the next READ is posted after it.
        self.last_looks = self.last_looks.min(1);
    }

    /// Counts new failed READs; called after each poll of the fetching end.
    #[inline]
    pub(crate) fn missed(&mut self) -> Patience {
        let misses = self.rx.fetcher().map_or(0, |fetcher| fetcher.misses);
        let new = (misses - std::mem::replace(&mut self.misses_before, misses)) as u32;
        if new == 0 {
            return Patience::Left;
        }
        self.last_looks = self.last_looks.saturating_sub(1);
        if self.outstanding == 0 {
            return Patience::Left;
        }
        self.missed = self.missed.saturating_add(new);
        let (function, calls) = self.oldest();
        let retries = self.tuner.choice(function, calls).retries;
        let strikes = is_past(self.missed, retries, &mut self.struck);
        let struck =
            strikes && self.tuner.mode(function) == ResponseMode::ClientChoice && self.modes.strike(function);
        if struck || self.missed >= RESCUE * retries { Patience::Over } else { Patience::Left }
    }

    /// Records that the mode word was posted: results of all sent requests are written back.
    pub(crate) fn given_over(&mut self) {
        // Later READs are not older than the server's view of the word.
        fence(Ordering::SeqCst);
        let under_way = self.rx.fetcher().is_some_and(|fetcher| fetcher.is_busy());
        self.last_looks = 1 + u8::from(under_way);
        self.rescued += u64::from(self.outstanding);
        (self.outstanding, self.missed, self.struck) = (0, 0, false);
        self.awaited.clear();
        self.batch_is_written = true;
    }

    /// Returns the fetching end.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        self.rx.fetcher()
    }

    /// Returns the fetching end with F set for the next READ.
    #[inline]
    pub(crate) fn fetcher_for_next(&mut self) -> Option<&mut Fetcher<F>> {
        let (function, calls) = self.oldest();
        let bytes = self.tuner.choice(function, calls).bytes as usize;
        let fetcher = self.rx.fetcher()?;
        fetcher.set_fetch_bytes(bytes);
        Some(fetcher)
    }
}

/// Returns whether a call reaches R failed READs now; `struck` records that it did. R may change while the
/// call is fetched.
#[inline]
fn is_past(missed: u32, retries: u32, struck: &mut bool) -> bool {
    let past = retries > 0 && missed >= retries && !*struck;
    *struck |= past;
    past
}

/// The client's wishes for a call. Compact: for most calls that are written back it is one word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// From the high bits: the message's sequence number (from [`Asked::SEQUENCE`]), [`Asked::TIMED`],
    /// [`Asked::WRITTEN`], the function.
    what: u64,
    /// Arrival time in nanoseconds, if the call is timed.
    since: Nanos,
}

impl Asked {
    const FUNCTION: u64 = 0xFFFF;
    /// The result is to be written back.
    const WRITTEN: u64 = 1 << 16;
    /// The call is timed.
    const TIMED: u64 = 1 << 17;
    const SEQUENCE: u32 = 18;

    fn function(self) -> u16 {
        (self.what & Self::FUNCTION) as u16
    }

    fn is_written(self) -> bool {
        self.what & Self::WRITTEN != 0
    }

    fn is_timed(self) -> bool {
        self.what & Self::TIMED != 0
    }

    fn sequence(self) -> u64 {
        self.what >> Self::SEQUENCE
    }
}

/// The server's part: the published ring, and the wishes for each call.
#[derive(Debug)]
pub(crate) struct Published<F: Fabric> {
    pub(crate) tx: Tx<F>,
    /// The server's inbound region, which holds the mode word.
    control: Region<F::Memory>,
    asked: Box<[Asked]>,
    current: Asked,
    /// Consecutive timed requests whose results are to be written back.
    written: u32,
    /// Sampling mask for requests that are written back: one in `mask + 1` is timed.
    timed_written: u32,
    /// The paths that this server asks clients for, and the number of this worker.
    modes: Arc<ResponseModes>,
    worker: u16,
}

impl<F: Fabric> Published<F> {
    pub(crate) fn new(
        tx: Tx<F>,
        control: Region<F::Memory>,
        window: u16,
        (modes, worker): (Arc<ResponseModes>, u16),
    ) -> Self {
        let asked = vec![Asked::default(); window as usize].into();
        Published {
            tx,
            control,
            asked,
            current: Asked::default(),
            written: 0,
            timed_written: TIMED_WRITTEN - 1,
            modes,
            worker,
        }
    }

    /// Returns the bytes of the ring and the tables.
    pub(crate) fn opened_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.asked) + self.tx.published_bytes()
    }

    /// Takes the header of a request; `next` is the sequence number after it. The header's head belongs to
    /// the ring that its flags select.
    #[inline]
    pub(crate) fn on_request(&mut self, fabric: &F, header: &Header, next: u64) {
        let written = header.flags.contains(Flags::MODE);
        let alone = header.kind == Kind::Request;
        // Single requests are sampled by the call's generation, so that a client with one call at a time is
        // sampled evenly. Fetched batches are all timed.
        let number = if alone { (header.call >> SLOT_BITS).into() } else { next };
        let others = match written {
            true => self.timed_written,
            false if alone => TIMED_FETCHED - 1,
            false => 0,
        };
        self.current.what =
            next.wrapping_sub(1) << Asked::SEQUENCE | if written { Asked::WRITTEN } else { 0 };
        if next <= TIMED_FIRST || number & u64::from(others) == 0 {
            self.current.what |= Asked::TIMED;
            self.timed(fabric, written);
        }
    }

    /// Records the arrival time of a timed request.
    #[inline(never)]
    fn timed(&mut self, fabric: &F, written: bool) {
        self.current.since = fabric.host().now().max(1);
        self.modes.look(self.current.since);
        self.written = if written { self.written.saturating_add(1) } else { 0 };
        self.timed_written =
            if self.written < WRITTEN_FOR_LONG { TIMED_WRITTEN } else { TIMED_WRITTEN_LONG } - 1;
    }

    /// Returns the wishes of the message that is being served.
    #[inline]
    pub(crate) fn current(&self) -> Asked {
        self.current
    }

    /// Records that the current message contains this call.
    #[inline]
    pub(crate) fn admit(&mut self, call: u32, function: u16) {
        self.current.what = self.current.what & !Asked::FUNCTION | u64::from(function);
        self.modes.taken(self.worker, function);
        if let Some(asked) = self.asked.get_mut(split_call(call).0) {
            asked.what = self.current.what;
            if asked.is_timed() {
                asked.since = self.current.since;
            }
        }
    }

    /// Returns the wishes of a call.
    #[inline]
    pub(crate) fn asked(&self, call: u32) -> Asked {
        self.asked.get(split_call(call).0).copied().unwrap_or_default()
    }

    /// Returns the number of the [`ResponseMode`] that the answer asks for.
    #[inline]
    pub(crate) fn mode(&self, asked: Asked) -> u8 {
        self.modes.asked(asked.function())
    }

    /// Returns whether the answer is to be published.
    #[inline]
    pub(crate) fn wants(&self, asked: Asked) -> bool {
        !asked.is_written() && !self.is_covered(asked)
    }

    #[inline]
    fn is_covered(&self, asked: Asked) -> bool {
        asked.sequence() < self.control.load(MODE_WORD)
    }

    /// Publishes an answer. Returns whether it has to be written back as well.
    #[inline(never)]
    pub(crate) fn publish(
        &mut self,
        cx: &mut Cx<'_, F>,
        header: &Header,
        payload: &[u8],
        asked: Asked,
    ) -> Result<bool, TxError> {
        self.tx.single(cx, header, payload)?;
        Ok(!self.wants(asked) || self.has_changed(asked))
    }

    /// Returns whether an answer that was just published has to be written back as well, since the client may
    /// have posted its last READ.
    #[inline]
    pub(crate) fn has_changed(&self, asked: Asked) -> bool {
        // The published answer is visible before the word is read.
        fence(Ordering::SeqCst);
        self.is_covered(asked)
    }

    /// Returns the nanoseconds that the call took, for the answer's header; 0 if the call is not timed.
    #[inline]
    pub(crate) fn time(&self, fabric: &F, asked: Asked) -> u32 {
        if !asked.is_timed() {
            return 0;
        }
        u32::try_from(fabric.host().now().saturating_sub(asked.since)).unwrap_or(u32::MAX).max(1)
    }

    /// Takes a head of the published ring.
    #[inline]
    pub(crate) fn on_head(&mut self, head: u32) -> Result<(), Violation> {
        self.tx.end.on_head(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reported tuning is the one in use: the path that the server asks for, and the delay of the first
    /// READ.
    #[test]
    fn what_is_chosen_is_told() {
        use crate::tune::{shared::FetchChoice, table::FetchTable, wait::FirstRead};
        for (first_read, waits) in [(FirstRead::WhenExpected, true), (FirstRead::AtOnce, false)] {
            let tuner = FetchTuner::new(Arc::new(FetchTable::rf_rpc()), FetchChoice::Tuned, first_read);
            (0..100).for_each(|_| tuner.sample(3, 1, 5_000, 300, true));
            tuner.ask(3, ResponseMode::FetchWhole.number());
            let tuning = Tuning::of(&tuner, (3, 1));
            // Only the function that was called.
            let [three] = &tuning.functions[..] else { panic!("{tuning:?}") };
            assert_eq!(three.function, 3);
            assert_eq!(
                (three.mode, three.fetch_bytes, three.first_read_after >= 5_000),
                (ResponseMode::FetchWhole, 320, waits)
            );
        }
    }

    #[test]
    fn a_call_is_past_r_once_also_if_r_becomes_less() {
        let mut struck = false;
        let past = |(missed, retries), struck: &mut bool| is_past(missed, retries, struck);
        let story = [(1, 5), (4, 5), (5, 5), (6, 5), (6, 3)];
        assert_eq!(story.map(|step| past(step, &mut struck)), [false, false, true, false, false]);
        struck = false;
        // R drops from five to three after four READs have failed.
        let story = [(3, 5), (4, 3), (5, 3), (5, 5)];
        assert_eq!(story.map(|step| past(step, &mut struck)), [false, true, false, false]);
        struck = false;
        assert!(!past((1, 0), &mut struck) && !struck, "who is better written back has no R to get past");
    }
}
