//! The control thread: one for each fabric, which sleeps in `epoll` over all control sockets. It accepts
//! connections, exchanges greetings, reads control messages, and detects a peer's death. No call of the data
//! path waits for it.

use crate::backend::{Backend, Greeting, Heard, lock};
use crate::frame::{Frame, MAX_FRAME};
use crate::link::{LinkShared, READ_BUFFER, TcpLink};
use crate::listener::{ListenerShared, TcpControlListener};
use crate::socket;
use dunlin_fabric::door::{self, Door, Look};
use dunlin_fabric::{Address, DialError, Host, ListenError, Nanos, RealHost};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The interval at which overdue greetings are checked, in nanoseconds, while there are any.
const TICK: u64 = 250_000_000;
/// The maximum number of connections that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;

/// The most bytes that are read from a visitor after it was refused.
const MAX_DISCARDED: usize = 64 << 10;

const WAKE: u64 = 0;
/// The number of the back-end's first descriptor.
const BACKEND: u64 = 1;
/// The maximum number of the back-end's descriptors.
const MAX_DESCRIPTORS: u64 = 8;

/// A new connection whose greeting is incomplete.
#[derive(Debug)]
struct Greeted<B: Backend> {
    socket: TcpStream,
    listener: Arc<ListenerShared<B>>,
    hearing: Mutex<Hearing>,
    deadline: u64,
}

/// The progress of a new connection.
#[derive(Debug)]
enum Hearing {
    /// The bytes of an incomplete greeting.
    Greeting(Vec<u8>),
    /// The visitor was refused. Its further bytes are discarded, so that the system does not reset the
    /// connection before the visitor has read the refusal. The value is their number so far.
    Leaving(usize),
}

impl Default for Hearing {
    fn default() -> Self {
        Hearing::Greeting(Vec::new())
    }
}

#[derive(Debug)]
enum Entry<B: Backend> {
    Link(Arc<LinkShared<B>>),
    Listener(Arc<ListenerShared<B>>),
    Greeting(Arc<Greeted<B>>),
}

impl<B: Backend> Clone for Entry<B> {
    fn clone(&self) -> Self {
        match self {
            Entry::Link(link) => Entry::Link(Arc::clone(link)),
            Entry::Listener(listener) => Entry::Listener(Arc::clone(listener)),
            Entry::Greeting(greeting) => Entry::Greeting(Arc::clone(greeting)),
        }
    }
}

/// State shared by the control thread and the handles.
#[derive(Debug)]
pub struct Io<B: Backend> {
    epoll: OwnedFd,
    call: OwnedFd,
    backend: Arc<B>,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Entry<B>>>,
    /// The number of entries that are greetings. Only the control thread changes it.
    greetings: AtomicUsize,
}

/// The control connections of a fabric. Dropping it stops the control thread.
#[derive(Debug)]
pub struct Control<B: Backend>(Arc<Io<B>>);

impl<B: Backend> Control<B> {
    /// Starts the control thread.
    pub fn start(backend: Arc<B>) -> io::Result<Arc<Self>> {
        let io = Arc::new(Io {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            backend,
            numbers: AtomicU64::new(BACKEND + MAX_DESCRIPTORS),
            stopped: AtomicBool::new(false),
            entries: Mutex::default(),
            greetings: AtomicUsize::new(0),
        });
        epoll::add(&io.epoll, &io.call, EventData::new_u64(WAKE), EventFlags::IN)?;
        for (number, descriptor) in (BACKEND..BACKEND + MAX_DESCRIPTORS).zip(io.backend.descriptors()) {
            epoll::add(&io.epoll, descriptor, EventData::new_u64(number), EventFlags::IN)?;
        }
        let thread = Arc::clone(&io);
        RealHost.spawn(B::THREAD, Box::new(move || thread.run()))?;
        Ok(Arc::new(Control(io)))
    }

    /// Returns the back-end.
    pub fn backend(&self) -> &Arc<B> {
        &self.0.backend
    }

    pub(crate) fn io(&self) -> &Arc<Io<B>> {
        &self.0
    }

