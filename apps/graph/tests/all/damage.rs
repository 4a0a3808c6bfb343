//! A region that somebody writes to is hostile: whatever it holds, the job ends well or with a typed error.

use crate::cluster::on_shared_memory;
use dunlin_app_graph::{Edges, GraphError, Job, PageRank, Paths, Step, Watch, run};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier_node::{Rights, Tier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const REGION: &str = "job/0-255";

/// Writes to the region of the job when the first step has begun.
struct Writing {
    tier: Tier<ShmFabric>,
    offset: u64,
    bytes: Vec<u8>,
}

impl Watch for Writing {
    fn step(&self, step: Step) {
        if step.number == 1 {
            let region = self.tier.map(REGION, Rights::WRITE).unwrap();
            region.write(self.offset, &self.bytes).unwrap();
        }
    }
}

fn edges() -> Arc<Edges> {
    Arc::new(Edges::rmat(8, 8, 3).unwrap())
}

/// Headers and messages are written before they are read in each step, and data in the end.
#[test]
fn bytes_that_were_not_announced_do_no_harm() {
    let [alice, bob, _carol] = on_shared_memory();
    let expected = run(&alice, &Job::new("job"), edges(), Paths { from: 0 }, Arc::new(())).unwrap().data;
    for (offset, length) in [(0, 128), (128, 2 * 2048), (128 + 2 * 2048, 2048)] {
        let watch = Writing { tier: bob.clone(), offset, bytes: vec![0xff; length] };
        let outcome = run(&alice, &Job::new("job"), edges(), Paths { from: 0 }, Arc::new(watch)).unwrap();
        assert_eq!(outcome.data, expected, "{length} bytes at {offset}");
    }
}

/// Stops a job that would go on for ever with the messages that it finds.
#[derive(Default)]
struct Patient(AtomicU32);

impl Watch for Patient {
    fn is_stopped(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) > 300
    }
}

#[test]
fn a_region_that_is_written_all_the_time_is_a_typed_error() {
    let [alice, bob, _carol] = on_shared_memory();
    let is_over = AtomicBool::new(false);
    let (mut found, mut number) = (0, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let Ok(region) = bob.map(REGION, Rights::WRITE) else { continue };
                for at in 0..2000u64 {
                    let noise = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                    if region.write(at * 40 % (region.len() - 64), &[noise, noise].concat()).is_err() {
                        break;
                    }
                }
            }
        });
        while found < 3 && number < 2000 {
            number += 1;
            let result = run(
                &alice,
                &Job::new("job"),
                edges(),
                PageRank { tolerance: 1e-9 },
                Arc::new(Patient::default()),
            );
            match result {
                Ok(_) | Err(GraphError::Stopped) => {}
                Err(GraphError::Damaged { .. } | GraphError::Disagree { .. }) => found += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(found > 0, "the region was written all the time");
}
