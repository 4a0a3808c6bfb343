//! PageRank by three members on two nodes. A member, or a node with two of them, is killed.

use super::{Nodes, below, check_survivor, kill, pass_part_of, until_killed, wait};
use dunlin_app_graph::Edges;
use dunlin_command_testing::{Folder, Running, dunlin};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const PROGRAM: [&str; 9] = ["apps", "graph", "pagerank", "--rmat", "13", "--rounds", "60", "--threads", "1"];
/// The node of each member.
const PLACES: [usize; 3] = [0, 1, 1];

fn start(nodes: &Nodes, job: &str, out: &str, more: &[&str]) -> [Option<Running>; 3] {
    [0, 1, 2].map(|at| {
        let number = at.to_string();
        let base = ["--members", "3", "--wait", "30s", "--job", job, "--member", &number];
        // Each member writes all ranks to a file of its own.
        let own = format!("{out}-{at}");
        Some(nodes.spawn(PLACES[at], &[&PROGRAM[..], &base, &["--output", &own], more].concat()))
    })
}

/// The textbook's PageRank from ranks of 1, as the command writes it.
fn plain_ranks(edges: &Edges, rounds: u32) -> String {
    let mut sources = vec![Vec::new(); edges.vertices() as usize];
    let mut degrees = vec![0u32; sources.len()];
    for (from, to) in edges.iter() {
        sources[to as usize].push(from as usize);
        degrees[from as usize] += 1;
    }
    sources.iter_mut().for_each(|row| row.sort_unstable());
    let mut ranks = vec![1.0; sources.len()];
    for _ in 0..rounds {
        let sum = |row: &Vec<usize>| {
            row.iter().fold(0.0, |sum, from| sum + ranks[*from] / f64::from(degrees[*from]))
        };
        ranks = sources.iter().map(|row| (1.0 - 0.85) + 0.85 * sum(row)).collect();
    }
    ranks.iter().enumerate().map(|(vertex, rank)| format!("{vertex} {rank}\n")).collect()
}

/// The rounds of the test, and their results.
struct Rounds {
    out: String,
    expected: Vec<u8>,
    /// The time of a job over regions, and on shared memory.
    times: [Duration; 2],
    /// The kills of each member, and of the node with two of them.
    counts: [u32; 4],
    ended_well: u32,
}

impl Rounds {
    fn check(&self, member: usize, round: u32) {
        let path = format!("{}-{member}", self.out);
        assert!(
            std::fs::read(&path).expect("written") == self.expected,
            "round {round}, member {member}: other ranks"
        );
        std::fs::remove_file(path).expect("removed");
    }

    /// Runs a job, and kills a process; returns whether it was in time.
    fn run(&mut self, round: u32, victim: usize) -> bool {
        let shape = round as usize % 2;
        let more = [&[][..], &["--shared-memory"]][shape];
        let mut nodes = Nodes::start();
        let mut members = start(&nodes, "rank", &self.out, more);
        // Others wait for a member that never came, so kills begin when all have made their regions.
        wait("regions of all members", || {
            let lists = [0, 1].map(|at| nodes.run(at, &["tier", "ls"]).well().text());
            let names = lists.iter().flat_map(|list| list.split_whitespace());
            let made: BTreeSet<&str> = names.filter(|name| name.starts_with("rank/")).collect();
            let mut is_running = members.iter_mut().flatten().map(Running::is_running);
            (made.len() >= 3 || is_running.any(|is_running| !is_running)).then_some(())
        });
        let begin = Instant::now();
        if victim < 4 {
            pass_part_of(self.times[shape]);
        }
        let is_killed = match victim {
            0..3 => kill(members[victim].take().expect("it runs")).1,
            3 => {
                nodes.kill(1);
                true
            }
            _ => false,
        };
        for (at, member) in members.iter_mut().enumerate() {
            let Some(member) = member.take() else { continue };
            let ended = member.end();
            check_survivor(&ended);
            if ended.code() == Some(0) {
                self.check(at, round);
                self.ended_well += u32::from(victim < 4);
            }
            assert!(ended.code() == Some(0) || is_killed, "round {round}: {}", ended.errors);
        }
        if victim == 4 {
            self.times[shape] = begin.elapsed();
        }
        // The job is done again by members on nodes that are left.
        if is_killed && victim < 3 {
            let again = start(&nodes, "again", &self.out, more);
            let ends = again.map(|member| member.expect("it runs").end());
            assert!(ends.iter().all(|end| end.code() == Some(0)), "round {round}, victim {victim}: {ends:?}");
            (0..3).for_each(|member| self.check(member, round));
        }
        if let Some(count) = self.counts.get_mut(victim).filter(|_| is_killed) {
            *count += 1;
        }
        is_killed
    }
}

#[test]
fn kills_at_random_points_change_no_rank() {
    let folder = Folder::new("kills-graph");
    let (alone, out) = (folder.file("alone.txt"), folder.file("out.txt"));
    dunlin([&PROGRAM[..], &["--output", &alone]].concat()).well();
    let expected = std::fs::read(&alone).expect("written");
    let plain = plain_ranks(&Edges::rmat(13, 16, 1).expect("a graph"), 60);
    assert!(expected == plain.as_bytes(), "ranks that a plain program does not have");
    let mut rounds = Rounds { out, expected, times: [Duration::ZERO; 2], counts: [0; 4], ended_well: 0 };
    // The first rounds only measure the time of a job.
    assert!((0..2).all(|round| !rounds.run(round, 4)));
    until_killed(|round| rounds.run(round, below(4) as usize));
    let [one, two, three, nodes] = rounds.counts;
    println!(
        "killed: members {}, nodes with two members {nodes}; {} members ended well",
        one + two + three,
        rounds.ended_well
    );
}
