//! Opening the server's end of a lane: the worker's part of the handshake.

use super::groups::{GroupMemory, LeasedLane};
use super::inbox::OpenCommand;
use super::lane::{LaneParts, ServerLane};
use super::lines::ControlLine;
use super::worker::{PooledRing, SHARED_RECEIVES, Worker};
use crate::connect::records::send;
use crate::error::ConnectError;
use crate::grouped::sorted::grow;
use crate::mailbox::{RingReader, RingWriter};
use crate::path::beside::{self, Beside};
use crate::path::credits::RENEWAL_RECEIVES;
use crate::path::grants::end_grants;
use crate::path::half::hybrid::{PUBLISHED_HEAD, Published};
use crate::path::half::{BesideEnd, Ends, Sender, Supply};
use crate::path::local_ring::LocalRing;
use crate::path::posting::{MAX_SEND, repost, send_depth};
use crate::path::sending::SendingParts;
use crate::path::{CONTROL_BYTES, Cx, MAX_MESSAGE, Rx, Tx, route};
use crate::plan::{CompletionMode, Plan};
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Access, AddressHandleId, Arena, Buffer, Capabilities, CreateError, Endpoint, Fabric, Link,
    QueuePairConfig, QueuePairId, ReceiveTarget, Region, RegionKey, SharedReceiveQueueId, ThreadDomain,
    Transport,
};
use dunlin_wire::handshake::{Extension, Extensions, LaneReady, LaneRefused, Record, RefusalCode, Secret};
use dunlin_wire::{Direction, LINE, TagKey};
use std::sync::Arc;

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
    let config = reliable(worker, &fabric, &command)?;
    if command.plan.beside().unconnected.is_some() {
        worker.prepare_unconnected(&fabric)?;
    }
    let queue_pair = worker.domain.create_queue_pair(&config)?;
    let mut made = Made { queue_pairs: vec![queue_pair], handle: None, keys: Vec::new(), line: None };
    let link = command.link.clone();
    let opened = join(worker, &fabric, command, (index, queue_pair, &config), &mut made);
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

/// Returns the configuration of the lane's reliable connection, and fills the shared receive queue if the lane uses it.
fn reliable<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    command: &OpenCommand<F>,
) -> Result<QueuePairConfig, ConnectError> {
    let (requests, answers) = (command.plan.request.facts(), command.plan.response.facts());
    let renewals = renewal_receives(command);
    let mut config = QueuePairConfig::reliable(worker.send_completions, worker.receive_completions);
    config.max_send = send_depth(answers, command.window, fabric.capabilities());
    config.inbound_bytes = requests.inbound_bytes();
    match supply(command, fabric.capabilities()) {
        Supply::Shared => {
            prepare_shared(worker, fabric)?;
            config.shared_receive = Some(worker.shared_receive);
            config.max_receive = 0;
        }
        Supply::Messages(count) | Supply::Empty(count) => config.max_receive = (count + renewals).max(1),
    }
    Ok(config)
}

/// Returns the number of RECVs for the lane's requests for credits, if they travel by immediate data.
fn renewal_receives<F: Fabric>(command: &OpenCommand<F>) -> u32 {
    let is_apart = command.credits.as_ref().is_some_and(|credits| credits.is_renewed_apart());
    if is_apart { RENEWAL_RECEIVES } else { 0 }
}

