//! What can be set about a run.

use dunlin_fabric::{Capabilities, Nanos, TransportSet};

/// The numbers of a run. All times are virtual nanoseconds. None of them is calibrated to any hardware: they
/// are there to make things happen in different orders.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time at which the run starts.
    pub start: Nanos,
    /// The time at which the run is given up.
    pub limit: Nanos,
    /// How far a task may work ahead between two places where it can block or be pre-empted.
    pub run_ahead: Nanos,
    /// Bytes of stack per task, touched lazily.
    pub stack: usize,
    /// The shortest way through the network.
    pub latency: Nanos,
    /// By chance up to so much more.
    pub jitter: Nanos,
    /// The most by which a WRITE's pieces lie apart in becoming visible.
    pub landing: Nanos,
    /// One in so many waits ends for no reason; 0 for never.
    pub spurious: u64,
    /// One in so many checkpoints pre-empts the task; 0 for never.
    pub preemption: u64,
    /// One in so many messages of unreliable transports is lost; 0 for never.
    pub loss: u64,
    /// What the fabric says it can do, and then does.
    pub capabilities: Capabilities,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            start: 1_000_000_000,
            limit: 3_600_000_000_000,
            run_ahead: 100_000_000,
            stack: 1 << 20,
            latency: 600,
            jitter: 400,
            landing: 300,
            spurious: 16,
            preemption: 8,
            loss: 0,
            capabilities: Capabilities {
                name: "sim",
                transports: TransportSet::ALL,
                max_inline: 220,
                max_message: 1 << 26,
                max_datagram: 4096,
                datagram_headroom: 40,
                atomics: true,
                immediate: true,
                in_order_write: true,
                shared_receive_queue: true,
                events: true,
                target_progress: false,
                max_queue_pairs: 1 << 16,
                max_queue_depth: 1 << 14,
            },
        }
    }
}
