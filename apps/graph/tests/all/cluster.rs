//! Common parts: clusters of nodes, jobs of all their members, and plain programs with the same results.

use dunlin_app_graph::{Edges, GraphError, Job, Least, Outcome, Program, Rank, run};
use dunlin_fabric::{Fabric, Host, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NAMES: [&str; 3] = ["alice", "bob", "carol"];

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str, principal: &str) -> Tier<F> {
    let peer = |name: &&str| {
        let mut peer = Peer::named(scheme, &format!("{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NAMES.iter().map(peer).collect(), name);
    (config.memory, config.paths, config.principal) = (4 << 20, 4, principal.to_owned());
    Tier::within(fabric, config).unwrap()
}

/// Starts three nodes on shared memory, each with a fabric and a principal of its own.
pub(crate) fn on_shared_memory() -> [Tier<ShmFabric>; 3] {
    on_shared_memory_of(NAMES)
}

/// As [`on_shared_memory`], for these principals.
pub(crate) fn on_shared_memory_of(principals: [&str; 3]) -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("graph-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    [0, 1, 2].map(|at| {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        start(&fabric, Scheme::Shm, &tag, NAMES[at], principals[at])
    })
}

/// Runs `body` with three nodes of three principals on machines of their own in virtual time.
pub(crate) fn in_virtual_time(seed: u64, body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static) {
    in_virtual_time_of(NAMES, seed, body);
}

/// As [`in_virtual_time`], for these principals.
pub(crate) fn in_virtual_time_of(
    principals: [&'static str; 3],
    seed: u64,
    body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static,
) {
    let settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        body([0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "graph", NAMES[at], principals[at])));
    })
    .unwrap();
}

pub(crate) fn job(name: &str, threads: u16, regions: u16) -> Job {
    Job { members: 3, threads, regions: Some(regions), patience: Duration::from_secs(20), ..Job::new(name) }
}

pub(crate) type Results<D> = Vec<Result<Outcome<D>, GraphError>>;

