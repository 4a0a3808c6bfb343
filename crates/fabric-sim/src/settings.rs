//! The settings of a run.

use dunlin_fabric::{Atomics, Capabilities, Nanos, Rates, TransportSet, Work};
use dunlin_rnic_model::{ClusterError, Prices as ModelPrices, Profile};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// The parameters of a run. All times are virtual nanoseconds. The defaults are not calibrated: they vary the
/// order of events, on one machine with a core per task.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time at the start of the run.
    pub start: Nanos,
    /// Time at which the run is aborted.
    pub limit: Nanos,
    /// Longest time that a task may run ahead without blocking or passing a checkpoint.
    pub run_ahead: Nanos,
    /// Longest time that a task may be ahead of another at a checkpoint without yielding. It saves switches
    /// and is harmless below the network's latency; 0 keeps all events in order.
    pub slack: Nanos,
    /// Bytes of stack per task, touched lazily.
    pub stack: usize,
    /// Most tasks at one time; reserves address space for their stacks.
    pub max_tasks: usize,
    /// The machines; the root runs on the first.
    pub machines: Vec<MachineSettings>,
    /// Timing of the network.
    pub timing: TimingSettings,
    /// Costs of processor work.
    pub prices: Prices,
    /// Injected faults.
    pub faults: Faults,
    /// One wait in this number ends spuriously; 0 for never.
    pub spurious: u64,
    /// One checkpoint in this number pre-empts the task; 0 for never.
    pub preemption: u64,
    /// Capabilities that the fabric reports and implements.
    pub capabilities: Capabilities,
    /// Rates of its NICs per second, as the fabric reports them.
    pub rates: Option<Arc<Rates>>,
    /// Keeps the latest events as text, to explain a failure; `None` is faster.
    pub history: Option<History>,
}

/// The latest events of a run as text. Clones share the same history, which outlives the run.
#[derive(Clone, Debug)]
pub struct History {
    limit: usize,
    lines: Arc<Mutex<VecDeque<(Nanos, String)>>>,
}

impl History {
    /// Creates a history of at most `limit` events.
    pub fn new(limit: usize) -> Self {
        History { limit: limit.max(1), lines: Arc::default() }
    }

    pub(crate) fn push(&self, at: Nanos, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= self.limit {
            lines.pop_front();
        }
        lines.push_back((at, line));
    }

