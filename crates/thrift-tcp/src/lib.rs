//! Stock Thrift on TCP: a server for clients of Apache's libraries, and clients of their servers.
//!
//! This crate holds the messages around arguments and results, the sockets and their threads. It never holds
//! the encodings themselves (`dunlin-thrift-core`), nor hints, plans or the engine's calls (`dunlin-thrift`).
//! The server takes any [`Processor`](dunlin_thrift_core::Processor): `dunlin-thrift` gives it the handler
//! that the engine's workers call, too.
//!
//! Both sides support framed (`TFramedTransport`) and unframed (`TBufferedTransport`, `TSocket`) connections
//! with `TBinaryProtocol` or `TCompactProtocol`. The server detects the combination from a connection's first
//! bytes. Malformed input causes an error or a log message and never a panic. Memory grows with the bytes
//! received, not with the lengths that a peer announces.
//!
//! From the inside out: `head` reads and writes message heads; `detect` detects the transport and encoding;
//! `split` finds the messages in a byte stream; `answer` passes one message to the processor; `session` is a
//! connection without its socket and `peer` one with its socket; `event_loop` is a thread with its
//! connections; `server` owns the threads. `client` is the synchronous client, and `deadline` enforces its
//! timeouts. `asynchronous` is the client whose calls are futures, and `client_loop` is the thread that owns
//! its sockets.
#![forbid(unsafe_code)]

mod answer;
mod asynchronous;
mod client;
mod client_loop;
mod deadline;
mod detect;
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

pub use asynchronous::{AsyncConnection, HeldMessage, TcpCall};
pub use client::{Connection, ConnectionOptions};
pub use dunlin_thrift_core::{Encoding, TcpError, Transport, Wire};
pub use server::{Server, ServerOptions};
