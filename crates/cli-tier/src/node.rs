//! `dunlin node`: runs the node of this host, and shows what it does.

use crate::auto::{self, Ground};
use crate::drain::{self, DrainArguments, FreeArguments};
use crate::etcd::EtcdArguments;
use crate::keep::{self, KeepArguments};
use crate::list::{self, ListArguments};
use crate::qos::QosArguments;
use crate::status::{self, StatusArguments};
use crate::top::{self, TopArguments};
use clap::{Args, Subcommand};
use dunlin::fabric::{AllowPolicy, Fabric, Scheme, ShmConfig, ShmFabric};
use dunlin::{Address, on_fabric};
use dunlin_command::arguments::DeviceArguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, child, progress};
use dunlin_report::Unit;
use dunlin_tier_client::{Rights, default_address};
use dunlin_tier_node::{
    DirectoryConfig, DirectoryServer, MemorySource, Peer, PrincipalTokens, ProcessConfig, ProcessServer,
    Progress, Tier, TierConfig, read_secret,
};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The memory from which its start takes long enough to show how far it is, in bytes.
const BAR_FROM: u64 = 512 << 20;
/// The time between two looks whether the node is to leave.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const AFTER_HELP: &str = "\
Examples:
  dunlin node run --memory 64MiB                     a node by itself; in another terminal:
  dunlin node status
  dunlin node top
  dunlin tier put greeting --text hello
  dunlin tier get greeting
  dunlin node run --listen rdma:10.0.0.1:7100 --peers nodes.txt --memory 8GiB
A node whose regions outlive its process:
  dunlin node keep                                   in another terminal:
  dunlin node run --keeper --memory 1GiB
A cluster whose nodes come and go:
  dunlin node directory rdma:10.0.0.1:7000           on one host
  dunlin node run --directory rdma:10.0.0.1:7000 --name node-1 --listen rdma:10.0.0.1:7100
  dunlin node leave
A region to another node, and all regions away from this one:
  dunlin node move data/model node-2
  dunlin node drain && dunlin node leave";

const MOVE_HELP: &str = "\
The bytes are copied while nobody uses the region, and the name leads to them as soon as all are there. Processes that
have the region mapped get the error 'the region moves to another node', and map its name again. If a node does not stop
to use the region, or has no room for it, the region stays where it is. Its record stays at the nodes that keep it.

Examples:
  dunlin node move data/model node-2
  dunlin node move data/model node-2 --node shm:node-a";

const DIRECTORY_HELP: &str = "\
Nodes report themselves to the directory with --directory, and get from it the list of all nodes that are alive: a view,
whose number is its epoch. A node that does not report itself for the time of --lease is declared dead. Operations on it
then end at once, and names that it kept get another home. If it lives, it joins again.
The directory keeps nothing on a disk. It may be killed and started again at the same address at any time: calls and
memory of the nodes go on meanwhile, only views stand still, and it learns from the nodes what it knew.

Examples:
  dunlin node directory rdma:10.0.0.1:7000
  dunlin node directory shm:directory --lease 1s
  dunlin node directory rdma:10.0.0.1:7000 --token-file token --max-nodes 256";

const LEAVE_HELP: &str = "\
Regions whose record no other node keeps, and regions whose bytes are in its memory, end with the node. As long as there
are any, the node stays, and the command lists them and exits with status 1; --force has it leave all the same. dunlin
node drain gives records and bytes to other nodes.
Only the user who runs the node, and root, may have it leave.

Examples:
  dunlin node leave
  dunlin node leave --force --node shm:node-a";

const RUN_HELP: &str = "\
The file of --peers lists all nodes, the same on each of them, one in a line: NAME ADDRESS, for example
  node-1 rdma:10.0.0.1:7100
  node-2 rdma:10.0.0.2:7100
The next port (shm: NAME-memory) is that of the node's memory; a third word in the line is another address for it.
With auto:HOST:PORT in all lines, a node asks those that run for their fabric and takes it; the first one takes shared
memory if all are on its host, else RDMA, else libfabric. The three ports behind PORT are those of the fabric.
Processes of this host attach over shared memory. The kernel says which user a process belongs to; its principal is
user-UID, or the name that --user gives. A process that presents a token of the file of --principals acts for the
principal of that line in place of its user; tokens have 16 to 255 bytes, and unknown ones are refused.
Nodes believe each other: only nodes with the same --token-file join.
On Ctrl-C or SIGTERM the node ends and exits with status 0; regions in its memory end with it. A second signal ends it
at once. With --keeper, a process of dunlin node keep has the memory: regions and handles go on with the next life.

