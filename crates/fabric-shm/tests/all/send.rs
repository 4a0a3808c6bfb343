//! SEND, WRITE_WITH_IMM, RECV, shared receive queues, datagrams: in one process.

use crate::common::{Pair, Side, local, poll_one, receive, send, soon, unique, write};
use dunlin_fabric::{
    Access, Completion, CompletionStatus, Data, Endpoint, Fabric, Gather, Host, Link, Listener, Opcode,
    Operation, PostError, QueuePairState, RealHost, ReceiveTarget, Region, RegionKey, RnrRetry, ThreadDomain,
    Transport, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric, ShmMemory};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Polls both sides until one has a completion.
fn exchange(pair: &mut Pair) -> (Vec<Completion<ShmMemory>>, Vec<Completion<ShmMemory>>) {
    let until = soon();
    loop {
        let b = pair.b.poll();
        let a = pair.a.poll();
        if !a.is_empty() || !b.is_empty() {
            return (a, b);
        }
        assert!(RealHost.now() < until, "no completion came");
    }
}

#[test]
fn a_message_arrives_with_its_immediate_and_is_acknowledged() {
    let mut pair = Pair::new();
    let arena = local(&pair.fabric, 65536);
    receive(&mut pair.b, &arena, 7, 100);
    pair.a.post(send(1, &[b"hello ", b"world"], Some(0xabcd_1234), true)).unwrap();
    assert!(pair.a.poll().is_empty(), "not done before the receiver has taken it");
    let got = poll_one(&mut pair.b);
    assert_eq!((got.id, got.status, got.opcode), (WorkId(7), CompletionStatus::Success, Opcode::Receive));
    assert_eq!((got.bytes, got.immediate), (11, Some(0xabcd_1234)));
    assert_eq!(&got.buffer.unwrap()[..11], b"hello world");
    let done = poll_one(&mut pair.a);
    assert_eq!((done.id, done.status, done.opcode), (WorkId(1), CompletionStatus::Success, Opcode::Send));
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    for transport in [Transport::ReliableConnection, Transport::UnreliableConnection] {
        let mut pair = Pair::with(|c| c.transport = transport);
        let out = local(&pair.fabric, 1 << 20);
        let arena = local(&pair.fabric, 1 << 20);
        let lengths = [0, 1, 48, 49, 64, 112, 113, 4096, 8080, 8176, 8177, 16_384, 100_000, 300_000, 5];
        for (number, length) in lengths.into_iter().enumerate() {
            let bytes = pattern(length);
            receive(&mut pair.b, &arena, number as u64, length.max(1));
            let mut buffer = out.reserve(length.max(1)).unwrap();
            buffer.set_length(length);
            buffer.copy_from_slice(&bytes);
            let operation = Operation::Send { data: Data::Buffer(buffer), immediate: None, to: None };
            pair.a.post(WorkRequest { id: WorkId(1000 + number as u64), operation, signaled: true }).unwrap();
            let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
            while from_a.is_empty() || from_b.is_empty() {
                let (a, b) = exchange(&mut pair);
                from_a.extend(a);
                from_b.extend(b);
            }
            let got = from_b.remove(0);
            assert_eq!((got.id.0, got.bytes as usize), (number as u64, length), "{transport:?}");
            assert_eq!(got.buffer.unwrap()[..length], bytes, "{transport:?} {length}");
            assert_eq!((from_a[0].id.0, from_a[0].status), (1000 + number as u64, CompletionStatus::Success));
        }
    }
}

#[test]
fn gathered_buffers_arrive_as_one_message() {
    let mut pair = Pair::new();
    let out = local(&pair.fabric, 65536);
    let arena = local(&pair.fabric, 65536);
    receive(&mut pair.b, &arena, 1, 5000);
    let mut gather = Gather::default();
    for (mark, length) in [(1u8, 30), (2, 50), (3, 4000), (4, 1)] {
        let mut buffer = out.reserve(length).unwrap();
        buffer.fill(mark);
        gather.push(buffer).unwrap();
    }
    let operation = Operation::Send { data: Data::Gather(gather), immediate: None, to: None };
    pair.a.post(WorkRequest { id: WorkId(1), operation, signaled: false }).unwrap();
    let got = poll_one(&mut pair.b);
    let expected = [vec![1; 30], vec![2; 50], vec![3; 4000], vec![4; 1]].concat();
    assert_eq!(got.buffer.unwrap()[..got.bytes as usize], expected);
}

