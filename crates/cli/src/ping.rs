//! `dunlin ping`: measures round trips to a server, or holds idle connections.

use crate::echo::{self, ECHO};
use clap::Args;
use dunlin::fabric::Fabric;
use dunlin::plan::Plan;
use dunlin::raw::Client;
use dunlin::tune::Tuning;
use dunlin::{Address, ClientConfig, on_fabric};
use dunlin_command::arguments::{self, DeviceArguments, PlanArguments, plan_name};
use dunlin_command::child::{ChildProcess, START_TIMEOUT};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::progress;
use dunlin_floor::TickClock;
use dunlin_report::statistics::Latency;
use dunlin_report::{Document, Row, readable};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Examples:
  dunlin ping                                            a temporary echo server, 10 000 calls of 32 bytes
  dunlin ping shm:store --size 64KiB                     a running server (dunlin kv serve answers pings)
  dunlin ping rdma:node-7:7000                           the same over an RNIC
  dunlin ping ofi:tcp:node-7:7000                        the same over libfabric (builds with the feature ofi)
  dunlin ping --protocol Server-reply --completion busy  the fastest, with a whole core on each side
  dunlin ping shm:store --interval 1                     one call per second, one line per call, like ping(8)
  dunlin ping shm:store --idle-connections 100 --seconds 10   hold idle connections, to see what the server uses

Exit status: 0 if every call got the right response; 1 otherwise; 130 interrupted.";

/// Largest payload, the default limit of servers.
const MAX_SIZE: u64 = 64 << 20;

/// Measure round trips to a server, or to a temporary echo server.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PingArguments {
    /// Address of the server: shm:NAME, rdma:HOST:PORT, ofi:tcp:HOST:PORT or auto:HOST:PORT [default: a
    /// temporary echo server]
    address: Option<Address>,
    /// Size of each request and response, at most 64MiB
    #[arg(long, short, default_value = "32", value_parser = arguments::size, value_name = "SIZE")]
    size: u64,
    /// Number of calls [default: 10000, or 10 with --interval]
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Wait this long between calls, and print a line for each: 1, 0.5, 100ms
    #[arg(long, short, value_parser = arguments::duration, value_name = "TIME")]
    interval: Option<Duration>,
    /// Print a line for each call
    #[arg(long)]
    each: bool,
    #[command(flatten)]
    plan: PlanArguments,
    #[command(flatten)]
    device: DeviceArguments,
    /// Open N connections, hold them without calls, then check that each still answers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000),
          conflicts_with_all = ["count", "interval", "each", "size", "json", "plot"])]
    idle_connections: Option<u32>,
    /// Time to hold the connections
    #[arg(long, requires = "idle_connections", default_value = "10", value_parser = arguments::duration, value_name = "TIME")]
    seconds: Duration,
    #[command(flatten)]
    report: ReportArguments,
}

pub(crate) fn run(arguments: &PingArguments) -> Result<ExitCode, Failure> {
    if arguments.size > MAX_SIZE {
        return Err(Failure::new(format!(
            "a payload of {} bytes is over the limit of 64 MiB",
            arguments.size
        ))
        .help("give a smaller --size"));
    }
    arguments.report.check()?;
    let interrupt = Interrupt::install()?;
    let (address, _server) = match &arguments.address {
        Some(address) => (address.clone(), None),
        None => {
            let (address, server) = start_echo_server(&interrupt)?;
            (address, Some(server))
        }
    };
    let fabrics = arguments.device.fabrics(false);
    let resolved = fabrics.resolve(&address)?;
    if resolved.address != address {
        output::print_line(format_args!("{address} is {resolved}"))?;
    }
    let (chosen, address) = (fabrics.choose(&resolved.address)?, resolved.address);
    let plan = arguments.plan.plan(chosen.capabilities());
    plan.check(chosen.capabilities())?;
    on_fabric!(&chosen, fabric => match arguments.idle_connections {
        Some(count) => hold(arguments, fabric, &address, plan, count, &interrupt),
        None => ping(arguments, fabric, &address, plan, &interrupt),
    })
}

fn start_echo_server(interrupt: &Interrupt) -> Result<(Address, ChildProcess), Failure> {
    let name = format!("shm:dunlin-ping-{}", std::process::id());
    let address: Address = name.parse().map_err(Failure::new)?;
    let mut server =
        ChildProcess::start("the echo server", [dunlin_command::INTERNAL, "echo-server", "--listen", &name])?;
    server.line(interrupt, START_TIMEOUT)?;
    Ok((address, server))
}

fn connect<F: Fabric>(fabric: &F, address: &Address, plan: Plan) -> Result<Client<F>, Failure> {
    // A server with a name says what it serves if it has no echo.
    let config = ClientConfig { service: echo::SERVICE.to_owned(), ..ClientConfig::with_plan(plan) };
    Ok(Client::connect(fabric, address, config)?)
}