Examples:
  dunlin node run
  dunlin node run --listen rdma:10.0.0.1:7100 --peers nodes.txt --memory 8GiB
  dunlin node run --listen rdma:0.0.0.0:7100 --peers nodes.txt --name node-1 --allow-anyone --user 1000=alice
  dunlin node run --listen auto:0.0.0.0:7100 --peers nodes.txt --memory 8GiB
  dunlin node run --principals principals --allow-anyone
  dunlin node run --paths 4 --user 1000=alice --share alice=4 --share '*=1,low,bytes=1GiB'

With --directory in place of --peers, nodes come and go: the directory tells each of them of the others. The address of
--listen is then the one by which others reach this node.
  dunlin node run --directory rdma:10.0.0.1:7000 --name node-3 --listen rdma:10.0.0.3:7100
With --etcd, an etcd tells them (a build with --features etcd):
  dunlin node run --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 --name node-3 --listen rdma:10.0.0.3:7100

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
    Keep(KeepArguments),
    Directory(DirectoryArguments),
    Status(StatusArguments),
    Top(TopArguments),
    Leave(LeaveArguments),
    Move(MoveArguments),
    Drain(DrainArguments),
    Free(FreeArguments),
    Ls(ListArguments),
}

/// Run a node of the memory tier until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
struct RunArguments {
    /// Address for other nodes: rdma:HOST:PORT, ofi:tcp:HOST:PORT, shm:NAME or auto:HOST:PORT, for the fabric that all
    /// nodes have [default: that in the file of --peers]
    #[arg(long, short, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// File that lists all nodes [default: this node by itself]
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Address of the directory from which this node learns of the others, in place of --peers
    #[arg(long, value_name = "ADDRESS", conflicts_with = "peers", requires_all = ["name", "listen"])]
    directory: Option<Address>,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Most nodes that the directory, or etcd, may tell of
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    max_nodes: u16,
    /// Name of this node in the list [default: the node of the list with the address of --listen]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Memory for regions: 64MiB, 8GiB
    #[arg(long, short, default_value = "64MiB", value_parser = arguments::size, value_name = "SIZE")]
    memory: u64,
    /// Length of an extent, a part of the memory that is a file of its own: a power of two; 1GiB gets huge pages of
    /// 1 GiB if the system has reserved enough [default: a 32nd of the memory, at least 4MiB]
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    extent: Option<u64>,
    /// Take pages as they are used, not all of them at the start
    #[arg(long)]
    lazy: bool,
    /// Most bytes of the regions that one principal makes at this node [default: the memory]
    #[arg(long, value_parser = arguments::size, value_name = "SIZE")]
    quota: Option<u64>,
    /// Have the keeper at this address hold the memory, so that regions outlive this process (dunlin node keep)
    /// [default without an address: shm:dunlin-keeper-UID]
    #[arg(
        long, value_name = "ADDRESS", num_args = 0..=1,
        conflicts_with_all = ["directory", "etcd"]
    )]
    keeper: Option<Option<Address>>,
    /// Address at which processes attach, on shared memory [default: DUNLIN_NODE, or shm:dunlin-node-UID]
    #[arg(long, value_name = "ADDRESS")]
    attach: Option<Address>,
    /// Let processes of every user of this machine attach, not only those of your user and root
    #[arg(long)]
    allow_anyone: bool,
    /// Call the user with this id by this name, as a principal; may be repeated
    #[arg(long, value_name = "UID=NAME", value_parser = user)]
    user: Vec<(u32, String)>,
    /// File with tokens and the principals that they name, TOKEN NAME in each line, for processes that present one
    /// (dunlin tier --token-file); no other user may read it
    #[arg(long, value_name = "FILE")]
    principals: Option<PathBuf>,
    /// File with the token that all nodes of the list know; no other user may read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Queue pairs to each other node [default: by the device; dunlin node status says how many, and why]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    paths: Option<u16>,
    /// Threads that serve the processes of this host
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    workers: u16,
    #[command(flatten)]
    qos: QosArguments,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    device: DeviceArguments,
}

/// Run the directory of a cluster whose nodes come and go, until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = DIRECTORY_HELP)]
struct DirectoryArguments {
    /// Address of the directory: rdma:HOST:PORT, ofi:tcp:HOST:PORT or shm:NAME, of the same fabric as the nodes
    #[arg(value_name = "ADDRESS")]
    address: Address,
    /// Time without a report after which a node is declared dead; nodes report themselves every 100 ms
    #[arg(long, default_value = "500ms", value_parser = lease, value_name = "TIME")]
    lease: Duration,
    /// Most names of nodes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    max_nodes: u16,
    /// File with the token that all nodes know; no other user may read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    device: DeviceArguments,
}

