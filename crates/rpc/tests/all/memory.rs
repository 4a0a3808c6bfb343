//! Operations on memory that a server exposes, under each policy of sharing: on shared memory and in virtual time.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::raw::{greet, receive, send};
use crate::common::*;
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Access, Address, Completion, CompletionQueueId, Fabric, Host, Link, Region, Scheme, ThreadDomain,
};
use dunlin_fabric_sim::{Faults, Settings, Sim};
use dunlin_rpc::*;
use dunlin_wire::handshake::{Attach, Grant, Record};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const ALL: Access = Access::READ.with(Access::WRITE).with(Access::ATOMIC);
pub(crate) const BYTES: u64 = 2 << 20;

pub(crate) fn plan(sharing: Sharing) -> Plan {
    Plan { sharing, ..any_plan() }
}

/// A server that exposes `all`, and `fixed` for READs only. Also returns the memory of `all`.
pub(crate) fn serve<F: Fabric>(fabric: &F, address: &Address) -> (Server<F>, Region<F::Memory>) {
    let all = Region::new(fabric.register(BYTES, ALL).unwrap());
    let fixed = Region::new(fabric.register(4096, Access::READ).unwrap());
    let server = ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .expose("all", all.clone(), ALL)
        .expose("fixed", fixed, Access::READ)
        .serve(address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(request.payload)?;
                Ok(())
            })
        })
        .unwrap();
    (server, all)
}

/// One thread's operations in a part of the region that no other thread uses, and on the word at 0.
fn use_memory<F: Fabric>(client: &mut Client<F>, thread: u64, rounds: u64) {
    let region = client.attach("all").unwrap();
    assert_eq!((region.name(), region.len(), region.access()), ("all", BYTES, ALL));
    let base = 4096 * (1 + thread * 20);
    for round in 0..rounds {
        let length = [1, 8, 40, 300, 5000, 70_000][(round % 6) as usize];
        let data = pattern(length, thread << 32 | round);
        let mut back = vec![0; length];
        client.write(&region, base + round % 7, &data).unwrap();
        client.read(&region, base + round % 7, &mut back).unwrap();
        assert_eq!(back, data);
        client.fetch_add(&region, 0, 1).unwrap();
        let word = 8 + thread * 8;
        let before = client.fetch_add(&region, word, 3).unwrap();
        assert_eq!(client.compare_swap(&region, word, before + 3, before + 7).unwrap(), before + 3);
        assert_eq!(client.compare_swap(&region, word, before, 0).unwrap(), before + 7);
        // Calls and operations share the window and end in any order.
        let write = client.submit_write(&region, base + 70_000, &round.to_le_bytes()).unwrap();
        let call = client.submit_waiting_on(0, ECHO, b"beside").unwrap();
        assert_eq!(*client.wait(call).unwrap(), *b"beside");
        assert!(client.wait(write).unwrap().is_empty());
        let read = client.submit_read(&region, base + 70_000, 8).unwrap();
        assert_eq!(*client.wait(read).unwrap(), round.to_le_bytes());
    }
}

#[test]
fn threads_use_exposed_memory() {
    bounded(|| {
        for sharing in Sharing::ALL {
            let (fabric, address) = (fabric(), unique("memory"));
            let (server, memory) = serve(&fabric, &address);
            let config = ClientConfig { max_queue_pairs: 2, ..with_plan(plan(sharing)) };
            let first = Client::connect(&fabric, &address, config).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let mut client = first.another().unwrap();
                    scope.spawn(move || use_memory(&mut client, thread, 60));
                }
            });
            assert_eq!(memory.load(0), 4 * 60, "{sharing:?}");
            server.shutdown(Duration::from_secs(1));
        }
    });
}

#[test]
fn threads_use_exposed_memory_in_virtual_time() {
    for sharing in Sharing::ALL {
        for (name, mode) in [
            ("Direct-WriteIMM", CompletionMode::Adaptive),
            ("Server-reply", CompletionMode::Busy),
            ("FaRM", CompletionMode::Busy),
        ] {
            let plan = Plan { sharing, ..Protocol::by_name(name).unwrap().plan(mode) };
            let settings = Settings { preemption: 20, ..Settings::default() };
            Sim::run_with(settings, 1, move |fabric| {
                let address = Address::new(Scheme::Sim, "memory").unwrap();
                let (server, memory) = serve(&fabric, &address);
                let first = Client::connect(&fabric, &address, with_plan(plan)).unwrap();
                let tasks: Vec<_> = (0..3)
                    .map(|thread| {
                        let mut client = first.another().unwrap();
                        let body = move || use_memory(&mut client, thread, 12);
                        fabric.host().spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                    })
                    .collect();
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
                assert_eq!(memory.load(0), 3 * 12);
                drop(first);
                server.shutdown(Duration::from_secs(1));
            })
            .unwrap();
        }
    }
}

