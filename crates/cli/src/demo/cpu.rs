//! CPU time of a process, from the kernel's statistics.

use std::fs;

/// Returns the CPU time of all threads of a process, ns, or `None` if the kernel does not report it.
pub(super) fn time_ns(process: u32) -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        // The time of a thread that ends meanwhile is lost; servers keep their threads.
        if let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) {
            sum += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    // Kernels without schedstat report only zeros.
    if sum > 0 { Some(sum) } else { ticks_ns(process) }
}

/// Returns the CPU time from the clock-tick counters, which every kernel has.
fn ticks_ns(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The command name may contain any character, but ends at the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_grows_with_work_and_a_missing_process_has_none() {
        let own = std::process::id();
        let before = (time_ns(own).expect("there"), ticks_ns(own).expect("there"));
        let begin = std::time::Instant::now();
        let mut turns = 0u64;
        while begin.elapsed().as_millis() < 300 {
            turns = std::hint::black_box(turns + 1);
        }
        assert!(time_ns(own).expect("there") > before.0);
        assert!(ticks_ns(own).expect("there") >= before.1);
        assert_eq!((time_ns(0), ticks_ns(0)), (None, None));
    }
}
