//! Requests to other nodes, by the RPC engine, and the service that answers theirs.

use crate::error::RequestError;
use crate::forward::Link;
use crate::node::Node;
use crate::seats::{self, Use};
use crate::services::Switch;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Work};
use dunlin_rpc::{
    CallError, Cause, ClientConfig, FunctionMode, ServeError, Server, ServerBuilder, ServerConfig, Status,
};
use dunlin_tier::NodeId;
use dunlin_tier::call::{MAX_CALL, MAX_HEAD, SERVICE_CALL};
use dunlin_tier::lock::message::LOCK_CALL;
use dunlin_tier::message::{CALL, Refusal, Reply, Request, SLOW_CALL};
use std::sync::Arc;
use std::time::Duration;

/// The name of the service.
const SERVICE: &str = "dunlin.tier";
/// Threads for requests that take long or wait for other nodes.
const POOL_THREADS: u16 = 4;
/// The most calls that wait for a lock or at a barrier, for all locks and barriers of this node.
const MAX_WAITING: u32 = 16_384;
/// The outcome of a call whose answer cannot come, since the host of the caller has ended.
pub(crate) const HOST_ENDED: Result<Vec<u8>, CallError> = Err(CallError::MaybeExecuted(Cause::Closed));

/// The longest answer: the pieces of a region of 1 TiB.
pub(crate) const MAX_RESPONSE: u64 = 8 << 20;

/// The longest request: a call of a service, or the record of a region of 1 TiB.
const MAX_REQUEST: u64 = MAX_RESPONSE;
const _: () = assert!(MAX_REQUEST > MAX_CALL as u64 + MAX_HEAD as u64);

/// Starts the service of a node.
pub(crate) fn serve<F: Fabric>(node: &Arc<Node<F>>, address: &Address) -> Result<Server<F>, ServeError> {
    let config = ServerConfig {
        workers: node.config.workers,
        pool_threads: POOL_THREADS,
        max_payload: MAX_REQUEST,
        max_waiting: MAX_WAITING,
        window: seats::WINDOW,
        max_response: MAX_RESPONSE,
        large_response_memory: seats::LARGE,
        service: SERVICE.to_owned(),
        token: node.config.token.clone(),
        ..ServerConfig::default()
    };
    let slow = Arc::clone(node);
    ServerBuilder::new(&node.fabric)
        .config(config)
        .function(CALL, FunctionMode::Worker)
        .function(SLOW_CALL, FunctionMode::Pool)
        .function(LOCK_CALL, FunctionMode::Pull)
        .taken_by(SERVICE_CALL, Arc::new(Switch(Arc::clone(node))))
        .pool(move |request: &dunlin_rpc::Request<'_>, reply: &mut dunlin_rpc::Reply<'_>| {
            answer(&slow, request, reply)
        })
        .serve(address, |_| {
            let node = Arc::clone(node);
            Box::new(move |request: &dunlin_rpc::Request<'_>, reply: &mut dunlin_rpc::Reply<'_>| {
                answer(&node, request, reply)
            })
        })
}

fn answer<F: Fabric>(
    node: &Node<F>,
    request: &dunlin_rpc::Request<'_>,
    reply: &mut dunlin_rpc::Reply<'_>,
) -> Result<(), Status> {
    let answer = match Request::parse(request.payload) {
        // A slow request must not keep a worker.
        Ok(parsed) if parsed.is_slow() == (request.function == SLOW_CALL) => node.answer(parsed),
        _ => Reply::Refused(Refusal::Malformed),
    };
    Ok(reply.write(&answer.encode())?)
}

impl<F: Fabric> Node<F> {
    /// Sends a request to a node and waits for its answer until `until`. A request to this node is answered by the
    /// calling thread.
    pub(crate) fn ask(&self, to: NodeId, request: Request, until: Nanos) -> Result<Reply, RequestError> {
        if to == self.me {
            self.fabric.host().charge(Work::Dispatch, 1);
            return Ok(self.answer(request));
        }
        let function = if request.is_slow() { SLOW_CALL } else { CALL };
        let answer = self.send(to, function, &request.encode(), until)?;
        Reply::parse(&answer).map_err(|_| self.misfit(to))
    }