#[test]
fn a_full_ring_defers_work_in_order_and_polling_goes_on_with_it() {
    let mut pair = Pair::with(|c| c.inbound_bytes = 4096);
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    let arena = local(&pair.fabric, 1 << 20);
    for number in 0..100 {
        receive(&mut pair.b, &arena, number, 1024);
    }
    for number in 0..100u64 {
        let payload = [number as u8; 1000];
        pair.a.post(send(number, &[&payload], None, number == 99)).unwrap();
    }
    pair.a.post(write(200, key, 0, &[b"after"], true)).unwrap();
    let mut seen = [0; 5];
    region.copy_out(0, &mut seen);
    assert_eq!(&seen, &[0; 5], "a WRITE does not overtake messages that wait for room");
    let (mut got, mut done) = (Vec::new(), Vec::new());
    while got.len() < 100 || done.len() < 2 {
        let (a, b) = exchange(&mut pair);
        done.extend(a.into_iter().map(|c| (c.id.0, c.status)));
        got.extend(b);
    }
    for (number, completion) in got.into_iter().enumerate() {
        assert_eq!(completion.id.0, number as u64);
        assert_eq!(completion.buffer.unwrap()[..1000], [number as u8; 1000]);
    }
    assert_eq!(done, [(99, CompletionStatus::Success), (200, CompletionStatus::Success)]);
    region.copy_out(0, &mut seen);
    assert_eq!(&seen, b"after");
}

#[test]
fn write_with_immediate_consumes_a_recv_and_shows_the_data() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    pair.b.domain.post_receive(ReceiveTarget::QueuePair(pair.b.queue_pair), WorkId(3), None).unwrap();
    let operation = Operation::Write { data: Data::Inline(&[b"data"]), key, offset: 60, immediate: Some(9) };
    pair.a.post(WorkRequest { id: WorkId(1), operation, signaled: true }).unwrap();
    let got = poll_one(&mut pair.b);
    assert_eq!((got.opcode, got.immediate, got.bytes), (Opcode::ReceiveWriteImmediate, Some(9), 4));
    let mut out = [0; 4];
    region.copy_out(60, &mut out);
    assert_eq!(&out, b"data");
    assert_eq!(poll_one(&mut pair.a).opcode, Opcode::Write);
}

#[test]
fn without_a_recv_the_sender_waits_for_ever_or_gives_up_for_good() {
    let mut pair = Pair::new();
    let arena = local(&pair.fabric, 65536);
    pair.a.post(send(1, &[b"x"], None, true)).unwrap();
    for _ in 0..1000 {
        assert!(pair.b.poll().is_empty());
        assert!(pair.a.poll().is_empty());
    }
    receive(&mut pair.b, &arena, 1, 64);
    assert_eq!(poll_one(&mut pair.b).status, CompletionStatus::Success);
    assert_eq!(poll_one(&mut pair.a).status, CompletionStatus::Success);

    let mut pair = Pair::with(|c| {
        c.rnr_retry = RnrRetry::Count(2);
        c.rnr_timer = 1_000_000;
    });
    pair.a.post(send(1, &[b"x"], None, true)).unwrap();
    pair.a.post(send(2, &[b"y"], None, false)).unwrap();
    let (first, _) = exchange(&mut pair);
    assert_eq!((first[0].id, first[0].status), (WorkId(1), CompletionStatus::ReceiverNotReady));
    assert_eq!((first[1].id, first[1].status), (WorkId(2), CompletionStatus::Flushed));
    assert_eq!(pair.a.domain.state(pair.a.queue_pair), Some(QueuePairState::Error));
    // A message that was reported as not executed is never delivered.
    let buffer = arena.reserve(64).unwrap();
    let target = ReceiveTarget::QueuePair(pair.b.queue_pair);
    if pair.b.domain.post_receive(target, WorkId(9), Some(buffer)).is_ok() {
        assert_eq!(poll_one(&mut pair.b).status, CompletionStatus::Flushed);
    }
}

