//! Locks between nodes (LITE, SOSP 2017, section 7.2): a word in the memory of an owner node, and a queue there.
//!
//! A free lock costs its taker one atomic and no processor of the owner. A taker that finds it held calls the owner,
//! which marks the word ([`Word::has_waiters`]) and queues the call. The holder gives the lock back by a swap of the
//! word. If that fails because of the mark, the holder tells the owner, which gives the lock to exactly one waiter, in
//! order of arrival.
//!
//! | | LITE | here |
//! |---|---|---|
//! | taking a free lock | FETCH_ADD of a ticket | COMPARE_SWAP of the holder's number and the next fence number |
//! | the holder | not in the word | in the word, so the owner knows who has died |
//! | while somebody waits | the word counts tickets | only the owner changes the word |
//! | a waiter that gives up | not stated; blocks the lock | [`Queue::plan`] of [`Event::Abandon`] |
//! | a holder that dies | not stated; blocks the lock | [`Event::Dead`]: the next one gets the lock poisoned |
//!
//! FETCH_ADD never fails, but leaves tickets of which the owner does not know whose they are. COMPARE_SWAP needs the
//! word's value: a taker knows the last one that it saw, and a failure tells it the present one.

#[cfg(test)]
mod explore;
pub mod message;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// A taker of locks, as the owner numbers them: one life of one node. The owner never gives a number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(u16);

impl Member {
    /// Returns the member with this number; `None` for 0, which stands for nobody.
    pub const fn new(number: u16) -> Option<Member> {
        if number == 0 { None } else { Some(Member(number)) }
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// The word of a lock: the holder, two marks, and the fence number of the last grant, which only grows.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Word(u64);

const HOLDER: u64 = 0xffff;
const WAITERS: u64 = 1 << 16;
const POISONED: u64 = 1 << 17;
const FENCE_SHIFT: u32 = 18;
/// Fence numbers wrap after 2^46 grants: at one grant in a microsecond, after two years.
const FENCES: u64 = u64::MAX >> FENCE_SHIFT;
/// Grants of one lock before its fence numbers reach those of an owner that began with the next view.
const GRANT_BITS: u32 = 28;

impl Word {
    /// Returns the word with these bits, which a peer may have written.
    pub const fn from_bits(bits: u64) -> Word {
        Word(bits)
    }

    /// Returns the bits, as they lie in memory.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the member that has the lock.
    pub const fn holder(self) -> Option<Member> {
        Member::new((self.0 & HOLDER) as u16)
    }

    /// Returns whether members wait, so that only the owner changes the word.
    pub const fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// Returns whether the last holder died with the lock.
    pub const fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// Returns the fence number of the last grant.
    pub const fn fence(self) -> u64 {
        self.0 >> FENCE_SHIFT
    }

    /// Returns the word of a free lock of which an owner that began with the view of this number has made no grant yet. Its
    /// fence numbers exceed those of owners before, up to 2^28 grants of one lock and 2^18 views.
    pub const fn starting(view: u64) -> Word {
        Word((view << GRANT_BITS & FENCES) << FENCE_SHIFT)
    }

    /// Returns the word after `member` has taken the lock; `None` if it is held.
    pub fn taken_by(self, member: Member) -> Option<Word> {
        self.holder().is_none().then(|| self.granted(member, false))
    }

    fn granted(self, member: Member, has_waiters: bool) -> Word {
        let fence = self.fence().wrapping_add(1) & FENCES;
        Word(u64::from(member.0) | if has_waiters { WAITERS } else { 0 } | fence << FENCE_SHIFT)
    }

    /// Returns the word after its holder has given the lock back; `None` if it has to tell the owner, since members
    /// waited already when it was granted.
    pub fn given_back(self) -> Option<Word> {
        (!self.has_waiters()).then(|| self.freed())
    }

    const fn freed(self) -> Word {
        Word(self.0 & !(HOLDER | WAITERS | POISONED))
    }

    /// Returns the word of a free lock with this fence number: a taker's first guess.
    pub const fn if_free(self) -> Word {
        Word(self.0 & !(HOLDER | WAITERS))
    }

    /// Returns whether this is the word of `grant`, with or without waiters since.
    fn is_of(self, grant: Word) -> bool {
        self.holder() == grant.holder() && self.fence() == grant.fence()
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word")
            .field("holder", &self.holder())
            .field("has_waiters", &self.has_waiters())
            .field("is_poisoned", &self.is_poisoned())
            .field("fence", &self.fence())
            .finish()
    }
}

/// A call of a member that waits for a lock. A member has one at a time for each lock, each with another number: it
/// makes the next one after the owner has answered or has heard [`Event::Abandon`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter {
    /// The member.
    pub member: Member,
    /// Its number for the call.
    pub call: u64,
}

/// News for a lock's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A member wants the lock, and waits for it.
    Reserve(Waiter),
    /// A member wants the lock if it is free, and does not wait.
    Try(Waiter),
    /// A member gives back the lock that it was granted with this word. A repetition has no effect.
    Unlock(Word),
    /// As [`Unlock`](Event::Unlock), from a member that lives: a process of its host died with the lock.
    Poison(Word),
    /// A member does not wait any more. If it has been granted the lock by that call, it gives it back.
    Abandon(Waiter),
    /// A member has died.
    Dead(Member),
}

