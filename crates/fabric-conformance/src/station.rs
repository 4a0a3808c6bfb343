//! A domain with the objects that a role usually needs, and bounded waiting.

use crate::context::MILLISECOND;
use crate::failure::{Failure, Verdict};
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, Arena, Buffer, Completion, CompletionQueueId, CompletionStatus, Data, Fabric, Gather, Host,
    Nanos, Opcode, Operation, PostError, QueuePairConfig, QueuePairId, QueuePairState, ReceiveTarget, Region,
    ThreadDomain, Transport, WaitMode, WorkId, WorkRequest,
};
use std::collections::{BTreeMap, VecDeque};

/// The type of a fabric's completions.
pub type CompletionOf<F> = Completion<<F as Fabric>::Memory>;

/// A domain, its two completion queues, and an arena.
#[derive(Debug)]
pub struct Station<F: Fabric> {
    /// The domain.
    pub domain: F::Domain,
    /// The queue for completions of sends, with events if the fabric has them.
    pub sends: CompletionQueueId,
    /// The queue for completions of RECVs, with events if the fabric has them.
    pub receives: CompletionQueueId,
    /// The arena for buffers.
    pub arena: Arena<F::Memory>,
    fabric: F,
    deadline: Nanos,
    found: BTreeMap<CompletionQueueId, VecDeque<CompletionOf<F>>>,
    polled: Vec<CompletionOf<F>>,
}

/// The form in which the bytes of a message are passed to the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Inline, in this number of parts.
    Inline(usize),
    /// One registered buffer.
    Buffer,
    /// This number of registered buffers.
    Gather(usize),
    /// A range of a region, whose handle is dropped before the message leaves.
    Region,
}

impl Form {
    /// Returns the forms that fit a message of `length` bytes.
    pub fn all(length: usize, max_inline: u32) -> Vec<Form> {
        let mut forms = vec![Form::Buffer, Form::Region];
        if length <= max_inline as usize {
            forms.extend([Form::Inline(1), Form::Inline(3)]);
        }
        if length >= 4 {
            forms.extend([Form::Gather(2), Form::Gather(4)]);
        }
        forms
    }
}

/// Splits bytes into `parts` uneven parts.
fn split(bytes: &[u8], parts: usize) -> Vec<&[u8]> {
    let mut rest = bytes;
    let mut split = Vec::new();
    for left in (1..parts).rev() {
        let (part, after) = rest.split_at(rest.len() / (left + 2));
        split.push(part);
        rest = after;
    }
    split.push(rest);
    split
}

impl<F: Fabric> Station<F> {
    /// Makes a domain with completion queues of `depth`.
    pub fn new(fabric: &F, deadline: Nanos, depth: u32) -> Result<Self, Failure> {
        Station::with_events(fabric, deadline, depth, fabric.capabilities().events)
    }

    /// Makes a domain with completion queues of `depth`, with or without events.
    pub fn with_events(fabric: &F, deadline: Nanos, depth: u32, events: bool) -> Result<Self, Failure> {
        let mut domain = fabric.domain()?;
        let sends = domain.create_completion_queue(depth, events)?;
        let receives = domain.create_completion_queue(depth, events)?;
        let arena = Arena::new(fabric.register(8 << 20, Access::READ)?)?;
        let (fabric, found, polled) = (fabric.clone(), BTreeMap::new(), Vec::new());
        Ok(Station { domain, sends, receives, arena, fabric, deadline, found, polled })
    }

    /// Returns a usual configuration for a transport.
    pub fn config(&self, transport: Transport) -> QueuePairConfig {
        QueuePairConfig { transport, ..QueuePairConfig::reliable(self.sends, self.receives) }
    }

    /// Returns a usual configuration for RC.
    pub fn reliable(&self) -> QueuePairConfig {
        self.config(Transport::ReliableConnection)
    }

