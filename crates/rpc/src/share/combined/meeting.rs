//! Golden counts of threads that meet at a queue pair: the work requests and doorbells of a round in which the leader
//! finds the calls and operations of all.
//!
//! The test holds the lead while the threads' clients leave their tickets. The counts are therefore exact, whatever
//! the time says.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::client::CallId;
use crate::client::batching::{BatchCalls, Batching};
use crate::client::config::ClientConfig;
use crate::path::call_id::CallEnds;
use crate::path::tx::OwnPayload;
use crate::plan::{CompletionMode, Plan, Protocol, Sharing};
use crate::server::ServerBuilder;
use crate::service::{FunctionMode, Reply, Request};
use crate::share::{Client, Policy};
use dunlin_fabric::interpose::CountSnapshot;
use dunlin_fabric::{Access, Address, Arena, Count, Fabric, Host, Region, Scheme};
use dunlin_fabric_sim::Sim;
use std::time::Duration;

type Counted = Count<Sim>;

const ECHO: u16 = 1;
/// Takes 100 us, and then echoes.
const SLOW: u16 = 2;
const ALL: Access = Access::READ.with(Access::WRITE).with(Access::ATOMIC);
const THREADS: u64 = 6;

/// The submission of one thread, by its number.
type Submit = fn(&mut Client<Counted>, &crate::RemoteRegion, u64) -> CallId;

fn write(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_write(region, 64 * thread, &(thread + 1).to_le_bytes()).unwrap()
}

/// A WRITE that is too long to go inline.
fn long_write(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_write(region, 4096 * (thread + 1), &[thread as u8 + 1; 1000]).unwrap()
}

fn read(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_read(region, 64 * thread, 8).unwrap()
}

fn call(client: &mut Client<Counted>, _: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_on(0, ECHO, &thread.to_le_bytes()).unwrap()
}

/// A call whose payload leaves from memory of its thread.
fn large(client: &mut Client<Counted>, _: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_on(0, ECHO, &[thread as u8 + 1; 1100]).unwrap()
}

/// A call that leaves from memory of its thread where that begins at 100 bytes. Six are one turn of a worker.
fn medium(client: &mut Client<Counted>, _: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_on(0, ECHO, &[thread as u8 + 1; 120]).unwrap()
}

/// A small call of each second thread, and a larger one of the others.
fn mixed(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    [call, large][thread as usize % 2](client, region, thread)
}

/// Operations of three kinds, and calls.
fn any(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    [write, read, call][thread as usize % 3](client, region, thread)
}

