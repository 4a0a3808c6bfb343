//! The route of a call to its lane.

use super::strands::{NO_CLONE, Strands};
use crate::client::core::{CallId, Core};
use crate::client::lane::SubmitError;
use crate::client::lanes::Lanes;
use crate::client::memory::{Attached, MemoryOperation, NOT_GRANTED};
use crate::client::within::Time;
use crate::error::{CallError, Cause};
use dunlin_fabric::{Fabric, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Any worker.
const ANY: u32 = u32::MAX;

/// The target and the time of a call, as they lie in its ticket. The order of the ticket's states hands them over.
#[derive(Debug)]
pub(super) struct To {
    /// Of a clone that shares queue pairs with others, the first one of its client.
    connection: AtomicU32,
    clone: AtomicU32,
    worker: AtomicU32,
    nanos: AtomicU64,
    is_own: AtomicBool,
    /// The deadline of a call that may have to wait before it is sent; 0 if its time begins with the message.
    until: AtomicU64,
    /// The thread that has made the call, on a host that says so.
    thread: AtomicU32,
}

impl Default for To {
    fn default() -> Self {
        To::new((0, NO_CLONE), None, Time { nanos: 0, is_own: false })
    }
}

impl To {
    pub(super) fn new((connection, clone): (u32, u32), worker: Option<usize>, time: Time) -> Self {
        let worker = worker.map_or(ANY, |worker| u32::try_from(worker).unwrap_or(ANY).min(ANY - 1));
        To {
            connection: AtomicU32::new(connection),
            clone: AtomicU32::new(clone),
            worker: AtomicU32::new(worker),
            nanos: AtomicU64::new(time.nanos),
            is_own: AtomicBool::new(time.is_own),
            until: AtomicU64::new(0),
            thread: AtomicU32::new(u32::MAX),
        }
    }

    /// Returns the call of a thread.
    pub(super) fn by(self, thread: Option<u32>) -> Self {
        thread.into_iter().for_each(|thread| self.thread.store(thread, Ordering::Relaxed));
        self
    }

    /// Returns whether the call was made by another thread.
    pub(super) fn is_of_other(&self, thread: Option<u32>) -> bool {
        thread.is_some_and(|thread| self.thread.load(Ordering::Relaxed) != thread)
    }

    /// Begins the call's time.
    pub(super) fn begin(&self, until: Nanos) {
        self.until.store(until, Ordering::Relaxed);
    }

    /// Returns the deadline of a call whose time has begun, else 0.
    pub(super) fn until(&self) -> Nanos {
        self.until.load(Ordering::Relaxed)
    }

    /// The call's whole time.
    pub(super) fn time(&self) -> Time {
        Time { nanos: self.nanos.load(Ordering::Relaxed), is_own: self.is_own.load(Ordering::Relaxed) }
    }

    pub(super) fn copy(&self, other: &To) {
        self.connection.store(other.connection.load(Ordering::Relaxed), Ordering::Relaxed);
        self.clone.store(other.clone.load(Ordering::Relaxed), Ordering::Relaxed);
        self.worker.store(other.worker.load(Ordering::Relaxed), Ordering::Relaxed);
        self.nanos.store(other.nanos.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_own.store(other.is_own.load(Ordering::Relaxed), Ordering::Relaxed);
        self.until.store(other.until.load(Ordering::Relaxed), Ordering::Relaxed);
        self.thread.store(other.thread.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn connection(&self) -> u32 {
        self.connection.load(Ordering::Relaxed)
    }

    /// The clone that makes the call, or [`NO_CLONE`].
    #[inline]
    pub(super) fn clone_number(&self) -> u32 {
        self.clone.load(Ordering::Relaxed)
    }

    /// The worker; `None` for any.
    #[inline]
    pub(super) fn worker(&self) -> Option<usize> {
        let worker = self.worker.load(Ordering::Relaxed);
        (worker != ANY).then_some(worker as usize)
    }

    /// The time that is left. Reads the clock only if the time has begun.
    #[inline]
    pub(super) fn left(&self, now: impl FnOnce() -> Nanos) -> Time {
        match self.until() {
            0 => self.time(),
            until => self.time().left(until, now()),
        }
    }
}

/// The lane of a call.
pub(super) enum Lane {
    At(u16),
    /// There is none that accepts calls.
    None,
    /// The server has no such worker.
    NoSuchWorker,
}

/// A connection's lanes.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) lanes: Lanes,
    next_worker: usize,
    /// The grants of the server's regions on these lanes, by number; a refusal until it is asked for.
    pub(super) attached: Vec<Option<Option<Attached>>>,
    /// The strands of the client whose clones share several connections, and the number of this one.
    pub(super) strand: Option<(Arc<Strands>, u16)>,
    /// How often this one was closed as a strand.
    pub(super) closings: u32,
}

impl Route {
    pub(super) fn new(lanes: Lanes, strand: Option<(Arc<Strands>, u16)>) -> Self {
        Route { lanes, next_worker: 0, attached: Vec::new(), strand, closings: 0 }
    }

    pub(super) fn workers(&self) -> usize {
        self.lanes.workers()
    }

    /// Returns the lane for a function's calls to a worker, if it accepts calls. Calls to any worker go to all in turn.
    #[inline]
    pub(super) fn lane<F: Fabric>(
        &mut self,
        core: &mut Core<F>,
        worker: Option<usize>,
        function: u16,
    ) -> Lane {
        let number = worker.unwrap_or_else(|| {
            self.next_worker = (self.next_worker + 1) % self.lanes.workers().max(1);
            self.next_worker
        });
        match self.lanes.of(number, function) {
            Some(lane) if core.is_usable(lane) => Lane::At(lane),
            None if worker.is_some() && number >= self.lanes.workers() && self.lanes.workers() > 0 => {
                Lane::NoSuchWorker
            }
            _ => Lane::None,
        }
    }

    /// Enters a grant of a region.
    pub(super) fn attach(&mut self, region: u16, granted: Option<Attached>) {
        let at = usize::from(region);
        if self.attached.len() <= at {
            self.attached.resize(at + 1, None);
        }
        self.attached[at] = Some(granted);
    }

    /// Posts an operation on memory, encoded as function and payload, on a lane: at once if it is `alone`, else with the
    /// next message of the lane.
    pub(super) fn post_memory<F: Fabric>(
        &self,
        (core, lane): (&mut Core<F>, u16),
        (function, payload): (u16, &[u8]),
        (time, alone): (Time, bool),
    ) -> Result<CallId, SubmitError> {
        let Some((region, operation)) = MemoryOperation::decode(function, payload) else {
            return Err(SubmitError::Call(CallError::NotExecuted(Cause::Closed)));
        };
        let Some(Some(Some(attached))) = self.attached.get(usize::from(region)) else {
            return Err(SubmitError::Call(NOT_GRANTED));
        };
        attached.check(&operation).map_err(SubmitError::Call)?;
        core.with_lane(lane, |cx, lane| lane.post_memory(cx, operation, attached.key, time.nanos, alone))
    }

    /// Returns whether there are lanes, which all accept calls.
    pub(super) fn is_usable<F: Fabric>(&self, core: &mut Core<F>) -> bool {
        let lanes = self.lanes.all();
        !lanes.is_empty() && lanes.iter().all(|lane| core.is_usable(*lane))
    }
}
