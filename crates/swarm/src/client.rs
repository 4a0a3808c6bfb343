//! A client of a swarm.

use super::asynchronous;
use super::book::{CallLedger, End, THREADS_APART, answer_to, request};
use super::draw::{DrawnClient, Lateness, PATIENCE, Style, size};
use super::play::FaultSchedule;
use super::server::{ECHO, POOLED, PULLED};
use dunlin_fabric::WithSources;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{CallError, CallId, Cause, Certainty, Client, Status};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time of a call of `submit`, in nanoseconds, from which on it counts as a wait.
const WAITED: Nanos = 500_000;

/// The part that a client plays.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) sim: Sim,
    pub(super) address: Address,
    pub(super) drawn: DrawnClient,
    pub(super) server_window: u16,
    pub(super) lateness: Lateness,
    /// How long it retries each of its last calls.
    pub(super) patience: Nanos,
    pub(super) seed: u64,
    pub(super) first: u64,
    pub(super) book: CallLedger,
    pub(super) weather: FaultSchedule,
    /// Whether a task pulls calls.
    pub(super) pulls: bool,
    /// Whether calls within the usual time must be answered.
    pub(super) undisturbed: bool,
    /// How long a call by itself may take; without limit if other calls may hold it up.
    pub(super) turn: Option<Nanos>,
}

/// A call that was sent.
struct Open {
    number: u64,
    size: usize,
    sent: Nanos,
    /// The time of its own.
    own: Option<Duration>,
    function: u16,
    /// Whether the engine was polled for its end all the time.
    watched: bool,
}

impl Part {
    /// Returns the name of a further thread of the client, and the part that it plays.
    pub(super) fn of_thread(&self, thread: u64) -> (String, Part) {
        let mut own = self.clone();
        own.first += thread * THREADS_APART;
        own.seed ^= own.first;
        let mut random = Random::new(own.seed, 5);
        if random.one_in(3) {
            // Leaves the others with calls in flight.
            own.drawn.quits_after = Some(random.below(60));
        }
        (format!("thread-{thread} of {}", self.first), own)
    }

    /// Records a call that is about to be made, with the time of its own if it has one.
    pub(super) fn begin(&self, number: u64, function: u16, own: Option<Duration>) {
        // The usual time begins when the call leaves, which the book does not learn. The time of a request that is
        // announced begins when the server READs it, which may be slices later: the request says how much time it has,
        // and not since when.
        if let Some(own) = own.filter(|_| !self.drawn.is_grouped(function)) {
            self.book.must_begin(number, self.sim.time() + own.as_nanos() as Nanos);
        }
    }

    /// Checks that a call made at `since` has ended by its deadline.
    pub(super) fn check_deadline(&self, number: u64, since: Nanos, lateness: Nanos, own: Option<Duration>) {
        // A call without a time of its own in a batch has its time from when the batch leaves.
        let most = own.map_or(2 * self.drawn.config.call_nanos(), |own| own.as_nanos() as Nanos);
        // A killed task sees the time of its death, which may be slightly before its own.
        let took = self.sim.host().now().saturating_sub(since);
        if took > most + lateness {
            self.book.violate(format!(
                "call {number} ended {took} ns after it was made; its deadline was {most} ns, and it may be late by {lateness} ns"
            ));
        }
    }

    /// Checks that a call by itself, made at `since` of the run's time, has not waited for longer than the turns of all
    /// groups.
    fn check_turn(&self, number: u64, function: u16, since: Nanos) {
        let took = self.sim.time().saturating_sub(since);
        if let Some(turn) = self.turn.filter(|turn| took > *turn && function == ECHO) {
            self.book.violate(format!(
                "call {number} took {took} ns, and nothing disturbs it: the turns of all groups take {turn} ns"
            ));
        }
    }

    /// Checks that a call which failed may have run out of its time. Pulled calls may be kept for longer; they fill the
    /// window of their lane, in which calls of other threads wait.
    fn check_time(&self, number: u64, function: u16, own: Option<Duration>, error: &CallError) {
        let is_over = error.cause() == Some(Cause::DeadlineExceeded);
        let may_wait = function == PULLED || self.pulls && self.drawn.threads > 1;
        if is_over && self.undisturbed && own.is_none() && !may_wait {
            self.book.violate(format!("call {number} ran out of time, and nothing disturbs it"));
        }
    }

