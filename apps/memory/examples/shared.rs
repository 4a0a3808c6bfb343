//! Two members, each on a node of its own, count in a page that they share.
//!
//! `cargo run --release -p dunlin-app-memory --example shared`

use dunlin_app_memory::{Memory, MemoryConfig};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::error::Error;

type Failed = Box<dyn Error + Send + Sync>;

const MEMBERS: u16 = 2;
const PAGES: u32 = 16;
const ROUNDS: u64 = 1000;

fn node(at: usize) -> Result<Tier<ShmFabric>, Failed> {
    let address = |name: &str| format!("example-memory-{}-{name}", std::process::id());
    let peers = ["one", "two"].map(|name| Peer::named(Scheme::Shm, &address(name)));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let me = peers[at].name.clone();
    let config = TierConfig { memory: 4 << 20, ..TierConfig::new(peers, &me) };
    Ok(Tier::within(&ShmFabric::new(ShmConfig::default())?, config)?)
}

fn count(tier: &Tier<ShmFabric>, member: u16) -> Result<u64, Failed> {
    let memory = Memory::open(tier, &MemoryConfig::new("example/shared", PAGES, MEMBERS, member))?;
    for _ in 0..ROUNDS {
        let mut acquired = memory.acquire(0..8)?;
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes)?;
        memory.write(0, &(u64::from_le_bytes(bytes) + 1).to_le_bytes())?;
        acquired.release()?;
    }
    memory.barrier()?;
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes)?;
    memory.close()?;
    Ok(u64::from_le_bytes(bytes))
}

fn main() -> Result<(), Failed> {
    let nodes = [node(0)?, node(1)?];
    std::thread::scope(|scope| {
        let members = nodes.iter().zip(0..).map(|(node, member)| scope.spawn(move || count(node, member)));
        let members: Vec<_> = members.collect();
        for member in members {
            println!("{} increments", member.join().expect("no panic")?);
        }
        Ok(())
    })
}
