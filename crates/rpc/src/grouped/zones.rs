//! The zones of a message pool: parts of one region that lanes get by turns.
//!
//! A zone is in one of three states: free, leased, or waiting for the word of its last tenant. Only a free zone is
//! leased. An epoch in the tags cannot replace the word: two WRITEs that meet in one place can leave a message that
//! is right at both ends and wrong in the middle.

/// The most zones of a pool: a mark names a zone with one byte.
pub(crate) const MAX_ZONES: usize = 256;

/// The free zones of a pool. The zone that was given back last is leased first, because it is in the caches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Zones {
    free: Vec<u8>,
    count: usize,
}

impl Zones {
    /// Creates the state of a pool of `count` zones, at most [`MAX_ZONES`].
    pub(crate) fn new(count: usize) -> Self {
        let count = count.min(MAX_ZONES);
        Zones { free: (0..count).rev().map(|zone| zone as u8).collect(), count }
    }

    /// Takes a free zone, if there is one.
    pub(crate) fn take(&mut self) -> Option<u8> {
        self.free.pop()
    }

    /// Gives a zone back: its tenant's word has come, or its tenant's queue pair is destroyed.
    pub(crate) fn give_back(&mut self, zone: u8) {
        debug_assert!(!self.free.contains(&zone) && usize::from(zone) < self.count);
        self.free.push(zone);
    }

    /// Returns whether no zone is free.
    pub(crate) fn is_used_up(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the number of zones that are leased or wait for a word.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.count - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_one_tenant() {
        let mut zones = Zones::new(2);
        let (first, second) = (zones.take().unwrap(), zones.take().unwrap());
        assert_ne!(first, second);
        assert_eq!((zones.take(), zones.in_use()), (None, 2));
        zones.give_back(first);
        assert_eq!((zones.take(), zones.in_use()), (Some(first), 2));
        assert_eq!(Zones::new(1000).free.len(), MAX_ZONES);
    }
}
