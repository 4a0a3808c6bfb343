//! RF-RPC figure 7: the store over remote fetching and over server-reply, by server threads.

use super::rf_rpc::{FETCH, REPLY, gets};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rpc::ResponseHalf;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["rf-rpc-7", "Throughput of GETs of 32 bytes by server threads, 35 clients", "rf-rpc", "server_threads"],
    "Every client is connected to every server thread. PUTs (5% in the paper) are taken as GETs. RDMA-Memcached is not modelled.",
    runs,
    points,
);

const PEAK: &str = "peak of Jakiro over that of ServerReply";
const STEADY: &str = "Jakiro over its peak";
const FALL: &str = "ServerReply over its throughput with 6 threads";

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16],
        Effort::Quick => &[3, 6, 16],
    };
    let run = |name: &str, response, threads: u32| {
        Run::of(name, threads, gets(response, threads as u16, 0, effort))
    };
    let both = |threads: &u32| {
        [run(FETCH, ResponseHalf::Fetch, *threads), run(REPLY, ResponseHalf::Write, *threads)]
    };
    threads.iter().flat_map(both).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let point = |series: &str, x, predicted| Point {
        series: series.to_owned(),
        x,
        unit: "ratio",
        predicted,
        said: None,
    };
    let (fetch, reply) =
        (outcomes.peak(FETCH, |outcome| outcome.mops), outcomes.peak(REPLY, |outcome| outcome.mops));
    if let (Some((at, fetch)), Some((under, reply))) = (fetch, reply) {
        say(&mut points, FETCH, at, Paper::Value(5.5), "5.3.1: peak throughput 5.5 MOPS");
        say(&mut points, REPLY, under, Paper::Value(2.1), "5.3.1: peak throughput 2.1 MOPS");
        points.push(point(PEAK, at, fetch / reply));
        say(&mut points, PEAK, at, Paper::Value(2.58), "5.3.1: about 158% higher");
        for x in outcomes.xs().into_iter().filter(|x| *x > 2) {
            if let Some(mops) = outcomes.get(FETCH, x, |outcome| outcome.mops) {
                points.push(point(STEADY, x, mops / fetch));
                // "Remains" is read as within a tenth.
                say(&mut points, STEADY, x, Paper::AtLeast(0.9), "5.3.1: more than 2 threads keep the peak");
            }
        }
    }
    let six = outcomes.get(REPLY, 6, |outcome| outcome.mops);
    let most = outcomes.get(REPLY, 16, |outcome| outcome.mops);
    if let (Some(six), Some(most)) = (six, most) {
        points.push(point(FALL, 16, most / six));
        say(&mut points, FALL, 16, Paper::AtMost(1.0), "5.3.1: falls with more than 6 threads");
    }
    points
}
