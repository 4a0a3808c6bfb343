//! The passage of a call of a process, or of a client of the engine, through its node (section 5.1): it waits for its turn,
//! its long request goes into the ring, its message goes out, and its long result comes out of the ring. No thread waits
//! for the call; threads of the [lanes](crate::lanes) wait for long payloads.

use crate::calling::{CallRequest, CallRoom, encode};
use crate::error::OperationError;
use crate::forward::Done;
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
pub(crate) struct Forwarded {
    pub(crate) head: CallHead,
    /// A message, and the place in it at which the request begins.
    pub(crate) payload: Vec<u8>,
    pub(crate) at: usize,
    /// The longest result that the caller takes, in bytes.
    pub(crate) room: usize,
}

impl Forwarded {
    fn request(&self) -> &[u8] {
        &self.payload[self.at..]
    }

    /// Returns the bytes that count for the quality of service.
    pub(crate) fn length(&self) -> u64 {
        (self.head.length() + self.request().len()) as u64
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
    done: Done,
}

impl<F: Fabric> Node<F> {
    /// Has a call go out when its turn has come, and `done` take its outcome. Does not block.
    pub(crate) fn forward_in_turn(
        self: &Arc<Self>,
        (to, turn, class): (NodeId, CallTurn, Class),
        call: Forwarded,
        time: Duration,
        done: Done,
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
    fn go_out(mut self, call: Forwarded) {
        self.since = self.node.qos.call_goes_out(self.node.fabric.host());
        let room = self.node.rings.room_for(self.to, call.room);
        if call.request().len() >= FROM {
            let placed = self.node.place_at_once(self.to, &self.class, call.request(), room);
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
    fn write(self, call: Forwarded, room: usize, runs: bool) {
        let is_late = self.node.fabric.host().now() >= self.until;
        let mut request = CallRequest::Bytes(call.request());
        let placed = match runs && !is_late {
            true => self.node.place_call(self.to, &self.class, &mut request, room, self.until),
            false => None,
        };
        if !runs {
            tracing::debug!(target: "dunlin::tier", node = self.node.name_of(self.to), "many requests wait for the ring: one travels in its message");
            self.node.rings.count_message(self.to);
        }
        self.send(call, placed);
    }

    /// Sends the message of a call.
    fn send(self, mut call: Forwarded, placed: Option<Placed>) {
        let message = encode(&mut call.head, placed.as_ref(), &call.payload[call.at..]);
        // The request lies in the message or in the ring now.
        drop(call);
        let node = Arc::clone(&self.node);
        let left = Duration::from_nanos(self.until.saturating_sub(node.fabric.host().now()));
        let link = (self.to, self.turn.link);
        node.forward(
            link,
            SERVICE_CALL,
            &message,
            left,
            Box::new(move |outcome| self.answered(placed, outcome)),
        );
    }

    /// The message of the call has an answer, or has failed.
    fn answered(self, placed: Option<Placed>, outcome: Result<Vec<u8>, CallError>) {
        let Some(placed) = placed else {
            if let Ok(result) = &outcome {
                self.node.rings.note_result(self.to, result.len());
            }
            return self.end(outcome);
        };
        let mut answer = match outcome {
            Ok(answer) if placed.place.room > 0 => answer,
            outcome => {
                if let Ok(result) = &outcome {
                    self.node.rings.note_result(self.to, result.len());
                }
                self.node.leave_range(placed, outcome.as_ref().map_or_else(has_ended, |_| true));
                return self.end(outcome);
            }
        };
        match CallAnswer::parse(&answer) {
            Ok(CallAnswer::Here(result)) => {
                let head = answer.len() - result.len();
                self.node.rings.note_result(self.to, result.len());
                self.node.leave_range(placed, true);
                drop(answer.drain(..head));
                self.end(Ok(answer));
            }
            Ok(CallAnswer::InRing(length)) if length <= placed.place.room => {
                let length = length as usize;
                match self.node.read_at_once(&placed, &self.class, (answer, length)) {
                    Some(read) => self.end_read(placed, read),
                    None => self.on_lane(true, move |passage, runs| passage.read(placed, length, runs)),
                }
            }
            _ => {
                self.node.leave_range(placed, false);
                self.end(Err(CallError::Executed(Cause::ProtocolViolation)));
            }
        }
    }

    /// Reads a long result out of the ring. Blocks.
    fn read(self, placed: Placed, length: usize, runs: bool) {
        if !runs {
            self.node.leave_range(placed, false);
            return self.end(Err(CallError::Executed(Cause::Closed)));
        }
        let mut result = vec![0; length];
        let into = (&mut CallRoom::Bytes(&mut result), length);
        let read = self.node.read_range(&placed, &self.class, into, self.until);
        self.end_read(placed, read.map(|()| result));
    }

    /// A long result was read, or not.
    fn end_read(self, placed: Placed, read: Result<Vec<u8>, OperationError>) {
        let node = &self.node;
        node.leave_range(placed, read.is_ok());
        let outcome = read.map_err(|error| {
            tracing::debug!(target: "dunlin::tier", node = node.name_of(self.to), %error, "a result was not read");
            let is_late = node.fabric.host().now() >= self.until;
            CallError::Executed(if is_late { Cause::DeadlineExceeded } else { Cause::ConnectionLost })
        });
        self.end(outcome);
    }

    fn end(self, outcome: Result<Vec<u8>, CallError>) {
        let Passage { node, turn, since, done, .. } = self;
        node.qos.end_call(node.fabric.host(), turn, since.filter(|_| outcome.is_ok()));
        done(outcome);
    }
}

/// Returns whether the serving node does not use the payloads of a failed call any more.
pub(crate) fn has_ended(error: &CallError) -> bool {
    matches!(error, CallError::Application { .. }) || error.was_executed() == Some(false)
}
