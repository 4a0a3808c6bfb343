//! The conformance suite on a provider of libfabric: both roles in one process, and each in a process of its own. The environment
//! says which provider (`DUNLIN_OFI_PROVIDER`, `tcp` if not said; `DUNLIN_OFI_ENDPOINTS=datagram` for its reliable datagrams
//! where it has connections as well), what hardware it is to be taken for (`DUNLIN_OFI_AS`: `efa` or `cxi`), and where it
//! listens (`DUNLIN_OFI_HOST`, 127.0.0.1 if not said). `tests/ofi/suite` runs it, also across network namespaces.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::Suite;
use dunlin_fabric_ofi::{EndpointKind, OfiConfig, OfiFabric, Without};

/// Cases that apply to connected endpoints, and to datagrams: without shared receive queues, and without two hundred queue pairs.
const APPLICABLE: usize = 76;
const DATAGRAMS: usize = 73;

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

/// A port below those that the system gives out, another one for each case; the next one is free as well.
fn address(scheme: Scheme, case: &str) -> Address {
    let sum =
        case.bytes().fold(std::process::id(), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let host = said("DUNLIN_OFI_HOST").unwrap_or_else(|| "127.0.0.1".into());
    let name = format!("{}:{host}:{}", provider(), 10_000 + sum % 10_000 * 2);
    Address::new(scheme, &name).expect("provider, host and port")
}

fn main() -> std::process::ExitCode {
    let applicable = match fabric().endpoints() {
        EndpointKind::Connected => APPLICABLE,
        EndpointKind::Datagram => DATAGRAMS,
    };
    Suite { address, ..Suite::new(fabric, Scheme::Ofi, applicable) }.main()
}
