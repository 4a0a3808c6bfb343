//! Waiting for a connection: tasks sleep until it is there, until the next attempt is due, or until they give
//! up.

use super::AsyncClient;
use super::connection::Connection;
use super::hub::Inner;
use super::lead::{go_on, wake_all};
use crate::error::{CallError, Cause};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

impl<F: Fabric> Inner<F> {
    /// Wakes the tasks that wait for a connection: an attempt to connect has ended.
    pub(super) fn tell_unready(&self) {
        let woken = std::mem::take(&mut *self.unready());
        go_on(wake_all(woken.into_values().map(|(_, waker)| waker)));
    }

    /// Returns the earliest time at which a task that waits for a connection has to try again. If one has to now, all
    /// do.
    pub(super) fn next_unready(&self, now: Nanos, overdue: &mut Vec<Waker>) -> Nanos {
        let mut unready = self.unready();
        let next = unready.values().map(|(until, _)| *until).min().unwrap_or(Nanos::MAX);
        if now >= next {
            overdue.extend(std::mem::take(&mut *unready).into_values().map(|(_, waker)| waker));
            return Nanos::MAX;
        }
        next
    }

    /// Removes a task from those that wait for a connection. The waker is dropped here: it may drop a task.
    pub(super) fn forget_unready(&self, number: u64) {
        let replaced = self.unready().remove(&number);
        drop(replaced);
    }
}

impl<F: Fabric> Connection<F> {
    /// Registers a task that waits for the connection until `until`. It is woken when an attempt has ended
    /// and when the next one is due; at once if an attempt has ended since `attempts` were counted.
    pub(super) fn await_ready(&self, (number, attempts): (u64, u64), until: Nanos, waker: &Waker) {
        let inner = self.hub.inner();
        let again = {
            let state = self.state();
            let due = state.backoff.not_before();
            // Right after this, the task itself starts an attempt that is due.
            let starts = due <= inner.fabric.host().now();
            if state.connecting || starts { Nanos::MAX } else { due }
        };
        let until = until.min(again);
        let replaced = inner.unready().insert(number, (until, waker.clone()));
        drop(replaced);
        if self.attempts.load(Ordering::SeqCst) != attempts {
            waker.wake_by_ref();
        }
        fence(Ordering::SeqCst);
        inner.employ(until);
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
        let inner = self.connection.hub.inner();
        let now = inner.fabric.host().now();
        let number = inner.next_number();
        Ready { client: self.again(), number, until: now.saturating_add(nanos(at_most)) }
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
        let connection = Arc::clone(this.client.strand());
        let inner = connection.hub.inner();
        let attempts = connection.attempts.load(Ordering::SeqCst);
        inner.forget_unready(this.number);
        let is_ready = |lead: Option<super::lead::HubLead<'_, F>>| {
            let mut lead = lead?;
            // A connection that just broke is noticed by this.
            lead.work_after_sleep();
            Some(lead.is_connected(connection.number))
        };
        let is_connected = is_ready(inner.try_lead());
        let poll = match is_connected {
            Some(true) => return Poll::Ready(Ok(())),
            _ if inner.fabric.host().now() >= this.until => {
                Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected)))
            }
            _ => {
                connection.await_ready((this.number, attempts), this.until, context.waker());
                Poll::Pending
            }
        };
        match is_connected {
            // Another thread leads. It looks, and wakes this task.
            None if poll.is_pending() => {
                inner.ask();
                drop(inner.try_lead());
            }
            _ => connection.reconnect_if(poll.is_pending()),
        }
        poll
    }
}

impl<F: Fabric> Drop for Ready<F> {
    fn drop(&mut self) {
        self.client.connection.hub.inner().forget_unready(self.number);
    }
}
