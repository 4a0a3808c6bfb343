//! Commands that another program runs: `dunlin` hands their words on.

use clap::Args;
use dunlin_command::output::Failure;
use dunlin_command::program::Program;
use std::ffi::OsString;

/// The words behind the command, for the program that runs it.
#[derive(Args, Debug)]
pub(crate) struct Words {
    /// Commands and options of the program; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

impl Words {
    /// Runs the program in the place of this process, with its own command before the words if it has several. Returns only
    /// if that fails.
    pub(crate) fn exec(&self, program: Program, command: Option<&str>, verbose: u8) -> Failure {
        let verbose = (verbose > 0).then(|| OsString::from(format!("-{}", "v".repeat(verbose.into()))));
        program.exec(verbose.into_iter().chain(command.map(OsString::from)).chain(self.words.iter().cloned()))
    }
}
