//! The server side: the adapter that connects a processor to the engine, and the server of both transports.

use crate::form::{Form, bare_size, encode_bare};
use crate::introduction::{INTRODUCTION, Introduction, function_number};
use crate::numa;
use crate::on_server::{OnServer, Placement};
use crate::route::environment;
use dunlin_fabric::{Address, Fabric, Host, Topology};
use dunlin_hints::{Environment, FunctionHints, Side, nearest, select};
use dunlin_rpc::{
    ApplicationCode, FunctionMode, PoolService, Reply, Request, ServerBuilder, ServerConfig, Service, Status,
};
use dunlin_thrift_core::codec::BinaryInput;
use dunlin_thrift_core::{
    Context, Failure, Outcome, Processor, Refusal, Responder, ServeError, ServiceDescriptor,
};
use dunlin_thrift_tcp as tcp;
use pilota::thrift::{ApplicationException, ApplicationExceptionKind, ThriftException};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A processor as a service of the engine. All workers and the TCP server share the handler.
#[derive(Debug)]
pub struct Adapter<P> {
    processor: Arc<P>,
    tcp: Option<String>,
    placement: Placement,
    introduction: Arc<[u8]>,
    /// By function: whether its slow handler was reported.
    reported: Arc<[AtomicBool]>,
}

impl<P> Clone for Adapter<P> {
    fn clone(&self) -> Self {
        Adapter {
            processor: Arc::clone(&self.processor),
            tcp: self.tcp.clone(),
            placement: self.placement.clone(),
            introduction: Arc::clone(&self.introduction),
            reported: Arc::clone(&self.reported),
        }
    }
}

impl<P: Processor> Adapter<P> {
    /// Creates an adapter. `tcp` is the server's address for stock Thrift, which clients learn from the
    /// introduction.
    pub fn new(processor: Arc<P>, tcp: Option<String>) -> Self {
        let service = processor.service();
        let functions = service.functions.iter();
        // Complete also for servers that do not start through `serve` and therefore know no fabric here.
        let on_server = functions.clone().map(|_| OnServer::unknown()).collect();
        let introduction = Introduction { on_server, ..Introduction::of(service, tcp.clone()) };
        Adapter {
            tcp,
            placement: Placement::default(),
            introduction: introduction.encode().into(),
            reported: functions.map(|_| AtomicBool::new(false)).collect(),
            processor,
        }
    }

    /// Lets the functions with these names run in the pool, besides those whose hint `process_time` is long.
    ///
    /// # Errors
    /// The service has no function with one of the names.
    pub fn pool(mut self, names: &[String]) -> Result<Self, ServeError> {
        let service = self.processor.service();
        let number = |name: &String| {
            service.function(name).ok_or_else(|| ServeError::NoSuchFunction {
                service: service.name,
                function: name.clone(),
                nearest: nearest(name, service.functions.iter().map(|function| &*function.name))
                    .map(str::to_owned),
            })
        };
        self.placement.pooled = names.iter().map(number).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Declares the service's functions to the engine.
    #[must_use]
    pub fn declare<F: Fabric>(&self, builder: ServerBuilder<F>) -> ServerBuilder<F> {
        let mut builder = builder.function(INTRODUCTION, FunctionMode::Worker);
        let service = self.processor.service();
        let functions = service.functions.iter().zip(Introduction::of(service, None).functions);
        for (number, (function, known)) in functions.enumerate() {
            // A long call would block the other calls of its worker.
            let (pool, _) = self.placement.of(number, function);
            let mode = if pool { FunctionMode::Pool } else { FunctionMode::Worker };
            builder = known.ids().fold(builder, |builder, id| builder.function(id, mode));
        }
        builder.pool(self.clone())
    }

    /// Writes the introduction for clients on this fabric.
    fn introduce(&mut self, environment: &Environment<'_>, pool_threads: u16) {
        let service = self.processor.service();
        let functions = service.functions.iter().enumerate();
        let on_server = functions.map(|(number, function)| {
            OnServer::new(number, function, &self.placement, pool_threads, environment)
        });
        let introduction =
            Introduction { on_server: on_server.collect(), ..Introduction::of(service, self.tcp.clone()) };
        self.introduction = introduction.encode().into();
    }

    /// Starts an engine server of the service on one fabric. Its threads are bound to the cores in the
    /// settings, or else as the hint `numa` asks. `topology` defaults to that of this machine.
    pub fn serve<F: Fabric>(
        &self,
        fabric: &F,
        address: &Address,
        mut config: ServerConfig,
        topology: Option<Topology>,
    ) -> Result<dunlin_rpc::Server<F>, ServeError> {
        let topology = topology.unwrap_or_else(|| fabric.host().topology());
        if config.cores.is_empty() {
            config.cores = bound_cores(fabric, self.processor.service(), &topology)?;
        }
        let service = self.processor.service();
        let mut names = service.extends.iter().map(|base| (*base).to_owned()).collect::<Vec<_>>();
        // Clients of the IDL ask for its name even if the settings have another one.
        match config.service.is_empty() {
            true => service.name.clone_into(&mut config.service),
            false => names.push(service.name.to_owned()),
        }
        config.other_names.append(&mut names);
        let mut adapter = self.clone();
        adapter.introduce(&environment(fabric.capabilities(), None, &topology), config.pool_threads);
        let builder = adapter.declare(ServerBuilder::new(fabric).config(config));
        Ok(builder.serve(address, move |_| Box::new(adapter.clone()))?)
    }

    #[inline]
    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        let Some((function, form)) = function_number(request.function) else {
            return Ok(reply.write(&self.introduction)?);
        };
        let deadline = request.deadline().map(|(deadline, clock)| (deadline, clock.clone()));
        let context = Context::on_engine(request.session, deadline);
        let mut input = match form {
            Form::Bare => BinaryInput::bare(request.payload),
            Form::Tagged => BinaryInput::new(request.payload),
        };
        self.processor.process(function, &mut input, &context, IntoReply { reply, form })
    }
}

