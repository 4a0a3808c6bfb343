//! The table of calls of one lane, with one slot for each call of the window. Allocated once.

use crate::error::{CallError, Cause};
use crate::path::call_id::{SLOT_BITS, split_call};
use crate::path::retransmit::Standing;
use dunlin_fabric::{Buffer, Memory, Nanos, copy};
use dunlin_wire::{INLINE_PAYLOAD, MAX_ENTRY_TIME, TIME_OVER, copy_bytes};
use std::collections::VecDeque;

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Sent, or in a batch that will be sent. In a batch its sequence is at least [`Slots::sent`].
    InFlight,
    /// Answered by a descriptor; its payload is being READ.
    Reading,
    /// Has its result or error; the server is done with the call id.
    Done,
    /// Ended by its deadline; the late answer may still come.
    Expired,
    /// Given up by the caller before the answer came. The slot stays taken until then, so that the late
    /// answer matches it.
    Zombie,
}

/// The result is not stored in the slot's line.
const NOT_INLINE: u8 = u8::MAX;

/// The end of the list of free slots.
const NO_SLOT: u16 = u16::MAX;

/// The sequence of an operation on the server's memory, which is sent as no message and was never taken or refused
/// by the server.
pub(super) const NO_MESSAGE: u64 = u64::MAX;

/// Returns whether a call with this sequence was sent, if all messages below `sent` were.
#[inline]
const fn was_sent(sequence: u64, sent: u64) -> bool {
    sequence < sent || sequence == NO_MESSAGE
}

/// Converts a timeout in nanoseconds to a request's whole microseconds: at least 1, and 0 for none. A timeout
/// of more than 71 minutes is not sent.
#[inline]
pub(crate) fn micros(timeout: Nanos) -> u32 {
    if timeout == 0 {
        return 0;
    }
    u32::try_from(timeout / 1000).ok().filter(|micros| *micros != TIME_OVER).map_or(0, |micros| micros.max(1))
}

/// The part of a call's state that every call touches: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Slot {
    /// The id of the call that has the slot, or had it last.
    call: u32,
    state: State,
    /// Length of the result in `line`, or [`NOT_INLINE`].
    line_length: u8,
    /// The slot's [`Rare`] holds more than spare memory.
    rare: bool,
    /// The thread that made the call, among those that share the lane by combining.
    thread: u8,
    /// The sequence of the call's message; while the slot is free, the index of the next free slot.
    sequence: u64,
    timeout: Nanos,
    /// 0 until the first query after sending, so that sending reads no clock.
    deadline: Nanos,
    /// A result that fits a line.
    line: [u8; INLINE_PAYLOAD],
}

impl Slot {
    /// Returns the call's deadline, which starts to run at the first query.
    #[inline(always)]
    fn ends(&mut self, now: impl FnOnce() -> Nanos) -> Nanos {
        if self.deadline == 0 {
            self.deadline = now().saturating_add(self.timeout);
        }
        self.deadline
    }
}

/// Puts a slot at the head of the list of free ones.
#[inline(always)]
fn free(slot: &mut Slot, index: usize, first: &mut u16, room: &mut u16) {
    slot.state = State::Free;
    slot.sequence = u64::from(std::mem::replace(first, index as u16));
    *room += 1;
}

/// The part of a call's state that few calls need.
#[derive(Debug)]
struct Rare<M: Memory> {
    small: Vec<u8>,
    large: Option<Buffer<M>>,
    request: Option<Buffer<M>>,
    error: Option<CallError>,
    /// The server has announced a large result, so the handler ran.
    announced: bool,
}

/// The effect of an answer.
#[derive(Debug)]
pub(crate) enum Answered {
    /// The caller waits for the answer.
    Wanted,
    /// The call was given up, so the answer is discarded.
    Unwanted,
}

/// A receiver of results as they arrive.
pub(crate) trait Sink {
    /// Offers a plain result in place, inside its message. If the sink returns true, the call is over and its
    /// slot is free. Otherwise the result is kept in the slot until the caller asks for it.
    fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool;
}

/// A sink that leaves every result in its slot.
pub(crate) struct Keep;