#[test]
fn a_recv_that_is_too_short_breaks_both_ends() {
    let mut pair = Pair::new();
    let arena = local(&pair.fabric, 65536);
    receive(&mut pair.b, &arena, 1, 64);
    receive(&mut pair.b, &arena, 2, 4);
    receive(&mut pair.b, &arena, 3, 64);
    for number in 1..=3 {
        pair.a.post(send(number, &[b"12345"], None, number == 1)).unwrap();
    }
    let got: Vec<_> = (0..3).map(|_| poll_one(&mut pair.b)).map(|c| (c.id.0, c.status)).collect();
    assert_eq!(
        got,
        [(1, CompletionStatus::Success), (2, CompletionStatus::LocalLength), (3, CompletionStatus::Flushed)]
    );
    let done: Vec<_> = (0..3).map(|_| poll_one(&mut pair.a)).map(|c| (c.id.0, c.status)).collect();
    assert_eq!(
        done,
        [
            (1, CompletionStatus::Success),
            (2, CompletionStatus::RemoteOperation),
            (3, CompletionStatus::Flushed)
        ]
    );
    for side in [&pair.a, &pair.b] {
        assert_eq!(side.domain.state(side.queue_pair), Some(QueuePairState::Error));
    }
}

#[test]
fn a_failure_waits_for_what_was_posted_before_it() {
    let mut pair = Pair::new();
    let arena = local(&pair.fabric, 65536);
    receive(&mut pair.b, &arena, 1, 64);
    pair.a.post(send(1, &[b"first"], None, true)).unwrap();
    pair.a.post(write(2, RegionKey(77 << 32 | 1), 0, &[b"nowhere"], false)).unwrap();
    pair.a.post(send(3, &[b"never"], None, false)).unwrap();
    assert!(pair.a.poll().is_empty());
    assert_eq!(&poll_one(&mut pair.b).buffer.unwrap()[..5], b"first");
    let done: Vec<_> = (0..3).map(|_| poll_one(&mut pair.a)).map(|c| (c.id.0, c.status)).collect();
    assert_eq!(
        done,
        [(1, CompletionStatus::Success), (2, CompletionStatus::RemoteAccess), (3, CompletionStatus::Flushed)]
    );
}

#[test]
fn unreliable_connections_lose_what_nobody_takes() {
    let mut pair = Pair::with(|c| c.transport = Transport::UnreliableConnection);
    let arena = local(&pair.fabric, 65536);
    pair.a.post(send(1, &[b"lost"], None, true)).unwrap();
    assert_eq!(poll_one(&mut pair.a).status, CompletionStatus::Success);
    assert!(pair.b.poll().is_empty());
    receive(&mut pair.b, &arena, 1, 64);
    pair.a.post(write(2, RegionKey(77 << 32 | 1), 0, &[b"nowhere"], true)).unwrap();
    assert_eq!(poll_one(&mut pair.a).status, CompletionStatus::Success);
    pair.a.post(send(3, &[b"found"], None, false)).unwrap();
    assert_eq!(&poll_one(&mut pair.b).buffer.unwrap()[..5], b"found");
    let read = Operation::FetchAdd { key: RegionKey(1), offset: 0, add: 1 };
    let refused = pair.a.post(WorkRequest { id: WorkId(4), operation: read, signaled: true });
    assert!(matches!(refused, Err(PostError::Transport(_))));
}

