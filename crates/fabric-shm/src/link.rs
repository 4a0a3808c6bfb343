//! The control connection: messages, grants of memory, liveness.

use crate::doorbell::DomainWaiter;
use crate::endpoint::NO_RING;
use crate::frame::{Frame, FrameError, Head, QueuePairName, READ_BUFFER};
use crate::io::Io;
use crate::memory::{Import, ImportError, ShmMemory, ShmView};
use crate::process;
use dunlin_fabric::WithSources;
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::inbox::{Inbox, InboxLimits, Nothing};
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    Access, GrantError, Host, Link, LinkError, Memory, Nanos, PeerIdentity, RealHost, RegionKey, Subscription,
};
use dunlin_fabric_control::unix::{self, Received};
use dunlin_fabric_control::{ENDED, READ, Reactor, Watched, lock, wait};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use thiserror::Error;

/// Limits of the inbox. When it is full, the thread stops reading the socket, which pushes back on the peer.
const INBOX: InboxLimits = InboxLimits { items: 256, bytes: 1 << 20 };
/// The time that a sender waits for a peer that does not read, in nanoseconds.
const SEND_PATIENCE: u64 = 1_000_000_000;
/// The time limit for a datagram ring, in nanoseconds. Only the peer's control thread has to answer.
const DATAGRAM_PATIENCE: u64 = 5_000_000_000;

/// The number of ended queue pairs that are remembered until they are connected here.
const CLOSED_EARLY: usize = 1024;

/// The control thread's interface to a domain, for a peer's request for a ring.
pub(crate) trait DatagramTarget: Send + Sync + std::fmt::Debug {
    /// Makes a ring for datagrams from this link to a queue pair, and grants it and the doorbell. Returns
    /// `None` if there is no such queue pair or it has too many rings.
    fn make_ring(&self, link: &Arc<LinkShared>, queue_pair: u32) -> Option<(RegionKey, RegionKey)>;
}

/// Set by the control thread when a queue pair's other end is gone.
#[derive(Debug, Default)]
pub(crate) struct Closed(AtomicBool);

impl Closed {
    /// Returns whether the other end is gone.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Attachment {
    name: QueuePairName,
    closed: Weak<Closed>,
    attention: Weak<DomainWaiter>,
}

#[derive(Debug)]
struct Exports {
    /// A random even number for each link, so that a key of one link is not valid on another.
    first_generation: u32,
    /// By slot: the generation, odd while the slot is granted.
    generations: Vec<u32>,
    free: Vec<u32>,
    live: usize,
}

/// Memory that the peer has granted.
#[derive(Debug)]
struct Granted {
    import: Arc<Import>,
    /// Whether it is a ring or a doorbell: for queue pairs only, not for work requests of users.
    internal: bool,
}

/// A protocol violation, for which the connection is closed.
#[derive(Debug, Error)]
enum Violation {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("it sent a frame that is too long")]
    Oversized,
    #[error("it sent a grant without a descriptor")]
    NoDescriptor,
    #[error("it granted memory under a name that is in use or out of range")]
    GrantSlot,
    #[error("it granted more than {0} regions")]
    GrantCount(usize),
    #[error("it sent a hello twice")]
    Hello,
}

/// The secrets in the hellos of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secrets {
    /// This side's, from which the tags of its own rings are derived.
    pub(crate) ours: [u64; 2],
    /// The peer's.
    pub(crate) theirs: [u64; 2],
}

/// The state of a link that the control thread, the handles and the queue pairs share.
#[derive(Debug)]
pub(crate) struct LinkShared {
    /// Held by the thread that reads the socket.
    reading: Mutex<()>,
    number: u64,
    socket: OwnedFd,
    alive: AtomicBool,
    peer: PeerIdentity,
    secrets: Secrets,
    max_grants: usize,
    reactor: Arc<Reactor>,
    inbox: Inbox<Vec<u8>>,
    exports: Mutex<Exports>,
    imports: Mutex<BTreeMap<u32, Granted>>,
    attachments: Mutex<Vec<Attachment>>,
    /// Queue pairs of this side whose other end ended before they were connected, the newest first. Locked
    /// after `attachments`.
    closed_early: Mutex<VecDeque<QueuePairName>>,
    targets: Mutex<BTreeMap<u32, Weak<dyn DatagramTarget>>>,
    replies: Mutex<BTreeMap<u64, Option<(RegionKey, RegionKey)>>>,
    /// Rings of the peer's datagram queue pairs that handles of this side fill: each has one producer.
    taken_rings: Mutex<BTreeSet<RegionKey>>,
    /// Used with `replies`: a reply has arrived, or the link has ended.
    replied: Condvar,
    calls: AtomicU64,
}

