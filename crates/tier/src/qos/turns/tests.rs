use super::super::cost;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PATHS: usize = 4;
/// Steps that a called thread needs to wake, and those of an operation for each cost of 8 KiB.
const WAKE: u64 = 4;

fn flow(principal: u32, priority: Priority, weight: u16) -> Flow {
    Flow { principal, priority, weight }
}

/// Threads that begin their next operation as soon as the last one has ended.
struct Load {
    turns: Turns,
    now: u64,
    /// By thread: its flow, and the bytes of an operation.
    threads: Vec<(Flow, u64)>,
    /// What happens at a time: a thread arrives on deck, ends an operation, or begins one.
    events: BTreeMap<(u64, u64), (u32, Event)>,
    serial: u64,
    holders: BTreeSet<u32>,
    /// By thread: bytes of ended operations.
    done: Vec<u64>,
    idle: u64,
    took: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Begin,
    Arrive,
    End,
}

impl Load {
    fn new(threads: &[(Flow, u64)], by_weight: bool) -> Load {
        let mut load = Load {
            turns: Turns::new(PATHS, by_weight),
            now: 0,
            threads: threads.to_vec(),
            events: BTreeMap::new(),
            serial: 0,
            holders: BTreeSet::new(),
            done: vec![0; threads.len()],
            idle: 0,
            took: 1,
        };
        (0..threads.len() as u32).for_each(|thread| load.at(0, thread, Event::Begin));
        load
    }

    fn at(&mut self, time: u64, thread: u32, event: Event) {
        self.serial += 1;
        self.events.insert((time, self.serial), (thread, event));
    }

    fn granted(&mut self, thread: u32) {
        assert!(self.holders.insert(thread) && self.holders.len() <= PATHS);
        let time = self.took * cost(self.threads[thread as usize].1).div_ceil(2048);
        self.at(self.now + time, thread, Event::End);
    }

    fn call(&mut self, by: u32) {
        while let Some(called) = self.turns.call() {
            // A thread that calls itself is awake.
            if called == by {
                if self.turns.arrive(called) {
                    self.granted(called);
                }
            } else {
                self.at(self.now + WAKE, called, Event::Arrive);
            }
        }
    }

    fn run(&mut self, until: u64) {
        while let Some((&(time, serial), _)) = self.events.first_key_value() {
            if time >= until {
                break;
            }
            self.idle += (time - self.now) * (PATHS - self.holders.len()) as u64;
            self.now = time;
            let Some((thread, event)) = self.events.remove(&(time, serial)) else { continue };
            let (flow, bytes) = self.threads[thread as usize];
            match event {
                Event::Begin => {
                    if self.turns.enter(flow, cost(bytes), thread) {
                        self.granted(thread);
                    }
                }
                Event::Arrive => {
                    // A path may have been handed over on the way.
                    if !self.holders.contains(&thread) && self.turns.arrive(thread) {
                        self.granted(thread);
                    }
                }
                Event::End => {
                    assert!(self.holders.remove(&thread));
                    self.done[thread as usize] += bytes;
                    if let Some(next) = self.turns.leave(flow.priority) {
                        self.granted(next);
                    }
                    self.at(self.now + 1, thread, Event::Begin);
                }
            }
            self.call(thread);
        }
        self.now = until;
    }

    fn bytes(&self, of: impl Fn(Flow) -> bool) -> u64 {
        self.threads.iter().zip(&self.done).filter(|((flow, _), _)| of(*flow)).map(|(_, done)| done).sum()
    }
}

fn many(flow: Flow, bytes: u64, threads: usize) -> Vec<(Flow, u64)> {
    vec![(flow, bytes); threads]
}

#[test]
fn without_others_a_path_is_granted_at_once() {
    let mut turns = Turns::new(2, true);
    let low = flow(0, Priority::Low, 1);
    assert!(turns.enter(low, 1, 0) && turns.enter(low, 1, 1));
    assert!(!turns.enter(low, 1, 2));
    assert_eq!((turns.call(), turns.call()), (Some(2), None));
    assert!(!turns.arrive(2));
    assert_eq!(turns.leave(Priority::Low), Some(2));
    assert_eq!((turns.leave(Priority::Low), turns.leave(Priority::Low)), (None, None));
    assert!(turns.enter(low, 1, 0));
}

