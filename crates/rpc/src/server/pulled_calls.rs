//! Held calls: the thread that runs a worker takes and answers them itself, without a lock or another thread.

use super::dispatch::{Call, Dispatcher};
use super::lane::ServerLane;
use super::worker::Worker;
use crate::path::{Cx, Violation};
use dunlin_fabric::{Buffer, Fabric, Host, Link, Work};
use dunlin_wire::Status;
use std::collections::VecDeque;

/// Capacity up to which copies keep their memory for reuse, in bytes.
const KEPT_ROOM: usize = 64 * 1024;
/// The most copies kept for reuse.
const KEPT_COPIES: usize = 1024;

/// A client as known to one server thread. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    pub(crate) lane: u16,
    pub(crate) serial: u32,
}

/// A call that is not taken yet.
#[derive(Debug)]
struct Waiting {
    call: Call,
    payload: Vec<u8>,
}

/// The held calls of one lane; the window bounds them.
#[derive(Debug, Default)]
pub(crate) struct HeldLane {
    waiting: VecDeque<Waiting>,
    /// Taken and unanswered calls, the oldest first.
    taken: VecDeque<Call>,
    /// The lane is in the list of lanes with waiting calls.
    listed: bool,
}

/// A worker's state of held calls.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Lanes with waiting calls, and their serial numbers; served round-robin.
    turns: VecDeque<(u16, u32)>,
    /// Buffers of earlier copies, for reuse.
    copies: Vec<Vec<u8>>,
}

impl Held {
    /// Removes a lane that is gone.
    pub(super) fn forget(&mut self, lane: u16) {
        self.turns.retain(|(index, _)| *index != lane);
    }

    fn give_back(&mut self, mut copy: Vec<u8>) {
        if copy.capacity() <= KEPT_ROOM && self.copies.len() < KEPT_COPIES {
            copy.clear();
            self.copies.push(copy);
        }
    }
}

/// The reason why no message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The lane does not exist any more.
    Gone,
    /// The buffer is too short for the message, which has this many bytes and stays in the queue.
    TooLong(usize),
}

/// The reason why a message was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAnswered {
    /// The lane does not exist any more.
    Gone,
    /// All taken calls are answered.
    NothingTaken,
    /// No memory for the answer.
    OutOfMemory,
}

impl<F: Fabric> Dispatcher<F> {
    /// Keeps a request for the thread that runs the worker; returns `false` if the worker holds no calls.
    pub(super) fn hold(&mut self, fabric: &F, lane: &mut ServerLane<F>, call: Call, payload: &[u8]) -> bool {
        let Some(held) = &mut self.held else { return false };
        let mut copy = held.copies.pop().unwrap_or_default();
        copy.extend_from_slice(payload);
        fabric.host().charge(Work::CopyBytes, payload.len() as u32);
        let (index, serial) = (lane.index, lane.serial());
        let of_lane = &mut lane.transfers.make().held;
        of_lane.waiting.push_back(Waiting { call, payload: copy });
        if !std::mem::replace(&mut of_lane.listed, true) {
            held.turns.push_back((index, serial));
        }
        lane.in_service += 1;
        true
    }

    /// Answers a call with the first `size` bytes of a buffer. A long answer is sent from the buffer's
    /// memory, and the buffer gets other memory.
    fn answer_from(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        buffer: &mut Buffer<F::Memory>,
        size: usize,
    ) -> Result<Result<(), Violation>, NotAnswered> {
        if size <= self.small_limit(lane) {
            return Ok(self.answer_small(cx, lane, call, Status::Ok, &buffer[..size]));
        }
        let exports = &mut lane.transfers.make().exports;
        let (reserved, can_send) =
            (exports.reserve_to_fill(cx.fabric, buffer.len()), exports.can_send(buffer));
        let mut leaves = reserved.map_err(|_| no_memory(lane))?;
        if can_send {
            std::mem::swap(&mut leaves, buffer);
        } else {
            cx.fabric.host().charge(Work::CopyBytes, size as u32);
            leaves[..size].copy_from_slice(&buffer[..size]);
        }
        leaves.set_length(size);
        Ok(self.export(cx, lane, call, Some(leaves), None))
    }
}

impl<F: Fabric> Worker<F> {
    /// Makes the worker hold calls of pulled functions for the thread that runs it.
    pub(crate) fn hold(&mut self) {
        self.dispatcher.held = Some(Box::default());
    }

