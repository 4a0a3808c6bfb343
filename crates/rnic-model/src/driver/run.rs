//! The event loop: threads post, messages arrive, answers return.

use super::{Pick, Places, Signaling, Test, TestError};
use crate::cache::mix;
use crate::network::{Counters, Network};
use crate::prices::Prices;
use crate::request::{Linked, Request, Touch};
use dunlin_fabric::Nanos;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The result of a test.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Work requests per second over all threads.
    pub rate: f64,
    /// Mean time from before posting until the completion (or the data) is visible, in nanoseconds.
    pub latency_ns: f64,
    /// Mean time from before posting until the payload is visible at the target, in nanoseconds.
    pub one_way_ns: f64,
    /// Measured virtual time, in nanoseconds.
    pub measured_ns: Nanos,
    /// Counters of each host's NIC during the measurement.
    pub counters: Vec<Counters>,
}

/// A work request in flight.
struct Flight {
    request: Request,
    thread: u32,
    /// Index among the thread's connections.
    connection: u32,
    host: u32,
    peer: u32,
    began: Nanos,
    /// When its completion is visible, once known.
    done: Option<Nanos>,
    /// Number of holders: the network until the end is known, the thread until it has observed it.
    holders: u8,
}

/// The state of a thread.
struct Runner {
    random: u64,
    posted: u64,
    turn: usize,
    /// The window: flights, oldest first.
    window: VecDeque<u32>,
    /// By connection: number of posted work requests.
    counts: Vec<u32>,
    /// By connection: the signaled work request that has not been polled.
    signaled: Vec<Option<u32>>,
    /// By connection: the next block.
    blocks: Vec<u32>,
    /// By connection: the arrival time of the last post, and the time at which the last completion is
    /// visible. Both keep order, as on a queue pair.
    last_arrivals: Vec<Nanos>,
    last_ends: Vec<Nanos>,
    /// The flight that the thread waits for.
    waits_for: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Step(u32),
    Arrive(u32),
    Complete(u32),
}

struct State<'t, 'c> {
    test: &'t Test<'c>,
    network: Network,
    prices: Vec<(u64, u64)>,
    heap: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    flights: Vec<Flight>,
    free: Vec<u32>,
    runners: Vec<Runner>,
    posted: u64,
    latency: u128,
    one_way: u128,
    ended: u64,
    arrived: u64,
    counting: bool,
}

/// Runs a test. Its virtual time ends with the last measured post.
///
/// # Errors
/// Returns an error if the test cannot be run.
pub fn run(test: &Test<'_>) -> Result<Outcome, TestError> {
    test.check()?;
    let mut state = State::new(test)?;
    let hosts = test.cluster.hosts.len();
    let mut began: Option<(Nanos, Vec<Counters>)> = None;
    let mut now = 0;
    while let Some(Reverse((time, _, event))) = state.heap.pop() {
        now = time;
        state.handle(time, event);
        if began.is_none() && state.posted >= test.warm_up {
            began = Some((time, state.counters(hosts)));
            state.counting = true;
        }
        if state.posted >= test.warm_up + test.measured {
            break;
        }
    }
    let (since, before) = began.unwrap_or_default();
    let measured_ns = (now - since).max(1);
    let counters = state.counters(hosts).into_iter().zip(before).map(|(now, then)| now.since(then)).collect();
    let mean = |sum: u128, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
    Ok(Outcome {
        rate: test.measured as f64 * 1e9 / measured_ns as f64,
        latency_ns: mean(state.latency, state.ended),
        one_way_ns: mean(state.one_way, state.arrived),
        measured_ns,
        counters,
    })
}

