//! A member: the pages that it has copies of, and those that it may write.

use super::{Grant, Page};

/// The state of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// The least version that the copy has; none without a copy.
    copy: Option<u64>,
    /// The largest version that this member has heard of.
    known: u64,
    /// Counts what changes the page under a fetch.
    epoch: u64,
    /// The releaser of the page tells this member.
    is_marked: bool,
    hold: Hold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Hold {
    #[default]
    None,
    /// A thread waits for the home.
    Claimed(u64),
    Held {
        number: u64,
        version: u64,
        /// The last holder ended without a release: it may have taken marks of members that it did not tell.
        was_lost: bool,
        is_dirty: bool,
        /// Writes have ended: the page is pushed to its home.
        is_leaving: bool,
    },
}

/// A fetch, or a mark, that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) page: Page,
    epoch: u64,
    known: u64,
}

/// The end of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The bytes are the copy from now on.
    Install,
    /// Another thread was faster: the bytes are dropped.
    AlreadyThere,
    /// The page was changed meanwhile: the bytes may be old.
    Again,
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// This member does not hold the page.
    NotHeld,
    /// The page has no copy.
    Absent,
    /// The first write since the page was acquired: its old bytes are the twin.
    First,
    Again,
}

/// A page that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leaving {
    pub(crate) page: Page,
    /// The version at the home after the release.
    pub(crate) version: u64,
    pub(crate) is_dirty: bool,
    /// All members are told, whatever their marks.
    pub(crate) to_all: bool,
}

/// The pages of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    states: Vec<State>,
    /// Members are told of releases only if they have marked the page.
    needs_mark: bool,
}

impl Pages {
    pub(crate) fn new(pages: u32, needs_mark: bool) -> Pages {
        Pages { states: vec![State::default(); pages as usize], needs_mark }
    }

    fn state(&mut self, page: Page) -> Option<&mut State> {
        self.states.get_mut(page as usize)
    }

    /// Returns whether there is a copy.
    pub(crate) fn has(&self, page: Page) -> bool {
        self.states.get(page as usize).is_some_and(|state| state.copy.is_some())
    }

    /// Returns whether the page has to be marked before it is fetched.
    pub(crate) fn must_mark(&self, page: Page) -> bool {
        self.needs_mark && self.states.get(page as usize).is_some_and(|state| !state.is_marked)
    }

    /// Begins a mark or a fetch.
    pub(crate) fn begin(&self, page: Page) -> Ticket {
        let (epoch, known) =
            self.states.get(page as usize).map_or((0, 0), |state| (state.epoch, state.known));
        Ticket { page, epoch, known }
    }

    /// The mark is made. Without effect if the page was changed meanwhile: the mark may be gone again.
    pub(crate) fn end_mark(&mut self, ticket: Ticket) {
        if let Some(state) = self.state(ticket.page)
            && state.epoch == ticket.epoch
        {
            state.is_marked = true;
        }
    }

    /// The bytes of a fetch are there.
    pub(crate) fn end_fetch(&mut self, ticket: Ticket) -> Fetched {
        let needs_mark = self.needs_mark;
        let Some(state) = self.state(ticket.page) else { return Fetched::AlreadyThere };
        if state.copy.is_some() {
            return Fetched::AlreadyThere;
        }
        if state.epoch != ticket.epoch || (needs_mark && !state.is_marked) {
            return Fetched::Again;
        }
        state.copy = Some(ticket.known);
        Fetched::Install
    }

    /// Begins a claim; or returns the page that this member holds, or claims, already.
    pub(crate) fn claim(&mut self, number: u64, pages: &[Page]) -> Result<(), Page> {
        let is_held =
            |page: &&Page| self.states.get(**page as usize).is_some_and(|state| state.hold != Hold::None);
        if let Some(page) = pages.iter().find(is_held) {
            return Err(*page);
        }
        for page in pages {
            if let Some(state) = self.state(*page) {
                state.hold = Hold::Claimed(number);
            }
        }
        Ok(())
    }

