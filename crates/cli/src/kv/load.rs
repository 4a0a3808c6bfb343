//! `dunlin kv load`: streams records from a file into a store.

use super::ConnectArguments;
use clap::{Args, ValueEnum};
use dunlin::fabric::Fabric;
use dunlin::{Address, on_fabric};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::progress;
use dunlin_kv::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};
use dunlin_report::Unit;
use dunlin_workload::kv_driver::PutPipeline;
use dunlin_workload::loader::{BadLineReason, Format, Limits, Loader};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const AFTER_HELP: &str = "\
The file is tab-separated, 'key<TAB>value', or has one JSON object per line: {\"key\": \"a\", \"value\": \"1\"}, or
{\"key_base64\": ..., \"value_base64\": ...} for binary data. The first line determines the format.
Bad lines are reported by number on standard error, and the load continues.

Exit status: 0 if every record was stored; 1 if a line was bad (0 with --lenient) or the connection was lost.

Examples:
  dunlin kv load shm:store records.tsv
  zcat records.jsonl.gz | dunlin kv load shm:store -";

/// Limit of value bytes in flight, so that large values do not exhaust the registered memory.
const BYTES_IN_FLIGHT: usize = 32 << 20;
/// Limit of records in flight.
const WINDOW: usize = 64;
/// Records per batch.
const BATCH: usize = 16;
/// Lines between two updates of the progress bar.
const SHOW_EVERY: u64 = 1024;

/// Store the records of a file.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LoadArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    /// File to read; '-' reads standard input
    file: PathBuf,
    /// Format of the lines [default: detected from the first line]
    #[arg(long)]
    format: Option<FormatArgument>,
    /// Exit with status 0 even if some lines were bad
    #[arg(long)]
    lenient: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArgument {
    /// Key, tab, value
    Tsv,
    /// One JSON object per line
    Jsonl,
}

pub(crate) fn run(arguments: &LoadArguments) -> Result<ExitCode, Failure> {
    let (chosen, address) = arguments.connect.choose()?;
    on_fabric!(&chosen, fabric => load(arguments, fabric, &address))
}

fn load<F: Fabric>(arguments: &LoadArguments, fabric: &F, address: &Address) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let name = arguments.file.display().to_string();
    let (reader, length): (Box<dyn Read>, Option<u64>) = if name == "-" {
        (Box::new(std::io::stdin().lock()), None)
    } else {
        let failed = |error| Failure::new(format!("cannot read {name}: {error}"));
        let file = File::open(&arguments.file).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(
                Failure::new(format!("{name} is a folder")).help("give a file, or - for standard input")
            );
        }
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let limits = Limits { key: MAX_KEY_LENGTH, value: MAX_VALUE_LENGTH };
    let mut loader = match arguments.format {
        Some(FormatArgument::Tsv) => Loader::with_format(reader, Format::TabSeparated, limits),
        Some(FormatArgument::Jsonl) => Loader::with_format(reader, Format::JsonLines, limits),
        None => Loader::new(reader, limits),
    };
    let mut client = arguments.connect.connect(fabric, address, WINDOW as u16)?;
    let bar = progress::bytes(length, "loading");
    let report = |text: String| bar.suspend(|| output::note(text));
    let mut pipeline = PutPipeline::new(&mut client, WINDOW, BATCH);
    let (mut bad, mut in_flight_bytes) = (0u64, 0usize);
    let begin = Instant::now();
    let mut unreadable = false;
    while interrupt.received().is_none() {
        let Some(item) = loader.next() else { break };
        match item {
            Ok(record) => {
                in_flight_bytes += record.value.len();
                if in_flight_bytes > BYTES_IN_FLIGHT {
                    pipeline.finish().map_err(|error| stopped(error.into(), &bar, &pipeline, &loader))?;
                    in_flight_bytes = record.value.len();
                }
                pipeline
                    .put(&record.key, &record.value, loader.line_number())
                    .map_err(|error| stopped(error.into(), &bar, &pipeline, &loader))?;
            }
            Err(line) => {
                bad += 1;
                unreadable |= matches!(line.reason, BadLineReason::Read(_));
                report(format!("{name}: {line}"));
            }
        }
        for refused in pipeline.take_refused() {
            bad += 1;
            report(format!("{name}: line {}: {}", refused.tag, refused.status));
        }
        if loader.line_number() % SHOW_EVERY == 0 {
            bar.set_position(loader.bytes_read());
        }
    }
    pipeline.finish().map_err(|error| stopped(error.into(), &bar, &pipeline, &loader))?;
    for refused in pipeline.take_refused() {
        bad += 1;
        report(format!("{name}: line {}: {}", refused.tag, refused.status));
    }
    bar.finish_and_clear();
    let (stored, seconds) = (pipeline.stored(), begin.elapsed().as_secs_f64());
    output::print_line(format_args!(
        "{stored} records stored from {} lines ({}) in {seconds:.2} s, {} per second{}",
        loader.line_number(),
        Unit::Bytes.format(loader.bytes_read() as f64),
        (stored as f64 / seconds.max(1e-9)) as u64,
        if bad > 0 { format!("; {bad} bad lines") } else { String::new() }
    ))?;
    interrupt.check()?;
    if unreadable {
        return Err(Failure::new(format!("{name} could not be read to its end")));
    }
    if bad > 0 && !arguments.lenient {
        return Err(Failure::new(format!(
            "{bad} lines of {name} were not stored; their numbers stand above"
        ))
        .help("correct them and load the file again, or use --lenient to accept this"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports a load that ended before the end of the file.
fn stopped<R: Read, F: Fabric>(
    failure: Failure,
    bar: &ProgressBar,
    pipeline: &PutPipeline<'_, F>,
    loader: &Loader<R>,
) -> Failure {
    bar.finish_and_clear();
    failure.context(format_args!(
        "stopped at line {} with {} records stored",
        loader.line_number(),
        pipeline.stored()
    ))
}
