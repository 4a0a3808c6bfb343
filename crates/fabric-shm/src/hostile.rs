//! Tests with peers that violate the protocol. They use frames and sockets directly.

use crate::frame::{Frame, READ_BUFFER, Refusal, VERSION};
use crate::memory::ShmMemory;
use crate::{AllowPolicy, ShmConfig, ShmFabric, ShmLink};
use dunlin_fabric::{
    AcceptError, Access, Address, CompletionStatus, CreateError, DialError, Endpoint, Fabric, Host, Link,
    LinkError, Listener, Memory, QueuePairConfig, RealHost, ReceiveTarget, RegionKey, Scheme, ThreadDomain,
    Transport, WorkId,
};
use dunlin_fabric_control::unix::{self, Received};
use dunlin_fabric_control::wait;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

fn soon() -> u64 {
    RealHost.now() + 10_000_000_000
}

fn unique() -> Address {
    Address::new(Scheme::Shm, &format!("hostile-{}-{:x}", std::process::id(), RealHost.random())).unwrap()
}

fn say(socket: &OwnedFd, frame: &Frame<'_>, descriptor: Option<&OwnedFd>) {
    let (head, body) = frame.encode();
    unix::send(socket.as_fd(), head.as_slice(), body, descriptor.map(|d| d.as_fd())).unwrap();
}

/// Returns the next frame's bytes, or `None` when the other side has closed.
fn hear(socket: &OwnedFd) -> Option<Vec<u8>> {
    hear_with_descriptor(socket).map(|(bytes, _)| bytes)
}

/// As [`hear`], with the descriptor that arrived with the frame.
fn hear_with_descriptor(socket: &OwnedFd) -> Option<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = vec![0; READ_BUFFER];
    let until = soon();
    loop {
        match unix::receive(socket.as_fd(), &mut buffer).unwrap() {
            Received::Frame { length, descriptor } => {
                return Some((buffer[..length].to_vec(), descriptor));
            }
            Received::Empty => {
                assert!(wait(socket.as_fd(), false, until - RealHost.now()), "silence")
            }
            Received::End | Received::Oversized => return None,
        }
    }
}

/// Returns the socket of a peer whose every byte the test chooses, and the victim's link to it.
fn intruder() -> (OwnedFd, ShmLink, ShmFabric) {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique();
    let listener = fabric.listen(&address).unwrap();
    let socket = unix::connect(address.name()).unwrap();
    say(&socket, &Frame::Hello { version: VERSION, secret: [1, 2] }, None);
    let link = listener.accept(soon()).unwrap();
    assert!(matches!(Frame::decode(&hear(&socket).unwrap()), Ok(Frame::Hello { .. })));
    (socket, link, fabric)
}

fn closes(link: &ShmLink, reason: &str) {
    match link.receive(soon()) {
        Err(LinkError::PeerGone(why)) => assert!(why.contains(reason), "{why}"),
        other => panic!("{other:?}"),
    }
}

fn grant(key: u64, length: u64, access: Access) -> Frame<'static> {
    Frame::Grant { key: RegionKey(key), length, access, registered: access, internal: false }
}

