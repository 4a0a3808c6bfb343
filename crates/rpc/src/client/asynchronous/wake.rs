//! The wake thread of a hub.

use super::{Inner, Locked};
use dunlin_fabric::{Fabric, Host, Nanos, Signal, ThreadDomain, Waker as _};
use std::sync::Arc;

/// The shortest time for which the wake thread lingers, in nanoseconds.
const LINGERS: Nanos = 10_000_000;

impl<F: Fabric> Locked<F> {
    /// Returns the time until which the wake thread waits for the answers of calls that are still to be made; `None` if
    /// it parks. A call that follows soon has a later deadline, if it has as much time as the last ones, and then wakes
    /// nobody. Each wait without a call halves the time.
    fn lingers_until(&self, now: Nanos) -> Option<Nanos> {
        let half = self.latest_due.saturating_sub(now) / 2;
        (half >= LINGERS).then(|| now.saturating_add(half))
    }

    /// Makes sure that the wake thread runs, and wakes up by `due` at the latest.
    pub(super) fn employ(&mut self, inner: &Arc<Inner<F>>, due: Nanos) {
        self.latest_due = self.latest_due.max(due);
        if self.parked {
            self.parked = false;
            inner.signal.raise();
        } else if due.min(self.core.batches_due()).min(self.core.fetch_due()) < self.sleeps_until
            || self.sleeps_until > 0 && self.sleeps_for != self.core.sleep().mode
        {
            // Once is enough: the thread is awake from now on.
            self.sleeps_until = 0;
            inner.doorbell.wake();
        }
        if self.thread.is_none() && !self.stopping {
            let shared = Arc::clone(inner);
            match inner.fabric.host().spawn("dunlin-wake", Box::new(move || wake_loop(&shared))) {
                Ok(thread) => self.thread = Some(thread),
                // Polls still make progress. Only wake-ups without a poll are lost.
                Err(error) => {
                    tracing::error!(target: "dunlin::client", %error, "the wake thread cannot be started")
                }
            }
        }
    }
}

/// The body of the wake thread.
fn wake_loop<F: Fabric>(inner: &Inner<F>) {
    loop {
        let seen = inner.signal.seen();
        let (armed, earliest) = {
            let mut locked = inner.lock();
            if locked.stopping {
                return;
            }
            locked.sleeps_until = 0;
            locked.core.progress();
            let now = inner.fabric.host().now();
            let earliest = locked.core.expire(now);
            let mut earliest = locked.look_for_room(now).min(locked.look_for_ready(now)).min(earliest);
            earliest = earliest.min(locked.core.batches_due());
            locked.waking = true;
            let idle = locked.core.in_flight() == 0 && locked.room.is_empty() && locked.unready.is_empty();
            let lingers_until = if idle { locked.lingers_until(now) } else { Some(Nanos::MAX) };
            let armed = if lingers_until.is_none() {
                locked.parked = true;
                None
            } else {
                let mode = locked.core.sleep().mode;
                let armed = locked.core.domain.arm(mode);
                if locked.core.progress_after_sleep() > 0 || locked.core.has_read_to_post() {
                    locked.core.domain.disarm(armed);
                    inner.wake_tasks(locked);
                    inner.lock().waking = false;
                    continue;
                }
                earliest = earliest.min(locked.core.fetch_due()).min(lingers_until.unwrap_or(0));
                (locked.sleeps_until, locked.sleeps_for) = (earliest, mode);
                Some(armed)
            };
            inner.wake_tasks(locked);
            inner.lock().waking = false;
            (armed, earliest)
        };
        match armed {
            Some(armed) => {
                inner.doorbell.wait(armed, earliest);
            }
            None => {
                inner.signal.wait(seen, Nanos::MAX);
            }
        }
    }
}
