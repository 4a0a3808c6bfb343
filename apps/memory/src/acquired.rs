//! Pages that a member may write: their acquisition and their release.

use crate::config::{MemoryConfig, PAGE, Push, Told};
use crate::core::home::Answer;
use crate::core::member::Leaving;
use crate::core::{Claim, Grant, Member, Page};
use crate::error::MemoryError;
use crate::message::{MAX_PAGES, Request};
use crate::shared::{Shared, parse_answer, request};
use dunlin_fabric::{Nanos, Signal};
use dunlin_tier_node::{AnyLists, AnyServices, RequestError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The first and the longest pause after which a claim that waits is repeated, and its holder looked for.
const PAUSES: [Nanos; 2] = [20_000_000, 200_000_000];

/// A page whose last writer ended, or gave it up, without a release: it has the bytes of the last release, and if the
/// writer ended within a release, a part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The page.
    pub page: u32,
    /// The member that held it.
    pub member: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Held,
    /// The bytes are at the homes, and no mark was taken.
    Pushed,
    /// Other members know.
    Told,
    Over,
}

/// Pages that this member may write, until they are released. Dropping it gives them up: changes are lost, and the next
/// member that acquires them hears of it.
#[must_use = "pages that are not released lose their changes"]
pub struct Acquired<'a, T: AnyServices + AnyLists> {
    shared: &'a Arc<Shared<T>>,
    claim: Claim,
    pages: Vec<Page>,
    lost: Vec<Lost>,
    stage: Stage,
    leaving: Vec<Leaving>,
    /// The members that have to hear of each page, as bits.
    marks: BTreeMap<Page, u64>,
    /// A mark was taken, perhaps, and is not known.
    has_lost_marks: bool,
}

impl<T: AnyServices + AnyLists> std::fmt::Debug for Acquired<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquired").field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// Sorts pages by their homes.
fn by_home(config: &MemoryConfig, pages: &[Page]) -> BTreeMap<Member, Vec<Page>> {
    let mut homes: BTreeMap<Member, Vec<Page>> = BTreeMap::new();
    for page in pages {
        homes.entry(config.home(*page)).or_default().push(*page);
    }
    homes
}

/// A claim that is under way. Dropped without its pages, it is withdrawn.
struct Claiming<'a, T: AnyServices + AnyLists> {
    shared: &'a Arc<Shared<T>>,
    claim: Claim,
    /// Homes that may know of it, with their pages.
    asked: BTreeMap<Member, Vec<Page>>,
    grants: Vec<Grant>,
}

impl<'a, T: AnyServices + AnyLists> Claiming<'a, T> {
    fn new(shared: &'a Arc<Shared<T>>) -> Self {
        Claiming { shared, claim: shared.claim(), asked: BTreeMap::new(), grants: Vec::new() }
    }

    /// Claims all pages at all homes at the same time, without a wait: one round trip. Returns whether it has them.
    fn at_once(&mut self, homes: &BTreeMap<Member, Vec<Page>>) -> Result<bool, MemoryError> {
        let acquire = |(home, pages): (&Member, &Vec<Page>)| {
            (*home, Request::Acquire { claim: self.claim, waits: false, pages: pages.clone() })
        };
        let requests: Vec<_> = homes.iter().map(acquire).collect();
        self.asked.clone_from(homes);
        let time = self.shared.config.patience;
        let mut has_all = true;
        for ((home, pages), answer) in homes.iter().zip(self.shared.ask_each(&requests, time)?) {
            let bytes = answer.map_err(|error| self.failure(*home, error))?;
            match parse_answer(*home, &bytes, pages)? {
                Answer::Granted(grants) => self.grants.extend(grants),
                Answer::Held(..) => {
                    self.asked.remove(home);
                    has_all = false;
                }
                _ => return Err(MemoryError::Answer { member: *home }),
            }
        }
        Ok(has_all)
    }

    /// Gives the claim up. Homes that do not answer hear of it later.
    fn withdraw(&mut self) {
        let until = self.shared.until(self.shared.config.patience);
        let withdraw = |(home, pages): (&Member, &Vec<Page>)| {
            (*home, Request::Withdraw { claim: self.claim, pages: pages.clone() })
        };
        if self.shared.insist(self.asked.iter().map(withdraw).collect(), until).is_ok() {
            self.asked.clear();
        }
    }

