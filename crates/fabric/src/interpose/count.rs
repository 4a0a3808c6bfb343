//! Counts what a program asks of its fabric: how many posts, doorbells, completions, polls, waits and bytes.
//! The counts are relaxed atomics, readable from any thread while the program runs. They cost a few
//! nanoseconds an operation, allocate nothing and make no system call.

use super::{DomainHooks, Hooks, Interposed, LinkHooks};
use crate::{
    Access, Address, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, Data, DialError, Fabric,
    GrantError, Link, LinkError, Memory, Nanos, Opcode, Operation, PostError, QueuePairId, ReceiveTarget,
    RegionKey, RegisterError, ThreadDomain, WaitMode, Wake, WorkId, WorkRequest,
};
use std::fmt;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fabric whose use is counted.
pub type Count<F> = Interposed<F, CountHooks>;

impl<F: Fabric> Interposed<F, CountHooks> {
    /// Counts what goes through `fabric` from now on. Clones share the counts.
    pub fn new(fabric: F) -> Self {
        Interposed::with_hooks(fabric, CountHooks::default())
    }

    /// The counts now.
    pub fn counts(&self) -> CountSnapshot {
        self.hooks().0.snapshot()
    }

    /// The shared counters, to be read where the fabric itself is not at hand.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.hooks().0)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters that go up while a program runs.
        #[derive(Debug, Default)]
        pub struct Counters { $($name: AtomicU64,)* }

        /// Counts at one moment. The difference of two is what happened between them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CountSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The counts now. Each is exact; together they are as of about the same moment while other
            /// threads go on.
            pub fn snapshot(&self) -> CountSnapshot {
                CountSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Sub for CountSnapshot {
            type Output = CountSnapshot;

            fn sub(self, earlier: CountSnapshot) -> CountSnapshot {
                CountSnapshot { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }

        impl CountSnapshot {
            /// Every count with its name, in a fixed order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// SENDs posted, with immediate or without.
    posted_send,
    /// WRITEs posted, without immediate.
    posted_write,
    /// WRITE_WITH_IMMs posted.
    posted_write_immediate,
    /// READs posted.
    posted_read,
    /// FETCH_ADDs posted.
    posted_fetch_add,
    /// CMP_SWAPs posted.
    posted_compare_swap,
    /// Of all posted: signaled ones, READs and atomics, which complete in any case, included.
    posted_signaled,
    /// Of all posted: those with inline data.
    posted_inline,
    /// Posts that were refused.
    refused,
    /// Doorbells rung for work requests: one for every post that was taken.
    doorbells,
    /// RECVs posted.
    posted_receive,
    /// RECV posts that were refused.
    refused_receive,
    /// Bytes of the messages posted, and bytes asked for by READs.
    bytes_posted,
    /// Bytes that RECVs got.
    bytes_received,
    /// Completions taken of SENDs.
    completed_send,
    /// Completions taken of WRITEs, with immediate or without.
    completed_write,
    /// Completions taken of READs.
    completed_read,
    /// Completions taken of FETCH_ADDs.
    completed_fetch_add,
    /// Completions taken of CMP_SWAPs.
    completed_compare_swap,
    /// Completions taken of RECVs filled by a SEND.
    completed_receive,
    /// Completions taken of RECVs consumed by a WRITE_WITH_IMM.
    completed_receive_immediate,
    /// Of all completions: flushed ones.
    flushed,
    /// Of all completions: failed ones, without the flushed.
    failed,
    /// Polls of a completion queue.
    polls,
    /// Polls that found nothing.
    empty_polls,
    /// Busy waits.
    waits_busy,
    /// Event waits.
    waits_event,
    /// Regions registered.
    registered,
    /// Grants of memory.
    grants,
    /// Links dialled.
    dialled,
    /// Control messages sent.
    link_sent,
    /// Control messages received.
    link_received,
}

impl CountSnapshot {
    /// Work requests posted to send queues.
    pub fn posts(&self) -> u64 {
        self.posted_send
            + self.posted_write
            + self.posted_write_immediate
            + self.posted_read
            + self.posted_fetch_add
            + self.posted_compare_swap
    }

    /// Completions taken.
    pub fn completions(&self) -> u64 {
        self.completed_send
            + self.completed_write
            + self.completed_read
            + self.completed_fetch_add
            + self.completed_compare_swap
            + self.completed_receive
            + self.completed_receive_immediate
    }
}

impl fmt::Display for CountSnapshot {
    /// The counts that are not zero, one a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.fields().filter(|(_, count)| *count != 0) {
            writeln!(f, "{name:<28} {count}")?;
        }
        Ok(())
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    fn count_completion<M: Memory>(&self, completion: &Completion<M>) {
        add(
            match completion.opcode {
                Opcode::Send => &self.completed_send,
                Opcode::Write => &self.completed_write,
                Opcode::Read => &self.completed_read,
                Opcode::FetchAdd => &self.completed_fetch_add,
                Opcode::CompareSwap => &self.completed_compare_swap,
                Opcode::Receive => &self.completed_receive,
                Opcode::ReceiveWriteImmediate => &self.completed_receive_immediate,
            },
            1,
        );
        match completion.status {
            CompletionStatus::Success if completion.opcode == Opcode::Receive => {
                add(&self.bytes_received, u64::from(completion.bytes));
            }
            CompletionStatus::Success => {}
            CompletionStatus::Flushed => add(&self.flushed, 1),
            _ => add(&self.failed, 1),
        }
    }
}

/// The hooks of [`Count`], around fabrics, links and domains alike.
#[derive(Clone, Debug, Default)]
pub struct CountHooks(Arc<Counters>);

impl<F: Fabric> Hooks<F> for CountHooks {
    type Domain = CountHooks;
    type Link = CountHooks;

    fn domain_hooks(&self) -> CountHooks {
        self.clone()
    }

    fn link_hooks(&self) -> CountHooks {
        self.clone()
    }

    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        inner.register(length, access).inspect(|_| add(&self.0.registered, 1))
    }

    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        inner.dial(address, until).inspect(|_| add(&self.0.dialled, 1))
    }
}

impl<L: Link> LinkHooks<L> for CountHooks {
    fn send(&self, inner: &L, message: &[u8]) -> Result<(), LinkError> {
        inner.send(message).inspect(|()| add(&self.0.link_sent, 1))
    }

    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        inner.receive(until).inspect(|_| add(&self.0.link_received, 1))
    }