    /// Checks that a call which failed has not lost its connection where nothing disturbs the run. A server may refuse
    /// connections to a client that opens several.
    pub(super) fn check_connection(&self, number: u64, error: &CallError) {
        let lost = [Cause::Disconnected, Cause::ConnectionLost, Cause::ProtocolViolation];
        let is_lost = error.cause().is_some_and(|cause| lost.contains(&cause));
        if is_lost && self.undisturbed && self.drawn.threads == 1 {
            self.book.violate(format!("call {number} lost its connection, and nothing disturbs it"));
        }
    }

    /// Waits between a failed last call and its retry, out of step with spinning workers that share a core
    /// for a quantum each. Otherwise each retry may find its worker waiting for the core, and a client woken
    /// by late answers stays in step with the workers.
    pub(super) fn rest_out_of_step(&self) {
        let host = self.sim.host();
        host.sleep(host.now() + 100_000 + host.random() % 2_000_000);
    }
}

/// Calls that must succeed once the run is calm.
pub(super) const LAST_CALLS: u64 = 3;

/// Plays a client's part.
pub(super) fn play(part: Part) {
    let book = part.book.clone();
    if part.drawn.style == Style::Asynchronous {
        return asynchronous::play(part);
    }
    let Some(client) = connect(&part) else {
        return book.violate(format!("client {} cannot connect", part.first));
    };
    let mut others = Vec::new();
    for thread in 1..part.drawn.threads {
        let client = match client.another() {
            Ok(client) => client,
            Err(error) => {
                book.violate(format!("client {} has no seat: {}", part.first, WithSources(&error)));
                continue;
            }
        };
        let (name, own) = part.of_thread(thread);
        let body = move || Actor::new(own, client).play();
        others.extend(part.sim.host().spawn(&name, Box::new(body)).ok());
    }
    Actor::new(part, client).play();
    others.into_iter().for_each(Task::join);
}

/// Connects, with retries: the server may be away.
fn connect(part: &Part) -> Option<Client<Sim>> {
    let host = part.sim.host();
    let until = host.now() + PATIENCE;
    loop {
        match Client::connect(&part.sim, &part.address, part.drawn.config.clone()) {
            Ok(client) => return Some(client),
            Err(_) if host.now() < until => host.sleep(host.now() + 100_000),
            Err(error) => {
                part.book.violate(format!("client {}: {}", part.first, WithSources(&error)));
                return None;
            }
        }
    }
}

struct Actor {
    part: Part,
    client: Client<Sim>,
    random: Random,
    open: BTreeMap<CallId, Open>,
    next: u64,
}

pub(super) fn end_of(book: &CallLedger, number: u64, error: &CallError) -> End {
    if error.cause() == Some(Cause::Refused(Status::DuplicateCall)) {
        book.violate(format!("call {number} was refused as a duplicate, and nobody made it twice"));
    }
    match error.certainty() {
        Certainty::Executed => End::Executed,
        Certainty::NotExecuted => End::Not,
        // A later certainty claims nothing here.
        _ => End::Maybe,
    }
}

impl Actor {
    fn new(part: Part, client: Client<Sim>) -> Self {
        let random = Random::new(part.seed, 3);
        Actor { next: part.first, part, client, random, open: BTreeMap::new() }
    }

    fn now(&self) -> Nanos {
        self.part.sim.host().now()
    }

    fn sleep(&self, time: Nanos) {
        let host = self.part.sim.host();
        host.sleep(host.now() + time);
    }

    fn play(mut self) {
        for sent in 0..self.part.drawn.calls {
            if self.part.drawn.quits_after.is_some_and(|quits| sent >= quits) {
                self.part.book.abandon(self.part.first, self.next);
                return self.client.close();
            }
            match self.part.drawn.style {
                Style::Synchronous => self.call(),
                _ => self.send(),
            }
            if self.random.one_in(3) {
                self.client.progress();
                self.collect();
            }
            if self.random.one_in(40) {
                self.give_up_one();
            }
            if self.random.one_in(20) {
                let time = self.random.below(100_000);
                self.open.values_mut().for_each(|open| open.watched = false);
                self.sleep(time);
            }
        }
        let _ = self.client.flush();
        while !self.part.weather.is_calm() {
            self.client.progress();
            self.collect();
            self.sleep(20_000);
            self.open.values_mut().for_each(|open| open.watched = false);
        }
        self.finish();
    }

