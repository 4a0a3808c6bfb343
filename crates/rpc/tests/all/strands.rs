//! The queue pairs of a combined client: opened for its threads, divided among clients by the server, and given up.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::raw::{Half, RawClient, call};
use crate::common::*;
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Address, Fabric, Host, Link, ListError, PostError, QueuePairId, Scheme, Task, ThreadDomain, WorkRequest,
};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use dunlin_wire::handshake::{Extension, Extensions, RefusalCode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn combined() -> Plan {
    Plan { sharing: Sharing::Combined, ..any_plan() }
}

pub(crate) fn serve<F: Fabric>(fabric: &F, address: &Address, config: ServerConfig) -> Server<F> {
    ServerBuilder::new(fabric)
        .config(config)
        .function(ECHO, FunctionMode::Worker)
        .serve(address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(request.payload)?;
                Ok(())
            })
        })
        .unwrap()
}

pub(crate) fn limited(max_active_queue_pairs: u32, workers: u16) -> ServerConfig {
    ServerConfig { max_active_queue_pairs, workers, ..ServerConfig::default() }
}

/// The connections of each client.
pub(crate) fn connections<F: Fabric>(server: &Server<F>) -> BTreeMap<u64, usize> {
    let mut connections = BTreeMap::new();
    for client in server.clients() {
        *connections.entry(client.client.unwrap()).or_default() += 1;
    }
    connections
}

/// Makes calls with `window` in flight until `over`. Returns their number.
fn call_until<F: Fabric>(client: &mut Client<F>, thread: u64, window: usize, over: &AtomicBool) -> u64 {
    let (mut calls, mut open) = (0u64, std::collections::VecDeque::new());
    while !over.load(Ordering::Relaxed) {
        while open.len() < window {
            let sent = (thread << 32 | calls).to_le_bytes();
            let worker = calls as usize % client.workers();
            open.push_back((client.submit_waiting_on(worker, ECHO, &sent).unwrap(), sent));
            calls += 1;
        }
        let (id, sent) = open.pop_front().unwrap();
        assert_eq!(*client.wait(id).unwrap(), sent);
    }
    for (id, sent) in open {
        assert_eq!(*client.wait(id).unwrap(), sent);
    }
    calls
}

#[test]
fn each_thread_has_a_queue_pair_as_long_as_the_server_grants_them() {
    bounded(|| {
        let cases = [
            (256, 1, None, 5),
            (3, 1, None, 3),
            (6, 2, None, 3),
            (1, 2, None, 1),
            // Clients of one worker have one queue pair a thread, whatever the number of workers.
            (4, 4, Some(3), 4),
            (3, 2, Some(1), 3),
        ];
        for (limit, workers, worker, expected) in cases {
            let (fabric, address) = (fabric(), unique("strands"));
            let server = serve(&fabric, &address, limited(limit, workers));
            let config = ClientConfig { worker, ..with_plan(combined()) };
            let first = Client::connect(&fabric, &address, config).unwrap();
            let mut others: Vec<_> = (0..4).map(|_| first.another().unwrap()).collect();
            until("refused connections are closed", || server.clients().len() <= expected);
            assert_eq!(server.clients().len(), expected, "{limit} {workers}");
            for client in &mut others {
                assert_eq!(*client.call(ECHO, b"granted").unwrap(), *b"granted");
            }
            drop(others);
            until("the queue pairs of threads that have left are closed", || server.clients().len() == 1);
            drop(first);
            server.shutdown(Duration::from_secs(1));
        }
    });
}

#[test]
fn a_client_opens_no_more_queue_pairs_than_it_is_set_to() {
    let (fabric, address) = (fabric(), unique("set"));
    let server = serve(&fabric, &address, ServerConfig::default());
    let config = ClientConfig { max_queue_pairs: 2, ..with_plan(combined()) };
    let first = Client::connect(&fabric, &address, config).unwrap();
    let _others: Vec<_> = (0..4).map(|_| first.another().unwrap()).collect();
    assert_eq!(server.clients().len(), 2);
    for (max_queue_pairs, credits, name) in
        [(0, 32, "max_queue_pairs"), (65, 32, "max_queue_pairs"), (2, 0, "credits"), (2, 64, "credits")]
    {
        let config = ClientConfig { max_queue_pairs, credits, ..with_plan(combined()) };
        let refused = Client::connect(&fabric, &address, config).map(drop).unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
    }
    server.shutdown(Duration::from_secs(1));
}

