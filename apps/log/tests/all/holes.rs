//! Writers that die or pause between the reservation and the WRITE.

use crate::cluster::{LOG, clean, created, die, in_virtual_time, on_shared_memory, sleep, small, write};
use dunlin_app_log::{Cleaned, Cleaner, LogConfig, LogError, Start, Tail, Writer, create, evict, status};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal};
use dunlin_fabric_sim::Sim;
use dunlin_tier_client::AttachConfig;
use dunlin_tier_node::{AnyTier, ProcessConfig, ProcessServer};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nothing takes so long.
const HANG: Nanos = 60_000_000_000;

/// Cleans until something happens; returns it with the positions that were handed on.
pub(crate) fn until<T: AnyTier>(
    tier: &T,
    cleaner: &mut Cleaner<T>,
    is_enough: impl Fn(&Cleaned) -> bool,
) -> (Cleaned, Vec<u64>) {
    let (mut positions, begin) = (Vec::new(), tier.host().now());
    while tier.host().now() - begin < HANG {
        let cleaned = cleaner
            .clean(|one| {
                positions.push(one.position());
                ControlFlow::Continue(())
            })
            .unwrap();
        if is_enough(&cleaned) {
            return (cleaned, positions);
        }
        sleep(tier, Duration::from_micros(500));
    }
    panic!("nothing happens");
}

/// The hole is closed when nobody alive can own it and its owner was evicted, and not before.
fn a_hole_is_closed_after_its_writer_was_evicted<T: AnyTier>([alice, bob, carol]: [&T; 3]) {
    created(alice);
    let before = write(alice, 1, 2);
    let (dead, position) = die(bob, 300);
    let id = dead.id();
    let mut quiet = Writer::open_as(carol, LOG, "a quiet one").unwrap();
    quiet.keep_alive().unwrap();
    let after = write(alice, 2, 3);
    let mut cleaner = Cleaner::open(carol, LOG).unwrap();
    let mut tail = Tail::open(alice, LOG, Start::At(position)).unwrap();
    let (found, positions) = until(carol, &mut cleaner, |cleaned| cleaned.hole.is_some());
    assert_eq!(positions, before.iter().map(|one| one.position).collect::<Vec<_>>());
    let hole = found.hole.unwrap();
    assert_eq!((hole.position, hole.end), (position, after[0].position));
    let suspects: Vec<_> = hole.writers.iter().map(|writer| (writer.id, writer.label.as_str())).collect();
    assert_eq!(suspects, [(id, "the dead one")], "the quiet writer has nothing under way");
    assert!(tail.read().unwrap().is_none());
    assert!(matches!(evict(alice, LOG, id ^ 2), Err(LogError::NoWriter { .. })));
    evict(alice, LOG, id).unwrap();
    let (closed, positions) = until(carol, &mut cleaner, |cleaned| cleaned.closed > 0);
    assert_eq!(closed.closed, hole.end - hole.position);
    assert_eq!(positions, after.iter().map(|one| one.position).collect::<Vec<_>>());
    // The reader passes over the hole.
    assert_eq!(tail.read().unwrap().unwrap().position(), after[0].position);
    quiet.append(b"still here").unwrap();
    quiet.commit().unwrap();
    assert!(matches!(evict(alice, LOG, id), Err(LogError::NoWriter { .. })));
}

#[test]
fn on_shared_memory_a_hole_is_closed_after_its_writer_was_evicted() {
    let [alice, bob, carol] = &on_shared_memory();
    a_hole_is_closed_after_its_writer_was_evicted([alice, bob, carol]);
}

#[test]
fn in_virtual_time_a_hole_is_closed_after_its_writer_was_evicted() {
    for seed in 0..4 {
        in_virtual_time(seed, |tiers| {
            let [alice, bob, carol] = &tiers;
            a_hole_is_closed_after_its_writer_was_evicted([alice, bob, carol]);
        });
    }
}

