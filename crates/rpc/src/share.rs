//! Sharing: how the threads of a program use the connections to a server.
//!
//! | module | policy | paper |
//! |---|---|---|
//! | `client/synchronous.rs` | dedicated: each thread has a connection of its own | |
//! | `share/locked.rs` | a lock around one connection | FLOCK figure 9, the baseline |
//! | `share/combined.rs` | threads hand their calls to one of them, which sends them together | FLOCK sections 4 to 6 |
//!
//! [`Client`] is the same type under each policy. The list of policies is the enum [`Policy`] below; a policy is
//! a module with an implementation of `strand::Policy`, and nothing else names it.

mod calls;
mod client;
pub(crate) mod combined;
mod handle;
mod locked;
mod memory;
mod seat;
mod strand;

pub use self::client::{Client, FillingRequest, LargeRequest, Response, Within};

use self::seat::Seat;
use crate::client::synchronous::Client as Dedicated;
use crate::error::ConnectError;
use crate::plan::Sharing;
use dunlin_fabric::Fabric;
use std::sync::Arc;

/// A client under its policy.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A dedicated client is the frequent case, and lies in place.
enum Policy<F: Fabric> {
    Dedicated(Dedicated<F>),
    Locked(Seat<F, locked::Locked>),
    Combined(Seat<F, combined::Combined<F>>),
}

/// Runs an expression with the client of any policy.
macro_rules! each {
    ($policy:expr, $dedicated:ident => $own:expr, $seat:ident => $shared:expr) => {
        match $policy {
            Policy::Dedicated($dedicated) => $own,
            Policy::Locked($seat) => $shared,
            Policy::Combined($seat) => $shared,
        }
    };
}
use each;

impl<F: Fabric> Policy<F> {
    /// Puts a connection under the policy of its plan.
    fn of(client: Dedicated<F>) -> Result<Self, ConnectError> {
        Ok(match client.config().sharing() {
            Sharing::Dedicated => Policy::Dedicated(client),
            Sharing::Locked => Policy::Locked(Seat::new(Arc::new(handle::Handle::new(client)))?),
            Sharing::Combined => Policy::Combined(Seat::new(Arc::new(handle::Handle::new(client)))?),
        })
    }

    /// Makes a client for another thread: a seat at the same connection, or a connection of its own.
    fn another(&self) -> Result<Self, ConnectError> {
        Ok(match self {
            Policy::Dedicated(client) => Policy::Dedicated(client.another()?),
            Policy::Locked(seat) => Policy::Locked(seat.another()?),
            Policy::Combined(seat) => Policy::Combined(seat.another()?),
        })
    }
}
