//! The `dunlin` command.

mod bench;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "dunlin", version, about = "RPC over remote memory")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Measure this machine and this build.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    // A measurement starts this binary again as its peer: nothing else may happen in that process.
    if let Some(code) = bench::serve_as_peer() {
        return code;
    }
    let Command::Bench(command) = Arguments::parse().command;
    match bench::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dunlin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
