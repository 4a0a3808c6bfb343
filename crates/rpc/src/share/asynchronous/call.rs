//! A call of an asynchronous client: a ticket, and the future that waits for it.

use super::connection::Connection;
use super::hub::Submitted;
use super::route::To;
use super::ticket::prepare;
use super::{AsyncClient, AsyncHub};
use crate::client::patience::Patience;
use crate::client::within::Time;
use crate::combine::lines::lines_of;
use crate::combine::tickets::{Bytes, TicketId, Withdrawal};
use crate::error::{CallError, Cause};
use dunlin_fabric::{Buffer, Fabric, Host, Nanos, Work};
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// The number of polls after which a busy future reads the clock: a power of two.
const CLOCK_EVERY: u32 = 64;

/// A call with a ticket.
#[derive(Debug)]
struct Pending {
    ticket: TicketId,
    time: Time,
    /// The deadline; 0 until it is asked for.
    until: Nanos,
    polls: u32,
    /// How long it waits for a connection; `None` if it does not.
    patience: Option<Patience>,
    /// The key of this call among the tasks that wait for a connection; 0 for a call that does not wait.
    number: u64,
}

impl Pending {
    /// Returns the deadline, which starts to run at the first query.
    fn ends(&mut self, now: impl FnOnce() -> Nanos) -> Nanos {
        if self.until == 0 {
            let is_endless = self.time.nanos == 0 && !self.time.is_own;
            self.until = if is_endless { Nanos::MAX } else { self.time.ends(now()) };
        }
        self.until
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A pending call is the frequent case, and lies in place.
enum State {
    Pending(Pending),
    Failed(CallError),
    Over,
}

/// A call in progress. Dropping it cancels the call on the client; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct Call<F: Fabric> {
    client: AsyncClient<F>,
    state: State,
}

impl<F: Fabric> AsyncClient<F> {
    pub(super) fn start(&self, worker: Option<usize>, function: u16, payload: &[u8], time: Time) -> Call<F> {
        let state = match self.begin(worker, function, payload, time) {
            Ok(pending) => State::Pending(pending),
            Err(error) => State::Failed(error),
        };
        if let Some(seat) = &self.seat {
            seat.requested();
        }
        Call { client: self.again(), state }
    }

    #[inline]
    fn begin(
        &self,
        worker: Option<usize>,
        function: u16,
        payload: &[u8],
        time: Time,
    ) -> Result<Pending, CallError> {
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        let inner = self.connection.hub.inner();
        let to = To::new((self.connection.number, self.clone_number()), worker, time)
            .by(inner.fabric.host().thread());
        let (ticket, patience) = match inner.try_lead() {
            Some(mut lead) => match lead.submit(&to, function, payload) {
                Submitted::Ticket(ticket) => (ticket, None),
                Submitted::Failed(error) => return Err(error),
                Submitted::Unconnected => {
                    drop(lead);
                    let patience = self.patience(time);
                    if patience.is_none() {
                        return Err(CallError::NotExecuted(Cause::Disconnected));
                    }
                    to.begin(time.ends(inner.fabric.host().now()));
                    (prepare(&inner.tickets, &to, function, payload)?, patience)
                }
            },
            None => {
                // The call's time runs while its ticket waits for the leader.
                to.begin(time.ends(inner.fabric.host().now()));
                let ticket = prepare(&inner.tickets, &to, function, payload)?;
                inner.push(ticket);
                // The thread that leads may have looked before the push. If this fails, it looks again.
                if let Some(mut lead) = inner.try_lead() {
                    lead.send();
                }
                (ticket, self.patience(time))
            }
        };
        Ok(Pending { ticket, time, until: to.until(), polls: 0, patience, number: 0 })
    }

