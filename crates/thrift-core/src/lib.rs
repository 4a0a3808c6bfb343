//! Thrift without a transport: encodings, and the contract between generated code and the transports.
//!
//! This crate holds everything that typed services on the engine (`dunlin-thrift`) and stock Thrift on TCP
//! (`dunlin-thrift-tcp`) have in common. It never holds sockets, connections, threads, or the bytes of a
//! message around its arguments and results. Applications and generated code use it through `dunlin-thrift`,
//! which re-exports it.
//!
//! * [`codec`] reads and writes Thrift's encodings, and bounds all that untrusted bytes may demand.
//! * [`Arguments`] and [`Outcome`] are the two structs of a function: its arguments, and its value or declared
//!   exception. Generated code implements them.
//! * [`ServiceDescriptor`] describes a service in constants: its functions with their hints, and the types of
//!   their arguments and values ([`Shape`], [`Bare`]). [`signature`] compares the types of both sides.
//! * [`Processor`], [`Responder`] and [`Context`] stand between a server and the handler.
//! * [`CallError`], [`ConnectError`], [`ServeError`] and their parts are the errors on every transport.
//!   [`Wire`] names the format of a connection over TCP, which an error may state.
#![forbid(unsafe_code)]

mod arguments;
pub mod codec;
mod descriptor;
mod error;
mod service;
mod shape;
pub mod signature;
mod wire;

pub use arguments::{
    ARGUMENTS, Arguments, ErrorOf, Outcome, read_arguments, read_list, read_map, read_ordered_map,
    read_ordered_set, read_set, required, room,
};
pub use descriptor::ServiceDescriptor;
pub use error::{
    CallError, ConnectError, Failure, Never, NumaError, PlanOfError, Refusal, ServeError, TcpError,
    not_asynchronous, unknown_function,
};
pub use service::{Context, Processor, Responder};
pub use shape::{Bare, Field, Part, Shape};
pub use wire::{Encoding, Transport, Wire};
