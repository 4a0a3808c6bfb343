//! ScaleRPC figure 9: the distribution of batch latencies of 120 clients.

use super::drawing::{Drawing, lines};
use super::flock::Value;
use super::scalerpc::{HOSTS, System, common_notes, largest, median, mops};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["scalerpc-9", "Latencies of batches, 120 clients on 11 machines", "scalerpc", "batch"],
    common_notes!("'Most' is read as the median, 'much higher' as twice, 'close' as within a tenth, 'bimodal' as two neighbouring percentiles of the curve that are a factor of two apart."),
    runs,
    points,
)
.drawn(drawings);

const CLIENTS: u32 = 120;
const BATCHES: [u16; 2] = [1, 8];

fn runs(effort: Effort) -> Vec<Run> {
    let of = |batch: u16| {
        let run = move |system: System| {
            Run::of(system.name(), batch.into(), system.load((CLIENTS, HOSTS), batch, effort))
        };
        System::ALL.map(run)
    };
    BATCHES.into_iter().flat_map(of).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let mean: Value = |outcome| outcome.mean_us;
    let p99: Value = |outcome| outcome.quantiles_us[2];
    for (name, value) in [("median", median as Value), ("mean", mean), ("99%", p99), ("maximum", largest)] {
        let mut latencies = outcomes.as_they_are("us", value);
        for point in &mut latencies {
            point.said = match (point.series.as_str(), point.x, name) {
                ("ScaleRPC", 1, "median") => Some((Paper::Value(4.0), "3.6.2: most are near 4 us")),
                ("RawWrite", 1, "median") => Some((Paper::Value(19.0), "3.6.2: 19 us")),
                ("HERD", 1, "median") => Some((Paper::Value(10.0), "3.6.2: 10 us")),
                ("FaSST", 1, "median") => Some((Paper::Value(11.0), "3.6.2: 11 us")),
                ("ScaleRPC", 8, "median") => Some((Paper::Value(15.0), "3.6.2: most are near 15 us")),
                ("HERD" | "FaSST", 8, "median") => {
                    Some((Paper::Between(20.0, 200.0), "3.6.2: most take 20 to 200 us"))
                }
                ("HERD" | "FaSST", 8, "maximum") => {
                    Some((Paper::AtLeast(200.0), "3.5: tails of more than 200 us"))
                }
                _ => None,
            };
            point.series = format!("{}, {name}", point.series);
        }
        points.extend(latencies);
    }
    let mut steps = outcomes.as_they_are("ratio", largest_step);
    for point in &mut steps {
        point.said = Some(match point.series.as_str() {
            "ScaleRPC" => (Paper::AtLeast(2.0), "3.6.2: bimodal"),
            _ => (Paper::AtMost(2.0), "3.6.2: smoother"),
        });
        point.series = format!("{}, largest step between percentiles", point.series);
    }
    points.extend(steps);
    for x in outcomes.xs() {
        let of = |system: System| outcomes.get(system.name(), x, largest);
        let others = [System::RawWrite, System::Herd, System::Fasst].into_iter().filter_map(of);
        let (Some(own), Some(most)) = (of(System::ScaleRpc), others.reduce(f64::max)) else { continue };
        let said = match x {
            1 => (Paper::AtLeast(2.0), "3.6.2: a much higher maximum with batch 1"),
            _ => (Paper::AtMost(1.1), "3.6.2: close or smaller maxima with batch 8"),
        };
        let series = "maximum of ScaleRPC over the largest of the others".to_owned();
        points.push(Point { series, x, unit: "ratio", predicted: own / most, said: Some(said) });
    }
    points
}

/// Returns the largest ratio of two neighbouring percentiles, from the median on: two modes are a step apart.
fn largest_step(outcome: &Outcome) -> f64 {
    let upper: Vec<f64> =
        outcome.percentiles_us.iter().filter(|(percent, _)| *percent >= 50.0).map(|(_, us)| *us).collect();
    upper.windows(2).map(|pair| pair[1] / pair[0].max(f64::MIN_POSITIVE)).fold(1.0, f64::max)
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let of = |batch: u16| {
        let mine = outcomes.0.iter().filter(move |(run, _)| run.x == u32::from(batch));
        let series = mine.map(|(run, outcome)| {
            let curve = outcome.percentiles_us.iter().map(|(percent, us)| (*us, *percent));
            (run.series.clone(), curve.chain([(outcome.max_us, 100.0)]).collect())
        });
        let title = format!("Distribution of latencies, batch {batch}");
        lines(title, "percent of batches", "microseconds", series.collect())
    };
    BATCHES.map(of).to_vec()
}
