//! Binding to NUMA nodes as the hint `numa` asks.
//!
//! A server binds the threads of its workers and its pool. It does not bind application threads that run
//! workers, nor the threads that serve stock Thrift. A client has no threads: it binds the connecting thread
//! to the node while it connects, so that its registered memory lies there, and then restores the thread's
//! former binding. The calling thread can bind itself with
//! [`Client::bind_thread`](crate::Client::bind_thread). Shared memory has no NIC: there, `numa = on` means
//! the node of the thread that connects or serves.

use dunlin_fabric::{BindError, Host, Topology};
use dunlin_hints::{FunctionHints, NumaBinding, Selection, Side, Subject};
use dunlin_thrift_core::NumaError;

/// Returns the cores to bind a side's threads to; empty for no binding. Logs the effect of each hint.
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

/// Binds the calling thread to the given cores until it is dropped; an empty list binds nothing.
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
