//! PageRank by rounds through the tier, beside a plain loop with as many threads on the same machine, and the time from a
//! file of edges to ranks.
//!
//! `cargo run --release -p dunlin-app-graph --example measure -- [SCALE [EDGES_A_VERTEX [THREADS]]]`

use dunlin_app_graph::{Edges, Job, Outcome, PageRankRounds, run};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Failed = Box<dyn Error + Send + Sync>;

const ROUNDS: u32 = 20;
/// Measurements of each kind, which alternate.
const TIMES: usize = 5;

/// Starts the nodes of a job.
fn nodes(count: u16, threads: u16, vertices: u32) -> Result<Vec<Tier<ShmFabric>>, Failed> {
    let job = Job { threads, ..Job::new("measure") };
    let memory = job.memory::<PageRankRounds>(vertices);
    let address = |node: u16| format!("measure-graph-{}-{count}-{node}", std::process::id());
    let peers = (0..count).map(|node| Peer::named(Scheme::Shm, &address(node)));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    let start = |peer: &Peer| {
        let config = TierConfig { memory, paths: threads, ..TierConfig::new(peers.clone(), &peer.name) };
        Ok(Tier::within(&ShmFabric::new(ShmConfig::default())?, config)?)
    };
    peers.iter().map(start).collect()
}

/// Runs all members; returns the outcome of the first one, with the longest times.
fn by_tier(tiers: &[Tier<ShmFabric>], threads: u16, edges: &Arc<Edges>) -> Result<Outcome<f64>, Failed> {
    std::thread::scope(|scope| {
        let running: Vec<_> = tiers
            .iter()
            .zip(0u16..)
            .map(|(tier, member)| {
                let job = Job {
                    members: tiers.len() as u16,
                    member,
                    threads,
                    collects: member == 0,
                    ..Job::new("measure")
                };
                let program = PageRankRounds { rounds: ROUNDS };
                scope.spawn(move || run(tier, &job, Arc::clone(edges), program, Arc::new(())))
            })
            .collect();
        let outcomes = running.into_iter().map(|member| member.join().expect("no panic"));
        let mut outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        let longest = outcomes.iter().map(|outcome| outcome.stepping).max().unwrap_or_default();
        Ok(Outcome { stepping: longest, ..outcomes.swap_remove(0) })
    })
}

/// The plain loop: rows by target in plain vectors, threads with about as many edges each, a barrier after each round.
fn plain(edges: &Edges, threads: usize) -> (Vec<f64>, Duration) {
    let vertices = edges.vertices() as usize;
    let (mut offsets, mut degrees) = (vec![0usize; vertices + 1], vec![0u32; vertices]);
    for (from, to) in edges.iter() {
        offsets[to as usize + 1] += 1;
        degrees[from as usize] += 1;
    }
    (0..vertices).for_each(|at| offsets[at + 1] += offsets[at]);
    let (mut ends, mut sources) = (offsets.clone(), vec![0u32; edges.len() as usize]);
    for (from, to) in edges.iter() {
        sources[ends[to as usize]] = from;
        ends[to as usize] += 1;
    }
    (0..vertices).for_each(|at| sources[offsets[at]..offsets[at + 1]].sort_unstable());
    // Two lists of parts in turns, one read and one written.
    let part = |rank: f64, at: usize| if degrees[at] == 0 { 0.0 } else { rank / f64::from(degrees[at]) };
    let parts: [Vec<AtomicU64>; 2] =
        [(); 2].map(|()| (0..vertices).map(|at| AtomicU64::new(part(1.0, at).to_bits())).collect());
    let bound = |thread: usize| match thread {
        0 => 0,
        thread if thread == threads => vertices,
        thread => offsets.partition_point(|sum| *sum < sources.len() * thread / threads),
    };
    let (barrier, begin) = (Barrier::new(threads), Instant::now());
    let ranks = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let (barrier, parts, offsets, sources, part) = (&barrier, &parts, &offsets, &sources, &part);
            let range = bound(thread).min(vertices)..bound(thread + 1).min(vertices);
            scope.spawn(move || {
                let mut ranks = vec![1.0; range.len()];
                for round in 0..ROUNDS as usize {
                    let (read, write) = (&parts[round % 2], &parts[(round + 1) % 2]);
                    for at in range.clone() {
                        let row = &sources[offsets[at]..offsets[at + 1]];
                        let word = |from: &u32| f64::from_bits(read[*from as usize].load(Ordering::Relaxed));
                        let sum = row.iter().fold(0.0, |sum, from| sum + word(from));
                        let rank = (1.0 - 0.85) + 0.85 * sum;
                        ranks[at - range.start] = rank;
                        write[at].store(part(rank, at).to_bits(), Ordering::Relaxed);
                    }
                    barrier.wait();
                }
                ranks
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    (ranks, begin.elapsed())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Failed> {
    let number = |at: usize, default: u32| std::env::args().nth(at).map_or(Ok(default), |text| text.parse());
    let (scale, each, threads) = (number(1, 20)?, number(2, 10)?, number(3, 2)? as u16);
    let edges = Arc::new(Edges::rmat(scale, each, 1)?);
    let (vertices, gathered) = (edges.vertices(), edges.len() as f64 * f64::from(ROUNDS));
    println!("{vertices} vertices, {} edges, {ROUNDS} rounds, {threads} threads", edges.len());
    let (one, several) = (nodes(1, threads, vertices)?, nodes(threads, 1, vertices)?);
    let (mut plains, mut ones, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let (expected, time) = plain(&edges, threads.into());
        plains.push(time.as_nanos() as f64 / gathered);
        for (tiers, threads, times) in [(&one, threads, &mut ones), (&several, 1, &mut others)] {
            let outcome = by_tier(tiers, threads, &edges)?;
            assert!(outcome.data == expected, "the results are the same bits");
            times.push(outcome.stepping.as_nanos() as f64 / gathered);
        }
    }
    let base = median(plains);
    println!("plain loop            {base:7.3} ns an edge");
    for (name, times) in [("one node", ones), ("a node for each thread", others)] {
        let time = median(times);
        println!("{name:<22}{time:7.3} ns an edge, {:.2} times the plain loop", time / base);
    }
    let path = std::env::temp_dir().join(format!("measure-graph-{}.txt", std::process::id()));
    let mut file = BufWriter::new(File::create(&path)?);
    edges.iter().try_for_each(|(from, to)| writeln!(file, "{from} {to}"))?;
    file.flush()?;
    drop((file, edges));
    let begin = Instant::now();
    let edges = Edges::read_text(BufReader::with_capacity(1 << 18, File::open(&path)?), Some(vertices))?;
    let read = begin.elapsed();
    let outcome = by_tier(&one, threads, &Arc::new(edges))?;
    println!(
        "from a file to ranks  {:?}: read {read:?}, built {:?}, ran {:?}",
        begin.elapsed(),
        outcome.building,
        outcome.stepping
    );
    Ok(std::fs::remove_file(path)?)
}
