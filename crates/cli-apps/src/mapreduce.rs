//! `dunlin apps mapreduce`: MapReduce over files.

mod members;
mod shown;

use clap::{Args, Subcommand};
use dunlin_app_mapreduce::{Files, Grep, Index, Job, MapReduceError, Program, WordCount};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{table, write_atomically};
use shown::{Shown, Top};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Workers combine what they map in their memory, and keep it in regions of the memory tier; others read
it from there. Files are read split by split, so they may be larger than the memory. By default one
process is the master and all workers, with nodes of its own. With --job, processes that are attached
to nodes work together: one without --work is the master and works too, and any number with --work
join it, at any time. A worker that dies has its tasks done again.

Examples:
  dunlin apps mapreduce wordcount *.txt
  dunlin apps mapreduce grep timeout --output found.txt server.log
  dunlin apps mapreduce index --nodes 2 --output index.txt docs/*.md
  dunlin node run --memory 1GiB &
  dunlin apps mapreduce wordcount big.txt --job count --work &
  dunlin apps mapreduce wordcount big.txt --job count";

const WORDCOUNT_HELP: &str = "\
A word is a run of ASCII letters and digits and of bytes from 128 on; letters of ASCII count as lower
case. Prints the most frequent words; --output writes all, in the order of their bytes.

Examples:
  dunlin apps mapreduce wordcount --top 20 book.txt
  dunlin apps mapreduce wordcount --plain --threads 2 book.txt      the same without the tier";

const GREP_HELP: &str = "\
Prints each line with its file and the offset of its first byte, in the order of the files' names.

Examples:
  dunlin apps mapreduce grep 'connection refused' server.log client.log";

const INDEX_HELP: &str = "\
Words are those of wordcount. Prints the words in the most files; --output writes all.

Examples:
  dunlin apps mapreduce index --output index.txt docs/*.md";

/// Run MapReduce over files (LITE, section 8.2).
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct MapReduceArguments {
    #[command(subcommand)]
    command: MapReduceCommand,
}

#[derive(Debug, Subcommand)]
enum MapReduceCommand {
    Wordcount(WordcountArguments),
    Grep(GrepArguments),
    Index(IndexArguments),
}

/// Count the words of files.
#[derive(Args, Debug)]
#[command(after_help = WORDCOUNT_HELP)]
struct WordcountArguments {
    #[command(flatten)]
    common: CommonArguments,
}

/// Find the lines that contain a text.
#[derive(Args, Debug)]
#[command(after_help = GREP_HELP)]
struct GrepArguments {
    /// Text to find, byte by byte
    pattern: String,
    #[command(flatten)]
    common: CommonArguments,
}

/// List the files that each word is in.
#[derive(Args, Debug)]
#[command(after_help = INDEX_HELP)]
struct IndexArguments {
    #[command(flatten)]
    common: CommonArguments,
}

/// Options of all programs.
#[derive(Args, Debug)]
struct CommonArguments {
    /// Files to read; all processes of a job give the same paths
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Worker threads of this process [default: the cores that it may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Nodes of this process, each with a part of the threads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Memory of each node of this process [default: twice the files, and 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = arguments::size, conflicts_with_all = ["job", "plain"])]
    node_memory: Option<u64>,
    /// Run on threads of this process without the tier, for comparison
    #[arg(long, conflicts_with_all = ["nodes", "job"])]
    plain: bool,
    /// Name of a job that several processes run together, each attached to the node of its host
    #[arg(long, value_name = "NAME", conflicts_with = "nodes")]
    job: Option<String>,
    /// Work for the master of the job, until the job has ended
    #[arg(long, requires = "job", conflicts_with_all = ["output", "top"])]
    work: bool,
    /// Partitions of the keys [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    partitions: Option<u32>,
    /// Bytes of a map task
    #[arg(long, default_value = "4MiB", value_name = "SIZE", value_parser = arguments::size)]
    split: u64,
    /// Memory in which each thread combines results
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = arguments::size)]
    memory: u64,
    /// Longest time to wait for a master or for workers
    #[arg(long, default_value = "30s", value_parser = arguments::positive_duration, value_name = "TIME")]
    wait: Duration,
    /// Rows to print
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
    /// Write all results to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    attach: AttachArguments,
}

impl CommonArguments {
    fn description(&self) -> Job {
        let default = Job::new(self.job.as_deref().unwrap_or("mapreduce"));
        Job {
            partitions: self.partitions.unwrap_or(default.partitions),
            memory: usize::try_from(self.memory).unwrap_or(usize::MAX),
            patience: self.wait,
            ..default
        }
    }

    fn input(&self) -> Result<Files, Failure> {
        Files::open(self.files.iter().cloned(), self.split).map_err(failure)
    }
}

/// Returns the failure of a job, with the next step.
fn failure(error: MapReduceError) -> Failure {
    let help = match &error {
        MapReduceError::NoMaster { .. } => {
            "start the master: the same command without --work; it may have ended before this worker came"
        }
        MapReduceError::NoWorkers => "start workers: the same command with --work",
        MapReduceError::Disagree { .. } => "give all processes the same files and options",
        MapReduceError::Exists { .. } => "choose another --job, or join it with --work",
        MapReduceError::GivenUp => {
            "it was stopped for too long, or the machine is overloaded: start it again"
        }
        MapReduceError::Task(text) if text.contains("refuses a region") => {
            "give the nodes more memory: dunlin node run --memory 1GiB, or --node-memory for those of this process"
        }
        _ => return Failure::new(error),
    };
    Failure::new(error).help(help)
}

pub(crate) fn run(arguments: &MapReduceArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        MapReduceCommand::Wordcount(arguments) => work(&arguments.common, &WordCount)?,
        MapReduceCommand::Grep(arguments) => {
            work(&arguments.common, &Grep { pattern: arguments.pattern.clone().into_bytes() })?
        }
        MapReduceCommand::Index(arguments) => work(&arguments.common, &Index)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the program as a master or as a worker, and shows the results.
fn work<P: Program + Clone + Shown>(arguments: &CommonArguments, program: &P) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        output::check_writable(path)?;
    }
    let interrupt = Interrupt::install()?;
    if arguments.work {
        return members::work(arguments, program, &interrupt);
    }
    let mut top = Top::new(arguments.top);
    let mut ended = None;
    let mut lead = |each: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
        let result = members::lead(arguments, program, &interrupt, |key, value| {
            top.add(P::score(value), key, value);
            each(key, value)
        });
        let is_well = result.is_ok();
        ended = Some(result);
        is_well
    };
    let mut printed = Ok(());
    match &arguments.output {
        Some(path) => {
            let mut failed = None;
            let write = |out: &mut io::BufWriter<std::fs::File>| {
                let is_well = lead(&mut |key, value| {
                    failed = out.write_all(&P::line(key, value)).err();
                    failed.is_none()
                });
                match failed.take() {
                    Some(error) => Err(error),
                    None if is_well => Ok(()),
                    None => Err(io::Error::other("the job has failed")),
                }
            };
            printed = write_atomically(path, write).map_err(Failure::new);
        }
        None if P::PRINTS_ALL => {
            lead(&mut |key, value| {
                printed = output::print(P::line(key, value));
                printed.is_ok()
            });
        }
        None => {
            lead(&mut |_, _| true);
        }
    }
    interrupt.check()?;
    // The error of the job is the cause of that of the file.
    let (outcome, bytes) = ended.unwrap_or_else(|| Err(Failure::new("the job did not begin")))?;
    printed?;
    let time = outcome.mapping + outcome.reducing + outcome.merging;
    let rate = bytes as f64 / time.as_secs_f64().max(1e-9) / 1e6;
    output::note(format_args!(
        "{bytes} bytes, {} keys; mapped in {:.3} s, reduced in {:.3} s, merged in {:.3} s: {rate:.1} MB a second",
        outcome.keys,
        outcome.mapping.as_secs_f64(),
        outcome.reducing.as_secs_f64(),
        outcome.merging.as_secs_f64(),
    ));
    match P::PRINTS_ALL {
        true => Ok(()),
        false => output::print(table(&top.rows::<P>())),
    }
}
