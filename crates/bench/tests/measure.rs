//! Every measurement, as short as can be: what comes back, not how fast it was. This test has its own main function,
//! because its process is also the peer of the process pair.

use std::time::Duration;

use dunlin_bench::floor::FloorError;
use dunlin_bench::measure::{
    EventOptions, Findings, IdleOptions, KeyValueOptions, LatencyOptions, MeasureError, Session,
    ThroughputOptions, event, idle, key_value, latency, serve_peer_if_asked, throughput,
};
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
    println!("test measure ... ok");
}

/// Every row has these numbers, and they are positive.
fn has_numbers(findings: &Findings, fields: &[&str]) {
    assert!(!findings.rows.is_empty());
    for row in &findings.rows {
        for field in fields {
            assert!(row.number(field).is_some_and(|value| value > 0.0), "{field} in {row:?}");
        }
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
    assert_eq!(findings.rows.len(), 3);
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
