//! The open batch of a lane: calls that leave as one message, on a flush or by the rules of `batching.rs`.

use super::lane::{ClientLane, SubmitError};
use super::slots::micros;
use super::within::Time;
use crate::error::Cause;
use crate::path::call_id::CallEnds;
use crate::path::credits::Ask;
use crate::path::{Cx, Violation};
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use dunlin_wire::{BatchState, EntryMeta, Flags, Header, Kind, MAX_ENTRY_TIME};

impl<F: Fabric> ClientLane<F> {
    /// Adds a call to the open batch, which is sent by [`flush`](ClientLane::flush) or when it is full.
    ///
    /// A call with a time of its own reads the clock, because its time runs while the batch is open.
    #[inline(never)]
    pub(crate) fn push(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: impl Into<CallEnds>,
        payload: &[u8],
        time: Time,
    ) -> Result<u32, SubmitError> {
        self.push_here(cx, ends.into(), payload, time)
    }

    /// As [`push`](ClientLane::push); inlined.
    #[inline(always)]
    pub(crate) fn push_here(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        payload: &[u8],
        time: Time,
    ) -> Result<u32, SubmitError> {
        let timeout = time.nanos;
        // Calls have the time of the one before as a rule.
        let time_left = if timeout == self.batch_nanos { self.batch_time } else { micros(timeout) };
        // An entry of a batch has no place for long times.
        let alone = time.is_own && !(1..=MAX_ENTRY_TIME).contains(&time_left);
        let alone = alone || !self.is_plain && self.leaves_alone(payload.len());
        if payload.len() > self.rendezvous_above || alone {
            return self.submit(cx, CallEnds { ..ends }, payload, timeout);
        }
        self.check_call(payload.len())?;
        let Some(call) = self.slots.next_call() else {
            if self.batching.is_some() {
                self.flush(cx)?;
            }
            return Err(Self::refuse(Cause::WindowFull));
        };
        let CallEnds { function, thread } = ends;
        if !self.is_plain && (self.is_combined || self.hybrid.is_some()) {
            self.prepare_batch(cx, function)?;
        }
        let mut meta = EntryMeta { function_or_status: function, thread, call, flags: Flags::NONE, time: 0 };
        if !self.batch.is_empty() && time_left != self.batch_time {
            match time_left {
                1..=MAX_ENTRY_TIME => meta.time = time_left,
                _ => self.flush(cx)?,
            }
        }
        if !self.is_plain {
            self.open_batch(cx.fabric);
        }
        cx.fabric.host().charge(Work::BuildEntry, 1);
        if self.batch.push(&mut self.staging, &meta, payload).is_err() {
            self.flush(cx)?;
            self.open_batch(cx.fabric);
            meta.time = 0;
            // A copy: an entry whose address nobody takes stays in registers.
            self.push_first(EntryMeta { ..meta }, payload)?;
        }
        if self.batch.count() == 1 {
            self.batch_sequence = self.tx.end.next_sequence();
            (self.batch_time, self.batch_nanos) = (time_left, timeout);
        }
        self.slots.take(call, timeout, self.batch_sequence);
        if time.is_own {
            self.slots.start(call, cx.fabric.host().now());
        }
        if !self.is_plain {
            // The call exists. An error of the lane reaches the caller as its outcome.
            let _ = self.was_pushed(cx, call, CallEnds { function, thread }, payload);
        }
        Ok(call)
    }

    /// Returns whether a payload leaves as a message of its own, on a lane that batches by itself.
    fn leaves_alone(&self, length: usize) -> bool {
        self.batching.as_ref().is_some_and(|batching| batching.is_too_large(length))
    }

    /// Makes room for another call in the open batch of a lane with credits, or whose results may be fetched.
    #[inline(never)]
    fn prepare_batch(&mut self, cx: &mut Cx<'_, F>, function: u16) -> Result<(), SubmitError> {
        if self.is_combined && !self.has_credit() {
            self.flush(cx)?;
            if !self.has_credit() {
                return Err(SubmitError::Full);
            }
        }
        if let Some(hybrid) = &self.hybrid
            && !hybrid.fits_batch(function, self.batch.count() as usize)
        {
            self.flush(cx)?;
        }
        Ok(())
    }

