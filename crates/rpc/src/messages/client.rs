//! The client's half of RF-RPC's table 2.

use super::{BufferError, MessageBuffer, ReceiveError, SendError};
use crate::client::{CallId, Client, ClientConfig};
use crate::error::ConnectError;
use dunlin_fabric::{Address, Fabric};
use std::collections::VecDeque;

/// The function that messages are calls of.
pub(super) const MESSAGES: u16 = 0;

/// A client that sends messages to the threads of one server and receives one for each. `Send`, not shared. A message that gets
/// no answer ends at its deadline, or when the server's death is noticed: nothing that was sent is without an outcome.
#[derive(Debug)]
pub struct MessageClient<F: Fabric> {
    client: Client<F>,
    /// By thread of the server: what was sent and not received yet.
    sent: Vec<VecDeque<CallId>>,
}

impl<F: Fabric> MessageClient<F> {
    /// Connects to all threads of a server. Blocks for at most the configured time.
    pub fn connect(fabric: &F, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        let window = config.window as usize;
        let client = Client::connect(fabric, address, config)?;
        let sent = (0..client.workers()).map(|_| VecDeque::with_capacity(window)).collect();
        Ok(MessageClient { client, sent })
    }

    /// Threads of the server: `server` in all other calls is below that, and names the thread that owns what the message is about.
    pub fn servers(&self) -> usize {
        self.sent.len()
    }

    /// The engine's client below: settings, capabilities, tuning.
    pub fn client(&self) -> &Client<F> {
        &self.client
    }

    /// Messages to `server` whose answers were not received yet.
    pub fn outstanding(&self, server: usize) -> usize {
        self.sent.get(server).map_or(0, VecDeque::len)
    }

    /// A buffer of `size` bytes for messages to and from `server`; what is in it is undefined. Maps memory (a system call) only
    /// until as much is mapped as is used at a time.
    pub fn malloc_buf(&mut self, server: usize, size: usize) -> Result<MessageBuffer<F>, BufferError> {
        Ok(MessageBuffer { memory: self.client.message_memory(server, MESSAGES, size)? })
    }

    /// Sends the first `size` bytes of a buffer. Short ones are copied into the request (inline), and the buffer is as before. Longer
    /// ones than the plan's threshold leave from where they lie: the buffer has other memory of the same length afterwards, in which
    /// anything may be. Waits for room as long as a message may take.
    ///
    /// # Errors
    /// Nothing was sent then, and the buffer is as before.
    pub fn client_send(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer<F>,
        size: usize,
    ) -> Result<(), SendError> {
        let capacity = buffer.len();
        if size > capacity {
            return Err(SendError::Size { size, capacity });
        }
        let id = self.client.submit_message(server, MESSAGES, &mut buffer.memory, size)?;
        if self.sent.len() <= server {
            // A server that has come back with more threads.
            self.sent.resize_with(server + 1, VecDeque::new);
        }
        self.sent[server].push_back(id);
        Ok(())
    }

    /// Receives what the server has sent for the oldest message to it that has had no answer, and says how long it is. Blocks until
    /// then, which no deadline lets be for ever (see [`ClientConfig::timeout`]).
    pub fn client_recv(
        &mut self,
        server: usize,
        buffer: &mut MessageBuffer<F>,
    ) -> Result<usize, ReceiveError> {
        let id = self.oldest(server)?;
        self.client.wait_until_done(id, false);
        self.take(server, id, buffer)
    }

    /// As [`client_recv`](MessageClient::client_recv), but does not block: `None` if the answer has not come.
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
