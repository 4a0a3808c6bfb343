//! What can be set about a run.

use dunlin_fabric::{Capabilities, Nanos, Rates, TransportSet, Work};
use dunlin_rnic_model::{ClusterError, Prices as ModelPrices, Profile};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// The numbers of a run. All times are virtual nanoseconds. The defaults are calibrated to nothing: they are there to
/// make things happen in different orders, on one machine with a core for every task.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time at which the run starts.
    pub start: Nanos,
    /// The time at which the run is given up.
    pub limit: Nanos,
    /// How far a task may work ahead between two places where it can block or be pre-empted.
    pub run_ahead: Nanos,
    /// How far a task may be ahead of another at a checkpoint without giving way to it: saves switches, and is
    /// harmless below the network's latency. 0 lets everything happen in its order.
    pub slack: Nanos,
    /// Bytes of stack per task, touched lazily.
    pub stack: usize,
    /// The most tasks at one time: address space for their stacks.
    pub max_tasks: usize,
    /// The machines; the root runs on the first.
    pub machines: Vec<MachineSettings>,
    /// How time passes in the network.
    pub timing: TimingSettings,
    /// What the processor's work costs.
    pub prices: Prices,
    /// What breaks.
    pub faults: Faults,
    /// One in so many waits ends for no reason; 0 for never.
    pub spurious: u64,
    /// One in so many checkpoints pre-empts the task; 0 for never.
    pub preemption: u64,
    /// What the fabric says it can do, and then does.
    pub capabilities: Capabilities,
    /// What its NICs do in a second, for who asks.
    pub rates: Option<Arc<Rates>>,
    /// Where the latest events are kept as text, for who wants to see how it came to a failure; `None` is fast.
    pub history: Option<History>,
}

/// The latest events of a run as text. Clones are the same history, which outlives the run.
#[derive(Clone, Debug)]
pub struct History {
    limit: usize,
    lines: Arc<Mutex<VecDeque<(Nanos, String)>>>,
}

impl History {
    /// A history of so many events.
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

