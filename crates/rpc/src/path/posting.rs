//! RECVs and READs as both ends of a lane post them, and the depths of the queues that hold them.

use super::half::Facts;
use super::staging::AT_ONCE;
use super::{Violation, route};
use dunlin_fabric::{
    Buffer, Capabilities, Fabric, Operation, PostError, QueuePairId, RegionKey, RemoteSlice, ThreadDomain,
    WorkRequest,
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

/// The least depth of a send queue.
pub(crate) const MAX_SEND: u32 = 256;

/// Returns the depth of the send queue of a lane whose own messages are of a half with these facts.
///
/// A READ that finds no room ends its lane, so there is room for all requests that may be posted between two polls for
/// completions: of each call a message, a READ of a large payload, and a message that releases it, behind those that
/// wait for the next signaled one.
pub(crate) fn send_depth(messages: Facts, window: u16, capabilities: &Capabilities) -> u32 {
    let of_message = 1 + u32::from(messages.is_announced());
    let depth = u32::from(window) * (2 * of_message + 1) + AT_ONCE;
    depth.max(MAX_SEND).min(capabilities.max_queue_depth)
}
