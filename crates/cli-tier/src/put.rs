//! `dunlin tier put`: makes a region of a file, of standard input or of a text.

use clap::Args;
use dunlin_command::attach::{AttachArguments, PriorityArguments};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, progress};
use dunlin_report::Unit;
use dunlin_tier_client::{Lmr, Rights, Spec};
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
A region has a fixed length: that of the file, or --size for standard input. Standard input without --size is read
whole first, up to 64 MiB. If the command fails or is interrupted, no region is left.

Examples:
  dunlin tier put greeting --text hello
  dunlin tier put data/model model.bin
  dunlin tier put data/model model.bin --on node-2 --on node-3 --grant alice=rw --grant anyone=r
  dunlin tier put data/model model.bin --direct
  dunlin tier put backup/model model.bin --on node-2 --priority low
  dunlin tier put job-7/input rows.bin --lease 2h
  zcat dump.gz | dunlin tier put dump - --size 1GiB";

/// The most bytes of standard input without a size.
const MOST_BUFFERED: u64 = 64 << 20;
/// Bytes that are written at a time.
const AT_ONCE: usize = 1 << 20;
/// The interval at which a command that waits for its input looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Make a region with these bytes.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PutArguments {
    /// Name of the region, as in application/name
    name: String,
    /// File with the bytes; '-' reads standard input [default: -]
    #[arg(conflicts_with = "text")]
    file: Option<PathBuf>,
    /// These bytes in place of a file
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Length of the region; bytes that the input does not have are zero
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    size: Option<u64>,
    /// Node that stores the region [default: this host's node]; several are used in turns, piece by piece
    #[arg(long, value_name = "NODE")]
    on: Vec<String>,
    /// Put the region in memory of this host's node that belongs to your user alone, and write it there without requests:
    /// your processes can map it directly
    #[arg(long, conflicts_with = "on")]
    direct: bool,
    /// Grant rights to a principal: r, rw or rwm (to read, to write, master); the principal 'anyone' is
    /// everyone; may be repeated
    #[arg(long, value_name = "PRINCIPAL=RIGHTS", value_parser = grant)]
    grant: Vec<(String, Rights)>,
    /// Free the region after this time, unless 'dunlin tier lease' or a master renews it
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    lease: Option<Duration>,
    #[command(flatten)]
    priority: PriorityArguments,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Parses PRINCIPAL=RIGHTS.
pub(crate) fn grant(text: &str) -> Result<(String, Rights), String> {
    let wrong = || format!("'{text}' is not PRINCIPAL=RIGHTS; write for example alice=rw or anyone=r");
    let (principal, letters) = text.split_once('=').ok_or_else(wrong)?;
    let rights = letters.chars().try_fold(Rights::NONE, |rights, letter| match letter {
        'r' => Some(rights.with(Rights::READ)),
        'w' => Some(rights.with(Rights::WRITE)),
        'm' => Some(rights.with(Rights::MASTER)),
        _ => None,
    });
    match rights {
        Some(rights) if rights != Rights::NONE && !principal.is_empty() => Ok((principal.to_owned(), rights)),
        _ => Err(wrong()),
    }
}

/// Adds grants and a lease to the description of a region.
pub(crate) fn described(spec: Spec, grants: &[(String, Rights)], lease: Option<Duration>) -> Spec {
    let spec = lease.into_iter().fold(spec, Spec::leased);
    grants.iter().fold(spec, |spec, (principal, rights)| match principal.as_str() {
        "anyone" => spec.grant_anyone(*rights),
        principal => spec.grant(principal, *rights),
    })
}

/// Says how many bytes were moved, and how fast.
pub(crate) fn in_seconds(done: &str, bytes: u64, time: Duration) -> String {
    let (bytes, seconds) = (bytes as f64, time.as_secs_f64());
    let rate = Unit::Bytes.format(bytes / seconds.max(1e-9));
    format!("{} {done} in {seconds:.2} s, {rate} per second", Unit::Bytes.format(bytes))
}

