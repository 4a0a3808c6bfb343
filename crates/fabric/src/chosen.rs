//! The transport that a client uses, and the reason for the choice.

use crate::address::Scheme;
use std::fmt;

/// A transport that was not chosen, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its fabric, or TCP.
    pub scheme: Scheme,
    /// The reason, in words.
    pub why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}: {}", self.scheme.as_str(), self.why)
    }
}

/// The transport that a client's calls use, and the reason for the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenTransport {
    /// Its name, as in [`Capabilities::name`](crate::Capabilities::name): `shm`, `rdma`, `iwarp`, `ofi`;
    /// `tcp` for stock Thrift.
    pub name: &'static str,
    /// The address that was dialled, with its scheme.
    pub address: String,
    /// The reason for the choice, in words.
    pub why: String,
    /// The transports that were preferred to it, each with the reason why it was not chosen.
    pub passed_over: Vec<PassedOver>,
}

impl ChosenTransport {
    /// Makes the value for a transport that the address itself names.
    pub fn named(name: &'static str, address: String) -> Self {
        ChosenTransport { name, address, why: NAMED.to_owned(), passed_over: Vec::new() }
    }
}

/// The reason for a transport that the address names.
pub const NAMED: &str = "named by the address";

impl fmt::Display for ChosenTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.address, self.why)?;
        self.passed_over.iter().try_for_each(|passed| write!(f, "; {passed}"))
    }
}