    fn choose(&mut self) -> (usize, u16, u64, usize) {
        let worker = self.random.below(self.client.workers().max(1) as u64) as usize;
        let function = match self.random.below(8) {
            0 => POOLED,
            1 if self.part.pulls => PULLED,
            _ => ECHO,
        };
        let number = self.next;
        self.next += 1;
        (worker, function, number, size(&mut self.random))
    }

    /// Makes one call and waits for its end.
    fn call(&mut self) {
        let (worker, function, number, size) = self.choose();
        let bytes = request(number, size);
        let own = self.part.drawn.own_time(&mut self.random);
        let before = self.now();
        self.part.begin(number, function, own);
        let since = self.part.sim.time();
        let called = self.client.within_or_default(own).call_on(worker, function, &bytes);
        self.part.check_turn(number, function, since);
        called.as_ref().err().into_iter().for_each(|error| self.part.check_connection(number, error));
        match called.map(|response| *response == *answer_to(&bytes)) {
            Ok(right) => {
                self.part.book.sent(number);
                self.end(number, size, End::Answered, right);
            }
            Err(CallError::NotExecuted(Cause::Disconnected)) => {
                // An unsent call is not recorded in the book; if it was executed, the book reports that.
                self.part.book.not_made(number);
                self.sleep(20_000);
            }
            Err(error) => {
                self.part.book.sent(number);
                self.part.check_time(number, function, own, &error);
                self.end(number, size, end_of(&self.part.book, number, &error), true);
            }
        }
        self.check_deadline(number, before, own);
    }

    fn check_deadline(&self, number: u64, sent: Nanos, own: Option<Duration>) {
        // Reconnecting takes time, too.
        self.part.check_deadline(number, sent, self.part.lateness.connecting, own);
    }

    fn end(&self, number: u64, size: usize, end: End, right: bool) {
        self.part.sim.tell(|| format!("call {number} ends: {end:?}"));
        if !right {
            self.part.book.violate(format!("call {number} of {size} bytes got a wrong answer"));
        }
        self.part.book.ended(number, end);
    }

    /// Sends one call, making room if necessary.
    fn send(&mut self) {
        let (worker, function, number, size) = self.choose();
        let bytes = request(number, size);
        let batched = self.part.drawn.style == Style::Batched && !self.random.one_in(4);
        // Batches that the engine flushes are mostly left to it.
        let flushed = if self.part.drawn.config.batching.is_some() { 40 } else { 4 };
        // Two attempts suffice: a call that finds no room is dropped.
        let own = self.part.drawn.own_time(&mut self.random);
        for _ in 0..2 {
            self.part.begin(number, function, own);
            let since = self.now();
            let client = self.client.within_or_default(own);
            let sent = if batched {
                client.push_on(worker, function, &bytes)
            } else {
                client.submit_on(worker, function, &bytes)
            };
            if self.now() > since + WAITED {
                // It waited for room. Ends of other calls meanwhile are taken late.
                self.open.values_mut().for_each(|open| open.watched = false);
            }
            if let Err(error) = &sent {
                self.part.sim.tell(|| format!("call {number} is not sent: {error}"));
                self.part.book.not_made(number);
            }
            match sent {
                Ok(id) => {
                    self.part.sim.tell(|| format!("call {number} of {size} bytes is sent as {id:?}"));
                    self.part.book.sent(number);
                    let open = Open { number, size, sent: self.now(), own, function, watched: true };
                    if let Some(other) = self.open.insert(id, open) {
                        self.part.book.violate(format!("calls {} and {number} have one id", other.number));
                    }
                    if batched && self.random.one_in(flushed) {
                        let _ = self.client.flush();
                    }
                    return;
                }
                Err(CallError::NotExecuted(Cause::WindowFull)) => self.make_room(),
                Err(CallError::NotExecuted(_)) => {
                    let time = self.random.below(50_000);
                    return self.sleep(time);
                }
                Err(error) => {
                    return self.part.book.violate(format!("call {number} was not sent, yet {error}"));
                }
            }
        }
    }

    fn make_room(&mut self) {
        match self.client.wait_any() {
            Some(id) => self.take(id),
            None => {
                self.client.progress();
                self.sleep(1_000);
            }
        }
    }

