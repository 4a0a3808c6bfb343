//! Errors by operation. A failed call always says whether the server may have executed it.

use crate::plan::Illegal;
use dunlin_fabric::{
    AddressError, CreateError, DialError, GrantError, LinkError, ListenError, RegisterError,
};
use dunlin_wire::Status;
use thiserror::Error;

/// Whether a call that failed may have had an effect on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It was never posted, or was refused, or lies beyond what a draining server took: try it elsewhere.
    NotExecuted,
    /// It was posted, and no answer came: only the application can know whether doing it again is safe.
    MaybeExecuted,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The call was not executed.
    #[error("not executed: {0}")]
    NotExecuted(Cause),
    /// The call may have been executed.
    #[error("maybe executed: {0}")]
    MaybeExecuted(Cause),
    /// The handler ran and answered with an error of the application.
    #[error("the service answered with its error {code}")]
    Application {
        /// The application's code.
        code: u16,
        /// The payload that came with it.
        payload: Vec<u8>,
    },
}

/// What went wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// No connection, and none could be made in time.
    #[error("there is no connection to the server; it is tried again with back-off")]
    Disconnected,
    /// The connection broke while the call was on its way.
    #[error("the connection to the server broke")]
    ConnectionLost,
    /// Datagrams that were sent again and again found no answer of any kind.
    #[error(
        "the server has answered nothing for as long as ClientConfig::silence allows, though requests were sent again: is it overloaded, or does the network lose everything?"
    )]
    Unanswered,
    /// The peer broke the protocol.
    #[error("the server broke the protocol, so the connection was closed: are both of the same version?")]
    ProtocolViolation,
    /// The deadline passed.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The caller gave it up.
    #[error("the call was cancelled")]
    Cancelled,
    /// As many calls are in flight as the connection allows.
    #[error("as many calls are in flight as the window allows: collect results before submitting more")]
    WindowFull,
    /// The payload is over the limit that the server announced.
    #[error("the payload of {length} bytes is over the server's limit of {limit}")]
    TooLarge {
        /// The payload's length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// No registered memory for a large payload.
    #[error("there is no registered memory left for a large payload: let calls end, or raise the limit")]
    OutOfMemory,
    /// The server refused by a status.
    #[error("the server refused: {0}")]
    Refused(Status),
    /// The server goes away and takes nothing new.
    #[error("the server is shutting down")]
    Draining,
    /// The server has no such worker.
    #[error("the server has no such worker: ask the client how many there are")]
    NoSuchWorker,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl CallError {
    /// Whether it may have been executed. An application's error says that it was.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::NotExecuted(_) => Certainty::NotExecuted,
            CallError::MaybeExecuted(_) | CallError::Application { .. } => Certainty::MaybeExecuted,
        }
    }

    /// The cause, where it is not the application.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            CallError::NotExecuted(cause) | CallError::MaybeExecuted(cause) => Some(*cause),
            CallError::Application { .. } => None,
        }
    }

    /// The error that a status of a response stands for; `None` for [`Status::Ok`].
    pub(crate) fn from_status(status: Status, payload: &[u8]) -> Option<CallError> {
        Some(match status {
            Status::Ok => return None,
            Status::Application(code) => {
                CallError::Application { code: code.get(), payload: payload.to_vec() }
            }
            // These two happen after the handler began.
            Status::HandlerPanicked | Status::DuplicateCall => {
                CallError::MaybeExecuted(Cause::Refused(status))
            }
            // With a payload it is the result that is too large, or finds no memory: the handler has run.
            Status::TooLarge if !payload.is_empty() => CallError::MaybeExecuted(Cause::Refused(status)),
            refused => CallError::NotExecuted(Cause::Refused(refused)),
        })
    }
}

/// Connecting failed; no call was made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The plan cannot run on this fabric.
    #[error(transparent)]
    Plan(#[from] Illegal),
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        must: &'static str,
    },
    /// A setting that is a share is none.
    #[error("{what} is {value}, but must be a share from 0 to 1")]
    Share {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// The server cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control connection failed during the handshake.
    #[error("the handshake failed: {0}")]
    Link(#[from] LinkError),
    /// The server's handshake cannot be understood.
    #[error("the server's handshake is not usable: {0}")]
    Handshake(String),
    /// The server speaks no version that we speak.
    #[error(
        "the server speaks versions {theirs_low} to {theirs_high}, this client {ours_low} to {ours_high}: update one of them"
    )]
    Version {
        /// Our oldest.
        ours_low: u16,
        /// Our newest.
        ours_high: u16,
        /// Their oldest.
        theirs_low: u16,
        /// Their newest.
        theirs_high: u16,
    },
    /// The server refused.
    #[error("the server refused the connection: {0}")]
    Refused(String),
    /// A queue pair could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory could not be granted.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// Starting a server failed.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        must: &'static str,
    },
    /// A worker's queues could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; raise the limit (ulimit -u) or use fewer workers")]
    Thread(#[from] std::io::Error),
}
