//! The reasons why a load fails.

use crate::rates::ModelledRatesError;
use dunlin_fabric_sim::RunError;
use dunlin_rnic_model::ProfileError;
use dunlin_rpc::{CallError, ConnectError, ServeError};
use thiserror::Error;

/// The reason why a load did not come to its end.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The load is impossible.
    #[error("{what} is 0: a load needs at least one")]
    Nothing {
        /// Name of the quantity that is 0.
        what: &'static str,
    },
    /// The profile is unknown or invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The rates of the profile's NIC cannot be computed.
    #[error(transparent)]
    Rates(#[from] ModelledRatesError),
    /// The number of connections does not suit the number of threads.
    #[error("{clients} threads on {hosts} hosts cannot share {handles} connections: {must}")]
    Handles {
        /// Client threads.
        clients: usize,
        /// Client hosts with threads.
        hosts: usize,
        /// Connections requested.
        handles: usize,
        /// The rule.
        must: &'static str,
    },
    /// The load needs more connections than the cluster can hold.
    #[error(
        "{clients} clients make {queue_pairs} queue pairs at the server's NIC, which holds {limit}: at most {} clients fit",
        .limit * .clients / .queue_pairs
    )]
    QueuePairs {
        /// Clients requested.
        clients: usize,
        /// Their connections.
        queue_pairs: usize,
        /// The limit.
        limit: usize,
    },
    /// The simulation failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The server did not start.
    #[error("the simulated server does not start")]
    Serve(#[from] ServeError),
    /// A client could not connect.
    #[error("a simulated client cannot connect")]
    Connect(#[from] ConnectError),
    /// A call failed.
    #[error("a simulated call failed: {0}")]
    Call(CallError),
}
