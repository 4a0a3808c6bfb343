//! RF-RPC's cluster and its two systems: Jakiro, whose clients fetch their results, and ServerReply.

use super::{Effort, measured};
use dunlin_fabric::Nanos;
use dunlin_rpc::{CompletionMode, FetchChoice, FirstRead, Plan, Protocol, RequestHalf, ResponseHalf};
use dunlin_scenario::load::{Connections, Extent, Function, Load, Network, Posting};
use dunlin_scenario::memory::Lines;
use dunlin_scenario::random_values::{Sizes, Times};

/// Name of the system with fetched results, as in the paper's figures.
pub(super) const FETCH: &str = "Jakiro";
/// Name of the system with written results, as in the paper's figures.
pub(super) const REPLY: &str = "ServerReply";
/// Jakiro where the writer, client or server thread, waits for the completion, as in the paper's rate test
/// (RF-RPC 2.2). The text does not say whether the systems wait; it mentions unsignaled requests only in 5.4.
pub(super) const FETCH_WAITS: &str = "Jakiro that waits";
/// ServerReply with the same waits.
pub(super) const REPLY_WAITS: &str = "ServerReply that waits";
/// All systems.
pub(super) const SYSTEMS: [System; 4] = [
    System { name: FETCH, response: ResponseHalf::FetchOrWrite, waits: false },
    System { name: REPLY, response: ResponseHalf::Write, waits: false },
    System { name: FETCH_WAITS, response: ResponseHalf::FetchOrWrite, waits: true },
    System { name: REPLY_WAITS, response: ResponseHalf::Write, waits: true },
];

/// A system.
#[derive(Clone, Copy, Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) response: ResponseHalf,
    waits: bool,
}

impl System {
    /// Returns the load of GETs on the store.
    pub(super) fn gets(self, threads: u16, effort: Effort) -> Load {
        let mut load = gets(self.response, threads, 0, effort);
        if self.waits {
            (load.posting, load.server_waits) = (Posting::Signaled, true);
        }
        load
    }
}

/// Threads of the server unless stated otherwise (RF-RPC 5.3.2).
pub(super) const THREADS: u16 = 16;
/// Seven client machines with five threads each (RF-RPC 5.1).
const CLIENT_HOSTS: usize = 7;
const CLIENTS: usize = 35;
/// Bytes of keys and values (RF-RPC 5.1).
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 32;
/// Memory accesses of the store per GET: a bucket and a pair, neither of which is cached (128 million pairs),
/// so two accesses of about 100 ns. Assumed before any prediction. The lines of a batch are prefetched before
/// its first GET, as in this project's own store, whose two passes take 49 and 92 instructions per GET
/// (16-byte keys).
pub(super) const STORE: Lines = Lines { number: 2, latency: 100, asking: 70 };

/// Returns a load of calls with minimal payloads, on either system.
pub(super) fn calls(response: ResponseHalf, threads: u16, service: Nanos, effort: Effort) -> Load {
    let mut load = Load::bench(CLIENTS, 1, Network::Modelled("rf-rpc".to_owned()));
    let plan = Plan::new(RequestHalf::Write, response).completion(CompletionMode::Busy, CompletionMode::Busy);
    let function = Function::new(plan, Sizes::Fixed(1), Sizes::Fixed(1));
    load.functions = vec![Function { service: Times::Fixed(service), ..function }];
    load.client_hosts = CLIENT_HOSTS;
    load.workers = threads;
    // Each thread owns a part of the keys, so every client is connected to every thread (RF-RPC 5.5: N x M
    // queue pairs).
    load.connections = Connections::EachWorker;
    load.extent = measured(effort, 4_000_000);
    load.limit = 10_000_000_000;
    // As in the paper: R and F by enumeration, with repeated fetching.
    (load.fetch_choice, load.first_read) = (FetchChoice::Enumerated, FirstRead::AtOnce);
    load
}

/// Returns the plan of a protocol with both sides busy.
pub(super) fn plan_of(protocol: &str) -> Plan {
    Protocol::by_name(protocol).expect("a row of the table of protocols").plan(CompletionMode::Busy)
}

/// Returns a load of GETs on the store with additional process time.
pub(super) fn gets(response: ResponseHalf, threads: u16, process_time: Nanos, effort: Effort) -> Load {
    let mut load = calls(response, threads, STORE.one_by_one() + process_time, effort);
    for function in &mut load.functions {
        function.lines = STORE;
        (function.requests, function.results) = (Sizes::Fixed(KEY_BYTES), Sizes::Fixed(VALUE_BYTES));
    }
    load
}

/// Returns the extent for clients that first choose their mode, with calls of `process_us` microseconds.
/// Longer calls give fewer samples for the choice, and so more noise in the measurement.
pub(super) fn once_found(process_us: u32, effort: Effort) -> Extent {
    let warm_up = 25_000_000 + 7_500_000 * Nanos::from(process_us.min(10));
    let measured = match effort {
        Effort::Full => 10_000_000,
        Effort::Quick => 5_000_000,
    };
    Extent::Time { warm_up, measured: measured + 1_000_000 * Nanos::from(process_us) }
}
