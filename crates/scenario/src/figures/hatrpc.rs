//! HatRPC's cluster, and its protocols.

use crate::load::{Function, Load, Network};
use crate::random_values::Sizes;
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
