//! `dunlin sim profiles`: the clusters that can be simulated.

use clap::Args;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, table};
use dunlin_rnic_model::{Parameter, Profile};
use std::process::ExitCode;

/// List the profiles: NICs and clusters that can be simulated
#[derive(Args, Debug)]
#[command(
    after_help = "dunlin explain --profile, dunlin bench fetch-table --profile and the figures take these names. \
dunlin sim calibrate shows the numbers of a profile.

Example:
  dunlin sim profiles"
)]
pub(crate) struct ProfilesArguments {
    /// Print one JSON array instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ProfilesArguments) -> Result<ExitCode, Failure> {
    let profiles = Profile::built_in_names().map(Profile::built_in).collect::<Result<Vec<_>, _>>();
    let mut profiles = profiles.map_err(Failure::new)?;
    profiles.sort_by(|one, other| (one.nic(), one.name()).cmp(&(other.nic(), other.name())));
    let row = |profile: &Profile| {
        Row::new()
            .with("nic", profile.nic())
            .with("profile", profile.name())
            .with("cluster", profile.title())
            .with("processor", profile.processor())
            .with("cores", profile.number(Parameter::Cores) as u64)
    };
    let rows: Vec<Row> = profiles.iter().map(row).collect();
    if arguments.json {
        output::print_line(serde_json::to_string(&rows).map_err(Failure::new)?)?;
    } else {
        output::print(table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}
