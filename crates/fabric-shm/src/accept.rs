//! The acceptance of connections: the control thread accepts visitors at a listener, exchanges greetings, and hands
//! new links to the listener.

use crate::frame::{Frame, Refusal, VERSION};
use crate::io::Io;
use crate::link::{LinkShared, Secrets, ShmLink};
use dunlin_fabric::door::Door;
use dunlin_fabric::{Host, RealHost, nanos};
use dunlin_fabric_control::unix::{self, Received};
use dunlin_fabric_control::{ListenerShared, READ, Reactor, Watched};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Weak};

type UnixListenerShared = ListenerShared<OwnedFd, ShmLink>;

#[derive(Debug)]
struct Greeting {
    socket: OwnedFd,
    listener: Arc<UnixListenerShared>,
    io: Weak<Io>,
    secret: [u64; 2],
    deadline: u64,
}

/// Refuses a visitor that has sent another packet than a greeting.
fn turn_away(greeting: &Greeting, packet: &[u8]) {
    let (socket, text) = (greeting.socket.as_fd(), Door::Shm.found_at(""));
    let answer = greeting.listener.refusal(packet, ("shared memory", &text), &unix::peer(socket));
    if !answer.is_empty() {
        // The visitor is refused even if it does not read the reason.
        let _ = unix::send(socket, &answer, &[], None);
    }
}

/// Returns sixteen random bytes.
fn secret() -> [u64; 2] {
    [RealHost.random(), RealHost.random()]
}

/// Sends the first frame on a socket; returns the secret in it.
pub(crate) fn greet(socket: &OwnedFd) -> Result<[u64; 2], Errno> {
    let secret = secret();
    let (head, body) = Frame::Hello { version: VERSION, secret }.encode();
    match unix::send(socket.as_fd(), head.as_slice(), body, None) {
        // The other side has closed already; its reason for refusing can still be read.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(secret),
        Err(error) => Err(error),
    }
}

fn refuse(socket: &OwnedFd, refusal: Refusal) {
    tracing::info!(?refusal, "a connection was refused");
    let (head, body) = Frame::Refused(refusal).encode();
    // The peer is refused even if it does not read the reason.
    let _ = unix::send(socket.as_fd(), head.as_slice(), body, None);
}

/// A listener whose connections the control thread accepts.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) listener: Arc<UnixListenerShared>,
    pub(crate) io: Weak<Io>,
}

impl Watched for Acceptor {
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, _: u64, _: EventFlags, _: &mut [u8]) {
        let Some(io) = self.io.upgrade() else { return };
        let accept = |socket: &OwnedFd| unix::accept(socket.as_fd()).map_err(io::Error::from);
        self.listener.accept_each(accept, |socket| {
            let user = unix::peer(socket.as_fd()).user;
            if !io.config().allow.admits(user) {
                return refuse(&socket, Refusal::User(user.unwrap_or(u32::MAX)));
            }
            if self.listener.is_full() {
                return refuse(&socket, Refusal::Full);
            }
            let Ok(secret) = greet(&socket) else { return };
            let greeting = Arc::new(Greeting {
                socket,
                listener: Arc::clone(&self.listener),
                io: Weak::clone(&self.io),
                secret,
                deadline: RealHost.now().saturating_add(nanos(io.config().greeting_patience)),
            });
            // The visitor's connection is closed if it cannot be watched.
            let owner = Arc::clone(&greeting) as Arc<dyn Watched>;
            let _ = reactor.add(reactor.next_number(), &greeting.socket, READ, owner);
        });
    }
}

impl Greeting {
    /// Makes the link after the peer's hello, which had this secret. Returns `None` if the fabric ends or has no
    /// descriptor left.
    fn link(&self, theirs: [u64; 2]) -> Option<ShmLink> {
        let io = self.io.upgrade()?;
        let socket = self.socket.try_clone().ok()?;
        let shared = LinkShared::new(socket, Secrets { ours: self.secret, theirs }, &io);
        Some(ShmLink::new(shared, io))
    }
}

impl Watched for Greeting {
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, number: u64, _: EventFlags, buffer: &mut [u8]) {
        let link = match unix::receive(self.socket.as_fd(), buffer) {
            Ok(Received::Empty) => return,
            Ok(Received::Frame { length, descriptor: None }) => match Frame::decode(&buffer[..length]) {
                Ok(Frame::Hello { version: VERSION, secret }) => self.link(secret),
                Ok(Frame::Hello { .. }) => {
                    refuse(&self.socket, Refusal::Version(VERSION));
                    None
                }
                Ok(_) | Err(_) => {
                    turn_away(&self, &buffer[..length]);
                    None
                }
            },
            _ => None,
        };
        reactor.remove(number, &self.socket);
        if let Some(link) = link {
            match link.shared().watch() {
                Ok(()) => self.listener.arrived(link),
                Err(error) => tracing::warn!(%error, "a new connection cannot be watched and is dropped"),
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        Some(self.deadline)
    }

    fn expire(&self, reactor: &Reactor, number: u64) {
        tracing::info!("a connection without a hello is dropped");
        reactor.remove(number, &self.socket);
    }
}
