//! LITE figure 4: WRITEs to many small regions, native and through the memory tier.

use super::lite::{PROFILE, TIER, native, tier, warm_up};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::{Extra, TierLoad};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-4-tier", "Time of a WRITE of 64 bytes by the number of regions of 4 KB", PROFILE, "regions"],
    "One thread writes to a random place of a random region of another host, inline, and waits for the completion. The \
     time includes posting and polling. Native: a registration for each region. The tier: a node in each process; one \
     registered arena of pages of 2 MiB. Handles that exceed the core's cache (256 KiB at 128 bytes each) cost two lines \
     of the last-level cache, beyond 15 MiB two of memory. 'Scales well' is read as within 5%, 'drops' as by a tenth.",
    runs,
    points,
);

const NATIVE: &str = "native";

fn runs(effort: Effort) -> Vec<Run> {
    let regions: &[u32] = match effort {
        Effort::Full => &[1, 10, 50, 100, 200, 500, 1_000, 10_000, 50_000],
        Effort::Quick => &[1, 100, 1_000],
    };
    let pair = |regions: &u32| {
        let (regions, region_bytes) = (*regions, 4096);
        let warm_up = warm_up(regions, effort);
        let native = NativeWrites { regions, region_bytes, warm_up, ..native(64, effort) };
        let load = TierLoad { regions, region_bytes, extra: Extra::HandleLines, warm_up, ..tier(64, effort) };
        [Run::native(NATIVE, regions, native), Run::tier(TIER, regions, load)]
    };
    regions.iter().flat_map(pair).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    for of in [NATIVE, TIER] {
        let Some(one) = outcomes.get(of, 1, |outcome| outcome.mean_us) else { continue };
        for x in outcomes.xs().into_iter().filter(|x| *x > 1) {
            let Some(time) = outcomes.get(of, x, |outcome| outcome.mean_us) else { continue };
            let said = match (of, x) {
                (NATIVE, ..=100) => (Paper::AtMost(1.1), "2.4: memory pressure above 100 MRs only"),
                (NATIVE, _) => (Paper::AtLeast(1.1), "4.2: performance drops quickly with the number of MRs"),
                _ => (Paper::AtMost(1.05), "4.2: LITE scales well"),
            };
            points.push(Point {
                series: format!("{of}, over that with 1 region"),
                x,
                unit: "ratio",
                predicted: time / one,
                said: Some(said),
            });
        }
    }
    points.extend(outcomes.ratios("the tier over native", TIER, NATIVE, |outcome| outcome.mean_us));
    points
}
