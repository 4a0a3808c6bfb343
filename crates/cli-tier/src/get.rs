//! `dunlin tier get`: streams the bytes of a region to a file or to standard output.

use clap::Args;
use dunlin_command::attach::{AttachArguments, PriorityArguments};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, progress};
use dunlin_tier_client::Rights;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
The bytes are those of the time at which each part is read: others may write meanwhile. A file is complete or not
there: the bytes go to FILE.part first.

Examples:
  dunlin tier get greeting
  dunlin tier get data/model copy.bin
  dunlin tier get data/model --offset 1MiB --length 100 | xxd";

/// Bytes that are read at a time.
const AT_ONCE: u64 = 1 << 20;

/// Read the bytes of a region.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GetArguments {
    /// Name of the region
    name: String,
    /// File to write; '-' is standard output [default: -]
    file: Option<PathBuf>,
    /// First byte
    #[arg(long, default_value = "0", value_parser = arguments::size, value_name = "SIZE")]
    offset: u64,
    /// Number of bytes [default: all up to the end]
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    length: Option<u64>,
    /// Read the bytes where they lie, without requests: of a region that a process of your user made with --direct
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    priority: PriorityArguments,
    #[command(flatten)]
    attach: AttachArguments,
}

/// The file that is written, removed unless it is complete.
struct Partial<'a> {
    file: File,
    path: PathBuf,
    target: &'a Path,
    is_complete: bool,
}

impl<'a> Partial<'a> {
    fn create(target: &'a Path) -> Result<Self, Failure> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        output::check_writable(target)?;
        let file = File::create(&path)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
        Ok(Partial { file, path, target, is_complete: false })
    }

    fn complete(mut self) -> Result<(), Failure> {
        std::fs::rename(&self.path, self.target)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", self.target.display())))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            // It may be gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(crate) fn run(arguments: &GetArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach_as(arguments.priority)?;
    let region = tier.map(&arguments.name, Rights::READ).map_err(Failure::new)?;
    let left = region.len().saturating_sub(arguments.offset);
    let length = arguments.length.unwrap_or(left);
    if arguments.offset > region.len() || length > left {
        return Err(Failure::new(format!(
            "{length} bytes at {} are not within the region's {}",
            arguments.offset,
            region.len()
        )));
    }
    let direct = arguments.direct.then(|| region.direct()).transpose().map_err(Failure::new)?;
    let target = arguments.file.as_deref().filter(|path| path.as_os_str() != "-");
    let mut partial = target.map(Partial::create).transpose()?;
    let bar = progress::bytes(Some(length), &arguments.name);
    let mut buffer = vec![0; AT_ONCE.min(length) as usize];
    let mut done = 0;
    while done < length {
        interrupt.check()?;
        let part = &mut buffer[..AT_ONCE.min(length - done) as usize];
        match &direct {
            Some(direct) => direct.copy_out(arguments.offset + done, part).map_err(Failure::new)?,
            None => region.read(arguments.offset + done, part).map_err(Failure::new)?,
        }
        match &mut partial {
            Some(partial) => partial
                .file
                .write_all(part)
                .map_err(|error| Failure::new(format!("cannot write {}: {error}", partial.path.display())))?,
            None => output::print(&*part)?,
        }
        done += part.len() as u64;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    if let Some(partial) = partial {
        partial.complete()?;
    }
    Ok(ExitCode::SUCCESS)
}
