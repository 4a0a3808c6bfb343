//! Commands of other threads to a worker: open a lane, answer a call, drain. The worker checks for commands
//! with one atomic load.

use super::credited::LaneCredits;
use super::deferred::ReplyTo;
use super::open_lanes::Admission;
use crate::path::beside::Beside;
use crate::plan::Plan;
use dunlin_fabric::{Endpoint, Fabric, Nanos, Region, RegionKey, ThreadDomain, Waker};
use dunlin_wire::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Everything that a worker needs to open its end of a lane.
#[derive(Debug)]
pub(crate) struct OpenCommand<F: Fabric> {
    pub(crate) number: u16,
    pub(crate) link: F::Link,
    pub(crate) plan: Plan,
    pub(crate) window: u16,
    pub(crate) ring_bytes: u32,
    pub(crate) client_ring_bytes: u32,
    pub(crate) endpoint: Endpoint,
    /// The client's endpoints beside it, empty where the plan needs none.
    pub(crate) beside: Beside<Endpoint>,
    /// The client's inbound region.
    pub(crate) client_key: RegionKey,
    /// The client's ring of requests for the server to READ, if leases of the server's memory end.
    pub(crate) staged: Option<RegionKey>,
    /// The server's inbound region: control line and ring of requests. `None` if leases of the server's memory end: the
    /// worker has a line for the lane.
    pub(crate) region: Option<Region<F::Memory>>,
    /// The server's ring that a fetching client READs.
    pub(crate) published: Option<Region<F::Memory>>,
    pub(crate) secret: [u8; 16],
    /// The account of a lane with credits.
    pub(crate) credits: Option<Box<LaneCredits>>,
    pub(crate) admission: Admission,
}

/// A command to a worker.
#[derive(Debug)]
pub(crate) enum Command<F: Fabric> {
    /// Open a lane and answer the client.
    Open(Box<OpenCommand<F>>),
    /// Send the answer of a call that ran elsewhere.
    Answer { lane: u16, serial: u32, call: ReplyTo, status: Status, payload: Vec<u8> },
    /// The client has closed one lane of its connection.
    CloseLane { session: u64, number: u16, link: F::Link },
    /// The session has ended: remove its lanes.
    Close { session: u64 },
    /// Decide again how to wait: the number of clients on this host has changed.
    Occupancy,
    /// Finish pending work, until `until` at most; then report the last message taken on each lane, and end.
    Drain { until: Nanos },
}

/// A worker's command queue.
#[derive(Debug)]
pub(crate) struct Inbox<F: Fabric> {
    /// [`WAITING`] and [`LOOKS`].
    state: AtomicU8,
    commands: Mutex<VecDeque<Command<F>>>,
    waker: <F::Domain as ThreadDomain>::Waker,
}

/// There may be commands.
const WAITING: u8 = 1;
/// The worker looks into the inbox before it next sleeps, so nobody has to wake it.
const LOOKS: u8 = 2;

impl<F: Fabric> Inbox<F> {
    pub(crate) fn new(waker: <F::Domain as ThreadDomain>::Waker) -> Self {
        Inbox { state: AtomicU8::new(0), commands: Mutex::new(VecDeque::new()), waker }
    }

    /// Adds a command, and wakes the worker unless it is about to look.
    pub(crate) fn push(&self, command: Command<F>) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // The changes of the word have one order: this one, or the end of `looking`, sees the other.
        if self.state.fetch_or(WAITING, Ordering::AcqRel) & LOOKS == 0 {
            self.waker.wake();
        }
    }

    /// Runs a part of the worker's round after which it looks into the inbox. Only the worker calls this.
    pub(crate) fn looking<T>(&self, part: impl FnOnce() -> T) -> T {
        self.state.fetch_or(LOOKS, Ordering::AcqRel);
        let done = part();
        self.state.fetch_and(!LOOKS, Ordering::AcqRel);
        done
    }

    /// Returns whether there may be commands, with one load.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.state.load(Ordering::Acquire) & WAITING != 0
    }

    /// Takes the next command.
    pub(crate) fn pop(&self) -> Option<Command<F>> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let command = commands.pop_front();
        if commands.is_empty() {
            self.state.fetch_and(!WAITING, Ordering::AcqRel);
        }
        command
    }
}
