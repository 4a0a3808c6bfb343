//! Two processes: their identity to each other, and the remains of a killed one.

use crate::common::{Child, Side, dial, local, poll_one, receive, role, send, soon, unique, write};
use dunlin_fabric::{
    Access, Address, CompletionStatus, Data, Fabric, Host, Link, LinkError, ListenError, Listener, Operation,
    QueuePairState, RealHost, Region, RegionKey, RemoteSlice, ThreadDomain, WaitMode, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};

fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

/// Returns names in the places where shared memory and sockets would leave traces.
fn traces() -> Vec<String> {
    let mut found = Vec::new();
    for place in ["/dev/shm", "/tmp", "/run"] {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains("dunlin") || name.contains("memfd") {
                found.push(format!("{place}/{name}"));
            }
        }
    }
    found
}

/// Runs a server that echoes messages and lets the client write, until it is killed.
fn echo_for_ever(address: &Address) {
    let fabric = fabric();
    let listener = fabric.listen(address).unwrap();
    let link = listener.accept(soon()).unwrap();
    let region = Region::new(fabric.register(1 << 20, Access::READ.with(Access::WRITE)).unwrap());
    let key = link.grant(region.memory(), Access::READ.with(Access::WRITE)).unwrap();
    let mut side = Side::new(&fabric, link, |_| {});
    side.send_endpoint();
    side.connect();
    side.link.send(&key.0.to_le_bytes()).unwrap();
    let arena = local(&fabric, 1 << 20);
    for id in 0..64 {
        receive(&mut side, &arena, id, 4096);
    }
    let mut found = Vec::new();
    let until = soon();
    while RealHost.now() < until {
        let armed = side.domain.arm(WaitMode::Event);
        if side.domain.poll(side.queue, &mut found, 64) == 0 {
            side.domain.wait(armed, until);
            continue;
        }
        side.domain.disarm(armed);
        for completion in found.drain(..) {
            if completion.status != CompletionStatus::Success {
                return;
            }
            let Some(buffer) = completion.buffer else { continue };
            let bytes = completion.bytes as usize;
            // Fails if the client does not take its answers and the queue is full, which only concerns that
            // client.
            let _ = side.domain.post(side.queue_pair, send(completion.id.0, &[&buffer[..bytes]], None, true));
            let target = dunlin_fabric::ReceiveTarget::QueuePair(side.queue_pair);
            side.domain.post_receive(target, completion.id, Some(buffer)).unwrap();
        }
    }
}

fn connect_to(fabric: &ShmFabric, address: &Address) -> (Side, RegionKey) {
    let link = dial(fabric, address);
    let mut side = Side::new(fabric, link, |_| {});
    side.send_endpoint();
    side.connect();
    let key = side.link.receive(soon()).unwrap();
    (side, RegionKey(u64::from_le_bytes(key.try_into().unwrap())))
}

#[test]
fn messages_and_memory_cross_between_processes() {
    if let Some((_, address)) = role() {
        return echo_for_ever(&address);
    }
    let address = unique("cross");
    let child = Child::start("messages_and_memory_cross_between_processes", "server", &address);
    let fabric = fabric();
    let (mut side, key) = connect_to(&fabric, &address);
    assert_eq!(side.link.peer().process, Some(child.id()));
    assert_ne!(child.id(), std::process::id());
    let arena = local(&fabric, 1 << 20);
    for number in 0..500u64 {
        let length = (number * 37 % 4000) as usize + 1;
        receive(&mut side, &arena, number, 4096);
        side.post(send(1000 + number, &[&vec![number as u8; length]], None, false)).unwrap();
        let got = poll_one(&mut side);
        assert_eq!((got.id, got.bytes as usize), (WorkId(number), length));
        assert!(got.buffer.unwrap()[..length].iter().all(|b| *b == number as u8));
        if number % 50 == 0 {
            side.post(write(2000, key, 0, &[b"x"], true)).unwrap();
            assert_eq!(poll_one(&mut side).id, WorkId(2000));
        }
    }
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i / 3) as u8).collect();
    let mut buffer = arena.reserve(bytes.len()).unwrap();
    buffer.copy_from_slice(&bytes);
    let operation = Operation::Write { data: Data::Buffer(buffer), key, offset: 4096, immediate: None };
    side.post(WorkRequest { id: WorkId(1), operation, signaled: true }).unwrap();
    assert_eq!(poll_one(&mut side).status, CompletionStatus::Success);
    let into = arena.reserve(bytes.len()).unwrap();
    let from = RemoteSlice { key, offset: 4096, length: bytes.len() as u32 };
    side.post(WorkRequest { id: WorkId(2), operation: Operation::Read { from, into }, signaled: true })
        .unwrap();
    assert_eq!(poll_one(&mut side).buffer.unwrap()[..], bytes);
}

