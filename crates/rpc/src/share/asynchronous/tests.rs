#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use super::*;
use crate::error::{CallError, Cause};
use crate::plan::{CompletionMode, Plan, RequestHalf, ResponseHalf, Sharing};
use crate::server::{Server, ServerBuilder};
use crate::service::{FunctionMode, Reply, Request};
use dunlin_fabric::{Host, Nanos, Scheme};
use dunlin_fabric_sim::Sim;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Wake, Waker};

const ECHO: u16 = 1;
const MICROSECOND: Nanos = 1_000;

/// A waker that counts.
#[derive(Default)]
struct Counting(AtomicU64);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A server that counts its calls, and a client.
fn start(fabric: &Sim, mode: CompletionMode) -> (Server<Sim>, AsyncClient<Sim>, Arc<AtomicU64>) {
    start_with(fabric, mode, |_| {})
}

/// As [`start`], with other settings of the client.
fn start_with(
    fabric: &Sim,
    mode: CompletionMode,
    with: impl FnOnce(&mut ClientConfig),
) -> (Server<Sim>, AsyncClient<Sim>, Arc<AtomicU64>) {
    let (address, executed) = (Address::new(Scheme::Sim, "tickets").unwrap(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&executed);
    let server = ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .serve(&address, move |_| {
            let counted = Arc::clone(&counted);
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap();
    let plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm).completion(mode, mode);
    let hub = AsyncHub::new(fabric).unwrap();
    let mut config = ClientConfig::with_plan(plan);
    with(&mut config);
    let client = AsyncClient::connect(&hub, &address, config).unwrap();
    (server, client, executed)
}

/// The thread that leads has lost its core. Others make, poll, drop and end calls all the same.
#[test]
fn nobody_waits_for_a_thread_that_leads() {
    for (seed, mode) in [CompletionMode::Busy, CompletionMode::Event].into_iter().enumerate() {
        Sim::run(seed as u64, move |fabric| {
            let (server, client, executed) = start(&fabric, mode);
            let host = fabric.host();
            let count = Arc::new(Counting::default());
            let waker = Waker::from(Arc::clone(&count));
            let mut context = Context::from_waker(&waker);
            let inner = Arc::clone(client.connection.hub.inner());

            let lead = inner.lead();
            let mut kept = pin!(client.call(ECHO, b"kept"));
            let mut short = pin!(client.within(Duration::from_micros(20)).call(ECHO, b"short"));
            let dropped = client.call(ECHO, b"dropped");
            assert!(kept.as_mut().poll(&mut context).is_pending());
            let woken = Arc::new(Counting::default());
            let of_short = Waker::from(Arc::clone(&woken));
            assert!(short.as_mut().poll(&mut Context::from_waker(&of_short)).is_pending());
            drop(dropped);
            host.sleep(host.now() + 5_000 * MICROSECOND);
            assert!(woken.0.load(Ordering::SeqCst) > 0, "the clock has woken the task");
            let end = short.as_mut().poll(&mut context);
            let expected = CallError::NotExecuted(Cause::DeadlineExceeded);
            assert!(matches!(end, Poll::Ready(Err(error)) if error == expected));
            drop(lead);

            // The lead's end has sent the call that is left. A busy task polls by itself.
            let answered = (0..1000).any(|_| {
                host.sleep(host.now() + 10 * MICROSECOND);
                let is_woken = mode == CompletionMode::Busy || count.0.load(Ordering::SeqCst) > 0;
                is_woken
                    && matches!(kept.as_mut().poll(&mut context), Poll::Ready(Ok(bytes)) if *bytes == *b"kept")
            });
            assert!(answered);
            assert_eq!(executed.load(Ordering::SeqCst), 1, "the others were not executed");
            drop(client);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A result that is there is taken while another thread leads.
#[test]
fn a_result_is_taken_without_the_lead() {
    Sim::run(7, |fabric| {
        let (server, client, _) = start(&fabric, CompletionMode::Event);
        let host = fabric.host();
        let count = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let long = vec![9; 300];
        let mut calls = [b"short".as_slice(), &long].map(|payload| Box::pin(client.call(ECHO, payload)));
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut context).is_pending());
        }
        while count.0.load(Ordering::SeqCst) < 2 {
            host.sleep(host.now() + 10 * MICROSECOND);
        }
        let inner = Arc::clone(client.connection.hub.inner());
        let lead = inner.lead();
        let lengths = calls.map(|mut call| match call.as_mut().poll(&mut context) {
            Poll::Ready(Ok(bytes)) => bytes.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(lengths, [5, 300]);
        drop(lead);
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A client is dropped while another thread leads. The drop does not wait, and the thread that leads closes the
/// connection.
#[test]
fn a_connection_is_closed_by_the_thread_that_leads() {
    Sim::run(9, |fabric| {
        let (server, client, _) = start(&fabric, CompletionMode::Event);
        let host = fabric.host();
        // The end of the hub waits for its wake thread.
        let hub = client.connection.hub.clone();
        let inner = Arc::clone(hub.inner());
        let lead = inner.lead();
        let before = host.now();
        drop(client);
        assert!(host.now() < before + 10 * MICROSECOND, "nobody waited");
        assert_eq!(server.clients().len(), 1);
        drop(lead);
        assert!(inner.lead().routes.iter().all(Option::is_none));
        let closed = (0..1000).any(|_| {
            host.sleep(host.now() + 10 * MICROSECOND);
            server.clients().is_empty()
        });
        assert!(closed);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a task's waker");
    }
}

/// Wakers of the same batch run all the same, whatever their order, whether the wake thread runs them or another one.
#[test]
fn a_waker_that_panics_loses_no_other() {
    for (seed, led_by_task) in [(0, true), (1, false)] {
        Sim::run(seed, move |fabric| {
            let (server, client, _) = start(&fabric, CompletionMode::Event);
            let host = fabric.host();
            let inner = Arc::clone(client.connection.hub.inner());
            let sleep = |time: Nanos| host.sleep(host.now() + time);
            let counts: Vec<_> = (0..3).map(|_| Arc::new(Counting::default())).collect();
            let mut wakers: Vec<_> = counts.iter().map(|count| Waker::from(Arc::clone(count))).collect();
            wakers.insert(2, Waker::from(Arc::new(Panics)));
            wakers.insert(1, Waker::from(Arc::new(Panics)));
            let mut calls: Vec<_> = wakers.iter().map(|_| Box::pin(client.call(ECHO, b"together"))).collect();
            let mut lead = inner.lead();
            for (call, waker) in calls.iter_mut().zip(&wakers) {
                assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
            }
            // All answers are there before anybody looks.
            sleep(200 * MICROSECOND);
            if led_by_task {
                lead.work();
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lead)));
                assert!(ended.is_err(), "the panic goes on");
            } else {
                drop(lead);
                sleep(10_000 * MICROSECOND);
            }
            for count in &counts {
                assert!(count.0.load(Ordering::SeqCst) > 0, "{led_by_task}");
            }
            assert!(inner.try_lead().is_some(), "the lead is free");
            drop((calls, client));
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A clone that has to move waits for its calls on the old queue pair, and its later calls wait for the move, in order.
#[test]
fn a_clone_moves_when_its_calls_have_ended() {
    Sim::run(11, |fabric| {
        let (server, client, _) = start_with(&fabric, CompletionMode::Busy, |config| {
            config.plan = config.plan.map(|plan| Plan { sharing: Sharing::Combined, ..plan });
            config.thread_scheduling = Some(Duration::from_micros(1));
        });
        let host = fabric.host();
        let mut context = Context::from_waker(Waker::noop());
        let mut finish = |call: &mut Call<Sim>| loop {
            match std::pin::Pin::new(&mut *call).poll(&mut context) {
                Poll::Ready(result) => return result.unwrap().to_vec(),
                Poll::Pending => host.sleep(host.now() + MICROSECOND),
            }
        };
        let other = client.clone();
        let seat = client.seat.as_ref().unwrap();
        while seat.strands().places.active().count() < 2 {
            finish(&mut client.call(ECHO, b"first"));
            finish(&mut other.call(ECHO, b"other"));
        }
        finish(&mut client.call(ECHO, b"first"));
        let inner = Arc::clone(client.connection.hub.inner());
        let on = || inner.lead().route_of(seat.clone).unwrap();
        let before = on();
        let mut calls = vec![client.call(ECHO, b"under way")];
        assert!(!inner.lead().has_waiting());
        seat.move_by_hand();
        calls.extend((0..3u8).map(|number| client.call(ECHO, &[number])));
        assert!(inner.lead().has_waiting() && on() == before, "it has a call under way");
        let results: Vec<_> = calls.iter_mut().map(&mut finish).collect();
        assert_eq!(results, [&b"under way"[..], &[0], &[1], &[2]]);
        assert!(!inner.lead().has_waiting() && on() != before, "it has moved");
        drop((calls, client, other));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// The calls that were held for a queue pair which is retired leave over another one in their order.
#[test]
fn calls_of_a_retired_queue_pair_keep_their_order() {
    Sim::run(12, |fabric| {
        let (server, client, _) = start_with(&fabric, CompletionMode::Busy, |config| {
            config.plan = config.plan.map(|plan| Plan { sharing: Sharing::Combined, ..plan });
            (config.thread_scheduling, config.window) = (Some(Duration::from_micros(1)), 1);
        });
        let host = fabric.host();
        let mut context = Context::from_waker(Waker::noop());
        let other = client.clone();
        let mut end_all = |calls: &mut [Call<Sim>]| {
            let mut order = Vec::new();
            while order.len() < calls.len() {
                for (number, call) in calls
                    .iter_mut()
                    .enumerate()
                    .filter(|(number, _)| !order.contains(number))
                    .collect::<Vec<_>>()
                {
                    if let Poll::Ready(result) = std::pin::Pin::new(call).poll(&mut context) {
                        assert_eq!(result.unwrap()[0], number as u8);
                        order.push(number);
                    }
                }
                host.sleep(host.now() + MICROSECOND / 10);
            }
            order
        };
        let seat = client.seat.as_ref().unwrap();
        while seat.strands().places.active().count() < 2 {
            end_all(&mut [client.call(ECHO, &[0]), other.call(ECHO, &[1])]);
        }
        end_all(&mut [client.call(ECHO, &[0])]);
        let inner = Arc::clone(client.connection.hub.inner());
        let mut calls: Vec<_> = (0..5u8).map(|number| client.call(ECHO, &[number])).collect();
        {
            let mut lead = inner.lead();
            let route = lead.route_of(seat.clone).unwrap();
            assert!(lead.has_waiting() && lead.retire_strand(route), "one is under way, the others are held");
        }
        assert_eq!(end_all(&mut calls), [0, 1, 2, 3, 4]);
        drop((calls, client, other));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A number of a clone that is gone names nobody, and the next clone at its place is another one.
#[test]
fn the_places_of_clones_are_used_again_under_other_numbers() {
    let (clones, strands) = (strands::Clones::default(), Arc::new(Strands::new(None)));
    let numbers: Vec<_> = (0..3).map(|number| clones.enter(&strands, number).unwrap()).collect();
    assert_eq!(numbers, [1 << 16, 1 << 16 | 1, 1 << 16 | 2]);
    clones.leave(numbers[1]);
    assert!(clones.get(numbers[1]).is_none() && clones.get(NO_CLONE).is_none());
    assert_eq!(clones.enter(&strands, 9), Some(2 << 16 | 1));
    assert!(clones.get(numbers[1]).is_none());
    assert_eq!(clones.get(2 << 16 | 1).unwrap().1, 9);
    assert_eq!(Arc::strong_count(&strands), 4);
}
