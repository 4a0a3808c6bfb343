//! Processes that serve functions, and processes that call them (section 5.1). All of it runs on the worker that
//! received a request, and nothing waits: a receiver is a call that is answered when there is a request for it.

use super::registry::{Process, Registry};
use crate::buffer::{Lent, Place};
use crate::calling::head;
use crate::error::RequestError;
use crate::forward::Board;
use crate::node::Node;
use crate::passage::{Delivered, Forwarded, Sink, Source};
use crate::services::{Arrived, Asked, Body, Serves};
use crate::serving::not_registered;
use dunlin_fabric::{Address, Fabric, Host, Nanos, nanos};
use dunlin_rpc::{
    ApplicationCode, AsyncClient, Batching, CallError, Cause, ClientConfig, Incoming, Status, Taker,
};
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::exchange::Waiting;
use dunlin_tier::process::list::BufferPart;
use dunlin_tier::process::service::{
    self, Given, Handed, INVOKE, INVOKE_REFUSED, NOTHING, Outcome, ServiceRequest, encode_servers,
};
use dunlin_tier::process::{Problem, REFUSED};
use dunlin_tier::{Act, Exchange, ExchangeLimits, Kind, Name, NodeId, Priority, Remains};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time that a server has for a one-way call.
const ONE_WAY_TIME: Duration = Duration::from_secs(10);

/// The calls and receivers of a function.
type Waits<F, P> = Exchange<Asked<F>, Receiver<F, P>, Body<F>>;

/// A function that a process serves.
#[derive(Debug)]
pub(super) struct Served<F: Fabric, P: Fabric> {
    service: Name,
    function: u16,
    /// The number of the registration at the node.
    number: AtomicU64,
    exchange: Mutex<Waits<F, P>>,
    looks: Mutex<Looks>,
}

/// A receiver that waits.
#[derive(Debug)]
struct Receiver<F: Fabric, P: Fabric> {
    call: Incoming<P>,
    room: Room<F>,
    /// The end of its time.
    until: Nanos,
}

/// The memory for a request that a process receives.
#[derive(Debug)]
enum Room<F: Fabric> {
    /// The answer, which has this many bytes at most.
    Answer(u32),
    Buffer(Lent<F>),
}

impl<F: Fabric> Room<F> {
    fn length(&self) -> usize {
        match self {
            Room::Answer(room) => *room as usize,
            Room::Buffer(lent) => lent.length(),
        }
    }

    /// Puts a request into a buffer, or at the end of the answer; returns `false` if the caller has given it up.
    fn put(&self, request: &Body<F>, answer: &mut Vec<u8>) -> bool {
        match self {
            Room::Answer(_) => request.append_to(answer),
            Room::Buffer(lent) => request.copy_into(lent),
        }
    }
}

/// The bytes of an outcome.
enum Bytes<F: Fabric> {
    /// In a message, from this place on.
    Message(Vec<u8>, usize),
    /// In a buffer of the process.
    Buffer(Lent<F>),
}

/// Looks for receivers whose time is over.
#[derive(Debug)]
struct Looks {
    /// The time of the next one.
    next: Nanos,
    /// Looks to come. Those that are too early find nobody.
    pending: u32,
}

/// The most looks to come for one function. A process that asks for more waits for longer.
const MAX_LOOKS: u32 = 64;

/// A server of the engine that a process runs, for all functions of a service.
#[derive(Debug)]
pub(super) struct Hosted<P: Fabric> {
    service: Name,
    number: AtomicU64,
    board: Arc<Board<P>>,
    client: AsyncClient<P>,
}

impl<F: Fabric, P: Fabric> Serves<F> for Hosted<P> {
    fn offer(&self, Arrived { function, asked, request }: Arrived<F>) {
        // Without its bytes, the caller has given the call up.
        let Some(request) = request.bytes() else { return };
        let time = asked.answer.time_left().unwrap_or(ONE_WAY_TIME);
        let done = move |outcome| asked.answer.relay(outcome);
        self.board.call((&self.client, None), function, &request, time, Box::new(done));
    }
}

