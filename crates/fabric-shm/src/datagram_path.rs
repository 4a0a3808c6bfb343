//! Datagrams of a queue pair: sends into the rings of address handles, receives from its own rings.

use crate::completion_queue::CompletionQueue;
use crate::datagram::{AddressHandle, Hub};
use crate::execute::Source;
use crate::inbound::{FIRST, IMMEDIATE, LAST};
use crate::limits::MAX_DATAGRAM;
use crate::memory::ShmMemory;
use crate::queue_pair::QueuePair;
use crate::receive::{Drained, Receiver, SharedReceiveQueue};
use crate::send::check_data;
use dunlin_fabric::{AddressHandles, Operation, PostError, QueuePairState, Transport, WorkRequest};

impl QueuePair {
    /// Adds new rings, and releases empty rings whose peers are gone.
    pub(crate) fn update_datagrams(&mut self, hub: &Hub) {
        let before = self.datagrams.rings.len();
        self.datagrams.rings.retain(|r| r.link.is_alive() || r.consumer.has_record());
        let dropped = before - self.datagrams.rings.len();
        hub.collect(self.id, &mut self.datagrams.rings, dropped);
    }

    /// Receives from all rings; returns whether there may be more.
    pub(crate) fn drive_datagrams(
        &mut self,
        queues: &mut [CompletionQueue],
        shared: &mut [SharedReceiveQueue],
        budget: usize,
    ) -> bool {
        if self.state != QueuePairState::Ready {
            return false;
        }
        let queue = &mut queues[self.config.receive_completions.0 as usize];
        let mut more = false;
        for ring in &mut self.datagrams.rings {
            let receives = match self.config.shared_receive {
                None => &mut self.receives,
                Some(shared_receive) => &mut shared[shared_receive.0 as usize].receives,
            };
            let (drained, _) = Receiver {
                queue_pair: self.id,
                transport: Transport::UnreliableDatagram,
                consumer: &mut ring.consumer,
                partial: &mut ring.partial,
                receives,
                queue,
            }
            .drain(budget);
            ring.consumer.publish();
            match drained {
                Drained::More => more = true,
                Drained::Empty | Drained::NotReady(_) => {}
                // A sender that violates the protocol does not affect the others: only its own link ends.
                Drained::Broken => ring.link.end("it broke the rules of datagram rings"),
            }
        }
        more
    }

    /// Sends a datagram, or loses it.
    pub(crate) fn post_datagram(
        &mut self,
        queues: &mut [CompletionQueue],
        handles: &mut AddressHandles<AddressHandle>,
        request: &WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        if self.state == QueuePairState::Error {
            return Err(PostError::QueuePairError);
        }
        let Operation::Send { data, immediate, to } = &request.operation else {
            return Err(PostError::Transport("datagrams are sent with SEND only"));
        };
        let to = to.ok_or(PostError::Transport("a datagram needs an address handle"))?;
        let handle = handles.get_mut(self.id, to).ok_or(PostError::NoSuch("address handle"))?;
        check_data(data, MAX_DATAGRAM)?;
        if self.send.room() == 0 {
            return Err(PostError::QueueFull);
        }
        let length = data.length() as usize;
        let producer = &mut handle.producer;
        let fits = length <= producer.record_payload() && producer.find_room(length);
        if fits && handle.link.is_alive() {
            let flags = FIRST | LAST | if immediate.is_some() { IMMEDIATE } else { 0 };
            producer.push(flags, immediate.unwrap_or(0), &Source::of(data), 0, length);
            handle.doorbell.ring();
        }
        self.sent_datagram(queues, request.id, request.signaled);
        Ok(())
    }
}
