//! Compares the raw-verbs driver that calibrates the model with the simulator: the same closed loops on the
//! same model, once as arithmetic on an event heap and once on queue pairs, memory and threads.

use dunlin_rnic_model::driver::Signaling;
use dunlin_rnic_model::sweep::{Effort, Row, parse, profile_of};
use dunlin_rnic_model::{Opcode, Profile};
use dunlin_scenario::raw_verbs;

/// Permitted difference, relative to the driver's rate.
const APART: f64 = 0.05;

/// Returns a row of the shared sweep by its shape: operation, queue pairs, payload, window, requests per
/// signaled one.
fn row(cluster: &str, operation: &str, [queue_pairs, bytes, window, every]: [u32; 4]) -> Row {
    let text = include_str!("../../../rnic-model/curves/rnic_sweep.csv");
    let rows = parse("rnic_sweep.csv", text).expect("a sweep");
    let of = |row: &Row| match row.signaling {
        Signaling::All => 1,
        Signaling::OneIn(every) => every,
    };
    let found = rows.into_iter().find(|row| {
        (row.cluster.as_str(), row.operation.as_str()) == (cluster, operation)
            && [row.queue_pairs, row.bytes, row.window, of(row)] == [queue_pairs, bytes, window, every]
    });
    found.expect("a row of that shape")
}

fn compare(mut row: Row) {
    let profile = Profile::built_in(profile_of(&row.cluster).expect("known")).expect("built in");
    if row.opcode == Opcode::Read {
        // The simulator signals all READs.
        row.signaling = Signaling::All;
    }
    let driver = row.predict(&profile, Effort::Full).expect("the driver");
    let simulator = raw_verbs::mops(&row, &profile, 1).expect("the simulator");
    let apart = simulator / driver - 1.0;
    println!("{row:?}: {driver} by the driver, {simulator} by the simulator, {:+.1}%", apart * 100.0);
    assert!(apart.abs() < APART, "{row:?}: {driver} by the driver, {simulator} by the simulator");
}

#[test]
fn inline_writes_on_few_queue_pairs() {
    compare(row("netapp", "WRITE_RC_inline", [12, 32, 32, 1]));
    compare(row("netapp", "WRITE_RC_inline", [12, 32, 8, 1]));
}

#[test]
fn reads_on_as_many_queue_pairs_as_the_nic_holds() {
    compare(row("netapp", "READ_RC", [84, 32, 32, 1]));
}

/// With context misses the order of a queue pair matters: requests behind a miss follow at once, and find the
/// context loaded.
#[test]
fn reads_on_more_queue_pairs_than_the_nic_holds() {
    compare(row("apt", "READ_RC", [240, 32, 32, 1]));
}

/// There are no answers, but a signaled request still costs the NIC a completion.
#[test]
fn unreliable_writes_few_of_which_are_signaled() {
    compare(row("netapp", "WRITE_UC_inline", [84, 16, 32, 4]));
}

/// Queue pairs of an incomplete group share their ends at the other host.
#[test]
fn an_incomplete_group_of_queue_pairs_and_payloads_from_buffers() {
    let mut odd = row("netapp", "WRITE_RC_inline", [12, 32, 8, 1]);
    (odd.queue_pairs, odd.inline) = (2 * 8, false);
    compare(odd);
}
