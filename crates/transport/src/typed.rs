//! Typed clients on the transport that their address selects: a fabric, or stock Thrift over TCP. An `auto:`
//! address takes the first one that works; any other address is used as named or fails.

use crate::attempts::{Attempts, Missing};
use crate::fabrics::{ChosenFabric, Fabrics};
use crate::later::{Later, Ready};
use crate::resolve::{Calls as Whose, PATIENCE, Resolved, unconnected};
use crate::typed_server::{TypedAsyncServer, TypedServer, serve_async_on, serve_on};
use dunlin_fabric::{Address, ChosenTransport, DialError, Fabric, Scheme};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Cause, ClientConfig, RunningPlan, Tuning};
use dunlin_thrift::tcp::ConnectionOptions;
use dunlin_thrift::{
    Arguments, AsyncCall, AsyncCalls, AsyncConnector, AsyncProcessor, CallError, Calls, ClientOptions,
    ConnectError, Connector, ErrorOf, HeldCall, Outcome, Pending, PlanOfError, Processor, ServeError,
    ServerOptions, ServiceDescriptor, Tasks, over,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Evaluates the same expression on any variant of `$kind`, or another one on a client without a transport.
macro_rules! for_each_fabric {
    ($kind:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $kind::Shm($inner) | $kind::Tcp($inner) => $body,
            $kind::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            $kind::Ofi($inner) => $body,
        }
    };
    ($kind:ident, $value:expr, $inner:pat => $body:expr, $later:pat => $else:expr) => {
        match $value {
            $kind::Shm($inner) | $kind::Tcp($inner) => $body,
            $kind::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            $kind::Ofi($inner) => $body,
            $later => $else,
        }
    };
}

/// The single-fabric client for each transport. A TCP client has no engine, so its fabric parameter has no
/// meaning.
#[derive(Debug)]
enum AnyTypedClient {
    Shm(dunlin_thrift::Client<ShmFabric>),
    Rdma(dunlin_thrift::Client<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_thrift::Client<OfiFabric>),
    Tcp(dunlin_thrift::Client<ShmFabric>),
    /// A lazy client of an `auto:` address until its first call, which asks the server for its transports.
    Later(Box<Unresolved>),
}

#[derive(Debug)]
struct Unresolved {
    fabrics: Fabrics,
    service: &'static ServiceDescriptor,
    options: ClientOptions,
    attempts: Attempts,
}

/// Returns the error of a call for which no connection was made.
fn missing(missing: Missing<Arc<ConnectError>>) -> CallError {
    match missing {
        Missing::Cause(cause) => dunlin_rpc::CallError::NotExecuted(cause).into(),
        Missing::Refused(error) => CallError::Connect(error),
    }
}

fn shared(missing: Missing<ConnectError>) -> Missing<Arc<ConnectError>> {
    match missing {
        Missing::Cause(cause) => Missing::Cause(cause),
        Missing::Refused(error) => Missing::Refused(Arc::new(error)),
    }
}

/// Returns the error of a call without a connection.
fn disconnected() -> CallError {
    dunlin_rpc::CallError::NotExecuted(Cause::Disconnected).into()
}

/// A synchronous typed client on the transport that its address selects, used by one thread at a time.
/// Generated clients on [`Fabrics`] wrap it.
#[derive(Debug)]
pub struct TypedClient {
    client: AnyTypedClient,
    transport: ChosenTransport,
}

impl TypedClient {
    fn connect(
        fabrics: &Fabrics,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        if options.engine.lazy && address.scheme() == Scheme::Auto {
            options.engine.check()?;
            let transport = unconnected(address);
            let later = Unresolved::new(fabrics, address.clone(), service, options);
            return Ok(TypedClient { client: AnyTypedClient::Later(Box::new(later)), transport });
        }
        let (resolved, options) = resolve(fabrics, address, options, PATIENCE)?;
        TypedClient::connect_to(fabrics, resolved, service, options)
    }

