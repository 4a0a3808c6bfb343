//! Tests of the server and the client with a hand-written service.

mod asynchronous;
mod connection;
mod doors;
mod service;
mod sockets;
mod stream;