/// Reserves room in a process, which is killed then; returns the position.
pub(crate) fn die_in<T: AnyTier>(
    process: &Sim,
    dying: impl FnOnce() -> (Writer<T>, u64) + Send + 'static,
) -> u64 {
    let (reserved, place) = (process.host().signal(), Arc::new(AtomicU64::new(0)));
    let (raised, position, host) = (reserved.clone(), Arc::clone(&place), process.host().clone());
    let body = move || {
        let (dead, reserved) = dying();
        // Nothing of it runs any more.
        let _ = ManuallyDrop::new(dead);
        position.store(reserved, Ordering::Relaxed);
        raised.raise();
        // It is killed here.
        host.signal().wait(0, u64::MAX);
    };
    drop(process.host().spawn("dying", Box::new(body)).unwrap());
    assert!(reserved.wait(0, u64::MAX));
    process.kill();
    place.load(Ordering::Relaxed)
}

fn attached(fabric: &Sim, address: Address) -> dunlin_tier_client::Tier<Sim> {
    dunlin_tier_client::Tier::attach_with(fabric, AttachConfig::new(address)).unwrap()
}

/// The process of a writer ends, or its node: the hole that it left is closed, and nobody evicts it.
#[test]
fn in_virtual_time_the_hole_of_a_killed_writer_is_closed() {
    for seed in 0..8 {
        in_virtual_time(200 + seed, move |[alice, bob, carol]| {
            create(&carol, LOG, &LogConfig { lease: Duration::from_secs(2), ..small() }).unwrap();
            // The log is on bob's node, and carol's is the home of its name.
            let before = write(&carol, 1, 2);
            let address = Address::new(Scheme::Sim, "log-attach").unwrap();
            let _processes =
                ProcessServer::serve(alice.fabric(), &alice, ProcessConfig::new(address.clone())).unwrap();
            let position = if seed % 2 == 0 {
                let node = alice.clone();
                die_in(alice.fabric(), move || die(&node, 300))
            } else {
                let process = alice.fabric().process_on(0);
                let fabric = process.clone();
                die_in(&process, move || die(&attached(&fabric, address), 300))
            };
            let after = write(&carol, 2, 3);
            let mut cleaner = Cleaner::open(&bob, LOG).unwrap();
            let (found, positions) = until(&bob, &mut cleaner, |cleaned| cleaned.ended.is_some());
            assert_eq!(found.ended.unwrap().label, "the dead one");
            assert_eq!(positions, before.iter().map(|one| one.position).collect::<Vec<_>>());
            let (closed, positions) = until(&bob, &mut cleaner, |cleaned| cleaned.closed > 0);
            assert_eq!(closed.closed, after[0].position - position);
            assert_eq!(positions, after.iter().map(|one| one.position).collect::<Vec<_>>());
            assert!(status(&bob, LOG).unwrap().writers.is_empty());
        });
    }
}

/// The row of a killed process is used again if there is no other, and its hole is closed.
#[test]
fn in_virtual_time_the_row_of_a_killed_writer_is_used_again() {
    for seed in 0..4 {
        in_virtual_time(300 + seed, move |[alice, bob, carol]| {
            create(&alice, LOG, &LogConfig { writers: 2, ..small() }).unwrap();
            let address = Address::new(Scheme::Sim, "log-attach").unwrap();
            let _processes =
                ProcessServer::serve(alice.fabric(), &alice, ProcessConfig::new(address.clone())).unwrap();
            let lives = Writer::open(&bob, LOG).unwrap();
            let process = alice.fabric().process_on(0);
            let fabric = process.clone();
            let position = die_in(&process, move || die(&attached(&fabric, address), 300));
            let opened = (0..20_000).find_map(|_| match Writer::open(&carol, LOG) {
                Err(LogError::TooManyWriters { .. }) => {
                    sleep(&carol, Duration::from_micros(500));
                    None
                }
                opened => Some(opened.unwrap()),
            });
            let mut writer = opened.expect("the end of the process is noticed");
            let full = Writer::open(&carol, LOG);
            assert!(matches!(full, Err(LogError::TooManyWriters { .. })), "{full:?}");
            assert!(status(&bob, LOG).unwrap().writers.iter().any(|one| one.id == lives.id()));
            drop(lives);
            writer.append(b"after").unwrap();
            let after = writer.commit().unwrap();
            let mut cleaner = Cleaner::open(&bob, LOG).unwrap();
            let (closed, positions) = until(&bob, &mut cleaner, |cleaned| cleaned.closed > 0);
            assert_eq!((closed.closed, positions), (after - position, vec![after]));
        });
    }
}

