//! Reports a fabric's operations to `tracing`, under the target `dunlin::fabric`: the data path at level
//! TRACE, set-up and control messages at DEBUG, failures at WARN. Empty polls and busy waits are not
//! reported. Payloads are never logged.

use super::Interposed;
use super::observe::{Event, Failed, Observer, Observing, Part, Posted};
use crate::WithSources;
use crate::{CompletionStatus, Fabric, Opcode, WaitMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{debug, trace, warn};

/// The target of all events.
pub const TARGET: &str = "dunlin::fabric";

/// A fabric whose operations are reported to `tracing`.
pub type Trace<F> = Interposed<F, Observing<Tracing>>;

impl<F: Fabric> Interposed<F, Observing<Tracing>> {
    /// Wraps `fabric` and traces its operations from now on.
    pub fn new(fabric: F) -> Self {
        Interposed::with_hooks(fabric, Observing::new(Tracing::default()))
    }
}

/// The observer of [`Trace`]. It numbers the domains and links of a fabric; each event carries its number.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    next: Arc<AtomicU64>,
    number: u64,
}

/// Reports the outcome of an operation.
macro_rules! outcome {
    ($failed:expr, $told:ident, $what:literal, $not:literal, $($field:tt)*) => {
        match $failed {
            None => $told!(target: TARGET, $($field)*, $what),
            Some(error) => warn!(target: TARGET, $($field)*, error = %WithSources(error), $not),
        }
    };
}

fn name(posted: &Posted) -> &'static str {
    match (posted.opcode, posted.immediate) {
        (Opcode::Send, false) => "SEND",
        (Opcode::Send, true) => "SEND_WITH_IMM",
        (Opcode::Write, false) => "WRITE",
        (Opcode::Write, true) => "WRITE_WITH_IMM",
        (Opcode::Read, _) => "READ",
        (Opcode::FetchAdd, _) => "FETCH_ADD",
        (Opcode::CompareSwap, _) => "CMP_SWAP",
        (Opcode::Receive | Opcode::ReceiveWriteImmediate, _) => "RECV",
    }
}

impl Tracing {
    fn post(&self, posted: &Posted, failed: Failed<'_>) {
        let Posted { queue_pair, id, bytes, signaled, .. } = *posted;
        let (domain, queue_pair, id, operation) = (self.number, queue_pair.0, id.0, name(posted));
        outcome!(failed, trace, "post", "post refused", domain, queue_pair, id, operation, bytes, signaled);
    }
}

impl Observer for Tracing {
    fn part(&self, part: Part) -> Self {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match part {
            Part::Domain => debug!(target: TARGET, domain = number, "domain"),
            Part::Link => debug!(target: TARGET, link = number, "link"),
        }
        Tracing { next: Arc::clone(&self.next), number }
    }

    fn see(&self, event: &Event<'_>) {
        let number = self.number;
        match *event {
            Event::Register { length, access, failed } => {
                outcome!(failed, debug, "register", "register failed", length, access = access.bits());
            }
            Event::Listen { address, failed } => {
                outcome!(failed, debug, "listen", "listen failed", %address);
            }
            Event::Dial { address, failed } => outcome!(failed, debug, "dial", "dial failed", %address),
            Event::LinkSend { bytes, failed } => {
                outcome!(failed, debug, "link send", "link send failed", link = number, bytes);
            }
            Event::LinkReceive { bytes, failed: None } => {
                debug!(target: TARGET, link = number, bytes, "link receive");
            }
            // The error may be a timeout, which is not a failure.
            Event::LinkReceive { failed: Some(error), .. } => {
                debug!(target: TARGET, link = number, %error, "link receive");
            }
            Event::Grant { key, length, access, failed } => {
                let (key, access) = (key.0, access.bits());
                outcome!(failed, debug, "grant", "grant failed", link = number, key, length, access);
            }
            Event::Revoke { key } => debug!(target: TARGET, link = number, key = key.0, "revoke"),
            Event::Close => debug!(target: TARGET, link = number, "close"),
            Event::CreateQueuePair { queue_pair, transport, failed } => {
                let (domain, queue_pair) = (number, queue_pair.0);
                outcome!(failed, debug, "queue pair", "queue pair failed", domain, queue_pair, ?transport);
            }
            Event::Connect { queue_pair, failed } => {
                let (domain, queue_pair) = (number, queue_pair.0);
                outcome!(failed, debug, "connect", "connect failed", domain, queue_pair);
            }
            Event::DestroyQueuePair { queue_pair, failed } => {
                let (domain, queue_pair) = (number, queue_pair.0);
                outcome!(
                    failed,
                    debug,
                    "destroy queue pair",
                    "destroy queue pair failed",
                    domain,
                    queue_pair
                );
            }
            Event::Post { ref posted, failed } => self.post(posted, failed),
            Event::PostReceive { target, id, bytes, failed } => {
                let (domain, id) = (number, id.0);
                outcome!(failed, trace, "post RECV", "RECV refused", domain, to = ?target, id, bytes);
            }
            Event::Complete { queue, queue_pair, id, opcode, status, bytes } => {
                let (queue, queue_pair, id) = (queue.0, queue_pair.0, id.0);
                let text = status.describe();
                if status == CompletionStatus::Success {
                    trace!(target: TARGET, domain = number, queue, queue_pair, id, ?opcode, status = text, bytes, "completion");
                } else {
                    warn!(target: TARGET, domain = number, queue, queue_pair, id, ?opcode, status = text, "completion");
                }
            }
            Event::Waited { mode: WaitMode::Event | WaitMode::Write, wake } => {
                trace!(target: TARGET, domain = number, ?wake, "event wait");
            }
            Event::Poll { .. } | Event::Wait { .. } | Event::Waited { .. } => {}
        }
    }
}
