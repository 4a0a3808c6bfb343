//! Sleeping and waking, many queue pairs, and the memory they cost.

use crate::common::{Pair, Side, local, many, receive, send, soon};
use dunlin_fabric::{
    CompletionStatus, Host, Link, QueuePairState, RealHost, ReceiveTarget, ThreadDomain, WaitMode, Wake,
    Waker, WorkId,
};
use dunlin_fabric_shm::ShmMemory;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sleeps until there is a completion; counts the sleeps that a ring ended.
fn sleep_for_one(side: &mut Side, rings: &mut u32) -> dunlin_fabric::Completion<ShmMemory> {
    let until = soon();
    let mut found = Vec::new();
    loop {
        let armed = side.domain.arm(WaitMode::Event);
        if side.domain.poll(side.queue, &mut found, 1) == 1 {
            side.domain.disarm(armed);
            return found.remove(0);
        }
        if side.domain.wait(armed, until) == Wake::Arrived {
            *rings += 1;
        }
        assert!(RealHost.now() < until, "nothing came");
    }
}

#[test]
fn two_sleepers_wake_each_other() {
    let Pair { fabric, mut a, mut b } = Pair::new();
    let arena = local(&fabric, 1 << 16);
    let rounds = 2000;
    let mut rings = [0, 0];
    let (one, two) = rings.split_at_mut(1);
    std::thread::scope(|scope| {
        let arena = &arena;
        scope.spawn(move || {
            receive(&mut b, arena, 0, 64);
            let mut left = rounds;
            while left > 0 {
                let got = sleep_for_one(&mut b, &mut two[0]);
                assert_eq!(got.status, CompletionStatus::Success);
                let Some(buffer) = got.buffer else { continue };
                receive(&mut b, arena, 0, 64);
                b.post(send(1, &[&buffer[..1]], None, true)).unwrap();
                left -= 1;
            }
            // The last answer counts only once the peer has taken it.
            while b.domain.send_room(b.queue_pair) < 128 {
                sleep_for_one(&mut b, &mut two[0]);
            }
        });
        for number in 0..rounds {
            receive(&mut a, arena, number, 64);
            a.post(send(5000, &[&[number as u8]], None, true)).unwrap();
            let mut got = [sleep_for_one(&mut a, &mut one[0]), sleep_for_one(&mut a, &mut one[0])];
            got.sort_by_key(|c| c.id);
            assert_eq!((got[0].id, got[1].id), (WorkId(number), WorkId(5000)));
            assert_eq!(got[0].buffer.as_ref().unwrap()[0], number as u8);
        }
    });
    assert!(rings[0] > 0 && rings[1] > 0, "sleeps ended only by their bound: {rings:?}");
}

#[test]
fn a_waker_ends_a_wait_now_or_next() {
    let mut pair = Pair::new();
    let waker = pair.a.domain.waker();
    waker.wake();
    let armed = pair.a.domain.arm(WaitMode::Event);
    assert_eq!(pair.a.domain.wait(armed, soon()), Wake::Arrived);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                waker.wake();
            }
        });
        for _ in 0..1000 {
            let armed = pair.a.domain.arm(WaitMode::Event);
            pair.a.domain.wait(armed, soon());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let armed = pair.a.domain.arm(WaitMode::Event);
    pair.a.domain.disarm(armed);
    let armed = pair.a.domain.arm(WaitMode::Event);
    pair.a.domain.wait(armed, RealHost.now());
    let armed = pair.a.domain.arm(WaitMode::Busy);
    pair.a.domain.wait(armed, soon());
}

#[test]
fn a_wait_with_completions_ready_returns_at_once() {
    let mut pair = Pair::new();
    let arena = local(&pair.fabric, 4096);
    receive(&mut pair.b, &arena, 1, 64);
    pair.b.link.close();
    let until = soon();
    while pair.b.domain.state(pair.b.queue_pair) != Some(QueuePairState::Error) {
        pair.b.domain.poll(pair.b.queue, &mut Vec::new(), 0);
        assert!(RealHost.now() < until);
    }
    let armed = pair.b.domain.arm(WaitMode::Event);
    assert_eq!(pair.b.domain.wait(armed, soon()), Wake::Arrived);
    assert_eq!(pair.b.poll()[0].status, CompletionStatus::Flushed);
}

#[test]
fn hundreds_of_queue_pairs_are_all_heard() {
    let mut many = many(300);
    let arena = local(&many.fabric, 1 << 20);
    let mut found = Vec::new();
    for round in 0..20u64 {
        for id in 0..300 {
            let buffer = arena.reserve(64).unwrap();
            many.server.post_receive(ReceiveTarget::Shared(many.shared), WorkId(id), Some(buffer)).unwrap();
        }
        for (number, pair) in many.client_pairs.iter().enumerate() {
            let payload = (number as u64 * 1000 + round).to_le_bytes();
            many.clients.post(*pair, send(number as u64, &[&payload], None, true)).unwrap();
        }
        let until = soon();
        while found.len() < 300 {
            many.server.poll(many.server_queue, &mut found, 64);
            assert!(RealHost.now() < until, "{} of 300 messages came", found.len());
        }
        for completion in found.drain(..) {
            let value = u64::from_le_bytes(completion.buffer.unwrap()[..8].try_into().unwrap());
            let number = many.server_pairs.iter().position(|p| *p == completion.queue_pair).unwrap();
            assert_eq!(value, number as u64 * 1000 + round);
        }
        while found.len() < 300 {
            many.clients.poll(many.client_queue, &mut found, 64);
            assert!(RealHost.now() < until, "{} of 300 acknowledgements came", found.len());
        }
        assert!(found.drain(..).all(|c| c.status == CompletionStatus::Success));
    }
    let gone = many.client_pairs[77];
    many.clients.destroy_queue_pair(gone).unwrap();
    assert_eq!(many.clients.state(gone), None);
    let until = soon();
    while many.server.state(many.server_pairs[77]) != Some(QueuePairState::Error) {
        many.server.poll(many.server_queue, &mut found, 64);
        assert!(RealHost.now() < until, "its peer did not learn it");
    }
    assert_eq!(many.server.state(many.server_pairs[78]), Some(QueuePairState::Ready));
}
