//! The asynchronous client: futures for any executor, over the same engine as the synchronous client.
//!
//! All asynchronous clients of a process share a hub: one core behind a mutex and one wake thread, which
//! starts with the first future that has to wait for an event. The thread arms and polls under the lock, and
//! sleeps on the doorbell without it. A future of a busy plan wakes itself instead, and polling it makes the
//! progress. Each thread that holds the lock makes progress for all.

mod ready;
mod wake;

pub use self::ready::Ready;

use super::config::ClientConfig;
use super::core::{CallId, Core};
use super::establish::{greet, negotiate};
use super::hub_lock::{HubGuard, HubLock};
use super::lane::SubmitError;
use super::lanes::Lanes;
use super::patience::Patience;
use super::running::{RunningPlan, numbered};
use super::slots::Taken;
use super::within::Time;
use crate::connect::backoff::Backoff;
use crate::error::{CallError, Cause, ConnectError};
use crate::path::hybrid::Tuning;
use crate::plan::CompletionMode;
use crate::tune::Tuners;
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Address, Buffer, Fabric, Host, Nanos, Signal, Task, ThreadDomain, WaitMode, Waker as _, nanos,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The most buffers of small results that are kept for reuse.
const MAX_SPARE: usize = 1024;

/// The state protected by the hub's lock.
#[derive(Debug)]
struct Locked<F: Fabric> {
    core: Core<F>,
    /// Tasks that wait for room in a window, by call number, with the time at which they give up.
    room: BTreeMap<u64, (Nanos, Waker)>,
    /// The number of the last call that had to wait for room.
    next_number: u64,
    /// The tasks that wait for room have to retry.
    made_room: bool,
    /// Tasks that wait for a connection, by number, with the time at which they have to try again or give up.
    unready: BTreeMap<u64, (Nanos, Waker)>,
    /// The tasks that wait for a connection have to retry.
    made_ready: bool,
    /// The wake thread is running wakers, and so any code that tasks run in them.
    waking: bool,
    spare: Vec<Vec<u8>>,
    /// The wake thread sleeps on the signal because there is nothing to wait for.
    parked: bool,
    /// The latest deadline of the calls so far, for [`Locked::lingers_until`].
    latest_due: Nanos,
    /// The latest time at which the wake thread wakes up; 0 while it is awake, because it polls again before
    /// it sleeps.
    sleeps_until: Nanos,
    /// The arrivals that wake it then. A lane that is opened later may need others.
    sleeps_for: WaitMode,
    thread: Option<Task>,
    stopping: bool,
}

#[derive(Debug)]
struct Inner<F: Fabric> {
    fabric: F,
    locked: HubLock<F, Locked<F>>,
    doorbell: <F::Domain as ThreadDomain>::Waker,
    signal: <F::Host as Host>::Signal,
}

/// The shared state of the asynchronous clients of a process. Clones refer to the same hub. Dropping the last
/// clone, including those held by clients, ends the wake thread.
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
        let thread = {
            let mut locked = self.0.lock();
            locked.stopping = true;
            locked.core.close();
            // A task may drop the hub on the wake thread itself. That thread then ends without being joined.
            locked.thread.take().filter(|_| !locked.waking)
        };
        self.0.signal.raise();
        self.0.doorbell.wake();
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

impl<F: Fabric> Inner<F> {
    fn lock(&self) -> HubGuard<'_, F, Locked<F>> {
        self.locked.lock()
    }

    /// Wakes tasks one after the other, without the lock: a waker may run any code, including the drop of
    /// another call.
    fn wake_tasks<'a>(&'a self, mut locked: HubGuard<'a, F, Locked<F>>) {
        // Taken all at once, so that a task that finds no room and waits again is not woken twice for the
        // same reason.
        let room = if std::mem::take(&mut locked.made_room) {
            std::mem::take(&mut locked.room)
        } else {
            BTreeMap::new()
        };
        let ready = if std::mem::take(&mut locked.made_ready) {
            std::mem::take(&mut locked.unready)
        } else {
            BTreeMap::new()
        };
        if !room.is_empty() || !ready.is_empty() {
            drop(locked);
            room.into_values().chain(ready.into_values()).for_each(|(_, waker)| waker.wake());
            locked = self.lock();
        }
        while let Some(waker) = locked.core.next_woken() {
            drop(locked);
            waker.wake();
            locked = self.lock();
        }
    }
}

