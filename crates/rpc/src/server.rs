//! The server: workers that each own their lanes and their part of the service, one control thread for all
//! connections, and a thread pool for long-running functions.

mod accept;
pub(crate) mod activity;
mod clients;
pub(crate) mod clock;
pub mod config;
pub(crate) mod credited;
pub(crate) mod deferred;
pub(crate) mod deployment;
mod dispatch;
mod execute;
mod exported;
pub(crate) mod exposed;
mod groups;
pub(crate) mod inbox;
pub(crate) mod lane;
mod lines;
mod occupancy;
pub(crate) mod open;
pub(crate) mod open_lanes;
mod pipelined_reply;
mod polled;
pub(crate) mod pulled_calls;
mod seen;
mod slab;
mod slow;
mod transfers;
mod turns;
mod waiting;
pub(crate) mod worker;

pub use self::accept::Counters;
pub use self::activity::QueuePairUse;
pub use self::clients::ConnectedClient;
pub use self::config::{RequestPool, ServerConfig};
pub use self::deferred::{Incoming, Taker};
pub use self::deployment::Deployment;
pub use self::polled::{Later, PollAgain, PolledService, Started};
pub use self::slow::SLOW_HANDLER;
pub use self::turns::{GroupCounters, RunningSlice};
pub use self::worker::Worker;
pub use crate::limits::MAX_FUNCTIONS;

use self::accept::{Control, ControlState};
use self::activity::Activity;
use self::deferred::Takers;
use self::deployment::{Answering, Asking, Common, Prepared};
use self::exposed::Exposed;
use self::inbox::Inbox;
use self::occupancy::Oversubscription;
use self::turns::Turns;
use self::waiting::WaitingCalls;
use self::worker::Shared;
use crate::error::{HANDLER_RAN, ServeError};
use crate::service::{ConnectionObserver, FunctionMode, HeapReply, PoolService, Reply, Service};
use crate::tune::grouping::GroupDefaults;
use crate::tune::response_modes::ResponseModes;
use dunlin_fabric::{Access, Address, Fabric, Host, Listener, Nanos, Region, Signal, Task, end_of, nanos};
use dunlin_wire::Status;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Interval at which a server that shuts down checks whether threads still hold calls, in nanoseconds.
const HOLDERS_LOOKED_AT_EVERY: Nanos = 1_000_000;

/// Returns an error if no server can have a function with this id.
pub fn check_function(id: u16) -> Result<(), ServeError> {
    if id < MAX_FUNCTIONS {
        return Ok(());
    }
    Err(ServeError::Setting { what: "a function's number", value: id.into(), must: "below 4096" })
}

/// A server configuration that is not started yet.
pub struct ServerBuilder<F: Fabric> {
    fabric: F,
    config: ServerConfig,
    functions: Vec<Option<FunctionMode>>,
    /// The first declared id that is too large.
    too_large: Option<u16>,
    pool: Option<Arc<dyn PoolService>>,
    exposed: Vec<Exposed<F>>,
    observer: Option<Arc<dyn ConnectionObserver>>,
    takers: Takers<F>,
    polled: Option<MakePolled<F>>,
    deployment: Option<Prepared>,
}

/// Makes the polled service of the worker of this number.
type MakePolled<F> = Box<dyn FnMut(u16) -> Box<dyn PolledService<F>>>;

impl<F: Fabric> std::fmt::Debug for ServerBuilder<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> ServerBuilder<F> {
    /// Creates a builder for a server on `fabric`, with default settings and no functions.
    pub fn new(fabric: &F) -> Self {
        ServerBuilder {
            fabric: fabric.clone(),
            config: ServerConfig::default(),
            functions: Vec::new(),
            too_large: None,
            pool: None,
            exposed: Vec::new(),
            observer: None,
            takers: Takers::default(),
            polled: None,
            deployment: None,
        }
    }

    pub(crate) fn fabric(&self) -> &F {
        &self.fabric
    }

