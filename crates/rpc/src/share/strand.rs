//! A strand of a handle: one connection, with a queue pair to each worker, behind the lock of the lead, and the
//! threads that wait for it.
//!
//! How threads wait, without one that is parked for ever, is in `combine/waiting.rs`. A parked thread also waits no longer
//! than until the next time at which the connection is due, and until its own deadline.

use crate::client::config::ClientConfig;
use crate::client::synchronous::Client;
use crate::client::within::Time;
use crate::combine::lead::{Lead, Leading, Led, Look, Next, SignalOf, Waiters, Watch};
use crate::combine::lines::HANDED_OVER;
use crate::combine::places::Places;
use crate::combine::waiting::{Rest, Waiting};
use crate::error::CallError;
use crate::limits::MAX_SEATS;
use dunlin_fabric::{Armed, Fabric, Host, Nanos, Parker, Site, ThreadDomain, Unparker, Waker, Work};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const WORDS: usize = MAX_SEATS as usize / 64;

/// A call as a thread makes it.
pub(crate) struct Entry<'a> {
    pub(crate) worker: usize,
    pub(crate) function: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) time: Time,
}

/// How the threads of a handle reach its strands. Numbers of calls are the policy's.
pub(crate) trait Policy<F: Fabric>: Sized + Send + Sync + Debug + 'static {
    /// The state that the strands of a handle share.
    type Table: Send + Sync + Debug;
    /// The state of a thread.
    type Seat: Send + Debug;
    /// The state behind the lock of a strand, beside the connection.
    type Core: Send + Debug;

    /// The most strands of a handle, at most 64.
    const MAX_STRANDS: u16;

    /// Returns the most strands of a handle with these settings, at least one.
    fn most_strands(config: &ClientConfig) -> u16 {
        config.most_queue_pairs().clamp(1, Self::MAX_STRANDS)
    }

    /// Creates the state of a handle with these settings.
    fn table(config: &ClientConfig) -> Self::Table;
    /// Creates the policy's state for a strand; `None` while an earlier strand with this number is in use.
    fn strand(table: &Self::Table, number: u16) -> Option<(Self, Self::Core)>;
    /// Gives a thread its seat and its number, below [`MAX_SEATS`]; `None` if all are taken.
    fn sit(table: &Self::Table) -> Option<(u16, Self::Seat)>;
    /// Takes a seat back, whose calls were given up.
    fn leave(table: &Self::Table, number: u16, seat: Self::Seat);
    /// Makes a call, and returns its number. Does not wait for room.
    fn submit(strand: &Strand<F, Self>, seat: &mut Self::Seat, entry: &Entry<'_>) -> Result<u64, CallError>;
    /// Makes the progress of the thread that leads. Returns the number of messages and completions: after any, more
    /// may be left to do at once, such as the next READ of a result. Never blocks, except to connect again.
    fn lead(strand: &Strand<F, Self>, core: &mut Core<F, Self>) -> usize;
    /// Passes the outcome of a call to `with` if the call has ended. `core` is there if the thread leads.
    fn take(
        seat: &mut Self::Seat,
        core: Option<&mut Core<F, Self>>,
        call: u64,
        with: impl FnOnce(Result<&[u8], CallError>),
    ) -> bool;
    /// Gives up a call whose deadline has passed, and returns its error; `None` if the call has ended, or will
    /// be ended by the thread that leads.
    fn expire(strand: &Strand<F, Self>, seat: &mut Self::Seat, call: u64) -> Option<CallError>;
    /// Gives up a call that its owner does not want any more.
    fn forget(strand: &Strand<F, Self>, seat: &mut Self::Seat, call: u64);
    /// Returns whether the strand has given a call back, which is not sent: the thread makes it again on another
    /// strand.
    fn is_returned(_: &Self::Seat, _: u64) -> bool {
        false
    }
    /// Makes a returned call again.
    fn submit_again(_: &Strand<F, Self>, _: &mut Self::Seat, _: u64) {}
    /// Makes the state behind the lock usable after a leader that has panicked.
    fn mend(_: &Strand<F, Self>, _: &mut Core<F, Self>) {}
    /// Returns whether a thread has left a call for the thread that leads. Called after the lead was given back
    /// and a sequentially consistent fence.
    fn has_calls(&self) -> bool {
        false
    }
}

