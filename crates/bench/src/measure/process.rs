//! CPU time and memory of a process, from the kernel's statistics.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::MeasureError;
use dunlin_floor::process_cpu_ns;

/// CPU time and memory of a process, at a point in time or over a period.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ProcessCost {
    /// CPU time, ns.
    pub(super) cpu_ns: u64,
    /// Elapsed time, ns.
    pub(super) wall_ns: u64,
    /// Resident memory, shared pages counted in full, bytes.
    pub(super) resident_bytes: u64,
    /// Resident memory, each shared page divided by the number of processes that map it, bytes.
    pub(super) proportional_bytes: u64,
}

impl ProcessCost {
    /// Returns the times of the calling process since its start, without its memory.
    pub(super) fn times() -> Self {
        let cpu_ns = process_cpu_ns();
        let now = clock_gettime(ClockId::Monotonic);
        let wall_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        Self { cpu_ns, wall_ns, ..Self::default() }
    }

    /// Returns the cost of the calling process since its start. Reads /proc/self/smaps_rollup, which takes
    /// a while with many mappings; the CPU time is read first.
    pub(super) fn of_this_process() -> Result<Self, MeasureError> {
        let times = Self::times();
        let path = "/proc/self/smaps_rollup";
        let text = fs::read_to_string(path)
            .map_err(|source| MeasureError::NoProc { path: path.to_owned(), source })?;
        Ok(Self { resident_bytes: field(&text, "Rss:"), proportional_bytes: field(&text, "Pss:"), ..times })
    }

    /// Returns the times since `before`, with the current memory.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            wall_ns: self.wall_ns.saturating_sub(before.wall_ns),
            ..self
        }
    }
}

fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes * 1024)
}

/// Raises the soft limit of open files to the hard limit, since each connection takes several files.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A failure shows later, with a clear message, when the files run out.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns the limit of open files of this process.
pub(super) fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Runs `work`. Returns its result, and the CPU time of the whole process during the call, ns.
pub(super) fn with_cpu_time<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = process_cpu_ns();
    let result = work();
    (result, process_cpu_ns().saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rollup_is_read() {
        let text =
            "555-7ff ---p 00000000 00:00 0 [rollup]\nRss:    884 kB\nPss:    385 kB\nPss_Dirty: 100 kB\n";
        assert_eq!((field(text, "Rss:"), field(text, "Pss:")), (884 * 1024, 385 * 1024));
        assert_eq!(field(text, "Swap:"), 0);
    }

    #[test]
    fn a_process_has_memory_and_has_used_time() {
        let before = ProcessCost::of_this_process().expect("proc");
        let (sum, cpu_ns) =
            with_cpu_time(|| (0..1_000_000u64).fold(0, |sum, value| sum ^ value.rotate_left(7)));
        assert!(before.resident_bytes > before.proportional_bytes / 2 && before.proportional_bytes > 0);
        let after = ProcessCost::of_this_process().expect("proc").since(before);
        assert!(after.cpu_ns >= cpu_ns && after.wall_ns > 0, "{sum}");
    }
}
