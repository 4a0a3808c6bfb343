//! The facts about a half, from which the rules for plans, the memory to grant and the depths of queues follow.

use crate::path::large::SMALL_LIMIT;
use crate::path::{MAX_MESSAGE, unconnected};
use dunlin_fabric::{Capabilities, Transport};

/// Where the receiver finds a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the buffer of a RECV.
    Receive,
    /// In a ring in its own memory.
    Ring,
    /// In a ring in the sender's memory, which it READs after `metadata` READs of metadata.
    Published { metadata: u8 },
    /// In the sender's ring without metadata or in its own, as the client asks with each request.
    Either,
}

/// How the receiver is notified of a WRITE into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Not at all: the receiver polls the ring.
    Polled,
    /// By immediate data of the WRITE.
    Immediate,
    /// By an empty SEND after the WRITE.
    Send,
    /// By an empty SEND linked to the WRITE.
    LinkedSend,
}

/// The RECVs of a lane's reliable connection at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// That many of its own, with room for a message each: a SEND that finds no RECV ends the connection.
    Messages(u32),
    /// Those that the lanes of a worker share.
    Shared,
    /// That many of its own, without memory.
    Empty(u32),
}

/// The properties of a half, from which the legality of plans, the memory to grant, and the depths of queues follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) place: Place,
    /// For messages in the receiver's ring.
    pub(crate) notice: Notice,
    /// The transport of messages. Messages may be lost except over a reliable connection.
    pub(crate) transport: Transport,
}

impl Facts {
    /// Messages in `place` over a reliable connection.
    pub(super) const fn reliable(place: Place, notice: Notice) -> Facts {
        Facts { place, notice, transport: Transport::ReliableConnection }
    }

    /// Returns whether the receiver has a ring that peers write into.
    pub(crate) const fn has_ring(&self) -> bool {
        matches!(self.place, Place::Ring | Place::Either)
    }

    /// Returns whether the receiver READs messages, or may.
    pub(crate) const fn is_fetched(&self) -> bool {
        matches!(self.place, Place::Published { .. } | Place::Either)
    }

    /// Returns whether the receiver READs all messages.
    pub(crate) const fn is_only_fetched(&self) -> bool {
        matches!(self.place, Place::Published { .. })
    }

    /// Returns whether each message is fetched or written, as the client asks.
    pub(crate) const fn is_hybrid(&self) -> bool {
        matches!(self.place, Place::Either)
    }

    /// Returns whether the receiver finds messages only by polling memory.
    pub(crate) const fn is_polled(&self) -> bool {
        self.is_only_fetched() || (self.has_ring() && matches!(self.notice, Notice::Polled))
    }

    /// Returns whether messages may be lost.
    pub(crate) const fn is_lossy(&self) -> bool {
        !matches!(self.transport, Transport::ReliableConnection)
    }

    /// Returns whether messages are datagrams.
    const fn is_datagram(&self) -> bool {
        matches!(self.transport, Transport::UnreliableDatagram)
    }

    /// Returns whether messages are SENDs over the reliable connection.
    pub(crate) const fn is_sent(&self) -> bool {
        matches!(self.place, Place::Receive) && !self.is_lossy()
    }

    /// Returns whether each message is a WRITE and a SEND that announces it.
    pub(crate) const fn is_announced(&self) -> bool {
        self.has_ring() && matches!(self.notice, Notice::Send | Notice::LinkedSend)
    }

    /// Returns whether messages carry immediate data: that of a datagram names its lane and its message.
    pub(crate) const fn has_immediate(&self) -> bool {
        self.is_datagram() || (self.has_ring() && matches!(self.notice, Notice::Immediate))
    }

    /// Returns whether a sender without room has to be notified when there is some.
    pub(crate) const fn needs_credit_update(&self) -> bool {
        !matches!(self.place, Place::Receive)
    }