/// Two clients of four threads each at a server that keeps four queue pairs: the second one takes part of the first
/// one's away, whose threads move with calls in flight.
pub(crate) fn two_clients_divide(seed: u64, window: usize, config: ClientConfig) {
    let settings = Settings { preemption: 20, ..Settings::default() };
    let seen = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&seen);
    Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "divided").unwrap();
        let server = serve(&fabric, &address, limited(4, 1));
        let host = fabric.host().clone();
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        let mut start = |name: &str| {
            let mut first = Some(Client::connect(&fabric, &address, config.clone()).unwrap());
            for thread in 0..4u64 {
                let mut client = match thread {
                    3 => first.take().unwrap(),
                    _ => first.as_ref().unwrap().another().unwrap(),
                };
                let over = Arc::clone(&over);
                let body = move || assert!(call_until(&mut client, thread, window, &over) > 100);
                tasks.push(host.spawn(&format!("{name}-{thread}"), Box::new(body)).unwrap());
            }
        };
        start("a");
        host.sleep(host.now() + 5_000_000);
        assert_eq!(connections(&server).values().copied().collect::<Vec<_>>(), [4]);
        start("b");
        // With very few credits a client that has fewer queue pairs sends less, and by equation 1 is given no more.
        let is_fair = || {
            let divided: Vec<_> = connections(&server).values().copied().collect();
            let sum = divided.iter().sum::<usize>();
            divided.len() == 2 && (divided == [2, 2] || config.credits < 4 && (4..=5).contains(&sum))
        };
        let until = host.now() + 60_000_000;
        while host.now() < until && !is_fair() {
            host.sleep(host.now() + 1_000_000);
        }
        // It stays so while the threads go on.
        host.sleep(host.now() + 3_000_000);
        note.fetch_add(u64::from(is_fair()), Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
        tasks.into_iter().for_each(Task::join);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1, "each client has its part");
}

#[test]
fn two_clients_divide_the_queue_pairs_of_a_server() {
    for (seed, window, credits) in [(0, 1, 32), (1, 4, 32), (2, 8, 2), (3, 3, 1)] {
        two_clients_divide(seed, window, ClientConfig { credits, ..with_plan(combined()) });
    }
}

/// Lanes that may lose messages, or whose results are fetched, have no credits.
pub(crate) fn has_credits(protocol: &Protocol) -> bool {
    use ResponseHalf::{Send, Write, WriteImm, WriteSend, WriteSendChained};
    !protocol.plan(CompletionMode::Busy).is_lossy()
        && matches!(protocol.response, Send | Write | WriteImm | WriteSend | WriteSendChained)
}

/// Whatever the halves of the protocol, credits and moves work.
#[test]
fn every_protocol_moves_its_threads() {
    let capabilities = Settings::default().capabilities;
    for protocol in PROTOCOLS {
        let plan = Plan { sharing: Sharing::Combined, ..protocol.plan(CompletionMode::Adaptive) };
        if plan.check(&capabilities).is_ok() && has_credits(protocol) {
            println!("{}", protocol.name);
            two_clients_divide(7, 2, ClientConfig { credits: 4, ..with_plan(plan) });
        }
    }
}

/// A post of one domain, by its number, finds the queue pair broken.
#[derive(Clone, Debug, Default)]
struct BreakOne {
    number: u64,
    domains: Arc<AtomicU64>,
    /// The number of the domain to break; 0 for none.
    breaks: Arc<AtomicU64>,
    /// The posts until then.
    posts: Arc<AtomicU64>,
}

