//! `dunlin sim list`, `dunlin sim figure`: the papers' raw-verb figures.

use super::{hash, rounded};
use crate::output::{self, Failure, ReportArguments};
use crate::progress;
use clap::Args;
use dunlin_bench::report::{Axis, Chart, Content, Document, Lines, Row, Unit, table};
use dunlin_rnic_model::Profile;
use dunlin_rnic_model::figure::{FIGURES, Figure, Point, figure};
use dunlin_rnic_model::sweep::Effort;
use std::process::ExitCode;

/// How the rows of raw-verb figures are marked: the model was fitted to what these papers say of them.
const KIND: &str = "calibrated";

/// List the figures that can be run
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  dunlin sim list")]
pub(crate) struct ListArguments {
    /// Print one JSON array instead of the table
    #[arg(long)]
    json: bool,
}

/// Run a figure of a paper on the model: predicted values beside what the paper's text says
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  dunlin sim figure scalerpc-1b
  dunlin sim figure rf-rpc-1 --json figure.json --plot figure.svg")]
pub(crate) struct FigureArguments {
    /// Which figure; dunlin sim list tells all
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    report: ReportArguments,
}

pub(crate) fn list(arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let rows: Vec<Row> = FIGURES
        .iter()
        .map(|figure| {
            Row::new()
                .with("figure", figure.id)
                .with("profile", figure.profile)
                .with("kind", KIND)
                .with("title", figure.title)
        })
        .collect();
    if arguments.json {
        output::print_line(serde_json::to_string(&rows).map_err(Failure::new)?)?;
    } else {
        output::print(table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(arguments: &FigureArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let figure = figure(&arguments.id).map_err(|error| Failure::new(error).help("dunlin sim list"))?;
    let profile = Profile::built_in(figure.profile).map_err(Failure::new)?;
    let bar = progress::counting(figure.points() as u64, figure.id);
    let points = figure.run(Effort::Full, |_| bar.inc(1)).map_err(Failure::new)?;
    bar.finish_and_clear();
    let mut document = Document::new(
        "sim figure",
        "model",
        Row::new()
            .with("figure", figure.id)
            .with("title", figure.title)
            .with("profile", figure.profile)
            .with("profile_hash", hash(&profile)),
    );
    document.rows = points.iter().map(row).collect();
    output::print(format!("{}: {}\n\n{}", figure.id, figure.title, document.table()))?;
    arguments.report.write_with(&document, &charts(figure, &points))?;
    Ok(ExitCode::SUCCESS)
}

fn row(point: &Point) -> Row {
    let mut row = Row::new()
        .with("figure", point.figure)
        .with("series", point.series)
        .with("x", point.x)
        .with("x_name", point.x_name)
        .with("predicted", rounded(point.predicted))
        .with("paper", point.paper)
        .with("unit", point.unit)
        .with("kind", KIND);
    if let Some(paper) = point.paper {
        row.set("error_percent", rounded((point.predicted - paper) / paper * 100.0));
    }
    row
}

/// One chart for each unit, the paper's values as series of their own.
fn charts(figure: &Figure, points: &[Point]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for series in figure.series {
        let mine = || points.iter().filter(|point| point.series == series.name);
        let predicted: Vec<(f64, f64)> = mine().map(|point| (f64::from(point.x), point.predicted)).collect();
        if predicted.len() < 3 {
            continue;
        }
        let paper: Vec<(f64, f64)> =
            mine().filter_map(|point| Some((f64::from(point.x), point.paper?))).collect();
        let index = charts.iter().position(|chart| chart.values.label == series.unit).unwrap_or_else(|| {
            charts.push(Chart {
                title: format!("{}: {}", figure.id, figure.title),
                values: Axis { label: series.unit.to_owned(), unit: Unit::None, logarithmic: false },
                content: Content::Lines(Lines {
                    along: Axis { label: figure.x_name.to_owned(), unit: Unit::None, logarithmic: true },
                    series: Vec::new(),
                }),
            });
            charts.len() - 1
        });
        if let Content::Lines(lines) = &mut charts[index].content {
            lines.series.push((series.name.to_owned(), predicted));
            if !paper.is_empty() {
                lines.series.push((format!("{}, paper", series.name), paper));
            }
        }
    }
    charts
}