    fn patience(&self, time: Time) -> Option<Patience> {
        let wait_for_ready = self.connection.config.wait_for_ready;
        if wait_for_ready.is_zero() {
            return None;
        }
        Patience::new(wait_for_ready, time, self.connection.hub.inner().fabric.host().now())
    }
}

impl<F: Fabric> Call<F> {
    /// Detaches the call: it continues, and its answer is discarded. Waits for the thread that leads if that has not
    /// seen the call yet.
    ///
    /// # Errors
    /// The call was not sent and will not be executed; [`Cause::WindowFull`] if there was no room.
    pub fn leave(mut self) -> Result<(), CallError> {
        let pending = match std::mem::replace(&mut self.state, State::Over) {
            State::Pending(pending) => pending,
            State::Failed(error) => return Err(error),
            State::Over => return Ok(()),
        };
        let (inner, ticket) = (self.client.connection.hub.inner(), pending.ticket);
        if inner.tickets.is_waiting(ticket) {
            inner.lead().send();
        }
        if pending.number != 0 {
            inner.forget_unready(pending.number);
        }
        match inner.tickets.withdraw(ticket) {
            Withdrawal::MaybeExecuted | Withdrawal::Gone => Ok(()),
            Withdrawal::Done => match self.take(ticket) {
                Some(Err(error @ CallError::NotExecuted(_))) => Err(error),
                _ => Ok(()),
            },
            Withdrawal::NotExecuted => {
                let connected = self.client.workers() > 0;
                self.client.strand().reconnect_if(!connected);
                let cause = if connected { Cause::WindowFull } else { Cause::Disconnected };
                Err(CallError::NotExecuted(cause))
            }
        }
    }

    /// Takes the result of a call that has ended, without the lead.
    #[inline]
    fn take(&self, ticket: TicketId) -> Option<Result<AsyncResponse<F>, CallError>> {
        let hub = &self.client.connection.hub;
        let (inner, host) = (hub.inner(), hub.inner().fabric.host());
        let thread = host.thread();
        let (result, taken) =
            inner.tickets.take(ticket, |extra| (extra.take_large(), extra.is_delivered_by_other(thread)))?;
        let (large, is_taken) = taken.unwrap_or_default();
        if is_taken {
            host.charge(Work::TakeLine, lines_of(result.as_ref().map_or(0, |bytes| bytes.get().len())));
        }
        Some(result.map(|bytes| {
            let lender = bytes.is_lent().then(|| hub.clone());
            AsyncResponse { bytes, large, lender }
        }))
    }
}

impl<F: Fabric> Future for Call<F> {
    type Output = Result<AsyncResponse<F>, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut pending = match std::mem::replace(&mut this.state, State::Over) {
            State::Pending(pending) => pending,
            State::Failed(error) => return this.ended(Err(error)),
            State::Over => return Poll::Ready(Err(CallError::MaybeExecuted(Cause::Closed))),
        };
        match this.poll_pending(&mut pending, context) {
            Some(result) => this.ended(result),
            None => {
                this.state = State::Pending(pending);
                Poll::Pending
            }
        }
    }
}

impl<F: Fabric> Call<F> {
    /// Connects again after a failure that says that there is no connection.
    #[inline]
    fn ended(
        &self,
        result: Result<AsyncResponse<F>, CallError>,
    ) -> Poll<Result<AsyncResponse<F>, CallError>> {
        match &result {
            Err(CallError::NotExecuted(Cause::Draining)) => self.client.strand().reconnect(true),
            Err(CallError::NotExecuted(Cause::Disconnected)) => self.client.strand().reconnect(false),
            _ => {}
        }
        Poll::Ready(result)
    }

    /// Returns the result; `None` if the call is pending, and its task will be woken.
    fn poll_pending(
        &self,
        pending: &mut Pending,
        context: &Context<'_>,
    ) -> Option<Result<AsyncResponse<F>, CallError>> {
        let (connection, ticket) = (self.client.strand(), pending.ticket);
        let (inner, host) = (connection.hub.inner(), connection.hub.inner().fabric.host());
        if let Some(result) = self.take(ticket) {
            return Some(result);
        }
        let attempts = connection.attempts.load(Ordering::SeqCst);
        if pending.number != 0 {
            inner.forget_unready(pending.number);
        }
        let is_returned = inner.tickets.is_returned(ticket);
        let has_led = match inner.try_lead() {
            Some(mut lead) => {
                if is_returned {
                    lead.submit_prepared(ticket);
                }
                lead.work();
                if connection.busy {
                    lead.expire_now_and_then();
                }
                true
            }
            None => {
                if is_returned {
                    inner.push(ticket);
                    if let Some(mut lead) = inner.try_lead() {
                        lead.send();
                    }
                }
                false
            }
        };
        if let Some(result) = self.take(ticket) {
            return Some(result);
        }
        pending.polls = pending.polls.wrapping_add(1);
        let looks = !connection.busy || pending.polls.is_multiple_of(CLOCK_EVERY);
        let was_asked = pending.until != 0;
        if was_asked && (looks || !has_led) && host.now() >= pending.until {
            return Some(self.expire(pending));
        }
        if looks {
            pending.ends(|| host.now());
        }
        if inner.tickets.is_returned(ticket) {
            return self.wait_for_connection(pending, (connection, attempts), context);
        }
        if connection.busy {
            context.waker().wake_by_ref();
            return None;
        }
        // The call may have ended, and its leader may have looked for the waker before.
        let waits = inner.tickets.wait(ticket, context.waker(), pending.until);
        inner.employ(pending.until);
        if let Some(result) = self.take(ticket) {
            return Some(result);
        }
        if !waits || inner.tickets.is_returned(ticket) {
            context.waker().wake_by_ref();
        }
        None
    }

