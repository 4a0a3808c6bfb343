//! The services of a node (section 5.1): the server of each function, and the way of a call from another node to it.
//! Nodes hand calls on; they never run a handler.

use crate::buffer::Lent;
use crate::node::Node;
use crate::rings::{FROM, RingMemory};
use dunlin_fabric::Fabric;
use dunlin_rpc::{ApplicationCode, CallError, Incoming, Status, Taker};
use dunlin_tier::call::SERVICE_CALL;
use dunlin_tier::exchange::Waiting;
use dunlin_tier::{CallAnswer, CallHead, Name, Principal};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// The most functions that are registered at a node.
const MAX_REGISTERED: usize = 65_536;

/// A call for a service of this node.
#[derive(Debug)]
pub(crate) struct Arrived<F: Fabric> {
    pub(crate) function: u16,
    pub(crate) asked: Asked<F>,
    pub(crate) request: Body<F>,
}

/// The bytes of a request, until its receiver has them.
#[derive(Debug)]
pub(crate) enum Body<F: Fabric> {
    /// In the call's message, from this place on.
    Message(Vec<u8>, usize),
    /// In the caller's ring, with their length.
    Ring(RingMemory<F>, usize),
}

impl<F: Fabric> Waiting for Body<F> {
    fn length(&self) -> usize {
        match self {
            Body::Message(bytes, from) => bytes.len() - from,
            Body::Ring(_, length) => *length,
        }
    }
}

impl<F: Fabric> Body<F> {
    /// Copies the request into a buffer of its length; returns `false` if the caller has given it up.
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> bool {
        match self {
            Body::Message(bytes, from) => {
                into.copy_from_slice(&bytes[*from..]);
                true
            }
            Body::Ring(memory, _) => memory.copy_out(into),
        }
    }

    /// Appends the request to a message; returns `false` if the caller has given it up.
    pub(crate) fn append_to(&self, message: &mut Vec<u8>) -> bool {
        match self {
            Body::Message(bytes, from) => {
                message.extend_from_slice(&bytes[*from..]);
                true
            }
            Body::Ring(memory, length) => {
                let head = message.len();
                message.resize(head + length, 0);
                memory.copy_out(&mut message[head..])
            }
        }
    }

    /// Copies the request to the front of a buffer of a process; returns `false` if the caller has given it up.
    pub(crate) fn copy_into(&self, buffer: &Lent<F>) -> bool {
        match self {
            Body::Message(bytes, from) => {
                buffer.copy_in(&bytes[*from..]);
                true
            }
            Body::Ring(memory, length) => memory.copy_out_to(buffer, *length),
        }
    }

    /// Returns the request in private memory; `None` if the caller has given it up.
    pub(crate) fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            Body::Message(bytes, from) => Some(Cow::Borrowed(&bytes[*from..])),
            Body::Ring(..) => {
                let mut bytes = Vec::new();
                self.append_to(&mut bytes).then_some(Cow::Owned(bytes))
            }
        }
    }
}

/// The caller of a call, and the obligation to answer it.
#[derive(Debug)]
pub(crate) struct Asked<F: Fabric> {
    /// The principal that calls, as its node vouches for it.
    pub(crate) caller: Principal,
    pub(crate) answer: Obligation<F>,
}

impl<F: Fabric> Asked<F> {
    /// Returns whether the caller's time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.answer.time_left() == Some(Duration::ZERO)
    }
}

/// The obligation to answer a call: none if nobody waits for a result.
#[derive(Debug)]
pub(crate) struct Obligation<F: Fabric> {
    call: Option<Incoming<F>>,
    /// Room for a long result, in the caller's ring.
    ring: Option<RingMemory<F>>,
}

impl<F: Fabric> Obligation<F> {
    /// Returns the time that is left until the caller's deadline; `None` without one.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.call.as_ref().and_then(Incoming::time_left)
    }

    /// The call ended elsewhere.
    pub(crate) fn relay(self, outcome: Result<Vec<u8>, CallError>) {
        match (outcome, self) {
            (Ok(result), Obligation { call: Some(call), ring: None }) => call.reply(result),
            (Ok(result), answer) => answer.reply(&result),
            (error, Obligation { call: Some(call), .. }) => call.relay(error),
            (_, Obligation { call: None, .. }) => {}
        }
    }

    /// The call was executed, with the result from a place of a message on.
    pub(crate) fn reply_from(self, mut message: Vec<u8>, at: usize) {
        match self {
            Obligation { call: Some(call), ring: None } => {
                drop(message.drain(..at));
                call.reply(message);
            }
            answer => answer.reply(&message[at..]),
        }
    }

    /// The call was executed, with this result. A long one goes into the caller's ring.
    pub(crate) fn reply(self, result: &[u8]) {
        match (self.call, self.ring) {
            (Some(call), None) => call.reply(result.to_vec()),
            (Some(call), Some(ring)) => {
                let is_put = (FROM..=ring.room()).contains(&result.len()) && ring.copy_in(result);
                let answer = match is_put {
                    true => CallAnswer::InRing(result.len() as u32),
                    false => CallAnswer::Here(result),
                };
                call.reply(answer.encode());
            }
            (None, _) => {}
        }
    }

    /// The call was executed, with a result in a buffer of a process.
    pub(crate) fn reply_lent(self, result: &Lent<F>) {
        let length = result.length();
        let is_put = self
            .ring
            .as_ref()
            .is_some_and(|ring| (FROM..=ring.room()).contains(&length) && ring.copy_in_from(result));
        match self.call {
            Some(call) if is_put => call.reply(CallAnswer::InRing(length as u32).encode()),
            call => Obligation { call, ring: self.ring }.reply(&result.to_vec()),
        }
    }

    /// The call was executed, and failed with an error of the service.
    pub(crate) fn fail(self, code: ApplicationCode, bytes: &[u8]) {
        if let Some(call) = self.call {
            call.fail(code, bytes.to_vec());
        }
    }

    /// The call was not executed.
    pub(crate) fn refuse(self, status: Status) {
        if let Some(call) = self.call {
            call.refuse(status);
        }
    }
}

