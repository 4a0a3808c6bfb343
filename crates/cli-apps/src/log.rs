//! `dunlin apps log`: a global log from the command line.

mod append;
mod bench;
mod clean;
mod tail;

use clap::{Args, Subcommand};
use dunlin_app_log::{LogConfig, LogError, create, destroy, evict, status};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, Unit, table};
use dunlin_tier_client::{Rights, Spec};
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
A log is two named regions of the memory tier. Writers, the cleaner and readers use them by
one-sided operations; no code of the log runs at the node that stores it. The log has a fixed
capacity: a cleaner takes transactions out and gives their room back.

Examples:
  dunlin node run &                              the node of this host
  dunlin apps log create orders --size 16MiB --grant anyone=rw
  dunlin apps log append orders 'first order' 'second order'
  tail -f service.log | dunlin apps log append orders
  dunlin apps log tail orders --follow
  dunlin apps log clean orders --follow >> archive.txt
  dunlin apps log status orders
  dunlin apps log free orders";

const CREATE_HELP: &str = "\
Writers and the cleaner need the rights rw, readers r.

Examples:
  dunlin apps log create orders
  dunlin apps log create orders --size 64MiB --on node-2 --grant anyone=rw";

const EVICT_HELP: &str = "\
A writer that died in a commit leaves a hole. The cleaner closes it if the tier says that the
process or its node has ended; that needs the node that owns the writer's lock. Otherwise the
cleaner waits, since the writer may be slow. Evict a writer only if its process has ended. A late
write of a process that runs on may damage a newer transaction.

Examples:
  dunlin apps log status orders                  lists the writers
  dunlin apps log evict orders 5f0c2e7a91b3d845";

/// Create, write, follow and clean a global log (LITE, section 8.1).
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LogArguments {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    Create(CreateArguments),
    Append(append::AppendArguments),
    Tail(tail::TailArguments),
    Clean(clean::CleanArguments),
    Status(NameArguments),
    Evict(EvictArguments),
    Free(FreeArguments),
    Bench(bench::BenchArguments),
}

