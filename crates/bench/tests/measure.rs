//! Runs every measurement as briefly as possible and checks the form of the results, not the speed. This
//! test has its own main function, because its process is also the peer of the process pair.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dunlin_bench::measure::{
    AtbLatencyOptions, AtbMixOptions, AtbThroughputOptions, BatchTunerOptions, EventOptions, Findings,
    IdleOptions, KeyValueOptions, LatencyOptions, MeasureError, Pace, Session, Singles, ThroughputOptions,
    TierIdleOptions, TierOptions, TunerGrid, YcsbOptions, YcsbWorkload, atb_latency, atb_mix, atb_throughput,
    batch_tuner, event, fetch_tuner, idle, key_value, latency, serve_peer_if_asked, throughput, tier,
    tier_idle, ycsb,
};
use dunlin_floor::FloorError;
use dunlin_report::Row;
use dunlin_rpc::PROTOCOLS;

fn main() {
    if serve_peer_if_asked().expect("served") {
        return;
    }
    let mut session = match Session::start() {
        Ok(session) => session,
        Err(MeasureError::Floor(FloorError::OneCore)) => {
            println!("there is one core only: nothing can be measured here");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    latencies(&mut session);
    throughputs(&mut session);
    stores(&mut session);
    sleepers(&mut session);
    quiet_ones(&mut session);
    tiers(&mut session);
    quiet_tiers();
    hinted_alone(&mut session);
    hinted_crowds(&mut session);
    hinted_mixes(&mut session);
    hinted_stores(&mut session);
    drop(session);
    // A session has a number for each server that it ever started, and these are many.
    tuners(&mut Session::start().expect("a pair of processes"));
    println!("test measure ... ok");
}

/// Checks that these fields are positive numbers in every row.
fn has_numbers(findings: &Findings, fields: &[&str]) {
    assert!(!findings.rows.is_empty());
    for row in &findings.rows {
        for field in fields {
            assert!(row.number(field).is_some_and(|value| value > 0.0), "{field} in {row:?}");
        }
    }
}

/// Checks the fields of comparisons in at least half of the rows. Other rows may come from slices that the
/// machine spent on other work.
fn most_have_numbers(findings: &Findings, fields: &[&str]) {
    let positive = |row: &&Row, field: &str| row.number(field).is_some_and(|value| value > 0.0);
    for field in fields {
        let found = findings.rows.iter().filter(|row| positive(row, field)).count();
        assert!(found > 0 && found * 2 >= findings.rows.len(), "{field}: {found} of {:?}", findings.rows);
    }
}

fn latencies(session: &mut Session) {
    for size in [0, 32, 100, 4096, 65_536] {
        let options = LatencyOptions { size, protocols: Vec::new(), rounds: Some(1) };
        let findings = latency(session, &options).expect("measured");
        has_numbers(&findings, &["p50_ns", "p99_ns", "max_ns", "samples"]);
        let floor = matches!(size, 32 | 4096 | 65_536);
        assert_eq!(findings.rows.iter().all(|row| row.number("ratio").is_some()), floor, "size {size}");
        assert_eq!(findings.notes.len(), usize::from(!floor), "{:?}", findings.notes);
        for protocol in PROTOCOLS {
            let ways = findings.rows.iter().filter(|row| row.get("protocol") == Some(&protocol.name.into()));
            assert!(ways.count() >= 1, "{} at {size} bytes", protocol.name);
        }
    }
    let unknown = LatencyOptions { size: 32, protocols: vec!["pigeon".to_owned()], rounds: None };
    match latency(session, &unknown) {
        Err(MeasureError::BadArgument(text)) => assert!(text.contains("Server-reply"), "{text}"),
        other => panic!("{other:?}"),
    }
}

fn throughputs(session: &mut Session) {
    for clients in [1, 2] {
        let options = ThroughputOptions {
            clients,
            batches: vec![8],
            protocols: vec!["Server-reply".to_owned(), "eager_sendrecv".to_owned()],
            rounds: Some(1),
            ..ThroughputOptions::default()
        };
        let findings = throughput(session, &options).expect("measured");
        has_numbers(&findings, &["throughput_ops", "floor_throughput_ops", "share", "window"]);
        assert_eq!(findings.rows.len(), 4);
        assert!(findings.rows.iter().all(|row| row.number("clients") == Some(clients as f64)));
    }
}

fn stores(session: &mut Session) {
    let options =
        KeyValueOptions { records: 2000, batches: vec![8], rounds: Some(1), ..KeyValueOptions::default() };
    let findings = key_value(session, &options).expect("measured");
    has_numbers(&findings, &["throughput_ops", "hit_share"]);
    // One call per message, batches of eight, batches sized by the engine under both limits, and MULTIGETs;
    // with RF-RPC the cases that leave choices to the engine; and each of the systems.
    let (systems, manners): (Vec<_>, Vec<_>) =
        findings.rows.iter().partition(|row| row.get("system").is_some());
    let by = |protocol: &'static str| {
        manners.iter().filter(move |row| row.get("protocol") == Some(&protocol.into()))
    };
    assert_eq!((by("Server-reply").count(), by("RF-RPC").count(), manners.len()), (5, 3, 8));
    for limit in [20_000.0, 150_000.0] {
        let found = by("RF-RPC").find(|row| row.number("within_ns") == Some(limit)).expect("a row");
        assert!(
            found.number("keys_per_message").is_some_and(|keys| (1.0..=128.0).contains(&keys)),
            "{found:?}"
        );
    }
    for (name, reads) in [
        // With the rates of shared memory, no results are fetched.
        ("Jakiro", 0.0..0.1),
        ("Jakiro, fetched", 1.0..1000.0),
        ("ServerReply", 0.0..0.1),
        ("HERD-style", 0.0..0.1),
        ("Pilaf-style", 2.0..4.0),
        ("FaRM-style", 1.0..1.1),
    ] {
        let row = systems.iter().find(|row| row.get("system") == Some(&name.into())).expect("a row");
        let found = row.number("reads_per_get").expect("READs are counted");
        assert!(reads.contains(&found), "{name}: {found}");
        assert!(row.number("hit_share").is_some_and(|share| share > 0.99), "{name}");
    }
}

fn sleepers(session: &mut Session) {
    let findings =
        event(session, &EventOptions { protocols: Vec::new(), rounds: Some(1) }).expect("measured");
    has_numbers(&findings, &["p50_ns", "floor_p50_ns", "ratio"]);
    let on_one_core = findings.rows.iter().filter(|row| row.number("cpu_ns_per_op").is_some());
    assert_eq!(on_one_core.count() * 2, findings.rows.len());
}

fn quiet_ones(session: &mut Session) {
    let options =
        IdleOptions { connections: 3, watched: Duration::from_millis(100), ..IdleOptions::default() };
    let findings = idle(session, &options).expect("measured");
    has_numbers(&findings, &["connections", "seconds"]);
    assert!(findings.rows[0].number("server_cpu_share").is_some());
}

fn tiers(session: &mut Session) {
    let findings = tier(session, &TierOptions { rounds: Some(1), only: None }).expect("measured");
    has_numbers(&findings, &["median_ns"]);
    let ways: BTreeSet<_> = findings.rows.iter().filter_map(|row| row.get("way")?.as_str()).collect();
    assert_eq!(ways.len(), 9, "{ways:?}");
    assert!(findings.rows.iter().filter(|row| row.number("ratio").is_some()).count() > 15);
    let only = |text: &str| TierOptions { rounds: Some(1), only: Some(text.to_owned()) };
    let some = tier(session, &only("four processes")).expect("measured");
    has_numbers(&some, &["median_ns"]);
    assert_eq!(some.rows.len(), 2, "with the calls that it is compared with: {:?}", some.rows);
    assert!(matches!(tier(session, &only("no such row")), Err(MeasureError::BadArgument(_))));
    let none = tier(session, &TierOptions { rounds: Some(0), only: None });
    assert!(matches!(none, Err(MeasureError::BadArgument(_))));
}

fn quiet_tiers() {
    let watched = Duration::from_millis(100);
    let findings = tier_idle(&TierIdleOptions { nodes: 3, processes: 4, watched }).expect("measured");
    has_numbers(&findings, &["count", "seconds"]);
    let counts: Vec<_> = findings.rows.iter().filter_map(|row| row.number("count")).collect();
    assert_eq!(counts, [1.0, 2.0, 4.0]);
    assert!(findings.rows.iter().all(|row| row.number("cpu_percent").is_some()));
    assert!(findings.rows[0].number("resident_bytes_per_process").is_some());
    for (nodes, processes) in [(1, 1), (2, 0), (65, 1), (2, 1001)] {
        let refused = tier_idle(&TierIdleOptions { nodes, processes, watched });
        assert!(matches!(refused, Err(MeasureError::BadArgument(_))));
    }
}

const SLICE: Duration = Duration::from_millis(3);

/// Checks for a row for each of these contestants and each protocol, at each of `points` points. A
/// contestant measured while the placement changed has a separate row, which may have no counterpart.
fn has_everybody(findings: &Findings, hinted: &[&str], points: usize) {
    let protocols = PROTOCOLS.iter().map(|protocol| protocol.name);
    for name in hinted.iter().copied().chain(protocols) {
        let rows = findings.rows.iter().filter(|row| row.get("protocol") == Some(&name.into()));
        assert!(rows.count() >= points, "{name}: {:?}", findings.notes);
    }
    for row in &findings.rows {
        let single = !hinted.iter().any(|name| row.get("protocol") == Some(&(*name).into()));
        for field in ["plan", "placement"].iter().chain(single.then_some(&"best")) {
            assert!(row.get(field).is_some_and(|value| value.is_string()), "{field} in {row:?}");
        }
    }
}

fn hinted_alone(session: &mut Session) {
    let options = AtbLatencyOptions {
        sizes: vec![4, 5000],
        request: None,
        answer: Some(100),
        singles: Singles::default(),
        rounds: 1,
        slice: SLICE,
        stop: Arc::default(),
    };
    let findings = atb_latency(session, &options).expect("measured");
    has_everybody(&findings, &["hinted"], 2);
    most_have_numbers(
        &findings,
        &["request_bytes", "p50_ns", "p99_ns", "p999_ns", "max_ns", "samples", "slices", "ratio"],
    );
    assert!(findings.rows.iter().all(|row| row.number("response_bytes") == Some(100.0)));
    let too_large = AtbLatencyOptions { sizes: vec![1 << 30], answer: None, ..options.clone() };
    assert!(matches!(atb_latency(session, &too_large), Err(MeasureError::BadArgument(_))));
    let stopped = AtbLatencyOptions { stop: Arc::new(AtomicBool::new(true)), ..options };
    assert!(atb_latency(session, &stopped).expect("ended").rows.is_empty());
}

fn hinted_crowds(session: &mut Session) {
    let options = AtbThroughputOptions {
        clients: vec![1, 3, 9],
        sizes: vec![64],
        request: None,
        answer: None,
        singles: Singles::default(),
        pace: Pace { rounds: Some(1), slice: Some(SLICE) },
        stop: Arc::default(),
    };
    let findings = atb_throughput(session, &options).expect("measured");
    has_everybody(&findings, &["hinted"], 3);
    most_have_numbers(&findings, &["clients", "throughput_ops", "p50_ns", "samples", "ratio"]);
    let nobody = AtbThroughputOptions { clients: vec![0], ..options };
    assert!(matches!(atb_throughput(session, &nobody), Err(MeasureError::BadArgument(_))));
}

fn hinted_mixes(session: &mut Session) {
    let options = AtbMixOptions {
        clients: vec![2],
        sizes: vec![512, 6000],
        request: None,
        answer: None,
        latency_share: 0.5,
        singles: Singles::default(),
        pace: Pace { rounds: Some(1), slice: Some(3 * SLICE) },
        stop: Arc::default(),
    };
    let findings = atb_mix(session, &options).expect("measured");
    has_everybody(&findings, &["function hints", "service hints"], 2);
    most_have_numbers(&findings, &["throughput_ops", "p50_ns", "ratio", "latency_ratio"]);
}

fn hinted_stores(session: &mut Session) {
    let options = YcsbOptions {
        workloads: vec![YcsbWorkload::A, YcsbWorkload::B],
        clients: 5,
        records: 200,
        singles: Singles::default(),
        rounds: 1,
        slice: 20 * SLICE,
        stop: Arc::default(),
    };
    let findings = ycsb(session, &options).expect("measured");
    for workload in ["a", "b"] {
        for operation in ["all", "get", "put", "multiget", "multiput"] {
            for protocol in ["function hints", "service hints", "AR-gRPC", "HERD", "Pilaf", "Remote-fetch"] {
                let wanted = [("workload", workload), ("operation", operation), ("protocol", protocol)];
                let is_it = |row: &&_| {
                    wanted.iter().all(|(field, value)| Row::get(row, field) == Some(&(*value).into()))
                };
                let row = findings.rows.iter().find(is_it).unwrap_or_else(|| panic!("no row of {wanted:?}"));
                assert!(row.number("throughput_ops").is_some(), "{row:?}");
                assert_eq!(row.get("p99_ns").is_some(), operation != "all", "{row:?}");
            }
        }
    }
}

fn tuners(session: &mut Session) {
    let grid = TunerGrid {
        processes: vec![0, 2000],
        results: vec![100],
        clients: vec![1, 2],
        rounds: 1,
        slice: SLICE,
        stop: Arc::default(),
    };
    let named = |findings: &Findings, name: &str| -> Vec<Row> {
        findings.rows.iter().filter(|row| row.get("protocol") == Some(&name.into())).cloned().collect()
    };
    let findings = fetch_tuner(session, &grid).expect("measured");
    assert_eq!(findings.rows.len(), 4 * 11);
    has_numbers(&findings, &["throughput_ops"]);
    // With the rates of shared memory the tuned client fetches nothing. The fetched share of others depends
    // on the load.
    let share = |name| named(&findings, name)[0].number("fetched_share");
    assert_eq!((share("tuned"), share("plain reply")), (Some(0.0), None));
    assert!(share("R 16, F 1024").is_some());
    assert!(matches!(
        fetch_tuner(session, &TunerGrid { results: vec![5000], ..grid.clone() }),
        Err(MeasureError::BadArgument(_))
    ));

    let options = BatchTunerOptions { grid, limits_ns: vec![2_000, 1_000_000_000], tolerance: 0.05 };
    let findings = batch_tuner(session, &options).expect("measured");
    assert_eq!(findings.rows.len(), 4 * (2 + 14));
    has_numbers(&findings, &["throughput_ops", "calls_per_batch", "p50_ns"]);
    for row in named(&findings, "batches of 23") {
        assert_eq!((row.number("calls_per_batch"), row.get("limit_ns")), (Some(23.0), None), "{row:?}");
    }
    for row in named(&findings, "within 1000000us") {
        // No call exceeds the limit, so batches keep growing during the measurement.
        assert!(row.number("calls_per_batch").is_some_and(|calls| calls > 2.0), "{row:?}");
        assert!(row.number("of_limit").is_some_and(|late| late < 1.0), "{row:?}");
    }
    for row in named(&findings, "within 2us").iter().filter(|row| row.number("process_ns") == Some(2000.0)) {
        assert_eq!(row.get("best"), None, "no size keeps it: {row:?}");
    }
    let nobody_late = BatchTunerOptions { tolerance: 1.0, ..options };
    assert!(matches!(batch_tuner(session, &nobody_late), Err(MeasureError::BadArgument(_))));
}
