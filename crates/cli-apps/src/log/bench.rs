//! `dunlin apps log bench`: the rate of commits beside that of the two operations of the tier that a commit consists
//! of.

use super::failure;
use clap::Args;
use dunlin_app_log::{Cleaner, LogConfig, LogError, Writer, create, destroy};
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::{arguments, progress};
use dunlin_report::statistics::median;
use dunlin_report::{Document, Row, Unit, rounded};
use dunlin_tier_client::{Lmr, Spec, Tier};
use std::ops::ControlFlow;
use std::process;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Creates the log NAME, measures commits of one entry, and frees the log. The floor is one
FETCH_ADD and one WRITE of as many bytes, by the same threads without a log. Within a round, 16 of
each alternate; rates are medians of the rounds. The ratio is the median of
those of the rounds. Cleaning is not part of a round. A process has 4 requests at its node at the same time, so
further threads wait.

Examples:
  dunlin apps log bench trial
  dunlin apps log bench trial --threads 1 --threads 4 --entry 16 --entry 1KiB --round 200ms --on node-2";

/// Measure the rate of commits by the number of writer threads and the size of an entry.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct BenchArguments {
    /// Name of the log to create for the measurement
    name: String,
    /// Number of writer threads; may be repeated [default: 1, 2, 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Bytes of an entry; may be repeated [default: 16, 256, 4 KiB]
    #[arg(long, value_name = "SIZE", value_parser = entry)]
    entry: Vec<u64>,
    /// Number of rounds
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Longest time of a round
    #[arg(long, default_value = "100ms", value_parser = arguments::positive_duration, value_name = "TIME")]
    round: Duration,
    /// Node that stores the log [default: this host's node]
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    #[command(flatten)]
    report: ReportArguments,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Bytes that the log holds.
const CAPACITY: u64 = 16 << 20;
/// The longest entry.
const LONGEST_ENTRY: u64 = 1 << 20;
/// Bytes of a transaction beside its only entry.
const OVERHEAD: u64 = 36;
/// Commits, or pairs of operations, before the others have their turn: a change of the machine's speed meets both.
const SLICE: u64 = 16;

/// Parses the bytes of an entry.
fn entry(text: &str) -> Result<u64, String> {
    match arguments::size(text)? {
        bytes if bytes <= LONGEST_ENTRY => Ok(bytes),
        _ => Err("an entry has at most 1 MiB here".to_owned()),
    }
}

/// The memory of the floor: a word and a ring.
struct Floor {
    word: Lmr,
    ring: Lmr,
}

impl Floor {
    /// Does the two operations of a commit.
    fn commit(&self, bytes: &[u8]) -> Result<(), LogError> {
        let extent = (bytes.len() as u64).next_multiple_of(64);
        let position = self.word.fetch_add(0, extent)?;
        Ok(self.ring.write(position % CAPACITY, bytes)?)
    }
}

/// An act of a thread.
type Act<'a, S> = dyn Fn(&mut S) -> Result<(), LogError> + Sync + 'a;

/// Runs both of `acts` by turns on all threads for the time of a round, at most `most` times each; returns the rate of
/// each a second.
fn rates<S: Send>(
    threads: &mut [S],
    (time, most): (Duration, u64),
    acts: [&Act<'_, S>; 2],
) -> Result<[f64; 2], LogError> {
    let start = Barrier::new(threads.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = threads
            .iter_mut()
            .map(|state| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let (begin, mut count, mut spent) = (Instant::now(), 0u64, [Duration::ZERO; 2]);
                    while count + SLICE <= most && begin.elapsed() < time {
                        for (act, spent) in acts.iter().zip(&mut spent) {
                            let begin = Instant::now();
                            (0..SLICE).try_for_each(|_| act(state))?;
                            *spent += begin.elapsed();
                        }
                        count += SLICE;
                    }
                    Ok::<_, LogError>(spent.map(|spent| count as f64 / spent.as_secs_f64().max(1e-9)))
                })
            })
            .collect();
        let mut sums = [0.0; 2];
        for thread in running {
            let rates = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            sums = [sums[0] + rates[0], sums[1] + rates[1]];
        }
        Ok(sums)
    })
}

