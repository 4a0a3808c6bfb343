//! The table of calls of one lane: as many slots as the window allows, made once.
//!
//! A call id is (generation, slot). The generation grows each time a slot is used, so the server can tell a call
//! id that comes twice, and we can tell an answer that nobody waits for.

use crate::error::{CallError, Cause};
use dunlin_fabric::{Buffer, Memory, Nanos};
use dunlin_wire::INLINE_PAYLOAD;
use std::collections::VecDeque;
use std::task::Waker;

/// Bits of a call id that name the slot.
pub(crate) const SLOT_BITS: u32 = 12;
/// The most calls in flight on a lane.
pub(crate) const MAX_WINDOW: u16 = 1024;
const GENERATION_MASK: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// The slot and generation of a call id.
#[inline]
pub(crate) const fn split_call(call: u32) -> (usize, u32) {
    ((call & ((1 << SLOT_BITS) - 1)) as usize, call >> SLOT_BITS)
}

/// Whether `next` is a later generation than `last`, within half of the number space.
#[inline]
pub(crate) const fn is_newer(next: u32, last: u32) -> bool {
    let ahead = next.wrapping_sub(last) & GENERATION_MASK;
    ahead != 0 && ahead < 1 << (31 - SLOT_BITS)
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// In a batch that was not sent.
    Building,
    /// Sent.
    InFlight,
    /// Answered by a descriptor; the payload is being READ.
    Reading,
    /// Has its result or error. `answered` tells whether the server is done with the call id.
    Done {
        answered: bool,
    },
    /// Given up by the caller before the answer came: taken until then, so that the late answer finds its place.
    Zombie,
}

/// The result is not in the slot's line.
const NOT_INLINE: u8 = u8::MAX;

#[derive(Debug)]
struct Slot<M: Memory> {
    state: State,
    generation: u32,
    timeout: Nanos,
    /// 0 until the first look at the clock after sending: no clock is read to send.
    deadline: Nanos,
    sequence: u64,
    /// A result that fits a line.
    line: [u8; INLINE_PAYLOAD],
    /// Its length, or [`NOT_INLINE`].
    line_length: u8,
    small: Vec<u8>,
    large: Option<Buffer<M>>,
    request: Option<Buffer<M>>,
    error: Option<CallError>,
    waker: Option<Waker>,
}

/// What became of an answer.
pub(crate) enum Answered {
    /// Somebody wants it.
    Wanted,
    /// The call was given up; the slot is free again.
    Unwanted,
}

/// A result taken out of its slot.
#[derive(Debug)]
pub(crate) enum Taken<M: Memory> {
    Small(Vec<u8>),
    Large(Buffer<M>),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Slots<M: Memory> {
    slots: Vec<Slot<M>>,
    free: Vec<u16>,
    /// Slots in the order in which they were done; stale entries are skipped.
    done: VecDeque<u32>,
    in_flight: usize,
    /// Wakers of calls that are done: woken by whoever holds the lock around us, after it lets go, since a waker
    /// may run anything.
    woken: Vec<Waker>,
}

impl<M: Memory> Slots<M> {
    pub(crate) fn new(window: u16) -> Self {
        let slot = |_| Slot {
            state: State::Free,
            generation: 0,
            timeout: 0,
            deadline: 0,
            sequence: u64::MAX,
            line: [0; INLINE_PAYLOAD],
            line_length: 0,
            small: Vec::with_capacity(64),
            large: None,
            request: None,
            error: None,
            waker: None,
        };
        Slots {
            slots: (0..window).map(slot).collect(),
            free: (0..window).rev().collect(),
            done: VecDeque::with_capacity(2 * window as usize + 1),
            in_flight: 0,
            woken: Vec::with_capacity(window as usize),
        }
    }

    /// A waker of a call that is done, to be woken without any lock.
    #[inline]
    pub(crate) fn next_woken(&mut self) -> Option<Waker> {
        self.woken.pop()
    }