/// Have the node of this host leave the cluster, and end.
#[derive(Args, Debug)]
#[command(after_help = LEAVE_HELP)]
struct LeaveArguments {
    /// Leave also if regions end with the node
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Move a region to the memory of another node.
#[derive(Args, Debug)]
#[command(after_help = MOVE_HELP)]
struct MoveArguments {
    /// Name of the region
    name: String,
    /// Node that shall store it
    to: String,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Parses the time of a lease.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = arguments::positive_duration(text)?;
    if lease < Duration::from_millis(300) {
        return Err(format!(
            "a lease of {lease:?} is too short: nodes report themselves every 100 ms; write 300ms or more"
        ));
    }
    Ok(lease)
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
        NodeCommand::Keep(arguments) => keep::run(arguments, own_user()?),
        NodeCommand::Directory(arguments) => directory(arguments),
        NodeCommand::Status(arguments) => status::run(arguments),
        NodeCommand::Top(arguments) => top::run(arguments),
        NodeCommand::Leave(arguments) => leave(arguments),
        NodeCommand::Move(arguments) => {
            let tier = arguments.attach.attach()?;
            let region = tier.map(&arguments.name, Rights::MASTER).map_err(Failure::new)?;
            region.move_to(&arguments.to).map_err(Failure::new)?;
            Ok(ExitCode::SUCCESS)
        }
        NodeCommand::Drain(arguments) => drain::drain(arguments),
        NodeCommand::Free(arguments) => drain::free(arguments),
        NodeCommand::Ls(arguments) => list::run(arguments, true),
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
}

/// Reads the token that all nodes know, or another secret. A file that other users may read is refused, as ssh refuses a
/// key.
pub(crate) fn secret(path: &Path) -> Result<Vec<u8>, Failure> {
    read_secret(path).map_err(Failure::new)
}

impl RunArguments {
    fn ground(&self) -> Ground<'_> {
        let (listen, directory) = (self.listen.as_ref(), self.directory.as_ref());
        Ground { listen, directory, is_etcd: self.etcd.is_given() }
    }

    /// Returns the list of nodes, and the place of this one.
    fn nodes(&self) -> Result<(Vec<Peer>, usize), Failure> {
        let is_told = self.directory.is_some() || self.etcd.is_given();
        if let (true, Some(name), Some(listen)) = (is_told, &self.name, &self.listen) {
            let peer = Peer::at(name, listen.clone()).map_err(Failure::new)?;
            return Ok((vec![peer], 0));
        }
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
            (None, Some(listen)) => auto::place_of(&peers, listen),
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
            // Nodes at auto: addresses know each other by those of the list.
            if at.calls.scheme() != Scheme::Auto {
                peers[me] = at;
            }
        }
        Ok((peers, me))
    }
}

fn serve(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let (mut peers, me) = arguments.nodes()?;
    let name = peers[me].name.clone();
    let fabrics = arguments.device.fabrics(false);
    let agreed = auto::agree(&fabrics, &arguments.ground(), &mut peers, me)?;
    let address = peers[me].calls.clone();
    let mut config = TierConfig::new(peers, &name);
    config.memory = arguments.memory;
    config.extent = arguments.extent;
    config.prefault = !arguments.lazy;
    if arguments.memory >= BAR_FROM {
        let bar = progress::bytes(Some(arguments.memory), "memory");
        config.progress = Some(Progress::new(move |done, all| {
            bar.set_position(done);
            if done == all {
                bar.finish_and_clear();
            }
        }));
    }
    config.quota = arguments.quota.unwrap_or(u64::MAX);
    config.paths = arguments.paths.unwrap_or(0);
    config.qos = arguments.qos.config();
    config.directory = arguments.directory.clone();
    config.max_nodes = arguments.max_nodes;
    if let Some(directory) = arguments.directory.as_ref().filter(|one| one.scheme() != address.scheme()) {
        return Err(Failure::new(format!("{directory} and {address} are of different fabrics"))
            .help("give --listen an address of the fabric of the directory"));
    }
    if let Some(path) = &arguments.token_file {
        config.token = secret(path)?;
    }
    let chosen = fabrics.choose(&address)?;
    let taken = agreed.as_ref().map(ToString::to_string);
    on_fabric!(&chosen, fabric => serve_on(fabric, config, arguments, (taken, &interrupt)))
}

/// Returns the user of this process.
fn own_user() -> Result<u32, Failure> {
    let own = std::fs::metadata("/proc/self");
    Ok(own.map_err(|error| Failure::new(format!("cannot read /proc/self: {error}")))?.uid())
}

