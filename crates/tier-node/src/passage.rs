//! The passage of a call of a process, or of a client of the engine, through its node (section 5.1): it waits for its turn,
//! its long request goes into the ring, its message goes out, and its long result comes out of the ring. No thread waits
//! for the call; threads of the [lanes](crate::lanes) wait for long payloads.

use crate::buffer::Lent;
use crate::calling::{CallRequest, CallRoom, encode};
use crate::error::OperationError;
use crate::item::Transfer;
use crate::node::Node;
use crate::qos::{CallTurn, Class};
use crate::rings::{FROM, Placed, TRY_AGAIN};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use dunlin_rpc::{CallError, Cause};
use dunlin_tier::call::SERVICE_CALL;
use dunlin_tier::{CallAnswer, CallHead, NodeId};
use std::sync::Arc;
use std::time::Duration;

/// A call that a node hands on.
pub(crate) struct Forwarded<F: Fabric> {
    pub(crate) head: CallHead,
    pub(crate) request: Source<F>,
    pub(crate) room: Sink<F>,
}

/// The request of a call that a node hands on.
pub(crate) enum Source<F: Fabric> {
    /// In a message, from this place on.
    Message(Vec<u8>, usize),
    /// In a buffer of the process, from which the NIC takes a long one.
    Buffer(Lent<F>),
}

impl<F: Fabric> Source<F> {
    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Source::Message(bytes, at) => bytes.len() - at,
            Source::Buffer(lent) => lent.length(),
        }
    }
}

/// The room of the caller for the result of a call that a node hands on.
pub(crate) enum Sink<F: Fabric> {
    /// The result goes into an answer. The caller takes this many bytes at most.
    Answer(usize),
    /// A buffer of the process, into which the NIC puts a long one.
    Buffer(Lent<F>),
}

impl<F: Fabric> Sink<F> {
    /// Returns the longest result that the caller takes, in bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Sink::Answer(length) => *length,
            Sink::Buffer(lent) => lent.length(),
        }
    }
}

/// The result of a call that a node handed on.
pub(crate) struct Delivered {
    /// The result; nothing if it lies in the buffer of the process, or is too long for that.
    pub(crate) bytes: Vec<u8>,
    /// Its length in bytes.
    pub(crate) length: usize,
}

/// Takes the outcome of a call that a node handed on.
pub(crate) type Ended = Box<dyn FnOnce(Result<Delivered, CallError>) + Send>;

impl<F: Fabric> Forwarded<F> {
    /// Returns the bytes that count for the quality of service.
    pub(crate) fn length(&self) -> u64 {
        (self.head.length() + self.request.length()) as u64
    }
}

/// The means to carry a call on, and to end it.
struct Passage<F: Fabric> {
    node: Arc<Node<F>>,
    to: NodeId,
    turn: CallTurn,
    class: Class,
    /// The time at which it went out, if anybody looks.
    since: Option<Nanos>,
    until: Nanos,
    done: Ended,
}

impl<F: Fabric> Node<F> {
    /// Has a call go out when its turn has come, and `done` take its outcome. Does not block.
    pub(crate) fn forward_in_turn(
        self: &Arc<Self>,
        (to, turn, class): (NodeId, CallTurn, Class),
        call: Forwarded<F>,
        time: Duration,
        done: Ended,
    ) {
        let host = self.fabric.host();
        let until = host.now().saturating_add(nanos(time));
        let passage = Passage { node: Arc::clone(self), to, turn, class, since: None, until, done };
        match turn.from {
            None => passage.go_out(call),
            Some(from) => {
                self.delays.at(host, from.min(until), Box::new(move || passage.go_out(call)));
            }
        }
    }
}

impl<F: Fabric> Passage<F> {
    /// Has a thread that may block run a part of the passage; the part hears whether one does.
    fn on_lane(self, waits: bool, part: impl FnOnce(Self, bool) + Send + 'static) {
        let (node, key) = (Arc::clone(&self.node), (self.to, self.class.priority));
        let job = Box::new(move |runs| part(self, runs));
        if let Err(job) = node.lanes.run(node.fabric.host(), key, job, waits) {
            job(false);
        }
    }

