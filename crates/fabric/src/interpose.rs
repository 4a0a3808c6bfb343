//! Interposers: fabrics that wrap another fabric (libfabric's hooking providers). [`Count`] counts
//! operations, [`Trace`] reports them to `tracing`, and [`Fault`] injects failures. They stack in any order.
//! Code that is generic over [`Fabric`] does not know about them, so no hot path contains an `if testing`.
//!
//! Delegation is written once, here. An [`Interposed`] fabric passes every operation to its [`Hooks`], whose
//! methods pass it to the wrapped fabric by default. An interposer overrides the methods that it needs.

pub mod count;
pub mod fault;
pub mod observe;
pub mod trace;

pub use count::{Count, CountSnapshot};
pub use fault::{CompletionFault, Delay, Fault, FaultCounts, FaultPlan, When};
pub use observe::{Event, Observer, Observing};
pub use trace::Trace;

use crate::work::{AddressHandleId, CompletionQueueId, SharedReceiveQueueId};
use crate::{
    AcceptError, Access, Address, AnyMemory, AnyWaker, Armed, Buffer, Capabilities, Completion, CreateError,
    Crowding, DeviceIdentity, DialError, Endpoint, Fabric, GrantError, Link, LinkError, ListError,
    ListenError, Listener, Nanos, PeerIdentity, PostError, Prefetch, QueuePairConfig, QueuePairId,
    QueuePairState, Rates, ReceiveTarget, Region, RegionKey, RegisterError, Subscription, ThreadDomain,
    WaitMode, Wake, WorkId, WorkRequest,
};
use std::fmt::Debug;
use std::sync::Arc;

/// An interposer's hooks around a fabric. Every default passes the operation on. Clones are the same
/// interposer; all methods may be called from any thread.
pub trait Hooks<F: Fabric>: Clone + Send + Sync + Debug + 'static {
    /// The hooks around a domain.
    type Domain: DomainHooks<F::Domain>;
    /// The hooks around a link.
    type Link: LinkHooks<F::Link>;

    /// Makes the hooks for a domain that was just created.
    fn domain_hooks(&self) -> Self::Domain;

    /// Makes the hooks for a link that was just dialled or accepted.
    fn link_hooks(&self) -> Self::Link;

    /// Wraps [`Fabric::register`].
    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        inner.register(length, access)
    }

    /// Wraps [`Fabric::adopt`].
    fn adopt(&self, inner: &F, memory: AnyMemory) -> Result<F::Memory, RegisterError> {
        inner.adopt(memory)
    }

    /// Wraps [`Fabric::listen`].
    fn listen(&self, inner: &F, address: &Address) -> Result<F::Listener, ListenError> {
        inner.listen(address)
    }

    /// Wraps [`Fabric::dial`].
    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        inner.dial(address, until)
    }
}

/// An interposer's hooks around a link. Every default passes the operation on. Clones belong to the same
/// link.
pub trait LinkHooks<L: Link>: Clone + Send + Sync + Debug + 'static {
    /// Wraps [`Link::send`].
    fn send(&self, inner: &L, message: &[u8]) -> Result<(), LinkError> {
        inner.send(message)
    }

    /// Wraps [`Link::receive`].
    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        inner.receive(until)
    }

    /// Wraps [`Link::try_receive`].
    fn try_receive(&self, inner: &L) -> Result<Option<Vec<u8>>, LinkError> {
        inner.try_receive()
    }

    /// Wraps [`Link::grant`].
    fn grant(&self, inner: &L, memory: &Arc<L::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        inner.grant(memory, access)
    }

    /// Wraps [`Link::revoke`].
    fn revoke(&self, inner: &L, key: RegionKey) {
        inner.revoke(key);
    }

    /// Wraps [`Link::is_alive`].
    fn is_alive(&self, inner: &L) -> bool {
        inner.is_alive()
    }

    /// Wraps [`Link::subscribe`].
    fn subscribe(&self, inner: &L, subscription: Subscription<L::Signal>) {
        inner.subscribe(subscription);
    }

    /// Wraps [`Link::close`].
    fn close(&self, inner: &L) {
        inner.close();
    }
}

