//! Why hints have no plan.

use crate::hints::Place;
use crate::key::{Key, Side};
use crate::value::Value;
use dunlin_rpc::{CompletionMode, Illegal};
use std::fmt;
use thiserror::Error;

/// A place before a message, if it is known.
struct At<'a>(&'a Option<Place>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "{place}: "),
            None => Ok(()),
        }
    }
}

/// A place in the middle of a message, if it is known.
struct InBrackets<'a>(&'a Option<Place>);

impl fmt::Display for InBrackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

/// Why hints have no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// The table has no such protocol.
    #[error(
        "{}there is no protocol '{name}' in this version: 'dunlin protocols' lists those that there are",
        At(place)
    )]
    UnknownProtocol {
        /// The name.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
    },
    /// The fabric cannot run the protocol that was asked for.
    #[error(
        "{}{name} cannot run on the fabric '{fabric}': {illegal}; choose another protocol, or none and leave the choice to perf_goal",
        At(place)
    )]
    IllegalProtocol {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
        /// The fabric.
        fabric: &'static str,
        /// Why not.
        illegal: Illegal,
    },
    /// The protocol and the way to wait that were asked for exclude each other.
    #[error(
        "{}the {side} is to wait by {mode}, which {name}{} does not allow: {illegal}; drop one of the two hints",
        At(place),
        InBrackets(protocol_place)
    )]
    ProtocolAgainstPolling {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        protocol_place: Option<Place>,
        /// The side.
        side: Side,
        /// How it is to wait.
        mode: CompletionMode,
        /// Where that was asked for.
        place: Option<Place>,
        /// Why not.
        illegal: Illegal,
    },
    /// A protocol of the fabric is asked for, and TCP.
    #[error(
        "{}{name} needs the fabric, but transport is tcp{}: drop one of the two hints",
        At(place),
        InBrackets(transport_place)
    )]
    ProtocolOnTcp {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
        /// Where TCP was asked for.
        transport_place: Option<Place>,
    },
    /// The sides ask for different things of which a call can have only one.
    #[error(
        "{}the client asks for {key} = {client} and the server for {server}{}: a call has one {key}, so let both ask for the same",
        At(client_place),
        InBrackets(server_place)
    )]
    SidesDiffer {
        /// The key.
        key: Key,
        /// The client's value.
        client: Value,
        /// Where it stands.
        client_place: Option<Place>,
        /// The server's value.
        server: Value,
        /// Where it stands.
        server_place: Option<Place>,
    },
    /// Not even the simplest plan runs on the fabric.
    #[error("no plan can run on the fabric '{fabric}': {illegal}")]
    NothingLegal {
        /// The fabric.
        fabric: &'static str,
        /// Why the chosen plan cannot.
        illegal: Illegal,
    },
}

impl SelectError {
    /// The message without the places, for who shows them otherwise.
    pub fn without_places(&self) -> String {
        let mut bare = self.clone();
        match &mut bare {
            SelectError::UnknownProtocol { place, .. } | SelectError::IllegalProtocol { place, .. } => {
                *place = None
            }
            SelectError::ProtocolAgainstPolling { place, protocol_place, .. } => {
                (*place, *protocol_place) = (None, None);
            }
            SelectError::ProtocolOnTcp { place, transport_place, .. } => {
                (*place, *transport_place) = (None, None)
            }
            SelectError::SidesDiffer { client_place, server_place, .. } => {
                (*client_place, *server_place) = (None, None);
            }
            SelectError::NothingLegal { .. } => {}
        }
        bare.to_string()
    }
}
