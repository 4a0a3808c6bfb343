//! Regions that are no log, and metadata that another user wrote over.

use crate::cluster::{LOG, created, on_shared_memory, small, write};
use dunlin_app_log::{Cleaner, LogConfig, LogError, Start, Tail, Writer, create, destroy, status};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier_node::{Rights, Spec, Tier};
use std::ops::ControlFlow;

const TAIL: u64 = 64;
const HEAD: u64 = 128;

fn metadata(tier: &Tier<ShmFabric>) -> dunlin_tier_node::Lmr<ShmFabric> {
    tier.map(LOG, Rights::READ.with(Rights::WRITE)).unwrap()
}

#[track_caller]
fn assert_damaged<T: std::fmt::Debug>(result: Result<T, LogError>) {
    assert!(matches!(result, Err(LogError::Damaged { .. })), "{result:?}");
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let [alice, ..] = &on_shared_memory();
    for config in [
        LogConfig { capacity: 0, ..small() },
        LogConfig { capacity: 960, ..small() },
        LogConfig { capacity: u64::MAX, ..small() },
        LogConfig { longest: Some(0), ..small() },
        LogConfig { longest: Some(u64::MAX), ..small() },
        LogConfig { writers: 0, ..small() },
        LogConfig { writers: 1025, ..small() },
        LogConfig { lease: std::time::Duration::ZERO, ..small() },
    ] {
        let created = create(alice, LOG, &config);
        assert!(matches!(created, Err(LogError::Setting { .. })), "{config:?}: {created:?}");
    }
    let created = create(alice, LOG, &LogConfig { place: Spec::on("dora"), ..small() });
    assert!(matches!(created, Err(LogError::Request(_))), "{created:?}");
    let large = create(alice, LOG, &LogConfig { capacity: 1 << 30, ..small() });
    assert!(matches!(large, Err(LogError::Request(_))), "{large:?}");
    create(alice, LOG, &LogConfig { capacity: 4000, longest: Some(100), ..small() }).unwrap();
    let status = status(alice, LOG).unwrap();
    assert_eq!((status.capacity, status.longest), (4032, 128));
}

#[test]
fn entries_longer_than_the_log_are_refused_and_the_others_stay() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let mut writer = Writer::open(alice, LOG).unwrap();
    assert!(matches!(writer.commit(), Err(LogError::Empty)));
    let too_long = writer.append(&[0; 989]);
    assert!(matches!(too_long, Err(LogError::TooLong { length: 1025, longest: 1024 })), "{too_long:?}");
    writer.append(&[7; 500]).unwrap();
    assert!(matches!(writer.append(&[0; 485]), Err(LogError::TooLong { .. })));
    writer.append(&[8; 484]).unwrap();
    writer.commit().unwrap();
    let mut tail = Tail::open(bob, LOG, Start::Oldest).unwrap();
    let found = tail.read().unwrap().unwrap();
    assert!(found.entries().eq([&[7; 500][..], &[8; 484][..]]));
    writer.append(b"discarded").unwrap();
    writer.discard();
    assert!(matches!(writer.commit(), Err(LogError::Empty)));
}

#[test]
fn regions_that_are_no_log_are_refused() {
    let [alice, bob, _] = &on_shared_memory();
    let other = alice.malloc(4096, Spec::here().named(LOG).grant_anyone(Rights::READ)).unwrap();
    let opened = Tail::open(alice, LOG, Start::Oldest);
    assert!(matches!(opened, Err(LogError::NotReady { .. })), "{opened:?}");
    other.write(0, b"something else").unwrap();
    assert_damaged(Tail::open(bob, LOG, Start::Oldest));
    other.free().unwrap();
    let tiny = alice.malloc(8, Spec::here().named(LOG)).unwrap();
    assert_damaged(Tail::open(alice, LOG, Start::Oldest));
    tiny.free().unwrap();

    // Regions of other lengths than the metadata says.
    created(alice);
    let mut fixed = [0; 64];
    metadata(alice).read(0, &mut fixed).unwrap();
    destroy(alice, LOG).unwrap();
    let copy = alice.malloc(256 + 16 * 64, Spec::here().named(LOG)).unwrap();
    copy.write(0, &fixed).unwrap();
    let opened = Tail::open(alice, LOG, Start::Oldest);
    assert!(matches!(opened, Err(LogError::NoSuch { .. })), "{opened:?}");
    let short = alice.malloc(4096, Spec::here().named(format!("{LOG}/ring"))).unwrap();
    let opened = Tail::open(alice, LOG, Start::Oldest);
    assert!(
        matches!(&opened, Err(LogError::WrongSize { region, found: 4096, expected: 5120 }) if region == "orders/ring"),
        "{opened:?}"
    );
    short.free().unwrap();
    let _right = alice.malloc(5120, Spec::here().named(format!("{LOG}/ring"))).unwrap();
    copy.free().unwrap();
    let long = alice.malloc(4096, Spec::here().named(LOG)).unwrap();
    long.write(0, &fixed).unwrap();
    let opened = Tail::open(alice, LOG, Start::Oldest);
    assert!(matches!(opened, Err(LogError::WrongSize { found: 4096, .. })), "{opened:?}");
    // A principal without rights hears of no log.
    assert!(matches!(Tail::open(bob, LOG, Start::Oldest), Err(LogError::NoSuch { .. })));
}

