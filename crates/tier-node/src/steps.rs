//! Long operations in steps: while others have short operations, those of more than 64 KiB have 64 KiB under way together,
//! and give their path back after each step. LITE shares queue pairs and the NIC between all processes of a node (section
//! 6.1), and does not say how a short operation gets by a long one. A NIC takes requests in their order.

use crate::error::OperationError;
use crate::item::Transfer;
use crate::node::Node;
use crate::operate::Target;
use crate::path::Deadline;
use crate::paths::{Entered, Paths};
use crate::qos::Class;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_tier::qos::Policy;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The longest step, in bytes.
pub(crate) const STEP: u64 = 64 << 10;
/// The steps without a short operation after which long ones go at once again.
const ALONE: u32 = 64;

/// The knowledge whether others have short operations.
#[derive(Debug)]
pub(crate) struct Steps<H: Host> {
    /// The operation whose step is under way has it.
    place: Paths<(), H>,
    /// The short operations so far, when a step last began.
    shorts: AtomicU64,
    /// The steps since the last one of them.
    alone: AtomicU32,
}

impl<H: Host> Steps<H> {
    pub(crate) fn new(policy: Policy) -> Self {
        // One place is reserved for no priority.
        let policy = if matches!(policy, Policy::Reserved { .. }) { Policy::Shares } else { policy };
        Steps { place: Paths::new(1, policy), shorts: AtomicU64::new(0), alone: AtomicU32::new(ALONE) }
    }

    /// Waits for the place; `false` if it is not free until `until`.
    fn enter(&self, host: &H, class: &Class, until: Nanos) -> bool {
        match self.place.enter(host, class.flow(), STEP) {
            Entered::Path(_) => true,
            Entered::Wait(seat) => self.place.wait(host, seat, until).is_some(),
            Entered::Closed => false,
        }
    }

    /// Returns whether the next bytes of a long operation go as a step. `shorts` counts the short operations of the node.
    fn begins(&self, shorts: u64) -> bool {
        // Threads that look at the same time may count a step too few.
        if self.shorts.swap(shorts, Ordering::Relaxed) != shorts {
            self.alone.store(0, Ordering::Relaxed);
            return true;
        }
        let alone = self.alone.load(Ordering::Relaxed);
        if alone < ALONE {
            self.alone.store(alone + 1, Ordering::Relaxed);
        }
        alone < ALONE
    }
}

impl<F: Fabric> Node<F> {
    /// Reads or writes bytes of a region. Bytes on this node are copied by the calling thread.
    pub(crate) fn transfer(
        &self,
        target: Target<'_>,
        offset: u64,
        mut transfer: Transfer<'_, F::Memory>,
    ) -> Result<(), OperationError> {
        let length = transfer.len() as u64;
        if length <= STEP || !self.is_within(&target, offset, length) {
            return self.transfer_part(target, offset, transfer);
        }
        let host = self.fabric.host();
        let mut deadline = Deadline::new(self, target.time)?;
        self.qos.admit(host, target.class, length, deadline.left(host))?;
        self.qos.count_long(target.class.priority, length);
        let until = deadline.until(host);
        let (mut at, mut time) = (0, deadline.left(host));
        loop {
            let left = length - at;
            let is_step = self.steps.begins(self.qos.shorts());
            let bytes = if is_step { left.min(STEP) } else { left };
            let Some(part) = transfer.part(at as usize, bytes as usize) else {
                return self.transfer_part(target, offset, transfer);
            };
            let target = Target { time: Some(time), is_part: true, ..target };
            // Where the initiator copies, there is no NIC whose requests wait for each other.
            let has_place = is_step && !self.fabric.capabilities().initiator_copies;
            let moved = if has_place && !self.steps.enter(host, target.class, until) {
                Err(OperationError::Busy)
            } else {
                let moved = self.transfer_part(target, offset + at, part);
                if has_place {
                    self.steps.place.give((), target.class.priority, None);
                }
                moved
            };
            moved.map_err(|error| if at > 0 { error.after_parts() } else { error })?;
            at += bytes;
            if at == length {
                return Ok(());
            }
            time = until.saturating_sub(host.now());
        }
    }

    /// Returns whether a range lies within the region of a handle.
    fn is_within(&self, target: &Target<'_>, offset: u64, length: u64) -> bool {
        let described = self.state().handles.describe(target.handle);
        described.is_ok_and(|(_, _, size)| offset.checked_add(length).is_some_and(|end| end <= size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::RealHost;

    #[test]
    fn steps_begin_with_a_short_operation_and_end_some_steps_after_the_last() {
        let steps = Steps::<RealHost>::new(Policy::Shares);
        assert!((0..10).all(|_| !steps.begins(0)), "nobody else is there");
        assert!(steps.begins(3));
        assert_eq!((0..100).filter(|_| steps.begins(3)).count(), ALONE as usize);
        assert!(steps.begins(4) && steps.begins(4));
    }
}
