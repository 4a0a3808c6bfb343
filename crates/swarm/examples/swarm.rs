//! Runs a swarm without the `dunlin` command: plays seeds until one fails or all are done, and reports it.
//!
//! `swarm FIRST SEEDS [SECONDS]`; exit status 1 if a seed failed. Each seed also plays a run of the memory tier and
//! one of its calls and locks, each fourth one a run of its membership and one of locks under a directory, and each
//! eighth one a deployment.

use dunlin_swarm::{
    play, play_coordination, play_coordination_of_views, play_deployment, play_membership, play_tier,
};
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
        let membership = seed.is_multiple_of(4).then(|| play_membership(seed / 4, None));
        let of_views = seed.is_multiple_of(4).then(|| play_coordination_of_views(seed / 4, None));
        let deployment = seed.is_multiple_of(8).then(|| play_deployment(seed / 8, None));
        let (calls, tier) = (play(seed, None), play_tier(seed, None));
        let coordination = play_coordination(seed, None);
        let always = [calls, tier, coordination].map(Some);
        for outcome in always.into_iter().chain([membership, of_views, deployment]).flatten() {
            if let Some(failure) = outcome.failure {
                println!("seed {} failed: {failure}\n  {}", outcome.seed, outcome.what);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("no seed failed");
    ExitCode::SUCCESS
}
