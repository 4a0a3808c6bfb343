//! The control thread: one for each fabric, asleep in `epoll` over all control sockets. It accepts, greets, reads control
//! messages, and notices a peer's death. No call of the data path waits for it.

use crate::config::RdmaConfig;
use crate::device::Device;
use crate::events::Event;
use crate::frame::{Frame, MAX_FRAME, VERSION};
use crate::link::{LinkShared, READ_BUFFER, lock};
use crate::listener::ListenerShared;
use crate::manager::Manager;
use crate::socket;
use dunlin_fabric::{Host, RealHost};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How often overdue greetings are looked for, in nanoseconds, while there are any.
const TICK: u64 = 250_000_000;
/// Connections that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;

const WAKE: u64 = 0;
const DEVICE: u64 = 1;
const MANAGER: u64 = 2;

#[derive(Debug)]
struct Greeting {
    socket: TcpStream,
    listener: Arc<ListenerShared>,
    incoming: Mutex<Vec<u8>>,
    deadline: u64,
}

#[derive(Clone, Debug)]
enum Entry {
    Link(Arc<LinkShared>),
    Listener(Arc<ListenerShared>),
    Greeting(Arc<Greeting>),
}

/// What the control thread and the handles share.
#[derive(Debug)]
pub(crate) struct Io {
    epoll: OwnedFd,
    call: OwnedFd,
    device: Arc<Device>,
    manager: Option<Manager>,
    config: RdmaConfig,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Entry>>,
    /// Those of the entries that are greetings; the control thread's.
    greetings: AtomicUsize,
}

/// Keeps the control thread running; the last one stops it.
#[derive(Debug)]
pub(crate) struct IoHandle(Arc<Io>);

impl IoHandle {
    /// Starts the thread.
    pub(crate) fn start(
        device: Arc<Device>,
        manager: Option<Manager>,
        config: RdmaConfig,
    ) -> io::Result<Arc<Self>> {
        let io = Arc::new(Io {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            device,
            manager,
            config,
            numbers: AtomicU64::new(MANAGER + 1),
            stopped: AtomicBool::new(false),
            entries: Mutex::default(),
            greetings: AtomicUsize::new(0),
        });
        epoll::add(&io.epoll, &io.call, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&io.epoll, io.device.events(), EventData::new_u64(DEVICE), EventFlags::IN)?;
        if let Some(manager) = &io.manager {
            epoll::add(&io.epoll, manager.descriptor(), EventData::new_u64(MANAGER), EventFlags::IN)?;
        }
        let thread = Arc::clone(&io);
        RealHost.spawn("dunlin-rdma-control", Box::new(move || thread.run()))?;
        Ok(Arc::new(IoHandle(io)))
    }

    /// The shared part.
    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.0
    }
}

impl Drop for IoHandle {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        // Cannot fail: this is the only thing that is ever written there.
        let _ = rustix::io::write(&self.0.call, &1u64.to_ne_bytes());
    }
}

/// How a greeting goes.
enum Greeted {
    /// Not all of it is there.
    Waits,
    /// The peer's version, and what it said behind its hello.
    Hello(u16, Vec<u8>),
    /// It has no room for us.
    Full,
    /// No peer of ours, or gone: why.
    Failed(io::Error),
}