    /// Returns the recorded events with their times.
    pub fn lines(&self) -> Vec<(Nanos, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSettings {
    /// Number of cores; `None` for one per task.
    pub cores: Option<u32>,
    /// Nanoseconds by which its clock is ahead of the run's time.
    pub clock_offset: Nanos,
    /// Clock drift in parts per million.
    pub clock_drift: u64,
}

/// Timing of the network.
#[derive(Clone, Debug)]
pub enum TimingSettings {
    /// Random within bounds.
    Chance(ChanceTiming),
    /// Fixed rates, deterministic.
    Fixed(FixedTiming),
    /// A model of NICs, links and hosts, deterministic.
    Model(ModelTiming),
}

/// Parameters of the hardware model.
#[derive(Clone, Debug)]
pub struct ModelTiming {
    /// Profile and number of NICs of each machine, in the order of [`Settings::machines`].
    pub machines: Vec<(Arc<Profile>, u16)>,
    /// Latency from NIC to NIC, if it differs from the profiles'.
    pub switch_ns: Option<Nanos>,
    /// One-way delay of control connections and errors, which are not modelled per message.
    pub control_ns: Nanos,
}

/// Bounds of random timing.
#[derive(Clone, Debug)]
pub struct ChanceTiming {
    /// Shortest one-way latency of the network.
    pub latency: Nanos,
    /// Longest random addition to the latency.
    pub jitter: Nanos,
    /// Longest interval between the pieces of a WRITE becoming visible.
    pub landing: Nanos,
}

/// A network of fixed rates: each machine sends and receives one message at a time.
#[derive(Clone, Debug)]
pub struct FixedTiming {
    /// One-way latency between machines.
    pub latency: Nanos,
    /// Occupation of a machine's sending or receiving side per message.
    pub message: Nanos,
    /// Additional occupation per byte, in picoseconds.
    pub byte_picoseconds: u64,
}

/// Costs of processor work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Picoseconds for each kind of [`Work`](dunlin_fabric::Work), in the order of its declaration.
    pub work: [u64; 12],
    /// Posting a work request, in picoseconds.
    pub post: u64,
    /// Posting a RECV, in picoseconds.
    pub post_receive: u64,
    /// A poll that finds nothing, in picoseconds.
    pub poll: u64,
    /// Each completion that a poll finds, in picoseconds.
    pub poll_found: u64,
    /// Checking whether a wait is needed, in picoseconds.
    pub look: u64,
    /// Reading the clock, in picoseconds.
    pub clock_read: u64,
    /// A system call, in nanoseconds.
    pub system_call: Nanos,
    /// From an arrival to the next step of a sleeping task, in nanoseconds. Random timing has its own value.
    pub wake_up: Nanos,
    /// From an arrival to the next step of a spinning task, in nanoseconds. Random timing has its own value.
    pub notice: Nanos,
    /// Giving a core to another task, in nanoseconds.
    pub context_switch: Nanos,
    /// Longest time that a task keeps its core while others wait for one, in nanoseconds.
    pub quantum: Nanos,
    /// Longest time that a task spins on its core while others wait for one, in nanoseconds. From `quantum`
    /// on, spinning tasks never give way before the end of their quantum.
    pub spin_patience: Nanos,
}

impl Default for Prices {
    /// Returns round numbers, not measured: time only has to pass.
    fn default() -> Self {
        Prices {
            work: [5_000, 10_000, 10_000, 5_000, 10_000, 5_000, 60, 20_000, 30_000, 20_000, 20_000, 80_000],
            post: 30_000,
            post_receive: 30_000,
            poll: 10_000,
            poll_found: 10_000,
            look: 5_000,
            clock_read: 20_000,
            system_call: 1_000,
            wake_up: 2_000,
            notice: 40,
            context_switch: 1_500,
            quantum: 3_000_000,
            spin_patience: Nanos::MAX,
        }
    }
}

impl Prices {
    /// Returns the prices of a profile, which documents their sources. Posting costs what the model computes
    /// per message.
    pub fn of(profile: &Profile) -> Self {
        let prices = ModelPrices::of(profile);
        let picoseconds = |nanos: f64| (nanos * 1000.0) as u64;
        let defaults = Prices::default();
        let kinds = [
            Work::PollMiss,
            Work::PollHit,
            Work::ParseMessage,
            Work::ParseEntry,
            Work::BuildMessage,
            Work::BuildEntry,
            Work::CopyBytes,
            Work::PostWork,
            Work::Doorbell,
            Work::PollCompletion,
            Work::Dispatch,
            Work::TakeLine,
        ];
        let mut work = [0; 12];
        for kind in kinds {
            work[kind as usize] = picoseconds(prices.work_ns(kind));
        }
        Prices {
            work,
            post: 0,
            post_receive: picoseconds(prices.verbs().post_receive_ns),
            poll: picoseconds(prices.verbs().poll_empty_ns),
            poll_found: picoseconds(prices.verbs().poll_found_ns),
            look: 0,
            wake_up: prices.wake(),
            context_switch: prices.context_switch(),
            quantum: prices.quantum().max(1),
            ..defaults
        }
    }
}

/// Random faults: each field is a chance of one in its value, 0 for never. Faults stop at [`Faults::until`],
/// so that a test can observe recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Messages of unreliable transports that are lost.
    pub loss: u64,
    /// Packets that are delayed, with all later ones of their queue pair.
    pub delay: u64,
    /// Longest such delay.
    pub delay_by: Nanos,
    /// Work requests that break their queue pair.
    pub queue_pair_error: u64,
    /// Messages that find the receiver not ready although a RECV is posted.
    pub not_ready: u64,
    /// Posts refused as if the queue were full, while a signaled request is in flight.
    pub refusal: u64,
    /// Checkpoints at which the task loses its core for a long time.
    pub stall: u64,
    /// Longest such stall.
    pub stall_by: Nanos,
    /// Time from which on no fault occurs; 0 for no end.
    pub until: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            start: 1_000_000_000,
            limit: 3_600_000_000_000,
            run_ahead: 100_000_000,
            slack: 0,
            stack: 256 << 10,
            max_tasks: 4096,
            machines: vec![MachineSettings::default()],
            timing: TimingSettings::Chance(ChanceTiming { latency: 600, jitter: 400, landing: 300 }),
            prices: Prices::default(),
            faults: Faults::default(),
            spurious: 16,
            preemption: 8,
            capabilities: Capabilities {
                name: "sim",
                transports: TransportSet::ALL,
                max_inline: 220,
                max_message: 1 << 26,
                max_datagram: 4096,
                datagram_headroom: 40,
                atomics: Atomics::Device,
                immediate: true,
                acknowledged: true,
                in_order_write: true,
                cache_line_atomic_reads: true,
                shared_receive_queue: true,
                events: true,
                write_wakes: false,
                wakes_others: true,
                initiator_copies: false,
                target_progress: false,
                adopts: false,
                max_queue_pairs: 1 << 16,
                max_queue_depth: 1 << 14,
            },
            rates: None,
            history: None,
        }
    }
}

