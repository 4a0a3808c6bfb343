//! `dunlin apps memory`: pages that processes share.

mod bench;
mod count;

use clap::{Args, Subcommand};
use dunlin::fabric::{Scheme, ShmFabric};
use dunlin_app_memory::{MemoryError, Push, Told};
use dunlin_command::output::Failure;
use dunlin_command::shared_memory;
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Members have the same pages of 4 KiB. A member reads a page from its home when it needs it, acquires
pages to write them, and releases them; then the others read them again. Page N is at home at member
N modulo the number of members.

Examples:
  dunlin apps memory count
  dunlin apps memory bench --members 3
  dunlin node run &
  dunlin apps memory count --members 2 --member 1 --memory shared &
  dunlin apps memory count --members 2 --member 0 --memory shared";

/// Share pages between processes (LITE, section 8.4).
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct MemoryArguments {
    #[command(subcommand)]
    command: MemoryCommand,
}

#[derive(Debug, Subcommand)]
enum MemoryCommand {
    Count(count::CountArguments),
    Bench(bench::BenchArguments),
}

/// Options about releases.
#[derive(Args, Clone, Copy, Debug)]
struct ReleaseArguments {
    /// Tell only members that have marked a page before they read it, in place of all
    #[arg(long)]
    marked: bool,
    /// Push whole pages, in place of the bytes that changed
    #[arg(long)]
    whole: bool,
}

impl ReleaseArguments {
    fn told(self) -> Told {
        if self.marked { Told::Marked } else { Told::All }
    }

    fn push(self) -> Push {
        if self.whole { Push::Whole } else { Push::Changed }
    }
}

/// Returns the failure of a memory, with the next step.
fn failure(error: MemoryError) -> Failure {
    let help = match &error {
        MemoryError::Taken { region } => {
            format!("choose another --memory, or free it with: dunlin tier free {region}")
        }
        MemoryError::Disagree { .. } => "give all members the same options".to_owned(),
        MemoryError::Lock { .. } => "start all members, with numbers from 0; --wait sets the time".to_owned(),
        MemoryError::Request { .. } => {
            "give the nodes more memory, for example: dunlin node run --memory 1GiB".to_owned()
        }
        _ => return Failure::new(error),
    };
    Failure::new(error).help(help)
}

/// Starts nodes of this process.
fn nodes(count: u16, memory: u64) -> Result<Vec<Tier<ShmFabric>>, Failure> {
    let address = |node: u16| format!("memory-{}-{node}", std::process::id());
    let peers = (0..count).map(|node| Peer::named(Scheme::Shm, &address(node)));
    let peers = peers.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
    let start = |peer: &Peer| {
        let config = TierConfig { memory, ..TierConfig::new(peers.clone(), &peer.name) };
        Tier::within(&shared_memory()?, config).map_err(Failure::new)
    };
    peers.iter().map(start).collect()
}

pub(crate) fn run(arguments: &MemoryArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        MemoryCommand::Count(arguments) => count::run(arguments)?,
        MemoryCommand::Bench(arguments) => bench::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
