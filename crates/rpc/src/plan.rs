//! Plans: how calls travel. Holds the plan's axes, the table of protocols by name, and the only rules for
//! which plans are legal on a fabric.

mod occupancy;
mod sharing;

pub use self::occupancy::Occupancy;
pub use self::sharing::{Lease, Sharing};

use dunlin_fabric::{Capabilities, Transport};
use dunlin_wire::numbered;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The mechanism that carries requests to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RequestHalf {
    /// SEND into a RECV.
    Send = 1,
    /// WRITE into a ring that the server polls.
    Write = 2,
    /// WRITE_WITH_IMM into a ring; a completion notifies the server.
    WriteImm = 3,
    /// WRITE into a ring, then an empty SEND that notifies the server: two posts, two doorbells (HatRPC
    /// figure 3b).
    WriteSend = 4,
    /// The same two work requests as a linked list, posted with one doorbell (HatRPC figure 3c).
    WriteSendChained = 5,
    /// SEND of a datagram (UD). May be lost; the client sends it again.
    Datagram = 6,
    /// WRITE over an unreliable connection (UC) into a ring that the server polls. May be lost; the client
    /// writes it again.
    WriteUnreliable = 7,
}

/// The mechanism that carries responses to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ResponseHalf {
    /// SEND into a RECV.
    Send = 1,
    /// WRITE into a ring that the client polls.
    Write = 2,
    /// WRITE_WITH_IMM into a ring; a completion notifies the client.
    WriteImm = 3,
    /// The server leaves the response in its own memory, and the client READs until it is there (RF-RPC
    /// section 3).
    Fetch = 4,
    /// As [`RequestHalf::WriteSend`].
    WriteSend = 5,
    /// As [`RequestHalf::WriteSendChained`].
    WriteSendChained = 6,
    /// As [`Fetch`](ResponseHalf::Fetch), after one READ of metadata that holds the result's location (FaRM
    /// as HatRPC emulates it, figure 3h).
    FetchIndexed = 7,
    /// As [`Fetch`](ResponseHalf::Fetch), after two READs of metadata, the first of which locates the second
    /// (Pilaf, figure 3g).
    FetchIndexedTwice = 8,
    /// SEND of a datagram (UD). May be lost; the server sends it again when the client repeats the request.
    Datagram = 9,
    /// [`Fetch`](ResponseHalf::Fetch) or [`Write`](ResponseHalf::Write), whichever the client finds to be
    /// cheaper, chosen for each function (RF-RPC section 3.2).
    FetchOrWrite = 10,
    /// [`Fetch`](ResponseHalf::Fetch) or [`WriteImm`](ResponseHalf::WriteImm), chosen likewise. The client
    /// may sleep while results are written back.
    FetchOrWriteImm = 11,
}

/// The transport mechanism behind a half: where a message goes, and how its receiver is notified. Each half
/// is the name of one carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
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

impl Carrier {
    /// Returns whether the receiver finds messages only by polling memory.
    pub(crate) const fn is_polled(self) -> bool {
        matches!(
            self,
            Carrier::Ring(Notice::Polled)
                | Carrier::LossyRing
                | Carrier::Published { .. }
                | Carrier::Hybrid(Notice::Polled)
        )
    }

    /// Returns whether the receiver READs messages, or may.
    pub(crate) const fn is_fetched(self) -> bool {
        matches!(self, Carrier::Published { .. } | Carrier::Hybrid(_))
    }

    /// Returns whether messages may be lost.
    pub(crate) const fn is_lossy(self) -> bool {
        matches!(self, Carrier::Datagram | Carrier::LossyRing)
    }

    /// Returns whether a sender without room has to be notified when there is some.
    pub(crate) const fn has_room_to_tell(self) -> bool {
        !matches!(self, Carrier::Receive | Carrier::Datagram)
    }

