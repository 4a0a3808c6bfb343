//! A domain's doorbell: the page through which peers wake the domain and hint at queue pairs with messages.
//!
//! The page belongs to the domain and is granted, writable, to its peers. The domain trusts nothing in it:
//! any value that a peer writes costs at most a delay or an empty poll. A process with the page can also move
//! a sleeper to another futex (FUTEX_REQUEUE), where no thread wakes it. Processes of the same user, and
//! root, could stop this process anyway, so they are trusted not to do that. Once other users' processes have
//! the page, each sleep has its own timer.
//!
//! Layout: flags in the first line, mostly read; the futex word in the second; from the third on, one hint
//! bit for each queue pair.

use crate::barrier;
use crate::limits::MAX_QUEUE_PAIRS;
use crate::memory::{Import, Mapping, ShmMemory};
use crate::watchdog::{SLOW_TICK, Sleeper, TICK, Watchdog};
use dunlin_fabric::{Access, Host, Nanos, OtherDomain, RealHost, RegisterError, WaitMode, Wake, copy};
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

/// Flag: the owner may sleep.
pub(crate) const EVENTS: u32 = 1;
/// Flag: the owner checks the hint bits instead of every queue pair.
pub(crate) const HINTS: u32 = 2;

/// Flag: the owner sleeps or is about to, and plain WRITEs ring as well. Clear while the owner is awake.
///
/// Producers read this flag after each record or WRITE, without a fence. The owner makes up for it: after it
/// has set the flag, and before its last poll, it executes a barrier on all processors that run a producer
/// ([`barrier`]).
pub(crate) const WRITES: u32 = 4;

const FLAGS: usize = 0;
const STATE: usize = 64;
const BITS: usize = 128;
const BIT_WORDS: usize = MAX_QUEUE_PAIRS as usize / 64;
/// The length of a doorbell's memory. Only pages in use are ever touched.
pub(crate) const LENGTH: usize = BITS + BIT_WORDS * 8;

/// No thread sleeps or is about to.
const IDLE: u32 = 0;
/// The owner polls for the last time before it sleeps.
const ARMED: u32 = 1;
/// The owner sleeps.
const SLEEPING: u32 = 2;
/// A ring has arrived since the owner armed, or the sleep has lasted long enough.
const RUNG: u32 = 3;

/// The increment at the start of a sleep: one more in the count of sleeps, and one more thread asleep.
const SLEEP: u64 = 1 << 8 | 1;
/// Mask of the number of threads asleep.
const ASLEEP: u64 = 0xff;

/// The number of consecutive sleeps without a ring after which the owner sleeps patiently.
const PATIENT_AFTER: u8 = 8;

/// A 32-bit atomic word: the real one, or a model checker's.
pub(crate) trait Word {
    /// Loads the value.
    fn load(&self) -> u32;
    /// Stores a value.
    fn store(&self, value: u32);
    /// Stores `value` if the current value is `expected`; returns whether it was.
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

/// A 64-bit word of hint bits: the real one, or a model checker's.
pub(crate) trait Hints {
    /// Loads the bits with relaxed ordering.
    fn glance(&self) -> u64;
    /// Sets bits.
    fn set(&self, bits: u64);
    /// Clears all bits and returns them.
    fn take(&self) -> u64;
    /// Executes a sequentially consistent fence.
    fn fence();
}

impl Hints for AtomicU64 {
    #[inline]
    fn glance(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
    #[inline]
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::AcqRel);
    }
    #[inline]
    fn take(&self) -> u64 {
        self.swap(0, Ordering::AcqRel)
    }
    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The producer's half, between the store of a record and [`ring`]. A hint that is already set is about to be
/// taken by an owner that polls afterwards. The fence orders the load of the hint after the store of the
/// record.
#[inline]
fn announce<H: Hints>(hints: &H, bit: u64) {
    H::fence();
    if hints.glance() & bit == 0 {
        hints.set(bit);
    }
}

/// The owner's half. A poll after it sees all records whose producers found their hint set.
#[inline]
fn take_hints<H: Hints>(hints: &H) -> u64 {
    if hints.glance() == 0 {
        return 0;
    }
    let bits = hints.take();
    H::fence();
    bits
}

/// The producer's half, after a sequentially consistent fence that follows the store of a record. Returns
/// whether the owner sleeps and this caller must wake it. Bounded, whatever others do to the word.
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

/// As [`ring`], for a caller that expects the owner to sleep. The cache line is fetched once, for writing,
/// instead of for reading first.
#[inline]
pub(crate) fn ring_sleeper(word: &impl Word) -> bool {
    word.exchange(SLEEPING, RUNG) || ring(word)
}

/// The owner's half, first step. A sequentially consistent fence must follow, then the last poll.
#[inline]
pub(crate) fn arm(word: &impl Word) {
    word.store(ARMED);
}

/// The owner's half, after an empty poll. Returns whether it may sleep while the word is [`SLEEPING`].
#[inline]
pub(crate) fn may_sleep(word: &impl Word) -> bool {
    word.exchange(ARMED, SLEEPING)
}

/// The owner's half, last step.
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
    // Not a private futex: the sleeper may be another process that maps the same page.
    if let Err(error) = futex::wake(word, futex::Flags::empty(), sleepers) {
        tracing::warn!(%error, "a sleeper cannot be woken; it wakes by itself within 200 ms");
    }
}