    /// Calls sent and not answered, zombies included.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many more calls could be made now.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether every slot is free.
    pub(crate) fn is_unused(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes a slot for a call; `None` if the window is full.
    #[inline]
    pub(crate) fn take(&mut self, timeout: Nanos) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.state = State::Building;
        slot.timeout = timeout;
        slot.deadline = 0;
        slot.sequence = u64::MAX;
        self.in_flight += 1;
        Some(slot.generation << SLOT_BITS | index as u32)
    }

    /// The id that the next call will have; `None` if the window is full. Nothing changes until
    /// [`take_sent`](Slots::take_sent).
    #[inline]
    pub(crate) fn next_call(&self) -> Option<u32> {
        let index = *self.free.last()?;
        let generation = (self.slots.get(index as usize)?.generation + 1) & GENERATION_MASK;
        Some(generation << SLOT_BITS | index as u32)
    }

    /// Takes the slot of [`next_call`](Slots::next_call), whose call was sent in the message `sequence`.
    #[inline]
    pub(crate) fn take_sent(&mut self, call: u32, timeout: Nanos, sequence: u64) {
        let (index, generation) = split_call(call);
        self.free.pop();
        if let Some(slot) = self.slots.get_mut(index) {
            slot.generation = generation;
            slot.state = State::InFlight;
            slot.timeout = timeout;
            slot.deadline = 0;
            slot.sequence = sequence;
            self.in_flight += 1;
        }
    }

    #[inline]
    fn get(&mut self, call: u32) -> Option<&mut Slot<M>> {
        let (index, generation) = split_call(call);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation && slot.state != State::Free)
    }

    /// The call was sent in the message `sequence`; `request` is its payload by rendezvous.
    #[inline]
    pub(crate) fn sent(&mut self, call: u32, sequence: u64) {
        if let Some(slot) = self.get(call)
            && slot.state == State::Building
        {
            slot.state = State::InFlight;
            slot.sequence = sequence;
        }
    }

    /// Keeps the payload that the server will READ.
    pub(crate) fn keep_request(&mut self, call: u32, buffer: Buffer<M>) {
        if let Some(slot) = self.get(call) {
            slot.request = Some(buffer);
        }
    }

    /// Takes a call back that could not be sent.
    #[inline]
    pub(crate) fn withdraw(&mut self, call: u32) {
        let (index, _) = split_call(call);
        if let Some(slot) = self.get(call) {
            slot.state = State::Free;
            slot.request = None;
            self.in_flight -= 1;
            self.free.push(index as u16);
        }
    }

    /// Whether an answer to this call can come now.
    #[inline]
    pub(crate) fn expects(&mut self, call: u32) -> bool {
        self.get(call).is_some_and(|slot| match slot.state {
            State::InFlight | State::Zombie => true,
            State::Done { answered } => !answered,
            State::Free | State::Building | State::Reading => false,
        })
    }

    /// Whether the caller still wants an answer.
    #[inline]
    pub(crate) fn wanted(&mut self, call: u32) -> bool {
        self.get(call).is_some_and(|slot| slot.state == State::InFlight)
    }

    /// The answer is a large payload that is now being READ.
    pub(crate) fn reading(&mut self, call: u32) {
        if let Some(slot) = self.get(call) {
            slot.state = State::Reading;
        }
    }

    /// A small answer; `None` for a call that awaits none.
    #[inline]
    pub(crate) fn answer(&mut self, call: u32, payload: &[u8], error: Option<CallError>) -> Option<Answered> {
        self.finish(call, error, |slot| {
            if let Some(place) = slot.line.get_mut(..payload.len()) {
                place.copy_from_slice(payload);
                slot.line_length = payload.len() as u8;
            } else {
                slot.line_length = NOT_INLINE;
                slot.small.clear();
                slot.small.extend_from_slice(payload);
            }
        })
    }

    /// A large answer, or why it could not be READ.
    pub(crate) fn answer_large(
        &mut self,
        call: u32,
        outcome: Result<Buffer<M>, CallError>,
    ) -> Option<Answered> {
        let (buffer, error) = match outcome {
            Ok(buffer) => (Some(buffer), None),
            Err(error) => (None, Some(error)),
        };
        self.finish(call, error, |slot| {
            slot.line_length = NOT_INLINE;
            slot.large = buffer;
        })
    }