impl<F: Fabric> AsyncHub<F> {
    /// Creates a hub. One per process is enough.
    pub fn new(fabric: &F) -> Result<Self, ConnectError> {
        let core = Core::new(fabric, CompletionMode::Event)?;
        let doorbell = core.domain.waker();
        let locked = Locked {
            core,
            room: BTreeMap::new(),
            next_number: 0,
            made_room: false,
            unready: BTreeMap::new(),
            made_ready: false,
            waking: false,
            spare: Vec::new(),
            parked: false,
            latest_due: 0,
            sleeps_until: 0,
            sleeps_for: WaitMode::Busy,
            thread: None,
            stopping: false,
        };
        let inner = Inner {
            fabric: fabric.clone(),
            locked: HubLock::new(fabric, locked),
            doorbell,
            signal: fabric.host().signal(),
        };
        Ok(AsyncHub(Arc::new(HubHandle(Arc::new(inner)))))
    }

    fn inner(&self) -> &Arc<Inner<F>> {
        &self.0.0
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.inner().fabric
    }
}

impl<F: Fabric> Locked<F> {
    /// Marks the tasks that wait for room to be woken if there is room or one of them is overdue. Returns the
    /// earliest time at which one gives up.
    fn look_for_room(&mut self, now: Nanos) -> Nanos {
        let next = self.room.values().map(|(until, _)| *until).min().unwrap_or(Nanos::MAX);
        if !self.room.is_empty() && (now >= next || self.core.has_room()) {
            self.made_room = true;
        }
        next
    }
}

#[derive(Debug)]
struct ConnectionState {
    lanes: Lanes,
    old: Vec<u16>,
    backoff: Backoff,
    /// A thread is connecting.
    connecting: bool,
    next_worker: usize,
}

#[derive(Debug)]
struct Connection<F: Fabric> {
    hub: AsyncHub<F>,
    address: Address,
    config: ClientConfig,
    /// [`ClientConfig::timeout`] in nanoseconds; 0 for none.
    timeout: Nanos,
    /// The tuners shared by all connections.
    tuners: Tuners,
    /// Futures wake themselves because the plan is busy.
    busy: bool,
    state: Mutex<ConnectionState>,
}

/// An asynchronous client. Clones share the connection, and all methods may be called from any thread.
///
/// With [`ClientConfig::batching`], calls made while others to the same worker are in flight share one
/// message, which is sent when those are answered, or as the batching settings say.
#[derive(Debug)]
pub struct AsyncClient<F: Fabric>(Arc<Connection<F>>);

impl<F: Fabric> Clone for AsyncClient<F> {
    fn clone(&self) -> Self {
        AsyncClient(Arc::clone(&self.0))
    }
}

impl<F: Fabric> Connection<F> {
    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects. Blocks, but holds the hub's lock only during the short steps.
    fn establish(&self) -> Result<Vec<u16>, ConnectError> {
        let inner = self.hub.inner();
        let until = inner.fabric.host().now().saturating_add(nanos(self.config.connect_timeout));
        let greeting = greet(&inner.fabric, &self.address, &self.config, until)?;
        let prepared = inner.lock().core.prepare(&greeting, &self.config, &self.tuners)?;
        match negotiate(&greeting, &prepared, until) {
            Ok(ready) => inner.lock().core.install(&greeting, &self.config, prepared, &ready, &self.tuners),
            Err(error) => {
                inner.lock().core.discard(prepared);
                Err(error)
            }
        }
    }

