//! Loads whose threads share connections, and the baseline eRPC.

use dunlin_rpc::{Lease, Sharing};
use dunlin_scenario::erpc::{Erpc, SESSION_CREDITS};
use dunlin_scenario::load::{Extent, Load, LoadError, LoadOutcome, Network, Pace, Posting};
use dunlin_scenario::random_values::Times;

/// Twelve threads on two hosts and one server thread, eight calls in flight each.
fn shared(sharing: Sharing, handles: usize) -> Load {
    let mut load = Load::bench(12, 6_000, Network::Modelled("flock".to_owned()));
    load.functions[0].plan = load.functions[0].plan.shared(sharing, Lease::Forever);
    load.pace = Pace::Closed { window: 8, think: Times::Fixed(0) };
    (load.client_hosts, load.workers, load.handles) = (2, 1, Some(handles));
    (load.posting, load.limit) = (Posting::Counted, 1_000_000_000);
    load
}

fn run(load: &Load) -> LoadOutcome {
    load.run(1, || [0, 0]).expect("a load")
}

/// Few head reports come on top of the messages.
fn about(messages: u64, posted: u64) -> bool {
    (messages..messages + messages / 20).contains(&posted)
}

#[test]
fn threads_meet_in_messages_only_where_they_combine() {
    for handles in [2, 4, 12] {
        for baseline in Sharing::shared().filter(|policy| *policy != Sharing::Combined) {
            let apart = run(&shared(baseline, handles));
            assert!(apart.all.calls == 6_000 && about(6_000, apart.posted), "{handles}: {apart:?}");
        }
        let combined = run(&shared(Sharing::Combined, handles));
        assert_eq!(combined.all.calls, 6_000, "{handles}");
        match handles {
            12 => assert!(about(6_000, combined.posted), "{combined:?}"),
            _ => assert!(combined.degree() > 1.1, "{handles}: {combined:?}"),
        }
        assert_eq!(combined, run(&shared(Sharing::Combined, handles)), "a run is a function of its seed");
    }
    let mut apart = shared(Sharing::Combined, 2);
    apart.most_together = 1;
    let apart = run(&apart);
    assert!(apart.all.calls == 6_000 && about(6_000, apart.posted), "{apart:?}");
    assert_eq!(apart.rung, apart.posted);
    let dedicated = run(&shared(Sharing::Dedicated, 12));
    assert!(about(6_000, dedicated.posted) && about(6_000, dedicated.answered), "{dedicated:?}");
}

/// More threads on a queue pair means more calls in a message.
#[test]
fn the_degree_grows_with_the_threads_of_a_connection() {
    let degree = |handles| run(&shared(Sharing::Combined, handles)).degree();
    assert!(degree(2) > degree(6), "{} and {}", degree(2), degree(6));
}

#[test]
fn time_measures_shared_loads_too_and_impossible_ones_are_refused() {
    let mut load = shared(Sharing::Combined, 4);
    load.extent = Extent::Time { warm_up: 50_000, measured: 200_000 };
    let outcome = run(&load);
    assert!(outcome.all.calls > 100 && outcome.posted > 0 && outcome.answers_rung > 0, "{outcome:?}");
    load.handles = Some(1);
    let error = load.run(1, || [0, 0]).expect_err("fewer connections than hosts");
    assert!(matches!(error, LoadError::Handles { handles: 1, hosts: 2, .. }), "{error}");
    let error = shared(Sharing::Dedicated, 4).run(1, || [0, 0]).expect_err("dedicated").to_string();
    assert!(error.contains("one for each thread"), "{error}");
}

fn erpc() -> Erpc {
    Erpc {
        profile: "flock".to_owned(),
        client_hosts: 2,
        client_cores: None,
        clients: 6,
        in_flight: 4,
        credits: SESSION_CREDITS,
        threads: 2,
        bytes: 64,
        loss: 0,
        warm_up: 50_000,
        measured: 200_000,
        limit: 1_000_000_000,
    }
}

#[test]
fn erpc_answers_with_several_requests_in_flight() {
    let outcome = erpc().run(1).expect("a load");
    assert!(outcome.all.calls > 200 && outcome.resent == 0 && outcome.repeated == 0, "{outcome:?}");
    assert_eq!(outcome, erpc().run(1).expect("a load"));
    let one = Erpc { in_flight: 1, ..erpc() }.run(1).expect("a load");
    assert!(outcome.all.calls > 2 * one.all.calls, "{outcome:?}, {one:?}");
    // Credits bound the packets of a session.
    assert_eq!(Erpc { credits: 1, ..erpc() }.run(1).expect("a load").all, one.all);
    assert!(Erpc { clients: 0, ..erpc() }.run(1).is_err());
    assert!(Erpc { credits: 0, ..erpc() }.run(1).is_err());
}

#[test]
fn erpc_paces_congested_sessions() {
    let few = erpc().run(1).expect("a load");
    let many = Erpc { clients: 300, in_flight: 8, threads: 1, ..erpc() }.run(1).expect("a load");
    assert_eq!(few.congested, 0.0, "{few:?}");
    assert!(many.congested > 0.5 && many.all.p50_ns > 50_000, "{many:?}");
}

/// A lost answer is sent again after the request is, and the request is not executed again.
#[test]
fn erpc_sends_lost_requests_again() {
    let lossy = Erpc { loss: 20, warm_up: 1, measured: 40_000_000, ..erpc() };
    let outcome = lossy.run(1).expect("a load");
    assert!(outcome.resent > 20 && outcome.repeated > 20, "{outcome:?}");
    assert!(outcome.all.max_ns > 5_000_000 && outcome.all.p50_ns < 100_000, "{outcome:?}");
}
