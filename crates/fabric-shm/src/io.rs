//! The control thread: one for each fabric, which sleeps in `epoll` over all control sockets. It accepts
//! connections, exchanges greetings, reads control messages and descriptors, and detects a peer's death,
//! which the kernel reports as a hang-up as soon as the process is gone. No call of the data path waits for
//! it.

use crate::frame::{Frame, Refusal, VERSION};
use crate::link::{LinkShared, READ_BUFFER, Secrets};
use crate::listener::ListenerShared;
use crate::socket::{self, Received};
use crate::watchdog::Watchdog;
use crate::{AllowPolicy, ShmConfig};
use dunlin_fabric::door::{self, Door};
use dunlin_fabric::{Host, RealHost, nanos};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interval at which overdue greetings are checked, in nanoseconds, while there are any.
const TICK: u64 = 250_000_000;
/// The maximum number of connections that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;

const WAKE: u64 = 0;

#[derive(Debug)]
struct Greeting {
    socket: OwnedFd,
    listener: Arc<ListenerShared>,
    secret: [u64; 2],
    deadline: u64,
}

/// Refuses a visitor that has sent another packet than a greeting: logs the first of each kind, and answers
/// in the visitor's protocol where that is cheap.
fn turn_away(greeting: &Greeting, packet: &[u8]) {
    let text = Door::Shm.found_at("");
    let (visitor, peer) = (door::described(packet), socket::peer(greeting.socket.as_fd()));
    if greeting.listener.visitors().is_first(packet) {
        tracing::warn!(?peer, "{visitor} came to shared memory and is refused");
    } else {
        tracing::debug!(?peer, "{visitor} came to shared memory and is refused");
    }
    let refusal = door::refusal(packet, &text);
    if !refusal.is_empty() {
        // The visitor is refused even if it does not read the reason.
        let _ = socket::send(greeting.socket.as_fd(), &refusal, &[], None);
    }
}

#[derive(Debug)]
enum Entry {
    Link(Arc<LinkShared>),
    Listener(Arc<ListenerShared>),
    Greeting(Arc<Greeting>),
}

/// State shared by the control thread and the handles.
#[derive(Debug)]
pub(crate) struct Io {
    epoll: OwnedFd,
    watchdog: Arc<Watchdog>,
    config: ShmConfig,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Entry>>,
    /// The number of entries that are greetings. Only the control thread changes it.
    greetings: AtomicUsize,
}

/// Keeps the control thread running; dropping the last handle stops it.
#[derive(Debug)]
pub(crate) struct IoHandle(Arc<Io>);

impl IoHandle {
    pub(crate) fn start(config: ShmConfig) -> io::Result<Arc<Self>> {
        let io = Arc::new(Io {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watchdog: Watchdog::new()?,
            config,
            numbers: AtomicU64::new(WAKE + 1),
            stopped: AtomicBool::new(false),
            entries: Mutex::default(),
            greetings: AtomicUsize::new(0),
        });
        epoll::add(&io.epoll, io.watchdog.descriptor(), EventData::new_u64(WAKE), EventFlags::IN)?;
        let thread = Arc::clone(&io);
        RealHost.spawn("dunlin-shm-control", Box::new(move || thread.run()))?;
        Ok(Arc::new(IoHandle(io)))
    }

    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.0
    }
}

impl Drop for IoHandle {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.watchdog.call();
    }
}

/// Returns sixteen random bytes.
fn secret() -> [u64; 2] {
    [RealHost.random(), RealHost.random()]
}

impl Io {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other link or listener of this fabric has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    pub(crate) fn config(&self) -> &ShmConfig {
        &self.config
    }

    /// Sends the first frame on a socket; returns the secret in it.
    pub(crate) fn greet(&self, socket: &OwnedFd) -> Result<[u64; 2], Errno> {
        let secret = secret();
        let (head, body) = Frame::Hello { version: VERSION, secret }.encode();
        match socket::send(socket.as_fd(), head.as_slice(), body, None) {
            // The other side has closed already; its reason for refusing can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(secret),
            Err(error) => Err(error),
        }
    }

    /// Starts to watch a link.
    pub(crate) fn add_link(&self, link: Arc<LinkShared>) -> io::Result<()> {
        let number = link.number();
        let added = epoll::add(&self.epoll, link.socket(), EventData::new_u64(number), READ);
        self.entries().insert(number, Entry::Link(link));
        added.map_err(io::Error::from).inspect_err(|_| {
            self.entries().remove(&number);
        })
    }

