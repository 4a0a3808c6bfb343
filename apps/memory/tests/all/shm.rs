//! Three nodes on shared memory.

use crate::cluster::{SHAPES, add, bytes, close, config, each, on_shared_memory, open, opened};
use dunlin_app_memory::{Lost, MemoryConfig, MemoryError, PAGE, Push, Told};
use dunlin_fabric::Fabric;
use std::time::Duration;

const PAGE_BYTES: u64 = PAGE as u64;
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn released_bytes_are_read_by_all_and_copies_are_kept_until_then() {
    let tiers = on_shared_memory();
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let all = open(&tiers, &format!("m{number}"), shape);
        assert_eq!(bytes::<_, 8>(&all[1], 5 * PAGE_BYTES - 4), [0; 8]);
        assert_eq!(all[1].counts().fetched, 2);
        // A copy is read again without the home.
        assert_eq!(bytes::<_, 8>(&all[1], 5 * PAGE_BYTES - 4), [0; 8]);
        assert_eq!(all[1].counts().fetched, 2);
        let mut held = all[0].acquire_all(&[4 * PAGE_BYTES..6 * PAGE_BYTES, 0..1]).unwrap();
        assert_eq!(held.pages(), [0, 4, 5]);
        assert_eq!(held.lost(), []);
        all[0].write(5 * PAGE_BYTES - 4, b"one, two").unwrap();
        // The writer sees its bytes, and others see them after the release.
        assert_eq!(&bytes::<_, 8>(&all[0], 5 * PAGE_BYTES - 4), b"one, two");
        assert_eq!(bytes::<_, 8>(&all[1], 5 * PAGE_BYTES - 4), [0; 8]);
        held.release().unwrap();
        drop(held);
        for memory in &all {
            assert_eq!(&bytes::<_, 8>(memory, 5 * PAGE_BYTES - 4), b"one, two");
        }
        assert_eq!(all[1].counts().fetched, 4);
        assert_eq!(all[1].counts().invalidated, 2);
        // Carol had no copy: with marks nobody tells her.
        let told = if shape.0 == Told::All { 2 } else { 1 };
        assert_eq!(all[0].counts().told, told);
        let pushed = if shape.1 == Push::Whole { 2 * PAGE_BYTES } else { 8 };
        assert_eq!(all[0].counts().pushed, pushed);
        close(&tiers[0], all);
    }
    for tier in &tiers {
        let regions = tier.list(tier.name(), 0).unwrap().regions;
        assert_eq!(regions, [], "regions are freed");
    }
}

#[test]
fn a_range_is_read_in_lists_and_forgotten_on_demand() {
    let tiers = on_shared_memory();
    let all = open(&tiers, "m", SHAPES[0]);
    all[2].prefetch(0..all[2].size()).unwrap();
    assert_eq!(all[2].counts().fetched, 20);
    let mut everything = vec![1; all[2].size() as usize];
    all[2].read(0, &mut everything).unwrap();
    assert!(everything.iter().all(|byte| *byte == 0));
    assert_eq!(all[2].counts().fetched, 20);
    all[2].forget(0..3 * PAGE_BYTES).unwrap();
    all[2].prefetch(0..all[2].size()).unwrap();
    assert_eq!(all[2].counts().fetched, 23);
    close(&tiers[0], all);
}

#[test]
fn increments_of_all_members_count() {
    for shape in SHAPES {
        let tiers = on_shared_memory();
        let all = open(&tiers, "m", shape);
        let host = tiers[0].fabric().host();
        // Two counters on pages of different homes, and one on both pages.
        let all = each(host, all, |at, memory| {
            for round in 0..60u64 {
                let ranges = [
                    [100..108, 2 * PAGE_BYTES..2 * PAGE_BYTES + 8],
                    [0..1, 3 * PAGE_BYTES..3 * PAGE_BYTES + 1],
                ];
                let ranges = &ranges[((round + at as u64) % 2) as usize];
                let mut held = memory.acquire_all(ranges).unwrap();
                add(&memory, 100, 1);
                if ranges[1].start == 2 * PAGE_BYTES {
                    add(&memory, 2 * PAGE_BYTES, 2);
                }
                held.release().unwrap();
            }
            memory
        });
        for memory in &all {
            assert_eq!(u64::from_le_bytes(bytes(memory, 100)), 180, "{shape:?}");
            assert_eq!(u64::from_le_bytes(bytes(memory, 2 * PAGE_BYTES)), 180, "{shape:?}");
        }
        close(&tiers[0], all);
    }
}

