//! Writers whose node dies together with a lock, by the node that owns the lock.

use crate::cluster::{LOG, NAMES, die_at, in_virtual_time, small, under_a_directory};
use crate::holes::{die_in, until};
use dunlin_app_log::{Cleaner, LogConfig, Writer, create, status};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::Tier;
use std::time::Duration;

/// The first node dies while a writer of it has reserved room. The log is on the second node, its names are on others
/// than the first. The hole is closed, and nobody evicts the writer.
fn the_hole_of_a_dead_node_is_closed([alice, bob, carol]: [Tier<Sim>; 3], log: String) {
    let config = LogConfig { lease: Duration::from_secs(2), ..small() };
    create(&carol, &log, &config).unwrap();
    let mut cleaner = Cleaner::open(&bob, &log).unwrap();
    let mut writer = Writer::open(&carol, &log).unwrap();
    writer.append(b"before").unwrap();
    let before = writer.commit().unwrap();
    drop(writer);
    let (dying, name) = (alice.clone(), log.clone());
    let position = die_in(alice.fabric(), move || die_at(&dying, &name, 300));
    let written = until(&bob, &mut cleaner, |cleaned| cleaned.ended.is_some() || cleaned.hole.is_some());
    assert_eq!(written.1, [before]);
    // After the next view, if there are views.
    let mut writer = Writer::open(&carol, &log).unwrap();
    writer.append(b"after").unwrap();
    let after = writer.commit().unwrap();
    drop(writer);
    let (closed, positions) = until(&bob, &mut cleaner, |cleaned| cleaned.closed > 0);
    assert_eq!((closed.closed, positions), (after - position, vec![after]));
    assert!(status(&bob, &log).unwrap().writers.is_empty());
}

/// A name of a log whose regions have their home at carol's node, and the first lock of its first row at `owner`.
fn log_of(tier: &Tier<Sim>, owner: &str) -> String {
    let at = |name: &str, node| tier.home(name).unwrap() == node;
    let fits = |log: &String| {
        at(log, "carol")
            && at(&format!("{log}/ring"), "carol")
            && tier.lock_home(format!("{log}/writer/0")).unwrap() == owner
    };
    (0..).map(|number| format!("{LOG}-{number}")).find(fits).unwrap()
}

#[test]
fn in_virtual_time_the_hole_is_closed_whichever_node_owns_the_name_of_the_lock() {
    for owner in NAMES {
        for seed in 400..403 {
            in_virtual_time(seed, move |tiers| {
                let log = log_of(&tiers[0], owner);
                the_hole_of_a_dead_node_is_closed(tiers, log);
            });
        }
    }
}

/// With a directory, locks stay with the nodes that joined first: here with the one that dies.
#[test]
fn in_virtual_time_the_hole_is_closed_if_the_only_founder_dies() {
    for seed in 410..413 {
        under_a_directory(seed, |tiers| {
            assert_eq!(tiers[1].lock_home("any").unwrap(), "alice");
            the_hole_of_a_dead_node_is_closed(tiers, LOG.to_owned());
        });
    }
}
