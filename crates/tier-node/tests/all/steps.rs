//! Long operations in steps, while others have short ones: all bytes move, and an error says whether some have.

use crate::cluster::{in_virtual_time, on_shared_memory, spawn};
use dunlin_fabric::{Fabric, Host, Task};
use dunlin_tier_node::{Lmr, Spec, Tier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More than three steps, and no whole number of them.
const LONG: usize = 200_003;

/// Has alice write 64 bytes at a time on bob until the flag is set.
fn shorts<F: Fabric>(alice: &Tier<F>, ends: &Arc<AtomicBool>) -> Task {
    let region = alice.malloc(64, Spec::on("bob")).unwrap();
    let (host, ends) = (alice.fabric().host().clone(), Arc::clone(ends));
    let body = move || {
        while !ends.load(Ordering::Relaxed) {
            region.write(0, &[1; 64]).unwrap();
            host.sleep(host.now() + 2_000);
        }
    };
    spawn(alice, body)
}

fn all_bytes_move<F: Fabric>(tiers: &[Tier<F>; 3]) {
    let [alice, ..] = tiers;
    let ends = Arc::new(AtomicBool::new(false));
    let short = shorts(alice, &ends);
    let longs: Vec<Task> = (0..3u8)
        .map(|thread| {
            // With a node in between, a step lies on both.
            let spec = if thread == 2 { Spec::spread(["bob", "carol"]) } else { Spec::on("bob") };
            let region = alice.malloc(LONG as u64 + 5, spec).unwrap();
            let body = move || {
                for round in 0..6u8 {
                    let bytes: Vec<u8> =
                        (0..LONG).map(|at| (at ^ (at >> 8)) as u8 ^ (7 * round + thread)).collect();
                    region.write(3, &bytes).unwrap();
                    let mut back = vec![0; LONG];
                    region.read(3, &mut back).unwrap();
                    assert!(back == bytes, "thread {thread}, round {round}");
                }
                let mut ends = [9; 2];
                region.read(LONG as u64 + 3, &mut ends).unwrap();
                assert_eq!(ends, [0; 2]);
            };
            spawn(alice, body)
        })
        .collect();
    longs.into_iter().for_each(Task::join);
    ends.store(true, Ordering::Relaxed);
    short.join();
}

#[test]
fn all_bytes_of_long_operations_move() {
    on_shared_memory(all_bytes_move);
    for seed in 0..4 {
        in_virtual_time(seed, true, all_bytes_move);
    }
}

fn is_changed<F: Fabric>(region: &Lmr<F>, old: u8) -> bool {
    let mut bytes = vec![0; LONG];
    region.read(0, &mut bytes).unwrap();
    bytes.iter().any(|byte| *byte != old)
}

#[test]
fn an_error_behind_the_first_step_says_that_bytes_were_written() {
    in_virtual_time(3, true, |tiers| {
        let [alice, ..] = tiers;
        let ends = Arc::new(AtomicBool::new(false));
        let short = shorts(alice, &ends);
        let region = alice.malloc(LONG as u64, Spec::on("bob")).unwrap();
        let host = alice.fabric().host();
        let (mut late, mut whole, mut none) = (0, 0, 0);
        let mut old = 0;
        for round in 1..60u64 {
            let new = round as u8;
            let written = region.within(Duration::from_nanos(round * 2_000)).write(0, &vec![new; LONG]);
            // A WRITE that is under way may land still.
            host.sleep(host.now() + 1_000_000);
            match written {
                Ok(()) => whole += 1,
                Err(error) if error.may_have_executed() => late += 1,
                Err(error) => {
                    assert!(!is_changed(&region, old), "round {round}: {error:?}");
                    none += 1;
                }
            }
            region.write(0, &vec![new; LONG]).unwrap();
            old = new;
        }
        assert!(late > 0 && whole > 0, "{late} {whole} {none}");
        ends.store(true, Ordering::Relaxed);
        short.join();
    });
}