    /// Takes the outcome of a finished call.
    fn take(&mut self, id: CallId) {
        let Some(open) = self.open.remove(&id) else {
            return self.part.book.violate(format!("{id:?} ended twice, or is nobody's"));
        };
        let (end, right) = match self.client.outcome(id) {
            Ok(bytes) => (End::Answered, *bytes == *answer_to(&request(open.number, open.size))),
            Err(error) => {
                self.part.check_time(open.number, open.function, open.own, &error);
                self.part.check_connection(open.number, &error);
                (end_of(&self.part.book, open.number, &error), true)
            }
        };
        self.client.forget(id);
        self.end(open.number, open.size, end, right);
        if open.watched {
            self.check_deadline(open.number, open.sent, open.own);
        }
    }

    fn collect(&mut self) {
        while let Some(id) = self.client.next_done() {
            self.take(id);
        }
    }

    /// Makes a caller lose interest in a call.
    fn give_up_one(&mut self) {
        let chosen = self.random.below(self.open.len().max(1) as u64) as usize;
        let Some(id) = self.open.keys().nth(chosen).copied() else { return };
        if let Some(open) = self.open.remove(&id) {
            self.client.forget(id);
            self.part.book.ended(open.number, End::Abandoned);
        }
    }

    /// Finishes in calm conditions: open calls end, new calls succeed, and no resource remains occupied.
    fn finish(mut self) {
        let until = self.now() + PATIENCE;
        while !self.open.is_empty() {
            if self.now() > until {
                let number = self.open.values().next().map_or(0, |open| open.number);
                self.part.book.violate(format!("call {number} does not end"));
                break;
            }
            match self.client.wait_any() {
                Some(id) => self.take(id),
                None => {
                    let open = self.open.len();
                    let number = self.open.values().next().map_or(0, |open| open.number);
                    self.part.book.violate(format!("{open} calls never ended, {number} first"));
                    break;
                }
            }
        }
        for _ in 0..LAST_CALLS {
            self.must_succeed();
        }
        self.look_for_leaks();
        self.client.close();
    }

    fn must_succeed(&mut self) {
        let until = self.now() + self.part.patience;
        let mut last = None;
        while self.now() < until {
            let (worker, _, number, size) = self.choose();
            let bytes = request(number, size);
            let since = self.part.sim.time();
            let called = self.client.call_on(worker, ECHO, &bytes);
            self.part.check_turn(number, ECHO, since);
            called.as_ref().err().into_iter().for_each(|error| self.part.check_connection(number, error));
            match called.map(|response| *response == *answer_to(&bytes)) {
                Ok(right) => {
                    self.part.book.sent(number);
                    return self.end(number, size, End::Answered, right);
                }
                Err(CallError::NotExecuted(Cause::Disconnected)) => {}
                Err(error) => {
                    self.part.book.sent(number);
                    self.end(number, size, end_of(&self.part.book, number, &error), true);
                    last = Some(error);
                }
            }
            self.part.rest_out_of_step();
        }
        let why = last.map_or("there was no connection".to_owned(), |error| error.to_string());
        self.part
            .book
            .violate(format!("client {}: no call succeeds though all is calm: {why}", self.part.first));
    }

    /// Checks that abandoned calls have ended too, and that the whole window is free.
    fn look_for_leaks(&mut self) {
        let until = self.now() + PATIENCE;
        while self.client.in_flight() > 0 && self.now() < until {
            self.client.progress();
            // Needed for a batch that a full ring held back and whose calls have expired.
            let _ = self.client.flush();
            self.sleep(50_000);
        }
        let left = self.client.in_flight();
        if left > 0 {
            self.part.book.violate(format!("client {}: {left} calls stay in flight", self.part.first));
        }
        // A thread of a shared connection has the window for itself, whatever the server grants.
        let granted = if self.part.drawn.threads > 1 { u16::MAX } else { self.part.server_window };
        let window = usize::from(self.part.drawn.config.window.min(granted));
        for worker in 0..self.client.workers() {
            let room = self.client.room(worker);
            // A lane that broke meanwhile is replaced at the next call.
            if room != window && room != 0 {
                let first = self.part.first;
                self.part.book.violate(format!("client {first}: room for {room} calls of {window} is left"));
            }
        }
    }
}
