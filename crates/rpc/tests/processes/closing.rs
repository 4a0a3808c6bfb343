//! Lanes that are closed one by one while their connection goes on. A client that closes lanes wrongly harms
//! neither its other lanes nor another client.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{NEVER, SLOW, ServerProcess};
use crate::common::raw::{Half, RawClient, call, receive, send};
use crate::common::*;
use dunlin_fabric::{Endpoint, Link, ThreadDomain};
use dunlin_rpc::*;
use dunlin_wire::handshake::{Drained, LaneRefused, Record, RefusalCode};
use std::time::Duration;

tests!(
    a_closed_lane_is_given_back_and_its_number_is_free,
    a_lane_that_is_closed_twice_or_was_never_open_is_refused,
    a_lane_of_another_connection_cannot_be_closed,
    calls_that_a_closed_lane_has_taken_are_answered,
    a_lane_with_calls_that_never_end_is_given_back,
    a_number_in_use_is_refused,
    thousands_of_lanes_on_one_connection,
    thousands_of_lanes_with_credits_on_one_connection,
);

fn plan() -> Plan {
    Plan::new(RequestHalf::Write, ResponseHalf::Write)
}

/// Returns the mark that the server sends when it has given a lane back.
fn closed(raw: &RawClient, lane: u16) -> u64 {
    match receive(&raw.half.link) {
        Some(Record::Drained(Drained { lane: of, taken })) if of == lane => taken,
        other => panic!("{other:?} instead of the end of lane {lane}"),
    }
}

fn refused(raw: &RawClient) -> LaneRefused {
    match receive(&raw.half.link) {
        Some(Record::LaneRefused(refused)) => refused,
        other => panic!("{other:?} instead of a refusal"),
    }
}

/// Opens another lane on the connection of a raw client.
fn beside(raw: &RawClient, lane: u16) -> RawClient {
    let mut half = Half::beside(&raw.fabric, &raw.half.link, raw.plan);
    half.open.lane = lane;
    RawClient::open(&raw.fabric, half, raw.plan)
}

fn a_closed_lane_is_given_back_and_its_number_is_free() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut raw = RawClient::connect(&fabric, &server.address, plan());
    raw.assert_goes_on(call(0, 1));
    for round in 1..=3 {
        let mut other = beside(&raw, 7);
        for generation in 1..=round {
            other.assert_goes_on(call(0, generation));
        }
        send(&raw.half.link, &Record::CloseLane { lane: 7 });
        assert_eq!(closed(&raw, 7), u64::from(round));
        // The queue pair is gone; the first lane is not.
        until("the queue pair ended", || !other.is_ready());
        raw.assert_goes_on(call(0, 1 + round));
    }
    server.assert_serves(&fabric);
}

fn a_lane_that_is_closed_twice_or_was_never_open_is_refused() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut raw = RawClient::connect(&fabric, &server.address, plan());
    send(&raw.half.link, &Record::CloseLane { lane: 3 });
    let never = refused(&raw);
    assert_eq!((never.lane, never.code), (3, RefusalCode::UNKNOWN_LANE));
    assert!(never.text.contains("no open lane"), "{}", never.text);

    // A lane that is busy is still being closed when the second request comes.
    let mut busy = beside(&raw, 4);
    busy.request(SLOW, call(0, 1), &[200]);
    busy.assert_goes_on(call(1, 1));
    send(&raw.half.link, &Record::CloseLane { lane: 4 });
    send(&raw.half.link, &Record::CloseLane { lane: 4 });
    let twice = refused(&raw);
    assert_eq!((twice.lane, twice.code), (4, RefusalCode::UNKNOWN_LANE));
    assert!(twice.text.contains("already"), "{}", twice.text);
    assert_eq!(closed(&raw, 4), 2);
    // After its end it is one that is not open.
    send(&raw.half.link, &Record::CloseLane { lane: 4 });
    assert_eq!(refused(&raw).code, RefusalCode::UNKNOWN_LANE);
    raw.assert_goes_on(call(0, 1));
    server.assert_serves(&fabric);
}