/// A registration of a process.
#[derive(Debug)]
pub(super) enum Registered<F: Fabric, P: Fabric> {
    Function(Arc<Served<F, P>>),
    Server(Arc<Hosted<P>>),
}

impl<F: Fabric, P: Fabric> Clone for Registered<F, P> {
    fn clone(&self) -> Self {
        match self {
            Registered::Function(served) => Registered::Function(Arc::clone(served)),
            Registered::Server(hosted) => Registered::Server(Arc::clone(hosted)),
        }
    }
}

impl<F: Fabric, P: Fabric> Registered<F, P> {
    /// Registers it at the node.
    fn register(&self, node: &Node<F>) -> Result<(), Problem> {
        let (service, function, place, serves): (_, _, _, Arc<dyn Serves<F>>) = match self {
            Registered::Function(one) => {
                (&one.service, Some(one.function), &one.number, Arc::clone(one) as _)
            }
            Registered::Server(one) => (&one.service, None, &one.number, Arc::clone(one) as _),
        };
        let number = node.services.register(service.clone(), function, serves);
        place.store(number.map_err(|error| not_registered(error, service))?, Ordering::Release);
        Ok(())
    }

    /// Returns the number of calls that wait for a receiver. The calls of a server wait at the server.
    pub(super) fn queued(&self) -> u32 {
        match self {
            Registered::Function(served) => served.exchange().counts().0 as u32,
            Registered::Server(_) => 0,
        }
    }

    /// A connection has ended: its receivers leave.
    pub(super) fn leave(&self, session: u64) {
        if let Registered::Function(served) = self {
            served.leave(session);
        }
    }

    /// The process withdraws it, or has ended.
    pub(super) fn end(&self, node: &Node<F>) {
        match self {
            Registered::Function(served) => served.end(node),
            // The end of the server, or of the connection to it, ends its calls.
            Registered::Server(hosted) => {
                node.services.withdraw(&hosted.service, None, hosted.number.load(Ordering::Acquire));
            }
        }
    }
}

fn fail<P: Fabric>(call: Incoming<P>, problem: &Problem) {
    let code = if call.function == INVOKE { INVOKE_REFUSED } else { REFUSED };
    match ApplicationCode::new(code) {
        Some(code) => call.fail(code, problem.encode()),
        None => call.refuse(Status::Malformed),
    }
}

type Acts<F, P> = Vec<Act<Asked<F>, Receiver<F, P>, Body<F>>>;

/// Carries out what an exchange decided. Returns the receivers of calls that their callers have given up, with the numbers
/// of these calls.
fn settle<F: Fabric, P: Fabric>(
    acts: Acts<F, P>,
    time_left: impl Fn(u64) -> Told,
) -> Vec<(Receiver<F, P>, u64)> {
    let mut without = Vec::new();
    for act in acts {
        match act {
            Act::Hand { receiver, number, request } => {
                let Told { caller, time_left } = time_left(number);
                let time_left = time_left.map(nanos);
                let length = request.length() as u32;
                let handed = Handed { number, time_left, caller: &caller, length, request: &[] };
                let mut answer = handed.encode();
                match receiver.room.put(&request, &mut answer) {
                    true => receiver.call.reply(answer),
                    false => without.push((receiver, number)),
                }
            }
            Act::TooLong { receiver, length } => {
                fail(receiver.call, &Problem::TooLong { length: length as u64, limit: 0 });
            }
            Act::Nothing(receiver) => receiver.has_nothing(),
            Act::Expired(asked) => asked.answer.refuse(Status::DeadlineExceeded),
            Act::Overloaded(asked) => asked.answer.refuse(Status::Overloaded),
            Act::Forgotten(asked) => drop(asked),
        }
    }
    without
}

impl<F: Fabric, P: Fabric> Receiver<F, P> {
    fn has_nothing(self) {
        match ApplicationCode::new(NOTHING) {
            Some(code) => self.call.fail(code, Vec::new()),
            None => self.call.refuse(Status::Malformed),
        }
    }
}