/// Returns the RECVs of the lane's reliable connection.
fn supply<F: Fabric>(command: &OpenCommand<F>, capabilities: &Capabilities) -> Supply {
    let Plan { request, response, .. } = command.plan;
    request.facts().supply(&response.facts(), capabilities, command.window)
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

/// Placeholder on fabrics without shared receive queues; nothing can be posted to it.
pub(crate) const NO_SHARED_RECEIVES: SharedReceiveQueueId = SharedReceiveQueueId(u32::MAX);

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
    mut command: OpenCommand<F>,
    (index, queue_pair, config): (u16, QueuePairId, &QueuePairConfig),
    made: &mut Made<F>,
) -> Result<ServerLane<F>, ConnectError> {
    let beside = join_beside(worker, &command, config, made)?;
    let memory = grant(worker, &command, index, made)?;
    let endpoint = worker.domain.endpoint(queue_pair, &command.link)?;
    worker.domain.connect(queue_pair, &command.link, &command.endpoint)?;
    post_receives(worker, fabric, &command, (index, queue_pair))?;
    let receiving = receiving_unconnected(worker, &command);
    let unconnected = receiving.map(|pair| worker.domain.endpoint(pair, &command.link)).transpose()?;
    let (beside, connected) = beside.unzip();
    let endpoints = Endpoints { reliable: endpoint, beside: Beside { connected, unconnected } };
    let directions = directions(worker, fabric, &mut command, &memory, (index, queue_pair, beside), made)?;
    if memory.pool.is_none() {
        worker.domain.watch_as(&memory.region, index.into());
    }
    send(&command.link, &Record::LaneReady(ready(worker.number(), &command, &memory, index, endpoints)))?;
    let leased = match (memory.pool, command.staged, made.line.take()) {
        (Some(pool), Some(staged), Some(line)) => {
            let keys = [pool.key, memory.control_key];
            Some(Box::new(LeasedLane::new((command.client_key, staged), keys, pool.place, line.at)))
        }
        _ => None,
    };
    let has_own = matches!(supply(&command, fabric.capabilities()), Supply::Messages(_));
    let own = has_own.then_some(queue_pair);
    Ok(ServerLane::new(LaneParts {
        index,
        receives: match receiving.or(own) {
            Some(queue_pair) => ReceiveTarget::QueuePair(queue_pair),
            None => ReceiveTarget::Shared(worker.shared_receive),
        },
        link: command.link,
        plan: command.plan,
        queue_pair,
        beside,
        max_answer: directions.max_answer,
        published: directions.published,
        tx: directions.tx,
        rx: directions.rx,
        client_key: command.client_key,
        window: command.window,
        config: Arc::clone(&worker.shared().config),
        opened: worker.dispatcher.clock.read_now(worker.fabric.host()),
        credits: command.credits,
        granted: std::mem::take(&mut made.keys),
        leased,
        admission: command.admission,
    }))
}

/// Creates the lane's own queue pair beside its reliable connection, if the plan needs one, and connects it.
fn join_beside<F: Fabric>(
    worker: &mut Worker<F>,
    command: &OpenCommand<F>,
    reliable: &QueuePairConfig,
    made: &mut Made<F>,
) -> Result<Option<(QueuePairId, Endpoint)>, ConnectError> {
    let (Some(transport), Some(peer)) = (command.plan.beside().connected, &command.beside.connected) else {
        return Ok(None);
    };
    let receives = command.plan.request.facts().receives_beside(transport, command.window);
    let queue_pair = worker.domain.create_queue_pair(&beside::config(reliable, transport, receives))?;
    made.queue_pairs.push(queue_pair);
    let endpoint = worker.domain.endpoint(queue_pair, &command.link)?;
    worker.domain.connect(queue_pair, &command.link, peer)?;
    Ok(Some((queue_pair, endpoint)))
}

/// Returns the worker's queue pair without a connection, if the lane's requests come by it.
fn receiving_unconnected<F: Fabric>(worker: &Worker<F>, command: &OpenCommand<F>) -> Option<QueuePairId> {
    let requests = command.plan.request.facts();
    let receives = requests.receives_beside(Transport::UnreliableDatagram, command.window);
    worker.unconnected.as_ref().filter(|_| receives > 0).map(|pair| pair.queue_pair)
}

/// A pool of zones: its place among those of the worker, and its grant.
struct Pool<F: Fabric> {
    place: u16,
    region: Region<F::Memory>,
    key: RegionKey,
}

/// The memory of a lane that its client may access.
struct LaneMemory<F: Fabric> {
    /// The region of the control line, the line's offset there, and the grant of the region.
    region: Region<F::Memory>,
    line_at: u32,
    control_key: RegionKey,
    /// The pool of zones, if leases of the server's memory end.
    pool: Option<Pool<F>>,
    /// The ring of requests, if it lies in a region for many lanes.
    ring: Option<PooledRing<F>>,
    /// The grant of the ring that the client READs; 0 without one.
    published_key: u64,
}