    /// Claims the pages of one home after the other, in the order of the homes, and waits for them. So no two members wait
    /// for each other.
    fn in_order(&mut self, homes: &BTreeMap<Member, Vec<Page>>, until: Nanos) -> Result<(), MemoryError> {
        for (home, pages) in homes {
            self.asked.insert(*home, pages.clone());
            let mut pause = PAUSES[0];
            loop {
                self.shared.check_service()?;
                let seen = self.shared.woken.seen();
                let time = self.shared.config.patience;
                let acquire = Request::Acquire { claim: self.claim, waits: true, pages: pages.clone() };
                let answer =
                    self.shared.ask(*home, &acquire, time).map_err(|error| self.failure(*home, error))?;
                let (page, member) = match parse_answer(*home, &answer, pages)? {
                    Answer::Granted(grants) => {
                        self.grants.extend(grants);
                        break;
                    }
                    Answer::Queued(page, member) => (page, member),
                    Answer::Full => return Err(MemoryError::Busy { home: *home }),
                    _ => return Err(MemoryError::Answer { member: *home }),
                };
                let now = self.shared.now();
                if now >= until {
                    return Err(MemoryError::Held { page, member });
                }
                if !self.shared.woken.wait(seen, now.saturating_add(pause).min(until)) {
                    pause = (2 * pause).min(PAUSES[1]);
                    self.shared.examine(member);
                }
                if self.shared.is_known_ended(member) {
                    let ended = Request::Ended { member };
                    self.shared.ask(*home, &ended, time).map_err(|error| self.failure(*home, error))?;
                }
            }
        }
        Ok(())
    }

    fn failure(&self, home: Member, error: RequestError) -> MemoryError {
        match self.shared.has_ended(home) {
            true => MemoryError::HomeEnded { home },
            false => request("a claim of pages")(error),
        }
    }
}

impl<T: AnyServices + AnyLists> Drop for Claiming<'_, T> {
    fn drop(&mut self) {
        for (home, pages) in std::mem::take(&mut self.asked) {
            self.shared.later(home, Request::Withdraw { claim: self.claim, pages }, true);
        }
    }
}

impl<'a, T: AnyServices + AnyLists> Acquired<'a, T> {
    /// Acquires pages, which are in order and different.
    pub(crate) fn new(
        shared: &'a Arc<Shared<T>>,
        pages: Vec<Page>,
        time: Duration,
    ) -> Result<Self, MemoryError> {
        if pages.len() > MAX_PAGES {
            return Err(MemoryError::TooManyPages { pages: pages.len() as u64, most: MAX_PAGES as u64 });
        }
        shared.check_service()?;
        let until = shared.until(time);
        // The number by which this member knows the pages that it claims.
        let own = shared.claim().number;
        shared.cache().pages.claim(own, &pages).map_err(|page| MemoryError::AlreadyAcquired { page })?;
        let homes = by_home(&shared.config, &pages);
        let granted = Self::claim_at(shared, &homes, until);
        let mut cache = shared.cache();
        match granted {
            Err(error) => {
                cache.pages.drop_claim(own, &pages);
                Err(error)
            }
            Ok((claim, grants)) => {
                for page in cache.pages.granted(claim.number, &grants) {
                    cache.drop_copy(page);
                }
                drop(cache);
                let lost = |grant: &Grant| Some(Lost { page: grant.page, member: grant.lost? });
                let lost = grants.iter().filter_map(lost).collect();
                Ok(Acquired {
                    shared,
                    claim,
                    pages,
                    lost,
                    stage: Stage::Held,
                    leaving: Vec::new(),
                    marks: BTreeMap::new(),
                    has_lost_marks: false,
                })
            }
        }
    }

    fn claim_at(
        shared: &Arc<Shared<T>>,
        homes: &BTreeMap<Member, Vec<Page>>,
        until: Nanos,
    ) -> Result<(Claim, Vec<Grant>), MemoryError> {
        let mut claiming = Claiming::new(shared);
        if !claiming.at_once(homes)? {
            // The pages go back before it waits: nobody waits with pages that are not the first ones.
            claiming.withdraw();
            claiming = Claiming::new(shared);
            claiming.in_order(homes, until)?;
        }
        claiming.asked.clear();
        Ok((claiming.claim, std::mem::take(&mut claiming.grants)))
    }

