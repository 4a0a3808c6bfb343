//! The synchronous client under generated code.

use crate::arguments::{Arguments, Outcome};
use crate::codec::{BinaryInput, BinaryOutput};
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::introduction::{INTRODUCTION, Introduction};
use crate::route::{Choice, ClientOptions, Route, no_route};
use crate::tcp::{Connection, ConnectionOptions};
use dunlin_fabric::{Address, Fabric};
use dunlin_hints::Selection;
use dunlin_rpc::{CallId, SMALL_LIMIT};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};

/// A call in flight, to be given to [`Client::wait`].
#[derive(Debug)]
#[must_use = "the result is kept for who asks for it"]
pub struct Pending<R: Outcome>(InFlight<R>);

#[derive(Debug)]
enum InFlight<R: Outcome> {
    Engine(CallId),
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
    /// Where small requests are encoded.
    scratch: Box<[u8; SMALL_LIMIT as usize]>,
    /// The worker of the last call: they take turns, a batch each.
    turn: usize,
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
        let choice = Choice::new(service, fabric.capabilities(), &options)?;
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
        Ok(Client { engine: Some(engine), tcp, ..Client::new(service, routes, choice.selections) })
    }

    /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All functions go by TCP. Blocks.
    pub fn connect_tcp(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let routes = vec![Route::Tcp; service.functions.len()];
        let tcp = Some(Connection::connect(address, options)?);
        Ok(Client { tcp, ..Client::new(service, routes, Vec::new()) })
    }

    fn new(service: &'static ServiceDescriptor, routes: Vec<Route>, selections: Vec<Selection>) -> Self {
        let scratch = Box::new([0; SMALL_LIMIT as usize]);
        Client { service, engine: None, tcp: None, routes, selections, scratch, turn: 0 }
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
            (Route::Engine(id), Some(engine), _) => {
                Ok(Way::Engine(engine, id, &mut self.scratch[..], &mut self.turn))
            }
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
        let (engine, id, scratch, turn) = match self.route(function)? {
            Way::Engine(engine, id, scratch, turn) => (engine, id, scratch, turn),
            Way::Tcp(tcp, name) => return tcp.call::<A, R>(name, arguments),
        };
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let answer = match scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                engine.call(id, place)
            }
            None => {
                let call = submit_large(engine, next(turn, engine), id, size, arguments)?;
                engine.wait(call)
            }
        };
        match answer {
            Ok(response) => decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes a call whose result nobody waits for. Waits for room if need be.
    pub fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        match self.route(function)? {
            Way::Tcp(tcp, name) => tcp.oneway(name, arguments),
            Way::Engine(engine, id, scratch, turn) => {
                let worker = next(turn, engine);
                let call = submit(engine, worker, id, scratch, arguments, Hand::Message)?;
                engine.forget(call);
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
        let (engine, id, scratch, turn) = match self.route(function)? {
            Way::Engine(engine, id, scratch, turn) => (engine, id, scratch, turn),
            Way::Tcp(tcp, name) => return Ok(Pending(InFlight::Tcp(tcp.call::<A, R>(name, arguments)))),
        };
        let worker = next(turn, engine);
        Ok(Pending(InFlight::Engine(submit(engine, worker, id, scratch, arguments, Hand::Message)?)))
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
        let (engine, id, scratch, turn) = match self.route(function)? {
            Way::Engine(engine, id, scratch, turn) => (engine, id, scratch, *turn),
            Way::Tcp(tcp, name) => return Ok(Pending(InFlight::Tcp(tcp.call::<A, R>(name, arguments)))),
        };
        // All calls of a batch go to one worker.
        let worker = turn.min(engine.workers().saturating_sub(1));
        Ok(Pending(InFlight::Engine(submit(engine, worker, id, scratch, arguments, Hand::Batch)?)))
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
            (InFlight::Engine(call), Some(engine)) => match engine.wait(call) {
                Ok(response) => decode::<R>(&response),
                Err(error) => Err(failed(error)),
            },
            // Another client's.
            (InFlight::Engine(_), None) => {
                Err(CallError::Transport(dunlin_rpc::CallError::NotExecuted(dunlin_rpc::Cause::Disconnected)))
            }
        }
    }
}

/// The way of a call: by the engine, with the function's id, a place to encode in and whose turn it is; or by TCP, with the
/// function's name.
enum Way<'a, F: Fabric> {
    Engine(&'a mut dunlin_rpc::Client<F>, u16, &'a mut [u8], &'a mut usize),
    Tcp(&'a mut Connection, &'static str),
}

/// The worker whose turn it is.
#[inline]
fn next<F: Fabric>(turn: &mut usize, engine: &dunlin_rpc::Client<F>) -> usize {
    *turn = if *turn + 1 < engine.workers() { *turn + 1 } else { 0 };
    *turn
}

/// Hands a call to the engine.
#[inline]
fn submit<F: Fabric, A: Arguments, E>(
    engine: &mut dunlin_rpc::Client<F>,
    worker: usize,
    id: u16,
    scratch: &mut [u8],
    arguments: &A,
    hand: Hand,
) -> Result<CallId, CallError<E>> {
    let size = arguments.size(&mut BinaryOutput::new(&mut []));
    let Some(place) = scratch.get_mut(..size) else {
        return submit_large(engine, worker, id, size, arguments);
    };
    arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
    match hand {
        Hand::Message => engine.submit_waiting_on(worker, id, place),
        Hand::Batch => engine.push_waiting_on(worker, id, place),
    }
    .map_err(failed)
}

/// Encodes a large request where the server will READ it.
fn submit_large<F: Fabric, A: Arguments, E>(
    client: &mut dunlin_rpc::Client<F>,
    worker: usize,
    id: u16,
    size: usize,
    arguments: &A,
) -> Result<CallId, CallError<E>> {
    let mut request = client.large_request_for(worker, id, size)?;
    arguments.encode(&mut BinaryOutput::new(&mut request)).map_err(CallError::Encode)?;
    Ok(client.submit_large(id, request)?)
}

#[inline]
pub(crate) fn decode<R: Outcome>(bytes: &[u8]) -> Result<R::Value, CallError<R::Exception>> {
    match R::decode(&mut BinaryInput::new(bytes)) {
        Ok(outcome) => outcome.into_result().map_err(CallError::Exception),
        Err(error) => Err(CallError::Decode(error)),
    }
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
    let known = service.functions.iter().filter(|f| introduction.id(&f.name).is_some()).count();
    if introduction.service != service.name && known == 0 {
        return Err(ConnectError::OtherService { wanted: service.name, found: introduction.service });
    }
    Ok(introduction)
}