#[test]
fn bad_grants_close_the_link_with_a_reason() {
    let memory = ShmMemory::new(4096, Access::WRITE).unwrap();
    let sealed = memory.descriptor().unwrap().unwrap();
    let loose = rustix::fs::memfd_create(c"loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 4096).unwrap();
    let file =
        rustix::fs::open("/proc/self/exe", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    // Sealed as required, but opened so that it cannot be mapped for writing.
    let narrow = reopened(&sealed, rustix::fs::OFlags::RDONLY).unwrap();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let cases: [(Frame<'_>, Option<&OwnedFd>, &str); 9] = [
        (grant(1, 4096, Access::WRITE), Some(&narrow), "cannot be mapped"),
        (grant(1, 4096, Access::WRITE), Some(&pipe), "seals"),
        (grant(1, 4096, Access::WRITE), Some(&loose), "seals"),
        (grant(1, 4096, Access::WRITE), Some(&file), "seals"),
        (grant(1, 8192, Access::WRITE), Some(&sealed), "4096 bytes"),
        (grant(1, 0, Access::WRITE), Some(&sealed), "empty"),
        (grant(1, u64::MAX, Access::WRITE), Some(&sealed), "limit"),
        (grant(1, 4096, Access::READ), Some(&sealed), "seals"),
        (grant(1, 4096, Access::WRITE), None, "without a descriptor"),
    ];
    for (frame, descriptor, reason) in cases {
        let (socket, link, _fabric) = intruder();
        say(&socket, &frame, descriptor);
        closes(&link, reason);
        assert_eq!(hear(&socket), None);
    }
    let (socket, link, _fabric) = intruder();
    say(&socket, &grant(1, 4096, Access::WRITE), Some(&sealed));
    say(&socket, &grant(1, 4096, Access::WRITE), Some(&sealed));
    closes(&link, "in use");
}

/// Opens the same file through another descriptor, as any process with the first one can.
fn reopened(descriptor: &OwnedFd, flags: rustix::fs::OFlags) -> rustix::io::Result<OwnedFd> {
    use rustix::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

#[test]
fn what_is_granted_for_reading_cannot_be_written_by_any_way_that_the_peer_has() {
    use std::sync::atomic::Ordering;
    let (socket, link, _fabric) = intruder();
    let memory = Arc::new(ShmMemory::new(4096, Access::READ).unwrap());
    link.grant(&memory, Access::READ).unwrap();
    let (frame, descriptor) = hear_with_descriptor(&socket).unwrap();
    assert!(matches!(Frame::decode(&frame), Ok(Frame::Grant { length: 4096, .. })));
    let given = descriptor.expect("a grant comes with a descriptor");
    // Some kernels refuse to reopen it. Where it succeeds, the seals must hold.
    let mut ways = vec![given.try_clone().unwrap()];
    ways.extend(reopened(&given, rustix::fs::OFlags::RDWR));
    for way in &ways {
        assert!(crate::memory::Mapping::shared(way.as_fd(), 4096, true).is_err(), "mapped for writing");
        assert!(rustix::io::pwrite(way, b"x", 0).is_err(), "written");
        assert!(rustix::fs::ftruncate(way, 0).is_err() && rustix::fs::ftruncate(way, 1 << 20).is_err());
        let punched = rustix::fs::fallocate(
            way,
            rustix::fs::FallocateFlags::PUNCH_HOLE.union(rustix::fs::FallocateFlags::KEEP_SIZE),
            0,
            4096,
        );
        assert!(punched.is_err(), "a hole was punched");
    }
    memory.mapping().word(0).store(7, Ordering::Relaxed);
    let read = crate::memory::Mapping::shared(given.as_fd(), 4096, false).unwrap();
    assert_eq!(read.word(0).load(Ordering::Relaxed), 7);
}

#[test]
fn garbage_closes_the_link_and_a_silent_or_wrong_greeting_is_dropped() {
    for garbage in [&b"\xff garbage"[..], &[4, 1, 2], &[7; READ_BUFFER]] {
        let (socket, link, _fabric) = intruder();
        unix::send(socket.as_fd(), garbage, b"", None).unwrap();
        closes(&link, "frame");
    }
    let config =
        ShmConfig { greeting_patience: std::time::Duration::from_millis(50), ..ShmConfig::default() };
    let fabric = ShmFabric::new(config).unwrap();
    let address = unique();
    let listener = fabric.listen(&address).unwrap();
    let silent = unix::connect(address.name()).unwrap();
    assert!(matches!(Frame::decode(&hear(&silent).unwrap()), Ok(Frame::Hello { .. })));
    assert_eq!(hear(&silent), None, "dropped");
    let wrong = unix::connect(address.name()).unwrap();
    unix::send(wrong.as_fd(), b"hello, who is there?", b"", None).unwrap();
    hear(&wrong);
    assert_eq!(hear(&wrong), None, "dropped");
    let other = unix::connect(address.name()).unwrap();
    say(&other, &Frame::Hello { version: VERSION + 1, secret: [0; 2] }, None);
    hear(&other);
    assert_eq!(Frame::decode(&hear(&other).unwrap()), Ok(Frame::Refused(Refusal::Version(VERSION))));
    assert!(matches!(listener.accept(RealHost.now()), Err(AcceptError::TimedOut)));
}

#[test]
fn a_listener_of_another_version_and_of_another_user_are_told_apart() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique();
    let listener = unix::listen(address.name(), 1).unwrap();
    let stranger = std::thread::spawn(move || {
        assert!(wait(listener.as_fd(), false, 10_000_000_000));
        let socket = unix::accept(listener.as_fd()).unwrap();
        say(&socket, &Frame::Hello { version: 99, secret: [0; 2] }, None);
        hear(&socket);
    });
    let refused = fabric.dial(&address, soon());
    assert!(matches!(refused, Err(DialError::Version { ours: VERSION, theirs: 99, .. })), "{refused:?}");
    stranger.join().unwrap();

    let config = ShmConfig { allow: AllowPolicy::Users(vec![4_000_000]), ..ShmConfig::default() };
    let strict = ShmFabric::new(config).unwrap();
    let address = unique();
    let _listener = strict.listen(&address).unwrap();
    let refused = fabric.dial(&address, soon());
    assert!(matches!(refused, Err(DialError::Permission { .. })), "{refused:?}");
    assert!(matches!(fabric.dial(&unique(), soon()), Err(DialError::NobodyListens { .. })));
}

#[test]
fn a_listener_that_does_not_greet_is_named() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    for word in [&b""[..], b"hello", b"HTTP/1.1 400 Bad Request"] {
        let address = unique();
        let listener = unix::listen(address.name(), 1).unwrap();
        let stranger = std::thread::spawn(move || {
            assert!(wait(listener.as_fd(), false, 10_000_000_000));
            let socket = unix::accept(listener.as_fd()).unwrap();
            if !word.is_empty() {
                unix::send(socket.as_fd(), word, b"", None).unwrap();
            }
        });
        let refused = fabric.dial(&address, soon()).unwrap_err();
        match &refused {
            DialError::NoGreeting { address: named, .. } if *named == address => {
                assert!(refused.to_string().contains("see whether one listens there"), "{refused}");
                assert!(!word.starts_with(b"HTTP"), "{refused}");
            }
            DialError::WrongDoor { address: named, found } if *named == address => {
                assert!(found.starts_with("this is a web server (HTTP)"), "{found}");
            }
            other => panic!("{other:?}"),
        }
        stranger.join().unwrap();
    }
}

#[test]
fn a_visitor_with_another_protocol_is_refused_in_that_protocol() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique();
    let listener = fabric.listen(&address).unwrap();
    for (words, begin) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], &b"HTTP/1.1 400 "[..]),
        (b"\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05\0", b"\x80\x01\0\x03\0\0\0\x04echo\0\0\0\x05"),
        (b"DunlinAQ", b"DunlinNO"),
        (b"hello", b""),
        (&[0; 1000], b""),
    ] {
        let socket = unix::connect(address.name()).unwrap();
        assert!(matches!(Frame::decode(&hear(&socket).unwrap()), Ok(Frame::Hello { .. })));
        unix::send(socket.as_fd(), words, b"", None).unwrap();
        let answer = hear(&socket).unwrap_or_default();
        assert!(answer.starts_with(begin), "{}", answer.escape_ascii());
        assert_eq!(answer.is_empty(), begin.is_empty());
    }
    let _link = fabric.dial(&address, soon()).unwrap();
    assert!(listener.accept(soon()).unwrap().is_alive());
}

