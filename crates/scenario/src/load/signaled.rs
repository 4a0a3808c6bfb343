//! Clients that signal each request and wait for its completion before they continue: verbs programs without
//! the optimisation that RF-RPC calls unsignaled.

use dunlin_fabric::interpose::{DomainHooks, Hooks, LinkHooks};
use dunlin_fabric::{
    Completion, CompletionQueueId, CreateError, Fabric, Link, Nanos, Opcode, Operation, PostError,
    QueuePairConfig, QueuePairId, ThreadDomain, WaitMode, WorkRequest,
};
use std::collections::BTreeMap;

/// Completions taken per poll.
const AT_ONCE: usize = 16;

/// The hooks of such clients.
#[derive(Clone, Debug)]
pub(super) struct Signaled;

/// State of one of their domains.
#[derive(Debug)]
pub(super) struct Waits<D: ThreadDomain> {
    /// Completion queue of each queue pair's requests.
    queues: BTreeMap<QueuePairId, CompletionQueueId>,
    /// Completions found while waiting for another.
    found: Vec<(CompletionQueueId, Completion<D::Memory>)>,
    /// Buffer for a poll.
    look: Vec<Completion<D::Memory>>,
}

impl<F: Fabric> Hooks<F> for Signaled {
    type Domain = Waits<F::Domain>;
    type Link = Signaled;

    fn domain_hooks(&self) -> Self::Domain {
        Waits { queues: BTreeMap::new(), found: Vec::new(), look: Vec::new() }
    }

    fn link_hooks(&self) -> Self::Link {
        Signaled
    }
}

impl<L: Link> LinkHooks<L> for Signaled {}

impl<D: ThreadDomain> Waits<D> {
    /// Polls for the completion of the queue pair's outstanding request of this kind, and keeps all others.
    fn look(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        (queue_pair, opcode): (QueuePairId, Opcode),
    ) -> Option<Completion<D::Memory>> {
        inner.poll(queue, &mut self.look, AT_ONCE);
        let mut ours = None;
        for completion in self.look.drain(..) {
            if ours.is_none() && completion.queue_pair == queue_pair && completion.opcode == opcode {
                ours = Some(completion);
            } else {
                self.found.push((queue, completion));
            }
        }
        ours
    }

    /// Waits for that completion.
    fn completion(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        which: (QueuePairId, Opcode),
    ) -> Completion<D::Memory> {
        loop {
            if let Some(ours) = self.look(inner, queue, which) {
                return ours;
            }
            let armed = inner.arm(WaitMode::Busy);
            if let Some(ours) = self.look(inner, queue, which) {
                inner.disarm(armed);
                return ours;
            }
            inner.wait(armed, Nanos::MAX);
        }
    }
}

impl<D: ThreadDomain> DomainHooks<D> for Waits<D> {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        let queue_pair = inner.create_queue_pair(config)?;
        self.queues.insert(queue_pair, config.send_completions);
        Ok(queue_pair)
    }

    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let opcode = match &request.operation {
            Operation::Write { .. } => Opcode::Write,
            Operation::Send { .. } => Opcode::Send,
            // These always complete, and their poster waits for that.
            _ => return inner.post(queue_pair, request),
        };
        let asked_for = request.signaled;
        inner.post(queue_pair, WorkRequest { signaled: true, ..request })?;
        if let Some(&queue) = self.queues.get(&queue_pair) {
            let done = self.completion(inner, queue, (queue_pair, opcode));
            if asked_for {
                self.found.push((queue, done));
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        let mut kept = 0;
        while kept < limit
            && let Some(at) = self.found.iter().position(|(of, _)| *of == queue)
        {
            into.push(self.found.remove(at).1);
            kept += 1;
        }
        kept + inner.poll(queue, into, limit - kept)
    }
}
