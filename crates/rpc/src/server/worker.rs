//! A worker: one thread with its domain, its lanes and its part of the service. It polls, validates,
//! dispatches and replies.

mod closing;
mod crediting;
mod draining;
mod grouped;
mod pooled;
mod unconnected;

use self::closing::ClosingLane;
pub(super) use self::pooled::PooledRing;
use self::pooled::RingPool;
use self::unconnected::Unconnected;
use super::activity::Activity;
use super::clock::WorkerClock;
use super::config::ServerConfig;
use super::deferred::Takers;
use super::dispatch::{Dispatcher, Out};
use super::exposed::Exposed;
use super::groups::Groups;
use super::inbox::{Command, Inbox};
use super::lane::ServerLane;
use super::occupancy::Oversubscription;
use super::open;
use super::polled::{Polled, Services};
use super::slow::{FunctionSet, Sampling};
use super::turns::Turns;
use super::waiting::WaitingCalls;
use crate::grouped::sorted::SortedMap;
use crate::path::credits::degree_of;
use crate::path::half::Arrived;
use crate::path::large::{Pool, Received};
use crate::path::posting::repost;
use crate::path::prefetch::warm_lines;
use crate::path::route::{self, Route};
use crate::path::{Cx, HEAD_IMMEDIATE, MAX_MESSAGE, Scratch, Violation, scratch};
use crate::plan::{CompletionMode, SMALL_LIMIT};
use crate::service::FunctionMode;
use crate::tune::response_modes::ResponseModes;
use crate::wait::{Sleep, Waiter};
use dunlin_fabric::{
    Arena, Completion, CompletionQueueId, CompletionStatus, Fabric, Host, Link, Nanos, Opcode, QueuePairId,
    ReceiveTarget, SharedReceiveQueueId, Site, ThreadDomain, WaitMode, Wake, WithSources, Work, end_of,
    nanos,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lane health and cold queues are checked every this many polls.
const HEALTH_EVERY: u32 = 64;
/// Completions taken at a time.
const COMPLETIONS_AT_ONCE: usize = 64;
/// Empty polls after which a lane counts as cold.
const COLD_AFTER: u8 = 200;
/// Prefetch distances, in lanes ahead of the one being served: for the lane, for the memory it points to, and
/// for its next message.
const WARM_STEPS: [usize; 3] = [6, 4, 2];
/// Up to this many lanes stay in the caches without prefetches.
const FEW_LANES: usize = 64;
/// Cold lanes polled in each round.
const COLD_AT_ONCE: usize = 8;
/// RECVs of the shared queue, for messages by SEND of all lanes together.
pub(crate) const SHARED_RECEIVES: u32 = 512;

/// State that workers, control thread and pool share.
#[derive(Debug)]
pub(crate) struct Shared<F: Fabric> {
    pub(crate) config: Arc<ServerConfig>,
    /// By function id.
    pub(crate) functions: Vec<Option<FunctionMode>>,
    pub(crate) pool: WaitingCalls<F>,
    pub(crate) pulled: WaitingCalls<F>,
    /// The functions whose slow handlers were reported.
    pub(crate) slow: FunctionSet,
    /// The functions that have left to the pool.
    pub(crate) long: FunctionSet,
    /// The pool has a service.
    pub(crate) has_pool: bool,
    /// The paths for results that can be fetched or written back.
    pub(crate) response_modes: Arc<ResponseModes>,
    /// The schedule of clients whose leases end.
    pub(crate) turns: Arc<Turns>,
    /// Several servers share the schedule.
    pub(crate) is_deployed: bool,
    /// Dropped datagrams: of unknown senders, or too many.
    pub(crate) stray_datagrams: AtomicU64,
    pub(crate) oversubscription: Oversubscription,
    pub(crate) activity: Activity,
    /// Bytes of the rings and tables of all lanes.
    pub(crate) lane_bytes: AtomicU64,
    pub(crate) exposed: Vec<Exposed<F>>,
    pub(crate) takers: Takers<F>,
}

/// A worker of a server. It runs on a thread of the server, or step by step on a thread of the caller.
pub struct Worker<F: Fabric> {
    pub(crate) domain: F::Domain,
    pub(crate) send_completions: CompletionQueueId,
    pub(crate) receive_completions: CompletionQueueId,
    pub(crate) shared_receive: SharedReceiveQueueId,
    /// Memory of the shared RECVs; created with the first lane that needs them.
    pub(crate) receive_arena: Option<Arena<F::Memory>>,
    /// The queue pair without a connection; created with the first lane that needs it.
    pub(super) unconnected: Option<Unconnected<F>>,
    pub(crate) lanes: Vec<Option<ServerLane<F>>>,
    pub(crate) by_queue_pair: SortedMap<QueuePairId, u16>,
    completions: Vec<Completion<F::Memory>>,
    scratch: Box<Scratch>,
    pub(crate) fabric: F,
    pub(super) dispatcher: Dispatcher<F>,
    number: u16,
    serials: u32,
    ticks: u32,
    cold: usize,
    /// Lanes whose leases end; created with the first one.
    groups: Option<Box<Groups<F>>>,
    /// Rings of requests in regions for many lanes.
    ring_pools: Vec<RingPool<F>>,
    /// Reused buffer for the numbers of lanes that were written to.
    active: Vec<u32>,
    checked: usize,
    /// Lanes by completion mode.
    modes: [usize; 3],
    /// Lanes whose messages arrive as completions.
    by_completion: usize,
    /// Lanes whose messages are found by polling memory.
    polled: Vec<u16>,
    /// Lanes with new completions, and lanes whose answers wait for room.
    ready: Vec<u16>,
    /// By lane: whether it is in `ready`. A separate table, so that listing a thousand lanes does not touch
    /// each of them.
    pub(super) listed: Vec<bool>,
    /// Nothing was found since the last sleep.
    rested: bool,
    /// Another thread has sent a command since the last poll before a sleep.
    told: bool,
    reading: usize,
    /// Lanes that wait for completions to get places of their send queues back.
    signaled: usize,
    waiter: Waiter,
    sleep: Sleep,
    drain_until: Option<Nanos>,
    /// Lanes that their clients have closed.
    closing: Vec<ClosingLane>,
    /// Lanes are being closed, or the worker drains.
    ending: bool,
    last_message: Nanos,
    /// [`Activity::activations`] when the worker last looked.
    activations: u64,
    ended: bool,
}

impl<F: Fabric> std::fmt::Debug for Worker<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("number", &self.number)
            .field("lanes", &self.by_queue_pair.len())
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> Worker<F> {
    pub(crate) fn new(
        fabric: &F,
        number: u16,
        shared: Arc<Shared<F>>,
        (service, polled): Services<F>,
    ) -> Result<Self, crate::error::ServeError> {
        let mut domain = fabric.domain()?;
        let depth = fabric.capabilities().max_queue_depth;
        let send_completions = domain.create_completion_queue(depth, true)?;
        let receive_completions = domain.create_completion_queue(depth, true)?;
        let shared_receive = match fabric.capabilities().shared_receive_queue {
            true => domain.create_shared_receive_queue(SHARED_RECEIVES)?,
            false => open::NO_SHARED_RECEIVES,
        };
        let inbox = Arc::new(Inbox::new(domain.waker()));
        Ok(Worker {
            send_completions,
            receive_completions,
            shared_receive,
            receive_arena: None,
            unconnected: None,
            lanes: Vec::new(),
            by_queue_pair: SortedMap::default(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
            scratch: scratch(),
            fabric: fabric.clone(),
            dispatcher: Dispatcher {
                reply: vec![0; SMALL_LIMIT as usize],
                imports: Pool::new(None, shared.config.large_memory),
                inbox,
                passes: service.passes(),
                service,
                out: Out { staging: vec![0; MAX_MESSAGE], draining: false },
                clock: WorkerClock::new(shared.functions.len()),
                now: fabric.host().clock(),
                held: None,
                polled: Polled::new(polled, domain.waker()),
                sampling: Sampling::new(),
                shared: Arc::clone(&shared),
            },
            number,
            serials: 0,
            ticks: 0,
            cold: 0,
            groups: None,
            ring_pools: Vec::new(),
            active: Vec::new(),
            checked: 0,
            modes: [0; 3],
            by_completion: 0,
            polled: Vec::new(),
            ready: Vec::new(),
            listed: Vec::new(),
            rested: false,
            told: false,
            reading: 0,
            signaled: 0,
            waiter: Waiter::new(CompletionMode::Event, nanos(shared.config.spin)),
            sleep: Sleep { mode: WaitMode::Event, gives_way: fabric.capabilities().write_wakes },
            drain_until: None,
            closing: Vec::new(),
            ending: false,
            last_message: 0,
            activations: 0,
            ended: false,
            domain,
        })
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox<F>> {
        Arc::clone(&self.dispatcher.inbox)
    }

    /// Returns the worker's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn shared(&self) -> &Shared<F> {
        &self.dispatcher.shared
    }

    /// Runs until the server ends. Blocks.
    pub fn run(mut self) {
        while !self.ended {
            self.step_until(Nanos::MAX);
        }
    }

    /// Makes [`progress`](Worker::progress), and if nothing arrived, waits once as the lanes' plans ask, for `at_most`
    /// ([`Duration::MAX`]: without a look at the clock). Returns the number of messages before the wait.
    pub fn step(&mut self, at_most: Duration) -> usize {
        self.step_until(end_of(self.fabric.host(), at_most))
    }

    /// As [`step`](Worker::step), until a time on the host's clock.
    pub(crate) fn step_until(&mut self, until: Nanos) -> usize {
        self.fabric.host().checkpoint(Site::WorkerLoop);
        let mut handled = self.progress();
        if std::mem::take(&mut self.rested) && handled == 0 {
            // The wake-up belongs to no lane: check lane health now.
            self.ticks = self.ticks.next_multiple_of(HEALTH_EVERY).wrapping_sub(1);
            handled = self.progress();
        }
        if handled > 0 {
            self.waiter.reset();
            return handled;
        }
        let (mode, spin_until) =
            self.waiter.next(self.sleep, || self.domain.crowding(), || self.fabric.host().now());
        let until = until.min(spin_until).min(self.groups_wake_at());
        let (mode, mut until) = match self.dispatcher.polled.keeps() {
            true => self.dispatcher.polled.bound((mode, until), || self.fabric.host().now()),
            false => (mode, until),
        };
        // A client that reports room does not wake this wait.
        if self.ending || !self.ready.is_empty() {
            until = until.min(self.fabric.host().now() + 1_000_000);
        }
        self.told = false;
        let armed = self.domain.arm(mode);
        let late = if self.polls_all_before(mode) { self.progress_all() } else { self.progress() };
        // A command may change the completion mode and the deadline, which are decided already.
        if late > 0 || self.told || self.dispatcher.inbox.has_some() || self.ended {
            self.domain.disarm(armed);
            self.waiter.reset();
            return late;
        }
        self.fabric.host().checkpoint(Site::BeforeSleep);
        let wake = self.domain.wait(armed, until);
        self.rested = mode.sleeps() || wake != Wake::Arrived;
        if mode.sleeps() || self.waiter.has_looked_long() {
            self.dispatcher.sampling.time_next();
        }
        match self.domain.woken_at() {
            Some(now) => self.dispatcher.clock.woke(now),
            None if mode.sleeps() => {
                let now = self.fabric.host().now();
                self.dispatcher.clock.woke(now);
            }
            None => {}
        }
        0
    }

    /// Returns whether the server has ended this worker.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Takes the messages that have arrived and answers them. Never blocks. Returns the number of messages.
    #[inline]
    pub fn progress(&mut self) -> usize {
        self.ticks = self.ticks.wrapping_add(1);
        self.dispatcher.clock.begin_round();
        // Before the inbox, into which its answers go.
        if self.dispatcher.polled.keeps() {
            self.dispatcher.poll_service();
        }
        if self.dispatcher.inbox.has_some() {
            self.take_commands();
            self.dispatcher.clock.time_passed();
        }
        let healthy = !self.ticks.is_multiple_of(HEALTH_EVERY);
        if self.by_completion > 0 || !healthy {
            self.poll(self.receive_completions);
        }
        let mut handled = 0;
        let hinted = self.take_hints();
        if !self.ready.is_empty() {
            handled += self.serve_ready();
        }
        let polled = self.polled.len();
        if hinted {
            // The domain has named the lanes with new messages. A few others are polled at times.
            for _ in 0..if healthy { 0 } else { polled.min(COLD_AT_ONCE) } {
                self.cold = (self.cold + 1) % polled;
                handled += self.serve_polled(self.cold);
            }
        } else if polled <= COLD_AT_ONCE {
            for at in 0..polled {
                handled += self.serve_polled(at);
            }
        } else {
            // Poll all hot lanes, and a few cold ones in rotation.
            for at in 0..polled {
                let hot = self.polled.get(at).and_then(|index| self.lanes[*index as usize].as_ref());
                if hot.is_some_and(|lane| lane.hot > 0) {
                    handled += self.serve_polled(at);
                }
            }
            for _ in 0..COLD_AT_ONCE {
                self.cold = (self.cold + 1) % polled;
                handled += self.serve_polled(self.cold);
            }
        }
        if self.groups.is_some() {
            handled += self.run_groups();
        }
        if self.reading > 0 || self.signaled > 0 || !healthy {
            handled += self.poll(self.send_completions);
        }
        if !healthy {
            self.check_health();
            self.look_at_activity();
            // While nothing runs, nothing else reads the clock.
            if self.domain.woken_at().is_none() {
                self.dispatcher.clock.read_now(self.fabric.host());
            }
        }
        if self.ending {
            handled = self.end_lanes(handled);
        }
        handled
    }

    /// As [`progress`](Worker::progress), and polls every lane in memory: a message that was written before may be
    /// announced by nothing else.
    #[cold]
    fn progress_all(&mut self) -> usize {
        let mut handled = self.progress();
        for at in 0..self.polled.len() {
            handled += self.serve_polled(at);
        }
        handled
    }

    /// Lists the lanes that the domain reports as written to; returns `false` if the domain does not track
    /// the writes to all lanes.
    #[inline]
    fn take_hints(&mut self) -> bool {
        self.take_names() && self.ring_pools.is_empty()
    }

    /// Returns whether only a poll of every lane finds all messages before a wait: WRITEs end it; or events end it also
    /// when busy, and the fabric names written memory, but a region has the rings of several lanes.
    fn polls_all_before(&mut self, mode: WaitMode) -> bool {
        mode == WaitMode::Write || (!self.ring_pools.is_empty() && self.take_names())
    }

    #[inline]
    fn take_names(&mut self) -> bool {
        let hinted = self.domain.take_activity(&mut self.active);
        if !self.active.is_empty() {
            let mut active = std::mem::take(&mut self.active);
            active.drain(..).for_each(|name| self.list(name as u16));
            self.active = active;
        }
        hinted
    }

    /// Serves a lane by its place among the polled ones, if it is still there.
    #[inline]
    fn serve_polled(&mut self, at: usize) -> usize {
        match self.polled.get(at) {
            Some(&index) => self.serve_lane(index as usize),
            None => 0,
        }
    }

    /// Serves the lanes listed in `ready`.
    fn serve_ready(&mut self) -> usize {
        let mut handled = 0;
        let mut ready = std::mem::take(&mut self.ready);
        let many = self.lanes.len() > FEW_LANES;
        if many {
            WARM_STEPS.iter().for_each(|step| (0..*step).for_each(|at| self.warm(*step, &ready, at)));
        }
        let mut kept = 0;
        for at in 0..ready.len() {
            if many {
                WARM_STEPS.iter().for_each(|step| self.warm(*step, &ready, at + step));
            }
            let index = ready[at];
            if let Some(Some(lane)) = self.lanes.get_mut(index as usize) {
                lane.is_found(&self.dispatcher.clock);
            }
            handled += self.serve_lane(index as usize);
            let more = matches!(self.lanes.get(index as usize), Some(Some(lane)) if lane.more);
            if let Some(listed) = self.listed.get_mut(index as usize) {
                *listed = more;
            }
            if more {
                ready[kept] = index;
                kept += 1;
            }
        }
        ready.truncate(kept);
        ready.append(&mut self.ready);
        self.ready = ready;
        handled
    }

    /// Prefetches memory for the lane at `at` in `ready`, as far as `step` goes.
    #[inline]
    fn warm(&self, step: usize, ready: &[u16], at: usize) {
        let Some(index) = ready.get(at) else { return };
        let Some(lane) = self.lanes.get(*index as usize) else { return };
        if step == WARM_STEPS[0] {
            return warm_lines(lane, ServerLane::<F>::HOT);
        }
        let Some(lane) = lane else { return };
        if step == WARM_STEPS[1] {
            lane.warm_parts();
            self.domain.will_post(lane.tx.end.queue_pair());
        } else {
            lane.warm_message();
        }
    }

    /// Lists a lane to be served by the next progress.
    #[inline]
    fn list(&mut self, index: u16) {
        if let Some(listed) = self.listed.get_mut(index as usize)
            && !std::mem::replace(listed, true)
        {
            self.ready.push(index);
        }
    }

    /// Not inlined: it has two callers and contains most of a server's code.
    #[inline(never)]
    fn serve_lane(&mut self, index: usize) -> usize {
        let Some(lane) = &mut self.lanes[index] else { return 0 };
        if lane.tx.end.awaits_completion() && !std::mem::replace(&mut lane.signaled, true) {
            self.signaled += 1;
        }
        let reading = lane.transfers.reads();
        let cx = &mut Cx::of(&self.fabric, &mut self.domain);
        let served = self.dispatcher.serve(cx, lane, &mut self.scratch);
        // Also after a violation: the lane is removed with all its READs.
        if lane.transfers.reads() != reading {
            self.reading = (self.reading + lane.transfers.reads()).saturating_sub(reading);
        }
        match served {
            Ok(messages) => {
                if messages > 0 {
                    lane.hot = COLD_AFTER;
                } else {
                    lane.hot = lane.hot.saturating_sub(1);
                }
                messages
            }
            Err(violation) => {
                self.violated(index as u16, violation);
                0
            }
        }
    }

    /// Closes the connection of a client that broke the protocol.
    #[cold]
    fn violated(&mut self, index: u16, violation: Violation) {
        let Some(Some(lane)) = self.lanes.get(index as usize) else { return };
        if violation == Violation::Broken {
            tracing::debug!(target: "dunlin::server", worker = self.number, lane = index, violation = %WithSources(&violation), "a lane is closed");
        } else {
            tracing::warn!(target: "dunlin::server", worker = self.number, lane = index, session = lane.session(), violation = %WithSources(&violation), "a client broke the protocol; its lane is closed");
        }
        let link = lane.link().clone();
        self.remove(index);
        link.close();
    }

    fn poll(&mut self, queue: CompletionQueueId) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.domain.poll(queue, &mut completions, COMPLETIONS_AT_ONCE);
        let mut handled = 0;
        for completion in completions.drain(..) {
            handled += self.on_completion(completion);
        }
        self.completions = completions;
        debug_assert!(count <= COMPLETIONS_AT_ONCE);
        if count == COMPLETIONS_AT_ONCE {
            self.dispatcher.clock.is_crowded();
        }
        handled
    }

    fn on_completion(&mut self, completion: Completion<F::Memory>) -> usize {
        self.fabric.host().charge(Work::PollCompletion, 1);
        if self.unconnected.as_ref().is_some_and(|pair| pair.queue_pair == completion.queue_pair) {
            self.on_unconnected(completion);
            return 0;
        }
        let Some(&index) = self.by_queue_pair.get(completion.queue_pair) else {
            // The lane is gone. A RECV of the shared queue is posted again; the buffer of an outgoing message is not one.
            let is_shared =
                matches!(route::parse(completion.id), Some(Route::Receive { lane: route::SHARED }));
            if let (Some(buffer), Some(_), true) = (completion.buffer, &self.receive_arena, is_shared) {
                let target = ReceiveTarget::Shared(self.shared_receive);
                open::repost_shared::<F>(&mut self.domain, target, Some(buffer));
            }
            return 0;
        };
        let own = ReceiveTarget::QueuePair(completion.queue_pair);
        let shared_receive = match self.lanes.get(index as usize) {
            Some(Some(lane)) if lane.receives == own => own,
            _ => ReceiveTarget::Shared(self.shared_receive),
        };
        if completion.status != CompletionStatus::Success {
            if let Some(buffer) = completion.buffer
                && matches!(route::parse(completion.id), Some(Route::Receive { lane: route::SHARED }))
                && matches!(shared_receive, ReceiveTarget::Shared(_))
            {
                open::repost_shared::<F>(&mut self.domain, shared_receive, Some(buffer));
            }
            tracing::debug!(target: "dunlin::server", worker = self.number, lane = index, status = completion.status.describe(), "a lane broke");
            self.give_back(index);
            return 0;
        }
        if matches!(route::parse(completion.id), Some(Route::Receive { .. })) {
            self.list(index);
        }
        let Some(Some(lane)) = self.lanes.get_mut(index as usize) else { return 0 };
        match route::parse(completion.id) {
            Some(Route::Receive { lane: shared }) => {
                let asked = match (completion.opcode, completion.immediate.and_then(degree_of)) {
                    (Opcode::ReceiveWriteImmediate, Some(degree)) => Some(lane.on_renewal(degree)),
                    _ => None,
                };
                match (completion.opcode, completion.buffer) {
                    // A lane whose messages take other RECVs uses these only for head reports.
                    (Opcode::Receive, Some(buffer))
                        if shared == route::SHARED && lane.receives != shared_receive =>
                    {
                        open::repost_shared::<F>(&mut self.domain, shared_receive, Some(buffer));
                        self.violated(
                            index,
                            Violation::Transfer("a message by SEND on a lane that has none"),
                        );
                    }
                    (Opcode::Receive, Some(buffer)) if lane.is_blocked() => {
                        let kept = lane.rx.deliver_copy(&buffer, completion.bytes, lane.waiting_limit());
                        open::repost_shared::<F>(&mut self.domain, shared_receive, Some(buffer));
                        if let Err(violation) = kept {
                            self.violated(index, violation);
                        }
                    }
                    (Opcode::Receive, Some(buffer)) => {
                        let (bytes, immediate) = (completion.bytes, completion.immediate);
                        let _ = lane.rx.deliver(Arrived { buffer, bytes, immediate });
                    }
                    (_, buffer) if shared == route::SHARED => {
                        open::repost_shared::<F>(&mut self.domain, shared_receive, buffer);
                    }
                    (_, buffer) => {
                        if completion.immediate != Some(HEAD_IMMEDIATE) && asked.is_none() {
                            lane.rx.noticed();
                        }
                        let _ = repost::<F>(&mut self.domain, completion.queue_pair, index, buffer);
                    }
                }
                if let Some(Err(violation)) = asked {
                    self.violated(index, violation);
                }
                0
            }
            Some(Route::Rendezvous { slot: call, .. }) => {
                let Some(buffer) = completion.buffer else { return 0 };
                let at = (lane.queue_pair, lane.index);
                let inbound = lane.transfers.make().inbound.get_mut();
                let arrived = match inbound.on_read(&mut self.domain, at, call, buffer) {
                    Ok(Received::Whole(buffer)) => Ok(Some(buffer)),
                    Ok(Received::Part) => return 1,
                    Ok(Received::GivenUp | Received::Lost | Received::Nothing) => {
                        let cx = &mut Cx::of(&self.fabric, &mut self.domain);
                        self.dispatcher.on_given_up(cx, lane, call).map(|()| None)
                    }
                    Err(violation) => Err(violation),
                };
                self.reading = self.reading.saturating_sub(1);
                let buffer = match arrived {
                    Ok(Some(buffer)) => buffer,
                    Ok(None) => {
                        self.list(index);
                        return 1;
                    }
                    Err(violation) => {
                        self.violated(index, violation);
                        return 0;
                    }
                };
                let Some(call) = lane.transfers.take_reading(call) else { return 0 };
                self.dispatcher.clock.time_passed();
                let cx = &mut Cx::of(&self.fabric, &mut self.domain);
                match self.dispatcher.dispatch(cx, lane, call, &buffer, None) {
                    Ok(()) => self.list(index),
                    Err(_) => self.remove(index),
                }
                1
            }
            Some(Route::Outgoing { .. }) => {
                lane.tx.end.completed();
                if !lane.tx.end.awaits_completion() && std::mem::take(&mut lane.signaled) {
                    self.signaled -= 1;
                }
                0
            }
            Some(Route::Fetch { .. }) => {
                self.on_announced(index, completion.buffer);
                1
            }
            _ => 0,
        }
    }

    /// Removes a lane. Answers of its calls that run elsewhere are dropped.
    fn remove(&mut self, index: u16) {
        let Some(mut lane) = self.lanes.get_mut(index as usize).and_then(Option::take) else { return };
        self.by_queue_pair.remove(lane.queue_pair);
        self.dispatcher.shared.lane_bytes.fetch_sub(lane.opened_bytes(), Ordering::Relaxed);
        if let Some(beside) = lane.beside() {
            self.by_queue_pair.remove(beside);
            let _ = self.domain.destroy_queue_pair(beside);
        }
        if let Some(handle) = lane.tx.address_handle() {
            let _ = self.domain.destroy_address_handle(handle);
        }
        self.reading -= lane.transfers.reads().min(self.reading);
        self.signaled -= usize::from(lane.signaled);
        self.modes[lane.plan.server as usize - 1] -= 1;
        self.by_completion -= usize::from(open::by_completion(&lane.plan) || lane.is_renewed_apart());
        self.polled.retain(|polled| *polled != index);
        self.ready.retain(|ready| *ready != index);
        self.listed[index as usize] = false;
        if lane.leased.is_none() {
            self.domain.unwatch(lane.region());
        }
        let _ = self.domain.destroy_queue_pair(lane.queue_pair);
        self.leave_group(&mut lane);
        self.give_back_ring(index);
        if let Some(held) = &mut self.dispatcher.held {
            held.forget(index);
        }
        // Drop untaken messages first: their RECVs belong to all lanes.
        drop(lane);
        open::refill_shared(self);
        self.refill_unconnected();
        self.set_mode();
    }

    /// Sets the completion mode of the worker: the least patient one of its lanes.
    fn set_mode(&mut self) {
        let [busy, _event, adaptive] = self.modes;
        let mode = match (busy, adaptive) {
            (1.., _) if self.dispatcher.shared.oversubscription.is_oversubscribed.load(Ordering::Relaxed) => {
                self.dispatcher.shared.oversubscription.log();
                CompletionMode::Adaptive
            }
            (1.., _) => CompletionMode::Busy,
            (0, 1..) => CompletionMode::Adaptive,
            (0, 0) => CompletionMode::Event,
        };
        self.waiter.set_mode(mode);
        // A client of a busy plan, too, announces nothing but its completions.
        let polls = !self.polled.is_empty() || self.groups.is_some() || busy > 0;
        self.sleep.mode = if polls && self.sleep.gives_way { WaitMode::Write } else { WaitMode::Event };
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.dispatcher.inbox.pop() {
            self.told = true;
            match command {
                Command::Open(command) => {
                    self.serials = self.serials.wrapping_add(1);
                    let (link, number) = (command.link.clone(), command.number);
                    match open::open_lane(self, *command, self.serials) {
                        Ok(lane) => self.insert(lane),
                        Err(error) => {
                            tracing::warn!(target: "dunlin::server", worker = self.number, error = %WithSources(&error), "a lane could not be opened");
                            open::refuse(&link, number, &error);
                        }
                    }
                }
                Command::Answer { lane, serial, call, status, payload } => {
                    let Some(Some(place)) = self.lanes.get_mut(lane as usize) else { continue };
                    if place.serial() != serial {
                        continue;
                    }
                    place.in_service = place.in_service.saturating_sub(1);
                    let cx = &mut Cx::of(&self.fabric, &mut self.domain);
                    let answered = self.dispatcher.answer_owned(cx, place, call, status, &payload);
                    self.after_answer(lane, answered);
                }
                Command::CloseLane { session, number, link } => self.begin_closing(session, number, &link),
                Command::Occupancy => self.set_mode(),
                Command::Close { session } => {
                    for index in 0..self.lanes.len() {
                        if self.lanes[index].as_ref().is_some_and(|lane| lane.session() == session) {
                            self.remove(index as u16);
                        }
                    }
                }
                Command::Drain { until } => {
                    self.dispatcher.out.draining = true;
                    (self.drain_until, self.ending) = (Some(until), true);
                    self.last_message = self.fabric.host().now();
                }
            }
        }
    }

    /// Handles the result of a deferred answer: lists the lane, or removes it.
    pub(super) fn after_answer(&mut self, lane: u16, answered: Result<(), Violation>) {
        match answered {
            Ok(()) => self.list(lane),
            Err(_) => self.remove(lane),
        }
    }

    fn insert(&mut self, lane: ServerLane<F>) {
        self.modes[lane.plan.server as usize - 1] += 1;
        let by_completion = open::by_completion(&lane.plan);
        let index = self.next_index();
        self.by_queue_pair.insert(lane.queue_pair, index);
        if let Some(beside) = lane.beside() {
            self.by_queue_pair.insert(beside, index);
        }
        let is_grouped = lane.leased.is_some();
        let is_renewed_apart = lane.is_renewed_apart();
        self.dispatcher.shared.lane_bytes.fetch_add(lane.opened_bytes(), Ordering::Relaxed);
        self.lanes[index as usize] = Some(lane);
        self.by_completion += usize::from(by_completion || is_renewed_apart);
        self.join_group(index);
        if !is_grouped && !by_completion {
            self.polled.push(index);
        }
        self.list(index);
        self.set_mode();
    }
}
