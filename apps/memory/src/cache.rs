//! The pages of a member with their bytes, and the bytes before the first write.

use crate::config::PAGE;
use crate::core::Page;
use crate::core::member::{Fetched, Pages, Ticket, Write};
use dunlin_fabric::WithSources;
use dunlin_page_faults::{FaultError, FaultMemory};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

type Frame = [u8; PAGE];

/// Equal bytes between two changes that are pushed with them: an operation more would cost more.
const GAP: usize = 64;

/// The most frames without a page.
const MAX_SPARE: usize = 1024;

/// The bytes of the copies.
#[derive(Debug)]
pub(crate) enum Frames {
    /// In the heap: programs call `read` and `write`.
    Heap(Vec<Option<Box<Frame>>>),
    /// Mapped: threads of the program load and store. A page without a copy is absent, and one that was not written since it
    /// was acquired is protected.
    Mapped(Arc<FaultMemory>),
}

impl Frames {
    fn read(&self, page: Page, at: usize, into: &mut [u8]) {
        match self {
            Frames::Heap(frames) => {
                if let Some(Some(frame)) = frames.get(page as usize) {
                    into.copy_from_slice(&frame[at..at + into.len()]);
                }
            }
            Frames::Mapped(memory) => memory.read(page as usize, at, into),
        }
    }

    fn whole(&self, page: Page) -> Box<Frame> {
        let mut whole = Box::new([0; PAGE]);
        match self {
            Frames::Heap(_) => self.read(page, 0, &mut whole[..]),
            Frames::Mapped(memory) => memory.read_page(page as usize, &mut whole),
        }
        whole
    }

    fn write(&mut self, page: Page, at: usize, from: &[u8]) {
        match self {
            Frames::Heap(frames) => {
                if let Some(Some(frame)) = frames.get_mut(page as usize) {
                    frame[at..at + from.len()].copy_from_slice(from);
                }
            }
            Frames::Mapped(memory) => memory.write(page as usize, at, from),
        }
    }

    fn protect(&self, page: Page, is_protected: bool) {
        if let Frames::Mapped(memory) = self {
            noted(memory.protect(page as usize, is_protected));
        }
    }

    /// Takes the bytes of a page away, and returns their frame.
    fn remove(&mut self, page: Page) -> Option<Box<Frame>> {
        match self {
            Frames::Heap(frames) => frames.get_mut(page as usize)?.take(),
            Frames::Mapped(memory) => {
                noted(memory.take(page as usize));
                None
            }
        }
    }
}

/// The place of the bytes of pages that are fetched.
#[derive(Debug)]
pub(crate) enum Landing {
    /// Frames of the heap, which become the copies.
    Frames(Vec<Box<Frame>>),
    /// Bytes that are placed in the mapping, page after page.
    Bytes(Vec<u8>),
}

impl Landing {
    /// Returns the place of each page.
    pub(crate) fn pages(&mut self) -> Vec<&mut [u8]> {
        match self {
            Landing::Frames(frames) => frames.iter_mut().map(|frame| &mut frame[..]).collect(),
            Landing::Bytes(bytes) => bytes.chunks_mut(PAGE).collect(),
        }
    }
}

/// A system call on a mapping that this process has made fails only if memory is short.
fn noted(outcome: Result<(), FaultError>) {
    if let Err(error) = outcome {
        tracing::error!(target: "dunlin::memory", error = %WithSources(&error), "a page of the mapping cannot be changed");
    }
}

/// The copies of a member.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) pages: Pages,
    frames: Frames,
    /// The bytes before the first write, of the pages that are held.
    twins: BTreeMap<Page, Box<Frame>>,
    has_twins: bool,
    /// Frames without a page: new ones would cost page faults of the kernel.
    spare: Vec<Box<Frame>>,
    /// The landing of mapped pages, for the next fetch.
    landing: Vec<u8>,
}

impl Cache {
    pub(crate) fn new(
        pages: u32,
        needs_mark: bool,
        has_twins: bool,
        mapped: Option<Arc<FaultMemory>>,
    ) -> Cache {
        let frames = match mapped {
            Some(memory) => Frames::Mapped(memory),
            None => Frames::Heap((0..pages).map(|_| None).collect()),
        };
        let (pages, twins) = (Pages::new(pages, needs_mark), BTreeMap::new());
        Cache { pages, frames, twins, has_twins, spare: Vec::new(), landing: Vec::new() }
    }

    /// Returns a place for the bytes of a number of pages.
    pub(crate) fn landing(&mut self, pages: usize) -> Landing {
        match &self.frames {
            Frames::Heap(_) => {
                let spare = self.spare.split_off(self.spare.len().saturating_sub(pages));
                let new = pages - spare.len();
                let made = (0..new).map(|_| Box::new([0; PAGE]));
                Landing::Frames(spare.into_iter().chain(made).collect())
            }
            Frames::Mapped(_) => {
                let mut bytes = std::mem::take(&mut self.landing);
                bytes.resize(pages * PAGE, 0);
                Landing::Bytes(bytes)
            }
        }
    }

    /// Keeps a frame for other pages.
    fn keep(&mut self, frame: Option<Box<Frame>>) {
        self.spare.extend(frame.filter(|_| self.spare.len() < MAX_SPARE));
    }

