//! The traits of a fabric.
//!
//! * [`Fabric`] makes everything else and is shared by all threads.
//! * [`Link`] is a control connection between two processes: it carries short messages, grants of memory, and
//!   the news of the peer's death. It blocks and makes system calls; no call of the data path touches it.
//! * [`ThreadDomain`] (verbs: a thread domain, `ibv_td`) holds the completion queues, queue pairs and shared
//!   receive queues of one thread. It is owned by one thread at a time, so the data path needs no lock. It is
//!   also the one place where that thread waits: its doorbell is the completion channel of all its queues.

use crate::address::Address;
use crate::capabilities::Capabilities;
use crate::completion::Completion;
use crate::error::{
    AcceptError, CreateError, DialError, GrantError, LinkError, ListenError, PostError, RegisterError,
};
use crate::host::{Host, Nanos};
use crate::memory::{Access, Memory};
use crate::news::Subscription;
use crate::rates::{DeviceIdentity, Rates};
use crate::work::{
    AddressHandleId, CompletionQueueId, Endpoint, InlineLine, InlineWrite, QueuePairConfig, QueuePairId,
    QueuePairState, ReceiveTarget, RegionKey, SharedReceiveQueueId, WorkId, WorkRequest,
};
use crate::{Buffer, Region};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A network, or what stands for one. Clones are the same fabric; all methods may be called from any thread.
pub trait Fabric: Clone + Send + Sync + Debug + 'static {
    /// The machine below.
    type Host: Host;
    /// Registered memory.
    type Memory: Memory;
    /// The control connection.
    type Link: Link<Memory = Self::Memory, Signal = <Self::Host as Host>::Signal>;
    /// Where control connections arrive.
    type Listener: Listener<Link = Self::Link, Signal = <Self::Host as Host>::Signal>;
    /// What one thread owns of the data path.
    type Domain: ThreadDomain<Memory = Self::Memory, Link = Self::Link>;

    /// The machine below.
    fn host(&self) -> &Self::Host;

    /// What this fabric can do.
    fn capabilities(&self) -> &Capabilities;

    /// The device, as far as what it does in a second depends on it. May read files of the system.
    fn device(&self) -> DeviceIdentity {
        DeviceIdentity::of(self.capabilities().name)
    }

    /// What the device does in a second, if that is known. The first call may read a file.
    fn rates(&self) -> Option<Arc<Rates>> {
        None
    }

    /// The value of this type that all who use this fabric in this process share. A fabric that keeps none gives each who asks one of
    /// its own.
    fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        Arc::default()
    }

    /// Registers zeroed memory that granted peers may use within `access`. Pages are touched lazily where the
    /// system allows it.
    fn register(&self, length: u64, access: Access) -> Result<Self::Memory, RegisterError>;

    /// Makes a domain.
    fn domain(&self) -> Result<Self::Domain, CreateError>;

    /// Listens for control connections.
    fn listen(&self, address: &Address) -> Result<Self::Listener, ListenError>;

    /// Opens a control connection; blocks until then at most.
    fn dial(&self, address: &Address, until: Nanos) -> Result<Self::Link, DialError>;
}

/// Who is at the other end, as the system vouches for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The process id, on one host.
    pub process: Option<u32>,
    /// The user id, on one host.
    pub user: Option<u32>,
}

/// A control connection. Clones are the same connection, which closes when the last is dropped. All methods
/// may be called from any thread.
pub trait Link: Clone + Send + Sync + Debug + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// What is raised when there is news.
    type Signal;

    /// Sends one message (at most [`MAX_CONTROL_MESSAGE`] bytes), whole and in order. May block for a short,
    /// bounded time; a peer that does not read gives [`LinkError::Backlog`].
    fn send(&self, message: &[u8]) -> Result<(), LinkError>;

    /// The next message; blocks until then at most. Messages that came before the peer's end are still given.
    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError>;

    /// The next message if there is one.
    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError>;

    /// Lets the peer use memory, with no more access than it was registered for. The key is good on this link
    /// only, from now on: a message sent later on the link arrives after the grant.
    fn grant(&self, memory: &Arc<Self::Memory>, access: Access) -> Result<RegionKey, GrantError>;

    /// Ends a grant of ours: the key is not used again. A peer on shared memory may go on reading and writing
    /// the old pages, so memory that it could write is not used for anything else afterwards.
    fn revoke(&self, key: RegionKey);

    /// Whether the peer is still there, as far as known. One atomic load.
    fn is_alive(&self) -> bool;

    /// Who the peer is.
    fn peer(&self) -> PeerIdentity;

    /// Has this side told of each message and of the peer's end, and at once if there is such news already; one
    /// subscription a link, a later one replaces it.
    fn subscribe(&self, subscription: Subscription<Self::Signal>);

    /// Closes the connection for both sides; queue pairs on it go into the error state.
    fn close(&self);
}