    pub(crate) fn prepare(&mut self, deployment: Prepared) {
        self.deployment = Some(deployment);
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Declares a function and where it runs. The id must be below [`MAX_FUNCTIONS`]; with a larger one,
    /// starting the server fails. The server refuses calls of undeclared functions as unknown.
    #[must_use]
    pub fn function(mut self, id: u16, mode: FunctionMode) -> Self {
        if id >= MAX_FUNCTIONS {
            self.too_large.get_or_insert(id);
            return self;
        }
        let id = id as usize;
        if self.functions.len() <= id {
            self.functions.resize(id + 1, None);
        }
        self.functions[id] = Some(mode);
        self
    }

    /// Declares a function whose calls `taker` takes, on the worker that received them. It is a
    /// [`FunctionMode::Pull`] function otherwise: [`ServerConfig::max_waiting`] does not bound its calls, the windows of
    /// the clients do.
    #[must_use]
    pub fn taken_by(mut self, id: u16, taker: Arc<dyn Taker<F>>) -> Self {
        self.takers.declared.insert(id, taker);
        self.function(id, FunctionMode::Pull)
    }

    /// Has `taker` take the calls of all functions that are not declared. Otherwise as
    /// [`taken_by`](ServerBuilder::taken_by).
    #[must_use]
    pub fn others_taken_by(mut self, taker: Arc<dyn Taker<F>>) -> Self {
        self.takers.others = Some(taker);
        for id in 0..MAX_FUNCTIONS {
            if self.functions.get(usize::from(id)).copied().flatten().is_none() {
                self = self.function(id, FunctionMode::Pull);
            }
        }
        self
    }

    /// Sets the service of each worker that starts the calls of [`FunctionMode::Polled`] functions. `service` is called
    /// with each worker's number.
    #[must_use]
    pub fn polled(mut self, service: impl FnMut(u16) -> Box<dyn PolledService<F>> + 'static) -> Self {
        self.polled = Some(Box::new(service));
        self
    }

    /// Exposes memory under a name: clients attach it ([`Client::attach`](crate::Client::attach)) and READ, WRITE and
    /// change it without a handler. Every client that may connect may do what `access` says, at any time, also while
    /// the application uses the memory.
    ///
    /// Starting the server fails if the name is empty, longer than 255 bytes or given twice, or if the memory was not
    /// registered for `access`.
    #[must_use]
    pub fn expose(mut self, name: &str, region: Region<F::Memory>, access: Access) -> Self {
        self.exposed.push(Exposed { name: name.to_owned(), region, access });
        self
    }

    /// Sets the observer of the server's connections.
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn ConnectionObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets the service that the pool's threads run.
    #[must_use]
    pub fn pool(self, service: impl PoolService) -> Self {
        self.pool_shared(Arc::new(service))
    }

    /// Sets a shared pool service of a type unknown here; otherwise like [`pool`](ServerBuilder::pool).
    #[must_use]
    pub fn pool_shared(mut self, service: Arc<dyn PoolService>) -> Self {
        self.pool = Some(service);
        self
    }

    /// Starts the server: listens on `address` and runs each worker on a thread of its own. `service` is
    /// called with each worker's number and returns its service.
    pub fn serve(
        self,
        address: &Address,
        service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<Server<F>, ServeError> {
        let fabric = self.fabric.clone();
        let (mut server, workers) = self.serve_with(address, service)?;
        for worker in workers {
            let name = format!("worker-{}", worker.number());
            let (shared, host) = (Arc::clone(&server.shared), fabric.host().clone());
            let body = Box::new(move || {
                bind(&host, &shared.config.cores);
                worker.run();
            });
            server.workers.push(fabric.host().spawn(&name, body)?);
        }
        Ok(server)
    }

    /// Starts the server without worker threads: the caller runs the returned workers on its own threads.
    /// Otherwise like [`serve`](ServerBuilder::serve).
    pub fn serve_with(
        mut self,
        address: &Address,
        mut service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<(Server<F>, Vec<Worker<F>>), ServeError> {
        self.config.check()?;
        self.too_large.map_or(Ok(()), check_function)?;
        if let Some(Prepared { settings, .. }) = &self.deployment {
            let is_taken = |id| self.functions.get(usize::from(id)).copied().flatten().is_some();
            settings.check(is_taken)?;
            let id = settings.function;
            self = self.function(id, FunctionMode::Worker);
        }
        exposed::check(&self.exposed)?;
        let fabric = self.fabric;
        let listener = fabric.listen(address)?;
        let address = listener.address();
        let waiting = self.config.max_waiting as usize;
        let groups = self.config.groups(fabric.rates().as_deref());
        let turns = Arc::new(Turns::new(groups, self.config.group_slice.is_none()));
        let deployed = self.deployment.map(|Prepared { settings, asker }| {
            let (turns, now) = (Arc::clone(&turns), fabric.host().now());
            let common = Common::new(settings, turns, self.config.max_response, now);
            (Arc::new(common), asker(&self.config))
        });
        let shared = Arc::new(Shared {
            slow: slow::FunctionSet::new(self.functions.len()),
            long: slow::FunctionSet::new(self.functions.len()),
            has_pool: self.pool.is_some(),
            functions: self.functions,
            pool: WaitingCalls::new(&fabric, waiting, self.config.spin),
            pulled: WaitingCalls::new(&fabric, waiting, self.config.spin),
            response_modes: Arc::new(ResponseModes::new(self.config.workers)),
            activity: Activity::of(&self.config),
            lane_bytes: AtomicU64::new(0),
            exposed: self.exposed,
            takers: self.takers,
            turns,
            is_deployed: deployed.is_some(),
            config: self.config.into(),
            stray_datagrams: AtomicU64::new(0),
            oversubscription: Oversubscription::default(),
        });
        let mut workers = Vec::new();
        let mut polled = self.polled;
        for number in 0..shared.config.workers {
            let service = match (service(number), &deployed) {
                (service, Some((common, _))) => {
                    Box::new(Answering { service, common: Arc::clone(common) }) as Box<dyn Service>
                }
                (service, None) => service,
            };
            let services = (service, polled.as_mut().map(|polled| polled(number)));
            workers.push(Worker::new(&fabric, number, Arc::clone(&shared), services)?);
        }
        let inboxes: Vec<Arc<Inbox<F>>> = workers.iter().map(Worker::inbox).collect();
        let state = Arc::new(ControlState::new());
        let signal = fabric.host().signal();
        let mut server = Server {
            address,
            shared: Arc::clone(&shared),
            state: Arc::clone(&state),
            signal: signal.clone(),
            control: None,
            workers: Vec::new(),
            pool: Vec::new(),
            asking: None,
            holders: Arc::default(),
            fabric: fabric.clone(),
        };
        if let Some(pool) = self.pool {
            for number in 0..shared.config.pool_threads {
                let (pool, shared, host) = (Arc::clone(&pool), Arc::clone(&shared), fabric.host().clone());
                let body = Box::new(move || {
                    bind(&host, &shared.config.cores);
                    run_pool(&*pool, &shared);
                });
                server.pool.push(fabric.host().spawn(&format!("pool-{number}"), body)?);
            }
        }
        let observer = self.observer;
        let control =
            Control { fabric: fabric.clone(), listener, shared, state, workers: inboxes, signal, observer };
        server.control = Some(fabric.host().spawn("dunlin-control", Box::new(move || control.run()))?);
        if let Some((common, asker)) = deployed {
            let (signal, stop) = (fabric.host().signal(), Arc::new(AtomicBool::new(false)));
            let asking = Asking {
                host: fabric.host().clone(),
                common,
                asker,
                signal: signal.clone(),
                stop: Arc::clone(&stop),
            };
            let task = fabric.host().spawn("dunlin-deployment", Box::new(move || asking.run()))?;
            server.asking = Some((task, signal, stop));
        }
        Ok((server, workers))
    }
}

/// Binds the calling thread to cores, if any are given. A failure is logged only.
fn bind<H: Host>(host: &H, cores: &[u32]) {
    if !cores.is_empty()
        && let Err(error) = host.bind(cores)
    {
        tracing::warn!(target: "dunlin::server", "a thread is not bound: {error}");
    }
}

/// Runs one thread of the pool.
fn run_pool<F: Fabric>(service: &dyn PoolService, shared: &Shared<F>) {
    while let Some(incoming) = shared.pool.take(Nanos::MAX) {
        let mut large = HeapReply::default();
        let mut reply = Reply {
            small: &mut [],
            length: 0,
            small_limit: 0,
            limit: shared.config.max_response as usize,
            large: &mut large,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| service.call(&incoming.request(), &mut reply)));
        let length = reply.length;
        large.0.truncate(length);
        match outcome {
            Ok(Ok(())) => incoming.finish(Status::Ok, large.0),
            Ok(Err(status @ Status::Application(_))) => incoming.finish(status, large.0),
            Ok(Err(status)) => incoming.finish(status, Vec::new()),
            Err(_) => incoming.finish(Status::HandlerPanicked, HANDLER_RAN.to_vec()),
        }
    }
}

/// A running server. Dropping it ends it at once: callers see calls in flight as "maybe executed".
/// [`shutdown`](Server::shutdown) ends it gracefully.
#[derive(Debug)]
pub struct Server<F: Fabric> {
    fabric: F,
    address: Address,
    shared: Arc<Shared<F>>,
    state: Arc<ControlState>,
    signal: <F::Host as Host>::Signal,
    control: Option<Task>,
    workers: Vec<Task>,
    pool: Vec<Task>,
    /// The thread that asks the other servers of a deployment, with the means to end it.
    asking: Option<(Task, <F::Host as Host>::Signal, Arc<AtomicBool>)>,
    /// Cloned by each thread that runs a worker and holds its calls.
    pub(crate) holders: Arc<()>,
}

impl<F: Fabric> Server<F> {
    /// Returns the address that clients dial.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the settings.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// Returns the number of current connections.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Acquire)
    }

    /// Returns the connection counters.
    pub fn counters(&self) -> Counters {
        let counted = *self.state.counters.lock().unwrap_or_else(PoisonError::into_inner);
        Counters { stray_datagrams: self.shared.stray_datagrams.load(Ordering::Relaxed), ..counted }
    }

    /// Returns the counters of leases. Each worker adds its own when the groups change, so the last slice may be
    /// missing (ScaleRPC section 3.3).
    pub fn group_counters(&self) -> GroupCounters {
        self.shared.turns.counts()
    }

    /// Returns the size of groups and the slice that are in effect: those that were set, or the device's
    /// ([`ServerConfig::group_size`], [`ServerConfig::group_slice`]).
    pub fn group_defaults(&self) -> GroupDefaults {
        self.shared.turns.defaults()
    }

    /// Returns the slice that is served now, to observe that servers of a [`Deployment`] switch together.
    pub fn running_slice(&self) -> RunningSlice {
        self.shared.turns.running_slice()
    }

    /// Returns the bytes of the rings and tables of all lanes, without memory for large payloads. Queue pairs of the
    /// device are not part of it.
    pub fn lane_bytes(&self) -> u64 {
        self.shared.lane_bytes.load(Ordering::Relaxed)
    }

    /// Returns the queue pairs with credits that each client may use, and its utilisation of them, by client (FLOCK
    /// section 5.1). May wait for a worker that divides the queue pairs.
    pub fn queue_pair_use(&self) -> Vec<QueuePairUse> {
        self.shared.activity.uses()
    }

    /// Returns the current connections with the names that the clients gave themselves, in the order of their
    /// session ids.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        self.state.clients.list()
    }

