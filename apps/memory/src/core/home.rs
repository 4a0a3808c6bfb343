//! The home of pages: the writer of each, and the claims that wait.

use super::{Claim, Grant, Member, Page};
use std::collections::VecDeque;

/// Claims of one member that wait at a home at the same time.
const MAX_WAITING: usize = 64;
/// Withdrawn claims that a home remembers, in case they come late.
const MAX_WITHDRAWN: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    version: u64,
    holder: Option<Claim>,
    lost: Option<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    claim: Claim,
    pages: Vec<Page>,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(Vec<Grant>),
    /// It waits. The page is held by the member.
    Queued(Page, Member),
    /// It does not wait, and the page is held by the member, or wanted by one that waits.
    Held(Page, Member),
    /// Too many claims of the member wait.
    Full,
    /// It was withdrawn before it came.
    Withdrawn,
    /// A page is of another home, or named twice.
    Malformed,
}

/// A claim that waited, and has its pages now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Woken {
    pub(crate) claim: Claim,
}

/// The pages of one home: those whose number, divided by the number of homes, leaves that of the home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Home {
    number: u16,
    homes: u16,
    pages: Vec<State>,
    waiting: VecDeque<Waiting>,
    withdrawn: VecDeque<Claim>,
}

impl Home {
    /// Makes a home of its share of `pages` pages.
    pub(crate) fn new(number: u16, homes: u16, pages: u32) -> Home {
        let own = pages.saturating_sub(number.into()).div_ceil(homes.into());
        Home {
            number,
            homes,
            pages: vec![State::default(); own as usize],
            waiting: VecDeque::new(),
            withdrawn: VecDeque::new(),
        }
    }

    fn place(&self, page: Page) -> Option<usize> {
        let place = (page / u32::from(self.homes)) as usize;
        (page % u32::from(self.homes) == u32::from(self.number) && place < self.pages.len()).then_some(place)
    }

    /// Returns the page and the member that keep a claim from its pages: a holder, or a claim that waits and came before
    /// `before`.
    fn obstacle(&self, claim: Claim, pages: &[Page], before: usize) -> Option<(Page, Member)> {
        let holder = |page: &Page| {
            let state = &self.pages[self.place(*page)?];
            state.holder.filter(|holder| *holder != claim).map(|holder| (*page, holder.member))
        };
        pages.iter().find_map(holder).or_else(|| {
            self.waiting.iter().take(before).find_map(|one| {
                let page = one.pages.iter().find(|page| pages.contains(page))?;
                Some((*page, one.claim.member))
            })
        })
    }

    fn grant(&mut self, claim: Claim, pages: &[Page]) -> Vec<Grant> {
        let mut grants = Vec::with_capacity(pages.len());
        for page in pages {
            if let Some(place) = self.place(*page) {
                let state = &mut self.pages[place];
                state.holder = Some(claim);
                grants.push(Grant { page: *page, version: state.version, lost: state.lost });
            }
        }
        grants
    }

    /// A member claims pages for writing: all of them, or none. A repeated claim gets the same answer.
    pub(crate) fn acquire(&mut self, claim: Claim, pages: &[Page], waits: bool) -> Answer {
        let is_own = |page: &Page| self.place(*page).is_some();
        let is_once = pages.windows(2).all(|pair| pair[0] < pair[1]);
        if pages.is_empty() || !is_once || !pages.iter().all(is_own) {
            return Answer::Malformed;
        }
        if self.withdrawn.contains(&claim) {
            return Answer::Withdrawn;
        }
        let has =
            |page: &Page| self.place(*page).is_some_and(|place| self.pages[place].holder == Some(claim));
        if pages.iter().all(has) {
            return Answer::Granted(self.grant(claim, pages));
        }
        let queued = self.waiting.iter().position(|one| one.claim == claim);
        let Some((page, member)) = self.obstacle(claim, pages, queued.unwrap_or(self.waiting.len())) else {
            if let Some(place) = queued {
                self.waiting.remove(place);
            }
            return Answer::Granted(self.grant(claim, pages));
        };
        if queued.is_some() {
            return Answer::Queued(page, member);
        }
        if !waits {
            return Answer::Held(page, member);
        }
        let own = self.waiting.iter().filter(|one| one.claim.member == claim.member).count();
        if own >= MAX_WAITING {
            return Answer::Full;
        }
        self.waiting.push_back(Waiting { claim, pages: pages.to_vec() });
        Answer::Queued(page, member)
    }

    /// Gives pages to the claims that can have them, in their order.
    fn wake(&mut self) -> Vec<Woken> {
        let mut woken = Vec::new();
        let mut place = 0;
        while let Some(one) = self.waiting.get(place) {
            if self.obstacle(one.claim, &one.pages, place).is_some() {
                place += 1;
                continue;
            }
            if let Some(one) = self.waiting.remove(place) {
                self.grant(one.claim, &one.pages);
                woken.push(Woken { claim: one.claim });
            }
        }
        woken
    }

    /// A member gives a claim up: pages that it has are free, and as they were.
    pub(crate) fn withdraw(&mut self, claim: Claim, pages: &[Page]) -> Vec<Woken> {
        let before = self.waiting.len();
        self.waiting.retain(|one| one.claim != claim);
        let mut is_known = self.waiting.len() < before;
        for page in pages {
            let Some(place) = self.place(*page) else { continue };
            let state = &mut self.pages[place];
            if state.holder == Some(claim) {
                (state.holder, is_known) = (None, true);
            }
        }
        if !is_known && !self.withdrawn.contains(&claim) {
            if self.withdrawn.len() == MAX_WITHDRAWN {
                self.withdrawn.pop_front();
            }
            self.withdrawn.push_back(claim);
        }
        self.wake()
    }

