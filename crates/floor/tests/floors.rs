//! Runs every floor with a real peer process. The exchanged bytes must be right, the pair must survive
//! consecutive slices, and neither side may outlive the other or hang when it dies. No test asserts a
//! measured time.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dunlin_floor::{
    Cores, Floor, FloorError, FloorPair, LimitOptions, PEER_ARGUMENT, alternate, compare, limit,
};

const SHORT: Duration = Duration::from_millis(2);

/// Serializes the tests: each pair spins on two cores.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns two cores. On a machine with one core both sides share it, which is slow but exchanges the same
/// bytes.
fn cores() -> Cores {
    match Cores::first_two() {
        Ok(cores) => cores,
        Err(FloorError::OneCore) => Cores { client: 0, server: 0 },
        Err(other) => panic!("{other}"),
    }
}

fn peer_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin-floor"));
    command.arg(PEER_ARGUMENT);
    command
}

fn pair() -> FloorPair {
    FloorPair::spawn(peer_command(), cores()).expect("a pair")
}

#[test]
fn every_floor_exchanges_the_right_bytes_in_any_order() {
    let _turn = turn();
    let mut pair = pair();
    let floors = [
        Floor::CacheLine,
        Floor::Inline32,
        Floor::Payload(0),
        Floor::Payload(1),
        Floor::Payload(4_096),
        Floor::Payload(65_537),
        Floor::Payload(1 << 20),
        Floor::Ring { window: 1 },
        Floor::Ring { window: 64 },
        Floor::Ring { window: 256 },
        Floor::Futex,
        Floor::Memcpy(4_096),
        Floor::Memcpy(1 << 20),
    ];
    // Run the floors in both orders: data left in the shared lines by one floor must not confuse another.
    for floor in floors.into_iter().chain(floors.into_iter().rev()) {
        let slice = pair.slice(floor, SHORT).unwrap_or_else(|error| panic!("{floor}: {error}"));
        assert!(slice.operations > 0, "{floor}");
        assert!(slice.total_operations >= slice.operations, "{floor}");
        assert!(slice.elapsed_ns > 0.0, "{floor}");
        if !matches!(floor, Floor::Ring { .. } | Floor::Memcpy(_)) {
            assert_eq!(slice.latency.samples(), slice.operations, "{floor}");
        }
    }
}

#[test]
fn futexes_work_on_one_core_and_the_peer_returns_to_its_own() {
    let _turn = turn();
    let mut pair = pair();
    let apart = pair.cores();
    pair.set_server_core(apart.client);
    assert!(pair.slice(Floor::Futex, SHORT).expect("a slice").operations > 0);
    pair.set_server_core(apart.server);
    assert!(pair.slice(Floor::Inline32, SHORT).expect("a slice").operations > 0);
}