impl BenchArguments {
    fn threads(&self) -> Vec<u32> {
        if self.threads.is_empty() { vec![1, 2, 4] } else { self.threads.clone() }
    }

    fn entries(&self) -> Vec<u64> {
        if self.entry.is_empty() { vec![16, 256, 4096] } else { self.entry.clone() }
    }

    fn place(&self) -> Spec {
        Spec::spread(self.on.as_deref())
    }

    /// Measures all rows.
    fn measure(&self, tier: &Tier, interrupt: &Interrupt) -> Result<Vec<Row>, Failure> {
        let failed = |error| failure(&self.name, error);
        let memory = |length| tier.malloc(length, self.place()).map_err(|error| failed(error.into()));
        let floor = Floor { word: memory(8)?, ring: memory(CAPACITY + 2 * LONGEST_ENTRY)? };
        let mut cleaner = Cleaner::open(tier, &self.name).map_err(failed)?;
        let rows = self.threads().len() * self.entries().len();
        let bar = progress::counting(rows as u64 * u64::from(self.rounds), "rounds");
        let mut measured = Vec::with_capacity(rows);
        for threads in self.threads() {
            let writers = (0..threads).map(|_| Writer::open(tier, &self.name)).collect::<Result<Vec<_>, _>>();
            let mut writers = writers.map_err(failed)?;
            for entry in self.entries() {
                let (bytes, extent) = (vec![7; entry as usize], (OVERHEAD + entry).next_multiple_of(64));
                let whole = vec![7; (OVERHEAD + entry) as usize];
                let limits = (self.round, CAPACITY / extent / u64::from(threads));
                let [mut commits, mut floors, mut ratios] = [const { Vec::new() }; 3];
                for _ in 0..self.rounds {
                    interrupt.check()?;
                    let commit = |writer: &mut Writer<Tier>| {
                        writer.append(&bytes)?;
                        writer.commit().map(drop)
                    };
                    let acts: [&Act<'_, _>; 2] = [&commit, &|_| floor.commit(&whole)];
                    let [commit, floor] = rates(&mut writers, limits, acts).map_err(failed)?;
                    while cleaner.clean(|_| ControlFlow::Continue(())).map_err(failed)?.left > 0 {}
                    commits.push(commit);
                    floors.push(floor);
                    ratios.push(commit / floor);
                    bar.inc(1);
                }
                let [commits, floors, ratio] =
                    [commits, floors, ratios].map(|rounds| median(rounds).unwrap_or_default());
                measured.push(
                    Row::new()
                        .with("threads", threads)
                        .with("entry", Unit::Bytes.format(entry as f64))
                        .with("commits_per_second", commits.round() as u64)
                        .with("floor_per_second", floors.round() as u64)
                        .with("ratio", rounded(ratio)),
                );
            }
        }
        bar.finish_and_clear();
        Ok(measured)
    }
}

pub(super) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    arguments.report.check()?;
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let config = LogConfig {
        capacity: CAPACITY,
        longest: Some((LONGEST_ENTRY + OVERHEAD).next_multiple_of(64)),
        place: arguments.place(),
        ..LogConfig::default()
    };
    create(&tier, &arguments.name, &config).map_err(|error| failure(&arguments.name, error))?;
    let measured = arguments.measure(&tier, &interrupt);
    let freed = destroy(&tier, &arguments.name).map_err(|error| failure(&arguments.name, error));
    let parameters = Row::new()
        .with("rounds", arguments.rounds)
        .with("round_ms", arguments.round.as_millis() as u64)
        .with("node", arguments.on.as_deref().unwrap_or(tier.node()))
        .with("process", process::id());
    let mut document = Document::new("apps log bench", "shm", parameters);
    document.rows = measured?;
    freed?;
    output::print(document.table())?;
    arguments.report.write(&document)
}
