//! The client's end of a lane: calls go out, answers come in. Knows nothing of time, threads or waiting.

use super::batching::Batches;
use super::slots::{Sink, Slots};
use crate::error::{CallError, Cause};
use crate::path::again::{Requests, Sent, Silent};
use crate::path::hybrid::{Hybrid, PUBLISHED_HEAD};
use crate::path::large::{Arrivals, Errands};
use crate::path::pieces::{PIECE, Pulls};
use crate::path::rendezvous::Pool;
use crate::path::route::{self, Route};
use crate::path::{Incoming, Next, Rx, Scratch, Tx, TxError, Violation, turn_cost};
use crate::plan::LargePayload;
use crate::tune::fill::FillTuner;
use crate::tune::shared::FetchTuner;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Fabric, Host, Nanos, Operation, PostError, QueuePairId, Region,
    RegionKey, RemoteSlice, ThreadDomain, Work, WorkRequest, copy,
};
use dunlin_wire::{BatchState, Descriptor, EntryMeta, Flags, Header, Kind, LINE};
use std::sync::Arc;

/// The most bytes of call ids that one release message carries: what fits its first line.
const RELEASES_AT_ONCE: usize = 8;

/// The client's end of a lane. What every call touches comes first, so that it lies in few cache lines: up to `queue_pair`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientLane<F: Fabric> {
    /// How many messages a draining server says that it has taken. Here, though it is rare, because this is where it stands whether
    /// there is a lane at all: the compiler tells that by the tag that has the most values to spare.
    pub(crate) taken: Option<u64>,
    pub(crate) tx: Tx<F>,
    pub(crate) rx: Rx<F>,
    /// What may have to be sent again, where requests or answers may be lost.
    pub(crate) again: Option<Box<Requests>>,
    /// What is fetched, where results are fetched or written back.
    pub(crate) hybrid: Option<Box<Hybrid<F>>>,
    /// The lane's number in its domain.
    pub(crate) index: u16,
    /// Its number on its connection.
    pub(crate) number: u16,
    /// Whether a message came since the last look at the slow things.
    pub(crate) heard: bool,
    /// The server takes nothing new.
    pub(crate) draining: bool,
    /// Whether messages arrive as completions: then the receive queue is polled.
    pub(crate) by_completion: bool,
    /// How large payloads travel.
    pub(crate) large: LargePayload,
    pub(crate) slots: Slots<F::Memory>,
    /// Payloads of more bytes are large.
    pub(crate) rendezvous_above: usize,
    /// The largest payload that the server takes.
    pub(crate) max_payload: u64,
    pub(crate) batch: BatchState,
    /// When it goes out by itself.
    pub(crate) batching: Option<Box<Batches>>,
    /// READs of large results under way.
    pub(crate) reading: usize,
    /// Why the lane takes nothing any more.
    pub(crate) broken: Option<Cause>,
    /// What is still to be sent of large requests, or said of large results.
    pub(crate) errands: Errands<F>,
    /// Large results that were read and that the server may let go.
    pub(crate) releases: Vec<u32>,
    pub(crate) queue_pair: QueuePairId,
    /// Who has found that its results are all written back, though they might have been fetched.
    pub(crate) written_by_rates: Option<Arc<FetchTuner>>,
    /// Where the server's messages are taken.
    pub(crate) receives: QueuePairId,
    /// The queue pair for datagrams, of either direction.
    pub(crate) datagrams: Option<QueuePairId>,
    /// Datagrams that were dropped.
    pub(crate) strays: u64,
    /// The unreliable connection that requests are written over, if they are.
    pub(crate) unreliable: Option<QueuePairId>,
    /// Lanes of one connection share it, and its control connection.
    pub(crate) connection: u32,
    pub(crate) link: F::Link,
    /// Our inbound region: control line and ring of responses.
    pub(crate) region: Region<F::Memory>,
    /// The server's control word of this lane, where we may report a head.
    pub(crate) control_key: RegionKey,
    /// The largest result that we take.
    pub(crate) max_response: u64,
    /// Buffers of large requests: which the server READs, or which are written or sent from.
    pub(crate) exports: Pool<F>,
    /// Buffers that large results end up in.
    pub(crate) imports: Pool<F>,
    /// Large results that were announced, unless they are READ.
    pub(crate) arrivals: Arrivals<F>,
    /// Large results that are READ in pieces.
    pub(crate) pulls: Pulls<F>,
    /// How large requests are filled that leave in pieces.
    pub(crate) fill: FillTuner,
    pub(crate) staging: Vec<u8>,
    /// The message that the open batch will be, unless another goes out before it.
    pub(crate) batch_sequence: u64,
    /// The shortest timeout of its calls, 0 if none has one.
    pub(crate) batch_timeout: Nanos,
}

