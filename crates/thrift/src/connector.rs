//! Connectors: the interface between generated code and either one fabric or a set of fabrics. Generated code
//! uses only these traits, so it is the same for all fabrics.

use crate::asynchronous::{AsyncCall, AsyncClient};
use crate::client::{Client, Pending};
use crate::route::ClientOptions;
use crate::running::over;
use crate::server::{Server, ServerOptions, serve_on};
use crate::tasks::{AsyncProcessor, AsyncServer, Tasks, serve_async_on};
use dunlin_fabric::{Address, ChosenTransport, Fabric, IntoAddress, ListenError};
use dunlin_rpc::{AsyncHub, RunningPlan};
use dunlin_thrift_core::{
    Arguments, CallError, ConnectError, ErrorOf, Outcome, PlanOfError, Processor, ServeError,
    ServiceDescriptor,
};
use dunlin_thrift_tcp::ConnectionOptions;
use std::fmt::Debug;
use std::time::Duration;

/// A factory of typed clients and servers. Every [`Fabric`] is one for its own addresses; `dunlin::Fabrics`
/// is one for the addresses of all fabrics and of TCP.
pub trait Connector: Debug + Sized + 'static {
    /// The synchronous client, used by one thread at a time.
    type Client: Calls;
    /// The server.
    type Server<P: Processor>;
    /// The server of asynchronous handlers.
    type AsyncServer;

    /// Connects a client. Blocks.
    fn client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self::Client, ConnectError>;

    /// Connects a client to stock Thrift at `host:port`. Blocks.
    fn tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self::Client, ConnectError>;

    /// Connects another client to the same server with the same settings, for another thread. Blocks.
    fn another(client: &Self::Client) -> Result<Self::Client, ConnectError>;

    /// Starts a server.
    fn server<P: Processor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
    ) -> Result<Self::Server<P>, ServeError>;

    /// Starts a server of asynchronous handlers.
    fn async_server<P: AsyncProcessor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
        tasks: Tasks,
    ) -> Result<Self::AsyncServer, ServeError>;
}

/// A factory of typed asynchronous clients: the [`AsyncHub`] of one fabric, for that fabric's addresses, or
/// `dunlin::Fabrics`, for the addresses of all fabrics and of TCP.
pub trait AsyncConnector: Debug + Sized + 'static {
    /// The client, whose calls are futures.
    type AsyncClient: AsyncCalls;

    /// Connects an asynchronous client. Blocks.
    fn async_client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self::AsyncClient, ConnectError>;

    /// Connects an asynchronous client to stock Thrift at `host:port`. Blocks.
    fn async_tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self::AsyncClient, ConnectError>;
}

fn address_of(address: impl IntoAddress) -> Result<Address, ServeError> {
    address.into_address().map_err(|error| dunlin_rpc::ServeError::from(ListenError::from(error)).into())
}

/// Starts a server of `processor` at `address`. It also serves stock Thrift if the options or the address ask
/// for it, with the same handler. `connector` is a single fabric or `dunlin::Fabrics`.
pub fn serve_with<C: Connector, P: Processor>(
    connector: &C,
    address: impl IntoAddress,
    processor: P,
    options: ServerOptions,
) -> Result<C::Server<P>, ServeError> {
    connector.server(&address_of(address)?, processor, options)
}

/// Starts a server whose handlers are asynchronous: each call is a task on the executor of `tasks`, and the
/// workers never wait for one. `connector` is a single fabric or `dunlin::Fabrics`.
///
/// Asynchronous handlers do not answer stock Thrift: an `auto:` address announces the fabrics alone. `tcp:` and
/// `node:` addresses, [`ServerOptions::tcp`] and [`ServerOptions::pool`] are refused with
/// [`ServeError::Asynchronous`].
pub fn serve_async_with<C: Connector, P: AsyncProcessor>(
    connector: &C,
    address: impl IntoAddress,
    processor: P,
    options: ServerOptions,
    tasks: Tasks,
) -> Result<C::AsyncServer, ServeError> {
    connector.async_server(&address_of(address)?, processor, options, tasks)
}

