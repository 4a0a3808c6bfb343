//! Automatic batches (RF-RPC section 4): sent at a number of calls or bytes, after a timeout or when no other
//! call is in flight, and sized to keep a latency limit.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::Turns;
use crate::common::*;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One day: no batch exceeds its timeout.
const NEVER_LATE: Nanos = 86_400_000_000_000;

fn config(batching: Batching) -> ClientConfig {
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write);
    ClientConfig {
        batching: Some(batching),
        window: 256,
        timeout: Duration::MAX,
        ..ClientConfig::with_plan(plan)
    }
}

/// Invalid settings are refused, not rounded to valid ones.
#[test]
fn settings_that_mean_nothing_are_refused_in_words() {
    let fabric = fabric();
    let refused = |config: ClientConfig| {
        let error = Client::connect(&fabric, &unique("nobody"), config).unwrap_err();
        error.to_string()
    };
    let batching = |batching| ClientConfig { batching: Some(batching), ..ClientConfig::default() };
    let within = |tolerance| {
        let calls = BatchCalls::WithinLatency { limit: Duration::from_micros(20), tolerance };
        batching(Batching { calls, ..Batching::default() })
    };
    let read = |retries, bytes| {
        let fetch_choice = FetchChoice::Fixed { retries, bytes };
        ClientConfig { fetch_choice, ..ClientConfig::default() }
    };
    for (config, words) in [
        (batching(fixed(0)), "batching.calls is 0, but must be 1 call or more"),
        (batching(Batching { bytes: 0, ..fixed(1) }), "batching.bytes is 0, but must be 1 byte or more"),
        (within(f64::NAN), "the tolerance of batching.calls is NaN, but must be a share from 0 to 1"),
        (within(-0.1), "is -0.1, but must be a share"),
        (within(1.5), "is 1.5, but must be a share"),
        (read(0, 256), "R of fetch_choice is 0, but must be 1 to 16 READs"),
        (read(17, 256), "R of fetch_choice is 17"),
        (read(1, 0), "F of fetch_choice is 0, but must be 1 byte to 8 KiB"),
        (read(1, 8193), "F of fetch_choice is 8193"),
    ] {
        let said = refused(config);
        assert!(said.contains(words), "{said}");
    }
}

fn fixed(calls: u16) -> Batching {
    Batching {
        calls: BatchCalls::Fixed(calls),
        timeout: Duration::from_nanos(NEVER_LATE),
        ..Batching::default()
    }
}

/// Requests that the client has written.
fn written(turns: &Turns) -> u64 {
    turns.counts()[0].posted_write
}

fn push(turns: &mut Turns, bytes: usize) -> CallId {
    turns.client.push_on(0, ECHO, &pattern(bytes, 1)).unwrap()
}

fn take(turns: &mut Turns, calls: Vec<CallId>) {
    turns.settle();
    for call in calls {
        assert!(turns.client.is_done(call));
        assert!(turns.client.outcome(call).is_ok());
        turns.client.forget(call);
    }
}

#[test]
fn n_calls_or_l_bytes_make_a_message() {
    bounded(|| {
        let mut turns = Turns::new(config(fixed(16)), |_| ());
        let before = written(&turns);
        let calls: Vec<_> = (0..64).map(|_| push(&mut turns, 8)).collect();
        assert_eq!(written(&turns) - before, 4);
        take(&mut turns, calls);
        // Three calls of 600 bytes with their entries are less than 2048 bytes, four are more.
        let before = written(&turns);
        let calls: Vec<_> = (0..8).map(|_| push(&mut turns, 600)).collect();
        assert_eq!(written(&turns) - before, 2);
        take(&mut turns, calls);
        // A call larger than a batch is sent alone, after the open batch before it.
        let before = written(&turns);
        let calls = vec![push(&mut turns, 8), push(&mut turns, 3000)];
        assert_eq!(written(&turns) - before, 2);
        take(&mut turns, calls);
    });
}

#[test]
fn nobody_waits_for_a_batch_to_fill_when_nothing_else_is_under_way() {
    bounded(|| {
        let mut turns = Turns::new(config(fixed(16)), |_| ());
        let before = written(&turns);
        let first = push(&mut turns, 8);
        assert_eq!(written(&turns) - before, 0);
        turns.client.progress();
        assert_eq!(written(&turns) - before, 1);
        // While a call is in flight, later ones wait to be batched.
        let second = push(&mut turns, 8);
        turns.client.progress();
        assert_eq!(written(&turns) - before, 1);
        take(&mut turns, vec![first, second]);
    });
}

