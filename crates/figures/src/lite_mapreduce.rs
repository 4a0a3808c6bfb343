//! LITE section 8.2, figure 18: word counts by MapReduce, over the memory tier and in one process.

use super::drawing::Drawing;
use super::lite::PROFILE;
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::mapreduce::{MapReduceLoad, MapReduceTimes, Place};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-mapreduce",
        "Run time of a word count by the number of nodes, with eight threads together (figure 18)",
        PROFILE,
        "nodes",
    ],
    "Words by chance, the Nth about N times rarer than the first, 100 000 different ones; eight partitions; without reading files. One node is one process without \
     the tier: with an index for each thread, and with the price of one index for all threads as Phoenix has it, where a word's entry was written last by another \
     thread in seven of eight cases. A word, and an entry that is reduced or merged, is charged the profile's memory latency; a line of another core its price in \
     the profile. The paper's text has relations only: LITE-MR outperforms Phoenix, since map and reduce are shorter by the split index, while merge is longer; more \
     nodes are better. Hadoop is not modelled.",
    runs,
    points,
)
.drawn(drawings);

const TIER: &str = "the tier";
const ALONE: &str = "one process, an index for each thread";
const ONE_INDEX: &str = "one process, one index";
const NODES: [u32; 3] = [2, 4, 8];

/// The value is the time of all phases in milliseconds.
impl From<MapReduceTimes> for Outcome {
    fn from(times: MapReduceTimes) -> Outcome {
        let phases_ms = times.phases.map(|time| time as f64 / 1e6);
        Outcome { value: phases_ms.iter().sum(), phases_ms, ..Outcome::default() }
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let words = match effort {
        Effort::Full => 65_536,
        Effort::Quick => 2_048,
    };
    let base = MapReduceLoad { words, ..MapReduceLoad::of(PROFILE) };
    let alone = |series, place| Run::map_reduce(series, 1, MapReduceLoad { nodes: 1, place, ..base.clone() });
    let mut runs = vec![alone(ALONE, Place::Alone), alone(ONE_INDEX, Place::OneIndex)];
    runs.extend(
        NODES.map(|nodes| {
            Run::map_reduce(TIER, nodes, MapReduceLoad { nodes: nodes as usize, ..base.clone() })
        }),
    );
    runs
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    vec![outcomes.bars(
        FIGURE.title,
        "milliseconds",
        |nodes| format!("{nodes} nodes"),
        |outcome| outcome.value,
    )]
}

/// A part of the time, and the name that points have for it.
type Part = (&'static str, fn(&Outcome) -> f64);

const PARTS: [Part; 4] = [
    ("all", |outcome| outcome.value),
    ("map", |outcome| outcome.phases_ms[0]),
    ("reduce", |outcome| outcome.phases_ms[1]),
    ("merge", |outcome| outcome.phases_ms[2]),
];

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("ms", |outcome| outcome.value);
    let said = [
        (Paper::AtLeast(1.0), "8.2: LITE-MR outperforms Phoenix"),
        (Paper::AtLeast(1.0), "8.2: shorter map phase than Phoenix by the split index"),
        (Paper::AtLeast(1.0), "8.2: shorter reduce phase than Phoenix by the split index"),
        (Paper::AtMost(1.0), "8.2: merge takes longer than in Phoenix"),
    ];
    for ((part, value), said) in PARTS.into_iter().zip(said) {
        let Some(phoenix) = outcomes.get(ONE_INDEX, 1, value) else { continue };
        for x in NODES {
            let Some(ours) = outcomes.get(TIER, x, value).filter(|ours| *ours > 0.0) else { continue };
            let series = format!("{part}, one process with one index over the tier");
            points.push(Point { series, x, unit: "ratio", predicted: phoenix / ours, said: Some(said) });
        }
    }
    let times = |x| outcomes.get(TIER, x, |outcome| outcome.value);
    if let (Some(two), Some(eight)) = (times(2), times(8)) {
        let said = Some((Paper::AtLeast(1.0), "8.2: performs better with more nodes"));
        let series = "2 nodes over 8".to_owned();
        points.push(Point { series, x: 8, unit: "ratio", predicted: two / eight, said });
    }
    points
}