    fn try_receive(&self, inner: &L) -> Result<Option<Vec<u8>>, LinkError> {
        let message = inner.try_receive()?;
        add(&self.0.link_received, message.is_some() as u64);
        Ok(message)
    }

    fn grant(&self, inner: &L, memory: &Arc<L::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        inner.grant(memory, access).inspect(|_| add(&self.0.grants, 1))
    }
}

impl<D: ThreadDomain> DomainHooks<D> for CountHooks {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let counters = &*self.0;
        let inline = |data: &Data<'_, D::Memory>| matches!(data, Data::Inline(_));
        let (operation, bytes, inline, always) = match &request.operation {
            Operation::Send { data, .. } => (&counters.posted_send, data.length(), inline(data), false),
            Operation::Write { data, immediate: None, .. } => {
                (&counters.posted_write, data.length(), inline(data), false)
            }
            Operation::Write { data, .. } => {
                (&counters.posted_write_immediate, data.length(), inline(data), false)
            }
            Operation::Read { from, .. } => (&counters.posted_read, u64::from(from.length), false, true),
            Operation::FetchAdd { .. } => (&counters.posted_fetch_add, 8, false, true),
            Operation::CompareSwap { .. } => (&counters.posted_compare_swap, 8, false, true),
        };
        let signaled = request.signaled || always;
        let result = inner.post(queue_pair, request);
        if result.is_ok() {
            add(operation, 1);
            add(&counters.bytes_posted, bytes);
            add(&counters.posted_inline, inline as u64);
            add(&counters.posted_signaled, signaled as u64);
            add(&counters.doorbells, 1);
        } else {
            add(&counters.refused, 1);
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
        let result = inner.post_receive(target, id, buffer);
        add(if result.is_ok() { &self.0.posted_receive } else { &self.0.refused_receive }, 1);
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
        add(&self.0.polls, 1);
        add(&self.0.empty_polls, (got == 0) as u64);
        for completion in &into[before..] {
            self.0.count_completion(completion);
        }
        got
    }

    fn wait(&mut self, inner: &mut D, armed: Armed, until: Nanos) -> Wake {
        match armed.mode {
            WaitMode::Busy => add(&self.0.waits_busy, 1),
            WaitMode::Event => add(&self.0.waits_event, 1),
        }
        inner.wait(armed, until)
    }
}
