//! Operations on memory that a server exposes, as futures: on shared memory and in virtual time.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use crate::memory::{ALL, BYTES, HoldBack, plan, serve};
use crate::reconnecting::block_on;
use dunlin_fabric::interpose::Interposed;
use dunlin_fabric::{Address, Fabric, Host, Scheme, Task};
use dunlin_fabric_sim::{Faults, Settings, Sim};
use dunlin_rpc::*;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// A waker of the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls only after a wake-up.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// One task's operations in a part of the region that no other task uses, and on the word at 0.
async fn use_memory<F: Fabric>(client: AsyncClient<F>, task: u64, rounds: u64) {
    let region = client.attach("all").await.unwrap();
    assert_eq!((region.name(), region.len(), region.access()), ("all", BYTES, ALL));
    let base = 4096 * (1 + task * 20);
    for round in 0..rounds {
        let length = [1, 8, 40, 300, 5000, 70_000][(round % 6) as usize];
        let data = pattern(length, task << 32 | round);
        // The operations of a task keep their order, and calls and operations are under way together.
        let write = client.write(&region, base + round % 7, &data);
        let read = client.read(&region, base + round % 7, length);
        let add = client.fetch_add(&region, 0, 1);
        let call = client.call(ECHO, b"beside");
        write.await.unwrap();
        assert_eq!(*read.await.unwrap(), data);
        add.await.unwrap();
        assert_eq!(*call.await.unwrap(), *b"beside");
        let word = 8 + task * 8;
        let before = client.fetch_add(&region, word, 3).await.unwrap();
        assert_eq!(client.compare_swap(&region, word, before + 3, before + 7).await.unwrap(), before + 3);
        assert_eq!(client.compare_swap(&region, word, before, 0).await.unwrap(), before + 7);
        drop(client.read(&region, base, 70_000));
    }
}

#[test]
fn tasks_use_exposed_memory() {
    bounded(|| {
        for mode in [CompletionMode::Busy, CompletionMode::Event] {
            let (fabric, address) = (fabric(), unique("memory"));
            let (server, memory) = serve(&fabric, &address);
            let hub = AsyncHub::new(&fabric).unwrap();
            let config = with_plan(any_plan().completion(mode, mode));
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            std::thread::scope(|scope| {
                for task in 0..4 {
                    let client = client.clone();
                    scope.spawn(move || wait(use_memory(client, task, 60)));
                }
            });
            assert_eq!(memory.load(0), 4 * 60, "{mode}");
            drop(client);
            server.shutdown(Duration::from_secs(1));
        }
    });
}

/// Threads lose their core while they lead, and posts are refused.
#[test]
fn tasks_use_exposed_memory_in_virtual_time() {
    for sharing in [Sharing::Dedicated, Sharing::Combined] {
        for (seed, (name, mode)) in [
            ("Direct-WriteIMM", CompletionMode::Event),
            ("Server-reply", CompletionMode::Busy),
            ("FaRM", CompletionMode::Busy),
        ]
        .into_iter()
        .enumerate()
        {
            let plan = Plan { sharing, ..Protocol::by_name(name).unwrap().plan(mode) };
            let faults = Faults { refusal: 3, ..Faults::default() };
            let settings = Settings { preemption: 20, faults, ..Settings::default() };
            Sim::run_with(settings, seed as u64, move |fabric| {
                let address = Address::new(Scheme::Sim, "memory").unwrap();
                let (server, memory) = serve(&fabric, &address);
                let hub = AsyncHub::new(&fabric).unwrap();
                // Combined clones share as many queue pairs as soon as they make requests.
                let thread_scheduling = Some(Duration::from_micros(1));
                let config = ClientConfig { thread_scheduling, ..with_plan(plan) };
                let client = AsyncClient::connect(&hub, &address, config).unwrap();
                let tasks: Vec<_> = (0..4)
                    .map(|task| {
                        let (fabric, client) = (fabric.clone(), client.clone());
                        let host = fabric.host().clone();
                        let body = move || block_on(&fabric, use_memory(client, task, 12));
                        host.spawn(&format!("task-{task}"), Box::new(body)).unwrap()
                    })
                    .collect();
                tasks.into_iter().for_each(Task::join);
                assert_eq!(memory.load(0), 4 * 12);
                drop((client, hub));
                server.shutdown(Duration::from_secs(1));
            })
            .unwrap_or_else(|error| panic!("{name} {sharing:?}: {error}"));
        }
    }
}

