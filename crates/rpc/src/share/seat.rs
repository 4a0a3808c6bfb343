//! A thread's client of a shared connection: its own calls, and its wait.

use super::calls::Calls;
use super::handle::{Handle, Place};
use super::strand::{Core, Entry, LeadGuard, ParkerOf, Policy, Strand};
use crate::client::CallId;
use crate::client::config::ClientConfig;
use crate::client::memory::request_bytes;
use crate::client::within::Time;
use crate::combine::lines::lines_of;
use crate::combine::threads::SizeCounts;
use crate::error::{CallError, Cause, ConnectError};
use crate::wait::{Sleep, Waiter};
use dunlin_fabric::{Fabric, Host, Nanos, Parker, WaitMode, Work, nanos};
use std::sync::Arc;

/// Looks at the connection for each time that a waiting thread takes the lead. Taking and giving it back costs as
/// much as several looks, and other threads' calls are seen with each look.
const LOOKS: u32 = 8;

/// Results that a thread takes, one after the other, before it looks at the clock for calls past their deadlines.
const RESULTS: u32 = 64;

/// The time between looks for room that other threads make, in nanoseconds: by taking their results, or late answers.
/// They wake nobody for it.
const ROOM_LOOK: Nanos = 200_000;

/// A thread's client of a shared connection. `Send`, but used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Seat<F: Fabric, P: Policy<F>> {
    handle: Arc<Handle<F, P>>,
    /// The strand that the thread uses.
    strand: Arc<Strand<F, P>>,
    /// The handle's epoch when the thread was last where it has to be.
    epoch: u64,
    number: u16,
    calls: Calls,
    /// How a thread of this connection sleeps, as the last look with the lead showed.
    sleep: Sleep,
    waiter: Waiter,
    earliest: Nanos,
    /// Results until the next look at the clock.
    until_clock: u32,
    timeout: Nanos,
    next_worker: usize,
    /// Where the thread counts its requests, for the scheduling of threads.
    counts: Option<Arc<SizeCounts>>,
    /// Requests until the thread looks whether the threads have to be scheduled.
    until_look: u32,
    /// Looks at the connection with the lead in hand.
    looks: u32,
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
        let Place { number, seat, parker, strand } = handle.sit()?;
        let sleep = strand.lead().core().client.sleep();
        let config = &handle.config;
        Ok(Seat {
            number,
            strand,
            epoch: handle.epoch(),
            calls: Calls::new(match P::MAX_STRANDS {
                1 => config.window,
                _ => config.most_of_a_thread(),
            }),
            sleep,
            waiter: Waiter::new(config.mode(), nanos(config.spin)),
            earliest: Nanos::MAX,
            until_clock: RESULTS,
            timeout: config.call_nanos(),
            // Threads begin at different workers.
            next_worker: usize::from(number),
            counts: handle.counts(number),
            until_look: handle.look_every(),
            looks: if parker.blocks_when_busy() { 1 } else { LOOKS },
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

    pub(crate) fn strand(&self) -> &Strand<F, P> {
        &self.strand
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
        self.next_worker = (self.next_worker + 1) % self.strand.workers().max(1);
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
        if self.calls.room() == 0 || self.epoch != self.handle.epoch() && !self.follow() {
            return Err(CallError::NotExecuted(Cause::WindowFull));
        }
        let (seat, _) = own(&mut self.own);
        let call = P::submit(&self.strand, seat, &Entry { worker, function, payload, time })?;
        if let Some(counts) = &self.counts {
            counts.count(request_bytes(function, payload));
        }
        let entered = self.entered(call, time);
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = self.handle.look_every();
            self.handle.look();
        }
        entered
    }

    /// Moves to the strand that the handle has assigned, if that is another one and no call is under way on the
    /// present one. Calls that the present one has given back are made again there, in order. Returns false while
    /// calls are under way.
    #[cold]
    fn follow(&mut self) -> bool {
        let epoch = self.handle.epoch();
        if self.handle.has_to_move(self.number, &self.strand) {
            let (seat, _) = own(&mut self.own);
            if !self.calls.under_way().all(|call| P::is_returned(seat, call)) {
                return false;
            }
            self.end_wait();
            self.lead_if_retired();
            self.strand = self.handle.move_on(self.number);
            let (seat, _) = own(&mut self.own);
            for call in self.calls.under_way() {
                P::submit_again(&self.strand, seat, call);
            }
        }
        self.epoch = epoch;
        true
    }

    fn entered(&mut self, call: u64, time: Time) -> Result<CallId, CallError> {
        let entered = self.calls.enter(call, time.nanos);
        let entered = entered.ok_or(CallError::NotExecuted(Cause::WindowFull))?;
        if time.is_own {
            // Its time runs from here on.
            let now = self.strand.fabric.host().now();
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
        let mut now = self.strand.fabric.host().now();
        let until = time.ends(now);
        self.begin_wait();
        loop {
            // Only a result that the caller collects makes room in a full window.
            if self.calls.room() == 0 && self.calls.in_flight() == 0 {
                self.end_wait();
                return Err(CallError::NotExecuted(Cause::WindowFull));
            }
            let ended = self.progress();
            // The late answer of a call that was given up makes room, too.
            match self.try_submit(to, payload, time.left(until, now)) {
                Err(CallError::NotExecuted(Cause::WindowFull)) => {}
                done => {
                    self.end_wait();
                    return done;
                }
            }
            match ended {
                0 => self.idle(until.min(now.saturating_add(ROOM_LOOK)), |_| false),
                _ => self.waiter.reset(),
            }
            now = self.strand.fabric.host().now();
            if now >= self.earliest {
                self.expire(now);
            }
        }
    }

    /// Takes what has arrived, and leads if no other thread does. Returns the number of own calls that ended.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        let (seat, _) = own(&mut self.own);
        if self.calls.in_flight() > 0 {
            let ended = take_ended(&self.strand, &mut self.calls, seat, None);
            if ended > 0 {
                return ended;
            }
            if self.strand.is_retired() {
                self.follow();
            }
        }
        let (seat, _) = own(&mut self.own);
        let lead = self.strand.try_lead();
        self.has_led = lead.is_some();
        let Some(lead) = lead else { return 0 };
        let mut lead = lead.led_by(self.number);
        let mut looks = 1;
        loop {
            P::lead(&self.strand, lead.core());
            let ended = take_ended(&self.strand, &mut self.calls, seat, Some(&mut lead));
            if ended > 0 || looks == self.looks || self.calls.in_flight() == 0 {
                self.sleep = lead.core().client.sleep();
                return ended;
            }
            looks += 1;
        }
    }

    /// Ends calls past their deadline.
    fn expire(&mut self, now: Nanos) {
        let ((seat, _), strand) = (own(&mut self.own), &self.strand);
        self.earliest = self.calls.expire(now, |call| P::expire(strand, seat, call));
        self.lead_if_retired();
    }

    /// Leads a retired strand once, so that its connection is closed with its last call: no other thread may come.
    fn lead_if_retired(&self) {
        if self.strand.is_retired()
            && let Some(mut lead) = self.strand.try_lead()
        {
            P::lead(&self.strand, lead.core());
        }
    }

    fn begin_wait(&mut self) {
        self.waiter.reset();
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.has_idled) {
            self.strand.stop_watching(self.number);
            self.strand.pass_on();
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
            self.poll_until(Nanos::MAX, |calls| calls.is_done(id));
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
            self.poll_until(Nanos::MAX, Calls::has_done);
        };
        self.end_wait();
        found
    }

    /// Makes progress; if there was none, waits a moment as the plan says, until `until` at most, unless `is_so`
    /// holds.
    fn poll_until(&mut self, until: Nanos, is_so: impl Fn(&Calls) -> bool) {
        if self.progress() > 0 {
            self.waiter.reset();
            self.look_at_clock();
            return;
        }
        self.idle(until, is_so);
    }

    /// Ends calls past their deadlines where results keep coming, so that the thread never idles.
    #[inline]
    fn look_at_clock(&mut self) {
        if self.earliest == Nanos::MAX {
            return;
        }
        self.until_clock -= 1;
        if self.until_clock == 0 {
            self.until_clock = RESULTS;
            self.expire(self.strand.fabric.host().now());
        }
    }

    fn idle(&mut self, limit: Nanos, is_so: impl Fn(&Calls) -> bool) {
        let now = self.waiter.clock_is_due().then(|| self.strand.fabric.host().now());
        if let Some(now) = now {
            self.expire(now);
        }
        let (strand, (_, parker)) = (&self.strand, own(&mut self.own));
        let host = strand.fabric.host();
        let (mut mode, spun) =
            self.waiter.next(self.sleep, || parker.crowding(), || now.unwrap_or_else(|| host.now()));
        if mode.sleeps() && strand.is_fetching() {
            mode = WaitMode::Busy;
        }
        if !mode.sleeps() && !parker.blocks_when_busy() {
            // A busy thread polls again at once. It checks the connection's own deadlines every 256 polls.
            if now.is_some()
                && let Some(mut lead) = strand.try_lead()
            {
                lead.core().client.look_at_deadlines();
            }
            parker.park(mode, spun);
            return;
        }
        // In virtual time a busy wait, too, ends at its limit, and not after a number of polls.
        if now.is_none() && (mode.sleeps() || host.glance() >= self.earliest) {
            let now = host.now();
            self.expire(now);
        }
        if is_so(&self.calls) {
            return;
        }
        let until = spun.min(limit).min(self.earliest);
        self.has_idled = true;
        if self.strand.watch(self.number, mode.sleeps()) {
            if self.rest(mode, until, is_so) {
                return;
            }
            self.strand.stop_watching(self.number);
        }
        if !self.strand.may_park(self.number, self.has_led) {
            return;
        }
        let until = until.min(self.strand.due());
        // A result that was delivered meanwhile has unparked the thread.
        self.parker().park(mode, until);
        self.strand.unparked(self.number);
    }

    /// Waits in the sentinel's place. Returns false if another thread leads: it delivers what it finds.
    fn rest(&mut self, mode: WaitMode, until: Nanos, is_so: impl Fn(&Calls) -> bool) -> bool {
        let strand = &self.strand;
        let Some(lead) = strand.try_lead() else { return false };
        let mut lead = lead.led_by(self.number);
        let armed = lead.core().client.arm(mode);
        let events = P::lead(strand, lead.core());
        self.sleep = lead.core().client.sleep();
        let (seat, _) = own(&mut self.own);
        if take_ended(strand, &mut self.calls, seat, Some(&mut lead)) > 0 || events > 0 || is_so(&self.calls)
        {
            lead.core().client.disarm(armed);
            self.waiter.reset();
            return true;
        }
        // All calls were given back with the strand, perhaps by this thread before it took the sentinel's place: nothing
        // that arrives here would end them.
        let has_to_move =
            strand.is_retired() && self.calls.under_way().all(|call| P::is_returned(seat, call));
        if has_to_move || lead.core().client.has_read_to_post() {
            lead.core().client.disarm(armed);
            return true;
        }
        let until = until.min(lead.core().client.wait_limit());
        drop(lead);
        strand.rest(armed, until);
        true
    }

    /// Releases a call. One that is under way is given up.
    pub(crate) fn forget(&mut self, id: CallId) {
        if let Some(call) = self.calls.number(id) {
            let (seat, _) = own(&mut self.own);
            P::forget(&self.strand, seat, call);
        }
        self.calls.forget(id);
    }

    /// Runs `what` with the lead.
    pub(crate) fn with_lead<T>(&self, what: impl FnOnce(&mut Core<F, P>) -> T) -> T {
        what(self.strand.lead().core())
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
    strand: &Strand<F, P>,
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
                strand.fabric.host().charge(Work::TakeLine, lines);
            }
            outcome.set(result);
        })
    })
}

