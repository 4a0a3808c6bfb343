//! `fetch_or_write`: results are fetched while that is the cheaper way, and written back otherwise (RF-RPC section 3.2).
//!
//! Such a lane has two ways for answers, with rings and tags of their own: one that the server publishes and the client READs
//! (`path/fetch.rs`), and one that the server WRITEs into the client's ring. Each request says by [`Flags::MODE`] which it wants,
//! so calls of different functions go either way at once. What the header says of the head is of the ring that the flag names.
//!
//! A client that has READ in vain for too long changes its mind while the call is under way: it WRITEs into its *mode word* in the
//! server's memory how many requests it has sent, and the answers to all of these are written back from then on. An answer and
//! that word may cross. So the server looks at the word once more after it has published an answer, and if it covers the call
//! writes the answer too; the client READs once more behind its WRITE, which the NIC keeps in order. One of both sees what the other
//! did, perhaps both, and then the client drops the second answer.
//!
//! The word is the client's to write, and so anything: it decides only which of its own rings the client's own answers go to.

use super::{CONTROL_BYTES, Rx, Tx, TxError, Violation};
use crate::path::awaited::Awaited;
use crate::path::call_id::{SLOT_BITS, split_call};
use crate::path::fetch::Fetcher;
use crate::server::ways::Ways;
use crate::tune::mode::{FUNCTIONS, ModeSwitch};
use crate::tune::shared::FetchTuner;
use crate::tune::wait::EARLY;
use crate::tune::way::Way;
use dunlin_fabric::{Fabric, Host, Nanos, RatesSource, Region};
use dunlin_wire::{Flags, Header, Kind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Where the mode word stands in the server's control line, and behind it the head of the published ring.
pub(crate) const MODE_WORD: usize = 8;
pub(crate) const PUBLISHED_HEAD: usize = 16;
const _: () = assert!(PUBLISHED_HEAD + 8 <= CONTROL_BYTES);

/// One call of so many has its time taken where it is fetched, and where it is written back.
const TIMED_FETCHED: u32 = 8;
const TIMED_WRITTEN: u32 = 4;
/// So many in a row that were timed and written back are few enough to ask for more; then one of so many has its time taken: two looks at the
/// clock are a tenth of a quick call.
const WRITTEN_FOR_LONG: u32 = 256;
const TIMED_WRITTEN_LONG: u32 = 32;
const _: () = assert!(
    TIMED_FETCHED.is_power_of_two()
        && TIMED_WRITTEN.is_power_of_two()
        && TIMED_WRITTEN_LONG.is_power_of_two()
);
/// The first messages of a lane all have their time taken, so that its client soon has something to choose from.
const TIMED_FIRST: u64 = 64;

/// READs may fail so many times as often as R says until a single call is given over to the server, whatever others did.
const RESCUE: u32 = 4;

/// The client's part: what is fetched, and the choices.
#[derive(Debug)]
pub(crate) struct Hybrid<F: Fabric> {
    /// The fetching end.
    pub(crate) rx: Rx<F>,
    /// What was sent, and what of it is to be fetched.
    awaited: Awaited,
    /// Results to be fetched, those of the open batch not counted.
    outstanding: u32,
    /// READs that have still to come back in vain until nothing can be there that was published before the mode word arrived.
    last_looks: u8,
    /// READs in vain since the last result.
    missed: u32,
    /// R of these have failed, and that was counted: once for each call, also where R has become less meanwhile.
    struck: bool,
    /// READs in vain so far, when they were counted last.
    misses_before: u64,
    /// The open batch asks for answers that are written back.
    batch_is_written: bool,
    modes: ModeSwitch,
    /// Shared with the other lanes of the client.
    tuner: Arc<FetchTuner>,
    /// The first call of the open batch.
    batch_first: u32,
    /// The function of the last answer that had its time taken, and the calls of its message.
    timed_last: (u16, u16),
    /// Calls that were given over to the server while they were fetched.
    rescued: u64,
    /// Results that were fetched, and written back.
    fetched: u64,
    written: u64,
    /// Answers to calls that had one.
    doubled: u64,
}

/// What a client has chosen for a lane whose results are fetched or written back.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// R: READs that may fail for a call (RF-RPC section 3.2), 0 if results are better written back at once; of the function and the kind of message, one call or several, that was sampled last on this lane.
    pub retries: u32,
    /// F: bytes that a READ brings, of the same.
    pub fetch_bytes: u32,
    /// R and F of every function, by its remainder by 32: what all lanes of the client have chosen together.
    pub functions: Vec<FunctionTuning>,
    /// N, the largest R that makes sense on this fabric.
    pub retries_at_most: u32,
    /// L and H, between which F is chosen, in bytes.
    pub fetch_bytes_between: (u32, u32),
    /// Functions whose results are written back now. Functions with equal remainders by 32 share a mode and stand here once, as the
    /// remainder.
    pub written_back: Vec<u16>,
    /// Results so far that were fetched, and that were written back; where the rates rule fetching out, the messages that asked for them.
    pub results: (u64, u64),
    /// READs so far, and those of them that found nothing.
    pub reads: (u64, u64),
    /// How often a function has changed to being written back, and back to being fetched.
    pub changes: (u64, u64),
    /// Calls that the server was asked to write back while they were being fetched.
    pub rescued: u64,
    /// Calls that were answered both ways, because the client changed its mind while the answer was on its way.
    pub doubled: u64,
    /// How often R or F of some function has changed.
    pub retuned: u64,
    /// Where the rates come from that this is chosen by.
    pub table: RatesSource,
}