#[test]
fn futures_of_what_is_not_granted_are_refused_before_anything_is_sent() {
    let (fabric, address) = (fabric(), unique("refused"));
    let (server, memory) = serve(&fabric, &address);
    let hub = AsyncHub::new(&fabric).unwrap();
    let client = AsyncClient::connect(&hub, &address, with_plan(any_plan())).unwrap();
    bounded(move || {
        for _ in 0..2 {
            for name in ["", "none", &"x".repeat(256)] {
                let refused = wait(client.attach(name)).unwrap_err();
                assert_eq!(refused, MemoryError::NoSuchRegion { name: name.to_owned() });
            }
        }
        let (all, fixed) = (wait(client.attach("all")).unwrap(), wait(client.attach("fixed")).unwrap());
        let not_permitted = MemoryError::NotPermitted { region: "fixed".to_owned() };
        assert_eq!(wait(client.write(&fixed, 0, &[1])), Err(not_permitted.clone()));
        assert_eq!(wait(client.fetch_add(&fixed, 0, 1)), Err(not_permitted));
        assert_eq!(wait(client.read(&fixed, 4090, 6)).unwrap().len(), 6);
        let out = MemoryError::OutOfBounds { offset: 4090, length: 7, limit: 4096 };
        assert_eq!(wait(client.read(&fixed, 4090, 7)).map(drop), Err(out));
        let long = wait(client.read(&fixed, 0, usize::MAX)).map(drop);
        assert!(matches!(long, Err(MemoryError::OutOfBounds { .. })), "{long:?}");
        assert_eq!(wait(client.fetch_add(&all, 12, 1)), Err(MemoryError::Misaligned { offset: 12 }));
        assert_eq!(*wait(client.call(ECHO, b"goes on")).unwrap(), *b"goes on");
        assert!((0..BYTES as usize / 8).all(|word| memory.load(word * 8) == 0), "nothing was written");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    });
}

/// Regions that are attached stay valid when the client connects again.
#[test]
fn regions_of_tasks_outlive_a_connection() {
    Sim::run(3, |fabric| {
        let address = Address::new(Scheme::Sim, "again").unwrap();
        let (server, _) = serve(&fabric, &address);
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig {
            wait_for_ready: Duration::from_secs(20),
            timeout: Duration::from_secs(30),
            ..with_plan(any_plan())
        };
        let client = AsyncClient::connect(&hub, &address, config).unwrap();
        let regions = ["fixed", "all"].map(|name| block_on(&fabric, client.attach(name)).unwrap());
        block_on(&fabric, client.write(&regions[1], 0, b"before")).unwrap();
        server.shutdown(Duration::ZERO);
        let (server, memory) = serve(&fabric, &address);
        while memory.load(0).to_le_bytes() != *b"after it" {
            match block_on(&fabric, client.write(&regions[1], 0, b"after it")) {
                Ok(()) => {}
                Err(MemoryError::Call(error)) => assert!(error.cause().is_some(), "{error}"),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(block_on(&fabric, client.read(&regions[0], 0, 8)).unwrap().len(), 8);
        // A region that is asked for while there is no server: the client connects first.
        server.shutdown(Duration::ZERO);
        let asked = client.attach("fixed");
        let (server, _) = serve(&fabric, &address);
        assert_eq!(block_on(&fabric, asked).unwrap().len(), 4096);
        drop((client, hub));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// An operation that was not posted was not executed at its deadline; one that was posted may have been.
#[test]
fn futures_end_at_their_deadlines() {
    for (name, mode) in [("Direct-WriteIMM", CompletionMode::Event), ("Server-reply", CompletionMode::Busy)] {
        let plan = Protocol::by_name(name).unwrap().plan(mode);
        Sim::run(1, move |sim| {
            let (address, host) = (Address::new(Scheme::Sim, "late").unwrap(), sim.host().clone());
            let (server, _memory) = serve(&sim, &address);
            let hooks = HoldBack::default();
            let fabric = Interposed::with_hooks(sim.clone(), hooks.clone());
            let hub = AsyncHub::new(&fabric).unwrap();
            let config = ClientConfig { window: 1, ..with_plan(plan) };
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            let region = block_on(&sim, client.attach("all")).unwrap();
            for round in 0..10u64 {
                hooks.0.store(true, Ordering::Relaxed);
                let short = client.within(Duration::from_micros(200));
                let posted = short.read(&region, 0, 100_000);
                // The lane has room for one.
                let waiting = short.write(&region, 8, &u64::MAX.to_le_bytes());
                let late =
                    |certainty: fn(Cause) -> CallError| MemoryError::Call(certainty(Cause::DeadlineExceeded));
                assert_eq!(block_on(&sim, waiting), Err(late(CallError::NotExecuted)), "{name}");
                assert_eq!(block_on(&sim, posted).map(drop), Err(late(CallError::MaybeExecuted)), "{name}");
                hooks.0.store(false, Ordering::Relaxed);
                host.sleep(host.now() + 1_000_000);
                block_on(&sim, client.write(&region, 0, &round.to_le_bytes())).unwrap();
                let back = block_on(&sim, client.read(&region, 0, 16)).unwrap();
                assert_eq!(*back, [round.to_le_bytes(), [0; 8]].concat(), "{name}");
            }
            drop((client, hub));
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// Sharing does not matter to a dedicated connection of tasks; the plan is the same for both.
#[test]
fn one_plan_serves_calls_and_operations() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("plans"));
        let (server, _) = serve(&fabric, &address);
        let hub = AsyncHub::new(&fabric).unwrap();
        for sharing in Sharing::ALL {
            let client = AsyncClient::connect(&hub, &address, with_plan(plan(sharing))).unwrap();
            wait(use_memory(client, 0, 3));
        }
        server.shutdown(Duration::from_secs(1));
    });
}
