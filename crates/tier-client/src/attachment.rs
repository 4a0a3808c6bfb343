//! The connections of a process to its node.

use crate::direct::Lines;
use crate::waiting::Waiting;
use dunlin_fabric::{Address, AddressError, Capabilities, Fabric, Host, Nanos, Scheme, nanos};
use dunlin_rpc::plan::{CompletionMode, Plan, RequestHalf, ResponseHalf};
use dunlin_rpc::{BackoffConfig, CallError, Client, ClientConfig, ConnectError, Token};
use dunlin_tier::Priority;
use dunlin_tier::call::{MAX_CALL, MAX_HEAD};
use dunlin_tier::message::Malformed;
use dunlin_tier::process::lock::LockingRequest;
use dunlin_tier::process::service::{INVOKE, INVOKE_REFUSED, NOTHING, RECEIVE, ServiceRequest};
use dunlin_tier::process::{
    ATTACH, Attached, ELSEWHERE, NODE_VARIABLE, Problem, ProcessRequest, REFUSED, SERVICE, Secret,
    TOKEN_VARIABLE, default_name, gateway_name,
};
use dunlin_tier::qos::QosError;
use dunlin_tier_node::pool::{Pool, Taken};
use dunlin_tier_node::{OperationError, RequestError, SecretError, read_secret};
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use thiserror::Error;

/// The shortest and the longest pause before a request that the node refused, in nanoseconds.
const PAUSES: [Nanos; 2] = [20_000, 1_000_000];
/// The least and the most time for a connection. An operation with a shorter time of its own would never get one.
const LEAST_TO_CONNECT: Duration = Duration::from_millis(100);
pub(crate) const MOST_TO_CONNECT: Duration = Duration::from_secs(5);
/// An attempt to reach a node of the same host that is away costs a system call.
const BACKOFF: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(1), longest: Duration::from_millis(50) };
/// The time for which a thread polls for its answer, and then sleeps: a node takes that long for a list of 64 operations.
const SPIN: Duration = Duration::from_micros(60);
/// The longest answer accepted, in bytes.
const MAX_RESPONSE: u64 = MAX_CALL as u64 + MAX_HEAD as u64;
/// Threads that call services at the same time; further ones wait.
const CALLERS: usize = 24;

/// Settings of a process.
#[derive(Clone, Debug)]
pub struct AttachConfig {
    /// The address of the node for processes.
    pub address: Address,
    /// The time of a request, connecting included. Default: 10 s, twice the time that the node gives its own requests.
    pub timeout: Duration,
    /// The name of the program, for the logs of the node. Default: empty.
    pub program: String,
    /// The priority of this process (LITE section 6.2): that of its handles and calls without one of their own. Default:
    /// the highest one that the share of its principal permits.
    pub priority: Option<Priority>,
    /// The token that names the principal of this process at the node. Without one the user of the process is its
    /// principal; a token that the node does not know is refused. Default: that in the file that `DUNLIN_NODE_TOKEN_FILE`
    /// names, if it is set.
    pub token: Token,
    /// The plan of the connections for operations. Default: one that suits the fabric.
    pub plan: Option<Plan>,
}

impl AttachConfig {
    /// Returns default settings.
    pub fn new(address: Address) -> AttachConfig {
        AttachConfig {
            address,
            timeout: Duration::from_secs(10),
            program: String::new(),
            priority: None,
            token: Token::default(),
            plan: None,
        }
    }
}

/// Returns the address of a user's node for processes: that in the variable `DUNLIN_NODE`, or `shm:dunlin-node-UID`.
pub fn default_address() -> Result<Address, AddressError> {
    match std::env::var(NODE_VARIABLE) {
        Ok(address) => address.parse(),
        Err(_) => Address::new(Scheme::Shm, &default_name(rustix::process::geteuid().as_raw())),
    }
}

