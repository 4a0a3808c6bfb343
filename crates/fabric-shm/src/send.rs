//! The sending side of a queue pair.
//!
//! One-sided operations execute when posted, so the send queue needs only counters, not entries. A list holds
//! messages that wait for the receiver's acknowledgement, and requests posted after them, whose completions
//! must not overtake. When the peer's ring is full, the request and all later ones are deferred, in order,
//! and continue when the queue pair is polled.

use crate::completion_queue::CompletionQueue;
use crate::execute::{Source, compare_swap, fetch_add};
use crate::inbound::{ACKNOWLEDGE, Condition, FIRST, IMMEDIATE, LAST, WRITE};
use crate::limits::{MAX_INLINE, MAX_MESSAGE};
use crate::memory::ShmMemory;
use crate::queue_pair::QueuePair;
use crate::send_queue::{Deferred, Outcome, Ticket, Waiting};
use dunlin_fabric::{
    CompletionStatus, Data, Host, InlineLine, InlineWrite, Opcode, Operation, PostError, QueuePairState,
    RealHost, RegionKey, RnrRetry, Transport, WorkId, WorkRequest,
};

impl QueuePair {
    /// As [`write_at_once`](QueuePair::write_at_once), for a line.
    #[inline(always)]
    pub(crate) fn line_at_once(&mut self, line: &InlineLine<'_>) -> bool {
        let Some(connection) = &self.connection else { return false };
        let open = self.state == QueuePairState::Ready
            && !self.send.blocked
            && self.send.room() > 0
            && connection.link.is_alive();
        if !open || !self.imports.write_line(&connection.link, line) {
            return false;
        }
        self.send.posted += 1;
        connection.doorbell.wrote();
        true
    }

    /// Executes an unsignaled inline WRITE, the fast path: checks, one copy and one counter. Returns `false`,
    /// with nothing done, for all other requests and for those that need further checks.
    #[inline]
    pub(crate) fn write_at_once(&mut self, write: &InlineWrite<'_>) -> bool {
        if write.immediate.is_none()
            && !write.signaled
            && self.state == QueuePairState::Ready
            && !self.send.blocked
            && self.send.room() > 0
            && let Some(connection) = &self.connection
            && connection.link.is_alive()
            && let Some(bytes) = inline_length(write.parts)
            && self.imports.write_parts(
                &connection.link,
                write.key,
                write.offset,
                write.parts,
                bytes,
                write.ahead,
            )
        {
            self.send.posted += 1;
            connection.doorbell.wrote();
            return true;
        }
        false
    }

    /// Posts one request on an RC or UC queue pair.
    #[inline(never)]
    pub(crate) fn post(
        &mut self,
        queues: &mut [CompletionQueue],
        request: WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        self.check(&request.operation)?;
        self.send.posted += 1;
        let completes = !matches!(request.operation, Operation::Send { .. } | Operation::Write { .. });
        let signaled = request.signaled || completes;
        let ticket = Ticket { id: request.id, sequence: self.send.posted, signaled };
        // If the queue is blocked, the request is deferred instead, so that it does not complete before
        // earlier ones.
        if !self.send.blocked && self.connection.as_ref().is_none_or(|c| !c.link.is_alive()) {
            let opcode = opcode_of(&request.operation);
            let mut outcome = Outcome::new(ticket, opcode, CompletionStatus::TransportRetry);
            if let Operation::Read { into, .. } = request.operation {
                outcome.buffer = Some(into);
            }
            self.finish(queues, outcome);
            return Ok(());
        }
        if self.send.blocked {
            let what = self.own(request.operation);
            self.put_off(queues, Waiting { ticket, sent: 0, what });
            return Ok(());
        }
        match request.operation {
            Operation::Send { data, immediate, .. } => {
                let mut sent = 0;
                if let Some(connection) = &self.connection {
                    connection.doorbell.prepare();
                }
                if !self.push(ticket, Source::of(&data), &mut sent, 0, immediate) {
                    let data = self.send.stage(data);
                    self.wait_for_room(Waiting { ticket, sent, what: Deferred::Send { data, immediate } });
                    return Ok(());
                }
                self.sent(queues, ticket, Opcode::Send);
            }
            Operation::Write { data, key, offset, immediate } => {
                let source = Source::of(&data);
                if let Some(rest) = self.write(queues, ticket, key, offset, source, immediate) {
                    self.wait_for_room(Waiting { ticket, sent: 0, what: rest });
                }
            }
            other => {
                let what = self.own(other);
                self.direct(queues, ticket, what);
            }
        }
        Ok(())
    }

