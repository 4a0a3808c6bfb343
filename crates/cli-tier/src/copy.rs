//! `dunlin tier cp`: copies a region to a new one, node to node.

use crate::put::{described, grant, in_seconds};
use clap::Args;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, progress};
use dunlin_tier_client::{Lmr, Published, Rights, Spec, Tier};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
The nodes that store the region write the bytes to the new one: they do not pass through this command. Others may write
to the region meanwhile, so the copy may have some of their bytes. The new region gets its name when all bytes are
there; if the command fails or is interrupted, no region is left. It needs the right to read the region.

Examples:
  dunlin tier cp data/model backup/model --on node-2
  dunlin tier cp data/model shared/model --grant anyone=r";

/// Bytes that are copied at a time.
const AT_ONCE: u64 = 4 << 20;

/// Copy a region to a new one.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CopyArguments {
    /// Name of the region
    from: String,
    /// Name of the new region
    to: String,
    /// Node that stores the new region [default: this host's node]; several are used in turns, piece by piece
    #[arg(long, value_name = "NODE")]
    on: Vec<String>,
    /// Grant rights to a principal: r, rw or rwm (to read, to write, master); the principal 'anyone' is
    /// everyone; may be repeated
    #[arg(long, value_name = "PRINCIPAL=RIGHTS", value_parser = grant)]
    grant: Vec<(String, Rights)>,
    /// Free the new region after this time, unless 'dunlin tier lease' or a master renews it
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    lease: Option<Duration>,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Copies all bytes; returns their number.
fn copy(tier: &Tier, from: &Lmr, to: &Lmr, name: &str, interrupt: &Interrupt) -> Result<u64, Failure> {
    let (length, mut done) = (from.len(), 0);
    let bar = progress::bytes(Some(length), name);
    while done < length {
        interrupt.check()?;
        let part = AT_ONCE.min(length - done);
        tier.memcpy(to.at(done), from.at(done), part).map_err(Failure::new)?;
        done += part;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    interrupt.check()?;
    Ok(done)
}

pub(crate) fn run(arguments: &CopyArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let from = tier.map(&arguments.from, Rights::READ).map_err(Failure::new)?;
    let taken = format!("if the name is taken, free its region: dunlin tier free {}", arguments.to);
    // All bytes are copied before the name is asked for, so one that is visibly taken is refused first.
    if tier.map(&arguments.to, Rights::NONE).is_ok() {
        return Err(Failure::new(format!("there is a region {} already", arguments.to)).help(taken));
    }
    let begin = Instant::now();
    let place = Spec::spread(arguments.on.iter().map(String::as_str));
    let to = tier.malloc(from.len(), place).map_err(Failure::new)?;
    let bytes = copy(&tier, &from, &to, &arguments.to, &interrupt)?;
    let spec = described(Spec::here().named(&arguments.to), &arguments.grant, arguments.lease);
    match tier.publish(&to, spec) {
        Ok(Published::InPlace) => {}
        Ok(Published::Copied(_)) => output::note("the bytes were copied once more, to get their name"),
        Err(error) => return Err(Failure::new(error).help(taken)),
    }
    output::note(format_args!("{}: {}", arguments.to, in_seconds("copied", bytes, begin.elapsed())));
    Ok(ExitCode::SUCCESS)
}
