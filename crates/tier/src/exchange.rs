//! The calls of one function of a service, at the node whose process serves it (section 5.1): calls wait for a
//! receiver, receivers wait for a call, and calls that were taken wait for their answer.

use crate::slots::Slots;
use std::collections::VecDeque;

/// A request that waits for a receiver.
pub trait Waiting {
    /// Returns the length in bytes.
    fn length(&self) -> usize;
}

impl Waiting for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }
}

/// The most that one function of a service holds. Over it, callers hear at once that the service is overloaded, and
/// nobody else waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeLimits {
    /// Calls that wait for a receiver.
    pub waiting: usize,
    /// Bytes of the requests of waiting calls. One call may wait in any case.
    pub bytes: usize,
    /// Calls that a receiver has taken and not answered.
    pub taken: u32,
    /// Receivers that wait for a call.
    pub receivers: usize,
}

impl Default for ExchangeLimits {
    fn default() -> Self {
        ExchangeLimits { waiting: 1024, bytes: 16 << 20, taken: 1024, receivers: 64 }
    }
}

/// The result of a change, to be carried out by the caller in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Act<C, R, Q = Vec<u8>> {
    /// A call goes to a receiver.
    Hand {
        /// The receiver.
        receiver: R,
        /// The number under which the call is answered.
        number: u64,
        /// The request.
        request: Q,
    },
    /// The request is longer than the receiver's buffer; the call stays the next one.
    TooLong {
        /// The receiver.
        receiver: R,
        /// The request's length in bytes.
        length: usize,
    },
    /// There is no call, or there are too many receivers.
    Nothing(R),
    /// The caller's time was over before the call was taken: it was not executed.
    Expired(C),
    /// There is no room for the call: it was not executed.
    Overloaded(C),
    /// The call was taken, its caller's time is over, and its place was needed: it may have been executed.
    Forgotten(C),
}

/// The calls of one function: `C` is the obligation to answer one, `R` a receiver that waits, `Q` a request.
#[derive(Debug)]
pub struct Exchange<C, R, Q = Vec<u8>> {
    waiting: VecDeque<(Q, C)>,
    bytes: usize,
    /// Each with the length of its buffer.
    receivers: VecDeque<(R, usize)>,
    taken: Slots<C>,
    limits: ExchangeLimits,
    has_ended: bool,
}

/// Everything that an exchange held when it ended.
#[derive(Debug)]
pub struct Remains<C, R> {
    /// Calls that nobody took: not executed.
    pub waiting: Vec<C>,
    /// Calls that were taken and not answered: maybe executed.
    pub taken: Vec<C>,
    /// Receivers.
    pub receivers: Vec<R>,
}

impl<C, R, Q: Waiting> Exchange<C, R, Q> {
    /// Makes an empty exchange. `draw` should be random, so that numbers of other exchanges are refused.
    pub fn new(limits: ExchangeLimits, draw: u32) -> Self {
        let (waiting, receivers) = (VecDeque::new(), VecDeque::new());
        let taken = Slots::new(limits.taken, draw);
        Exchange { waiting, bytes: 0, receivers, taken, limits, has_ended: false }
    }

    /// Adds a call. `is_over` says whether a caller's time is over.
    pub fn offer(&mut self, request: Q, call: C, is_over: impl Fn(&C) -> bool) -> Vec<Act<C, R, Q>> {
        let mut acts = Vec::new();
        if !self.has_room(request.length()) {
            let (over, waiting) = self.waiting.drain(..).partition(|(_, call)| is_over(call));
            self.waiting = waiting;
            let over: VecDeque<(Q, C)> = over;
            self.bytes = self.waiting.iter().map(|(request, _)| request.length()).sum();
            acts.extend(over.into_iter().map(|(_, call)| Act::Expired(call)));
            if !self.has_room(request.length()) {
                acts.push(Act::Overloaded(call));
                return acts;
            }
        }
        self.bytes += request.length();
        self.waiting.push_back((request, call));
        self.settle(&mut acts, is_over);
        acts
    }

