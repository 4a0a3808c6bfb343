//! A keeper: a process that holds the descriptors of another one's registered memory, so that the memory outlives that
//! process. It maps none of it, and does nothing else.
//!
//! ```text
//! owner                                   keeper
//! HELLO version ────────────────────────> same user, no other owner alive
//!    <──────────── WELCOME version, count
//!    <──────────── MEMORY number, length, access, descriptor     for each part
//! KEEP number, length, access, descriptor ────>
//!    <──────────── DONE
//! FORGET ───────────────────────────────>
//!    <──────────── DONE
//! RELEASE ──────────────────────────────> another owner may come
//! ```
//!
//! A connection that ends without RELEASE is that of a process that is killed. Queue pairs of that process may write the
//! memory until the kernel has closed them, so the next owner waits until the process has ended.

use crate::memory::{ShmMemory, check_grant};
use crate::process;
use dunlin_fabric::{
    Access, Address, AnyMemory, Host as _, KeeperError, ListenError, Memory as _, MemoryKeeper, Nanos,
    RealHost, Scheme,
};
use dunlin_fabric_control::unix::{self, Received};
use dunlin_fabric_control::wait;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The version of the messages between an owner of memory and its keeper.
pub const KEEPER_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"dunlinKP";
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const MEMORY: u8 = 4;
const KEEP: u8 = 5;
const FORGET: u8 = 6;
const DONE: u8 = 7;
const RELEASE: u8 = 8;

const REFUSED_VERSION: u32 = 1;
const REFUSED_USER: u32 = 2;
const REFUSED_BUSY: u32 = 3;
const REFUSED_FULL: u32 = 4;
const REFUSED_MEMORY: u32 = 5;

/// Most parts of memory of one keeper: the extents of a node, and its ledger.
const MAX_PARTS: u32 = 1024;
/// The length of a message in bytes.
const MESSAGE: usize = 32;
/// The time for one message of the other side.
const ANSWER: Nanos = 5_000_000_000;
/// The pause before a keeper is asked again that still serves the last owner.
const AGAIN: Nanos = 2_000_000;

/// A message: kind, number, length in bytes, access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    kind: u8,
    access: u8,
    number: u32,
    length: u64,
}

impl Message {
    const fn new(kind: u8, number: u32) -> Message {
        Message { kind, access: 0, number, length: 0 }
    }

    fn encode(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&MAGIC);
        (bytes[8], bytes[9]) = (self.kind, self.access);
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
        let number = bytes[12..16].try_into().map(u32::from_le_bytes).ok()?;
        let length = bytes[16..24].try_into().map(u64::from_le_bytes).ok()?;
        let is_ours = bytes[..8] == MAGIC && bytes[10..12] == [0; 2] && bytes[24..] == [0; 8];
        is_ours.then_some(Message { kind: bytes[8], access: bytes[9], number, length })
    }
}

/// Sends a message, and waits for room until the other side is late.
fn send(socket: BorrowedFd<'_>, message: Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let until = RealHost.now().saturating_add(ANSWER);
    loop {
        match unix::send(socket, &message.encode(), &[], descriptor) {
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                let left = until.saturating_sub(RealHost.now());
                if left == 0 {
                    return Err(Errno::TIMEDOUT);
                }
                wait(socket, true, left);
            }
            other => return other,
        }
    }
}

/// Receives a message until `until`.
fn receive(socket: BorrowedFd<'_>, until: Nanos) -> Result<(Message, Option<OwnedFd>), io::Error> {
    let mut buffer = [0; 2 * MESSAGE];
    loop {
        match unix::receive(socket, &mut buffer)? {
            Received::Frame { length, descriptor } => {
                let message = Message::parse(&buffer[..length]).ok_or(io::ErrorKind::InvalidData)?;
                return Ok((message, descriptor));
            }
            Received::Oversized => return Err(io::ErrorKind::InvalidData.into()),
            Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Empty => {
                let left = until.saturating_sub(RealHost.now());
                if left == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                wait(socket, false, left);
            }
        }
    }
}

/// A part of memory that is kept.
#[derive(Debug)]
struct Part {
    descriptor: OwnedFd,
    length: u64,
    access: Access,
}

