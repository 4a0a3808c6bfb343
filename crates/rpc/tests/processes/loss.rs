//! Lost messages are sent again, each call is executed once, and each call ends: datagrams and unreliable
//! WRITEs lost at random, entirely or in one direction, and datagrams from a stranger.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{SLOW, test_server, test_service};
use crate::common::raw::{Half, receive, send};
use crate::common::*;
use dunlin_fabric::interpose::{Fault, FaultPlan, When};
use dunlin_fabric::{
    Data, Endpoint, Fabric, Operation, PostError, QueuePairConfig, QueuePairState, ThreadDomain, Transport,
    WorkId, WorkRequest,
};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::*;
use dunlin_wire::handshake::Record;
use dunlin_wire::{Direction, Header, Kind, TagKey, encode_line};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

tests!(
    what_is_lost_by_chance_is_executed_once_and_answered,
    every_plan_with_a_lossy_half_survives_loss,
    who_hears_nothing_gives_up,
    a_future_that_hears_nothing_ends,
    a_call_whose_answers_are_all_lost_is_executed_once,
    a_deadline_ends_a_call_whatever_is_lost,
    a_server_that_works_is_not_silent,
    room_in_the_ring_is_told_of_though_all_answers_are_lost,
    the_next_call_of_a_slot_lets_a_large_result_go,
    clients_that_come_and_go_share_a_workers_queue_pair,
    stray_datagrams_are_dropped_and_counted,
    a_datagram_that_comes_again_is_executed_once,
);

type Lossy = Fault<ShmFabric>;

/// Returns a fabric that loses `per_million` messages in a million.
fn losing(per_million: u32, seed: u64) -> Lossy {
    let drop = if per_million == 0 { When::Never } else { When::PerMillion(per_million) };
    Fault::new(fabric(), FaultPlan { seed, drop, ..FaultPlan::default() })
}

/// Returns the plans of the table that may lose messages.
fn lossy_protocols() -> Vec<(String, Plan)> {
    let lossy: Vec<_> = plans(&fabric(), &MODES).into_iter().filter(|(_, plan)| plan.is_lossy()).collect();
    assert!(!lossy.is_empty());
    lossy
}

/// The calls of a test; each payload holds the call's number.
const CALLS: u32 = 400;

struct Counted {
    server: Server<Lossy>,
    /// By the number of the call.
    executed: Arc<Vec<AtomicU32>>,
}

/// Echoes, and counts how often each number was executed.
fn counting(fabric: &Lossy) -> Counted {
    let executed: Arc<Vec<AtomicU32>> = Arc::new((0..CALLS).map(|_| AtomicU32::new(0)).collect());
    let service = || {
        let executed = Arc::clone(&executed);
        Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            let number = request.payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            executed[number as usize].fetch_add(1, Ordering::SeqCst);
            Ok(reply.write(request.payload)?)
        })
    };
    let server = ServerBuilder::new(fabric)
        .config(ServerConfig { spin: Duration::from_micros(2), ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("loss"), |_| service())
        .unwrap();
    Counted { server, executed }
}

