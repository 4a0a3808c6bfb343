//! Binding to NUMA nodes, as the hint `numa` asks for it.
//!
//! A server binds the threads of its workers and its pool; threads of the application that run workers, and those that answer
//! stock Thrift, are not its to bind. A client has no threads of its own: it connects from the node, so that the memory it
//! registers lies there, and frees the thread again; who calls binds itself by [`Client::bind_thread`](crate::Client::bind_thread)
//! if it likes. Shared memory has no NIC: there the node of `numa = on` is the one that the thread which connects or serves
//! is on.

use dunlin_fabric::{BindError, Host, Topology};
use dunlin_hints::{FunctionHints, NumaBinding, Selection, Side, Subject};
use thiserror::Error;

/// The hint `numa` cannot be followed.
#[derive(Debug, Error)]
pub enum NumaError {
    /// The node of a function.
    #[error("{function}: {error}")]
    Bind {
        /// The function.
        function: String,
        /// Why not.
        error: BindError,
    },
    /// Two functions are hinted to two nodes, and the same threads serve them.
    #[error(
        "{first} and {second} are hinted to different NUMA nodes, but the same threads work for both: give the service one \
         numa, or serve them apart"
    )]
    Differ {
        /// One function.
        first: String,
        /// Another.
        second: String,
    },
}

/// The cores to bind a side's threads to; none for any. Says in the log what comes of each hint.
pub(crate) fn cores<'a>(
    side: Side,
    functions: impl Iterator<Item = (&'a FunctionHints, &'a Selection)>,
    topology: &Topology,
) -> Result<Vec<u32>, NumaError> {
    let mut found: Option<(u16, &FunctionHints)> = None;
    for (function, selection) in functions {
        for reason in selection.reasons_for(Subject::Numa(side)) {
            tracing::info!(target: "dunlin::numa", "{}: {reason}", function.name);
        }
        let binding = match side {
            Side::Client => selection.client_binding,
            Side::Server => selection.server_binding,
        };
        let node = match binding {
            None => continue,
            Some(NumaBinding::NicNode) => topology.here(),
            Some(NumaBinding::Node(node)) => node,
        };
        match found {
            Some((known, first)) if known != node => {
                let [first, second] = [first, function].map(|function| function.name.to_string());
                return Err(NumaError::Differ { first, second });
            }
            _ => found = Some((node, function)),
        }
    }
    let Some((node, function)) = found else { return Ok(Vec::new()) };
    let cores = topology.cores(node);
    cores.map(<[u32]>::to_vec).map_err(|error| NumaError::Bind { function: function.name.to_string(), error })
}

/// The calling thread is bound to cores until this is dropped; to none if there are none.
pub(crate) struct Bound<H: Host> {
    host: H,
    former: Vec<u32>,
}

impl<H: Host> Bound<H> {
    pub(crate) fn new(host: &H, cores: &[u32]) -> Result<Self, BindError> {
        let former = if cores.is_empty() { Vec::new() } else { host.bind(cores)? };
        Ok(Bound { host: host.clone(), former })
    }
}

impl<H: Host> Drop for Bound<H> {
    fn drop(&mut self) {
        if !self.former.is_empty()
            && let Err(error) = self.host.bind(&self.former)
        {
            tracing::warn!(target: "dunlin::numa", "a thread that connected stays bound: {error}");
        }
    }
}
