//! The server's side: what generated code implements, and how a call of the engine reaches it.

use crate::arguments::Outcome;
use crate::codec::{BinaryInput, Input, part};
use crate::descriptor::ServiceDescriptor;
use crate::error::{Failure, Refusal, ServeError};
use crate::form::{Form, bare_size, encode_bare};
use crate::introduction::{INTRODUCTION, Introduction, function_number};
use crate::numa;
use crate::route::environment;
use crate::tcp;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Topology};
use dunlin_hints::{FunctionHints, ProcessTime, Side, select};
use dunlin_rpc::{
    ApplicationCode, FunctionMode, PoolService, Reply, Request, ServerBuilder, ServerConfig, Service, Status,
};
use pilota::Bytes;
use pilota::thrift::{ApplicationException, ApplicationExceptionKind, ThriftException};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What a handler may know of a call beyond its arguments.
#[derive(Clone, Debug)]
pub struct Context {
    /// Time left for the call when it was sent, in nanoseconds; `None` for no deadline.
    pub time_left: Option<Nanos>,
    /// The caller's connection: the same number for all its calls.
    pub session: u64,
    /// Whether the call came by stock Thrift over TCP.
    pub tcp: bool,
    /// The memory of the message, if it may be kept.
    pub(crate) memory: Option<Bytes>,
}

impl Context {
    /// The bytes of an argument, to be kept or given back. They are a part of the message's memory, so that nothing is copied, if they
    /// are large, most of the message and came over TCP in a frame and the binary encoding; else a copy.
    pub fn share(&self, argument: &[u8]) -> Bytes {
        let shared = self.memory.as_ref().and_then(|memory| part(memory, argument));
        shared.unwrap_or_else(|| Bytes::copy_from_slice(argument))
    }
}

/// Where a processor puts what became of a call.
pub trait Responder {
    /// What answering gives to who called the processor.
    type Done;

    /// Answers. The calls of oneway functions are answered too, and nobody hears it.
    fn respond<R: Outcome>(self, outcome: Result<R, Refusal>) -> Self::Done;

    /// Answers with what the handler gave.
    #[inline]
    fn answer<R: Outcome>(self, result: Result<R::Value, Failure<R::Exception>>) -> Self::Done
    where
        Self: Sized,
    {
        self.respond(R::of(result))
    }

    /// Answers a call of what is no function.
    fn refuse(self, refusal: Refusal) -> Self::Done;
}

/// A service on its handler: reads arguments, calls, answers. Generated code implements it.
pub trait Processor: Send + Sync + 'static {
    /// The service.
    fn service(&self) -> &'static ServiceDescriptor;

    /// Executes one call of the function with this number in the service's descriptor.
    fn process<'a, I: Input<'a>, R: Responder>(
        &self,
        function: usize,
        input: &mut I,
        context: &Context,
        responder: R,
    ) -> R::Done;
}

/// A processor as the engine's service. The handler is shared by all workers, and by TCP.
#[derive(Debug)]
pub struct Adapter<P> {
    processor: Arc<P>,
    introduction: Arc<[u8]>,
}

impl<P> Clone for Adapter<P> {
    fn clone(&self) -> Self {
        Adapter { processor: Arc::clone(&self.processor), introduction: Arc::clone(&self.introduction) }
    }
}

impl<P: Processor> Adapter<P> {
    /// An adapter; `tcp` is where the server also listens for stock Thrift, told to clients.
    pub fn new(processor: Arc<P>, tcp: Option<String>) -> Self {
        let introduction = Introduction::of(processor.service(), tcp).encode().into();
        Adapter { processor, introduction }
    }

    /// Declares the service's functions.
    #[must_use]
    pub fn declare<F: Fabric>(&self, builder: ServerBuilder<F>) -> ServerBuilder<F> {
        let mut builder = builder.function(INTRODUCTION, FunctionMode::Worker);
        let service = self.processor.service();
        for (function, known) in service.functions.iter().zip(Introduction::of(service, None).functions) {
            // What works long on a call would keep everybody else waiting on the worker.
            let long = function.server.process_time.is_some_and(ProcessTime::is_long);
            let mode = if long { FunctionMode::Pool } else { FunctionMode::Worker };
            builder = known.ids().fold(builder, |builder, id| builder.function(id, mode));
        }
        builder.pool(self.clone())
    }

