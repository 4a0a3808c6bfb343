//! Messages without an RPC layer: the calls of RF-RPC's table 2, for programs that bring dispatch and serialization of their own.
//!
//! | table 2 | here |
//! |---|---|
//! | `client_send(server_id, local_buf, size)` | [`MessageClient::client_send`] |
//! | `client_recv(server_id, local_buf)` | [`MessageClient::client_recv`] |
//! | `server_send(client_id, local_buf, size)` | [`MessageServer::server_send`] |
//! | `server_recv(client_id, local_buf)` | [`MessageServer::server_recv`], and [`MessageServer::next_client`], which tells of whom |
//! | `malloc_buf(size)` | [`MessageClient::malloc_buf`], [`MessageServer::malloc_buf`]: registered memory that the peer named was granted |
//! | `free_buf(local_buf)` | dropping a [`MessageBuffer`] |
//!
//! A server sends one message for each that it has received, and a client's n-th `client_recv` gives what the server sent for its
//! n-th `client_send`. Several may be under way: as many as [`ClientConfig::window`](crate::ClientConfig::window) says.
//! Underneath there is nothing new: a message is a request without a function and its answer, so all of the engine's
//! protocols, deadlines and errors hold. RF-RPC's own way is the protocol `RF-RPC` (a plan with `fetch_or_write`): the client WRITEs,
//! and READs what the server has left for it, until that takes too long.
//!
//! ```
//! # use dunlin_fabric_shm::{ShmConfig, ShmFabric};
//! use dunlin_fabric::{Fabric, Host};
//! use dunlin_rpc::messages::{MessageClient, MessageServer};
//! use dunlin_rpc::{ClientConfig, CompletionMode, Protocol, ServerConfig};
//!
//! # let fabric = ShmFabric::new(ShmConfig::default())?;
//! # let address = format!("shm:doc-messages-{}", std::process::id()).parse()?;
//! let (server, mut threads) = MessageServer::listen(&fabric, &address, ServerConfig::default())?;
//! let mut thread = threads.remove(0);
//! let serving = std::thread::spawn(move || {
//!     while !thread.is_ended() {
//!         let Some(client) = thread.next_client(u64::MAX) else { continue };
//!         let Ok(mut buffer) = thread.malloc_buf(client, 64) else { continue };
//!         while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
//!             buffer[..size].make_ascii_uppercase();
//!             // Only a client that is gone is not sent to.
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
//! server.shutdown(1_000_000_000);
//! serving.join().expect("the server's thread ends");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod server;

pub use client::MessageClient;
pub use server::{ClientId, MessageServer};

use crate::error::CallError;
use dunlin_fabric::{Buffer, Fabric};
use std::ops::{Deref, DerefMut};
use thiserror::Error;

/// Memory for messages, registered and granted to the peer that it was made for (table 2: `malloc_buf`); dropping it gives it back
/// (`free_buf`). With another peer it works, too, at the price of a copy of what is long.
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

/// There is no buffer.
#[derive(Debug, Error)]
pub enum BufferError {
    /// The client has gone.
    #[error("the client is gone")]
    ClientGone,
    /// The peer takes nothing so long, or all registered memory is in use.
    #[error("there is no registered memory for {size} bytes: free buffers, ask for less, or raise the limit")]
    OutOfMemory {
        /// What was asked for.
        size: usize,
    },
    /// There is no connection, or the server takes nothing so long.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A message was not sent.
#[derive(Debug, Error)]
pub enum SendError {
    /// The buffer is shorter than that.
    #[error("a message of {size} bytes is not in a buffer of {capacity}")]
    Size {
        /// What was to be sent.
        size: usize,
        /// The buffer's length.
        capacity: usize,
    },
    /// A server sends one message for each that it has received, and all were answered.
    #[error("nothing was received from this client that is not answered yet")]
    NothingReceived,
    /// The client has gone.
    #[error("the client is gone")]
    ClientGone,
    /// Over [`ServerConfig::max_response`](crate::ServerConfig::max_response).
    #[error("a message of {size} bytes is over the limit of {limit}: raise ServerConfig::max_response")]
    TooLong {
        /// What was to be sent.
        size: usize,
        /// The limit.
        limit: u64,
    },
    /// No memory to take the buffer's place.
    #[error("there is no registered memory left for {size} bytes: free buffers, or raise the limit")]
    OutOfMemory {
        /// The buffer's length.
        size: usize,
    },
    /// It was refused, or there is no connection: see [`CallError::certainty`].
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A message was not received.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// A client receives one message for each that it has sent, and has received all.
    #[error("nothing was sent to this server whose answer was not received yet")]
    NothingSent,
    /// The message does not fit; it stays, for a longer buffer.
    #[error(
        "a message of {size} bytes does not fit into a buffer of {capacity}: receive it into a longer one"
    )]
    TooLong {
        /// The message's length.
        size: usize,
        /// The buffer's length.
        capacity: usize,
    },
    /// The client has gone.
    #[error("the client is gone")]
    ClientGone,
    /// The message that it was to answer has failed, and its turn is over: see [`CallError::certainty`].
    #[error(transparent)]
    Call(#[from] CallError),
}
