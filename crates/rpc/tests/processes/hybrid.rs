//! Results that are fetched or written back, as the client chooses (RF-RPC section 3.2): when the choice
//! changes, the cost of a change, and that no result is lost during one.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::Turns;
use crate::common::*;
use dunlin_fabric::RateRow;
use dunlin_rpc::tune::table::FetchTable;
use dunlin_rpc::*;
use std::sync::Arc;
use std::time::Duration;

/// A table that gives R = 5 and F = 256. The duration of a READ decides which answers count as quick.
fn config(read_nanos: f64) -> ClientConfig {
    let row = |bytes, reads| RateRow { bytes, reads, writes: 2e6, read_nanos };
    let rows = vec![row(32, 10.5e6), row(256, 10.5e6), row(1024, 4e6), row(2048, 2e6)];
    ClientConfig {
        fetch_table: Some(Arc::new(FetchTable::new(rows).unwrap())),
        // Behavior that depends on the clock is tested in virtual time.
        fetch_choice: FetchChoice::Enumerated,
        first_read: FirstRead::AtOnce,
        ..ClientConfig::with_plan(Protocol::by_name("RF-RPC").unwrap().plan(CompletionMode::Busy))
    }
}

/// With READs of one hour every answer is quick; with READs of one nanosecond none is.
const ALWAYS_QUICK: f64 = 3.6e11;
const NEVER_QUICK: f64 = 1.0;

fn tuning(turns: &mut Turns) -> Tuning {
    let [tuning] = turns.client.tuning().try_into().unwrap();
    tuning
}

tests!(
    one_slow_call_is_waited_for_and_two_in_a_row_are_written_back,
    each_function_has_a_mode_of_its_own,
    quick_answers_are_fetched_again,
    a_call_that_takes_for_ever_costs_a_bounded_number_of_reads,
    calls_under_way_are_given_over_with_the_slow_one,
    batches_go_one_way_or_the_other,
    the_bytes_of_a_read_follow_the_results,
    each_function_has_r_and_f_of_its_own,
    what_one_lane_has_found_out_all_know,
    fixed_r_and_f_stay,
    a_plan_with_a_fixed_path_has_no_tuning,
    on_threads_of_their_own_nothing_is_lost,
);

fn one_slow_call_is_waited_for_and_two_in_a_row_are_written_back() {
    let mut turns = Turns::new(config(NEVER_QUICK), |_| ());
    turns.calls(3);
    assert_eq!(tuning(&mut turns).results, (3, 0));
    // Four empty READs are within R, however often they occur.
    for number in 0..4 {
        turns.call(ECHO, 4, number);
    }
    assert_eq!((tuning(&mut turns).results, tuning(&mut turns).changes), ((7, 0), (0, 0)));
    // Five exceed it. A single such call changes nothing.
    turns.call(ECHO, 5, 0);
    turns.calls(1);
    turns.call(ECHO, 5, 0);
    turns.calls(1);
    let before = tuning(&mut turns);
    assert_eq!((before.results, before.changes, before.rescued), ((11, 0), (0, 0), 0));
    // Two in a row do: the second is already written back.
    let [_, server] = turns.counts();
    turns.call(ECHO, 5, 0);
    turns.call(ECHO, 5, 0);
    let after = tuning(&mut turns);
    assert_eq!((after.results, after.changes, after.rescued), ((12, 1), (1, 0), 1));
    assert_eq!(after.written_back, [ECHO % 32]);
    assert_eq!(turns.counts()[1].posted_write - server.posted_write, 1);
    // From then on there are no READs, except for one that follows the mode word.
    let reads = after.reads.0;
    turns.calls(100);
    let last = tuning(&mut turns);
    assert_eq!(last.results, (12, 101));
    assert!(last.reads.0 <= reads + 1, "{} READs after {reads}", last.reads.0);
    assert_eq!(last.doubled, 0);
}

fn each_function_has_a_mode_of_its_own() {
    let mut turns = Turns::new(config(NEVER_QUICK), |_| ());
    turns.call(ECHO, 5, 0);
    turns.call(ECHO, 5, 0);
    assert_eq!(tuning(&mut turns).results, (1, 1));
    for number in 0..50 {
        turns.call(ECHO, 0, number);
        turns.call(ECHO + 1, 0, number);
    }
    assert_eq!(tuning(&mut turns).results, (51, 51));
}

fn quick_answers_are_fetched_again() {
    let mut turns = Turns::new(config(ALWAYS_QUICK), |_| ());
    turns.call(ECHO, 5, 0);
    turns.call(ECHO, 5, 0);
    assert_eq!(tuning(&mut turns).written_back, [ECHO % 32]);
    // One answer in four carries its processing time. Two that report less than R READs are enough.
    turns.calls(9);
    let tuning = tuning(&mut turns);
    assert_eq!((tuning.changes, tuning.written_back.len()), ((1, 1), 0));
    assert!(tuning.results.0 >= 2, "{tuning:?}");
}

