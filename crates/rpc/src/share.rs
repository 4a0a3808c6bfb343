//! Sharing: how the threads of a program use the connections to a server.
//!
//! [`Client`] is the same type under each policy. A dedicated one is `client/synchronous.rs`: each thread has a connection
//! of its own. `plan/policies.rs` has the list of the others; a policy is a module with an implementation of
//! `strand::Policy`, and nothing else names it. The clones of an [`AsyncClient`] share connections by the same list: the
//! policy says how many strands they have, and all strands of a process lie behind one lead, the hub.

mod asynchronous;
mod calls;
mod client;
pub(crate) mod combined;
mod handle;
mod locked;
mod memory;
mod seat;
mod strand;

pub use self::asynchronous::{
    AsyncClient, AsyncHub, AsyncResponse, AsyncWithin, Attach, Call, MemoryCall, Ready,
};
pub use self::client::{Client, FillingRequest, LargeRequest, Response, Within};

use self::seat::Seat;
use crate::client::ClientConfig;
use crate::client::synchronous::Client as Dedicated;
use crate::error::ConnectError;
use crate::plan::Sharing;
use crate::plan::policies::policies;
use dunlin_fabric::Fabric;
use std::sync::Arc;

/// Makes the enum of clients under all policies.
macro_rules! policy {
    (() $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $policy:ty;)*) => {
        /// A client under its policy.
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant)] // A dedicated client is the frequent case, and lies in place.
        enum Policy<F: Fabric> {
            Dedicated(Dedicated<F>),
            $($name(Seat<F, $policy>),)*
        }

        /// Returns the most strands to a server that the threads or tasks of a client share.
        pub(crate) fn most_strands<F: Fabric>(config: &ClientConfig) -> u16 {
            match config.sharing() {
                Sharing::Dedicated => 1,
                $(Sharing::$name => <$policy as strand::Policy<F>>::most_strands(config),)*
            }
        }

        impl<F: Fabric> Policy<F> {
            /// Puts a connection under the policy of its plan.
            fn of(client: Dedicated<F>) -> Result<Self, ConnectError> {
                Ok(match client.config().sharing() {
                    Sharing::Dedicated => Policy::Dedicated(client),
                    $(Sharing::$name => Policy::$name(Seat::new(Arc::new(handle::Handle::new(client)))?),)*
                })
            }

            /// Makes a client for another thread: a seat at the same connection, or a connection of its own.
            fn another(&self) -> Result<Self, ConnectError> {
                Ok(match self {
                    Policy::Dedicated(client) => Policy::Dedicated(client.another()?),
                    $(Policy::$name(seat) => Policy::$name(seat.another()?),)*
                })
            }
        }
    };
}
policies!([policy]);

/// Runs an expression with the client of any policy.
macro_rules! each {
    ($policy:expr, $dedicated:ident => $own:expr, $seat:ident => $shared:expr) => {
        $crate::plan::policies::policies!(
            [$crate::share::match_each] ($policy) ($dedicated => $own) ($seat => $shared)
        )
    };
}
use each;

macro_rules! match_each {
    (
        (($policy:expr) ($dedicated:ident => $own:expr) ($seat:ident => $shared:expr))
        $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $type:ty;)*
    ) => {
        match $policy {
            Policy::Dedicated($dedicated) => $own,
            $(Policy::$name($seat) => $shared,)*
        }
    };
}
use match_each;
