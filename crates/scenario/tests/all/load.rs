//! Loads: their results, and the rejection of impossible ones.

use dunlin_rpc::{CompletionMode, Lease, PROTOCOLS, Plan, Protocol, RequestHalf, ResponseHalf, Sharing};
use dunlin_scenario::datagrams::Datagrams;
use dunlin_scenario::load::{Connections, Extent, Function, Load, LoadError, Network, Pace, Posting};
use dunlin_scenario::memory::Lines;
use dunlin_scenario::random_values::{Sizes, Times};

fn run(load: &Load) -> dunlin_scenario::load::LoadOutcome {
    load.run(1, || [0, 0]).expect("a load")
}

fn modelled() -> Network {
    Network::Modelled("connect-ib".to_owned())
}

#[test]
fn every_protocol_runs_on_the_modelled_network() {
    for protocol in PROTOCOLS {
        // Within a line, in a message sent from a buffer, and beyond messages; each client makes more calls
        // than it has buffers.
        for bytes in [32, 3_000, 20_000] {
            let mut load = Load::bench(4, 1_600, modelled());
            let plan = protocol.plan(CompletionMode::Busy);
            load.functions = vec![Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes))];
            load.limit = 1_000_000_000;
            let outcome = run(&load);
            assert_eq!(outcome.all.calls, 1_600, "{}", protocol.name);
            // No call is faster than two passages through the switch, nor slower than a hundred.
            assert!((800..100_000).contains(&outcome.all.p50_ns), "{}: {outcome:?}", protocol.name);
        }
    }
}

#[test]
fn every_protocol_runs_where_no_payload_stands_in_a_work_request() {
    for protocol in PROTOCOLS {
        let mut load = Load::bench(4, 800, modelled());
        load.functions[0].plan = protocol.plan(CompletionMode::Busy);
        load.inline = false;
        load.limit = 1_000_000_000;
        assert_eq!(run(&load).all.calls, 800, "{}", protocol.name);
    }
}

#[test]
fn a_batch_is_one_message() {
    let mut load = Load::bench(4, 1_600, modelled());
    load.posting = Posting::Counted;
    let single = run(&load);
    load.pace = Pace::Batches { size: 8 };
    let batched = run(&load);
    assert_eq!((single.all.calls, batched.all.calls), (1_600, 1_600));
    // One WRITE per call or per batch, and a few that announce free room.
    assert!((1_600..2_000).contains(&single.posted), "{single:?}");
    assert!((200..300).contains(&batched.posted), "{batched:?}");
    assert!(batched.throughput() > 2.0 * single.throughput(), "{batched:?}, {single:?}");
}

#[test]
fn calls_of_a_batch_wait_for_memory_together_and_single_ones_as_long_as_before() {
    let mut load = Load::bench(4, 1_600, modelled());
    load.workers = 1;
    load.functions[0].service = Times::Fixed(200);
    let without = run(&load);
    load.functions[0].lines = Lines { number: 2, latency: 100, asking: 0 };
    assert_eq!(run(&load).trace_hash, without.trace_hash, "a call by itself");
    load.pace = Pace::Batches { size: 16 };
    let together = run(&load);
    load.functions[0].lines = Lines::default();
    let apart = run(&load);
    assert_eq!((together.all.calls, apart.all.calls), (1_600, 1_600));
    // 16 calls in sequence wait 3200 ns; together they wait little more than the time of two lines and two
    // groups of ten.
    let saved = (apart.time_ns - together.time_ns) / 100;
    assert!((2_400..3_000).contains(&saved), "{saved} ns a batch");
    // A network without a profile has no core model, so lines do not overlap.
    load.network = Network::Rates;
    let apart = run(&load);
    load.functions[0].lines = Lines { number: 2, latency: 100, asking: 0 };
    let plain = run(&load);
    assert!(plain.time_ns * 20 > apart.time_ns * 19, "{plain:?}, {apart:?}");
}

#[test]
fn calls_are_told_by_worker_and_latencies_as_a_curve() {
    let outcome = run(&Load::bench(8, 1_600, modelled()));
    assert_eq!(outcome.by_worker, [400; 4]);
    let curve = &outcome.percentiles;
    assert!(curve.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1), "{curve:?}");
    assert!(curve.contains(&(50.0, outcome.all.p50_ns)) && curve.contains(&(95.0, outcome.all.p95_ns)));
}

