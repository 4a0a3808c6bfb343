//! Three nodes on shared memory.

use crate::cluster::{Ends, Texts, hire, job, led, on_shared_memory, plain, texts, well};
use dunlin_app_mapreduce::{
    Grep, Index, Input, Job, MapReduceError, Program, Progress, Split, Watch, WordCount, run_alone, work_for,
};
use dunlin_fabric::{Fabric, Task};
use dunlin_tier_node::Spec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn results_are_those_of_plain_programs() {
    let tiers = on_shared_memory();
    let input = texts(7, 40);
    let grep = Grep { pattern: b"w1".to_vec() };
    for (number, partitions) in [1, 2, 5].into_iter().enumerate() {
        let job = Job { partitions, ..job(&format!("job-{number}")) };
        assert_eq!(well(&tiers, &job, &WordCount, &input, 1 + number as u16), plain(&WordCount, &input));
        assert_eq!(well(&tiers, &job, &Index, &input, 2), plain(&Index, &input));
        assert_eq!(well(&tiers, &job, &grep, &input, 1), plain(&grep, &input));
    }
    // Nothing in, nothing out; and more partitions than keys.
    let empty = Texts(Arc::new(Vec::new()));
    assert_eq!(well(&tiers, &job("empty"), &WordCount, &empty, 1), []);
    let small = Texts(Arc::new(vec!["one two one".to_owned()]));
    let job = Job { partitions: 64, ..job("small") };
    assert_eq!(well(&tiers, &job, &WordCount, &small, 2), plain(&WordCount, &small));
}

#[test]
fn one_process_has_the_same_results() {
    let [tier, _bob, _carol] = on_shared_memory();
    let input = texts(8, 30);
    for threads in [1, 3] {
        let mut all = Vec::new();
        let host = tier.fabric().host();
        let outcome =
            run_alone(host, &job("alone"), WordCount, input.clone(), threads, Arc::new(()), |key, value| {
                all.push((key.to_vec(), value.to_vec()));
                true
            });
        assert_eq!(outcome.unwrap().keys, all.len() as u64);
        assert_eq!(all, plain(&WordCount, &input));
    }
    let panics = run_alone(tier.fabric().host(), &job("alone"), Bomb, input, 2, Arc::new(()), |_, _| true);
    assert!(matches!(&panics, Err(MapReduceError::Task(text)) if text.contains("boom")), "{panics:?}");
}

/// A program that panics in its reduce function.
#[derive(Clone)]
struct Bomb;

impl Program for Bomb {
    fn name(&self) -> String {
        "bomb".to_owned()
    }

    fn map(&self, split: Split<'_>, emit: &mut dyn FnMut(&[u8], &[u8])) {
        emit(split.source.as_bytes(), b"");
    }

    fn combine(&self, _: &[u8], _: &mut Vec<u8>, _: &[u8]) {}

    fn reduce(&self, key: &[u8], _: Vec<u8>) -> Option<Vec<u8>> {
        panic!("boom at {}", String::from_utf8_lossy(key));
    }
}

#[test]
fn a_panic_ends_the_job_everywhere_with_its_text() {
    let tiers = on_shared_memory();
    let (input, ends) = (texts(9, 10), Ends::default());
    let tasks = [0, 1, 2].map(|at: usize| hire(&tiers[at], &job("bomb"), (&Bomb, input.clone()), 1, &ends));
    let error = led(&tiers[0], &job("bomb"), &Bomb, &input, Arc::new(())).unwrap_err();
    assert!(error.to_string().contains("boom at document-"), "{error}");
    tasks.into_iter().for_each(Task::join);
    for end in &*ends.lock().unwrap() {
        assert!(matches!(end, Err(MapReduceError::Task(text)) if text.contains("boom")), "{end:?}");
    }
    assert_eq!(tiers[0].list("alice", 0).unwrap().regions, []);
}

/// Asks for the end of the job after a number of tasks.
struct Stopping(AtomicU32);

