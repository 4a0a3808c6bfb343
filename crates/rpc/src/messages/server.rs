//! The server's half of RF-RPC's table 2.

use super::client::MESSAGES;
use super::{BufferError, MessageBuffer, ReceiveError, SendError};
use crate::error::ServeError;
use crate::server::pulled_calls::{ClientId, NotAnswered, NotTaken};
use crate::server::{Server, ServerBuilder, ServerConfig, Worker};
use crate::service::{FunctionMode, Reply, Request};
use dunlin_fabric::{Address, Fabric, Host, Nanos, end_of};
use dunlin_wire::Status;
use std::sync::Arc;
use std::time::Duration;

/// A server thread that receives messages and sends one for each. `Send`: created with the server, used on a
/// thread of the caller's. The caller must call its methods often, because nothing is answered in between.
/// When a client dies, only its own messages are lost.
#[derive(Debug)]
pub struct MessageServer<F: Fabric> {
    worker: Worker<F>,
    /// A shutdown of the server waits until this is dropped.
    holder: Option<Arc<()>>,
}

impl<F: Fabric> MessageServer<F> {
    /// Listens, and returns the server with [`ServerConfig::workers`] server threads for the caller to run.
    /// Dropping the [`Server`] ends it at once; [`shutdown`](Server::shutdown) waits until all received
    /// messages are answered.
    pub fn listen(
        fabric: &F,
        address: &Address,
        config: ServerConfig,
    ) -> Result<(Server<F>, Vec<Self>), ServeError> {
        // Functions that are pulled never reach the service.
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

    /// Returns the thread's number: the `server` argument of the client's methods.
    pub fn number(&self) -> u16 {
        self.worker.number()
    }

    /// Returns whether the server has ended this thread.
    pub fn is_ended(&self) -> bool {
        self.worker.is_ended()
    }

    /// Returns a client with messages that were not received yet, round-robin. Waits as the clients' plans
    /// ask, for at most `at_most` ([`Duration::MAX`] for ever) or until the server ends.
    pub fn next_client(&mut self, at_most: Duration) -> Option<ClientId> {
        let until = end_of(self.worker.fabric.host(), at_most);
        // Needed even with messages waiting: a client may have disconnected meanwhile.
        self.worker.progress();
        loop {
            if let Some((lane, serial)) = self.worker.next_held() {
                return Some(ClientId { lane, serial });
            }
            if self.worker.is_ended() {
                self.holder = None;
                return None;
            }
            let handled = self.worker.step_until(until);
            if handled == 0 && until < Nanos::MAX && self.worker.fabric.host().now() >= until {
                return self.worker.next_held().map(|(lane, serial)| ClientId { lane, serial });
            }
        }
    }

    /// Allocates a buffer of `size` bytes for messages from and to a client; its content is undefined.
    pub fn malloc_buf(&mut self, client: ClientId, size: usize) -> Result<MessageBuffer<F>, BufferError> {
        match self.worker.held_memory(client, size) {
            Ok(memory) => Ok(MessageBuffer { memory }),
            Err(NotAnswered::Gone) => Err(BufferError::ClientGone),
            Err(_) => Err(BufferError::OutOfMemory { size }),
        }
    }

    /// Receives the next message of a client, and returns its length, or `None`. Does not block.
    ///
    /// Messages come in the order of arrival, in which a short message may overtake a long one. A message
    /// whose deadline has passed is skipped and answered with an error.
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

    /// Sends the first `size` bytes of a buffer as the answer to the client's oldest unanswered message. Does
    /// not block: an answer without room is sent later.
    ///
    /// The client's plan and tuning decide whether the client READs the answer or the server WRITEs it. The
    /// buffer changes as in [`client_send`](super::MessageClient::client_send).
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
