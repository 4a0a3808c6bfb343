//! The suite on the reference fabric.

use dunlin_fabric::Scheme;
use dunlin_fabric_conformance::{Suite, reference::Reference};

fn main() -> std::process::ExitCode {
    Suite { two_processes: false, ..Suite::new(Reference::new, Scheme::Sim, 118) }.main()
}
