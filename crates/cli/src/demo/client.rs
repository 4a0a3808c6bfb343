//! One client process of the demo: connects, waits for the start line, runs, and reports in one line.

use crate::kv;
use clap::Args;
use dunlin::Address;
use dunlin::fabric::Fabric as _;
use dunlin_command::arguments::{self, PlanArguments};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_floor::TickClock;
use dunlin_workload::kv_driver::{DriverConfig, KvDriver, Limit, OperationKind, Tally};
use dunlin_workload::ycsb::Share;
use serde::{Deserialize, Serialize};
use std::io::BufRead as _;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A client process of the demo.
#[derive(Args, Debug)]
pub(crate) struct ClientArguments {
    address: Address,
    #[command(flatten)]
    plan: PlanArguments,
    #[arg(long)]
    client: u64,
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    window: u16,
    #[arg(long, value_parser = arguments::positive_duration)]
    seconds: Duration,
    #[arg(long)]
    quick: bool,
}

/// A client's report to the demo.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ClientReport {
    elapsed_ns: f64,
    not_found: u64,
    /// For each kind of operation: latencies in nanoseconds and their counts.
    latencies: Vec<Vec<(u64, u64)>>,
}

impl ClientReport {
    fn of(tally: &Tally) -> Self {
        ClientReport {
            elapsed_ns: tally.elapsed_ns,
            not_found: tally.not_found,
            latencies: OperationKind::ALL.map(|kind| tally.latency(kind).recorded().collect()).into(),
        }
    }

    /// Parses the tally from a line of a client's output.
    pub(super) fn tally_of(line: &str) -> Result<Tally, Failure> {
        let report: ClientReport = serde_json::from_str(line)
            .map_err(|error| Failure::new(format!("a client's report cannot be understood: {error}")))?;
        let mut tally = Tally::default();
        (tally.elapsed_ns, tally.not_found) = (report.elapsed_ns, report.not_found);
        for (kind, latencies) in OperationKind::ALL.into_iter().zip(report.latencies) {
            for (value, count) in latencies {
                tally.latency_mut(kind).record_many(value, count);
            }
        }
        Ok(tally)
    }
}

pub(crate) fn run(arguments: &ClientArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let fabric = dunlin_command::shared_memory()?;
    let plan = arguments.plan.plan(fabric.capabilities());
    let workload = super::workload(arguments.quick)?;
    let mut client =
        kv::connect(&fabric, &arguments.address, plan, arguments.window, Duration::from_secs(10))?;
    let share = Share { client: arguments.client, clients: arguments.clients };
    let config = DriverConfig { window: arguments.window.into(), batch: 1, client_batches: false };
    let mut driver = KvDriver::new(&mut client, &workload, share, config, TickClock::new());
    output::print_line("ready")?;
    let mut word = String::new();
    let read = std::io::stdin().lock().read_line(&mut word);
    if !matches!(read, Ok(length) if length > 0) {
        return Err(Failure::new("the demo has ended"));
    }
    let limit = Limit {
        nanoseconds: Some(arguments.seconds.as_nanos() as f64),
        operations: None,
        stop: interrupt.flag(),
    };
    driver.run(&limit, &AtomicU64::new(0))?;
    let report = serde_json::to_string(&ClientReport::of(driver.tally())).map_err(Failure::new)?;
    output::print_line(report)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_the_tally_says() {
        let mut tally = Tally::default();
        (tally.elapsed_ns, tally.not_found) = (1e9, 2);
        for value in [100.0, 250.0, 90_000.0] {
            tally.record(OperationKind::Read, value);
        }
        tally.record(OperationKind::Update, 5e6);
        let line = serde_json::to_string(&ClientReport::of(&tally)).expect("JSON");
        let Ok(read) = ClientReport::tally_of(&line) else { panic!("{line}") };
        assert_eq!((read.operations(), read.not_found), (4, 2));
        assert_eq!(read.all().max_ns().round(), tally.all().max_ns().round());
        assert!(ClientReport::tally_of("ready").is_err());
    }
}
