//! Work requests and the handles they name. A handle is a number that one domain gave out; a wrong or stale
//! one is an error, never a pointer.

use crate::arena::Buffer;
use crate::memory::Memory;

/// Names a region to the peer that it was granted to: an rkey on verbs, (slot, generation) of one link on
/// shared memory. Not a secret, and not a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionKey(pub u64);

/// A range of a peer's granted memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The region.
    pub key: RegionKey,
    /// The offset in the region.
    pub offset: u64,
    /// The length.
    pub length: u32,
}

/// The caller's name for a work request, given back in its completion: kind, lane, slot, generation; by
/// convention of the engine never a pointer, since a stray completion must be harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}
handle!(/** A completion queue of a domain. */ CompletionQueueId);
handle!(/** A queue pair of a domain. Numbers are not used again within a domain's life before 2^16 others. */ QueuePairId);
handle!(/** A shared receive queue of a domain. */ SharedReceiveQueueId);
handle!(/** An address handle of a domain: where a datagram goes. */ AddressHandleId);

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Transport {
    /// RC: acknowledged, in order; SEND, WRITE, READ, atomics.
    ReliableConnection = 0,
    /// UC: in order, may lose messages; SEND and WRITE.
    UnreliableConnection = 1,
    /// UD: datagrams to any address; SEND.
    UnreliableDatagram = 2,
}

/// The state of a queue pair, as far as a user can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Made, can take RECVs, not connected.
    Initialised,
    /// Connected (RTS); for a datagram queue pair: ready.
    Ready,
    /// Broken: everything posted is flushed.
    Error,
}

/// How often a SEND is tried against a receiver without a RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RnrRetry {
    /// For ever (verbs' 7): back-pressure.
    Forever,
    /// So many times, one RNR timer apart.
    Count(u8),
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig {
    /// The transport.
    pub transport: Transport,
    /// Where completions of sends, WRITEs, READs and atomics go.
    pub send_completions: CompletionQueueId,
    /// Where completions of RECVs go.
    pub receive_completions: CompletionQueueId,
    /// Takes RECVs from here instead of from a queue of its own.
    pub shared_receive: Option<SharedReceiveQueueId>,
    /// The most work requests in flight in the send queue.
    pub max_send: u32,
    /// The most RECVs posted; 0 with a shared receive queue.
    pub max_receive: u32,
    /// What a sender does when the receiver has no RECV.
    pub rnr_retry: RnrRetry,
    /// The time between two such tries, in nanoseconds.
    pub rnr_timer: u64,
    /// A bound, in bytes, for messages on their way to this queue pair that no RECV has taken yet. Back-ends
    /// whose device buffers by itself ignore it.
    pub inbound_bytes: u32,
}

impl QueuePairConfig {
    /// RC with usual depths: 128 sends, 128 RECVs, retry for ever, 16 KiB inbound.
    pub fn reliable(send_completions: CompletionQueueId, receive_completions: CompletionQueueId) -> Self {
        QueuePairConfig {
            transport: Transport::ReliableConnection,
            send_completions,
            receive_completions,
            shared_receive: None,
            max_send: 128,
            max_receive: 128,
            rnr_retry: RnrRetry::Forever,
            rnr_timer: 1_000_000,
            inbound_bytes: 16 * 1024,
        }
    }
}

/// A queue pair's address, opaque: goes to the peer over the control connection. At most 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub Vec<u8>);

/// Up to four registered buffers sent as one message.
#[derive(Debug)]
pub struct Gather<M: Memory> {
    parts: [Option<Buffer<M>>; 4],
    used: usize,
}

impl<M: Memory> Default for Gather<M> {
    fn default() -> Self {
        Gather { parts: [None, None, None, None], used: 0 }
    }
}

impl<M: Memory> Gather<M> {
    /// Adds a buffer; gives it back when there are four already.
    pub fn push(&mut self, buffer: Buffer<M>) -> Result<(), Buffer<M>> {
        match self.parts.get_mut(self.used) {
            Some(place) => {
                *place = Some(buffer);
                self.used += 1;
                Ok(())
            }
            None => Err(buffer),
        }
    }

    /// The parts in order.
    pub fn iter(&self) -> impl Iterator<Item = &Buffer<M>> {
        self.parts.iter().flatten()
    }
}

/// The local side of an outgoing message.
#[derive(Debug)]
pub enum Data<'a, M: Memory> {
    /// Copied when posted: any memory, up to `max_inline` in all; the parts form one message.
    Inline(&'a [&'a [u8]]),
    /// A registered buffer, owned by the queue pair until the completion (of it or of a later signaled
    /// request) shows that it is done; then it returns to its arena.
    Buffer(Buffer<M>),
    /// Several registered buffers.
    Gather(Gather<M>),
}