/// Create a log.
#[derive(Args, Debug)]
#[command(after_help = CREATE_HELP)]
struct CreateArguments {
    /// Name of the log, as in application/name
    name: String,
    /// Bytes that the log holds
    #[arg(long, default_value = "1MiB", value_parser = arguments::size, value_name = "SIZE")]
    size: u64,
    /// Longest transaction [default: an eighth of the size, at most 1 MiB]
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    longest: Option<u64>,
    /// Most writers at the same time
    #[arg(long, default_value_t = 256, value_name = "N")]
    writers: u32,
    /// Time after which another cleaner takes over from one that does nothing
    #[arg(long, default_value = "2s", value_parser = arguments::positive_duration, value_name = "TIME")]
    lease: Duration,
    /// Time for which a cleaner waits for a missing transaction before it examines the writers
    #[arg(long, default_value = "1s", value_parser = arguments::duration, value_name = "TIME")]
    hole_time: Duration,
    /// Node that stores the log [default: this host's node]
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    /// Grant rights to a principal: r or rw; the principal 'anyone' is everyone; may be repeated
    #[arg(long, value_name = "PRINCIPAL=RIGHTS", value_parser = grant)]
    grant: Vec<(String, Rights)>,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Show the positions of a log, its cleaner and its writers.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dunlin apps log status orders")]
struct NameArguments {
    /// Name of the log
    name: String,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Declare that a writer has ended, so that the cleaner passes over its missing transaction.
#[derive(Args, Debug)]
#[command(after_help = EVICT_HELP)]
struct EvictArguments {
    /// Name of the log
    name: String,
    /// Number of the writer, as 'status' and 'clean' show it
    #[arg(value_parser = number)]
    writer: u64,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Free the regions of a log, with everything in it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dunlin apps log free orders")]
struct FreeArguments {
    /// Name of the log
    name: String,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Parses PRINCIPAL=RIGHTS.
fn grant(text: &str) -> Result<(String, Rights), String> {
    let rights = match text.split_once('=') {
        Some((principal, "r")) if !principal.is_empty() => Some((principal, Rights::READ)),
        Some((principal, "rw")) if !principal.is_empty() => {
            Some((principal, Rights::READ.with(Rights::WRITE)))
        }
        _ => None,
    };
    rights
        .map(|(principal, rights)| (principal.to_owned(), rights))
        .ok_or_else(|| format!("'{text}' is not PRINCIPAL=RIGHTS; write for example alice=rw or anyone=r"))
}

/// Parses the number of a writer.
fn number(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16)
        .map_err(|_| format!("'{text}' is not the number of a writer: 16 hexadecimal digits"))
}

/// Returns the failure of an operation on the log `name`, with the next step.
fn failure(name: &str, error: LogError) -> Failure {
    let help = match &error {
        LogError::NoSuch { .. } => format!("create it with: dunlin apps log create {name}"),
        LogError::Exists { .. }
        | LogError::NotReady { .. }
        | LogError::Damaged { .. }
        | LogError::WrongSize { .. } => {
            format!("free it with: dunlin apps log free {name}")
        }
        LogError::Full { .. } => format!("clean it with: dunlin apps log clean {name} --follow"),
        LogError::TooLong { .. } => "create the log with a larger --longest".to_owned(),
        LogError::TooManyWriters { .. } => format!("list them with: dunlin apps log status {name}"),
        LogError::NoWriter { .. } => format!("list the writers with: dunlin apps log status {name}"),
        _ => return Failure::new(error),
    };
    Failure::new(error).help(help)
}

pub(crate) fn run(arguments: &LogArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        LogCommand::Create(arguments) => make(arguments)?,
        LogCommand::Append(arguments) => append::run(arguments)?,
        LogCommand::Tail(arguments) => tail::run(arguments)?,
        LogCommand::Clean(arguments) => clean::run(arguments)?,
        LogCommand::Status(arguments) => show(arguments)?,
        LogCommand::Evict(arguments) => {
            let tier = arguments.attach.attach()?;
            evict(&tier, &arguments.name, arguments.writer)
                .map_err(|error| failure(&arguments.name, error))?;
        }
        LogCommand::Free(arguments) => {
            let tier = arguments.attach.attach()?;
            destroy(&tier, &arguments.name).map_err(|error| failure(&arguments.name, error))?;
        }
        LogCommand::Bench(arguments) => bench::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn make(arguments: &CreateArguments) -> Result<(), Failure> {
    let mut place = Spec::spread(arguments.on.as_deref());
    for (principal, rights) in &arguments.grant {
        place = match principal.as_str() {
            "anyone" => place.grant_anyone(*rights),
            principal => place.grant(principal, *rights),
        };
    }
    let config = LogConfig {
        capacity: arguments.size,
        longest: arguments.longest,
        writers: arguments.writers,
        lease: arguments.lease,
        hole_time: arguments.hole_time,
        place,
    };
    let tier = arguments.attach.attach()?;
    create(&tier, &arguments.name, &config).map_err(|error| failure(&arguments.name, error))
}

fn show(arguments: &NameArguments) -> Result<(), Failure> {
    let tier = arguments.attach.attach()?;
    let status = status(&tier, &arguments.name).map_err(|error| failure(&arguments.name, error))?;
    let cleaner = match status.cleaner {
        Some(cleaner) => format!("cleaner {cleaner:08x}"),
        None => "no cleaner".to_owned(),
    };
    output::print_line(format_args!(
        "log {}: {} of {} in use, positions {} to {}; longest transaction {}; {cleaner}",
        arguments.name,
        Unit::Bytes.format((status.tail - status.head) as f64),
        Unit::Bytes.format(status.capacity as f64),
        status.head,
        status.tail,
        Unit::Bytes.format(status.longest as f64),
    ))?;
    let row = |writer: &dunlin_app_log::WriterInfo| {
        Row::new()
            .with("writer", format!("{:016x}", writer.id))
            .with("label", writer.label.as_str())
            .with("nothing_under_way_before", writer.watermark)
    };
    output::print(table(&status.writers.iter().map(row).collect::<Vec<_>>()))
}
