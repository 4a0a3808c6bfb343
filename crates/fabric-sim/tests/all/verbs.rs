//! The data path in virtual time over many seeds: permitted variation occurs, and guarantees hold.

use dunlin_fabric::{
    Access, Address, Arena, Completion, CompletionQueueId, CompletionStatus, Data, DialError, Fabric, Host,
    Link, LinkError, ListenError, Listener, Nanos, Opcode, Operation, QueuePairConfig, QueuePairId,
    QueuePairState, ReceiveTarget, Region, RemoteSlice, RnrRetry, Site, ThreadDomain, Transport, WaitMode,
    Wake, Waker, Work, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{
    Faults, MachineSettings, ModelTiming, Prices, RunReport, Settings, Sim, SimDomain, SimLink, SimMemory,
    TimingSettings,
};
use dunlin_rnic_model::Profile;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const FOREVER: Nanos = Nanos::MAX;

/// One end of a connection.
struct End {
    domain: SimDomain,
    link: SimLink,
    queue: CompletionQueueId,
    pair: QueuePairId,
    arena: Arena<SimMemory>,
}

impl End {
    fn new(sim: &Sim, link: SimLink, change: impl Fn(&mut QueuePairConfig)) -> Self {
        let mut domain = sim.domain().expect("a domain");
        let queue = domain.create_completion_queue(1024, true).expect("a completion queue");
        let mut config = QueuePairConfig::reliable(queue, queue);
        change(&mut config);
        let pair = domain.create_queue_pair(&config).expect("a queue pair");
        let arena = Arena::new(sim.register(1 << 20, Access::READ).expect("memory")).expect("an arena");
        End { domain, link, queue, pair, arena }
    }

    fn post(&mut self, id: u64, operation: Operation<'_, SimMemory>) {
        let request = WorkRequest { id: WorkId(id), operation, signaled: true };
        self.domain.post(self.pair, request).expect("posted");
    }

    fn send(&mut self, id: u64, bytes: &[u8]) {
        self.post(id, Operation::Send { data: Data::Inline(&[bytes]), immediate: None, to: None });
    }

    fn receive(&mut self, id: u64, length: usize) {
        let buffer = self.arena.reserve(length).expect("room in the arena");
        let target = ReceiveTarget::QueuePair(self.pair);
        self.domain.post_receive(target, WorkId(id), Some(buffer)).expect("posted");
    }

    /// Sleeps until the next completion and returns it.
    fn next(&mut self) -> Completion<SimMemory> {
        let mut got = Vec::new();
        loop {
            let armed = self.domain.arm(WaitMode::Event);
            if self.domain.poll(self.queue, &mut got, 1) == 1 {
                self.domain.disarm(armed);
                return got.remove(0);
            }
            let _ = self.domain.wait(armed, FOREVER);
        }
    }

    fn expect(&mut self, id: u64, status: CompletionStatus) -> Completion<SimMemory> {
        let got = self.next();
        assert_eq!((got.id, got.status), (WorkId(id), status));
        got
    }
}

/// Two connected ends in one task.
fn connected(sim: &Sim, change: impl Fn(&mut QueuePairConfig)) -> (End, End) {
    let address: Address = "sim:verbs".parse().expect("an address");
    let listener = sim.listen(&address).expect("listening");
    let dialled = sim.dial(&address, FOREVER).expect("a listener");
    let accepted = listener.accept(FOREVER).expect("a connection");
    let (mut one, mut two) = (End::new(sim, dialled, &change), End::new(sim, accepted, &change));
    let (first, second) = (
        one.domain.endpoint(one.pair, &one.link).expect("an endpoint"),
        two.domain.endpoint(two.pair, &two.link).expect("an endpoint"),
    );
    if one.domain.state(one.pair) == Some(QueuePairState::Initialised) {
        one.domain.connect(one.pair, &one.link, &second).expect("connected");
        two.domain.connect(two.pair, &two.link, &first).expect("connected");
    } else {
        for (end, remote) in [(&mut one, &second), (&mut two, &first)] {
            end.domain.create_address_handle(end.pair, &end.link, remote).expect("an address handle");
        }
    }
    (one, two)
}

fn region(sim: &Sim, length: u64, access: Access) -> Region<SimMemory> {
    Region::new(sim.register(length, access).expect("memory"))
}

fn run(seed: u64, root: impl FnOnce(Sim) + Send + 'static) -> RunReport {
    Sim::run(seed, root).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// The sequences in which a WRITE of four lines became visible, with or without its tag (the last 8 bytes).
fn growing(settings: Settings, seeds: u64) -> BTreeSet<(Vec<bool>, bool)> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for seed in 0..seeds {
        let seen = Arc::clone(&seen);
        let root = move |sim: Sim| {
            let (mut one, two) = connected(&sim, |_| {});
            let memory = region(&sim, 256, Access::WRITE);
            let key = two.link.grant(memory.memory(), Access::WRITE).expect("a grant");
            let operation =
                Operation::Write { data: Data::Inline(&[&[1; 220]]), key, offset: 36, immediate: None };
            one.post(1, operation);
            let until = sim.host().now() + 20_000;
            while sim.host().now() < until {
                let lines = [36, 64, 128].map(|at| memory.line_out(at & !63)[63] == 1).to_vec();
                seen.lock().expect("no panic").insert((lines, memory.load(248) != 0));
                sim.host().checkpoint(Site::WorkerLoop);
            }
            one.expect(1, CompletionStatus::Success);
        };
        Sim::run_with(settings.clone(), seed, root).expect("a run");
    }
    Arc::into_inner(seen).expect("the runs are over").into_inner().expect("no panic")
}

#[test]
fn a_write_lands_in_pieces_and_its_tag_comes_last() {
    let seen = growing(Settings::default(), 200);
    assert!(seen.iter().all(|(lines, tag)| !tag || lines.iter().all(|line| *line)), "{seen:?}");
    assert!(seen.iter().any(|(lines, _)| lines[0] != lines[2]), "pieces are never apart: {seen:?}");
    let mut settings = Settings::default();
    settings.capabilities.in_order_write = false;
    let seen = growing(settings, 200);
    assert!(seen.iter().any(|(lines, tag)| *tag && lines.contains(&false)), "{seen:?}");
}

#[test]
fn a_write_may_complete_before_it_is_visible_but_never_after_the_send_behind_it() {
    let early = Arc::new(Mutex::new([false; 2]));
    for seed in 0..200 {
        let early = Arc::clone(&early);
        run(seed, move |sim| {
            let (mut one, mut two) = connected(&sim, |_| {});
            let memory = region(&sim, 4096, Access::WRITE);
            let key = two.link.grant(memory.memory(), Access::WRITE).expect("a grant");
            two.receive(7, 64);
            let mut buffer = one.arena.reserve(4096).expect("room");
            buffer.fill(9);
            one.post(1, Operation::Write { data: Data::Buffer(buffer), key, offset: 0, immediate: None });
            one.send(2, b"behind it");
            // Polled, since a sleeper would notice it too late.
            let mut got = Vec::new();
            while one.domain.poll(one.queue, &mut got, 1) == 0 {
                sim.host().checkpoint(Site::WorkerLoop);
            }
            assert_eq!((got[0].id, got[0].status), (WorkId(1), CompletionStatus::Success));
            early.lock().expect("no panic")[usize::from(memory.load(4088) == 0)] = true;
            let got = two.expect(7, CompletionStatus::Success);
            assert_eq!(got.buffer.as_deref().map(|b| &b[..9]), Some(&b"behind it"[..]));
            let mut all = vec![0; 4096];
            memory.copy_out(0, &mut all);
            assert_eq!(all, [9; 4096]);
            one.expect(2, CompletionStatus::Success);
        });
    }
    assert_eq!(*early.lock().expect("no panic"), [true, true], "both orders occur");
}

#[test]
fn read_and_atomics_give_what_was_there() {
    for seed in 0..50 {
        run(seed, |sim| {
            let (mut one, two) = connected(&sim, |_| {});
            let all = Access::READ.with(Access::ATOMIC);
            let memory = region(&sim, 1024, all);
            memory.copy_in(0, &[3; 1024]);
            memory.store(64, 40);
            let key = two.link.grant(memory.memory(), all).expect("a grant");
            one.post(1, Operation::FetchAdd { key, offset: 64, add: 2 });
            assert_eq!(one.expect(1, CompletionStatus::Success).value, 40);
            one.post(2, Operation::CompareSwap { key, offset: 64, expected: 41, swap: 1 });
            assert_eq!(one.expect(2, CompletionStatus::Success).value, 42);
            one.post(3, Operation::CompareSwap { key, offset: 64, expected: 42, swap: 1 });
            assert_eq!(one.expect(3, CompletionStatus::Success).value, 42);
            let into = one.arena.reserve(1000).expect("room");
            one.post(4, Operation::Read { from: RemoteSlice { key, offset: 24, length: 1000 }, into });
            let got = one.expect(4, CompletionStatus::Success);
            let buffer = got.buffer.expect("given back");
            assert_eq!(
                (got.opcode, got.bytes, buffer[0], buffer[40], buffer[999]),
                (Opcode::Read, 1000, 3, 1, 3)
            );
        });
    }
}

/// Returns how many of 100 READs of two pages were torn by the memory's owner, and how many of these within a
/// line.
fn torn_reads(cache_line_atomic_reads: bool) -> (u32, u32) {
    let torn = Arc::new(Mutex::new((0, 0)));
    for seed in 0..100 {
        let torn = Arc::clone(&torn);
        // A pre-empted owner writes nothing.
        let mut settings = Settings { preemption: 0, ..Settings::default() };
        settings.capabilities.cache_line_atomic_reads = cache_line_atomic_reads;
        let root = move |sim: Sim| {
            let (mut one, two) = connected(&sim, |_| {});
            let memory = region(&sim, 4096, Access::READ);
            let key = two.link.grant(memory.memory(), Access::READ).expect("a grant");
            let into = one.arena.reserve(4000).expect("room");
            one.post(1, Operation::Read { from: RemoteSlice { key, offset: 24, length: 4000 }, into });
            let mut got = Vec::new();
            for round in 1..=u8::MAX {
                memory.copy_in(0, &[round; 4096]);
                if one.domain.poll(one.queue, &mut got, 1) == 1 {
                    break;
                }
                sim.host().checkpoint(Site::WorkerLoop);
            }
            let got = if let Some(got) = got.pop() { got } else { one.expect(1, CompletionStatus::Success) };
            let buffer = got.buffer.expect("given back");
            let mut torn = torn.lock().expect("no panic");
            torn.0 += u32::from(buffer[0] != buffer[3999]);
            torn.1 += u32::from(buffer[40..].chunks(64).any(|line| line[0] != line[line.len() - 1]));
        };
        Sim::run_with(settings, seed, root).expect("a run");
    }
    let torn = torn.lock().expect("no panic");
    *torn
}

#[test]
fn a_read_can_be_torn_by_its_owner_and_within_a_line_where_software_copies() {
    let (torn, within) = torn_reads(true);
    assert!(torn > 10 && within == 0, "{torn} {within}");
    let (torn, within) = torn_reads(false);
    assert!(torn > 10 && within > 10, "{torn} {within}");
}

#[test]
fn errors_break_both_queue_pairs_and_flush_the_rest() {
    use CompletionStatus::{
        Flushed, LocalLength, ReceiverNotReady, RemoteAccess, RemoteInvalidRequest, RemoteOperation,
    };
    for seed in 0..30 {
        for (kind, status) in
            [RemoteAccess, RemoteAccess, RemoteInvalidRequest, RemoteOperation, ReceiverNotReady]
                .into_iter()
                .enumerate()
        {
            run(seed, move |sim| {
                let (mut one, mut two) = connected(&sim, |config| config.rnr_retry = RnrRetry::Count(2));
                let all = Access::WRITE.with(Access::ATOMIC);
                let memory = region(&sim, 128, all);
                let key = two.link.grant(memory.memory(), if kind == 1 { Access::ATOMIC } else { all });
                let key = key.expect("a grant");
                let data = Data::Inline(&[&[1; 64]]);
                if kind != 4 {
                    two.receive(100, 32);
                    two.receive(101, 32);
                }
                one.receive(102, 32);
                one.post(
                    1,
                    match kind {
                        0 => Operation::Write { data, key, offset: 65, immediate: None },
                        1 => Operation::Write { data, key, offset: 0, immediate: None },
                        2 => Operation::FetchAdd { key, offset: 4, add: 1 },
                        _ => Operation::Send { data, immediate: None, to: None },
                    },
                );
                one.send(2, b"flushed");
                one.expect(1, status);
                one.expect(2, Flushed);
                one.expect(102, Flushed);
                assert_eq!(one.domain.state(one.pair), Some(QueuePairState::Error));
                while two.domain.state(two.pair) != Some(QueuePairState::Error) {
                    sim.host().sleep(sim.host().now() + 1_000);
                }
                if kind != 4 {
                    two.expect(100, if kind == 3 { LocalLength } else { Flushed });
                    two.expect(101, Flushed);
                }
                assert_eq!((memory.load(0), memory.load(64)), (0, 0), "the memory was changed");
            });
        }
    }
}

#[test]
fn a_send_waits_for_its_receive_and_its_link() {
    run(11, |sim| {
        let (mut one, mut two) = connected(&sim, |_| {});
        one.send(1, b"early");
        one.send(2, b"later");
        sim.host().sleep(sim.host().now() + 50_000_000);
        two.receive(10, 64);
        two.expect(10, CompletionStatus::Success);
        one.expect(1, CompletionStatus::Success);
        two.link.close();
        // No RECV remains for the second one.
        one.expect(2, CompletionStatus::TransportRetry);
        assert!(matches!(one.link.receive(FOREVER), Err(LinkError::PeerGone(_))));
        assert!(!one.link.is_alive());
    });
}

#[test]
fn datagrams_arrive_behind_their_headroom_or_get_lost() {
    let settings = Settings { faults: Faults { loss: 3, ..Faults::default() }, ..Settings::default() };
    let root = |sim: Sim| {
        let (mut one, mut two) = connected(&sim, |config| config.transport = Transport::UnreliableDatagram);
        let headroom = sim.capabilities().datagram_headroom as usize;
        for id in 0..100 {
            two.receive(id, headroom + 8);
        }
        for id in 0..100u64 {
            let (data, to) = (id.to_le_bytes(), Some(dunlin_fabric::AddressHandleId(0)));
            one.post(id, Operation::Send { data: Data::Inline(&[&data]), immediate: None, to });
            one.expect(id, CompletionStatus::Success);
        }
        sim.host().sleep(sim.host().now() + 1_000_000);
        let mut got = Vec::new();
        let count = two.domain.poll(two.queue, &mut got, 1000);
        assert!((40..95).contains(&count), "{count} of 100 arrived");
        let mut last = None;
        for completion in got {
            let buffer = completion.buffer.expect("given back");
            let number = u64::from_le_bytes(buffer[headroom..].try_into().expect("8 bytes"));
            assert!(Some(number) > last, "{number} after {last:?}");
            last = Some(number);
        }
    };
    Sim::run_with(settings, 12, root).expect("a run");
}

#[test]
fn a_sleeper_is_woken_by_sends_and_wakers_and_not_by_writes() {
    let report = run(13, |sim| {
        let (mut one, mut two) = connected(&sim, |_| {});
        let host = sim.host().clone();
        let memory = region(&sim, 64, Access::WRITE);
        let key = two.link.grant(memory.memory(), Access::WRITE).expect("a grant");
        two.domain.watch(&memory);
        let clock = host.clone();
        let waker = two.domain.waker();
        let body = move || {
            let start = clock.now();
            one.post(
                1,
                Operation::Write { data: Data::Inline(&[&[1; 64]]), key, offset: 0, immediate: None },
            );
            clock.sleep(start + 1_000_000_000);
            waker.wake();
            clock.sleep(start + 2_000_000_000);
            one.send(2, b"wake up");
            one.expect(1, CompletionStatus::Success);
            one.expect(2, CompletionStatus::Success);
        };
        let start = host.now();
        let task = host.spawn("one", Box::new(body)).expect("a thread");
        // Spurious wake-ups come early; the first late one must be the waker's.
        loop {
            let armed = two.domain.arm(WaitMode::Event);
            assert_eq!(two.domain.wait(armed, FOREVER), Wake::Arrived);
            if host.now() > start + 500_000_000 {
                break;
            }
        }
        assert_eq!(memory.load(0), 0x0101_0101_0101_0101, "the WRITE has landed, and woke nobody");
        two.receive(10, 64);
        two.expect(10, CompletionStatus::Success);
        assert!(host.now() >= start + 2_000_000_000);
        task.join();
    });
    assert!(report.events < 100, "{} events for two seconds of sleep", report.events);
}

#[test]
fn what_arrives_between_arming_and_waiting_ends_the_wait_at_once() {
    let settings = Settings { spurious: 0, ..Settings::default() };
    let root = |sim: Sim| {
        let (mut one, mut two) = connected(&sim, |_| {});
        for (mode, wake) in [(WaitMode::Busy, Wake::Rested), (WaitMode::Event, Wake::Arrived)] {
            two.receive(10, 64);
            let armed = two.domain.arm(mode);
            one.send(1, b"in between");
            one.expect(1, CompletionStatus::Success);
            // Would deadlock otherwise: nothing else arrives.
            assert_eq!(two.domain.wait(armed, FOREVER), wake);
            two.expect(10, CompletionStatus::Success);
        }
    };
    Sim::run_with(settings, 14, root).expect("a run");
}

/// A busy wait stands for endless polling, which finds a queue pair that broke without a completion.
#[test]
fn a_busy_wait_ends_where_a_queue_pair_is_broken() {
    let settings = Settings { spurious: 0, ..Settings::default() };
    let root = |sim: Sim| {
        let (mut one, two) = connected(&sim, |_| {});
        drop(two);
        while one.domain.state(one.pair) != Some(QueuePairState::Error) {
            let armed = one.domain.arm(WaitMode::Busy);
            one.domain.wait(armed, FOREVER);
        }
        let armed = one.domain.arm(WaitMode::Busy);
        // Would deadlock otherwise: nothing else arrives.
        assert_eq!(one.domain.wait(armed, FOREVER), Wake::TimedOut);
        one.domain.destroy_queue_pair(one.pair).expect("it is there");
        let (armed, now) = (one.domain.arm(WaitMode::Busy), sim.host().now());
        assert_eq!(one.domain.wait(armed, now + 1_000_000), Wake::TimedOut);
        assert!(sim.host().now() >= now + 1_000_000, "nothing is broken any more");
    };
    Sim::run_with(settings, 15, root).expect("a run");
}

/// One machine, with times from the model.
fn modelled() -> Settings {
    let profile = Arc::new(Profile::built_in("hatrpc").expect("a profile"));
    let machines = vec![(Arc::clone(&profile), 1)];
    Settings {
        prices: Prices::of(&profile),
        timing: TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 }),
        ..Settings::default()
    }
}