    fn own(&mut self, operation: Operation<'_, ShmMemory>) -> Deferred {
        match operation {
            Operation::Send { data, immediate, .. } => {
                Deferred::Send { data: self.send.stage(data), immediate }
            }
            Operation::Write { data, key, offset, immediate } => {
                Deferred::Write { data: self.send.stage(data), key, offset, immediate }
            }
            Operation::Read { from, into } => Deferred::Read { from, into },
            Operation::ReadInto { from, into } => Deferred::ReadInto { from, into },
            Operation::FetchAdd { key, offset, add } => Deferred::FetchAdd { key, offset, add },
            Operation::CompareSwap { key, offset, expected, swap } => {
                Deferred::CompareSwap { key, offset, expected, swap }
            }
        }
    }

    /// Defers a request behind others that are blocked.
    fn put_off(&mut self, queues: &mut [CompletionQueue], waiting: Waiting) {
        if self.send.doomed {
            self.abandon(queues, waiting);
        } else {
            self.send.defer(waiting);
        }
    }

    /// Flushes a request because an earlier one has failed.
    fn abandon(&mut self, queues: &mut [CompletionQueue], waiting: Waiting) {
        let opcode = waiting.what.opcode();
        let mut outcome = Outcome::new(waiting.ticket, opcode, CompletionStatus::Flushed);
        if let Deferred::Read { into, .. } = waiting.what {
            outcome.buffer = Some(into);
        }
        self.finish(queues, outcome);
    }

    fn wait_for_room(&mut self, waiting: Waiting) {
        self.send.defer(waiting);
        if let Some(connection) = &self.connection {
            connection.producer.want_room(true);
        }
    }

