//! A queue pair and its requests in flight.

use crate::QueuePairBinding;
use crate::early::Early;
use crate::endpoint::{QueuePairAddress, name_of};
use crate::handles;
use crate::manager::Awaited;
use crate::memory::RdmaMemory;
use crate::sys;
use dunlin_fabric::queue_pair_table::Identified;
use dunlin_fabric::{
    Buffer, CompletionQueueId, Gather, Host, Opcode, QueuePairConfig, QueuePairId, QueuePairState, RealHost,
    RegionKey, RegionRange, Transport, WorkId,
};
use dunlin_fabric_control::{Flag, Place};
use std::collections::VecDeque;
use std::sync::Arc;

/// The memory that a work request holds until it is done, unless its data is inline.
#[derive(Debug)]
pub(crate) enum Held {
    /// A buffer to send, or an atomic's result.
    One(Buffer<RdmaMemory>),
    /// Buffers to send.
    #[expect(dead_code, reason = "kept until the NIC is done with it")]
    Several(Gather<RdmaMemory>),
    /// A range of a region to send, or a READ's destination in a region.
    #[expect(dead_code, reason = "kept until the NIC is done with it")]
    Region(RegionRange<RdmaMemory>),
    /// A READ's destination, which the completion returns.
    Destination(Buffer<RdmaMemory>),
}

/// A work request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) bytes: u32,
    /// Whether its success makes a completion.
    pub(crate) signaled: bool,
    /// Whether it is an atomic on an unaligned address. Drivers reject those in different ways, some at
    /// posting, so the request goes to the trap, and its completion gets the status for misalignment.
    pub(crate) misaligned: bool,
}

/// Work requests in flight, numbered in posting order. A completion ends all earlier ones.
#[derive(Debug)]
pub(crate) struct SendQueue<H = Held> {
    sent: VecDeque<Sent>,
    /// The memory that they hold, in order, each with its request's number. Stored separately, since most
    /// requests hold none and it is most of the size.
    held: VecDeque<(u32, H)>,
    depth: usize,
    /// The number of the first of `sent`. Numbers wrap; there are never 2^31 at once.
    first: u32,
}

impl<H> SendQueue<H> {
    fn new(depth: u32) -> Self {
        let depth = depth as usize;
        let (sent, held) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        SendQueue { sent, held, depth, first: 0 }
    }

    /// Returns the number of free places.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.sent.len()
    }

    /// Returns the number of the next request.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.sent.len() as u32)
    }

    #[inline]
    pub(crate) fn push(&mut self, sent: Sent, held: Option<H>) {
        if let Some(held) = held {
            self.held.push_back((self.next(), held));
        }
        self.sent.push_back(sent);
    }

    /// Removes the newest requests, down to this number.
    pub(crate) fn take_back(&mut self, number: u32) {
        let left = number.wrapping_sub(self.first);
        self.sent.truncate(left as usize);
        let first = self.first;
        let kept = self.held.partition_point(|(holder, _)| holder.wrapping_sub(first) < left);
        self.held.truncate(kept);
    }

    /// Ends this request and all before it; returns it with the memory that it held, or `None` if the number
    /// is not in flight.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32) -> Option<(Sent, Option<H>)> {
        let before = number.wrapping_sub(self.first);
        if before as usize >= self.sent.len() {
            return None;
        }
        let mut its_own = None;
        while let Some((holder, _)) = self.held.front()
            && holder.wrapping_sub(self.first) <= before
        {
            its_own = self.held.pop_front().filter(|(holder, _)| *holder == number);
        }
        self.first = number.wrapping_add(1);
        self.sent.drain(..before as usize);
        Some((self.sent.pop_front()?, its_own.map(|(_, held)| held)))
    }

    /// Returns whether this request is in flight and unsignaled.
    pub(crate) fn is_unsignaled(&self, number: u32) -> bool {
        let before = number.wrapping_sub(self.first) as usize;
        self.sent.get(before).is_some_and(|sent| !sent.signaled)
    }

    /// Returns whether any request is signaled, so that its end must be reported.
    pub(crate) fn owes(&self) -> bool {
        self.sent.iter().any(|sent| sent.signaled)
    }

    /// Removes the next signaled request, and the unsignaled ones before it, which may have succeeded.
    pub(crate) fn abandon(&mut self) -> Option<(Sent, Option<H>)> {
        let before = self.sent.iter().position(|sent| sent.signaled)?;
        self.complete(self.first.wrapping_add(before as u32))
    }
}

