//! FLOCK figure 2(b): RPC over datagrams, and the share of the server's processors that the verbs library
//! uses.

use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run, say};
use dunlin_scenario::datagrams::Datagrams;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-2b", "RPC over datagrams by the number of senders, 22 hosts", "flock", "senders"],
    "64 bytes each way (FLOCK 8.2), one request in flight for each sender, 32 server threads: all cores. An answer has a doorbell of \
     its own, a RECV is posted by itself. Polling in vain is time in the verbs library; beside it the share of the time in which \
     there was something to do. No congestion control.",
    runs,
    points,
);

const CALLS: &str = "UD RPC";
const READS: &str = "READ";
const SHARE: &str = "server processors in the verbs library";
const OF_WORK: &str = "the same, without polling in vain";
const GAP: &str = "READ over UD RPC";
const LARGEST: &str = "largest READ over UD RPC";
const STATED: u32 = 352;

fn runs(effort: Effort) -> Vec<Run> {
    let (senders, measured): (&[u32], u64) = match effort {
        Effort::Full => (&[22, 44, 88, 176, STATED, 704], 2_000_000),
        Effort::Quick => (&[22, 88, STATED], 50_000),
    };
    let run = |senders: &u32| {
        let load = Datagrams {
            profile: "flock".to_owned(),
            client_hosts: 22,
            senders: *senders as usize,
            threads: 32,
            bytes: 64,
            warm_up: measured / 4,
            measured,
            limit: 10_000_000_000,
        };
        let reads = Run::raw_verbs("flock-2a", READS, *senders, effort);
        std::iter::once(Run::datagrams(CALLS, *senders, load)).chain(reads)
    };
    senders.iter().flat_map(run).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mops = |outcome: &Outcome| outcome.mops;
    let mut points = outcomes.as_they_are("mops", mops);
    let mut share = |title: &str, value: fn(&Outcome) -> f64| {
        for x in outcomes.xs() {
            if let Some(share) = outcomes.get(CALLS, x, value) {
                let predicted = share * 100.0;
                points.push(Point { series: title.to_owned(), x, unit: "percent", predicted, said: None });
            }
        }
    };
    share(SHARE, |outcome| outcome.verbs_share);
    share(OF_WORK, |outcome| outcome.verbs_share_of_work);
    say(&mut points, SHARE, STATED, Paper::AtLeast(90.0), "2.2: over 90% of its cycles at 352 senders");
    let gaps = outcomes.ratios(GAP, READS, CALLS, mops);
    if let Some(largest) = gaps.iter().max_by(|one, other| one.predicted.total_cmp(&other.predicted)) {
        let said = Some((Paper::Value(2.0), "2.2: up to 2 times"));
        points.push(Point { series: LARGEST.to_owned(), said, ..largest.clone() });
    }
    points.extend(gaps);
    points
}
