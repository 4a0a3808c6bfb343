//! The traits of a fabric.
//!
//! * [`Fabric`] creates all other objects and is shared by all threads.
//! * [`Link`] is a control connection between two processes. It carries short messages, grants of memory, and
//!   notice of the peer's death. It blocks and makes system calls; no call of the data path uses it.
//! * [`ThreadDomain`] (verbs: a thread domain, `ibv_td`) holds the completion queues, queue pairs and shared
//!   receive queues of one thread. One thread at a time owns it, so the data path needs no lock. It is also
//!   the only place where that thread waits: its doorbell is the completion channel of all its queues.

use crate::address::Address;
use crate::any_memory::AnyMemory;
use crate::any_waker::AnyWaker;
use crate::capabilities::Capabilities;
use crate::completion::Completion;
use crate::error::{
    AcceptError, CreateError, DialError, GrantError, LinkError, ListError, ListenError, PostError,
    RegisterError,
};
use crate::host::{Host, Nanos};
use crate::memory::{Access, Memory};
use crate::payload::{PayloadBuffers, Prefetch};
use crate::rates::{DeviceIdentity, Rates};
use crate::ready_list::Subscription;
use crate::work::{
    AddressHandleId, CompletionQueueId, Endpoint, InlineLine, InlineWrite, QueuePairConfig, QueuePairId,
    QueuePairState, ReceiveTarget, RegionKey, SharedReceiveQueueId, WorkId, WorkRequest, check_list,
};
use crate::{Buffer, Region};
use std::fmt::Debug;
use std::sync::Arc;

/// A network, or a substitute for one. Clones are the same fabric; all methods may be called from any thread.
pub trait Fabric: Clone + Send + Sync + Debug + 'static {
    /// The type of the host.
    type Host: Host;
    /// The type of registered memory.
    type Memory: Memory;
    /// The type of a control connection.
    type Link: Link<Memory = Self::Memory, Signal = <Self::Host as Host>::Signal>;
    /// The type that accepts control connections.
    type Listener: Listener<Link = Self::Link, Signal = <Self::Host as Host>::Signal>;
    /// The type of one thread's part of the data path.
    type Domain: ThreadDomain<Memory = Self::Memory, Link = Self::Link>;
    /// The type of payload buffers: [`PlainPayloads`](crate::PlainPayloads) where a NIC reads them.
    type Payloads: PayloadBuffers<Self::Memory>;

    /// The distances at which the engine prefetches lines of rings. A constant: the path of each message depends on it.
    const PREFETCH: Prefetch = Prefetch::NONE;

    /// Returns the host.
    fn host(&self) -> &Self::Host;

    /// Returns the fabric's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the properties of the device that determine its rates. May read system files.
    fn device(&self) -> DeviceIdentity {
        DeviceIdentity::of(self.capabilities().name)
    }

    /// Returns the device's rates, if known. The first call may read a file.
    fn rates(&self) -> Option<Arc<Rates>> {
        None
    }

    /// Returns the state of the payload buffers of one direction of a connection, without any buffer yet.
    fn payloads(&self) -> Self::Payloads;

    /// Registers zeroed memory of `length` bytes that granted peers may use within `access`. Pages are
    /// touched lazily where the system allows it.
    fn register(&self, length: u64, access: Access) -> Result<Self::Memory, RegisterError>;

    /// Registers several parts of memory, each by itself, as [`register`](Fabric::register) does. On shared memory each
    /// part is a file, and their addresses follow each other, so that [`AnyMemory::joined`] makes one of them for a NIC.
    fn register_adjacent(&self, lengths: &[u64], access: Access) -> Result<Vec<Self::Memory>, RegisterError> {
        lengths.iter().map(|length| self.register(*length, access)).collect()
    }

    /// Registers memory that another fabric of this process made, within its access. The memory lives as long as the
    /// registration. A NIC pins its pages, which blocks for about a second for some GiB.
    ///
    /// # Errors
    /// The fabric does not [adopt](Capabilities::adopts) memory, or as [`register`](Fabric::register).
    fn adopt(&self, memory: AnyMemory) -> Result<Self::Memory, RegisterError> {
        let _ = memory;
        Err(RegisterError::Foreign(self.capabilities().name))
    }

    /// Creates a domain.
    fn domain(&self) -> Result<Self::Domain, CreateError>;

    /// Listens for control connections on `address`.
    fn listen(&self, address: &Address) -> Result<Self::Listener, ListenError>;

    /// Opens a control connection; blocks no longer than `until`.
    fn dial(&self, address: &Address, until: Nanos) -> Result<Self::Link, DialError>;
}

