//! Records of the handshake on the control connection.

use crate::error::ConnectError;
use dunlin_fabric::{Link, Nanos};
use dunlin_wire::handshake::Record;

/// Receives the next record.
pub(crate) fn receive<L: Link>(link: &L, until: Nanos) -> Result<Record, ConnectError> {
    let message = link.receive(until)?;
    Record::decode(&message).map_err(|error| ConnectError::Handshake(error.to_string()))
}

/// Sends a record.
pub(crate) fn send<L: Link>(link: &L, record: &Record) -> Result<(), ConnectError> {
    let message = record.encode().map_err(|error| ConnectError::Handshake(error.to_string()))?;
    Ok(link.send(&message)?)
}

/// Replaces the control characters of a peer's text, so that it can be printed.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
