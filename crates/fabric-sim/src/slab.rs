//! Numbered places that are used again: what travels through the network costs no allocation each.

/// A slab. The free list is last in, first out, so the numbers are a pure function of the calls.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slab<T> {
    /// A place with what was left in it by who had it before (or the default), and its number.
    #[inline]
    pub(crate) fn take(&mut self) -> (u32, &mut T) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(T::default());
            self.places.len() as u32 - 1
        });
        (index, &mut self.places[index as usize])
    }

    /// Puts a value into a place.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        let (index, place) = self.take();
        *place = value;
        index
    }

    /// Gives a place back; what is in it stays for the next.
    #[inline]
    pub(crate) fn give(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Takes a value out and gives its place back.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        self.free.push(index);
        std::mem::take(&mut self.places[index as usize])
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.places[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.places[index as usize]
    }
}
