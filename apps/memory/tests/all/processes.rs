//! Processes that attach to two nodes, one of which is killed. A child runs the test of that name with its role in the
//! environment.

use crate::cluster::{SHAPES, add, bytes, config, each};
use dunlin_app_memory::{Lost, Memory, MemoryConfig, MemoryError, PAGE, Push, Told};
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, Tier};
use dunlin_tier_node::{AnyTier, Peer, ProcessConfig, ProcessServer, TierConfig};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE as u64;
/// No step takes so long: it hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);
const TAG: &str = "MEMORY_TEST_TAG";
const SHAPE: &str = "MEMORY_TEST_SHAPE";
const MAPPED: &str = "MEMORY_TEST_MAPPED";
const NODES: [&str; 2] = ["one", "two"];

fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

fn address(tag: &str, node: &str) -> Address {
    Address::new(Scheme::Shm, &format!("memory-test-{tag}-{node}-attach")).unwrap()
}

/// A node that serves processes. The processes end before the node.
pub(crate) struct Serving {
    _processes: ProcessServer<ShmFabric>,
    _node: dunlin_tier_node::Tier<ShmFabric>,
}

pub(crate) fn serve(tag: &str, node: &str) -> Serving {
    let peer = |name: &&str| {
        let mut peer = Peer::named(Scheme::Shm, &format!("memory-test-{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NODES.iter().map(peer).collect(), node);
    config.memory = 8 << 20;
    let fabric = fabric();
    let tier = dunlin_tier_node::Tier::within(&fabric, config).unwrap();
    let processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(address(tag, node))).unwrap();
    Serving { _processes: processes, _node: tier }
}

pub(crate) fn attach(tag: &str, node: &str) -> Tier {
    let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address(tag, node)) };
    Tier::attach_with(&fabric(), config).unwrap()
}

pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a child with a role.
fn start(tag: &str, role: &str, number: usize) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["processes::child", "--exact", "--nocapture", "--test-threads=1"])
        .envs([(TAG, tag), (role, &number.to_string())])
        .stdout(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}

pub(crate) fn shape(number: usize) -> (Told, Push) {
    SHAPES[number % SHAPES.len()]
}

/// The address of mapped memories: nothing else is there.
const ADDRESS: u64 = 0x5f00_0000_0000;

fn mapped(number: usize, member: u16) -> MemoryConfig {
    MemoryConfig { address: Some(ADDRESS), members: 2, ..config("m", shape(number), member) }
}

/// Returns the word at an address.
fn word(memory: &Memory<Tier>, address: u64) -> &AtomicU64 {
    &memory.words().unwrap()[((address - ADDRESS) / 8) as usize]
}

/// Follows a list of addresses: each element is the address of the next one, and a number. Returns the sum.
fn sum_of(memory: &Memory<Tier>) -> u64 {
    let (mut at, mut sum) = (ADDRESS, 0);
    while at != 0 {
        sum += word(memory, at + 8).load(Ordering::Relaxed);
        at = word(memory, at).load(Ordering::Relaxed);
    }
    sum
}

/// Member 1 of a mapped memory: makes a list, counts it, and stores to a page that it does not hold.
fn mapping_child(tag: &str, number: usize) {
    let memory = Memory::open(&attach(tag, "two"), &mapped(number, 1)).unwrap();
    let mut held = memory.acquire(0..3 * PAGE_BYTES).unwrap();
    for page in 0..3 {
        let at = ADDRESS + page * PAGE_BYTES;
        let next = if page == 2 { 0 } else { at + PAGE_BYTES };
        word(&memory, at).store(next, Ordering::Relaxed);
        word(&memory, at + 8).store(10 + page, Ordering::Relaxed);
    }
    held.release().unwrap();
    memory.barrier().unwrap();
    // The other member changes the second number.
    memory.barrier().unwrap();
    let mut result = memory.acquire(4 * PAGE_BYTES..5 * PAGE_BYTES).unwrap();
    word(&memory, ADDRESS + 4 * PAGE_BYTES).store(sum_of(&memory), Ordering::Relaxed);
    result.release().unwrap();
    memory.barrier().unwrap();
    word(&memory, ADDRESS).store(1, Ordering::Relaxed);
    unreachable!("a store to a page that is not held");
}