/// The state behind the lock of the lead.
#[derive(Debug)]
pub(crate) struct Core<F: Fabric, P: Policy<F>> {
    pub(crate) client: Client<F>,
    pub(crate) policy: P::Core,
    /// The seat of the thread that led last.
    pub(crate) last: u16,
}

impl<F: Fabric, P: Policy<F>> Led for Core<F, P> {
    /// Calls that were taken and not sent wait for room, which an arrival makes.
    fn has_backlog(&self) -> bool {
        false
    }
}

/// The threads of a strand, as the thread that leads sees them.
#[derive(Debug)]
pub(crate) struct Gate<F: Fabric, P: Policy<F>> {
    policy: P,
    waiting: Waiting<WORDS>,
    unparkers: Arc<Unparkers<F>>,
}

type WaitersOf<F, P> = Waiters<SignalOf<F>, Gate<F, P>>;

/// The state that the threads of a strand share.
#[derive(Debug)]
pub(crate) struct Strand<F: Fabric, P: Policy<F>> {
    lead: Lead<Core<F, P>, WaitersOf<F, P>>,
    pub(crate) fabric: F,
    /// The strand's number in its handle.
    pub(crate) number: u16,
    /// The active strands of the handle, and the strand of each thread.
    pub(crate) places: Arc<Places>,
    /// The server has declined the queue pair: its threads use others from now on.
    is_retired: AtomicBool,
    doorbell: <F::Domain as ThreadDomain>::Waker,
    /// The next time at which the connection needs a look, whatever arrives.
    due: AtomicU64,
    /// Results are READ, and so their arrival wakes nobody.
    fetching: AtomicBool,
    workers: AtomicUsize,
}

pub(crate) type ParkerOf<F> = <<F as Fabric>::Host as Host>::Parker;
type UnparkerOf<F> = <ParkerOf<F> as Parker>::Unparker;
/// The unparkers of a handle's seats, by number.
pub(crate) type Unparkers<F> = [OnceLock<UnparkerOf<F>>];

/// The attempts of a thread that spins for the lead before it waits through the host.
const SPINS: u32 = 64;
/// The most steps of progress at once for threads that are about to park.
const STEPS: u32 = 8;
/// The most times that a thread leads on because of calls that came meanwhile.
const ROUNDS: u32 = 64;

impl<F: Fabric, P: Policy<F>> Gate<F, P> {
    fn unpark(&self, seat: usize) {
        if let Some(Some(unparker)) = self.unparkers.get(seat).map(OnceLock::get) {
            unparker.unpark();
        }
    }
}

impl<F: Fabric, P: Policy<F>> Watch for Gate<F, P> {
    #[inline]
    fn look(&self) -> Look {
        if self.policy.has_calls() { Look::Calls } else { self.waiting.look() }
    }

    fn wake(&self) {
        if let Some(seat) = self.waiting.choose() {
            self.unpark(seat);
        }
    }
}

type Held<'a, F, P> = Leading<'a, Core<F, P>, Waiters<SignalOf<F>, Gate<F, P>>>;

/// The lead: access to the connection. Dropping it makes the progress that other threads have asked for, gives
/// the lead back, and wakes a thread that has to go on.
pub(crate) struct LeadGuard<'a, F: Fabric, P: Policy<F>> {
    /// `None` only while the lead is being given back.
    leading: Option<Held<'a, F, P>>,
    strand: &'a Strand<F, P>,
}