    /// The turn of the call has come.
    fn go_out(mut self, call: Forwarded<F>) {
        self.since = self.node.qos.call_goes_out(self.node.fabric.host());
        let room = self.node.rings.room_for(self.to, call.room.length());
        if call.request.length() >= FROM {
            let transfer = match &call.request {
                Source::Message(bytes, at) => Some(Transfer::Write(&bytes[*at..])),
                Source::Buffer(lent) => lent.only_part().map(Transfer::WriteFrom),
            };
            let placed =
                transfer.and_then(|transfer| self.node.place_at_once(self.to, &self.class, transfer, room));
            if placed.is_some() {
                return self.send(call, placed);
            }
            return self.on_lane(false, move |passage, runs| passage.write(call, room, runs));
        }
        let placed = (room > 0).then(|| self.take_room(room)).flatten();
        self.send(call, placed);
    }

    /// Takes a range for a result. Without one, the result comes in its message, and the ring grows for the next ones.
    fn take_room(&self, room: usize) -> Option<Placed> {
        let (node, to) = (&self.node, self.to);
        let wanted = match node.take_room(to, room) {
            Ok(placed) => return Some(placed),
            Err(wanted) => wanted?,
        };
        let (own, timeout) = (Arc::clone(node), nanos(node.config.timeout));
        let grow = move |runs| match runs {
            true => {
                let until = own.fabric.host().now().saturating_add(timeout);
                own.grow_ring(to, (wanted, room as u64), until);
            }
            false => own.keep_ring(to, TRY_AGAIN),
        };
        if let Err(grow) =
            node.lanes.run(node.fabric.host(), (to, self.class.priority), Box::new(grow), false)
        {
            grow(false);
        }
        None
    }

    /// Writes a long request into the ring, and sends the message of the call. Blocks.
    fn write(self, call: Forwarded<F>, room: usize, runs: bool) {
        let is_late = self.node.fabric.host().now() >= self.until;
        let (to, class, until) = (self.to, &self.class, self.until);
        let placed = match &call.request {
            _ if !runs || is_late => None,
            Source::Message(bytes, at) => {
                self.node.place_call(to, class, &mut CallRequest::Bytes(&bytes[*at..]), room, until)
            }
            Source::Buffer(lent) => self.node.place_lent(to, class, lent, room, until),
        };
        if !runs {
            tracing::debug!(target: "dunlin::tier", node = self.node.name_of(to), "many requests wait for the ring: one travels in its message");
            self.node.rings.count_message(to);
        }
        self.send(call, placed);
    }

    /// Sends the message of a call.
    fn send(self, call: Forwarded<F>, placed: Option<Placed>) {
        let Forwarded { mut head, request, room } = call;
        let message = match &request {
            Source::Message(bytes, at) => encode(&mut head, placed.as_ref(), &bytes[*at..]),
            Source::Buffer(_) if placed.as_ref().is_some_and(|placed| placed.place.request.is_some()) => {
                encode(&mut head, placed.as_ref(), &[])
            }
            Source::Buffer(lent) => encode(&mut head, placed.as_ref(), &lent.to_vec()),
        };
        // The request lies in the message or in the ring now.
        drop((head, request));
        let node = Arc::clone(&self.node);
        let left = Duration::from_nanos(self.until.saturating_sub(node.fabric.host().now()));
        let link = (self.to, self.turn.link);
        let answered = move |outcome| self.answered(room, placed, outcome);
        node.forward(link, SERVICE_CALL, &message, left, Box::new(answered));
    }

