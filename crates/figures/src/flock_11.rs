//! FLOCK figure 11: which threads share a queue pair, where a tenth of them have large requests.

use super::flock::{HOSTS, granted, mixed, mops, p99, ratios};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use std::time::Duration;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "flock-11",
        "Scheduling of threads, a tenth of them with large requests",
        "flock",
        "bytes_of_a_large_request",
    ],
    "As flock-6 with 32 threads of a client, 8 calls in flight each. Every tenth thread has large requests, the others 64 bytes; answers have 64 bytes. The \
     paper names no sizes: 512 to 4096 bytes are taken. A client is one handle. Without scheduling, two threads share each of its 16 queue pairs. With \
     scheduling it has 11, its part of 256; a series with 16 is beside it. Schedulings are 1 ms apart at least; two or more pass in the 40 ms before the measurement.",
    runs,
    points,
);

const THREADS: u32 = 32;
/// Queue pairs of a client whose threads share them by twos.
const BY_TWOS: u16 = (THREADS / 2) as u16;
/// A client's part of the queue pairs that the server keeps active.
const PART: u16 = (super::flock::MAX_ACTIVE / HOSTS) as u16;
const INTERVAL: Duration = Duration::from_millis(1);

const SCHEDULED: &str = "scheduling";
const SCHEDULED_BY_TWOS: &str = "scheduling, 16 queue pairs";
const UNSCHEDULED: &str = "two threads on each queue pair";

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[512, 1024, 2048, 4096],
        Effort::Quick => &[2048],
    };
    let series = [
        (SCHEDULED, PART, Some(INTERVAL)),
        (SCHEDULED_BY_TWOS, BY_TWOS, Some(INTERVAL)),
        (UNSCHEDULED, BY_TWOS, None),
    ];
    let run = |bytes: u32| {
        series.map(|(name, queue_pairs, interval)| {
            let mut load = mixed(THREADS, bytes, effort);
            (load.queue_pairs, load.thread_scheduling) = (queue_pairs, interval);
            Run::of(name, bytes, load)
        })
    };
    sizes.iter().copied().flat_map(run).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let of_small: fn(&Outcome) -> f64 = |outcome| outcome.functions[0].mean_us;
    let of_large: fn(&Outcome) -> f64 = |outcome| outcome.functions[1].mean_us;
    for (name, value) in
        [("mean of small calls", of_small), ("mean of large calls", of_large), ("99% of calls", p99)]
    {
        let mut latencies = outcomes.as_they_are("us", value);
        latencies.iter_mut().for_each(|point| point.series = format!("{}, {name}", point.series));
        points.extend(latencies);
    }
    for over in [SCHEDULED, SCHEDULED_BY_TWOS] {
        let title = format!("{over}, over {UNSCHEDULED}");
        points.extend(ratios(outcomes, &title, (over, UNSCHEDULED), mops, |_| {
            Some((Paper::Between(1.0, 1.5), "8.3.2: up to 1.5 times, by the size of large requests"))
        }));
        let title = format!("99% of calls, {over}, over {UNSCHEDULED}");
        points.extend(ratios(outcomes, &title, (over, UNSCHEDULED), p99, |_| {
            Some((Paper::Between(0.9, 1.1), "8.3.2: similar latency"))
        }));
    }
    points.extend(granted(outcomes));
    points
}
