//! Holders of a lock, the node that owns it, and the directory are killed at random points, many times.
//! `DUNLIN_TIER_LOCK_KILLS` is the number of kills.
//!
//! Processes of three nodes take one lock by turns. Each enters a word of a witness, a node of its own that nobody kills, by
//! the fence number of its grant: a number enters once, and no smaller one enters after it. As long as no node dies, a
//! process that gives the lock back finds its own number there: nobody else has entered meanwhile.

use crate::common::{Child, Serving, attach, attach_address, config, count, serve, tag, wait};
use crate::membership::{NODES, await_state, start as start_member};
use dunlin_fabric::{Host as _, RealHost};
use dunlin_tier_client::{Lmr, MemberState, Rights, Spec, Tier};
use std::time::Duration;

const ROLE: &str = "TIER_TEST_LOCK_KILLS";
const TAG: &str = "TIER_TEST_LOCK_KILLS_TAG";
const NAME: &str = "lock kills";

/// Words of the witness: the last number that entered, deaths of nodes (odd while one goes on), grants that told of a death,
/// and the rounds of the processes of each node.
const FENCE: u64 = 0;
const DEATHS: u64 = 8;
const POISONED: u64 = 16;
const ROUNDS: u64 = 24;

fn witness_tag(tag: &str) -> String {
    format!("{tag}-witness")
}

/// Reads a word.
fn word(region: &Lmr, at: u64) -> u64 {
    let mut bytes = [0; 8];
    region.read(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Enters the number of a grant; returns `false` if a later grant has entered.
fn enter(region: &Lmr, fence: u64) -> bool {
    loop {
        let last = word(region, FENCE);
        assert_ne!(last, fence, "two grants with one number");
        if fence < last {
            return false;
        }
        if region.compare_swap(FENCE, last, fence).unwrap() == last {
            return true;
        }
    }
}

/// The part of a process that takes the lock, until its node ends.
#[test]
fn child() {
    let Ok(node) = std::env::var(ROLE) else { return };
    let tag = std::env::var(TAG).unwrap();
    let number = NODES.iter().position(|name| *name == node).unwrap() as u64;
    let witness = attach(&attach_address(&witness_tag(&tag), "witness"));
    let region = witness.map("witness", Rights::ALL).unwrap();
    drop(wait("the node", || Tier::attach(&attach_address(&tag, &node)).ok()));
    let tier = attach(&attach_address(&tag, &node));
    loop {
        let deaths = word(&region, DEATHS);
        let Ok(guard) = tier.lock(NAME) else {
            // The owner has ended, or this node.
            if tier.status().is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let fence = guard.fence();
        let has_entered = enter(&region, fence);
        if guard.is_poisoned() {
            region.fetch_add(POISONED, 1).unwrap();
        }
        region.fetch_add(ROUNDS + 8 * number, 1).unwrap();
        let last = word(&region, FENCE);
        let is_back = guard.unlock().is_ok();
        if is_back && deaths.is_multiple_of(2) && word(&region, DEATHS) == deaths {
            assert!(has_entered && last == fence, "{last} has entered beside {fence}");
        }
    }
}

/// Three nodes with a directory, a process of each, and the witness.
struct Place {
    tag: String,
    // The processes end before the witness.
    takers: Vec<Child>,
    nodes: Vec<Child>,
    directory: Child,
    region: Lmr,
    _witness: Serving,
}

impl Place {
    fn new() -> Place {
        let tag = tag("lock-kills");
        let of_witness = witness_tag(&tag);
        let witness = serve(config(&of_witness, &["witness"], "witness"), &of_witness, |_| {});
        let spec = Spec::here().named("witness").grant_anyone(Rights::ALL);
        let region = attach(&witness.address).malloc(64, spec).unwrap();
        let directory = start_member("directory", &tag);
        let nodes = NODES.iter().map(|node| start_member(node, &tag)).collect();
        let takers = NODES.iter().map(|node| taker(&tag, node)).collect();
        let place = Place { tag, takers, nodes, directory, region, _witness: witness };
        for node in NODES {
            place.awaits(node);
        }
        place
    }

    /// Waits until a node serves processes and knows all nodes as alive.
    fn awaits(&self, node: &str) -> Tier {
        let address = attach_address(&self.tag, node);
        drop(wait("a node", || Tier::attach(&address).ok()));
        let tier = attach(&address);
        let alive = |tier: &Tier| {
            let members = tier.status().unwrap().members;
            members.iter().filter(|member| member.state == MemberState::Alive).count()
        };
        wait("all nodes", || (alive(&tier) == NODES.len()).then_some(()));
        tier
    }

    /// Waits until the processes of all nodes have had the lock again.
    fn goes_on(&self) {
        for number in 0..NODES.len() as u64 {
            let rounds = || word(&self.region, ROUNDS + 8 * number);
            let before = rounds();
            wait("the lock", || (rounds() > before + 1).then_some(()));
        }
    }

    fn kill_owner(&mut self) {
        let owner = {
            let tier = self.awaits(NODES[0]);
            tier.lock_home(NAME).unwrap()
        };
        let number = NODES.iter().position(|name| *name == owner).unwrap();
        self.region.fetch_add(DEATHS, 1).unwrap();
        self.nodes[number].kill();
        self.takers[number].kill();
        let others: Vec<Tier> = NODES
            .iter()
            .filter(|name| **name != owner)
            .map(|name| attach(&attach_address(&self.tag, name)))
            .collect();
        await_state(&others, &owner, MemberState::Dead);
        self.nodes[number] = start_member(&owner, &self.tag);
        await_state(&others, &owner, MemberState::Alive);
        drop(self.awaits(&owner));
        self.takers[number] = taker(&self.tag, &owner);
        self.region.fetch_add(DEATHS, 1).unwrap();
    }
}

fn taker(tag: &str, node: &str) -> Child {
    Child::start("lock_kills::child", &[(ROLE, node), (TAG, tag)])
}

#[test]
fn a_lock_survives_its_holders_its_owners_and_the_directory() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let mut place = Place::new();
    place.goes_on();
    let (mut holders, mut owners, mut directories) = (0, 0, 0);
    let kills = count("DUNLIN_TIER_LOCK_KILLS", 10);
    for round in 0..kills {
        let random = RealHost.random();
        std::thread::sleep(Duration::from_micros(random % 20_000));
        match round % 10 {
            3 | 8 => {
                place.kill_owner();
                owners += 1;
            }
            1 | 6 => {
                place.directory.kill();
                std::thread::sleep(Duration::from_micros(random >> 32 & 0xf_ffff));
                place.directory = start_member("directory", &place.tag);
                directories += 1;
            }
            _ => {
                let victim = (random >> 20) as usize % NODES.len();
                place.takers[victim].kill();
                place.takers[victim] = taker(&place.tag, NODES[victim]);
                holders += 1;
            }
        }
        place.goes_on();
    }
    let poisoned = word(&place.region, POISONED);
    println!(
        "{holders} processes with {poisoned} poisoned locks, {owners} owners, {directories} directories"
    );
    assert!(poisoned <= u64::from(kills), "one for each death");
    for taker in &mut place.takers {
        assert!(taker.0.try_wait().unwrap().is_none(), "a process has found a mistake");
    }
}
