//! Real processes that die with locks, while they wait for them, and at barriers. A child runs the test of that name
//! with its role in the environment.

use crate::common::{Child, Serving, attach, attach_address, config, serve, tag, wait};
use crate::locks::name_at;
use dunlin_tier::NodeId;
use dunlin_tier::lock::message::LockRefusal;
use dunlin_tier_client::{LockError, Rights, Spec, Tier};
use std::time::{Duration, Instant};

const ROLE: &str = "TIER_TEST_LOCK_ROLE";
const TAG: &str = "TIER_TEST_LOCK_TAG";
const NODE: &str = "TIER_TEST_LOCK_NODE";
const NAME: &str = "TIER_TEST_LOCK_NAME";

fn start(role: &str, (tag, node): (&str, &str), name: &str) -> Child {
    Child::start("lock_deaths::child", &[(ROLE, role), (TAG, tag), (NODE, node), (NAME, name)])
}

/// Words of the region that the processes share.
const READY: u64 = 0;
const INSIDE: u64 = 8;
const ROUNDS: u64 = 16;

/// Takes the lock for ever. A holder that died may have left its mark in the word; nobody else may.
fn take_turns(tier: &Tier, name: &str, rounds: u64) -> u64 {
    let region = tier.map("state", Rights::ALL).unwrap();
    let (me, mut poisoned) = (u64::from(std::process::id()), 0);
    for _ in 0..rounds {
        let guard = tier.lock(name).unwrap();
        let found = region.fetch_add(INSIDE, 0).unwrap();
        assert!(found == 0 || guard.is_poisoned(), "{found} has the lock, too");
        poisoned += u64::from(guard.is_poisoned());
        assert_eq!(region.compare_swap(INSIDE, found, me).unwrap(), found);
        region.fetch_add(ROUNDS, 1).unwrap();
        assert_eq!(region.compare_swap(INSIDE, me, 0).unwrap(), me, "somebody else has the lock, too");
        guard.unlock().unwrap();
    }
    poisoned
}

/// The children of the tests below end with them: they kill them.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [tag, node, name] = [TAG, NODE, NAME].map(|variable| std::env::var(variable).unwrap());
    let tier = attach(&attach_address(&tag, &node));
    let ready = || {
        let region = tier.map("state", Rights::ALL).unwrap();
        region.fetch_add(READY, 1).unwrap();
    };
    match role.as_str() {
        "holder" => {
            let _guard = tier.lock(&name).unwrap();
            ready();
            std::thread::sleep(Duration::from_secs(600));
        }
        "waiter" => {
            ready();
            let _guard = tier.lock_within(&name, Duration::from_secs(600)).unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        "caller" => {
            ready();
            tier.barrier_within(&name, 4, Duration::from_secs(600)).unwrap();
        }
        "takes turns" => {
            take_turns(&tier, &name, u64::MAX);
        }
        other => panic!("no role {other}"),
    }
}

fn is_child() -> bool {
    std::env::var(ROLE).is_ok()
}

/// Two nodes, a process of each, and the region that all processes share.
struct Place {
    tag: String,
    nodes: Vec<Serving>,
    tiers: [Tier; 2],
    region: dunlin_tier_client::Lmr,
}

impl Place {
    fn new(what: &str) -> Place {
        let tag = tag(what);
        let nodes: Vec<Serving> =
            ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {})).into();
        let tiers = [0, 1].map(|at: usize| attach(&nodes[at].address));
        let spec = Spec::on("one").named("state").grant_anyone(Rights::ALL);
        let region = tiers[0].malloc(64, spec).unwrap();
        Place { tag, nodes, tiers, region }
    }

    /// Starts a child, and waits until it is ready.
    fn start(&self, role: &str, node: &str, name: &str) -> Child {
        let before = self.region.fetch_add(READY, 0).unwrap();
        let child = start(role, (&self.tag, node), name);
        wait(role, || (self.region.fetch_add(READY, 0).unwrap() > before).then_some(()));
        child
    }
}

