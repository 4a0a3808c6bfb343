//! Calls to services of any node: `LT_RPC`, `LT_send` and multicast (table 1, section 8.4).

use crate::calls::{HOST_ENDED, node_client};
use crate::error::RequestError;
use crate::forward::{Done, Link};
use crate::node::{Node, SignalOf};
use crate::pool::{Pool, Taken};
use crate::qos::{CallTurn, Class};
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_rpc::{CallError, Client, ClientConfig, Plan, Sharing};
use dunlin_tier::call::{MAX_CALL, SERVICE_CALL};
use dunlin_tier::message::{CALL, Reply, Request};
use dunlin_tier::{CallHead, Name, NodeId, Principal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Threads of this process that call services of one node at the same time.
pub(crate) const MAX_CALLERS: usize = 64;
/// Queue pairs to a node that these threads share, over all workers of that node (K in section 6.1: 1 to 4). With 16 a
/// node of ten makes a third of the calls (figure `lite-14-calls`): the NIC's caches do not hold all connections.
const QUEUE_PAIRS: u16 = 4;

/// One of several calls that are made at the same time: [`Tier::call_each`].
#[derive(Clone, Copy, Debug)]
pub struct EachCall<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// The service.
    pub service: &'a [u8],
    /// The function of the service.
    pub function: u16,
    /// The request, at most 4 MiB.
    pub request: &'a [u8],
}

/// The outcomes of calls to several nodes, in the order of the nodes.
pub(crate) type Outcomes = Vec<Option<Result<Vec<u8>, CallError>>>;

impl<F: Fabric> Node<F> {
    /// Has a call of a process go out when its turn has come, and `done` take its outcome. Does not block.
    pub(crate) fn forward_in_turn(
        self: &Arc<Self>,
        (to, turn): (NodeId, CallTurn),
        bytes: Vec<u8>,
        time: Duration,
        done: Done,
    ) {
        let node = Arc::clone(self);
        let host = self.fabric.host();
        let until = turn.from.map(|_| host.now().saturating_add(nanos(time)));
        let go = move || {
            let since = node.qos.call_goes_out(node.fabric.host());
            let host = node.fabric.host();
            let left = until.map_or(time, |until| Duration::from_nanos(until.saturating_sub(host.now())));
            let own = Arc::clone(&node);
            let done = move |outcome: Result<Vec<u8>, CallError>| {
                own.qos.end_call(own.fabric.host(), turn, since.filter(|_| outcome.is_ok()));
                done(outcome);
            };
            node.forward((to, turn.link), SERVICE_CALL, &bytes, left, Box::new(done));
        };
        match turn.from.zip(until) {
            None => go(),
            Some((from, until)) => self.delays.at(host, from.min(until), Box::new(go)),
        }
    }

    /// Calls a service of a node and passes the result to `take`. The call waits for its turn and for the allowance of the
    /// principal.
    fn call_service<T>(
        &self,
        (to, class): (NodeId, &Class),
        bytes: &[u8],
        until: Nanos,
        take: impl FnOnce(&[u8]) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let host = self.fabric.host();
        let left = || until.saturating_sub(host.now());
        let turn = self.qos.begin_call(host, class, bytes.len() as u64, left)?;
        if let Some(from) = turn.from {
            host.sleep(from.min(until));
        }
        let since = self.qos.call_goes_out(host);
        let result = self.call_by((to, turn.link), bytes, until, take);
        self.qos.end_call(host, turn, since.filter(|_| result.is_ok()));
        result
    }

    fn call_by<T>(
        &self,
        (to, link): (NodeId, Link),
        bytes: &[u8],
        until: Nanos,
        take: impl FnOnce(&[u8]) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let host = self.fabric.host();
        if link != Link::Services || (self.roster.is_dynamic && to != self.me) {
            let result = self.exchange((to, link), SERVICE_CALL, bytes, until)?;
            return take(&result);
        }
        let [pool, root] = &self.callers[usize::from(to.0)];
        let mut client = match pool.take(host, until).ok_or(RequestError::Busy)? {
            Taken::Value(client) => client,
            Taken::Make(number) => self.caller(to, root, until).inspect_err(|_| pool.failed(number))?,
        };
        let left = Duration::from_nanos(until.saturating_sub(host.now()));
        let outcome = match client.within(left).call(SERVICE_CALL, bytes) {
            Ok(response) => take(&response),
            Err(source) => Err(RequestError::Call { node: self.name_of(to), source }),
        };
        pool.give(client);
        outcome
    }

