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
        Interrupt::install_by_steps(|| ())
    }

    /// As [`install`](Interrupt::install), and runs `step` after each handler.
    fn install_by_steps(step: impl Fn()) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicUsize::new(0));
        let failed = |error| Failure::new(format!("cannot listen for signals: {error}"));
        let (wake, write) = UnixStream::pair().map_err(failed)?;
        for number in [SIGINT, SIGTERM] {
            // The order matters. From the first handler on the system does not end the process, so that one has to
            // remember the signal. The conditional shutdown sees the flag before this signal sets it, so only a second
            // signal exits.
            flag::register_usize(number, Arc::clone(&signal), number as usize).map_err(failed)?;
            step();
            flag::register_conditional_shutdown(number, exit_status(number).into(), Arc::clone(&stop))
                .map_err(failed)?;
            step();
            flag::register(number, Arc::clone(&stop)).map_err(failed)?;
            step();
            low_level::pipe::register(number, write.try_clone().map_err(failed)?).map_err(failed)?;
            step();
        }
        // A signal that came in between was remembered, and perhaps no more.
        stop.fetch_or(signal.load(Ordering::Relaxed) != 0, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::process::Command;

    /// The step after which the process of the test signals itself.
    const STEP: &str = "DUNLIN_TEST_SIGNAL_AFTER_STEP";

    /// A signal has effects on its whole process, so each step has a process of its own.
    #[test]
    fn a_signal_between_two_handlers_is_not_lost() {
        if let Ok(after) = std::env::var(STEP) {
            let (after, steps): (usize, _) = (after.parse().expect("a number"), Cell::new(0));
            let interrupt = Interrupt::install_by_steps(|| {
                steps.set(steps.get() + 1);
                if steps.get() == after {
                    low_level::raise(SIGINT).expect("raised");
                }
            });
            let interrupt = interrupt.expect("installed");
            assert_eq!((interrupt.received(), steps.get()), (Some(SIGINT), 8));
            assert!(interrupt.flag().load(Ordering::Relaxed));
            assert_eq!(interrupt.wait(Some(Duration::from_secs(60))), Some(SIGINT));
            assert!(interrupt.check().is_err());
            return;
        }
        for after in 1..=8 {
            let program = std::env::current_exe().expect("a program");
            let name = "interrupt::tests::a_signal_between_two_handlers_is_not_lost";
            let child = Command::new(program).args(["--exact", name]).env(STEP, after.to_string()).output();
            let child = child.expect("it runs");
            assert!(child.status.success(), "step {after}: {}", String::from_utf8_lossy(&child.stdout));
        }
    }
}
