//! Services of this process, and calls to services of any node (table 1, section 5.1).

mod in_place;

use crate::attachment::{Attachment, Connection, Connections, Failed};
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{ApplicationCode, Status};
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::Problem;
use dunlin_tier::process::list::BufferPart;
use dunlin_tier::process::service::{Given, Handed, Outcome, Room, ServiceRequest, parse_servers};
use dunlin_tier::{Name, Priority};
use dunlin_tier_node::pool::{Pool, Taken};
use dunlin_tier_node::{AnyCalls, EachCall, ReceiveError, RequestError};
use std::sync::Arc;
use std::time::Duration;

/// Threads that receive from one registration at the same time; further ones wait.
const RECEIVERS: usize = 16;
/// The time of the request by which a dropped registration or request is given up.
const GIVE_UP_TIME: Duration = Duration::from_secs(1);

fn nothing(answer: &[u8]) -> Result<(), Malformed> {
    if answer.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// Checks a call.
fn invocation<'a>(
    (node, service, function): (&'a str, &[u8], u16),
    (is_one_way, priority): (bool, Priority),
    (bytes, room): (Given<'a>, Room),
) -> Result<ServiceRequest<'a>, RequestError> {
    if node.len() > 255 {
        return Err(RequestError::NoNode(node.to_owned()));
    }
    if length_of(&bytes) > MAX_CALL as usize {
        return Err(RequestError::Limit { what: "bytes in one request", limit: MAX_CALL.into() });
    }
    let service = Name::new(service)?;
    Ok(ServiceRequest::Invoke { node, service, function, is_one_way, priority, room, bytes })
}

fn length_of(bytes: &Given<'_>) -> usize {
    match bytes {
        Given::Here(bytes) => bytes.len(),
        Given::In(part) => part.length as usize,
    }
}

/// Returns the room of an answer for a result of at most `room` bytes.
fn answer_of(room: usize) -> Room {
    Room::Answer(u32::try_from(room).unwrap_or(MAX_CALL).min(MAX_CALL))
}

/// Returns the error of a call to a node.
fn of_call(failed: Failed, node: &str) -> RequestError {
    match failed {
        // The call failed, and not the way to the node.
        Failed::Request(RequestError::Call { source, .. }) if !node.is_empty() => {
            RequestError::Call { node: node.to_owned(), source }
        }
        other => other.into(),
    }
}

impl<P: Fabric> Tier<P> {
    /// Registers a function of a service at the node of this host (`LT_regRPC`): threads of this process
    /// [`receive`](Calls::receive) its calls, from processes of any node. The registration ends with the value, with the
    /// process in any way, and with the node. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at
    /// most.
    ///
    /// # Errors
    /// [`RequestError::Registered`] if the function is registered at this node, by whomever.
    pub fn register(&self, service: impl AsRef<[u8]>, function: u16) -> Result<Calls<P>, RequestError> {
        let attachment = self.attachment();
        let request = ServiceRequest::Register { service: Name::new(service)?, function };
        let number = |answer: &[u8]| answer.try_into().map(u64::from_le_bytes).map_err(|_| Malformed);
        let registration = attachment.serve_call(&request, attachment.config.timeout, number)?;
        let connections = Pool::new(attachment.fabric.host(), RECEIVERS);
        Ok(Calls { attachment: Arc::clone(attachment), registration, connections })
    }

    /// Calls a function of a service of a node (`LT_RPC`), and copies the result into `answer`; returns its length. An
    /// empty name is that of this host's node. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at
    /// most.
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
        self.call_within(
            self.attachment().config.timeout,
            (node, service.as_ref(), function),
            request,
            answer,
        )
    }

    /// As [`call`](Tier::call), with a time of its own: to a function (node, service, number).
    pub fn call_within(
        &self,
        time: Duration,
        to: (&str, &[u8], u16),
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<usize, RequestError> {
        let room = answer.len();
        let copied = self.invoke(time, to, false, (request, room), |result| {
            Ok(match answer.get_mut(..result.len()) {
                Some(place) => {
                    place.copy_from_slice(result);
                    Ok(result.len())
                }
                None => Err(RequestError::AnswerTooLong { length: result.len(), room }),
            })
        });
        copied?
    }

    /// Sends a request whose result nobody waits for (`LT_send`). Returns when the node has queued it for the server;
    /// whether the server executes it is not known. Blocks until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    pub fn send(
        &self,
        node: &str,
        service: impl AsRef<[u8]>,
        function: u16,
        request: &[u8],
    ) -> Result<(), RequestError> {
        let to = (node, service.as_ref(), function);
        self.invoke(self.attachment().config.timeout, to, true, (request, 0), nothing)
    }

    fn invoke<T>(
        &self,
        time: Duration,
        (node, service, function): (&str, &[u8], u16),
        is_one_way: bool,
        payloads: (&[u8], usize),
        take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, RequestError> {
        let payloads = (Given::Here(payloads.0), answer_of(payloads.1));
        let request = invocation((node, service, function), (is_one_way, self.priority()), payloads)?;
        self.attachment().serve_call(&request, time, take).map_err(|failed| of_call(failed, node))
    }

    /// Makes several calls at the same time, each to a function of its own (LITE section 8.4), and returns their results in
    /// the order of the calls. Blocks until all have ended: for `time` at most. A call without an answer by then has an
    /// error in its place.
    ///
    /// # Errors
    /// A call that cannot be made; then none was. The node cannot be reached.
    pub fn call_each(
        &self,
        time: Duration,
        calls: &[EachCall<'_>],
    ) -> Result<Vec<Result<Vec<u8>, RequestError>>, RequestError> {
        let mut requests = Vec::with_capacity(calls.len());
        for EachCall { node, service, function, request } in calls {
            let payloads = (Given::Here(request), Room::Answer(MAX_CALL));
            requests.push(invocation((node, service, *function), (false, self.priority()), payloads)?);
        }
        let outcomes = self.attachment().call_each(&requests, time)?;
        let named = |(call, outcome): (&EachCall<'_>, Result<Vec<u8>, Failed>)| {
            outcome.map_err(|failed| of_call(failed, call.node))
        };
        Ok(calls.iter().zip(outcomes).map(named).collect())
    }

    /// Returns the names of the nodes at which a service is registered, the own one first. Asks all nodes; one that does
    /// not answer counts as not serving it. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    pub fn servers(&self, service: impl AsRef<[u8]>) -> Result<Vec<String>, RequestError> {
        let request = ServiceRequest::Servers { service: Name::new(service)? };
        Ok(self.attachment().serve_call(&request, self.attachment().config.timeout, parse_servers)?)
    }
}

/// A function of a service that this process serves: [`Tier::register`]. Any number of threads may receive; 16 of them
/// wait at the node at the same time. Dropping it ends the registration: calls that wait are refused, and the callers of
/// requests that were received and are not answered hear that the call may have been executed. That is a request to the
/// node, which blocks for 1 s at most.
#[derive(Debug)]
pub struct Calls<P: Fabric = ShmFabric> {
    attachment: Arc<Attachment<P>>,
    registration: u64,
    connections: Connections<P>,
}

/// The memory for a request that is received.
#[derive(Debug)]
enum Place<'a> {
    Bytes(&'a mut [u8]),
    Buffer(BufferPart),
}

impl Place<'_> {
    fn room(&self) -> Room {
        match self {
            Place::Bytes(buffer) => Room::Answer(u32::try_from(buffer.len()).unwrap_or(u32::MAX)),
            Place::Buffer(part) => Room::In(*part),
        }
    }
}

