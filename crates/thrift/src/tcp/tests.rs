//! Tests of the server and the client, on a service that is written by hand.

mod asynchronous;
mod connection;
mod service;
mod sockets;
mod stream;
