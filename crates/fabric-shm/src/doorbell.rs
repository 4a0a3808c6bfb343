//! A domain's doorbell: what its peers read and ring so that it need not be polled all the time.
//!
//! The page belongs to the domain and is granted, writable, to its peers. Nothing in it is trusted: whatever they
//! write costs the domain delay or a look in vain. Who has the page can also move a sleeper to another futex
//! (FUTEX_REQUEUE), where nobody wakes it. Processes of our own user, and root, could stop us outright, so they are
//! trusted not to; once others have the page, each sleep has a timer of its own. Layout: flags in the first line, mostly read; the futex word in
//! the second; one hint bit for each queue pair from the third on.

use crate::memory::{Import, Mapping, ShmMemory};
use crate::watchdog::{TICK, Watchdog};
use dunlin_fabric::{Access, Host, Nanos, RealHost, RegisterError, Wake};
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// The owner may sleep.
pub(crate) const EVENTS: u32 = 1;
/// The owner looks at the hint bits instead of at every queue pair.
pub(crate) const HINTS: u32 = 2;

const FLAGS: usize = 0;
const STATE: usize = 64;
const BITS: usize = 128;
const BIT_WORDS: usize = crate::fabric::MAX_QUEUE_PAIRS as usize / 64;
/// The length of a doorbell's memory; only the pages that are used are ever touched.
pub(crate) const LENGTH: usize = BITS + BIT_WORDS * 8;

/// Nobody sleeps or is about to.
const IDLE: u32 = 0;
/// The owner looks for the last time.
const ARMED: u32 = 1;
/// The owner sleeps.
const SLEEPING: u32 = 2;
/// Something came since the owner armed.
const RUNG: u32 = 3;
/// The owner has slept long enough.
const ROUSED: u32 = 4;

/// One sleep has begun: counted from here on, and one more asleep.
const SLEEP: u64 = 1 << 8 | 1;
/// Those asleep.
const ASLEEP: u64 = 0xff;

