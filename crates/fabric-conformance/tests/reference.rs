//! The suite on the reference fabric, alone and with the interposers around it.

use dunlin_fabric::interpose::{Delay, When};
use dunlin_fabric::{Count, Fabric, Fault, FaultPlan, Scheme, Trace};
use dunlin_fabric_conformance::{Suite, reference::Reference};
use std::process::ExitCode;

fn run<F: Fabric>(what: &str, fabric: fn() -> F) -> bool {
    println!("\n{what}");
    let suite = Suite { two_processes: false, ..Suite::new(fabric, Scheme::Sim, 155) };
    suite.main() == ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let mut good = run("the reference fabric", Reference::new);
    good &= run("counted, traced, with a fault plan that breaks nothing", || {
        Count::new(Trace::new(Fault::new(Reference::new(), FaultPlan::default())))
    });
    good &= run("with completions that come late", || {
        let delay = Some(Delay { when: When::Every(3), polls: 4 });
        Fault::new(Reference::new(), FaultPlan { delay, ..FaultPlan::default() })
    });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