    /// Starts to reconnect on a new thread if `lost`, unless one is already connecting, the back-off forbids it, or
    /// another thread has connected since this one found no connection.
    fn reconnect_if(self: &Arc<Self>, lost: bool) {
        if lost {
            self.reconnect(false);
        }
    }

    /// As [`reconnect_if`](Connection::reconnect_if); also replaces a connection that accepts calls, if it is `drained`.
    #[cold]
    fn reconnect(self: &Arc<Self>, drained: bool) {
        let host = self.hub.inner().fabric.host().clone();
        {
            // Lock order: the hub before the connection.
            let mut locked = self.hub.inner().lock();
            let mut old = {
                let mut state = self.state();
                if state.connecting || !state.backoff.is_due(host.now()) {
                    return;
                }
                let lanes = state.lanes.all();
                if !drained && !lanes.is_empty() && lanes.iter().all(|lane| locked.core.is_usable(*lane)) {
                    return;
                }
                state.connecting = true;
                let mut old = std::mem::take(&mut state.old);
                old.append(&mut state.lanes.take());
                old
            };
            // May read control connections, which is allowed under the hub's lock.
            old.retain(|lane| {
                locked.core.retire(*lane);
                let spent = locked.core.is_spent(*lane);
                if spent {
                    locked.core.remove(*lane);
                }
                !spent
            });
            self.state().old = old;
        }
        let connection = Arc::clone(self);
        let body = Box::new(move || {
            let established = connection.establish();
            let host = connection.hub.inner().fabric.host();
            let mut state = connection.state();
            state.connecting = false;
            match established {
                Ok(lanes) => {
                    state.lanes.set(lanes, connection.config.plans().len());
                    state.backoff.succeeded();
                }
                Err(error) => {
                    state.backoff.failed(host.now(), host.random());
                    let (address, failures) = (&connection.address, state.backoff.failures());
                    // One line for each outage says why.
                    match failures {
                        1 => {
                            tracing::warn!(target: "dunlin::client", %address, error = %WithSources(&error), "no connection; the client connects again with back-off")
                        }
                        _ => {
                            tracing::debug!(target: "dunlin::client", %address, error = %WithSources(&error), failures, "no connection")
                        }
                    }
                }
            }
            drop(state);
            connection.hub.inner().tell_unready();
        });
        if let Err(error) = host.spawn("dunlin-connect", body) {
            tracing::error!(target: "dunlin::client", %error, "no thread to connect again");
            self.state().connecting = false;
        }
    }

    /// Returns whether the server that this is connected to has no such worker.
    fn has_no(&self, worker: Option<usize>) -> bool {
        let state = self.state();
        worker.is_some_and(|worker| !state.lanes.all().is_empty() && worker >= state.lanes.workers())
    }

    /// Returns the lane for a function's calls to a worker, if it accepts calls.
    fn lane(self: &Arc<Self>, locked: &mut Locked<F>, worker: Option<usize>, function: u16) -> Option<u16> {
        let mut state = self.state();
        let worker = worker.unwrap_or_else(|| {
            state.next_worker = (state.next_worker + 1) % state.lanes.workers().max(1);
            state.next_worker
        });
        let lane = state.lanes.of(worker, function)?;
        locked.core.is_usable(lane).then_some(lane)
    }
}

impl<F: Fabric> Drop for Connection<F> {
    fn drop(&mut self) {
        let mut locked = self.hub.inner().lock();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lane in state.lanes.take().into_iter().chain(state.old.drain(..)) {
            locked.core.remove(lane);
        }
    }
}

