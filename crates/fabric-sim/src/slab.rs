//! Numbered, reusable places: packets in flight cost no allocation each.

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
    /// Takes a place, with the value that its last user left (or the default), and returns its number.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> (u32, &mut T) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        (index, &mut self.places[index as usize])
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> u32 {
        self.places.push(T::default());
        self.places.len() as u32 - 1
    }

    /// Stores a value in a place.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        let (index, place) = self.take();
        *place = value;
        index
    }

    /// Returns a place; its value remains for the next user.
    #[inline(always)]
    pub(crate) fn give(&mut self, index: u32) {
        if self.free.len() == self.free.capacity() {
            self.make_room();
        }
        self.free.push(index);
    }

    /// Reserves room for all places in the free list.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        self.free.reserve(self.places.len());
    }

    /// Takes a value out and returns its place.
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

/// Places per block: a power of two.
const BLOCK: usize = 32;

/// Values by number; numbers are not reused. Values lie contiguously in blocks that do not move: one
/// indirection per access, and no allocation per value.
#[derive(Debug)]
pub(crate) struct Places<T> {
    blocks: Vec<Box<[Option<T>; BLOCK]>>,
    count: u32,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { blocks: Vec::new(), count: 0 }
    }
}

impl<T> Places<T> {
    /// Returns how many numbers were assigned.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Stores a value in the next place.
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let number = self.count;
        if number as usize == self.blocks.len() * BLOCK {
            let places: Vec<Option<T>> = (0..BLOCK).map(|_| None).collect();
            // Built on the heap, since a block may exceed a stack.
            let block = places.into_boxed_slice().try_into();
            self.blocks.push(block.unwrap_or_else(|_| unreachable!("as many as a block has")));
        }
        self.count += 1;
        self.blocks[number as usize / BLOCK][number as usize % BLOCK] = Some(value);
        number
    }

    /// Returns the address of a place, for prefetching.
    #[inline]
    pub(crate) fn place(&self, number: u32) -> Option<*const Option<T>> {
        Some(&raw const self.blocks.get(number as usize / BLOCK)?[number as usize % BLOCK])
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.blocks.get(number as usize / BLOCK)?[number as usize % BLOCK].as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.blocks.get_mut(number as usize / BLOCK)?[number as usize % BLOCK].as_mut()
    }

    /// Removes a value permanently.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.blocks.get_mut(number as usize / BLOCK)?[number as usize % BLOCK].take()
    }

    /// Iterates over the present values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|block| block.iter()).flatten()
    }
}
