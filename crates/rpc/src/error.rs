//! Errors, one type per operation. Each failed call states whether the server may have executed it.

use crate::path::half::MakeError;
use crate::plan::PlanError;
use dunlin_fabric::{
    AddressError, CreateError, DialError, GrantError, LinkError, ListenError, PeerIdentity, RegisterError,
};
use dunlin_wire::Status;
use thiserror::Error;

/// Whether a failed call may have had an effect on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Certainty {
    /// The call was never posted, was refused, or lies beyond the last message that a draining server took.
    /// Retrying on another server is safe.
    NotExecuted,
    /// The call was posted, and nothing says whether its handler ran. Only the application knows whether a
    /// retry is safe.
    MaybeExecuted,
    /// The handler began to run. It has ended or panicked, or it is still at work. A retry executes the call
    /// a second time.
    Executed,
}

impl Certainty {
    /// Returns whether the handler ran; `None` if the client does not know.
    pub const fn was_executed(self) -> Option<bool> {
        match self {
            Certainty::NotExecuted => Some(false),
            Certainty::MaybeExecuted => None,
            Certainty::Executed => Some(true),
        }
    }
}

/// The payload that accompanies a status of the framework if the handler ran. Without a payload the same
/// status says that it did not, or that the server does not know.
pub(crate) const HANDLER_RAN: &[u8] = b"ran";

/// The payload that accompanies [`Status::DeadlineExceeded`] if the call may have been executed.
pub(crate) const MAYBE_RAN: &[u8] = b"maybe";

/// Returns the status of a failed call, and the length of its written payload; `Err` with the status if the
/// answer has to say that the handler ran.
#[cold]
pub(crate) fn failure(failed: Option<Status>, written: usize) -> Result<(Status, usize), Status> {
    match failed {
        Some(Status::TooLarge) => Err(Status::TooLarge),
        Some(status @ Status::Application(_)) => Ok((status, written)),
        // The handler's word: it did not execute the call.
        Some(status) => Ok((status, 0)),
        None => Err(Status::HandlerPanicked),
    }
}

/// Returns how a handler has ended: with a status, or with none if it panicked.
#[inline(always)]
pub(crate) fn end_of(outcome: std::thread::Result<Result<(), Status>>) -> Result<(), Option<Status>> {
    match outcome {
        Ok(done) => done.map_err(Some),
        Err(panic) => {
            drop(panic);
            Err(None)
        }
    }
}

/// The reason why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server did not execute the call.
    #[error("not executed: {0}")]
    NotExecuted(Cause),
    /// The server may have executed the call.
    #[error("maybe executed: {0}")]
    MaybeExecuted(Cause),
    /// The server executed the call, and its result did not reach the caller.
    #[error("executed, and the result is lost: {0}")]
    Executed(Cause),
    /// The handler ran and returned an application error.
    #[error("the service answered with its error {code}")]
    Application {
        /// The application's error code.
        code: u16,
        /// The payload that the handler sent with the error.
        payload: Vec<u8>,
    },
}

/// The cause of a call's failure. Each says with which [`Certainty`] it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Cause {
    /// There is no connection. [`ClientConfig::wait_for_ready`](crate::ClientConfig::wait_for_ready) makes
    /// calls wait for one. Not executed.
    #[error("no connection to the server; the client connects again with back-off")]
    Disconnected,
    /// The connection broke while the call was in flight. Not executed if the call was never posted, or lies
    /// beyond the last message that the server reported as taken; executed if the server had announced its
    /// large result; else maybe executed.
    #[error("the connection to the server broke")]
    ConnectionLost,
    /// The server answered nothing within the silence limit, although the datagrams were sent several times.
    /// Certainty as of a lost connection.
    #[error(
        "the server has answered nothing for as long as ClientConfig::silence allows, though requests were sent again: is it overloaded, or does the network lose everything?"
    )]
    Unanswered,
    /// The peer violated the protocol. Certainty as of a lost connection.
    #[error("the server broke the protocol, so the connection was closed: are both of the same version?")]
    ProtocolViolation,
    /// The call's deadline passed. Not executed if it passed before the call was posted, or at the server
    /// before its handler began; executed if the server had announced its large result; else maybe executed.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The caller cancelled the call before it was posted. Not executed.
    #[error("the call was cancelled")]
    Cancelled,
    /// The call window is full: as many calls are in flight as the connection allows. Not executed.
    #[error("as many calls are in flight as the window allows: collect results before submitting more")]
    WindowFull,
    /// The payload exceeds the limit that the server announced. Not executed.
    #[error("the payload of {length} bytes is over the server's limit of {limit}")]
    TooLarge {
        /// The payload's length in bytes.
        length: u64,
        /// The server's limit in bytes.
        limit: u64,
    },
    /// No registered memory is left for a large payload. Not executed if that is the request, executed if it
    /// is the result.
    #[error("there is no registered memory left for a large payload: let calls end, or raise the limit")]
    OutOfMemory,
    /// The handler panicked, or was dropped before its end, as a task is when its server ends. Executed.
    #[error("the handler panicked or was dropped: see the server's log")]
    HandlerPanicked,
    /// The result exceeds [`ServerConfig::max_response`](crate::ServerConfig::max_response), or the server has
    /// no memory for it. Executed.
    #[error(
        "the result is over the server's limit, or the server has no memory for it: ask for less, or raise ServerConfig::max_response"
    )]
    ResultTooLarge,
    /// The application took the call from its queue and dropped it without an answer. Maybe executed.
    #[error("the server's application dropped the call without an answer")]
    Dropped,
    /// The server refused the call with this status. Not executed, except with [`Status::DuplicateCall`]:
    /// maybe executed.
    #[error("the server refused: {0}")]
    Refused(Status),
    /// The server is draining and accepts no new calls. Not executed beyond the last message that it took,
    /// else as a lost connection.
    #[error("the server is shutting down")]
    Draining,
    /// The server has no worker with this number. Not executed.
    #[error("the server has no such worker: ask the client how many there are")]
    NoSuchWorker,
    /// The client was closed, or the caller has already taken or given up the call. Maybe executed.
    #[error("the client is closed, or the call was taken or given up")]
    Closed,
}

