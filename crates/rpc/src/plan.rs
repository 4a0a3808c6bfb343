//! Plans: the point on the four axes under which a call runs, the table of protocols by name, and the one rule
//! book that says which combinations are legal on a fabric.

use dunlin_fabric::{Capabilities, Transport};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How a request reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RequestHalf {
    /// SEND into a RECV.
    Send = 1,
    /// WRITE into a ring that the server polls.
    Write = 2,
    /// WRITE_WITH_IMM into a ring; the server learns of it by a completion.
    WriteImm = 3,
    /// WRITE into a ring, then a SEND of nothing that tells of it: two posts, two doorbells (HatRPC figure 3b).
    WriteSend = 4,
    /// The same two work requests linked, for which one doorbell is rung (HatRPC figure 3c).
    WriteSendChained = 5,
    /// SEND of a datagram (UD). May be lost; the client sends it again.
    Datagram = 6,
    /// WRITE over an unreliable connection (UC) into a ring that the server polls. May be lost; the client writes it again.
    WriteUnreliable = 7,
}

/// How a response reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ResponseHalf {
    /// SEND into a RECV.
    Send = 1,
    /// WRITE into a ring that the client polls.
    Write = 2,
    /// WRITE_WITH_IMM into a ring; the client learns of it by a completion.
    WriteImm = 3,
    /// The server leaves it in its own memory, and the client READs until it is there (RF-RPC section 3).
    Fetch = 4,
    /// As the request half of this name.
    WriteSend = 5,
    /// As the request half of this name.
    WriteSendChained = 6,
    /// As [`Fetch`](ResponseHalf::Fetch), after one READ of metadata that tells where the result is (FaRM as HatRPC
    /// emulates it, figure 3h).
    FetchIndexed = 7,
    /// As [`Fetch`](ResponseHalf::Fetch), after two such READs, of which the first tells where the second's is (Pilaf,
    /// figure 3g).
    FetchIndexedTwice = 8,
    /// SEND of a datagram (UD). May be lost; who asks again for the same call gets it again.
    Datagram = 9,
    /// [`Fetch`](ResponseHalf::Fetch) while that pays and [`Write`](ResponseHalf::Write) otherwise, each function by itself, as the
    /// client finds (RF-RPC section 3.2).
    FetchOrWrite = 10,
    /// The same with [`WriteImm`](ResponseHalf::WriteImm), so that the client may sleep where results are written back.
    FetchOrWriteImm = 11,
}

/// What the halves are made of: where a message goes, and how its receiver learns of it. A half is a name for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A SEND carries it into a RECV's buffer.
    Receive,
    /// A datagram carries it into a RECV's buffer, or is lost.
    Datagram,
    /// A WRITE puts it into a ring of the receiver's.
    Ring(Notice),
    /// A WRITE that may be lost puts it into a ring of the receiver's, which polls that.
    LossyRing,
    /// The sender leaves it in a ring of its own, which the receiver READs, after so many READs of metadata.
    Published { metadata: u8 },
    /// One of two, as the client asks with each request: published without metadata, or written into a ring of the receiver's.
    Hybrid(Notice),
}

/// How a receiver learns of what was written into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Not at all: it polls the ring.
    Polled,
    /// By immediate data with the WRITE.
    Immediate,
    /// By a SEND of nothing behind the WRITE.
    Send,
    /// The same, linked to the WRITE.
    LinkedSend,
}

impl Carrier {
    /// Whether the receiver finds messages by looking at memory, with nothing that tells it to.
    pub(crate) const fn is_polled(self) -> bool {
        matches!(
            self,
            Carrier::Ring(Notice::Polled)
                | Carrier::LossyRing
                | Carrier::Published { .. }
                | Carrier::Hybrid(Notice::Polled)
        )
    }

    /// Whether the receiver READs, or may.
    pub(crate) const fn is_fetched(self) -> bool {
        matches!(self, Carrier::Published { .. } | Carrier::Hybrid(_))
    }

    /// Whether what it carries may be lost.
    pub(crate) const fn is_lossy(self) -> bool {
        matches!(self, Carrier::Datagram | Carrier::LossyRing)
    }

    /// Whether a sender that finds no room has to be told of some.
    pub(crate) const fn has_room_to_tell(self) -> bool {
        !matches!(self, Carrier::Receive | Carrier::Datagram)
    }

    /// Whether a receiver takes only what it was told of: where the bytes of a WRITE may come in any order, and where a WRITE
    /// may be there that is not told of, because its SEND found no room.
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

    /// Whether each message takes a RECV.
    const fn takes_receives(self) -> bool {
        match self {
            Carrier::Receive | Carrier::Datagram => true,
            Carrier::Ring(notice) | Carrier::Hybrid(notice) => !matches!(notice, Notice::Polled),
            Carrier::LossyRing | Carrier::Published { .. } => false,
        }
    }

