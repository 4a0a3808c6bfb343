//! Calls to services of any node: `LT_RPC`, `LT_send` and multicast (table 1, section 8.4).

use crate::buffer::Buffer;
use crate::calls::HOST_ENDED;
use crate::error::RequestError;
use crate::forward::Link;
use crate::node::Node;
use crate::qos::Class;
use crate::rings::{Placed, RingUse};
use crate::seats::Use;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_rpc::{CallError, Cause};
use dunlin_tier::call::{MAX_CALL, SERVICE_CALL};
use dunlin_tier::message::{CALL, Reply, Request};
use dunlin_tier::{CallAnswer, CallHead, Name, NodeId, Principal};
use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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

/// The request of a call.
pub(crate) enum CallRequest<'a, F: Fabric> {
    Bytes(&'a [u8]),
    /// In registered memory, from which the NIC takes a long one.
    Buffer(&'a mut Buffer<F>, Range<usize>),
}

impl<F: Fabric> CallRequest<'_, F> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            CallRequest::Bytes(bytes) => bytes,
            CallRequest::Buffer(buffer, range) => &buffer[range.clone()],
        }
    }
}

/// The caller's room for the result of a call.
pub(crate) enum CallRoom<'a, F: Fabric> {
    /// Nobody wants the result.
    Nothing,
    Bytes(&'a mut [u8]),
    /// In registered memory, into which the NIC puts a long one.
    Buffer(&'a mut Buffer<F>, Range<usize>),
}

impl<F: Fabric> CallRoom<'_, F> {
    fn length(&self) -> usize {
        match self {
            CallRoom::Nothing => 0,
            CallRoom::Bytes(bytes) => bytes.len(),
            CallRoom::Buffer(_, range) => range.len(),
        }
    }

    fn bytes(&mut self) -> Option<&mut [u8]> {
        match self {
            CallRoom::Nothing => None,
            CallRoom::Bytes(bytes) => Some(bytes),
            CallRoom::Buffer(buffer, range) => Some(&mut buffer[range.clone()]),
        }
    }
}

/// The outcomes of calls to several nodes, in the order of the nodes.
pub(crate) type Outcomes = Vec<Option<Result<Vec<u8>, CallError>>>;

impl<F: Fabric> Node<F> {
    /// Calls a service of a node and copies the result into `answer`, if the caller wants one; returns its length. The call
    /// waits for its turn and for the allowance of the principal. Long payloads go through the ring.
    fn call_service(
        &self,
        (to, class): (NodeId, &Class),
        mut head: CallHead,
        (mut request, mut answer): (CallRequest<'_, F>, CallRoom<'_, F>),
        until: Nanos,
    ) -> Result<usize, RequestError> {
        let host = self.fabric.host();
        let left = || until.saturating_sub(host.now());
        let bytes = (head.length() + request.bytes().len()) as u64;
        let turn = self.qos.begin_call(host, class, bytes, left)?;
        if let Some(from) = turn.from {
            host.sleep(from.min(until));
        }
        let since = self.qos.call_goes_out(host);
        let placed = self.place_call(to, class, &mut request, answer.length(), until);
        let message = encode(&mut head, placed.as_ref(), request.bytes());
        let take = |result: &[u8]| self.take_answer((to, placed.as_ref()), result, answer.bytes());
        let mut result = self.call_by((to, turn.link), &message, until, take);
        if let (Ok(Received::InRing(length)), Some(placed)) = (&result, &placed) {
            let length = *length;
            result = self
                .read_result((to, class), placed, (&mut answer, length), until)
                .map(|()| Received::Copied(length));
        }
        if let Some(placed) = placed {
            self.leave_range(placed, result.as_ref().map_or_else(has_ended, |_| true));
        }
        self.qos.end_call(host, turn, since.filter(|_| result.is_ok()));
        result.map(|(Received::Copied(length) | Received::InRing(length))| length)
    }

    /// Takes a result out of its message, unless it lies in the ring.
    fn take_answer(
        &self,
        (to, placed): (NodeId, Option<&Placed>),
        result: &[u8],
        answer: Option<&mut [u8]>,
    ) -> Result<Received, RequestError> {
        let result = match placed.filter(|placed| placed.place.room > 0) {
            None => result,
            Some(placed) => match CallAnswer::parse(result) {
                Ok(CallAnswer::Here(result)) => result,
                Ok(CallAnswer::InRing(length)) if length <= placed.place.room => {
                    return Ok(Received::InRing(length as usize));
                }
                _ => return Err(self.misfit(to)),
            },
        };
        let Some(answer) = answer else { return Ok(Received::Copied(0)) };
        let (length, room) = (result.len(), answer.len());
        let place = answer.get_mut(..length).ok_or(RequestError::AnswerTooLong { length, room })?;
        place.copy_from_slice(result);
        self.rings.note_result(to, length);
        Ok(Received::Copied(length))
    }

