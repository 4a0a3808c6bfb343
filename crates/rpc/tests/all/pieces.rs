//! Large payloads in pieces: they are READ while they are being filled, as far as was reported and no
//! further. A payload that is given up ends on both sides and affects no other call.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::Turns;
use crate::common::*;
use dunlin_rpc::*;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Answers with the first half of the request, followed by other bytes.
const HALF: u16 = 2;
const WINDOW: u16 = 4;

fn plan() -> Plan {
    Plan::new(RequestHalf::Write, ResponseHalf::Write).large(LargePayload::Pipelined, SMALL_LIMIT)
}

fn service(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    let length = request.payload.len();
    let (place, telling) = reply.reserve_to_fill(length)?;
    assert_eq!(telling.is_some(), length > PIECE);
    let Some(telling) = telling else {
        place.copy_from_slice(request.payload);
        return Ok(());
    };
    if request.function == ECHO {
        telling.put(0, place, request.payload);
        return Ok(());
    }
    telling.put(0, &mut place[..length / 2], &request.payload[..length / 2]);
    match request.payload[length - 1] {
        0 => Err(Status::Unauthorised),
        4 => {
            reply.clear();
            reply.write(b"in its own words")?;
            Err(Status::Application(ApplicationCode::new(7).unwrap()))
        }
        1 => panic!("in the middle"),
        2 => {
            reply.clear();
            Ok(reply.write(b"something else")?)
        }
        3 => {
            assert!(reply.write(b"more").is_err());
            Err(Status::TooLarge)
        }
        _ => {
            let (half, place) = (length / 2, reply.reserve(length)?);
            place[half..].copy_from_slice(&request.payload[half..]);
            Ok(())
        }
    }
}

fn pair() -> Turns {
    let config = ClientConfig { window: WINDOW, ..ClientConfig::with_plan(plan()) };
    Turns::serving(config, [ECHO, HALF], service)
}

fn call(pair: &mut Turns, function: u16, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    let call = pair.client.submit_on(0, function, payload).unwrap();
    pair.end(call)
}

fn assert_goes_on(pair: &mut Turns) {
    pair.settle();
    assert_eq!(pair.client.in_flight(), 0);
    for round in 0..2 * u64::from(WINDOW) {
        let payload = pattern(100_000, round);
        assert_eq!(call(pair, ECHO, &payload).unwrap(), payload);
    }
}

#[test]
fn a_request_is_read_while_it_is_filled_and_no_further() {
    bounded(|| {
        let mut pair = pair();
        let payload = pattern(200_000, 3);
        let [_, before] = pair.counts();
        let mut request = pair.client.filling_request_for(0, ECHO, payload.len()).unwrap();
        let (mut done, mut read) = (0, 0);
        for to in [PIECE - 1, PIECE, 100_000, 100_001, 190_000, 200_000] {
            let (place, filling) = request.parts();
            place[done..to].copy_from_slice(&payload[done..to]);
            filling.filled(to);
            done = to;
            for _ in 0..100 {
                pair.worker.progress();
            }
            let now = (pair.fabrics[1].counts() - before).bytes_posted;
            assert!(now <= to as u64, "{now} bytes were READ of {to}");
            assert_eq!(now > read, [PIECE, 100_000, 190_000].contains(&to), "{now} after {read} at {to}");
            read = now;
        }
        let call = request.submit().unwrap();
        assert!(pair.end(call).unwrap() == payload);
        assert_goes_on(&mut pair);
    });
}

#[test]
fn a_call_in_pieces_costs_what_it_should() {
    bounded(|| {
        let mut pair = pair();
        let payload = pattern(4 * PIECE, 1);
        for _ in 0..64 {
            call(&mut pair, ECHO, &payload).unwrap();
        }
        pair.settle();
        let before = pair.counts();
        for _ in 0..64 {
            assert!(call(&mut pair, ECHO, &payload).unwrap() == payload);
        }
        pair.settle();
        let [client, server] = [pair.counts()[0] - before[0], pair.counts()[1] - before[1]];
        // The client sends the announcement, three more reports, and the release of the result. The worker
        // runs only after everything was reported: it READs the announced piece, and then the rest at once.
        let reports = client.posted_write - 64 * 5;
        assert!(reports <= 64 / 8, "{reports} reports of heads");
        assert_eq!(server.posted_write, 64 * 4);
        assert_eq!((client.posted_read, server.posted_read), (64 * 2, 64 * 2));
        assert_eq!(server.bytes_posted, 64 * (4 * 64 + payload.len() as u64));
    });
}

#[test]
fn requests_that_are_given_up_end() {
    bounded(|| {
        let mut pair = pair();
        let payload = pattern(300_000, 9);
        // More calls than the window, so each one must end completely.
        for round in 0..5 * WINDOW as usize {
            let told = [0, 1, PIECE, 100_000, 299_999, 300_000, usize::MAX][round % 7];
            let client = &mut pair.client;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let mut request = client.filling_request_for(0, ECHO, payload.len()).unwrap();
                let (place, filling) = request.parts();
                place.copy_from_slice(&payload);
                filling.filled(told);
                filling.filled(told / 2);
                assert!(round % 2 == 0, "in the middle");
            }));
            assert_eq!(panicked.is_err(), round % 2 == 1);
            if round % 3 == 0 {
                pair.worker.progress();
            }
            pair.settle();
            assert_eq!(pair.client.in_flight(), 0, "told of {told}");
        }
        assert_goes_on(&mut pair);
    });
}

