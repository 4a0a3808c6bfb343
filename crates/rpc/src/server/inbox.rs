//! Commands of other threads to a worker: open a lane, answer a call, drain. The worker checks for commands
//! with one atomic load.

use super::credited::LaneCredits;
use super::deferred::ReplyTo;
use super::open_lanes::Admission;
use crate::plan::Plan;
use dunlin_fabric::{Endpoint, Fabric, Nanos, Region, RegionKey, ThreadDomain, Waker};
use dunlin_wire::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Everything that a worker needs to open its end of a lane.
#[derive(Debug)]
pub(crate) struct OpenCommand<F: Fabric> {
    pub(crate) session: u64,
    /// The client by whose groups a lane under leases is served.
    pub(crate) client: u64,
    pub(crate) number: u16,
    pub(crate) link: F::Link,
    pub(crate) plan: Plan,
    pub(crate) window: u16,
    pub(crate) ring_bytes: u32,
    pub(crate) client_ring_bytes: u32,
    pub(crate) endpoint: Endpoint,
    /// The client's endpoint of an unreliable connection, if the plan uses one.
    pub(crate) unreliable_endpoint: Endpoint,
    /// The client's endpoint for datagrams, if it receives any.
    pub(crate) datagram_endpoint: Endpoint,
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
    Answer { lane: u16, serial: u64, call: ReplyTo, status: Status, payload: Vec<u8> },
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
    waiting: AtomicBool,
    commands: Mutex<VecDeque<Command<F>>>,
    waker: <F::Domain as ThreadDomain>::Waker,
}

impl<F: Fabric> Inbox<F> {
    pub(crate) fn new(waker: <F::Domain as ThreadDomain>::Waker) -> Self {
        Inbox { waiting: AtomicBool::new(false), commands: Mutex::new(VecDeque::new()), waker }
    }

    /// Adds a command and wakes the worker.
    pub(crate) fn push(&self, command: Command<F>) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        self.waiting.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns whether there may be commands, with one load.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes the next command.
    pub(crate) fn pop(&self) -> Option<Command<F>> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let command = commands.pop_front();
        if commands.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
        command
    }
}