/// Between processes of one machine processors copy: no NIC counts a message, and a line takes the price of a line.
#[test]
fn processes_of_one_machine_need_no_nic() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&times);
    let root = move |sim: Sim| {
        for fabric in [sim.clone(), sim.within_machine()] {
            let (mut one, two) = connected(&fabric, |_| {});
            let access = Access::READ.with(Access::WRITE);
            let memory = region(&fabric, 1 << 16, access);
            let key = two.link.grant(memory.memory(), access).expect("a grant");
            let mut timed = |operation: Operation<'_, SimMemory>| {
                let since = sim.time();
                one.post(1, operation);
                one.expect(1, CompletionStatus::Success);
                sim.time() - since
            };
            let write = |bytes: &[u8]| {
                let data = Data::Inline(&[bytes]);
                timed(Operation::Write { data, key, offset: 0, immediate: None })
            };
            let [short, long] = [&[7; 8][..], &[7; 200]].map(write);
            let mut byte = [0];
            memory.copy_out(199, &mut byte);
            assert_eq!(byte, [7]);
            let messages = sim.nic_counters(0, 0).expect("a model").requests_out;
            told.lock().expect("the times").push((short, long, messages));
        }
    };
    let settings = modelled();
    let line = settings.prices.work[Work::TakeLine as usize] / 1000;
    Sim::run_with(settings, 3, root).expect("a run");
    let times = times.lock().expect("the times").clone();
    let [(network, _, by_nic), (short, long, after)] = times[..] else { panic!("{times:?}") };
    assert!(by_nic > 0 && after == by_nic, "{times:?}");
    assert!(network > 1_000 && (line..network / 2).contains(&short) && short < long, "{times:?}");
}

