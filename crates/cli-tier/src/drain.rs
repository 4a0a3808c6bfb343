//! `dunlin node drain` and `dunlin node free`: the operator of a node empties its memory.

use clap::Args;
use dunlin::errors::WithSources;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::progress;
use dunlin_report::Unit;
use dunlin_tier_client::{HandedOver, Lent, LentRegion, RecordError, Refusal, RequestError, Tier};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const DRAIN_HELP: &str = "\
The records of regions that were made at this node go to other nodes, which keep them from then on. Then the regions that
have bytes in the memory of this node move to the memory of other nodes, one after the other, to the nodes in turns. Processes that use one map its name again, as with dunlin node move. A region
stays, and the command exits with status 1, if it has no name, if a node does not stop to use it, or if no node has room
for it. Ctrl-C ends the command between two regions, with status 130: those that have moved stay where they are then, and
the others as they were. Run it again to go on.
Then dunlin node leave ends the node without a loss. Regions without a name end with the processes that made them, and
with the node. The command names the regions whose records could not go. Other nodes may make new regions here until it
has left.
Only the user who runs the node, and root, may drain it.

Examples:
  dunlin node drain && dunlin node leave
  dunlin node drain --to node-2 --to node-3";

const FREE_HELP: &str = "\
The region is freed for all, whoever is its master, if it was made at this node: dunlin node leave lists those. Masters
free their regions at any node, with dunlin tier free. Only the user who runs the node, and root, may free regions of
others.

Examples:
  dunlin node free data/model
  dunlin node free data/model --node shm:node-a";

/// The longest wait for the release of memory that regions have left.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);
/// The time between two looks at it, or at a move that goes on.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Requests in sequence without an answer after which a region counts as one that stays.
const MOST_UNANSWERED: u32 = 3;
/// The most regions that a message names.
const MOST_NAMED: usize = 8;