impl<F: Fabric, P: Policy<F>> LeadGuard<'_, F, P> {
    /// Returns the connection.
    #[inline]
    pub(crate) fn core(&mut self) -> &mut Core<F, P> {
        match &mut self.leading {
            Some(leading) => leading,
            None => unreachable!("the lead is there until the guard is dropped"),
        }
    }

    /// Notes the thread that leads. Where another one led last, the lines of the connection move to its core.
    #[inline]
    pub(crate) fn led_by(mut self, seat: u16) -> Self {
        if std::mem::replace(&mut self.core().last, seat) != seat {
            self.strand.fabric.host().charge(Work::TakeLine, HANDED_OVER);
        }
        self
    }
}

impl<F: Fabric, P: Policy<F>> LeadGuard<'_, F, P> {
    /// Gives the lead back in a panic, and does nothing else that could panic. The next leader mends what is left.
    #[cold]
    fn leave_in_panic(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        self.strand.gate().waiting.set_leading(false);
        // The thread may have been about to wait in the sentinel's place.
        self.strand.stop_watching(leading.last);
        drop(leading);
    }
}

impl<F: Fabric, P: Policy<F>> Drop for LeadGuard<'_, F, P> {
    #[inline]
    fn drop(&mut self) {
        let (strand, gate) = (self.strand, self.strand.gate());
        if std::thread::panicking() {
            return self.leave_in_panic();
        }
        if self.leading.is_none() {
            return;
        }
        // In virtual time other threads find the lead taken until here.
        strand.fabric.host().checkpoint(Site::Leading);
        while let Some(leading) = self.leading.take() {
            strand.remember(&leading.client);
            gate.waiting.set_leading(false);
            match leading.give_back() {
                Next::Done => {}
                Next::Wake => strand.lead.watch().wake(),
                Next::Again(leading) => {
                    // A guard of its own, which gives the lead back if this panics.
                    let mut again = strand.guard(leading);
                    gate.waiting.makes_progress();
                    // Another thread waits for a wake-up, and would not see what is left to do.
                    for _ in 0..STEPS {
                        let core = again.core();
                        if P::lead(strand, core) == 0 && !core.client.has_read_to_post() {
                            break;
                        }
                    }
                    self.leading = again.leading.take();
                    strand.fabric.host().checkpoint(Site::Leading);
                }
            }
        }
    }
}

impl<F: Fabric, P: Policy<F>> Strand<F, P> {
    /// Wraps a connection.
    pub(crate) fn new(
        client: Client<F>,
        (policy, core): (P, P::Core),
        number: u16,
        (places, unparkers): (Arc<Places>, Arc<Unparkers<F>>),
    ) -> Self {
        let fabric = client.fabric().clone();
        let gate = Gate { policy, waiting: Waiting::new(), unparkers };
        let freed = fabric.host().signal();
        Strand {
            doorbell: client.doorbell(),
            workers: AtomicUsize::new(client.workers()),
            lead: Lead::new(Core { client, policy: core, last: u16::MAX }, Waiters::new(freed, gate), ROUNDS),
            fabric,
            number,
            places,
            is_retired: AtomicBool::new(false),
            due: AtomicU64::new(Nanos::MAX),
            fetching: AtomicBool::new(false),
        }
    }

    fn gate(&self) -> &Gate<F, P> {
        self.lead.watch().inner()
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> &P {
        &self.gate().policy
    }

    /// Returns whether the strand's threads have to use another one.
    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Ends the strand's use, unless it is the last active one of its handle. Returns whether it is retired.
    #[cold]
    pub(crate) fn retire(&self) -> bool {
        if !self.is_retired() && self.places.retire(self.number) {
            self.is_retired.store(true, Ordering::Relaxed);
            self.places.changed();
        }
        self.is_retired()
    }

    fn guard<'a>(&'a self, leading: Held<'a, F, P>) -> LeadGuard<'a, F, P> {
        self.gate().waiting.set_leading(true);
        let mut guard = LeadGuard { leading: Some(leading), strand: self };
        if guard.leading.as_ref().is_some_and(Leading::was_left_by_panic) {
            P::mend(self, guard.core());
        }
        guard
    }

    /// Takes the lead if it is free. Otherwise the thread that leads will look for the calls that were pushed
    /// before.
    #[inline]
    pub(crate) fn try_lead(&self) -> Option<LeadGuard<'_, F, P>> {
        let guard = self.guard(self.lead.try_lead()?);
        // Nobody blocks on the lead, so that a simulated thread may lose its core with it.
        self.fabric.host().checkpoint(Site::Leading);
        Some(guard)
    }

