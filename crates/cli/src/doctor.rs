//! placeholder
use crate::output::Failure;
use clap::Args;
use std::process::ExitCode;
/// Check this machine
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {}
pub(crate) fn run(_: &DoctorArguments) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}
