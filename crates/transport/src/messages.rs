//! RF-RPC's calls for programs with their own dispatch and serialization (table 2), on the fabric that the
//! address selects. [`dunlin_rpc::messages`] documents them.

use crate::fabrics::{ChosenFabric, FabricSelector, Fabrics};
use crate::server::Server;
use dunlin_fabric::{Address, ChosenTransport, DialError, IntoAddress, ListenError, Scheme, Unavailable};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::messages::{BufferError, ClientId, ReceiveError, SendError};
use dunlin_rpc::{CallError, Cause, ClientConfig, ConnectError, ServeError, ServerConfig, Tuning};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A message buffer: memory registered for the peer that it was allocated for. Dropping it frees it.
#[derive(Debug)]
pub struct MessageBuffer(BufferOn);

#[derive(Debug)]
enum BufferOn {
    Shm(dunlin_rpc::messages::MessageBuffer<ShmFabric>),
    Rdma(dunlin_rpc::messages::MessageBuffer<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::messages::MessageBuffer<OfiFabric>),
}

impl Deref for MessageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        each!(BufferOn, &self.0, buffer => buffer)
    }
}

impl DerefMut for MessageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        each!(BufferOn, &mut self.0, buffer => buffer)
    }
}

/// The error of a buffer of another fabric: nothing was sent or received.
const FOREIGN: CallError = CallError::NotExecuted(Cause::Closed);

/// Evaluates an expression on a peer and a buffer of the same fabric.
macro_rules! with_buffer {
    ($kind:ident, $peer:expr, $buffer:expr, $error:ident, $on:ident, $memory:ident => $body:expr) => {
        match ($peer, &mut $buffer.0) {
            ($kind::Shm($on), BufferOn::Shm($memory)) => $body,
            ($kind::Rdma($on), BufferOn::Rdma($memory)) => $body,
            #[cfg(feature = "ofi")]
            ($kind::Ofi($on), BufferOn::Ofi($memory)) => $body,
            _ => Err($error::Call(FOREIGN)),
        }
    };
}

/// A client that exchanges messages with the threads of one server: it receives one for each that it sends.
/// `Send`, but used by one thread at a time. [`dunlin_rpc::messages::MessageClient`] documents the methods.
#[derive(Debug)]
pub struct MessageClient {
    on: ClientOn,
    transport: ChosenTransport,
}

#[derive(Debug)]
enum ClientOn {
    Shm(dunlin_rpc::messages::MessageClient<ShmFabric>),
    Rdma(dunlin_rpc::messages::MessageClient<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::messages::MessageClient<OfiFabric>),
}

impl MessageClient {
    /// Connects to all threads of a server, with the fabrics of this process ([`Fabrics::global`]) and default
    /// settings; [`connect_with`](MessageClient::connect_with) has the details.
    pub fn connect(address: impl IntoAddress) -> Result<Self, ConnectError> {
        MessageClient::connect_with(Fabrics::global(), address, ClientConfig::default())
    }

    /// Connects to all threads of a server, on the fabric that the address names. Blocks for at most
    /// [`ClientConfig::connect_timeout`], and while the fabric is opened.
    ///
    /// # Errors
    /// As [`Client::connect_with`](crate::Client::connect_with). [`ClientConfig::lazy`] is refused: the server
    /// says how many threads there are.
    pub fn connect_with(
        fabrics: &impl FabricSelector,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        use dunlin_rpc::messages::MessageClient as On;
        let address = address.into_address()?;
        if config.lazy {
            return Err(ConnectError::Lazy("a client of messages knows the server's threads from the start"));
        }
        if address.scheme() == Scheme::Node {
            return Err(DialError::from(through_nodes(&address)).into());
        }
        let resolved = fabrics.resolve(&address).map_err(DialError::from)?;
        let to = &resolved.address;
        let chosen = fabrics.choose(to).map_err(DialError::from)?;
        let name = chosen.capabilities().name;
        let on = match chosen {
            ChosenFabric::Shm(fabric) => ClientOn::Shm(On::connect(&fabric, to, config)?),
            ChosenFabric::Rdma(fabric) => ClientOn::Rdma(On::connect(&fabric, to, config)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => ClientOn::Ofi(On::connect(&fabric, to, config)?),
        };
        Ok(MessageClient { on, transport: resolved.transport(name) })
    }

    /// Returns the transport of the messages, and the reason why it was chosen.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Returns the number of server threads, which the `server` argument of the other methods names.
    pub fn servers(&self) -> usize {
        each!(ClientOn, &self.on, client => client.servers())
    }

    /// Returns the number of messages to `server` whose answers were not received yet.
    pub fn outstanding(&self, server: usize) -> usize {
        each!(ClientOn, &self.on, client => client.outstanding(server))
    }

    /// Returns the current tuning of each connection to a server thread, for plans that fetch results or have
    /// them written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each!(ClientOn, &self.on, client => client.client().tuning())
    }

