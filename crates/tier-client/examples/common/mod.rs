//! The common parts of the measurements: two nodes on shared memory, each in a process of its own.

use dunlin_fabric::{Address, AddressError, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, Tier};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, TierConfig};
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NODES: [&str; 2] = ["one", "two"];

/// Returns the address of a part of this run.
pub(crate) fn address(tag: &str, part: &str) -> Result<Address, AddressError> {
    Address::new(Scheme::Shm, &format!("latency-{tag}-{part}"))
}

/// Returns a fabric on shared memory.
pub(crate) fn fabric() -> Result<ShmFabric, Box<dyn Error>> {
    Ok(ShmFabric::new(ShmConfig::default())?)
}

/// Repeats an attempt until it works.
pub(crate) fn wait<T, E>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    loop {
        if let Ok(value) = attempt() {
            return value;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Attaches this process to a node.
pub(crate) fn attach(
    tag: &str,
    node: &str,
    change: impl FnOnce(&mut AttachConfig),
) -> Result<Tier, Box<dyn Error>> {
    let (fabric, mut config) = (fabric()?, AttachConfig::new(address(tag, &format!("{node}-attach"))?));
    change(&mut config);
    Ok(wait(|| Tier::attach_with(&fabric, config.clone())))
}

/// The part of a child that is a node. It ends with its parent, which has the other end of its standard input.
pub(crate) fn node(tag: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let peers = NODES.map(|node| Peer::at(node, address(tag, node)?));
    let peers = peers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let fabric = fabric()?;
    let tier = dunlin_tier_node::Tier::within(&fabric, TierConfig::new(peers, name))?;
    let attach = address(tag, &format!("{name}-attach"))?;
    let _processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(attach))?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// Starts this program as a child with a role. Its standard input is a pipe.
pub(crate) fn start(tag: &str, role: &str) -> std::io::Result<Ended> {
    Command::new(std::env::current_exe()?).args([tag, role]).stdin(Stdio::piped()).spawn().map(Ended)
}

/// Runs an operation many times, and adds its times.
pub(crate) fn sample<E>(
    times: &mut Vec<Duration>,
    rounds: usize,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    for _ in 0..rounds {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed());
    }
    Ok(())
}

/// Prints and returns the median and the 99th percentile of times.
pub(crate) fn print(what: &str, times: &mut [Duration]) -> [Duration; 2] {
    times.sort();
    let (median, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{what:<52} {:>9.2} us  p99 {:>9.2} us", median.as_secs_f64() * 1e6, late.as_secs_f64() * 1e6);
    [median, late]
}

/// A child that ends with this value.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