impl LinkShared {
    pub(crate) fn new(socket: OwnedFd, secrets: Secrets, io: &Io) -> Arc<Self> {
        let peer = unix::peer(socket.as_fd());
        Arc::new(LinkShared {
            number: io.reactor().next_number(),
            socket,
            alive: AtomicBool::new(true),
            peer,
            secrets,
            max_grants: io.config().max_grants_per_link,
            reactor: Arc::clone(io.reactor()),
            inbox: Inbox::new(INBOX),
            exports: Mutex::new(Exports {
                first_generation: RealHost.random() as u32 & !1,
                generations: Vec::new(),
                free: Vec::new(),
                live: 0,
            }),
            imports: Mutex::default(),
            attachments: Mutex::default(),
            closed_early: Mutex::default(),
            targets: Mutex::default(),
            replies: Mutex::default(),
            taken_rings: Mutex::default(),
            replied: Condvar::new(),
            reading: Mutex::new(()),
            calls: AtomicU64::new(1),
        })
    }

    /// Lets the control thread watch the link.
    pub(crate) fn watch(self: &Arc<Self>) -> io::Result<()> {
        self.reactor.add(self.number, &self.socket, READ, Arc::clone(self) as Arc<dyn Watched>)
    }

    /// Sets whether the control thread reads the socket or lets it push back.
    fn listen(&self, read: bool) {
        self.reactor.set_events(self.number, &self.socket, if read { READ } else { EventFlags::empty() });
    }

    pub(crate) fn secrets(&self) -> Secrets {
        self.secrets
    }

    /// Returns whether the peer could stop this process anyway: it belongs to the same user, or to root.
    pub(crate) fn is_trusted(&self) -> bool {
        self.peer.user.is_some_and(|user| user == 0 || user == process::own_user())
    }

    /// Returns whether the peer is alive, as far as known.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Ends the link: closes the socket and notifies all waiting threads and queue pairs.
    pub(crate) fn end(&self, reason: &str) {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        unix::shut_down(self.socket.as_fd());
        self.inbox.end(reason);
        drop(lock(&self.replies));
        self.replied.notify_all();
        for attachment in lock(&self.attachments).drain(..) {
            if let Some(attention) = attachment.attention.upgrade() {
                attention.news();
            }
        }
    }

    /// Ends the link, and its watch by the control thread.
    pub(crate) fn close(&self, reason: &str) {
        self.end(reason);
        self.reactor.remove(self.number, &self.socket);
    }

    /// Reads the packets in the socket. `all` ignores the inbox limits: set when the peer has closed, so that
    /// none of its messages is lost (the socket's buffer bounds their size).
    pub(crate) fn read(self: &Arc<Self>, buffer: &mut [u8], all: bool) {
        // Two readers would process frames out of order.
        let _turn = lock(&self.reading);
        loop {
            if !all && self.inbox.pause_if_full(|| self.listen(false)) {
                return;
            }
            match unix::receive(self.socket.as_fd(), buffer) {
                Ok(Received::Empty) => return,
                Ok(Received::End) => return self.end("it closed the connection"),
                Ok(Received::Oversized) => return self.end(&Violation::Oversized.to_string()),
                Ok(Received::Frame { length, descriptor }) => {
                    let frame = Frame::decode(&buffer[..length]).map_err(Violation::from);
                    if let Err(violation) = frame.and_then(|f| self.take(f, descriptor)) {
                        let violation = WithSources(&violation).to_string();
                        tracing::warn!(peer = ?self.peer, %violation, "closing a control connection");
                        return self.end(&violation);
                    }
                }
                Err(errno) => return self.end(&format!("its socket failed: {}", io::Error::from(errno))),
            }
        }
    }

