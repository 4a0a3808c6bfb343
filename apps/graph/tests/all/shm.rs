//! Real threads, on nodes that share memory.

use crate::cluster::{
    all, assert_same, job, on_shared_memory, plain_changes, plain_components, plain_paths, plain_rounds,
    ranks, values, well,
};
use dunlin_app_graph::{
    Components, Edges, GraphError, Job, PageRank, PageRankRounds, Paths, Program, Vertex, Watch, run,
};
use dunlin_tier_node::{Rights, Spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Threads and regions of a member: as many, fewer and more.
const SHAPES: [(u16, u16); 4] = [(2, 2), (3, 1), (1, 4), (4, 3)];

fn graphs() -> Vec<Arc<Edges>> {
    let list = |vertices, list: &[(u32, u32)]| Edges::new(vertices, list.to_vec()).unwrap();
    let path: Vec<_> = (0..299).map(|at| (at, at + 1)).collect();
    [
        Edges::rmat(10, 8, 7).unwrap(),
        // Without vertices, without edges; sinks, loops and duplicates; long paths.
        list(0, &[]),
        list(5, &[]),
        list(1, &[(0, 0)]),
        list(6, &[(0, 1), (0, 1), (1, 1), (2, 1), (3, 5), (5, 3), (5, 5)]),
        list(300, &path),
    ]
    .map(Arc::new)
    .to_vec()
}

#[test]
fn ranks_by_rounds_are_bit_for_bit_those_of_a_loop() {
    let tiers = on_shared_memory();
    for edges in graphs() {
        let expected = plain_rounds(&edges, 12);
        for (threads, regions) in SHAPES {
            let program = PageRankRounds { rounds: 12 };
            let (found, steps) = well(&tiers, &job("rounds", threads, regions), &edges, &program);
            assert_same(&found, &expected);
            assert_eq!(steps, if edges.vertices() > 0 { 12 } else { 0 });
        }
    }
}

#[test]
fn ranks_by_tolerance_are_bit_for_bit_those_of_a_loop_and_near_the_exact_ones() {
    let tiers = on_shared_memory();
    for edges in graphs() {
        let program = PageRank { tolerance: 1e-5 };
        let (expected, steps) = plain_changes(&edges, program.tolerance);
        for (threads, regions) in SHAPES {
            let found = well(&tiers, &job("tolerance", threads, regions), &edges, &program);
            assert_same(&ranks(&found.0), &ranks(&expected));
            assert_eq!(found.1, steps);
        }
        let exact = plain_rounds(&edges, 400);
        let error: f64 = exact.iter().zip(&expected).map(|(one, other)| (one - other.rank).abs()).sum();
        let bound = 0.85 / 0.15 * program.tolerance * f64::from(edges.vertices());
        assert!(error <= bound + 1e-9, "{error} over all vertices, and not {bound}");
    }
}

#[test]
fn components_and_paths_are_those_of_plain_programs() {
    let tiers = on_shared_memory();
    for edges in graphs() {
        let both = Arc::new((*edges).clone().both_ways());
        for (threads, regions) in SHAPES {
            let (found, _) = well(&tiers, &job("components", threads, regions), &both, &Components);
            assert_eq!(values(&found), plain_components(&edges));
            if edges.vertices() > 0 {
                let from = edges.vertices() / 3;
                let (found, _) = well(&tiers, &job("paths", threads, regions), &edges, &Paths { from });
                assert_eq!(values(&found), plain_paths(&edges, from));
            }
        }
    }
}

#[test]
fn regions_are_freed_and_members_may_keep_to_their_own_vertices() {
    let tiers = on_shared_memory();
    let edges = &graphs()[0];
    let own = Job { collects: false, ..job("own", 2, 2) };
    let results = all(&tiers, &own, edges, &Paths { from: 0 });
    let mut found = Vec::new();
    for outcome in results.into_iter().map(|result| result.unwrap()) {
        assert_eq!(outcome.first as usize, found.len());
        found.extend(values(&outcome.data));
    }
    assert_eq!(found, plain_paths(edges, 0));
    for tier in &tiers {
        let until = Instant::now() + Duration::from_secs(10);
        while tier.free_memory() + tier.dirty_memory() < tier.memory() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The words of locks stay.
        assert!(tier.memory() - tier.free_memory() - tier.dirty_memory() <= 64 << 10);
    }
}

#[test]
fn a_member_with_another_graph_or_program_is_found_out() {
    let tiers = on_shared_memory();
    let edges = &graphs()[0];
    let quick = Job { patience: Duration::from_secs(2), ..job("other", 1, 1) };
    let other = Arc::new(Edges::rmat(10, 8, 8).unwrap());
    let member = |member: u16, edges: &Arc<Edges>, tolerance: f64| {
        let (tier, job) = (&tiers[usize::from(member)], Job { member, ..quick.clone() });
        run(tier, &job, Arc::clone(edges), PageRank { tolerance }, Arc::new(()))
    };
    for (graph, tolerance) in [(&other, 1e-3), (edges, 1e-4)] {
        std::thread::scope(|scope| {
            let running = [0, 1]
                .map(|number| scope.spawn(move || member(number, edges, 1e-3).map(|_| ()).unwrap_err()));
            let mut errors = vec![member(2, graph, tolerance).map(|_| ()).unwrap_err()];
            errors.extend(running.map(|member| member.join().unwrap()));
            // One of them sees it; the others may see that its regions are freed.
            let is_found = |error: &GraphError| {
                matches!(error, GraphError::Disagree { .. } | GraphError::Missing { .. })
            };
            assert!(errors.iter().any(is_found), "{errors:?}");
        });
    }
    well(&tiers, &job("other", 1, 1), edges, &PageRank::default());
}

#[test]
fn settings_and_taken_names_are_errors() {
    let tiers = on_shared_memory();
    let alone = |job: &Job| {
        run(&tiers[0], job, Arc::clone(&graphs()[0]), Components, Arc::new(())).map(|_| ()).unwrap_err()
    };
    let one = Job::new("one");
    for wrong in [
        Job::new(""),
        Job::new(&"x".repeat(201)),
        Job { members: 0, ..one.clone() },
        Job { member: 1, ..one.clone() },
        Job { threads: 65, ..one.clone() },
        Job { regions: Some(0), ..one.clone() },
    ] {
        let error = alone(&wrong);
        assert!(matches!(error, GraphError::Setting { .. }), "{error:?}");
    }
    let taken = tiers[1].malloc(64, Spec::here().named("one/0-1023")).unwrap();
    let error = alone(&one);
    assert!(matches!(error, GraphError::Exists { .. }), "{error:?}");
    taken.free().unwrap();
    assert!(tiers[0].map("one/0-1023", Rights::READ).is_err());
    run(&tiers[0], &one, Arc::clone(&graphs()[0]), Components, Arc::new(())).unwrap();
}

/// A member that dies at a barrier, or before it, ends the job of all. Nobody hangs.
#[test]
fn a_member_that_does_not_come_ends_the_job_of_the_others() {
    let tiers = on_shared_memory();
    let edges = &graphs()[0];
    let quick = Job { patience: Duration::from_millis(300), ..job("late", 2, 1) };
    let two = [0, 1];
    std::thread::scope(|scope| {
        let running = two.map(|member| {
            let (tier, job) = (&tiers[usize::from(member)], Job { member, ..quick.clone() });
            scope.spawn(move || run(tier, &job, Arc::clone(edges), Components, Arc::new(())).map(|_| ()))
        });
        for member in running {
            match member.join().unwrap() {
                Err(GraphError::Barrier { barrier, .. }) => assert_eq!(barrier, "late/start"),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Stops the job in its third step.
#[derive(Default)]
struct Stopping(AtomicU32);

impl Watch for Stopping {
    fn is_stopped(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) >= 2
    }
}

/// Panics in the second step.
#[derive(Clone, Copy)]
struct Broken;

impl Program for Broken {
    type Data = u32;
    type Message = u32;
    const NONE: u32 = 0;
    const CACHES: bool = false;
    const NAME: &'static str = "broken";

    fn start(&self, _: Vertex) -> u32 {
        0
    }

    fn gather(&self, message: u32) -> u32 {
        message
    }

    fn sum(&self, one: u32, _: u32) -> u32 {
        one
    }

    fn apply(&self, vertex: Vertex, _: u32, data: &mut u32) {
        *data += 1;
        assert!(vertex.id != 17 || *data < 2, "broken on purpose");
    }

    fn scatter(&self, _: Vertex, data: &mut u32) -> u32 {
        *data
    }

    fn steps(&self) -> Option<u32> {
        Some(5)
    }
}

#[test]
fn a_job_that_is_stopped_or_panics_ends_with_all_its_threads() {
    let tiers = on_shared_memory();
    let edges = &graphs()[0];
    let three = Job { threads: 3, ..Job::new("stopped") };
    let stopped =
        run(&tiers[0], &three, Arc::clone(edges), PageRank::default(), Arc::new(Stopping::default()));
    assert!(matches!(stopped, Err(GraphError::Stopped)), "{stopped:?}");
    let broken = run(&tiers[0], &three, Arc::clone(edges), Broken, Arc::new(()));
    assert!(matches!(broken, Err(GraphError::Panicked)), "{broken:?}");
    run(&tiers[0], &three, Arc::clone(edges), PageRank::default(), Arc::new(())).unwrap();
}
