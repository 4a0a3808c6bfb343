//! The cases, by subject.

mod death;
mod errors;
mod events;
mod limits;
mod links;
mod lists;
mod many;
mod operations;
mod ordering;
mod others;
mod payloads;
mod ranges;
mod sharing;
mod signaling;

use crate::case::{Case, Need};
use dunlin_fabric::{Fabric, Transport};

const RC: Need = Need::Transport(Transport::ReliableConnection);
const UC: Need = Need::Transport(Transport::UnreliableConnection);
const UD: Need = Need::Transport(Transport::UnreliableDatagram);

/// Returns every case, including those that do not apply to a fabric.
pub fn cases<F: Fabric>() -> Vec<Case<F>> {
    let mut all = Vec::new();
    operations::add(&mut all);
    signaling::add(&mut all);
    limits::add(&mut all);
    errors::add(&mut all);
    ordering::add(&mut all);
    payloads::add(&mut all);
    lists::add(&mut all);
    ranges::add(&mut all);
    sharing::add(&mut all);
    events::add(&mut all);
    others::add(&mut all);
    death::add(&mut all);
    links::add(&mut all);
    many::add(&mut all);
    all
}
