//! Datagrams: each address handle has its own ring at the receiver. The receiver's control thread makes and
//! grants it when the handle is created. As in verbs, a datagram is lost if there is no room or no RECV.

use crate::doorbell::{DomainWaiter, PeerDoorbell};
use crate::inbound::{Consumer, Producer};
use crate::link::{DatagramTarget, LinkShared};
use crate::memory::ShmMemory;
use crate::receive::Partial;
use dunlin_fabric::{Access, GrantError, QueuePairId, RegionKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of rings of one datagram queue pair.
const MAX_RINGS: usize = 4096;
/// Room for two datagrams of maximum length with their header lines.
const SMALLEST_RING: u64 = 16 * 1024;

/// A ring that one address handle of a peer fills.
#[derive(Debug)]
pub(crate) struct DatagramRing {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) ring: RegionKey,
    pub(crate) consumer: Consumer,
    pub(crate) partial: Option<Partial>,
}

#[derive(Debug)]
struct Inbox {
    ring_bytes: u64,
    rings: usize,
    fresh: Vec<DatagramRing>,
}

/// The part of a domain that the control thread uses: its doorbell, and its queues of new rings.
#[derive(Debug)]
pub(crate) struct Hub {
    attention: Arc<DomainWaiter>,
    doorbells: Mutex<Vec<(Arc<LinkShared>, RegionKey)>>,
    inboxes: Mutex<BTreeMap<u32, Inbox>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new(attention: &Arc<DomainWaiter>) -> Arc<Self> {
        Arc::new(Hub {
            attention: Arc::clone(attention),
            doorbells: Mutex::default(),
            inboxes: Mutex::default(),
        })
    }

    /// Returns the doorbell's key on a link; grants it at the first call.
    pub(crate) fn doorbell(&self, link: &Arc<LinkShared>, patient: bool) -> Result<RegionKey, GrantError> {
        if let Some(key) = self.granted_doorbell(link) {
            return Ok(key);
        }
        // Not under the lock, which the control thread takes too: a peer that reads slowly would delay that
        // thread. Two concurrent calls grant the doorbell twice, which is harmless.
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

    /// Accepts rings for a datagram queue pair from now on.
    pub(crate) fn open(&self, queue_pair: QueuePairId, ring_bytes: u32) {
        let ring_bytes = u64::from(ring_bytes).max(SMALLEST_RING);
        lock(&self.inboxes).insert(queue_pair.0, Inbox { ring_bytes, rings: 0, fresh: Vec::new() });
    }

    /// Stops accepting rings for a datagram queue pair.
    pub(crate) fn close(&self, queue_pair: QueuePairId) {
        if let Some(inbox) = lock(&self.inboxes).remove(&queue_pair.0) {
            inbox.fresh.iter().for_each(DatagramRing::end);
        }
    }

    /// Moves the new rings of a queue pair into `into`. `dropped` is the number of old rings that it has
    /// released.
    pub(crate) fn collect(&self, queue_pair: QueuePairId, into: &mut Vec<DatagramRing>, dropped: usize) {
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
    /// Revokes the grant.
    fn end(&self) {
        self.link.revoke(self.ring, false);
    }
}

/// The destination of datagrams from one queue pair.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) producer: Producer,
    pub(crate) doorbell: PeerDoorbell,
}

/// The datagram state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    pub(crate) rings: Vec<DatagramRing>,
}

impl Datagrams {
    /// Revokes all grants.
    pub(crate) fn end(&mut self) {
        self.rings.drain(..).for_each(|ring| ring.end());
    }
}
