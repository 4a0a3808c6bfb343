//! Counts the instructions of an operation on another node's memory, by a thread of a program with a node in it. On shared
//! memory the thread itself copies, so that `valgrind --tool=callgrind --toggle-collect='*operations_by_*'` measures the
//! operations and no waiting.
//!
//! `operation_steps COUNT [write|read|list] [BYTES]`: a list has 64 reads of `BYTES` bytes.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "an example is an application")]

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Lmr, Operations, Peer, Spec, Tier, TierConfig};
use std::error::Error;
use std::time::Instant;

const LISTED: usize = 64;

#[inline(never)]
fn operations_by_thread(
    region: &Lmr<ShmFabric>,
    (count, kind): (usize, &str),
    bytes: &mut [u8],
) -> Result<(), Box<dyn Error>> {
    let mut places = vec![vec![0; bytes.len()]; LISTED];
    for _ in 0..count {
        match kind {
            "read" => region.read(0, bytes)?,
            "list" => {
                let reads = places.iter_mut().enumerate();
                let list = reads
                    .fold(Operations::new(), |list, (at, place)| list.read(region, 4096 * at as u64, place));
                list.run()?.into_iter().try_for_each(|one| one.map(drop))?;
            }
            _ => region.write(0, bytes)?,
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (count, length) = (number(1, 100_000)?, number(3, 64)?);
    let kind = arguments.get(2).map_or("write", String::as_str);
    let fabric = ShmFabric::new(ShmConfig::default())?;
    let peer = |name: &str| {
        let address = Address::new(Scheme::Shm, &format!("tier-steps-{}-{name}", std::process::id()))?;
        Peer::at(name, address)
    };
    let peers = vec![peer("one")?, peer("two")?];
    let node = |name: &str| {
        Tier::within(&fabric, TierConfig { memory: 8 << 20, ..TierConfig::new(peers.clone(), name) })
    };
    let (one, _two) = (node("one")?, node("two")?);
    let region = one.malloc(1 << 20, Spec::on("two"))?;
    let mut bytes = vec![7; length];
    operations_by_thread(&region, (count / 10 + 1, kind), &mut bytes)?;
    let begin = Instant::now();
    operations_by_thread(&region, (count, kind), &mut bytes)?;
    println!("{:.0} ns each", begin.elapsed().as_nanos() as f64 / count as f64);
    Ok(())
}
