//! The conformance suite on this machine's RDMA device: both roles in one process, and each in a process of its own.
//! `tests/guest/run` runs it where there is none, on Soft-RoCE in a guest.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::Suite;
use dunlin_fabric_rdma::{RdmaConfig, RdmaFabric};

fn fabric() -> RdmaFabric {
    RdmaFabric::new(RdmaConfig::default()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    })
}

/// A port below those that the system gives out, another one for each case; the next one is free as well.
fn address(scheme: Scheme, case: &str) -> Address {
    let sum =
        case.bytes().fold(std::process::id(), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let name = format!("127.0.0.1:{}", 10_000 + sum % 10_000 * 2);
    Address::new(scheme, &name).expect("host and port")
}

fn main() -> std::process::ExitCode {
    Suite { address, ..Suite::new(fabric, Scheme::Rdma, 128) }.main()
}