impl<P: Processor> Service for Adapter<P> {
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.answer(request, reply)
    }

    fn on_slow(&mut self, id: u16, took: Duration) {
        let Some((number, _)) = function_number(id) else { return };
        let service = self.processor.service();
        let (Some(function), Some(reported)) = (service.functions.get(number), self.reported.get(number))
        else {
            return;
        };
        // A function has two ids, and an `auto:` server several engines.
        if !reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "dunlin::server",
                "the handler of {}.{} kept its worker for {took:?}, and all other calls there waited: give the function the hint process_time = long, or name it in ServerOptions::pool",
                service.name,
                function.name
            );
        }
    }
}

impl<P: Processor> PoolService for Adapter<P> {
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.answer(request, reply)
    }
}

/// Encodes results directly into the reply's send buffer.
struct IntoReply<'a, 'b> {
    reply: &'a mut Reply<'b>,
    form: Form,
}

impl Responder for IntoReply<'_, '_> {
    type Done = Result<(), Status>;

    #[inline]
    fn respond<R: Outcome>(self, outcome: Result<R, Refusal>) -> Self::Done {
        let IntoReply { reply, form } = self;
        match outcome {
            Ok(result) => {
                let place = reply.reserve_to_fill(form.result_size(&result))?;
                form.encode_result(&result, place).or_else(|error| not_encoded(reply, &error))
            }
            Err(refusal) => refuse(reply, &refusal.into_exception()),
        }
    }

    /// Encodes a bare value from where the handler left it: moving it first would stall on the stores that
    /// wrote it.
    #[inline]
    fn answer<R: Outcome>(self, result: Result<R::Value, Failure<R::Exception>>) -> Self::Done {
        match (self.form, &result) {
            (Form::Bare, Ok(value)) => {
                let place = self.reply.reserve_to_fill(bare_size::<R>(value))?;
                encode_bare::<R>(value, place).or_else(|error| not_encoded(self.reply, &error))
            }
            _ => self.respond(R::of(result)),
        }
    }

    #[cold]
    fn refuse(self, refusal: Refusal) -> Self::Done {
        refuse(self.reply, &refusal.into_exception())
    }
}

/// Answers a call whose result cannot be encoded.
#[cold]
fn not_encoded(reply: &mut Reply<'_>, error: &ThriftException) -> Result<(), Status> {
    let text = error.message().clone();
    refuse(reply, &ApplicationException::new(ApplicationExceptionKind::INTERNAL_ERROR, text))
}