    /// Listens at HOST:PORT. Port 0 lets the system choose a port, which the listener's address then
    /// contains. `prefix` is the text before HOST:PORT in addresses, with its colon; it may be empty.
    pub fn listen(
        self: &Arc<Self>,
        address: &Address,
        (prefix, host, port): (&str, &str, u16),
    ) -> Result<TcpControlListener<B>, ListenError> {
        let system = |source| ListenError::System { address: address.clone(), source };
        let socket = TcpListener::bind((host, port)).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => ListenError::InUse { address: address.clone() },
            _ => system(error),
        })?;
        socket.set_nonblocking(true).map_err(system)?;
        let port = socket.local_addr().map_err(system)?.port();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let actual = Address::new(B::SCHEME, &format!("{prefix}{host}:{port}"))
            .map_err(|error| system(io::Error::other(error)))?;
        let shared = ListenerShared::new(socket, &self.0);
        self.0.add_listener(Arc::clone(&shared)).map_err(system)?;
        Ok(TcpControlListener::new(shared, actual, Arc::clone(self)))
    }

    /// Opens a control connection to HOST:PORT; blocks no longer than `until`.
    pub fn dial(
        self: &Arc<Self>,
        address: &Address,
        (host, port): (&str, u16),
        until: Nanos,
    ) -> Result<TcpLink<B>, DialError> {
        let address = || address.clone();
        if let Some(trouble) = self.0.backend.trouble() {
            return Err(DialError::System { address: address(), source: io::Error::other(trouble) });
        }
        let within = until.saturating_sub(RealHost.now());
        let timed_out = || DialError::TimedOut { address: address(), after: Duration::from_nanos(within) };
        let socket = socket::connect(host, port, until).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => DialError::NobodyListens { address: address() },
            ErrorKind::TimedOut | ErrorKind::WouldBlock => timed_out(),
            _ => DialError::System { address: address(), source: error },
        })?;
        let ours = self.0.backend.greeting().version;
        let link = self.0.greet(socket, until).map_err(|error| match error {
            GreetError::Version(theirs) => DialError::Version { address: address(), ours, theirs },
            GreetError::TimedOut => timed_out(),
            GreetError::Full => DialError::Full { address: address() },
            GreetError::None(source) => DialError::NoGreeting { address: address(), source },
            GreetError::Foreign(bytes, source) => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
                match door::found(&bytes, &format!("{host}:{port}")) {
                    Some(found) => DialError::WrongDoor { address: address(), found },
                    None => DialError::NoGreeting { address: address(), source },
                }
            }
            GreetError::System(source) => DialError::System { address: address(), source },
        })?;
        Ok(TcpLink::new(link, Arc::clone(self)))
    }
}

impl<B: Backend> Drop for Control<B> {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        // Cannot fail: nothing else is ever written to this descriptor.
        let _ = rustix::io::write(&self.0.call, &1u64.to_ne_bytes());
    }
}

/// The state of a greeting.
enum Heed {
    /// The greeting is incomplete.
    Waits,
    /// The peer's version, and the bytes received after its hello.
    Hello(u16, Vec<u8>),
    /// The peer has no room for another connection.
    Full,
    /// The peer has sent other bytes than a greeting of this fabric.
    Foreign(io::Error),
    /// The peer is gone; the error has the reason.
    Failed(io::Error),
}

fn hear_greeting(socket: &mut &TcpStream, incoming: &mut Vec<u8>, ours: Greeting) -> Heed {
    let mut buffer = [0; 512];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => {
                let error = io::Error::other("it closed the connection before its greeting");
                return if incoming.is_empty() { Heed::Failed(error) } else { Heed::Foreign(error) };
            }
            Ok(count) => incoming.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heed::Waits,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Heed::Failed(error),
        }
        match Frame::split(incoming) {
            Ok(Some((Frame::Hello(theirs), length))) => {
                if theirs.magic != ours.magic {
                    return Heed::Foreign(io::Error::other("it is no service of this fabric"));
                }
                return Heed::Hello(theirs.version, incoming.split_off(length));
            }
            Ok(Some((Frame::Full, _))) => return Heed::Full,
            Ok(None) if incoming.len() <= MAX_FRAME => {}
            // The words of a refusal may come in pieces.
            Err(_)
                if door::recognise(incoming) == Look::Is(Door::Refusal)
                    && door::refusal_text(incoming).is_none()
                    && incoming.len() < door::MAX_REFUSAL => {}
            Ok(_) => return Heed::Foreign(io::Error::other("its first word was no greeting")),
            Err(error) => return Heed::Foreign(io::Error::other(error)),
        }
    }
}