    /// Returns the pages, in order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Returns the pages whose last writer ended without a release.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Releases the pages: pushes changes to their homes, has other members drop their copies, and gives the pages back.
    /// When it returns, no member reads older bytes. Blocks until all members have heard of it, for the patience of the
    /// memory at most. A member that has ended need not hear.
    ///
    /// # Errors
    /// The pages are held still, and cannot be written any more; the release may be repeated. After
    /// [`MemoryError::HomeEnded`] the pages of that home are lost.
    pub fn release(&mut self) -> Result<(), MemoryError> {
        let until = self.shared.until(self.shared.config.patience);
        if self.stage == Stage::Held {
            let changes = {
                let mut cache = self.shared.cache();
                self.leaving = cache.pages.leave(self.claim.number, &self.pages);
                let dirty = self.leaving.iter().filter(|leaving| leaving.is_dirty);
                let changes = dirty.flat_map(|leaving| {
                    cache.seal(leaving.page);
                    let changes = cache.changes(leaving.page).into_iter();
                    changes.map(|(at, bytes)| (leaving.page, at, bytes))
                });
                changes.collect::<Vec<_>>()
            };
            if self.shared.config.push == Push::Changed {
                // Pages and twins are compared.
                let dirty = self.leaving.iter().filter(|leaving| leaving.is_dirty).count();
                self.shared.charge_copy(dirty * PAGE);
            }
            self.shared.charge_copy(changes.iter().map(|(.., bytes)| bytes.len()).sum());
            self.shared.push(&changes)?;
            self.stage = Stage::Pushed;
        }
        if self.stage == Stage::Pushed {
            self.take_marks()?;
            let tell = self.to_tell();
            self.shared.counters.told.fetch_add(tell.len() as u64, Ordering::Relaxed);
            self.shared.insist(tell, until)?;
            self.stage = Stage::Told;
        }
        if self.stage == Stage::Told {
            self.give_back(until)?;
        }
        Ok(())
    }

    /// Takes the marks of other members from the pages that were written.
    fn take_marks(&mut self) -> Result<(), MemoryError> {
        if self.shared.config.told == Told::All {
            return Ok(());
        }
        let own = 1u64 << self.shared.config.member;
        let dirty = self.leaving.iter().filter(|leaving| leaving.is_dirty);
        let mut left: Vec<(Page, u64)> = dirty.map(|leaving| (leaving.page, own)).collect();
        while !left.is_empty() {
            let swaps: Vec<_> = left.iter().map(|(page, word)| (*page, *word, *word & own)).collect();
            // A swap that changes nothing is a read.
            let olds = self.shared.swap_words(&swaps).inspect_err(|_| self.has_lost_marks = true)?;
            let mut again = Vec::new();
            for ((page, word), old) in left.into_iter().zip(olds) {
                // The swap reads the bits of the others. They are taken only if it was done.
                match old == word || old & !own == 0 {
                    true => *self.marks.entry(page).or_default() |= word & !own & old,
                    false => again.push((page, old)),
                }
            }
            left = again;
        }
        Ok(())
    }

    /// Returns the messages to members that may have copies.
    fn to_tell(&self) -> Vec<(Member, Request)> {
        let config = &self.shared.config;
        let mut messages = Vec::new();
        for member in (0..config.members).filter(|member| *member != config.member) {
            let hears = |leaving: &&Leaving| {
                let is_marked =
                    || self.marks.get(&leaving.page).is_some_and(|marks| marks >> member & 1 == 1);
                leaving.is_dirty && (leaving.to_all || self.has_lost_marks || is_marked())
            };
            let pages: Vec<_> =
                self.leaving.iter().filter(hears).map(|leaving| (leaving.page, leaving.version)).collect();
            if !pages.is_empty() {
                messages.push((member, Request::Told { pages }));
            }
        }
        messages
    }

    /// Gives the pages back to their homes.
    fn give_back(&mut self, until: Nanos) -> Result<(), MemoryError> {
        let mut homes: BTreeMap<Member, Vec<(Page, u64)>> = BTreeMap::new();
        for leaving in &self.leaving {
            let home = self.shared.config.home(leaving.page);
            homes.entry(home).or_default().push((leaving.page, leaving.version));
        }
        let release = |(home, pages)| (home, Request::Release { claim: self.claim, pages });
        let ended = self.shared.insist(homes.into_iter().map(release).collect(), until)?;
        self.stage = Stage::Over;
        let mut cache = self.shared.cache();
        for page in cache.pages.left(self.claim.number, &self.pages) {
            cache.drop_copy(page);
        }
        self.pages.iter().for_each(|page| cache.forget_twin(*page));
        ended.first().map_or(Ok(()), |home| Err(MemoryError::HomeEnded { home: *home }))
    }
}

impl<T: AnyServices + AnyLists> Drop for Acquired<'_, T> {
    fn drop(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        let was_dirty = {
            let mut cache = self.shared.cache();
            let (was_dirty, dropped) = cache.pages.drop_claim(self.claim.number, &self.pages);
            dropped.into_iter().for_each(|page| cache.drop_copy(page));
            self.pages.iter().for_each(|page| cache.forget_twin(*page));
            was_dirty
        };
        for (home, pages) in by_home(&self.shared.config, &self.pages) {
            let request = match was_dirty {
                true => Request::Lose { claim: self.claim, pages },
                false => Request::Withdraw { claim: self.claim, pages },
            };
            self.shared.later(home, request, true);
        }
    }
}
