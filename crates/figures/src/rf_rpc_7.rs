//! RF-RPC figure 7: the store over remote fetching and over server-reply, by server threads.

use super::rf_rpc::{FETCH, FETCH_WAITS, REPLY, REPLY_WAITS, SYSTEMS};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["rf-rpc-7", "Throughput of GETs of 32 bytes by server threads, 35 clients", "rf-rpc", "server_threads"],
    "Every client is connected to every server thread. PUTs (5% in the paper) are taken as GETs. RDMA-Memcached is not modelled. \
     'That waits': who has written, client or server thread, waits for the completion before anything else, as in the paper's test of \
     rates; its text says of neither system whether it does.",
    runs,
    points,
);

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16],
        Effort::Quick => &[3, 6, 16],
    };
    let run = |threads: u32| {
        SYSTEMS.map(|system| Run::of(system.name, threads, system.gets(threads as u16, effort)))
    };
    threads.iter().flat_map(|threads| run(*threads)).collect()
}

fn mops(outcome: &super::Outcome) -> f64 {
    outcome.mops
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for (fetching, replying) in [(FETCH, REPLY), (FETCH_WAITS, REPLY_WAITS)] {
        let mut ratio = |series: String, x, predicted, paper, source| {
            let said = Some((paper, source));
            points.push(Point { series, x, unit: "ratio", predicted, said });
        };
        let (fetch, reply) = (outcomes.peak(fetching, mops), outcomes.peak(replying, mops));
        if let (Some((at, fetch)), Some((_, reply))) = (fetch, reply) {
            let title = format!("peak of {fetching} over that of {replying}");
            ratio(title, at, fetch / reply, Paper::Value(2.58), "5.3.1: about 158% higher");
            for x in outcomes.xs().into_iter().filter(|x| *x > 2) {
                let Some(mops) = outcomes.get(fetching, x, mops) else { continue };
                // "Remains" is interpreted as within a tenth.
                let source = "5.3.1: more than 2 threads keep the peak";
                ratio(format!("{fetching} over its peak"), x, mops / fetch, Paper::AtLeast(0.9), source);
            }
        }
        let (six, most) = (outcomes.get(replying, 6, mops), outcomes.get(replying, 16, mops));
        if let (Some(six), Some(most)) = (six, most) {
            let title = format!("{replying} over its throughput with 6 threads");
            let source = "5.3.1: falls with more than 6 threads";
            ratio(title, 16, most / six, Paper::AtMost(1.0), source);
        }
        if let (Some((at, _)), Some((under, _))) = (fetch, reply) {
            say(&mut points, fetching, at, Paper::Value(5.5), "5.3.1: peak throughput 5.5 MOPS");
            say(&mut points, replying, under, Paper::Value(2.1), "5.3.1: peak throughput 2.1 MOPS");
        }
    }
    points
}