/// Asks for the first bytes of something that will be changed soon.
#[inline]
pub(crate) fn warm_lines<T>(of: &T, bytes: usize) {
    let start: *const u8 = (&raw const *of).cast();
    (0..bytes).step_by(LINE).for_each(|at| copy::prefetch_to_write(start.wrapping_add(at)));
}

/// Why a lane has to be given up while it sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoMore {
    /// The server says nothing.
    Silent,
    /// The queue pair is broken.
    Broken,
}

impl From<Silent> for NoMore {
    fn from(_: Silent) -> Self {
        NoMore::Silent
    }
}

impl From<TxError> for NoMore {
    fn from(_: TxError) -> Self {
        NoMore::Broken
    }
}

/// Why a call was not taken.
pub(crate) enum SubmitError {
    /// The ring or send queue is full now; progress makes room.
    Full,
    /// It cannot be made.
    Call(CallError),
    /// The lane is broken.
    Broken,
}

impl<F: Fabric> ClientLane<F> {
    /// Asks for what every call touches, where others may have pushed it out of the caches since the last one.
    #[inline]
    pub(crate) fn warm(&self) {
        warm_lines(self, std::mem::offset_of!(Self, queue_pair));
        self.slots.warm();
        self.rx.warm();
    }

    /// Where that lies, but for the ring.
    pub(crate) fn touched(&self) -> [(*const u8, usize); 2] {
        let own: *const Self = self;
        [(own.cast(), std::mem::offset_of!(Self, queue_pair)), (self.slots.first(), LINE)]
    }

    fn refuse(cause: Cause) -> SubmitError {
        SubmitError::Call(CallError::NotExecuted(cause))
    }

    #[cold]
    pub(super) fn out_of_memory() -> SubmitError {
        Self::refuse(Cause::OutOfMemory)
    }

