//! `dunlin explain`: shows the plan of each function of an IDL file, and the reasons.

mod both_sides;
mod ground;
mod model;

use both_sides::Runs;
use clap::{Args, ValueEnum};
use dunlin::Address;
use dunlin::fabric::Scheme;
use dunlin_advice::Cluster;
use dunlin_command::arguments::{DeviceArguments, On};
use dunlin_command::output::{self, Failure};
use dunlin_hints::{
    Environment, FunctionHints, Occupancy, Selection, Sharing, Side, Subject, Transport, Value, select,
    unify_sharing,
};
use dunlin_idl::{Diagnostics, Disk, Lenience, Options, Service};
use dunlin_report::{Document, Row};
use ground::FabricContext;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Hints are Thrift annotations, or have HatRPC's syntax, which other Thrift compilers refuse:
  service KV {
    binary get(1: binary key) (perf_goal = \"latency\", c_hint.polling = \"busy\")
    void put(1: binary key, 2: binary value) [ hint: payload_size = 1KB; s_hint: polling = event; ]
  } (perf_goal = \"throughput\", concurrency = \"64\")

Keys: perf_goal, concurrency, payload_size, polling, numa, transport, priority, process_time, protocol,
      sharing.

Exit status: 0; 1 if the file is invalid, or if a function has no plan on this fabric.

Examples:
  dunlin explain kv.thrift --clients 64
  dunlin explain kv.thrift --workers 4 --clients 2
  dunlin explain kv.thrift --side server --cores 16 --machine-cores 28 --fabric rnic
  dunlin explain kv.thrift --profile hatrpc --clients 64
  dunlin explain kv.thrift --lenient --json plans.json
  dunlin explain kv.thrift --at auto:node-7:7000     the transport from here to that server, where its
                                                     functions run, and where its plans differ";

/// Explain the plans selected by the hints of an IDL file.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ExplainArguments {
    /// IDL file: Thrift, with or without hints
    file: PathBuf,
    /// Number of concurrent clients [default: the hint concurrency, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    clients: Option<u32>,
    /// Number of the server's workers: shows how they wait if they and clients on the same host outnumber the
    /// cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// Side whose plans to show
    #[arg(long, value_enum, default_value_t = Sides::Both)]
    side: Sides,
    /// Also search this folder for included files; may be repeated
    #[arg(short = 'I', long, value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// Ignore unknown hints with a warning
    #[arg(long)]
    lenient: bool,
    /// Cores of the NUMA node of the server's NIC [default: this machine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cores: Option<u32>,
    /// Total number of cores of the server [default: --cores, or this machine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    machine_cores: Option<u32>,
    /// Fabric to select plans for
    #[arg(long, value_enum, default_value_t = On::Shm)]
    fabric: On,
    /// Explain for the transport that a client here would use to this server, and ask a typed server where
    /// its functions run and which plans its own hints select
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["fabric", "profile"])]
    at: Option<Address>,
    #[command(flatten)]
    device: DeviceArguments,
    /// Explain for the cluster of this profile, and simulate all other protocols there, to show any that
    /// are better than the selected one; dunlin sim profiles shows profiles
    #[arg(long, value_name = "NAME", conflicts_with = "fabric")]
    profile: Option<String>,
    /// Also write plans and reasons to this file, as one JSON document
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// The side whose plans are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sides {
    Client,
    Server,
    Both,
}

impl Sides {
    fn shown(self) -> impl Iterator<Item = Side> {
        Side::BOTH.into_iter().filter(move |side| match self {
            Sides::Both => true,
            Sides::Client => *side == Side::Client,
            Sides::Server => *side == Side::Server,
        })
    }
}

/// Returns the server's cores: those of the NIC's NUMA node, and the total.
fn cores(arguments: &ExplainArguments, cluster: Option<&Cluster>) -> (u32, u32) {
    let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let nodes_here = || {
        let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
        nodes.filter(|entry| is_node(&entry.file_name().to_string_lossy())).count().max(1) as u32
    };
    // One host of the cluster. Profiles have no NUMA nodes, so all its cores are equally close to the NIC.
    let machine = arguments.machine_cores.or(cluster.map(|cluster| cluster.cores));
    match (arguments.cores, machine) {
        (Some(node), machine) => (node, machine.unwrap_or(node).max(node)),
        (None, Some(machine)) if cluster.is_some() => (machine, machine),
        (None, Some(machine)) => (here().div_ceil(nodes_here()).min(machine), machine),
        (None, None) => (here().div_ceil(nodes_here()), here()),
    }
}

