//! Runs a swarm without the `dunlin` command: plays seeds until one fails or all are done, and reports it.
//!
//! `swarm FIRST SEEDS [SECONDS]`; exit status 1 if a seed failed.

use dunlin_scenario::swarm::play;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [first, seeds, seconds] = match numbers[..] {
        [first, seeds] => [first, seeds, u64::MAX],
        [first, seeds, seconds] => [first, seeds, seconds],
        _ => {
            eprintln!("usage: swarm FIRST SEEDS [SECONDS]");
            return ExitCode::from(2);
        }
    };
    // A panic within a run is a finding, reported below.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    for seed in first..first.saturating_add(seeds) {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        let outcome = play(seed, None);
        if let Some(failure) = outcome.failure {
            println!("seed {seed} failed: {failure}\n  {}", outcome.what);
            return ExitCode::FAILURE;
        }
    }
    println!("no seed failed");
    ExitCode::SUCCESS
}
