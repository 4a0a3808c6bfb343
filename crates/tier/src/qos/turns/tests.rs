use super::super::cost;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PATHS: usize = 4;
/// Steps that a called thread needs to wake: the time of an operation of 4 KiB.
const WAKE: u64 = 40;
/// Steps for 2 KiB of the cost of an operation.
const STEPS: u64 = 10;

fn flow(principal: u32, priority: Priority, weight: u16) -> Flow {
    Flow { principal, priority, weight }
}

/// Threads that begin their next operation as soon as the last one has ended.
struct Load {
    turns: Turns,
    now: u64,
    /// By thread: its flow, and the bytes of an operation.
    threads: Vec<(Flow, u64)>,
    /// Events by time: a thread arrives on deck, ends an operation, or begins one.
    events: BTreeMap<(u64, u64), (u32, Event)>,
    serial: u64,
    holders: BTreeSet<u32>,
    /// By thread: bytes of ended operations.
    done: Vec<u64>,
    idle: u64,
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
        let time = (STEPS * cost(self.threads[thread as usize].1)).div_ceil(2048);
        self.at(self.now + time, thread, Event::End);
    }

    fn go_on(&mut self) {
        while let Some(granted) = self.turns.grant() {
            self.granted(granted);
        }
        while let Some(called) = self.turns.call() {
            self.at(self.now + WAKE, called, Event::Arrive);
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
                    if self.turns.enter(flow, cost(bytes), thread) == Entry::Granted {
                        self.granted(thread);
                    }
                }
                Event::Arrive => self.turns.arrive(flow, thread),
                Event::End => {
                    assert!(self.holders.remove(&thread));
                    self.done[thread as usize] += bytes;
                    self.turns.leave(flow.priority);
                    self.at(self.now + 1, thread, Event::Begin);
                }
            }
            self.go_on();
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
    let enter = |turns: &mut Turns, waiter| turns.enter(low, 1, waiter);
    assert_eq!([0, 1].map(|waiter| enter(&mut turns, waiter)), [Entry::Granted; 2]);
    assert_eq!([2, 3, 4, 5, 6, 7].map(|waiter| enter(&mut turns, waiter)), [Entry::Near; 2 * NEAR]);
    assert_eq!(enter(&mut turns, 8), Entry::Asleep);
    assert_eq!((turns.grant(), turns.call()), (None, None));
    turns.leave(Priority::Low);
    assert_eq!((turns.grant(), turns.grant()), (Some(2), None));
    assert_eq!((turns.call(), turns.call()), (Some(8), None));
    for waiter in [3, 4, 5, 6, 7] {
        turns.leave(Priority::Low);
        assert_eq!(turns.grant(), Some(waiter));
    }
    // A path is free while the called waiter wakes up.
    turns.leave(Priority::Low);
    assert_eq!(turns.grant(), None);
    turns.arrive(low, 8);
    assert_eq!((turns.grant(), turns.has_waiters()), (Some(8), false));
    (0..2).for_each(|_| turns.leave(Priority::Low));
    assert_eq!(enter(&mut turns, 0), Entry::Granted);
}

#[test]
fn high_priority_has_its_factor_and_low_goes_on() {
    let (high, low) = (flow(0, Priority::High, 1), flow(0, Priority::Low, 1));
    let threads = [many(low, 4096, 20), many(high, 4096, 20)].concat();
    let mut load = Load::new(&threads, true);
    load.run(1_000_000);
    let (high, low) = (
        load.bytes(|flow| flow.priority == Priority::High),
        load.bytes(|flow| flow.priority == Priority::Low),
    );
    let factor = high as f64 / low as f64;
    assert!((factor / f64::from(HIGH_FACTOR) - 1.0).abs() < 0.05, "{factor}");
    assert!(load.idle < 1_000_000 * PATHS as u64 / 100, "{}", load.idle);
    // In order of arrival, both get the same.
    let mut load = Load::new(&threads, false);
    load.run(1_000_000);
    let half = load.bytes(|flow| flow.priority == Priority::High) as f64 / load.bytes(|_| true) as f64;
    assert!((half - 0.5).abs() < 0.01, "{half}");
}

#[test]
fn nothing_is_held_back_while_nobody_else_wants_it() {
    let low = flow(0, Priority::Low, 1);
    let mut load = Load::new(&many(low, 4096, PATHS), true);
    load.run(100_000);
    let own = load.bytes(|_| true);
    // A thread of high priority that wants one path in four leaves the others.
    let threads = [many(low, 4096, 2 * PATHS), many(flow(1, Priority::High, 1), 4096, 1)].concat();
    let mut load = Load::new(&threads, true);
    load.run(100_000);
    assert!(load.bytes(|flow| flow == low) > own * 7 / 10);
    assert!(load.bytes(|_| true) > own * 95 / 100);
}

