//! `dunlin sim list`, `dunlin sim figure`: the papers' figures.

use super::runs::{Made, make, set_profiles};
use clap::Args;
use dunlin_command::output::rounded;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_figures::{Drawing, Effort, Figure, FigureError, Paper, Point, Shape, all, figure};
use dunlin_report::{Axis, Bars, Chart, Content, Document, Lines, Row, Unit, readable, table};
use std::process::ExitCode;

/// List the available figures
#[derive(Args, Debug)]
#[command(after_help = "Calibrated: the model was fitted to this figure. Predicted: it was not.

Example:
  dunlin sim list")]
pub(crate) struct ListArguments {
    /// Print one JSON array instead of the table
    #[arg(long)]
    json: bool,
}

/// Run a figure of a paper in the simulator, and compare predicted values with the paper's text
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  dunlin sim figure scalerpc-1b
  dunlin sim figure rf-rpc-9 --json figure.json --plot figure.svg")]
pub(crate) struct FigureArguments {
    /// Name of the figure; dunlin sim list shows all
    #[arg(value_name = "ID")]
    id: String,
    /// Run fewer points for a shorter time
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    report: ReportArguments,
}

/// Returns the effort of figures.
pub(super) fn effort(quick: bool) -> Effort {
    if quick { Effort::Quick } else { Effort::Full }
}

/// Returns the figure with this name.
pub(super) fn by_name(id: &str) -> Result<Figure, Failure> {
    figure(id).map_err(|error: FigureError| Failure::new(error).help("dunlin sim list"))
}

