//! The synchronous client that generated code uses.

use crate::form::Form;
use crate::introduction::{INTRODUCTION, Introduction};
use crate::numa::Bound;
use crate::route::{Choice, ClientOptions, Route, no_route};
use crate::running::Known;
use dunlin_fabric::{Address, BindError, ChosenTransport, Fabric, Host, Scheme};
use dunlin_hints::Selection;
use dunlin_rpc::{CallId, Cause, RunningPlan, SMALL_LIMIT, Tuning};
use dunlin_thrift_core::{
    Arguments, CallError, ConnectError, ErrorOf, NumaError, Outcome, PlanOfError, ServiceDescriptor,
};
use dunlin_thrift_tcp::{Connection, ConnectionOptions};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::sync::Arc;
use std::time::Duration;

/// A call in flight, to be passed to [`Client::wait`].
#[derive(Debug)]
#[must_use = "the result is kept for who asks for it"]
pub struct Pending<R: Outcome, E>(InFlight<R, E>);

#[derive(Debug)]
enum InFlight<R: Outcome, E> {
    Engine(CallId, Form),
    /// The result: TCP calls are made one at a time, so the call is complete.
    Tcp(Result<R::Value, E>),
}

/// A synchronous client of one service, used by one thread at a time. Generated clients wrap it.
#[derive(Debug)]
pub struct Client<F: Fabric> {
    service: &'static ServiceDescriptor,
    /// `None` if all functions use TCP.
    engine: Option<dunlin_rpc::Client<F>>,
    tcp: Option<Connection>,
    known: Known,
    /// The rest of connecting: the client is lazy, and has not learnt the server's functions yet.
    later: Option<Box<Later<F>>>,
    /// The host and the cores to bind to.
    binding: Option<(F::Host, Vec<u32>)>,
    /// Buffer in which small requests are encoded.
    scratch: Box<[u8; SMALL_LIMIT as usize]>,
    /// The worker of the last call. Calls and batches go to the workers in round-robin order.
    turn: usize,
    transport: ChosenTransport,
}

/// The part of connecting that needs the server.
#[derive(Clone, Debug)]
struct Later<F: Fabric> {
    fabric: F,
    address: Address,
    options: ClientOptions,
    choice: Choice,
}

/// The submission mode of a call that is not awaited immediately.
#[derive(Clone, Copy, Debug)]
enum Hand {
    /// As a separate message.
    Message,
    /// In a batch.
    Batch,
}

impl<F: Fabric> Client<F> {
    /// Connects with the plans that the functions' hints select, and learns the server's functions. Blocks.
    /// A lazy client ([`ClientConfig::lazy`](dunlin_rpc::ClientConfig::lazy)) does both with its first call.
    pub fn connect(
        fabric: &F,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let choice = Choice::new(service, fabric, &options, Default::default())?;
        let bound = Bound::new(fabric.host(), &choice.cores).map_err(|error| numa(service, error))?;
        let config = choice.config(service, &Choice::expected(service), &options);
        let connect = |config| dunlin_rpc::Client::connect(fabric, address, config);
        let engine = Choice::connected(service, config, connect)?;
        let transport = ChosenTransport::named(fabric.capabilities().name, address.to_string());
        let known = Known { selections: choice.selections.clone(), ..Known::default() };
        let binding = Some((fabric.host().clone(), choice.cores.clone()));
        let lazy = options.engine.lazy;
        let later = Later { fabric: fabric.clone(), address: address.clone(), options, choice };
        let later = Some(Box::new(later));
        let mut client =
            Client { engine: Some(engine), binding, later, ..Client::new(service, known, transport) };
        if !lazy {
            client.agree(None)?;
        }
        drop(bound);
        Ok(client)
    }