/// A change that a [`KeeperServer`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// A process has taken the memory: its process id, if the kernel reports it.
    Taken(Option<u32>),
    /// The process that had the memory has ended.
    Ended,
    /// A process was refused.
    Refused(Option<u32>),
}

/// The keeper's side: holds descriptors for one process at a time, of the same user.
#[derive(Debug)]
pub struct KeeperServer {
    listener: OwnedFd,
    owner: Option<Owner>,
    parts: Vec<Part>,
}

/// The process that has the memory.
#[derive(Debug)]
struct Owner {
    /// `None` once its connection has ended.
    socket: Option<OwnedFd>,
    /// Readable once the process has ended, with all that it had open. `None` where the kernel does not say which it is.
    process: Option<OwnedFd>,
}

impl Owner {
    fn new(socket: OwnedFd, process: Option<u32>) -> Owner {
        let process = process.and_then(|number| Pid::from_raw(number.cast_signed()));
        // A process that cannot be opened has ended, and so has its connection.
        let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        Owner { socket: Some(socket), process }
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return true };
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        rustix::event::poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl KeeperServer {
    /// Listens on shared memory.
    ///
    /// # Errors
    /// The address is of another fabric, or in use.
    pub fn listen(address: &Address) -> Result<KeeperServer, ListenError> {
        if address.scheme() != Scheme::Shm {
            return Err(ListenError::WrongScheme(address.clone()));
        }
        process::raise_descriptor_limit();
        let listener = unix::listen(address.name(), 16).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse { address: address.clone() },
            other => ListenError::System { address: address.clone(), source: other.into() },
        })?;
        Ok(KeeperServer { listener, owner: None, parts: Vec::new() })
    }

    /// Returns the number of parts and their bytes.
    pub fn held(&self) -> (usize, u64) {
        (self.parts.len(), self.parts.iter().map(|part| part.length).sum())
    }

    /// Serves for `time`, or until something has changed, which it returns. Blocks longer, for 5 s at most, if a process
    /// of the same user does not take what it has asked for.
    pub fn serve(&mut self, time: Duration) -> Option<KeeperEvent> {
        let until = RealHost.now().saturating_add(dunlin_fabric::nanos(time));
        loop {
            if let Some(event) = self.hear_owner().or_else(|| self.accept()) {
                return Some(event);
            }
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return None;
            }
            self.wait(left);
        }
    }

    fn wait(&self, nanoseconds: Nanos) {
        let of_owner = self.owner.as_ref().and_then(|owner| owner.socket.as_ref().or(owner.process.as_ref()));
        let mut descriptors: Vec<PollFd<'_>> = [Some(&self.listener), of_owner]
            .into_iter()
            .flatten()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
            .collect();
        let [tv_sec, tv_nsec] = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
        let timeout = Timespec { tv_sec: tv_sec as _, tv_nsec: tv_nsec as _ };
        // A signal ends the wait, and the loop begins another.
        let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
    }

    /// Takes the messages of the owner.
    fn hear_owner(&mut self) -> Option<KeeperEvent> {
        loop {
            let owner = self.owner.as_ref()?;
            let Some(socket) = &owner.socket else {
                return owner.has_ended().then(|| self.release());
            };
            let mut buffer = [0; 2 * MESSAGE];
            let answer = match unix::receive(socket.as_fd(), &mut buffer) {
                Ok(Received::Empty) => return None,
                Ok(Received::Frame { length, descriptor }) => match Message::parse(&buffer[..length]) {
                    Some(Message { kind: RELEASE, .. }) => return Some(self.release()),
                    message => message.map(|message| self.answer(message, descriptor)),
                },
                _ => None,
            };
            let owner = self.owner.as_mut()?;
            let sent = answer.zip(owner.socket.as_ref()).is_some_and(|(answer, socket)| {
                send(socket.as_fd(), answer, None).is_ok() && answer.kind == DONE
            });
            if !sent {
                owner.socket = None;
            }
        }
    }

    /// Lets another process have the memory.
    fn release(&mut self) -> KeeperEvent {
        self.owner = None;
        KeeperEvent::Ended
    }

    fn answer(&mut self, message: Message, descriptor: Option<OwnedFd>) -> Message {
        let refused = |why| Message::new(REFUSED, why);
        match (message.kind, descriptor) {
            (FORGET, None) => self.parts.clear(),
            (KEEP, Some(descriptor)) => {
                if self.parts.len() >= MAX_PARTS as usize {
                    return refused(REFUSED_FULL);
                }
                let access = Access::from_bits(message.access).filter(|access| access.changes());
                let sealed =
                    access.filter(|access| check_grant(&descriptor, message.length, *access).is_ok());
                let Some(access) = sealed.filter(|_| message.number as usize == self.parts.len()) else {
                    return refused(REFUSED_MEMORY);
                };
                self.parts.push(Part { descriptor, length: message.length, access });
            }
            _ => return refused(REFUSED_MEMORY),
        }
        Message::new(DONE, message.number)
    }

    fn accept(&mut self) -> Option<KeeperEvent> {
        let socket = unix::accept(self.listener.as_fd()).ok()?;
        let peer = unix::peer(socket.as_fd());
        let refusal = self.greet(&socket, peer.user);
        let Some(why) = refusal else {
            self.owner = Some(Owner::new(socket, peer.process));
            return Some(KeeperEvent::Taken(peer.process));
        };
        // The other side may be gone: nobody is to be told, then.
        let mut refused = Message::new(REFUSED, why);
        refused.length = match why {
            REFUSED_VERSION => KEEPER_VERSION.into(),
            _ => process::own_user().into(),
        };
        let _ = send(socket.as_fd(), refused, None);
        Some(KeeperEvent::Refused(peer.process))
    }

    /// Gives a new connection all memory, unless it is refused; returns the reason.
    fn greet(&mut self, socket: &OwnedFd, user: Option<u32>) -> Option<u32> {
        if user != Some(process::own_user()) {
            return Some(REFUSED_USER);
        }
        if self.owner.is_some() {
            return Some(REFUSED_BUSY);
        }
        let hello = receive(socket.as_fd(), RealHost.now().saturating_add(ANSWER));
        match hello {
            Ok((Message { kind: HELLO, number: KEEPER_VERSION, .. }, None)) => {}
            _ => return Some(REFUSED_VERSION),
        }
        let welcome = Message { length: self.parts.len() as u64, ..Message::new(WELCOME, KEEPER_VERSION) };
        let mut sent = send(socket.as_fd(), welcome, None);
        for (part, number) in self.parts.iter().zip(0..) {
            let access = part.access.bits();
            let message = Message { access, length: part.length, ..Message::new(MEMORY, number) };
            sent = sent.and_then(|()| send(socket.as_fd(), message, Some(part.descriptor.as_fd())));
        }
        // A connection that broke ends the next time that it is heard.
        sent.err().map(|_| REFUSED_MEMORY)
    }
}