#[test]
fn results_that_are_given_up_are_errors() {
    bounded(|| {
        let mut pair = pair();
        for round in 0..3 * WINDOW as usize {
            let failures = [
                CallError::NotExecuted(Cause::Refused(Status::Unauthorised)),
                CallError::Executed(Cause::HandlerPanicked),
                CallError::Executed(Cause::HandlerPanicked),
                CallError::Executed(Cause::ResultTooLarge),
                CallError::Application { code: 7, payload: b"in its own words".to_vec() },
            ];
            for (how, failed) in failures.into_iter().enumerate() {
                let mut payload = pattern(150_000, round as u64);
                payload[149_999] = how as u8;
                assert_eq!(call(&mut pair, HALF, &payload), Err(failed), "{how}");
            }
            let mut payload = pattern(150_000, round as u64);
            payload[149_999] = 99;
            assert!(call(&mut pair, HALF, &payload).unwrap() == payload);
        }
        assert_goes_on(&mut pair);
    });
}

/// Results of calls that were given up, announced or not, given up by the server or not.
#[test]
fn calls_that_are_given_up_end() {
    bounded(|| {
        let mut pair = pair();
        let mut payload = pattern(100_000, 4);
        payload[99_999] = 0;
        for looks in 0..80 {
            let call = pair.client.submit_on(0, [ECHO, HALF][looks % 2], &payload).unwrap();
            let looks = looks / 2;
            for _ in 0..looks / 8 {
                pair.worker.progress();
            }
            for _ in 0..looks % 8 {
                pair.client.progress();
            }
            pair.client.forget(call);
            pair.settle();
            assert_eq!(pair.client.in_flight(), 0);
        }
        assert_goes_on(&mut pair);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// For any pattern of filling, reporting and polling, exactly the filled bytes arrive.
    #[test]
    fn what_arrives_is_what_was_filled(
        calls in prop::collection::vec(
            (1usize..400_000, prop::collection::vec((0.0f64..1.2, 0usize..4), 0..12), 0u64..1000), 1..6),
    ) {
        let mut pair = pair();
        for (length, steps, seed) in calls {
            let payload = pattern(length, seed);
            let mut request = pair.client.filling_request_for(0, ECHO, length).unwrap();
            let mut done = 0;
            for (part, looks) in steps {
                let to = (length as f64 * part) as usize;
                let (place, filling) = request.parts();
                if (done..=length).contains(&to) {
                    filling.copy(&mut place[done..to], &payload[done..to]);
                    done = to;
                }
                // Bytes that are not filled must not be reported; bytes already reported may be reported
                // again.
                filling.filled(to.min(done));
                for _ in 0..looks {
                    pair.worker.progress();
                }
            }
            let (place, filling) = request.parts();
            filling.put(done, &mut place[done..], &payload[done..]);
            let call = request.submit().unwrap();
            prop_assert!(pair.end(call).unwrap() == payload);
        }
        pair.settle();
        prop_assert_eq!(pair.client.in_flight(), 0);
    }
}

/// A server that stops in the middle of a result: the call ends at its deadline, and the lane recovers with
/// the server.
#[test]
fn a_result_that_is_not_filled_on_ends_by_its_deadline() {
    const LENGTH: usize = 8 * PIECE;
    const SHORT: u64 = 50_000_000;
    bounded(|| {
        let fabric = fabric();
        let (resume, stopped) = std::sync::mpsc::channel::<()>();
        let mut stopped = Some(stopped);
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&unique("stalls"), |_| {
                let mut stopped = stopped.take();
                Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| {
                    let (place, telling) = reply.reserve_to_fill(LENGTH)?;
                    let telling = telling.expect("in pieces");
                    telling.put(0, &mut place[..LENGTH / 2], &[7; LENGTH / 2]);
                    if let Some(stopped) = stopped.take() {
                        stopped.recv().expect("the test ends it");
                    }
                    telling.put(LENGTH / 2, &mut place[LENGTH / 2..], &[7; LENGTH / 2]);
                    Ok(())
                })
            })
            .unwrap();
        let config = ClientConfig {
            window: WINDOW,
            timeout: Duration::from_nanos(SHORT),
            ..ClientConfig::with_plan(plan())
        };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        let error = client.call(ECHO, b"begin").map(drop).unwrap_err();
        // The server had announced the result.
        assert_eq!(error, CallError::Executed(Cause::DeadlineExceeded));
        resume.send(()).unwrap();
        // The late result arrives first and is discarded.
        until("the lane has caught up", || {
            client.call(ECHO, b"again").is_ok_and(|result| *result == [7; LENGTH])
        });
    });
}
