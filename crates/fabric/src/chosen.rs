//! Which transport a client goes by, and why.

use crate::address::Scheme;
use std::fmt;

/// A way that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its fabric, or TCP.
    pub scheme: Scheme,
    /// Why not.
    pub why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}: {}", self.scheme.as_str(), self.why)
    }
}

/// The transport that a client's calls take, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenTransport {
    /// As [`Capabilities::name`](crate::Capabilities::name) has it: `shm`, `rdma`, `iwarp`, `ofi`; `tcp` for stock Thrift.
    pub name: &'static str,
    /// The address that was dialled, with its scheme.
    pub address: String,
    /// Why this one, in words.
    pub why: String,
    /// What came before it in the order of preference, and why it was not taken.
    pub passed_over: Vec<PassedOver>,
}

impl ChosenTransport {
    /// What the address itself has named.
    pub fn named(name: &'static str, address: String) -> Self {
        ChosenTransport { name, address, why: NAMED.to_owned(), passed_over: Vec::new() }
    }
}

/// Why an address that names its transport means that.
pub const NAMED: &str = "named by the address";

impl fmt::Display for ChosenTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.address, self.why)?;
        self.passed_over.iter().try_for_each(|passed| write!(f, "; {passed}"))
    }
}
