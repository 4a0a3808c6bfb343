//! Combined clients at a server that breaks the rules of credits and threads (FLOCK sections 4.3 and 5.1). The server
//! here is not the engine's: it performs the handshake, and answers as a test says.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use dunlin_fabric::{
    Access, Address, Data, Endpoint, Fabric, Host, Link, Listener, Nanos, Operation, QueuePairConfig, Region,
    RegionKey, Scheme, Task, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_sim::Sim;
use dunlin_rpc::*;
use dunlin_wire::handshake::{Extensions, HelloReply, LaneReady, MAX_VERSION, Record, Secret};
use dunlin_wire::{Direction, Entry, Flags, Header, Kind, LINE, Message, SingleLayout, TagKey, parse_line};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ECHO: u16 = 1;
const CONTROL: usize = 64;
const RING: u32 = 64 * 1024;
const LONGEST: usize = 8192;
const SECOND: Nanos = 1_000_000_000;
const SECRET: [u8; 16] = [7; 16];

/// The bit of an answer that grants C more.
const GRANTED: u8 = 0x80;

/// The answer to an entry: by its number and the entry.
type Answer = fn(u64, &Entry<'_>) -> Header;

/// An answer as it should be, which repeats call and thread.
fn good(entry: &Entry<'_>) -> Header {
    Header { call: entry.call, thread: entry.thread, ..Header::new(Kind::Response) }
}

/// Serves the lanes of one client, one after the other, until it has left. Counts the calls.
fn serve(fabric: &Sim, address: &Address, answer: Answer, taken: &AtomicU64) {
    let host = fabric.host();
    let until = || host.now() + 60 * SECOND;
    let listener = fabric.listen(address).unwrap();
    while let Ok(link) = listener.accept(host.now() + SECOND) {
        let receive = || Record::decode(&link.receive(until()).unwrap()).unwrap();
        let send = |record: Record| link.send(&record.encode().unwrap()).unwrap();
        assert!(matches!(receive(), Record::Hello(_)));
        send(Record::HelloReply(HelloReply {
            version: MAX_VERSION,
            capabilities: 0,
            workers: 1,
            functions: 8,
            max_payload: 1 << 20,
            session: 1,
            extensions: Extensions::default(),
        }));
        let Record::OpenLane(open) = receive() else { panic!("no lane") };
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(64, false).unwrap();
        let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).unwrap();
        let region = Region::new(fabric.register(CONTROL as u64 + u64::from(RING), Access::WRITE).unwrap());
        let key = link.grant(region.memory(), Access::WRITE).unwrap();
        let endpoint = domain.endpoint(queue_pair, &link).unwrap().0;
        domain.connect(queue_pair, &link, &Endpoint(open.endpoint.clone())).unwrap();
        send(Record::LaneReady(LaneReady {
            lane: open.lane,
            worker: 0,
            window: open.window,
            max_batch_entries: u16::MAX,
            ring_bytes: RING,
            max_message_bytes: LONGEST as u32,
            secret: Secret(SECRET),
            endpoint,
            unreliable_endpoint: Vec::new(),
            datagram_endpoint: Vec::new(),
            place: 0,
            region_keys: vec![key.0, 0],
            extensions: Extensions::default(),
        }));
        let tags = TagKey::derive(&SECRET, open.lane, Direction::ToClient);
        let (mut at, mut sent) = (CONTROL, 0u64);
        while link.is_alive() {
            if region.load(at) == 0 {
                host.sleep(host.now() + 2_000);
                continue;
            }
            let first = parse_line(&region.line_out(at), LONGEST).unwrap();
            let mut bytes = vec![0; first.total()];
            region.copy_out(at, &mut bytes);
            at += bytes.len();
            let message = Message::parse(&bytes, LONGEST).unwrap();
            for entry in message.entries() {
                let header = answer(taken.fetch_add(1, Ordering::Relaxed), &entry);
                let header = Header { head: ((at - CONTROL) / LINE) as u32, ..header };
                let mut line = vec![0; LINE + 64];
                let layout = SingleLayout::new(0, LONGEST).unwrap();
                let total = layout.seal(&mut line, &header, tags.tags(0, sent)).unwrap();
                let operation = Operation::Write {
                    data: Data::Inline(&[&line[..total]]),
                    key: RegionKey(open.region_keys[0]),
                    offset: CONTROL as u64 + sent * LINE as u64,
                    immediate: None,
                };
                sent += 1;
                // A client that has closed the lane takes no answer.
                let _ = domain.post(queue_pair, WorkRequest { id: WorkId(1), operation, signaled: true });
                domain.poll(queue, &mut Vec::new(), 64);
            }
        }
    }
}