    /// Sends a request to a node, this one included, and waits for its answer until `until`.
    pub(crate) fn send(
        &self,
        to: NodeId,
        function: u16,
        bytes: &[u8],
        until: Nanos,
    ) -> Result<Vec<u8>, RequestError> {
        self.await_known(to, until);
        self.check_alive(to)?;
        if self.roster.is_dynamic {
            return self.exchange((to, Link::Owner), function, bytes, until);
        }
        let call =
            || self.call_in_seat((to, Use::Requests), (function, bytes), (until, until), <[u8]>::to_vec);
        let outcome = match call()? {
            // The node has restarted, and the second call reaches its next life.
            Err(source) if source.was_executed() == Some(false) && source.is_unavailable() => call()?,
            outcome => outcome,
        };
        outcome.map_err(|source| RequestError::Call { node: self.name_of(to), source })
    }

    /// Refuses a node that is dead in the view.
    pub(crate) fn check_alive(&self, to: NodeId) -> Result<(), RequestError> {
        match self.roster.dead_in(to) {
            Some(epoch) => {
                Err(RequestError::Dead { node: self.name_of(to), epoch, may_have_executed: false })
            }
            None => Ok(()),
        }
    }

    /// Makes a call that ends when the node is declared dead.
    pub(crate) fn exchange(
        &self,
        to: (NodeId, Link),
        function: u16,
        bytes: &[u8],
        until: Nanos,
    ) -> Result<Vec<u8>, RequestError> {
        self.check_alive(to.0)?;
        let left = Duration::from_nanos(until.saturating_sub(self.fabric.host().now()));
        let outcome = self.call_all(&[(to.0, to.1, bytes)], function, left).pop().flatten();
        outcome.unwrap_or(HOST_ENDED).map_err(|source| self.call_failed(to.0, source))
    }

    /// Returns the error of a call that failed, perhaps since the node was declared dead.
    pub(crate) fn call_failed(&self, to: NodeId, source: CallError) -> RequestError {
        let node = self.name_of(to);
        match self.roster.dead_in(to) {
            Some(epoch) if !source.is_deadline() => {
                let may_have_executed = source.was_executed() != Some(false);
                RequestError::Dead { node, epoch, may_have_executed }
            }
            _ => RequestError::Call { node, source },
        }
    }

    /// As [`ask`](Node::ask), with a refusal as an error.
    pub(crate) fn demand(&self, to: NodeId, request: Request, until: Nanos) -> Result<Reply, RequestError> {
        match self.ask(to, request, until)? {
            Reply::Refused(source) => Err(RequestError::Refused { node: self.name_of(to), source }),
            reply => Ok(reply),
        }
    }

    /// Returns the error of an answer that does not fit the request.
    pub(crate) fn misfit(&self, to: NodeId) -> RequestError {
        RequestError::Answer { node: self.name_of(to) }
    }

    /// Returns the address of a node's service.
    pub(crate) fn address_of(&self, node: NodeId) -> Result<Address, RequestError> {
        let peer = self.roster.get().peer(node).map(|peer| peer.calls.clone());
        peer.ok_or_else(|| RequestError::NoNode(node.to_string()))
    }
}

/// Returns the settings of all clients of other nodes' services.
pub(crate) fn node_client<F: Fabric>(node: &Node<F>) -> ClientConfig {
    ClientConfig {
        timeout: node.config.timeout,
        max_response: MAX_RESPONSE,
        large_memory: 2 * MAX_RESPONSE,
        service: SERVICE.to_owned(),
        program: format!("tier node {}", node.config.node),
        // The owner of a lock knows by it whether the holder lives.
        identity: Some(node.incarnation),
        token: node.config.token.clone(),
        ..ClientConfig::default()
    }
}