    fn connect_to(
        fabrics: &Fabrics,
        resolved: Resolved,
        service: &'static ServiceDescriptor,
        mut options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        options.engine = resolved.settle(options.engine);
        // Only a node's address names the service to ask for.
        options.through_node |= !resolved.service.is_empty();
        let to = &resolved.address;
        if let Some(place) = tcp_place(fabrics, to)? {
            let client = dunlin_thrift::Client::connect_tcp(place, service, options.tcp_connection())?;
            let transport = resolved.transport(Scheme::Tcp.as_str());
            return Ok(TypedClient { client: AnyTypedClient::Tcp(client), transport });
        }
        let chosen = fabrics.choose(to).map_err(unavailable)?;
        let name = chosen.capabilities().name;
        let client = match chosen {
            ChosenFabric::Shm(fabric) => {
                AnyTypedClient::Shm(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
            ChosenFabric::Rdma(fabric) => {
                AnyTypedClient::Rdma(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                AnyTypedClient::Ofi(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
        };
        Ok(TypedClient { client, transport: resolved.transport(name) })
    }

    /// Connects another client to the same server with the same settings and connections of its own, for
    /// another thread. It keeps the transport. Blocks.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let client = match &self.client {
            AnyTypedClient::Shm(client) => AnyTypedClient::Shm(client.another()?),
            AnyTypedClient::Rdma(client) => AnyTypedClient::Rdma(client.another()?),
            #[cfg(feature = "ofi")]
            AnyTypedClient::Ofi(client) => AnyTypedClient::Ofi(client.another()?),
            AnyTypedClient::Tcp(client) => AnyTypedClient::Tcp(client.another()?),
            AnyTypedClient::Later(later) => {
                let Unresolved { fabrics, service, options, attempts } = &**later;
                let later = Unresolved::new(fabrics, attempts.address.clone(), service, options.clone());
                AnyTypedClient::Later(Box::new(later))
            }
        };
        Ok(TypedClient { client, transport: self.transport.clone() })
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        for_each_fabric!(AnyTypedClient, &self.client, client => client.tuning(), AnyTypedClient::Later(_) => Vec::new())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        for_each_fabric!(AnyTypedClient, &self.client, client => client.batch_calls(), AnyTypedClient::Later(_) => Vec::new())
    }

    /// Gives a lazy client of an `auto:` address its transport for a call of this time. Returns the time that
    /// is left. The client that this makes is lazy, too, and connects within the same call.
    #[cold]
    fn resolve_for(&mut self, time: Option<Duration>) -> Result<Option<Duration>, CallError> {
        let AnyTypedClient::Later(later) = &mut self.client else { return Ok(time) };
        let mut attempts = later.attempts.clone();
        let made = attempts.for_call(time, |most| later.resolve_now(most));
        later.attempts = attempts;
        let (client, left) = made.map_err(shared).map_err(missing)?;
        *self = client;
        Ok(left)
    }

    #[inline(always)]
    fn resolved(&mut self, time: Option<Duration>) -> Result<Option<Duration>, CallError> {
        if let AnyTypedClient::Later(_) = &self.client { self.resolve_for(time) } else { Ok(time) }
    }
}

impl Unresolved {
    fn new(
        fabrics: &Fabrics,
        address: Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Self {
        let attempts = Attempts::new(address, &options.engine);
        Unresolved { fabrics: fabrics.clone(), service, options, attempts }
    }

    fn resolve_now(&self, most: Duration) -> Result<TypedClient, ConnectError> {
        let Unresolved { fabrics, service, options, attempts } = self;
        let (resolved, options) = resolve(fabrics, &attempts.address, options.clone(), most.min(PATIENCE))?;
        TypedClient::connect_to(fabrics, resolved, service, options)
    }
}

fn unavailable(error: dunlin_fabric::Unavailable) -> ConnectError {
    dunlin_rpc::ConnectError::from(DialError::from(error)).into()
}

/// Resolves an address. Adds the server's announced TCP address to options without one.
fn resolve(
    fabrics: &Fabrics,
    address: &Address,
    mut options: ClientOptions,
    most: Duration,
) -> Result<(Resolved, ClientOptions), ConnectError> {
    let (resolved, tcp) = fabrics.resolve_for(address, Whose::Typed, most).map_err(unavailable)?;
    options.tcp = options.tcp.or(tcp);
    Ok((resolved, options))
}

/// Returns the `host:port` of a TCP address.
fn tcp_place<'a>(fabrics: &Fabrics, address: &'a Address) -> Result<Option<&'a str>, ConnectError> {
    if address.scheme() != Scheme::Tcp {
        return Ok(None);
    }
    fabrics.allow(address).map_err(unavailable)?;
    Ok(Some(address.name()))
}

impl Calls for TypedClient {
    #[inline]
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        let time = self.resolved(time)?;
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.call_within(time, function, arguments), AnyTypedClient::Later(_) => Err(disconnected().into()))
    }

