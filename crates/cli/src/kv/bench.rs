//! `dunlin kv bench`: runs a YCSB workload against a server.

use super::stats::total;
use super::{ConnectArguments, connect_as};
use clap::Args;
use dunlin::fabric::Fabric;
use dunlin::plan::Sharing;
use dunlin::tune::{BatchCalls, Batching, Tuning};
use dunlin::{Address, ClientConfig, on_fabric};
use dunlin_command::arguments::{self, plan_name};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::progress;
use dunlin_floor::TickClock;
use dunlin_kv::KvClient;
use dunlin_report::{Document, Row, Unit, table};
use dunlin_workload::kv_driver::{
    DriveError, DriverConfig, KvDriver, Limit, OperationKind, Tally, load_records,
};
use dunlin_workload::ycsb::{SHIPPED, Share, Workload, shipped};
use indicatif::ProgressBar;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Shipped workloads: a (half updates), b (5 % updates), c (reads only), d (latest), e (scans, run as MULTIGETs),
f (read-modify-write), all with 1000-byte records; b-small (b with 16-byte keys and 32-byte values).
A file must be a YCSB property file; unknown properties are reported.

Examples:
  dunlin kv bench shm:store
  dunlin kv bench shm:store --workload a --clients 4 --seconds 5 --json a.json --plot a.svg
  dunlin kv bench shm:store --workload my.properties -P recordcount=1000000 --batch 16 --window 128
  dunlin kv bench shm:store --window 256 --within 150us        the largest batches that complete in time
  dunlin kv bench shm:store --no-load --protocol Server-reply
  dunlin kv bench rdma:10.0.0.1:7000 --clients 32 --sharing combined

Exit status: 0 success; 1 a call failed (the error counts the calls that may have been executed); 130 interrupted.";

/// The workload to run.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkloadArguments {
    /// YCSB property file, or a workload shipped with dunlin: a to f, b-small
    #[arg(long, short, default_value = "b-small", value_name = "FILE|NAME")]
    workload: String,
    /// Set a property of the workload, overriding its file; may be repeated
    #[arg(long, short = 'P', value_name = "NAME=VALUE")]
    property: Vec<String>,
}

impl WorkloadArguments {
    /// Reads the workload, and prints its notices to standard error.
    pub(crate) fn read(&self) -> Result<Workload, Failure> {
        let name = &self.workload;
        let mut text = match shipped(name) {
            Some(text) if !std::path::Path::new(name).is_file() => text.to_owned(),
            _ => std::fs::read_to_string(name).map_err(|error| {
                let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
                Failure::new(format!("cannot read the workload '{name}': {error}")).help(format_args!(
                    "give a YCSB property file, or one of those that ship with dunlin: {}",
                    names.join(", ")
                ))
            })?,
        };
        for property in &self.property {
            if !property.contains('=') || property.contains('\n') {
                return Err(Failure::new(format!("'{property}' is not NAME=VALUE"))
                    .help("write for example -P recordcount=100000"));
            }
            text.push('\n');
            text.push_str(property);
        }
        let (workload, notices) = Workload::parse(&text).map_err(|error| {
            Failure::new(format!("workload {name}: {error}"))
                .help("correct the file, or override it with -P NAME=VALUE")
        })?;
        for notice in notices {
            output::note(format_args!("warning: workload {name}: {notice}"));
        }
        Ok(workload)
    }

    /// Returns the name as given.
    pub(crate) fn name(&self) -> &str {
        &self.workload
    }
}

/// Measure a key-value server with a YCSB workload.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    #[command(flatten)]
    workload: WorkloadArguments,
    /// Duration of the measurement
    #[arg(long, short, default_value = "5", value_parser = arguments::positive_duration, value_name = "TIME")]
    seconds: Duration,
    /// Client threads, each with its own connections unless --sharing says otherwise
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    clients: u16,
    /// Operations in flight per client
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    window: u16,
    /// Operations that a client sends in one batch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    batch: u16,
    /// Let each client choose its batch size, 1 to 128: the largest with which operations complete within
    /// TIME
    #[arg(long, value_parser = arguments::positive_duration, value_name = "TIME", conflicts_with = "batch")]
    within: Option<Duration>,
    /// Fraction of operations that may exceed that time, 0 to 1
    #[arg(long, default_value = "0.05", value_parser = share, value_name = "SHARE", requires = "within")]
    tolerance: f64,
    /// Store the workload's records before measuring (the default)
    #[arg(long, overrides_with = "no_load")]
    load: bool,
    /// Do not store the records: an earlier run has stored them
    #[arg(long)]
    no_load: bool,
    #[command(flatten)]
    report: ReportArguments,
}

/// Parses a fraction from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1, as 0.05".to_owned()),
    }
}

