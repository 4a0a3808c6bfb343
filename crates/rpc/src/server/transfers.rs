//! A lane's answers that wait for room, and its large payloads. Most lanes never have any, so a lane has the state from
//! the first one on.

use super::config::ServerConfig;
use super::dispatch::Call;
use super::lane::Waiting;
use super::pulled_calls::HeldLane;
use crate::path::Cx;
use crate::path::large::{Inbound, Inward, Pool, Receiver, TransferQueue};
use crate::plan::LargePayload;
use dunlin_fabric::{Buffer, Fabric, QueuePairId, RegionKey};
use std::collections::VecDeque;
use std::sync::Arc;

/// Answers that wait for room, large payloads under way, and the memory for them.
#[derive(Debug)]
pub(crate) struct Transfers<F: Fabric> {
    /// Answers that wait for room.
    pub(super) waiting: VecDeque<Waiting>,
    /// Messages and payloads still to be sent for large results and requests.
    pub(crate) pending_transfers: TransferQueue<F>,
    /// Large requests that are being READ.
    pub(crate) reading: Vec<Call>,
    /// Large results that the client has not read, or for which it has not named a place yet.
    pub(crate) exported: Vec<(u32, Buffer<F::Memory>)>,
    pub(crate) exports: Pool<F>,
    /// Large requests that come by messages of the client.
    pub(crate) arriving: Vec<Call>,
    pub(crate) inbound: Inbound<F>,
    /// Calls held for the thread that runs the worker.
    pub(crate) held: HeldLane,
}

/// A lane's [`Transfers`], made when they are first needed.
#[derive(Debug)]
pub(crate) struct LaneTransfers<F: Fabric> {
    link: F::Link,
    made: Option<Box<Transfers<F>>>,
    config: Arc<ServerConfig>,
    window: u16,
    large: LargePayload,
}

impl<F: Fabric> LaneTransfers<F> {
    pub(crate) fn new(link: F::Link, config: Arc<ServerConfig>, large: LargePayload, window: u16) -> Self {
        LaneTransfers { link, made: None, config, window, large }
    }

    /// Returns the connection of the lane.
    pub(crate) fn link(&self) -> &F::Link {
        &self.link
    }

    /// Returns whether a large result of `length` bytes may be announced before it is filled.
    pub(crate) fn leave_early(&self, length: usize) -> bool {
        self.large.facts().leaves_early(length)
    }

    /// Returns the state, if it was ever needed.
    #[inline]
    pub(crate) fn made(&self) -> Option<&Transfers<F>> {
        self.made.as_deref()
    }

    /// As [`made`](LaneTransfers::made).
    #[inline]
    pub(crate) fn made_mut(&mut self) -> Option<&mut Transfers<F>> {
        self.made.as_deref_mut()
    }

    /// Returns the state; allocates it when it is first needed.
    pub(crate) fn make(&mut self) -> &mut Transfers<F> {
        let LaneTransfers { link, made, config, window, large } = self;
        made.get_or_insert_with(|| {
            Box::new(Transfers {
                waiting: VecDeque::new(),
                pending_transfers: TransferQueue::new(*large, *window),
                reading: Vec::new(),
                exported: Vec::new(),
                exports: Pool::new(
                    large.facts().is_read().then(|| link.clone()),
                    config.large_response_memory,
                ),
                arriving: Vec::new(),
                inbound: large.sender().receiver(link.clone(), config.large_memory, *window),
                held: HeldLane::default(),
            })
        })
    }

    /// Returns the receiving end for large requests, and its means for the request of `call`.
    pub(crate) fn inward<'a>(
        &'a mut self,
        cx: &'a mut Cx<'_, F>,
        at: (QueuePairId, u16),
        private: &'a mut Pool<F>,
        call: u32,
    ) -> (&'a mut dyn Receiver<F>, Inward<'a, F>) {
        let made = self.make();
        let (cx, queue) = (Cx::of(cx.fabric, cx.domain), &mut made.pending_transfers);
        (made.inbound.get_mut(), Inward { cx, call, at, private, queue })
    }

    /// Keeps a large result until the client has read it. The first one makes room for those of all calls.
    pub(crate) fn keep_exported(&mut self, call: u32, buffer: Buffer<F::Memory>) {
        let window = usize::from(self.window);
        keep(&mut self.make().exported, window, (call, buffer));
    }

    /// Keeps a call whose large request is being READ. As [`keep_exported`](LaneTransfers::keep_exported).
    pub(crate) fn keep_reading(&mut self, call: Call) {
        let window = usize::from(self.window);
        keep(&mut self.make().reading, window, call);
    }

    /// Returns whether answers wait for room.
    #[inline]
    pub(crate) fn have_waiting(&self) -> bool {
        self.made().is_some_and(|made| !made.waiting.is_empty())
    }

    /// Removes and returns the first answer that waits for room.
    pub(super) fn next_waiting(&mut self) -> Option<Waiting> {
        self.made_mut()?.waiting.pop_front()
    }

    /// Returns whether answers, or messages of large payloads, wait to be sent.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        self.made().is_some_and(|made| !made.waiting.is_empty() || !made.pending_transfers.is_empty())
    }

    /// Returns whether answers, or messages of large payloads, wait for room.
    #[inline]
    pub(crate) fn are_stuck(&self) -> bool {
        self.made().is_some_and(|made| !made.waiting.is_empty() || made.pending_transfers.is_stuck())
    }

    /// Returns the number of large requests that are being READ.
    #[inline]
    pub(crate) fn reads(&self) -> usize {
        self.made().map_or(0, |made| made.reading.len())
    }

    /// Returns whether a large request is on its way.
    pub(crate) fn are_arriving(&self) -> bool {
        self.made().is_some_and(|made| !made.reading.is_empty() || !made.arriving.is_empty())
    }

    /// Returns whether the client has large results that it has not read.
    #[inline]
    pub(crate) fn are_exported(&self) -> bool {
        self.made().is_some_and(|made| !made.exported.is_empty())
    }

    /// Removes and returns the call of a large request that was being READ.
    pub(crate) fn take_reading(&mut self, call: u32) -> Option<Call> {
        let made = self.made_mut()?;
        let at = made.reading.iter().position(|reading| reading.call == call)?;
        Some(made.reading.swap_remove(at))
    }

    /// Removes and returns a large result that waits for the client's place to write to.
    pub(crate) fn take_exported(&mut self, call: u32) -> Option<Buffer<F::Memory>> {
        let made = self.made_mut()?;
        let at = made.exported.iter().position(|(exported, _)| *exported == call)?;
        Some(made.exported.swap_remove(at).1)
    }

    /// Releases large results that the client has read.
    pub(crate) fn release(&mut self, calls: impl Iterator<Item = u32>) {
        let Some(made) = self.made_mut() else { return };
        for call in calls {
            made.exported.retain(|(exported, _)| *exported != call);
        }
    }

    /// Returns the keys of the memory that was granted for large payloads.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        let made = self.made();
        made.into_iter().flat_map(|made| made.exports.keys().chain(made.inbound.keys()))
    }
}

fn keep<T>(list: &mut Vec<T>, window: usize, entry: T) {
    if list.capacity() == 0 {
        list.reserve_exact(window);
    }
    list.push(entry);
}
