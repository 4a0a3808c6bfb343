//! The synchronous client under generated code.

use crate::arguments::{Arguments, Outcome};
use crate::codec::{BinaryInput, BinaryOutput};
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::introduction::{INTRODUCTION, Introduction};
use crate::route::{Choice, ClientOptions, Route, no_route};
use dunlin_fabric::{Address, Fabric};
use dunlin_hints::Selection;
use dunlin_rpc::{CallId, SMALL_LIMIT};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::marker::PhantomData;

/// A call in flight, to be given to [`Client::wait`].
#[derive(Debug)]
#[must_use = "the result is kept for who asks for it"]
pub struct Pending<R> {
    id: CallId,
    result: PhantomData<fn() -> R>,
}

/// A client of one service, for one thread at a time: what generated clients are made of.
#[derive(Debug)]
pub struct Client<F: Fabric> {
    service: &'static ServiceDescriptor,
    engine: dunlin_rpc::Client<F>,
    routes: Vec<Route>,
    selections: Vec<Selection>,
    /// Where small requests are encoded.
    scratch: Box<[u8; SMALL_LIMIT as usize]>,
    /// The worker of the last call: they take turns, a batch each.
    turn: usize,
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
        let mut engine =
            dunlin_rpc::Client::connect(fabric, address, choice.config(service, &expected, &options))?;
        let introduction = introduce(&mut engine, service)?;
        if introduction.functions != expected.functions {
            // Its ids are others, and plans go by ids.
            engine = dunlin_rpc::Client::connect(
                fabric,
                address,
                choice.config(service, &introduction, &options),
            )?;
        }
        Ok(Client {
            service,
            engine,
            routes: choice.routes(service, &introduction),
            selections: choice.selections,
            scratch: Box::new([0; SMALL_LIMIT as usize]),
            turn: 0,
        })
    }

    /// What was selected for each function, and why, in the order of the service's descriptor.
    pub fn selections(&self) -> &[Selection] {
        &self.selections
    }

    /// The route of each function, in the order of the service's descriptor.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The engine's client.
    pub fn engine(&mut self) -> &mut dunlin_rpc::Client<F> {
        &mut self.engine
    }

    /// The worker whose turn it is.
    #[inline]
    fn turn(&mut self) -> usize {
        let workers = self.engine.workers();
        self.turn = if self.turn + 1 < workers { self.turn + 1 } else { 0 };
        self.turn
    }

    #[inline]
    fn route<E>(&self, function: usize) -> Result<u16, CallError<E>> {
        match self.routes[function] {
            Route::Engine(id) => Ok(id),
            other => Err(no_route(self.service, function, other)),
        }
    }

    /// Makes a call and waits for its result.
    #[inline]
    pub fn call<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>> {
        let id = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let client = &mut self.engine;
        if let Some(place) = self.scratch.get_mut(..size) {
            arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
            return match client.call(id, place) {
                Ok(response) => decode::<R>(&response),
                Err(error) => Err(failed(error)),
            };
        }
        let worker = self.turn();
        let client = &mut self.engine;
        let call = submit_large(client, worker, id, size, arguments)?;
        match client.wait(call) {
            Ok(response) => decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes a call whose result nobody waits for. Waits for room if need be.
    pub fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        let id = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let worker = self.turn();
        let client = &mut self.engine;
        let id = match self.scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                client.submit_waiting_on(worker, id, place).map_err(failed)?
            }
            None => submit_large(client, worker, id, size, arguments)?,
        };
        client.forget(id);
        Ok(())
    }

    /// Sends a call and does not wait for its result; for room, if need be.
    #[inline]
    pub fn start<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        let id = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let worker = self.turn();
        let client = &mut self.engine;
        let id = match self.scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                client.submit_waiting_on(worker, id, place).map_err(failed)?
            }
            None => submit_large(client, worker, id, size, arguments)?,
        };
        Ok(Pending { id, result: PhantomData })
    }

    /// Adds a call to a batch, which goes out when it is full, or with [`flush`](Client::flush), or when a result of it is
    /// waited for. Waits for room if need be; there is none to wait for when all of the window are results that nobody has
    /// waited for.
    #[inline]
    pub fn push<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        let id = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let client = &mut self.engine;
        // All calls of a batch go to one worker.
        let worker = self.turn.min(client.workers().saturating_sub(1));
        let id = match self.scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                client.push_waiting_on(worker, id, place).map_err(failed)?
            }
            None => submit_large(client, worker, id, size, arguments)?,
        };
        Ok(Pending { id, result: PhantomData })
    }

    /// Sends the open batches. Waits for room if need be.
    pub fn flush(&mut self) -> Result<(), dunlin_rpc::CallError> {
        self.turn();
        self.engine.flush_waiting()
    }

    /// Waits for a call.
    #[inline]
    pub fn wait<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, CallError<R::Exception>> {
        let client = &mut self.engine;
        match client.wait(pending.id) {
            Ok(response) => decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }
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