#[test]
fn a_shared_receive_queue_serves_several_queue_pairs() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique("shared");
    let listener = fabric.listen(&address).unwrap();
    let mut server = fabric.domain().unwrap();
    let queue = server.create_completion_queue(64, false).unwrap();
    let shared = server.create_shared_receive_queue(8).unwrap();
    let arena = local(&fabric, 65536);
    let mut clients = Vec::new();
    let mut links = Vec::new();
    for _ in 0..3 {
        let dialled = fabric.dial(&address, soon()).unwrap();
        let accepted = listener.accept(soon()).unwrap();
        let mut client = Side::new(&fabric, dialled, |_| {});
        let mut config = dunlin_fabric::QueuePairConfig::reliable(queue, queue);
        config.shared_receive = Some(shared);
        config.max_receive = 0;
        let queue_pair = server.create_queue_pair(&config).unwrap();
        client.send_endpoint();
        accepted.send(&server.endpoint(queue_pair, &accepted).unwrap().0).unwrap();
        client.connect();
        let endpoint = Endpoint(accepted.receive(soon()).unwrap());
        server.connect(queue_pair, &accepted, &endpoint).unwrap();
        clients.push(client);
        links.push(accepted);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.post(send(1, &[&[number as u8]], None, true)).unwrap();
    }
    let mut got = Vec::new();
    server.poll(queue, &mut got, 10);
    assert!(got.is_empty(), "nobody has a RECV");
    for id in 0..3 {
        let buffer = arena.reserve(8).unwrap();
        server.post_receive(ReceiveTarget::Shared(shared), WorkId(id), Some(buffer)).unwrap();
    }
    while got.len() < 3 {
        server.poll(queue, &mut got, 10);
    }
    let mut marks: Vec<u8> = got.iter().map(|c| c.buffer.as_ref().unwrap()[0]).collect();
    marks.sort_unstable();
    assert_eq!(marks, [0, 1, 2]);
}

#[test]
fn datagrams_find_their_way_or_are_lost() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique("datagram");
    let listener = fabric.listen(&address).unwrap();
    let dialled = fabric.dial(&address, soon()).unwrap();
    let accepted = listener.accept(soon()).unwrap();
    let datagram = |c: &mut dunlin_fabric::QueuePairConfig| c.transport = Transport::UnreliableDatagram;
    let mut a = Side::new(&fabric, dialled, datagram);
    let mut b = Side::new(&fabric, accepted, datagram);
    b.send_endpoint();
    let endpoint = Endpoint(a.link.receive(soon()).unwrap());
    let first = a.domain.create_address_handle(a.queue_pair, &a.link, &endpoint).unwrap();
    let second = a.domain.create_address_handle(a.queue_pair, &a.link, &endpoint).unwrap();
    let arena = local(&fabric, 65536);
    let message = pattern(4096);
    let post = |a: &mut Side, to, id, bytes: &[u8]| {
        let operation = Operation::Send { data: Data::Inline(&[bytes]), immediate: Some(5), to };
        a.post(WorkRequest { id: WorkId(id), operation, signaled: true })
    };
    post(&mut a, Some(first), 1, b"lost").unwrap();
    assert_eq!(poll_one(&mut a).status, CompletionStatus::Success);
    assert!(b.poll().is_empty());
    receive(&mut b, &arena, 1, 4096);
    receive(&mut b, &arena, 2, 4096);
    post(&mut a, Some(first), 2, &message).unwrap();
    post(&mut a, Some(second), 3, b"too").unwrap();
    let mut lengths = [poll_one(&mut b), poll_one(&mut b)].map(|c| {
        assert_eq!(c.immediate, Some(5));
        assert_eq!(c.buffer.unwrap()[..3], if c.bytes == 3 { *b"too" } else { [0, 7, 14] });
        c.bytes
    });
    lengths.sort_unstable();
    assert_eq!(lengths, [3, 4096]);
    receive(&mut b, &arena, 3, 2);
    receive(&mut b, &arena, 4, 2);
    post(&mut a, Some(first), 4, b"long").unwrap();
    post(&mut a, Some(first), 5, b"ok").unwrap();
    assert_eq!(poll_one(&mut b).status, CompletionStatus::LocalLength);
    assert_eq!(poll_one(&mut b).status, CompletionStatus::Success);
    assert!(matches!(post(&mut a, None, 6, b"x"), Err(PostError::Transport(_))));
    assert!(matches!(post(&mut a, Some(first), 6, &[0; 4097]), Err(PostError::Length { .. })));
    a.link.close();
    a.poll();
    post(&mut a, Some(first), 7, b"into the void").unwrap();
    assert_eq!(poll_one(&mut a).status, CompletionStatus::Success);
    assert_eq!(a.domain.state(a.queue_pair), Some(QueuePairState::Ready));
}

