//! A miniature engine in virtual time: uses the traits as the real engine does, in a few lines.

use dunlin_fabric::{
    Access, Address, CompletionQueueId, Data, Endpoint, Fabric, Host, Link, Listener, Nanos, Operation,
    QueuePairConfig, QueuePairId, Region, RegionKey, Signal, Site, ThreadDomain, WaitMode, Waker, Work,
    WorkId, WorkRequest,
};
use dunlin_fabric_sim::{RunError, RunReport, Settings, Sim};
use std::sync::{Arc, Mutex};

const FOREVER: Nanos = Nanos::MAX;

fn address() -> Address {
    "sim:engine".parse().expect("an address")
}

/// One end of a connection: a granted one-line mailbox, and a queue pair to write into the peer's.
struct End<F: Fabric> {
    host: F::Host,
    domain: F::Domain,
    queue_pair: QueuePairId,
    completions: CompletionQueueId,
    mailbox: Region<F::Memory>,
    peer: RegionKey,
    link: F::Link,
}

impl<F: Fabric> End<F> {
    fn open(fabric: &F, link: F::Link) -> Self {
        let mut domain = fabric.domain().expect("a domain");
        let completions = domain.create_completion_queue(64, false).expect("a completion queue");
        let config = QueuePairConfig::reliable(completions, completions);
        let queue_pair = domain.create_queue_pair(&config).expect("a queue pair");
        let mailbox = Region::new(fabric.register(64, Access::WRITE).expect("memory"));
        domain.watch(&mailbox);
        let key = link.grant(mailbox.memory(), Access::WRITE).expect("a grant");
        link.send(&key.0.to_le_bytes()).expect("sent");
        let endpoint = domain.endpoint(queue_pair, &link).expect("an endpoint");
        link.send(&endpoint.0).expect("sent");
        let key = link.receive(FOREVER).expect("the peer's key");
        let peer = RegionKey(u64::from_le_bytes(key.try_into().expect("8 bytes")));
        let remote = Endpoint(link.receive(FOREVER).expect("the peer's endpoint"));
        domain.connect(queue_pair, &link, &remote).expect("connected");
        End { host: fabric.host().clone(), domain, queue_pair, completions, mailbox, peer, link }
    }

    /// Writes a line that ends with the tag into the peer's mailbox.
    fn write(&mut self, tag: u64) {
        self.host.charge(Work::BuildMessage, 1);
        let mut line = [tag as u8; 64];
        line[56..].copy_from_slice(&tag.to_le_bytes());
        let operation =
            Operation::Write { data: Data::Inline(&[&line]), key: self.peer, offset: 0, immediate: None };
        self.host.checkpoint(Site::BeforePost);
        let signaled = tag.is_multiple_of(16);
        self.domain
            .post(self.queue_pair, WorkRequest { id: WorkId(tag), operation, signaled })
            .expect("room");
        self.domain.poll(self.completions, &mut Vec::new(), 64);
    }

    /// Polls the mailbox until the line with this tag arrives.
    fn read(&mut self, tag: u64) {
        loop {
            let armed = self.domain.arm(WaitMode::Busy);
            if self.mailbox.load(56) == tag {
                self.domain.disarm(armed);
                self.host.charge(Work::PollHit, 1);
                assert_eq!(self.mailbox.line_out(0)[..56], [tag as u8; 56], "the tag came before the line");
                return;
            }
            self.host.charge(Work::PollMiss, 1);
            let _ = self.domain.wait(armed, FOREVER);
        }
    }
}

/// Generic over the fabric, like the engine.
fn ping_pong<F: Fabric>(fabric: F, rounds: u64) {
    let listener = fabric.listen(&address()).expect("listening");
    let server = fabric.clone();
    let body = move || {
        let mut end = End::open(&server, listener.accept(FOREVER).expect("a client"));
        for tag in 1..=rounds {
            end.read(tag);
            end.write(tag);
        }
        // The last posts may be lost with the queue pair: stay until the client has read them.
        assert_eq!(end.link.receive(FOREVER).expect("a farewell"), b"bye");
    };
    let server = fabric.host().spawn("server", Box::new(body)).expect("a thread");
    let mut end = End::open(&fabric, fabric.dial(&address(), FOREVER).expect("a server"));
    for tag in 1..=rounds {
        end.write(tag);
        end.read(tag);
    }
    end.link.send(b"bye").expect("sent");
    server.join();
}

