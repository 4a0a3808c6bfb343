//! Futures on a minimal executor: wake-ups, cancellation by drop, and sharing of a hub.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{NEVER, ServerProcess, test_server, test_service};
use crate::common::*;
use dunlin_fabric::{Count, RateRow, RatesSource};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::tune::table::FetchTable;
use dunlin_rpc::*;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

tests!(
    what_is_shared_can_be_shared,
    many_threads_share_a_hub,
    threads_that_make_the_first_call_share_one_connection,
    who_waits_for_room_is_woken,
    who_waits_for_room_is_woken_by_the_deadline,
    a_hub_may_be_dropped_on_its_own_wake_thread,
    a_busy_future_wakes_itself_with_each_poll,
    a_sleeping_future_is_woken_once,
    the_wake_thread_sleeps_once_for_each_call,
    who_waits_for_room_is_in_the_queue_once,
    a_restarted_server_is_found_again,
    calls_of_many_threads_go_together,
    what_is_chosen_can_be_asked_for,
    a_batch_does_not_wait_for_what_is_never_answered,
);

fn what_is_shared_can_be_shared() {
    fn both<T: Send + Sync>() {}
    both::<AsyncHub<ShmFabric>>();
    both::<AsyncClient<ShmFabric>>();
    both::<Call<ShmFabric>>();
    both::<AsyncResponse<ShmFabric>>();
    both::<Server<ShmFabric>>();
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls only after a wake-up, so a missed wake-up is a hang.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn serve(fabric: &ShmFabric) -> Server<ShmFabric> {
    let executed = Arc::new(AtomicU64::new(0));
    test_server(fabric, &executed).serve(&unique("async"), |_| test_service(Arc::clone(&executed))).unwrap()
}

fn connect(
    fabric: &ShmFabric,
    server: &Server<ShmFabric>,
    plan: Plan,
    timeout: Duration,
) -> AsyncClient<ShmFabric> {
    let hub = AsyncHub::new(fabric).unwrap();
    let config = ClientConfig { window: 1, timeout, ..ClientConfig::with_plan(plan) };
    AsyncClient::connect(&hub, server.address(), config).unwrap()
}

fn many_threads_share_a_hub() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (name, plan) in plans(&fabric, &MODES) {
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig { window: 4, ..ClientConfig::with_plan(plan) };
        let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
        let threads: Vec<_> = (0..6u64)
            .map(|number| {
                let (client, name) = (client.clone(), name.clone());
                std::thread::spawn(move || {
                    for i in 0..60 {
                        let payload = pattern([5, 500, 9000][i as usize % 3], i + number);
                        // Every seventh call follows one that is cancelled at once.
                        if i % 7 == 0 {
                            drop(client.call(ECHO, &payload));
                        }
                        let response = block_on(client.call(ECHO, &payload)).unwrap();
                        assert_eq!(*response, *payload, "{name}");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn who_waits_for_room_is_woken() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (_, plan) in plans(&fabric, &MODES) {
        let client = connect(&fabric, &server, plan, Duration::MAX);
        let given_up = client.call(NEVER, b"given up");
        let second = client.clone();
        let waiter = std::thread::spawn(move || block_on(second.call(ECHO, b"next")).unwrap().to_vec());
        let incoming = server.receive(HANG / 2).unwrap();
        drop(given_up);
        std::thread::sleep(std::time::Duration::from_millis(2));
        incoming.reply(Vec::new());
        assert_eq!(waiter.join().unwrap(), b"next");
    }
}

fn who_waits_for_room_is_woken_by_the_deadline() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (name, plan) in plans(&fabric, &MODES) {
        let client = connect(&fabric, &server, plan, Duration::from_millis(10));
        let begun = std::time::Instant::now();
        let first = client.call(NEVER, b"never");
        let short = client.within(Duration::from_millis(2)).call(ECHO, b"no room");
        let error = block_on(short).map(|r| r.len()).unwrap_err();
        // There is room for it once the time of the first one is over.
        let had_room = begun.elapsed() >= Duration::from_millis(10);
        let is_sent = had_room && error == CallError::MaybeExecuted(Cause::DeadlineExceeded);
        assert!(is_sent || error == CallError::NotExecuted(Cause::DeadlineExceeded), "{name}: {error}");
        let error = block_on(first).map(|r| r.len()).unwrap_err();
        // A thread that loses its core for that time may not have sent it.
        let is_sent = error == CallError::MaybeExecuted(Cause::DeadlineExceeded);
        assert!(is_sent || error == CallError::NotExecuted(Cause::DeadlineExceeded), "{name}: {error}");
        // A call whose time is over is refused and not pulled. The server counts the time from the call's arrival.
        let before = after(Duration::ZERO);
        let pulled = server.receive(std::time::Duration::from_millis(1));
        let has_time = |call: &Incoming<_>| call.deadline().is_some_and(|(end, _)| end > before);
        assert!(pulled.as_ref().is_none_or(|call| is_sent && has_time(call)), "{name}");
    }
}

/// A waker that drops the last call, and with it the last client and the hub.
struct LastHand(
    std::sync::Mutex<Option<std::pin::Pin<Box<Call<ShmFabric>>>>>,
    std::sync::Mutex<std::sync::mpsc::Sender<()>>,
);

impl Wake for LastHand {
    fn wake(self: Arc<Self>) {
        let call = self.0.lock().unwrap().take();
        drop(call);
        let _ = self.1.lock().unwrap().send(());
    }
}

fn a_hub_may_be_dropped_on_its_own_wake_thread() {
    let fabric = fabric();
    let server = serve(&fabric);
    for _ in 0..10 {
        let client = connect(&fabric, &server, any_plan(), Duration::MAX);
        let (tell, told) = std::sync::mpsc::channel();
        let mut call = Box::pin(client.call(NEVER, b"last"));
        let hand = Arc::new(LastHand(std::sync::Mutex::new(None), std::sync::Mutex::new(tell)));
        let waker = Waker::from(Arc::clone(&hand));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        *hand.0.lock().unwrap() = Some(call);
        drop(client);
        server.receive(HANG / 2).unwrap().reply(Vec::new());
        told.recv_timeout(HANG / 2).expect("the wake thread waits for itself");
    }
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Counting(AtomicU64);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counting {
    fn woken(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// No other thread would wake the future: polling it makes the progress.
fn a_busy_future_wakes_itself_with_each_poll() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (name, plan) in plans(&fabric, &[CompletionMode::Busy]) {
        let client = connect(&fabric, &server, plan, Duration::MAX);
        let count = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&count));
        // One call that is sent, and one that waits for room.
        let (mut sent, mut waits) = (pin!(client.call(NEVER, b"sent")), pin!(client.call(ECHO, b"waits")));
        for polls in 1..=50 {
            assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(count.woken(), 2 * polls - 1, "{name}");
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(count.woken(), 2 * polls, "{name}");
        }
        // Under write rendezvous the request reaches the server only while the client makes progress.
        let mut polls = 0;
        let mut pulled = None;
        until("the call is there to be pulled", || {
            assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            polls += 1;
            pulled = server.receive(Duration::from_millis(1));
            pulled.is_some()
        });
        pulled.unwrap().reply(b"done".to_vec());
        until("the call is answered", || {
            let poll = sent.as_mut().poll(&mut Context::from_waker(&waker));
            polls += poll.is_pending() as u64;
            matches!(poll, Poll::Ready(Ok(response)) if *response == *b"done")
        });
        assert_eq!(count.woken(), 100 + polls, "{name}: a future that is done wakes nobody");
        assert_eq!(*block_on(waits).unwrap(), *b"waits", "{name}");
    }
}

/// The wake thread wakes the future once, after its answer has arrived.
fn a_sleeping_future_is_woken_once() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (name, plan) in plans(&fabric, &[CompletionMode::Event, CompletionMode::Adaptive]) {
        let client = connect(&fabric, &server, plan, Duration::MAX);
        let count = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut call = pin!(client.call(NEVER, b"sleeps"));
        for _ in 0..50 {
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(count.woken(), 0, "{name}: nothing has happened");
        server.receive(HANG / 2).unwrap().reply(b"done".to_vec());
        until("the future is woken", || count.woken() > 0);
        let poll = call.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(poll, Poll::Ready(Ok(response)) if *response == *b"done"), "{name}");
        // Progress by another future is no reason to wake it again.
        assert_eq!(*block_on(client.call(ECHO, b"after")).unwrap(), *b"after");
        assert_eq!(count.woken(), 1, "{name}");
    }
}

/// Returns how often the wake thread of this process has gone to sleep: its voluntary context switches.
fn sleeps_of_the_wake_thread() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_task = |task: std::path::PathBuf| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = (name == "dunlin-wake\n").then(|| std::fs::read_to_string(task.join("status")))?.ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(|task| of_task(task.path())).sum()
}

/// A call after a call wakes nobody when it is made: the wake thread still waits for answers.
fn the_wake_thread_sleeps_once_for_each_call() {
    const CALLS: u64 = 200;
    let fabric = fabric();
    let server = serve(&fabric);
    let (name, plan) = plans(&fabric, &[CompletionMode::Event]).swap_remove(0);
    let client = connect(&fabric, &server, plan, Duration::from_secs(60));
    let call = || {
        let call = client.call(NEVER, b"");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = server.receive(HANG / 2).unwrap();
                // Everybody sleeps by then.
                std::thread::sleep(std::time::Duration::from_millis(1));
                request.reply(Vec::new());
            });
            block_on(call).unwrap();
        });
    };
    call();
    let before = sleeps_of_the_wake_thread();
    (0..CALLS).for_each(|_| call());
    let sleeps = sleeps_of_the_wake_thread() - before;
    assert!(sleeps < CALLS * 3 / 2, "{name}: {sleeps} sleeps");
}

