//! `dunlin bench atb` and `dunlin bench ycsb`: options and output of HatRPC's benchmarks.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dunlin::CompletionMode;
use dunlin_bench::measure::{
    AtbLatencyOptions, AtbMixOptions, AtbThroughputOptions, Pace, Polling, Singles, YcsbOptions,
    YcsbWorkload, atb_latency, atb_mix, atb_throughput, ycsb,
};
use dunlin_report::Row;

use super::{Output, measure_to_the_end};
use dunlin_command::arguments;
use dunlin_command::output::Failure;

const LATENCY_HELP: &str = "\
A service in Thrift is called from its generated client. Its hints say perf_goal = latency and the payload's size; dunlin \
chooses the plan. It competes with the same service for each protocol of the table, asked for by the hint protocol = NAME. \
All take turns in slices of some milliseconds, in one pinned pair of processes.

Columns: plan is request half, response half, how client and server wait, how large payloads travel; best is the best \
single protocol of that size, ratio the p50 over the best's of the same round (median over rounds), with its quartiles. \
Rows whose placement differs are of different kinds of moments: the host moves the cores about.

Examples:
  dunlin bench atb latency                                 4 B to 512 KiB, every protocol; a minute
  dunlin bench atb latency --size 512 --response 64KiB     small requests, large answers
  dunlin bench atb latency --size 32 --polling hinted,event --protocol Direct-WriteIMM
  dunlin bench atb latency --quick --json out.json --plot out.svg

Ctrl-C ends the measurement and shows what there is.";

const THROUGHPUT_HELP: &str = "\
Each client has a connection of its own and one call under way. The server's worker has a core for itself. Up to four clients \
are a thread each and share the other cores, so that on a small machine some are too many; more clients share a thread for \
each of those cores, which takes their answers in turn. The hints say perf_goal = \
throughput, concurrency and the payload's size. Where hundreds of connections with large payloads would take too much \
memory (1 GiB for all), each contestant's are made anew for each of its slices.

Columns as in 'dunlin bench atb latency', ratio being calls per second over the best's; the latencies are of one client's \
calls.

Examples:
  dunlin bench atb throughput                              1 to 512 clients, 512 B and 128 KiB; half an hour
  dunlin bench atb throughput --clients 1,16 --size 512 --quick
  dunlin bench atb throughput --clients 64 --polling hinted,busy,event

Ctrl-C ends the measurement and shows what there is.";

const MIX_HELP: &str = "\
Clients call two functions, drawn at random; both sum every byte of what they get. One is hinted perf_goal = latency, and its \
latency counts (p50_ns and so on, latency_ratio); the other perf_goal = throughput, and its calls per second count \
(throughput_ops, ratio). 'function hints' has both goals; 'service hints' says throughput for the whole service; then each \
protocol for both functions.

Examples:
  dunlin bench atb mix                                     512 B and 128 KiB, 1 to 16 clients
  dunlin bench atb mix --clients 64 --latency-share 0.9

Ctrl-C ends the measurement and shows what there is.";

const YCSB_HELP: &str = "\
HatKV holds records of ten fields of 100 bytes under keys of 24 bytes in LMDB, in memory. Workload a is a quarter each of GET, \
PUT, MULTIGET and MULTIPUT; b is 47.5% each of GET and MULTIGET, 2.5% each of the others; batches are of 10, keys zipfian. \
'function hints' goes by the hints of its IDL, 'service hints' by those of the service alone, the others are emulations of \
systems by their protocols, on the same store.

Examples:
  dunlin bench ycsb                                        both workloads, 128 clients, as in the paper
  dunlin bench ycsb --workload b --clients 16 --protocol Direct-WriteIMM --quick

Nothing is left behind: the store's folder is removed as soon as the server has opened it. Ctrl-C ends the measurement and \
shows what there is.";

/// Which of the benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Atb {
    /// One client, one call at a time.
    #[command(after_help = LATENCY_HELP)]
    Latency {
        #[command(flatten)]
        sizes: Sizes,
        #[command(flatten)]
        contest: Contest,
        #[command(flatten)]
        output: Output,
    },
    /// Calls per second of 1 to 512 clients.
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
    /// Two functions with different goals.
    #[command(after_help = MIX_HELP)]
    Mix {
        /// Numbers of clients.
        #[arg(long, default_value = "1,4,16", value_delimiter = ',', value_name = "N")]
        clients: Vec<usize>,
        /// The share of calls of the function whose latency counts.
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

/// HatKV under YCSB's workloads.
#[derive(Args, Debug)]
#[command(after_help = YCSB_HELP)]
pub(crate) struct YcsbArguments {
    /// The workloads: a, b.
    #[arg(long, default_value = "a,b", value_delimiter = ',', value_name = "NAME")]
    workload: Vec<YcsbWorkload>,
    /// Clients, each with one operation under way.
    #[arg(long, default_value_t = 128, value_name = "N")]
    clients: usize,
    /// Records in the store.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    records: usize,
    #[command(flatten)]
    contest: Contest,
    #[command(flatten)]
    output: Output,
}

/// The payloads' sizes.
#[derive(Args, Debug)]
pub(crate) struct Sizes {
    /// Bytes of request and answer, as 512 or 128KiB.
    #[arg(long, value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    size: Vec<u64>,
    /// Bytes of the request in their place.
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    request: Option<u64>,
    /// Bytes of the answer in their place.
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

/// How single protocols wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PollingWord {
    /// As the other hints ask for.
    Hinted,
    Busy,
    Event,
    Adaptive,
}

/// Who competes, and for how long.
#[derive(Args, Debug)]
pub(crate) struct Contest {
    /// Only this protocol beside the hints, by its name (`Server-reply`, ...); may be given more than once.
    #[arg(long, value_name = "NAME")]
    protocol: Vec<String>,
    /// How the single protocols wait; with several, each competes in each way that it can.
    #[arg(long, value_enum, default_value = "hinted", value_delimiter = ',', value_name = "MODE")]
    polling: Vec<PollingWord>,
    /// Slices of each contestant and point.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of a slice, as 5ms.
    #[arg(long, value_name = "TIME", value_parser = arguments::positive_duration)]
    slice: Option<Duration>,
    /// A few short slices of each: to see that it works, not how fast.
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

    /// What of the pace was given; the rest goes by the number of clients.
    fn pace_row(&self) -> Row {
        let Pace { rounds, slice } = self.pace();
        Row::new().with("rounds", rounds).with("slice_ns", slice.map(|slice| slice.as_nanos() as u64))
    }

    fn row(&self, rounds: usize, slice: Duration) -> Row {
        Row::new().with("rounds", rounds).with("slice_ns", slice.as_nanos() as u64)
    }
}

/// Slices of each contestant and point for one client, and their length in milliseconds.
const ALONE: (usize, u64) = (40, 2);
/// Length of a slice of many clients with `--quick`.
const QUICK_SLICE: Duration = Duration::from_millis(5);
/// The same for YCSB's clients.
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

/// What hints make of a point, beside the best single protocol there, a row each, for what compares these; other rows as they
/// are.
pub(super) fn summary(rows: &[Row]) -> Vec<Row> {
    if rows.iter().all(|row| row.get("best").is_none()) {
        return rows.to_vec();
    }
    let hinted = rows.iter().filter(|row| word(row, "protocol").contains("hint"));
    hinted.map(|row| summarized(row, rows)).collect()
}

/// Fields that say which point a row is of.
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
