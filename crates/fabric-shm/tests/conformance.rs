//! The conformance suite on shared memory, with both roles in one process and in two processes.

use dunlin_fabric::Scheme;
use dunlin_fabric_conformance::Suite;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};

fn main() -> std::process::ExitCode {
    let fabric = || ShmFabric::new(ShmConfig::default()).expect("shared memory works on this machine");
    Suite::new(fabric, Scheme::Shm, 157).main()
}