    /// The message of the call has an answer, or has failed.
    fn answered(self, room: Sink<F>, placed: Option<Placed>, outcome: Result<Vec<u8>, CallError>) {
        let Some(placed) = placed else {
            if let Ok(result) = &outcome {
                self.node.rings.note_result(self.to, result.len());
            }
            return self.deliver(&room, outcome);
        };
        let mut answer = match outcome {
            Ok(answer) if placed.place.room > 0 => answer,
            outcome => {
                if let Ok(result) = &outcome {
                    self.node.rings.note_result(self.to, result.len());
                }
                self.node.leave_range(placed, outcome.as_ref().map_or_else(has_ended, |_| true));
                return self.deliver(&room, outcome);
            }
        };
        match CallAnswer::parse(&answer) {
            Ok(CallAnswer::Here(result)) => {
                let head = answer.len() - result.len();
                self.node.rings.note_result(self.to, result.len());
                self.node.leave_range(placed, true);
                drop(answer.drain(..head));
                self.deliver(&room, Ok(answer));
            }
            Ok(CallAnswer::InRing(length)) if length <= placed.place.room => {
                self.fetch((room, answer), placed, length as usize);
            }
            _ => {
                self.node.leave_range(placed, false);
                self.end(Err(CallError::Executed(Cause::ProtocolViolation)));
            }
        }
    }

    /// A result lies in the ring. It is read at once, or by a thread of the lane. The message of the answer may have the
    /// result's memory.
    fn fetch(self, (room, mut bytes): (Sink<F>, Vec<u8>), placed: Placed, length: usize) {
        bytes.clear();
        let read = match &room {
            Sink::Answer(_) => {
                bytes.resize(length, 0);
                self.node.read_at_once(&placed, &self.class, Transfer::Read(&mut bytes))
            }
            Sink::Buffer(lent) => {
                let part = lent.only_part().and_then(|range| range.part(0, length));
                let into = part.map(Transfer::ReadInto);
                into.and_then(|into| self.node.read_at_once(&placed, &self.class, into))
            }
        };
        match read {
            Some(read) => self.end_read(placed, read.map(|()| Delivered { bytes, length })),
            None => {
                self.on_lane(true, move |passage, runs| passage.read((room, bytes), placed, length, runs))
            }
        }
    }

    /// Reads a long result out of the ring. Blocks.
    fn read(self, (room, mut bytes): (Sink<F>, Vec<u8>), placed: Placed, length: usize, runs: bool) {
        if !runs {
            self.node.leave_range(placed, false);
            return self.end(Err(CallError::Executed(Cause::Closed)));
        }
        let read = match &room {
            Sink::Answer(_) => {
                let into = (&mut CallRoom::Bytes(&mut bytes), length);
                self.node.read_range(&placed, &self.class, into, self.until)
            }
            Sink::Buffer(lent) => self.node.read_lent(&placed, &self.class, (lent, length), self.until),
        };
        self.end_read(placed, read.map(|()| Delivered { bytes, length }));
    }

    /// A long result was read, or not.
    fn end_read(self, placed: Placed, read: Result<Delivered, OperationError>) {
        let node = &self.node;
        node.leave_range(placed, read.is_ok());
        let outcome = read.map_err(|error| {
            tracing::debug!(target: "dunlin::tier", node = node.name_of(self.to), %error, "a result was not read");
            let is_late = node.fabric.host().now() >= self.until;
            CallError::Executed(if is_late { Cause::DeadlineExceeded } else { Cause::ConnectionLost })
        });
        self.end(outcome);
    }

    /// Ends the call with a result that came in its message.
    fn deliver(self, room: &Sink<F>, outcome: Result<Vec<u8>, CallError>) {
        self.end(outcome.map(|mut bytes| {
            let length = bytes.len();
            if let Sink::Buffer(lent) = room {
                if length <= lent.length() {
                    lent.copy_in(&bytes);
                }
                bytes.clear();
            }
            Delivered { bytes, length }
        }));
    }

    fn end(self, outcome: Result<Delivered, CallError>) {
        let Passage { node, turn, since, done, .. } = self;
        node.qos.end_call(node.fabric.host(), turn, since.filter(|_| outcome.is_ok()));
        done(outcome);
    }
}

/// Returns whether the serving node does not use the payloads of a failed call any more.
pub(crate) fn has_ended(error: &CallError) -> bool {
    matches!(error, CallError::Application { .. }) || error.was_executed() == Some(false)
}
