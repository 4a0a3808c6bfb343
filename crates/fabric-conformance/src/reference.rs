//! The smallest correct fabric: one process, one lock, and every request executed by the thread that posts
//! it. It is the semantics of the vocabulary in executable form. The suite and the interposers are tested on
//! it. It is not fast, and only tests use it.

mod domain;
mod state;

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    AcceptError, Access, Address, Atomics, Capabilities, CreateError, DialError, Fabric, GrantError, Host,
    Link, LinkError, ListenError, Listener, Memory, Nanos, PeerIdentity, PlainPayloads, RealHost, RegionKey,
    RegisterError, Scheme, Signal, Subscription, TransportSet,
};
use state::{LinkId, Side, World};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use domain::{ReferenceDomain, ReferenceWaker};

type RealSignal = <RealHost as Host>::Signal;

/// The reference fabric. Clones are the same fabric; two that are made separately are not connected.
#[derive(Clone, Debug)]
pub struct Reference {
    world: Arc<World>,
    host: RealHost,
    capabilities: Capabilities,
}

impl Reference {
    /// Makes a new fabric with all capabilities.
    pub fn new() -> Self {
        let capabilities = Capabilities {
            name: "reference",
            transports: TransportSet::ALL,
            max_inline: 256,
            max_message: 2 << 20,
            max_datagram: 4096,
            datagram_headroom: 0,
            atomics: Atomics::Processors,
            immediate: true,
            acknowledged: true,
            in_order_write: true,
            cache_line_atomic_reads: true,
            shared_receive_queue: true,
            events: true,
            write_wakes: false,
            wakes_others: true,
            initiator_copies: false,
            target_progress: false,
            adopts: false,
            max_queue_pairs: 4096,
            max_queue_depth: 1024,
        };
        Reference { world: Arc::default(), host: RealHost, capabilities }
    }

    /// Changes the capabilities that the fabric reports. The suite does not use capabilities that it does not
    /// report.
    pub fn with_capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }
}

impl Default for Reference {
    fn default() -> Self {
        Reference::new()
    }
}

impl Fabric for Reference {
    type Host = RealHost;
    type Memory = HeapMemory;
    type Link = ReferenceLink;
    type Listener = ReferenceListener;
    type Domain = ReferenceDomain;
    type Payloads = PlainPayloads;

    fn host(&self) -> &RealHost {
        &self.host
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn payloads(&self) -> PlainPayloads {
        PlainPayloads
    }

    fn register(&self, length: u64, access: Access) -> Result<HeapMemory, RegisterError> {
        let limit = 1 << 32;
        if length == 0 || length > limit {
            return Err(RegisterError::Length { length, limit });
        }
        HeapMemory::new(length as usize, access)
            .ok_or_else(|| RegisterError::OutOfMemory { length, source: io::ErrorKind::OutOfMemory.into() })
    }

    fn domain(&self) -> Result<ReferenceDomain, CreateError> {
        Ok(ReferenceDomain::new(&self.world, &self.capabilities))
    }

    fn listen(&self, address: &Address) -> Result<ReferenceListener, ListenError> {
        if address.scheme() != Scheme::Sim {
            return Err(ListenError::WrongScheme(address.clone()));
        }
        let mut state = self.world.lock();
        if state.listeners.contains_key(address) {
            return Err(ListenError::InUse { address: address.clone() });
        }
        state.listeners.insert(address.clone(), Default::default());
        Ok(ReferenceListener { world: Arc::clone(&self.world), address: address.clone() })
    }

    fn dial(&self, address: &Address, _until: Nanos) -> Result<ReferenceLink, DialError> {
        if address.scheme() != Scheme::Sim {
            return Err(DialError::WrongScheme(address.clone()));
        }
        let mut state = self.world.lock();
        if !state.listeners.contains_key(address) {
            return Err(DialError::NobodyListens { address: address.clone() });
        }
        let link = state.new_link();
        if let Some(listening) = state.listeners.get_mut(address) {
            listening.waiting.push_back(link);
            if let Some(signal) = &listening.signal {
                signal.raise();
            }
        }
        self.world.changed.notify_all();
        let alive = Arc::clone(&state.links[&link].alive);
        Ok(ReferenceLink(Arc::new(LinkEnd {
            world: Arc::clone(&self.world),
            link,
            side: Side::Dialled,
            alive,
        })))
    }
}

/// Accepts links of a [`Reference`].
#[derive(Debug)]
pub struct ReferenceListener {
    world: Arc<World>,
    address: Address,
}

impl Drop for ReferenceListener {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if let Some(listening) = state.listeners.remove(&self.address) {
            for link in listening.waiting {
                state.close(link);
            }
        }
        self.world.changed.notify_all();
    }
}

