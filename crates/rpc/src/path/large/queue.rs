//! The queue of messages and payloads that an end of a lane still has to post.

use super::{LargePayload, Pending};
use crate::path::Cx;
use crate::path::tx::{Tx, TxError};
use dunlin_fabric::Fabric;
use dunlin_wire::{Header, Kind};
use std::collections::VecDeque;

/// Messages and WRITEs of large payloads that one [`TransferQueue::run`] posts at most.
const STEPS_AT_ONCE: usize = 2;

/// The queue of messages and payloads that an end of a lane still has to post, in order.
#[derive(Debug)]
pub(crate) struct TransferQueue<F: Fabric> {
    queue: VecDeque<Pending<F>>,
    /// The last attempt to post the first entry found no room.
    stuck: bool,
}

impl<F: Fabric> TransferQueue<F> {
    /// Creates an empty queue, with capacity for a window if the lane's large payloads need one.
    pub(crate) fn new(large: LargePayload, window: u16) -> Self {
        let capacity = if large.facts().has_steps() { 2 * window as usize } else { 0 };
        TransferQueue { queue: VecDeque::with_capacity(capacity), stuck: false }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether the queue waits for room.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, transfer: Pending<F>) {
        self.queue.push_back(transfer);
    }

    /// Posts entries while there is room, at most [`STEPS_AT_ONCE`] so that other lanes are not delayed.
    /// Returns whether it posted any. The messages carry `head`.
    pub(crate) fn run(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError> {
        self.stuck = false;
        for step in 0..STEPS_AT_ONCE {
            let Some(transfer) = self.queue.front_mut() else { return Ok(step > 0) };
            match transfer.get_mut().step(cx, tx, head) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => {}
                Err(TxError::Full) => {
                    self.stuck = true;
                    return Ok(step > 0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Returns the header of a message about the payload of `call`.
pub(super) fn header(kind: Kind, call: u32, head: u32) -> Header {
    Header { call, head, ..Header::new(kind) }
}
