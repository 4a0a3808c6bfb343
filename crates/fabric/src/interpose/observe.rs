//! Reports a fabric's operations to an [`Observer`], event by event. [`Count`](super::Count) and
//! [`Trace`](super::Trace) are both built on it and differ only in their handling of an event.

use super::{DomainHooks, Hooks, LinkHooks};
use crate::{
    Access, Address, AnyMemory, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, CreateError,
    Data, DialError, Endpoint, Fabric, GrantError, Link, LinkError, ListError, ListenError, Memory, Nanos,
    Opcode, Operation, PostError, QueuePairConfig, QueuePairId, ReceiveTarget, RegionKey, RegisterError,
    ThreadDomain, Transport, WaitMode, Wake, WorkId, WorkRequest,
};
use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

/// A receiver of events. Clones observe the same thing; all methods may be called from any thread.
pub trait Observer: Clone + Send + Sync + Debug + 'static {
    /// Returns the observer for a part that was just created.
    fn part(&self, part: Part) -> Self;

    /// Handles one event. If the operation failed, the event's `failed` field holds the error.
    fn see(&self, event: &Event<'_>);
}

/// A part of a fabric with an observer of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A domain that was created.
    Domain,
    /// A link that was dialled or accepted.
    Link,
}

/// The error of an operation, if it failed.
pub type Failed<'a> = Option<&'a dyn Error>;

/// A work request as observers see it, without its payload.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// The queue pair that it was posted to.
    pub queue_pair: QueuePairId,
    /// Its id.
    pub id: WorkId,
    /// The operation requested.
    pub opcode: Opcode,
    /// Whether it carries immediate data.
    pub immediate: bool,
    /// The length of its message, or the number of bytes that it requests.
    pub bytes: u64,
    /// Whether its data is inline.
    pub inline: bool,
    /// Whether its success makes a completion.
    pub signaled: bool,
    /// Whether a doorbell was rung for it. In a list, only the first request rings.
    pub rings: bool,
}

