//! `dunlin node keep`, and nodes whose memory it has.

use clap::Args;
use dunlin::Address;
use dunlin::fabric::{Fabric, KeeperEvent, KeeperServer, ShmKeeper};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, child};
use dunlin_report::Unit;
use dunlin_tier_node::{Tier, TierConfig};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The time that the keeper may take to notice the end of the last node.
const NOTICED: Duration = Duration::from_secs(2);
/// The time between two looks whether the keeper is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const KEEP_HELP: &str = "\
The keeper holds the memory of one node and a ledger of its records, and does nothing else. When the node ends in any way,
start it again with the same settings: regions, handles and mappings of processes and of other nodes are as before. An
operation that was under way fails as one that may have been executed. When the keeper ends, the regions end with the node.
A keeper serves nodes of its own user on this host, one at a time, whose list of nodes does not change.

Examples:
  dunlin node keep                       in one terminal, and in another:
  dunlin node run --keeper --memory 1GiB
  dunlin node keep shm:keeper-a
  dunlin node run --peers nodes.txt --name a --attach shm:node-a --keeper shm:keeper-a";

/// Keep the memory of a node, so that its regions outlive its process, until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = KEEP_HELP)]
pub(crate) struct KeepArguments {
    /// Address of the keeper, on shared memory [default: shm:dunlin-keeper-UID]
    #[arg(value_name = "ADDRESS")]
    address: Option<Address>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
}

/// Returns the address of a keeper: a given one, or that of this user.
fn address_of(given: Option<&Address>, user: u32) -> Result<Address, Failure> {
    match given {
        Some(address) => Ok(address.clone()),
        None => format!("shm:dunlin-keeper-{user}").parse().map_err(Failure::new),
    }
}

/// Runs a keeper.
pub(crate) fn run(arguments: &KeepArguments, user: u32) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let address = address_of(arguments.address.as_ref(), user)?;
    let mut keeper = KeeperServer::listen(&address).map_err(|error| {
        Failure::new(error).help("give it another address, or end the keeper that has this one")
    })?;
    // Ignore errors: the keeper also runs if nothing reads its output.
    let _ = child::say_ready(&address);
    let _ = output::print_line(format_args!("keeper; Ctrl-C ends it, and the regions that it keeps"));
    let end = arguments.duration.map(|time| Instant::now() + time);
    while end.is_none_or(|end| Instant::now() < end) {
        if interrupt.received().is_some() {
            output::note("ending: the regions end with their node");
            break;
        }
        let process = |number: Option<u32>| number.map_or_else(String::new, |number| format!(" {number}"));
        match keeper.serve(LOOK_EVERY) {
            Some(KeeperEvent::Taken(number)) => {
                output::note(format_args!("the node of process{} has its memory here", process(number)))
            }
            Some(KeeperEvent::Ended) => output::note(format_args!(
                "the node has ended; {} are kept for its next life",
                Unit::Bytes.format(keeper.held().1 as f64)
            )),
            Some(KeeperEvent::Refused(number)) => {
                output::note(format_args!("process{} was refused", process(number)))
            }
            None => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a node whose memory a keeper has.
pub(crate) fn start<F: Fabric>(
    fabric: &F,
    config: TierConfig,
    given: Option<&Address>,
    user: u32,
) -> Result<Tier<F>, Failure> {
    let address = address_of(given, user)?;
    let keeper = ShmKeeper::connect(&address, NOTICED).map_err(Failure::new)?;
    let held = keeper.held();
    let tier = Tier::within_kept(fabric, config, Box::new(keeper)).map_err(Failure::new)?;
    if held > 0 {
        output::note(format_args!("{} of the last life are here again", Unit::Bytes.format(held as f64)));
    }
    Ok(tier)
}