#[test]
fn what_is_not_granted_is_refused_before_it_is_sent() {
    let (fabric, address) = (fabric(), unique("refused"));
    let (server, memory) = serve(&fabric, &address);
    for sharing in Sharing::ALL {
        let mut client = Client::connect(&fabric, &address, with_plan(plan(sharing))).unwrap();
        for name in ["", "none", &"x".repeat(256)] {
            let refused = client.attach(name).unwrap_err();
            assert_eq!(refused, MemoryError::NoSuchRegion { name: name.to_owned() });
        }
        let (all, fixed) = (client.attach("all").unwrap(), client.attach("fixed").unwrap());
        let not_permitted = MemoryError::NotPermitted { region: "fixed".to_owned() };
        assert_eq!(client.write(&fixed, 0, &[1]), Err(not_permitted.clone()));
        assert_eq!(client.fetch_add(&fixed, 0, 1), Err(not_permitted.clone()));
        assert_eq!(client.compare_swap(&fixed, 0, 0, 1), Err(not_permitted));
        assert_eq!(client.read(&fixed, 4090, &mut [9; 6]), Ok(()));
        let out = MemoryError::OutOfBounds { offset: 4090, length: 7, limit: 4096 };
        assert_eq!(client.read(&fixed, 4090, &mut [9; 7]), Err(out));
        let out = MemoryError::OutOfBounds { offset: u64::MAX, length: 1, limit: BYTES };
        assert_eq!(client.write(&all, u64::MAX, &[1]), Err(out));
        assert_eq!(client.fetch_add(&all, 12, 1), Err(MemoryError::Misaligned { offset: 12 }));
        assert_eq!(client.write(&all, BYTES, &[]), Ok(()), "no bytes at the end");
        assert_eq!(*client.call(ECHO, b"goes on").unwrap(), *b"goes on");
    }
    assert!((0..BYTES as usize / 8).all(|word| memory.load(word * 8) == 0), "nothing was written");
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn servers_expose_no_nonsense() {
    let fabric = fabric();
    let readable = || Region::new(fabric.register(4096, Access::READ).unwrap());
    for (names, access, reason) in [
        (vec![""], Access::READ, "1 to 255 bytes"),
        (vec!["twice", "twice"], Access::READ, "differently"),
        (vec!["read-only"], Access::WRITE, "registered for the access"),
        (vec!["nothing"], Access::LOCAL, "registered for the access"),
    ] {
        let mut builder = ServerBuilder::new(&fabric);
        for name in names {
            builder = builder.expose(name, readable(), access);
        }
        let service = |_| -> Box<dyn Service> { Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Ok(())) };
        let refused = builder.serve(&unique("nonsense"), service).map(drop).unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
    }
}

/// Regions that are attached stay valid when the client connects again, and operations in between end with a
/// certainty.
#[test]
fn regions_outlive_a_connection() {
    bounded(|| {
        for sharing in Sharing::ALL {
            let (fabric, address) = (fabric(), unique("again"));
            let (server, _) = serve(&fabric, &address);
            let config = ClientConfig {
                wait_for_ready: Duration::from_secs(20),
                timeout: Duration::from_secs(30),
                ..with_plan(plan(sharing))
            };
            let mut client = Client::connect(&fabric, &address, config).unwrap();
            let region = client.attach("all").unwrap();
            client.write(&region, 0, b"before").unwrap();
            server.shutdown(Duration::ZERO);
            let (server, memory) = serve(&fabric, &address);
            // A WRITE that the end of the first server overtakes goes into its memory, which is still mapped.
            while memory.load(0).to_le_bytes() != *b"after it" {
                match client.write(&region, 0, b"after it") {
                    Ok(()) => {}
                    Err(MemoryError::Call(error)) => assert!(error.cause().is_some(), "{error}"),
                    Err(error) => panic!("{sharing:?}: {error}"),
                }
            }
            server.shutdown(Duration::from_secs(1));
        }
    });
}

