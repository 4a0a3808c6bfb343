//! Processes that serve functions, and processes that call them (section 5.1). All of it runs on the worker that
//! received a request, and nothing waits: a receiver is a call that is answered when there is a request for it.

use super::registry::{Process, Registry};
use crate::calling::encode_call;
use crate::node::Node;
use crate::services::{Arrived, Asked, Serves};
use crate::serving::not_registered;
use dunlin_fabric::{Fabric, nanos};
use dunlin_rpc::{ApplicationCode, CallError, Cause, Incoming, Status, Taker};
use dunlin_tier::call::SERVICE_CALL;
use dunlin_tier::process::service::{
    Handed, INVOKE, INVOKE_REFUSED, NOTHING, Outcome, ServiceRequest, encode_servers,
};
use dunlin_tier::process::{Problem, REFUSED};
use dunlin_tier::{Act, Exchange, ExchangeLimits, Name, NodeId, Remains};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A function that a process serves.
#[derive(Debug)]
pub(super) struct Served<F: Fabric, P: Fabric> {
    service: Name,
    function: u16,
    /// The number of the registration at the node.
    number: AtomicU64,
    exchange: Mutex<Exchange<Asked<F>, Incoming<P>>>,
}

fn fail<P: Fabric>(call: Incoming<P>, problem: &Problem) {
    let code = if call.function == INVOKE { INVOKE_REFUSED } else { REFUSED };
    match ApplicationCode::new(code) {
        Some(code) => call.fail(code, problem.encode()),
        None => call.refuse(Status::Malformed),
    }
}

/// Carries out what an exchange decided.
fn settle<F: Fabric, P: Fabric>(acts: Vec<Act<Asked<F>, Incoming<P>>>, time_left: impl Fn(u64) -> Told) {
    for act in acts {
        match act {
            Act::Hand { receiver, number, request } => {
                let Told { caller, time_left } = time_left(number);
                let time_left = time_left.map(|left| nanos(left));
                receiver.reply(Handed { number, time_left, caller: &caller, request: &request }.encode());
            }
            Act::TooLong { receiver, length } => {
                fail(receiver, &Problem::TooLong { length: length as u64, limit: 0 });
            }
            Act::Nothing(receiver) => match ApplicationCode::new(NOTHING) {
                Some(code) => receiver.fail(code, Vec::new()),
                None => receiver.refuse(Status::Malformed),
            },
            Act::Expired(asked) => asked.answer.refuse(Status::DeadlineExceeded),
            Act::Overloaded(asked) => asked.answer.refuse(Status::Overloaded),
            Act::Forgotten(asked) => drop(asked),
        }
    }
}

/// What a receiver is told about a call.
struct Told {
    caller: String,
    time_left: Option<Duration>,
}

impl<F: Fabric, P: Fabric> Served<F, P> {
    fn exchange(&self) -> MutexGuard<'_, Exchange<Asked<F>, Incoming<P>>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the exchange, and carries out what it decides with the lock held: answers only go into inboxes.
    fn change(
        &self,
        change: impl FnOnce(&mut Exchange<Asked<F>, Incoming<P>>) -> Vec<Act<Asked<F>, Incoming<P>>>,
    ) {
        let mut exchange = self.exchange();
        let acts = change(&mut exchange);
        settle(acts, |number| {
            let asked = exchange.taken(number);
            let caller = asked.map(|asked| asked.caller.as_str().to_owned()).unwrap_or_default();
            Told { caller, time_left: asked.and_then(|asked| asked.answer.time_left()) }
        });
    }

    fn receive(&self, call: Incoming<P>, room: u32, waits: bool) {
        self.change(|exchange| exchange.receive(call, room as usize, waits, Asked::is_over));
    }

    fn reply(&self, call: Incoming<P>, number: u64, outcome: Outcome, bytes: Vec<u8>, next: Option<u32>) {
        // An answer to nobody goes nowhere, as one whose caller's time is over.
        let answered = self.exchange().answer(number);
        if let Some(caller) = answered.and_then(|asked| asked.answer.0) {
            match outcome {
                Outcome::Result => caller.reply(bytes),
                Outcome::Failed(code) => match ApplicationCode::new(code) {
                    Some(code) => caller.fail(code, bytes),
                    None => drop(caller),
                },
                Outcome::Refused(status) => match Status::from_wire(status) {
                    Some(Status::Ok | Status::Application(_)) | None => drop(caller),
                    Some(status) => caller.refuse(status),
                },
                Outcome::Dropped => drop(caller),
            }
        }
        match next {
            Some(room) => self.receive(call, room, true),
            None => call.reply(Vec::new()),
        }
    }

