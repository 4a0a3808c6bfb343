//! The memory cost of queue pairs. A separate test binary, so that no other test's memory is counted.

use crate::common::many;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = status.lines().find(|l| l.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn idle_queue_pairs_cost_little_memory() {
    let warm = many(20);
    let before = resident_bytes();
    let held = many(500);
    let after = resident_bytes();
    // Both ends of each pair are in this process.
    let each = after.saturating_sub(before) / 1000;
    println!("{each} bytes resident for each connected, idle queue pair");
    assert!(each < 24 * 1024, "{each} bytes for each idle queue pair");
    drop((warm, held));
}