    /// Returns whether the receiver takes only messages that it was notified of. Needed where the bytes of a
    /// WRITE may be placed in any order, and where the SEND behind a WRITE may find no room.
    pub(crate) const fn is_told_of(self, capabilities: &Capabilities) -> bool {
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
    pub(crate) const fn has_ring(self) -> bool {
        matches!(self, Carrier::Ring(_) | Carrier::Hybrid(_) | Carrier::LossyRing)
    }
}

numbered!(RequestHalf: u8 {
    Send = "send",
    Write = "write",
    WriteImm = "write_imm",
    WriteSend = "write_send",
    WriteSendChained = "write_send_chained",
    Datagram = "datagram",
    WriteUnreliable = "write_unreliable",
});

impl RequestHalf {
    /// Returns the carrier of this half.
    pub(crate) const fn carrier(self) -> Carrier {
        match self {
            RequestHalf::Send => Carrier::Receive,
            RequestHalf::Write => Carrier::Ring(Notice::Polled),
            RequestHalf::WriteImm => Carrier::Ring(Notice::Immediate),
            RequestHalf::WriteSend => Carrier::Ring(Notice::Send),
            RequestHalf::WriteSendChained => Carrier::Ring(Notice::LinkedSend),
            RequestHalf::Datagram => Carrier::Datagram,
            RequestHalf::WriteUnreliable => Carrier::LossyRing,
        }
    }
}

numbered!(ResponseHalf: u8 {
    Send = "send",
    Write = "write",
    WriteImm = "write_imm",
    Fetch = "fetch",
    WriteSend = "write_send",
    WriteSendChained = "write_send_chained",
    FetchIndexed = "fetch_indexed",
    FetchIndexedTwice = "fetch_indexed_twice",
    Datagram = "datagram",
    FetchOrWrite = "fetch_or_write",
    FetchOrWriteImm = "fetch_or_write_imm",
});

impl ResponseHalf {
    /// Returns the carrier of this half.
    pub(crate) const fn carrier(self) -> Carrier {
        match self {
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
}

/// How a side waits (HatRPC's polling hint).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CompletionMode {
    /// Polls without sleeping.
    Busy = 1,
    /// Sleeps until an event.
    Event = 2,
    /// Polls for a bounded time, then sleeps.
    Adaptive = 3,
}

/// How payloads of more than [`Plan::rendezvous_above`] bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LargePayload {
    /// Read rendezvous: the payload stays in the sender's memory, and the receiver READs it into private
    /// memory. One copy.
    Read = 1,
    /// Write rendezvous: the sender announces the length, the receiver answers with a place, and the sender
    /// WRITEs the payload there and notifies the receiver.
    ///
    /// The receiver copies the payload out of memory that the peer can write before it uses it. A request
    /// leaves only while its client makes progress, because the client has to process the server's reply.
    Write = 2,
    /// Eager: messages of at most [`SMALL_LIMIT`] bytes each, as for small payloads, copied at both ends.
    Eager = 3,
    /// Read rendezvous in pieces: announced when the first piece is ready, so that the receiver READs it
    /// while the sender fills the next one.
    Pieces = 4,
}

numbered!(LargePayload: u8 {
    Read = "rendezvous_read",
    Write = "rendezvous_write",
    Eager = "eager",
    Pieces = "rendezvous_pieces",
});

impl LargePayload {
    /// Whether the receiver READs the payload from the sender's memory.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, LargePayload::Read | LargePayload::Pieces)
    }
}

/// A plan: how the calls of a lane travel, and how both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// How requests travel.
    pub request: RequestHalf,
    /// How responses travel.
    pub response: ResponseHalf,
    /// How the client's threads share a lane.
    pub sharing: Sharing,
    /// How long the server's memory belongs to a lane.
    pub lease: Lease,
    /// How the client waits.
    pub client: CompletionMode,
    /// How the server waits.
    pub server: CompletionMode,
    /// How large payloads travel.
    pub large: LargePayload,
    /// The largest small payload in bytes: a payload of more bytes is large.
    pub rendezvous_above: u32,
}

/// The datagram size that the table's protocols assume: InfiniBand's largest MTU (FaSST section 3.3).
const MTU: u32 = 4096;

/// Returns the largest payload of a datagram of `datagram` bytes, also as the only entry of a batch.
const fn datagram_payload(datagram: u32) -> u32 {
    let lines = datagram / dunlin_wire::LINE as u32 * dunlin_wire::LINE as u32;
    let around = dunlin_wire::BODY_OFFSET + dunlin_wire::ENTRY_META_BYTES + dunlin_wire::TAG_BYTES;
    lines.saturating_sub(around as u32)
}

/// The largest and default `rendezvous_above`: HatRPC's threshold of 4 KiB (section 4.3).
pub const SMALL_LIMIT: u32 = 4096;

