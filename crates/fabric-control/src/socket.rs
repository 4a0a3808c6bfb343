//! The control socket: TCP, which tells of a peer's death at once if its process ends, and by keep-alive if its host or
//! the network does.

use dunlin_fabric::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Silence before the first probe.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(5);
/// Between probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Probes without an answer before the peer counts as dead.
const KEEP_ALIVE_PROBES: u32 = 5;
/// The same for what was sent and not acknowledged, in milliseconds.
const USER_TIMEOUT: u32 = 10_000;

/// Makes a connected socket one that suits: it does not block, delays nothing, and notices a dead peer.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT)?;
    Ok(())
}

/// Connects within so many nanoseconds to the first of the host's addresses that answers.
pub(crate) fn connect(host: &str, port: u16, within: Nanos) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        // A timeout of zero is refused as an argument.
        match TcpStream::connect_timeout(&address, Duration::from_nanos(within.max(1_000_000))) {
            Ok(socket) => {
                prepare(&socket)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Waits until the socket can be read (or written), or for so many nanoseconds.
pub(crate) fn wait(socket: &TcpStream, write: bool, nanoseconds: Nanos) {
    let flags = if write { PollFlags::OUT } else { PollFlags::IN };
    let mut descriptors = [PollFd::new(socket, flags)];
    let timeout =
        Timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ };
    // Whatever comes of it, the caller looks again.
    let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
}

/// Ends the connection for both sides.
pub(crate) fn shut_down(socket: &TcpStream) {
    // A socket that the peer has reset answers ENOTCONN: nothing to end.
    let _ = socket.shutdown(Shutdown::Both);
}
