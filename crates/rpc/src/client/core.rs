//! The client's engine: one domain, the lanes of its connections, and `progress`, which never blocks. A
//! synchronous client owns an engine; the asynchronous hub has one behind the lead.

use super::closing::ClosingLane;
use super::config::ClientConfig;
use super::establish::{Greeting, PreparedLane};
use super::lane::{ClientLane, NoMore, SubmitError};
use super::memory::Attaching;
use super::slots::{Keep, Sink};
use crate::error::{CallError, Cause, ConnectError};
use crate::limits::MAX_WINDOW;
use crate::path::half::Arrived;
use crate::path::half::hybrid::Tuning;
use crate::path::posting::repost;
use crate::path::route::{self, Route};
use crate::path::{Cx, HEAD_IMMEDIATE, Scratch, Violation, scratch};
use crate::plan::CompletionMode;
use crate::tune::Tuners;
use crate::wait::Sleep;
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Buffer, Completion, CompletionQueueId, CompletionStatus, Fabric, Host, Link, Nanos, Opcode, QueuePairId,
    QueuePairState, ThreadDomain, WaitMode, Work, copy,
};
use dunlin_wire::LINE;
use dunlin_wire::handshake::{Grant, LaneReady, Record};

mod held;

pub(crate) use self::held::Holding;

/// Queue-pair health and send completions are checked every 64 polls.
const HEALTH_EVERY: u32 = 64;
/// The control connections are read every 4096 polls.
const CONTROL_EVERY: u32 = 4096;
/// The budget of messages taken from one lane at a time.
const BUDGET: usize = 64;
/// Only the memory of the first lanes is prefetched after a wait: with more lanes, most are idle.
const LANES_WARMED: usize = 2;
/// The most completions taken at a time.
const COMPLETIONS_AT_ONCE: usize = 64;

/// The identity of a call: its lane and call id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    pub(crate) lane: u16,
    pub(crate) call: u32,
}

impl CallId {
    /// Returns the id as a number.
    pub(crate) const fn bits(self) -> u64 {
        (self.lane as u64) << 32 | self.call as u64
    }

    /// Returns the id with this number.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        CallId { lane: (bits >> 32) as u16, call: bits as u32 }
    }

    /// Returns a small number that is unique among the client's live calls, for use as an index into a table
    /// of the caller's. It is less than 1024 times the largest number of lanes that the client has had at
    /// once.
    #[inline]
    pub const fn index(self) -> usize {
        self.lane as usize * MAX_WINDOW as usize + crate::path::call_id::split_call(self.call).0
    }
}

/// The client's engine. The fields used by every call come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Core<F: Fabric> {
    lanes: Vec<Option<ClientLane<F>>>,
    scratch: Box<Scratch>,
    pub(crate) domain: F::Domain,
    pub(crate) fabric: F,
    ticks: u32,
    /// Lanes whose messages arrive as completions: the receive queue is polled for them.
    by_completion: usize,
    /// Lanes that fetch: the send queue is polled for their READs.
    by_fetch: usize,
    /// Lanes whose messages are found by polling memory.
    by_memory: usize,
    sleep: Sleep,
    pub(crate) send_completions: CompletionQueueId,
    pub(crate) receive_completions: CompletionQueueId,
    /// The number of connections made so far.
    connections: u32,
    completions: Vec<Completion<F::Memory>>,
    /// Lanes that are being closed.
    pub(super) closing: Vec<ClosingLane>,
    /// Regions of the server's memory that are being attached.
    pub(crate) attaching: Attaching,
}

