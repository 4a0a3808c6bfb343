//! The conformance suite on libfabric's provider `tcp`: both roles in one process, and each in a process of its own. The
//! environment says where it listens (`DUNLIN_OFI_HOST`, 127.0.0.1 if not said). `tests/ofi/suite` runs it, also across network
//! namespaces.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::Suite;
use dunlin_fabric_ofi::{OfiConfig, OfiFabric};

fn fabric() -> OfiFabric {
    OfiFabric::new("tcp", OfiConfig::default()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    })
}

/// A port below those that the system gives out, another one for each case; the next one is free as well.
fn address(scheme: Scheme, case: &str) -> Address {
    let sum =
        case.bytes().fold(std::process::id(), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let host = std::env::var("DUNLIN_OFI_HOST").unwrap_or_else(|_| "127.0.0.1".into());
    let name = format!("tcp:{host}:{}", 10_000 + sum % 10_000 * 2);
    Address::new(scheme, &name).expect("provider, host and port")
}

fn main() -> std::process::ExitCode {
    Suite { address, ..Suite::new(fabric, Scheme::Ofi, 75) }.main()
}
