//! Work requests and the handles that they name. A handle is a number that one domain issued. A wrong or
//! stale handle gives an error; it is never used as a pointer.

use crate::arena::Buffer;
use crate::error::PostError;
use crate::memory::Memory;
use crate::region_range::RegionRange;

/// Identifies a region to the peer that it was granted to: an rkey on verbs, (slot, generation) of one link
/// on shared memory. Neither a secret nor a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionKey(pub u64);

/// A range of a peer's granted memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The key of the region.
    pub key: RegionKey,
    /// The offset in the region.
    pub offset: u64,
    /// The length in bytes.
    pub length: u32,
}

/// The caller's name for a work request, returned in its completion. The engine encodes kind, lane, slot and
/// generation; never a pointer, since a stray completion must be harmless.
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

dunlin_numbered::numbered!(Transport: u8 { ReliableConnection, UnreliableConnection, UnreliableDatagram });

/// The state of a queue pair, as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Created and not connected; accepts RECVs.
    Initialised,
    /// Connected (RTS). A datagram queue pair is ready from its creation.
    Ready,
    /// Failed: all posted requests are flushed.
    Error,
}

/// The number of times a SEND is retried while the receiver has no RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RnrRetry {
    /// Without limit (7 in verbs): back-pressure.
    Forever,
    /// A fixed number of times, one RNR timer apart.
    Count(u8),
}

/// The parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig {
    /// The transport.
    pub transport: Transport,
    /// The queue for completions of SENDs, WRITEs, READs and atomics.
    pub send_completions: CompletionQueueId,
    /// The queue for completions of RECVs.
    pub receive_completions: CompletionQueueId,
    /// The shared receive queue that replaces the queue pair's own, if any.
    pub shared_receive: Option<SharedReceiveQueueId>,
    /// The maximum number of work requests in flight in the send queue.
    pub max_send: u32,
    /// The maximum number of posted RECVs; 0 with a shared receive queue.
    pub max_receive: u32,
    /// The number of retries while the receiver has no RECV.
    pub rnr_retry: RnrRetry,
    /// The time between two retries, in nanoseconds.
    pub rnr_timer: u64,
    /// A limit, in bytes, on messages sent to this queue pair that no RECV has taken yet. Back-ends whose
    /// device does the buffering ignore it.
    pub inbound_bytes: u32,
}

impl QueuePairConfig {
    /// Returns an RC configuration with usual depths: 128 sends, 128 RECVs, unlimited retries, 16 KiB
    /// inbound.
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

/// An opaque address of a queue pair, at most 256 bytes. The control connection carries it to the peer.
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
    /// Adds a buffer, or returns it if there are four already.
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

    /// Returns the parts in order.
    pub fn iter(&self) -> impl Iterator<Item = &Buffer<M>> {
        self.parts.iter().flatten()
    }
}

/// The local side of an outgoing message.
#[derive(Debug)]
pub enum Data<'a, M: Memory> {
    /// Bytes copied at posting from any memory, up to `max_inline` in total; the parts form one message.
    Inline(&'a [&'a [u8]]),
    /// A registered buffer. The queue pair owns it until its completion, or that of a later signaled request,
    /// shows that the request is done; then the buffer returns to its arena.
    Buffer(Buffer<M>),
    /// Several registered buffers.
    Gather(Gather<M>),
    /// A range of a region, which peers and other threads may change until the request is done: each byte that arrives
    /// is an old or a new one. The queue pair keeps the registration alive until the completion, or that of a later
    /// signaled request, shows that the request is done.
    Region(RegionRange<M>),
}

impl<M: Memory> Data<'_, M> {
    /// Returns the length of the message in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Data::Inline(parts) => parts.iter().map(|p| p.len() as u64).sum(),
            Data::Buffer(buffer) => buffer.len() as u64,
            Data::Gather(gather) => gather.iter().map(|b| b.len() as u64).sum(),
            Data::Region(range) => range.length() as u64,
        }
    }
}

