//! `dunlin bench fetch-table`: RF-RPC's one-time benchmark of a fabric, and the table that clients use
//! afterwards.

use clap::Args;
use dunlin::fabric::{DeviceIdentity, Fabric, Scheme};
use dunlin::tune::{ConnectionRow, FetchTable, GroupDefaults, RateRow, Rates, RatesSource, Tables};
use dunlin::{Address, on_fabric};
use dunlin_command::arguments::{self, DeviceArguments};
use dunlin_command::child::ChildProcess;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure, ReportArguments};
use dunlin_command::progress;
use dunlin_device_rates::{CONNECTIONS, LARGEST, RatesError, RatesOptions, SIZES, Step, measure, serve};
use dunlin_report::{Axis, Chart, Content, Document, Lines, Row, Unit, table};
use dunlin_scenario::rates::modelled_rates;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const AFTER_HELP: &str = "\
Clients of the protocol RF-RPC choose between fetching results and having them written back. The choice depends on the rates of the \
network device, by size: READs that a host serves per second, WRITEs that it issues per second, and the latency of a READ. This \
command measures the rates, between this process and its peers, and stores the table in $XDG_CACHE_HOME (or \
~/.cache)/dunlin/fetch-tables, one file per device. Clients on the same device then use it; client.tuning() and dunlin ping show \
this. The table gives three limits: fetching up to L bytes costs as much as fetching one byte; beyond H bytes, bandwidth is the \
limit; and from N READs per result on, fetching is no faster than WRITEs.

It also measures 32-byte WRITEs by the number of connections: beyond the number that the NIC's cache holds, the rate falls. Servers \
take the size and the slice of their groups from it (clients whose lease is a slice). Shared memory has no such cache.

On shared memory, peers are processes of this host, and N is about 1, since reads and writes move the same cache lines. On RDMA, \
peers on this host load the same NIC twice. To measure the NIC alone, run the peers on other hosts, with --elsewhere and --join.

Examples:
  dunlin bench fetch-table                                      shared memory; some seconds
  dunlin bench fetch-table rdma:192.168.1.7:7000                this host's NIC, at its own address
  dunlin bench fetch-table rdma:192.168.1.7:7000 --peers 7 --elsewhere
  dunlin bench fetch-table --join rdma:192.168.1.7:7000         on each of the seven others
  dunlin bench fetch-table --show                               the stored table, without measuring

Ctrl-C ends the measurement; nothing is stored then.";

/// Measure the fabric's READ and WRITE rates by size, from which clients choose between fetching and
/// writing back.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct FetchTableArguments {
    /// Address for peers, shm:NAME or rdma:HOST:PORT; selects the fabric [default: shared memory]
    address: Option<Address>,
    /// Peers, each with its own connection [default: 1, or the number of cores minus one, up to 4]
    #[arg(long, value_name = "N")]
    peers: Option<usize>,
    /// Threads of this process that WRITE [default: 1, or half the number of cores, up to the number of
    /// peers]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// READs in flight per peer
    #[arg(long, default_value_t = 16, value_name = "N")]
    window: u32,
    /// Sizes to measure
    #[arg(long, default_values_t = SIZES.map(u64::from), value_delimiter = ',', value_parser = arguments::size, value_name = "SIZE")]
    sizes: Vec<u64>,
    /// Numbers of connections to measure; of no effect on shared memory
    #[arg(long, default_values_t = CONNECTIONS, value_delimiter = ',', value_name = "N")]
    connections: Vec<u32>,
    /// Slices per size; the result is their median
    #[arg(long, default_value_t = 20, value_name = "N")]
    rounds: usize,
    /// Length of a slice; on shared memory, a slice is one pass over 512 KiB instead
    #[arg(long, default_value = "5ms", value_parser = arguments::positive_duration, value_name = "TIME")]
    slice: Duration,
    /// Wait for peers on other hosts, started there with --join, instead of starting them here
    #[arg(long)]
    elsewhere: bool,
    /// Run a peer of the measurement at ADDRESS
    #[arg(long, conflicts_with_all = ["peers", "threads", "rounds", "elsewhere", "no_keep", "show", "json", "plot"])]
    join: bool,
    /// Do not store the table
    #[arg(long)]
    no_keep: bool,
    /// Show the table that clients use on this machine, without a measurement
    #[arg(long, conflicts_with_all = ["peers", "threads", "rounds", "elsewhere", "no_keep"])]
    show: bool,
    /// Show the table of a simulated cluster, by its name in dunlin sim
    #[arg(long, value_name = "NAME", conflicts_with_all = ["address", "peers", "threads", "rounds", "elsewhere", "join", "no_keep", "show"])]
    profile: Option<String>,
    #[command(flatten)]
    device: DeviceArguments,
    #[command(flatten)]
    report: ReportArguments,
}

