//! What the two sides of a measurement say to each other, over the fabric's control connection, as JSON.

use super::RatesError;
use dunlin_fabric::{Link, Nanos};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of all this.
pub(super) const VERSION: u32 = 1;

/// The first word of both sides.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// The key of the memory that the other side may use.
    pub(super) key: u64,
    pub(super) endpoint: Vec<u8>,
}

/// What the host that is measured asks of a peer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Order {
    /// Slices of READs.
    Read { bytes: u32, window: u32, slice: Nanos, once: bool },
    /// Read the own memory, so that it is in the own cache.
    Look,
    /// It is done.
    End,
}

/// What a peer answers.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Answer {
    Done { operations: u64, nanos: u64 },
    Failed { why: String },
}

pub(super) fn send<L: Link>(link: &L, message: &impl Serialize) -> Result<(), RatesError> {
    let text = serde_json::to_vec(message).map_err(|error| RatesError::Foreign(error.to_string()))?;
    Ok(link.send(&text)?)
}

pub(super) fn receive<T: DeserializeOwned>(link: &impl Link, until: Nanos) -> Result<T, RatesError> {
    let text = link.receive(until)?;
    serde_json::from_slice(&text).map_err(|error| RatesError::Foreign(error.to_string()))
}
