//! The draw of deployments: two or three servers with a common schedule (ScaleRPC section 4.2), whose clocks differ, and
//! clients that call all of them in each step. These runs are drawn apart from those of one server, so that no seed of
//! those changes.

use super::{LONG_TIMEOUT, UNTIL, lease, settings};
use dunlin_fabric::Nanos;
use dunlin_fabric_sim::{ChanceTiming, Faults, History, MachineSettings, Random, Settings, TimingSettings};
use dunlin_rpc::{ClientConfig, CompletionMode, Plan, ServerConfig};
use std::fmt;
use std::time::Duration;

/// A disturbance of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeploymentAct {
    /// Kills the process of a server, which is the time server in many runs; a new one listens after `back_after`.
    CrashServer { server: usize, back_after: Nanos },
    /// Kills a client's process and starts another in its place.
    CrashClient(usize),
}

/// The description of a run of several servers.
#[derive(Clone, Debug)]
pub(crate) struct DrawnDeployment {
    pub(crate) seed: u64,
    /// The first machines are the servers', one each.
    pub(crate) settings: Settings,
    pub(crate) servers: usize,
    pub(crate) server: ServerConfig,
    pub(crate) group: u16,
    pub(crate) slice: Nanos,
    /// The time between two questions to the time server.
    pub(crate) interval: Nanos,
    /// The clients, each with its machine.
    pub(crate) clients: Vec<usize>,
    pub(crate) plan: Plan,
    /// The time between two steps of a client.
    pub(crate) think: Nanos,
    /// Disturbances with their times since the start, in order.
    pub(crate) acts: Vec<(Nanos, DeploymentAct)>,
}

/// Intervals in which servers and clients are killed.
const ACTS_WITHIN: Nanos = 25;
/// The shortest slice in which servers have to agree: by the drawn times of messages, clocks are known to some
/// microseconds.
const AGREED_FROM: Nanos = 100_000;

impl DrawnDeployment {
    pub(crate) fn from_seed(seed: u64, history: Option<History>) -> Self {
        let mut random = Random::new(seed, 30);
        let servers = 2 + random.below(2) as usize;
        let machines = (0..servers + 2).map(|machine| MachineSettings {
            cores: None,
            clock_offset: if machine < servers { random.below(1_000_000_000) } else { 0 },
            clock_drift: if machine < servers { random.below(200) } else { 0 },
        });
        let mut drawn = Settings { machines: machines.collect(), history, ..Settings::default() };
        drawn.limit = drawn.start + 60_000_000_000;
        drawn.timing = TimingSettings::Chance(ChanceTiming {
            latency: 100 + random.below(2000),
            jitter: random.below(3000),
            landing: random.below(2000),
        });
        (drawn.spurious, drawn.preemption) = (random.below(20), random.below(12));
        if random.one_in(2) {
            // The faults of other runs, less lost messages: their retransmission takes several intervals.
            let Settings { faults, .. } = settings(&mut Random::new(seed, 31), drawn.capabilities.clone());
            drawn.faults = Faults { loss: 0, until: drawn.start + UNTIL, ..faults };
        }
        let modes = [CompletionMode::Busy, CompletionMode::Busy, CompletionMode::Event];
        let capabilities = &mut drawn.capabilities;
        let mode = modes[random.below(3) as usize];
        capabilities.write_wakes |= mode == CompletionMode::Event;
        let plan = loop {
            if let Some(plan) = lease(&mut random, capabilities, mode) {
                break plan;
            }
        };
        let slice = match random.below(4) {
            0 => 20_000 + random.below(80_000),
            _ => AGREED_FROM + random.below(400_000),
        };
        let group = 1 + random.below(2) as u16;
        let server = ServerConfig {
            workers: 1 + random.below(2) as u16,
            group_size: Some(group),
            group_slice: Some(Duration::from_nanos(slice)),
            group_priorities: random.one_in(2),
            hello_timeout: Duration::from_millis(20),
            spin: Duration::from_nanos(random.below(40_000)),
            ..ServerConfig::default()
        };
        let interval = 1_000_000 * (1 + random.below(2));
        let clients: Vec<usize> =
            (0..2 + random.below(4)).map(|_| servers + random.below(2) as usize).collect();
        let acts = acts(&mut random, (servers, clients.len()), interval);
        let think = 50_000 + random.below(250_000);
        DrawnDeployment {
            seed,
            settings: drawn,
            servers,
            server,
            group,
            slice,
            interval,
            clients,
            plan,
            think,
            acts,
        }
    }

