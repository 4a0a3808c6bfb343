//! The pages of a member with their bytes, and the bytes before the first write.

use crate::config::PAGE;
use crate::core::Page;
use crate::core::member::{Fetched, Pages, Ticket, Write};
use std::collections::BTreeMap;
use std::ops::Range;

type Frame = [u8; PAGE];

/// Equal bytes between two changes that are pushed with them: an operation more would cost more.
const GAP: usize = 64;

/// The copies of a member.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) pages: Pages,
    frames: Vec<Option<Box<Frame>>>,
    /// The bytes before the first write, of the pages that are held.
    twins: BTreeMap<Page, Box<Frame>>,
    has_twins: bool,
}

impl Cache {
    pub(crate) fn new(pages: u32, needs_mark: bool, has_twins: bool) -> Cache {
        let frames = (0..pages).map(|_| None).collect();
        Cache { pages: Pages::new(pages, needs_mark), frames, twins: BTreeMap::new(), has_twins }
    }

    /// The bytes of a fetch are there.
    pub(crate) fn install(&mut self, ticket: Ticket, bytes: &[u8]) -> Fetched {
        let fetched = self.pages.end_fetch(ticket);
        if fetched == Fetched::Install
            && let (Ok(frame), Some(place)) =
                (<&Frame>::try_from(bytes), self.frames.get_mut(ticket.page as usize))
        {
            *place = Some(Box::new(*frame));
        }
        fetched
    }

    /// Copies bytes of a page; returns `false` without a copy.
    pub(crate) fn read(&self, page: Page, at: usize, into: &mut [u8]) -> bool {
        match self.frames.get(page as usize) {
            Some(Some(frame)) => {
                into.copy_from_slice(&frame[at..at + into.len()]);
                true
            }
            _ => false,
        }
    }

    /// Writes bytes of a page that is held.
    pub(crate) fn write(&mut self, page: Page, at: usize, from: &[u8]) -> Write {
        let written = self.pages.write(page);
        if let (Write::First | Write::Again, Some(Some(frame))) =
            (written, self.frames.get_mut(page as usize))
        {
            if written == Write::First && self.has_twins {
                self.twins.insert(page, frame.clone());
            }
            frame[at..at + from.len()].copy_from_slice(from);
        }
        written
    }

    /// Returns the places of a page that are pushed, with their bytes.
    pub(crate) fn changes(&self, page: Page) -> Vec<(usize, Vec<u8>)> {
        let Some(Some(frame)) = self.frames.get(page as usize) else { return Vec::new() };
        let ranges = match self.twins.get(&page) {
            Some(twin) => differences(twin, frame),
            None => vec![0..PAGE],
        };
        ranges.into_iter().map(|range| (range.start, frame[range].to_vec())).collect()
    }

    /// A page is not held any more.
    pub(crate) fn forget_twin(&mut self, page: Page) {
        self.twins.remove(&page);
    }

    /// The copy of a page is gone.
    pub(crate) fn drop_copy(&mut self, page: Page) {
        if let Some(frame) = self.frames.get_mut(page as usize) {
            *frame = None;
        }
    }
}

/// Returns the ranges that differ, with small gaps of equal bytes in them.
fn differences(old: &Frame, new: &Frame) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let ((old_words, _), (new_words, _)) = (old.as_chunks::<8>(), new.as_chunks::<8>());
    for (word, (old, new)) in old_words.iter().zip(new_words).enumerate().filter(|(_, (old, new))| old != new)
    {
        let differ = |at: &usize| old[*at] != new[*at];
        let first = (0..8).find(differ).map_or(0, |at| 8 * word + at);
        let end = (0..8).rev().find(differ).map_or(0, |at| 8 * word + at + 1);
        match ranges.last_mut() {
            Some(last) if first - last.end < GAP => last.end = end,
            _ => ranges.push(first..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The changes make the old page the new one, begin and end with a change, and are apart.
        #[test]
        fn changes_are_all_that_differs(writes in prop::collection::vec((0..PAGE, 1usize..300, any::<u8>()), 0..6)) {
            let old: Box<Frame> = Box::new(std::array::from_fn(|at| (at * 7 % 251) as u8));
            let mut new = old.clone();
            for (at, length, value) in writes {
                new[at..(at + length).min(PAGE)].fill(value);
            }
            let mut patched = old.clone();
            let mut last = None;
            for range in differences(&old, &new) {
                prop_assert!(last.is_none_or(|last| range.start >= last + GAP));
                prop_assert!(old[range.start] != new[range.start] && old[range.end - 1] != new[range.end - 1]);
                patched[range.clone()].copy_from_slice(&new[range.clone()]);
                last = Some(range.end);
            }
            prop_assert!(patched == new);
        }
    }
}