    /// Waits until the lead is free, and takes it. For rare operations.
    #[inline]
    pub(crate) fn lead(&self) -> LeadGuard<'_, F, P> {
        self.guard(self.lead.wait_to_lead())
    }

    /// As [`lead`](Strand::lead), and spins first: for the policy that locks, whose threads hold the lead for
    /// less time than a sleep takes.
    #[inline]
    pub(crate) fn lead_spinning(&self) -> LeadGuard<'_, F, P> {
        for _ in 0..SPINS {
            if let Some(lead) = self.try_lead() {
                return lead;
            }
            let host = self.fabric.host();
            host.charge(Work::TakeLine, 1);
            host.checkpoint(Site::Leading);
        }
        self.lead()
    }

    /// Notes what waiting threads have to know about the connection.
    #[inline]
    fn remember(&self, client: &Client<F>) {
        let (due, fetching, workers) = (client.due(), client.is_fetching(), client.workers());
        // Stores only on a change: other threads read these lines.
        if due != self.due.load(Ordering::Relaxed) {
            self.due.store(due, Ordering::Relaxed);
        }
        if fetching != self.fetching.load(Ordering::Relaxed) {
            self.fetching.store(fetching, Ordering::Relaxed);
        }
        if workers != self.workers.load(Ordering::Relaxed) {
            self.workers.store(workers, Ordering::Relaxed);
        }
    }

    /// Returns the number of workers that the connection has lanes to.
    #[inline]
    pub(crate) fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// Returns the next time at which the connection needs a look, whatever arrives.
    pub(crate) fn due(&self) -> Nanos {
        self.due.load(Ordering::Relaxed)
    }

    /// Returns whether results are READ, so that a thread must not sleep for them.
    pub(crate) fn is_fetching(&self) -> bool {
        self.fetching.load(Ordering::Relaxed)
    }

    /// Takes the sentinel's place, or keeps it; `false` if another thread has it.
    pub(crate) fn watch(&self, seat: u16, sleeps: bool) -> bool {
        self.gate().waiting.watch(seat, sleeps)
    }

    /// Leaves the sentinel's place, if the thread has it. At the end of its wait the thread then calls
    /// [`pass_on`](Strand::pass_on).
    pub(crate) fn stop_watching(&self, seat: u16) {
        self.gate().waiting.stop_watching(seat);
    }

    /// Waits for the domain in the sentinel's place, without the lead.
    pub(crate) fn rest(&self, armed: Armed, until: Nanos) {
        self.fabric.host().checkpoint(Site::BeforeSleep);
        self.doorbell.wait(armed, until);
    }

    /// As [`Waiting::may_park`].
    pub(crate) fn may_park(&self, seat: u16, has_led: bool) -> bool {
        self.gate().waiting.may_park(seat, has_led)
    }

    /// As [`Waiting::unparked`].
    pub(crate) fn unparked(&self, seat: u16) {
        self.gate().waiting.unparked(seat);
    }

    /// Returns whether a thread is parked, or about to park.
    pub(crate) fn is_parked(&self, seat: u16) -> bool {
        self.gate().waiting.is_parked(seat)
    }

    /// Wakes the owner of a call that has ended.
    #[inline]
    pub(crate) fn wake(&self, seat: u16) {
        let gate = self.gate();
        match gate.waiting.rest_of(seat) {
            Some(Rest::Asleep) => self.doorbell.wake(),
            Some(Rest::Spinning) => self.doorbell.nudge(),
            None => {}
        }
        gate.unpark(usize::from(seat));
    }

    /// Unparks a thread to take the sentinel's place, if nobody has it.
    #[inline]
    pub(crate) fn pass_on(&self) {
        let gate = self.gate();
        if let Some(seat) = gate.waiting.pass_on() {
            gate.unpark(seat);
        }
    }
}