/// Run a peer of a measurement; 'dunlin bench fetch-table' starts this for itself.
#[derive(Args, Debug)]
pub(crate) struct PeerArguments {
    address: Address,
    #[command(flatten)]
    device: DeviceArguments,
}

pub(crate) fn run_peer(arguments: &PeerArguments) -> Result<ExitCode, Failure> {
    join(&arguments.address, &arguments.device).map(|()| ExitCode::SUCCESS)
}

fn join(address: &Address, device: &DeviceArguments) -> Result<(), Failure> {
    let chosen = device.fabrics(false).choose(address)?;
    on_fabric!(&chosen, fabric => serve(fabric, address)).map_err(explained)
}

/// Converts an error of a measurement to a failure with advice.
fn explained(error: RatesError) -> Failure {
    let help = match &error {
        RatesError::Option(_) => "dunlin bench fetch-table --help says what can be given",
        RatesError::Dial(_) => {
            "start dunlin bench fetch-table --elsewhere on the host that is measured first"
        }
        RatesError::Listen(_) => "give another name, or a port that is free at an address of this host",
        RatesError::Link(_) => "is a peer gone, or a machine overloaded? Run it again",
        RatesError::Foreign(_) => {
            "all hosts need the same version of dunlin, and nothing else may use the address"
        }
        _ => return Failure::new(error),
    };
    Failure::new(error).help(help)
}

pub(super) fn run(arguments: &FetchTableArguments) -> Result<(), Failure> {
    if let Some(profile) = &arguments.profile {
        arguments.report.check()?;
        let rates = modelled_rates(profile)
            .map_err(|error| Failure::new(error).help("dunlin sim list names the profiles of the figures"))?;
        return present(arguments, "sim", &FetchTable::of(rates), Row::new());
    }
    let address = match &arguments.address {
        Some(address) => address.clone(),
        None if arguments.join => {
            return Err(Failure::new("--join needs the address of the measurement")
                .help("give the address that --elsewhere was started with"));
        }
        None => format!("shm:dunlin-fetch-table-{}", std::process::id()).parse().map_err(Failure::new)?,
    };
    if address.scheme() == Scheme::Auto {
        return Err(Failure::new("a table is of one fabric").help("give shm:NAME or rdma:HOST:PORT"));
    }
    if arguments.join {
        return join(&address, &arguments.device);
    }
    arguments.report.check()?;
    let chosen = arguments.device.fabrics(false).choose(&address)?;
    on_fabric!(&chosen, fabric => match arguments.show {
        true => show(arguments, fabric),
        false => run_on(arguments, fabric, &address),
    })
}

fn options(arguments: &FetchTableArguments) -> Result<RatesOptions, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let peers = arguments.peers.unwrap_or_else(|| (cores - 1).clamp(1, 4));
    let size = |bytes: &u64| u32::try_from(*bytes).unwrap_or(LARGEST + 1);
    let options = RatesOptions {
        sizes: arguments.sizes.iter().map(size).collect(),
        connections: arguments.connections.clone(),
        peers,
        threads: arguments.threads.unwrap_or_else(|| (cores / 2).clamp(1, peers.max(1))),
        window: arguments.window,
        rounds: arguments.rounds,
        slice: arguments.slice.as_nanos() as u64,
    };
    options.check().map_err(explained)?;
    Ok(options)
}

fn run_on<F: Fabric>(arguments: &FetchTableArguments, fabric: &F, address: &Address) -> Result<(), Failure> {
    let options = options(arguments)?;
    // Check before the measurement that the table can be stored.
    let tables = if arguments.no_keep { None } else { Some(Tables::of_user()?) };
    let interrupt = Interrupt::install()?;
    let device = fabric.device();
    output::note(format_args!("measuring {device}"));
    let bar = progress::counting(0, "waiting for peers");
    let mut peers: Vec<ChildProcess> = Vec::new();
    let mut failure = None;
    let mut between = |step: Step<'_>| {
        let outcome = match step {
            Step::Listening(address) if arguments.elsewhere => {
                output::note(format_args!(
                    "on {} other hosts: dunlin bench fetch-table --join {address}",
                    options.peers
                ));
                Ok(())
            }
            Step::Listening(address) => start_peers(&mut peers, address, options.peers, &arguments.device),
            Step::Peers(_) => peers.iter_mut().try_for_each(ChildProcess::check),
            Step::Slices(done, all) => {
                bar.set_message("measuring");
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                Ok(())
            }
        };
        failure = outcome.err();
        failure.is_none() && interrupt.received().is_none()
    };
    let outcome = measure(fabric, address, &options, &mut between);
    bar.finish_and_clear();
    peers.clear();
    interrupt.check()?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let measured = outcome.map_err(explained)?;
    #[allow(clippy::disallowed_methods)] // The date of a document.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let source = RatesSource::Measured { device: device.to_string(), unix_time_s: now };
    let rates = Rates::new(measured.rows.clone(), source)
        .and_then(|rates| rates.with_connections(measured.connections.clone()))
        .map_err(|error| explained(error.into()))?;
    let found = FetchTable::of(Arc::new(rates));
    let mut parameters = Row::new();
    parameters
        .set("peers", options.peers)
        .set("threads", options.threads)
        .set("window", options.window)
        .set("rounds", options.rounds)
        .set("elsewhere", arguments.elsewhere);
    present(arguments, fabric.capabilities().name, &found, parameters)?;
    match tables {
        Some(tables) => {
            let path = tables.save(&device, (&measured.rows, &measured.connections), now)?;
            output::print_line(format_args!("kept in {}: clients on this device go by it", path.display()))
        }
        None => Ok(()),
    }
}