#[test]
fn high_priority_has_its_factor_and_low_goes_on() {
    let (high, low) = (flow(0, Priority::High, 1), flow(0, Priority::Low, 1));
    let threads = [many(low, 4096, 20), many(high, 4096, 20)].concat();
    let mut load = Load::new(&threads, true);
    load.run(100_000);
    let (high, low) = (
        load.bytes(|flow| flow.priority == Priority::High),
        load.bytes(|flow| flow.priority == Priority::Low),
    );
    let factor = high as f64 / low as f64;
    assert!((factor / f64::from(HIGH_FACTOR) - 1.0).abs() < 0.02, "{factor}");
    assert!(load.idle < 100_000 * PATHS as u64 / 100, "{}", load.idle);
    // In order of arrival, both get the same.
    let mut load = Load::new(&threads, false);
    load.run(100_000);
    let half = load.bytes(|flow| flow.priority == Priority::High) as f64 / load.bytes(|_| true) as f64;
    assert!((half - 0.5).abs() < 0.01, "{half}");
}

#[test]
fn nothing_is_held_back_while_nobody_else_wants_it() {
    let low = flow(0, Priority::Low, 1);
    let mut load = Load::new(&many(low, 4096, PATHS), true);
    load.run(10_000);
    let own = load.bytes(|_| true);
    // A thread of high priority that wants one path in four leaves the others.
    let threads = [many(low, 4096, 2 * PATHS), many(flow(1, Priority::High, 1), 4096, 1)].concat();
    let mut load = Load::new(&threads, true);
    load.run(10_000);
    assert!(load.bytes(|flow| flow == low) > own * 7 / 10);
    assert!(load.bytes(|_| true) > own * 95 / 100);
}

/// While round trips are longer than usual, operations of low priority have one path, and all of them later.
#[test]
fn rising_round_trips_take_paths_from_low_priority() {
    let (high, low) = (flow(0, Priority::High, 1), flow(0, Priority::Low, 1));
    let mut turns = Turns::new(PATHS, true);
    assert!(turns.enter(high, 1, 0) && turns.enter(low, 1, 1));
    assert!(turns.wants_trip(Priority::High) && !turns.wants_trip(Priority::Low));
    turns.note(1, 8192, 3000);
    (0..50).for_each(|at| turns.note(2 + at, 8192, 12_000));
    assert!(!turns.enter(low, 1, 2));
    assert_eq!(turns.call(), None);
    assert!(turns.enter(high, 1, 3));
    assert_eq!(turns.leave(Priority::High), None);
    assert_eq!(turns.call(), None);
    // The last one of high priority ends.
    assert_eq!(turns.leave(Priority::High), None);
    assert_eq!(turns.call(), Some(2));
    assert!(turns.arrive(2));
    assert!(turns.enter(high, 1, 0));
    (0..50).for_each(|at| turns.note(60 + at, 8192, 3000));
    assert!(turns.enter(low, 1, 4));
}

