//! Membership by a store that stands in for etcd: slow, partitioned, compacted, without memory of leases, or set back to
//! an earlier state. In virtual time.

use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim, SimHost};
use dunlin_tier::membership::Identity;
use dunlin_tier_node::{
    Entry, JoinError, Membership, MembershipError, Own, Peer, Put, RequestError, Rights, Spec, Store,
    StoreConfig, StoreError, StoreMembership, Tier, TierConfig,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];
const MILLISECOND: Nanos = 1_000_000;
/// No test takes so long, in virtual time.
const HANG: Nanos = 60_000 * MILLISECOND;
const LEASE: Duration = Duration::from_secs(1);

/// The keys and leases of the stand-in.
#[derive(Clone, Debug, Default)]
struct Content {
    revision: u64,
    /// Value, revision of the last change, lease.
    keys: BTreeMap<String, (Vec<u8>, u64, Option<u64>)>,
    /// The time at which each lease ends, and its length.
    leases: BTreeMap<u64, (Nanos, Nanos)>,
    last_lease: u64,
}

/// The misbehaviour of the stand-in.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// No client reaches it.
    is_away: bool,
    /// This one does not reach it.
    cut_off: Option<&'static str>,
    /// The time of each answer.
    delay: Nanos,
    /// The number of transactions whose answers will be lost.
    lost_answers: u32,
    /// The number of looks at the watch that will fail, because the watch's first revision was compacted.
    compacted: u32,
}

#[derive(Debug, Default)]
struct StandIn {
    content: Content,
    faults: Faults,
    /// Every view that was ever written, by its epoch.
    views: Vec<Vec<u8>>,
}

impl StandIn {
    fn expire(&mut self, now: Nanos) {
        let content = &mut self.content;
        let ended: Vec<u64> =
            content.leases.extract_if(.., |_, (until, _)| *until <= now).map(|(lease, _)| lease).collect();
        content.drop_keys_of(&ended);
    }
}

impl Content {
    fn drop_keys_of(&mut self, leases: &[u64]) {
        let before = self.keys.len();
        self.keys.retain(|_, (_, _, lease)| lease.is_none_or(|lease| !leases.contains(&lease)));
        self.revision += u64::from(self.keys.len() != before);
    }
}

/// The connection of a node to the stand-in.
#[derive(Debug)]
struct Client {
    name: &'static str,
    host: SimHost,
    store: Arc<Mutex<StandIn>>,
    /// The revision of the last reading.
    read_at: u64,
}

impl Client {
    fn reach<T>(&self, until: Nanos, act: impl FnOnce(&mut StandIn, Nanos) -> T) -> Result<T, StoreError> {
        let delay = self.store.lock().unwrap().faults.delay;
        if delay > 0 {
            self.host.sleep(self.host.now() + delay);
        }
        let now = self.host.now();
        let mut store = self.store.lock().unwrap();
        if store.faults.is_away || store.faults.cut_off == Some(self.name) || now > until {
            return Err(StoreError::Unavailable("cut off".into()));
        }
        store.expire(now);
        Ok(act(&mut store, now))
    }
}

impl Store for Client {
    fn grant(&mut self, time: Duration, until: Nanos) -> Result<u64, StoreError> {
        self.reach(until, |store, now| {
            let content = &mut store.content;
            content.last_lease += 1;
            let nanos = time.as_nanos() as u64;
            content.leases.insert(content.last_lease, (now + nanos, nanos));
            content.last_lease
        })
    }

    fn keep_alive(&mut self, lease: u64, until: Nanos) -> Result<bool, StoreError> {
        self.reach(until, |store, now| match store.content.leases.get_mut(&lease) {
            Some((until, nanos)) => {
                *until = now + *nanos;
                true
            }
            None => false,
        })
    }

    fn revoke(&mut self, lease: u64, until: Nanos) -> Result<(), StoreError> {
        self.reach(until, |store, _| {
            store.content.leases.remove(&lease);
            store.content.drop_keys_of(&[lease]);
        })
    }