    /// Stores a message in the peer's ring, from byte `sent` on; returns `false` if the ring is full before
    /// the end.
    fn push(
        &mut self,
        ticket: Ticket,
        source: Source<'_>,
        sent: &mut usize,
        kind: u8,
        immediate: Option<u32>,
    ) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        let producer = &mut connection.producer;
        let total = source.length() as usize;
        let most = producer.record_payload();
        loop {
            let length = (total - *sent).min(most);
            // An impossible value is detected at the next check of acknowledgements.
            if !producer.find_room(length) {
                return false;
            }
            let mut flags = kind;
            let mut word = immediate.unwrap_or(0);
            let last = *sent + length == total;
            if *sent == 0 {
                flags |= FIRST;
            }
            if last {
                flags |= LAST;
                flags |= if immediate.is_some() { IMMEDIATE } else { 0 };
                flags |= if ticket.signaled { ACKNOWLEDGE } else { 0 };
            } else if *sent == 0 {
                word = total as u32;
            }
            producer.push(flags, word, &source, *sent, length);
            connection.doorbell.ring();
            *sent += length;
            if last {
                return true;
            }
        }
    }

    /// Records that a message is in the ring.
    fn sent(&mut self, queues: &mut [CompletionQueue], ticket: Ticket, opcode: Opcode) {
        let mut outcome = Outcome::new(ticket, opcode, CompletionStatus::Success);
        if self.config.transport == Transport::ReliableConnection
            && let Some(connection) = &self.connection
        {
            outcome.end = connection.producer.produced();
            self.send.awaited += usize::from(ticket.signaled);
            self.send.unfinished.push_back(outcome);
        } else {
            // UC has no acknowledgements.
            self.finish(queues, outcome);
        }
    }

    /// Records that a datagram was sent or lost, which look the same to the sender.
    pub(crate) fn sent_datagram(&mut self, queues: &mut [CompletionQueue], id: WorkId, signaled: bool) {
        self.send.posted += 1;
        let ticket = Ticket { id, sequence: self.send.posted, signaled };
        self.deliver(queues, Outcome::new(ticket, Opcode::Send, CompletionStatus::Success));
    }

    /// Executes a WRITE, with the notice for WRITE_WITH_IMM; returns the rest if the ring is full.
    fn write(
        &mut self,
        queues: &mut [CompletionQueue],
        ticket: Ticket,
        key: RegionKey,
        offset: u64,
        source: Source<'_>,
        immediate: Option<u32>,
    ) -> Option<Deferred> {
        let connection = self.connection.as_ref()?;
        let link = &connection.link;
        if immediate.is_some() {
            connection.doorbell.prepare();
        }
        let bytes = source.length() as u32;
        let result = self.imports.write(link, key, offset, source);
        if immediate.is_none() {
            connection.doorbell.wrote();
        }
        match immediate {
            Some(immediate) if result.is_ok() => {
                let notice = Deferred::Notice { bytes, immediate };
                if !self.push(ticket, Source::One(&bytes.to_le_bytes()), &mut 0, WRITE, Some(immediate)) {
                    return Some(notice);
                }
                self.sent(queues, ticket, Opcode::Write);
            }
            _ => self.settle_write(queues, ticket, result),
        }
        None
    }

    fn settle_write(
        &mut self,
        queues: &mut [CompletionQueue],
        ticket: Ticket,
        result: Result<(), CompletionStatus>,
    ) {
        // A WRITE that the target of an unreliable connection refuses is lost silently, as in verbs.
        let silent = self.config.transport == Transport::UnreliableConnection;
        let status = if silent { CompletionStatus::Success } else { status_of(&result) };
        self.finish(queues, Outcome::new(ticket, Opcode::Write, status));
    }

    /// Executes a READ or an atomic.
    fn direct(&mut self, queues: &mut [CompletionQueue], ticket: Ticket, what: Deferred) {
        let Some(connection) = &self.connection else { return };
        let link = &connection.link;
        let mut outcome = Outcome::new(ticket, what.opcode(), CompletionStatus::Success);
        match what {
            Deferred::Read { from, mut into } => {
                let result = match into.get_mut(..from.length as usize) {
                    Some(room) => self.imports.read(link, from.key, from.offset, room),
                    None => Err(CompletionStatus::LocalLength),
                };
                outcome.status = status_of(&result);
                outcome.bytes = from.length;
                outcome.buffer = Some(into);
            }
            Deferred::ReadInto { from, into } => {
                let result = self.imports.read_into(link, from, &into);
                outcome.status = status_of(&result);
                outcome.bytes = from.length;
            }
            Deferred::FetchAdd { key, offset, add } => {
                let result = self.imports.atomic(link, key, offset, fetch_add(add));
                outcome.status = status_of(&result);
                outcome.value = result.unwrap_or(0);
            }
            Deferred::CompareSwap { key, offset, expected, swap } => {
                let result = self.imports.atomic(link, key, offset, compare_swap(expected, swap));
                outcome.status = status_of(&result);
                outcome.value = result.unwrap_or(0);
            }
            Deferred::Send { .. } | Deferred::Write { .. } | Deferred::Notice { .. } => return,
        }
        self.finish(queues, outcome);
    }

    /// Records a request's result. The user gets it now, or when all earlier requests are complete.
    fn finish(&mut self, queues: &mut [CompletionQueue], outcome: Outcome) {
        if self.send.unfinished.is_empty() {
            self.deliver(queues, outcome);
            return;
        }
        if outcome.status != CompletionStatus::Success {
            self.send.doomed = true;
            self.send.blocked = true;
        }
        self.send.awaited += usize::from(outcome.ticket.signaled);
        self.send.unfinished.push_back(outcome);
    }

    #[inline]
    fn deliver(&mut self, queues: &mut [CompletionQueue], outcome: Outcome) {
        let status = outcome.status;
        if outcome.ticket.signaled || status != CompletionStatus::Success {
            queues[self.config.send_completions.0 as usize].push(outcome.into_ready(self.id, status));
        }
        if status != CompletionStatus::Success {
            self.fail(queues, CompletionStatus::Flushed);
        }
    }

    /// Checks the receiver's progress, if there is a reason to.
    #[inline]
    pub(crate) fn poll_sends(&mut self, queues: &mut [CompletionQueue]) {
        if self.send.is_due() {
            self.drive_sends(queues);
        }
    }

    /// Completes the requests that the receiver has taken, and continues with deferred ones.
    pub(crate) fn drive_sends(&mut self, queues: &mut [CompletionQueue]) {
        if self.state != QueuePairState::Ready {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        // In this order: a receiver that fails publishes its progress first.
        let condition = connection.producer.condition();
        if !connection.producer.refresh() {
            return self.fail(queues, CompletionStatus::RemoteOperation);
        }
        let taken = connection.producer.taken();
        while self.send.unfinished.front().is_some_and(|o| o.end <= taken) {
            let Some(outcome) = self.send.unfinished.pop_front() else { break };
            self.send.awaited -= usize::from(outcome.ticket.signaled);
            self.deliver(queues, outcome);
            if self.state != QueuePairState::Ready {
                return;
            }
        }
        if !self.send.deferred.is_empty() {
            self.drive_deferred(queues);
        }
        match condition {
            Condition::Fine => self.send.not_ready_since = None,
            Condition::Failed => self.fail(queues, CompletionStatus::RemoteOperation),
            Condition::NotReady => self.count_retries(queues),
        }
    }

    fn drive_deferred(&mut self, queues: &mut [CompletionQueue]) {
        while let Some(mut waiting) = self.send.deferred.pop_front() {
            let ticket = waiting.ticket;
            match waiting.what {
                _ if self.send.doomed => self.abandon(queues, waiting),
                Deferred::Send { data, immediate } => {
                    if !self.push(ticket, data.source(), &mut waiting.sent, 0, immediate) {
                        waiting.what = Deferred::Send { data, immediate };
                        return self.send.deferred.push_front(waiting);
                    }
                    self.send.unstage(data);
                    self.sent(queues, ticket, Opcode::Send);
                }
                Deferred::Write { data, key, offset, immediate } => {
                    let rest = self.write(queues, ticket, key, offset, data.source(), immediate);
                    self.send.unstage(data);
                    if let Some(what) = rest {
                        return self.send.deferred.push_front(Waiting { what, ..waiting });
                    }
                }
                Deferred::Notice { bytes, immediate } => {
                    let payload = bytes.to_le_bytes();
                    if !self.push(ticket, Source::One(&payload), &mut 0, WRITE, Some(immediate)) {
                        return self.send.deferred.push_front(waiting);
                    }
                    self.sent(queues, ticket, Opcode::Write);
                }
                what => self.direct(queues, ticket, what),
            }
            if self.state != QueuePairState::Ready {
                return;
            }
        }
        self.send.blocked = self.send.doomed;
        if let Some(connection) = &self.connection {
            connection.producer.want_room(false);
        }
    }

    /// The receiver has no RECV: waits as long as the retries last.
    fn count_retries(&mut self, queues: &mut [CompletionQueue]) {
        let RnrRetry::Count(count) = self.config.rnr_retry else { return };
        let now = RealHost.now();
        let since = *self.send.not_ready_since.get_or_insert(now);
        if now - since < u64::from(count).saturating_mul(self.config.rnr_timer) {
            return;
        }
        self.send.not_ready_since = None;
        if self.connection.as_ref().is_some_and(|c| c.producer.give_up()) {
            self.fail(queues, CompletionStatus::ReceiverNotReady);
        }
    }

    /// Flushes all requests, the first one with status `first`.
    pub(crate) fn flush_sends(&mut self, queue: &mut CompletionQueue, first: CompletionStatus) {
        let mut next = first;
        while let Some(outcome) = self.send.unfinished.pop_front() {
            let failed = outcome.status != CompletionStatus::Success;
            let status = if failed && next != CompletionStatus::Flushed { outcome.status } else { next };
            queue.push(outcome.into_ready(self.id, status));
            next = CompletionStatus::Flushed;
        }
        while let Some(waiting) = self.send.deferred.pop_front() {
            let mut outcome = Outcome::new(waiting.ticket, waiting.what.opcode(), next);
            if let Deferred::Read { into, .. } = waiting.what {
                outcome.buffer = Some(into);
            }
            queue.push(outcome.into_ready(self.id, next));
            next = CompletionStatus::Flushed;
        }
        self.send.awaited = 0;
        self.send.blocked = true;
    }

    /// Checks whether a request may be posted at all.
    #[inline]
    fn check(&self, operation: &Operation<'_, ShmMemory>) -> Result<(), PostError> {
        match self.state {
            QueuePairState::Ready => {}
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
        }
        if self.send.room() == 0 {
            return Err(PostError::QueueFull);
        }
        match operation {
            Operation::Write { data, .. } => check_data(data, MAX_MESSAGE),
            Operation::Send { to: Some(_), .. } => {
                Err(PostError::Transport("an address handle is for datagrams, not for a connection"))
            }
            Operation::Send { data, .. } => check_data(data, MAX_MESSAGE),
            _ if self.config.transport != Transport::ReliableConnection => {
                Err(PostError::Transport("READ and atomics need RC"))
            }
            Operation::Read { from, .. } | Operation::ReadInto { from, .. } if from.length > MAX_MESSAGE => {
                Err(PostError::Length { length: u64::from(from.length), limit: MAX_MESSAGE })
            }
            _ => Ok(()),
        }
    }
}