#[test]
fn a_peer_that_floods_is_left_to_wait_and_loses_nothing() {
    let (socket, link, _fabric) = intruder();
    let payload = [3u8; 8000];
    let mut said = 0u32;
    // Sends until the socket pushes back: the inbox and the kernel's buffer are full.
    loop {
        let (head, body) = Frame::Message(&payload).encode();
        match unix::send(socket.as_fd(), head.as_slice(), body, None) {
            Ok(()) => said += 1,
            Err(rustix::io::Errno::AGAIN) if wait(socket.as_fd(), true, 200_000_000) => {}
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(said < 10_000, "unbounded");
    }
    drop(socket);
    for _ in 0..said {
        assert_eq!(link.receive(soon()).unwrap(), payload);
    }
    closes(&link, "closed");
}

/// A victim's queue pair, connected to rings into which the test writes arbitrary values.
struct Victim {
    domain: crate::ShmDomain,
    queue: dunlin_fabric::CompletionQueueId,
    queue_pair: dunlin_fabric::QueuePairId,
    /// The victim's inbound ring and its doorbell, as its peer maps them.
    mapped: Vec<Arc<crate::memory::Import>>,
    /// The ring that the victim writes to, whose first line carries the acknowledgements.
    ours: Arc<ShmMemory>,
    /// The keys of that ring and of its doorbell.
    granted: [RegionKey; 2],
    links: (ShmLink, ShmLink),
}

fn victim() -> Victim {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique();
    let listener = fabric.listen(&address).unwrap();
    let attacker = fabric.dial(&address, soon()).unwrap();
    let link = listener.accept(soon()).unwrap();
    let mut domain = fabric.domain().unwrap();
    let queue = domain.create_completion_queue(256, true).unwrap();
    let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).unwrap();
    let endpoint = domain.endpoint(queue_pair, &link).unwrap();
    link.send(&endpoint.0).unwrap();
    let theirs = crate::endpoint::Address::decode(&Endpoint(attacker.receive(soon()).unwrap())).unwrap();
    let mapped =
        [theirs.ring, theirs.doorbell].map(|key| attacker.shared().import_internal(key).unwrap()).to_vec();
    let access = Access::READ.with(Access::WRITE);
    let ours = Arc::new(ShmMemory::new(16384, access).unwrap());
    let bell = Arc::new(ShmMemory::new(crate::doorbell::LENGTH as u64, access).unwrap());
    let ring = attacker.shared().grant_internal(&ours, access, true).unwrap();
    let doorbell = attacker.shared().grant_internal(&bell, access, true).unwrap();
    let forged = crate::endpoint::Address {
        transport: Transport::ReliableConnection,
        name: crate::frame::QueuePairName { domain: 1, queue_pair: 1 },
        ring,
        doorbell,
    };
    attacker.send(&forged.encode().0).unwrap();
    let forged = Endpoint(link.receive(soon()).unwrap());
    domain.connect(queue_pair, &link, &forged).unwrap();
    Victim { domain, queue, queue_pair, mapped, ours, granted: [ring, doorbell], links: (attacker, link) }
}

