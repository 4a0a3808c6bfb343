//! Errors of callers, handlers, connecting and serving.

use crate::numa::NumaError;
use crate::tcp::TcpError;
use dunlin_rpc::{Cause, Certainty};
use pilota::thrift::{
    ApplicationException, ApplicationExceptionKind, ProtocolExceptionKind, ThriftException,
    new_protocol_exception,
};
use std::convert::Infallible;
use std::io::ErrorKind;
use thiserror::Error;

/// The exception type of a function that declares none.
pub type Never = Infallible;

/// The error of a typed call.
#[derive(Clone, Debug, Error)]
pub enum CallError<E> {
    /// The function threw a declared exception.
    #[error("the service threw a declared exception: {0:?}")]
    Exception(E),
    /// The server has no such function, could not read the arguments, or its handler failed with an
    /// undeclared error.
    #[error("{0}")]
    Application(ApplicationException),
    /// The call failed in the engine. [`certainty`](CallError::certainty) says whether it may have been
    /// executed.
    #[error(transparent)]
    Transport(#[from] dunlin_rpc::CallError),
    /// The call failed on TCP. [`certainty`](CallError::certainty) says whether it may have been executed.
    #[error(transparent)]
    Tcp(TcpError),
    /// A lazy client connected within the call, and cannot use the server. The call was not executed.
    #[error(transparent)]
    Connect(std::sync::Arc<ConnectError>),
    /// The arguments cannot be encoded. The call was not executed.
    #[error("the arguments cannot be encoded: {0}")]
    Encode(ThriftException),
    /// The result cannot be decoded. The call was executed.
    #[error("the result cannot be read; was the server built from another IDL? {0}")]
    Decode(ThriftException),
    /// The function's hints select TCP, but the client has no TCP address.
    #[error(
        "{function} goes by TCP, as its hints say: give the client the server's TCP address, or let the server listen on TCP"
    )]
    NoTcp {
        /// The function.
        function: String,
    },
}

impl<E> From<TcpError> for CallError<E> {
    /// A call whose time has passed has the same error on all transports.
    fn from(error: TcpError) -> Self {
        match error {
            TcpError::TimedOut { .. } => dunlin_rpc::CallError::MaybeExecuted(Cause::DeadlineExceeded).into(),
            TcpError::NotSent { error, .. } if error.kind() == ErrorKind::TimedOut => {
                dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded).into()
            }
            error => CallError::Tcp(error),
        }
    }
}

impl<E> CallError<E> {
    /// Returns whether the function may have been executed.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::Transport(error) => error.certainty(),
            CallError::Tcp(error) => error.certainty(),
            CallError::Encode(_) | CallError::NoTcp { .. } | CallError::Connect(_) => Certainty::NotExecuted,
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

/// The error of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// An exception that the function declares.
    Exception(E),
    /// Any other error. The caller gets its kind and text.
    Application(ApplicationException),
}

impl<E> Failure<E> {
    /// Returns an internal error with a text for the caller.
    pub fn internal(message: impl Into<pilota::FastStr>) -> Self {
        Failure::Application(ApplicationException::new(ApplicationExceptionKind::INTERNAL_ERROR, message))
    }
}

/// The reason why a call has neither a value nor a declared exception.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// The arguments cannot be decoded. The handler was not called.
    Malformed(ThriftException),
    /// The handler failed with an undeclared error.
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
    /// Converts the refusal into the exception that the caller gets.
    pub fn into_exception(self) -> ApplicationException {
        match self {
            Refusal::Application(exception) => exception,
            Refusal::Malformed(error) => {
                ApplicationException::new(ApplicationExceptionKind::PROTOCOL_ERROR, error.message().clone())
            }
        }
    }
}

/// The error of connecting a client.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The engine could not connect.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ConnectError),
    /// The introduction call failed.
    #[error("the server did not introduce itself: {0}")]
    Introduction(dunlin_rpc::CallError),
    /// The server is not a Thrift service, or uses a different version of the introduction.
    #[error(
        "the server's introduction cannot be understood ({0}): is it a Thrift service of this version of Dunlin?"
    )]
    NotThrift(&'static str),
    /// The server serves a different service.
    #[error("the server serves '{found}', not '{wanted}': look at the address")]
    OtherService {
        /// The client's service.
        wanted: &'static str,
        /// The service that the server named.
        found: String,
    },
    /// The client and the server were built from IDLs that do not fit: calls of these functions could not be
    /// understood.
    ///
    /// [`ClientOptions::other_signatures`](crate::ClientOptions::other_signatures) connects all the same.
    #[error("the server's IDL of {service} does not fit this client's: {}; build both from IDLs that fit", listed(.functions))]
    Signatures {
        /// The service.
        service: &'static str,
        /// The functions, each with the first difference.
        functions: Vec<(String, String)>,
    },
    /// The hints of a function cannot be followed on this fabric.
    #[error("{service}.{function}: {error}")]
    Hints {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
        /// The reason.
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: {error}")]
    Numa {
        /// The service.
        service: &'static str,
        /// The reason.
        error: NumaError,
    },
    /// The TCP address cannot be reached.
    #[error("cannot connect to {address}: {error}")]
    Tcp {
        /// The address.
        address: String,
        /// The operating system's error.
        error: std::io::Error,
    },
}

fn listed(functions: &[(String, String)]) -> String {
    let listed: Vec<String> = functions.iter().map(|(name, why)| format!("'{name}': {why}")).collect();
    listed.join("; ")
}

/// The error of starting a server.
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
        /// The reason.
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: {error}")]
    Numa {
        /// The service.
        service: &'static str,
        /// The reason.
        error: NumaError,
    },
    /// Asynchronous handlers cannot be served like this.
    #[error("asynchronous handlers cannot be served like this: {why}")]
    Asynchronous {
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// A setting names a function that the service does not have.
    #[error("{service} has no function '{function}'{}", suggestion(nearest))]
    NoSuchFunction {
        /// The service.
        service: &'static str,
        /// The name.
        function: String,
        /// The function with the nearest name, if one is near.
        nearest: Option<String>,
    },
    /// The server cannot listen on the TCP address.
    #[error("cannot listen on {address}: {error}")]
    Tcp {
        /// The address.
        address: String,
        /// The operating system's error.
        error: std::io::Error,
    },
}

/// The reason why a client cannot say how the calls of a function run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanOfError {
    /// The service has no such function.
    #[error("{service} has no function '{function}'{}", suggestion(nearest))]
    NoSuchFunction {
        /// The service.
        service: &'static str,
        /// The name.
        function: String,
        /// The function with the nearest name, if one is near.
        nearest: Option<String>,
    },
    /// The server that the client is connected to has no such function.
    #[error("the server's {service} has no function '{function}': it was built from another IDL")]
    NotOnServer {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
    },
    /// The client is lazy and was not connected yet.
    #[error("the client has not connected yet: make a call, or wait with wait_ready")]
    NotConnected,
}

/// Returns the suggestion of a name.
fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |name| format!("; did you mean '{name}'?"))
}

/// Returns the refusal of a call to a function that the service does not have.
#[cold]
pub fn unknown_function(function: usize) -> Refusal {
    Refusal::Application(ApplicationException::new(
        ApplicationExceptionKind::UNKNOWN_METHOD,
        format!("the service has no function number {function}"),
    ))
}

/// Returns the error of asynchronous decoding, which generated types do not support: messages are read whole.
#[cold]
pub fn not_asynchronous() -> ThriftException {
    new_protocol_exception(ProtocolExceptionKind::NotImplemented, "messages are not read asynchronously")
}
