//! `dunlin node`: runs the node of this host, and shows what it does.

use crate::list::{self, ListArguments};
use clap::{Args, Subcommand};
use dunlin::fabric::{AllowPolicy, Fabric, ShmConfig, ShmFabric};
use dunlin::{Address, on_fabric};
use dunlin_command::arguments::{self, DeviceArguments};
use dunlin_command::attach::AttachArguments;
use dunlin_command::child;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, Unit, table};
use dunlin_tier_client::default_address;
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  dunlin node run --memory 64MiB                     a node by itself; in another terminal:
  dunlin node status
  dunlin tier put greeting --text hello
  dunlin tier get greeting
  dunlin node run --listen rdma:10.0.0.1:7100 --peers nodes.txt --memory 8GiB";

const RUN_HELP: &str = "\
The file of --peers lists all nodes, the same on each of them, one in a line: NAME ADDRESS, for example
  node-1 rdma:10.0.0.1:7100
  node-2 rdma:10.0.0.2:7100
The next port (shm: NAME-memory) is that of the node's memory; a third word in the line is another address for it.
Processes of this host attach over shared memory. The kernel says which user a process belongs to; its principal is
user-UID, or the name that --user gives. Nodes believe each other: only nodes with the same --token-file join.
On Ctrl-C or SIGTERM the node ends and exits with status 0; regions in its memory end with it. A second signal ends it
at once.

Examples:
  dunlin node run
  dunlin node run --listen rdma:10.0.0.1:7100 --peers nodes.txt --memory 8GiB
  dunlin node run --listen rdma:0.0.0.0:7100 --peers nodes.txt --name node-1 --allow-anyone --user 1000=alice

Two nodes on one host, for a test:
  dunlin node run --peers nodes.txt --name a --attach shm:node-a      with 'a shm:a' and 'b shm:b' in nodes.txt
  dunlin node run --peers nodes.txt --name b --attach shm:node-b";

/// Run and inspect the node of this host.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    Run(Box<RunArguments>),
    Status(StatusArguments),
    Ls(ListArguments),
}

/// Run a node of the memory tier until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
struct RunArguments {
    /// Address for other nodes: rdma:HOST:PORT, ofi:tcp:HOST:PORT or shm:NAME [default: that in the file of
    /// --peers]
    #[arg(long, short, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// File that lists all nodes [default: this node by itself]
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Name of this node in the list [default: the node of the list with the address of --listen]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Memory for regions: 64MiB, 8GiB
    #[arg(long, short, default_value = "64MiB", value_parser = arguments::size, value_name = "SIZE")]
    memory: u64,
    /// Most bytes of the regions that one principal makes at this node [default: the memory]
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    quota: Option<u64>,
    /// Address at which processes attach, on shared memory [default: DUNLIN_NODE, or shm:dunlin-node-UID]
    #[arg(long, value_name = "ADDRESS")]
    attach: Option<Address>,
    /// Let processes of every user of this machine attach, not only those of your user and root
    #[arg(long)]
    allow_anyone: bool,
    /// Call the user with this id by this name, as a principal; may be repeated
    #[arg(long, value_name = "UID=NAME", value_parser = user)]
    user: Vec<(u32, String)>,
    /// File with the token that all nodes of the list know
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Queue pairs to each other node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    paths: u16,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    device: DeviceArguments,
}

/// Show the node of this host: its memory, and the processes that are attached.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dunlin node status\n  dunlin node status --node shm:node-a")]
struct StatusArguments {
    #[command(flatten)]
    attach: AttachArguments,
}

/// Parses UID=NAME.
fn user(text: &str) -> Result<(u32, String), String> {
    let wrong = || format!("'{text}' is not UID=NAME; write for example 1000=alice");
    let (user, name) = text.split_once('=').ok_or_else(wrong)?;
    Ok((user.parse().map_err(|_| wrong())?, name.to_owned()))
}

pub(crate) fn run(arguments: &NodeArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        NodeCommand::Run(arguments) => serve(arguments),
        NodeCommand::Status(arguments) => status(arguments),
        NodeCommand::Ls(arguments) => list::run(arguments, true),
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
}

