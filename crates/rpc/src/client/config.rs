//! What a client can be told.

use super::batching::Batching;
use super::slots::MAX_WINDOW;
use crate::connect::backoff::BackoffConfig;
use crate::error::ConnectError;
use crate::plan::{Carrier, CompletionMode, Plan};
use crate::tune::Tuners;
use crate::tune::shared::{FetchChoice, FetchTuner};
use crate::tune::table::FetchTable;
use crate::tune::wait::FirstRead;
use dunlin_fabric::{Capabilities, Fabric, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Settings of a client, with defaults that fit most.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The plan of all calls whose function has none of its own; [`Plan::usual`] of the fabric if not given. A plan that is
    /// given and cannot run on the fabric is refused, never replaced.
    pub plan: Option<Plan>,
    /// Plans of functions by their ids. Functions of different plans have lanes of their own, on the same connection, and
    /// do not wait for each other; at most 8 different plans, `plan` included. The client waits as the most impatient asks.
    pub functions: BTreeMap<u16, Plan>,
    /// Calls in flight for each worker and plan, 1 to 1024. The server may grant fewer.
    pub window: u16,
    /// Bytes of each ring, a power of two from 16 KiB to 1 MiB.
    pub ring_bytes: u32,
    /// The deadline of a call when none is given with it, in nanoseconds; 0 for none.
    pub timeout: Nanos,
    /// How long connecting may take, in nanoseconds.
    pub connect_timeout: Nanos,
    /// The largest result taken, in bytes.
    pub max_response: u64,
    /// The most registered memory for large requests, and as much for large results, for each worker.
    pub large_memory: u64,
    /// Where requests or answers may be lost and are sent again: how long a server may say nothing to that until the lane
    /// counts as broken, in nanoseconds. Its calls then end with [`Cause::Unanswered`](crate::Cause::Unanswered). A handler
    /// that keeps its worker busy for longer should run in the pool.
    pub silence: Nanos,
    /// Only this worker; all of them if not given.
    pub worker: Option<u16>,
    /// The service wanted; empty for whatever is there.
    pub service: String,
    /// Shown to the server to be let in.
    pub token: Vec<u8>,
    /// How long an adaptive wait spins before it sleeps, in nanoseconds.
    pub spin: Nanos,
    /// What the fabric does in a second, by which plans that fetch or write back choose. If not given, what is known of the fabric's
    /// device ([`Fabric::rates`]; `dunlin bench fetch-table` measures it), else what is typical of shared memory, or the rates of RF-RPC's
    /// cluster. Where they rule fetching out ([`FetchTable::rules_out_fetching`]) results are written back. [`Tuning::table`](crate::Tuning::table) tells which it is.
    pub fetch_table: Option<Arc<FetchTable>>,
    /// How such plans choose R and F.
    pub fetch_choice: FetchChoice,
    /// When such plans send the first READ for a result.
    pub first_read: FirstRead,
    /// When batches go out that were not flushed; if not given, when a message is full or the caller waits.
    pub batching: Option<Batching>,
    /// Back-off of reconnecting.
    pub backoff: BackoffConfig,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            plan: None,
            functions: BTreeMap::new(),
            window: 64,
            ring_bytes: 16 * 1024,
            timeout: 10_000_000_000,
            connect_timeout: 5_000_000_000,
            max_response: 64 << 20,
            large_memory: 256 << 20,
            silence: 10_000_000_000,
            worker: None,
            service: String::new(),
            token: Vec::new(),
            spin: 20_000,
            fetch_table: None,
            fetch_choice: FetchChoice::default(),
            first_read: FirstRead::default(),
            batching: None,
            backoff: BackoffConfig::default(),
        }
    }
}

/// The most different plans of one client.
pub(crate) const MAX_PLANS: usize = 8;

/// The sizes that a ring may have.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u32> = 16 * 1024..=1 << 20;

impl ClientConfig {
    /// The defaults with another plan.
    pub fn with_plan(plan: Plan) -> Self {
        ClientConfig { plan: Some(plan), ..ClientConfig::default() }
    }

    /// With a plan: the usual one of the fabric if none is given. What connects asks here first.
    pub(crate) fn settled(mut self, capabilities: &Capabilities) -> Self {
        self.plan.get_or_insert_with(|| Plan::usual(capabilities));
        self
    }

    fn usual(&self) -> Plan {
        self.plan.unwrap_or_default()
    }

    /// The different plans, the usual one first.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let mut plans = vec![self.usual()];
        for plan in self.functions.values() {
            if !plans.contains(plan) {
                plans.push(*plan);
            }
        }
        plans
    }

    /// What chooses for all connections of a client.
    pub(crate) fn tuners<F: Fabric>(&self, fabric: &F) -> Tuners {
        let plans = self.plans();
        let needed = plans.iter().any(|plan| matches!(plan.response.carrier(), Carrier::Hybrid(_)));
        let fetch = needed.then(|| {
            let table = FetchTable::chosen(self.fetch_table.as_ref(), fabric);
            Arc::new(FetchTuner::new(table, self.fetch_choice, self.first_read))
        });
        Tuners { fetch, batch: self.batching.as_ref().and_then(Batching::finds) }
    }

    /// How the client waits: as the most impatient of its plans has it.
    pub(crate) fn mode(&self) -> CompletionMode {
        let modes = self.plans().into_iter().map(|plan| plan.client);
        let impatience = |mode: &CompletionMode| match mode {
            CompletionMode::Busy => 2,
            CompletionMode::Adaptive => 1,
            CompletionMode::Event => 0,
        };
        modes.max_by_key(impatience).unwrap_or(self.usual().client)
    }

    /// Whether the plans can run on a fabric.
    pub(crate) fn check_plans(&self, capabilities: &Capabilities) -> Result<(), ConnectError> {
        let plans = self.plans();
        if plans.len() > MAX_PLANS {
            let (what, value) = ("functions", plans.len() as u64);
            return Err(ConnectError::Setting { what, value, must: "of at most 8 different plans" });
        }
        plans.iter().try_for_each(|plan| Ok(plan.check(capabilities)?))
    }

    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let out = |what, value: u64, must| Err(ConnectError::Setting { what, value, must });
        if self.window == 0 || self.window > MAX_WINDOW {
            return out("window", self.window.into(), "1 to 1024 calls");
        }
        if !RING_BYTES.contains(&self.ring_bytes) || !self.ring_bytes.is_power_of_two() {
            return out("ring_bytes", self.ring_bytes.into(), "a power of two from 16 KiB to 1 MiB");
        }
        if self.max_response == 0 || self.max_response > u32::MAX as u64 {
            return out("max_response", self.max_response, "1 byte to 4 GiB");
        }
        self.fetch_choice.check()?;
        self.batching.as_ref().map_or(Ok(()), Batching::check)
    }
}