impl BreakRule for BreakOne {
    fn of_domain(&self) -> BreakOne {
        BreakOne { number: 1 + self.domains.fetch_add(1, Ordering::Relaxed), ..self.clone() }
    }

    fn is_broken(&self, _: QueuePairId) -> bool {
        self.breaks.load(Ordering::Relaxed) == self.number && self.posts.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

/// A rule by which posts find their queue pairs broken.
pub(crate) trait BreakRule: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Returns the rule of a new domain.
    fn of_domain(&self) -> Self {
        self.clone()
    }

    fn is_broken(&self, queue_pair: QueuePairId) -> bool;
}

/// Hooks under which posts fail by a rule.
#[derive(Clone, Debug)]
pub(crate) struct Breaks<R>(pub(crate) R);

impl<F: Fabric, R: BreakRule> Hooks<F> for Breaks<R> {
    type Domain = Breaks<R>;
    type Link = Breaks<R>;

    fn domain_hooks(&self) -> Breaks<R> {
        Breaks(self.0.of_domain())
    }

    fn link_hooks(&self) -> Breaks<R> {
        self.clone()
    }
}

impl<L: Link, R: BreakRule> LinkHooks<L> for Breaks<R> {}

impl<D: ThreadDomain, R: BreakRule> DomainHooks<D> for Breaks<R> {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        if self.0.is_broken(queue_pair) {
            return Err(PostError::QueuePairError);
        }
        inner.post(queue_pair, request)
    }

    fn post_list(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        if self.0.is_broken(queue_pair) {
            return Err(ListError { posted: 0, error: PostError::QueuePairError });
        }
        inner.post_list(queue_pair, requests)
    }
}

/// The calls on a queue pair that breaks end once, with the right certainty. Those on the others all succeed.
#[test]
fn a_queue_pair_of_three_that_breaks_harms_no_other() {
    let total = Arc::new(AtomicU64::new(0));
    for (seed, posts, broken) in (0..4)
        .flat_map(|seed| (1..=4).flat_map(move |posts| (1..=3).map(move |broken| (seed, posts, broken))))
    {
        let total = Arc::clone(&total);
        let settings = Settings { preemption: 20, ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let address = Address::new(Scheme::Sim, "breaks").unwrap();
            let executed = Arc::new(std::sync::Mutex::new(BTreeMap::<u64, u32>::new()));
            let server = ServerBuilder::new(&sim)
                .function(ECHO, FunctionMode::Worker)
                .serve(&address, |_| {
                    let executed = Arc::clone(&executed);
                    Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                        let number = u64::from_le_bytes(*request.payload.first_chunk().unwrap());
                        *executed.lock().unwrap().entry(number).or_default() += 1;
                        Ok(reply.write(request.payload)?)
                    })
                })
                .unwrap();
            let hooks = BreakOne { posts: Arc::new(AtomicU64::new(posts)), ..BreakOne::default() };
            let breaks = Arc::clone(&hooks.breaks);
            let fabric = Interposed::with_hooks(sim.clone(), Breaks(hooks));
            let first = Client::connect(&fabric, &address, with_plan(combined())).unwrap();
            let clients = [first.another().unwrap(), first.another().unwrap(), first];
            assert_eq!(server.clients().len(), 3);
            let (host, outcomes) = (sim.host().clone(), Arc::new(std::sync::Mutex::new(BTreeMap::new())));
            let tasks: Vec<_> = (0u64..)
                .zip(clients)
                .map(|(thread, mut client)| {
                    let (outcomes, breaks) = (Arc::clone(&outcomes), Arc::clone(&breaks));
                    let body = move || {
                        for round in 0..40 {
                            if (thread, round) == (0, 20) {
                                breaks.store(broken, Ordering::Relaxed);
                            }
                            let numbers = [0, 1, 2, 3].map(|call| thread << 32 | round << 8 | call);
                            let calls = numbers
                                .map(|number| client.submit_waiting_on(0, ECHO, &number.to_le_bytes()));
                            for (number, call) in numbers.into_iter().zip(calls) {
                                let outcome = call.and_then(|call| {
                                    client.wait(call).map(|result| assert_eq!(*result, number.to_le_bytes()))
                                });
                                assert_eq!(outcomes.lock().unwrap().insert(number, outcome), None);
                            }
                        }
                    };
                    host.spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(Task::join);
            server.shutdown(Duration::from_secs(1));
            let (executed, outcomes) = (executed.lock().unwrap(), outcomes.lock().unwrap());
            assert_eq!(outcomes.len(), 3 * 40 * 4, "each call ends");
            let mut failed = BTreeMap::<u64, u32>::new();
            for (number, outcome) in &*outcomes {
                let times = executed.get(number).copied().unwrap_or_default();
                if let Err(error) = outcome {
                    *failed.entry(number >> 32).or_default() += 1;
                    let most = u32::from(error.certainty() != Certainty::NotExecuted);
                    assert!(times <= most, "{error}: {times} times");
                } else {
                    assert_eq!(times, 1);
                }
            }
            assert!(failed.len() <= 1 && failed.values().all(|calls| *calls <= 4), "{failed:?}");
            total.fetch_add(failed.len() as u64, Ordering::Relaxed);
        })
        .unwrap();
    }
    assert!(total.load(Ordering::Relaxed) > 10, "{total:?} of 48 runs had calls under way");
}

