//! The client's end of a lane: sends calls and processes answers. Independent of waiting and threads.

use super::batching::Batches;
use super::slots::{Sink, Slots};
use crate::error::{CallError, Cause};
use crate::path::beside::Beside;
use crate::path::call_id::CallEnds;
use crate::path::credits::Credits;
use crate::path::half::Arrived;
use crate::path::half::hybrid::{Hybrid, PUBLISHED_HEAD};
use crate::path::large::{Inbound, Pool, TransferQueue};
use crate::path::posting::repost;
use crate::path::prefetch::warm_lines;
use crate::path::retransmit::{PeerUnresponsive, RetransmitQueue, Sent};
use crate::path::route::Route;
use crate::path::{Cx, Incoming, Next, Rx, Scratch, Tx, TxError, Violation, turn_cost};
use crate::plan::LargePayload;
use crate::tune::shared::FetchTuner;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Fabric, Host, Nanos, QueuePairId, Region, RegionKey,
};
use dunlin_wire::{BatchState, Flags, Header, Kind, LINE};
use std::sync::Arc;

/// The client's end of a lane. The fields up to `queue_pair` are those that every call touches, and lie in
/// few cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientLane<F: Fabric> {
    /// The number of messages that a draining server has taken. It comes first although it is rarely
    /// used: the compiler encodes `Option<ClientLane>` in its spare values, so a check whether a lane exists
    /// reads it.
    pub(crate) taken: Option<u64>,
    pub(crate) tx: Tx<F>,
    pub(crate) rx: Rx<F>,
    /// Requests that may have to be sent again; only for plans that may lose messages.
    pub(crate) retransmit: Option<Box<RetransmitQueue>>,
    /// The fetching end of a lane whose results are fetched or written back.
    pub(crate) hybrid: Option<Box<Hybrid<F>>>,
    /// The lane's number in its domain.
    pub(crate) index: u16,
    /// The lane's number on its connection.
    pub(crate) number: u16,
    /// Whether a message has arrived since the last health check.
    pub(crate) heard: bool,
    /// The lane accepts no new calls: the server drains, or the lane is `closing`.
    pub(crate) draining: bool,
    /// No other mechanism belongs to the lane than a sender and a receiver: it fetches no results, sends no batch by itself,
    /// has no credits and no lease that ends, and repeats no request. Most calls test this flag only.
    pub(crate) is_plain: bool,
    /// How large payloads travel.
    pub(crate) large: LargePayload,
    /// Threads share the lane by combining: answers name them, and the lane may have `credits`.
    pub(crate) is_combined: bool,
    pub(crate) slots: Slots<F::Memory>,
    /// The largest small payload in bytes.
    pub(crate) rendezvous_above: usize,
    /// The largest payload that the server accepts, in bytes.
    pub(crate) max_payload: u64,
    pub(crate) batch: BatchState,
    /// When the open batch is sent without a flush; `None` if only on a flush or when it is full.
    pub(crate) batching: Option<Box<Batches>>,
    /// READs of large results in flight.
    pub(crate) reading: u32,
    /// Operations on the server's memory in flight.
    pub(crate) memory: u32,
    /// The reason why the lane accepts no more calls.
    pub(crate) broken: Option<Cause>,
    /// Another lane has taken its place: it ends with its last call.
    pub(crate) replaced: bool,
    /// Queued messages and WRITEs of large payloads.
    pub(crate) pending_transfers: TransferQueue<F>,
    /// Large results that were READ and that the server may release.
    pub(crate) releases: Vec<u32>,
    pub(crate) queue_pair: QueuePairId,
    /// Messages arrive as completions, so the receive queue is polled.
    pub(crate) by_completion: bool,
    /// The client closes the lane.
    pub(crate) closing: bool,
    /// The calls that the server lets the lane send, if threads share the lane by combining.
    pub(crate) credits: Option<Box<Credits>>,
    /// The tuner, if the fabric's rates rule fetching out and all results are written back instead.
    pub(crate) written_by_rates: Option<Arc<FetchTuner>>,
    /// The queue pair that the server's messages arrive on.
    pub(crate) receives: QueuePairId,
    /// The queue pairs beside the reliable connection.
    pub(crate) beside: Beside<QueuePairId>,
    /// The number of messages dropped that came without a connection.
    pub(crate) strays: u64,
    /// The number of the connection; its lanes share the control connection `link`.
    pub(crate) connection: u32,
    pub(crate) link: F::Link,
    /// The key under which `region` is granted to the server.
    pub(crate) granted: RegionKey,
    /// The client's inbound region: control line and ring of responses.
    pub(crate) region: Region<F::Memory>,
    /// The server's control line of this lane, to which head reports are written.
    pub(crate) control_line: (RegionKey, usize),
    /// The largest result accepted, in bytes.
    pub(crate) max_response: u64,
    /// Buffers of large requests, which the server READs or which are the source of WRITEs and SENDs.
    pub(crate) exports: Pool<F>,
    /// Buffers for large results.
    pub(crate) imports: Pool<F>,
    /// Large results in transfer.
    pub(crate) inbound: Inbound<F>,
    pub(crate) staging: Vec<u8>,
    /// The sequence of the open batch's message, unless another message is sent before it.
    pub(crate) batch_sequence: u64,
    /// The time of the open batch's header, in microseconds: that of its first call, 0 for none.
    pub(crate) batch_time: u32,
    /// That time in nanoseconds.
    pub(crate) batch_nanos: Nanos,
}

