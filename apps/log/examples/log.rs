//! Threads of two nodes commit to a log on the first node, and a cleaner takes the transactions out in order.
//!
//! `cargo run --release -p dunlin-app-log --example log`

use dunlin_app_log::{Cleaner, LogConfig, Writer, create, destroy};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, Rights, Spec, Tier, TierConfig};
use std::error::Error;
use std::ops::ControlFlow;

const NAMES: [&str; 2] = ["one", "two"];
const COMMITS: u64 = 1000;

fn node(at: usize) -> Result<Tier<ShmFabric>, Box<dyn Error + Send + Sync>> {
    let address = |name: &str| format!("example-log-{}-{name}", std::process::id());
    let peers = NAMES.map(|name| Peer::named(Scheme::Shm, &address(name)));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let me = peers[at].name.clone();
    Ok(Tier::within(&ShmFabric::new(ShmConfig::default())?, TierConfig::new(peers, &me))?)
}

fn commit(tier: &Tier<ShmFabric>, from: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut writer = Writer::open(tier, "example/transfers")?;
    for number in 0..COMMITS {
        writer.append(format!("{from} pays {number}").as_bytes())?;
        writer.append(format!("bank gets {number}").as_bytes())?;
        writer.commit()?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let tiers = [node(0)?, node(1)?];
    let place = Spec::here().grant_anyone(Rights::READ.with(Rights::WRITE));
    create(&tiers[0], "example/transfers", &LogConfig { capacity: 64 << 10, place, ..LogConfig::default() })?;
    let mut cleaner = Cleaner::open(&tiers[1], "example/transfers")?;
    let (mut count, mut last) = (0, String::new());
    std::thread::scope(|scope| {
        let writing = [(&tiers[0], "alice"), (&tiers[1], "bob")]
            .map(|(tier, from)| scope.spawn(move || commit(tier, from)));
        loop {
            let are_done = writing.iter().all(|writer| writer.is_finished());
            let cleaned = cleaner.clean(|transaction| {
                let entries: Vec<_> = transaction.entries().map(String::from_utf8_lossy).collect();
                last = entries.join(", ");
                ControlFlow::Continue(())
            })?;
            count += cleaned.transactions;
            if are_done && cleaned.left == 0 {
                return writing.into_iter().try_for_each(|writer| writer.join().expect("no panic"));
            }
        }
    })?;
    println!("{count} transactions in {} bytes; the last one: {last}", cleaner.position());
    Ok(destroy(&tiers[0], "example/transfers")?)
}