    /// Learns the server's functions, once, and connects for the functions that use TCP.
    #[cold]
    fn agree(&mut self, time: Option<Duration>) -> Result<(), ConnectError> {
        let (Some(later), Some(engine)) = (&self.later, &mut self.engine) else { return Ok(()) };
        let Later { fabric, address, options, choice: before } = &**later;
        let introduction = introduce((engine, time), self.service, options)?;
        let choice =
            Choice::new(self.service, fabric, options, (engine.server_connections(), engine.workers()))?;
        let has_own_ids = introduction.functions != Choice::expected(self.service).functions;
        if has_own_ids || choice.differs_from(before) {
            // Plans are configured by function id, and they decide how the threads use the connection.
            let config = choice.config(self.service, &introduction, options);
            let connect = |config| dunlin_rpc::Client::connect(fabric, address, config);
            *engine = Choice::connected(self.service, config, connect)?;
        }
        let routes = choice.routes(self.service, &introduction);
        let tcp_address = options.tcp.as_ref().or(introduction.tcp.as_ref());
        if let Some(address) = tcp_address.filter(|_| routes.contains(&Route::Tcp)) {
            self.tcp = Some(Connection::connect(address, options.tcp_connection())?);
        }
        self.known.selections = choice.selections;
        self.known.learn(self.service, routes, &introduction);
        self.later = None;
        Ok(())
    }