    #[inline]
    fn finish(
        &mut self,
        call: u32,
        error: Option<CallError>,
        fill: impl FnOnce(&mut Slot<M>),
    ) -> Option<Answered> {
        let slot = self.get(call)?;
        slot.request = None;
        match slot.state {
            State::InFlight | State::Reading => {
                fill(slot);
                slot.error = error;
                slot.state = State::Done { answered: true };
                let waker = slot.waker.take();
                self.in_flight -= 1;
                self.woken.extend(waker);
                self.push_done(call);
                Some(Answered::Wanted)
            }
            State::Zombie => {
                self.release(call);
                Some(Answered::Unwanted)
            }
            // The deadline had ended the call for its caller, who has not looked yet.
            State::Done { answered: false } => {
                slot.state = State::Done { answered: true };
                self.in_flight -= 1;
                Some(Answered::Unwanted)
            }
            State::Free | State::Building | State::Done { answered: true } => None,
        }
    }

    #[inline]
    fn push_done(&mut self, call: u32) {
        if self.done.len() == self.done.capacity() {
            let slots = &self.slots;
            self.done.retain(|call| {
                let (index, generation) = split_call(*call);
                slots[index].generation == generation && matches!(slots[index].state, State::Done { .. })
            });
        }
        self.done.push_back(call);
    }

    /// Makes a zombie or an answered slot free.
    #[inline]
    fn release(&mut self, call: u32) {
        let (index, _) = split_call(call);
        let slot = &mut self.slots[index];
        if slot.state == State::Zombie {
            self.in_flight -= 1;
        }
        slot.state = State::Free;
        slot.large = None;
        slot.request = None;
        slot.error = None;
        slot.waker = None;
        self.free.push(index as u16);
    }

    /// Whether a call has its outcome; `None` for an id that is not (or no longer) in the table.
    #[inline]
    pub(crate) fn is_done(&mut self, call: u32) -> Option<bool> {
        self.get(call).and_then(|slot| match slot.state {
            State::Zombie => None,
            State::Done { .. } => Some(true),
            _ => Some(false),
        })
    }

