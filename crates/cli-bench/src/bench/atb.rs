//! `dunlin bench atb` and `dunlin bench ycsb`: options and output of HatRPC's benchmarks.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dunlin::plan::CompletionMode;
use dunlin_bench::measure::{
    AtbLatencyOptions, AtbMixOptions, AtbThroughputOptions, Pace, Polling, Singles, YcsbOptions,
    YcsbWorkload, atb_latency, atb_mix, atb_throughput, ycsb,
};
use dunlin_report::Row;

use super::{Output, measure_to_the_end};
use dunlin_command::arguments;
use dunlin_command::output::Failure;

const LATENCY_HELP: &str = "\
A generated client calls a Thrift service. The service's hints are perf_goal = latency and the payload size, and dunlin \
selects the plan. It competes with the same service under each protocol of the table, requested by the hint protocol = NAME. \
The contestants alternate in slices of some milliseconds, in one pinned pair of processes.

Columns: plan shows request half, response half, completion modes of client and server, and transfer of large payloads; \
best is the best single protocol at that size; ratio is the p50 divided by that of the best in the same round (median over \
rounds, with quartiles). The hypervisor may move the cores during a run; placement shows their distance, and rows of \
different placement are not comparable.

Examples:
  dunlin bench atb latency                                 4 B to 512 KiB, every protocol; a minute
  dunlin bench atb latency --size 512 --response 64KiB     small requests, large responses
  dunlin bench atb latency --size 32 --polling hinted,event --protocol Direct-WriteIMM
  dunlin bench atb latency --quick --json out.json --plot out.svg

Ctrl-C ends the measurement and prints the results so far.";

const THROUGHPUT_HELP: &str = "\
Each client has its own connection and one call in flight. The server's worker has a core to itself. Up to four clients \
have a thread each and share the other cores, so a small machine may have more threads than cores. More clients share one \
thread per core, which serves them round-robin. The hints are perf_goal = throughput, concurrency and the payload size. If \
the connections of all contestants would need more than 1 GiB, each contestant reconnects for every slice.

Columns are those of 'dunlin bench atb latency', except that ratio compares calls per second. Latencies are those of one \
client's calls.

Examples:
  dunlin bench atb throughput                              1 to 512 clients, 512 B and 128 KiB; half an hour
  dunlin bench atb throughput --clients 1,16 --size 512 --quick
  dunlin bench atb throughput --clients 64 --polling hinted,busy,event

Ctrl-C ends the measurement and prints the results so far.";

const MIX_HELP: &str = "\
Clients call two functions, chosen at random; both sum every byte of the payload. One has the hint perf_goal = latency, and \
its latency is compared (p50_ns and so on, latency_ratio). The other has perf_goal = throughput, and its calls per second \
are compared (throughput_ops, ratio). The contestants are 'function hints' with both goals, 'service hints' with throughput \
for the whole service, and each protocol for both functions.

Examples:
  dunlin bench atb mix                                     512 B and 128 KiB, 1 to 16 clients
  dunlin bench atb mix --clients 64 --latency-share 0.9

Ctrl-C ends the measurement and prints the results so far.";

const YCSB_HELP: &str = "\
HatKV stores records of ten 100-byte fields with 24-byte keys in LMDB, in memory. Workload a is a quarter each of GET, PUT, \
MULTIGET and MULTIPUT; b is 47.5% each of GET and MULTIGET, 2.5% each of the others. Batches have 10 records, keys are \
zipfian. 'function hints' uses all hints of the IDL, 'service hints' only those of the service. The other contestants \
emulate systems by their protocols, on the same store.

Examples:
  dunlin bench ycsb                                        both workloads, 128 clients, as in the paper
  dunlin bench ycsb --workload b --clients 16 --protocol Direct-WriteIMM --quick

The server removes the store's folder as soon as it has opened it, so no files remain. Ctrl-C ends the measurement and prints \
the results so far.";

