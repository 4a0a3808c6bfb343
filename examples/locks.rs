//! Nodes of the memory tier count together: a lock protects the count, and a barrier ends each round. Each node could be
//! a process of its own, or a host.
//!
//! `cargo run --release --example locks`

use dunlin::fabric::{Scheme, ShmFabric, shm};
use dunlin::tier::{Peer, Rights, Spec, Tier, TierConfig};
use std::thread;

const NAMES: [&str; 3] = ["one", "two", "three"];
const ROUNDS: u64 = 100;

fn join(cluster: &str, name: &str) -> anyhow::Result<Tier<ShmFabric>> {
    let peer = |name: &str| Peer::named(Scheme::Shm, &format!("{cluster}-{name}"));
    let nodes = NAMES.iter().map(|name| peer(name)).collect::<Result<_, _>>()?;
    Ok(Tier::within(&shm()?, TierConfig::new(nodes, &format!("{cluster}-{name}")))?)
}

fn count(tier: &Tier<ShmFabric>) -> anyhow::Result<()> {
    let counter = tier.map("example/counter", Rights::READ.with(Rights::WRITE))?;
    for _ in 0..ROUNDS {
        let guard = tier.lock("example/counter")?;
        let mut word = [0; 8];
        counter.read(0, &mut word)?;
        counter.write(0, &(u64::from_le_bytes(word) + 1).to_le_bytes())?;
        guard.unlock()?;
        tier.barrier("example/round", NAMES.len() as u16)?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let cluster = format!("locks-{}", std::process::id());
    let tiers = NAMES.iter().map(|name| join(&cluster, name)).collect::<anyhow::Result<Vec<_>>>()?;
    let counter = tiers[0].malloc(8, Spec::here().named("example/counter"))?;
    thread::scope(|scope| {
        let counting: Vec<_> = tiers.iter().map(|tier| scope.spawn(|| count(tier))).collect();
        counting.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })?;
    let mut word = [0; 8];
    counter.read(0, &mut word)?;
    println!("{} nodes have counted to {}", NAMES.len(), u64::from_le_bytes(word));
    let guard = tiers[2].lock("example/counter")?;
    let last = if guard.is_poisoned() { "died with it" } else { "gave it back" };
    println!("this is grant {} of the lock; the last holder {last}", guard.fence());
    Ok(())
}
