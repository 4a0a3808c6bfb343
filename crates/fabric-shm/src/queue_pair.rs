//! One queue pair: its parts, its state, and its failure. Sending is in `send`, receiving in `receive`.

use crate::completion_queue::{CompletionQueue, Ready};
use crate::datagram::Datagrams;
use crate::doorbell::PeerDoorbell;
use crate::execute::ImportCache;
use crate::frame::QueuePairName;
use crate::inbound::{Consumer, LINE, Producer};
use crate::link::{Closed, LinkShared};
use crate::receive::{Drained, Partial, Receive, Receiver, SharedReceiveQueue, received};
use crate::send_queue::SendQueue;
use dunlin_fabric::queue_pair_table::Identified;
use dunlin_fabric::{
    CompletionStatus, Opcode, QueuePairConfig, QueuePairId, QueuePairState, RegionKey, Transport, copy,
};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// This side's ring, granted to the peer.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) ring: RegionKey,
    pub(crate) consumer: Consumer,
    /// Whether the producer's wait for room was not checked since progress was last published.
    pub(crate) unasked: bool,
}

impl Inbound {
    /// After progress was published: wakes the producer if it waits for room.
    fn look_who_waits(&mut self, doorbell: &PeerDoorbell) {
        self.unasked = false;
        fence(Ordering::SeqCst);
        if self.consumer.is_room_wanted() {
            doorbell.ring_for_sender();
        }
    }
}

/// The other end of an RC or UC queue pair.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    pub(crate) theirs: QueuePairName,
    pub(crate) producer: Producer,
    pub(crate) doorbell: PeerDoorbell,
    pub(crate) link: Arc<LinkShared>,
}

/// One queue pair.
// The parts that a short WRITE touches follow each other, in two lines: with thousands of queue pairs each line of them
// has to be fetched.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QueuePair {
    pub(crate) connection: Option<Connection>,
    pub(crate) imports: ImportCache,
    pub(crate) id: QueuePairId,
    pub(crate) state: QueuePairState,
    /// Whether the queue pair is in the domain's list of those that wait for acknowledgements.
    pub(crate) listed: bool,
    pub(crate) send: SendQueue,
    pub(crate) config: QueuePairConfig,
    pub(crate) inbound: Option<Inbound>,
    pub(crate) partial: Option<Partial>,
    pub(crate) datagrams: Datagrams,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) closed: Arc<Closed>,
}

/// The first of the two lines that a short WRITE touches.
const HOT: usize = offset_of!(Connection, doorbell) / LINE * LINE;
const _: () = assert!(
    offset_of!(QueuePair, connection) == 0 && offset_of!(QueuePair, send) + SendQueue::HOT <= HOT + 2 * LINE,
    "a short WRITE touches more than two lines"
);

impl Identified for QueuePair {
    #[inline]
    fn id(&self) -> QueuePairId {
        self.id
    }
}

impl QueuePair {
    /// Prefetches the lines of a slot that a short WRITE touches.
    #[inline]
    pub(crate) fn warm(slot: &Option<QueuePair>) {
        let start: *const Option<QueuePair> = slot;
        for at in [HOT, HOT + LINE] {
            copy::prefetch_to_write(start.cast::<u8>().wrapping_add(at));
        }
    }

    pub(crate) fn new(id: QueuePairId, config: QueuePairConfig) -> Self {
        let state = match config.transport {
            Transport::UnreliableDatagram => QueuePairState::Ready,
            _ => QueuePairState::Initialised,
        };
        QueuePair {
            id,
            config,
            state,
            connection: None,
            imports: ImportCache::default(),
            listed: false,
            send: SendQueue::new(config.max_send),
            inbound: None,
            partial: None,
            datagrams: Datagrams::default(),
            receives: VecDeque::with_capacity(config.max_receive as usize),
            closed: Arc::default(),
        }
    }

