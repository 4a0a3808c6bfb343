//! Three machines in virtual time.

use crate::cluster::{SHAPES, add, bytes, close, each, in_virtual_time, open};
use dunlin_app_memory::{Lost, MemoryError, PAGE};
use dunlin_fabric::{Fabric, Host, Signal};
use std::time::Duration;

const PAGE_BYTES: u64 = PAGE as u64;

#[test]
fn increments_count_whatever_the_order_of_events() {
    for seed in 0..8 {
        in_virtual_time(seed, move |tiers| {
            let all = open(&tiers, "m", SHAPES[seed as usize % 4]);
            let host = tiers[0].fabric().host();
            let all = each(host, all, move |at, memory| {
                for round in 0..12 {
                    // All pages of two homes, by turns with others.
                    let first = (round + at as u64) % 3;
                    let mut held =
                        memory.acquire_all(&[0..1, first * PAGE_BYTES..(first + 1) * PAGE_BYTES]).unwrap();
                    let before = u64::from_le_bytes(bytes(&memory, 0));
                    add(&memory, 0, 1);
                    if first > 0 {
                        add(&memory, first * PAGE_BYTES, 1);
                    }
                    held.release().unwrap();
                    drop(held);
                    assert!(u64::from_le_bytes(bytes(&memory, 0)) > before);
                }
                memory
            });
            let numbers = [0, 1, 2].map(|page| u64::from_le_bytes(bytes(&all[2], page * PAGE_BYTES)));
            assert_eq!(numbers[0], 36);
            assert_eq!(numbers[1] + numbers[2], 24);
            close(&tiers[0], all);
        });
    }
}

/// The third machine is killed with a page that it has written: the next writer gets the last release, and hears of it.
/// Pages whose home was there are lost.
#[test]
fn a_machine_that_is_killed_loses_its_changes_only() {
    for seed in 0..8 {
        in_virtual_time(100 + seed, move |tiers| {
            let mut all = open(&tiers, "m", SHAPES[seed as usize % 4]);
            let (third, fabric) = (all.pop().unwrap(), tiers[2].fabric().clone());
            {
                let mut held = all[0].acquire(0..1).unwrap();
                all[0].write(0, b"right").unwrap();
                held.release().unwrap();
            }
            let held = fabric.host().signal();
            let (raised, host) = (held.clone(), fabric.host().clone());
            let body = move || {
                let pages = third.acquire(0..1).unwrap();
                third.write(0, b"wrong").unwrap();
                raised.raise();
                // It is killed here.
                host.signal().wait(0, u64::MAX);
                drop(pages);
            };
            drop(fabric.host().spawn("third", Box::new(body)).unwrap());
            assert!(held.wait(0, u64::MAX));
            fabric.kill();
            let mut next = all[1].acquire_all(&[0..1, PAGE_BYTES..PAGE_BYTES + 1]).unwrap();
            assert_eq!(next.lost(), [Lost { page: 0, member: 2 }]);
            assert_eq!(&bytes::<_, 5>(&all[1], 0), b"right");
            all[1].write(0, b"again").unwrap();
            next.release().unwrap();
            drop(next);
            assert_eq!(&bytes::<_, 5>(&all[0], 0), b"again");
            let gone = all[0].acquire_within(2 * PAGE_BYTES..3 * PAGE_BYTES, Duration::from_secs(20));
            assert!(matches!(gone, Err(MemoryError::HomeEnded { home: 2 })), "{gone:?}");
        });
    }
}
