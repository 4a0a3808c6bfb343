//! Deadlines in virtual time: no call begins after its time has passed, wherever it waited, and no call that
//! is said not to be executed is executed.

use super::reconnecting::block_on;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme};
use dunlin_fabric_sim::{Random, Settings, Sim};
use dunlin_rpc::messages::{MessageClient, MessageServer, ReceiveError};
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs on the worker for as long as its request says.
const WORK: u16 = 1;
/// The same in the pool.
const POOLED: u16 = 2;
/// Is pulled.
const PULLED: u16 = 3;

const MICROSECOND: Nanos = 1_000;
const MILLISECOND: Nanos = 1_000_000;

/// By how much a call may begin late, in nanoseconds: the time of its request on the network, and a round of
/// polls.
const TURN: Nanos = 20 * MICROSECOND;

fn within(client: &mut Client<Sim>, time: Nanos) -> Within<'_, Sim> {
    client.within(Duration::from_nanos(time))
}

/// A call and its outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    /// When it must have begun.
    deadline: Nanos,
    /// When it began.
    began: Option<Nanos>,
    end: Option<End>,
    /// Its function and its time in nanoseconds.
    kind: (u16, Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered,
    Maybe,
    Not,
}

/// All calls by number.
type Book = Arc<Mutex<BTreeMap<u64, Call>>>;

/// The request of a call: its number, and how long its handler takes.
fn request(number: u64, takes: Nanos) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&takes.to_le_bytes());
    bytes
}

fn number(payload: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*payload[at..].first_chunk().unwrap())
}

/// Executes a call.
fn execute<H: Host>(host: &H, book: &Book, payload: &[u8]) {
    book.lock().unwrap().entry(number(payload, 0)).or_default().began = Some(host.now());
    let takes = number(payload, 8);
    if takes > 0 {
        host.sleep(host.now() + takes);
    }
}

fn serve(fabric: &Sim, address: &Address, book: &Book, config: ServerConfig) -> Server<Sim> {
    let (host, pool_book, book) = (fabric.host().clone(), Arc::clone(book), Arc::clone(book));
    let pool_host = host.clone();
    ServerBuilder::new(fabric)
        .config(config)
        .function(WORK, FunctionMode::Worker)
        .function(POOLED, FunctionMode::Pool)
        .function(PULLED, FunctionMode::Pull)
        .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            execute(&pool_host, &pool_book, request.payload);
            Ok(reply.write(request.payload)?)
        })
        .serve(address, move |_| {
            let (host, book) = (host.clone(), Arc::clone(&book));
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                execute(&host, &book, request.payload);
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

fn end(outcome: Result<&[u8], CallError>) -> End {
    match outcome {
        Ok(_) => End::Answered,
        Err(CallError::NotExecuted(Cause::DeadlineExceeded)) => End::Not,
        Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)) => End::Maybe,
        Err(error) => panic!("{error}"),
    }
}

