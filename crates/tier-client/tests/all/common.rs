//! Nodes with a service for processes, and processes.

use crate::nodes::start;
pub(crate) use crate::nodes::{HANG, attach_address, config, fabric};
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmFabric, ShmKeeper};
use dunlin_tier_client::{AttachConfig, Lmr, OperationError, Tier};
use dunlin_tier_node::{JoinError, ProcessConfig, ProcessServer, TierConfig};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A node of this process that serves processes.
pub(crate) struct Serving {
    pub(crate) address: Address,
    // Ends before the node.
    pub(crate) processes: ProcessServer<ShmFabric>,
    pub(crate) node: dunlin_tier_node::Tier<ShmFabric>,
}

pub(crate) fn serve(config: TierConfig, tag: &str, change: impl FnOnce(&mut ProcessConfig)) -> Serving {
    let (address, processes, node) = start(config, tag, change);
    Serving { address, processes, node }
}

/// The address of the keeper of a node.
pub(crate) fn keeper_address(tag: &str, node: &str) -> Address {
    Address::new(Scheme::Shm, &format!("tier-test-{tag}-{node}-keeper")).unwrap()
}

/// A node of this process whose memory a keeper has.
pub(crate) fn serve_kept(
    config: TierConfig,
    tag: &str,
    change: impl FnOnce(&mut ProcessConfig),
) -> Result<Serving, JoinError> {
    let (fabric, address) = (fabric(), attach_address(tag, &config.node));
    let keeper = ShmKeeper::connect(&keeper_address(tag, &config.node), Duration::from_secs(10))?;
    let node = dunlin_tier_node::Tier::within_kept(&fabric, config, Box::new(keeper))?;
    let mut processes = ProcessConfig::new(address.clone());
    change(&mut processes);
    let processes = ProcessServer::serve(&fabric, &node, processes)?;
    Ok(Serving { address, processes, node })
}

/// Returns the number in a variable of the environment, or `usual`.
pub(crate) fn count(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

pub(crate) fn tag(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}

/// Attaches, with time enough that a hang is a hang of the test.
pub(crate) fn attach(address: &Address) -> Tier {
    let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address.clone()) };
    Tier::attach_with(&fabric(), config).unwrap()
}

/// Repeats an attempt until it gives a value.
#[track_caller]
pub(crate) fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(begin.elapsed() < HANG, "no end of waiting: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn bytes_of(region: &Lmr) -> Result<Vec<u8>, OperationError> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes)?;
    Ok(bytes)
}

/// A process of this program that runs one test, and is killed with this value.
pub(crate) struct Child(pub(crate) std::process::Child);

impl Child {
    /// Starts it. The variables of the environment tell the test its role.
    pub(crate) fn start(test: &str, variables: &[(&str, &str)]) -> Child {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Child(child)
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