/// The properties of a call that its receiver gets.
struct Told {
    caller: String,
    time_left: Option<Duration>,
}

impl<F: Fabric, P: Fabric> Served<F, P> {
    fn exchange(&self) -> MutexGuard<'_, Waits<F, P>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the exchange, and carries out what it decides with the lock held: answers only go into inboxes.
    fn change(&self, change: impl FnOnce(&mut Waits<F, P>) -> Acts<F, P>) {
        let mut exchange = self.exchange();
        let acts = change(&mut exchange);
        let carry_out = |exchange: &Waits<F, P>, acts| {
            settle(acts, |number| {
                let asked = exchange.taken(number);
                let caller = asked.map(|asked| asked.caller.as_str().to_owned()).unwrap_or_default();
                Told { caller, time_left: asked.and_then(|asked| asked.answer.time_left()) }
            })
        };
        let mut without = carry_out(&exchange, acts);
        // Each of them takes a call out of the exchange, or waits.
        while let Some((receiver, number)) = without.pop() {
            drop(exchange.answer(number));
            let room = receiver.room.length();
            let acts = exchange.receive(receiver, room, true, Asked::is_over);
            without.extend(carry_out(&exchange, acts));
        }
    }

    /// Hands the next request to a receiver that waits for some nanoseconds.
    fn receive(self: &Arc<Self>, node: &Arc<Node<F>>, call: Incoming<P>, room: Room<F>, time: Nanos) {
        let is_bounded = time > 0 && time < Nanos::MAX;
        let until = if is_bounded { node.fabric.host().now().saturating_add(time) } else { Nanos::MAX };
        let length = room.length();
        let receiver = Receiver { call, room, until };
        self.change(|exchange| exchange.receive(receiver, length, time > 0, Asked::is_over));
        if is_bounded {
            self.look_at(node, until);
        }
    }

    /// Has receivers whose time is over hear so.
    fn look_at(self: &Arc<Self>, node: &Arc<Node<F>>, until: Nanos) {
        {
            let mut looks = self.looks();
            if until >= looks.next || looks.pending >= MAX_LOOKS || node.is_over() {
                return;
            }
            (looks.next, looks.pending) = (until, looks.pending + 1);
        }
        let (own, of) = (Arc::clone(self), Arc::clone(node));
        node.delays.at(node.fabric.host(), until, Box::new(move || own.look(&of)));
    }