/// The reason why a plan cannot run on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Illegal {
    /// A plain WRITE raises no event, so its receiver cannot sleep.
    ///
    /// Except on fabrics with [`Capabilities::write_wakes`].
    #[error(
        "the {side} polls memory for plain WRITEs, which raise no event: it cannot wait by {mode}; use busy, or send, write_send or write_imm"
    )]
    SleepsOnMemory {
        /// `client` or `server`.
        side: &'static str,
        /// The completion mode requested.
        mode: CompletionMode,
    },
    /// A fetching client cannot sleep until the result is ready.
    #[error(
        "a client that fetches its results cannot wait by {0}: nothing tells it that the result is ready; use busy, or another response half"
    )]
    SleepsOnFetch(CompletionMode),
    /// Memory polling needs in-order placement of WRITEs.
    #[error(
        "this fabric does not promise that the bytes of a WRITE are placed in order, so memory cannot be polled: use send, write_send or write_imm"
    )]
    NoOrder,
    /// The server's WRITE of a large result is not ordered with the client's READs.
    #[error(
        "large results cannot be WRITTEN to a client that fetches: nothing tells it when they are there; use rendezvous_read, or another response half"
    )]
    WritesPastFetch,
    /// A large payload that moves in several steps would not stay in order with the answer that announces it.
    #[error(
        "where results are fetched or written back, large payloads cannot travel by {large}: use rendezvous_read",
        large = .0.name()
    )]
    LargePastHybrid(LargePayload),
    /// The mode word identifies requests by number, but a lost request is sent again with another one.
    #[error(
        "results that are fetched or written back need requests that are not lost: use write, write_imm, write_send or send"
    )]
    LossyHybrid,
    /// A large payload that moves in several steps needs a carrier that loses nothing.
    #[error(
        "where requests or responses may be lost, large payloads cannot travel by {large}: use rendezvous_read, which goes over a reliable connection beside them",
        large = .0.name()
    )]
    LargeOverLossy(LargePayload),
    /// The messages of a large payload would outnumber the RECVs, and on this fabric a SEND does not wait for
    /// one.
    #[error(
        "large payloads cannot travel by {large} here: where a SEND does not wait for a RECV (iWARP), a message more than there are RECVs ends the connection; use rendezvous_read or rendezvous_write, or a protocol whose receiver polls memory",
        large = .0.name()
    )]
    EagerPastReceives(LargePayload),
    /// A small message may exceed a datagram.
    #[error(
        "rendezvous_above is {above}, but a datagram of this fabric carries a payload of {limit} bytes at most: set it to that"
    )]
    OverDatagram {
        /// The `rendezvous_above` requested, in bytes.
        above: u32,
        /// The largest value possible, in bytes.
        limit: u32,
    },
    /// The fabric lacks a feature that the plan needs.
    #[error("this fabric has no {0}")]
    Lacks(&'static str),
    /// The rest of the plan rules out memory of the server under this lease.
    #[error("a lease of a {lease} needs {needs}: change the plan, or use the lease forever", lease = .lease.name())]
    LeaseWithout {
        /// The lease.
        lease: Lease,
        /// The missing property.
        needs: &'static str,
    },
    /// `rendezvous_above` exceeds [`SMALL_LIMIT`].
    #[error("rendezvous_above is {0}, at most {SMALL_LIMIT} is possible")]
    RendezvousAbove(u32),
}

impl Plan {
    /// Creates a plan of two halves on dedicated lanes, with both sides busy.
    ///
    /// Large payloads are READ. [`rendezvous_above`](Plan::rendezvous_above) is [`SMALL_LIMIT`], or for
    /// datagrams the payload of one datagram.
    pub const fn new(request: RequestHalf, response: ResponseHalf) -> Plan {
        let datagrams =
            matches!(request.carrier(), Carrier::Datagram) || matches!(response.carrier(), Carrier::Datagram);
        Plan {
            request,
            response,
            sharing: Sharing::Dedicated,
            lease: Lease::Forever,
            client: CompletionMode::Busy,
            server: CompletionMode::Busy,
            large: LargePayload::Read,
            rendezvous_above: if datagrams { datagram_payload(MTU) } else { SMALL_LIMIT },
        }
    }

    /// Returns the plan with payloads of more than `above` bytes sent by `large`.
    pub const fn large(self, large: LargePayload, above: u32) -> Plan {
        Plan { large, rendezvous_above: above, ..self }
    }

    /// Returns the plan with lanes that threads share by `sharing`, under `lease`.
    pub const fn shared(self, sharing: Sharing, lease: Lease) -> Plan {
        Plan { sharing, lease, ..self }
    }

    /// Returns the plan with these completion modes.
    pub const fn completion(self, client: CompletionMode, server: CompletionMode) -> Plan {
        Plan { client, server, ..self }
    }

