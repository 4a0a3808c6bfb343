//! The control thread: one for each fabric, asleep in `epoll` over all control sockets. It accepts, greets, reads control
//! messages, and notices a peer's death. No call of the data path waits for it.

use crate::backend::{Backend, Greeting, Heard, lock};
use crate::frame::{Frame, MAX_FRAME};
use crate::link::{LinkShared, READ_BUFFER, TcpLink};
use crate::listener::{ListenerShared, TcpControlListener};
use crate::socket;
use dunlin_fabric::{Address, DialError, Host, ListenError, Nanos, RealHost};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How often overdue greetings are looked for, in nanoseconds, while there are any.
const TICK: u64 = 250_000_000;
/// Connections that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;

const WAKE: u64 = 0;
/// The first of the back-end's descriptors.
const BACKEND: u64 = 1;
/// The most of them.
const MAX_DESCRIPTORS: u64 = 8;

/// Who has connected and not been greeted yet.
#[derive(Debug)]
struct Greeted<B: Backend> {
    socket: TcpStream,
    listener: Arc<ListenerShared<B>>,
    incoming: Mutex<Vec<u8>>,
    deadline: u64,
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

/// What the control thread and the handles share.
#[derive(Debug)]
pub struct Io<B: Backend> {
    epoll: OwnedFd,
    call: OwnedFd,
    backend: Arc<B>,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Entry<B>>>,
    /// Those of the entries that are greetings; the control thread's.
    greetings: AtomicUsize,
}

/// The control connections of a fabric. Keeps the control thread running; dropping it stops that.
#[derive(Debug)]
pub struct Control<B: Backend>(Arc<Io<B>>);

impl<B: Backend> Control<B> {
    /// Starts the thread.
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

    /// The back-end.
    pub fn backend(&self) -> &Arc<B> {
        &self.0.backend
    }

    /// The shared part.
    pub(crate) fn io(&self) -> &Arc<Io<B>> {
        &self.0
    }

    /// Listens at HOST:PORT; the listener's address has the port that the system has chosen for port 0. `name` is what stands
    /// in front of HOST:PORT in addresses, if anything does, with its colon.
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

    /// Opens a control connection to HOST:PORT; blocks until then at most.
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
        let socket = socket::connect(host, port, within).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => DialError::NobodyListens { address: address() },
            ErrorKind::TimedOut | ErrorKind::WouldBlock => DialError::TimedOut { address: address() },
            _ => DialError::System { address: address(), source: error },
        })?;
        let ours = self.0.backend.greeting().version;
        let link = self.0.greet(socket, until).map_err(|error| match error {
            GreetError::Version(theirs) => DialError::Version { address: address(), ours, theirs },
            GreetError::TimedOut => DialError::TimedOut { address: address() },
            GreetError::None(source) => DialError::NoGreeting { address: address(), source },
            GreetError::System(source) => DialError::System { address: address(), source },
        })?;
        Ok(TcpLink::new(link, Arc::clone(self)))
    }
}

impl<B: Backend> Drop for Control<B> {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        // Cannot fail: this is the only thing that is ever written there.
        let _ = rustix::io::write(&self.0.call, &1u64.to_ne_bytes());
    }
}

/// How a greeting goes.
enum Heed {
    /// Not all of it is there.
    Waits,
    /// The peer's version, and what it said behind its hello.
    Hello(u16, Vec<u8>),
    /// It has no room for us.
    Full,
    /// No peer of ours, or gone: why.
    Failed(io::Error),
}

fn hear_greeting(socket: &mut &TcpStream, incoming: &mut Vec<u8>, ours: Greeting) -> Heed {
    let mut buffer = [0; 512];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => {
                return Heed::Failed(io::Error::other("it closed the connection before its greeting"));
            }
            Ok(count) => incoming.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heed::Waits,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Heed::Failed(error),
        }
        match Frame::split(incoming) {
            Ok(Some((Frame::Hello(theirs), length))) => {
                if theirs.magic != ours.magic {
                    return Heed::Failed(io::Error::other("it is no service of this fabric"));
                }
                return Heed::Hello(theirs.version, incoming.split_off(length));
            }
            Ok(Some((Frame::Full, _))) => return Heed::Full,
            Ok(None) if incoming.len() <= MAX_FRAME => {}
            Ok(_) => return Heed::Failed(io::Error::other("its first word was no greeting")),
            Err(error) => return Heed::Failed(io::Error::other(error)),
        }
    }
}

/// Says one frame as the first word; a fresh socket has room for it.
fn say(mut socket: &TcpStream, frame: &Frame<'_>) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    socket.write_all(&bytes)
}

/// Why a greeting by who dials failed.
#[derive(Debug)]
pub enum GreetError {
    /// The listener speaks this version.
    Version(u16),
    /// No answer in time, or no room.
    TimedOut,
    /// It is gone, or no peer of ours.
    None(io::Error),
    /// The system refused.
    System(io::Error),
}

