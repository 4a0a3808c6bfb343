//! LITE figure 5: WRITEs to a large region, native and through the memory tier, by the pages of its registration.

use super::lite::{self, PROFILE, TIER, measured, tier};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_rnic_model::Pages;
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::TierLoad;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-5-tier", "Rate of WRITEs by the size of the region that they go to", PROFILE, "region_mib"],
    "8 threads of one host write to random places of one region of another host; each waits for its completion. Native: \
     pages of 4 KiB. The tier: a path for each thread, and an arena of pages of 2 MiB or 1 GiB, or registered by physical \
     addresses as LITE's. 'Falls' is read as by more than a tenth, 'scales well' as within 5%. In pieces and in one: one \
     thread writes to an LMR of 128 MB of 32 pieces or of one; in closed loops of several threads, rates of equal runs \
     differ by more than the pieces cost.",
    runs,
    points,
);

const THREADS: u32 = 8;
/// Length of the region that is one piece or many, in MiB.
const SPLIT: u32 = 128;

fn native(bytes: u32) -> String {
    format!("native {bytes} B")
}

fn series(bytes: u32, pages: &str) -> String {
    format!("{TIER} {bytes} B, {pages}")
}

const PAGES: [(&str, Pages); 3] =
    [("2 MiB", Pages::Bytes(2 << 20)), ("1 GiB", Pages::Bytes(1 << 30)), ("physical", Pages::Physical)];
const SIZES: [u32; 2] = [64, 1024];
/// Sizes of WRITEs to a region in pieces.
const SPLIT_SIZES: [u32; 2] = [1024, 1 << 20];

/// Returns the load of all threads on the tier.
fn by_all(bytes: u32, mebibytes: u32, effort: Effort) -> TierLoad {
    TierLoad {
        region_bytes: u64::from(mebibytes) << 20,
        threads: THREADS as usize,
        paths: THREADS as u16,
        measured: measured(effort) * u64::from(THREADS),
        ..tier(bytes, effort)
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 64, 256, 1024, 4096],
        Effort::Quick => &[1, 4, 64],
    };
    let mut runs = Vec::new();
    for bytes in SIZES {
        for &mebibytes in sizes {
            let region_bytes = u64::from(mebibytes) << 20;
            let load = NativeWrites {
                region_bytes,
                threads: THREADS as usize,
                measured: measured(effort) * u64::from(THREADS),
                ..lite::native(bytes, effort)
            };
            runs.push(Run::native(&native(bytes), mebibytes, load));
            for (name, pages) in PAGES {
                let load = TierLoad { pages, ..by_all(bytes, mebibytes, effort) };
                runs.push(Run::tier(&series(bytes, name), mebibytes, load));
            }
        }
    }
    for bytes in SPLIT_SIZES {
        for (name, piece) in [("in pieces", 4 << 20), ("in one", SPLIT << 20)] {
            let region_bytes = u64::from(SPLIT) << 20;
            let measured = if bytes > 1024 { 500 } else { measured(effort) };
            let load = TierLoad { region_bytes, piece, measured, ..tier(bytes, effort) };
            runs.push(Run::tier(&series(bytes, name), SPLIT, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let over_smallest = |of: &str, said: fn(u32) -> (Paper, &'static str)| {
        let small = outcomes.get(of, 1, |outcome| outcome.mops);
        let point = |x| {
            let predicted = outcomes.get(of, x, |outcome| outcome.mops)? / small?;
            let said = Some(said(x));
            Some(Point { series: format!("{of}, over that in 1 MB"), x, unit: "ratio", predicted, said })
        };
        outcomes.xs().into_iter().filter(|x| *x > 1).filter_map(point).collect::<Vec<_>>()
    };
    for bytes in SIZES {
        points.extend(over_smallest(&native(bytes), |x| match x {
            ..=4 => (Paper::AtLeast(0.9), "2.4: thrashing above 4 MB"),
            _ => (Paper::AtMost(0.9), "4.2: performance drops quickly with the size of MRs"),
        }));
        for (name, _) in PAGES {
            points.extend(over_smallest(&series(bytes, name), |_| {
                (Paper::AtLeast(0.95), "4.2: LITE scales well")
            }));
        }
    }
    for bytes in SPLIT_SIZES {
        let title = format!("{TIER} {bytes} B, pieces of 4 MiB over one of 128 MB");
        let (over, under) = (series(bytes, "in pieces"), series(bytes, "in one"));
        let mut ratios = outcomes.ratios(&title, &over, &under, |outcome| outcome.mops);
        for point in &mut ratios {
            point.said = Some((Paper::AtLeast(0.98), "4.1: less than 2% overhead"));
        }
        points.append(&mut ratios);
    }
    points
}