/// Sends the first frame. A new socket always has room for it.
fn say(mut socket: &TcpStream, frame: &Frame<'_>) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    socket.write_all(&bytes)
}

/// Refuses a visitor that has sent other bytes than a greeting of this fabric: logs the first of each kind,
/// and answers in the visitor's protocol where that is cheap. A new socket has room for the answer.
fn refuse<B: Backend>(
    mut socket: &TcpStream,
    listener: &ListenerShared<B>,
    incoming: &mut Vec<u8>,
    ours: Greeting,
) {
    // The head of a Thrift call names the function, which the answer must repeat.
    let mut more = [0; 512];
    if let Ok(count) = socket.read(&mut more) {
        incoming.extend_from_slice(&more[..count]);
    }
    let mut hello = Vec::new();
    Frame::Hello(ours).encode(&mut hello);
    let own = door::recognise(&hello).door().unwrap_or(Door::Control);
    let place = socket.local_addr().map(|place| place.to_string()).unwrap_or_default();
    let text = own.found_at(&place);
    let (visitor, peer) = (door::described(incoming), socket.peer_addr().ok());
    if listener.visitors().is_first(incoming) {
        tracing::warn!(?peer, "{visitor} came to {place} and is refused: {text}");
    } else {
        tracing::debug!(?peer, "{visitor} came to {place} and is refused");
    }
    let refusal = door::refusal(incoming, &text);
    let told = socket.write_all(&refusal).and_then(|()| socket.shutdown(Shutdown::Write));
    if let Err(error) = told {
        tracing::debug!(%error, ?peer, "a visitor was gone before its refusal");
    }
    *incoming = Vec::new();
}

/// Reads and discards the bytes of a refused visitor. Returns whether more may come.
fn discard(mut socket: &TcpStream, discarded: &mut usize) -> bool {
    let mut buffer = [0; 4096];
    while *discarded < MAX_DISCARDED {
        match socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => *discarded += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    false
}

/// The reason why the greeting of a dialled connection failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum GreetError {
    /// The listener has this version.
    Version(u16),
    /// The listener did not answer in time.
    TimedOut,
    /// The listener has no room.
    Full,
    /// The peer is gone.
    None(io::Error),
    /// The peer has sent these bytes, which no service of this fabric sends.
    Foreign(Vec<u8>, io::Error),
    /// A system call failed.
    System(io::Error),
}

impl<B: Backend> Io<B> {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry<B>>> {
        lock(&self.entries)
    }

    /// Returns a number that no other link or listener of this fabric has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    /// Exchanges greetings on a dialled connection; blocks no longer than `until`.
    pub(crate) fn greet(
        self: &Arc<Self>,
        socket: TcpStream,
        until: u64,
    ) -> Result<Arc<LinkShared<B>>, GreetError> {
        let ours = self.backend.greeting();
        let said = say(&socket, &Frame::Hello(ours));
        let mut incoming = Vec::new();
        let rest = loop {
            match hear_greeting(&mut &socket, &mut incoming, ours) {
                Heed::Waits => {
                    let left = until.saturating_sub(RealHost.now());
                    if left == 0 {
                        return Err(GreetError::TimedOut);
                    }
                    socket::wait(&socket, false, left.min(1_000_000_000));
                }
                Heed::Hello(version, rest) if version == ours.version => break rest,
                Heed::Hello(version, _) => return Err(GreetError::Version(version)),
                Heed::Full => return Err(GreetError::Full),
                Heed::Foreign(error) => return Err(GreetError::Foreign(incoming, error)),
                Heed::Failed(error) => return Err(GreetError::None(error)),
            }
        };
        said.map_err(GreetError::None)?;
        let link = LinkShared::new(socket, true, rest, self);
        self.add_link(Arc::clone(&link)).map_err(GreetError::System)?;
        Ok(link)
    }

