//! The lead of a hub: taking it, giving it back, and what a thread does then.
//!
//! Wakers run without the lead: a waker may run any code, including the drop of the last client.

use super::hub::{Dropped, Engine, Gate, Inner};
use crate::combine::lead::{Leading, Look, SignalOf, Waiters, Watch};
use dunlin_fabric::{Fabric, Host, Nanos, Site};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The most times that a thread leads on because of calls that came meanwhile.
const ROUNDS: u32 = 64;
/// The wakers that a leader takes along when it gives the lead back.
const WAKERS: usize = 16;

impl<F: Fabric> Inner<F> {
    /// Takes the lead if it is free. Otherwise the thread that leads will look for the calls that were pushed before.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<HubLead<'_, F>> {
        let lead = self.led(self.lead.try_lead()?);
        // Nobody blocks on the lead, so that a simulated thread may lose its core with it.
        self.fabric.host().checkpoint(Site::Leading);
        Some(lead)
    }

    /// Waits until the lead is free, and takes it: to connect and to close.
    pub(super) fn lead(&self) -> HubLead<'_, F> {
        self.led(self.lead.wait_to_lead())
    }

    /// As [`lead`](Inner::lead), but waits until `until` at most.
    pub(super) fn lead_until(&self, until: Nanos) -> Option<HubLead<'_, F>> {
        Some(self.led(self.lead.wait_to_lead_until(until)?))
    }

    /// Guards the lead, and mends what a leader that panicked has left.
    #[inline]
    fn led<'a>(&'a self, leading: Held<'a, F>) -> HubLead<'a, F> {
        let was_left = leading.was_left_by_panic();
        let mut lead = HubLead { leading: Some(leading), inner: self };
        lead.led_by(self.fabric.host());
        if was_left {
            lead.mend();
        }
        lead
    }
}

type Held<'a, F> = Leading<'a, Engine<F>, Waiters<SignalOf<F>, Gate<F>>>;

/// The lead of the hub. Dropping it gives the lead back, runs the wakers of the calls that have ended, and leads on for
/// calls that have come meanwhile.
pub(super) struct HubLead<'a, F: Fabric> {
    /// `None` only while the lead is being given back.
    leading: Option<Held<'a, F>>,
    inner: &'a Inner<F>,
}

impl<F: Fabric> Deref for HubLead<'_, F> {
    type Target = Engine<F>;

    #[inline]
    fn deref(&self) -> &Engine<F> {
        match &self.leading {
            Some(leading) => leading,
            None => unreachable!("the lead is there until the guard is dropped"),
        }
    }
}

impl<F: Fabric> DerefMut for HubLead<'_, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine<F> {
        match &mut self.leading {
            Some(leading) => leading,
            None => unreachable!("the lead is there until the guard is dropped"),
        }
    }
}

impl<F: Fabric> Drop for HubLead<'_, F> {
    #[inline]
    fn drop(&mut self) {
        let (inner, host) = (self.inner, self.inner.fabric.host());
        let mut panicked = None;
        for round in 0.. {
            let Some(mut leading) = self.leading.take() else { break };
            if std::thread::panicking() {
                return;
            }
            // In virtual time other threads find the lead taken until here.
            host.checkpoint(Site::Leading);
            inner.gate().tend(&leading.core);
            let wakers = Wakers::take(&mut leading.woken);
            let look = leading.release();
            let now = wakers.wake();
            panicked = panicked.or(now);
            match look {
                Look::Nothing => break,
                Look::Calls if round < ROUNDS => {
                    self.leading = inner.lead.try_lead();
                    if let Some(leading) = &mut self.leading {
                        leading.led_by(host);
                        if leading.was_left_by_panic() {
                            leading.mend();
                        }
                        host.checkpoint(Site::Leading);
                        if inner.gate().asked.swap(false, Ordering::Relaxed) {
                            leading.core.check_soon();
                            inner.move_unready(&mut leading.woken);
                            inner.close_dropped(leading);
                        }
                        leading.work();
                    }
                }
                Look::Calls | Look::Waiters => {
                    inner.lead.watch().wake();
                    break;
                }
            }
        }
        // The lead is given back, and nobody waits for this thread.
        go_on(panicked);
    }
}

impl<F: Fabric> Inner<F> {
    /// Closes the connections that nobody has any more, and the strands that are not active.
    fn close_dropped(&self, engine: &mut Engine<F>) {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for dropped in dropped {
            match dropped {
                Dropped::Strands(strands) => engine.close_inactive(&strands),
                Dropped::Connection(number) => engine.remove_route(number),
            }
        }
    }

    /// Wakes all tasks that wait for a connection, as far as the leader is concerned.
    fn move_unready(&self, woken: &mut Vec<Waker>) {
        woken.extend(std::mem::take(&mut *self.unready()).into_values().map(|(_, waker)| waker));
    }
}

/// Wakers on the stack of a thread that has given the lead back.
struct Wakers([Option<Waker>; WAKERS], usize);

impl Wakers {
    #[inline]
    fn take(woken: &mut Vec<Waker>) -> Self {
        let mut wakers = Wakers([const { None }; WAKERS], 0);
        while wakers.1 < WAKERS
            && let Some(waker) = woken.pop()
        {
            wakers.0[wakers.1] = Some(waker);
            wakers.1 += 1;
        }
        wakers
    }

    #[inline]
    fn wake(self) -> Option<Panicked> {
        let Wakers(wakers, count) = self;
        wake_all(wakers.into_iter().take(count).flatten())
    }
}

/// A waker's panic.
pub(super) type Panicked = Box<dyn Any + Send>;

/// Runs wakers, all of them, even if one panics: the others may be of other tasks, which nobody else would wake. Returns
/// the first panic, which [`goes on`](go_on) when the thread has left its state whole.
#[inline]
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) -> Option<Panicked> {
    let mut panicked = None;
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            panicked.get_or_insert(panic);
        }
    }
    panicked
}

/// Goes on with a waker's panic.
#[inline]
pub(super) fn go_on(panicked: Option<Panicked>) {
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}