/// The calls of a synchronous client. Functions are given by their indices in the service's descriptor, and a
/// call's time in place of that of the settings, if it has one. [`Client`] documents the methods.
pub trait Calls: Debug {
    /// Makes a call and waits for its result.
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E>;

    /// Sends a oneway call, without waiting for a result.
    fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError>;

    /// Adds a call to a batch.
    fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E>;

    /// Makes a call with the time of the settings.
    #[inline]
    fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        self.call_within(None, function, arguments)
    }

    /// Sends a oneway call with the time of the settings.
    #[inline]
    fn oneway<A: Arguments>(&mut self, function: usize, arguments: &A) -> Result<(), CallError> {
        self.oneway_within(None, function, arguments)
    }

    /// Adds a call to a batch, with the time of the settings.
    #[inline]
    fn push<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        self.push_within(None, function, arguments)
    }

    /// Returns a view of this client whose calls have a time of their own.
    fn within(&mut self, time: Duration) -> Within<'_, Self>
    where
        Self: Sized,
    {
        Within { client: self, time }
    }

    /// Sends the open batches.
    fn flush(&mut self) -> Result<(), CallError>;

    /// Waits for the result of a call.
    fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E>;

    /// Returns the transport of calls whose hints do not select TCP, and the reason why it was chosen.
    fn transport(&self) -> &ChosenTransport;

    /// Returns how the calls of a function run.
    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError>;

    /// Waits until the client is connected.
    fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError>;
}

/// The calls of an asynchronous client, with times as in [`Calls`]. [`AsyncClient`] documents the methods.
pub trait AsyncCalls: Clone + Debug {
    /// A call in progress. Dropping it abandons the call; the server may still execute it.
    type Call<R: Outcome, E: ErrorOf<R>>: Future<Output = Result<R::Value, E>> + Unpin;

    /// Makes a call, sending it immediately if there is room.
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Self::Call<R, E>;

    /// Sends a oneway call, without waiting for a result.
    fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError>;

    /// Makes a call with the time of the settings.
    #[inline]
    fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        function: usize,
        arguments: &A,
    ) -> Self::Call<R, E> {
        self.call_within(None, function, arguments)
    }

    /// Sends a oneway call with the time of the settings.
    #[inline]
    fn oneway<A: Arguments>(&self, function: usize, arguments: &A) -> Result<(), CallError> {
        self.oneway_within(None, function, arguments)
    }

    /// Returns a view of this client whose calls have a time of their own.
    fn within(&self, time: Duration) -> AsyncWithin<'_, Self> {
        AsyncWithin { client: self, time }
    }

    /// Returns the transport of calls whose hints do not select TCP, and the reason why it was chosen.
    fn transport(&self) -> &ChosenTransport;

    /// Returns how the calls of a function run.
    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError>;

    /// Waits until the client is connected.
    fn wait_ready(&self, at_most: Duration) -> impl Future<Output = Result<(), CallError>> + Send;
}

/// A view of a synchronous client whose calls have a time of their own, in place of that of the settings.
///
/// A call ends with [`Cause::DeadlineExceeded`](dunlin_rpc::Cause::DeadlineExceeded) when its time has passed,
/// and the server does not begin it later; see [`dunlin_rpc::Client::within`]. Over TCP the server does not
/// learn the time.
#[derive(Debug)]
#[must_use = "the time is that of the calls made with it"]
pub struct Within<'a, C> {
    client: &'a mut C,
    time: Duration,
}

impl<C: Calls> Calls for Within<'_, C> {
    #[inline]
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        self.client.call_within(time.or(Some(self.time)), function, arguments)
    }

    #[inline]
    fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        self.client.oneway_within(time.or(Some(self.time)), function, arguments)
    }

    #[inline]
    fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        self.client.push_within(time.or(Some(self.time)), function, arguments)
    }

    fn flush(&mut self) -> Result<(), CallError> {
        self.client.flush()
    }

    #[inline]
    fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E> {
        self.client.wait(pending)
    }

    fn transport(&self) -> &ChosenTransport {
        self.client.transport()
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        self.client.plan_of(function)
    }

    fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        self.client.wait_ready(at_most)
    }
}

