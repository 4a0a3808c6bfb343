//! LITE figure 17: operations on whole regions of the memory tier.

use super::lite::PROFILE;
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::tier::{Act, TierLoad};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-17", "Time of operations on a region by its size", PROFILE, "size_bytes"],
    "One thread. The regions lie on another node; memcpy goes to a third node, memcpy (local) to a region beside the source, memmove \
     to the same region by half of its length on. Memory is copied and set at the profile's price of a byte. 'Worse' is read as \
     slower, for 64 KiB and more.",
    runs,
    points,
);

const SET: &str = "memset";
const BY_WRITE: &str = "memset by WRITE";
const SERIES: [(&str, Act); 6] = [
    ("malloc", Act::MallocThere),
    (SET, Act::Set),
    (BY_WRITE, Act::SetByWrite),
    ("memcpy", Act::Copy),
    ("memcpy (local)", Act::CopyThere),
    ("memmove", Act::Move),
];

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[64, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20],
        Effort::Quick => &[1024, 65_536, 1 << 20],
    };
    let mut runs = Vec::new();
    for &bytes in sizes {
        for (series, act) in SERIES {
            let load = TierLoad {
                nodes: 3,
                act,
                bytes,
                region_bytes: bytes.into(),
                warm_up: 8,
                measured: 24,
                ..TierLoad::of(PROFILE)
            };
            runs.push(Run::tier(series, bytes, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    let title = format!("{BY_WRITE} over {SET}");
    let mut ratios = outcomes.ratios(&title, BY_WRITE, SET, |outcome| outcome.mean_us);
    for point in ratios.iter_mut().filter(|point| point.x >= 65_536) {
        point.said = Some((Paper::AtLeast(1.0), "7.1: memset by WRITE is worse when the LMR grows"));
    }
    points.append(&mut ratios);
    points
}
