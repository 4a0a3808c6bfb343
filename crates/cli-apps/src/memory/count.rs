//! `dunlin apps memory count`: members that count in shared pages.

use super::{ReleaseArguments, failure, nodes};
use clap::Args;
use dunlin_app_memory::{Memory, MemoryConfig, MemoryError, PAGE};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, table};
use dunlin_tier_node::{AnyLists, AnyServices};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Each member acquires a page, adds 1 to its counter and releases the page, --rounds times by turns over
--counters pages. Then member 0 prints the counters. By default one process is all members, with nodes
of its own. With --member, several processes share a memory, each attached to the node of its host.
If a process is killed, the others go on: the next member to acquire its page is told. The pages whose
home it is, N modulo the members, cannot be acquired any more.

Examples:
  dunlin apps memory count --members 3 --counters 6
  dunlin node run &
  dunlin apps memory count --members 2 --member 1 --memory shared &
  dunlin apps memory count --members 2 --member 0 --memory shared";

/// The interval at which the command checks for a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);
/// The time that the members of this process have to end after a signal, or after another one has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Count in shared pages, with several members at the same time.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CountArguments {
    /// Number of members
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// Number of this process, from 0; the first one prints the counters
    #[arg(long, value_name = "I", requires = "memory")]
    member: Option<u16>,
    /// Name of the memory, which all its processes give
    #[arg(long, value_name = "NAME", requires = "member")]
    memory: Option<String>,
    /// Number of counters, each in a page of its own
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    counters: u32,
    /// Increments of each member
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rounds: u64,
    /// Longest time to wait for other members
    #[arg(long, default_value = "60s", value_parser = arguments::positive_duration, value_name = "TIME")]
    wait: Duration,
    #[command(flatten)]
    release: ReleaseArguments,
    #[command(flatten)]
    attach: AttachArguments,
}

impl CountArguments {
    fn config(&self, member: u16) -> MemoryConfig {
        let name = self.memory.as_deref().unwrap_or("count");
        let pages = self.counters.max(self.members.into());
        MemoryConfig {
            told: self.release.told(),
            push: self.release.push(),
            patience: self.wait,
            ..MemoryConfig::new(name, pages, self.members, member)
        }
    }
}

/// The end of a member.
struct Counted {
    /// The counters, of the first member.
    counters: Option<Vec<u64>>,
    time: Duration,
}

/// Counts as a member, until the flag is set.
type Counts = Box<dyn FnOnce(&AtomicBool) -> Result<Counted, MemoryError> + Send>;

/// Counts as one member.
fn count<T: AnyServices + AnyLists>(
    tier: &T,
    config: &MemoryConfig,
    (counters, rounds): (u32, u64),
    stop: &AtomicBool,
) -> Result<Counted, MemoryError> {
    let memory = Memory::open(tier, config)?;
    let begin = Instant::now();
    for round in 0..rounds {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Members begin with different pages.
        let page = (round + u64::from(config.member)) % u64::from(counters);
        let at = page * PAGE as u64;
        let mut acquired = memory.acquire(at..at + 8)?;
        for lost in acquired.lost() {
            output::note(format_args!(
                "member {} ended while it held page {}: an increment of it may be lost",
                lost.member, lost.page
            ));
        }
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes)?;
        memory.write(at, &(u64::from_le_bytes(bytes) + 1).to_le_bytes())?;
        acquired.release()?;
    }
    let time = begin.elapsed();
    if let Err(error) = memory.barrier() {
        output::note(format_args!("not all members have counted to the end: {error}"));
    }
    let read = |counter: u32| {
        let mut bytes = [0; 8];
        memory.read(u64::from(counter) * PAGE as u64, &mut bytes)?;
        Ok::<u64, MemoryError>(u64::from_le_bytes(bytes))
    };
    let counters = (config.member == 0).then(|| (0..counters).map(read).collect()).transpose()?;
    // Members that have ended were noted above.
    let _ = memory.close();
    Ok(Counted { counters, time })
}

pub(super) fn run(arguments: &CountArguments) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let (sender, ended) = channel();
    let spawn = |member: u16, body: Counts| {
        let (stop, sender) = (interrupt.shared_flag(), sender.clone());
        let body = move || {
            // After a signal nobody receives.
            let _ = sender.send((member, body(&stop)));
        };
        thread::Builder::new().name("member".to_owned()).spawn(body).map_err(Failure::new)
    };
    let work = (arguments.counters, arguments.rounds);
    let mut kept = Vec::new();
    match arguments.member {
        Some(member) => {
            let (tier, config) = (arguments.attach.attach()?, arguments.config(member));
            spawn(member, Box::new(move |stop| count(&tier, &config, work, stop)))?;
        }
        None => {
            let memory = u64::from(arguments.counters.max(64)) * 4 * PAGE as u64;
            for (member, tier) in (0..arguments.members).zip(nodes(arguments.members, memory.max(4 << 20))?) {
                // A node ends with its last clone: not before all members have ended.
                kept.push(tier.clone());
                let config = arguments.config(member);
                spawn(member, Box::new(move |stop| count(&tier, &config, work, stop)))?;
            }
        }
    }
    drop(sender);
    let (mut counted, mut error, mut ending) = (None, None, None::<Instant>);
    loop {
        match ended.recv_timeout(SIGNALS_EVERY) {
            Ok((0, Ok(first))) => counted = Some(first),
            Ok((_, Ok(_))) => {}
            // The first error is the cause of the others.
            Ok((_, Err(failed))) => {
                error.get_or_insert(failed);
            }
            Err(RecvTimeoutError::Timeout) => {
                let is_ending = error.is_some() || interrupt.received().is_some();
                if is_ending && ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    interrupt.check()?;
    if let Some(error) = error {
        return Err(failure(error));
    }
    let Some(Counted { counters: Some(counters), time }) = counted else { return Ok(()) };
    let each = time.as_secs_f64() * 1e6 / arguments.rounds.max(1) as f64;
    let all: u64 = counters.iter().sum();
    output::note(format_args!(
        "{all} increments by {} members; {each:.1} us for each of a member",
        arguments.members
    ));
    let row = |(page, count): (usize, &u64)| Row::new().with("page", page as u64).with("count", *count);
    output::print(table(&counters.iter().enumerate().map(row).collect::<Vec<_>>()))
}