    #[inline]
    fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        let time = self.resolved(time)?;
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.oneway_within(time, function, arguments), AnyTypedClient::Later(_) => Err(disconnected()))
    }

    #[inline]
    fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        let time = self.resolved(time)?;
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.push_within(time, function, arguments), AnyTypedClient::Later(_) => Err(disconnected().into()))
    }

    fn flush(&mut self) -> Result<(), CallError> {
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.flush(), AnyTypedClient::Later(_) => Ok(()))
    }

    #[inline]
    fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E> {
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.wait(pending), AnyTypedClient::Later(_) => {
            // The call belongs to another client.
            Err(CallError::Transport(dunlin_rpc::CallError::MaybeExecuted(Cause::Closed)).into())
        })
    }

    fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        let running = for_each_fabric!(AnyTypedClient, &self.client, client => client.plan_of(function), AnyTypedClient::Later(_) => {
            Err(PlanOfError::NotConnected)
        })?;
        Ok(over(&self.transport, running))
    }

    fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        let began = std::time::Instant::now();
        if let AnyTypedClient::Later(later) = &mut self.client {
            let mut attempts = later.attempts.clone();
            let made = attempts.for_ready(at_most, |most| later.resolve_now(most));
            later.attempts = attempts;
            *self = made.map_err(shared).map_err(missing)?;
        }
        let left = at_most.saturating_sub(began.elapsed());
        for_each_fabric!(AnyTypedClient, &mut self.client, client => client.wait_ready(left), AnyTypedClient::Later(_) => Err(disconnected()))
    }
}

#[derive(Clone, Debug)]
enum AnyTypedAsyncClient {
    Shm(dunlin_thrift::AsyncClient<ShmFabric>),
    Rdma(dunlin_thrift::AsyncClient<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_thrift::AsyncClient<OfiFabric>),
    Tcp(dunlin_thrift::AsyncClient<ShmFabric>),
    Later(Box<LazyClient>),
}

/// A lazy client: it connects when a call needs it.
#[derive(Clone, Debug)]
struct LazyClient {
    service: &'static ServiceDescriptor,
    /// The form of calls that go by stock Thrift.
    connection: ConnectionOptions,
    later: Later<TypedAsyncClient, ConnectError>,
}

/// An asynchronous typed client on the transport that its address selects. Clones share its connections.
#[derive(Clone, Debug)]
pub struct TypedAsyncClient {
    client: AnyTypedAsyncClient,
    transport: Arc<ChosenTransport>,
}

