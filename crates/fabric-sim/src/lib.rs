//! A small deterministic fabric and host in virtual time, all on one thread of the operating system.
//!
//! [`Sim::run`] runs a root task and everything that it spawns through [`Host::spawn`](dunlin_fabric::Host) to
//! the end. Tasks are stackful coroutines; a wait hands over to the scheduler, and time passes only by work
//! that is charged for and by waiting. A run is a pure function of its seed: which WRITE becomes visible when,
//! in which pieces, who is pre-empted, which wait ends for no reason. So a test that fails once fails always.
//!
//! It is the proof that the traits of `dunlin-fabric` carry virtual time, and the frame for the full
//! simulator. What may come in: semantics of the verbs, and chance. What never does: calibrated costs of any
//! hardware (its times only make things happen in different orders), real time, real threads, and anything
//! that knows what an RPC is.
//!
//! Two things differ from a real machine on purpose. A busy wait parks the task until something arrives that
//! concerns its domain (a completion, a WRITE into a watched region, a waker, a broken queue pair), so that an
//! idle loop costs no events: who polls memory without [`watch`](dunlin_fabric::ThreadDomain::watch)ing it, or
//! waits for another thread's flag without a waker, deadlocks here. And a wait in event mode ends only by
//! events and `until`, not after 10 ms: who needs that bound has missed a wake-up, and is told so here.
//!
//! Calls that do not block by the contract of the traits never switch tasks, so they may be made with a lock
//! held; a task switches where it waits, sleeps, uses a link, or passes a checkpoint, and every round of a loop
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

mod domain;
mod host;
mod link;
mod memory;
mod network;
mod queues;
mod random;
mod report;
mod scheduler;
mod settings;
mod switch;

pub use domain::{SimDomain, SimWaker};
pub use host::{SimHost, SimSignal};
pub use link::{SimLink, SimListener};
pub use report::{RunError, RunReport};
pub use settings::Settings;

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    Access, Address, Capabilities, CreateError, DialError, Fabric, ListenError, Nanos, RegisterError,
};
use scheduler::Shared;
use std::sync::Arc;

/// The longest region, in bytes.
const MAX_REGION: u64 = 1 << 36;

/// The fabric of one run. Its handles are good inside that run only: a blocking call from elsewhere panics.
#[derive(Clone, Debug)]
pub struct Sim {
    host: SimHost,
    capabilities: Arc<Capabilities>,
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
    /// As [`Sim::run`].
    pub fn run_with(
        settings: Settings,
        seed: u64,
        root: impl FnOnce(Sim) + Send + 'static,
    ) -> Result<RunReport, RunError> {
        let capabilities = Arc::new(settings.capabilities.clone());
        let shared = Arc::new(Shared::new(settings, seed));
        let sim = Sim { host: SimHost { shared: Arc::clone(&shared) }, capabilities };
        scheduler::run(&shared, Box::new(move || root(sim)))
    }
}

impl Fabric for Sim {
    type Host = SimHost;
    type Memory = HeapMemory;
    type Link = SimLink;
    type Listener = SimListener;
    type Domain = SimDomain;

    fn host(&self) -> &SimHost {
        &self.host
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, length: u64, access: Access) -> Result<HeapMemory, RegisterError> {
        if length == 0 || length > MAX_REGION {
            return Err(RegisterError::Length { length, limit: MAX_REGION });
        }
        let memory = HeapMemory::new(length as usize, access);
        memory.ok_or_else(|| RegisterError::OutOfMemory {
            length,
            source: std::io::ErrorKind::OutOfMemory.into(),
        })
    }

    fn domain(&self) -> Result<SimDomain, CreateError> {
        Ok(SimDomain::new(&self.host.shared))
    }

    fn listen(&self, address: &Address) -> Result<SimListener, ListenError> {
        SimListener::open(&self.host.shared, address)
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<SimLink, DialError> {
        link::dial(&self.host.shared, address, until)
    }
}
