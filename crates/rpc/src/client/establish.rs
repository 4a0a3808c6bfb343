//! The client's side of the handshake, split so that the steps that block do not hold the core:
//!
//! 1. [`greet`]: dial, Hello, HelloReply. Blocks; needs no core.
//! 2. [`PreparedLane::new`]: queue pair, inbound region, grants, endpoint. Needs the core, does not wait.
//! 3. [`negotiate`]: OpenLane, LaneReady for each lane. Blocks; needs no core.
//! 4. [`PreparedLane::join`]: connect the queue pair, make the lane. Needs the core, does not wait.

use super::batching::Batches;
use super::config::{ClientConfig, CreditRenewal};
use super::core::Core;
use super::lane::ClientLane;
use super::slots::Slots;
use crate::connect::records::{printable, receive, send};
use crate::error::ConnectError;
use crate::limits::{BLOCK_BYTES, RING_BYTES};
use crate::mailbox::{RingReader, RingWriter};
use crate::path::beside::{self, Beside};
use crate::path::credits::Credits;
use crate::path::half::hybrid::Hybrid;
use crate::path::half::{BesideEnd, Ends};
use crate::path::large::{Pool, TransferQueue};
use crate::path::local_ring::LocalRing;
use crate::path::posting::{MAX_SEND, repost, send_depth};
use crate::path::retransmit::RetransmitQueue;
use crate::path::sending::SendingParts;
use crate::path::{CONTROL_BYTES, Cx, Rx, Tx, unconnected};
use crate::plan::{CompletionMode, Lease, Occupancy, Plan, ServerConnections, Sharing};
use crate::tune::Tuners;
use dunlin_fabric::{
    Access, Address, Arena, Endpoint, Fabric, Link, Nanos, QueuePairConfig, QueuePairId, Region, RegionKey,
    ThreadDomain, Transport, nanos,
};
use dunlin_wire::handshake::{
    Extension, Extensions, Hello, HelloReply, LaneReady, MAX_PROGRAM_BYTES, MAX_VERSION, MIN_VERSION,
    OpenLane, Record, RefusalCode, Token,
};
use dunlin_wire::{BatchState, Direction, LINE, TagKey};
use std::sync::Arc;

/// The outcome of the hello exchange.
#[derive(Debug)]
pub(crate) struct Greeting<F: Fabric> {
    pub(crate) link: F::Link,
    pub(crate) reply: HelloReply,
}

impl<F: Fabric> Greeting<F> {
    /// Returns what the server said of its connections.
    pub(crate) fn connections(&self) -> ServerConnections {
        let said = &self.reply.extensions;
        ServerConnections { open: said.connections(), active_queue_pairs: said.active_queue_pairs() }
    }

    /// Returns the threads and cores of the server's host, if the server stated them.
    pub(crate) fn occupancy(&self) -> Option<Occupancy> {
        let (clients, cores) = self.reply.extensions.occupancy()?;
        Some(Occupancy { workers: self.reply.workers.into(), clients, cores })
    }
}

/// The end of the refusal by which servers of older builds refuse every name if they have none themselves.
const NAMELESS: &str = ", but ''";

/// Dials and exchanges hellos.
pub(crate) fn greet<F: Fabric>(
    fabric: &F,
    address: &Address,
    config: &ClientConfig,
    until: Nanos,
) -> Result<Greeting<F>, ConnectError> {
    match greet_as(fabric, address, config, (&config.service, named(config)), until) {
        Err(ConnectError::OtherService(text)) if text.ends_with(NAMELESS) => {
            greet_as(fabric, address, config, ("", named(config)), until)
        }
        greeted => greeted,
    }
}

/// Returns the extensions by which a client names itself.
fn named(config: &ClientConfig) -> Extensions {
    let program = &config.program[..config.program.floor_char_boundary(MAX_PROGRAM_BYTES)];
    let program = (!program.is_empty()).then(|| Extension::Program(program.to_owned()));
    Extensions(config.identity.map(Extension::Client).into_iter().chain(program).collect())
}

