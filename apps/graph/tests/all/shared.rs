//! The engine on shared memory: the results are those of the plain programs, too.

use crate::cluster::{
    assert_same, in_virtual_time_of, job, on_shared_memory_of, plain_changes, plain_components, plain_paths,
    plain_rounds, ranks, values,
};
use dunlin_app_graph::{
    Components, Edges, GraphError, Job, PageRank, PageRankRounds, Paths, Program, Space, Watch,
    run_in_memory, run_shared, shared_pages,
};
use dunlin_app_memory::MemoryError;
use dunlin_fabric::{Fabric, Host, RealHost, Signal, Task};
use dunlin_tier_node::Tier;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

/// Members of a shared memory act for one principal.
const ONE: [&str; 3] = ["alice"; 3];

/// Runs all members well; returns the data, which all agree on, and the steps.
fn well<F: Fabric, P: Program<Data: PartialEq> + Clone>(
    tiers: &[Tier<F>],
    job: &Job,
    edges: &Arc<Edges>,
    program: &P,
) -> (Vec<P::Data>, u32) {
    let place = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<Task> = (0..job.members)
        .map(|number| {
            let tier = tiers[usize::from(number)].clone();
            let (job, edges, program) =
                (Job { member: number, ..job.clone() }, Arc::clone(edges), program.clone());
            let place = Arc::clone(&place);
            let host = tier.fabric().host().clone();
            let body = move || {
                let result = run_in_memory(&tier, None, &job, edges, program, Arc::new(()));
                place.lock().unwrap().push(result);
            };
            host.spawn("member", Box::new(body)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(Task::join);
    let outcomes: Vec<_> = place.lock().unwrap().drain(..).map(|result| result.unwrap()).collect();
    assert_eq!(outcomes.len(), usize::from(job.members));
    assert!(outcomes.iter().all(|one| one.data == outcomes[0].data && one.steps == outcomes[0].steps));
    (outcomes[0].data.clone(), outcomes[0].steps)
}

fn graphs() -> Vec<Arc<Edges>> {
    let list = |vertices, list: &[(u32, u32)]| Edges::new(vertices, list.to_vec()).unwrap();
    let path: Vec<_> = (0..299).map(|at| (at, at + 1)).collect();
    // Several pages for each member; less than a page; without vertices, without edges; sinks, loops and duplicates.
    [
        Edges::rmat(12, 4, 7).unwrap(),
        list(300, &path),
        list(0, &[]),
        list(5, &[]),
        list(6, &[(0, 1), (0, 1), (1, 1), (2, 1), (3, 5), (5, 3), (5, 5)]),
    ]
    .map(Arc::new)
    .to_vec()
}

#[test]
fn results_on_three_nodes_are_those_of_plain_programs() {
    let tiers = on_shared_memory_of(ONE);
    for edges in &graphs() {
        for threads in [1, 3] {
            let job = job("shared", threads, threads);
            let (found, steps) = well(&tiers, &job, edges, &PageRankRounds { rounds: 6 });
            assert_same(&found, &plain_rounds(edges, 6));
            assert_eq!(steps, if edges.vertices() > 0 { 6 } else { 0 });
            let (found, steps) = well(&tiers, &job, edges, &PageRank { tolerance: 1e-3 });
            let (expected, plain) = plain_changes(edges, 1e-3);
            assert_same(&ranks(&found), &ranks(&expected));
            assert_eq!(steps, plain);
            let both = Arc::new((**edges).clone().both_ways());
            let (found, _) = well(&tiers, &job, &both, &Components);
            assert!(values(&found) == plain_components(edges));
        }
    }
}

/// Loads and stores of a mapped memory, whose pages come by faults.
#[test]
fn a_mapped_memory_has_the_same_results() {
    let tiers = on_shared_memory_of(ONE);
    let edges = &graphs()[0];
    for threads in [1, 4] {
        let job = Job { members: 1, ..job("mapped", threads, 1) };
        let (address, own) = (Some(0x2000_0000_0000), Arc::clone(edges));
        let run = run_in_memory(&tiers[0], address, &job, own, Paths { from: 3 }, Arc::new(()));
        let outcome = run.unwrap();
        assert!(values(&outcome.data) == plain_paths(edges, 3));
    }
}

#[test]
fn members_may_keep_to_their_own_vertices() {
    let tiers = on_shared_memory_of(ONE);
    let edges = graphs()[0].clone();
    let found: Vec<_> = std::thread::scope(|scope| {
        let run = |number: u16| {
            let (tier, edges) = (tiers[usize::from(number)].clone(), Arc::clone(&edges));
            let job = Job { member: number, collects: false, ..job("own", 2, 2) };
            move || run_in_memory(&tier, None, &job, edges, Paths { from: 0 }, Arc::new(())).unwrap()
        };
        let members = [0, 1, 2].map(|number| scope.spawn(run(number)));
        members.map(|member| member.join().unwrap()).into()
    });
    let mut all = Vec::new();
    for outcome in found {
        assert_eq!(outcome.first as usize, all.len());
        all.extend(values(&outcome.data));
    }
    assert!(all == plain_paths(&edges, 0));
}

#[test]
fn results_are_the_same_whatever_the_order_of_events() {
    for seed in 0..4 {
        in_virtual_time_of(ONE, seed, move |tiers| {
            let edges = Arc::new(Edges::rmat(11, 2, seed).unwrap());
            let job = job("shared", 2, 2);
            let (found, _) = well(&tiers, &job, &edges, &PageRankRounds { rounds: 3 });
            assert_same(&found, &plain_rounds(&edges, 3));
            let both = Arc::new((*edges).clone().both_ways());
            let (found, _) = well(&tiers, &job, &both, &Components);
            assert!(values(&found) == plain_components(&edges));
        });
    }
}

/// Says when the second step begins.
struct Telling<S: Signal>(S);

impl<S: Signal> Watch for Telling<S> {
    fn step(&self, step: dunlin_app_graph::Step) {
        if step.number == 2 {
            self.0.raise();
        }
    }
}

/// The process of a member is killed in its second step: the others end with an error of the shared memory.
#[test]
fn a_member_that_is_killed_ends_the_job_of_the_others() {
    for seed in 0..6 {
        in_virtual_time_of(ONE, seed, move |tiers| {
            let edges = Arc::new(Edges::rmat(11, 2, seed).unwrap());
            let results = Arc::new(Mutex::new(Vec::new()));
            let third = tiers[2].fabric().clone();
            let signal = third.host().signal();
            let mut tasks = Vec::new();
            for (number, tier) in (0u16..).zip(tiers) {
                let patience = Duration::from_secs(3);
                let job = Job { member: number, patience, collects: false, ..job("killed", 2, 2) };
                let (edges, results) = (Arc::clone(&edges), Arc::clone(&results));
                let watch: Arc<dyn Watch> =
                    if number == 2 { Arc::new(Telling(signal.clone())) } else { Arc::new(()) };
                let host = tier.fabric().host().clone();
                let body = move || {
                    let result =
                        run_in_memory(&tier, None, &job, edges, PageRankRounds { rounds: 50 }, watch);
                    results.lock().unwrap().push(result.map(drop));
                };
                let task = host.spawn("member", Box::new(body)).unwrap();
                if number < 2 {
                    tasks.push(task);
                }
            }
            assert!(signal.wait(0, u64::MAX));
            third.kill();
            tasks.into_iter().for_each(Task::join);
            let results = std::mem::take(&mut *results.lock().unwrap());
            assert_eq!(results.len(), 2);
            for result in results {
                assert!(matches!(result, Err(GraphError::Shared { .. })), "{result:?}");
            }
        });
    }
}

/// Words of one process, as several members see them.
#[derive(Clone)]
struct Words {
    words: Arc<Vec<AtomicU64>>,
    barrier: Arc<Barrier>,
    /// A word that is damaged before a barrier, counted from 0, and its value.
    damage: Option<(usize, usize, u64)>,
    barriers: Arc<AtomicU64>,
}

impl Space for Words {
    type Held<'a> = ();

    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn fetch(&self, _: Range<usize>) -> Result<(), MemoryError> {
        Ok(())
    }

    fn acquire(&self, _: &[Range<usize>]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn release(&self, (): (), _: &[Range<usize>]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn barrier(&self) -> Result<(), MemoryError> {
        self.barrier.wait();
        let number = self.barriers.fetch_add(1, Ordering::Relaxed);
        if let Some((at, word, value)) = self.damage
            && at as u64 == number
        {
            self.words[word].store(value, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn words(members: u16, pages: u32) -> Words {
    Words {
        words: Arc::new((0..pages as usize * 512).map(|_| AtomicU64::new(0)).collect()),
        barrier: Arc::new(Barrier::new(members.into())),
        damage: None,
        barriers: Arc::default(),
    }
}

/// Nothing of the engine needs the tier.
#[test]
fn plain_words_of_a_process_will_do() {
    let edges = Arc::new(Edges::rmat(11, 4, 1).unwrap());
    let space = Arc::new(words(2, shared_pages::<PageRank>(2, edges.vertices())));
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |member| {
            let (space, edges) = (Arc::clone(&space), Arc::clone(&edges));
            let job = Job { members: 2, member, threads: 2, ..Job::new("words") };
            move || {
                run_shared(&RealHost, &space, &job, edges, PageRank { tolerance: 1e-4 }, Arc::new(()))
                    .unwrap()
            }
        };
        let members = [0, 1].map(|member| scope.spawn(run(member)));
        members.map(|member| member.join().unwrap()).into()
    });
    let (expected, steps) = plain_changes(&edges, 1e-4);
    for outcome in results {
        assert_same(&ranks(&outcome.data), &ranks(&expected));
        assert_eq!(outcome.steps, steps);
    }
}

/// What another member stores is bounded before it is used.
#[test]
fn lines_that_make_no_sense_are_refused() {
    let edges = Arc::new(Edges::rmat(11, 4, 1).unwrap());
    let pages = shared_pages::<PageRankRounds>(1, edges.vertices());
    let run = |space: Words| {
        let job = Job::new("damage");
        run_shared(
            &RealHost,
            &Arc::new(space),
            &job,
            Arc::clone(&edges),
            PageRankRounds { rounds: 4 },
            Arc::new(()),
        )
    };
    // The line of the second step begins the page.
    for (word, value) in [(0, 7), (1, 9), (2, u64::MAX), (3, u64::MAX), (4, u64::MAX), (4, 0)] {
        let error = run(Words { damage: Some((1, word, value)), ..words(1, pages) }).map(drop).unwrap_err();
        match word {
            0 => assert!(matches!(error, GraphError::Disagree { .. }), "{error}"),
            _ => assert!(matches!(error, GraphError::Damaged { .. }), "{error}"),
        }
    }
    let error = run(words(1, pages - 1)).map(drop).unwrap_err();
    assert!(matches!(error, GraphError::Setting { .. }), "{error}");
    assert!(run(words(1, pages)).is_ok());
}