impl<M: Memory> Data<'_, M> {
    /// The bytes of the message.
    pub fn length(&self) -> u64 {
        match self {
            Data::Inline(parts) => parts.iter().map(|p| p.len() as u64).sum(),
            Data::Buffer(buffer) => buffer.len() as u64,
            Data::Gather(gather) => gather.iter().map(|b| b.len() as u64).sum(),
        }
    }
}

/// What to do.
#[derive(Debug)]
pub enum Operation<'a, M: Memory> {
    /// SEND, or SEND_WITH_IMM; `to` is needed on datagram queue pairs and only there.
    Send {
        /// The message.
        data: Data<'a, M>,
        /// Immediate data.
        immediate: Option<u32>,
        /// The receiver of a datagram.
        to: Option<AddressHandleId>,
    },
    /// WRITE, or WRITE_WITH_IMM.
    Write {
        /// The bytes.
        data: Data<'a, M>,
        /// The region at the target.
        key: RegionKey,
        /// The offset in it.
        offset: u64,
        /// Immediate data: consumes a RECV at the target.
        immediate: Option<u32>,
    },
    /// READ into the first `from.length` bytes of `into`, which comes back with the completion (READs are
    /// always worth a completion, so they ignore `signaled`).
    Read {
        /// The source.
        from: RemoteSlice,
        /// The destination.
        into: Buffer<M>,
    },
    /// FETCH_ADD on 8 aligned bytes.
    FetchAdd {
        /// The region at the target.
        key: RegionKey,
        /// The offset in it, a multiple of 8.
        offset: u64,
        /// What to add.
        add: u64,
    },
    /// CMP_SWAP on 8 aligned bytes.
    CompareSwap {
        /// The region at the target.
        key: RegionKey,
        /// The offset in it, a multiple of 8.
        offset: u64,
        /// The value expected.
        expected: u64,
        /// The value stored if it was found.
        swap: u64,
    },
}

/// One work request for a send queue.
#[derive(Debug)]
pub struct WorkRequest<'a, M: Memory> {
    /// Comes back in the completion.
    pub id: WorkId,
    /// What to do.
    pub operation: Operation<'a, M>,
    /// Whether success makes a completion. At least one request in `max_send` must be signaled (or a READ or
    /// atomic), else the send queue fills for good, as on real hardware.
    pub signaled: bool,
}

/// A WRITE of inline data: what most work requests are.
#[derive(Clone, Copy, Debug)]
pub struct InlineWrite<'a> {
    /// Comes back in the completion.
    pub id: WorkId,
    /// The bytes; the parts form one message of at most `max_inline`.
    pub parts: &'a [&'a [u8]],
    /// The region at the target.
    pub key: RegionKey,
    /// The offset in it.
    pub offset: u64,
    /// Immediate data: consumes a RECV at the target.
    pub immediate: Option<u32>,
    /// As in [`WorkRequest`].
    pub signaled: bool,
    /// A hint: the caller will soon write so many bytes from this message's beginning on, and nobody reads there now.
    /// A back-end whose writes are the processor's own may ask for those lines ahead. 0 if not known.
    pub ahead: u32,
}

impl<'a, M: Memory> From<InlineWrite<'a>> for WorkRequest<'a, M> {
    fn from(write: InlineWrite<'a>) -> Self {
        let InlineWrite { id, parts, key, offset, immediate, signaled, ahead: _ } = write;
        let operation = Operation::Write { data: Data::Inline(parts), key, offset, immediate };
        WorkRequest { id, operation, signaled }
    }
}

/// An unsignaled WRITE of one whole line of inline data to a place that is aligned to 64 bytes: what most of those are.
#[derive(Clone, Copy, Debug)]
pub struct InlineLine<'a> {
    /// The region at the target.
    pub key: RegionKey,
    // Between the two, which are taken on together: one load of both would wait for the two stores just before it.
    /// As in [`WorkRequest`]; seen only if the line fails.
    pub id: WorkId,
    /// The offset in the region.
    pub offset: u64,
    /// The bytes. The last 8 become visible last.
    pub line: &'a [u8; 64],
    /// As in [`InlineWrite`].
    pub ahead: u32,
}

/// Where a RECV is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveTarget {
    /// To one queue pair.
    QueuePair(QueuePairId),
    /// To a shared receive queue.
    Shared(SharedReceiveQueueId),
}
