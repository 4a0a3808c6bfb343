//! The swarm over some seeds; the command `dunlin sim swarm` runs any number.

use dunlin_scenario::swarm::play;

#[test]
fn whatever_happens_every_call_is_accounted_for() {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds: u64 = std::env::var("DUNLIN_SEEDS").map_or(200, |text| text.parse().expect("a number"));
    let outcomes: Vec<_> = (0..seeds).map(|seed| play(seed, None)).collect();
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    for outcome in &failed {
        println!("seed {}: {:?}\n    {}", outcome.seed, outcome.failure, outcome.what);
    }
    assert!(failed.is_empty(), "{} of {seeds} seeds failed", failed.len());
    let sum = |field: fn(&dunlin_scenario::swarm::Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered) = (sum(|o| o.calls), sum(|o| o.answered));
    println!(
        "{calls} calls, {answered} answered, {} maybe, {} not executed, {} kills, {} events",
        sum(|o| o.maybe),
        sum(|o| o.not_executed),
        sum(|o| o.kills),
        sum(|o| o.events)
    );
    // The swarm is meaningful only if calls both succeed and fail in it.
    assert!(answered > calls / 2 && answered < calls * 99 / 100, "{answered} of {calls}");
}

/// Seeds that found bugs of the engine, by the causes in `docs/results/swarm.md`.
#[test]
fn seeds_that_found_bugs_pass() {
    for seed in [231, 356, 903, 2154, 2702, 4167, 4273, 5130, 6539] {
        let outcome = play(seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.what);
    }
}

#[test]
fn a_seed_is_a_run() {
    let (one, again, other) = (play(5, None), play(5, None), play(6, None));
    assert_eq!(one, again);
    assert_ne!(one.trace_hash, other.trace_hash);
    let told = dunlin_fabric_sim::History::new(1000);
    assert_eq!(play(5, Some(told.clone())), one, "to be watched changes nothing");
    assert!(told.lines().len() > 100);
}
