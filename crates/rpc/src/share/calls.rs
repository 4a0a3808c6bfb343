//! The calls of one seat: which are under way, and the outcomes that the thread has not released.

use crate::client::CallId;
use crate::error::{CallError, Cause};
use crate::path::call_id::{SLOT_BITS, split_call};
use dunlin_fabric::Nanos;

/// A call's state in its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The policy has the call under this number.
    UnderWay(u64),
    Done,
}

#[derive(Debug)]
struct Slot {
    /// The id of the call that has the slot, or had it last.
    call: u32,
    state: State,
    timeout: Nanos,
    /// 0 until the first wait, so that submitting reads no clock.
    deadline: Nanos,
    error: Option<CallError>,
    /// The result. Its capacity is kept for the next call.
    bytes: Vec<u8>,
}

/// The largest capacity that a slot keeps for the next result, in bytes.
const KEPT: usize = 64 << 10;

/// The table of calls, allocated once, with one slot for each call of the window.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Box<[Slot]>,
    free: Vec<u16>,
    /// The slots of calls under way, oldest first.
    under_way: Vec<u16>,
    /// The slots of finished calls in order of completion, each reported once.
    done: std::collections::VecDeque<(u16, u32)>,
}

impl Calls {
    /// Creates a table for `window` calls, at most 1024.
    pub(crate) fn new(window: u16) -> Self {
        let slot = |index: u16| Slot {
            call: index.into(),
            state: State::Free,
            timeout: 0,
            deadline: 0,
            error: None,
            bytes: Vec::new(),
        };
        let window = window.min(1 << SLOT_BITS.min(10));
        Calls {
            slots: (0..window).map(slot).collect(),
            free: (0..window).rev().collect(),
            under_way: Vec::with_capacity(window.into()),
            done: std::collections::VecDeque::with_capacity(window.into()),
        }
    }

    /// The number of calls that can be made now.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// The number of calls under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.under_way.len()
    }

    /// The policy's numbers of the calls under way, oldest first.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = u64> + '_ {
        self.under_way.iter().filter_map(|index| match self.slots[usize::from(*index)].state {
            State::UnderWay(call) => Some(call),
            State::Free | State::Done => None,
        })
    }

    /// Enters a call that the policy has under the number `call`; `None` without room.
    pub(crate) fn enter(&mut self, call: u64, timeout: Nanos) -> Option<CallId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.call = slot.call.wrapping_add(1 << SLOT_BITS);
        slot.state = State::UnderWay(call);
        (slot.timeout, slot.deadline) = (timeout, 0);
        self.under_way.push(index);
        Some(CallId { lane: 0, call: slot.call })
    }

    fn get(&self, id: CallId) -> Option<&Slot> {
        let slot = self.slots.get(split_call(id.call).0)?;
        (slot.call == id.call && slot.state != State::Free).then_some(slot)
    }

    /// Returns the policy's number of a call under way.
    pub(crate) fn number(&self, id: CallId) -> Option<u64> {
        match self.get(id)?.state {
            State::UnderWay(call) => Some(call),
            State::Free | State::Done => None,
        }
    }

    /// Offers each call under way to `ended`, which fills in the outcome and returns true if the call is over.
    /// Returns the number of calls that are over.
    pub(crate) fn sweep(&mut self, mut ended: impl FnMut(u64, &mut Outcome<'_>) -> bool) -> usize {
        let before = self.under_way.len();
        let (slots, done) = (&mut self.slots, &mut self.done);
        self.under_way.retain(|index| {
            let slot = &mut slots[usize::from(*index)];
            let State::UnderWay(call) = slot.state else { return false };
            let mut outcome = Outcome { bytes: &mut slot.bytes, error: &mut slot.error };
            if !ended(call, &mut outcome) {
                return true;
            }
            slot.state = State::Done;
            done.push_back((*index, slot.call));
            false
        });
        before - self.under_way.len()
    }

    /// Starts the time of calls whose time does not run yet, and offers those that are past their deadline to
    /// `give_up`, which returns the error, or `None` if the call has ended otherwise. Returns the earliest
    /// deadline of the others.
    pub(crate) fn expire(&mut self, now: Nanos, mut give_up: impl FnMut(u64) -> Option<CallError>) -> Nanos {
        let mut earliest = Nanos::MAX;
        let (slots, done) = (&mut self.slots, &mut self.done);
        self.under_way.retain(|index| {
            let slot = &mut slots[usize::from(*index)];
            let State::UnderWay(call) = slot.state else { return false };
            if slot.timeout == 0 {
                return true;
            }
            if slot.deadline == 0 {
                slot.deadline = now.saturating_add(slot.timeout);
            }
            if slot.deadline > now {
                earliest = earliest.min(slot.deadline);
                return true;
            }
            let Some(error) = give_up(call) else {
                // Its outcome is there.
                earliest = now;
                return true;
            };
            slot.error = Some(error);
            slot.state = State::Done;
            done.push_back((*index, slot.call));
            false
        });
        earliest
    }

    /// Returns whether a call has its outcome. True for an id that names no call.
    #[inline]
    pub(crate) fn is_done(&self, id: CallId) -> bool {
        self.get(id).is_none_or(|slot| slot.state == State::Done)
    }

    /// Returns whether some call has finished and was not reported yet.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the next finished call in order of completion, each call once.
    pub(crate) fn next_done(&mut self) -> Option<CallId> {
        while let Some((index, call)) = self.done.pop_front() {
            let slot = &self.slots[usize::from(index)];
            if slot.call == call && slot.state == State::Done {
                return Some(CallId { lane: 0, call });
            }
        }
        None
    }

    /// Returns the outcome of a finished call.
    pub(crate) fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        match self.get(id) {
            Some(Slot { state: State::Done, error: Some(error), .. }) => Err(error.clone()),
            Some(Slot { state: State::Done, bytes, .. }) => Ok(bytes),
            _ => Err(CallError::NotExecuted(Cause::Closed)),
        }
    }

    /// Releases a call, finished or not.
    pub(crate) fn forget(&mut self, id: CallId) {
        let index = split_call(id.call).0;
        let Some(slot) = self.slots.get_mut(index) else { return };
        if slot.call != id.call || slot.state == State::Free {
            return;
        }
        if slot.state != State::Done {
            self.under_way.retain(|other| usize::from(*other) != index);
        } else if self.done.front() == Some(&(index as u16, id.call)) {
            self.done.pop_front();
        }
        slot.state = State::Free;
        slot.error = None;
        if slot.bytes.capacity() > KEPT {
            slot.bytes = Vec::new();
        }
        self.free.push(index as u16);
        // A stale entry stays for each call that was released before it was reported.
        if self.done.len() >= self.slots.len() {
            let slots = &self.slots;
            self.done.retain(|(index, call)| {
                let slot = &slots[usize::from(*index)];
                slot.call == *call && slot.state == State::Done
            });
        }
    }

    /// Passes the policy's number of each call under way to `each`, and forgets all calls.
    pub(crate) fn abandon(&mut self, mut each: impl FnMut(u64)) {
        for index in self.under_way.drain(..) {
            if let State::UnderWay(call) = self.slots[usize::from(index)].state {
                each(call);
            }
        }
    }
}