/// A future that is polled several times while it waits for room is woken once.
fn who_waits_for_room_is_in_the_queue_once() {
    let fabric = fabric();
    let server = serve(&fabric);
    for (name, plan) in plans(&fabric, &[CompletionMode::Event, CompletionMode::Adaptive]) {
        let client = connect(&fabric, &server, plan, Duration::MAX);
        let first = client.call(NEVER, b"first");
        let count = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&count));
        {
            let mut gone = pin!(client.call(ECHO, b"gone"));
            assert!(gone.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let mut waits = pin!(client.call(ECHO, b"waits"));
        for _ in 0..50 {
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        server.receive(HANG / 2).unwrap().reply(Vec::new());
        assert_eq!(block_on(first).unwrap().len(), 0);
        until("it is woken for the room", || count.woken() > 0);
        assert_eq!(count.woken(), 1, "{name}: once, though it was polled often, and another was dropped");
        assert_eq!(*block_on(waits).unwrap(), *b"waits", "{name}");
    }
}

/// Counts connections.
#[derive(Default)]
struct Opened(AtomicU64);

impl ConnectionObserver for Opened {
    fn opened(&self, _: u64, _: &dunlin_fabric::PeerIdentity, _: &str, _: &Token) -> Result<(), NotAdmitted> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn closed(&self, _: u64) {}
}

/// A thread that found no connection must not replace the one that another thread has made since.
fn threads_that_make_the_first_call_share_one_connection() {
    const ROUNDS: u64 = 400;
    let opened = Arc::new(Opened::default());
    let fabric = fabric();
    let echo = |request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?);
    let builder = ServerBuilder::new(&fabric).observe(Arc::clone(&opened) as _);
    let server = builder
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("first"), move |_| Box::new(echo))
        .unwrap();
    for _ in 0..ROUNDS {
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig { lazy: true, wait_for_ready: HANG, ..ClientConfig::default() };
        let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..48 {
                scope.spawn(|| assert_eq!(*block_on(client.call(ECHO, b"first")).unwrap(), *b"first"));
            }
        });
    }
    assert_eq!(opened.0.load(Ordering::SeqCst), ROUNDS);
}

