//! A path's connection to one node: a queue pair that posts one-sided operations, and its control connection.

use crate::error::ConnectError;
use crate::hello::{Hello, Offer, OfferedExtent};
use crate::node::{Known, Node};
use crate::posts::ROOM;
use dunlin_fabric::{
    CompletionQueueId, Fabric, Link, Nanos, QueuePairConfig, QueuePairId, RegionKey, ThreadDomain,
};
use dunlin_tier::NodeId;

/// The configuration of both ends of a path.
pub(crate) fn queue_pair_config(completions: CompletionQueueId) -> QueuePairConfig {
    let max_send = 2 * ROOM as u32;
    QueuePairConfig { max_send, max_receive: 1, ..QueuePairConfig::reliable(completions, completions) }
}

#[derive(Debug)]
pub(crate) struct Connection<F: Fabric> {
    pub(crate) link: F::Link,
    pub(crate) queue_pair: QueuePairId,
    extents: Vec<OfferedExtent>,
}

impl<F: Fabric> Connection<F> {
    /// Connects path `path` to a node. Blocks until `until` at most. When it returns, nothing that an earlier
    /// connection of this path to that node posted is in flight any more.
    pub(crate) fn open(
        node: &Node<F>,
        domain: &mut F::Domain,
        completions: CompletionQueueId,
        (path, to): (u16, NodeId),
        until: Nanos,
    ) -> Result<(Self, Known), ConnectError> {
        let current = node.roster.get();
        let peer = current.peer(to).ok_or(ConnectError::Offer("no such node"))?;
        // The memory of this node is there for it, also while others take it for dead.
        if let Some(epoch) = node.roster.dead_in(to).filter(|_| to != node.me) {
            return Err(ConnectError::Dead(epoch));
        }
        let incarnation = current.own.as_ref().map(|own| own.incarnation).unwrap_or_default();
        let link = node.fabric.dial(&peer.memory, until)?;
        let (token, life) = (node.config.token.clone(), node.incarnation);
        let hello = Hello { node: node.me, path, token, incarnation, life };
        link.send(&hello.encode())?;
        let offer = Offer::parse(&link.receive(until)?).map_err(ConnectError::Offer)?;
        let queue_pair = domain.create_queue_pair(&queue_pair_config(completions))?;
        let mut connect = || -> Result<(), ConnectError> {
            let endpoint = domain.endpoint(queue_pair, &link)?;
            link.send(&endpoint.0)?;
            domain.connect(queue_pair, &link, &offer.endpoint)?;
            // The other end is connected, too.
            link.receive(until)?;
            Ok(())
        };
        if let Err(error) = connect() {
            let _ = domain.destroy_queue_pair(queue_pair);
            link.close();
            return Err(error);
        }
        let known = Known { incarnation: offer.incarnation, fences: offer.fences };
        Ok((Connection { link, queue_pair, extents: offer.extents }, known))
    }

    /// Returns the key and the offset of a range of bytes of the other node.
    #[inline]
    pub(crate) fn place(&self, extent: u16, offset: u64, length: u32) -> Option<(RegionKey, u64)> {
        let OfferedExtent { key, start, length: whole } = *self.extents.get(usize::from(extent))?;
        let exists = offset <= whole && u64::from(length) <= whole - offset;
        // A start that makes no sense is that of a node that does not keep to the protocol.
        start.checked_add(offset).filter(|_| exists).map(|offset| (key, offset))
    }

    /// Destroys the queue pair: nothing more is posted.
    pub(crate) fn close(self, domain: &mut F::Domain) {
        let _ = domain.destroy_queue_pair(self.queue_pair);
        self.link.close();
    }
}