/// Like [`greet`], asking for the service with this name.
fn greet_as<F: Fabric>(
    fabric: &F,
    address: &Address,
    config: &ClientConfig,
    (service, extensions): (&str, Extensions),
    until: Nanos,
) -> Result<Greeting<F>, ConnectError> {
    let link = fabric.dial(address, until)?;
    let peer = link.peer();
    // Before the token is sent.
    if let Some(expected) = config.server.as_ref().filter(|expected| **expected != peer) {
        return Err(ConnectError::OtherProcess { expected: expected.clone(), peer });
    }
    let is_named = !extensions.0.is_empty();
    let hello = Hello {
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        capabilities: 0,
        process_id: dunlin_fabric::Host::process_id(fabric.host()),
        service: service.to_owned(),
        token: Token(config.token.clone()),
        extensions,
    };
    // A server that refuses everybody may have closed the connection before our hello. Its refusal can still
    // be received.
    let said = send(&link, &Record::Hello(hello));
    let answer = receive(&link, until);
    if answer.is_err() {
        said?;
    }
    match answer? {
        Record::HelloReply(reply) if reply.workers == 0 => {
            Err(ConnectError::Handshake("the server has no workers".into()))
        }
        Record::HelloReply(reply) if !(MIN_VERSION..=MAX_VERSION).contains(&reply.version) => {
            Err(ConnectError::Version {
                ours_low: MIN_VERSION,
                ours_high: MAX_VERSION,
                theirs_low: reply.version,
                theirs_high: reply.version,
            })
        }
        Record::HelloReply(reply) => Ok(Greeting { link, reply }),
        Record::Refused(refused) if refused.code == RefusalCode::UNKNOWN_SERVICE => {
            Err(ConnectError::OtherService(printable(&refused.text)))
        }
        // A server of version 3 or below does not know extensions. Without them it names its versions.
        Record::Refused(refused) if refused.code == RefusalCode::MALFORMED && is_named => {
            drop(link);
            greet_as(fabric, address, config, (service, Extensions::default()), until)
        }
        Record::Refused(refused) if refused.code == RefusalCode::UNAUTHORISED => {
            Err(ConnectError::Unauthorised(printable(&refused.text)))
        }
        Record::Refused(refused) => Err(ConnectError::Refused(printable(&refused.text))),
        other => {
            Err(ConnectError::Handshake(format!("{:?} came instead of HelloReply", other.record_type())))
        }
    }
}

/// The client's half of a lane.
#[derive(Debug)]
pub(crate) struct PreparedLane<F: Fabric> {
    pub(crate) number: u16,
    pub(crate) queue_pair: QueuePairId,
    /// The queue pairs for other transports.
    beside: Beside<QueuePairId>,
    /// The control line, followed by the ring of responses if the plan has one.
    region: Region<F::Memory>,
    /// The key under which `region` is granted to the server.
    granted: RegionKey,
    /// The ring of requests that the server READs, and its grant, if leases of the server's memory end.
    staged: Option<(Region<F::Memory>, RegionKey)>,
    plan: Plan,
    /// The plan was hybrid, and the fabric's rates rule fetching out.
    pub(crate) ruled_out: bool,
    open: OpenLane,
}

impl<F: Fabric> PreparedLane<F> {
    pub(crate) fn new(
        core: &mut Core<F>,
        greeting: &Greeting<F>,
        config: &ClientConfig,
        plan: Plan,
        number: u16,
        worker: u16,
    ) -> Result<Self, ConnectError> {
        let mut made = Vec::with_capacity(3);
        let prepared = Self::make(core, greeting, config, plan, (number, worker), &mut made);
        if prepared.is_err() {
            core.destroy(made);
        }
        prepared
    }

