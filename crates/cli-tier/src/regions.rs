//! `dunlin tier`: regions with a name, from the command line.

use crate::copy::{self, CopyArguments};
use crate::get::{self, GetArguments};
use crate::list::{self, ListArguments};
use crate::put::{self, PutArguments};
use crate::scene::{self, MemberArguments, SceneArguments};
use clap::{Args, Subcommand};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::output::Failure;
use dunlin_tier_client::Rights;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  dunlin node run &                              the node of this host
  dunlin tier put greeting --text hello
  dunlin tier get greeting
  dunlin tier put data/model model.bin --on node-2 --grant anyone=r
  dunlin tier get data/model copy.bin
  dunlin tier cp data/model backup/model --on node-3
  dunlin tier ls
  dunlin tier free data/model";

/// Write, read, copy, list, lease and free named regions.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TierArguments {
    #[command(subcommand)]
    command: TierCommand,
}

#[derive(Debug, Subcommand)]
enum TierCommand {
    Put(PutArguments),
    Get(GetArguments),
    Cp(CopyArguments),
    Ls(ListArguments),
    Free(FreeArguments),
    Lease(LeaseArguments),
    Scene(SceneArguments),
    /// A process of the scene.
    #[command(hide = true)]
    SceneMember(MemberArguments),
}

/// Free a region for all.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dunlin tier free data/model")]
struct FreeArguments {
    /// Name of the region
    name: String,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Have a region freed after some time, or keep it.
#[derive(Args, Debug)]
#[command(after_help = "\
The time begins now, whatever the region had before. It is counted by the node that the region was made at.

Examples:
  dunlin tier lease job-7/input 2h
  dunlin tier lease job-7/input none")]
struct LeaseArguments {
    /// Name of the region
    name: String,
    /// Time until the region is freed; 'none': it lives until it is freed
    #[arg(value_name = "TIME", value_parser = lease)]
    lease: Lease,
    #[command(flatten)]
    attach: AttachArguments,
}

#[derive(Clone, Copy, Debug)]
struct Lease(Option<Duration>);

fn lease(text: &str) -> Result<Lease, String> {
    if text == "none" { Ok(Lease(None)) } else { arguments::duration(text).map(|time| Lease(Some(time))) }
}

pub(crate) fn run(arguments: &TierArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        TierCommand::Put(arguments) => put::run(arguments),
        TierCommand::Get(arguments) => get::run(arguments),
        TierCommand::Cp(arguments) => copy::run(arguments),
        TierCommand::Ls(arguments) => list::run(arguments, false),
        TierCommand::Scene(arguments) => scene::run(arguments),
        TierCommand::SceneMember(arguments) => scene::member(arguments),
        TierCommand::Lease(arguments) => {
            let tier = arguments.attach.attach()?;
            let region = tier.map(&arguments.name, Rights::MASTER).map_err(Failure::new)?;
            region.lease(arguments.lease.0).map_err(Failure::new)?;
            Ok(ExitCode::SUCCESS)
        }
        TierCommand::Free(arguments) => {
            let tier = arguments.attach.attach()?;
            let region = tier.map(&arguments.name, Rights::MASTER).map_err(Failure::new)?;
            region.free().map_err(Failure::new)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
