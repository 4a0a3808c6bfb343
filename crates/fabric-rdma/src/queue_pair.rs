//! A queue pair with what is in flight on it.

use crate::early::Early;
use crate::endpoint::QueuePairAddress;
use crate::events::Flag;
use crate::handles;
use crate::link::{LinkShared, RemoteRegion};
use crate::manager::Awaited;
use crate::memory::RdmaMemory;
use crate::sys;
use dunlin_fabric::{
    Buffer, Gather, Opcode, QueuePairConfig, QueuePairId, QueuePairState, RegionKey, Transport, WorkId,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a work request holds until it is done.
#[derive(Debug)]
pub(crate) enum Held {
    /// Nothing: inline data.
    Nothing,
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
    pub(crate) held: Held,
    /// An atomic on an address that is not aligned. Drivers refuse it in ways of their own, some when it is posted; so it
    /// goes to the trap, and its completion says what is wrong with it.
    pub(crate) misaligned: bool,
}

/// Work requests in flight, numbered in the order in which they were posted. A completion ends all before it.
#[derive(Debug)]
pub(crate) struct SendQueue {
    sent: VecDeque<Sent>,
    depth: usize,
    /// The number of the first of `sent`. Numbers wrap; there are never 2^31 at once.
    first: u32,
}

impl SendQueue {
    fn new(depth: u32) -> Self {
        SendQueue { sent: VecDeque::with_capacity(depth as usize), depth: depth as usize, first: 0 }
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
    pub(crate) fn push(&mut self, sent: Sent) {
        self.sent.push_back(sent);
    }

    /// Takes back the newest, down to this number.
    pub(crate) fn take_back(&mut self, number: u32) {
        self.sent.truncate(number.wrapping_sub(self.first) as usize);
    }

    /// This one has completed, and with it all before it; `None` if it is none of ours.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32) -> Option<Sent> {
        let before = number.wrapping_sub(self.first) as usize;
        if before >= self.sent.len() {
            return None;
        }
        self.first = number.wrapping_add(1);
        self.sent.drain(..before);
        self.sent.pop_front()
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
        let receive = self.posted.pop_front()?;
        self.first = number.wrapping_add(1);
        Some(receive)
    }
}

/// What a connected queue pair knows of its other end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u32,
    /// Where work requests with a key that the peer has not granted go: to fail there, as verbs has it.
    trap_key: u32,
    /// The regions used last, so that the data path takes no lock; each at the place that its key says.
    known: [Option<Arc<RemoteRegion>>; KNOWN],
}

const KNOWN: usize = 8;

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// The first packet number of ours, which the peer is told.
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// The link that its address went out on.
    pub(crate) link: Option<Arc<LinkShared>>,
    /// The other end is gone.
    pub(crate) closed: Arc<Flag>,
    /// The device says that this end is of no use.
    pub(crate) broken: Arc<Flag>,
    pub(crate) peer: Option<Peer>,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue,
    /// What was posted before both ends of an iWARP connection have met; `None` once they have, and everywhere else.
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
            link: None,
            closed: Arc::default(),
            broken: Arc::default(),
            peer: None,
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

    /// Knows its other end from now on.
    pub(crate) fn meet(&mut self, address: &QueuePairAddress) {
        self.peer =
            Some(Peer { number: address.number, trap_key: address.trap_key, known: Default::default() });
        self.state = QueuePairState::Ready;
    }

    /// The other end may have come meanwhile: what waits for it is posted.
    pub(crate) fn look_for_peer(&mut self) {
        if let Some(awaited) = &self.awaited
            && awaited.is_joined()
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
        let (Some(peer), Some(link)) = (&mut self.peer, &self.link) else { return self.trap() };
        let place = &mut peer.known[key.0 as usize % KNOWN];
        if place.as_ref().is_none_or(|region| region.key != key || region.is_revoked()) {
            *place = link.import(key);
        }
        match place {
            // Bounds are the NIC's business: the peer's registration ends where its grant does.
            Some(region) => {
                sys::RemoteMemory { address: region.address.wrapping_add(offset), key: region.remote_key }
            }
            None => self.trap(),
        }
    }

    /// Where nothing of the peer's is.
    pub(crate) fn trap(&self) -> sys::RemoteMemory {
        sys::RemoteMemory { address: 0, key: self.peer.as_ref().map_or(0, |peer| peer.trap_key) }
    }

    /// It is broken, or its other end is: everything posted is flushed, and the other end told.
    pub(crate) fn fail(&mut self) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        if let Some(handle) = &mut self.handle {
            let attributes = sys::QueuePairAttributes { state: sys::STATE_ERROR, ..Default::default() };
            if let Err(error) = handle.modify(attributes, sys::SET_STATE) {
                tracing::warn!(%error, "a queue pair cannot be put into the error state");
            }
        }
        self.tell_closed();
    }

    /// Tells the other end that this one is of no use any more.
    pub(crate) fn tell_closed(&self) {
        if let (Some(peer), Some(link)) = (&self.peer, &self.link)
            && !self.closed.is_raised()
            && link.is_alive()
        {
            link.tell_closed(peer.number);
        }
    }

    /// Whether the other end is gone, as far as is known.
    pub(crate) fn is_orphan(&self) -> bool {
        self.closed.is_raised() || self.link.as_ref().is_some_and(|link| !link.is_alive())
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
        Sent { id: WorkId(id), opcode: Opcode::Write, bytes: 0, held: Held::Nothing, misaligned: false }
    }

    #[test]
    fn a_completion_frees_all_before_it() {
        let mut queue = SendQueue::new(4);
        queue.first = u32::MAX - 1;
        let numbers: Vec<u32> = (0..4)
            .map(|id| {
                let number = queue.next();
                queue.push(sent(id));
                number
            })
            .collect();
        assert_eq!(numbers, [u32::MAX - 1, u32::MAX, 0, 1]);
        assert_eq!(queue.room(), 0);
        assert_eq!(queue.complete(0).map(|sent| sent.id), Some(WorkId(2)));
        assert_eq!(queue.room(), 3);
        for strange in [0, u32::MAX, 2, 77] {
            assert!(queue.complete(strange).is_none(), "{strange}");
        }
        queue.push(sent(4));
        queue.take_back(2);
        assert_eq!((queue.room(), queue.next()), (3, 2));
        assert_eq!(queue.complete(1).map(|sent| sent.id), Some(WorkId(3)));
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
