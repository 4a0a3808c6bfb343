//! RF-RPC figure 5: repeated remote fetching against server-reply, by the server's process time.

use super::rf_rpc::{THREADS, calls};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rpc::ResponseHalf;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-5",
        "Throughput of calls of one byte by process time: repeated remote fetching and server-reply",
        "rf-rpc",
        "process_time_us",
    ],
    "16 server threads and 35 clients, as in figure 9; the paper says neither. A fetch takes 256 bytes, the paper's 1.",
    runs,
    points,
);

const FETCH: &str = "remote fetching";
const REPLY: &str = "server-reply";
const RATIO: &str = "remote fetching over server-reply";

fn runs(effort: Effort) -> Vec<Run> {
    let times: &[u32] = match effort {
        Effort::Full => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15],
        Effort::Quick => &[0, 7, 10],
    };
    let run = |name: &str, response, time: u32| {
        Run::of(name, time, calls(response, THREADS, u64::from(time) * 1000, effort))
    };
    let both = |time: &u32| [run(FETCH, ResponseHalf::Fetch, *time), run(REPLY, ResponseHalf::Write, *time)];
    times.iter().flat_map(both).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    points.extend(outcomes.ratios(RATIO, FETCH, REPLY, |outcome| outcome.mops));
    say(
        &mut points,
        REPLY,
        0,
        Paper::AtMost(2.11),
        "2.2: server-reply is limited by out-bound operations, 2.11 MOPS",
    );
    for x in 7..=15 {
        say(&mut points, RATIO, x, Paper::Between(0.9, 1.1), "3.2: from 7 us on within 10%");
    }
    points
}