/// R and F of a function, and of all that have the same remainder by 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionTuning {
    /// The remainder.
    pub function: u16,
    /// R of calls that travel by themselves; 0 if they are better written back at once.
    pub retries: u32,
    /// F of those, in bytes.
    pub fetch_bytes: u32,
    /// F where several calls travel together, in bytes, but for those sizes that are known to fit into another.
    pub batch_fetch_bytes: u32,
    /// How long after a request the first READ for its result goes out, in nanoseconds ([`FirstRead`](crate::FirstRead)); 0 at once.
    pub first_read_after: u32,
    /// What the server asks for ([`FetchChoice::Tuned`](crate::FetchChoice::Tuned)).
    pub way: Way,
    /// How often R or F have changed.
    pub changes: u32,
}

impl Tuning {
    /// What is chosen, with the R and F of messages of a function and so many calls.
    fn of(tuner: &FetchTuner, (function, calls): (u16, u16)) -> Self {
        let (table, choice) = (tuner.table(), tuner.choice(function, calls));
        let of = |function| {
            let choice = tuner.choice(function, 1);
            FunctionTuning {
                function,
                retries: choice.retries,
                fetch_bytes: choice.bytes,
                batch_fetch_bytes: tuner.choice(function, 0).bytes,
                first_read_after: tuner.wait(function, false),
                way: tuner.way(function),
                changes: tuner.changes(function),
            }
        };
        let functions: Vec<_> = (0..FUNCTIONS as u16).map(of).collect();
        Tuning {
            retries: choice.retries,
            fetch_bytes: choice.bytes,
            retries_at_most: table.reads_at_most(),
            fetch_bytes_between: (table.low(), table.high()),
            retuned: functions.iter().map(|of| u64::from(of.changes)).sum(),
            functions,
            written_back: Vec::new(),
            results: (0, 0),
            reads: (0, 0),
            changes: (0, 0),
            rescued: 0,
            doubled: 0,
            table: table.source().clone(),
        }
    }

    /// Of a lane whose results are all written back, since the rates rule fetching out.
    pub(crate) fn written_by_rates(tuner: &FetchTuner, messages: u64) -> Self {
        let written_back = (0..FUNCTIONS as u16).collect();
        Tuning { written_back, results: (0, messages), ..Tuning::of(tuner, (0, 1)) }
    }
}

/// What READs in vain ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Going on.
    Left,
    /// The server shall write back what it was asked.
    Over,
}

impl<F: Fabric> Hybrid<F> {
    /// `rx` fetches.
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

    /// What is chosen now.
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

