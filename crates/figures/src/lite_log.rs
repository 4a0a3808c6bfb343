//! LITE section 8.1: commits to a global log.

use super::lite::PROFILE;
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::log::{LogLoad, Way};
use dunlin_scenario::tier::Extra;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-log",
        "Rate of commits to a global log of all nodes by the number of threads of a node",
        PROFILE,
        "threads",
    ],
    "The first node stores the log; all nodes commit, each thread its own transactions, and waits for each. A commit is one FETCH_ADD and one WRITE. Unless a \
     series says otherwise: transactions of one entry of 16 bytes (52 bytes with header), four paths a node, and room for all commits. The paper does not state \
     threads: its number for two nodes is put beside one thread each. LITE, user: the paper's times for mapping, checks and crossings for each of the two \
     operations. Two calls to replicas, a baseline that the paper does not have: each writes the transaction to one of two nodes, the first of which gives the position. 'Scales with number of nodes and size of transaction' is read as commits of four and eight nodes not below those of two, and bytes of larger \
     transactions not below those of one entry.",
    runs,
    points,
);

const TWO: &str = "2 nodes";
const OWN_PATHS: &str = "2 nodes, a path for each thread";
const LITE: &str = "LITE, user, 2 nodes";
const CLEANED: &str = "2 nodes, with a cleaner";
const CALLS: &str = "2 nodes, two calls to replicas";
/// Further numbers of nodes.
const NODES: [(&str, usize); 2] = [("4 nodes", 4), ("8 nodes", 8)];
/// Entries of larger transactions.
const ENTRIES: [(&str, u32); 2] = [("2 nodes, 16 entries", 16), ("2 nodes, 64 entries", 64)];

fn runs(effort: Effort) -> Vec<Run> {
    let (threads, measured): (&[u32], u64) = match effort {
        Effort::Full => (&[1, 2, 4, 8, 16], 20_000),
        Effort::Quick => (&[1, 4], 2_000),
    };
    let mut runs = Vec::new();
    for &x in threads {
        let two = LogLoad { threads: x as usize, warm_up: measured / 4, measured, ..LogLoad::of(PROFILE) };
        let mut run = |series: &str, load: LogLoad| runs.push(Run::log(series, x, load));
        run(TWO, two.clone());
        run(OWN_PATHS, LogLoad { paths: x as u16, ..two.clone() });
        run(LITE, LogLoad { extra: Extra::User, ..two.clone() });
        run(CLEANED, LogLoad { cleaner: true, ..two.clone() });
        run(CALLS, LogLoad { way: Way::Calls, ..two.clone() });
        for (series, nodes) in NODES {
            run(series, LogLoad { nodes, ..two.clone() });
        }
        for (series, entries) in ENTRIES {
            run(series, LogLoad { entries, ..two.clone() });
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let said =
        (Paper::Value(0.833), "8.1: 833K commits per second when two nodes commit transactions of 16 B");
    for point in points.iter_mut().filter(|point| point.x == 1 && point.series == TWO) {
        point.said = Some(said);
    }
    points.extend(outcomes.ratios("two calls to replicas over 2 nodes", CALLS, TWO, |outcome| outcome.mops));
    for (series, _) in NODES {
        let ratios = outcomes.ratios(&format!("{series} over 2"), series, TWO, |outcome| outcome.mops);
        points.extend(ratios.into_iter().map(|point| Point {
            said: Some((Paper::AtLeast(1.0), "8.1: throughput scales with the number of nodes")),
            ..point
        }));
    }
    for (series, entries) in ENTRIES {
        let ratios =
            outcomes.ratios(&format!("bytes, {entries} entries over 1"), series, TWO, |outcome| outcome.mops);
        points.extend(ratios.into_iter().map(|point| Point {
            predicted: point.predicted * f64::from(entries),
            said: Some((Paper::AtLeast(1.0), "8.1: throughput scales with the size of the transaction")),
            ..point
        }));
    }
    points
}
