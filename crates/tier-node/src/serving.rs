//! Services of a program that has the node in its own process: `LT_regRPC`, `LT_recvRPC` and `LT_replyRPC` (table 1).

use crate::error::{ReceiveError, RequestError};
use crate::services::{Arrived, Asked, Body, NotRegistered, Serves};
use crate::tier::{Running, Tier};
use dunlin_fabric::host::park_adaptive;
use dunlin_fabric::{Fabric, Host, Nanos, Parker, Unparker, nanos};
use dunlin_rpc::{ApplicationCode, Status};
use dunlin_tier::exchange::Waiting;
use dunlin_tier::{Act, Exchange, ExchangeLimits, Name, Principal, Remains};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type ParkerOf<F> = <<F as Fabric>::Host as Host>::Parker;
type UnparkerOf<F> = <ParkerOf<F> as Parker>::Unparker;

/// How long a thread that receives looks for a call before it sleeps, in nanoseconds (section 5.2: "shortly"); as the
/// engine's clients and servers do.
const SPIN: Nanos = 20_000;

/// The calls of one function that threads of this process receive.
#[derive(Debug)]
struct Local<F: Fabric> {
    /// No receiver waits in it: threads wait below.
    exchange: Mutex<Exchange<Asked<F>, (), Body<F>>>,
    /// Threads that wait for a call, the last one first, since its caches are warm.
    waiting: Mutex<Vec<(u64, UnparkerOf<F>)>>,
    /// Parkers that no thread uses, each with its number.
    parkers: Mutex<Vec<(u64, ParkerOf<F>)>>,
    /// The number of parkers.
    made: AtomicU64,
}

impl<F: Fabric> Local<F> {
    fn exchange(&self) -> MutexGuard<'_, Exchange<Asked<F>, (), Body<F>>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(u64, UnparkerOf<F>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parkers(&self) -> MutexGuard<'_, Vec<(u64, ParkerOf<F>)>> {
        self.parkers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parker(&self, host: &F::Host) -> (u64, ParkerOf<F>) {
        let kept = self.parkers().pop();
        kept.unwrap_or_else(|| (self.made.fetch_add(1, Ordering::Relaxed), host.parker()))
    }

    /// Wakes a thread that waits.
    fn wake_one(&self) {
        let next = self.waiting().pop();
        if let Some((_, unparker)) = next {
            unparker.unpark();
        }
    }
}

impl<F: Fabric> Serves<F> for Local<F> {
    fn offer(&self, Arrived { asked, request, .. }: Arrived<F>) {
        let acts = self.exchange().offer(request, asked, Asked::is_over);
        settle(acts);
        self.wake_one();
    }
}

/// Carrier out everything but the hand-over of a call, which it returns.
fn settle<F: Fabric>(acts: Vec<Act<Asked<F>, (), Body<F>>>) -> Option<Handed<F>> {
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

enum Handed<F: Fabric> {
    Call(u64, Body<F>),
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
        let (service, node) = (self.open_name(service)?, self.node());
        let local = Arc::new(Local {
            exchange: Mutex::new(Exchange::new(ExchangeLimits::default(), self.draw() as u32)),
            waiting: Mutex::default(),
            parkers: Mutex::default(),
            made: AtomicU64::new(0),
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
        let host = self.running.node.fabric.host();
        let mut parker = None;
        let outcome = loop {
            if let Some(outcome) = self.next(buffer) {
                break outcome;
            }
            let (number, parker) = parker.get_or_insert_with(|| self.local.parker(host));
            self.local.waiting().push((*number, parker.unparker()));
            // A call that came before found nobody to wake.
            if let Some(outcome) = self.next(buffer) {
                if !self.leave(*number) {
                    // It was woken for another call.
                    self.local.wake_one();
                }
                break outcome;
            }
            if !park_adaptive(host, parker, SPIN, until) && self.leave(*number) {
                break Err(ReceiveError::NoCall);
            }
            self.leave(*number);
        };
        if let Some(parker) = parker {
            self.local.parkers().push(parker);
        }
        outcome
    }

    /// Takes this thread from those that wait; returns `false` if it was woken.
    fn leave(&self, number: u64) -> bool {
        let mut waiting = self.local.waiting();
        let place = waiting.iter().position(|(one, _)| *one == number);
        place.map(|place| waiting.swap_remove(place)).is_some()
    }

    /// Returns the next call, if there is one.
    fn next(&self, buffer: &mut [u8]) -> Option<Result<Request<'_, F>, ReceiveError>> {
        loop {
            let acts = self.local.exchange().receive((), buffer.len(), false, Asked::is_over);
            return Some(match settle(acts)? {
                Handed::Call(number, request) => {
                    let length = request.length();
                    if !request.copy_to(&mut buffer[..length]) {
                        // The caller has given the call up.
                        drop(self.local.exchange().answer(number));
                        continue;
                    }
                    Ok(Request { calls: self, number: Some(number), length })
                }
                Handed::TooLong(length) => {
                    // Another thread may have a longer buffer.
                    self.local.wake_one();
                    Err(ReceiveError::TooLong { length })
                }
            });
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
        if let Some(asked) = self.take() {
            asked.answer.reply(answer);
        }
    }

    /// Answers the call with an error of the service, whose bytes are cut to the size of a small result. For the caller
    /// the call was executed.
    pub fn fail(mut self, code: ApplicationCode, bytes: &[u8]) {
        if let Some(asked) = self.take() {
            asked.answer.fail(code, bytes);
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