fn a_call_that_takes_for_ever_costs_a_bounded_number_of_reads() {
    let mut turns = Turns::new(config(NEVER_QUICK), |_| ());
    turns.calls(1);
    let before = tuning(&mut turns).reads.0;
    turns.call(ECHO, 10_000, 0);
    let after = tuning(&mut turns);
    // Four times R, and one READ after the mode word.
    assert_eq!(after.reads.0 - before, 4 * 5 + 1);
    assert_eq!((after.rescued, after.written_back.len()), (1, 0), "others of the function are fetched");
    turns.calls(1);
    assert_eq!(tuning(&mut turns).results, (2, 1));
}

fn calls_under_way_are_given_over_with_the_slow_one() {
    let mut turns = Turns::new(config(NEVER_QUICK), |_| ());
    turns.call(ECHO, 5, 0);
    let calls: Vec<_> = (0..8).map(|n| turns.client.submit_on(0, ECHO, &pattern(100, n)).unwrap()).collect();
    for _ in 0..5 {
        turns.client.progress();
    }
    assert_eq!(tuning(&mut turns).rescued, 8);
    turns.worker.progress();
    turns.settle();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(turns.client.outcome(call).unwrap(), pattern(100, number as u64));
        turns.client.forget(call);
    }
    assert_eq!(tuning(&mut turns).results, (1, 8));
}

fn batches_go_one_way_or_the_other() {
    let mut turns = Turns::new(config(NEVER_QUICK), |_| ());
    let batch = |turns: &mut Turns, looks: u32| {
        let functions = [ECHO, ECHO, ECHO + 1, ECHO, ECHO + 1];
        let calls = functions.map(|function| turns.client.push_on(0, function, &pattern(200, 1)).unwrap());
        turns.client.flush().unwrap();
        for _ in 0..looks {
            turns.client.progress();
        }
        turns.settle();
        for call in calls {
            assert_eq!(turns.client.outcome(call).unwrap(), pattern(200, 1));
            turns.client.forget(call);
        }
    };
    batch(&mut turns, 0);
    assert_eq!(tuning(&mut turns).results, (5, 0));
    // From here on ECHO is written back and the other function is not: batches of both are two messages or
    // more.
    turns.call(ECHO, 5, 0);
    turns.call(ECHO, 5, 0);
    let before = tuning(&mut turns).results;
    batch(&mut turns, 0);
    let after = tuning(&mut turns).results;
    assert_eq!((after.0 - before.0, after.1 - before.1), (2, 3));
}

fn the_bytes_of_a_read_follow_the_results() {
    let mut turns = Turns::new(config(ALWAYS_QUICK), |_| ());
    assert_eq!(tuning(&mut turns).fetch_bytes, 256);
    assert_eq!(tuning(&mut turns).fetch_bytes_between, (256, 1024));
    let payload = pattern(500, 3);
    let call = |turns: &mut Turns| {
        let call = turns.client.submit_on(0, ECHO, &payload).unwrap();
        turns.worker.progress();
        while !turns.client.is_done(call) {
            turns.client.progress();
        }
        assert_eq!(turns.client.outcome(call).unwrap(), payload);
        turns.client.forget(call);
    };
    // The first calls are all samples, and four are enough.
    (0..4).for_each(|_| call(&mut turns));
    let first = tuning(&mut turns);
    assert_eq!((first.fetch_bytes, first.retuned, first.reads.0), (576, 1, 8));
    (0..512).for_each(|_| call(&mut turns));
    let second = tuning(&mut turns);
    // Two READs for each result before, one after; and one more at each end of the ring, about every thirty
    // results.
    let reads = second.reads.0 - first.reads.0;
    assert!((512..512 + 25).contains(&reads), "{reads:?}");
    // Later one call in eight is a sample, and 32 samples make a round.
    (0..2 * 8 * 32).for_each(|number| turns.call(ECHO, 0, number));
    assert_eq!(tuning(&mut turns).fetch_bytes, 256);
}

/// A function with short results and one with long ones, alternating: each has READs of its own size.
fn each_function_has_r_and_f_of_its_own() {
    let mut turns = Turns::new(config(ALWAYS_QUICK), |_| ());
    let payload = pattern(500, 3);
    let both = |turns: &mut Turns, number| {
        turns.call(ECHO, 0, number);
        let call = turns.client.submit_on(0, ECHO + 1, &payload).unwrap();
        turns.settle();
        assert_eq!(turns.client.outcome(call).unwrap(), payload);
        turns.client.forget(call);
    };
    (0..8).for_each(|number| both(&mut turns, number));
    let of = |tuning: &Tuning, function: u16| {
        tuning.functions.iter().find(|of| of.function == function % 32).unwrap().fetch_bytes
    };
    let before = tuning(&mut turns);
    assert_eq!((of(&before, ECHO), of(&before, ECHO + 1)), (256, 576));
    let reads = turns.counts()[0].posted_read;
    (0..10).for_each(|number| both(&mut turns, number));
    assert_eq!(turns.counts()[0].posted_read - reads, 20);
}

