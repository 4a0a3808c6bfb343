//! Three machines in virtual time.

use crate::cluster::{Ends, hire, in_virtual_time, job, led, plain, texts, well};
use dunlin_app_mapreduce::{Index, Job, MapReduceError, Phase, Progress, Watch, WordCount, run_alone};
use dunlin_fabric::{Fabric, Host, Signal, Task};
use dunlin_fabric_sim::Sim;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn results_are_those_of_plain_programs_whatever_the_order_of_events() {
    for seed in 0..6 {
        in_virtual_time(seed, move |tiers| {
            let input = texts(seed, 12);
            let job = Job { partitions: 1 + seed as u32, ..job("job") };
            assert_eq!(well(&tiers, &job, &WordCount, &input, 2), plain(&WordCount, &input));
            assert_eq!(well(&tiers, &job, &Index, &input, 1), plain(&Index, &input));
        });
    }
}

/// Raises a signal when a number of tasks is done.
struct Telling {
    signal: <<Sim as Fabric>::Host as Host>::Signal,
    at: u32,
    is_told: AtomicBool,
}

impl Watch for Telling {
    fn progress(&self, progress: Progress) {
        if progress.done >= self.at && progress.phase != Phase::Done {
            self.is_told.store(true, Ordering::Relaxed);
            self.signal.raise();
        }
    }
}

/// The third machine, its node and its workers are killed after each number of tasks. The results are the same.
#[test]
fn a_machine_that_is_killed_has_its_tasks_done_again() {
    // 12 splits, 3 partitions, 2 merges.
    for at in 0..17 {
        in_virtual_time(100 + u64::from(at), move |tiers| {
            let input = texts(3, 12);
            let job = Job { partitions: 3, lease: Duration::from_millis(100), ..job("job") };
            let third = tiers[2].fabric().clone();
            let signal = third.host().signal();
            let watch = Arc::new(Telling { signal: signal.clone(), at, is_told: AtomicBool::new(false) });
            let ends = Ends::default();
            let [one, two, gone] =
                [0, 1, 2].map(|of: usize| hire(&tiers[of], &job, (&WordCount, input.clone()), 1, &ends));
            drop(gone);
            let killer = {
                let watch = Arc::clone(&watch);
                let [first, _, third_tier] = tiers.clone();
                drop(third_tier);
                let body = move || {
                    let told = signal.wait(0, u64::MAX);
                    assert!(told && watch.is_told.load(Ordering::Relaxed));
                    third.kill();
                };
                first.fabric().host().spawn("killer", Box::new(body)).unwrap()
            };
            let (entries, _) = led(&tiers[0], &job, &WordCount, &input, watch.clone()).unwrap();
            assert_eq!(entries, plain(&WordCount, &input), "at {at}");
            [one, two, killer].into_iter().for_each(Task::join);
            let ends = ends.lock().unwrap();
            assert!(ends.iter().any(|end| end.is_ok()), "{ends:?}");
        });
    }
}

/// Remembers what it hears.
#[derive(Default)]
struct Hearing(Mutex<Vec<Progress>>);

impl Watch for Hearing {
    fn progress(&self, progress: Progress) {
        self.0.lock().unwrap().push(progress);
    }
}

#[test]
fn progress_goes_through_all_phases() {
    in_virtual_time(1, |tiers| {
        let (input, ends) = (texts(6, 12), Ends::default());
        let job = Job { partitions: 3, ..job("job") };
        let task = hire(&tiers[1], &job, (&WordCount, input.clone()), 2, &ends);
        let watch = Arc::new(Hearing::default());
        led(&tiers[0], &job, &WordCount, &input, watch.clone()).unwrap();
        task.join();
        let heard = watch.0.lock().unwrap();
        let mut phases: Vec<Phase> = heard.iter().map(|one| one.phase).collect();
        phases.dedup();
        assert_eq!(phases, [Phase::Map, Phase::Reduce, Phase::Merge, Phase::Done]);
        // 12 splits, 3 partitions, 2 merges.
        assert!(
            heard.is_sorted_by_key(|one| one.done) && heard.iter().all(|one| one.tasks == 17),
            "{heard:?}"
        );
        assert_eq!(heard.last().map(|one| one.done), Some(17));
    });
}

/// Asks for the end of the job after some tasks.
#[derive(Default)]
struct Stopping(AtomicBool);

impl Watch for Stopping {
    fn progress(&self, progress: Progress) {
        self.0.fetch_or(progress.done > 3, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The master does not wait for the leases of workers that stop because others of their process do.
#[test]
fn a_job_that_is_stopped_ends_before_the_lease_of_its_workers() {
    for seed in 0..4 {
        in_virtual_time(200 + seed, move |tiers| {
            let (input, job, host) = (texts(5, 40), job("job"), tiers[0].fabric().host().clone());
            let ends = Ends::default();
            let begin = host.now();
            let tasks =
                [0, 1, 2].map(|of: usize| hire(&tiers[of], &job, (&WordCount, input.clone()), 3, &ends));
            let watch = Arc::new(Stopping::default());
            let stopped = led(&tiers[0], &job, &WordCount, &input, watch.clone());
            assert!(matches!(stopped, Err(MapReduceError::Stopped)), "{stopped:?}");
            assert!(host.now() - begin < job.lease.as_nanos() as u64, "{} ns", host.now() - begin);
            tasks.into_iter().for_each(Task::join);
            let watch: Arc<dyn Watch> = watch;
            let stopped = run_alone(&host, &job, WordCount, input, 3, watch, |_, _| true);
            assert!(matches!(stopped, Err(MapReduceError::Stopped)), "{stopped:?}");
            assert!(host.now() - begin < job.lease.as_nanos() as u64, "{} ns", host.now() - begin);
        });
    }
}

/// The machine of the master is killed: workers end with a reason.
#[test]
fn workers_of_a_dead_master_end() {
    for seed in 0..4 {
        in_virtual_time(seed, move |tiers| {
            let input = texts(4, 30);
            let job =
                Job { lease: Duration::from_millis(100), patience: Duration::from_secs(3), ..job("job") };
            let first = tiers[0].fabric().clone();
            let signal = first.host().signal();
            let watch = Arc::new(Telling { signal: signal.clone(), at: 6, is_told: AtomicBool::new(false) });
            let ends = Ends::default();
            let master = {
                let (tier, job, input) = (tiers[0].clone(), job.clone(), input.clone());
                let body = move || drop(led(&tier, &job, &WordCount, &input, watch));
                first.host().spawn("master", Box::new(body)).unwrap()
            };
            drop(master);
            let workers =
                [1, 2].map(|of: usize| hire(&tiers[of], &job, (&WordCount, input.clone()), 2, &ends));
            assert!(signal.wait(0, u64::MAX));
            first.kill();
            workers.into_iter().for_each(Task::join);
            let ends = ends.lock().unwrap();
            assert_eq!(ends.len(), 2);
            let is_expected = |end: &Result<(), MapReduceError>| {
                // One that comes late finds no master.
                matches!(end, Err(MapReduceError::Master(_) | MapReduceError::NoMaster { .. }))
            };
            assert!(ends.iter().all(is_expected), "{ends:?}");
        });
    }
}
