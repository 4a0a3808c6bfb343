//! Waiting for a connection: tasks sleep until it is there, until the next attempt is due, or until they give
//! up.

use super::{AsyncClient, Connection, Inner, Locked};
use crate::error::{CallError, Cause};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

impl<F: Fabric> Inner<F> {
    /// Wakes the tasks that wait for a connection: an attempt to connect has ended.
    pub(super) fn tell_unready(&self) {
        let mut locked = self.lock();
        locked.made_ready = !locked.unready.is_empty();
        self.wake_tasks(locked);
    }
}

impl<F: Fabric> Locked<F> {
    /// Returns a new key for a task that waits.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Marks the tasks that wait for a connection to be woken if one of them has to try again. Returns the
    /// earliest time at which one has to.
    pub(super) fn look_for_ready(&mut self, now: Nanos) -> Nanos {
        let next = self.unready.values().map(|(until, _)| *until).min().unwrap_or(Nanos::MAX);
        self.made_ready |= now >= next;
        next
    }
}

impl<F: Fabric> Connection<F> {
    /// Registers a task that waits for the connection until `until`. It is woken when an attempt has ended
    /// and when the next one is due.
    pub(super) fn await_ready(
        self: &Arc<Self>,
        locked: &mut Locked<F>,
        number: u64,
        until: Nanos,
        waker: &Waker,
    ) {
        let again = {
            let state = self.state();
            let due = state.backoff.not_before();
            // Right after this, the task itself starts an attempt that is due.
            let starts = due <= self.hub.inner().fabric.host().now();
            if state.connecting || starts { Nanos::MAX } else { due }
        };
        let until = until.min(again);
        locked.unready.insert(number, (until, waker.clone()));
        locked.employ(self.hub.inner(), until);
    }
}

impl<F: Fabric> AsyncClient<F> {
    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile. The
    /// log (target `dunlin::client`) has the reason of the first failed attempt.
    ///
    /// # Errors
    /// The future ends with [`Cause::Disconnected`] if there is no connection by then. Later calls connect as
    /// before.
    pub fn wait_ready(&self, at_most: Duration) -> Ready<F> {
        let now = self.0.hub.inner().fabric.host().now();
        let number = self.0.hub.inner().lock().next_number();
        Ready { client: self.clone(), number, until: now.saturating_add(nanos(at_most)) }
    }

    fn is_ready(&self, locked: &mut Locked<F>) -> bool {
        let state = self.0.state();
        let lanes = state.lanes.all();
        !lanes.is_empty() && lanes.iter().all(|lane| locked.core.is_usable(*lane))
    }
}

/// A wait for the connection of an asynchronous client: [`AsyncClient::wait_ready`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Ready<F: Fabric> {
    client: AsyncClient<F>,
    number: u64,
    until: Nanos,
}

impl<F: Fabric> Future for Ready<F> {
    type Output = Result<(), CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let connection = Arc::clone(&this.client.0);
        let inner = connection.hub.inner();
        let mut locked = inner.lock();
        // A connection that just broke is noticed by this.
        locked.core.progress_after_sleep();
        let replaced = locked.unready.remove(&this.number);
        let poll = if this.client.is_ready(&mut locked) {
            Poll::Ready(Ok(()))
        } else if inner.fabric.host().now() >= this.until {
            Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected)))
        } else {
            connection.await_ready(&mut locked, this.number, this.until, context.waker());
            Poll::Pending
        };
        inner.wake_tasks(locked);
        // Dropping a waker may drop a task: release the lock first.
        drop(replaced);
        connection.reconnect_if(poll.is_pending());
        poll
    }
}

impl<F: Fabric> Drop for Ready<F> {
    fn drop(&mut self) {
        let waiting = self.client.0.hub.inner().lock().unready.remove(&self.number);
        drop(waiting);
    }
}
