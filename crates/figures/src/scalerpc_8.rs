//! ScaleRPC figure 8: throughput by the number of clients, and by the number of their machines.

use super::flock::ratios;
use super::scalerpc::{HOSTS, System, common_notes, mops, over_own};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};

pub(super) const CLIENTS: Figure = Figure::predicted(
    ["scalerpc-8", "Throughput by the number of clients on 11 machines", "scalerpc", "clients"],
    common_notes!(
        "'Almost constant' and 'stable' are read as within a tenth of the best, 'comparable' as within a quarter, 'significantly' and 'drops' as by a tenth, 'much better' as by a \
         quarter."
    ),
    client_runs,
    client_points,
);

pub(super) const MACHINES: Figure = Figure::predicted(
    [
        "scalerpc-8-machines",
        "Throughput of 40 clients by the number of their machines",
        "scalerpc",
        "machines",
    ],
    common_notes!("A system is saturated at nine tenths of what it reaches with 5 machines."),
    machine_runs,
    machine_points,
);

const BATCHES: [u16; 2] = [1, 8];
/// The fewest and the most clients.
const FEW: u32 = 40;
const MANY: u32 = 400;

fn client_runs(effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[FEW, 80, 120, 160, 200, 240, 320, MANY],
        Effort::Quick => &[FEW, MANY],
    };
    let mut runs = Vec::new();
    for clients in clients {
        for batch in BATCHES {
            for system in System::ALL {
                runs.push(Run::of(
                    system.series(batch),
                    *clients,
                    system.load((*clients, HOSTS), batch, effort),
                ));
            }
        }
    }
    runs
}

fn client_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for batch in BATCHES {
        let [scale, raw, herd, fasst] = System::ALL.map(|system| system.series(batch));
        for (series, said) in [
            (&scale, "3.6.2: almost constant from 40 to 400 clients"),
            (&fasst, "3.6.2: stable despite variations in the number of clients"),
        ] {
            let rates: Vec<f64> =
                outcomes.xs().into_iter().filter_map(|x| outcomes.get(series, x, mops)).collect();
            let (most, least) =
                (rates.iter().copied().reduce(f64::max), rates.iter().copied().reduce(f64::min));
            let (Some(most), Some(least)) = (most, least) else { continue };
            let (said, title) = (Some((Paper::AtLeast(0.9), said)), format!("{series}: least over most"));
            points.push(Point { series: title, x: MANY, unit: "ratio", predicted: least / most, said });
        }
        for (series, said) in [
            (&raw, "3.6.2: a significant performance drop"),
            (&herd, "3.6.2: drops when the number of clients is large"),
        ] {
            let title = format!("{series}: {MANY} clients over {FEW}");
            points.extend(over_own(outcomes, &title, series, (MANY, FEW), (Paper::AtMost(0.9), said)));
        }
        let beside = |over: &str, under: &str, from: u32, paper: Paper, said: &'static str| {
            ratios(outcomes, &format!("{over}, over {under}"), (over, under), mops, |x| {
                (x >= from).then_some((paper, said))
            })
        };
        let said = "3.6.2: comparable to FaSST";
        points.extend(beside(&scale, &fasst, FEW, Paper::Between(0.8, 1.25), said));
        let said = "3.6.2: significantly outperforms RawWrite";
        points.extend(beside(&scale, &raw, 120, Paper::AtLeast(1.1), said));
        let said = "3.6.2: HERD scales much better than RawWrite";
        points.extend(beside(&herd, &raw, 200, Paper::AtLeast(1.25), said));
    }
    let fall = |batch: u16| {
        let series = System::Herd.series(batch);
        Some(outcomes.get(&series, MANY, mops)? / outcomes.get(&series, FEW, mops)?)
    };
    if let (Some(single), Some(batched)) = (fall(1), fall(8)) {
        let said = Some((Paper::AtMost(1.0), "3.6.2: HERD falls most with small batches"));
        let series = "HERD: what remains with batch 1 over with batch 8".to_owned();
        points.push(Point { series, x: MANY, unit: "ratio", predicted: single / batched, said });
    }
    points
}

/// Client threads on all machines.
const THREADS: u32 = 40;
/// The most machines.
const MACHINES_MOST: u32 = 5;

fn machine_runs(effort: Effort) -> Vec<Run> {
    let machines: &[u32] = match effort {
        Effort::Full => &[1, 2, 3, 4, MACHINES_MOST],
        Effort::Quick => &[1, 2, MACHINES_MOST],
    };
    let mut runs = Vec::new();
    for machines in machines {
        for batch in BATCHES {
            for system in System::ALL {
                let load = system.load((THREADS, *machines as usize), batch, effort);
                runs.push(Run::of(system.series(batch), *machines, load));
            }
        }
    }
    runs
}

fn machine_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for batch in BATCHES {
        for system in System::ALL {
            let series = system.series(batch);
            let title = format!("{series}, over {MACHINES_MOST} machines");
            let unsaturated = Paper::AtMost(0.9);
            let stated: &[(u32, Paper, &'static str)] = match (system, batch) {
                (System::ScaleRpc | System::RawWrite, _) => {
                    &[(2, Paper::AtLeast(0.9), "3.6.2: saturated with at most two machines")]
                }
                (System::Herd | System::Fasst, 1) => &[
                    (2, unsaturated, "3.6.2: at least 4 machines to saturate"),
                    (3, unsaturated, "3.6.2: at least 4 machines to saturate"),
                ],
                (System::Herd | System::Fasst, _) => {
                    &[(1, unsaturated, "3.6.2: several machines to saturate with larger batches")]
                }
            };
            for (x, paper, said) in stated {
                points.extend(over_own(outcomes, &title, &series, (*x, MACHINES_MOST), (*paper, said)));
            }
        }
    }
    points
}
