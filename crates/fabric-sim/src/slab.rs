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

    /// Puts a value into a place.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        let (index, place) = self.take();
        *place = value;
        index
    }

    /// Gives a place back; what is in it stays for the next.
    #[inline(always)]
    pub(crate) fn give(&mut self, index: u32) {
        if self.free.len() == self.free.capacity() {
            self.make_room();
        }
        self.free.push(index);
    }

    /// Room for all places among the free ones.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        self.free.reserve(self.places.len());
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

/// Places of a block: a power of two.
const BLOCK: usize = 32;

/// Values by number, where numbers are not used again. They lie in blocks that do not move, side by side: one step to reach
/// one, and no allocation for each.
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
    /// How many numbers were given.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Puts a value into the next place.
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let number = self.count;
        if number as usize == self.blocks.len() * BLOCK {
            let places: Vec<Option<T>> = (0..BLOCK).map(|_| None).collect();
            // By way of the heap: a block may be larger than a stack.
            let block = places.into_boxed_slice().try_into();
            self.blocks.push(block.unwrap_or_else(|_| unreachable!("as many as a block has")));
        }
        self.count += 1;
        self.blocks[number as usize / BLOCK][number as usize % BLOCK] = Some(value);
        number
    }

    /// The place of a number that was given, for asking for its lines.
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

    /// Takes a value out for good.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.blocks.get_mut(number as usize / BLOCK)?[number as usize % BLOCK].take()
    }

    /// The values that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|block| block.iter()).flatten()
    }
}
