//! `dunlin sim sweep`: compares measurements of raw verbs with the model's predictions, row by row.

use super::{hash, profile};
use clap::Args;
use dunlin_command::output::rounded;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::parallel::all;
use dunlin_command::progress;
use dunlin_report::{Axis, Chart, Content, Document, Lines, Row, Unit, table};
use dunlin_rnic_model::Profile;
use dunlin_rnic_model::sweep::{Effort, Row as Measurement, median_error_percent, parse, profile_of};
use dunlin_scenario::raw_verbs;
use std::process::ExitCode;

/// Run each row of a file of raw-verb measurements: measured, predicted, error, and the median error per
/// operation
#[derive(Args, Debug)]
#[command(after_help = "\
The file has the columns of the shared sweep (cluster,nic_from_memory,machines,threads_per_machine,...). A cluster's rows
run on that cluster's own profile. --profile skips and counts the rows of other clusters, unless no row's cluster has that
profile. Rows run in the raw-verb driver: threads in closed loops on the model of NICs and hosts. With --simulator, the
slower simulator makes the same calls to the same model.

Examples:
  dunlin sim sweep measurements.csv --profile connect-ib
  dunlin sim sweep measurements.csv --json sweep.json
  dunlin sim sweep measurements.csv --simulator")]
pub(crate) struct SweepArguments {
    /// File of measurements
    #[arg(value_name = "FILE.csv")]
    file: String,
    /// Use this profile: a built-in one, or a file ending in .toml [default: the profile of each row's
    /// cluster]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Run each row in the simulator, on its queue pairs, memory and threads, instead of the model's
    /// raw-verb driver; all READs are signaled there
    #[arg(long)]
    simulator: bool,
    #[command(flatten)]
    report: ReportArguments,
}

/// Seed of the rows that the simulator runs.
const SEED: u64 = 1;

struct Ran<'a> {
    measurement: &'a Measurement,
    profile: String,
    predicted: f64,
}

pub(crate) fn run(arguments: &SweepArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let chosen = arguments.profile.as_deref().map(profile).transpose()?;
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| {
        Failure::new(format!("cannot read {}: {error}", arguments.file)).help("give a file that exists")
    })?;
    let rows = parse(&arguments.file, &text).map_err(Failure::new)?;
    let mut profiles: Vec<Profile> = Vec::new();
    let mut chosen_rows = Vec::with_capacity(rows.len());
    let mut left_out = 0_usize;
    for row in &rows {
        let own = profile_of(&row.cluster).unwrap_or(&row.cluster);
        let index = match &chosen {
            // Skip rows of other clusters, unless no row's cluster has the chosen profile: then all rows
            // run on it.
            Some(chosen) if chosen.name() != own && has_own(&rows, chosen) => {
                left_out += 1;
                continue;
            }
            Some(chosen) => position(&mut profiles, chosen.name(), || Ok(chosen.clone()))?,
            None => position(&mut profiles, own, || Profile::built_in(own).map_err(Failure::new))?,
        };
        chosen_rows.push((row, index));
    }
    let predicted = match arguments.simulator {
        true => in_simulator(&chosen_rows, &profiles)?,
        false => in_driver(&chosen_rows, &profiles, &arguments.file)?,
    };
    let ran: Vec<Ran<'_>> = chosen_rows
        .into_iter()
        .zip(predicted)
        .map(|((measurement, index), predicted)| {
            let profile = profiles[index].name().to_owned();
            Ran { measurement, profile, predicted }
        })
        .collect();

    let medians = medians(&ran);
    let played_by = if arguments.simulator { "simulator" } else { "driver of the model" };
    let mut parameters = Row::new()
        .with("file", arguments.file.as_str())
        .with("played_by", played_by)
        .with("rows_left_out", left_out);
    for profile in &profiles {
        parameters.set(&format!("profile_hash {}", profile.name()), hash(profile));
    }
    let summary: Vec<serde_json::Value> = medians
        .iter()
        .map(|row| serde_json::to_value(row).map_err(Failure::new))
        .collect::<Result<_, _>>()?;
    parameters.set("medians", summary);
    let mut document = Document::new("sim sweep", "model", parameters);
    document.rows = ran.iter().map(document_row).collect();
    output::print(format!("{}\n{}", document.table(), table(&medians)))?;
    if left_out > 0 {
        output::print_line(format!("note: {left_out} rows of other clusters left out"))?;
    }
    arguments.report.write_with(&document, &[chart(&ran)])?;
    Ok(ExitCode::SUCCESS)
}

