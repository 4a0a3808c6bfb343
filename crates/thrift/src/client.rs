//! The synchronous client under generated code.

use crate::arguments::{Arguments, Outcome};
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::form::Form;
use crate::introduction::{INTRODUCTION, Introduction};
use crate::numa::{Bound, NumaError};
use crate::route::{Choice, ClientOptions, Route, no_route};
use crate::tcp::{Connection, ConnectionOptions};
use dunlin_fabric::{Address, BindError, ChosenTransport, Fabric, Host, Scheme};
use dunlin_hints::Selection;
use dunlin_rpc::{CallId, SMALL_LIMIT, Tuning};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};

/// A call in flight, to be given to [`Client::wait`].
#[derive(Debug)]
#[must_use = "the result is kept for who asks for it"]
pub struct Pending<R: Outcome>(InFlight<R>);

#[derive(Debug)]
enum InFlight<R: Outcome> {
    Engine(CallId, Form),
    /// TCP's calls are made one by one: it is over.
    Tcp(Result<R::Value, CallError<R::Exception>>),
}

/// A client of one service, for one thread at a time: what generated clients are made of.
#[derive(Debug)]
pub struct Client<F: Fabric> {
    service: &'static ServiceDescriptor,
    /// `None` if all functions go by TCP.
    engine: Option<dunlin_rpc::Client<F>>,
    tcp: Option<Connection>,
    routes: Vec<Route>,
    selections: Vec<Selection>,
    /// The host, and cores of it to be bound to.
    binding: Option<(F::Host, Vec<u32>)>,
    /// Where small requests are encoded.
    scratch: Box<[u8; SMALL_LIMIT as usize]>,
    /// The worker of the last call: they take turns, a batch each.
    turn: usize,
    transport: ChosenTransport,
}

/// How a call that nobody waits for at once is handed to the engine.
#[derive(Clone, Copy, Debug)]
enum Hand {
    /// As a message of its own.
    Message,
    /// In a batch.
    Batch,
}

impl<F: Fabric> Client<F> {
    /// Connects, each function as its hints say, and learns the server's functions. Blocks.
    pub fn connect(
        fabric: &F,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let choice = Choice::new(service, fabric, &options)?;
        let bound = Bound::new(fabric.host(), &choice.cores).map_err(|error| numa(service, error))?;
        let expected = Choice::expected(service);
        let config = choice.config(service, &expected, &options);
        let mut engine = dunlin_rpc::Client::connect(fabric, address, config)?;
        let introduction = introduce(&mut engine, service)?;
        if introduction.functions != expected.functions {
            // Its ids are others, and plans go by ids.
            let config = choice.config(service, &introduction, &options);
            engine = dunlin_rpc::Client::connect(fabric, address, config)?;
        }
        let routes = choice.routes(service, &introduction);
        let tcp_address = options.tcp.as_ref().or(introduction.tcp.as_ref());
        let tcp = match tcp_address.filter(|_| routes.contains(&Route::Tcp)) {
            Some(address) => Some(Connection::connect(address, options.connection)?),
            None => None,
        };
        drop(bound);
        let binding = Some((fabric.host().clone(), choice.cores));
        let transport = ChosenTransport::named(fabric.capabilities().name, address.to_string());
        let client = Client::new(service, routes, choice.selections, transport);
        Ok(Client { engine: Some(engine), tcp, binding, ..client })
    }

    /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All functions go by TCP. Blocks.
    pub fn connect_tcp(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let routes = vec![Route::Tcp; service.functions.len()];
        let tcp = Some(Connection::connect(address, options)?);
        Ok(Client { tcp, ..Client::new(service, routes, Vec::new(), by_tcp(address)) })
    }

    fn new(
        service: &'static ServiceDescriptor,
        routes: Vec<Route>,
        selections: Vec<Selection>,
        transport: ChosenTransport,
    ) -> Self {
        let scratch = Box::new([0; SMALL_LIMIT as usize]);
        let (engine, tcp, binding) = (None, None, None);
        Client { service, engine, tcp, routes, selections, binding, scratch, turn: 0, transport }
    }

