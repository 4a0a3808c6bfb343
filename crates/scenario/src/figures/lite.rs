//! The common parts of LITE's figures: native WRITEs in closed loops, registration, and the tier with LITE's own costs.

use super::{Effort, FigureError};
use crate::tier::TierLoad;
use dunlin_rnic_model::driver::{Connection, Pick, Places, Signaling, Test, Thread, run};
use dunlin_rnic_model::{Cluster, Opcode, Parameter, Profile, Transport};

pub(super) const PROFILE: &str = "lite";
/// The tier's series.
pub(super) const TIER: &str = "the tier";

/// Native WRITEs by threads of hosts, each of which waits for its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    /// Hosts. The threads of the first write to the second if only one is active.
    pub(super) hosts: u32,
    /// Whether the threads of all hosts write to all others, each over a queue pair of its own.
    pub(super) all: bool,
    /// Threads of an active host.
    pub(super) threads: u32,
    /// Regions of a host.
    pub(super) regions: u32,
    /// Bytes of a region.
    pub(super) region_bytes: u64,
    pub(super) bytes: u32,
    pub(super) effort: Effort,
}

/// Queue pairs that a host writes over have smaller numbers than those that it is written to over.
const PASSIVE: u32 = 1 << 20;

impl Loop {
    /// Returns one thread that writes to one region of 1 MiB.
    pub(super) fn of(bytes: u32, effort: Effort) -> Loop {
        Loop { hosts: 2, all: false, threads: 1, regions: 1, region_bytes: 1 << 20, bytes, effort }
    }

    /// Returns the rate of a host in millions per second, and the time of a WRITE in its thread in microseconds:
    /// posting, waiting and polling.
    pub(super) fn run(&self) -> Result<(f64, f64), FigureError> {
        let profile = Profile::built_in(PROFILE)?;
        let active = if self.all { self.hosts } else { 1 };
        let thread = |host: u32, thread: u32| Thread {
            host,
            connections: (0..self.hosts)
                .filter(|peer| *peer != host && (self.all || *peer == 1))
                .map(|peer| Connection {
                    queue_pair: peer * self.threads + thread,
                    peer,
                    peer_queue_pair: PASSIVE + host * self.threads + thread,
                })
                .collect(),
            // A thread's own buffer, beside the regions that others write to.
            region: PASSIVE + thread,
            remote: Places::Regions { count: self.regions, bytes: self.region_bytes },
        };
        let threads: Vec<Thread> = (0..active)
            .flat_map(|host| (0..self.threads).map(move |number| (host, number)))
            .map(|(host, number)| thread(host, number))
            .collect();
        let all = threads.len() as f64;
        let outcome = run(&Test {
            cluster: Cluster::uniform(&profile, self.hosts as usize),
            threads,
            opcode: Opcode::Write,
            transport: Transport::ReliableConnection,
            bytes: self.bytes,
            inline: self.bytes <= profile.number(Parameter::InlineLimit) as u32,
            window: 1,
            signaling: Signaling::All,
            pick: Pick::Random,
            warm_up: warm_up(self.regions, self.effort),
            measured: measured(self.effort) * u64::from(self.threads * active),
        })?;
        let mops = outcome.rate / 1e6;
        Ok((mops / f64::from(active), all / mops))
    }
}

/// Returns the operations before a measurement: enough to fill the NICs' caches.
pub(super) fn warm_up(regions: u32, effort: Effort) -> u64 {
    2_000 + 2 * u64::from(regions).min(measured(effort))
}

/// Returns the measured operations of a thread.
pub(super) fn measured(effort: Effort) -> u64 {
    match effort {
        Effort::Full => 10_000,
        Effort::Quick => 1_000,
    }
}

/// Registration of memory for an RNIC, or its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registering {
    pub(super) bytes: u64,
    /// Whether the memory is deregistered.
    pub(super) ends: bool,
}

impl Registering {
    /// Returns the time in microseconds.
    pub(super) fn microseconds(self) -> Result<f64, FigureError> {
        let profile = Profile::built_in(PROFILE)?;
        let pages = self.bytes.div_ceil(profile.number(Parameter::PageBytes) as u64) as f64;
        let (once, page) = match self.ends {
            false => (Parameter::Register, Parameter::RegisterPage),
            true => (Parameter::Deregister, Parameter::DeregisterPage),
        };
        Ok((profile.number(once) + pages * profile.number(page)) / 1e3)
    }
}

/// Returns the load of a thread that writes `bytes` bytes to a region of 1 MiB.
pub(super) fn tier(bytes: u32, effort: Effort) -> TierLoad {
    TierLoad { bytes, warm_up: warm_up(1, effort), measured: measured(effort), ..TierLoad::of(PROFILE) }
}