    /// Starts to watch a link.
    fn add_link(&self, link: Arc<LinkShared<B>>) -> io::Result<()> {
        // Bytes that arrived with the greeting do not make the socket readable, so they are processed now.
        link.read(&mut [0; 4096], false);
        let number = link.number();
        self.entries().insert(number, Entry::Link(Arc::clone(&link)));
        let added = epoll::add(&self.epoll, link.socket(), EventData::new_u64(number), link.interest());
        added.map_err(io::Error::from).inspect_err(|_| {
            self.entries().remove(&number);
        })
    }

    /// Starts to watch a listener.
    pub(crate) fn add_listener(&self, listener: Arc<ListenerShared<B>>) -> io::Result<()> {
        let number = listener.number();
        let data = EventData::new_u64(number);
        let added = listener.with_socket(|socket| epoll::add(&self.epoll, socket, data, EventFlags::IN));
        added.unwrap_or(Err(Errno::BADF))?;
        self.entries().insert(number, Entry::Listener(listener));
        Ok(())
    }

    pub(crate) fn drop_listener(&self, listener: &ListenerShared<B>) {
        // The kernel removes a closed socket by itself, so nothing is lost if the socket is already closed.
        listener.with_socket(|socket| epoll::delete(&self.epoll, socket).ok());
        self.entries().remove(&listener.number());
    }

    /// Ends a link and removes it.
    pub(crate) fn drop_link(&self, link: &LinkShared<B>, reason: &str) {
        link.end(reason);
        self.forget(link.number(), link.socket());
    }

    fn forget(&self, number: u64, socket: &TcpStream) -> bool {
        // Fails if the socket was removed already.
        let _ = epoll::delete(&self.epoll, socket);
        self.entries().remove(&number).is_some()
    }

    /// Sets the events of a link that the control thread waits for.
    pub(crate) fn watch(&self, link: &LinkShared<B>, flags: EventFlags) {
        let data = EventData::new_u64(link.number());
        if let Err(error) = epoll::modify(&self.epoll, link.socket(), data, flags) {
            // Fails if the socket is not registered yet, or no longer.
            tracing::debug!(%error, "a control socket is not watched");
        }
    }

