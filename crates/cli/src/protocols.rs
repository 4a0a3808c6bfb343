//! `dunlin protocols`: the protocol table, with the completion modes that each protocol allows.

use clap::Args;
use dunlin::fabric::Capabilities;
use dunlin::plan::{CompletionMode, PROTOCOLS, Plan, Protocol};
use dunlin_command::arguments::{DeviceArguments, On};
use dunlin_command::output::{self, Failure};
use std::fmt::Write as _;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
A protocol has two halves: how requests travel to the server, and how responses travel back. The table lists the
completion modes of each side: busy spins; event sleeps until an event; adaptive spins for 20 us, then sleeps.

Examples:
  dunlin ping --protocol Eager-SendRecv --completion event
  dunlin protocols --fabric iwarp
  dunlin kv bench shm:store --protocol server-reply";

/// List the protocols: request and response halves, origin, and completion modes of each side.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ProtocolsArguments {
    /// Print one JSON array instead of the table
    #[arg(long)]
    json: bool,
    /// Show the completion modes that are possible on this fabric; '-' if it cannot run the protocol
    #[arg(long, value_enum, default_value_t = On::Shm)]
    fabric: On,
}

/// Describes the transfer of large payloads and their size limit.
fn large(protocol: &Protocol) -> String {
    let name = protocol.large.name();
    match protocol.rendezvous_above {
        0 => format!("{name}, all"),
        above if above.is_multiple_of(1024) => format!("{name}, over {} KiB", above / 1024),
        above => format!("{name}, over {above} B"),
    }
}

const MODES: [CompletionMode; 3] = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];

/// Returns the completion modes of one side while the other is busy.
fn waits(protocol: &Protocol, capabilities: &Capabilities, client: bool) -> String {
    let plan = |mode| -> Plan {
        let busy = CompletionMode::Busy;
        protocol.plan(busy).completion(if client { mode } else { busy }, if client { busy } else { mode })
    };
    let legal = MODES.into_iter().filter(|mode| plan(*mode).check(capabilities).is_ok());
    let words: Vec<String> = legal.map(|mode| mode.to_string()).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

pub(crate) fn run(arguments: &ProtocolsArguments) -> Result<ExitCode, Failure> {
    let capabilities = &arguments.fabric.capabilities(&DeviceArguments::default())?;
    let rows: Vec<[String; 7]> = PROTOCOLS
        .iter()
        .map(|protocol| {
            [
                protocol.name.to_owned(),
                protocol.request.name().to_owned(),
                protocol.response.name().to_owned(),
                large(protocol),
                waits(protocol, capabilities, true),
                waits(protocol, capabilities, false),
                protocol.origin.to_owned(),
            ]
        })
        .collect();
    if arguments.json {
        let names = ["name", "request", "response", "large", "client_modes", "server_modes", "origin"];
        let rows: Vec<serde_json::Value> = rows
            .into_iter()
            .map(|row| names.into_iter().map(str::to_owned).zip(row.map(serde_json::Value::from)).collect())
            .collect();
        output::print_line(serde_json::Value::from(rows))?;
        return Ok(ExitCode::SUCCESS);
    }
    let head =
        ["protocol", "request", "response", "large payloads", "client waits", "server waits", "origin"];
    let widths: Vec<usize> = (0..7)
        .map(|column| rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in std::iter::once(head.map(str::to_owned)).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(
        "\nLarge payloads: rendezvous_read leaves them with the sender, and the receiver READs them; rendezvous_write asks the \
         receiver for a place and WRITEs them there; eager sends them in messages of up to 4 KiB; rendezvous_pieces, which hints choose, has \
         the receiver READ a piece while the sender fills the next.\n",
    );
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}
