//! The connection to the service of another node that all threads of this one share (LITE section 6.1: K queue pairs,
//! whatever the number of threads): requests, calls of services, and waits for locks and barriers, which combine (FLOCK).
//!
//! No call waits for the end of another one, which may be a call of a service that never answers, or the end of a lock: a
//! request that a node makes to answer one must get through. So each use has its own seats, and all of them together
//! have places in a window.

use crate::calls::{MAX_RESPONSE, node_client};
use crate::error::RequestError;
use crate::node::{Node, SignalOf};
use crate::pool::{Pool, Taken};
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_rpc::{BackoffConfig, CallError, Cause, Client, ClientConfig, Plan, Sharing};
use dunlin_tier::NodeId;
use std::time::Duration;

/// Threads of this process that call services of one node at the same time.
pub(crate) const MAX_CALLERS: usize = 64;
/// The most threads of a node that wait for locks and barriers of one other node at a time.
pub(crate) const MAX_WAITERS: usize = 64;
/// Threads with a request to one node. Further ones wait: requests are short.
const MAX_REQUESTS: usize = 32;
/// Calls of a seat that take places of a window, those included that were given up and are not answered yet.
const CALLS: u16 = 2;
/// Places of a window: enough for all seats on one queue pair.
pub(crate) const WINDOW: u16 = CALLS * (MAX_CALLERS + MAX_WAITERS + MAX_REQUESTS) as u16;
/// The most seats of a connection in the engine.
const _: () = assert!(MAX_CALLERS + MAX_WAITERS + MAX_REQUESTS < 256);
/// Memory for large requests, and for large results, on one queue pair: those of its calls at the same time. Long payloads
/// of services lie in rings, as a rule.
pub(crate) const LARGE: u64 = 4 * MAX_RESPONSE;
/// Queue pairs to a node, over all workers of that node (K in section 6.1: 1 to 4). With 16 a node of ten makes a third of
/// the calls (figure `lite-14-calls`): the NIC's caches do not hold all connections.
const QUEUE_PAIRS: u16 = 4;
/// The time that a connection has at least. Those that follow on it have as much.
const RECONNECT: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to connect, and the time that a call waits for a connection: at least one
/// attempt, so that the first call to a node that has restarted finds it.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_millis(50);

/// The uses of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Requests, which are answered at once or by a thread of the pool.
    Requests,
    /// Calls of services, which their servers answer when they like.
    Calls,
    /// Calls that wait for a lock or at a barrier.
    Waits,
}

/// The clients of one node's service.
#[derive(Debug)]
pub(crate) struct Seats<F: Fabric> {
    /// The first client, whose connection the others share.
    root: Pool<Client<F>, SignalOf<F>>,
    /// By [`Use`].
    idle: [Pool<Client<F>, SignalOf<F>>; 3],
}

impl<F: Fabric> Seats<F> {
    pub(crate) fn new(host: &F::Host) -> Self {
        let limits = [MAX_REQUESTS, MAX_CALLERS, MAX_WAITERS];
        Seats { root: Pool::new(host, 1), idle: limits.map(|limit| Pool::new(host, limit)) }
    }

    fn all(&self) -> impl Iterator<Item = &Pool<Client<F>, SignalOf<F>>> {
        self.idle.iter().chain([&self.root])
    }

    /// Drops the clients that are not in use, whose node has ended.
    pub(crate) fn drain(&self) {
        self.all().for_each(Pool::drain);
    }

    /// Drops all clients: at the end.
    pub(crate) fn clear(&self) {
        self.all().for_each(Pool::clear);
    }

    /// As [`clear`](Seats::clear), for one use.
    pub(crate) fn clear_one(&self, of: Use) {
        self.idle[of as usize].clear();
    }
}

impl<F: Fabric> Node<F> {
    /// Makes a call of a function of a node's service over the connection that threads share, and passes its result to
    /// `take`. Waits for a seat until `seated` at most, and for the result until `until`. The call was not executed if
    /// it has no outcome.
    pub(crate) fn call_in_seat<T>(
        &self,
        (to, of): (NodeId, Use),
        (function, bytes): (u16, &[u8]),
        (seated, until): (Nanos, Nanos),
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Result<T, CallError>, RequestError> {
        let host = self.fabric.host();
        let seats = self.seats.get(usize::from(to.0)).ok_or_else(|| RequestError::NoNode(to.to_string()))?;
        let pool = &seats.idle[of as usize];
        let mut client = match pool.take(host, seated).ok_or(RequestError::Busy)? {
            Taken::Value(client) => client,
            Taken::Make(number) => self.seat(to, &seats.root, until).inspect_err(|_| pool.failed(number))?,
        };
        let left = Duration::from_nanos(until.saturating_sub(host.now()));
        let outcome = client.within(left).call(function, bytes).map(|response| take(&response));
        match &outcome {
            // Its answer is still to come, or those of others before: other seats have room.
            Err(
                CallError::MaybeExecuted(Cause::DeadlineExceeded) | CallError::NotExecuted(Cause::WindowFull),
            ) => {
                pool.give_last(client);
            }
            _ => pool.give(client),
        }
        Ok(outcome)
    }

    /// Makes a client for another thread: a seat at the connection.
    fn seat(
        &self,
        to: NodeId,
        root: &Pool<Client<F>, SignalOf<F>>,
        until: Nanos,
    ) -> Result<Client<F>, RequestError> {
        let failed = |source| RequestError::Connect { node: self.name_of(to), source };
        let host = self.fabric.host();
        let first = match root.take(host, until).ok_or(RequestError::Busy)? {
            Taken::Value(first) => first,
            Taken::Make(number) => {
                let plan =
                    Plan { sharing: Sharing::Combined, ..Plan::default_for(self.fabric.capabilities()) };
                let config = ClientConfig {
                    plan: Some(plan),
                    // All nodes have as many workers as this one, as far as it knows.
                    max_queue_pairs: (QUEUE_PAIRS / self.config.workers).max(1),
                    window: WINDOW,
                    calls_per_thread: Some(CALLS),
                    large_memory: LARGE,
                    backoff: BackoffConfig { longest: PAUSE, ..BackoffConfig::default() },
                    wait_for_ready: PATIENCE,
                    connect_timeout: Duration::from_nanos(until.saturating_sub(host.now())).max(RECONNECT),
                    ..node_client(self)
                };
                let address = self.address_of(to).inspect_err(|_| root.failed(number))?;
                let connected = Client::connect(&self.fabric, &address, config);
                connected.inspect_err(|_| root.failed(number)).map_err(failed)?
            }
        };
        let seat = first.another();
        root.give(first);
        seat.map_err(failed)
    }
}
