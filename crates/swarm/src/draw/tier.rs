//! The draw of runs of the memory tier: nodes on machines of their own, threads that make, map, write, move and free
//! regions, and nodes that are killed or cut off. These runs are drawn apart from those of calls, so that no seed of those
//! changes.

use dunlin_fabric::{Atomics, Nanos, Scheme};
use dunlin_fabric_sim::{ChanceTiming, Faults, History, MachineSettings, Random, Settings, TimingSettings};
use dunlin_tier_node::{Peer, TierConfig};
use std::fmt;
use std::time::Duration;

/// A disturbance of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierAct {
    /// Kills the process of a node with its threads; a new one of the same name begins after `back_after`, without memory
    /// unless a keeper has it.
    Crash { node: usize, back_after: Nanos },
    /// Cuts a node's machine off from all others.
    CutOff { node: usize, lasts: Nanos },
    /// Has a node leave in good order; a new process of the same name begins after `back_after`. In runs of membership.
    Leave { node: usize, back_after: Nanos },
    /// Kills the directory; the next one begins after `back_after`. In runs of membership.
    EndDirectory { back_after: Nanos },
}

impl TierAct {
    /// Returns how long it lasts, without its consequences.
    pub(crate) fn lasts(self) -> Nanos {
        match self {
            TierAct::Crash { back_after, .. }
            | TierAct::Leave { back_after, .. }
            | TierAct::EndDirectory { back_after } => back_after,
            TierAct::CutOff { lasts, .. } => lasts,
        }
    }
}

/// The description of a run of the memory tier.
#[derive(Clone, Debug)]
pub(crate) struct DrawnTier {
    pub(crate) seed: u64,
    /// One machine for each node.
    pub(crate) settings: Settings,
    pub(crate) nodes: usize,
    /// The threads of each node that use regions.
    pub(crate) actors: usize,
    /// The settings of a node, without its name.
    pub(crate) config: TierConfig,
    /// Keepers hold the memory of nodes, so that regions outlive them.
    pub(crate) is_kept: bool,
    /// The bytes of each thread in a region.
    pub(crate) slot: usize,
    /// The most regions at a time.
    pub(crate) regions: usize,
    /// The longest pause of a thread between two operations.
    pub(crate) think: Nanos,
    /// How long the threads go on.
    pub(crate) lasts: Nanos,
    /// Threads take the right to write away from nodes.
    pub(crate) revokes: bool,
    /// Disturbances with their times since the start, in order.
    pub(crate) acts: Vec<(Nanos, TierAct)>,
}

impl DrawnTier {
    pub(crate) fn from_seed(seed: u64, history: Option<History>) -> Self {
        let mut random = Random::new(seed, 40);
        let nodes = 2 + random.below(3) as usize;
        let mut settings =
            Settings { machines: vec![MachineSettings::default(); nodes], history, ..Settings::default() };
        settings.limit = settings.start + 120_000_000_000;
        let latency = 400 + random.below(2000);
        // A WRITE is in its place before a later request to the same bytes can arrive, as with an RNIC.
        let landing = random.below(latency / 10);
        settings.timing =
            TimingSettings::Chance(ChanceTiming { latency, jitter: random.below(3000), landing });
        (settings.spurious, settings.preemption) = (random.below(20), random.below(12));
        settings.capabilities.atomics = Atomics::of_device(!random.one_in(4));
        settings.capabilities.in_order_write &= !random.one_in(4);
        let lasts = 4_000_000 + random.below(16_000_000);
        if random.one_in(2) {
            let mut rate =
                |often: u64, range: u64| if random.one_in(3) { often + random.below(range) } else { 0 };
            let faults = Faults {
                delay: rate(20, 300),
                queue_pair_error: rate(100, 2000),
                not_ready: rate(5, 100),
                refusal: rate(5, 100),
                stall: rate(50, 500),
                until: settings.start + lasts,
                ..Faults::default()
            };
            settings.faults =
                Faults { delay_by: random.below(100_000), stall_by: random.below(500_000), ..faults };
        }
        let peers = (0..nodes).filter_map(|node| Peer::named(Scheme::Sim, &name(node)).ok()).collect();
        let config = TierConfig {
            memory: 1 << 17,
            piece: 4096 << random.below(3),
            step: 256 << random.below(8),
            paths: 1 + random.below(3) as u16,
            timeout: Duration::from_millis(60 + random.below(200)),
            stop_timeout: Duration::from_millis(1 + random.below(10)),
            ..TierConfig::new(peers, &name(0))
        };
        let acts = acts(&mut random, nodes, lasts);
        // Drawn apart, so that the other runs stay as they are.
        let revokes = Random::new(seed, 43).one_in(3);
        DrawnTier {
            seed,
            settings,
            nodes,
            actors: 1 + random.below(2) as usize,
            config,
            // Drawn apart, by a stream that changes no seed which has found a bug.
            is_kept: Random::new(seed, 184).one_in(3),
            slot: 64 << random.below(6),
            regions: 1 + random.below(5) as usize,
            think: 2_000 + random.below(150_000),
            lasts,
            revokes,
            acts,
        }
    }

