//! Messages without an RPC layer: the calls of RF-RPC's table 2, for programs with their own dispatch and
//! serialization.
//!
//! | table 2 | here |
//! |---|---|
//! | `client_send(server_id, local_buf, size)` | [`MessageClient::client_send`] |
//! | `client_recv(server_id, local_buf)` | [`MessageClient::client_recv`] |
//! | `server_send(client_id, local_buf, size)` | [`MessageServer::server_send`] |
//! | `server_recv(client_id, local_buf)` | [`MessageServer::next_client`], [`MessageServer::server_recv`] |
//! | `malloc_buf(size)` | [`MessageClient::malloc_buf`], [`MessageServer::malloc_buf`] |
//! | `free_buf(local_buf)` | dropping a [`MessageBuffer`] |
//!
//! A server sends one message for each message that it has received. A client's n-th `client_recv` returns
//! the server's message for the n-th `client_send`. Up to
//! [`ClientConfig::window`](crate::ClientConfig::window) messages may be in flight.
//!
//! A message is a request without a function, and its answer, so the engine's protocols, deadlines and errors
//! all apply. RF-RPC's own protocol is `RF-RPC` (a plan with `fetch_or_write`): the client WRITEs its message
//! and READs the answer from the server's memory, and has it written back when the READs take too long.
//!
//! ```
//! # use dunlin_fabric_shm::{ShmConfig, ShmFabric};
//! use dunlin_fabric::{Fabric, Host};
//! use dunlin_rpc::messages::{MessageClient, MessageServer};
//! use dunlin_rpc::{ClientConfig, CompletionMode, Protocol, ServerConfig};
//! use std::time::Duration;
//!
//! # let fabric = ShmFabric::new(ShmConfig::default())?;
//! # let address = format!("shm:doc-messages-{}", std::process::id()).parse()?;
//! let (server, mut threads) = MessageServer::listen(&fabric, &address, ServerConfig::default())?;
//! let mut thread = threads.remove(0);
//! let serving = std::thread::spawn(move || {
//!     while !thread.is_ended() {
//!         let Some(client) = thread.next_client(Duration::MAX) else { continue };
//!         let Ok(mut buffer) = thread.malloc_buf(client, 64) else { continue };
//!         while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
//!             buffer[..size].make_ascii_uppercase();
//!             // The send fails only if the client is gone.
//!             let _ = thread.server_send(client, &mut buffer, size);
//!         }
//!     }
//! });
//!
//! let plan = Protocol::by_name("RF-RPC").expect("a protocol").plan(CompletionMode::Busy);
//! let mut client = MessageClient::connect(&fabric, &address, ClientConfig::with_plan(plan))?;
//! let mut buffer = client.malloc_buf(0, 64)?;
//! buffer[..5].copy_from_slice(b"hello");
//! client.client_send(0, &mut buffer, 5)?;
//! let size = client.client_recv(0, &mut buffer)?;
//! assert_eq!(&buffer[..size], b"HELLO");
//!
//! drop((buffer, client));
//! server.shutdown(std::time::Duration::from_secs(1));
//! serving.join().expect("the server's thread ends");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod server;

pub use crate::server::pulled_calls::ClientId;
pub use client::MessageClient;
pub use server::MessageServer;

use crate::error::CallError;
use dunlin_fabric::{Buffer, Fabric};
use std::ops::{Deref, DerefMut};
use thiserror::Error;

/// A message buffer: memory registered and granted to the peer that it was allocated for (table 2:
/// `malloc_buf`). Dropping it frees it (`free_buf`). It also works with another peer, but then long messages
/// are copied.
#[derive(Debug)]
pub struct MessageBuffer<F: Fabric> {
    memory: Buffer<F::Memory>,
}

impl<F: Fabric> Deref for MessageBuffer<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl<F: Fabric> DerefMut for MessageBuffer<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

/// A buffer could not be allocated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The client has disconnected.
    #[error("the client is gone")]
    ClientGone,
    /// The peer accepts no message of this size, or all registered memory is in use.
    #[error("there is no registered memory for {size} bytes: free buffers, ask for less, or raise the limit")]
    OutOfMemory {
        /// The size requested, in bytes.
        size: usize,
    },
    /// There is no connection, or the server accepts no message of this size.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A message was not sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is longer than the buffer.
    #[error("a message of {size} bytes is not in a buffer of {capacity}")]
    Size {
        /// The message's size in bytes.
        size: usize,
        /// The buffer's length in bytes.
        capacity: usize,
    },
    /// Every message received from this client is already answered.
    #[error("nothing was received from this client that is not answered yet")]
    NothingReceived,
    /// The client has disconnected.
    #[error("the client is gone")]
    ClientGone,
    /// The message exceeds [`ServerConfig::max_response`](crate::ServerConfig::max_response).
    #[error("a message of {size} bytes is over the limit of {limit}: raise ServerConfig::max_response")]
    TooLong {
        /// The message's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// No memory is left to replace the buffer's memory.
    #[error("there is no registered memory left for {size} bytes: free buffers, or raise the limit")]
    OutOfMemory {
        /// The buffer's length in bytes.
        size: usize,
    },
    /// The server refused the message, or there is no connection: see [`CallError::certainty`].
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A message was not received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The answers to all messages sent to this server were already received.
    #[error("nothing was sent to this server whose answer was not received yet")]
    NothingSent,
    /// The message does not fit the buffer. It stays available for a longer one.
    #[error(
        "a message of {size} bytes does not fit into a buffer of {capacity}: receive it into a longer one"
    )]
    TooLong {
        /// The message's length in bytes.
        size: usize,
        /// The buffer's length in bytes.
        capacity: usize,
    },
    /// The client has disconnected.
    #[error("the client is gone")]
    ClientGone,
    /// The message that this one would have answered has failed. It is no longer outstanding: see
    /// [`CallError::certainty`].
    #[error(transparent)]
    Call(#[from] CallError),
}
