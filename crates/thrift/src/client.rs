//! The synchronous client under generated code.

use crate::arguments::{Arguments, Outcome};
use crate::codec::{BinaryInput, BinaryOutput};
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::introduction::{INTRODUCTION, Introduction};
use dunlin_fabric::{Address, Fabric};
use dunlin_rpc::{CallId, ClientConfig, Plan, SMALL_LIMIT};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::marker::PhantomData;

/// Settings of a typed client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The engine's settings. The plan in them is that of functions whose hints select none.
    pub engine: ClientConfig,
}

/// Where the calls of a function go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the engine: which of the client's connections, and the server's id of the function.
    Engine {
        /// The connection, one for each plan.
        connection: u16,
        /// The server's function id.
        function: u16,
    },
    /// The server has no such function.
    Unknown,
}

/// A call in flight, to be given to [`Client::wait`].
#[derive(Debug)]
#[must_use = "the result is kept for who asks for it"]
pub struct Pending<R> {
    connection: u16,
    id: CallId,
    result: PhantomData<fn() -> R>,
}

/// A client of one service, for one thread at a time: what generated clients are made of.
#[derive(Debug)]
pub struct Client<F: Fabric> {
    service: &'static ServiceDescriptor,
    connections: Vec<dunlin_rpc::Client<F>>,
    routes: Vec<Route>,
    /// Where small requests are encoded.
    scratch: Box<[u8; SMALL_LIMIT as usize]>,
}

impl<F: Fabric> Client<F> {
    /// Connects, and learns the server's functions. Blocks.
    pub fn connect(
        fabric: &F,
        address: &Address,
        service: &'static ServiceDescriptor,
        plans: &[Plan],
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let mut distinct: Vec<Plan> = Vec::new();
        let mut numbers = Vec::with_capacity(service.functions.len());
        for number in 0..service.functions.len() {
            let plan = plans.get(number).copied().unwrap_or(options.engine.plan);
            let place = distinct.iter().position(|known| *known == plan).unwrap_or_else(|| {
                distinct.push(plan);
                distinct.len() - 1
            });
            numbers.push(place as u16);
        }
        if distinct.is_empty() {
            distinct.push(options.engine.plan);
        }
        let mut connections = Vec::with_capacity(distinct.len());
        for plan in distinct {
            let config = ClientConfig { plan, ..options.engine.clone() };
            connections.push(dunlin_rpc::Client::connect(fabric, address, config)?);
        }
        let introduction = introduce(&mut connections[0], service)?;
        let routes = service.functions.iter().zip(numbers);
        let routes = routes.map(|(function, connection)| match introduction.id(function.name) {
            Some(function) => Route::Engine { connection, function },
            None => Route::Unknown,
        });
        Ok(Client {
            service,
            connections,
            routes: routes.collect(),
            scratch: Box::new([0; SMALL_LIMIT as usize]),
        })
    }

    /// The route of each function, in the order of the service's descriptor.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The engine's clients, one for each plan.
    pub fn connections(&mut self) -> &mut [dunlin_rpc::Client<F>] {
        &mut self.connections
    }

    fn route<E>(&self, function: usize) -> Result<(u16, u16), CallError<E>> {
        match self.routes[function] {
            Route::Engine { connection, function } => Ok((connection, function)),
            Route::Unknown => {
                let name = self.service.functions[function].name;
                Err(CallError::Application(ApplicationException::new(
                    ApplicationExceptionKind::UNKNOWN_METHOD,
                    format!(
                        "the server's {} has no function '{name}': it was built from another IDL",
                        self.service.name
                    ),
                )))
            }
        }
    }

    /// Makes a call and waits for its result.
    #[inline]
    pub fn call<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>> {
        let (connection, id) = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let client = &mut self.connections[usize::from(connection)];
        if let Some(place) = self.scratch.get_mut(..size) {
            arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
            return match client.call(id, place) {
                Ok(response) => decode::<R>(&response),
                Err(error) => Err(failed(error)),
            };
        }
        let call = submit_large(client, id, size, arguments)?;
        match client.wait(call) {
            Ok(response) => decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes a call whose result nobody waits for.
    pub fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        let (connection, id) = self.submit(function, arguments)?;
        self.connections[usize::from(connection)].forget(id);
        Ok(())
    }

    /// Sends a call and does not wait: neither for room, nor for the result.
    #[inline]
    pub fn start<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        let (connection, id) = self.submit(function, arguments)?;
        Ok(Pending { connection, id, result: PhantomData })
    }

    /// Adds a call to a batch, which goes out when it is full, or with [`flush`](Client::flush), or when a result of it is
    /// waited for.
    #[inline]
    pub fn push<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        let (connection, id) = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let client = &mut self.connections[usize::from(connection)];
        let id = match self.scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                client.push_on(0, id, place).map_err(failed)?
            }
            None => submit_large(client, id, size, arguments)?,
        };
        Ok(Pending { connection, id, result: PhantomData })
    }

    /// Sends the open batches.
    pub fn flush(&mut self) -> Result<(), dunlin_rpc::CallError> {
        self.connections.iter_mut().try_for_each(dunlin_rpc::Client::flush)
    }

    /// Waits for a call.
    #[inline]
    pub fn wait<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, CallError<R::Exception>> {
        let client = &mut self.connections[usize::from(pending.connection)];
        match client.wait(pending.id) {
            Ok(response) => decode::<R>(&response),
            Err(error) => Err(failed(error)),
        }
    }

    fn submit<A: Arguments, E>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<(u16, CallId), CallError<E>> {
        let (connection, id) = self.route(function)?;
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let client = &mut self.connections[usize::from(connection)];
        let id = match self.scratch.get_mut(..size) {
            Some(place) => {
                arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
                client.submit_on(0, id, place).map_err(failed)?
            }
            None => submit_large(client, id, size, arguments)?,
        };
        Ok((connection, id))
    }
}

/// Encodes a large request where the server will READ it.
fn submit_large<F: Fabric, A: Arguments, E>(
    client: &mut dunlin_rpc::Client<F>,
    id: u16,
    size: usize,
    arguments: &A,
) -> Result<CallId, CallError<E>> {
    let mut request = client.large_request(0, size)?;
    arguments.encode(&mut BinaryOutput::new(&mut request)).map_err(CallError::Encode)?;
    Ok(client.submit_large(id, request)?)
}

#[inline]
fn decode<R: Outcome>(bytes: &[u8]) -> Result<R::Value, CallError<R::Exception>> {
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
fn introduce<F: Fabric>(
    client: &mut dunlin_rpc::Client<F>,
    service: &'static ServiceDescriptor,
) -> Result<Introduction, ConnectError> {
    let answer = client.call(INTRODUCTION, &[]).map_err(ConnectError::Introduction)?;
    let introduction = Introduction::parse(&answer).map_err(ConnectError::NotThrift)?;
    // A client of a base service may talk to a server of one that extends it.
    let known = service.functions.iter().filter(|f| introduction.id(f.name).is_some()).count();
    if introduction.service != service.name && known == 0 {
        return Err(ConnectError::OtherService { wanted: service.name, found: introduction.service });
    }
    Ok(introduction)
}
