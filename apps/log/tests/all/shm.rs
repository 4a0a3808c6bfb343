//! Real threads, on nodes that share memory.

use crate::cluster::{LOG, check, clean, created, follow, on_shared_memory, small, write};
use dunlin_app_log::{Cleaner, LogConfig, LogError, Start, Tail, Writer, create, destroy, status};
use std::ops::ControlFlow;
use std::time::Duration;

#[test]
fn threads_of_three_nodes_commit_and_each_transaction_is_handed_on_once() {
    const EACH: u64 = 400;
    let tiers = on_shared_memory();
    created(&tiers[0]);
    std::thread::scope(|scope| {
        let cleaning = scope.spawn(|| clean(&tiers[1], 4 * EACH as usize));
        let reading = scope.spawn(|| follow(&tiers[2], 4 * EACH as usize));
        let writing: Vec<_> = (0..4)
            .map(|number| (number, &tiers[number as usize % 3]))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(number, tier)| scope.spawn(move || write(tier, number, EACH)))
            .collect();
        let mut committed: Vec<_> = writing.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        let handed_on = cleaning.join().unwrap();
        // The reader that fell behind waits for a transaction that it has not seen.
        let mut writer = Writer::open(&tiers[0], LOG).unwrap();
        writer.append(b"last").unwrap();
        let position = writer.commit().unwrap();
        let (mut read, _) = reading.join().unwrap();
        read.retain(|one| one.position != position);
        committed.retain(|one| one.position != position);
        check(committed, &handed_on, &read);
    });
    let status = status(&tiers[0], LOG).unwrap();
    assert_eq!((status.writers.len(), status.cleaner), (0, None), "everybody has left");
}

#[test]
fn a_transaction_fills_the_log_and_crosses_its_end() {
    let [alice, bob, _] = &on_shared_memory();
    create(alice, LOG, &LogConfig { longest: Some(4096), ..small() }).unwrap();
    let mut writer = Writer::open(alice, LOG).unwrap();
    let mut cleaner = Cleaner::open(bob, LOG).unwrap();
    for length in [1, 4060, 700, 3000, 4060, 28, 29, 4060] {
        let entry: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        writer.append(&entry).unwrap();
        let position = writer.commit().unwrap();
        let mut found = Vec::new();
        while found.is_empty() {
            let hand_on = |one: &dunlin_app_log::Transaction<'_>| {
                assert_eq!((one.position(), one.writer()), (position, writer.id()));
                found.extend(one.entries().map(<[u8]>::to_vec));
                ControlFlow::Continue(())
            };
            cleaner.clean(hand_on).unwrap();
        }
        assert!(found == [entry]);
    }
}