    /// Creates the half, and records its queue pairs in `made`, so that the caller can destroy them after a
    /// failure.
    fn make(
        core: &mut Core<F>,
        greeting: &Greeting<F>,
        config: &ClientConfig,
        plan: Plan,
        (number, worker): (u16, u16),
        made: &mut Vec<QueuePairId>,
    ) -> Result<Self, ConnectError> {
        let answers = plan.response.facts();
        let ring = if answers.has_ring() { config.ring_bytes as usize } else { 0 };
        let region = Region::new(core.fabric.register((CONTROL_BYTES + ring) as u64, Access::WRITE)?);
        let reliable = QueuePairConfig {
            max_send: send_depth(plan.request.facts(), config.window, core.fabric.capabilities()),
            max_receive: answers.receives(config.window).max(1),
            inbound_bytes: answers.inbound_bytes(),
            ..QueuePairConfig::reliable(core.send_completions, core.receive_completions)
        };
        let mut create =
            |config: QueuePairConfig, named: bool| -> Result<(QueuePairId, Vec<u8>), ConnectError> {
                let queue_pair = core.domain.create_queue_pair(&config)?;
                made.push(queue_pair);
                let endpoint = match named {
                    true => core.domain.endpoint(queue_pair, &greeting.link)?.0,
                    false => Vec::new(),
                };
                Ok((queue_pair, endpoint))
            };
        let (queue_pair, endpoint) = create(reliable, true)?;
        let beside = plan.beside().try_map(|transport| {
            let receives = answers.receives_beside(transport, config.window);
            // The server needs no endpoint without a connection that receives nothing.
            let named = transport != Transport::UnreliableDatagram || receives > 0;
            create(beside::config(&reliable, transport, receives), named)
        })?;
        let key = greeting.link.grant(region.memory(), Access::WRITE)?;
        let staged = match plan.lease {
            Lease::Forever => None,
            Lease::Slice => {
                let memory = core.fabric.register(u64::from(config.ring_bytes), Access::READ)?;
                let ring = Region::new(memory);
                let key = greeting.link.grant(ring.memory(), Access::READ)?;
                Some((ring, key))
            }
        };
        let (beside, endpoints) = beside.unzip();
        let open = OpenLane {
            lane: number,
            worker,
            request_half: plan.request as u8,
            response_half: plan.response as u8,
            client_completion: plan.client as u8,
            server_completion: plan.server as u8,
            window: config.window,
            ring_bytes: config.ring_bytes,
            rendezvous_above: plan.rendezvous_above,
            large: plan.large as u8,
            sharing: plan.sharing as u8,
            lease: plan.lease as u8,
            endpoint,
            unreliable_endpoint: endpoints.connected.unwrap_or_default(),
            datagram_endpoint: endpoints.unconnected.unwrap_or_default(),
            region_keys: std::iter::once(key.0).chain(staged.iter().map(|(_, key)| key.0)).collect(),
            extensions: credits_of(&plan, config),
        };
        Ok(PreparedLane {
            number,
            queue_pair,
            beside,
            region,
            granted: key,
            staged,
            plan,
            ruled_out: false,
            open,
        })
    }

    /// All queue pairs of this half.
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = QueuePairId> + use<F> {
        std::iter::once(self.queue_pair).chain(self.beside.into_iter())
    }

