//! Commands that another program runs: `dunlin` passes their arguments on.

use clap::Args;
use dunlin_command::output::Failure;
use dunlin_command::program::Program;
use std::ffi::OsString;

/// The arguments of the command, passed on to the program that runs it.
#[derive(Args, Debug)]
pub(crate) struct Words {
    /// Commands and options of the program; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

impl Words {
    /// Replaces this process by the program. `command` precedes the words if the program has several
    /// commands. Returns only on failure.
    pub(crate) fn exec(&self, program: Program, command: Option<&str>, verbose: u8) -> Failure {
        let verbose = (verbose > 0).then(|| OsString::from(format!("-{}", "v".repeat(verbose.into()))));
        program.exec(verbose.into_iter().chain(command.map(OsString::from)).chain(self.words.iter().cloned()))
    }
}