    fn look(self: &Arc<Self>, node: &Arc<Node<F>>) {
        let now = node.fabric.host().now();
        {
            let mut looks = self.looks();
            looks.pending -= 1;
            if now >= looks.next {
                looks.next = Nanos::MAX;
            }
        }
        let (late, next) = {
            let mut exchange = self.exchange();
            let late = exchange.leave(|receiver| receiver.until <= now);
            (late, exchange.receivers().map(|receiver| receiver.until).min())
        };
        late.into_iter().for_each(Receiver::has_nothing);
        if let Some(next) = next.filter(|next| *next < Nanos::MAX) {
            self.look_at(node, next);
        }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the caller of a request.
    fn answer(&self, number: u64, outcome: Outcome, bytes: Bytes<F>) {
        // An answer to nobody goes nowhere, as one whose caller's time is over.
        let answered = self.exchange().answer(number);
        let Some(caller) = answered.map(|asked| asked.answer) else { return };
        match (outcome, bytes) {
            (Outcome::Result, Bytes::Message(message, at)) => caller.reply_from(message, at),
            (Outcome::Result, Bytes::Buffer(lent)) => caller.reply_lent(&lent),
            (Outcome::Failed(code), bytes) => match ApplicationCode::new(code) {
                Some(code) => match bytes {
                    Bytes::Message(message, at) => caller.fail(code, &message[at..]),
                    Bytes::Buffer(lent) => caller.fail(code, &lent.to_vec()),
                },
                None => drop(caller),
            },
            (Outcome::Refused(status), _) => match Status::from_wire(status) {
                Some(Status::Ok | Status::Application(_)) | None => drop(caller),
                Some(status) => caller.refuse(status),
            },
            (Outcome::Dropped, _) => drop(caller),
        }
    }

    fn leave(&self, session: u64) {
        let gone = self.exchange().leave(|receiver| receiver.call.session == session);
        gone.into_iter().for_each(|receiver| receiver.call.refuse(Status::Draining));
    }

    /// The process withdraws the function, or has ended.
    fn end(&self, node: &Node<F>) {
        node.services.withdraw(&self.service, Some(self.function), self.number.load(Ordering::Acquire));
        let Remains { waiting, taken, receivers } = self.exchange().end();
        waiting.into_iter().for_each(|asked| asked.answer.refuse(Status::Draining));
        drop(taken);
        receivers.into_iter().for_each(|receiver| fail(receiver.call, &Problem::NotRegistered));
    }
}

impl<F: Fabric, P: Fabric> Serves<F> for Served<F, P> {
    fn offer(&self, Arrived { asked, request, .. }: Arrived<F>) {
        self.change(|exchange| exchange.offer(request, asked, Asked::is_over));
    }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Registers a function, or ends a registration.
    pub(super) fn registration(
        &self,
        process: &Process<F, P>,
        function: u16,
        payload: &[u8],
    ) -> Result<Vec<u8>, Problem> {
        let node = process.tier.node();
        let request = ServiceRequest::parse(function, payload).map_err(|_| Problem::Malformed)?;
        if let ServiceRequest::Register { service, .. } | ServiceRequest::RegisterServer { service, .. } =
            &request
            && !service.is_open_to(process.tier.caller())
        {
            return Err(Problem::OtherOwner(service.clone()));
        }
        match request {
            ServiceRequest::Register { service, function } => {
                let exchange =
                    Mutex::new(Exchange::new(ExchangeLimits::default(), process.tier.draw() as u32));
                let number = AtomicU64::new(0);
                let looks = Mutex::new(Looks { next: Nanos::MAX, pending: 0 });
                let served = Served { service, function, number, exchange, looks };
                self.enter(process, &Registered::Function(Arc::new(served)))
            }
            ServiceRequest::RegisterServer { service, address } => {
                let address: Address = address.parse().map_err(|_| Problem::Malformed)?;
                let config = ClientConfig {
                    // A process cannot lead the node to another one's server.
                    server: Some(process.peer.clone()),
                    max_response: MAX_CALL.into(),
                    program: format!("tier node {}", node.config.node),
                    ..ClientConfig::default()
                };
                let client = self.board.client(&address, Some(Batching::default()), config).map_err(|error| {
                    tracing::warn!(target: "dunlin::tier", %address, %error, "no client for a server of this host");
                    Problem::Malformed
                })?;
                let number = AtomicU64::new(0);
                let hosted = Hosted { service, number, board: Arc::clone(&self.board), client };
                self.enter(process, &Registered::Server(Arc::new(hosted)))
            }
            ServiceRequest::Ping => Ok(Vec::new()),
            ServiceRequest::Withdraw { registration } => {
                let served = process.services().remove(registration).ok_or(Problem::NotRegistered)?;
                served.end(node);
                Ok(Vec::new())
            }
            _ => Err(Problem::Malformed),
        }
    }

    fn enter(&self, process: &Process<F, P>, registered: &Registered<F, P>) -> Result<Vec<u8>, Problem> {
        let node = process.tier.node();
        let inserted = process.services().insert(registered.clone());
        let registration = inserted.map_err(|_| Problem::Services(self.config.limits.services))?;
        if let Err(problem) = registered.register(node) {
            process.services().remove(registration);
            return Err(problem);
        }
        // The process may have ended meanwhile, before the node knew the number.
        if process.services().get(registration).is_none() {
            registered.end(node);
        }
        Ok(registration.to_le_bytes().to_vec())
    }