#[test]
fn misuse_is_refused_with_the_page() {
    let tiers = on_shared_memory();
    let all = open(&tiers, "m", SHAPES[0]);
    let size = all[0].size();
    let refused = all[0].write(PAGE_BYTES, b"x");
    assert!(matches!(refused, Err(MemoryError::NotAcquired { page: 1 })), "{refused:?}");
    let mut held = all[0].acquire(0..10).unwrap();
    // Nothing of a write is done if one of its pages is not held.
    let refused = all[0].write(PAGE_BYTES - 1, b"xx");
    assert!(matches!(refused, Err(MemoryError::NotAcquired { page: 1 })), "{refused:?}");
    assert_eq!(bytes::<_, 1>(&all[0], PAGE_BYTES - 1), [0]);
    let twice = all[0].acquire_all(&[PAGE_BYTES..PAGE_BYTES + 1, 5..6]).map(drop);
    assert!(matches!(twice, Err(MemoryError::AlreadyAcquired { page: 0 })), "{twice:?}");
    let other = all[1].acquire_all_within(&[0..1, PAGE_BYTES..PAGE_BYTES + 1], SHORT).map(drop);
    assert!(matches!(other, Err(MemoryError::Held { page: 0, member: 0 })), "{other:?}");
    // The other page was given back.
    let free = all[2].acquire(PAGE_BYTES..PAGE_BYTES + 1).unwrap();
    drop(free);
    let outside = [
        all[0].read(size - 1, &mut [0; 2]),
        all[0].write(size, b"x"),
        all[0].prefetch(0..size + 1),
        all[0].forget(u64::MAX..u64::MAX),
        all[0].acquire(size..size + 1).map(drop),
        all[0].read(u64::MAX, &mut [0; 2]),
    ];
    for outcome in outside {
        assert!(matches!(outcome, Err(MemoryError::Bounds { .. })), "{outcome:?}");
    }
    held.release().unwrap();
    let late = all[0].write(0, b"x");
    assert!(matches!(late, Err(MemoryError::NotAcquired { page: 0 })), "{late:?}");
    drop(held);
    close(&tiers[0], all);
}

#[test]
fn changes_that_are_given_up_are_lost_and_the_next_writer_hears_of_it() {
    for shape in SHAPES {
        let tiers = on_shared_memory();
        let all = open(&tiers, "m", shape);
        let mut held = all[0].acquire_all(&[0..1, PAGE_BYTES..PAGE_BYTES + 1]).unwrap();
        all[0].write(0, b"first").unwrap();
        held.release().unwrap();
        drop(held);
        let held = all[0].acquire(0..1).unwrap();
        all[0].write(0, b"wrong").unwrap();
        drop(held);
        assert_eq!(&bytes::<_, 5>(&all[0], 0), b"first");
        let mut next = all[1].acquire(0..1).unwrap();
        assert_eq!(next.lost(), [Lost { page: 0, member: 0 }]);
        assert_eq!(&bytes::<_, 5>(&all[1], 0), b"first");
        next.release().unwrap();
        drop(next);
        // Nobody hears of it twice; and pages that were not written are not lost.
        assert_eq!(all[2].acquire(0..1).unwrap().lost(), []);
        assert_eq!(all[0].acquire(0..1).unwrap().lost(), []);
        close(&tiers[0], all);
    }
}

