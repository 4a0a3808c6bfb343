//! `dunlin sim bench`: measures the speed of the simulator, and the memory per simulated client.

use clap::Args;
use dunlin_command::arguments::sharing;
use dunlin_command::output::rounded;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::progress;
use dunlin_report::statistics::median;
use dunlin_report::{Axis, Bars, Chart, Content, Document, Row, Unit};
use dunlin_scenario::load::{Load, Network, Pace, Posting, Sharing};
use dunlin_scenario::random_values::Times;
use rustix::time::{ClockId, clock_gettime};
use std::process::{Command, ExitCode, Stdio};

/// Measure the simulator itself: simulated calls per second on one core, and memory per client
#[derive(Args, Debug)]
#[command(
    after_help = "The cost of a coroutine switch and of a cache miss differs between machines by a factor of three. The network
'bare' is therefore a reference: a prototype with the same clients, coroutines and an event heap, four events per call,
and nothing else. 'share of bare' is the speed of the real engine and simulator relative to it.

Examples:
  dunlin sim bench
  dunlin sim bench --network bare,rates --rounds 5
  dunlin sim bench --clients 40,400,4000 --network rates --plot speed.svg
  dunlin sim bench --network flock --clients 736 --sharing combined --threads-per-handle 3 --in-flight 8"
)]
pub(crate) struct BenchArguments {
    /// Numbers of simulated client threads
    #[arg(long, default_value = "40,4000", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// Networks: bare (no engine), rates (fixed rates), or the name of a profile for the model
    #[arg(long, default_value = "bare,rates,connect-ib", value_delimiter = ',', value_name = "NAME")]
    network: Vec<String>,
    /// How the threads of a machine use connections (not for 'bare')
    #[arg(long, default_value = "dedicated", value_name = "POLICY", value_parser = sharing())]
    sharing: Sharing,
    /// Threads on each connection
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads_per_handle: u16,
    /// Calls in flight of each thread (not for 'bare')
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// Simulated calls per row
    #[arg(long, default_value_t = 3_000_000, value_name = "CALLS")]
    calls: u64,
    /// Seed of the simulation
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    /// Measure all rows this many times alternately, and report each row's median speed
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    #[command(flatten)]
    report: ReportArguments,
    /// Measure the given row in this process and print it as JSON; used to run each row in a separate
    /// process
    #[arg(long, hide = true)]
    row: bool,
}

/// Returns the CPU time of this thread so far, in nanoseconds.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the resident memory of this process in bytes, without the pages of its executable. Those are
/// shared by all processes that run it, and do not depend on the number of clients.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Name of the network without engine and simulator.
const BARE: &str = "bare";
const SPEED: &str = "simulated_calls_ops";
const SHARE: &str = "share_of_bare_ratio";

/// The fields of a row, in order.
const FIELDS: [&str; 10] = [
    "network",
    "clients",
    "calls",
    SPEED,
    SHARE,
    "memory_bytes_per_client",
    "events_per_call",
    "switches_per_call",
    "virtual_throughput_ops",
    "virtual_p50_ns",
];

/// Further fields of rows whose threads share connections.
const SHARED_FIELDS: [&str; 3] = ["virtual_p99_ns", "calls_per_message", "doorbells_per_call"];

/// Largest number of clients that is measured without huge pages, which would dominate the memory of a
/// small row.
const FEW: usize = 256;

impl BenchArguments {
    /// Returns whether this process measures a row with many clients itself.
    pub(crate) fn is_large_row(&self) -> bool {
        self.row && self.clients.iter().any(|clients| *clients > FEW)
    }
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    // Reject unknown networks before the first row is measured.
    arguments.network.iter().try_for_each(|name| network(name).map(|_| ()))?;
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
    let mut rounds = Vec::new();
    let bar = progress::counting(u64::from(arguments.rounds) * wanted.len() as u64, "rows");
    for _ in 0..arguments.rounds {
        let row = |(network, clients): &(&String, usize)| {
            let row = in_its_own_process(arguments, *clients, network);
            bar.inc(1);
            row
        };
        rounds.push(wanted.iter().map(row).collect::<Result<Vec<_>, _>>()?);
    }
    bar.finish_and_clear();
    document.rows = over_rounds(rounds);
    output::print(document.table())?;
    arguments.report.write_with(&document, &charts(&document.rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the network with this name; `None` for the bare prototype, which has no engine.
fn network(name: &str) -> Result<Option<Network>, Failure> {
    if name == BARE {
        return Ok(None);
    }
    let rates = Network::Rates;
    Network::by_name(name).map(Some).map_err(|error| {
        Failure::new(error).help(format!("besides profiles, --network takes {BARE} and {}", rates.name()))
    })
}

/// Measures a row in a new process. Memory freed by an earlier row stays with its process, and would hide
/// this row's use.
fn in_its_own_process(arguments: &BenchArguments, clients: usize, network: &str) -> Result<Row, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("a process for the row: {error}"));
    let child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["bench", "--row", "--network", network])
        .args(["--clients", &clients.to_string(), "--calls", &arguments.calls.to_string()])
        .args(["--seed", &arguments.seed.to_string()])
        .args(["--sharing", arguments.sharing.name()])
        .args(["--threads-per-handle", &arguments.threads_per_handle.to_string()])
        .args(["--in-flight", &arguments.in_flight.to_string()])
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
    let shared = if arguments.sharing == Sharing::Dedicated { &[][..] } else { &SHARED_FIELDS[..] };
    Ok(FIELDS.iter().chain(shared).copied().fold(Row::new(), field))
}