/// An event's effect on the queue, once the word has been swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Effect {
    Nothing,
    Grant(Waiter),
    GrantFirst,
    Append(Waiter),
    Remove(Waiter),
}

/// A change of a lock that the owner has to make: swap the word, if it has to change, then [`Queue::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Plan {
    word: Word,
    /// The word's new value; `None` if it stays.
    pub swap: Option<Word>,
    effect: Effect,
}

/// A lock given to a waiter. Its call is answered with the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The waiter.
    pub waiter: Waiter,
    /// The word of the grant.
    pub word: Word,
    /// The last holder died with the lock.
    pub poisoned: bool,
}

/// The waiters of a lock, at its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    waiting: VecDeque<Waiter>,
    /// The last grant by the owner.
    granted: Option<Grant>,
    /// Calls that were given up before they came, the last one of a member.
    overtaken: BTreeMap<Member, u64>,
}

impl Queue {
    /// Returns the waiters, in order of arrival.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = Waiter> + '_ {
        self.waiting.iter().copied()
    }

    /// Decides what an event changes, if the lock's word is `word`. Changes nothing itself: if another node has changed
    /// the word meanwhile, the swap fails, and the event is planned again with the new value.
    pub fn plan(&self, word: Word, event: Event) -> Plan {
        let stays = |effect| Plan { word, swap: None, effect };
        let swap = |new, effect| Plan { word, swap: Some(new), effect };
        match event {
            Event::Reserve(waiter) | Event::Try(waiter)
                if self.overtaken.get(&waiter.member) == Some(&waiter.call) =>
            {
                stays(Effect::Remove(waiter))
            }
            Event::Try(waiter) => match word.taken_by(waiter.member) {
                Some(taken) => swap(taken, Effect::Grant(waiter)),
                None => stays(Effect::Nothing),
            },
            Event::Reserve(waiter) => match word.taken_by(waiter.member) {
                Some(taken) => swap(taken, Effect::Grant(waiter)),
                None if word.has_waiters() => stays(Effect::Append(waiter)),
                None => swap(Word(word.0 | WAITERS), Effect::Append(waiter)),
            },
            Event::Unlock(grant) if grant.holder().is_some() && word.is_of(grant) => {
                self.pass_on(word, false)
            }
            Event::Poison(grant) if grant.holder().is_some() && word.is_of(grant) => self.pass_on(word, true),
            Event::Abandon(waiter) => match self.granted {
                // Nobody has seen that it was poisoned.
                Some(grant) if grant.waiter == waiter && word.is_of(grant.word) => {
                    self.pass_on(word, grant.poisoned)
                }
                _ => stays(Effect::Remove(waiter)),
            },
            Event::Dead(member) if word.holder() == Some(member) => self.pass_on(word, true),
            Event::Unlock(_) | Event::Poison(_) | Event::Dead(_) => stays(Effect::Nothing),
        }
    }

    /// Gives a lock to the first waiter, or to nobody.
    fn pass_on(&self, word: Word, poisoned: bool) -> Plan {
        let mark = if poisoned { POISONED } else { 0 };
        let (new, effect) = match self.waiting.front() {
            Some(first) => (word.granted(first.member, self.waiting.len() > 1), Effect::GrantFirst),
            None => (word.freed(), Effect::Nothing),
        };
        // The mark of a grant is for its receiver only, and does not stay in the word of a lock that is held.
        let swap = Word(if effect == Effect::Nothing { new.0 | mark } else { new.0 });
        Plan { word: Word(word.0 | mark), swap: Some(swap), effect }
    }

    /// Carrier out a plan whose swap has succeeded. No other plan was carried out since it was made.
    pub fn apply(&mut self, plan: Plan) -> Option<Grant> {
        let grant = |queue: &mut Queue, waiter| {
            let word = plan.swap.unwrap_or(plan.word);
            queue.granted = Some(Grant { waiter, word, poisoned: plan.word.is_poisoned() });
            queue.granted
        };
        match plan.effect {
            Effect::Nothing => None,
            Effect::Grant(waiter) => grant(self, waiter),
            Effect::GrantFirst => {
                let first = self.waiting.pop_front()?;
                grant(self, first)
            }
            Effect::Append(waiter) => {
                // Of two calls of a member one counts, so that no member fills the queue.
                self.waiting.retain(|other| other.member != waiter.member);
                self.waiting.push_back(waiter);
                None
            }
            Effect::Remove(waiter) => {
                let was_here = self.waiting.contains(&waiter)
                    || self.granted.is_some_and(|grant| grant.waiter == waiter)
                    || self.overtaken.remove(&waiter.member) == Some(waiter.call);
                self.waiting.retain(|other| *other != waiter);
                if !was_here {
                    self.overtaken.insert(waiter.member, waiter.call);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u16) -> Member {
        Member::new(number).unwrap()
    }

    fn waiter(number: u16, call: u64) -> Waiter {
        Waiter { member: member(number), call }
    }

    /// Carrier an event out on a word that nobody else changes.
    fn carry_out(queue: &mut Queue, word: &mut Word, event: Event) -> Option<Grant> {
        let plan = queue.plan(*word, event);
        *word = plan.swap.unwrap_or(*word);
        queue.apply(plan)
    }

    #[test]
    fn a_free_lock_is_taken_and_given_back_without_the_owner() {
        let word = Word::default();
        let taken = word.taken_by(member(7)).unwrap();
        assert_eq!((taken.holder(), taken.fence(), taken.has_waiters()), (Some(member(7)), 1, false));
        assert!(taken.taken_by(member(8)).is_none());
        assert_eq!(taken.given_back().unwrap().taken_by(member(8)).unwrap().fence(), 2);
        assert_eq!(taken.if_free(), taken.given_back().unwrap());
        assert!(Member::new(0).is_none());
    }

    #[test]
    fn waiters_have_their_turns_in_order() {
        let (mut queue, mut word) = (Queue::default(), Word::default().taken_by(member(1)).unwrap());
        let first = word;
        for number in 2..5 {
            assert!(carry_out(&mut queue, &mut word, Event::Reserve(waiter(number, 10))).is_none());
        }
        assert!(word.has_waiters());
        let mut held = first;
        for number in 2..5 {
            let grant = carry_out(&mut queue, &mut word, Event::Unlock(held)).unwrap();
            assert_eq!((grant.waiter, grant.poisoned), (waiter(number, 10), false));
            assert!(carry_out(&mut queue, &mut word, Event::Unlock(held)).is_none(), "once only");
            assert_eq!((word, word.has_waiters()), (grant.word, number < 4));
            held = grant.word;
        }
        assert!(carry_out(&mut queue, &mut word, Event::Unlock(held)).is_none());
        assert_eq!((word.holder(), word.fence()), (None, 4));
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_the_queue_or_the_lock() {
        let (mut queue, mut word) = (Queue::default(), Word::default().taken_by(member(1)).unwrap());
        let held = word;
        for number in [2, 3, 4] {
            carry_out(&mut queue, &mut word, Event::Reserve(waiter(number, 1)));
        }
        carry_out(&mut queue, &mut word, Event::Abandon(waiter(2, 1)));
        carry_out(&mut queue, &mut word, Event::Abandon(waiter(4, 9)));
        let grant = carry_out(&mut queue, &mut word, Event::Unlock(held)).unwrap();
        assert_eq!(grant.waiter, waiter(3, 1));
        let next = carry_out(&mut queue, &mut word, Event::Abandon(waiter(3, 1))).unwrap();
        assert_eq!(next.waiter, waiter(4, 1));
        assert!(carry_out(&mut queue, &mut word, Event::Abandon(waiter(3, 1))).is_none());
        assert_eq!(word.holder(), Some(member(4)));
    }

    #[test]
    fn a_dead_holders_lock_is_poisoned_once() {
        let (mut queue, mut word) = (Queue::default(), Word::default().taken_by(member(1)).unwrap());
        carry_out(&mut queue, &mut word, Event::Reserve(waiter(2, 1)));
        assert!(carry_out(&mut queue, &mut word, Event::Dead(member(3))).is_none());
        let grant = carry_out(&mut queue, &mut word, Event::Dead(member(1))).unwrap();
        assert_eq!((grant.poisoned, word.is_poisoned(), word.holder()), (true, false, Some(member(2))));
        // Nobody waits: the mark stays for the next one that takes the lock.
        assert!(carry_out(&mut queue, &mut word, Event::Dead(member(2))).is_none());
        assert!(word.is_poisoned() && word.holder().is_none());
        assert!(!word.taken_by(member(3)).unwrap().is_poisoned());
        let grant = carry_out(&mut queue, &mut word, Event::Reserve(waiter(3, 1))).unwrap();
        assert!(grant.poisoned);
    }

    #[test]
    fn a_lock_that_is_tried_is_granted_or_left_alone() {
        let (mut queue, mut word) = (Queue::default(), Word::default());
        let held = carry_out(&mut queue, &mut word, Event::Try(waiter(1, 1))).unwrap().word;
        assert!(carry_out(&mut queue, &mut word, Event::Try(waiter(2, 1))).is_none());
        assert_eq!((word, queue.waiting().len()), (held, 0), "no mark and no waiter");
        // A request that was given up before it came takes no place in the queue.
        carry_out(&mut queue, &mut word, Event::Unlock(held));
        carry_out(&mut queue, &mut word, Event::Abandon(waiter(2, 2)));
        assert!(carry_out(&mut queue, &mut word, Event::Try(waiter(2, 2))).is_none());
        assert!(word.holder().is_none());
    }

    #[test]
    fn a_living_members_process_that_died_poisons_its_own_grant_only() {
        let (mut queue, mut word) = (Queue::default(), Word::default().taken_by(member(1)).unwrap());
        let first = word;
        carry_out(&mut queue, &mut word, Event::Reserve(waiter(2, 1)));
        let grant = carry_out(&mut queue, &mut word, Event::Poison(first)).unwrap();
        assert_eq!((grant.poisoned, grant.waiter), (true, waiter(2, 1)));
        assert!(carry_out(&mut queue, &mut word, Event::Poison(first)).is_none(), "once only");
        assert_eq!(word, grant.word);
        carry_out(&mut queue, &mut word, Event::Poison(grant.word));
        assert!(word.holder().is_none() && word.is_poisoned());
    }

    #[test]
    fn a_later_owner_has_greater_fence_numbers() {
        assert_eq!(Word::starting(0), Word::default());
        let mut last = Word::starting(7);
        for _ in 0..1000 {
            last = last.taken_by(member(3)).unwrap().given_back().unwrap();
        }
        let next = Word::starting(8);
        assert!(next.fence() > last.fence() && next.holder().is_none() && !next.has_waiters());
    }

    #[test]
    fn fence_numbers_wrap() {
        let word = Word::from_bits(!(HOLDER | WAITERS | POISONED));
        assert_eq!(word.taken_by(member(9)).unwrap(), Word::from_bits(9));
    }

    proptest::proptest! {
        /// Whoever may write a word can write anything into it. The owner gives a waiter the lock at most once for each call,
        /// forgets none, and grants it to nobody who did not ask.
        #[test]
        fn an_owner_survives_any_word(
            words in proptest::collection::vec(proptest::prelude::any::<u64>(), 1..60),
            events in proptest::collection::vec((0u8..6, 1u16..5, 0u64..3), 60),
        ) {
            let mut queue = Queue::default();
            let mut asked = std::collections::BTreeMap::new();
            for (bits, (kind, number, call)) in words.iter().zip(events) {
                let (mut word, who) = (Word::from_bits(*bits), waiter(number, call));
                let event = match kind {
                    0 | 1 => Event::Reserve(who),
                    2 => Event::Try(who),
                    3 => Event::Unlock(word),
                    4 => Event::Abandon(who),
                    _ => Event::Dead(who.member),
                };
                if matches!(event, Event::Reserve(_) | Event::Try(_)) {
                    *asked.entry(who).or_insert(0) += 1;
                }
                if let Some(grant) = carry_out(&mut queue, &mut word, event) {
                    let left = asked.get_mut(&grant.waiter).map(|left| { *left -= 1; *left });
                    proptest::prop_assert!(left.is_some_and(|left| left >= 0), "{grant:?} was not asked for");
                    proptest::prop_assert_eq!(word.holder(), Some(grant.waiter.member));
                }
                let members: std::collections::BTreeSet<_> = queue.waiting().map(|one| one.member).collect();
                proptest::prop_assert_eq!(members.len(), queue.waiting().len(), "a member waits once");
            }
        }
    }
}
