//! The `dunlin` command, for interactive use and for scripts.
//!
//! This crate contains the commands that need only the engine, the fabrics and the store: options, help,
//! progress, tables, child processes. Commands that take long to build are separate programs
//! ([`external`]). Engine code, measurement loops, and anything that users of the library need belong
//! elsewhere.

mod completions;
mod demo;
mod doctor;
mod echo;
mod external;
mod kv;
mod ping;
mod protocols;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};
use dunlin_command::output::{self, Failure};
use dunlin_command::program::{APPS, BENCH, IDL, SIM, TIER};
use dunlin_command::{INTERNAL, child, describe, logging};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Start here:
  dunlin                                        demo: compare all protocols; one minute
  dunlin doctor                                 check this machine, and show what to change
  dunlin kv serve --listen shm:store            run a key-value server; then, in another terminal:
  dunlin kv put shm:store greeting hello
  dunlin kv get shm:store greeting
  dunlin ping shm:store

Exit status: 0 success; 1 failure (with the reason after 'error:'); 2 wrong usage; 130 interrupted.
-v, -vv or DUNLIN_LOG=debug log more; DUNLIN_LOG=dunlin::client=debug filters by module.";

/// RPC over remote memory access: a demo, a key-value store, measurements, a simulator.
#[derive(Debug, Parser)]
#[command(name = "dunlin", version, after_help = AFTER_HELP, arg_required_else_help = false, max_term_width = 110)]
struct Arguments {
    /// Log more to standard error: once connection events, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Command to run [default: demo]
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArguments),
    Ping(ping::PingArguments),
    Kv(kv::KvArguments),
    Protocols(protocols::ProtocolsArguments),
    Doctor(doctor::DoctorArguments),
    Completions(completions::CompletionsArguments),
    /// Measure this machine and this build against the machine's physical limits (program dunlin-bench)
    #[command(disable_help_flag = true)]
    Bench(external::Words),
    /// Run the engine and raw verbs in virtual time: papers' figures, sweeps, fault-injection swarms
    /// (program dunlin-sim)
    #[command(disable_help_flag = true)]
    Sim(external::Words),
    /// Explain the plans selected by the hints of a Thrift file (program dunlin-idl)
    #[command(disable_help_flag = true)]
    Explain(external::Words),
    /// Generate Rust from a Thrift file with hints (program dunlin-idl)
    #[command(name = "gen", disable_help_flag = true)]
    Generate(external::Words),
    /// Run and inspect this host's node of the memory tier (program dunlin-tier)
    #[command(disable_help_flag = true)]
    Node(external::Words),
    /// Write, read, list and free named regions of the memory tier (program dunlin-tier)
    #[command(disable_help_flag = true)]
    Tier(external::Words),
    /// Show or use applications on the memory tier: a log, MapReduce, a graph engine (program dunlin-apps)
    #[command(disable_help_flag = true)]
    Apps(external::Words),
}

/// The commands of child processes, which this program starts as `dunlin internal ...`.
#[derive(Debug, Parser)]
struct InternalArguments {
    #[command(subcommand)]
    command: InternalCommand,
}

#[derive(Debug, Subcommand)]
enum InternalCommand {
    EchoServer(echo::EchoServerArguments),
    DemoClient(demo::client::ClientArguments),
}

fn main() -> ExitCode {
    match describe::answer_if_asked(Arguments::command()) {
        Ok(None) => {}
        Ok(Some(code)) => return code,
        Err(failure) => return output::exit_code(Err(failure)),
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == INTERNAL) {
        let arguments = InternalArguments::parse_from(std::env::args_os().skip(1));
        logging::start(0);
        return output::exit_code(run_internal(&arguments));
    }
    let arguments = Arguments::parse();
    if !matches!(&arguments.command, Some(command) if command.is_external()) {
        logging::start(arguments.verbose);
    }
    output::exit_code(run(arguments))
}

impl Command {
    /// Returns whether another program runs the command. That program does its own logging.
    fn is_external(&self) -> bool {
        matches!(
            self,
            Command::Bench(_)
                | Command::Sim(_)
                | Command::Explain(_)
                | Command::Generate(_)
                | Command::Node(_)
                | Command::Tier(_)
                | Command::Apps(_)
        )
    }
}

fn run_internal(arguments: &InternalArguments) -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    match &arguments.command {
        InternalCommand::EchoServer(arguments) => echo::run(arguments),
        InternalCommand::DemoClient(arguments) => demo::client::run(arguments),
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    let verbose = arguments.verbose;
    match arguments.command.unwrap_or_else(|| Command::Demo(demo::DemoArguments::default())) {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Kv(arguments) => kv::run(arguments),
        Command::Protocols(arguments) => protocols::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Bench(words) => Err(words.exec(BENCH, None, verbose)),
        Command::Sim(words) => Err(words.exec(SIM, None, verbose)),
        Command::Explain(words) => Err(words.exec(IDL, Some("explain"), verbose)),
        Command::Generate(words) => Err(words.exec(IDL, Some("gen"), verbose)),
        Command::Node(words) => Err(words.exec(TIER, Some("node"), verbose)),
        Command::Tier(words) => Err(words.exec(TIER, Some("tier"), verbose)),
        Command::Apps(words) => Err(words.exec(APPS, Some("apps"), verbose)),
    }
}
