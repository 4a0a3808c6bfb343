//! `dunlin sim scene`: a client that chooses at run time between fetched and written-back results, and its
//! batch size.

use clap::Args;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, table};
use dunlin_scenario::tuning::{BATCH_PARTS, BatchOutcome, PARTS, PartOutcome, WITHIN, play, play_batches};
use std::process::ExitCode;

/// The cluster: a NIC that serves READs five times as fast as it issues WRITEs.
const PROFILE: &str = "rf-rpc";

/// Run the demo's scene: a client adapts to a function that becomes slow and then fast again
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0.

Example:
  dunlin sim scene")]
pub(crate) struct SceneArguments {}

/// Runs the scene and prints it. Fetching gives no advantage between processes of one host, so the scene
/// uses a simulated NIC: the same engine in virtual time, with the same outcome on every machine.
pub(super) fn run(_: &SceneArguments) -> Result<ExitCode, Failure> {
    let outcomes = play(PROFILE, &PARTS).map_err(Failure::new)?;
    let rows: Vec<Row> = outcomes.iter().map(row).collect();
    output::print_line(
        "\nProtocol RF-RPC, on a simulated NIC (profile rf-rpc, virtual time): the function changes, and its client with it.\n",
    )?;
    output::print(table(&rows))?;
    let Some(last) = outcomes.last() else { return Ok(ExitCode::SUCCESS) };
    output::print_line(format_args!(
        "\nR: READs that may find nothing, at most N = {}; F: bytes of a READ, {} to {}; both chosen by rates {}, by enumeration and with READs over and over, as in the paper.",
        last.tuning.retries_at_most,
        last.tuning.fetch_bytes_between.0,
        last.tuning.fetch_bytes_between.1,
        last.tuning.table
    ))?;
    let outcomes = play_batches(PROFILE, &BATCH_PARTS).map_err(Failure::new)?;
    let rows: Vec<Row> = outcomes.iter().map(batch_row).collect();
    output::print_line(format_args!(
        "\nThe same with calls that go together, as many as keep {} us but for {} of 100; a client's defaults.\n",
        WITHIN.0 / 1000,
        WITHIN.1 * 100.0
    ))?;
    output::print(table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn batch_row(outcome: &BatchOutcome) -> Row {
    let BatchOutcome { part, together, late_share, mops } = outcome;
    Row::new()
        .with("handler_ns", part.process)
        .with("calls_together", (together * 10.0).round() / 10.0)
        .with("late_share", (late_share * 1000.0).round() / 1000.0)
        .with("throughput_ops", (mops * 1e6).round())
}

fn row(outcome: &PartOutcome) -> Row {
    let PartOutcome { part, mean_ns, results: (fetched, written), tuning } = outcome;
    let mode = if tuning.written_back.is_empty() { "fetched" } else { "written back" };
    Row::new()
        .with("handler_ns", part.process)
        .with("result_bytes", part.result)
        .with("mean_ns", mean_ns.round())
        .with("fetched", *fetched)
        .with("written_back", *written)
        .with("now", mode)
        .with("R", tuning.retries)
        .with("F_bytes", tuning.fetch_bytes)
}