    /// The bytes of fetches are there. Returns a page that has to be fetched again, if there is one.
    pub(crate) fn install(&mut self, tickets: &[Ticket], landing: Landing) -> Option<Page> {
        let mut again = None;
        match landing {
            Landing::Frames(landed) => {
                for (ticket, frame) in tickets.iter().zip(landed) {
                    let before = match (self.end_fetch(*ticket, &mut again), &mut self.frames) {
                        (true, Frames::Heap(frames)) => {
                            frames.get_mut(ticket.page as usize).and_then(|place| place.replace(frame))
                        }
                        _ => Some(frame),
                    };
                    self.keep(before);
                }
            }
            Landing::Bytes(bytes) => {
                self.place(tickets, &bytes, &mut again);
                self.landing = bytes;
            }
        }
        again
    }

    /// Returns whether the bytes of a fetch become the copy; otherwise it may have to be repeated.
    fn end_fetch(&mut self, ticket: Ticket, again: &mut Option<Page>) -> bool {
        let fetched = self.pages.end_fetch(ticket);
        if fetched == Fetched::Again {
            *again = Some(ticket.page);
        }
        fetched == Fetched::Install
    }

    /// Places bytes in the mapping. Pages that follow each other are placed together.
    fn place(&mut self, tickets: &[Ticket], bytes: &[u8], again: &mut Option<Page>) {
        let mut run: Range<usize> = 0..0;
        for (at, ticket) in tickets.iter().enumerate() {
            let is_next = tickets[run.start].page as usize + run.len() == ticket.page as usize;
            if !is_next {
                self.place_run(tickets, bytes, run);
                run = at..at;
            }
            run.end = at + 1;
            if !self.end_fetch(*ticket, again) {
                self.place_run(tickets, bytes, run.start..at);
                run = at + 1..at + 1;
            }
        }
        self.place_run(tickets, bytes, run);
    }

    fn place_run(&self, tickets: &[Ticket], bytes: &[u8], run: Range<usize>) {
        if let (Frames::Mapped(memory), false) = (&self.frames, run.is_empty()) {
            let first = tickets[run.start].page as usize;
            noted(memory.place(first, &bytes[run.start * PAGE..run.end * PAGE], true));
        }
    }

    /// Copies bytes of a page; returns `false` without a copy.
    pub(crate) fn read(&self, page: Page, at: usize, into: &mut [u8]) -> bool {
        let is_there = self.pages.has(page);
        if is_there {
            self.frames.read(page, at, into);
        }
        is_there
    }

    /// Prepares a page that is held for stores: keeps its bytes, and lifts its protection.
    pub(crate) fn open(&mut self, page: Page) -> Write {
        let written = self.pages.write(page);
        if written == Write::First {
            if self.has_twins {
                self.twins.insert(page, self.frames.whole(page));
            }
            self.frames.protect(page, false);
        }
        written
    }

    /// Writes bytes of a page that is held.
    pub(crate) fn write(&mut self, page: Page, at: usize, from: &[u8]) -> Write {
        let written = self.open(page);
        if matches!(written, Write::First | Write::Again) {
            self.frames.write(page, at, from);
        }
        written
    }

    /// Ends the writes to a page. Stores fault from here on.
    pub(crate) fn seal(&self, page: Page) {
        self.frames.protect(page, true);
    }

    /// Returns the places of a page that are pushed, with their bytes.
    pub(crate) fn changes(&self, page: Page) -> Vec<(usize, Vec<u8>)> {
        if !self.pages.has(page) {
            return Vec::new();
        }
        let whole = self.frames.whole(page);
        match self.twins.get(&page) {
            Some(twin) => {
                let ranges = differences(twin, &whole).into_iter();
                ranges.map(|range| (range.start, whole[range].to_vec())).collect()
            }
            None => vec![(0, whole.to_vec())],
        }
    }

    /// A page is not held any more.
    pub(crate) fn forget_twin(&mut self, page: Page) {
        let frame = self.twins.remove(&page);
        self.keep(frame);
    }

    /// The copy of a page is gone.
    pub(crate) fn drop_copy(&mut self, page: Page) {
        let frame = self.frames.remove(page);
        self.keep(frame);
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

    /// Runs of pages, one that is there already, and one that was released meanwhile.
    #[test]
    fn fetched_pages_are_installed_where_they_belong() {
        for mapped in [None, Some(Arc::new(FaultMemory::new(None, 12).unwrap()))] {
            let mut cache = Cache::new(12, false, false, mapped);
            let fetched = |cache: &mut Cache, pages: &[u8]| {
                let mut landing = cache.landing(pages.len());
                landing.pages().into_iter().zip(pages).for_each(|(place, page)| place.fill(*page));
                landing
            };
            for _ in 0..2 {
                let pages = [0, 1, 2, 3, 5, 6, 9, 10, 11];
                let tickets = pages.map(|page| cache.pages.begin(page.into()));
                let there = cache.pages.begin(6);
                let landing = fetched(&mut cache, &[99]);
                assert_eq!(cache.install(&[there], landing), None);
                cache.pages.told(2, 1);
                let landing = fetched(&mut cache, &pages);
                assert_eq!(cache.install(&tickets, landing), Some(2));
                for page in 0..12 {
                    let mut byte = [77];
                    let expected = if page == 6 { 99 } else { page };
                    let is_there = pages.contains(&page) && page != 2;
                    assert_eq!(cache.read(page.into(), 5, &mut byte), is_there, "{page}");
                    assert_eq!(byte, [if is_there { expected } else { 77 }], "{page}");
                    // The frames are used again.
                    assert_eq!(cache.pages.forget(page.into()), is_there);
                    cache.drop_copy(page.into());
                }
            }
        }
    }
}