    /// Starts to watch a listener.
    pub(crate) fn add_listener(&self, listener: Arc<ListenerShared>) -> io::Result<()> {
        let number = listener.number();
        let data = EventData::new_u64(number);
        let added = listener.with_socket(|socket| epoll::add(&self.epoll, socket, data, EventFlags::IN));
        added.unwrap_or(Err(Errno::BADF))?;
        self.entries().insert(number, Entry::Listener(listener));
        Ok(())
    }

    pub(crate) fn drop_listener(&self, listener: &ListenerShared) {
        // The kernel removes a closed socket by itself, so nothing is lost if the socket is already closed.
        listener.with_socket(|socket| epoll::delete(&self.epoll, socket).ok());
        self.entries().remove(&listener.number());
    }

    /// Ends a link and removes it.
    pub(crate) fn drop_link(&self, link: &Arc<LinkShared>, reason: &str) {
        link.end(reason);
        // The control thread may have done so already.
        let _ = epoll::delete(&self.epoll, link.socket());
        self.entries().remove(&link.number());
    }

    /// Sets whether the control thread reads a link's socket or lets it push back. The link's end is detected
    /// either way.
    pub(crate) fn listen_to(&self, link: &LinkShared, read: bool) {
        let flags = if read { READ } else { EventFlags::empty() };
        if let Err(error) =
            epoll::modify(&self.epoll, link.socket(), EventData::new_u64(link.number()), flags)
        {
            // A link that has just ended is no longer watched.
            tracing::debug!(%error, "a control socket is not watched");
        }
    }

    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut buffer = vec![0; READ_BUFFER];
        let mut next_tick = u64::MAX;
        let mut next_watch = u64::MAX;
        while !self.stopped.load(Ordering::Acquire) {
            let greeting = self.greetings.load(Ordering::Relaxed) > 0;
            if !greeting {
                next_tick = u64::MAX;
            } else if next_tick == u64::MAX {
                next_tick = RealHost.now() + TICK;
            }
            let watch = self.watchdog.period();
            next_watch = watch.map_or(u64::MAX, |period| next_watch.min(RealHost.now() + period));
            let tick = watch.unwrap_or(TICK).min(if greeting { TICK } else { u64::MAX });
            let timeout = Timespec { tv_sec: 0, tv_nsec: tick as _ };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, (greeting || watch.is_some()).then_some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for its sockets and ends");
                    break;
                }
            }
            for event in &events {
                if event.data.u64() == WAKE {
                    self.watchdog.heard();
                    continue;
                }
                self.handle(event.data.u64(), event.flags, &mut buffer);
            }
            if next_watch != u64::MAX && RealHost.now() >= next_watch {
                next_watch = u64::MAX;
                self.watchdog.tick();
            }
            if next_tick != u64::MAX && RealHost.now() >= next_tick {
                next_tick = u64::MAX;
                self.drop_overdue();
            }
        }
        self.watchdog.end();
        let entries = std::mem::take(&mut *self.entries());
        for entry in entries.into_values() {
            if let Entry::Link(link) = entry {
                link.end("the fabric was closed");
            }
        }
    }

    fn handle(&self, number: u64, flags: EventFlags, buffer: &mut [u8]) {
        // The map is not locked while an entry is served: serving may add and remove entries.
        let entry = match self.entries().get(&number) {
            Some(Entry::Link(link)) => Entry::Link(Arc::clone(link)),
            Some(Entry::Listener(listener)) => Entry::Listener(Arc::clone(listener)),
            Some(Entry::Greeting(greeting)) => Entry::Greeting(Arc::clone(greeting)),
            None => return,
        };
        match entry {
            Entry::Link(link) => {
                let ended = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
                link.read(buffer, ended);
                if ended || !link.is_alive() {
                    self.drop_link(&link, "its process has ended or it closed the connection");
                }
            }
            Entry::Listener(listener) => self.accept(&listener),
            Entry::Greeting(greeting) => self.greeted(number, &greeting, buffer),
        }
    }

    fn accept(&self, listener: &Arc<ListenerShared>) {
        loop {
            let accepted = listener.with_socket(|socket| socket::accept(socket.as_fd()));
            let socket = match accepted.unwrap_or(Err(Errno::AGAIN)) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a control connection; raise `ulimit -n`?");
                    // Most likely out of descriptors. The socket stays readable, so sleep instead of
                    // spinning.
                    RealHost.sleep(RealHost.now() + 20_000_000);
                    return;
                }
            };
            let user = socket::peer(socket.as_fd()).user;
            let greetings = self.greetings.load(Ordering::Relaxed);
            let refusal = if !self.config.allow.admits(user) {
                Some(Refusal::User(user.unwrap_or(u32::MAX)))
            } else if listener.is_full() || greetings >= MAX_GREETINGS {
                Some(Refusal::Full)
            } else {
                None
            };
            if let Some(refusal) = refusal {
                self.refuse(&socket, refusal);
                continue;
            }
            let Ok(secret) = self.greet(&socket) else { continue };
            let number = self.next_number();
            if epoll::add(&self.epoll, &socket, EventData::new_u64(number), READ).is_err() {
                continue;
            }
            let deadline = RealHost.now().saturating_add(nanos(self.config.greeting_patience));
            let greeting = Greeting { socket, listener: Arc::clone(listener), secret, deadline };
            self.entries().insert(number, Entry::Greeting(Arc::new(greeting)));
            self.greetings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refuse(&self, socket: &OwnedFd, refusal: Refusal) {
        tracing::info!(?refusal, "a connection was refused");
        let (head, body) = Frame::Refused(refusal).encode();
        // The peer is refused even if it does not read the reason.
        let _ = socket::send(socket.as_fd(), head.as_slice(), body, None);
    }

    fn greeted(&self, number: u64, greeting: &Arc<Greeting>, buffer: &mut [u8]) {
        let received = socket::receive(greeting.socket.as_fd(), buffer);
        let link = match received {
            Ok(Received::Empty) => return,
            Ok(Received::Frame { length, descriptor: None }) => match Frame::decode(&buffer[..length]) {
                Ok(Frame::Hello { version: VERSION, secret }) => {
                    greeting.socket.try_clone().ok().map(|socket| {
                        let secrets = Secrets { ours: greeting.secret, theirs: secret };
                        LinkShared::new(socket, secrets, self.config.max_grants_per_link, self.me(greeting))
                    })
                }
                Ok(Frame::Hello { .. }) => {
                    self.refuse(&greeting.socket, Refusal::Version(VERSION));
                    None
                }
                Ok(_) | Err(_) => {
                    turn_away(greeting, &buffer[..length]);
                    None
                }
            },
            _ => None,
        };
        self.drop_greeting(number, &greeting.socket);
        if let Some(link) = link {
            match self.add_link(Arc::clone(&link)) {
                Ok(()) => greeting.listener.arrived(link),
                Err(error) => tracing::warn!(%error, "a new connection cannot be watched and is dropped"),
            }
        }
    }

    fn me(&self, greeting: &Greeting) -> Arc<Io> {
        Arc::clone(greeting.listener.io())
    }

    fn drop_greeting(&self, number: u64, socket: &OwnedFd) {
        // Fails only if the socket is not watched; then there is nothing to remove.
        let _ = epoll::delete(&self.epoll, socket);
        if self.entries().remove(&number).is_some() {
            self.greetings.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn drop_overdue(&self) {
        let now = RealHost.now();
        let overdue: Vec<(u64, Arc<Greeting>)> = self
            .entries()
            .iter()
            .filter_map(|(number, entry)| match entry {
                Entry::Greeting(greeting) if greeting.deadline <= now => {
                    Some((*number, Arc::clone(greeting)))
                }
                _ => None,
            })
            .collect();
        for (number, greeting) in overdue {
            tracing::info!("a connection without a hello is dropped");
            self.drop_greeting(number, &greeting.socket);
        }
    }
}

const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

impl AllowPolicy {
    /// Returns whether a user may connect.
    pub(crate) fn admits(&self, user: Option<u32>) -> bool {
        match (self, user) {
            (AllowPolicy::Anyone, _) => true,
            (AllowPolicy::SameUser, Some(user)) => user == socket::own_user() || user == 0,
            (AllowPolicy::Users(users), Some(user)) => users.contains(&user),
            (_, None) => false,
        }
    }
}