/// Posts are refused, also of whole lists of operations: they wait, and nothing is lost or done twice.
#[test]
fn refused_lists_are_posted_later() {
    for (seed, name) in ["Direct-WriteIMM", "Server-reply", "Eager-SendRecv"].into_iter().enumerate() {
        let plan = Plan {
            sharing: Sharing::Combined,
            ..Protocol::by_name(name).unwrap().plan(CompletionMode::Busy)
        };
        let faults = Faults { refusal: 3, ..Faults::default() };
        let settings = Settings { preemption: 2, faults, ..Settings::default() };
        Sim::run_with(settings, seed as u64, move |fabric| {
            let address = Address::new(Scheme::Sim, "memory").unwrap();
            let (server, memory) = serve(&fabric, &address);
            let config = ClientConfig { max_queue_pairs: 1, ..with_plan(plan) };
            let first = Client::connect(&fabric, &address, config).unwrap();
            let tasks: Vec<_> = (0..6)
                .map(|thread| {
                    let mut client = first.another().unwrap();
                    let body = move || use_memory(&mut client, thread, 12);
                    fabric.host().spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            assert_eq!(memory.load(0), 6 * 12);
            drop(first);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A client that goes away with operations under way leaves nothing, and its seat is given out again.
#[test]
fn operations_are_given_up_with_their_client() {
    bounded(|| {
        for sharing in Sharing::ALL {
            let (fabric, address) = (fabric(), unique("given-up"));
            let (server, _) = serve(&fabric, &address);
            let config = ClientConfig { max_queue_pairs: 1, ..with_plan(plan(sharing)) };
            let mut first = Client::connect(&fabric, &address, config).unwrap();
            let region = first.attach("all").unwrap();
            for round in 0..100u64 {
                let mut other = first.another().unwrap();
                for _ in 0..round % 5 {
                    other.submit_read(&region, 0, 70_000).unwrap();
                    other.submit_write(&region, 100_000, &[7; 5000]).unwrap();
                }
                drop(other);
                first.write(&region, 200_000, &round.to_le_bytes()).unwrap();
                let mut back = [0; 8];
                first.read(&region, 200_000, &mut back).unwrap();
                assert_eq!(back, round.to_le_bytes());
            }
            server.shutdown(Duration::from_secs(1));
        }
    });
}

/// Hooks that hold the completions of a domain back.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldBack(pub(crate) Arc<AtomicBool>);

impl<F: Fabric> Hooks<F> for HoldBack {
    type Domain = HoldBack;
    type Link = HoldBack;

    fn domain_hooks(&self) -> HoldBack {
        self.clone()
    }

    fn link_hooks(&self) -> HoldBack {
        self.clone()
    }
}

impl<L: Link> LinkHooks<L> for HoldBack {}

impl<D: ThreadDomain> DomainHooks<D> for HoldBack {
    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        if self.0.load(Ordering::Relaxed) { 0 } else { inner.poll(queue, into, limit) }
    }
}

/// An operation that was never posted was not executed at its deadline; one that was posted may have been. Its memory
/// is used again when it has completed.
#[test]
fn operations_end_at_their_deadlines() {
    for name in ["Direct-WriteIMM", "Server-reply"] {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        Sim::run(1, move |sim| {
            let (address, host) = (Address::new(Scheme::Sim, "late").unwrap(), sim.host().clone());
            let (server, _memory) = serve(&sim, &address);
            let hooks = HoldBack::default();
            let fabric = Interposed::with_hooks(sim, hooks.clone());
            let timeout = Duration::from_micros(100);
            let config = ClientConfig { window: 1, max_queue_pairs: 1, timeout, ..with_plan(plan) };
            let mut first = Client::connect(&fabric, &address, config).unwrap();
            let mut second = first.another().unwrap();
            let region = first.attach("all").unwrap();
            for round in 0..20u64 {
                hooks.0.store(true, Ordering::Relaxed);
                let posted = first.submit_read(&region, 0, 100_000).unwrap();
                // The lane has room for one.
                let waiting = second.submit_write(&region, 8, &u64::MAX.to_le_bytes()).unwrap();
                let error = second.wait(waiting).map(drop).unwrap_err();
                assert_eq!(error, CallError::NotExecuted(Cause::DeadlineExceeded), "{name}");
                let error = first.wait(posted).map(drop).unwrap_err();
                assert_eq!(error, CallError::MaybeExecuted(Cause::DeadlineExceeded), "{name}");
                hooks.0.store(false, Ordering::Relaxed);
                host.sleep(host.now() + 1_000_000);
                first.progress();
                for client in [&mut first, &mut second] {
                    let mut back = [0; 16];
                    client.write(&region, 0, &round.to_le_bytes()).unwrap();
                    client.read(&region, 0, &mut back).unwrap();
                    assert_eq!(back, [round.to_le_bytes(), [0; 8]].concat()[..], "{name}");
                }
            }
            drop((first, second));
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// The worker is busy and grants nothing: operations cost credits, and wait when these are spent.
#[test]
fn operations_wait_for_credits() {
    const SLOW: u16 = ECHO + 1;
    Sim::run(1, |fabric| {
        let (address, host) = (Address::new(Scheme::Sim, "credits").unwrap(), fabric.host().clone());
        let memory = Region::new(fabric.register(BYTES, ALL).unwrap());
        let slow_host = host.clone();
        let server = ServerBuilder::new(&fabric)
            .function(SLOW, FunctionMode::Worker)
            .expose("all", memory.clone(), ALL)
            .serve(&address, move |_| {
                let host = slow_host.clone();
                Box::new(move |_: &Request<'_>, _: &mut Reply<'_>| {
                    host.sleep(host.now() + 1_000_000);
                    Ok(())
                })
            })
            .unwrap();
        let dedicated = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let combined = Plan { sharing: Sharing::Combined, ..dedicated };
        let config = ClientConfig { credits: 4, max_queue_pairs: 1, ..with_plan(combined) };
        let mut client = Client::connect(&fabric, &address, config).unwrap();
        let region = client.attach("all").unwrap();
        let mut other = Client::connect(&fabric, &address, with_plan(dedicated)).unwrap();
        let slow = other.submit_on(0, SLOW, b"keeps the worker").unwrap();
        host.sleep(host.now() + 100_000);
        let write = |client: &mut Client<Sim>, word: u64| {
            client.submit_write(&region, 8 * word, &(word + 1).to_le_bytes()).unwrap()
        };
        let writes: Vec<_> = (0..6).map(|word| write(&mut client, word)).collect();
        host.sleep(host.now() + 100_000);
        client.progress();
        let written = || (0..6).map(|word| memory.load(8 * word)).collect::<Vec<_>>();
        assert_eq!(written(), [1, 2, 3, 4, 0, 0]);
        other.wait(slow).unwrap();
        writes.into_iter().for_each(|write| assert!(client.wait(write).unwrap().is_empty()));
        assert_eq!(written(), [1, 2, 3, 4, 5, 6]);
        drop((client, other));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// Calls and operations spend the same credits, and both ends count the same rest: no lane is closed.
#[test]
fn calls_and_operations_share_credits() {
    for (seed, credits) in [1, 2, 3, 5, 32].into_iter().enumerate() {
        for credit_renewal in [CreditRenewal::WithRequest, CreditRenewal::WriteImmediate] {
            for (name, mode) in
                [("Direct-WriteIMM", CompletionMode::Event), ("Server-reply", CompletionMode::Busy)]
            {
                let plan = Protocol::by_name(name).unwrap().plan(mode);
                let plan = Plan { sharing: Sharing::Combined, ..plan };
                let settings = Settings { preemption: 20, ..Settings::default() };
                Sim::run_with(settings, seed as u64, move |fabric| {
                    let address = Address::new(Scheme::Sim, "credits").unwrap();
                    let (server, memory) = serve(&fabric, &address);
                    let config =
                        ClientConfig { credits, credit_renewal, max_queue_pairs: 1, ..with_plan(plan) };
                    let first = Client::connect(&fabric, &address, config).unwrap();
                    let session = first.session();
                    let tasks: Vec<_> = (0..3)
                        .map(|thread| {
                            let mut client = first.another().unwrap();
                            let body = move || use_memory(&mut client, thread, 12);
                            fabric.host().spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                        })
                        .collect();
                    tasks.into_iter().for_each(dunlin_fabric::Task::join);
                    assert_eq!((memory.load(0), first.session()), (3 * 12, session), "{credits}");
                    drop(first);
                    server.shutdown(Duration::from_secs(1));
                })
                .unwrap();
            }
        }
    }
}

/// A client that asks for regions for ever costs the server no more than one grant each.
#[test]
fn attaching_again_gives_the_same_grant() {
    let (fabric, address) = (fabric(), unique("attach"));
    let (server, _) = serve(&fabric, &address);
    let (link, _) = greet(&fabric, &address);
    let ask = |name: &str| {
        send(&link, &Record::Attach(Attach { name: name.to_owned() }));
        match receive(&link) {
            Some(Record::Grant(grant)) => grant,
            other => panic!("{other:?} instead of a grant"),
        }
    };
    let first = ask("all");
    assert_eq!((first.length, first.purpose), (BYTES, ALL.bits()));
    for _ in 0..1000 {
        assert_eq!(ask("all"), first);
        assert_eq!(ask("none"), Grant { key: 0, length: 0, purpose: 0 });
    }
    link.close();
    server.shutdown(Duration::from_secs(1));
}
