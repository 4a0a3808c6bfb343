//! Describes a program's commands and options as JSON, so that `dunlin completions` can complete other
//! programs too.

use crate::output::{self, Failure};
use crate::program::Program;
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};

/// The word after [`crate::INTERNAL`] that requests a program's description.
pub const DESCRIBE: &str = "describe";

/// A command: its options and its subcommands.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Description {
    name: String,
    about: String,
    options: Vec<OptionDescription>,
    commands: Vec<Description>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct OptionDescription {
    name: String,
    help: String,
    short: Option<char>,
    long: Option<String>,
    /// Whether the option takes a value.
    value: bool,
    /// The possible values, if there are only a few.
    values: Vec<String>,
}

/// Prints the description if the arguments of this process request it. Returns whether they did.
pub fn describe_if_asked(command: &Command) -> Result<bool, Failure> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words != [crate::INTERNAL, DESCRIBE] {
        return Ok(false);
    }
    output::print_line(serde_json::to_string(&Description::of(command)).map_err(Failure::new)?)?;
    Ok(true)
}

impl Description {
    /// Describes a command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        Description {
            name: command.get_name().to_owned(),
            about: command.get_about().map(ToString::to_string).unwrap_or_default(),
            options: command.get_arguments().filter(|option| !option.is_hide_set()).map(describe).collect(),
            commands: command
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(Self::of)
                .collect(),
        }
    }

    /// Requests a program's description. Returns `None` if the program is missing or does not support the
    /// request.
    #[must_use]
    pub fn ask(program: Program) -> Option<Self> {
        let file = program.find()?;
        let output = std::process::Command::new(file).args([crate::INTERNAL, DESCRIBE]).output().ok()?;
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    /// Returns the subcommands.
    #[must_use]
    pub fn into_commands(self) -> Vec<Self> {
        self.commands
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds a clap command from the description, with this name.
    #[must_use]
    pub fn into_command(self, name: &str) -> Command {
        let mut command = Command::new(leak(name)).about(self.about);
        for option in self.options {
            command = command.arg(argument(option));
        }
        for below in self.commands {
            let name = below.name.clone();
            command = command.subcommand(below.into_command(&name));
        }
        command
    }
}

/// Leaks the text: clap needs `'static` names, and a process describes commands only once.
fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn describe(option: &Arg) -> OptionDescription {
    let takes = option.get_action().takes_values();
    OptionDescription {
        name: option.get_id().to_string(),
        help: option.get_help().map(ToString::to_string).unwrap_or_default(),
        short: option.get_short(),
        long: option.get_long().map(str::to_owned),
        value: takes,
        values: if takes {
            option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
        } else {
            Vec::new()
        },
    }
}

fn argument(option: OptionDescription) -> Arg {
    let mut argument = Arg::new(leak(&option.name)).help(option.help);
    if let Some(short) = option.short {
        argument = argument.short(short);
    }
    if let Some(long) = &option.long {
        argument = argument.long(leak(long));
    }
    if !option.value {
        return argument.action(ArgAction::SetTrue);
    }
    argument = argument.action(ArgAction::Append);
    if option.values.is_empty() {
        return argument;
    }
    argument
        .value_parser(option.values.iter().map(|value| PossibleValue::new(leak(value))).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_its_description() {
        let command = Command::new("sim")
            .about("Simulates")
            .arg(Arg::new("quick").long("quick").short('q').action(ArgAction::SetTrue).help("Fewer runs"))
            .subcommand(
                Command::new("figure")
                    .arg(Arg::new("id").help("Which"))
                    .arg(Arg::new("form").long("form").value_parser(["svg", "json"])),
            )
            .subcommand(Command::new("secret").hide(true));
        let text = serde_json::to_string(&Description::of(&command)).expect("JSON");
        let described: Description = serde_json::from_str(&text).expect("a description");
        let again = described.into_command("sim");
        again.clone().debug_assert();
        let names: Vec<_> = again.get_subcommands().map(Command::get_name).collect();
        assert_eq!(names, ["figure"]);
        let words = ["sim", "figure", "rf-rpc-9", "--form", "svg"];
        let matches = again.clone().try_get_matches_from(words).expect("parses");
        let (_, figure) = matches.subcommand().expect("figure");
        assert_eq!(figure.get_one::<String>("form").map(String::as_str), Some("svg"));
        assert!(again.try_get_matches_from(["sim", "figure", "--form", "png"]).is_err());
    }
}