    /// Connects a lazy client within its first call, which is not executed if that fails. If the call has a
    /// time of its own, this takes from it.
    #[cold]
    fn agree_for(&mut self, time: &mut Option<Duration>) -> Result<(), CallError> {
        let host = self.later.as_ref().map(|later| later.fabric.host().clone());
        let (Some(host), Some(given)) = (host, *time) else { return self.agree_within(*time) };
        let late = || CallError::Transport(dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded));
        if given.is_zero() {
            return Err(late());
        }
        let began = host.now();
        self.agree_within(*time)?;
        let left = given.saturating_sub(Duration::from_nanos(host.now().saturating_sub(began)));
        *time = Some(left);
        if left.is_zero() { Err(late()) } else { Ok(()) }
    }

    fn agree_within(&mut self, time: Option<Duration>) -> Result<(), CallError> {
        self.agree(time).map_err(|error| match error {
            ConnectError::Introduction(error) => {
                let cause = error.cause().unwrap_or(Cause::Disconnected);
                CallError::Transport(dunlin_rpc::CallError::NotExecuted(cause))
            }
            error => CallError::Connect(Arc::new(error)),
        })
    }

    /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All
    /// functions use TCP. Blocks.
    pub fn connect_tcp(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let tcp = Some(Connection::connect(address, options)?);
        Ok(Client { tcp, ..Client::new(service, Known::by_tcp(service), by_tcp(address)) })
    }

    /// Connects another client to the same server with the same settings and connections of its own, for
    /// another thread. If this client is lazy and has not connected yet, the other one is lazy too. Blocks.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let cores = self.binding.as_ref().map(|(host, cores)| (host, &cores[..]));
        let bound = cores.map(|(host, cores)| Bound::new(host, cores)).transpose();
        let bound = bound.map_err(|error| numa(self.service, error))?;
        let engine = match &self.engine {
            Some(engine) => Some(engine.another()?),
            None => None,
        };
        let tcp = match &self.tcp {
            Some(tcp) => Some(tcp.another()?),
            None => None,
        };
        drop(bound);
        let (known, transport) = (self.known.clone(), self.transport.clone());
        let (binding, later) = (self.binding.clone(), self.later.clone());
        Ok(Client { engine, tcp, binding, later, ..Client::new(self.service, known, transport) })
    }

    fn new(service: &'static ServiceDescriptor, known: Known, transport: ChosenTransport) -> Self {
        let scratch = Box::new([0; SMALL_LIMIT as usize]);
        let (engine, tcp, binding, later) = (None, None, None, None);
        Client { service, engine, tcp, known, later, binding, scratch, turn: 0, transport }
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile. Over
    /// a fabric, see [`dunlin_rpc::Client::wait_ready`]; over TCP alone, it opens the connection. Blocks.
    ///
    /// # Errors
    /// The client is not connected. Later calls connect as before.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        match (&mut self.engine, &mut self.tcp) {
            (Some(engine), _) => engine.wait_ready(at_most)?,
            (None, Some(tcp)) => tcp.wait_ready(at_most)?,
            (None, None) => {}
        }
        self.agree_for(&mut None)
    }

    /// Returns how the calls of the function with this name in the IDL run: the protocol, how both sides
    /// wait, where it runs, and the reasons.
    pub fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        self.known.plan_of(self.service, function, |id, name| {
            self.engine.as_ref().map(|engine| engine.plan_of_as(id, name))
        })
    }

    /// Returns the transport of calls whose hints do not select TCP.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        let tuning = self.engine.as_ref().map_or_else(Vec::new, |engine| engine.tuning());
        self.known.named(self.service, tuning)
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        self.engine.as_ref().map_or_else(Vec::new, |engine| engine.batch_calls())
    }

    /// Returns the cores of the NUMA node that the hints select for the client; empty for no binding.
    pub fn cores(&self) -> &[u32] {
        self.binding.as_ref().map_or(&[], |(_, cores)| cores)
    }

    /// Binds the calling thread, which should be the thread that makes the calls, to
    /// [`cores`](Client::cores).
    ///
    /// Does nothing if the list is empty. The client's memory already lies at their node.
    pub fn bind_thread(&self) -> Result<(), BindError> {
        match &self.binding {
            Some((host, cores)) if !cores.is_empty() => host.bind(cores).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the selection of each function and its reasons, in the order of the service's descriptor;
    /// empty if all functions use TCP.
    pub fn selections(&self) -> &[Selection] {
        &self.known.selections
    }

    /// Returns the route of each function, in the order of the service's descriptor; empty until a lazy client
    /// has connected.
    pub fn routes(&self) -> &[Route] {
        &self.known.routes
    }

    /// Returns the engine's client; `None` if all functions use TCP.
    pub fn engine(&mut self) -> Option<&mut dunlin_rpc::Client<F>> {
        self.engine.as_mut()
    }

    /// Returns the engine with the function's id, or the TCP connection with its name.
    #[inline]
    fn route(&mut self, time: &mut Option<Duration>, function: usize) -> Result<Way<'_, F>, CallError> {
        if function >= self.known.routes.len() {
            self.agree_for(time)?;
        }
        match (self.known.routes[function], &mut self.engine, &mut self.tcp) {
            (Route::Engine { id, form }, Some(client), _) => Ok(Way::Engine(Engine {
                client,
                id,
                form,
                scratch: &mut self.scratch[..],
                turn: &mut self.turn,
            })),
            (Route::Tcp, _, Some(tcp)) => Ok(Way::Tcp(tcp, &self.service.functions[function].name)),
            (route, ..) => Err(no_route(self.service, function, route)),
        }
    }

    /// Makes a call and waits for its result.
    #[inline]
    pub fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        self.call_within(None, function, arguments)
    }

    /// As [`call`](Client::call), with a time of its own in place of that of the settings.
    #[inline]
    pub fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        mut time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        let engine = match self.route(&mut time, function)? {
            Way::Engine(engine) => engine,
            Way::Tcp(tcp, name) => return tcp.call_within::<A, R, E>(time, name, arguments),
        };
        let Engine { client, id, form, scratch, turn } = engine;
        let answer = match encoded(form, arguments, scratch)? {
            Encoded::Small(bytes) => client.within_or_default(time).call(id, bytes),
            Encoded::Large(size) => {
                let call = submit_large(client, (time, next(turn, client)), id, form, size, arguments)?;
                client.wait(call)
            }
        };
        match answer {
            Ok(response) => form.decode::<R, E>(&response),
            Err(error) => Err(failed(error).into()),
        }
    }

    /// Sends a oneway call. Waits for room if necessary.
    pub fn oneway<A: Arguments>(&mut self, function: usize, arguments: &A) -> Result<(), CallError> {
        self.oneway_within(None, function, arguments)
    }

    /// As [`oneway`](Client::oneway), with a time of its own in place of that of the settings.
    pub fn oneway_within<A: Arguments>(
        &mut self,
        mut time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        match self.route(&mut time, function)? {
            Way::Tcp(tcp, name) => tcp.oneway_within(time, name, arguments),
            Way::Engine(mut engine) => {
                let call = engine.submit(time, arguments, Hand::Message)?;
                engine.client.forget(call);
                Ok(())
            }
        }
    }

    /// Sends a call without waiting for its result. Waits for room if necessary. On TCP, calls are made one
    /// at a time, so the method waits for the result.
    #[inline]
    pub fn start<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        self.begin(None, function, arguments, Hand::Message)
    }

    /// Adds a call to a batch.
    ///
    /// The batch is sent when it is full, on [`flush`](Client::flush), or when the client waits for one of
    /// its results. Waits for room if necessary, unless the whole window holds unclaimed results: room cannot
    /// become free then. On TCP, calls are made one at a time.
    #[inline]
    pub fn push<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        self.push_within(None, function, arguments)
    }

    /// As [`push`](Client::push), with a time of its own in place of that of the settings. The time runs from
    /// here on.
    #[inline]
    pub fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        self.begin(time, function, arguments, Hand::Batch)
    }

    #[inline]
    fn begin<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        mut time: Option<Duration>,
        function: usize,
        arguments: &A,
        hand: Hand,
    ) -> Result<Pending<R, E>, E> {
        Ok(Pending(match self.route(&mut time, function)? {
            Way::Engine(mut engine) => InFlight::Engine(engine.submit(time, arguments, hand)?, engine.form),
            Way::Tcp(tcp, name) => InFlight::Tcp(tcp.call_within::<A, R, E>(time, name, arguments)),
        }))
    }

    /// Sends the open batches. Waits for room if necessary.
    pub fn flush(&mut self) -> Result<(), CallError> {
        match &mut self.engine {
            Some(engine) => {
                next(&mut self.turn, engine);
                Ok(engine.flush_waiting()?)
            }
            None => Ok(()),
        }
    }

    /// Waits for the result of a call.
    #[inline]
    pub fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E> {
        match (pending.0, &mut self.engine) {
            (InFlight::Tcp(result), _) => result,
            (InFlight::Engine(call, form), Some(engine)) => match engine.wait(call) {
                Ok(response) => form.decode::<R, E>(&response),
                Err(error) => Err(failed(error).into()),
            },
            // The call belongs to another client.
            (InFlight::Engine(..), None) => {
                Err(CallError::Transport(dunlin_rpc::CallError::MaybeExecuted(Cause::Closed)).into())
            }
        }
    }
}

