//! Services of a program that has the node in its own process: `LT_regRPC`, `LT_recvRPC` and `LT_replyRPC` (table 1).

use crate::error::{ReceiveError, RequestError};
use crate::node::SignalOf;
use crate::services::{Arrived, Asked, NotRegistered, Serves};
use crate::tier::{Running, Tier};
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_rpc::{ApplicationCode, Status};
use dunlin_tier::{Act, Exchange, ExchangeLimits, Name, Principal, Remains};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The calls of one function that threads of this process receive.
#[derive(Debug)]
struct Local<F: Fabric> {
    /// No receiver waits in it: threads wait on the signal.
    exchange: Mutex<Exchange<Asked<F>, ()>>,
    arrived: SignalOf<F>,
}

impl<F: Fabric> Local<F> {
    fn exchange(&self) -> MutexGuard<'_, Exchange<Asked<F>, ()>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fabric> Serves<F> for Local<F> {
    fn offer(&self, Arrived { asked, request, .. }: Arrived<F>) {
        let acts = self.exchange().offer(request, asked, Asked::is_over);
        settle(acts);
        self.arrived.raise();
    }
}

/// Carries out everything but the hand-over of a call, which it returns.
fn settle<F: Fabric>(acts: Vec<Act<Asked<F>, ()>>) -> Option<Handed> {
    let mut handed = None;
    for act in acts {
        match act {
            Act::Hand { number, request, .. } => handed = Some(Handed::Call(number, request)),
            Act::TooLong { length, .. } => handed = Some(Handed::TooLong(length)),
            Act::Nothing(()) => {}
            Act::Expired(asked) => asked.answer.refuse(Status::DeadlineExceeded),
            Act::Overloaded(asked) => asked.answer.refuse(Status::Overloaded),
            Act::Forgotten(asked) => drop(asked),
        }
    }
    handed
}

enum Handed {
    Call(u64, Vec<u8>),
    TooLong(usize),
}

/// A function of a service that this process serves: [`Tier::register`]. Any number of threads may receive. Dropping it
/// ends the registration: calls that wait are refused, and the callers of requests that were received and are not
/// answered hear that the call may have been executed.
#[derive(Debug)]
pub struct Calls<F: Fabric> {
    running: Arc<Running<F>>,
    service: Name,
    function: u16,
    number: u64,
    local: Arc<Local<F>>,
}

impl<F: Fabric> Tier<F> {
    /// Registers a function of a service at this node (`LT_regRPC`). Processes of any node call it
    /// ([`call`](Tier::call)). Does not block.
    ///
    /// # Errors
    /// [`RequestError::Registered`] if the function is registered at this node, by whomever.
    pub fn register(&self, service: impl AsRef<[u8]>, function: u16) -> Result<Calls<F>, RequestError> {
        let (service, node) = (Name::new(service)?, self.node());
        let local = Arc::new(Local {
            exchange: Mutex::new(Exchange::new(ExchangeLimits::default(), self.draw() as u32)),
            arrived: node.fabric.host().signal(),
        });
        let registered = node.services.register(service.clone(), Some(function), Arc::clone(&local) as _);
        let number = registered.map_err(|error| not_registered(error, &service))?;
        Ok(Calls { running: Arc::clone(&self.running), service, function, number, local })
    }
}

/// Returns the error of a failed registration.
pub(crate) fn not_registered(error: NotRegistered, service: &Name) -> RequestError {
    match error {
        NotRegistered::Taken => RequestError::Registered { service: service.clone() },
        NotRegistered::Full => {
            RequestError::Limit { what: "registered functions at the node", limit: 65_536 }
        }
    }
}

