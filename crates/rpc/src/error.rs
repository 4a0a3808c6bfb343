//! Errors, one type per operation. Each failed call states whether the server may have executed it.

use crate::plan::Illegal;
use dunlin_fabric::{
    AddressError, CreateError, DialError, GrantError, LinkError, ListenError, RegisterError,
};
use dunlin_wire::Status;
use thiserror::Error;

/// Whether a failed call may have had an effect on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The call was never posted, was refused, or lies beyond the last message that a draining server took.
    /// Retrying on another server is safe.
    NotExecuted,
    /// The call was posted and no answer came. Only the application knows whether a retry is safe.
    MaybeExecuted,
}

/// The reason why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The server did not execute the call.
    #[error("not executed: {0}")]
    NotExecuted(Cause),
    /// The server may have executed the call.
    #[error("maybe executed: {0}")]
    MaybeExecuted(Cause),
    /// The handler ran and returned an application error.
    #[error("the service answered with its error {code}")]
    Application {
        /// The application's error code.
        code: u16,
        /// The payload that the handler sent with the error.
        payload: Vec<u8>,
    },
}

/// The cause of a call's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// There is no connection. [`ClientConfig::wait_for_ready`](crate::ClientConfig::wait_for_ready) makes
    /// calls wait for one.
    #[error("no connection to the server; the client connects again with back-off")]
    Disconnected,
    /// The connection broke while the call was in flight.
    #[error("the connection to the server broke")]
    ConnectionLost,
    /// The server answered nothing within the silence limit, although the datagrams were sent several times.
    #[error(
        "the server has answered nothing for as long as ClientConfig::silence allows, though requests were sent again: is it overloaded, or does the network lose everything?"
    )]
    Unanswered,
    /// The peer violated the protocol.
    #[error("the server broke the protocol, so the connection was closed: are both of the same version?")]
    ProtocolViolation,
    /// The call's deadline passed.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The caller cancelled the call.
    #[error("the call was cancelled")]
    Cancelled,
    /// The call window is full: as many calls are in flight as the connection allows.
    #[error("as many calls are in flight as the window allows: collect results before submitting more")]
    WindowFull,
    /// The payload exceeds the limit that the server announced.
    #[error("the payload of {length} bytes is over the server's limit of {limit}")]
    TooLarge {
        /// The payload's length in bytes.
        length: u64,
        /// The server's limit in bytes.
        limit: u64,
    },
    /// No registered memory is left for a large payload.
    #[error("there is no registered memory left for a large payload: let calls end, or raise the limit")]
    OutOfMemory,
    /// The server refused the call with this status.
    #[error("the server refused: {0}")]
    Refused(Status),
    /// The server is draining and accepts no new calls.
    #[error("the server is shutting down")]
    Draining,
    /// The server has no worker with this number.
    #[error("the server has no such worker: ask the client how many there are")]
    NoSuchWorker,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl CallError {
    /// Returns whether the server may have executed the call. An application error implies that it did.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::NotExecuted(_) => Certainty::NotExecuted,
            CallError::MaybeExecuted(_) | CallError::Application { .. } => Certainty::MaybeExecuted,
        }
    }

    /// Returns the cause, or `None` for an application error.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            CallError::NotExecuted(cause) | CallError::MaybeExecuted(cause) => Some(*cause),
            CallError::Application { .. } => None,
        }
    }

    /// Maps the status of a response to an error; `None` for [`Status::Ok`].
    pub(crate) fn from_status(status: Status, payload: &[u8]) -> Option<CallError> {
        Some(match status {
            Status::Ok => return None,
            Status::Application(code) => {
                CallError::Application { code: code.get(), payload: payload.to_vec() }
            }
            // The server sends these two only after the handler has begun.
            Status::HandlerPanicked | Status::DuplicateCall => {
                CallError::MaybeExecuted(Cause::Refused(status))
            }
            // A payload means that the handler has run, and that its result is too large or found no memory.
            Status::TooLarge if !payload.is_empty() => CallError::MaybeExecuted(Cause::Refused(status)),
            Status::DeadlineExceeded => CallError::NotExecuted(Cause::DeadlineExceeded),
            refused => CallError::NotExecuted(Cause::Refused(refused)),
        })
    }
}

/// A failed connection attempt; no call was made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The plan cannot run on this fabric.
    #[error(transparent)]
    Plan(#[from] Illegal),
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// The setting's name.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The values allowed.
        must: &'static str,
    },
    /// A setting that must be a share lies outside 0 to 1.
    #[error("{what} is {value}, but must be a share from 0 to 1")]
    Share {
        /// The setting's name.
        what: &'static str,
        /// The value given.
        value: f64,
    },
    /// [`ClientConfig::lazy`](crate::ClientConfig::lazy) is set for a client that needs its server when it is
    /// made.
    #[error("the client cannot be lazy: {0}")]
    Lazy(&'static str),
    /// The server cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control connection failed during the handshake.
    #[error("the handshake failed: {0}")]
    Link(#[from] LinkError),
    /// The server's handshake record is malformed or unexpected.
    #[error("the server's handshake is not usable: {0}")]
    Handshake(String),
    /// The server supports none of this client's protocol versions.
    #[error(
        "the server speaks versions {theirs_low} to {theirs_high}, this client {ours_low} to {ours_high}: update one of them"
    )]
    Version {
        /// The oldest version that this client supports.
        ours_low: u16,
        /// The newest version that this client supports.
        ours_high: u16,
        /// The oldest version that the server supports.
        theirs_low: u16,
        /// The newest version that the server supports.
        theirs_high: u16,
    },
    /// The server serves another service than the client asked for. The text names both.
    #[error("{0}; look at the address")]
    OtherService(String),
    /// The server refused the connection.
    #[error("the server refused the connection: {0}")]
    Refused(String),
    /// A queue pair could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Access to memory could not be granted.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// A failure to start a server.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// The setting's name.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The values allowed.
        must: &'static str,
    },
    /// A worker's queues could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; raise the limit (ulimit -u) or use fewer workers")]
    Thread(#[from] std::io::Error),
}
