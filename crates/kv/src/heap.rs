//! The value memory of a partition: one block, divided into pages, slabs and chunks, with eviction.
//!
//! * An item (header, key, value) of up to 8 KiB takes a chunk of a slab (four pages) of its size class; a
//!   larger item takes a run of consecutive pages. Items are never moved or split, so a value is always one
//!   slice.
//! * When no memory is free, an item of a size class that has slabs replaces another item of the class,
//!   chosen by a clock with a second chance for items used since the last pass. Once per slab's worth of such
//!   evictions the class also takes over the memory at a hand that rotates over all pages, if that memory
//!   belongs to another class or a large item: so memory follows a change of the sizes in use.
//! * A large item evicts all items in the next window of pages at that hand. The hand skips large items that
//!   were read since its last pass, a bounded number of times.

use crate::memory;
use crate::page_map::PageMap;
use crate::size_class::{CHUNK_BYTES, Footprint, PAGE_BYTES, SLAB_PAGES, chunk_bytes, chunks_per_slab};

/// Bytes in front of every item's key.
pub(crate) const HEADER_BYTES: usize = 8;
/// Unit of a [`Location`].
const UNIT_BYTES: usize = 16;
const UNITS_PER_PAGE: usize = PAGE_BYTES / UNIT_BYTES;
/// Most pages that locations can address: 64 GiB.
pub(crate) const MAX_PAGES: usize = u32::MAX as usize / UNITS_PER_PAGE;
/// Recently read large items that the page hand skips before it evicts one.
const MAX_SECOND_CHANCES: usize = 8;
/// Items that a class's clock examines before it evicts one even if it was read recently.
const CLOCK_LOOKS: u32 = 256;
const CLASSES: usize = CHUNK_BYTES.len();
const NO_SLAB: u32 = u32::MAX;
const NO_CHUNK: u16 = u16::MAX;

/// The place of an item in the value memory, in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(pub(crate) u32);

impl Location {
    #[inline]
    fn offset(self) -> usize {
        self.0 as usize * UNIT_BYTES
    }

    fn page(self) -> usize {
        self.0 as usize / UNITS_PER_PAGE
    }

    fn from_offset(offset: usize) -> Self {
        Self((offset / UNIT_BYTES) as u32)
    }
}

/// The 8 bytes in front of a key: value length (32 bits), key length (8), flags (8), next free chunk (16).
#[derive(Clone, Copy)]
struct Header(u64);

impl Header {
    const USED: u64 = 1 << 40;
    const REFERENCED: u64 = 1 << 41;

    fn item(key: &[u8], value: &[u8]) -> Self {
        Self(value.len() as u64 | (key.len() as u64) << 32 | Self::USED)
    }

    fn free(next: u16) -> Self {
        Self(u64::from(next) << 48)
    }

    #[inline]
    fn value_length(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    fn key_length(self) -> usize {
        usize::from((self.0 >> 32) as u8)
    }

    fn next_free(self) -> u16 {
        (self.0 >> 48) as u16
    }

    fn is_used(self) -> bool {
        self.0 & Self::USED != 0
    }

    #[inline]
    fn is_referenced(self) -> bool {
        self.0 & Self::REFERENCED != 0
    }
}

/// A slab's state, stored with its first page.
#[derive(Clone, Copy)]
struct Slab {
    /// Neighbours in the class's list, in which slabs with free chunks precede full ones.
    next: u32,
    previous: u32,
    /// Offset of the first free chunk in units of 16 bytes within the slab.
    free: u16,
    /// Chunks that were allocated at least once; the memory behind them was never written as chunks.
    carved: u16,
    used: u16,
    /// The chunk that the clock examines next.
    hand: u16,
    class: u8,
}

impl Slab {
    fn has_room(&self) -> bool {
        self.used < chunks_per_slab(self.class)
    }
}

/// The state of a page.
#[derive(Clone, Copy)]
enum Page {
    Free,
    /// A later page of the slab or run that starts at the given page.
    Interior(u32),
    /// First page of a large item of this many pages.
    Run(u32),
    /// First page of a slab.
    Slab(Slab),
}

#[derive(Clone, Copy)]
struct Class {
    first: u32,
    last: u32,
    /// The slab that the clock examines; with `NO_SLAB` it starts over at the first slab of the list.
    clock: u32,
    /// Evictions within the class since it last took memory from others.
    evictions: u32,
}

/// An evicted item, which must leave the index.
pub(crate) struct Victim<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value_length: usize,
    pub(crate) location: Location,
}

