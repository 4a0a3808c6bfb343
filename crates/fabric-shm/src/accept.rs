//! The acceptance of connections: the control thread accepts visitors at a listener, exchanges greetings, and hands
//! new links to the listener.

use crate::frame::{Frame, Refusal, VERSION};
use crate::io::{READ, Watched};
use crate::link::{LinkShared, Secrets};
use crate::listener::ListenerShared;
use crate::socket::{self, Received};
use dunlin_fabric::door::{self, Door};
use dunlin_fabric::{Host, RealHost, nanos};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// The maximum number of connections that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;

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

/// Returns sixteen random bytes.
fn secret() -> [u64; 2] {
    [RealHost.random(), RealHost.random()]
}

/// Sends the first frame on a socket; returns the secret in it.
pub(crate) fn greet(socket: &OwnedFd) -> Result<[u64; 2], Errno> {
    let secret = secret();
    let (head, body) = Frame::Hello { version: VERSION, secret }.encode();
    match socket::send(socket.as_fd(), head.as_slice(), body, None) {
        // The other side has closed already; its reason for refusing can still be read.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(secret),
        Err(error) => Err(error),
    }
}

fn refuse(socket: &OwnedFd, refusal: Refusal) {
    tracing::info!(?refusal, "a connection was refused");
    let (head, body) = Frame::Refused(refusal).encode();
    // The peer is refused even if it does not read the reason.
    let _ = socket::send(socket.as_fd(), head.as_slice(), body, None);
}

/// A listener whose connections the control thread accepts.
#[derive(Debug)]
pub(crate) struct Acceptor(pub(crate) Arc<ListenerShared>);

impl Watched for Acceptor {
    fn serve(self: Arc<Self>, _number: u64, _flags: EventFlags, _buffer: &mut [u8]) {
        let listener = &self.0;
        let io = listener.io();
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
            let refusal = if !io.config().allow.admits(user) {
                Some(Refusal::User(user.unwrap_or(u32::MAX)))
            } else if listener.is_full() || io.timed() >= MAX_GREETINGS {
                Some(Refusal::Full)
            } else {
                None
            };
            if let Some(refusal) = refusal {
                refuse(&socket, refusal);
                continue;
            }
            let Ok(secret) = greet(&socket) else { continue };
            let deadline = RealHost.now().saturating_add(nanos(io.config().greeting_patience));
            let greeting = Arc::new(Greeting { socket, listener: Arc::clone(listener), secret, deadline });
            // The visitor's connection is closed if it cannot be watched.
            let owner = Arc::clone(&greeting) as Arc<dyn Watched>;
            let _ = io.add(io.next_number(), &greeting.socket, READ, owner);
        }
    }
}

impl Watched for Greeting {
    fn serve(self: Arc<Self>, number: u64, _flags: EventFlags, buffer: &mut [u8]) {
        let io = self.listener.io();
        let received = socket::receive(self.socket.as_fd(), buffer);
        let link = match received {
            Ok(Received::Empty) => return,
            Ok(Received::Frame { length, descriptor: None }) => match Frame::decode(&buffer[..length]) {
                Ok(Frame::Hello { version: VERSION, secret }) => self.socket.try_clone().ok().map(|socket| {
                    let secrets = Secrets { ours: self.secret, theirs: secret };
                    LinkShared::new(socket, secrets, io.config().max_grants_per_link, Arc::clone(io))
                }),
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
        io.remove(number, &self.socket);
        if let Some(link) = link {
            match link.watch() {
                Ok(()) => self.listener.arrived(link),
                Err(error) => tracing::warn!(%error, "a new connection cannot be watched and is dropped"),
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        Some(self.deadline)
    }

    fn expire(&self, number: u64) {
        tracing::info!("a connection without a hello is dropped");
        self.listener.io().remove(number, &self.socket);
    }
}
