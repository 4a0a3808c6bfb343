//! `dunlin bench`: options, documents, output. What is measured and how is in `dunlin_bench::measure`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use dunlin_bench::floor::{LimitOptions, limit};
use dunlin_bench::measure::{
    Findings, LatencyOptions, Session, ThroughputOptions, latency, serve_peer_if_asked, throughput,
};
use dunlin_bench::report::{Document, Row};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// How fast two processes can exchange bytes here at all: the floors that everything else is compared with.
    Limit {
        #[command(flatten)]
        output: Output,
    },
    /// The round trip of one call at a time, busy on both sides, for each protocol and against its floor.
    Latency {
        /// Bytes of request and of answer; 32, 4096, 65536 and 1048576 have a floor.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
    /// Calls per second, one message for each and in batches, for each protocol and against the bare ring.
    Throughput {
        /// Bytes of request and of answer, at most 4096.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Clients, all of one worker, each with a thread and a connection.
        #[arg(long, default_value_t = 1, value_name = "N")]
        clients: usize,
        /// Calls of each client in flight with one message for each.
        #[arg(long, default_value_t = 64, value_name = "CALLS")]
        window: usize,
        /// Calls in a message of the batched rows.
        #[arg(long, default_value = "16,32", value_delimiter = ',', value_name = "CALLS")]
        batch: Vec<usize>,
        /// Calls of each client in flight in the batched rows.
        #[arg(long, default_value_t = 256, value_name = "CALLS")]
        batched_window: usize,
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
}

/// Which protocols, and how long.
#[derive(Args, Debug)]
pub(crate) struct Choice {
    /// Only this protocol, by its name (`Server-reply`, ...); may be given more than once.
    #[arg(long, value_name = "NAME")]
    protocol: Vec<String>,
    /// Slices of floor and subject in turn for each row, about 2 ms each.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
}

/// Where results go besides the table.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Write the document as JSON.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Draw the rows as SVG.
    #[arg(long, value_name = "PATH.svg")]
    plot: Option<PathBuf>,
}

/// In a process that a measurement started as its peer: serves, and gives the exit code.
pub(crate) fn serve_as_peer() -> Option<ExitCode> {
    match serve_peer_if_asked() {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("dunlin: the measurement's peer process: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Runs a measurement and prints it.
pub(crate) fn run(command: Bench) -> Result<()> {
    match command {
        Bench::Limit { output } => {
            let mut session = Session::start()?;
            let rows = limit(session.pair(), LimitOptions::default())?;
            finish("bench limit", "none", Row::new(), Findings { rows, notes: Vec::new() }, &output)
        }
        Bench::Latency { size, choice, output } => {
            let options = LatencyOptions { size, protocols: choice.protocol, rounds: choice.rounds };
            let parameters = Row::new().with("size_bytes", size);
            let findings = latency(&mut Session::start()?, &options)?;
            finish("bench latency", "shm", parameters, findings, &output)
        }
        Bench::Throughput { size, clients, window, batch, batched_window, choice, output } => {
            let options = ThroughputOptions {
                size,
                clients,
                window,
                batches: batch,
                batched_window,
                protocols: choice.protocol,
                rounds: choice.rounds,
            };
            let parameters = Row::new().with("size_bytes", size).with("clients", clients);
            let findings = throughput(&mut Session::start()?, &options)?;
            finish("bench throughput", "shm", parameters, findings, &output)
        }
    }
}

/// Prints the table and the notes; writes what was asked for.
fn finish(name: &str, fabric: &str, parameters: Row, findings: Findings, output: &Output) -> Result<()> {
    let mut document = Document::new(name, fabric, parameters);
    if !findings.notes.is_empty() {
        document.parameters.set("notes", findings.notes.clone());
    }
    document.rows = findings.rows;
    print!("{}", document.table());
    for note in &findings.notes {
        println!("note: {note}");
    }
    if let Some(path) = &output.json {
        document.write_json(path)?;
    }
    if let Some(path) = &output.plot {
        document.write_plot(path).context("cannot draw the plot")?;
    }
    Ok(())
}