fn directory(arguments: &DirectoryArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let mut config = DirectoryConfig {
        lease: arguments.lease,
        gather: arguments.lease + arguments.lease / 5,
        max_nodes: arguments.max_nodes,
        token: Vec::new(),
    };
    if let Some(path) = &arguments.token_file {
        config.token = secret(path)?;
    }
    let fabrics = arguments.device.fabrics(false);
    let chosen = fabrics.choose(&arguments.address)?;
    on_fabric!(&chosen, fabric => {
        let directory = DirectoryServer::serve(fabric, &arguments.address, config).map_err(Failure::new)?;
        // Ignore errors: the directory also runs if nothing reads its output.
        let _ = child::say_ready(&arguments.address);
        let _ = output::print_line(format_args!("directory, leases of {:?}; Ctrl-C ends it", arguments.lease));
        if interrupt.wait(arguments.duration).is_some() {
            output::note("ending: nodes go on, and wait for the next directory");
        }
        drop(directory);
        Ok(ExitCode::SUCCESS)
    })
}

fn leave(arguments: &LeaveArguments) -> Result<ExitCode, Failure> {
    let tier = arguments.attach.attach()?;
    let node = tier.node().to_owned();
    let held = tier.leave(arguments.force).map_err(Failure::new)?;
    if held.leaves {
        output::note(format_args!("{node} leaves the cluster"));
        return Ok(ExitCode::SUCCESS);
    }
    for name in &held.names {
        output::print_line(format_args!("{name}"))?;
    }
    output::note(format_args!(
        "{node} stays: {} regions were made there, and it has {} of regions of other nodes; they end with it. Free them, \
         or give --force",
        held.named,
        Unit::Bytes.format(held.bytes as f64)
    ));
    Err(Failure::Negative)
}

fn serve_on<F: Fabric>(
    fabric: &F,
    mut config: TierConfig,
    arguments: &RunArguments,
    (taken, interrupt): (Option<String>, &Interrupt),
) -> Result<ExitCode, Failure> {
    let tokens = match &arguments.principals {
        Some(path) => PrincipalTokens::parse(&secret(path)?)
            .map_err(|error| Failure::new(error).context(path.display().to_string()))?,
        None => PrincipalTokens::default(),
    };
    let attach = match &arguments.attach {
        Some(address) => address.clone(),
        None => default_address().map_err(Failure::new)?,
    };
    let allow = if arguments.allow_anyone { AllowPolicy::Anyone } else { AllowPolicy::default() };
    let processes_fabric = ShmFabric::new(ShmConfig { allow, ..ShmConfig::default() })
        .map_err(|error| Failure::new(format!("cannot start the shared-memory fabric: {error}")))?;
    // A keeper can hold such memory, and processes can map it.
    if fabric.capabilities().adopts {
        config.memory_source = Some(MemorySource::of(&processes_fabric));
    }
    let (memory, name) = (config.memory, config.node.clone());
    let tier = if arguments.etcd.is_given() {
        arguments.etcd.start(fabric, config)?
    } else if let Some(keeper) = &arguments.keeper {
        keep::start(fabric, config, keeper.as_ref(), own_user()?)?
    } else {
        Tier::within(fabric, config).map_err(|error| {
            Failure::new(error).help("dunlin doctor says what this machine has and what is missing")
        })?
    };
    let settings = ProcessConfig {
        tokens,
        users: arguments.user.iter().cloned().collect(),
        operators: vec![0, own_user()?],
        workers: arguments.workers,
        ..ProcessConfig::new(attach.clone())
    };
    let processes = ProcessServer::serve(&processes_fabric, &tier, settings).map_err(|error| {
        Failure::new(error).help("give --attach another name, or stop the node that has this one")
    })?;
    // Ignore errors: the node also runs if nothing reads its output.
    let _ = child::say_ready(&attach);
    let _ = output::print_line(format_args!(
        "node {name}, one of {}, {} of memory; Ctrl-C ends it",
        tier.nodes().count(),
        Unit::Bytes.format(memory as f64)
    ));
    if let Some(taken) = taken {
        let _ = output::print_line(format_args!("fabric: {taken}"));
    }
    let end = arguments.duration.map(|time| Instant::now() + time);
    let mut is_kept = tier.is_kept();
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if processes.is_to_leave() {
            output::note("leaving the cluster");
            tier.end_keeping().map_err(Failure::new)?;
            break;
        }
        let interrupted = left.is_some_and(|left| left.is_zero());
        if interrupted && !is_kept {
            break;
        }
        if std::mem::replace(&mut is_kept, tier.is_kept()) && !is_kept {
            output::note("the keeper has ended: regions end with this process; start keeper and node again");
        }
        let look = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
        if interrupted || interrupt.wait(Some(look)).is_some() {
            if tier.is_kept() {
                output::note("ending: the keeper has the regions of this node for its next life");
                // Nothing is freed or closed, as if the process were killed.
                let _ = std::mem::ManuallyDrop::new((processes, tier));
                return Ok(ExitCode::SUCCESS);
            }
            output::note("ending: regions in the memory of this node end with it");
            break;
        }
    }
    drop(processes);
    Ok(ExitCode::SUCCESS)
}
