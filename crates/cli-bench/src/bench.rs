//! `dunlin bench`: options, documents, output. What is measured and how is in `dunlin_bench::measure`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use dunlin_bench::measure::{
    EventOptions, Findings, IdleOptions, KeyValueOptions, LatencyOptions, MeasureError, Session, Stop,
    ThroughputOptions, TypedOptions, event, idle, key_value, latency, serve_peer_if_asked, throughput, typed,
};
use dunlin_floor::{LimitOptions, limit};
use dunlin_report::{Document, Row, markdown};

use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};

mod all;
mod atb;
pub(crate) mod fetch_table;
mod tuner;

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
    /// What generated code costs: typed calls and raw ones of as many bytes in turn, one at a time, busy on both sides.
    Typed {
        /// Bytes of the binaries and texts.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Slices of raw and typed calls in turn for each row, about 2 ms each.
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// GETs per second of 16-byte keys with 32-byte values, chosen uniformly: one client process, one worker.
    Kv {
        /// Items in the store.
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        records: usize,
        /// The protocol, by its name.
        #[arg(long, default_value = "Server-reply", value_name = "NAME")]
        protocol: String,
        /// Slices for each row, about 2 ms each.
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Round trips where both sides sleep, against the futex hand-over, and their CPU time on one core.
    Event {
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
    /// What a server with many quiet connections costs: CPU time, and memory for each.
    Idle {
        /// Connections that are open and quiet.
        #[arg(long, default_value_t = 100, value_name = "N")]
        connections: usize,
        /// How long the server's CPU time is watched.
        #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
        seconds: f64,
        /// How both sides wait: busy, event or adaptive.
        #[arg(long, default_value = "adaptive", value_name = "MODE")]
        completion: String,
        /// The protocol, by its name; else that of the default plan.
        #[arg(long, value_name = "NAME")]
        protocol: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// HatRPC's Thrift benchmarks: a service whose hints choose the plan, against every protocol.
    #[command(subcommand)]
    Atb(atb::Atb),
    /// HatRPC's key-value service on LMDB under YCSB's workloads, by hints and by other systems' protocols.
    Ycsb(atb::YcsbArguments),
    FetchTable(fetch_table::FetchTableArguments),
    FetchTuner(tuner::FetchTunerArguments),
    BatchTuner(tuner::BatchTunerArguments),
    /// All of these but atb, ycsb, fetch-table and the tuners with the parameters that the project's figures are given for; some minutes.
    All {
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
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Output {
    /// Write the document as JSON.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Draw the rows as SVG.
    #[arg(long, value_name = "PATH.svg")]
    plot: Option<PathBuf>,
    /// Write the tables as Markdown, each with the command that prints it; - for standard output instead of the plain table.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
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
pub(crate) fn run(command: Bench) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| Failure::new(format!("{error:#}"));
    match command {
        Bench::Atb(command) => atb::run(command),
        Bench::Ycsb(arguments) => atb::run_ycsb(arguments),
        Bench::FetchTable(arguments) => fetch_table::run(&arguments),
        Bench::FetchTuner(arguments) => tuner::run_fetch(arguments),
        Bench::BatchTuner(arguments) => tuner::run_batch(arguments),
        Bench::All { output } => all::run(&output).map_err(failed),
        command => {
            let (document, output) = measure(command).map_err(failed)?;
            finish(&document, &output).map_err(failed)
        }
    }
}

/// Runs one measurement in a process pair of its own.
fn measure(command: Bench) -> Result<(Document, Output)> {
    let mut session = Session::start()?;
    Ok(match command {
        Bench::Limit { output } => {
            let rows = limit(session.pair(), LimitOptions::default())?;
            (document("bench limit", "none", Row::new(), Findings { rows, notes: Vec::new() }), output)
        }
        Bench::Latency { size, choice, output } => {
            let options = LatencyOptions { size, protocols: choice.protocol, rounds: choice.rounds };
            let findings = latency(&mut session, &options)?;
            (document("bench latency", "shm", Row::new().with("size_bytes", size), findings), output)
        }
        Bench::Throughput { size, clients, window, batch, batched_window, choice, output } => {
            let parameters = Row::new()
                .with("size_bytes", size)
                .with("clients", clients)
                .with("window", window)
                .with("batches", batch.clone())
                .with("batched_window", batched_window);
            let options = ThroughputOptions {
                size,
                clients,
                window,
                batches: batch,
                batched_window,
                protocols: choice.protocol,
                rounds: choice.rounds,
            };
            let findings = throughput(&mut session, &options)?;
            (document("bench throughput", "shm", parameters, findings), output)
        }
        Bench::Typed { size, rounds, output } => {
            let findings = typed(&mut session, &TypedOptions { size, rounds })?;
            (document("bench typed", "shm", Row::new().with("size_bytes", size), findings), output)
        }
        Bench::Kv { records, protocol, rounds, output } => {
            let options = KeyValueOptions { records, protocol, rounds, ..KeyValueOptions::default() };
            let findings = key_value(&mut session, &options)?;
            (document("bench kv", "shm", Row::new().with("records", records), findings), output)
        }
        Bench::Event { choice, output } => {
            let options = EventOptions { protocols: choice.protocol, rounds: choice.rounds };
            let findings = event(&mut session, &options)?;
            (document("bench event", "shm", Row::new().with("size_bytes", 32), findings), output)
        }
        Bench::Idle { connections, seconds, completion, protocol, output } => {
            let options = IdleOptions {
                connections,
                watched: Duration::try_from_secs_f64(seconds).context("--seconds")?,
                protocol,
                completion: completion.parse().map_err(MeasureError::BadArgument)?,
            };
            let findings = idle(&mut session, &options)?;
            let parameters = Row::new().with("connections", connections).with("seconds", seconds);
            (document("bench idle", "shm", parameters, findings), output)
        }
        Bench::Atb(_)
        | Bench::Ycsb(_)
        | Bench::FetchTable(_)
        | Bench::FetchTuner(_)
        | Bench::BatchTuner(_)
        | Bench::All { .. } => {
            anyhow::bail!("only single measurements have one document each")
        }
    })
}

/// Runs one long measurement in a process pair of its own and shows what it gives, also after a signal.
fn measure_to_the_end(
    name: &str,
    parameters: Row,
    output: &Output,
    measurement: impl FnOnce(&mut Session, Stop) -> Result<Findings, MeasureError>,
) -> Result<(), Failure> {
    for path in [&output.json, &output.plot, &output.markdown].into_iter().flatten() {
        output::check_writable(path)?;
    }
    let interrupt = Interrupt::install()?;
    let mut session = Session::start().map_err(Failure::new)?;
    let outcome = measurement(&mut session, interrupt.shared_flag());
    if outcome.is_err() {
        // A signal from the terminal reaches the peer, too, and then this is why the measurement failed.
        interrupt.check()?;
    }
    let findings = outcome.map_err(Failure::new)?;
    if findings.rows.is_empty() {
        interrupt.check()?;
    }
    let shown = finish(&document(name, "shm", parameters, findings), output);
    shown.map_err(|error| Failure::new(format!("{error:#}")))?;
    interrupt.check()
}

fn document(name: &str, fabric: &str, parameters: Row, findings: Findings) -> Document {
    let mut document = Document::new(name, fabric, parameters);
    if !findings.notes.is_empty() {
        document.parameters.set("notes", findings.notes);
    }
    document.rows = findings.rows;
    document
}

/// What a document says beside its rows.
fn notes(document: &Document) -> impl Iterator<Item = &str> {
    let notes = document.parameters.get("notes").and_then(|notes| notes.as_array());
    notes.into_iter().flatten().filter_map(|note| note.as_str())
}

/// The document in Markdown: the command, the table, the notes.
fn section(command: &str, rows: &[Row], document: &Document) -> String {
    let notes: String = notes(document).map(|note| format!("\nNote: {note}.\n")).collect();
    format!("\n## `dunlin {command}`\n\n{}{notes}", markdown(rows))
}

/// The command line as it was typed, without the program.
fn typed_words() -> String {
    std::env::args().skip(1).collect::<Vec<_>>().join(" ")
}

/// Writes Markdown where it was asked for; says whether that is standard output.
fn write_markdown(path: &Path, text: &str) -> Result<bool> {
    if path == Path::new("-") {
        print!("{text}");
        return Ok(true);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(false)
}

/// Prints the table and the notes, unless Markdown is printed instead; writes what was asked for.
fn finish(document: &Document, output: &Output) -> Result<()> {
    let printed = match &output.markdown {
        Some(path) => {
            write_markdown(path, &section(&typed_words(), &atb::summary(&document.rows), document))?
        }
        None => false,
    };
    if !printed {
        print!("{}", document.table());
        for note in notes(document) {
            println!("note: {note}");
        }
    }
    if let Some(path) = &output.json {
        document.write_json(path)?;
    }
    if let Some(path) = &output.plot {
        document.write_plot(path).context("cannot draw the plot")?;
    }
    Ok(())
}