    fn run(self: Arc<Self>) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut buffer = vec![0; READ_BUFFER];
        let mut next_tick = u64::MAX;
        while !self.stopped.load(Ordering::Acquire) {
            let ticks = self.greetings.load(Ordering::Relaxed) > 0;
            next_tick = if ticks { next_tick.min(RealHost.now() + TICK) } else { u64::MAX };
            let look_at = self.backend.look_at();
            let left = look_at.unwrap_or(u64::MAX).min(next_tick).saturating_sub(RealHost.now()).min(TICK);
            let timeout = Timespec { tv_sec: 0, tv_nsec: left as _ };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, (ticks || look_at.is_some()).then_some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for its sockets and ends");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {}
                    number if number < BACKEND + MAX_DESCRIPTORS => {
                        self.hear_backend((number - BACKEND) as usize, event.flags);
                    }
                    number => self.handle(number, event.flags, &mut buffer),
                }
            }
            if let Some(reason) = look_at.and_then(|_| self.backend.look()) {
                self.end_links(&reason);
            }
            if RealHost.now() >= next_tick {
                next_tick = u64::MAX;
                self.drop_overdue();
            }
        }
        let entries = std::mem::take(&mut *self.entries());
        for entry in entries.into_values() {
            if let Entry::Link(link) = entry {
                link.end("the fabric was closed");
            }
        }
    }

    /// Handles an event of one of the back-end's descriptors.
    fn hear_backend(&self, place: usize, flags: EventFlags) {
        let Heard { forget, end_links } = self.backend.hear(place, flags);
        if forget && let Some(descriptor) = self.backend.descriptors().get(place) {
            // The result does not matter: the descriptor has no more events.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        if let Some(reason) = end_links {
            self.end_links(&reason);
        }
    }

    /// Ends all links because of the device.
    fn end_links(&self, reason: &str) {
        let entries: Vec<Entry<B>> = self.entries().values().cloned().collect();
        for entry in entries {
            if let Entry::Link(link) = entry {
                link.end_for_device(reason);
                self.drop_link(&link, reason);
            }
        }
    }

    fn handle(self: &Arc<Self>, number: u64, flags: EventFlags, buffer: &mut [u8]) {
        // The map is not locked while an entry is served: serving may add and remove entries.
        let entry = self.entries().get(&number).cloned();
        match entry {
            Some(Entry::Link(link)) => {
                if flags.contains(EventFlags::OUT) {
                    link.write_on();
                }
                let ended = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
                link.read(buffer, ended);
                if ended || !link.is_alive() {
                    self.drop_link(&link, "its process has ended or it closed the connection");
                }
            }
            Some(Entry::Listener(listener)) => self.accept(&listener),
            Some(Entry::Greeting(greeting)) => self.greeted(number, &greeting),
            None => {}
        }
    }

    fn accept(&self, listener: &Arc<ListenerShared<B>>) {
        loop {
            let accepted = listener.with_socket(|socket| socket.accept());
            let socket = match accepted {
                Some(Ok((socket, _))) => socket,
                None => return,
                Some(Err(error)) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    _ => {
                        tracing::warn!(%error, "cannot accept a control connection; raise `ulimit -n`?");
                        // Most likely out of descriptors. The socket stays readable, so sleep instead of
                        // spinning.
                        RealHost.sleep(RealHost.now() + 20_000_000);
                        return;
                    }
                },
            };
            let full = listener.is_full() || self.greetings.load(Ordering::Relaxed) >= MAX_GREETINGS;
            // The dialler greets first, so that a visitor with another protocol gets an answer in that one.
            let word = || if full { say(&socket, &Frame::Full) } else { Ok(()) };
            if let Err(error) = socket::prepare(&socket).and_then(|()| word()) {
                tracing::debug!(%error, "a connection ended before its greeting");
                continue;
            }
            let number = self.next_number();
            let data = EventData::new_u64(number);
            if full || epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::RDHUP).is_err() {
                continue;
            }
            let deadline = RealHost.now().saturating_add(self.backend.limits().greeting_patience);
            let (listener, hearing) = (Arc::clone(listener), Mutex::default());
            let greeting = Greeted { socket, listener, hearing, deadline };
            self.entries().insert(number, Entry::Greeting(Arc::new(greeting)));
            self.greetings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn greeted(self: &Arc<Self>, number: u64, greeting: &Greeted<B>) {
        let ours = self.backend.greeting();
        let mut hearing = lock(&greeting.hearing);
        let link = match &mut *hearing {
            Hearing::Leaving(discarded) => match discard(&greeting.socket, discarded) {
                true => return,
                false => None,
            },
            Hearing::Greeting(incoming) => match hear_greeting(&mut &greeting.socket, incoming, ours) {
                Heed::Waits => return,
                Heed::Hello(version, rest) => {
                    // A dialler of another version reads the version in this greeting and reports the
                    // difference to its user.
                    let said = say(&greeting.socket, &Frame::Hello(ours));
                    let socket = (said.is_ok() && version == ours.version)
                        .then(|| greeting.socket.try_clone().ok())
                        .flatten();
                    socket.map(|socket| LinkShared::new(socket, false, rest, self))
                }
                Heed::Foreign(_) => {
                    refuse(&greeting.socket, &greeting.listener, incoming, ours);
                    *hearing = Hearing::Leaving(0);
                    return;
                }
                Heed::Full => None,
                Heed::Failed(error) => {
                    tracing::info!(%error, "a connection was dropped in its greeting");
                    None
                }
            },
        };
        drop(hearing);
        self.drop_greeting(number, &greeting.socket);
        if let Some(link) = link {
            match self.add_link(Arc::clone(&link)) {
                Ok(()) => greeting.listener.arrived(link),
                Err(error) => tracing::warn!(%error, "a new connection cannot be watched and is dropped"),
            }
        }
    }

    fn drop_greeting(&self, number: u64, socket: &TcpStream) {
        if self.forget(number, socket) {
            self.greetings.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn drop_overdue(&self) {
        let now = RealHost.now();
        let overdue: Vec<(u64, Arc<Greeted<B>>)> = self
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
            if let Hearing::Greeting(incoming) = &*lock(&greeting.hearing) {
                let sent = door::described(incoming);
                tracing::info!("a connection without a hello is dropped; it sent {sent}");
            }
            self.drop_greeting(number, &greeting.socket);
        }
    }
}