const fn opcode_of(operation: &Operation<'_, ShmMemory>) -> Opcode {
    match operation {
        Operation::Send { .. } => Opcode::Send,
        Operation::Write { .. } => Opcode::Write,
        Operation::Read { .. } | Operation::ReadInto { .. } => Opcode::Read,
        Operation::FetchAdd { .. } => Opcode::FetchAdd,
        Operation::CompareSwap { .. } => Opcode::CompareSwap,
    }
}

#[inline]
fn status_of<T>(result: &Result<T, CompletionStatus>) -> CompletionStatus {
    match result {
        Ok(_) => CompletionStatus::Success,
        Err(status) => *status,
    }
}

/// Returns the length of an inline message, or `None` if it is empty or too long.
#[inline]
fn inline_length(parts: &[&[u8]]) -> Option<u64> {
    let bytes: u64 = parts.iter().map(|p| p.len() as u64).sum();
    (bytes > 0 && bytes <= u64::from(MAX_INLINE)).then_some(bytes)
}

/// Checks the length of a message.
#[inline]
pub(crate) fn check_data(data: &Data<'_, ShmMemory>, limit: u32) -> Result<(), PostError> {
    let length = data.length();
    if matches!(data, Data::Inline(_)) && length > u64::from(MAX_INLINE) {
        return Err(PostError::Inline { length: length as usize, limit: MAX_INLINE });
    }
    if length > u64::from(limit) { Err(PostError::Length { length, limit }) } else { Ok(()) }
}
