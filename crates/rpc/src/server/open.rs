//! Opening the server's end of a lane: the worker's part of the handshake.

use super::groups::{GroupMemory, LeasedLane};
use super::inbox::OpenCommand;
use super::lane::{LaneParts, ServerLane};
use super::lines::ControlLine;
use super::worker::{SHARED_RECEIVES, Worker};
use crate::connect::records::send;
use crate::error::ConnectError;
use crate::grouped::sorted::grow;
use crate::mailbox::{RingReader, RingWriter};
use crate::path::credits::RENEWAL_RECEIVES;
use crate::path::grants::end_grants;
use crate::path::half::datagram;
use crate::path::half::hybrid::{PUBLISHED_HEAD, Published};
use crate::path::half::{DatagramEnd, Ends, Sender};
use crate::path::posting::{self, MAX_SEND, repost, send_depth, unreliable};
use crate::path::sending::SendingParts;
use crate::path::{CONTROL_BYTES, Cx, MAX_MESSAGE, Rx, Tx, route};
use crate::plan::{CompletionMode, Plan};
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Access, AddressHandleId, Arena, Buffer, Capabilities, CreateError, Fabric, Link, QueuePairConfig,
    QueuePairId, ReceiveTarget, RegionKey, SharedReceiveQueueId, ThreadDomain, Transport,
};
use dunlin_wire::handshake::{Extension, Extensions, LaneReady, LaneRefused, Record, RefusalCode, Secret};
use dunlin_wire::{Direction, LINE, TagKey};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Send depth of the datagram queue pair, for all lanes together.
const DATAGRAM_SENDS: u32 = 1024;
/// RECVs for datagrams, for all lanes together. A datagram that finds none is lost.
const DATAGRAM_RECEIVES: u32 = 1024;

/// Returns whether requests of this plan arrive as completions.
pub(crate) fn by_completion(plan: &Plan) -> bool {
    !plan.request.facts().is_polled()
}

/// Posts a RECV that lanes share again.
pub(crate) fn repost_shared<F: Fabric>(
    domain: &mut F::Domain,
    target: ReceiveTarget,
    buffer: Option<Buffer<F::Memory>>,
) {
    let buffer = buffer.map(|mut buffer| {
        let capacity = buffer.capacity();
        buffer.set_length(capacity);
        buffer
    });
    if let Err(error) = domain.post_receive(target, route::receive(route::SHARED), buffer) {
        tracing::error!(target: "dunlin::server", %error, "a shared RECV was lost");
    }
}

/// Opens a lane and sends the client its parameters.
pub(crate) fn open_lane<F: Fabric>(
    worker: &mut Worker<F>,
    mut command: OpenCommand<F>,
    serial: u32,
) -> Result<ServerLane<F>, ConnectError> {
    let fabric = worker.fabric.clone();
    let index = worker.next_index();
    command.admission.set_serial(serial);
    let plan = command.plan;
    let mut queue_pair = QueuePairConfig::reliable(worker.send_completions, worker.receive_completions);
    queue_pair.max_send = send_depth(plan.response.facts(), command.window, fabric.capabilities());
    let (requests, answers) = (plan.request.facts(), plan.response.facts());
    let renewals = renewal_receives(&command);
    if has_own_receives(&plan, fabric.capabilities()) {
        queue_pair.max_receive = own_receives(command.window) + renewals;
    } else if requests.is_sent() || (requests.is_datagram() && answers.needs_credit_update()) {
        // Head reports take RECVs, too.
        prepare_shared(worker, &fabric)?;
        queue_pair.shared_receive = Some(worker.shared_receive);
        queue_pair.max_receive = 0;
    } else {
        queue_pair.max_receive = (requests.receives(command.window) + renewals).max(1);
    }
    queue_pair.inbound_bytes = requests.inbound_bytes();
    if plan.uses(Transport::UnreliableDatagram) {
        prepare_datagrams(worker, &fabric)?;
    }
    let beside = plan.uses(Transport::UnreliableConnection).then(|| unreliable(&queue_pair));
    let queue_pair = worker.domain.create_queue_pair(&queue_pair)?;
    let mut made = Made { queue_pairs: vec![queue_pair], handle: None, keys: Vec::new(), line: None };
    let link = command.link.clone();
    let opened = join(worker, &fabric, command, index, (queue_pair, beside), &mut made);
    if opened.is_err() {
        if let Some(handle) = made.handle {
            let _ = worker.domain.destroy_address_handle(handle);
        }
        for queue_pair in made.queue_pairs {
            let _ = worker.domain.destroy_queue_pair(queue_pair);
        }
        worker.give_back_ring(index);
        if let Some(line) = &made.line {
            worker.give_back_line(line);
        }
        end_grants(fabric.host(), &link, made.keys);
    }
    opened
}