impl<F: Fabric> Core<F> {
    /// Creates an engine without lanes, whose thread waits by `mode`.
    pub(crate) fn new(fabric: &F, mode: CompletionMode) -> Result<Self, ConnectError> {
        let mut domain = fabric.domain()?;
        // A sleep until WRITEs land is ended by completions too, without events.
        let write_wakes = fabric.capabilities().write_wakes;
        let (events, sleep_mode) = match mode {
            CompletionMode::Event => (true, WaitMode::Event),
            CompletionMode::Adaptive if write_wakes => (false, WaitMode::Write),
            CompletionMode::Adaptive => (true, WaitMode::Event),
            CompletionMode::Busy => (false, WaitMode::Write),
        };
        let depth = fabric.capabilities().max_queue_depth.min(16 * 1024);
        let send_completions = domain.create_completion_queue(depth, events)?;
        let receive_completions = domain.create_completion_queue(depth, events)?;
        Ok(Core {
            fabric: fabric.clone(),
            domain,
            send_completions,
            receive_completions,
            lanes: Vec::new(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
            scratch: scratch(),
            ticks: 0,
            by_completion: 0,
            by_fetch: 0,
            by_memory: 0,
            sleep: Sleep { mode: sleep_mode, gives_way: write_wakes },
            connections: 0,
            closing: Vec::new(),
            attaching: Attaching::default(),
        })
    }

    /// Prepares the client's half of the lanes of each plan to all workers of a server, or to one.
    pub(crate) fn prepare(
        &mut self,
        greeting: &Greeting<F>,
        config: &ClientConfig,
        tuners: &Tuners,
    ) -> Result<Vec<PreparedLane<F>>, ConnectError> {
        let workers = match config.worker {
            Some(worker) => worker..worker.saturating_add(1),
            None => 0..greeting.reply.workers,
        };
        let mut prepared = Vec::with_capacity(workers.len());
        for plan in config.plans() {
            for worker in workers.clone() {
                let effective = plan.written_back_if(tuners.rules_out_fetching());
                match PreparedLane::new(self, greeting, config, effective, prepared.len() as u16, worker) {
                    Ok(mut lane) => {
                        lane.ruled_out = effective != plan;
                        prepared.push(lane);
                    }
                    Err(error) => {
                        self.discard(prepared);
                        return Err(error);
                    }
                }
            }
        }
        Ok(prepared)
    }

    /// Releases the halves made by [`prepare`](Core::prepare).
    pub(crate) fn discard(&mut self, prepared: impl IntoIterator<Item = PreparedLane<F>>) {
        for lane in prepared {
            self.destroy(lane.queue_pairs());
        }
    }

    /// Destroys queue pairs that belong to no lane.
    pub(crate) fn destroy(&mut self, queue_pairs: impl IntoIterator<Item = QueuePairId>) {
        for queue_pair in queue_pairs {
            let _ = self.domain.destroy_queue_pair(queue_pair);
        }
    }

    /// Joins the prepared halves of a new connection with the server's, and returns the lanes' indices in the order
    /// of plans and workers. The lanes share the client's `tuners`.
    pub(crate) fn install(
        &mut self,
        greeting: &Greeting<F>,
        config: &ClientConfig,
        prepared: Vec<PreparedLane<F>>,
        ready: &[LaneReady],
        tuners: &Tuners,
    ) -> Result<Vec<u16>, ConnectError> {
        self.connections += 1;
        self.install_on(self.connections, (greeting, config), prepared, ready, tuners)
    }

    /// As [`install`](Core::install), for a connection that has lanes already: [`ClientLane::connection`].
    pub(crate) fn install_on(
        &mut self,
        connection: u32,
        (greeting, config): (&Greeting<F>, &ClientConfig),
        prepared: Vec<PreparedLane<F>>,
        ready: &[LaneReady],
        tuners: &Tuners,
    ) -> Result<Vec<u16>, ConnectError> {
        let mut indices = Vec::with_capacity(prepared.len());
        let mut prepared = prepared.into_iter();
        while let Some(half) = prepared.next() {
            let index = self.free_index();
            let queue_pairs: Vec<_> = half.queue_pairs().collect();
            let made = match ready.iter().find(|ready| ready.lane == half.number) {
                Some(ready) => half.join(self, greeting, config, ready, index, tuners),
                None => Err(ConnectError::Handshake("a lane was not answered".into())),
            };
            match made {
                Ok(mut lane) => {
                    lane.connection = connection;
                    self.by_completion += lane.by_completion as usize;
                    self.by_memory += !lane.by_completion as usize;
                    self.by_fetch += lane.fetcher().is_some() as usize;
                    self.lanes[index as usize] = Some(lane);
                    indices.push(index);
                }
                Err(error) => {
                    self.destroy(queue_pairs);
                    self.discard(prepared);
                    for index in indices {
                        self.remove(index);
                    }
                    return Err(error);
                }
            }
        }
        self.tell_what_is_touched();
        Ok(indices)
    }

    fn free_index(&mut self) -> u16 {
        let index = self.lanes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        index as u16
    }

    pub(super) fn lane_indices(&self) -> std::ops::Range<u16> {
        0..self.lanes.len() as u16
    }

    /// Breaks a lane: its calls fail with the cause, and it accepts no more. Its results stay available.
    pub(crate) fn break_lane(&mut self, index: u16, cause: Cause) {
        if self.lane(index).is_none_or(|lane| lane.broken.is_some()) {
            return;
        }
        // A draining server reports the last message that it took before it closes.
        self.read_control(index);
        let Some(Some(lane)) = self.lanes.get_mut(index as usize) else { return };
        lane.broken = Some(cause);
        let cause = match cause {
            Cause::ConnectionLost if lane.closing => Cause::Closed,
            Cause::ConnectionLost if lane.draining => Cause::Draining,
            cause => cause,
        };
        lane.slots.fail(cause, lane.taken);
        self.by_completion -= lane.by_completion as usize;
        self.by_memory -= !lane.by_completion as usize;
        self.by_fetch -= lane.fetcher().is_some() as usize;
        self.domain.unwatch(&lane.region);
        let queue_pairs = lane.queue_pairs();
        self.destroy(queue_pairs);
    }

    /// Reads the server's records on the control connection of a lane: whether it drains, and the last
    /// message that it took.
    pub(crate) fn read_control(&mut self, index: u16) {
        let Some(Some(lane)) = self.lanes.get(index as usize) else { return };
        let (link, connection) = (lane.link.clone(), lane.connection);
        while let Ok(Some(message)) = link.try_receive() {
            match Record::decode(&message) {
                Ok(record) => self.on_record(connection, &record),
                Err(error) => {
                    tracing::warn!(target: "dunlin::client", %error, "a record cannot be understood")
                }
            }
        }
    }

    /// Processes a record of the server about lanes of a connection.
    pub(crate) fn on_record(&mut self, connection: u32, record: &Record) {
        let lanes = self.lanes.iter_mut().flatten().filter(|lane| lane.connection == connection);
        match record {
            Record::Drain | Record::Goodbye => lanes.for_each(|lane| lane.draining = true),
            Record::Drained(mark) => {
                for lane in lanes.filter(|lane| lane.number == mark.lane) {
                    lane.draining = true;
                    lane.taken = Some(mark.taken);
                }
            }
            // The server does not have a lane that is being closed, or no longer.
            Record::LaneRefused(refused) => {
                for lane in lanes.filter(|lane| lane.number == refused.lane && lane.draining) {
                    lane.taken.get_or_insert(u64::MAX);
                }
            }
            Record::Grant(grant) if self.attaching.answer(connection, *grant) => {}
            other => {
                tracing::debug!(target: "dunlin::client", record = ?other.record_type(), "an unexpected record");
            }
        }
    }

    /// Takes the answers to requests for regions on the connection of a lane.
    pub(crate) fn take_attached(&mut self, connection: u32, each: impl FnMut(u16, Grant)) {
        let Core { lanes, attaching, .. } = self;
        let is_open = |of| lanes.iter().flatten().any(|lane| lane.connection == of && lane.broken.is_none());
        attaching.take(connection, is_open, each);
    }

    /// Ends a lane that a new one replaces: at once if it has no call in flight, else with its last call. The server
    /// counts its queue pair until then.
    pub(crate) fn retire(&mut self, index: u16) {
        let Some(lane) = self.lane(index) else { return };
        lane.replaced = true;
        if lane.slots.in_flight() == 0 {
            self.break_lane(index, Cause::Draining);
        }
    }

    /// Removes a lane with all its results.
    pub(crate) fn remove(&mut self, index: u16) {
        self.break_lane(index, Cause::Closed);
        self.closing.retain(|closing| closing.index != index);
        if let Some(place) = self.lanes.get_mut(index as usize) {
            *place = None;
        }
        self.tell_what_is_touched();
    }

    /// Informs the domain which memory the processing of answers touches.
    fn tell_what_is_touched(&mut self) {
        let lanes = self.lanes.iter().take(LANES_WARMED).flatten().flat_map(ClientLane::touched);
        let touched: Vec<_> = lanes.chain([(self.scratch.as_ptr(), LINE)]).collect();
        self.domain.will_touch(&touched);
    }

    /// Returns the lane if it exists, even if it is broken.
    #[inline]
    pub(crate) fn lane(&mut self, index: u16) -> Option<&mut ClientLane<F>> {
        self.lanes.get_mut(index as usize).and_then(Option::as_mut)
    }

    /// Prefetches after a wait the memory that the processing of answers touches.
    #[inline]
    pub(crate) fn warm(&self) {
        copy::prefetch_to_write(self.scratch.as_ptr());
        self.lanes.iter().take(LANES_WARMED).flatten().for_each(ClientLane::warm);
    }

    /// Returns whether a lane accepts calls.
    pub(crate) fn is_usable(&mut self, index: u16) -> bool {
        self.lane(index).is_some_and(|lane| lane.broken.is_none() && !lane.draining)
    }

    /// Returns whether a lane is broken and holds no results, so that it can be removed.
    pub(crate) fn is_spent(&mut self, index: u16) -> bool {
        self.lane(index).is_none_or(|lane| lane.broken.is_some() && lane.slots.is_unused())
    }

    /// Runs `what` on a usable lane.
    #[inline]
    pub(crate) fn with_lane(
        &mut self,
        index: u16,
        what: impl FnOnce(&mut Cx<'_, F>, &mut ClientLane<F>) -> Result<u32, SubmitError>,
    ) -> Result<CallId, SubmitError> {
        let (mut cx, lane) = self.usable_lane(index)?;
        let result = what(&mut cx, lane);
        self.used_lane(index, result)
    }

    /// Returns a lane that accepts calls, and the means to act on it. [`used_lane`](Core::used_lane) takes the result.
    #[inline(always)]
    pub(super) fn usable_lane(&mut self, index: u16) -> Result<(Cx<'_, F>, &mut ClientLane<F>), SubmitError> {
        match self.lanes.get_mut(index as usize) {
            Some(Some(lane)) if lane.broken.is_none() => {
                Ok((Cx { fabric: &self.fabric, domain: &mut self.domain }, lane))
            }
            _ => Err(SubmitError::Broken),
        }
    }

    /// Takes the result of an action on a lane.
    #[inline(always)]
    pub(super) fn used_lane(
        &mut self,
        index: u16,
        result: Result<u32, SubmitError>,
    ) -> Result<CallId, SubmitError> {
        match result {
            Ok(call) => Ok(CallId { lane: index, call }),
            Err(error) => Err(self.failed_on(index, error)),
        }
    }

    #[cold]
    fn failed_on(&mut self, index: u16, error: SubmitError) -> SubmitError {
        match error {
            SubmitError::Broken => self.break_lane(index, Cause::ConnectionLost),
            // Memory of given-up calls comes back as the server READs it, or with the end of the lane. Nobody may look
            // for either: there may be no call to wait for.
            SubmitError::Call(CallError::NotExecuted(Cause::OutOfMemory)) => {
                self.progress_after_sleep();
            }
            _ => {}
        }
        error
    }

    /// Sends the open batch of a lane.
    #[inline]
    pub(crate) fn flush(&mut self, index: u16) -> Result<(), SubmitError> {
        self.with_lane(index, |cx, lane| lane.flush(cx).map(|()| 0)).map(|_| ())
    }

    /// Sends what a leader's round has left open on a lane.
    pub(crate) fn send_open(&mut self, index: u16) -> Result<(), SubmitError> {
        self.with_lane(index, |cx, lane| lane.send_open(cx).map(|()| 0)).map(|_| ())
    }

    /// Sends the open batches of all lanes, as far as there is room, because the caller waits. Skips lanes
    /// that batch by themselves and have other answers to wait for. Returns whether a batch found no room.
    #[inline]
    pub(crate) fn flush_all(&mut self) -> bool {
        let mut held_back = false;
        for index in 0..self.lanes.len() {
            if self.lanes[index].as_ref().is_some_and(ClientLane::goes_out_when_waiting) {
                held_back |= matches!(self.flush(index as u16), Err(SubmitError::Full));
            }
        }
        held_back
    }

    /// Returns the time at which the first open batch is sent without a flush.
    pub(crate) fn batches_due(&self) -> Nanos {
        let open = self.lanes.iter().flatten().filter(|lane| !lane.batch.is_empty());
        open.filter_map(|lane| Some(lane.batching.as_ref()?.due())).min().unwrap_or(Nanos::MAX)
    }

    /// Processes everything that has arrived, and returns the number of messages and completions. Never
    /// blocks. Not inlined, because each wait calls it from two places.
    #[inline(never)]
    pub(crate) fn progress(&mut self) -> usize {
        self.progress_into(&mut Keep)
    }

    /// As [`progress`](Core::progress), and offers results to `sink` as they arrive.
    #[inline(always)]
    pub(crate) fn progress_into(&mut self, sink: &mut impl Sink) -> usize {
        self.ticks = self.ticks.wrapping_add(1);
        let healthy = !self.ticks.is_multiple_of(HEALTH_EVERY);
        let mut events = 0;
        if self.by_fetch > 0 {
            self.post_fetches();
        }
        if self.by_completion > 0 || !healthy {
            events += self.poll(self.receive_completions);
        }
        let mut reading = false;
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            if lane.broken.is_some() {
                continue;
            }
            reading |= lane.reading > 0 || lane.memory > 0 || lane.tx.end.awaits_completion();
            if lane.slots.in_flight() == 0 && healthy && !lane.awaits_word() {
                continue;
            }
            match lane.progress(
                &mut Cx { fabric: &self.fabric, domain: &mut self.domain },
                &mut self.scratch,
                BUDGET,
                sink,
            ) {
                Ok(messages) => {
                    events += messages;
                    reading |= lane.reading > 0;
                }
                Err(violation) => self.violated(index as u16, violation),
            }
        }
        if reading || !healthy {
            events += self.poll(self.send_completions);
        }
        if !healthy {
            self.post_held();
            self.check_health();
        }
        events
    }

    #[cold]
    #[inline(never)]
    fn violated(&mut self, index: u16, violation: Violation) {
        if violation == Violation::Broken {
            return self.break_lane(index, Cause::ConnectionLost);
        }
        tracing::warn!(target: "dunlin::client", lane = index, violation = %WithSources(&violation), "the server broke the protocol; the lane is closed");
        self.break_lane(index, Cause::ProtocolViolation);
    }

    /// Posts READs for lanes that wait for results, and processes the completions of READs.
    #[inline(never)]
    fn post_fetches(&mut self) {
        let mut fetching = false;
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            if lane.broken.is_some() || lane.slots.in_flight() == 0 {
                continue;
            }
            fetching |= lane.may_have_fetched();
            let Some(fetcher) = lane.fetcher_with_work(|| self.fabric.host().now()) else { continue };
            if let Err(violation) = fetcher.read(&mut self.domain) {
                tracing::debug!(target: "dunlin::client", lane = index, violation = %WithSources(&violation), "a lane that fetches broke");
                self.break_lane(index as u16, Cause::ConnectionLost);
            }
        }
        if fetching {
            self.poll(self.send_completions);
        }
    }

