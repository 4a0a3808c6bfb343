//! The capabilities of a fabric, as data. The engine reads them and never downcasts to a back-end (as in
//! UCX).

use crate::work::Transport;

/// A set of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportSet(u8);

impl TransportSet {
    /// The empty set.
    pub const NONE: TransportSet = TransportSet(0);
    /// RC, UC and UD.
    pub const ALL: TransportSet = TransportSet(0b111);

    /// Returns the set with `transport` added.
    pub const fn with(self, transport: Transport) -> Self {
        TransportSet(self.0 | 1 << transport as u8)
    }

    /// Returns whether `transport` is in the set.
    pub const fn contains(self, transport: Transport) -> bool {
        self.0 & 1 << transport as u8 != 0
    }
}

/// The operations with which FETCH_ADD and CMP_SWAP are atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomics {
    /// The fabric has no atomics.
    #[default]
    None,
    /// Atomics of one device are atomic with each other.
    Device,
    /// They are atomic with those of the target's processors, too: [`Region::fetch_add`](crate::Region::fetch_add).
    Processors,
}

impl Atomics {
    /// Returns whether there are any.
    pub const fn exist(self) -> bool {
        !matches!(self, Atomics::None)
    }

    /// Returns those of a device, if it has any.
    pub const fn of_device(exist: bool) -> Atomics {
        if exist { Atomics::Device } else { Atomics::None }
    }
}

/// The capabilities of a fabric. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The fabric's name: `shm`, `rdma`, `iwarp`, `ofi`, `sim`.
    pub name: &'static str,
    /// The transports that queue pairs can use.
    pub transports: TransportSet,
    /// The limit for [`Data::Inline`](crate::Data::Inline) of one work request, all parts together.
    pub max_inline: u32,
    /// The limit for one SEND, WRITE or READ on connected transports.
    pub max_message: u32,
    /// The limit for one datagram.
    pub max_datagram: u32,
    /// Bytes at the start of a datagram's receive buffer that precede the payload (40 on InfiniBand: the
    /// GRH).
    pub datagram_headroom: u32,
    /// FETCH_ADD and CMP_SWAP.
    pub atomics: Atomics,
    /// Whether SEND and WRITE can carry immediate data.
    pub immediate: bool,
    /// Whether completions on a reliable connection report the outcome at the target.
    ///
    /// If set, a request that the target refuses completes with the reason, and a SEND waits for a RECV. If
    /// not set (iWARP), a request completes when the transport has accepted it. A request that the target
    /// then refuses, including a SEND without a RECV, ends the connection: both queue pairs go into the error
    /// state.
    pub acknowledged: bool,
    /// Whether the bytes of one WRITE become visible in increasing address order, at least so far that its
    /// last 8 bytes (at an 8-byte boundary) are never visible before all others. Memory polling needs this.
    pub in_order_write: bool,
    /// Whether a READ returns each cache line at least as new as the line's last 8 bytes.
    ///
    /// If set, a writer that stores those 8 bytes last is seen with the whole line or not at all. NICs read
    /// whole lines, one after the other. Software that copies in increasing order (Soft-RoCE, a socket) can
    /// be overtaken within a line. If not set, the reader fetches the data a second time after it has seen
    /// the last 8 bytes.
    pub cache_line_atomic_reads: bool,
    /// Whether shared receive queues exist.
    pub shared_receive_queue: bool,
    /// Whether a thread can sleep until a completion queue has an entry.
    pub events: bool,
    /// Whether a thread can sleep until a peer's plain WRITE lands in memory that it watches
    /// ([`WaitMode::Write`](crate::WaitMode::Write)).
    ///
    /// A NIC places a plain WRITE without an event, so only fabrics whose initiator can wake the target's
    /// thread have this.
    pub write_wakes: bool,
    /// Whether an event of a domain can wake the thread of another domain, of any fabric of the process
    /// ([`ThreadDomain::arm_other`](crate::ThreadDomain::arm_other)).
    pub wakes_others: bool,
    /// Whether the initiator's own processor executes one-sided operations, in memory that both sides map.
    ///
    /// A completion then costs as much as the message that it announces, so it saves nothing. An answer also
    /// arrives long before a sleeping thread would be awake.
    pub initiator_copies: bool,
    /// Whether two-sided operations complete only while the target polls. One-sided operations need at most a
    /// thread of the target's process that the fabric itself runs (libfabric).
    pub target_progress: bool,
    /// Whether the fabric registers memory that another fabric made ([`Fabric::adopt`](crate::Fabric::adopt)).
    pub adopts: bool,
    /// The maximum number of queue pairs in one domain.
    pub max_queue_pairs: u32,
    /// The maximum depth of a send or receive queue.
    pub max_queue_depth: u32,
}

impl Capabilities {
    /// The capabilities of an RNIC without limitations. Used to test whether a setting is unusable on every
    /// network. Plain WRITEs wake no sleeper, since no NIC does that.
    pub const EVERYTHING: Capabilities = Capabilities {
        name: "that can do everything",
        transports: TransportSet::ALL,
        max_inline: 256,
        max_message: 1 << 30,
        max_datagram: 4096,
        datagram_headroom: 0,
        atomics: Atomics::Device,
        immediate: true,
        acknowledged: true,
        in_order_write: true,
        cache_line_atomic_reads: true,
        shared_receive_queue: true,
        events: true,
        write_wakes: false,
        wakes_others: true,
        initiator_copies: false,
        target_progress: false,
        adopts: true,
        max_queue_pairs: 1 << 16,
        max_queue_depth: 1 << 16,
    };

    /// iWARP on a NIC that places the bytes of a WRITE in order: reliable connections, no immediate data, no
    /// atomics, and completions that do not report the outcome at the target.
    pub const IWARP: Capabilities = Capabilities {
        name: "iwarp",
        transports: TransportSet::NONE.with(Transport::ReliableConnection),
        atomics: Atomics::None,
        immediate: false,
        acknowledged: false,
        ..Capabilities::EVERYTHING
    };

    /// libfabric's provider `tcp`: reliable connections, no atomics, completions that do not report the
    /// outcome at the target, and WRITEs that land in any order.
    ///
    /// One-sided operations are executed by whichever thread of the target makes progress. The fabric runs a
    /// thread for the times when no other thread does.
    pub const OFI: Capabilities = Capabilities {
        name: "ofi",
        transports: TransportSet::NONE.with(Transport::ReliableConnection),
        max_inline: 256,
        max_message: 64 << 20,
        max_datagram: 0,
        atomics: Atomics::None,
        acknowledged: false,
        in_order_write: false,
        cache_line_atomic_reads: false,
        target_progress: true,
        wakes_others: false,
        max_queue_depth: 4096,
        ..Capabilities::EVERYTHING
    };
}
