//! Nodes with a service for processes: for all test programs of this crate.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::time::{Duration, Instant};

/// No test takes so long: it hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

pub(crate) fn attach_address(tag: &str, node: &str) -> Address {
    Address::new(Scheme::Shm, &format!("tier-test-{tag}-{node}-attach")).unwrap()
}

/// Settings of a node of a list.
pub(crate) fn config(tag: &str, nodes: &[&str], node: &str) -> TierConfig {
    let peer = |name: &&str| {
        let mut peer = Peer::named(Scheme::Shm, &format!("test-{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(nodes.iter().map(peer).collect(), node);
    config.memory = 8 << 20;
    config
}

/// Starts a node of this process that serves processes. The service ends before the node.
pub(crate) fn start(
    config: TierConfig,
    tag: &str,
    change: impl FnOnce(&mut ProcessConfig),
) -> (Address, ProcessServer<ShmFabric>, Tier<ShmFabric>) {
    let fabric = fabric();
    let address = attach_address(tag, &config.node);
    let node = once_free(|| Tier::within(&fabric, config.clone()));
    let mut processes = ProcessConfig::new(address.clone());
    change(&mut processes);
    let processes = once_free(|| ProcessServer::serve(&fabric, &node, processes.clone()));
    (address, processes, node)
}

/// Starts a server at an address that another one has just left. A child that a test of this program starts meanwhile
/// has the address, too, until it runs its own program.
fn once_free<T, E: std::fmt::Debug>(start: impl Fn() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match start() {
            Ok(started) => return started,
            Err(error) => {
                assert!(format!("{error:?}").contains("InUse") && begin.elapsed() < HANG, "{error:?}");
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