#[test]
fn no_work_request_reaches_a_ring_or_a_doorbell() {
    use dunlin_fabric::{Arena, Data, Operation, RemoteSlice, WorkRequest};
    let arena = Arena::new(ShmMemory::new(4096, Access::LOCAL).unwrap()).unwrap();
    let region = dunlin_fabric::Region::new(ShmMemory::new(4096, Access::WRITE).unwrap());
    region.store(0, 7);
    for which in 0..2 {
        for kind in 0..6 {
            let mut victim = victim();
            let key = victim.granted[which];
            let operation = match kind {
                0 => Operation::Write { data: Data::Inline(&[b"hello"]), key, offset: 0, immediate: None },
                1 => Operation::Read {
                    from: RemoteSlice { key, offset: 0, length: 8 },
                    into: arena.reserve(8).unwrap(),
                },
                2 => Operation::FetchAdd { key, offset: 0, add: 1 },
                3 => Operation::ReadInto {
                    from: RemoteSlice { key, offset: 0, length: 8 },
                    into: region.range(0, 8).unwrap(),
                },
                4 => {
                    let data = Data::Region(region.range(0, 8).unwrap());
                    Operation::Write { data, key, offset: 0, immediate: None }
                }
                _ => Operation::CompareSwap { key, offset: 0, expected: 0, swap: 1 },
            };
            let request = WorkRequest { id: WorkId(1), operation, signaled: false };
            victim.domain.post(victim.queue_pair, request).unwrap();
            let mut found = Vec::new();
            victim.domain.poll(victim.queue, &mut found, 16);
            assert_eq!(found[0].status, CompletionStatus::RemoteAccess, "{which} {kind}");
            assert_eq!(victim.ours.mapping().word(0).load(std::sync::atomic::Ordering::Relaxed), 0);
            assert_eq!(region.load(0), 7);
        }
    }
}