    /// A member gives pages back, each with its version from now on. A repeated release has no effect.
    pub(crate) fn release(&mut self, claim: Claim, pages: &[(Page, u64)]) -> Vec<Woken> {
        for (page, version) in pages {
            let Some(place) = self.place(*page) else { continue };
            let state = &mut self.pages[place];
            if state.holder == Some(claim) && *version >= state.version {
                *state = State { version: *version, holder: None, lost: None };
            }
        }
        self.wake()
    }

    /// A member ends a claim with changes that it has not pushed. The next holders hear of it.
    pub(crate) fn lose(&mut self, claim: Claim, pages: &[Page]) -> Vec<Woken> {
        self.forget(|holder, page| holder == claim && pages.contains(&page));
        self.wake()
    }

    fn forget(&mut self, is_lost: impl Fn(Claim, Page) -> bool) {
        let (number, homes) = (u32::from(self.number), u32::from(self.homes));
        for (place, state) in (0..).zip(&mut self.pages) {
            let Some(claim) = state.holder.filter(|claim| is_lost(*claim, place * homes + number)) else {
                continue;
            };
            // Some of its writes may have arrived: nobody's copy is that of the home.
            *state = State { version: state.version + 1, holder: None, lost: Some(claim.member) };
        }
    }

    /// A member has ended, in any way.
    pub(crate) fn end(&mut self, member: Member) -> Vec<Woken> {
        self.waiting.retain(|one| one.claim.member != member);
        self.forget(|holder, _| holder.member == member);
        self.wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(member: Member, number: u64) -> Claim {
        Claim { member, number }
    }

    fn granted(pages: &[(Page, u64, Option<Member>)]) -> Answer {
        Answer::Granted(
            pages
                .iter()
                .map(|(page, version, lost)| Grant { page: *page, version: *version, lost: *lost })
                .collect(),
        )
    }

    #[test]
    fn a_claim_gets_all_its_pages_or_waits_for_them_in_order() {
        let mut home = Home::new(1, 2, 8);
        assert_eq!(home.acquire(claim(0, 1), &[1, 3], false), granted(&[(1, 0, None), (3, 0, None)]));
        assert_eq!(home.acquire(claim(0, 1), &[1, 3], false), granted(&[(1, 0, None), (3, 0, None)]));
        assert_eq!(home.acquire(claim(1, 1), &[3, 5], false), Answer::Held(3, 0));
        assert_eq!(home.acquire(claim(1, 2), &[3, 5], true), Answer::Queued(3, 0));
        // Nobody overtakes a claim that waits, and others go on.
        assert_eq!(home.acquire(claim(2, 1), &[5], false), Answer::Held(5, 1));
        assert_eq!(home.acquire(claim(2, 2), &[7], false), granted(&[(7, 0, None)]));
        assert_eq!(home.acquire(claim(2, 3), &[5], true), Answer::Queued(5, 1));
        let next = Woken { claim: claim(1, 2) };
        assert_eq!(home.release(claim(0, 1), &[(1, 1), (3, 1)]), [next]);
        assert_eq!(home.acquire(claim(1, 2), &[3, 5], true), granted(&[(3, 1, None), (5, 0, None)]));
        assert_eq!(home.release(claim(0, 1), &[(1, 1), (3, 1)]), []);
        assert_eq!(home.withdraw(claim(1, 2), &[3, 5]), [Woken { claim: claim(2, 3) }]);
    }

    #[test]
    fn foreign_pages_and_disorder_are_refused() {
        let mut home = Home::new(1, 2, 7);
        for pages in [&[][..], &[0], &[7], &[3, 1], &[1, 1], &[u32::MAX]] {
            assert_eq!(home.acquire(claim(0, 1), pages, true), Answer::Malformed);
        }
    }

    #[test]
    fn a_withdrawn_claim_that_comes_late_gets_nothing() {
        let mut home = Home::new(0, 1, 2);
        assert_eq!(home.withdraw(claim(0, 1), &[0]), []);
        assert_eq!(home.acquire(claim(0, 1), &[0], true), Answer::Withdrawn);
        for number in 2..2 + MAX_WITHDRAWN as u64 {
            home.withdraw(claim(0, number), &[0]);
        }
        assert_eq!(home.withdrawn.len(), MAX_WITHDRAWN);
    }

    #[test]
    fn the_next_holders_hear_of_an_end_until_one_has_released() {
        let mut home = Home::new(0, 1, 2);
        home.acquire(claim(0, 1), &[0, 1], false);
        home.acquire(claim(0, 2), &[1], true);
        home.acquire(claim(1, 1), &[0], true);
        assert_eq!(home.end(0), [Woken { claim: claim(1, 1) }]);
        assert_eq!(home.acquire(claim(1, 1), &[0], true), granted(&[(0, 1, Some(0))]));
        assert_eq!(home.withdraw(claim(1, 1), &[0]), []);
        assert_eq!(home.acquire(claim(2, 1), &[0], true), granted(&[(0, 1, Some(0))]));
        home.release(claim(2, 1), &[(0, 2)]);
        assert_eq!(home.acquire(claim(2, 2), &[0, 1], true), granted(&[(0, 2, None), (1, 1, Some(0))]));
    }

    #[test]
    fn claims_that_wait_are_bounded_for_each_member() {
        let mut home = Home::new(0, 1, 1);
        home.acquire(claim(0, 0), &[0], false);
        for number in 0..MAX_WAITING as u64 {
            assert_eq!(home.acquire(claim(1, number), &[0], true), Answer::Queued(0, 0));
        }
        assert_eq!(home.acquire(claim(1, 1 << 40), &[0], true), Answer::Full);
        assert_eq!(home.acquire(claim(2, 0), &[0], true), Answer::Queued(0, 0));
    }
}