/// The identity of the peer, as the operating system reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The process id, if both sides share a host.
    pub process: Option<u32>,
    /// The user id, if both sides share a host.
    pub user: Option<u32>,
}

/// A control connection. Clones are the same connection, which closes when the last clone is dropped. All
/// methods may be called from any thread.
pub trait Link: Clone + Send + Sync + Debug + 'static {
    /// The type of registered memory.
    type Memory: Memory;
    /// The signal that is raised at a message or the peer's end.
    type Signal;

    /// Sends one message (at most [`MAX_CONTROL_MESSAGE`] bytes). Messages arrive whole and in order. May
    /// block for a short, bounded time; returns [`LinkError::Backlog`] if the peer does not read.
    fn send(&self, message: &[u8]) -> Result<(), LinkError>;

    /// Returns the next message; blocks no longer than `until`. Messages that arrived before the peer's end
    /// are still returned.
    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError>;

    /// Returns the next message, or `None` if no message has arrived. Does not block.
    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError>;

    /// Grants the peer access to memory, within the access that it was registered for. The key is valid on
    /// this link only, from now on: a message sent later on the link arrives after the grant.
    fn grant(&self, memory: &Arc<Self::Memory>, access: Access) -> Result<RegionKey, GrantError>;

    /// Ends a grant of this side; its key is not reused. A peer on shared memory may keep reading and writing
    /// the old pages, so memory that it could write must not be reused for anything else.
    fn revoke(&self, key: RegionKey);

    /// Returns whether the peer is alive, as far as known. Costs one atomic load.
    fn is_alive(&self) -> bool;

    /// Returns the identity of the peer.
    fn peer(&self) -> PeerIdentity;

    /// Subscribes to messages and to the peer's end. Notifies at once if one of them is already pending. A
    /// link has one subscription; a later one replaces it.
    fn subscribe(&self, subscription: Subscription<Self::Signal>);

    /// Closes the connection for both sides. Queue pairs on it go into the error state.
    fn close(&self);
}

/// The longest control message, in bytes.
pub const MAX_CONTROL_MESSAGE: usize = 16 * 1024;

/// Accepts control connections. Dropping it stops listening; accepted links stay open.
pub trait Listener: Send + Sync + Debug + 'static {
    /// The type of a control connection.
    type Link;
    /// The signal that is raised at a new connection.
    type Signal;

    /// Returns the next connection; blocks no longer than `until`.
    fn accept(&self, until: Nanos) -> Result<Self::Link, AcceptError>;

    /// Returns the next connection, or `None` if no connection has arrived. Does not block.
    fn try_accept(&self) -> Result<Option<Self::Link>, AcceptError>;

    /// Subscribes a signal that is raised at each new connection.
    fn subscribe(&self, signal: Self::Signal);

    /// Returns the address that peers dial.
    fn address(&self) -> Address;
}

/// The way in which a domain waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Busy polling: a wait returns soon, and the caller polls again.
    Busy,
    /// Sleep until a completion or a waker. A peer's plain WRITE does not end the sleep.
    Event,
    /// As `Event`, and a peer's WRITE into watched memory ends the sleep too. Only for fabrics with
    /// [`Capabilities::write_wakes`](crate::Capabilities::write_wakes); elsewhere the same as `Event`.
    Write,
}

/// How other threads compete for a thread's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowding {
    /// No other thread wants the core.
    Alone,
    /// The others wait for messages too, and give the core back soon.
    Waiting,
    /// Another thread computes, and gives the core back after a time slice.
    Computing,
}

impl WaitMode {
    /// Returns whether the thread sleeps, instead of polling again soon.
    #[inline]
    pub const fn sleeps(self) -> bool {
        !matches!(self, WaitMode::Busy)
    }
}

/// A token for an armed wait, made by [`ThreadDomain::arm`]: no event between arming and waiting is missed.
#[derive(Debug)]
#[must_use = "pass it to wait or disarm"]
pub struct Armed {
    /// The mode of the wait.
    pub mode: WaitMode,
    /// Private to the back-end: a record of the events that had arrived at arming.
    pub token: u64,
}

/// The reason why a wait ended. Only a hint: the caller polls again in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// An event may have arrived.
    Arrived,
    /// As `Arrived`, after a busy wait that took time: in simulated time no thread spins. Sources that the
    /// caller polls only once in several empty polls have not been polled during that time.
    Rested,
    /// The deadline passed.
    TimedOut,
}

