//! `dunlin gen`: generates Rust from a Thrift file with hints, for projects without a build script, or for
//! inspection. With `--thrift` it writes the file with its hints as annotations.

use crate::explain;
use clap::Args;
use dunlin_command::output::{self, Failure};
use dunlin_idl::{Disk, Document, Files, Lenience, Options};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
The code contains a Rust type for each IDL type and, for each service, a handler trait, a processor for the server, a
synchronous client and an asynchronous client. A program that includes it needs dunlin with the feature 'thrift'.
Programs usually generate the code in build.rs with dunlin_idl_build::compile(\"kv.thrift\"), and include it with
dunlin::include_service!(\"kv\").

Examples:
  dunlin gen kv.thrift
  dunlin gen idl/kv.thrift --out src/kv.rs
  dunlin gen --thrift kv.thrift --out plain.thrift   the same IDL for other Thrift compilers
  dunlin explain kv.thrift        show the plans that the hints select";

/// Generate Rust from a Thrift file with hints
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GenerateArguments {
    /// IDL file: Thrift, with or without hints
    file: PathBuf,
    /// File for the generated code [default: the IDL file's name with .rs, in the current folder; with
    /// --thrift: standard output]
    #[arg(short, long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Write the same IDL with its hints as annotations, which every Thrift compiler reads, instead of Rust
    #[arg(long)]
    thrift: bool,
    /// Also search this folder for included files; may be repeated
    #[arg(short = 'I', long, value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// Ignore unknown hints with a warning
    #[arg(long)]
    lenient: bool,
}

pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode, Failure> {
    if arguments.thrift {
        return annotate(arguments);
    }
    let path = &arguments.file;
    let out = match (&arguments.out, path.file_stem()) {
        (Some(out), _) => out.clone(),
        (None, Some(name)) => Path::new(name).with_extension("rs"),
        (None, None) => return Err(Failure::new(format!("{} has no name; say --out PATH", path.display()))),
    };
    output::check_writable(&out)?;
    let document = load(arguments, &Disk)?;
    let folder = std::env::temp_dir().join(format!("dunlin-gen-{}", std::process::id()));
    let text = silently(|| dunlin_idl_build::generate(&document, path, &folder));
    // Ignore the error: at worst, copies of the IDL remain in the temporary folder.
    let _ = std::fs::remove_dir_all(&folder);
    let text = text.map_err(Failure::new)?;
    std::fs::write(&out, &text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", out.display())))?;
    let services = document.own_services().count();
    output::print(format!("{}: {} lines, services: {services}\n", out.display(), text.lines().count()))?;
    Ok(ExitCode::SUCCESS)
}

/// Loads and checks the file, and prints warnings.
fn load(arguments: &GenerateArguments, files: &dyn Files) -> Result<Document, Failure> {
    let options = Options {
        include_folders: arguments.include.clone(),
        lenience: if arguments.lenient { Lenience::Lenient } else { Lenience::Strict },
    };
    let path = &arguments.file;
    let document =
        dunlin_idl::load_with(path, &options, files).map_err(|wrong| explain::refuse(path, &wrong))?;
    if !document.warnings.is_empty() {
        output::note(format!("{}\n", document.warnings));
    }
    Ok(document)
}

/// The disk, with another text in one file.
struct Instead<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Files for Instead<'_> {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Disk.canonical(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == self.path { Ok(self.text.as_bytes().to_vec()) } else { Disk.read(path) }
    }
}

/// Writes the IDL with its hints as annotations, after a check that each function has the same hints.
fn annotate(arguments: &GenerateArguments) -> Result<ExitCode, Failure> {
    if let Some(out) = &arguments.out {
        output::check_writable(out)?;
    }
    let before = load(arguments, &Disk)?;
    let text = before.files[0].with_annotations();
    let after = load(arguments, &Instead { path: &arguments.file, text: &text })?;
    let hints = |document: &Document| {
        let all = document.services.iter().flat_map(|service| service.all_functions());
        all.map(|function| (function.hints.client, function.hints.server)).collect::<Vec<_>>()
    };
    if hints(&before) != hints(&after) {
        let message =
            format!("the hints of {} would change; please report the file", arguments.file.display());
        return Err(Failure::new(message));
    }
    for file in before.files[1..].iter().filter(|file| file.has_bracket_hints()) {
        output::note(format_args!(
            "{} has hints in brackets too: other compilers need 'dunlin gen --thrift' of it as well",
            file.path.display()
        ));
    }
    match &arguments.out {
        None => output::print(text)?,
        Some(out) => {
            std::fs::write(out, &text)
                .map_err(|error| Failure::new(format!("cannot write {}: {error}", out.display())))?;
            output::print(format!("{}: {} lines\n", out.display(), text.lines().count()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Hides standard output: pilota's generator prints cargo directives, and no cargo reads them here.
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
