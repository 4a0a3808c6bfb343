//! `dunlin node top`: the use of this host's node by its processes, as rates.

use crate::status::{PRIORITIES, name_of};
use clap::Args;
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, Unit, table};
use dunlin_tier_client::{NodeStatus, ProcessStatus, Tier};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Clears a terminal, and moves its cursor to the first place.
const CLEAR: &str = "\x1b[H\x1b[2J";

const AFTER_HELP: &str = "\
Rates are those of the time since the frame before. Processes with the most requests and calls come first. Operations on
regions that a process has mapped directly do not pass the node, and are in no rate.

  requests   requests about memory, and their bytes
  calls      calls to services that the process makes
  under_way  requests and calls that have no answer yet
  queued     calls that wait until the process receives them
  waiting    operations that wait for a path (queue pair) to other nodes

On a terminal the picture is refreshed until Ctrl-C. Elsewhere, and with --once, one frame is printed after --interval.

Examples:
  dunlin node top
  dunlin node top --interval 250ms --node shm:node-a
  dunlin node top --once --interval 5s >> node.log";

/// Show the processes of this host's node, its regions, priorities and queues, by rates.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TopArguments {
    /// Time between two frames, over which rates are taken
    #[arg(long, default_value = "1s", value_parser = arguments::positive_duration, value_name = "TIME")]
    interval: Duration,
    /// Print one frame, and end
    #[arg(long)]
    once: bool,
    /// Most processes to show
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    processes: u16,
    #[command(flatten)]
    attach: AttachArguments,
}

/// The state of a node, and the time at which it was so.
struct Sample {
    status: NodeStatus,
    at: Instant,
}

impl Sample {
    fn take(tier: &Tier) -> Result<Sample, Failure> {
        let status = tier.status().map_err(Failure::new)?;
        Ok(Sample { status, at: Instant::now() })
    }
}

pub(crate) fn run(arguments: &TopArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let mut before = Sample::take(&tier)?;
    let is_refreshed = !arguments.once && std::io::stdout().is_terminal();
    loop {
        if let Some(signal) = interrupt.wait(Some(arguments.interval)) {
            // A picture that is refreshed has no other end.
            return if is_refreshed { Ok(ExitCode::SUCCESS) } else { Err(Failure::Interrupted(signal)) };
        }
        let now = Sample::take(&tier)?;
        let text = frame(&before.status, &now.status, now.at - before.at, arguments.processes.into());
        if !is_refreshed {
            output::print(text)?;
            return Ok(ExitCode::SUCCESS);
        }
        output::print(format!("{CLEAR}{text}"))?;
        before = now;
    }
}

/// Returns the growth of a counter in a second. A counter that began again has grown from 0.
fn rate(before: u64, now: u64, time: Duration) -> f64 {
    now.checked_sub(before).unwrap_or(now) as f64 / time.as_secs_f64().max(1e-9)
}

/// The rates of a process.
struct Rates {
    requests: f64,
    bytes: f64,
    calls: f64,
}

impl Rates {
    /// A process without a sample before has attached since.
    fn of(before: Option<&ProcessStatus>, now: &ProcessStatus, time: Duration) -> Rates {
        let of = |counter: fn(&ProcessStatus) -> u64| rate(before.map_or(0, counter), counter(now), time);
        Rates { requests: of(|one| one.operations), bytes: of(|one| one.bytes), calls: of(|one| one.calls) }
    }
}