impl Listener for ReferenceListener {
    type Link = ReferenceLink;
    type Signal = RealSignal;

    fn accept(&self, until: Nanos) -> Result<ReferenceLink, AcceptError> {
        loop {
            let seen = self.world.version();
            if let Some(link) = self.try_accept()? {
                return Ok(link);
            }
            if !self.world.wait(seen, until) {
                return Err(AcceptError::TimedOut);
            }
        }
    }

    fn try_accept(&self) -> Result<Option<ReferenceLink>, AcceptError> {
        let mut state = self.world.lock();
        let listening = state.listeners.get_mut(&self.address).ok_or(AcceptError::Closed)?;
        let Some(link) = listening.waiting.pop_front() else { return Ok(None) };
        let alive = Arc::clone(&state.links[&link].alive);
        let end = LinkEnd { world: Arc::clone(&self.world), link, side: Side::Accepted, alive };
        Ok(Some(ReferenceLink(Arc::new(end))))
    }

    fn subscribe(&self, signal: RealSignal) {
        if let Some(listening) = self.world.lock().listeners.get_mut(&self.address) {
            listening.signal = Some(signal);
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

/// A control connection of a [`Reference`].
#[derive(Clone, Debug)]
pub struct ReferenceLink(Arc<LinkEnd>);

#[derive(Debug)]
struct LinkEnd {
    world: Arc<World>,
    link: LinkId,
    side: Side,
    alive: Arc<AtomicBool>,
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        self.world.lock().close(self.link);
        self.world.changed.notify_all();
    }
}

/// The maximum number of messages that wait to be received.
const BACKLOG: usize = 1024;

impl Link for ReferenceLink {
    type Memory = HeapMemory;
    type Signal = RealSignal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        let LinkEnd { world, link, side, .. } = &*self.0;
        if message.len() > MAX_CONTROL_MESSAGE {
            return Err(LinkError::TooLong { length: message.len(), limit: MAX_CONTROL_MESSAGE });
        }
        let mut state = world.lock();
        let link = state.link(*link);
        if !link.alive.load(Ordering::Relaxed) {
            return Err(LinkError::PeerGone("closed".into()));
        }
        let peer = &mut link.ends[side.other() as usize];
        if peer.inbox.len() >= BACKLOG {
            return Err(LinkError::Backlog);
        }
        peer.inbox.push_back(message.to_vec());
        if let Some(subscription) = &peer.subscription {
            subscription.raise();
        }
        state.version += 1;
        world.changed.notify_all();
        Ok(())
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        loop {
            let seen = self.0.world.version();
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            if !self.0.world.wait(seen, until) {
                return Err(LinkError::TimedOut);
            }
        }
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut state = self.0.world.lock();
        let link = state.link(self.0.link);
        match link.ends[self.0.side as usize].inbox.pop_front() {
            None if !link.alive.load(Ordering::Relaxed) => Err(LinkError::PeerGone("closed".into())),
            message => Ok(message),
        }
    }

    fn grant(&self, memory: &Arc<HeapMemory>, access: Access) -> Result<RegionKey, GrantError> {
        if !memory.access().contains(access) {
            return Err(GrantError::Access);
        }
        let mut state = self.0.world.lock();
        state.next += 1;
        let key = RegionKey(state.next);
        let link = state.link(self.0.link);
        if !link.alive.load(Ordering::Relaxed) {
            return Err(LinkError::PeerGone("closed".into()).into());
        }
        link.ends[self.0.side as usize].grants.insert(key, (Arc::clone(memory), access));
        Ok(key)
    }

    fn revoke(&self, key: RegionKey) {
        self.0.world.lock().link(self.0.link).ends[self.0.side as usize].grants.remove(&key);
    }

    fn is_alive(&self) -> bool {
        self.0.alive.load(Ordering::Acquire)
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity { process: Some(std::process::id()), user: None }
    }

    fn subscribe(&self, subscription: Subscription<RealSignal>) {
        let mut state = self.0.world.lock();
        let link = state.link(self.0.link);
        let end = &mut link.ends[self.0.side as usize];
        end.subscription = Some(subscription.clone());
        if !end.inbox.is_empty() || !self.is_alive() {
            subscription.raise();
        }
    }

    fn close(&self) {
        self.0.world.lock().close(self.0.link);
        self.0.world.changed.notify_all();
    }
}