#[test]
fn the_lock_of_a_killed_process_is_poisoned_for_the_next_one() {
    if is_child() {
        return;
    }
    let place = Place::new("killed-holder");
    for (owner, node, next) in [(0, "one", 0), (0, "two", 0), (1, "one", 0), (0, "two", 1)] {
        let name = name_at(owner);
        let mut holder = place.start("holder", node, &name);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let guard = place.tiers[next].lock(&name).unwrap();
                (Instant::now(), guard.is_poisoned())
            });
            std::thread::sleep(Duration::from_millis(100));
            let killed = Instant::now();
            holder.kill();
            let (granted, poisoned) = waits.join().unwrap();
            assert!(poisoned, "{owner} {node} {next}");
            assert!(granted - killed < Duration::from_secs(1), "{:?}", granted - killed);
        });
        // Once only.
        assert!(!place.tiers[1].lock(&name).unwrap().is_poisoned());
        // Nobody waits: the mark stays for the next one, a thread of a node, too.
        let mut holder = place.start("holder", node, &name);
        holder.kill();
        let guard = wait("the lock", || place.nodes[next].node.try_lock(&name).unwrap());
        assert!(guard.is_poisoned());
        guard.unlock().unwrap();
        assert!(!place.tiers[0].lock(&name).unwrap().is_poisoned());
    }
}

#[test]
fn a_killed_waiter_leaves_the_queue() {
    if is_child() {
        return;
    }
    let place = Place::new("killed-waiter");
    for (owner, node) in [(0, "one"), (0, "two"), (1, "one")] {
        let name = name_at(owner);
        let guard = place.tiers[0].lock(&name).unwrap();
        let mut waiter = place.start("waiter", node, &name);
        std::thread::sleep(Duration::from_millis(100));
        waiter.kill();
        let is_gone = || {
            let lists = place.tiers.each_ref().map(|tier| tier.status().unwrap().processes);
            lists.iter().flatten().all(|one| one.process != waiter.0.id()).then_some(())
        };
        wait("the end of the waiter", is_gone);
        guard.unlock().unwrap();
        for tier in &place.tiers {
            let guard = tier.lock_within(&name, Duration::from_secs(2)).unwrap();
            assert!(!guard.is_poisoned(), "nobody had it");
        }
        // A lock that comes to a waiter before the node notices its death is one that it had.
        let guard = place.tiers[1].lock(&name).unwrap();
        let mut waiter = place.start("waiter", node, &name);
        std::thread::sleep(Duration::from_millis(50));
        waiter.kill();
        guard.unlock().unwrap();
        let guard = place.tiers[0].lock_within(&name, Duration::from_secs(2)).unwrap();
        guard.unlock().unwrap();
        assert!(!place.tiers[1].lock(&name).unwrap().is_poisoned());
    }
}

#[test]
fn a_barrier_ends_for_all_if_a_process_is_killed() {
    if is_child() {
        return;
    }
    let place = Place::new("killed-caller");
    for (owner, node, number) in [(0, "two", 1), (1, "one", 0), (1, "two", 1)] {
        let name = name_at(owner);
        let mut caller = place.start("caller", node, &name);
        std::thread::scope(|scope| {
            let ended = place.tiers.each_ref().map(|tier| scope.spawn(|| tier.barrier(&name, 4)));
            std::thread::sleep(Duration::from_millis(200));
            let killed = Instant::now();
            caller.kill();
            for ended in ended {
                let ended = ended.join().unwrap();
                let Err(LockError::Refused { source, .. }) = ended else { panic!("{ended:?}") };
                assert_eq!(source, LockRefusal::Died(NodeId(number)));
            }
            assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
        });
        // The next callers meet as if nothing had been.
        std::thread::scope(|scope| {
            scope.spawn(|| place.tiers[1].barrier(&name, 2).unwrap());
            place.tiers[0].barrier(&name, 2).unwrap();
        });
    }
}

/// Processes of both nodes take one lock by turns and are killed at any time, with and without it.
#[test]
fn a_lock_goes_on_whenever_a_process_is_killed() {
    if is_child() {
        return;
    }
    let place = Place::new("killed-any");
    let name = name_at(0);
    let start = |node| start("takes turns", (&place.tag, node), &name);
    let mut children = [start("one"), start("two"), start("one")];
    let rounds = || place.region.fetch_add(ROUNDS, 0).unwrap();
    wait("the first rounds", || (rounds() > 20).then_some(()));
    let mut poisoned = 0;
    for round in 0..12u64 {
        let victim = round as usize % children.len();
        std::thread::sleep(Duration::from_micros(700 * (round * 7 % 11)));
        children[victim].kill();
        poisoned += take_turns(&place.tiers[round as usize % 2], &name, 5);
        children[victim] = start(["one", "two"][victim % 2]);
        let before = rounds();
        wait("the others", || (rounds() > before + 5).then_some(()));
    }
    assert!(poisoned <= 12, "one for each death");
    for mut child in children {
        assert!(child.0.try_wait().unwrap().is_none(), "a child has found a mistake");
        child.kill();
    }
    drop(wait("the lock", || place.tiers[0].try_lock(&name).unwrap()));
}
