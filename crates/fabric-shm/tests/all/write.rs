//! Two domains in one process: connect, WRITE, READ, atomics, and refused requests.

use crate::common::{Pair, poll_one, write};
use dunlin_fabric::{
    Access, Arena, CompletionStatus, Data, Fabric, Link, Opcode, Operation, PostError, QueuePairState,
    Region, RegionKey, RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};

#[test]
fn an_inline_write_lands_and_unsignaled_ones_make_no_completion() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    pair.a.post(write(1, key, 64, &[b"hello", b" ", b"world"], false)).unwrap();
    let mut out = [0; 11];
    region.copy_out(64, &mut out);
    assert_eq!(&out, b"hello world");
    assert!(pair.a.poll().is_empty());
    pair.a.post(write(2, key, 128, &[&[7; 64]], true)).unwrap();
    assert_eq!(region.line_out(128), [7; 64]);
    let done = poll_one(&mut pair.a);
    assert_eq!((done.id, done.status, done.opcode), (WorkId(2), CompletionStatus::Success, Opcode::Write));
}

#[test]
fn the_send_queue_fills_and_a_polled_completion_frees_it() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    let depth = pair.a.domain.send_room(pair.a.queue_pair);
    for number in 1..depth {
        pair.a.post(write(u64::from(number), key, 0, &[b"x"], false)).unwrap();
    }
    assert_eq!(pair.a.domain.send_room(pair.a.queue_pair), 1);
    pair.a.post(write(99, key, 0, &[b"x"], true)).unwrap();
    assert_eq!(pair.a.post(write(100, key, 0, &[b"x"], false)), Err(PostError::QueueFull));
    assert_eq!(poll_one(&mut pair.a).id, WorkId(99));
    assert_eq!(pair.a.domain.send_room(pair.a.queue_pair), depth);
}

#[test]
fn read_and_atomics_bring_back_what_is_there() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::READ.with(Access::ATOMIC)).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::READ.with(Access::ATOMIC)).unwrap();
    pair.settle();
    region.copy_in(100, b"payload");
    region.store(8, 40);
    let arena = Arena::new(pair.fabric.register(4096, Access::LOCAL).unwrap()).unwrap();
    let into = arena.reserve(7).unwrap();
    let from = RemoteSlice { key, offset: 100, length: 7 };
    pair.a.post(request(1, Operation::Read { from, into })).unwrap();
    let done = poll_one(&mut pair.a);
    assert_eq!((done.status, done.bytes), (CompletionStatus::Success, 7));
    assert_eq!(&done.buffer.unwrap()[..], b"payload");
    pair.a.post(request(2, Operation::FetchAdd { key, offset: 8, add: 2 })).unwrap();
    assert_eq!(poll_one(&mut pair.a).value, 40);
    pair.a.post(request(3, Operation::CompareSwap { key, offset: 8, expected: 42, swap: 7 })).unwrap();
    assert_eq!(poll_one(&mut pair.a).value, 42);
    pair.a.post(request(4, Operation::CompareSwap { key, offset: 8, expected: 42, swap: 9 })).unwrap();
    assert_eq!(poll_one(&mut pair.a).value, 7);
    assert_eq!(region.load(8), 7);
}

fn request<'a>(
    id: u64,
    operation: Operation<'a, dunlin_fabric_shm::ShmMemory>,
) -> WorkRequest<'a, dunlin_fabric_shm::ShmMemory> {
    WorkRequest { id: WorkId(id), operation, signaled: true }
}