/// Ends a domain's wait from any thread, or waits in the domain's place.
pub trait Waker: Clone + Send + Sync + Debug + 'static {
    /// Makes the domain's current or next wait return. Does not block.
    fn wake(&self);

    /// Ends a busy wait of the domain that lasts until an event, as in a simulator. Elsewhere it does nothing:
    /// there a busy wait lasts an instant.
    fn nudge(&self) {}

    /// Waits as [`ThreadDomain::wait`] does, without access to the domain. For a thread that shares a domain
    /// behind a lock: it arms and polls with the lock held, and sleeps without it. One thread at a time may
    /// wait. Only for event mode; returns at once in busy mode.
    fn wait(&self, armed: Armed, until: Nanos) -> Wake;
}

/// One thread's part of the data path. `Send`, not `Sync`: one thread at a time uses it.
///
/// Only [`wait`](ThreadDomain::wait) blocks, and for a bounded time the set-up methods
/// [`endpoint`](ThreadDomain::endpoint), [`connect`](ThreadDomain::connect) and
/// [`create_address_handle`](ThreadDomain::create_address_handle). While queues stay within their depths,
/// `post`, `post_receive` and `poll` allocate nothing and make no system call, except to ring the doorbell of
/// a sleeping peer.
pub trait ThreadDomain: Send + Debug + 'static {
    /// The type of registered memory.
    type Memory: Memory;
    /// The type of a control connection.
    type Link: Link;
    /// The type that ends a wait.
    type Waker: Waker;

    /// Creates a completion queue for `depth` completions. With `events`, a completion that arrives ends a
    /// wait in event mode. Without it, arrivals cost the peer less, since it checks no doorbell.
    fn create_completion_queue(&mut self, depth: u32, events: bool)
    -> Result<CompletionQueueId, CreateError>;

    /// Creates a shared receive queue for `depth` RECVs.
    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError>;

    /// Creates a queue pair. One of a connected transport must then be connected.
    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError>;

    /// Returns the queue pair's address for the peer at the other end of `link`. May grant memory on the
    /// link, so it can block for a short time. Send the result on the same link, after this call.
    fn endpoint(&mut self, queue_pair: QueuePairId, link: &Self::Link) -> Result<Endpoint, CreateError>;

    /// Connects an RC or UC queue pair to the peer's queue pair. Both sides call it, in any order, each after
    /// its own [`endpoint`](ThreadDomain::endpoint). Requests that the peer sends earlier wait.
    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError>;

    /// Creates an address handle for datagrams from `queue_pair` to the peer's datagram queue pair with that
    /// endpoint.
    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &Self::Link,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError>;

    /// Destroys an address handle; its number may be reused. Requests already posted with it are still sent.
    /// Destroying the queue pair destroys its handles too.
    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError>;

    /// Destroys a queue pair. Posted requests are dropped without completions, and buffers return to their
    /// arenas. The peer's queue pair goes into the error state when the peer next uses it or polls.
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError>;

    /// Returns the state, or `None` if the id does not belong to this domain.
    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState>;

    /// Returns the number of work requests that the send queue can accept now.
    fn send_room(&self, queue_pair: QueuePairId) -> u32;

    /// Posts one work request and rings the doorbell. Errors that verbs reports by completion (bad key,
    /// bounds, permission, receiver not ready, ...) arrive as completions here too.
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, Self::Memory>,
    ) -> Result<(), PostError>;

    /// Posts the work requests of a list in order, linked under one doorbell on every fabric that has one (HatRPC
    /// section 3.1: chained work requests; FLOCK section 6). A list has any length up to the room of the send queue. Passes
    /// over empty places. A request that is posted leaves its place, as does one that is refused for itself.
    ///
    /// # Errors
    /// [`ListError::posted`] says how many requests were posted: always the first of the list. A list that is refused
    /// as a whole (no room for all of it, an unusable queue pair) keeps its requests, which
    /// can be posted later.
    fn post_list(
        &mut self,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, Self::Memory>>],
    ) -> Result<(), ListError> {
        check_list(requests, self.state(queue_pair), || self.send_room(queue_pair))?;
        for (posted, request) in requests.iter_mut().filter_map(Option::take).enumerate() {
            self.post(queue_pair, request).map_err(|error| ListError { posted, error })?;
        }
        Ok(())
    }

    /// Posts one inline WRITE, with the same effect as [`post`](ThreadDomain::post). This is the most
    /// frequent request; back-ends may override it with a path that avoids a [`WorkRequest`].
    #[inline]
    fn post_write(&mut self, queue_pair: QueuePairId, write: InlineWrite<'_>) -> Result<(), PostError> {
        self.post(queue_pair, write.into())
    }

    /// Posts one 64-byte inline WRITE, as [`post_write`](ThreadDomain::post_write) does. Back-ends may
    /// override this fast path.
    #[inline]
    fn post_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, ahead: _ } = line;
        let parts: &[&[u8]] = &[line];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: false, ahead: 0 };
        self.post_write(queue_pair, write)
    }

    /// Hints that the caller will post on this queue pair soon, after work for other queue pairs. Nearly
    /// free, and without visible effect.
    #[inline]
    fn will_post(&self, queue_pair: QueuePairId) {
        let _ = queue_pair;
    }

    /// Posts a RECV. With `buffer` `None`, it accepts only empty messages and WRITE_WITH_IMM.
    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<Self::Memory>>,
    ) -> Result<(), PostError>;

    /// Makes progress and appends at most `limit` completions; returns their number.
    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<Self::Memory>>,
        limit: usize,
    ) -> usize;

    /// Arms the domain before the last poll and the wait: any event from here on ends the wait at once.
    fn arm(&mut self, mode: WaitMode) -> Armed;

    /// Cancels an [`arm`](ThreadDomain::arm) because the last poll found something.
    fn disarm(&mut self, armed: Armed);

    /// Waits until an event, a waker or `until`.
    ///
    /// A busy wait lasts an instant (in a simulator, until an event that concerns this domain). An event wait
    /// also ends after a bounded time: about 20 ms, or up to 200 ms on some back-ends and after several
    /// spurious wake-ups. A doorbell that a hostile peer has tampered with thus costs a delay but never hangs
    /// the thread.
    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake;

    /// Has the next event of this domain wake the thread of another domain, which may belong to another fabric: for a
    /// thread that owns both and can sleep at one only. Events are completions, in queues with events, of one-sided
    /// requests that were posted before, and the end of a connection. The caller arms both domains, polls this one a
    /// last time, and then waits at the other one: any event from the arming on ends that wait. An event wakes once; the
    /// caller arms again afterwards. Arming replaces an earlier waker, and costs no system call if this one is armed
    /// already.
    ///
    /// Returns the time at which the caller has to poll this domain again in any case: [`Nanos::MAX`] if an event
    /// suffices, and 0 on a fabric without [`Capabilities::wakes_others`](crate::Capabilities::wakes_others).
    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        let _ = other;
        0
    }

    /// Ends the effect of [`arm_other`](ThreadDomain::arm_other). An event at the same time may still wake the other
    /// thread.
    fn disarm_other(&mut self) {}

    /// Returns how other threads compete for this thread's core, as far as recent busy waits have shown. A
    /// thread that finds nothing for some polls then helps the others, and itself, by sleeping.
    #[inline]
    fn crowding(&self) -> Crowding {
        Crowding::Alone
    }

    /// Returns whether a thread that waits for this domain helps others that compete for its core, by sleeping. If
    /// not, [`crowding`](ThreadDomain::crowding) is always [`Crowding::Alone`].
    fn gives_way(&self) -> bool {
        true
    }

    /// Returns the time on the host's clock at which the last wait ended, if the domain knows it without
    /// reading a clock. Only a simulator does, whose busy waits take time.
    fn woken_at(&self) -> Option<Nanos> {
        None
    }

    /// Hints which memory will be touched after a wait of this domain, as a few (address, number of bytes)
    /// pairs. Replaces the previous hint. For a simulator of thousands of threads, whose memory is mostly out
    /// of cache; the memory is neither read nor written.
    fn will_touch(&mut self, memory: &[(*const u8, usize)]) {
        let _ = memory;
    }

    /// Returns a waker, with which other threads end this domain's waits.
    fn waker(&self) -> Self::Waker;

    /// Declares that this thread polls `region`: a simulator ends a busy wait when a peer's WRITE lands
    /// there. Back-ends on real memory ignore it.
    fn watch(&mut self, region: &Region<Self::Memory>);

    /// As [`watch`](ThreadDomain::watch), with a name by which [`take_activity`](ThreadDomain::take_activity)
    /// reports the region. Names are small numbers.
    fn watch_as(&mut self, region: &Region<Self::Memory>, name: u32) {
        let _ = name;
        self.watch(region);
    }

    /// Appends the names of watched regions that peers have written since the last call, each once, and
    /// returns `true`: only these regions need polling. Returns `false` if the back-end does not track
    /// writes; the caller then polls all regions.
    #[inline]
    fn take_activity(&mut self, into: &mut Vec<u32>) -> bool {
        let _ = into;
        false
    }

    /// Cancels a [`watch`](ThreadDomain::watch).
    fn unwatch(&mut self, region: &Region<Self::Memory>);
}
