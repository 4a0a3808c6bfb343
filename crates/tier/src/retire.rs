//! The protocol that frees a region: memory is zeroed and used again only when no node can touch it any more.
//!
//! The record's node drives a [`Retirement`]. Each node that mapped the region stops: it begins no operation on
//! the region, waits for those in flight, and acknowledges. A node that does not acknowledge in time is fenced:
//! each node that stores pieces destroys the connections from it, so that its operations fail. Only then do the
//! storing nodes take the memory back. LITE notifies the mappers and waits for nobody; its paper does not say what
//! becomes of operations in flight (section 4.1).
//!
//! Two rules of the other nodes complete the protocol. A mapper that reconnects after it was fenced loses all its
//! regions on that node, and its pending map requests ([`HandleTable::lose`](crate::HandleTable::lose)). A node maps a region only over a
//! connection that it had before the record's node answered: a later fence is then noticed.

#[cfg(test)]
mod explore;

use crate::place::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A request that the driver of a [`Retirement`] sends, as often as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// Have `keeper`, another node that keeps the record, take it over as it is now, and tell its mappers. Report
    /// [`Retirement::gathered`].
    Gather {
        /// The node.
        keeper: NodeId,
    },
    /// Ask `mapper` to stop and drain. Report [`Retirement::stopped`] or [`Retirement::silent`].
    Stop {
        /// The node that mapped the region.
        mapper: NodeId,
    },
    /// Ask `store` to destroy the connections from `mapper`. Report [`Retirement::fenced`].
    Fence {
        /// The node that stores pieces.
        store: NodeId,
        /// The node to fence.
        mapper: NodeId,
    },
    /// Ask `store` to take the region's memory back. Report [`Retirement::released`].
    Release {
        /// The node that stores pieces.
        store: NodeId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Mapper {
    /// It may still have operations in flight.
    Active,
    /// It did not acknowledge; these nodes have not fenced it yet.
    Silent(BTreeSet<NodeId>),
    /// It cannot touch the region any more.
    Harmless,
}

/// The state of one free, at the node that keeps the record. Events may come in any order, and repeatedly.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retirement {
    /// Other nodes that keep the record, and have not told yet for whom they have mapped the region.
    keepers: BTreeSet<NodeId>,
    mappers: BTreeMap<NodeId, Mapper>,
    /// For each node that stores pieces: whether it has taken the memory back.
    stores: BTreeMap<NodeId, bool>,
    /// The memory is needed still.
    is_held: bool,
}

impl Retirement {
    /// Begins to free a region that `mappers` have mapped and `stores` store. No node may map the region from here
    /// on.
    pub fn new(
        mappers: impl IntoIterator<Item = NodeId>,
        stores: impl IntoIterator<Item = NodeId>,
    ) -> Retirement {
        Retirement {
            keepers: BTreeSet::new(),
            mappers: mappers.into_iter().map(|mapper| (mapper, Mapper::Active)).collect(),
            stores: stores.into_iter().map(|store| (store, false)).collect(),
            is_held: false,
        }
    }

    /// Begins to move a region away from memory that `mappers` have mapped and `stores` store: as [`new`](Retirement::new),
    /// but no memory is taken back before [`let_go`](Retirement::let_go). Between [`is_harmless`](Retirement::is_harmless)
    /// and that, its bytes do not change, and can be copied.
    pub fn held(
        mappers: impl IntoIterator<Item = NodeId>,
        stores: impl IntoIterator<Item = NodeId>,
    ) -> Retirement {
        Retirement { is_held: true, ..Retirement::new(mappers, stores) }
    }

    /// Adds other nodes that keep the record: none of them maps the region once it has told its mappers.
    pub fn among(mut self, keepers: impl IntoIterator<Item = NodeId>) -> Retirement {
        self.keepers.extend(keepers);
        self
    }