    /// Whether results of this function are written back to messages of so many calls, 0 if several: as READs have failed, as the server has
    /// found to be better, or as the rates say.
    #[inline]
    fn is_written(&self, function: u16, calls: u16) -> bool {
        match self.tuner.way(function) {
            Way::Chosen => self.modes.replies(function) || self.tuner.is_written(function, calls),
            Way::Written => true,
            Way::Whole | Way::Patient => false,
        }
    }

    /// The answer to a call asks for a way, by its number.
    #[inline]
    pub(crate) fn asked_for(&self, call: u32, way: u8) {
        self.tuner.ask(self.awaited.function(split_call(call).0), way);
    }

    /// The flags and head of a request for this function.
    #[inline]
    pub(crate) fn ask(&self, function: u16, written_head: u32) -> (Flags, u32) {
        match self.is_written(function, 1) {
            true => (Flags::MODE, written_head),
            false => (Flags::NONE, self.rx.head()),
        }
    }

    /// A request was sent by itself, with flags that [`ask`](Hybrid::ask) gave.
    #[inline]
    pub(crate) fn sent(&mut self, call: u32, function: u16, flags: Flags, now: impl FnOnce() -> Nanos) {
        let fetched = !flags.contains(Flags::MODE);
        self.awaited.note(split_call(call).0, function, fetched);
        self.outstanding += u32::from(fetched);
        self.began(call, function, fetched, now);
    }

    /// A message went out whose first call is this one. The clock is looked at if its time is of interest.
    #[inline]
    fn began(&mut self, call: u32, function: u16, fetched: bool, now: impl FnOnce() -> Nanos) {
        if fetched && self.tuner.wait(function, false) > 0 {
            let (slot, generation) = split_call(call);
            self.awaited.sent_at(slot, now().max(1), generation.is_multiple_of(EARLY));
        }
    }

    /// When the next READ is to be posted; 0 for at once.
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

    /// Whether the next READ may be posted. The clock is looked at only where it could not.
    #[inline]
    pub(crate) fn is_due(&self, now: impl FnOnce() -> Nanos) -> bool {
        let due = self.due();
        due == 0 || now() >= due
    }

    /// Whether a call of this function can go into the open batch, which has `count` calls: all of one message are answered alike.
    #[inline]
    pub(crate) fn fits_batch(&self, function: u16, count: usize) -> bool {
        count == 0 || self.is_written(function, 0) == self.batch_is_written
    }

    /// A call was put into the open batch, as its first or as another.
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

    /// The flags and head of the open batch.
    #[inline]
    pub(crate) fn ask_batch(&self, written_head: u32) -> (Flags, u32) {
        match self.batch_is_written {
            true => (Flags::MODE, written_head),
            false => (Flags::NONE, self.rx.head()),
        }
    }

    /// The open batch of `count` calls was sent.
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

    /// The function whose result is there next, most likely, and the calls of its message.
    #[inline]
    fn oldest(&self) -> (u16, u16) {
        let of = |slot| (self.awaited.function(slot), self.awaited.calls(slot));
        self.awaited.first().map_or((0, 1), of)
    }

    /// Whether something may be there to be fetched.
    #[inline]
    pub(crate) fn is_fetching(&self) -> bool {
        self.outstanding > 0 || self.last_looks > 0
    }

    /// An answer has come for a call, the first one.
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

    /// An answer has come for a call that had one.
    pub(crate) fn answered_again(&mut self) {
        self.doubled += 1;
    }

    /// The server says how long it took for the message of this call: `process` nanoseconds for an answer of so many bytes.
    pub(crate) fn timed(&mut self, call: u32, process: u32, bytes: usize) {
        let slot = split_call(call).0;
        let (function, calls) = (self.awaited.function(slot), self.awaited.calls(slot));
        self.timed_last = (function, calls);
        self.modes.replied(function, process < self.tuner.choice(function, calls).patience);
        self.tuner.sample(function, calls, process, bytes as u32, !self.is_written(function, calls));
    }