    /// Returns a buffer with these bytes.
    pub fn buffer(&self, bytes: &[u8]) -> Result<Buffer<F::Memory>, Failure> {
        let mut buffer = self.arena.reserve(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Puts bytes into the given form and passes them to `post`.
    pub fn in_form<T>(
        &mut self,
        form: Form,
        bytes: &[u8],
        post: impl FnOnce(&mut Self, Data<'_, F::Memory>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match form {
            Form::Inline(parts) => post(self, Data::Inline(&split(bytes, parts))),
            Form::Buffer => {
                let buffer = self.buffer(bytes)?;
                post(self, Data::Buffer(buffer))
            }
            Form::Gather(parts) => {
                let mut gather = Gather::default();
                for part in split(bytes, parts) {
                    gather.push(self.buffer(part)?).map_err(|_| Failure::new("a gather takes four"))?;
                }
                post(self, Data::Gather(gather))
            }
            Form::Region => {
                // Memory that peers may write has another registration than memory that they may not.
                let access = if bytes.len().is_multiple_of(2) { Access::WRITE } else { Access::LOCAL };
                let offset = bytes.len() % 61;
                let length = (offset + bytes.len()).max(1) as u64;
                let region = Region::new(self.fabric.register(length, access)?);
                region.copy_in(offset, bytes);
                let range = region.range(offset as u64, bytes.len() as u64)?;
                drop(region);
                post(self, Data::Region(range))
            }
        }
    }

    /// Posts a work request.
    pub fn post(
        &mut self,
        queue_pair: QueuePairId,
        id: u64,
        operation: Operation<'_, F::Memory>,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.domain.post(queue_pair, WorkRequest { id: WorkId(id), operation, signaled })
    }

    /// Posts a SEND of a registered buffer.
    pub fn send(&mut self, queue_pair: QueuePairId, id: u64, bytes: &[u8], signaled: bool) -> Verdict {
        let data = Data::Buffer(self.buffer(bytes)?);
        let operation = Operation::Send { data, immediate: None, to: None };
        Ok(self.post(queue_pair, id, operation, signaled)?)
    }

    /// Posts a RECV with room for `length` bytes, filled with 0xEE.
    pub fn receive(&mut self, target: ReceiveTarget, id: u64, length: usize) -> Verdict {
        let mut buffer = self.arena.reserve(length)?;
        buffer.fill(0xee);
        Ok(self.domain.post_receive(target, WorkId(id), Some(buffer))?)
    }

    /// Posts a RECV to a queue pair.
    pub fn receive_on(&mut self, queue_pair: QueuePairId, id: u64, length: usize) -> Verdict {
        self.receive(ReceiveTarget::QueuePair(queue_pair), id, length)
    }

    /// Polls a queue once and keeps its completions; returns their number.
    pub fn poll(&mut self, queue: CompletionQueueId) -> usize {
        let mut polled = std::mem::take(&mut self.polled);
        let got = self.domain.poll(queue, &mut polled, 64);
        self.found.entry(queue).or_default().extend(polled.drain(..));
        self.polled = polled;
        got
    }

    /// Takes a kept completion of a queue.
    pub fn take(&mut self, queue: CompletionQueueId) -> Option<CompletionOf<F>> {
        self.found.get_mut(&queue)?.pop_front()
    }

    /// Polls both queues until `look` returns a value; fails at the deadline.
    #[track_caller]
    pub fn until<T>(
        &mut self,
        what: &str,
        look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let stuck = Failure::new(format!("{what} did not come in time"));
        self.look(self.deadline, look)?.ok_or(stuck)
    }

    /// As [`until`](Station::until), with a deadline of the caller; returns `None` if there is no value by
    /// then.
    pub fn look<T>(
        &mut self,
        deadline: Nanos,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        loop {
            let armed = self.domain.arm(WaitMode::Busy);
            self.poll(self.sends);
            self.poll(self.receives);
            let found = match look(self) {
                Ok(None) => None,
                other => {
                    self.domain.disarm(armed);
                    return other;
                }
            };
            let now = self.fabric.host().now();
            if now >= deadline {
                self.domain.disarm(armed);
                return Ok(found);
            }
            // Short, since the expected event may not concern the domain (a message on a link).
            let _ = self.domain.wait(armed, deadline.min(now + MILLISECOND));
        }
    }

    /// Makes progress for the given time.
    pub fn rest(&mut self, time: Nanos) -> Verdict {
        let until = self.fabric.host().now() + time;
        self.look::<()>(until, |_| Ok(None)).map(|_| ())
    }

    /// Returns the next completion of a queue.
    #[track_caller]
    pub fn next(&mut self, queue: CompletionQueueId) -> Result<CompletionOf<F>, Failure> {
        self.until("a completion", |station| Ok(station.take(queue)))
    }

    /// Returns the next completion of a queue, which has to be the success of this request.
    #[track_caller]
    pub fn success(&mut self, queue: CompletionQueueId, id: u64) -> Result<CompletionOf<F>, Failure> {
        let here = std::panic::Location::caller();
        let completion = self.next(queue)?;
        let got = (completion.id.0, completion.status);
        expect_eq!(got, (id, CompletionStatus::Success), "completion expected at {here}");
        Ok(completion)
    }

    /// Returns the next completion of sends, which has to be the success of this request.
    #[track_caller]
    pub fn sent(&mut self, id: u64) -> Result<CompletionOf<F>, Failure> {
        self.success(self.sends, id)
    }

    /// Returns the next completion of RECVs, which has to be that of this RECV, filled with these bytes.
    #[track_caller]
    pub fn received(&mut self, id: u64, bytes: &[u8]) -> Result<CompletionOf<F>, Failure> {
        let completion = self.success(self.receives, id)?;
        check_received::<F>(&completion, bytes, 0)?;
        Ok(completion)
    }

    /// Waits until a queue pair is in the error state.
    #[track_caller]
    pub fn until_error(&mut self, queue_pair: QueuePairId) -> Verdict {
        let error = Some(QueuePairState::Error);
        self.until("the error state of the queue pair", |station| {
            Ok((station.domain.state(queue_pair) == error).then_some(()))
        })
    }

    /// Expects that `count` RECVs from `first` on are flushed in order, with their buffers.
    #[track_caller]
    pub fn flushed_receives(&mut self, first: u64, count: u64) -> Verdict {
        for id in first..first + count {
            let completion = self.next(self.receives)?;
            expect_eq!((completion.id.0, completion.status), (id, CompletionStatus::Flushed), "flushed RECV");
            expect!(completion.buffer.is_some(), "a flushed RECV gives its buffer back");
        }
        Ok(())
    }

    /// Waits until a word of a region satisfies `wanted`, by polling memory; returns the word.
    #[track_caller]
    pub fn until_word(
        &mut self,
        region: &Region<F::Memory>,
        offset: usize,
        mut wanted: impl FnMut(u64) -> bool,
    ) -> Result<u64, Failure> {
        self.domain.watch(region);
        let word = self.until("a WRITE into the region", |_| {
            let word = region.load(offset);
            Ok(wanted(word).then_some(word))
        });
        self.domain.unwatch(region);
        word
    }

    /// Waits until a range of a region holds these bytes.
    #[track_caller]
    pub fn until_bytes(&mut self, region: &Region<F::Memory>, offset: usize, bytes: &[u8]) -> Verdict {
        self.domain.watch(region);
        let result = self.until("the bytes of a WRITE", |_| Ok(holds(region, offset, bytes).then_some(())));
        self.domain.unwatch(region);
        result
    }
}

/// Returns whether a range of a region holds these bytes.
pub fn holds<F: dunlin_fabric::Memory>(region: &Region<F>, offset: usize, bytes: &[u8]) -> bool {
    let mut copy = vec![0; bytes.len()];
    region.copy_out(offset, &mut copy);
    copy == bytes
}

/// Checks a RECV filled by a SEND: its length, the contents after the headroom, and that the rest is
/// unchanged.
pub fn check_received<F: Fabric>(completion: &CompletionOf<F>, bytes: &[u8], headroom: usize) -> Verdict {
    expect_eq!(completion.opcode, Opcode::Receive);
    expect_eq!(completion.bytes as usize, headroom + bytes.len(), "bytes received");
    match &completion.buffer {
        None => expect!(bytes.is_empty(), "the RECV's buffer is missing"),
        Some(buffer) => {
            expect!(buffer.len() >= headroom + bytes.len(), "the RECV's buffer came back shorter");
            expect!(
                buffer[headroom..headroom + bytes.len()] == *bytes,
                "the contents of a message of {} bytes differ: got {:02x?}, expected {:02x?}",
                bytes.len(),
                &buffer[headroom..headroom + bytes.len().min(80)],
                &bytes[..bytes.len().min(80)]
            );
            let rest = &buffer[headroom + bytes.len()..];
            expect!(rest.iter().all(|b| *b == 0xee), "bytes behind the message were changed");
        }
    }
    Ok(())
}

/// Returns bytes that depend on position and seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