/// An address within a machine is no address of another machine, nor of the network.
#[test]
fn addresses_within_a_machine_are_its_own() {
    let machines = vec![MachineSettings::default(); 2];
    let settings = Settings { machines, ..Settings::default() };
    let root = |sim: Sim| {
        let address: Address = "sim:within".parse().expect("an address");
        let [first, second] = [0, 1].map(|machine| sim.process_on(machine).within_machine());
        let _listener = first.listen(&address).expect("listening");
        for stranger in [&second, &sim] {
            let refused = stranger.dial(&address, FOREVER).expect_err("nobody listens there");
            assert!(matches!(refused, DialError::NobodyListens { .. }), "{refused}");
        }
        let _ = (second.listen(&address).expect("its own"), sim.listen(&address).expect("the network's"));
        first.process_on(0).dial(&address, FOREVER).expect("a process of the machine");
        assert!(matches!(first.listen(&address), Err(ListenError::InUse { .. })));
        assert!(first.process_on(1).dial(&address, FOREVER).is_err(), "it is on another machine");
    };
    Sim::run_with(settings, 4, root).expect("a run");
}

/// A small message reaches memory before an earlier large one has landed; its completion must wait.
#[test]
fn messages_are_received_in_the_order_of_sending() {
    let root = |sim: Sim| {
        let (mut one, mut two) = connected(&sim, |_| {});
        for id in 0..8 {
            two.receive(id, 1 << 16);
        }
        for round in 0..4 {
            let large = one.arena.reserve(1 << 16).expect("room in the arena");
            one.post(2 * round, Operation::Send { data: Data::Buffer(large), immediate: None, to: None });
            one.send(2 * round + 1, b"small");
        }
        for id in 0..8 {
            let bytes = two.expect(id, CompletionStatus::Success).bytes;
            assert_eq!(bytes, if id % 2 == 0 { 1 << 16 } else { 5 }, "message {id}");
        }
    };
    Sim::run_with(modelled(), 16, root).expect("a run");
}