    /// Returns the control line, the key of the second region that the server granted, and the place of the ring for
    /// requests, if the server offers nothing impossible.
    fn agreed(
        &self,
        config: &ClientConfig,
        ready: &LaneReady,
    ) -> Result<(LineAt, u64, RingAt), &'static str> {
        let ring_bytes = ready.ring_bytes;
        if ring_bytes > config.ring_bytes
            || !RING_BYTES.contains(&ring_bytes)
            || !ring_bytes.is_power_of_two()
        {
            return Err("the ring that the server offers has an impossible size");
        }
        if ready.window == 0 || ready.window > config.window {
            return Err("the window that the server offers is not within what was asked for");
        }
        let may_be_pooled = self.plan.request.facts().has_ring() && self.staged.is_none();
        let ([control, second], ring) = RingAt::of(ready, may_be_pooled)?;
        let at = line_of(ready.extensions.control_line(), self.staged.is_some())?;
        Ok(((RegionKey(control), at), second, ring))
    }

    /// Joins this half with the server's.
    pub(crate) fn join(
        self,
        core: &mut Core<F>,
        greeting: &Greeting<F>,
        config: &ClientConfig,
        ready: &LaneReady,
        index: u16,
        tuners: &Tuners,
    ) -> Result<ClientLane<F>, ConnectError> {
        let broken = |what: &str| ConnectError::Handshake(what.to_owned());
        let plan = self.plan;
        let (control_line, second, ring_at) = self.agreed(config, ready).map_err(broken)?;
        let (queue_pair, link) = (self.queue_pair, greeting.link.clone());
        core.domain.connect(queue_pair, &link, &Endpoint(ready.endpoint.clone()))?;
        let peers = Beside {
            connected: Some(Endpoint(ready.unreliable_endpoint.clone())),
            unconnected: Some(Endpoint(ready.datagram_endpoint.clone())),
        };
        if let (Some(own), Some(peer)) = (self.beside.connected, &peers.connected) {
            core.domain.connect(own, &link, peer)?;
        }
        let secret = &ready.secret.0;
        let max_inline = core.fabric.capabilities().max_inline;
        let (requests, answers) = (plan.request.facts(), plan.response.facts());
        let receives_beside = answers.receives_beside(answers.transport, config.window);
        let beside = self.beside.with(peers.as_ref()).map(|(queue_pair, peer)| BesideEnd {
            queue_pair,
            unsignaled: Arc::default(),
            max_send: MAX_SEND,
            peer,
            place: ready.place,
            waiting: receives_beside as usize,
        });
        let mut ends = Ends {
            cx: Cx { fabric: &core.fabric, domain: &mut core.domain },
            link: &link,
            lane: index,
            window: config.window,
            queue_pair,
            beside,
            max_send: MAX_SEND,
            to: (ring_at.key, ring_at.base),
            ring_bytes: ready.ring_bytes,
            published: None,
            staged: self.staged,
            control: control_line,
            second: RegionKey(second),
            from: Some(LocalRing {
                region: self.region.clone(),
                base: CONTROL_BYTES as u32,
                reader: RingReader::new(config.ring_bytes as usize),
            }),
        };
        let made = plan.request.sender(&mut ends)?;
        let source = plan.response.receiver(&mut ends)?;
        let fetched = plan.response.fetched_receiver(&mut ends)?;
        let max_message = made.max_message;
        let tx = Tx::new(
            made.half,
            SendingParts {
                facts: requests,
                queue_pair: made.queue_pair,
                reports: queue_pair,
                lane: index,
                ring: RingWriter::of_blocks(ready.ring_bytes as usize, ring_at.block),
                tags: TagKey::derive(secret, self.number, Direction::ToServer),
                max_send: made.max_send,
                max_inline,
                control: self.region.clone(),
                head_at: 0,
                peer_sleeps: plan.server != CompletionMode::Busy && !requests.is_polled(),
            },
        );
        let hybrid = match (fetched, &tuners.fetch) {
            (None, _) => None,
            (Some(_), None) => return Err(broken("nothing chooses between fetching and writing back")),
            (Some(source), Some(tuner)) => {
                let tags = TagKey::derive(secret, self.number, Direction::Fetched);
                let rx = Rx::new(source, tags, false);
                Some(Box::new(Hybrid::new(rx, ready.window, Arc::clone(tuner))))
            }
        };
        let tags = TagKey::derive(secret, self.number, Direction::ToClient);
        let rx = Rx::new(source, tags, answers.gated_by_completion(core.fabric.capabilities()));
        let mut post = |queue_pair, count: u32, bytes: usize| -> Result<(), ConnectError> {
            let arena = match bytes {
                0 => None,
                _ => {
                    let memory = core.fabric.register(u64::from(count) * bytes as u64, Access::LOCAL)?;
                    Some(Arena::new(memory).map_err(|error| broken(&error.to_string()))?)
                }
            };
            for _ in 0..count {
                let buffer = arena.as_ref().map(|arena| arena.reserve(bytes)).transpose();
                let buffer = buffer.map_err(|error| broken(&error.to_string()))?;
                repost::<F>(&mut core.domain, queue_pair, index, buffer)
                    .map_err(|error| broken(&error.to_string()))?;
            }
            Ok(())
        };
        post(queue_pair, answers.receives(config.window), answers.receive_bytes())?;
        let receiving = self.beside.of(answers.transport).filter(|_| receives_beside > 0).copied();
        if let Some(queue_pair) = receiving {
            let bytes = unconnected::receive_bytes(core.fabric.capabilities());
            post(queue_pair, receives_beside, bytes)?;
        }
        core.domain.watch(&self.region);
        let is_shared = plan.sharing == Sharing::Combined || plan.lease != Lease::Forever;
        Ok(ClientLane {
            is_plain: !is_shared && !plan.is_lossy() && hybrid.is_none() && config.batching.is_none(),
            index,
            connection: 0,
            queue_pair,
            beside: self.beside,
            receives: receiving.unwrap_or(queue_pair),
            strays: 0,
            hybrid,
            written_by_rates: tuners.fetch.clone().filter(|_| self.ruled_out),
            retransmit: plan
                .is_lossy()
                .then(|| Box::new(RetransmitQueue::new(ready.window, nanos(config.silence)))),
            link: link.clone(),
            tx,
            rx,
            slots: Slots::new(ready.window),
            granted: self.granted,
            region: self.region,
            heard: false,
            control_line,
            rendezvous_above: plan.rendezvous_above as usize,
            large: plan.large,
            max_payload: greeting.reply.max_payload.min(u32::MAX as u64),
            max_response: config.max_response,
            exports: Pool::new(plan.large.facts().is_read().then(|| link.clone()), config.large_memory),
            imports: Pool::new(None, config.large_memory),
            inbound: plan.large.sender().receiver(link, config.large_memory, ready.window),
            pending_transfers: TransferQueue::new(plan.large, ready.window),
            releases: Vec::with_capacity(config.window as usize),
            batch: BatchState::new(),
            batching: config
                .batching
                .as_ref()
                .map(|batching| Box::new(Batches::new(batching, ready.window, tuners.batch.clone()))),
            staging: vec![0; max_message],
            batch_sequence: 0,
            batch_time: 0,
            batch_nanos: 0,
            number: self.number,
            is_combined: plan.sharing == Sharing::Combined,
            credits: plan.has_credits().then(|| Box::new(Credits::new(config.credits, is_apart(config)))),
            draining: false,
            closing: false,
            broken: None,
            replaced: false,
            taken: None,
            by_completion: !answers.is_polled(),
            reading: 0,
            memory: 0,
        })
    }
}