/// Returns the transport of stock Thrift at `host:port`.
pub(crate) fn by_tcp(address: &str) -> ChosenTransport {
    ChosenTransport::named(Scheme::Tcp.as_str(), format!("tcp:{address}"))
}

pub(crate) fn numa(service: &'static ServiceDescriptor, error: BindError) -> ConnectError {
    let error = NumaError::Bind { function: "connecting".to_owned(), error };
    ConnectError::Numa { service: service.name, error }
}

/// The connection of a call: the engine, or TCP with the function's name.
enum Way<'a, F: Fabric> {
    Engine(Engine<'a, F>),
    Tcp(&'a mut Connection, &'static str),
}

/// The engine's client and the parameters of a call.
struct Engine<'a, F: Fabric> {
    client: &'a mut dunlin_rpc::Client<F>,
    /// The function's id.
    id: u16,
    form: Form,
    /// Buffer for small requests.
    scratch: &'a mut [u8],
    /// The worker of the last call.
    turn: &'a mut usize,
}

impl<F: Fabric> Engine<'_, F> {
    /// Submits a call to the engine.
    #[inline]
    fn submit<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        arguments: &A,
        hand: Hand,
    ) -> Result<CallId, CallError> {
        let Engine { client, id, form, scratch, turn } = self;
        let worker = match hand {
            Hand::Message => next(turn, client),
            // All calls of a batch go to one worker.
            Hand::Batch => (**turn).min(client.workers().saturating_sub(1)),
        };
        let submitted = match (encoded(*form, arguments, scratch)?, hand) {
            (Encoded::Large(size), _) => {
                return submit_large(client, (time, worker), *id, *form, size, arguments);
            }
            (Encoded::Small(bytes), Hand::Message) => {
                client.within_or_default(time).submit_waiting_on(worker, *id, bytes)
            }
            (Encoded::Small(bytes), Hand::Batch) => {
                client.within_or_default(time).push_waiting_on(worker, *id, bytes)
            }
        };
        submitted.map_err(failed)
    }
}