impl Watch for Stopping {
    fn progress(&self, progress: Progress) {
        self.0.store(progress.done, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 3
    }
}

#[test]
fn jobs_without_a_master_without_workers_and_with_others_end_with_a_reason() {
    let tiers = on_shared_memory();
    let input = texts(10, 200);
    let short = Job { patience: Duration::from_millis(300), ..job("short") };
    let work = |job: &Job, input: Texts| work_for(&tiers[1], job, WordCount, input, 1, Arc::new(()));
    let none = work(&short, input.clone());
    assert!(matches!(none, Err(MapReduceError::NoMaster { .. })), "{none:?}");
    let none = led(&tiers[0], &short, &WordCount, &input, Arc::new(()));
    assert!(matches!(none, Err(MapReduceError::NoWorkers)), "{none:?}");
    for bad in
        [Job { partitions: 0, ..job("x") }, Job { name: String::new(), ..job("x") }, job(&"x".repeat(250))]
    {
        assert!(matches!(work(&bad, input.clone()), Err(MapReduceError::Settings(_))));
    }
    let ends = Ends::default();
    let leading = {
        let (tier, input) = (tiers[0].clone(), input.clone());
        std::thread::spawn(move || {
            led(&tier, &job("job"), &WordCount, &input, Arc::new(Stopping(AtomicU32::new(0))))
        })
    };
    // Another principal, and another input than the master's.
    let stranger = tiers[1].acting_for("mallory").unwrap();
    let refused = work_for(&stranger, &job("job"), WordCount, input.clone(), 1, Arc::new(()));
    assert!(matches!(refused, Err(MapReduceError::Stranger { .. })), "{refused:?}");
    let other = work(&job("job"), texts(11, 200));
    assert!(matches!(other, Err(MapReduceError::Disagree { .. })), "{other:?}");
    let twice = led(&tiers[2], &job("job"), &WordCount, &input, Arc::new(()));
    assert!(matches!(twice, Err(MapReduceError::Exists { .. })), "{twice:?}");
    // Stopped by the master's watch.
    let task = hire(&tiers[1], &job("job"), (&WordCount, input), 2, &ends);
    assert!(matches!(leading.join().unwrap(), Err(MapReduceError::Stopped)));
    task.join();
    let ends = ends.lock().unwrap();
    assert!(matches!(&ends[0], Err(MapReduceError::Task(text)) if text.contains("stopped")), "{ends:?}");
}

#[test]
fn a_node_without_memory_ends_the_job_with_a_reason() {
    let tiers = on_shared_memory();
    let hog = tiers[1].malloc(tiers[1].memory() - 8192, Spec::on("bob")).unwrap();
    let (input, ends) = (texts(12, 60), Ends::default());
    let job = Job { memory: 1 << 20, ..job("full") };
    let task = hire(&tiers[1], &job, (&Index, input.clone()), 1, &ends);
    let error = led(&tiers[0], &job, &Index, &input, Arc::new(())).unwrap_err();
    assert!(error.to_string().contains("the results of a worker failed"), "{error}");
    assert!(error.to_string().contains("bytes"), "{error}");
    task.join();
    drop(hog);
}

/// An input of which one split cannot be read.
#[derive(Clone)]
struct Vanished(Texts);

impl Input for Vanished {
    fn splits(&self) -> u32 {
        self.0.splits()
    }

    fn read(
        &self,
        split: u32,
        buffer: &mut Vec<u8>,
        map: &mut dyn FnMut(Split<'_>),
    ) -> Result<(), MapReduceError> {
        match split {
            5 => Err(MapReduceError::Input {
                source_name: "f".to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            }),
            _ => self.0.read(split, buffer, map),
        }
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
}

#[test]
fn an_input_that_vanishes_ends_the_job_with_its_name() {
    let tiers = on_shared_memory();
    let (input, ends) = (Vanished(texts(13, 20)), Ends::default());
    let task = hire(&tiers[2], &job("gone"), (&WordCount, input.clone()), 2, &ends);
    let error = led(&tiers[0], &job("gone"), &WordCount, &input, Arc::new(())).unwrap_err();
    assert!(error.to_string().contains("split 5 failed: the input f cannot be read"), "{error}");
    task.join();
}
