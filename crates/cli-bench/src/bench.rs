//! `dunlin bench`: options, documents, output. The measurements are in `dunlin_bench::measure`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use dunlin_bench::measure::{
    ClientsOptions, EventOptions, Findings, IdleOptions, KeyValueOptions, LatencyOptions, MeasureError,
    Session, Shared, Stop, ThreadsOptions, ThroughputOptions, TierIdleOptions, TierOptions, TypedOptions,
    clients, event, idle, key_value, latency, serve_peer_if_asked, threads, throughput, tier, tier_idle,
    typed,
};
use dunlin_floor::{LimitOptions, limit};
use dunlin_report::{Document, Row, markdown};

use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};

mod all;
mod atb;
pub(crate) mod fetch_table;
mod tuner;

/// The measurements.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure the physical limits of data exchange between two processes: the floors for all other
    /// measurements.
    Limit {
        #[command(flatten)]
        output: Output,
    },
    /// Measure the round trip of one call at a time for each protocol, in busy mode, and compare it with
    /// the floor.
    Latency {
        /// Size of request and response in bytes; 32, 4096, 65536 and 1048576 have a floor.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
    /// Measure calls per second for each protocol, one call per message and batched, and compare them with
    /// a bare ring.
    Throughput {
        /// Size of request and response in bytes, at most 4096.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Number of clients, each with its own thread and connection; one worker serves all.
        #[arg(long, default_value_t = 1, value_name = "N")]
        clients: usize,
        /// Calls in flight per client, with one call per message.
        #[arg(long, default_value_t = 64, value_name = "CALLS")]
        window: usize,
        /// Calls per message in the batched rows.
        #[arg(long, default_value = "16,32", value_delimiter = ',', value_name = "CALLS")]
        batch: Vec<usize>,
        /// Calls in flight per client in the batched rows.
        #[arg(long, default_value_t = 256, value_name = "CALLS")]
        batched_window: usize,
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
    /// Measure threads that share one connection, under a lock, by combining and by an asynchronous client, against a
    /// connection for each.
    Threads {
        /// Size of request and response in bytes, at most 4096.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Numbers of threads, up to 256.
        #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_name = "N")]
        threads: Vec<usize>,
        /// Numbers of calls that each thread has in flight.
        #[arg(long, default_value = "1,8", value_delimiter = ',', value_name = "CALLS")]
        in_flight: Vec<usize>,
        /// Name of the protocol.
        #[arg(long, default_value = "Direct-WriteIMM", value_name = "NAME")]
        protocol: String,
        /// Completion mode of both sides: busy, event or adaptive.
        #[arg(long, default_value = "adaptive", value_name = "MODE")]
        completion: String,
        /// Slices of each policy, about 40 ms each [default: 15].
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure up to thousands of connections on one worker: a ring for each, turns (ScaleRPC), and connections that
    /// several clients share (FLOCK). One thread makes the calls of all clients, one in flight of each; both sides are
    /// busy. `--plot` draws throughput and p99 over the number of clients.
    Clients {
        /// Size of request and response in bytes, at most 4096.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Numbers of clients, up to 4096.
        #[arg(long, default_value = "1,10,40,200,1000,2000", value_delimiter = ',', value_name = "N")]
        clients: Vec<usize>,
        /// How the clients share the worker: dedicated, grouped, combined.
        #[arg(long, default_value = "dedicated,grouped,combined", value_delimiter = ',', value_name = "POLICY", value_parser = shared)]
        sharing: Vec<Shared>,
        /// Name of the protocol; turns need requests by `write` or `write_imm`.
        #[arg(long, default_value = "Server-reply", value_name = "NAME")]
        protocol: String,
        /// Slices of each row, about 60 ms each [default: 9].
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure the overhead of generated code: typed against raw calls of the same size, one at a time, in
    /// busy mode.
    Typed {
        /// Size of binaries and texts in bytes.
        #[arg(long, default_value_t = 32, value_name = "BYTES")]
        size: usize,
        /// Alternations of raw and typed calls per row; slices of about 2 ms [default: 300].
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure GETs per second of random 16-byte keys with 32-byte values: one client process, one worker.
    Kv {
        /// Number of items in the store.
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        records: usize,
        /// Name of the protocol.
        #[arg(long, default_value = "Server-reply", value_name = "NAME")]
        protocol: String,
        /// Slices per row, about 2 ms each [default: 150].
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure round trips while both sides sleep, compare them with futex hand-over, and show the CPU time
    /// on one core.
    Event {
        #[command(flatten)]
        choice: Choice,
        #[command(flatten)]
        output: Output,
    },
    /// Measure the cost of a server with many idle connections: CPU time, and memory per connection.
    Idle {
        /// Number of open, idle connections.
        #[arg(long, default_value_t = 100, value_name = "N")]
        connections: usize,
        /// Duration of the CPU time measurement, in seconds.
        #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
        seconds: f64,
        /// Completion mode of both sides: busy, event or adaptive.
        #[arg(long, default_value = "adaptive", value_name = "MODE")]
        completion: String,
        /// Name of the protocol [default: that of the default plan].
        #[arg(long, value_name = "NAME")]
        protocol: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure the memory tier: operations of 64 bytes to 1 MiB by a process that attaches to the node of its host, by one
    /// that has a node itself, and on mapped memory, beside a call of the engine, requests of the fabric, and copies. Two
    /// nodes are in the other process.
    Tier {
        /// Rounds in which each operation has a slice of 3 ms [default: 31].
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        /// Only operations with this text in their row, as in "malloc" or "read 64 B", and those that they are compared
        /// with.
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure nodes of the memory tier without requests, each in a process of its own, while processes are attached to the
    /// first one: CPU time, and memory of that node per process.
    TierIdle {
        /// Number of nodes.
        #[arg(long, default_value_t = 10, value_name = "N")]
        nodes: usize,
        /// Number of processes that attach to the first node.
        #[arg(long, default_value_t = 100, value_name = "N")]
        processes: usize,
        /// Duration of the CPU time measurement, in seconds.
        #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
        seconds: f64,
        #[command(flatten)]
        output: Output,
    },
    /// Run HatRPC's Thrift benchmarks: plans selected by hints compete with every protocol.
    #[command(subcommand)]
    Atb(atb::Atb),
    /// Run HatRPC's key-value service on LMDB under YCSB's workloads: hints compete with other systems'
    /// protocols.
    Ycsb(atb::YcsbArguments),
    FetchTable(fetch_table::FetchTableArguments),
    FetchTuner(tuner::FetchTunerArguments),
    BatchTuner(tuner::BatchTunerArguments),
    /// Run all of these except atb, ycsb, fetch-table and the tuners, with the parameters of the project's
    /// figures; takes some minutes.
    All {
        #[command(flatten)]
        output: Output,
    },
}

/// Protocols and duration.
#[derive(Args, Debug)]
pub(crate) struct Choice {
    /// Measure only this protocol (`Server-reply`, ...); may be repeated.
    #[arg(long, value_name = "NAME")]
    protocol: Vec<String>,
    /// Alternations of floor and subject per row; slices of about 2 ms.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
}

/// Additional outputs of results.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Output {
    /// Also write the results to this file as one JSON document.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Also draw the results to this SVG file.
    #[arg(long, value_name = "PATH.svg")]
    plot: Option<PathBuf>,
    /// Also write the tables to this file as Markdown, each with its command; '-' prints them instead of
    /// the plain table.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

/// Parses a value of `--sharing`.
fn shared(word: &str) -> Result<Shared, String> {
    let found = Shared::ALL.into_iter().find(|shared| shared.name() == word);
    found.ok_or_else(|| "dedicated, grouped or combined".to_owned())
}

/// Serves and returns the exit code, if a measurement started this process as its peer.
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

/// Runs a measurement and prints its results.
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

/// Runs one measurement, most of them in a separate process pair.
fn measure(command: Bench) -> Result<(Document, Output)> {
    if let Bench::TierIdle { nodes, processes, seconds, output } = command {
        let watched = Duration::try_from_secs_f64(seconds).context("--seconds")?;
        let findings = tier_idle(&TierIdleOptions { nodes, processes, watched })?;
        return Ok((document("bench tier-idle", "shm", Row::new(), findings), output));
    }
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
        Bench::Threads { size, threads: counts, in_flight, protocol, completion, rounds, output } => {
            let parameters = Row::new()
                .with("size_bytes", size)
                .with("protocol", protocol.as_str())
                .with("completion", completion.as_str());
            let mode = completion.parse().map_err(MeasureError::BadArgument)?;
            let options = ThreadsOptions { size, threads: counts, in_flight, protocol, mode, rounds };
            let findings = threads(&mut session, &options)?;
            (document("bench threads", "shm", parameters, findings), output)
        }
        Bench::Clients { size, clients: counts, sharing, protocol, rounds, output } => {
            let parameters = Row::new().with("size_bytes", size).with("protocol", protocol.as_str());
            let options = ClientsOptions { size, clients: counts, sharing, protocol, rounds };
            let findings = clients(&mut session, &options)?;
            (document("bench clients", "shm", parameters, findings), output)
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
        Bench::Tier { rounds, only, output } => {
            let findings = tier(&mut session, &TierOptions { rounds, only })?;
            (document("bench tier", "shm", Row::new(), findings), output)
        }
        Bench::Atb(_)
        | Bench::Ycsb(_)
        | Bench::FetchTable(_)
        | Bench::FetchTuner(_)
        | Bench::BatchTuner(_)
        | Bench::TierIdle { .. }
        | Bench::All { .. } => {
            anyhow::bail!("only single measurements have one document each")
        }
    })
}

/// Runs one long measurement in a separate process pair. Prints its results, also those before a signal.
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
        // A signal from the terminal also ends the peer, and may be the cause of this failure.
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

/// Returns the notes of a document.
fn notes(document: &Document) -> impl Iterator<Item = &str> {
    let notes = document.parameters.get("notes").and_then(|notes| notes.as_array());
    notes.into_iter().flatten().filter_map(|note| note.as_str())
}

/// Formats a document as Markdown: the command, the table, the notes.
fn section(command: &str, rows: &[Row], document: &Document) -> String {
    let notes: String = notes(document).map(|note| format!("\nNote: {note}.\n")).collect();
    format!("\n## `dunlin {command}`\n\n{}{notes}", markdown(rows))
}

/// Returns the command line without the program name.
fn typed_words() -> String {
    std::env::args().skip(1).collect::<Vec<_>>().join(" ")
}

/// Writes Markdown to a file or, for `-`, to standard output. Returns whether it was standard output.
fn write_markdown(path: &Path, text: &str) -> Result<bool> {
    if path == Path::new("-") {
        print!("{text}");
        return Ok(true);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(false)
}

/// Prints the table and the notes, unless Markdown replaces them, and writes the requested files.
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
