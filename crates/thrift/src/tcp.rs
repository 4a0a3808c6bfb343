//! Stock Thrift over TCP: a server for clients of Apache's libraries, which shares its handler with the
//! engine's workers, and a client of stock Thrift servers.
//!
//! Both support framed (`TFramedTransport`) and unframed (`TBufferedTransport`, `TSocket`) connections with
//! `TBinaryProtocol` or `TCompactProtocol`. The server detects the combination from a connection's first
//! bytes. Malformed input causes an error or a log message and never a panic. Memory grows with the bytes
//! received, not with the lengths that a peer announces.
//!
//! From the inside out: `head` reads and writes message heads; `wire` detects the transport and encoding;
//! `split` finds the messages in a byte stream; `answer` passes one message to the processor; `session` is a
//! connection without its socket and `peer` one with its socket; `event_loop` is a thread with its
//! connections; `server` owns the threads. `client` is the synchronous client, and `deadline` enforces its
//! timeouts. `asynchronous` is the client whose calls are futures, and `client_loop` is the thread that owns
//! its sockets.

mod answer;
mod asynchronous;
mod client;
mod client_loop;
mod deadline;
mod event_loop;
mod head;
mod incoming;
mod outgoing;
mod peer;
mod server;
mod session;
mod split;
#[cfg(test)]
mod tests;
mod wire;

pub use crate::codec::Encoding;
pub(crate) use asynchronous::HeldMessage;
pub use asynchronous::{AsyncConnection, TcpCall};
pub use client::{Connection, ConnectionOptions, TcpError};
pub use server::{Server, ServerOptions};
pub use wire::{Transport, Wire};