    fn read(&mut self, prefix: &str, until: Nanos) -> Result<Vec<Entry>, StoreError> {
        let (entries, revision) = self.reach(until, |store, _| {
            let keys = store.content.keys.range(prefix.to_owned()..);
            let keys = keys.take_while(|(key, _)| key.starts_with(prefix));
            let entry = |(key, (value, changed, _)): (&String, &(Vec<u8>, u64, _))| Entry {
                key: key.clone(),
                value: value.clone(),
                changed: *changed,
            };
            (keys.map(entry).collect(), store.content.revision)
        })?;
        self.read_at = revision;
        Ok(entries)
    }

    fn swap(
        &mut self,
        unchanged: &[(String, u64)],
        puts: Vec<Put>,
        until: Nanos,
    ) -> Result<bool, StoreError> {
        let done = self.reach(until, |store, _| {
            let StandIn { content, views, .. } = store;
            let changed = |key| content.keys.get(key).map_or(0, |(_, changed, _)| *changed);
            if unchanged.iter().any(|(key, revision)| changed(key) != *revision) {
                return Ok(false);
            }
            if puts.iter().filter_map(|put| put.lease).any(|lease| !content.leases.contains_key(&lease)) {
                return Err(StoreError::Refused("requested lease not found".into()));
            }
            content.revision += 1;
            for put in puts {
                if put.key == "/dunlin/tier/view" {
                    views.push(put.value.clone());
                }
                content.keys.insert(put.key, (put.value, content.revision, put.lease));
            }
            Ok(true)
        })??;
        let faults = &mut self.store.lock().unwrap().faults;
        if faults.lost_answers > 0 {
            faults.lost_answers -= 1;
            return Err(StoreError::Unavailable("the answer was lost".into()));
        }
        Ok(done)
    }

    fn has_changed(&mut self, _: &str) -> Result<bool, StoreError> {
        let read_at = self.read_at;
        self.reach(Nanos::MAX, |store, _| {
            let is_compacted = store.faults.compacted > 0;
            store.faults.compacted = store.faults.compacted.saturating_sub(1);
            // The next reading brings all that the watch has lost.
            is_compacted || store.content.revision != read_at
        })
    }
}

fn settings() -> StoreConfig {
    StoreConfig { lease: LEASE, max_nodes: 8, ..StoreConfig::default() }
}

fn try_join(process: &Sim, store: &Arc<Mutex<StandIn>>, name: &'static str) -> Result<Tier<Sim>, JoinError> {
    join_with(process, store, name, settings())
}

fn join_with(
    process: &Sim,
    store: &Arc<Mutex<StandIn>>,
    name: &'static str,
    settings: StoreConfig,
) -> Result<Tier<Sim>, JoinError> {
    let peer = Peer::named(Scheme::Sim, name).unwrap();
    let mut config = TierConfig::new(vec![peer], name);
    config.principal = "cluster".to_owned();
    config.memory = 1 << 18;
    config.max_nodes = 8;
    config.timeout = Duration::from_secs(2);
    let client = Client { name, host: process.host().clone(), store: Arc::clone(store), read_at: 0 };
    Tier::within_store(process, config, client, settings)
}

fn leak<T>(value: T) {
    let _ = std::mem::ManuallyDrop::new(value);
}

fn alive(tier: &Tier<Sim>) -> Vec<String> {
    let mut alive: Vec<String> = tier.nodes().collect();
    alive.sort();
    alive
}

#[track_caller]
fn wait(sim: &Sim, what: &str, is_so: impl Fn() -> bool) {
    let begin = sim.time();
    while !is_so() {
        assert!(sim.time() - begin < HANG, "no end of waiting: {what}");
        sim.host().sleep(sim.time() + MILLISECOND);
    }
}

/// Waits until the nodes have one view, in which those named are alive.
#[track_caller]
fn agree(sim: &Sim, tiers: &[&Tier<Sim>], names: &[&str]) {
    wait(sim, "one view of all", || {
        let first = tiers[0].view();
        tiers.iter().all(|tier| alive(tier) == names && tier.view() == first)
    });
}

