//! A deterministic fabric and host in virtual time: machines with cores, processes that can be killed, a network that
//! breaks by plan, all on one thread of the operating system.
//!
//! [`Sim::run`] runs a root task and everything that it spawns through [`Host::spawn`](dunlin_fabric::Host) to
//! the end. Tasks are stackful coroutines; a wait hands over to the scheduler, and time passes only by work
//! that is charged for and by waiting. A run is a pure function of its seed: which WRITE becomes visible when,
//! in which pieces, who is pre-empted, which wait ends for no reason. So a test that fails once fails always.
//!
//! What may come in: semantics of the verbs, scheduling, faults, chance. What never does: what any hardware costs (that
//! is asked of `timing`), real time, real threads, and anything that knows what an RPC is.
//!
//! Two things differ from a real machine on purpose. A busy wait parks the task until something arrives that
//! concerns its domain (a completion, a WRITE into a watched region, a waker, a broken queue pair), so that an
//! idle loop costs no events: who polls memory without [`watch`](dunlin_fabric::ThreadDomain::watch)ing it, or
//! waits for another thread's flag without a waker, deadlocks here. And a wait in event mode ends only by
//! events and `until`, not after 10 ms: who needs that bound has missed a wake-up, and is told so here.
//!
//! Calls that do not block by the contract of the traits never switch tasks, so they may be made with a lock
//! held; nor do those of a link that take a short, bounded time. A task switches where it waits, sleeps, or passes a checkpoint, and every round of a loop
//! has to do one of these. Between them a task works ahead on a clock of its own, so two tasks that share
//! memory may see each other's clocks a little apart: subtract times with saturation.
//!
//! ```
//! use dunlin_fabric::{Fabric, Host};
//! use dunlin_fabric_sim::Sim;
//!
//! let run = || Sim::run(7, |fabric| fabric.host().sleep(3_000_000_000)).expect("no deadlock");
//! assert!(run().end >= 3_000_000_000);
//! assert_eq!(run(), run());
//! ```

mod admit;
pub mod bare;
mod domain;
mod events;
mod host;
mod link;
mod machine;
mod memory;
mod network;
mod outcome;
mod posting;
mod process;
mod queues;
mod random;
mod report;
mod run;
mod scheduler;
mod settings;
mod shared;
mod slab;
mod stacks;
mod switch;
mod timing;
mod wheel;

pub use domain::{SimDomain, SimWaker};
pub use host::{SimHost, SimSignal};
pub use link::{SimLink, SimListener};
pub use memory::SimMemory;
pub use random::Random;
pub use report::{RunError, RunReport};
pub use settings::{
    ChanceTiming, Faults, FixedTiming, History, MachineSettings, ModelTiming, Prices, Settings,
    SettingsError, TimingSettings,
};

use dunlin_fabric::{
    Access, Address, Capabilities, CreateError, DialError, Fabric, ListenError, Nanos, Rates, RegisterError,
};
use process::Process;
use scheduler::State;
use shared::Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use timing::Timing;

/// The longest region, in bytes.
const MAX_REGION: u64 = 1 << 36;

/// The fabric of one run, as one of its processes has it. Its handles are good inside that run only: a call from
/// elsewhere panics.
#[derive(Clone, Debug)]
pub struct Sim {
    host: SimHost,
    capabilities: Arc<Capabilities>,
    rates: Option<Arc<Rates>>,
    registered: Arc<AtomicU64>,
    /// Numbers of regions given out.
    regions: Arc<AtomicU32>,
}

impl Sim {
    /// Runs `root` and all that it spawns to the end in virtual time, with the usual [`Settings`]. A panic of
    /// `root` goes on in the caller, after everything has been unwound.
    ///
    /// # Errors
    /// A deadlock, a run over its time limit, and a panic of a spawned task; see [`RunError`].
    pub fn run(seed: u64, root: impl FnOnce(Sim) + Send + 'static) -> Result<RunReport, RunError> {
        Sim::run_with(Settings::default(), seed, root)
    }

