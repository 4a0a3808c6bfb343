//! Processes of one host share a region through the node of the host. This example runs the node in its main process,
//! in the place of `dunlin node run`.
//!
//! `cargo run --release --example attached`

use dunlin::fabric::shm;
use dunlin::tier::{Peer, ProcessConfig, ProcessServer, Rights, Spec, TierConfig};
use dunlin::tier_client::Tier;
use std::process::Command;

fn worker(node: &str) -> anyhow::Result<()> {
    let tier = Tier::attach(&node.parse()?)?;
    let region = tier.map("example/counter", Rights::READ.with(Rights::WRITE))?;
    for _ in 0..500 {
        region.fetch_add(0, 1)?;
    }
    // The handle ends with the process.
    std::process::abort();
}

fn main() -> anyhow::Result<()> {
    if let Some(node) = std::env::args().nth(1) {
        return worker(&node);
    }
    let name = format!("shm:example-{}", std::process::id());
    let (peer, attach) = (Peer::at("node", name.parse()?)?, format!("{name}-attach"));
    let node = dunlin::tier::Tier::within(&shm()?, TierConfig::new(vec![peer], "node"))?;
    let processes = ProcessServer::serve(&shm()?, &node, ProcessConfig::new(attach.parse()?))?;

    let tier = Tier::attach(&attach.parse()?)?;
    let region = tier.malloc(1 << 20, Spec::here().named("example/counter"))?;
    region.write(64, b"hello")?;
    let worker = || Command::new(std::env::current_exe()?).arg(&attach).spawn();
    for mut worker in [worker()?, worker()?] {
        worker.wait()?;
    }
    let mut text = [0; 5];
    region.read(64, &mut text)?;
    println!("{} after {} increments", String::from_utf8_lossy(&text), region.fetch_add(0, 0)?);
    println!("{} has {} on {}", tier.principal(), region.rights(), tier.node());
    region.free()?;
    drop((tier, processes));
    Ok(())
}
