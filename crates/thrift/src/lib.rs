//! Typed Thrift services: the runtime library that generated code calls.
//!
//! This crate holds the typed layer between generated code and either the RPC engine or a TCP connection to
//! stock Thrift: routes from hints to plans, the introduction of a server, and the forms of messages on the
//! engine. It re-exports the encodings and contracts of `dunlin-thrift-core`, and stock Thrift of
//! `dunlin-thrift-tcp` as [`tcp`]. It never holds IDL parsing (`dunlin-idl`), code generation
//! (`dunlin-idl-build`) or the transport of a call (`dunlin-rpc`).
//!
//! A typed call runs as follows. The generated client borrows the arguments ([`Arguments`]) and passes them
//! to a [`Client`], which knows the route of each function: the plan selected by its hints, or TCP. The
//! client encodes the arguments without a Thrift message header, since the engine's entry already names the
//! function. If both sides know the types and field ids, it omits these too ([`Form`]). On the server, the
//! generated [`Processor`] reads the arguments in the receive buffer and calls the handler. The server
//! encodes the result directly into the reply. A declared exception is a normal result; an
//! [`ApplicationException`] travels as the engine's application error.
#![forbid(unsafe_code)]

mod asynchronous;
mod client;
mod connector;
mod form;
mod introduction;
mod numa;
mod on_server;
mod route;
mod running;
mod server;
mod tasks;

pub use asynchronous::{AsyncCall, AsyncClient, HeldCall};
pub use client::{Client, Pending};
pub use connector::{
    AsyncCalls, AsyncConnector, AsyncWithin, Calls, Connector, Within, serve_async_with, serve_with,
};
pub use dunlin_fabric::IntoAddress;
pub use dunlin_thrift_core::codec::{self, Input, Output, owned_str, read_owned_rest};
pub use dunlin_thrift_core::{
    ARGUMENTS, Arguments, Bare, CallError, ConnectError, Context, ErrorOf, Failure, Field, Never, NumaError,
    Outcome, Part, PlanOfError, Processor, Refusal, Responder, ServeError, ServiceDescriptor, Shape,
    not_asynchronous, read_arguments, read_list, read_map, read_ordered_map, read_ordered_set, read_set,
    required, room, unknown_function,
};
pub use dunlin_thrift_tcp as tcp;
pub use form::Form;
pub use on_server::{FunctionOnServer, PlanOnServer, ServerDescription};
pub use pilota;
pub use pilota::thrift::{ApplicationException, ApplicationExceptionKind, Message, TType, ThriftException};
pub use pilota::{Bytes, FastStr};
pub use route::{ClientOptions, Route};
pub use running::{describe, over};
pub use server::{Adapter, Server, ServerOptions};
pub use tasks::{AsyncProcessor, AsyncServer, CallTask, Tasks};