    /// Returns whether servers must be seen to serve one group at a time, which they do if there are several, for slices
    /// that are long beside the times of messages.
    pub(crate) fn must_agree(&self) -> bool {
        self.clients.len() * 2 > usize::from(self.group) * 3 && self.slice >= AGREED_FROM
    }

    /// Returns whether nothing disturbs the run.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.acts.is_empty() && self.settings.faults == Faults::default()
    }

    /// Returns the settings of a client. The same identity at all servers puts it into the same group.
    pub(crate) fn client(&self, index: usize) -> ClientConfig {
        ClientConfig {
            identity: Some(1 + index as u64),
            timeout: LONG_TIMEOUT,
            connect_timeout: Duration::from_millis(50),
            ..ClientConfig::with_plan(self.plan)
        }
    }
}

/// Draws up to two disturbances, for two of three runs. The first server, which leads first, is killed in half of those.
fn acts(
    random: &mut Random,
    (servers, clients): (usize, usize),
    interval: Nanos,
) -> Vec<(Nanos, DeploymentAct)> {
    let mut acts: Vec<(Nanos, DeploymentAct)> = (0..random.below(3))
        .map(|_| {
            let act = match random.below(4) {
                0 => DeploymentAct::CrashClient(random.below(clients as u64) as usize),
                kind => DeploymentAct::CrashServer {
                    server: if kind == 1 { random.below(servers as u64) as usize } else { 0 },
                    back_after: random.below(20) * interval,
                },
            };
            (random.below(ACTS_WITHIN) * interval, act)
        })
        .collect();
    acts.sort_by_key(|(at, _)| *at);
    acts
}

impl fmt::Display for DrawnDeployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} servers with a common schedule, clocks", self.servers)?;
        for machine in &self.settings.machines[..self.servers] {
            write!(f, " +{} us ({} ppm)", machine.clock_offset / 1000, machine.clock_drift)?;
        }
        write!(
            f,
            "; groups of {} for {} us, {} clients by {:?}, a question each {} us; acts {:?}; faults {:?}",
            self.group,
            self.slice / 1000,
            self.clients.len(),
            self.plan.response,
            self.interval / 1000,
            self.acts,
            self.settings.faults
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough runs have each kind: time servers that die, runs without disturbance, and servers that have to agree.
    #[test]
    fn many_deployments_are_of_each_kind() {
        let drawn: Vec<_> = (0..300).map(|seed| DrawnDeployment::from_seed(seed, None)).collect();
        let count = |which: &dyn Fn(&DrawnDeployment) -> bool| drawn.iter().filter(|one| which(one)).count();
        let leader_dies = |one: &DrawnDeployment| {
            one.acts.iter().any(|(_, act)| matches!(act, DeploymentAct::CrashServer { server: 0, .. }))
        };
        assert!(count(&leader_dies) > 60);
        assert!(count(&|one| one.is_undisturbed()) > 30);
        assert!(count(&|one| one.must_agree()) > 120);
        assert!(count(&|one| one.servers == 3) > 100);
        assert!(count(&|one| one.settings.faults != Faults::default()) > 100);
        let apart = |one: &DrawnDeployment| {
            let offsets = one.settings.machines[..one.servers].iter().map(|machine| machine.clock_offset);
            offsets.clone().max().unwrap_or(0) - offsets.min().unwrap_or(0) > 100_000_000
        };
        assert!(count(&apart) > 200);
    }
}