#[test]
fn a_member_that_leaves_gives_its_pages_to_those_that_wait() {
    let tiers = on_shared_memory();
    let mut all = open(&tiers, "m", SHAPES[0]);
    let last = all.pop().unwrap();
    let held = last.acquire(0..1).unwrap();
    last.write(0, b"wrong").unwrap();
    let waits = {
        let first = all.remove(0);
        std::thread::spawn(move || {
            let next = first.acquire(0..1).unwrap();
            let lost = next.lost().to_vec();
            drop(next);
            (first, lost)
        })
    };
    drop(held);
    drop(last);
    let (first, lost) = waits.join().unwrap();
    assert_eq!(lost, [Lost { page: 0, member: 2 }]);
    // Its own pages can be read, and nobody can acquire them.
    assert_eq!(bytes::<_, 1>(&first, 2 * PAGE_BYTES), [0]);
    let gone = first.acquire(2 * PAGE_BYTES..2 * PAGE_BYTES + 1);
    assert!(matches!(gone, Err(MemoryError::HomeEnded { home: 2 })), "{gone:?}");
}

#[test]
fn memories_that_do_not_fit_are_not_opened() {
    let tiers = on_shared_memory();
    let all = open(&tiers, "m", SHAPES[0]);
    // The name is taken at this node, as a member that serves and as a region.
    let again = dunlin_app_memory::Memory::open(&tiers[0], &config("m", SHAPES[0], 0));
    assert!(matches!(again, Err(MemoryError::Taken { .. })), "{again:?}");
    let again = dunlin_app_memory::Memory::open(&tiers[1], &config("m", SHAPES[0], 0));
    assert!(matches!(again, Err(MemoryError::Taken { .. })), "{again:?}");
    close(&tiers[0], all);
    let other = |at: u16| MemoryConfig { pages: 20 + u32::from(at == 1), ..config("n", SHAPES[0], at) };
    for outcome in opened(&tiers, other) {
        assert!(
            matches!(outcome, Err(MemoryError::Disagree { .. } | MemoryError::Request { .. })),
            "{outcome:?}"
        );
    }
    let alone = MemoryConfig { patience: SHORT, ..config("alone", SHAPES[0], 0) };
    let alone = dunlin_app_memory::Memory::open(&tiers[0], &alone);
    assert!(matches!(alone, Err(MemoryError::Lock { .. })), "{alone:?}");
    for tier in &tiers {
        assert_eq!(tier.list(tier.name(), 0).unwrap().regions, [], "regions are freed");
    }
}

#[test]
fn strangers_and_messages_without_sense_are_refused() {
    let tiers = on_shared_memory();
    let all = open(&tiers, "m", SHAPES[0]);
    let stranger = tiers[1].acting_for("mallory").unwrap();
    let ping = [0];
    let refused = |tier: &dunlin_tier_node::Tier<_>, request: &[u8]| {
        let called = tier.call("alice", "m/memory/0", 1, request, &mut [0; 64]);
        assert!(called.as_ref().is_err_and(|error| !error.may_have_executed()), "{called:?}");
    };
    assert_eq!(tiers[1].call("alice", "m/memory/0", 1, &ping, &mut [0; 64]).unwrap(), 1);
    refused(&stranger, &ping);
    assert!(stranger.map("m/pages/0", dunlin_tier_node::Rights::READ).is_err());
    for request in [&[][..], &[0, 0], &[1, 2], &[4, 0, 0], &[9; 40], &[0xff]] {
        refused(&tiers[1], request);
    }
    // A claim of pages of another home, and of pages that are not there, gets nothing.
    let mut acquire = vec![1, 0, 2, 0];
    acquire.extend_from_slice(&[7; 8]);
    for page in [1u32, 21, u32::MAX] {
        let mut answer = [0; 64];
        let request = [&acquire[..], &page.to_le_bytes()].concat();
        assert_eq!(tiers[1].call("alice", "m/memory/0", 1, &request, &mut answer).unwrap(), 1);
        assert_eq!(answer[0], 6);
    }
    let mut held = all[1].acquire(0..1).unwrap();
    held.release().unwrap();
    drop(held);
    close(&tiers[0], all);
}