    /// Returns the plan with every hybrid response half replaced by its write-back half.
    pub(crate) const fn written_back(self) -> Plan {
        let response = match self.response {
            ResponseHalf::FetchOrWrite => ResponseHalf::Write,
            ResponseHalf::FetchOrWriteImm => ResponseHalf::WriteImm,
            other => other,
        };
        Plan { response, ..self }
    }

    /// Returns the default plan of a fabric: [`Plan::default`], or SENDs both ways with read rendezvous and
    /// the same completion modes.
    ///
    /// SENDs are chosen where immediate data is missing (iWARP) or costs a message of its own (libfabric),
    /// and on any other fabric that is not [`acknowledged`](Capabilities::acknowledged), where only messages
    /// may consume RECVs.
    pub fn usual(capabilities: &Capabilities) -> Plan {
        if capabilities.immediate && capabilities.acknowledged {
            return Plan::default();
        }
        let Plan { client, server, .. } = Plan::default();
        Plan::new(RequestHalf::Send, ResponseHalf::Send).completion(client, server)
    }

    /// Checks whether the plan can run on a fabric. Hints, `explain` and connecting all use this check.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), Illegal> {
        use CompletionMode::Busy;
        if let (Lease::Slice, Some(needs)) = (self.lease, self.lease_needs()) {
            return Err(Illegal::LeaseWithout { lease: self.lease, needs });
        }
        if self.rendezvous_above > SMALL_LIMIT {
            return Err(Illegal::RendezvousAbove(self.rendezvous_above));
        }
        let (request, response) = (self.request.carrier(), self.response.carrier());
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
        self.check_lossy(capabilities)?;
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
    fn lease_needs(&self) -> Option<&'static str> {
        if self.request.carrier() != Carrier::Ring(Notice::Polled) {
            return Some("requests by write");
        }
        if !matches!(self.response.carrier(), Carrier::Ring(_)) {
            return Some("answers that are written into a ring");
        }
        (self.large != LargePayload::Read).then_some("large payloads that are read")
    }

    /// The rules for carriers that may lose messages.
    fn check_lossy(&self, capabilities: &Capabilities) -> Result<(), Illegal> {
        let (request, response) = (self.request.carrier(), self.response.carrier());
        if !self.is_lossy() {
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
            let limit = datagram_payload(capabilities.max_datagram).min(SMALL_LIMIT);
            if self.rendezvous_above > limit {
                return Err(Illegal::OverDatagram { above: self.rendezvous_above, limit });
            }
        }
        Ok(())
    }

    /// Returns whether requests or responses may be lost, so that the client sends again and the server
    /// answers again.
    pub(crate) const fn is_lossy(&self) -> bool {
        self.request.carrier().is_lossy() || self.response.carrier().is_lossy()
    }

    /// Returns whether the server counts the calls on the lane by credits. Not where messages may be lost: those
    /// that are sent again would count twice. Not where the client fetches results: the server cannot send it word.
    /// Not under leases that end: a lease says what may be sent.
    pub(crate) const fn has_credits(&self) -> bool {
        matches!(self.sharing, Sharing::Combined)
            && matches!(self.lease, Lease::Forever)
            && !self.is_lossy()
            && !self.response.carrier().is_fetched()
    }

    /// Returns the row of the protocol table that matches this plan, if any. [`LargePayload::Pieces`] matches
    /// rows with [`LargePayload::Read`].
    pub fn protocol(&self) -> Option<&'static Protocol> {
        PROTOCOLS.iter().find(|p| {
            p.request == self.request
                && p.response == self.response
                && (p.large == self.large || (p.large.is_read() && self.large.is_read()))
                && p.rendezvous_above == self.rendezvous_above
        })
    }
}

impl Default for Plan {
    /// Direct-WriteIMM with both sides adaptive: HatRPC's choice for most loads (figure 6). Uses no processor
    /// time while idle.
    fn default() -> Self {
        Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
            .completion(CompletionMode::Adaptive, CompletionMode::Adaptive)
    }
}

/// A row of the protocol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The name in the papers.
    pub name: &'static str,
    /// How requests travel.
    pub request: RequestHalf,
    /// How responses travel.
    pub response: ResponseHalf,
    /// How large payloads travel, in both directions.
    pub large: LargePayload,
    /// The largest small payload in bytes.
    pub rendezvous_above: u32,
    /// The system that the protocol comes from, in a few words.
    pub origin: &'static str,
}

