//! `dunlin completions`: completion scripts for shells.

use crate::output::{self, Failure};
use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  dunlin completions bash > ~/.local/share/bash-completion/completions/dunlin
  dunlin completions zsh > ~/.zfunc/_dunlin      (with ~/.zfunc in fpath)
  dunlin completions fish > ~/.config/fish/completions/dunlin.fish";

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut crate::Arguments::command(), "dunlin", &mut script);
    output::print(script)?;
    Ok(ExitCode::SUCCESS)
}