/// Returns whether requests for credits travel by immediate data.
fn is_apart(config: &ClientConfig) -> bool {
    config.credit_renewal == CreditRenewal::WriteImmediate
}

/// The region of a lane's control line, and the line's offset there.
type LineAt = (RegionKey, usize);

/// Returns the offset of the control line: 0, or a line among those of others for a lane whose leases end.
fn line_of(told: Option<u64>, has_leases: bool) -> Result<usize, &'static str> {
    match told {
        None if !has_leases => Ok(0),
        Some(at) if has_leases && at.is_multiple_of(CONTROL_BYTES as u64) && at <= u32::MAX.into() => {
            Ok(at as usize)
        }
        _ => Err("the server offers an impossible place for the control line"),
    }
}

/// The place of the ring for requests.
#[derive(Debug, PartialEq, Eq)]
struct RingAt {
    key: RegionKey,
    /// Offset in the region.
    base: u64,
    /// Bytes of a block.
    block: usize,
}

impl RingAt {
    /// Returns the keys of the two regions of a lane, and the place of its ring: in the first region, or in a pool if the
    /// server says so and the ring `may_be_pooled`.
    fn of(ready: &LaneReady, may_be_pooled: bool) -> Result<([u64; 2], RingAt), &'static str> {
        match (&ready.region_keys[..], ready.extensions.request_ring()) {
            (&[control, second], None) => {
                let key = RegionKey(control);
                Ok(([control, second], RingAt { key, base: CONTROL_BYTES as u64, block: LINE }))
            }
            (&[control, second, pool], Some((base, block))) => {
                let is_possible = may_be_pooled
                    && BLOCK_BYTES.contains(&block)
                    && block.is_power_of_two()
                    && base.checked_add(ready.ring_bytes.into()).is_some();
                if !is_possible {
                    return Err("the server offers an impossible place for the ring");
                }
                Ok(([control, second], RingAt { key: RegionKey(pool), base, block: block as usize }))
            }
            _ => Err("the server did not grant the regions of a lane"),
        }
    }
}

/// Returns the extensions by which a lane with credits names C, and how it asks for more.
fn credits_of(plan: &Plan, config: &ClientConfig) -> Extensions {
    if !plan.has_credits() {
        return Extensions::default();
    }
    let apart = is_apart(config).then_some(Extension::RenewedApart);
    Extensions([Extension::Credits(config.credits as u8)].into_iter().chain(apart).collect())
}

/// Asks the server to open its halves of the first lanes of a connection, and waits for all answers.
pub(crate) fn negotiate<F: Fabric>(
    greeting: &Greeting<F>,
    prepared: &[PreparedLane<F>],
    until: Nanos,
) -> Result<Vec<LaneReady>, ConnectError> {
    negotiate_beside(greeting, prepared, until, &mut Vec::new())
}

