//! The program of `dunlin apps`: applications on the memory tier, attached to the node of this host or with nodes of
//! their own.

mod demo;
mod graph;
mod log;
mod mapreduce;
mod memory;

use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use dunlin_command::output::{self, Failure};
use dunlin_command::{child, describe, logging};
use std::process::ExitCode;

/// Applications on the memory tier
#[derive(Debug, Parser)]
#[command(name = "dunlin-apps", bin_name = "dunlin", version, max_term_width = 110)]
struct Arguments {
    /// Log more on standard error: once events of connections, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Apps(AppsArguments),
}

const AFTER_HELP: &str = "\
Examples:
  dunlin apps                                    shows all of them, needs no node
  dunlin node run &                              the node of this host
  dunlin apps log create orders
  dunlin apps log append orders hello
  dunlin apps log tail orders
  dunlin apps graph pagerank --rmat 20           needs no node
  dunlin apps mapreduce wordcount README.md      needs no node
  dunlin apps memory count                       needs no node";

/// Use applications on the memory tier: a global log, a graph engine, MapReduce, shared memory.
///
/// Without an application, a demonstration of all four runs, for half a minute.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
struct AppsArguments {
    /// Show the applications with small data, in a few seconds
    #[arg(long)]
    quick: bool,
    #[command(subcommand)]
    application: Option<Application>,
}

#[derive(Debug, Subcommand)]
enum Application {
    Log(log::LogArguments),
    Graph(graph::GraphArguments),
    Mapreduce(mapreduce::MapReduceArguments),
    Memory(memory::MemoryArguments),
}

fn main() -> ExitCode {
    output::exit_code(run())
}

fn run() -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    if let Some(code) = describe::answer_if_asked(Arguments::command())? {
        return Ok(code);
    }
    let arguments = Arguments::parse();
    logging::start(arguments.verbose);
    let Command::Apps(AppsArguments { quick, application }) = arguments.command;
    match application {
        Some(application) => application.run(),
        None => demo::run(quick),
    }
}

impl Application {
    fn run(&self) -> Result<ExitCode, Failure> {
        match self {
            Application::Log(arguments) => log::run(arguments),
            Application::Graph(arguments) => graph::run(arguments),
            Application::Mapreduce(arguments) => mapreduce::run(arguments),
            Application::Memory(arguments) => memory::run(arguments),
        }
    }
}
