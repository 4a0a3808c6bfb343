//! Ten nodes, one of which dies, in virtual time: with the default settings, the others know it within a second.

use dunlin_scenario::membership::{Death, MembershipLoad, MembershipTimes};

const SECOND: u64 = 1_000_000_000;

fn run(death: Death, phase: u32) -> MembershipTimes {
    MembershipLoad { death, phase, ..MembershipLoad::of("lite") }.run(u64::from(phase)).expect("a run")
}

#[test]
fn all_nodes_know_of_a_death_within_a_second_and_callers_have_its_error() {
    for death in [Death::Killed, Death::Silent] {
        for phase in [0, 5, 9] {
            let times = run(death, phase);
            for (what, time) in [("view", times.view), ("error", times.status), ("home", times.name)] {
                assert!(time > 0 && time < SECOND, "{death:?} at {phase}: {what} after {time} ns");
            }
            assert!(times.operation < SECOND, "{death:?} at {phase}: {times:?}");
        }
    }
}

#[test]
fn a_run_replays() {
    assert_eq!(run(Death::Killed, 3), run(Death::Killed, 3));
}
