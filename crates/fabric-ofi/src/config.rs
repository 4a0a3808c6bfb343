//! Settings of a fabric.

use crate::features::{EndpointKind, Without};
use dunlin_fabric::Nanos;

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfiConfig {
    /// The longest inline message, in bytes: each place of a send queue has so much memory of its own.
    pub max_inline: u32,
    /// The most regions one link's side may have granted at once.
    pub max_grants_per_link: usize,
    /// How long, in nanoseconds, who has connected to a listener may take for its greeting.
    pub greeting_patience: Nanos,
    /// How long, in nanoseconds, the two ends of a queue pair may take to meet once one has connected; then it breaks.
    pub connect_patience: Nanos,
    /// The kind of endpoints; connected ones where the provider has them, if it is not said.
    pub endpoints: Option<EndpointKind>,
    /// What of the provider is not to be used. For tests.
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