/// Runs all members, each as a task of its node; returns their results.
pub(crate) fn all<F: Fabric, P: Program + Clone>(
    tiers: &[Tier<F>],
    job: &Job,
    edges: &Arc<Edges>,
    program: &P,
) -> Results<P::Data> {
    let place = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..job.members)
        .map(|member| {
            let tier = tiers[usize::from(member)].clone();
            let (job, edges, program) = (Job { member, ..job.clone() }, Arc::clone(edges), program.clone());
            let place = Arc::clone(&place);
            let host = tier.fabric().host().clone();
            let body = move || {
                let result = run(&tier, &job, edges, program, Arc::new(()));
                place.lock().unwrap().push((member, result));
            };
            host.spawn("member", Box::new(body)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(dunlin_fabric::Task::join);
    let mut results = std::mem::take(&mut *place.lock().unwrap());
    results.sort_by_key(|(member, _)| *member);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs all members well; returns the data, which all agree on, and the steps.
pub(crate) fn well<F: Fabric, P: Program<Data: PartialEq> + Clone>(
    tiers: &[Tier<F>],
    job: &Job,
    edges: &Arc<Edges>,
    program: &P,
) -> (Vec<P::Data>, u32) {
    let outcomes: Vec<_> =
        all(tiers, job, edges, program).into_iter().map(|result| result.unwrap()).collect();
    assert_eq!(outcomes.len(), usize::from(job.members));
    assert!(outcomes.iter().all(|one| one.data == outcomes[0].data && one.steps == outcomes[0].steps));
    assert_eq!(outcomes[0].data.len(), edges.vertices() as usize);
    (outcomes[0].data.clone(), outcomes[0].steps)
}

/// Sources of the edges to each vertex, in ascending order, and the numbers of edges that leave each.
fn rows(edges: &Edges) -> (Vec<Vec<u32>>, Vec<u32>) {
    let vertices = edges.vertices() as usize;
    let (mut sources, mut degrees) = (vec![Vec::new(); vertices], vec![0; vertices]);
    for (from, to) in edges.iter() {
        sources[to as usize].push(from);
        degrees[from as usize] += 1;
    }
    sources.iter_mut().for_each(|row| row.sort_unstable());
    (sources, degrees)
}

/// The textbook's PageRank from ranks of 1.
pub(crate) fn plain_rounds(edges: &Edges, rounds: u32) -> Vec<f64> {
    let (sources, degrees) = rows(edges);
    let mut ranks = vec![1.0; edges.vertices() as usize];
    for _ in 0..rounds {
        let part = |from: &u32| ranks[*from as usize] / f64::from(degrees[*from as usize]);
        ranks = sources
            .iter()
            .map(|row| (1.0 - 0.85) + 0.85 * row.iter().map(part).fold(0.0, |sum, part| sum + part))
            .collect();
    }
    ranks
}

/// PageRank by changes: a vertex passes on how its rank has changed if that is above the tolerance.
pub(crate) fn plain_changes(edges: &Edges, tolerance: f64) -> (Vec<Rank>, u32) {
    let (sources, degrees) = rows(edges);
    let vertices = edges.vertices() as usize;
    let mut ranks = vec![Rank { rank: 1.0 - 0.85, told: 0.0 }; vertices];
    let mut sums = vec![0.0; vertices];
    for step in 0.. {
        let mut changes = vec![0.0; vertices];
        for (at, rank) in ranks.iter_mut().enumerate() {
            let change = rank.rank - rank.told;
            if degrees[at] > 0 && change.abs() > tolerance {
                changes[at] = change / f64::from(degrees[at]);
                rank.told = rank.rank;
            }
        }
        if changes.iter().all(|change| *change == 0.0) {
            return (ranks, step);
        }
        for (at, row) in sources.iter().enumerate() {
            for from in row {
                sums[at] += changes[*from as usize];
            }
            if !row.is_empty() {
                ranks[at].rank = (1.0 - 0.85) + 0.85 * sums[at];
            }
        }
    }
    unreachable!("changes get smaller")
}

/// The least number of each vertex's component.
pub(crate) fn plain_components(edges: &Edges) -> Vec<u32> {
    let mut labels: Vec<u32> = (0..edges.vertices()).collect();
    loop {
        let before = labels.clone();
        for (from, to) in edges.iter() {
            let least = labels[from as usize].min(labels[to as usize]);
            (labels[from as usize], labels[to as usize]) = (least, least);
        }
        if before == labels {
            return labels;
        }
    }
}

/// Distances by breadth-first search.
pub(crate) fn plain_paths(edges: &Edges, from: u32) -> Vec<u32> {
    let mut targets = vec![Vec::new(); edges.vertices() as usize];
    edges.iter().for_each(|(from, to)| targets[from as usize].push(to));
    let mut distances = vec![u32::MAX; targets.len()];
    let mut front = vec![from];
    distances[from as usize] = 0;
    while !front.is_empty() {
        let mut next = Vec::new();
        for vertex in front {
            for to in &targets[vertex as usize] {
                if distances[*to as usize] == u32::MAX {
                    distances[*to as usize] = distances[vertex as usize] + 1;
                    next.push(*to);
                }
            }
        }
        front = next;
    }
    distances
}

pub(crate) fn values(data: &[Least]) -> Vec<u32> {
    data.iter().map(|least| least.value).collect()
}

/// Checks that the two are the same bits.
#[track_caller]
pub(crate) fn assert_same(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len());
    let differing = one.iter().zip(other).position(|(one, other)| one.to_bits() != other.to_bits());
    if let Some(at) = differing {
        panic!("vertex {at}: {} and {}", one[at], other[at]);
    }
}

pub(crate) fn ranks(data: &[Rank]) -> Vec<f64> {
    data.iter().map(|rank| rank.rank).collect()
}