fn run(seed: u64, rounds: u64) -> RunReport {
    Sim::run(seed, move |fabric| ping_pong(fabric, rounds)).expect("a run")
}

#[test]
fn a_run_is_a_pure_function_of_its_seed() {
    let first = run(1, 500);
    assert_eq!(first, run(1, 500));
    let other = run(2, 500);
    assert_ne!(first.trace_hash, other.trace_hash);
    assert_ne!(first.end, other.end);
}

/// Another process has other addresses and other hash-map seeds.
#[test]
fn another_process_takes_the_same_way() {
    const NAME: &str = "small_engine::another_process_takes_the_same_way";
    const CHILD: &str = "DUNLIN_SIM_CHILD";
    let report = format!("{:?}", run(10, 200));
    if std::env::var_os(CHILD).is_some() {
        println!("{report}");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let child = std::process::Command::new(program)
        .args([NAME, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("a second process");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains(&report), "here {report}, in another process {said}");
}

#[test]
fn busy_waiting_costs_no_event_per_look() {
    let rounds = 10_000;
    let short = run(3, 1);
    let long = run(3, rounds);
    // Per line: arrival, landing, waking, and occasionally a completion, a pre-emption or a spurious wake-up.
    let events = long.events - short.events;
    assert!(events < rounds * 12, "{events} events for {rounds} round trips");
    let time = long.end - short.end;
    assert!(time > rounds * 1_200, "{time} ns cannot hold {rounds} round trips of twice the latency");
}

#[test]
fn a_deadlock_names_who_waits_for_what() {
    let run = Sim::run(4, |fabric| {
        let host = fabric.host().clone();
        let signal = host.signal();
        let waiter = signal.clone();
        let task =
            host.spawn("sleeper", Box::new(move || assert!(!waiter.wait(0, FOREVER)))).expect("a thread");
        task.join();
        signal.raise();
    });
    let Err(RunError::Deadlock { waits, .. }) = &run else { panic!("{run:?}") };
    let text = waits.join("; ");
    assert!(text.contains("'root' waits for the end of 'sleeper'"), "{text}");
    assert!(text.contains("'sleeper' waits for signal"), "{text}");
}

#[test]
fn polling_for_ever_ends_at_the_time_limit() {
    let settings = Settings { limit: 1_010_000_000, ..Settings::default() };
    let run = Sim::run_with(settings, 5, |fabric| {
        let mut domain = fabric.domain().expect("a domain");
        let queue = domain.create_completion_queue(4, false).expect("a completion queue");
        while domain.poll(queue, &mut Vec::new(), 4) == 0 {
            fabric.host().checkpoint(Site::WorkerLoop);
        }
    });
    assert!(matches!(run, Err(RunError::TimeLimit { limit: 1_010_000_000, .. })), "{run:?}");
}

#[test]
fn polling_without_ever_giving_way_is_told() {
    let settings = Settings { run_ahead: 1_000_000, ..Settings::default() };
    let run = Sim::run_with(settings, 5, |fabric| {
        let mut domain = fabric.domain().expect("a domain");
        let queue = domain.create_completion_queue(4, false).expect("a completion queue");
        while domain.poll(queue, &mut Vec::new(), 4) == 0 {}
    });
    assert_eq!(run, Err(RunError::Hogged { task: "root".into(), limit: 1_000_000 }));
}

/// Two tasks share a lock and make all non-blocking calls with it held.
#[test]
fn what_does_not_block_does_not_switch() {
    for seed in 0..20 {
        let run = Sim::run(seed, |fabric| {
            let shared = Arc::new(Mutex::new((fabric.domain().expect("a domain"), 0)));
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let (shared, host, signal) =
                        (Arc::clone(&shared), fabric.host().clone(), fabric.host().signal());
                    let body = move || {
                        for _ in 0..100 {
                            let mut held = shared.try_lock().expect("a task was switched with the lock held");
                            let queue = held.0.create_completion_queue(4, true).expect("a completion queue");
                            held.0.poll(queue, &mut Vec::new(), 4);
                            let armed = held.0.arm(WaitMode::Event);
                            held.0.disarm(armed);
                            held.0.waker().wake();
                            host.charge(Work::CopyBytes, 10_000);
                            held.1 += u64::from(host.now() > 0) + signal.seen();
                            signal.raise();
                            drop(held);
                            host.checkpoint(Site::WorkerLoop);
                        }
                    };
                    fabric.host().spawn("worker", Box::new(body)).expect("a thread")
                })
                .collect();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            assert_eq!(shared.lock().expect("no panic").1, 4 * (100 + 99 * 100 / 2));
        });
        run.expect("a run");
    }
}

