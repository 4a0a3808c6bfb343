//! The server's half of RF-RPC's table 2.

use super::client::MESSAGES;
use super::{BufferError, MessageBuffer, ReceiveError, SendError};
use crate::error::ServeError;
use crate::server::held::{NotAnswered, NotTaken};
use crate::server::{Server, ServerBuilder, ServerConfig, Worker};
use crate::service::{FunctionMode, Reply, Request};
use dunlin_fabric::{Address, Fabric, Host, Nanos};
use dunlin_wire::Status;
use std::sync::Arc;

/// A client, as one thread of the server knows it; another client never has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    pub(crate) lane: u16,
    pub(crate) serial: u64,
}

/// One thread of a server that receives messages and sends one for each. `Send`: made where the server is, used on a thread of the
/// caller's, which has to come back to it often: what is not looked at is not answered. A killed client takes only its own messages
/// with it.
#[derive(Debug)]
pub struct MessageServer<F: Fabric> {
    worker: Worker<F>,
    /// A server that is shut down waits for us, until we have ended.
    holder: Option<Arc<()>>,
}

impl<F: Fabric> MessageServer<F> {
    /// Listens, with as many threads as [`ServerConfig::workers`] says, which are the caller's to run. The server ends with the first
    /// value: [`shutdown`](Server::shutdown) waits until all received messages are answered.
    pub fn listen(
        fabric: &F,
        address: &Address,
        config: ServerConfig,
    ) -> Result<(Server<F>, Vec<Self>), ServeError> {
        // What is pulled from a worker is never called.
        let refuse = |_: &Request<'_>, _: &mut Reply<'_>| Err(Status::UnknownFunction);
        let builder = ServerBuilder::new(fabric).config(config).function(MESSAGES, FunctionMode::Pull);
        let (server, workers) = builder.serve_with(address, |_| Box::new(refuse))?;
        let hold = |mut worker: Worker<F>| {
            worker.hold();
            MessageServer { worker, holder: Some(Arc::clone(&server.holders)) }
        };
        let threads = workers.into_iter().map(hold).collect();
        Ok((server, threads))
    }

    /// The thread's number: `server` of the clients' calls.
    pub fn number(&self) -> u16 {
        self.worker.number()
    }

    /// Whether the server has ended this thread.
    pub fn is_ended(&self) -> bool {
        self.worker.is_ended()
    }

    /// A client that has sent something that was not received yet; each has its turn. Waits for one as the plans of the clients ask,
    /// until then (on the host's clock) at most, or until the server ends.
    pub fn next_client(&mut self, until: Nanos) -> Option<ClientId> {
        // Also if something waits: what has come meanwhile may be that its client is gone.
        self.worker.progress();
        loop {
            if let Some((lane, serial)) = self.worker.next_held() {
                return Some(ClientId { lane, serial });
            }
            if self.worker.is_ended() {
                self.holder = None;
                return None;
            }
            let handled = self.worker.step(until);
            if handled == 0 && until < Nanos::MAX && self.worker.fabric().host().now() >= until {
                return self.worker.next_held().map(|(lane, serial)| ClientId { lane, serial });
            }
        }
    }

    /// A buffer of `size` bytes for messages from and to a client; what is in it is undefined.
    pub fn malloc_buf(&mut self, client: ClientId, size: usize) -> Result<MessageBuffer<F>, BufferError> {
        match self.worker.held_memory(client, size) {
            Ok(memory) => Ok(MessageBuffer { memory }),
            Err(NotAnswered::Gone) => Err(BufferError::ClientGone),
            Err(_) => Err(BufferError::OutOfMemory { size }),
        }
    }

    /// Receives the next message of a client, in the order in which they have arrived (a short message may overtake a long one), and
    /// says how long it is; `None` if there is none now. Does not block. A message whose deadline is over is answered so by itself.
    pub fn server_recv(
        &mut self,
        client: ClientId,
        buffer: &mut MessageBuffer<F>,
    ) -> Result<Option<usize>, ReceiveError> {
        let mut taken = self.worker.take_held(client, &mut buffer.memory);
        if taken == Ok(None) {
            self.worker.progress();
            taken = self.worker.take_held(client, &mut buffer.memory);
        }
        match taken {
            Ok(taken) => Ok(taken),
            Err(NotTaken::Gone) => Err(ReceiveError::ClientGone),
            Err(NotTaken::TooLong(size)) => Err(ReceiveError::TooLong { size, capacity: buffer.len() }),
        }
    }

    /// Sends the first `size` bytes of a buffer as the answer to the oldest message received from this client that has none: leaves it
    /// where the client fetches it, or writes it to the client, as the client's plan and what it has found out have it. Does not
    /// block: what finds no room goes out later. As for the buffer, see [`client_send`](super::MessageClient::client_send).
    pub fn server_send(
        &mut self,
        client: ClientId,
        buffer: &mut MessageBuffer<F>,
        size: usize,
    ) -> Result<(), SendError> {
        let capacity = buffer.len();
        if size > capacity {
            return Err(SendError::Size { size, capacity });
        }
        let limit = self.worker.shared().config.max_response;
        if size as u64 > limit {
            return Err(SendError::TooLong { size, limit });
        }
        self.worker.answer_held(client, &mut buffer.memory, size).map_err(|error| match error {
            NotAnswered::Gone => SendError::ClientGone,
            NotAnswered::NothingTaken => SendError::NothingReceived,
            NotAnswered::OutOfMemory => SendError::OutOfMemory { size: capacity },
        })
    }
}
