//! Measures the cost of each run of a figure: runs execute in sequence, on one core.
//!
//! `figure_costs FIGURE [SERIES [X]]`; SERIES selects runs by the prefix of their series' name, X by their x.
//! A row holds processor seconds, peak memory during the run and memory left after it (MiB), million calls
//! per second, x, series. Values that the kernel does not report (Linux's /proc) are 0.

use dunlin_figures::{Effort, figure};
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

/// Returns the processor time of this thread, which executes the runs, in seconds.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: u64 = text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    nanos as f64 / 1e9
}

/// Resets the peak of the process's memory, where permitted.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn mib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}