    /// Finds the nodes that serve a service. Waits for all nodes.
    pub(super) fn servers(&self, process: &Process<F, P>, payload: &[u8]) -> Result<Vec<u8>, Problem> {
        use dunlin_tier::process::service::SERVERS;
        let Ok(ServiceRequest::Servers { service }) = ServiceRequest::parse(SERVERS, payload) else {
            return Err(Problem::Malformed);
        };
        Ok(encode_servers(&process.tier.servers(service.as_bytes())?))
    }
}

/// The part of the worker's service that answers later.
pub(super) struct Desk<F: Fabric, P: Fabric>(pub(super) Arc<Registry<F, P>>);

impl<F: Fabric, P: Fabric> Desk<F, P> {
    fn served(&self, session: u64, registration: u64) -> Result<Arc<Served<F, P>>, Problem> {
        let process = self.0.process(session)?;
        match process.services().get(registration) {
            Some(Registered::Function(served)) => Ok(Arc::clone(served)),
            _ => Err(Problem::NotRegistered),
        }
    }

    /// Begins an operation on a part of a buffer of a process. The longest one is that of a call's payload.
    fn lend(&self, session: u64, part: BufferPart, kind: Kind) -> Result<Lent<F>, Problem> {
        let BufferPart { length, buffer, at } = part;
        if length > MAX_CALL {
            return Err(Problem::TooLong { length: length.into(), limit: MAX_CALL });
        }
        let process = self.0.process(session)?;
        let region = process.region(buffer)?;
        let place = Place { region: &region, tenant: &process.buffers.tenant, at, length };
        Ok(place.lend(kind)?)
    }

    fn room(&self, session: u64, room: service::Room) -> Result<Room<F>, Problem> {
        Ok(match room {
            service::Room::Answer(room) => Room::Answer(room),
            service::Room::In(part) => Room::Buffer(self.lend(session, part, Kind::Write)?),
        })
    }

    /// Receives a request.
    fn receive(&self, call: Incoming<P>, registration: u64, room: service::Room, time: Nanos) {
        let served = self.served(call.session, registration);
        match served.and_then(|served| Ok((served, self.room(call.session, room)?))) {
            Ok((served, room)) => served.receive(self.0.tier.node(), call, room, time),
            Err(problem) => fail(call, &problem),
        }
    }

    /// Answers a request, and receives the next one if there is to be one.
    fn reply(
        &self,
        mut call: Incoming<P>,
        (registration, number): (u64, u64),
        (mut outcome, bytes): (Outcome, Payload),
        next: Option<service::Room>,
    ) {
        let served = match self.served(call.session, registration) {
            Ok(served) => served,
            Err(problem) => return fail(call, &problem),
        };
        let mut refused = None;
        let bytes = match bytes {
            Payload::Here(at) => Bytes::Message(std::mem::take(&mut call.payload), at),
            Payload::In(part) => match self.lend(call.session, part, Kind::Read) {
                Ok(lent) => Bytes::Buffer(lent),
                // The caller does not wait for a result that nobody has.
                Err(problem) => {
                    (outcome, refused) = (Outcome::Dropped, Some(problem));
                    Bytes::Message(Vec::new(), 0)
                }
            },
        };
        served.answer(number, outcome, bytes);
        match (refused, next) {
            (Some(problem), _) => fail(call, &problem),
            (None, Some(room)) => self.receive(call, registration, room, Nanos::MAX),
            (None, None) => call.reply(Vec::new()),
        }
    }