/// The operation of a work request.
#[derive(Debug)]
pub enum Operation<'a, M: Memory> {
    /// SEND, or SEND_WITH_IMM. `to` is required on datagram queue pairs and forbidden on others.
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
        /// The data to write.
        data: Data<'a, M>,
        /// The region at the target.
        key: RegionKey,
        /// The offset in the region, in bytes.
        offset: u64,
        /// Immediate data, which consumes a RECV at the target.
        immediate: Option<u32>,
    },
    /// READ into the first `from.length` bytes of `into`, which the completion returns. A READ always makes a
    /// completion and ignores `signaled`.
    Read {
        /// The source.
        from: RemoteSlice,
        /// The destination.
        into: Buffer<M>,
    },
    /// READ into the first `from.length` bytes of a range of a region, which the queue pair keeps alive until the
    /// request is done. Peers and other threads may access the range meanwhile. The completion, which is always made,
    /// returns no buffer; its opcode is that of a READ. After an error the range holds old and new bytes.
    ReadInto {
        /// The source.
        from: RemoteSlice,
        /// The destination.
        into: RegionRange<M>,
    },
    /// FETCH_ADD on 8 aligned bytes.
    FetchAdd {
        /// The region at the target.
        key: RegionKey,
        /// The offset in the region, a multiple of 8.
        offset: u64,
        /// The addend.
        add: u64,
    },
    /// CMP_SWAP on 8 aligned bytes.
    CompareSwap {
        /// The region at the target.
        key: RegionKey,
        /// The offset in the region, a multiple of 8.
        offset: u64,
        /// The expected value.
        expected: u64,
        /// The value to store if the expected one was found.
        swap: u64,
    },
}

impl<M: Memory> Operation<'_, M> {
    /// Returns the range of a region that is the local side, if it is one.
    #[inline]
    pub fn local_region(&self) -> Option<&RegionRange<M>> {
        match self {
            Operation::Send { data: Data::Region(range), .. }
            | Operation::Write { data: Data::Region(range), .. }
            | Operation::ReadInto { into: range, .. } => Some(range),
            _ => None,
        }
    }
}

/// One work request for a send queue.
#[derive(Debug)]
pub struct WorkRequest<'a, M: Memory> {
    /// The id that the completion returns.
    pub id: WorkId,
    /// The operation.
    pub operation: Operation<'a, M>,
    /// Whether success makes a completion. At least one request in `max_send` must be signaled (or a READ or
    /// atomic); otherwise the send queue fills for good, as on real hardware.
    pub signaled: bool,
}

/// Checks whether a list can be posted as a whole to a queue pair in this state, with this room. For back-ends.
///
/// # Errors
/// Those of posting that concern no single request.
#[inline]
pub fn check_list<M: Memory>(
    requests: &[Option<WorkRequest<'_, M>>],
    state: Option<QueuePairState>,
    room: impl FnOnce() -> u32,
) -> Result<(), PostError> {
    match state {
        None => Err(PostError::NoSuch("queue pair")),
        Some(QueuePairState::Initialised) => Err(PostError::NotConnected),
        Some(QueuePairState::Error) => Err(PostError::QueuePairError),
        Some(QueuePairState::Ready) if (room() as usize) < requests.iter().flatten().count() => {
            Err(PostError::QueueFull)
        }
        Some(QueuePairState::Ready) => Ok(()),
    }
}

/// A WRITE of inline data, the most frequent work request.
#[derive(Clone, Copy, Debug)]
pub struct InlineWrite<'a> {
    /// The id that the completion returns.
    pub id: WorkId,
    /// The data; the parts form one message of at most `max_inline` bytes.
    pub parts: &'a [&'a [u8]],
    /// The region at the target.
    pub key: RegionKey,
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// Immediate data, which consumes a RECV at the target.
    pub immediate: Option<u32>,
    /// As in [`WorkRequest`].
    pub signaled: bool,
    /// A hint: the number of bytes that the caller will soon write, from this message's start on, in memory
    /// that no other thread reads now; 0 if not known. A back-end that copies with the processor may prefetch
    /// those lines.
    pub ahead: u32,
}

impl<'a, M: Memory> From<InlineWrite<'a>> for WorkRequest<'a, M> {
    fn from(write: InlineWrite<'a>) -> Self {
        let InlineWrite { id, parts, key, offset, immediate, signaled, ahead: _ } = write;
        let operation = Operation::Write { data: Data::Inline(parts), key, offset, immediate };
        WorkRequest { id, operation, signaled }
    }
}

/// An unsignaled inline WRITE of one cache line to an offset aligned to 64 bytes: the most frequent
/// [`InlineWrite`].
#[derive(Clone, Copy, Debug)]
pub struct InlineLine<'a> {
    /// The region at the target.
    pub key: RegionKey,
    // Placed between `key` and `offset`, which are copied on together: one load of both would wait for the
    // two stores just before it.
    /// As in [`WorkRequest`]; reported only if the WRITE fails.
    pub id: WorkId,
    /// The offset in the region, a multiple of 64.
    pub offset: u64,
    /// The data. The last 8 bytes become visible last.
    pub line: &'a [u8; 64],
    /// A hint: the caller will soon write as many lines behind this one as the fabric prefetches
    /// ([`Prefetch::written_lines`](crate::Prefetch::written_lines)), and no other thread reads them now.
    pub ahead: bool,
}

/// The queue for a RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveTarget {
    /// The receive queue of one queue pair.
    QueuePair(QueuePairId),
    /// A shared receive queue.
    Shared(SharedReceiveQueueId),
}
