//! Opening the server's end of a lane: the worker's part of the handshake.

use super::inbox::OpenCommand;
use super::lane::{LaneParts, ServerLane};
use super::worker::{SHARED_RECEIVES, Worker};
use crate::connect::establish::{inbound_bytes, receives};
use crate::error::ConnectError;
use crate::mailbox::RingReader;
use crate::path::tx::TxParts;
use crate::path::{CONTROL_BYTES, MAX_MESSAGE, Rx, RxSource, Tx, TxHalf, route};
use crate::plan::{Carrier, CompletionMode, Plan};
use dunlin_fabric::{
    Access, Arena, Buffer, Fabric, Link, QueuePairConfig, QueuePairId, ReceiveTarget, RegionKey,
    SharedReceiveQueueId, ThreadDomain,
};
use dunlin_wire::handshake::{LaneReady, LaneRefused, Record, RefusalCode, Secret};
use dunlin_wire::{Direction, TagKey};
use std::collections::VecDeque;

/// The send queue's depth: answers, READs of large requests, reports.
const MAX_SEND: u32 = 256;

/// Whether requests of this plan come as completions.
pub(crate) fn by_completion(plan: &Plan) -> bool {
    !plan.request.carrier().is_polled()
}

/// Posts a RECV to the shared queue again.
pub(crate) fn repost_shared<F: Fabric>(
    domain: &mut F::Domain,
    queue: SharedReceiveQueueId,
    buffer: Option<Buffer<F::Memory>>,
) {
    let buffer = buffer.map(|mut buffer| {
        let capacity = buffer.capacity();
        buffer.set_length(capacity);
        buffer
    });
    if let Err(error) =
        domain.post_receive(ReceiveTarget::Shared(queue), route::receive(route::SHARED), buffer)
    {
        tracing::error!(target: "dunlin::server", %error, "a shared RECV was lost");
    }
}

/// Opens a lane and tells the client.
pub(crate) fn open_lane<F: Fabric>(
    worker: &mut Worker<F>,
    command: OpenCommand<F>,
    serial: u64,
) -> Result<ServerLane<F>, ConnectError> {
    let fabric = worker.fabric();
    let config = worker.shared().config.clone();
    let index = worker.next_index();
    let plan = command.plan;
    let mut queue_pair = QueuePairConfig::reliable(worker.send_completions, worker.receive_completions);
    queue_pair.max_send = MAX_SEND.max(2 * command.window as u32).min(fabric.capabilities().max_queue_depth);
    let carrier = plan.request.carrier();
    if carrier == Carrier::Receive {
        prepare_shared(worker, &fabric)?;
        queue_pair.shared_receive = Some(worker.shared_receive);
        queue_pair.max_receive = 0;
    } else {
        queue_pair.max_receive = receives(carrier, command.window).max(1);
    }
    queue_pair.inbound_bytes = inbound_bytes(carrier);
    let queue_pair = worker.domain.create_queue_pair(&queue_pair)?;
    let opened = finish(worker, &fabric, command, index, serial, queue_pair, &config);
    if opened.is_err() {
        let _ = worker.domain.destroy_queue_pair(queue_pair);
    }
    opened
}

/// Fills the shared receive queue when the first lane needs it.
fn prepare_shared<F: Fabric>(worker: &mut Worker<F>, fabric: &F) -> Result<(), ConnectError> {
    if worker.receive_arena.is_some() {
        return Ok(());
    }
    let memory = fabric.register(u64::from(SHARED_RECEIVES) * MAX_MESSAGE as u64, Access::LOCAL)?;
    let arena = Arena::new(memory).map_err(|error| ConnectError::Handshake(error.to_string()))?;
    worker.receive_arena = Some(arena);
    refill_shared(worker);
    Ok(())
}

/// Posts all RECVs of the shared queue that are neither posted nor in anybody's hands: their buffers are those that
/// are free in the arena, which has as many as the queue is deep.
pub(crate) fn refill_shared<F: Fabric>(worker: &mut Worker<F>) {
    let Some(arena) = &worker.receive_arena else { return };
    for _ in 0..SHARED_RECEIVES {
        let Ok(buffer) = arena.reserve(MAX_MESSAGE) else { return };
        repost_shared::<F>(&mut worker.domain, worker.shared_receive, Some(buffer));
    }
}