#[test]
fn who_waits_for_each_completion_is_slower() {
    let fetch = Protocol::by_name("Remote-fetch").expect("a protocol").plan(CompletionMode::Busy);
    let mut load = Load::bench(4, 1_600, modelled());
    load.functions[0].plan = fetch;
    load.posting = Posting::Counted;
    let free = run(&load);
    load.posting = Posting::Signaled;
    let waiting = run(&load);
    assert_eq!(waiting.all.calls, 1_600);
    assert!(waiting.throughput() < free.throughput(), "{waiting:?}, {free:?}");
    // A later first READ means fewer empty fetches.
    assert!((3_200..=free.posted).contains(&waiting.posted), "{waiting:?}, {free:?}");

    // A single server thread that answers by WRITE does nothing else until each completion.
    let mut load = Load::bench(8, 1_600, modelled());
    load.workers = 1;
    let free = run(&load);
    load.server_waits = true;
    let waiting = run(&load);
    assert_eq!(waiting.all.calls, 1_600);
    assert!(waiting.throughput() < free.throughput() / 1.5, "{waiting:?}, {free:?}");
}

#[test]
fn calls_go_to_the_owners_of_their_keys() {
    let mut load = Load::bench(8, 1_600, modelled());
    load.connections = Connections::EachWorker;
    load.functions[0].service = Times::Fixed(2_000);
    let spread = run(&load).throughput();
    // All calls are for one key, so one worker has all the work.
    load.key_skew = Some((1, 0.99));
    let one = run(&load).throughput();
    assert!(one < 500_000.0 && spread > 1.5 * one, "{one} of one worker, {spread} of all");
}

#[test]
fn closed_and_open_loops_and_all_sizes_come_to_their_end() {
    let mut load = Load::bench(6, 600, Network::Rates);
    load.pace = Pace::Closed { window: 8, think: Times::Fixed(0) };
    load.functions[0].requests = Sizes::FacebookKeys;
    load.functions[0].results = Sizes::FacebookValues;
    load.functions[0].service = Times::Exponential(300.0);
    assert_eq!(run(&load).all.calls, 600);
    load.pace = Pace::Open { gaps: Times::FacebookGaps(1.0) };
    let outcome = run(&load);
    assert_eq!(outcome.all.calls, 600);
    // One call per 19 us and client on average.
    let wanted = 6.0 * 1e9 / 18_969.0;
    assert!((outcome.throughput() / wanted - 1.0).abs() < 0.3, "{outcome:?}, {wanted} wanted");
}

#[test]
fn threads_without_a_core_of_their_own_take_turns() {
    let plan = Protocol::by_name("Direct-WriteIMM").expect("a protocol").plan(CompletionMode::Event);
    let throughput = |cores| {
        let mut load = Load::bench(16, 1600, modelled());
        load.functions[0].plan = plan;
        load.functions[0].service = Times::Fixed(5_000);
        load.server_cores = cores;
        run(&load).throughput()
    };
    let (one, two, any) = (throughput(Some(1)), throughput(Some(2)), throughput(None));
    assert!(one < 200_000.0, "5 us of one core each are no more than 200 000 a second: {one}");
    assert!(two > 1.5 * one && any > 1.5 * two, "{one} on one core, {two} on two, {any} on one each");
}

#[test]
fn more_clients_than_a_listener_keeps_waiting_all_connect() {
    let outcome = run(&Load::bench(1500, 3000, Network::Rates));
    assert_eq!(outcome.all.calls, 3000);
}

#[test]
fn impossible_loads_are_refused() {
    let check = |change: fn(&mut Load)| {
        let mut load = Load::bench(4, 100, Network::Rates);
        change(&mut load);
        load.run(1, || [0, 0]).expect_err("impossible")
    };
    assert!(matches!(check(|load| load.clients = 0), LoadError::Nothing { what: "the number of clients" }));
    assert!(matches!(
        check(|load| load.clients = 1_000_000),
        LoadError::QueuePairs { queue_pairs: 1_000_000, .. }
    ));
    let without_cores = check(|load| load.server_cores = Some(0));
    assert!(dunlin_fabric::WithSources(&without_cores).to_string().contains("no cores"));
    let unknown = check(|load| load.network = Network::Modelled("connect-bi".to_owned()));
    assert!(matches!(unknown, LoadError::Profile(_)), "{unknown}");
    assert!(matches!(check(|load| load.workers = 0), LoadError::Serve(_)));
}