impl RunArguments {
    /// Returns the list of nodes, and the place of this one.
    fn nodes(&self) -> Result<(Vec<Peer>, usize), Failure> {
        let Some(path) = &self.peers else {
            let name = self.name.as_deref().unwrap_or("node");
            let address = match &self.listen {
                Some(address) => address.clone(),
                None => format!("shm:dunlin-tier-{}", std::process::id()).parse().map_err(Failure::new)?,
            };
            return Ok((vec![Peer::at(name, address).map_err(Failure::new)?], 0));
        };
        let text = String::from_utf8(read(path)?)
            .map_err(|_| Failure::new(format!("{} is not a text", path.display())))?;
        let mut peers =
            Peer::list(&text).map_err(|error| Failure::new(error).context(path.display().to_string()))?;
        let found = match (&self.name, &self.listen) {
            (Some(name), _) => peers.iter().position(|peer| peer.name == *name),
            (None, Some(listen)) => peers.iter().position(|peer| peer.calls == *listen),
            (None, None) if peers.len() == 1 => Some(0),
            (None, None) => None,
        };
        let Some(me) = found else {
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            return Err(Failure::new(format!("this node is not in the list of {}", path.display()))
                .help(format!("give --name one of: {}", names.join(", "))));
        };
        if let Some(listen) = self.listen.clone().filter(|listen| *listen != peers[me].calls) {
            // Others dial the address of the list; this node listens on its own.
            let at = Peer::at(&peers[me].name, listen).map_err(Failure::new)?;
            if at.calls.scheme() != peers[me].calls.scheme() {
                return Err(Failure::new(format!(
                    "{} and --listen are of different fabrics",
                    peers[me].calls
                ))
                .help("give --listen the fabric of the list"));
            }
            peers[me] = at;
        }
        Ok((peers, me))
    }
}

fn serve(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let (peers, me) = arguments.nodes()?;
    let address = peers[me].calls.clone();
    let name = peers[me].name.clone();
    let mut config = TierConfig::new(peers, &name);
    config.memory = arguments.memory;
    config.quota = arguments.quota.unwrap_or(u64::MAX);
    config.paths = arguments.paths;
    if let Some(path) = &arguments.token_file {
        config.token = read(path)?.trim_ascii().to_vec();
    }
    let fabrics = arguments.device.fabrics(false);
    let chosen = fabrics.choose(&address)?;
    on_fabric!(&chosen, fabric => serve_on(fabric, config, arguments, &interrupt))
}

fn serve_on<F: Fabric>(
    fabric: &F,
    config: TierConfig,
    arguments: &RunArguments,
    interrupt: &Interrupt,
) -> Result<ExitCode, Failure> {
    let attach = match &arguments.attach {
        Some(address) => address.clone(),
        None => default_address().map_err(Failure::new)?,
    };
    let allow = if arguments.allow_anyone { AllowPolicy::Anyone } else { AllowPolicy::default() };
    let processes_fabric = ShmFabric::new(ShmConfig { allow, ..ShmConfig::default() })
        .map_err(|error| Failure::new(format!("cannot start the shared-memory fabric: {error}")))?;
    let (memory, count, name) = (config.memory, config.nodes.len(), config.node.clone());
    let tier = Tier::within(fabric, config).map_err(|error| {
        Failure::new(error).help("dunlin doctor says what this machine has and what is missing")
    })?;
    let settings = ProcessConfig {
        users: arguments.user.iter().cloned().collect(),
        ..ProcessConfig::new(attach.clone())
    };
    let processes = ProcessServer::serve(&processes_fabric, &tier, settings).map_err(|error| {
        Failure::new(error).help("give --attach another name, or stop the node that has this one")
    })?;
    // Ignore errors: the node also runs if nothing reads its output.
    let _ = child::say_ready(&attach);
    let _ = output::print_line(format_args!(
        "node {name}, one of {count}, {} of memory; Ctrl-C ends it",
        Unit::Bytes.format(memory as f64)
    ));
    if interrupt.wait(arguments.duration).is_some() {
        output::note("ending: regions in the memory of this node end with it");
    }
    drop(processes);
    Ok(ExitCode::SUCCESS)
}

fn status(arguments: &StatusArguments) -> Result<ExitCode, Failure> {
    let tier = arguments.attach.attach()?;
    let status = tier.status().map_err(Failure::new)?;
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
    output::print_line(format_args!("nodes: {}", status.nodes.join(", ")))?;
    let rows: Vec<Row> = status
        .processes
        .iter()
        .map(|process| {
            Row::new()
                .with("process", process.process)
                .with("principal", process.principal.as_str())
                .with("handles", process.handles)
                .with("connections", process.connections)
        })
        .collect();
    output::print(table(&rows))?;
    Ok(ExitCode::SUCCESS)
}