    /// Ends a call whose time is over, without the lead if another thread has it. A call that no leader has taken was
    /// not executed.
    #[cold]
    fn expire(&self, pending: &Pending) -> Result<AsyncResponse<F>, CallError> {
        let (inner, ticket) = (self.client.connection.hub.inner(), pending.ticket);
        if let Some(mut lead) = inner.try_lead() {
            // The engine knows more: whether the call left with its message, and whether the server has announced a result.
            let now = inner.fabric.host().now();
            lead.expire(now);
        }
        match inner.tickets.withdraw(ticket) {
            Withdrawal::Done => {
                self.take(ticket).unwrap_or(Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)))
            }
            Withdrawal::NotExecuted => Err(CallError::NotExecuted(match pending.patience {
                Some(patience) if self.client.workers() == 0 => patience.cause,
                _ => Cause::DeadlineExceeded,
            })),
            Withdrawal::MaybeExecuted | Withdrawal::Gone => {
                self.cancel(ticket);
                Err(CallError::MaybeExecuted(Cause::DeadlineExceeded))
            }
        }
    }

    /// Waits for a connection, or ends the call that has no more patience.
    #[cold]
    fn wait_for_connection(
        &self,
        pending: &mut Pending,
        (connection, attempts): (&Arc<Connection<F>>, u64),
        context: &Context<'_>,
    ) -> Option<Result<AsyncResponse<F>, CallError>> {
        let inner = connection.hub.inner();
        let end = |cause| {
            inner.tickets.withdraw(pending.ticket);
            Some(Err(CallError::NotExecuted(cause)))
        };
        let Some(patience) = pending.patience else { return end(Cause::Disconnected) };
        if inner.fabric.host().now() >= patience.until {
            return end(patience.cause);
        }
        if pending.number == 0 {
            pending.number = inner.next_number();
        }
        connection.await_ready((pending.number, attempts), patience.until, context.waker());
        connection.reconnect(false);
        None
    }

    /// Gives up a call that is sent, if nobody leads. Otherwise its place in the window is free when its answer comes.
    #[cold]
    fn cancel(&self, ticket: TicketId) {
        if let Some(mut lead) = self.client.connection.hub.inner().try_lead() {
            lead.cancel(ticket);
        }
    }
}

impl<F: Fabric> Drop for Call<F> {
    fn drop(&mut self) {
        let State::Pending(pending) = &self.state else { return };
        let inner = self.client.connection.hub.inner();
        if pending.number != 0 {
            inner.forget_unready(pending.number);
        }
        match inner.tickets.withdraw(pending.ticket) {
            Withdrawal::Done => drop(self.take(pending.ticket)),
            Withdrawal::MaybeExecuted => self.cancel(pending.ticket),
            Withdrawal::NotExecuted | Withdrawal::Gone => {}
        }
    }
}

/// The result of an asynchronous call. Dropping it returns its memory to the hub.
#[derive(Debug)]
pub struct AsyncResponse<F: Fabric> {
    bytes: Bytes,
    large: Option<Buffer<F::Memory>>,
    /// The hub whose ticket waits for the memory of `bytes`.
    lender: Option<AsyncHub<F>>,
}

impl<F: Fabric> Deref for AsyncResponse<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.large.as_deref().unwrap_or_else(|| self.bytes.get())
    }
}

impl<F: Fabric> Drop for AsyncResponse<F> {
    fn drop(&mut self) {
        if let Some(hub) = &self.lender {
            hub.inner().tickets.put_back(&mut self.bytes);
        }
    }
}
