//! The queue pair for datagrams, which all lanes of a worker share.

use super::Worker;
use crate::path::half::datagram;
use crate::path::route::{self, Route};
use crate::server::lane::ServerLane;
use crate::server::open;
use dunlin_fabric::{Completion, CompletionStatus, Fabric, ReceiveTarget, ThreadDomain, Transport};
use std::sync::atomic::Ordering;

impl<F: Fabric> Worker<F> {
    /// Processes a completion of the datagram queue pair.
    pub(super) fn on_datagram(&mut self, completion: Completion<F::Memory>) {
        let queue_pair = completion.queue_pair;
        let route = route::parse(completion.id);
        if completion.status == CompletionStatus::Flushed {
            return self.datagrams_broke();
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
        let index = completion.immediate.map(datagram::lane_of);
        let lane = index.and_then(|index| self.lanes.get_mut(index as usize)?.as_mut());
        let refused = match lane {
            Some(lane) if completion.status == CompletionStatus::Success && !lane.is_blocked() => {
                lane.rx.deliver_datagram(buffer, completion.bytes, completion.immediate)
            }
            // A lane that takes nothing now gets the datagram again later.
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

    /// Closes all lanes that use datagrams after their queue pair has failed; the clients connect again.
    #[cold]
    pub(super) fn datagrams_broke(&mut self) {
        let Some(pair) = self.datagrams.take() else { return };
        tracing::warn!(target: "dunlin::server", worker = self.number, "the queue pair for datagrams broke; its lanes are closed");
        for index in 0..self.lanes.len() {
            let uses = |lane: &ServerLane<F>| lane.plan.uses(Transport::UnreliableDatagram);
            if self.lanes[index].as_ref().is_some_and(uses) {
                self.give_back(index as u16);
            }
        }
        let _ = self.domain.destroy_queue_pair(pair.queue_pair);
    }
}