#[test]
fn a_completion_queue_that_overflows_breaks_its_queue_pairs() {
    let mut pair = Pair::new();
    let region = Region::new(pair.fabric.register(4096, Access::WRITE).unwrap());
    let key = pair.b.link.grant(region.memory(), Access::WRITE).unwrap();
    pair.settle();
    let small = pair.a.domain.create_completion_queue(2, false).unwrap();
    let config = dunlin_fabric::QueuePairConfig::reliable(small, small);
    let queue_pair = pair.a.domain.create_queue_pair(&config).unwrap();
    let mut peer = Side::new(&pair.fabric, pair.b.link.clone(), |_| {});
    let endpoint = pair.a.domain.endpoint(queue_pair, &pair.a.link).unwrap();
    pair.a.link.send(&endpoint.0).unwrap();
    peer.send_endpoint();
    peer.connect();
    let endpoint = Endpoint(pair.a.link.receive(soon()).unwrap());
    pair.a.domain.connect(queue_pair, &pair.a.link, &endpoint).unwrap();
    for number in 0..3 {
        pair.a.domain.post(queue_pair, write(number, key, 0, &[b"x"], true)).unwrap();
    }
    let mut found = Vec::new();
    pair.a.domain.poll(small, &mut found, 10);
    assert_eq!(found.len(), 2);
    assert_eq!(pair.a.domain.state(queue_pair), Some(QueuePairState::Error));
    assert_eq!(pair.a.domain.state(pair.a.queue_pair), Some(QueuePairState::Ready));
}

#[test]
fn what_was_sent_before_we_connected_waits_for_us() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique("early");
    let listener = fabric.listen(&address).unwrap();
    let dialled = fabric.dial(&address, soon()).unwrap();
    let accepted = listener.accept(soon()).unwrap();
    let mut a = Side::new(&fabric, dialled, |_| {});
    let mut b = Side::new(&fabric, accepted, |_| {});
    a.send_endpoint();
    b.send_endpoint();
    a.connect();
    let arena = local(&fabric, 4096);
    receive(&mut b, &arena, 1, 64);
    receive(&mut b, &arena, 2, 64);
    a.post(send(1, &[b"last words"], None, false)).unwrap();
    // Its failure is reported only after the message before it is complete.
    a.post(write(2, RegionKey(77 << 32 | 1), 0, &[b"nowhere"], false)).unwrap();
    let endpoint = Endpoint(b.link.receive(soon()).unwrap());
    b.domain.connect(b.queue_pair, &b.link, &endpoint).unwrap();
    assert_eq!(&poll_one(&mut b).buffer.unwrap()[..10], b"last words");
    assert_eq!(poll_one(&mut a).status, CompletionStatus::RemoteAccess);
    assert_eq!(poll_one(&mut b).status, CompletionStatus::Flushed);
}

#[test]
fn a_failure_before_the_other_side_has_connected_reaches_it_when_it_does() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique("early");
    let listener = fabric.listen(&address).unwrap();
    let dialled = fabric.dial(&address, soon()).unwrap();
    let accepted = listener.accept(soon()).unwrap();
    let mut a = Side::new(&fabric, dialled, |_| {});
    let mut b = Side::new(&fabric, accepted, |_| {});
    a.send_endpoint();
    b.send_endpoint();
    a.connect();
    let arena = local(&fabric, 4096);
    receive(&mut b, &arena, 1, 64);
    a.post(write(1, RegionKey(77 << 32 | 1), 0, &[b"nowhere"], false)).unwrap();
    assert_eq!(poll_one(&mut a).status, CompletionStatus::RemoteAccess);
    a.link.send(b"failed").unwrap();
    let endpoint = Endpoint(b.link.receive(soon()).unwrap());
    assert_eq!(b.link.receive(soon()).unwrap(), b"failed");
    b.domain.connect(b.queue_pair, &b.link, &endpoint).unwrap();
    assert_eq!(poll_one(&mut b).status, CompletionStatus::Flushed);
    assert_eq!(b.domain.state(b.queue_pair), Some(QueuePairState::Error));
}