/// Few threads of high priority keep the most of the paths, too: one that comes back is awake, and before the others.
#[test]
fn few_threads_keep_their_turns() {
    let (high, low) = (flow(0, Priority::High, 1), flow(1, Priority::Low, 1));
    // Lengths that differ keep the threads apart.
    let few: Vec<_> = (0..2 * PATHS as u64).map(|thread| (high, 4096 + 100 * thread)).collect();
    let mut load = Load::new(&[many(low, 4096, 20), few].concat(), true);
    load.run(1_000_000);
    let part = load.bytes(|flow| flow == high) as f64 / load.bytes(|_| true) as f64;
    assert!(part > 0.9, "{part}");
}

/// Operations without others are timed seldom, so the clock costs them nothing.
#[test]
fn few_operations_without_others_are_timed() {
    let mut turns = Turns::new(1, true);
    let timed = (0..10_240).filter(|_| {
        assert_eq!(turns.enter(flow(0, Priority::Low, 1), 1, 0), Entry::Granted);
        let timed = turns.wants_trip(Priority::Low);
        turns.leave(Priority::Low);
        timed
    });
    assert_eq!(timed.count(), 26);
}

/// While round trips are longer than usual, operations of low priority have one path, and all of them later.
#[test]
fn rising_round_trips_take_paths_from_low_priority() {
    let (high, low) = (flow(0, Priority::High, 1), flow(0, Priority::Low, 1));
    let mut turns = Turns::new(PATHS, true);
    assert_eq!((turns.enter(high, 1, 0), turns.enter(low, 1, 1)), (Entry::Granted, Entry::Granted));
    assert!(turns.wants_trip(Priority::High) && !turns.wants_trip(Priority::Low));
    turns.note(1, Priority::High, 8192, 3000);
    (0..50).for_each(|at| turns.note(2 + at, Priority::High, 8192, 12_000));
    assert_eq!((turns.enter(low, 1, 2), turns.grant()), (Entry::Near, None));
    assert_eq!(turns.enter(high, 1, 3), Entry::Granted);
    turns.leave(Priority::High);
    assert_eq!(turns.grant(), None);
    // The last one of high priority ends.
    turns.leave(Priority::High);
    assert_eq!(turns.grant(), Some(2));
    assert_eq!(turns.enter(high, 1, 0), Entry::Granted);
    (0..100).for_each(|at| turns.note(60 + at, Priority::High, 8192, 3000));
    assert_eq!(turns.enter(low, 1, 4), Entry::Granted);
}

#[test]
fn a_waiter_that_gives_up_leaves_no_trace() {
    let low = flow(0, Priority::Low, 1);
    let mut turns = Turns::new(1, true);
    assert_eq!(turns.enter(low, 1, 0), Entry::Granted);
    assert_eq!([1, 2, 3].map(|waiter| turns.enter(low, 1, waiter)), [Entry::Near; NEAR]);
    assert_eq!(turns.enter(low, 1, 4), Entry::Asleep);
    assert!([1, 4, 2, 3].into_iter().all(|waiter| turns.forget(low, waiter)));
    assert!(!turns.has_waiters() && turns.call().is_none());
    assert_eq!(turns.enter(low, 1, 5), Entry::Near);
    turns.leave(Priority::Low);
    assert_eq!(turns.grant(), Some(5));
    assert!(!turns.forget(low, 5));
}

/// Returns the cost by share that each flow of 40 threads gets: by weight, bytes of an operation, priority.
fn shares(flows: &[(u16, u64, Priority)]) -> Vec<f64> {
    let all = || (0..).zip(flows);
    let threads: Vec<_> = all()
        .flat_map(|(principal, (weight, bytes, priority))| {
            many(flow(principal, *priority, *weight), *bytes, 40)
        })
        .collect();
    let mut load = Load::new(&threads, true);
    load.run(4_000_000);
    all()
        .map(|(principal, (weight, bytes, priority))| {
            let factor = if *priority == Priority::High { HIGH_FACTOR } else { 1 };
            // Shares are of costs, of which the bytes are a part.
            let done = load.bytes(|flow| flow.principal == principal) * cost(*bytes) / bytes;
            done as f64 / f64::from(u32::from(*weight) * factor)
        })
        .collect()
}

/// Returns the largest over the smallest.
fn spread(shares: &[f64]) -> f64 {
    let (low, high) = shares.iter().fold((f64::MAX, 0f64), |(low, high), x| (low.min(*x), high.max(*x)));
    high / low
}