    /// The transport of the calls whose hints do not say TCP.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// What is chosen now on each connection to a worker whose results are fetched or written back; empty for other plans, and by TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        self.engine.as_ref().map_or_else(Vec::new, |engine| engine.tuning())
    }

    /// How many calls a batch has at most now, on each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching), and by TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        self.engine.as_ref().map_or_else(Vec::new, |engine| engine.batch_calls().collect())
    }

    /// The cores of the NUMA node that the hints bind the client to; none for any.
    pub fn cores(&self) -> &[u32] {
        self.binding.as_ref().map_or(&[], |(_, cores)| cores)
    }

    /// Binds the calling thread, which should be the one that calls, to [`cores`](Client::cores); does nothing if there are
    /// none. The memory of the client lies at their node already.
    pub fn bind_thread(&self) -> Result<(), BindError> {
        match &self.binding {
            Some((host, cores)) if !cores.is_empty() => host.bind(cores).map(drop),
            _ => Ok(()),
        }
    }

    /// What was selected for each function, and why, in the order of the service's descriptor; nothing if all go by TCP.
    pub fn selections(&self) -> &[Selection] {
        &self.selections
    }

    /// The route of each function, in the order of the service's descriptor.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The engine's client; `None` if all functions go by TCP.
    pub fn engine(&mut self) -> Option<&mut dunlin_rpc::Client<F>> {
        self.engine.as_mut()
    }

    /// The engine and a function's id there; or TCP and its name.
    #[inline]
    fn route<E>(&mut self, function: usize) -> Result<Way<'_, F>, CallError<E>> {
        match (self.routes[function], &mut self.engine, &mut self.tcp) {
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
    pub fn call<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>> {
        let engine = match self.route(function)? {
            Way::Engine(engine) => engine,
            Way::Tcp(tcp, name) => return tcp.call::<A, R>(name, arguments),
        };
        let Engine { client, id, form, scratch, turn } = engine;
        let answer = match encoded(form, arguments, scratch)? {
            Encoded::Small(bytes) => client.call(id, bytes),
            Encoded::Large(size) => {
                let call = submit_large(client, next(turn, client), id, form, size, arguments)?;
                client.wait(call)
            }
        };
        match answer {
            Ok(response) => form.decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes a call whose result nobody waits for. Waits for room if need be.
    pub fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        match self.route(function)? {
            Way::Tcp(tcp, name) => tcp.oneway(name, arguments),
            Way::Engine(mut engine) => {
                let call = engine.submit(arguments, Hand::Message)?;
                engine.client.forget(call);
                Ok(())
            }
        }
    }

    /// Sends a call and does not wait for its result; for room, if need be. (TCP's calls are made one by one, so there the
    /// result is waited for.)
    #[inline]
    pub fn start<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        self.begin(function, arguments, Hand::Message)
    }

    /// Adds a call to a batch, which goes out when it is full, or with [`flush`](Client::flush), or when a result of it is
    /// waited for. Waits for room if need be; there is none to wait for when all of the window are results that nobody has
    /// waited for. (TCP's calls are made one by one.)
    #[inline]
    pub fn push<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        self.begin(function, arguments, Hand::Batch)
    }

    #[inline]
    fn begin<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
        hand: Hand,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        Ok(Pending(match self.route(function)? {
            Way::Engine(mut engine) => InFlight::Engine(engine.submit(arguments, hand)?, engine.form),
            Way::Tcp(tcp, name) => InFlight::Tcp(tcp.call::<A, R>(name, arguments)),
        }))
    }

    /// Sends the open batches. Waits for room if need be.
    pub fn flush(&mut self) -> Result<(), dunlin_rpc::CallError> {
        match &mut self.engine {
            Some(engine) => {
                next(&mut self.turn, engine);
                engine.flush_waiting()
            }
            None => Ok(()),
        }
    }

    /// Waits for a call.
    #[inline]
    pub fn wait<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, CallError<R::Exception>> {
        match (pending.0, &mut self.engine) {
            (InFlight::Tcp(result), _) => result,
            (InFlight::Engine(call, form), Some(engine)) => match engine.wait(call) {
                Ok(response) => form.decode::<R>(&response),
                Err(error) => Err(failed(error)),
            },
            // Another client's.
            (InFlight::Engine(..), None) => {
                Err(CallError::Transport(dunlin_rpc::CallError::NotExecuted(dunlin_rpc::Cause::Disconnected)))
            }
        }
    }
}

/// Stock Thrift at `host:port`.
pub(crate) fn by_tcp(address: &str) -> ChosenTransport {
    ChosenTransport::named(Scheme::Tcp.as_str(), format!("tcp:{address}"))
}

pub(crate) fn numa(service: &'static ServiceDescriptor, error: BindError) -> ConnectError {
    let error = NumaError::Bind { function: "connecting".to_owned(), error };
    ConnectError::Numa { service: service.name, error }
}

/// The way of a call: by the engine; or by TCP, with the function's name.
enum Way<'a, F: Fabric> {
    Engine(Engine<'a, F>),
    Tcp(&'a mut Connection, &'static str),
}