    /// Takes note of a call that was added to the open batch of a lane that is not plain, and sends a batch that is full.
    #[inline(never)]
    fn was_pushed(
        &mut self,
        cx: &mut Cx<'_, F>,
        call: u32,
        ends: CallEnds,
        payload: &[u8],
    ) -> Result<(), SubmitError> {
        if let Some(again) = &mut self.retransmit {
            again.keep(call, ends, Flags::NONE, payload);
        }
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.batched(call, ends.function, self.batch.count() == 1);
        }
        if self.is_combined {
            self.slots.set_thread(call, ends.thread);
        }
        if let Some(batching) = &mut self.batching {
            batching.pushed(call);
            if batching.is_full(self.batch.count(), self.batch.total()) {
                return self.flush_if_room(cx);
            }
        }
        Ok(())
    }

    /// Adds the first entry of a batch.
    #[inline(never)]
    fn push_first(&mut self, meta: EntryMeta, payload: &[u8]) -> Result<(), SubmitError> {
        self.batch.push(&mut self.staging, &meta, payload).map_err(|_| SubmitError::Full)
    }

    /// Starts the batch's clock if the next call is its first.
    #[inline]
    fn open_batch(&mut self, fabric: &F) {
        if self.batch.count() == 0
            && let Some(batching) = &mut self.batching
        {
            batching.opened(fabric.host().now());
        }
    }

    /// Sends the open batch. Without room it stays open for a later attempt.
    pub(super) fn flush_if_room(&mut self, cx: &mut Cx<'_, F>) -> Result<(), SubmitError> {
        match self.flush(cx) {
            Err(SubmitError::Full) => Ok(()),
            flushed => flushed,
        }
    }

    /// Sends the open batch of a lane that batches by itself, if it is full or no other call is in flight.
    #[inline(never)]
    pub(crate) fn flush_alone(&mut self, cx: &mut Cx<'_, F>) -> Result<(), Violation> {
        let open = self.batch.count();
        let full = self.batching.as_ref().is_some_and(|b| b.is_full(open, self.batch.total()));
        if open > 0 && (full || self.slots.in_flight() == open as usize) {
            self.flush_if_room(cx).map_err(|_| Violation::Broken)?;
        }
        Ok(())
    }

    /// Sends the open batch and what waits for it.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Cx<'_, F>) -> Result<(), SubmitError> {
        if self.batch.is_empty() {
            return Ok(self.tx.end.post_listed(cx.domain)?);
        }
        let tags = self.tx.begin(cx, self.batch.total() as usize)?;
        let (flags, head) = match &self.hybrid {
            None => (Flags::NONE, self.rx.head()),
            Some(hybrid) => hybrid.ask_batch(self.rx.head()),
        };
        if self.slots.has_started_unsent() {
            self.change_times(cx.fabric.host().now());
        }
        let mut header = Header { flags, head, time: self.batch_time, ..Header::new(Kind::RequestBatch) };
        let mut ask = Ask::No;
        if self.is_combined {
            // The calls were counted when they were pushed, and a message that was begun is paid for.
            ask = self.spend(self.batch.count()).ok_or(SubmitError::Broken)?;
            header.credits = self.in_header(ask);
        }
        let Ok(total) = self.batch.finish_compact(&mut self.staging, &header, tags) else {
            return Err(SubmitError::Broken);
        };
        if let Err(error) = self.tx.post(cx, &[&self.staging[..total]], total) {
            if self.is_combined {
                self.unspend(self.batch.count(), ask);
            }
            return Err(error.into());
        }
        let sequence = self.tx.end.next_sequence() - 1;
        if sequence != self.batch_sequence {
            self.slots.renumber(self.batch_sequence, sequence);
        }
        self.slots.sent(sequence);
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.sent_batch(self.batch.count() as usize, || cx.fabric.host().now());
        }
        if let Some(batching) = &mut self.batching {
            batching.sent(self.batch.count());
        }
        self.batch = BatchState::new();
        if self.is_combined {
            self.paid_for(cx, ask);
        }
        Ok(())
    }

    /// Gives the calls of the open batch whose time runs the time that is left. Those without any end here: the
    /// server will refuse them.
    #[cold]
    fn change_times(&mut self, now: Nanos) {
        self.slots.expire(now);
        let (slots, of_batch) = (&mut self.slots, self.batch_time);
        self.batch.change_times(&mut self.staging, |call, time| match slots.entry_time(call, now) {
            Some(left) if left == of_batch => 0,
            Some(left) => left,
            None => time,
        });
    }
}