/// The owner's side: this process's connection to its keeper. The keeper serves nobody else as long as this value lives.
#[derive(Debug)]
pub struct ShmKeeper {
    address: Address,
    socket: OwnedFd,
    parts: Vec<Part>,
    next: u32,
}

impl ShmKeeper {
    /// Connects to the keeper at `address`, and takes the descriptors of all that it holds. Waits for `wait` at most for a
    /// last owner whose end the keeper has not seen yet. Blocks for 5 s more at most.
    ///
    /// # Errors
    /// Nobody listens; the keeper is of another version or user, or serves another process, or breaks the protocol.
    pub fn connect(address: &Address, wait: Duration) -> Result<ShmKeeper, KeeperError> {
        if address.scheme() != Scheme::Shm {
            return Err(KeeperError::Scheme(address.clone()));
        }
        process::raise_descriptor_limit();
        let until = RealHost.now().saturating_add(dunlin_fabric::nanos(wait));
        loop {
            match ShmKeeper::connect_once(address) {
                Err(KeeperError::Busy(_)) if RealHost.now() < until => {
                    RealHost.sleep(RealHost.now().saturating_add(AGAIN).min(until));
                }
                other => return other,
            }
        }
    }

    fn connect_once(address: &Address) -> Result<ShmKeeper, KeeperError> {
        let system = |source: io::Error| KeeperError::System { address: address.clone(), source };
        let socket = unix::connect(address.name()).map_err(|errno| match errno {
            Errno::CONNREFUSED => KeeperError::Nobody(address.clone()),
            other => system(other.into()),
        })?;
        let keeper = unix::peer(socket.as_fd()).user;
        if keeper != Some(process::own_user()) {
            return Err(KeeperError::User { address: address.clone(), user: keeper.unwrap_or(u32::MAX) });
        }
        // A keeper that refuses has closed already; its reason can still be read.
        let said = send(socket.as_fd(), Message::new(HELLO, KEEPER_VERSION), None);
        let mut this = ShmKeeper { address: address.clone(), socket, parts: Vec::new(), next: 0 };
        let (welcome, _) = this.hear(WELCOME)?;
        said.map_err(|errno| system(errno.into()))?;
        if welcome.number != KEEPER_VERSION {
            return Err(KeeperError::Version { ours: KEEPER_VERSION, theirs: welcome.number });
        }
        if welcome.length > MAX_PARTS.into() {
            return Err(this.breach("it holds more than a keeper can"));
        }
        for number in 0..welcome.length as u32 {
            let (Message { number: named, length, access, .. }, descriptor) = this.hear(MEMORY)?;
            let access = Access::from_bits(access).filter(|access| access.changes() && named == number);
            let (Some(access), Some(descriptor)) = (access, descriptor) else {
                return Err(this.breach("a part of memory has no descriptor"));
            };
            this.parts.push(Part { descriptor, length, access });
        }
        this.next = this.parts.len() as u32;
        Ok(this)
    }

