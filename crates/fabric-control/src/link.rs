//! The control connection: messages, grants of memory, liveness.

use crate::backend::{Backend, Flag, LinkEvents, Place, lock};
use crate::control::{Control, READ_BUFFER};
use crate::frame::{Frame, FrameError, Grant};
use crate::reactor::{ENDED, READ, Reactor, Watched};
use crate::tcp;
use crate::waiting::wait;
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::inbox::{Inbox, InboxLimits, Nothing};
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    Access, GrantError, Host, Link, LinkError, Memory, Nanos, PeerIdentity, RealHost, RegionKey, Subscription,
};
use rustix::event::epoll::EventFlags;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use thiserror::Error;

/// Limits of the inbox. When it is full, the thread stops reading the socket, and TCP pushes back on the
/// peer.
const INBOX: InboxLimits = InboxLimits { items: 256, bytes: 1 << 20 };
/// The time that a sender waits for a peer that does not read, in nanoseconds.
const SEND_PATIENCE: u64 = 1_000_000_000;
/// The maximum number of unsent bytes queued by senders that do not wait.
const MAX_OUTGOING: usize = 1 << 20;

/// A queue pair whose address was given to the peer.
#[derive(Debug)]
struct Attachment {
    name: u64,
    closed: Weak<Flag>,
    ready: Weak<Flag>,
    attention: Weak<dyn LinkEvents>,
}

impl Attachment {
    /// Notifies the queue pair of an event at the other end.
    fn tell(&self, flag: &Weak<Flag>) {
        if let (Some(flag), Some(attention)) = (flag.upgrade(), self.attention.upgrade()) {
            flag.raise();
            attention.tell_news();
        }
    }
}

/// Memory that the peer has granted to this side.
#[derive(Debug)]
pub struct RemoteRegion {
    /// Its name on the link.
    pub key: RegionKey,
    /// Its location.
    pub place: Place,
    /// The access granted.
    pub access: Access,
    revoked: AtomicBool,
}

impl RemoteRegion {
    /// Returns whether the grant has ended.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }
}

/// The grants of this side. Holds the registrations, so that the memory stays valid.
#[derive(Debug)]
struct Exports<R> {
    next: u64,
    granted: BTreeMap<RegionKey, R>,
}

/// A protocol violation, for which the connection is closed.
#[derive(Debug, Error)]
enum Violation {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it granted memory under a name that is in use")]
    GrantName,
    #[error("it granted more than {0} regions")]
    GrantCount(usize),
    #[error("it sent a hello twice")]
    Hello,
}

/// The state of a link that the control thread, the handles and the queue pairs share.
#[derive(Debug)]
pub struct LinkShared<B: Backend> {
    number: u64,
    socket: TcpStream,
    /// Whether this side dialled.
    dialled: bool,
    alive: AtomicBool,
    /// Whether the link ended because of this side's device.
    device_broke: AtomicBool,
    max_grants: usize,
    reactor: Arc<Reactor>,
    backend: Arc<B>,
    /// Bytes of an incomplete frame. The reading thread holds the lock.
    incoming: Mutex<Vec<u8>>,
    outgoing: Mutex<Vec<u8>>,
    interest: Mutex<EventFlags>,
    inbox: Inbox<Vec<u8>>,
    exports: Mutex<Exports<B::Registration>>,
    imports: Mutex<BTreeMap<RegionKey, Arc<RemoteRegion>>>,
    attachments: Mutex<Vec<Attachment>>,
}

impl<B: Backend> LinkShared<B> {
    /// Makes a link over a socket on which the greetings are complete; `rest` holds bytes received after the
    /// peer's hello.
    pub(crate) fn new(socket: TcpStream, dialled: bool, rest: Vec<u8>, control: &Control<B>) -> Arc<Self> {
        // Keys start at a random number, so that a key of one link is not valid on another.
        let next = (RealHost.random() & !0xffff_ffff) | 0x10;
        Arc::new(LinkShared {
            number: control.reactor().next_number(),
            socket,
            dialled,
            alive: AtomicBool::new(true),
            device_broke: AtomicBool::new(false),
            max_grants: control.backend().limits().max_grants,
            reactor: Arc::clone(control.reactor()),
            backend: Arc::clone(control.backend()),
            incoming: Mutex::new(rest),
            outgoing: Mutex::default(),
            interest: Mutex::new(READ),
            inbox: Inbox::new(INBOX),
            exports: Mutex::new(Exports { next, granted: BTreeMap::new() }),
            imports: Mutex::default(),
            attachments: Mutex::default(),
        })
    }

