//! Peers that break the handshake of paths, or send requests that no node sends.

use crate::cluster::config;
use dunlin_fabric::interpose::{Fault, FaultPlan, When};
use dunlin_fabric::{Address, Fabric, Host, Link, Listener, Scheme, WithSources};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::call::SERVICE_CALL;
use dunlin_tier::message::{CALL, Refusal, Reply, Request, SLOW_CALL};
use dunlin_tier::{CallAnswer, CallHead, LmrId, Name, NodeId, Principal, RingPlace};
use dunlin_tier_node::{JoinError, Spec, Tier, TierConfig};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn node(tag: &str) -> (Tier<ShmFabric>, TierConfig, ShmFabric) {
    let tag = format!("{}-{tag}", std::process::id());
    let mut config = config(Scheme::Shm, &tag, &["alice", "bob"], "alice");
    config.token = b"secret".to_vec();
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    (Tier::within(&fabric, config.clone()).unwrap(), config, fabric)
}

/// The version of the handshake.
const PRESENT: u16 = 7;

/// Each of these ends the connection, and the node goes on.
#[test]
fn paths_that_break_the_handshake_are_refused() {
    let (alice, config, fabric) = node("paths");
    let hello = |version: u16, node: u16, token: &[u8]| {
        let mut bytes = b"dunlinTM".to_vec();
        for number in [version, node, 0, token.len() as u16] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        // The incarnation in a fixed list, and the number of the process.
        bytes.extend_from_slice(&[0; 24]);
        bytes.extend_from_slice(token);
        bytes
    };
    // Each with the number of offers: a first message that is right gets one.
    let messages: [(&[Vec<u8>], usize); 7] = [
        (&[vec![]], 0),
        (&[vec![0xff; 3000]], 0),
        (&[hello(PRESENT - 2, 1, b"secret")], 0),
        (&[hello(PRESENT, 1, b"wrong")], 0),
        (&[hello(PRESENT, 2, b"secret")], 0),
        (&[hello(PRESENT, 1, b"secret"), vec![7; 300]], 1),
        (&[hello(PRESENT, 1, b"secret"), vec![]], 1),
    ];
    for (messages, expected) in messages {
        let until = fabric.host().now() + 5_000_000_000;
        let link = fabric.dial(&config.nodes[0].memory, until).unwrap();
        let mut offers = 0;
        for message in messages {
            link.send(message).unwrap();
            offers += usize::from(link.receive(until).is_ok());
        }
        assert!(link.receive(until).is_err() && !link.is_alive(), "{messages:?}");
        assert_eq!(offers, expected, "{messages:?}");
        assert!(fabric.host().now() < until, "the node ends the connection");
    }
    let region = alice.malloc(100, Spec::here()).unwrap();
    assert_eq!(region.fetch_add(0, 1).unwrap(), 0);
}

/// A node whose own release speaks another version of the paths' handshake is named as such, and nothing is done.
#[test]
fn a_peer_that_answers_in_another_version_or_with_noise_is_refused() {
    let tag = format!("{}-versions", std::process::id());
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let _bob = Tier::within(&fabric, config(Scheme::Shm, &tag, &["alice", "bob"], "bob")).unwrap();
    let mut own = config(Scheme::Shm, &tag, &["alice", "bob"], "alice");
    own.nodes[1].memory = Address::new(Scheme::Shm, &format!("{tag}-other-version")).unwrap();
    own.timeout = Duration::from_secs(1);
    let listener = fabric.listen(&own.nodes[1].memory).unwrap();
    let alice = Tier::within(&fabric, own).unwrap();
    let of_version = |version: u16| [&b"dunlinTM"[..], &version.to_le_bytes(), &[0; 6]].concat();
    for (answer, reason) in [
        (of_version(PRESENT - 1), "another version"),
        (of_version(PRESENT + 1), "another version"),
        (vec![7; 300], "not the handshake of a path"),
        (vec![], "too short"),
    ] {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let soon = || fabric.host().now() + 10_000_000;
                    let Ok(link) = listener.accept(soon()) else { continue };
                    let _ = link.receive(fabric.host().now() + 1_000_000_000);
                    let _ = link.send(&answer);
                    // The other end has to read it.
                    let _ = link.receive(soon());
                }
            });
            let error = alice.malloc(100, Spec::on("bob")).unwrap_err();
            is_over.store(true, Ordering::Release);
            peer.join().unwrap();
            let text = WithSources(&error).to_string();
            assert!(text.contains("bob") && text.contains(reason), "{text}");
        });
    }
}