impl<B: Backend> Io<B> {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry<B>>> {
        lock(&self.entries)
    }

    /// A number that no other link or listener of this fabric has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The back-end.
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    /// The first words of who dials; blocks until then at most.
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
                Heed::Full => return Err(GreetError::TimedOut),
                Heed::Failed(error) => return Err(GreetError::None(error)),
            }
        };
        said.map_err(GreetError::None)?;
        let link = LinkShared::new(socket, true, rest, self);
        self.add_link(Arc::clone(&link)).map_err(GreetError::System)?;
        Ok(link)
    }

    /// Watches a link from now on.
    fn add_link(&self, link: Arc<LinkShared<B>>) -> io::Result<()> {
        // What came behind the greeting does not make the socket readable.
        link.read(&mut [0; 4096], false);
        let number = link.number();
        self.entries().insert(number, Entry::Link(Arc::clone(&link)));
        let added = epoll::add(&self.epoll, link.socket(), EventData::new_u64(number), link.interest());
        added.map_err(io::Error::from).inspect_err(|_| {
            self.entries().remove(&number);
        })
    }

    /// Watches a listener from now on.
    pub(crate) fn add_listener(&self, listener: Arc<ListenerShared<B>>) -> io::Result<()> {
        let number = listener.number();
        let data = EventData::new_u64(number);
        let added = listener.with_socket(|socket| epoll::add(&self.epoll, socket, data, EventFlags::IN));
        added.unwrap_or(Err(Errno::BADF))?;
        self.entries().insert(number, Entry::Listener(listener));
        Ok(())
    }

    /// Forgets a listener.
    pub(crate) fn drop_listener(&self, listener: &ListenerShared<B>) {
        // The kernel forgets the socket by itself when it is closed; nothing is lost if it has been.
        listener.with_socket(|socket| epoll::delete(&self.epoll, socket).ok());
        self.entries().remove(&listener.number());
    }

    /// Ends a link and forgets it.
    pub(crate) fn drop_link(&self, link: &LinkShared<B>, reason: &str) {
        link.end(reason);
        self.forget(link.number(), link.socket());
    }

    fn forget(&self, number: u64, socket: &TcpStream) -> bool {
        // It may have been forgotten already.
        let _ = epoll::delete(&self.epoll, socket);
        self.entries().remove(&number).is_some()
    }

    /// Waits for these events of a link from now on.
    pub(crate) fn watch(&self, link: &LinkShared<B>, flags: EventFlags) {
        let data = EventData::new_u64(link.number());
        if let Err(error) = epoll::modify(&self.epoll, link.socket(), data, flags) {
            // Not yet, or not any more.
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

    /// One of the back-end's descriptors can be read.
    fn hear_backend(&self, place: usize, flags: EventFlags) {
        let Heard { forget, end_links } = self.backend.hear(place, flags);
        if forget && let Some(descriptor) = self.backend.descriptors().get(place) {
            // Nothing will be told any more.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        if let Some(reason) = end_links {
            self.end_links(&reason);
        }
    }

    /// All links end, for the device's sake.
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
        // The map is not locked while an entry is served: serving may add and drop entries.
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
                        // Out of descriptors, most likely: the socket stays readable, so do not spin on it.
                        RealHost.sleep(RealHost.now() + 20_000_000);
                        return;
                    }
                },
            };
            let full = listener.is_full() || self.greetings.load(Ordering::Relaxed) >= MAX_GREETINGS;
            let word = if full { Frame::Full } else { Frame::Hello(self.backend.greeting()) };
            if let Err(error) = socket::prepare(&socket).and_then(|()| say(&socket, &word)) {
                tracing::debug!(%error, "a connection ended before its greeting");
                continue;
            }
            let number = self.next_number();
            let data = EventData::new_u64(number);
            if full || epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::RDHUP).is_err() {
                continue;
            }
            let deadline = RealHost.now().saturating_add(self.backend.limits().greeting_patience);
            let greeting =
                Greeted { socket, listener: Arc::clone(listener), incoming: Mutex::default(), deadline };
            self.entries().insert(number, Entry::Greeting(Arc::new(greeting)));
            self.greetings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn greeted(self: &Arc<Self>, number: u64, greeting: &Greeted<B>) {
        let ours = self.backend.greeting();
        let link = match hear_greeting(&mut &greeting.socket, &mut lock(&greeting.incoming), ours) {
            Heed::Waits => return,
            Heed::Hello(version, rest) if version == ours.version => {
                greeting.socket.try_clone().ok().map(|socket| LinkShared::new(socket, false, rest, self))
            }
            // It has heard our version, and says so to its user.
            Heed::Hello(..) | Heed::Full => None,
            Heed::Failed(error) => {
                tracing::info!(%error, "a connection was dropped in its greeting");
                None
            }
        };
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
            tracing::info!("a connection without a hello is dropped");
            self.drop_greeting(number, &greeting.socket);
        }
    }
}
