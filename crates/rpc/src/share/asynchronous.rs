//! The asynchronous client: futures for any executor, over the same engine as the synchronous client.
//!
//! All asynchronous clients of a process share a hub: one engine behind the lead (`combine/lead.rs`), the tickets of all
//! calls, and one wake thread, which starts with the first future that has to wait for an event. The thread arms and
//! polls with the lead, and sleeps on the doorbell without it. A future of a busy plan wakes itself instead, and
//! polling it makes the progress. Each thread that leads makes progress for all.
//!
//! | file | holds |
//! |---|---|
//! | `hub.rs` | the engine behind the lead: sends, progress, delivery |
//! | `call.rs` | a call and its future |
//! | `clones.rs`, `strands.rs` | clones that share queue pairs, and which of them each uses |
//! | `lead.rs` | the lead: taking it, giving it back, wakers |
//! | `ticket.rs` | the hub's part of a ticket |
//! | `memory.rs` | operations on memory as futures |
//! | `route.rs` | the way of a call to its lane |
//! | `connection.rs`, `ready.rs` | connecting, and tasks that wait for a connection |
//! | `wake.rs` | the wake thread |
//! | `../../combine/tickets/pool.rs`, `waker.rs` | the tickets, and the wakers of their tasks |

mod call;
mod clones;
mod connection;
mod hub;
mod lead;
mod memory;
mod ready;
mod route;
mod strands;
mod ticket;
mod wake;

pub use self::call::{AsyncResponse, Call};
pub use self::memory::{Attach, MemoryCall};
pub use self::ready::Ready;