/// Threads call continuously while the server's process is killed and restarted three times.
fn a_restarted_server_is_found_again() {
    let fabric = fabric();
    for (name, plan) in plans(&fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        println!("  {name}");
        let address = unique("again");
        let mut server = ServerProcess::start_on(&address, "");
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig { window: 8, timeout: Duration::MAX, ..ClientConfig::with_plan(plan) };
        let client = AsyncClient::connect(&hub, &address, config).unwrap();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        // Busy futures leave no core to the server that starts.
        let threads = if plan.client == CompletionMode::Busy { 3 } else { 12 };
        let threads: Vec<_> = (0..threads)
            .map(|number| {
                let (client, stop, done) = (client.clone(), Arc::clone(&stop), Arc::clone(&done));
                std::thread::spawn(move || {
                    let mut lost = 0;
                    for i in 0.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let payload = pattern([5, 500, 9000][i as usize % 3], i + number);
                        match block_on(client.call(ECHO, &payload)) {
                            Ok(response) => {
                                assert_eq!(*response, *payload);
                                done.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(
                                CallError::MaybeExecuted(Cause::ConnectionLost)
                                | CallError::Executed(Cause::ConnectionLost),
                            ) => lost += 1,
                            Err(CallError::NotExecuted(Cause::Disconnected | Cause::ConnectionLost)) => {
                                std::thread::sleep(std::time::Duration::from_micros(200));
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    lost
                })
            })
            .collect();
        let more = |done: &AtomicU64| {
            let before = done.load(Ordering::SeqCst);
            until("calls are answered", || done.load(Ordering::SeqCst) > before + 50);
        };
        for _ in 0..3 {
            more(&done);
            server.kill();
            server = ServerProcess::start_on(&address, "");
        }
        more(&done);
        stop.store(true, Ordering::SeqCst);
        let lost: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        // At most the calls in flight: one window for each restart.
        assert!(lost <= 3 * 8, "{name}: {lost} calls have no known end");
    }
}

/// The test server with one worker, and a client on a counting fabric whose calls are batched.
fn together(busy: bool) -> (Count<ShmFabric>, Server<ShmFabric>, AsyncClient<Count<ShmFabric>>) {
    let server = serve(&fabric());
    let counted = Count::new(fabric());
    let mode = if busy { CompletionMode::Busy } else { CompletionMode::Event };
    let plan =
        Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm).completion(mode, CompletionMode::Event);
    let batching = Batching { calls: BatchCalls::Fixed(64), ..Batching::default() };
    let config = ClientConfig { batching: Some(batching), ..ClientConfig::with_plan(plan) };
    let hub = AsyncHub::new(&counted).unwrap();
    let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
    (counted, server, client)
}

/// Five threads on one lane, each with sixteen calls in flight.
fn calls_of_many_threads_go_together() {
    for busy in [false, true] {
        let (counted, _server, client) = together(busy);
        let before = counted.counts().posts();
        let threads: Vec<_> = (0..5u64)
            .map(|thread| {
                let client = client.clone();
                std::thread::spawn(move || {
                    for round in 0..50 {
                        let payloads: Vec<_> =
                            (0..16).map(|call| pattern(32, thread * 10_000 + round * 16 + call)).collect();
                        let calls: Vec<_> =
                            payloads.iter().map(|payload| client.call_on(0, ECHO, payload)).collect();
                        for (call, payload) in calls.into_iter().zip(&payloads) {
                            assert_eq!(*block_on(call).unwrap(), **payload);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let posts = counted.counts().posts() - before;
        println!("  4000 calls, {posts} posts");
        // Without batching there would be at least 4000 posts.
        assert!(posts < 3000, "{posts}");
    }
}

/// The tuning of an asynchronous client can be read, also if another client shares its hub.
fn what_is_chosen_can_be_asked_for() {
    let (fabric, server) = (fabric(), serve(&fabric()));
    let hub = AsyncHub::new(&fabric).unwrap();
    let usual = AsyncClient::connect(&hub, server.address(), ClientConfig::default()).unwrap();
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite)
        .completion(CompletionMode::Busy, CompletionMode::Busy);
    let table = FetchTable::new(
        [64, 1024].map(|bytes| RateRow { bytes, reads: 8e6, writes: 1e6, read_nanos: 500.0 }).to_vec(),
    );
    let calls = BatchCalls::WithinLatency { limit: Duration::from_nanos(1 << 40), tolerance: 0.5 };
    let config = ClientConfig {
        batching: Some(Batching { calls, ..Batching::default() }),
        fetch_table: Some(Arc::new(table.unwrap())),
        ..ClientConfig::with_plan(plan)
    };
    let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
    assert_eq!((usual.tuning(), usual.batch_calls()), (Vec::new(), Vec::new()));
    assert_eq!((client.tuning().len(), client.batch_calls().len()), (client.workers(), client.workers()));
    for number in 0..400 {
        let payload = pattern(32, number);
        assert_eq!(*block_on(client.call_on(0, ECHO, &payload)).unwrap(), *payload);
    }
    let tuning = &client.tuning()[0];
    assert_eq!((tuning.results.0 + tuning.results.1, &tuning.table), (400, &RatesSource::Given));
    assert!(client.batch_calls()[0] > 1, "{:?}", client.batch_calls());
}

/// The second call waits for the answer to the first, but only until the batch exceeds its timeout.
fn a_batch_does_not_wait_for_what_is_never_answered() {
    for busy in [false, true] {
        let (_, _server, client) = together(busy);
        let never = client.call_on(0, NEVER, b"");
        assert_eq!(*block_on(client.call_on(0, ECHO, b"after")).unwrap(), *b"after");
        drop(never);
    }
}