    /// Allocates a buffer of `size` bytes for messages to and from `server`; its content is undefined.
    pub fn malloc_buf(&mut self, server: usize, size: usize) -> Result<MessageBuffer, BufferError> {
        let buffer = each_into!(ClientOn, &mut self.on, BufferOn, client => client.malloc_buf(server, size)?);
        Ok(MessageBuffer(buffer))
    }

    /// Sends the first `size` bytes of a buffer. Waits for room for at most the timeout of a message. After a
    /// long message the buffer has other memory of the same length, with undefined content.
    ///
    /// # Errors
    /// Nothing was sent, and the buffer is unchanged. A buffer of a client on another fabric causes
    /// [`Cause::Closed`].
    pub fn client_send(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer,
        size: usize,
    ) -> Result<(), SendError> {
        with_buffer!(ClientOn, &mut self.on, buffer, SendError, client, memory => client.client_send(server, memory, size))
    }

    /// As [`client_send`](MessageClient::client_send), for a message with a time of its own in place of
    /// [`ClientConfig::timeout`].
    pub fn client_send_within(
        &mut self,
        time: Duration,
        server: usize,
        buffer: &mut MessageBuffer,
        size: usize,
    ) -> Result<(), SendError> {
        with_buffer!(ClientOn, &mut self.on, buffer, SendError, client, memory => client.client_send_within(time, server, memory, size))
    }

    /// Receives the answer to the oldest outstanding message to `server`, and returns its length in bytes.
    /// Blocks until it arrives or the message fails.
    pub fn client_recv(&mut self, server: usize, buffer: &mut MessageBuffer) -> Result<usize, ReceiveError> {
        with_buffer!(ClientOn, &mut self.on, buffer, ReceiveError, client, memory => client.client_recv(server, memory))
    }

    /// As [`client_recv`](MessageClient::client_recv), but does not block: `None` if the answer has not
    /// arrived.
    pub fn try_client_recv(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer,
    ) -> Result<Option<usize>, ReceiveError> {
        with_buffer!(ClientOn, &mut self.on, buffer, ReceiveError, client, memory => client.try_client_recv(server, memory))
    }
}

/// A server thread that receives messages and sends one for each, to be run by a thread of the program.
/// [`dunlin_rpc::messages::MessageServer`] documents the methods.
#[derive(Debug)]
pub struct MessageServer(ServerOn);

#[derive(Debug)]
enum ServerOn {
    Shm(dunlin_rpc::messages::MessageServer<ShmFabric>),
    Rdma(dunlin_rpc::messages::MessageServer<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::messages::MessageServer<OfiFabric>),
}

impl MessageServer {
    /// Listens with the fabrics of this process ([`Fabrics::global`]) and default settings;
    /// [`listen_with`](MessageServer::listen_with) has the details.
    pub fn listen(address: impl IntoAddress) -> Result<(Server, Vec<Self>), ServeError> {
        MessageServer::listen_with(Fabrics::global(), address, ServerConfig::default())
    }

