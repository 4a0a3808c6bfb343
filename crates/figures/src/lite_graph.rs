//! LITE section 8.3, figure 19: PageRank by the graph engine: over the memory tier, on shared memory over it, and over sockets.

use super::drawing::Drawing;
use super::lite::PROFILE;
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::graph::{GraphLoad, GraphTimes, Way};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-graph", "Run time of PageRank by the number of nodes, with four threads each (figure 19)", PROFILE, "nodes"],
    "Steps of PageRank with tolerance 0.001 on an R-MAT graph with 16 edges for each vertex, without loading. Sockets: the same engine, with a request and an \
     answer on the cost model of sockets (IPoIB) for each operation on another node, in PowerGraph's place; PowerGraph's own engine is not modelled. An edge is \
     charged one line of memory that is not in the caches, a vertex two, with ten misses of a core in flight: a tenth of the profile's memory latency each. \
     With faults: a fault (page_fault_ns) and a READ of its own for each page that is loaded. Requests and links count the building of the graph, too; a busy link moves 5 bytes in a nanosecond. Without work: edges and vertices cost nothing, so that the time is that of communication.",
    runs,
    points,
)
.drawn(drawings);

const TIER: &str = "the tier";
const MEMORY: &str = "shared memory over the tier";
const FAULTS: &str = "shared memory, with faults";
const SOCKETS: &str = "sockets";
/// The quantities of [`Outcome::moved`], and their units.
const MOVED: [(&str, &str); 3] =
    [("requests of all NICs", "thousand"), ("links from all NICs", "ms"), ("the busiest of them", "ms")];
const TIER_ALONE: &str = "the tier, without work";
const MEMORY_ALONE: &str = "shared memory over the tier, without work";
const SOCKETS_ALONE: &str = "sockets, without work";

/// The value is the time of all steps in milliseconds.
impl From<GraphTimes> for Outcome {
    fn from(times: GraphTimes) -> Outcome {
        let moved = [times.requests as f64 / 1e3, times.links as f64 / 1e6, times.busiest as f64 / 1e6];
        Outcome { value: times.stepping as f64 / 1e6, moved, ..Outcome::default() }
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let scale = match effort {
        Effort::Full => 17,
        Effort::Quick => 11,
    };
    let series = [
        (TIER, Way::Tier, true),
        (MEMORY, Way::SharedMemory, true),
        (FAULTS, Way::Faults, true),
        (SOCKETS, Way::Sockets, true),
        (TIER_ALONE, Way::Tier, false),
        (MEMORY_ALONE, Way::SharedMemory, false),
        (SOCKETS_ALONE, Way::Sockets, false),
    ];
    let run = |nodes: u32| {
        series.map(|(series, way, works)| {
            let load = GraphLoad { nodes: nodes as usize, way, works, scale, ..GraphLoad::of(PROFILE) };
            Run::graph(series, nodes, load)
        })
    };
    [4, 7].into_iter().flat_map(run).collect()
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    vec![outcomes.bars(
        FIGURE.title,
        "milliseconds",
        |nodes| format!("{nodes} nodes"),
        |outcome| outcome.value,
    )]
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("ms", |outcome| outcome.value);
    let said = (Paper::Between(3.5, 5.6), "1, 8.3: outperforms PowerGraph by 3.5 to 5.6 times");
    let ratios = outcomes.ratios("sockets over the tier", SOCKETS, TIER, |outcome| outcome.value);
    points.extend(ratios.into_iter().map(|point| Point { said: Some(said), ..point }));
    let behind = (Paper::AtLeast(1.0), "figure 19: LITE-Graph-DSM is slower than LITE-Graph");
    let title = format!("{MEMORY}, over {TIER}");
    let ratios = outcomes.ratios(&title, MEMORY, TIER, |outcome| outcome.value);
    points.extend(ratios.into_iter().map(|point| Point { said: Some(behind), ..point }));
    let title = format!("{FAULTS}, over {TIER}");
    let ratios = outcomes.ratios(&title, FAULTS, TIER, |outcome| outcome.value);
    points.extend(ratios.into_iter().map(|point| Point { said: Some(behind), ..point }));
    let ahead = (Paper::AtLeast(1.0), "figure 19: LITE-Graph-DSM is faster than PowerGraph");
    let title = format!("{SOCKETS}, over {MEMORY}");
    let ratios = outcomes.ratios(&title, SOCKETS, MEMORY, |outcome| outcome.value);
    points.extend(ratios.into_iter().map(|point| Point { said: Some(ahead), ..point }));
    for (run, outcome) in outcomes.0.iter().filter(|(run, _)| [TIER, MEMORY, FAULTS].contains(&&*run.series))
    {
        for ((name, unit), predicted) in MOVED.into_iter().zip(outcome.moved) {
            let series = format!("{}, {name}", run.series);
            points.push(Point { series, x: run.x, unit, predicted, said: None });
        }
    }
    points.extend(outcomes.ratios(
        "sockets over the tier, without work",
        SOCKETS_ALONE,
        TIER_ALONE,
        |outcome| outcome.value,
    ));
    points
}
