//! Counts a program's use of its fabric: posts, doorbells, completions, polls, waits and bytes. The counts
//! are relaxed atomics, readable from any thread while the program runs. Counting costs a few nanoseconds per
//! operation, allocates nothing and makes no system call.

use super::Interposed;
use super::observe::{Event, Observer, Observing, Part, Posted};
use crate::{CompletionStatus, Fabric, Opcode, WaitMode};
use std::fmt;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fabric whose use is counted.
pub type Count<F> = Interposed<F, Observing<Counting>>;

impl<F: Fabric> Interposed<F, Observing<Counting>> {
    /// Wraps `fabric` and counts its operations from now on. Clones share the counts.
    pub fn new(fabric: F) -> Self {
        Interposed::with_hooks(fabric, Observing::new(Counting::default()))
    }

    /// Returns the current counts.
    pub fn counts(&self) -> CountSnapshot {
        self.hooks().observer.0.snapshot()
    }

    /// Returns the shared counters, for readers without access to the fabric.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.hooks().observer.0)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters that increase while a program runs.
        #[derive(Debug, Default)]
        pub struct Counters { $($name: AtomicU64,)* }

        /// The counts at one moment. The difference of two snapshots covers the time between them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CountSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Returns the current counts. Each is exact; they are taken at slightly different moments while
            /// other threads run.
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
            /// Returns every count with its name, in a fixed order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// SENDs posted, with or without immediate data.
    posted_send,
    /// WRITEs posted without immediate data.
    posted_write,
    /// WRITE_WITH_IMMs posted.
    posted_write_immediate,
    /// READs posted.
    posted_read,
    /// FETCH_ADDs posted.
    posted_fetch_add,
    /// CMP_SWAPs posted.
    posted_compare_swap,
    /// Posted requests that complete on success: signaled requests, READs and atomics.
    posted_signaled,
    /// Posted requests with inline data.
    posted_inline,
    /// Posts that were refused.
    refused,
    /// Doorbells rung for work requests: one for every accepted post.
    doorbells,
    /// RECVs posted.
    posted_receive,
    /// RECV posts that were refused.
    refused_receive,
    /// Bytes of posted messages, and bytes requested by READs.
    bytes_posted,
    /// Bytes received in RECVs.
    bytes_received,
    /// Completions of SENDs.
    completed_send,
    /// Completions of WRITEs, with or without immediate data.
    completed_write,
    /// Completions of READs.
    completed_read,
    /// Completions of FETCH_ADDs.
    completed_fetch_add,
    /// Completions of CMP_SWAPs.
    completed_compare_swap,
    /// Completions of RECVs filled by a SEND.
    completed_receive,
    /// Completions of RECVs consumed by a WRITE_WITH_IMM.
    completed_receive_immediate,
    /// Flushed completions.
    flushed,
    /// Failed completions, without the flushed ones.
    failed,
    /// Polls of completion queues.
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
    /// Returns the number of work requests posted to send queues.
    pub fn posts(&self) -> u64 {
        self.posted_send
            + self.posted_write
            + self.posted_write_immediate
            + self.posted_read
            + self.posted_fetch_add
            + self.posted_compare_swap
    }

    /// Returns the number of completions.
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
    /// Writes the counts that are not zero, one per line.
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
    fn count_post(&self, posted: &Posted) {
        let counter = match posted.opcode {
            Opcode::Send => &self.posted_send,
            Opcode::Write if posted.immediate => &self.posted_write_immediate,
            Opcode::Read => &self.posted_read,
            Opcode::FetchAdd => &self.posted_fetch_add,
            Opcode::CompareSwap => &self.posted_compare_swap,
            // RECVs are posted, and counted, by another method.
            Opcode::Write | Opcode::Receive | Opcode::ReceiveWriteImmediate => &self.posted_write,
        };
        add(counter, 1);
        add(&self.bytes_posted, posted.bytes);
        add(&self.posted_inline, posted.inline as u64);
        add(&self.posted_signaled, posted.signaled as u64);
        add(&self.doorbells, posted.rings as u64);
    }

    fn count_completion(&self, opcode: Opcode, status: CompletionStatus, bytes: u32) {
        add(
            match opcode {
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
        match status {
            CompletionStatus::Success if opcode == Opcode::Receive => {
                add(&self.bytes_received, u64::from(bytes));
            }
            CompletionStatus::Success => {}
            CompletionStatus::Flushed => add(&self.flushed, 1),
            _ => add(&self.failed, 1),
        }
    }
}

/// The observer of [`Count`], for fabrics, links and domains alike.
#[derive(Clone, Debug, Default)]
pub struct Counting(Arc<Counters>);

impl Observer for Counting {
    fn part(&self, _: Part) -> Self {
        self.clone()
    }

    #[inline]
    fn see(&self, event: &Event<'_>) {
        let counters = &*self.0;
        match *event {
            Event::Post { ref posted, failed: None } => counters.count_post(posted),
            Event::Post { .. } => add(&counters.refused, 1),
            Event::PostReceive { failed: None, .. } => add(&counters.posted_receive, 1),
            Event::PostReceive { .. } => add(&counters.refused_receive, 1),
            Event::Poll { found } => {
                add(&counters.polls, 1);
                add(&counters.empty_polls, (found == 0) as u64);
            }
            Event::Complete { opcode, status, bytes, .. } => counters.count_completion(opcode, status, bytes),
            Event::Wait { mode: WaitMode::Busy } => add(&counters.waits_busy, 1),
            Event::Wait { mode: WaitMode::Event | WaitMode::Write } => add(&counters.waits_event, 1),
            Event::Register { failed: None, .. } => add(&counters.registered, 1),
            Event::Dial { failed: None, .. } => add(&counters.dialled, 1),
            Event::LinkSend { failed: None, .. } => add(&counters.link_sent, 1),
            Event::LinkReceive { failed: None, .. } => add(&counters.link_received, 1),
            Event::Grant { failed: None, .. } => add(&counters.grants, 1),
            _ => {}
        }
    }
}
