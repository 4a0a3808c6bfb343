//! ScaleRPC figure 10: PCIe reads and Write Allocates of the server, and section 3.3: WRITEs for the switch alone.

use super::flock::{Value, ratios};
use super::scalerpc::{HOSTS, System, common_notes, mops};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::load::Load;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["scalerpc-10", "PCIe reads and Write Allocates of the server", "scalerpc", "clients"],
    common_notes!(
        "Batch 8 (not stated); payloads are read by the NIC, as section 2.3 says, and not part of the work request. PCIe reads (PCIeRdCur) are the DMA reads of the model's NIC: work requests, payloads, RECVs, and what its caches miss. Write Allocates (PCIeItoM) are \
         its writes whose first line evicts another from the last-level cache. 'Keeps pace' is read as a number of reads for each call that varies by a tenth, 'low' as below that of RawWrite by a tenth."
    ),
    runs,
    points,
);

const BATCH: u16 = 8;
const BOTH: [System; 2] = [System::ScaleRpc, System::RawWrite];
const FEW: u32 = 40;
const MANY: u32 = 150;

fn runs(effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[20, FEW, 60, 80, 100, 120, MANY, 200],
        Effort::Quick => &[FEW, MANY],
    };
    let run = |clients: u32| {
        BOTH.map(|system| {
            let load = Load { inline: false, ..system.load((clients, HOSTS), BATCH, effort) };
            Run::of(system.name(), clients, load)
        })
    };
    clients.iter().flat_map(|clients| run(*clients)).collect()
}

fn reads(outcome: &Outcome) -> f64 {
    outcome.pcie_reads_mops
}

fn allocates(outcome: &Outcome) -> f64 {
    outcome.allocates_mops
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let values: [(&str, Value); 2] = [("PCIe reads", reads), ("Write Allocates", allocates)];
    for (name, value) in values {
        let mut counted = outcomes.as_they_are("millions_a_second", value);
        for point in &mut counted {
            if point.series == System::RawWrite.name()
                && name == "PCIe reads"
                && (FEW + 1..MANY).contains(&point.x)
            {
                point.said =
                    Some((Paper::AtLeast(20.0), "3.6.3: more than 20 million a second beyond 40 clients"));
            }
            point.series = format!("{}, {name}", point.series);
        }
        points.extend(counted);
    }
    let raw = System::RawWrite.name();
    let fewer = |x: u32| {
        let most = outcomes.peak(raw, reads)?.1;
        let said = Some((Paper::AtMost(0.9), "3.6.3: at 150 clients it drops again"));
        let predicted = outcomes.get(raw, x, reads)? / most;
        Some(Point {
            series: "RawWrite, PCIe reads over their peak".to_owned(),
            x,
            unit: "ratio",
            predicted,
            said,
        })
    };
    points.extend(fewer(MANY));
    let per_call: Value = |outcome| outcome.pcie_reads_mops / outcome.mops;
    let own: Vec<f64> =
        outcomes.xs().iter().filter_map(|x| outcomes.get(System::ScaleRpc.name(), *x, per_call)).collect();
    if let (Some(least), Some(most)) =
        (own.iter().copied().reduce(f64::min), own.iter().copied().reduce(f64::max))
    {
        let said = Some((Paper::AtLeast(0.9), "3.6.3: keeps pace with the throughput"));
        let series = "ScaleRPC, PCIe reads for each call: least over most".to_owned();
        points.push(Point { series, x: MANY, unit: "ratio", predicted: least / most, said });
    }
    let title = "Write Allocates for each call, ScaleRPC over RawWrite";
    let allocates_per_call: Value = |outcome| outcome.allocates_mops / outcome.mops;
    let pair = (System::ScaleRpc.name(), raw);
    let said = (Paper::AtMost(0.9), "3.6.3: stable but low, where those of RawWrite rise");
    points.extend(
        ratios(outcomes, title, pair, allocates_per_call, |x| (x > FEW).then_some(said))
            .into_iter()
            .filter(|point| point.predicted.is_finite()),
    );
    for x in outcomes.xs() {
        let Some(predicted) = outcomes.get(System::ScaleRpc.name(), x, |outcome| outcome.told_alone_percent)
        else {
            continue;
        };
        let said = (x > 60).then_some((Paper::AtMost(0.01), "3.3: lower than 0.01% of the real payload"));
        let series = "ScaleRPC, WRITEs for the switch alone over calls".to_owned();
        points.push(Point { series, x, unit: "percent", predicted, said });
    }
    points
}
