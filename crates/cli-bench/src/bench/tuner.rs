//! `dunlin bench fetch-tuner` and `dunlin bench batch-tuner`: options and output.

use std::time::Duration;

use clap::Args;
use dunlin_bench::measure::{BatchTunerOptions, Stop, TunerGrid, batch_tuner, fetch_tuner};
use dunlin_report::Row;

use super::{Output, measure_to_the_end};
use dunlin_command::arguments;
use dunlin_command::output::Failure;

const FETCH_HELP: &str = "\
A function takes so long and answers with so many bytes. 'tuned' is RF-RPC with the engine's own choice of R, F and the way of results, \
for which it has 100 ms after each step from one cell to the next; 'plain reply' writes each result back; the others fetch with \
fixed R and F. All take turns in slices of some milliseconds, in one pinned pair of processes.

Columns: ratio is calls per second over those of the best other one in the same round (median over rounds, with its quartiles), \
plain_ratio over those of plain reply; fetched_share the part of the results that were fetched.

Examples:
  dunlin bench fetch-tuner                                     48 cells; five minutes
  dunlin bench fetch-tuner --process 0us,3us --result 32,2KiB --clients 4
  dunlin bench fetch-tuner --quick --json out.json

Ctrl-C ends the measurement and shows what there is. See also: dunlin bench fetch-table, what the choice goes by.";

const BATCH_HELP: &str = "\
A function takes so long and answers with so many bytes; each client has one batch of calls under way. 'within 20us' has batches of \
the size that the engine finds so that 95% of the calls are answered within 20 us, for which it has 100 ms after each step from one cell \
to the next; the others have batches of a fixed size. All take turns in slices of some milliseconds, in one pinned pair of processes.

Columns: ratio is calls per second over those of the best fixed size that keeps the same limit, in the same round (median over rounds, \
with its quartiles), empty where none does; latest_ns is the time within which all but the tolerated share of the calls were answered, \
of_limit the part of the limit that this is.

Examples:
  dunlin bench batch-tuner                                     12 cells, three limits each; some minutes
  dunlin bench batch-tuner --process 1us --result 64 --clients 2 --limit 10us,50us --tolerance 0.01
  dunlin bench batch-tuner --quick --json out.json

Ctrl-C ends the measurement and shows what there is.";

/// RF-RPC with its tuner against fixed R and F and plain replies, on a grid of process times, result sizes and clients.
#[derive(Args, Debug)]
#[command(after_help = FETCH_HELP)]
pub(crate) struct FetchTunerArguments {
    /// What the function takes.
    #[arg(long, default_value = "0us,1us,4us,16us", value_delimiter = ',', value_parser = arguments::duration, value_name = "TIME")]
    process: Vec<Duration>,
    /// Bytes of the result, at most 4 KiB.
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

/// Batches of the size that the engine finds within a latency against fixed sizes, on a grid of process times, result sizes and clients.
#[derive(Args, Debug)]
#[command(after_help = BATCH_HELP)]
pub(crate) struct BatchTunerArguments {
    /// What the function takes.
    #[arg(long, default_value = "0us,500ns,2us", value_delimiter = ',', value_parser = arguments::duration, value_name = "TIME")]
    process: Vec<Duration>,
    /// Bytes of the result, at most 512.
    #[arg(long, default_value = "32,256", value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    result: Vec<u64>,
    /// Numbers of clients.
    #[arg(long, default_value = "1,4", value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// Within what calls are to be answered.
    #[arg(long, default_value = "5us,20us,100us", value_delimiter = ',', value_parser = arguments::positive_duration, value_name = "TIME")]
    limit: Vec<Duration>,
    /// The share of calls that may be later.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    tolerance: f64,
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    output: Output,
}

/// How long contestants take turns.
#[derive(Args, Clone, Copy, Debug)]
struct Turns {
    /// Slices of each contestant and cell.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a slice.
    #[arg(long, default_value = "5ms", value_name = "TIME", value_parser = arguments::positive_duration)]
    slice: Duration,
    /// Two short slices of each: to see that it works, not how fast.
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
