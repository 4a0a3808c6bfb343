//! `dunlin node status`: describes the node of this host once, for people or as JSON.

use clap::Args;
use dunlin_command::attach::AttachArguments;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, Unit, table};
use dunlin_tier_client::{NodeStatus, Pages, Priority, PriorityStatus};
use serde_json::{Value, json};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
With --json, standard output is one JSON object. Its counters begin at 0 with the node and only grow: 'operations',
'bytes', 'calls', 'answered', 'refused' and 'ran'. 'dunlin node top' shows them as rates.

Examples:
  dunlin node status
  dunlin node status --node shm:node-a
  dunlin node status --json | jq .priorities";

/// Show the node of this host: its memory, the nodes of its view, and the processes that are attached.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct StatusArguments {
    /// Print one JSON object, with all counters
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Both priorities, the first one first.
pub(crate) const PRIORITIES: [(&str, Priority); 2] = [("high", Priority::High), ("low", Priority::Low)];

pub(crate) fn name_of(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Low => "low",
    }
}

/// Says which pages the memory of a node has.
fn pages_of(pages: &Pages) -> String {
    let kinds = [
        (pages.huge_1g, "huge (1 GiB)"),
        (pages.huge_2m, "huge (2 MiB)"),
        (pages.transparent, "transparent huge"),
        (pages.small, "small (4 KiB)"),
    ];
    let there = kinds.into_iter().filter(|(bytes, _)| *bytes > 0);
    let there = there.map(|(bytes, kind)| format!("{} {kind}", Unit::Bytes.format(bytes as f64)));
    there.collect::<Vec<_>>().join(", ")
}

/// Says how a node gets more huge pages, if it has small ones.
fn advice(pages: &Pages) -> Option<String> {
    let wanted = pages.small.div_ceil(2 << 20);
    (pages.small >= 2 << 20).then(|| {
        format!(
            "to have more huge pages, reserve {wanted} of 2 MiB (sysctl vm.nr_hugepages) and start the node again, or let \
             the kernel make them: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
        )
    })
}

/// Returns all that a node says, for programs.
fn to_json(status: &NodeStatus) -> Value {
    let of_priority = |one: &PriorityStatus| {
        json!({
            "operations": one.operations, "bytes": one.bytes, "calls": one.calls, "under_way": one.under_way, "waiting": one.waiting,
        })
    };
    let priorities =
        PRIORITIES.map(|(name, priority)| (name, of_priority(&status.priorities[priority as usize])));
    let members = status.members.iter().map(|one| {
        json!({
            "node": one.name, "address": one.address, "incarnation": one.incarnation, "state": one.state.to_string(),
        })
    });
    let processes = status.processes.iter().map(|one| {
        json!({
            "number": one.number, "process": one.process, "principal": one.principal, "priority": name_of(one.priority), "handles": one.handles,
            "connections": one.connections, "mapped": one.direct, "operations": one.operations, "bytes": one.bytes,
            "calls": one.calls, "under_way": one.under_way, "queued": one.queued, "services": one.services,
            "locks": one.locks,
        })
    });
    let pages = status.pages.map(|one| {
        json!({
            "small": one.small, "transparent": one.transparent, "huge_2m": one.huge_2m, "huge_1g": one.huge_1g,
        })
    });
    json!({
        "node": status.node, "memory": status.memory, "free": status.free, "dirty": status.dirty,
        "extents": status.extents, "registrations": status.registrations, "pages": pages, "is_kept": status.is_kept,
        "answered": status.answered, "refused": status.refused,
        "ran": { "at_once": status.ran.at_once, "later": status.ran.later, "pool": status.ran.pool },
        "regions": status.regions, "paths": status.paths, "paths_reason": status.paths_reason, "queue_pairs": status.queue_pairs,
        "call_connections": status.call_connections, "calls": status.calls,
        "priorities": priorities.into_iter().map(|(name, one)| (name.to_owned(), one)).collect::<serde_json::Map<_, _>>(),
        "nodes": status.nodes, "epoch": status.epoch, "trouble": status.trouble,
        "members": members.collect::<Vec<_>>(), "processes": processes.collect::<Vec<_>>(),
    })
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<ExitCode, Failure> {
    let tier = arguments.attach.attach()?;
    let status = tier.status().map_err(Failure::new)?;
    if arguments.json {
        output::print_line(to_json(&status))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = |bytes: u64| Unit::Bytes.format(bytes as f64);
    output::print_line(format_args!(
        "node {}: {} of memory, {} free, {} being zeroed; {} requests answered, {} refused",
        status.node,
        bytes(status.memory),
        bytes(status.free),
        bytes(status.dirty),
        status.answered,
        status.refused
    ))?;
    if let Some(pages) = status.pages {
        output::print_line(format_args!(
            "pages: {}; extents: {}; registrations: {}",
            pages_of(&pages),
            status.extents,
            status.registrations
        ))?;
        if let Some(advice) = advice(&pages) {
            output::print_line(format_args!("  -> {advice}"))?;
        }
    }
    output::print_line(format_args!(
        "queue pairs to each other node: {}, since {}; dunlin node run --paths N changes that",
        status.paths, status.paths_reason
    ))?;
    if status.is_kept {
        output::print_line(format_args!(
            "keeper: has the memory and the records; regions outlive this process"
        ))?;
    }
    if status.epoch == 0 {
        output::print_line(format_args!("nodes: {}", status.nodes.join(", ")))?;
    } else {
        output::print_line(format_args!(
            "view {}: {} of {} nodes are alive",
            status.epoch,
            status.nodes.len(),
            status.members.len()
        ))?;
        if !status.trouble.is_empty() {
            output::print_line(format_args!("views stand still: {}", status.trouble))?;
        }
        let rows: Vec<Row> = status
            .members
            .iter()
            .map(|member| {
                Row::new()
                    .with("node", member.name.as_str())
                    .with("state", member.state.to_string())
                    .with("incarnation", member.incarnation)
                    .with("address", member.address.as_str())
            })
            .collect();
        output::print(table(&rows))?;
    }
    let rows: Vec<Row> = status
        .processes
        .iter()
        .map(|process| {
            Row::new()
                .with("process", process.process.to_string())
                .with("principal", process.principal.as_str())
                .with("priority", name_of(process.priority))
                .with("handles", process.handles)
                .with("mapped", process.direct)
                .with("connections", process.connections)
        })
        .collect();
    output::print(table(&rows))?;
    Ok(ExitCode::SUCCESS)
}