/// Grants the client access to the lane's memory.
fn grant<F: Fabric>(
    worker: &mut Worker<F>,
    command: &OpenCommand<F>,
    index: u16,
    made: &mut Made<F>,
) -> Result<LaneMemory<F>, ConnectError> {
    let link = &command.link;
    let pool = match command.staged {
        Some(_) => {
            let GroupMemory { place, pool: region, key, line } = worker.memory_for(link)?;
            made.keys.push(key);
            made.line = Some(line);
            Some(Pool { place, region, key })
        }
        None => None,
    };
    let (region, line_at) = match (&command.region, &made.line) {
        (Some(region), _) => (region.clone(), 0),
        (None, Some(line)) => (line.region.clone(), u32::from(line.at)),
        (None, None) => return Err(ConnectError::Handshake("the lane has no control line".into())),
    };
    let control_key = link.grant(region.memory(), Access::WRITE)?;
    made.keys.push(control_key);
    let may_be_pooled = command.plan.request.facts().has_ring() && pool.is_none();
    let settings = worker.shared().config.request_pool.filter(|_| may_be_pooled);
    let ring = settings.map(|settings| worker.take_ring(link, index, settings)).transpose()?;
    made.keys.extend(ring.as_ref().map(|ring| ring.key));
    let published = command.published.as_ref();
    let published_key = published.map(|region| link.grant(region.memory(), Access::READ)).transpose()?;
    made.keys.extend(published_key);
    let published_key = published_key.map_or(0, |key| key.0);
    Ok(LaneMemory { region, line_at, control_key, pool, ring, published_key })
}

/// Posts the RECVs that the lane does not share.
fn post_receives<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    command: &OpenCommand<F>,
    (index, queue_pair): (u16, QueuePairId),
) -> Result<(), ConnectError> {
    let renewals = renewal_receives(command);
    match supply(command, fabric.capabilities()) {
        Supply::Messages(count) => post_own_receives(worker, fabric, queue_pair, count + renewals),
        Supply::Shared => Ok(()),
        Supply::Empty(count) => (0..count + renewals).try_for_each(|_| {
            repost::<F>(&mut worker.domain, queue_pair, index, None)
                .map_err(|error| ConnectError::Handshake(error.to_string()))
        }),
    }
}

/// The two directions of a lane.
struct Directions<F: Fabric> {
    tx: Tx<F>,
    rx: Rx<F>,
    /// The second path for answers, if they are fetched or written back.
    published: Option<Box<Published<F>>>,
    /// The longest answer message, in bytes.
    max_answer: usize,
}