/// The Thrift benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Atb {
    /// Measure the round trip of one client, one call at a time.
    #[command(after_help = LATENCY_HELP)]
    Latency {
        #[command(flatten)]
        sizes: Sizes,
        #[command(flatten)]
        contest: Contest,
        #[command(flatten)]
        output: Output,
    },
    /// Measure calls per second of 1 to 512 clients.
    #[command(after_help = THROUGHPUT_HELP)]
    Throughput {
        /// Numbers of clients.
        #[arg(long, default_value = "1,2,4,8,16,32,64,128,256,512", value_delimiter = ',', value_name = "N")]
        clients: Vec<usize>,
        #[command(flatten)]
        sizes: Sizes,
        #[command(flatten)]
        contest: Contest,
        #[command(flatten)]
        output: Output,
    },
    /// Measure two functions with different goals, called by the same clients.
    #[command(after_help = MIX_HELP)]
    Mix {
        /// Numbers of clients.
        #[arg(long, default_value = "1,4,16", value_delimiter = ',', value_name = "N")]
        clients: Vec<usize>,
        /// Fraction of calls to the latency function, 0 to 1.
        #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
        latency_share: f64,
        #[command(flatten)]
        sizes: Sizes,
        #[command(flatten)]
        contest: Contest,
        #[command(flatten)]
        output: Output,
    },
}

/// Run HatKV under YCSB's workloads.
#[derive(Args, Debug)]
#[command(after_help = YCSB_HELP)]
pub(crate) struct YcsbArguments {
    /// Workloads: a, b.
    #[arg(long, default_value = "a,b", value_delimiter = ',', value_name = "NAME")]
    workload: Vec<YcsbWorkload>,
    /// Number of clients, each with one operation in flight.
    #[arg(long, default_value_t = 128, value_name = "N")]
    clients: usize,
    /// Number of records in the store.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    records: usize,
    #[command(flatten)]
    contest: Contest,
    #[command(flatten)]
    output: Output,
}

/// Payload sizes.
#[derive(Args, Debug)]
pub(crate) struct Sizes {
    /// Sizes of request and response, such as 512 or 128KiB.
    #[arg(long, value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    size: Vec<u64>,
    /// Size of the request, overriding --size.
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    request: Option<u64>,
    /// Size of the response, overriding --size.
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    response: Option<u64>,
}

impl Sizes {
    fn or(&self, defaults: impl IntoIterator<Item = usize>) -> Vec<usize> {
        match self.size.is_empty() {
            true => defaults.into_iter().collect(),
            false => self.size.iter().map(|size| *size as usize).collect(),
        }
    }

    fn request(&self) -> Option<usize> {
        self.request.map(|size| size as usize)
    }

    fn response(&self) -> Option<usize> {
        self.response.map(|size| size as usize)
    }
}

/// Completion mode of single protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PollingWord {
    /// As selected by the other hints.
    Hinted,
    Busy,
    Event,
    Adaptive,
}

/// Contestants and duration.
#[derive(Args, Debug)]
pub(crate) struct Contest {
    /// Compare the hints only with this protocol (`Server-reply`, ...); may be repeated.
    #[arg(long, value_name = "NAME")]
    protocol: Vec<String>,
    /// Completion modes of the single protocols; each gives a contestant for every protocol that supports
    /// it.
    #[arg(long, value_enum, default_value = "hinted", value_delimiter = ',', value_name = "MODE")]
    polling: Vec<PollingWord>,
    /// Slices per contestant and point.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of a slice, such as 5ms.
    #[arg(long, value_name = "TIME", value_parser = arguments::positive_duration)]
    slice: Option<Duration>,
    /// Run only two short slices per contestant, to check that everything works.
    #[arg(long, conflicts_with_all = ["rounds", "slice"])]
    quick: bool,
}

