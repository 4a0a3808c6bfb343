//! Plans: how calls travel. Holds the plan's axes, and the only rules for which plans are legal on a fabric. The halves
//! and the table of protocols come from the files of the mechanisms, `path/half/`.

mod occupancy;
pub(crate) mod policies;
mod sharing;

pub use self::occupancy::{Occupancy, ServerConnections};
pub use self::sharing::{Lease, Sharing};

pub use crate::path::half::protocol::Protocol;
pub use crate::path::half::{PROTOCOLS, RequestHalf, ResponseHalf};
pub use crate::path::large::{LargePayload, SMALL_LIMIT};

use crate::path::beside::Beside;
use crate::path::half::{Facts, Place};
use crate::path::unconnected::MTU;
use dunlin_fabric::{Capabilities, Transport};
use dunlin_numbered::numbered;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

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

/// The reason why a plan cannot run on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
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
        let (request_limit, response_limit) =
            (request.facts().small_limit(MTU), response.facts().small_limit(MTU));
        Plan {
            request,
            response,
            sharing: Sharing::Dedicated,
            lease: Lease::Forever,
            client: CompletionMode::Busy,
            server: CompletionMode::Busy,
            large: LargePayload::Read,
            rendezvous_above: if request_limit < response_limit { request_limit } else { response_limit },
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

    /// Returns the plan with results that are written back, where they may be fetched and `rules_out_fetching`: a second
    /// path for results would only add cost.
    pub(crate) const fn written_back_if(self, rules_out_fetching: bool) -> Plan {
        match rules_out_fetching {
            true => Plan { response: self.response.written_back(), ..self },
            false => self,
        }
    }

    /// Returns the default plan of a fabric: [`Plan::default`], or SENDs both ways with read rendezvous and
    /// the same completion modes.
    ///
    /// SENDs are chosen where immediate data is missing (iWARP) or costs a message of its own (libfabric),
    /// and on any other fabric that is not [`acknowledged`](Capabilities::acknowledged), where only messages
    /// may consume RECVs.
    pub fn default_for(capabilities: &Capabilities) -> Plan {
        if capabilities.immediate && capabilities.acknowledged {
            return Plan::default();
        }
        let Plan { client, server, .. } = Plan::default();
        Plan::new(RequestHalf::Send, ResponseHalf::Send).completion(client, server)
    }

    /// Checks whether the plan can run on a fabric. Hints, `explain` and connecting all use this check.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), PlanError> {
        use CompletionMode::Busy;
        if let (Lease::Slice, Some(needs)) = (self.lease, self.lease_needs(capabilities)) {
            return Err(PlanError::LeaseWithout { lease: self.lease, needs });
        }
        if self.rendezvous_above > SMALL_LIMIT {
            return Err(PlanError::RendezvousAbove(self.rendezvous_above));
        }
        let (request, response) = (self.request.facts(), self.response.facts());
        if request.is_polled() && self.server != Busy && !capabilities.write_wakes {
            return Err(PlanError::SleepsOnMemory { side: "server", mode: self.server });
        }
        if response.is_only_fetched() && self.client != Busy {
            return Err(PlanError::SleepsOnFetch(self.client));
        }
        if response.is_polled() && self.client != Busy && !capabilities.write_wakes {
            return Err(PlanError::SleepsOnMemory { side: "client", mode: self.client });
        }
        let large = self.large.facts();
        if response.is_only_fetched() && large.is_written() {
            return Err(PlanError::WritesPastFetch);
        }
        if (response.is_hybrid() && large.has_steps()) || (response.is_only_fetched() && large.is_early()) {
            return Err(PlanError::LargePastHybrid(self.large));
        }
        if response.is_hybrid() && request.is_lossy() {
            return Err(PlanError::LossyHybrid);
        }
        if (request.is_polled() || response.is_polled() || response.is_fetched())
            && !capabilities.in_order_write
        {
            return Err(PlanError::NoOrder);
        }
        self.check_lossy(capabilities)?;
        // A side that sleeps while its peer's ring is full is woken by immediate data when there is room.
        let wakes_for_room = (self.server != Busy && response.needs_credit_update())
            || (self.client != Busy && request.needs_credit_update());
        let immediate = request.has_immediate() || response.has_immediate();
        if (immediate || wakes_for_room) && !capabilities.immediate {
            return Err(PlanError::Lacks("immediate data"));
        }
        // All other messages are bounded by the window, and there are RECVs for that many.
        let takes_receives = request.takes_receives() || response.takes_receives();
        if large.has_many_messages() && takes_receives && !capabilities.acknowledged {
            return Err(PlanError::EagerPastReceives(self.large));
        }
        if (self.client != Busy || self.server != Busy) && !capabilities.events {
            return Err(PlanError::Lacks("events to sleep on"));
        }
        Ok(())
    }

    /// Returns the property that the plan lacks for leases that end (ScaleRPC section 3.3).
    fn lease_needs(&self, capabilities: &Capabilities) -> Option<&'static str> {
        let (request, response) = (self.request.facts(), self.response.facts());
        let is_plain_ring = |half: &Facts| half.place == Place::Ring && !half.is_lossy();
        if !is_plain_ring(&request) || request.is_announced() {
            return Some("requests by write or write_imm");
        }
        if !is_plain_ring(&response) {
            return Some("answers that are written into a ring");
        }
        if self.large.facts().has_steps() {
            return Some("large payloads that are read");
        }
        // A client's word about the end of its lease has to follow everything that it wrote into its zone.
        (!capabilities.in_order_write)
            .then_some("a fabric that places WRITEs in the order in which they are posted")
    }

    /// The rules for halves that may lose messages.
    fn check_lossy(&self, capabilities: &Capabilities) -> Result<(), PlanError> {
        if !self.is_lossy() {
            return Ok(());
        }
        if self.large.facts().has_steps() {
            return Err(PlanError::LargeOverLossy(self.large));
        }
        for (transport, name) in [
            (Transport::UnreliableConnection, "unreliable connections (UC)"),
            (Transport::UnreliableDatagram, "datagrams (UD)"),
        ] {
            if self.uses(transport) && !capabilities.transports.contains(transport) {
                return Err(PlanError::Lacks(name));
            }
        }
        let limit_of = |half: Facts| half.small_limit(capabilities.max_datagram);
        let limit = limit_of(self.request.facts()).min(limit_of(self.response.facts()));
        if self.rendezvous_above > limit {
            return Err(PlanError::OverDatagram { above: self.rendezvous_above, limit });
        }
        Ok(())
    }

    /// Returns whether messages of either direction travel by `transport`.
    fn uses(&self, transport: Transport) -> bool {
        [self.request.facts(), self.response.facts()].iter().any(|half| half.transport == transport)
    }

    /// Returns the transports of the queue pairs that a lane has beside its reliable connection.
    pub(crate) fn beside(&self) -> Beside<Transport> {
        let used = |transport| Some(transport).filter(|transport| self.uses(*transport));
        Beside {
            connected: used(Transport::UnreliableConnection),
            unconnected: used(Transport::UnreliableDatagram),
        }
    }

    /// Returns whether requests or responses may be lost, so that the client sends again and the server
    /// answers again.
    pub const fn is_lossy(&self) -> bool {
        self.request.facts().is_lossy() || self.response.facts().is_lossy()
    }

    /// Returns whether the server counts the calls on the lane by credits. Not where messages may be lost: those
    /// that are sent again would count twice. Not where the client fetches results: the server cannot send it word.
    /// Not under leases that end: a lease says what may be sent.
    pub(crate) const fn has_credits(&self) -> bool {
        matches!(self.sharing, Sharing::Combined)
            && matches!(self.lease, Lease::Forever)
            && !self.is_lossy()
            && !self.response.facts().is_fetched()
    }

    /// Returns the row of the protocol table that matches this plan, if any. [`LargePayload::Pipelined`] matches
    /// rows with [`LargePayload::Read`].
    pub fn protocol(&self) -> Option<&'static Protocol> {
        PROTOCOLS.iter().find(|p| {
            p.request == self.request
                && p.response == self.response
                && (p.large == self.large || (p.large.facts().is_read() && self.large.facts().is_read()))
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