/// All protocols. A new protocol is a new row here; if it needs a new half, also a variant of the half and
/// its carrier.
pub const PROTOCOLS: &[Protocol] = &[
    row(
        "Server-reply",
        (RequestHalf::Write, ResponseHalf::Write),
        "FaRM RPC, RawWrite: both sides poll memory",
    ),
    row("Remote-fetch", (RequestHalf::Write, ResponseHalf::Fetch), "RF-RPC: the client READs its result"),
    row(
        "RF-RPC",
        (RequestHalf::Write, ResponseHalf::FetchOrWrite),
        "RF-RPC: the client READs its result, or has it written back where that takes too long",
    ),
    row(
        "Direct-WriteIMM",
        (RequestHalf::WriteImm, ResponseHalf::WriteImm),
        "HatRPC, LITE: WRITE_WITH_IMM both ways",
    ),
    row(
        "Direct-Write-Send",
        (RequestHalf::WriteSend, ResponseHalf::WriteSend),
        "HatRPC: WRITE, then a SEND that tells of it",
    ),
    row(
        "Chained-Write-Send",
        (RequestHalf::WriteSendChained, ResponseHalf::WriteSendChained),
        "HatRPC: WRITE and SEND under one doorbell",
    ),
    row("Eager-SendRecv", SENDS, "HatRPC: SEND both ways, payloads copied through slots of 4 KiB")
        .large(LargePayload::Eager, SMALL_LIMIT),
    row("Write-RNDV", SENDS, "HatRPC: SEND asks, the receiver names a place, the sender WRITEs there")
        .large(LargePayload::Write, 0),
    row("Read-RNDV", SENDS, "HatRPC: SEND announces, the receiver READs").large(LargePayload::Read, 0),
    row("Hybrid-EagerRNDV", SENDS, "HatRPC's baseline: eager, from 4 KiB on write rendezvous")
        .large(LargePayload::Write, SMALL_LIMIT),
    row(
        "Pilaf",
        (RequestHalf::Write, ResponseHalf::FetchIndexedTwice),
        "HatRPC's emulation: two READs of metadata, one of the result",
    ),
    row(
        "FaRM",
        (RequestHalf::Write, ResponseHalf::FetchIndexed),
        "HatRPC's emulation: one READ of metadata, one of the result",
    ),
    row("AR-gRPC", SENDS, "AR-gRPC, as HatRPC emulates it: eager, from 4 KiB on read rendezvous"),
    row(
        "HERD",
        (RequestHalf::WriteUnreliable, ResponseHalf::Datagram),
        "HERD: WRITE over UC into memory that the server polls, the answer a datagram",
    )
    .large(LargePayload::Read, datagram_payload(MTU)),
    row(
        "FaSST",
        (RequestHalf::Datagram, ResponseHalf::Datagram),
        "FaSST: datagrams both ways, sent again if lost",
    )
    .large(LargePayload::Read, datagram_payload(MTU)),
];

/// SENDs in both directions.
const SENDS: (RequestHalf, ResponseHalf) = (RequestHalf::Send, ResponseHalf::Send);

/// A row whose large payloads are READ.
const fn row(name: &'static str, halves: (RequestHalf, ResponseHalf), origin: &'static str) -> Protocol {
    let (request, response) = halves;
    Protocol { name, request, response, large: LargePayload::Read, rendezvous_above: SMALL_LIMIT, origin }
}

impl Protocol {
    const fn large(self, large: LargePayload, rendezvous_above: u32) -> Protocol {
        Protocol { large, rendezvous_above, ..self }
    }
}

impl Protocol {
    /// Returns the row with this name, ignoring case; `-` and `_` are equal.
    pub fn by_name(name: &str) -> Option<&'static Protocol> {
        let plain = |s: &str| s.to_ascii_lowercase().replace('_', "-");
        PROTOCOLS.iter().find(|p| plain(p.name) == plain(name))
    }

    /// Returns the plan of this protocol with both sides in `mode`.
    pub const fn plan(&self, mode: CompletionMode) -> Plan {
        Plan::new(self.request, self.response).large(self.large, self.rendezvous_above).completion(mode, mode)
    }
}

numbered!(CompletionMode: u8 { Busy = "busy", Event = "event", Adaptive = "adaptive" });

impl fmt::Display for CompletionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CompletionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "busy" => Ok(CompletionMode::Busy),
            "event" => Ok(CompletionMode::Event),
            "adaptive" => Ok(CompletionMode::Adaptive),
            other => Err(format!("'{other}' is not a way to wait: use busy, event or adaptive")),
        }
    }
}

#[cfg(test)]
mod tests;
