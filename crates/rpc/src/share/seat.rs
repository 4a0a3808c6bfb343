//! A thread's client of a shared connection: its own calls, and its wait.

use super::calls::Calls;
use super::handle::{Core, Entry, Handle, LeadGuard, ParkerOf, Policy, lines_of};
use crate::client::CallId;
use crate::client::config::ClientConfig;
use crate::client::within::Time;
use crate::error::{CallError, Cause, ConnectError};
use crate::wait::{Sleep, Waiter};
use dunlin_fabric::{Fabric, Host, Nanos, Parker, WaitMode, Work, nanos};
use std::sync::Arc;

/// A thread's client of a shared connection. `Send`, but used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Seat<F: Fabric, P: Policy<F>> {
    handle: Arc<Handle<F, P>>,
    number: u16,
    calls: Calls,
    /// How a thread of this connection sleeps, as the last look with the lead showed.
    sleep: Sleep,
    waiter: Waiter,
    earliest: Nanos,
    timeout: Nanos,
    next_worker: usize,
    /// The thread has been the sentinel or was parked since its wait began, so that others may count on it.
    has_idled: bool,
    /// The last look at the connection was made with the lead.
    has_led: bool,
    /// Both are there until the seat is dropped.
    own: Option<(P::Seat, ParkerOf<F>)>,
}

impl<F: Fabric, P: Policy<F>> Seat<F, P> {
    /// Takes a seat at a connection.
    pub(crate) fn new(handle: Arc<Handle<F, P>>) -> Result<Self, ConnectError> {
        let sleep = handle.lead().core().client.sleep();
        let (number, seat, parker) = handle.sit()?;
        let config = &handle.config;
        Ok(Seat {
            number,
            calls: Calls::new(config.window),
            sleep,
            waiter: Waiter::new(config.mode(), nanos(config.spin)),
            earliest: Nanos::MAX,
            timeout: config.call_nanos(),
            // Threads begin at different workers.
            next_worker: usize::from(number),
            has_idled: false,
            has_led: false,
            own: Some((seat, parker)),
            handle,
        })
    }

    /// Takes another seat at the same connection, for another thread.
    pub(crate) fn another(&self) -> Result<Self, ConnectError> {
        Seat::new(Arc::clone(&self.handle))
    }

