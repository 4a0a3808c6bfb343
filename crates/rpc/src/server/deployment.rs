//! Servers that share one schedule: ScaleRPC's global synchronisation (section 4.2).
//!
//! A thread of each server asks the time server once an interval, by ordinary calls of a function that the workers answer
//! beside the application's. The calls carry the four time stamps, the counts of the follower's clients, and new cycles.
//! The state machines are in `grouped/`; this file gives them clocks, calls and the server's schedule.

use super::config::ServerConfig;
use super::turns::Turns;
use crate::error::ServeError;
use crate::grouped::common_clock::Exchange;
use crate::grouped::cycle::{Answer, Cycle, Question};
use crate::grouped::leadership::{Leadership, Step};
use crate::limits::MAX_FUNCTIONS;
use crate::service::{Reply, Request, Service};
use dunlin_fabric::{Address, Clock, Host, Nanos, Signal, nanos};
use dunlin_wire::Status;
use dunlin_wire::handshake::Token;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Exchanges of one interval, of which the quickest counts: one that waited behind other calls says less.
const EXCHANGES: usize = 4;
/// Intervals for which a new time server learns of the clients of others before it makes a cycle.
const LEARNING: Nanos = 5;
/// Intervals until a cycle begins, in which all servers hear of it.
const AHEAD: Nanos = 3;

/// The servers of a deployment that share one schedule of groups and slices, so that a client of several of them is
/// served by all of them at once: ScaleRPC section 4.2. [`ServerBuilder::deployment`](crate::ServerBuilder::deployment).
///
/// Clients are in the same group on all servers if they give all of them the same
/// [`ClientConfig::identity`](crate::ClientConfig::identity).
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The addresses of all servers, in the same order at each of them. Earlier servers are preferred as time servers.
    pub servers: Vec<Address>,
    /// The place of this server in the list.
    pub own: u16,
    /// The number of the function by which servers ask each other; the same at all of them, and none of the
    /// application's. Default: 4095.
    pub function: u16,
    /// The secret without which a server answers no question, at most 255 bytes; empty for none, the default. Any client
    /// that knows it may change the groups.
    pub secret: Vec<u8>,
    /// The time between two exchanges with the time server. Another server follows it after five to some ten times as
    /// long without an answer. Default: 100 ms.
    pub interval: Duration,
    /// The time limit of each question, and of connecting to a server. Default: 100 ms.
    pub timeout: Duration,
}

impl Deployment {
    /// Makes the settings of the server at place `own` of `servers`, with the defaults.
    pub fn new(servers: Vec<Address>, own: u16) -> Deployment {
        Deployment {
            servers,
            own,
            function: MAX_FUNCTIONS - 1,
            secret: Vec::new(),
            interval: Duration::from_millis(100),
            timeout: Duration::from_millis(100),
        }
    }

    /// Checks the settings, and that the application has no function of this number.
    pub(super) fn check(&self, is_taken: impl FnOnce(u16) -> bool) -> Result<(), ServeError> {
        let out = |what, value: u64, must| Err(ServeError::Setting { what, value, must });
        if usize::from(self.own) >= self.servers.len() || self.servers.len() > 1024 {
            return out("the own place in a deployment", self.own.into(), "that of one of 1 to 1024 servers");
        }
        super::check_function(self.function)?;
        if is_taken(self.function) {
            return out("a deployment's function", self.function.into(), "none of the application's");
        }
        if self.secret.len() > 255 {
            return out("a deployment's secret", self.secret.len() as u64, "at most 255 bytes");
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.interval) {
            return out("a deployment's interval", nanos(self.interval), "1 ms to 60 s");
        }
        Ok(())
    }
}

/// The means to ask another server. The rooms of the server know no client.
pub(crate) trait Asker: Send {
    /// Asks the server at a place of the list, and returns its answer. Blocks for [`Deployment::timeout`], and as long to
    /// connect.
    fn ask(&mut self, server: u16, question: &[u8]) -> Option<Vec<u8>>;
}

/// A deployment, and how to make the means to ask its servers with the settings that the server has when it starts.
pub(crate) struct Prepared {
    pub(crate) settings: Deployment,
    pub(crate) asker: MakeAsker,
}

/// Makes the means to ask.
type MakeAsker = Box<dyn FnOnce(&ServerConfig) -> Box<dyn Asker>>;

/// The state that a server's workers and its asking thread share.
#[derive(Debug)]
pub(crate) struct Common {
    settings: Deployment,
    turns: Arc<Turns>,
    /// The longest answer, in bytes.
    max_response: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    leadership: Leadership,
    /// The last cycle that the server has made or heard of.
    cycle: Option<Arc<Cycle>>,
    /// Since when the server leads, and when it looked at its groups last.
    led: Option<(Nanos, Nanos)>,
}