/// Member 1: writes without a release, says so in another page, and waits for its end.
#[test]
fn child() {
    let Ok(tag) = std::env::var(TAG) else { return };
    if let Ok(number) = std::env::var(MAPPED) {
        return mapping_child(&tag, number.parse().unwrap());
    }
    let shape = shape(std::env::var(SHAPE).unwrap().parse().unwrap());
    let memory = Memory::open(&attach(&tag, "one"), &config("m", shape, 1)).unwrap();
    let _held = memory.acquire_all(&[0..1, 2 * PAGE_BYTES..3 * PAGE_BYTES]).unwrap();
    memory.write(0, b"wrong").unwrap();
    let mut told = memory.acquire(6 * PAGE_BYTES..7 * PAGE_BYTES).unwrap();
    memory.write(6 * PAGE_BYTES, &[1]).unwrap();
    told.release().unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_process_that_is_killed_loses_its_changes_only() {
    if std::env::var(TAG).is_ok() {
        return;
    }
    for number in [0, 2] {
        let tag = format!("{}-{number}", std::process::id());
        let _nodes = NODES.map(|node| serve(&tag, node));
        let mut child = start(&tag, SHAPE, number);
        let tiers = NODES.map(|node| attach(&tag, node));
        let host = *tiers[0].host();
        let opened = each(&host, tiers.to_vec(), move |at, tier| {
            Memory::open(&tier, &config("m", shape(number), 2 * at as u16)).unwrap()
        });
        let [first, last] = opened.try_into().unwrap();
        let begin = Instant::now();
        while bytes::<_, 1>(&first, 6 * PAGE_BYTES) != [1] {
            assert!(begin.elapsed() < HANG, "the child does not write");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(bytes::<_, 5>(&last, 0), [0; 5]);
        let waits = last.acquire_within(0..1, Duration::from_millis(30)).map(drop);
        assert!(matches!(waits, Err(MemoryError::Held { page: 0, member: 1 })), "{waits:?}");
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        let mut next = last.acquire_all(&[0..1, 3 * PAGE_BYTES..4 * PAGE_BYTES]).unwrap();
        assert_eq!(next.lost(), [Lost { page: 0, member: 1 }]);
        assert_eq!(bytes::<_, 5>(&last, 0), [0; 5]);
        last.write(0, b"right").unwrap();
        // The dead member need not hear of it.
        next.release().unwrap();
        drop(next);
        assert_eq!(&bytes::<_, 5>(&first, 0), b"right");
        assert_eq!(first.acquire(2 * PAGE_BYTES..3 * PAGE_BYTES).unwrap().lost().len(), 1);
        // Its node lives, and so do the pages whose home it was: they are read, and not acquired.
        assert_eq!(bytes::<_, 1>(&first, PAGE_BYTES), [0]);
        let gone = first.acquire(PAGE_BYTES..2 * PAGE_BYTES).map(drop);
        assert!(matches!(gone, Err(MemoryError::HomeEnded { home: 1 })), "{gone:?}");
    }
}

#[test]
fn members_of_one_node_and_of_two_share_a_memory() {
    if std::env::var(TAG).is_ok() {
        return;
    }
    let tag = format!("{}-share", std::process::id());
    let _nodes = NODES.map(|node| serve(&tag, node));
    let tiers = ["one", "two", "one"].map(|node| attach(&tag, node));
    let host = *tiers[0].host();
    let sums = each(&host, tiers.to_vec(), |at, tier| {
        let config = MemoryConfig { told: shape(2).0, ..config("m", shape(0), at as u16) };
        let memory = Memory::open(&tier, &config).unwrap();
        for _ in 0..20 {
            let mut held = memory.acquire(0..PAGE_BYTES + 1).unwrap();
            add(&memory, PAGE_BYTES - 4, 1);
            held.release().unwrap();
        }
        tier.barrier("m/written", 3).unwrap();
        let sum = u64::from_le_bytes(bytes(&memory, PAGE_BYTES - 4));
        memory.close().unwrap();
        sum
    });
    assert_eq!(sums, [60; 3]);
}

#[test]
fn addresses_are_the_same_in_all_processes_and_faults_are_answered() {
    if std::env::var(TAG).is_ok() {
        return;
    }
    for number in 0..SHAPES.len() {
        let tag = format!("{}-mapped-{number}", std::process::id());
        let _nodes = NODES.map(|node| serve(&tag, node));
        let mut child = start(&tag, MAPPED, number);
        let memory = Memory::open(&attach(&tag, "one"), &mapped(number, 0)).unwrap();
        memory.barrier().unwrap();
        assert_eq!(sum_of(&memory), 33);
        // Loads fault one page after the other.
        assert_eq!(memory.counts().fetched, 3);
        let mut held = memory.acquire(PAGE_BYTES..2 * PAGE_BYTES).unwrap();
        word(&memory, ADDRESS + PAGE_BYTES + 8).store(100, Ordering::Relaxed);
        // Calls see what loads see.
        assert_eq!(u64::from_le_bytes(bytes(&memory, PAGE_BYTES + 8)), 100);
        memory.write(PAGE_BYTES + 16, b"by a call").unwrap();
        held.release().unwrap();
        drop(held);
        let pushed = if shape(number).1 == Push::Whole { PAGE_BYTES } else { 24 };
        assert!(memory.counts().pushed <= pushed, "{:?}", memory.counts());
        memory.barrier().unwrap();
        memory.barrier().unwrap();
        assert_eq!(word(&memory, ADDRESS + 4 * PAGE_BYTES).load(Ordering::Relaxed), 122);
        assert_eq!(sum_of(&memory), 122);
        let status = child.0.wait().unwrap();
        assert_eq!(status.signal(), Some(11), "{status:?}");
    }
}

#[test]
fn addresses_that_are_in_use_are_refused() {
    if std::env::var(TAG).is_ok() {
        return;
    }
    let tag = format!("{}-taken", std::process::id());
    let _nodes = NODES.map(|node| serve(&tag, node));
    let tier = attach(&tag, "one");
    let here = std::ptr::from_ref(&tier) as u64 / PAGE_BYTES * PAGE_BYTES;
    for address in [here, 1] {
        let config = MemoryConfig { address: Some(address), members: 1, ..config("m", shape(0), 0) };
        let refused = Memory::open(&tier, &config);
        assert!(matches!(refused, Err(MemoryError::Map(_))), "{refused:?}");
    }
    assert_eq!(tier.list("", 0).unwrap().regions, [], "regions are freed");
}