    /// Calls a service of a node, and answers as the call ends.
    fn invoke(
        &self,
        mut call: Incoming<P>,
        (node, service, function): (NodeId, Name, u16),
        (is_one_way, priority): (bool, Priority),
        (bytes, room): (Payload, service::Room),
    ) {
        let process = match self.0.process(call.session) {
            Ok(process) => process,
            Err(problem) => return fail(call, &problem),
        };
        if !service.is_open_to(process.tier.caller()) {
            return fail(call, &Problem::OtherOwner(service));
        }
        let class = match process.tier.class().with_priority(priority) {
            Ok(class) => class,
            Err(refused) => return fail(call, &refused.into()),
        };
        let Some(calling) = process.calling(self.0.config.limits.calls) else {
            return call.refuse(Status::Overloaded);
        };
        let room = match room {
            service::Room::Answer(_) if is_one_way => Ok(Sink::Answer(0)),
            service::Room::Answer(room) => Ok(Sink::Answer(room.min(MAX_CALL) as usize)),
            service::Room::In(part) => self.lend(call.session, part, Kind::Write).map(Sink::Buffer),
        };
        let request = match bytes {
            Payload::Here(at) => Ok(Source::Message(std::mem::take(&mut call.payload), at)),
            Payload::In(part) => self.lend(call.session, part, Kind::Read).map(Source::Buffer),
        };
        let (request, room) = match (request, room) {
            (Ok(request), Ok(room)) => (request, room),
            (Err(problem), _) | (_, Err(problem)) => return fail(call, &problem),
        };
        let this = process.tier.node();
        let head = match head(service, function, process.tier.caller(), is_one_way, request.length()) {
            Ok(head) => head,
            Err(error) => return fail(call, &error.into()),
        };
        let in_place = matches!(room, Sink::Buffer(_)).then(|| room.length());
        let forwarded = Forwarded { head, request, room };
        let time = call.time_left().unwrap_or(this.config.timeout);
        let turn = this.qos.begin_call(this.fabric.host(), &class, forwarded.length(), || nanos(time));
        let turn = match turn {
            Ok(turn) => turn,
            Err(over) => return fail(call, &RequestError::from(over).into()),
        };
        let done = move |outcome: Result<Delivered, CallError>| {
            drop(calling);
            match (outcome, in_place) {
                // No service may speak for the node.
                (Err(CallError::Application { code: INVOKE_REFUSED, .. }), _) => {
                    call.relay(Err(CallError::Executed(Cause::HandlerPanicked)));
                }
                (Err(error), _) => call.relay(Err(error)),
                (Ok(Delivered { bytes, .. }), None) => call.reply(bytes),
                (Ok(Delivered { length, .. }), Some(room)) if length <= room => {
                    call.reply((length as u32).to_le_bytes().to_vec());
                }
                (Ok(Delivered { length, .. }), Some(room)) => {
                    fail(call, &Problem::TooLong { length: length as u64, limit: room as u32 });
                }
            }
        };
        this.forward_in_turn((node, turn, class), forwarded, time, Box::new(done));
    }
}

/// The place of the bytes of a request of a process.
enum Payload {
    /// In the request, from here on.
    Here(usize),
    In(BufferPart),
}

impl Payload {
    fn new(request: &[u8], bytes: Given<'_>) -> Payload {
        match bytes {
            Given::Here(bytes) => Payload::Here(request.len() - bytes.len()),
            Given::In(part) => Payload::In(part),
        }
    }
}

impl<F: Fabric, P: Fabric> Taker<P> for Desk<F, P> {
    fn take(&self, call: Incoming<P>) {
        let Ok(request) = ServiceRequest::parse(call.function, &call.payload) else {
            return fail(call, &Problem::Malformed);
        };
        self.0.answered.fetch_add(1, Ordering::Relaxed);
        match request {
            ServiceRequest::Receive { registration, room, time } => {
                self.receive(call, registration, room, time);
            }
            ServiceRequest::Reply { registration, number, outcome, next, bytes } => {
                let bytes = Payload::new(&call.payload, bytes);
                self.reply(call, (registration, number), (outcome, bytes), next);
            }
            ServiceRequest::Invoke { node, service, function, is_one_way, priority, room, bytes } => {
                let named = if node.is_empty() { self.0.tier.name() } else { node };
                let bytes = Payload::new(&call.payload, bytes);
                match self.0.tier.node().roster.number_of(named) {
                    Some(node) => {
                        let how = (is_one_way, priority);
                        self.invoke(call, (node, service, function), how, (bytes, room));
                    }
                    None => {
                        let problem = Problem::NoNode(node.to_owned());
                        fail(call, &problem);
                    }
                }
            }
            _ => fail(call, &Problem::Malformed),
        }
    }
}
