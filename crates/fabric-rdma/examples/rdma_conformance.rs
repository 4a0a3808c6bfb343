//! The conformance suite on this machine's RDMA device, with both roles in one process and in two processes.
//! Without a device, `tests/guest/run` runs it in a guest on Soft-RoCE, or with `--siw` and
//! `DUNLIN_RDMA_DEVICE=siw0` on Soft-iWARP.

use dunlin_fabric::{
    Access, Address, Data, Fabric, Operation, PostError, QueuePairConfig, Region, Scheme, ThreadDomain,
    Transport, WorkId, WorkRequest,
};
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

/// A range of another device's region is refused when it is posted.
fn refuses_foreign_regions() {
    let region = Region::new(fabric().register(64, Access::WRITE).expect("memory"));
    let mut domain = fabric().domain().expect("a domain");
    let queue = domain.create_completion_queue(8, false).expect("a completion queue");
    // A datagram queue pair is ready without a peer.
    let transport = Transport::UnreliableDatagram;
    let config = QueuePairConfig { transport, ..QueuePairConfig::reliable(queue, queue) };
    let queue_pair = domain.create_queue_pair(&config).expect("a queue pair");
    let data = Data::Region(region.range(0, 64).expect("in bounds"));
    let operation = Operation::Send { data, immediate: None, to: None };
    let request = WorkRequest { id: WorkId(1), operation, signaled: true };
    assert_eq!(domain.post(queue_pair, request), Err(PostError::ForeignRegion));
}

fn main() -> std::process::ExitCode {
    // iWARP only has reliable connections, without immediate data or atomics.
    let is_iwarp = !fabric().capabilities().transports.contains(Transport::UnreliableDatagram);
    if !is_iwarp {
        refuses_foreign_regions();
    }
    let applicable = if is_iwarp { 96 } else { 154 };
    Suite { address, ..Suite::new(fabric, Scheme::Rdma, applicable) }.main()
}
