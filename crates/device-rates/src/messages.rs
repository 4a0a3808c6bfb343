//! The messages between both sides of a measurement: JSON, over the fabric's control connection.

use crate::RatesError;
use dunlin_fabric::{Link, Nanos};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the message format.
pub(super) const VERSION: u32 = 2;

/// The first message of each side.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Key of the memory that the receiver may access.
    pub(super) key: u64,
    pub(super) endpoint: Vec<u8>,
}

/// A request from the measured host to a peer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Order {
    /// Prepare for this number of further connections.
    Reserve { count: u32 },
    /// Create another connection, to this endpoint.
    Connect { endpoint: Vec<u8> },
    /// Run a slice of READs.
    Read { bytes: u32, window: u32, slice: Nanos, once: bool },
    /// Read the local memory, to bring it into the peer's cache.
    Look,
    /// The measurement is complete.
    End,
}

/// A peer's response to an order.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Answer {
    Done {
        operations: u64,
        nanos: u64,
    },
    /// The endpoint of the other connection.
    Created {
        endpoint: Vec<u8>,
    },
    Failed {
        why: String,
    },
}

pub(super) fn send<L: Link>(link: &L, message: &impl Serialize) -> Result<(), RatesError> {
    let text = serde_json::to_vec(message).map_err(|error| RatesError::Foreign(error.to_string()))?;
    Ok(link.send(&text)?)
}

pub(super) fn receive<T: DeserializeOwned>(link: &impl Link, until: Nanos) -> Result<T, RatesError> {
    let text = link.receive(until)?;
    serde_json::from_slice(&text).map_err(|error| RatesError::Foreign(error.to_string()))
}