/// Returns the token in the file that the variable `DUNLIN_NODE_TOKEN_FILE` names; an empty one if it is not set. Reads
/// from the disk.
///
/// # Errors
/// The file cannot be read, or other users may read it.
pub fn default_token() -> Result<Token, SecretError> {
    match std::env::var_os(TOKEN_VARIABLE) {
        Some(path) => Ok(Token(read_secret(path.as_ref())?)),
        None => Ok(Token::default()),
    }
}

/// Returns the address at which a node takes calls of the engine's clients for any service, from its address for
/// processes.
pub fn gateway_address(node: &Address) -> Result<Address, AddressError> {
    Address::new(node.scheme(), &gateway_name(node.name()))
}

/// The reason why a process could not attach to a node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The address is malformed.
    #[error("the address of the node ({NODE_VARIABLE}) is not an address")]
    Address(#[from] AddressError),
    /// The file of the token cannot be used.
    #[error("the token of this process ({TOKEN_VARIABLE}) cannot be read")]
    Token(#[from] SecretError),
    /// Shared memory cannot be used.
    #[error("cannot start the shared-memory fabric")]
    Fabric(#[from] std::io::Error),
    /// The node does not know the token of this process.
    #[error("the node does not accept the token of this process: {0}")]
    Unauthorised(String),
    /// The node cannot be reached.
    #[error("no node of this host can be reached: start one with `dunlin node run`, or set {NODE_VARIABLE}")]
    Connect(#[source] ConnectError),
    /// The node refuses the process.
    #[error("the node refuses this process")]
    Refused(#[from] RequestError),
}

impl From<ConnectError> for AttachError {
    fn from(error: ConnectError) -> AttachError {
        match error {
            ConnectError::Unauthorised(text) => AttachError::Unauthorised(text),
            other => AttachError::Connect(other),
        }
    }
}

/// A connection, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Connection<P: Fabric> {
    client: Client<P>,
    /// Request payloads are built here.
    payload: Vec<u8>,
}

/// Connections, made when they are first needed.
pub(crate) type Connections<P> = Pool<Connection<P>, <<P as Fabric>::Host as Host>::Signal>;

/// The attachment of this process.
#[derive(Debug)]
pub(crate) struct Attachment<P: Fabric> {
    pub(crate) fabric: P,
    pub(crate) config: AttachConfig,
    pub(crate) attached: Attached,
    connections: Connections<P>,
    /// Connections for calls to services, which may take as long as their servers like.
    callers: Connections<P>,
    /// The connection for calls that wait for locks and at barriers.
    waiting: Waiting<P>,
    /// The connection for calls to services that are made at the same time.
    calling: Waiting<P>,
    /// The next number of a call about locks.
    pub(crate) tickets: AtomicU64,
    /// Requests about locks of which the node has to hear still.
    pub(crate) owed: Mutex<Owed>,
    /// The connection over which the node gives memory to map.
    pub(crate) line: Lines,
}

/// Requests about locks that the node did not answer.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    pub(crate) requests: Vec<LockingRequest>,
    /// A thread repeats them.
    pub(crate) is_told: bool,
}

/// The reason why a call has no result.
pub(crate) enum Failed {
    /// There is no request to receive.
    Nothing,
    /// Bytes are on other nodes.
    Elsewhere,
    Problem(Problem),
    Request(RequestError),
}

impl From<Failed> for RequestError {
    fn from(failed: Failed) -> RequestError {
        match failed {
            // Only some requests end so, and their caller asks for it.
            Failed::Elsewhere | Failed::Nothing => Problem::Malformed.into(),
            Failed::Problem(problem) => problem.into(),
            Failed::Request(error) => error,
        }
    }
}

impl From<Failed> for OperationError {
    fn from(failed: Failed) -> OperationError {
        match failed {
            Failed::Problem(problem) => problem.into(),
            other => OperationError::from(Box::new(RequestError::from(other))).as_deadline(),
        }
    }
}

/// Returns the plan of a connection, where the default one is not the best: both sides poll memory for as long as an
/// answer to a short request takes, and then sleep until a WRITE.
fn plan(capabilities: &Capabilities) -> Option<Plan> {
    let polled = Plan::new(RequestHalf::Write, ResponseHalf::Write)
        .completion(CompletionMode::Adaptive, CompletionMode::Adaptive);
    (capabilities.initiator_copies && polled.check(capabilities).is_ok()).then_some(polled)
}

fn connect<P: Fabric>(fabric: &P, config: &AttachConfig, time: Duration) -> Result<Client<P>, ConnectError> {
    let settings = ClientConfig {
        window: 2,
        timeout: config.timeout,
        connect_timeout: time.clamp(LEAST_TO_CONNECT, MOST_TO_CONNECT),
        max_response: MAX_RESPONSE,
        large_memory: 2 * MAX_RESPONSE,
        backoff: BACKOFF,
        service: SERVICE.to_owned(),
        program: config.program.clone(),
        token: config.token.0.clone(),
        plan: config.plan.or_else(|| plan(fabric.capabilities())),
        spin: SPIN,
        ..ClientConfig::default()
    };
    Client::connect(fabric, &config.address, settings)
}

impl<P: Fabric> Connection<P> {
    fn attach(
        &mut self,
        secret: Option<Secret>,
        priority: Option<Priority>,
        timeout: Duration,
    ) -> Result<Attached, Failed> {
        self.once(ATTACH, &ProcessRequest::Attach { secret, priority }, timeout, Attached::parse)
    }

    /// Makes one call.
    fn once<T>(
        &mut self,
        function: u16,
        request: &ProcessRequest<'_>,
        timeout: Duration,
        take: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        request.encode_into(&mut self.payload);
        self.call(function, timeout, take)
    }

    /// Makes one call about services.
    pub(crate) fn serve<T>(
        &mut self,
        request: &ServiceRequest<'_>,
        timeout: Duration,
        take: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        request.encode_into(&mut self.payload);
        self.call(request.function(), timeout, take)
    }

    /// Makes one call about locks.
    fn lock<T>(
        &mut self,
        request: &LockingRequest,
        timeout: Duration,
        take: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        request.encode_into(&mut self.payload);
        self.call(request.function(), timeout, take)
    }

    fn call<T>(
        &mut self,
        function: u16,
        timeout: Duration,
        take: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        outcome(function, self.client.within(timeout).call(function, &self.payload), take)
    }
}

/// Reads the outcome of a call to the node.
pub(crate) fn outcome<T>(
    function: u16,
    answer: Result<impl Deref<Target = [u8]>, CallError>,
    take: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Result<T, Failed> {
    let this_node = || "the node of this host".to_owned();
    match answer {
        Ok(answer) => take(&answer).map_err(|_| Failed::Request(RequestError::Answer { node: this_node() })),
        Err(CallError::Application { code: ELSEWHERE, .. }) => Err(Failed::Elsewhere),
        Err(CallError::Application { code: NOTHING, .. }) if function == RECEIVE => Err(Failed::Nothing),
        Err(CallError::Application { code, payload })
            if code == if function == INVOKE { INVOKE_REFUSED } else { REFUSED } =>
        {
            match Problem::parse(&payload) {
                Ok(problem) => Err(Failed::Problem(problem)),
                Err(_) => Err(Failed::Request(RequestError::Answer { node: this_node() })),
            }
        }
        Err(source) => Err(Failed::Request(RequestError::Call { node: this_node(), source })),
    }
}

impl<P: Fabric> Attachment<P> {
    pub(crate) fn new(fabric: &P, mut config: AttachConfig) -> Result<Self, AttachError> {
        if config.token.0.is_empty() {
            config.token = default_token()?;
        }
        let mut first = Connection { client: connect(fabric, &config, config.timeout)?, payload: Vec::new() };
        let attached = first.attach(None, config.priority, config.timeout).map_err(RequestError::from)?;
        let connections = Pool::new(fabric.host(), attached.operations.max(1).into());
        // The first place of the pool is that of the first connection.
        if let Some(Taken::Make(_)) = connections.take(fabric.host(), 0) {
            connections.give(first);
        }
        Ok(Attachment {
            fabric: fabric.clone(),
            config,
            attached,
            connections,
            callers: Pool::new(fabric.host(), CALLERS),
            waiting: Waiting::new(),
            calling: Waiting::new(),
            tickets: AtomicU64::new(1),
            owed: Mutex::default(),
            line: Lines::default(),
        })
    }

    /// Makes a call on a connection that no other thread uses, and passes the answer to `take`. Blocks until the timeout
    /// of the settings at most.
    pub(crate) fn call<T>(
        &self,
        function: u16,
        request: &ProcessRequest<'_>,
        take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        self.call_until(function, request, self.until(self.config.timeout), take)
    }

    /// Returns the priority of this process.
    pub(crate) fn priority(&self) -> Priority {
        self.config.priority.unwrap_or(self.attached.highest)
    }

    /// Checks a priority against the share of the principal, which the node told at the attachment.
    ///
    /// # Errors
    /// The share of the principal permits only low priority.
    pub(crate) fn check_priority(&self, priority: Priority) -> Result<(), QosError> {
        if priority > self.attached.highest {
            return Err(QosError::Priority { principal: self.attached.principal.clone() });
        }
        Ok(())
    }

    /// Returns the end of a time that begins now.
    pub(crate) fn until(&self, time: Duration) -> Nanos {
        self.fabric.host().now().saturating_add(nanos(time))
    }

    /// Begins the time of an operation: its own, or that of the settings.
    pub(crate) fn begin(&self, own: Option<Duration>) -> Result<Nanos, OperationError> {
        match own {
            Some(Duration::ZERO) => Err(OperationError::Deadline { node: None, may_have_executed: false }),
            own => Ok(self.until(own.unwrap_or(self.config.timeout))),
        }
    }

    /// As [`call`](Attachment::call), until `until` at most.
    pub(crate) fn call_until<T>(
        &self,
        function: u16,
        request: &ProcessRequest<'_>,
        until: Nanos,
        mut take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        self.on(&self.connections, until, |connection, left| {
            connection.once(function, request, left, &mut take)
        })
    }

    /// Makes a call about locks that waits. Blocks until `timeout` at most.
    pub(crate) fn lock_call<T>(
        &self,
        request: &LockingRequest,
        timeout: Duration,
        take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        let mut payload = Vec::new();
        request.encode_into(&mut payload);
        let process = (&self.fabric, &self.config, self.attached.secret);
        self.waiting.call(process, (request.function(), &payload), timeout, take)
    }

    /// Makes a call about locks that does not wait for others. Those that wait do not keep the connection from it.
    pub(crate) fn unlock_call<T>(
        &self,
        request: &LockingRequest,
        timeout: Duration,
        mut take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        self.on(&self.connections, self.until(timeout), |connection, left| {
            connection.lock(request, left, &mut take)
        })
    }

    /// Makes a call about services on a connection that no other thread uses. Blocks until `timeout` at most.
    pub(crate) fn serve_call<T>(
        &self,
        request: &ServiceRequest<'_>,
        timeout: Duration,
        mut take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        self.on(&self.callers, self.until(timeout), |connection, left| {
            connection.serve(request, left, &mut take)
        })
    }

    /// Makes calls to services at the same time. Blocks until all have ended: `timeout` at most.
    pub(crate) fn call_each(
        &self,
        requests: &[ServiceRequest<'_>],
        timeout: Duration,
    ) -> Result<Vec<Result<Vec<u8>, Failed>>, Failed> {
        let encode = |request: &ServiceRequest<'_>| {
            let mut payload = Vec::new();
            request.encode_into(&mut payload);
            payload
        };
        let payloads: Vec<Vec<u8>> = requests.iter().map(encode).collect();
        let process = (&self.fabric, &self.config, self.attached.secret);
        self.calling.call_each(process, INVOKE, &payloads, timeout)
    }

    /// Returns whether a request was not executed, since the node is away, and its next life will know this process.
    fn is_away(&self, failed: &Failed) -> bool {
        self.attached.is_kept
            && match failed {
                Failed::Request(RequestError::Call { source, .. }) => {
                    source.is_unavailable() && source.was_executed() == Some(false)
                }
                Failed::Request(RequestError::Connect { .. }) => true,
                _ => false,
            }
    }

    /// Asks on a connection of the pool, and again after a refusal that a later attempt may not get. While the node is
    /// away, and a keeper has its memory, waits for its next life.
    fn on<T>(
        &self,
        pool: &Connections<P>,
        until: Nanos,
        mut ask: impl FnMut(&mut Connection<P>, Duration) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let host = self.fabric.host();
        let left = || Duration::from_nanos(until.saturating_sub(host.now()));
        let mut pause = PAUSES[0];
        let mut wait = || {
            host.sleep(host.now().saturating_add(pause).min(until));
            pause = (2 * pause).min(PAUSES[1]);
        };
        let mut connection = loop {
            match pool.take(host, until) {
                None => return Err(Failed::Request(RequestError::Busy)),
                Some(Taken::Value(connection)) => break connection,
                Some(Taken::Make(number)) => match self.another(left()) {
                    Ok(connection) => break connection,
                    Err(failed) => {
                        pool.failed(number);
                        if host.now() >= until || !self.is_away(&failed) {
                            return Err(failed);
                        }
                        wait();
                    }
                },
            }
        };
        let answer = loop {
            let answer = self.ask_on(&mut connection, &left, &mut ask);
            // Refused, and so not executed: another attachment of this process has requests under way.
            let is_refused = |failed: &Failed| matches!(failed, Failed::Problem(Problem::Operations(_)));
            if host.now() >= until
                || !answer.as_ref().is_err_and(|failed| is_refused(failed) || self.is_away(failed))
            {
                break answer;
            }
            wait();
        };
        pool.give(connection);
        answer
    }

    /// Asks once, by a connection that belongs to this process.
    fn ask_on<T>(
        &self,
        connection: &mut Connection<P>,
        left: &impl Fn() -> Duration,
        ask: &mut impl FnMut(&mut Connection<P>, Duration) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        if self.attached.is_kept {
            // A connection that broke with the node is noticed, so the request is not made on it: it would have an unknown
            // outcome.
            let ready = connection.client.wait_ready(left());
            ready.map_err(|source| {
                Failed::Request(RequestError::Call { node: "the node of this host".to_owned(), source })
            })?;
        }
        let answer = ask(connection, left());
        if matches!(answer, Err(Failed::Problem(Problem::NotAttached))) {
            // The client has connected again. The node knows this process still, if it lives and another connection of
            // this process does, or if a keeper has its memory.
            connection.attach(Some(self.attached.secret), self.config.priority, left())?;
            return ask(connection, left());
        }
        answer
    }

    /// Makes another connection of this process, within `time`, or 100 ms.
    pub(crate) fn another(&self, time: Duration) -> Result<Connection<P>, Failed> {
        let client = connect(&self.fabric, &self.config, time).map_err(|source| {
            Failed::Request(RequestError::Connect { node: "the node of this host".to_owned(), source })
        })?;
        let mut connection = Connection { client, payload: Vec::new() };
        let time = time.max(LEAST_TO_CONNECT);
        connection.attach(Some(self.attached.secret), self.config.priority, time)?;
        Ok(connection)
    }
}