fn a_lane_of_another_connection_cannot_be_closed() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut victim = beside(&RawClient::connect(&fabric, &server.address, plan()), 9);
    let raw = RawClient::connect(&fabric, &server.address, plan());
    send(&raw.half.link, &Record::CloseLane { lane: 9 });
    let refused = refused(&raw);
    assert_eq!((refused.lane, refused.code), (9, RefusalCode::UNKNOWN_LANE));
    // The number 0 means the lane of the sender.
    victim.assert_goes_on(call(0, 1));
    send(&raw.half.link, &Record::CloseLane { lane: 0 });
    assert_eq!(closed(&raw, 0), 0);
    victim.assert_goes_on(call(0, 2));
    raw.half.link.close();
    victim.assert_goes_on(call(0, 3));
    server.assert_serves(&fabric);
}

fn calls_that_a_closed_lane_has_taken_are_answered() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in [plan(), any_plan().completion(CompletionMode::Busy, CompletionMode::Event)] {
        let raw = RawClient::connect(&fabric, &server.address, plan);
        let mut other = beside(&raw, 1);
        // One call in the pool, and one that arrives together with the end of the lane.
        other.request(SLOW, call(0, 1), &[100]);
        other.request(ECHO, call(1, 1), b"last");
        send(&raw.half.link, &Record::CloseLane { lane: 1 });
        let mut answered = vec![other.answer().0.call, other.answer().0.call];
        answered.sort_unstable();
        assert_eq!(answered, [call(0, 1), call(1, 1)]);
        assert_eq!(closed(&raw, 1), 2);
    }
    server.assert_serves(&fabric);
}

fn a_lane_with_calls_that_never_end_is_given_back() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut raw = RawClient::connect(&fabric, &server.address, plan());
    let mut other = beside(&raw, 1);
    // The application never takes this call.
    other.request(NEVER, call(0, 1), &[]);
    send(&raw.half.link, &Record::CloseLane { lane: 1 });
    let mut calls = 0;
    let taken = loop {
        calls += 1;
        raw.assert_goes_on(call(0, calls));
        std::thread::sleep(Duration::from_millis(20));
        if let Some(bytes) = raw.half.link.try_receive().unwrap() {
            let Ok(Record::Drained(mark)) = Record::decode(&bytes) else { panic!("another record") };
            break mark.taken;
        }
    };
    assert!(taken == 1 && calls > 1);
    // Its number is free.
    beside(&raw, 1).assert_goes_on(call(0, 1));
    server.assert_serves(&fabric);
}

fn a_number_in_use_is_refused() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut raw = RawClient::connect(&fabric, &server.address, plan());
    let half = Half::beside(&fabric, &raw.half.link, plan());
    let refused = half.ask().unwrap_err();
    assert_eq!((refused.lane, refused.code), (0, RefusalCode::LANE_IN_USE));
    raw.assert_goes_on(call(0, 1));
    server.assert_serves(&fabric);
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The limit of lanes counts those that are open. Neither side runs out of anything that a lane has: queue pairs,
/// grants, numbers, places in the worker's tables.
fn thousands_of_lanes_on_one_connection() {
    thousands_of_lanes(plan());
}

/// The server's table of active queue pairs has no more entries than there are queue pairs.
fn thousands_of_lanes_with_credits_on_one_connection() {
    thousands_of_lanes(Plan { sharing: Sharing::Combined, ..plan() });
}

fn thousands_of_lanes(plan: Plan) {
    const ROUNDS: u16 = 6000;
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let raw = RawClient::connect(&fabric, &server.address, plan);
    let mut half = Half::beside(&fabric, &raw.half.link, plan);
    let mut after_first = 0;
    for round in 1..=ROUNDS {
        half.renew(round);
        let ready = half.ask().unwrap_or_else(|refused| panic!("{round}: {}", refused.text));
        half.domain.connect(half.queue_pair, &half.link, &Endpoint(ready.endpoint)).unwrap();
        send(&half.link, &Record::CloseLane { lane: round });
        assert_eq!(closed(&raw, round), 0);
        if round == ROUNDS / 6 {
            after_first = resident(server.process.child.id());
        }
    }
    let grown = resident(server.process.child.id()).saturating_sub(after_first);
    assert!(grown < 1 << 20, "{grown} bytes in {ROUNDS} rounds");
    server.assert_serves(&fabric);
}