/// Runs `threads` threads of a client at a server that answers so; each makes `calls` calls with 20 ms each. Returns the
/// outcomes by thread.
fn outcomes(answer: Answer, threads: u64, calls: u64) -> Vec<Vec<Result<(), CallError>>> {
    let found = Arc::new(std::sync::Mutex::new(Vec::new()));
    let results = Arc::clone(&found);
    let run = Sim::run(1, move |fabric| {
        let address = Address::new(Scheme::Sim, "hostile").unwrap();
        let host = fabric.host().clone();
        let serving = {
            let (fabric, address) = (fabric.clone(), address.clone());
            let body = move || serve(&fabric, &address, answer, &AtomicU64::new(0));
            host.spawn("server", Box::new(body)).unwrap()
        };
        host.sleep(host.now() + 1_000_000);
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let config = ClientConfig {
            max_queue_pairs: 1,
            ring_bytes: RING,
            connect_timeout: Duration::from_millis(50),
            ..ClientConfig::with_plan(Plan { sharing: Sharing::Combined, ..plan })
        };
        let first = Client::connect(&fabric, &address, config).unwrap();
        let tasks: Vec<Task> = (0..threads)
            .map(|thread| {
                let (mut client, results) = (first.another().unwrap(), Arc::clone(&results));
                let body = move || {
                    let time = Duration::from_millis(20);
                    let call = |_| client.within(time).call(ECHO, b"call").map(drop);
                    let ended: Vec<_> = (0..calls).map(call).collect();
                    results.lock().unwrap().push((thread, ended));
                };
                host.spawn("thread", Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        drop(first);
        serving.join();
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let mut found = std::mem::take(&mut *found.lock().unwrap());
    found.sort_by_key(|(thread, _)| *thread);
    found.into_iter().map(|(_, ended)| ended).collect()
}

#[test]
fn an_honest_server_of_this_test_answers_all() {
    // Asked for credits at half of C, it grants them.
    let honest: Answer =
        |number, entry| Header { credits: if number % 8 == 7 { GRANTED } else { 0 }, ..good(entry) };
    for ended in outcomes(honest, 3, 40) {
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

/// More than C and a half is clipped at the client: an answer that grants what nobody asked for harms nobody.
#[test]
fn grants_that_nobody_asked_for_are_borne() {
    for ended in outcomes(|_, entry| Header { credits: GRANTED, ..good(entry) }, 3, 100) {
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

/// The client's only queue pair is declined with each answer. No more than its credits is sent; other calls end at their
/// deadlines, each for itself, and are not executed.
#[test]
fn a_server_that_revokes_all_credits_lets_calls_end_at_their_deadlines() {
    let revoke: Answer = |_, entry| Header { flags: Flags::CONTEXT_SWITCH, ..good(entry) };
    let ended = outcomes(revoke, 3, 15);
    let refused = Err(CallError::NotExecuted(Cause::DeadlineExceeded));
    let sent: Vec<_> = ended.iter().flatten().filter(|outcome| **outcome != refused).collect();
    assert!((1..=32).contains(&sent.len()), "{ended:?}");
    let maybe = Err(CallError::MaybeExecuted(Cause::DeadlineExceeded));
    assert!(sent.iter().all(|outcome| outcome.is_ok() || **outcome == maybe), "{ended:?}");
}

/// A server that never grants: C calls are answered, and later ones end at their deadlines.
#[test]
fn a_server_that_never_grants_lets_calls_end_at_their_deadlines() {
    let ended = outcomes(|_, entry| good(entry), 2, 20);
    let answered = ended.iter().flatten().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(answered, 32, "{ended:?}");
    let refused = Err(CallError::NotExecuted(Cause::DeadlineExceeded));
    assert!(ended.iter().flatten().all(|outcome| outcome.is_ok() || *outcome == refused), "{ended:?}");
}

/// An answer for another thread than the caller's, or for one that does not exist: the lane ends, and no call has the
/// answer of another.
#[test]
fn an_answer_with_a_wrong_thread_ends_the_lane() {
    let neighbour: Answer = |_, entry| Header { thread: entry.thread ^ 1, ..good(entry) };
    let nobody: Answer = |_, entry| Header { thread: u16::MAX, ..good(entry) };
    for answer in [neighbour, nobody] {
        let ended = outcomes(answer, 3, 3);
        assert_eq!(ended.len(), 3);
        for outcome in ended.into_iter().flatten() {
            let error = outcome.expect_err("no call has an answer");
            let causes = [
                Cause::ProtocolViolation,
                Cause::Disconnected,
                Cause::ConnectionLost,
                Cause::DeadlineExceeded,
            ];
            assert!(error.cause().is_some_and(|cause| causes.contains(&cause)), "{error}");
        }
    }
}