/// An acknowledgement is shorter than the answer of an earlier large READ, and must not complete its request
/// first.
#[test]
fn work_requests_end_in_the_order_of_posting() {
    let root = |sim: Sim| {
        let (mut one, two) = connected(&sim, |_| {});
        let access = Access::READ.with(Access::WRITE);
        let memory = region(&sim, 1 << 18, access);
        let key = two.link.grant(memory.memory(), access).expect("a grant");
        for round in 0..4 {
            let into = one.arena.reserve(1 << 17).expect("room in the arena");
            let from = RemoteSlice { key, offset: 0, length: 1 << 17 };
            one.post(2 * round, Operation::Read { from, into });
            let data = Data::Inline(&[&[1; 8]]);
            one.post(2 * round + 1, Operation::Write { data, key, offset: 1 << 17, immediate: None });
        }
        for id in 0..8 {
            one.expect(id, CompletionStatus::Success);
        }
    };
    Sim::run_with(modelled(), 15, root).expect("a run");
}

#[test]
fn more_dials_than_a_listener_keeps_wait_for_room() {
    const DIALS: usize = 2500;
    let settings = Settings { max_tasks: DIALS + 8, ..Settings::default() };
    let reached = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&reached);
    Sim::run_with(settings, 1, move |sim| {
        let address: Address = "sim:busy".parse().expect("an address");
        let listener = sim.listen(&address).expect("listening");
        let dial = || {
            let (dialler, address, counted) = (sim.clone(), address.clone(), Arc::clone(&counted));
            let body = move || {
                dialler.dial(&address, FOREVER).expect("room after a while");
                *counted.lock().expect("the count") += 1;
            };
            sim.host().spawn("dials", Box::new(body)).expect("a task")
        };
        let tasks: Vec<_> = (0..DIALS).map(|_| dial()).collect();
        sim.host().sleep(sim.host().now() + 1_000_000);
        let before = *counted.lock().expect("the count");
        assert!((1000..1100).contains(&before), "{before} got through before anybody accepted");
        for _ in 0..DIALS {
            listener.accept(FOREVER).expect("a connection");
        }
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        // A dial that finds no room times out.
        for _ in 0..1024 {
            sim.dial(&address, FOREVER).expect("room");
        }
        sim.dial(&address, sim.host().now() + 1_000_000).expect_err("no room");
    })
    .expect("a run");
    assert_eq!(*reached.lock().expect("the count"), DIALS);
}
