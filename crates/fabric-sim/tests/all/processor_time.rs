//! Processor time: work and spinning count, sleep does not.

use dunlin_fabric::{Fabric, Host, Nanos, Parker, Unparker, WaitMode};
use dunlin_fabric_sim::{MachineSettings, Prices, Settings, Sim};

const TIME: Nanos = 1_000_000;
/// Time of calls of the host that a test makes beside the counted part, in nanoseconds.
const CALLS: Nanos = 20_000;

/// Two machines without chance: the root is on the first one, the second has this number of cores. Threads that spin
/// yield them soon.
fn settings(cores: Option<u32>) -> Settings {
    let defaults = Settings::default();
    let machines = vec![MachineSettings::default(), MachineSettings { cores, ..MachineSettings::default() }];
    let prices = Prices { spin_patience: 1_000, ..Prices::default() };
    Settings { machines, prices, spurious: 0, preemption: 0, ..defaults }
}

/// Returns the processor time of the second machine, while `threads` threads of it do `body` for about `TIME`.
fn used(cores: Option<u32>, threads: usize, body: fn(&Sim)) -> Nanos {
    let (tell, told) = std::sync::mpsc::channel();
    Sim::run_with(settings(cores), 1, move |sim| {
        let other = sim.process_on(1);
        let spawn = || {
            let own = other.clone();
            other.host().spawn("thread", Box::new(move || body(&own))).unwrap()
        };
        let tasks: Vec<_> = (0..threads).map(|_| spawn()).collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        // Ended threads use no processor time.
        sim.host().sleep(sim.host().now() + TIME);
        tell.send(sim.processor_time(1)).unwrap();
    })
    .unwrap();
    told.recv().unwrap()
}

fn assert_about(used: Nanos, expected: Nanos) {
    assert!((expected..expected + CALLS).contains(&used), "{used} ns, expected {expected}");
}

fn park(sim: &Sim, mode: WaitMode) {
    let mut parker = sim.host().parker();
    let until = sim.host().now() + TIME;
    while sim.host().now() < until {
        parker.park(mode, until);
    }
}

#[test]
fn work_and_spinning_count_and_sleep_does_not() {
    for cores in [None, Some(2)] {
        assert_about(used(cores, 1, |sim| sim.host().work(TIME)), TIME);
        assert_about(used(cores, 1, |sim| park(sim, WaitMode::Busy)), TIME);
        assert_about(used(cores, 1, |sim| park(sim, WaitMode::Event)), 0);
        assert_about(used(cores, 1, |sim| sim.host().sleep(sim.host().now() + TIME)), 0);
        assert_about(used(cores, 2, |sim| sim.host().work(TIME)), 2 * TIME);
    }
}

#[test]
fn a_thread_that_waits_for_a_core_uses_none() {
    assert_about(used(Some(1), 3, |sim| sim.host().work(TIME)), 3 * TIME);
    // Three threads spin on one core at the same time.
    assert_about(used(Some(1), 3, |sim| park(sim, WaitMode::Busy)), TIME);
}

/// The time from the event to the step that it causes is that of the processor.
#[test]
fn a_wake_up_counts() {
    Sim::run_with(settings(None), 1, |sim| {
        let other = sim.process_on(1);
        let own = other.clone();
        let mut parker = other.host().parker();
        let unparker = parker.unparker();
        let task = other.host().spawn(
            "sleeper",
            Box::new(move || {
                assert!(parker.park(WaitMode::Event, Nanos::MAX));
                assert!(own.time() > 0);
            }),
        );
        let host = sim.host();
        host.sleep(host.now() + TIME);
        let asleep = sim.processor_time(1);
        host.sleep(host.now() + TIME);
        assert_eq!(sim.processor_time(1), asleep);
        let before = sim.time();
        unparker.unpark();
        task.unwrap().join();
        let woken = sim.processor_time(1) - asleep;
        assert!(woken > 0 && woken <= sim.time() - before, "{woken} ns");
    })
    .unwrap();
}

#[test]
fn a_killed_thread_uses_nothing_more() {
    Sim::run_with(settings(None), 1, |sim| {
        let other = sim.process_on(1);
        for mode in [WaitMode::Busy, WaitMode::Event] {
            let own = other.clone();
            let task = other.host().spawn(
                "thread",
                Box::new(move || {
                    own.host().parker().park(mode, Nanos::MAX);
                }),
            );
            drop(task);
        }
        let host = sim.host();
        host.sleep(host.now() + TIME);
        let before = sim.processor_time(1);
        assert_about(before, TIME - CALLS + CALLS / 2);
        other.kill();
        host.sleep(host.now() + CALLS);
        let dead = sim.processor_time(1);
        host.sleep(host.now() + TIME);
        assert_eq!(sim.processor_time(1), dead);
    })
    .unwrap();
}
