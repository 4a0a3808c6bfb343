//! Fuzzes the parsers of messages and of handshake records. It needs stable Rust and no other tool:
//!
//! ```text
//! cargo run --release -p dunlin-wire --example fuzz -- --inputs 10000000 --seed 1
//! ```
//!
//! Every input is a pure function of the seed and the input's index. A finding prints both, and `--only
//! NUMBER` replays it.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // a tool that times itself, not the engine

mod engine;

use dunlin_wire::handshake::{HandshakeError, Record};
use dunlin_wire::{FirstLine, LINE, Message, Reject, parse_line};
use engine::{Parser, Report};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

/// The library's parsers.
struct Real;

impl Parser for Real {
    fn first_line(line: &[u8; LINE], limit: usize) -> Result<FirstLine, Reject> {
        parse_line(line, limit)
    }

    fn message(bytes: &[u8], limit: usize) -> Result<Message<'_>, Reject> {
        Message::parse(bytes, limit)
    }

    fn record(frame: &[u8]) -> Result<Record, HandshakeError> {
        Record::decode(frame)
    }
}

const USAGE: &str = "usage: fuzz [--inputs N] [--seed S] [--only NUMBER]
  --inputs N     how many inputs to try (default 1000000)
  --seed S       which sequence of inputs (default 1)
  --only NUMBER  try this one input of the seed";

struct Arguments {
    inputs: u64,
    seed: u64,
    only: Option<u64>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { inputs: 1_000_000, seed: 1, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            value.replace('_', "").parse::<u64>().map_err(|error| format!("{word} {value}: {error}"))
        };
        match word.as_str() {
            "--inputs" => parsed.inputs = number()?,
            "--seed" => parsed.seed = number()?,
            "--only" => parsed.only = Some(number()?),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let Arguments { inputs, seed, only } = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (mut next, end) = only.map_or((0, inputs), |index| (index, index.saturating_add(1)));
    let started = Instant::now();
    let mut report = Report::default();
    while next < end && report.failure.is_none() {
        let chunk_end = end.min(next.saturating_add(1 << 18));
        engine::run::<Real>(seed, next..chunk_end, &mut report);
        next = chunk_end;
        if std::io::stderr().is_terminal() {
            eprint!("\r{next} of {end} inputs");
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    println!("{} inputs of seed {seed}, {:.0} inputs/s", report.inputs, report.inputs as f64 / seconds);
    for (origin, count) in &report.origins {
        println!("  {origin:<30} {count:>12}");
    }
    for ((part, reason), count) in &report.verdicts {
        println!("  {:<30} {count:>12}", format!("{part}: {reason}"));
    }
    let Some(failure) = report.failure else {
        println!("no finding");
        return ExitCode::SUCCESS;
    };
    println!("FINDING: {}\n  replay with --seed {seed} --only {}", failure.what, failure.index);
    for line in failure.input.chunks(32) {
        println!("  {}", line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    ExitCode::FAILURE
}
