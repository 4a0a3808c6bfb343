//! Errors of callers, handlers, connecting and serving.
//!
//! They name the failures of every transport, so that one error type suits a client whose functions travel over
//! different ones. The code of the transports makes the values.

mod numa;
mod tcp;

pub use numa::NumaError;
pub use tcp::TcpError;

use dunlin_fabric::AddressError;
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

/// The reason why a typed call has neither a value nor a declared exception, on every transport. Each service
/// has an error enum with its exceptions and this error.
///
/// The methods answer a caller's questions, whatever the transport: [`certainty`](CallError::certainty) and
/// [`was_executed`](CallError::was_executed), [`is_deadline`](CallError::is_deadline), and
/// [`is_unavailable`](CallError::is_unavailable).
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
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
    #[error("the arguments cannot be encoded")]
    Encode(#[source] ThriftException),
    /// The result cannot be decoded. The call was executed.
    #[error("the result cannot be read; was the server built from another IDL?")]
    Decode(#[source] ThriftException),
    /// The function's hints select TCP, but the client has no TCP address.
    #[error(
        "{function} goes by TCP, as its hints say: give the client the server's TCP address, or let the server listen on TCP"
    )]
    NoTcp {
        /// The function.
        function: String,
    },
}

impl From<Never> for CallError {
    fn from(never: Never) -> Self {
        match never {}
    }
}

impl From<TcpError> for CallError {
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

impl CallError {
    /// Returns whether the deadline of the call passed.
    pub fn is_deadline(&self) -> bool {
        matches!(self, CallError::Transport(error) if error.is_deadline())
    }

    /// Returns whether the server could not be reached, went away, or takes no calls now. The same call may
    /// succeed later or on another server; [`certainty`](CallError::certainty) says whether a repetition is
    /// safe.
    pub fn is_unavailable(&self) -> bool {
        match self {
            CallError::Transport(error) => error.is_unavailable(),
            CallError::Tcp(error) => error.is_unavailable(),
            CallError::Connect(error) => error.is_unavailable(),
            CallError::Application(_)
            | CallError::Encode(_)
            | CallError::Decode(_)
            | CallError::NoTcp { .. } => false,
        }
    }

    /// Returns whether the function was executed; `None` if the client does not know.
    pub fn was_executed(&self) -> Option<bool> {
        self.certainty().was_executed()
    }

    /// Returns whether the function was executed.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::Transport(error) => error.certainty(),
            CallError::Tcp(error) => error.certainty(),
            CallError::Encode(_) | CallError::NoTcp { .. } | CallError::Connect(_) => Certainty::NotExecuted,
            CallError::Application(error) => of_kind(error.kind()),
            CallError::Decode(_) => Certainty::Executed,
        }
    }
}

/// Returns whether a function was executed that ended with an undeclared exception of this kind.
fn of_kind(kind: ApplicationExceptionKind) -> Certainty {
    match kind {
        ApplicationExceptionKind::UNKNOWN_METHOD
        | ApplicationExceptionKind::INVALID_MESSAGE_TYPE
        | ApplicationExceptionKind::PROTOCOL_ERROR => Certainty::NotExecuted,
        // Servers of other vendors report with these that the two sides do not understand each other.
        ApplicationExceptionKind::WRONG_METHOD_NAME
        | ApplicationExceptionKind::BAD_SEQUENCE_ID
        | ApplicationExceptionKind::INVALID_TRANSFORM
        | ApplicationExceptionKind::INVALID_PROTOCOL
        | ApplicationExceptionKind::UNSUPPORTED_CLIENT_TYPE
        | ApplicationExceptionKind::VALIDATION_FAILED => Certainty::MaybeExecuted,
        // A failed handler: its kind is `INTERNAL_ERROR`, `UNKNOWN`, or the application's own.
        _ => Certainty::Executed,
    }
}

/// The error of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// An exception that the function declares.
    Exception(E),
    /// Any other error. The caller gets its kind and text. The kinds `UNKNOWN_METHOD`,
    /// `INVALID_MESSAGE_TYPE` and `PROTOCOL_ERROR` say that the call was not executed: use them only if it had
    /// no effect.
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
#[non_exhaustive]
pub enum ConnectError {
    /// The engine could not connect.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ConnectError),
    /// The introduction call failed.
    #[error("the server did not introduce itself")]
    Introduction(#[source] dunlin_rpc::CallError),
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
    /// The option `other_signatures` of a client connects all the same.
    #[error("the server's IDL of {service} does not fit this client's: {}; build both from IDLs that fit", listed(.functions))]
    Signatures {
        /// The service.
        service: &'static str,
        /// The functions, each with the first difference.
        functions: Vec<(String, String)>,
    },
    /// The hints of a function cannot be followed on this fabric.
    #[error("the hints of {service}.{function} cannot be followed")]
    Hints {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
        /// The reason.
        #[source]
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: the hint numa cannot be followed")]
    Numa {
        /// The service.
        service: &'static str,
        /// The reason.
        #[source]
        error: NumaError,
    },
    /// The TCP address cannot be reached.
    #[error("cannot connect to {address}")]
    Tcp {
        /// The address.
        address: String,
        /// The operating system's error.
        #[source]
        error: std::io::Error,
    },
}

impl From<AddressError> for ConnectError {
    fn from(error: AddressError) -> Self {
        dunlin_rpc::ConnectError::from(error).into()
    }
}

impl ConnectError {
    /// Returns whether the server could not be reached or takes no connection now, so that a later attempt
    /// may succeed.
    pub fn is_unavailable(&self) -> bool {
        match self {
            ConnectError::Engine(error) => error.is_unavailable(),
            ConnectError::Introduction(error) => error.is_deadline() || error.is_unavailable(),
            ConnectError::Tcp { .. } => true,
            ConnectError::NotThrift(_)
            | ConnectError::OtherService { .. }
            | ConnectError::Signatures { .. }
            | ConnectError::Hints { .. }
            | ConnectError::Numa { .. } => false,
        }
    }
}

fn listed(functions: &[(String, String)]) -> String {
    let listed: Vec<String> = functions.iter().map(|(name, why)| format!("'{name}': {why}")).collect();
    listed.join("; ")
}

/// The error of starting a server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The engine could not serve.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ServeError),
    /// The hints of a function cannot be followed on this fabric.
    #[error("the hints of {service}.{function} cannot be followed")]
    Hints {
        /// The service.
        service: &'static str,
        /// The function.
        function: String,
        /// The reason.
        #[source]
        error: Box<dunlin_hints::SelectError>,
    },
    /// The hint `numa` cannot be followed here.
    #[error("{service}: the hint numa cannot be followed")]
    Numa {
        /// The service.
        service: &'static str,
        /// The reason.
        #[source]
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
    #[error("cannot listen on {address}")]
    Tcp {
        /// The address.
        address: String,
        /// The operating system's error.
        #[source]
        error: std::io::Error,
    },
}

/// The reason why a client cannot say how the calls of a function run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
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
