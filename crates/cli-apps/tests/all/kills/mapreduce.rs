//! A word count with a worker on each of two nodes. A worker, the master, or a node with its worker is killed.

use super::{Nodes, below, check_survivor, kill, pass_part_of, until_killed};
use crate::mapreduce::text;
use dunlin_command_testing::{Folder, Running};
use std::time::{Duration, Instant};

fn words<'a>(path: &'a str, job: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["apps", "mapreduce", "wordcount", path, "--split", "64KiB", "--threads", "1", "--job", job];
    [&words, more].concat()
}

/// The processes of a job: the master on the first node, and a worker on each.
struct Run {
    master: Option<Running>,
    workers: [Option<Running>; 2],
}

impl Run {
    fn start(nodes: &Nodes, path: &str, job: &str, out: &str) -> Run {
        let workers = [0, 1].map(|at| Some(nodes.spawn(at, &words(path, job, &["--work"]))));
        Run { master: Some(nodes.spawn(0, &words(path, job, &["--output", out]))), workers }
    }
}

/// Runs a job, and kills a process, unless `time` is to be measured; returns whether it was in time.
fn round(number: u32, victim: usize, (path, expected, out): (&str, &str, &str), time: &mut Duration) -> bool {
    let mut nodes = Nodes::start();
    let begin = Instant::now();
    let mut run = Run::start(&nodes, path, "count", out);
    if victim < 4 {
        pass_part_of(*time);
    }
    let is_killed = match victim {
        0 | 1 => kill(run.workers[victim].take().expect("it runs")).1,
        2 => kill(run.master.take().expect("it runs")).1,
        3 => {
            nodes.kill(1);
            true
        }
        _ => false,
    };
    if let Some(master) = run.master.take() {
        let ended = master.end();
        assert_eq!(ended.code(), Some(0), "round {number}, victim {victim}: {}", ended.errors);
    }
    if victim == 4 {
        *time = begin.elapsed();
    }
    // A worker that came after the end of its job waits for another master.
    for worker in run.workers.iter_mut().filter_map(Option::take) {
        if victim == 2 {
            check_survivor(&worker.end());
        } else {
            worker.signal("INT");
            assert!(!worker.end().errors.contains("panicked"));
        }
    }
    if victim == 2 && is_killed {
        let run = Run::start(&nodes, path, "again", out);
        run.master.expect("it runs").end().well();
        run.workers.into_iter().flatten().for_each(|worker| {
            worker.signal("INT");
            worker.end();
        });
    }
    let found = std::fs::read_to_string(out).expect("written");
    assert!(found == expected, "round {number}, victim {victim}: other counts");
    std::fs::remove_file(out).expect("removed");
    is_killed
}

#[test]
fn kills_at_random_points_change_no_count() {
    let folder = Folder::new("kills-mapreduce");
    let (path, expected) = text(&folder, 100_000);
    let (out, mut time) = (folder.file("out.txt"), Duration::ZERO);
    let (mut counts, names) = ([0; 4], (&*path, &*expected, &*out));
    // The first round only measures the time of a job.
    assert!(!round(0, 4, names, &mut time));
    until_killed(|number| {
        let victim = below(4) as usize;
        let is_killed = round(number, victim, names, &mut time);
        counts[victim] += u32::from(is_killed);
        is_killed
    });
    println!(
        "killed: workers {}, masters {}, nodes with a worker {}",
        counts[0] + counts[1],
        counts[2],
        counts[3]
    );
}
