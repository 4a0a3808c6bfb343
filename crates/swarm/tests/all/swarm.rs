//! The swarm over some seeds; the command `dunlin sim swarm` runs any number.

use dunlin_swarm::{
    Outcome, play, play_coordination, play_coordination_of_views, play_deployment, play_membership, play_tier,
};

/// Plays the first seeds, none of which may fail: `usual` of them, or as many as `DUNLIN_SEEDS` says.
fn played(usual: u64, play: impl Fn(u64) -> Outcome) -> Vec<Outcome> {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = std::env::var("DUNLIN_SEEDS").map_or(usual, |text| text.parse().expect("a number"));
    let outcomes: Vec<_> = (0..seeds).map(play).collect();
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    for outcome in &failed {
        println!("seed {}: {:?}\n    {}", outcome.seed, outcome.failure, outcome.what);
    }
    assert!(failed.is_empty(), "{} of {seeds} seeds failed: see above", failed.len());
    outcomes
}

#[test]
fn whatever_happens_every_call_is_accounted_for() {
    let outcomes = played(200, |seed| play(seed, None));
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
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

/// Two or three servers with a common schedule, clocks apart, and time servers that die.
#[test]
fn servers_that_share_a_schedule_account_for_every_call() {
    let outcomes = played(16, |seed| play_deployment(seed, None));
    let seeds = outcomes.len() as u64;
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered, switches) = (sum(|o| o.calls), sum(|o| o.answered), sum(|o| o.switches));
    println!("{calls} calls, {answered} answered, {} kills, {switches} switches", sum(|o| o.kills));
    assert!(answered > calls / 2 && switches > 100 * seeds && sum(|o| o.kills) > seeds / 4);
    assert_eq!(play_deployment(3, None), outcomes[3], "a seed is a run");
}

/// Nodes of the memory tier whose regions move and are freed, while nodes are killed and cut off.
#[test]
fn regions_keep_their_bytes_while_nodes_move_them_and_die() {
    let outcomes = played(150, |seed| play_tier(seed, None));
    let seeds = outcomes.len() as u64;
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered, maybe) = (sum(|o| o.calls), sum(|o| o.answered), sum(|o| o.maybe));
    println!("{calls} operations, {answered} done, {maybe} maybe, {} kills", sum(|o| o.kills));
    assert!(answered > calls / 4 && maybe > seeds && sum(|o| o.kills) > seeds / 3);
    assert_eq!(play_tier(5, None), outcomes[5], "a seed is a run");
}

/// Nodes of the memory tier whose threads call each other, take locks and meet, while nodes are killed and cut off.
#[test]
fn locks_and_barriers_hold_while_nodes_die() {
    let outcomes = played(40, |seed| play_coordination(seed, None));
    let seeds = outcomes.len() as u64;
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered, maybe) = (sum(|o| o.calls), sum(|o| o.answered), sum(|o| o.maybe));
    println!("{calls} operations, {answered} done, {maybe} maybe, {} kills", sum(|o| o.kills));
    assert!(answered > calls / 2 && maybe > seeds && sum(|o| o.kills) > seeds / 3);
    assert_eq!(play_coordination(5, None), outcomes[5], "a seed is a run");
}

/// Nodes whose views come from a directory, which ends and begins again, while they join, leave, die and are cut off.
#[test]
fn views_agree_while_nodes_and_their_directory_come_and_go() {
    let outcomes = played(40, |seed| play_membership(seed, None));
    let seeds = outcomes.len() as u64;
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered) = (sum(|o| o.calls), sum(|o| o.answered));
    println!("{calls} calls, {answered} answered, {} kills", sum(|o| o.kills));
    assert!(answered > calls / 4 && answered > 100 * seeds && sum(|o| o.kills) > seeds / 3);
    assert_eq!(play_membership(5, None), outcomes[5], "a seed is a run");
}

/// Such nodes that take locks and meet, while their directory changes the owners.
#[test]
fn locks_and_barriers_hold_while_their_owners_change() {
    let outcomes = played(24, |seed| play_coordination_of_views(seed, None));
    let seeds = outcomes.len() as u64;
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    let (calls, answered) = (sum(|o| o.calls), sum(|o| o.answered));
    println!("{calls} operations, {answered} done, {} kills", sum(|o| o.kills));
    assert!(answered > calls / 2 && answered > 500 * seeds && sum(|o| o.kills) > seeds / 3);
    assert_eq!(play_coordination_of_views(5, None), outcomes[5], "a seed is a run");
}

/// Seeds that found bugs of the tier: places in the memory of a node that had restarted, operations that never ended, and
/// regions that moved for ever.
#[test]
fn seeds_that_found_bugs_of_the_tier_pass() {
    for seed in [117, 131, 160, 270, 298, 410, 455, 566, 1041, 2095, 2185] {
        let outcome = play_tier(seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.what);
    }
}

/// Seeds that found bugs of membership: memory of a move that another keeper had given up stayed for ever, and a thread told
/// the same keepers of a change without an end.
#[test]
fn seeds_that_found_bugs_of_membership_pass() {
    for seed in [207, 393, 435] {
        let outcome = play_membership(seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.what);
    }
}

/// A seed that found a bug of the model of locks: the check at the end of a run took a poisoned lock before a thread that
/// waited for it still.
#[test]
fn seeds_that_found_bugs_of_locks_pass() {
    let outcome = play_coordination(112, None);
    assert_eq!(outcome.failure, None, "{}", outcome.what);
}

/// Seeds that found bugs of locks under a directory: owners that later ones had followed, and an owner without its own memory.
#[test]
fn seeds_that_found_bugs_of_changing_owners_pass() {
    for seed in [34, 154, 203, 276, 310, 342] {
        let outcome = play_coordination_of_views(seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.what);
    }
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
