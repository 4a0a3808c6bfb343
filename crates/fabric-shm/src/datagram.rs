//! Datagrams: each address handle has a ring of its own at the receiver, which the receiver's control thread makes
//! and grants when the handle is created. A datagram is lost, as in verbs, when there is no room or no RECV.

use crate::completion_queue::CompletionQueue;
use crate::doorbell::{Attention, PeerDoorbell};
use crate::execute::Source;
use crate::fabric::MAX_DATAGRAM;
use crate::inbound::{Consumer, FIRST, IMMEDIATE, LAST, Producer};
use crate::link::{DatagramTarget, LinkShared};
use crate::memory::ShmMemory;
use crate::queue_pair::QueuePair;
use crate::receive::{Drained, Partial, Receiver, SharedReceiveQueue};
use crate::send::check_data;
use dunlin_fabric::{
    Access, AddressHandles, GrantError, Operation, PostError, QueuePairId, QueuePairState, RegionKey,
    Transport, WorkRequest,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rings that one datagram queue pair may have.
const MAX_RINGS: usize = 4096;
/// Two of the longest datagrams and their lines.
const SMALLEST_RING: u64 = 16 * 1024;

/// A ring that one address handle of a peer fills.
#[derive(Debug)]
pub(crate) struct DatagramRing {
    link: Arc<LinkShared>,
    ring: RegionKey,
    consumer: Consumer,
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Inbox {
    ring_bytes: u64,
    rings: usize,
    fresh: Vec<DatagramRing>,
}

/// What the control thread needs of a domain: its doorbell, and where new rings go.
#[derive(Debug)]
pub(crate) struct Hub {
    attention: Arc<Attention>,
    doorbells: Mutex<Vec<(Arc<LinkShared>, RegionKey)>>,
    inboxes: Mutex<BTreeMap<u32, Inbox>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new(attention: &Arc<Attention>) -> Arc<Self> {
        Arc::new(Hub {
            attention: Arc::clone(attention),
            doorbells: Mutex::default(),
            inboxes: Mutex::default(),
        })
    }

    /// The doorbell's name on a link; granted the first time.
    pub(crate) fn doorbell(&self, link: &Arc<LinkShared>, patient: bool) -> Result<RegionKey, GrantError> {
        if let Some(key) = self.granted_doorbell(link) {
            return Ok(key);
        }
        // Not under the lock, which the control thread takes too: a peer that reads slowly would hold it up. Two at
        // once grant it twice, which does no harm.
        let access = Access::READ.with(Access::WRITE);
        if !link.is_trusted() {
            self.attention.distrust();
        }
        let key = link.grant_internal(self.attention.memory(), access, patient)?;
        let mut doorbells = lock(&self.doorbells);
        doorbells.retain(|(link, _)| link.is_alive());
        doorbells.push((Arc::clone(link), key));
        Ok(key)
    }

    fn granted_doorbell(&self, link: &Arc<LinkShared>) -> Option<RegionKey> {
        lock(&self.doorbells).iter().find(|(l, _)| Arc::ptr_eq(l, link)).map(|(_, key)| *key)
    }

    /// Takes rings for a datagram queue pair from now on.
    pub(crate) fn open(&self, queue_pair: QueuePairId, ring_bytes: u32) {
        let ring_bytes = u64::from(ring_bytes).max(SMALLEST_RING);
        lock(&self.inboxes).insert(queue_pair.0, Inbox { ring_bytes, rings: 0, fresh: Vec::new() });
    }

    /// No longer.
    pub(crate) fn close(&self, queue_pair: QueuePairId) {
        if let Some(inbox) = lock(&self.inboxes).remove(&queue_pair.0) {
            inbox.fresh.iter().for_each(DatagramRing::end);
        }
    }

    /// Gives the new rings of a queue pair; `dropped`: how many old ones it has let go.
    fn collect(&self, queue_pair: QueuePairId, into: &mut Vec<DatagramRing>, dropped: usize) {
        if let Some(inbox) = lock(&self.inboxes).get_mut(&queue_pair.0) {
            inbox.rings -= dropped.min(inbox.rings);
            into.append(&mut inbox.fresh);
        }
    }
}

impl DatagramTarget for Hub {
    fn make_ring(&self, link: &Arc<LinkShared>, queue_pair: u32) -> Option<(RegionKey, RegionKey)> {
        let made = self.try_make_ring(link, queue_pair);
        if let Err(error) = &made {
            tracing::warn!(%error, "a peer gets no ring for datagrams");
        }
        let made = made.ok().flatten();
        if made.is_some() {
            self.attention.news();
        }
        made
    }
}

impl Hub {
    fn try_make_ring(
        &self,
        link: &Arc<LinkShared>,
        queue_pair: u32,
    ) -> Result<Option<(RegionKey, RegionKey)>, GrantError> {
        let doorbell = self.doorbell(link, false)?;
        let mut inboxes = lock(&self.inboxes);
        let Some(inbox) = inboxes.get_mut(&queue_pair).filter(|i| i.rings < MAX_RINGS) else {
            return Ok(None);
        };
        let Ok(memory) = ShmMemory::new(inbox.ring_bytes.next_multiple_of(4096), Access::WRITE) else {
            return Ok(None);
        };
        let memory = Arc::new(memory);
        let ring = link.grant_internal(&memory, Access::WRITE, false)?;
        memory.close_descriptor();
        let Some(consumer) = Consumer::new(memory, link.secrets().ours, ring.0) else { return Ok(None) };
        inbox.rings += 1;
        inbox.fresh.push(DatagramRing { link: Arc::clone(link), ring, consumer, partial: None });
        Ok(Some((ring, doorbell)))
    }
}

impl DatagramRing {
    /// Takes the grant back.
    fn end(&self) {
        self.link.revoke(self.ring, false);
    }
}

/// Where datagrams of one queue pair go.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) producer: Producer,
    pub(crate) doorbell: PeerDoorbell,
}

/// The datagram side of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    rings: Vec<DatagramRing>,
}