/// The fields of [`Handed`] without its bytes.
#[derive(Debug)]
struct Received {
    number: u64,
    length: usize,
    caller: String,
    /// On the host's clock.
    deadline: Option<u64>,
}

impl<P: Fabric> Calls<P> {
    /// Receives the next request into `buffer` (`LT_recvRPC`). Blocks until there is one.
    ///
    /// # Errors
    /// [`ReceiveError::TooLong`] if the request is longer than the buffer: it stays the next one.
    /// [`ReceiveError::Node`] if the node has ended, or does not know this process any more.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Request<'_, P>, ReceiveError> {
        self.ask(buffer, u64::MAX)
    }

    /// As [`receive`](Calls::receive), for `time` at most; then [`ReceiveError::NoCall`]. The node measures the time, so a
    /// request that it hands over in the last moment is received.
    pub fn receive_within(&self, buffer: &mut [u8], time: Duration) -> Result<Request<'_, P>, ReceiveError> {
        self.ask(buffer, nanos(time))
    }

    /// As [`receive`](Calls::receive), but returns [`ReceiveError::NoCall`] if there is no request now.
    pub fn try_receive(&self, buffer: &mut [u8]) -> Result<Request<'_, P>, ReceiveError> {
        self.ask(buffer, 0)
    }

    fn ask(&self, buffer: &mut [u8], time: Nanos) -> Result<Request<'_, P>, ReceiveError> {
        self.ask_into(&mut Place::Bytes(buffer), time)
    }

    fn ask_into(&self, into: &mut Place<'_>, time: Nanos) -> Result<Request<'_, P>, ReceiveError> {
        let host = self.attachment.fabric.host();
        let mut connection = match self.connections.take(host, u64::MAX).ok_or(RequestError::Busy)? {
            Taken::Value(connection) => connection,
            Taken::Make(number) => self
                .attachment
                .another(self.attachment.config.timeout)
                .inspect_err(|_| self.connections.failed(number))
                .map_err(RequestError::from)?,
        };
        let request = ServiceRequest::Receive { registration: self.registration, room: into.room(), time };
        match self.exchange(&mut connection, &request, into) {
            Ok(received) => Ok(Request { calls: self, connection: Some(connection), received }),
            Err(error) => {
                self.connections.give(connection);
                Err(error)
            }
        }
    }

    /// Makes a request whose answer is the next request of a caller.
    fn exchange(
        &self,
        connection: &mut Connection<P>,
        request: &ServiceRequest<'_>,
        into: &mut Place<'_>,
    ) -> Result<Received, ReceiveError> {
        let host = self.attachment.fabric.host();
        let received = connection.serve(request, Duration::MAX, |answer| {
            let Handed { number, time_left, caller, length, request } = Handed::parse(answer)?;
            let length = length as usize;
            match into {
                Place::Bytes(buffer) => buffer
                    .get_mut(..length)
                    .filter(|place| place.len() == request.len())
                    .ok_or(Malformed)?
                    .copy_from_slice(request),
                Place::Buffer(part) if length > part.length as usize => return Err(Malformed),
                Place::Buffer(_) => {}
            }
            let deadline = time_left.map(|left| host.now().saturating_add(left));
            Ok(Received { number, length, caller: caller.to_owned(), deadline })
        });
        received.map_err(|failed| match failed {
            Failed::Nothing => ReceiveError::NoCall,
            Failed::Problem(Problem::TooLong { length, .. }) => {
                ReceiveError::TooLong { length: length as usize }
            }
            failed => ReceiveError::Node(failed.into()),
        })
    }
}