/// The reason why a lane is given up while it sends calls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoMore {
    /// The server does not answer.
    PeerUnresponsive,
    /// The queue pair is broken.
    Broken,
}

impl From<PeerUnresponsive> for NoMore {
    fn from(_: PeerUnresponsive) -> Self {
        NoMore::PeerUnresponsive
    }
}

impl From<TxError> for NoMore {
    fn from(_: TxError) -> Self {
        NoMore::Broken
    }
}

/// The reason why a call was not accepted.
pub(crate) enum SubmitError {
    /// The ring or send queue is full. Progress makes room.
    Full,
    /// The call cannot be made.
    Call(CallError),
    /// The lane is broken.
    Broken,
}

impl<F: Fabric> ClientLane<F> {
    /// Prefetches the memory that every call touches, which other code may have evicted since the last call.
    #[inline]
    pub(crate) fn warm(&self) {
        warm_lines(self, std::mem::offset_of!(Self, queue_pair));
        self.slots.warm();
        self.rx.warm();
    }

    /// Returns the location of that memory, without the ring.
    pub(crate) fn touched(&self) -> [(*const u8, usize); 2] {
        let own: *const Self = self;
        [(own.cast(), std::mem::offset_of!(Self, queue_pair)), (self.slots.first(), LINE)]
    }

    pub(super) fn refuse(cause: Cause) -> SubmitError {
        SubmitError::Call(CallError::NotExecuted(cause))
    }

    #[cold]
    pub(super) fn out_of_memory() -> SubmitError {
        Self::refuse(Cause::OutOfMemory)
    }

    /// Checks that the server accepts calls, and payloads of this length.
    #[inline]
    pub(super) fn check_call(&self, length: usize) -> Result<(), SubmitError> {
        if self.draining {
            return Err(Self::refuse(if self.closing { Cause::Closed } else { Cause::Draining }));
        }
        self.check_length(length)
    }

    #[inline]
    pub(super) fn check_length(&self, length: usize) -> Result<(), SubmitError> {
        if length as u64 > self.max_payload {
            return Err(Self::refuse(Cause::TooLarge { length: length as u64, limit: self.max_payload }));
        }
        Ok(())
    }

