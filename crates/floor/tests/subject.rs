//! Runs a subject and the floors in one process pair. This test has its own main function, because its
//! process is also the peer: `FloorPair::spawn_self` starts the same binary again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dunlin_floor::{
    Cores, Floor, FloorError, FloorPair, PEER_ARGUMENT, Slice, Subject, alternate, compare,
    inherited_descriptor, serve_peer,
};

/// A subject that counts its polls. Its report echoes the parameters. Number 7 fails to begin, number 8
/// fails to end.
#[derive(Default)]
struct Counting {
    parameters: Vec<u8>,
    polls: u64,
}

impl Subject for Counting {
    fn begin(&mut self, index: u8, parameters: &[u8]) -> Result<(), String> {
        if index == 7 {
            return Err("no such protocol".to_owned());
        }
        self.parameters = parameters.to_vec();
        self.polls = 0;
        Ok(())
    }

    fn serve_once(&mut self, _index: u8) {
        self.polls += 1;
    }

    fn end(&mut self, index: u8) -> Result<Vec<u8>, String> {
        if index == 8 {
            return Err("drain failed".to_owned());
        }
        let mut report = self.parameters.clone();
        report.extend_from_slice(format!(" after {} polls", self.polls).as_bytes());
        Ok(report)
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some(PEER_ARGUMENT) {
        let descriptor = inherited_descriptor().expect("a descriptor");
        serve_peer(descriptor, &mut Counting::default()).expect("served");
        return;
    }
    let cores = match Cores::first_two() {
        Ok(cores) => cores,
        Err(FloorError::OneCore) => Cores { client: 0, server: 0 },
        Err(other) => panic!("{other}"),
    };
    let mut pair = FloorPair::spawn_self(cores).expect("a pair");
    reports_travel(&mut pair);
    errors_travel(&mut pair);
    alternates_with_a_floor(&mut pair);
    println!("test subject ... ok");
}

fn subject_slice(pair: &mut FloorPair, index: u8) -> Result<(Slice, Vec<u8>), FloorError> {
    let calls = AtomicU32::new(0);
    let (slice, report) = pair.subject_slice(index, b"size=32", |pair| {
        pair.time_subject(Duration::from_millis(2), |round| {
            assert_eq!(u64::from(calls.fetch_add(1, Ordering::Relaxed)) + 1, round);
            Ok(())
        })
    })?;
    assert_eq!(u64::from(calls.into_inner()), slice.total_operations);
    Ok((slice, report))
}

fn reports_travel(pair: &mut FloorPair) {
    let (slice, report) = subject_slice(pair, 0).expect("a slice");
    let text = String::from_utf8(report).expect("text");
    let polls =
        text.strip_prefix("size=32 after ").and_then(|rest| rest.strip_suffix(" polls")).expect(&text);
    assert!(polls.parse::<u64>().expect("a number") > 0);
    assert_eq!(slice.latency.samples(), slice.operations);
    assert!(slice.peer_cpu_ns > 0);

    pair.begin_subject(1, b"").expect("begun");
    let counted = pair.count_subject(Duration::from_millis(2), || Ok(3)).expect("a slice");
    assert!(counted.operations > 0 && counted.total_operations.is_multiple_of(3));
    pair.end_subject().expect("ended");
}

fn errors_travel(pair: &mut FloorPair) {
    match pair.begin_subject(7, b"") {
        Err(FloorError::PeerFailed(text)) => assert_eq!(text, "no such protocol"),
        other => panic!("{other:?}"),
    }
    match subject_slice(pair, 8) {
        Err(FloorError::PeerFailed(text)) => assert_eq!(text, "drain failed"),
        other => panic!("{other:?}"),
    }
    // The pair remains usable after a failure of either side.
    let failing = |pair: &mut FloorPair| {
        pair.time_subject(Duration::from_millis(1), |_| Err("call timed out".to_owned()))
    };
    match pair.subject_slice(0, b"", failing) {
        Err(FloorError::Subject(text)) => assert_eq!(text, "call timed out"),
        other => panic!("{other:?}"),
    }
    assert!(pair.slice(Floor::Inline32, Duration::from_millis(1)).is_ok());
}

fn alternates_with_a_floor(pair: &mut FloorPair) {
    let slice = Duration::from_millis(1);
    let found = alternate(
        pair,
        Floor::Inline32,
        slice,
        4,
        |pair| subject_slice(pair, 0).map(|(slice, _)| slice),
        |_| {},
    )
    .expect("slices");
    let compared = compare(&found);
    assert!(!compared.is_empty());
    // An empty call still costs the peer's polling.
    assert!(compared.iter().all(|one| one.server_cpu_ns_per_op > 0.0 && one.latency_ratio.is_some()));
}
