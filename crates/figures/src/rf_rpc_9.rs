//! RF-RPC figure 9: the advantage of remote fetching that remains for long requests.

use super::rf_rpc::{FETCH, REPLY, THREADS, gets};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rpc::ResponseHalf;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-9",
        "Throughput of GETs by process time, 16 server threads, 35 clients",
        "rf-rpc",
        "process_time_us",
    ],
    "Every client is connected to every server thread. PUTs (5% in the paper) are taken as GETs.",
    runs,
    points,
);

const RATIO: &str = "Jakiro over ServerReply";

fn runs(effort: Effort) -> Vec<Run> {
    let times: &[u32] = match effort {
        Effort::Full => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15],
        Effort::Quick => &[1, 5, 7, 10],
    };
    let run = |name: &str, response, time: u32| {
        Run::of(name, time, gets(response, THREADS, u64::from(time) * 1000, effort))
    };
    let both =
        |time: &u32| [run(FETCH, ResponseHalf::FetchOrWrite, *time), run(REPLY, ResponseHalf::Write, *time)];
    times.iter().flat_map(both).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    points.extend(outcomes.ratios(RATIO, FETCH, REPLY, |outcome| outcome.mops));
    for x in 1..7 {
        let source = "5.3.2: below 7 us Jakiro is about 30% to 320% higher";
        say(&mut points, RATIO, x, Paper::Between(1.3, 4.2), source);
        say(
            &mut points,
            REPLY,
            x,
            Paper::AtMost(2.1),
            "5.3.2: below 7 us bounded by out-bound operations, 2.1 MOPS",
        );
    }
    for x in 7..=15 {
        let source = "5.3.2: comparable from 7 us on; 3.2: within 10%";
        say(&mut points, RATIO, x, Paper::Between(0.9, 1.1), source);
    }
    points
}
