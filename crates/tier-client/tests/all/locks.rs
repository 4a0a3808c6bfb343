//! Locks and barriers of attached processes, among themselves and with the threads of nodes.

use crate::common::{HANG, Serving, attach, config, fabric, serve, tag, wait};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, Cause, Client, ClientConfig};
use dunlin_tier::lock::message::LockRefusal;
use dunlin_tier::process::lock::{BARRIER, GIVE_UP, Granted, LOCK, LOCK_HOME, LockingRequest, UNLOCK};
use dunlin_tier::process::{ATTACH, Problem, ProcessRequest, REFUSED, SERVICE};
use dunlin_tier::{Name, NodeId, Slots, home};
use dunlin_tier_client::{AnyGuard, AnyLmr, AnyTier, Guard, LockError, RequestError, Rights, Spec, Tier};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Returns a name whose home is the node with this number among two.
pub(crate) fn name_at(node: u16) -> String {
    let at = |number: &u32| {
        let name = Name::new(format!("name/{number}")).unwrap();
        home(&name, (0..2).map(NodeId)) == Some(NodeId(node))
    };
    format!("name/{}", (0..).find(at).unwrap())
}

fn nodes(what: &str) -> Vec<Serving> {
    let tag = tag(what);
    ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {})).into()
}

#[track_caller]
fn assert_deadline<T: std::fmt::Debug>(result: Result<T, LockError>, owner: &str) {
    assert!(matches!(&result, Err(LockError::Deadline { node }) if node == owner), "{result:?}");
}

/// Takes the lock many times. Whoever has it changes a word by itself.
fn count<T: AnyTier>(tier: &T, name: &str, rounds: u64, fences: &Mutex<Vec<u64>>) {
    let word = tier.map(b"word", Rights::ALL).unwrap();
    for _ in 0..rounds {
        let guard = tier.lock(name.as_bytes()).unwrap();
        assert!(!guard.is_poisoned());
        assert_eq!(word.fetch_add(0, 1).unwrap(), 0, "two have the lock");
        fences.lock().unwrap().push(guard.fence());
        word.fetch_add(8, 1).unwrap();
        assert_eq!(word.fetch_add(0, u64::MAX).unwrap(), 1, "two have the lock");
        guard.unlock().unwrap();
    }
}

#[test]
fn processes_and_threads_of_nodes_exclude_each_other() {
    let nodes = nodes("exclude");
    let region = nodes[0].node.malloc(16, Spec::on("two").named("word").grant_anyone(Rights::ALL)).unwrap();
    let (fences, rounds) = (Mutex::new(Vec::new()), 60);
    for name in [name_at(0), name_at(1)] {
        let (name, fences) = (&name, &fences);
        fences.lock().unwrap().clear();
        region.write(8, &[0; 8]).unwrap();
        std::thread::scope(|scope| {
            for serving in &nodes {
                let process = attach(&serving.address);
                for _ in 0..2 {
                    let process = process.clone();
                    scope.spawn(move || count(&process, name, rounds, fences));
                }
                scope.spawn(move || count(&attach(&serving.address), name, rounds, fences));
                scope.spawn(move || count(&serving.node, name, rounds, fences));
            }
        });
        let fences = fences.lock().unwrap();
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        assert_eq!(fences.len() as u64, 8 * rounds);
        assert_eq!(region.fetch_add(8, 0).unwrap(), 8 * rounds);
    }
}

#[test]
fn a_process_learns_which_node_owns_a_lock() {
    let nodes = nodes("owner");
    for (owner, node) in (0..).zip(["one", "two"]) {
        for serving in &nodes {
            let process = attach(&serving.address);
            assert_eq!(process.lock_home(name_at(owner)).unwrap(), node);
            assert_eq!(serving.node.lock_home(name_at(owner)).unwrap(), node);
        }
    }
    let too_long = attach(&nodes[0].address).lock_home([b'x'; 256]);
    assert!(matches!(too_long, Err(RequestError::Name(_))), "{too_long:?}");
}

