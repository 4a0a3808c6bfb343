//! HatRPC's cluster, and its protocols.

use super::Effort;
use crate::load::{Extent, Function, Load, Network};
use crate::random_values::Sizes;
use dunlin_fabric::Nanos;
use dunlin_rpc::{CompletionMode, PROTOCOLS, Plan, Protocol, RequestHalf, ResponseHalf};

/// Direct-WriteIMM, of which most is said.
pub(super) const DIRECT: &str = "Direct-WriteIMM";
/// RFP as HatRPC has it.
pub(super) const RFP: &str = "Remote-fetch";

/// How both sides wait: HatRPC's two ways.
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

/// The name of a protocol's series.
pub(super) fn series(protocol: &str, polling: Polling) -> String {
    format!("{protocol}, {}", polling.name())
}

/// A protocol's plan; `None` if it cannot wait so. A server whose clients fetch sleeps until their requests come with
/// immediate data; the clients look for the result.
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
        (Polling::Event, RequestHalf::Write | RequestHalf::WriteUnreliable, _)
        | (Polling::Event, _, ResponseHalf::Write) => None,
        (Polling::Event, ..) => Some(protocol.plan(CompletionMode::Event)),
    }
}

/// All protocols that are the same all the time, with the ways in which they can wait.
pub(super) fn protocols() -> Vec<(&'static str, Polling, Plan)> {
    let ways = |protocol: &'static Protocol| {
        Polling::BOTH
            .into_iter()
            .filter_map(|polling| Some((protocol.name, polling, plan(protocol, polling)?)))
    };
    let fixed = |protocol: &&Protocol| protocol.response != ResponseHalf::FetchOrWrite;
    PROTOCOLS.iter().filter(fixed).flat_map(ways).collect()
}

/// The protocols of HatRPC figures 3 to 5: what it says of the best is said among these.
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

/// Names of those of the paper that wait so.
pub(super) fn names(polling: Polling) -> Vec<&'static str> {
    let wanted =
        |found: &(&'static str, Polling, Plan)| found.1 == polling && OF_THE_PAPER.contains(&found.0);
    protocols().into_iter().filter(wanted).map(|found| found.0).collect()
}

/// Clients that send and get messages of one size.
pub(super) fn load(clients: usize, plan: Plan, bytes: u32) -> Load {
    let mut load = Load::bench(clients, 1, Network::Modelled("hatrpc".to_owned()));
    load.functions = vec![Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes))];
    load
}

/// Cores of a host (HatRPC 5.1), and hosts that are not the server.
pub(super) const CORES: u32 = 28;
const CLIENT_HOSTS: usize = 9;
/// How long a thread that spins keeps its core where others wait for it (the profile's `quantum_ns`).
const QUANTUM: Nanos = 3_000_000;
/// Bytes that the link moves in a nanosecond (the profile's `gbit_s`), and for how many messages of each client it counts.
const LINK_BYTES: u64 = 12;
const MESSAGES: u64 = 20;

/// So many clients on nine hosts that call these functions, a server thread for each.
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

/// For how long the calls of a crowd count: until each of the threads that spin has had a core for a quantum, since who has none meanwhile
/// does nothing, while those that sleep take turns with every call (twice where functions differ, since then means of latencies are
/// compared, into which such waits go); until the link has moved some messages of each client, as all begin at once and it takes half as
/// many until they do not come in waves; and for two quanta at least.
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