/// Returns the picture of a node: the state of now, and rates over the time since the state before.
fn frame(before: &NodeStatus, now: &NodeStatus, time: Duration, most: usize) -> String {
    let bytes = |bytes: u64| Unit::Bytes.format(bytes as f64);
    let per_second = |before: u64, now: u64| Unit::OperationsPerSecond.format(rate(before, now, time));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "node {}: {} of memory, {} free, {} being zeroed; regions: {}; processes: {}; nodes alive: {}",
        now.node,
        bytes(now.memory),
        bytes(now.free),
        bytes(now.dirty),
        now.regions,
        now.processes.len(),
        now.nodes.len()
    );
    let _ = writeln!(
        text,
        "requests answered: {}, refused: {}; on the worker at once: {}, later: {}; in the pool: {}",
        per_second(before.answered, now.answered),
        per_second(before.refused, now.refused),
        per_second(before.ran.at_once, now.ran.at_once),
        per_second(before.ran.later, now.ran.later),
        per_second(before.ran.pool, now.ran.pool)
    );
    let _ = writeln!(
        text,
        "queue pairs to other nodes for memory: {}; connections for calls: {}; calls under way to other nodes: {}\n",
        now.queue_pairs, now.call_connections, now.calls
    );
    let rows = PRIORITIES.map(|(name, priority)| {
        let [before, now] = [before, now].map(|status| status.priorities[priority as usize]);
        Row::new()
            .with("priority", name)
            .with("operations_ops", rate(before.operations, now.operations, time))
            .with("bytes_per_s", rate(before.bytes, now.bytes, time))
            .with("calls_ops", rate(before.calls, now.calls, time))
            .with("under_way", now.under_way)
            .with("waiting", now.waiting)
    });
    let _ = writeln!(text, "{}", table(&rows));
    let of_before = |number: u64| before.processes.iter().find(|one| one.number == number);
    let mut processes: Vec<(Rates, &ProcessStatus)> =
        now.processes.iter().map(|one| (Rates::of(of_before(one.number), one, time), one)).collect();
    let busy = |rates: &Rates| rates.requests + rates.calls;
    processes.sort_by(|(rates, one), (others, other)| {
        busy(others).total_cmp(&busy(rates)).then(one.number.cmp(&other.number))
    });
    let rows: Vec<Row> = processes.iter().take(most).map(|(rates, one)| row(rates, one)).collect();
    text.push_str(&table(&rows));
    let left = processes.len().saturating_sub(most);
    if left > 0 {
        let _ = writeln!(text, "{left} more");
    }
    text
}

fn row(rates: &Rates, one: &ProcessStatus) -> Row {
    Row::new()
        .with("process", one.process.to_string())
        .with("principal", one.principal.as_str())
        .with("priority", name_of(one.priority))
        .with("requests_ops", rates.requests)
        .with("bytes_per_s", rates.bytes)
        .with("calls_ops", rates.calls)
        .with("under_way", one.under_way)
        .with("queued", one.queued)
        .with("handles", one.handles)
        .with("mapped", one.direct)
        .with("services", one.services)
        .with("locks", one.locks)
        .with("connections", one.connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_tier_client::{Priority, PriorityStatus};

    fn process(number: u64, operations: u64, bytes: u64) -> ProcessStatus {
        let principal = format!("user-{number}");
        ProcessStatus {
            number,
            process: 100 + number as u32,
            principal,
            operations,
            bytes,
            ..ProcessStatus::default()
        }
    }

    fn line<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn a_frame_has_rates_since_the_frame_before_with_the_busiest_processes_first() {
        let processes = vec![process(1, 10, 1000), process(2, 50, 0)];
        let before = NodeStatus { answered: 100, processes, ..NodeStatus::default() };
        let processes = vec![process(1, 10, 1000), process(2, 4050, 0), process(3, 8000, 16_000_000)];
        let mut now =
            NodeStatus { node: "one".to_owned(), answered: 12_100, processes, ..NodeStatus::default() };
        now.priorities[Priority::Low as usize] =
            PriorityStatus { operations: 6000, bytes: 2000, calls: 20, under_way: 2, waiting: 7 };
        let text = frame(&before, &now, Duration::from_secs(2), 2);
        assert!(text.contains("requests answered: 6 k/s, refused: 0/s"), "{text}");
        assert_eq!(line(&text, "low"), ["low", "3 k/s", "1 kB/s", "10/s", "2", "7"]);
        assert_eq!(line(&text, "high"), ["high", "0/s", "0 B/s", "0/s", "0", "0"]);
        // The third has attached since; the first did nothing, and is left out.
        assert_eq!(line(&text, "user-3")[..4], ["103", "user-3", "high", "4 k/s"]);
        assert_eq!(line(&text, "user-2")[..4], ["102", "user-2", "high", "2 k/s"]);
        assert!(text.find("user-3") < text.find("user-2") && !text.contains("user-1"), "{text}");
        assert!(text.ends_with("1 more\n"), "{text}");
    }

    #[test]
    fn a_node_that_began_again_has_no_negative_rate() {
        assert_eq!(rate(500, 20, Duration::from_secs(2)), 10.0);
        assert!(rate(0, u64::MAX, Duration::ZERO).is_finite());
    }
}