    /// The checks that need nothing else.
    #[inline]
    pub(super) fn check_call(&self, length: usize) -> Result<(), SubmitError> {
        if self.draining {
            return Err(Self::refuse(Cause::Draining));
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

    /// A buffer to build a large request in, which the server will READ.
    pub(crate) fn request_buffer(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<Buffer<F::Memory>, SubmitError> {
        self.check_length(length)?;
        self.exports.reserve_to_fill(fabric, length).map_err(|_| Self::refuse(Cause::OutOfMemory))
    }

    /// Sends one call as a message of its own.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        self.check_call(payload.len())?;
        if payload.len() > self.rendezvous_above {
            return self.submit_copy(fabric, domain, function, payload, timeout);
        }
        if !self.batch.is_empty() {
            self.flush(fabric, domain)?;
        }
        self.send_call(fabric, domain, function, payload, Flags::NONE, timeout)
    }

    /// Sends one call with a large payload, out of a buffer.
    #[inline(never)]
    fn submit_copy(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        if self.large == LargePayload::Pieces && payload.len() > PIECE {
            return self.submit_in_pieces(fabric, domain, function, payload, timeout);
        }
        let reserved = self.exports.reserve(fabric, payload.len());
        let mut buffer = reserved.map_err(|_| Self::refuse(Cause::OutOfMemory))?;
        buffer.copy_from_slice(payload);
        self.submit_buffer(fabric, domain, function, buffer, timeout).map_err(|(error, _)| error)
    }

    /// Sends one call with the first `length` bytes of a buffer. What is long leaves with its memory, for which the buffer gets
    /// other of the same length; if it could not be sent, the buffer is as before.
    pub(crate) fn submit_message(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        (buffer, length): (&mut Buffer<F::Memory>, usize),
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        if length <= self.rendezvous_above || !self.exports.can_send(buffer) {
            return self.submit(fabric, domain, function, &buffer[..length], timeout);
        }
        let capacity = buffer.len();
        let other = self.request_buffer(fabric, capacity)?;
        let mut leaves = std::mem::replace(buffer, other);
        leaves.set_length(length);
        self.submit_buffer(fabric, domain, function, leaves, timeout).map_err(|(error, mut back)| {
            back.set_length(capacity);
            *buffer = back;
            error
        })
    }

    /// Sends one call whose payload lies in a buffer of ours for the server to READ; gives the buffer back when
    /// it could not be sent.
    pub(crate) fn submit_buffer(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        buffer: Buffer<F::Memory>,
        timeout: Nanos,
    ) -> Result<u32, (SubmitError, Buffer<F::Memory>)> {
        let descriptor = match self.large {
            LargePayload::Read | LargePayload::Pieces => self.exports.descriptor(&buffer),
            LargePayload::Write | LargePayload::Eager => Some(Descriptor::announcement(buffer.len() as u64)),
        };
        let Some(descriptor) = descriptor else {
            return Err((Self::refuse(Cause::Disconnected), buffer));
        };
        // Those of calls that have ended meanwhile, too: they take memory.
        if self.errands.count() > self.slots.window() {
            return Err((SubmitError::Full, buffer));
        }
        if let Err(error) = self.flush(fabric, domain) {
            return Err((error, buffer));
        }
        if let Err(error) = self.check_call(buffer.len()) {
            return Err((error, buffer));
        }
        match self.send_call(fabric, domain, function, &descriptor.encode(), Flags::RENDEZVOUS, timeout) {
            Ok(call) => {
                let length = buffer.len();
                if self.large == LargePayload::Eager {
                    self.errands.send(call, buffer);
                    // What breaks now is found by who looks for the answer.
                    let _ = self.run_errands(fabric, domain);
                } else {
                    self.slots.keep_request(call, buffer);
                }
                if self.large == LargePayload::Pieces && length > PIECE {
                    self.tell_at_last(fabric, domain, call, length as u32);
                    return Ok(call);
                }
                self.exports.make_spare(length);
                Ok(call)
            }
            Err(error) => Err((error, buffer)),
        }
    }

    #[inline]
    pub(super) fn send_call(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        payload: &[u8],
        flags: Flags,
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let Some(call) = self.slots.next_call() else { return Err(Self::refuse(Cause::WindowFull)) };
        fabric.host().charge(Work::BuildMessage, 1);
        let (mut flags, mut head) = (flags, self.rx.head());
        if let Some(hybrid) = &self.hybrid {
            let (mode, of) = hybrid.ask(function, head);
            (flags, head) = (flags | mode, of);
        }
        let header =
            Header { code: function, flags, call, head, time: micros(timeout), ..Header::new(Kind::Request) };
        self.tx.single(fabric, domain, &header, payload)?;
        if let Some(again) = &mut self.again {
            again.keep(call, function, flags, payload);
        }
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.sent(call, function, flags, || fabric.host().now());
        }
        let sequence = self.tx.next_sequence() - 1;
        self.slots.take(call, timeout, sequence);
        self.slots.sent(sequence);
        Ok(call)
    }

    /// Adds a call to the open batch; it goes out with [`flush`](ClientLane::flush), or when the batch is full.
    #[inline]
    pub(crate) fn push(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let alone = self.batching.as_ref().is_some_and(|batching| batching.is_too_large(payload.len()));
        if payload.len() > self.rendezvous_above || alone {
            return self.submit(fabric, domain, function, payload, timeout);
        }
        self.check_call(payload.len())?;
        let Some(call) = self.slots.next_call() else {
            if self.batching.is_some() {
                self.flush(fabric, domain)?;
            }
            return Err(Self::refuse(Cause::WindowFull));
        };
        if let Some(hybrid) = &self.hybrid
            && !hybrid.fits_batch(function, self.batch.count() as usize)
        {
            self.flush(fabric, domain)?;
        }
        self.open_batch(fabric);
        fabric.host().charge(Work::BuildEntry, 1);
        let meta = EntryMeta { function_or_status: function, thread: 0, call, flags: Flags::NONE };
        if self.batch.push(&mut self.staging, &meta, payload).is_err() {
            self.flush(fabric, domain)?;
            self.open_batch(fabric);
            self.batch.push(&mut self.staging, &meta, payload).map_err(|_| SubmitError::Full)?;
        }
        if self.batch.count() == 1 {
            self.batch_sequence = self.tx.next_sequence();
            self.batch_timeout = timeout;
        }
        self.batch_timeout = shorter(self.batch_timeout, timeout);
        if let Some(again) = &mut self.again {
            again.keep(call, function, Flags::NONE, payload);
        }
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.batched(call, function, self.batch.count() == 1);
        }
        self.slots.take(call, timeout, self.batch_sequence);
        if let Some(batching) = &mut self.batching {
            batching.pushed(call);
            if batching.is_full(self.batch.count(), self.batch.total()) {
                // The call is made: what breaks now is found by who looks for its answer.
                let _ = self.flush_if_room(fabric, domain);
            }
        }
        Ok(call)
    }

