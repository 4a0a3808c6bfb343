//! What a fabric adds to its control connections.

use dunlin_fabric::{Access, GrantError, Memory, Nanos, Scheme};
use rustix::event::epoll::EventFlags;
use rustix::fd::BorrowedFd;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks, whatever a thread that panicked has left.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Set once, from any thread.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Sets it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is set.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Who is told that a link, or the other end of a queue pair, has ended. Does not block.
pub trait News: Debug + Send + Sync + 'static {
    /// There is news: look.
    fn tell_news(&self);
}

/// The first word of each side: who speaks, and which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// What only this fabric says.
    pub magic: [u8; 8],
    /// Raised when what is in the frames or endpoints changes its meaning.
    pub version: u16,
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most regions that one link's side may have granted at once.
    pub max_grants: usize,
    /// How long, in nanoseconds, who has connected to a listener may take for its greeting.
    pub greeting_patience: Nanos,
}

/// Where granted memory is, as the device of who granted it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device's key.
    pub remote_key: u64,
    /// The address that offsets count from.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
}

/// What came of listening to one of the back-end's descriptors.
#[derive(Debug, Default)]
pub struct Heard {
    /// It has nothing to say any more, and is not watched from now on.
    pub forget: bool,
    /// All links end: the device is of no use, for this reason.
    pub end_links: Option<String>,
}

/// What a fabric adds. The control thread calls it, and threads that use links.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// What lets the peer use granted memory; dropped when the grant ends.
    type Registration: Debug + Send + Sync + 'static;

    /// The scheme of its addresses.
    const SCHEME: Scheme;
    /// The control thread's name.
    const THREAD: &'static str;

    /// Who we are.
    fn greeting(&self) -> Greeting;

    /// Bounds of the user's.
    fn limits(&self) -> Limits;

    /// Makes memory, which was registered for that access, usable by a peer.
    fn grant(
        &self,
        memory: &Arc<Self::Memory>,
        access: Access,
    ) -> Result<(Self::Registration, Place), GrantError>;

    /// Why no peer can be reached now, if that is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// What the control thread is to sleep over too; at most eight.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The descriptor at this place has something to say.
    fn hear(&self, _place: usize, _flags: EventFlags) -> Heard {
        Heard::default()
    }

    /// When the control thread is to [look](Backend::look): no later than this.
    fn look_at(&self) -> Option<Nanos> {
        None
    }

    /// Looks; all links end if there is a reason.
    fn look(&self) -> Option<String> {
        None
    }
}