impl CallError {
    /// Returns whether the server executed the call. An application error implies that it did.
    pub fn certainty(&self) -> Certainty {
        match self {
            CallError::NotExecuted(_) => Certainty::NotExecuted,
            CallError::MaybeExecuted(_) => Certainty::MaybeExecuted,
            CallError::Executed(_) | CallError::Application { .. } => Certainty::Executed,
        }
    }

    /// Returns whether the handler ran; `None` if the client does not know.
    pub fn was_executed(&self) -> Option<bool> {
        self.certainty().was_executed()
    }

    /// Returns whether the deadline of the call passed.
    pub fn is_deadline(&self) -> bool {
        self.cause() == Some(Cause::DeadlineExceeded)
    }

    /// Returns whether the server could not be reached, went away, or takes no calls now. The same call may
    /// succeed later or on another server; [`certainty`](CallError::certainty) says whether a repetition is
    /// safe.
    pub fn is_unavailable(&self) -> bool {
        match self.cause() {
            Some(
                Cause::Disconnected
                | Cause::ConnectionLost
                | Cause::Unanswered
                | Cause::Draining
                | Cause::Refused(Status::Overloaded | Status::Draining | Status::Unreachable),
            ) => true,
            Some(
                Cause::ProtocolViolation
                | Cause::DeadlineExceeded
                | Cause::Cancelled
                | Cause::WindowFull
                | Cause::TooLarge { .. }
                | Cause::OutOfMemory
                | Cause::HandlerPanicked
                | Cause::ResultTooLarge
                | Cause::Dropped
                | Cause::Refused(_)
                | Cause::NoSuchWorker
                | Cause::Closed,
            )
            | None => false,
        }
    }

    /// Returns the cause, or `None` for an application error.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            CallError::NotExecuted(cause) | CallError::MaybeExecuted(cause) | CallError::Executed(cause) => {
                Some(*cause)
            }
            CallError::Application { .. } => None,
        }
    }

    /// Maps the status of a response to an error; `None` for [`Status::Ok`].
    pub(crate) fn from_status(status: Status, payload: &[u8]) -> Option<CallError> {
        // See `HANDLER_RAN`.
        let ran = !payload.is_empty();
        Some(match status {
            Status::Ok => return None,
            Status::Application(code) => {
                CallError::Application { code: code.get(), payload: payload.to_vec() }
            }
            Status::HandlerPanicked if ran => CallError::Executed(Cause::HandlerPanicked),
            Status::HandlerPanicked => CallError::MaybeExecuted(Cause::Dropped),
            Status::TooLarge if ran => CallError::Executed(Cause::ResultTooLarge),
            // The first request with this id was executed, is executed now, or was refused.
            Status::DuplicateCall => CallError::MaybeExecuted(Cause::Refused(status)),
            // An intermediary's time for the call was over, or for its result.
            Status::DeadlineExceeded if payload == HANDLER_RAN => {
                CallError::Executed(Cause::DeadlineExceeded)
            }
            Status::DeadlineExceeded if ran => CallError::MaybeExecuted(Cause::DeadlineExceeded),
            Status::DeadlineExceeded => CallError::NotExecuted(Cause::DeadlineExceeded),
            Status::TooLarge
            | Status::UnknownFunction
            | Status::Overloaded
            | Status::Draining
            | Status::Malformed
            | Status::Unauthorised
            | Status::Unreachable => CallError::NotExecuted(Cause::Refused(status)),
            // A status that `dunlin-wire` has and this list lacks promises nothing.
            _ => CallError::MaybeExecuted(Cause::Refused(status)),
        })
    }
}