impl<F: Fabric> Calls<F> {
    /// Receives the next request into `buffer` (`LT_recvRPC`). Blocks until there is one.
    ///
    /// # Errors
    /// [`ReceiveError::TooLong`] if the request is longer than the buffer: it stays the next one.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Request<'_, F>, ReceiveError> {
        self.receive_until(buffer, Nanos::MAX)
    }

    /// As [`receive`](Calls::receive), for `time` at most; then [`ReceiveError::NoCall`].
    pub fn receive_within(&self, buffer: &mut [u8], time: Duration) -> Result<Request<'_, F>, ReceiveError> {
        let now = self.running.node.fabric.host().now();
        self.receive_until(buffer, now.saturating_add(nanos(time)))
    }

    fn receive_until(&self, buffer: &mut [u8], until: Nanos) -> Result<Request<'_, F>, ReceiveError> {
        loop {
            let seen = self.local.arrived.seen();
            let acts = self.local.exchange().receive((), buffer.len(), false, Asked::is_over);
            match settle(acts) {
                Some(Handed::Call(number, request)) => {
                    buffer[..request.len()].copy_from_slice(&request);
                    return Ok(Request { calls: self, number: Some(number), length: request.len() });
                }
                Some(Handed::TooLong(length)) => return Err(ReceiveError::TooLong { length }),
                None => {}
            }
            if !self.local.arrived.wait(seen, until) {
                return Err(ReceiveError::NoCall);
            }
        }
    }

    /// Returns the service.
    pub fn service(&self) -> &Name {
        &self.service
    }

    /// Returns the number of the function.
    pub fn function(&self) -> u16 {
        self.function
    }
}

impl<F: Fabric> Drop for Calls<F> {
    fn drop(&mut self) {
        self.running.node.services.withdraw(&self.service, Some(self.function), self.number);
        let Remains { waiting, taken, .. } = self.local.exchange().end();
        waiting.into_iter().for_each(|asked| asked.answer.refuse(Status::Draining));
        drop(taken);
    }
}

/// A request that was received. If it is dropped without an answer, the caller hears that the call may have been
/// executed.
#[derive(Debug)]
#[must_use = "a request that is dropped is not answered"]
pub struct Request<'a, F: Fabric> {
    calls: &'a Calls<F>,
    /// None once it is answered.
    number: Option<u64>,
    length: usize,
}

impl<'a, F: Fabric> Request<'a, F> {
    /// Returns the request's length in bytes: that of the front part of the buffer that was received into.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the request is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn asked<T>(&self, take: impl FnOnce(&Asked<F>) -> T) -> Option<T> {
        let exchange = self.calls.local.exchange();
        self.number.and_then(|number| exchange.taken(number).map(take))
    }

    /// Returns the principal that called, as its node vouches for it; `None` if the caller's time was over and the call
    /// was forgotten.
    pub fn caller(&self) -> Option<Principal> {
        self.asked(|asked| asked.caller.clone())
    }

    /// Returns the time that is left until the caller's deadline: `None` without one, for a one-way call.
    pub fn time_left(&self) -> Option<Duration> {
        self.asked(|asked| asked.answer.time_left()).unwrap_or(Some(Duration::ZERO))
    }

    fn take(&mut self) -> Option<Asked<F>> {
        let number = self.number.take()?;
        self.calls.local.exchange().answer(number)
    }

    /// Answers the call (`LT_replyRPC`). The answer to a one-way call, or to one whose caller's time is over, goes
    /// nowhere. Does not block.
    pub fn reply(mut self, answer: &[u8]) {
        if let Some(call) = self.take().and_then(|asked| asked.answer.0) {
            call.reply(answer.to_vec());
        }
    }

    /// Answers the call with an error of the service, whose bytes are cut to the size of a small result. For the caller
    /// the call was executed.
    pub fn fail(mut self, code: ApplicationCode, bytes: &[u8]) {
        if let Some(call) = self.take().and_then(|asked| asked.answer.0) {
            call.fail(code, bytes.to_vec());
        }
    }

    /// Refuses the call: for the caller it was not executed, except with [`Status::TooLarge`].
    pub fn refuse(mut self, status: Status) {
        if let Some(asked) = self.take() {
            asked.answer.refuse(status);
        }
    }

    /// Answers the call, and receives the next request into `buffer` (section 5.2). Blocks until there is one.
    pub fn reply_and_receive(self, answer: &[u8], buffer: &mut [u8]) -> Result<Request<'a, F>, ReceiveError> {
        let calls = self.calls;
        self.reply(answer);
        calls.receive(buffer)
    }
}

impl<F: Fabric> Drop for Request<'_, F> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
