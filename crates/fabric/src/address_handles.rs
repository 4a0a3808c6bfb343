//! The address handles of a domain, for back-ends. Each handle belongs to one queue pair and ends with it.

use crate::error::CreateError;
use crate::work::{AddressHandleId, QueuePairId};

/// Address handles by number; `T` is the back-end's record of a destination.
#[derive(Debug)]
pub struct AddressHandles<T>(Vec<Option<(QueuePairId, T)>>);

impl<T> Default for AddressHandles<T> {
    fn default() -> Self {
        AddressHandles(Vec::new())
    }
}

impl<T> AddressHandles<T> {
    /// Stores a queue pair's handle under the smallest free number, and returns the number.
    pub fn insert(&mut self, queue_pair: QueuePairId, handle: T) -> AddressHandleId {
        let number = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[number] = Some((queue_pair, handle));
        AddressHandleId(number as u32)
    }

    /// Returns a handle if it belongs to `queue_pair`.
    pub fn get(&self, queue_pair: QueuePairId, id: AddressHandleId) -> Option<&T> {
        let (owner, handle) = self.0.get(id.0 as usize)?.as_ref()?;
        (*owner == queue_pair).then_some(handle)
    }

    /// As [`get`](AddressHandles::get), but mutable.
    pub fn get_mut(&mut self, queue_pair: QueuePairId, id: AddressHandleId) -> Option<&mut T> {
        let (owner, handle) = self.0.get_mut(id.0 as usize)?.as_mut()?;
        (*owner == queue_pair).then_some(handle)
    }

    /// Removes a handle.
    ///
    /// # Errors
    /// No handle has that number.
    pub fn remove(&mut self, id: AddressHandleId) -> Result<(), CreateError> {
        let place = self.0.get_mut(id.0 as usize);
        place.and_then(Option::take).map(drop).ok_or(CreateError::NoSuch("address handle"))
    }

    /// Removes all handles of a queue pair.
    pub fn remove_all(&mut self, queue_pair: QueuePairId) {
        for place in &mut self.0 {
            place.take_if(|(owner, _)| *owner == queue_pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_their_queue_pairs_and_numbers_are_used_again() {
        let (one, two) = (QueuePairId(1), QueuePairId(2));
        let mut handles = AddressHandles::default();
        let [a, b, c] = [(one, 'a'), (two, 'b'), (one, 'c')].map(|(owner, name)| handles.insert(owner, name));
        assert_eq!((handles.get(one, a), handles.get(two, a)), (Some(&'a'), None));
        assert_eq!(handles.get_mut(two, b), Some(&mut 'b'));
        handles.remove(a).expect("it is there");
        assert!(handles.remove(a).is_err() && handles.remove(AddressHandleId(9)).is_err());
        assert_eq!(handles.insert(two, 'd'), a);
        handles.remove_all(two);
        assert_eq!((handles.get(two, a), handles.get(two, b), handles.get(one, c)), (None, None, Some(&'c')));
    }
}