#[test]
fn requests_that_no_node_sends_change_nothing() {
    let (alice, config, fabric) = node("calls");
    let region = alice.malloc(1000, Spec::here().named("a")).unwrap();
    region.write(0, &[7; 1000]).unwrap();
    let wrong = ClientConfig { token: b"guess".to_vec(), ..ClientConfig::default() };
    assert!(Client::connect(&fabric, &config.nodes[0].calls, wrong).is_err());
    let settings = ClientConfig { token: b"secret".to_vec(), ..ClientConfig::default() };
    let mut client = Client::connect(&fabric, &config.nodes[0].calls, settings).unwrap();
    let mut ask = |function, bytes: &[u8]| Reply::parse(&client.call(function, bytes).unwrap()).unwrap();
    let malformed = Reply::Refused(Refusal::Malformed);
    for bytes in [&[][..], &[0], &[99, 1, 2], &[7; 200]] {
        assert_eq!(ask(CALL, bytes), malformed);
    }
    // A slow request must not come to the worker, and a quick one not to the pool.
    let owner = LmrId { node: NodeId(0), slot: 0, generation: 0 };
    let allocate = |length, piece| Request::Allocate { owner, length, piece }.encode();
    assert_eq!(ask(CALL, &allocate(64, 64)), malformed);
    assert_eq!(ask(SLOW_CALL, &Request::Exists { id: owner }.encode()), malformed);
    for (length, piece) in [(0, 64), (64, 0), (u64::MAX, u32::MAX), (u64::MAX, 64), (1 << 40, 1)] {
        assert_eq!(ask(SLOW_CALL, &allocate(length, piece)), malformed);
    }
    assert!(matches!(
        ask(SLOW_CALL, &allocate(1 << 21, 1 << 20)),
        Reply::Refused(Refusal::OutOfMemory { .. })
    ));
    // Places of regions that another owner has.
    for (offset, length) in [(0, 8), (u64::MAX, 8), (0, u32::MAX)] {
        let set = Request::Set { owner, extent: 0, offset, length, value: 1 };
        assert_eq!(ask(SLOW_CALL, &set.encode()), Reply::Refused(Refusal::NoPlace));
    }
    let map = Request::Map {
        id: owner,
        wanted: dunlin_tier::Rights::ALL,
        mapper: NodeId(77),
        principal: dunlin_tier::Principal::new("alice").unwrap(),
    };
    assert_eq!(ask(CALL, &map.encode()), malformed);
    let forget = Request::Forget { name: Name::new("a").unwrap(), id: owner };
    assert_eq!(ask(CALL, &forget.encode()), Reply::Done, "without effect: another region has the name");
    let mut found = [0; 1000];
    region.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    assert_eq!(alice.free_memory(), (1 << 20) - 1024);
}