/// The value memory.
pub(crate) struct Heap {
    bytes: Vec<u8>,
    /// Offset of the first byte that starts a cache line.
    start: usize,
    map: PageMap,
    /// State of each page that has ever been taken; grows within its reserved capacity.
    pages: Vec<Page>,
    classes: [Class; CLASSES],
    /// The next page of the hand that rotates over all pages.
    hand: usize,
}

/// Bytes to allocate in addition to the pages, so that they can start on a cache line.
pub(crate) const ALIGNMENT_SLACK: usize = 64;
/// Bytes of page state per page.
pub(crate) const PAGE_STATE_BYTES: usize = size_of::<Page>();

/// The memory of a heap, allocated by the caller, zeroed and untouched.
pub(crate) struct HeapMemory {
    /// `pages * PAGE_BYTES + ALIGNMENT_SLACK` zeroes.
    pub(crate) bytes: Vec<u8>,
    /// `PageMap::words_for(pages)` zeroes.
    pub(crate) map: Vec<u64>,
}

impl Heap {
    /// Creates a heap of `pages` pages. The error is the number of bytes of a page table that cannot be
    /// allocated.
    pub(crate) fn new(memory: HeapMemory, pages: usize) -> Result<Self, usize> {
        assert!((SLAB_PAGES..=MAX_PAGES).contains(&pages));
        assert_eq!(memory.bytes.len(), pages * PAGE_BYTES + ALIGNMENT_SLACK);
        let mut table = Vec::new();
        table.try_reserve_exact(pages).map_err(|_| pages * PAGE_STATE_BYTES)?;
        let misaligned = memory.bytes.as_ptr().addr() % ALIGNMENT_SLACK;
        Ok(Self {
            start: (ALIGNMENT_SLACK - misaligned) % ALIGNMENT_SLACK,
            bytes: memory.bytes,
            map: PageMap::new(memory.map, pages),
            pages: table,
            classes: [Class { first: NO_SLAB, last: NO_SLAB, clock: NO_SLAB, evictions: 0 }; CLASSES],
            hand: 0,
        })
    }

    /// Returns the bytes of all pages.
    pub(crate) fn capacity(&self) -> usize {
        self.map.pages() * PAGE_BYTES
    }

    /// Returns the bytes of the pages that hold items.
    pub(crate) fn taken_bytes(&self) -> usize {
        self.map.taken_pages() * PAGE_BYTES
    }

    /// Returns whether the heap is large enough for an item of this footprint.
    pub(crate) fn can_ever_hold(&self, footprint: Footprint) -> bool {
        footprint.pages() <= self.map.pages()
    }

    #[inline]
    fn header(&self, location: Location) -> Header {
        let at = self.start + location.offset();
        let bytes: [u8; HEADER_BYTES] =
            *self.bytes[at..].first_chunk().expect("locations lie within the heap");
        Header(u64::from_le_bytes(bytes))
    }

    #[inline]
    fn set_header(&mut self, location: Location, header: Header) {
        let at = self.start + location.offset();
        self.bytes[at..at + HEADER_BYTES].copy_from_slice(&header.0.to_le_bytes());
    }

    /// Prefetches the beginning of the item at `location`.
    #[inline]
    pub(crate) fn prefetch(&self, location: Location) {
        memory::prefetch(&self.bytes[self.start + location.offset()]);
    }

    /// Returns the place of the value, for [`Heap::value`], if the item at `location` has this key.
    #[inline]
    pub(crate) fn find(&self, location: Location, key: &[u8]) -> Option<ValuePlace> {
        let header = self.header(location);
        if header.key_length() != key.len() {
            return None;
        }
        let at = self.start + location.offset() + HEADER_BYTES;
        (self.bytes[at..at + key.len()] == *key)
            .then(|| ValuePlace { offset: at + key.len(), length: header.value_length() })
    }