impl Contest {
    fn singles(&self) -> Singles {
        let polling = |word: &PollingWord| match word {
            PollingWord::Hinted => Polling::Hinted,
            PollingWord::Busy => Polling::As(CompletionMode::Busy),
            PollingWord::Event => Polling::As(CompletionMode::Event),
            PollingWord::Adaptive => Polling::As(CompletionMode::Adaptive),
        };
        Singles { protocols: self.protocol.clone(), pollings: self.polling.iter().map(polling).collect() }
    }

    fn rounds(&self, default: usize) -> usize {
        if self.quick { 2 } else { self.rounds.map_or(default, |rounds| rounds as usize) }
    }

    fn slice(&self, default_ms: u64) -> Duration {
        let default = if self.quick { default_ms.div_ceil(5) } else { default_ms };
        self.slice.unwrap_or(Duration::from_millis(default))
    }

    fn pace(&self) -> Pace {
        if self.quick {
            return Pace { rounds: Some(2), slice: Some(QUICK_SLICE) };
        }
        Pace { rounds: self.rounds.map(|rounds| rounds as usize), slice: self.slice }
    }

    /// Returns the given pace parameters; the others depend on the number of clients.
    fn pace_row(&self) -> Row {
        let Pace { rounds, slice } = self.pace();
        Row::new().with("rounds", rounds).with("slice_ns", slice.map(|slice| slice.as_nanos() as u64))
    }

    fn row(&self, rounds: usize, slice: Duration) -> Row {
        Row::new().with("rounds", rounds).with("slice_ns", slice.as_nanos() as u64)
    }
}

/// Default slices per contestant and point with one client, and their length in milliseconds.
const ALONE: (usize, u64) = (40, 2);
/// Length of a slice of many clients with `--quick`.
const QUICK_SLICE: Duration = Duration::from_millis(5);
/// Default slices per contestant with YCSB's clients, and their length in milliseconds.
const STORE: (usize, u64) = (15, 50);

pub(crate) fn run(command: Atb) -> Result<(), Failure> {
    match command {
        Atb::Latency { sizes, contest, output } => {
            let (rounds, slice) = (contest.rounds(ALONE.0), contest.slice(ALONE.1));
            measure_to_the_end("bench atb latency", contest.row(rounds, slice), &output, |session, stop| {
                let options = AtbLatencyOptions {
                    sizes: sizes.or((2..=19).map(|power| 1 << power)),
                    request: sizes.request(),
                    answer: sizes.response(),
                    singles: contest.singles(),
                    rounds,
                    slice,
                    stop,
                };
                atb_latency(session, &options)
            })
        }
        Atb::Throughput { clients, sizes, contest, output } => {
            measure_to_the_end("bench atb throughput", contest.pace_row(), &output, |session, stop| {
                let options = AtbThroughputOptions {
                    clients,
                    sizes: sizes.or([512, 128 << 10]),
                    request: sizes.request(),
                    answer: sizes.response(),
                    singles: contest.singles(),
                    pace: contest.pace(),
                    stop,
                };
                atb_throughput(session, &options)
            })
        }
        Atb::Mix { clients, latency_share, sizes, contest, output } => {
            let parameters = contest.pace_row().with("latency_share", latency_share);
            measure_to_the_end("bench atb mix", parameters, &output, |session, stop| {
                let options = AtbMixOptions {
                    clients,
                    sizes: sizes.or([512, 128 << 10]),
                    request: sizes.request(),
                    answer: sizes.response(),
                    latency_share,
                    singles: contest.singles(),
                    pace: contest.pace(),
                    stop,
                };
                atb_mix(session, &options)
            })
        }
    }
}

pub(crate) fn run_ycsb(arguments: YcsbArguments) -> Result<(), Failure> {
    let YcsbArguments { workload: workloads, clients, records, contest, output } = arguments;
    let (rounds, slice) = (contest.rounds(STORE.0), contest.slice(STORE.1));
    let parameters = contest.row(rounds, slice).with("records", records);
    measure_to_the_end("bench ycsb", parameters, &output, |session, stop| {
        let singles = contest.singles();
        let options = YcsbOptions { workloads, clients, records, singles, rounds, slice, stop };
        ycsb(session, &options)
    })
}