impl PutArguments {
    /// Returns the input and the length of the region.
    fn input(&self) -> Result<(Box<dyn Read + Send>, u64), Failure> {
        if let Some(text) = &self.text {
            return Ok((
                Box::new(Cursor::new(text.clone().into_bytes())),
                self.size.unwrap_or(text.len() as u64),
            ));
        }
        match &self.file {
            Some(path) if path.as_os_str() != "-" => {
                let failed = |error| Failure::new(format!("cannot read {}: {error}", path.display()));
                let file = File::open(path).map_err(failed)?;
                let metadata = file.metadata().map_err(failed)?;
                let length = match self.size {
                    Some(size) => size,
                    None if metadata.is_file() => metadata.len(),
                    None => {
                        return Err(Failure::new(format!(
                            "{} is not a file, so its length is unknown",
                            path.display()
                        ))
                        .help("give --size"));
                    }
                };
                Ok((Box::new(file), length))
            }
            _ => match self.size {
                Some(size) => Ok((Box::new(std::io::stdin()), size)),
                None => {
                    let mut bytes = Vec::new();
                    let read = std::io::stdin().lock().take(MOST_BUFFERED + 1).read_to_end(&mut bytes);
                    read.map_err(|error| Failure::new(format!("cannot read standard input: {error}")))?;
                    if bytes.len() as u64 > MOST_BUFFERED {
                        return Err(Failure::new("standard input has more than 64 MiB").help("give --size"));
                    }
                    let length = bytes.len() as u64;
                    Ok((Box::new(Cursor::new(bytes)), length))
                }
            },
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads the input on a thread of its own, so that a signal ends a command whose input does not come. The thread ends
/// with the process at the latest.
fn parts(mut input: Box<dyn Read + Send>) -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(2);
    std::thread::spawn(move || {
        loop {
            let mut part = vec![0; AT_ONCE];
            let read = fill(&mut *input, &mut part).map(|read| {
                part.truncate(read);
                part
            });
            let is_last = !matches!(&read, Ok(part) if !part.is_empty());
            if sender.send(read).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Writes the input to the region; returns the number of bytes.
fn write(
    region: &Lmr,
    is_direct: bool,
    input: Box<dyn Read + Send>,
    name: &str,
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let direct = is_direct.then(|| region.direct()).transpose().map_err(Failure::new)?;
    let bar = progress::bytes(Some(region.len()), name);
    let (parts, mut at) = (parts(input), 0);
    let written = loop {
        interrupt.check()?;
        let part = match parts.recv_timeout(LOOK_EVERY) {
            Ok(Ok(part)) if part.is_empty() => break at,
            Ok(Ok(part)) => part,
            Ok(Err(error)) => {
                return Err(Failure::new(format!("cannot read the input after {at} bytes: {error}")));
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("the reader of the input has ended"));
            }
        };
        if part.len() as u64 > region.len() - at {
            return Err(Failure::new(format!(
                "the input is longer than the region's {} bytes",
                region.len()
            ))
            .help("give a larger --size"));
        }
        match &direct {
            Some(direct) => direct.copy_in(at, &part).map_err(Failure::new)?,
            None => region.write(at, &part).map_err(Failure::new)?,
        }
        at += part.len() as u64;
        bar.set_position(at);
    };
    bar.finish_and_clear();
    interrupt.check()?;
    Ok(written)
}

pub(crate) fn run(arguments: &PutArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let (input, length) = arguments.input()?;
    if length == 0 {
        return Err(Failure::new("the input is empty, and a region has at least 1 byte").help("give --size"));
    }
    let tier = arguments.attach.attach_as(arguments.priority)?;
    let mut spec = Spec::spread(arguments.on.iter().map(String::as_str)).named(&arguments.name);
    if arguments.direct {
        spec = spec.direct();
    }
    let spec = described(spec, &arguments.grant, arguments.lease);
    let begin = Instant::now();
    let region = tier.malloc(length, spec).map_err(|error| {
        let help = format!("if the name is taken, free its region: dunlin tier free {}", arguments.name);
        Failure::new(error).help(help)
    })?;
    let written = match write(&region, arguments.direct, input, &arguments.name, &interrupt) {
        Ok(written) => written,
        Err(failure) => {
            // Nobody shall find a part of the bytes.
            if let Err(error) = region.free() {
                output::note(format_args!(
                    "warning: the unfinished region {} is left: {error}",
                    arguments.name
                ));
            }
            return Err(failure);
        }
    };
    output::note(format_args!("{}: {}", arguments.name, in_seconds("written", written, begin.elapsed())));
    if written < length {
        output::note(format_args!("the last {} bytes of the region are zero", length - written));
    }
    Ok(ExitCode::SUCCESS)
}
