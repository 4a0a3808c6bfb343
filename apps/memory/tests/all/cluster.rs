//! Common parts: nodes, and memories with a member on each.

use dunlin_app_memory::{Memory, MemoryConfig, MemoryError, Push, Told};
use dunlin_fabric::{Fabric, Host, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{AnyLists, AnyServices, Peer, Tier, TierConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NAMES: [&str; 3] = ["alice", "bob", "carol"];
/// All ways to tell of releases, and to push.
pub(crate) const SHAPES: [(Told, Push); 4] = [
    (Told::All, Push::Changed),
    (Told::All, Push::Whole),
    (Told::Marked, Push::Changed),
    (Told::Marked, Push::Whole),
];

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    let peer = |name: &&str| {
        let mut peer = Peer::named(scheme, &format!("{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NAMES.iter().map(peer).collect(), name);
    (config.memory, config.paths, config.timeout) = (4 << 20, 4, Duration::from_secs(2));
    Tier::within(fabric, config).unwrap()
}

/// Starts three nodes on shared memory, each with a fabric of its own.
pub(crate) fn on_shared_memory() -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("memory-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name))
}

/// Runs `body` with three nodes on machines of their own in virtual time.
pub(crate) fn in_virtual_time(seed: u64, body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static) {
    let settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        body([0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "memory", NAMES[at])));
    })
    .unwrap();
}

/// Returns the settings of a member of three.
pub(crate) fn config(name: &str, (told, push): (Told, Push), member: u16) -> MemoryConfig {
    let patience = Duration::from_secs(60);
    MemoryConfig { told, push, patience, ..MemoryConfig::new(name, 20, 3, member) }
}

/// Runs a body on tasks, and waits for all.
pub(crate) fn each<H: Host, A: Send + 'static, R: Send + 'static>(
    host: &H,
    all: Vec<A>,
    body: impl Fn(usize, A) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let (body, place) = (Arc::new(body), Arc::new(Mutex::new(Vec::new())));
    let tasks: Vec<_> = all
        .into_iter()
        .enumerate()
        .map(|(at, one)| {
            let (body, place) = (Arc::clone(&body), Arc::clone(&place));
            let task = move || {
                let result = body(at, one);
                place.lock().unwrap().push((at, result));
            };
            host.spawn("member", Box::new(task)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(Task::join);
    let mut results = std::mem::take(&mut *place.lock().unwrap());
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Opens a memory at all tiers, with a member each.
pub(crate) fn opened<T: AnyServices + AnyLists>(
    tiers: &[T],
    config: impl Fn(u16) -> MemoryConfig + Send + Sync + 'static,
) -> Vec<Result<Memory<T>, MemoryError>> {
    each(tiers[0].host(), tiers.to_vec(), move |at, tier| Memory::open(&tier, &config(at as u16)))
}

pub(crate) fn open<T: AnyServices + AnyLists>(
    tiers: &[T],
    name: &str,
    shape: (Told, Push),
) -> Vec<Memory<T>> {
    let name = name.to_owned();
    opened(tiers, move |at| config(&name, shape, at)).into_iter().map(Result::unwrap).collect()
}

/// Closes all members.
pub(crate) fn close<T: AnyServices + AnyLists>(tier: &T, memories: Vec<Memory<T>>) {
    each(tier.host(), memories, |_, memory| memory.close()).into_iter().for_each(Result::unwrap);
}

/// Reads bytes.
pub(crate) fn bytes<T: AnyServices + AnyLists, const N: usize>(memory: &Memory<T>, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read(offset, &mut bytes).unwrap();
    bytes
}

/// Adds to a number in the memory.
pub(crate) fn add<T: AnyServices + AnyLists>(memory: &Memory<T>, offset: u64, by: u64) {
    let old = u64::from_le_bytes(bytes(memory, offset));
    memory.write(offset, &(old + by).to_le_bytes()).unwrap();
}