    /// Returns the bytes that the keeper held when this process connected.
    pub fn held(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }

    fn breach(&self, why: &'static str) -> KeeperError {
        KeeperError::Protocol { address: self.address.clone(), why }
    }

    fn system(&self, source: io::Error) -> KeeperError {
        KeeperError::System { address: self.address.clone(), source }
    }

    /// Waits for a message of this kind, or for a refusal.
    fn hear(&self, kind: u8) -> Result<(Message, Option<OwnedFd>), KeeperError> {
        let until = RealHost.now().saturating_add(ANSWER);
        let heard = receive(self.socket.as_fd(), until).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => self.breach("a message of another protocol"),
            _ => self.system(source),
        })?;
        match heard.0 {
            message if message.kind == kind => Ok(heard),
            Message { kind: REFUSED, number, length, .. } => Err(match number {
                REFUSED_VERSION => {
                    KeeperError::Version { ours: KEEPER_VERSION, theirs: u32::try_from(length).unwrap_or(0) }
                }
                REFUSED_USER => {
                    KeeperError::User { address: self.address.clone(), user: process::own_user() }
                }
                REFUSED_BUSY => KeeperError::Busy(self.address.clone()),
                REFUSED_FULL => KeeperError::Full(MAX_PARTS),
                _ => self.breach("it refuses this memory"),
            }),
            _ => Err(self.breach("an answer to another request")),
        }
    }

    fn ask(&mut self, message: Message, descriptor: Option<&OwnedFd>) -> Result<(), KeeperError> {
        send(self.socket.as_fd(), message, descriptor.map(AsFd::as_fd))
            .map_err(|errno| self.system(errno.into()))?;
        self.hear(DONE).map(drop)
    }
}

impl Drop for ShmKeeper {
    fn drop(&mut self) {
        // A keeper that has ended needs none.
        let _ = send(self.socket.as_fd(), Message::new(RELEASE, 0), None);
    }
}

/// Keeps memory of [`ShmFabric`](crate::ShmFabric), which other fabrics of this process may have adopted.
impl MemoryKeeper for ShmKeeper {
    fn kept(&mut self) -> Result<Vec<AnyMemory>, KeeperError> {
        let parts = std::mem::take(&mut self.parts).into_iter();
        let memory =
            ShmMemory::adopt(parts.map(|part| (part.descriptor, part.length, part.access)).collect());
        let memory = memory.map_err(|error| KeeperError::Memory(error.to_string()))?;
        Ok(memory.into_iter().map(|memory| AnyMemory::new(Arc::new(memory))).collect())
    }