/// As [`negotiate`], on a connection that has lanes already. Adds the records about those to `others`, for
/// [`Core::on_record`]. Nothing else may receive from the connection meanwhile.
pub(crate) fn negotiate_beside<F: Fabric>(
    greeting: &Greeting<F>,
    prepared: &[PreparedLane<F>],
    until: Nanos,
    others: &mut Vec<Record>,
) -> Result<Vec<LaneReady>, ConnectError> {
    for lane in prepared {
        send(&greeting.link, &Record::OpenLane(lane.open.clone()))?;
    }
    let asked = |number: u16| prepared.iter().any(|lane| lane.number == number);
    let mut ready = Vec::with_capacity(prepared.len());
    while ready.len() < prepared.len() {
        match receive(&greeting.link, until)? {
            Record::LaneReady(lane) => ready.push(lane),
            Record::LaneRefused(refused)
                if asked(refused.lane) && refused.code == RefusalCode::QUEUE_PAIRS =>
            {
                return Err(ConnectError::NoQueuePair);
            }
            Record::LaneRefused(refused) if asked(refused.lane) => {
                return Err(ConnectError::Refused(printable(&refused.text)));
            }
            Record::Refused(refused) => {
                return Err(ConnectError::Refused(printable(&refused.text)));
            }
            Record::Drain | Record::Goodbye => {
                return Err(ConnectError::Refused("the server is shutting down".into()));
            }
            Record::Drained(mark) if asked(mark.lane) => {
                return Err(ConnectError::Handshake("a lane ended before it was opened".into()));
            }
            other @ (Record::LaneRefused(_) | Record::Drained(_)) => others.push(other),
            other => {
                return Err(ConnectError::Handshake(format!(
                    "{:?} came instead of LaneReady",
                    other.record_type()
                )));
            }
        }
    }
    Ok(ready)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_wire::handshake::Secret;

    fn ready(region_keys: &[u64], ring: Option<(u64, u32)>) -> LaneReady {
        LaneReady {
            lane: 0,
            worker: 0,
            window: 1,
            max_batch_entries: 1,
            ring_bytes: 1 << 14,
            max_message_bytes: 4096,
            secret: Secret([0; 16]),
            endpoint: Vec::new(),
            unreliable_endpoint: Vec::new(),
            datagram_endpoint: Vec::new(),
            place: 0,
            region_keys: region_keys.to_vec(),
            extensions: Extensions(
                ring.map(|(offset, block)| Extension::RequestRing { offset, block }).into_iter().collect(),
            ),
        }
    }

    #[test]
    fn the_ring_lies_in_the_own_region_or_in_a_pool() {
        let own = RingAt { key: RegionKey(7), base: CONTROL_BYTES as u64, block: LINE };
        assert_eq!(RingAt::of(&ready(&[7, 8], None), true), Ok(([7, 8], own)));
        let pooled = RingAt { key: RegionKey(9), base: 1 << 20, block: 4096 };
        assert_eq!(RingAt::of(&ready(&[7, 8, 9], Some((1 << 20, 4096))), true), Ok(([7, 8], pooled)));
    }

    #[test]
    fn the_control_line_lies_where_leases_let_it() {
        assert_eq!(line_of(None, false), Ok(0));
        assert_eq!(line_of(Some(640), true), Ok(640));
        for (told, has_leases) in [(None, true), (Some(0), false), (Some(8), true), (Some(1 << 32), true)] {
            assert!(line_of(told, has_leases).is_err(), "{told:?} {has_leases}");
        }
    }

    #[test]
    fn impossible_places_are_refused() {
        let possible = Some((0, 4096));
        for (keys, ring, may_be_pooled) in [
            (&[7, 8, 9][..], possible, false),
            (&[7, 8], possible, true),
            (&[7, 8, 9], None, true),
            (&[7], None, true),
            (&[], None, true),
            (&[7, 8, 9], Some((0, 0)), true),
            (&[7, 8, 9], Some((0, 32)), true),
            (&[7, 8, 9], Some((0, 96)), true),
            (&[7, 8, 9], Some((0, 8192)), true),
            (&[7, 8, 9], Some((u64::MAX, 4096)), true),
        ] {
            assert!(RingAt::of(&ready(keys, ring), may_be_pooled).is_err(), "{keys:?} {ring:?}");
        }
    }
}
