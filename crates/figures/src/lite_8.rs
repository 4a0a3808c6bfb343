//! LITE figure 8: registering memory with an RNIC, and making, mapping and freeing regions of the memory tier.

use super::lite::{PROFILE, Registering};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, Work};
use dunlin_scenario::tier::{Act, TierLoad};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-8",
        "Time to register memory, and to make, map and free a region, by its size",
        PROFILE,
        "size_kib",
    ],
    "Native: the profile's prices of a registration and of each page of 4 KiB. The tier: one process, regions with a name on the own \
     node, mapped there again; some names have their home on the other of two nodes, to which there is a connection; the arena is \
     registered before. Memory is zeroed after a free, not before its return. 'Much faster' is \
     read as by half from 64 KiB on; 'scales better' as a smaller growth from 4 KiB to the largest size.",
    runs,
    points,
);

const REGISTER: &str = "register";
const DEREGISTER: &str = "deregister";
const MALLOC: &str = "malloc";
const MAP: &str = "map";
const FREE: &str = "free";

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144],
        Effort::Quick => &[4, 64, 1024],
    };
    let mut runs = Vec::new();
    for &kibibytes in sizes {
        let bytes = u64::from(kibibytes) << 10;
        for (series, ends) in [(REGISTER, false), (DEREGISTER, true)] {
            runs.push(Run::doing(series, kibibytes, Work::Registering(Registering { bytes, ends })));
        }
        for (series, act) in [(MALLOC, Act::Malloc), (MAP, Act::Map), (FREE, Act::Free)] {
            let load = TierLoad {
                act,
                bytes: bytes as u32,
                region_bytes: bytes,
                warm_up: 8,
                measured: 24,
                ..TierLoad::of(PROFILE)
            };
            runs.push(Run::tier(series, kibibytes, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    let pairs = [(MALLOC, REGISTER), (MAP, REGISTER), (FREE, DEREGISTER)];
    for (ours, native) in pairs {
        let title = format!("{ours} over {native}");
        let mut ratios = outcomes.ratios(&title, ours, native, |outcome| outcome.mean_us);
        for point in ratios.iter_mut().filter(|point| point.x >= 64) {
            point.said = Some((Paper::AtMost(0.5), "4.2: much faster than native RDMA"));
        }
        points.append(&mut ratios);
    }
    let (Some(low), Some(high)) = (outcomes.xs().first().copied(), outcomes.xs().last().copied()) else {
        return points;
    };
    for (ours, native) in pairs {
        let growth = |series| {
            let at = |x| outcomes.get(series, x, |outcome| outcome.mean_us);
            Some(at(high)? / at(low)?)
        };
        let (Some(ours_grows), Some(native_grows)) = (growth(ours), growth(native)) else { continue };
        points.push(Point {
            series: format!("growth of {ours} over that of {native}"),
            x: high,
            unit: "ratio",
            predicted: ours_grows / native_grows,
            said: Some((Paper::AtMost(1.0), "4.2: scales better with the size of MRs")),
        });
    }
    points
}