impl Datagrams {
    /// Takes all grants back.
    pub(crate) fn end(&mut self) {
        self.rings.drain(..).for_each(|ring| ring.end());
    }
}

impl QueuePair {
    /// Takes new rings, and lets go those whose peers are gone once they are empty.
    pub(crate) fn update_datagrams(&mut self, hub: &Hub) {
        let before = self.datagrams.rings.len();
        self.datagrams.rings.retain(|r| r.link.is_alive() || r.consumer.has_record());
        let dropped = before - self.datagrams.rings.len();
        hub.collect(self.id, &mut self.datagrams.rings, dropped);
    }

    /// Looks into all rings; whether there may be more to take.
    pub(crate) fn drive_datagrams(
        &mut self,
        queues: &mut [CompletionQueue],
        shared: &mut [SharedReceiveQueue],
        budget: usize,
    ) -> bool {
        if self.state != QueuePairState::Ready {
            return false;
        }
        let queue = &mut queues[self.config.receive_completions.0 as usize];
        let mut more = false;
        for ring in &mut self.datagrams.rings {
            let receives = match self.config.shared_receive {
                None => &mut self.receives,
                Some(shared_receive) => &mut shared[shared_receive.0 as usize].receives,
            };
            let (drained, _) = Receiver {
                queue_pair: self.id,
                transport: Transport::UnreliableDatagram,
                consumer: &mut ring.consumer,
                partial: &mut ring.partial,
                receives,
                queue,
            }
            .drain(budget);
            ring.consumer.publish();
            match drained {
                Drained::More => more = true,
                Drained::Empty | Drained::NotReady(_) => {}
                // One sender that breaks the rules does not hurt the others: its ring stays silent.
                Drained::Broken => ring.link.end("it broke the rules of datagram rings"),
            }
        }
        more
    }

    /// Sends a datagram, or loses it.
    pub(crate) fn post_datagram(
        &mut self,
        queues: &mut [CompletionQueue],
        handles: &mut AddressHandles<AddressHandle>,
        request: &WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        if self.state == QueuePairState::Error {
            return Err(PostError::QueuePairError);
        }
        let Operation::Send { data, immediate, to } = &request.operation else {
            return Err(PostError::Transport("datagrams are sent with SEND only"));
        };
        let to = to.ok_or(PostError::Transport("a datagram needs an address handle"))?;
        let handle = handles.get_mut(self.id, to).ok_or(PostError::NoSuch("address handle"))?;
        check_data(data, MAX_DATAGRAM)?;
        if self.send.room() == 0 {
            return Err(PostError::QueueFull);
        }
        let length = data.length() as usize;
        let producer = &mut handle.producer;
        let fits = length <= producer.record_payload() && producer.find_room(length);
        if fits && handle.link.is_alive() {
            let flags = FIRST | LAST | if immediate.is_some() { IMMEDIATE } else { 0 };
            producer.push(flags, immediate.unwrap_or(0), &Source::of(data), 0, length);
            handle.doorbell.ring();
        }
        self.sent_datagram(queues, request.id, request.signaled);
        Ok(())
    }
}
