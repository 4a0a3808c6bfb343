//! `dunlin sim bench`: how fast the simulator is, and what a simulated client takes of memory.

use crate::output::Failure;
use clap::Args;
use dunlin_bench::report::{Document, Row};
use dunlin_scenario::load::{Load, Network};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure the simulator itself: simulated calls per second of one core, and memory for each client.
#[derive(Args, Debug)]
pub(crate) struct BenchArguments {
    /// Simulated clients, one call in flight each
    #[arg(long, default_value = "40,4000", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// Calls of each row
    #[arg(long, default_value_t = 3_000_000, value_name = "CALLS")]
    calls: u64,
    /// The seed
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    /// Write the document as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// Processor time of this thread so far, in nanoseconds.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let parameters = Row::new().with("calls", arguments.calls).with("seed", arguments.seed);
    let mut document = Document::new("sim bench", "sim", parameters);
    for network in [Network::Rates, Network::Modelled("connect-ib".to_owned())] {
        for clients in &arguments.clients {
            document.rows.push(measure(arguments, *clients, &network)?);
        }
    }
    print!("{}", document.table());
    if let Some(path) = &arguments.json {
        document.write_json(path).map_err(Failure::new)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(arguments: &BenchArguments, clients: usize, network: &Network) -> Result<Row, Failure> {
    let load = Load::bench(clients, arguments.calls, network.clone());
    let before = resident();
    let outcome = load.run(arguments.seed, || [processor_ns(), resident()]).map_err(Failure::new)?;
    // Only the calls count, not the connecting.
    let [began, _, ended, memory] = outcome.probes;
    let took = ended.saturating_sub(began).max(1);
    let memory = memory.saturating_sub(before);
    Ok(Row::new()
        .with("network", network.name())
        .with("clients", clients)
        .with("calls", outcome.calls)
        .with("simulated_calls_ops", outcome.calls as f64 * 1e9 / took as f64)
        .with("memory_bytes_per_client", memory / clients.max(1) as u64)
        .with("events_per_call", outcome.events as f64 / outcome.calls.max(1) as f64)
        .with("virtual_throughput_ops", outcome.throughput())
        .with("virtual_p50_ns", outcome.p50_ns))
}
