//! Greetings over TCP: the first frames of a connection, on the side that dials and on the side that accepts. The dialler
//! greets first, so that a visitor with another protocol gets an answer in that one.

use crate::backend::{Backend, Greeting, lock};
use crate::control::Control;
use crate::frame::{Frame, MAX_FRAME};
use crate::link::{LinkShared, TcpLink};
use crate::listener::ListenerShared;
use crate::reactor::{READ, Reactor, Watched};
use crate::tcp;
use crate::waiting::wait;
use dunlin_fabric::door::{self, Door, Look};
use dunlin_fabric::{Host, Nanos, RealHost};
use rustix::event::epoll::EventFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};

/// The most bytes that are read from a visitor after it was refused.
const MAX_DISCARDED: usize = 64 << 10;

type TcpListenerShared<B> = ListenerShared<TcpListener, TcpLink<B>>;

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

/// Refuses a visitor that has sent other bytes than a greeting of this fabric. A new socket has room for the answer.
fn refuse<B: Backend>(
    mut socket: &TcpStream,
    listener: &TcpListenerShared<B>,
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
    let peer = socket.peer_addr().ok();
    let answer = listener.refusal(incoming, (&place, &own.found_at(&place)), &peer);
    let told = socket.write_all(&answer).and_then(|()| socket.shutdown(Shutdown::Write));
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
pub(crate) enum GreetError {
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
}

/// Exchanges greetings on a dialled connection; returns the bytes received after the peer's hello. Blocks no longer than
/// `until`.
pub(crate) fn greet(socket: &TcpStream, ours: Greeting, until: Nanos) -> Result<Vec<u8>, GreetError> {
    let said = say(socket, &Frame::Hello(ours));
    let mut incoming = Vec::new();
    let rest = loop {
        match hear_greeting(&mut &*socket, &mut incoming, ours) {
            Heed::Waits => {
                let left = until.saturating_sub(RealHost.now());
                if left == 0 {
                    return Err(GreetError::TimedOut);
                }
                wait(socket, false, left.min(1_000_000_000));
            }
            Heed::Hello(version, rest) if version == ours.version => break rest,
            Heed::Hello(version, _) => return Err(GreetError::Version(version)),
            Heed::Full => return Err(GreetError::Full),
            Heed::Foreign(error) => return Err(GreetError::Foreign(incoming, error)),
            Heed::Failed(error) => return Err(GreetError::None(error)),
        }
    };
    said.map_err(GreetError::None)?;
    Ok(rest)
}

/// A listener whose connections the control thread accepts.
#[derive(Debug)]
pub(crate) struct Acceptor<B: Backend> {
    pub(crate) listener: Arc<TcpListenerShared<B>>,
    pub(crate) control: Weak<Control<B>>,
}

impl<B: Backend> Watched for Acceptor<B> {
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, _: u64, _: EventFlags, _: &mut [u8]) {
        let Some(control) = self.control.upgrade() else { return };
        let patience = control.backend().limits().greeting_patience;
        let accept = |socket: &TcpListener| socket.accept().map(|(connection, _)| connection);
        self.listener.accept_each(accept, |socket| {
            let full = self.listener.is_full();
            let word = || if full { say(&socket, &Frame::Full) } else { Ok(()) };
            if let Err(error) = tcp::prepare(&socket).and_then(|()| word()) {
                tracing::debug!(%error, "a connection ended before its greeting");
                return;
            }
            if full {
                return;
            }
            let visitor = Arc::new(Visitor {
                socket,
                listener: Arc::clone(&self.listener),
                control: Weak::clone(&self.control),
                hearing: Mutex::default(),
                deadline: RealHost.now().saturating_add(patience),
            });
            // The visitor's connection is closed if it cannot be watched.
            let owner = Arc::clone(&visitor) as Arc<dyn Watched>;
            let _ = reactor.add(reactor.next_number(), &visitor.socket, READ, owner);
        });
    }
}

/// A new connection whose greeting is incomplete.
#[derive(Debug)]
struct Visitor<B: Backend> {
    socket: TcpStream,
    listener: Arc<TcpListenerShared<B>>,
    control: Weak<Control<B>>,
    hearing: Mutex<Hearing>,
    deadline: Nanos,
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

impl<B: Backend> Visitor<B> {
    /// Reads what has arrived. Returns whether more has to come, and the link if the greeting is complete.
    fn hear(&self, control: &Arc<Control<B>>) -> (bool, Option<TcpLink<B>>) {
        let ours = control.backend().greeting();
        let mut hearing = lock(&self.hearing);
        match &mut *hearing {
            Hearing::Leaving(discarded) => (discard(&self.socket, discarded), None),
            Hearing::Greeting(incoming) => match hear_greeting(&mut &self.socket, incoming, ours) {
                Heed::Waits => (true, None),
                Heed::Hello(version, rest) => {
                    // A dialler of another version reads the version in this greeting and reports the
                    // difference to its user.
                    let said = say(&self.socket, &Frame::Hello(ours));
                    let socket = (said.is_ok() && version == ours.version)
                        .then(|| self.socket.try_clone().ok())
                        .flatten();
                    let link = socket.map(|socket| LinkShared::new(socket, false, rest, control));
                    (false, link.map(|link| TcpLink::new(link, Arc::clone(control))))
                }
                Heed::Foreign(_) => {
                    refuse(&self.socket, &self.listener, incoming, ours);
                    *hearing = Hearing::Leaving(0);
                    (true, None)
                }
                Heed::Full => (false, None),
                Heed::Failed(error) => {
                    tracing::info!(%error, "a connection was dropped in its greeting");
                    (false, None)
                }
            },
        }
    }
}

impl<B: Backend> Watched for Visitor<B> {
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, number: u64, _: EventFlags, _: &mut [u8]) {
        let Some(control) = self.control.upgrade() else { return reactor.remove(number, &self.socket) };
        let (waits, link) = self.hear(&control);
        if waits {
            return;
        }
        reactor.remove(number, &self.socket);
        if let Some(link) = link {
            match link.shared().watch() {
                Ok(()) => self.listener.arrived(link),
                Err(error) => tracing::warn!(%error, "a new connection cannot be watched and is dropped"),
            }
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        Some(self.deadline)
    }

    fn expire(&self, reactor: &Reactor, number: u64) {
        if let Hearing::Greeting(incoming) = &*lock(&self.hearing) {
            let sent = door::described(incoming);
            tracing::info!("a connection without a hello is dropped; it sent {sent}");
        }
        reactor.remove(number, &self.socket);
    }
}
