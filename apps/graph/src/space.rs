//! A memory that members share, as the engine on it sees it: words, sets of pages to write, a barrier.

use dunlin_app_memory::{Acquired, Memory, MemoryConfig, MemoryError};
use dunlin_tier_node::{AnyLists, AnyServices};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a page, by which ranges of members are cut: no page has two writers in one step.
pub(crate) const PAGE_WORDS: usize = dunlin_app_memory::PAGE / 8;

/// A memory that members share under release consistency. One thread of a member acquires and releases for all; between
/// the two its threads store words of the ranges.
pub trait Space: Send + Sync + 'static {
    /// The pages that a member holds between an acquisition and its release. Dropping it gives them back, and the stores
    /// are lost.
    type Held<'a>
    where
        Self: 'a;

    /// Returns all words.
    fn words(&self) -> &[AtomicU64];
    /// Has released words of other members ready for loads: all at once, in the place of a fault for each page.
    ///
    /// # Errors
    /// The memory fails.
    fn fetch(&self, words: Range<usize>) -> Result<(), MemoryError>;
    /// Acquires the pages of some ranges of words for stores. Blocks while another member holds one of them.
    ///
    /// # Errors
    /// The memory fails, or a page is held for too long.
    fn acquire(&self, ranges: &[Range<usize>]) -> Result<Self::Held<'_>, MemoryError>;
    /// Releases pages: all loads after this see the stores.
    ///
    /// # Errors
    /// The memory fails.
    fn release(&self, held: Self::Held<'_>, ranges: &[Range<usize>]) -> Result<(), MemoryError>;
    /// Waits for all members.
    ///
    /// # Errors
    /// A member has ended or does not come.
    fn barrier(&self) -> Result<(), MemoryError>;
}

/// LITE-DSM as a [`Space`]: its own words if it is mapped, and otherwise a copy of them, which reads and writes keep up to
/// date.
pub struct SharedSpace<T: AnyServices + AnyLists> {
    memory: Memory<T>,
    /// Empty if the memory is mapped.
    copy: Vec<AtomicU64>,
}

impl<T: AnyServices + AnyLists> SharedSpace<T> {
    /// Opens a memory as a member: blocks until all have opened it.
    ///
    /// # Errors
    /// As [`Memory::open`].
    pub fn open(tier: &T, config: &MemoryConfig) -> Result<Self, MemoryError> {
        let memory = Memory::open(tier, config)?;
        let words = if memory.words().is_some() { 0 } else { memory.size() as usize / 8 };
        Ok(SharedSpace { memory, copy: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Returns the number of pages that were read from their homes.
    pub fn fetched(&self) -> u64 {
        self.memory.counts().fetched
    }

    /// Ends the member: waits for the others, and frees its pages.
    ///
    /// # Errors
    /// As [`Memory::close`].
    pub fn close(self) -> Result<(), MemoryError> {
        self.memory.close()
    }
}

fn bytes(words: &Range<usize>) -> Range<u64> {
    words.start as u64 * 8..words.end as u64 * 8
}

impl<T: AnyServices + AnyLists> Space for SharedSpace<T> {
    type Held<'a> = Acquired<'a, T>;

    fn words(&self) -> &[AtomicU64] {
        self.memory.words().unwrap_or(&self.copy)
    }

    fn fetch(&self, words: Range<usize>) -> Result<(), MemoryError> {
        if self.copy.is_empty() {
            return self.memory.prefetch(bytes(&words));
        }
        let mut page = [0; dunlin_app_memory::PAGE];
        let mut at = words.start;
        self.memory.prefetch(bytes(&words))?;
        while at < words.end {
            let length = (words.end - at).min(PAGE_WORDS);
            let part = &mut page[..length * 8];
            self.memory.read(at as u64 * 8, part)?;
            for (word, bytes) in self.copy[at..at + length].iter().zip(part.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
            at += length;
        }
        Ok(())
    }

    fn acquire(&self, ranges: &[Range<usize>]) -> Result<Acquired<'_, T>, MemoryError> {
        let ranges: Vec<_> = ranges.iter().map(bytes).collect();
        self.memory.acquire_all(&ranges)
    }

    fn release(&self, mut held: Acquired<'_, T>, ranges: &[Range<usize>]) -> Result<(), MemoryError> {
        if !self.copy.is_empty() {
            for range in ranges {
                let words = &self.copy[range.clone()];
                let bytes: Vec<u8> =
                    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
                self.memory.write(range.start as u64 * 8, &bytes)?;
            }
        }
        held.release()
    }

    /// A job needs all of its members, where the memory goes on without those that have ended.
    fn barrier(&self) -> Result<(), MemoryError> {
        let all_live = || match self.memory.ended().first() {
            Some(home) => Err(MemoryError::HomeEnded { home: *home }),
            None => Ok(()),
        };
        all_live()?;
        self.memory.barrier()?;
        all_live()
    }
}