pub(crate) fn list(arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let row = |figure: &Figure| {
        Row::new()
            .with("figure", figure.id)
            .with("profile", figure.profile)
            .with("kind", figure.kind.name())
            .with("title", figure.title)
            .with("also", figure.aliases().collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<Row> = all().iter().map(row).collect();
    if arguments.json {
        output::print_line(serde_json::to_string(&rows).map_err(Failure::new)?)?;
    } else {
        output::print(table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(arguments: &FigureArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let figure = by_name(&arguments.id)?;
    let effort = effort(arguments.quick);
    let made = make(&[figure], effort, figure.id)?;
    for made in &made {
        let mut parameters = Row::new()
            .with("figure", figure.id)
            .with("title", figure.title)
            .with("profile", figure.profile)
            .with("profile_hash", made.profiles.first().map(|(_, hash)| hash.as_str()))
            .with("kind", figure.kind.name())
            .with("quick", arguments.quick);
        set_profiles(&mut parameters, std::slice::from_ref(made));
        let mut document = Document::new("sim figure", "model", parameters);
        document.rows = rows(made);
        output::print(format!("{}: {}\n\n{}", figure.id, figure.title, document.table()))?;
        arguments.report.write_with(&document, &charts(made))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the paper's value.
pub(super) fn said(paper: Paper) -> String {
    let text = |value: f64| readable("value", &rounded(value).into());
    match paper {
        Paper::Value(value) => text(value),
        Paper::AtLeast(low) => format!("at least {}", text(low)),
        Paper::AtMost(high) => format!("at most {}", text(high)),
        Paper::Between(low, high) => format!("{} to {}", text(low), text(high)),
    }
}

/// Returns the points of a figure as rows.
pub(super) fn rows(made: &Made) -> Vec<Row> {
    made.points.iter().map(|point| row(&made.figure, point)).collect()
}

fn row(figure: &Figure, point: &Point) -> Row {
    let paper = point.said.map(|(paper, _)| paper);
    let number = match paper {
        Some(Paper::Value(value)) => Some(value),
        _ => None,
    };
    let mut row = Row::new()
        .with("figure", figure.id)
        .with("series", point.series.as_str())
        .with("x", point.x)
        .with("x_name", figure.x_name)
        .with("predicted", rounded(point.predicted))
        .with("paper", number)
        .with("unit", point.unit)
        .with("kind", figure.kind.name());
    if let Some(paper) = paper {
        row.set("error_percent", rounded(paper.error_percent(point.predicted)));
        if let Some(holds) = paper.holds(point.predicted) {
            row.set("paper_range", said(paper)).set("holds", holds);
        }
    }
    row
}

/// Ratio of the largest to the smallest value from which an axis is logarithmic.
const WIDE: f64 = 30.0;

/// Returns whether an axis with these values should be logarithmic.
fn is_wide(values: impl Iterator<Item = f64> + Clone) -> bool {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    low > 0.0 && values.fold(0.0, f64::max) >= WIDE * low
}

/// Minimum number of points of a series in a chart; shorter series appear only in the table.
const LEAST_POINTS: usize = 3;

/// Returns one chart per unit, with the paper's values as separate series.
pub(super) fn charts(made: &Made) -> Vec<Chart> {
    let Made { figure, points, drawings, .. } = made;
    if !drawings.is_empty() {
        return drawings.iter().map(|drawing| drawn(figure, drawing)).collect();
    }
    let wide = is_wide(points.iter().map(|point| f64::from(point.x)));
    let mut charts: Vec<Chart> = Vec::new();
    let mut done: Vec<&str> = Vec::new();
    for first in points {
        if done.contains(&first.series.as_str()) {
            continue;
        }
        done.push(&first.series);
        let mine = || points.iter().filter(|point| point.series == first.series);
        let predicted: Vec<(f64, f64)> = mine().map(|point| (f64::from(point.x), point.predicted)).collect();
        if predicted.len() < LEAST_POINTS {
            continue;
        }
        let paper = mine().filter_map(|point| match point.said {
            Some((Paper::Value(value), _)) => Some((f64::from(point.x), value)),
            _ => None,
        });
        let paper: Vec<(f64, f64)> = paper.collect();
        let index = charts.iter().position(|chart| chart.values.label == first.unit).unwrap_or_else(|| {
            let values = points.iter().filter(|point| point.unit == first.unit).map(|point| point.predicted);
            charts.push(Chart {
                title: format!("{}: {}", figure.id, figure.title),
                values: Axis { label: first.unit.to_owned(), unit: Unit::None, logarithmic: is_wide(values) },
                content: Content::Lines(Lines {
                    along: Axis { label: figure.x_name.to_owned(), unit: Unit::None, logarithmic: wide },
                    series: Vec::new(),
                }),
            });
            charts.len() - 1
        });
        if let Content::Lines(lines) = &mut charts[index].content {
            lines.series.push((first.series.clone(), predicted));
            if !paper.is_empty() {
                lines.series.push((format!("{}, paper", first.series), paper));
            }
        }
    }
    for chart in &mut charts {
        chart.values.label = words(&chart.values.label);
        if let Content::Lines(lines) = &mut chart.content {
            lines.along.label = words(&lines.along.label);
        }
    }
    charts
}

/// Returns the chart of a drawing that the figure defines.
fn drawn(figure: &Figure, drawing: &Drawing) -> Chart {
    let axis = |label: &str| Axis { label: label.to_owned(), unit: Unit::None, logarithmic: false };
    let content = match &drawing.shape {
        Shape::Lines { along, series } => {
            Content::Lines(Lines { along: axis(along), series: series.clone() })
        }
        Shape::Bars { groups, series } => {
            Content::Bars(Bars { categories: groups.clone(), series: series.clone() })
        }
    };
    Chart { title: format!("{}: {}", figure.id, drawing.title), values: axis(drawing.values), content }
}

/// Converts a figure's axis name to words.
fn words(name: &str) -> String {
    match (name, name.strip_suffix("_us"), name.strip_suffix("_bytes")) {
        ("mops", ..) => "million operations a second".to_owned(),
        ("kops", ..) => "thousand operations a second".to_owned(),
        ("us", ..) => "microseconds".to_owned(),
        (_, Some(stem), _) => format!("{}, microseconds", stem.replace('_', " ")),
        (_, _, Some(stem)) => format!("{}, bytes", stem.replace('_', " ")),
        _ => name.replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_figures::{Kind, OfFunction, OfPriorities, Outcome};
    use dunlin_report::draw;
    use dunlin_scenario::load::Granted;

    #[test]
    fn every_predicted_figure_is_drawn() {
        for figure in all().into_iter().filter(|figure| figure.kind == Kind::Predicted) {
            let outcome = |place: usize| {
                let value = 1.0 + place as f64;
                Outcome {
                    value,
                    mops: value,
                    mean_us: value,
                    functions: std::array::from_fn(|_| OfFunction {
                        mops: value,
                        mean_us: value,
                        p99_us: value,
                    }),
                    p95_us: value,
                    max_us: value,
                    processor_us: value,
                    pcie_reads_mops: value,
                    busiest: ("link in", 0.5),
                    allocates_mops: value,
                    told_alone_percent: value,
                    quantiles_us: [value; 3],
                    posted_per_call: value,
                    degree: value,
                    answers_rung_per_call: value,
                    granted: Granted { queue_pairs: value, utilisation: value },
                    server_kib_of_a_host: value,
                    percentiles_us: vec![(15.0, value), (50.0, 2.0 * value), (99.0, 3.0 * value)],
                    thread_mops: vec![value; 14],
                    verbs_share: 0.5,
                    verbs_share_of_work: 0.5,
                    settled_ms: value,
                    priorities: OfPriorities {
                        periods: vec![[value, value / 2.0]; 5],
                        timeline: vec![[value, value / 2.0]; 20],
                        stretch_ms: value,
                    },
                    phases_ms: [value; 3],
                    moved: [value; 3],
                }
            };
            let outcomes: Vec<Outcome> = (0..figure.runs(Effort::Full).len()).map(outcome).collect();
            let points = figure.points(Effort::Full, &outcomes);
            let drawings = figure.drawings(Effort::Full, &outcomes);
            let made = Made { figure, profiles: Vec::new(), points, drawings };
            let drawing = draw(&charts(&made), "a test").expect(figure.id);
            assert!(drawing.contains("<svg"), "{}", figure.id);
        }
    }
}
