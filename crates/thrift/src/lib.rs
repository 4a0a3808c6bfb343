//! Typed Thrift services: the runtime library that generated code calls.
//!
//! This crate holds Thrift's encodings and messages, and the typed layer between generated code and either
//! the RPC engine or a TCP connection to stock Thrift. It never holds IDL parsing (`dunlin-idl`), code
//! generation (`dunlin-idl-build`) or the transport of a call (`dunlin-rpc`).
//!
//! A typed call runs as follows. The generated client borrows the arguments ([`Arguments`]) and passes them
//! to a [`Client`], which knows the route of each function: the plan selected by its hints, or TCP. The
//! client encodes the arguments without a Thrift message header, since the engine's entry already names the
//! function. If both sides know the types and field ids, it omits these too ([`Form`]). On the server, the
//! generated [`Processor`] reads the arguments in the receive buffer and calls the handler. The server
//! encodes the result directly into the reply. A declared exception is a normal result; an
//! [`ApplicationException`] travels as the engine's application error.
#![forbid(unsafe_code)]

mod arguments;
mod asynchronous;
mod client;
pub mod codec;
mod connector;
mod descriptor;
mod error;
mod form;
mod introduction;
mod numa;
mod on_server;
mod route;
mod running;
mod server;
mod shape;
mod signature;
mod tasks;
pub mod tcp;

pub use arguments::{
    ARGUMENTS, Arguments, ErrorOf, Outcome, read_arguments, read_list, read_map, read_ordered_map,
    read_ordered_set, read_set, required, room,
};
pub use asynchronous::{AsyncCall, AsyncClient, HeldCall};
pub use client::{Client, Pending};
pub use codec::{Input, Output, owned_str, read_owned_rest};
pub use connector::{
    AsyncCalls, AsyncConnector, AsyncWithin, Calls, Connector, Within, serve_async_with, serve_with,
};
pub use descriptor::ServiceDescriptor;
pub use dunlin_fabric::IntoAddress;
pub use error::{
    CallError, ConnectError, Failure, Never, PlanOfError, Refusal, ServeError, not_asynchronous,
    unknown_function,
};
pub use form::Form;
pub use numa::NumaError;
pub use on_server::{FunctionOnServer, PlanOnServer, ServerDescription};
pub use pilota;
pub use pilota::thrift::{ApplicationException, ApplicationExceptionKind, Message, TType, ThriftException};
pub use pilota::{Bytes, FastStr};
pub use route::{ClientOptions, Route};
pub use running::{describe, over};
pub use server::{Adapter, Context, Processor, Responder, Server, ServerOptions};
pub use shape::{Bare, Field, Part, Shape};
pub use tasks::{AsyncProcessor, AsyncServer, CallTask, Tasks};
