//! `dunlin completions`: shell completion scripts, which cover the other programs' commands too.

use clap::{Args, Command, CommandFactory as _};
use clap_complete::{Shell, generate};
use dunlin_command::describe::Description;
use dunlin_command::output::{self, Failure};
use dunlin_command::program::{APPS, BENCH, IDL, SIM, TIER};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Covers the commands of other programs (bench, sim, explain, gen) if those are installed.

Examples:
  dunlin completions bash > ~/.local/share/bash-completion/completions/dunlin
  dunlin completions zsh > ~/.zfunc/_dunlin      (with ~/.zfunc in fpath)
  dunlin completions fish > ~/.config/fish/completions/dunlin.fish";

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CompletionsArguments {
    /// Shell to complete for
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut whole(crate::Arguments::command()), "dunlin", &mut script);
    output::print(script)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the commands of the other programs, as far as these are installed.
fn whole(command: Command) -> Command {
    // These programs run several commands of `dunlin`.
    let several =
        [IDL, TIER, APPS].into_iter().filter_map(Description::ask).flat_map(Description::into_commands);
    let found = [("bench", Description::ask(BENCH)), ("sim", Description::ask(SIM))];
    let found = found.into_iter().filter_map(|(name, description)| Some((name.to_owned(), description?)));
    found.chain(several.map(|description| (description.name().to_owned(), description))).fold(
        command,
        |command, (name, description)| {
            command.mut_subcommand(name.clone(), |_| description.into_command(&name))
        },
    )
}