#[test]
fn waiters_have_their_turns_in_the_order_of_arrival() {
    let nodes = nodes("order");
    for owner in 0..2 {
        let (name, order) = (name_at(owner), Arc::new(Mutex::new(Vec::new())));
        // On one node, since a node hands a lock over among its own waiters first.
        let guard = attach(&nodes[1].address).lock(&name).unwrap();
        let mut threads = Vec::new();
        for number in 0..6 {
            let (name, order) = (name.clone(), Arc::clone(&order));
            let (process, node) = (attach(&nodes[1].address), nodes[1].node.clone());
            threads.push(spawn(move || {
                if number % 3 == 2 {
                    let guard = node.lock(&name).unwrap();
                    order.lock().unwrap().push(number);
                    guard.unlock().unwrap();
                } else {
                    let guard = process.lock(&name).unwrap();
                    order.lock().unwrap().push(number);
                    guard.unlock().unwrap();
                }
            }));
            sleep(Duration::from_millis(60));
        }
        assert!(order.lock().unwrap().is_empty());
        guard.unlock().unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_lock_that_is_tried_is_free_or_not() {
    let nodes = nodes("try");
    let processes = [0, 0, 1].map(|node: usize| attach(&nodes[node].address));
    for name in [name_at(0), name_at(1)] {
        let is_free = || {
            let by_processes = processes.each_ref().map(|one| one.try_lock(&name).unwrap().is_some());
            let by_nodes = [0, 1].map(|at: usize| nodes[at].node.try_lock(&name).unwrap().is_some());
            assert!(by_processes.iter().chain(&by_nodes).all(|free| *free == by_nodes[0]));
            by_nodes[0]
        };
        assert!(is_free());
        for holder in &processes {
            let guard = holder.lock(&name).unwrap();
            assert!(!is_free());
            guard.unlock().unwrap();
            assert!(is_free());
            let guard = holder.try_lock(&name).unwrap().expect("it is free");
            assert!(!is_free());
            drop(guard);
            assert!(is_free());
        }
        let guard = nodes[1].node.lock(&name).unwrap();
        assert!(!is_free());
        guard.unlock().unwrap();
        assert!(is_free());
    }
    let empty = processes[0].lock("");
    assert!(matches!(empty, Err(LockError::Name(_))), "{empty:?}");
}

#[test]
fn who_gives_up_leaves_the_queue() {
    let nodes = nodes("late");
    let [near, far] = [0, 1].map(|node: usize| attach(&nodes[node].address));
    for (name, owner) in [(name_at(0), "one"), (name_at(1), "two")] {
        for holder in [&near, &far] {
            let guard = holder.lock(&name).unwrap();
            let time = Duration::from_millis(30);
            assert_deadline(near.lock_within(&name, time), owner);
            assert_deadline(far.lock_within(&name, time), owner);
            let (next, other) = (near.clone(), name.clone());
            let waits = spawn(move || next.lock(&other).unwrap().is_poisoned());
            sleep(Duration::from_millis(30));
            assert_deadline(far.lock_within(&name, time), owner);
            guard.unlock().unwrap();
            assert!(!waits.join().unwrap());
            drop(wait("the free lock", || far.try_lock(&name).unwrap()));
        }
        assert_deadline(near.barrier_within(&name, 2, Duration::from_millis(30)), owner);
        // Nobody is counted who has left, once the owner has heard of it.
        wait("the end of the one that left", || near.barrier(&name, 1).ok());
        assert_deadline(near.barrier_within(&name, 2, Duration::from_millis(30)), owner);
    }
}

/// Grants meet deadlines at any time. No lock is lost, and none is poisoned.
#[test]
fn grants_race_with_deadlines() {
    let nodes = nodes("race");
    let processes = [0, 0, 1, 1].map(|node: usize| attach(&nodes[node].address));
    let name = name_at(0);
    let (granted, late) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, process) in processes.iter().cycle().take(8).enumerate() {
            let (name, granted, late) = (&name, &granted, &late);
            scope.spawn(move || {
                for round in 0..60 {
                    let time = 100 + 173 * ((7 * number as u64 + round) % 12);
                    match process.lock_within(name, Duration::from_micros(time)) {
                        Ok(guard) => {
                            assert!(!guard.is_poisoned());
                            granted.fetch_add(1, Ordering::Relaxed);
                            sleep(Duration::from_micros(time / 4));
                            guard.unlock().unwrap();
                        }
                        Err(LockError::Deadline { .. }) => {
                            late.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
    });
    assert!(late.into_inner() > 0);
    for process in &processes {
        let guard = process.lock_within(&name, Duration::from_secs(5)).expect("the lock is lost");
        assert!(!guard.is_poisoned());
        guard.unlock().unwrap();
    }
    assert!(!nodes[1].node.lock(&name).unwrap().is_poisoned());
}

#[test]
fn callers_of_a_barrier_meet_from_all_sides() {
    let nodes = nodes("barrier");
    let (name, passed) = (name_at(1), AtomicU64::new(0));
    let meet = |barrier: &(dyn Fn() + Sync)| {
        for round in 0..20 {
            assert!(
                passed.fetch_add(1, Ordering::SeqCst) >= 6 * round,
                "the others have passed the last one"
            );
            barrier();
            assert!(passed.load(Ordering::SeqCst) >= 6 * (round + 1), "nobody passes early");
        }
    };
    std::thread::scope(|scope| {
        for serving in &nodes {
            let (meet, name) = (&meet, &name);
            let process = attach(&serving.address);
            for _ in 0..2 {
                let process = process.clone();
                scope.spawn(move || meet(&|| process.barrier(name, 6).unwrap()));
            }
            scope.spawn(move || meet(&|| serving.node.barrier(name, 6).unwrap()));
        }
    });
    // More threads of a process than it has connections.
    let process = attach(&nodes[0].address);
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| process.barrier(&name, 100).unwrap());
        }
    });
    let (waits, other) = (process.clone(), name.clone());
    let first = spawn(move || waits.barrier(&other, 2).unwrap());
    sleep(Duration::from_millis(300));
    let refused = process.barrier(&name, 3);
    let numbers = LockRefusal::Members { wanted: 3, present: 2 };
    assert!(
        matches!(&refused, Err(LockError::Refused { source, node }) if *source == numbers && node == "two"),
        "{refused:?}"
    );
    process.barrier(&name, 2).unwrap();
    first.join().unwrap();
}

/// Nested locks of more threads than a process has connections: those that wait do not keep a holder from its node.
#[test]
fn waiters_do_not_stand_in_the_way_of_holders() {
    let nodes = nodes("many");
    let process = attach(&nodes[0].address);
    let (outer, inner) = (name_at(0), name_at(1));
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                let _outer = process.lock(&outer).unwrap();
                let _inner = process.lock(&inner).unwrap();
                let before = count.load(Ordering::Relaxed);
                std::thread::yield_now();
                count.store(before + 1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(count.into_inner(), 80);
}

#[test]
fn locks_of_a_process_are_bounded() {
    let tag = tag("locks-limit");
    let node = serve(config(&tag, &["one"], "one"), &tag, |settings| settings.limits.locks = 3);
    let [app, other] = [attach(&node.address), attach(&node.address)];
    #[track_caller]
    fn assert_full<T: std::fmt::Debug>(result: Result<T, LockError>) {
        let is_limit =
            |error: &LockError| matches!(error, LockError::Request(RequestError::Limit { limit: 3, .. }));
        assert!(matches!(&result, Err(error) if is_limit(error)), "{result:?}");
    }
    let mut guards: Vec<Guard> = ["a", "b"].map(|name| app.lock(name).unwrap()).into();
    let waits = other.clone();
    let waiting = spawn(move || {
        loop {
            match waits.lock("a") {
                Err(LockError::Request(RequestError::Limit { .. })) => {}
                other => return other.map(drop),
            }
        }
    });
    // All attachments of a process id have the limit together, and those that wait count.
    wait("the waiter", || app.try_lock("c").map(drop).err());
    assert_full(app.lock("c"));
    assert_full(other.try_lock("c"));
    assert_full(other.barrier("c", 1));
    guards.remove(0).unlock().unwrap();
    waiting.join().unwrap().unwrap();
    guards.push(other.lock("c").unwrap());
    guards.push(wait("the lock of the waiter", || app.try_lock("a").unwrap()));
    assert_full(app.lock("d"));
    drop(guards);
    for name in ["a", "b", "c", "d"] {
        assert!(app.try_lock(name).unwrap().is_some());
    }
    // Calls whose time is over make room for others of their process, also without a word of it.
    let guard = app.lock("a").unwrap();
    let mut raw = Raw::attach(&node);
    let mut late = 0;
    for ticket in 0.. {
        let name = Name::new("a").unwrap();
        let mut bytes = Vec::new();
        LockingRequest::Lock { ticket, name, waits: true }.encode_into(&mut bytes);
        match raw.0.within(Duration::from_millis(20)).call(LOCK, &bytes).map(|_| ()) {
            Err(error) if error.is_deadline() => late += 1,
            // Its time is not over by the node's clock.
            Err(CallError::Application { code: REFUSED, .. }) => {}
            other => panic!("{other:?}"),
        }
        if late == 10 {
            break;
        }
    }
    // Nor have these got the lock, by the node's clock.
    sleep(Duration::from_millis(500));
    drop(guard);
    drop(wait("the lock", || app.try_lock("a").unwrap()));
}

/// A client without the library.
struct Raw(Client<ShmFabric>);

type Answer = Result<Vec<u8>, CallError>;

impl Raw {
    fn attach(node: &Serving) -> Raw {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        let mut raw = Raw(Client::connect(&fabric(), &node.address, config).unwrap());
        let mut bytes = Vec::new();
        ProcessRequest::Attach { secret: None, priority: None }.encode_into(&mut bytes);
        raw.0.call(ATTACH, &bytes).unwrap();
        raw
    }

    fn ask(&mut self, request: &LockingRequest) -> Answer {
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        self.0.within(HANG).call(request.function(), &bytes).map(|answer| answer.to_vec())
    }

    fn lock(&mut self, ticket: u64, name: &str, waits: bool) -> Answer {
        self.ask(&LockingRequest::Lock { ticket, name: Name::new(name).unwrap(), waits })
    }

    fn give_up(&mut self, ticket: u64, name: &str) -> Answer {
        self.ask(&LockingRequest::GiveUp { ticket, name: Name::new(name).unwrap() })
    }
}

fn granted(answer: Answer) -> Granted {
    Granted::parse(&answer.unwrap()).unwrap().expect("a grant")
}

#[track_caller]
fn assert_not_held(answer: Answer) {
    match answer {
        Err(CallError::Application { code: REFUSED, payload }) => {
            assert_eq!(Problem::parse(&payload).unwrap(), Problem::NotHeld);
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn forged_guards_and_tickets_harm_nobody() {
    let nodes = nodes("forged");
    let honest = attach(&nodes[0].address);
    let guard = honest.lock("honest").unwrap();
    let mut liar = Raw::attach(&nodes[0]);
    let own = granted(liar.lock(1, "liar", true));
    let mut numbers: Vec<u64> = vec![0, 1, u64::MAX, own.guard ^ 1, own.guard ^ 1 << 32, own.guard + 1];
    numbers.extend((0..50).map(|seed| Slots::new(4, seed).insert(()).unwrap()));
    for guard in numbers.into_iter().filter(|number| *number != own.guard) {
        assert_not_held(liar.ask(&LockingRequest::Unlock { guard }));
    }
    // Twice, and the number of a lock that was given back.
    let unlock = LockingRequest::Unlock { guard: own.guard };
    assert_eq!(liar.ask(&unlock).unwrap(), b"");
    assert_not_held(liar.ask(&unlock));
    let next = granted(liar.lock(2, "liar", true));
    assert!(next.guard != own.guard && next.fence > own.fence && !next.poisoned);
    assert_not_held(liar.ask(&unlock));
    // Tickets are those of a process: those of another one mean nothing.
    for ticket in 0..100 {
        if ticket != 2 {
            liar.give_up(ticket, "honest").unwrap();
        }
    }
    assert!(honest.try_lock("honest").unwrap().is_none());
    // A ticket whose request was granted.
    liar.give_up(2, "liar").unwrap();
    assert!(!honest.try_lock("liar").unwrap().expect("it was given back").is_poisoned());
    // Its number is of no use any more.
    assert_not_held(liar.ask(&LockingRequest::Unlock { guard: next.guard }));
    // One that comes before its request.
    liar.give_up(1000, "liar").unwrap();
    let late = liar.lock(1000, "liar", true).unwrap_err();
    assert_eq!(late, CallError::NotExecuted(Cause::DeadlineExceeded));
    assert!(honest.try_lock("liar").unwrap().is_some());
    // Any bytes; a request that is understood may wait for ever.
    let mut seed = 1u64;
    for round in 0..2000u64 {
        let mut drawn = Vec::new();
        for _ in 0..round % 30 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            drawn.push((seed >> 33) as u8);
        }
        let function = [LOCK, UNLOCK, BARRIER, GIVE_UP, LOCK_HOME][round as usize % 5];
        let _ = liar.0.within(Duration::from_millis(20)).call(function, &drawn);
    }
    guard.unlock().unwrap();
    honest.lock("honest").unwrap().unlock().unwrap();
    let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
    let mut stranger = Raw(Client::connect(&fabric(), &nodes[0].address, config).unwrap());
    match stranger.lock(1, "honest", true) {
        Err(CallError::Application { code: REFUSED, payload }) => {
            assert_eq!(Problem::parse(&payload).unwrap(), Problem::NotAttached);
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// A connection that ends takes its waiting calls with it, and leaves what the process has.
#[test]
fn a_process_that_vanishes_while_it_waits_takes_no_lock_with_it() {
    let nodes = nodes("lock-vanish");
    let honest = attach(&nodes[1].address);
    for name in [name_at(0), name_at(1)] {
        for _ in 0..5 {
            let guard = honest.lock(&name).unwrap();
            let mut waiter = Raw::attach(&nodes[0]);
            let mut bytes = Vec::new();
            LockingRequest::Lock { ticket: 1, name: Name::new(&name).unwrap(), waits: true }
                .encode_into(&mut bytes);
            waiter.0.submit_on(0, LOCK, &bytes).unwrap();
            waiter.give_up(99, &name).unwrap();
            drop(waiter);
            guard.unlock().unwrap();
            let guard = honest.lock_within(&name, Duration::from_secs(5)).unwrap();
            // It may have got the lock before its end.
            drop(guard);
        }
    }
}

#[test]
fn locks_end_with_the_life_of_their_node() {
    let tag = tag("lock-restart");
    let one = serve(config(&tag, &["one", "two"], "one"), &tag, |_| {});
    let two = serve(config(&tag, &["one", "two"], "two"), &tag, |_| {});
    let (near, far) = (attach(&one.address), attach(&two.address));
    let name = name_at(0);
    // The owner ends: its locks are free in its next life, and the holder hears of it.
    let held = far.lock(&name).unwrap();
    let lost = near.lock("lost").unwrap();
    drop(one);
    let gone = far.lock_within(&name, Duration::from_millis(200));
    assert!(matches!(gone, Err(LockError::Request(_) | LockError::Deadline { .. })), "{gone:?}");
    let one = serve(config(&tag, &["one", "two"], "one"), &tag, |_| {});
    let again = attach(&one.address);
    let guard = wait("the next life", || again.lock_within(&name, Duration::from_secs(1)).ok());
    let error = held.unlock();
    assert!(error.is_err(), "{error:?}");
    assert!(far.try_lock(&name).unwrap().is_none(), "the late unlock frees nobody else's lock");
    guard.unlock().unwrap();
    drop(wait("the free lock", || far.try_lock(&name).unwrap()));
    // The node of a process ends: it does not know the process any more.
    wait("the next node", || match near.lock_within(&name, Duration::from_secs(1)) {
        Err(LockError::Request(RequestError::Detached)) => Some(()),
        Err(_) => None,
        Ok(_) => panic!("a lock of a node that has ended"),
    });
    assert!(lost.unlock().is_err());
}

/// A function that is generic over the tier takes locks of both.
#[test]
fn any_tier_has_locks() {
    fn meet<T: AnyTier>(tier: &T, members: u16) {
        let guard = tier.lock_within(b"any", HANG).unwrap();
        assert!(tier.try_lock(b"any").unwrap().is_none());
        let (fence, poisoned) = (guard.fence(), guard.is_poisoned());
        assert!(fence > 0 && !poisoned);
        guard.unlock().unwrap();
        tier.barrier(b"all", members).unwrap();
        tier.barrier_within(b"all", members, HANG).unwrap();
    }
    let nodes = nodes("any");
    let process: Tier = attach(&nodes[1].address);
    std::thread::scope(|scope| {
        scope.spawn(|| meet(&process, 2));
        scope.spawn(|| meet(&nodes[0].node, 2));
    });
}
