//! `dunlin apps graph`: vertex programs over a graph.

mod load;
mod members;
mod shown;

use clap::{Args, Subcommand};
use dunlin_app_graph::{Components, GraphError, PageRank, PageRankRounds, Paths, Program};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{table, write_atomically};
use shown::Shown;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
The data of the vertices lies in named regions of the memory tier, and members read and write it by
one-sided operations. By default one process is all members, with nodes of its own. With --members,
several processes that are attached to nodes run one job: each reads the same graph.

Files have two numbers a line, source and target; # begins a comment. With --binary they are pairs
of 32-bit little-endian numbers. Vertices are numbered from 0.

Examples:
  dunlin apps graph pagerank --rmat 20
  dunlin apps graph pagerank --rounds 10 --output ranks.txt web.txt
  dunlin apps graph components friends.txt
  dunlin apps graph paths --from 7 roads.txt
  dunlin apps graph pagerank --rmat 18 --nodes 2 --shared-memory
  dunlin node run --memory 1GiB &
  dunlin apps graph pagerank web.txt --members 2 --member 1 --job web &
  dunlin apps graph pagerank web.txt --members 2 --member 0 --job web";

const PAGERANK_HELP: &str = "\
A rank is 0.15 + 0.85 * the sum of rank / degree of the vertices with an edge to the vertex. A sink
passes no rank on. The mean rank is 1 without sinks.

Examples:
  dunlin apps graph pagerank --rmat 20 --threads 2
  dunlin apps graph pagerank --tolerance 1e-6 --output ranks.txt web.txt
  dunlin apps graph pagerank --rounds 10 --binary web.pairs";

const COMPONENTS_HELP: &str = "\
Edges count in both directions. The label of a component is its least vertex.

Examples:
  dunlin apps graph components friends.txt more-friends.txt";

const PATHS_HELP: &str = "\
The length of a path is its number of edges.

Examples:
  dunlin apps graph paths --from 7 --output distances.txt roads.txt";

/// Run a vertex program over a graph (LITE, section 8.3).
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GraphArguments {
    #[command(subcommand)]
    command: GraphCommand,
}

#[derive(Debug, Subcommand)]
enum GraphCommand {
    Pagerank(PagerankArguments),
    Components(ComponentsArguments),
    Paths(PathsArguments),
}

/// Rank the vertices by the ranks of those with an edge to them.
#[derive(Args, Debug)]
#[command(after_help = PAGERANK_HELP)]
struct PagerankArguments {
    /// Largest change of a rank that is not passed on
    #[arg(long, default_value = "0.001", value_parser = tolerance, value_name = "X")]
    tolerance: f64,
    /// Do this number of rounds over all edges, whatever the changes
    #[arg(long, value_name = "N", conflicts_with = "tolerance", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    #[command(flatten)]
    common: CommonArguments,
}

/// Find the connected components.
#[derive(Args, Debug)]
#[command(after_help = COMPONENTS_HELP)]
struct ComponentsArguments {
    #[command(flatten)]
    common: CommonArguments,
}

/// Find the shortest paths from one vertex.
#[derive(Args, Debug)]
#[command(after_help = PATHS_HELP)]
struct PathsArguments {
    /// Vertex where all paths begin
    #[arg(long, default_value_t = 0, value_name = "VERTEX")]
    from: u32,
    #[command(flatten)]
    common: CommonArguments,
}