impl<'t, 'c> State<'t, 'c> {
    fn new(test: &'t Test<'c>) -> Result<Self, TestError> {
        let network = Network::new(&test.cluster)?;
        let prices = test.cluster.hosts.iter().map(|host| {
            let prices = Prices::of(host.profile);
            let verbs = prices.verbs();
            (verbs.poll_found_ns as u64, verbs.benchmark_loop_ns as u64)
        });
        let runners = test.threads.iter().enumerate().map(|(number, thread)| Runner {
            random: mix(number as u64 ^ 0x00c0_ffee),
            posted: 0,
            turn: number % thread.connections.len(),
            window: VecDeque::with_capacity(test.window as usize + 1),
            counts: vec![0; thread.connections.len()],
            signaled: vec![None; thread.connections.len()],
            blocks: vec![0; thread.connections.len()],
            last_arrivals: vec![0; thread.connections.len()],
            last_ends: vec![0; thread.connections.len()],
            waits_for: None,
        });
        let mut state = State {
            test,
            network,
            prices: prices.collect(),
            heap: BinaryHeap::new(),
            sequence: 0,
            flights: Vec::new(),
            free: Vec::new(),
            runners: runners.collect(),
            posted: 0,
            latency: 0,
            one_way: 0,
            ended: 0,
            arrived: 0,
            counting: false,
        };
        for thread in 0..test.threads.len() as u32 {
            state.schedule(u64::from(thread), Event::Step(thread));
        }
        Ok(state)
    }

    fn counters(&self, hosts: usize) -> Vec<Counters> {
        (0..hosts).map(|host| self.network.counters(host, 0)).collect()
    }

    fn schedule(&mut self, time: Nanos, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse((time, self.sequence, event)));
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Step(thread) => self.step(now, thread),
            Event::Arrive(number) => {
                let flight = &self.flights[number as usize];
                let (peer, request, began) = (flight.peer, flight.request, flight.began);
                let arrived = self.network.arrive(now, peer as usize, 0, &request);
                if self.counting {
                    self.one_way += u128::from(arrived.visible - began);
                    self.arrived += 1;
                }
                match arrived.answer {
                    Some(answer) => self.schedule(answer, Event::Complete(number)),
                    None => self.release(number),
                }
            }
            Event::Complete(number) => self.complete(now, number),
        }
    }

    fn complete(&mut self, now: Nanos, number: u32) {
        let flight = &self.flights[number as usize];
        let seen = self.network.complete(now, flight.host as usize, 0, &flight.request);
        let flight = &mut self.flights[number as usize];
        let done = in_order(&mut self.runners[flight.thread as usize].last_ends, flight.connection, seen);
        flight.done = Some(done);
        let (thread, began) = (flight.thread, flight.began);
        if self.counting {
            self.latency += u128::from(done - began);
            self.ended += 1;
        }
        let runner = &mut self.runners[thread as usize];
        if runner.waits_for == Some(number) {
            runner.waits_for = None;
            self.schedule(done, Event::Step(thread));
        }
        self.release(number);
    }

    /// Releases one holder of a flight.
    fn release(&mut self, number: u32) {
        let flight = &mut self.flights[number as usize];
        flight.holders -= 1;
        if flight.holders == 0 {
            self.free.push(number);
        }
    }

    /// Returns whether a flight's end is visible; if not, schedules the thread's next step for that time.
    fn seen(&mut self, now: Nanos, thread: u32, number: u32) -> bool {
        match self.flights[number as usize].done {
            Some(done) if done <= now => true,
            Some(done) => {
                self.schedule(done, Event::Step(thread));
                false
            }
            None => {
                self.runners[thread as usize].waits_for = Some(number);
                false
            }
        }
    }

    /// Performs one iteration of a thread: observes the completions that it needs, then posts a work request.
    fn step(&mut self, now: Nanos, thread: u32) {
        let test = self.test;
        let index = thread as usize;
        let spec = &test.threads[index];
        let (found, turn_cost) = self.prices[spec.host as usize];
        let mut time = now;

        let windowed = match test.signaling {
            Signaling::All => true,
            Signaling::OneIn(_) => test.opcode.answers_with_data(),
        };
        if windowed && self.runners[index].window.len() >= test.window as usize {
            let oldest = self.runners[index].window[0];
            if !self.seen(now, thread, oldest) {
                return;
            }
            self.runners[index].window.pop_front();
            self.release(oldest);
            time += found;
        }

        let count = spec.connections.len();
        let runner = &mut self.runners[index];
        // A thread that waited for a queue pair's completion has already chosen, so the round-robin position
        // stays.
        let choice = match test.pick {
            Pick::InTurn => runner.turn,
            Pick::Random => (((mix(runner.random) >> 32) * count as u64) >> 32) as usize,
        };
        let mut signal = true;
        if let Signaling::OneIn(every) = test.signaling {
            let place = runner.counts[choice] % every;
            signal = place == 0;
            if place == every - 1
                && let Some(number) = runner.signaled[choice]
            {
                if !self.seen(time, thread, number) {
                    return;
                }
                self.runners[index].signaled[choice] = None;
                self.release(number);
                time += found;
            }
        }
        let runner = &mut self.runners[index];
        runner.random = runner.random.wrapping_add(1);
        runner.turn = if runner.turn + 1 == count { 0 } else { runner.turn + 1 };
        runner.counts[choice] += 1;
        runner.posted += 1;
        let remote = place(runner, spec.remote, thread, choice, test.bytes);
        // Spread over the region like the buffers of a window.
        let local = Touch { region: spec.region, offset: (runner.posted % u64::from(test.window)) * 4096 };
        let connection = spec.connections[choice];
        let request = Request {
            initiator: connection.queue_pair,
            target: connection.peer_queue_pair,
            opcode: test.opcode,
            transport: test.transport,
            bytes: test.bytes,
            inline: test.inline,
            signaled: signal,
            linked: Linked::Alone,
            local,
            remote,
        };
        let posted = self.network.post(time, spec.host as usize, 0, &request);
        let arrives = in_order(&mut self.runners[index].last_arrivals, choice as u32, posted.arrives);
        // Without an answer, only a signaled work request completes at its initiator, once sent.
        let completes = posted.sent.is_some() && signal;
        let kept = signal && matches!(test.signaling, Signaling::OneIn(_));
        let flight = Flight {
            request,
            thread,
            connection: choice as u32,
            host: spec.host,
            peer: connection.peer,
            began: time,
            done: None,
            holders: 1 + u8::from(windowed) + u8::from(kept) + u8::from(completes),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.flights[number as usize] = flight;
                number
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        self.schedule(arrives, Event::Arrive(number));
        if let Some(sent) = posted.sent.filter(|_| completes) {
            self.schedule(sent, Event::Complete(number));
        }
        let runner = &mut self.runners[index];
        if windowed {
            runner.window.push_back(number);
        }
        if kept {
            runner.signaled[choice] = Some(number);
        }
        self.posted += 1;
        self.schedule(time + posted.processor + turn_cost, Event::Step(thread));
    }
}

