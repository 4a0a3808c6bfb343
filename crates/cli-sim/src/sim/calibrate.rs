//! `dunlin sim calibrate`: fits the free parameters of a profile to raw-verb curves.

use super::{hash, profile};
use clap::Args;
use dunlin_command::output::rounded;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::progress;
use dunlin_report::{Axis, Bars, Chart, Content, Document, Row, Unit, table};
use dunlin_rnic_model::calibrate::{Residual, calibrate, check, cross_validate, free};
use dunlin_rnic_model::sweep::Effort;
use dunlin_rnic_model::{Parameter, Profile};
use std::process::ExitCode;

/// Fit a profile's free parameters to raw-verb curves, and show the error of each curve
#[derive(Args, Debug)]
#[command(after_help = "\
The free parameters are the numbers of kind \"fit\". The curves are raw-verb curves of all clusters with the profile's NIC:
the shared sweep, and the values that papers' texts give for raw-verb figures. No file is changed: copy the printed values
into the profile.

Examples:
  dunlin sim calibrate connect-ib
  dunlin sim calibrate scalerpc --check")]
pub(crate) struct CalibrateArguments {
    /// Built-in profile, or a file ending in .toml
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// Do not fit: only show the residual of each curve with the current profile
    #[arg(long)]
    check: bool,
    /// Skip the cross-validation (fit on half of the points, test on the other half), which doubles the
    /// time
    #[arg(long, conflicts_with = "check")]
    no_cross_validation: bool,
    #[command(flatten)]
    report: ReportArguments,
}

pub(crate) fn run(arguments: &CalibrateArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let profile = profile(&arguments.profile)?;
    let count = free(&profile).count();
    let parameters = Row::new()
        .with("profile", profile.name())
        .with("profile_hash", hash(&profile))
        .with("free_parameters", count);
    let mut document = Document::new("sim calibrate", "model", parameters);
    let mut rows: Vec<Row> = Vec::new();
    if arguments.check {
        let residuals = check(&profile, Effort::Full).map_err(Failure::new)?;
        rows.extend(residuals.iter().map(|residual| residual_row("as it is", residual)));
    } else {
        let found = with_bar("fitting", |tell| calibrate(&profile, tell)).map_err(Failure::new)?;
        let fitted: Vec<Row> =
            found.fitted.iter().map(|fitted| fitted_row(&profile, fitted.parameter, fitted.after)).collect();
        output::print(format!("{}\n", table(&fitted)))?;
        rows.extend(found.before.iter().map(|residual| residual_row("as it is", residual)));
        rows.extend(found.after.iter().map(|residual| residual_row("fitted", residual)));
        if !arguments.no_cross_validation {
            let crossed =
                with_bar("cross-validation", |tell| cross_validate(&profile, tell)).map_err(Failure::new)?;
            rows.extend(crossed.iter().map(|residual| residual_row("cross-validation", residual)));
        }
        document.rows = fitted;
    }
    output::print(table(&rows))?;
    document.rows.extend(rows.iter().cloned());
    arguments.report.write_with(&document, &[chart(profile.name(), &rows)])?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a search with a progress bar.
fn with_bar<T>(what: &str, search: impl FnOnce(&mut dyn FnMut(usize, usize, f64)) -> T) -> T {
    let bar = progress::counting(0, what);
    let result = search(&mut |done, all, misfit| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{what}, {:.1} % off", misfit * 100.0));
    });
    bar.finish_and_clear();
    result
}

fn fitted_row(profile: &Profile, parameter: Parameter, after: f64) -> Row {
    Row::new()
        .with("parameter", parameter.name())
        .with("before", rounded(profile.number(parameter)))
        .with("after", rounded(after))
        .with("file", profile.value(parameter).file.as_str())
}

fn residual_row(stage: &str, residual: &Residual) -> Row {
    Row::new()
        .with("stage", stage)
        .with("cluster", residual.profile.as_str())
        .with("curve", residual.curve.as_str())
        .with("points", residual.points)
        .with("median_error_percent", rounded(residual.median_percent))
        .with("worst_error_percent", rounded(residual.worst_percent))
}

fn chart(name: &str, rows: &[Row]) -> Chart {
    let text = |row: &Row, field: &str| {
        row.get(field).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    let mut categories: Vec<String> = Vec::new();
    let mut stages: Vec<String> = Vec::new();
    for row in rows {
        for (list, field) in [(&mut categories, "curve"), (&mut stages, "stage")] {
            let value = text(row, field);
            if !list.contains(&value) {
                list.push(value);
            }
        }
    }
    let series = stages.into_iter().map(|stage| {
        let values = categories.iter().map(|curve| {
            let row = rows.iter().find(|row| text(row, "curve") == *curve && text(row, "stage") == stage)?;
            row.number("median_error_percent")
        });
        let values = values.collect();
        (stage, values)
    });
    let series = series.collect();
    Chart {
        title: format!("sim calibrate {name}: median error per raw-verb curve, percent"),
        values: Axis { label: "percent".to_owned(), unit: Unit::None, logarithmic: false },
        content: Content::Bars(Bars { categories, series }),
    }
}