    fn take(self: &Arc<Self>, frame: Frame<'_>, descriptor: Option<OwnedFd>) -> Result<(), Violation> {
        match frame {
            Frame::Hello { .. } | Frame::Refused(_) => return Err(Violation::Hello),
            Frame::Message(message) => self.inbox.push(message.to_vec(), message.len()),
            Frame::Grant { key, length, access, registered, internal } => {
                let descriptor = descriptor.ok_or(Violation::NoDescriptor)?;
                let slot = (key.0 >> 32) as u32;
                let mut imports = lock(&self.imports);
                if imports.len() >= self.max_grants {
                    return Err(Violation::GrantCount(self.max_grants));
                }
                if imports.contains_key(&slot) {
                    return Err(Violation::GrantSlot);
                }
                let import = Arc::new(Import::new(&descriptor, length, access, registered, key)?);
                imports.insert(slot, Granted { import, internal });
            }
            Frame::Revoke(key) => {
                let mut imports = lock(&self.imports);
                let slot = (key.0 >> 32) as u32;
                if imports.get(&slot).is_some_and(|g| g.import.key() == key)
                    && let Some(granted) = imports.remove(&slot)
                {
                    granted.import.revoke();
                }
            }
            Frame::QueuePairClosed(name) => {
                let attachments = lock(&self.attachments);
                if !attachments.iter().any(|a| a.name == name) {
                    let mut early = lock(&self.closed_early);
                    early.truncate(CLOSED_EARLY - 1);
                    early.push_front(name);
                }
                for attachment in attachments.iter().filter(|a| a.name == name) {
                    if let (Some(closed), Some(attention)) =
                        (attachment.closed.upgrade(), attachment.attention.upgrade())
                    {
                        closed.0.store(true, Ordering::Release);
                        attention.news();
                    }
                }
            }
            Frame::DatagramRequest { call, queue_pair } => {
                let target = lock(&self.targets).get(&queue_pair.domain).and_then(Weak::upgrade);
                let made = target.and_then(|t| t.make_ring(self, queue_pair.queue_pair));
                let (ring, doorbell) = made.unwrap_or((NO_RING, NO_RING));
                let reply = Frame::DatagramReply { call, ring, doorbell, granted: made.is_some() };
                // Never waits here: a peer that does not read its connection gets no reply.
                let (head, body) = reply.encode();
                if let Err(error) = unix::send(self.socket.as_fd(), head.as_slice(), body, None) {
                    tracing::warn!(%error, "an answer to a peer was dropped");
                }
            }
            Frame::DatagramReply { call, ring, doorbell, granted } => {
                // A reply to a request that no thread waits for is dropped.
                if let Some(reply) = lock(&self.replies).get_mut(&call) {
                    *reply = Some(if granted { (ring, doorbell) } else { (NO_RING, NO_RING) });
                }
                self.replied.notify_all();
            }
        }
        Ok(())
    }

    fn send_frame(&self, frame: &Frame<'_>, descriptor: Option<&OwnedFd>) -> Result<(), LinkError> {
        let (head, body) = frame.encode();
        self.send_bytes(&head, body, descriptor, true)
    }