    /// What happened, with its time.
    pub fn lines(&self) -> Vec<(Nanos, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSettings {
    /// Cores; `None` for one each task.
    pub cores: Option<u32>,
    /// What its clock shows more than the run's.
    pub clock_offset: Nanos,
    /// How much faster its clock runs, in millionths.
    pub clock_drift: u64,
}

/// How time passes in the network.
#[derive(Clone, Debug)]
pub enum TimingSettings {
    /// By chance, within bounds.
    Chance(ChanceTiming),
    /// By fixed rates, without chance.
    Fixed(FixedTiming),
    /// By a model of NICs, links and hosts, without chance.
    Model(ModelTiming),
}

/// What the model is made of.
#[derive(Clone, Debug)]
pub struct ModelTiming {
    /// The profile of each machine and how many NICs it has, in the order of [`Settings::machines`].
    pub machines: Vec<(Arc<Profile>, u16)>,
    /// Latency from NIC to NIC, where it differs from the profiles'.
    pub switch_ns: Option<Nanos>,
    /// One way of what is not modelled message by message: control connections, errors.
    pub control_ns: Nanos,
}

/// Bounds of chance.
#[derive(Clone, Debug)]
pub struct ChanceTiming {
    /// The shortest way through the network.
    pub latency: Nanos,
    /// By chance up to so much more.
    pub jitter: Nanos,
    /// The most by which a WRITE's pieces lie apart in becoming visible.
    pub landing: Nanos,
}

/// A network of fixed rates: each machine sends and receives one message at a time.
#[derive(Clone, Debug)]
pub struct FixedTiming {
    /// The way of a message from one machine to another.
    pub latency: Nanos,
    /// What a message occupies a machine's sending or receiving side for.
    pub message: Nanos,
    /// What each of its bytes adds, in picoseconds.
    pub byte_picoseconds: u64,
}

/// What work costs the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Picoseconds for each kind of [`Work`](dunlin_fabric::Work), in the order of its declaration.
    pub work: [u64; 11],
    /// Picoseconds: posting a work request, posting a RECV, a poll that finds nothing, each completion that one finds,
    /// looking whether a wait is needed, reading the clock.
    pub post: u64,
    /// As above.
    pub post_receive: u64,
    /// As above.
    pub poll: u64,
    /// As above.
    pub poll_found: u64,
    /// As above.
    pub look: u64,
    /// As above.
    pub clock_read: u64,
    /// A system call, in nanoseconds.
    pub system_call: Nanos,
    /// From an arrival to the next step of a task that sleeps, in nanoseconds (rates; chance has its own).
    pub wake_up: Nanos,
    /// As above, of a task that spins.
    pub notice: Nanos,
    /// Giving a core to another task, in nanoseconds.
    pub context_switch: Nanos,
    /// How long a task may have its core while others wait for one, in nanoseconds.
    pub quantum: Nanos,
}

impl Default for Prices {
    /// Round numbers, not measured: here time only has to pass.
    fn default() -> Self {
        Prices {
            work: [5_000, 10_000, 10_000, 5_000, 10_000, 5_000, 60, 20_000, 30_000, 20_000, 20_000],
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
        }
    }
}

impl Prices {
    /// The prices of a profile, which has their sources. Posting costs what the model says for each message.
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
        ];
        let mut work = [0; 11];
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

/// What breaks by chance: one in so many, 0 for never. Until [`Faults::until`], so that what must get well can be
/// seen to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Messages of unreliable transports that are lost.
    pub loss: u64,
    /// Packets that are held up, and everything behind them on their queue pair with them.
    pub delay: u64,
    /// For how long at most.
    pub delay_by: Nanos,
    /// Work requests that break their queue pair.
    pub queue_pair_error: u64,
    /// Messages that find the receiver not ready though it has a RECV.
    pub not_ready: u64,
    /// Posts that are refused for a full queue though there is room, while a signaled request is under way.
    pub refusal: u64,
    /// Checkpoints at which the task loses its core for long.
    pub stall: u64,
    /// For how long at most.
    pub stall_by: Nanos,
    /// No fault happens from then on; 0 for no end.
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
                atomics: true,
                immediate: true,
                acknowledged: true,
                in_order_write: true,
                whole_line_reads: true,
                shared_receive_queue: true,
                events: true,
                initiator_copies: false,
                target_progress: false,
                max_queue_pairs: 1 << 16,
                max_queue_depth: 1 << 14,
            },
            rates: None,
            history: None,
        }
    }
}

/// What is wrong with settings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// There is nowhere to run.
    #[error("a cluster has no machine: give at least one")]
    NoMachines,
    /// Nothing could ever run there.
    #[error("machine {machine} has no cores: give at least one, or None for one each task")]
    NoCores {
        /// The machine.
        machine: usize,
    },
    /// The run would be over before it began.
    #[error("the limit of time, {limit} ns, is not after the start, {start} ns")]
    NoTime {
        /// The start.
        start: Nanos,
        /// The limit.
        limit: Nanos,
    },
    /// Not even the root could run.
    #[error("max_tasks is 0: the root is a task too")]
    NoTasks,
    /// The model and the machines are not of one cluster.
    #[error("{profiles} profiles for {machines} machines: give one for each")]
    Profiles {
        /// Profiles.
        profiles: usize,
        /// Machines.
        machines: usize,
    },
    /// The model cannot hold the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A core that is given away at once does no work.
    #[error("a quantum of 0 ns: cores would be handed round without any work")]
    NoQuantum,
}

impl Settings {
    /// How many NICs a machine has.
    pub(crate) fn nics_of(&self, machine: u32) -> u16 {
        match &self.timing {
            TimingSettings::Model(model) => {
                model.machines.get(machine as usize).map_or(1, |(_, nics)| (*nics).max(1))
            }
            _ => 1,
        }
    }

    /// Whether such a run is possible.
    ///
    /// # Errors
    /// What is wrong first.
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