/// The domain's own side, shared with its wakers and the control thread.
#[derive(Debug)]
pub(crate) struct DomainWaiter {
    memory: Arc<ShmMemory>,
    woken: AtomicBool,
    news: AtomicU64,
    other: OtherDomain,
    /// The number of sleeps begun; the lowest 8 bits hold the number of threads asleep.
    sleeps: AtomicU64,
    /// Whether the watchdog, rather than a peer, ended the sleep.
    roused: AtomicBool,
    /// The number of consecutive sleeps that the watchdog ended. Only the owner uses it.
    in_vain: AtomicU8,
    /// Whether the current sleep, or the one about to begin, may be a long one.
    patient: AtomicBool,
    /// Whether processes of other users have the page.
    distrusted: AtomicBool,
    watchdog: Arc<Watchdog>,
}

impl Sleeper for DomainWaiter {
    fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::SeqCst)
    }

    fn is_asleep(&self) -> bool {
        self.sleeps() & ASLEEP != 0
    }

    fn is_patient(&self) -> bool {
        self.patient.load(Ordering::SeqCst)
    }

    fn rouse(&self) {
        let word = state_of(self.memory.mapping());
        if word.exchange(SLEEPING, RUNG) {
            self.roused.store(true, Ordering::Release);
        } else {
            Word::store(word, RUNG);
        }
        // Wakes all sleepers: one of them may be a peer that waits on the word in order to intercept the
        // wake-up.
        wake(word, i32::MAX as u32);
    }
}

impl DomainWaiter {
    pub(crate) fn new(watchdog: &Arc<Watchdog>) -> Result<Arc<Self>, RegisterError> {
        let attention = Arc::new(DomainWaiter {
            memory: Arc::new(ShmMemory::new(LENGTH as u64, Access::READ.with(Access::WRITE))?),
            woken: AtomicBool::new(false),
            news: AtomicU64::new(0),
            other: OtherDomain::default(),
            sleeps: AtomicU64::new(0),
            roused: AtomicBool::new(false),
            in_vain: AtomicU8::new(0),
            patient: AtomicBool::new(false),
            distrusted: AtomicBool::new(false),
            watchdog: Arc::clone(watchdog),
        });
        watchdog.add(&attention);
        Ok(attention)
    }

    /// Records that a process of another user gets the page.
    pub(crate) fn distrust(&self) {
        if !self.distrusted.swap(true, Ordering::SeqCst) {
            // A sleep that began earlier has no timer.
            self.rouse();
        }
    }

