//! Two processes share a region of memory by its name. Each is a node of the memory tier; the region lies in the memory
//! of the worker, which the main process writes without the worker's processor.
//!
//! `cargo run --release --example tier`

use dunlin::fabric::{Scheme, ShmFabric, shm};
use dunlin::tier::{Peer, Rights, Spec, Tier, TierConfig};
use std::process::Command;
use std::time::Duration;

/// Repeats an attempt until it gives a value.
fn wait<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        match attempt() {
            Some(value) => return value,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Starts this process's node. All nodes have the same list.
fn join(name: &str, cluster: &str) -> anyhow::Result<Tier<ShmFabric>> {
    let peer = |name: &str| Peer::named(Scheme::Shm, &format!("{cluster}-{name}"));
    let nodes = vec![peer("main")?, peer("worker")?];
    Ok(Tier::within(&shm()?, TierConfig::new(nodes, &format!("{cluster}-{name}")))?)
}

fn worker(cluster: &str) -> anyhow::Result<()> {
    let tier = join("worker", cluster)?;
    let region = wait(|| tier.map("example/greeting", Rights::READ.with(Rights::WRITE)).ok());
    wait(|| region.compare_swap(0, 40, 42).ok().filter(|old| *old == 40));
    let mut text = [0; 27];
    region.read(64, &mut text)?;
    println!("worker reads: {}", String::from_utf8_lossy(&text));
    wait(|| region.read(0, &mut text).err());
    println!("worker: the region was freed");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    if let Some(cluster) = std::env::args().nth(1) {
        return worker(&cluster);
    }
    let cluster = format!("example-{}", std::process::id());
    let tier = join("main", &cluster)?;
    let mut worker = Command::new(std::env::current_exe()?).arg(&cluster).spawn()?;
    let spec = Spec::on(&format!("{cluster}-worker")).named("example/greeting");
    let region = wait(|| tier.malloc(1 << 20, spec.clone()).ok());
    region.write(64, b"hello from the main process")?;
    region.fetch_add(0, 40)?;
    wait(|| region.fetch_add(0, 0).ok().filter(|word| *word == 42));
    println!("the worker has changed 40 to 42");
    region.free()?;
    anyhow::ensure!(worker.wait()?.success(), "the worker failed");
    Ok(())
}
