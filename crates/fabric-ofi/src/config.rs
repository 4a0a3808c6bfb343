//! Settings of a fabric.

use crate::features::{EndpointKind, Without};
use dunlin_fabric::Nanos;

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfiConfig {
    /// The limit for inline messages, in bytes. Each place of a send queue has this much memory.
    pub max_inline: u32,
    /// The maximum number of concurrent grants by one side of a link.
    pub max_grants_per_link: usize,
    /// The time, in nanoseconds, that a new connection has to send its greeting.
    pub greeting_patience: Nanos,
    /// The time, in nanoseconds, that the two ends of a queue pair have to meet once one has connected; then
    /// it breaks.
    pub connect_patience: Nanos,
    /// The kind of endpoints. `None`: connected ones if the provider has them.
    pub endpoints: Option<EndpointKind>,
    /// Features of the provider that are not used. For tests.
    pub without: Without,
}

impl Default for OfiConfig {
    fn default() -> Self {
        OfiConfig {
            max_inline: 256,
            max_grants_per_link: 1024,
            greeting_patience: 5_000_000_000,
            connect_patience: 10_000_000_000,
            endpoints: None,
            without: Without::default(),
        }
    }
}
