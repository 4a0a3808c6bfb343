//! `dunlin bench fetch-tuner` and `dunlin bench batch-tuner`: options and output.

use std::time::Duration;

use clap::Args;
use dunlin_bench::measure::{BatchTunerOptions, Stop, TunerGrid, batch_tuner, fetch_tuner};
use dunlin_report::Row;

use super::{Output, measure_to_the_end};
use dunlin_command::arguments;
use dunlin_command::output::Failure;

const FETCH_HELP: &str = "\
Each cell of the grid has a processing time and a result size. 'tuned' is RF-RPC with the engine's own choice of R, F and \
response mode; it gets 100 ms to adapt after each step from one cell to the next. 'plain reply' writes each result back; the others \
fetch with fixed R and F. The contestants alternate in slices of some milliseconds, in one pinned pair of processes.

Columns: ratio is calls per second divided by those of the best other contestant in the same round (median over rounds, with \
quartiles); plain_ratio compares with plain reply; fetched_share is the fraction of results that were fetched.

Examples:
  dunlin bench fetch-tuner                                     48 cells; five minutes
  dunlin bench fetch-tuner --process 0us,3us --result 32,2KiB --clients 4
  dunlin bench fetch-tuner --quick --json out.json

Ctrl-C ends the measurement and prints the results so far. See also: dunlin bench fetch-table.";

const BATCH_HELP: &str = "\
Each cell of the grid has a processing time and a result size; each client has one batch of calls in flight. In 'within 20us' the \
engine chooses the batch size so that 95% of the calls complete within 20 us; it gets 100 ms to adapt after each step from one cell to \
the next. The others have a fixed batch size. The contestants alternate in slices of some milliseconds, in one pinned pair of \
processes.

Columns: ratio is calls per second divided by those of the best fixed size that keeps the same limit, in the same round (median over \
rounds, with quartiles; empty if none keeps it); latest_ns is the latency that only the tolerated fraction of the calls exceeded; \
of_limit is latest_ns divided by the limit.

Examples:
  dunlin bench batch-tuner                                     12 cells, three limits each; some minutes
  dunlin bench batch-tuner --process 1us --result 64 --clients 2 --limit 10us,50us --tolerance 0.01
  dunlin bench batch-tuner --quick --json out.json

Ctrl-C ends the measurement and prints the results so far.";

/// Compare RF-RPC's tuner with fixed R and F and with plain replies, by processing time, result size and
/// clients.
#[derive(Args, Debug)]
#[command(after_help = FETCH_HELP)]
pub(crate) struct FetchTunerArguments {
    /// Processing times of the function.
    #[arg(long, default_value = "0us,1us,4us,16us", value_delimiter = ',', value_parser = arguments::duration, value_name = "TIME")]
    process: Vec<Duration>,
    /// Sizes of the result, at most 4 KiB.
    #[arg(long, default_value = "32,512,2KiB,4000", value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    result: Vec<u64>,
    /// Numbers of clients.
    #[arg(long, default_value = "1,4,16", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    output: Output,
}

/// Compare adaptive batch sizes under a latency limit with fixed sizes, by processing time, result size and
/// clients.
#[derive(Args, Debug)]
#[command(after_help = BATCH_HELP)]
pub(crate) struct BatchTunerArguments {
    /// Processing times of the function.
    #[arg(long, default_value = "0us,500ns,2us", value_delimiter = ',', value_parser = arguments::duration, value_name = "TIME")]
    process: Vec<Duration>,
    /// Sizes of the result, at most 512 bytes.
    #[arg(long, default_value = "32,256", value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    result: Vec<u64>,
    /// Numbers of clients.
    #[arg(long, default_value = "1,4", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// Latency limits; each gives a contestant.
    #[arg(long, default_value = "5us,20us,100us", value_delimiter = ',', value_parser = arguments::positive_duration, value_name = "TIME")]
    limit: Vec<Duration>,
    /// Fraction of calls that may exceed the limit, 0 to 1.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    tolerance: f64,
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    output: Output,
}

/// Number and length of the slices.
#[derive(Args, Clone, Copy, Debug)]
struct Turns {
    /// Slices per contestant and cell.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a slice.
    #[arg(long, default_value = "5ms", value_name = "TIME", value_parser = arguments::positive_duration)]
    slice: Duration,
    /// Run only two short slices per contestant, to check that everything works.
    #[arg(long, conflicts_with_all = ["rounds", "slice"])]
    quick: bool,
}

impl Turns {
    fn paced(self) -> (u32, Duration) {
        if self.quick { (2, Duration::from_millis(1)) } else { (self.rounds, self.slice) }
    }

    fn row(self) -> Row {
        let (rounds, slice) = self.paced();
        Row::new().with("rounds", rounds).with("slice_ns", slice.as_nanos() as u64)
    }

    fn grid(self, process: &[Duration], result: &[u64], clients: Vec<usize>, stop: Stop) -> TunerGrid {
        let (rounds, slice) = self.paced();
        let processes = process.iter().map(|time| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        let results = result.iter().map(|bytes| u32::try_from(*bytes).unwrap_or(u32::MAX));
        TunerGrid {
            processes: processes.collect(),
            results: results.collect(),
            clients,
            rounds: rounds as usize,
            slice,
            stop,
        }
    }
}

pub(super) fn run_fetch(arguments: FetchTunerArguments) -> Result<(), Failure> {
    let FetchTunerArguments { process, result, clients, turns, output } = arguments;
    measure_to_the_end("bench fetch-tuner", turns.row(), &output, |session, stop| {
        fetch_tuner(session, &turns.grid(&process, &result, clients, stop))
    })
}

pub(super) fn run_batch(arguments: BatchTunerArguments) -> Result<(), Failure> {
    let BatchTunerArguments { process, result, clients, limit, tolerance, turns, output } = arguments;
    let parameters = turns.row().with("tolerance", tolerance);
    measure_to_the_end("bench batch-tuner", parameters, &output, |session, stop| {
        let options = BatchTunerOptions {
            grid: turns.grid(&process, &result, clients, stop),
            limits_ns: limit.iter().map(|time| time.as_nanos() as u64).collect(),
            tolerance,
        };
        batch_tuner(session, &options)
    })
}
