//! R and F of each function, chosen once for all connections of a client (RF-RPC section 3.2).
//!
//! Every lane, of whatever thread, gives its samples to one `FetchTuner` and goes by what that has chosen, so that a client of
//! many workers has found out what one of a single worker would find out in the same number of calls. It is atomics only: who
//! posts a READ loads one word; who has a sample stores one, and now and then chooses, unless another is at it. Nobody waits and
//! nothing is allocated.
//!
//! Calls that travel by themselves and those that travel together are chosen for apart, each by its own samples: their answers are of other
//! lengths, and a client that has both, as one does that looks for the size of its batches, would have F go to and fro between what holds
//! one result and what is as good as any for many. Where results are all about as long, F of a batch goes by how many calls it has: else a
//! size that is tried once in a while would always take a READ more than it needs, and seem worse than it is.

use super::fetch::{Choice, MAX_SAMPLES, MOST_RETRIES, STEP, Sample, choose};
use super::mode::FUNCTIONS;
use super::table::FetchTable;
use super::wait::{FirstRead, Wait, Waiting};
use super::way::Way;
use crate::error::ConnectError;
use dunlin_wire::{HEADER_BYTES, LINE, TAG_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// So many samples are enough for a first choice; there are others after twice as many, four times as many and so on, and then
/// after each [`MAX_SAMPLES`].
const FIRST: u32 = 4;

/// How R and F are chosen (RF-RPC section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FetchChoice {
    /// By enumeration over samples of the calls, for each function, unless the server asks for another way. Where the rates rule fetching
    /// out whatever is called (on shared memory: [`FetchTable::rules_out_fetching`]), results are
    /// written back as if the plan had said so, at the price of that. Else the server tries now and then, for
    /// all clients at once, whether more calls are made if their results are written back, fetched with an F that
    /// holds them whole, or fetched with more READs than R; if so, its answers ask for that.
    #[default]
    Tuned,
    /// By enumeration alone, as in RF-RPC, whatever the server asks for.
    Enumerated,
    /// As they are given here.
    Fixed {
        /// R, 1 to 16 READs. For none there is a plan whose results are written back.
        retries: u32,
        /// F, rounded up to lines of 64 bytes, at most 8 KiB.
        bytes: u32,
    },
}

impl FetchChoice {
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let FetchChoice::Fixed { retries, bytes } = *self else { return Ok(()) };
        let out = |what, value: u32, must| Err(ConnectError::Setting { what, value: value.into(), must });
        if !(1..=MOST_RETRIES as u32).contains(&retries) {
            return out(
                "R of fetch_choice",
                retries,
                "1 to 16 READs; a plan whose results are written back fetches none",
            );
        }
        if !(1..=MOST_BYTES).contains(&bytes) {
            return out("F of fetch_choice", bytes, "1 byte to 8 KiB");
        }
        Ok(())
    }
}

/// In what company a call travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// By itself.
    Alone,
    /// In a message of several.
    Batch,
}

impl Company {
    const ALL: [Company; 2] = [Company::Alone, Company::Batch];

    /// That of a message of so many calls.
    const fn of(calls: u16) -> Company {
        if calls == 1 { Company::Alone } else { Company::Batch }
    }
}

/// What is read with each READ.
#[derive(Debug)]
#[repr(align(64))]
struct Chosen {
    /// A [`Choice`] as a word for each [`Company`], see [`pack`].
    words: [AtomicU64; 2],
    changes: AtomicU32,
    /// What the server asks for: the number of a [`Way`].
    way: AtomicU8,
    /// The longest result of the latest samples of each [`Company`], in bytes.
    longest: [AtomicU32; 2],
    /// What a call of a batch adds to the answer, in bytes; 0 if that varies, or is not known.
    per_call: AtomicU32,
    /// A [`Wait`]. Of two threads that change it at once one is not heard.
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
    /// Somebody is choosing.
    choosing: AtomicBool,
    /// The latest: time in the upper half, then calls, then the lines of the answer. 0 is none, since an answer has lines.
    samples: [AtomicU64; MAX_SAMPLES],
}

/// Chooses R and F for the functions of a client. Functions with equal remainders by 32 are one.
#[derive(Debug)]
pub(crate) struct FetchTuner {
    table: Arc<FetchTable>,
    how: FetchChoice,
    /// Up to so many bytes one READ of all is better than two of L.
    one_read: u32,
    /// None if the first READs go out at once.
    waiting: Option<Waiting>,
    functions: Box<[Function]>,
}

