//! What a fabric can do, as data. The engine asks it; nothing downcasts to a back-end (UCX's idea).

use crate::work::Transport;

/// A set of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportSet(u8);

impl TransportSet {
    /// No transport.
    pub const NONE: TransportSet = TransportSet(0);
    /// RC, UC and UD.
    pub const ALL: TransportSet = TransportSet(0b111);

    /// The set with one more.
    pub const fn with(self, transport: Transport) -> Self {
        TransportSet(self.0 | 1 << transport as u8)
    }

    /// Whether the transport is in the set.
    pub const fn contains(self, transport: Transport) -> bool {
        self.0 & 1 << transport as u8 != 0
    }
}

/// What a fabric can do. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The fabric's name: `shm`, `rdma`, `iwarp`, `ofi`, `sim`.
    pub name: &'static str,
    /// The transports of which queue pairs can be made.
    pub transports: TransportSet,
    /// The longest [`Data::Inline`](crate::Data::Inline) of one work request, all parts together.
    pub max_inline: u32,
    /// The longest message of SEND, WRITE or READ on connected transports.
    pub max_message: u32,
    /// The longest datagram.
    pub max_datagram: u32,
    /// Bytes at the start of a datagram's receive buffer that are not payload (40 on InfiniBand: the GRH).
    pub datagram_headroom: u32,
    /// FETCH_ADD and CMP_SWAP exist.
    pub atomics: bool,
    /// SEND and WRITE can carry immediate data.
    pub immediate: bool,
    /// A reliable connection's completions tell what became of a request at its target: one that is refused there completes
    /// with the reason, and a SEND waits for a RECV. Without (iWARP) a request has completed when the transport has it, and
    /// what the target refuses, a SEND without a RECV among it, ends the connection: both queue pairs break.
    pub acknowledged: bool,
    /// The bytes of one WRITE become visible in increasing address order, at least as far as its last 8 bytes
    /// (at an 8-byte boundary) are never seen before all others. Memory polling needs this.
    pub in_order_write: bool,
    /// A READ that begins with a cache line shows nothing that is older than that line's last 8 bytes: who stores those 8 bytes last is seen
    /// with all or not at all. NICs read whole lines, one after the other; who copies by software in increasing order (Soft-RoCE, a
    /// socket) may be overtaken within one. Without it what was fetched is fetched once more when it is seen to be there.
    pub whole_line_reads: bool,
    /// Shared receive queues exist.
    pub shared_receive_queue: bool,
    /// Completion queues can be slept on.
    pub events: bool,
    /// One-sided operations are done by the initiator's own processor, in memory that both sides map. Nothing is saved by
    /// having a completion tell of a message then: that costs as much as the message; and an answer is there long before a
    /// thread that sleeps would be awake.
    pub initiator_copies: bool,
    /// Two-sided operations complete only while the target polls. One-sided ones never need the target, or (libfabric) a thread
    /// of its process that the fabric itself keeps for them.
    pub target_progress: bool,
    /// The most queue pairs that one domain holds.
    pub max_queue_pairs: u32,
    /// The deepest send or receive queue.
    pub max_queue_depth: u32,
}

impl Capabilities {
    /// A fabric that can do everything that a NIC can: to ask whether something excludes itself wherever it runs.
    pub const EVERYTHING: Capabilities = Capabilities {
        name: "that can do everything",
        transports: TransportSet::ALL,
        max_inline: 256,
        max_message: 1 << 30,
        max_datagram: 4096,
        datagram_headroom: 0,
        atomics: true,
        immediate: true,
        acknowledged: true,
        in_order_write: true,
        whole_line_reads: true,
        shared_receive_queue: true,
        events: true,
        initiator_copies: false,
        target_progress: false,
        max_queue_pairs: 1 << 16,
        max_queue_depth: 1 << 16,
    };

    /// What iWARP can do, on a NIC that places the bytes of a WRITE in order: reliable connections, without immediate data
    /// or atomics, whose completions do not tell what became of a request.
    pub const IWARP: Capabilities = Capabilities {
        name: "iwarp",
        transports: TransportSet::NONE.with(Transport::ReliableConnection),
        atomics: false,
        immediate: false,
        acknowledged: false,
        ..Capabilities::EVERYTHING
    };

    /// What libfabric's provider `tcp` can do: reliable connections without atomics, whose completions do not tell what became
    /// of a request, and whose WRITEs land in any order. One-sided operations are done by whichever thread of the target makes
    /// progress; the fabric has one of its own for when no other does.
    pub const OFI: Capabilities = Capabilities {
        name: "ofi",
        transports: TransportSet::NONE.with(Transport::ReliableConnection),
        max_inline: 256,
        max_message: 64 << 20,
        max_datagram: 0,
        atomics: false,
        acknowledged: false,
        in_order_write: false,
        whole_line_reads: false,
        target_progress: true,
        max_queue_depth: 4096,
        ..Capabilities::EVERYTHING
    };
}
