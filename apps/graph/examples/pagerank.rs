//! PageRank of a generated graph by two nodes with one thread each, and the ten highest ranks.
//!
//! `cargo run --release -p dunlin-app-graph --example pagerank`

use dunlin_app_graph::{Edges, Job, Outcome, PageRank, Rank, run};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::error::Error;
use std::sync::Arc;

type Failed = Box<dyn Error + Send + Sync>;

fn node(at: usize, memory: u64) -> Result<Tier<ShmFabric>, Failed> {
    let address = |name: &str| format!("example-graph-{}-{name}", std::process::id());
    let peers = ["one", "two"].map(|name| Peer::named(Scheme::Shm, &address(name)));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let me = peers[at].name.clone();
    let config = TierConfig { memory, ..TierConfig::new(peers, &me) };
    Ok(Tier::within(&ShmFabric::new(ShmConfig::default())?, config)?)
}

fn rank(tier: &Tier<ShmFabric>, member: u16, edges: &Arc<Edges>) -> Result<Outcome<Rank>, Failed> {
    let job = Job { members: 2, member, ..Job::new("example/rank") };
    let program = PageRank { tolerance: 1e-4 };
    Ok(run(tier, &job, Arc::clone(edges), program, Arc::new(()))?)
}

fn main() -> Result<(), Failed> {
    let edges = Arc::new(Edges::rmat(16, 16, 1)?);
    let memory = Job::new("example/rank").memory::<PageRank>(edges.vertices());
    let tiers = [node(0, memory)?, node(1, memory)?];
    let outcome = std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(&tiers[1], 1, &edges));
        let own = rank(&tiers[0], 0, &edges)?;
        other.join().expect("no panic")?;
        Ok::<_, Failed>(own)
    })?;
    let mut ranks: Vec<_> = outcome.data.iter().map(|rank| rank.rank).zip(0u32..).collect();
    ranks.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (rank, vertex) in &ranks[..10] {
        println!("{vertex:>8} {rank:10.3}");
    }
    println!("{} steps, {} messages, {:?}", outcome.steps, outcome.messages, outcome.stepping);
    Ok(())
}