    /// Whether the receiver has a ring of its own that peers write into.
    pub(crate) const fn has_ring(self) -> bool {
        matches!(self, Carrier::Ring(_) | Carrier::Hybrid(_) | Carrier::LossyRing)
    }
}

impl RequestHalf {
    /// All of them.
    pub const ALL: [RequestHalf; 7] = [
        RequestHalf::Send,
        RequestHalf::Write,
        RequestHalf::WriteImm,
        RequestHalf::WriteSend,
        RequestHalf::WriteSendChained,
        RequestHalf::Datagram,
        RequestHalf::WriteUnreliable,
    ];

    /// What it is made of.
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

    /// Its name, as in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            RequestHalf::Send => "send",
            RequestHalf::Write => "write",
            RequestHalf::WriteImm => "write_imm",
            RequestHalf::WriteSend => "write_send",
            RequestHalf::WriteSendChained => "write_send_chained",
            RequestHalf::Datagram => "datagram",
            RequestHalf::WriteUnreliable => "write_unreliable",
        }
    }

    /// From its number in the handshake.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|half| *half as u8 == number)
    }
}

impl ResponseHalf {
    /// All of them.
    pub const ALL: [ResponseHalf; 11] = [
        ResponseHalf::Send,
        ResponseHalf::Write,
        ResponseHalf::WriteImm,
        ResponseHalf::Fetch,
        ResponseHalf::WriteSend,
        ResponseHalf::WriteSendChained,
        ResponseHalf::FetchIndexed,
        ResponseHalf::FetchIndexedTwice,
        ResponseHalf::Datagram,
        ResponseHalf::FetchOrWrite,
        ResponseHalf::FetchOrWriteImm,
    ];

    /// What it is made of.
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

    /// Its name, as in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            ResponseHalf::Send => "send",
            ResponseHalf::Write => "write",
            ResponseHalf::WriteImm => "write_imm",
            ResponseHalf::Fetch => "fetch",
            ResponseHalf::FetchIndexed => "fetch_indexed",
            ResponseHalf::FetchIndexedTwice => "fetch_indexed_twice",
            ResponseHalf::WriteSend => "write_send",
            ResponseHalf::WriteSendChained => "write_send_chained",
            ResponseHalf::Datagram => "datagram",
            ResponseHalf::FetchOrWrite => "fetch_or_write",
            ResponseHalf::FetchOrWriteImm => "fetch_or_write_imm",
        }
    }

    /// From its number in the handshake.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|half| *half as u8 == number)
    }
}

/// How a side waits (HatRPC's polling hint).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CompletionMode {
    /// Spins.
    Busy = 1,
    /// Sleeps until an event.
    Event = 2,
    /// Spins for a bounded time, then sleeps.
    Adaptive = 3,
}

/// How payloads of more than [`Plan::rendezvous_above`] bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LargePayload {
    /// Read rendezvous: they stay in the sender's memory, and the receiver READs them into private memory. One copy.
    Read = 1,
    /// Write rendezvous: the sender announces the length, the receiver answers with a place, the sender WRITEs there and
    /// tells that it has. What a peer can write is copied once more before anybody looks at it. A request leaves only as far
    /// as its client makes progress, since the server's word has to be heard.
    Write = 2,
    /// Eager: as messages of at most [`SMALL_LIMIT`] bytes each, like small payloads, copied at both ends.
    Eager = 3,
    /// Read rendezvous in pieces: announced when the first piece is there, so that the receiver READs it while the sender fills
    /// the next.
    Pieces = 4,
}

impl LargePayload {
    /// All of them.
    pub const ALL: [LargePayload; 4] =
        [LargePayload::Read, LargePayload::Write, LargePayload::Eager, LargePayload::Pieces];

    /// Its name, as in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            LargePayload::Read => "rendezvous_read",
            LargePayload::Write => "rendezvous_write",
            LargePayload::Eager => "eager",
            LargePayload::Pieces => "rendezvous_pieces",
        }
    }

    /// Whether the receiver READs them where the sender has them.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, LargePayload::Read | LargePayload::Pieces)
    }

    /// From its number in the handshake.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|way| *way as u8 == number)
    }
}

/// Who shares a connection with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Sharing {
    /// A queue pair for each client handle and server worker.
    Dedicated = 1,
}

/// A plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The request half of the path.
    pub request: RequestHalf,
    /// The response half of the path.
    pub response: ResponseHalf,
    /// How connections are shared.
    pub sharing: Sharing,
    /// How the client waits.
    pub client: CompletionMode,
    /// How the server waits.
    pub server: CompletionMode,
    /// How large payloads travel.
    pub large: LargePayload,
    /// Payloads of more bytes than this are large.
    pub rendezvous_above: u32,
}