#[test]
fn a_waiter_that_gives_up_leaves_no_trace() {
    let low = flow(0, Priority::Low, 1);
    let mut turns = Turns::new(1, true);
    assert!(turns.enter(low, 1, 0));
    assert!(!turns.enter(low, 1, 1) && !turns.enter(low, 1, 2));
    assert_eq!(turns.call(), Some(1));
    assert!(turns.forget(low, 1) && turns.forget(low, 2));
    assert!(!turns.has_waiters() && turns.call().is_none());
    assert!(!turns.enter(low, 1, 3));
    assert_eq!(turns.call(), Some(3));
    assert!(!turns.arrive(3));
    assert_eq!(turns.leave(Priority::Low), Some(3));
    assert!(!turns.forget(low, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Flows that want more than there is get bytes by weight, whatever the lengths of their operations.
    #[test]
    fn bytes_follow_weights(
        flows in prop::collection::vec((1u16..5, 1u64..40_000, 0usize..2), 2..5),
    ) {
        let priority = |high: usize| if high == 1 { Priority::High } else { Priority::Low };
        let threads: Vec<(Flow, u64)> = flows
            .iter()
            .enumerate()
            .flat_map(|(at, (weight, bytes, high))| {
                many(flow(at as u32, priority(*high), *weight), *bytes, 40)
            })
            .collect();
        let mut load = Load::new(&threads, true);
        load.run(400_000);
        let per_share: Vec<f64> = flows
            .iter()
            .enumerate()
            .map(|(at, (weight, bytes, high))| {
                let factor = if *high == 1 { HIGH_FACTOR } else { 1 };
                // Shares are of costs, of which the bytes are a part.
                let done = load.bytes(|flow| flow.principal == at as u32) * cost(*bytes) / bytes;
                done as f64 / f64::from(u32::from(*weight) * factor)
            })
            .collect();
        let (low, high) = per_share.iter().fold((f64::MAX, 0f64), |(low, high), x| (low.min(*x), high.max(*x)));
        prop_assert!(high / low < 1.25, "{per_share:?}");
    }

}

proptest! {
    /// Any order of steps: paths are neither lost nor given twice, every waiter that stays gets one, and no path is idle
    /// while a waiter could have it.
    #[test]
    fn every_waiter_gets_a_path(
        steps in prop::collection::vec((0u8..5, 0u32..6, any::<bool>(), 1u64..100_000), 1..300),
        by_weight: bool,
    ) {
        let mut turns = Turns::new(3, by_weight);
        let (mut holders, mut waiters, mut called): (Vec<Flow>, BTreeMap<u32, Flow>, Vec<u32>) = Default::default();
        let mut next = 0;
        let pick = |from: usize, by: u64| (by as usize) % from.max(1);
        for (step, principal, is_high, by) in steps {
            let priority = if is_high { Priority::High } else { Priority::Low };
            let flow = flow(principal, priority, 1 + (by % 7) as u16);
            match step {
                0 | 1 => {
                    if turns.enter(flow, by, next) { holders.push(flow) } else { waiters.insert(next, flow); }
                    next += 1;
                }
                2 if !holders.is_empty() => {
                    let left = holders.swap_remove(pick(holders.len(), by));
                    if let Some(waiter) = turns.leave(left.priority) {
                        called.retain(|other| *other != waiter);
                        holders.push(waiters.remove(&waiter).expect("a waiter"));
                    }
                }
                3 if !called.is_empty() => {
                    let waiter = called.swap_remove(pick(called.len(), by));
                    if waiters.contains_key(&waiter) && turns.arrive(waiter) {
                        holders.push(waiters.remove(&waiter).expect("a waiter"));
                    }
                }
                4 if !waiters.is_empty() => {
                    let (&waiter, &flow) = waiters.iter().nth(pick(waiters.len(), by)).expect("a waiter");
                    prop_assert!(turns.forget(flow, waiter));
                    waiters.remove(&waiter);
                    called.retain(|other| *other != waiter);
                }
                _ => turns.note(by, 8192, by),
            }
            while let Some(waiter) = turns.call() {
                prop_assert!(waiters.contains_key(&waiter) && !called.contains(&waiter));
                called.push(waiter);
            }
            prop_assert!(holders.len() <= 3);
            let held_back = by_weight && holders.iter().any(|flow| flow.priority == Priority::Low);
            if holders.len() < 3 && !held_back {
                // Whoever waits is on its way.
                prop_assert!(!called.is_empty() || waiters.is_empty());
            }
        }
        // All end.
        for _ in 0..1000 {
            while let Some(waiter) = turns.call() {
                called.push(waiter);
            }
            for waiter in std::mem::take(&mut called) {
                if waiters.contains_key(&waiter) && turns.arrive(waiter) {
                    holders.push(waiters.remove(&waiter).expect("a waiter"));
                }
            }
            if let Some(left) = holders.pop()
                && let Some(waiter) = turns.leave(left.priority)
            {
                holders.push(waiters.remove(&waiter).expect("a waiter"));
            }
        }
        prop_assert!(waiters.is_empty() && holders.is_empty() && !turns.has_waiters());
        prop_assert_eq!(turns.free, 3);
    }
}
