//! The calls of a lane whose results are to be fetched, oldest first: a doubly linked list through the slots
//! of the window. Each operation takes a few loads and stores, and memory is proportional to the window.

use dunlin_fabric::Nanos;

/// The null link.
const NONE: u16 = u16::MAX;

/// A sent call: the only data that is touched where results are written back.
#[derive(Clone, Copy, Debug)]
struct Slot {
    function: u16,
    /// Calls of the message if this call is its first; 0 for another call of a batch.
    calls: u16,
    /// The result is still to be fetched: the call is in the list.
    awaited: bool,
}

/// The fetch state and list links of a call.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Time of the request in nanoseconds; 0 if the clock was not read.
    since: Nanos,
    /// The first READ of this call is sent earlier than that of other calls of its function.
    early: bool,
    before: u16,
    after: u16,
}

/// The calls of a lane, with a list of those whose results are awaited.
#[derive(Debug)]
pub(crate) struct Awaited {
    slots: Box<[Slot]>,
    places: Box<[Place]>,
    first: u16,
    last: u16,
}

impl Awaited {
    /// Creates the table for slots below `window`.
    pub(crate) fn new(window: u16) -> Self {
        let none = Slot { function: 0, calls: 1, awaited: false };
        let nowhere = Place { since: 0, early: false, before: NONE, after: NONE };
        let window = window as usize;
        Awaited {
            slots: vec![none; window].into(),
            places: vec![nowhere; window].into(),
            first: NONE,
            last: NONE,
        }
    }

    /// Records a new call in a slot, in place of any earlier call.
    #[inline]
    pub(crate) fn note(&mut self, slot: usize, function: u16, awaited: bool) {
        self.take(slot);
        let Some(of) = self.slots.get_mut(slot) else { return };
        *of = Slot { function, calls: 1, awaited };
        if awaited {
            self.append(slot);
        }
    }

    fn append(&mut self, slot: usize) {
        let last = self.last;
        let Some(place) = self.places.get_mut(slot) else { return };
        *place = Place { since: 0, early: false, before: last, after: NONE };
        match self.places.get_mut(last as usize) {
            Some(last) => last.after = slot as u16,
            None => self.first = slot as u16,
        }
        self.last = slot as u16;
    }

    /// Returns the function of the call in a slot; 0 for an unused slot.
    #[inline]
    pub(crate) fn function(&self, slot: usize) -> u16 {
        self.slots.get(slot).map_or(0, |slot| slot.function)
    }

    /// Returns the number of calls in the message whose first call is in `slot`; 0 if the slot holds a later
    /// call of a batch.
    #[inline]
    pub(crate) fn calls(&self, slot: usize) -> u16 {
        self.slots.get(slot).map_or(1, |slot| slot.calls)
    }

    /// Records that the call in a slot is the first of a message of `calls` calls; 0 marks a later call of a
    /// batch.
    #[inline]
    pub(crate) fn together(&mut self, slot: usize, calls: u16) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.calls = calls;
        }
    }

    /// Records the time at which the call in a slot was sent.
    #[inline]
    pub(crate) fn sent_at(&mut self, slot: usize, now: Nanos, early: bool) {
        if let Some(place) = self.places.get_mut(slot) {
            (place.since, place.early) = (now, early);
        }
    }

    /// Returns whether the first READ of the call in a slot is sent earlier than that of other calls of its
    /// function.
    #[inline]
    pub(crate) fn is_early(&self, slot: usize) -> bool {
        self.places.get(slot).is_some_and(|place| place.early)
    }

    /// Returns the time at which the call in a slot was sent; 0 if the clock was not read.
    #[inline]
    pub(crate) fn since(&self, slot: usize) -> Nanos {
        self.places.get(slot).map_or(0, |place| place.since)
    }

    /// Returns the slot of the oldest awaited call.
    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        (self.first != NONE).then_some(self.first.into())
    }

    /// Removes a call from the list; returns whether it was there.
    #[inline]
    pub(crate) fn take(&mut self, slot: usize) -> bool {
        let Some(of) = self.slots.get_mut(slot) else { return false };
        let awaited = std::mem::take(&mut of.awaited);
        if awaited {
            self.unlink(slot);
        }
        awaited
    }

    fn unlink(&mut self, slot: usize) {
        let Some(Place { before, after, .. }) = self.places.get(slot).copied() else { return };
        match self.places.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => self.first = after,
        }
        match self.places.get_mut(after as usize) {
            Some(after) => after.before = before,
            None => self.last = before,
        }
    }

    /// Empties the list.
    pub(crate) fn clear(&mut self) {
        while let Some(slot) = self.first() {
            self.take(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The list behaves like a plain queue.
        #[test]
        fn it_is_a_queue_of_which_any_can_be_taken(
            steps in prop::collection::vec((0usize..9, any::<u16>(), 0u8..4), 0..200),
        ) {
            let mut awaited = Awaited::new(8);
            let mut model: Vec<usize> = Vec::new();
            for (slot, function, what) in steps {
                match what {
                    0 | 1 if slot < 8 => {
                        awaited.note(slot, function, what == 1);
                        model.retain(|other| *other != slot);
                        prop_assert_eq!(awaited.function(slot), function);
                        if what == 1 {
                            model.push(slot);
                        }
                    }
                    2 => {
                        prop_assert_eq!(awaited.take(slot), model.contains(&slot));
                        model.retain(|other| *other != slot);
                    }
                    3 if function % 8 == 0 => {
                        awaited.clear();
                        model.clear();
                    }
                    // Slots outside the window hold nothing.
                    _ => awaited.note(8, function, true),
                }
                prop_assert_eq!(awaited.first(), model.first().copied());
            }
        }
    }
}
