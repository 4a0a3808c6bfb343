//! Counts the words of a file by a master and two workers, each on a node of its own, and prints the most frequent ones.
//!
//! `cargo run --release -p dunlin-app-mapreduce --example wordcount -- FILE`

use dunlin_app_mapreduce::{Files, Job, Master, WordCount, count_of, work_for};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::error::Error;
use std::sync::Arc;

type Failed = Box<dyn Error + Send + Sync>;

fn node(at: usize) -> Result<Tier<ShmFabric>, Failed> {
    let address = |name: &str| format!("example-mapreduce-{}-{name}", std::process::id());
    let peers = ["one", "two"].map(|name| Peer::named(Scheme::Shm, &address(name)));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let me = peers[at].name.clone();
    let config = TierConfig { memory: 64 << 20, ..TierConfig::new(peers, &me) };
    Ok(Tier::within(&ShmFabric::new(ShmConfig::default())?, config)?)
}

fn count(nodes: &[Tier<ShmFabric>], path: &str) -> Result<Vec<(u64, String)>, Failed> {
    let job = Job::new("example/words");
    let files = || Files::open([path.into()], 1 << 20);
    let master = Master::start(&nodes[0], &job, &WordCount, &files()?, Arc::new(()))?;
    let mut words = Vec::new();
    std::thread::scope(|scope| {
        let workers = nodes.iter().map(|node| {
            let (job, files) = (&job, files());
            scope.spawn(move || work_for(node, job, WordCount, files?, 1, Arc::new(())))
        });
        let workers: Vec<_> = workers.collect();
        master.finish(|word, count| {
            words.push((count_of(count), String::from_utf8_lossy(word).into_owned()));
            true
        })?;
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    Ok(words)
}

fn main() -> Result<(), Failed> {
    let path = std::env::args().nth(1).unwrap_or("README.md".into());
    let mut words = count(&[node(0)?, node(1)?], &path)?;
    words.sort_unstable_by(|one, other| other.cmp(one));
    for (count, word) in words.iter().take(10) {
        println!("{count:8} {word}");
    }
    Ok(())
}
