//! A deterministic fabric and host in virtual time: machines with cores, processes that can be killed, and a
//! network with planned faults, all on one operating-system thread.
//!
//! [`Sim::run`] runs a root task, and everything that it spawns through [`Host::spawn`](dunlin_fabric::Host),
//! to the end. Tasks are stackful coroutines. A wait hands control to the scheduler, and time passes only by
//! charged work and by waiting. A run is a pure function of its seed: the order in which WRITEs become
//! visible, the pieces they arrive in, pre-emptions and spurious wake-ups. A test that fails once therefore
//! fails always.
//!
//! This crate holds verbs semantics, scheduling, faults and chance. Hardware costs are confined to `timing`.
//! Real time, real threads and any knowledge of RPCs stay outside.
//!
//! Two differences from a real machine are deliberate. First, a busy wait parks the task until something
//! arrives for its domain (a completion, a WRITE into a watched region, a waker, a broken queue pair), so an
//! idle loop costs no events. Code that polls memory without [`watch`](dunlin_fabric::ThreadDomain::watch)ing
//! it, or that waits for another thread's flag without a waker, deadlocks here. Second, a wait in event mode
//! ends only by an event or at `until`, not after 10 ms. Code that depends on that bound has missed a
//! wake-up, and the simulator reports the deadlock.
//!
//! Calls that do not block by the contract of the traits never switch tasks, so they may be made with a lock
//! held. The same holds for link calls that take a short, bounded time. A task switches where it waits,
//! sleeps or passes a checkpoint, and every round of a loop must do one of these. In between, a task runs
//! ahead on its own clock, so tasks that share memory may see slightly different clocks: subtract times with
//! saturation.
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
mod cores;
mod domain;
mod events;
mod host;
mod keeper;
mod link;
mod links;
mod machine;
mod memory;
mod network;
mod outcome;
mod parker;
mod partition;
mod posting;
mod process;
mod processor_time;
mod queues;
mod random;
mod report;
mod run;
mod scheduler;
mod settings;
mod shared;
mod signals;
mod slab;
mod stacks;
mod state;
mod switch;
mod tasks;
mod timing;
mod trace;
mod wheel;

pub use domain::{SimDomain, SimWaker};
pub use dunlin_rnic_model::Pages;
pub use host::{SimHost, SimSignal};
pub use keeper::{SimKeeper, SimKept};
pub use link::{SimLink, SimListener};
pub use memory::SimMemory;
pub use parker::{SimParker, SimUnparker};
pub use partition::RETRIES_LAST;
pub use random::Random;
pub use report::{RunError, RunReport};
pub use settings::{
    ChanceTiming, Faults, FixedTiming, History, MachineSettings, ModelTiming, Prices, Settings,
    SettingsError, TimingSettings,
};

pub use dunlin_rnic_model::Counters as NicCounters;

use dunlin_fabric::{
    Access, Address, Atomics, Capabilities, CreateError, DialError, Fabric, KeeperError, ListenError, Nanos,
    PlainPayloads, Rates, RegisterError, Site,
};
use machine::Process;
use shared::Shared;
use state::State;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use timing::Timing;

/// Longest region, in bytes.
const MAX_REGION: u64 = 1 << 36;

/// The fabric of one run, as seen by one of its processes. Its handles are valid inside that run only; a call
/// from elsewhere panics.
#[derive(Clone, Debug)]
pub struct Sim {
    host: SimHost,
    capabilities: Arc<Capabilities>,
    rates: Option<Arc<Rates>>,
    registered: Arc<AtomicU64>,
    /// Region numbers assigned so far.
    regions: Arc<AtomicU32>,
    /// Pages of the memory that is registered by this handle.
    pages: Pages,
    /// The machine within which this handle reaches other processes; `None` for the network.
    within: Option<u32>,
}

