//! Settings of a fabric.

use crate::features::{EndpointKind, Without};
use std::time::Duration;

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfiConfig {
    /// The limit for inline messages, in bytes. Each place of a send queue has this much memory.
    /// Default: 256.
    pub max_inline: u32,
    /// The maximum number of concurrent grants by one side of a link. Default: 1024.
    pub max_grants_per_link: usize,
    /// The time that a new connection has to send its greeting. Default: 5 s.
    pub greeting_patience: Duration,
    /// The time that the two ends of a queue pair have to meet once one has connected; then it breaks.
    /// Default: 10 s.
    pub connect_patience: Duration,
    /// The kind of endpoints. `None`, the default: connected ones if the provider has them.
    pub endpoints: Option<EndpointKind>,
    /// Features of the provider that are not used. For tests. Default: none.
    pub without: Without,
}

impl Default for OfiConfig {
    fn default() -> Self {
        OfiConfig {
            max_inline: 256,
            max_grants_per_link: 1024,
            greeting_patience: Duration::from_secs(5),
            connect_patience: Duration::from_secs(10),
            endpoints: None,
            without: Without::default(),
        }
    }
}
