//! Errors by operation. Each message says what to do; each type says what broke.

use crate::address::Address;
use std::io;
use thiserror::Error;

/// Registering memory failed.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// Zero or over the fabric's limit.
    #[error("cannot register {length} bytes: regions are 1 to {limit} bytes long")]
    Length {
        /// What was asked for.
        length: u64,
        /// The most there can be.
        limit: u64,
    },
    /// The system has no memory, or not of the kind wanted.
    #[error(
        "cannot get {length} bytes of memory to register: {source}; free memory, raise the limit (ulimit -v, cgroup), or ask for less"
    )]
    OutOfMemory {
        /// What was asked for.
        length: u64,
        /// The system's word.
        source: io::Error,
    },
    /// Registered memory is locked memory, and the limit is too low.
    #[error(
        "the locked-memory limit is {limit} bytes, and {length} more do not fit; raise it with `ulimit -l`"
    )]
    LockedMemory {
        /// What was asked for.
        length: u64,
        /// The limit in force.
        limit: u64,
    },
}

/// Making a queue pair, completion queue, shared receive queue, domain or address handle failed.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The fabric cannot do that at all; see its capabilities.
    #[error("this fabric has no {0}")]
    Unsupported(&'static str),
    /// A parameter is outside what the capabilities say.
    #[error("{what} is {value}, but this fabric allows at most {limit}")]
    Limit {
        /// Which parameter.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The most there can be.
        limit: u64,
    },
    /// A handle that this domain did not make or has destroyed.
    #[error("no such {0} in this domain")]
    NoSuch(&'static str),
    /// The object is in the wrong state for this.
    #[error("{0}")]
    State(&'static str),
    /// The peer's endpoint cannot be understood, or does not fit this fabric.
    #[error("the peer's endpoint is not usable: {0}")]
    Endpoint(&'static str),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory could not be granted.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The system refused.
    #[error("cannot make {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// The system's word.
        source: io::Error,
    },
}

impl CreateError {
    /// Refuses more of something than there can be.
    pub fn check_limit(what: &'static str, value: u32, limit: u32) -> Result<(), CreateError> {
        if value <= limit {
            return Ok(());
        }
        Err(CreateError::Limit { what, value: value.into(), limit: limit.into() })
    }

    /// The error of a call to the system that did this.
    pub fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> CreateError {
        move |source| CreateError::System { what, source }
    }
}

/// Posting failed; the work request was not taken and has had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// The send, receive or shared receive queue is full; poll completions first.
    #[error("the queue is full: poll completions before posting more")]
    QueueFull,
    /// The queue pair is not connected yet.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The queue pair is in the error state; nothing goes out any more.
    #[error("the queue pair is in the error state: destroy it and connect a new one")]
    QueuePairError,
    /// Inline data over the limit of the capabilities.
    #[error("inline data of {length} bytes is over the limit of {limit}")]
    Inline {
        /// What was given.
        length: usize,
        /// The most there can be.
        limit: u32,
    },
    /// A message over the limit of the capabilities.
    #[error("a message of {length} bytes is over the limit of {limit}")]
    Length {
        /// What was given.
        length: u64,
        /// The most there can be.
        limit: u32,
    },
    /// The transport has no such operation (READ on UC, WRITE on UD, ...), or an address handle is missing.
    #[error("the transport cannot do this: {0}")]
    Transport(&'static str),
    /// A handle that this domain did not make or has destroyed.
    #[error("no such {0} in this domain")]
    NoSuch(&'static str),
}

/// The fabric that an address names cannot be used by this process.
#[derive(Debug, Error)]
#[error("{address} cannot be used here: {source}")]
pub struct Unavailable {
    /// The address.
    pub address: Address,
    /// Why: the back-end's own error, which says what to do.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Listening failed.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The fabric of the address cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Somebody listens there already.
    #[error("{address} is in use: another server listens on it; stop it or choose another name")]
    InUse {
        /// The address.
        address: Address,
    },
    /// Not an address of this fabric.
    #[error("{0} is not an address of this fabric")]
    WrongScheme(Address),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    System {
        /// The address.
        address: Address,
        /// The system's word.
        source: io::Error,
    },
}

/// Dialling failed. Nothing was sent.
#[derive(Debug, Error)]
pub enum DialError {
    /// The fabric of the address cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Nobody listens there.
    #[error("nobody listens on {address}: start the server, or check the name")]
    NobodyListens {
        /// The address.
        address: Address,
    },
    /// The listener may not be spoken to by this user.
    #[error("{address} does not let this user in: {why}")]
    Permission {
        /// The address.
        address: Address,
        /// Why.
        why: String,
    },
    /// The two sides are of different builds that cannot talk to each other.
    #[error(
        "{address} speaks version {theirs} of the control protocol, this side {ours}: bring both to the same release"
    )]
    Version {
        /// The address.
        address: Address,
        /// This side's.
        ours: u16,
        /// The listener's.
        theirs: u16,
    },
    /// Who listens there vanished before it had greeted, or is no Dunlin server of this fabric.
    #[error(
        "{address} did not greet as a server of this fabric does: {source}; see whether one listens there, or why it ended, and try again"
    )]
    NoGreeting {
        /// The address.
        address: Address,
        /// What it did.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{address} did not answer in time; is the server stuck or overloaded?")]
    TimedOut {
        /// The address.
        address: Address,
    },
    /// Not an address of this fabric.
    #[error("{0} is not an address of this fabric")]
    WrongScheme(Address),
    /// The system refused.
    #[error("cannot connect to {address}: {source}")]
    System {
        /// The address.
        address: Address,
        /// The system's word.
        source: io::Error,
    },
}

/// Accepting failed.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// Nothing came until the time given.
    #[error("no connection came in time")]
    TimedOut,
    /// The listener was closed.
    #[error("the listener is closed")]
    Closed,
}

/// Something on a control connection failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// The peer has closed, died, or broken the control protocol.
    #[error("the peer is gone: {0}")]
    PeerGone(String),
    /// This side's device has failed, or its port is down: no peer can be reached by it.
    #[error("this side's RDMA device cannot be used: {0}")]
    Device(String),
    /// Nothing came until the time given.
    #[error("no message came in time")]
    TimedOut,
    /// The message is too long for a control message.
    #[error("a control message of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// What was given.
        length: usize,
        /// The most there can be.
        limit: usize,
    },
    /// The peer does not read its control connection.
    #[error("the peer does not read its control messages")]
    Backlog,
}

/// Granting memory to a peer failed.
#[derive(Debug, Error)]
pub enum GrantError {
    /// The memory was not registered for such access.
    #[error("the memory was not registered for that access: register it with remote access first")]
    Access,
    /// Too many grants on one link.
    #[error("the link already has {0} grants: release some first")]
    TooMany(usize),
    /// The control connection failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The system refused.
    #[error("cannot grant memory: {0}")]
    System(#[from] io::Error),
}