/// An interposer's hooks around a domain. Every default passes the operation on. The domain owns the value,
/// so it needs no lock.
pub trait DomainHooks<D: ThreadDomain>: Send + Debug + 'static {
    /// Wraps [`ThreadDomain::create_completion_queue`].
    fn create_completion_queue(
        &mut self,
        inner: &mut D,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        inner.create_completion_queue(depth, events)
    }

    /// Wraps [`ThreadDomain::create_queue_pair`].
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        inner.create_queue_pair(config)
    }

    /// Wraps [`ThreadDomain::connect`].
    fn connect(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        link: &D::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        inner.connect(queue_pair, link, remote)
    }

    /// Wraps [`ThreadDomain::destroy_queue_pair`].
    fn destroy_queue_pair(&mut self, inner: &mut D, queue_pair: QueuePairId) -> Result<(), CreateError> {
        inner.destroy_queue_pair(queue_pair)
    }

    /// Wraps [`ThreadDomain::state`].
    fn state(&self, inner: &D, queue_pair: QueuePairId) -> Option<QueuePairState> {
        inner.state(queue_pair)
    }

    /// Wraps [`ThreadDomain::post`].
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        inner.post(queue_pair, request)
    }

    /// Wraps [`ThreadDomain::post_list`].
    fn post_list(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        inner.post_list(queue_pair, requests)
    }

    /// Wraps [`ThreadDomain::post_receive`].
    fn post_receive(
        &mut self,
        inner: &mut D,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<D::Memory>>,
    ) -> Result<(), PostError> {
        inner.post_receive(target, id, buffer)
    }

    /// Wraps [`ThreadDomain::poll`].
    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        inner.poll(queue, into, limit)
    }

    /// Wraps [`ThreadDomain::arm`].
    fn arm(&mut self, inner: &mut D, mode: WaitMode) -> Armed {
        inner.arm(mode)
    }

    /// Wraps [`ThreadDomain::wait`].
    fn wait(&mut self, inner: &mut D, armed: Armed, until: Nanos) -> Wake {
        inner.wait(armed, until)
    }

    /// Wraps [`ThreadDomain::arm_other`].
    fn arm_other(&mut self, inner: &mut D, other: &AnyWaker) -> Nanos {
        inner.arm_other(other)
    }

    /// Wraps [`ThreadDomain::disarm_other`].
    fn disarm_other(&mut self, inner: &mut D) {
        inner.disarm_other();
    }
}

/// A fabric wrapped by an interposer.
#[derive(Clone, Debug)]
pub struct Interposed<F, H> {
    inner: F,
    hooks: H,
}

impl<F: Fabric, H: Hooks<F>> Interposed<F, H> {
    /// Wraps a fabric with hooks.
    pub fn with_hooks(inner: F, hooks: H) -> Self {
        Interposed { inner, hooks }
    }

    /// Returns the wrapped fabric.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// Returns the hooks.
    pub fn hooks(&self) -> &H {
        &self.hooks
    }
}

impl<F: Fabric, H: Hooks<F>> Fabric for Interposed<F, H> {
    type Host = F::Host;
    type Memory = F::Memory;
    type Link = InterposedLink<F::Link, H::Link>;
    type Listener = InterposedListener<F, H>;
    type Domain = InterposedDomain<F::Domain, H::Domain, H::Link>;
    type Payloads = F::Payloads;

    const PREFETCH: Prefetch = F::PREFETCH;