#[test]
fn tasks_work_in_parallel() {
    let time = |tasks: usize| {
        let settings = Settings { preemption: 0, ..Settings::default() };
        let start = settings.start;
        let root = move |fabric: Sim| {
            let work = |_| {
                let host = fabric.host().clone();
                let body = move || {
                    for _ in 0..1_000 {
                        host.charge(Work::Doorbell, 100);
                        host.checkpoint(Site::WorkerLoop);
                    }
                };
                fabric.host().spawn("worker", Box::new(body)).expect("a thread")
            };
            (0..tasks).map(work).collect::<Vec<_>>().into_iter().for_each(dunlin_fabric::Task::join);
        };
        Sim::run_with(settings, 15, root).expect("a run").end - start
    };
    let (alone, together) = (time(1), time(8));
    assert!(together < alone + alone / 10, "{alone} ns alone, {together} ns with seven others");
}

#[test]
fn signals_and_sleep_pass_virtual_time() {
    let report = Sim::run(6, |fabric| {
        let host = fabric.host().clone();
        let (signal, start) = (host.signal(), host.now());
        let (raiser, clock) = (signal.clone(), host.clone());
        let body = move || {
            clock.sleep(start + 5_000_000_000);
            raiser.raise();
        };
        let task = host.spawn("raiser", Box::new(body)).expect("a thread");
        assert!(!signal.wait(0, start + 1_000_000_000), "nobody has raised it yet");
        assert!(host.now() >= start + 1_000_000_000);
        assert!(signal.wait(0, FOREVER));
        assert!(host.now() >= start + 5_000_000_000);
        task.join();
    });
    assert!(report.expect("a run").events < 20);
}

#[test]
fn what_was_raised_before_the_wait_is_not_missed() {
    for seed in 0..50 {
        let run = Sim::run(seed, |fabric| {
            let host = fabric.host().clone();
            let signal = host.signal();
            let order = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..4)
                .map(|number| {
                    let (signal, order) = (signal.clone(), Arc::clone(&order));
                    let body = move || {
                        order.lock().expect("no panic").push(number);
                        signal.raise();
                    };
                    host.spawn("raiser", Box::new(body)).expect("a thread")
                })
                .collect();
            let mut seen = 0;
            while seen < 4 {
                assert!(signal.wait(seen, FOREVER));
                seen = signal.seen();
            }
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            assert_eq!(order.lock().expect("no panic").len(), 4);
        });
        run.expect("a run");
    }
}

#[test]
fn panics_are_told() {
    let run = Sim::run(8, |fabric| {
        let body = || panic!("out of cheese");
        fabric.host().spawn("mouse", Box::new(body)).expect("a thread").join();
    });
    assert_eq!(run, Err(RunError::Panicked { task: "mouse".into(), message: "out of cheese".into() }));
    let root = std::panic::catch_unwind(|| {
        Sim::run(9, |fabric| {
            let host = fabric.host().clone();
            let signal = host.signal();
            let body = move || assert!(signal.wait(0, FOREVER), "nobody raises it");
            let _task = host.spawn("left alone", Box::new(body)).expect("a thread");
            host.sleep(host.now() + 1_000_000);
            panic!("root panics");
        })
    });
    assert_eq!(root.expect_err("the panic goes on").downcast_ref::<&str>(), Some(&"root panics"));
}