/// A posted RECV.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<RdmaMemory>>,
}

impl Receive {
    /// Returns the memory that it may fill.
    pub(crate) fn memory(&self) -> Option<sys::ScatterGather> {
        self.buffer.as_ref().filter(|buffer| !buffer.is_empty()).map(part_of)
    }
}

/// Converts a buffer to verbs' format.
#[inline]
pub(crate) fn part_of(buffer: &Buffer<RdmaMemory>) -> sys::ScatterGather {
    sys::ScatterGather {
        address: buffer.as_ptr() as u64,
        length: u32::try_from(buffer.len()).unwrap_or(u32::MAX),
        local_key: buffer.memory().local_key(),
    }
}

/// Converts the first `length` bytes of a range, which has so many, to verbs' format.
pub(crate) fn part_of_region(range: &RegionRange<RdmaMemory>, length: u32) -> sys::ScatterGather {
    let local_key = range.region().memory().local_key();
    sys::ScatterGather { address: range.start() as u64, length, local_key }
}

/// RECVs of a queue pair, which complete in posting order.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    depth: usize,
    first: u32,
}

impl ReceiveQueue {
    fn new(depth: u32) -> Self {
        ReceiveQueue { posted: VecDeque::with_capacity(depth as usize), depth: depth as usize, first: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() >= self.depth
    }

    /// Returns the number of the next RECV.
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.posted.len() as u32)
    }

    pub(crate) fn push(&mut self, receive: Receive) {
        self.posted.push_back(receive);
    }

    /// Removes the first RECV, if it has this number.
    pub(crate) fn complete(&mut self, number: u32) -> Option<Receive> {
        if number != self.first {
            return None;
        }
        self.abandon()
    }

    /// Returns whether there are any RECVs.
    pub(crate) fn owes(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Removes the first RECV.
    pub(crate) fn abandon(&mut self) -> Option<Receive> {
        let receive = self.posted.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(receive)
    }
}

/// The time, in nanoseconds, that a device has to flush a broken queue pair.
const FLUSH_PATIENCE: u64 = 100_000_000;
/// The additional time, in nanoseconds, for which a completion queue that is not polled is waited for.
const UNSEEN_PATIENCE: u64 = 1_000_000_000;

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// This side's first packet number, which the peer is told.
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// The bond to the link that carried its address, and to its other end. Datagram queue pairs have none.
    pub(crate) bond: QueuePairBinding,
    /// Set when the device reports that this end is unusable.
    pub(crate) broken: Arc<Flag>,
    /// Once it is broken: the time, in nanoseconds, at which this side completes requests that the device has
    /// not flushed; `None` again when that is done.
    pub(crate) flush_at: Option<u64>,
    /// Whether all completions were taken since then, from the queues for sends and for receives.
    emptied: [bool; 2],
    /// The key for work requests whose key the peer has not granted; they fail there as in verbs.
    trap_key: u32,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue,
    /// On iWARP, at the end that waits for the request: requests posted before both ends have met. `None`
    /// after that, and on all other devices.
    pub(crate) early: Option<Vec<Early>>,
    /// The iWARP connection that the other end requests.
    pub(crate) awaited: Option<Arc<Awaited>>,
    /// Dropped before the requests in flight: after that the NIC accesses no memory.
    pub(crate) handle: Option<handles::QueuePair>,
}

impl Identified for QueuePair {
    #[inline]
    fn id(&self) -> QueuePairId {
        self.id
    }
}

