//! `dunlin tier scene`: processes that share two nodes, a part of `dunlin demo`. Each process is one of its own; nothing of
//! them is on a disk.

use clap::Args;
use dunlin::Address;
use dunlin_command::child::{ChildProcess, START_TIMEOUT};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, table};
use dunlin_tier_client::{AttachConfig, NodeStatus, Rights, Spec, Tier};
use std::io::BufRead as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const NODES: [&str; 2] = ["one", "two"];
/// The region with the word that all processes add to.
const COUNT: &str = "scene/count";
/// The service that squares a number, by a process of each node.
const SERVICE: &str = "scene/square";
const SQUARE: u16 = 1;
/// Bytes of the block that each process writes and its neighbour checks.
const BLOCK: usize = 4096;
/// Time limit of a process for its work: it uses two barriers, at which it waits for the others.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// Run processes of two nodes that use memory and services together: a part of 'dunlin demo'.
#[derive(Args, Debug)]
#[command(after_help = "\
Starts a directory, two nodes and the processes, each as a process of this host over shared memory. Each process adds to
one word, calls a service of the other node, and checks the bytes that its neighbour at the other node has written. At
the end, and after Ctrl-C, all processes are ended. Exit status: 0 if all results are right.

Examples:
  dunlin tier scene
  dunlin tier scene --processes 8 --operations 1000")]
pub(crate) struct SceneArguments {
    /// Processes at each of the two nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32), value_name = "N")]
    processes: u16,
    /// Additions, and as many calls, of each process
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    operations: u32,
}

/// A process of the scene.
#[derive(Args, Debug)]
pub(crate) struct MemberArguments {
    address: Address,
    #[arg(long)]
    number: u16,
    #[arg(long)]
    members: u16,
    #[arg(long)]
    operations: u32,
}

fn block_name(number: u16) -> String {
    format!("scene/block-{number}")
}

/// The bytes of the block of a process.
fn block(number: u16) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u32 * 31 + u32::from(number) * 7 + 1) as u8).collect()
}

fn attach(address: &Address) -> Result<Tier, Failure> {
    let config = AttachConfig {
        program: "dunlin scene".to_owned(),
        timeout: WORK_TIMEOUT,
        ..AttachConfig::new(address.clone())
    };
    Tier::attach_with(&dunlin_command::shared_memory()?, config).map_err(Failure::new)
}