impl<F: Fabric> AsyncClient<F> {
    /// Connects to all workers of a server. Blocks for at most [`ClientConfig::connect_timeout`], so call it
    /// outside the executor or where blocking is allowed; with [`ClientConfig::lazy`] it does not connect yet
    /// and does not block.
    pub fn connect(hub: &AsyncHub<F>, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let config = config.settled(&hub.inner().fabric);
        config.check_plans(hub.inner().fabric.capabilities())?;
        let backoff = Backoff::new(config.backoff);
        let state = ConnectionState {
            lanes: Lanes::new(&config),
            old: Vec::new(),
            backoff,
            connecting: false,
            next_worker: 0,
        };
        let connection = Arc::new(Connection {
            hub: hub.clone(),
            address: address.clone(),
            busy: config.mode() == CompletionMode::Busy,
            tuners: config.tuners(&hub.inner().fabric),
            timeout: config.call_nanos(),
            config,
            state: Mutex::new(state),
        });
        if !connection.config.lazy {
            let lanes = connection.establish()?;
            connection.state().lanes.set(lanes, connection.config.plans().len());
        }
        Ok(AsyncClient(connection))
    }

    /// Returns the number of workers that this client has lanes to; 0 without a connection.
    pub fn workers(&self) -> usize {
        self.0.state().lanes.workers()
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, and the reasons. The client
    /// does not know where the function runs.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        self.plan_of_as(function, &numbered)
    }

    /// As [`plan_of`](AsyncClient::plan_of), with names for functions, for layers that have them.
    pub fn plan_of_as(&self, function: u16, name: &dyn Fn(u16) -> String) -> RunningPlan {
        let transport = self.0.hub.inner().fabric.capabilities().name;
        self.0.config.running(function, transport, &self.0.tuners, name, true)
    }