impl Sink for Keep {
    #[inline]
    fn offer(&mut self, _lane: u16, _call: u32, _payload: &[u8]) -> bool {
        false
    }
}

/// The table. The fields that every call touches come first: one and a half cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots<M: Memory> {
    slots: Box<[Slot]>,
    rare: Box<[Rare<M>]>,
    /// The first finished call; with one call at a time the queue below stays unused.
    first_done: Option<u32>,
    /// Messages below this sequence were sent. Calls of later ones belong to a batch that is being built.
    sent: u64,
    /// The time of a call runs that is not sent yet.
    started_unsent: bool,
    /// A call has ended at its deadline since [`take_expired`](Slots::take_expired).
    has_expired: bool,
    in_flight: u32,
    /// Calls that their callers do not wait for any more, and whose answers are still to come.
    given_up: u16,
    /// The slot freed last, the head of the list of free slots, or [`NO_SLOT`].
    free: u16,
    /// The number of free slots.
    room: u16,
    /// The other finished calls in order of completion; stale entries are skipped.
    done: VecDeque<u32>,
}

impl<M: Memory> Slots<M> {
    pub(crate) fn new(window: u16) -> Self {
        let slot = |index: u16| Slot {
            call: index.into(),
            state: State::Free,
            line_length: 0,
            rare: false,
            thread: 0,
            sequence: if index + 1 < window { u64::from(index + 1) } else { u64::from(NO_SLOT) },
            timeout: 0,
            deadline: 0,
            line: [0; INLINE_PAYLOAD],
        };
        let rare = |_| Rare {
            small: Vec::with_capacity(64),
            large: None,
            request: None,
            error: None,
            announced: false,
        };
        Slots {
            slots: (0..window).map(slot).collect(),
            rare: (0..window).map(rare).collect(),
            free: if window > 0 { 0 } else { NO_SLOT },
            room: window,
            first_done: None,
            done: VecDeque::with_capacity(2 * window as usize + 1),
            in_flight: 0,
            given_up: 0,
            sent: 0,
            started_unsent: false,
            has_expired: false,
        }
    }

    /// Prefetches the first slot.
    #[inline]
    pub(crate) fn warm(&self) {
        copy::prefetch_to_write(self.first());
    }

    /// Returns the address of the first slot.
    #[inline]
    pub(crate) fn first(&self) -> *const u8 {
        self.slots.as_ptr().cast()
    }

