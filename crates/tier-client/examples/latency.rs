//! The price of the node: reads, writes and atomics of a process that is attached, beside those of a process that is a
//! node itself. Two nodes on shared memory, each in a process of its own.
//!
//! `cargo run --release -p dunlin-tier-client --example latency`

mod common;

use common::{Ended, time};
use dunlin_fabric::{Address, AddressError, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, ListError, Outcomes, Spec};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, TierConfig};
use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

const NODES: [&str; 3] = ["one", "two", "own"];

fn address(tag: &str, node: &str) -> Result<Address, AddressError> {
    Address::new(Scheme::Shm, &format!("latency-{tag}-{node}"))
}

fn node(tag: &str, name: &str) -> Result<dunlin_tier_node::Tier<ShmFabric>, Box<dyn Error>> {
    let peers = NODES.map(|node| Peer::at(node, address(tag, node)?));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let fabric = ShmFabric::new(ShmConfig::default())?;
    Ok(dunlin_tier_node::Tier::within(&fabric, TierConfig::new(peers, name))?)
}

/// The reads of a list, each of 64 bytes.
const LISTED: usize = 16;

macro_rules! measure {
    ($what:literal, $tier:ident, $region:expr) => {{
        let region = &$region;
        for size in [64, 4096, 65_536] {
            let mut bytes = vec![7; size];
            time(&format!("{}: write {size} B", $what), || region.write(0, &bytes))?;
            time(&format!("{}: read {size} B", $what), || region.read(0, &mut bytes))?;
        }
        time(concat!($what, ": fetch_add"), || region.fetch_add(0, 1).map(drop_old))?;
        let mut places = [[0; 64]; LISTED];
        time(concat!($what, ": 16 reads of 64 B"), || {
            let mut places = places.iter_mut().enumerate();
            places.try_for_each(|(at, place)| region.read(4096 * at as u64, place))
        })?;
        time(concat!($what, ": a list of 16 reads of 64 B"), || {
            let mut list = $tier::Operations::new();
            for (at, place) in places.iter_mut().enumerate() {
                list = list.read(region, 4096 * at as u64, place);
            }
            all_done(list.run())
        })?;
    }};
}

/// Measures a region that is mapped directly, beside copies of the process's own memory. A clock takes as long as some
/// loads, so each measurement has a thousand of them.
fn measure_direct(region: &dunlin_tier_client::Lmr) -> Result<(), Box<dyn Error>> {
    const TIMES: u64 = 1000;
    let direct = region.direct()?;
    time("mapped: 1000 loads", || {
        (0..TIMES).try_for_each(|at| direct.load(at % 512 * 8).map(|word| drop_old(black_box(word))))
    })?;
    time("mapped: 1000 stores", || (0..TIMES).try_for_each(|at| direct.store(at % 512 * 8, at)))?;
    for size in [64, 4096, 65_536] {
        let (mut bytes, mut other) = (vec![7; size], vec![9; size]);
        time(&format!("mapped: 10 writes of {size} B"), || {
            (0..10).try_for_each(|_| direct.copy_in(0, &bytes))
        })?;
        time(&format!("mapped: 10 reads of {size} B"), || {
            (0..10).try_for_each(|_| direct.copy_out(0, &mut bytes))
        })?;
        time(&format!("own memory: 10 copies of {size} B"), || {
            for _ in 0..10 {
                other.copy_from_slice(black_box(&bytes));
                black_box(&mut other);
            }
            Ok::<(), std::fmt::Error>(())
        })?;
    }
    Ok(())
}

fn drop_old(_old: u64) {}

/// Returns the first error of a list.
fn all_done(outcomes: Result<Outcomes, ListError>) -> Result<(), ListError> {
    for (place, outcome) in outcomes?.into_iter().enumerate() {
        outcome.map_err(|source| ListError::Refused { place, source })?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [tag, name] = &words[..] {
        let tier = node(tag, name)?;
        let fabric = ShmFabric::new(ShmConfig::default())?;
        let attach = address(tag, &format!("{name}-attach"))?;
        let _processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(attach))?;
        std::thread::sleep(Duration::from_secs(600));
        return Ok(());
    }
    let tag = std::process::id().to_string();
    let start = |name: &str| Command::new(std::env::current_exe()?).args([&tag, name]).spawn().map(Ended);
    let _nodes = [start("one")?, start("two")?];
    let fabric = ShmFabric::new(ShmConfig::default())?;
    let attach = AttachConfig::new(address(&tag, "one-attach")?);
    let tier = loop {
        match dunlin_tier_client::Tier::attach_with(&fabric, attach.clone()) {
            Ok(tier) => break tier,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let near = tier.malloc(1 << 20, Spec::here())?;
    let far = loop {
        match tier.malloc(1 << 20, Spec::on("two")) {
            Ok(region) => break region,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    measure!("attached, bytes of the own node", dunlin_tier_client, near);
    measure!("attached, bytes of another node", dunlin_tier_client, far);
    time("attached: malloc and unmap of 4 KiB", || tier.malloc(4096, Spec::here())?.unmap())?;
    let mapped = tier.malloc(1 << 20, Spec::here().direct())?;
    measure_direct(&mapped)?;
    drop((mapped, near, far, tier));
    let own = node(&tag, "own")?;
    measure!("a node itself, own bytes", dunlin_tier_node, own.malloc(1 << 20, Spec::here())?);
    measure!("a node itself, bytes of another node", dunlin_tier_node, own.malloc(1 << 20, Spec::on("two"))?);
    Ok(())
}