    /// A claim has its pages. Returns those whose copy is gone: it was older than the home's page.
    pub(crate) fn granted(&mut self, number: u64, grants: &[Grant]) -> Vec<Page> {
        let mut dropped = Vec::new();
        for Grant { page, version, lost } in grants {
            let Some(state) = self.state(*page) else { continue };
            let (version, was_lost) = (*version, lost.is_some());
            state.hold = Hold::Held { number, version, was_lost, is_dirty: false, is_leaving: false };
            state.known = state.known.max(version);
            if state.copy.is_some_and(|copy| copy < version) {
                state.copy = None;
                dropped.push(*page);
            }
            if state.copy.is_none() {
                // A fetch that began before the grant may have old bytes.
                state.epoch += 1;
            }
        }
        dropped
    }

    /// Returns whether a write to the page is permitted.
    pub(crate) fn may_write(&self, page: Page) -> bool {
        let hold = self.states.get(page as usize).map(|state| state.hold);
        matches!(hold, Some(Hold::Held { is_leaving: false, .. }))
    }

    /// Notes a write to a page.
    pub(crate) fn write(&mut self, page: Page) -> Write {
        let Some(state) = self.state(page) else { return Write::NotHeld };
        let has_copy = state.copy.is_some();
        match &mut state.hold {
            Hold::Held { is_leaving: false, .. } if !has_copy => Write::Absent,
            Hold::Held { is_leaving: false, is_dirty, .. } => {
                if std::mem::replace(is_dirty, true) {
                    Write::Again
                } else {
                    Write::First
                }
            }
            _ => Write::NotHeld,
        }
    }

    /// Begins the release of a claim: no more writes. May be repeated.
    pub(crate) fn leave(&mut self, claim: u64, pages: &[Page]) -> Vec<Leaving> {
        let (mut leaving, needs_mark) = (Vec::with_capacity(pages.len()), self.needs_mark);
        for page in pages.iter().copied() {
            let Some(state) = self.state(page) else { continue };
            if let Hold::Held { number, version, was_lost, is_dirty, is_leaving } = &mut state.hold
                && *number == claim
            {
                *is_leaving = true;
                let version = *version + u64::from(*is_dirty);
                leaving.push(Leaving {
                    page,
                    version,
                    is_dirty: *is_dirty,
                    to_all: *was_lost || !needs_mark,
                });
            }
        }
        leaving
    }

    /// The homes have the pages back. Returns the pages whose copies are not kept.
    pub(crate) fn left(&mut self, claim: u64, pages: &[Page]) -> Vec<Page> {
        let (mut dropped, needs_mark) = (Vec::new(), self.needs_mark);
        for page in pages.iter().copied() {
            let Some(state) = self.state(page) else { continue };
            let Hold::Held { number, version, is_dirty, .. } = state.hold else { continue };
            if number != claim {
                continue;
            }
            state.hold = Hold::None;
            let version = version + u64::from(is_dirty);
            // Another member may have written the page since.
            let is_kept = state.known <= version && (state.is_marked || !needs_mark);
            state.known = state.known.max(version);
            if state.copy.is_some() && is_kept {
                state.copy = Some(version);
            } else if state.copy.take().is_some() {
                dropped.push(page);
            }
        }
        dropped
    }

    /// A claim ends without a release. Returns whether it has changed pages, and the pages whose copies are not kept.
    pub(crate) fn drop_claim(&mut self, claim: u64, pages: &[Page]) -> (bool, Vec<Page>) {
        let (mut was_dirty, mut dropped, needs_mark) = (false, Vec::new(), self.needs_mark);
        for page in pages.iter().copied() {
            let Some(state) = self.state(page) else { continue };
            match state.hold {
                Hold::Claimed(number) if number == claim => state.hold = Hold::None,
                Hold::Held { number, is_dirty, .. } if number == claim => {
                    state.hold = Hold::None;
                    was_dirty |= is_dirty;
                    if (is_dirty || (needs_mark && !state.is_marked)) && state.copy.take().is_some() {
                        dropped.push(page);
                    }
                    state.epoch += 1;
                }
                _ => {}
            }
        }
        (was_dirty, dropped)
    }

    /// Another member has released a page with this version. Returns whether the copy is gone.
    pub(crate) fn told(&mut self, page: Page, version: u64) -> bool {
        let needs_mark = self.needs_mark;
        let Some(state) = self.state(page) else { return false };
        let is_new = version > state.known;
        state.known = state.known.max(version);
        // Its mark is gone, whatever the version.
        state.is_marked = false;
        state.epoch += 1;
        let is_held = matches!(state.hold, Hold::Held { .. });
        let is_old = is_new || (needs_mark && !is_held);
        // A page that this member holds has no newer version, unless it has left already.
        is_old && state.copy.take().is_some()
    }