/// One client with `calls` calls of 0 to 2 ms, each alone or in batches, some with the time of the settings.
fn make_calls(fabric: &Sim, address: &Address, plan: Plan, book: &Book, (first, calls): (u64, u64)) {
    let host = fabric.host().clone();
    let mut random = Random::new(first, 1);
    let config = ClientConfig {
        timeout: Duration::from_nanos(1500 * MICROSECOND),
        window: 8,
        ..ClientConfig::with_plan(plan)
    };
    let mut client = Client::connect(fabric, address, config).unwrap();
    let mut open = BTreeMap::new();
    let mut made = 0;
    while made < calls || !open.is_empty() {
        while made < calls && client.room(0) > 0 && !random.one_in(4) {
            let number = first + made;
            made += 1;
            let own = random.below(2 * MILLISECOND);
            let own = if random.one_in(50) { 0 } else { own };
            let function = if random.one_in(4) { POOLED } else { WORK };
            let request = request(number, random.below(MILLISECOND));
            let time = if random.one_in(4) { 1500 * MICROSECOND } else { own };
            let deadline = host.now() + time;
            let batched = random.one_in(2);
            let kind = (function, time);
            book.lock().unwrap().insert(number, Call { deadline, kind, ..Call::default() });
            let sent = match (batched, time == own) {
                (true, true) => within(&mut client, own).push_waiting_on(0, function, &request),
                (false, true) => within(&mut client, own).submit_waiting_on(0, function, &request),
                (true, false) => client.push_waiting_on(0, function, &request),
                (false, false) => client.submit_waiting_on(0, function, &request),
            };
            match sent {
                Ok(id) => drop(open.insert(id, number)),
                Err(error) => {
                    assert_eq!(error, CallError::NotExecuted(Cause::DeadlineExceeded));
                    book.lock().unwrap().entry(number).or_default().end = Some(End::Not);
                }
            }
            // The time of the settings begins when the batch leaves.
            if random.one_in(3) || batched && time != own {
                client.flush_waiting().unwrap();
            }
            if random.one_in(3) {
                host.sleep(host.now() + random.below(300 * MICROSECOND));
            }
        }
        client.flush_waiting().unwrap();
        let Some(id) = client.wait_any() else {
            // Slots whose late answers are still to come.
            client.progress();
            host.sleep(host.now() + 10 * MICROSECOND);
            continue;
        };
        let number = open.remove(&id).unwrap();
        let end = end(client.outcome(id));
        client.forget(id);
        book.lock().unwrap().entry(number).or_default().end = Some(end);
    }
}

fn check(book: &Book, name: &str) -> [usize; 3] {
    let mut counts = [0; 3];
    for (number, call) in book.lock().unwrap().iter() {
        let end = call.end.unwrap_or_else(|| panic!("{name}: call {number} has not ended"));
        counts[end as usize] += 1;
        match (end, call.began) {
            (End::Not, began) => assert_eq!(began, None, "{name}: call {number} was said not to be executed"),
            (End::Answered, None) => panic!("{name}: call {number} was answered and not executed"),
            (_, None) => {}
            (_, Some(began)) => {
                let (late, (function, time)) = (began.saturating_sub(call.deadline), call.kind);
                assert!(
                    late <= TURN,
                    "{name}: call {number} of function {function} with {time} ns began {late} ns late"
                );
            }
        }
    }
    counts
}

/// 100 000 calls with 0 to 2 ms each, of functions that take up to 1 ms, on all kinds of lanes.
#[test]
fn no_call_begins_after_its_deadline_and_none_is_denied() {
    const CLIENTS: u64 = 4;
    let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
    let names = ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv", "RF-RPC", "FaSST"];
    let plans: Vec<(String, Plan)> = names
        .iter()
        .flat_map(|name| {
            modes.map(|mode| (format!("{name} {mode}"), Protocol::by_name(name).unwrap().plan(mode)))
        })
        .filter(|(_, plan)| plan.check(&dunlin_fabric_sim::Settings::default().capabilities).is_ok())
        .collect();
    let each = 100_000_u64.div_ceil(plans.len() as u64 * CLIENTS);
    let mut sum = [0; 3];
    for (seed, (name, plan)) in plans.into_iter().enumerate() {
        let book = Book::default();
        let of_run = Arc::clone(&book);
        let run = Sim::run(seed as u64, move |fabric| {
            let address = Address::new(Scheme::Sim, "deadlines").unwrap();
            let server = serve(&fabric, &address, &of_run, ServerConfig::default());
            let host = fabric.host().clone();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (fabric, address, book) = (fabric.clone(), address.clone(), Arc::clone(&of_run));
                    let body = move || make_calls(&fabric, &address, plan, &book, (client << 32, each));
                    host.spawn(&format!("client-{client}"), Box::new(body)).unwrap()
                })
                .collect();
            clients.into_iter().for_each(dunlin_fabric::Task::join);
            server.shutdown(Duration::from_nanos(100 * MILLISECOND));
        });
        run.unwrap_or_else(|error| panic!("{name}: {error}"));
        let counts = check(&book, &name);
        // Enough of both: calls that were made in time, and calls that were refused or ended.
        assert!(counts.iter().sum::<usize>() as u64 == CLIENTS * each, "{name}: {counts:?}");
        assert!(counts[0] > 100 && counts[1] + counts[2] > 100, "{name}: {counts:?}");
        (0..3).for_each(|end| sum[end] += counts[end]);
    }
    assert!(sum.iter().sum::<usize>() >= 100_000 && sum[2] > 1000, "{sum:?}");
}

