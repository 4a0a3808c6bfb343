//! The only door to time, threads and randomness. Engine code never calls `std::time`, `std::thread`, a spin
//! hint or a random source itself, so that a simulated host can run it unmodified in virtual time.
//!
//! Waiting for the data path is the business of a [`ThreadDomain`](crate::ThreadDomain), which knows what can
//! arrive; waiting for other threads is a [`Signal`]'s.

mod real;
mod topology;

pub use real::{RealHost, RealSignal};
pub use topology::{BindError, Topology};

use std::sync::{Mutex, PoisonError};

/// Nanoseconds since an origin of the host's choice; never steps back.
pub type Nanos = u64;

/// A price-list position: what the engine just did, in symbols. A simulated host turns it into virtual time by
/// its cluster profile; a real one ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A look at a mailbox that found nothing.
    PollMiss,
    /// A look that found a message.
    PollHit,
    /// A message header taken apart and checked.
    ParseMessage,
    /// One entry taken apart.
    ParseEntry,
    /// A message header built.
    BuildMessage,
    /// One entry built.
    BuildEntry,
    /// Bytes copied by the engine.
    CopyBytes,
    /// A work request given to a queue pair.
    PostWork,
    /// A doorbell rung.
    Doorbell,
    /// A completion taken from a completion queue.
    PollCompletion,
    /// One function handed to its handler.
    Dispatch,
}

/// A named place where a simulated thread may be pre-empted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// Between building a message and posting it.
    BeforePost,
    /// Between seeing a message and answering it.
    BeforeDispatch,
    /// Between arming and sleeping.
    BeforeSleep,
    /// Once in a worker's loop.
    WorkerLoop,
}

/// A thread that was started; dropping it lets the thread go on by itself.
pub struct Task {
    // Behind a lock only so that what holds a task can be shared.
    join: Mutex<Box<dyn FnOnce() + Send>>,
}

impl Task {
    /// Wraps what waits for the thread's end.
    pub fn new(join: impl FnOnce() + Send + 'static) -> Self {
        Task { join: Mutex::new(Box::new(join)) }
    }

    /// Blocks until the thread has ended. A panic in it was reported when it happened and is not raised again.
    pub fn join(self) {
        (self.join.into_inner().unwrap_or_else(PoisonError::into_inner))()
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// A count that threads raise and wait for: nothing raised between [`Signal::seen`] and [`Signal::wait`] is
/// missed.
pub trait Signal: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Raises the count and wakes all who wait. Does not block.
    fn raise(&self);
    /// The count now.
    fn seen(&self) -> u64;
    /// Blocks until the count differs from `seen`, or `until`; says whether it differs.
    fn wait(&self, seen: u64, until: Nanos) -> bool;
}

/// Time, threads, randomness. Clones are the same host.
pub trait Host: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// What threads of this host signal each other with.
    type Signal: Signal;

    /// The time. Not free (about 20 ns): never once per poll.
    fn now(&self) -> Nanos;
    /// Says what was done, `count` times (or bytes).
    fn charge(&self, work: Work, count: u32);
    /// A place where a simulated thread may be pre-empted.
    fn checkpoint(&self, site: Site);
    /// 64 unpredictable bits (from the seed in a simulator).
    fn random(&self) -> u64;
    /// The number of this process, for the peer's logs (a simulated process's own in a simulator).
    fn process_id(&self) -> u32 {
        std::process::id()
    }
    /// A new signal.
    fn signal(&self) -> Self::Signal;
    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Task>;
    /// The NUMA nodes of the machine, and of each the cores that the calling thread may use. Reads files: not for the way
    /// of a call.
    fn topology(&self) -> Topology {
        Topology::single()
    }
    /// Binds the calling thread to cores, and gives those that it could use before. A host without cores of its own
    /// (a simulated one) has nothing to do.
    fn bind(&self, cores: &[u32]) -> Result<Vec<u32>, BindError> {
        Ok(cores.to_vec())
    }
    /// Blocks until then.
    fn sleep(&self, until: Nanos);
}
