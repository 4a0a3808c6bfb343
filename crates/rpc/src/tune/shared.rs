//! R and F of each function, chosen once for all connections of a client (RF-RPC section 3.2).
//!
//! All lanes, of any thread, feed their samples to one `FetchTuner` and use its choices, so that a client
//! with many workers needs no more calls to find them than a client with one. The state is atomic: a thread
//! that posts a READ loads one word; a thread with a sample stores one word and sometimes makes the choice,
//! unless another thread is making it. Nothing blocks and nothing allocates.
//!
//! Calls that travel alone and calls in batches have separate choices and samples, because their answers have
//! different lengths. With a common choice, a client that makes both (for example while it searches for its
//! batch size) would move F back and forth between a value that holds one result and one that suits many. If
//! results have similar lengths, F of a batch depends on its number of calls; otherwise a rarely tried batch
//! size would always take one READ too many and seem worse than it is.

use super::fetch::{Choice, MAX_SAMPLES, MOST_RETRIES, STEP, Sample, choose};
use super::mode::FUNCTIONS;
use super::response_mode::ResponseMode;
use super::table::FetchTable;
use super::wait::{FirstRead, Wait, Waiting};
use dunlin_wire::{HEADER_BYTES, LINE, TAG_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Samples before the first choice. Further choices follow at each doubling, and then after each
/// [`MAX_SAMPLES`] samples.
const FIRST: u32 = 4;

/// The choice of R and F (RF-RPC section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FetchChoice {
    /// By enumeration over samples, for each function, unless the server asks for another path.
    ///
    /// If the rates rule out fetching ([`FetchTable::rules_out_fetching`], for example on shared memory),
    /// results are written back as if the plan had said so, and at the same cost. Otherwise the server
    /// sometimes tries, for all clients at once, whether the call rate is higher if results are written back,
    /// fetched with an F that holds them whole, or fetched with more READs than R. Its answers then ask for
    /// the best path.
    #[default]
    Tuned,
    /// By enumeration alone, as in RF-RPC; requests of the server are ignored.
    Enumerated,
    /// Fixed values.
    Fixed {
        /// R, 1 to 16 READs. To fetch nothing, use a plan whose results are written back.
        retries: u32,
        /// F in bytes, rounded up to lines of 64 bytes, at most 8 KiB.
        bytes: u32,
    },
}

impl FetchChoice {
    /// Returns the setting that is out of its bounds, its value, and the bounds.
    pub(crate) fn out_of_bounds(&self) -> Option<(&'static str, u32, &'static str)> {
        let FetchChoice::Fixed { retries, bytes } = *self else { return None };
        if !(1..=MOST_RETRIES as u32).contains(&retries) {
            let must = "1 to 16 READs; a plan whose results are written back fetches none";
            return Some(("R of fetch_choice", retries, must));
        }
        (!(1..=MOST_BYTES).contains(&bytes)).then_some(("F of fetch_choice", bytes, "1 byte to 8 KiB"))
    }
}

/// The kind of message in which a call travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// A single call.
    Alone,
    /// Several calls.
    Batch,
}

impl Company {
    const ALL: [Company; 2] = [Company::Alone, Company::Batch];

    /// Returns the kind of a message of `calls` calls.
    const fn of(calls: u16) -> Company {
        if calls == 1 { Company::Alone } else { Company::Batch }
    }
}

/// The state that is loaded for each READ.
#[derive(Debug)]
#[repr(align(64))]
struct Chosen {
    /// A packed [`Choice`] for each [`Company`]; see [`pack`].
    words: [AtomicU64; 2],
    changes: AtomicU32,
    /// The path that the server asks for: the number of a [`ResponseMode`].
    mode: AtomicU8,
    /// The longest result in the latest samples of each [`Company`], in bytes.
    longest: [AtomicU32; 2],
    /// Bytes that each call of a batch adds to the answer; 0 if unknown or varying.
    per_call: AtomicU32,
    /// The fields of a [`Wait`]. Of two concurrent updates one may be lost.
    wait: AtomicU32,
    least: AtomicU32,
    process: AtomicU32,
    late: AtomicU32,
}

impl Chosen {
    fn wait(&self) -> Wait {
        let of = |part: &AtomicU32| part.load(Ordering::Relaxed);
        Wait {
            nanos: of(&self.wait),
            least: of(&self.least),
            process: of(&self.process),
            late: of(&self.late),
        }
    }