    #[inline(never)]
    fn poll(&mut self, queue: CompletionQueueId) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.domain.poll(queue, &mut completions, COMPLETIONS_AT_ONCE);
        for completion in completions.drain(..) {
            self.fabric.host().charge(Work::PollCompletion, 1);
            self.on_completion(completion);
        }
        self.completions = completions;
        count
    }

    fn on_completion(&mut self, completion: Completion<F::Memory>) {
        let Some(route) = route::parse(completion.id) else { return };
        let (Route::Outgoing { lane: index }
        | Route::Receive { lane: index }
        | Route::Fetch { lane: index }
        | Route::Rendezvous { lane: index, .. }
        | Route::Memory { lane: index, .. }) = route;
        let Some(Some(lane)) = self.lanes.get_mut(index as usize) else { return };
        // An earlier lane at this index may have left completions.
        if !lane.owns(completion.queue_pair) || lane.broken.is_some() {
            return;
        }
        let is_unconnected = lane.beside.unconnected == Some(completion.queue_pair);
        if is_unconnected && self.domain.state(completion.queue_pair) == Some(QueuePairState::Ready) {
            return lane.on_unconnected(&mut self.domain, route, completion);
        }
        if completion.status != CompletionStatus::Success {
            tracing::debug!(target: "dunlin::client", lane = index, status = completion.status.describe(), "a lane broke");
            // Messages that arrived before the failure still count.
            let _ = lane.progress(
                &mut Cx { fabric: &self.fabric, domain: &mut self.domain },
                &mut self.scratch,
                usize::MAX,
                &mut Keep,
            );
            return self.break_lane(index, Cause::ConnectionLost);
        }
        match route {
            Route::Outgoing { .. } => lane.tx.end.completed(),
            Route::Receive { .. } => match (completion.opcode, completion.buffer) {
                (Opcode::Receive, Some(buffer)) => {
                    let (bytes, immediate) = (completion.bytes, completion.immediate);
                    let _ = lane.rx.deliver(Arrived { buffer, bytes, immediate });
                }
                (_, buffer) => {
                    if completion.immediate != Some(HEAD_IMMEDIATE) {
                        lane.rx.noticed();
                    }
                    let _ = repost::<F>(&mut self.domain, lane.queue_pair, index, buffer);
                }
            },
            Route::Fetch { .. } => {
                if let (Some(fetcher), Some(buffer)) = (lane.fetcher(), completion.buffer) {
                    fetcher.arrived(buffer);
                }
            }
            Route::Memory { slot: call, .. } => lane.on_memory(call, completion),
            Route::Rendezvous { slot: call, .. } => {
                if let Some(buffer) = completion.buffer
                    && let Err(violation) =
                        lane.on_read(&mut Cx { fabric: &self.fabric, domain: &mut self.domain }, call, buffer)
                {
                    self.violated(index, violation);
                }
            }
        }
    }

    /// Runs the infrequent checks: broken queue pairs and records on the control connections.
    #[inline(never)]
    fn check_health(&mut self) {
        let control = self.ticks.is_multiple_of(CONTROL_EVERY);
        for index in 0..self.lanes.len() as u16 {
            if control {
                self.read_control(index);
            }
            let Some(Some(lane)) = self.lanes.get_mut(index as usize) else { continue };
            if lane.broken.is_some() {
                continue;
            }
            if lane.replaced && lane.slots.in_flight() == 0 {
                self.break_lane(index, Cause::Draining);
                continue;
            }
            let ready = |queue_pair| self.domain.state(queue_pair) == Some(QueuePairState::Ready);
            let failed = !lane.queue_pairs().all(ready) || !lane.link.is_alive();
            if failed {
                let _ = lane.progress(
                    &mut Cx { fabric: &self.fabric, domain: &mut self.domain },
                    &mut self.scratch,
                    usize::MAX,
                    &mut Keep,
                );
                self.break_lane(index, Cause::ConnectionLost);
            } else {
                lane.break_silence(&mut Cx { fabric: &self.fabric, domain: &mut self.domain });
                if lane.retransmit.is_some() {
                    let now = self.fabric.host().now();
                    self.send_again(index, now);
                }
            }
        }
        if !self.closing.is_empty() {
            self.advance_closing();
        }
    }

    /// Sends calls again on a lane that may lose messages. Returns the time of the next check.
    fn send_again(&mut self, index: u16, now: Nanos) -> Nanos {
        let Some(Some(lane)) = self.lanes.get_mut(index as usize) else { return Nanos::MAX };
        if lane.broken.is_some() {
            return Nanos::MAX;
        }
        let cause = match lane.send_again(&mut Cx { fabric: &self.fabric, domain: &mut self.domain }, now) {
            Ok(next) => return next,
            Err(NoMore::PeerUnresponsive) => Cause::Unanswered,
            Err(NoMore::Broken) => Cause::ConnectionLost,
        };
        tracing::debug!(target: "dunlin::client", lane = index, %cause, "a lane broke that sends again what may be lost");
        self.break_lane(index, cause);
        Nanos::MAX
    }

    /// As [`progress`](Core::progress), including the infrequent checks. Used after a sleep.
    pub(crate) fn progress_after_sleep(&mut self) -> usize {
        self.check_soon();
        self.progress()
    }

    /// Makes the next [`progress`](Core::progress) include the infrequent checks.
    pub(crate) fn check_soon(&mut self) {
        self.ticks = self.ticks.next_multiple_of(HEALTH_EVERY).wrapping_sub(1);
    }

    /// Ends calls whose deadline is before `now`. Returns the earliest deadline of the others.
    pub(crate) fn expire(&mut self, now: Nanos) -> Nanos {
        let mut earliest = u64::MAX;
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            earliest = earliest.min(lane.expire(now));
            if lane.retransmit.is_some() {
                earliest = earliest.min(self.send_again(index as u16, now));
            }
        }
        earliest
    }

    /// Returns whether some lane accepts another call.
    pub(crate) fn has_room(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| lane.broken.is_some() || lane.slots.room() > 0)
    }

    /// As [`expire`](Core::expire), but only once in [`HEALTH_EVERY`] polls: for callers that poll in a loop.
    pub(crate) fn expire_now_and_then(&mut self) {
        if self.ticks.is_multiple_of(HEALTH_EVERY) {
            self.expire(self.fabric.host().now());
        }
    }

    /// Returns the next finished call.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<CallId> {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(lane) = lane
                && let Some(call) = lane.slots.next_done()
            {
                return Some(CallId { lane: index as u16, call });
            }
        }
        None
    }

    /// Returns whether some call has finished.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| lane.slots.has_done())
    }

    /// Returns whether a call has its outcome. True for a call that is not in the table.
    #[inline]
    pub(crate) fn is_done(&mut self, id: CallId) -> bool {
        self.lane(id.lane).and_then(|lane| lane.slots.is_done(id.call)).unwrap_or(true)
    }

    /// Returns the outcome of a finished call.
    #[inline]
    pub(crate) fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        match self.lanes.get(id.lane as usize) {
            Some(Some(lane)) => lane.slots.outcome(id.call),
            _ => Err(CallError::MaybeExecuted(Cause::Closed)),
        }
    }

    /// Releases a call that the caller no longer needs.
    #[inline]
    pub(crate) fn forget(&mut self, id: CallId) {
        if let Some(lane) = self.lane(id.lane) {
            lane.slots.forget(id.call);
        }
    }

    /// Takes the large result of a finished call, if it has one.
    #[inline]
    pub(crate) fn take_large(&mut self, id: CallId) -> Option<Buffer<F::Memory>> {
        self.lane(id.lane)?.slots.take_large(id.call)
    }

    /// Returns how the engine's thread sleeps.
    #[inline]
    pub(crate) fn sleep(&self) -> Sleep {
        let polls = self.by_memory > 0 && self.sleep.gives_way;
        Sleep { mode: if polls { WaitMode::Write } else { self.sleep.mode }, ..self.sleep }
    }

    /// Returns whether results are being fetched. Their arrival wakes no sleeper.
    pub(crate) fn is_fetching(&self) -> bool {
        self.by_fetch > 0 && self.lanes.iter().flatten().any(ClientLane::is_fetching)
    }

    /// Returns whether a READ has to be posted at once: the last one found nothing. A wait would not end.
    #[inline]
    pub(crate) fn has_read_to_post(&self) -> bool {
        self.by_fetch > 0 && self.lanes.iter().flatten().any(ClientLane::has_read_to_post)
    }

    /// Returns the time at which an open batch exceeds its timeout; `Nanos::MAX` if none will.
    #[inline]
    pub(crate) fn batch_due(&self) -> Nanos {
        self.lanes.iter().flatten().filter_map(ClientLane::batch_due).min().unwrap_or(Nanos::MAX)
    }

    /// Returns the time of the next delayed READ, or `Nanos::MAX`.
    #[inline]
    pub(crate) fn fetch_due(&self) -> Nanos {
        if self.by_fetch == 0 {
            return Nanos::MAX;
        }
        self.lanes.iter().flatten().filter_map(ClientLane::fetch_due).min().unwrap_or(Nanos::MAX)
    }

    /// Returns those of the given lanes that exist.
    fn lanes_of<'a>(&'a self, indices: &'a [u16]) -> impl Iterator<Item = &'a ClientLane<F>> {
        indices.iter().filter_map(|index| self.lanes.get(usize::from(*index))?.as_ref())
    }

    /// Returns the tuning of those lanes that fetch or write back.
    pub(crate) fn tuning(&self, lanes: &[u16]) -> Vec<Tuning> {
        self.lanes_of(lanes).filter_map(ClientLane::tuning).collect()
    }

    /// Returns the largest batch, in calls, of those lanes that batch by themselves.
    pub(crate) fn batch_calls<'a>(&'a self, lanes: &'a [u16]) -> impl Iterator<Item = u16> + 'a {
        self.lanes_of(lanes).filter_map(|lane| Some(lane.batching.as_ref()?.calls()))
    }

    /// Returns the number of calls sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.lanes.iter().flatten().map(|lane| lane.slots.in_flight()).sum()
    }

    /// Closes all connections and removes their lanes.
    pub(crate) fn close(&mut self) {
        for index in 0..self.lanes.len() as u16 {
            if let Some(Some(lane)) = self.lanes.get(index as usize)
                && lane.broken.is_none()
            {
                if let Ok(goodbye) = Record::Goodbye.encode() {
                    let _ = lane.link.send(&goodbye);
                }
                lane.link.close();
            }
            self.remove(index);
        }
    }
}