/// Short operations end much faster than a called thread wakes: enough of them have to be near.
#[test]
fn short_operations_get_their_share_beside_long_ones() {
    let (high, low) = (Priority::High, Priority::Low);
    let shares = shares(&[(4, 1, high), (3, 34_304, high), (1, 17_465, high)]);
    assert!(spread(&shares) < 1.05, "{shares:?}");
    let shares = self::shares(&[(1, 1, low), (1, 34_304, low)]);
    assert!(spread(&shares) < 1.05, "{shares:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Flows that want more than there is get bytes by weight, whatever the lengths of their operations.
    #[test]
    fn bytes_follow_weights(
        flows in prop::collection::vec(
            (1u16..5, 1u64..40_000, prop_oneof![Just(Priority::Low), Just(Priority::High)]),
            2..5,
        ),
    ) {
        let shares = shares(&flows);
        prop_assert!(spread(&shares) < 1.25, "{shares:?}");
    }
}

proptest! {
    /// Any order of steps: paths are neither lost nor given twice, every waiter that stays gets one, and no path is
    /// idle while a waiter could have it.
    #[test]
    fn every_waiter_gets_a_path(
        steps in prop::collection::vec((0u8..7, 0u32..6, any::<bool>(), 1u64..100_000), 1..300),
        by_weight: bool,
    ) {
        let mut turns = Turns::new(3, by_weight);
        let (mut holders, mut waiters): (Vec<Flow>, BTreeMap<u32, Flow>) = Default::default();
        let (mut awake, mut called): (BTreeSet<u32>, Vec<u32>) = Default::default();
        let mut next = 0;
        let pick = |from: usize, by: u64| (by as usize) % from.max(1);
        for (step, principal, is_high, by) in steps {
            let priority = if is_high { Priority::High } else { Priority::Low };
            let flow = flow(principal, priority, 1 + (by % 7) as u16);
            match step {
                0 | 1 => {
                    match turns.enter(flow, by, next) {
                        Entry::Granted => holders.push(flow),
                        entry => {
                            waiters.insert(next, flow);
                            if entry == Entry::Near {
                                awake.insert(next);
                            }
                        }
                    }
                    next += 1;
                }
                6 => {
                    if turns.try_enter(flow, by) {
                        holders.push(flow);
                    }
                }
                2 | 3 if !holders.is_empty() => {
                    turns.leave(holders.swap_remove(pick(holders.len(), by)).priority);
                }
                4 if !called.is_empty() => {
                    let waiter = called.swap_remove(pick(called.len(), by));
                    turns.arrive(waiters[&waiter], waiter);
                    awake.insert(waiter);
                }
                5 if !waiters.is_empty() => {
                    let (&waiter, &flow) = waiters.iter().nth(pick(waiters.len(), by)).expect("a waiter");
                    prop_assert!(turns.forget(flow, waiter));
                    waiters.remove(&waiter);
                    awake.remove(&waiter);
                    called.retain(|other| *other != waiter);
                }
                _ => turns.note(by, priority, 8192, by),
            }
            while let Some(waiter) = turns.grant() {
                prop_assert!(awake.remove(&waiter));
                holders.push(waiters.remove(&waiter).expect("a waiter"));
            }
            while let Some(waiter) = turns.call() {
                prop_assert!(waiters.contains_key(&waiter) && !called.contains(&waiter) && !awake.contains(&waiter));
                called.push(waiter);
            }
            prop_assert!(holders.len() <= 3 && awake.len() + called.len() <= 3 * NEAR + 2 * 12);
            prop_assert_eq!(waiters.is_empty(), !turns.has_waiters());
            let may_hold_back = by_weight
                && holders.iter().any(|flow| flow.priority == Priority::Low)
                && holders.iter().chain(waiters.values()).any(|flow| flow.priority == Priority::High);
            if holders.len() < 3 && !may_hold_back {
                prop_assert!(awake.is_empty() && (!called.is_empty() || waiters.is_empty()));
            }
        }
        // All end.
        while !waiters.is_empty() || !holders.is_empty() {
            for waiter in called.drain(..) {
                turns.arrive(waiters[&waiter], waiter);
            }
            let before = (waiters.len(), holders.len());
            if let Some(left) = holders.pop() {
                turns.leave(left.priority);
            }
            while let Some(waiter) = turns.grant() {
                holders.push(waiters.remove(&waiter).expect("a waiter"));
            }
            while let Some(waiter) = turns.call() {
                called.push(waiter);
            }
            prop_assert!((waiters.len(), holders.len()) != before || !called.is_empty());
        }
        prop_assert!(!turns.has_waiters());
        prop_assert_eq!((turns.free, turns.active, turns.waiting), (3, [0; 2], [0; 2]));
    }
}
