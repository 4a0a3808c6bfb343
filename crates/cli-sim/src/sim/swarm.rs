//! `dunlin sim swarm`: runs seeds on all cores, and reports results in the order of seeds.

use clap::Args;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::progress;
use dunlin_fabric_sim::History;
use dunlin_report::{Document, Row};
use dunlin_swarm::{
    Outcome, play, play_coordination, play_coordination_of_views, play_deployment, play_membership, play_tier,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between looks for seeds that run for long.
const LOOKS_EVERY: Duration = Duration::from_secs(10);
/// A run takes some milliseconds, and a large one a few seconds.
const SLOW: Duration = Duration::from_secs(60);

/// The seed that a thread runs, and the beginning of its run.
type Running = Mutex<Option<(u64, Instant)>>;

const AFTER_HELP: &str = "\
Each seed defines a cluster, a workload and faults: stalls, late and torn WRITEs,
broken queue pairs, processes killed and restarted. In every run each call must
complete exactly once and execute at most once, no byte may be wrong, deadlines must
hold, everything must work again once the faults stop, and no resource may leak.

Examples:
  dunlin sim swarm --seeds 1000
  dunlin sim swarm --deployments --seeds 200               servers that share a schedule
  dunlin sim swarm --tier --seeds 200                      regions that move between nodes which die
  dunlin sim swarm --coordination --seeds 200              calls, locks and barriers of such nodes
  dunlin sim swarm --membership --seeds 200                such nodes that join, leave and die, and their directory
  dunlin sim swarm --coordination --membership             locks whose owners change with the view
  dunlin sim swarm --seeds 1 --first-seed 4711 --trace     repeat a run, and print its events";

/// Run random clusters, workloads and faults against the engine in virtual time.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SwarmArguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    first_seed: u64,
    /// End after this many minutes, even if seeds are left
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Run deployments: two or three servers with a common schedule, whose clocks differ, and clients that call all of them
    #[arg(long)]
    deployments: bool,
    /// Run the memory tier: nodes whose threads make, map, write, move and free regions, while nodes are killed and cut off
    #[arg(long, conflicts_with = "deployments")]
    tier: bool,
    /// Run the coordination of the memory tier: nodes whose threads call each other, take locks and meet at barriers, while
    /// nodes are killed and cut off
    #[arg(long, conflicts_with_all = ["deployments", "tier"])]
    coordination: bool,
    /// Run the membership of the memory tier: nodes that join, leave, die and are cut off, and a directory that ends and
    /// begins again. With --coordination: the coordination of such nodes
    #[arg(long, conflicts_with_all = ["deployments", "tier"])]
    membership: bool,
    /// Print a hash over all events of each seed, which is equal for equal runs on any machine
    #[arg(long)]
    trace_hash: bool,
    /// Print the latest events of the first failed seed, or of the only seed
    #[arg(long)]
    trace: bool,
    /// Maximum number of events to print
    #[arg(long, default_value_t = 5000, value_name = "EVENTS")]
    trace_length: usize,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write one row per seed to this file as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

fn row(outcome: &Outcome, trace_hash: bool) -> Row {
    let mut row = Row::new()
        .with("seed", outcome.seed)
        .with("ok", outcome.failure.is_none())
        .with("calls", outcome.calls)
        .with("answered", outcome.answered)
        .with("maybe_executed", outcome.maybe)
        .with("not_executed", outcome.not_executed)
        .with("kills", outcome.kills)
        .with("events", outcome.events)
        .with("virtual_ns", outcome.virtual_ns)
        .with("what", outcome.what.as_str());
    if let Some(failure) = &outcome.failure {
        row.set("failure", failure.as_str());
    }
    if trace_hash {
        row.set("trace_hash", format!("{:016x}", outcome.trace_hash));
    }
    row
}

/// Returns how a seed is played.
fn seed_of(arguments: &SwarmArguments) -> fn(u64, Option<History>) -> Outcome {
    match arguments {
        SwarmArguments { deployments: true, .. } => play_deployment,
        SwarmArguments { tier: true, .. } => play_tier,
        SwarmArguments { coordination: true, membership: true, .. } => play_coordination_of_views,
        SwarmArguments { coordination: true, .. } => play_coordination,
        SwarmArguments { membership: true, .. } => play_membership,
        _ => play,
    }
}

pub(crate) fn run(arguments: &SwarmArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or(cores, usize::from);
    let end = arguments.first_seed.saturating_add(arguments.seeds);
    if end > 1 << 63 {
        return Err(Failure::new("seeds end at 2^63").help("a smaller --first-seed, or fewer --seeds"));
    }
    let until = match arguments.minutes {
        Some(minutes) => {
            let time = Duration::try_from_secs_f64(minutes * 60.0)
                .map_err(|error| Failure::new(format!("--minutes {minutes}: {error}")))?;
            Some(Instant::now() + time)
        }
        None => None,
    };
    // Failures are printed here, in order. A panic within a run is a finding, so suppress its message.
    std::panic::set_hook(Box::new(|_| {}));
    let bar = progress::counting(arguments.seeds, "seeds");
    let next = AtomicU64::new(arguments.first_seed);
    let (send, receive) = mpsc::channel::<Outcome>();
    let running: Vec<Running> = (0..threads).map(|_| Mutex::new(None)).collect();
    let mut sums = [0u64; 6];
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    std::thread::scope(|scope| {
        for running in &running {
            let (send, next, interrupt) = (send.clone(), &next, &interrupt);
            scope.spawn(move || {
                loop {
                    let late = until.is_some_and(|until| Instant::now() >= until);
                    if late || interrupt.received().is_some() {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    *lock(running) = Some((seed, Instant::now()));
                    let outcome = seed_of(arguments)(seed, None);
                    *lock(running) = None;
                    if send.send(outcome).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        // Report in the order of seeds, whichever run ends first.
        let mut early = BTreeMap::new();
        let mut expected = arguments.first_seed;
        let mut told = BTreeSet::new();
        loop {
            let outcome = match receive.recv_timeout(LOOKS_EVERY) {
                Ok(outcome) => outcome,
                Err(RecvTimeoutError::Timeout) => {
                    bar.suspend(|| tell_slow(&running, &mut told));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            bar.inc(1);
            early.insert(outcome.seed, outcome);
            while let Some(outcome) = early.remove(&expected) {
                expected += 1;
                let Outcome { calls, answered, maybe, not_executed, kills, events, .. } = outcome;
                for (sum, value) in sums.iter_mut().zip([calls, answered, maybe, not_executed, kills, events])
                {
                    *sum += value;
                }
                if arguments.json.is_some() {
                    rows.push(row(&outcome, arguments.trace_hash));
                } else if arguments.trace_hash {
                    bar.suspend(|| println!("{} {:016x}", outcome.seed, outcome.trace_hash));
                }
                if outcome.failure.is_some() {
                    bar.suspend(|| tell_failure(&outcome, arguments));
                    failed.push(outcome);
                }
            }
        }
    });
    bar.finish_and_clear();
    let played = next.load(Ordering::Relaxed).min(end) - arguments.first_seed;
    if arguments.trace {
        let single = (arguments.seeds == 1).then_some(arguments.first_seed);
        for seed in single.into_iter().chain(failed.iter().map(|outcome| outcome.seed)).take(1) {
            trace(arguments, seed)?;
        }
    }
    let [calls, answered, maybe, not_executed, kills, events] = sums;
    output::print_line(format!(
        "{played} seeds, {} failed: {calls} calls ({answered} answered, {maybe} maybe executed, {not_executed} not executed), \
         {kills} processes killed, {events} events",
        failed.len()
    ))?;
    if let Some(path) = &arguments.json {
        let parameters = Row::new().with("seeds", arguments.seeds).with("first_seed", arguments.first_seed);
        let mut document = Document::new("sim swarm", "sim", parameters);
        document.rows = rows;
        document.write_json(path).map_err(Failure::new)?;
    }
    interrupt.check()?;
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Negative) }
}

fn lock(running: &Running) -> MutexGuard<'_, Option<(u64, Instant)>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names each seed once that has run for long: its threads may wait for each other.
fn tell_slow(running: &[Running], told: &mut BTreeSet<u64>) {
    for (seed, since) in running.iter().filter_map(|running| *lock(running)) {
        if since.elapsed() >= SLOW && told.insert(seed) {
            let seconds = since.elapsed().as_secs();
            output::note(format!(
                "seed {seed} has run for {seconds} s; if it does not end, its threads wait for each other: kill -9 {}",
                std::process::id()
            ));
        }
    }
}

fn tell_failure(outcome: &Outcome, arguments: &SwarmArguments) {
    let kind = match arguments {
        SwarmArguments { deployments: true, .. } => " --deployments",
        SwarmArguments { tier: true, .. } => " --tier",
        SwarmArguments { coordination: true, membership: true, .. } => " --coordination --membership",
        SwarmArguments { coordination: true, .. } => " --coordination",
        SwarmArguments { membership: true, .. } => " --membership",
        _ => "",
    };
    let seed = outcome.seed;
    println!("seed {seed} failed: {}", outcome.failure.as_deref().unwrap_or_default());
    println!("    {}", outcome.what);
    println!("    again, event by event: dunlin sim swarm{kind} --seeds 1 --first-seed {seed} --trace");
}

/// Runs a seed again and prints its events.
fn trace(arguments: &SwarmArguments, seed: u64) -> Result<(), Failure> {
    let history = History::new(arguments.trace_length);
    let outcome = seed_of(arguments)(seed, Some(history.clone()));
    for (at, line) in history.lines() {
        output::print_line(format!("{at:>14} {line}"))?;
    }
    output::print_line(format!("seed {seed}: {}", outcome.failure.as_deref().unwrap_or("nothing is wrong")))
}