    /// Returns the current tuning of each lane whose results are fetched or written back; empty for other
    /// plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        let locked = self.0.hub.inner().lock();
        locked.core.tuning(self.0.state().lanes.all())
    }

    /// Returns the current largest batch, in calls, of each lane; empty without [`ClientConfig::batching`].
    pub fn batch_calls(&self) -> Vec<u16> {
        let locked = self.0.hub.inner().lock();
        locked.core.batch_calls(self.0.state().lanes.all()).collect()
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
        AsyncWithin { client: self, time: Time { nanos: self.0.timeout, is_own: false } }
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

    fn start(&self, worker: Option<usize>, function: u16, payload: &[u8], time: Time) -> Call<F> {
        if time.is_over() {
            let state = CallState::Failed(CallError::NotExecuted(Cause::DeadlineExceeded));
            return Call { client: self.clone(), state };
        }
        let mut locked = self.0.hub.inner().lock();
        let to = (worker, function);
        let state = match self.submit(&mut locked, to, payload, time) {
            Ok(id) => CallState::Sent(id),
            Err(error) => match self.waits(&error, time) {
                Some((until, patience)) => {
                    let (number, payload) = (locked.next_number(), payload.to_vec());
                    CallState::Waiting { number, to, payload, time, until, patience }
                }
                None => CallState::Failed(error),
            },
        };
        drop(locked);
        Call { client: self.clone(), state }
    }

    /// Returns the deadline of a call that waits because of `error`, and its patience with a missing
    /// connection; `None` if it does not wait.
    fn waits(&self, error: &CallError, time: Time) -> Option<(Nanos, Option<Patience>)> {
        let wait_for_ready = self.0.config.wait_for_ready;
        let waits = match error {
            CallError::NotExecuted(Cause::WindowFull) => true,
            CallError::NotExecuted(Cause::Disconnected) => !wait_for_ready.is_zero(),
            _ => false,
        };
        let now = waits.then(|| self.0.hub.inner().fabric.host().now())?;
        Some((time.ends(now), Patience::new(wait_for_ready, time, now)))
    }

    fn submit(
        &self,
        locked: &mut Locked<F>,
        (worker, function): (Option<usize>, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, CallError> {
        let submitted = match self.0.lane(locked, worker, function) {
            Some(lane) => locked.core.with_lane(lane, |fabric, domain, lane| match lane.batching {
                None => lane.submit(fabric, domain, function, payload, time.nanos),
                // The batch is shared with the calls of other threads until the messages in flight are
                // answered.
                Some(_) => {
                    let call = lane.push(fabric, domain, function, payload, time)?;
                    // The call exists from here on. An error of the lane reaches it as its outcome.
                    let _ = lane.flush_alone(fabric, domain);
                    Ok(call)
                }
            }),
            None if self.0.has_no(worker) => {
                Err(SubmitError::Call(CallError::NotExecuted(Cause::NoSuchWorker)))
            }
            None => Err(SubmitError::Broken),
        };
        match submitted {
            Ok(id) => Ok(id),
            Err(SubmitError::Full) => Err(CallError::NotExecuted(Cause::WindowFull)),
            Err(SubmitError::Call(error)) => Err(error),
            Err(SubmitError::Broken) => Err(CallError::NotExecuted(Cause::Disconnected)),
        }
    }

    fn busy(&self) -> bool {
        self.0.busy
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

#[derive(Debug)]
enum CallState {
    /// The window was full, or there was no connection. The call is sent when there is room.
    Waiting {
        /// The key in the maps of calls that wait for room and for a connection.
        number: u64,
        /// The worker and the function.
        to: (Option<usize>, u16),
        payload: Vec<u8>,
        /// The call's time when it was made, and its deadline.
        time: Time,
        until: Nanos,
        /// How long it waits for a connection; `None` if it does not.
        patience: Option<Patience>,
    },
    Sent(CallId),
    Failed(CallError),
    Over,
}

/// A call in progress. Dropping it cancels the call on the client; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct Call<F: Fabric> {
    client: AsyncClient<F>,
    state: CallState,
}

impl<F: Fabric> Call<F> {
    /// Detaches the call: it continues, and its answer is discarded.
    ///
    /// # Errors
    /// The call was not sent and will not be executed; [`Cause::WindowFull`] if there was no room.
    pub fn leave(mut self) -> Result<(), CallError> {
        match &self.state {
            CallState::Sent(_) | CallState::Over => Ok(()),
            // Dropping the call removes it from the queue.
            CallState::Waiting { .. } => {
                let connected = self.client.workers() > 0;
                self.client.0.reconnect_if(!connected);
                let cause = if connected { Cause::WindowFull } else { Cause::Disconnected };
                Err(CallError::NotExecuted(cause))
            }
            CallState::Failed(_) => match std::mem::replace(&mut self.state, CallState::Over) {
                CallState::Failed(error) => Err(error),
                _ => Ok(()),
            },
        }
    }
}

impl<F: Fabric> Future for Call<F> {
    type Output = Result<AsyncResponse<F>, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let inner = Arc::clone(this.client.0.hub.inner());
        let mut locked = inner.lock();
        if locked.core.progress() > 0 {
            // Late answers to cancelled calls make room, and nothing else would notice it.
            locked.look_for_room(0);
        }
        let replaced = match &this.state {
            CallState::Waiting { number, .. } => (locked.room.remove(number), locked.unready.remove(number)),
            _ => (None, None),
        };
        let poll = this.poll_locked(&inner, &mut locked, context);
        let unready = match &this.state {
            CallState::Waiting { number, .. } => locked.unready.contains_key(number),
            _ => false,
        };
        inner.wake_tasks(locked);
        // Dropping a waker may drop a task, and with it another call: release the lock first.
        drop(replaced);
        if poll.is_pending() && this.client.busy() && !unready {
            context.waker().wake_by_ref();
        }
        match &poll {
            Poll::Ready(Err(CallError::NotExecuted(Cause::Draining))) => this.client.0.reconnect(true),
            Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected))) => this.client.0.reconnect_if(true),
            _ => this.client.0.reconnect_if(unready),
        }
        poll
    }
}

