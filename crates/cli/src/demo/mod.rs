//! `dunlin demo`: runs one workload against a key-value server under every protocol, with client processes,
//! and cleans up.

pub(crate) mod client;
mod cpu;
mod phase;

use crate::kv;
use clap::Args;
use client::ClientReport;
use dunlin::Address;
use dunlin::fabric::Fabric as _;
use dunlin_command::child::{ChildProcess, START_TIMEOUT};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::program::{SIM, TIER};
use dunlin_command::{arguments, progress};
use dunlin_report::{Document, Row, table};
use dunlin_workload::kv_driver::{Tally, load_records};
use dunlin_workload::ycsb::{Workload, shipped};
use indicatif::ProgressBar;
use phase::Phase;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Starts a key-value server and clients, each in a separate process, over shared memory. Loads records of 16-byte keys
and 32-byte values, and runs YCSB workload B (95 % reads, 5 % updates, zipfian) under each protocol: first in busy mode,
with one core per client; then, for protocols that can sleep, in adaptive mode with all clients. If the simulator is
installed, a scene on a simulated NIC follows ('dunlin sim scene'), and if the memory tier is, one of processes that share
two nodes ('dunlin tier scene'). At the end, and after Ctrl-C, all processes are
ended and all files removed.

Examples:
  dunlin demo --seconds 5 --clients 4 --plot demo.svg
  dunlin demo --quick                                       a few seconds; used by the tests";

/// Operations in flight per client.
const WINDOW: u16 = 16;
/// Memory limit of the server.
const MEMORY: &str = "128MiB";
/// Time limit for a client's report after its end.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// Run a key-value workload under every protocol and compare the results ('dunlin' alone runs this).
#[derive(Args, Debug, Default)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DemoArguments {
    /// Duration of each row [default: 2, or 0.2 with --quick]
    #[arg(long, short, value_parser = arguments::positive_duration, value_name = "TIME")]
    seconds: Option<Duration>,
    /// Client processes in rows where clients may sleep [default: 3, or as many as there are cores besides
    /// the server's]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    clients: Option<u16>,
    /// Do a short run with fewer records, to check that everything works
    #[arg(long, short)]
    quick: bool,
    #[command(flatten)]
    report: ReportArguments,
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let interrupt = Interrupt::install()?;
    let seconds =
        arguments.seconds.unwrap_or(Duration::from_millis(if arguments.quick { 200 } else { 2000 }));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // One worker saturates several clients. Add workers only if enough cores remain for clients.
    let workers = (cores / 8).clamp(1, 4);
    let sleeping = arguments.clients.map_or((cores - workers.min(cores)).clamp(3, 16), usize::from);
    let spinning = (cores - workers.min(cores)).clamp(1, sleeping);
    let workload = workload(arguments.quick)?;
    let fabric = dunlin_command::shared_memory()?;
    let phases = Phase::all(fabric.capabilities(), spinning, sleeping);

    let name = format!("shm:dunlin-demo-{}", std::process::id());
    let address: Address = name.parse().map_err(Failure::new)?;
    let mut server = ChildProcess::start(
        "the server",
        ["kv", "serve", "--listen", &name, "--workers", &workers.to_string(), "--memory", MEMORY],
    )?;
    server.line(&interrupt, START_TIMEOUT)?;
    output::print_line(format_args!(
        "key-value server: process {}, {workers} {}, {address}; {cores} cores here",
        server.id(),
        if workers == 1 { "worker" } else { "workers" }
    ))?;
    load(&address, &fabric, &workload, &interrupt)?;

    let mut document = Document::new("demo", "shm", parameters(&workload, seconds, workers));
    let all = progress::timing(seconds * phases.len() as u32, "");
    for (number, phase) in phases.iter().enumerate() {
        all.set_message(format!(
            "{} {} ({} of {})",
            phase.protocol.name,
            phase.mode,
            number + 1,
            phases.len()
        ));
        let before = seconds * number as u32;
        let (tally, cpu) =
            measure(phase, &name, arguments.quick, seconds, &mut server, &interrupt, &all, before)
                .inspect_err(|_| all.finish_and_clear())
                // If the server has ended, report its error instead of the client's.
                .or_else(|failure| interrupt.check().and_then(|()| Err(server.ended_or(failure))))
                .map_err(|failure| {
                    failure.context(format_args!("{}, {}", phase.protocol.name, phase.mode))
                })?;
        document.rows.push(row(phase, &tally, cpu));
    }
    all.finish_and_clear();
    // End the server before the results are printed, so that nothing remains if the reader of the output is
    // gone.
    server.end();
    output::print(format!("\n{}", table(&shown(&document.rows))))?;
    if spinning < sleeping {
        output::print_line(format_args!(
            "\nbusy: both sides spin, so only as many clients ({spinning}) as have a core of their own take part; adaptive: all {sleeping}."
        ))?;
    }
    arguments.report.write(&document)?;
    simulated_scene()?;
    shared_nodes(arguments.quick, &interrupt)?;
    output::print(NEXT)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the scene on a simulated NIC, with the simulator's command `scene`. If that program is missing,
/// prints how to build it.
fn simulated_scene() -> Result<(), Failure> {
    let Some(program) = SIM.find() else {
        return output::print_line(format_args!(
            "\nA scene on a simulated NIC, in which a client finds out whether to fetch its results, follows where the simulator is built:\n  cargo build --release -p {} && dunlin sim scene",
            SIM.package
        ));
    };
    let status = std::process::Command::new(&program).arg("scene").status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("{} scene ended with {status}", program.display()))),
        Err(error) => Err(Failure::new(format!("cannot start {}: {error}", program.display()))),
    }
}