/// Runs threads of one combined client on a connection, and a server that counts for itself.
fn with_threads(
    config: ClientConfig,
    body: impl FnOnce([Counted; 2], &mut Client<Counted>, &mut [Client<Counted>], &crate::RemoteRegion)
    + Send
    + 'static,
) {
    Sim::run(1, move |fabric| {
        let address = Address::new(Scheme::Sim, "meeting").unwrap();
        let memory = Region::new(fabric.register(1 << 16, ALL).unwrap());
        let [client, server] = [Count::new(fabric.clone()), Count::new(fabric)];
        let host = server.host().clone();
        let running = ServerBuilder::new(&server)
            .function(ECHO, FunctionMode::Worker)
            .function(SLOW, FunctionMode::Worker)
            .expose("all", memory.clone(), ALL)
            .serve(&address, move |_| {
                let host = host.clone();
                Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    if request.function == SLOW {
                        host.sleep(host.now() + 100_000);
                    }
                    Ok(reply.write(request.payload)?)
                })
            })
            .unwrap();
        let mut first = Client::connect(&client, &address, config).unwrap();
        let region = first.attach("all").unwrap();
        let mut others: Vec<_> = (0..THREADS).map(|_| first.another().unwrap()).collect();
        body([client, server], &mut first, &mut others, &region);
        drop((others, first));
        running.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

fn settings(plan: Plan) -> ClientConfig {
    ClientConfig { max_queue_pairs: 1, own_memory_from: 1000, ..ClientConfig::with_plan(plan) }
}

/// Has each thread submit `times` times while another thread leads, so that the leader finds all.
fn submit_together(
    first: &Client<Counted>,
    clients: &mut [Client<Counted>],
    region: &crate::RemoteRegion,
    (submit, times): (Submit, usize),
) -> Vec<Vec<CallId>> {
    let Policy::Combined(seat) = &first.policy else { unreachable!("the plan combines") };
    let _lead = seat.strand().lead();
    let each = |(client, thread)| -> Vec<_> {
        let client: &mut Client<Counted> = client;
        (0..times).map(|_| submit(client, region, thread)).collect()
    };
    clients.iter_mut().zip(0..).map(each).collect()
}

fn take_results(clients: &mut [Client<Counted>], calls: Vec<Vec<CallId>>) {
    for (client, calls) in clients.iter_mut().zip(calls) {
        // The server echoes what it was called with.
        calls.into_iter().for_each(|id| {
            let result = client.wait(id).unwrap();
            assert!(result.len() < 1100 || result.windows(2).all(|pair| pair[0] == pair[1]));
        });
    }
}

/// Returns the counts of a round of each submission, which each thread makes `times` times.
fn rounds(plan: Plan, rounds: &'static [Submit], times: usize) -> Vec<CountSnapshot> {
    rounds_of(settings(plan), rounds, times)
}

fn rounds_of(config: ClientConfig, rounds: &'static [Submit], times: usize) -> Vec<CountSnapshot> {
    let counts = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let results = std::sync::Arc::clone(&counts);
    with_threads(config, move |[fabric, _], first, clients, region| {
        for submit in rounds {
            // Whatever is done once for a connection is done before.
            first.call_on(0, ECHO, b"before").unwrap();
            let before = fabric.counts();
            let calls = submit_together(first, clients, region, (*submit, times));
            results.lock().unwrap().push(fabric.counts() - before);
            take_results(clients, calls);
        }
    });
    std::mem::take(&mut *counts.lock().unwrap())
}

/// Returns the counts of both sides for a round of calls that the server finds together: another call keeps its worker
/// busy until all have arrived. The counts of that call are among them.
fn found_together(config: ClientConfig, submit: Submit) -> [CountSnapshot; 2] {
    let counts = std::sync::Arc::new(std::sync::Mutex::new(None));
    let result = std::sync::Arc::clone(&counts);
    with_threads(config, move |fabrics, first, clients, region| {
        first.call_on(0, ECHO, b"before").unwrap();
        let before = fabrics.each_ref().map(Count::counts);
        let slow = first.submit_on(0, SLOW, b"slow").unwrap();
        let host = fabrics[0].host();
        host.sleep(host.now() + 50_000);
        let calls = submit_together(first, clients, region, (submit, 1));
        take_results(clients, calls);
        assert_eq!(&*first.wait(slow).unwrap(), b"slow");
        let [client, server] = fabrics.each_ref().map(Count::counts);
        *result.lock().unwrap() = Some([client - before[0], server - before[1]]);
    });
    counts.lock().unwrap().take().unwrap()
}

/// WRITEs, WRITE_WITH_IMMs, SENDs, READs, doorbells.
fn posts(counts: CountSnapshot) -> [u64; 5] {
    let CountSnapshot { posted_write, posted_write_immediate, posted_send, posted_read, doorbells, .. } =
        counts;
    [posted_write, posted_write_immediate, posted_send, posted_read, doorbells]
}

#[test]
fn a_round_of_a_leader_rings_once() {
    let expected: [(&str, [[u64; 5]; 5]); 4] = [
        // Calls; WRITEs; long WRITEs; READs; two WRITEs, two READs and two calls.
        (
            "Server-reply",
            [[1, 0, 0, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [3, 0, 0, 2, 1]],
        ),
        (
            "Direct-WriteIMM",
            [[0, 1, 0, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [2, 1, 0, 2, 1]],
        ),
        (
            "Eager-SendRecv",
            [[0, 0, 1, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [2, 0, 1, 2, 1]],
        ),
        // A message is a WRITE and a SEND.
        (
            "Chained-Write-Send",
            [[1, 0, 1, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [3, 0, 1, 2, 1]],
        ),
    ];
    for (protocol, expected) in expected {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        // A connection each: no round asks for credits.
        let each: [&'static [Submit]; 5] = [&[call], &[write], &[long_write], &[read], &[any]];
        let found: Vec<_> = each.into_iter().flat_map(|one| rounds(plan, one, 1)).map(posts).collect();
        assert_eq!(found, expected, "{protocol}");
    }
}

/// Operations cost credits, of which a call before each round takes one: 31 are left, and with the grant 38. The message
/// that asks for more leaves with the operations before it, and the others behind it. Those without credits wait.
#[test]
fn operations_ring_with_their_request_for_credits_and_behind_it() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = Plan { sharing: Sharing::Combined, ..plan };
    let found: Vec<_> = rounds(plan, &[write, read], 20).into_iter().map(posts).collect();
    assert_eq!(found, [[32, 0, 0, 0, 2], [1, 0, 0, 38, 2]]);
}

/// More operations than there are credits wait for the grant, whatever the window.
#[test]
fn a_round_has_no_more_operations_than_credits() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = Plan { sharing: Sharing::Combined, ..plan };
    let config = ClientConfig { window: 256, ..settings(plan) };
    let found: Vec<_> = rounds_of(config, &[write], 40).into_iter().map(posts).collect();
    assert_eq!(found, [[32, 0, 0, 0, 2]]);
}

/// Without batching nothing waits: a call beside one that is under way leaves at once. With it a leader posts what
/// RF-RPC's section 4 says: N calls make a message, and fewer wait while others are under way.
#[test]
fn batching_decides_when_a_leader_posts() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let without = settings(Plan { sharing: Sharing::Combined, ..plan });
    let with = |calls| {
        let timeout = Duration::from_secs(3600);
        let batching = Batching { calls: BatchCalls::Fixed(calls), timeout, ..Batching::default() };
        ClientConfig { batching: Some(batching), ..without.clone() }
    };
    for (config, together, beside) in
        [(without.clone(), 1, 1), (with(3), 2, 0), (with(6), 1, 0), (with(1), 6, 1)]
    {
        let found: Vec<_> = rounds_of(config.clone(), &[call], 1).into_iter().map(posts).collect();
        assert_eq!(found, [[together, 0, 0, 0, together]], "{:?}", config.batching);
        with_threads(config, move |[fabric, _], first, others, region| {
            let under_way = first.submit_on(0, ECHO, b"under way").unwrap();
            // With batching the call leaves by itself, since nothing else is under way.
            first.progress();
            let before = fabric.counts();
            let call = call(&mut others[0], region, 0);
            let found = posts(fabric.counts() - before);
            assert_eq!(found, [beside, 0, 0, 0, beside], "{:?}", first.config().batching);
            assert_eq!(&*first.wait(under_way).unwrap(), b"under way");
            take_results(&mut others[..1], vec![vec![call]]);
        });
    }
}

/// The calls of a round leave in one message, so the bound of a round is one of a message.
#[test]
fn a_round_is_bounded() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = Plan { sharing: Sharing::Combined, ..plan };
    for (most_per_round, messages) in [(64, 1), (6, 1), (4, 2), (2, 3), (1, 6)] {
        let config = ClientConfig { most_per_round, ..settings(plan) };
        with_threads(config, move |[fabric, _], first, clients, region| {
            first.call_on(0, ECHO, b"before").unwrap();
            let before = fabric.counts();
            let calls = submit_together(first, clients, region, (call, 1));
            take_results(clients, calls);
            let found = posts(fabric.counts() - before);
            assert_eq!(found, [messages, 0, 0, 0, messages], "{most_per_round}");
        });
    }
    let none = ClientConfig { most_per_round: 0, ..settings(plan) };
    assert!(none.check().unwrap_err().to_string().contains("most_per_round"));
}

/// Larger requests are messages of their own from memory of their threads; the small ones of all are one message. One
/// doorbell takes all.
#[test]
fn larger_requests_leave_from_their_threads_memory_with_the_others() {
    for (protocol, expected) in [
        ("Server-reply", [[6, 0, 0, 0, 1], [4, 0, 0, 0, 1]]),
        ("Direct-WriteIMM", [[0, 6, 0, 0, 1], [0, 4, 0, 0, 1]]),
        ("Eager-SendRecv", [[0, 0, 6, 0, 1], [0, 0, 4, 0, 1]]),
        ("Chained-Write-Send", [[6, 0, 6, 0, 1], [4, 0, 4, 0, 1]]),
    ] {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        let found: Vec<_> = rounds(plan, &[large, mixed], 1).into_iter().map(posts).collect();
        assert_eq!(found, expected, "{protocol}");
    }
    // Where two doorbells announce a message, the requests are copied into one.
    let plan = Protocol::by_name("Direct-Write-Send").unwrap().plan(CompletionMode::Busy);
    let plan = Plan { sharing: Sharing::Combined, ..plan };
    let found: Vec<_> = rounds(plan, &[mixed], 1).into_iter().map(posts).collect();
    assert_eq!(found, [[1, 0, 1, 0, 2]]);
}

/// The server gathers the answers of all messages that it finds on a lane (FLOCK section 4.3). The call that keeps it
/// busy is a message of its own, and so is its answer.
#[test]
fn a_server_answers_all_messages_that_it_finds_with_one() {
    for (protocol, expected) in [
        ("Server-reply", [[1, 0, 0, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 6]]),
        ("Direct-WriteIMM", [[0, 1, 0, 0, 1], [0, 6, 0, 0, 1], [0, 6, 0, 0, 6]]),
        ("Eager-SendRecv", [[0, 0, 1, 0, 1], [0, 0, 6, 0, 1], [0, 0, 6, 0, 6]]),
    ] {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        let config = settings(Plan { sharing: Sharing::Combined, ..plan });
        let config = ClientConfig { own_memory_from: 100, ..config };
        let apart = ClientConfig { most_together: 1, ..config.clone() };
        // One message of six calls; six messages with one doorbell; six with a doorbell each.
        let rounds: [(_, Submit); 3] = [(config.clone(), call), (config, medium), (apart, call)];
        for ((config, submit), messages) in rounds.into_iter().zip(expected) {
            let [client, server] = found_together(config, submit).map(posts);
            let one = expected[0];
            let and_one = |messages: [u64; 5]| std::array::from_fn::<_, 5, _>(|at| messages[at] + one[at]);
            assert_eq!([client, server], [and_one(messages), and_one(one)], "{protocol}");
        }
    }
}

/// The number that names memory of threads among tickets is no function: a call of it ends, and harms no other.
#[test]
fn a_call_of_the_number_for_own_memory_is_refused() {
    Sim::run(1, |fabric| {
        let address = Address::new(Scheme::Sim, "own").unwrap();
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        let config = ClientConfig { max_queue_pairs: 1, ..ClientConfig::with_plan(plan) };
        let mut first = Client::connect(&fabric, &address, config).unwrap();
        let mut others: Vec<_> = (0..3).map(|_| first.another().unwrap()).collect();
        first.call_on(0, ECHO, b"before").unwrap();
        let calls: Vec<_> = {
            let Policy::Combined(seat) = &first.policy else { unreachable!("the plan combines") };
            let _lead = seat.strand().lead();
            let forged: [&[u8]; 3] = [b"", &[1, 0, 255, 255, 255, 255], &[0; 2000]];
            others
                .iter_mut()
                .zip(forged)
                .map(|(other, payload)| other.submit_on(0, u16::MAX, payload).unwrap())
                .collect()
        };
        for (other, call) in others.iter_mut().zip(calls) {
            let error = other.wait(call).map(drop).unwrap_err();
            assert_eq!(error.certainty(), crate::Certainty::NotExecuted, "{error}");
            assert_eq!(&*other.call_on(0, ECHO, b"after").unwrap(), b"after");
        }
        drop((others, first));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A call from its thread's memory comes before the calls of the open batch, whose message gets the next number: what
/// the server has taken decides which calls a broken connection leaves unexecuted.
#[test]
fn a_message_before_the_open_batch_has_the_number_that_the_batch_was_to_have() {
    Sim::run(1, |fabric| {
        let address = Address::new(Scheme::Sim, "numbers").unwrap();
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        let mut client = Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
        client.call_on(0, ECHO, b"before").unwrap();
        let Policy::Combined(seat) = &client.policy else { unreachable!("the plan combines") };
        {
            let mut lead = seat.strand().lead();
            let inner = &mut lead.core().client;
            let (time, ends) = (seat.usual_time(), |thread| CallEnds { function: ECHO, thread });
            let arena = Arena::new(fabric.register(1 << 16, Access::LOCAL).unwrap()).unwrap();
            let small = inner.submit_with_others((0, ends(1)), b"small", time, false).ok().unwrap();
            let submit = |inner: &mut crate::client::synchronous::Client<Sim>, thread, behind| {
                let bytes = OwnPayload::<<Sim as Fabric>::Memory>::message_bytes(1500).unwrap();
                let mut buffer = arena.reserve(bytes).unwrap();
                OwnPayload::fill(&mut buffer, &[7; 1500]);
                let mut own = OwnPayload { buffer: Some(buffer), length: 1500 };
                inner.submit_own((0, ends(thread)), &mut own, time, (false, behind)).ok().unwrap()
            };
            let before = submit(inner, 2, false);
            let sequence = |inner: &mut crate::client::synchronous::Client<Sim>, id: CallId| {
                inner.sequence_of(id).unwrap()
            };
            let [first, second] = [before, small].map(|id| sequence(inner, id));
            assert_eq!(second, first + 1);
            // One of the thread that has a call in the batch: the batch comes first.
            let behind = submit(inner, 1, true);
            assert_eq!([small, behind].map(|id| sequence(inner, id)), [first + 1, first + 2]);
            assert!(!inner.send_batches());
        }
        assert_eq!(&*client.call_on(0, ECHO, b"after").unwrap(), b"after");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}
