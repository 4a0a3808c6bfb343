//! Stock Thrift over TCP: a server that answers clients of Apache's libraries on the handler that the engine's workers call,
//! and a client of their servers.
//!
//! Both speak `TFramedTransport` and unframed (`TBufferedTransport`, `TSocket`), `TBinaryProtocol` and
//! `TCompactProtocol`; the server finds out which from a connection's first bytes. A connection that comes to nothing says so
//! by an error or a line in the log, never by a panic: what peers write is only ever looked at, and takes memory as it
//! comes and not as it is announced.
//!
//! From the inside out: `head` reads and writes the head of a message, `wire` tells what a connection speaks, `split`
//! finds the messages in its bytes, `answer` lets the processor answer one, `session` is a connection without its socket,
//! `peer` with it, `event_loop` a thread with its connections, and `server` all of them. `client` is the other side, whose
//! calls `deadline` keeps from waiting for ever, and `asynchronous` that of futures, whose sockets `client_loop` looks after.

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
pub use asynchronous::{AsyncConnection, TcpCall};
pub use client::{Connection, ConnectionOptions, TcpError};
pub use server::{Server, ServerOptions};
pub use wire::{Transport, Wire};