    /// The next call is the first of its batch if there is none in it.
    #[inline]
    fn open_batch(&mut self, fabric: &F) {
        if self.batch.count() == 0
            && let Some(batching) = &mut self.batching
        {
            batching.opened(fabric.host().now());
        }
    }

    /// Sends the open batch; where there is no room it stays open, and goes out with a later look.
    fn flush_if_room(&mut self, fabric: &F, domain: &mut F::Domain) -> Result<(), SubmitError> {
        match self.flush(fabric, domain) {
            Err(SubmitError::Full) => Ok(()),
            flushed => flushed,
        }
    }

    /// Sends the open batch of a lane that sends them by itself, if nothing else is under way whose answer could be waited for.
    #[inline(never)]
    pub(crate) fn flush_alone(&mut self, fabric: &F, domain: &mut F::Domain) -> Result<(), Violation> {
        let open = self.batch.count();
        let full = self.batching.as_ref().is_some_and(|b| b.is_full(open, self.batch.total()));
        if open > 0 && (full || self.slots.in_flight() == open as usize) {
            self.flush_if_room(fabric, domain).map_err(|_| Violation::Broken)?;
        }
        Ok(())
    }

    /// Sends the open batch, if there is one.
    #[inline]
    pub(crate) fn flush(&mut self, fabric: &F, domain: &mut F::Domain) -> Result<(), SubmitError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let tags = self.tx.begin(fabric, domain, self.batch.total() as usize)?;
        let (flags, head) = match &self.hybrid {
            None => (Flags::NONE, self.rx.head()),
            Some(hybrid) => hybrid.ask_batch(self.rx.head()),
        };
        let header =
            Header { flags, head, time: micros(self.batch_timeout), ..Header::new(Kind::RequestBatch) };
        let Ok(total) = self.batch.finish_compact(&mut self.staging, &header, tags) else {
            return Err(SubmitError::Broken);
        };
        self.tx.post(fabric, domain, &[&self.staging[..total]], total)?;
        let sequence = self.tx.next_sequence() - 1;
        if sequence != self.batch_sequence {
            self.slots.renumber(self.batch_sequence, sequence);
        }
        self.slots.sent(sequence);
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.sent_batch(self.batch.count() as usize, || fabric.host().now());
        }
        if let Some(batching) = &mut self.batching {
            batching.sent(self.batch.count());
        }
        self.batch = BatchState::new();
        Ok(())
    }

    /// Takes all that has arrived, up to `budget` messages of one line; answers how many there were, and one more if large
    /// payloads went on.
    #[inline]
    pub(crate) fn progress(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        scratch: &mut Scratch,
        budget: usize,
        sink: &mut impl Sink,
    ) -> Result<usize, Violation> {
        let mut messages = 0;
        let mut left = budget;
        while left > 0 {
            match self.rx.next_line(fabric, scratch)? {
                Next::Nothing => break,
                Next::Line(first) => {
                    messages += 1;
                    left = left.saturating_sub(turn_cost(first.header().kind as u8, LINE));
                    self.on_line(fabric, domain, &first, scratch, sink)?;
                    continue;
                }
                Next::Other => {}
            }
            let Some(cost) = self.take_other(fabric, domain, scratch, sink)? else { break };
            messages += 1;
            left = left.saturating_sub(cost);
        }
        if self.batching.is_some() {
            self.flush_alone(fabric, domain)?;
        }
        if self.hybrid.as_ref().is_some_and(|hybrid| hybrid.rx.is_waiting() || hybrid.rx.head_overdue()) {
            messages += self.progress_fetched(fabric, domain, scratch, sink)?;
        }
        if !self.releases.is_empty() {
            self.send_releases(fabric, domain);
        }
        let went_on = !self.errands.is_empty() && self.run_errands(fabric, domain)?;
        if self.rx.head_overdue() {
            self.report_head(fabric, domain);
        }
        self.heard |= messages > 0;
        if messages > 0
            && let Some(again) = &mut self.again
        {
            again.heard();
        }
        // The caller has its answers when this returns, and not before.
        if messages > 0
            && let Some(batching) = &mut self.batching
        {
            batching.look(|| fabric.host().now());
        }
        Ok(messages + usize::from(went_on))
    }

    /// Takes a message that is not one line in memory, if one is there; answers what it counts for. Not inline, as other rare ways: what
    /// they keep on the stack would be room that every call passes over.
    #[inline(never)]
    fn take_other(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        scratch: &mut Scratch,
        sink: &mut impl Sink,
    ) -> Result<Option<usize>, Violation> {
        let Some(incoming) = self.rx.poll(fabric, scratch)? else { return Ok(None) };
        let cost = incoming.turn_cost(scratch);
        match incoming {
            Incoming::Scratch(total) => self.on_message(fabric, domain, &scratch[..total], sink)?,
            Incoming::Buffer(buffer, range) => {
                self.on_message(fabric, domain, &buffer[range], sink)?;
                self.give_back(domain, buffer)?;
            }
        }
        Ok(Some(cost))
    }

    /// Whether the open batch goes out because the caller waits: not if it goes out by itself and calls before it are under way.
    /// Who waits after every answer would else send each call by itself, for ever.
    #[inline]
    pub(crate) fn goes_out_when_waiting(&self) -> bool {
        let open = self.batch.count() as usize;
        open > 0 && (self.batching.is_none() || self.slots.in_flight() <= open)
    }

    /// When the open batch has stood open for too long, if it goes out by itself.
    #[inline]
    pub(crate) fn batch_due(&self) -> Option<Nanos> {
        let batching = self.batching.as_ref().filter(|_| !self.batch.is_empty())?;
        Some(batching.due())
    }

    /// Called now and then: a server that has nothing to say, though calls are in flight, may wait for room that we
    /// have made and not told of.
    pub(crate) fn break_silence(&mut self, fabric: &F, domain: &mut F::Domain) {
        let heard = std::mem::take(&mut self.heard);
        if !self.batch.is_empty()
            && self.batching.as_ref().is_some_and(|batching| batching.is_late(fabric.host().now()))
        {
            // What breaks now is found by who looks for the answers.
            let _ = self.flush_if_room(fabric, domain);
        }
        let untold =
            self.rx.head_untold() || self.hybrid.as_ref().is_some_and(|hybrid| hybrid.rx.head_untold());
        if !heard && self.slots.in_flight() > 0 && untold {
            self.report_head(fabric, domain);
        }
    }

    /// Sends calls again whose requests or answers may be lost; answers when to look next.
    pub(crate) fn send_again(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        now: Nanos,
    ) -> Result<Nanos, NoMore> {
        if self.slots.in_flight() == 0 {
            return Ok(Nanos::MAX);
        }
        let Some(mut again) = self.again.take() else { return Ok(Nanos::MAX) };
        let standing = std::cell::RefCell::new(&mut self.slots);
        let (tx, head) = (&mut self.tx, self.rx.head());
        let mut rewritten = None;
        let next = again.look(
            now,
            |call| standing.borrow_mut().standing(call),
            |request| {
                // A ring is written again first, which is all that is needed if a request was lost. If the answer was, the server
                // does not look there any more: what it shall answer again has to come as a message of its own.
                let unread = match rewritten {
                    Some(unread) => unread,
                    None => *rewritten.insert(tx.rewrite(fabric, domain)?),
                };
                if unread && request.tries.is_multiple_of(2) {
                    return Ok(Sent::Yes);
                }
                let header = Header {
                    code: request.function,
                    flags: request.flags,
                    call: request.call,
                    head,
                    time: micros(standing.borrow_mut().time_left(request.call, now)),
                    ..Header::new(Kind::Request)
                };
                match tx.single(fabric, domain, &header, &request.payload) {
                    Ok(()) => Ok(Sent::Yes),
                    Err(TxError::Full) => Ok(Sent::NoRoom),
                    Err(error) => Err(error.into()),
                }
            },
        );
        self.again = Some(again);
        next
    }

    /// A completion of the datagram queue pair, which works.
    pub(crate) fn on_datagram(
        &mut self,
        domain: &mut F::Domain,
        route: Route,
        completion: Completion<F::Memory>,
    ) {
        if matches!(route, Route::Outgoing { .. }) {
            return self.tx.completed();
        }
        let Some(buffer) = completion.buffer else { return };
        let refused = if completion.status == CompletionStatus::Success {
            self.rx.deliver_datagram(buffer, completion.bytes, completion.immediate)
        } else {
            Err(buffer)
        };
        if let (Err(buffer), Some(queue_pair)) = (refused, self.datagrams) {
            self.strays += 1;
            tracing::debug!(target: "dunlin::client", lane = self.index, strays = self.strays, "a datagram is none of the server's, or comes too early");
            let _ = repost::<F>(domain, queue_pair, self.index, Some(buffer));
        }
    }

    /// Whether a queue pair is one of this lane's.
    pub(crate) fn owns(&self, queue_pair: QueuePairId) -> bool {
        self.queue_pairs().any(|own| own == queue_pair)
    }

    /// All queue pairs of this lane.
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = QueuePairId> + use<F> {
        [Some(self.queue_pair), self.unreliable, self.datagrams].into_iter().flatten()
    }

    pub(super) fn report_head(&mut self, fabric: &F, domain: &mut F::Domain) {
        let key = self.control_key;
        // When the send queue is full the head is told with a later look.
        if self.rx.head_untold() && self.tx.report_head(fabric, domain, (key, 0), self.rx.head()).is_ok() {
            self.rx.told();
        }
        if let Some(hybrid) = &mut self.hybrid
            && hybrid.rx.head_untold()
            && self.tx.report_head(fabric, domain, (key, PUBLISHED_HEAD), hybrid.rx.head()).is_ok()
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

    /// Goes on with what is to be sent of large payloads; says whether it got anywhere.
    pub(super) fn run_errands(&mut self, fabric: &F, domain: &mut F::Domain) -> Result<bool, Violation> {
        let ran = self.errands.run(fabric, domain, &mut self.tx, self.rx.head());
        ran.map_err(|_| Violation::Broken)
    }

    /// Tells the server which large results it may let go. What does not fit now goes next time.
    pub(super) fn send_releases(&mut self, fabric: &F, domain: &mut F::Domain) {
        while !self.releases.is_empty() {
            let count = self.releases.len().min(RELEASES_AT_ONCE);
            let mut payload = [0; RELEASES_AT_ONCE * 4];
            for (place, call) in payload.as_chunks_mut::<4>().0.iter_mut().zip(&self.releases[..count]) {
                *place = call.to_le_bytes();
            }
            let header = Header { code: count as u16, head: self.rx.head(), ..Header::new(Kind::Release) };
            if self.tx.single(fabric, domain, &header, &payload[..count * 4]).is_err() {
                return;
            }
            self.releases.drain(..count);
        }
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

/// The shorter of two timeouts, of which 0 is none.
#[inline]
fn shorter(one: Nanos, other: Nanos) -> Nanos {
    // None is the longest: 0 - 1.
    one.wrapping_sub(1).min(other.wrapping_sub(1)).wrapping_add(1)
}

/// A timeout as the header carries it: whole microseconds, at least one, 0 for none.
#[inline]
fn micros(timeout: Nanos) -> u32 {
    if timeout == 0 { 0 } else { u32::try_from(timeout / 1000).unwrap_or(u32::MAX).max(1) }
}

/// Posts a RECV again.
pub(crate) fn repost<F: Fabric>(
    domain: &mut F::Domain,
    queue_pair: QueuePairId,
    lane: u16,
    buffer: Option<Buffer<F::Memory>>,
) -> Result<(), Violation> {
    let buffer = buffer.map(|mut buffer| {
        let capacity = buffer.capacity();
        buffer.set_length(capacity);
        buffer
    });
    match domain.post_receive(
        dunlin_fabric::ReceiveTarget::QueuePair(queue_pair),
        route::receive(lane),
        buffer,
    ) {
        Ok(()) | Err(PostError::QueuePairError) => Ok(()),
        Err(_) => Err(Violation::Transfer("a RECV could not be posted")),
    }
}

/// Posts the READ of a large payload.
pub(crate) fn post_read<F: Fabric>(
    domain: &mut F::Domain,
    queue_pair: QueuePairId,
    id: dunlin_fabric::WorkId,
    descriptor: &Descriptor,
    into: Buffer<F::Memory>,
) -> Result<(), Violation> {
    let from = RemoteSlice {
        key: RegionKey(descriptor.key),
        offset: descriptor.offset,
        length: descriptor.length as u32,
    };
    let request = WorkRequest { id, operation: Operation::Read { from, into }, signaled: true };
    domain.post(queue_pair, request).map_err(|error| match error {
        PostError::QueuePairError => Violation::Broken,
        _ => Violation::Transfer("a READ could not be posted"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::Sim;
    use std::mem::{offset_of, size_of};

    /// With thousands of lanes each cache line that a call touches has left the caches since the last one.
    #[test]
    fn what_every_call_touches_lies_in_eight_cache_lines() {
        assert!(offset_of!(ClientLane<Sim>, queue_pair) <= 8 * LINE);
        assert!(size_of::<Tx<Sim>>() <= 152 && size_of::<Rx<Sim>>() <= 96);
        assert_eq!(offset_of!(ClientLane<Sim>, taken), 0);
    }
}
