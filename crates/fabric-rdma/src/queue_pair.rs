//! A queue pair with what is in flight on it.

use crate::Bond;
use crate::early::Early;
use crate::endpoint::{QueuePairAddress, name_of};
use crate::handles;
use crate::manager::Awaited;
use crate::memory::RdmaMemory;
use crate::sys;
use dunlin_fabric::{
    Buffer, CompletionQueueId, Gather, Host, Opcode, QueuePairConfig, QueuePairId, QueuePairState, RealHost,
    RegionKey, Transport, WorkId,
};
use dunlin_fabric_control::{Flag, Place};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a work request holds until it is done, unless its data is inline.
#[derive(Debug)]
pub(crate) enum Held {
    /// A buffer that is sent, or an atomic's result.
    One(Buffer<RdmaMemory>),
    /// Buffers that are sent.
    #[expect(dead_code, reason = "kept until the NIC is done with it")]
    Several(Gather<RdmaMemory>),
    /// A READ's destination, given back.
    Destination(Buffer<RdmaMemory>),
}

/// A work request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) bytes: u32,
    /// Whether its success would be told.
    pub(crate) signaled: bool,
    /// An atomic on an address that is not aligned. Drivers refuse it in ways of their own, some when it is posted; so it
    /// goes to the trap, and its completion says what is wrong with it.
    pub(crate) misaligned: bool,
}

/// Work requests in flight, numbered in the order in which they were posted. A completion ends all before it.
#[derive(Debug)]
pub(crate) struct SendQueue<H = Held> {
    sent: VecDeque<Sent>,
    /// What they hold, in their order, each with its number: apart, since most hold nothing and this is most of the bytes.
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

    /// How many more fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.sent.len()
    }

    /// The number of the next.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.sent.len() as u32)
    }

    /// Adds one.
    #[inline]
    pub(crate) fn push(&mut self, sent: Sent, held: Option<H>) {
        if let Some(held) = held {
            self.held.push_back((self.next(), held));
        }
        self.sent.push_back(sent);
    }

    /// Takes back the newest, down to this number.
    pub(crate) fn take_back(&mut self, number: u32) {
        let left = number.wrapping_sub(self.first);
        self.sent.truncate(left as usize);
        let first = self.first;
        let kept = self.held.partition_point(|(holder, _)| holder.wrapping_sub(first) < left);
        self.held.truncate(kept);
    }

    /// This one has completed, and with it all before it; gives what it held. `None` if it is none of ours.
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

    /// Whether this one is there, and nobody waits for its success.
    pub(crate) fn is_unsignaled(&self, number: u32) -> bool {
        let before = number.wrapping_sub(self.first) as usize;
        self.sent.get(before).is_some_and(|sent| !sent.signaled)
    }

    /// Whether somebody is to be told of one of them, however it ends.
    pub(crate) fn owes(&self) -> bool {
        self.sent.iter().any(|sent| sent.signaled)
    }

    /// Takes the next that somebody is to be told of. Those before it that nobody waits for may have succeeded.
    pub(crate) fn abandon(&mut self) -> Option<(Sent, Option<H>)> {
        let before = self.sent.iter().position(|sent| sent.signaled)?;
        self.complete(self.first.wrapping_add(before as u32))
    }
}

/// A RECV that is posted.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<RdmaMemory>>,
}

impl Receive {
    /// The memory that it may fill.
    pub(crate) fn memory(&self) -> Option<sys::ScatterGather> {
        self.buffer.as_ref().filter(|buffer| !buffer.is_empty()).map(part_of)
    }
}

/// A buffer as verbs names it.
#[inline]
pub(crate) fn part_of(buffer: &Buffer<RdmaMemory>) -> sys::ScatterGather {
    sys::ScatterGather {
        address: buffer.as_ptr() as u64,
        length: u32::try_from(buffer.len()).unwrap_or(u32::MAX),
        local_key: buffer.memory().local_key(),
    }
}

/// RECVs of a queue pair, which complete in the order in which they were posted.
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

    /// The number of the next.
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.posted.len() as u32)
    }

    pub(crate) fn push(&mut self, receive: Receive) {
        self.posted.push_back(receive);
    }

    /// The first, if it has this number.
    pub(crate) fn complete(&mut self, number: u32) -> Option<Receive> {
        if number != self.first {
            return None;
        }
        self.abandon()
    }

    /// Whether there are any.
    pub(crate) fn owes(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Takes the first.
    pub(crate) fn abandon(&mut self) -> Option<Receive> {
        let receive = self.posted.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(receive)
    }
}