/// Makes the server's ends of both directions.
fn directions<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    command: &mut OpenCommand<F>,
    memory: &LaneMemory<F>,
    (index, queue_pair, connected): (u16, QueuePairId, Option<QueuePairId>),
    made: &mut Made<F>,
) -> Result<Directions<F>, ConnectError> {
    let plan = command.plan;
    let (requests, answers) = (plan.request.facts(), plan.response.facts());
    let (inbound, base, block) = match (&memory.pool, &memory.ring) {
        (Some(pool), _) => (&pool.region, 0, LINE),
        (None, Some(ring)) => (&ring.region, ring.base, ring.block as usize),
        (None, None) => (&memory.region, CONTROL_BYTES as u32, LINE),
    };
    // A client sends again what it holds for lost.
    let waiting = requests.receives_beside(requests.transport, command.window.saturating_mul(2));
    let pairs = Beside {
        connected: connected.zip(command.beside.connected.as_ref()).map(|(queue_pair, peer)| BesideEnd {
            queue_pair,
            unsignaled: Arc::default(),
            max_send: MAX_SEND,
            peer,
            place: 0,
            waiting: waiting as usize,
        }),
        unconnected: plan
            .beside()
            .unconnected
            .and(worker.unconnected.as_ref())
            .zip(command.beside.unconnected.as_ref())
            .map(|(pair, peer)| pair.end(peer, waiting)),
    };
    let mut ends = Ends {
        cx: Cx { fabric, domain: &mut worker.domain },
        link: &command.link,
        lane: index,
        window: command.window,
        queue_pair,
        beside: pairs,
        max_send: MAX_SEND,
        to: (command.client_key, CONTROL_BYTES as u64),
        ring_bytes: command.ring_bytes,
        published: command.published.take(),
        staged: None,
        control: (command.client_key, 0),
        second: command.client_key,
        from: Some(LocalRing {
            region: inbound.clone(),
            base,
            reader: RingReader::of_blocks(command.ring_bytes as usize, block),
        }),
    };
    let sender = plan.response.sender(&mut ends)?;
    made.handle = sender.half.address_handle();
    let published = plan.response.fetched_sender(&mut ends)?;
    let receiver = plan.request.receiver(&mut ends)?;
    let parts = |ring_bytes: u32, direction, head_at| SendingParts {
        facts: answers,
        queue_pair: sender.queue_pair,
        reports: queue_pair,
        lane: index,
        ring: RingWriter::new(ring_bytes as usize),
        tags: TagKey::derive(&command.secret, command.number, direction),
        max_send: sender.max_send,
        max_inline: fabric.capabilities().max_inline,
        control: memory.region.clone(),
        head_at,
        // A client that polls memory has no RECVs, and sleeps only where WRITEs wake it.
        peer_sleeps: plan.client != CompletionMode::Busy && !answers.is_polled(),
    };
    let answer_ring = if answers.is_only_fetched() { command.ring_bytes } else { command.client_ring_bytes };
    let tx = Tx::new(sender.half, parts(answer_ring, Direction::ToClient, memory.line_at));
    let published = published.map(|half| {
        let tx = Tx::new(half, parts(command.ring_bytes, Direction::Fetched, PUBLISHED_HEAD as u32));
        let modes = (Arc::clone(&worker.shared().response_modes), worker.number());
        Box::new(Published::new(tx, memory.region.clone(), command.window, modes))
    });
    let tags = TagKey::derive(&command.secret, command.number, Direction::ToServer);
    let mut rx = Rx::new(receiver, tags, requests.gated_by_completion(fabric.capabilities()));
    if memory.pool.is_some() {
        rx.suspend();
    }
    Ok(Directions { tx, rx, published, max_answer: sender.max_message })
}

/// The endpoints of a lane's queue pairs.
struct Endpoints {
    reliable: Endpoint,
    beside: Beside<Endpoint>,
}

/// Returns the server's answer to a client whose lane is open.
fn ready<F: Fabric>(
    worker: u16,
    command: &OpenCommand<F>,
    memory: &LaneMemory<F>,
    index: u16,
    endpoints: Endpoints,
) -> LaneReady {
    let second = memory.pool.as_ref().map_or(memory.published_key, |pool| pool.key.0);
    let mut region_keys = vec![memory.control_key.0, second];
    let mut extensions = Extensions::default();
    if let Some(ring) = &memory.ring {
        region_keys.push(ring.key.0);
        extensions.0.push(Extension::RequestRing { offset: ring.base.into(), block: ring.block });
    }
    if memory.pool.is_some() {
        extensions.0.push(Extension::ControlLine(memory.line_at.into()));
    }
    let bytes = |endpoint: Option<Endpoint>| endpoint.map_or(Vec::new(), |endpoint| endpoint.0);
    LaneReady {
        lane: command.number,
        worker,
        window: command.window,
        max_batch_entries: u16::MAX,
        ring_bytes: command.ring_bytes,
        max_message_bytes: MAX_MESSAGE as u32,
        secret: Secret(command.secret),
        endpoint: endpoints.reliable.0,
        unreliable_endpoint: bytes(endpoints.beside.connected),
        datagram_endpoint: bytes(endpoints.beside.unconnected),
        place: index,
        region_keys,
        extensions,
    }
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
