//! Tells `tracing` what goes through a fabric, under the target `dunlin::fabric`: the data path at level TRACE,
//! set-up and control messages at DEBUG, whatever fails at WARN. Polls that find nothing and busy waits are
//! not told. Payloads are never logged.

use super::{DomainHooks, Hooks, Interposed, LinkHooks};
use crate::{
    Access, Address, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, CreateError, DialError,
    Endpoint, Fabric, GrantError, Link, LinkError, ListenError, Memory, Nanos, Operation, PostError,
    QueuePairConfig, QueuePairId, ReceiveTarget, RegionKey, RegisterError, ThreadDomain, WaitMode, Wake,
    WorkId, WorkRequest,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{debug, trace, warn};

/// The target of all events.
pub const TARGET: &str = "dunlin::fabric";

/// A fabric whose use is told to `tracing`.
pub type Trace<F> = Interposed<F, TraceHooks>;

impl<F: Fabric> Interposed<F, TraceHooks> {
    /// Traces what goes through `fabric` from now on.
    pub fn new(fabric: F) -> Self {
        Interposed::with_hooks(fabric, TraceHooks::default())
    }
}

/// The hooks of [`Trace`] around a fabric: they number its domains and links.
#[derive(Clone, Debug, Default)]
pub struct TraceHooks {
    next: Arc<AtomicU64>,
}

/// The hooks of [`Trace`] around one domain or link, with its number in the events.
#[derive(Clone, Debug)]
pub struct TraceOne {
    number: u64,
}

impl TraceHooks {
    fn one(&self) -> TraceOne {
        TraceOne { number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Tells the outcome of something that is not on the data path.
macro_rules! outcome {
    ($result:expr, $what:literal, $($field:tt)*) => {{
        let result = $result;
        match &result {
            Ok(_) => debug!(target: TARGET, $($field)*, $what),
            Err(error) => warn!(target: TARGET, $($field)*, %error, concat!($what, " failed")),
        }
        result
    }};
}

impl<F: Fabric> Hooks<F> for TraceHooks {
    type Domain = TraceOne;
    type Link = TraceOne;

    fn domain_hooks(&self) -> TraceOne {
        let one = self.one();
        debug!(target: TARGET, domain = one.number, "domain");
        one
    }

    fn link_hooks(&self) -> TraceOne {
        let one = self.one();
        debug!(target: TARGET, link = one.number, "link");
        one
    }

    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        outcome!(inner.register(length, access), "register", length, access = access.bits())
    }

    fn listen(&self, inner: &F, address: &Address) -> Result<F::Listener, ListenError> {
        outcome!(inner.listen(address), "listen", %address)
    }

    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        outcome!(inner.dial(address, until), "dial", %address)
    }
}

impl<L: Link> LinkHooks<L> for TraceOne {
    fn send(&self, inner: &L, message: &[u8]) -> Result<(), LinkError> {
        outcome!(inner.send(message), "link send", link = self.number, bytes = message.len())
    }

    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let result = inner.receive(until);
        match &result {
            Ok(message) => {
                debug!(target: TARGET, link = self.number, bytes = message.len(), "link receive");
            }
            Err(error) => debug!(target: TARGET, link = self.number, %error, "link receive"),
        }
        result
    }

    fn try_receive(&self, inner: &L) -> Result<Option<Vec<u8>>, LinkError> {
        let result = inner.try_receive();
        match &result {
            Ok(Some(message)) => {
                debug!(target: TARGET, link = self.number, bytes = message.len(), "link receive");
            }
            Ok(None) => {}
            Err(error) => debug!(target: TARGET, link = self.number, %error, "link receive"),
        }
        result
    }

    fn grant(&self, inner: &L, memory: &Arc<L::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        let length = memory.length();
        let result = inner.grant(memory, access);
        let key = result.as_ref().map_or(0, |key| key.0);
        outcome!(result, "grant", link = self.number, key, length, access = access.bits())
    }

    fn revoke(&self, inner: &L, key: RegionKey) {
        debug!(target: TARGET, link = self.number, key = key.0, "revoke");
        inner.revoke(key);
    }

    fn close(&self, inner: &L) {
        debug!(target: TARGET, link = self.number, "close");
        inner.close();
    }
}

fn describe<M: Memory>(operation: &Operation<'_, M>) -> (&'static str, u64) {
    match operation {
        Operation::Send { data, immediate: None, .. } => ("SEND", data.length()),
        Operation::Send { data, .. } => ("SEND_WITH_IMM", data.length()),
        Operation::Write { data, immediate: None, .. } => ("WRITE", data.length()),
        Operation::Write { data, .. } => ("WRITE_WITH_IMM", data.length()),
        Operation::Read { from, .. } => ("READ", u64::from(from.length)),
        Operation::FetchAdd { .. } => ("FETCH_ADD", 8),
        Operation::CompareSwap { .. } => ("CMP_SWAP", 8),
    }
}

impl<D: ThreadDomain> DomainHooks<D> for TraceOne {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        let result = inner.create_queue_pair(config);
        let queue_pair = result.as_ref().map_or(0, |id| id.0);
        outcome!(result, "queue pair", domain = self.number, queue_pair, transport = ?config.transport)
    }

    fn connect(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        link: &D::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let result = inner.connect(queue_pair, link, remote);
        outcome!(result, "connect", domain = self.number, queue_pair = queue_pair.0)
    }

    fn destroy_queue_pair(&mut self, inner: &mut D, queue_pair: QueuePairId) -> Result<(), CreateError> {
        let result = inner.destroy_queue_pair(queue_pair);
        outcome!(result, "destroy queue pair", domain = self.number, queue_pair = queue_pair.0)
    }

    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let (operation, bytes) = describe(&request.operation);
        let (id, signaled) = (request.id.0, request.signaled);
        let result = inner.post(queue_pair, request);
        match &result {
            Ok(()) => {
                trace!(target: TARGET, domain = self.number, queue_pair = queue_pair.0, id, operation, bytes, signaled, "post");
            }
            Err(error) => {
                warn!(target: TARGET, domain = self.number, queue_pair = queue_pair.0, id, operation, bytes, signaled, %error, "post refused");
            }
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
        match &result {
            Ok(()) => {
                trace!(target: TARGET, domain = self.number, to = ?target, id = id.0, bytes, "post RECV");
            }
            Err(error) => {
                warn!(target: TARGET, domain = self.number, to = ?target, id = id.0, bytes, %error, "RECV refused");
            }
        }
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
        let got = inner.poll(queue, into, limit);
        for completion in &into[before..] {
            let (queue_pair, id, bytes) = (completion.queue_pair.0, completion.id.0, completion.bytes);
            let (opcode, status) = (completion.opcode, completion.status.describe());
            if completion.status == CompletionStatus::Success {
                trace!(target: TARGET, domain = self.number, queue = queue.0, queue_pair, id, ?opcode, status, bytes, "completion");
            } else {
                warn!(target: TARGET, domain = self.number, queue = queue.0, queue_pair, id, ?opcode, status, "completion");
            }
        }
        got
    }

    fn wait(&mut self, inner: &mut D, armed: Armed, until: Nanos) -> Wake {
        let mode = armed.mode;
        let wake = inner.wait(armed, until);
        if mode == WaitMode::Event {
            trace!(target: TARGET, domain = self.number, ?wake, "event wait");
        }
        wake
    }
}