use self::clones::{Handle, Seat};
use self::connection::{Connection, Target};
use self::hub::Inner;
use self::strands::{NO_CLONE, Strands};
use crate::client::config::ClientConfig;
use crate::client::running::{RunningPlan, numbered};
use crate::client::within::Time;
use crate::error::ConnectError;
use crate::path::half::hybrid::Tuning;
use crate::share::most_strands;
use dunlin_fabric::{Address, Fabric, Signal, Task, Waker as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The shared state of the asynchronous clients of a process. Clones refer to the same hub. Dropping the last
/// clone, including those held by clients, ends the wake thread.
///
/// A hub has tickets for 65 536 calls. A call beyond that fails with [`Cause::WindowFull`](crate::Cause::WindowFull),
/// "not executed".
#[derive(Debug)]
pub struct AsyncHub<F: Fabric>(Arc<HubHandle<F>>);

impl<F: Fabric> Clone for AsyncHub<F> {
    fn clone(&self) -> Self {
        AsyncHub(Arc::clone(&self.0))
    }
}

/// Ends the wake thread when the last user drops the hub. The thread itself holds only the inner state.
#[derive(Debug)]
struct HubHandle<F: Fabric>(Arc<Inner<F>>);

impl<F: Fabric> Drop for HubHandle<F> {
    fn drop(&mut self) {
        let (inner, gate) = (&self.0, self.0.gate());
        gate.stopping.store(true, Ordering::SeqCst);
        gate.signal.raise();
        gate.doorbell.wake();
        let thread = inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A task may drop the hub on the wake thread itself. That thread then ends without being joined.
        thread.filter(|_| !gate.waking.load(Ordering::SeqCst)).into_iter().for_each(Task::join);
        // Nobody else can lead now, except in a process that was killed, whose connections are gone.
        if let Some(mut lead) = inner.try_lead() {
            lead.core.close();
        }
    }
}

impl<F: Fabric> AsyncHub<F> {
    /// Creates a hub. One per process is enough.
    pub fn new(fabric: &F) -> Result<Self, ConnectError> {
        Ok(AsyncHub(Arc::new(HubHandle(Arc::new(Inner::new(fabric)?)))))
    }

    fn inner(&self) -> &Arc<Inner<F>> {
        &self.0.0
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.inner().fabric
    }
}

/// An asynchronous client. All methods may be called from any thread.
///
/// Clones share connections by the policy of the plan. Under [`Sharing::Combined`](crate::Sharing::Combined) each clone
/// is a thread of one handle: as long as the server grants them, clones that make many calls share several queue pairs to each worker, up to
/// [`ClientConfig::max_queue_pairs`] and no more than there are such clones. Further queue pairs are opened in the
/// background and closed when clones are dropped. The order of a clone's calls to a worker is kept. More than 256 clones
/// of a client share places. Under any other policy all clones share one connection, which the hub's lock guards.
///
/// With [`ClientConfig::batching`], calls made while others to the same worker are in flight share one
/// message, which is sent when those are answered, or as the batching settings say.
#[derive(Debug)]
pub struct AsyncClient<F: Fabric> {
    /// The first connection of the client.
    connection: Arc<Connection<F>>,
    /// The place of this clone, if clones share several connections.
    seat: Option<Arc<Seat<F>>>,
}

impl<F: Fabric> Clone for AsyncClient<F> {
    fn clone(&self) -> Self {
        AsyncClient {
            connection: Arc::clone(&self.connection),
            seat: self.seat.as_ref().map(|seat| seat.another()),
        }
    }
}

impl<F: Fabric> AsyncClient<F> {
    /// Connects to all workers of a server. Blocks for at most [`ClientConfig::connect_timeout`], so call it
    /// outside the executor or where blocking is allowed; with [`ClientConfig::lazy`] it does not connect yet.
    pub fn connect(hub: &AsyncHub<F>, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let config = config.resolved(&hub.inner().fabric);
        config.check_plans(hub.inner().fabric.capabilities())?;
        let strands =
            (most_strands::<F>(&config) > 1).then(|| Arc::new(Strands::new(config.thread_scheduling)));
        let strand = strands.clone().map(|strands| (strands, 0));
        let target = Target::new(hub.fabric(), address, config);
        let connection = Arc::new(Connection::new(hub, target, strand));
        if !connection.config.lazy {
            connection.establish()?;
        }
        let handle = strands.map(|strands| Arc::new(Handle::new(&connection, strands)));
        // If the hub has no place left for it, the client keeps to its first connection.
        let seat = handle.and_then(|handle| handle.sit()).map(Arc::new);
        Ok(AsyncClient { connection, seat })
    }

    /// Returns the client of the same clone, for its calls.
    #[inline]
    fn again(&self) -> Self {
        AsyncClient { connection: Arc::clone(&self.connection), seat: self.seat.clone() }
    }

    /// Returns the connection that the clone uses.
    #[inline]
    fn strand(&self) -> &Arc<Connection<F>> {
        self.seat.as_ref().and_then(|seat| seat.connection()).unwrap_or(&self.connection)
    }

    /// Returns the number of the clone in the hub, if clones share several connections.
    #[inline]
    fn clone_number(&self) -> u32 {
        self.seat.as_ref().map_or(NO_CLONE, |seat| seat.clone)
    }

    /// Returns the number of workers that this client has lanes to; 0 without a connection.
    pub fn workers(&self) -> usize {
        self.strand().workers.load(Ordering::Relaxed)
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, and the reasons. The client
    /// does not know where the function runs.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        self.plan_of_as(function, &numbered)
    }

    /// As [`plan_of`](AsyncClient::plan_of), with names for functions, for layers that have them.
    pub fn plan_of_as(&self, function: u16, name: &dyn Fn(u16) -> String) -> RunningPlan {
        let connection = &self.connection;
        let transport = connection.hub.inner().fabric.capabilities().name;
        let occupancy = connection.state().occupancy;
        connection.config.running(function, transport, &connection.tuners, name, true, occupancy)
    }

    /// Returns the current tuning of each lane whose results are fetched or written back; empty for other
    /// plans. Waits for a thread that leads.
    pub fn tuning(&self) -> Vec<Tuning> {
        let lead = self.connection.hub.inner().lead();
        lead.core.tuning(lead.lanes(self.strand().number))
    }

    /// Returns the current largest batch, in calls, of each lane; empty without [`ClientConfig::batching`]. Waits for a
    /// thread that leads.
    pub fn batch_calls(&self) -> Vec<u16> {
        let lead = self.connection.hub.inner().lead();
        lead.core.batch_calls(lead.lanes(self.strand().number)).collect()
    }

    /// Returns a view of this client for calls with a time of their own, in place of
    /// [`ClientConfig::timeout`]. As [`Client::within`](crate::Client::within).
    pub fn within(&self, time: Duration) -> AsyncWithin<'_, F> {
        AsyncWithin { client: self, time: Time::own(time) }
    }

    /// As [`within`](AsyncClient::within), or with the time of the settings otherwise.
    pub fn within_or_default(&self, time: Option<Duration>) -> AsyncWithin<'_, F> {
        time.map_or_else(|| self.usually(), |time| self.within(time))
    }

    fn usually(&self) -> AsyncWithin<'_, F> {
        AsyncWithin { client: self, time: Time { nanos: self.connection.timeout, is_own: false } }
    }

    /// Makes a call on any worker. If there is room, the call is sent at once, before the first poll.
    /// Dropping the future cancels the call.
    pub fn call(&self, function: u16, payload: &[u8]) -> Call<F> {
        self.usually().call(function, payload)
    }

    /// As [`call`](AsyncClient::call), on the given worker.
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call<F> {
        self.usually().call_on(worker, function, payload)
    }
}

/// A view of an [`AsyncClient`] for calls with a time of their own; see [`AsyncClient::within`].
#[derive(Debug)]
pub struct AsyncWithin<'a, F: Fabric> {
    client: &'a AsyncClient<F>,
    time: Time,
}

impl<F: Fabric> Clone for AsyncWithin<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric> Copy for AsyncWithin<'_, F> {}

impl<F: Fabric> AsyncWithin<'_, F> {
    /// As [`AsyncClient::call`].
    pub fn call(&self, function: u16, payload: &[u8]) -> Call<F> {
        self.client.start(None, function, payload, self.time)
    }

    /// As [`AsyncClient::call_on`].
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call<F> {
        self.client.start(Some(worker), function, payload, self.time)
    }
}

#[cfg(test)]
mod tests;
