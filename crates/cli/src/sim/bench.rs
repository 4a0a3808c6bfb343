//! `dunlin sim bench`: how fast the simulator is, and what a simulated client takes of memory.

use super::rounded;
use crate::output::{self, Failure, ReportArguments};
use clap::Args;
use dunlin_bench::report::{Axis, Bars, Chart, Content, Document, Row, Unit};
use dunlin_scenario::load::{Load, Network};
use rustix::time::{ClockId, clock_gettime};
use std::process::{Command, ExitCode, Stdio};

/// Measure the simulator itself: simulated calls per second of one core, and memory for each client
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  dunlin sim bench
  dunlin sim bench --clients 40,400,4000 --network rates --plot speed.svg")]
pub(crate) struct BenchArguments {
    /// Simulated clients, one call in flight each
    #[arg(long, default_value = "40,4000", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// What the network is: rates (fixed ones) or the model with one of its profiles
    #[arg(long, default_value = "rates,connect-ib", value_delimiter = ',', value_name = "NAME")]
    network: Vec<String>,
    /// Calls of each row
    #[arg(long, default_value_t = 3_000_000, value_name = "CALLS")]
    calls: u64,
    /// The seed
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    #[command(flatten)]
    report: ReportArguments,
    /// Measure the one row asked for here and print it as JSON: how a row gets a process of its own
    #[arg(long, hide = true)]
    row: bool,
}

/// Processor time of this thread so far, in nanoseconds.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Resident memory of this process in bytes, without the pages of its program: those are in memory once, for all that run it,
/// and as many with one client as with thousands.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The fields of a row in their order.
const FIELDS: [&str; 9] = [
    "network",
    "clients",
    "calls",
    "simulated_calls_ops",
    "memory_bytes_per_client",
    "events_per_call",
    "switches_per_call",
    "virtual_throughput_ops",
    "virtual_p50_ns",
];

/// Clients whose memory the processor finds without huge pages; these would be most of what is counted for so few.
const FEW: usize = 256;

impl BenchArguments {
    /// Whether this process measures a row of many clients itself.
    pub(crate) fn is_large_row(&self) -> bool {
        self.row && self.clients.iter().any(|clients| *clients > FEW)
    }
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let wanted: Vec<(&String, usize)> = arguments
        .network
        .iter()
        .flat_map(|network| arguments.clients.iter().map(move |clients| (network, *clients)))
        .collect();
    if arguments.row {
        for (network, clients) in wanted {
            let row = measure(arguments, clients, network)?;
            output::print_line(serde_json::to_string(&row).map_err(Failure::new)?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let parameters = Row::new().with("calls", arguments.calls).with("seed", arguments.seed);
    let mut document = Document::new("sim bench", "sim", parameters);
    for (network, clients) in wanted {
        document.rows.push(in_its_own_process(arguments, clients, network)?);
    }
    output::print(document.table())?;
    arguments.report.write_with(&document, &charts(&document.rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a row in a new process: memory that an earlier row has given back stays with its process, and would hide
/// what this one takes.
fn in_its_own_process(arguments: &BenchArguments, clients: usize, network: &str) -> Result<Row, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("a process for the row: {error}"));
    let child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["sim", "bench", "--row", "--network", network])
        .args(["--clients", &clients.to_string(), "--calls", &arguments.calls.to_string()])
        .args(["--seed", &arguments.seed.to_string()])
        .stderr(Stdio::piped())
        .output()
        .map_err(failed)?;
    if !child.status.success() {
        let said = String::from_utf8_lossy(&child.stderr);
        let said = said.trim();
        return Err(Failure::new(said.strip_prefix("error: ").unwrap_or(said).to_owned()));
    }
    let values: serde_json::Value = serde_json::from_slice(&child.stdout).map_err(Failure::new)?;
    let field = |row: Row, name: &str| row.with(name, values.get(name).cloned().unwrap_or_default());
    Ok(FIELDS.into_iter().fold(Row::new(), field))
}

/// Speed and memory, as bars.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let text = |row: &Row, name: &str| {
        row.get(name)
            .map_or_else(String::new, |value| value.as_str().map_or(value.to_string(), str::to_owned))
    };
    let categories: Vec<String> = rows
        .iter()
        .map(|row| format!("{}, {} clients", text(row, "network"), text(row, "clients")))
        .collect();
    let chart = |title: &str, field: &str, unit| Chart {
        title: title.to_owned(),
        values: Axis { label: title.to_owned(), unit, logarithmic: false },
        content: Content::Bars(Bars {
            categories: categories.clone(),
            series: vec![("measured".to_owned(), rows.iter().map(|row| row.number(field)).collect())],
        }),
    };
    vec![
        chart("simulated calls per second of one core", "simulated_calls_ops", Unit::OperationsPerSecond),
        chart("memory for each simulated client", "memory_bytes_per_client", Unit::Bytes),
    ]
}

fn measure(arguments: &BenchArguments, clients: usize, network: &str) -> Result<Row, Failure> {
    let network = match network {
        "rates" => Network::Rates,
        profile => Network::Modelled(profile.to_owned()),
    };
    let load = Load::bench(clients, arguments.calls, network.clone());
    let before = resident();
    let outcome = load.run(arguments.seed, || [processor_ns(), resident()]).map_err(Failure::new)?;
    // Only the calls count, not the connecting.
    let [began, _, ended, memory] = outcome.probes;
    let took = ended.saturating_sub(began).max(1);
    let memory = memory.saturating_sub(before);
    let calls = outcome.all.calls.max(1) as f64;
    Ok(Row::new()
        .with("network", network.name())
        .with("clients", clients)
        .with("calls", outcome.all.calls)
        .with("simulated_calls_ops", calls * 1e9 / took as f64)
        .with("memory_bytes_per_client", memory / clients.max(1) as u64)
        .with("events_per_call", rounded(outcome.events as f64 / calls))
        .with("switches_per_call", rounded(outcome.switches as f64 / calls))
        .with("virtual_throughput_ops", outcome.throughput())
        .with("virtual_p50_ns", outcome.all.p50_ns))
}