/// The longest datagram on which the protocols of the table count: InfiniBand's largest MTU (FaSST section 3.3).
const MTU: u32 = 4096;

/// The largest payload that a datagram of so many bytes carries, also as the only entry of a batch.
const fn datagram_payload(datagram: u32) -> u32 {
    let lines = datagram / dunlin_wire::LINE as u32 * dunlin_wire::LINE as u32;
    let around = dunlin_wire::BODY_OFFSET + dunlin_wire::ENTRY_META_BYTES + dunlin_wire::TAG_BYTES;
    lines.saturating_sub(around as u32)
}

/// The largest `rendezvous_above`, and the usual one: HatRPC's threshold of 4 KiB (section 4.3).
pub const SMALL_LIMIT: u32 = 4096;

/// Why a plan cannot run on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Illegal {
    /// A plain WRITE raises no event, so its receiver cannot sleep.
    #[error(
        "the {side} polls memory for plain WRITEs, which raise no event: it cannot wait by {mode}; use busy, or send, write_send or write_imm"
    )]
    SleepsOnMemory {
        /// `client` or `server`.
        side: &'static str,
        /// The mode asked for.
        mode: CompletionMode,
    },
    /// A fetching client cannot sleep until the result is ready.
    #[error(
        "a client that fetches its results cannot wait by {0}: nothing tells it that the result is ready; use busy, or another response half"
    )]
    SleepsOnFetch(CompletionMode),
    /// Memory polling needs in-order placement.
    #[error(
        "this fabric does not promise that the bytes of a WRITE are placed in order, so memory cannot be polled: use send, write_send or write_imm"
    )]
    NoOrder,
    /// A WRITE of the server's is not ordered with what the client READs.
    #[error(
        "large results cannot be WRITTEN to a client that fetches: nothing tells it when they are there; use rendezvous_read, or another response half"
    )]
    WritesPastFetch,
    /// What moves a large payload in several steps would go another way than the answer that announces it.
    #[error(
        "where results are fetched or written back, large payloads cannot travel by {large}: use rendezvous_read",
        large = .0.name()
    )]
    LargePastHybrid(LargePayload),
    /// A request that was lost would be sent again with another number, and the mode word goes by that.
    #[error(
        "results that are fetched or written back need requests that are not lost: use write, write_imm, write_send or send"
    )]
    LossyHybrid,
    /// What carries a large payload in several steps must not lose one.
    #[error(
        "where requests or responses may be lost, large payloads cannot travel by {large}: use rendezvous_read, which goes over a reliable connection beside them",
        large = .0.name()
    )]
    LargeOverLossy(LargePayload),
    /// The many messages of a large payload find no RECVs, and a SEND waits for none here.
    #[error(
        "large payloads cannot travel by {large} here: where a SEND does not wait for a RECV (iWARP), a message more than there are RECVs ends the connection; use rendezvous_read or rendezvous_write, or a protocol whose receiver polls memory",
        large = .0.name()
    )]
    EagerPastReceives(LargePayload),
    /// A message is more than a datagram.
    #[error(
        "rendezvous_above is {above}, but a datagram of this fabric carries a payload of {limit} bytes at most: set it to that"
    )]
    OverDatagram {
        /// What was asked for.
        above: u32,
        /// What is possible.
        limit: u32,
    },
    /// The fabric lacks something.
    #[error("this fabric has no {0}")]
    Lacks(&'static str),
    /// `rendezvous_above` is over [`SMALL_LIMIT`].
    #[error("rendezvous_above is {0}, at most {SMALL_LIMIT} is possible")]
    RendezvousAbove(u32),
}

impl Plan {
    /// A plan by halves, dedicated, both sides busy where that is legal.
    ///
    /// Payloads of more than a message can carry are large: [`SMALL_LIMIT`], or what fits a datagram.
    pub const fn new(request: RequestHalf, response: ResponseHalf) -> Plan {
        let datagrams =
            matches!(request.carrier(), Carrier::Datagram) || matches!(response.carrier(), Carrier::Datagram);
        Plan {
            request,
            response,
            sharing: Sharing::Dedicated,
            client: CompletionMode::Busy,
            server: CompletionMode::Busy,
            large: LargePayload::Read,
            rendezvous_above: if datagrams { datagram_payload(MTU) } else { SMALL_LIMIT },
        }
    }

    /// The plan with another way for payloads of more than `above` bytes.
    pub const fn large(self, large: LargePayload, above: u32) -> Plan {
        Plan { large, rendezvous_above: above, ..self }
    }