impl TypedAsyncClient {
    fn connect(
        fabrics: &Fabrics,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        fn on<F: Fabric>(
            hub: Result<dunlin_rpc::AsyncHub<F>, dunlin_rpc::ConnectError>,
            to: &Address,
            service: &'static ServiceDescriptor,
            options: ClientOptions,
        ) -> Result<dunlin_thrift::AsyncClient<F>, ConnectError> {
            dunlin_thrift::AsyncClient::connect(&hub?, to, service, options)
        }
        if options.engine.lazy {
            options.engine.check()?;
            let (transport, connection) = (Arc::new(unconnected(address)), options.tcp_connection());
            let (fabrics, to, config) = (fabrics.clone(), address.clone(), options.engine.clone());
            let mut eager = options;
            eager.engine = ClientConfig { lazy: false, ..eager.engine };
            eager.connection.lazy = false;
            let connect = move || TypedAsyncClient::connect(&fabrics, &to, service, eager.clone());
            let later = Later::new(address.clone(), &config, connect);
            let client = AnyTypedAsyncClient::Later(Box::new(LazyClient { service, connection, later }));
            return Ok(TypedAsyncClient { client, transport });
        }
        let (resolved, mut options) = resolve(fabrics, address, options, PATIENCE)?;
        options.engine = resolved.settle(options.engine);
        // Only a node's address names the service to ask for.
        options.through_node |= !resolved.service.is_empty();
        let (to, hubs) = (&resolved.address, fabrics.hubs());
        if let Some(place) = tcp_place(fabrics, to)? {
            let client = dunlin_thrift::AsyncClient::connect_tcp(place, service, options.tcp_connection())?;
            let transport = Arc::new(resolved.transport(Scheme::Tcp.as_str()));
            return Ok(TypedAsyncClient { client: AnyTypedAsyncClient::Tcp(client), transport });
        }
        let chosen = fabrics.choose(to).map_err(unavailable)?;
        let name = chosen.capabilities().name;
        let client = match chosen {
            ChosenFabric::Shm(fabric) => {
                AnyTypedAsyncClient::Shm(on(hubs.shm(&fabric), to, service, options)?)
            }
            ChosenFabric::Rdma(fabric) => {
                AnyTypedAsyncClient::Rdma(on(hubs.rdma(&fabric), to, service, options)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                AnyTypedAsyncClient::Ofi(on(hubs.ofi(&fabric), to, service, options)?)
            }
        };
        Ok(TypedAsyncClient { client, transport: Arc::new(resolved.transport(name)) })
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        for_each_fabric!(AnyTypedAsyncClient, &self.client, client => client.tuning(), AnyTypedAsyncClient::Later(lazy) => {
            lazy.later.made().map_or_else(Vec::new, TypedAsyncClient::tuning)
        })
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        for_each_fabric!(AnyTypedAsyncClient, &self.client, client => client.batch_calls(), AnyTypedAsyncClient::Later(lazy) => {
            lazy.later.made().map_or_else(Vec::new, TypedAsyncClient::batch_calls)
        })
    }

    /// Makes a call whose arguments are encoded. Made by a client that has connected.
    fn call_held<R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        held: HeldCall,
    ) -> TypedCall<R, E> {
        TypedCall(match &self.client {
            AnyTypedAsyncClient::Shm(client) | AnyTypedAsyncClient::Tcp(client) => {
                CallWay::Shm(client.call_held(time, held))
            }
            AnyTypedAsyncClient::Rdma(client) => CallWay::Rdma(client.call_held(time, held)),
            #[cfg(feature = "ofi")]
            AnyTypedAsyncClient::Ofi(client) => CallWay::Ofi(client.call_held(time, held)),
            AnyTypedAsyncClient::Later(_) => CallWay::Failed(Some(disconnected())),
        })
    }
}

/// A call in progress. Dropping it abandons the call; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct TypedCall<R: Outcome, E>(CallWay<R, E>);

#[derive(Debug)]
enum CallWay<R: Outcome, E> {
    Shm(AsyncCall<ShmFabric, R, E>),
    Rdma(AsyncCall<RdmaFabric, R, E>),
    #[cfg(feature = "ofi")]
    Ofi(AsyncCall<OfiFabric, R, E>),
    /// The client is lazy and has not connected yet.
    Later(Box<UnconnectedCall>),
    /// Not executed. `None` once the error was returned.
    Failed(Option<CallError>),
}

/// A call that waits for its client's connection.
#[derive(Debug)]
struct UnconnectedCall {
    ready: Ready<TypedAsyncClient, ConnectError>,
    /// `None` once the call was made.
    held: Option<HeldCall>,
}

impl<R: Outcome, E: ErrorOf<R>> Future for TypedCall<R, E> {
    type Output = Result<R::Value, E>;

    /// # Panics
    /// Panics when polled again after it returned `Ready`.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let client = &mut self.get_mut().0;
        if let CallWay::Later(call) = client {
            let connected = std::task::ready!(Pin::new(&mut call.ready).poll(context));
            let left = call.ready.left();
            *client = match (connected, call.ready.made(), call.held.take()) {
                (Ok(()), Some(client), Some(held)) => client.call_held(left, held).0,
                (Err(error), ..) => CallWay::Failed(Some(missing(error))),
                _ => CallWay::Failed(Some(disconnected())),
            };
        }
        match client {
            CallWay::Later(_) => Poll::Ready(Err(disconnected().into())),
            CallWay::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error.into())),
                None => panic!("the call was polled after it was ready"),
            },
            CallWay::Shm(call) => Pin::new(call).poll(context),
            CallWay::Rdma(call) => Pin::new(call).poll(context),
            #[cfg(feature = "ofi")]
            CallWay::Ofi(call) => Pin::new(call).poll(context),
        }
    }
}