/// The way by the engine.
struct Engine<'a, F: Fabric> {
    client: &'a mut dunlin_rpc::Client<F>,
    /// The function's id.
    id: u16,
    form: Form,
    /// Where to encode.
    scratch: &'a mut [u8],
    /// Whose turn it is.
    turn: &'a mut usize,
}

impl<F: Fabric> Engine<'_, F> {
    /// Hands a call to the engine.
    #[inline]
    fn submit<A: Arguments, E>(&mut self, arguments: &A, hand: Hand) -> Result<CallId, CallError<E>> {
        let Engine { client, id, form, scratch, turn } = self;
        let worker = match hand {
            Hand::Message => next(turn, client),
            // All calls of a batch go to one worker.
            Hand::Batch => (**turn).min(client.workers().saturating_sub(1)),
        };
        let submitted = match (encoded(*form, arguments, scratch)?, hand) {
            (Encoded::Large(size), _) => {
                return submit_large(client, worker, *id, *form, size, arguments);
            }
            (Encoded::Small(bytes), Hand::Message) => client.submit_waiting_on(worker, *id, bytes),
            (Encoded::Small(bytes), Hand::Batch) => client.push_waiting_on(worker, *id, bytes),
        };
        submitted.map_err(failed)
    }
}

/// The worker whose turn it is.
#[inline]
fn next<F: Fabric>(turn: &mut usize, engine: &dunlin_rpc::Client<F>) -> usize {
    *turn = if *turn + 1 < engine.workers() { *turn + 1 } else { 0 };
    *turn
}

/// What is handed to the engine.
enum Encoded<'a> {
    /// These bytes.
    Small(&'a [u8]),
    /// So many, to be encoded where they are sent from.
    Large(usize),
}

/// The arguments as they lie with the caller, or encoded into the scratch if they are small.
#[inline]
fn encoded<'a, A: Arguments, E>(
    form: Form,
    arguments: &'a A,
    scratch: &'a mut [u8],
) -> Result<Encoded<'a>, CallError<E>> {
    if let Some(bytes) = form.raw(arguments) {
        let small = bytes.len() <= scratch.len();
        return Ok(if small { Encoded::Small(bytes) } else { Encoded::Large(bytes.len()) });
    }
    let size = form.size(arguments);
    let Some(place) = scratch.get_mut(..size) else { return Ok(Encoded::Large(size)) };
    form.encode(arguments, place).map_err(CallError::Encode)?;
    Ok(Encoded::Small(place))
}

/// Encodes a large request where it is sent from.
fn submit_large<F: Fabric, A: Arguments, E>(
    client: &mut dunlin_rpc::Client<F>,
    worker: usize,
    id: u16,
    form: Form,
    size: usize,
    arguments: &A,
) -> Result<CallId, CallError<E>> {
    let mut request = client.filling_request_for(worker, id, size)?;
    let (place, filling) = request.parts();
    form.encode_filling(arguments, (place, Some(filling))).map_err(CallError::Encode)?;
    Ok(request.submit()?)
}

/// What the engine says as the caller of a typed function hears it.
#[cold]
pub(crate) fn failed<E>(error: dunlin_rpc::CallError) -> CallError<E> {
    use dunlin_rpc::{Cause, Status};
    match error {
        dunlin_rpc::CallError::Application { code, payload } => {
            CallError::Application(ApplicationException::new(
                ApplicationExceptionKind::from(i32::from(code)),
                String::from_utf8_lossy(&payload).into_owned(),
            ))
        }
        dunlin_rpc::CallError::MaybeExecuted(Cause::Refused(Status::HandlerPanicked)) => {
            CallError::Application(ApplicationException::new(
                ApplicationExceptionKind::INTERNAL_ERROR,
                "the handler panicked",
            ))
        }
        error => CallError::Transport(error),
    }
}

/// Asks the server who it is.
pub(crate) fn introduce<F: Fabric>(
    client: &mut dunlin_rpc::Client<F>,
    service: &'static ServiceDescriptor,
) -> Result<Introduction, ConnectError> {
    let answer = client.call(INTRODUCTION, &[]).map_err(ConnectError::Introduction)?;
    let introduction = Introduction::parse(&answer).map_err(ConnectError::NotThrift)?;
    // A client of a base service may talk to a server of one that extends it.
    let known = service.functions.iter().filter(|f| introduction.function(&f.name).is_some()).count();
    if introduction.service != service.name && known == 0 {
        return Err(ConnectError::OtherService { wanted: service.name, found: introduction.service });
    }
    Ok(introduction)
}
