//! Endpoints for reliable datagrams of a device: one for each queue pair, and, if memory belongs to an
//! endpoint (Slingshot), one through which peers reach all granted memory.

use crate::device::{Device, Open};
use crate::domain_waiter::DomainWaiter;
use crate::handles::{AddressVector, CompletionQueue, Endpoint, Finds, Info, Inserted, MemoryRegion, Place};
use dunlin_fabric::Access;
use dunlin_fabric_control::{Mapping, lock};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The initial number of entries of a memory endpoint's completion queue, in which nothing completes.
const MEMORY_COMPLETIONS: usize = 64;

/// A device's state for datagrams.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) addresses: Arc<AddressVector>,
    /// By local address, if endpoints have Internet addresses.
    memory: Mutex<BTreeMap<Option<IpAddr>, MemoryEndpoint>>,
    /// The number of messages that came from elsewhere.
    strays: AtomicU64,
}

/// An endpoint through which peers reach memory. Only the keeper polls it.
#[derive(Debug)]
struct MemoryEndpoint {
    endpoint: Endpoint,
    address: Vec<u8>,
    _attention: Arc<DomainWaiter>,
}

impl Reach {
    pub(crate) fn new(addresses: Arc<AddressVector>) -> Self {
        Reach { addresses, memory: Mutex::default(), strays: AtomicU64::new(0) }
    }

    /// Returns the counter of dropped messages from elsewhere.
    pub(crate) fn strays(&self) -> &AtomicU64 {
        &self.strays
    }
}

impl Device {
    /// Returns the state for datagrams, or an error if the endpoints are connected.
    pub(crate) fn reach(&self) -> io::Result<&Reach> {
        self.reach.as_ref().ok_or_else(|| io::Error::other("this provider's endpoints are connections"))
    }

    /// Returns the local address of endpoints that peers reach at `local`; `None` if endpoints have no
    /// Internet addresses.
    fn own(&self, local: IpAddr) -> Option<IpAddr> {
        self.features.internet.then_some(local)
    }

    fn described(&self, own: Option<IpAddr>) -> io::Result<Info> {
        let place = own.map_or(Place::Any, |ip| Place::Source(SocketAddr::new(ip, 0)));
        Info::find(self.domain.library, &self.provider, &self.asked, place)
    }

    /// Opens a datagram endpoint at this address of the host, which completes in this domain's queue.
    pub(crate) fn open_datagrams(&self, local: IpAddr, attention: &Arc<DomainWaiter>) -> io::Result<Open> {
        let finds = Finds::Addresses(Arc::clone(&self.reach()?.addresses));
        let info = self.described(self.own(local))?;
        let endpoint = Endpoint::new(&info, attention.open_queue()?, &finds, None)?;
        Ok(Open { endpoint, connection: Arc::default(), number: self.retired.opened() })
    }

    /// Returns the address of the endpoint through which peers reach granted memory; empty if that is each
    /// queue pair's endpoint.
    pub(crate) fn memory_address(&self, local: IpAddr) -> io::Result<Vec<u8>> {
        if !self.features.memory_endpoint {
            return Ok(Vec::new());
        }
        self.with_memory_endpoint(self.own(local), |memory| Ok(memory.address.clone()))
    }

    /// Adds an address to the table.
    pub(crate) fn insert(&self, address: &[u8]) -> io::Result<Inserted> {
        self.reach()?.addresses.insert(address)
    }

    /// Lets peers access memory; see [`MemoryRegion::new`].
    pub(crate) fn register(&self, mapping: &Mapping, access: Access, key: u64) -> io::Result<MemoryRegion> {
        let key = key & self.features.key_mask;
        if !self.features.binds_memory {
            return MemoryRegion::new(&self.domain, mapping, access, key, None);
        }
        self.with_memory_endpoint(None, |memory| {
            MemoryRegion::new(&self.domain, mapping, access, key, Some(&memory.endpoint))
        })
    }

    fn with_memory_endpoint<T>(
        &self,
        own: Option<IpAddr>,
        what: impl FnOnce(&MemoryEndpoint) -> io::Result<T>,
    ) -> io::Result<T> {
        let reach = self.reach()?;
        let mut known = lock(&reach.memory);
        if let Some(memory) = known.get(&own) {
            return what(memory);
        }
        let attention = DomainWaiter::new()?;
        let make = || CompletionQueue::new(&self.domain, MEMORY_COMPLETIONS, self.features.is_connected());
        let finds = Finds::Addresses(Arc::clone(&reach.addresses));
        let endpoint = Endpoint::new(&self.described(own)?, attention.queue_or(make)?, &finds, None)?;
        let address = endpoint.address()?;
        self.keeper.look_after(&attention);
        what(known.entry(own).or_insert(MemoryEndpoint { endpoint, address, _attention: attention }))
    }

    /// Counts a message that came from elsewhere and is dropped.
    pub(crate) fn has_stray(&self) {
        let Some(reach) = &self.reach else { return };
        let before = reach.strays().fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(
                provider = self.provider,
                "messages come from elsewhere; they are dropped and counted"
            );
        }
    }
}