fn payload(number: u32) -> Vec<u8> {
    let length = [4, 20, 32, 33, 500, 3000, 4008, 9000][number as usize % 8];
    let mut bytes = pattern(length, number.into());
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Makes calls with a full window, some of them in batches.
fn all_are_answered(name: &str, client: &mut Client<Lossy>) {
    let mut open: Vec<(CallId, u32)> = Vec::new();
    let mut next = 0;
    while next < CALLS || !open.is_empty() {
        while next < CALLS && open.len() < 24 {
            let bytes = payload(next);
            let call = if next % 3 == 0 {
                client.push_on(0, ECHO, &bytes)
            } else {
                client.submit_on(0, ECHO, &bytes)
            };
            match call {
                Ok(id) => open.push((id, next)),
                Err(CallError::NotExecuted(Cause::WindowFull)) => break,
                Err(error) => panic!("{name}: {error}"),
            }
            next += 1;
        }
        let Some(id) = client.wait_any() else { continue };
        let at = open.iter().position(|(open, _)| *open == id).unwrap();
        let (_, number) = open.swap_remove(at);
        assert_eq!(client.outcome(id), Ok(&payload(number)[..]), "{name}: call {number}");
        client.forget(id);
    }
}

fn survives(name: &str, plan: Plan, per_million: u32) {
    let fabrics = [losing(per_million, 7), losing(per_million, 8)];
    let Counted { server, executed } = counting(&fabrics[1]);
    let config = ClientConfig {
        timeout: Duration::MAX,
        spin: Duration::from_micros(2),
        ..ClientConfig::with_plan(plan)
    };
    let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
    all_are_answered(name, &mut client);
    let wrong: Vec<usize> =
        (0..CALLS as usize).filter(|number| executed[*number].load(Ordering::SeqCst) != 1).collect();
    assert!(wrong.is_empty(), "{name}: not executed once: {wrong:?}");
    let lost = fabrics.map(|fabric| fabric.injected().dropped);
    println!("  {name}, {}%: {lost:?} lost", per_million / 10_000);
    assert!(lost.iter().sum::<u64>() > 0, "{name}: nothing was lost");
}

fn what_is_lost_by_chance_is_executed_once_and_answered() {
    for (name, plan) in lossy_protocols() {
        for percent in [1, 10, 30] {
            survives(&name, plan, percent * 10_000);
        }
    }
}

/// A plan that is lossy in only one direction is a plan like any other.
fn every_plan_with_a_lossy_half_survives_loss() {
    let capabilities = fabric().capabilities().clone();
    let mut played = Vec::new();
    for request in RequestHalf::ALL {
        for response in ResponseHalf::ALL {
            let plan = Plan::new(request, response);
            if plan.is_lossy() && plan.check(&capabilities).is_ok() {
                survives(&format!("{} and {}", request.name(), response.name()), plan, 150_000);
                played.push(plan);
            }
        }
    }
    let is_lossy = |request, response| Plan::new(request, response).is_lossy();
    for request in RequestHalf::ALL.into_iter().filter(|half| is_lossy(*half, ResponseHalf::Send)) {
        assert!(played.iter().any(|plan| plan.request == request), "{}", request.name());
    }
    for response in ResponseHalf::ALL.into_iter().filter(|half| is_lossy(RequestHalf::Send, *half)) {
        assert!(played.iter().any(|plan| plan.response == response), "{}", response.name());
    }
}

fn losing_one_way(client: u32, server: u32) -> ([Lossy; 2], Counted) {
    let fabrics = [losing(client, 1), losing(server, 2)];
    let counted = counting(&fabrics[1]);
    (fabrics, counted)
}

const ALL: u32 = 1_000_000;

fn who_hears_nothing_gives_up() {
    for (name, plan) in lossy_protocols() {
        let (fabrics, Counted { server, executed }) = losing_one_way(ALL, 0);
        let config = ClientConfig {
            timeout: Duration::MAX,
            silence: Duration::from_millis(60),
            spin: Duration::from_micros(2),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
        let calls = [1, 2, 3].map(|number| client.submit_on(0, ECHO, &payload(number)).unwrap());
        for call in calls {
            let ended = client.wait(call).unwrap_err();
            assert_eq!(ended, CallError::MaybeExecuted(Cause::Unanswered), "{name}");
        }
        assert!(executed.iter().all(|count| count.load(Ordering::SeqCst) == 0), "{name}");
        // The next call uses a new connection.
        let again = client.call_on(0, ECHO, &payload(4)).unwrap_err();
        assert_eq!(again.cause(), Some(Cause::Unanswered), "{name}");
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The same with futures, which sleep in the meantime.
fn a_future_that_hears_nothing_ends() {
    for (name, plan) in lossy_protocols() {
        let (fabrics, Counted { server, .. }) = losing_one_way(ALL, 0);
        let config = ClientConfig {
            timeout: Duration::MAX,
            silence: Duration::from_millis(60),
            spin: Duration::from_micros(2),
            ..ClientConfig::with_plan(plan)
        };
        let hub = AsyncHub::new(&fabrics[0]).unwrap();
        let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut call = pin!(client.call_on(0, ECHO, &[1; 4]));
        let ended = loop {
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => break ended,
                Poll::Pending => std::thread::park(),
            }
        };
        assert_eq!(ended.unwrap_err(), CallError::MaybeExecuted(Cause::Unanswered), "{name}");
    }
}

fn a_call_whose_answers_are_all_lost_is_executed_once() {
    for (name, plan) in lossy_protocols() {
        let (fabrics, Counted { server, executed }) = losing_one_way(0, ALL);
        let config = ClientConfig {
            timeout: Duration::MAX,
            silence: Duration::from_millis(60),
            spin: Duration::from_micros(2),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
        let ended = client.call_on(0, ECHO, &payload(5)).unwrap_err();
        assert_eq!(ended, CallError::MaybeExecuted(Cause::Unanswered), "{name}");
        assert_eq!(executed[5].load(Ordering::SeqCst), 1, "{name}");
    }
}

fn a_deadline_ends_a_call_whatever_is_lost() {
    for (name, plan) in lossy_protocols() {
        let (fabrics, Counted { server, .. }) = losing_one_way(ALL, ALL);
        let config = ClientConfig {
            timeout: Duration::from_millis(20),
            spin: Duration::from_micros(2),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
        let ended = client.call_on(0, ECHO, &payload(6)).unwrap_err();
        assert_eq!(ended, CallError::MaybeExecuted(Cause::DeadlineExceeded), "{name}");
    }
}

fn a_server_that_works_is_not_silent() {
    let fabric = fabric();
    let executed = Arc::new(AtomicU64::new(0));
    let server = test_server(&fabric, &executed)
        .serve(&unique("slow"), |_| test_service(Arc::clone(&executed)))
        .unwrap();
    for (name, plan) in lossy_protocols() {
        let before = executed.load(Ordering::SeqCst);
        let config = ClientConfig {
            timeout: Duration::MAX,
            silence: Duration::from_millis(20),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        // 250 ms in the pool.
        assert_eq!(*client.call_on(0, SLOW, &[250]).unwrap(), [250], "{name}");
        assert_eq!(executed.load(Ordering::SeqCst), before + 1, "{name}");
    }
}

/// The head in an answer is lost with the answer. The server must report room in another way.
fn room_in_the_ring_is_told_of_though_all_answers_are_lost() {
    for (_, plan) in lossy_protocols() {
        let (fabrics, Counted { server, executed }) = losing_one_way(0, ALL);
        // The client hears no answer for as long as the test takes.
        let config = ClientConfig {
            timeout: Duration::MAX,
            silence: HANG,
            window: 64,
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
        // Several times the capacity of a ring.
        for number in 0..64 {
            let mut bytes = pattern(3000, number.into());
            bytes[..4].copy_from_slice(&u32::to_le_bytes(number));
            // The ring is full until the server reports its head by a message other than an answer.
            client.submit_waiting_on(0, ECHO, &bytes).unwrap();
        }
        until("all are executed", || {
            client.progress();
            executed.iter().take(64).all(|count| count.load(Ordering::SeqCst) == 1)
        });
        assert_eq!(client.in_flight(), 64);
    }
}

/// The release of a large result may be lost. The slot's next call implies it.
fn the_next_call_of_a_slot_lets_a_large_result_go() {
    const LARGE: u64 = 4 << 20;
    for (name, plan) in lossy_protocols() {
        let fabrics = [losing(300_000, 3), losing(0, 4)];
        let config = ServerConfig {
            spin: Duration::from_micros(2),
            large_response_memory: 3 * LARGE,
            ..ServerConfig::default()
        };
        let server = ServerBuilder::new(&fabrics[1])
            .config(config)
            .function(ECHO, FunctionMode::Worker)
            .serve(&unique("large"), |_| {
                Box::new(|_: &Request<'_>, reply: &mut Reply<'_>| {
                    reply.reserve(LARGE as usize)?.fill(3);
                    Ok(())
                })
            })
            .unwrap();
        let config = ClientConfig {
            timeout: Duration::MAX,
            window: 1,
            spin: Duration::from_micros(2),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect(&fabrics[0], server.address(), config).unwrap();
        for _ in 0..20 {
            let result = client.call_on(0, ECHO, b"x").unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(result.len() as u64, LARGE, "{name}");
        }
    }
}

/// One queue pair of the worker serves all clients, and lanes reuse the places of closed ones.
fn clients_that_come_and_go_share_a_workers_queue_pair() {
    let executed = Arc::new(AtomicU64::new(0));
    let (fabric, server) = serving(&executed);
    let plans: Vec<Plan> = lossy_protocols().into_iter().map(|(_, plan)| plan).collect();
    let (server, fabric) = (&server, &fabric);
    std::thread::scope(|scope| {
        for (number, plan) in (0u64..8).zip(plans.iter().cycle()) {
            scope.spawn(move || {
                for round in 0..5 {
                    // By events, because there are more clients than cores.
                    let plan = plan.completion(CompletionMode::Event, plan.server);
                    let mut client =
                        Client::connect(fabric, server.address(), ClientConfig::with_plan(plan)).unwrap();
                    for call in 0..50 {
                        let payload =
                            pattern([3, 40, 4000][call as usize % 3], number * 1000 + round * 100 + call);
                        assert_eq!(*client.call_on(0, ECHO, &payload).unwrap(), *payload);
                    }
                }
            });
        }
    });
    assert_eq!(executed.load(Ordering::SeqCst), 8 * 5 * 50);
}

/// A client without the engine that sends datagrams.
struct RawSender {
    half: Half,
    queue_pair: dunlin_fabric::QueuePairId,
    to: dunlin_fabric::AddressHandleId,
    tags: TagKey,
    place: u16,
}

impl RawSender {
    fn connect(fabric: &ShmFabric, server: &Server<ShmFabric>) -> RawSender {
        let plan = Plan::new(RequestHalf::Datagram, ResponseHalf::Datagram)
            .completion(CompletionMode::Event, CompletionMode::Event);
        let mut half = Half::new(fabric, server.address(), plan);
        let config = QueuePairConfig {
            transport: Transport::UnreliableDatagram,
            ..QueuePairConfig::reliable(half.queue, half.queue)
        };
        let queue_pair = half.domain.create_queue_pair(&config).unwrap();
        half.open.datagram_endpoint = half.domain.endpoint(queue_pair, &half.link).unwrap().0;
        send(&half.link, &Record::OpenLane(half.open.clone()));
        let Some(Record::LaneReady(ready)) = receive(&half.link) else { panic!("no lane") };
        half.domain.connect(half.queue_pair, &half.link, &Endpoint(ready.endpoint)).unwrap();
        let to = Endpoint(ready.datagram_endpoint);
        let to = half.domain.create_address_handle(queue_pair, &half.link, &to).unwrap();
        let tags = TagKey::derive(&ready.secret.0, 0, Direction::ToServer);
        RawSender { half, queue_pair, to, tags, place: ready.place }
    }

    fn send(&mut self, bytes: &[u8], immediate: Option<u32>) {
        let mut completions = Vec::new();
        loop {
            let operation = Operation::Send { data: Data::Inline(&[bytes]), immediate, to: Some(self.to) };
            let request = WorkRequest { id: WorkId(1), operation, signaled: true };
            match self.half.domain.post(self.queue_pair, request) {
                Err(PostError::QueueFull) => {
                    self.half.domain.poll(self.half.queue, &mut completions, 64);
                }
                done => return done.unwrap(),
            }
        }
    }

    fn request(&self, call: u32, sequence: u64) -> [u8; 64] {
        let header = Header { code: ECHO, call, ..Header::new(Kind::Request) };
        encode_line(&header, b"hello", self.tags.first(0, sequence)).unwrap().0
    }

    fn immediate(&self, sequence: u64) -> u32 {
        u32::from(self.place) << 16 | (sequence as u32 & 0xffff)
    }
}

fn serving(executed: &Arc<AtomicU64>) -> (ShmFabric, Server<ShmFabric>) {
    let fabric = fabric();
    let server =
        test_server(&fabric, executed).serve(&unique("raw"), |_| test_service(Arc::clone(executed))).unwrap();
    (fabric, server)
}

fn stray_datagrams_are_dropped_and_counted() {
    let executed = Arc::new(AtomicU64::new(0));
    let (fabric, server) = serving(&executed);
    let mut raw = RawSender::connect(&fabric, &server);
    let good = raw.request(1 << 12, 0);
    let (lane, long) = (raw.immediate(0), [7; 200]);
    let strays: [(&[u8], Option<u32>); 9] = [
        (&good, None),
        // For lanes that do not exist.
        (&good, Some(lane.wrapping_add(1 << 16))),
        (&good, Some(u32::MAX)),
        // With a sequence other than the tag's.
        (&good, Some(lane + 1)),
        (&good[..63], Some(lane)),
        (&[], Some(lane)),
        (&[0xff; 64], Some(lane)),
        (&long, Some(lane)),
        (&[&good[..], &good[..]].concat(), Some(lane)),
    ];
    for (bytes, immediate) in strays {
        raw.send(bytes, immediate);
    }
    until("all strays are counted", || server.counters().stray_datagrams == strays.len() as u64);
    assert_eq!(executed.load(Ordering::SeqCst), 0);
    assert_eq!(raw.half.domain.state(raw.half.queue_pair), Some(QueuePairState::Ready));
    // More datagrams than RECVs; the RECVs must all be reposted.
    for _ in 0..3000 {
        raw.send(&[1; 100], Some(lane));
    }
    raw.send(&good, Some(lane));
    until("the good one is executed", || {
        if executed.load(Ordering::SeqCst) == 0 {
            raw.send(&good, Some(lane));
        }
        std::thread::sleep(Duration::from_millis(1));
        executed.load(Ordering::SeqCst) > 0
    });
    for (name, plan) in lossy_protocols() {
        let mut client = Client::connect(&fabric, server.address(), ClientConfig::with_plan(plan)).unwrap();
        assert_eq!(*client.call_on(0, ECHO, b"others").unwrap(), *b"others", "{name}");
    }
}

fn a_datagram_that_comes_again_is_executed_once() {
    let executed = Arc::new(AtomicU64::new(0));
    let (fabric, server) = serving(&executed);
    let mut raw = RawSender::connect(&fabric, &server);
    // In another order, each of them three times.
    let mut sequences: Vec<u64> = (0..60).chain(0..60).chain(0..60).collect();
    sequences.sort_by_key(|sequence| sequence * 7919 % 61);
    for (at, sequence) in sequences.iter().enumerate() {
        let call = 1 << 12 | *sequence as u32;
        let bytes = raw.request(call, *sequence);
        raw.send(&bytes, Some(raw.immediate(*sequence)));
        if at % 20 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // The datagrams of a queue pair are processed in order, so the last one is executed after all others.
    let bytes = raw.request(1 << 12 | 60, 60);
    raw.send(&bytes, Some(raw.immediate(60)));
    until("the one behind them is executed", || {
        // Its only copy may have found no RECV.
        if executed.load(Ordering::SeqCst) < 61 {
            raw.send(&bytes, Some(raw.immediate(60)));
        }
        executed.load(Ordering::SeqCst) >= 61
    });
    assert_eq!(executed.load(Ordering::SeqCst), 61);
}