#[test]
fn a_full_window_sends_what_is_open() {
    bounded(|| {
        let mut turns = Turns::new(ClientConfig { window: 8, ..config(fixed(100)) }, |_| ());
        let before = written(&turns);
        let calls: Vec<_> = (0..8).map(|_| push(&mut turns, 8)).collect();
        assert_eq!(written(&turns) - before, 0);
        let full = turns.client.push_on(0, ECHO, b"one more").unwrap_err();
        assert_eq!(full, CallError::NotExecuted(Cause::WindowFull));
        assert_eq!(written(&turns) - before, 1);
        take(&mut turns, calls);
    });
}

#[test]
fn a_batch_that_has_stood_open_for_long_goes_out() {
    bounded(|| {
        let mut turns =
            Turns::new(config(Batching { timeout: Duration::from_millis(1), ..fixed(16) }), |_| ());
        let first = push(&mut turns, 8);
        turns.client.progress();
        let second = push(&mut turns, 8);
        let before = written(&turns);
        until("the second batch went out", || {
            turns.client.progress();
            written(&turns) > before
        });
        take(&mut turns, vec![first, second]);
    });
}

/// Keeps a window of calls in flight for twice `half`. Handlers take `service` nanoseconds in the first half
/// and `then` in the second. Returns the batch sizes at the middle and at the end, and the number of calls
/// answered.
fn in_virtual_time(limit: Nanos, half: Nanos, (service, then): (Nanos, Nanos)) -> (u16, u16, u64) {
    let (middle, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let answered = Arc::new(AtomicU64::new(0));
    let seen = (Arc::clone(&middle), Arc::clone(&end));
    let counted = Arc::clone(&answered);
    Sim::run_with(Settings { preemption: 0, ..Settings::default() }, 5, move |fabric| {
        let address = dunlin_fabric::Address::new(dunlin_fabric::Scheme::Sim, "batches").unwrap();
        let host = fabric.host().clone();
        let end = host.now() + 2 * half;
        let half = host.now() + half;
        let handler = fabric.host().clone();
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&address, move |_| {
                let host = handler.clone();
                Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    host.work(if host.now() < half { service } else { then });
                    Ok(reply.write(request.payload)?)
                })
            })
            .unwrap();
        let calls_within = BatchCalls::WithinLatency { limit: Duration::from_nanos(limit), tolerance: 0.05 };
        let batching = Batching { calls: calls_within, bytes: 8192, ..Batching::default() };
        let mut client = Client::connect(&fabric, &address, config(batching)).unwrap();
        let (mut in_flight, mut tried) = (0u64, false);
        while host.now() < end {
            while in_flight < 128 && client.push_on(0, ECHO, b"sixteen bytes...").is_ok() {
                in_flight += 1;
            }
            if host.now() >= half && !tried {
                tried = true;
                seen.0.store(client.batch_calls()[0].into(), Ordering::Relaxed);
            }
            let Some(call) = client.wait_any() else { continue };
            client.forget(call);
            counted.fetch_add(1, Ordering::Relaxed);
            in_flight -= 1;
        }
        seen.1.store(client.batch_calls()[0].into(), Ordering::Relaxed);
        client.close();
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    (of(&middle) as u16, of(&end) as u16, of(&answered))
}

#[test]
fn batches_grow_as_far_as_the_latency_allows_and_follow_a_step() {
    // A generous limit leads to the largest batches.
    let (_, generous, many) = in_virtual_time(5_000_000, 20_000_000, (0, 0));
    assert!(generous > 100, "{generous}");
    // Just under 128 calls in flight delay each other by their number alone. Shorter batches make that worse,
    // so the tuner must not choose them.
    let (_, strict, calls) = in_virtual_time(1, 20_000_000, (0, 0));
    assert!(strict > 2 && calls * 10 >= many * 8, "{calls} of {many}, {strict} together");
    // With the slower handler, 128 calls in flight take 256 us by their number alone. The batch size must not
    // collapse here either.
    let (before, after, _) = in_virtual_time(60_000, 60_000_000, (200, 2000));
    assert!(before > 100 && after > 8, "{before} and {after}");
}