#[test]
fn a_tampered_doorbell_ends_no_sleep_for_ever() {
    use dunlin_fabric::{WaitMode, Waker};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    let mut victim = victim();
    let bell = Arc::clone(&victim.mapped[1]);
    let ended = Arc::new(AtomicBool::new(false));
    let (say, hear) = std::sync::mpsc::channel();
    let tampering = Arc::clone(&ended);
    let attacker = std::thread::spawn(move || {
        // A ring without a wake-up, and a sleeping state without a sleeper.
        for state in [3, 2].into_iter().cycle() {
            if tampering.load(Ordering::Relaxed) {
                return;
            }
            bell.mapping().half_word(64).store(state, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let sleeper = std::thread::spawn(move || {
        let waker = victim.domain.waker();
        for round in 0..20 {
            let armed = victim.domain.arm(WaitMode::Event);
            match round % 2 {
                0 => victim.domain.wait(armed, u64::MAX),
                _ => waker.wait(armed, RealHost.now() + 1_000_000_000),
            };
            say.send(()).unwrap();
        }
    });
    for _ in 0..20 {
        hear.recv_timeout(Duration::from_secs(10))
            .expect("a sleep ends although the doorbell was tampered with");
    }
    ended.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    sleeper.join().unwrap();
}

#[test]
fn telling_a_peer_that_is_gone_loses_nothing_that_it_said() {
    for _ in 0..100 {
        let (socket, link, _fabric) = intruder();
        say(&socket, &Frame::Message(b"last words"), None);
        drop(socket);
        link.shared().tell_closed(crate::frame::QueuePairName { domain: 1, queue_pair: 1 });
        assert_eq!(link.receive(soon()).unwrap(), b"last words");
    }
}

#[test]
fn memory_of_a_user_is_no_ring() {
    let Victim { mut domain, queue, links: (attacker, link), .. } = victim();
    let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).unwrap();
    domain.endpoint(queue_pair, &link).unwrap();
    let access = Access::READ.with(Access::WRITE);
    let ring = attacker.grant(&Arc::new(ShmMemory::new(16384, access).unwrap()), access).unwrap();
    let bell = Arc::new(ShmMemory::new(crate::doorbell::LENGTH as u64, access).unwrap());
    let doorbell = attacker.shared().grant_internal(&bell, access, true).unwrap();
    let name = crate::frame::QueuePairName { domain: 1, queue_pair: 1 };
    let forged = crate::endpoint::Address { transport: Transport::ReliableConnection, name, ring, doorbell };
    let refused = domain.connect(queue_pair, &link, &forged.encode());
    assert!(matches!(refused, Err(CreateError::Endpoint(_))), "{refused:?}");
}

#[test]
fn garbage_in_rings_doorbells_and_acknowledgements_harms_nobody() {
    use dunlin_fabric::{Arena, Data, Operation, WaitMode, WorkRequest};
    use std::sync::atomic::Ordering;
    for seed in 1..40u64 {
        let mut victim = victim();
        let arena = Arena::new(ShmMemory::new(65536, Access::LOCAL).unwrap()).unwrap();
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 20
        };
        let mut found = Vec::new();
        for step in 0..300 {
            for import in &victim.mapped {
                let words = import.mapping().length() / 8;
                let at = random() as usize % if step % 2 == 0 { words } else { 24.min(words) };
                import.mapping().word(at * 8).store(random(), Ordering::Relaxed);
            }
            if step % 7 == 0 {
                let word = victim.ours.mapping().word(random() as usize % 3 * 8);
                word.store(random() % 4, Ordering::Relaxed);
            }
            let data = Data::Inline(&[b"hello"]);
            let operation = Operation::Send { data, immediate: None, to: None };
            // Refused once the queue is full or the queue pair has detected the violation.
            let _ = victim
                .domain
                .post(victim.queue_pair, WorkRequest { id: WorkId(step), operation, signaled: true });
            if let Ok(buffer) = arena.reserve(64) {
                let target = ReceiveTarget::QueuePair(victim.queue_pair);
                let _ = victim.domain.post_receive(target, WorkId(step), Some(buffer));
            }
            let armed = victim.domain.arm(WaitMode::Event);
            victim.domain.poll(victim.queue, &mut found, 16);
            found.clear();
            if step % 50 == 0 {
                victim.domain.wait(armed, RealHost.now() + 1_000_000);
            } else {
                victim.domain.disarm(armed);
            }
        }
    }
}

#[test]
fn a_forged_acknowledgement_breaks_the_queue_pair() {
    use dunlin_fabric::{Data, Operation, WorkRequest};
    let mut victim = victim();
    let operation = Operation::Send { data: Data::Inline(&[b"hello"]), immediate: None, to: None };
    victim.domain.post(victim.queue_pair, WorkRequest { id: WorkId(1), operation, signaled: true }).unwrap();
    victim.ours.mapping().word(0).store(1_000_000, std::sync::atomic::Ordering::Release);
    let mut found = Vec::new();
    victim.domain.poll(victim.queue, &mut found, 16);
    assert_eq!(found[0].status, CompletionStatus::RemoteOperation);
    assert_eq!(victim.ours.length(), 16384);
}