impl<F: Fabric, P: Policy<F>> Drop for Seat<F, P> {
    fn drop(&mut self) {
        self.end_wait();
        if let Some((mut seat, parker)) = self.own.take() {
            let strand = Arc::clone(&self.strand);
            self.calls.abandon(|call| P::forget(&strand, &mut seat, call));
            self.lead_if_retired();
            self.handle.leave(Place { number: self.number, seat, parker, strand });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)]

    use crate::combine::threads::{Load, Sizes};
    use crate::plan::{CompletionMode, Protocol, Sharing};
    use crate::server::ServerBuilder;
    use crate::share::{Client, Policy};
    use crate::{ClientConfig, FunctionMode, Plan, Reply, Request};
    use dunlin_fabric::{Access, Address, Fabric, Region, Scheme};
    use dunlin_fabric_sim::Sim;
    use std::time::Duration;

    /// The scheduling of threads sees the lengths of READs and WRITEs, and not those of their encodings.
    #[test]
    fn an_operation_on_memory_counts_with_its_length() {
        Sim::run(1, |fabric| {
            let all = Access::READ.with(Access::WRITE).with(Access::ATOMIC);
            let address = Address::new(Scheme::Sim, "lengths").unwrap();
            let server = ServerBuilder::new(&fabric)
                .function(1, FunctionMode::Worker)
                .expose("all", Region::new(fabric.register(1 << 16, all).unwrap()), all)
                .serve(&address, |_| {
                    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
                })
                .unwrap();
            let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
            let config = ClientConfig::with_plan(Plan { sharing: Sharing::Combined, ..plan });
            let mut client = Client::connect(&fabric, &address, config).unwrap();
            let region = client.attach("all").unwrap();
            let mut last = Sizes::default();
            let mut load = |client: &Client<Sim>| {
                let Policy::Combined(seat) = &client.policy else { unreachable!("the plan combines") };
                seat.counts.as_ref().unwrap().since(&mut last).load()
            };
            client.read(&region, 0, &mut [0; 4096]).unwrap();
            assert_eq!(load(&client), Load { median: 4096, requests: 1, bytes: 4096 });
            client.write(&region, 0, &[1; 300]).unwrap();
            assert_eq!(load(&client), Load { median: 256, requests: 1, bytes: 300 });
            client.fetch_add(&region, 0, 1).unwrap();
            client.compare_swap(&region, 0, 0, 1).unwrap();
            client.call(1, b"eight by").unwrap();
            assert_eq!(load(&client), Load { median: 8, requests: 3, bytes: 24 });
            drop(client);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}
