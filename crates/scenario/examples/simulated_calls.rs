//! Runs the load of `dunlin sim bench` in a separate program, for tools that count instructions or cache
//! lines per process.
//!
//! `simulated_calls CLIENTS CALLS [NETWORK]`. The cost of a call is the difference between two runs divided
//! by the difference of their numbers of calls.

use dunlin_scenario::load::{Load, LoadError, Network};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(clients), Some(calls)) = (number(0), number(1)) else {
        eprintln!("usage: simulated_calls CLIENTS CALLS [NETWORK]");
        return ExitCode::from(2);
    };
    let network = match arguments.get(2).map(String::as_str) {
        None | Some("rates") => Network::Rates,
        Some(profile) => Network::Modelled(profile.to_owned()),
    };
    match run(clients as usize, calls, network) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the processor time of this thread in nanoseconds; 0 where the system does not report it.
fn processor_ns() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn run(clients: usize, calls: u64, network: Network) -> Result<(), LoadError> {
    let outcome = Load::bench(clients, calls, network).run(1, || [processor_ns(), 0])?;
    let took = outcome.probes[2].saturating_sub(outcome.probes[0]) as f64 / outcome.all.calls.max(1) as f64;
    println!(
        "{} calls, {} events, {} switches, trace {:016x}, {took:.0} ns a call",
        outcome.all.calls, outcome.events, outcome.switches, outcome.trace_hash
    );
    Ok(())
}