/// Runs the scene of processes that share nodes, with the command `tier scene`. If that program is missing, prints how to
/// build it.
fn shared_nodes(quick: bool, interrupt: &Interrupt) -> Result<(), Failure> {
    let Some(program) = TIER.find() else {
        return output::print_line(format_args!(
            "\nA scene of processes that share a node, with their memory and calls, follows where the memory tier is built:\n  cargo build --release -p {} && dunlin tier scene",
            TIER.package
        ));
    };
    let operations = if quick { "20" } else { "200" };
    let words = ["tier", "scene", "--operations", operations];
    ChildProcess::start_program("the scene of shared nodes", &program, words)?.relay(interrupt)
}

const NEXT: &str = "
Try next:
  dunlin ping                              round trips, by protocol and size
  dunlin kv serve --listen shm:store       a server of your own; then kv put, get, load, bench shm:store
  dunlin node run                          a node of your own; then tier put, get, and node top
  dunlin protocols                         what the protocols are
  dunlin bench fetch-table                 measure by what clients choose between fetching and writing back here
  dunlin doctor                            what this machine offers, and what would make it faster
";

fn workload(quick: bool) -> Result<Workload, Failure> {
    let mut text = shipped("b-small").unwrap_or_default().to_owned();
    if quick {
        text.push_str("\nrecordcount=10000\n");
    }
    Workload::parse(&text).map(|(workload, _)| workload).map_err(Failure::new)
}

fn parameters(workload: &Workload, seconds: Duration, workers: usize) -> Row {
    Row::new()
        .with("workload", "b-small")
        .with("records", workload.record_count)
        .with("seconds", seconds.as_secs_f64())
        .with("workers", workers)
        .with("window", WINDOW)
}

/// Stores the records, from this process.
fn load(
    address: &Address,
    fabric: &dunlin::fabric::ShmFabric,
    workload: &Workload,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let bar = progress::counting(workload.record_count, "loading records");
    let mut client =
        kv::connect(fabric, address, dunlin::plan::Plan::default(), 64, Duration::from_secs(10))?;
    let begin = Instant::now();
    let step = 10_000;
    let end = workload.insert_start + workload.record_count;
    let mut first = workload.insert_start;
    while first < end {
        let records = first..end.min(first + step);
        load_records(&mut client, workload, records, interrupt.flag(), &AtomicU64::new(0))
            .map_err(|error| Failure::from(error).context("loading"))?;
        interrupt.check().inspect_err(|_| bar.finish_and_clear())?;
        first = end.min(first + step);
        bar.set_position(first - workload.insert_start);
    }
    bar.finish_and_clear();
    output::print_line(format_args!(
        "{} records of 16 + 32 bytes loaded in {:.2} s",
        workload.record_count,
        begin.elapsed().as_secs_f64()
    ))
}

/// Runs one row with its client processes in parallel. Returns their total tally and the server's CPU time,
/// ns.
#[allow(clippy::too_many_arguments)]
fn measure(
    phase: &Phase,
    address: &str,
    quick: bool,
    seconds: Duration,
    server: &mut ChildProcess,
    interrupt: &Interrupt,
    bar: &ProgressBar,
    before: Duration,
) -> Result<(Tally, u64), Failure> {
    let mut clients = Vec::with_capacity(phase.clients);
    for number in 0..phase.clients {
        let mut options: Vec<String> = [
            dunlin_command::INTERNAL,
            "demo-client",
            address,
            "--protocol",
            phase.protocol.name,
            "--completion",
        ]
        .map(str::to_owned)
        .into();
        options.push(phase.mode.to_string());
        for (option, value) in
            [("--client", number), ("--clients", phase.clients), ("--window", WINDOW.into())]
        {
            options.extend([option.to_owned(), value.to_string()]);
        }
        options.extend(["--seconds".to_owned(), format!("{}s", seconds.as_secs_f64())]);
        if quick {
            options.push("--quick".to_owned());
        }
        clients.push(ChildProcess::start(&format!("client {}", number + 1), options)?);
    }
    for client in &mut clients {
        client.line(interrupt, START_TIMEOUT)?;
    }
    server.check()?;
    let cpu = cpu::time_ns(server.id());
    let begin = Instant::now();
    for client in &mut clients {
        client.say("go")?;
    }
    while begin.elapsed() < seconds {
        bar.set_position((before + begin.elapsed()).as_millis() as u64);
        let left = seconds.saturating_sub(begin.elapsed());
        interrupt.wait(Some(left.min(Duration::from_millis(200))));
        interrupt.check()?;
        server.check()?;
    }
    let mut tally = Tally::default();
    for client in &mut clients {
        let line = client.line(interrupt, REPORT_TIMEOUT)?;
        tally.merge(&ClientReport::tally_of(&line)?);
    }
    let cpu = match (cpu, cpu::time_ns(server.id())) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => 0,
    };
    Ok((tally, cpu))
}

fn row(phase: &Phase, tally: &Tally, cpu_ns: u64) -> Row {
    let mut row = Row::new()
        .with("protocol", phase.protocol.name)
        .with("completion", phase.mode.to_string())
        .with("clients", phase.clients)
        .with("throughput_ops", tally.throughput_ops().round());
    row.set_latency(&tally.all());
    if cpu_ns > 0 && tally.operations() > 0 {
        row.set("server_cpu_ns_per_op", (cpu_ns as f64 / tally.operations() as f64).round());
    }
    row
}

/// Selects the columns of the table.
fn shown(rows: &[Row]) -> Vec<Row> {
    let hidden = ["max_ns", "samples"];
    rows.iter()
        .map(|row| {
            let mut shown = Row::new();
            for (name, value) in row.fields().filter(|(name, _)| !hidden.contains(name)) {
                shown.set(name, value.clone());
            }
            shown
        })
        .collect()
}