/// The longest control message, in bytes.
pub const MAX_CONTROL_MESSAGE: usize = 16 * 1024;

/// Where control connections arrive. Dropping it stops listening; links already accepted stay.
pub trait Listener: Send + Sync + Debug + 'static {
    /// The control connection.
    type Link;
    /// What is raised when there is news.
    type Signal;

    /// The next connection; blocks until then at most.
    fn accept(&self, until: Nanos) -> Result<Self::Link, AcceptError>;

    /// The next connection if there is one.
    fn try_accept(&self) -> Result<Option<Self::Link>, AcceptError>;

    /// Has a signal raised at each new connection.
    fn subscribe(&self, signal: Self::Signal);

    /// The address that peers dial.
    fn address(&self) -> Address;
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Return soon and look again.
    Busy,
    /// Sleep until a completion or a waker; plain WRITEs from peers do not end it.
    Event,
}

/// The promise that nothing is missed between looking and waiting; made by [`ThreadDomain::arm`].
#[derive(Debug)]
#[must_use = "pass it to wait or disarm"]
pub struct Armed {
    /// How the wait will be.
    pub mode: WaitMode,
    /// Back-end's own: what had arrived when it was made.
    pub token: u64,
}

/// Why a wait ended. Always only a hint: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something may have come.
    Arrived,
    /// As `Arrived`, of a busy wait that took its time: where time is simulated nobody spins. What is looked at only with
    /// every so many looks in vain has not been looked at meanwhile.
    Rested,
    /// The time is over.
    TimedOut,
}

/// Ends a domain's wait from any thread, or waits in its place.
pub trait Waker: Clone + Send + Sync + Debug + 'static {
    /// Makes the domain's current or next wait return. Does not block.
    fn wake(&self);

    /// Waits as [`ThreadDomain::wait`] does, without the domain: for who shares a domain behind a lock, arms and
    /// looks while holding it, and must not sleep with it. One waits at a time; event mode only (busy returns at
    /// once).
    fn wait(&self, armed: Armed, until: Nanos) -> Wake;
}

