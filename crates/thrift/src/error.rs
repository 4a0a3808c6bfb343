//! Errors, by who meets them: the caller, the handler, who connects and who serves.

use crate::numa::NumaError;
use dunlin_rpc::Certainty;
use pilota::thrift::{
    ApplicationException, ApplicationExceptionKind, ProtocolExceptionKind, ThriftException,
    new_protocol_exception,
};
use std::convert::Infallible;
use thiserror::Error;

/// The exceptions of a function that declares none.
pub type Never = Infallible;

/// Why a typed call has no value.
#[derive(Clone, Debug, Error)]
pub enum CallError<E> {
    /// The function threw an exception that it declares.
    #[error("the service threw a declared exception: {0:?}")]
    Exception(E),
    /// The server has no such function, could not read the arguments, or its handler failed otherwise.
    #[error("{0}")]
    Application(ApplicationException),
    /// The call did not get through; it says whether it may have been executed.
    #[error(transparent)]
    Transport(#[from] dunlin_rpc::CallError),
    /// The call did not get through over TCP; it says whether it may have been executed.
    #[error(transparent)]
    Tcp(#[from] crate::tcp::TcpError),
    /// Arguments that cannot be encoded. Not executed.
    #[error("the arguments cannot be encoded: {0}")]
    Encode(ThriftException),
    /// A result that cannot be read. Executed.
    #[error("the result cannot be read; was the server built from another IDL? {0}")]
    Decode(ThriftException),
    /// The function's hints say TCP, and the client was given no TCP address.
    #[error(
        "{function} goes by TCP, as its hints say: give the client the server's TCP address, or let the server listen on TCP"
    )]
    NoTcp {
        /// The function.
        function: String,
    },
}

impl<E> CallError<E> {
    /// Whether the function may have been executed.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::Transport(error) => error.certainty(),
            CallError::Tcp(error) => error.certainty(),
            CallError::Encode(_) | CallError::NoTcp { .. } => Certainty::NotExecuted,
            CallError::Application(error)
                if matches!(
                    error.kind(),
                    ApplicationExceptionKind::UNKNOWN_METHOD | ApplicationExceptionKind::PROTOCOL_ERROR
                ) =>
            {
                Certainty::NotExecuted
            }
            CallError::Exception(_) | CallError::Application(_) | CallError::Decode(_) => {
                Certainty::MaybeExecuted
            }
        }
    }
}

/// What a handler gives back instead of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// An exception that the function declares.
    Exception(E),
    /// Anything else: the caller gets kind and text.
    Application(ApplicationException),
}

impl<E> Failure<E> {
    /// An internal error with a text for the caller.
    pub fn internal(message: impl Into<pilota::FastStr>) -> Self {
        Failure::Application(ApplicationException::new(ApplicationExceptionKind::INTERNAL_ERROR, message))
    }
}

/// Why there is no result that the IDL knows.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// The arguments cannot be read: the handler was not called.
    Malformed(ThriftException),
    /// The handler failed with something that it does not declare.
    Application(ApplicationException),
}

impl From<ThriftException> for Refusal {
    fn from(error: ThriftException) -> Self {
        Refusal::Malformed(error)
    }
}

impl From<ApplicationException> for Refusal {
    fn from(error: ApplicationException) -> Self {
        Refusal::Application(error)
    }
}

impl Refusal {
    /// What the caller is told.
    pub fn into_exception(self) -> ApplicationException {
        match self {
            Refusal::Application(exception) => exception,
            Refusal::Malformed(error) => {
                ApplicationException::new(ApplicationExceptionKind::PROTOCOL_ERROR, error.message().clone())
            }
        }
    }
}

/// Connecting failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The engine could not connect.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ConnectError),
    /// The server's answer to the introduction.
    #[error("the server did not introduce itself: {0}")]
    Introduction(dunlin_rpc::CallError),
    /// The server is not a Thrift service, or speaks another version.
    #[error(
        "the server's introduction cannot be understood ({0}): is it a Thrift service of this version of Dunlin?"
    )]
    NotThrift(&'static str),
    /// Another service.
    #[error("the server serves '{found}', not '{wanted}': look at the address")]
    OtherService {
        /// What the client is for.
        wanted: &'static str,
        /// What the server said.
        found: String,
    },
    /// The hints of a function cannot be followed on this fabric.
    #[error("{service}.{function}: {error}")]
    Hints {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
        /// Why.
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: {error}")]
    Numa {
        /// The service.
        service: &'static str,
        /// Why.
        error: NumaError,
    },
    /// The TCP address cannot be reached.
    #[error("cannot connect to {address}: {error}")]
    Tcp {
        /// The address.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Starting a server failed.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The engine could not serve.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ServeError),
    /// The hints of a function cannot be followed on this fabric.
    #[error("{service}.{function}: {error}")]
    Hints {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
        /// Why.
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: {error}")]
    Numa {
        /// The service.
        service: &'static str,
        /// Why.
        error: NumaError,
    },
    /// The TCP address cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Tcp {
        /// The address.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// The refusal of a function that the service does not have.
#[cold]
pub fn unknown_function(function: usize) -> Refusal {
    Refusal::Application(ApplicationException::new(
        ApplicationExceptionKind::UNKNOWN_METHOD,
        format!("the service has no function number {function}"),
    ))
}

/// What asynchronous reading of generated types answers: messages are read when they are whole.
#[cold]
pub fn not_asynchronous() -> ThriftException {
    new_protocol_exception(ProtocolExceptionKind::NotImplemented, "messages are not read asynchronously")
}