    fn send_bytes(
        &self,
        head: &Head,
        body: &[u8],
        descriptor: Option<&OwnedFd>,
        patient: bool,
    ) -> Result<(), LinkError> {
        let mut give_up = None;
        loop {
            if !self.is_alive() {
                return Err(self.gone());
            }
            let descriptor = descriptor.map(|d| d.as_fd());
            match unix::send(self.socket.as_fd(), head.as_slice(), body, descriptor) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {
                    let now = RealHost.now();
                    let until = *give_up.get_or_insert(now + SEND_PATIENCE);
                    if !patient || now >= until {
                        return Err(LinkError::Backlog);
                    }
                    wait(self.socket.as_fd(), true, (until - now).min(50_000_000));
                }
                Err(errno) => return Err(LinkError::PeerGone(io::Error::from(errno).to_string())),
            }
        }
    }

    /// Notifies the peer that the other end of its queue pair is gone. Does not wait: if the peer does not
    /// read its control connection, the connection is closed, which has the same meaning.
    pub(crate) fn tell_closed(&self, theirs: QueuePairName) {
        if !self.is_alive() {
            return;
        }
        let (head, body) = Frame::QueuePairClosed(theirs).encode();
        match unix::send(self.socket.as_fd(), head.as_slice(), body, None) {
            Ok(()) => {}
            Err(Errno::AGAIN) => self.end("it does not read its control connection"),
            // The peer is gone. The control thread ends the link after it has read the peer's last messages.
            Err(error) => tracing::debug!(%error, "the end of a queue pair was not told"),
        }
    }

    fn gone(&self) -> LinkError {
        LinkError::PeerGone(self.inbox.ended().unwrap_or_else(|| "the connection is closed".into()))
    }

    /// Grants a ring or a doorbell, which no work request of the peer's user can access. With `patient`,
    /// waits for a peer that reads slowly.
    pub(crate) fn grant_internal(
        &self,
        memory: &ShmMemory,
        access: Access,
        patient: bool,
    ) -> Result<RegionKey, GrantError> {
        self.grant_as(memory, access, patient, true)
    }

    fn grant_as(
        &self,
        memory: &ShmMemory,
        access: Access,
        patient: bool,
        internal: bool,
    ) -> Result<RegionKey, GrantError> {
        if access == Access::LOCAL || !memory.access().contains(access) {
            return Err(GrantError::Access);
        }
        let descriptor = memory.descriptor()?.ok_or(GrantError::Access)?;
        let key = {
            let mut exports = lock(&self.exports);
            if exports.live >= self.max_grants {
                return Err(GrantError::TooMany(self.max_grants));
            }
            exports.live += 1;
            let slot = match exports.free.pop() {
                Some(slot) => slot,
                None => {
                    let first = exports.first_generation;
                    exports.generations.push(first);
                    exports.generations.len() as u32 - 1
                }
            };
            let generation = &mut exports.generations[slot as usize];
            *generation = generation.wrapping_add(1);
            RegionKey(u64::from(slot) << 32 | u64::from(*generation))
        };
        let length = memory.length() as u64;
        let frame = Frame::Grant { key, length, access, registered: memory.access(), internal };
        let (head, body) = frame.encode();
        self.send_bytes(&head, body, Some(&descriptor), patient).inspect_err(|_| {
            self.forget(key);
        })?;
        Ok(key)
    }

    /// Frees the slot of a live grant.
    fn forget(&self, key: RegionKey) {
        let (slot, generation) = ((key.0 >> 32) as u32, key.0 as u32);
        let mut exports = lock(&self.exports);
        if let Some(current) = exports.generations.get_mut(slot as usize)
            && *current == generation
            && generation % 2 == 1
        {
            *current = current.wrapping_add(1);
            exports.free.push(slot);
            exports.live -= 1;
        }
    }

    /// Ends a grant of this side. The slot becomes free only after the peer was notified, since the peer
    /// would reject a second grant in it. If the notice cannot be sent now (with `patient`: soon), the slot
    /// stays occupied.
    pub(crate) fn revoke(&self, key: RegionKey, patient: bool) {
        let (slot, generation) = ((key.0 >> 32) as usize, key.0 as u32);
        if generation % 2 == 0 || lock(&self.exports).generations.get(slot) != Some(&generation) {
            return;
        }
        let (head, body) = Frame::Revoke(key).encode();
        match self.send_bytes(&head, body, None, patient) {
            Ok(()) => self.forget(key),
            Err(error) => tracing::debug!(%error, "the end of a grant was not told"),
        }
    }

    /// Returns the region that the peer has granted to work requests under a key. A key can arrive through
    /// memory before the control thread has read the grant, so an unknown key makes this method read the
    /// socket first.
    pub(crate) fn import(self: &Arc<Self>, key: RegionKey) -> Option<Arc<Import>> {
        self.import_as(key, false)
    }

    /// Returns the ring or doorbell that the peer has granted under a key.
    pub(crate) fn import_internal(self: &Arc<Self>, key: RegionKey) -> Option<Arc<Import>> {
        self.import_as(key, true)
    }

    fn import_as(self: &Arc<Self>, key: RegionKey, internal: bool) -> Option<Arc<Import>> {
        let find = || {
            let imports = lock(&self.imports);
            let granted = imports.get(&((key.0 >> 32) as u32))?;
            (granted.import.key() == key && granted.internal == internal).then(|| Arc::clone(&granted.import))
        };
        find().or_else(|| {
            self.read(&mut vec![0; READ_BUFFER], false);
            find()
        })
    }

    /// Registers a queue pair of this side for notice of its other end's end.
    pub(crate) fn attach(&self, name: QueuePairName, closed: &Arc<Closed>, attention: &Arc<DomainWaiter>) {
        let mut attachments = lock(&self.attachments);
        attachments.push(Attachment {
            name,
            closed: Arc::downgrade(closed),
            attention: Arc::downgrade(attention),
        });
        let mut early = lock(&self.closed_early);
        if let Some(at) = early.iter().position(|n| *n == name) {
            early.remove(at);
            closed.0.store(true, Ordering::Release);
        }
        if closed.is_closed() || !self.is_alive() {
            attention.news();
        }
    }

    /// Removes the registration of a queue pair.
    pub(crate) fn detach(&self, name: QueuePairName) {
        lock(&self.attachments).retain(|a| a.name != name);
    }

    /// Lets the peer request datagram rings of a domain.
    pub(crate) fn offer_datagrams(&self, domain: u32, target: Weak<dyn DatagramTarget>) {
        lock(&self.targets).insert(domain, target);
    }

    /// Claims a ring that an endpoint names, for an address handle of this side; returns `false` if another
    /// handle has it.
    pub(crate) fn take_ring(&self, ring: RegionKey) -> bool {
        lock(&self.taken_rings).insert(ring)
    }

    /// Requests a ring for datagrams to a queue pair of the peer; blocks for a bounded time.
    pub(crate) fn ask_for_datagrams(
        &self,
        queue_pair: QueuePairName,
    ) -> Result<Option<(RegionKey, RegionKey)>, LinkError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        lock(&self.replies).insert(call, None);
        let sent = self.send_frame(&Frame::DatagramRequest { call, queue_pair }, None);
        let until = RealHost.now() + DATAGRAM_PATIENCE;
        let mut outcome = sent.map(|()| None);
        let mut replies = lock(&self.replies);
        while let Ok(None) = outcome {
            let left = until.saturating_sub(RealHost.now());
            outcome = match replies.get(&call).copied().flatten() {
                Some(reply) => Ok(Some(reply)),
                None if !self.is_alive() => Err(self.gone()),
                None if left == 0 => Err(LinkError::TimedOut),
                None => {
                    let waited = self.replied.wait_timeout(replies, Duration::from_nanos(left));
                    replies = waited.unwrap_or_else(PoisonError::into_inner).0;
                    Ok(None)
                }
            };
        }
        replies.remove(&call);
        drop(replies);
        outcome.map(|reply| reply.filter(|(ring, _)| *ring != NO_RING))
    }
}

