//! Errors, one type for each operation. Each message names the remedy; each type shows the scope of the
//! failure.

use crate::address::{Address, AddressError};
use crate::dialling::readable;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// An error of registering memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The length is zero or over the fabric's limit.
    #[error("cannot register {length} bytes: regions are 1 to {limit} bytes long")]
    Length {
        /// The length requested, in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The system has no memory, or none of the kind required.
    #[error(
        "cannot get {length} bytes of memory to register; free memory, raise the limit (ulimit -v, cgroup), or ask for less"
    )]
    OutOfMemory {
        /// The length requested, in bytes.
        length: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Registered memory is locked memory, and the limit for it is too low.
    #[error(
        "the locked-memory limit is {limit} bytes, and {length} more do not fit; raise it with `ulimit -l`"
    )]
    LockedMemory {
        /// The length requested, in bytes.
        length: u64,
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The fabric registers no memory that another fabric made: see [`Capabilities::adopts`](crate::Capabilities::adopts).
    #[error("{0} registers no memory of another fabric; use memory that it has made itself")]
    Foreign(&'static str),
}

/// An error of creating a queue pair, completion queue, shared receive queue, domain or address handle.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The fabric does not support this object; see its capabilities.
    #[error("this fabric has no {0}")]
    Unsupported(&'static str),
    /// A parameter exceeds a limit in the capabilities.
    #[error("{what} is {value}, but this fabric allows at most {limit}")]
    Limit {
        /// The parameter.
        what: &'static str,
        /// The value requested.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// This domain did not create the handle, or has destroyed it.
    #[error("no such {0} in this domain")]
    NoSuch(&'static str),
    /// The object is in the wrong state for this operation.
    #[error("{0}")]
    State(&'static str),
    /// The peer's endpoint is malformed or does not fit this fabric.
    #[error("the peer's endpoint is not usable: {0}")]
    Endpoint(&'static str),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory could not be granted.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A system call failed.
    #[error("cannot make {what}")]
    System {
        /// The object that could not be created.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl CreateError {
    /// Returns [`CreateError::Limit`] if `value` is greater than `limit`.
    pub fn check_limit(what: &'static str, value: u32, limit: u32) -> Result<(), CreateError> {
        if value <= limit {
            return Ok(());
        }
        Err(CreateError::Limit { what, value: value.into(), limit: limit.into() })
    }

    /// Returns a function that converts an [`io::Error`] of creating `what`.
    pub fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> CreateError {
        move |source| CreateError::System { what, source }
    }
}

/// A range of a region cannot be the local side of work requests.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range leaves the region.
    #[error("{length} bytes at offset {offset} leave a region of {region} bytes")]
    Outside {
        /// The offset given, in bytes.
        offset: u64,
        /// The length given, in bytes.
        length: u64,
        /// The region's length, in bytes.
        region: u64,
    },
    /// The memory cannot be registered for this side's own requests.
    #[error("the memory cannot be registered for local use")]
    Register(#[from] RegisterError),
}

/// An error of posting. The work request was not accepted and has had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The send, receive or shared receive queue is full; poll completions first.
    #[error("the queue is full: poll completions before posting more")]
    QueueFull,
    /// The queue pair is not connected yet.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The queue pair is in the error state and sends nothing more.
    #[error("the queue pair is in the error state: destroy it and connect a new one")]
    QueuePairError,
    /// The inline data exceeds the limit of the capabilities.
    #[error("inline data of {length} bytes is over the limit of {limit}")]
    Inline {
        /// The length given, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The message exceeds the limit of the capabilities.
    #[error("a message of {length} bytes is over the limit of {limit}")]
    Length {
        /// The length given, in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The transport lacks this operation (READ on UC, WRITE on UD, ...), or an address handle is missing.
    #[error("the transport cannot do this: {0}")]
    Transport(&'static str),
    /// This domain did not create the handle, or has destroyed it.
    #[error("no such {0} in this domain")]
    NoSuch(&'static str),
    /// A range lies in a region of another fabric or device.
    #[error(
        "the region belongs to another device: register the memory with the queue pair's fabric, or let it adopt it"
    )]
    ForeignRegion,
}

/// An error of posting a list of work requests
/// ([`ThreadDomain::post_list`](crate::ThreadDomain::post_list)). Requests that were not posted have had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("only the first {posted} work requests of a list were posted")]
pub struct ListError {
    /// The number of requests that were posted: the first ones.
    pub posted: usize,
    /// The reason why the next one was not.
    #[source]
    pub error: PostError,
}

/// None of the list was posted.
impl From<PostError> for ListError {
    fn from(error: PostError) -> Self {
        ListError { posted: 0, error }
    }
}

/// This process cannot use the fabric that an address names.
#[derive(Debug, Error)]
#[error("{address} cannot be used here")]
pub struct Unavailable {
    /// The address.
    pub address: Address,
    /// The back-end's error, which names the remedy.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// An error of listening.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The fabric of the address is not usable.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Another process or thread already listens on the address.
    #[error("{address} is in use: another server listens on it; stop it or choose another name")]
    InUse {
        /// The address.
        address: Address,
    },
    /// The address does not belong to this fabric.
    #[error("{0} is not an address of this fabric")]
    WrongScheme(Address),
    /// A system call failed.
    #[error("cannot listen on {address}")]
    System {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

/// An error of dialling. No message was sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// The fabric of the address is not usable.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No server listens on the address.
    #[error("nobody listens on {address}: start the server, or check the name")]
    NobodyListens {
        /// The address.
        address: Address,
    },
    /// The listener does not admit this user.
    #[error("{address} does not let this user in: {why}")]
    Permission {
        /// The address.
        address: Address,
        /// The reason.
        why: String,
    },
    /// The two sides have incompatible versions of the control protocol.
    #[error(
        "{address} speaks version {theirs} of the control protocol, this side {ours}: bring both to the same release"
    )]
    Version {
        /// The address.
        address: Address,
        /// This side's version.
        ours: u16,
        /// The listener's version.
        theirs: u16,
    },
    /// The listener closed the connection before it had greeted, or is not a Dunlin server of this fabric.
    #[error(
        "{address} did not greet as a server of this fabric does; see whether one listens there, or why it ended, and try again"
    )]
    NoGreeting {
        /// The address.
        address: Address,
        /// The error that the connection gave.
        source: io::Error,
    },
    /// Something other than a server of this fabric answers at the address.
    #[error("{address}: {found}")]
    WrongDoor {
        /// The address.
        address: Address,
        /// A sentence: the kind of server that answers, and the address to use instead.
        found: String,
    },
    /// The server did not answer in time.
    #[error(
        "{address}: no answer in {}; is the host up, and is the server stuck or overloaded?",
        readable(*.after)
    )]
    TimedOut {
        /// The address.
        address: Address,
        /// The time limit of dialling.
        after: Duration,
    },
    /// The listener has as many connections waiting as it takes.
    #[error("{address} takes no connection now: too many wait there to be accepted; try again later")]
    Full {
        /// The address.
        address: Address,
    },
    /// The address does not belong to this fabric.
    #[error("{0} is not an address of this fabric")]
    WrongScheme(Address),
    /// A system call failed.
    #[error("cannot connect to {address}")]
    System {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

impl DialError {
    /// Returns whether the listener could not be reached or takes no connection now, so that a later attempt
    /// may succeed.
    pub fn is_unavailable(&self) -> bool {
        match self {
            DialError::NobodyListens { .. }
            | DialError::NoGreeting { .. }
            | DialError::TimedOut { .. }
            | DialError::Full { .. }
            | DialError::System { .. } => true,
            DialError::Unavailable(_)
            | DialError::Permission { .. }
            | DialError::Version { .. }
            | DialError::WrongDoor { .. }
            | DialError::WrongScheme(_) => false,
        }
    }
}

/// An error of accepting a connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// No connection arrived before the deadline.
    #[error("no connection came in time")]
    TimedOut,
    /// The listener was closed.
    #[error("the listener is closed")]
    Closed,
}

/// An error of a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer closed the connection, died, or violated the control protocol.
    #[error("the peer is gone: {0}")]
    PeerGone(String),
    /// This side's device has failed or its port is down, so no peer is reachable through it.
    #[error("this side's RDMA device cannot be used: {0}")]
    Device(String),
    /// No message arrived before the deadline.
    #[error("no message came in time")]
    TimedOut,
    /// The message exceeds the limit for control messages.
    #[error("a control message of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// The length given, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The peer does not read its control connection.
    #[error("the peer does not read its control messages")]
    Backlog,
}

/// An error of granting memory to a peer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The memory was not registered for this access.
    #[error("the memory was not registered for that access: register it with remote access first")]
    Access,
    /// The link has too many grants.
    #[error("the link already has {0} grants: release some first")]
    TooMany(usize),
    /// The control connection failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A system call failed.
    #[error("cannot grant memory")]
    System(#[from] io::Error),
}
