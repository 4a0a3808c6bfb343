//! Counts how often the kernel preempted a runnable thread.
//!
//! A preempted slice also measures the machine's other work, so comparisons prefer slices without
//! preemption.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::FloorError;

/// Counts involuntary context switches of the thread that created it, from /proc. One reading takes about
/// 10 us.
pub(super) struct PreemptionCounter {
    status: File,
}

impl PreemptionCounter {
    /// Creates a counter for the calling thread.
    pub(super) fn of_this_thread() -> Result<Self, FloorError> {
        let status = File::open("/proc/thread-self/status")
            .map_err(|error| FloorError::NoProc { reason: error.to_string() })?;
        Ok(Self { status })
    }

    /// Returns the number of involuntary switches since the thread started.
    pub(super) fn count(&self) -> Result<u64, FloorError> {
        let mut text = [0; 8192];
        let length = self
            .status
            .read_at(&mut text, 0)
            .map_err(|error| FloorError::NoProc { reason: error.to_string() })?;
        parse(&text[..length])
            .ok_or_else(|| FloorError::NoProc { reason: "it has no nonvoluntary_ctxt_switches".to_owned() })
    }
}

fn parse(status: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        assert_eq!(
            parse(b"Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t4\n"),
            Some(4)
        );
        assert_eq!(parse(b"Name:\tx\n"), None);
    }

    #[test]
    fn counts_never_fall() {
        let counter = PreemptionCounter::of_this_thread().expect("proc");
        let first = counter.count().expect("a count");
        assert!(counter.count().expect("a count") >= first);
    }
}