impl<P: Fabric> Drop for Calls<P> {
    fn drop(&mut self) {
        // Without an answer the node ends the registration with the process.
        let request = ServiceRequest::Withdraw { registration: self.registration };
        let _ = self.attachment.serve_call(&request, GIVE_UP_TIME, nothing);
    }
}

/// A request that was received. If it is dropped without an answer, the caller hears that the call may have been
/// executed.
#[derive(Debug)]
#[must_use = "a request that is dropped is not answered"]
pub struct Request<'a, P: Fabric = ShmFabric> {
    calls: &'a Calls<P>,
    /// None once it is answered.
    connection: Option<Connection<P>>,
    received: Received,
}

impl<'a, P: Fabric> Request<'a, P> {
    /// Returns the request's length in bytes: that of the front part of the buffer that was received into.
    pub fn len(&self) -> usize {
        self.received.length
    }

    /// Returns whether the request is empty.
    pub fn is_empty(&self) -> bool {
        self.received.length == 0
    }

    /// Returns the principal that called, as its node vouches for it.
    pub fn caller(&self) -> &str {
        &self.received.caller
    }

    /// Returns the time that is left until the caller's deadline; `None` without one, for a one-way call. Reads the
    /// clock.
    pub fn time_left(&self) -> Option<Duration> {
        let now = self.calls.attachment.fabric.host().now();
        self.received.deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)))
    }

    fn end(&mut self, outcome: Outcome, bytes: &[u8]) -> Result<(), RequestError> {
        Ok(self.end_with(outcome, Given::Here(bytes))?)
    }

    fn end_with(&mut self, outcome: Outcome, bytes: Given<'_>) -> Result<(), Failed> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let (registration, number) = (self.calls.registration, self.received.number);
        let request = ServiceRequest::Reply { registration, number, outcome, next: None, bytes };
        let time =
            if outcome == Outcome::Dropped { GIVE_UP_TIME } else { self.calls.attachment.config.timeout };
        let told = connection.serve(&request, time, nothing);
        self.calls.connections.give(connection);
        told
    }

    /// Answers the call (`LT_replyRPC`). The answer to a one-way call, or to one whose caller's time is over, goes
    /// nowhere. Blocks until the node has it, or [`AttachConfig::timeout`](crate::AttachConfig::timeout).
    ///
    /// # Errors
    /// The node has ended, or does not know this process any more. The caller hears that the call may have been executed.
    pub fn reply(mut self, answer: &[u8]) -> Result<(), RequestError> {
        check(answer)?;
        self.end(Outcome::Result, answer)
    }

    /// Answers the call with an error of the service, whose bytes are cut to the size of a small result. For the caller
    /// the call was executed. Otherwise as [`reply`](Request::reply).
    pub fn fail(mut self, code: ApplicationCode, bytes: &[u8]) -> Result<(), RequestError> {
        check(bytes)?;
        self.end(Outcome::Failed(code.get()), bytes)
    }

    /// Refuses the call: for the caller it was not executed, except with [`Status::TooLarge`]. Otherwise as
    /// [`reply`](Request::reply).
    pub fn refuse(mut self, status: Status) -> Result<(), RequestError> {
        self.end(Outcome::Refused(status.to_wire()), &[])
    }

    /// Answers the call, and receives the next request into `buffer`: one message to the node, and one wake-up (section
    /// 5.2). Blocks until there is a request.
    ///
    /// # Errors
    /// As [`Calls::receive`]; the call was answered before, unless the node has ended.
    pub fn reply_and_receive(self, answer: &[u8], buffer: &mut [u8]) -> Result<Request<'a, P>, ReceiveError> {
        check(answer)?;
        self.end_and_receive(Given::Here(answer), &mut Place::Bytes(buffer))
    }

    fn end_and_receive(
        mut self,
        bytes: Given<'_>,
        into: &mut Place<'_>,
    ) -> Result<Request<'a, P>, ReceiveError> {
        let calls = self.calls;
        let Some(mut connection) = self.connection.take() else { return calls.ask_into(into, u64::MAX) };
        let request = ServiceRequest::Reply {
            registration: calls.registration,
            number: self.received.number,
            outcome: Outcome::Result,
            next: Some(into.room()),
            bytes,
        };
        match calls.exchange(&mut connection, &request, into) {
            Ok(received) => Ok(Request { calls, connection: Some(connection), received }),
            Err(error) => {
                calls.connections.give(connection);
                Err(error)
            }
        }
    }
}

/// Checks the length of an answer.
fn check(answer: &[u8]) -> Result<(), RequestError> {
    if answer.len() as u64 <= u64::from(MAX_CALL) {
        return Ok(());
    }
    Err(RequestError::Limit { what: "bytes in one answer", limit: MAX_CALL.into() })
}

impl<P: Fabric> Drop for Request<'_, P> {
    fn drop(&mut self) {
        // Without an answer the caller hears the same at its deadline.
        let _ = self.end(Outcome::Dropped, &[]);
    }
}

impl<P: Fabric> AnyCalls for Calls<P> {
    fn serve_one(
        &self,
        buffer: &mut [u8],
        answer: impl FnOnce(&str, &[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), ReceiveError> {
        let request = self.receive(buffer)?;
        let bytes = answer(request.caller(), &buffer[..request.len()]);
        let _ = match bytes {
            Some(bytes) => request.reply(&bytes),
            None => request.refuse(Status::Unauthorised),
        };
        Ok(())
    }
}