/// Runs a client against a server that dies when the client calls `dies`, without the client noticing.
fn with_a_server_that_dies(client: impl FnOnce(Sim, dunlin_fabric::Address, &dyn Fn()) + Send + 'static) {
    Sim::run(7, |fabric| {
        let address = dunlin_fabric::Address::new(dunlin_fabric::Scheme::Sim, "dies").unwrap();
        let host = fabric.host().clone();
        let serving = fabric.process_on(0);
        let (of, at) = (serving.clone(), address.clone());
        let body = move || {
            let _server = ServerBuilder::new(&of)
                .function(ECHO, FunctionMode::Worker)
                .serve(&at, |_| Box::new(crate::common::turns::echo))
                .unwrap();
            of.host().sleep(Nanos::MAX);
        };
        let task = serving.host().spawn("server", Box::new(body)).unwrap();
        // The server listens by then.
        host.sleep(host.now() + 1_000_000);
        client(fabric, address, &|| {
            serving.kill();
            host.sleep(host.now() + 1_000_000);
        });
        task.join();
    })
    .unwrap();
}

/// The queue pair turns out to be broken when the batch is full. The last call counts as made, and ends like
/// the others of its batch.
#[test]
fn a_call_that_fills_a_batch_which_cannot_be_sent_ends_once() {
    with_a_server_that_dies(|fabric, address, dies| {
        let mut client = Client::connect(&fabric, &address, config(fixed(2))).unwrap();
        let mut calls = vec![client.push_on(0, ECHO, b"first").unwrap()];
        dies();
        calls.push(client.push_on(0, ECHO, b"second").unwrap());
        while let Some(done) = client.wait_any() {
            let at = calls.iter().position(|call| *call == done).expect("a call that was made");
            calls.swap_remove(at);
            assert!(client.outcome(done).is_err());
            client.forget(done);
        }
        assert_eq!((calls, client.in_flight()), (Vec::new(), 0));
    });
}

/// The same with a future, whose batch is sent at once because no other call is in flight.
#[test]
fn a_future_whose_batch_cannot_be_sent_is_a_call_that_was_made() {
    with_a_server_that_dies(|fabric, address, dies| {
        let hub = AsyncHub::new(&fabric).unwrap();
        let client = AsyncClient::connect(&hub, &address, config(fixed(2))).unwrap();
        dies();
        let mut call = std::pin::pin!(client.call(ECHO, b"first"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..1000 {
            if let std::task::Poll::Ready(outcome) = call.as_mut().poll(&mut context) {
                let error = outcome.expect_err("nobody is there");
                // Not the cause of a call that was never made, which a client that cannot connect reports.
                assert_eq!(error.cause(), Some(Cause::ConnectionLost), "{error}");
                return;
            }
        }
        panic!("the call does not end");
    });
}

/// The pass in which a request was prepared, or `None` for the call itself; and the request's first byte.
type Seen = (Option<usize>, u8);

/// Records its requests and passes; a payload of 9 must never be prepared.
struct Noting(Arc<Mutex<Vec<Seen>>>);

impl Service for Noting {
    fn passes(&self) -> usize {
        2
    }

    fn prepare(&mut self, pass: usize, _function: u16, payload: &[u8]) {
        assert_ne!(payload[0], 9);
        self.0.lock().unwrap().push((Some(pass), payload[0]));
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), dunlin_wire::Status> {
        self.0.lock().unwrap().push((None, request.payload[0]));
        Ok(reply.write(request.payload)?)
    }
}

#[test]
fn a_service_is_shown_a_batch_before_its_first_call_and_a_panic_there_harms_none() {
    bounded(|| {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let (fabric, noting) = (fabric(), Arc::clone(&noted));
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&unique("shown"), move |_| Box::new(Noting(Arc::clone(&noting))))
            .unwrap();
        let mut client = Client::connect(&fabric, server.address(), config(fixed(3))).unwrap();
        let mut batch = |bytes: [u8; 3]| {
            let calls = bytes.map(|byte| client.push_on(0, ECHO, &[byte]).unwrap());
            for (call, byte) in calls.into_iter().zip(bytes) {
                while !client.is_done(call) {
                    client.progress();
                }
                assert_eq!(client.outcome(call).unwrap(), [byte]);
                client.forget(call);
            }
            std::mem::take(&mut *noted.lock().unwrap())
        };
        let of = |pass: Option<usize>| [1, 2, 3].map(|byte| (pass, byte));
        assert_eq!(batch([1, 2, 3]), [of(Some(0)), of(Some(1)), of(None)].concat());
        assert_eq!(batch([1, 9, 3]), [(Some(0), 1), (None, 1), (None, 9), (None, 3)]);
        // A single call is not prepared: it has no other call to overlap with.
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write);
        let mut alone = Client::connect(&fabric, server.address(), ClientConfig::with_plan(plan)).unwrap();
        assert_eq!(*alone.call(ECHO, &[4]).unwrap(), [4]);
        assert_eq!(*noted.lock().unwrap(), [(None, 4)]);
    });
}