/// Runs `body` with a store, and nodes that joined at the same time, on machines of their own.
fn run(
    seed: u64,
    count: usize,
    body: impl FnOnce(&Sim, &[Sim], Vec<Tier<Sim>>, &Arc<Mutex<StandIn>>) + Send + 'static,
) {
    let store = Arc::new(Mutex::new(StandIn::default()));
    let checked = Arc::clone(&store);
    let machines = vec![MachineSettings::default(); NAMES.len()];
    Sim::run_with(Settings { machines, ..Settings::default() }, seed, move |sim| {
        let processes: Vec<Sim> = (0..NAMES.len()).map(|machine| sim.process_on(machine)).collect();
        let made: Arc<Mutex<Vec<Option<Tier<Sim>>>>> = Arc::new(Mutex::new(vec![None; count]));
        let tasks: Vec<Task> = (0..count)
            .map(|at| {
                let (process, store, made) = (processes[at].clone(), Arc::clone(&store), Arc::clone(&made));
                let body = move || {
                    made.lock().unwrap()[at] = Some(try_join(&process, &store, NAMES[at]).unwrap());
                };
                processes[at].host().spawn("starter", Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        let tiers: Vec<Tier<Sim>> =
            std::mem::take(&mut *made.lock().unwrap()).into_iter().flatten().collect();
        agree(&sim, &tiers.iter().collect::<Vec<_>>(), &NAMES[..count]);
        body(&sim, &processes, tiers, &store);
    })
    .unwrap();
    // One view an epoch: whoever wrote it.
    let views = std::mem::take(&mut checked.lock().unwrap().views);
    let parsed: Vec<_> =
        views.iter().map(|bytes| dunlin_tier::membership::shared::parse(bytes).unwrap()).collect();
    for pair in parsed.windows(2) {
        assert!(pair[0].epoch < pair[1].epoch, "{:?} {:?}", pair[0].epoch, pair[1].epoch);
    }
}

#[test]
fn nodes_join_die_and_come_back() {
    for seed in 0..3 {
        run(seed, 3, |sim, processes, mut tiers, store| {
            let region = tiers[0].malloc(100, Spec::here().named("kept").grant_anyone(Rights::ALL)).unwrap();
            region.write(0, b"kept").unwrap();
            let before = tiers[1].view();
            processes[2].kill();
            let killed = sim.time();
            leak(tiers.pop());
            agree(sim, &[&tiers[0], &tiers[1]], &NAMES[..2]);
            assert!(sim.time() - killed < 1_500 * MILLISECOND, "a lease and some periods");
            assert!(matches!(
                tiers[1].malloc(100, Spec::on("carol")),
                Err(RequestError::Dead { may_have_executed: false, .. })
            ));
            let mut found = [0; 4];
            tiers[1].map("kept", Rights::READ).unwrap().read(0, &mut found).unwrap();
            assert_eq!(&found, b"kept");
            // The next life has the number, and another incarnation.
            let carol = try_join(&sim.process_on(2), store, "carol").unwrap();
            agree(sim, &[&tiers[0], &tiers[1], &carol], &NAMES[..3]);
            let of = |view: &dunlin_tier_node::View| {
                view.named("carol").map(|one| (one.node, one.incarnation)).unwrap()
            };
            let (then, now) = (of(&before), of(&tiers[1].view()));
            assert!(then.0 == now.0 && then.1 < now.1);
            // A node that ends leaves at once.
            drop(carol);
            let ended = sim.time();
            agree(sim, &[&tiers[0], &tiers[1]], &NAMES[..2]);
            assert!(sim.time() - ended < 300 * MILLISECOND);
            assert!(!store.lock().unwrap().content.keys.contains_key("/dunlin/tier/nodes/carol"));
        });
    }
}

#[test]
fn a_life_in_place_of_one_whose_lease_lasts_replaces_it() {
    run(3, 2, |sim, processes, mut tiers, store| {
        processes[1].kill();
        leak(tiers.pop());
        let bob = try_join(&sim.process_on(1), store, "bob").unwrap();
        agree(sim, &[&tiers[0], &bob], &NAMES[..2]);
    });
}

#[test]
fn calls_and_memory_go_on_while_the_store_is_away() {
    run(4, 3, |sim, processes, tiers, store| {
        let before = tiers[0].view();
        let region = tiers[0].malloc(100, Spec::on("bob").named("meanwhile")).unwrap();
        store.lock().unwrap().faults.is_away = true;
        // No lease ends while etcd has no leader.
        let leases = store.lock().unwrap().content.leases.clone();
        for _ in 0..30 {
            region.write(0, b"goes on").unwrap();
            tiers[2].lock("lock").unwrap().unlock().unwrap();
            sim.host().sleep(sim.time() + 1_000 * MILLISECOND);
        }
        assert!(tiers.iter().all(|tier| tier.view() == before));
        let trouble = tiers[1].trouble().expect("trouble");
        assert!(trouble.contains("store"), "{trouble}");
        let late = try_join(&processes[3], store, "dave");
        assert!(matches!(late, Err(JoinError::Membership(MembershipError::Store(_)))), "{late:?}");
        {
            let mut store = store.lock().unwrap();
            let now = sim.time();
            store.content.leases = leases;
            store.content.leases.values_mut().for_each(|(until, nanos)| *until = now + *nanos);
            store.faults.is_away = false;
        }
        let dave = try_join(&processes[3], store, "dave").unwrap();
        let all: Vec<_> = tiers.iter().chain([&dave]).collect();
        agree(sim, &all, &NAMES);
        wait(sim, "an end of the trouble", || tiers[1].trouble().is_none());
        let incarnations = |view: &dunlin_tier_node::View| {
            view.members.iter().take(3).map(|one| one.incarnation).collect::<Vec<_>>()
        };
        assert_eq!(incarnations(&before), incarnations(&dave.view()), "nobody had to join again");
    });
}

#[test]
fn a_node_that_is_cut_off_is_declared_dead_and_joins_again() {
    run(5, 3, |sim, _, tiers, store| {
        let before = tiers[2].view();
        store.lock().unwrap().faults.cut_off = Some("carol");
        agree(sim, &[&tiers[0], &tiers[1]], &NAMES[..2]);
        assert_eq!(tiers[2].view(), before);
        store.lock().unwrap().faults.cut_off = None;
        let all: Vec<_> = tiers.iter().collect();
        agree(sim, &all, &NAMES[..3]);
        let incarnation = |view: &dunlin_tier_node::View| view.named("carol").unwrap().incarnation;
        assert!(incarnation(&tiers[0].view()) > incarnation(&before));
        // It can be used again.
        let region = tiers[0].malloc(100, Spec::on("carol")).unwrap();
        region.write(0, b"again").unwrap();
    });
}

#[test]
fn a_store_that_is_slow_compacted_or_loses_answers_brings_one_view_to_all() {
    for seed in 0..6 {
        run(20 + seed, 3, move |sim, processes, mut tiers, store| {
            {
                let mut store = store.lock().unwrap();
                store.faults.delay = 40 * MILLISECOND;
                store.faults.compacted = 5;
                store.faults.lost_answers = seed as u32;
            }
            let dave = match try_join(&processes[3], store, "dave") {
                Ok(dave) => dave,
                Err(error) => panic!("{error:?}"),
            };
            processes[0].kill();
            leak(tiers.remove(0));
            let all: Vec<_> = tiers.iter().chain([&dave]).collect();
            agree(sim, &all, &NAMES[1..]);
        });
    }
}

#[test]
fn a_store_that_forgets_a_lease_loses_nobody() {
    run(6, 3, |sim, _, tiers, store| {
        // The lease ends, and with it the key.
        let lease = store.lock().unwrap().content.keys["/dunlin/tier/nodes/bob"].2.unwrap();
        {
            let mut store = store.lock().unwrap();
            store.content.leases.remove(&lease);
            store.content.drop_keys_of(&[lease]);
        }
        sim.host().sleep(sim.time() + 3_000 * MILLISECOND);
        let all: Vec<_> = tiers.iter().collect();
        agree(sim, &all, &NAMES[..3]);
        assert!(store.lock().unwrap().content.keys.contains_key("/dunlin/tier/nodes/bob"));
        // All of them, and the view.
        store.lock().unwrap().content = Content { revision: 1_000, ..Content::default() };
        sim.host().sleep(sim.time() + 3_000 * MILLISECOND);
        agree(sim, &all, &NAMES[..3]);
        let numbers = |tier: &Tier<Sim>| tier.view().members.iter().map(|one| one.node).collect::<Vec<_>>();
        assert_eq!(numbers(&tiers[0]).len(), 3, "all have their numbers");
    });
}

#[test]
fn a_store_that_was_set_back_does_not_set_the_nodes_back() {
    run(8, 3, |sim, processes, mut tiers, store| {
        let saved = store.lock().unwrap().content.clone();
        processes[2].kill();
        leak(tiers.pop());
        agree(sim, &[&tiers[0], &tiers[1]], &NAMES[..2]);
        let epoch = tiers[0].view().epoch;
        {
            // Carol is alive in the view of the copy, and its lease ends again.
            let mut store = store.lock().unwrap();
            let mut leases = saved.leases.clone();
            leases.extend(store.content.leases.clone());
            let revision = store.content.revision;
            store.content = Content { revision: revision + 1, leases, ..saved };
        }
        sim.host().sleep(sim.time() + 2_000 * MILLISECOND);
        agree(sim, &[&tiers[0], &tiers[1]], &NAMES[..2]);
        assert!(tiers[0].view().epoch > epoch);
    });
}

#[test]
fn two_nodes_with_one_name_and_a_broken_record_are_errors() {
    run(9, 2, |_, processes, tiers, store| {
        // The same name, at other addresses.
        let at = |text: &str| Address::new(Scheme::Sim, text).unwrap();
        let peer = Peer { name: "bob".into(), calls: at("other"), memory: at("other-memory") };
        let client =
            Client { name: "other", host: processes[3].host().clone(), store: Arc::clone(store), read_at: 0 };
        let mut config = TierConfig::new(vec![peer], "bob");
        config.memory = 1 << 18;
        config.timeout = Duration::from_millis(300);
        let refused = Tier::within_store(&processes[3], config, client, settings());
        match refused {
            Err(JoinError::Membership(MembershipError::Refused(refusal))) => {
                assert!(refusal.to_string().contains("bob"), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
        // Another cluster of the same store has a view of its own.
        let apart = StoreConfig { cluster: "a/b".into(), ..settings() };
        let dave = join_with(&processes[2], store, "dave", apart).unwrap();
        assert_eq!(
            (alive(&dave), alive(&tiers[0])),
            (vec!["dave".into()], vec!["alice".into(), "bob".into()])
        );
        // Somebody else writes where the view is.
        store.lock().unwrap().content.keys.get_mut("/dunlin/tier/view").unwrap().0 = b"{}".to_vec();
        let broken = try_join(&processes[3], store, "carol");
        match broken {
            Err(JoinError::Membership(error @ MembershipError::Record { .. })) => {
                assert!(error.to_string().contains("/dunlin/tier/view"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Without a node around it: the membership alone.
#[test]
fn leaving_ends_the_lease() {
    Sim::run_with(Settings::default(), 1, |sim| {
        let store = Arc::new(Mutex::new(StandIn::default()));
        let identity =
            Identity { name: "alice".into(), calls: "sim:a".into(), memory: "sim:b".into(), life: 7 };
        let client =
            Client { name: "alice", host: sim.host().clone(), store: Arc::clone(&store), read_at: 0 };
        let mut membership = StoreMembership::new(sim.host(), client, identity, settings());
        let until = || sim.time() + 100 * MILLISECOND;
        membership.renew(until()).unwrap();
        assert!(matches!(membership.own(), Some(Own { .. })));
        membership.leave(until()).unwrap();
        let store = store.lock().unwrap();
        assert!(store.content.leases.is_empty());
        assert_eq!(store.content.keys.keys().collect::<Vec<_>>(), ["/dunlin/tier/view"]);
    })
    .unwrap();
}