    /// Lets the control thread watch the link.
    pub(crate) fn watch(self: &Arc<Self>) -> io::Result<()> {
        // Bytes that arrived with the greeting do not make the socket readable, so they are processed now.
        self.read(&mut [0; 4096], false);
        let owner = Arc::clone(self) as Arc<dyn Watched>;
        self.reactor.add(self.number, &self.socket, *lock(&self.interest), owner)
    }

    /// Returns whether this side dialled.
    pub fn has_dialled(&self) -> bool {
        self.dialled
    }

    /// Returns the address of this side.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.socket.local_addr().ok().map(|address| address.ip())
    }

    /// Returns the address of the other side.
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.socket.peer_addr().ok().map(|address| address.ip())
    }

    /// Returns whether the peer is alive, as far as known.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Ends the link: closes the socket and notifies all waiting threads and queue pairs.
    pub(crate) fn end(&self, reason: &str) {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        tcp::shut_down(&self.socket);
        self.inbox.end(reason);
        for attachment in lock(&self.attachments).drain(..) {
            if let Some(attention) = attachment.attention.upgrade() {
                attention.tell_news();
            }
        }
    }

    /// Ends the link, and its watch by the control thread.
    fn close(&self, reason: &str) {
        self.end(reason);
        self.reactor.remove(self.number, &self.socket);
    }

    /// Ends the link because this side's device is unusable or cut off. As [`end`](LinkShared::end), but
    /// errors blame the device instead of the peer.
    pub(crate) fn end_for_device(&self, reason: &str) {
        self.device_broke.store(true, Ordering::Release);
        self.end(reason);
    }

    /// Ends the link after the connection failed. Trouble of this side's device takes precedence as the
    /// reason.
    fn lost(&self, reason: &str) {
        match self.backend.trouble() {
            Some(trouble) => self.end_for_device(&trouble),
            None => self.end(reason),
        }
    }

    fn gone(&self, reason: String) -> LinkError {
        match self.device_broke.load(Ordering::Acquire) {
            true => LinkError::Device(reason),
            false => LinkError::PeerGone(reason),
        }
    }

    /// Reads the bytes in the socket. `all` ignores the inbox limits: set when the peer has closed, so that
    /// none of its messages is lost (the socket's buffer bounds their size).
    pub(crate) fn read(&self, buffer: &mut [u8], all: bool) {
        let mut incoming = lock(&self.incoming);
        if let Err(violation) = self.take_frames(&mut incoming) {
            return self.offended(&violation);
        }
        loop {
            if !all && self.inbox.pause_if_full(|| self.set_interest(EventFlags::IN, false)) {
                return;
            }
            match (&self.socket).read(buffer) {
                Ok(0) => return self.lost("it closed the connection"),
                Ok(count) => {
                    incoming.extend_from_slice(&buffer[..count]);
                    if let Err(violation) = self.take_frames(&mut incoming) {
                        return self.offended(&violation);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.lost(&format!("its connection failed: {error}")),
            }
        }
    }

    fn offended(&self, violation: &Violation) {
        tracing::warn!(peer = ?self.socket.peer_addr().ok(), %violation, "closing a control connection");
        self.end(&violation.to_string());
    }

    fn take_frames(&self, incoming: &mut Vec<u8>) -> Result<(), Violation> {
        let mut at = 0;
        while let Some((frame, length)) = Frame::split(&incoming[at..])? {
            self.take(frame)?;
            at += length;
        }
        incoming.drain(..at);
        Ok(())
    }

    fn take(&self, frame: Frame<'_>) -> Result<(), Violation> {
        match frame {
            Frame::Hello(_) | Frame::Full => return Err(Violation::Hello),
            Frame::Message(message) => self.inbox.push(message.to_vec(), message.len()),
            Frame::Grant(Grant { key, place, access }) => {
                let mut imports = lock(&self.imports);
                if imports.len() >= self.max_grants {
                    return Err(Violation::GrantCount(self.max_grants));
                }
                let region = RemoteRegion { key, place, access, revoked: AtomicBool::new(false) };
                if imports.insert(key, Arc::new(region)).is_some() {
                    return Err(Violation::GrantName);
                }
            }
            Frame::Revoke(key) => {
                if let Some(region) = lock(&self.imports).remove(&key) {
                    region.revoked.store(true, Ordering::Relaxed);
                }
            }
            Frame::QueuePairClosed(name) => {
                lock(&self.attachments).iter().filter(|a| a.name == name).for_each(|a| a.tell(&a.closed));
            }
            Frame::QueuePairReady(name) => {
                lock(&self.attachments).iter().filter(|a| a.name == name).for_each(|a| a.tell(&a.ready));
            }
        }
        Ok(())
    }

    /// Changes the events that the control thread waits for on the socket.
    fn set_interest(&self, flags: EventFlags, wanted: bool) {
        let mut interest = lock(&self.interest);
        let changed = if wanted { *interest | flags } else { *interest - flags };
        if changed != *interest {
            *interest = changed;
            self.reactor.set_events(self.number, &self.socket, changed);
        }
    }

    fn flush(&self, outgoing: &mut Vec<u8>) -> io::Result<()> {
        let mut sent = 0;
        let result = loop {
            if sent == outgoing.len() {
                break Ok(());
            }
            match (&self.socket).write(&outgoing[sent..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        outgoing.drain(..sent);
        self.set_interest(EventFlags::OUT, !outgoing.is_empty() && result.is_ok());
        result
    }

    /// Continues to send when the socket accepts bytes.
    pub(crate) fn write_on(&self) {
        // An error means that the peer is gone. Reading reports that too, after the messages that the peer
        // has sent.
        if let Err(error) = self.flush(&mut lock(&self.outgoing)) {
            tracing::debug!(%error, "a control connection takes nothing any more");
        }
    }

    /// Sends a frame. If `patient`, waits for a peer that reads slowly; otherwise appends the frame to the
    /// unsent bytes.
    fn send_frame(&self, frame: &Frame<'_>, patient: bool) -> Result<(), LinkError> {
        let gone = |error: io::Error| LinkError::PeerGone(error.to_string());
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut give_up = None;
        loop {
            if !self.is_alive() {
                let reason = self.inbox.ended().unwrap_or_else(|| "the connection is closed".into());
                return Err(self.gone(reason));
            }
            {
                let mut outgoing = lock(&self.outgoing);
                self.flush(&mut outgoing).map_err(gone)?;
                if outgoing.is_empty() || (!patient && outgoing.len() < MAX_OUTGOING) {
                    outgoing.append(&mut bytes);
                    return self.flush(&mut outgoing).map_err(gone);
                }
            }
            let now = RealHost.now();
            let until = *give_up.get_or_insert(now + SEND_PATIENCE);
            if !patient || now >= until {
                return Err(LinkError::Backlog);
            }
            wait(&self.socket, true, (until - now).min(50_000_000));
        }
    }

    /// Notifies the peer that the other end of its queue pair is gone. Does not wait: if the peer does not
    /// read its control connection, the connection is closed, which has the same meaning.
    pub(crate) fn tell_closed(&self, theirs: u64) {
        self.tell(&Frame::QueuePairClosed(theirs));
    }

    /// Notifies the peer that the other end of its queue pair accepts messages. Does not wait: if the peer
    /// does not read its control connection, the connection is closed.
    pub fn tell_ready(&self, theirs: u64) {
        self.tell(&Frame::QueuePairReady(theirs));
    }

    fn tell(&self, frame: &Frame<'_>) {
        match self.send_frame(frame, false) {
            Ok(()) => {}
            Err(LinkError::Backlog) => self.end("it does not read its control connection"),
            Err(error) => tracing::debug!(%error, ?frame, "a queue pair's other end was not told"),
        }
    }

    /// Registers a queue pair of this side for notice of its other end's readiness and end. Called before the
    /// peer can know its name.
    pub(crate) fn attach(
        &self,
        name: u64,
        closed: &Arc<Flag>,
        ready: &Arc<Flag>,
        attention: &Arc<impl LinkEvents>,
    ) {
        lock(&self.attachments).push(Attachment {
            name,
            closed: Arc::downgrade(closed),
            ready: Arc::downgrade(ready),
            attention: Arc::downgrade(attention) as Weak<dyn LinkEvents>,
        });
        if !self.is_alive() {
            attention.tell_news();
        }
    }

    /// Removes the registration of a queue pair.
    pub(crate) fn detach(&self, name: u64) {
        lock(&self.attachments).retain(|a| a.name != name);
    }

    /// Returns the region that the peer has granted under a key. A key can arrive through memory before the
    /// control thread has read the grant, so an unknown key makes this method read the socket first.
    pub(crate) fn import(&self, key: RegionKey) -> Option<Arc<RemoteRegion>> {
        let find = || lock(&self.imports).get(&key).map(Arc::clone);
        find().or_else(|| {
            self.read(&mut vec![0; READ_BUFFER], false);
            find()
        })
    }

    fn grant(&self, memory: &Arc<B::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        if access == Access::LOCAL || !memory.access().contains(access) {
            return Err(GrantError::Access);
        }
        let (registration, place) = self.backend.grant(memory, access)?;
        let (key, frame) = {
            let mut exports = lock(&self.exports);
            if exports.granted.len() >= self.max_grants {
                return Err(GrantError::TooMany(self.max_grants));
            }
            let key = RegionKey(exports.next);
            exports.next += 1;
            let frame = Frame::Grant(Grant { key, place, access });
            exports.granted.insert(key, registration);
            (key, frame)
        };
        self.send_frame(&frame, true).inspect_err(|_| {
            lock(&self.exports).granted.remove(&key);
        })?;
        Ok(key)
    }

    /// Notifies the peer before the device invalidates the key. The key becomes invalid even if that notice
    /// fails.
    fn revoke(&self, key: RegionKey) {
        let Some(registration) = lock(&self.exports).granted.remove(&key) else { return };
        if let Err(error) = self.send_frame(&Frame::Revoke(key), true) {
            tracing::debug!(%error, "the end of a grant was not told");
        }
        drop(registration);
    }
}

impl<B: Backend> Watched for LinkShared<B> {
    fn serve(self: Arc<Self>, _: &Arc<Reactor>, _: u64, flags: EventFlags, buffer: &mut [u8]) {
        if flags.contains(EventFlags::OUT) {
            self.write_on();
        }
        let ended = flags.intersects(ENDED);
        self.read(buffer, ended);
        if ended || !self.is_alive() {
            self.close("its process has ended or it closed the connection");
        }
    }

    fn lose_device(&self, reason: &str) {
        self.end_for_device(reason);
        self.close(reason);
    }

    fn end(&self, reason: &str) {
        LinkShared::end(self, reason);
    }
}

/// A control connection. Clones are the same connection; dropping the last clone closes it.
#[derive(Debug)]
pub struct TcpLink<B: Backend> {
    shared: Arc<LinkShared<B>>,
    closer: Arc<Closer<B>>,
}

impl<B: Backend> Clone for TcpLink<B> {
    fn clone(&self) -> Self {
        TcpLink { shared: Arc::clone(&self.shared), closer: Arc::clone(&self.closer) }
    }
}

/// Closes the link when the last user handle is dropped; keeps the control thread running until then.
#[derive(Debug)]
struct Closer<B: Backend> {
    shared: Arc<LinkShared<B>>,
    _control: Arc<Control<B>>,
}

impl<B: Backend> Drop for Closer<B> {
    fn drop(&mut self) {
        self.shared.close(CLOSED_HERE);
    }
}

const CLOSED_HERE: &str = "this side closed the connection";

impl<B: Backend> TcpLink<B> {
    pub(crate) fn new(shared: Arc<LinkShared<B>>, control: Arc<Control<B>>) -> Self {
        TcpLink { closer: Arc::new(Closer { shared: Arc::clone(&shared), _control: control }), shared }
    }

    /// Returns the shared state.
    pub fn shared(&self) -> &Arc<LinkShared<B>> {
        &self.shared
    }

    fn take(&self, until: Nanos) -> Result<Vec<u8>, Nothing> {
        let shared = &self.shared;
        shared.inbox.take(until, || shared.set_interest(EventFlags::IN, true))
    }
}

impl<B: Backend> Link for TcpLink<B> {
    type Memory = B::Memory;
    type Signal = RealSignal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MAX_CONTROL_MESSAGE {
            return Err(LinkError::TooLong { length: message.len(), limit: MAX_CONTROL_MESSAGE });
        }
        self.shared.send_frame(&Frame::Message(message), true)
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        self.take(until).map_err(|nothing| match nothing {
            Nothing::TimedOut => LinkError::TimedOut,
            Nothing::Ended(reason) => self.shared.gone(reason),
        })
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        match self.receive(0) {
            Err(LinkError::TimedOut) => Ok(None),
            other => other.map(Some),
        }
    }

    fn grant(&self, memory: &Arc<B::Memory>, access: Access) -> Result<RegionKey, GrantError> {
        self.shared.grant(memory, access)
    }

    fn revoke(&self, key: RegionKey) {
        self.shared.revoke(key);
    }

    fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Returns an empty identity: a network connection does not authenticate the peer.
    fn peer(&self) -> PeerIdentity {
        PeerIdentity::default()
    }

    fn subscribe(&self, subscription: Subscription<RealSignal>) {
        self.shared.inbox.subscribe(subscription);
    }

    fn close(&self) {
        self.shared.close(CLOSED_HERE);
    }
}