    /// Takes a result out of the message of its call or out of the ring, and leaves the range of the call.
    fn take_result(
        &self,
        (to, class): (NodeId, &Class),
        placed: Option<Placed>,
        outcome: Result<Vec<u8>, RequestError>,
        until: Nanos,
    ) -> Result<Vec<u8>, RequestError> {
        let result = match (outcome, &placed) {
            (Ok(message), Some(placed)) if placed.place.room > 0 => {
                self.result_of((to, class), placed, message, until)
            }
            (outcome, _) => outcome.inspect(|result| self.rings.note_result(to, result.len())),
        };
        if let Some(placed) = placed {
            self.leave_range(placed, result.as_ref().map_or_else(has_ended, |_| true));
        }
        result
    }

    fn result_of(
        &self,
        (to, class): (NodeId, &Class),
        placed: &Placed,
        mut message: Vec<u8>,
        until: Nanos,
    ) -> Result<Vec<u8>, RequestError> {
        match CallAnswer::parse(&message) {
            Ok(CallAnswer::Here(result)) => {
                let (head, length) = (message.len() - result.len(), result.len());
                self.rings.note_result(to, length);
                drop(message.drain(..head));
                Ok(message)
            }
            Ok(CallAnswer::InRing(length)) if length <= placed.place.room => {
                let mut result = vec![0; length as usize];
                let into = (&mut CallRoom::Bytes(&mut result), length as usize);
                self.read_result((to, class), placed, into, until)?;
                Ok(result)
            }
            _ => Err(self.misfit(to)),
        }
    }

