//! RECVs and READs as both ends of a lane post them, and the depths of the queues that hold them.

use super::{MAX_MESSAGE, Violation, route};
use crate::plan::{Carrier, Notice};
use dunlin_fabric::{
    Buffer, Fabric, Operation, PostError, QueuePairConfig, QueuePairId, RegionKey, RemoteSlice, ThreadDomain,
    Transport, WorkRequest,
};
use dunlin_wire::Descriptor;

/// Posts a RECV, with its buffer at full length.
pub(crate) fn repost<F: Fabric>(
    domain: &mut F::Domain,
    queue_pair: QueuePairId,
    lane: u16,
    buffer: Option<Buffer<F::Memory>>,
) -> Result<(), Violation> {
    let buffer = buffer.map(|mut buffer| {
        let capacity = buffer.capacity();
        buffer.set_length(capacity);
        buffer
    });
    match domain.post_receive(
        dunlin_fabric::ReceiveTarget::QueuePair(queue_pair),
        route::receive(lane),
        buffer,
    ) {
        Ok(()) | Err(PostError::QueuePairError) => Ok(()),
        Err(_) => Err(Violation::Transfer("a RECV could not be posted")),
    }
}

/// Posts the READ of a large payload.
pub(crate) fn post_read<F: Fabric>(
    domain: &mut F::Domain,
    queue_pair: QueuePairId,
    id: dunlin_fabric::WorkId,
    descriptor: &Descriptor,
    into: Buffer<F::Memory>,
) -> Result<(), Violation> {
    let from = RemoteSlice {
        key: RegionKey(descriptor.key),
        offset: descriptor.offset,
        length: descriptor.length as u32,
    };
    let request = WorkRequest { id, operation: Operation::Read { from, into }, signaled: true };
    domain.post(queue_pair, request).map_err(|error| match error {
        PostError::QueuePairError => Violation::Broken,
        _ => Violation::Transfer("a READ could not be posted"),
    })
}

/// Returns the number of RECVs that a receiver posts: one for each message in flight, and some spare.
///
/// RECVs without buffers are cheap, so there is one more for each call: the message of a call may be followed
/// by a report that wakes the receiver. With buffers the spare ones take the reports, of which there are at
/// most four for each round of the ring. A sender that finds no RECV waits until one is posted.
pub(crate) fn receives(carrier: Carrier, window: u16) -> u32 {
    match carrier {
        Carrier::Receive => window as u32 + 8,
        // For head reports only.
        Carrier::Datagram => 8,
        Carrier::Ring(Notice::Polled)
        | Carrier::Hybrid(Notice::Polled)
        | Carrier::LossyRing
        | Carrier::Published { .. } => 0,
        Carrier::Ring(_) | Carrier::Hybrid(_) => 3 * window as u32 + 16,
    }
}

/// Returns the number of RECVs for the datagrams of a lane, by the same rule.
pub(crate) fn datagrams(window: u16) -> u32 {
    window as u32 + 8
}

/// Returns the configuration of the unreliable connection that accompanies a reliable one. It carries only
/// WRITEs.
pub(crate) fn unreliable(reliable: &QueuePairConfig) -> QueuePairConfig {
    QueuePairConfig {
        transport: Transport::UnreliableConnection,
        shared_receive: None,
        max_receive: 1,
        inbound_bytes: 4096,
        ..*reliable
    }
}

/// Returns the bytes that may wait for RECVs at the receiver: whole messages if they come by SEND.
pub(crate) fn inbound_bytes(carrier: Carrier) -> u32 {
    match carrier {
        Carrier::Receive => 4 * MAX_MESSAGE as u32,
        Carrier::Ring(Notice::Polled)
        | Carrier::Hybrid(Notice::Polled)
        | Carrier::LossyRing
        | Carrier::Datagram
        | Carrier::Published { .. } => 4096,
        Carrier::Ring(_) | Carrier::Hybrid(_) => 16 * 1024,
    }
}
