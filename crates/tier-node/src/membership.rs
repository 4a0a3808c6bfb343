//! How a node learns of the others, and reports itself (LITE, SOSP 2017, section 3.3): behind the trait [`Membership`], by
//! a list that never changes ([`FixedList`]), from a directory ([`DirectoryClient`]), or from a store with transactions
//! ([`StoreMembership`]): etcd.

mod client;
#[cfg(feature = "etcd")]
mod etcd;
mod server;
mod store;

pub use client::DirectoryClient;
#[cfg(feature = "etcd")]
pub use etcd::{Etcd, EtcdConfig};
pub use server::{DirectoryConfig, DirectoryServer};
pub use store::{Entry, Put, Store, StoreConfig, StoreError, StoreMembership};

use crate::config::Peer;
use dunlin_fabric::{Address, AddressError, Nanos};
use dunlin_rpc::{CallError, ConnectError};
use dunlin_tier::membership::message::MemberRefusal;
use dunlin_tier::membership::{MembershipEvent, View};
use dunlin_tier::{Epoch, NodeId};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The reason why a node's membership was not renewed. Its calls and its memory go on meanwhile.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The directory cannot be reached.
    #[error("no connection to the directory at {address}: is 'dunlin node directory' running there?")]
    Connect {
        /// The address of the directory.
        address: Address,
        /// The engine's error.
        source: ConnectError,
    },
    /// The directory did not answer.
    #[error("the directory at {address} did not answer")]
    Call {
        /// The address of the directory.
        address: Address,
        /// The engine's error.
        source: CallError,
    },
    /// The store did not answer, or refused.
    #[error("the store of the membership cannot be used")]
    Store(#[from] StoreError),
    /// The store's record of the view cannot be understood.
    #[error(
        "the store has something else than a view at {key}: bring all nodes to the same release, or delete the key to \
         have all nodes join again"
    )]
    Record {
        /// The key.
        key: String,
    },
    /// The directory's answer cannot be understood.
    #[error("the directory's answer cannot be understood: bring node and directory to the same release")]
    Answer,
    /// The directory does not take this node.
    #[error("the directory does not take this node")]
    Refused(#[from] MemberRefusal),
    /// A node of the view has an address that is none.
    #[error("the view has a node {name} whose address is none")]
    Address {
        /// The name of the node.
        name: String,
        /// The reason.
        source: AddressError,
    },
    /// A node of the view has a number that this node has no room for.
    #[error(
        "the view has a node with the number {number}, and this node has room for {max_nodes}: raise \
         TierConfig::max_nodes"
    )]
    Room {
        /// The number.
        number: NodeId,
        /// [`TierConfig::max_nodes`](crate::TierConfig::max_nodes).
        max_nodes: u16,
    },
    /// The directory has not taken this node in time.
    #[error("the directory waits for other nodes and has not taken this one in time: try again")]
    Waiting,
}

/// The membership of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The node's number.
    pub number: NodeId,
    /// Its incarnation.
    pub incarnation: Epoch,
}

/// A source of views. Used by one thread at a time.
pub trait Membership: Send + 'static {
    /// Returns the time between two calls of [`renew`](Membership::renew), or `None` if the view never changes.
    fn period(&self) -> Option<Duration>;

    /// Reports that this node lives, or asks to make it a member; returns what has changed. Blocks until `until` at most.
    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError>;

    /// Returns the last view.
    fn view(&self) -> Arc<View>;

    /// Returns the number and the incarnation of this node, while it is a member.
    fn own(&self) -> Option<Own>;

    /// Reports that this node ends. Blocks until `until` at most.
    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError>;
}

/// A list of nodes that never changes: all are alive for ever, as far as the view says.
#[derive(Debug)]
pub struct FixedList {
    view: Arc<View>,
    own: Option<Own>,
}

impl FixedList {
    /// Makes the list for the node of that name.
    pub fn new(nodes: &[Peer], node: &str) -> FixedList {
        let view = View::fixed(nodes.iter().map(|peer| peer.identity(0)));
        let own = view.named(node).map(|own| Own { number: own.node, incarnation: own.incarnation });
        FixedList { view: Arc::new(view), own }
    }
}

impl Membership for FixedList {
    fn period(&self) -> Option<Duration> {
        None
    }

    fn renew(&mut self, _: Nanos) -> Result<MembershipEvent, MembershipError> {
        Ok(MembershipEvent::Unchanged)
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    fn own(&self) -> Option<Own> {
        self.own.clone()
    }

    fn leave(&mut self, _: Nanos) -> Result<(), MembershipError> {
        Ok(())
    }
}