    /// Returns the number of calls made and not answered, including zombies.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight as usize
    }

    /// Returns how many more calls can be made now.
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// Returns whether every slot is free.
    pub(crate) fn is_unused(&self) -> bool {
        self.room as usize == self.slots.len()
    }

    /// Returns the id of the next call; `None` if the window is full. Changes nothing until
    /// [`take`](Slots::take).
    #[inline]
    pub(crate) fn next_call(&self) -> Option<u32> {
        Some(self.slots.get(self.free as usize)?.call.wrapping_add(1 << SLOT_BITS))
    }

    /// Takes the slot of [`next_call`](Slots::next_call) for a call in the message `sequence`.
    #[inline]
    pub(crate) fn take(&mut self, call: u32, timeout: Nanos, sequence: u64) {
        let (index, _) = split_call(call);
        if let Some(slot) = self.slots.get_mut(index) {
            self.free = slot.sequence as u16;
            self.room -= 1;
            slot.call = call;
            slot.state = State::InFlight;
            slot.sequence = sequence;
            slot.timeout = timeout;
            slot.deadline = 0;
            self.in_flight += 1;
        }
    }

    /// Notes the thread of a call that was just taken: a number below 256.
    pub(crate) fn set_thread(&mut self, call: u32, thread: u16) {
        if let Some(slot) = self.slots.get_mut(split_call(call).0) {
            slot.thread = thread as u8;
        }
    }

    /// Returns whether a thread has fewer than `most` slots, if calls were given up: otherwise the caller counts its calls
    /// itself. Takes time in proportion to the window while answers of such calls are missing.
    #[inline]
    pub(crate) fn has_room_for(&self, thread: u16, most: u16) -> bool {
        self.given_up == 0 || self.slots_of(thread) < usize::from(most)
    }

    #[cold]
    fn slots_of(&self, thread: u16) -> usize {
        let is_call = |slot: &&Slot| slot.state != State::Free && slot.sequence != NO_MESSAGE;
        self.slots.iter().filter(is_call).filter(|slot| u16::from(slot.thread) == thread).count()
    }

    /// Returns whether an answer names the thread of its call. True for a call that is not in the table.
    pub(crate) fn is_of_thread(&self, call: u32, thread: u16) -> bool {
        let slot = self.slots.get(split_call(call).0).filter(|slot| slot.call == call);
        slot.is_none_or(|slot| u16::from(slot.thread) == thread)
    }

    /// Records that the message `sequence` was sent, and with it all calls up to that sequence.
    #[inline]
    pub(crate) fn sent(&mut self, sequence: u64) {
        self.sent = sequence + 1;
        self.started_unsent = false;
    }

    /// Returns whether the time of a call runs that is not sent yet.
    #[inline]
    pub(crate) fn has_started_unsent(&self) -> bool {
        self.started_unsent
    }

    /// Returns the number of the message with a live call.
    #[cfg(test)]
    pub(crate) fn sequence_of(&mut self, call: u32) -> Option<u64> {
        self.get(call).map(|slot| slot.sequence)
    }

    /// Records that the time of a call runs that is not sent yet, although a message was sent before it.
    pub(crate) fn has_unsent(&mut self) {
        self.started_unsent = true;
    }

    /// Starts the time of a call that was just added to a batch.
    pub(crate) fn start(&mut self, call: u32, now: Nanos) {
        if let Some(slot) = self.get(call) {
            slot.ends(|| now);
            self.started_unsent = true;
        }
    }

    /// Changes the sequence of the open batch's calls after another message was sent before it.
    #[cold]
    pub(crate) fn renumber(&mut self, before: u64, now: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state != State::Free && slot.sequence == before)
        {
            slot.sequence = now;
        }
    }

    /// Returns the slot of a live call.
    #[inline]
    fn get(&mut self, call: u32) -> Option<&mut Slot> {
        let (index, _) = split_call(call);
        self.slots.get_mut(index).filter(|slot| slot.call == call && slot.state != State::Free)
    }

    /// Returns the rare state of a live call, and marks it as used.
    #[inline]
    fn rare(&mut self, call: u32) -> Option<&mut Rare<M>> {
        self.get(call)?.rare = true;
        self.rare.get_mut(split_call(call).0)
    }

    /// Keeps the payload of a large request until the call ends.
    pub(crate) fn keep_request(&mut self, call: u32, buffer: Buffer<M>) {
        if let Some(rare) = self.rare(call) {
            rare.request = Some(buffer);
        }
    }

    /// Takes the payload of a call that was sent, to WRITE it to the place that the server has named, or
    /// `None`.
    pub(crate) fn take_request(&mut self, call: u32) -> Option<Buffer<M>> {
        if !self.expects(call) {
            return None;
        }
        self.rare.get_mut(split_call(call).0)?.request.take()
    }

    /// Returns the number of slots.
    pub(crate) fn window(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether an answer to this call can arrive now.
    #[inline]
    pub(crate) fn expects(&mut self, call: u32) -> bool {
        let sent = self.sent;
        self.get(call).is_some_and(|slot| match slot.state {
            State::InFlight | State::Zombie | State::Expired => was_sent(slot.sequence, sent),
            State::Free | State::Reading | State::Done => false,
        })
    }

    /// Returns the state of a call as far as it matters for sending it again.
    pub(crate) fn standing(&mut self, call: u32) -> Standing {
        let sent = self.sent;
        self.get(call).map_or(Standing::Over, |slot| match slot.state {
            State::InFlight | State::Zombie | State::Expired if was_sent(slot.sequence, sent) => {
                Standing::Waits
            }
            State::InFlight | State::Zombie | State::Expired => Standing::Unsent,
            State::Free | State::Reading | State::Done => Standing::Over,
        })
    }

    /// Returns the time left for a call, as a request carries it.
    pub(crate) fn time_left(&mut self, call: u32, now: Nanos) -> u32 {
        self.get(call).filter(|slot| slot.timeout > 0).map_or(0, |slot| match slot.deadline {
            0 => micros(slot.timeout),
            deadline if deadline <= now => TIME_OVER,
            deadline => micros(deadline - now),
        })
    }

    /// Returns the time left for a call of a batch, if its time runs and an entry has a place for it.
    pub(crate) fn entry_time(&mut self, call: u32, now: Nanos) -> Option<u32> {
        let runs = self.get(call).is_some_and(|slot| slot.deadline != 0);
        let left = self.time_left(call, now);
        (runs && (left == TIME_OVER || (1..=MAX_ENTRY_TIME).contains(&left))).then_some(left)
    }

    /// Returns whether the caller still waits for an answer.
    #[inline]
    pub(crate) fn wanted(&mut self, call: u32) -> bool {
        self.get(call).is_some_and(|slot| slot.state == State::InFlight)
    }

    /// Records that the server has announced a large result.
    pub(crate) fn announced(&mut self, call: u32) {
        if let Some(rare) = self.rare(call) {
            rare.announced = true;
        }
    }

    /// Records that the answer is a large payload that is now being READ.
    pub(crate) fn reading(&mut self, call: u32) {
        if let Some(slot) = self.get(call) {
            slot.state = State::Reading;
        }
    }

    /// Processes a plain result, and offers it to `sink` if the call has no rare state. `None` for a call
    /// that expects no answer.
    #[inline(always)]
    pub(crate) fn result(
        &mut self,
        lane: u16,
        call: u32,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Option<Answered> {
        let (index, _) = split_call(call);
        let slot = self.slots.get_mut(index)?;
        let plain =
            slot.call == call && slot.state == State::InFlight && slot.sequence < self.sent && !slot.rare;
        if !plain {
            return self.answer(call, payload, None);
        }
        if sink.offer(lane, call, payload) {
            free(slot, index, &mut self.free, &mut self.room);
        } else if let Some(place) = slot.line.get_mut(..payload.len()) {
            copy_bytes(place, payload);
            (slot.line_length, slot.state) = (payload.len() as u8, State::Done);
            self.push_done(call);
        } else {
            return self.answer(call, payload, None);
        }
        self.in_flight -= 1;
        Some(Answered::Wanted)
    }

    /// Processes a small answer; `None` for a call that expects no answer.
    #[inline]
    pub(crate) fn answer(&mut self, call: u32, payload: &[u8], error: Option<CallError>) -> Option<Answered> {
        if !self.expects(call) {
            return None;
        }
        self.finish(call, error, |slot, rare| {
            if let Some(place) = slot.line.get_mut(..payload.len()) {
                copy_bytes(place, payload);
                slot.line_length = payload.len() as u8;
            } else {
                slot.line_length = NOT_INLINE;
                rare.small.clear();
                rare.small.extend_from_slice(payload);
            }
        })
    }

    /// Processes a large answer, or the reason why it could not be transferred.
    pub(crate) fn answer_large(
        &mut self,
        call: u32,
        outcome: Result<Buffer<M>, CallError>,
    ) -> Option<Answered> {
        let (buffer, error) = match outcome {
            Ok(buffer) => (Some(buffer), None),
            Err(error) => (None, Some(error)),
        };
        self.finish(call, error, |slot, rare| {
            slot.line_length = NOT_INLINE;
            slot.rare = true;
            rare.large = buffer;
        })
    }

    #[inline]
    fn finish(
        &mut self,
        call: u32,
        error: Option<CallError>,
        fill: impl FnOnce(&mut Slot, &mut Rare<M>),
    ) -> Option<Answered> {
        let (index, _) = split_call(call);
        let slot = self.slots.get_mut(index).filter(|slot| slot.call == call)?;
        let rare = self.rare.get_mut(index)?;
        match slot.state {
            State::InFlight | State::Reading => {
                fill(slot, rare);
                if slot.rare || error.is_some() {
                    slot.rare = true;
                    rare.request = None;
                    rare.error = error;
                }
                slot.state = State::Done;
                self.in_flight -= 1;
                self.push_done(call);
                Some(Answered::Wanted)
            }
            State::Zombie => {
                self.given_up -= 1;
                self.release(call);
                Some(Answered::Unwanted)
            }
            // The deadline has already ended the call, and the caller has not collected the outcome yet.
            State::Expired => {
                slot.state = State::Done;
                rare.request = None;
                self.in_flight -= 1;
                self.given_up -= 1;
                Some(Answered::Unwanted)
            }
            State::Free | State::Done => None,
        }
    }

    #[inline]
    fn push_done(&mut self, call: u32) {
        if self.first_done.is_none() {
            self.first_done = Some(call);
            return;
        }
        if self.done.len() == self.done.capacity() {
            let slots = &self.slots;
            self.done.retain(|call| {
                let slot = slots[split_call(*call).0];
                slot.call == *call && matches!(slot.state, State::Done | State::Expired)
            });
        }
        self.done.push_back(call);
    }

    /// Frees the slot of a zombie or of a finished call.
    #[inline]
    fn release(&mut self, call: u32) {
        let (index, _) = split_call(call);
        let slot = &mut self.slots[index];
        if slot.state == State::Zombie {
            self.in_flight -= 1;
        }
        free(slot, index, &mut self.free, &mut self.room);
        if slot.rare {
            slot.rare = false;
            self.clear_rare(index);
        }
    }

    #[cold]
    fn clear_rare(&mut self, index: usize) {
        let rare = &mut self.rare[index];
        rare.large = None;
        rare.request = None;
        rare.error = None;
        rare.announced = false;
    }

    /// Returns whether a call has its outcome; `None` for an id that is not, or no longer, in the table.
    #[inline]
    pub(crate) fn is_done(&mut self, call: u32) -> Option<bool> {
        self.get(call).and_then(|slot| match slot.state {
            State::Zombie => None,
            State::Done | State::Expired => Some(true),
            State::Free | State::InFlight | State::Reading => Some(false),
        })
    }

    /// Returns whether there may be finished calls.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        self.first_done.is_some()
    }

    #[inline]
    fn pop_done(&mut self) -> Option<u32> {
        let first = self.first_done?;
        self.first_done = if self.done.is_empty() { None } else { self.done.pop_front() };
        Some(first)
    }

    /// Returns the next finished call in order of completion, each call once.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<u32> {
        while let Some(call) = self.pop_done() {
            if self.is_done(call) == Some(true) {
                return Some(call);
            }
        }
        None
    }

    /// Returns the slot of a finished call that has a result and no rare state.
    #[inline(always)]
    fn plain_result(&self, call: u32) -> Option<&Slot> {
        let slot = self.slots.get(split_call(call).0)?;
        (slot.call == call && slot.state == State::Done && !slot.rare).then_some(slot)
    }

    /// Returns whether a finished call has a result; not for each that has.
    #[inline(always)]
    pub(crate) fn has_plain_result(&self, call: u32) -> bool {
        self.plain_result(call).is_some()
    }

    /// Returns the outcome of a finished call.
    #[inline(always)]
    pub(crate) fn outcome(&self, call: u32) -> Result<&[u8], CallError> {
        match self.plain_result(call).and_then(|slot| slot.line.get(..slot.line_length.into())) {
            Some(result) => Ok(result),
            None => self.any_outcome(call),
        }
    }

    #[inline(never)]
    fn any_outcome(&self, call: u32) -> Result<&[u8], CallError> {
        let (index, _) = split_call(call);
        let done = |slot: &&Slot| slot.call == call && matches!(slot.state, State::Done | State::Expired);
        let (Some(slot), Some(rare)) = (self.slots.get(index).filter(done), self.rare.get(index)) else {
            return Err(CallError::MaybeExecuted(Cause::Closed));
        };
        // Do not touch the rare state if it is unused.
        if slot.rare
            && let Some(error) = &rare.error
        {
            return Err(error.clone());
        }
        if slot.line_length != NOT_INLINE {
            return Ok(&slot.line[..(slot.line_length as usize).min(INLINE_PAYLOAD)]);
        }
        Ok(match &rare.large {
            Some(buffer) if slot.rare => buffer,
            _ => &rare.small,
        })
    }

    /// Takes the large result of a finished call, if it has one.
    #[inline]
    pub(crate) fn take_large(&mut self, call: u32) -> Option<Buffer<M>> {
        let (index, _) = split_call(call);
        let is_large = self.is_done(call) == Some(true) && self.slots[index].rare;
        if is_large { self.rare[index].large.take() } else { None }
    }

    /// Releases a call that the caller no longer needs, finished or not.
    #[inline]
    pub(crate) fn forget(&mut self, call: u32) {
        if self.first_done == Some(call) {
            self.pop_done();
        }
        let (index, _) = split_call(call);
        match self.slots.get_mut(index) {
            Some(slot) if slot.call == call && slot.state == State::Done && !slot.rare => {
                free(slot, index, &mut self.free, &mut self.room);
            }
            _ => self.forget_any(call),
        }
    }

    #[inline(never)]
    fn forget_any(&mut self, call: u32) {
        let Some(slot) = self.get(call) else { return };
        let state = slot.state;
        match state {
            State::Done => self.release(call),
            // A call of the open batch is sent with it all the same.
            State::Expired | State::InFlight | State::Reading => {
                slot.state = State::Zombie;
                self.given_up += u16::from(state != State::Expired);
                if let Some(rare) = self.rare(call) {
                    rare.error = None;
                }
            }
            State::Free | State::Zombie => {}
        }
    }

    /// Ends calls whose deadline has passed, and returns the earliest deadline of the others (`u64::MAX` if
    /// none). Calls queried for the first time get their deadline here.
    pub(crate) fn expire(&mut self, now: Nanos) -> Nanos {
        let mut earliest = u64::MAX;
        if self.in_flight == 0 {
            return earliest;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !matches!(slot.state, State::InFlight | State::Reading) || slot.timeout == 0 {
                continue;
            }
            let unsent = !was_sent(slot.sequence, self.sent);
            self.started_unsent |= unsent;
            if slot.ends(|| now) > now || slot.state == State::Reading {
                earliest = earliest.min(slot.deadline);
                continue;
            }
            slot.state = State::Expired;
            self.given_up += 1;
            slot.rare = true;
            self.has_expired = true;
            let call = slot.call;
            let rare = &mut self.rare[index];
            // A call of a batch that is not sent yet will leave with it, marked as not to be executed.
            rare.error = Some(unanswered(Cause::DeadlineExceeded, rare.announced, unsent));
            self.push_done(call);
        }
        earliest
    }

    /// Returns whether a call has ended at its deadline since the last question.
    pub(crate) fn take_expired(&mut self) -> bool {
        std::mem::take(&mut self.has_expired)
    }

    /// Ends all calls because the lane is gone. `taken` is the number of messages that the server has
    /// reported as taken: calls in later messages were not executed, and neither were calls that were never
    /// sent. Calls with an announced result were executed.
    pub(crate) fn fail(&mut self, cause: Cause, taken: Option<u64>) {
        let taken = taken.unwrap_or(u64::MAX).min(self.sent);
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let call = slot.call;
            match slot.state {
                State::Free | State::Done => {}
                State::Zombie => {
                    self.given_up -= 1;
                    self.release(call);
                }
                State::Expired => {
                    slot.state = State::Done;
                    self.in_flight -= 1;
                    self.given_up -= 1;
                }
                State::InFlight | State::Reading => {
                    let never = !was_sent(slot.sequence, taken);
                    slot.state = State::Done;
                    slot.rare = true;
                    let rare = &mut self.rare[index];
                    rare.error = Some(unanswered(cause, rare.announced, never));
                    rare.request = None;
                    self.in_flight -= 1;
                    self.push_done(call);
                }
            }
        }
    }

    /// Forgets all calls, in whatever state they are.
    #[cold]
    pub(crate) fn clear(&mut self) {
        *self = Slots::new(self.slots.len() as u16);
    }
}

/// Returns the error of a call without an answer. `announced`: the server has announced its result; `never`:
/// the server has not taken the call.
fn unanswered(cause: Cause, announced: bool, never: bool) -> CallError {
    match (announced, never) {
        (true, _) => CallError::Executed(cause),
        (false, true) => CallError::NotExecuted(cause),
        (false, false) => CallError::MaybeExecuted(cause),
    }
}

#[cfg(test)]
mod tests;
