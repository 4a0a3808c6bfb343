//! `dunlin sim report`: all figures on one page.

use super::figure::{by_name, charts, effort, rows, said};
use super::runs::{Made, make, set_profiles};
use clap::Args;
use dunlin_command::output::rounded;
use dunlin_command::output::{self, Failure};
use dunlin_figures::effort::of_applications as effort_of_applications;
use dunlin_figures::{Figure, Paper, Point, all};
use dunlin_report::statistics::median;
use dunlin_report::{
    Document, PlotError, Row, draw, escaped, html, markdown, readable, table, write_atomically,
};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run all figures and write one page with plots and tables: prediction, paper, error
#[derive(Args, Debug)]
#[command(
    after_help = "Figures run on all cores; a full report takes minutes. No file is written before all figures are complete.

Examples:
  dunlin sim report --output report.html
  dunlin sim report --quick --figure rf-rpc-9 --markdown -"
)]
pub(crate) struct ReportPageArguments {
    /// Page to write: one self-contained HTML file
    #[arg(long, value_name = "PATH", default_value = "report.html")]
    output: PathBuf,
    /// Also write the summary to this file as a Markdown table; '-' prints it instead of the plain table
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Also write all points to this file, as one JSON document
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Run fewer points for a shorter time
    #[arg(long)]
    quick: bool,
    /// Run only these figures
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',')]
    figure: Vec<String>,
}

pub(crate) fn run(arguments: &ReportPageArguments) -> Result<ExitCode, Failure> {
    let to_stdout = arguments.markdown.as_deref() == Some(Path::new("-"));
    let markdown_file = arguments.markdown.as_deref().filter(|_| !to_stdout);
    for path in [Some(arguments.output.as_path()), markdown_file, arguments.json.as_deref()] {
        path.map_or(Ok(()), output::check_writable)?;
    }
    let figures: Vec<Figure> = if arguments.figure.is_empty() {
        all()
    } else {
        arguments.figure.iter().map(|id| by_name(id)).collect::<Result<_, _>>()?
    };
    let made = make(&figures, effort(arguments.quick), "figures")?;
    let mut parameters = Row::new().with("figures", made.len()).with("quick", arguments.quick);
    set_profiles(&mut parameters, &made);
    let mut document = Document::new("sim report", "model", parameters);
    document.rows = made.iter().flat_map(rows).collect();
    let summary: Vec<Row> = made.iter().flat_map(summary).collect();
    let page = page(&made, &summary, &document, arguments.quick)?;
    write_text(&arguments.output, &page)?;
    if let Some(path) = &arguments.json {
        document.write_json(path).map_err(Failure::new)?;
    }
    if let Some(path) = markdown_file {
        write_text(path, &markdown(&summary))?;
    }
    output::print(if to_stdout { markdown(&summary) } else { table(&summary) })?;
    output::note(format_args!("{} figures in {}", made.len(), arguments.output.display()));
    Ok(ExitCode::SUCCESS)
}

fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    write_atomically(path, |out| out.write_all(text.as_bytes())).map_err(Failure::new)
}

/// Returns one row for each series to which the paper's text gives a value.
fn summary(made: &Made) -> Vec<Row> {
    let mut names: Vec<&str> = Vec::new();
    for point in made.points.iter().filter(|point| point.said.is_some()) {
        if !names.contains(&point.series.as_str()) {
            names.push(&point.series);
        }
    }
    names.iter().map(|name| summary_row(made, name)).collect()
}

fn summary_row(made: &Made, series: &str) -> Row {
    let stated: Vec<(&Point, Paper)> = made
        .points
        .iter()
        .filter(|point| point.series == series)
        .filter_map(|point| Some((point, point.said?.0)))
        .collect();
    let errors: Vec<f64> =
        stated.iter().map(|(point, paper)| paper.error_percent(point.predicted).abs()).collect();
    let relations: Vec<bool> =
        stated.iter().filter_map(|(point, paper)| paper.holds(point.predicted)).collect();
    let mut papers: Vec<String> = Vec::new();
    for (_, paper) in &stated {
        let text = said(*paper);
        if !papers.contains(&text) {
            papers.push(text);
        }
    }
    let mut row = Row::new()
        .with("figure", made.figure.id)
        .with("kind", made.figure.kind.name())
        .with("series", series)
        .with("at", format!("{} {}", made.figure.x_name, places(&stated)))
        .with("predicted", span(stated.iter().map(|(point, _)| point.predicted)))
        .with("paper", papers.join("; "))
        .with("unit", stated.first().map_or("", |(point, _)| point.unit))
        .with("median_error_percent", rounded(median(errors.iter().copied()).unwrap_or(0.0)))
        .with("worst_error_percent", rounded(errors.iter().copied().fold(0.0, f64::max)));
    if !relations.is_empty() {
        let holding = relations.iter().filter(|holds| **holds).count();
        row.set("holds", format!("{holding} of {}", relations.len()));
    }
    row
}