/// What one thread owns of the data path. `Send`, not `Sync`: one thread at a time. No method but
/// [`wait`](ThreadDomain::wait) blocks; `post`, `post_receive` and `poll` make no system call and allocate
/// nothing while queues stay within their depths, except to ring the doorbell of a peer that sleeps.
pub trait ThreadDomain: Send + Debug + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// The control connection.
    type Link: Link;
    /// Ends a wait.
    type Waker: Waker;

    /// Makes a completion queue for `depth` completions. With `events` a wait in event mode ends when a
    /// completion arrives there; without, arrivals cost the peer less (no doorbell is looked at).
    fn create_completion_queue(&mut self, depth: u32, events: bool)
    -> Result<CompletionQueueId, CreateError>;

    /// Makes a shared receive queue for `depth` RECVs.
    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError>;

    /// Makes a queue pair. Connected transports must then be connected.
    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError>;

    /// The queue pair's address for the peer at the other end of `link`. May grant memory on the link, so it
    /// can block shortly; the result is to be sent on the same link, after this call.
    fn endpoint(&mut self, queue_pair: QueuePairId, link: &Self::Link) -> Result<Endpoint, CreateError>;

    /// Connects an RC or UC queue pair with the peer's one. Both sides call it, in any order, each after its own
    /// [`endpoint`](ThreadDomain::endpoint); what a peer sends before we connect waits.
    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError>;

    /// An address handle for datagrams from `queue_pair` to the peer's datagram queue pair with that endpoint.
    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError>;

    /// Ends an address handle, which otherwise ends with its queue pair: its number may be given out again. What was posted with
    /// it has left.
    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError>;

    /// Destroys a queue pair: what is posted is dropped without completions, buffers return to their arenas,
    /// and the peer's queue pair goes into the error state when it next uses it or polls.
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError>;

    /// The state, or `None` for a number that is not one of this domain's.
    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState>;

    /// How many more work requests the send queue takes now.
    fn send_room(&self, queue_pair: QueuePairId) -> u32;

    /// Posts one work request and rings the doorbell. Errors that verbs reports by completion (bad key, bounds,
    /// permission, receiver not ready, ...) come by completion here too.
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, Self::Memory>,
    ) -> Result<(), PostError>;

    /// Posts several work requests as a linked list, for which one doorbell is rung (HatRPC section 3.1: chained work
    /// requests). [`PostError::QueueFull`] if not all of them have room: then none was taken. After another error the
    /// queue pair is of no use any more, or the request named is one that cannot be, and those before it were taken.
    fn post_linked<const N: usize>(
        &mut self,
        queue_pair: QueuePairId,
        requests: [WorkRequest<'_, Self::Memory>; N],
    ) -> Result<(), PostError> {
        let ready = self.state(queue_pair) == Some(QueuePairState::Ready);
        if ready && (self.send_room(queue_pair) as usize) < N {
            return Err(PostError::QueueFull);
        }
        requests.into_iter().try_for_each(|request| self.post(queue_pair, request))
    }

    /// Posts one WRITE of inline data, as [`post`](ThreadDomain::post) does: the commonest request, for which a
    /// back-end may know a shorter way than through a [`WorkRequest`].
    #[inline]
    fn post_write(&mut self, queue_pair: QueuePairId, write: InlineWrite<'_>) -> Result<(), PostError> {
        self.post(queue_pair, write.into())
    }

    /// Posts one line, as [`post_write`](ThreadDomain::post_write) does, by a way that may be shorter still.
    #[inline]
    fn post_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, ahead: _ } = line;
        let parts: &[&[u8]] = &[line];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: false, ahead: 0 };
        self.post_write(queue_pair, write)
    }

    /// A hint: something will be posted on this queue pair soon, after work for others. Costs next to nothing, and does nothing
    /// that can be seen.
    #[inline]
    fn will_post(&self, queue_pair: QueuePairId) {
        let _ = queue_pair;
    }

    /// Posts a RECV; a `None` buffer takes only empty messages and WRITE_WITH_IMM.
    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<Self::Memory>>,
    ) -> Result<(), PostError>;

    /// Makes progress and appends at most `limit` completions; returns how many.
    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<Self::Memory>>,
        limit: usize,
    ) -> usize;

    /// Before looking for the last time and waiting: whatever arrives from here on ends the wait at once.
    fn arm(&mut self, mode: WaitMode) -> Armed;

    /// Takes back an [`arm`](ThreadDomain::arm) because the look found something.
    fn disarm(&mut self, armed: Armed);

    /// Waits: busy for an instant (a simulator: until something that concerns this domain happens), event until
    /// an event, a waker, `until`, or some 20 ms, whichever comes first: a doorbell that a hostile peer has tampered
    /// with may cost that delay but never hangs us. It may be 200 ms for who was woken so for nothing a few times.
    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake;

    /// A hint: when a wait of this domain has ended, this memory will be touched; so many bytes each, a few of them. What was said
    /// before is forgotten. For a simulator of thousands of threads, of whose memory little is in the caches: nobody reads or writes
    /// it by this.
    fn will_touch(&mut self, memory: &[(*const u8, usize)]) {
        let _ = memory;
    }

    /// Ends this domain's waits from other threads.
    fn waker(&self) -> Self::Waker;

    /// Says that this thread looks at this region when it polls: a simulator ends busy waits when a peer's WRITE
    /// lands there. Back-ends on real memory ignore it.
    fn watch(&mut self, region: &Region<Self::Memory>);

    /// As [`watch`](ThreadDomain::watch), with a name by which [`take_activity`](ThreadDomain::take_activity) tells of
    /// the region. Names are small numbers.
    fn watch_as(&mut self, region: &Region<Self::Memory>, name: u32) {
        let _ = name;
        self.watch(region);
    }

    /// Appends the names of watched regions that peers have written since the last call, each once, if this back-end
    /// keeps account of that: then only these need be looked at. `false`: it does not, look at all.
    #[inline]
    fn take_activity(&mut self, into: &mut Vec<u32>) -> bool {
        let _ = into;
        false
    }

    /// Takes back [`watch`](ThreadDomain::watch).
    fn unwatch(&mut self, region: &Region<Self::Memory>);
}