    fn host(&self) -> &F::Host {
        self.inner.host()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn device(&self) -> DeviceIdentity {
        self.inner.device()
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        self.inner.rates()
    }

    fn payloads(&self) -> F::Payloads {
        self.inner.payloads()
    }

    fn register(&self, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        self.hooks.register(&self.inner, length, access)
    }

    fn adopt(&self, memory: AnyMemory) -> Result<F::Memory, RegisterError> {
        self.hooks.adopt(&self.inner, memory)
    }

    fn domain(&self) -> Result<Self::Domain, CreateError> {
        let inner = self.inner.domain()?;
        Ok(InterposedDomain { inner, hooks: self.hooks.domain_hooks(), link: std::marker::PhantomData })
    }

    fn listen(&self, address: &Address) -> Result<Self::Listener, ListenError> {
        let inner = self.hooks.listen(&self.inner, address)?;
        Ok(InterposedListener { inner, hooks: self.hooks.clone() })
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<Self::Link, DialError> {
        let inner = self.hooks.dial(&self.inner, address, until)?;
        Ok(InterposedLink { inner, hooks: self.hooks.link_hooks() })
    }
}

/// A listener of an [`Interposed`] fabric.
#[derive(Debug)]
pub struct InterposedListener<F: Fabric, H> {
    inner: F::Listener,
    hooks: H,
}

impl<F: Fabric, H: Hooks<F>> InterposedListener<F, H> {
    fn wrap(&self, inner: F::Link) -> InterposedLink<F::Link, H::Link> {
        InterposedLink { inner, hooks: self.hooks.link_hooks() }
    }
}

impl<F: Fabric, H: Hooks<F>> Listener for InterposedListener<F, H> {
    type Link = InterposedLink<F::Link, H::Link>;
    type Signal = <F::Listener as Listener>::Signal;

    fn accept(&self, until: Nanos) -> Result<Self::Link, AcceptError> {
        Ok(self.wrap(self.inner.accept(until)?))
    }

    fn try_accept(&self) -> Result<Option<Self::Link>, AcceptError> {
        Ok(self.inner.try_accept()?.map(|link| self.wrap(link)))
    }

    fn subscribe(&self, signal: Self::Signal) {
        self.inner.subscribe(signal);
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

/// A link of an [`Interposed`] fabric.
#[derive(Clone, Debug)]
pub struct InterposedLink<L, H> {
    inner: L,
    hooks: H,
}

impl<L: Link, H: LinkHooks<L>> Link for InterposedLink<L, H> {
    type Memory = L::Memory;
    type Signal = L::Signal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        self.hooks.send(&self.inner, message)
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        self.hooks.receive(&self.inner, until)
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        self.hooks.try_receive(&self.inner)
    }

    fn grant(&self, memory: &Arc<L::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        self.hooks.grant(&self.inner, memory, access)
    }

    fn revoke(&self, key: RegionKey) {
        self.hooks.revoke(&self.inner, key);
    }

    fn is_alive(&self) -> bool {
        self.hooks.is_alive(&self.inner)
    }

    fn peer(&self) -> PeerIdentity {
        self.inner.peer()
    }

    fn subscribe(&self, subscription: Subscription<L::Signal>) {
        self.hooks.subscribe(&self.inner, subscription);
    }

    fn close(&self) {
        self.hooks.close(&self.inner);
    }
}

/// A domain of an [`Interposed`] fabric.
#[derive(Debug)]
pub struct InterposedDomain<D, H, L> {
    inner: D,
    hooks: H,
    link: std::marker::PhantomData<L>,
}

impl<D: ThreadDomain, H: DomainHooks<D>, L: LinkHooks<D::Link>> ThreadDomain for InterposedDomain<D, H, L> {
    type Memory = D::Memory;
    type Link = InterposedLink<D::Link, L>;
    type Waker = D::Waker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        self.hooks.create_completion_queue(&mut self.inner, depth, events)
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        self.inner.create_shared_receive_queue(depth)
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        self.hooks.create_queue_pair(&mut self.inner, config)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &Self::Link) -> Result<Endpoint, CreateError> {
        self.inner.endpoint(queue_pair, &link.inner)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        self.hooks.connect(&mut self.inner, queue_pair, &link.inner, remote)
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        self.inner.create_address_handle(queue_pair, &link.inner, remote)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError> {
        self.inner.destroy_address_handle(handle)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError> {
        self.hooks.destroy_queue_pair(&mut self.inner, queue_pair)
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.hooks.state(&self.inner, queue_pair)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        self.inner.send_room(queue_pair)
    }

    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, Self::Memory>,
    ) -> Result<(), PostError> {
        self.hooks.post(&mut self.inner, queue_pair, request)
    }

    fn post_list(
        &mut self,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, Self::Memory>>],
    ) -> Result<(), ListError> {
        self.hooks.post_list(&mut self.inner, queue_pair, requests)
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<Self::Memory>>,
    ) -> Result<(), PostError> {
        self.hooks.post_receive(&mut self.inner, target, id, buffer)
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<Self::Memory>>,
        limit: usize,
    ) -> usize {
        self.hooks.poll(&mut self.inner, queue, into, limit)
    }

    fn will_post(&self, queue_pair: QueuePairId) {
        self.inner.will_post(queue_pair);
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        self.hooks.arm(&mut self.inner, mode)
    }

    fn disarm(&mut self, armed: Armed) {
        self.inner.disarm(armed);
    }

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        self.hooks.wait(&mut self.inner, armed, until)
    }

    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        self.hooks.arm_other(&mut self.inner, other)
    }

    fn disarm_other(&mut self) {
        self.hooks.disarm_other(&mut self.inner);
    }

    fn crowding(&self) -> Crowding {
        self.inner.crowding()
    }

    fn gives_way(&self) -> bool {
        self.inner.gives_way()
    }

    fn woken_at(&self) -> Option<Nanos> {
        self.inner.woken_at()
    }

    fn will_touch(&mut self, memory: &[(*const u8, usize)]) {
        self.inner.will_touch(memory);
    }

    fn waker(&self) -> Self::Waker {
        self.inner.waker()
    }

    fn watch(&mut self, region: &Region<Self::Memory>) {
        self.inner.watch(region);
    }

    fn watch_as(&mut self, region: &Region<Self::Memory>, name: u32) {
        self.inner.watch_as(region, name);
    }

    fn take_activity(&mut self, into: &mut Vec<u32>) -> bool {
        self.inner.take_activity(into)
    }

    fn unwatch(&mut self, region: &Region<Self::Memory>) {
        self.inner.unwatch(region);
    }
}
