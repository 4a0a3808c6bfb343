//! `dunlin gen`: Rust from a Thrift file with hints, for who has no build script or wants to look.

use crate::explain;
use clap::Args;
use dunlin_command::output::{self, Failure};
use dunlin_idl::{Disk, Lenience, Options};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
The code holds, for each service, a trait for the handler, a processor that a server runs, and a synchronous and an
asynchronous client; for each type of the IDL one of Rust. A program that includes it depends on dunlin with the feature
'thrift'. Programs usually do this in build.rs, by dunlin_idl_build::compile(\"kv.thrift\"), and then
dunlin::include_service!(\"kv\").

Examples:
  dunlin gen kv.thrift
  dunlin gen idl/kv.thrift --out src/kv.rs
  dunlin explain kv.thrift        which plans the hints select";

/// Generate Rust from a Thrift file with hints
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GenerateArguments {
    /// The IDL file: Thrift, with or without hints
    file: PathBuf,
    /// Where the code goes; the file's name with .rs in this folder if not said
    #[arg(short, long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Look for included files in this folder too
    #[arg(short = 'I', long, value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// Warn of hints that nobody knows, and go on without them
    #[arg(long)]
    lenient: bool,
}

pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.file;
    let out = match (&arguments.out, path.file_stem()) {
        (Some(out), _) => out.clone(),
        (None, Some(name)) => Path::new(name).with_extension("rs"),
        (None, None) => return Err(Failure::new(format!("{} has no name; say --out PATH", path.display()))),
    };
    output::check_writable(&out)?;
    let options = Options {
        include_folders: arguments.include.clone(),
        lenience: if arguments.lenient { Lenience::Lenient } else { Lenience::Strict },
    };
    let document =
        dunlin_idl::load_with(path, &options, &Disk).map_err(|wrong| explain::refuse(path, &wrong))?;
    if !document.warnings.is_empty() {
        output::note(format!("{}\n", document.warnings));
    }
    let folder = std::env::temp_dir().join(format!("dunlin-gen-{}", std::process::id()));
    let text = silently(|| dunlin_idl_build::generate(&document, path, &folder));
    // Left behind at worst: the copies of the IDL in a folder for such things.
    let _ = std::fs::remove_dir_all(&folder);
    let text = text.map_err(Failure::new)?;
    std::fs::write(&out, &text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", out.display())))?;
    let services = document.own_services().count();
    output::print(format!("{}: {} lines, services: {services}\n", out.display(), text.lines().count()))?;
    Ok(ExitCode::SUCCESS)
}

/// pilota's generator talks to cargo on standard output, and there is no cargo here.
fn silently<T>(work: impl FnOnce() -> T) -> T {
    let spared = rustix::io::dup(rustix::stdio::stdout()).ok().filter(|_| {
        let nowhere = std::fs::File::options().write(true).open("/dev/null");
        nowhere.is_ok_and(|nowhere| rustix::stdio::dup2_stdout(nowhere).is_ok())
    });
    let done = work();
    if let Some(stdout) = spared {
        let _ = rustix::stdio::dup2_stdout(stdout);
    }
    done
}
