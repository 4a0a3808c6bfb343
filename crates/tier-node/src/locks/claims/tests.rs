//! Claims and threads of three nodes take one lock, in virtual time with pre-emption.

use super::*;
use crate::config::{Peer, TierConfig};
use crate::membership::{
    DirectoryClient, DirectoryConfig, DirectoryServer, Membership, MembershipError, Own,
};
use crate::tier::Tier;
use dunlin_fabric::{Address, Atomics, Scheme, Signal, Task};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim, SimHost};
use dunlin_tier::membership::{Identity, MembershipEvent, View};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

/// The outcome of a wait.
#[derive(Debug)]
enum Ended {
    Has(Hold<Sim>),
    Outcome(Result<(), LockError>),
}

/// A claim for which a thread of the test waits.
#[derive(Debug)]
struct Waits {
    number: u64,
    until: Nanos,
    host: SimHost,
    /// Nobody waits any more.
    has_left: Mutex<bool>,
    ended: Mutex<Option<Ended>>,
    changed: <SimHost as Host>::Signal,
}

impl Claim<Sim> for Waits {
    fn number(&self) -> u64 {
        self.number
    }

    fn until(&self) -> Nanos {
        self.until
    }

    fn is_over(&self) -> bool {
        *self.has_left.lock().unwrap() || self.host.now() >= self.until
    }

    fn grant(&self, hold: Hold<Sim>) -> Result<(), Hold<Sim>> {
        let has_left = self.has_left.lock().unwrap();
        if *has_left {
            return Err(hold);
        }
        let before = self.ended.lock().unwrap().replace(Ended::Has(hold));
        assert!(before.is_none(), "a claim ends once");
        drop(has_left);
        self.changed.raise();
        Ok(())
    }

    fn end(&self, outcome: Result<(), LockError>) {
        let has_left = *self.has_left.lock().unwrap();
        let before = self.ended.lock().unwrap().replace(Ended::Outcome(outcome));
        assert!(before.is_none() || has_left, "a claim ends once");
        self.changed.raise();
    }
}

/// Takes a lock by a claim, as a process does, and gives the claim up at the end of its time.
fn claim(tier: &Tier<Sim>, name: &Name, time: Nanos, waits: bool) -> Option<Hold<Sim>> {
    let (node, host) = (tier.node(), tier.fabric().host().clone());
    let (number, until, changed) = (node.locks.number(), host.now() + time, host.signal());
    let (has_left, ended) = (Mutex::new(false), Mutex::new(None));
    let own = Arc::new(Waits { number, until, host: host.clone(), has_left, ended, changed });
    match waits {
        true => node.claim(name, Arc::clone(&own) as _),
        false => node.try_claim(name, Arc::clone(&own) as _),
    }
    loop {
        let seen = own.changed.seen();
        let is_late = host.now() >= until;
        if is_late {
            *own.has_left.lock().unwrap() = true;
        }
        match own.ended.lock().unwrap().take() {
            Some(Ended::Has(hold)) => return Some(hold),
            Some(Ended::Outcome(Ok(()))) => {
                assert!(!waits);
                return None;
            }
            Some(Ended::Outcome(Err(LockError::Deadline { .. } | LockError::Request(_)))) => return None,
            Some(other) => panic!("{other:?}"),
            None if is_late => break,
            None => {}
        }
        own.changed.wait(seen, until);
    }
    node.unclaim(name, number);
    None
}