    pub(crate) fn handle(&self) -> &Handle<F, P> {
        &self.handle
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.handle.config
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn calls_mut(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// The default time of a call.
    pub(crate) fn usual_time(&self) -> Time {
        Time { nanos: self.timeout, is_own: false }
    }

    /// Chooses the next worker, round-robin.
    pub(crate) fn next_worker(&mut self) -> usize {
        self.next_worker = (self.next_worker + 1) % self.handle.workers().max(1);
        self.next_worker
    }

    fn parker(&mut self) -> &mut ParkerOf<F> {
        &mut own(&mut self.own).1
    }

    /// Makes a call, without waiting for room.
    #[inline]
    pub(crate) fn try_submit(
        &mut self,
        (worker, function): (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, CallError> {
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        if self.calls.room() == 0 {
            return Err(CallError::NotExecuted(Cause::WindowFull));
        }
        let (seat, _) = own(&mut self.own);
        let call = P::submit(&self.handle, seat, &Entry { worker, function, payload, time })?;
        self.entered(call, time)
    }

    fn entered(&mut self, call: u64, time: Time) -> Result<CallId, CallError> {
        let entered = self.calls.enter(call, time.nanos);
        let entered = entered.ok_or(CallError::NotExecuted(Cause::WindowFull))?;
        if time.is_own {
            // Its time runs from here on.
            let now = self.handle.fabric.host().now();
            self.expire(now);
        }
        Ok(entered)
    }

    /// Makes a call, and waits for room for at most the call's time.
    pub(crate) fn submit_waiting(
        &mut self,
        to: (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, CallError> {
        match self.try_submit(to, payload, time) {
            Err(CallError::NotExecuted(Cause::WindowFull)) => self.submit_blocking(to, payload, time),
            done => done,
        }
    }

    #[cold]
    fn submit_blocking(&mut self, to: (usize, u16), payload: &[u8], time: Time) -> Result<CallId, CallError> {
        let until = time.ends(self.handle.fabric.host().now());
        self.begin_wait();
        loop {
            // Only a result that the caller collects makes room in a full window.
            if self.calls.room() == 0 && self.calls.in_flight() == 0 {
                self.end_wait();
                return Err(CallError::NotExecuted(Cause::WindowFull));
            }
            self.step(until, |_| false);
            let left = time.left(until, self.handle.fabric.host().now());
            match self.try_submit(to, payload, left) {
                Err(CallError::NotExecuted(Cause::WindowFull)) => {}
                done => {
                    self.end_wait();
                    return done;
                }
            }
        }
    }

    /// Takes what has arrived, and leads if no other thread does. Returns the number of own calls that ended.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        let (seat, _) = own(&mut self.own);
        if self.calls.in_flight() > 0 {
            let ended = take_ended(&self.handle, &mut self.calls, seat, None);
            if ended > 0 {
                return ended;
            }
        }
        let lead = self.handle.try_lead();
        self.has_led = lead.is_some();
        let Some(lead) = lead else { return 0 };
        let mut lead = lead.led_by(self.number);
        P::lead(&self.handle, lead.core());
        self.sleep = lead.core().client.sleep();
        take_ended(&self.handle, &mut self.calls, seat, Some(&mut lead))
    }

    /// Ends calls past their deadline.
    fn expire(&mut self, now: Nanos) {
        let ((seat, _), handle) = (own(&mut self.own), &self.handle);
        self.earliest = self.calls.expire(now, |call| P::expire(handle, seat, call));
    }

    fn begin_wait(&mut self) {
        self.waiter.reset();
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.has_idled) {
            self.handle.stop_watching(self.number);
            self.handle.pass_on();
        }
    }

    /// Waits until a call has its outcome.
    #[inline]
    pub(crate) fn wait_until_done(&mut self, id: CallId) {
        if self.calls.is_done(id) {
            return;
        }
        self.begin_wait();
        while !self.calls.is_done(id) {
            self.step(Nanos::MAX, |calls| calls.is_done(id));
        }
        self.end_wait();
    }

    /// Waits until some call has finished; `None` if none is under way.
    pub(crate) fn wait_any(&mut self) -> Option<CallId> {
        self.begin_wait();
        let found = loop {
            if let Some(id) = self.calls.next_done() {
                break Some(id);
            }
            if self.calls.in_flight() == 0 {
                break None;
            }
            self.step(Nanos::MAX, Calls::has_done);
        };
        self.end_wait();
        found
    }

    /// Makes progress; if there was none, waits a moment as the plan says, until `until` at most, unless `is_so`
    /// holds.
    fn step(&mut self, until: Nanos, is_so: impl Fn(&Calls) -> bool) {
        if self.progress() > 0 {
            self.waiter.reset();
            return;
        }
        self.idle(until, is_so);
    }

    fn idle(&mut self, limit: Nanos, is_so: impl Fn(&Calls) -> bool) {
        let now = self.waiter.clock_is_due().then(|| self.handle.fabric.host().now());
        if let Some(now) = now {
            self.expire(now);
        }
        let (handle, (_, parker)) = (&self.handle, own(&mut self.own));
        let host = handle.fabric.host();
        let (mut mode, spun) =
            self.waiter.next(self.sleep, || parker.crowding(), || now.unwrap_or_else(|| host.now()));
        if mode.sleeps() && handle.is_fetching() {
            mode = WaitMode::Busy;
        }
        if !mode.sleeps() && !parker.blocks_when_busy() {
            // A busy thread polls again at once. It checks the connection's own deadlines every 256 polls.
            if now.is_some()
                && let Some(mut lead) = handle.try_lead()
            {
                lead.core().client.look_at_deadlines();
            }
            parker.park(mode, spun);
            return;
        }
        if mode.sleeps() && now.is_none() {
            let now = host.now();
            self.expire(now);
        }
        if is_so(&self.calls) {
            return;
        }
        let until = spun.min(limit).min(self.earliest);
        self.has_idled = true;
        if self.handle.watch(self.number, mode.sleeps()) {
            if self.rest(mode, until, is_so) {
                return;
            }
            self.handle.stop_watching(self.number);
        }
        if !self.handle.may_park(self.number, self.has_led) {
            return;
        }
        let until = until.min(self.handle.due());
        // A result that was delivered meanwhile has unparked the thread.
        self.parker().park(mode, until);
        self.handle.unparked(self.number);
    }

    /// Waits in the sentinel's place. Returns false if another thread leads: it delivers what it finds.
    fn rest(&mut self, mode: WaitMode, until: Nanos, is_so: impl Fn(&Calls) -> bool) -> bool {
        let handle = &self.handle;
        let Some(lead) = handle.try_lead() else { return false };
        let mut lead = lead.led_by(self.number);
        let armed = lead.core().client.arm(mode);
        P::lead(handle, lead.core());
        if lead.core().client.reads_results() {
            // A look that takes an empty READ leaves the next READ to the next look.
            P::lead(handle, lead.core());
        }
        self.sleep = lead.core().client.sleep();
        let (seat, _) = own(&mut self.own);
        if take_ended(handle, &mut self.calls, seat, Some(&mut lead)) > 0 || is_so(&self.calls) {
            lead.core().client.disarm(armed);
            self.waiter.reset();
            return true;
        }
        let until = until.min(lead.core().client.wait_limit());
        drop(lead);
        handle.rest(armed, until);
        true
    }

    /// Releases a call. One that is under way is given up.
    pub(crate) fn forget(&mut self, id: CallId) {
        if let Some(call) = self.calls.number(id) {
            let (seat, _) = own(&mut self.own);
            P::forget(&self.handle, seat, call);
        }
        self.calls.forget(id);
    }

    /// Runs `what` with the lead.
    pub(crate) fn with_lead<T>(&self, what: impl FnOnce(&mut Core<F, P>) -> T) -> T {
        what(self.handle.lead().core())
    }
}

fn own<T>(own: &mut Option<T>) -> &mut T {
    match own {
        Some(own) => own,
        None => unreachable!("both are there until the seat is dropped"),
    }
}

/// Moves the outcomes of calls that have ended into the table. Returns the number of calls.
#[inline]
fn take_ended<F: Fabric, P: Policy<F>>(
    handle: &Handle<F, P>,
    calls: &mut Calls,
    seat: &mut P::Seat,
    mut lead: Option<&mut LeadGuard<'_, F, P>>,
) -> usize {
    // A thread without the lead takes results that another one delivered.
    let is_led = lead.is_some();
    calls.sweep(|call, outcome| {
        let core = lead.as_mut().map(|lead| lead.core());
        P::take(seat, core, call, |result| {
            if !is_led {
                let lines = lines_of(result.as_ref().map_or(0, |bytes| bytes.len()));
                handle.fabric.host().charge(Work::TakeLine, lines);
            }
            outcome.set(result);
        })
    })
}

impl<F: Fabric, P: Policy<F>> Drop for Seat<F, P> {
    fn drop(&mut self) {
        self.end_wait();
        if let Some((mut seat, parker)) = self.own.take() {
            let handle = &self.handle;
            self.calls.abandon(|call| P::forget(handle, &mut seat, call));
            self.handle.leave(self.number, seat, parker);
        }
    }
}
