//! `dunlin bench fetch-tuner`: options and output.

use std::time::Duration;

use clap::Args;
use dunlin_bench::measure::{FetchTunerOptions, fetch_tuner};
use dunlin_bench::report::Row;

use super::{Output, atb};
use crate::arguments;
use crate::output::Failure;

const HELP: &str = "\
A function takes so long and answers with so many bytes. 'tuned' is RF-RPC with the engine's own choice of R, F and the way of results, \
for which it has 100 ms after each step from one cell to the next; 'plain reply' writes each result back; the others fetch with \
fixed R and F. All take turns in slices of some milliseconds, in one pinned pair of processes.

Columns: ratio is calls per second over those of the best other one in the same round (median over rounds, with its quartiles), \
plain_ratio over those of plain reply; fetched_share the part of the results that were fetched in the last slice.

Examples:
  dunlin bench fetch-tuner                                     48 cells; five minutes
  dunlin bench fetch-tuner --process 0us,3us --result 32,2KiB --clients 4
  dunlin bench fetch-tuner --quick --json out.json

Ctrl-C ends the measurement and shows what there is. See also: dunlin bench fetch-table, what the choice goes by.";

/// RF-RPC with its tuner against fixed R and F and plain replies, on a grid of process times, result sizes and clients.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
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
    /// Slices of each contestant and cell.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a slice.
    #[arg(long, default_value = "5ms", value_name = "TIME", value_parser = arguments::positive_duration)]
    slice: Duration,
    /// Two short slices of each: to see that it works, not how fast.
    #[arg(long, conflicts_with_all = ["rounds", "slice"])]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: FetchTunerArguments) -> Result<(), Failure> {
    let FetchTunerArguments { process, result, clients, rounds, slice, quick, output } = arguments;
    let (rounds, slice) = if quick { (2, Duration::from_millis(1)) } else { (rounds, slice) };
    let parameters = Row::new().with("rounds", rounds).with("slice_ns", slice.as_nanos() as u64);
    atb::measure("bench fetch-tuner", parameters, &output, |session, stop| {
        let processes = process.iter().map(|time| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        let options = FetchTunerOptions {
            processes: processes.collect(),
            results: result.iter().map(|bytes| u32::try_from(*bytes).unwrap_or(u32::MAX)).collect(),
            clients,
            rounds: rounds as usize,
            slice,
            stop,
        };
        fetch_tuner(session, &options)
    })
}