    /// Drops a copy that is not held; returns whether there was one.
    pub(crate) fn forget(&mut self, page: Page) -> bool {
        let Some(state) = self.state(page) else { return false };
        !matches!(state.hold, Hold::Held { .. }) && state.copy.take().is_some()
    }
}

#[cfg(test)]
impl Pages {
    pub(crate) fn known(&self, page: Page) -> u64 {
        self.states[page as usize].known
    }

    pub(crate) fn is_held(&self, page: Page) -> bool {
        matches!(self.states[page as usize].hold, Hold::Held { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(page: Page, version: u64) -> Grant {
        Grant { page, version, lost: None }
    }

    fn fetch(pages: &mut Pages, page: Page) -> Fetched {
        let ticket = pages.begin(page);
        pages.end_mark(ticket);
        pages.end_fetch(ticket)
    }

    #[test]
    fn a_page_is_written_between_its_grant_and_its_release_only() {
        let mut pages = Pages::new(2, false);
        assert_eq!(pages.write(0), Write::NotHeld);
        pages.claim(1, &[0]).unwrap();
        assert_eq!(pages.claim(2, &[1, 0]), Err(0));
        assert_eq!(pages.write(0), Write::NotHeld);
        pages.granted(1, &[grant(0, 4)]);
        assert_eq!(pages.write(0), Write::Absent);
        assert_eq!(fetch(&mut pages, 0), Fetched::Install);
        assert_eq!([pages.write(0), pages.write(0)], [Write::First, Write::Again]);
        assert_eq!(pages.write(1), Write::NotHeld);
        assert_eq!(pages.write(7), Write::NotHeld);
        let leaving = [Leaving { page: 0, version: 5, is_dirty: true, to_all: true }];
        assert_eq!(pages.leave(1, &[0]), leaving);
        assert_eq!(pages.write(0), Write::NotHeld);
        assert_eq!(pages.leave(1, &[0]), leaving);
        assert_eq!(pages.left(1, &[0]), []);
        assert!(pages.has(0));
        // Its own release is no news to the member, and that of another one is.
        assert!(!pages.told(0, 5));
        assert!(pages.told(0, 6));
        assert!(!pages.has(0));
    }

    #[test]
    fn a_fetch_that_meets_a_release_is_repeated() {
        let mut pages = Pages::new(1, false);
        let ticket = pages.begin(0);
        pages.told(0, 1);
        assert_eq!(pages.end_fetch(ticket), Fetched::Again);
        assert_eq!(fetch(&mut pages, 0), Fetched::Install);
        assert_eq!(pages.end_fetch(ticket), Fetched::AlreadyThere);
    }

    #[test]
    fn changes_of_a_dropped_claim_are_gone() {
        let mut pages = Pages::new(2, false);
        pages.claim(1, &[0, 1]).unwrap();
        pages.granted(1, &[grant(0, 0), grant(1, 0)]);
        fetch(&mut pages, 0);
        fetch(&mut pages, 1);
        pages.write(1);
        assert_eq!(pages.drop_claim(1, &[0, 1]), (true, vec![1]));
        assert!(pages.has(0) && !pages.has(1));
        assert_eq!(pages.claim(2, &[0, 1]), Ok(()));
    }

    #[test]
    fn a_copy_without_a_mark_is_not_kept() {
        let mut pages = Pages::new(1, true);
        assert!(pages.must_mark(0));
        let early = pages.begin(0);
        assert_eq!(pages.end_fetch(early), Fetched::Again);
        assert_eq!(fetch(&mut pages, 0), Fetched::Install);
        pages.claim(1, &[0]).unwrap();
        pages.granted(1, &[grant(0, 0)]);
        pages.write(0);
        // A late message of an older release: the changes stay, the mark is gone.
        assert!(!pages.told(0, 0));
        pages.leave(1, &[0]);
        assert_eq!(pages.left(1, &[0]), [0]);
        assert!(pages.must_mark(0));
    }
}
