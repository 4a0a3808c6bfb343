//! Calls of the engine's own clients to a service of any node (`node:SERVICE`): a client connects to the node of its host,
//! as to a server, and asks for the service. The node hands each call on, whatever its function.

use super::registry::Registry;
use crate::calling::head;
use crate::error::JoinError;
use crate::forward::Link;
use crate::passage::{Delivered, Forwarded, Sink, Source};
use crate::tier::Tier;
use dunlin_fabric::{Address, Fabric, Host, Nanos, PeerIdentity, nanos};
use dunlin_rpc::{
    CallError, Cause, ConnectionObserver, Incoming, NotAdmitted, ServeError, Server, ServerBuilder,
    ServerConfig, Status, Taker, Token,
};
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::message::{CALL, Reply, Request};
use dunlin_tier::process::gateway_name;
use dunlin_tier::{Name, NodeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The time that nodes have to say whether they serve a service.
const LOOKING: Duration = Duration::from_secs(1);
/// The time for which a route is used without another look, in nanoseconds. A route that fails is left at once.
const KNOWN_FOR: Nanos = 10_000_000_000;
/// The time for which no node is asked for a service that none serves, in nanoseconds.
const UNKNOWN_FOR: Nanos = 100_000_000;
/// The most calls that wait for a route to a service.
const MAX_LOOKING: usize = 1024;
/// The most routes that are kept.
const MAX_ROUTES: usize = 4096;

/// A connection of a client.
#[derive(Debug)]
struct Caller<F: Fabric> {
    peer: PeerIdentity,
    service: Name,
    /// The only node that may serve it.
    node: Option<NodeId>,
    /// The node, acting for the principal of the process.
    tier: Tier<F>,
}

/// The way to a service.
#[derive(Debug)]
enum Route<F: Fabric, P: Fabric> {
    /// The calls wait for the answers of nodes, of which this number is missing.
    Looking { unanswered: usize, waiting: Vec<(Arc<Caller<F>>, Incoming<P>)> },
    /// These nodes serve it, as far as known; by turns.
    Known { nodes: Vec<NodeId>, next: usize, until: Nanos },
}

type Routes<F, P> = BTreeMap<Name, Route<F, P>>;

/// The server for calls of any service.
#[derive(Debug)]
pub(super) struct Gateway<F: Fabric, P: Fabric> {
    registry: Arc<Registry<F, P>>,
    callers: RwLock<HashMap<u64, Arc<Caller<F>>>>,
    routes: Mutex<Routes<F, P>>,
}

/// The gateway as the engine's server knows it.
struct Desk<F: Fabric, P: Fabric>(Arc<Gateway<F, P>>);

impl<F: Fabric, P: Fabric> Gateway<F, P> {
    /// Takes calls at the address that follows from that for processes.
    pub(super) fn serve(
        fabric: &P,
        registry: &Arc<Registry<F, P>>,
        address: &Address,
    ) -> Result<Server<P>, JoinError> {
        let address = Address::new(address.scheme(), &gateway_name(address.name()))
            .map_err(|error| ServeError::Listen(error.into()))?;
        let gateway = Arc::new(Gateway {
            registry: Arc::clone(registry),
            callers: RwLock::new(HashMap::new()),
            routes: Mutex::new(BTreeMap::new()),
        });
        let config = ServerConfig {
            max_payload: MAX_CALL.into(),
            max_response: MAX_CALL.into(),
            max_connections: 4096,
            ..ServerConfig::default()
        };
        let server = ServerBuilder::new(fabric)
            .config(config)
            .observe(Arc::new(Desk(Arc::clone(&gateway))))
            .others_taken_by(Arc::new(Desk(gateway)))
            .serve(&address, |_| {
                Box::new(|_: &dunlin_rpc::Request<'_>, _: &mut dunlin_rpc::Reply<'_>| {
                    Err(Status::UnknownFunction)
                })
            })?;
        Ok(server)
    }

    fn routes(&self) -> MutexGuard<'_, Routes<F, P>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        self.registry.tier.fabric().host().now()
    }

    fn take(self: &Arc<Self>, call: Incoming<P>) {
        let caller =
            self.callers.read().unwrap_or_else(PoisonError::into_inner).get(&call.session).map(Arc::clone);
        // The connection has ended: nobody hears the answer.
        let Some(caller) = caller else { return call.refuse(Status::Draining) };
        let node = caller.tier.node();
        if let Some(to) = caller.node {
            return self.forward(&caller, to, call);
        }
        if node.services.serves(&caller.service) {
            return self.forward(&caller, node.me, call);
        }
        let now = self.now();
        let to = {
            let mut routes = self.routes();
            match routes.get_mut(&caller.service) {
                Some(Route::Known { nodes, next, until }) if now < *until => {
                    *next = next.wrapping_add(1);
                    match nodes.get(*next % nodes.len().max(1)) {
                        Some(node) => *node,
                        None => {
                            drop(routes);
                            return call.refuse(Status::Unreachable);
                        }
                    }
                }
                Some(Route::Looking { waiting, .. }) => {
                    if waiting.len() < MAX_LOOKING {
                        waiting.push((caller, call));
                    } else {
                        call.refuse(Status::Overloaded);
                    }
                    return;
                }
                _ => {
                    if routes.len() >= MAX_ROUTES {
                        routes
                            .retain(|_, route| !matches!(route, Route::Known { until, .. } if *until <= now));
                    }
                    if routes.len() >= MAX_ROUTES {
                        drop(routes);
                        return call.refuse(Status::Overloaded);
                    }
                    let others = node.roster.others(node.me);
                    let service = caller.service.clone();
                    let waiting = vec![(caller, call)];
                    routes.insert(service.clone(), Route::Looking { unanswered: others.len(), waiting });
                    drop(routes);
                    return self.look(&service, others);
                }
            }
        };
        self.forward(&caller, to, call);
    }

    /// Asks all other nodes for a service.
    fn look(self: &Arc<Self>, service: &Name, others: Vec<NodeId>) {
        let node = self.registry.tier.node();
        let request = Request::Serves { service: service.clone() }.encode();
        if others.is_empty() {
            return self.found(service, None);
        }
        for other in others {
            let (gateway, service) = (Arc::clone(self), service.clone());
            let done = move |outcome: Result<Vec<u8>, CallError>| {
                let serves = outcome
                    .is_ok_and(|answer| Reply::parse(&answer) == Ok(Reply::Flag(true)))
                    .then_some(other);
                gateway.found(&service, serves);
            };
            node.forward((other, Link::Services), CALL, &request, LOOKING, Box::new(done));
        }
    }

    /// A node has said whether it serves a service, or does not answer. The first one that does ends the look.
    fn found(self: &Arc<Self>, service: &Name, serves: Option<NodeId>) {
        let now = self.now();
        let released = {
            let mut routes = self.routes();
            match (routes.get_mut(service), serves) {
                (Some(Route::Looking { waiting, .. }), Some(node)) => {
                    let waiting = std::mem::take(waiting);
                    let route =
                        Route::Known { nodes: vec![node], next: 0, until: now.saturating_add(KNOWN_FOR) };
                    routes.insert(service.clone(), route);
                    waiting
                }
                (Some(Route::Known { nodes, .. }), Some(node)) => {
                    if !nodes.contains(&node) {
                        nodes.push(node);
                    }
                    Vec::new()
                }
                (Some(Route::Looking { unanswered, waiting }), None) => {
                    *unanswered = unanswered.saturating_sub(1);
                    if *unanswered > 0 {
                        return;
                    }
                    let waiting = std::mem::take(waiting);
                    let until = now.saturating_add(UNKNOWN_FOR);
                    routes.insert(service.clone(), Route::Known { nodes: Vec::new(), next: 0, until });
                    waiting
                }
                _ => return,
            }
        };
        for (caller, call) in released {
            match serves {
                Some(node) => self.forward(&caller, node, call),
                None => call.refuse(Status::Unreachable),
            }
        }
    }

    /// Leaves a node out of a route: it does not serve the service any more, or cannot be reached.
    fn leave(&self, service: &Name, node: NodeId) {
        let mut routes = self.routes();
        if let Some(Route::Known { nodes, .. }) = routes.get_mut(service) {
            nodes.retain(|one| *one != node);
            if nodes.is_empty() {
                routes.remove(service);
            }
        }
    }

    fn forward(self: &Arc<Self>, caller: &Arc<Caller<F>>, to: NodeId, mut call: Incoming<P>) {
        let node = caller.tier.node();
        let principal = caller.tier.caller();
        let made = head(caller.service.clone(), call.function, principal, false, call.payload.len());
        // No request is longer than the server's limit.
        let Ok(head) = made else { return call.refuse(Status::Malformed) };
        let request = Source::Message(std::mem::take(&mut call.payload), 0);
        let forwarded = Forwarded { head, request, room: Sink::Answer(MAX_CALL as usize) };
        self.registry.answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let time = call.time_left().unwrap_or(node.config.timeout);
        let host = node.fabric.host();
        let class = caller.tier.class().clone();
        let turn = node.qos.begin_call(host, &class, forwarded.length(), || nanos(time));
        // Such a client knows statuses of the engine only.
        let Ok(turn) = turn else { return call.refuse(Status::Overloaded) };
        let (gateway, caller) = (Arc::clone(self), Arc::clone(caller));
        let done = move |outcome: Result<Delivered, CallError>| {
            use Status::{Draining, UnknownFunction, Unreachable};
            if let Err(CallError::NotExecuted(
                Cause::Disconnected
                | Cause::Draining
                | Cause::Refused(UnknownFunction | Unreachable | Draining),
            )) = &outcome
            {
                gateway.leave(&caller.service, to);
            }
            call.relay(outcome.map(|delivered| delivered.bytes));
        };
        node.forward_in_turn((to, turn, class), forwarded, time, Box::new(done));
    }
}