/// All threads of a handle go away with calls open, on a queue pair each and on shared ones.
#[test]
fn a_handle_dropped_with_calls_open_leaves_no_connection() {
    const PULLED: u16 = 2;
    for (seed, max_queue_pairs) in [(0, 4), (1, 2), (2, 1)] {
        Sim::run(seed, move |fabric| {
            let (address, host) = (Address::new(Scheme::Sim, "all-gone").unwrap(), fabric.host().clone());
            let server = ServerBuilder::new(&fabric)
                .function(ECHO, FunctionMode::Worker)
                .function(PULLED, FunctionMode::Pull)
                .serve(&address, |_| {
                    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
                })
                .unwrap();
            for round in 0..8 {
                let config = ClientConfig { max_queue_pairs, ..with_plan(combined()) };
                let mut clients = vec![Client::connect(&fabric, &address, config).unwrap()];
                (0..3).for_each(|_| clients.push(clients[0].another().unwrap()));
                assert_eq!(server.clients().len(), usize::from(max_queue_pairs));
                for client in &mut clients {
                    // Nobody answers the first one.
                    client.submit_waiting_on(0, PULLED, b"open").unwrap();
                    for _ in 0..round {
                        client.submit_waiting_on(0, ECHO, b"open").unwrap();
                    }
                }
                if round % 2 == 0 {
                    clients.reverse();
                }
                drop(clients);
                host.sleep(host.now() + 100_000_000);
                assert!(server.clients().is_empty(), "{:?}", server.clients());
            }
            server.shutdown(Duration::ZERO);
        })
        .unwrap();
    }
}

/// Real threads on shared memory, while other clients come and go.
#[test]
fn queue_pairs_come_and_go_under_load() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("come-and-go"));
        let server = serve(&fabric, &address, limited(3, 1));
        let over = AtomicBool::new(false);
        let first = Client::connect(&fabric, &address, with_plan(combined())).unwrap();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for thread in 0..4 {
                let (mut client, over) = (first.another().unwrap(), &over);
                threads.push(scope.spawn(move || call_until(&mut client, thread, 1 + thread as usize, over)));
            }
            for round in 0..20 {
                let config = ClientConfig { credits: 4, ..with_plan(combined()) };
                let mut other = Client::connect(&fabric, &address, config).unwrap();
                let mut second = other.another().unwrap();
                for call in 0..100u64 {
                    let sent = (round << 32 | call).to_le_bytes();
                    assert_eq!(*other.call(ECHO, &sent).unwrap(), sent);
                    assert_eq!(*second.call(ECHO, &sent).unwrap(), sent);
                }
            }
            over.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| assert!(thread.join().unwrap() > 0));
        });
        drop(first);
        until("all connections are closed", || server.clients().is_empty());
        server.shutdown(Duration::from_secs(1));
    });
}