/// Who is asked to fetch patiently READs so many times as often as N says.
const PATIENCE: u32 = 2;
/// F is never more than that: the longest message.
const MOST_BYTES: u32 = 8192;
/// Results are about as long if what a call adds to answers differs by no more than this.
const ALIKE: f64 = 1.25;
/// What a line holds beside its tag.
const LINE_HOLDS: u32 = (LINE - TAG_BYTES) as u32;

/// A sample as a word.
fn pack_sample(calls: u16, process: u32, bytes: u32) -> u64 {
    let lines = u16::try_from(bytes.div_ceil(STEP)).unwrap_or(u16::MAX).max(1);
    u64::from(process) << 32 | u64::from(calls) << 16 | u64::from(lines)
}

fn unpack_sample(word: u64) -> (u16, Sample) {
    let sample = Sample { process: (word >> 32) as u32, bytes: u32::from(word as u16) * STEP };
    ((word >> 16) as u16, sample)
}

/// What a call adds to an answer of so many bytes to `calls`, in bytes: rather too much than too little.
fn per_call(bytes: u32, calls: u16) -> u32 {
    (bytes / STEP * LINE_HOLDS).saturating_sub(HEADER_BYTES as u32).div_ceil(calls.max(1).into())
}

/// How long an answer to so many calls is that add so many bytes each.
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
    /// Starts with R = N and F = L, or with what is fixed.
    pub(crate) fn new(table: Arc<FetchTable>, how: FetchChoice, first_read: FirstRead) -> Self {
        let start = match how {
            FetchChoice::Tuned | FetchChoice::Enumerated => Choice::start(&table),
            FetchChoice::Fixed { retries, bytes } => Choice::new(&table, retries, bytes),
        };
        let function = |_| Function {
            chosen: Chosen {
                words: Company::ALL.map(|_| AtomicU64::new(pack(start))),
                changes: AtomicU32::new(0),
                way: AtomicU8::new(0),
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

    /// What is chosen now for messages of so many calls of a function; 0 if there are several, whoever knows how many.
    #[inline]
    pub(crate) fn choice(&self, function: u16, calls: u16) -> Choice {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        let company = Company::of(calls);
        let choice = unpack(chosen.words[company as usize].load(Ordering::Relaxed));
        match Way::of(chosen.way.load(Ordering::Relaxed)) {
            Way::Chosen | Way::Written => match chosen.per_call.load(Ordering::Relaxed) {
                known if known > 0 && calls > 1 && expected(known, calls) <= self.one_read => {
                    Choice { bytes: expected(known, calls).max(self.table.low()), ..choice }
                }
                _ => choice,
            },
            Way::Whole => {
                let bytes = chosen.longest[company as usize].load(Ordering::Relaxed).max(choice.bytes);
                match choice.retries {
                    0 => Choice::new(&self.table, self.table.reads_at_most(), bytes),
                    _ => Choice { bytes, ..choice },
                }
            }
            Way::Patient => Choice::new(&self.table, PATIENCE * self.table.reads_at_most(), choice.bytes),
        }
    }

    /// Whether messages of so many calls of a function are better written back at once, by what is chosen (R = 0).
    #[inline]
    pub(crate) fn is_written(&self, function: u16, calls: u16) -> bool {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        unpack(chosen.words[Company::of(calls) as usize].load(Ordering::Relaxed)).retries == 0
    }

    /// Whether all results are written back, whatever is called: then there is nothing to choose while calls are made.
    pub(crate) fn rules_out_fetching(&self) -> bool {
        !matches!(self.how, FetchChoice::Fixed { .. }) && self.table.rules_out_fetching()
    }

    /// Whether calls of a function were sampled.
    pub(crate) fn is_used(&self, function: u16) -> bool {
        self.functions[function as usize % FUNCTIONS].count.load(Ordering::Relaxed) > 0
    }

    /// Which way the server asks for.
    #[inline]
    pub(crate) fn way(&self, function: u16) -> Way {
        Way::of(self.functions[function as usize % FUNCTIONS].chosen.way.load(Ordering::Relaxed))
    }

    /// An answer asks for a way, by its number.
    #[inline]
    pub(crate) fn ask(&self, function: u16, way: u8) {
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        if chosen.way.load(Ordering::Relaxed) != way && self.how == FetchChoice::Tuned {
            chosen.way.store(way, Ordering::Relaxed);
        }
    }

    /// How long after a request of this function its result is looked for, in nanoseconds.
    #[inline]
    pub(crate) fn wait(&self, function: u16, early: bool) -> u32 {
        let Some(waiting) = self.waiting else { return 0 };
        let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
        let least = chosen.least.load(Ordering::Relaxed);
        if early { least } else { waiting.of(chosen.wait.load(Ordering::Relaxed), least) }
    }

    /// A result was fetched, after so many READs in vain, of which the first was sent when others are not yet expected, if `early`.
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

    /// How often R or F of a function has changed.
    pub(crate) fn changes(&self, function: u16) -> u32 {
        self.functions[function as usize % FUNCTIONS].chosen.changes.load(Ordering::Relaxed)
    }

    /// Takes a sample of a message of so many calls: how long the server took, in nanoseconds, how long its answer is, and whether it was fetched.
    pub(crate) fn sample(&self, function: u16, calls: u16, process: u32, bytes: u32, fetched: bool) {
        if let Some(waiting) = self.waiting {
            let chosen = &self.functions[function as usize % FUNCTIONS].chosen;
            let before = chosen.wait();
            chosen.set_wait(before, waiting.timed(before, process, fetched));
        }
        if matches!(self.how, FetchChoice::Fixed { .. }) {
            return;
        }
        let of = &self.functions[function as usize % FUNCTIONS];
        let count = of.count.fetch_add(1, Ordering::Relaxed);
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
        // Of a sample that another thread is about to store, the one before is taken: each is whole.
        let words = of.samples.each_ref().map(|word| word.load(Ordering::Relaxed));
        for company in Company::ALL {
            let (mut samples, mut count) = ([Sample::default(); MAX_SAMPLES], 0);
            // The least and the most that a call adds.
            let mut adds = (u32::MAX, 0);
            for (calls, sample) in words.into_iter().filter(|word| *word != 0).map(unpack_sample) {
                if Company::of(calls) == company {
                    let added = per_call(sample.bytes, calls);
                    adds = (added.min(adds.0), added.max(adds.1));
                    samples[count] = sample;
                    count += 1;
                }
            }
            // Of what is not made now stays what was chosen when it was.
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

/// Whether it is time to choose after so many samples.
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
        // Each function by itself.
        assert_eq!((tuner.choice(4, ALONE).bytes, tuner.changes(4)), (256, 0));
    }

    #[test]
    fn a_step_is_followed_within_two_rounds_of_samples() {
        let tuner = tuner();
        (0..1000).for_each(|_| tuner.sample(7, ALONE, 300, 500, true));
        (0..2 * MAX_SAMPLES).for_each(|_| tuner.sample(7, ALONE, 300, 64, true));
        assert_eq!((tuner.choice(7, ALONE).bytes, tuner.changes(7)), (256, 2));
    }

    /// One result of 300 bytes goes into a READ of 320, of two the second takes another READ whatever F is.
    #[test]
    fn batches_are_chosen_for_apart() {
        let tuner = tuner();
        for round in 0..10 * MAX_SAMPLES {
            let (calls, bytes) = if round % 3 == 0 { (4, 1100) } else { (ALONE, 300) };
            tuner.sample(3, calls, 500, bytes, true);
        }
        assert_eq!((tuner.choice(3, ALONE).bytes, tuner.choice(3, 4).bytes), (320, 256));
        assert_eq!(tuner.changes(3), 1);
        // None for long: what was chosen stays, and the server may ask to have both whole.
        (0..10 * MAX_SAMPLES).for_each(|_| tuner.sample(3, 4, 500, 1100, true));
        assert_eq!(tuner.choice(3, ALONE).bytes, 320);
        tuner.ask(3, Way::Whole.number());
        assert_eq!((tuner.choice(3, ALONE).bytes, tuner.choice(3, 4).bytes), (320, 1152));
    }

    /// Each size of batches has the F that holds its answer while one READ of that is better than two of L, as soon as one of them is known.
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
        // Results of all lengths: no size tells how long its answers are.
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
        /// Whatever a server says of its time, and with whatever bytes it answers.
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

        /// However slowly words change, a choice is followed only if it is better for what the samples are: a server that
        /// answers at random makes no more than one change in each round.
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
