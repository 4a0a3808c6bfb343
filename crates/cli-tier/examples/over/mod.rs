//! Nodes that run as commands of this machine, for programs that use them over a network.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, Tier};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Nothing takes so long, in a guest without KVM either.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A process that ends with this value.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats an attempt until it gives a value.
pub(crate) fn wait<T>(what: &str, mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if begin.elapsed() > HANG => return Err(format!("{what}: {error}").into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Fails with the first place where bytes differ.
pub(crate) fn same(bytes: &[u8], expected: &[u8]) -> Outcome {
    match bytes.iter().zip(expected).position(|(one, other)| one != other) {
        Some(place) => Err(format!("byte {place} is {}, not {}", bytes[place], expected[place]).into()),
        None if bytes.len() == expected.len() => Ok(()),
        None => Err(format!("{} bytes, not {}", bytes.len(), expected.len()).into()),
    }
}

/// Nodes of a list, and the commands that start them.
pub(crate) struct Cluster {
    dunlin: PathBuf,
    tag: String,
    peers: PathBuf,
}

impl Cluster {
    /// Reads the words of the program, PREFIX and perhaps the path of `dunlin`. The list has a node at each port behind
    /// the prefix.
    pub(crate) fn new(program: &str, nodes: &[(&str, u16)]) -> Outcome<(Cluster, String)> {
        let mut words = std::env::args().skip(1);
        let prefix = words.next().ok_or("give an address without its port")?;
        let dunlin = words.next().map_or_else(|| PathBuf::from("dunlin"), PathBuf::from);
        let tag = format!("{program}-{}", std::process::id());
        let peers = std::env::temp_dir().join(&tag);
        let list: String = nodes.iter().map(|(node, port)| format!("{node} {prefix}:{port}\n")).collect();
        std::fs::write(&peers, list)?;
        Ok((Cluster { dunlin, tag, peers }, prefix))
    }

    /// Returns the address of another service of the cluster on shared memory.
    pub(crate) fn attach_name(&self, node: &str) -> String {
        format!("shm:{}-{node}", self.tag)
    }

    pub(crate) fn start(&self, words: &[&str]) -> Outcome<Ended> {
        let child = Command::new(&self.dunlin).arg("node").args(words).stdout(Stdio::null()).spawn();
        Ok(Ended(child.map_err(|error| format!("{}: {error}", self.dunlin.display()))?))
    }

    pub(crate) fn node(&self, node: &str, keeper: Option<&str>) -> Outcome<Ended> {
        let (peers, attach) = (self.peers.display().to_string(), self.attach_name(node));
        let mut words = vec!["run", "--peers", &peers, "--name", node, "--attach", &attach];
        words.extend(["--memory", "32MiB"]);
        words.extend(keeper.map(|keeper| ["--keeper", keeper]).into_iter().flatten());
        self.start(&words)
    }

    pub(crate) fn attach(&self, node: &str) -> Outcome<Tier> {
        let fabric = ShmFabric::new(ShmConfig::default())?;
        let address: Address = self.attach_name(node).parse()?;
        assert_eq!(address.scheme(), Scheme::Shm);
        let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address) };
        wait("a node", || Ok(Tier::attach_with(&fabric, config.clone())?))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nobody else removes it.
        let _ = std::fs::remove_file(&self.peers);
    }
}