    /// Draws a run of memory. Half of the runs with two nodes end with a death; drawn apart, so that the others stay as they
    /// are.
    pub(crate) fn of_memory(seed: u64, history: Option<History>) -> Self {
        let (mut drawn, mut random) = (DrawnTier::from_seed(seed, history), Random::new(seed, 191));
        // As short as it can be.
        drawn.config.orphan_after = drawn.config.timeout;
        if drawn.nodes == 2 && random.one_in(2) { drawn.with_death_at_the_end(&mut random) } else { drawn }
    }

    /// Has it end with the death of a node with a keeper, under long operations of several threads: they are under way over
    /// paths of which some are not used again, and the regions live on.
    fn with_death_at_the_end(mut self, random: &mut Random) -> Self {
        self.lasts = 3_000_000 + random.below(3_000_000);
        self.settings.faults.until = self.settings.start + self.lasts;
        let node = random.below(self.nodes as u64) as usize;
        self.acts = vec![(self.lasts, TierAct::Crash { node, back_after: random.below(20_000) })];
        (self.is_kept, self.actors, self.think) = (true, 6, 1_000);
        // An operation on a whole region has more parts than a path has under way.
        (self.regions, self.slot, self.config.step, self.config.paths) = (4, 1024, 64, 6);
        self
    }

    /// Returns the settings of a node. Its principal has its name.
    pub(crate) fn config_of(&self, node: usize) -> TierConfig {
        TierConfig { node: name(node), principal: name(node), ..self.config.clone() }
    }

    /// Returns whether nothing disturbs the run.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.acts.is_empty() && self.settings.faults == Faults::default()
    }

    /// Returns the longest time of an operation: its own, that of requests which began just before its end, and of a free
    /// or a move whose mappers have to stop.
    pub(crate) fn patience(&self) -> Nanos {
        let timeout = self.config.timeout + 2 * self.config.stop_timeout;
        2 * timeout.as_nanos() as Nanos + 1_000_000_000
    }
}

/// Returns the name of a node.
pub(crate) fn name(node: usize) -> String {
    format!("n{node}")
}

/// Draws up to three disturbances, for three of four runs.
fn acts(random: &mut Random, nodes: usize, lasts: Nanos) -> Vec<(Nanos, TierAct)> {
    let mut acts: Vec<(Nanos, TierAct)> = (0..random.below(4))
        .map(|_| {
            let node = random.below(nodes as u64) as usize;
            let act = match random.below(2) {
                0 => TierAct::Crash { node, back_after: random.below(4_000_000) },
                _ => TierAct::CutOff { node, lasts: 100_000 << random.below(8) },
            };
            (random.below(lasts), act)
        })
        .collect();
    acts.sort_by_key(|(at, _)| *at);
    acts
}

impl fmt::Display for DrawnTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes of the tier with {} threads each, {} regions with {} bytes a thread, pieces of {}, {} paths, {} us to \
             stop, {} atomics, {} revocations, {}, for {} us; acts {:?}; faults {:?}",
            self.nodes,
            self.actors,
            self.regions,
            self.slot,
            self.config.piece,
            self.config.paths,
            self.config.stop_timeout.as_micros(),
            if self.settings.capabilities.atomics.exist() { "with" } else { "without" },
            if self.revokes { "with" } else { "without" },
            if self.is_kept { "kept" } else { "not kept" },
            self.lasts / 1000,
            self.acts,
            self.settings.faults
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough runs have each kind: nodes that die, nodes that are cut off, faults, and none of these.
    #[test]
    fn many_runs_are_of_each_kind() {
        let drawn: Vec<_> = (0..300).map(|seed| DrawnTier::of_memory(seed, None)).collect();
        let count = |which: &dyn Fn(&DrawnTier) -> bool| drawn.iter().filter(|one| which(one)).count();
        let has = |one: &DrawnTier, which: fn(&TierAct) -> bool| one.acts.iter().any(|(_, act)| which(act));
        assert!(count(&|one| has(one, |act| matches!(act, TierAct::Crash { .. }))) > 100);
        assert!(count(&|one| has(one, |act| matches!(act, TierAct::CutOff { .. }))) > 100);
        let crashes = |one: &DrawnTier| has(one, |act| matches!(act, TierAct::Crash { .. }));
        assert!(count(&|one| one.is_kept && crashes(one)) > 60);
        assert!(count(&|one| one.acts.iter().any(|(at, _)| *at == one.lasts)) > 30);
        assert!(count(&|one| one.is_undisturbed()) > 25);
        assert!(count(&|one| one.acts.is_empty() && !one.is_undisturbed()) > 25);
    }
}