impl Watched for LinkShared {
    fn serve(self: Arc<Self>, _: &Arc<Reactor>, _: u64, flags: EventFlags, buffer: &mut [u8]) {
        let ended = flags.intersects(ENDED);
        self.read(buffer, ended);
        if ended || !self.is_alive() {
            self.close("its process has ended or it closed the connection");
        }
    }

    fn end(&self, reason: &str) {
        LinkShared::end(self, reason);
    }
}

/// A control connection to a process on this host. Clones are the same connection; dropping the last clone
/// closes it.
#[derive(Clone, Debug)]
pub struct ShmLink(Arc<Closer>);

/// Closes the link when the last user handle is dropped; keeps the control thread running until then.
#[derive(Debug)]
struct Closer {
    shared: Arc<LinkShared>,
    _io: Arc<Io>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.close("this side closed the connection");
    }
}

impl ShmLink {
    pub(crate) fn new(shared: Arc<LinkShared>, io: Arc<Io>) -> Self {
        ShmLink(Arc::new(Closer { shared, _io: io }))
    }

    pub(crate) fn shared(&self) -> &Arc<LinkShared> {
        &self.0.shared
    }

    /// Returns memory that the peer has granted under a key, for loads and stores of this process; `None` for an unknown
    /// key. The memory stays mapped as long as a view of it exists, also after a revocation.
    pub fn view(&self, key: RegionKey) -> Option<ShmView> {
        self.shared().import(key).map(ShmView::new)
    }

    fn take(&self, until: Nanos) -> Result<Vec<u8>, Nothing> {
        let shared = self.shared();
        shared.inbox.take(until, || shared.listen(true))
    }
}

impl Link for ShmLink {
    type Memory = ShmMemory;
    type Signal = RealSignal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MAX_CONTROL_MESSAGE {
            return Err(LinkError::TooLong { length: message.len(), limit: MAX_CONTROL_MESSAGE });
        }
        self.shared().send_frame(&Frame::Message(message), None)
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        self.take(until).map_err(|nothing| match nothing {
            Nothing::TimedOut => LinkError::TimedOut,
            Nothing::Ended(reason) => LinkError::PeerGone(reason),
        })
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        match self.receive(0) {
            Err(LinkError::TimedOut) => Ok(None),
            other => other.map(Some),
        }
    }

    fn grant(&self, memory: &Arc<ShmMemory>, access: Access) -> Result<RegionKey, GrantError> {
        self.shared().grant_as(memory, access, true, false)
    }

    fn revoke(&self, key: RegionKey) {
        self.shared().revoke(key, true);
    }

    fn is_alive(&self) -> bool {
        self.shared().is_alive()
    }

    fn peer(&self) -> PeerIdentity {
        self.shared().peer.clone()
    }

    fn subscribe(&self, subscription: Subscription<RealSignal>) {
        self.shared().inbox.subscribe(subscription);
    }

    fn close(&self) {
        self.shared().close("this side closed the connection");
    }
}