    /// Returns the next lane with waiting calls, and its serial number, in round-robin order.
    pub(crate) fn next_held(&mut self) -> Option<(u16, u32)> {
        let held = self.dispatcher.held.as_mut()?;
        while let Some((index, serial)) = held.turns.pop_front() {
            let Some(lane) = self.lanes.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            let is_same = lane.serial() == serial;
            let Some(made) = lane.transfers.made_mut().filter(|_| is_same) else { continue };
            let of_lane = &mut made.held;
            if !of_lane.waiting.is_empty() {
                held.turns.push_back((index, serial));
                return Some((index, serial));
            }
            of_lane.listed = false;
        }
        None
    }

    /// Copies the oldest waiting call of a lane into a buffer and returns its length; refuses calls whose
    /// deadline has passed.
    pub(crate) fn take_held(
        &mut self,
        client: ClientId,
        buffer: &mut Buffer<F::Memory>,
    ) -> Result<Option<usize>, NotTaken> {
        loop {
            let Some(lane) = lane_of(&mut self.lanes, client) else { return Err(NotTaken::Gone) };
            let Some(made) = lane.transfers.made_mut() else { return Ok(None) };
            let of_lane = &mut made.held;
            let Some(first) = of_lane.waiting.front() else { return Ok(None) };
            let (Dispatcher { clock, held, .. }, host) = (&mut self.dispatcher, self.fabric.host());
            // The thread that takes calls also does what they ask for.
            clock.time_passed();
            let late = clock.is_past(host, first.call.deadline);
            let size = first.payload.len();
            if !late && size > buffer.len() {
                return Err(NotTaken::TooLong(size));
            }
            let Some(waiting) = of_lane.waiting.pop_front() else { return Ok(None) };
            if !late {
                host.charge(Work::Dispatch, 1);
                host.charge(Work::CopyBytes, size as u32);
                buffer[..size].copy_from_slice(&waiting.payload);
                of_lane.taken.push_back(waiting.call);
            }
            if let Some(held) = held {
                held.give_back(waiting.payload);
            }
            clock.time_passed();
            if !late {
                return Ok(Some(size));
            }
            lane.in_service -= 1;
            let status = Status::DeadlineExceeded;
            let cx = &mut Cx::of(&self.fabric, &mut self.domain);
            let refused = self.dispatcher.answer_small(cx, lane, waiting.call, status, &[]);
            self.after_answer(client.lane, refused);
        }
    }

    /// Reserves a buffer in which an answer to a client is built.
    pub(crate) fn held_memory(
        &mut self,
        client: ClientId,
        length: usize,
    ) -> Result<Buffer<F::Memory>, NotAnswered> {
        let Some(lane) = lane_of(&mut self.lanes, client) else { return Err(NotAnswered::Gone) };
        let exports = &mut lane.transfers.make().exports;
        exports.reserve_to_fill(&self.fabric, length).map_err(|_| no_memory(lane))
    }

    /// Answers the oldest taken call of a lane.
    pub(crate) fn answer_held(
        &mut self,
        client: ClientId,
        buffer: &mut Buffer<F::Memory>,
        size: usize,
    ) -> Result<(), NotAnswered> {
        let Some(lane) = lane_of(&mut self.lanes, client) else { return Err(NotAnswered::Gone) };
        let oldest = lane.transfers.made().and_then(|made| made.held.taken.front().copied());
        let Some(call) = oldest else { return Err(NotAnswered::NothingTaken) };
        let cx = &mut Cx::of(&self.fabric, &mut self.domain);
        let answered = self.dispatcher.answer_from(cx, lane, call, buffer, size)?;
        if let Some(made) = lane.transfers.made_mut() {
            made.held.taken.pop_front();
        }
        lane.in_service = lane.in_service.saturating_sub(1);
        let broke = answered.is_err();
        self.after_answer(client.lane, answered);
        if broke { Err(NotAnswered::Gone) } else { Ok(()) }
    }
}

/// Returns the error for missing memory: the client may be gone although its lane was not checked yet.
fn no_memory<F: Fabric>(lane: &ServerLane<F>) -> NotAnswered {
    if lane.link().is_alive() { NotAnswered::OutOfMemory } else { NotAnswered::Gone }
}

fn lane_of<F: Fabric>(lanes: &mut [Option<ServerLane<F>>], client: ClientId) -> Option<&mut ServerLane<F>> {
    let lane = lanes.get_mut(client.lane as usize)?.as_mut()?;
    (lane.serial() == client.serial).then_some(lane)
}