/// Advances to the next worker and returns it.
#[inline]
fn next<F: Fabric>(turn: &mut usize, engine: &dunlin_rpc::Client<F>) -> usize {
    *turn = if *turn + 1 < engine.workers() { *turn + 1 } else { 0 };
    *turn
}

/// A request for the engine.
enum Encoded<'a> {
    /// The encoded bytes.
    Small(&'a [u8]),
    /// The size of a large request, to be encoded directly in the send buffer.
    Large(usize),
}

/// Returns the caller's own bytes, or encodes the arguments into the scratch buffer if they are small.
#[inline]
fn encoded<'a, A: Arguments>(
    form: Form,
    arguments: &'a A,
    scratch: &'a mut [u8],
) -> Result<Encoded<'a>, CallError> {
    if let Some(bytes) = form.raw(arguments) {
        let small = bytes.len() <= scratch.len();
        return Ok(if small { Encoded::Small(bytes) } else { Encoded::Large(bytes.len()) });
    }
    let size = form.size(arguments);
    let Some(place) = scratch.get_mut(..size) else { return Ok(Encoded::Large(size)) };
    form.encode(arguments, place).map_err(CallError::Encode)?;
    Ok(Encoded::Small(place))
}

/// Encodes a large request in the send buffer and submits it.
fn submit_large<F: Fabric, A: Arguments>(
    client: &mut dunlin_rpc::Client<F>,
    (time, worker): (Option<Duration>, usize),
    id: u16,
    form: Form,
    size: usize,
    arguments: &A,
) -> Result<CallId, CallError> {
    let mut request = client.within_or_default(time).filling_request_for(worker, id, size)?;
    let (place, filling) = request.parts();
    form.encode_filling(arguments, (place, Some(filling))).map_err(CallError::Encode)?;
    Ok(request.submit()?)
}

/// Converts an error of the engine into the error of a typed call.
#[cold]
pub(crate) fn failed(error: dunlin_rpc::CallError) -> CallError {
    match error {
        dunlin_rpc::CallError::Application { code, payload } => {
            CallError::Application(ApplicationException::new(
                ApplicationExceptionKind::from(i32::from(code)),
                String::from_utf8_lossy(&payload).into_owned(),
            ))
        }
        dunlin_rpc::CallError::Executed(Cause::HandlerPanicked) => CallError::Application(
            ApplicationException::new(ApplicationExceptionKind::INTERNAL_ERROR, "the handler panicked"),
        ),
        error => CallError::Transport(error),
    }
}

/// Calls the introduction function and checks that the server serves the service, with functions that this
/// client can call.
pub(crate) fn introduce<F: Fabric>(
    (client, time): (&mut dunlin_rpc::Client<F>, Option<Duration>),
    service: &'static ServiceDescriptor,
    options: &ClientOptions,
) -> Result<Introduction, ConnectError> {
    let answer =
        client.within_or_default(time).call(INTRODUCTION, &[]).map_err(ConnectError::Introduction)?;
    let introduction = Introduction::parse(&answer).map_err(ConnectError::NotThrift)?;
    // A client of a base service may call a server of a service that extends it.
    let known = service.functions.iter().filter(|f| introduction.function(&f.name).is_some()).count();
    if introduction.service != service.name && known == 0 {
        return Err(ConnectError::OtherService { wanted: service.name, found: introduction.service });
    }
    if !options.other_signatures {
        let functions = service.functions.iter().enumerate().filter_map(|(number, function)| {
            let difference = introduction.function(&function.name)?.difference(&service.signature(number))?;
            Some((function.name.to_string(), difference))
        });
        let functions: Vec<_> = functions.collect();
        if !functions.is_empty() {
            return Err(ConnectError::Signatures { service: service.name, functions });
        }
    }
    Ok(introduction)
}
