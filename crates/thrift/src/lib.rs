//! Typed Thrift services: what generated code calls.
//!
//! What may come in: Thrift's encodings and messages, the way from a typed call to the engine and to stock Thrift on
//! TCP. What never does: parsing of IDL (`dunlin-idl`), generating code (`dunlin-idl-build`), how a call travels
//! (`dunlin-rpc`).
//!
//! The way of one typed call: the generated client borrows the arguments ([`Arguments`]) and hands them to a
//! [`Client`], which knows the route of each function: the plan that its hints selected, or TCP. The arguments
//! are encoded without a message's header, since the engine's entry already names the function; and without types and ids,
//! where both sides know them ([`Form`]). On the server the generated [`Processor`] reads them where they lie, calls the handler, and its result is encoded straight into
//! the reply. A declared exception is a result like any other; an [`ApplicationException`] travels as the engine's
//! application error.
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
mod route;
mod server;
mod shape;
pub mod tcp;

pub use arguments::{
    ARGUMENTS, Arguments, Outcome, read_arguments, read_list, read_map, read_ordered_map, read_ordered_set,
    read_set, required, room,
};
pub use asynchronous::{AsyncCall, AsyncClient};
pub use client::{Client, Pending};
pub use codec::{Input, Output, owned_str, read_owned_rest};
pub use connector::{AsyncCalls, Calls, Connector, serve};
pub use descriptor::ServiceDescriptor;
pub use error::{
    CallError, ConnectError, Failure, Never, Refusal, ServeError, not_asynchronous, unknown_function,
};
pub use form::Form;
pub use numa::NumaError;
pub use pilota;
pub use pilota::thrift::{ApplicationException, ApplicationExceptionKind, Message, TType, ThriftException};
pub use pilota::{Bytes, FastStr};
pub use route::{ClientOptions, Route};
pub use server::{Adapter, Context, Processor, Responder, Server, ServerOptions};
pub use shape::{Bare, Field, Part, Shape};