#[test]
fn a_killed_server_leaves_nothing_and_its_client_learns_it() {
    if let Some((_, address)) = role() {
        return echo_for_ever(&address);
    }
    let address = unique("killed-server");
    let before = traces();
    let mut child =
        Child::start("a_killed_server_leaves_nothing_and_its_client_learns_it", "server", &address);
    let fabric = fabric();
    let (mut side, key) = connect_to(&fabric, &address);
    let arena = local(&fabric, 1 << 20);
    receive(&mut side, &arena, 1, 64);
    side.post(send(2, &[b"warm up"], None, true)).unwrap();
    let mut seen = [poll_one(&mut side), poll_one(&mut side)].map(|c| (c.id.0, c.status));
    seen.sort_unstable_by_key(|s| s.0);
    assert_eq!(seen, [(1, CompletionStatus::Success), (2, CompletionStatus::Success)]);
    // The server dies with work pending: RECVs are posted, and a message waits for room in its full ring.
    for id in 10..20 {
        receive(&mut side, &arena, id, 64);
    }
    // Stopped first, so that it takes nothing more and its state at death is known.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        rustix::process::Signal::STOP,
    )
    .unwrap();
    while std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().split(' ').nth(2)
        != Some("T")
    {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for id in 20..30 {
        side.post(send(id, &[&[1; 4096]], None, id == 29)).unwrap();
    }
    child.kill();
    let mut sends = Vec::new();
    let mut receives = Vec::new();
    let until = soon();
    while sends.len() < 10 || receives.len() < 10 {
        assert!(RealHost.now() < until, "the queue pair was not flushed");
        let armed = side.domain.arm(WaitMode::Event);
        let found = side.poll();
        if found.is_empty() {
            side.domain.wait(armed, until);
            continue;
        }
        side.domain.disarm(armed);
        for completion in found {
            if completion.id.0 < 20 {
                receives.push(completion.status);
            } else {
                sends.push((completion.id.0, completion.status));
            }
        }
    }
    assert!(receives.iter().all(|s| *s == CompletionStatus::Flushed));
    assert_eq!(sends[0], (20, CompletionStatus::TransportRetry));
    assert!(sends[1..].iter().all(|s| s.1 == CompletionStatus::Flushed));
    assert_eq!(sends.iter().map(|s| s.0).collect::<Vec<_>>(), (20..30).collect::<Vec<_>>());
    assert_eq!(side.domain.state(side.queue_pair), Some(QueuePairState::Error));
    assert!(!side.link.is_alive());
    assert!(matches!(side.link.receive(soon()), Err(LinkError::PeerGone(_))));
    assert!(side.post(write(99, key, 0, &[b"x"], true)).is_err());
    assert_eq!(traces(), before);
    // The name is free again at once.
    drop(fabric.listen(&address).unwrap());
}

#[test]
fn a_killed_client_is_noticed_by_its_server() {
    if let Some((_, address)) = role() {
        let fabric = fabric();
        let (mut side, key) = connect_to(&fabric, &address);
        let arena = local(&fabric, 1 << 20);
        let until = soon();
        // Writes, reads and sends without a pause, until it is killed during one of them.
        while RealHost.now() < until {
            if let Ok(buffer) = arena.reserve(1 << 18) {
                let operation =
                    Operation::Write { data: Data::Buffer(buffer), key, offset: 0, immediate: None };
                let _ = side.post(WorkRequest { id: WorkId(1), operation, signaled: true });
            }
            let _ = side.post(send(2, &[&[7; 3000]], None, true));
            side.poll();
        }
        return;
    }
    let address = unique("killed-client");
    let before = traces();
    let fabric = fabric();
    let listener = fabric.listen(&address).unwrap();
    for _ in 0..3 {
        let mut child = Child::start("a_killed_client_is_noticed_by_its_server", "client", &address);
        let link = listener.accept(soon()).unwrap();
        let region = Region::new(fabric.register(1 << 20, Access::READ.with(Access::WRITE)).unwrap());
        let key = link.grant(region.memory(), Access::READ.with(Access::WRITE)).unwrap();
        let mut side = Side::new(&fabric, link, |_| {});
        side.send_endpoint();
        side.connect();
        side.link.send(&key.0.to_le_bytes()).unwrap();
        let arena = local(&fabric, 1 << 20);
        for id in 0..64 {
            receive(&mut side, &arena, id, 4096);
        }
        for _ in 0..50 {
            let got = poll_one(&mut side);
            assert_eq!((got.status, got.bytes), (CompletionStatus::Success, 3000));
            assert_eq!(got.buffer.unwrap()[..3000], [7; 3000]);
        }
        child.kill();
        let until = soon();
        let mut left = 14;
        while left > 0 {
            assert!(RealHost.now() < until, "the queue pair was not flushed");
            for completion in side.poll() {
                left -= 1;
                assert!(matches!(completion.status, CompletionStatus::Success | CompletionStatus::Flushed));
            }
        }
        assert_eq!(side.domain.state(side.queue_pair), Some(QueuePairState::Error));
    }
    assert_eq!(traces(), before);
}

#[test]
fn two_processes_cannot_listen_on_one_name() {
    if let Some((_, address)) = role() {
        let refused = fabric().listen(&address);
        assert!(matches!(refused, Err(ListenError::InUse { .. })), "{refused:?}");
        return;
    }
    let address = unique("twice");
    let fabric = fabric();
    let listener = fabric.listen(&address).unwrap();
    assert!(matches!(fabric.listen(&address), Err(ListenError::InUse { .. })));
    let mut child = Child::start("two_processes_cannot_listen_on_one_name", "second", &address);
    assert!(child.succeeds());
    drop(listener);
    // A child that another test has just forked holds a copy of every descriptor until it executes its
    // program.
    let until = soon();
    while fabric.listen(&address).is_err() {
        assert!(RealHost.now() < until, "the name is not free again");
        std::thread::yield_now();
    }
}