/// Returns the row for a function and a side. `fabric` is the fabric in use, unless the function uses TCP.
fn row(
    service: &Service,
    function: &FunctionHints,
    side: Side,
    selection: &Selection,
    (fabric, runs, through_node): (&str, &Runs, bool),
) -> Row {
    let transport = match selection.transport {
        Transport::Tcp => Value::Transport(Transport::Tcp).to_string(),
        Transport::Rdma => fabric.to_owned(),
    };
    let mut row = Row::new()
        .with("service", service.name.as_str())
        .with("function", &*function.name)
        .with("side", side.name())
        .with("transport", transport);
    let Some(plan) = selection.plan else { return row };
    row.set("protocol", selection.protocol.unwrap_or("(of two protocols)"))
        .set("request", plan.request.name())
        .set("response", if function.oneway { "none" } else { plan.response.name() })
        .set(
            "polling",
            match side {
                Side::Client => plan.client.to_string(),
                Side::Server => plan.server.to_string(),
            },
        )
        .set("large_payloads", plan.large.name())
        .set("large_above_bytes", plan.rendezvous_above);
    if side == Side::Server {
        row.set("runs", runs.word);
    } else {
        let tier = (through_node || function.client.sharing == Some(Sharing::Tier)).then_some(Sharing::Tier);
        let sharing = tier.or_else(|| Sharing::of(&plan)).map(|sharing| Value::Sharing(sharing).to_string());
        row.set("sharing", sharing.unwrap_or_else(|| plan.sharing.name().to_owned()));
    }
    row
}

/// Returns whether a reason concerns a side.
fn concerns(subject: Subject, side: Side) -> bool {
    match subject {
        Subject::Transport | Subject::Request | Subject::Response => true,
        Subject::Polling(of) | Subject::Numa(of) => of == side,
        Subject::Sharing => side == Side::Client,
    }
}