#[test]
fn what_was_not_granted_is_refused_and_breaks_the_queue_pair() {
    type Bad = fn(RegionKey) -> (RegionKey, u64, CompletionStatus);
    let cases: [Bad; 5] = [
        |key| (RegionKey(key.0 + (7 << 32)), 0, CompletionStatus::RemoteAccess),
        |key| (RegionKey(key.0 + 2), 0, CompletionStatus::RemoteAccess),
        |key| (key, 4090, CompletionStatus::RemoteAccess),
        |key| (key, u64::MAX - 3, CompletionStatus::RemoteAccess),
        |key| (key, 4, CompletionStatus::RemoteInvalidRequest),
    ];
    for bad in cases {
        let mut pair = Pair::new();
        let memory = pair.fabric.register(4096, Access::ATOMIC.with(Access::WRITE)).unwrap();
        let region = Region::new(memory);
        let key = pair.b.link.grant(region.memory(), Access::ATOMIC).unwrap();
        pair.settle();
        let (key, offset, status) = bad(key);
        pair.a.post(request(1, Operation::FetchAdd { key, offset, add: 1 })).unwrap();
        assert_eq!(poll_one(&mut pair.a).status, status);
        assert_eq!(pair.a.domain.state(pair.a.queue_pair), Some(QueuePairState::Error));
        let after = request(2, Operation::FetchAdd { key, offset: 0, add: 1 });
        assert_eq!(pair.a.post(after), Err(PostError::QueuePairError));
    }
}

#[test]
fn a_write_without_permission_or_after_the_grant_ended_is_refused() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::READ.with(Access::WRITE)).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::READ).unwrap();
    pair.settle();
    pair.a.post(write(1, key, 0, &[b"x"], false)).unwrap();
    assert_eq!(poll_one(&mut pair.a).status, CompletionStatus::RemoteAccess);

    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    pair.a.post(write(1, key, 0, &[b"x"], false)).unwrap();
    pair.b.link.revoke(key);
    pair.settle();
    pair.a.post(write(2, key, 0, &[b"y"], false)).unwrap();
    let done = poll_one(&mut pair.a);
    assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::RemoteAccess));
    let mut out = [0];
    region.copy_out(0, &mut out);
    assert_eq!(&out, b"x");
}

#[test]
fn too_much_inline_is_not_taken() {
    let mut pair = Pair::new();
    let long = vec![0; 8193];
    let refused = pair.a.post(write(1, RegionKey(0), 0, &[&long], false));
    assert_eq!(refused, Err(PostError::Inline { length: 8193, limit: 8192 }));
}

#[test]
fn memory_of_no_remote_access_cannot_be_granted() {
    let pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::READ).unwrap());
    assert!(pair.b.link.grant(region.memory(), Access::WRITE).is_err());
    let _ = Data::<dunlin_fabric_shm::ShmMemory>::Inline(&[]);
}

#[test]
fn keys_of_two_links_differ() {
    let (one, two) = (Pair::new(), Pair::new());
    let keys = [&one, &two].map(|pair| {
        let memory = std::sync::Arc::new(pair.fabric.register(4096, Access::WRITE).unwrap());
        [(); 20].map(|()| pair.a.link.grant(&memory, Access::WRITE).unwrap())
    });
    assert!(keys[0].iter().all(|key| !keys[1].contains(key)));
}

#[test]
fn a_read_on_a_dead_link_gives_its_buffer_back() {
    let mut pair = Pair::new();
    let arena = Arena::new(pair.fabric.register(4096, Access::LOCAL).unwrap()).unwrap();
    pair.a.link.close();
    let from = RemoteSlice { key: RegionKey(1), offset: 0, length: 8 };
    pair.a.post(request(1, Operation::Read { from, into: arena.reserve(8).unwrap() })).unwrap();
    let done = poll_one(&mut pair.a);
    assert_eq!((done.status, done.opcode), (CompletionStatus::TransportRetry, Opcode::Read));
    assert!(done.buffer.is_some());
}

#[test]
fn what_is_posted_on_a_dead_link_does_not_overtake() {
    let mut pair = Pair::new();
    for id in 1..=8 {
        pair.a.post(crate::common::send(id, &[&[7; 4096]], None, true)).unwrap();
    }
    pair.a.link.close();
    pair.a.post(crate::common::send(9, &[b"late"], None, true)).unwrap();
    let mut ids = Vec::new();
    while ids.len() < 9 {
        ids.extend(pair.a.poll().into_iter().map(|c| c.id.0));
    }
    assert_eq!(ids, (1..=9).collect::<Vec<u64>>());
}