/// Calls whose payloads lie in memory that is not the caller's: no receiver gets them, and no byte is changed.
#[test]
fn ranges_of_rings_that_nobody_has_are_refused() {
    let (alice, config, fabric) = node("rings");
    let region = alice.malloc(8192, Spec::here()).unwrap();
    region.write(0, &[7; 8192]).unwrap();
    let settings = ClientConfig { token: b"secret".to_vec(), ..ClientConfig::default() };
    let mut client = Client::connect(&fabric, &config.nodes[0].calls, settings).unwrap();
    let mut ask =
        |request: Request| Reply::parse(&client.call(SLOW_CALL, &request.encode()).unwrap()).unwrap();
    let owner = LmrId { node: NodeId(1), slot: 5, generation: 9 };
    let part = |length, least| Request::Ring { owner, length, least };
    for (length, least) in [(0, 0), (1 << 20, 1 << 20), (u64::MAX, u64::MAX), (64, 65)] {
        let full = Refusal::OutOfMemory { wanted: least };
        assert_eq!(ask(part(length, least)), Reply::Refused(full), "{length} bytes, {least} at least");
    }
    let Reply::Allocated(layout) = ask(part(u64::MAX, 1)) else { panic!("an eighth of the memory") };
    assert_eq!(layout.length(), 1 << 17);
    let full = Reply::Refused(Refusal::OutOfMemory { wanted: 1 });
    assert_eq!(ask(part(4096, 1)), full, "it has a part");
    let other = LmrId { slot: 6, ..owner };
    assert_eq!(ask(Request::Ring { owner: other, length: 4096, least: 1 }), full, "the share is used");

    let calls = alice.register("s", 1).unwrap();
    let server = std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        loop {
            let request = calls.receive(&mut buffer).unwrap();
            match request.len() {
                0 => return request.reply(&[]),
                length => request.reply(&buffer[..length]),
            }
        }
    });
    let head = |ring| {
        let (service, caller) = (Name::new("s").unwrap(), Principal::new("x").unwrap());
        CallHead { service, function: 1, caller, is_one_way: false, ring }
    };
    let piece = layout.pieces()[0];
    let right =
        RingPlace { owner, extent: piece.extent, offset: piece.offset, request: Some(5000), room: 5000 };
    let wrong = [
        RingPlace { owner: other, ..right },
        RingPlace { extent: 77, ..right },
        RingPlace { offset: piece.offset + (1 << 17) - 4999, ..right },
        RingPlace { offset: u64::MAX, ..right },
        RingPlace { request: Some(4 << 20), ..right },
    ];
    for place in wrong {
        let error = client.call(SERVICE_CALL, &head(Some(place)).encode(&[])).map(drop).unwrap_err();
        assert_eq!(error.was_executed(), Some(false), "{place:?}: {error}");
        // With the request in the message, the result has no place.
        if place.request == right.request {
            let place = RingPlace { request: None, ..place };
            let message = head(Some(place)).encode(&[3; 5000]);
            let result = client.call(SERVICE_CALL, &message).unwrap();
            assert_eq!(CallAnswer::parse(&result), Ok(CallAnswer::Here(&[3; 5000])), "{place:?}");
        }
    }
    let result = client.call(SERVICE_CALL, &head(Some(right)).encode(&[])).unwrap();
    assert_eq!(CallAnswer::parse(&result), Ok(CallAnswer::InRing(5000)), "zeroes, as they lie in the ring");
    drop(result);
    let malformed = client.call(SERVICE_CALL, &head(Some(right)).encode(&[1])).map(drop).unwrap_err();
    assert_eq!(malformed.was_executed(), Some(false), "{malformed}");
    assert_eq!(&*client.call(SERVICE_CALL, &head(None).encode(&[])).unwrap(), b"");
    server.join().unwrap();
    let mut found = [0; 8192];
    region.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
}

/// A node that gets no registration, whichever of them it is, does not start, says why, and leaves nothing: the next one
/// has its addresses.
#[test]
fn a_node_without_memory_does_not_start_and_leaves_nothing() {
    let tag = format!("{}-short", std::process::id());
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    for number in 1.. {
        let plan = FaultPlan { register_failure: When::Nth(number), ..FaultPlan::default() };
        let settings = config(Scheme::Shm, &tag, &["alice"], "alice");
        match Tier::within(&Fault::new(fabric.clone(), plan), settings) {
            Err(error @ JoinError::Register(_)) => {
                assert!(WithSources(&error).to_string().contains("raise the limit"), "{error}");
            }
            Err(other) => panic!("registration {number}: {other:?}"),
            Ok(node) => {
                assert!(number > 1, "the arena is registered");
                let region = node.malloc(100, Spec::here()).unwrap();
                assert_eq!(region.fetch_add(0, 1).unwrap(), 0);
                break;
            }
        }
    }
}