    /// Listens, and returns the server with [`ServerConfig::workers`] server threads for the program to run.
    /// Dropping the [`Server`] ends it at once; [`shutdown`](Server::shutdown) waits until all received
    /// messages are answered.
    ///
    /// # Errors
    /// An `auto:` address is refused: the address has to name one fabric.
    pub fn listen_with(
        fabrics: &impl FabricSelector,
        address: impl IntoAddress,
        config: ServerConfig,
    ) -> Result<(Server, Vec<Self>), ServeError> {
        use dunlin_rpc::messages::MessageServer as On;
        let address = address.into_address().map_err(ListenError::from)?;
        one_fabric(&address)?;
        if address.scheme() == Scheme::Node {
            return Err(ListenError::from(through_nodes(&address)).into());
        }
        let chosen = fabrics.choose(&address).map_err(ListenError::from)?;
        Ok(match chosen {
            ChosenFabric::Shm(fabric) => {
                let (server, threads) = On::listen(&fabric, &address, config)?;
                (
                    Server::Shm(server),
                    threads.into_iter().map(|on| MessageServer(ServerOn::Shm(on))).collect(),
                )
            }
            ChosenFabric::Rdma(fabric) => {
                let (server, threads) = On::listen(&fabric, &address, config)?;
                let threads = threads.into_iter().map(|on| MessageServer(ServerOn::Rdma(on)));
                (Server::Rdma(server), threads.collect())
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                let (server, threads) = On::listen(&fabric, &address, config)?;
                (
                    Server::Ofi(server),
                    threads.into_iter().map(|on| MessageServer(ServerOn::Ofi(on))).collect(),
                )
            }
        })
    }

    /// Returns the thread's number: the `server` argument of the client's methods.
    pub fn number(&self) -> u16 {
        each!(ServerOn, &self.0, thread => thread.number())
    }

    /// Returns whether the server has ended this thread.
    pub fn is_ended(&self) -> bool {
        each!(ServerOn, &self.0, thread => thread.is_ended())
    }

    /// Returns a client with messages that were not received yet, round-robin. Waits for at most `at_most`
    /// ([`Duration::MAX`] for ever), or until the server ends.
    pub fn next_client(&mut self, at_most: Duration) -> Option<ClientId> {
        each!(ServerOn, &mut self.0, thread => thread.next_client(at_most))
    }

    /// Allocates a buffer of `size` bytes for messages from and to a client; its content is undefined.
    pub fn malloc_buf(&mut self, client: ClientId, size: usize) -> Result<MessageBuffer, BufferError> {
        let buffer = each_into!(ServerOn, &mut self.0, BufferOn, thread => thread.malloc_buf(client, size)?);
        Ok(MessageBuffer(buffer))
    }

    /// Receives the next message of a client, and returns its length, or `None`. Does not block.
    pub fn server_recv(
        &mut self,
        client: ClientId,
        buffer: &mut MessageBuffer,
    ) -> Result<Option<usize>, ReceiveError> {
        with_buffer!(ServerOn, &mut self.0, buffer, ReceiveError, thread, memory => thread.server_recv(client, memory))
    }

    /// Sends the first `size` bytes of a buffer as the answer to the client's oldest unanswered message. Does
    /// not block: an answer without room is sent later. The buffer changes as in
    /// [`client_send`](MessageClient::client_send).
    pub fn server_send(
        &mut self,
        client: ClientId,
        buffer: &mut MessageBuffer,
        size: usize,
    ) -> Result<(), SendError> {
        with_buffer!(ServerOn, &mut self.0, buffer, SendError, thread, memory => thread.server_send(client, memory, size))
    }
}

/// Refuses an `auto:` address: the threads of a message server belong to one fabric.
fn one_fabric(address: &Address) -> Result<(), ListenError> {
    match address.scheme() {
        Scheme::Auto => {
            let source = "messages are received on one fabric: name it, shm:NAME or rdma:HOST:PORT".into();
            Err(ListenError::Unavailable(Unavailable { address: address.clone(), source }))
        }
        _ => Ok(()),
    }
}

/// Returns the error of a `node:` address.
fn through_nodes(address: &Address) -> Unavailable {
    let source = "messages need a connection to the server's own threads: use shm:NAME or rdma:HOST:PORT";
    Unavailable { address: address.clone(), source: source.into() }
}