/// Options of all programs.
#[derive(Args, Clone, Debug)]
struct CommonArguments {
    #[command(flatten)]
    source: load::SourceArguments,
    /// Threads of each member [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Regions of each member [default: as many as threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    regions: Option<u16>,
    /// Nodes of this process, each of which is a member
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Number of processes that run the job together, each attached to the node of its host
    #[arg(long, value_name = "N", requires = "member", requires = "job", conflicts_with = "nodes")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    members: Option<u16>,
    /// Number of this process, from 0; the first one shows the result
    #[arg(long, value_name = "I", requires = "members")]
    member: Option<u16>,
    /// Name of the job, which all its processes give
    #[arg(long, value_name = "NAME", requires = "members")]
    job: Option<String>,
    /// Longest time to wait for other members
    #[arg(long, default_value = "60s", value_parser = arguments::positive_duration, value_name = "TIME")]
    wait: Duration,
    /// Run on a shared memory: messages are loads and stores of its pages, and no operations on regions
    #[arg(long, conflicts_with = "regions")]
    shared_memory: bool,
    /// Map the shared memory, so that pages come by page faults: for one member a process
    #[arg(long, requires = "shared_memory")]
    mapped: bool,
    /// Write each vertex with its result to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    attach: AttachArguments,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..1e9).contains(&value) => Ok(value),
        _ => Err(format!("'{text}' is no tolerance: write for example 0.001 or 1e-6")),
    }
}

/// Returns the failure of a job, with the next step.
fn failure(error: GraphError) -> Failure {
    let help = match &error {
        GraphError::Exists { region } => {
            format!("choose another --job, or free it with: dunlin tier free {region}")
        }
        GraphError::Missing { .. } | GraphError::Disagree { .. } => {
            "give all members the same files and options".to_owned()
        }
        GraphError::Shared { .. } => {
            "if a member has ended, start all again with another --job; --wait sets the time for other members; dunlin \
             doctor says whether page faults are allowed"
                .to_owned()
        }
        GraphError::Barrier { .. } => {
            "start all members, with numbers from 0; --wait sets the time".to_owned()
        }
        GraphError::Request { .. } => {
            "give the nodes more memory, for example: dunlin node run --memory 1GiB".to_owned()
        }
        _ => return Failure::new(error),
    };
    Failure::new(error).help(help)
}

pub(crate) fn run(arguments: &GraphArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        GraphCommand::Pagerank(arguments) => match arguments.rounds {
            Some(rounds) => work(&arguments.common, PageRankRounds { rounds }, false)?,
            None => work(&arguments.common, PageRank { tolerance: arguments.tolerance }, false)?,
        },
        GraphCommand::Components(arguments) => work(&arguments.common, Components, true)?,
        GraphCommand::Paths(arguments) => work(&arguments.common, Paths { from: arguments.from }, false)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads the graph, runs the program, and shows the result.
fn work<P: Program + Clone + Shown>(
    arguments: &CommonArguments,
    program: P,
    both_ways: bool,
) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        output::check_writable(path)?;
    }
    if arguments.mapped && arguments.nodes > 1 {
        let failure = Failure::new("several members of one process cannot map the memory at one address");
        return Err(failure.help("leave --mapped out, or run a process for each member with --members"));
    }
    let interrupt = Interrupt::install()?;
    let begin = Instant::now();
    let mut edges = arguments.source.load(&interrupt)?;
    let loaded = edges.len();
    if both_ways {
        edges = edges.both_ways();
    }
    program.check(edges.vertices()).map_err(Failure::new)?;
    let loading = begin.elapsed();
    let vertices = edges.vertices();
    let ended = members::run(arguments, Arc::new(edges), &program, &interrupt)?;
    let rate = ended.gathered as f64 / ended.stepping.as_secs_f64().max(1e-9);
    output::note(format_args!(
        "{vertices} vertices, {loaded} edges; {} steps, {} messages; loaded in {:.3} s, built in {:.3} s, ran in {:.3} s: \
         {:.1} million edges a second",
        ended.steps,
        ended.messages,
        loading.as_secs_f64(),
        ended.building.as_secs_f64(),
        ended.stepping.as_secs_f64(),
        rate / 1e6,
    ));
    let Some(data) = ended.data else { return Ok(()) };
    if let Some(path) = &arguments.output {
        let write = |out: &mut std::io::BufWriter<std::fs::File>| {
            data.iter()
                .enumerate()
                .try_for_each(|(vertex, data)| writeln!(out, "{vertex} {}", P::value(data)))
        };
        write_atomically(path, write).map_err(Failure::new)?;
    }
    interrupt.check()?;
    output::print(table(&P::highest(&data)))
}