    /// Returns whether each message consumes a RECV.
    pub(crate) const fn takes_receives(&self) -> bool {
        matches!(self.place, Place::Receive) || self.is_announced() || self.has_immediate()
    }

    /// Returns whether the receiver takes only messages that it was notified of. Needed where the bytes of a WRITE may
    /// be placed in any order, and where the SEND behind a WRITE may find no room.
    pub(crate) const fn gated_by_completion(&self, capabilities: &Capabilities) -> bool {
        self.is_announced() || (self.has_ring() && self.has_immediate() && !capabilities.in_order_write)
    }

    /// Returns the number of RECVs that a receiver posts on the reliable connection: one for each message in flight,
    /// and some spare.
    ///
    /// RECVs without buffers are cheap, so there is one more for each call: the message of a call may be followed by a
    /// report that wakes the receiver. With buffers the spare ones take the reports, of which there are at most four
    /// for each round of the ring. A sender that finds no RECV waits until one is posted.
    pub(crate) const fn receives(&self, window: u16) -> u32 {
        match self.takes_receives() {
            false => 0,
            true if self.has_ring() => 3 * window as u32 + 16,
            // For head reports only.
            true if self.is_lossy() => 8,
            true => window as u32 + 8,
        }
    }

    /// Returns the bytes of the buffers of these RECVs: whole messages if they come by SEND.
    pub(crate) const fn receive_bytes(&self) -> usize {
        if self.is_sent() { MAX_MESSAGE } else { 0 }
    }

    /// Returns the number of RECVs that a receiver posts on a queue pair of `transport` beside the reliable connection:
    /// one for each message in flight, and some spare.
    pub(crate) fn receives_beside(&self, transport: Transport, window: u16) -> u32 {
        let is_received =
            self.is_lossy() && self.transport == transport && matches!(self.place, Place::Receive);
        if is_received { u32::from(window) + 8 } else { 0 }
    }

    /// Returns the RECVs of the reliable connection at a server, for requests of these facts in a window of `window`
    /// calls. Lanes share RECVs, where the fabric can, for messages by SEND, and for the head reports of a client whose
    /// messages take RECVs of another queue pair.
    pub(crate) const fn supply(&self, answers: &Facts, capabilities: &Capabilities, window: u16) -> Supply {
        if self.is_sent() && !(capabilities.acknowledged && capabilities.shared_receive_queue) {
            // One for each call of the window, and one for the `Release` that may precede it.
            return Supply::Messages(2 * window as u32 + 8);
        }
        let has_reports = matches!(self.place, Place::Receive) && answers.needs_credit_update();
        match self.is_sent() || (self.is_lossy() && has_reports) {
            true => Supply::Shared,
            false if self.has_ring() => Supply::Empty(self.receives(window)),
            false => Supply::Empty(0),
        }
    }

    /// Returns the largest small payload, where a datagram has `max_datagram` bytes.
    pub(crate) const fn small_limit(&self, max_datagram: u32) -> u32 {
        let payload = unconnected::payload(max_datagram);
        if self.is_datagram() && payload < SMALL_LIMIT { payload } else { SMALL_LIMIT }
    }

    /// Returns the bytes that may wait for RECVs on the reliable connection: whole messages if they come by SEND.
    pub(crate) const fn inbound_bytes(&self) -> u32 {
        match self.takes_receives() {
            true if self.is_sent() => 4 * MAX_MESSAGE as u32,
            true if self.has_ring() => 16 * 1024,
            _ => 4096,
        }
    }

    /// Returns the bytes of the memory that the receiver READs, for a ring of `ring_bytes`.
    pub(crate) const fn published_bytes(&self, ring_bytes: u32) -> Option<u64> {
        match self.place {
            Place::Published { metadata } => Some(ring_bytes as u64 * (1 + metadata as u64)),
            Place::Either => Some(ring_bytes as u64),
            Place::Receive | Place::Ring => None,
        }
    }
}