/// A living writer that has not written for long keeps its place, however long that takes.
#[test]
fn a_slow_writer_is_waited_for() {
    let [alice, bob, carol] = &on_shared_memory();
    created(alice);
    // It stands for a writer that is slow: registered, and its place not written.
    let (slow, position) = die(bob, 300);
    let id = slow.id();
    let after = write(alice, 1, 2);
    let mut cleaner = Cleaner::open(carol, LOG).unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        let cleaned = cleaner.clean(|_| panic!("nothing is whole at the head")).unwrap();
        assert_eq!(cleaned.bytes, 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = status(alice, LOG).unwrap();
    assert_eq!((status.head, status.writers.len()), (position, 1));
    assert_eq!(status.writers[0].id, id);
    drop(cleaner);
    evict(carol, LOG, id).unwrap();
    assert_eq!(clean(bob, 2), after);
}

/// Holes at the end of the log, and several in a row, are closed too; a log that is full of them has room again.
#[test]
fn a_log_full_of_holes_has_room_again() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let dead: Vec<_> = (0..9).map(|_| die(bob, 336).0).collect();
    let mut writer = Writer::open(alice, LOG).unwrap();
    writer.append(&[2; 900]).unwrap();
    assert!(matches!(writer.commit_within(Duration::from_millis(5)), Err(LogError::Full { .. })));
    dead.iter().for_each(|dead| evict(alice, LOG, dead.id()).unwrap());
    std::thread::scope(|scope| {
        let cleaning = scope.spawn(|| clean(bob, 1));
        assert_eq!(writer.commit().unwrap(), cleaning.join().unwrap()[0].position);
    });
}

#[test]
fn an_evicted_writer_that_waited_does_not_write() {
    let [alice, bob, _] = &on_shared_memory();
    created(alice);
    let mut writer = Writer::open(bob, LOG).unwrap();
    write(alice, 1, 6);
    while status(alice, LOG).unwrap().tail < 4096 - 1024 {
        write(alice, 1, 1);
    }
    let short = Duration::from_millis(5);
    loop {
        writer.append(&[3; 900]).unwrap();
        if writer.commit_within(short).is_err() {
            break;
        }
    }
    evict(alice, LOG, writer.id()).unwrap();
    assert!(matches!(writer.keep_alive(), Err(LogError::Full { .. } | LogError::Evicted)));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| writer.commit());
        let mut cleaner = Cleaner::open(bob, LOG).unwrap();
        while !commit.is_finished() {
            cleaner.clean(|_| ControlFlow::Continue(())).unwrap();
        }
        let commit = commit.join().unwrap();
        assert!(matches!(commit, Ok(_) | Err(LogError::Evicted)), "{commit:?}");
    });
}

#[test]
fn the_table_of_writers_is_bounded() {
    let [alice, ..] = &on_shared_memory();
    created(alice);
    let mut writers: Vec<_> = (0..16).map(|_| Writer::open(alice, LOG).unwrap()).collect();
    assert!(matches!(Writer::open(alice, LOG), Err(LogError::TooManyWriters { writers: 16 })));
    writers.pop();
    let long = "a label with more bytes than a row of the table has room for";
    let writer = Writer::open_as(alice, LOG, long).unwrap();
    let status = status(alice, LOG).unwrap();
    let row = status.writers.iter().find(|row| row.id == writer.id()).unwrap();
    assert_eq!(row.label, long[..48]);
}