impl<F: Fabric> Worker<F> {
    /// Returns the index for another lane.
    pub(super) fn next_index(&mut self) -> u16 {
        let index = self.lanes.iter().position(Option::is_none).unwrap_or_else(|| {
            // Lanes are large, and most of the memory of a client.
            grow(&mut self.lanes);
            self.lanes.push(None);
            grow(&mut self.listed);
            self.listed.push(false);
            self.lanes.len() - 1
        });
        index as u16
    }
}

/// Returns the number of RECVs for the lane's requests for credits, if they travel by immediate data.
fn renewal_receives<F: Fabric>(command: &OpenCommand<F>) -> u32 {
    let is_apart = command.credits.as_ref().is_some_and(|credits| credits.is_renewed_apart());
    if is_apart { RENEWAL_RECEIVES } else { 0 }
}

/// Returns the number of RECVs of a lane that cannot share them, because a SEND that finds none ends the
/// connection: one for each call of the window, and one for the `Release` that may precede it.
fn own_receives(window: u16) -> u32 {
    2 * u32::from(window) + 8
}

/// Registers memory for a lane's own RECVs, and posts them.
fn post_own_receives<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    queue_pair: QueuePairId,
    count: u32,
) -> Result<(), ConnectError> {
    let memory = fabric.register(u64::from(count) * MAX_MESSAGE as u64, Access::LOCAL)?;
    let failed = |error: &dyn std::fmt::Display| ConnectError::Handshake(error.to_string());
    let arena = Arena::new(memory).map_err(|error| failed(&error))?;
    for _ in 0..count {
        let buffer = arena.reserve(MAX_MESSAGE).map_err(|error| failed(&error))?;
        let target = ReceiveTarget::QueuePair(queue_pair);
        let posted = worker.domain.post_receive(target, route::receive(route::SHARED), Some(buffer));
        posted.map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Resources created for a lane, to be destroyed if it cannot be opened.
struct Made<F: Fabric> {
    queue_pairs: Vec<QueuePairId>,
    handle: Option<AddressHandleId>,
    keys: Vec<RegionKey>,
    line: Option<ControlLine<F>>,
}

/// A worker's queue pair and memory for the datagrams of all its lanes.
#[derive(Debug)]
pub(crate) struct DatagramPair<F: Fabric> {
    pub(crate) queue_pair: QueuePairId,
    /// Buffers of its RECVs.
    arena: Arena<F::Memory>,
    receive_bytes: usize,
    /// Work requests that lanes have posted since the last signaled one.
    unsignaled: Arc<AtomicU32>,
}

/// Creates the queue pair for datagrams, when the first lane needs it.
fn prepare_datagrams<F: Fabric>(worker: &mut Worker<F>, fabric: &F) -> Result<(), ConnectError> {
    if worker.datagrams.is_some() {
        return Ok(());
    }
    let capabilities = fabric.capabilities();
    let receives = DATAGRAM_RECEIVES.min(capabilities.max_queue_depth);
    let receive_bytes = datagram::receive_bytes(capabilities);
    let memory = fabric.register(u64::from(receives) * receive_bytes as u64, Access::LOCAL)?;
    let arena = Arena::new(memory).map_err(|error| ConnectError::Handshake(error.to_string()))?;
    let config = QueuePairConfig {
        transport: Transport::UnreliableDatagram,
        max_send: DATAGRAM_SENDS.min(capabilities.max_queue_depth),
        max_receive: receives,
        inbound_bytes: datagram::INBOUND_BYTES,
        ..QueuePairConfig::reliable(worker.send_completions, worker.receive_completions)
    };
    let queue_pair = worker.domain.create_queue_pair(&config)?;
    worker.datagrams = Some(DatagramPair { queue_pair, arena, receive_bytes, unsignaled: Arc::default() });
    refill_datagrams(worker);
    Ok(())
}

/// Posts all RECVs for datagrams whose buffers are free.
pub(crate) fn refill_datagrams<F: Fabric>(worker: &mut Worker<F>) {
    let Some(datagrams) = &worker.datagrams else { return };
    for _ in 0..DATAGRAM_RECEIVES {
        let Ok(buffer) = datagrams.arena.reserve(datagrams.receive_bytes) else { return };
        let target = ReceiveTarget::QueuePair(datagrams.queue_pair);
        repost_shared::<F>(&mut worker.domain, target, Some(buffer));
    }
}

/// Placeholder on fabrics without shared receive queues; nothing can be posted to it.
pub(crate) const NO_SHARED_RECEIVES: SharedReceiveQueueId = SharedReceiveQueueId(u32::MAX);

/// Returns whether each lane has its own RECVs: where a SEND that finds no RECV breaks its queue pair, lanes
/// cannot share them.
fn has_own_receives(plan: &Plan, capabilities: &Capabilities) -> bool {
    plan.request.facts().is_sent() && !(capabilities.acknowledged && capabilities.shared_receive_queue)
}

/// Fills the shared receive queue, when the first lane needs it.
fn prepare_shared<F: Fabric>(worker: &mut Worker<F>, fabric: &F) -> Result<(), ConnectError> {
    if !fabric.capabilities().shared_receive_queue {
        return Err(CreateError::Unsupported("shared receive queues").into());
    }
    if worker.receive_arena.is_some() {
        return Ok(());
    }
    let memory = fabric.register(u64::from(SHARED_RECEIVES) * MAX_MESSAGE as u64, Access::LOCAL)?;
    let arena = Arena::new(memory).map_err(|error| ConnectError::Handshake(error.to_string()))?;
    worker.receive_arena = Some(arena);
    refill_shared(worker);
    Ok(())
}

/// Posts all RECVs of the shared queue whose buffers are free. The arena has as many buffers as the queue is
/// deep.
pub(crate) fn refill_shared<F: Fabric>(worker: &mut Worker<F>) {
    let Some(arena) = &worker.receive_arena else { return };
    for _ in 0..SHARED_RECEIVES {
        let Ok(buffer) = arena.reserve(MAX_MESSAGE) else { return };
        let target = ReceiveTarget::Shared(worker.shared_receive);
        repost_shared::<F>(&mut worker.domain, target, Some(buffer));
    }
}

/// Joins the client's end of a lane with a new one of this server.
fn join<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    command: OpenCommand<F>,
    index: u16,
    (queue_pair, beside): (QueuePairId, Option<QueuePairConfig>),
    made: &mut Made<F>,
) -> Result<ServerLane<F>, ConnectError> {
    let plan = command.plan;
    let renewals = renewal_receives(&command);
    let link = command.link;
    let (requests, answers) = (plan.request.facts(), plan.response.facts());
    let unreliable = match beside {
        None => None,
        Some(config) => {
            let queue_pair = worker.domain.create_queue_pair(&config)?;
            made.queue_pairs.push(queue_pair);
            let endpoint = worker.domain.endpoint(queue_pair, &link)?;
            worker.domain.connect(queue_pair, &link, &command.unreliable_endpoint)?;
            Some((queue_pair, endpoint.0))
        }
    };
    let pool = match command.staged {
        Some(_) => {
            let GroupMemory { place, pool, key, line } = worker.memory_for(&link)?;
            made.keys.push(key);
            made.line = Some(line);
            Some((place, pool, key))
        }
        None => None,
    };
    // The region and the offset of the control line.
    let (region, line_at) = match (command.region, &made.line) {
        (Some(region), _) => (region, 0),
        (None, Some(line)) => (line.region.clone(), u32::from(line.at)),
        (None, None) => return Err(ConnectError::Handshake("the lane has no control line".into())),
    };
    let control_key = link.grant(region.memory(), Access::WRITE)?;
    made.keys.push(control_key);
    let settings = worker.shared().config.request_pool.filter(|_| requests.has_ring() && pool.is_none());
    let ring = settings.map(|settings| worker.take_ring(&link, index, settings)).transpose()?;
    made.keys.extend(ring.as_ref().map(|ring| ring.key));
    let published_key = match &command.published {
        Some(region) => {
            let key = link.grant(region.memory(), Access::READ)?;
            made.keys.push(key);
            key.0
        }
        None => 0,
    };
    let endpoint = worker.domain.endpoint(queue_pair, &link)?;
    worker.domain.connect(queue_pair, &link, &command.endpoint)?;
    let receives_alone = has_own_receives(&plan, fabric.capabilities());
    if receives_alone {
        let count = own_receives(command.window) + renewals;
        post_own_receives(worker, fabric, queue_pair, count)?;
    }
    if requests.has_ring() {
        for _ in 0..requests.receives(command.window) + renewals {
            repost::<F>(&mut worker.domain, queue_pair, index, None)
                .map_err(|error| ConnectError::Handshake(error.to_string()))?;
        }
    }
    let datagram_pair = worker.datagrams.as_ref().filter(|_| plan.uses(Transport::UnreliableDatagram));
    let datagrams = match datagram_pair {
        None => None,
        Some(pair) => {
            let (queue_pair, unsignaled) = (pair.queue_pair, Arc::clone(&pair.unsignaled));
            let receives = requests.is_datagram();
            let endpoint = receives.then(|| worker.domain.endpoint(queue_pair, &link)).transpose()?;
            Some((queue_pair, unsignaled, endpoint))
        }
    };
    let block = ring.as_ref().map_or(LINE, |ring| ring.block as usize);
    let (inbound, base) = match (&pool, &ring) {
        (Some((_, pool, _)), _) => (pool, 0),
        (None, Some(ring)) => (&ring.region, ring.base),
        (None, None) => (&region, CONTROL_BYTES as u32),
    };
    let mut ends = Ends {
        cx: Cx { fabric, domain: &mut worker.domain },
        link: &link,
        lane: index,
        window: command.window,
        queue_pair,
        unreliable: unreliable.as_ref().map(|(queue_pair, _)| *queue_pair),
        datagrams: datagrams.as_ref().map(|(queue_pair, unsignaled, _)| DatagramEnd {
            queue_pair: *queue_pair,
            unsignaled: Arc::clone(unsignaled),
            max_send: DATAGRAM_SENDS,
            peer: &command.datagram_endpoint,
            place: 0,
            // A client sends again what it holds for lost.
            waiting: posting::datagrams(command.window.saturating_mul(2)) as usize,
        }),
        max_send: MAX_SEND,
        to: (command.client_key, CONTROL_BYTES as u64),
        ring_bytes: command.ring_bytes,
        published: command.published,
        staged: None,
        control: (command.client_key, 0),
        second: command.client_key,
        from: Some((inbound.clone(), base, RingReader::of_blocks(command.ring_bytes as usize, block))),
    };
    let sender = plan.response.sender(&mut ends)?;
    made.handle = sender.half.address_handle();
    let published = plan.response.fetched_sender(&mut ends)?;
    let source = plan.request.receiver(&mut ends)?;
    let max_answer = sender.max_message;
    let parts =
        |facts, queue_pair_and_depth: (QueuePairId, u32), ring_bytes: u32, direction, head_at| SendingParts {
            facts,
            queue_pair: queue_pair_and_depth.0,
            reports: queue_pair,
            lane: index,
            ring: RingWriter::new(ring_bytes as usize),
            tags: TagKey::derive(&command.secret, command.number, direction),
            max_send: queue_pair_and_depth.1,
            max_inline: fabric.capabilities().max_inline,
            control: region.clone(),
            head_at,
            // A client that polls memory has no RECVs, and sleeps only where WRITEs wake it.
            peer_sleeps: plan.client != CompletionMode::Busy && !answers.is_polled(),
        };
    let answer_ring = if answers.is_only_fetched() { command.ring_bytes } else { command.client_ring_bytes };
    let on = (sender.queue_pair, sender.max_send);
    let tx = Tx::new(sender.half, parts(answers, on, answer_ring, Direction::ToClient, line_at));
    let published = published.map(|half| {
        let at = PUBLISHED_HEAD as u32;
        let tx = Tx::new(half, parts(answers, on, command.ring_bytes, Direction::Fetched, at));
        let modes = (Arc::clone(&worker.shared().response_modes), worker.number());
        Box::new(Published::new(tx, region.clone(), command.window, modes))
    });
    let tags = TagKey::derive(&command.secret, command.number, Direction::ToServer);
    let mut rx = Rx::new(source, tags, requests.gated_by_completion(fabric.capabilities()));
    if pool.is_some() {
        rx.suspend();
    }
    if pool.is_none() {
        worker.domain.watch_as(&region, index.into());
    }
    let mut region_keys = vec![control_key.0, pool.as_ref().map_or(published_key, |(_, _, key)| key.0)];
    let mut extensions = Extensions::default();
    if let Some(ring) = &ring {
        region_keys.push(ring.key.0);
        extensions.0.push(Extension::RequestRing { offset: ring.base.into(), block: ring.block });
    }
    if pool.is_some() {
        extensions.0.push(Extension::ControlLine(line_at.into()));
    }
    let ready = Record::LaneReady(LaneReady {
        lane: command.number,
        worker: worker.number(),
        window: command.window,
        max_batch_entries: u16::MAX,
        ring_bytes: command.ring_bytes,
        max_message_bytes: MAX_MESSAGE as u32,
        secret: Secret(command.secret),
        endpoint: endpoint.0,
        unreliable_endpoint: unreliable.as_ref().map_or(Vec::new(), |(_, endpoint)| endpoint.clone()),
        datagram_endpoint: datagrams
            .as_ref()
            .and_then(|(_, _, endpoint)| endpoint.clone())
            .map_or(Vec::new(), |endpoint| endpoint.0),
        place: index,
        region_keys,
        extensions,
    });
    send(&link, &ready)?;
    let leased = match (pool, command.staged, made.line.take()) {
        (Some((place, _, key)), Some(staged), Some(line)) => {
            Some(Box::new(LeasedLane::new(staged, [key, control_key], place, line.at)))
        }
        _ => None,
    };
    Ok(ServerLane::new(LaneParts {
        index,
        link,
        plan,
        queue_pair,
        unreliable: unreliable.map(|(queue_pair, _)| queue_pair),
        receives: match datagrams {
            Some((queue_pair, ..)) if requests.is_datagram() => ReceiveTarget::QueuePair(queue_pair),
            _ if receives_alone => ReceiveTarget::QueuePair(queue_pair),
            _ => ReceiveTarget::Shared(worker.shared_receive),
        },
        max_answer,
        published,
        tx,
        rx,
        client_key: RegionKey(command.client_key.0),
        window: command.window,
        config: Arc::clone(&worker.shared().config),
        opened: worker.dispatcher.clock.read_now(worker.fabric.host()),
        credits: command.credits,
        granted: std::mem::take(&mut made.keys),
        leased,
        admission: command.admission,
    }))
}

/// Sends a client the reason why its lane cannot be opened.
pub(crate) fn refuse<L: Link>(link: &L, lane: u16, error: &ConnectError) {
    let code = match error {
        ConnectError::Register(_) => RefusalCode::NO_MEMORY,
        ConnectError::Plan(_) => RefusalCode::ILLEGAL_PLAN,
        _ => RefusalCode::TOO_MANY,
    };
    refuse_with(link, lane, code, &WithSources(error).to_string());
}

/// Sends a refusal with a code and a text of at most 500 bytes.
pub(crate) fn refuse_with<L: Link>(link: &L, lane: u16, code: RefusalCode, text: &str) {
    let mut text = text.to_owned();
    let end = (0..=text.len().min(500)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    if let Ok(message) = Record::LaneRefused(LaneRefused { lane, code, text }).encode()
        && link.send(&message).is_err()
    {
        // A peer that does not read its connection holds up this thread once.
        link.close();
    }
}
