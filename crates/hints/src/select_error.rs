//! The error of selecting a plan.

use crate::hints::Place;
use crate::key::{Key, Side};
use crate::value::{Sharing, Value, nearest_protocol};
use dunlin_rpc::{CompletionMode, PlanError};
use std::fmt;
use thiserror::Error;

/// A location in front of a message, if it is known.
struct At<'a>(&'a Option<Place>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "{place}: "),
            None => Ok(()),
        }
    }
}

/// A location inside a message, if it is known.
struct InBrackets<'a>(&'a Option<Place>);

impl fmt::Display for InBrackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

/// The suggestion of a name, if there is one.
struct DidYouMean(Option<&'static str>);

impl fmt::Display for DidYouMean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, "; did you mean '{name}'?"),
            None => Ok(()),
        }
    }
}

/// The error of selecting a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The protocol is not in the table.
    #[error(
        "{}there is no protocol '{name}' in this version{}: 'dunlin protocols' lists those that there are",
        At(place),
        DidYouMean(nearest_protocol(name))
    )]
    UnknownProtocol {
        /// The name.
        name: &'static str,
        /// The location of the hint.
        place: Option<Place>,
    },
    /// The fabric cannot run the requested protocol.
    #[error(
        "{}{name} cannot run on the fabric '{fabric}': {illegal}; choose another protocol, or none and leave the choice to perf_goal",
        At(place)
    )]
    IllegalProtocol {
        /// The protocol.
        name: &'static str,
        /// The location of the hint.
        place: Option<Place>,
        /// The fabric.
        fabric: &'static str,
        /// The reason.
        illegal: PlanError,
    },
    /// The requested sharing cannot run on the fabric, or is not in this version.
    #[error(
        "{}sharing = {} cannot run on the fabric '{fabric}': {illegal}; choose dedicated or combined, or none and leave the choice to the number of clients",
        At(place),
        Value::Sharing(*sharing)
    )]
    IllegalSharing {
        /// The sharing.
        sharing: Sharing,
        /// The location of the hint.
        place: Option<Place>,
        /// The fabric.
        fabric: &'static str,
        /// The reason.
        illegal: PlanError,
    },
    /// The connections of a node are requested, and the client's address is not that of one.
    #[error(
        "{}sharing = tier needs the node of the host: serve at node:SERVICE and connect to node:SERVICE, with a 'dunlin node run' on both hosts; or choose another sharing, or none",
        At(place)
    )]
    NotThroughNode {
        /// The location of the hint.
        place: Option<Place>,
    },
    /// The requested protocol and completion mode exclude each other.
    #[error(
        "{}the {side} is to wait by {mode}, which {name}{} does not allow: {illegal}; drop one of the two hints",
        At(place),
        InBrackets(protocol_place)
    )]
    ProtocolAgainstPolling {
        /// The protocol.
        name: &'static str,
        /// The location of the protocol hint.
        protocol_place: Option<Place>,
        /// The side.
        side: Side,
        /// The requested completion mode.
        mode: CompletionMode,
        /// The location of the polling hint.
        place: Option<Place>,
        /// The reason.
        illegal: PlanError,
    },
    /// Both a protocol of the fabric and TCP are requested.
    #[error(
        "{}{name} needs the fabric, but transport is tcp{}: drop one of the two hints",
        At(place),
        InBrackets(transport_place)
    )]
    ProtocolOnTcp {
        /// The protocol.
        name: &'static str,
        /// The location of the protocol hint.
        place: Option<Place>,
        /// The location of the transport hint.
        transport_place: Option<Place>,
    },
    /// The sides request different values for a property that a call has only once.
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
        /// The location of the client's hint.
        client_place: Option<Place>,
        /// The server's value.
        server: Value,
        /// The location of the server's hint.
        server_place: Option<Place>,
    },
    /// Functions of one client request different values for a property that its connections have only once.
    #[error(
        "{}{first} asks for sharing = {} and {second} for {}{}: the functions of a client use the same connections, so give the hint to the service, or the same to both",
        At(first_place),
        Value::Sharing(*first_sharing),
        Value::Sharing(*second_sharing),
        InBrackets(second_place)
    )]
    FunctionsDiffer {
        /// A function.
        first: String,
        /// Its value.
        first_sharing: Sharing,
        /// The location of its hint.
        first_place: Option<Place>,
        /// Another function of the client.
        second: String,
        /// Its value.
        second_sharing: Sharing,
        /// The location of its hint.
        second_place: Option<Place>,
    },
    /// The fabric cannot run even the simplest plan.
    #[error("no plan can run on the fabric '{fabric}': {illegal}")]
    NothingLegal {
        /// The fabric.
        fabric: &'static str,
        /// The reason why it cannot run the selected plan.
        illegal: PlanError,
    },
}

impl SelectError {
    /// Returns the keys of the hints that exclude each other; twice the same key if it is one of each side, or
    /// one hint alone.
    pub fn keys(&self) -> (Key, Key) {
        match self {
            SelectError::ProtocolOnTcp { .. } => (Key::Protocol, Key::Transport),
            SelectError::ProtocolAgainstPolling { .. } => (Key::Polling, Key::Protocol),
            SelectError::SidesDiffer { key, .. } => (*key, *key),
            SelectError::UnknownProtocol { .. } | SelectError::IllegalProtocol { .. } => {
                (Key::Protocol, Key::Protocol)
            }
            SelectError::IllegalSharing { .. }
            | SelectError::NotThroughNode { .. }
            | SelectError::FunctionsDiffer { .. } => (Key::Sharing, Key::Sharing),
            SelectError::NothingLegal { .. } => (Key::Polling, Key::Polling),
        }
    }

    /// Returns the side whose hints exclude each other; the client's if both sides are concerned.
    pub fn side(&self) -> Side {
        match self {
            SelectError::ProtocolAgainstPolling { side, .. } => *side,
            SelectError::UnknownProtocol { .. }
            | SelectError::IllegalProtocol { .. }
            | SelectError::IllegalSharing { .. }
            | SelectError::NotThroughNode { .. }
            | SelectError::ProtocolOnTcp { .. }
            | SelectError::SidesDiffer { .. }
            | SelectError::FunctionsDiffer { .. }
            | SelectError::NothingLegal { .. } => Side::Client,
        }
    }

    /// Returns the message without locations, for callers that display them separately.
    pub fn without_places(&self) -> String {
        let mut bare = self.clone();
        match &mut bare {
            SelectError::UnknownProtocol { place, .. }
            | SelectError::IllegalProtocol { place, .. }
            | SelectError::IllegalSharing { place, .. }
            | SelectError::NotThroughNode { place } => *place = None,
            SelectError::ProtocolAgainstPolling { place, protocol_place, .. } => {
                (*place, *protocol_place) = (None, None);
            }
            SelectError::ProtocolOnTcp { place, transport_place, .. } => {
                (*place, *transport_place) = (None, None)
            }
            SelectError::SidesDiffer { client_place, server_place, .. } => {
                (*client_place, *server_place) = (None, None);
            }
            SelectError::FunctionsDiffer { first_place, second_place, .. } => {
                (*first_place, *second_place) = (None, None);
            }
            SelectError::NothingLegal { .. } => {}
        }
        bare.to_string()
    }
}