    /// The plan with other completion modes.
    pub const fn completion(self, client: CompletionMode, server: CompletionMode) -> Plan {
        Plan { client, server, ..self }
    }

    /// The plan where results that may be fetched or written back are all written back.
    pub(crate) const fn written_back(self) -> Plan {
        let response = match self.response {
            ResponseHalf::FetchOrWrite => ResponseHalf::Write,
            ResponseHalf::FetchOrWriteImm => ResponseHalf::WriteImm,
            other => other,
        };
        Plan { response, ..self }
    }

    /// What calls go by where nobody says how: the [`Default`], or SENDs with large payloads by read rendezvous, which let both
    /// sides sleep, too. These where the default needs immediate data that the fabric does not have (iWARP), or that cost it a
    /// message of their own (libfabric), as on a fabric that is not acknowledged, where nothing but messages has a RECV.
    pub fn usual(capabilities: &Capabilities) -> Plan {
        if capabilities.immediate && capabilities.acknowledged {
            return Plan::default();
        }
        let Plan { client, server, .. } = Plan::default();
        Plan::new(RequestHalf::Send, ResponseHalf::Send).completion(client, server)
    }

    /// Whether the plan can run on a fabric. Pure; hints, `explain` and connecting all ask here.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), Illegal> {
        use CompletionMode::Busy;
        if self.rendezvous_above > SMALL_LIMIT {
            return Err(Illegal::RendezvousAbove(self.rendezvous_above));
        }
        let (request, response) = (self.request.carrier(), self.response.carrier());
        if request.is_polled() && self.server != Busy {
            return Err(Illegal::SleepsOnMemory { side: "server", mode: self.server });
        }
        if response.is_polled() && self.client != Busy {
            return Err(match response {
                Carrier::Published { .. } => Illegal::SleepsOnFetch(self.client),
                _ => Illegal::SleepsOnMemory { side: "client", mode: self.client },
            });
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
        // Who sleeps while a ring is full is woken by immediate data when there is room.
        let wakes_for_room = (self.server != Busy && response.has_room_to_tell())
            || (self.client != Busy && request.has_room_to_tell());
        let carries = |carrier| [request, response].contains(&carrier);
        // A datagram says by it which lane it is for, and which message it is.
        let immediate = carries(Carrier::Ring(Notice::Immediate))
            || carries(Carrier::Hybrid(Notice::Immediate))
            || carries(Carrier::Datagram);
        if (immediate || wakes_for_room) && !capabilities.immediate {
            return Err(Illegal::Lacks("immediate data"));
        }
        // All other messages are bounded by the window, for which there are RECVs.
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

    /// The rules for what may be lost.
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

    /// Whether requests or responses may be lost, so that the client sends again and the server answers again.
    pub(crate) const fn is_lossy(&self) -> bool {
        self.request.carrier().is_lossy() || self.response.carrier().is_lossy()
    }

    /// The name of this plan's protocol in the table, if it has one. Large payloads that are READ may be in pieces.
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
    /// Direct-WriteIMM, both sides adaptive: HatRPC's choice for most loads (figure 6), and idle at no cost.
    fn default() -> Self {
        Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
            .completion(CompletionMode::Adaptive, CompletionMode::Adaptive)
    }
}

/// A row of the table of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The name in the papers.
    pub name: &'static str,
    /// The request half.
    pub request: RequestHalf,
    /// The response half.
    pub response: ResponseHalf,
    /// How large payloads travel, both ways.
    pub large: LargePayload,
    /// Payloads of more bytes are large.
    pub rendezvous_above: u32,
    /// Whose it is, in a few words.
    pub origin: &'static str,
}

/// Every protocol there is. A new one is a row here and, if it needs a new half, a variant of it and what that is made of.
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

/// Both halves by SEND.
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
    /// The row of this name, in any case, `-` and `_` alike.
    pub fn by_name(name: &str) -> Option<&'static Protocol> {
        let plain = |s: &str| s.to_ascii_lowercase().replace('_', "-");
        PROTOCOLS.iter().find(|p| plain(p.name) == plain(name))
    }

    /// The plan of this protocol, both sides waiting by `mode`.
    pub const fn plan(&self, mode: CompletionMode) -> Plan {
        Plan::new(self.request, self.response).large(self.large, self.rendezvous_above).completion(mode, mode)
    }
}

impl fmt::Display for CompletionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionMode::Busy => "busy",
            CompletionMode::Event => "event",
            CompletionMode::Adaptive => "adaptive",
        })
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

impl CompletionMode {
    /// From its number in the handshake.
    pub const fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => CompletionMode::Busy,
            2 => CompletionMode::Event,
            3 => CompletionMode::Adaptive,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