    /// Returns the value at a place.
    #[inline]
    pub(crate) fn value(&self, place: ValuePlace) -> &[u8] {
        &self.bytes[place.offset..place.offset + place.length]
    }

    /// Marks an item as read, for the eviction clocks.
    #[inline]
    pub(crate) fn mark_referenced(&mut self, location: Location) {
        let header = self.header(location);
        if !header.is_referenced() {
            self.set_header(location, Header(header.0 | Header::REFERENCED));
        }
    }

    /// Returns the key and the value length of the item at `location`.
    pub(crate) fn item(&self, location: Location) -> (&[u8], usize) {
        let header = self.header(location);
        let at = self.start + location.offset() + HEADER_BYTES;
        (&self.bytes[at..at + header.key_length()], header.value_length())
    }

    /// Returns the footprint of the item at `location`.
    pub(crate) fn footprint(&self, location: Location) -> Footprint {
        let (key, value_length) = self.item(location);
        Footprint::of(HEADER_BYTES + key.len() + value_length)
    }

    /// Writes an item into memory of its footprint.
    #[inline]
    pub(crate) fn write(&mut self, location: Location, key: &[u8], value: &[u8]) {
        self.set_header(location, Header::item(key, value));
        let at = self.start + location.offset() + HEADER_BYTES;
        let (to_key, to_value) = self.bytes[at..at + key.len() + value.len()].split_at_mut(key.len());
        to_key.copy_from_slice(key);
        to_value.copy_from_slice(value);
    }

