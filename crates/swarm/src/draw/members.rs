//! The draw of runs of membership: nodes that join, leave, die and are cut off, and a directory that ends and begins
//! again. Drawn apart, so that no seed of other runs changes.

use super::tier::{DrawnTier, TierAct, name};
use dunlin_fabric::{Address, Nanos, Scheme};
use dunlin_fabric_sim::{Faults, History, MachineSettings, Random};
use dunlin_tier_node::{DirectoryConfig, Peer, TierConfig};
use std::fmt;
use std::time::Duration;

const MILLISECOND: Nanos = 1_000_000;

/// The description of a run of membership.
#[derive(Clone, Debug)]
pub(crate) struct DrawnMembers {
    /// The nodes, and their disturbances. The directory has the machine after theirs.
    pub(crate) tier: DrawnTier,
    pub(crate) directory: DirectoryConfig,
}

impl DrawnMembers {
    pub(crate) fn from_seed(seed: u64, history: Option<History>) -> Self {
        let mut random = Random::new(seed, 45);
        let mut tier = DrawnTier::from_seed(seed, history);
        tier.settings.machines = vec![MachineSettings::default(); tier.nodes + 1];
        tier.settings.faults = Faults::default();
        let lease = (40 + random.below(160)) * MILLISECOND;
        let directory = DirectoryConfig {
            lease: Duration::from_nanos(lease),
            gather: Duration::from_nanos(lease + random.below(100) * MILLISECOND),
            max_nodes: 16,
            ..DirectoryConfig::default()
        };
        tier.config.beat = Duration::from_nanos(lease / (3 + random.below(5)));
        tier.config.max_nodes = directory.max_nodes;
        // As short as it can be.
        tier.config.orphan_after = tier.config.timeout;
        tier.config.directory = Address::new(Scheme::Sim, "directory").ok();
        tier.lasts = (600 + random.below(1400)) * MILLISECOND;
        tier.think = (1 + random.below(10)) * MILLISECOND;
        tier.acts = acts(&mut random, tier.nodes, tier.lasts);
        DrawnMembers { tier, directory }
    }

    /// As [`from_seed`](DrawnMembers::from_seed), for threads that call each other, take locks and meet: they pause for a
    /// shorter time, and in some runs nothing disturbs them.
    pub(crate) fn coordinating(seed: u64, history: Option<History>) -> Self {
        let mut drawn = DrawnMembers::from_seed(seed, history);
        // Drawn apart, so that the runs of membership stay as they are.
        let mut random = Random::new(seed, 48);
        drawn.tier.lasts = (300 + random.below(700)) * MILLISECOND;
        drawn.tier.think = 300_000 + random.below(4 * MILLISECOND);
        let most = if random.one_in(8) { 0 } else { 5 };
        drawn.tier.acts = acts(&mut random, drawn.tier.nodes, drawn.tier.lasts);
        drawn.tier.acts.truncate(most);
        drawn
    }

    /// Returns the time after which all nodes know of a death, and of the next directory.
    pub(crate) fn settles(&self) -> Nanos {
        let DirectoryConfig { lease, gather, .. } = self.directory;
        (2 * lease + gather + 2 * self.tier.config.beat).as_nanos() as Nanos
    }

    /// Returns the settings of a node, which knows nobody but the directory.
    pub(crate) fn config_of(&self, node: usize) -> TierConfig {
        let nodes = Peer::named(Scheme::Sim, &name(node)).into_iter().collect();
        TierConfig { nodes, ..self.tier.config_of(node) }
    }
}

/// Draws one to five disturbances.
fn acts(random: &mut Random, nodes: usize, lasts: Nanos) -> Vec<(Nanos, TierAct)> {
    let mut acts: Vec<(Nanos, TierAct)> = (0..=random.below(5))
        .map(|_| {
            let node = random.below(nodes as u64) as usize;
            // Shorter and longer than a lease.
            let time = random.below(400) * MILLISECOND;
            let act = match random.below(5) {
                0 => TierAct::Crash { node, back_after: time },
                1 => TierAct::Leave { node, back_after: time },
                2 => TierAct::EndDirectory { back_after: time },
                // The directory's machine, too.
                3 => TierAct::CutOff { node: random.below(nodes as u64 + 1) as usize, lasts: time },
                _ => TierAct::CutOff { node, lasts: time },
            };
            (random.below(lasts), act)
        })
        .collect();
    acts.sort_by_key(|(at, _)| *at);
    acts
}

impl fmt::Display for DrawnMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes with a directory, {} threads each, leases of {} ms, reports every {} ms, views gathered for {} ms, for {} \
             ms; acts {:?}",
            self.tier.nodes,
            self.tier.actors,
            self.directory.lease.as_millis(),
            self.tier.config.beat.as_millis(),
            self.directory.gather.as_millis(),
            self.tier.lasts / MILLISECOND,
            self.tier.acts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_have_each_disturbance() {
        let drawn: Vec<_> = (0..200).map(|seed| DrawnMembers::from_seed(seed, None)).collect();
        let count = |which: fn(&DrawnMembers, &TierAct) -> bool| {
            let has = |one: &&DrawnMembers| one.tier.acts.iter().any(|(_, act)| which(one, act));
            drawn.iter().filter(has).count()
        };
        assert!(count(|_, act| matches!(act, TierAct::Crash { .. })) > 50);
        assert!(count(|_, act| matches!(act, TierAct::Leave { .. })) > 50);
        assert!(count(|_, act| matches!(act, TierAct::EndDirectory { .. })) > 50);
        assert!(
            count(|one, act| matches!(act, TierAct::CutOff { node, .. } if *node == one.tier.nodes)) > 10
        );
        assert!(count(|_, act| matches!(act, TierAct::CutOff { .. })) > 50);
    }
}