fn start_peers(
    peers: &mut Vec<ChildProcess>,
    address: &Address,
    count: usize,
    device: &DeviceArguments,
) -> Result<(), Failure> {
    for number in 1..=count {
        let mut words =
            vec![dunlin_command::INTERNAL.to_owned(), "fetch-table-peer".to_owned(), address.to_string()];
        words.extend(device.words());
        peers.push(ChildProcess::start(&format!("peer {number}"), words)?);
    }
    Ok(())
}

/// Shows the table that clients on this fabric use.
fn show<F: Fabric>(arguments: &FetchTableArguments, fabric: &F) -> Result<(), Failure> {
    let device: DeviceIdentity = fabric.device();
    let tables = Tables::of_user()?;
    let found = match tables.load(&device)? {
        Some(rates) => {
            output::print_line(tables.path(&device).display())?;
            FetchTable::of(Arc::new(rates))
        }
        None => {
            output::print_line(format_args!("nothing was measured of {device}"))?;
            fabric.rates().map_or_else(FetchTable::rf_rpc, FetchTable::of)
        }
    };
    present(arguments, fabric.capabilities().name, &found, Row::new())
}

fn present(
    arguments: &FetchTableArguments,
    fabric: &str,
    found: &FetchTable,
    mut parameters: Row,
) -> Result<(), Failure> {
    parameters
        .set("table", found.source().to_string())
        .set("l_bytes", found.low())
        .set("h_bytes", found.high())
        .set("n", found.reads_at_most());
    let by_connections = found.rates().connections();
    let groups = GroupDefaults::of(Some(found.rates()));
    parameters
        .set("group_size", u32::from(groups.size))
        .set("group_slice_ns", groups.slice.as_nanos() as u64);
    let mut document = Document::new("bench fetch-table", fabric, parameters);
    document.rows = found.rows().iter().map(row).collect();
    output::print(table(&document.rows))?;
    let connections: Vec<Row> = by_connections.iter().map(connection_row).collect();
    if !connections.is_empty() {
        output::print(table(&connections))?;
        document.rows.extend(connections);
    }
    output::print_line(format_args!(
        "L {} bytes, H {} bytes, N {}; {}",
        found.low(),
        found.high(),
        found.reads_at_most(),
        found.source()
    ))?;
    let of = if by_connections.is_empty() {
        "by default: nothing is known of connections"
    } else {
        "by these rates"
    };
    output::print_line(format_args!(
        "groups of {} clients, slices of {:?}, {of}",
        groups.size, groups.slice
    ))?;
    arguments.report.write_with(&document, &[chart(found)])
}

fn connection_row(row: &ConnectionRow) -> Row {
    Row::new().with("connections", row.connections).with("writes_ops", row.writes.round())
}

fn row(row: &RateRow) -> Row {
    Row::new()
        .with("size_bytes", row.bytes)
        .with("reads_ops", row.reads.round())
        .with("writes_ops", row.writes.round())
        .with("read_ns", row.read_nanos.round())
        .with("reads_over_writes_ratio", (row.reads / row.writes * 1e3).round() / 1e3)
}

fn chart(found: &FetchTable) -> Chart {
    let line = |name: &str, value: fn(&RateRow) -> f64| {
        (name.to_owned(), found.rows().iter().map(|row| (f64::from(row.bytes), value(row))).collect())
    };
    Chart {
        title: format!("Rates by size, {}", found.source()),
        values: Axis { label: "a second".to_owned(), unit: Unit::OperationsPerSecond, logarithmic: false },
        content: Content::Lines(Lines {
            along: Axis { label: "size".to_owned(), unit: Unit::Bytes, logarithmic: true },
            series: vec![line("READs served", |row| row.reads), line("WRITEs made", |row| row.writes)],
        }),
    }
}