#[test]
fn a_measured_time_counts_what_ends_in_it() {
    let mut load = Load::bench(6, 1, modelled());
    load.connections = Connections::EachWorker;
    load.extent = Extent::Time { warm_up: 100_000, measured: 300_000 };
    let outcome = run(&load);
    assert!((300_000..400_000).contains(&outcome.time_ns), "{outcome:?}");
    // Six clients, one call each at a time.
    let by_latency = 6.0 * 1e9 / outcome.all.mean_ns;
    assert!(
        (outcome.throughput() / by_latency - 1.0).abs() < 0.1,
        "{outcome:?}, {by_latency} by the latency"
    );
    assert_eq!(outcome, run(&load));
    load.pace = Pace::Closed { window: 4, think: Times::Fixed(0) };
    assert!(run(&load).throughput() > 2.0 * outcome.throughput(), "four times as many calls in flight");
}

#[test]
fn a_load_that_does_not_end_is_an_error() {
    let mut load = Load::bench(4, 1_000_000, modelled());
    load.limit = 3_000_000;
    let error = load.run(1, || [0, 0]).expect_err("too many calls for three milliseconds").to_string();
    assert!(error.contains("did not end within") && error.contains("'client' waits"), "{error}");
}

#[test]
fn datagrams_are_answered_and_nonsense_is_refused() {
    let load = Datagrams {
        profile: "flock".to_owned(),
        client_hosts: 2,
        senders: 6,
        threads: 2,
        bytes: 64,
        warm_up: 20_000,
        measured: 100_000,
        limit: 1_000_000_000,
    };
    let outcome = load.run(1).expect("a load");
    assert!(outcome.calls > 100 && (95_000..120_000).contains(&outcome.time_ns), "{outcome:?}");
    assert!(
        0.0 < outcome.verbs_share_of_work && outcome.verbs_share_of_work < outcome.verbs_share,
        "{outcome:?}"
    );
    assert!(outcome.verbs_share < 1.0, "{outcome:?}");
    assert_eq!(outcome, load.run(1).expect("a load"));
    assert!(Datagrams { senders: 0, ..load.clone() }.run(1).is_err());
    assert!(Datagrams { bytes: 3, ..load.clone() }.run(1).is_err());
    let late = Datagrams { limit: 30_000, ..load }.run(1).expect_err("over before it began");
    assert!(late.to_string().contains("did not end within"), "{late}");
}

#[test]
fn functions_are_called_by_their_weights_and_the_store_has_one_writer() {
    let mut load = Load::bench(8, 4_000, modelled());
    let plan = load.functions[0].plan;
    let reads = Function { weight: 3, ..Function::new(plan, Sizes::Fixed(24), Sizes::Fixed(1_000)) };
    let writes = Function {
        exclusive: Times::Fixed(20_000),
        ..Function::new(plan, Sizes::Fixed(1_000), Sizes::Fixed(4))
    };
    load.functions = vec![reads, writes];
    (load.workers, load.limit) = (8, 1_000_000_000);
    let outcome = run(&load);
    let [reads, writes] = outcome.functions[..] else { panic!("two functions: {outcome:?}") };
    assert_eq!(reads.calls + writes.calls, 4_000);
    assert!((900..1_100).contains(&writes.calls), "a quarter: {outcome:?}");
    // Eight workers, but never two writes at once.
    assert!(outcome.rate(&writes) <= 50_000.0, "{outcome:?}");
    assert!(writes.mean_ns > 20_000.0 && reads.mean_ns < writes.mean_ns, "{outcome:?}");
    load.functions.iter_mut().for_each(|function| function.weight = 0);
    let error = load.run(1, || [0, 0]).expect_err("nothing is called");
    assert!(matches!(error, LoadError::Nothing { what: "the weight of all functions" }), "{error}");
    load.functions.clear();
    assert!(load.run(1, || [0, 0]).is_err(), "there is nothing to call");
}