impl QueuePair {
    pub(crate) fn new(
        id: QueuePairId,
        config: QueuePairConfig,
        handle: handles::QueuePair,
        random: u64,
    ) -> Self {
        QueuePair {
            id,
            config,
            state: QueuePairState::Initialised,
            psn: random as u32 & 0xff_ffff,
            // The highest bit marks privileged keys.
            qkey: (random >> 32) as u32 & 0x7fff_ffff,
            bond: QueuePairBinding::default(),
            broken: Arc::default(),
            flush_at: None,
            emptied: [false; 2],
            trap_key: 0,
            sends: SendQueue::new(config.max_send),
            receives: ReceiveQueue::new(config.max_receive),
            early: None,
            awaited: None,
            handle: Some(handle),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.handle.as_ref().map_or(0, handles::QueuePair::number)
    }

    /// Returns the name by which its other end knows it.
    pub(crate) fn name(&self) -> u64 {
        name_of(self.number(), self.psn)
    }

    /// Sets the other end.
    pub(crate) fn meet(&mut self, address: &QueuePairAddress) {
        self.bond.meet(address.name());
        self.trap_key = address.trap_key;
        self.state = QueuePairState::Ready;
    }

    /// Posts the waiting requests if the other end is ready now.
    pub(crate) fn look_for_peer(&mut self) {
        if let Some(awaited) = &self.awaited
            && awaited.is_joined()
            && self.bond.is_ready()
            && let Some(early) = self.early.take()
        {
            let Some(handle) = &mut self.handle else { return };
            for request in early {
                // SAFETY: as in `ring`: `sends` holds the buffers.
                if let Err(error) = unsafe { request.post(handle) } {
                    tracing::warn!(%error, "a queue pair takes no work requests");
                    return self.fail();
                }
            }
        }
    }

    /// Returns the remote address of a region of the peer.
    #[inline]
    pub(crate) fn remote(&mut self, key: RegionKey, offset: u64) -> sys::RemoteMemory {
        match self.bond.region(key) {
            // The NIC checks the bounds: the peer's registration is exactly as long as its grant.
            Some(region) => {
                let Place { remote_key, address, .. } = region.place;
                // The peer has the key from its device, whose keys have 32 bits; a longer one is invalid.
                let key = u32::try_from(remote_key).unwrap_or(self.trap_key);
                sys::RemoteMemory { address: address.wrapping_add(offset), key }
            }
            None => self.trap(),
        }
    }

    /// Returns the remote address of the trap, at which the peer has no memory.
    pub(crate) fn trap(&self) -> sys::RemoteMemory {
        sys::RemoteMemory { address: 0, key: self.trap_key }
    }

    /// Breaks the queue pair, because it or its other end has failed: all posted requests are flushed, and
    /// the other end is notified.
    pub(crate) fn fail(&mut self) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        self.flush_at = Some(RealHost.now().saturating_add(FLUSH_PATIENCE));
        // The device has not seen these requests.
        self.early = None;
        if let Some(handle) = &mut self.handle {
            let attributes = sys::QueuePairAttributes { state: sys::STATE_ERROR, ..Default::default() };
            if let Err(error) = handle.modify(attributes, sys::SET_STATE) {
                tracing::warn!(%error, "a queue pair cannot be put into the error state");
            }
        }
        self.bond.tell_closed();
    }

    /// Records that all completions of this queue were taken, `since` nanoseconds after the device should
    /// have flushed. Returns whether that holds for both queues, or the limit for unpolled queues has passed.
    /// With the queue pair, a device may discard completions that were not taken, even of successful
    /// requests.
    pub(crate) fn is_emptied(&mut self, queue: CompletionQueueId, since: u64) -> bool {
        self.emptied[0] |= self.config.send_completions == queue;
        self.emptied[1] |= self.config.receive_completions == queue;
        self.emptied == [true; 2] || since >= UNSEEN_PATIENCE
    }

    /// Returns whether any request posted here must still be reported.
    pub(crate) fn owes(&self) -> bool {
        self.sends.owes() || self.receives.owes()
    }

    /// Returns whether it has a single peer.
    pub(crate) fn is_connected_kind(&self) -> bool {
        self.config.transport != Transport::UnreliableDatagram
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The queue pair is destroyed first; then the buffers return to their arenas.
        self.handle = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: u64) -> Sent {
        Sent { id: WorkId(id), opcode: Opcode::Write, bytes: 0, signaled: true, misaligned: false }
    }

