//! The settings of a client.

use super::batching::Batching;
use crate::connect::backoff::BackoffConfig;
use crate::error::ConnectError;
use crate::limits::{MAX_FUNCTIONS, MAX_PLANS, MAX_STRANDS, MAX_WINDOW, RING_BYTES};
use crate::path::credits::{CREDITS, MAX_CREDITS};
use crate::plan::{CompletionMode, Lease, Plan, PlanError, Sharing};
use crate::tune::Tuners;
use crate::tune::shared::{FetchChoice, FetchTuner};
use crate::tune::table::FetchTable;
use crate::tune::wait::FirstRead;
use dunlin_fabric::{Capabilities, Fabric, Host, Nanos, PeerIdentity, nanos};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How a client asks for more credits on a connection that threads share by combining ([`ClientConfig::credits`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditRenewal {
    /// In the header of the request that leaves half of the credits or less: no message of its own.
    #[default]
    WithRequest,
    /// By a WRITE with immediate data behind that request, as in FLOCK (SOSP'21, section 7). The server posts three
    /// RECVs for each lane and polls its completion queue. Connecting fails on a fabric without immediate data.
    WriteImmediate,
}

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The plan of every function without an entry in `functions`; [`Plan::default_for`] of the fabric if `None`,
    /// the default. A plan that the fabric cannot run fails the connection. It is never replaced.
    pub plan: Option<Plan>,
    /// Plans of single functions, by function id; at most 8 different plans, including `plan`. Each plan has
    /// its own lanes on the same connection, so calls of different plans do not wait for each other. The
    /// client waits by the most impatient completion mode of its plans. Default: none.
    pub functions: BTreeMap<u16, Plan>,
    /// The most calls in flight for each worker and plan, 1 to 1024. The server may grant fewer. Default: 64.
    pub window: u16,
    /// Under [`Sharing::Combined`], the most queue pairs to each worker that the threads of this client share, 1 to
    /// 64. The client opens one for each thread, with a connection of its own, as long as the server grants them
    /// ([`ServerConfig::max_active_queue_pairs`](crate::ServerConfig::max_active_queue_pairs)); under
    /// [`Lease::Slice`] one. Default: 64.
    pub max_queue_pairs: u16,
    /// Under [`Sharing::Combined`], the most calls of one thread that take places of a window, 1 to `window`. A call whose
    /// deadline has passed keeps its place until its answer comes; a further call then fails with
    /// [`Cause::WindowFull`](crate::Cause::WindowFull) while answers of as many are missing. So threads whose number times
    /// this is at most `window` never wait for a place, whatever the others wait for. Operations on memory do not count.
    /// `None`, the default: `window`.
    pub calls_per_thread: Option<u16>,
    /// Under [`Sharing::Combined`], C of FLOCK section 5.1, 1 to 63: the calls that a queue pair may send before the
    /// server agrees to as many more. Default: 32, as in the paper.
    pub credits: u16,
    /// How the client asks for these. Default: in the header of a request.
    pub credit_renewal: CreditRenewal,
    /// Under [`Sharing::Combined`], how often threads are assigned to queue pairs by the sizes of their requests, if
    /// there are more threads than queue pairs (FLOCK section 5.2, algorithm 1). `None`: equal numbers of threads share
    /// each. A thread that moves waits for its calls to end, some 10 µs, so with the default moves cost at most a
    /// thousandth of a thread's time. The paper gives no interval. Default: 10 ms.
    pub thread_scheduling: Option<Duration>,
    /// The size of each ring in bytes, a power of two from 16 KiB to 1 MiB. Default: 16 KiB.
    pub ring_bytes: u32,
    /// The timeout of each call without a time of its own; [`Duration::MAX`] for none. Default: 10 s.
    pub timeout: Duration,
    /// The time limit of connecting. Default: 5 s.
    pub connect_timeout: Duration,
    /// The largest result accepted, in bytes. Default: 64 MiB.
    pub max_response: u64,
    /// The most registered memory for large requests in bytes, and the same again for large results, for each
    /// worker. Default: 256 MiB.
    pub large_memory: u64,
    /// Only for plans that may lose messages: how long a server may answer nothing to repeated requests until
    /// the lane counts as broken. Its calls then end with [`Cause::Unanswered`](crate::Cause::Unanswered).
    /// Handlers that keep a worker busy for longer should run in the pool. Default: 10 s.
    pub silence: Duration,
    /// The only worker to connect to; all workers if `None`, the default.
    pub worker: Option<u16>,
    /// The name of the service to connect to; empty for any. Default: empty. A typed client asks for the name
    /// of its service.
    pub service: String,
    /// The process that has to serve at the address, as the operating system reports it; any if `None`, the default.
    /// Connecting to another one fails.
    pub server: Option<PeerIdentity>,
    /// The name of the client's program, for the logs and the statistics of servers
    /// ([`Server::clients`](crate::Server::clients)); at most 64 bytes, the rest is cut. Empty by default: servers
    /// get no name.
    pub program: String,
    /// The identity that the client gives to servers, for the same use. All connections of a client have the same
    /// one, also those of its clones and of [`another`](crate::Client::another). If `None`, the default, connecting
    /// draws one at random.
    pub identity: Option<u64>,
    /// The token that authorizes the client at the server. Default: empty.
    pub token: Vec<u8>,
    /// How long an adaptive wait polls before it sleeps. Default: 20 µs.
    pub spin: Duration,
    /// The fabric's operation rates, by which plans that fetch or write back choose. If `None`, the default:
    /// the rates of the fabric's device ([`Fabric::rates`]; `dunlin bench fetch-table` measures them), else
    /// typical rates of shared memory or the rates of RF-RPC's cluster.
    ///
    /// If the rates rule fetching out ([`FetchTable::rules_out_fetching`]), results are written back.
    /// [`Tuning::table`](crate::Tuning::table) names the source of the rates in use.
    pub fetch_table: Option<Arc<FetchTable>>,
    /// How plans that fetch or write back choose R and F. Default: [`FetchChoice::default`], tuned at run
    /// time.
    pub fetch_choice: FetchChoice,
    /// When such plans post the first READ for a result. Default: [`FirstRead::default`].
    pub first_read: FirstRead,
    /// When batches are sent without a flush; if `None`, the default: when a message is full or the caller
    /// waits.
    pub batching: Option<Batching>,
    /// The most calls that go in one message because threads meet on a shared connection
    /// ([`Sharing::Combined`]); 1 sends each call by itself. Default: 64.
    pub most_together: u16,
    /// The most calls that the thread that leads a shared connection ([`Sharing::Combined`]) sends in one round; at least
    /// one. Then it takes results, and lets the threads go on whose results have come, before it sends those that are left.
    /// FLOCK bounds no round. Default: 64.
    pub most_per_round: u16,
    /// The length in bytes from which on a request that meets others on such a connection leaves from registered memory of
    /// its thread, under one doorbell with them; shorter ones are copied into one message (FLOCK section 4.1). Unused
    /// where the processor copies what it sends
    /// ([`Capabilities::initiator_copies`](dunlin_fabric::Capabilities::initiator_copies)), and where requests are kept
    /// to be sent again. Default: 2048.
    pub own_memory_from: u32,
    /// The back-off of reconnecting. Default: 1 ms to 1 s.
    pub backoff: BackoffConfig,
    /// How long a call that finds no connection waits for one, while the client connects with back-off. The
    /// wait is part of the call's [`timeout`](ClientConfig::timeout). Zero, the default: the call fails at
    /// once, or after one attempt to connect if the back-off allows one.
    ///
    /// A call whose wait brought no connection ends with [`Cause::Disconnected`](crate::Cause::Disconnected),
    /// or with [`Cause::DeadlineExceeded`](crate::Cause::DeadlineExceeded) if its deadline came first; it was
    /// not executed.
    pub wait_for_ready: Duration,
    /// Makes the client without a connection: the first call connects, or the client's `wait_ready`. The
    /// default is `false`: connecting fails if the server cannot be reached.
    ///
    /// A blocking client connects within the first call. The first call of an asynchronous client needs
    /// [`wait_for_ready`](ClientConfig::wait_for_ready) to succeed: without it, the call ends with
    /// [`Cause::Disconnected`](crate::Cause::Disconnected) while the client connects.
    pub lazy: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            plan: None,
            functions: BTreeMap::new(),
            window: 64,
            max_queue_pairs: MAX_STRANDS,
            calls_per_thread: None,
            credits: CREDITS,
            credit_renewal: CreditRenewal::WithRequest,
            thread_scheduling: Some(Duration::from_millis(10)),
            ring_bytes: 16 * 1024,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            max_response: 64 << 20,
            large_memory: 256 << 20,
            silence: Duration::from_secs(10),
            worker: None,
            service: String::new(),
            server: None,
            program: String::new(),
            identity: None,
            token: Vec::new(),
            spin: Duration::from_micros(20),
            fetch_table: None,
            fetch_choice: FetchChoice::default(),
            first_read: FirstRead::default(),
            batching: None,
            most_together: 64,
            most_per_round: 64,
            own_memory_from: 2048,
            backoff: BackoffConfig::default(),
            wait_for_ready: Duration::ZERO,
            lazy: false,
        }
    }
}

