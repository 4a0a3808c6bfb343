//! Three machines in virtual time, with two threads each.

use crate::cluster::{
    assert_same, in_virtual_time, job, plain_changes, plain_components, plain_rounds, ranks, values, well,
};
use dunlin_app_graph::{Components, Edges, GraphError, Job, PageRank, PageRankRounds, Watch, run};
use dunlin_fabric::{Fabric, Host, Signal};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::Tier;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn results_are_those_of_plain_programs_whatever_the_order_of_events() {
    for seed in 0..6 {
        in_virtual_time(seed, move |tiers| {
            let edges = Arc::new(Edges::rmat(7, 6, seed).unwrap());
            let job = job("job", 2, 1 + seed as u16 % 3);
            let (found, _) = well(&tiers, &job, &edges, &PageRankRounds { rounds: 5 });
            assert_same(&found, &plain_rounds(&edges, 5));
            let (found, steps) = well(&tiers, &job, &edges, &PageRank { tolerance: 1e-3 });
            let (expected, plain) = plain_changes(&edges, 1e-3);
            assert_same(&ranks(&found), &ranks(&expected));
            assert_eq!(steps, plain);
            let both = Arc::new((*edges).clone().both_ways());
            let (found, _) = well(&tiers, &job, &both, &Components);
            assert_eq!(values(&found), plain_components(&edges));
        });
    }
}

/// Says when the second step begins.
struct Telling(<<Sim as Fabric>::Host as Host>::Signal);

impl Watch for Telling {
    fn step(&self, step: dunlin_app_graph::Step) {
        if step.number == 2 {
            self.0.raise();
        }
    }
}

/// The process of a member is killed in its second step: the others end with the name of the barrier.
#[test]
fn a_member_that_is_killed_ends_the_job_of_the_others() {
    for seed in 0..8 {
        in_virtual_time(seed, move |tiers| {
            let edges = Arc::new(Edges::rmat(7, 6, seed).unwrap());
            let errors = Arc::new(Mutex::new(Vec::new()));
            let third = tiers[2].fabric().clone();
            let signal = third.host().signal();
            let mut tasks = Vec::new();
            for (member, tier) in tiers.into_iter().enumerate() {
                let job = Job {
                    member: member as u16,
                    patience: Duration::from_secs(3),
                    collects: false,
                    ..job("job", 2, 2)
                };
                let (edges, errors) = (Arc::clone(&edges), Arc::clone(&errors));
                let watch: Arc<dyn Watch> =
                    if member == 2 { Arc::new(Telling(signal.clone())) } else { Arc::new(()) };
                let host = tier.fabric().host().clone();
                let body = move || {
                    let result = member_of(&tier, &job, edges, watch);
                    errors.lock().unwrap().push(result);
                };
                let task = host.spawn("member", Box::new(body)).unwrap();
                if member < 2 {
                    tasks.push(task);
                }
            }
            assert!(signal.wait(0, u64::MAX));
            third.kill();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            let errors = std::mem::take(&mut *errors.lock().unwrap());
            assert_eq!(errors.len(), 2);
            for error in errors {
                match error {
                    Err(GraphError::Barrier { barrier, .. }) => {
                        assert!(barrier.starts_with("job/"), "{barrier}")
                    }
                    Err(GraphError::Operation { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
}

fn member_of(
    tier: &Tier<Sim>,
    job: &Job,
    edges: Arc<Edges>,
    watch: Arc<dyn Watch>,
) -> Result<u32, GraphError> {
    run(tier, job, edges, PageRank { tolerance: 1e-9 }, watch).map(|outcome| outcome.steps)
}
