//! The engine's only access to time, threads and randomness. Engine code never calls `std::time`,
//! `std::thread`, a spin hint or a random source itself, so a simulated host can run it unmodified in virtual
//! time.
//!
//! A [`ThreadDomain`](crate::ThreadDomain) waits for the data path, because it knows its sources of events. A
//! [`Signal`] waits for other threads.

mod parker;
mod real;
mod topology;

pub use parker::{Parker, RealParker, RealUnparker, Unparker, park_adaptive};
pub use real::{RealHost, RealSignal};
pub use topology::{BindError, Topology};

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Nanoseconds since an origin that the host chooses. The clock never steps back.
pub type Nanos = u64;

/// Converts a duration to nanoseconds; the longest ones saturate.
#[inline]
pub fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Returns the end, on the host's clock, of a wait that begins now and takes at most `at_most`. Reads the clock
/// only if that is neither zero nor [`Duration::MAX`].
#[inline]
pub fn end_of<H: Host>(host: &H, at_most: Duration) -> Nanos {
    match at_most {
        Duration::ZERO => 0,
        Duration::MAX => Nanos::MAX,
        at_most => host.now().saturating_add(nanos(at_most)),
    }
}

/// The unit of work that the engine reports to its host. A simulated host charges virtual time for it
/// according to its cluster profile; a real host ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A poll of a mailbox that found nothing.
    PollMiss,
    /// A poll of a mailbox that found a message.
    PollHit,
    /// A message header parsed and checked.
    ParseMessage,
    /// One entry of a message parsed.
    ParseEntry,
    /// A message header built.
    BuildMessage,
    /// One entry of a message built.
    BuildEntry,
    /// Bytes copied by the engine.
    CopyBytes,
    /// A work request posted to a queue pair.
    PostWork,
    /// A doorbell rung.
    Doorbell,
    /// A completion taken from a completion queue.
    PollCompletion,
    /// One call passed to its handler.
    Dispatch,
    /// A cache line taken from another core, which wrote it last. Lines that a core fetches together are one.
    TakeLine,
}

/// A named point where a simulated thread may be pre-empted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// Between building a message and posting it.
    BeforePost,
    /// Between receiving a message and answering it.
    BeforeDispatch,
    /// Between arming a domain and sleeping.
    BeforeSleep,
    /// Once per iteration of a worker's loop.
    WorkerLoop,
    /// While a thread leads the others that share its connection.
    Leading,
}

/// A started thread. Dropping the value detaches the thread.
pub struct Task {
    // The lock only makes the type `Sync`.
    join: Mutex<Box<dyn FnOnce() + Send>>,
}

impl Task {
    /// Wraps the function that waits for the thread's end.
    pub fn new(join: impl FnOnce() + Send + 'static) -> Self {
        Task { join: Mutex::new(Box::new(join)) }
    }

    /// Blocks until the thread has ended. A panic in the thread was reported when it happened and is not
    /// raised here.
    pub fn join(self) {
        (self.join.into_inner().unwrap_or_else(PoisonError::into_inner))()
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// A counter that threads raise and wait for. A raise between [`Signal::seen`] and [`Signal::wait`] is never
/// missed.
pub trait Signal: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Increments the counter and wakes all waiting threads. Does not block.
    fn raise(&self);
    /// Returns the current count.
    fn seen(&self) -> u64;
    /// Blocks until the count differs from `seen` or until the time `until`; returns whether it differs.
    fn wait(&self, seen: u64, until: Nanos) -> bool;
}

/// The clock of a host, for code that does not know the host's type. Cloning the clock of a real host costs
/// nothing.
#[derive(Clone)]
pub struct Clock(Option<Arc<dyn Fn() -> Nanos + Send + Sync>>);

impl Clock {
    /// The clock of [`RealHost`].
    pub const REAL: Clock = Clock(None);

    /// Returns the clock of a host other than [`RealHost`].
    pub fn of<H: Host>(host: &H) -> Clock {
        let host = host.clone();
        Clock(Some(Arc::new(move || host.now())))
    }

    /// Returns the time, as [`Host::now`].
    #[inline]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            None => RealHost.now(),
            Some(now) => now(),
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_none() { "Clock(real)" } else { "Clock" })
    }
}

/// Time, threads and randomness. All clones are the same host.
pub trait Host: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// The type that threads of this host use to signal each other.
    type Signal: Signal;
    /// The type in which a thread of this host waits for another one.
    type Parker: Parker;

    /// Returns the time. Costs about 20 ns, so it must not be called on every poll.
    fn now(&self) -> Nanos;
    /// Returns the time as [`now`](Host::now), for supervision whose cost is spread over many calls. A
    /// simulated host charges no virtual time for it, so that supervision does not change a run.
    fn glance(&self) -> Nanos {
        self.now()
    }

    /// Returns this host's clock.
    fn clock(&self) -> Clock {
        Clock::of(self)
    }
    /// Reports that `work` was done `count` times (or on `count` bytes).
    fn charge(&self, work: Work, count: u32);
    /// Returns a number of the calling thread, for work that depends on the thread that did the work before:
    /// [`Work::TakeLine`]. `None` on a host that ignores [`charge`](Host::charge).
    #[inline]
    fn thread(&self) -> Option<u32> {
        None
    }
    /// Marks a point where a simulated thread may be pre-empted.
    fn checkpoint(&self, site: Site);
    /// Returns 64 unpredictable bits. A simulator derives them from its seed.
    fn random(&self) -> u64;
    /// Returns the id of this process, for the peer's logs. A simulator returns the simulated process's id.
    fn process_id(&self) -> u32 {
        std::process::id()
    }
    /// Makes a signal.
    fn signal(&self) -> Self::Signal;
    /// Makes a parker for one thread.
    fn parker(&self) -> Self::Parker;
    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Task>;
    /// Returns the NUMA nodes of the machine, each with the cores that the calling thread may use. Reads
    /// files, so it does not belong on a call's path.
    fn topology(&self) -> Topology {
        Topology::single()
    }
    /// Binds the calling thread to `cores`; returns the cores that it could use before. A simulated host,
    /// which has no cores, does nothing.
    fn bind(&self, cores: &[u32]) -> Result<Vec<u32>, BindError> {
        Ok(cores.to_vec())
    }
    /// Blocks until the given time.
    fn sleep(&self, until: Nanos);
}
