//! The wake thread of a hub.

use super::hub::{Engine, Inner, number};
use super::lead::{HubLead, go_on, wake_all};
use dunlin_fabric::{Armed, Fabric, Host, Nanos, Signal, ThreadDomain, Waker as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

/// The shortest time for which the wake thread lingers, in nanoseconds.
const LINGERS: Nanos = 10_000_000;
/// The longest time for which it waits for the lead before it looks for tasks to be woken by the clock.
const WAITS_FOR_LEAD: Nanos = 1_000_000;

impl<F: Fabric> Inner<F> {
    /// Returns the time until which the wake thread waits for the answers of calls that are still to be made; `None` if
    /// it parks. A call that follows soon has a later deadline, if it has as much time as the last ones, and then wakes
    /// nobody. Each wait without a call halves the time.
    fn lingers_until(&self, now: Nanos) -> Option<Nanos> {
        let half = self.gate().latest_due.load(Ordering::Relaxed).saturating_sub(now) / 2;
        (half >= LINGERS).then(|| now.saturating_add(half))
    }

    #[cold]
    pub(super) fn start_wake_thread(self: &Arc<Self>) {
        let gate = self.gate();
        if gate.started.swap(true, Ordering::Relaxed) || gate.stopping.load(Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        let body = move || {
            let mut overdue = Vec::new();
            if catch_unwind(AssertUnwindSafe(|| wake_loop(&shared, &mut overdue))).is_err() {
                // A waker has panicked. Those of tasks whose time is over are left.
                wake_all(overdue);
                // Tasks sleep until a wake thread wakes them, so another one takes the place of one that panicked.
                shared.gate().started.store(false, Ordering::Relaxed);
                shared.start_wake_thread();
            }
        };
        match self.fabric.host().spawn("dunlin-wake", Box::new(body)) {
            Ok(thread) => *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
            // Polls still make progress. Only wake-ups without a poll are lost.
            Err(error) => {
                tracing::error!(target: "dunlin::client", %error, "the wake thread cannot be started");
                gate.started.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Waits for the lead. The thread that has it may have lost its core: tasks whose time is over are woken meanwhile.
    fn lead_or_wake(&self, overdue: &mut Vec<Waker>) -> HubLead<'_, F> {
        if let Some(lead) = self.try_lead() {
            return lead;
        }
        loop {
            let now = self.fabric.host().now();
            let (next, _) = self.tickets.overdue(now, |waker| overdue.push(waker));
            self.run(overdue);
            if let Some(lead) = self.lead_until(next.min(now.saturating_add(WAITS_FOR_LEAD))) {
                return lead;
            }
        }
    }

    /// Runs wakers, without the lead.
    fn run(&self, wakers: &mut Vec<Waker>) {
        if !wakers.is_empty() {
            self.gate().waking.store(true, Ordering::SeqCst);
            let panicked = wake_all(wakers.drain(..));
            self.gate().waking.store(false, Ordering::SeqCst);
            go_on(panicked);
        }
    }

    /// Says that the wake thread parks, unless there is something to wait for.
    fn parks(&self, engine: &Engine<F>, now: Nanos) -> bool {
        if engine.core.in_flight() > 0 || engine.has_waiting() || self.lingers_until(now).is_some() {
            return false;
        }
        self.gate().parked.store(true, Ordering::Relaxed);
        let (_, any) = self.tickets.overdue(0, drop);
        if !any && self.unready().is_empty() && self.tickets.is_empty() {
            return true;
        }
        self.gate().parked.store(false, Ordering::Relaxed);
        false
    }

    /// Arms the domain for a sleep, and returns its end; `None` if there is something to do at once. Tasks whose time
    /// is over go to `overdue`.
    fn arm(
        &self,
        engine: &mut Engine<F>,
        (now, expires): (Nanos, Nanos),
        overdue: &mut Vec<Waker>,
    ) -> Option<(Armed, Nanos)> {
        let gate = self.gate();
        let mode = engine.core.sleep().mode;
        let armed = engine.core.domain.arm(mode);
        if engine.work_after_sleep() > 0 || engine.core.has_read_to_post() {
            engine.core.domain.disarm(armed);
            return None;
        }
        let (batches, fetches) = (engine.core.batches_due(), engine.core.fetch_due());
        let until = expires.min(batches).min(fetches);
        gate.sleeps_for.store(number(mode), Ordering::Relaxed);
        // A task that waits from here on rings if its time is before that; the others are found now.
        gate.sleeps_until.store(until, Ordering::Relaxed);
        let (next, any) = self.tickets.overdue(now, |waker| overdue.push(waker));
        let next = next.min(self.next_unready(now, overdue));
        let is_idle = !any && next == Nanos::MAX && engine.core.in_flight() == 0 && !engine.has_waiting();
        let lingers = if is_idle { self.lingers_until(now).unwrap_or(now) } else { Nanos::MAX };
        Some((armed, until.min(next).min(lingers)))
    }
}

/// The body of the wake thread.
fn wake_loop<F: Fabric>(inner: &Inner<F>, overdue: &mut Vec<Waker>) {
    let (gate, host) = (inner.gate(), inner.fabric.host());
    loop {
        let seen = gate.signal.seen();
        gate.sleeps_until.store(0, Ordering::Relaxed);
        let mut lead = inner.lead_or_wake(overdue);
        if gate.stopping.load(Ordering::Relaxed) {
            return;
        }
        lead.work();
        let now = host.now();
        let expires = lead.expire(now);
        let is_parked = inner.parks(&lead, now);
        let armed = if is_parked { None } else { inner.arm(&mut lead, (now, expires), overdue) };
        if let Some((_, until)) = armed
            && gate.sleeps_until.load(Ordering::Relaxed) > 0
        {
            gate.sleeps_until.store(until, Ordering::Relaxed);
        }
        gate.waking.store(true, Ordering::SeqCst);
        drop(lead);
        gate.waking.store(false, Ordering::SeqCst);
        inner.run(overdue);
        match armed {
            // The end of the hub rings after it has said so: before the domain was armed, or during the wait.
            Some(_) if gate.stopping.load(Ordering::SeqCst) => return,
            Some((armed, until)) => {
                gate.doorbell.wait(armed, until);
            }
            None if is_parked => {
                gate.signal.wait(seen, Nanos::MAX);
            }
            None => {}
        }
    }
}
