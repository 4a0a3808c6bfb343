//! RF-RPC's cluster and its two systems: Jakiro, whose clients fetch their results, and ServerReply.

use super::{Effort, measured};
use crate::load::{Connections, Extent, Function, Load, Network, Posting};
use crate::memory::Lines;
use crate::random_values::{Sizes, Times};
use dunlin_fabric::Nanos;
use dunlin_rpc::{CompletionMode, FetchChoice, FirstRead, Plan, RequestHalf, ResponseHalf};

/// Both systems' names, as they stand in its figures.
pub(super) const FETCH: &str = "Jakiro";
/// As above.
pub(super) const REPLY: &str = "ServerReply";
/// Both where who has written, client or server thread, waits for the completion, as in the paper's test of rates (RF-RPC 2.2).
/// Its text says of neither system whether it does; unsignaled requests come up in 5.4 only.
pub(super) const FETCH_WAITS: &str = "Jakiro that waits";
/// As above.
pub(super) const REPLY_WAITS: &str = "ServerReply that waits";
/// All of them.
pub(super) const SYSTEMS: [System; 4] = [
    System { name: FETCH, response: ResponseHalf::FetchOrWrite, waits: false },
    System { name: REPLY, response: ResponseHalf::Write, waits: false },
    System { name: FETCH_WAITS, response: ResponseHalf::FetchOrWrite, waits: true },
    System { name: REPLY_WAITS, response: ResponseHalf::Write, waits: true },
];

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) response: ResponseHalf,
    waits: bool,
}

impl System {
    /// GETs of the store.
    pub(super) fn gets(self, threads: u16, effort: Effort) -> Load {
        let mut load = gets(self.response, threads, 0, effort);
        if self.waits {
            (load.posting, load.server_waits) = (Posting::Signaled, true);
        }
        load
    }
}

/// Threads of the server where nothing else is said (RF-RPC 5.3.2).
pub(super) const THREADS: u16 = 16;
/// Seven client machines with five threads each (RF-RPC 5.1).
const CLIENT_HOSTS: usize = 7;
const CLIENTS: usize = 35;
/// Keys and values (RF-RPC 5.1).
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 32;
/// What the store itself takes for a GET: a bucket and a pair, neither of which is in the processor's cache (128 million
/// pairs), so two accesses to memory of some 100 ns. Assumed, before any prediction. A batch's are asked for before its first GET, as this
/// project's own store does it; its two passes take 49 and 92 instructions a GET (counted, keys of 16 bytes).
pub(super) const STORE: Lines = Lines { number: 2, latency: 100, asking: 70 };

/// Calls without a payload worth mentioning, on either system.
pub(super) fn calls(response: ResponseHalf, threads: u16, service: Nanos, effort: Effort) -> Load {
    let mut load = Load::bench(CLIENTS, 1, Network::Modelled("rf-rpc".to_owned()));
    let plan = Plan::new(RequestHalf::Write, response).completion(CompletionMode::Busy, CompletionMode::Busy);
    let function = Function::new(plan, Sizes::Fixed(1), Sizes::Fixed(1));
    load.functions = vec![Function { service: Times::Fixed(service), ..function }];
    load.client_hosts = CLIENT_HOSTS;
    load.workers = threads;
    // Each thread owns a part of the keys, so every client is connected to every thread (RF-RPC 5.5: N x M queue pairs).
    load.connections = Connections::EachWorker;
    load.extent = measured(effort, 4_000_000);
    load.limit = 10_000_000_000;
    // As in the paper: R and F by enumeration, and fetched over and over.
    (load.fetch_choice, load.first_read) = (FetchChoice::Enumerated, FirstRead::AtOnce);
    load
}

/// GETs of the store, with so much process time beside.
pub(super) fn gets(response: ResponseHalf, threads: u16, process_time: Nanos, effort: Effort) -> Load {
    let mut load = calls(response, threads, STORE.one_by_one() + process_time, effort);
    for function in &mut load.functions {
        function.lines = STORE;
        (function.requests, function.results) = (Sizes::Fixed(KEY_BYTES), Sizes::Fixed(VALUE_BYTES));
    }
    load
}

/// When calls of so many microseconds count where a client has to find its way first: the longer they take the fewer there are to find it by,
/// and the more chance counts for.
pub(super) fn once_found(process_us: u32, effort: Effort) -> Extent {
    let warm_up = 25_000_000 + 7_500_000 * Nanos::from(process_us.min(10));
    let measured = match effort {
        Effort::Full => 10_000_000,
        Effort::Quick => 5_000_000,
    };
    Extent::Time { warm_up, measured: measured + 1_000_000 * Nanos::from(process_us) }
}
