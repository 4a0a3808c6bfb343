//! The end of a server by a signal.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Waits for SIGINT (Ctrl-C) or SIGTERM. After it has returned, a further signal ends the process at once.
pub(crate) fn wait_for_signal() -> io::Result<()> {
    let arrived = Arc::new(AtomicBool::new(false));
    let (mut wake, wakes) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the shutdown sees the flag before this signal sets it, so that only a second
        // signal exits. The status is that which shells report for a process ended by the signal.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&arrived))?;
        flag::register(signal, Arc::clone(&arrived))?;
        pipe::register(signal, wakes.try_clone()?)?;
    }
    while !arrived.load(Ordering::Relaxed) {
        match wake.read(&mut [0]) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    tracing::info!(target: "dunlin::server", "a signal ends the server: received calls are answered");
    Ok(())
}
