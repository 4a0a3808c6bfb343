//! The check of plans as it was before halves had facts, kept as an oracle for the present one.

use super::*;

/// The transport mechanism behind a half: where a message goes, and how its receiver is notified. Each half
/// is the name of one carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// A SEND into the buffer of a RECV.
    Receive,
    /// A datagram into the buffer of a RECV; may be lost.
    Datagram,
    /// A WRITE into a ring in the receiver's memory.
    Ring(Notice),
    /// A WRITE that may be lost, into a ring in the receiver's memory, which the receiver polls.
    LossyRing,
    /// A ring in the sender's memory. The receiver READs it after `metadata` READs of metadata.
    Published { metadata: u8 },
    /// Published without metadata or written into the receiver's ring, as the client asks with each request.
    Hybrid(Notice),
}

/// How a receiver is notified of a WRITE into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Not at all: the receiver polls the ring.
    Polled,
    /// By immediate data of the WRITE.
    Immediate,
    /// By an empty SEND after the WRITE.
    Send,
    /// By an empty SEND linked to the WRITE.
    LinkedSend,
}

impl Carrier {
    /// Returns whether the receiver finds messages only by polling memory.
    const fn is_polled(self) -> bool {
        matches!(
            self,
            Carrier::Ring(Notice::Polled)
                | Carrier::LossyRing
                | Carrier::Published { .. }
                | Carrier::Hybrid(Notice::Polled)
        )
    }

    /// Returns whether the receiver READs messages, or may.
    const fn is_fetched(self) -> bool {
        matches!(self, Carrier::Published { .. } | Carrier::Hybrid(_))
    }

    /// Returns whether messages may be lost.
    const fn is_lossy(self) -> bool {
        matches!(self, Carrier::Datagram | Carrier::LossyRing)
    }

    /// Returns whether a sender without room has to be notified when there is some.
    const fn has_room_to_tell(self) -> bool {
        !matches!(self, Carrier::Receive | Carrier::Datagram)
    }

    /// Returns whether the receiver takes only messages that it was notified of. Needed where the bytes of a
    /// WRITE may be placed in any order, and where the SEND behind a WRITE may find no room.
    pub(super) const fn is_told_of(self, capabilities: &Capabilities) -> bool {
        match self {
            Carrier::Ring(Notice::Send | Notice::LinkedSend)
            | Carrier::Hybrid(Notice::Send | Notice::LinkedSend) => true,
            Carrier::Ring(Notice::Immediate) | Carrier::Hybrid(Notice::Immediate) => {
                !capabilities.in_order_write
            }
            Carrier::Ring(Notice::Polled)
            | Carrier::Hybrid(Notice::Polled)
            | Carrier::LossyRing
            | Carrier::Receive
            | Carrier::Datagram
            | Carrier::Published { .. } => false,
        }
    }

    /// Whether each message consumes a RECV.
    const fn takes_receives(self) -> bool {
        match self {
            Carrier::Receive | Carrier::Datagram => true,
            Carrier::Ring(notice) | Carrier::Hybrid(notice) => !matches!(notice, Notice::Polled),
            Carrier::LossyRing | Carrier::Published { .. } => false,
        }
    }

    /// Returns whether the receiver has a ring that peers write into.
    const fn has_ring(self) -> bool {
        matches!(self, Carrier::Ring(_) | Carrier::Hybrid(_) | Carrier::LossyRing)
    }
}

pub(super) const fn of_request(half: RequestHalf) -> Carrier {
    match half {
        RequestHalf::Send => Carrier::Receive,
        RequestHalf::Write => Carrier::Ring(Notice::Polled),
        RequestHalf::WriteImm => Carrier::Ring(Notice::Immediate),
        RequestHalf::WriteSend => Carrier::Ring(Notice::Send),
        RequestHalf::WriteSendChained => Carrier::Ring(Notice::LinkedSend),
        RequestHalf::Datagram => Carrier::Datagram,
        RequestHalf::WriteUnreliable => Carrier::LossyRing,
    }
}

const fn of_response(half: ResponseHalf) -> Carrier {
    match half {
        ResponseHalf::Send => Carrier::Receive,
        ResponseHalf::Write => Carrier::Ring(Notice::Polled),
        ResponseHalf::WriteImm => Carrier::Ring(Notice::Immediate),
        ResponseHalf::Fetch => Carrier::Published { metadata: 0 },
        ResponseHalf::FetchIndexed => Carrier::Published { metadata: 1 },
        ResponseHalf::FetchIndexedTwice => Carrier::Published { metadata: 2 },
        ResponseHalf::WriteSend => Carrier::Ring(Notice::Send),
        ResponseHalf::WriteSendChained => Carrier::Ring(Notice::LinkedSend),
        ResponseHalf::Datagram => Carrier::Datagram,
        ResponseHalf::FetchOrWrite => Carrier::Hybrid(Notice::Polled),
        ResponseHalf::FetchOrWriteImm => Carrier::Hybrid(Notice::Immediate),
    }
}