    fn keep(&mut self, memory: &AnyMemory) -> Result<(), KeeperError> {
        let memory = memory.downcast::<ShmMemory>().ok_or(KeeperError::Private)?;
        let descriptor = memory.descriptor().map_err(|source| self.system(source))?;
        let descriptor = descriptor.filter(|_| memory.access().changes()).ok_or(KeeperError::Private)?;
        let (length, access) = (memory.length() as u64, memory.access().bits());
        self.ask(Message { access, length, ..Message::new(KEEP, self.next) }, Some(&descriptor))?;
        self.next += 1;
        Ok(())
    }

    fn is_alive(&self) -> bool {
        // It says nothing that was not asked for.
        matches!(unix::receive(self.socket.as_fd(), &mut [0; MESSAGE]), Ok(Received::Empty))
    }

    fn forget(&mut self) -> Result<(), KeeperError> {
        self.ask(Message::new(FORGET, 0), None)?;
        self.parts.clear();
        self.next = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShmConfig, ShmFabric};
    use dunlin_fabric::memory::HeapMemory;
    use dunlin_fabric::{Fabric as _, Region};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs a keeper beside `body`.
    fn beside(name: &str, body: impl FnOnce(&Address)) {
        let address = Address::new(Scheme::Shm, &format!("keeper-{name}-{}", std::process::id())).unwrap();
        let (mut keeper, ends) = (KeeperServer::listen(&address).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    keeper.serve(Duration::from_millis(5));
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&address)));
            ends.store(true, Ordering::Relaxed);
            served.join().unwrap();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    const SOON: Duration = Duration::from_secs(10);

    fn soon() -> Nanos {
        RealHost.now() + 10_000_000_000
    }

    #[test]
    fn memory_outlives_its_owner_in_order_and_whole() {
        let (fabric, all) = (ShmFabric::new(ShmConfig::default()).unwrap(), Access::READ.with(Access::WRITE));
        beside("order", |address| {
            let mut first = ShmKeeper::connect(address, SOON).unwrap();
            assert_eq!((first.held(), first.kept().unwrap().len()), (0, 0));
            for number in 0..3u64 {
                let memory = Region::new(fabric.register(4096 * (number + 1), all).unwrap());
                memory.store(8, 40 + number);
                first.keep(&AnyMemory::new(Arc::clone(memory.memory()))).unwrap();
            }
            let busy = ShmKeeper::connect(address, Duration::ZERO);
            assert!(matches!(busy, Err(KeeperError::Busy(_))), "{busy:?}");
            assert!(first.is_alive());
            drop(first);
            let mut second = ShmKeeper::connect(address, SOON).unwrap();
            assert_eq!(second.held(), 4096 * 6);
            let kept: Vec<_> = second.kept().unwrap().into_iter().map(Region::new).collect();
            for (number, memory) in kept.iter().enumerate() {
                assert_eq!((memory.length(), memory.load(8)), (4096 * (number + 1), 40 + number as u64));
            }
            // More is kept after what there is, until all of it is forgotten.
            second.keep(&AnyMemory::new(Arc::new(fabric.register(64, all).unwrap()))).unwrap();
            drop(second);
            let mut third = ShmKeeper::connect(address, SOON).unwrap();
            assert_eq!(third.kept().unwrap().len(), 4);
            third.forget().unwrap();
            drop(third);
            assert_eq!(ShmKeeper::connect(address, SOON).unwrap().held(), 0);
        });
    }

    #[test]
    fn strangers_and_private_memory_are_refused() {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        beside("refused", |address| {
            let mut owner = ShmKeeper::connect(address, SOON).unwrap();
            // Memory of this process; memory that peers cannot change, so nor could the next life; that of another fabric.
            let others = [Access::LOCAL, Access::READ].map(|access| fabric.register(4096, access).unwrap());
            let heap = AnyMemory::new(Arc::new(HeapMemory::new(4096, Access::WRITE).unwrap()));
            for memory in others.map(|memory| AnyMemory::new(Arc::new(memory))).iter().chain([&heap]) {
                assert!(matches!(owner.keep(memory), Err(KeeperError::Private)));
            }
            drop(owner);
            // Another version, then a connection that says anything: the keeper goes on.
            let socket = unix::connect(address.name()).unwrap();
            send(socket.as_fd(), Message::new(HELLO, KEEPER_VERSION + 1), None).unwrap();
            let (refused, _) = receive(socket.as_fd(), soon()).unwrap();
            assert_eq!((refused.kind, refused.number), (REFUSED, REFUSED_VERSION));
            assert_eq!(refused.length, KEEPER_VERSION.into());
            let socket = unix::connect(address.name()).unwrap();
            unix::send(socket.as_fd(), b"GET / HTTP/1.0", &[], None).unwrap();
            drop(socket);
            // A descriptor that is not sealed is not kept.
            let owner = ShmKeeper::connect(address, SOON).unwrap();
            let (pipe, _other) = rustix::pipe::pipe().unwrap();
            let message =
                Message { access: Access::WRITE.bits(), length: 4096, ..Message::new(KEEP, owner.next) };
            send(owner.socket.as_fd(), message, Some(pipe.as_fd())).unwrap();
            assert!(matches!(owner.hear(DONE), Err(KeeperError::Protocol { .. })));
        });
        let nobody: Address = format!("shm:keeper-nobody-{}", std::process::id()).parse().unwrap();
        assert!(matches!(ShmKeeper::connect(&nobody, Duration::ZERO), Err(KeeperError::Nobody(_))));
        assert!(matches!(
            ShmKeeper::connect(&"ofi:tcp:127.0.0.1:1".parse().unwrap(), Duration::ZERO),
            Err(KeeperError::Scheme(_))
        ));
    }

    /// Queue pairs of a process may write until it has ended, whatever became of its connection.
    #[test]
    fn a_process_that_lives_keeps_its_memory_without_a_connection() {
        let address = Address::new(Scheme::Shm, &format!("keeper-lives-{}", std::process::id())).unwrap();
        let mut keeper = KeeperServer::listen(&address).unwrap();
        let mut event = || keeper.serve(Duration::from_millis(1));
        let hello = || {
            let socket = unix::connect(address.name()).unwrap();
            send(socket.as_fd(), Message::new(HELLO, KEEPER_VERSION), None).unwrap();
            socket
        };
        let own = Some(std::process::id());
        let first = hello();
        assert_eq!(event(), Some(KeeperEvent::Taken(own)));
        drop(first);
        assert_eq!(event(), None);
        let second = hello();
        assert_eq!(event(), Some(KeeperEvent::Refused(own)));
        let (refused, _) = receive(second.as_fd(), soon()).unwrap();
        assert_eq!((refused.kind, refused.number), (REFUSED, REFUSED_BUSY));
        drop(keeper);
        // A release says that nothing of this process writes any more.
        let mut keeper = KeeperServer::listen(&address).unwrap();
        let first = hello();
        assert_eq!(keeper.serve(Duration::from_millis(1)), Some(KeeperEvent::Taken(own)));
        send(first.as_fd(), Message::new(RELEASE, 0), None).unwrap();
        assert_eq!(keeper.serve(Duration::from_millis(1)), Some(KeeperEvent::Ended));
    }

    #[test]
    fn the_end_of_a_keeper_is_noticed() {
        let mut owner = None;
        beside("ends", |address| owner = Some(ShmKeeper::connect(address, SOON).unwrap()));
        let mut owner = owner.unwrap();
        assert!(!owner.is_alive());
        assert!(matches!(owner.forget(), Err(KeeperError::System { .. })));
    }

    proptest! {
        #[test]
        fn messages_come_back_whole_and_others_are_refused(
            kind in any::<u8>(), access in any::<u8>(), number in any::<u32>(), length in any::<u64>(),
            noise in prop::collection::vec(any::<u8>(), 0..80), cut in 0..MESSAGE,
        ) {
            let message = Message { kind, access, number, length };
            prop_assert_eq!(Message::parse(&message.encode()), Some(message));
            prop_assert_eq!(Message::parse(&message.encode()[..cut]), None);
            prop_assert_eq!(Message::parse(&noise), None);
        }
    }
}