    #[test]
    fn a_completion_gives_what_it_held_and_drops_what_those_before_it_held() {
        let mut queue = SendQueue::new(8);
        queue.first = u32::MAX - 1;
        let held: Vec<Arc<()>> = (0..4).map(|_| Arc::default()).collect();
        let count = |at: usize| Arc::strong_count(&held[at]) - 1;
        let counts = || [count(0), count(1), count(2), count(3)];
        // Numbers MAX - 1 to 4, every other one with memory.
        for id in 0..7 {
            queue.push(sent(id), (id % 2 == 0).then(|| Arc::clone(&held[id as usize / 2])));
        }
        let (_, nothing) = queue.complete(1).unwrap();
        assert!(nothing.is_none());
        assert_eq!(counts(), [0, 0, 1, 1]);
        let (_, its_own) = queue.complete(2).unwrap();
        assert!(its_own.is_some_and(|its_own| Arc::ptr_eq(&its_own, &held[2])));
        queue.take_back(4);
        assert_eq!((queue.next(), counts()), (4, [0, 0, 0, 0]));
        queue.push(sent(9), Some(Arc::clone(&held[0])));
        queue.push(sent(10), Some(Arc::clone(&held[1])));
        queue.take_back(5);
        assert_eq!(counts(), [1, 0, 0, 0]);
        let (last, its_own) = queue.complete(4).unwrap();
        assert_eq!((last.id, its_own.is_some(), queue.room()), (WorkId(9), true, 8));
    }

    #[test]
    fn a_completion_frees_all_before_it() {
        let mut queue = SendQueue::<()>::new(4);
        queue.first = u32::MAX - 1;
        let numbers: Vec<u32> = (0..4)
            .map(|id| {
                let number = queue.next();
                queue.push(sent(id), None);
                number
            })
            .collect();
        assert_eq!(numbers, [u32::MAX - 1, u32::MAX, 0, 1]);
        assert_eq!(queue.room(), 0);
        assert_eq!(queue.complete(0).map(|(sent, _)| sent.id), Some(WorkId(2)));
        assert_eq!(queue.room(), 3);
        for strange in [0, u32::MAX, 2, 77] {
            assert!(queue.complete(strange).is_none(), "{strange}");
        }
        queue.push(sent(4), None);
        queue.take_back(2);
        assert_eq!((queue.room(), queue.next()), (3, 2));
        assert_eq!(queue.complete(1).map(|(sent, _)| sent.id), Some(WorkId(3)));
    }

    #[test]
    fn what_is_abandoned_is_told_once_and_only_to_who_waits() {
        let mut queue = SendQueue::<()>::new(8);
        queue.first = u32::MAX - 1;
        for id in 0..6 {
            queue.push(Sent { signaled: id == 1 || id == 3, ..sent(id) }, None);
        }
        assert_eq!(queue.complete(u32::MAX - 1).map(|(sent, _)| sent.id), Some(WorkId(0)));
        let unsignaled = [u32::MAX, 0, 1, 2, 3, 4].map(|number| queue.is_unsignaled(number));
        assert_eq!(unsignaled, [false, true, false, true, true, false]);
        let abandoned: Vec<WorkId> =
            std::iter::from_fn(|| queue.abandon()).map(|(sent, _)| sent.id).collect();
        assert_eq!(abandoned, [WorkId(1), WorkId(3)]);
        // Late completions of the device for them are ignored; those of the two unsignaled requests after
        // them are not.
        assert!(
            !queue.owes() && (0..2).all(|late: u32| queue.complete(u32::MAX.wrapping_add(late)).is_none())
        );
        assert_eq!(queue.complete(3).map(|(sent, _)| sent.id), Some(WorkId(5)));

        let mut queue = ReceiveQueue::new(2);
        for id in 0..2 {
            queue.push(Receive { id: WorkId(id), buffer: None });
        }
        assert_eq!(queue.complete(0).map(|receive| receive.id), Some(WorkId(0)));
        assert!(queue.owes());
        assert_eq!(queue.abandon().map(|receive| receive.id), Some(WorkId(1)));
        assert!(!queue.owes() && queue.abandon().is_none() && queue.complete(1).is_none());
    }

    #[test]
    fn receives_complete_in_order_only() {
        let mut queue = ReceiveQueue::new(2);
        for id in 0..2 {
            queue.push(Receive { id: WorkId(id), buffer: None });
        }
        assert!(queue.is_full() && queue.complete(1).is_none());
        assert_eq!(queue.complete(0).map(|receive| receive.id), Some(WorkId(0)));
        assert_eq!(queue.next(), 2);
    }
}