/// Summarizes comparisons: one row per point and kind of hints, with the best single protocol. Other
/// rows stay unchanged.
pub(super) fn summary(rows: &[Row]) -> Vec<Row> {
    if rows.iter().all(|row| row.get("best").is_none()) {
        return rows.to_vec();
    }
    let hinted = rows.iter().filter(|row| word(row, "protocol").contains("hint"));
    hinted.map(|row| summarized(row, rows)).collect()
}

/// Fields that identify the point of a row.
const POINT: [&str; 4] = ["clients", "request_bytes", "response_bytes", "placement"];

fn word<'r>(row: &'r Row, field: &str) -> &'r str {
    row.get(field).and_then(|value| value.as_str()).unwrap_or_default()
}

fn summarized(row: &Row, rows: &[Row]) -> Row {
    let mut summary = Row::new();
    let copied = |summary: &mut Row, fields: &[&str]| {
        for field in fields {
            if let Some(value) = row.get(field) {
                summary.set(field, value.clone());
            }
        }
    };
    copied(&mut summary, &POINT);
    copied(&mut summary, &["slices", "protocol", "plan"]);
    let metrics = [("latency_", "p50_ns"), ("", "throughput_ops"), ("", "p50_ns")];
    let compared = metrics.into_iter().filter(|(prefix, field)| {
        let rate = row.get("throughput_ops").is_some();
        row.get(&format!("{prefix}best")).is_some()
            && row.get(field).is_some()
            && (!prefix.is_empty() || rate == (*field == "throughput_ops"))
    });
    for (prefix, field) in compared {
        let best = word(row, &format!("{prefix}best"));
        let same = |other: &&Row| {
            word(other, "protocol") == best && POINT.iter().all(|of| other.get(of) == row.get(of))
        };
        copied(&mut summary, &[field]);
        if field == "p50_ns" {
            copied(&mut summary, &["p99_ns"]);
        }
        summary.set(&format!("{prefix}best"), best);
        if let Some(value) = rows.iter().find(same).and_then(|other| other.get(field)) {
            summary.set(&format!("best_{field}"), value.clone());
        }
        let number = |name: &str| row.number(&format!("{prefix}{name}"));
        if let (Some(middle), Some(low), Some(high)) =
            (number("ratio"), number("ratio_p25"), number("ratio_p75"))
        {
            summary.set(&format!("{prefix}ratio"), format!("{middle:.3} [{low:.2}-{high:.2}]"));
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(protocol: &str, p50: f64, rate: f64) -> Row {
        Row::new()
            .with("clients", 4)
            .with("protocol", protocol)
            .with("p50_ns", p50)
            .with("throughput_ops", rate)
            .with("latency_best", "FaRM")
            .with("latency_ratio", 1.01)
            .with("latency_ratio_p25", 1.0)
            .with("latency_ratio_p75", 1.02)
            .with("best", "FaRM")
            .with("ratio", 0.99)
            .with("placement", "near")
    }

    #[test]
    fn a_point_is_a_row_with_both_that_are_compared() {
        let rows = [row("function hints", 500.0, 2e6), row("FaRM", 495.0, 2.1e6), row("Pilaf", 600.0, 1e6)];
        let summaries = summary(&rows);
        assert_eq!(summaries.len(), 1);
        let summary = &summaries[0];
        assert_eq!(summary.number("p50_ns"), Some(500.0));
        assert_eq!(summary.number("best_p50_ns"), Some(495.0));
        assert_eq!(summary.number("best_throughput_ops"), Some(2.1e6));
        assert_eq!(summary.get("latency_ratio"), Some(&"1.010 [1.00-1.02]".into()));
        assert_eq!(summary.get("ratio"), None, "without quartiles there is nothing to be told");
        let others = [Row::new().with("protocol", "FaRM")];
        assert_eq!(super::summary(&others).len(), 1);
    }
}
