//! A program's commands and options as JSON, for `dunlin completions` and the generated page of commands, and the check of a command
//! line that is not run, for the tests of documents.

use crate::output::{self, Failure};
use crate::program::Program;
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::process::ExitCode;

/// The word, behind [`crate::INTERNAL`], that asks a program for its description.
pub const DESCRIBE: &str = "describe";

/// The word, behind [`crate::INTERNAL`], that has the words behind it checked and not run.
const PARSE: &str = "parse";

/// A command: its options and the commands below it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Description {
    name: String,
    about: String,
    /// Whether another program runs it.
    external: bool,
    options: Vec<OptionDescription>,
    commands: Vec<Description>,
}

/// An option, or an argument by its place.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct OptionDescription {
    name: String,
    help: String,
    short: Option<char>,
    long: Option<String>,
    /// Whether it takes a value.
    value: bool,
    /// The name of the value in usage lines.
    value_name: String,
    /// The values that it can take, where these are few.
    values: Vec<String>,
    /// The default.
    default: String,
}

impl OptionDescription {
    /// The option as a usage line shows it.
    #[must_use]
    pub fn usage(&self) -> String {
        let Some(long) = &self.long else { return self.value_name.clone() };
        let short = self.short.map(|short| format!("-{short}, ")).unwrap_or_default();
        if self.value { format!("{short}--{long} {}", self.value_name) } else { format!("{short}--{long}") }
    }

    /// The help, with values and default.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.help.clone();
        if !self.values.is_empty() {
            text.push_str(&format!("; one of {}", self.values.join(", ")));
        }
        if !self.default.is_empty() {
            text.push_str(&format!(" [default: {}]", self.default));
        }
        text
    }

    /// Whether it is the option for help or for the version.
    #[must_use]
    pub fn is_help(&self) -> bool {
        matches!(self.long.as_deref(), Some("help" | "version"))
    }
}

/// Prints the description, or checks words, if the arguments of this process ask for it; the exit status if they did.
pub fn answer_if_asked(command: Command) -> Result<Option<ExitCode>, Failure> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let Some((first, words)) = words.split_first() else { return Ok(None) };
    if first != crate::INTERNAL {
        return Ok(None);
    }
    match words.split_first() {
        Some((word, [])) if word == DESCRIBE => {
            let mut command = command;
            command.build();
            output::print_line(serde_json::to_string(&Description::of(&command)).map_err(Failure::new)?)?;
            Ok(Some(ExitCode::SUCCESS))
        }
        Some((word, words)) if word == PARSE => {
            let name = OsString::from(command.get_name());
            match command.try_get_matches_from(std::iter::once(&name).chain(words)) {
                Err(error) if error.use_stderr() => {
                    output::note(error);
                    Ok(Some(ExitCode::from(2)))
                }
                _ => Ok(Some(ExitCode::SUCCESS)),
            }
        }
        _ => Ok(None),
    }
}

impl Description {
    /// Describes a command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        Description {
            name: command.get_name().to_owned(),
            about: command.get_about().map(ToString::to_string).unwrap_or_default(),
            options: command.get_arguments().filter(|option| !option.is_hide_set()).map(describe).collect(),
            external: command.is_disable_help_flag_set(),
            commands: command
                .get_subcommands()
                .filter(|command| !command.is_hide_set() && command.get_name() != "help")
                .map(Self::of)
                .collect(),
        }
    }

    /// Asks a program for its description; `None` where it is not there or does not understand.
    #[must_use]
    pub fn ask(program: Program) -> Option<Self> {
        let file = program.find()?;
        let output = std::process::Command::new(file).args([crate::INTERNAL, DESCRIBE]).output().ok()?;
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    /// The commands below this one.
    #[must_use]
    pub fn into_commands(self) -> Vec<Self> {
        self.commands
    }

    /// The commands below this one.
    #[must_use]
    pub fn commands(&self) -> &[Self] {
        &self.commands
    }

    /// Its options and arguments.
    pub fn options(&self) -> impl Iterator<Item = &OptionDescription> {
        self.options.iter()
    }

    /// Its purpose, in a line.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Whether another program runs it.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command again, as far as it is described; with this name.
    #[must_use]
    pub fn into_command(self, name: &str) -> Command {
        let mut command = Command::new(leak(name)).about(self.about);
        for option in self.options.into_iter().filter(|option| !option.is_help()) {
            command = command.arg(argument(option));
        }
        for below in self.commands {
            let name = below.name.clone();
            command = command.subcommand(below.into_command(&name));
        }
        command
    }
}

/// clap wants names for the life of the process; a process describes commands once.
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
        value_name: option
            .get_value_names()
            .and_then(|names| names.first())
            .map(ToString::to_string)
            .unwrap_or_default(),
        default: if takes {
            let values: Vec<_> =
                option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            values.join(",")
        } else {
            String::new()
        },
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
    // Of several arguments by place, only the last one may be repeated, so each counts once.
    let by_place = option.long.is_none() && option.short.is_none();
    argument = argument.action(if by_place { ArgAction::Set } else { ArgAction::Append });
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
                    .arg(Arg::new("file").help("To here"))
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