#[test]
fn a_commit_without_room_waits_or_fails_and_the_entries_stay() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let mut writer = Writer::open(alice, LOG).unwrap();
    let short = Duration::from_millis(5);
    let mut committed = 0;
    loop {
        writer.append(&[9; 900]).unwrap();
        match writer.commit_within(short) {
            Ok(_) => committed += 1,
            Err(LogError::Full { waited }) => {
                assert_eq!(waited, short);
                break;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(committed, 4096 / 960);
    let mut cleaner = Cleaner::open(bob, LOG).unwrap();
    // A transaction that is not handed on stays.
    let cleaned = cleaner.clean(|_| ControlFlow::Break(())).unwrap();
    assert_eq!((cleaned.transactions, cleaned.bytes), (0, 0));
    let mut left = 1;
    let one = |_: &dunlin_app_log::Transaction<'_>| {
        left -= 1;
        if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert_eq!(cleaner.clean(one).unwrap().transactions, 1);
    writer.commit_within(short).unwrap();
    assert!(matches!(writer.commit(), Err(LogError::Empty)), "the buffer is empty after a commit");
}

/// Two writers reserve past the room at the same time: one of them gives up, and voids its place later.
#[test]
fn a_reservation_past_the_room_stands_and_is_voided() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let (mut one, mut two) = (Writer::open(alice, LOG).unwrap(), Writer::open(bob, LOG).unwrap());
    for _ in 0..4 {
        one.append(&[1; 900]).unwrap();
        one.commit().unwrap();
    }
    // The second writer knows of an empty log, so it reserves.
    two.append(&[2; 900]).unwrap();
    let full = two.commit_within(Duration::from_millis(5));
    assert!(matches!(full, Err(LogError::Full { .. })), "{full:?}");
    assert_eq!(status(alice, LOG).unwrap().tail, 5 * 960);
    let again = two.commit_within(Duration::from_millis(5));
    assert!(matches!(again, Err(LogError::Full { .. })), "{again:?}");
    assert_eq!(status(alice, LOG).unwrap().tail, 5 * 960, "one reservation at a time");
    let mut cleaner = Cleaner::open(alice, LOG).unwrap();
    let mut lengths = Vec::new();
    cleaner
        .clean(|one| {
            lengths.push(one.position());
            ControlFlow::Continue(())
        })
        .unwrap();
    let position = two.commit().unwrap();
    assert_eq!(position, 5 * 960);
    while lengths.len() < 5 {
        cleaner
            .clean(|one| {
                lengths.push(one.position());
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    assert_eq!(lengths, [0, 960, 1920, 2880, 4800], "the voided place is not handed on");
    assert_eq!(cleaner.position(), 6 * 960);
}

#[test]
fn two_cleaners_exclude_each_other_and_a_dead_one_is_succeeded() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let mut first = Cleaner::open(alice, LOG).unwrap();
    let owner = status(alice, LOG).unwrap().cleaner.unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Cleaner::open(bob, LOG));
        while !second.is_finished() {
            first.clean(|_| ControlFlow::Continue(())).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        match second.join().unwrap() {
            Err(LogError::Cleaning { owner: found }) => assert_eq!(found, owner),
            other => panic!("{other:?}"),
        }
    });
    // The first one stops for longer than its lease.
    let mut second = Cleaner::open(bob, LOG).unwrap();
    write(alice, 1, 3);
    let lost = first.clean(|_| ControlFlow::Continue(()));
    assert!(matches!(lost, Err(LogError::LostLease)), "{lost:?}");
    drop(first);
    let mut count = 0;
    second
        .clean(|_| {
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, 3);
    drop(second);
    assert_eq!(status(alice, LOG).unwrap().cleaner, None);
}

#[test]
fn readers_begin_anywhere_and_one_that_is_a_lap_behind_is_told() {
    let [alice, bob, carol] = &on_shared_memory();
    created(alice);
    let first = write(alice, 1, 3);
    let mut oldest = Tail::open(carol, LOG, Start::Oldest).unwrap();
    let mut newest = Tail::open(carol, LOG, Start::Newest).unwrap();
    let mut second = Tail::open(carol, LOG, Start::At(first[1].position)).unwrap();
    assert_eq!(oldest.read().unwrap().unwrap().position(), first[0].position);
    assert_eq!(second.read().unwrap().unwrap().position(), first[1].position);
    assert!(newest.read().unwrap().is_none());
    assert!(newest.read_within(Duration::from_millis(3)).unwrap().is_none());
    for at in [1, 65, 1 << 20] {
        let opened = Tail::open(carol, LOG, Start::At(at));
        assert!(matches!(opened, Err(LogError::BadPosition { .. })), "{opened:?}");
    }
    // Cleaned transactions can be read until they are written over.
    assert_eq!(clean(bob, 3), first);
    assert_eq!(oldest.read().unwrap().unwrap().position(), first[1].position);
    std::thread::scope(|scope| {
        scope.spawn(|| clean(bob, 60));
        write(alice, 2, 60);
    });
    let head = status(alice, LOG).unwrap().head;
    match oldest.read() {
        // It had read ahead.
        Ok(Some(one)) => assert_eq!(one.position(), first[2].position),
        other => panic!("{other:?}"),
    }
    match oldest.read() {
        Err(LogError::Behind { resume }) => assert_eq!(resume, head),
        other => panic!("{other:?}"),
    }
    oldest.seek(Start::At(head)).unwrap();
    assert!(oldest.read().unwrap().is_none());
}

#[test]
fn a_log_is_destroyed_and_its_name_is_free_again() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let again = create(bob, LOG, &small());
    assert!(matches!(again, Err(LogError::Exists { .. })), "{again:?}");
    let mut writer = Writer::open(bob, LOG).unwrap();
    destroy(alice, LOG).unwrap();
    writer.append(b"x").unwrap();
    assert!(matches!(writer.commit(), Err(LogError::Operation(_))));
    assert!(matches!(destroy(alice, LOG), Err(LogError::NoSuch { .. })));
    assert!(matches!(Writer::open(bob, LOG), Err(LogError::NoSuch { .. })));
    assert!(matches!(Cleaner::open(bob, LOG), Err(LogError::NoSuch { .. })));
    assert!(matches!(Tail::open(bob, LOG, Start::Oldest), Err(LogError::NoSuch { .. })));
    created(alice);
    write(bob, 1, 2);
}