    /// Takes the next call of a function declared [`FunctionMode::Pull`]. Blocks for at most `at_most`
    /// ([`Duration::MAX`] for ever), and returns `None` then or when the server ends. Any number of threads
    /// may pull.
    pub fn receive(&self, at_most: Duration) -> Option<Incoming<F>> {
        self.shared.pulled.take(end_of(self.fabric.host(), at_most))
    }

    /// Returns a handle that takes the calls of functions declared [`FunctionMode::Pull`], for a thread that
    /// does not hold the server.
    pub fn puller(&self) -> Puller<F> {
        Puller { shared: Arc::clone(&self.shared), state: Arc::clone(&self.state) }
    }

    /// Ends the server gracefully: clients are notified, and received requests are answered. After at most
    /// `timeout` the server ends the remaining lanes; each client gets the number of the last
    /// message taken, and so knows which calls were not executed. Blocks.
    pub fn shutdown(mut self, timeout: Duration) {
        self.stop(nanos(timeout));
    }

    fn stop(&mut self, timeout: Nanos) {
        let Some(control) = self.control.take() else { return };
        if let Some((task, signal, stop)) = self.asking.take() {
            stop.store(true, Ordering::Release);
            signal.raise();
            task.join();
        }
        let host = self.fabric.host();
        let until = host.now().saturating_add(timeout);
        self.state.drain(until);
        self.signal.raise();
        // Workers that run on the caller's threads drain like others, provided that the caller runs them.
        while Arc::strong_count(&self.holders) > 1 && host.now() < until {
            host.sleep(host.now() + HOLDERS_LOOKED_AT_EVERY);
        }
        for worker in self.workers.drain(..) {
            worker.join();
        }
        self.shared.pool.close();
        self.shared.pulled.close();
        for thread in self.pool.drain(..) {
            thread.join();
        }
        self.state.stop();
        self.signal.raise();
        control.join();
    }
}

/// Takes the calls of functions declared [`FunctionMode::Pull`]: [`Server::puller`].
#[derive(Clone, Debug)]
pub struct Puller<F: Fabric> {
    shared: Arc<Shared<F>>,
    state: Arc<ControlState>,
}

impl<F: Fabric> Puller<F> {
    /// As [`Server::receive`], until a time on the host's clock.
    pub fn receive(&self, until: Nanos) -> Option<Incoming<F>> {
        self.shared.pulled.take(until)
    }

    /// As [`Server::clients`].
    pub fn clients(&self) -> Vec<ConnectedClient> {
        self.state.clients.list()
    }
}

impl<F: Fabric> Drop for Server<F> {
    fn drop(&mut self) {
        self.stop(0);
    }
}