    /// Allocates memory for an item of `footprint`, which [`Heap::can_ever_hold`] must have accepted. Calls
    /// `evict` for every item that is evicted, before its memory is reused.
    pub(crate) fn allocate(&mut self, footprint: Footprint, mut evict: impl FnMut(Victim<'_>)) -> Location {
        match footprint {
            Footprint::Chunk(class) => self.allocate_chunk(class, &mut evict),
            Footprint::Run(pages) => {
                let length = pages as usize;
                let start = match self.map.find(length) {
                    Some(start) => start,
                    None => {
                        self.give_second_chances();
                        self.make_room(length, &mut evict)
                    }
                };
                self.take_pages(start, length, Page::Run(pages));
                Location::from_offset(start * PAGE_BYTES)
            }
        }
    }

    /// Frees the memory of an item.
    pub(crate) fn release(&mut self, location: Location) {
        let head = self.head_of(location.page());
        match self.pages[head] {
            Page::Run(pages) => self.free_pages(head, pages as usize),
            Page::Slab(slab) => {
                let was_full = !slab.has_room();
                self.set_header(location, Header::free(slab.free));
                let slab = self.slab_mut(head);
                slab.free = (location.0 as usize - head * UNITS_PER_PAGE) as u16;
                slab.used -= 1;
                if slab.used == 0 {
                    self.free_slab(head);
                } else if was_full {
                    self.unlink(head);
                    self.link_first(head);
                }
            }
            Page::Free | Page::Interior(_) => unreachable!("an item lies in a slab or a run"),
        }
    }

    fn allocate_chunk(&mut self, class: u8, evict: &mut impl FnMut(Victim<'_>)) -> Location {
        loop {
            let first = self.classes[usize::from(class)].first;
            if first != NO_SLAB && self.slab(first as usize).has_room() {
                return self.take_chunk(first as usize);
            }
            let start = match self.map.find(SLAB_PAGES) {
                Some(start) => start,
                None => {
                    let evictions = self.classes[usize::from(class)].evictions;
                    let due = evictions >= u32::from(chunks_per_slab(class));
                    if first != NO_SLAB && !(due && self.hand_is_elsewhere(class)) {
                        self.evict_within(class, evict);
                        continue;
                    }
                    self.classes[usize::from(class)].evictions = 0;
                    self.make_room(SLAB_PAGES, evict)
                }
            };
            let slab =
                Slab { next: NO_SLAB, previous: NO_SLAB, free: NO_CHUNK, carved: 0, used: 0, hand: 0, class };
            self.take_pages(start, SLAB_PAGES, Page::Slab(slab));
            self.link_first(start);
        }
    }

    fn take_chunk(&mut self, head: usize) -> Location {
        let base = head * UNITS_PER_PAGE;
        let slab = *self.slab(head);
        let unit = if slab.free == NO_CHUNK {
            let unit = usize::from(slab.carved) * chunk_bytes(slab.class) / UNIT_BYTES;
            self.slab_mut(head).carved += 1;
            unit
        } else {
            let unit = usize::from(slab.free);
            let next = self.header(Location((base + unit) as u32)).next_free();
            self.slab_mut(head).free = next;
            unit
        };
        let slab = self.slab_mut(head);
        slab.used += 1;
        if !slab.has_room() {
            self.unlink(head);
            self.link_last(head);
        }
        Location((base + unit) as u32)
    }

    /// Returns whether the rotating hand points to memory outside `class`; otherwise moves the hand past that
    /// memory.
    fn hand_is_elsewhere(&mut self, class: u8) -> bool {
        // Free runs too short for a slab belong to no class; the class has a slab, so the search ends.
        while !self.map.is_taken(self.hand) {
            self.hand = (self.hand + 1) % self.map.pages();
        }
        let head = self.head_of(self.hand);
        match self.pages[head] {
            Page::Slab(slab) if slab.class == class => {
                self.hand = (head + SLAB_PAGES) % self.map.pages();
                self.classes[usize::from(class)].evictions = 0;
                false
            }
            _ => true,
        }
    }

    /// Evicts one item of a class whose slabs are all full, by the clock.
    ///
    /// The hand visits one slab after the other. It skips a bounded number of items, and then evicts the next
    /// one even if it was read recently.
    fn evict_within(&mut self, class: u8, evict: &mut impl FnMut(Victim<'_>)) {
        let chunks = chunks_per_slab(class);
        for looks_left in (0..CLOCK_LOOKS).rev() {
            let list = &mut self.classes[usize::from(class)];
            if list.clock == NO_SLAB {
                list.clock = list.first;
            }
            let head = list.clock as usize;
            let chunk = self.slab(head).hand;
            self.slab_mut(head).hand = (chunk + 1) % chunks;
            if chunk + 1 == chunks {
                self.classes[usize::from(class)].clock = NO_SLAB;
                self.unlink(head);
                self.link_last(head);
            }
            let offset = head * PAGE_BYTES + usize::from(chunk) * chunk_bytes(class);
            let location = Location::from_offset(offset);
            let header = self.header(location);
            if header.is_referenced() && looks_left > 0 {
                self.set_header(location, Header(header.0 & !Header::REFERENCED));
                continue;
            }
            self.classes[usize::from(class)].evictions += 1;
            self.report(location, evict);
            self.release(location);
            return;
        }
    }

    fn report(&self, location: Location, evict: &mut impl FnMut(Victim<'_>)) {
        let (key, value_length) = self.item(location);
        evict(Victim { key, value_length, location });
    }

    /// Moves the hand past large items that were read since its last pass.
    fn give_second_chances(&mut self) {
        for _ in 0..MAX_SECOND_CHANCES {
            if !self.map.is_taken(self.hand) {
                return;
            }
            let head = self.head_of(self.hand);
            let Page::Run(pages) = self.pages[head] else { return };
            let location = Location::from_offset(head * PAGE_BYTES);
            let header = self.header(location);
            if !header.is_referenced() {
                return;
            }
            self.set_header(location, Header(header.0 & !Header::REFERENCED));
            self.hand = (head + pages as usize) % self.map.pages();
        }
    }

    /// Evicts all items in the next window of `length` pages at the hand; returns the window's first page.
    fn make_room(&mut self, length: usize, evict: &mut impl FnMut(Victim<'_>)) -> usize {
        let mut start = self.hand;
        if self.map.is_taken(start) {
            start = self.head_of(start);
        }
        if start + length > self.map.pages() {
            start = 0;
        }
        for page in start..start + length {
            if self.map.is_taken(page) {
                let head = self.head_of(page);
                self.evict_owner(head, evict);
            }
        }
        self.hand = (start + length) % self.map.pages();
        start
    }

    /// Evicts the slab or run that starts at page `head`.
    fn evict_owner(&mut self, head: usize, evict: &mut impl FnMut(Victim<'_>)) {
        match self.pages[head] {
            Page::Run(pages) => {
                self.report(Location::from_offset(head * PAGE_BYTES), evict);
                self.free_pages(head, pages as usize);
            }
            Page::Slab(slab) => {
                for chunk in 0..usize::from(slab.carved) {
                    let location = Location::from_offset(head * PAGE_BYTES + chunk * chunk_bytes(slab.class));
                    if self.header(location).is_used() {
                        self.report(location, evict);
                    }
                }
                self.free_slab(head);
            }
            Page::Free | Page::Interior(_) => unreachable!("the first page of a taken run or slab"),
        }
    }

    /// Returns the first page of the slab or run to which the taken page belongs.
    fn head_of(&self, page: usize) -> usize {
        match self.pages[page] {
            Page::Interior(head) => head as usize,
            Page::Free | Page::Run(_) | Page::Slab(_) => page,
        }
    }

    fn take_pages(&mut self, start: usize, length: usize, head: Page) {
        self.map.take(start, length);
        if self.pages.len() < start + length {
            // Within the reserved capacity: the page table grows as memory is first used.
            self.pages.resize(start + length, Page::Free);
        }
        self.pages[start] = head;
        self.pages[start + 1..start + length].fill(Page::Interior(start as u32));
    }

    fn free_pages(&mut self, start: usize, length: usize) {
        self.map.release(start, length);
        self.pages[start..start + length].fill(Page::Free);
    }

    fn free_slab(&mut self, head: usize) {
        let class = usize::from(self.slab(head).class);
        let class = &mut self.classes[class];
        if class.clock == head as u32 {
            class.clock = NO_SLAB;
        }
        self.unlink(head);
        self.free_pages(head, SLAB_PAGES);
    }

    fn slab(&self, head: usize) -> &Slab {
        match &self.pages[head] {
            Page::Slab(slab) => slab,
            _ => unreachable!("a class lists slabs only"),
        }
    }

    fn slab_mut(&mut self, head: usize) -> &mut Slab {
        match &mut self.pages[head] {
            Page::Slab(slab) => slab,
            _ => unreachable!("a class lists slabs only"),
        }
    }

    fn unlink(&mut self, head: usize) {
        let Slab { next, previous, class, .. } = *self.slab(head);
        let class = usize::from(class);
        match previous {
            NO_SLAB => self.classes[class].first = next,
            _ => self.slab_mut(previous as usize).next = next,
        }
        match next {
            NO_SLAB => self.classes[class].last = previous,
            _ => self.slab_mut(next as usize).previous = previous,
        }
    }

    fn link_first(&mut self, head: usize) {
        let class = usize::from(self.slab(head).class);
        let next = self.classes[class].first;
        let slab = self.slab_mut(head);
        (slab.previous, slab.next) = (NO_SLAB, next);
        match next {
            NO_SLAB => self.classes[class].last = head as u32,
            _ => self.slab_mut(next as usize).previous = head as u32,
        }
        self.classes[class].first = head as u32;
    }

    fn link_last(&mut self, head: usize) {
        let class = usize::from(self.slab(head).class);
        let previous = self.classes[class].last;
        let slab = self.slab_mut(head);
        (slab.previous, slab.next) = (previous, NO_SLAB);
        match previous {
            NO_SLAB => self.classes[class].first = head as u32,
            _ => self.slab_mut(previous as usize).next = head as u32,
        }
        self.classes[class].last = head as u32;
    }
}

/// The place of a value in the heap's memory; valid until the next write to the heap.
#[derive(Clone, Copy)]
pub(crate) struct ValuePlace {
    offset: usize,
    length: usize,
}

#[cfg(test)]
mod tests;