/// An error in the settings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// The cluster has no machine.
    #[error("a cluster has no machine: give at least one")]
    NoMachines,
    /// A machine has no core.
    #[error("machine {machine} has no cores: give at least one, or None for one each task")]
    NoCores {
        /// Index of the machine.
        machine: usize,
    },
    /// The time limit is not after the start.
    #[error("the limit of time, {limit} ns, is not after the start, {start} ns")]
    NoTime {
        /// The start.
        start: Nanos,
        /// The limit.
        limit: Nanos,
    },
    /// No task is allowed, not even the root.
    #[error("max_tasks is 0: the root is a task too")]
    NoTasks,
    /// The number of profiles differs from the number of machines.
    #[error("{profiles} profiles for {machines} machines: give one for each")]
    Profiles {
        /// Number of profiles.
        profiles: usize,
        /// Number of machines.
        machines: usize,
    },
    /// The model rejects the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The quantum is 0, so tasks would do no work.
    #[error("a quantum of 0 ns: cores would be handed round without any work")]
    NoQuantum,
}

impl Settings {
    /// Returns the number of NICs of a machine.
    pub(crate) fn nics_of(&self, machine: u32) -> u16 {
        match &self.timing {
            TimingSettings::Model(model) => {
                model.machines.get(machine as usize).map_or(1, |(_, nics)| (*nics).max(1))
            }
            _ => 1,
        }
    }

    /// Checks whether a run with these settings is possible.
    ///
    /// # Errors
    /// Returns the first error found.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.machines.is_empty() {
            return Err(SettingsError::NoMachines);
        }
        if let Some(machine) = self.machines.iter().position(|machine| machine.cores == Some(0)) {
            return Err(SettingsError::NoCores { machine });
        }
        if self.limit <= self.start {
            return Err(SettingsError::NoTime { start: self.start, limit: self.limit });
        }
        if self.max_tasks == 0 {
            return Err(SettingsError::NoTasks);
        }
        if let TimingSettings::Model(model) = &self.timing
            && model.machines.len() != self.machines.len()
        {
            let (profiles, machines) = (model.machines.len(), self.machines.len());
            return Err(SettingsError::Profiles { profiles, machines });
        }
        if self.prices.quantum == 0 {
            return Err(SettingsError::NoQuantum);
        }
        Ok(())
    }
}
