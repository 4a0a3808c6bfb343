//! One client of a load: its calls, their timing, and the recording of results.

use super::{Board, FIRST_FUNCTION, Function, Load, LoadError, Pace};
use crate::random_values::{Skew, Times, gaussian};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Signal, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{CallError, CallId, Cause, Client, ClientConfig, ConnectError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Read-only data of all clients. Shared, since thousands of copies would evict each other from the caches.
pub(super) struct Table {
    pub(super) load: Load,
    pub(super) board: Board,
    /// Source of request payloads, as long as the longest.
    pub(super) payload: Vec<u8>,
}

/// One client.
pub(super) struct Player {
    pub(super) sim: Sim,
    pub(super) random: Random,
    pub(super) table: Arc<Table>,
    /// Distribution of calls over workers; `None` if all go to one.
    pub(super) calls_to: Option<Skew>,
    /// Remaining calls.
    pub(super) left: u64,
    /// The only function of the thread.
    pub(super) function: Option<usize>,
}

/// A call to be made.
#[derive(Clone, Copy)]
struct Next {
    worker: usize,
    /// Index of its function in the load.
    function: usize,
    bytes: usize,
}

impl Next {
    fn id(self) -> u16 {
        FIRST_FUNCTION + self.function as u16
    }
}

/// Time between two looks at the answers of a client that thinks, in nanoseconds.
const LOOK_EVERY: Nanos = 1_000;

/// A call in flight: its id, the index of its function, and its start.
type Open = (CallId, usize, Nanos);

/// Plays the threads of one connection: this one, which connects, and the others, which it starts. The signals
/// are those to start, of news, and to stop.
pub(super) fn play_all<F: Fabric, S: Signal>(
    players: Vec<Player>,
    fabric: &F,
    address: &Address,
    worker: Option<u16>,
    signals: &[S; 3],
) {
    let mut players = players.into_iter();
    match players.next() {
        Some(only) if players.len() == 0 => {
            only.play(|player| player.connect(fabric, address, worker), signals);
        }
        Some(first) => share(first, players, (fabric, address, worker), signals),
        None => {}
    }
}

/// Plays the threads of a connection that several share.
#[inline(never)]
fn share<F: Fabric, S: Signal>(
    first: Player,
    others: impl Iterator<Item = Player>,
    (fabric, address, worker): (&F, &Address, Option<u16>),
    signals: &[S; 3],
) {
    let client = first.connect(fabric, address, worker);
    let mut tasks: Vec<Task> = Vec::new();
    for player in others {
        let Ok(client) = &client else {
            // The first thread tells the error.
            player.is_over(&signals[1]);
            continue;
        };
        let other = client.another();
        let (host, signals) = (player.sim.host().clone(), signals.clone());
        tasks.extend(host.spawn("client", Box::new(move || player.play(|_| other, &signals))).ok());
    }
    first.play(|_| client, signals);
    tasks.into_iter().for_each(Task::join);
}

impl Player {
    /// Counts a thread that makes no calls.
    fn is_over<S: Signal>(&self, news: &S) {
        self.table.board.connected.fetch_add(1, Ordering::Relaxed);
        self.table.board.done.fetch_add(1, Ordering::Relaxed);
        news.raise();
    }

    fn play<F: Fabric, S: Signal>(
        mut self,
        connect: impl FnOnce(&Self) -> Result<Client<F>, ConnectError>,
        [start, news, stop]: &[S; 3],
    ) {
        let client = connect(&self);
        self.table.board.connected.fetch_add(1, Ordering::Relaxed);
        news.raise();
        match client {
            Ok(mut client) => {
                start.wait(0, Nanos::MAX);
                if let Err(error) = self.call_all(&mut client) {
                    self.table.board.fail(LoadError::Call(error));
                }
                self.table.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
                stop.wait(0, Nanos::MAX);
            }
            Err(error) => {
                self.table.board.fail(error.into());
                self.table.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
            }
        }
    }

    /// Not inlined, like the loops of calls: a waiting client should occupy little stack, since thousands of
    /// stacks are in use.
    #[inline(never)]
    fn connect<F: Fabric>(
        &self,
        fabric: &F,
        address: &Address,
        worker: Option<u16>,
    ) -> Result<Client<F>, ConnectError> {
        let load = &self.table.load;
        // A thread that calls one function, on a connection of its own, needs no lane for another.
        let own = self.function.filter(|_| load.handles.is_none());
        let functions = match own {
            Some(place) => load.plans().into_iter().skip(place).take(1).collect(),
            None => load.plans(),
        };
        let usual = load.functions[own.unwrap_or(0)].plan;
        let config = ClientConfig {
            window: load.window(),
            ring_bytes: load.ring_bytes,
            timeout: Duration::MAX,
            connect_timeout: Duration::from_nanos(Nanos::MAX / 8),
            max_response: load.largest(Function::largest_result),
            large_memory: load.large_memory(),
            worker,
            fetch_choice: load.fetch_choice,
            first_read: load.first_read,
            functions,
            batching: load.batching(),
            most_together: load.most_together,
            own_memory_from: load.own_memory_from,
            max_queue_pairs: load.queue_pairs,
            thread_scheduling: load.thread_scheduling,
            credit_renewal: load.credit_renewal,
            ..ClientConfig::with_plan(usual)
        };
        Client::connect(fabric, address, config)
    }

    fn answered(&self, function: usize, since: Nanos) {
        self.table.board.note(self.sim.host().now());
        if self.table.board.counting.load(Ordering::Relaxed) {
            self.table.board.latencies[function].record(self.sim.time().saturating_sub(since));
        }
    }

    /// Returns whether another call is to be made.
    fn wants(&self) -> bool {
        self.left > 0 && !self.table.board.over.load(Ordering::Relaxed)
    }

    /// Returns the worker of the next call or batch.
    fn worker(&mut self) -> usize {
        match &self.calls_to {
            Some(skew) => skew.next(&mut self.random) as usize,
            None => 0,
        }
    }

    /// Draws the next call and counts it as made.
    fn next(&mut self) -> Next {
        let worker = self.worker();
        self.next_to(worker)
    }

    /// [`next`](Player::next) for a given worker.
    fn next_to(&mut self, worker: usize) -> Next {
        self.left -= 1;
        let function = self.function.unwrap_or_else(|| self.table.load.choose(&mut self.random));
        let bytes = self.table.load.functions[function].requests.next(&mut self.random) as usize;
        Next { worker, function, bytes }
    }

    fn call_all<F: Fabric>(&mut self, client: &mut Client<F>) -> Result<(), CallError> {
        match self.table.load.pace {
            Pace::Closed { window: 0 | 1, think } => self.call_by_call(client, think),
            Pace::Closed { window, .. } => self.call_in_windows(client, usize::from(window)),
            Pace::Batches { size } => self.call_in_batches(client, |_, _| usize::from(size.max(1))),
            // The lanes of a plan are in the order of the workers.
            Pace::TunedBatches { .. } => self.call_in_batches(client, |client, worker| {
                client.batch_calls().get(worker).map_or(1, |size| usize::from(*size))
            }),
            Pace::Posted { size, think, spread } => {
                self.call_together(client, usize::from(size.max(1)), think, spread)
            }
            Pace::Pushed { window, .. } => self.push(client, usize::from(window.max(1))),
            Pace::Scheduled { gaps } => self.call_on_schedule(client, gaps),
            Pace::Open { gaps } => self.call_in_time(client, gaps),
        }
    }

    /// Makes one call after the answer to the previous one.
    #[inline(never)]
    fn call_by_call<F: Fabric>(&mut self, client: &mut Client<F>, think: Times) -> Result<(), CallError> {
        while self.wants() {
            let next = self.next();
            let since = self.sim.time();
            drop(client.call_on(next.worker, next.id(), &self.table.payload[..next.bytes])?);
            self.answered(next.function, since);
            let think = think.next(&mut self.random);
            if think > 0 {
                self.sim.host().sleep(self.sim.host().now() + think);
            }
        }
        Ok(())
    }

    /// Makes one call at a time, each at its due time or with the answer to the previous one.
    #[inline(never)]
    fn call_on_schedule<F: Fabric>(&mut self, client: &mut Client<F>, gaps: Times) -> Result<(), CallError> {
        let host = self.sim.host().clone();
        let mut due = self.sim.time();
        while self.wants() {
            due += gaps.next(&mut self.random);
            let left = due.saturating_sub(self.sim.time());
            if left > 0 {
                host.sleep(host.now() + left);
            }
            let next = self.next();
            let since = self.sim.time();
            drop(client.call_on(next.worker, next.id(), &self.table.payload[..next.bytes])?);
            self.answered(next.function, since);
        }
        Ok(())
    }

    /// Keeps `window` calls in flight.
    #[inline(never)]
    fn call_in_windows<F: Fabric>(&mut self, client: &mut Client<F>, window: usize) -> Result<(), CallError> {
        let table = Arc::clone(&self.table);
        let mut open: VecDeque<Open> = VecDeque::new();
        let mut refused = None;
        while refused.is_some() || self.wants() || !open.is_empty() {
            let next = match refused.take() {
                None if self.wants() && open.len() < window => Some(self.next()),
                other => other,
            };
            if let Some(call) = next {
                match client.submit_on(call.worker, call.id(), &table.payload[..call.bytes]) {
                    Ok(id) => {
                        open.push_back((id, call.function, self.sim.time()));
                        continue;
                    }
                    Err(CallError::NotExecuted(Cause::WindowFull)) if !open.is_empty() => {
                        refused = next;
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some((id, function, since)) = open.pop_front() {
                drop(client.wait(id)?);
                self.answered(function, since);
            }
        }
        Ok(())
    }

    /// Makes calls in batches and waits for all answers of each. A call's latency starts when it is made, so
    /// it includes the time to assemble the batch.
    #[inline(never)]
    fn call_in_batches<F: Fabric>(
        &mut self,
        client: &mut Client<F>,
        size: impl Fn(&Client<F>, usize) -> usize,
    ) -> Result<(), CallError> {
        let table = Arc::clone(&self.table);
        let mut open: Vec<Open> = Vec::with_capacity(usize::from(table.load.window()));
        while self.wants() {
            let worker = self.worker();
            let size = size(client, worker);
            while open.len() < size && self.left > 0 {
                let next = self.next_to(worker);
                let since = self.sim.time();
                let id = client.push_waiting_on(worker, next.id(), &table.payload[..next.bytes])?;
                open.push((id, next.function, since));
            }
            client.flush_waiting()?;
            for (id, function, since) in open.drain(..) {
                drop(client.wait(id)?);
                self.answered(function, since);
            }
        }
        Ok(())
    }

    /// Posts `size` separate calls, waits for all answers, and thinks. All calls have the latency of their batch.
    #[inline(never)]
    fn call_together<F: Fabric>(
        &mut self,
        client: &mut Client<F>,
        size: usize,
        think: Times,
        spread: f64,
    ) -> Result<(), CallError> {
        let table = Arc::clone(&self.table);
        let factor = match spread {
            0.0 => 1.0,
            _ => (1.0 + spread * gaussian(&mut self.random)).max(0.0),
        };
        let mut open: Vec<(CallId, usize)> = Vec::with_capacity(size);
        while self.wants() {
            let since = self.sim.time();
            client.post_together(|client| {
                while open.len() < size && self.left > 0 {
                    let next = self.next();
                    let id = client.submit_on(next.worker, next.id(), &table.payload[..next.bytes])?;
                    open.push((id, next.function));
                }
                Ok(())
            })?;
            for (id, _) in &open {
                drop(client.wait(*id)?);
            }
            open.drain(..).for_each(|(_, function)| self.answered(function, since));
            let think = (think.next(&mut self.random) as f64 * factor) as Nanos;
            if think > 0 {
                self.think(client, think);
            }
        }
        Ok(())
    }

    /// Lets time pass. A client under a lease keeps looking at its answers, as a coroutine's thread does.
    fn think<F: Fabric>(&self, client: &mut Client<F>, time: Nanos) {
        let host = self.sim.host();
        let until = host.now() + time;
        while host.now() < until {
            client.progress();
            host.sleep(until.min(host.now() + LOOK_EVERY));
        }
    }

    /// Keeps `window` calls in flight, in batches that the engine flushes. A call's latency starts when it is
    /// made.
    #[inline(never)]
    fn push<F: Fabric>(&mut self, client: &mut Client<F>, window: usize) -> Result<(), CallError> {
        let table = Arc::clone(&self.table);
        let mut open: Vec<(usize, Nanos)> = Vec::new();
        let mut in_flight = 0;
        loop {
            while in_flight < window && self.wants() {
                let next = self.next();
                let since = self.sim.time();
                let id = client.push_waiting_on(next.worker, next.id(), &table.payload[..next.bytes])?;
                open.resize(open.len().max(id.index() + 1), (0, 0));
                open[id.index()] = (next.function, since);
                in_flight += 1;
            }
            let Some(id) = client.wait_any() else { return Ok(()) };
            let outcome = client.outcome(id).map(|_| ());
            client.forget(id);
            outcome?;
            in_flight -= 1;
            let (function, since) = open[id.index()];
            self.answered(function, since);
        }
    }

    /// Makes calls at their due times.
    #[inline(never)]
    fn call_in_time<F: Fabric>(&mut self, client: &mut Client<F>, gaps: Times) -> Result<(), CallError> {
        let table = Arc::clone(&self.table);
        let host = self.sim.host().clone();
        let mut due = self.sim.time();
        let mut open: VecDeque<Open> = VecDeque::new();
        while self.wants() {
            due += gaps.next(&mut self.random);
            // Answers are taken in the meantime; a sleep of the whole gap would delay them.
            while self.sim.time() < due {
                client.progress();
                self.take_done(client, &mut open)?;
                let left = due.saturating_sub(self.sim.time());
                host.sleep(host.now() + left.min(1_000));
            }
            let next = self.next();
            loop {
                match client.submit_on(next.worker, next.id(), &table.payload[..next.bytes]) {
                    Ok(id) => break open.push_back((id, next.function, due)),
                    Err(CallError::NotExecuted(Cause::WindowFull)) => {
                        let Some((id, function, since)) = open.pop_front() else { continue };
                        drop(client.wait(id)?);
                        self.answered(function, since);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        while let Some((id, function, since)) = open.pop_front() {
            drop(client.wait(id)?);
            self.answered(function, since);
        }
        Ok(())
    }

    fn take_done<F: Fabric>(
        &self,
        client: &mut Client<F>,
        open: &mut VecDeque<Open>,
    ) -> Result<(), CallError> {
        while let Some(&(id, function, since)) = open.front() {
            if !client.is_done(id) {
                break;
            }
            open.pop_front();
            drop(client.wait(id)?);
            self.answered(function, since);
        }
        Ok(())
    }
}