/// A process, or a part of this one, that serves a function.
pub(crate) trait Serves<F: Fabric>: Send + Sync {
    /// Takes a call. Does not block.
    fn offer(&self, call: Arrived<F>);
}

struct Registered<F: Fabric> {
    /// Tells registrations of one function apart.
    number: u64,
    serves: Arc<dyn Serves<F>>,
}

/// The services of a node.
pub(crate) struct Services<F: Fabric> {
    table: RwLock<Table<F>>,
}

/// All registrations.
struct Table<F: Fabric> {
    /// The number of the last one.
    last: u64,
    /// By service and function; without a function, of all functions of the service.
    by_function: BTreeMap<(Name, Option<u16>), Registered<F>>,
}

impl<F: Fabric> std::fmt::Debug for Services<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.read().by_function.keys()).finish()
    }
}

/// The reason why a function could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRegistered {
    /// Somebody serves it at this node.
    Taken,
    /// The table is full.
    Full,
}

impl<F: Fabric> Services<F> {
    pub(crate) fn new() -> Self {
        Services { table: RwLock::new(Table { last: 0, by_function: BTreeMap::new() }) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table<F>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<F>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a function, or all functions of a service; returns the number of the registration.
    pub(crate) fn register(
        &self,
        service: Name,
        function: Option<u16>,
        serves: Arc<dyn Serves<F>>,
    ) -> Result<u64, NotRegistered> {
        let mut table = self.write();
        let Table { last, by_function } = &mut *table;
        if by_function.len() >= MAX_REGISTERED {
            return Err(NotRegistered::Full);
        }
        // Functions of one service are those of one server, or single ones.
        let is_taken = match function {
            Some(_) => {
                [function, None].into_iter().any(|one| by_function.contains_key(&(service.clone(), one)))
            }
            None => is_served(by_function, &service),
        };
        if is_taken {
            return Err(NotRegistered::Taken);
        }
        *last += 1;
        by_function.insert((service, function), Registered { number: *last, serves });
        Ok(*last)
    }

    /// Ends a registration. Calls that were offered before may still be on their way to it.
    pub(crate) fn withdraw(&self, service: &Name, function: Option<u16>, number: u64) {
        let mut table = self.write();
        let key = (service.clone(), function);
        if table.by_function.get(&key).is_some_and(|registered| registered.number == number) {
            table.by_function.remove(&key);
        }
    }

    /// Returns whether any function of a service is registered.
    pub(crate) fn serves(&self, service: &Name) -> bool {
        is_served(&self.read().by_function, service)
    }

    /// Hands a call to whoever serves its function.
    fn offer(&self, node: &Arc<Node<F>>, mut call: Incoming<F>) {
        debug_assert_eq!(call.function, SERVICE_CALL);
        let Ok((head, at)) = CallHead::parse(&call.payload) else { return call.refuse(Status::Malformed) };
        let serves = {
            let table = self.read();
            let mut key = (head.service, Some(head.function));
            let found = table.by_function.get(&key).or_else(|| {
                key.1 = None;
                table.by_function.get(&key)
            });
            found.map(|registered| Arc::clone(&registered.serves))
        };
        let Some(serves) = serves else { return call.refuse(Status::UnknownFunction) };
        let message = std::mem::take(&mut call.payload);
        let mut request = match head.ring.and_then(|ring| ring.request.map(|length| (ring, length))) {
            Some((ring, length)) => {
                let (memory, length) = (RingMemory::new(node, ring), length as usize);
                if !memory.holds(length) {
                    return call.refuse(Status::Malformed);
                }
                Body::Ring(memory, length)
            }
            None => Body::Message(message, at),
        };
        let answer = if head.is_one_way {
            // The caller may use its ring again with the answer.
            if let Body::Ring(..) = &request {
                let Some(bytes) = request.bytes().map(Cow::into_owned) else {
                    return call.refuse(Status::Malformed);
                };
                request = Body::Message(bytes, 0);
            }
            call.reply(Vec::new());
            Obligation { call: None, ring: None }
        } else {
            let ring = head.ring.filter(|ring| ring.room > 0).map(|ring| RingMemory::new(node, ring));
            Obligation { call: Some(call), ring }
        };
        let asked = Asked { caller: head.caller, answer };
        serves.offer(Arrived { function: head.function, asked, request });
    }
}

fn is_served<F: Fabric>(by_function: &BTreeMap<(Name, Option<u16>), Registered<F>>, service: &Name) -> bool {
    let first = (service.clone(), None);
    by_function.range(first..).next().is_some_and(|((name, _), _)| name == service)
}

/// The worker's end of a node's services.
pub(crate) struct Switch<F: Fabric>(pub(crate) Arc<Node<F>>);

impl<F: Fabric> Taker<F> for Switch<F> {
    fn take(&self, call: Incoming<F>) {
        self.0.services.offer(&self.0, call);
    }
}