/// A view of an asynchronous client whose calls have a time of their own; as [`Within`].
#[derive(Debug)]
pub struct AsyncWithin<'a, C> {
    client: &'a C,
    time: Duration,
}

impl<C> Clone for AsyncWithin<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for AsyncWithin<'_, C> {}

impl<C: AsyncCalls> AsyncCalls for AsyncWithin<'_, C> {
    type Call<R: Outcome, E: ErrorOf<R>> = C::Call<R, E>;

    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> C::Call<R, E> {
        self.client.call_within(time.or(Some(self.time)), function, arguments)
    }

    fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        self.client.oneway_within(time.or(Some(self.time)), function, arguments)
    }

    fn transport(&self) -> &ChosenTransport {
        self.client.transport()
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        self.client.plan_of(function)
    }

    fn wait_ready(&self, at_most: Duration) -> impl Future<Output = Result<(), CallError>> + Send {
        self.client.wait_ready(at_most)
    }
}

impl<F: Fabric> AsyncConnector for AsyncHub<F> {
    type AsyncClient = AsyncClient<F>;

    fn async_client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<AsyncClient<F>, ConnectError> {
        AsyncClient::connect(self, address, service, options)
    }

    fn async_tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<AsyncClient<F>, ConnectError> {
        AsyncClient::connect_tcp(address, service, options)
    }
}

impl<F: Fabric> Connector for F {
    type Client = Client<F>;
    type Server<P: Processor> = Server<F, P>;
    type AsyncServer = AsyncServer<F>;

    fn client(
        &self,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Client<F>, ConnectError> {
        Client::connect(self, address, service, options)
    }

    fn tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Client<F>, ConnectError> {
        Client::connect_tcp(address, service, options)
    }

    fn another(client: &Client<F>) -> Result<Client<F>, ConnectError> {
        client.another()
    }

    fn server<P: Processor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
    ) -> Result<Server<F, P>, ServeError> {
        serve_on(self, address, processor, options)
    }

    fn async_server<P: AsyncProcessor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
        tasks: Tasks,
    ) -> Result<AsyncServer<F>, ServeError> {
        serve_async_on(self, address, processor, options, tasks)
    }
}

impl<F: Fabric> Calls for Client<F> {
    #[inline]
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, E> {
        Client::call_within(self, time, function, arguments)
    }

    #[inline]
    fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        Client::oneway_within(self, time, function, arguments)
    }

    #[inline]
    fn push_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R, E>, E> {
        Client::push_within(self, time, function, arguments)
    }

    fn flush(&mut self) -> Result<(), CallError> {
        Client::flush(self)
    }

    #[inline]
    fn wait<R: Outcome, E: ErrorOf<R>>(&mut self, pending: Pending<R, E>) -> Result<R::Value, E> {
        Client::wait(self, pending)
    }

    fn transport(&self) -> &ChosenTransport {
        Client::transport(self)
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        Ok(over(Client::transport(self), Client::plan_of(self, function)?))
    }

    fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        Client::wait_ready(self, at_most)
    }
}

impl<F: Fabric> AsyncCalls for AsyncClient<F> {
    type Call<R: Outcome, E: ErrorOf<R>> = AsyncCall<F, R, E>;

    #[inline]
    fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> AsyncCall<F, R, E> {
        AsyncClient::call_within(self, time, function, arguments)
    }

    #[inline]
    fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        AsyncClient::oneway_within(self, time, function, arguments)
    }

    fn transport(&self) -> &ChosenTransport {
        AsyncClient::transport(self)
    }

    fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        Ok(over(AsyncClient::transport(self), AsyncClient::plan_of(self, function)?))
    }

    async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        AsyncClient::wait_ready(self, at_most).await
    }
}
