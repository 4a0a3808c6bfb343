//! Connects a queue pair to its other end: directly, or on iWARP through the connection manager.

use crate::RdmaLink;
use crate::config::RdmaConfig;
use crate::device::Device;
use crate::domain_waiter::DomainWaiter;
use crate::endpoint::QueuePairAddress;
use crate::manager::{Manager, Terms};
use crate::port::PortGid;
use crate::queue_pair::QueuePair;
use crate::status::{acknowledgement_timer, rnr_timer};
use crate::sys;
use dunlin_fabric::{CreateError, Host, Nanos, RealHost, RnrRetry, Transport, nanos};
use std::io;
use std::sync::Arc;

/// The time limit for connecting on iWARP, in nanoseconds.
const PATIENCE: Nanos = 5_000_000_000;

/// Returns this device's parameters for an iWARP connection of a queue pair.
pub(crate) fn terms(device: &Device, queue_pair: &QueuePair) -> Terms {
    Terms {
        number: queue_pair.number(),
        responder_resources: device.attributes.responder_resources,
        initiator_depth: device.attributes.read_atomic,
    }
}

/// Connects through the connection manager. The side that dialled requests the connection and waits until
/// both ends are ready, for a few seconds at most; the other side gets ready for the request. After an error
/// the peer is notified.
pub(crate) fn meet(
    (device, attention): (&Device, &Arc<DomainWaiter>),
    manager: &Manager,
    queue_pair: &mut QueuePair,
    link: &RdmaLink,
    remote: &QueuePairAddress,
) -> Result<(), CreateError> {
    remote.fits(&device.port.gid)?;
    if !link.shared().has_dialled() {
        queue_pair.early = Some(Vec::new());
        queue_pair.look_for_peer();
        return Ok(());
    }
    let mut terms = terms(device, queue_pair);
    terms.initiator_depth = terms.initiator_depth.min(remote.responder_resources);
    let until = RealHost.now().saturating_add(PATIENCE);
    let is_over =
        || queue_pair.bond.is_ready() || queue_pair.bond.is_orphan() || queue_pair.broken.is_raised();
    let met =
        manager.ask(terms, remote, queue_pair.name(), &queue_pair.broken, attention, until).and_then(|()| {
            link.shared().tell_ready(remote.name());
            // If it has ended instead, the next poll detects that, as it would if it ended a moment later.
            if attention.rest_unless(is_over, until) { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
        });
    met.map_err(|error| {
        queue_pair.meet(remote);
        queue_pair.fail();
        CreateError::system("an iWARP connection")(error)
    })
}

/// Moves the queue pair to the state ready-to-receive, then to ready-to-send.
pub(crate) fn join(
    device: &Device,
    config: &RdmaConfig,
    queue_pair: &mut QueuePair,
    from: &PortGid,
    remote: &QueuePairAddress,
) -> Result<(), CreateError> {
    let reliable = queue_pair.config.transport == Transport::ReliableConnection;
    let attributes = sys::QueuePairAttributes {
        path_mtu: device.port.mtu.min(remote.mtu.into()),
        receive_psn: remote.psn,
        send_psn: queue_pair.psn,
        destination: remote.number,
        address: remote.route(&device.port, from)?,
        max_read_atomic: device.attributes.read_atomic.min(remote.responder_resources),
        max_destination_read_atomic: device.attributes.responder_resources,
        min_rnr_timer: rnr_timer(queue_pair.config.rnr_timer),
        timeout: acknowledgement_timer(config.acknowledgement_timeout.map_or(250_000_000, nanos)),
        retry_count: config.retries.unwrap_or(7).min(7),
        rnr_retry: match queue_pair.config.rnr_retry {
            RnrRetry::Forever => 7,
            RnrRetry::Count(count) => count.min(6),
        },
        ..Default::default()
    };
    let mut receive =
        sys::SET_STATE | sys::SET_ADDRESS | sys::SET_PATH_MTU | sys::SET_DESTINATION | sys::SET_RECEIVE_PSN;
    let mut send = sys::SET_STATE | sys::SET_SEND_PSN;
    if reliable {
        receive |= sys::SET_MAX_DESTINATION_READ_ATOMIC | sys::SET_MIN_RNR_TIMER;
        send |= sys::SET_TIMEOUT | sys::SET_RETRY_COUNT | sys::SET_RNR_RETRY | sys::SET_MAX_READ_ATOMIC;
    }
    let Some(handle) = &mut queue_pair.handle else { return Err(CreateError::NoSuch("queue pair")) };
    let step = |state| sys::QueuePairAttributes { state, ..attributes };
    let failed = CreateError::system("a connection");
    if let Err(error) = handle.modify(step(sys::STATE_READY_TO_RECEIVE), receive) {
        return Err(failed(error));
    }
    match handle.modify(step(sys::STATE_READY_TO_SEND), send) {
        Ok(()) => Ok(()),
        // The queue pair receives since the previous step, and the peer, which was ready first, has broken
        // it. The result is the same as if that happened a moment later.
        Err(_) if handle.state().is_ok_and(|state| state == sys::STATE_ERROR) => {
            queue_pair.broken.raise();
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}
