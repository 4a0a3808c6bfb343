//! What a client can be told.

use super::slots::MAX_WINDOW;
use crate::connect::backoff::BackoffConfig;
use crate::error::ConnectError;
use crate::plan::Plan;
use dunlin_fabric::Nanos;

/// Settings of a client, with defaults that fit most.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The plan of all calls.
    pub plan: Plan,
    /// Calls in flight for each worker, 1 to 1024. The server may grant fewer.
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
    /// Only this worker; all of them if not given.
    pub worker: Option<u16>,
    /// The service wanted; empty for whatever is there.
    pub service: String,
    /// Shown to the server to be let in.
    pub token: Vec<u8>,
    /// How long an adaptive wait spins before it sleeps, in nanoseconds.
    pub spin: Nanos,
    /// Back-off of reconnecting.
    pub backoff: BackoffConfig,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            plan: Plan::default(),
            window: 64,
            ring_bytes: 16 * 1024,
            timeout: 10_000_000_000,
            connect_timeout: 5_000_000_000,
            max_response: 64 << 20,
            large_memory: 256 << 20,
            worker: None,
            service: String::new(),
            token: Vec::new(),
            spin: 20_000,
            backoff: BackoffConfig::default(),
        }
    }
}

/// The sizes that a ring may have.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u32> = 16 * 1024..=1 << 20;

impl ClientConfig {
    /// The defaults with another plan.
    pub fn with_plan(plan: Plan) -> Self {
        ClientConfig { plan, ..ClientConfig::default() }
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
        Ok(())
    }
}