    /// Makes a client for another thread: a seat at the connection that all of them share.
    fn caller(
        &self,
        to: NodeId,
        root: &Pool<Client<F>, SignalOf<F>>,
        until: Nanos,
    ) -> Result<Client<F>, RequestError> {
        let failed = |source| RequestError::Connect { node: self.name_of(to), source };
        let host = self.fabric.host();
        let first = match root.take(host, until).ok_or(RequestError::Busy)? {
            Taken::Value(first) => first,
            Taken::Make(number) => {
                let plan =
                    Plan { sharing: Sharing::Combined, ..Plan::default_for(self.fabric.capabilities()) };
                let config = ClientConfig {
                    plan: Some(plan),
                    // All nodes have as many workers as this one, as far as it knows.
                    max_queue_pairs: (QUEUE_PAIRS / self.config.workers).max(1),
                    connect_timeout: Duration::from_nanos(until.saturating_sub(host.now())),
                    ..node_client(self)
                };
                let connected = Client::connect(&self.fabric, &self.address_of(to)?, config);
                connected.inspect_err(|_| root.failed(number)).map_err(failed)?
            }
        };
        let seat = first.another();
        root.give(first);
        seat.map_err(failed)
    }

    /// Makes calls to several nodes at the same time, each with its bytes, and waits until all have ended. A call without an
    /// outcome has none because the host ended: the thread of a killed process in the simulator waits for nothing.
    pub(crate) fn call_all(
        &self,
        calls: &[(NodeId, Link, &[u8])],
        function: u16,
        time: Duration,
    ) -> Outcomes {
        let host = self.fabric.host();
        let outcomes: Arc<Mutex<Outcomes>> = Arc::new(Mutex::new((0..calls.len()).map(|_| None).collect()));
        let ended = host.signal();
        for (place, (to, link, bytes)) in calls.iter().enumerate() {
            let (outcomes, ended) = (Arc::clone(&outcomes), ended.clone());
            let done = move |outcome| {
                outcomes.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(outcome);
                ended.raise();
            };
            self.forward((*to, *link), function, bytes, time, Box::new(done));
        }
        loop {
            let seen = ended.seen();
            {
                let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                if outcomes.iter().all(Option::is_some) {
                    return std::mem::take(&mut outcomes);
                }
            }
            // Each call ends by its deadline.
            if !ended.wait(seen, Nanos::MAX) {
                let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                // Another thread may still put an outcome into its place.
                return outcomes.iter_mut().map(Option::take).collect();
            }
        }
    }

    /// Returns the nodes that serve a service, this one first. Nodes that do not answer count as not serving it.
    pub(crate) fn find_servers(&self, service: &Name, time: Duration) -> Vec<NodeId> {
        let others = self.roster.others(self.me);
        let request = Request::Serves { service: service.clone() }.encode();
        let asked: Vec<_> = others.iter().map(|node| (*node, Link::Services, &*request)).collect();
        let outcomes = self.call_all(&asked, CALL, time);
        let serve = |outcome: &Option<Result<Vec<u8>, CallError>>| matches!(outcome, Some(Ok(answer)) if Reply::parse(answer) == Ok(Reply::Flag(true)));
        let mut found: Vec<NodeId> =
            Some(self.me).filter(|_| self.services.serves(service)).into_iter().collect();
        found.extend(
            others.iter().zip(&outcomes).filter(|(_, outcome)| serve(outcome)).map(|(node, _)| *node),
        );
        found
    }
}

/// Checks a call and encodes it.
pub(crate) fn encode_call(
    service: &Name,
    function: u16,
    caller: &Principal,
    is_one_way: bool,
    request: &[u8],
) -> Result<Vec<u8>, RequestError> {
    if request.len() as u64 > u64::from(MAX_CALL) {
        return Err(RequestError::Limit { what: "bytes in one request", limit: MAX_CALL.into() });
    }
    let head = CallHead { service: service.clone(), function, caller: caller.clone(), is_one_way };
    Ok(head.encode(request))
}

impl<F: Fabric> Tier<F> {
    fn numbered(&self, node: &str) -> Result<NodeId, RequestError> {
        self.node().roster.number_of(node).ok_or_else(|| RequestError::NoNode(node.to_owned()))
    }