impl Plan {
    /// Checks whether the plan can run on a fabric. Hints, `explain` and connecting all use this check.
    pub(super) fn old_check(&self, capabilities: &Capabilities) -> Result<(), Illegal> {
        use CompletionMode::Busy;
        if let (Lease::Slice, Some(needs)) = (self.lease, self.old_lease_needs()) {
            return Err(Illegal::LeaseWithout { lease: self.lease, needs });
        }
        if self.rendezvous_above > SMALL_LIMIT {
            return Err(Illegal::RendezvousAbove(self.rendezvous_above));
        }
        let (request, response) = (of_request(self.request), of_response(self.response));
        if request.is_polled() && self.server != Busy && !capabilities.write_wakes {
            return Err(Illegal::SleepsOnMemory { side: "server", mode: self.server });
        }
        if response.is_polled() && self.client != Busy {
            match response {
                Carrier::Published { .. } => return Err(Illegal::SleepsOnFetch(self.client)),
                _ if capabilities.write_wakes => {}
                _ => return Err(Illegal::SleepsOnMemory { side: "client", mode: self.client }),
            }
        }
        if matches!(response, Carrier::Published { .. }) && self.large == LargePayload::Write {
            return Err(Illegal::WritesPastFetch);
        }
        if matches!(response, Carrier::Published { .. }) && self.large == LargePayload::Pieces {
            return Err(Illegal::LargePastHybrid(self.large));
        }
        if matches!(response, Carrier::Hybrid(_)) {
            if self.large != LargePayload::Read {
                return Err(Illegal::LargePastHybrid(self.large));
            }
            if request.is_lossy() {
                return Err(Illegal::LossyHybrid);
            }
        }
        if (request.is_polled() || response.is_polled() || response.is_fetched())
            && !capabilities.in_order_write
        {
            return Err(Illegal::NoOrder);
        }
        self.old_check_lossy(capabilities)?;
        // A side that sleeps while its peer's ring is full is woken by immediate data when there is room.
        let wakes_for_room = (self.server != Busy && response.has_room_to_tell())
            || (self.client != Busy && request.has_room_to_tell());
        let carries = |carrier| [request, response].contains(&carrier);
        // The immediate data of a datagram names its lane and its message.
        let immediate = carries(Carrier::Ring(Notice::Immediate))
            || carries(Carrier::Hybrid(Notice::Immediate))
            || carries(Carrier::Datagram);
        if (immediate || wakes_for_room) && !capabilities.immediate {
            return Err(Illegal::Lacks("immediate data"));
        }
        // All other messages are bounded by the window, and there are RECVs for that many.
        let takes_receives = request.takes_receives() || response.takes_receives();
        let many = matches!(self.large, LargePayload::Eager | LargePayload::Pieces);
        if many && takes_receives && !capabilities.acknowledged {
            return Err(Illegal::EagerPastReceives(self.large));
        }
        if (self.client != Busy || self.server != Busy) && !capabilities.events {
            return Err(Illegal::Lacks("events to sleep on"));
        }
        Ok(())
    }

    /// Returns the property that the plan lacks for leases that end (ScaleRPC section 3.3).
    fn old_lease_needs(&self) -> Option<&'static str> {
        if of_request(self.request) != Carrier::Ring(Notice::Polled) {
            return Some("requests by write");
        }
        if !matches!(of_response(self.response), Carrier::Ring(_)) {
            return Some("answers that are written into a ring");
        }
        (self.large != LargePayload::Read).then_some("large payloads that are read")
    }

    /// The rules for carriers that may lose messages.
    fn old_check_lossy(&self, capabilities: &Capabilities) -> Result<(), Illegal> {
        let (request, response) = (of_request(self.request), of_response(self.response));
        if !(request.is_lossy() || response.is_lossy()) {
            return Ok(());
        }
        if self.large != LargePayload::Read {
            return Err(Illegal::LargeOverLossy(self.large));
        }
        if request == Carrier::LossyRing && !capabilities.transports.contains(Transport::UnreliableConnection)
        {
            return Err(Illegal::Lacks("unreliable connections (UC)"));
        }
        if [request, response].contains(&Carrier::Datagram) {
            if !capabilities.transports.contains(Transport::UnreliableDatagram) {
                return Err(Illegal::Lacks("datagrams (UD)"));
            }
            let limit = datagram::payload(capabilities.max_datagram).min(SMALL_LIMIT);
            if self.rendezvous_above > limit {
                return Err(Illegal::OverDatagram { above: self.rendezvous_above, limit });
            }
        }
        Ok(())
    }
}

/// The old number of RECVs.
pub(super) fn receives(half: ResponseHalf, window: u16) -> u32 {
    match of_response(half) {
        Carrier::Receive => window as u32 + 8,
        Carrier::Datagram => 8,
        Carrier::Ring(Notice::Polled)
        | Carrier::Hybrid(Notice::Polled)
        | Carrier::LossyRing
        | Carrier::Published { .. } => 0,
        Carrier::Ring(_) | Carrier::Hybrid(_) => 3 * window as u32 + 16,
    }
}
