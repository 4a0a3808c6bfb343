//! FLOCK section 4.1: the length from which on requests leave from memory of their threads.

use super::flock::{HOSTS, Threads, mops, p99, ratios};
use super::{Effort, Figure, Outcomes, Point, Run};
use dunlin_scenario::load::Function;
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-own", "Requests from memory of their threads, by length", "flock", "bytes_of_a_request"],
    "As flock-6 with 32 threads of a client, 8 calls in flight each, whose requests all have one length; answers have 64 bytes. Requests of a round either \
     leave from registered memory of their threads, each as a message of its own under one doorbell, or are copied into one message by the leader. The paper \
     names no length.",
    runs,
    points,
);

const THREADS: u32 = 32;
const OWN: &str = "from memory of the threads";
const COPIED: &str = "copied by the leader";
const LONE_OWN: &str = "from memory of the threads, one client on one queue pair";
const LONE_COPIED: &str = "copied by the leader, one client on one queue pair";

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[64, 128, 256, 512, 1024, 2048, 4096],
        Effort::Quick => &[256, 4096],
    };
    let run = |bytes: u32| {
        [(OWN, 0), (COPIED, u32::MAX), (LONE_OWN, 0), (LONE_COPIED, u32::MAX)].map(|(name, from)| {
            let mut load = Threads::flock(HOSTS * THREADS, 8).load(effort);
            if [LONE_OWN, LONE_COPIED].contains(&name) {
                let threads = Threads::flock(THREADS, 8);
                load = Threads { queue_pairs: 1, ..threads }.load(effort);
                load.client_hosts = 1;
            }
            let function = Function::new(load.functions[0].plan, Sizes::Fixed(bytes), Sizes::Fixed(64));
            (load.functions, load.own_memory_from) = (vec![function], from);
            Run::of(name, bytes, load)
        })
    };
    sizes.iter().copied().flat_map(run).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let mut latencies = outcomes.as_they_are("us", p99);
    latencies.iter_mut().for_each(|point| point.series = format!("{}, 99% of calls", point.series));
    points.extend(latencies);
    for (own, copied) in [(OWN, COPIED), (LONE_OWN, LONE_COPIED)] {
        points.extend(ratios(outcomes, &format!("{own}, over {copied}"), (own, copied), mops, |_| None));
    }
    points
}