    /// As [`Sim::run`], with settings.
    ///
    /// # Errors
    /// As [`Sim::run`], and settings of which nothing could come.
    pub fn run_with(
        settings: Settings,
        seed: u64,
        root: impl FnOnce(Sim) + Send + 'static,
    ) -> Result<RunReport, RunError> {
        settings.check()?;
        let capabilities = Arc::new(settings.capabilities.clone());
        let rates = settings.rates.clone();
        let timing = Timing::new(&settings.timing, &settings.prices).map_err(SettingsError::from)?;
        let state = State::new(settings, timing, seed);
        let registered = Arc::clone(&state.network.registered);
        let shared = Arc::new(Shared::new(state));
        let host = SimHost { shared: Arc::clone(&shared), process: 0 };
        let sim = Sim { host, capabilities, rates, registered, regions: Arc::default() };
        run::run(&shared, Box::new(move || root(sim)))
    }

    /// The fabric as a new process on a machine has it. Machines are numbered as in the settings.
    ///
    /// # Panics
    /// If there is no such machine.
    pub fn process_on(&self, machine: usize) -> Sim {
        let mut state = self.host.shared.lock();
        let machines = state.machines.len();
        assert!(machine < machines, "there is no machine {machine}: the settings have {machines}");
        let process = state.processes.len() as u32;
        state.processes.push(Process::on(machine as u32));
        drop(state);
        let host = SimHost { shared: Arc::clone(&self.host.shared), process };
        Sim { host, ..self.clone() }
    }

    /// Kills this process where it stands: its tasks end, its queue pairs, links and listeners are gone, what has left
    /// goes on, and its peers notice. Not the root's own.
    ///
    /// # Panics
    /// For the root's process.
    pub fn kill(&self) {
        assert!(self.host.process != 0, "the root's own process cannot be killed: make one with process_on");
        self.host.shared.lock().kill(self.host.process);
    }

    /// Has a machine's processors take so many times as long for everything from now on, in thousandths.
    pub fn set_slowness(&self, machine: usize, thousandths: u64) {
        let mut state = self.host.shared.lock();
        state.machines[machine].slowness = thousandths.max(1);
        state.has_slow_machines = state.machines.iter().any(|machine| machine.slowness != 1000);
    }

    /// The run's own time, whatever the machines' clocks show.
    pub fn time(&self) -> Nanos {
        self.host.shared.lock().now()
    }

    /// Tasks that have not ended, this one included.
    pub fn live_tasks(&self) -> usize {
        self.host.shared.lock().live
    }

    /// Registered memory that is alive.
    pub fn registered(&self) -> u64 {
        self.registered.load(Ordering::Relaxed)
    }

    /// Queue pairs that are alive.
    pub fn queue_pairs(&self) -> usize {
        self.host.shared.lock().network.queue_pairs.iter().count()
    }

    /// Events handled so far.
    pub fn events(&self) -> u64 {
        self.host.shared.lock().handled()
    }

    /// Times that a task was given the processor so far.
    pub fn switches(&self) -> u64 {
        self.host.shared.lock().switches
    }

    /// Adds a line to the history, if one is kept.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(state) = self.host.shared.try_lock() {
            state.tell(|_| what());
        }
    }
}

impl Fabric for Sim {
    type Host = SimHost;
    type Memory = SimMemory;
    type Link = SimLink;
    type Listener = SimListener;
    type Domain = SimDomain;

    fn host(&self) -> &SimHost {
        &self.host
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        self.rates.clone()
    }

    fn register(&self, length: u64, access: Access) -> Result<SimMemory, RegisterError> {
        if length == 0 || length > MAX_REGION {
            return Err(RegisterError::Length { length, limit: MAX_REGION });
        }
        let memory = SimMemory::new(length as usize, access, &self.registered, &self.regions);
        memory.ok_or_else(|| RegisterError::OutOfMemory {
            length,
            source: std::io::ErrorKind::OutOfMemory.into(),
        })
    }

    fn domain(&self) -> Result<SimDomain, CreateError> {
        SimDomain::new(&self.host.shared, self.host.process)
    }

    fn listen(&self, address: &Address) -> Result<SimListener, ListenError> {
        SimListener::open(&self.host.shared, self.host.process, address)
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<SimLink, DialError> {
        link::dial(&self.host.shared, self.host.process, address, until)
    }
}
