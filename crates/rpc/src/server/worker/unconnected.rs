//! The queue pair without a connection, which all lanes of a worker share.

use super::Worker;
use crate::error::ConnectError;
use crate::path::half::{Arrived, BesideEnd};
use crate::path::route::{self, Route};
use crate::path::{beside, unconnected};
use crate::server::lane::ServerLane;
use crate::server::open;
use dunlin_fabric::{
    Access, Arena, Completion, CompletionStatus, Endpoint, Fabric, QueuePairConfig, QueuePairId,
    ReceiveTarget, ThreadDomain, Transport,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Its send depth, for all lanes together.
const SENDS: u32 = 1024;
/// Its RECVs, for all lanes together. A message that finds none is lost.
const RECEIVES: u32 = 1024;

/// The queue pair, and the memory of its RECVs.
#[derive(Debug)]
pub(crate) struct Unconnected<F: Fabric> {
    pub(crate) queue_pair: QueuePairId,
    /// Buffers of its RECVs.
    arena: Arena<F::Memory>,
    receive_bytes: usize,
    /// Work requests that lanes have posted since the last signaled one.
    unsignaled: Arc<AtomicU32>,
}

impl<F: Fabric> Unconnected<F> {
    /// Returns the end of a lane with `waiting` messages at most, whose client is `peer`.
    pub(in crate::server) fn end<'a>(&self, peer: &'a Endpoint, waiting: u32) -> BesideEnd<'a> {
        BesideEnd {
            queue_pair: self.queue_pair,
            unsignaled: Arc::clone(&self.unsignaled),
            max_send: SENDS,
            peer,
            place: 0,
            waiting: waiting as usize,
        }
    }
}

impl<F: Fabric> Worker<F> {
    /// Creates the queue pair, when the first lane needs it.
    pub(in crate::server) fn prepare_unconnected(&mut self, fabric: &F) -> Result<(), ConnectError> {
        if self.unconnected.is_some() {
            return Ok(());
        }
        let capabilities = fabric.capabilities();
        let receives = RECEIVES.min(capabilities.max_queue_depth);
        let receive_bytes = unconnected::receive_bytes(capabilities);
        let memory = fabric.register(u64::from(receives) * receive_bytes as u64, Access::LOCAL)?;
        let arena = Arena::new(memory).map_err(|error| ConnectError::Handshake(error.to_string()))?;
        let config = QueuePairConfig {
            max_send: SENDS.min(capabilities.max_queue_depth),
            ..QueuePairConfig::reliable(self.send_completions, self.receive_completions)
        };
        let config = beside::config(&config, Transport::UnreliableDatagram, receives);
        let queue_pair = self.domain.create_queue_pair(&config)?;
        self.unconnected = Some(Unconnected { queue_pair, arena, receive_bytes, unsignaled: Arc::default() });
        self.refill_unconnected();
        Ok(())
    }

    /// Posts all RECVs whose buffers are free.
    pub(super) fn refill_unconnected(&mut self) {
        let Some(pair) = &self.unconnected else { return };
        for _ in 0..RECEIVES {
            let Ok(buffer) = pair.arena.reserve(pair.receive_bytes) else { return };
            let target = ReceiveTarget::QueuePair(pair.queue_pair);
            open::repost_shared::<F>(&mut self.domain, target, Some(buffer));
        }
    }

    /// Processes a completion of the queue pair.
    pub(super) fn on_unconnected(&mut self, completion: Completion<F::Memory>) {
        let queue_pair = completion.queue_pair;
        let route = route::parse(completion.id);
        if completion.status == CompletionStatus::Flushed {
            return self.unconnected_broke();
        }
        if let Some(Route::Outgoing { lane: index }) = route {
            // The lane may be gone or replaced by another one: the count is harmless.
            if let Some(Some(lane)) = self.lanes.get_mut(index as usize) {
                lane.tx.end.completed();
                if !lane.tx.end.awaits_completion() && std::mem::take(&mut lane.signaled) {
                    self.signaled -= 1;
                }
            }
            return;
        }
        let Some(buffer) = completion.buffer else { return };
        let index = completion.immediate.map(unconnected::lane_of);
        let lane = index.and_then(|index| self.lanes.get_mut(index as usize)?.as_mut());
        let refused = match lane {
            Some(lane) if completion.status == CompletionStatus::Success && !lane.is_blocked() => {
                let (bytes, immediate) = (completion.bytes, completion.immediate);
                lane.rx.deliver(Arrived { buffer, bytes, immediate })
            }
            // A lane that takes nothing now gets the message again later.
            _ => Err(buffer),
        };
        match (refused, index) {
            (Ok(()), Some(index)) => self.list(index),
            (Ok(()), None) => {}
            (Err(buffer), _) => {
                self.dispatcher.shared.stray_datagrams.fetch_add(1, Ordering::Relaxed);
                let target = ReceiveTarget::QueuePair(queue_pair);
                open::repost_shared::<F>(&mut self.domain, target, Some(buffer));
            }
        }
    }

    /// Closes all lanes that use the queue pair after it has failed; the clients connect again.
    #[cold]
    pub(super) fn unconnected_broke(&mut self) {
        let Some(pair) = self.unconnected.take() else { return };
        tracing::warn!(target: "dunlin::server", worker = self.number, "the queue pair for datagrams broke; its lanes are closed");
        for index in 0..self.lanes.len() {
            let uses = |lane: &ServerLane<F>| lane.plan.beside().unconnected.is_some();
            if self.lanes[index].as_ref().is_some_and(uses) {
                self.give_back(index as u16);
            }
        }
        let _ = self.domain.destroy_queue_pair(pair.queue_pair);
    }
}