    /// Whether there may be calls that are done.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next call that is done, in the order of completion, not looked at before.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<u32> {
        while let Some(call) = self.done.pop_front() {
            if self.is_done(call) == Some(true) {
                return Some(call);
            }
        }
        None
    }

    /// The outcome of a call that is done.
    #[inline]
    pub(crate) fn outcome(&self, call: u32) -> Result<&[u8], CallError> {
        let (index, generation) = split_call(call);
        match self.slots.get(index).filter(|slot| slot.generation == generation) {
            Some(Slot { error: Some(error), .. }) => Err(error.clone()),
            Some(Slot { state: State::Done { .. }, line, line_length, .. }) if *line_length != NOT_INLINE => {
                Ok(&line[..(*line_length as usize).min(INLINE_PAYLOAD)])
            }
            Some(Slot { state: State::Done { .. }, large: Some(buffer), .. }) => Ok(buffer),
            Some(Slot { state: State::Done { .. }, small, .. }) => Ok(small),
            _ => Err(CallError::NotExecuted(Cause::Closed)),
        }
    }

    /// Takes the result of a call that is done, leaving `spare` for the slot's next small result.
    pub(crate) fn take_result(&mut self, call: u32, spare: Vec<u8>) -> Result<Taken<M>, CallError> {
        let Some(slot) = self.get(call).filter(|slot| matches!(slot.state, State::Done { .. })) else {
            return Err(CallError::NotExecuted(Cause::Closed));
        };
        if let Some(error) = slot.error.take() {
            return Err(error);
        }
        Ok(match slot.large.take() {
            _ if slot.line_length != NOT_INLINE => {
                let mut bytes = spare;
                bytes.clear();
                bytes.extend_from_slice(&slot.line[..(slot.line_length as usize).min(INLINE_PAYLOAD)]);
                Taken::Small(bytes)
            }
            Some(buffer) => Taken::Large(buffer),
            None => Taken::Small(std::mem::replace(&mut slot.small, spare)),
        })
    }

    /// The caller is through with a call, done or not.
    #[inline]
    pub(crate) fn forget(&mut self, call: u32) {
        if self.done.front() == Some(&call) {
            self.done.pop_front();
        }
        let Some(slot) = self.get(call) else { return };
        slot.waker = None;
        match slot.state {
            State::Done { answered: true } => self.release(call),
            // One that is being built goes out with its batch all the same.
            State::Done { answered: false } | State::Building | State::InFlight | State::Reading => {
                slot.state = State::Zombie;
                slot.error = None;
            }
            State::Free | State::Zombie => {}
        }
    }

    /// Has a task woken when the call is done.
    pub(crate) fn set_waker(&mut self, call: u32, waker: &Waker) {
        if let Some(slot) = self.get(call)
            && !slot.waker.as_ref().is_some_and(|w| w.will_wake(waker))
        {
            slot.waker = Some(waker.clone());
        }
    }

    /// Ends calls whose deadline has passed; answers the earliest deadline of the others (`u64::MAX` if none).
    /// Calls seen for the first time get their deadline here.
    pub(crate) fn expire(&mut self, now: Nanos) -> Nanos {
        let mut earliest = u64::MAX;
        if self.in_flight == 0 {
            return earliest;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !matches!(slot.state, State::InFlight | State::Building | State::Reading) || slot.timeout == 0
            {
                continue;
            }
            if slot.deadline == 0 {
                slot.deadline = now.saturating_add(slot.timeout);
            }
            if slot.deadline > now || slot.state == State::Reading {
                earliest = earliest.min(slot.deadline);
                continue;
            }
            if slot.state == State::InFlight {
                slot.state = State::Done { answered: false };
                slot.error = Some(CallError::MaybeExecuted(Cause::DeadlineExceeded));
                let call = slot.generation << SLOT_BITS | index as u32;
                let waker = slot.waker.take();
                self.woken.extend(waker);
                self.push_done(call);
            }
        }
        earliest
    }

    /// Ends all calls because the lane is gone. `taken` tells how many messages the server has taken, if it said
    /// so: later calls were not executed, and neither were those that were never sent.
    pub(crate) fn fail(&mut self, cause: Cause, taken: Option<u64>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let call = slot.generation << SLOT_BITS | index as u32;
            match slot.state {
                State::Free | State::Done { answered: true } => {}
                State::Zombie => self.release(call),
                State::Done { answered: false } => {
                    slot.state = State::Done { answered: true };
                    self.in_flight -= 1;
                }
                State::Building | State::InFlight | State::Reading => {
                    let never =
                        slot.state == State::Building || taken.is_some_and(|taken| slot.sequence >= taken);
                    slot.error = Some(if never {
                        CallError::NotExecuted(cause)
                    } else {
                        CallError::MaybeExecuted(cause)
                    });
                    slot.state = State::Done { answered: true };
                    slot.request = None;
                    let waker = slot.waker.take();
                    self.in_flight -= 1;
                    self.woken.extend(waker);
                    self.push_done(call);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::memory::HeapMemory;
    use proptest::prelude::*;

    type Table = Slots<HeapMemory>;

    #[test]
    fn a_window_is_a_window() {
        let mut slots = Table::new(2);
        let (a, b) = (slots.take(0).unwrap(), slots.take(0).unwrap());
        assert_eq!((slots.take(0), slots.in_flight()), (None, 2));
        slots.sent(a, 0);
        slots.sent(b, 1);
        assert!(matches!(slots.answer(b, b"two", None), Some(Answered::Wanted)));
        assert!(slots.answer(b, b"again", None).is_none(), "answered twice");
        assert_eq!(slots.next_done(), Some(b));
        assert_eq!(slots.outcome(b).unwrap(), b"two");
        slots.forget(b);
        let again = slots.take(0).unwrap();
        assert_eq!(split_call(again).0, split_call(b).0, "the same slot");
        assert_ne!(again, b, "another id");
        assert!(slots.answer(b, b"late", None).is_none());
    }

    #[test]
    fn a_call_given_up_keeps_its_slot_until_the_late_answer() {
        let mut slots = Table::new(1);
        let call = slots.take(0).unwrap();
        slots.sent(call, 0);
        slots.forget(call);
        assert_eq!(slots.take(0), None);
        assert!(matches!(slots.answer(call, b"late", None), Some(Answered::Unwanted)));
        assert!(slots.take(0).is_some());
    }

    #[test]
    fn deadlines_end_calls_but_not_their_slots() {
        let mut slots = Table::new(1);
        let call = slots.take(10).unwrap();
        slots.sent(call, 0);
        assert_eq!(slots.expire(100), 110, "the deadline starts with the first look at the clock");
        assert_eq!(slots.is_done(call), Some(false));
        assert_eq!(slots.expire(110), u64::MAX);
        assert_eq!(slots.outcome(call), Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)));
        slots.forget(call);
        assert_eq!(slots.take(0), None, "the server may still answer");
        assert!(matches!(slots.answer(call, b"late", None), Some(Answered::Unwanted)));
        assert!(slots.take(0).is_some());
    }

    #[test]
    fn a_lost_lane_says_what_may_have_happened() {
        let mut slots = Table::new(3);
        let calls: Vec<u32> = (0..3).map(|_| slots.take(0).unwrap()).collect();
        slots.sent(calls[0], 0);
        slots.sent(calls[1], 1);
        slots.fail(Cause::ConnectionLost, Some(1));
        assert_eq!(slots.outcome(calls[0]), Err(CallError::MaybeExecuted(Cause::ConnectionLost)));
        assert_eq!(
            slots.outcome(calls[1]),
            Err(CallError::NotExecuted(Cause::ConnectionLost)),
            "beyond the mark"
        );
        assert_eq!(slots.outcome(calls[2]), Err(CallError::NotExecuted(Cause::ConnectionLost)), "never sent");
    }

    #[test]
    fn generations_wrap() {
        assert!(is_newer(1, 0) && is_newer(0, GENERATION_MASK) && !is_newer(0, 0) && !is_newer(0, 1));
    }

    proptest! {
        /// Whatever happens in whatever order, slots are neither lost nor given out twice.
        #[test]
        fn slots_are_conserved(steps in prop::collection::vec((0u8..7, 0usize..8), 1..400)) {
            let mut slots = Table::new(4);
            let mut live: Vec<u32> = Vec::new();
            let mut now = 1;
            for (what, which) in steps {
                now += 5;
                let chosen = live.get(which % live.len().max(1)).copied();
                match (what, chosen) {
                    (0, _) => {
                        if let Some(call) = slots.take(if which % 2 == 0 { 0 } else { 7 }) {
                            prop_assert!(!live.iter().any(|c| split_call(*c).0 == split_call(call).0));
                            live.push(call);
                        }
                    }
                    (1, Some(call)) => slots.sent(call, 0),
                    (2, Some(call)) if slots.expects(call) => { slots.answer(call, b"x", None); }
                    (3, Some(call)) => {
                        slots.forget(call);
                        if slots.get(call).is_none() {
                            live.retain(|c| *c != call);
                        }
                    }
                    (4, _) => { slots.expire(now); }
                    (5, _) => { slots.next_done(); }
                    (6, _) if which == 0 => slots.fail(Cause::ConnectionLost, None),
                    _ => {}
                }
                live.retain(|c| slots.get(*c).is_some());
                prop_assert_eq!(slots.room() + live.len(), 4);
            }
            slots.fail(Cause::Closed, None);
            for call in live {
                slots.forget(call);
            }
            prop_assert_eq!((slots.room(), slots.in_flight()), (4, 0));
        }
    }
}