    /// `keeper` has mapped the region for these nodes, and maps it no more. Of one that is lost with its list, they are all
    /// nodes.
    pub fn gathered(&mut self, keeper: NodeId, mappers: impl IntoIterator<Item = NodeId>) {
        if self.keepers.remove(&keeper) {
            self.listed(mappers);
        }
    }

    /// Returns whether all other keepers have told their mappers, and so have the change.
    pub fn has_gathered(&self) -> bool {
        self.keepers.is_empty()
    }

    /// These nodes may have mapped the region, too.
    pub fn listed(&mut self, mappers: impl IntoIterator<Item = NodeId>) {
        for mapper in mappers {
            self.mappers.entry(mapper).or_insert(Mapper::Active);
        }
    }

    /// The bytes have their new place: the memory may be taken back once no node can touch it.
    pub fn let_go(&mut self) {
        self.is_held = false;
    }

    /// Returns the nodes that had mapped the region.
    pub fn mappers(&self) -> impl Iterator<Item = NodeId> {
        self.mappers.keys().copied()
    }

    /// Returns the requests to send now; none when the region is freed.
    pub fn commands(&self) -> Vec<Command> {
        // A mapper that has stopped could map the region again at a keeper that has not heard.
        if !self.keepers.is_empty() {
            return self.keepers.iter().map(|&keeper| Command::Gather { keeper }).collect();
        }
        let mut commands = Vec::new();
        for (&mapper, state) in &self.mappers {
            match state {
                Mapper::Active => commands.push(Command::Stop { mapper }),
                // A late acknowledgement is as good as a fence, so the mapper is asked again.
                Mapper::Silent(unfenced) => {
                    commands.push(Command::Stop { mapper });
                    commands.extend(unfenced.iter().map(|&store| Command::Fence { store, mapper }));
                }
                Mapper::Harmless => {}
            }
        }
        if self.is_harmless() && !self.is_held {
            let held = self.stores.iter().filter(|(_, released)| !**released);
            commands.extend(held.map(|(&store, _)| Command::Release { store }));
        }
        commands
    }

    /// Returns whether no node can touch the memory any more.
    pub fn is_harmless(&self) -> bool {
        self.keepers.is_empty() && self.mappers.values().all(|mapper| *mapper == Mapper::Harmless)
    }

    /// Returns whether all memory of the region was taken back.
    pub fn is_done(&self) -> bool {
        self.is_harmless() && self.stores.values().all(|released| *released)
    }

    /// Returns the nodes that the free waits for.
    pub fn waits_for(&self) -> Vec<NodeId> {
        let nodes: BTreeSet<NodeId> = self
            .commands()
            .into_iter()
            .map(|command| match command {
                Command::Gather { keeper } => keeper,
                Command::Stop { mapper } | Command::Fence { mapper, .. } => mapper,
                Command::Release { store } => store,
            })
            .collect();
        nodes.into_iter().collect()
    }

    /// `mapper` has stopped and drained.
    pub fn stopped(&mut self, mapper: NodeId) {
        if let Some(state) = self.mappers.get_mut(&mapper) {
            *state = Mapper::Harmless;
        }
    }

    /// `mapper` has not acknowledged in time, or is known to be dead: fence it. A dead process may have operations in
    /// flight too.
    pub fn silent(&mut self, mapper: NodeId) {
        if let Some(state) = self.mappers.get_mut(&mapper)
            && *state == Mapper::Active
        {
            // A node that has taken its memory back would not get here, since this mapper is active.
            *state = Mapper::Silent(self.stores.keys().copied().collect());
            self.settle(mapper);
        }
    }

    /// `store` accepts nothing more over the connections that `mapper` had.
    pub fn fenced(&mut self, store: NodeId, mapper: NodeId) {
        if let Some(Mapper::Silent(unfenced)) = self.mappers.get_mut(&mapper) {
            unfenced.remove(&store);
        }
        self.settle(mapper);
    }

