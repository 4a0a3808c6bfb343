//! What each run of figures costs: one after the other, on one core.
//!
//! `figure_costs FIGURE [SERIES [X]]`, of which the last two pick runs: the name of a series begins so, and x is that. A row is
//! processor seconds, the process's memory at its peak since the run began and what of it is left after it (MiB), millions of calls a second,
//! x, series. Where the kernel does not say (Linux's /proc), it is 0.

use dunlin_scenario::figures::{Effort, figure};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(id) = arguments.first() else {
        eprintln!("usage: figure_costs FIGURE [SERIES [X]]");
        return ExitCode::from(2);
    };
    let series = arguments.get(1).map_or("", String::as_str);
    let x = arguments.get(2).and_then(|text| text.parse().ok());
    match costs(id, series, x) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn costs(id: &str, series: &str, x: Option<u32>) -> Result<(), Box<dyn Error>> {
    for run in figure(id)?.runs(Effort::Full) {
        if !run.series.starts_with(series) || x.is_some_and(|x| x != run.x) {
            continue;
        }
        forget_peak();
        let before = seconds();
        let outcome = run.go()?;
        println!(
            "{:8.2} s {:6} MiB {:6} MiB  {:7.3} mops  x {:5}  {}",
            seconds() - before,
            mib("VmHWM:"),
            mib("VmRSS:"),
            outcome.mops,
            run.x,
            run.series
        );
    }
    Ok(())
}

/// Processor time of this thread, on which runs are made.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: u64 = text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    nanos as f64 / 1e9
}

/// The peak of memory begins anew, where that is allowed.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn mib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}
