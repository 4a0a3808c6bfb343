//! What typed clients and servers go through: one fabric, or several of which the address picks one. Generated code knows
//! these traits only, so that it is the same for all.

use crate::arguments::{Arguments, Outcome};
use crate::asynchronous::{AsyncCall, AsyncClient};
use crate::client::{Client, Pending};
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError, ServeError};
use crate::route::ClientOptions;
use crate::server::{Processor, Server, ServerOptions, serve_on};
use crate::tcp::ConnectionOptions;
use dunlin_fabric::{Address, ChosenTransport, Fabric};
use dunlin_rpc::AsyncHub;
use std::fmt::Debug;

/// Makes typed clients and servers of addresses. Every [`Fabric`] does, of its own; `dunlin::Fabrics` of all, TCP's among them.
pub trait Connector: Debug + Sized + 'static {
    /// A client for one thread at a time.
    type Client: Calls;
    /// A client whose calls are futures.
    type AsyncClient: AsyncCalls;
    /// What asynchronous clients share.
    type Hub;
    /// A server.
    type Server<P: Processor>;

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

    /// Connects a client whose calls are futures. Blocks.
    fn async_client(
        &self,
        hub: &Self::Hub,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self::AsyncClient, ConnectError>;

    /// Connects a client whose calls are futures to stock Thrift at `host:port`. Blocks.
    fn async_tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self::AsyncClient, ConnectError>;

    /// Starts a server.
    fn server<P: Processor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
    ) -> Result<Self::Server<P>, ServeError>;
}

/// Starts a server of `processor` at `address`, and for stock Thrift if the options or the address say so: one handler for
/// both. `connector` is a fabric, which takes its own addresses, or `dunlin::Fabrics`, which takes all.
pub fn serve<C: Connector, P: Processor>(
    connector: &C,
    address: &Address,
    processor: P,
    options: ServerOptions,
) -> Result<C::Server<P>, ServeError> {
    connector.server(address, processor, options)
}

/// The calls of a client, functions by their numbers in the service's descriptor. [`Client`] has the documentation.
pub trait Calls: Debug {
    /// Makes a call and waits for its result.
    fn call<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>>;

    /// Makes a call whose result nobody waits for.
    fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>>;

    /// Adds a call to a batch.
    fn push<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>>;

    /// Sends the open batches.
    fn flush(&mut self) -> Result<(), dunlin_rpc::CallError>;

    /// Waits for a call.
    fn wait<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, CallError<R::Exception>>;

    /// The transport of the calls whose hints do not say TCP, and why it is that.
    fn transport(&self) -> &ChosenTransport;
}

/// The calls of an asynchronous client. [`AsyncClient`] has the documentation.
pub trait AsyncCalls: Clone + Debug {
    /// A call under way. Dropping it gives the call up here; the server may still execute it.
    type Call<R: Outcome>: Future<Output = Result<R::Value, CallError<R::Exception>>> + Unpin;

    /// Makes a call. It is sent at once if there is room.
    fn call<A: Arguments, R: Outcome>(&self, function: usize, arguments: &A) -> Self::Call<R>;

    /// Makes a call whose result nobody waits for.
    fn oneway<A: Arguments, E>(&self, function: usize, arguments: &A) -> Result<(), CallError<E>>;

    /// The transport of the calls whose hints do not say TCP, and why it is that.
    fn transport(&self) -> &ChosenTransport;
}

impl<F: Fabric> Connector for F {
    type Client = Client<F>;
    type AsyncClient = AsyncClient<F>;
    type Hub = AsyncHub<F>;
    type Server<P: Processor> = Server<F, P>;

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

    fn async_client(
        &self,
        hub: &AsyncHub<F>,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<AsyncClient<F>, ConnectError> {
        AsyncClient::connect(hub, self, address, service, options)
    }

    fn async_tcp_client(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<AsyncClient<F>, ConnectError> {
        AsyncClient::connect_tcp(address, service, options)
    }

    fn server<P: Processor>(
        &self,
        address: &Address,
        processor: P,
        options: ServerOptions,
    ) -> Result<Server<F, P>, ServeError> {
        serve_on(self, address, processor, options)
    }
}

impl<F: Fabric> Calls for Client<F> {
    #[inline]
    fn call<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>> {
        Client::call::<A, R>(self, function, arguments)
    }

    #[inline]
    fn oneway<A: Arguments, E>(&mut self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        Client::oneway(self, function, arguments)
    }

    #[inline]
    fn push<A: Arguments, R: Outcome>(
        &mut self,
        function: usize,
        arguments: &A,
    ) -> Result<Pending<R>, CallError<R::Exception>> {
        Client::push(self, function, arguments)
    }

    fn flush(&mut self) -> Result<(), dunlin_rpc::CallError> {
        Client::flush(self)
    }

    #[inline]
    fn wait<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, CallError<R::Exception>> {
        Client::wait(self, pending)
    }

    fn transport(&self) -> &ChosenTransport {
        Client::transport(self)
    }
}

impl<F: Fabric> AsyncCalls for AsyncClient<F> {
    type Call<R: Outcome> = AsyncCall<F, R>;

    #[inline]
    fn call<A: Arguments, R: Outcome>(&self, function: usize, arguments: &A) -> AsyncCall<F, R> {
        AsyncClient::call(self, function, arguments)
    }

    #[inline]
    fn oneway<A: Arguments, E>(&self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        AsyncClient::oneway(self, function, arguments)
    }

    fn transport(&self) -> &ChosenTransport {
        AsyncClient::transport(self)
    }
}