    /// Starts an engine's server of the service on one fabric, bound as the hints say: unless the settings name cores, the hint
    /// `numa` does. The topology is this machine's if not given.
    pub fn serve<F: Fabric>(
        &self,
        fabric: &F,
        address: &Address,
        mut config: ServerConfig,
        topology: Option<Topology>,
    ) -> Result<dunlin_rpc::Server<F>, ServeError> {
        if config.cores.is_empty() {
            config.cores = bound_cores(fabric, self.processor.service(), topology)?;
        }
        let builder = self.declare(ServerBuilder::new(fabric).config(config));
        let adapter = self.clone();
        Ok(builder.serve(address, move |_| Box::new(adapter.clone()))?)
    }

    #[inline]
    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        let Some((function, form)) = function_number(request.function) else {
            return Ok(reply.write(&self.introduction)?);
        };
        let context =
            Context { time_left: request.time_left, session: request.session, tcp: false, memory: None };
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
}

impl<P: Processor> PoolService for Adapter<P> {
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.answer(request, reply)
    }
}

/// Results go straight to where they are sent from.
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

    /// A value in the bare form is encoded from where the handler left it: to move it there first would wait for the stores that
    /// made it.
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

/// A result that cannot be encoded.
#[cold]
fn not_encoded(reply: &mut Reply<'_>, error: &ThriftException) -> Result<(), Status> {
    let text = error.message().clone();
    refuse(reply, &ApplicationException::new(ApplicationExceptionKind::INTERNAL_ERROR, text))
}

/// An exception that the IDL does not know travels as an error of the application: its kind is the code and its text the
/// payload.
#[cold]
fn refuse(reply: &mut Reply<'_>, exception: &ApplicationException) -> Result<(), Status> {
    reply.clear();
    reply.write(exception.message().as_bytes())?;
    let kind = u16::try_from(exception.kind().as_i32()).ok().and_then(ApplicationCode::new);
    Err(kind.or(ApplicationCode::new(0)).map_or(Status::Malformed, Status::Application))
}

/// Settings of a typed server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The engine's settings. If they name cores, the hint `numa` does not count.
    pub engine: ServerConfig,
    /// NUMA nodes; this machine's if not given.
    pub topology: Option<Topology>,
    /// Where to answer stock Thrift clients too, `host:port`; port 0 for any. Clients of the engine are told, for functions
    /// whose hints say TCP.
    pub tcp: Option<String>,
    /// Settings of that.
    pub tcp_options: tcp::ServerOptions,
}

/// A running typed server; dropping it ends it at once.
#[derive(Debug)]
pub struct Server<F: Fabric, P: Processor> {
    engine: dunlin_rpc::Server<F>,
    tcp: Option<tcp::Server<P>>,
}

/// A server on one fabric, and for stock Thrift if the options say so: one handler for both.
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
    let adapter = Adapter::new(processor, tcp.as_ref().map(|tcp| tcp.address().to_string()));
    let engine = adapter.serve(fabric, address, options.engine, options.topology)?;
    Ok(Server { engine, tcp })
}

/// The cores that the hints bind the server's threads to; none for any.
fn bound_cores<F: Fabric>(
    fabric: &F,
    service: &'static ServiceDescriptor,
    topology: Option<Topology>,
) -> Result<Vec<u32>, ServeError> {
    let hinted: Vec<_> = service.functions.iter().filter(|function| function.server.numa.is_some()).collect();
    if hinted.is_empty() {
        return Ok(Vec::new());
    }
    let topology = topology.unwrap_or_else(|| fabric.host().topology());
    let environment = environment(fabric.capabilities(), None, &topology);
    let select = |function: &&FunctionHints| {
        select(function, &environment).map_err(|error| ServeError::Hints {
            service: service.name,
            function: function.name.to_string(),
            error: Box::new(error),
        })
    };
    let selections = hinted.iter().map(select).collect::<Result<Vec<_>, _>>()?;
    numa::cores(Side::Server, hinted.into_iter().zip(&selections), &topology)
        .map_err(|error| ServeError::Numa { service: service.name, error })
}

impl<F: Fabric, P: Processor> Server<F, P> {
    /// The address that clients of the engine dial.
    pub fn address(&self) -> &Address {
        self.engine.address()
    }

    /// Where stock Thrift clients are answered.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(tcp::Server::address)
    }

    /// The engine's server.
    pub fn engine(&self) -> &dunlin_rpc::Server<F> {
        &self.engine
    }

    /// Ends the server gently: what was received is answered, for `timeout` nanoseconds at most on each side.
    pub fn shutdown(self, timeout: Nanos) {
        if let Some(tcp) = self.tcp {
            tcp.shutdown(Duration::from_nanos(timeout));
        }
        self.engine.shutdown(timeout);
    }
}
