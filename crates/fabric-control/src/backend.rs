//! The interface between a fabric and its control connections.

use dunlin_fabric::{Access, GrantError, Memory, Nanos, Scheme};
use rustix::event::epoll::EventFlags;
use rustix::fd::BorrowedFd;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked while holding it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A flag that any thread can set, once.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Sets the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the flag is set.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A receiver of notifications that a link, or the other end of a queue pair, has ended. Does not block.
pub trait LinkEvents: Debug + Send + Sync + 'static {
    /// Notifies the receiver, which then checks its links and queue pairs.
    fn tell_news(&self);
}

/// The greeting with which each side starts: the fabric and the version of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// A constant that identifies the fabric.
    pub magic: [u8; 8],
    /// Increased when the meaning of frames or endpoints changes.
    pub version: u16,
}

/// Limits that the user sets.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of concurrent grants by one side of a link.
    pub max_grants: usize,
    /// The time, in nanoseconds, that a new connection has to send its greeting.
    pub greeting_patience: Nanos,
}

/// The location of granted memory, in terms of the granting side's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device's key.
    pub remote_key: u64,
    /// The address at offset 0.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
}

/// The result of handling an event of one of the back-end's descriptors.
#[derive(Debug, Default)]
pub struct Heard {
    /// The descriptor has no more events; the control thread stops watching it.
    pub forget: bool,
    /// All links end, for this reason: the device is unusable.
    pub end_links: Option<String>,
}

/// The fabric-specific part of control connections. Called by the control thread and by threads that use
/// links.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// The resource through which a peer can use granted memory; dropped when the grant ends.
    type Registration: Debug + Send + Sync + 'static;

    /// The scheme of the fabric's addresses.
    const SCHEME: Scheme;
    /// The name of the control thread.
    const THREAD: &'static str;

    /// Returns this side's greeting.
    fn greeting(&self) -> Greeting;

    /// Returns the limits.
    fn limits(&self) -> Limits;

    /// Makes memory, which was registered for `access`, usable by a peer.
    fn grant(
        &self,
        memory: &Arc<Self::Memory>,
        access: Access,
    ) -> Result<(Self::Registration, Place), GrantError>;

    /// Returns the reason why no peer is reachable now, if one is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns descriptors that the control thread watches too; at most eight.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Handles an event of the descriptor with this index.
    fn hear(&self, _place: usize, _flags: EventFlags) -> Heard {
        Heard::default()
    }

    /// Returns the latest time at which the control thread must call [`look`](Backend::look), if any.
    fn look_at(&self) -> Option<Nanos> {
        None
    }

    /// Checks the device; returns the reason if all links must end.
    fn look(&self) -> Option<String> {
        None
    }
}