/// Runs `body` with a server and a client of one plan.
fn with_server(
    plan: Plan,
    config: ServerConfig,
    body: impl FnOnce(&Sim, &Server<Sim>, &mut Client<Sim>, &Book) + Send + 'static,
) {
    let run = Sim::run(3, move |fabric| {
        let (address, book) = (Address::new(Scheme::Sim, "deadlines").unwrap(), Book::default());
        let server = serve(&fabric, &address, &book, config);
        let mut client = Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
        body(&fabric, &server, &mut client, &book);
        drop(client);
        server.shutdown(Duration::from_nanos(1_000 * MILLISECOND));
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

fn plans() -> impl Iterator<Item = Plan> {
    let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
    let named = |name| Protocol::by_name(name).unwrap();
    let protocols = ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv", "RF-RPC", "Write-RNDV"].map(named);
    let plans = protocols.into_iter().flat_map(move |protocol| modes.map(|mode| protocol.plan(mode)));
    plans.filter(|plan| plan.check(&dunlin_fabric_sim::Settings::default().capabilities).is_ok())
}

fn began(book: &Book, number: u64) -> bool {
    book.lock().unwrap().get(&number).is_some_and(|call| call.began.is_some())
}

fn over(certainty: Certainty) -> CallError {
    match certainty {
        Certainty::NotExecuted => CallError::NotExecuted(Cause::DeadlineExceeded),
        Certainty::MaybeExecuted => CallError::MaybeExecuted(Cause::DeadlineExceeded),
        other => panic!("no small call ends at its deadline as {other:?}"),
    }
}

/// A call of 5 ms behind a handler of 50 ms is not executed, in a message of its own or in the same batch.
/// Calls with more time are.
#[test]
fn a_slow_handler_makes_no_call_begin_late() {
    for plan in plans() {
        for together in [false, true] {
            with_server(plan, ServerConfig::default(), move |_, _, client, book| {
                let push = |client: &mut Client<Sim>, time: Option<Nanos>, number, takes| {
                    let time = time.map(Duration::from_nanos);
                    let (client, request) = (client.within_or_default(time), request(number, takes));
                    match together {
                        true => client.push_on(0, WORK, &request),
                        false => client.submit_on(0, WORK, &request),
                    }
                    .unwrap()
                };
                let slow = push(client, None, 0, 50 * MILLISECOND);
                let short = push(client, Some(5 * MILLISECOND), 1, 0);
                let long = push(client, Some(80 * MILLISECOND), 2, 0);
                let usual = push(client, None, 3, 0);
                client.flush_waiting().unwrap();
                assert_eq!(client.wait(short).map(drop).unwrap_err(), over(Certainty::MaybeExecuted));
                for call in [slow, long, usual] {
                    client.wait(call).unwrap();
                }
                assert!(!began(book, 1), "{plan:?}");
            });
        }
    }
}

/// Calls that wait for a thread of the pool, or to be pulled. Expired ones make room for others.
#[test]
fn queues_keep_no_calls_whose_time_is_over() {
    let config = || ServerConfig { pool_threads: 1, max_waiting: 4, ..ServerConfig::default() };
    with_server(Plan::default(), config(), |fabric, server, client, book| {
        let host = fabric.host();
        let slow = client.submit_on(0, POOLED, &request(0, 50 * MILLISECOND)).unwrap();
        host.sleep(host.now() + MILLISECOND);
        let mut short = Vec::new();
        for number in 1..5 {
            short.push(within(client, 5 * MILLISECOND).submit_on(0, POOLED, &request(number, 0)).unwrap());
            within(client, 5 * MILLISECOND).submit_on(0, PULLED, &request(number + 10, 0)).unwrap();
        }
        host.sleep(host.now() + 10 * MILLISECOND);
        // Both queues are full, of calls that are over.
        let pooled = client.submit_on(0, POOLED, &request(5, 0)).unwrap();
        let pulled = client.submit_on(0, PULLED, &request(15, 0)).unwrap();
        let incoming = server.receive(Duration::from_millis(100)).unwrap();
        assert_eq!(number(&incoming.payload, 0), 15);
        let left = incoming.time_left().unwrap();
        assert!(left < Duration::from_secs(10) && left > Duration::from_secs(9), "{left:?}");
        host.sleep(host.now() + 1_000 * MILLISECOND);
        assert!(incoming.time_left().unwrap() <= left - Duration::from_secs(1), "what is left now");
        incoming.reply(Vec::new());
        for call in [slow, pooled, pulled] {
            client.wait(call).unwrap();
        }
        for call in short {
            // The client's own time may be over before the server's refusal comes.
            let error = client.wait(call).map(drop).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::DeadlineExceeded));
        }
        assert_eq!([1, 2, 3, 4, 5].map(|number| began(book, number)), [false, false, false, false, true]);
    });
}

/// With no time at all nothing is sent; a century is as good as no deadline.
#[test]
fn no_time_and_all_the_time() {
    for plan in plans() {
        with_server(plan, ServerConfig::default(), |fabric, _, client, book| {
            let none = Duration::ZERO;
            let error = over(Certainty::NotExecuted);
            assert_eq!(client.within(none).call(WORK, &request(0, 0)).map(drop), Err(error.clone()));
            assert_eq!(client.within(none).submit_on(0, WORK, &request(0, 0)), Err(error.clone()));
            assert_eq!(client.within(none).push_on(0, WORK, &request(0, 0)), Err(error.clone()));
            assert_eq!(client.within(none).push_waiting_on(0, WORK, &request(0, 0)), Err(error.clone()));
            let large = client.large_request(0, 10_000).unwrap();
            assert_eq!(client.within(none).submit_large(WORK, large), Err(error));
            assert_eq!(client.in_flight(), 0);
            fabric.host().sleep(fabric.host().now() + MILLISECOND);
            assert!(book.lock().unwrap().is_empty(), "nothing was sent");
            let week = Duration::from_secs(7 * 24 * 3600);
            for time in [week, 5000 * week, Duration::MAX] {
                client.within(time).call(WORK, &request(1, MILLISECOND)).unwrap();
                let call = client.within(time).push_on(0, WORK, &request(2, 0)).unwrap();
                client.wait(call).unwrap();
            }
        });
    }
}

/// A call whose time runs out in an open batch leaves with it and is not executed. Its neighbours are.
#[test]
fn the_time_of_a_call_runs_in_an_open_batch() {
    for plan in plans() {
        with_server(plan, ServerConfig::default(), |fabric, _, client, book| {
            let host = fabric.host();
            let usual = client.push_on(0, WORK, &request(0, 0)).unwrap();
            let short = within(client, MILLISECOND).push_on(0, WORK, &request(1, 0)).unwrap();
            let given_up = within(client, MILLISECOND).push_on(0, WORK, &request(2, 0)).unwrap();
            let long = within(client, 100 * MILLISECOND).push_on(0, WORK, &request(3, 0)).unwrap();
            client.forget(given_up);
            host.sleep(host.now() + 2 * MILLISECOND);
            client.flush_waiting().unwrap();
            let error = client.wait(short).map(drop).unwrap_err();
            assert_eq!(error, over(Certainty::NotExecuted));
            client.wait(usual).unwrap();
            client.wait(long).unwrap();
            assert_eq!([0, 1, 2, 3].map(|number| began(book, number)), [true, false, false, true]);
        });
    }
}

/// A lane that is never empty: calls wait for 3 ms behind others, and their time of 10 ms is enough for each.
#[test]
fn no_call_is_refused_early_on_a_lane_that_is_never_empty() {
    for plan in plans() {
        with_server(plan, ServerConfig::default(), move |_, _, client, book| {
            let (mut made, mut answered) = (0, 0);
            while answered < 2_000 {
                while made < 2_000 && client.in_flight() < 32 {
                    let request = request(made, 100 * MICROSECOND);
                    within(client, 10 * MILLISECOND).submit_on(0, WORK, &request).unwrap();
                    made += 1;
                }
                let call = client.wait_any().unwrap();
                client.outcome(call).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                client.forget(call);
                answered += 1;
            }
            assert_eq!(book.lock().unwrap().len(), 2_000);
        });
    }
}

/// Messages with a time of their own, held for a thread that takes them late.
#[test]
fn a_message_may_have_a_time_of_its_own() {
    let run = Sim::run(7, |fabric| {
        let address = Address::new(Scheme::Sim, "messages").unwrap();
        let (server, mut threads) =
            MessageServer::listen(&fabric, &address, ServerConfig::default()).unwrap();
        let (mut thread, host) = (threads.remove(0), fabric.host().clone());
        let serving = fabric.host().spawn(
            "server",
            Box::new(move || {
                let mut taken = Vec::new();
                while let Some(client) = thread.next_client(Duration::MAX) {
                    host.sleep(host.now() + 20 * MILLISECOND);
                    let Ok(mut buffer) = thread.malloc_buf(client, 64) else { continue };
                    while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
                        taken.push(buffer[0]);
                        thread.server_send(client, &mut buffer, size).unwrap();
                    }
                }
                assert_eq!(taken, [1, 3]);
            }),
        );
        let mut client =
            MessageClient::connect(&fabric, &address, ClientConfig::with_plan(Plan::default())).unwrap();
        let mut buffer = client.malloc_buf(0, 64).unwrap();
        for (message, milliseconds) in [(1, 100), (2, 5), (3, 100)] {
            buffer[0] = message;
            let time = Duration::from_millis(milliseconds);
            client.client_send_within(time, 0, &mut buffer, 1).unwrap();
        }
        client.client_recv(0, &mut buffer).unwrap();
        let error = client.client_recv(0, &mut buffer).unwrap_err();
        let ReceiveError::Call(error) = error else { panic!("{error}") };
        assert_eq!(error.cause(), Some(Cause::DeadlineExceeded));
        client.client_recv(0, &mut buffer).unwrap();
        assert!(client.client_send_within(Duration::ZERO, 0, &mut buffer, 1).is_err());
        drop(client);
        server.shutdown(Duration::from_nanos(1_000 * MILLISECOND));
        serving.unwrap().join();
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Waiting for room counts: the whole call takes no longer than its time.
#[test]
fn waiting_for_room_is_part_of_the_time() {
    let run = Sim::run(9, |fabric| {
        let (address, book) = (Address::new(Scheme::Sim, "room").unwrap(), Book::default());
        let server = serve(&fabric, &address, &book, ServerConfig::default());
        let config = ClientConfig { window: 1, ..ClientConfig::with_plan(Plan::default()) };
        let mut client = Client::connect(&fabric, &address, config).unwrap();
        let host = fabric.host();
        let given_up = client.submit_on(0, WORK, &request(0, 3 * MILLISECOND)).unwrap();
        client.forget(given_up);
        let since = host.now();
        let called = within(&mut client, 5 * MILLISECOND).call(WORK, &request(1, 50 * MILLISECOND));
        assert_eq!(called.map(drop).unwrap_err(), over(Certainty::MaybeExecuted));
        let took = host.now() - since;
        assert!((5 * MILLISECOND..6 * MILLISECOND).contains(&took), "{took}");
        let called = within(&mut client, MILLISECOND).call(WORK, &request(2, 0));
        assert_eq!(called.map(drop).unwrap_err(), over(Certainty::NotExecuted), "no room");
        drop(client);
        server.shutdown(Duration::from_nanos(1_000 * MILLISECOND));
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// A client that says that its calls have a week fills a queue up to its bound and no further. Another client's
/// calls are refused at once and not executed, and go on when the handlers are done.
#[test]
fn a_client_with_weeks_of_time_holds_no_more_than_the_queue() {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    let config = ServerConfig { pool_threads: 1, max_waiting: 4, ..ServerConfig::default() };
    with_server(Plan::default(), config, |fabric, server, client, book| {
        let host = fabric.host();
        let mut long: Vec<_> = (0..8)
            .map(|number| {
                let call = client.within(WEEK).submit_on(0, POOLED, &request(number, 50 * MILLISECOND));
                host.sleep(host.now() + 100 * MICROSECOND);
                call.unwrap()
            })
            .collect();
        let mut other = Client::connect(fabric, server.address(), ClientConfig::default()).unwrap();
        let since = host.now();
        let refused = CallError::NotExecuted(Cause::Refused(Status::Overloaded));
        for number in 8..10 {
            let called = within(&mut other, 5 * MILLISECOND).call(POOLED, &request(number, 0));
            assert_eq!(called.map(drop), Err(refused.clone()));
        }
        assert!(host.now() - since < MILLISECOND, "refused without waiting");
        // One runs and four wait.
        for call in long.split_off(5) {
            assert_eq!(client.wait(call).map(drop), Err(refused.clone()));
        }
        for call in long {
            client.wait(call).unwrap();
        }
        within(&mut other, 5 * MILLISECOND).call(POOLED, &request(10, 0)).unwrap();
        let begun: Vec<u64> = (0..11).filter(|number| began(book, *number)).collect();
        assert_eq!(begun, [0, 1, 2, 3, 4, 10]);
    });
}

/// The number of calls for which readings of the clock are counted.
const COUNTED: u64 = 512;
/// The time of a reading, in nanoseconds: far more than anything else costs.
const READING: Nanos = 100 * MICROSECOND;

/// Returns the time of `COUNTED` calls whose own time is `time`, by a client with this timeout.
fn time_of_calls(timeout: Duration, time: Option<Duration>, asynchronous: bool) -> Nanos {
    let took = Arc::new(Mutex::new(0));
    let result = Arc::clone(&took);
    let mut settings = Settings { limit: Nanos::MAX, run_ahead: 1_000 * MILLISECOND, ..Settings::default() };
    settings.prices.clock_read = READING * 1000;
    let run = Sim::run_with(settings, 1, move |fabric| {
        let address = Address::new(Scheme::Sim, "readings").unwrap();
        let echo = |request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?);
        let server = ServerBuilder::new(&fabric).function(WORK, FunctionMode::Worker);
        let _server = server.serve(&address, move |_| Box::new(echo)).unwrap();
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let config = ClientConfig { timeout, ..ClientConfig::with_plan(plan) };
        let began = match asynchronous {
            false => {
                let mut client = Client::connect(&fabric, &address, config).unwrap();
                let mut call = || match time {
                    Some(time) => client.within(time).call(WORK, &[7; 32]).map(drop),
                    None => client.call(WORK, &[7; 32]).map(drop),
                };
                (0..100).for_each(|_| call().unwrap());
                let began = fabric.host().glance();
                (0..COUNTED).for_each(|_| call().unwrap());
                began
            }
            true => {
                let hub = AsyncHub::new(&fabric).unwrap();
                let client = AsyncClient::connect(&hub, &address, config).unwrap();
                let call = || match time {
                    Some(time) => block_on(&fabric, client.within(time).call(WORK, &[7; 32])).map(drop),
                    None => block_on(&fabric, client.call(WORK, &[7; 32])).map(drop),
                };
                (0..100).for_each(|_| call().unwrap());
                let began = fabric.host().glance();
                (0..COUNTED).for_each(|_| call().unwrap());
                began
            }
        };
        *result.lock().unwrap() = fabric.host().glance() - began;
    });
    run.unwrap();
    *took.lock().unwrap()
}

#[test]
fn a_call_with_a_time_of_its_own_reads_the_clock_no_more_often() {
    let hour = Duration::from_secs(3600);
    for asynchronous in [false, true] {
        let none = time_of_calls(Duration::MAX, None, asynchronous);
        assert!(none >= COUNTED * READING, "the time of {none} ns counts readings");
        let setting = time_of_calls(hour, None, asynchronous);
        let own = time_of_calls(Duration::MAX, Some(hour), asynchronous);
        for time in [setting, own] {
            assert!(time < none + COUNTED * READING / 8, "{time} ns with a time, {none} ns without");
        }
        assert!(
            own < setting + 8 * READING,
            "{own} ns with a time of their own, {setting} ns by the settings"
        );
    }
}
