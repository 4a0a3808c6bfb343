//! Runs a swarm without the `dunlin` command: plays seeds until one fails or all are done, and reports it.
//!
//! `swarm FIRST SEEDS [SECONDS [PART...]]`; exit status 1 if a seed failed. PART is `engine`, `tier` or `views`; all of them
//! by default. Each seed plays a run of the engine, one of the memory tier and one of its calls and locks; each fourth one
//! a run of the tier's membership and one of locks under a directory; each eighth one a deployment.

use dunlin_fabric_sim::History;
use dunlin_swarm::{
    Outcome, play, play_coordination, play_coordination_of_views, play_deployment, play_membership, play_tier,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A kind of runs, which each seed plays that is a multiple of the number.
type Kind = (u64, fn(u64, Option<History>) -> Outcome);

const PARTS: [(&str, [Kind; 2]); 3] = [
    ("engine", [(1, play), (8, play_deployment)]),
    ("tier", [(1, play_tier), (1, play_coordination)]),
    ("views", [(4, play_membership), (4, play_coordination_of_views)]),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (numbers, named) = words.split_at(words.len().min(3));
    let numbers: Vec<u64> = numbers.iter().filter_map(|text| text.parse().ok()).collect();
    let [first, seeds, seconds] = match numbers[..] {
        [first, seeds] => [first, seeds, u64::MAX],
        [first, seeds, seconds] => [first, seeds, seconds],
        _ => return usage(),
    };
    let is_named = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let kinds: Vec<Kind> =
        PARTS.into_iter().filter(|(name, _)| is_named(name)).flat_map(|(_, kinds)| kinds).collect();
    if kinds.is_empty() {
        return usage();
    }
    // A panic within a run is a finding, reported below.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    for seed in first..first.saturating_add(seeds) {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        for (every, play) in kinds.iter().filter(|(every, _)| seed.is_multiple_of(*every)) {
            let outcome = play(seed / every, None);
            if let Some(failure) = outcome.failure {
                println!("seed {} failed: {failure}\n  {}", outcome.seed, outcome.what);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("no seed failed");
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: swarm FIRST SEEDS [SECONDS [engine] [tier] [views]]");
    ExitCode::from(2)
}
