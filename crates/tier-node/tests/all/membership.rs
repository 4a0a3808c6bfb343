//! Nodes that join, leave and die, and a directory that ends and comes back, in virtual time.

use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, RunReport, Settings, Sim};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::lock::message::{LOCK_CALL, LockMessage, LockRefusal, LockReply, LockRequest};
use dunlin_tier::membership::{Identity, MemberState, MembershipEvent};
use dunlin_tier::{Epoch, Name, NodeId, RecordError, message::Refusal};
use dunlin_tier_node::{
    DirectoryClient, DirectoryConfig, DirectoryServer, JoinError, LockError, Membership, MembershipError,
    OperationError, Own, Peer, RequestError, Rights, Spec, Tier, TierConfig, View,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];
/// No test takes so long, in virtual time.
const HANG: Nanos = 60_000_000_000;

pub(crate) fn directory_address() -> Address {
    Address::new(Scheme::Sim, "directory").unwrap()
}

pub(crate) fn config(name: &str) -> TierConfig {
    let peer = Peer::named(Scheme::Sim, name).unwrap();
    let mut config = TierConfig::new(vec![peer], name);
    config.directory = Some(directory_address());
    config.principal = "cluster".to_owned();
    config.memory = 1 << 18;
    config.max_nodes = 8;
    config
}

pub(crate) fn serve(sim: &Sim) -> DirectoryServer<Sim> {
    DirectoryServer::serve(sim, &directory_address(), DirectoryConfig::default()).unwrap()
}

