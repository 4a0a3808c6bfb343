//! The conformance suite on a provider of libfabric, with both roles in one process and in two processes.
//!
//! Environment: `DUNLIN_OFI_PROVIDER` is the provider (default `tcp`); `DUNLIN_OFI_ENDPOINTS=datagram`
//! selects its reliable datagrams if it has connections too; `DUNLIN_OFI_AS` (`efa` or `cxi`) is hardware to
//! simulate; `DUNLIN_OFI_HOST` is the address to listen on (default 127.0.0.1). `tests/ofi/suite` runs it,
//! also across network namespaces.

use dunlin_fabric::{
    Access, Address, Data, Fabric, Operation, PostError, QueuePairConfig, Region, Scheme, ThreadDomain,
    WorkId, WorkRequest,
};
use dunlin_fabric_conformance::{Suite, Withheld};
use dunlin_fabric_ofi::{EndpointKind, OfiConfig, OfiFabric, Without};

/// The number of cases that apply to connected endpoints; below, to datagrams, which lack shared receive
/// queues and two hundred queue pairs.
const APPLICABLE: usize = 92;
const DATAGRAMS: usize = 89;

fn said(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn provider() -> String {
    said("DUNLIN_OFI_PROVIDER").unwrap_or_else(|| "tcp".into())
}

fn config() -> OfiConfig {
    let without = match said("DUNLIN_OFI_AS").as_deref() {
        None => Without::default(),
        Some("efa") => Without::EFA,
        Some("cxi") => Without::CXI,
        Some(other) => panic!("DUNLIN_OFI_AS is efa or cxi, and not {other}"),
    };
    let endpoints = match said("DUNLIN_OFI_ENDPOINTS").as_deref() {
        None => None,
        Some("datagram") => Some(EndpointKind::Datagram),
        Some("connected") => Some(EndpointKind::Connected),
        Some(other) => panic!("DUNLIN_OFI_ENDPOINTS is datagram or connected, and not {other}"),
    };
    OfiConfig { without, endpoints, ..OfiConfig::default() }
}

fn fabric() -> OfiFabric {
    OfiFabric::new(&provider(), config()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    })
}

/// Returns a port for each case, below those that the system assigns; the next port is free as well.
fn address(scheme: Scheme, case: &str) -> Address {
    let sum =
        case.bytes().fold(std::process::id(), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let host = said("DUNLIN_OFI_HOST").unwrap_or_else(|| "127.0.0.1".into());
    let name = format!("{}:{host}:{}", provider(), 10_000 + sum % 10_000 * 2);
    Address::new(scheme, &name).expect("provider, host and port")
}

/// The cases in which a peer ends in the middle of a READ, where this libfabric can crash on that.
fn withheld(fabric: &OfiFabric) -> Withheld {
    let Some(fault) = fabric.known_fault() else { return Vec::new() };
    ["peer_dies_during_sends", "peer_dies_during_reads"].map(|case| (case, fault.clone())).into()
}

/// A range of another device's region is refused when it is posted.
fn refuses_foreign_regions() {
    let region = Region::new(fabric().register(64, Access::WRITE).expect("memory"));
    let mut domain = fabric().domain().expect("a domain");
    let queue = domain.create_completion_queue(8, false).expect("a completion queue");
    let config = QueuePairConfig::reliable(queue, queue);
    let queue_pair = domain.create_queue_pair(&config).expect("a queue pair");
    let data = Data::Region(region.range(0, 64).expect("in bounds"));
    let operation = Operation::Send { data, immediate: None, to: None };
    let request = WorkRequest { id: WorkId(1), operation, signaled: true };
    assert_eq!(domain.post(queue_pair, request), Err(PostError::ForeignRegion));
}

fn main() -> std::process::ExitCode {
    refuses_foreign_regions();
    let applicable = match fabric().endpoints() {
        EndpointKind::Connected => APPLICABLE,
        EndpointKind::Datagram => DATAGRAMS,
    };
    Suite { address, withheld, ..Suite::new(fabric, Scheme::Ofi, applicable) }.main()
}