    /// Something was fetched.
    #[inline]
    pub(crate) fn hit(&mut self) {
        let early = self.awaited.first().is_some_and(|slot| self.awaited.is_early(slot));
        self.tuner.found(self.oldest().0, self.missed, early);
        // The next READ is posted behind the mode word, if there was one.
        self.last_looks = self.last_looks.min(1);
    }

    /// Counts READs that came back in vain; called after each look at what came back.
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
        let struck = strikes && self.tuner.way(function) == Way::Chosen && self.modes.strike(function);
        if struck || self.missed >= RESCUE * retries { Patience::Over } else { Patience::Left }
    }

    /// The mode word was posted: all that was sent is written back.
    pub(crate) fn given_over(&mut self) {
        // What we READ from now on is not older than what the server sees of the word.
        fence(Ordering::SeqCst);
        let under_way = self.rx.fetcher().is_some_and(|fetcher| fetcher.is_busy());
        self.last_looks = 1 + u8::from(under_way);
        self.rescued += u64::from(self.outstanding);
        (self.outstanding, self.missed, self.struck) = (0, 0, false);
        self.awaited.clear();
        self.batch_is_written = true;
    }

    /// The fetching end.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        self.rx.fetcher()
    }

    /// As [`fetcher`](Hybrid::fetcher), ready for the next READ.
    #[inline]
    pub(crate) fn fetcher_for_next(&mut self) -> Option<&mut Fetcher<F>> {
        let (function, calls) = self.oldest();
        let bytes = self.tuner.choice(function, calls).bytes as usize;
        let fetcher = self.rx.fetcher()?;
        fetcher.set_fetch_bytes(bytes);
        Some(fetcher)
    }
}

/// Whether a call has just got past R, by so many READs in vain; `struck` says that it had before. R may change while it is fetched.
#[inline]
fn is_past(missed: u32, retries: u32, struck: &mut bool) -> bool {
    let past = retries > 0 && missed >= retries && !*struck;
    *struck |= past;
    past
}

/// What a client asked for with a request. In as few words as can be: for most calls that are written back it is one, which is stored
/// and loaded whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// The number of the message above [`Asked::SEQUENCE`], then [`Asked::TIMED`], [`Asked::WRITTEN`], the function.
    what: u64,
    /// When it was taken, if its time is taken.
    since: Nanos,
}

impl Asked {
    const FUNCTION: u64 = 0xFFFF;
    /// It is to be written back.
    const WRITTEN: u64 = 1 << 16;
    /// Its time is taken.
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

/// The server's part: the published ring, and what was asked for.
#[derive(Debug)]
pub(crate) struct Published<F: Fabric> {
    pub(crate) tx: Tx<F>,
    /// Our inbound region with the mode word.
    control: Region<F::Memory>,
    asked: Box<[Asked]>,
    current: Asked,
    /// Requests in a row that were timed and are to be written back.
    written: u32,
    /// Of those that follow one of so many is timed, less 1: a power of two.
    timed_written: u32,
    /// Which way results are asked for, and the worker that is ours.
    ways: Arc<Ways>,
    worker: u16,
}

impl<F: Fabric> Published<F> {
    pub(crate) fn new(
        tx: Tx<F>,
        control: Region<F::Memory>,
        window: u16,
        (ways, worker): (Arc<Ways>, u16),
    ) -> Self {
        let asked = vec![Asked::default(); window as usize].into();
        Published {
            tx,
            control,
            asked,
            current: Asked::default(),
            written: 0,
            timed_written: TIMED_WRITTEN - 1,
            ways,
            worker,
        }
    }