/// All lanes share the findings of each lane, also those of another thread's client.
fn what_one_lane_has_found_out_all_know() {
    let fabric = fabric();
    let config = ClientConfig { window: 1, ..config(ALWAYS_QUICK) };
    let server = ServerBuilder::new(&fabric)
        .config(ServerConfig { workers: 2, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("hybrid"), |_| Box::new(crate::common::turns::echo))
        .unwrap();
    let mut client = Client::connect(&fabric, server.address(), config).unwrap();
    let payload = pattern(500, 3);
    (0..4).for_each(|_| drop(client.call_on(0, ECHO, &payload).unwrap()));
    let mut another = client.another().unwrap();
    for tuning in [client.tuning(), another.tuning()].concat() {
        let [of] = &tuning.functions[..] else { panic!("one function was called: {tuning:?}") };
        assert_eq!((of.function, of.fetch_bytes), (ECHO % 32, 576));
    }
    // The calls of the other client count too: short results reduce F again for both.
    let sampled = std::thread::spawn(move || {
        (0..32 * 8 * 3).for_each(|_| drop(another.call_on(1, ECHO, &payload[..9]).unwrap()));
    });
    sampled.join().unwrap();
    assert_eq!(client.tuning()[0].functions[0].fetch_bytes, 256);
}

/// Fixed values of R and F do not change.
fn fixed_r_and_f_stay() {
    let fetch_choice = FetchChoice::Fixed { retries: 2, bytes: 1000 };
    let mut turns = Turns::new(ClientConfig { fetch_choice, ..config(NEVER_QUICK) }, |_| ());
    turns.calls(200);
    // Two empty READs exceed R.
    turns.call(ECHO, 2, 0);
    turns.call(ECHO, 2, 0);
    let tuning = tuning(&mut turns);
    assert_eq!((tuning.retries, tuning.fetch_bytes, tuning.retuned), (2, 1024, 0));
    assert_eq!(tuning.written_back, [ECHO % 32]);
}

fn a_plan_with_a_fixed_path_has_no_tuning() {
    let plan = Protocol::by_name("Remote-fetch").unwrap().plan(CompletionMode::Busy);
    let mut turns = Turns::new(ClientConfig::with_plan(plan), |_| ());
    turns.calls(3);
    assert_eq!(turns.client.tuning(), []);
}

/// Handlers of all durations, with calls in windows, in batches and alone. Client and worker have their own
/// threads, so that answers and mode words cross.
fn on_threads_of_their_own_nothing_is_lost() {
    for response in [ResponseHalf::FetchOrWrite, ResponseHalf::FetchOrWriteImm] {
        for request in [RequestHalf::Write, RequestHalf::WriteImm, RequestHalf::Send] {
            let fabric = fabric();
            let server = ServerBuilder::new(&fabric)
                .function(ECHO, FunctionMode::Worker)
                .function(ECHO + 1, FunctionMode::Pool)
                .pool(turns_echo)
                .serve(&unique("hybrid"), |_| Box::new(turns_echo))
                .unwrap();
            let client = if response == ResponseHalf::FetchOrWriteImm {
                CompletionMode::Adaptive
            } else {
                CompletionMode::Busy
            };
            let plan = Plan::new(request, response).completion(client, CompletionMode::Busy);
            let config = ClientConfig {
                plan: Some(plan),
                window: 16,
                spin: Duration::from_micros(2),
                ..config(200.0)
            };
            let mut client = Client::connect(&fabric, server.address(), config).unwrap();
            for number in 0..3000u64 {
                let calls: Vec<_> = (0..1 + number % 7)
                    .map(|n| {
                        let function = ECHO + u16::from((number + n) % 5 == 0);
                        let payload = pattern(if n == 3 { 700 } else { 32 }, number % 50);
                        let call = client.push_on(0, function, &payload).unwrap();
                        if n % 3 == 0 {
                            client.flush().unwrap();
                        }
                        (call, payload)
                    })
                    .collect();
                for (call, payload) in calls {
                    assert_eq!(*client.wait(call).unwrap(), payload, "{plan:?} {number}");
                }
            }
            let [tuning] = client.tuning().try_into().unwrap();
            assert!(tuning.results.0 + tuning.results.1 > 3000, "{tuning:?}");
            assert!(tuning.rescued > 0 && tuning.results.1 > 0, "{tuning:?}");
        }
    }
}

/// Takes between nothing and some microseconds.
fn turns_echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), dunlin_wire::Status> {
    let first = request.payload.first().copied().unwrap_or(0);
    (0..u32::from(first) * 20).for_each(|_| std::hint::spin_loop());
    crate::common::turns::echo(request, reply)
}
