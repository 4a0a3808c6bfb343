//! HatRPC's cluster and protocols.

use super::Effort;
use dunlin_fabric::{Capabilities, Nanos};
use dunlin_rpc::{CompletionMode, PROTOCOLS, Plan, Protocol, RequestHalf, ResponseHalf};
use dunlin_scenario::load::{Extent, Function, Load, Network};
use dunlin_scenario::random_values::Sizes;

/// Direct-WriteIMM, the protocol that the paper discusses most.
pub(super) const DIRECT: &str = "Direct-WriteIMM";
/// RFP as implemented by HatRPC.
pub(super) const RFP: &str = "Remote-fetch";

/// The waiting mode of both sides, as in HatRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polling {
    Busy,
    Event,
}

impl Polling {
    pub(super) const BOTH: [Polling; 2] = [Polling::Busy, Polling::Event];

    pub(super) fn name(self) -> &'static str {
        match self {
            Polling::Busy => "busy",
            Polling::Event => "event",
        }
    }
}

/// Returns the name of a protocol's series.
pub(super) fn series(protocol: &str, polling: Polling) -> String {
    format!("{protocol}, {}", polling.name())
}

/// Returns a protocol's plan; `None` if it does not support the waiting mode. Where clients fetch, the server
/// sleeps until requests arrive with immediate data, and the clients poll for the result.
fn plan(protocol: &Protocol, polling: Polling) -> Option<Plan> {
    match (polling, protocol.request, protocol.response) {
        (Polling::Busy, ..) => Some(protocol.plan(CompletionMode::Busy)),
        (
            Polling::Event,
            RequestHalf::Write,
            fetched @ (ResponseHalf::Fetch | ResponseHalf::FetchIndexed | ResponseHalf::FetchIndexedTwice),
        ) => Some(
            Plan::new(RequestHalf::WriteImm, fetched).completion(CompletionMode::Busy, CompletionMode::Event),
        ),
        (Polling::Event, ..) => {
            let plan = protocol.plan(CompletionMode::Event);
            plan.check(&Capabilities::EVERYTHING).is_ok().then_some(plan)
        }
    }
}

/// Returns all protocols with a fixed response half, with their supported waiting modes.
pub(super) fn protocols() -> Vec<(&'static str, Polling, Plan)> {
    let ways = |protocol: &'static Protocol| {
        Polling::BOTH
            .into_iter()
            .filter_map(|polling| Some((protocol.name, polling, plan(protocol, polling)?)))
    };
    let fixed = |protocol: &&Protocol| protocol.response != ResponseHalf::FetchOrWrite;
    PROTOCOLS.iter().filter(fixed).flat_map(ways).collect()
}

/// The protocols of HatRPC figures 3 to 5, among which it names the best.
const OF_THE_PAPER: [&str; 9] = [
    "Eager-SendRecv",
    "Direct-Write-Send",
    "Chained-Write-Send",
    "Write-RNDV",
    "Read-RNDV",
    DIRECT,
    "Pilaf",
    "FaRM",
    RFP,
];

/// Returns the names of the paper's protocols that support a waiting mode.
pub(super) fn names(polling: Polling) -> Vec<&'static str> {
    let wanted =
        |found: &(&'static str, Polling, Plan)| found.1 == polling && OF_THE_PAPER.contains(&found.0);
    protocols().into_iter().filter(wanted).map(|found| found.0).collect()
}

/// Returns a load of clients that send and receive messages of one size.
pub(super) fn load(clients: usize, plan: Plan, bytes: u32) -> Load {
    let mut load = Load::bench(clients, 1, Network::Modelled("hatrpc".to_owned()));
    load.functions = vec![Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes))];
    load
}

/// Cores of a host (HatRPC 5.1), and hosts besides the server.
pub(super) const CORES: u32 = 28;
const CLIENT_HOSTS: usize = 9;
/// Quantum of a spinning thread on a shared core, in nanoseconds (the profile's `quantum_ns`).
const QUANTUM: Nanos = 3_000_000;
/// Bytes that the link moves per nanosecond (the profile's `gbit_s`), and messages per client that are
/// measured.
const LINK_BYTES: u64 = 12;
const MESSAGES: u64 = 20;

/// Returns a load of `clients` clients on nine hosts that call these functions, with a server thread for
/// each.
pub(super) fn crowd(clients: u32, functions: Vec<Function>, effort: Effort) -> Load {
    let mut load = load(clients as usize, functions[0].plan, 0);
    load.functions = functions;
    load.client_hosts = CLIENT_HOSTS.min(clients as usize);
    load.workers = clients as u16;
    (load.server_cores, load.client_cores) = (Some(CORES), Some(CORES));
    let measured = match effort {
        Effort::Full => counted(&load),
        Effort::Quick => counted(&load) / 4,
    };
    load.extent = Extent::Time { warm_up: measured / 2, measured };
    load.limit = 1_000_000_000_000;
    load
}

/// Returns the measured time of a crowd, the longest of three bounds. Each spinning thread must have had a
/// core for a quantum, since it makes no progress without one, while sleeping threads alternate with every
/// call; with different functions twice, since mean latencies that contain such waits are then compared. The
/// link must have moved some messages of each client: all start at once, and their messages come in waves for
/// half as long. Two quanta must pass.
fn counted(load: &Load) -> Nanos {
    let spin = |mode: fn(&Plan) -> CompletionMode| {
        load.functions.iter().any(|function| mode(&function.plan) != CompletionMode::Event)
    };
    let rounds = if load.functions.len() > 1 { 2 } else { 1 };
    let turns = |spin: bool, threads: usize| {
        if spin { rounds * threads as Nanos * QUANTUM / Nanos::from(CORES) } else { 0 }
    };
    let server = turns(spin(|plan| plan.server), load.workers.into());
    let clients = turns(spin(|plan| plan.client), load.clients.div_ceil(load.client_hosts));
    let longest = |function: &Function| function.requests.largest().max(function.results.largest());
    let bytes = load.functions.iter().map(longest).max().unwrap_or(0);
    let link = load.clients as u64 * u64::from(bytes) * MESSAGES / LINK_BYTES;
    server.max(clients).max(link).max(2 * QUANTUM)
}
