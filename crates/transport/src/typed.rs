//! Typed clients on the transport that their address selects: a fabric, or stock Thrift over TCP. An `auto:`
//! address takes the first one that works; any other address is used as named or fails.

use crate::fabrics::{ChosenFabric, Fabrics, not_lazy};
use crate::resolve::{Calls as Whose, Resolved};
use crate::typed_server::{TypedAsyncServer, TypedServer, serve_async_on, serve_on};
use dunlin_fabric::{Address, ChosenTransport, DialError, Fabric, Scheme};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{RunningPlan, Tuning};
use dunlin_thrift::tcp::ConnectionOptions;
use dunlin_thrift::{
    Arguments, AsyncCall, AsyncCalls, AsyncConnector, AsyncProcessor, CallError, Calls, ClientOptions,
    ConnectError, Connector, ErrorOf, Outcome, Pending, PlanOfError, Processor, ServeError, ServerOptions,
    ServiceDescriptor, Tasks, over,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Evaluates the same expression on any variant of `$kind`.
macro_rules! each_way {
    ($kind:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $kind::Shm($inner) | $kind::Tcp($inner) => $body,
            $kind::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            $kind::Ofi($inner) => $body,
        }
    };
}

/// The single-fabric client for each transport. A TCP client has no engine, so its fabric parameter has no
/// meaning.
#[derive(Debug)]
enum Way {
    Shm(dunlin_thrift::Client<ShmFabric>),
    Rdma(dunlin_thrift::Client<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_thrift::Client<OfiFabric>),
    Tcp(dunlin_thrift::Client<ShmFabric>),
}

/// A synchronous typed client on the transport that its address selects, used by one thread at a time.
/// Generated clients on [`Fabrics`] wrap it.
#[derive(Debug)]
pub struct TypedClient {
    way: Way,
    transport: ChosenTransport,
}

impl TypedClient {
    fn connect(
        fabrics: &Fabrics,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let (resolved, options) = resolve(fabrics, address, options)?;
        let to = &resolved.address;
        if let Some(place) = tcp_place(fabrics, to)? {
            let client = dunlin_thrift::Client::connect_tcp(place, service, options.tcp_connection())?;
            let transport = resolved.transport(Scheme::Tcp.as_str());
            return Ok(TypedClient { way: Way::Tcp(client), transport });
        }
        let chosen = fabrics.choose(to).map_err(unavailable)?;
        let name = chosen.capabilities().name;
        let way = match chosen {
            ChosenFabric::Shm(fabric) => {
                Way::Shm(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
            ChosenFabric::Rdma(fabric) => {
                Way::Rdma(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                Way::Ofi(dunlin_thrift::Client::connect(&fabric, to, service, options)?)
            }
        };
        Ok(TypedClient { way, transport: resolved.transport(name) })
    }

    /// Connects another client to the same server with the same settings and connections of its own, for
    /// another thread. It keeps the transport. Blocks.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let way = match &self.way {
            Way::Shm(client) => Way::Shm(client.another()?),
            Way::Rdma(client) => Way::Rdma(client.another()?),
            #[cfg(feature = "ofi")]
            Way::Ofi(client) => Way::Ofi(client.another()?),
            Way::Tcp(client) => Way::Tcp(client.another()?),
        };
        Ok(TypedClient { way, transport: self.transport.clone() })
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        each_way!(Way, &self.way, client => client.tuning())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        each_way!(Way, &self.way, client => client.batch_calls())
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
) -> Result<(Resolved, ClientOptions), ConnectError> {
    not_lazy(address, &options.engine)?;
    let (resolved, tcp) = fabrics.resolve_for(address, Whose::Typed).map_err(unavailable)?;
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
        each_way!(Way, &mut self.way, client => client.call_within(time, function, arguments))
    }

    #[inline]
    fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        each_way!(Way, &mut self.way, client => client.oneway_within(time, function, arguments))
    }

    #[inline]
    fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        each_way!(Way, &mut self.way, client => client.push_within(time, function, arguments))
    }

    fn flush(&mut self) -> Result<(), CallError> {
        each_way!(Way, &mut self.way, client => client.flush())
    }

    #[inline]
    fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E> {
        each_way!(Way, &mut self.way, client => client.wait(pending))
    }

    fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        let running = each_way!(Way, &self.way, client => client.plan_of(function))?;
        Ok(over(&self.transport, running))
    }

    fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        each_way!(Way, &mut self.way, client => client.wait_ready(at_most))
    }
}

#[derive(Clone, Debug)]
enum AsyncWay {
    Shm(dunlin_thrift::AsyncClient<ShmFabric>),
    Rdma(dunlin_thrift::AsyncClient<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_thrift::AsyncClient<OfiFabric>),
    Tcp(dunlin_thrift::AsyncClient<ShmFabric>),
}

/// An asynchronous typed client on the transport that its address selects. Clones share its connections.
#[derive(Clone, Debug)]
pub struct TypedAsyncClient {
    way: AsyncWay,
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
        let (resolved, options) = resolve(fabrics, address, options)?;
        let (to, hubs) = (&resolved.address, fabrics.hubs());
        if let Some(place) = tcp_place(fabrics, to)? {
            let client = dunlin_thrift::AsyncClient::connect_tcp(place, service, options.tcp_connection())?;
            let transport = Arc::new(resolved.transport(Scheme::Tcp.as_str()));
            return Ok(TypedAsyncClient { way: AsyncWay::Tcp(client), transport });
        }
        let chosen = fabrics.choose(to).map_err(unavailable)?;
        let name = chosen.capabilities().name;
        let way = match chosen {
            ChosenFabric::Shm(fabric) => AsyncWay::Shm(on(hubs.shm(&fabric), to, service, options)?),
            ChosenFabric::Rdma(fabric) => AsyncWay::Rdma(on(hubs.rdma(&fabric), to, service, options)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => AsyncWay::Ofi(on(hubs.ofi(&fabric), to, service, options)?),
        };
        Ok(TypedAsyncClient { way, transport: Arc::new(resolved.transport(name)) })
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        each_way!(AsyncWay, &self.way, client => client.tuning())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        each_way!(AsyncWay, &self.way, client => client.batch_calls())
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
}

impl<R: Outcome, E: ErrorOf<R>> Future for TypedCall<R, E> {
    type Output = Result<R::Value, E>;

    /// # Panics
    /// Panics when polled again after it returned `Ready`.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
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
        TypedCall(match &self.way {
            AsyncWay::Shm(client) | AsyncWay::Tcp(client) => {
                CallWay::Shm(client.call_within(time, function, arguments))
            }
            AsyncWay::Rdma(client) => CallWay::Rdma(client.call_within(time, function, arguments)),
            #[cfg(feature = "ofi")]
            AsyncWay::Ofi(client) => CallWay::Ofi(client.call_within(time, function, arguments)),
        })
    }

    fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        each_way!(AsyncWay, &self.way, client => client.oneway_within(time, function, arguments))
    }

    fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        let running = each_way!(AsyncWay, &self.way, client => client.plan_of(function))?;
        Ok(over(&self.transport, running))
    }

    async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        each_way!(AsyncWay, &self.way, client => client.wait_ready(at_most).await)
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
        Ok(TypedClient { way: Way::Tcp(client), transport })
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
        Ok(TypedAsyncClient { way: AsyncWay::Tcp(client), transport })
    }
}