/// Combines the rounds: the rows of the first, with the median speed of all rounds, and the median share of
/// the speed of the bare prototype with the same number of clients.
fn over_rounds(mut rounds: Vec<Vec<Row>>) -> Vec<Row> {
    let speed = |row: &Row| row.number(SPEED).unwrap_or_default();
    let speeds: Vec<Vec<f64>> = rounds.iter().map(|rows| rows.iter().map(speed).collect()).collect();
    let mut rows = rounds.swap_remove(0);
    let bares: Vec<Option<usize>> = rows
        .iter()
        .map(|row| {
            let bare = |other: &Row| {
                other.get("network").is_some_and(|name| name == BARE)
                    && other.get("clients") == row.get("clients")
            };
            rows.iter().position(bare)
        })
        .collect();
    for (at, row) in rows.iter_mut().enumerate() {
        row.set(SPEED, median(speeds.iter().map(|round| round[at])));
        if let Some(bare) = bares[at] {
            row.set(SHARE, median(speeds.iter().map(|round| round[at] / round[bare])).map(rounded));
        }
    }
    rows
}

/// Draws speed and memory as bars.
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
        chart("simulated calls per second of one core", SPEED, Unit::OperationsPerSecond),
        chart("memory for each simulated client", "memory_bytes_per_client", Unit::Bytes),
    ]
}

/// Measures the prototype's row, which has neither memory nor latencies.
fn measure_bare(clients: usize, calls: u64) -> Result<Row, Failure> {
    let mut began = 0;
    let bare =
        dunlin_fabric_sim::bare::run(clients, calls, || began = processor_ns()).map_err(Failure::new)?;
    let took = processor_ns().saturating_sub(began).max(1);
    let calls = bare.calls.max(1) as f64;
    Ok(Row::new()
        .with("network", BARE)
        .with("clients", clients)
        .with("calls", bare.calls)
        .with(SPEED, calls * 1e9 / took as f64)
        .with("events_per_call", rounded(bare.events as f64 / calls))
        .with("switches_per_call", rounded(bare.switches as f64 / calls)))
}

fn measure(arguments: &BenchArguments, clients: usize, name: &str) -> Result<Row, Failure> {
    let Some(network) = network(name)? else { return measure_bare(clients, arguments.calls) };
    let mut load = Load::bench(clients, arguments.calls, network.clone());
    let is_shared = arguments.sharing != Sharing::Dedicated;
    for function in &mut load.functions {
        function.plan = function.plan.shared(arguments.sharing, function.plan.lease);
    }
    load.handles = Some(clients.div_ceil(usize::from(arguments.threads_per_handle)));
    load.pace = Pace::Closed { window: arguments.in_flight, think: Times::Fixed(0) };
    if is_shared {
        load.posting = Posting::Counted;
    }
    let before = resident();
    let outcome = load.run(arguments.seed, || [processor_ns(), resident()]).map_err(Failure::new)?;
    // Count only the calls, not the connecting.
    let [began, _, ended, memory] = outcome.probes;
    let took = ended.saturating_sub(began).max(1);
    let memory = memory.saturating_sub(before);
    let calls = outcome.all.calls.max(1) as f64;
    let row = Row::new()
        .with("network", network.name())
        .with("clients", clients)
        .with("calls", outcome.all.calls)
        .with(SPEED, calls * 1e9 / took as f64)
        .with("memory_bytes_per_client", memory / clients.max(1) as u64)
        .with("events_per_call", rounded(outcome.events as f64 / calls))
        .with("switches_per_call", rounded(outcome.switches as f64 / calls))
        .with("virtual_throughput_ops", outcome.throughput())
        .with("virtual_p50_ns", outcome.all.p50_ns);
    if !is_shared {
        return Ok(row);
    }
    Ok(row
        .with("virtual_p99_ns", outcome.all.p99_ns)
        .with("calls_per_message", rounded(outcome.degree()))
        .with("doorbells_per_call", rounded(outcome.rung as f64 / calls)))
}
