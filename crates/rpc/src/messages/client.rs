//! The client's half of RF-RPC's table 2.

use super::{BufferError, MessageBuffer, ReceiveError, SendError};
use crate::client::{CallId, ClientConfig};
use crate::error::ConnectError;
use crate::share::Client;
use dunlin_fabric::{Address, Fabric};
use std::collections::VecDeque;
use std::time::Duration;

/// The function id of all messages.
pub(super) const MESSAGES: u16 = 0;

/// A client that exchanges messages with the threads of one server: it receives one for each that it sends.
/// `Send`, but used by one thread at a time. Every message sent has an outcome: without an answer it fails at
/// its deadline, or when the server's death is noticed.
#[derive(Debug)]
pub struct MessageClient<F: Fabric> {
    client: Client<F>,
    /// For each server thread, the messages sent and not received yet, oldest first.
    sent: Vec<VecDeque<CallId>>,
}

impl<F: Fabric> MessageClient<F> {
    /// Connects to all threads of a server. Blocks for at most [`ClientConfig::connect_timeout`].
    /// [`ClientConfig::lazy`] is refused: the server says how many threads there are.
    pub fn connect(fabric: &F, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        if config.lazy {
            return Err(ConnectError::Lazy("a client of messages knows the server's threads from the start"));
        }
        Ok(MessageClient::of(Client::connect(fabric, address, config)?))
    }

    fn of(client: Client<F>) -> Self {
        let window = client.config().window as usize;
        let sent = (0..client.workers()).map(|_| VecDeque::with_capacity(window)).collect();
        MessageClient { client, sent }
    }

    /// Makes a client for another thread, as [`Client::another`] does. Threads that share a connection are one client to
    /// the server's threads. The messages of each thread keep their order.
    ///
    /// # Errors
    /// As [`Client::another`].
    pub fn another(&self) -> Result<Self, ConnectError> {
        Ok(MessageClient::of(self.client.another()?))
    }

    /// Returns the number of server threads. The `server` argument of all other methods is below that number,
    /// and names the thread that owns the message's data.
    pub fn servers(&self) -> usize {
        self.sent.len()
    }

    /// Returns the underlying client, for its settings, capabilities and tuning.
    pub fn client(&self) -> &Client<F> {
        &self.client
    }

    /// Returns the number of messages to `server` whose answers were not received yet.
    pub fn outstanding(&self, server: usize) -> usize {
        self.sent.get(server).map_or(0, VecDeque::len)
    }

    /// Allocates a buffer of `size` bytes for messages to and from `server`; its content is undefined. Maps
    /// memory (a system call) only while the pool is smaller than the peak use.
    pub fn malloc_buf(&mut self, server: usize, size: usize) -> Result<MessageBuffer<F>, BufferError> {
        Ok(MessageBuffer { memory: self.client.message_memory(server, MESSAGES, size)? })
    }

    /// Sends the first `size` bytes of a buffer. Waits for room for at most the timeout of a message.
    ///
    /// A message of at most [`Plan::rendezvous_above`](crate::Plan::rendezvous_above) bytes is copied, and
    /// the buffer is unchanged. A longer one leaves with the buffer's memory: the buffer then has other
    /// memory of the same length, with undefined content. On a shared connection every message is copied.
    ///
    /// # Errors
    /// Nothing was sent, and the buffer is unchanged.
    pub fn client_send(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer<F>,
        size: usize,
    ) -> Result<(), SendError> {
        self.send(server, (buffer, size), None)
    }

    /// As [`client_send`](MessageClient::client_send), for a message with a time of its own in place of
    /// [`ClientConfig::timeout`]; as [`Client::within`].
    ///
    /// # Errors
    /// Nothing was sent, and the buffer is unchanged.
    pub fn client_send_within(
        &mut self,
        time: Duration,
        server: usize,
        buffer: &mut MessageBuffer<F>,
        size: usize,
    ) -> Result<(), SendError> {
        self.send(server, (buffer, size), Some(time))
    }

    fn send(
        &mut self,
        server: usize,
        (buffer, size): (&mut MessageBuffer<F>, usize),
        time: Option<Duration>,
    ) -> Result<(), SendError> {
        let capacity = buffer.len();
        if size > capacity {
            return Err(SendError::Size { size, capacity });
        }
        let id = self.client.submit_message(server, MESSAGES, (&mut buffer.memory, size), time)?;
        if self.sent.len() <= server {
            // The server has reconnected with more threads.
            self.sent.resize_with(server + 1, VecDeque::new);
        }
        self.sent[server].push_back(id);
        Ok(())
    }

    /// Receives the answer to the oldest outstanding message to `server`, and returns its length in bytes.
    /// Blocks until it arrives or the message fails (see [`ClientConfig::timeout`]).
    pub fn client_recv(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer<F>,
    ) -> Result<usize, ReceiveError> {
        let id = self.oldest(server)?;
        self.client.wait_until_done(id, false);
        self.take(server, id, buffer)
    }

    /// As [`client_recv`](MessageClient::client_recv), but does not block: `None` if the answer has not
    /// arrived.
    pub fn try_client_recv(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer<F>,
    ) -> Result<Option<usize>, ReceiveError> {
        let id = self.oldest(server)?;
        self.client.progress();
        if !self.client.is_done(id) {
            return Ok(None);
        }
        self.take(server, id, buffer).map(Some)
    }

    fn oldest(&self, server: usize) -> Result<CallId, ReceiveError> {
        self.sent.get(server).and_then(|sent| sent.front().copied()).ok_or(ReceiveError::NothingSent)
    }

    fn take(
        &mut self,
        server: usize,
        id: CallId,
        buffer: &mut MessageBuffer<F>,
    ) -> Result<usize, ReceiveError> {
        let taken = match self.client.outcome(id) {
            Ok(message) => {
                let (size, capacity) = (message.len(), buffer.len());
                let Some(place) = buffer.get_mut(..size) else {
                    return Err(ReceiveError::TooLong { size, capacity });
                };
                place.copy_from_slice(message);
                Ok(size)
            }
            Err(error) => Err(error.into()),
        };
        self.client.forget(id);
        self.sent[server].pop_front();
        taken
    }
}
