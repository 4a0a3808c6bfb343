//! Processes that attach to two nodes, one of which is killed. A child runs the test of that name with its role in the
//! environment.

use crate::cluster::{SHAPES, add, bytes, config, each};
use dunlin_app_memory::{Lost, Memory, MemoryConfig, MemoryError, PAGE, Push, Told};
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, Tier};
use dunlin_tier_node::{AnyTier, Peer, ProcessConfig, ProcessServer, TierConfig};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE as u64;
/// No step takes so long: it hangs.
const HANG: Duration = Duration::from_secs(60);
const TAG: &str = "MEMORY_TEST_TAG";
const SHAPE: &str = "MEMORY_TEST_SHAPE";
const NODES: [&str; 2] = ["one", "two"];

fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

fn address(tag: &str, node: &str) -> Address {
    Address::new(Scheme::Shm, &format!("memory-test-{tag}-{node}-attach")).unwrap()
}

/// A node that serves processes. The processes end before the node.
struct Serving(
    #[allow(dead_code, reason = "it serves")] ProcessServer<ShmFabric>,
    #[allow(dead_code)] dunlin_tier_node::Tier<ShmFabric>,
);

fn serve(tag: &str, node: &str) -> Serving {
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
    Serving(processes, tier)
}

fn attach(tag: &str, node: &str) -> Tier {
    let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address(tag, node)) };
    Tier::attach_with(&fabric(), config).unwrap()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shape(number: usize) -> (Told, Push) {
    SHAPES[number % SHAPES.len()]
}

/// Member 1: writes without a release, says so in another page, and waits for its end.
#[test]
fn child() {
    let Ok(tag) = std::env::var(TAG) else { return };
    let shape = shape(std::env::var(SHAPE).unwrap().parse().unwrap());
    let memory = Memory::open(&attach(&tag, "one"), &config("m", shape, 1)).unwrap();
    let _held = memory.acquire(&[0..1, 2 * PAGE_BYTES..3 * PAGE_BYTES]).unwrap();
    memory.write(0, b"wrong").unwrap();
    let mut told = memory.acquire(&[6 * PAGE_BYTES..7 * PAGE_BYTES]).unwrap();
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
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--nocapture", "--test-threads=1"])
            .envs([(TAG, tag.as_str()), (SHAPE, &number.to_string())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
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
        let waits = last.acquire_within(&[0..1], Duration::from_millis(30)).map(drop);
        assert!(matches!(waits, Err(MemoryError::Held { page: 0, member: 1 })), "{waits:?}");
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        let mut next = last.acquire(&[0..1, 3 * PAGE_BYTES..4 * PAGE_BYTES]).unwrap();
        assert_eq!(next.lost(), [Lost { page: 0, member: 1 }]);
        assert_eq!(bytes::<_, 5>(&last, 0), [0; 5]);
        last.write(0, b"right").unwrap();
        // The dead member need not hear of it.
        next.release().unwrap();
        drop(next);
        assert_eq!(&bytes::<_, 5>(&first, 0), b"right");
        assert_eq!(first.acquire(&[2 * PAGE_BYTES..3 * PAGE_BYTES]).unwrap().lost().len(), 1);
        // Its node lives, and so do the pages whose home it was: they are read, and not acquired.
        assert_eq!(bytes::<_, 1>(&first, PAGE_BYTES), [0]);
        let gone = first.acquire(&[PAGE_BYTES..2 * PAGE_BYTES]).map(drop);
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
            let mut held = memory.acquire(&[0..PAGE_BYTES + 1]).unwrap();
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