fn hear_greeting(socket: &mut &TcpStream, incoming: &mut Vec<u8>) -> Greeted {
    let mut buffer = [0; 512];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => {
                return Greeted::Failed(io::Error::other("it closed the connection before its greeting"));
            }
            Ok(count) => incoming.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Greeted::Waits,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Greeted::Failed(error),
        }
        match Frame::split(incoming) {
            Ok(Some((Frame::Hello(version), length))) => {
                return Greeted::Hello(version, incoming.split_off(length));
            }
            Ok(Some((Frame::Full, _))) => return Greeted::Full,
            Ok(None) if incoming.len() <= MAX_FRAME => {}
            Ok(_) => return Greeted::Failed(io::Error::other("its first word was no greeting")),
            Err(error) => return Greeted::Failed(io::Error::other(error)),
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
pub(crate) enum GreetError {
    /// The listener speaks this version.
    Version(u16),
    /// No answer in time, or no room.
    TimedOut,
    /// Anything else.
    Other(io::Error),
}

impl Io {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        lock(&self.entries)
    }

    /// A number that no other link or listener of this fabric has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The connection manager, where the device needs it.
    pub(crate) fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// The settings.
    pub(crate) fn config(&self) -> &RdmaConfig {
        &self.config
    }

    /// The first words of who dials; blocks until then at most.
    pub(crate) fn greet(
        self: &Arc<Self>,
        socket: TcpStream,
        until: u64,
    ) -> Result<Arc<LinkShared>, GreetError> {
        let said = say(&socket, &Frame::Hello(VERSION));
        let mut incoming = Vec::new();
        let rest = loop {
            match hear_greeting(&mut &socket, &mut incoming) {
                Greeted::Waits => {
                    let left = until.saturating_sub(RealHost.now());
                    if left == 0 {
                        return Err(GreetError::TimedOut);
                    }
                    socket::wait(&socket, false, left.min(1_000_000_000));
                }
                Greeted::Hello(VERSION, rest) => break rest,
                Greeted::Hello(version, _) => return Err(GreetError::Version(version)),
                Greeted::Full => return Err(GreetError::TimedOut),
                Greeted::Failed(error) => return Err(GreetError::Other(error)),
            }
        };
        said.map_err(GreetError::Other)?;
        let link = LinkShared::new(socket, true, rest, self);
        self.add_link(Arc::clone(&link)).map_err(GreetError::Other)?;
        Ok(link)
    }

    /// Watches a link from now on.
    fn add_link(&self, link: Arc<LinkShared>) -> io::Result<()> {
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
    pub(crate) fn add_listener(&self, listener: Arc<ListenerShared>) -> io::Result<()> {
        let number = listener.number();
        let data = EventData::new_u64(number);
        let added = listener.with_socket(|socket| epoll::add(&self.epoll, socket, data, EventFlags::IN));
        added.unwrap_or(Err(Errno::BADF))?;
        self.entries().insert(number, Entry::Listener(listener));
        Ok(())
    }

    /// Forgets a listener.
    pub(crate) fn drop_listener(&self, listener: &ListenerShared) {
        // The kernel forgets the socket by itself when it is closed; nothing is lost if it has been.
        listener.with_socket(|socket| epoll::delete(&self.epoll, socket).ok());
        self.entries().remove(&listener.number());
    }

    /// Ends a link and forgets it.
    pub(crate) fn drop_link(&self, link: &LinkShared, reason: &str) {
        link.end(reason);
        self.forget(link.number(), link.socket());
    }

    fn forget(&self, number: u64, socket: &TcpStream) -> bool {
        // It may have been forgotten already.
        let _ = epoll::delete(&self.epoll, socket);
        self.entries().remove(&number).is_some()
    }

    /// Waits for these events of a link from now on.
    pub(crate) fn watch(&self, link: &LinkShared, flags: EventFlags) {
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
        // When the links end, as long as the port is down.
        let mut port_deadline = None;
        while !self.stopped.load(Ordering::Acquire) {
            let ticks = self.greetings.load(Ordering::Relaxed) > 0 || port_deadline.is_some();
            next_tick = if ticks { next_tick.min(RealHost.now() + TICK) } else { u64::MAX };
            let timeout = Timespec { tv_sec: 0, tv_nsec: TICK as _ };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, ticks.then_some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for its sockets and ends");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    DEVICE => self.hear_device(event.flags, &mut port_deadline),
                    MANAGER => self.manager.iter().for_each(Manager::hear),
                    number => self.handle(number, event.flags, &mut buffer),
                }
            }
            if port_deadline.is_some_and(|deadline| RealHost.now() >= deadline) {
                port_deadline = None;
                self.end_links(&self.device.trouble().unwrap_or_default());
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

    /// What the device tells by itself.
    fn hear_device(&self, flags: EventFlags, port_deadline: &mut Option<u64>) {
        let (device, ours) = (&self.device, self.device.port.number);
        let name = &device.name;
        while let Some(event) = device.next_event() {
            match event {
                Event::PortDown(port) if port == ours => {
                    tracing::warn!(device = name, port, "the port is down");
                    device.health.set_port_down(true);
                    port_deadline.get_or_insert(RealHost.now().saturating_add(self.config.port_patience));
                }
                Event::PortUp(port) if port == ours => {
                    tracing::info!(device = name, port, "the port is up");
                    device.health.set_port_down(false);
                    *port_deadline = None;
                }
                Event::Broken(object, what) => {
                    tracing::warn!(device = name, ?object, "{what}");
                    device.health.break_one(object);
                }
                Event::DeviceFailed => self.device_failed(),
                Event::PortDown(_) | Event::PortUp(_) | Event::Other(_) => {
                    tracing::debug!(device = name, ?event, "an event that changes nothing here");
                }
            }
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Removed: nothing will be told any more.
            let _ = epoll::delete(&self.epoll, device.events());
            self.device_failed();
        }
    }

    fn device_failed(&self) {
        let name = &self.device.name;
        if !self.device.health.has_failed() {
            tracing::error!(device = name, "the device failed or was removed");
            self.device.health.fail();
            self.end_links(&self.device.trouble().unwrap_or_default());
        }
    }

    /// All links end, for the device's sake.
    fn end_links(&self, reason: &str) {
        let entries: Vec<Entry> = self.entries().values().cloned().collect();
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

    fn accept(&self, listener: &Arc<ListenerShared>) {
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
            let word = if full { Frame::Full } else { Frame::Hello(VERSION) };
            if let Err(error) = socket::prepare(&socket).and_then(|()| say(&socket, &word)) {
                tracing::debug!(%error, "a connection ended before its greeting");
                continue;
            }
            let number = self.next_number();
            let data = EventData::new_u64(number);
            if full || epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::RDHUP).is_err() {
                continue;
            }
            let deadline = RealHost.now().saturating_add(self.config.greeting_patience);
            let greeting =
                Greeting { socket, listener: Arc::clone(listener), incoming: Mutex::default(), deadline };
            self.entries().insert(number, Entry::Greeting(Arc::new(greeting)));
            self.greetings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn greeted(self: &Arc<Self>, number: u64, greeting: &Greeting) {
        let link = match hear_greeting(&mut &greeting.socket, &mut lock(&greeting.incoming)) {
            Greeted::Waits => return,
            Greeted::Hello(VERSION, rest) => {
                greeting.socket.try_clone().ok().map(|socket| LinkShared::new(socket, false, rest, self))
            }
            // It has heard our version, and says so to its user.
            Greeted::Hello(..) | Greeted::Full => None,
            Greeted::Failed(error) => {
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
