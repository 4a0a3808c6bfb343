//! The queue pairs with credits that a server grants the clients of a load.

use dunlin_fabric::{Nanos, nanos};
use dunlin_rpc::{QueuePairUse, ServerConfig};

/// The use of queue pairs with credits, for each client on average. Zeros without such queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Granted {
    /// Queue pairs that the server granted a client at the end of the measurement.
    pub queue_pairs: f64,
    /// Utilisation U of a client (FLOCK section 5.1) in an interval of the server's scheduling.
    pub utilisation: f64,
}

impl Granted {
    /// Returns the use between two looks that are `time` nanoseconds apart.
    pub(super) fn between(before: &[QueuePairUse], after: &[QueuePairUse], time: Nanos) -> Self {
        let clients = after.len().max(1) as f64;
        let intervals = time as f64 / nanos(ServerConfig::default().activity_interval).max(1) as f64;
        let sum = |uses: &[QueuePairUse]| uses.iter().map(|client| client.utilisation).sum::<u64>();
        let queue_pairs = after.iter().map(|client| client.granted).sum::<u64>() as f64 / clients;
        let utilisation = sum(after).saturating_sub(sum(before)) as f64 / clients / intervals.max(1.0);
        Granted { queue_pairs, utilisation }
    }
}