#[test]
fn settings_that_were_written_over_are_found() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let metadata = metadata(bob);
    let mut fixed = [0; 64];
    metadata.read(0, &mut fixed).unwrap();
    for at in (0..56).step_by(8) {
        metadata.write(at, &[0x55; 8]).unwrap();
        assert_damaged(Writer::open(alice, LOG));
        assert_damaged(Cleaner::open(alice, LOG));
        assert_damaged(Tail::open(alice, LOG, Start::Oldest));
        assert_damaged(status(alice, LOG));
        metadata.write(0, &fixed).unwrap();
    }
    write(alice, 1, 1);
}

#[test]
fn words_that_were_written_over_are_found_at_each_use() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    write(alice, 1, 8);
    let metadata = metadata(bob);
    let mut words = [0; 72];
    metadata.read(TAIL, &mut words).unwrap();
    let mut writer = Writer::open(alice, LOG).unwrap();
    let mut tail = Tail::open(bob, LOG, Start::Newest).unwrap();
    let absurd = [(TAIL, 1), (TAIL, 1 << 20), (TAIL, u64::MAX), (HEAD, 1 << 30), (HEAD, 3), (HEAD, u64::MAX)];
    for (at, value) in absurd {
        metadata.write(at, &u64::to_le_bytes(value)).unwrap();
        assert_damaged(Writer::open(alice, LOG));
        assert_damaged(Cleaner::open(alice, LOG));
        assert_damaged(Tail::open(alice, LOG, Start::Oldest));
        assert_damaged(writer.keep_alive());
        assert_damaged(tail.read());
        metadata.write(TAIL, &words).unwrap();
        // The lease of the cleaner that failed to open was given back.
        drop(Cleaner::open(alice, LOG).unwrap());
    }
    // A tail that went back, seen by a commit.
    writer.append(b"x").unwrap();
    metadata.write(TAIL, &0u64.to_le_bytes()).unwrap();
    assert_damaged(writer.commit());
    metadata.write(TAIL, &u64::to_le_bytes(7)).unwrap();
    assert_damaged(writer.commit());
    metadata.write(TAIL, &words).unwrap();

    // A head that went back, and one that runs ahead, under a cleaner.
    let mut cleaner = Cleaner::open(alice, LOG).unwrap();
    let all = |_: &dunlin_app_log::Transaction<'_>| ControlFlow::Continue(());
    assert_eq!(cleaner.clean(all).unwrap().transactions, 8);
    writer.commit().unwrap();
    metadata.write(HEAD, &64u64.to_le_bytes()).unwrap();
    assert_damaged(cleaner.clean(all));
}

/// Bytes of the ring that another user wrote over are never handed on.
#[test]
fn a_damaged_transaction_is_not_handed_on() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let committed = write(alice, 1, 3);
    let ring = bob.map(format!("{LOG}/ring"), Rights::READ.with(Rights::WRITE)).unwrap();
    ring.write(committed[1].position + 40, &[0xee; 8]).unwrap();
    let mut cleaner = Cleaner::open(alice, LOG).unwrap();
    let (mut positions, mut closed) = (Vec::new(), 0);
    while positions.len() < 2 {
        let cleaned = cleaner
            .clean(|one| {
                positions.push(one.position());
                ControlFlow::Continue(())
            })
            .unwrap();
        closed += cleaned.closed;
    }
    assert_eq!(positions, [committed[0].position, committed[2].position]);
    assert_eq!(closed, committed[2].position - committed[1].position);
}

