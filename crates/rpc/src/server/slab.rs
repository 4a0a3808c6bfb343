//! A table by small numbers that takes little more memory than its entries: maps take up to twice as much.

use crate::grouped::sorted::grow;

/// Entries at places from 0 on.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    /// The free places that had entries.
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Returns the number of entries that [`insert`](Slab::insert) has added and nobody has taken.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the place of the next entry.
    pub(crate) fn next_place(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }

    /// Adds an entry at the next place.
    pub(crate) fn insert(&mut self, entry: T) {
        match self.free.pop() {
            Some(place) => self.entries[place as usize] = Some(entry),
            None => {
                grow(&mut self.entries);
                self.entries.push(Some(entry));
            }
        }
    }

    /// Sets the entry of a place that another table has chosen.
    pub(crate) fn set(&mut self, place: u32, entry: T) {
        while self.entries.len() <= place as usize {
            grow(&mut self.entries);
            self.entries.push(None);
        }
        self.entries[place as usize] = Some(entry);
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.entries.get_mut(place as usize)?.as_mut()
    }

    /// Removes and returns the entry of a place, for a table whose places another one chooses.
    pub(crate) fn take(&mut self, place: u32) -> Option<T> {
        self.entries.get_mut(place as usize)?.take()
    }

    /// Removes and returns an entry; its place is free.
    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let entry = self.take(place)?;
        self.free.push(place);
        Some(entry)
    }

    /// Returns the entries by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::default();
        for entry in 0..1000 {
            assert_eq!(slab.next_place(), entry);
            slab.insert(entry);
        }
        assert!(slab.entries.capacity() <= 1032);
        assert_eq!((slab.remove(7), slab.remove(7), slab.remove(2000)), (Some(7), None, None));
        assert_eq!((slab.len(), slab.next_place()), (999, 7));
        slab.insert(70);
        assert_eq!(slab.get_mut(7), Some(&mut 70));
        assert_eq!(slab.next_place(), 1000);
        assert_eq!(slab.iter().count(), 1000);
    }
}