    /// Allocates a buffer for a large request that the server will READ.
    pub(crate) fn request_buffer(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<Buffer<F::Memory>, SubmitError> {
        self.check_length(length)?;
        self.exports.reserve_to_fill(fabric, length).map_err(|_| Self::refuse(Cause::OutOfMemory))
    }

    /// Sends one call as a message of its own.
    #[inline(always)]
    pub(crate) fn submit(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: impl Into<CallEnds>,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let ends = ends.into();
        self.check_call(payload.len())?;
        if payload.len() > self.rendezvous_above {
            return self.submit_copy(cx, ends, payload, timeout);
        }
        if !self.batch.is_empty() {
            self.flush(cx)?;
        }
        self.send_call(cx, ends, payload, Flags::NONE, timeout)
    }

    /// Copies a large payload into a buffer and sends the call.
    #[inline(never)]
    fn submit_copy(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        if self.large.facts().leaves_early(payload.len()) {
            return self.submit_in_pieces(cx, ends, payload, timeout);
        }
        let reserved = self.exports.reserve(cx.fabric, payload.len());
        let mut buffer = reserved.map_err(|_| Self::refuse(Cause::OutOfMemory))?;
        buffer.copy_from_slice(payload);
        self.submit_buffer(cx, ends, buffer, timeout).map_err(|(error, _)| error)
    }

    /// Sends one call with the first `length` bytes of a buffer. A large payload leaves with the buffer's
    /// memory, which is replaced by other memory of the same length. If the call could not be sent, the
    /// buffer is unchanged.
    pub(crate) fn submit_message(
        &mut self,
        cx: &mut Cx<'_, F>,
        function: u16,
        (buffer, length): (&mut Buffer<F::Memory>, usize),
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        if length <= self.rendezvous_above || !self.exports.can_send(buffer) {
            return self.submit(cx, function, &buffer[..length], timeout);
        }
        let capacity = buffer.len();
        let other = self.request_buffer(cx.fabric, capacity)?;
        let mut leaves = std::mem::replace(buffer, other);
        leaves.set_length(length);
        self.submit_buffer(cx, function, leaves, timeout).map_err(|(error, mut back)| {
            back.set_length(capacity);
            *buffer = back;
            error
        })
    }

    /// Sends one call whose payload lies in a buffer for the server to READ. Returns the buffer if the call
    /// could not be sent.
    pub(crate) fn submit_buffer(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: impl Into<CallEnds>,
        buffer: Buffer<F::Memory>,
        timeout: Nanos,
    ) -> Result<u32, (SubmitError, Buffer<F::Memory>)> {
        let Some(descriptor) = self.large.announcement(&self.exports, &buffer) else {
            return Err((Self::refuse(Cause::Disconnected), buffer));
        };
        // Queued transfers of calls that have ended meanwhile count too, because they hold memory.
        if self.pending_transfers.count() > self.slots.window() {
            return Err((SubmitError::Full, buffer));
        }
        if let Err(error) = self.flush(cx) {
            return Err((error, buffer));
        }
        if let Err(error) = self.check_call(buffer.len()) {
            return Err((error, buffer));
        }
        let ends = ends.into();
        match self.send_call(cx, ends, &descriptor.encode(), Flags::RENDEZVOUS, timeout) {
            Ok(call) => {
                let (length, queued) = (buffer.len(), self.pending_transfers.count());
                if let Some(kept) = self.large.sender().announced(&mut self.pending_transfers, call, buffer) {
                    self.slots.keep_request(call, kept);
                }
                if self.pending_transfers.count() > queued {
                    // An error of the lane also reaches the caller as the outcome of the call.
                    let _ = self.advance_transfers(cx);
                }
                if !self.large.facts().leaves_early(length) {
                    self.exports.sent(cx.fabric, length);
                }
                Ok(call)
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Processes the messages that have arrived, up to `budget` messages of one line. Returns their number,
    /// plus one if transfers of large payloads advanced.
    #[inline]
    pub(crate) fn progress(
        &mut self,
        cx: &mut Cx<'_, F>,
        scratch: &mut Scratch,
        budget: usize,
        sink: &mut impl Sink,
    ) -> Result<usize, Violation> {
        let mut messages = 0;
        let mut left = budget;
        while left > 0 {
            match self.rx.next_line(cx.fabric, scratch, Kind::Response)? {
                Next::Nothing => break,
                Next::Short(response) => {
                    messages += 1;
                    left = left.saturating_sub(turn_cost(Kind::Response as u8, LINE));
                    self.on_short(cx, response, sink)?;
                    continue;
                }
                Next::Line(line) => {
                    messages += 1;
                    left = left.saturating_sub(turn_cost(line[0], LINE));
                    self.on_message(cx, line, sink)?;
                    continue;
                }
                Next::Other => {}
            }
            let Some(cost) = self.take_other(cx, scratch, sink)? else { break };
            messages += 1;
            left = left.saturating_sub(cost);
        }
        if !self.is_plain {
            messages += self.progress_beyond(cx, scratch, sink)?;
        }
        if !self.releases.is_empty() {
            self.send_releases(cx);
        }
        let went_on = !self.pending_transfers.is_empty() && self.advance_transfers(cx)?;
        if self.rx.head_overdue() {
            self.report_head(cx);
        }
        self.heard |= messages > 0;
        if !self.is_plain && messages > 0 {
            self.has_heard(cx);
        }
        Ok(messages + usize::from(went_on))
    }

    /// Makes the progress of a lane that is not plain. Returns the number of fetched messages.
    #[inline(never)]
    fn progress_beyond(
        &mut self,
        cx: &mut Cx<'_, F>,
        scratch: &mut Scratch,
        sink: &mut impl Sink,
    ) -> Result<usize, Violation> {
        if self.tx.is_behind() {
            self.write_what_waits(cx)?;
        }
        if self.batching.is_some() {
            self.flush_alone(cx)?;
        }
        if self.is_combined && self.owes_request() {
            self.ask_apart(cx)?;
        }
        match &self.hybrid {
            Some(hybrid) if hybrid.rx.is_waiting() || hybrid.rx.head_overdue() => {
                self.progress_fetched(cx, scratch, sink)
            }
            _ => Ok(0),
        }
    }

    /// Takes note of messages on a lane that is not plain.
    #[inline(never)]
    fn has_heard(&mut self, cx: &mut Cx<'_, F>) {
        if let Some(again) = &mut self.retransmit {
            again.heard();
        }
        // The caller gets its answers when the progress returns, so their latency ends here.
        if let Some(batching) = &mut self.batching {
            batching.look(|| cx.fabric.host().now());
        }
    }

    /// Ends calls whose deadline has passed. Returns the earliest deadline of the others.
    ///
    /// Under a lease another client of the pool may have written over a request. The last answer before a switch says
    /// which requests were taken, but a lone group never switches. The lane therefore writes all requests again that
    /// the server has not acknowledged.
    pub(crate) fn expire(&mut self, now: Nanos) -> Nanos {
        let earliest = self.slots.expire(now);
        if self.slots.take_expired() {
            self.tx.write_again();
        }
        earliest
    }

    /// Writes the requests and the word of a lane under leases that found no room in the send queue.
    #[cold]
    fn write_what_waits(&mut self, cx: &mut Cx<'_, F>) -> Result<(), Violation> {
        match self.tx.go_on(cx) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(TxError::Broken) => Err(Violation::Broken),
        }
    }

    /// Processes a message that is not one line in memory, if there is one, and returns its cost. Not
    /// inlined, to keep the stack frame of the frequent case small.
    #[inline(never)]
    fn take_other(
        &mut self,
        cx: &mut Cx<'_, F>,
        scratch: &mut Scratch,
        sink: &mut impl Sink,
    ) -> Result<Option<usize>, Violation> {
        let Some(incoming) = self.rx.poll(cx.fabric, scratch)? else { return Ok(None) };
        let cost = incoming.turn_cost(scratch);
        match incoming {
            Incoming::Scratch(total) => self.on_message(cx, &scratch[..total], sink)?,
            Incoming::Buffer(buffer, range) => {
                self.on_message(cx, &buffer[range], sink)?;
                self.give_back(cx.domain, buffer)?;
            }
        }
        Ok(Some(cost))
    }

    /// Returns whether the open batch, or what waits for it, is sent because the caller waits. A lane that batches by itself keeps
    /// it while earlier calls are in flight; otherwise a caller that waits after every answer would send each
    /// call alone.
    #[inline]
    pub(crate) fn goes_out_when_waiting(&self) -> bool {
        let open = self.batch.count() as usize;
        open > 0 && (self.batching.is_none() || self.slots.in_flight() <= open) || self.tx.end.has_listed()
    }

    /// Returns the time at which the open batch exceeds its timeout, if the lane batches by itself.
    #[inline]
    pub(crate) fn batch_due(&self) -> Option<Nanos> {
        let batching = self.batching.as_ref().filter(|_| !self.batch.is_empty())?;
        Some(batching.due())
    }

    /// Called periodically: sends an overdue batch, and reports heads to a silent server. A server that sends
    /// nothing while calls are in flight may wait for room that was made and not reported.
    pub(crate) fn break_silence(&mut self, cx: &mut Cx<'_, F>) {
        let heard = std::mem::take(&mut self.heard);
        if !self.batch.is_empty()
            && self.batching.as_ref().is_some_and(|batching| batching.is_late(cx.fabric.host().now()))
        {
            // An error of the lane also reaches the callers as the outcome of their calls.
            let _ = self.flush_if_room(cx);
        }
        let heads_pending =
            self.rx.head_pending() || self.hybrid.as_ref().is_some_and(|hybrid| hybrid.rx.head_pending());
        if !heard && self.slots.in_flight() > 0 && heads_pending {
            self.report_head(cx);
        }
    }

    /// Sends calls again whose requests or answers may be lost. Returns the time of the next check.
    pub(crate) fn send_again(&mut self, cx: &mut Cx<'_, F>, now: Nanos) -> Result<Nanos, NoMore> {
        if self.slots.in_flight() == 0 {
            return Ok(Nanos::MAX);
        }
        let Some(mut again) = self.retransmit.take() else { return Ok(Nanos::MAX) };
        let standing = std::cell::RefCell::new(&mut self.slots);
        let (tx, head) = (&mut self.tx, self.rx.head());
        let mut rewritten = None;
        let next = again.look(
            now,
            |call| standing.borrow_mut().standing(call),
            |request| {
                // First the ring is written again, which is enough if the request was lost. If the answer was
                // lost, the server no longer reads that part of the ring, so every second attempt sends the
                // request as a new message.
                let unread = match rewritten {
                    Some(unread) => unread,
                    None => *rewritten.insert(tx.rewrite(cx)?),
                };
                if unread && request.tries.is_multiple_of(2) {
                    return Ok(Sent::Yes);
                }
                let header = Header {
                    code: request.ends.function,
                    thread: request.ends.thread,
                    flags: request.flags,
                    call: request.call,
                    head,
                    time: standing.borrow_mut().time_left(request.call, now),
                    ..Header::new(Kind::Request)
                };
                match tx.single(cx, &header, &request.payload) {
                    Ok(()) => Ok(Sent::Yes),
                    Err(TxError::Full) => Ok(Sent::NoRoom),
                    Err(error) => Err(error.into()),
                }
            },
        );
        self.retransmit = Some(again);
        next
    }

    /// Processes a completion of the queue pair without a connection, which must be healthy.
    pub(crate) fn on_unconnected(
        &mut self,
        domain: &mut F::Domain,
        route: Route,
        completion: Completion<F::Memory>,
    ) {
        if matches!(route, Route::Outgoing { .. }) {
            return self.tx.end.completed();
        }
        let Some(buffer) = completion.buffer else { return };
        let refused = if completion.status == CompletionStatus::Success {
            self.rx.deliver(Arrived { buffer, bytes: completion.bytes, immediate: completion.immediate })
        } else {
            Err(buffer)
        };
        if let (Err(buffer), Some(queue_pair)) = (refused, self.beside.unconnected) {
            self.strays += 1;
            tracing::debug!(target: "dunlin::client", lane = self.index, strays = self.strays, "a datagram is none of the server's, or comes too early");
            let _ = repost::<F>(domain, queue_pair, self.index, Some(buffer));
        }
    }

    /// Returns whether a queue pair belongs to this lane.
    pub(crate) fn owns(&self, queue_pair: QueuePairId) -> bool {
        self.queue_pairs().any(|own| own == queue_pair)
    }

    /// Returns all queue pairs of this lane.
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = QueuePairId> + use<F> {
        std::iter::once(self.queue_pair).chain(self.beside.into_iter())
    }

    pub(super) fn report_head(&mut self, cx: &mut Cx<'_, F>) {
        let (key, at) = self.control_line;
        // A full send queue delays the report until a later poll.
        if self.rx.head_pending() && self.tx.end.report_head(cx, (key, at), self.rx.head()).is_ok() {
            self.rx.told();
        }
        if let Some(hybrid) = &mut self.hybrid
            && hybrid.rx.head_pending()
            && self.tx.end.report_head(cx, (key, at + PUBLISHED_HEAD), hybrid.rx.head()).is_ok()
        {
            hybrid.rx.told();
        }
    }

    fn give_back(&mut self, domain: &mut F::Domain, buffer: Buffer<F::Memory>) -> Result<(), Violation> {
        if let Some(fetcher) = self.rx.fetcher() {
            fetcher.give_back(buffer);
            return Ok(());
        }
        repost::<F>(domain, self.receives, self.index, Some(buffer))
    }

    /// Advances queued transfers of large payloads. Returns whether any step was made.
    pub(super) fn advance_transfers(&mut self, cx: &mut Cx<'_, F>) -> Result<bool, Violation> {
        let ran = self.pending_transfers.run(cx, &mut self.tx, self.rx.head());
        ran.map_err(|_| Violation::Broken)
    }
}

impl From<TxError> for SubmitError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Full => SubmitError::Full,
            TxError::Broken => SubmitError::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::Sim;
    use std::mem::{offset_of, size_of};

    /// With thousands of lanes, every cache line that a call touches has been evicted since the last call.
    #[test]
    fn what_every_call_touches_lies_in_eight_cache_lines() {
        assert!(offset_of!(ClientLane<Sim>, queue_pair) <= 8 * LINE);
        assert!(size_of::<Tx<Sim>>() <= 152 && size_of::<Rx<Sim>>() <= 96);
        assert_eq!(offset_of!(ClientLane<Sim>, taken), 0);
    }
}