/// Returns when something of a connection that is ready at `ready` happens: not before its predecessors.
fn in_order(last: &mut [Nanos], connection: u32, ready: Nanos) -> Nanos {
    let last = &mut last[connection as usize];
    *last = (*last).max(ready);
    *last
}

/// Returns the target address of a thread's next work request.
fn place(runner: &mut Runner, places: Places, thread: u32, choice: usize, bytes: u32) -> Touch {
    let bytes = u64::from(bytes);
    let random = mix(runner.random ^ 0x5eed_0000_0000_0000);
    let within = |room: u64| ((random >> 32) * room.saturating_sub(bytes).max(1)) >> 32;
    match places {
        Places::Anywhere { first, regions, bytes } => {
            Touch { region: first + thread % regions, offset: within(bytes) }
        }
        Places::Regions { count, bytes } => {
            let region = (((random & 0xffff_ffff) * u64::from(count)) >> 32) as u32;
            Touch { region, offset: within(bytes) }
        }
        Places::Blocks { region, offset, each, block_bytes } => {
            let block = &mut runner.blocks[choice];
            let number = choice as u64 * u64::from(each) + u64::from(*block);
            *block = (*block + 1) % each;
            let end = offset + (number + 1) * block_bytes;
            Touch { region, offset: end.saturating_sub(bytes.min(block_bytes)) }
        }
    }
}
