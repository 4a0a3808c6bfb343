//! Three machines in virtual time.

use crate::cluster::{SHAPES, add, bytes, close, each, in_virtual_time, open};
use dunlin_app_memory::{Lost, Memory, MemoryConfig, MemoryError, PAGE};
use dunlin_fabric::{Address, Fabric, Host, Scheme, Signal, Site};
use dunlin_fabric_sim::Sim;
use dunlin_tier_client::AttachConfig;
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
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

/// The node stands still for longer than an operation of the tier may take, as on a machine that is stopped for a while.
#[test]
fn a_page_is_read_although_its_node_stands_still_for_a_while() {
    const TIMEOUT: u64 = 10_000_000;
    for (seed, prefetched) in [(1, 1), (2, 1), (3, 9)] {
        Sim::run(seed, move |sim| {
            let node = sim.process_on(0);
            let peer = Peer::named(Scheme::Sim, "one").unwrap();
            let config = TierConfig { memory: 1 << 20, ..TierConfig::new(vec![peer], "one") };
            let tier = Tier::within(&node, config).unwrap();
            let address = Address::new(Scheme::Sim, "one-attach").unwrap();
            let _processes = ProcessServer::serve(&node, &tier, ProcessConfig::new(address.clone())).unwrap();
            let timeout = Duration::from_nanos(TIMEOUT);
            let attach = AttachConfig { timeout, ..AttachConfig::new(address) };
            let attached = dunlin_tier_client::Tier::attach_with(&sim, attach).unwrap();
            let memory = Memory::open(&attached, &MemoryConfig::new("m", 20, 1, 0)).unwrap();
            // Another thread of the node may stand still in the place of the one that answers.
            let stood_still = (0..100).any(|_| {
                memory.forget(0..memory.size()).unwrap();
                let begin = sim.host().now();
                node.stall_next(Site::WorkerLoop, 3 * TIMEOUT / 2);
                memory.prefetch(0..prefetched * PAGE_BYTES).unwrap();
                sim.host().now() - begin > TIMEOUT
            });
            assert!(stood_still);
            memory.close().unwrap();
        })
        .unwrap();
    }
}