const CLEANER: u64 = 192;
const TABLE: u64 = 256;
const TABLE_BYTES: usize = 16 * 64;

/// Bytes in the table of writers that no writer has written. A cleaner at a hole that nobody can write leaves it, closes
/// it, or finds the damage. It hands on each transaction once, in order.
#[test]
fn a_table_of_writers_that_was_written_over_is_harmless() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let committed = write(alice, 1, 3);
    let metadata = metadata(bob);
    let mut table = [0; TABLE_BYTES];
    metadata.read(TABLE, &mut table).unwrap();
    // A reservation that its writer has left.
    let hole = metadata.fetch_add(TAIL, 64).unwrap();
    let behind = write(alice, 2, 1);
    let right: Vec<u64> = committed.iter().chain(&behind).map(|seen| seen.position).collect();
    let row = |id: u64, watermark: u64| {
        let mut bytes = [0; TABLE_BYTES];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8..16].copy_from_slice(&watermark.to_le_bytes());
        bytes
    };
    let mut random = [0; TABLE_BYTES];
    let mut draw = 5u64;
    random.iter_mut().for_each(|byte| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (draw >> 33) as u8;
    });
    let mut cleaner = Cleaner::open(alice, LOG).unwrap();
    let mut handed = Vec::new();
    let mut clean = |handed: &mut Vec<u64>| {
        let each = |one: &dunlin_app_log::Transaction<'_>| {
            handed.push(one.position());
            ControlFlow::Continue(())
        };
        let cleaned = cleaner.clean(each);
        crate::cluster::sleep(alice, std::time::Duration::from_millis(30));
        cleaned
    };
    // A watched writer and another one before the hole, one within it, and ones everywhere.
    for garbage in
        [row(u64::MAX, 3), row(2, hole), row(2, hole + 3), row(1 << 63, 0), random, [0x55; TABLE_BYTES]]
    {
        metadata.write(TABLE, &garbage).unwrap();
        for _ in 0..3 {
            match clean(&mut handed) {
                Ok(_) | Err(LogError::Damaged { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            assert!(right.starts_with(&handed), "{handed:?}, not {right:?}");
        }
        assert!(status(alice, LOG).is_ok());
    }
    // Watched writers whose locks their own nodes do not own.
    metadata.write(TABLE, &[0xfb; TABLE_BYTES]).unwrap();
    let full = Writer::open(alice, LOG);
    assert!(matches!(full, Err(LogError::TooManyWriters { .. })), "{full:?}");
    metadata.write(TABLE, &table).unwrap();
    while handed.len() < 4 {
        clean(&mut handed).unwrap();
    }
    assert_eq!(handed, right);
    drop(cleaner);
    destroy(alice, LOG).unwrap();
}

/// The holder of a lease that was written over hears that it has lost it. The next one waits for the lease's time.
#[test]
fn a_cleaners_lease_that_was_written_over_is_lost() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let committed = write(alice, 1, 2);
    let metadata = metadata(bob);
    for word in [0, 1, u64::MAX] {
        let mut cleaner = Cleaner::open(alice, LOG).unwrap();
        metadata.write(CLEANER, &u64::to_le_bytes(word)).unwrap();
        crate::cluster::sleep(alice, std::time::Duration::from_millis(100));
        let lost = cleaner.clean(|_| ControlFlow::Continue(()));
        assert!(matches!(lost, Err(LogError::LostLease)), "{lost:?}");
        // Its end does not take the word from whoever has it.
        drop(cleaner);
        let mut found = [0; 8];
        metadata.read(CLEANER, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), word);
    }
    let mut positions = Vec::new();
    let each = |one: &dunlin_app_log::Transaction<'_>| {
        positions.push(one.position());
        ControlFlow::Continue(())
    };
    Cleaner::open(alice, LOG).unwrap().clean(each).unwrap();
    assert_eq!(positions, [committed[0].position, committed[1].position]);
}
