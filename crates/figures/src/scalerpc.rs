//! The common parts of ScaleRPC's figures 8 to 12: the cluster of section 3.6.1, its clients, and the four systems of
//! table 2, all by Dunlin's engine.

use super::rf_rpc::plan_of;
use super::{Effort, Outcome, Outcomes, Point, measured};
use dunlin_fabric::Nanos;
use dunlin_rpc::{Lease, Plan, Sharing};
use dunlin_scenario::load::{Function, Grouping, Load, Network, Pace};
use dunlin_scenario::random_values::{Sizes, Times};

/// Client hosts of section 3.6.2.
pub(super) const HOSTS: usize = 11;
/// Threads of the server: those of section 2.2, since section 3.6 does not state them.
const WORKERS: u16 = 10;
/// Bytes of a request and of its answer.
pub(super) const BYTES: u32 = 32;
/// Bytes of a block of RawWrite and HERD (section 3.3).
const BLOCK: u32 = 4096;
/// Blocks of each of their clients: the power of two next to the 20 of figure 3(b). Section 3.6 states no number.
const BLOCKS: u32 = 16;
/// Measured time of a full run, in nanoseconds: six cycles of ten groups.
const MEASURED: Nanos = 6_000_000;

/// The choices that all figures share.
macro_rules! common_notes {
    ($own:literal) => {
        concat!(
            "32 bytes each way, a server with 10 threads (section 2.2; section 3.6 states no number), a core for each client (the paper's clients \
             are coroutines, which wait for no quantum). A batch is so many separate calls, posted one after the other; its latency is that from the first post to the last \
             answer. ScaleRPC: groups of 40, slices of 100 us, unless said. RawWrite and HERD: 16 blocks of 4 KiB for each client (figure 3(b) has 20), in one region for each thread. HERD and FaSST post each call with a doorbell of its own. ",
            $own
        )
    };
}
pub(super) use common_notes;

/// A system of table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    ScaleRpc,
    RawWrite,
    Herd,
    Fasst,
}

impl System {
    pub(super) const ALL: [System; 4] = [System::ScaleRpc, System::RawWrite, System::Herd, System::Fasst];

    pub(super) fn name(self) -> &'static str {
        match self {
            System::ScaleRpc => "ScaleRPC",
            System::RawWrite => "RawWrite",
            System::Herd => "HERD",
            System::Fasst => "FaSST",
        }
    }

    /// Returns the name of the series with this batch size.
    pub(super) fn series(self, batch: u16) -> String {
        format!("{}, batch {batch}", self.name())
    }

    pub(super) fn plan(self) -> Plan {
        let (protocol, lease) = match self {
            System::ScaleRpc => ("Server-reply", Lease::Slice),
            System::RawWrite => ("Server-reply", Lease::Forever),
            System::Herd => ("HERD", Lease::Forever),
            System::Fasst => ("FaSST", Lease::Forever),
        };
        plan_of(protocol).shared(Sharing::Dedicated, lease)
    }

    /// Returns the load of this number of clients on this number of hosts.
    pub(super) fn load(self, (clients, hosts): (u32, usize), batch: u16, effort: Effort) -> Load {
        let bench = Load::bench(clients as usize, 1, Network::Modelled("scalerpc".to_owned()));
        let is_pooled = matches!(self, System::RawWrite | System::Herd);
        Load {
            client_hosts: hosts,
            workers: WORKERS,
            pace: Pace::Posted { size: batch, think: Times::Fixed(0), spread: 0.0 },
            extent: measured(effort, MEASURED),
            functions: vec![Function::new(self.plan(), Sizes::Fixed(BYTES), Sizes::Fixed(BYTES))],
            groups: Grouping::PAPER,
            request_blocks: is_pooled.then_some(BLOCK),
            ring_bytes: if is_pooled { BLOCKS * BLOCK } else { bench.ring_bytes },
            ..bench
        }
    }
}

pub(super) fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

/// The median latency in microseconds.
pub(super) fn median(outcome: &Outcome) -> f64 {
    outcome.quantiles_us[1]
}

/// The largest latency in microseconds.
pub(super) fn largest(outcome: &Outcome) -> f64 {
    outcome.max_us
}

/// Returns the point that compares the values of a series at two positions.
pub(super) fn over_own(
    outcomes: &Outcomes,
    title: &str,
    series: &str,
    (x, base): (u32, u32),
    said: super::flock::Said,
) -> Option<Point> {
    let predicted = outcomes.get(series, x, mops)? / outcomes.get(series, base, mops)?;
    Some(Point { series: title.to_owned(), x, unit: "ratio", predicted, said: Some(said) })
}
