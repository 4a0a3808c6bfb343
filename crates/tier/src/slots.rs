//! Values behind numbers that a process holds: a slot and its generation. The numbers of one table mean nothing to
//! another table, and a number means nothing after its value was removed.

/// A bounded table of values.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    limit: usize,
    first_generation: u32,
    count: usize,
}

impl<T> Slots<T> {
    /// Makes an empty table for `limit` values. `first_generation` should be random, so that the numbers of other
    /// tables are refused.
    pub fn new(limit: u32, first_generation: u32) -> Slots<T> {
        // The lower half leaves each slot two billion generations. No number is 0.
        let first_generation = (first_generation >> 1).max(1);
        Slots { slots: Vec::new(), free: Vec::new(), limit: limit as usize, first_generation, count: 0 }
    }

    /// Makes a table with the values that an earlier life of it had under these numbers; of two with one slot, the first
    /// counts. Numbers that are not there mean nothing, unless a slot's generation is drawn again.
    pub fn recovered(
        limit: u32,
        first_generation: u32,
        values: impl IntoIterator<Item = (u64, T)>,
    ) -> Slots<T> {
        let mut slots = Slots::new(limit, first_generation);
        for (number, value) in values {
            let (slot, generation) = ((number & 0xffff_ffff) as usize, (number >> 32) as u32);
            if slot >= slots.limit || generation == u32::MAX {
                continue;
            }
            while slots.slots.len() <= slot {
                slots.slots.push((slots.first_generation, None));
            }
            if slots.slots[slot].1.is_none() {
                slots.slots[slot] = (generation, Some(value));
                slots.count += 1;
            }
        }
        let empty = slots.slots.iter().zip(0..).filter(|((_, value), _)| value.is_none());
        slots.free = empty.map(|(_, slot)| slot).collect();
        slots
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a value and returns its number; gives the value back if the table is full.
    pub fn insert(&mut self, value: T) -> Result<u64, T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() >= self.limit => return Err(value),
            None => {
                self.slots.push((self.first_generation, None));
                (self.slots.len() - 1) as u32
            }
        };
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(value);
        self.count += 1;
        Ok(u64::from(*generation) << 32 | u64::from(slot))
    }

    /// Returns the value of a number; `None` for one that is forged, stale or of another table.
    pub fn get(&self, number: u64) -> Option<&T> {
        let (generation, value) = self.slots.get((number & 0xffff_ffff) as usize)?;
        value.as_ref().filter(|_| u64::from(*generation) == number >> 32)
    }

    /// As [`get`](Slots::get), to change the value.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (generation, value) = self.slots.get_mut((number & 0xffff_ffff) as usize)?;
        value.as_mut().filter(|_| u64::from(*generation) == number >> 32)
    }

    /// Removes the value of a number, which is invalid from here on.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let slot = (number & 0xffff_ffff) as usize;
        let (generation, value) = self.slots.get_mut(slot)?;
        if u64::from(*generation) != number >> 32 {
            return None;
        }
        let value = value.take()?;
        self.count -= 1;
        // A slot whose generations are used up is not used again.
        *generation += 1;
        if *generation < u32::MAX {
            self.free.push(slot as u32);
        }
        Some(value)
    }

    /// Returns the values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    /// Returns the values with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &T)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, (generation, value))| {
            Some((u64::from(*generation) << 32 | slot as u64, value.as_ref()?))
        })
    }

    /// Removes the values for which `leaves` is true.
    pub fn remove_all_where(&mut self, leaves: impl Fn(&T) -> bool) -> Vec<T> {
        let numbers = self.slots.iter().enumerate().filter_map(|(slot, (generation, value))| {
            let leaves = value.as_ref().is_some_and(&leaves);
            leaves.then_some(u64::from(*generation) << 32 | slot as u64)
        });
        let numbers: Vec<u64> = numbers.collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Removes all values.
    pub fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        let values = self.slots.drain(..).filter_map(|(_, value)| value).collect();
        // Nothing is added to a table after its end, so numbers cannot come again.
        (self.limit, self.count) = (0, 0);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a model: each number names its value until it is removed, and nothing afterwards.
        #[test]
        fn numbers_name_their_values_and_no_others(
            seed in any::<u32>(), limit in 0u32..6, steps in prop::collection::vec((any::<bool>(), any::<u64>()), 0..60),
        ) {
            let (mut slots, mut model) = (Slots::new(limit, seed), BTreeMap::new());
            let mut old: Vec<u64> = Vec::new();
            for (adds, draw) in steps {
                if adds {
                    match slots.insert(draw) {
                        Ok(number) => {
                            prop_assert!(number != 0 && !old.contains(&number));
                            old.push(number);
                            prop_assert_eq!(model.insert(number, draw), None);
                        }
                        Err(value) => prop_assert_eq!((value, model.len()), (draw, limit as usize)),
                    }
                } else if !old.is_empty() {
                    let number = old[draw as usize % old.len()];
                    prop_assert_eq!(slots.remove(number), model.remove(&number));
                }
                prop_assert_eq!(slots.get(draw), model.get(&draw));
                prop_assert_eq!(slots.get_mut(draw), model.get_mut(&draw));
                prop_assert_eq!(slots.len(), model.len());
                for number in &old {
                    prop_assert_eq!(slots.get(*number), model.get(number));
                }
            }
            prop_assert_eq!(slots.take_all().len(), model.len());
            prop_assert!(old.iter().all(|number| slots.get(*number).is_none()) && slots.insert(1) == Err(1));
        }
    }

    proptest! {
        /// The next life of a table has the same values, and goes on as the first.
        #[test]
        fn numbers_mean_the_same_to_the_next_life(
            seeds in any::<[u32; 2]>(), steps in prop::collection::vec(any::<bool>(), 0..20),
        ) {
            let mut slots = Slots::new(6, seeds[0]);
            let mut numbers = Vec::new();
            for adds in steps {
                match adds {
                    true => numbers.extend(slots.insert(numbers.len())),
                    false => drop(numbers.first().and_then(|number| slots.remove(*number))),
                }
            }
            let values = numbers.iter().filter_map(|number| Some((*number, *slots.get(*number)?)));
            let mut next = Slots::recovered(6, seeds[1], values.collect::<Vec<_>>());
            prop_assert_eq!(next.len(), slots.len());
            prop_assert!(numbers.iter().all(|number| next.get(*number) == slots.get(*number)));
            let room = 6 - next.len();
            prop_assert_eq!((0..9).filter(|value| next.insert(*value).is_ok()).count(), room);
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut slots = Slots::new(2, u32::MAX);
        slots.slots.push((u32::MAX - 1, None));
        slots.free.push(0);
        let number = slots.insert('a').unwrap();
        assert_eq!(slots.remove(number), Some('a'));
        assert_eq!((slots.len(), slots.get(number)), (0, None));
        let other = slots.insert('b').unwrap();
        assert_eq!(other & 0xffff_ffff, 1);
        assert_eq!(slots.len(), 1);
    }
}
