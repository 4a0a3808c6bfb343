//! The queue pairs of a domain by slot, for back-ends.

use crate::error::CreateError;
use crate::work::QueuePairId;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// The number of free slots from which on slots are used again.
const FREE_BEFORE_REUSE: usize = 64;

/// A back-end's queue pair, which knows its id.
pub trait Identified {
    /// Returns the id from [`QueuePairTable::reserve`].
    fn id(&self) -> QueuePairId;
}

/// Queue pairs by slot. An id is a slot (16 bits) and above it the number of times that the slot was used before, so
/// that the id of a destroyed queue pair stays unknown. The table is also the slice of its slots.
#[derive(Debug)]
pub struct QueuePairTable<T> {
    slots: Vec<Option<T>>,
    /// By slot: the upper half of the next id.
    generations: Vec<u16>,
    free: VecDeque<u16>,
}

/// Returns the slot of a queue pair.
#[inline]
#[must_use]
pub const fn slot_of(id: QueuePairId) -> usize {
    (id.0 & 0xffff) as usize
}

impl<T> Default for QueuePairTable<T> {
    fn default() -> Self {
        QueuePairTable { slots: Vec::new(), generations: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> Deref for QueuePairTable<T> {
    type Target = [Option<T>];

    #[inline]
    fn deref(&self) -> &[Option<T>] {
        &self.slots
    }
}

impl<T> DerefMut for QueuePairTable<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Option<T>] {
        &mut self.slots
    }
}

impl<T: Identified> QueuePairTable<T> {
    /// Chooses the id of a new queue pair: a new slot, or the slot that was free for the longest time, so that ids
    /// repeat as late as possible. [`insert`](QueuePairTable::insert) or [`cancel`](QueuePairTable::cancel) must follow.
    ///
    /// # Errors
    /// There are `limit` queue pairs, or 65536.
    pub fn reserve(&mut self, limit: u32) -> Result<QueuePairId, CreateError> {
        let limit = limit.min(u32::from(u16::MAX) + 1);
        let slot = if self.slots.len() < limit as usize && self.free.len() < FREE_BEFORE_REUSE {
            self.slots.push(None);
            self.generations.push(0);
            (self.slots.len() - 1) as u16
        } else {
            self.free.pop_front().ok_or(CreateError::Limit {
                what: "the number of queue pairs",
                value: u64::from(limit) + 1,
                limit: limit.into(),
            })?
        };
        Ok(QueuePairId(u32::from(self.generations[usize::from(slot)]) << 16 | u32::from(slot)))
    }

    /// Frees the slot of an id for which there will be no queue pair.
    pub fn cancel(&mut self, id: QueuePairId) {
        self.free.push_back(slot_of(id) as u16);
    }

    /// Stores a queue pair in its slot.
    pub fn insert(&mut self, queue_pair: T) {
        let slot = slot_of(queue_pair.id());
        self.slots[slot] = Some(queue_pair);
    }

    /// Returns the queue pair with this id.
    #[inline]
    pub fn find(&self, id: QueuePairId) -> Option<&T> {
        self.slots.get(slot_of(id))?.as_ref().filter(|found| found.id() == id)
    }

    /// As [`find`](QueuePairTable::find), but mutable.
    #[inline]
    pub fn find_mut(&mut self, id: QueuePairId) -> Option<&mut T> {
        self.slots.get_mut(slot_of(id))?.as_mut().filter(|found| found.id() == id)
    }

    /// Removes a queue pair and frees its slot.
    pub fn remove(&mut self, id: QueuePairId) -> Option<T> {
        let removed = self.slots.get_mut(slot_of(id))?.take_if(|found| found.id() == id)?;
        let generation = &mut self.generations[slot_of(id)];
        *generation = generation.wrapping_add(1);
        self.free.push_back(slot_of(id) as u16);
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Named(QueuePairId);

    impl Identified for Named {
        fn id(&self) -> QueuePairId {
            self.0
        }
    }

    #[test]
    fn a_full_table_refuses_and_a_free_slot_gets_a_new_id() {
        let mut table = QueuePairTable::default();
        let ids: Vec<QueuePairId> = (0..3).map(|_| table.reserve(3).expect("a slot")).collect();
        ids.iter().for_each(|id| table.insert(Named(*id)));
        let refused = table.reserve(3);
        assert!(matches!(refused, Err(CreateError::Limit { value: 4, limit: 3, .. })), "{refused:?}");
        assert_eq!(table.remove(ids[1]).map(|gone| gone.0), Some(ids[1]));
        assert!(table.remove(ids[1]).is_none() && table.find(ids[1]).is_none());
        let again = table.reserve(3).expect("the free slot");
        assert_eq!((slot_of(again), again == ids[1]), (1, false));
        table.cancel(again);
        assert_eq!(table.reserve(3).ok(), Some(again));
    }

    proptest! {
        /// Against a list of the ids in use: an id is found while its queue pair exists, and no id comes twice.
        #[test]
        fn ids_name_what_they_were_given_for(acts in prop::collection::vec(any::<(bool, u16)>(), 0..600)) {
            let (mut table, mut live, mut given) = (QueuePairTable::default(), Vec::new(), Vec::new());
            for (create, which) in acts {
                if create || live.is_empty() {
                    if let Ok(id) = table.reserve(100) {
                        prop_assert!(!given.contains(&id));
                        table.insert(Named(id));
                        live.push(id);
                        given.push(id);
                    } else {
                        prop_assert_eq!(live.len(), 100);
                    }
                } else {
                    let id = live.swap_remove(usize::from(which) % live.len());
                    prop_assert_eq!(table.remove(id).map(|gone| gone.0), Some(id));
                }
            }
            for id in given {
                let found = table.find(id).map(|found| found.0);
                prop_assert_eq!(found, live.contains(&id).then_some(id));
                prop_assert_eq!(table.find_mut(id).is_some(), found.is_some());
            }
        }
    }
}