/// The place for the outcome of a call.
pub(crate) struct Outcome<'a> {
    bytes: &'a mut Vec<u8>,
    error: &'a mut Option<CallError>,
}

impl Outcome<'_> {
    /// Copies the outcome. Allocates only for a result longer than all before it in that slot.
    pub(crate) fn set(&mut self, outcome: Result<&[u8], CallError>) {
        match outcome {
            Ok(bytes) => {
                self.bytes.clear();
                self.bytes.extend_from_slice(bytes);
            }
            Err(error) => *self.error = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_once_and_keep_their_outcome_until_they_are_released() {
        let mut calls = Calls::new(2);
        let (first, second) = (calls.enter(10, 0).unwrap(), calls.enter(11, 50).unwrap());
        assert_eq!((calls.enter(12, 0), calls.in_flight(), calls.room()), (None, 2, 0));
        assert_ne!(first.index(), second.index());
        let ended = calls.sweep(|call, outcome| {
            outcome.set(Ok(b"ten"));
            call == 10
        });
        assert_eq!((ended, calls.next_done(), calls.next_done()), (1, Some(first), None));
        assert_eq!(calls.outcome(first), Ok(&b"ten"[..]));
        // The time of the second call begins with the first look.
        assert_eq!(calls.expire(100, |_| None), 150);
        assert_eq!(calls.expire(150, |_| None), 150, "the outcome is there and has to be taken");
        let late = CallError::NotExecuted(Cause::DeadlineExceeded);
        assert_eq!(calls.expire(150, |call| (call == 11).then(|| late.clone())), Nanos::MAX);
        assert_eq!((calls.is_done(second), calls.outcome(second)), (true, Err(late)));
        calls.forget(second);
        assert_eq!((calls.next_done(), calls.room()), (None, 1));
        calls.forget(first);
        assert_eq!(calls.outcome(first), Err(CallError::NotExecuted(Cause::Closed)));
        let third = calls.enter(13, 0).unwrap();
        assert!(!calls.is_done(third) && calls.is_done(first));
        calls.forget(third);
        assert_eq!((calls.in_flight(), calls.room()), (0, 2));
    }

    /// Calls that nobody asks for do not let the list of finished calls grow.
    #[test]
    fn the_list_of_finished_calls_is_bounded() {
        let mut calls = Calls::new(4);
        for round in 0..100 {
            let kept = calls.enter(round, 0).unwrap();
            let other = calls.enter(round, 0).unwrap();
            assert_eq!(
                calls.sweep(|_, outcome| {
                    outcome.set(Ok(&[]));
                    true
                }),
                2
            );
            calls.forget(other);
            calls.forget(kept);
            assert!(calls.done.len() <= 4 && calls.room() == 4);
        }
    }
}
