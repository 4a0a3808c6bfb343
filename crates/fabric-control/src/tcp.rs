//! The control socket between hosts: TCP. It reports a peer's death at once if the peer's process ends, and through
//! keep-alive if its host or the network fails.

use dunlin_fabric::dialling::first_of;
use dunlin_fabric::{Host, Nanos, RealHost};
use rustix::net::sockopt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Idle time before the first probe.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(5);
/// Time between probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Unanswered probes after which the peer counts as dead.
const KEEP_ALIVE_PROBES: u32 = 5;
/// The timeout for sent and unacknowledged data, in milliseconds.
const USER_TIMEOUT: u32 = 10_000;

/// Configures a connected socket: non-blocking, without delay, with detection of a dead peer.
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

/// Connects to the first of the host's addresses that answers. All addresses share the time until `until`.
pub(crate) fn connect(host: &str, port: u16, until: Nanos) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let left = || Duration::from_nanos(until.saturating_sub(RealHost.now()));
    let socket = first_of(&addresses, left, TcpStream::connect_timeout)?;
    prepare(&socket)?;
    Ok(socket)
}

/// Closes the connection for both sides.
pub(crate) fn shut_down(socket: &TcpStream) {
    // A socket that the peer has reset returns ENOTCONN: it is already closed.
    let _ = socket.shutdown(Shutdown::Both);
}