/// Move the regions of other nodes out of the memory of this host's node.
#[derive(Args, Debug)]
#[command(after_help = DRAIN_HELP)]
pub(crate) struct DrainArguments {
    /// Node that gets regions; may be repeated [default: all others]
    #[arg(long, value_name = "NODE")]
    to: Vec<String>,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Free a region that was made at this host's node, whoever is its master.
#[derive(Args, Debug)]
#[command(after_help = FREE_HELP)]
pub(crate) struct FreeArguments {
    /// Name of the region
    name: String,
    #[command(flatten)]
    attach: AttachArguments,
}

pub(crate) fn free(arguments: &FreeArguments) -> Result<ExitCode, Failure> {
    arguments.attach.attach()?.free_named(&arguments.name).map_err(Failure::new)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the regions of other nodes.
fn lent(tier: &Tier) -> Result<Vec<LentRegion>, Failure> {
    let mut all: Vec<LentRegion> = Vec::new();
    loop {
        let Lent { regions, more } = tier.lent(all.last()).map_err(Failure::new)?;
        all.extend(regions);
        if !more {
            return Ok(all);
        }
    }
}

/// Moves a region to the first node that has room, from the `turn`th on.
fn move_away(
    tier: &Tier,
    region: &LentRegion,
    to: &[String],
    turn: usize,
    interrupt: &Interrupt,
) -> Result<Result<(), RequestError>, Failure> {
    let mut failed = None;
    for at in 0..to.len() {
        match move_to(tier, region, &to[(turn + at) % to.len()], interrupt)? {
            Err(
                error @ RequestError::Refused {
                    source: Refusal::OutOfMemory { .. } | Refusal::NotCopied, ..
                },
            ) => failed = Some(error),
            moved => return Ok(moved),
        }
    }
    Ok(failed.map_or(Ok(()), Err))
}

/// Moves a region to a node. A move of a large one goes on when the time of its request is over, and one may be under
/// way already: both are waited for.
fn move_to(
    tier: &Tier,
    region: &LentRegion,
    to: &str,
    interrupt: &Interrupt,
) -> Result<Result<(), RequestError>, Failure> {
    let mut unanswered = 0;
    loop {
        match tier.move_away(region, to) {
            Err(RequestError::Refused { source: Refusal::Record(RecordError::Moving), .. }) => unanswered = 0,
            Err(error) if error.may_have_executed() && unanswered < MOST_UNANSWERED => unanswered += 1,
            moved => return Ok(moved),
        }
        if interrupt.wait(Some(LOOK_EVERY)).is_some() {
            interrupt.check()?;
        }
    }
}

pub(crate) fn drain(arguments: &DrainArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let node = tier.node().to_owned();
    let status = tier.status().map_err(Failure::new)?;
    let to = if arguments.to.is_empty() {
        status.nodes.into_iter().filter(|other| *other != node).collect()
    } else {
        arguments.to.clone()
    };
    if let Some(wrong) = to.iter().find(|to| **to == node) {
        return Err(Failure::new(format!("{wrong} is the node whose memory is to be emptied")));
    }
    let handed = hand_over(&tier, &to, &interrupt)?;
    let all = lent(&tier)?;
    if to.is_empty() && !all.is_empty() {
        return Err(Failure::new("there is no other node").help("start one, or give the regions up"));
    }
    let bar = progress::bytes(Some(all.iter().map(|region| region.bytes).sum()), &node);
    let mut drained = Drained::default();
    let outcome = move_all(&tier, all, &to, (&interrupt, &|bytes| bar.inc(bytes)), &mut drained);
    bar.finish_and_clear();
    let outcome = outcome.and_then(|()| await_release(&tier, drained.stuck, &interrupt));
    let Drained { moved, bytes, stuck } = drained;
    if matches!(outcome, Ok(()) | Err(Failure::Interrupted(_))) {
        let bytes = Unit::Bytes.format(bytes as f64);
        output::note(format_args!("{handed} records handed over; {moved} regions moved away, {bytes}"));
    }
    if let Err(Failure::Interrupted(_)) = outcome {
        output::note("interrupted: the other regions stay as they were; run the command again to go on");
    }
    outcome?;
    say_held(&tier, &node)?;
    if stuck == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    output::note(format_args!("{stuck} regions of other nodes stay"));
    Err(Failure::Negative)
}

/// Hands the records of all regions that were made here to other nodes, in turns; returns their number.
fn hand_over(tier: &Tier, to: &[String], interrupt: &Interrupt) -> Result<u64, Failure> {
    let (mut handed, mut refused) = (0, 0);
    for other in to.iter().cycle() {
        interrupt.check()?;
        let HandedOver { records, left } = tier.hand_over(other).map_err(Failure::new)?;
        handed += records;
        refused = if records == 0 { refused + 1 } else { 0 };
        // All others had their turn, and got none.
        if left == 0 || refused == to.len() {
            break;
        }
    }
    Ok(handed)
}

/// The regions and bytes that a drain has moved so far, and the regions that stay.
#[derive(Debug, Default)]
struct Drained {
    moved: usize,
    bytes: u64,
    stuck: u64,
}

/// Moves all regions of other nodes, also those that are made meanwhile.
fn move_all(
    tier: &Tier,
    mut all: Vec<LentRegion>,
    to: &[String],
    (interrupt, passed): (&Interrupt, &dyn Fn(u64)),
    drained: &mut Drained,
) -> Result<(), Failure> {
    let mut tried = BTreeSet::new();
    while !all.is_empty() {
        for region in &all {
            interrupt.check()?;
            tried.insert(region.id);
            match move_away(tier, region, to, drained.moved, interrupt)? {
                Ok(()) => {
                    drained.moved += 1;
                    drained.bytes += region.bytes;
                }
                Err(error @ (RequestError::NotOperator | RequestError::NoNode(_))) => {
                    return Err(Failure::new(error));
                }
                Err(error) => {
                    drained.stuck += 1;
                    let (size, error) = (Unit::Bytes.format(region.bytes as f64), WithSources(&error));
                    output::note(format_args!("a region of {}, {size} here, stays: {error}", region.node));
                }
            }
            passed(region.bytes);
        }
        all = lent(tier)?;
        all.retain(|region| !tried.contains(&region.id));
    }
    Ok(())
}

/// Names the regions that end with the node, and says how they are saved.
fn say_held(tier: &Tier, node: &str) -> Result<(), Failure> {
    let held = tier.held().map_err(Failure::new)?;
    if held.named == 0 {
        return Ok(());
    }
    let names: Vec<String> = held.names.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = held.named.saturating_sub(names.len() as u64);
    let more =
        if more == 0 { String::new() } else { format!(" and {more} more (dunlin node leave lists them)") };
    output::note(format_args!(
        "{} regions end with {node}: {}{more}. Run the command again when another node runs, or copy them there (dunlin tier \
         cp NAME NEW) and free them (dunlin node free NAME)",
        held.named,
        names.join(", ")
    ));
    Ok(())
}

/// Waits for the memory that regions have left, so that the node can leave at once. The nodes that keep their records
/// go on with a release that takes longer.
fn await_release(tier: &Tier, stuck: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    let until = Instant::now() + RELEASED_WITHIN;
    while lent(tier)?.len() as u64 > stuck && Instant::now() < until {
        if interrupt.wait(Some(LOOK_EVERY)).is_some() {
            interrupt.check()?;
        }
    }
    Ok(())
}