/// Formats the points at which a series is compared: all if they are few, else the first and last.
fn places(stated: &[(&Point, Paper)]) -> String {
    let all: Vec<String> = stated.iter().map(|(point, _)| point.x.to_string()).collect();
    match all.as_slice() {
        [first, .., last] if all.len() > 4 => format!("{first} to {last}"),
        few => few.join(", "),
    }
}

/// Formats the smallest and largest value.
fn span(values: impl Iterator<Item = f64> + Clone) -> String {
    let text = |value: f64| readable("value", &rounded(value).into());
    let low = text(values.clone().fold(f64::INFINITY, f64::min));
    let high = text(values.fold(f64::NEG_INFINITY, f64::max));
    if low == high { low } else { format!("{low} to {high}") }
}

const STYLE: &str = "\
body { font-family: sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 85%; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; vertical-align: top; }
th { background: #f2f2f2; }
td.number { text-align: right; }
tr.off td { background: #fff0e6; }
svg { max-width: 100%; height: auto; }
.kind { border-radius: .3em; padding: .1em .5em; font-size: 75%; background: #ddd; }
.kind.predicted { background: #cfe5f5; }
";

/// Builds the page.
fn page(made: &[Made], summary: &[Row], document: &Document, quick: bool) -> Result<String, Failure> {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Dunlin: the simulator and the papers</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>The simulator and the papers</h1>\n"
    );
    let length = if quick { "quick runs" } else { "full runs" };
    text += &format!(
        "<p>Commit {}, {length}. <em>Calibrated</em>: the model was fitted to it. <em>Predicted</em>: it was not. The error of a \
         relation is the distance to the range that the paper's text gives, 0 within it.</p>\n<h2>Summary</h2>\n",
        escaped(&document.commit)
    );
    text += &html_table(summary);
    for made in made {
        text += &section(made)?;
    }
    if made.iter().any(|made| made.figure.id.starts_with("lite")) {
        text += &effort_of_applications_section();
    }
    text += "</body>\n</html>\n";
    Ok(text)
}

fn section(made: &Made) -> Result<String, Failure> {
    let Made { figure, .. } = made;
    let profiles = made.profiles();
    let (kind, id) = (figure.kind.name(), escaped(figure.id));
    let mut text = format!(
        "<h2 id=\"{id}\">{id}: {} <span class=\"kind {kind}\">{kind}</span></h2>\n<p>Runs on {}.{}</p>\n",
        escaped(figure.title),
        escaped(&profiles),
        if figure.notes.is_empty() { String::new() } else { format!(" {}", escaped(figure.notes)) },
    );
    match draw(&charts(made), &profiles) {
        // Skip the XML declaration, which is not allowed inside HTML.
        Ok(drawing) => text += drawing.find("<svg").map_or("", |start| &drawing[start..]),
        Err(PlotError::Nothing) => {}
        Err(error) => return Err(Failure::new(error)),
    }
    text += &html_table(&rows(made));
    Ok(text)
}

/// The table of LITE figure 20, which counts lines and needs no run.
fn effort_of_applications_section() -> String {
    let table = effort_of_applications();
    let row = |cells: &Vec<&str>| {
        let named = table.iter().take(1).flatten().zip(cells);
        named.fold(Row::new(), |row, (title, cell)| row.with(title, *cell))
    };
    let rows: Vec<Row> = table.iter().skip(1).map(row).collect();
    format!(
        "<h2 id=\"lite-20\">lite-20: Lines of the applications on the memory tier</h2>\n{}",
        html_table(&rows)
    )
}

/// Formats rows as a table, and marks rows whose relation does not hold.
fn html_table(rows: &[Row]) -> String {
    html(rows, |row| row.get("holds").is_some_and(|holds| *holds == false))
}