impl Common {
    pub(super) fn new(settings: Deployment, turns: Arc<Turns>, max_response: u64, now: Nanos) -> Self {
        let place = (settings.own, settings.servers.len() as u16);
        let leadership = Leadership::new(place, nanos(settings.interval), now);
        let state = Mutex::new(State { leadership, cycle: None, led: None });
        Common { settings, turns, max_response, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers another server's question.
    fn answer(&self, payload: &[u8], clock: &Clock) -> Result<Vec<u8>, Status> {
        let taken = clock.now();
        let question = Question::decode(payload).map_err(|_| Status::Malformed)?;
        if !Token(question.secret).matches(&self.settings.secret) {
            return Err(Status::Malformed);
        }
        self.turns.count_others(&question.counts, taken);
        let (claim, estimate, cycle) = {
            let state = self.lock();
            let cycle = state.cycle.clone().filter(|_| state.leadership.leads());
            (state.leadership.claim(), state.leadership.estimate(), cycle)
        };
        let common = |own: Nanos| estimate.map_or(0, |estimate| estimate.common(own));
        let cycle = cycle.filter(|cycle| cycle.number != question.cycle);
        Ok(Answer { claim, stamps: [common(taken), 0], cycle }.encode(|| common(clock.now())))
    }

    /// Makes a cycle if this server leads and has other groups than the last one, and shows the schedule to the workers.
    fn publish(&self, now: Nanos) {
        let mut state = self.lock();
        let Some(estimate) = state.leadership.estimate() else { return };
        let interval = nanos(self.settings.interval);
        let (leads, common) = (state.leadership.leads(), estimate.common(now));
        state.led = state.led.filter(|_| leads).or(leads.then_some((now, now)));
        let is_begun = |cycle: &Arc<Cycle>| common.wrapping_sub(cycle.from) as i64 >= 0;
        if let Some((since, looked)) = state.led {
            let passed = now.saturating_sub(looked);
            let may_change = state.cycle.as_ref().is_some_and(is_begun)
                && passed >= interval
                && now.saturating_sub(since) >= LEARNING * interval;
            if may_change || state.cycle.is_none() {
                state.led = Some((since, now));
                let groups = self.turns.plan(passed, now, 10 * interval, |groups| {
                    Answer::most_clients(self.max_response, groups)
                });
                if state.cycle.as_ref().is_none_or(|cycle| cycle.groups() != groups) {
                    let number = state.cycle.as_ref().map_or(0, |cycle| cycle.number) as u32;
                    let term = state.leadership.claim().map_or(0, |claim| claim.term);
                    let ahead = if state.cycle.is_some() { AHEAD * interval } else { 0 };
                    let number = u64::from(term) << 32 | u64::from(number.wrapping_add(1));
                    state.cycle = Cycle::new(number, common.wrapping_add(ahead), groups).map(Arc::new);
                }
            }
        }
        if let Some(cycle) = state.cycle.clone() {
            drop(state);
            self.turns.follow(estimate, &cycle, now);
        }
    }
}

/// Answers the questions of other servers, and leaves all other calls to the application's service.
pub(super) struct Answering {
    pub(super) service: Box<dyn Service>,
    pub(super) common: Arc<Common>,
}

impl Service for Answering {
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        if request.function != self.common.settings.function {
            return self.service.call(request, reply);
        }
        Ok(reply.write(&self.common.answer(request.payload, request.clock)?)?)
    }

    fn on_slow(&mut self, function: u16, took: Duration) {
        self.service.on_slow(function, took);
    }

    fn passes(&self) -> usize {
        self.service.passes()
    }

    fn prepare(&mut self, pass: usize, function: u16, payload: &[u8]) {
        if function != self.common.settings.function {
            self.service.prepare(pass, function, payload);
        }
    }
}

/// The thread of a server that asks the others.
pub(super) struct Asking<H: Host> {
    pub(super) host: H,
    pub(super) common: Arc<Common>,
    pub(super) asker: Box<dyn Asker>,
    pub(super) signal: H::Signal,
    pub(super) stop: Arc<AtomicBool>,
}

impl<H: Host> Asking<H> {
    /// Runs until the server stops.
    pub(super) fn run(mut self) {
        loop {
            let seen = self.signal.seen();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let step = self.common.lock().leadership.step(self.host.now());
            match step {
                Step::Wait(until) => {
                    self.signal.wait(seen, until);
                }
                Step::Ask(server) => self.ask(server),
            }
            self.common.publish(self.host.now());
        }
    }

    fn ask(&mut self, server: u16) {
        let (follows, known) = {
            let state = self.common.lock();
            let claim = state.leadership.claim();
            (
                claim.filter(|claim| claim.server == server),
                state.cycle.as_ref().map_or(0, |cycle| cycle.number),
            )
        };
        let counts = if follows.is_some() { self.common.turns.own_counts() } else { Vec::new() };
        let secret = self.common.settings.secret.clone();
        let mut question = Question { secret, cycle: known, counts };
        let mut quickest: Option<(Exchange, Answer)> = None;
        let mut cycle = None;
        for _ in 0..EXCHANGES {
            let bytes = question.encode();
            let asked = self.host.now();
            let Some(bytes) = self.asker.ask(server, &bytes) else { break };
            let heard = self.host.now();
            let Ok(mut answer) = Answer::decode(&bytes) else { break };
            cycle = answer.cycle.take().or(cycle);
            // Later questions of the interval are shorter, and so are their answers.
            (question.counts, question.cycle) =
                (Vec::new(), cycle.as_ref().map_or(question.cycle, |cycle| cycle.number));
            let [taken, answered] = answer.stamps;
            let exchange = Exchange { asked, taken, answered, heard };
            if quickest.as_ref().is_none_or(|(best, _)| exchange.round_trip() < best.round_trip()) {
                quickest = Some((exchange, answer));
            }
            if follows.is_none() {
                break;
            }
        }
        let Some((exchange, answer)) = quickest else { return };
        let now = self.host.now();
        let mut state = self.common.lock();
        state.leadership.on_answer(server, answer.claim, exchange, now);
        let is_leader = state.leadership.claim().is_some_and(|claim| claim.server == server);
        if is_leader && answer.claim == state.leadership.claim() && cycle.is_some() {
            state.cycle = cycle;
        }
    }
}