fn start(sim: &Sim, name: &str) -> Tier<Sim> {
    let peer = |name: &&str| {
        let mut peer = Peer::named(Scheme::Sim, &format!("c-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NAMES.iter().map(peer).collect(), name);
    (config.memory, config.paths, config.timeout) = (1 << 20, 4, Duration::from_secs(10));
    Tier::within(sim, config).unwrap()
}

/// Checks that one has the lock at a time, and stays inside for some time.
fn stay(host: &SimHost, inside: &AtomicU64, last: &AtomicU64, fence: u64) {
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have the lock");
    assert!(last.swap(fence, Ordering::SeqCst) < fence, "the fence number grows");
    host.sleep(host.now() + 4_000);
    inside.fetch_sub(1, Ordering::SeqCst);
}

fn run(seed: u64, atomics: bool) {
    let mut settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    settings.capabilities.atomics = Atomics::of_device(atomics);
    Sim::run_with(settings, seed, move |sim| {
        let tiers = [0, 1, 2].map(|at| start(&sim.process_on(at), NAMES[at]));
        let name = Name::new("the lock").unwrap();
        let (inside, last, got) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut tasks = Vec::new();
        for number in 0..9u64 {
            let tier = tiers[number as usize % 3].clone();
            let (name, inside, last, got) =
                (name.clone(), Arc::clone(&inside), Arc::clone(&last), Arc::clone(&got));
            let host = tier.fabric().host().clone();
            let body = move || {
                let host = tier.fabric().host();
                for round in 0..12u64 {
                    // Some have time enough, some have not.
                    let time = [40_000, 90_000, 5_000_000_000][(number + round + seed) as usize % 3];
                    if number >= 6 {
                        let guard = tier.lock(name.as_bytes()).unwrap();
                        stay(host, &inside, &last, guard.fence());
                        guard.unlock().unwrap();
                    } else if let Some(hold) = claim(&tier, &name, time, (number + round) % 4 != 0) {
                        assert!(!hold.is_poisoned());
                        stay(host, &inside, &last, hold.fence());
                        got.fetch_add(1, Ordering::Relaxed);
                        hold.give_back(Box::new(|result| result.unwrap()));
                    }
                }
            };
            tasks.push(host.spawn("claims", Box::new(body)).unwrap());
        }
        tasks.into_iter().for_each(Task::join);
        assert!(got.load(Ordering::Relaxed) > 0);
        let host = sim.host();
        host.sleep(host.now() + 1_000_000_000);
        for tier in &tiers {
            let guard = tier.try_lock(name.as_bytes()).unwrap().expect("the lock is lost");
            guard.unlock().unwrap();
            let hold = claim(tier, &name, 1_000_000_000, false).expect("the lock is lost");
            // A holder that dies: the next one hears of it, by whichever way it takes the lock.
            drop(hold);
            host.sleep(host.now() + 10_000_000);
            let hold = claim(tier, &name, 1_000_000_000, true).expect("the lock is lost");
            assert!(hold.is_poisoned());
            drop(hold);
            assert!(tier.lock(name.as_bytes()).unwrap().is_poisoned());
        }
    })
    .unwrap();
}

#[test]
fn claims_and_threads_exclude_each_other_and_lose_no_lock() {
    for seed in 0..16 {
        run(seed, seed % 2 == 0);
    }
}

fn directory() -> Address {
    Address::new(Scheme::Sim, "c-directory").unwrap()
}

/// A node that stays a member, and hears of no other view while the flag is set.
struct Deaf {
    inner: DirectoryClient<Sim>,
    is_deaf: Arc<AtomicBool>,
    unheard: Option<MembershipEvent>,
}

impl Membership for Deaf {
    fn period(&self) -> Option<Duration> {
        self.inner.period()
    }
    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError> {
        let is_deaf = self.is_deaf.load(Ordering::Relaxed);
        if let Some(event) = self.unheard.take_if(|_| !is_deaf) {
            return Ok(event);
        }
        match self.inner.renew(until)? {
            event @ MembershipEvent::View(_) if is_deaf => {
                self.unheard = Some(event);
                Ok(MembershipEvent::Wait)
            }
            event => Ok(event),
        }
    }
    fn view(&self) -> Arc<View> {
        self.inner.view()
    }
    fn own(&self) -> Option<Own> {
        self.inner.own()
    }
    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError> {
        self.inner.leave(until)
    }
}

/// Starts a node. All of a directory begin at the same time.
fn start_deaf(process: &Sim, name: &str, is_deaf: &Arc<AtomicBool>) -> Tier<Sim> {
    let peer = Peer::named(Scheme::Sim, name).unwrap();
    let (calls, memory) = (peer.calls.to_string(), peer.memory.to_string());
    let mut config = TierConfig::new(vec![peer], name);
    (config.memory, config.directory, config.max_nodes) = (1 << 20, Some(directory()), 8);
    let life = name.len() as u64;
    let identity = Identity { name: name.to_owned(), calls, memory, life };
    let client = DirectoryClient::new(process, directory(), identity, config.beat, Vec::new());
    let deaf = Deaf { inner: client, is_deaf: Arc::clone(is_deaf), unheard: None };
    Tier::within_membership(process, config, life, Box::new(deaf)).unwrap()
}

/// The owner of a lock dies, and one node hears of that before the next owner does.
#[test]
fn claims_wait_for_the_view_that_names_the_owner() {
    let settings = Settings { machines: vec![MachineSettings::default(); 4], ..Settings::default() };
    Sim::run_with(settings, 1, move |sim| {
        let _directory =
            DirectoryServer::serve(&sim.process_on(3), &directory(), DirectoryConfig::default()).unwrap();
        let processes = [0, 1, 2].map(|at| sim.process_on(at));
        let (is_deaf, tiers) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
        let starts: Vec<Task> = (0..3)
            .map(|at| {
                let (process, tiers) = (processes[at].clone(), Arc::clone(&tiers));
                let is_deaf = if at == 2 { Arc::clone(&is_deaf) } else { Arc::default() };
                let body = move || {
                    let tier = start_deaf(&process, NAMES[at], &is_deaf);
                    tiers.lock().unwrap().insert(at, tier);
                };
                processes[at].host().spawn("starter", Box::new(body)).unwrap()
            })
            .collect();
        starts.into_iter().for_each(Task::join);
        let [alice, bob, carol] = [0, 1, 2].map(|at| tiers.lock().unwrap().remove(&at).unwrap());
        let names: Vec<String> = (0..64).map(|number| format!("lock/{number}")).collect();
        let is_of = |tier: &Tier<Sim>, name: &str, owner: &str| tier.lock_home(name).unwrap() == owner;
        let names: Vec<String> = names.into_iter().filter(|name| is_of(&alice, name, "alice")).collect();
        is_deaf.store(true, Ordering::Relaxed);
        processes[0].kill();
        // Nothing of a killed process runs any more.
        let _alice = std::mem::ManuallyDrop::new(alice);
        let host = sim.host().clone();
        let epoch = bob.view().epoch;
        while bob.view().epoch == epoch {
            host.sleep(host.now() + 100_000);
        }
        assert_eq!(carol.view().epoch, epoch, "carol has not heard yet");
        let name = names.iter().find(|name| is_of(&bob, name, "carol")).unwrap();
        let (hears, at) = (Arc::clone(&is_deaf), host.now() + 50_000_000);
        let own = host.clone();
        let hears = move || {
            own.sleep(at);
            hears.store(false, Ordering::Relaxed);
        };
        let hears = host.spawn("hears", Box::new(hears)).unwrap();
        for waits in [true, false] {
            let hold = claim(&bob, &Name::new(name).unwrap(), 1_000_000_000, waits).unwrap();
            assert!(host.now() >= at, "the owner did not know before");
            hold.give_back(Box::new(|result| result.unwrap()));
            host.sleep(host.now() + 1_000_000);
        }
        hears.join();
    })
    .unwrap();
}