pub(crate) fn run(arguments: &SceneArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let name = |what: &str| format!("shm:dunlin-scene-{}-{what}", std::process::id());
    let directory = name("directory");
    let mut first = ChildProcess::start("the directory", ["node", "directory", &directory])?;
    first.line(&interrupt, START_TIMEOUT)?;
    // They end in the reverse order: the processes first, the directory last.
    let mut nodes = Vec::new();
    let mut tiers: Vec<(Address, Tier)> = Vec::new();
    for node in NODES {
        let (listen, attached) = (name(node), name(&format!("{node}-attach")));
        let words = ["node", "run", "--directory", &directory, "--name", node, "--listen", &listen];
        let more = ["--attach", &attached, "--memory", "4MiB"];
        let mut child = ChildProcess::start(&format!("node {node}"), words.into_iter().chain(more))?;
        child.line(&interrupt, START_TIMEOUT)?;
        nodes.push(child);
        let address: Address = attached.parse().map_err(Failure::new)?;
        let tier = attach(&address)?;
        tiers.push((address, tier));
    }
    for (_, tier) in &tiers {
        await_view(tier, &interrupt)?;
    }
    let count = tiers[0].1.malloc(8, Spec::on(NODES[1]).named(COUNT)).map_err(Failure::new)?;
    let members = NODES.len() as u16 * arguments.processes;
    let mut processes = Vec::new();
    for number in 0..members {
        let (address, _) = &tiers[usize::from(number) % NODES.len()];
        let [number, members] = [number, members].map(|count| count.to_string());
        let (address, operations) = (address.to_string(), arguments.operations.to_string());
        let words = ["tier", "scene-member", &address, "--number", &number, "--members", &members];
        let more = ["--operations", &operations];
        processes.push(ChildProcess::start(&format!("process {number}"), words.into_iter().chain(more))?);
    }
    let mut right = 0;
    for process in &mut processes {
        let line = process.line(&interrupt, WORK_TIMEOUT)?;
        right +=
            line.parse::<u64>().map_err(|_| Failure::new(format!("a process of the scene says '{line}'")))?;
    }
    let states = tiers.iter().map(|(_, tier)| tier.status().map_err(Failure::new));
    let states = states.collect::<Result<Vec<NodeStatus>, Failure>>()?;
    let added = count.fetch_add(0, 0).map_err(Failure::new)?;
    drop(processes);
    drop((count, tiers, nodes));
    let expected = u64::from(members) * u64::from(arguments.operations);
    if (added, right) != (expected, expected) {
        return Err(Failure::new(format!(
            "{added} additions and {right} answers in place of {expected} each: this is a bug of Dunlin"
        )));
    }
    report(arguments, &states)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until a node knows of all others: views reach nodes one after the other.
fn await_view(tier: &Tier, interrupt: &Interrupt) -> Result<(), Failure> {
    let begin = Instant::now();
    while tier.status().map_err(Failure::new)?.nodes.len() < NODES.len() {
        if begin.elapsed() > START_TIMEOUT {
            return Err(Failure::new(format!("node {} does not hear of the other one", tier.node()))
                .help("is this machine overloaded?"));
        }
        interrupt.wait(Some(Duration::from_millis(5)));
        interrupt.check()?;
    }
    Ok(())
}

fn report(arguments: &SceneArguments, states: &[NodeStatus]) -> Result<(), Failure> {
    output::print_line(format_args!(
        "\nProcesses that share a node (LITE): {} at each of two nodes, memory operations and calls between all of them.\n",
        arguments.processes
    ))?;
    let rows: Vec<Row> = states
        .iter()
        .map(|state| {
            let sum = |of: fn(&dunlin_tier_client::ProcessStatus) -> u64| {
                state.processes.iter().map(of).sum::<u64>()
            };
            Row::new()
                .with("node", state.node.as_str())
                // Without this process, which looks on.
                .with("processes", state.processes.len() as u64 - 1)
                .with("requests", sum(|one| one.operations))
                .with("calls", sum(|one| one.calls))
                .with("queue_pairs", state.queue_pairs)
                .with("call_connections", state.call_connections)
        })
        .collect();
    output::print(table(&rows))?;
    let (each, all) = (u64::from(arguments.processes), u64::from(arguments.processes) * 2);
    let sum = |of: fn(&NodeStatus) -> u32| states.iter().map(of).sum::<u32>();
    let (pairs, connections) = (sum(|one| one.queue_pairs), sum(|one| one.call_connections));
    let most = sum(|one| one.paths.into());
    let count = all * u64::from(arguments.operations);
    output::print_line(format_args!(
        "\nAll {count} additions to one word and {count} answers are right; {all} blocks of {BLOCK} bytes were checked by a \
         neighbour.\nBetween the nodes: {pairs} queue pairs for memory, of at most {most}, and {connections} connections for \
         calls, locks and barriers, however many\nprocesses share them. A connection for each pair of processes of the two \
         nodes would be {} here, and 1024 with 32 at each.",
        each * each
    ))
}

pub(crate) fn member(arguments: &MemberArguments) -> Result<ExitCode, Failure> {
    let MemberArguments { address, number, members, operations } = arguments;
    let tier = attach(address)?;
    let other = NODES[usize::from(number + 1) % NODES.len()];
    let own = tier.malloc(BLOCK as u64, Spec::on(other).named(block_name(*number))).map_err(Failure::new)?;
    own.write(0, &block(*number)).map_err(Failure::new)?;
    if usize::from(*number) < NODES.len() {
        let calls = tier.register(SERVICE, SQUARE).map_err(Failure::new)?;
        // It ends with the process.
        std::thread::spawn(move || {
            let mut buffer = [0; 8];
            while let Ok(request) = calls.receive(&mut buffer) {
                let number = u64::from_le_bytes(buffer);
                let _ = request.reply(&number.wrapping_mul(number).to_le_bytes());
            }
        });
    }
    // Everybody has written its block and serves its function.
    tier.barrier("scene/ready", *members).map_err(Failure::new)?;
    let count = tier.map(COUNT, Rights::WRITE).map_err(Failure::new)?;
    let mut right = 0;
    for round in 0..u64::from(*operations) {
        count.fetch_add(0, 1).map_err(Failure::new)?;
        let (base, mut answer) = (round * u64::from(*members) + u64::from(*number), [0; 8]);
        tier.call(other, SERVICE, SQUARE, &base.to_le_bytes(), &mut answer).map_err(Failure::new)?;
        right += u64::from(u64::from_le_bytes(answer) == base.wrapping_mul(base));
    }
    let neighbour = (number + 1) % members;
    let found = tier.map(block_name(neighbour), Rights::READ).map_err(Failure::new)?;
    let mut bytes = vec![0; BLOCK];
    found.read(0, &mut bytes).map_err(Failure::new)?;
    if bytes != block(neighbour) {
        return Err(Failure::new(format!("the block of process {neighbour} has other bytes than it wrote")));
    }
    // Nobody's server or block ends before all have used it.
    tier.barrier("scene/done", *members).map_err(Failure::new)?;
    output::print_line(right)?;
    // The scene asks the nodes for their counters first, which end with the processes.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    Ok(ExitCode::SUCCESS)
}
