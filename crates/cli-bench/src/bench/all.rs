//! `dunlin bench all`: runs every measurement with the parameters of the project's figures, and collects
//! the tables in one file.

use anyhow::{Context as _, Result};
use clap::Parser;
use dunlin_report::{Document, Row, day};

use super::{Bench, Output, document, finish, measure, section, write_markdown};

/// The commands to run, without `dunlin bench`.
const COMMANDS: [&str; 14] = [
    "limit",
    "latency --size 32",
    "latency --size 4096",
    "latency --size 65536",
    "latency --size 1048576",
    "typed",
    "throughput --size 32 --clients 1",
    "throughput --size 32 --clients 4",
    "kv",
    "event",
    "tier",
    "tier-idle",
    "idle --connections 100",
    "idle --connections 1000",
];

/// Parser of the words after `dunlin bench`, as on the command line.
#[derive(Parser)]
#[command(name = "dunlin bench", no_binary_name = true)]
struct Words {
    #[command(subcommand)]
    bench: Bench,
}

/// Runs all measurements and prints each table when it is complete.
pub(super) fn run(output: &Output) -> Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    let mut text = String::new();
    for command in COMMANDS {
        println!("\n$ dunlin bench {command}");
        let words = Words::try_parse_from(command.split(' '))?;
        let (found, _) = measure(words.bench).with_context(|| format!("dunlin bench {command}"))?;
        finish(&found, &Output::default())?;
        if text.is_empty() {
            text = head(&found);
        }
        text += &section(&format!("bench {command}"), &found.rows, &found);
        // In a combined document, each row names its measurement.
        rows.extend(found.rows.iter().map(|row| {
            let mut named = Row::new().with("command", format!("bench {command}"));
            row.fields().for_each(|(name, value)| {
                named.set(name, value.clone());
            });
            named
        }));
    }
    if let Some(path) = &output.markdown {
        write_markdown(path, &text)?;
    }
    let mut whole = document("bench all", "shm", Row::new(), Default::default());
    whole.rows = rows;
    if let Some(path) = &output.json {
        whole.write_json(path)?;
    }
    if let Some(path) = &output.plot {
        whole.write_plot(path).context("cannot draw the plot")?;
    }
    Ok(())
}

fn head(document: &Document) -> String {
    let host = &document.host;
    format!(
        "# Measurements\n\n\
         Written by `dunlin bench all --markdown PATH`. Machine: {}, {} cores, {}{}, {} MiB; {}; commit {}.\n\n\
         Ratios and shares compare with floors measured in alternation, in the same pair of processes. `placement`: \
         whether the two cores were near or far from each other; a row for each that was seen. `preempted`: the machine \
         had other work, and the least disturbed slices were taken.\n",
        host.cpu,
        host.cores,
        host.kernel,
        if host.virtual_machine { " (virtual)" } else { "" },
        host.memory_bytes >> 20,
        day(host.unix_time_s),
        document.commit,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_one() {
        for command in COMMANDS {
            assert!(Words::try_parse_from(command.split(' ')).is_ok(), "{command}");
        }
    }
}
