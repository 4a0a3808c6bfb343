//! `dunlin kv stats`: shows the counters of a server's partitions.

use super::ConnectArguments;
use clap::Args;
use dunlin::on_fabric;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_kv::Stats;
use dunlin_report::{Document, Row, table};
use std::process::ExitCode;

/// Show the contents and operation counts of a server, per worker.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  dunlin kv stats shm:store\n  dunlin kv stats shm:store --json stats.json"
)]
pub(crate) struct StatsArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    #[command(flatten)]
    report: ReportArguments,
}

fn row(worker: &str, stats: &Stats) -> Row {
    Row::new()
        .with("worker", worker)
        .with("items", stats.items)
        .with("item_bytes", stats.item_bytes)
        .with("used_bytes", stats.used_bytes)
        .with("reserved_bytes", stats.reserved_bytes)
        .with("limit_bytes", stats.memory_limit)
        .with("hits", stats.hits)
        .with("misses", stats.misses)
        .with("puts", stats.puts)
        .with("deletes", stats.deletes)
        .with("evicted_from_bucket", stats.evicted_from_bucket)
        .with("evicted_for_memory", stats.evicted_for_memory)
}

/// Returns the totals over all partitions.
pub(super) fn total(stats: &[Stats]) -> Stats {
    let mut total = Stats::default();
    for one in stats {
        total.items += one.items;
        total.item_bytes += one.item_bytes;
        total.used_bytes += one.used_bytes;
        total.reserved_bytes += one.reserved_bytes;
        total.memory_limit += one.memory_limit;
        total.hits += one.hits;
        total.misses += one.misses;
        total.puts += one.puts;
        total.deletes += one.deletes;
        total.evicted_from_bucket += one.evicted_from_bucket;
        total.evicted_for_memory += one.evicted_for_memory;
    }
    total
}

pub(crate) fn run(arguments: &StatsArguments) -> Result<ExitCode, Failure> {
    arguments.report.check()?;
    let (chosen, address) = arguments.connect.choose()?;
    let stats = on_fabric!(&chosen, fabric => arguments.connect.connect(fabric, &address, 4)?.stats()?);
    let mut rows: Vec<Row> =
        stats.iter().enumerate().map(|(worker, one)| row(&worker.to_string(), one)).collect();
    if rows.len() > 1 {
        rows.push(row("all", &total(&stats)));
    }
    output::print(table(&rows))?;
    let parameters = Row::new().with("address", arguments.connect.address.to_string());
    let mut document = Document::new("kv stats", chosen.capabilities().name, parameters);
    document.rows = rows;
    arguments.report.write(&document)?;
    Ok(ExitCode::SUCCESS)
}
