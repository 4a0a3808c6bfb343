//! Common parts: clusters of nodes, and roles that check what they see.

use dunlin_app_log::{Cleaner, LogConfig, LogError, Start, Tail, Transaction, Writer, create};
use dunlin_fabric::{Address, Fabric, Host, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{
    AnyLmr, AnyTier, DirectoryConfig, DirectoryServer, Peer, Rights, Spec, Tier, TierConfig,
};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const NAMES: [&str; 3] = ["alice", "bob", "carol"];
pub(crate) const LOG: &str = "orders";

fn config(scheme: Scheme, tag: &str, name: &str) -> TierConfig {
    let peer = |name: &&str| {
        let mut peer = Peer::named(scheme, &format!("{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NAMES.iter().map(peer).collect(), name);
    (config.memory, config.paths, config.principal) = (1 << 20, 4, name.to_owned());
    config
}

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    Tier::within(fabric, config(scheme, tag, name)).unwrap()
}

/// Starts three nodes on shared memory, each with a fabric of its own.
pub(crate) fn on_shared_memory() -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("log-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name))
}

/// Runs `body` with three nodes on machines of their own in virtual time.
pub(crate) fn in_virtual_time(seed: u64, body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static) {
    let settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        body([0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "log", NAMES[at])));
    })
    .unwrap();
}

/// Runs `body` with three nodes that join one after the other, so that the first one owns all locks.
pub(crate) fn under_a_directory(seed: u64, body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static) {
    let settings = Settings { machines: vec![MachineSettings::default(); 4], ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        let address = Address::new(Scheme::Sim, "directory").unwrap();
        let _directory =
            DirectoryServer::serve(&sim.process_on(3), &address, DirectoryConfig::default()).unwrap();
        body([0, 1, 2].map(|at| {
            let mut config = config(Scheme::Sim, "log", NAMES[at]);
            config.nodes.retain(|peer| peer.name == NAMES[at]);
            config.directory = Some(address.clone());
            Tier::within(&sim.process_on(at), config).unwrap()
        }));
    })
    .unwrap();
}

/// Settings of a small log on bob's node, which everybody may use.
pub(crate) fn small() -> LogConfig {
    LogConfig {
        capacity: 4096,
        longest: Some(1024),
        writers: 16,
        lease: Duration::from_millis(300),
        hole_time: Duration::from_millis(20),
        place: Spec::on("bob").grant_anyone(Rights::READ.with(Rights::WRITE)),
    }
}

pub(crate) fn created<T: AnyTier>(tier: &T) {
    create(tier, LOG, &small()).unwrap();
}

pub(crate) fn sleep<T: AnyTier>(tier: &T, time: Duration) {
    let host = tier.host();
    host.sleep(host.now() + time.as_nanos() as u64);
}

/// Reserves room as a commit does, and writes nothing. The writer is dead if it is used no more; it stays registered
/// until it is evicted or dropped.
pub(crate) fn die<T: AnyTier>(tier: &T, bytes: u64) -> (Writer<T>, u64) {
    die_at(tier, LOG, bytes)
}

/// As [`die`], at a log of another name.
pub(crate) fn die_at<T: AnyTier>(tier: &T, log: &str, bytes: u64) -> (Writer<T>, u64) {
    let dead = Writer::open_as(tier, log, "the dead one").unwrap();
    let metadata = tier.map(log.as_bytes(), Rights::READ.with(Rights::WRITE)).unwrap();
    (dead, metadata.fetch_add(64, bytes.next_multiple_of(64)).unwrap())
}

/// A transaction as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) position: u64,
    pub(crate) entries: Vec<Vec<u8>>,
}

pub(crate) fn seen(transaction: &Transaction<'_>) -> Seen {
    let entries: Vec<Vec<u8>> = transaction.entries().map(<[u8]>::to_vec).collect();
    assert_eq!(entries.len(), transaction.len());
    Seen { position: transaction.position(), entries }
}

/// The entries of a writer's transaction: number of the writer, of the transaction and of the entry, and filling.
pub(crate) fn entries(writer: u64, number: u64) -> Vec<Vec<u8>> {
    let count = 1 + (writer * 7 + number * 3) % 5;
    (0..count)
        .map(|entry| {
            let mut bytes = [writer, number, entry].map(u64::to_le_bytes).concat();
            bytes.resize(24 + ((number * 31 + entry * 17) % 150) as usize, writer as u8);
            bytes
        })
        .collect()
}

/// Commits `count` transactions; returns them with their positions.
pub(crate) fn write<T: AnyTier>(tier: &T, number: u64, count: u64) -> Vec<Seen> {
    let mut writer = Writer::open_as(tier, LOG, &format!("writer {number}")).unwrap();
    let mut done = Vec::new();
    for transaction in 0..count {
        let entries = entries(number, transaction);
        entries.iter().for_each(|entry| writer.append(entry).unwrap());
        done.push(Seen { position: writer.commit().unwrap(), entries });
    }
    done
}

/// Cleans until `count` transactions were handed on.
pub(crate) fn clean<T: AnyTier>(tier: &T, count: usize) -> Vec<Seen> {
    let mut cleaner = Cleaner::open(tier, LOG).unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let cleaned = cleaner
            .clean(|transaction| {
                all.push(seen(transaction));
                ControlFlow::Continue(())
            })
            .unwrap();
        if cleaned.transactions == 0 {
            sleep(tier, Duration::from_micros(50));
        }
    }
    all
}

/// Follows the log up to the transaction at `last`; returns what it saw, and how often it fell behind.
pub(crate) fn follow<T: AnyTier>(tier: &T, count: usize) -> (Vec<Seen>, u64) {
    let mut tail = Tail::open(tier, LOG, Start::At(0)).unwrap();
    let (mut all, mut behind) = (Vec::<Seen>::new(), 0);
    let is_last = |one: &Seen| one.entries[0].starts_with(b"last");
    while all.len() < count && !all.last().is_some_and(is_last) {
        match tail.read_within(Duration::from_secs(20)) {
            Ok(Some(transaction)) => all.push(seen(&transaction)),
            Ok(None) => panic!("nothing came after {} transactions", all.len()),
            Err(LogError::Behind { resume }) => {
                assert!(resume > tail.position());
                behind += 1;
                tail.seek(Start::At(resume)).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    (all, behind)
}

/// Checks that the committed transactions were handed on once each, whole and in order, and that what a reader saw is a
/// part of them in order.
pub(crate) fn check(mut committed: Vec<Seen>, handed_on: &[Seen], read: &[Seen]) {
    committed.sort_by_key(|one| one.position);
    assert_eq!(handed_on.len(), committed.len());
    assert!(handed_on == committed, "another order, or other bytes");
    assert!(read.windows(2).all(|pair| pair[0].position < pair[1].position));
    for one in read {
        let at = committed.binary_search_by_key(&one.position, |one| one.position).unwrap();
        assert_eq!(committed[at], *one);
    }
}