    fn settle(&mut self, mapper: NodeId) {
        if let Some(state) = self.mappers.get_mut(&mapper)
            && matches!(state, Mapper::Silent(unfenced) if unfenced.is_empty())
        {
            *state = Mapper::Harmless;
        }
    }

    /// `store` has taken the region's memory back.
    pub fn released(&mut self, store: NodeId) {
        if let Some(released) = self.stores.get_mut(&store) {
            *released = true;
        }
    }

    /// `store` is known to have ended, and its memory with it. A node that merely does not answer is not lost.
    pub fn lost(&mut self, store: NodeId) {
        self.released(store);
        let mappers: Vec<NodeId> = self.mappers().collect();
        mappers.into_iter().for_each(|mapper| self.fenced(store, mapper));
        for state in self.mappers.values_mut() {
            if let Mapper::Silent(unfenced) = state {
                unfenced.remove(&store);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);
    const C: NodeId = NodeId(2);

    #[test]
    fn memory_is_taken_back_after_the_last_acknowledgement() {
        let mut free = Retirement::new([A, B], [C]);
        assert_eq!(free.commands(), [Command::Stop { mapper: A }, Command::Stop { mapper: B }]);
        free.stopped(A);
        free.stopped(A);
        free.stopped(C);
        assert_eq!(free.commands(), [Command::Stop { mapper: B }]);
        free.stopped(B);
        assert_eq!(free.commands(), [Command::Release { store: C }]);
        assert!(!free.is_done());
        free.released(C);
        assert!(free.is_done() && free.commands().is_empty());
    }

    #[test]
    fn a_silent_mapper_is_fenced_at_every_store() {
        let mut free = Retirement::new([A], [B, C]);
        free.silent(A);
        let (stop, fence) = (Command::Stop { mapper: A }, |store| Command::Fence { store, mapper: A });
        assert_eq!(free.commands(), [stop, fence(B), fence(C)]);
        assert_eq!(free.waits_for(), [A]);
        free.fenced(B, A);
        free.silent(A);
        assert_eq!(free.commands(), [stop, fence(C)], "a repeated report changes nothing");
        free.fenced(C, A);
        assert_eq!(free.commands(), [Command::Release { store: B }, Command::Release { store: C }]);
    }

    #[test]
    fn a_late_acknowledgement_replaces_the_fence() {
        let mut free = Retirement::new([A], [C]);
        free.silent(A);
        free.stopped(A);
        assert_eq!(free.commands(), [Command::Release { store: C }]);
    }

    #[test]
    fn a_lost_store_needs_no_fence_and_no_release() {
        let mut free = Retirement::new([A], [C]);
        free.silent(A);
        free.lost(C);
        assert!(free.is_done());
    }

    #[test]
    fn held_memory_is_taken_back_after_it_is_let_go() {
        let mut moved = Retirement::held([A], [B]);
        assert_eq!(moved.commands(), [Command::Stop { mapper: A }]);
        moved.stopped(A);
        assert!(moved.is_harmless() && moved.commands().is_empty() && !moved.is_done());
        moved.let_go();
        assert_eq!(moved.commands(), [Command::Release { store: B }]);
        moved.released(B);
        assert!(moved.is_done());
    }

    #[test]
    fn all_keepers_tell_their_mappers_first() {
        let mut free = Retirement::new([A], [C]).among([B]);
        assert_eq!(free.commands(), [Command::Gather { keeper: B }]);
        assert!(!free.is_harmless());
        free.gathered(B, [A, C]);
        free.gathered(B, [B]);
        assert_eq!(free.commands(), [Command::Stop { mapper: A }, Command::Stop { mapper: C }]);
        free.stopped(A);
        free.stopped(C);
        assert_eq!(free.commands(), [Command::Release { store: C }]);
    }

    #[test]
    fn a_region_without_mappers_is_released_at_once() {
        assert_eq!(Retirement::new([], [C]).commands(), [Command::Release { store: C }]);
    }
}