    /// Reads a result out of the ring.
    fn read_result(
        &self,
        (to, class): (NodeId, &Class),
        placed: &Placed,
        into: (&mut CallRoom<'_, F>, usize),
        until: Nanos,
    ) -> Result<(), RequestError> {
        self.read_range(placed, class, into, until).map_err(|error| {
            let node = self.name_of(to);
            tracing::debug!(target: "dunlin::tier", node, %error, "a result was not read");
            let is_late = self.fabric.host().now() >= until;
            let cause = if is_late { Cause::DeadlineExceeded } else { Cause::ConnectionLost };
            RequestError::Call { node, source: CallError::Executed(cause) }
        })
    }

    fn call_by<T>(
        &self,
        (to, link): (NodeId, Link),
        bytes: &[u8],
        until: Nanos,
        take: impl FnOnce(&[u8]) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        if link != Link::Services || (self.roster.is_dynamic && to != self.me) {
            let result = self.exchange((to, link), SERVICE_CALL, bytes, until)?;
            return take(&result);
        }
        let outcome = self.call_in_seat((to, Use::Calls), (SERVICE_CALL, bytes), (until, until), take)?;
        outcome.unwrap_or_else(|source| Err(RequestError::Call { node: self.name_of(to), source }))
    }

    /// Makes calls to several nodes at the same time, each with its bytes, and waits until all have ended. A call has no
    /// outcome if the host ends first: a thread of a killed process in the simulator does not wait.
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

/// A result that has come.
enum Received {
    /// It is where the caller wants it.
    Copied(usize),
    /// It has to be read out of the ring.
    InRing(usize),
}

/// Returns whether the serving node does not use the payloads of a failed call any more.
fn has_ended(error: &RequestError) -> bool {
    let is_answer = matches!(
        error,
        RequestError::AnswerTooLong { .. } | RequestError::Call { source: CallError::Application { .. }, .. }
    );
    is_answer || !error.may_have_executed()
}

/// Encodes the message of a call: with its request, unless that lies in the ring.
pub(crate) fn encode(head: &mut CallHead, placed: Option<&Placed>, request: &[u8]) -> Vec<u8> {
    head.ring = placed.map(|placed| placed.place);
    let is_placed = head.ring.is_some_and(|ring| ring.request.is_some());
    head.encode(if is_placed { &[] } else { request })
}

/// Checks a call with a request of `length` bytes, and makes its head.
pub(crate) fn head(
    service: Name,
    function: u16,
    caller: &Principal,
    is_one_way: bool,
    length: usize,
) -> Result<CallHead, RequestError> {
    if length as u64 > u64::from(MAX_CALL) {
        return Err(RequestError::Limit { what: "bytes in one request", limit: MAX_CALL.into() });
    }
    Ok(CallHead { service, function, caller: caller.clone(), is_one_way, ring: None })
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
        let head = head(self.open_name(service)?, function, self.caller(), false, request.len())?;
        let payloads = (CallRequest::Bytes(request), CallRoom::Bytes(answer));
        this.call_service((to, self.class()), head, payloads, until)
    }

    /// As [`call_within`](Tier::call_within), with the request in a range of a buffer, and the result into one of another
    /// buffer: the NIC takes a long request and puts a long result in place, without a copy at this node.
    ///
    /// # Errors
    /// As [`call`](Tier::call). [`RequestError::Buffer`]: a buffer is of another node, or a range leaves it.
    pub fn call_in_place(
        &self,
        time: Duration,
        (node, service, function): (&str, &[u8], u16),
        (request, from): (&mut Buffer<F>, impl RangeBounds<usize>),
        (answer, into): (&mut Buffer<F>, impl RangeBounds<usize>),
    ) -> Result<usize, RequestError> {
        let (to, this) = (self.numbered(node)?, self.node());
        let until = this.fabric.host().now().saturating_add(nanos(time));
        let (from, into) = (request.range(this, &from)?, answer.range(this, &into)?);
        let head = head(self.open_name(service)?, function, self.caller(), false, from.len())?;
        let payloads = (CallRequest::Buffer(request, from), CallRoom::Buffer(answer, into));
        this.call_service((to, self.class()), head, payloads, until)
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
        let head = head(self.open_name(service)?, function, self.caller(), true, request.len())?;
        let payloads = (CallRequest::Bytes(request), CallRoom::Nothing);
        this.call_service((to, self.class()), head, payloads, this.until()).map(drop)
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
        let mut heads = Vec::with_capacity(calls.len());
        for EachCall { node, service, function, request } in calls {
            let head = head(self.open_name(service)?, *function, self.caller(), false, request.len())?;
            heads.push((self.numbered(node)?, head, *request));
        }
        let (host, class) = (this.fabric.host(), self.class());
        let mut turns = Vec::with_capacity(heads.len());
        for (_, head, request) in &heads {
            let bytes = (head.length() + request.len()) as u64;
            match this.qos.begin_call(host, class, bytes, || nanos(time)) {
                Ok(turn) => turns.push(turn),
                Err(over) => {
                    turns.into_iter().for_each(|turn| this.qos.end_call(host, turn, None));
                    return Err(over.into());
                }
            }
        }
        let until = host.now().saturating_add(nanos(time));
        if let Some(from) = turns.iter().filter_map(|turn| turn.from).max() {
            host.sleep(from.min(until));
        }
        let mut messages = Vec::with_capacity(heads.len());
        for (to, head, request) in &mut heads {
            let room = this.rings.room_for(*to, MAX_CALL as usize);
            let placed = this.place_call(*to, class, &mut CallRequest::Bytes(request), room, until);
            messages.push((encode(head, placed.as_ref(), request), placed));
        }
        let to: Vec<_> = (heads.iter().zip(&messages).zip(&turns))
            .map(|(((node, ..), (message, _)), turn)| (*node, turn.link, &**message))
            .collect();
        let left = Duration::from_nanos(until.saturating_sub(host.now()));
        let outcomes = this.call_all(&to, SERVICE_CALL, left);
        // The slowest one says nothing about the others' round trips.
        turns.into_iter().for_each(|turn| this.qos.end_call(host, turn, None));
        let named = |((to, ..), outcome): (&(NodeId, Link, &[u8]), Option<_>)| {
            let outcome = outcome.unwrap_or(HOST_ENDED);
            outcome.map_err(|source| this.call_failed(*to, source))
        };
        let outcomes: Vec<_> = to.iter().zip(outcomes).map(named).collect();
        let ended = heads.iter().zip(messages).zip(outcomes);
        Ok(ended
            .map(|(((to, ..), (_, placed)), outcome)| this.take_result((*to, class), placed, outcome, until))
            .collect())
    }

    /// Returns the use of the ring for long payloads of calls to a node (section 5.1). Does not block.
    pub fn ring(&self, node: &str) -> Result<RingUse, RequestError> {
        Ok(self.node().rings.used(self.numbered(node)?))
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