/// Starts nodes at the same time, each in a process of its own.
pub(crate) fn start(processes: &[Sim], names: &[&str]) -> Vec<Tier<Sim>> {
    let made: Arc<Mutex<Vec<Option<Tier<Sim>>>>> = Arc::new(Mutex::new(vec![None; names.len()]));
    let tasks: Vec<Task> = (0..names.len())
        .map(|at| {
            let (process, name, made) = (processes[at].clone(), names[at].to_owned(), Arc::clone(&made));
            let body = move || {
                let tier = Tier::within(&process, config(&name)).unwrap();
                made.lock().unwrap()[at] = Some(tier);
            };
            processes[at].host().spawn("starter", Box::new(body)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(Task::join);
    let made: Vec<_> = std::mem::take(&mut *made.lock().unwrap());
    made.into_iter().flatten().collect()
}

/// Runs `body` with a directory, on the last machine, and nodes on machines of their own.
pub(crate) fn run(
    seed: u64,
    names: &'static [&'static str],
    body: impl FnOnce(&Sim, &[Sim], Vec<Tier<Sim>>, DirectoryServer<Sim>) + Send + 'static,
) -> RunReport {
    let machines = vec![MachineSettings::default(); names.len() + 1];
    Sim::run_with(Settings { machines, ..Settings::default() }, seed, move |sim| {
        let processes: Vec<Sim> = (0..=names.len()).map(|machine| sim.process_on(machine)).collect();
        let directory = serve(&processes[names.len()]);
        let tiers = start(&processes, names);
        body(&sim, &processes, tiers, directory);
    })
    .unwrap()
}

/// Repeats an attempt until it gives a value.
#[track_caller]
pub(crate) fn wait<T>(sim: &Sim, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = sim.time();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(sim.time() - begin < HANG, "no end of waiting: {what}");
        sim.host().sleep(sim.time() + 1_000_000);
    }
}

/// A value of a killed process: nothing of it runs any more.
pub(crate) fn leak<T>(value: T) {
    let _ = std::mem::ManuallyDrop::new(value);
}

pub(crate) fn alive(tier: &Tier<Sim>) -> Vec<String> {
    tier.nodes().collect()
}

/// A name whose home is that node.
pub(crate) fn name_at(tier: &Tier<Sim>, node: &str, tag: &str) -> String {
    (0..10_000).map(|number| format!("{tag}/{number}")).find(|name| tier.home(name).unwrap() == node).unwrap()
}

#[test]
fn names_of_a_killed_node_find_new_homes_and_its_next_life_joins() {
    for seed in 0..3 {
        run(seed, &NAMES[..3], |sim, processes, mut tiers, _directory| {
            let carol = tiers.pop().unwrap();
            let [alice, bob] = [&tiers[0], &tiers[1]];
            assert_eq!(alive(alice), NAMES[..3]);
            let (first, before) = (name_at(alice, "carol", "kept"), alice.view());
            let region = alice.malloc(1000, Spec::here().named(&first).grant_anyone(Rights::ALL)).unwrap();
            region.write(0, b"kept").unwrap();
            let lost = carol.malloc(1000, Spec::here().named("lost").grant_anyone(Rights::ALL)).unwrap();
            let view = bob.map("lost", Rights::WRITE).unwrap();
            view.write(0, b"x").unwrap();
            let lock = (0..).map(|number| format!("lock/{number}"));
            let lock = lock.into_iter().find(|name| alice.lock_home(name).unwrap() == "carol").unwrap();
            let guard = bob.lock(&lock).unwrap();
            let fence = guard.fence();

            processes[2].kill();
            leak((carol, lost));
            let killed = sim.time();
            for tier in [alice, bob] {
                wait(sim, "the next view", || (alive(tier) == NAMES[..2]).then_some(()));
            }
            assert!(alice.view().epoch > before.epoch);
            assert!(sim.time() - killed < 1_000_000_000, "{} ns", sim.time() - killed);

            // Its name has another home, which knows the region.
            let again = bob.map(&first, Rights::READ).unwrap();
            let mut found = [0; 4];
            again.read(0, &mut found).unwrap();
            assert_eq!(&found, b"kept");
            // Its regions are gone, and errors name it and the view.
            let epoch = bob.view().epoch.number;
            match view.write(0, b"y") {
                Err(OperationError::Dead { node, epoch: at, may_have_executed: false }) => {
                    assert_eq!((node.as_str(), at), ("carol", epoch));
                }
                other => panic!("{other:?}"),
            }
            match bob.malloc(100, Spec::on("carol")) {
                Err(RequestError::Dead { node, may_have_executed: false, .. }) => assert_eq!(node, "carol"),
                other => panic!("{other:?}"),
            }
            let absent = bob.map("lost", Rights::READ);
            assert!(
                matches!(
                    absent,
                    Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
                ),
                "{absent:?}"
            );
            // So are its locks, and others own them.
            let error = guard.unlock().unwrap_err();
            assert!(matches!(error, LockError::Request(RequestError::Dead { .. })), "{error:?}");
            assert_ne!(alice.lock_home(&lock).unwrap(), "carol");
            let next = alice.lock(&lock).unwrap();
            assert!(next.fence() > fence, "the next owner's fence numbers are greater");
            next.unlock().unwrap();

            // The next life has the same number, and another incarnation.
            let next = sim.process_on(2);
            let carol = Tier::within(&next, config("carol")).unwrap();
            wait(sim, "the view with it", || (alive(bob) == NAMES[..3]).then_some(()));
            let of = |view: &View| view.named("carol").map(|one| (one.node, one.incarnation)).unwrap();
            let (then, now) = (of(&before), of(&bob.view()));
            assert!(then.0 == now.0 && then.1 < now.1, "{then:?} {now:?}");
            let own = carol.map(&first, Rights::READ).unwrap();
            own.read(0, &mut found).unwrap();
            bob.malloc(100, Spec::on("carol").named("lost")).unwrap().write(0, b"z").unwrap();
        });
    }
}

#[test]
fn calls_memory_and_names_go_on_without_a_directory() {
    run(7, &NAMES[..3], |sim, processes, mut tiers, directory| {
        let before = tiers[0].view();
        processes[3].kill();
        leak(directory);
        wait(sim, "the loss of the directory", || tiers[0].trouble());
        // A minute, in which no view changes.
        let region = tiers[0].malloc(100, Spec::on("bob").named("meanwhile")).unwrap();
        for _ in 0..60 {
            region.write(0, b"goes on").unwrap();
            drop(tiers[1].map("meanwhile", Rights::READ).unwrap());
            tiers[2].lock("lock").unwrap().unlock().unwrap();
            sim.host().sleep(sim.time() + 1_000_000_000);
        }
        assert_eq!(tiers[0].view(), before);
        let trouble = tiers[0].trouble().unwrap();
        assert!(trouble.contains("directory") && trouble.contains("dunlin node directory"), "{trouble}");
        let late = TierConfig { timeout: Duration::from_millis(300), ..config("dave") };
        let late = Tier::within(&sim.process_on(0), late);
        assert!(matches!(late, Err(JoinError::Membership(MembershipError::Connect { .. }))), "{late:?}");

        // Its next life knows what the nodes know, and a node that ended meanwhile is dead.
        processes[2].kill();
        leak(tiers.pop());
        let _directory = serve(&sim.process_on(3));
        for tier in &tiers {
            wait(sim, "the next view", || (alive(tier) == NAMES[..2]).then_some(()));
            assert!(tier.view().epoch.number > before.epoch.number);
            assert_eq!(tier.view().members[0].incarnation, before.members[0].incarnation);
            wait(sim, "the directory", || tier.trouble().is_none().then_some(()));
        }
        let again = tiers[1].map("meanwhile", Rights::READ).unwrap();
        again.read(0, &mut [0; 7]).unwrap();
        let _dave = Tier::within(&sim.process_on(0), config("dave")).unwrap();
        wait(sim, "one more node", || (tiers[1].nodes().count() == 3).then_some(()));
    });
}

#[test]
fn a_second_node_of_one_name_is_refused_and_a_node_that_leaves_is_not_waited_for() {
    run(3, &NAMES[..2], |sim, _, mut tiers, _directory| {
        let mut thief = config("bob");
        thief.nodes = vec![Peer { name: "bob".to_owned(), ..Peer::named(Scheme::Sim, "other").unwrap() }];
        thief.timeout = Duration::from_secs(2);
        match Tier::within(&sim.process_on(2), thief).map(drop) {
            Err(JoinError::Membership(error @ MembershipError::Refused(_))) => {
                let text = dunlin_fabric::WithSources(&error).to_string();
                assert!(text.contains("a node bob already, at sim:tier-bob"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        let first = tiers[0].view().epoch;
        drop(tiers.pop());
        wait(sim, "the view without it", || (alive(&tiers[0]) == NAMES[..1]).then_some(()));
        let view = tiers[0].view();
        assert_eq!((view.epoch.number, view.members[1].state), (first.number + 1, MemberState::Left));
    });
}

/// The thread of a killed node drops its guard as it ends. It does not wait for an answer that nobody brings.
#[test]
fn a_killed_holder_of_a_lock_ends_and_the_next_one_hears_of_its_death() {
    run(9, &NAMES[..3], |sim, processes, mut tiers, _directory| {
        let carol = tiers.pop().unwrap();
        let lock = (0..).map(|number| format!("lock/{number}"));
        let lock = lock.into_iter().find(|name| tiers[0].lock_home(name).unwrap() == "alice").unwrap();
        let (own, name, host) = (carol.clone(), lock.clone(), processes[2].host().clone());
        let holder = move || {
            let _guard = own.lock(name).unwrap();
            host.sleep(host.now() + HANG);
        };
        let holder = processes[2].host().spawn("holder", Box::new(holder)).unwrap();
        wait(sim, "the holder", || tiers[1].try_lock(&lock).unwrap().is_none().then_some(()));
        let (own, name) = (tiers[1].clone(), lock.clone());
        let next = move || {
            let guard = own.lock(name).unwrap();
            assert!(guard.is_poisoned());
            guard.unlock().unwrap();
        };
        let next = processes[1].host().spawn("next", Box::new(next)).unwrap();
        sim.host().sleep(sim.time() + 10_000_000);
        processes[2].kill();
        leak(carol);
        holder.join();
        next.join();
    });
}

/// The owner of a lock that is asked by a node with a later view, or for the lock of another owner, refuses.
#[test]
fn an_owner_finds_locks_for_those_only_whose_view_it_shares() {
    run(11, &NAMES[..2], |_, processes, tiers, _directory| {
        let lock = (0..).map(|number| Name::new(format!("lock/{number}")).unwrap());
        let [own, other] = NAMES[..2]
            .iter()
            .map(|owner| {
                lock.clone().find(|name| tiers[0].lock_home(name.as_bytes()).unwrap() == *owner).unwrap()
            })
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let address = config("alice").nodes[0].calls.clone();
        let client =
            ClientConfig { service: "dunlin.tier".to_owned(), identity: Some(5), ..ClientConfig::default() };
        let mut client = Client::connect(&processes[1], &address, client).unwrap();
        let mut ask = |owner, request| {
            let reply = client.call(LOCK_CALL, &LockMessage { owner, request }.encode()).unwrap();
            LockReply::parse(&reply).unwrap()
        };
        let LockReply::Joined { owner, member, .. } =
            ask(0, LockRequest::Join { node: NodeId(1), incarnation: 5 })
        else {
            panic!("it has not joined");
        };
        let epoch = tiers[0].view().epoch;
        let later = Epoch { number: epoch.number + 1, ..epoch };
        let refused = LockReply::Refused(LockRefusal::NotOwner);
        for (name, epoch, is_right) in [
            (&own, epoch, true),
            (&other, epoch, false),
            (&own, later, false),
            (&own, Epoch::default(), true),
        ] {
            let opened = ask(owner, LockRequest::Open { name: name.clone(), epoch });
            assert_eq!(matches!(opened, LockReply::Opened(_)), is_right, "{opened:?}");
            assert_eq!(opened == refused, !is_right);
            let met =
                ask(owner, LockRequest::Meet { name: name.clone(), members: 1, member, call: 1, epoch });
            assert_eq!(met, if is_right { LockReply::Done } else { refused });
        }
    });
}

/// A directory's client that is cut off as long as the flag is set.
struct CutOff(DirectoryClient<Sim>, Arc<AtomicBool>);

impl Membership for CutOff {
    fn period(&self) -> Option<Duration> {
        self.0.period()
    }
    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError> {
        if self.1.load(Ordering::Relaxed) { Ok(MembershipEvent::Wait) } else { self.0.renew(until) }
    }
    fn view(&self) -> Arc<View> {
        self.0.view()
    }
    fn own(&self) -> Option<Own> {
        self.0.own()
    }
    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError> {
        self.0.leave(until)
    }
}

/// Starts a node that the directory does not hear of while the flag is set.
fn start_cut_off(process: &Sim, name: &str, life: u64, is_cut_off: &Arc<AtomicBool>) -> Tier<Sim> {
    let settings = config(name);
    let peer = &settings.nodes[0];
    let (calls, memory) = (peer.calls.to_string(), peer.memory.to_string());
    let identity = Identity { name: name.to_owned(), calls, memory, life };
    let client = DirectoryClient::new(process, directory_address(), identity, settings.beat, Vec::new());
    let client = Box::new(CutOff(client, Arc::clone(is_cut_off)));
    let settings = TierConfig { timeout: Duration::from_secs(20), ..settings };
    Tier::within_membership(process, settings, life, client).unwrap()
}

/// A node owns a lock, is declared dead and lives, and owns the lock again after another one. Its fence numbers are above
/// the other's, also for itself.
#[test]
fn an_owner_that_comes_back_grants_its_locks_above_the_owner_between() {
    run(13, &NAMES[..1], |sim, processes, mut tiers, _directory| {
        let is_cut_off = Arc::new(AtomicBool::new(false));
        let bob = start_cut_off(&sim.process_on(0), "bob", 78, &is_cut_off);
        processes[0].kill();
        leak(tiers.pop());
        let owned_by = |tier: &Tier<Sim>, owner: &str| {
            wait(sim, "the next owner", || (tier.lock_home("lock").unwrap() == owner).then_some(()));
        };
        owned_by(&bob, "bob");
        let first = bob.lock("lock").unwrap().fence();
        is_cut_off.store(true, Ordering::Relaxed);
        let process = sim.process_on(0);
        let carol = Tier::within(&process, config("carol")).unwrap();
        owned_by(&carol, "carol");
        let between = carol.lock("lock").unwrap().fence();
        is_cut_off.store(false, Ordering::Relaxed);
        wait(sim, "the node that lives", || (carol.nodes().count() == 2).then_some(()));
        owned_by(&bob, "carol");
        process.kill();
        leak(carol);
        owned_by(&bob, "bob");
        let last = bob.lock("lock").unwrap().fence();
        assert!(first < between && between < last, "{first} {between} {last}");
    });
}

/// A node that the directory does not hear of is declared dead although it lives. It finds that others accept nothing from
/// it, keeps its memory and its records, and is a member again as soon as the directory hears of it.
#[test]
fn a_node_that_was_declared_dead_and_lives_loses_its_paths_and_joins_again() {
    run(5, &NAMES[..2], |sim, _, tiers, _directory| {
        let is_cut_off = Arc::new(AtomicBool::new(false));
        let carol = start_cut_off(&sim.process_on(2), "carol", 77, &is_cut_off);
        let waits = tiers[0].lock("early").unwrap();
        wait(sim, "the third node", || (tiers[0].nodes().count() == 3).then_some(()));
        let own = carol.malloc(100, Spec::here().named("own").grant_anyone(Rights::ALL)).unwrap();
        own.write(0, b"stays").unwrap();
        own.fetch_add(8, 1).unwrap();
        let spec = Spec::here().named("theirs").grant_anyone(Rights::ALL);
        let theirs = tiers[0].malloc(100, spec).unwrap();
        let mapped = carol.map("theirs", Rights::WRITE).unwrap();
        mapped.write(0, b"1").unwrap();
        let first = carol.view().named("carol").map(|one| one.incarnation).unwrap();

        is_cut_off.store(true, Ordering::Relaxed);
        for tier in &tiers {
            wait(sim, "its death", || (tier.nodes().count() == 2).then_some(()));
        }
        // Its writes do not arrive any more.
        wait(sim, "the end of its paths", || mapped.write(0, b"2").err());
        theirs.write(0, b"3").unwrap();
        for _ in 0..20 {
            assert!(mapped.write(0, b"4").is_err());
            sim.host().sleep(sim.time() + 1_000_000);
        }
        let mut found = [0];
        theirs.read(0, &mut found).unwrap();
        assert_eq!(&found, b"3");
        own.fetch_add(8, 1).unwrap();
        // A region that it has mapped can be freed: it is fenced.
        theirs.free().unwrap();

        is_cut_off.store(false, Ordering::Relaxed);
        for tier in &tiers {
            wait(sim, "its next incarnation", || (tier.nodes().count() == 3).then_some(()));
            let member = tier.view().named("carol").cloned().unwrap();
            assert!(member.incarnation > first && member.identity.life == 77 && member.node == NodeId(2));
        }
        let again = wait(sim, "its own names", || tiers[1].map("own", Rights::READ).ok());
        let mut found = [0; 5];
        again.read(0, &mut found).unwrap();
        assert_eq!(&found, b"stays");
        assert_eq!(own.fetch_add(8, 1).unwrap(), 2, "its own memory was never away for it");
        own.write(0, b"still").unwrap();
        assert!(mapped.write(0, b"5").is_err(), "the region was freed");
        let spec = Spec::on("alice").named("anew");
        carol.malloc(100, spec).unwrap().write(0, b"6").unwrap();
        // A lock of an owner that lives stays with it, whoever joins.
        assert!(carol.try_lock("early").unwrap().is_none());
        waits.unlock().unwrap();
        carol.lock("early").unwrap().unlock().unwrap();
    });
}

#[test]
fn runs_replay_from_their_seed() {
    let once = |seed| {
        run(seed, &NAMES[..2], |sim, processes, mut tiers, _directory| {
            processes[1].kill();
            leak(tiers.pop());
            wait(sim, "the next view", || (tiers[0].nodes().count() == 1).then_some(()));
        })
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1).trace_hash, once(2).trace_hash);
}

/// The state of a node in a run of random acts.
struct Drawn {
    tier: Option<Tier<Sim>>,
    process: Sim,
    is_cut_off: Arc<AtomicBool>,
    /// The names that this life of the node has made, while the directory has always heard of it.
    names: Vec<String>,
}

impl Drawn {
    fn start(sim: &Sim, machine: usize) -> Drawn {
        let (process, is_cut_off) = (sim.process_on(machine), Arc::new(AtomicBool::new(false)));
        let tier = start_cut_off(&process, NAMES[machine], sim.host().random(), &is_cut_off);
        Drawn { tier: Some(tier), process, is_cut_off, names: Vec::new() }
    }

    fn kill(&mut self) {
        self.process.kill();
        leak(self.tier.take());
        self.names.clear();
    }

    fn is_well(&self) -> bool {
        self.tier.is_some() && !self.is_cut_off.load(Ordering::Relaxed)
    }
}

type RunningDirectory = (Sim, DirectoryServer<Sim>);

/// A directory that is started again some time after each of its deaths.
#[derive(Clone)]
struct Revived {
    sim: Sim,
    running: Arc<Mutex<Option<RunningDirectory>>>,
    /// The time of its next life; 0 while it runs.
    back: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Revived {
    fn start(sim: &Sim) -> Revived {
        let revived = Revived {
            sim: sim.clone(),
            running: Arc::default(),
            back: Arc::new(AtomicU64::new(1)),
            is_over: Arc::default(),
        };
        let own = revived.clone();
        let body = move || {
            while !own.is_over.load(Ordering::Relaxed) {
                let back = own.back.load(Ordering::Relaxed);
                if back != 0 && own.sim.time() >= back {
                    let process = own.sim.process_on(NAMES.len());
                    let server = serve(&process);
                    *own.running.lock().unwrap() = Some((process, server));
                    own.back.store(0, Ordering::Relaxed);
                }
                own.sim.host().sleep(own.sim.time() + 5_000_000);
            }
            drop(own.running.lock().unwrap().take());
        };
        let _detached = sim.host().spawn("reviver", Box::new(body)).unwrap();
        revived
    }

    /// Kills it, if it runs, for a time in nanoseconds.
    fn kill(&self, time: Nanos) {
        let running = self.running.lock().unwrap().take();
        if let Some((process, server)) = running {
            process.kill();
            leak(server);
            self.back.store(self.sim.time() + time, Ordering::Relaxed);
        }
    }
}

/// Nodes are killed, started and cut off, and so is the directory, at random. A name of a node that has always been alive
/// is found from all other such nodes at any time, never "no such region"; names that nobody made are never found.
#[test]
fn names_of_nodes_that_live_are_found_whatever_else_dies() {
    for seed in 0..12 {
        let machines = vec![MachineSettings::default(); NAMES.len() + 1];
        Sim::run_with(Settings { machines, ..Settings::default() }, seed, move |sim| {
            let host = sim.host();
            let below = |limit: usize| (host.random() % limit as u64) as usize;
            let directory = Revived::start(&sim);
            let mut nodes: Vec<Drawn> = (0..NAMES.len()).map(|machine| Drawn::start(&sim, machine)).collect();
            let (mut made, mut found) = (0, 0);
            for _ in 0..60 {
                host.sleep(sim.time() + below(400) as u64 * 1_000_000);
                let place = below(NAMES.len());
                let well = nodes.iter().filter(|node| node.is_well()).count();
                match below(10) {
                    0 if well > 2 && nodes[place].tier.is_some() => nodes[place].kill(),
                    1 => directory.kill(below(900) as u64 * 1_000_000),
                    2 if well > 2 && nodes[place].is_well() => {
                        nodes[place].is_cut_off.store(true, Ordering::Relaxed);
                        nodes[place].names.clear();
                    }
                    3 | 4 if nodes[place].tier.is_none() => {
                        nodes[place] = Drawn::start(&sim, place);
                    }
                    3 | 4 if !nodes[place].is_well() && nodes[place].tier.is_some() => {
                        let before = nodes[place].tier.as_ref().unwrap().view().epoch;
                        nodes[place].is_cut_off.store(false, Ordering::Relaxed);
                        // A node that was declared dead is one again that the others know.
                        host.sleep(sim.time() + 3_000_000_000);
                        assert!(nodes[place].tier.as_ref().unwrap().view().epoch >= before);
                    }
                    _ if nodes[place].is_well() => {
                        let name = format!("{seed}/{made}");
                        made += 1;
                        let spec = Spec::here().named(&name).grant_anyone(Rights::ALL);
                        let region = nodes[place].tier.as_ref().unwrap().malloc(64, spec);
                        let region = region.unwrap_or_else(|error| panic!("{seed}: {name}: {error:?}"));
                        region.write(0, name.as_bytes()).unwrap();
                        nodes[place].names.push(name);
                    }
                    _ => {}
                }
                for node in nodes.iter().filter(|node| node.is_well()) {
                    let tier = node.tier.as_ref().unwrap();
                    let all: Vec<&String> = nodes.iter().flat_map(|node| &node.names).collect();
                    if all.is_empty() {
                        continue;
                    }
                    let name = all[below(all.len())];
                    let region = tier.map(name, Rights::READ);
                    let region = region
                        .unwrap_or_else(|error| panic!("{seed}: {name} from {}: {error:?}", tier.name()));
                    let mut bytes = vec![0; name.len()];
                    region.read(0, &mut bytes).unwrap_or_else(|error| panic!("{seed}: {name}: {error:?}"));
                    assert_eq!(bytes, name.as_bytes());
                    found += 1;
                }
            }
            assert!(found > 20, "{seed}: {found} of {made}");
            let alive: Vec<String> = nodes
                .iter()
                .zip(NAMES)
                .filter(|(node, _)| node.tier.is_some())
                .map(|(_, name)| name.to_owned())
                .collect();
            for node in &nodes {
                node.is_cut_off.store(false, Ordering::Relaxed);
            }
            for node in nodes.iter().filter_map(|node| node.tier.as_ref()) {
                wait(&sim, "one view", || {
                    let mut names: Vec<String> = node.nodes().collect();
                    names.sort();
                    (names == alive && node.trouble().is_none()).then_some(())
                });
                let absent = node.map("nobody made it", Rights::READ);
                assert!(
                    matches!(
                        absent,
                        Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
                    ),
                    "{seed}: {absent:?}"
                );
            }
            drop(nodes);
            directory.is_over.store(true, Ordering::Relaxed);
        })
        .unwrap();
    }
}
