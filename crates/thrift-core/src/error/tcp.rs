//! The error of a call over TCP.

use crate::wire::Wire;
use dunlin_rpc::Certainty;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The error of a call over TCP. The next call connects again after any of them.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The client was not connected and could not connect. Not executed.
    #[error("cannot connect to {address}; is the server up?")]
    Connect {
        /// The server's address.
        address: String,
        /// The operating system's error.
        #[source]
        error: Arc<io::Error>,
    },
    /// The connection broke before any byte of the call was sent. Not executed.
    #[error("the call was not sent to {address}; it can be made again")]
    NotSent {
        /// The server's address.
        address: String,
        /// The operating system's error.
        #[source]
        error: Arc<io::Error>,
    },
    /// The connection broke before the answer arrived. May have been executed.
    #[error("the connection to {address} broke during the call, which may have been executed")]
    Broken {
        /// The server's address.
        address: String,
        /// The operating system's error.
        #[source]
        error: Arc<io::Error>,
    },
    /// The answer did not arrive in time. May have been executed.
    #[error("{address} has not answered within {after:?}; the call may have been executed, or be so still")]
    TimedOut {
        /// The server's address.
        address: String,
        /// The call's timeout.
        after: Duration,
    },
    /// The server speaks another protocol than Thrift. Not executed.
    #[error("tcp:{address}: {found}; the call was not executed")]
    WrongDoor {
        /// The server's address.
        address: String,
        /// A sentence: the kind of server that answers, and the address to use instead.
        found: String,
    },
    /// The received message does not answer the call. May have been executed.
    #[error("{address} answered what is no answer to the call ({why}): does it speak {wire:?}?")]
    Answer {
        /// The server's address.
        address: String,
        /// The reason.
        why: String,
        /// The expected transport and encoding.
        wire: Wire,
    },
}

impl TcpError {
    /// Returns whether the server could not be reached or went away, so that a later call may succeed.
    pub fn is_unavailable(&self) -> bool {
        match self {
            TcpError::Connect { .. } | TcpError::NotSent { .. } | TcpError::Broken { .. } => true,
            TcpError::TimedOut { .. } | TcpError::WrongDoor { .. } | TcpError::Answer { .. } => false,
        }
    }

    /// Returns whether the function was executed.
    pub fn certainty(&self) -> Certainty {
        match self {
            TcpError::Connect { .. } | TcpError::NotSent { .. } | TcpError::WrongDoor { .. } => {
                Certainty::NotExecuted
            }
            TcpError::Broken { .. } | TcpError::TimedOut { .. } | TcpError::Answer { .. } => {
                Certainty::MaybeExecuted
            }
        }
    }
}