    /// Calls a function of a service of a node, this one included (`LT_RPC`), and copies the result into `answer`; returns
    /// its length. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    ///
    /// # Errors
    /// [`RequestError::Call`] says whether the call may have been executed; `Refused(UnknownFunction)` in it means that
    /// nobody serves the function there. [`RequestError::AnswerTooLong`] if `answer` is too short: the call was executed.
    pub fn call(
        &self,
        node: &str,
        service: impl AsRef<[u8]>,
        function: u16,
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<usize, RequestError> {
        self.call_within(self.node().config.timeout, (node, service.as_ref(), function), request, answer)
    }

    /// As [`call`](Tier::call), with a time of its own: to a function (node, service, number).
    pub fn call_within(
        &self,
        time: Duration,
        (node, service, function): (&str, &[u8], u16),
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<usize, RequestError> {
        let (to, this) = (self.numbered(node)?, self.node());
        let until = this.fabric.host().now().saturating_add(nanos(time));
        let bytes = encode_call(&self.open_name(service)?, function, self.caller(), false, request)?;
        this.call_service((to, self.class()), &bytes, until, |result| match answer.get_mut(..result.len()) {
            Some(place) => {
                place.copy_from_slice(result);
                Ok(result.len())
            }
            None => Err(RequestError::AnswerTooLong { length: result.len(), room: answer.len() }),
        })
    }

    /// Sends a request whose result nobody waits for (`LT_send`). Returns when the node has queued it for the server;
    /// whether the server executes it is not known. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at
    /// most.
    pub fn send(
        &self,
        node: &str,
        service: impl AsRef<[u8]>,
        function: u16,
        request: &[u8],
    ) -> Result<(), RequestError> {
        let (to, this) = (self.numbered(node)?, self.node());
        let bytes = encode_call(&self.open_name(service)?, function, self.caller(), true, request)?;
        this.call_service((to, self.class()), &bytes, this.until(), |_| Ok(()))
    }

    /// Calls a function of a service of several nodes at the same time (section 8.4), and returns their results in the
    /// order of the nodes. Blocks until all have answered, or until [`TierConfig::timeout`](crate::TierConfig::timeout). A
    /// node that has not answered by then has an error in its place.
    pub fn multicast(
        &self,
        nodes: &[impl AsRef<str>],
        service: impl AsRef<[u8]>,
        function: u16,
        request: &[u8],
    ) -> Result<Vec<Result<Vec<u8>, RequestError>>, RequestError> {
        let service = service.as_ref();
        let call = |node| EachCall { node, service, function, request };
        let calls: Vec<_> = nodes.iter().map(|node| call(node.as_ref())).collect();
        self.call_each(self.node().config.timeout, &calls)
    }

    /// Makes several calls at the same time, each to a function of its own (section 8.4), and returns their results in the
    /// order of the calls. Blocks until all have ended: for `time` at most. A call without an answer by then has an error
    /// in its place.
    ///
    /// # Errors
    /// A call that cannot be made; then none was.
    pub fn call_each(
        &self,
        time: Duration,
        calls: &[EachCall<'_>],
    ) -> Result<Vec<Result<Vec<u8>, RequestError>>, RequestError> {
        let this = self.node();
        let mut encoded = Vec::with_capacity(calls.len());
        for EachCall { node, service, function, request } in calls {
            let bytes = encode_call(&self.open_name(service)?, *function, self.caller(), false, request)?;
            encoded.push((self.numbered(node)?, bytes));
        }
        let (host, class) = (this.fabric.host(), self.class());
        let mut turns = Vec::with_capacity(encoded.len());
        for (_, bytes) in &encoded {
            match this.qos.begin_call(host, class, bytes.len() as u64, || nanos(time)) {
                Ok(turn) => turns.push(turn),
                Err(over) => {
                    turns.into_iter().for_each(|turn| this.qos.end_call(host, turn, None));
                    return Err(over.into());
                }
            }
        }
        let mut left = time;
        if let Some(from) = turns.iter().filter_map(|turn| turn.from).max() {
            let until = host.now().saturating_add(nanos(time));
            host.sleep(from.min(until));
            left = Duration::from_nanos(until.saturating_sub(host.now()));
        }
        let to: Vec<_> =
            encoded.iter().zip(&turns).map(|((node, bytes), turn)| (*node, turn.link, &**bytes)).collect();
        let outcomes = this.call_all(&to, SERVICE_CALL, left);
        // The slowest one says nothing about the others' round trips.
        turns.into_iter().for_each(|turn| this.qos.end_call(host, turn, None));
        let named = |((to, ..), outcome): (&(NodeId, Link, &[u8]), Option<_>)| {
            let outcome = outcome.unwrap_or(HOST_ENDED);
            outcome.map_err(|source| this.call_failed(*to, source))
        };
        Ok(to.iter().zip(outcomes).map(named).collect())
    }

    /// Returns the names of the nodes at which a service is registered, this one first. Asks all nodes of the list at the
    /// same time; one that does not answer counts as not serving it. Blocks until
    /// [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    pub fn servers(&self, service: impl AsRef<[u8]>) -> Result<Vec<String>, RequestError> {
        let this = self.node();
        let found = this.find_servers(&self.open_name(service)?, this.config.timeout);
        Ok(found.into_iter().map(|node| this.name_of(node)).collect())
    }
}
