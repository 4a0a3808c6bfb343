//! Allocation map of the value memory's pages: a bitmap with first-fit search for consecutive free pages.

/// The bitmap. Zeroed memory means that every page is free.
pub(crate) struct PageMap {
    taken: Vec<u64>,
    pages: usize,
    free: usize,
    /// No page below this one is free.
    lowest_free: usize,
    /// No free run of this length exists until pages are freed, so that a full memory is not searched at
    /// every PUT.
    absent: usize,
}

impl PageMap {
    /// Returns the words of the bitmap for `pages` pages.
    pub(crate) fn words_for(pages: usize) -> usize {
        pages.div_ceil(64)
    }

    /// Creates a map in zeroed memory of `words_for(pages)` words.
    pub(crate) fn new(taken: Vec<u64>, pages: usize) -> Self {
        assert_eq!(taken.len(), Self::words_for(pages));
        Self { taken, pages, free: pages, lowest_free: 0, absent: usize::MAX }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn taken_pages(&self) -> usize {
        self.pages - self.free
    }

    pub(crate) fn is_taken(&self, page: usize) -> bool {
        self.taken[page / 64] >> (page % 64) & 1 == 1
    }

    /// Returns the first page of the lowest `length` consecutive free pages.
    pub(crate) fn find(&mut self, length: usize) -> Option<usize> {
        if length > self.free || length >= self.absent {
            return None;
        }
        let mut start = self.next_free(self.lowest_free)?;
        self.lowest_free = start;
        loop {
            let end = self.next_taken(start, start + length);
            if end - start >= length {
                return Some(start);
            }
            match self.next_free(end) {
                Some(next) => start = next,
                None => {
                    self.absent = length;
                    return None;
                }
            }
        }
    }

    /// Marks free pages as taken.
    pub(crate) fn take(&mut self, start: usize, length: usize) {
        for page in start..start + length {
            debug_assert!(!self.is_taken(page));
            self.taken[page / 64] |= 1 << (page % 64);
        }
        self.free -= length;
    }

    /// Marks taken pages as free.
    pub(crate) fn release(&mut self, start: usize, length: usize) {
        for page in start..start + length {
            debug_assert!(self.is_taken(page));
            self.taken[page / 64] &= !(1 << (page % 64));
        }
        self.free += length;
        self.lowest_free = self.lowest_free.min(start);
        self.absent = usize::MAX;
    }

    /// Returns the first free page at or after `from`.
    fn next_free(&self, from: usize) -> Option<usize> {
        let mut page = from;
        while page < self.pages {
            let free = !self.taken[page / 64] >> (page % 64);
            if free != 0 {
                page += free.trailing_zeros() as usize;
                return (page < self.pages).then_some(page);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// Returns the first taken page in `from..until`, or the end of that range or of the memory.
    fn next_taken(&self, from: usize, until: usize) -> usize {
        let until = until.min(self.pages);
        let mut page = from;
        while page < until {
            let taken = self.taken[page / 64] >> (page % 64);
            if taken != 0 {
                return until.min(page + taken.trailing_zeros() as usize);
            }
            page = (page / 64 + 1) * 64;
        }
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_scan_finds(
            pages in 1usize..300,
            steps in prop::collection::vec((any::<bool>(), 1usize..90, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut map = PageMap::new(vec![0; PageMap::words_for(pages)], pages);
            let mut model = vec![false; pages];
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for (take, length, index) in steps {
                if take {
                    let expected = (0..(pages + 1).saturating_sub(length))
                        .find(|&start| model[start..start + length].iter().all(|taken| !taken));
                    prop_assert_eq!(map.find(length), expected);
                    if let Some(start) = expected {
                        map.take(start, length);
                        model[start..start + length].fill(true);
                        runs.push((start, length));
                    }
                } else if !runs.is_empty() {
                    let (start, length) = runs.swap_remove(index.index(runs.len()));
                    map.release(start, length);
                    model[start..start + length].fill(false);
                }
                prop_assert_eq!(map.taken_pages(), model.iter().filter(|taken| **taken).count());
                prop_assert!((0..pages).all(|page| map.is_taken(page) == model[page]));
            }
        }
    }
}