/// An operation of a fabric. Lengths are in bytes.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments and results of the methods named")]
pub enum Event<'a> {
    /// [`Fabric::register`].
    Register { length: u64, access: Access, failed: Failed<'a> },
    /// [`Fabric::listen`].
    Listen { address: &'a Address, failed: Failed<'a> },
    /// [`Fabric::dial`].
    Dial { address: &'a Address, failed: Failed<'a> },
    /// [`Link::send`].
    LinkSend { bytes: usize, failed: Failed<'a> },
    /// [`Link::receive`], and [`Link::try_receive`] if it returned a message or an error.
    LinkReceive { bytes: usize, failed: Failed<'a> },
    /// [`Link::grant`].
    Grant { key: RegionKey, length: usize, access: Access, failed: Failed<'a> },
    /// [`Link::revoke`].
    Revoke { key: RegionKey },
    /// [`Link::close`].
    Close,
    /// [`ThreadDomain::create_queue_pair`].
    CreateQueuePair { queue_pair: QueuePairId, transport: Transport, failed: Failed<'a> },
    /// [`ThreadDomain::connect`].
    Connect { queue_pair: QueuePairId, failed: Failed<'a> },
    /// [`ThreadDomain::destroy_queue_pair`].
    DestroyQueuePair { queue_pair: QueuePairId, failed: Failed<'a> },
    /// [`ThreadDomain::post`].
    Post { posted: Posted, failed: Failed<'a> },
    /// [`ThreadDomain::post_receive`].
    PostReceive { target: ReceiveTarget, id: WorkId, bytes: usize, failed: Failed<'a> },
    /// [`ThreadDomain::poll`], before its completions.
    Poll { found: usize },
    /// A completion that a poll returned.
    Complete {
        queue: CompletionQueueId,
        queue_pair: QueuePairId,
        id: WorkId,
        opcode: Opcode,
        status: CompletionStatus,
        bytes: u32,
    },
    /// The start of [`ThreadDomain::wait`].
    Wait { mode: WaitMode },
    /// The end of [`ThreadDomain::wait`].
    Waited { mode: WaitMode, wake: Wake },
}

/// The hooks that report to an observer.
#[derive(Clone, Debug)]
pub struct Observing<O> {
    pub(super) observer: O,
    /// The requests of the list that is being posted. Allocates only while it grows.
    list: Vec<Posted>,
}

impl<O> Observing<O> {
    pub(super) fn new(observer: O) -> Self {
        Observing { observer, list: Vec::new() }
    }
}

/// Returns the error of a result, if any.
fn failed<T, E: Error + 'static>(result: &Result<T, E>) -> Failed<'_> {
    result.as_ref().err().map(|error| error as &dyn Error)
}

impl<F: Fabric, O: Observer> Hooks<F> for Observing<O> {
    type Domain = Observing<O>;
    type Link = Observing<O>;

    fn domain_hooks(&self) -> Self {
        Observing::new(self.observer.part(Part::Domain))
    }

    fn link_hooks(&self) -> Self {
        Observing::new(self.observer.part(Part::Link))
    }

    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        let result = inner.register(length, access);
        self.observer.see(&Event::Register { length, access, failed: failed(&result) });
        result
    }

    fn adopt(&self, inner: &F, memory: AnyMemory) -> Result<F::Memory, RegisterError> {
        let (length, access) = (memory.length() as u64, memory.access());
        let result = inner.adopt(memory);
        self.observer.see(&Event::Register { length, access, failed: failed(&result) });
        result
    }

    fn listen(&self, inner: &F, address: &Address) -> Result<F::Listener, ListenError> {
        let result = inner.listen(address);
        self.observer.see(&Event::Listen { address, failed: failed(&result) });
        result
    }

    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        let result = inner.dial(address, until);
        self.observer.see(&Event::Dial { address, failed: failed(&result) });
        result
    }
}

impl<L: Link, O: Observer> LinkHooks<L> for Observing<O> {
    fn send(&self, inner: &L, message: &[u8]) -> Result<(), LinkError> {
        let result = inner.send(message);
        self.observer.see(&Event::LinkSend { bytes: message.len(), failed: failed(&result) });
        result
    }

    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let result = inner.receive(until);
        let bytes = result.as_ref().map_or(0, Vec::len);
        self.observer.see(&Event::LinkReceive { bytes, failed: failed(&result) });
        result
    }

    fn try_receive(&self, inner: &L) -> Result<Option<Vec<u8>>, LinkError> {
        let result = inner.try_receive();
        if !matches!(result, Ok(None)) {
            let bytes = result.as_ref().map_or(0, |found| found.as_ref().map_or(0, Vec::len));
            self.observer.see(&Event::LinkReceive { bytes, failed: failed(&result) });
        }
        result
    }

    fn grant(&self, inner: &L, memory: &Arc<L::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        let result = inner.grant(memory, access);
        let key = *result.as_ref().unwrap_or(&RegionKey(0));
        self.observer.see(&Event::Grant { key, length: memory.length(), access, failed: failed(&result) });
        result
    }

    fn revoke(&self, inner: &L, key: RegionKey) {
        self.observer.see(&Event::Revoke { key });
        inner.revoke(key);
    }

    fn close(&self, inner: &L) {
        self.observer.see(&Event::Close);
        inner.close();
    }
}

/// Describes a work request for observers.
fn describe<M: Memory>(queue_pair: QueuePairId, request: &WorkRequest<'_, M>) -> Posted {
    let message = |opcode, data: &Data<'_, M>, immediate| Posted {
        queue_pair,
        id: request.id,
        opcode,
        immediate,
        bytes: data.length(),
        inline: matches!(data, Data::Inline(_)),
        signaled: request.signaled,
        rings: true,
    };
    // READs and atomics always complete.
    let answered = |opcode, bytes| Posted {
        queue_pair,
        id: request.id,
        opcode,
        immediate: false,
        bytes,
        inline: false,
        signaled: true,
        rings: true,
    };
    match &request.operation {
        Operation::Send { data, immediate, .. } => message(Opcode::Send, data, immediate.is_some()),
        Operation::Write { data, immediate, .. } => message(Opcode::Write, data, immediate.is_some()),
        Operation::Read { from, .. } | Operation::ReadInto { from, .. } => {
            answered(Opcode::Read, u64::from(from.length))
        }
        Operation::FetchAdd { .. } => answered(Opcode::FetchAdd, 8),
        Operation::CompareSwap { .. } => answered(Opcode::CompareSwap, 8),
    }
}

impl<D: ThreadDomain, O: Observer> DomainHooks<D> for Observing<O> {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        let result = inner.create_queue_pair(config);
        let queue_pair = *result.as_ref().unwrap_or(&QueuePairId(0));
        let transport = config.transport;
        self.observer.see(&Event::CreateQueuePair { queue_pair, transport, failed: failed(&result) });
        result
    }

    fn connect(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        link: &D::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let result = inner.connect(queue_pair, link, remote);
        self.observer.see(&Event::Connect { queue_pair, failed: failed(&result) });
        result
    }

    fn destroy_queue_pair(&mut self, inner: &mut D, queue_pair: QueuePairId) -> Result<(), CreateError> {
        let result = inner.destroy_queue_pair(queue_pair);
        self.observer.see(&Event::DestroyQueuePair { queue_pair, failed: failed(&result) });
        result
    }

    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let posted = describe(queue_pair, &request);
        let result = inner.post(queue_pair, request);
        self.observer.see(&Event::Post { posted, failed: failed(&result) });
        result
    }

    fn post_list(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        self.list.clear();
        self.list.extend(requests.iter().flatten().map(|request| describe(queue_pair, request)));
        let result = inner.post_list(queue_pair, requests);
        let reached = result.map_or_else(|error| error.posted, |()| self.list.len());
        for (place, &posted) in self.list.iter().enumerate() {
            let posted = Posted { rings: place == 0, ..posted };
            let failed = if place < reached { None } else { failed(&result) };
            self.observer.see(&Event::Post { posted, failed });
        }
        result
    }

    fn post_receive(
        &mut self,
        inner: &mut D,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<D::Memory>>,
    ) -> Result<(), PostError> {
        let bytes = buffer.as_ref().map_or(0, |buffer| buffer.len());
        let result = inner.post_receive(target, id, buffer);
        self.observer.see(&Event::PostReceive { target, id, bytes, failed: failed(&result) });
        result
    }

    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        let before = into.len();
        let found = inner.poll(queue, into, limit);
        self.observer.see(&Event::Poll { found });
        for &Completion { id, status, opcode, bytes, queue_pair, .. } in &into[before..] {
            self.observer.see(&Event::Complete { queue, queue_pair, id, opcode, status, bytes });
        }
        found
    }

    fn wait(&mut self, inner: &mut D, armed: Armed, until: Nanos) -> Wake {
        let mode = armed.mode;
        self.observer.see(&Event::Wait { mode });
        let wake = inner.wait(armed, until);
        self.observer.see(&Event::Waited { mode, wake });
        wake
    }
}