/// Runs `work` for each client on its own thread, and shows progress until all are done. The first failure,
/// or a signal, stops the others through the flag that `work` receives.
fn on_threads<'a, F: Fabric, T: Send>(
    clients: &'a mut [KvClient<F>],
    interrupt: &Interrupt,
    bar: &ProgressBar,
    mut show: impl FnMut(&ProgressBar, u64),
    work: impl Fn(u64, &'a mut KvClient<F>, &AtomicBool, &AtomicU64) -> (T, Result<(), DriveError>) + Sync,
) -> (Vec<T>, Option<DriveError>) {
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut results, mut failure): (Vec<T>, Option<DriveError>) = (Vec::new(), None);
    std::thread::scope(|scope| {
        let threads: Vec<ScopedJoinHandle<'_, _>> = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| {
                let (stop, progress, work) = (&stop, &progress, &work);
                scope.spawn(move || {
                    let done = work(number as u64, client, stop, progress);
                    if done.1.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if interrupt.wait(Some(Duration::from_millis(20))).is_some() {
                stop.store(true, Ordering::Relaxed);
                // After a signal `wait` returns at once, so sleep instead.
                std::thread::sleep(Duration::from_millis(5));
            }
            show(bar, progress.load(Ordering::Relaxed));
        }
        for thread in threads {
            match thread.join() {
                Ok((result, outcome)) => {
                    results.push(result);
                    if let Err(error) = outcome {
                        match &mut failure {
                            None => failure = Some(error),
                            Some(first) => {
                                first.maybe_executed += error.maybe_executed;
                                first.not_executed += error.not_executed;
                            }
                        }
                    }
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    bar.finish_and_clear();
    (results, failure)
}

/// Stores the workload's records, a share per client, and checks that they all fit.
fn load<F: Fabric>(
    clients: &mut [KvClient<F>],
    workload: &Workload,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let (first, count, all) = (workload.insert_start, workload.record_count, clients.len() as u64);
    let share = move |number: u64| first + (u128::from(count) * u128::from(number) / u128::from(all)) as u64;
    let bar = progress::counting(count, "loading records");
    let begin = Instant::now();
    let (_, failure) =
        on_threads(clients, interrupt, &bar, ProgressBar::set_position, |number, client, stop, progress| {
            let records = share(number)..share(number + 1);
            ((), load_records(client, workload, records, stop, progress).map(drop))
        });
    if let Some(error) = failure {
        return Err(Failure::from(error).context("loading"));
    }
    interrupt.check()?;
    output::note(format_args!("{count} records loaded in {:.2} s", begin.elapsed().as_secs_f64()));
    let stats = total(&clients[0].stats()?);
    if stats.items < count {
        output::note(format_args!(
            "warning: the server holds {} items after {count} were stored: the rest made room for others, and reads \
             of them will find nothing (restart it with more --memory)",
            stats.items
        ));
    }
    Ok(())
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let (chosen, address) = arguments.connect.choose()?;
    on_fabric!(&chosen, fabric => measure(arguments, fabric, &address))
}

fn measure<F: Fabric>(
    arguments: &BenchArguments,
    fabric: &F,
    address: &Address,
) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let workload = arguments.workload.read()?;
    let interrupt = Interrupt::install()?;
    let plan = arguments.connect.plan.plan(fabric.capabilities());
    let config = DriverConfig {
        window: arguments.window.max(arguments.batch).into(),
        batch: arguments.batch.into(),
        client_batches: arguments.within.is_some(),
    };
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        let settings = ClientConfig {
            window: config.window as u16,
            batching: arguments.batching(),
            ..ClientConfig::with_plan(plan)
        };
        let client = match clients.first() {
            Some(first) if plan.sharing != Sharing::Dedicated => KvClient::another(first)?,
            _ => connect_as(fabric, address, settings, arguments.connect.timeout)?,
        };
        clients.push(client);
    }
    if !arguments.no_load {
        load(&mut clients, &workload, &interrupt)?;
    }
    let clock = TickClock::new();
    let bar = progress::timing(arguments.seconds, "measuring");
    let begin = Instant::now();
    let mut shown = (begin, 0u64);
    let share = |client| Share { client, clients: arguments.clients.into() };
    let (tallies, failure) = on_threads(
        &mut clients,
        &interrupt,
        &bar,
        |bar, done| {
            bar.set_position(begin.elapsed().as_millis() as u64);
            let time = shown.0.elapsed().as_secs_f64();
            if time > 0.5 {
                let rate = (done - shown.1) as f64 / time;
                bar.set_prefix(Unit::OperationsPerSecond.format(rate));
                shown = (Instant::now(), done);
            }
        },
        |number, client, stop, progress| {
            let mut driver = KvDriver::new(client, &workload, share(number), config, clock);
            let limit =
                Limit { nanoseconds: Some(arguments.seconds.as_nanos() as f64), operations: None, stop };
            let outcome = driver.run(&limit, progress);
            (driver.tally().clone(), outcome)
        },
    );
    let mut tally = Tally::default();
    tallies.iter().for_each(|one| tally.merge(one));
    if let Some(error) = failure {
        let after = format!("after {} operations in {:.1} s", tally.operations(), tally.elapsed_ns / 1e9);
        return Err(Failure::from(error).context(after));
    }
    let document = document(arguments, fabric.capabilities().name, &workload, &plan, &tally);
    print_results(arguments, &plan, &document, &tally)?;
    print_choices(&mut clients)?;
    arguments.report.write(&document)?;
    interrupt.check()?;
    Ok(ExitCode::SUCCESS)
}

impl BenchArguments {
    /// Returns the settings of adaptive batching, if requested.
    fn batching(&self) -> Option<Batching> {
        let calls = BatchCalls::WithinLatency { limit: self.within?, tolerance: self.tolerance };
        Some(Batching { calls, ..Batching::default() })
    }
}

/// Prints the settings that the clients have chosen at run time.
fn print_choices<F: Fabric>(clients: &mut [KvClient<F>]) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        let rpc = client.rpc();
        // All connections of a client use one batch size.
        let batch = rpc.batch_calls().first().copied();
        let tuning = rpc.tuning();
        if batch.is_none() && tuning.is_empty() {
            continue;
        }
        let mut row = Row::new().with("client", number + 1);
        if let Some(batch) = batch {
            row.set("operations_together", batch);
        }
        // Totals over the connections to all workers.
        if let Some(last) = tuning.last() {
            let sum = |of: fn(&Tuning) -> u64| tuning.iter().map(of).sum::<u64>();
            row.set("fetched", sum(|tuning| tuning.results.0));
            row.set("written_back", sum(|tuning| tuning.results.1));
            row.set("READs", sum(|tuning| tuning.reads.0));
            row.set("R", last.retries);
            row.set("F_bytes", last.fetch_bytes);
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Ok(());
    }
    output::print_line("\nchosen by the clients, at the end:")?;
    output::print(table(&rows))
}

fn document(
    arguments: &BenchArguments,
    transport: &str,
    workload: &Workload,
    plan: &dunlin::plan::Plan,
    tally: &Tally,
) -> Document {
    let parameters = Row::new()
        .with("address", arguments.connect.address.to_string())
        .with("workload", arguments.workload.name())
        .with("records", workload.record_count)
        .with("seconds", arguments.seconds.as_secs_f64())
        .with("load", !arguments.no_load);
    let mut document = Document::new("kv bench", transport, parameters);
    let base = |operation: &str| {
        Row::new()
            .with("operation", operation)
            .with("protocol", plan_name(plan))
            .with("completion", plan.client.to_string())
            .with("sharing", plan.sharing.name())
            .with("clients", arguments.clients)
            .with("window", arguments.window.max(arguments.batch))
            .with("batch", arguments.batch)
            .with("within_ns", arguments.within.map_or(0, |within| within.as_nanos() as u64))
    };
    let mut add = |operation: &str, latency: &dunlin_report::statistics::Latency| {
        let rate = latency.samples() as f64 * 1e9 / tally.elapsed_ns.max(1.0);
        let mut row = base(operation).with("throughput_ops", rate.round());
        row.set_latency(latency);
        document.rows.push(row);
    };
    add("all", &tally.all());
    for kind in OperationKind::ALL {
        let latency = tally.latency(kind);
        if latency.samples() > 0 {
            add(kind.as_str(), latency);
        }
    }
    document.rows[0].set("not_found", tally.not_found);
    document
}

fn print_results(
    arguments: &BenchArguments,
    plan: &dunlin::plan::Plan,
    document: &Document,
    tally: &Tally,
) -> Result<(), Failure> {
    output::print_line(format_args!(
        "workload {}, {}, {}, {} {}{}, window {}, {}, {:.2} s",
        arguments.workload.name(),
        plan_name(plan),
        plan.client,
        arguments.clients,
        if arguments.clients == 1 { "client" } else { "clients" },
        match plan.sharing {
            Sharing::Dedicated => String::new(),
            shared => format!(" ({} connections)", shared.name()),
        },
        arguments.window.max(arguments.batch),
        match arguments.within {
            Some(within) => format!("as many together as keep {within:?}"),
            None => format!("batch {}", arguments.batch),
        },
        tally.elapsed_ns / 1e9
    ))?;
    // Columns whose values are already in the headline.
    let constant = ["protocol", "completion", "sharing", "clients", "window", "batch", "within_ns"];
    let rows: Vec<Row> = document
        .rows
        .iter()
        .map(|row| {
            let mut shown = Row::new();
            for (name, value) in row.fields().filter(|(name, _)| !constant.contains(name)) {
                shown.set(name, value.clone());
            }
            shown
        })
        .collect();
    output::print(table(&rows))
}