impl Sim {
    /// Runs `root` and all tasks that it spawns to the end in virtual time, with the default [`Settings`]. A
    /// panic of `root` resumes in the caller after all tasks have been unwound.
    ///
    /// # Errors
    /// Returns a [`RunError`] on a deadlock, a run beyond its time limit, or a panic of a spawned task.
    pub fn run(seed: u64, root: impl FnOnce(Sim) + Send + 'static) -> Result<RunReport, RunError> {
        Sim::run_with(Settings::default(), seed, root)
    }

    /// Runs as [`Sim::run`] does, with the given settings.
    ///
    /// # Errors
    /// As [`Sim::run`], and for settings that cannot run.
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
        let (regions, pages) = (Arc::default(), Pages::Profile);
        let sim = Sim { host, capabilities, rates, registered, regions, pages, within: None };
        run::run(&shared, Box::new(move || root(sim)))
    }

    /// Returns the fabric as seen by a new process on a machine. Machines are numbered as in
    /// [`Settings::machines`].
    ///
    /// # Panics
    /// Panics if the machine does not exist.
    pub fn process_on(&self, machine: usize) -> Sim {
        let mut state = self.host.shared.lock();
        let machines = state.machines.len();
        assert!(machine < machines, "there is no machine {machine}: the settings have {machines}");
        let process = state.processes.len() as u32;
        state.processes.push(Process::on(machine as u32));
        drop(state);
        let host = SimHost { shared: Arc::clone(&self.host.shared), process };
        let within = self.within.map(|_| machine as u32);
        Sim { host, within, ..self.clone() }
    }

    /// Returns the fabric between the processes of this machine, as shared memory is one: the processor of the initiator
    /// executes all operations, and no NIC takes part. With a model of the hardware a line that another core wrote
    /// takes the price of [`Work::TakeLine`](dunlin_fabric::Work::TakeLine), and each byte that of `CopyBytes`. An address is
    /// another one on each machine, and on the network. Control messages take the network's time.
    pub fn within_machine(&self) -> Sim {
        let machine = self.host.shared.lock().processes[self.host.process as usize].machine;
        let capabilities = Capabilities {
            name: "sim within a machine",
            atomics: Atomics::Processors,
            write_wakes: true,
            initiator_copies: true,
            ..(*self.capabilities).clone()
        };
        Sim { capabilities: Arc::new(capabilities), within: Some(machine), ..self.clone() }
    }

    /// Connects this process to a keeper of memory, which then serves no other one as long as the result and this process
    /// live.
    ///
    /// # Errors
    /// [`KeeperError::Busy`]: another process has the memory, and lives.
    pub fn kept_by(&self, keeper: &SimKeeper) -> Result<SimKept, KeeperError> {
        keeper.connect(&self.host.shared, self.host.process)
    }

    /// Returns the name of an address among all addresses of the run.
    fn name_of(&self, address: &Address) -> String {
        match self.within {
            Some(machine) => format!("\0{machine}/{}", address.name()),
            None => address.name().to_owned(),
        }
    }

    /// Returns the same process; memory that it registers by this handle has such pages. Only a model of the hardware
    /// tells them apart.
    pub fn with_pages(&self, pages: Pages) -> Sim {
        Sim { pages, ..self.clone() }
    }

    /// Kills this process at once: its tasks end, and its queue pairs, links and listeners disappear.
    /// Messages that have left still arrive, and its peers observe a crash.
    ///
    /// # Panics
    /// Panics for the root's own process.
    pub fn kill(&self) {
        assert!(self.host.process != 0, "the root's own process cannot be killed: make one with process_on");
        self.host.shared.lock().kill(self.host.process);
    }

    /// Multiplies the cost of all work on a machine from now on, in thousandths (1000 is normal speed).
    pub fn set_slowness(&self, machine: usize, thousandths: u64) {
        let mut state = self.host.shared.lock();
        state.machines[machine].slowness = thousandths.max(1);
        state.has_slow_machines = state.machines.iter().any(|machine| machine.slowness != 1000);
    }

    /// Cuts a machine off from all others for `time`: a partition. Messages that leave meanwhile arrive after its end, as
    /// retransmissions do. A queue pair whose messages are held up for more than [`RETRIES_LAST`] breaks then, as by
    /// retries that are used up; control messages and dials wait as long as their callers do. Messages within the machine
    /// pass, and messages that have left before arrive.
    pub fn cut_off(&self, machine: usize, time: Nanos) {
        let mut state = self.host.shared.lock();
        let until = state.now().saturating_add(time);
        let cut = &mut state.machines[machine].cut_until;
        *cut = until.max(*cut);
        state.has_cuts = true;
    }

    /// Takes the core for `time` from the next task of this process that passes a checkpoint of this kind, once. The
    /// task has then lost it as to a thread of another program: whatever it holds, it holds on to.
    pub fn stall_next(&self, site: Site, time: Nanos) {
        self.host.shared.lock().stall_next = Some((self.host.process, site, time));
    }

    /// Returns the run's own time, independent of the machines' clocks.
    pub fn time(&self) -> Nanos {
        self.host.shared.lock().now()
    }

    /// Returns the processor time of a machine since the start of the run, in nanoseconds: the time for which its tasks
    /// worked or spun. A task that sleeps uses none, and from the event that wakes it on it is awake, so the price of a
    /// wake-up counts. On a machine with a limited number of cores, the time for which its cores were assigned counts.
    ///
    /// # Panics
    /// Panics if the machine does not exist.
    pub fn processor_time(&self, machine: usize) -> Nanos {
        self.host.shared.lock().processor_time(machine)
    }

    /// Returns the number of tasks that have not ended, including the caller.
    pub fn live_tasks(&self) -> usize {
        self.host.shared.lock().live
    }

    /// Returns the number of live registered memories.
    pub fn registered(&self) -> u64 {
        self.registered.load(Ordering::Relaxed)
    }

    /// Returns the number of live queue pairs.
    pub fn queue_pairs(&self) -> usize {
        self.host.shared.lock().network.queue_pairs.iter().count()
    }

    /// Returns the number of events handled so far.
    pub fn events(&self) -> u64 {
        self.host.shared.lock().handled()
    }

    /// Returns the number of task switches so far.
    pub fn switches(&self) -> u64 {
        self.host.shared.lock().switches
    }

    /// Returns the counters of a machine's NIC since the start of the run; `None` without a model, or if there is no
    /// such NIC.
    pub fn nic_counters(&self, machine: usize, nic: usize) -> Option<NicCounters> {
        let state = self.host.shared.lock();
        let exists = match &state.settings.timing {
            TimingSettings::Model(model) => {
                model.machines.get(machine).is_some_and(|(_, nics)| nic < usize::from(*nics))
            }
            _ => false,
        };
        exists.then(|| state.timing.counters(machine, nic)).flatten()
    }

    /// Appends a line to the history, if one is kept.
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
    type Payloads = PlainPayloads;

    fn host(&self) -> &SimHost {
        &self.host
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        self.rates.clone()
    }

    fn payloads(&self) -> PlainPayloads {
        PlainPayloads
    }

    fn register(&self, length: u64, access: Access) -> Result<SimMemory, RegisterError> {
        if length == 0 || length > MAX_REGION {
            return Err(RegisterError::Length { length, limit: MAX_REGION });
        }
        let memory = SimMemory::new(length as usize, access, &self.registered, &self.regions);
        let memory = memory.ok_or_else(|| RegisterError::OutOfMemory {
            length,
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        if self.pages != Pages::Profile {
            let mut state = self.host.shared.lock();
            let machine = state.processes[self.host.process as usize].machine;
            state.timing.register(machine, memory.number(), self.pages);
        }
        Ok(memory)
    }

    fn domain(&self) -> Result<SimDomain, CreateError> {
        SimDomain::new(&self.host.shared, self.host.process, self.within.is_some())
    }

    fn listen(&self, address: &Address) -> Result<SimListener, ListenError> {
        SimListener::open(&self.host.shared, self.host.process, (address, &self.name_of(address)))
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<SimLink, DialError> {
        link::dial(&self.host.shared, self.host.process, (address, &self.name_of(address)), until)
    }
}