    fn set_wait(&self, before: Wait, wait: Wait) {
        for (part, before, now) in [
            (&self.wait, before.nanos, wait.nanos),
            (&self.least, before.least, wait.least),
            (&self.process, before.process, wait.process),
            (&self.late, before.late, wait.late),
        ] {
            if now != before {
                part.store(now, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug)]
struct Function {
    chosen: Chosen,
    /// Samples so far.
    count: AtomicU32,
    /// A thread is making the choice.
    choosing: AtomicBool,
    /// The latest samples: time in the upper half, then calls, then lines of the answer. 0 means no sample,
    /// since an answer has lines.
    samples: [AtomicU64; MAX_SAMPLES],
}

/// Chooses R and F for the functions of a client. Functions with equal ids modulo 32 share one choice.
#[derive(Debug)]
pub(crate) struct FetchTuner {
    table: Arc<FetchTable>,
    how: FetchChoice,
    /// The size in bytes up to which one READ of the whole result is better than two of L.
    one_read: u32,
    /// `None` if first READs are sent at once.
    waiting: Option<Waiting>,
    functions: Box<[Function]>,
}

/// Factor of N for R on the path [`ResponseMode::FetchMoreRetries`].
const PATIENCE: u32 = 2;
/// The largest F, in bytes: the longest message.
const MOST_BYTES: u32 = 8192;
/// Results have similar lengths if the bytes per call differ by at most this factor.
const ALIKE: f64 = 1.25;
/// Bytes of a line without its tag.
const LINE_HOLDS: u32 = (LINE - TAG_BYTES) as u32;

/// Packs a sample into a word.
fn pack_sample(calls: u16, process: u32, bytes: u32) -> u64 {
    let lines = u16::try_from(bytes.div_ceil(STEP)).unwrap_or(u16::MAX).max(1);
    u64::from(process) << 32 | u64::from(calls) << 16 | u64::from(lines)
}

fn unpack_sample(word: u64) -> (u16, Sample) {
    let sample = Sample { process: (word >> 32) as u32, bytes: u32::from(word as u16) * STEP };
    ((word >> 16) as u16, sample)
}

/// Returns the bytes that each of `calls` calls adds to an answer of `bytes` bytes, as an upper estimate.
fn per_call(bytes: u32, calls: u16) -> u32 {
    (bytes / STEP * LINE_HOLDS).saturating_sub(HEADER_BYTES as u32).div_ceil(calls.max(1).into())
}

/// Returns the expected bytes of an answer to `calls` calls that add `per_call` bytes each.
fn expected(per_call: u32, calls: u16) -> u32 {
    let held = per_call.saturating_mul(calls.into()).saturating_add(HEADER_BYTES as u32);
    held.div_ceil(LINE_HOLDS).saturating_mul(STEP)
}

fn pack(choice: Choice) -> u64 {
    u64::from(choice.retries) << 56 | u64::from(choice.bytes) << 32 | u64::from(choice.patience)
}

fn unpack(word: u64) -> Choice {
    Choice { retries: (word >> 56) as u32, bytes: (word >> 32) as u32 & 0xFF_FFFF, patience: word as u32 }
}

impl FetchTuner {
    /// Creates a tuner that starts with R = N and F = L, or with the fixed values.
    pub(crate) fn new(table: Arc<FetchTable>, how: FetchChoice, first_read: FirstRead) -> Self {
        let start = match how {
            FetchChoice::Tuned | FetchChoice::Enumerated => Choice::start(&table),
            FetchChoice::Fixed { retries, bytes } => Choice::new(&table, retries, bytes),
        };
        let function = |_| Function {
            chosen: Chosen {
                words: Company::ALL.map(|_| AtomicU64::new(pack(start))),
                changes: AtomicU32::new(0),
                mode: AtomicU8::new(0),
                longest: Company::ALL.map(|_| AtomicU32::new(0)),
                per_call: AtomicU32::new(0),
                wait: AtomicU32::new(0),
                least: AtomicU32::new(0),
                process: AtomicU32::new(0),
                late: AtomicU32::new(0),
            },
            count: AtomicU32::new(0),
            choosing: AtomicBool::new(false),
            samples: [const { AtomicU64::new(0) }; MAX_SAMPLES],
        };
        let waiting = match first_read {
            FirstRead::AtOnce => None,
            FirstRead::WhenExpected => Some(Waiting::new(table.read_nanos(table.low()))),
        };
        let (low, high) = (table.low(), table.high());
        let better = |bytes: &u32| 2.0 * table.reads(*bytes) > table.reads(low);
        let one_read = (low..=high).step_by(STEP as usize).take_while(better).last().unwrap_or(low);
        FetchTuner { table, how, one_read, waiting, functions: (0..FUNCTIONS).map(function).collect() }
    }

    /// Returns the current choice for messages of `calls` calls of a function; 0 calls means several of
    /// unknown number.
    #[inline]
    pub(crate) fn choice(&self, function: u16, calls: u16) -> Choice {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        let company = Company::of(calls);
        let choice = unpack(chosen.words[company as usize].load(Ordering::Relaxed));
        match ResponseMode::of(chosen.mode.load(Ordering::Relaxed)) {
            ResponseMode::ClientChoice | ResponseMode::WriteBack => {
                match chosen.per_call.load(Ordering::Relaxed) {
                    known if known > 0 && calls > 1 && expected(known, calls) <= self.one_read => {
                        Choice { bytes: expected(known, calls).max(self.table.low()), ..choice }
                    }
                    _ => choice,
                }
            }
            ResponseMode::FetchWhole => {
                let bytes = chosen.longest[company as usize].load(Ordering::Relaxed).max(choice.bytes);
                match choice.retries {
                    0 => Choice::new(&self.table, self.table.reads_at_most(), bytes),
                    _ => Choice { bytes, ..choice },
                }
            }
            ResponseMode::FetchMoreRetries => {
                Choice::new(&self.table, PATIENCE * self.table.reads_at_most(), choice.bytes)
            }
        }
    }

    /// Returns whether messages of `calls` calls of a function are better written back at once (R = 0).
    #[inline]
    pub(crate) fn is_written(&self, function: u16, calls: u16) -> bool {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        unpack(chosen.words[Company::of(calls) as usize].load(Ordering::Relaxed)).retries == 0
    }

    /// Returns whether all results are written back for any call, so that there is nothing to choose at run
    /// time.
    pub(crate) fn rules_out_fetching(&self) -> bool {
        !matches!(self.how, FetchChoice::Fixed { .. }) && self.table.rules_out_fetching()
    }

    /// Returns whether calls of a function were sampled.
    pub(crate) fn is_used(&self, function: u16) -> bool {
        self.functions[function as usize % FUNCTIONS].count.load(Ordering::Relaxed) > 0
    }

    /// Returns the path that the server asks for.
    #[inline]
    pub(crate) fn mode(&self, function: u16) -> ResponseMode {
        ResponseMode::of(self.functions[function as usize % FUNCTIONS].chosen.mode.load(Ordering::Relaxed))
    }

    /// Records the path that an answer asks for, by its number.
    #[inline]
    pub(crate) fn ask(&self, function: u16, mode: u8) {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        if chosen.mode.load(Ordering::Relaxed) != mode && self.how == FetchChoice::Tuned {
            chosen.mode.store(mode, Ordering::Relaxed);
        }
    }

    /// Returns the delay of the first READ for results of this function, in nanoseconds.
    #[inline]
    pub(crate) fn wait(&self, function: u16, early: bool) -> u32 {
        let Some(waiting) = self.waiting else { return 0 };
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        let least = chosen.least.load(Ordering::Relaxed);
        if early { least } else { waiting.of(chosen.wait.load(Ordering::Relaxed), least) }
    }

    /// Records a fetched result after `missed` failed READs; `early` if the first READ was sent after the
    /// least delay.
    #[inline]
    pub(crate) fn found(&self, function: u16, missed: u32, early: bool) {
        if let Some(waiting) = self.waiting {
            let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
            let before = chosen.wait();
            chosen.set_wait(before, waiting.found(before, missed, early));
        }
    }

    pub(crate) fn table(&self) -> &FetchTable {
        &self.table
    }

    /// Returns the changes of R or F of a function.
    pub(crate) fn changes(&self, function: u16) -> u32 {
        self.functions[function as usize % FUNCTIONS].chosen.changes.load(Ordering::Relaxed)
    }

    /// Takes a sample of a message of `calls` calls: the server's time in nanoseconds, the bytes of the
    /// answer, and whether the result was fetched.
    pub(crate) fn sample(&self, function: u16, calls: u16, process: u32, bytes: u32, fetched: bool) {
        if let Some(waiting) = self.waiting {
            let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
            let before = chosen.wait();
            chosen.set_wait(before, waiting.timed(before, process, fetched));
        }
        let of = &self.functions[function as usize % FUNCTIONS];
        let count = of.count.fetch_add(1, Ordering::Relaxed);
        if matches!(self.how, FetchChoice::Fixed { .. }) {
            return;
        }
        let word = pack_sample(calls, process, bytes);
        let longest = &of.chosen.longest[Company::of(calls) as usize];
        if bytes > longest.load(Ordering::Relaxed) {
            longest.store(bytes.min(MOST_BYTES).next_multiple_of(STEP), Ordering::Relaxed);
        }
        of.samples[count as usize % MAX_SAMPLES].store(word, Ordering::Relaxed);
        if is_due(count.wrapping_add(1)) {
            self.choose(of);
        }
    }

    fn choose(&self, of: &Function) {
        if of.choosing.swap(true, Ordering::Acquire) {
            return;
        }
        // A sample that another thread is about to store counts with its earlier value; each word is
        // consistent.
        let words = of.samples.each_ref().map(|word| word.load(Ordering::Relaxed));
        for company in Company::ALL {
            let (mut samples, mut count) = ([Sample::default(); MAX_SAMPLES], 0);
            // The least and the most bytes that a call adds.
            let mut adds = (u32::MAX, 0);
            for (calls, sample) in words.into_iter().filter(|word| *word != 0).map(unpack_sample) {
                if Company::of(calls) == company {
                    let added = per_call(sample.bytes, calls);
                    adds = (added.min(adds.0), added.max(adds.1));
                    samples[count] = sample;
                    count += 1;
                }
            }
            // Without samples of this kind the earlier choice stays.
            if count == 0 {
                continue;
            }
            self.choose_of(&of.chosen, company, &samples[..count]);
            if company == Company::Batch {
                let alike = f64::from(adds.1) <= ALIKE * f64::from(adds.0);
                of.chosen.per_call.store(if alike { adds.1 } else { 0 }, Ordering::Relaxed);
            }
        }
        of.choosing.store(false, Ordering::Release);
    }

    fn choose_of(&self, chosen: &Chosen, company: Company, samples: &[Sample]) {
        let longest = samples.iter().map(|sample| sample.bytes.min(MOST_BYTES)).max().unwrap_or(0);
        chosen.longest[company as usize].store(longest.next_multiple_of(STEP), Ordering::Relaxed);
        let word = &chosen.words[company as usize];
        let now = unpack(word.load(Ordering::Relaxed));
        let next = choose(&self.table, samples, now);
        if next != now {
            word.store(pack(next), Ordering::Relaxed);
            chosen.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns whether a choice is due after `count` samples.
const fn is_due(count: u32) -> bool {
    let full = MAX_SAMPLES as u32;
    (count >= FIRST && count < full && count.is_power_of_two()) || (count > 0 && count.is_multiple_of(full))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALONE: u16 = 1;

    fn tuner() -> FetchTuner {
        FetchTuner::new(Arc::new(FetchTable::rf_rpc()), FetchChoice::Tuned, FirstRead::WhenExpected)
    }

    #[test]
    fn the_first_choice_comes_early_and_others_with_twice_as_many() {
        let due: Vec<u32> = (0..200).filter(|count| is_due(*count)).collect();
        assert_eq!(due, [4, 8, 16, 32, 64, 96, 128, 160, 192]);
        let tuner = tuner();
        (0..FIRST - 1).for_each(|_| tuner.sample(3, ALONE, 300, 500, true));
        assert_eq!(tuner.choice(3, ALONE).bytes, 256);
        tuner.sample(3, ALONE, 300, 500, true);
        assert_eq!((tuner.choice(3, ALONE).bytes, tuner.changes(3)), (512, 1));
        // Functions have separate choices.
        assert_eq!((tuner.choice(4, ALONE).bytes, tuner.changes(4)), (256, 0));
    }

    #[test]
    fn a_step_is_followed_within_two_rounds_of_samples() {
        let tuner = tuner();
        (0..1000).for_each(|_| tuner.sample(7, ALONE, 300, 500, true));
        (0..2 * MAX_SAMPLES).for_each(|_| tuner.sample(7, ALONE, 300, 64, true));
        assert_eq!((tuner.choice(7, ALONE).bytes, tuner.changes(7)), (256, 2));
    }

    /// A result of 300 bytes fits a READ of 320 bytes; a batch takes another READ for any F.
    #[test]
    fn batches_are_chosen_for_apart() {
        let tuner = tuner();
        for round in 0..10 * MAX_SAMPLES {
            let (calls, bytes) = if round % 3 == 0 { (4, 1100) } else { (ALONE, 300) };
            tuner.sample(3, calls, 500, bytes, true);
        }
        assert_eq!((tuner.choice(3, ALONE).bytes, tuner.choice(3, 4).bytes), (320, 256));
        assert_eq!(tuner.changes(3), 1);
        // After a long time without single calls their choice stays, and the server may ask for both kinds as
        // a whole.
        (0..10 * MAX_SAMPLES).for_each(|_| tuner.sample(3, 4, 500, 1100, true));
        assert_eq!(tuner.choice(3, ALONE).bytes, 320);
        tuner.ask(3, ResponseMode::FetchWhole.number());
        assert_eq!((tuner.choice(3, ALONE).bytes, tuner.choice(3, 4).bytes), (320, 1152));
    }

    /// Once the bytes per call are known, each batch size gets the F that holds its answer, if one such READ
    /// is better than two of L.
    #[test]
    fn batches_of_results_that_are_alike_have_an_f_by_their_size() {
        let tuner = tuner();
        let answer = |calls: u16| expected(48, calls);
        (0..10 * MAX_SAMPLES).for_each(|_| tuner.sample(3, 5, 500, answer(5), true));
        for calls in [2, 4, 5, 6, 8] {
            let bytes = tuner.choice(3, calls).bytes;
            assert!(
                (answer(calls)..=answer(calls) + STEP).contains(&bytes) || bytes == 256,
                "{calls}: {bytes}"
            );
        }
        assert_eq!(tuner.choice(3, 128).bytes, tuner.choice(3, 0).bytes);
        assert!(tuner.choice(3, 6).bytes > tuner.choice(3, 0).bytes);
        // With results of varying lengths the batch size does not give the length of the answer.
        (0..MAX_SAMPLES as u32).for_each(|round| tuner.sample(3, 5, 500, 320 + round % 4 * 64, true));
        assert_eq!(tuner.choice(3, 2), tuner.choice(3, 0));
    }

    #[test]
    fn what_is_fixed_stays() {
        let table = Arc::new(FetchTable::rf_rpc());
        let tuner = FetchTuner::new(table, FetchChoice::Fixed { retries: 2, bytes: 1000 }, FirstRead::AtOnce);
        (0..1000).for_each(|_| tuner.sample(0, ALONE, 300, 64, true));
        assert_eq!((tuner.choice(0, ALONE).retries, tuner.choice(0, ALONE).bytes), (2, 1024));
        assert_eq!(tuner.changes(0), 0);
    }

    #[test]
    fn threads_share_it() {
        let tuner = tuner();
        std::thread::scope(|scope| {
            for thread in 0..4u16 {
                let tuner = &tuner;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        tuner.sample(thread % 2, ALONE, 300, if thread % 2 == 0 { 64 } else { 500 }, true);
                        let choice = tuner.choice(thread, ALONE);
                        assert!((0..=5).contains(&choice.retries) && [256, 512].contains(&choice.bytes));
                    }
                });
            }
        });
        (0..MAX_SAMPLES).for_each(|_| tuner.sample(1, ALONE, 300, 500, true));
        assert_eq!((tuner.choice(0, ALONE).bytes, tuner.choice(1, ALONE).bytes), (256, 512));
    }

    proptest! {
        /// Any reported time and any number of bytes are safe.
        #[test]
        fn nonsense_is_borne(samples in prop::collection::vec((any::<u16>(), any::<u32>(), any::<u32>()), 0..500)) {
            let tuner = tuner();
            for (function, process, bytes) in samples {
                tuner.sample(function, ALONE, process, bytes, true);
                let choice = tuner.choice(function, ALONE);
                prop_assert!((0..=5).contains(&choice.retries));
                prop_assert!((256..=1024).contains(&choice.bytes) && choice.bytes.is_multiple_of(64));
                prop_assert_eq!(unpack(pack(choice)), choice);
            }
        }

        /// A choice changes only if it is better for the current samples: a server that answers at random
        /// causes at most one change in each round.
        #[test]
        fn changes_are_bounded_by_rounds(samples in prop::collection::vec((0u32..20_000, 64u32..8192), 0..2000)) {
            let tuner = tuner();
            let rounds = samples.len() / MAX_SAMPLES + 3;
            for (process, bytes) in samples {
                tuner.sample(9, ALONE, process, bytes, true);
            }
            prop_assert!(tuner.changes(9) as usize <= rounds);
        }
    }
}
