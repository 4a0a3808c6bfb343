//! The conformance suite on this machine's RDMA device, with both roles in one process and in two processes.
//! Without a device, `tests/guest/run` runs it in a guest on Soft-RoCE, or with `--siw` and
//! `DUNLIN_RDMA_DEVICE=siw0` on Soft-iWARP.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric::{Fabric, Transport};
use dunlin_fabric_conformance::Suite;
use dunlin_fabric_rdma::{RdmaConfig, RdmaFabric};

fn fabric() -> RdmaFabric {
    let failed = |error: &dyn std::fmt::Display| -> ! {
        eprintln!("{error}");
        std::process::exit(1);
    };
    let config = RdmaConfig::default();
    RdmaFabric::new(config).unwrap_or_else(|error| failed(&error))
}

/// Returns a port for each case, below those that the system assigns; the next port is free as well.
fn address(scheme: Scheme, case: &str) -> Address {
    let sum =
        case.bytes().fold(std::process::id(), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let name = format!("127.0.0.1:{}", 10_000 + sum % 10_000 * 2);
    Address::new(scheme, &name).expect("host and port")
}

fn main() -> std::process::ExitCode {
    // iWARP only has reliable connections, without immediate data or atomics.
    let is_iwarp = !fabric().capabilities().transports.contains(Transport::UnreliableDatagram);
    let applicable = if is_iwarp { 81 } else { 138 };
    Suite { address, ..Suite::new(fabric, Scheme::Rdma, applicable) }.main()
}