/// Sends an undeclared exception as an application error: its kind is the code and its text is the payload.
#[cold]
fn refuse(reply: &mut Reply<'_>, exception: &ApplicationException) -> Result<(), Status> {
    reply.clear();
    reply.write(exception.message().as_bytes())?;
    Err(application_code(exception).map_or(Status::Malformed, Status::Application))
}

/// Returns the code of an undeclared exception: its kind.
pub(crate) fn application_code(exception: &ApplicationException) -> Option<ApplicationCode> {
    let kind = u16::try_from(exception.kind().as_i32()).ok().and_then(ApplicationCode::new);
    kind.or(ApplicationCode::new(0))
}

/// Settings of a typed server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The engine's settings. Default: [`ServerConfig::default`]. If they name cores, the hint `numa` is
    /// ignored.
    pub engine: ServerConfig,
    /// The NUMA topology; by default that of this machine.
    pub topology: Option<Topology>,
    /// The address on which to serve stock Thrift too (`host:port`); port 0 picks a free port. Clients of the
    /// engine learn it, for functions whose hints select TCP. Default: `None`, which serves stock Thrift at
    /// `tcp:` and `auto:` addresses only.
    pub tcp: Option<String>,
    /// Settings of the TCP server. Default: [`tcp::ServerOptions::default`].
    pub tcp_options: tcp::ServerOptions,
    /// Functions, by their names in the IDL, that run in the pool ([`ServerConfig::pool_threads`]) and not on
    /// the worker that receives a call, besides those whose hint `process_time` is long. For functions that
    /// block or compute for more than some microseconds. An unknown name fails the start with
    /// [`ServeError::NoSuchFunction`]. Calls over TCP have threads of their own. Default:
    /// none.
    pub pool: Vec<String>,
}

/// A running typed server. Dropping it stops it immediately.
#[derive(Debug)]
pub struct Server<F: Fabric, P: Processor> {
    engine: dunlin_rpc::Server<F>,
    tcp: Option<tcp::Server<P>>,
}

/// Starts a server on one fabric, and for stock Thrift if the options ask for it, with one handler for both.
pub(crate) fn serve_on<F: Fabric, P: Processor>(
    fabric: &F,
    address: &Address,
    processor: P,
    options: ServerOptions,
) -> Result<Server<F, P>, ServeError> {
    let processor = Arc::new(processor);
    let tcp = match &options.tcp {
        Some(address) => Some(tcp::Server::bind(address, Arc::clone(&processor), options.tcp_options)?),
        None => None,
    };
    let told = tcp.as_ref().map(|tcp| tcp.address().to_string());
    let adapter = Adapter::new(processor, told).pool(&options.pool)?;
    let engine = adapter.serve(fabric, address, options.engine, options.topology)?;
    Ok(Server { engine, tcp })
}

/// Returns the cores to which the hints bind the server's threads; empty for no binding.
pub(crate) fn bound_cores<F: Fabric>(
    fabric: &F,
    service: &'static ServiceDescriptor,
    topology: &Topology,
) -> Result<Vec<u32>, ServeError> {
    let hinted: Vec<_> = service.functions.iter().filter(|function| function.server.numa.is_some()).collect();
    if hinted.is_empty() {
        return Ok(Vec::new());
    }
    let environment = environment(fabric.capabilities(), None, topology);
    let select = |function: &&FunctionHints| {
        select(function, &environment).map_err(|error| ServeError::Hints {
            service: service.name,
            function: function.name.to_string(),
            error: Box::new(error),
        })
    };
    let selections = hinted.iter().map(select).collect::<Result<Vec<_>, _>>()?;
    numa::cores(Side::Server, hinted.into_iter().zip(&selections), topology)
        .map_err(|error| ServeError::Numa { service: service.name, error })
}

impl<F: Fabric, P: Processor> Server<F, P> {
    /// Returns the address to which clients of the engine connect.
    pub fn address(&self) -> &Address {
        self.engine.address()
    }

    /// Returns the address on which stock Thrift clients are served.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(tcp::Server::address)
    }

    /// Returns the engine's server.
    pub fn engine(&self) -> &dunlin_rpc::Server<F> {
        &self.engine
    }

    /// Stops the server gracefully: answers the received calls, for at most `timeout` on each of the engine
    /// and TCP.
    pub fn shutdown(self, timeout: Duration) {
        if let Some(tcp) = self.tcp {
            tcp.shutdown(timeout);
        }
        self.engine.shutdown(timeout);
    }
}