    /// A request was taken, the message before `next`; its head is of the ring that its flags name.
    #[inline]
    pub(crate) fn on_request(&mut self, fabric: &F, header: &Header, next: u64) {
        let written = header.flags.contains(Flags::MODE);
        let alone = header.kind == Kind::Request;
        // By the generation: of a client that makes one call at a time, each such one. Of batches all that are fetched.
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

    /// The time of the request that was taken is of interest.
    #[inline(never)]
    fn timed(&mut self, fabric: &F, written: bool) {
        self.current.since = fabric.host().now().max(1);
        self.ways.look(self.current.since);
        self.written = if written { self.written.saturating_add(1) } else { 0 };
        self.timed_written =
            if self.written < WRITTEN_FOR_LONG { TIMED_WRITTEN } else { TIMED_WRITTEN_LONG } - 1;
    }

    /// What is asked for by the message that is being served.
    #[inline]
    pub(crate) fn current(&self) -> Asked {
        self.current
    }

    /// The message that was taken has this call in it.
    #[inline]
    pub(crate) fn admit(&mut self, call: u32, function: u16) {
        self.current.what = self.current.what & !Asked::FUNCTION | u64::from(function);
        self.ways.taken(self.worker, function);
        if let Some(asked) = self.asked.get_mut(split_call(call).0) {
            asked.what = self.current.what;
            if asked.is_timed() {
                asked.since = self.current.since;
            }
        }
    }

    /// What was asked for with a call.
    #[inline]
    pub(crate) fn asked(&self, call: u32) -> Asked {
        self.asked.get(split_call(call).0).copied().unwrap_or_default()
    }

    /// Which way results are asked for by an answer.
    #[inline]
    pub(crate) fn way(&self, asked: Asked) -> u8 {
        self.ways.asked(asked.function())
    }

    /// Whether the answer is to be published.
    #[inline]
    pub(crate) fn wants(&self, asked: Asked) -> bool {
        !asked.is_written() && !self.is_covered(asked)
    }

    #[inline]
    fn is_covered(&self, asked: Asked) -> bool {
        asked.sequence() < self.control.load(MODE_WORD)
    }

    /// Publishes an answer. Whether it has to be written back, too.
    #[inline(never)]
    pub(crate) fn publish(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        header: &Header,
        payload: &[u8],
        asked: Asked,
    ) -> Result<bool, TxError> {
        self.tx.single(fabric, domain, header, payload)?;
        Ok(!self.wants(asked) || self.has_changed(asked))
    }

    /// After an answer was published: whether it has to be written back too, since the client may have looked for the last time.
    #[inline]
    pub(crate) fn has_changed(&self, asked: Asked) -> bool {
        // What we have published is there before we look at the word.
        fence(Ordering::SeqCst);
        self.is_covered(asked)
    }

    /// What the header of the answer says of the time that it took: nanoseconds, 0 if nobody has taken it.
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
        self.tx.on_head(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client tells is what it goes by: the way that the server has asked for, and the wait until the first READ.
    #[test]
    fn what_is_chosen_is_told() {
        use crate::tune::{shared::FetchChoice, table::FetchTable, wait::FirstRead};
        for (first_read, waits) in [(FirstRead::WhenExpected, true), (FirstRead::AtOnce, false)] {
            let tuner = FetchTuner::new(Arc::new(FetchTable::rf_rpc()), FetchChoice::Tuned, first_read);
            (0..100).for_each(|_| tuner.sample(3, 1, 5_000, 300, true));
            tuner.ask(3, Way::Whole.number());
            let tuning = Tuning::of(&tuner, (3, 1));
            let [three, four] = [3, 4].map(|function: usize| tuning.functions[function]);
            assert_eq!(
                (three.way, three.fetch_bytes, three.first_read_after >= 5_000),
                (Way::Whole, 320, waits)
            );
            assert_eq!((four.way, four.first_read_after), (Way::Chosen, 0));
        }
    }

    #[test]
    fn a_call_is_past_r_once_also_if_r_becomes_less() {
        let mut struck = false;
        let past = |(missed, retries), struck: &mut bool| is_past(missed, retries, struck);
        let story = [(1, 5), (4, 5), (5, 5), (6, 5), (6, 3)];
        assert_eq!(story.map(|step| past(step, &mut struck)), [false, false, true, false, false]);
        struck = false;
        // Four have failed when it becomes three.
        let story = [(3, 5), (4, 3), (5, 3), (5, 5)];
        assert_eq!(story.map(|step| past(step, &mut struck)), [false, true, false, false]);
        struck = false;
        assert!(!past((1, 0), &mut struck) && !struck, "who is better written back has no R to get past");
    }
}