/// Predicts rows with the driver, each on the profile at its index.
fn in_driver(rows: &[(&Measurement, usize)], profiles: &[Profile], file: &str) -> Result<Vec<f64>, Failure> {
    let bar = progress::counting(rows.len() as u64, "rows");
    let predict = |(row, index): &(&Measurement, usize)| {
        let predicted = row.predict(&profiles[*index], Effort::Full);
        bar.inc(1);
        predicted.map_err(|error| Failure::new(error).context(file))
    };
    let predicted = rows.iter().map(predict).collect();
    bar.finish_and_clear();
    predicted
}

/// Predicts rows with the simulator, on all cores.
fn in_simulator(rows: &[(&Measurement, usize)], profiles: &[Profile]) -> Result<Vec<f64>, Failure> {
    let rows = rows.iter().map(|(row, index)| ((*row).clone(), profiles[*index].clone())).collect();
    all(rows, "rows", |(row, profile)| raw_verbs::mops(row, profile, SEED))
}

/// Returns whether this profile belongs to the cluster of some row.
fn has_own(rows: &[Measurement], profile: &Profile) -> bool {
    rows.iter().any(|row| profile_of(&row.cluster) == Some(profile.name()))
}

/// Returns the index of a profile among those in use, and adds it if missing.
fn position(
    profiles: &mut Vec<Profile>,
    name: &str,
    make: impl FnOnce() -> Result<Profile, Failure>,
) -> Result<usize, Failure> {
    if let Some(index) = profiles.iter().position(|profile| profile.name() == name) {
        return Ok(index);
    }
    profiles.push(make()?);
    Ok(profiles.len() - 1)
}

fn document_row(ran: &Ran<'_>) -> Row {
    let row = ran.measurement;
    let signaling = match row.signaling {
        dunlin_rnic_model::driver::Signaling::All => 1,
        dunlin_rnic_model::driver::Signaling::OneIn(every) => every,
    };
    Row::new()
        .with("line", row.line)
        .with("cluster", row.cluster.as_str())
        .with("profile", ran.profile.as_str())
        .with("operation", row.operation.as_str())
        .with("machines", row.machines)
        .with("threads", row.threads)
        .with("queue_pairs", row.queue_pairs)
        .with("size_bytes", row.bytes)
        .with("window", row.window)
        .with("signaled_one_in", signaling)
        .with("measured_mops", row.mops)
        .with("predicted_mops", rounded(ran.predicted))
        .with("error_percent", rounded((ran.predicted - row.mops) / row.mops * 100.0))
}

/// Returns the median error of each operation of each cluster, then of each operation.
fn medians(ran: &[Ran<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut groups: Vec<(Option<&str>, &str)> = Vec::new();
    let by_cluster =
        ran.iter().map(|ran| (Some(ran.measurement.cluster.as_str()), ran.measurement.operation.as_str()));
    let overall = ran.iter().map(|ran| (None, ran.measurement.operation.as_str()));
    for group in by_cluster.chain(overall) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (cluster, operation) in groups {
        let mine: Vec<(f64, f64)> = ran
            .iter()
            .filter(|ran| {
                ran.measurement.operation == operation
                    && cluster.is_none_or(|cluster| cluster == ran.measurement.cluster)
            })
            .map(|ran| (ran.measurement.mops, ran.predicted))
            .collect();
        rows.push(
            Row::new()
                .with("cluster", cluster.unwrap_or("all"))
                .with("operation", operation)
                .with("rows", mine.len())
                .with("median_error_percent", rounded(median_error_percent(mine.iter().copied()))),
        );
    }
    rows
}

/// Draws the ratio of predicted to measured, with one series per operation and cluster.
fn chart(ran: &[Ran<'_>]) -> Chart {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for ran in ran {
        let name = format!("{} {}", ran.measurement.cluster, ran.measurement.operation);
        let point = (ran.measurement.mops, ran.predicted);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let all: Vec<(f64, f64)> = series.iter().flat_map(|(_, points)| points.iter().copied()).collect();
    let low = all.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = all.iter().map(|point| point.0).fold(0.0, f64::max);
    series.push(("measured".to_owned(), vec![(low, low), (high, high)]));
    Chart {
        title: "sim sweep: predicted over measured, million operations per second and machine".to_owned(),
        values: Axis { label: "predicted".to_owned(), unit: Unit::None, logarithmic: true },
        content: Content::Lines(Lines {
            along: Axis { label: "measured".to_owned(), unit: Unit::None, logarithmic: true },
            series,
        }),
    }
}