impl<F: Fabric> Call<F> {
    fn poll_locked(
        &mut self,
        inner: &Arc<Inner<F>>,
        locked: &mut Locked<F>,
        context: &Context<'_>,
    ) -> Poll<Result<AsyncResponse<F>, CallError>> {
        if let CallState::Waiting { number, to, payload, time, until, patience } = &self.state {
            let now = inner.fabric.host().now();
            let left = time.left(*until, now);
            let submitted = match left.is_over() {
                true => Err(CallError::NotExecuted(Cause::DeadlineExceeded)),
                false => self.client.submit(locked, *to, payload, left),
            };
            self.state = match (submitted, patience) {
                (Ok(id), _) => CallState::Sent(id),
                (Err(CallError::NotExecuted(Cause::WindowFull)), _) => {
                    // A busy future wakes itself.
                    if !self.client.busy() {
                        locked.room.insert(*number, (*until, context.waker().clone()));
                        locked.employ(inner, *until);
                    }
                    return Poll::Pending;
                }
                (Err(CallError::NotExecuted(Cause::Disconnected)), Some(patience)) => {
                    if now < patience.until {
                        self.client.0.await_ready(locked, *number, patience.until, context.waker());
                        return Poll::Pending;
                    }
                    CallState::Failed(CallError::NotExecuted(patience.cause))
                }
                (Err(error), _) => CallState::Failed(error),
            };
        }
        match std::mem::replace(&mut self.state, CallState::Over) {
            CallState::Sent(id) if locked.core.is_done(id) => {
                let spare = locked.spare.pop().unwrap_or_default();
                let taken = locked.core.take(id, spare);
                locked.made_room = true;
                let hub = self.client.0.hub.clone();
                Poll::Ready(taken.map(|taken| match taken {
                    Taken::Small(bytes) => AsyncResponse { bytes, large: None, hub },
                    Taken::Large(buffer) => AsyncResponse { bytes: Vec::new(), large: Some(buffer), hub },
                }))
            }
            CallState::Sent(id) => {
                self.state = CallState::Sent(id);
                if self.client.busy() {
                    locked.core.expire_now_and_then();
                } else {
                    locked.core.set_waker(id, context.waker());
                    let due = locked.core.deadline(id, || inner.fabric.host().now());
                    locked.employ(inner, due);
                }
                Poll::Pending
            }
            CallState::Failed(error) => Poll::Ready(Err(error)),
            CallState::Waiting { .. } | CallState::Over => {
                Poll::Ready(Err(CallError::MaybeExecuted(Cause::Closed)))
            }
        }
    }
}

impl<F: Fabric> Drop for Call<F> {
    fn drop(&mut self) {
        let inner = Arc::clone(self.client.0.hub.inner());
        match &self.state {
            CallState::Sent(id) => {
                let mut locked = inner.lock();
                locked.core.forget(*id);
                locked.look_for_room(0);
                inner.wake_tasks(locked);
            }
            CallState::Waiting { number, .. } => {
                // Drop the waker without the lock, as in `poll`.
                let waiting = {
                    let mut locked = inner.lock();
                    (locked.room.remove(number), locked.unready.remove(number))
                };
                drop(waiting);
            }
            CallState::Failed(_) | CallState::Over => {}
        }
    }
}

/// The result of an asynchronous call. Dropping it returns its memory to the hub.
#[derive(Debug)]
pub struct AsyncResponse<F: Fabric> {
    bytes: Vec<u8>,
    large: Option<Buffer<F::Memory>>,
    hub: AsyncHub<F>,
}

impl<F: Fabric> Deref for AsyncResponse<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.large.as_deref().unwrap_or(&self.bytes)
    }
}

impl<F: Fabric> Drop for AsyncResponse<F> {
    fn drop(&mut self) {
        if self.bytes.capacity() > 0 {
            let mut locked = self.hub.inner().lock();
            if locked.spare.len() < MAX_SPARE {
                locked.spare.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