/// A 32-bit atomic word: the real one, or a model checker's.
pub(crate) trait Word {
    /// Loads it.
    fn load(&self) -> u32;
    /// Stores it.
    fn store(&self, value: u32);
    /// Exchanges it if it is as expected.
    fn exchange(&self, expected: u32, value: u32) -> bool;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Acquire)
    }
    #[inline]
    fn store(&self, value: u32) {
        AtomicU32::store(self, value, Ordering::Release);
    }
    #[inline]
    fn exchange(&self, expected: u32, value: u32) -> bool {
        self.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The producer's half, after a sequentially consistent fence that follows the store of what is announced: says
/// whether the owner sleeps and this caller is the one to wake it. Bounded, whatever others do to the word.
#[inline]
pub(crate) fn ring(word: &impl Word) -> bool {
    for _ in 0..8 {
        let state = word.load();
        match state {
            ARMED | SLEEPING if word.exchange(state, RUNG) => return state == SLEEPING,
            ARMED | SLEEPING => {}
            _ => return false,
        }
    }
    true
}

/// The owner's half, first: a sequentially consistent fence must follow, then the last look.
#[inline]
pub(crate) fn arm(word: &impl Word) {
    word.store(ARMED);
}

/// The owner's half, after a look in vain: whether it may sleep for as long as the word is [`SLEEPING`].
#[inline]
pub(crate) fn may_sleep(word: &impl Word) -> bool {
    word.exchange(ARMED, SLEEPING)
}

/// The owner's half, last.
#[inline]
pub(crate) fn disarm(word: &impl Word) {
    word.store(IDLE);
}

fn state_of(mapping: &Mapping) -> &AtomicU32 {
    mapping.half_word(STATE)
}

fn ring_and_wake(mapping: &Mapping) {
    fence(Ordering::SeqCst);
    if ring(state_of(mapping)) {
        wake(state_of(mapping), 1);
    }
}

#[cold]
fn wake(word: &AtomicU32, sleepers: u32) {
    // Not private: the sleeper may be another process, which maps the same page.
    if let Err(error) = futex::wake(word, futex::Flags::empty(), sleepers) {
        tracing::warn!(%error, "a sleeper cannot be woken; it wakes by itself within 20 ms");
    }
}

/// A domain's own side, shared with its wakers and the control thread.
#[derive(Debug)]
pub(crate) struct Attention {
    memory: Arc<ShmMemory>,
    woken: AtomicBool,
    news: AtomicU64,
    /// How many sleeps have begun, and in the lowest 8 bits how many of them last.
    sleeps: AtomicU64,
    /// Processes of other users have the page.
    distrusted: AtomicBool,
    watchdog: Arc<Watchdog>,
}

impl Attention {
    pub(crate) fn new(watchdog: &Arc<Watchdog>) -> Result<Arc<Self>, RegisterError> {
        let attention = Arc::new(Attention {
            memory: Arc::new(ShmMemory::new(LENGTH as u64, Access::READ.with(Access::WRITE))?),
            woken: AtomicBool::new(false),
            news: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            distrusted: AtomicBool::new(false),
            watchdog: Arc::clone(watchdog),
        });
        watchdog.add(&attention);
        Ok(attention)
    }

    /// A process of another user gets the page.
    pub(crate) fn distrust(&self) {
        if !self.distrusted.swap(true, Ordering::SeqCst) {
            // A sleep that began before has no timer.
            self.rouse();
        }
    }

    /// Differs once another sleep has begun or ended.
    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::SeqCst)
    }

    /// Whether the owner sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeps() & ASLEEP != 0
    }

    /// Ends a sleep, whatever a peer has made of the word.
    pub(crate) fn rouse(&self) {
        let word = state_of(self.memory.mapping());
        if !word.exchange(SLEEPING, ROUSED) {
            Word::store(word, RUNG);
        }
        // All: one of them may be a peer that sleeps there to be woken instead of the owner.
        wake(word, i32::MAX as u32);
    }

    /// The page, for granting it.
    pub(crate) fn memory(&self) -> &Arc<ShmMemory> {
        &self.memory
    }

    /// Tells peers how to announce things from now on. Those who have just looked are late by one sleep at most.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.memory.mapping().half_word(FLAGS).store(flags, Ordering::SeqCst);
    }

    /// Makes the current or the next wait return.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        ring_and_wake(self.memory.mapping());
    }

    /// Something happened to a link or to the other end of a queue pair.
    pub(crate) fn news(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Changes with each piece of news.
    #[inline]
    pub(crate) fn news_seen(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Whether [`wake`](Attention::wake) was called since this was last asked.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Before the last look.
    pub(crate) fn arm(&self) {
        arm(state_of(self.memory.mapping()));
        fence(Ordering::SeqCst);
    }

    /// After it, if it found something or the sleep is over.
    pub(crate) fn disarm(&self) {
        disarm(state_of(self.memory.mapping()));
    }

    /// After [`arm`](Attention::arm) and a look in vain: sleeps until rung or woken, until then, or for two ticks.
    pub(crate) fn rest(&self, until: Nanos) -> Wake {
        let arrived = self.take_woken() || {
            // No look at the clock when there is no end to look for.
            let left = match until {
                0 | Nanos::MAX => until,
                until => until.saturating_sub(RealHost.now()),
            };
            left > 0 && self.sleep(left)
        };
        self.disarm();
        self.take_woken();
        if arrived { Wake::Arrived } else { Wake::TimedOut }
    }

    /// Sleeps until rung, or for so many nanoseconds, or two ticks; whether it was rung. One thread's at a time.
    pub(crate) fn sleep(&self, nanoseconds: u64) -> bool {
        let word = state_of(self.memory.mapping());
        if !may_sleep(word) {
            return true;
        }
        self.sleeps.fetch_add(SLEEP, Ordering::SeqCst);
        // A timer of its own would be a tenth of what the sleep costs; near the end it keeps the time better.
        let guarded =
            nanoseconds >= 4 * TICK && !self.distrusted.load(Ordering::SeqCst) && self.watchdog.guard();
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: nanoseconds.min(TICK) as _ };
        let woken = futex::wait(word, futex::Flags::empty(), SLEEPING, (!guarded).then_some(&timeout));
        self.sleeps.fetch_sub(1, Ordering::Release);
        match woken {
            Err(Errno::TIMEDOUT) => false,
            // Woken, rung before the kernel looked, or interrupted: look again.
            _ => Word::load(word) != ROUSED,
        }
    }

    /// Takes all hint bits of a word.
    #[inline]
    pub(crate) fn take_hints(&self, word: usize) -> u64 {
        let word = self.memory.mapping().word(BITS + word * 8);
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) }
    }

    /// Sets a hint bit of our own.
    pub(crate) fn hint(&self, bit: u16) {
        set_hint(self.memory.mapping(), bit);
    }
}

fn set_hint(mapping: &Mapping, bit: u16) {
    let word = mapping.word(BITS + usize::from(bit) / 64 * 8);
    let mask = 1 << (bit % 64);
    if word.load(Ordering::Relaxed) & mask == 0 {
        word.fetch_or(mask, Ordering::AcqRel);
    }
}

