//! Three machines in virtual time: writers of all nodes, a cleaner and a reader.

use crate::cluster::{LOG, check, clean, created, die, follow, in_virtual_time, sleep, write};
use dunlin_app_log::{Writer, evict, status};
use dunlin_fabric::{Fabric, Host};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::Tier;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Starts a task on the machine of a node; its result is there after the task has been joined.
pub(crate) fn spawn<R: Send + 'static>(
    tier: &Tier<Sim>,
    body: impl FnOnce(&Tier<Sim>) -> R + Send + 'static,
) -> (dunlin_fabric::Task, Arc<Mutex<Option<R>>>) {
    let result = Arc::new(Mutex::new(None));
    let (own, place) = (tier.clone(), Arc::clone(&result));
    let run = move || *place.lock().unwrap() = Some(body(&own));
    (tier.fabric().host().spawn("role", Box::new(run)).unwrap(), result)
}

pub(crate) fn joined<R>((task, result): (dunlin_fabric::Task, Arc<Mutex<Option<R>>>)) -> R {
    task.join();
    let result = result.lock().unwrap().take();
    result.expect("the task has ended well")
}

#[test]
fn each_transaction_is_handed_on_once_in_order_and_whole() {
    const EACH: u64 = 60;
    const WRITERS: u64 = 6;
    for seed in 0..20 {
        in_virtual_time(seed, |tiers| {
            created(&tiers[0]);
            let all = (WRITERS * EACH) as usize;
            let cleaning = spawn(&tiers[2], move |tier| clean(tier, all));
            let reading = spawn(&tiers[0], move |tier| follow(tier, all));
            let writing: Vec<_> = (0..WRITERS)
                .map(|number| spawn(&tiers[number as usize % 3], move |tier| write(tier, number, EACH)))
                .collect();
            let committed: Vec<_> = writing.into_iter().flat_map(joined).collect();
            let handed_on = joined(cleaning);
            let mut writer = Writer::open(&tiers[1], LOG).unwrap();
            writer.append(b"last").unwrap();
            let position = writer.commit().unwrap();
            let (mut read, _) = joined(reading);
            read.retain(|one| one.position != position);
            check(committed, &handed_on, &read);
            drop(writer);
            assert!(status(&tiers[0], LOG).unwrap().writers.is_empty());
        });
    }
}

/// Writers die between reservation and WRITE, and are evicted. All others lose nothing.
#[test]
fn writers_that_die_and_are_evicted_leave_no_trace() {
    const EACH: u64 = 12;
    const WRITERS: u64 = 5;
    for seed in 100..160 {
        in_virtual_time(seed, |tiers| {
            created(&tiers[0]);
            let all = (WRITERS * EACH) as usize;
            let cleaning = spawn(&tiers[1], move |tier| clean(tier, all));
            let dying = spawn(&tiers[2], |tier| {
                for round in 0..4 {
                    let (dead, _) = die(tier, 200);
                    sleep(tier, Duration::from_millis(round * 9));
                    evict(tier, LOG, dead.id()).unwrap();
                }
            });
            let writing: Vec<_> = (0..WRITERS)
                .map(|number| spawn(&tiers[number as usize % 3], move |tier| write(tier, number, EACH)))
                .collect();
            let committed: Vec<_> = writing.into_iter().flat_map(joined).collect();
            joined(dying);
            check(committed, &joined(cleaning), &[]);
        });
    }
}
