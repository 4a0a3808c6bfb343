//! The keeper: one thread of a node that zeroes released memory, tells other nodes of closed handles, and ends frees
//! that take long.

use crate::free::Free;
use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_tier::LmrId;
use dunlin_tier::message::Request;
use std::sync::Arc;

/// The pause between two attempts to end a free, in nanoseconds.
const TRY_EVERY: Nanos = 100_000_000;
/// The time of one attempt to end a free, in nanoseconds.
const ATTEMPT: Nanos = 5_000_000;

/// The work that is left to the keeper.
#[derive(Debug, Default)]
pub(crate) struct Todo {
    /// Regions of which one handle each was closed.
    pub(crate) unmapped: Vec<LmrId>,
    pub(crate) frees: Vec<Free>,
}

/// Runs until the node ends.
pub(crate) fn run<F: Fabric>(node: &Arc<Node<F>>) {
    let host = node.fabric.host();
    let mut frees: Vec<Free> = Vec::new();
    while !node.is_over() {
        let seen = node.keeper.seen();
        let Todo { unmapped, frees: more } = std::mem::take(&mut *node.todo());
        frees.extend(more);
        for id in unmapped {
            // A node that cannot be told keeps this node on its list of mappers: a free asks this node, then.
            let told = node.ask(id.node, Request::Unmap { id, mapper: node.me }, node.until());
            if let Err(error) = told {
                tracing::debug!(target: "dunlin::tier", %error, "a closed handle could not be reported");
            }
        }
        frees.retain_mut(|free| {
            let until = host.now().saturating_add(ATTEMPT);
            !node.is_over() && !node.drive(free, until)
        });
        let settles = node.state().settle(host.now());
        while !node.is_over() && node.clean_one() {}
        let retry = if frees.is_empty() { Nanos::MAX } else { host.now().saturating_add(TRY_EVERY) };
        let until = settles.unwrap_or(Nanos::MAX).min(retry);
        node.keeper.wait(seen, until);
    }
}
