//! SIGINT and SIGTERM: the first signal requests an orderly end, the second ends the process at once.

use crate::output::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns the exit status that shells report for a process ended by a signal.
pub const fn exit_status(signal: i32) -> u8 {
    128 + signal as u8
}

/// The state of signal handling.
#[derive(Debug)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
    wake: UnixStream,
}

impl Interrupt {
    /// Installs handlers for SIGINT and SIGTERM.
    pub fn install() -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicUsize::new(0));
        let failed = |error| Failure::new(format!("cannot listen for signals: {error}"));
        let (wake, write) = UnixStream::pair().map_err(failed)?;
        for number in [SIGINT, SIGTERM] {
            // The order matters: the conditional shutdown sees the flag before this signal sets it, so only
            // a second signal exits.
            flag::register_conditional_shutdown(number, exit_status(number).into(), Arc::clone(&stop))
                .map_err(failed)?;
            flag::register_usize(number, Arc::clone(&signal), number as usize).map_err(failed)?;
            flag::register(number, Arc::clone(&stop)).map_err(failed)?;
            low_level::pipe::register(number, write.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Interrupt { stop, signal, wake })
    }

    /// Returns a flag that becomes true on a signal, for loops that poll it.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Returns the same flag as a shared reference.
    pub fn shared_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Returns the received signal, if any.
    pub fn received(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }

    /// Returns an error once a signal has been received.
    pub fn check(&self) -> Result<(), Failure> {
        self.received().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
    }

    /// Sleeps until a signal arrives, for at most `time` (without limit if `None`). Returns the signal.
    pub fn wait(&self, time: Option<Duration>) -> Option<i32> {
        let end = time.map(|time| Instant::now() + time);
        loop {
            if let Some(signal) = self.received() {
                return Some(signal);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            // A zero timeout is excluded above, and any other is valid.
            let _ = self.wake.set_read_timeout(left);
            // Check again after a byte, a timeout or an interruption.
            let _ = (&self.wake).read(&mut [0; 8]);
        }
    }
}