/// A peer's doorbell, as its queue pair at the other end of one of ours listens to it.
#[derive(Debug)]
pub(crate) struct PeerDoorbell {
    import: Arc<Import>,
    bit: u16,
}

impl PeerDoorbell {
    /// `None` if what was granted is not a doorbell.
    pub(crate) fn new(import: Arc<Import>, bit: u16) -> Option<Self> {
        let fits = import.mapping().length() == LENGTH && import.access().contains(Access::WRITE);
        fits.then_some(PeerDoorbell { import, bit })
    }

    /// Announces a record that was stored before. Costs one load of a line that rarely changes unless the owner may
    /// sleep or goes by hints.
    #[inline]
    pub(crate) fn ring(&self) {
        let mapping = self.import.mapping();
        let flags = mapping.half_word(FLAGS).load(Ordering::Relaxed);
        if flags != 0 {
            self.ring_by(flags);
        }
    }

    #[inline(never)]
    fn ring_by(&self, flags: u32) {
        let mapping = self.import.mapping();
        if flags & HINTS != 0 {
            set_hint(mapping, self.bit);
        }
        if flags & EVENTS != 0 {
            ring_and_wake(mapping);
        }
    }

    /// Wakes the owner if it sleeps, for news about what it has sent: no hint is needed for that. The caller has
    /// put a sequentially consistent fence between the news and this.
    pub(crate) fn ring_for_sender(&self) {
        let word = state_of(self.import.mapping());
        if ring(word) {
            wake(word, 1);
        }
    }

    /// Whether the owner may sleep.
    #[inline]
    pub(crate) fn may_sleep(&self) -> bool {
        self.import.mapping().half_word(FLAGS).load(Ordering::Relaxed) & EVENTS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic as model;

    impl Word for model::AtomicU32 {
        fn load(&self) -> u32 {
            model::AtomicU32::load(self, Ordering::Acquire)
        }
        fn store(&self, value: u32) {
            model::AtomicU32::store(self, value, Ordering::Release);
        }
        fn exchange(&self, expected: u32, value: u32) -> bool {
            self.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }
    }

    /// One owner that looks and sleeps, some producers that store and ring. Gives whether the owner sleeps with
    /// something there and nobody to wake it, and how often it was woken.
    fn run(producers: u32, fenced: bool) -> (bool, u32) {
        let word = loom::sync::Arc::new(model::AtomicU32::new(IDLE));
        let records = loom::sync::Arc::new(model::AtomicU32::new(0));
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let (word, records) = (loom::sync::Arc::clone(&word), loom::sync::Arc::clone(&records));
                loom::thread::spawn(move || {
                    records.fetch_add(1, Ordering::Release);
                    if fenced {
                        model::fence(Ordering::SeqCst);
                    }
                    ring(&*word)
                })
            })
            .collect();
        arm(&*word);
        if fenced {
            model::fence(Ordering::SeqCst);
        }
        let found = model::AtomicU32::load(&records, Ordering::Acquire);
        let sleeps = found == 0 && may_sleep(&*word);
        let wakes = threads.into_iter().map(|t| u32::from(t.join().unwrap())).sum();
        (sleeps && wakes == 0, wakes)
    }

    #[test]
    fn no_wake_up_is_lost_and_none_is_doubled() {
        // One producer in every order there is; with two there are too many, so at most two pre-emptions each.
        for (producers, preemption_bound) in [(1, None), (2, Some(2))] {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = preemption_bound;
            model.check(move || {
                let (lost, wakes) = run(producers, true);
                assert!(!lost);
                assert!(wakes <= 1);
            });
        }
    }

    #[test]
    fn the_model_finds_what_the_fences_are_for() {
        let lost = std::panic::catch_unwind(|| loom::model(|| assert!(!run(1, false).0)));
        assert!(lost.is_err());
    }

    #[test]
    fn a_tampered_word_does_not_hold_anybody() {
        for state in [IDLE, ARMED, SLEEPING, RUNG, ROUSED, 5, u32::MAX] {
            let word = AtomicU32::new(state);
            ring(&word);
            may_sleep(&word);
        }
        let attention = Attention::new(&Watchdog::new().unwrap()).unwrap();
        attention.arm();
        state_of(attention.memory().mapping()).store(77, Ordering::Relaxed);
        assert!(attention.sleep(1), "does not sleep on a word that is not its own");
    }
}