    /// Returns whether processes of other users have the page.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Relaxed)
    }

    /// Returns the page, for granting it.
    pub(crate) fn memory(&self) -> &Arc<ShmMemory> {
        &self.memory
    }

    /// Adds to the flags that peers read before they announce a record. A peer that has just read the old
    /// flags causes a delay of one sleep at most.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.memory.mapping().half_word(FLAGS).fetch_or(flags, Ordering::SeqCst);
    }

    /// Makes the current or the next wait return.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        ring_and_wake(self.memory.mapping());
    }

    /// Notifies the owner of an event of a link or of a queue pair's other end.
    pub(crate) fn news(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        self.wake();
        self.other.wake();
    }

    /// Returns the domain whose thread the next event wakes.
    pub(crate) fn other(&self) -> &OtherDomain {
        &self.other
    }

    /// Returns a value that changes with each such event.
    #[inline]
    pub(crate) fn news_seen(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Returns whether [`wake`](DomainWaiter::wake) was called since the last call of this method.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Arms the doorbell, before the last poll. In mode [`WaitMode::Write`], plain WRITEs ring from now on.
    pub(crate) fn arm(&self, mode: WaitMode) {
        arm(state_of(self.memory.mapping()));
        if mode == WaitMode::Write {
            self.set_flags(WRITES);
            barrier::all_processors();
        }
        fence(Ordering::SeqCst);
    }

    /// Ends the effect of [`WaitMode::Write`], after a wait or a disarming.
    pub(crate) fn end_writes(&self, mode: WaitMode) {
        if mode == WaitMode::Write {
            self.memory.mapping().half_word(FLAGS).fetch_and(!WRITES, Ordering::SeqCst);
        }
    }

    /// Disarms the doorbell, if that poll found something.
    pub(crate) fn disarm(&self) {
        self.found();
        disarm(state_of(self.memory.mapping()));
    }

    /// Sleeps after [`arm`](DomainWaiter::arm) and an empty poll, until a ring, a waker or `until`. Lasts at
    /// most two ticks of the watchdog; after several spurious wake-ups these are slow ticks.
    pub(crate) fn rest(&self, until: Nanos) -> Wake {
        if self.take_woken() {
            self.disarm();
            return Wake::Arrived;
        }
        // Avoids reading the clock when there is no deadline.
        let left = match until {
            0 | Nanos::MAX => until,
            until => until.saturating_sub(RealHost.now()),
        };
        if left == 0 || !self.sleep(left) {
            disarm(state_of(self.memory.mapping()));
            self.take_woken();
            return Wake::TimedOut;
        }
        // The word keeps the value that the ring left, so that no peer rings again. The next arming writes
        // it, which avoids fetching the line from the peer's cache now.
        self.take_woken();
        Wake::Arrived
    }

    /// Sleeps until a ring, for `nanoseconds`, or for two ticks; returns whether a ring ended the sleep. One
    /// thread at a time may call it.
    pub(crate) fn sleep(&self, nanoseconds: u64) -> bool {
        let word = state_of(self.memory.mapping());
        self.roused.store(false, Ordering::Relaxed);
        if !may_sleep(word) {
            return true;
        }
        let patient = self.in_vain.load(Ordering::Relaxed) >= PATIENT_AFTER && nanoseconds >= 4 * SLOW_TICK;
        if patient != self.patient.load(Ordering::Relaxed) {
            self.patient.store(patient, Ordering::Relaxed);
        }
        self.sleeps.fetch_add(SLEEP, Ordering::SeqCst);
        // A timer for each sleep would cost a tenth of the sleep; for short sleeps it is more precise than
        // the watchdog.
        let guarded = nanoseconds >= 4 * TICK
            && !self.distrusted.load(Ordering::SeqCst)
            && self.watchdog.guard(patient);
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: nanoseconds.min(TICK) as _ };
        let woken = futex::wait(word, futex::Flags::empty(), SLEEPING, (!guarded).then_some(&timeout));
        self.sleeps.fetch_sub(1, Ordering::Release);
        let roused = self.roused.load(Ordering::Acquire);
        if roused {
            let in_vain = self.in_vain.load(Ordering::Relaxed);
            self.in_vain.store(in_vain.saturating_add(1), Ordering::Relaxed);
        } else {
            self.found();
        }
        // Woken, rung before the kernel checked the word, or interrupted: the caller polls again.
        woken != Err(Errno::TIMEDOUT) && !roused
    }

    /// Records that a wait ended with something found.
    fn found(&self) {
        if self.in_vain.load(Ordering::Relaxed) != 0 {
            self.in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// Takes all hint bits of a word.
    #[inline]
    pub(crate) fn take_hints(&self, word: usize) -> u64 {
        take_hints(self.memory.mapping().word(BITS + word * 8))
    }

    /// Sets a hint bit of this domain.
    pub(crate) fn hint(&self, bit: u16) {
        set_hint(self.memory.mapping(), bit);
    }
}

fn set_hint(mapping: &Mapping, bit: u16) {
    let word = mapping.word(BITS + usize::from(bit) / 64 * 8);
    announce(word, 1 << (bit % 64));
}

/// A peer's doorbell, for one connection to a queue pair of that peer.
#[derive(Debug)]
pub(crate) struct PeerDoorbell {
    import: Arc<Import>,
    bit: u16,
    /// Whether this process has to order its stores before its loads of the flags itself.
    fenced: bool,
    /// Whether the owner slept at the last ring; most likely it does so at the next one too.
    slept: AtomicBool,
}

impl PeerDoorbell {
    /// Returns `None` if the granted memory is not a doorbell.
    pub(crate) fn new(import: Arc<Import>, bit: u16) -> Option<Self> {
        let fits = import.mapping().length() == LENGTH && import.access().contains(Access::WRITE);
        fits.then_some(PeerDoorbell {
            import,
            bit,
            fenced: !barrier::is_registered(),
            slept: AtomicBool::new(false),
        })
    }

    /// Announces a record that was stored before. Costs one load of a line that rarely changes, unless the
    /// owner may sleep or uses hints.
    #[inline]
    pub(crate) fn ring(&self) {
        let flags = self.flags();
        if flags != 0 {
            self.ring_by(flags);
        }
    }

    /// Announces a plain WRITE that was executed before. Costs one load of a line that rarely changes, unless
    /// the owner sleeps until WRITEs land.
    #[inline]
    pub(crate) fn wrote(&self) {
        let flags = self.flags();
        if flags & WRITES != 0 {
            self.ring_by(flags & !HINTS);
        }
    }

    /// Loads the owner's flags, after all earlier stores.
    #[inline]
    fn flags(&self) -> u32 {
        if self.fenced {
            fence(Ordering::SeqCst);
        } else {
            // The owner's barrier orders the processor, so only the compiler has to keep the order here.
            compiler_fence(Ordering::SeqCst);
        }
        self.import.mapping().half_word(FLAGS).load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn ring_by(&self, flags: u32) {
        let mapping = self.import.mapping();
        if flags & HINTS != 0 {
            set_hint(mapping, self.bit);
        }
        if flags & (EVENTS | WRITES) != 0 {
            fence(Ordering::SeqCst);
            let word = state_of(mapping);
            let slept = self.slept.load(Ordering::Relaxed);
            let sleeps = if slept { ring_sleeper(word) } else { ring(word) };
            if sleeps {
                wake(word, 1);
            }
            if sleeps != slept {
                self.slept.store(sleeps, Ordering::Relaxed);
            }
        }
    }

    /// Prefetches the line that [`ring`](PeerDoorbell::ring) will probably write.
    #[inline]
    pub(crate) fn prepare(&self) {
        if self.slept.load(Ordering::Relaxed) {
            copy::prefetch_to_write(state_of(self.import.mapping()).as_ptr().cast());
        }
    }

    /// Wakes the owner, if it sleeps, for events that concern its sends; these need no hint. The caller has
    /// executed a sequentially consistent fence between storing the event and this call.
    pub(crate) fn ring_for_sender(&self) {
        let word = state_of(self.import.mapping());
        if ring(word) {
            wake(word, 1);
        }
    }

    /// Returns whether the owner may sleep.
    #[inline]
    pub(crate) fn may_sleep(&self) -> bool {
        self.flags() & (EVENTS | WRITES) != 0
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

    /// Runs one owner that polls and sleeps, and some producers that store and ring. Returns whether the
    /// owner sleeps although a record is there and no thread wakes it, and the number of wake-ups.
    fn run(producers: u32, fenced: bool, expecting: bool) -> (bool, u32) {
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
                    if expecting { ring_sleeper(&*word) } else { ring(&*word) }
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
        // One producer in every possible order. With two there are too many orders, so each has at most two
        // pre-emptions.
        for (producers, preemption_bound) in [(1, None), (2, Some(2))] {
            for expecting in [false, true] {
                let mut model = loom::model::Builder::new();
                model.preemption_bound = preemption_bound;
                model.check(move || {
                    let (lost, wakes) = run(producers, true, expecting);
                    assert!(!lost);
                    assert!(wakes <= 1);
                });
            }
        }
    }

    #[test]
    fn the_model_finds_what_the_fences_are_for() {
        let lost = std::panic::catch_unwind(|| loom::model(|| assert!(!run(1, false, false).0)));
        assert!(lost.is_err());
    }

    impl Hints for model::AtomicU64 {
        fn glance(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }
        fn set(&self, bits: u64) {
            self.fetch_or(bits, Ordering::AcqRel);
        }
        fn take(&self) -> u64 {
            self.swap(0, Ordering::AcqRel)
        }
        fn fence() {
            model::fence(Ordering::SeqCst);
        }
    }

    /// The real hints without the fences.
    struct Loose(model::AtomicU64);

    impl Hints for Loose {
        fn glance(&self) -> u64 {
            self.0.glance()
        }
        fn set(&self, bits: u64) {
            self.0.set(bits);
        }
        fn take(&self) -> u64 {
            self.0.take()
        }
        fn fence() {}
    }

    /// A producer stores two records, each announced by the same hint; with `early`, announced before it is
    /// stored. The owner polls by hints only, once before it arms and once after. Returns whether a record
    /// stays unseen by an owner that sleeps and is not woken.
    fn is_lost_by_hints<H: Hints + Send + Sync + 'static>(hints: H, early: bool) -> bool {
        let hints = loom::sync::Arc::new(hints);
        let word = loom::sync::Arc::new(model::AtomicU32::new(IDLE));
        let records = loom::sync::Arc::new(model::AtomicU32::new(0));
        let producer = {
            let (hints, word, records) = (hints.clone(), word.clone(), records.clone());
            loom::thread::spawn(move || {
                let mut wakes = false;
                for record in 1..=2 {
                    if early {
                        announce(&*hints, 1);
                    }
                    records.store(record, Ordering::Release);
                    if !early {
                        announce(&*hints, 1);
                    }
                    model::fence(Ordering::SeqCst);
                    wakes |= ring(&*word);
                }
                wakes
            })
        };
        let owner = {
            let (hints, word, records) = (hints.clone(), word.clone(), records.clone());
            loom::thread::spawn(move || {
                let mut seen = 0;
                let mut look = || {
                    if take_hints(&*hints) != 0 {
                        seen = records.load(Ordering::Acquire);
                    }
                };
                look();
                arm(&*word);
                model::fence(Ordering::SeqCst);
                look();
                seen < 2 && may_sleep(&*word)
            })
        };
        let woken = producer.join().unwrap();
        let sleeps = owner.join().unwrap();
        sleeps && !woken
    }

    /// The bound on pre-emptions keeps the model's run short.
    fn check_hints(what: impl Fn() -> bool + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || assert!(!what()));
    }

    #[test]
    fn no_record_is_lost_by_hints() {
        check_hints(|| is_lost_by_hints(model::AtomicU64::new(0), false));
    }

    #[test]
    fn the_model_finds_hints_that_come_too_early_or_in_no_order() {
        let early = || check_hints(|| is_lost_by_hints(model::AtomicU64::new(0), true));
        assert!(std::panic::catch_unwind(early).is_err());
        let loose = || check_hints(|| is_lost_by_hints(Loose(model::AtomicU64::new(0)), false));
        assert!(std::panic::catch_unwind(loose).is_err());
    }

    /// A producer that WRITEs and then loads the flags, and an owner that sets the flag before its last poll.
    /// `membarrier` executes a fence on both sides, between the store and the load of each; the model has it as
    /// two fences. Returns whether the owner sleeps although the WRITE has landed and nobody wakes it.
    fn is_lost_by_flag(barrier: bool) -> bool {
        let word = loom::sync::Arc::new(model::AtomicU32::new(IDLE));
        let flags = loom::sync::Arc::new(model::AtomicU32::new(0));
        let written = loom::sync::Arc::new(model::AtomicU32::new(0));
        let producer = {
            let (word, flags, written) = (word.clone(), flags.clone(), written.clone());
            loom::thread::spawn(move || {
                written.store(1, Ordering::Release);
                if barrier {
                    model::fence(Ordering::SeqCst);
                }
                flags.load(Ordering::Relaxed) & WRITES != 0 && ring(&*word)
            })
        };
        arm(&*word);
        flags.fetch_or(WRITES, Ordering::AcqRel);
        if barrier {
            model::fence(Ordering::SeqCst);
        }
        let found = written.load(Ordering::Acquire);
        let sleeps = found == 0 && may_sleep(&*word);
        let woken = producer.join().unwrap();
        sleeps && !woken
    }

    #[test]
    fn no_write_is_lost_by_a_flag_and_the_model_finds_what_the_barrier_is_for() {
        loom::model(|| assert!(!is_lost_by_flag(true)));
        let lost = std::panic::catch_unwind(|| loom::model(|| assert!(!is_lost_by_flag(false))));
        assert!(lost.is_err());
    }

    #[test]
    fn a_tampered_word_does_not_hold_anybody() {
        for state in [IDLE, ARMED, SLEEPING, RUNG, 4, u32::MAX] {
            let word = AtomicU32::new(state);
            ring(&word);
            ring_sleeper(&word);
            may_sleep(&word);
        }
        let attention =
            DomainWaiter::new(&Watchdog::new(dunlin_fabric_control::Waker::new().unwrap())).unwrap();
        attention.arm(WaitMode::Event);
        state_of(attention.memory().mapping()).store(77, Ordering::Relaxed);
        assert!(attention.sleep(1), "does not sleep on a word that is not its own");
    }
}
