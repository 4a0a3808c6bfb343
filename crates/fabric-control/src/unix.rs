//! The control socket within a host: an abstract Unix socket of type SOCK_SEQPACKET. It preserves message boundaries,
//! carries descriptors, identifies the peer, and reports the peer's death.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use dunlin_fabric::PeerIdentity;

/// The result of receiving from a socket.
#[derive(Debug)]
pub enum Received {
    /// A frame in the buffer.
    Frame {
        /// Its length in bytes.
        length: usize,
        /// The descriptor that arrived with it.
        descriptor: Option<OwnedFd>,
    },
    /// Too long for the buffer, or with more than one descriptor: a protocol violation.
    Oversized,
    /// No frame is available now.
    Empty,
    /// The peer has closed.
    End,
}

fn address_of(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("dunlin/{name}").as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Makes a listening socket on the abstract name `dunlin/NAME`.
pub fn listen(name: &str, backlog: i32) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address_of(name)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Makes a socket connected to that name. `Errno::AGAIN`: the listener's backlog is full, try again.
pub fn connect(name: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address_of(name)?)?;
    Ok(socket)
}

/// Accepts the next connection.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Makes two connected sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the identity of the peer, as the kernel reports it.
pub fn peer(socket: BorrowedFd<'_>) -> PeerIdentity {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(credentials) => PeerIdentity {
            process: u32::try_from(credentials.pid.as_raw_nonzero().get()).ok(),
            user: Some(credentials.uid.as_raw()),
        },
        Err(_) => PeerIdentity::default(),
    }
}

/// Sends one frame. Does not block; returns `Errno::AGAIN` if the peer's buffer is full.
pub fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let descriptors: [BorrowedFd<'_>; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = descriptor {
        descriptors = [descriptor];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    loop {
        match rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Receives one frame; does not block.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
            // A peer that closed with unread frames leaves this error once, before its last messages.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Ok(Received::Empty),
            other => break other?,
        }
    };
    let mut descriptor = None;
    let mut extra = false;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = ancillary {
            for one in descriptors {
                extra |= descriptor.replace(one).is_some();
            }
        }
    }
    if extra || message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Ok(Received::Oversized);
    }
    if message.bytes == 0 {
        return Ok(Received::End);
    }
    Ok(Received::Frame { length: message.bytes, descriptor })
}

/// Closes the connection for both sides.
pub fn shut_down(socket: BorrowedFd<'_>) {
    // A socket that the peer has closed returns ENOTCONN: it is already closed.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn frames_keep_their_bounds_and_carry_descriptors() {
        let (a, b) = pair().unwrap();
        let mut buffer = [0; 64];
        assert!(matches!(receive(b.as_fd(), &mut buffer), Ok(Received::Empty)));
        send(a.as_fd(), b"one", b"two", Some(a.as_fd())).unwrap();
        send(a.as_fd(), &[7; 100], b"", None).unwrap();
        let Ok(Received::Frame { length: 6, descriptor: Some(_) }) = receive(b.as_fd(), &mut buffer) else {
            panic!("no frame")
        };
        assert_eq!(&buffer[..6], b"onetwo");
        assert!(matches!(receive(b.as_fd(), &mut buffer), Ok(Received::Oversized)));
        assert_eq!(peer(a.as_fd()).process, Some(std::process::id()));
        drop(a);
        assert!(matches!(receive(b.as_fd(), &mut buffer), Ok(Received::End)));
    }
}
