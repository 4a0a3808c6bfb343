//! The `dunlin` command: what people start with, and what the scripts call.
//!
//! What may come in: options, help, progress, tables, exit statuses, processes to start and to clean up. What never
//! does: engine code, measurement loops (they are `dunlin_bench`'s) and anything a library user would miss.
//!
//! Exit statuses: 0 done; 1 failed, with `error:` and `help:` on standard error; 2 wrong usage; 130 or 143 ended by
//! SIGINT or SIGTERM.

mod arguments;
mod bench;
mod child;
mod completions;
mod demo;
mod doctor;
mod echo;
mod explain;
mod generate;
mod interrupt;
mod kv;
mod logging;
mod output;
mod ping;
mod progress;
mod protocols;
mod sim;

use clap::{ArgAction, Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Start here:
  dunlin                                        the demo: every protocol side by side, half a minute
  dunlin doctor                                 what this machine offers, and what to change
  dunlin kv serve --listen shm:store            a key-value server; then, in another terminal:
  dunlin kv put shm:store greeting hello
  dunlin kv get shm:store greeting
  dunlin ping shm:store

Exit status: 0 done; 1 failed (the reason stands after 'error:'); 2 wrong usage; 130 interrupted.
DUNLIN_LOG=debug, or -v, -vv, shows what happens inside (filters as in DUNLIN_LOG=dunlin::client=debug).";

/// RPC over remote memory: a demo, a key-value store, measurements.
#[derive(Debug, Parser)]
#[command(name = "dunlin", version, after_help = AFTER_HELP, arg_required_else_help = false, max_term_width = 110)]
struct Arguments {
    /// Say more on standard error: once what happens to connections, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// What to do; the demo if nothing is said
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArguments),
    Ping(ping::PingArguments),
    Kv(kv::KvArguments),
    /// Measure this machine and this build against the machine's own floors
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Run the engine and raw verbs in virtual time: figures of papers, sweeps, swarms with faults
    #[command(subcommand)]
    Sim(sim::Sim),
    Protocols(protocols::ProtocolsArguments),
    Explain(explain::ExplainArguments),
    #[command(name = "gen")]
    Generate(generate::GenerateArguments),
    Doctor(doctor::DoctorArguments),
    Completions(completions::CompletionsArguments),
}

/// What this binary does in the processes that it starts from itself, as `dunlin internal ...`: not for users, so
/// neither help nor completions know of it.
#[derive(Debug, Parser)]
struct InternalArguments {
    #[command(subcommand)]
    command: InternalCommand,
}

#[derive(Debug, Subcommand)]
enum InternalCommand {
    EchoServer(echo::EchoServerArguments),
    DemoClient(demo::client::ClientArguments),
    FetchTablePeer(bench::fetch_table::PeerArguments),
}

/// The word before an [`InternalCommand`].
const INTERNAL: &str = "internal";

fn main() -> ExitCode {
    // A measurement starts this binary again as its peer: nothing else may happen in that process.
    if let Some(code) = bench::serve_as_peer() {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == INTERNAL) {
        let arguments = InternalArguments::parse_from(std::env::args_os().skip(1));
        logging::start(0);
        return output::exit_code(run_internal(&arguments));
    }
    let arguments = Arguments::parse();
    // What the engine logs in a swarm is about faults that are meant.
    if arguments.verbose > 0 || !matches!(arguments.command, Some(Command::Sim(_))) {
        logging::start(arguments.verbose);
    }
    output::exit_code(run(arguments))
}

fn run_internal(arguments: &InternalArguments) -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    match &arguments.command {
        InternalCommand::EchoServer(arguments) => echo::run(arguments),
        InternalCommand::DemoClient(arguments) => demo::client::run(arguments),
        InternalCommand::FetchTablePeer(arguments) => bench::fetch_table::run_peer(arguments),
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    match arguments.command.unwrap_or_else(|| Command::Demo(demo::DemoArguments::default())) {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Kv(arguments) => kv::run(arguments),
        Command::Bench(command) => bench::run(command).map(|()| ExitCode::SUCCESS),
        Command::Sim(command) => sim::run(&command),
        Command::Protocols(arguments) => protocols::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}