    /// A connection has ended: its receivers leave.
    pub(super) fn leave(&self, session: u64) {
        let gone = self.exchange().leave(|receiver| receiver.session == session);
        gone.into_iter().for_each(|receiver| receiver.refuse(Status::Draining));
    }

    /// The process withdraws the function, or has ended.
    pub(super) fn end(&self, node: &Node<F>) {
        node.services.withdraw(&self.service, self.function, self.number.load(Ordering::Acquire));
        let Remains { waiting, taken, receivers } = self.exchange().end();
        waiting.into_iter().for_each(|asked| asked.answer.refuse(Status::Draining));
        drop(taken);
        receivers.into_iter().for_each(|receiver| fail(receiver, &Problem::NotRegistered));
    }
}

impl<F: Fabric, P: Fabric> Serves<F> for Served<F, P> {
    fn offer(&self, Arrived { asked, request }: Arrived<F>) {
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
        match ServiceRequest::parse(function, payload).map_err(|_| Problem::Malformed)? {
            ServiceRequest::Register { service, function } => {
                let exchange =
                    Mutex::new(Exchange::new(ExchangeLimits::default(), process.tier.draw() as u32));
                let number = AtomicU64::new(0);
                let served = Arc::new(Served { service: service.clone(), function, number, exchange });
                let limit = self.config.limits.services;
                let inserted = process.services().insert(Arc::clone(&served));
                let registration = inserted.map_err(|_| Problem::Services(limit))?;
                match node.services.register(service.clone(), function, Arc::clone(&served) as _) {
                    Ok(number) => served.number.store(number, Ordering::Release),
                    Err(error) => {
                        process.services().remove(registration);
                        return Err(not_registered(error, &service, function).into());
                    }
                }
                // The process may have ended meanwhile, before the node knew the number.
                if process.services().get(registration).is_none() {
                    served.end(node);
                }
                Ok(registration.to_le_bytes().to_vec())
            }
            ServiceRequest::Withdraw { registration } => {
                let served = process.services().remove(registration).ok_or(Problem::NotRegistered)?;
                served.end(node);
                Ok(Vec::new())
            }
            _ => Err(Problem::Malformed),
        }
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
        let served = process.services().get(registration).map(Arc::clone);
        served.ok_or(Problem::NotRegistered)
    }

    /// Calls a service of a node, and answers as the call ends.
    fn invoke(
        &self,
        mut call: Incoming<P>,
        (node, service, function): (NodeId, &Name, u16),
        is_one_way: bool,
        at: usize,
    ) {
        let process = match self.0.process(call.session) {
            Ok(process) => process,
            Err(problem) => return fail(call, &problem),
        };
        let Some(calling) = process.calling(self.0.config.limits.calls) else {
            return call.refuse(Status::Overloaded);
        };
        let this = process.tier.node();
        let encoded = encode_call(service, function, process.tier.caller(), is_one_way, &call.payload[at..]);
        let bytes = match encoded {
            Ok(bytes) => bytes,
            Err(error) => return fail(call, &error.into()),
        };
        drop(std::mem::take(&mut call.payload));
        let time = call.time_left().unwrap_or(this.config.timeout);
        let done = move |outcome| {
            drop(calling);
            match outcome {
                // No service may speak for the node.
                Err(CallError::Application { code: INVOKE_REFUSED, .. }) => {
                    call.relay(Err(CallError::Executed(Cause::HandlerPanicked)));
                }
                outcome => call.relay(outcome),
            }
        };
        this.board.call(this, (node, SERVICE_CALL), &bytes, time, Box::new(done));
    }
}

impl<F: Fabric, P: Fabric> Taker<P> for Desk<F, P> {
    fn take(&self, call: Incoming<P>) {
        let Ok(request) = ServiceRequest::parse(call.function, &call.payload) else {
            return fail(call, &Problem::Malformed);
        };
        self.0.answered.fetch_add(1, Ordering::Relaxed);
        match request {
            ServiceRequest::Receive { registration, room, waits } => {
                match self.served(call.session, registration) {
                    Ok(served) => served.receive(call, room, waits),
                    Err(problem) => fail(call, &problem),
                }
            }
            ServiceRequest::Reply { registration, number, outcome, next, bytes } => {
                let bytes = bytes.to_vec();
                match self.served(call.session, registration) {
                    Ok(served) => served.reply(call, number, outcome, bytes, next),
                    Err(problem) => fail(call, &problem),
                }
            }
            ServiceRequest::Invoke { node, service, function, is_one_way, bytes } => {
                let named = if node.is_empty() { self.0.tier.name() } else { node };
                let at = call.payload.len() - bytes.len();
                match self.0.tier.node().config.number_of(named) {
                    Some(node) => self.invoke(call, (node, &service, function), is_one_way, at),
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
