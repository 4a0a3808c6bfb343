//! All operations of the memory tier on a network, checked by bytes: by three nodes of this process, and by processes that
//! are attached to three nodes of the command `dunlin`. A test that `tests/ofi/suite` and `tests/guest/suite` run.
//!
//! `tier_over PREFIX [DUNLIN]`: PREFIX is an address without its port, for example `ofi:tcp:127.0.0.1`; ports from 7130 to
//! 7149 follow.

#[macro_use]
#[path = "over/operations.rs"]
mod operations;
mod over;

use dunlin::{Fabrics, on_fabric};
use dunlin_fabric::Fabric;
use dunlin_tier_client::Rights;
use dunlin_tier_node::{Peer, Tier, TierConfig};
use operations::{NAMES, nodes, pattern, processes};
use over::{Cluster, HANG, Outcome, same, wait};

/// The ports of the nodes that are commands. Those of the nodes of this process follow.
const PORTS: [u16; 3] = [7130, 7133, 7136];
const BUFFER: usize = 100_000;

/// Bytes that go from and into a buffer of each node.
fn node_buffers<F: Fabric>(tiers: [&Tier<F>; 3], shared: &mut nodes::Shared<F>) -> Outcome {
    for (user, tier) in tiers.into_iter().enumerate() {
        let mut buffer = tier.buffer(BUFFER)?;
        let bytes = pattern(user + 40, BUFFER);
        buffer.copy_from_slice(&bytes);
        shared.views[user].write_from(user as u64 + 11, &mut buffer, ..)?;
        same(&buffer, &bytes)?;
        shared.set(user + 11, &bytes);
        shared.check()?;
        shared.views[user].read_into(120_001, &mut buffer, 100..70_100)?;
        same(&buffer[100..70_100], &shared.model[120_001..190_001])?;
        same(&buffer[..100], &bytes[..100])?;
        same(&buffer[70_100..], &bytes[70_100..])?;
    }
    Ok(())
}

/// The same, with buffers of attached processes.
fn process_buffers(
    tiers: [&dunlin_tier_client::Tier; 3],
    shared: &mut processes::Shared<dunlin_fabric_shm::ShmFabric>,
) -> Outcome {
    for (user, tier) in tiers.into_iter().enumerate() {
        let mut buffer = tier.buffer(BUFFER)?;
        let bytes = pattern(user + 40, BUFFER);
        buffer.copy_in(0, &bytes)?;
        shared.views[user].write_from(user as u64 + 11, &mut buffer, ..)?;
        shared.set(user + 11, &bytes);
        shared.check()?;
        let mut expected = bytes;
        expected[100..70_100].copy_from_slice(&shared.model[120_001..190_001]);
        wait("the bytes of a buffer", || {
            shared.views[user].read_into(120_001, &mut buffer, 100..70_100)?;
            let mut found = vec![0; BUFFER];
            buffer.copy_out(0, &mut found)?;
            same(&found, &expected)
        })?;
    }
    Ok(())
}

/// Runs all operations by nodes of this process.
fn in_process<F: Fabric>(fabric: &F, prefix: &str) -> Outcome {
    let peer = |(name, port): (&str, u16)| -> Outcome<Peer> {
        Ok(Peer::at(name, format!("{prefix}:{}", port + 9).parse()?)?)
    };
    let list: Vec<Peer> = NAMES.into_iter().zip(PORTS).map(peer).collect::<Outcome<_>>()?;
    let start = |name: &str| {
        let settings = TierConfig::new(list.clone(), name);
        Tier::within(fabric, TierConfig { memory: 32 << 20, timeout: HANG / 4, ..settings })
    };
    let tiers = [start(NAMES[0])?, start(NAMES[1])?, start(NAMES[2])?];
    let tiers = tiers.each_ref();
    println!("K = {}: {}", tiers[0].path_count().count, tiers[0].path_count().reason);
    nodes::run(tiers, |shared| node_buffers(tiers, shared))
}

fn main() -> Outcome {
    let listed: Vec<(&str, u16)> = NAMES.into_iter().zip(PORTS).collect();
    let (cluster, prefix) = Cluster::new("tier-over", &listed)?;
    let chosen = Fabrics::global().choose(&format!("{prefix}:{}", PORTS[0]).parse()?)?;
    on_fabric!(&chosen, fabric => in_process(fabric, &prefix)?);

    let _nodes =
        [cluster.node(NAMES[0], None)?, cluster.node(NAMES[1], None)?, cluster.node(NAMES[2], None)?];
    let tiers = [cluster.attach(NAMES[0])?, cluster.attach(NAMES[1])?, cluster.attach(NAMES[2])?];
    let tiers = tiers.each_ref();
    // A node that does not listen yet refuses the connection of another one.
    wait("the nodes", || {
        let spec = |node: &str| dunlin_tier_client::Spec::spread(NAMES).named(format!("over/ready/{node}"));
        tiers.iter().zip(NAMES).try_for_each(|(tier, node)| {
            let made = tier.malloc(4096, spec(node))?;
            made.write(0, &[1])?;
            Ok(tier.map(format!("over/ready/{node}"), Rights::MASTER)?.free()?)
        })
    })?;
    processes::run(tiers, |shared| process_buffers(tiers, shared))
}
