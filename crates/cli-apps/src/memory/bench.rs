//! `dunlin apps memory bench`: times of a shared memory beside those of the operations that it consists of.

use super::{ReleaseArguments, failure, nodes};
use clap::Args;
use dunlin::fabric::ShmFabric;
use dunlin_app_memory::{Memory, MemoryConfig, MemoryError, PAGE};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_report::statistics::median;
use dunlin_report::{Document, Row, rounded};
use dunlin_tier_node::{Spec, Tier};
use std::hint::black_box;
use std::thread;
use std::time::Instant;

const AFTER_HELP: &str = "\
One process is all members, with nodes of its own; the first one is measured. Times are medians of the
rounds, in microseconds for each page. The floor of a read is one READ of 4 KiB by the tier, and that of
a page that is there, and of prefetched ones, a copy within the memory of the process.

Examples:
  dunlin apps memory bench
  dunlin apps memory bench --members 4 --pages 10 --marked";

/// Measure reads, acquisitions and releases of pages.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct BenchArguments {
    /// Number of members
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    members: u16,
    /// Pages of an acquisition
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pages: u32,
    /// Number of rounds
    #[arg(long, default_value_t = 21, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    release: ReleaseArguments,
    #[command(flatten)]
    report: ReportArguments,
}

/// Pages that are read in a round.
const READ: u64 = 1024;
const PAGE_BYTES: u64 = PAGE as u64;

/// Opens the members of this process.
fn open(
    arguments: &BenchArguments,
    tiers: &[Tier<ShmFabric>],
) -> Result<Vec<Memory<Tier<ShmFabric>>>, Failure> {
    let config = |member| MemoryConfig {
        told: arguments.release.told(),
        push: arguments.release.push(),
        ..MemoryConfig::new("bench", READ as u32, arguments.members, member)
    };
    let opened: Vec<_> = thread::scope(|scope| {
        let start = |(tier, member)| {
            let config = config(member);
            scope.spawn(move || Memory::open(tier, &config))
        };
        let opening: Vec<_> = tiers.iter().zip(0..).map(start).collect();
        opening.into_iter().map(|member| member.join()).collect()
    });
    let well = |member: thread::Result<Result<_, MemoryError>>| match member {
        Ok(opened) => opened.map_err(failure),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    opened.into_iter().map(well).collect()
}

/// Times of one round by name, in microseconds for each page.
type Times = Vec<(&'static str, f64)>;

fn round(
    members: &[Memory<Tier<ShmFabric>>],
    floor: &dunlin_tier_node::Lmr<ShmFabric>,
    pages: u64,
    value: u8,
) -> Result<Times, MemoryError> {
    let memory = &members[0];
    let mut times = Times::new();
    let mut page = vec![value; PAGE];
    let mut timed = |name, count: u64, begin: Instant| {
        times.push((name, begin.elapsed().as_secs_f64() * 1e6 / count as f64));
    };
    memory.forget(0..memory.size())?;
    // Pages of the second member are remote.
    let remote = (0..READ).filter(|page| page % members.len() as u64 == u64::from(members.len() > 1));
    let remote: Vec<u64> = remote.collect();
    let begin = Instant::now();
    for at in &remote {
        memory.read(at * PAGE_BYTES, &mut page)?;
    }
    timed("read", remote.len() as u64, begin);
    let begin = Instant::now();
    for at in &remote {
        let read = floor.read(at * PAGE_BYTES, &mut page);
        read.map_err(|source| MemoryError::Operation { home: 0, source: source.into() })?;
    }
    timed("floor of a read", remote.len() as u64, begin);
    let begin = Instant::now();
    for at in &remote {
        memory.read(at * PAGE_BYTES, &mut page)?;
    }
    timed("read, there", remote.len() as u64, begin);
    memory.forget(0..memory.size())?;
    let begin = Instant::now();
    memory.prefetch(0..memory.size())?;
    timed("prefetch", READ, begin);
    let (from, mut into) = (vec![value; READ as usize * PAGE], vec![1; READ as usize * PAGE]);
    let begin = Instant::now();
    for (from, into) in from.chunks(PAGE).zip(into.chunks_mut(PAGE)) {
        into.copy_from_slice(black_box(from));
    }
    timed("floor of a copy", READ, begin);
    black_box(into);
    for other in members {
        other.prefetch(0..pages * PAGE_BYTES)?;
    }
    let begin = Instant::now();
    let mut acquired = memory.acquire(0..pages * PAGE_BYTES)?;
    timed("acquire", pages, begin);
    memory.write(0, &vec![value; pages as usize * PAGE])?;
    let begin = Instant::now();
    acquired.release()?;
    timed("release", pages, begin);
    Ok(times)
}

pub(super) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    arguments.report.check()?;
    let interrupt = Interrupt::install()?;
    let tiers = nodes(arguments.members, 4 * READ * PAGE_BYTES)?;
    let store = tiers.last().map_or("", Tier::name).to_owned();
    let members = open(arguments, &tiers)?;
    let floor = tiers[0].malloc(READ * PAGE_BYTES, Spec::on(&store)).map_err(Failure::new)?;
    let mut rounds: Vec<Times> = Vec::new();
    for number in 0..arguments.rounds {
        interrupt.check()?;
        rounds.push(round(&members, &floor, arguments.pages.into(), number as u8).map_err(failure)?);
    }
    let parameters = Row::new()
        .with("members", arguments.members)
        .with("pages", arguments.pages)
        .with("rounds", arguments.rounds)
        .with("marked", arguments.release.marked.to_string())
        .with("whole", arguments.release.whole.to_string());
    let mut document = Document::new("apps memory bench", "shm", parameters);
    for (place, (name, _)) in rounds[0].iter().enumerate() {
        let of = rounds.iter().map(|times| times[place].1);
        document.rows.push(
            Row::new().with("operation", *name).with("us_per_page", rounded(median(of).unwrap_or_default())),
        );
    }
    output::print(document.table())?;
    arguments.report.write(&document)
}