    /// Receives from the ring and completes RECVs; returns whether there may be more.
    #[inline]
    pub(crate) fn drive_receive(
        &mut self,
        queues: &mut [CompletionQueue],
        shared: &mut [SharedReceiveQueue],
        budget: usize,
    ) -> bool {
        if self.state != QueuePairState::Ready {
            return false;
        }
        let (Some(inbound), Some(connection)) = (&mut self.inbound, &self.connection) else { return false };
        if !inbound.consumer.has_record() {
            if inbound.unasked {
                inbound.look_who_waits(&connection.doorbell);
            }
            return false;
        }
        let receives = match self.config.shared_receive {
            None => &mut self.receives,
            Some(shared_receive) => &mut shared[shared_receive.0 as usize].receives,
        };
        let (drained, acknowledge) = Receiver {
            queue_pair: self.id,
            transport: self.config.transport,
            consumer: &mut inbound.consumer,
            partial: &mut self.partial,
            receives,
            queue: &mut queues[self.config.receive_completions.0 as usize],
        }
        .drain(budget);
        let told = inbound.consumer.publish();
        if (told || matches!(drained, Drained::NotReady(true) | Drained::Broken))
            && connection.doorbell.may_sleep()
        {
            if acknowledge || drained == Drained::NotReady(true) {
                fence(Ordering::SeqCst);
                connection.doorbell.ring_for_sender();
            } else if drained == Drained::Broken || inbound.consumer.is_room_wanted() {
                inbound.look_who_waits(&connection.doorbell);
            } else {
                // The fence for a certain answer would wait for the peer's cache line and delay the message
                // that has just arrived. The next poll that finds the ring empty executes it.
                inbound.unasked = true;
            }
        }
        let unasked = inbound.unasked;
        if drained == Drained::Broken {
            self.fail(queues, CompletionStatus::Flushed);
        }
        unasked || matches!(drained, Drained::More | Drained::NotReady(_))
    }

    /// Puts the queue pair into the error state. All posted requests are flushed, the first one with the
    /// status `first`, and the peer's queue pair is notified.
    #[cold]
    pub(crate) fn fail(&mut self, queues: &mut [CompletionQueue], first: CompletionStatus) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        self.flush_sends(&mut queues[self.config.send_completions.0 as usize], first);
        let queue = &mut queues[self.config.receive_completions.0 as usize];
        let begun = self.partial.take().and_then(Partial::into_receive);
        for receive in begun.into_iter().chain(self.receives.drain(..)) {
            let status = CompletionStatus::Flushed;
            let completion = received(self.id, receive, status, Opcode::Receive, 0, None);
            queue.push(Ready { completion, sequence: 0 });
        }
        if let Some(connection) = &self.connection {
            connection.link.tell_closed(connection.theirs);
        }
    }

    /// Checks whether the peer is gone; if so, first receives the messages that it delivered before. Returns
    /// `false` if a full completion queue prevents that now.
    pub(crate) fn hear_news(
        &mut self,
        queues: &mut [CompletionQueue],
        shared: &mut [SharedReceiveQueue],
    ) -> bool {
        if self.state != QueuePairState::Ready || self.config.transport == Transport::UnreliableDatagram {
            return true;
        }
        let gone = self.closed.is_closed() || self.connection.as_ref().is_some_and(|c| !c.link.is_alive());
        if !gone {
            return true;
        }
        while self.state == QueuePairState::Ready {
            if queues[self.config.receive_completions.0 as usize].room() == 0 {
                return false;
            }
            let starved = self.is_starved(shared);
            if !self.drive_receive(queues, shared, usize::MAX) || starved {
                break;
            }
        }
        self.drive_sends(queues);
        self.fail(queues, CompletionStatus::TransportRetry);
        true
    }

    fn is_starved(&self, shared: &[SharedReceiveQueue]) -> bool {
        match self.config.shared_receive {
            None => self.receives.is_empty(),
            Some(shared_receive) => shared[shared_receive.0 as usize].receives.is_empty(),
        }
    }
}