fn finish<F: Fabric>(
    worker: &mut Worker<F>,
    fabric: &F,
    command: OpenCommand<F>,
    index: u16,
    serial: u64,
    queue_pair: QueuePairId,
    config: &super::config::ServerConfig,
) -> Result<ServerLane<F>, ConnectError> {
    let plan = command.plan;
    let link = command.link;
    let control_key = link.grant(command.region.memory(), Access::WRITE)?;
    let published_key = match &command.published {
        Some(region) => link.grant(region.memory(), Access::READ)?.0,
        None => 0,
    };
    let endpoint = worker.domain.endpoint(queue_pair, &link)?;
    worker.domain.connect(queue_pair, &link, &command.endpoint)?;
    let carrier = plan.request.carrier();
    if carrier.has_ring() {
        for _ in 0..receives(carrier, command.window) {
            crate::client::lane::repost::<F>(&mut worker.domain, queue_pair, index, None)
                .map_err(|error| ConnectError::Handshake(error.to_string()))?;
        }
    }
    let published = command.published.is_some();
    let half = match (plan.response.carrier(), command.published) {
        (Carrier::Published { metadata }, Some(region)) => {
            TxHalf::Publish { region, metadata, ring_bytes: command.ring_bytes as usize }
        }
        (Carrier::Published { .. }, None) => {
            return Err(ConnectError::Handshake("nothing to fetch from".into()));
        }
        (Carrier::Receive, _) => TxHalf::Send,
        (Carrier::Ring(notice), _) => {
            TxHalf::Write { key: command.client_key, base: CONTROL_BYTES as u64, notice }
        }
    };
    let answer_ring = if published { command.ring_bytes } else { command.client_ring_bytes };
    let tx = Tx::new(TxParts {
        half,
        queue_pair,
        lane: index,
        ring_bytes: answer_ring as usize,
        tags: TagKey::derive(&command.secret, command.number, Direction::ToClient),
        max_send: MAX_SEND,
        max_inline: fabric.capabilities().max_inline as usize,
        control: command.region.clone(),
        peer_sleeps: plan.client != CompletionMode::Busy,
    });
    let source = if carrier.has_ring() {
        let reader = RingReader::new(command.ring_bytes as usize);
        RxSource::Ring { region: command.region.clone(), reader }
    } else {
        RxSource::Messages(VecDeque::with_capacity(command.window as usize + 1))
    };
    let tags = TagKey::derive(&command.secret, command.number, Direction::ToServer);
    let rx = Rx::new(source, tags, carrier.is_told_of(fabric.capabilities()));
    worker.domain.watch_as(&command.region, index.into());
    let ready = Record::LaneReady(LaneReady {
        lane: command.number,
        worker: worker.number(),
        window: command.window,
        max_batch_entries: u16::MAX,
        ring_bytes: command.ring_bytes,
        max_message_bytes: MAX_MESSAGE as u32,
        secret: Secret(command.secret),
        endpoint: endpoint.0,
        region_keys: vec![control_key.0, published_key],
    });
    crate::connect::establish::send(&link, &ready)?;
    Ok(ServerLane::new(LaneParts {
        index,
        session: command.session,
        number: command.number,
        serial,
        link,
        plan,
        queue_pair,
        tx,
        rx,
        region: command.region,
        client_key: RegionKey(command.client_key.0),
        window: command.window,
        large_response_memory: config.large_response_memory,
        large_request_memory: config.large_memory,
    }))
}

/// Tells a client that its lane cannot be had.
pub(crate) fn refuse<L: Link>(link: &L, lane: u16, error: &ConnectError) {
    let code = match error {
        ConnectError::Register(_) => RefusalCode::NO_MEMORY,
        ConnectError::Plan(_) => RefusalCode::ILLEGAL_PLAN,
        _ => RefusalCode::TOO_MANY,
    };
    refuse_with(link, lane, code, &error.to_string());
}

/// As [`refuse`], by code and text.
pub(crate) fn refuse_with<L: Link>(link: &L, lane: u16, code: RefusalCode, text: &str) {
    let mut text = text.to_owned();
    let end = (0..=text.len().min(500)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    if let Ok(message) = Record::LaneRefused(LaneRefused { lane, code, text }).encode() {
        let _ = link.send(&message);
    }
}