#[test]
fn lanes_with_wrong_credits_are_refused() {
    let (fabric, address) = (fabric(), unique("wrong-credits"));
    let server = serve(&fabric, &address, ServerConfig::default());
    let dedicated = any_plan();
    let with = |credits: Option<u8>| Extensions(credits.map(Extension::Credits).into_iter().collect());
    for (plan, credits) in
        [(combined(), None), (combined(), Some(0)), (combined(), Some(64)), (dedicated, Some(8))]
    {
        let mut half = Half::new(&fabric, &address, plan);
        half.open.extensions = with(credits);
        let refused = half.ask().unwrap_err();
        assert_eq!(refused.code, RefusalCode::ILLEGAL_PLAN, "{credits:?}");
        assert!(refused.text.contains("credits"), "{}", refused.text);
        half.link_close();
    }
    server.shutdown(Duration::from_secs(1));
}

/// A client that sends past its credits loses its lane, and nobody else notices.
#[test]
fn a_client_that_overdraws_loses_its_lane() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("overdrawn"));
        let server = serve(&fabric, &address, ServerConfig::default());
        let mut good = Client::connect(&fabric, &address, with_plan(combined())).unwrap();
        let plan = Plan { request: RequestHalf::Write, response: ResponseHalf::Write, ..combined() };
        let mut raw = RawClient::connect(&fabric, &address, plan);
        for slot in 0..8 {
            raw.request(ECHO, call(slot, 1), b"paid");
            assert_eq!(raw.status(call(slot, 1)), Status::Ok);
        }
        raw.request(ECHO, call(8, 1), b"unpaid");
        raw.expect_closed();
        assert_eq!(*good.call(ECHO, b"good").unwrap(), *b"good");
        server.shutdown(Duration::from_secs(1));
    });
}

/// A worker that keeps its calls holds back those to itself, and not those of other threads to other workers.
#[test]
fn calls_to_a_worker_without_room_hold_up_no_others() {
    const PULLED: u16 = 2;
    Sim::run(1, |fabric| {
        let address = Address::new(Scheme::Sim, "held").unwrap();
        let server = ServerBuilder::new(&fabric)
            .config(ServerConfig { workers: 2, ..ServerConfig::default() })
            .function(ECHO, FunctionMode::Worker)
            .function(PULLED, FunctionMode::Pull)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let config = ClientConfig { window: 4, max_queue_pairs: 1, ..with_plan(combined()) };
        let mut first = Client::connect(&fabric, &address, config).unwrap();
        let mut second = first.another().unwrap();
        let kept: Vec<_> = (0..4u8).map(|number| first.submit_on(0, PULLED, &[number]).unwrap()).collect();
        let held = [4u8, 5].map(|number| second.submit_on(0, PULLED, &[number]).unwrap());
        for _ in 0..3 {
            let passing = second.submit_on(1, ECHO, b"passes").unwrap();
            assert_eq!(*second.wait(passing).unwrap(), *b"passes");
        }
        // The lane's window is full, so the server has no more than four, and gets the others in order.
        let mut received = Vec::new();
        for _ in 0..4 {
            received.push(server.receive(Duration::from_millis(1)).unwrap());
        }
        assert!(server.receive(Duration::from_millis(1)).is_none());
        let numbers: Vec<_> = received.iter().map(|incoming| incoming.payload[0]).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        received.into_iter().for_each(|incoming| incoming.reply(Vec::new()));
        for call in kept {
            assert!(first.wait(call).unwrap().is_empty());
        }
        for number in [4, 5] {
            let incoming = server.receive(Duration::from_millis(1)).unwrap();
            assert_eq!(*incoming.payload, [number]);
            incoming.reply(Vec::new());
        }
        for call in held {
            assert!(second.wait(call).unwrap().is_empty());
        }
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}