fn reasons(selection: &Selection, side: Side) -> serde_json::Value {
    let reasons = selection.reasons.iter().filter(|reason| concerns(reason.subject, side));
    reasons
        .map(|reason| {
            let places = reason.hints.iter().filter_map(|hint| hint.place.as_ref());
            let hints = reason.hints.iter().map(|hint| format!("{} {}", hint.side, hint.key));
            serde_json::json!({
                "about": reason.subject.to_string(),
                "reason": reason.text,
                "hints": hints.collect::<Vec<_>>(),
                "places": places.map(ToString::to_string).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// Prints the diagnostics of a file, and returns the command's error.
pub(crate) fn refuse(file: &std::path::Path, diagnostics: &Diagnostics) -> Failure {
    output::note(format!("{diagnostics}\n"));
    let errors = diagnostics.errors();
    let plural = if errors == 1 { "" } else { "s" };
    Failure::new(format!("{}: {errors} error{plural} as above", file.display()))
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.json {
        output::check_writable(path)?;
    }
    let options = Options {
        include_folders: arguments.include.clone(),
        lenience: if arguments.lenient { Lenience::Lenient } else { Lenience::Strict },
    };
    let document = dunlin_idl::load_with(&arguments.file, &options, &Disk)
        .map_err(|diagnostics| refuse(&arguments.file, &diagnostics))?;
    if !document.warnings.is_empty() {
        output::note(format!("{}\n", document.warnings));
    }
    if document.own_services().next().is_none() {
        return Err(Failure::new(format!("{} has no service", arguments.file.display()))
            .help("name the file that declares the services, not one that it includes"));
    }
    let cluster = arguments.profile.as_deref().map(model::cluster).transpose()?;
    let (node_cores, cores) = cores(arguments, cluster.as_ref());
    let ground = match (&cluster, &arguments.at) {
        (Some(cluster), _) => FabricContext::simulated(cluster),
        (None, Some(address)) => FabricContext::at(address, &arguments.device)?,
        (None, None) => FabricContext::on(arguments.fabric, &arguments.device)?,
    };
    let Some(capabilities) = &ground.capabilities else {
        let how = "all functions go by stock Thrift over TCP, whatever their hints say";
        output::print(format!("{}\n{how}\n", ground.auto.as_deref().unwrap_or_default()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let environment = Environment {
        node_cores,
        nodes: cores.div_ceil(node_cores),
        clients: arguments.clients,
        workers: arguments.workers,
        queue_pairs_each: arguments.workers.unwrap_or(1),
        connections: ground.connections(),
        through_node: arguments.at.as_ref().map(|address| address.scheme() == Scheme::Node),
        ..Environment::new(capabilities, cores)
    };
    let clients = arguments.clients.map_or("as hinted, else 1".to_owned(), |clients| clients.to_string());
    let fabric_name = ground.name.as_str();
    let mut text = format!(
        "clients: {clients}; cores of the NIC's NUMA node: {node_cores}, of the server: {cores}; fabric: {fabric_name}\n"
    );
    if let (Some(workers), true) = (arguments.workers, capabilities.initiator_copies) {
        let occupancy = Occupancy { workers, clients: arguments.clients.unwrap_or(1), cores };
        let _ = writeln!(text, "{occupancy}");
    }
    if let Some(line) = &ground.auto {
        let _ = writeln!(text, "{line}");
    }
    let server = match &ground.server {
        Some(Ok(server)) => {
            let _ = writeln!(text, "the server serves '{}'", server.service.escape_debug());
            Some(server)
        }
        Some(Err(why)) => {
            output::note(format!("warning: the server does not say what it runs: {why}"));
            None
        }
        None => None,
    };
    text.push('\n');
    let parameters = Row::new()
        .with("file", arguments.file.display().to_string())
        .with("clients", arguments.clients)
        .with("workers", arguments.workers)
        .with("node_cores", node_cores)
        .with("cores", cores);
    let mut report = Document::new("explain", fabric_name, parameters);
    let mut table = report.clone();
    let mut why = String::new();
    let mut without = 0;
    let mut selected = Vec::new();
    for service in document.own_services() {
        let first = selected.len();
        for function in service.all_functions() {
            match select(&function.hints, &environment) {
                Ok(selection) => selected.push((service, function, selection)),
                Err(error) => {
                    output::note(format!("error: {}.{}: {error}", service.name, function.name));
                    without += 1;
                }
            }
        }
        let functions = &mut selected[first..];
        let agreed =
            unify_sharing(functions.iter_mut().map(|(_, function, selection)| (&function.hints, selection)));
        if let Err((number, error)) = agreed {
            output::note(format!("error: {}.{}: {error}", service.name, functions[number].1.name));
            without += 1;
        }
    }
    if let Some(server) = server {
        let services: Vec<&str> = document.own_services().map(|service| service.name.as_str()).collect();
        if !services.contains(&&*server.service) {
            let (theirs, ours) = (server.service.escape_debug(), services.join(", "));
            output::note(format!("warning: the server serves '{theirs}', and the file has {ours}"));
        }
        let known = |name: &str| {
            document.own_services().any(|service| service.all_functions().any(|of| of.name == name))
        };
        if let Some(more) = both_sides::unknown_here(server, known) {
            output::note(format!("warning: {}", more.escape_debug()));
        }
    }
    let mut verdicts = match &cluster {
        Some(cluster) => {
            let functions = selected.iter().map(|(_, function, selection)| (&function.hints, selection));
            model::verdicts(functions, &environment, cluster)?
        }
        None => Vec::new(),
    }
    .into_iter();
    for (service, function, selection) in &selected {
        let verdict = verdicts.next().flatten();
        let runs = Runs::of(&function.hints, server);
        for side in arguments.side.shown() {
            let row = row(
                service,
                &function.hints,
                side,
                selection,
                (fabric_name, &runs, environment.through_node == Some(true)),
            );
            table.rows.push(row.clone());
            let mut row = row.with("reasons", reasons(selection, side));
            if side == Side::Server {
                row.set("runs_because", runs.text.as_str());
            }
            if let Some(verdict) = &verdict {
                row.set("model", verdict.json.clone());
            }
            report.rows.push(row);
        }
        let _ = write!(why, "\n{}.{} ({})", service.name, function.name, function.place);
        if selection.transport == Transport::Rdma {
            let _ = write!(why, ", {}", selection.subscription);
        }
        why.push('\n');
        for reason in &selection.reasons {
            if arguments.side.shown().any(|side| concerns(reason.subject, side)) {
                let _ = writeln!(why, "  {reason}");
            }
        }
        if selection.plan.is_some() && arguments.side.shown().any(|side| side == Side::Server) {
            let _ = writeln!(why, "  {}", runs.text);
        }
        let differs = server.and_then(|server| both_sides::difference(&function.hints, selection, server));
        if let Some(differs) = differs {
            output::note(format!("warning: {}.{}: {differs}", service.name, function.name));
        }
        if let Some(rates) = selection.plan.and_then(|plan| ground.told_of_rates(plan.response)) {
            let _ = writeln!(why, "  {rates}");
        }
        if let Some(groups) = selection.plan.and_then(|plan| ground.told_of_groups(&plan)) {
            let _ = writeln!(why, "  {groups}");
        }
        if let Some(verdict) = &verdict {
            let _ = writeln!(why, "  {}", verdict.text);
        }
    }
    text.push_str(&table.table());
    text.push_str(&why);
    output::print(text)?;
    if let Some(path) = &arguments.json {
        report.write_json(path).map_err(Failure::new)?;
    }
    match without {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::new(format!("{without} functions have no plan on this fabric"))
            .help("dunlin protocols lists what goes together")),
    }
}