    fn has_room(&self, length: usize) -> bool {
        let fits = self.waiting.len() < self.limits.waiting && self.bytes + length <= self.limits.bytes;
        !self.has_ended && (fits || self.waiting.is_empty())
    }

    /// Adds a receiver with a buffer of `room` bytes. If no call waits and it does not want to wait, it gets nothing.
    pub fn receive(
        &mut self,
        receiver: R,
        room: usize,
        waits: bool,
        is_over: impl Fn(&C) -> bool,
    ) -> Vec<Act<C, R, Q>> {
        let mut acts = Vec::new();
        if self.has_ended || self.receivers.len() >= self.limits.receivers {
            acts.push(Act::Nothing(receiver));
            return acts;
        }
        self.receivers.push_back((receiver, room));
        self.settle(&mut acts, is_over);
        // Calls and receivers never wait at the same time, so one that is left is this one.
        if !waits && let Some((receiver, _)) = self.receivers.pop_back() {
            acts.push(Act::Nothing(receiver));
        }
        acts
    }

    /// Removes receivers, as those of a connection that has ended.
    pub fn leave(&mut self, leaves: impl Fn(&R) -> bool) -> Vec<R> {
        let (gone, stay) =
            std::mem::take(&mut self.receivers).into_iter().partition(|(receiver, _)| leaves(receiver));
        self.receivers = stay;
        let gone: VecDeque<(R, usize)> = gone;
        gone.into_iter().map(|(receiver, _)| receiver).collect()
    }

    fn settle(&mut self, acts: &mut Vec<Act<C, R, Q>>, is_over: impl Fn(&C) -> bool) {
        while let (Some((request, call)), Some((_, room))) = (self.waiting.front(), self.receivers.front()) {
            if is_over(call) {
                let Some((request, call)) = self.waiting.pop_front() else { return };
                self.bytes -= request.length();
                acts.push(Act::Expired(call));
                continue;
            }
            let length = request.length();
            if length > *room {
                let Some((receiver, _)) = self.receivers.pop_front() else { return };
                acts.push(Act::TooLong { receiver, length });
                continue;
            }
            let (Some((request, call)), Some((receiver, room))) =
                (self.waiting.pop_front(), self.receivers.pop_front())
            else {
                return;
            };
            self.bytes -= length;
            match self.take(call, acts, &is_over) {
                Ok(number) => acts.push(Act::Hand { receiver, number, request }),
                Err(call) => {
                    // It took too many without an answer. The next call may find room.
                    acts.push(Act::Overloaded(call));
                    self.receivers.push_front((receiver, room));
                }
            }
        }
    }

    fn take(
        &mut self,
        call: C,
        acts: &mut Vec<Act<C, R, Q>>,
        is_over: impl Fn(&C) -> bool,
    ) -> Result<u64, C> {
        let call = match self.taken.insert(call) {
            Ok(number) => return Ok(number),
            Err(call) => call,
        };
        let over = self.taken.remove_all_where(is_over);
        if over.is_empty() {
            return Err(call);
        }
        acts.extend(over.into_iter().map(Act::Forgotten));
        self.taken.insert(call)
    }

    /// Returns the obligation to answer a call that was handed out.
    pub fn taken(&self, number: u64) -> Option<&C> {
        self.taken.get(number)
    }

    /// Takes the obligation to answer a call that was handed out; `None` if it was answered or forgotten, and for the
    /// number of another exchange.
    pub fn answer(&mut self, number: u64) -> Option<C> {
        self.taken.remove(number)
    }

    /// Returns the receivers that wait.
    pub fn receivers(&self) -> impl Iterator<Item = &R> {
        self.receivers.iter().map(|(receiver, _)| receiver)
    }

    /// Returns the numbers of waiting calls, taken calls and waiting receivers.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.waiting.len(), self.taken.len(), self.receivers.len())
    }

    /// Ends the exchange: it is empty and takes nothing any more.
    pub fn end(&mut self) -> Remains<C, R> {
        (self.bytes, self.has_ended) = (0, true);
        Remains {
            waiting: self.waiting.drain(..).map(|(_, call)| call).collect(),
            taken: self.taken.take_all(),
            receivers: self.receivers.drain(..).map(|(receiver, _)| receiver).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