/// Calls that are posted together are messages of their own, and have the latency of their batch.
#[test]
fn calls_posted_together_are_separate_messages() {
    let mut load = Load::bench(4, 1_600, modelled());
    load.posting = Posting::Counted;
    let single = run(&load);
    load.pace = Pace::Posted { size: 8, think: Times::Fixed(0), spread: 0.0 };
    let posted = run(&load);
    assert_eq!((single.all.calls, posted.all.calls), (1_600, 1_600));
    assert!((1_600..2_000).contains(&posted.posted), "{posted:?}");
    assert!(posted.all.p50_ns > single.all.p50_ns && posted.throughput() > single.throughput(), "{posted:?}");
    // Its calls have one latency, so the median is that of half of the batches.
    assert!(posted.nic.requests_in >= 1_600 && posted.nic.requests_out >= 1_600, "{posted:?}");
    // Think times differ between clients, and a client keeps its own.
    load.pace = Pace::Posted { size: 1, think: Times::Fixed(10_000), spread: 0.8 };
    let thought = run(&load);
    assert_eq!(thought.all.calls, 1_600);
    assert!(thought.time_ns > 2 * single.time_ns, "{thought:?}");
}

/// Returns the outcome of clients by turns, of which all groups have had a turn before the measurement.
fn by_turns(clients: usize, workers: u16) -> dunlin_scenario::load::LoadOutcome {
    let mut load = Load::bench(clients, 1, Network::Modelled("scalerpc".to_owned()));
    let plan = load.functions[0].plan.shared(Sharing::Dedicated, Lease::Slice);
    load.functions[0].plan = plan;
    (load.client_hosts, load.workers) = (11, workers);
    load.groups.by_priority = false;
    let turns = load.groups.slice * clients as u64 / u64::from(load.groups.size);
    load.extent = Extent::Time { warm_up: 2 * turns.max(500_000), measured: turns.max(1_000_000) };
    run(&load)
}

/// Requests of the next group are READ while another is served, not all at once when its slice begins: a switch costs
/// few answers.
#[test]
fn a_switch_of_groups_costs_little() {
    let (one, two) = (by_turns(40, 10), by_turns(80, 10));
    assert_eq!((one.groups.switches, one.groups.leases), (0, 0), "{one:?}");
    // Ten workers see ten switches each, and each client has a lease in every second slice.
    assert!((80..=120).contains(&two.groups.switches), "{two:?}");
    assert!((300..=500).contains(&two.groups.leases), "{two:?}");
    assert!(two.all.calls * 10 > one.all.calls * 8, "{} and {}", two.all.calls, one.all.calls);
}

/// A client that waits for its turn costs the server's threads nothing: they look at two groups, and not at all lanes.
#[test]
fn clients_that_wait_for_their_turn_slow_nobody() {
    let (few, many) = (by_turns(80, 2), by_turns(1_000, 2));
    assert!(many.throughput() > 0.9 * few.throughput(), "{} and {}", many.throughput(), few.throughput());
}

#[test]
fn threads_call_on_schedule_and_use_processors_while_they_work_or_spin() {
    const MEASURED: u64 = 10_000_000;
    let mut load = Load::bench(2, 1, modelled());
    (load.client_hosts, load.workers) = (2, 2);
    let plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm);
    load.functions[0].plan = plan.completion(CompletionMode::Busy, CompletionMode::Busy);
    load.extent = Extent::Time { warm_up: 1_000_000, measured: MEASURED };
    load.pace = Pace::Scheduled { gaps: Times::Fixed(50_000) };
    let polled = run(&load);
    // Two threads with a call every 50 us.
    assert!((398..=402).contains(&polled.all.calls), "{polled:?}");
    let waiting = (polled.all.mean_ns * polled.all.calls as f64) as u64;
    let servers = 2 * MEASURED;
    let used = polled.processor_ns;
    // Server threads poll all the time, and clients while they wait for an answer.
    assert!((servers + waiting..servers + 2 * waiting).contains(&used), "{used} ns, {waiting} waiting");
    // Server threads that sleep spin for 20 us before.
    load.functions[0].plan = plan.completion(CompletionMode::Busy, CompletionMode::Adaptive);
    let slept = run(&load);
    assert!((398..=402).contains(&slept.all.calls), "{slept:?}");
    let spins = 20_000 * slept.all.calls;
    assert!((spins..used - used / 10).contains(&slept.processor_ns), "{} ns", slept.processor_ns);
    // A call that is late begins with the answer to the previous one.
    load.pace = Pace::Scheduled { gaps: Times::Fixed(1) };
    let late = run(&load);
    assert!(late.all.calls as f64 * late.all.mean_ns > 1.9 * MEASURED as f64, "{late:?}");
}