impl<F: Fabric, P: Fabric> Taker<P> for Desk<F, P> {
    fn take(&self, call: Incoming<P>) {
        self.0.take(call);
    }
}

impl<F: Fabric, P: Fabric> ConnectionObserver for Desk<F, P> {
    fn opened(
        &self,
        session: u64,
        peer: &PeerIdentity,
        service: &str,
        token: &Token,
    ) -> Result<(), NotAdmitted> {
        let gateway = &*self.0;
        let named = gateway.registry.named_by(token)?;
        let roster = &gateway.registry.tier.node().roster;
        let (service, node) = match service.rsplit_once('@') {
            None => (service, None),
            Some((service, name)) => {
                let number = roster.number_of(name);
                (
                    service,
                    Some(number.ok_or_else(|| format!("the list of nodes has no {}", name.escape_debug()))?),
                )
            }
        };
        let service = Name::new(service).map_err(|error| error.to_string())?;
        let unknown = "the kernel does not say which user this process belongs to";
        let tier = gateway.registry.acting_for(peer, named.as_ref()).map_err(|_| unknown.to_owned())?;
        if !service.is_open_to(tier.caller()) {
            return Err(NotAdmitted::Unauthorised(format!("{service} belongs to another principal")));
        }
        gateway.registry.admit_caller(peer)?;
        let caller = Arc::new(Caller { peer: peer.clone(), service, node, tier });
        gateway.callers.write().unwrap_or_else(PoisonError::into_inner).insert(session, caller);
        Ok(())
    }

    fn closed(&self, session: u64) {
        let gone = self.0.callers.write().unwrap_or_else(PoisonError::into_inner).remove(&session);
        if let Some(caller) = gone {
            self.0.registry.dismiss_caller(&caller.peer);
        }
    }
}