/// Returns the rank of a completion mode: a thread waits in the most impatient mode of its lanes.
pub(super) const fn impatience(mode: CompletionMode) -> u8 {
    match mode {
        CompletionMode::Busy => 2,
        CompletionMode::Adaptive => 1,
        CompletionMode::Event => 0,
    }
}

impl ClientConfig {
    /// Returns the default settings with this plan.
    pub fn with_plan(plan: Plan) -> Self {
        ClientConfig { plan: Some(plan), ..ClientConfig::default() }
    }

    /// Returns the timeout of a call as the engine counts it: in nanoseconds, 0 for none.
    pub fn call_nanos(&self) -> Nanos {
        match nanos(self.timeout) {
            Nanos::MAX => 0,
            timeout => timeout.max(1),
        }
    }

    /// Fills in the fabric's default plan if none is given, and an identity. Connecting calls this first.
    pub(crate) fn resolved<F: Fabric>(mut self, fabric: &F) -> Self {
        self.plan.get_or_insert_with(|| Plan::default_for(fabric.capabilities()));
        self.identity.get_or_insert_with(|| fabric.host().random());
        self
    }

    pub(super) fn usual(&self) -> Plan {
        self.plan.unwrap_or_default()
    }

    /// Returns the different plans, the default one first.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let mut plans = vec![self.usual()];
        for plan in self.functions.values() {
            if !plans.contains(plan) {
                plans.push(*plan);
            }
        }
        plans
    }

    /// Creates the tuners shared by all connections of a client.
    pub(crate) fn tuners<F: Fabric>(&self, fabric: &F) -> Tuners {
        let plans = self.plans();
        let needed = plans.iter().any(|plan| plan.response.facts().is_hybrid());
        let fetch = needed.then(|| {
            let table = FetchTable::chosen(self.fetch_table.as_ref(), fabric);
            Arc::new(FetchTuner::new(table, self.fetch_choice, self.first_read))
        });
        Tuners { fetch, batch: self.batching.as_ref().and_then(Batching::finds) }
    }

    /// Returns how the threads of a client share its connection: as the default plan says.
    pub(crate) fn sharing(&self) -> Sharing {
        self.usual().sharing
    }

    /// Returns the most queue pairs to each worker that the threads of a client share: one under leases that end, since
    /// all clients take turns, and a client with two queue pairs would wait for two turns.
    pub(crate) fn most_queue_pairs(&self) -> u16 {
        let ends = |plan: &Plan| plan.lease == Lease::Slice;
        match ends(&self.usual()) || self.functions.values().any(ends) {
            true => 1,
            false => self.max_queue_pairs,
        }
    }

    /// Returns the most calls of a thread that take places of a window, under a policy that combines.
    pub(crate) fn most_of_a_thread(&self) -> u16 {
        self.calls_per_thread.map_or(self.window, |most| most.min(self.window))
    }

    /// Returns the most impatient completion mode of the client's plans.
    pub(crate) fn mode(&self) -> CompletionMode {
        let modes = self.plans().into_iter().map(|plan| plan.client);
        modes.max_by_key(|mode| impatience(*mode)).unwrap_or(self.usual().client)
    }

    /// Checks whether the plans can run on a fabric.
    pub(crate) fn check_plans(&self, capabilities: &Capabilities) -> Result<(), ConnectError> {
        let plans = self.plans();
        if plans.len() > MAX_PLANS {
            let (what, value) = ("functions", plans.len() as u64);
            return Err(ConnectError::Setting { what, value, must: "of at most 8 different plans" });
        }
        if self.credit_renewal == CreditRenewal::WriteImmediate
            && !capabilities.immediate
            && plans.iter().any(Plan::has_credits)
        {
            return Err(PlanError::Lacks("immediate data").into());
        }
        plans.iter().try_for_each(|plan| Ok(plan.check(capabilities)?))
    }

    /// Checks the values as connecting does, for clients that connect later. Does not need a fabric, so plans
    /// are not part of it.
    ///
    /// # Errors
    /// A setting has a value without a meaning.
    pub fn check(&self) -> Result<(), ConnectError> {
        let out = |what, value: u64, must| Err(ConnectError::Setting { what, value, must });
        if self.window == 0 || self.window > MAX_WINDOW {
            return out("window", self.window.into(), "1 to 1024 calls");
        }
        if !RING_BYTES.contains(&self.ring_bytes) || !self.ring_bytes.is_power_of_two() {
            return out("ring_bytes", self.ring_bytes.into(), "a power of two from 16 KiB to 1 MiB");
        }
        if let Some((&function, _)) = self.functions.range(MAX_FUNCTIONS..).next() {
            return out("a function's number", function.into(), "below 4096");
        }
        if self.max_response == 0 || self.max_response > u32::MAX as u64 {
            return out("max_response", self.max_response, "1 byte to 4 GiB");
        }
        if !(1..=MAX_STRANDS).contains(&self.max_queue_pairs) {
            return out("max_queue_pairs", self.max_queue_pairs.into(), "1 to 64");
        }
        if self.calls_per_thread.is_some_and(|most| !(1..=self.window).contains(&most)) {
            let value = self.calls_per_thread.unwrap_or_default();
            return out("calls_per_thread", value.into(), "1 to the window");
        }
        if !(1..=MAX_CREDITS).contains(&self.credits) {
            return out("credits", self.credits.into(), "1 to 63");
        }
        if self.thread_scheduling == Some(Duration::ZERO) {
            return out("thread_scheduling", 0, "longer than 0 ns");
        }
        for (what, value) in [("most_together", self.most_together), ("most_per_round", self.most_per_round)]
        {
            if value == 0 {
                return out(what, 0, "at least 1");
            }
        }
        if let Some((what, value, must)) = self.fetch_choice.out_of_bounds() {
            return Err(ConnectError::Setting { what, value: value.into(), must });
        }
        self.batching.as_ref().map_or(Ok(()), Batching::check)
    }
}