impl AsyncCalls for TypedAsyncClient {
    type Call<R: Outcome, E: ErrorOf<R>> = TypedCall<R, E>;

    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> TypedCall<R, E> {
        TypedCall(match &self.client {
            AnyTypedAsyncClient::Shm(client) | AnyTypedAsyncClient::Tcp(client) => {
                CallWay::Shm(client.call_within(time, function, arguments))
            }
            AnyTypedAsyncClient::Rdma(client) => CallWay::Rdma(client.call_within(time, function, arguments)),
            #[cfg(feature = "ofi")]
            AnyTypedAsyncClient::Ofi(client) => CallWay::Ofi(client.call_within(time, function, arguments)),
            AnyTypedAsyncClient::Later(lazy) => match lazy.later.made() {
                Some(client) => return client.call_within(time, function, arguments),
                None => match HeldCall::new(lazy.service, &lazy.connection, function, arguments) {
                    Ok(held) => {
                        let (ready, held) = (lazy.later.for_call(time), Some(held));
                        CallWay::Later(Box::new(UnconnectedCall { ready, held }))
                    }
                    Err(error) => CallWay::Failed(Some(error)),
                },
            },
        })
    }

    fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        for_each_fabric!(AnyTypedAsyncClient, &self.client, client => client.oneway_within(time, function, arguments), AnyTypedAsyncClient::Later(lazy) => {
            match lazy.later.made() {
                Some(client) => client.oneway_within(time, function, arguments),
                // The call fails, and later ones find a connection.
                None => {
                    drop(lazy.later.for_call(time));
                    Err(disconnected())
                }
            }
        })
    }

    fn transport(&self) -> &ChosenTransport {
        match &self.client {
            AnyTypedAsyncClient::Later(lazy) => {
                lazy.later.made().map_or(&self.transport, TypedAsyncClient::transport)
            }
            _ => &self.transport,
        }
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        let running = for_each_fabric!(AnyTypedAsyncClient, &self.client, client => client.plan_of(function), AnyTypedAsyncClient::Later(lazy) => {
            return lazy.later.made().ok_or(PlanOfError::NotConnected)?.plan_of(function);
        })?;
        Ok(over(&self.transport, running))
    }

    async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        for_each_fabric!(AnyTypedAsyncClient, &self.client, client => client.wait_ready(at_most).await, AnyTypedAsyncClient::Later(lazy) => {
            let began = std::time::Instant::now();
            lazy.later.for_ready(at_most).await.map_err(missing)?;
            let left = at_most.saturating_sub(began.elapsed());
            let made = lazy.later.made().ok_or_else(disconnected)?;
            for_each_fabric!(AnyTypedAsyncClient, &made.client, client => client.wait_ready(left).await, AnyTypedAsyncClient::Later(_) => {
                Err(disconnected())
            })
        })
    }
}

impl Connector for Fabrics {
    type Client = TypedClient;
    type Server<P: Processor> = TypedServer<P>;
    type AsyncServer = TypedAsyncServer;

    fn client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<TypedClient, ConnectError> {
        TypedClient::connect(self, address, service, options)
    }

    fn another(client: &TypedClient) -> Result<TypedClient, ConnectError> {
        client.another()
    }

    fn tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<TypedClient, ConnectError> {
        let client = dunlin_thrift::Client::connect_tcp(address, service, options)?;
        let transport = client.transport().clone();
        Ok(TypedClient { client: AnyTypedClient::Tcp(client), transport })
    }

    fn server<P: Processor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
    ) -> Result<TypedServer<P>, ServeError> {
        serve_on(self, address, processor, options)
    }

    fn async_server<P: AsyncProcessor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
        tasks: Tasks,
    ) -> Result<TypedAsyncServer, ServeError> {
        serve_async_on(self, address, processor, options, tasks)
    }
}

impl AsyncConnector for Fabrics {
    type AsyncClient = TypedAsyncClient;

    fn async_client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<TypedAsyncClient, ConnectError> {
        TypedAsyncClient::connect(self, address, service, options)
    }

    fn async_tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<TypedAsyncClient, ConnectError> {
        let client = dunlin_thrift::AsyncClient::connect_tcp(address, service, options)?;
        let transport = Arc::new(client.transport().clone());
        Ok(TypedAsyncClient { client: AnyTypedAsyncClient::Tcp(client), transport })
    }
}