/// A failed operation on the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The server exposes no region with this name, or not to this client.
    #[error("the server exposes no region '{name}' to this client")]
    NoSuchRegion {
        /// The name.
        name: String,
    },
    /// The client has attached 256 regions.
    #[error("a client attaches at most 256 regions: connect another client")]
    TooMany,
    /// The region is not exposed for this kind of access. Nothing was sent.
    #[error("region '{region}' is not exposed for this access")]
    NotPermitted {
        /// The region's name.
        region: String,
    },
    /// The bytes are not all in the region. Nothing was sent.
    #[error("{length} bytes at {offset} are not within the region's {limit}")]
    OutOfBounds {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// The region's length in bytes.
        limit: u64,
    },
    /// The offset of an atomic is no multiple of 8. Nothing was sent.
    #[error("an atomic at offset {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// The offset in bytes.
        offset: u64,
    },
    /// The fabric has no atomics. Nothing was sent.
    #[error("this fabric has no atomics: use a call to the server instead")]
    NoAtomics,
    /// The operation failed as a call does; its certainty says whether it may have been done.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A failed connection attempt; no call was made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The plan cannot run on this fabric.
    #[error(transparent)]
    Plan(#[from] PlanError),
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
    #[error("the handshake failed")]
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
    /// Another process serves at the address than [`ClientConfig::server`](crate::ClientConfig::server) says. Nothing was
    /// sent to it.
    #[error("another process serves there: {peer:?}, and not {expected:?}")]
    OtherProcess {
        /// The process that has to serve there.
        expected: PeerIdentity,
        /// The process that does.
        peer: PeerIdentity,
    },
    /// The threads of this client have as many queue pairs as the server lets them use now.
    #[error("the server grants the client no further queue pair now")]
    NoQueuePair,
    /// The server refused the connection.
    #[error("the server refused the connection: {0}")]
    Refused(String),
    /// The server does not accept the token of this client. The text says why.
    #[error("the server does not accept this client: {0}; look at the token")]
    Unauthorised(String),
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

impl From<MakeError> for ConnectError {
    fn from(error: MakeError) -> Self {
        match error {
            MakeError::Create(error) => ConnectError::Create(error),
            MakeError::Register(error) => ConnectError::Register(error),
            MakeError::Arena(error) => ConnectError::Handshake(error.to_string()),
            MakeError::Missing(text) => ConnectError::Handshake(text.to_owned()),
        }
    }
}

impl ConnectError {
    /// Returns whether the server could not be reached or takes no connection now, so that a later attempt
    /// may succeed.
    pub fn is_unavailable(&self) -> bool {
        match self {
            ConnectError::Dial(error) => error.is_unavailable(),
            ConnectError::NoQueuePair => true,
            ConnectError::Link(error) => !matches!(error, LinkError::TooLong { .. }),
            ConnectError::Address(_)
            | ConnectError::Plan(_)
            | ConnectError::Setting { .. }
            | ConnectError::Share { .. }
            | ConnectError::Lazy(_)
            | ConnectError::Handshake(_)
            | ConnectError::Version { .. }
            | ConnectError::OtherService(_)
            | ConnectError::OtherProcess { .. }
            | ConnectError::Refused(_)
            | ConnectError::Unauthorised(_)
            | ConnectError::Create(_)
            | ConnectError::Register(_)
            | ConnectError::Grant(_) => false,
        }
    }
}

/// A failure to start a server.
#[derive(Debug, Error)]
#[non_exhaustive]
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
    #[error("cannot start a thread; raise the limit (ulimit -u) or use fewer workers")]
    Thread(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_wire::ApplicationCode;

    /// Each status, without and with a payload.
    #[test]
    fn each_status_has_a_certainty() {
        use Certainty::{Executed, MaybeExecuted, NotExecuted};
        let code = ApplicationCode::new(3).unwrap();
        for (status, without, with) in [
            (Status::UnknownFunction, NotExecuted, NotExecuted),
            (Status::TooLarge, NotExecuted, Executed),
            (Status::DuplicateCall, MaybeExecuted, MaybeExecuted),
            (Status::Overloaded, NotExecuted, NotExecuted),
            (Status::Draining, NotExecuted, NotExecuted),
            (Status::HandlerPanicked, MaybeExecuted, Executed),
            (Status::DeadlineExceeded, NotExecuted, Executed),
            (Status::Malformed, NotExecuted, NotExecuted),
            (Status::Unauthorised, NotExecuted, NotExecuted),
            (Status::Unreachable, NotExecuted, NotExecuted),
            (Status::Application(code), Executed, Executed),
        ] {
            for (payload, certainty) in [(&[][..], without), (HANDLER_RAN, with)] {
                let error = CallError::from_status(status, payload).unwrap();
                assert_eq!(error.certainty(), certainty, "{status}: {error}");
            }
        }
        assert_eq!(CallError::from_status(Status::Ok, b"result"), None);
        let late = CallError::from_status(Status::DeadlineExceeded, MAYBE_RAN);
        assert_eq!(late, Some(CallError::MaybeExecuted(Cause::DeadlineExceeded)));
    }
}
