//! The wait for one socket, of threads that dial or send.

use dunlin_fabric::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;

/// Waits until the socket is readable (or writable), for at most `nanoseconds`; returns whether it is. A caller
/// continues in any case: it finds the socket's state and its own deadline by itself.
pub fn wait(socket: impl AsFd, write: bool, nanoseconds: Nanos) -> bool {
    let flags = if write { PollFlags::OUT } else { PollFlags::IN };
    let mut descriptors = [PollFd::new(&socket, flags)];
    let timeout =
        Timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ };
    matches!(rustix::event::poll(&mut descriptors, Some(&timeout)), Ok(ready) if ready > 0)
}
