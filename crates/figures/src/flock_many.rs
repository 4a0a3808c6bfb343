//! FLOCK with many threads, which the paper has not: 100 client hosts, up to 10 000 threads in all.

use super::flock::{MAX_ACTIVE, Threads, granted, mops, three_ways};
use super::{Effort, Figure, Outcomes, Point, Run};
use dunlin_rpc::Sharing;
use dunlin_scenario::load::Load;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-many", "FLOCK with up to 10 000 threads of 100 clients", "flock", "threads"],
    "Not in the paper. 64 bytes each way, one server with 32 threads, clients with as many hardware threads as threads. At most 256 queue pairs in all, as in \
     flock-6. The server's memory is that of its lanes: rings, control lines and tables, without the memory for large payloads, which is made at first use.",
    runs,
    points,
);

const HOSTS: u32 = 100;
const WINDOWS: [u16; 2] = [1, 8];

fn series(in_flight: u16) -> String {
    format!("FLOCK, {in_flight} in flight")
}

fn load(threads: u32, in_flight: u16, effort: Effort) -> Load {
    let (sharing, queue_pairs) = (Sharing::Combined, threads.min(MAX_ACTIVE));
    let load = Threads { number: threads, queue_pairs, sharing, in_flight }.load(effort);
    Load { client_hosts: HOSTS as usize, client_cores: None, ..load }
}

fn runs(effort: Effort) -> Vec<Run> {
    let (threads, windows): (&[u32], &[u16]) = match effort {
        Effort::Full => (&[100, 200, 500, 1000, 2000, 5000, 10_000], &WINDOWS),
        Effort::Quick => (&[200, 1000], &WINDOWS[..1]),
    };
    let run = |threads: u32, window: u16| Run::of(series(window), threads, load(threads, window, effort));
    windows.iter().flat_map(|window| threads.iter().map(|threads| run(*threads, *window))).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = three_ways(outcomes);
    for window in WINDOWS {
        let Some((_, most)) = outcomes.peak(&series(window), mops) else { continue };
        let title = format!("{} over the most of any number of threads", series(window));
        for x in outcomes.xs() {
            let Some(rate) = outcomes.get(&series(window), x, mops) else { continue };
            points.push(Point {
                series: title.clone(),
                x,
                unit: "ratio",
                predicted: rate / most,
                said: None,
            });
        }
    }
    let mut memory = outcomes.as_they_are("KiB", |outcome| outcome.server_kib_of_a_host);
    memory.iter_mut().for_each(|point| point.series = format!("{}, server memory of a host", point.series));
    points.extend(memory);
    points.extend(granted(outcomes));
    points
}