fn ping<F: Fabric>(
    arguments: &PingArguments,
    fabric: &F,
    address: &Address,
    plan: Plan,
    interrupt: &Interrupt,
) -> Result<ExitCode, Failure> {
    let size = arguments.size as usize;
    let count = arguments.count.unwrap_or(if arguments.interval.is_some() { 10 } else { 10_000 });
    let each = arguments.each || arguments.interval.is_some();
    let clock = TickClock::new();
    let mut client = connect(fabric, address, plan)?;
    output::print_line(format_args!("PING {address} ({}, {}): {size} bytes", plan_name(&plan), plan.client))?;
    let mut payload: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
    let mut latency = Latency::new();
    let (mut made, mut wrong) = (0u64, 0u64);
    let mut failed = None;
    let bar = (!each).then(|| progress::counting(count, "calls"));
    let begin = Instant::now();
    for number in 1..=count {
        if number > 1
            && let Some(interval) = arguments.interval
        {
            interrupt.wait(Some(interval));
        }
        if interrupt.received().is_some() {
            break;
        }
        // Each call has a different payload, so that a stale response cannot pass for a new one.
        let head = size.min(8);
        payload[..head].copy_from_slice(&number.to_le_bytes()[..head]);
        made += 1;
        let start = clock.ticks();
        let outcome = client.call(ECHO, &payload).map(|response| *response == *payload);
        let time = clock.to_ns(clock.ticks().saturating_sub(start));
        let said = match &outcome {
            Ok(true) => {
                latency.record_ns(time);
                format!("call {number}: {}", readable("time_ns", &time.into()))
            }
            Ok(false) => {
                wrong += 1;
                format!("call {number}: answered with other bytes than were sent")
            }
            Err(error) => format!("call {number}: {error}"),
        };
        if each {
            output::print_line(said)?;
        }
        if let Err(error) = outcome {
            failed = Some(error);
            break;
        }
        if let Some(bar) = &bar
            && number % 1024 == 0
        {
            bar.set_position(number);
        }
    }
    let took = begin.elapsed();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let document = document(arguments, fabric.capabilities().name, address, &plan, &latency, count);
    output::print(summary(made, &latency, took))?;
    output::print(client.tuning().iter().map(tuning).collect::<String>())?;
    arguments.report.write(&document)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if wrong > 0 {
        return Err(Failure::new(format!("{wrong} of {made} answers were not what was sent"))
            .help("is the function 0 of this server an echo?"));
    }
    interrupt.check()?;
    Ok(ExitCode::SUCCESS)
}

fn summary(made: u64, latency: &Latency, took: Duration) -> String {
    let time = |value: f64| readable("time_ns", &value.into());
    let answered = latency.samples();
    let mut text = format!(
        "{made} {}, {answered} answered, {} failed, in {}\n",
        if made == 1 { "call" } else { "calls" },
        made - answered,
        time(took.as_nanos() as f64)
    );
    if answered > 0 {
        text.push_str(&format!(
            "round trip: min {}, p50 {}, p99 {}, p99.9 {}, max {}\n",
            time(latency.quantile_ns(0.0)),
            time(latency.p50_ns()),
            time(latency.p99_ns()),
            time(latency.p999_ns()),
            time(latency.max_ns())
        ));
    }
    text
}

/// Formats the choices on a connection whose results are fetched or written back, and the rates they are
/// based on.
fn tuning(of: &Tuning) -> String {
    let (fetched, written) = of.results;
    format!(
        "results: {fetched} fetched, {written} written back; R {} of at most {}, F {} of {} to {} bytes; rates {}\n",
        of.retries,
        of.retries_at_most,
        of.fetch_bytes,
        of.fetch_bytes_between.0,
        of.fetch_bytes_between.1,
        of.table
    )
}

fn document(
    arguments: &PingArguments,
    transport: &str,
    address: &Address,
    plan: &Plan,
    latency: &Latency,
    count: u64,
) -> Document {
    let parameters = Row::new()
        .with("address", address.to_string())
        .with("size_bytes", arguments.size)
        .with("count", count)
        .with("interval_ns", arguments.interval.map_or(0, |interval| interval.as_nanos() as u64));
    let mut row = Row::new()
        .with("protocol", plan_name(plan))
        .with("completion", plan.client.to_string())
        .with("size_bytes", arguments.size)
        .with("clients", 1)
        .with("min_ns", latency.quantile_ns(0.0));
    row.set_latency(latency);
    let mut document = Document::new("ping", transport, parameters);
    document.rows.push(row);
    document
}

/// Opens connections, holds them without calls, and checks at the end that each still answers.
fn hold<F: Fabric>(
    arguments: &PingArguments,
    fabric: &F,
    address: &Address,
    plan: Plan,
    count: u32,
    interrupt: &Interrupt,
) -> Result<ExitCode, Failure> {
    let mut clients = Vec::with_capacity(count as usize);
    for number in 1..=count {
        interrupt.check()?;
        let client = connect(fabric, address, plan)
            .map_err(|failure| failure.context(format_args!("connection {number} of {count}")))?;
        clients.push(client);
    }
    output::print_line(format_args!(
        "holding {count} quiet connections to {address} ({}, {}) for {} s",
        plan_name(&plan),
        plan.client,
        arguments.seconds.as_secs_f64()
    ))?;
    let bar = progress::timing(arguments.seconds, "holding");
    let begin = Instant::now();
    while begin.elapsed() < arguments.seconds && interrupt.received().is_none() {
        bar.set_position(begin.elapsed().as_millis() as u64);
        let left = arguments.seconds.saturating_sub(begin.elapsed());
        interrupt.wait(Some(left.min(Duration::from_millis(500))));
    }
    bar.finish_and_clear();
    interrupt.check()?;
    for (number, client) in clients.iter_mut().enumerate() {
        let outcome = client.call(ECHO, b"still there?").map(drop).map_err(Failure::from);
        outcome.map_err(|failure| failure.context(format_args!("connection {} of {count}", number + 1)))?;
    }
    output::print_line(format_args!("all {count} still answer"))?;
    Ok(ExitCode::SUCCESS)
}