#[test]
fn bad_arguments_are_refused_and_the_pair_stays_usable() {
    let _turn = turn();
    let mut pair = pair();
    for floor in [
        Floor::Payload((1 << 20) + 1),
        Floor::Ring { window: 0 },
        Floor::Ring { window: 257 },
        Floor::Memcpy(0),
        Floor::Memcpy(u32::MAX),
    ] {
        assert!(matches!(pair.slice(floor, SHORT), Err(FloorError::BadArgument(_))), "{floor:?}");
    }
    assert!(matches!(pair.begin_subject(0, &[0; 5000]), Err(FloorError::BadArgument(_))));
    assert!(matches!(pair.begin_subject(255, &[]), Err(FloorError::BadArgument(_))));
    // This peer has no subjects, and reports that.
    match pair.begin_subject(3, b"") {
        Err(FloorError::PeerFailed(text)) => assert!(text.contains("subject 3"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(pair.slice(Floor::Inline32, SHORT).is_ok());
}

#[test]
fn alternation_brackets_and_condenses() {
    let _turn = turn();
    let mut pair = pair();
    let mut told = Vec::new();
    // Compares the floor with itself: tests the machinery without an engine.
    let found = alternate(
        &mut pair,
        Floor::Inline32,
        SHORT,
        3,
        |pair| pair.slice(Floor::Inline32, SHORT),
        |done| {
            told.push(done);
        },
    )
    .expect("slices");
    assert_eq!(told, [1, 2, 3]);
    assert_eq!(found.len(), 3);
    let compared = compare(&found);
    assert!(!compared.is_empty());
    assert!(compared.iter().all(|one| one.latency_ratio.is_some_and(|ratio| ratio > 0.0)));
}

#[test]
fn limit_names_every_floor() {
    let _turn = turn();
    let mut pair = pair();
    let rows = limit(&mut pair, LimitOptions { slice: Duration::from_micros(300), slices: 2 }).expect("rows");
    for (name, field) in [
        ("cache_line_round_trip", "p50_ns"),
        ("round_trip_32", "p50_ns"),
        ("round_trip_4096", "p50_ns"),
        ("round_trip_65536", "p50_ns"),
        ("round_trip_1048576", "p50_ns"),
        ("futex_round_trip", "p50_ns"),
        ("ring_32", "throughput_ops"),
        ("memcpy_4096", "bytes_per_s"),
        ("memcpy_65536", "bytes_per_s"),
        ("memcpy_1048576", "bytes_per_s"),
    ] {
        let row = rows.iter().find(|row| row.get("name") == Some(&name.into())).expect(name);
        assert!(row.number(field).is_some_and(|value| value > 0.0), "{name}");
        assert!(row.get("placement").is_some(), "{name}");
    }
    for cores in ["one core", "two cores"] {
        assert!(rows.iter().any(|row| row.get("cores") == Some(&cores.into())), "{cores}");
    }
}

#[test]
fn a_killed_peer_is_noticed() {
    let _turn = turn();
    let mut pair = pair();
    kill(pair.peer_id());
    // The process may take a moment to die; slices before that may succeed.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match pair.slice(Floor::Inline32, SHORT) {
            Err(FloorError::PeerGone(_)) => break,
            Err(other) => panic!("{other}"),
            Ok(_) => assert!(Instant::now() < deadline, "the dead peer still answers"),
        }
    }
}

#[test]
fn the_peer_ends_with_the_pair() {
    let _turn = turn();
    let pair = pair();
    let path = format!("/proc/{}", pair.peer_id());
    assert!(std::fs::exists(&path).expect("proc"));
    drop(pair);
    assert!(!std::fs::exists(&path).expect("proc"));
}

#[test]
fn the_peer_dies_with_a_killed_leader() {
    let _turn = turn();
    if matches!(Cores::first_two(), Err(FloorError::OneCore)) {
        let output = Command::new(env!("CARGO_BIN_EXE_dunlin-floor")).output().expect("a leader");
        assert!(!output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("one core only"),
            "it says why it does not measure"
        );
        return;
    }
    // Start a separate leader, and kill it in the middle of its measurement.
    let mut leader = Command::new(env!("CARGO_BIN_EXE_dunlin-floor"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a leader");
    let children = format!("/proc/{0}/task/{0}/children", leader.id());
    let deadline = Instant::now() + Duration::from_secs(20);
    let peer: u32 = loop {
        let text = std::fs::read_to_string(&children).expect("the leader's children");
        if let Some(Ok(peer)) = text.split_whitespace().next().map(str::parse) {
            break peer;
        }
        assert!(Instant::now() < deadline, "the leader starts no peer");
        std::thread::sleep(Duration::from_millis(5));
    };
    leader.kill().expect("killed");
    leader.wait().expect("reaped");
    let alive = || {
        // A zombie that is not yet reaped counts as dead.
        std::fs::read_to_string(format!("/proc/{peer}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
    };
    while alive() {
        assert!(Instant::now() < deadline, "the peer outlives its leader");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_peer_without_an_area_says_so() {
    let output = peer_command().stdin(Stdio::null()).output().expect("started");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a floor area"));
}

fn kill(process: u32) {
    let status = Command::new("kill").arg("-9").arg(process.to_string()).status().expect("kill");
    assert!(status.success());
}