/// How long a device may take to flush what is posted on a broken queue pair, in nanoseconds.
const FLUSH_PATIENCE: u64 = 100_000_000;
/// How much longer one of its completion queues may go without being looked at, in nanoseconds.
const UNSEEN_PATIENCE: u64 = 1_000_000_000;

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// The first packet number of ours, which the peer is told.
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// To the link that its address went out on, and to its other end. Datagrams have none.
    pub(crate) bond: Bond,
    /// The device says that this end is of no use.
    pub(crate) broken: Arc<Flag>,
    /// Once it is broken: when what the device has not flushed is ended by us, in nanoseconds; `None` again when that is done.
    pub(crate) flush_at: Option<u64>,
    /// Whether all completions were taken of the queues of sends and receives since then.
    emptied: [bool; 2],
    /// Where work requests with a key that the peer has not granted go: to fail there, as verbs has it.
    trap_key: u32,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue,
    /// What was posted before both ends of an iWARP connection have met, where the other end asks; `None` once they have, and
    /// everywhere else.
    pub(crate) early: Option<Vec<Early>>,
    /// The iWARP connection that the other end asks for.
    pub(crate) awaited: Option<Arc<Awaited>>,
    /// Dropped before what is in flight is: the NIC touches nothing after that.
    pub(crate) handle: Option<handles::QueuePair>,
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
            // The highest bit is for privileged ones.
            qkey: (random >> 32) as u32 & 0x7fff_ffff,
            bond: Bond::default(),
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

    /// Its number on the device.
    pub(crate) fn number(&self) -> u32 {
        self.handle.as_ref().map_or(0, handles::QueuePair::number)
    }

    /// What its other end calls it.
    pub(crate) fn name(&self) -> u64 {
        name_of(self.number(), self.psn)
    }

    /// Knows its other end from now on.
    pub(crate) fn meet(&mut self, address: &QueuePairAddress) {
        self.bond.meet(address.name());
        self.trap_key = address.trap_key;
        self.state = QueuePairState::Ready;
    }

    /// The other end may have come meanwhile: what waits for it is posted.
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

    /// Where a region of the peer's is.
    #[inline]
    pub(crate) fn remote(&mut self, key: RegionKey, offset: u64) -> sys::RemoteMemory {
        match self.bond.region(key) {
            // Bounds are the NIC's business: the peer's registration ends where its grant does.
            Some(region) => {
                let Place { remote_key, address, .. } = region.place;
                // The peer has it from its device, whose keys are as long as this; another one is none.
                let key = u32::try_from(remote_key).unwrap_or(self.trap_key);
                sys::RemoteMemory { address: address.wrapping_add(offset), key }
            }
            None => self.trap(),
        }
    }

    /// Where nothing of the peer's is.
    pub(crate) fn trap(&self) -> sys::RemoteMemory {
        sys::RemoteMemory { address: 0, key: self.trap_key }
    }

    /// It is broken, or its other end is: everything posted is flushed, and the other end told.
    pub(crate) fn fail(&mut self) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        self.flush_at = Some(RealHost.now().saturating_add(FLUSH_PATIENCE));
        // The device has not seen these.
        self.early = None;
        if let Some(handle) = &mut self.handle {
            let attributes = sys::QueuePairAttributes { state: sys::STATE_ERROR, ..Default::default() };
            if let Err(error) = handle.modify(attributes, sys::SET_STATE) {
                tracing::warn!(%error, "a queue pair cannot be put into the error state");
            }
        }
        self.bond.tell_closed();
    }

    /// All completions of this queue were taken, so long after the device should have flushed. Says whether that is so of
    /// both its queues: with the queue pair a device may take back completions that were not, and those may be of successes.
    /// A queue that nobody looks at is not waited for.
    pub(crate) fn is_emptied(&mut self, queue: CompletionQueueId, since: u64) -> bool {
        self.emptied[0] |= self.config.send_completions == queue;
        self.emptied[1] |= self.config.receive_completions == queue;
        self.emptied == [true; 2] || since >= UNSEEN_PATIENCE
    }

    /// Whether somebody is to be told how something posted here ended.
    pub(crate) fn owes(&self) -> bool {
        self.sends.owes() || self.receives.owes()
    }

    /// Whether it talks to one peer.
    pub(crate) fn is_connected_kind(&self) -> bool {
        self.config.transport != Transport::UnreliableDatagram
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // First the NIC lets go, then the buffers return to their arenas.
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
        // Numbers MAX - 1 to 4, every other one with something.
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
        // What the device says of them after all is too late; the two unsignaled ones behind are its own.
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
