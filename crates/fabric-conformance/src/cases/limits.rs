//! Errors at posting and creation: full queues, messages that are too long, wrong transports, wrong handles.

use super::{RC, UC, UD};
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::Verdict;
use crate::station::{Form, Station, pattern};
use crate::{expect, expect_eq, expect_matches};
use dunlin_fabric::{
    Access, AddressHandleId, CreateError, Data, Endpoint, Fabric, Gather, Operation, PostError,
    QueuePairConfig, QueuePairId, QueuePairState, ReceiveTarget, RegionKey, RegisterError, RemoteSlice,
    SharedReceiveQueueId, ThreadDomain, Transport, WorkId,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("send_queue_overflow", &[RC, Need::Acknowledged], send_overflow),
        Case::pair("receive_queue_overflow", &[RC], receive_overflow),
        Case::single("shared_receive_queue_overflow", &[Need::SharedReceiveQueue], shared_overflow),
        Case::pair("inline_over_the_limit", &[RC], inline_limit),
        Case::pair("message_over_the_limit", &[RC, Need::BoundedMessage], message_limit),
        Case::pair("datagram_over_the_limit", &[UD], datagram_limit),
        Case::pair("wrong_transport_uc", &[UC], wrong_on_uc),
        Case::pair("wrong_transport_ud", &[UD], wrong_on_ud),
        Case::pair("address_handle_on_rc", &[RC], handle_on_rc),
        Case::single("post_before_connect", &[RC], before_connect),
        Case::single("handles_that_do_not_exist", &[RC], no_such_handles),
        Case::single("queue_deeper_than_the_limit", &[RC], too_deep),
        Case::pair("garbage_endpoints", &[RC], garbage_endpoints),
        Case::single("register_nothing", &[], register_nothing),
        Case::single("registered_memory_is_zeroed", &[], zeroed),
    ]);
}

fn send<F: Fabric>(
    station: &Station<F>,
    bytes: &[u8],
) -> Result<Operation<'static, F::Memory>, crate::Failure> {
    Ok(Operation::Send { data: Data::Buffer(station.buffer(bytes)?), immediate: None, to: None })
}

fn send_overflow<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = QueuePairConfig { max_send: 4, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        // No RECV is posted, so these stay in the queue.
        for id in 0..4 {
            expect_eq!(station.domain.send_room(queue_pair), 4 - id, "room before post {id}");
            let operation = send(&station, b"waits")?;
            station.post(queue_pair, u64::from(id), operation, true)?;
        }
        let operation = send(&station, b"too many")?;
        expect_eq!(station.post(queue_pair, 9, operation, true), Err(PostError::QueueFull));
        context.meet_at(&mut station)?;
        for id in 0..4 {
            station.sent(id)?;
        }
        let operation = send(&station, b"fits again")?;
        station.post(queue_pair, 4, operation, true)?;
        station.sent(4)?;
    } else {
        context.meet_at(&mut station)?;
        for id in 0..5 {
            station.receive_on(queue_pair, id, 64)?;
        }
        for id in 0..5 {
            station.received(id, if id < 4 { b"waits" } else { b"fits again" })?;
        }
    }
    context.meet_at(&mut station)
}

fn receive_overflow<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = QueuePairConfig { max_receive: 4, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    let target = ReceiveTarget::QueuePair(queue_pair);
    if role == Role::First {
        for id in 0..4 {
            station.receive_on(queue_pair, id, 64)?;
        }
        let refused = station.buffer(b"refused")?;
        expect_eq!(station.domain.post_receive(target, WorkId(9), Some(refused)), Err(PostError::QueueFull));
        context.meet_at(&mut station)?;
        for id in 0..4 {
            station.received(id, b"one")?;
        }
        station.receive_on(queue_pair, 4, 64)?;
    } else {
        context.meet_at(&mut station)?;
        for id in 0..4 {
            station.send(queue_pair, id, b"one", true)?;
            station.sent(id)?;
        }
    }
    context.meet_at(&mut station)
}

fn shared_overflow<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let shared = station.domain.create_shared_receive_queue(4)?;
    for id in 0..4 {
        station.receive(ReceiveTarget::Shared(shared), id, 64)?;
    }
    let result = station.domain.post_receive(ReceiveTarget::Shared(shared), WorkId(4), None);
    expect_eq!(result, Err(PostError::QueueFull));
    Ok(())
}

fn inline_limit<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let limit = context.fabric.capabilities().max_inline;
    let bytes = pattern(3, limit as usize + 1);
    if role == Role::First {
        let (within, over) = bytes.split_at(limit as usize);
        let error = Err(PostError::Inline { length: bytes.len(), limit });
        let parts = [within, over];
        let whole = [&bytes[..]];
        for data in [&parts[..], &whole[..]] {
            let operation = Operation::Send { data: Data::Inline(data), immediate: None, to: None };
            expect_eq!(station.post(queue_pair, 1, operation, true), error);
            let key = RegionKey(1);
            let operation = Operation::Write { data: Data::Inline(data), key, offset: 0, immediate: None };
            expect_eq!(station.post(queue_pair, 1, operation, true), error);
        }
        context.meet_at(&mut station)?;
        station.in_form(Form::Inline(3), within, |station, data| {
            let operation = Operation::Send { data, immediate: None, to: None };
            Ok(station.post(queue_pair, 2, operation, true)?)
        })?;
        station.sent(2)?;
    } else {
        station.receive_on(queue_pair, 1, limit as usize + 64)?;
        context.meet_at(&mut station)?;
        station.received(1, &bytes[..limit as usize])?;
    }
    context.meet_at(&mut station)
}

fn message_limit<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let limit = context.fabric.capabilities().max_message;
    if role == Role::First {
        let length = u64::from(limit) + 1;
        // Never touched, so it uses no memory if pages are allocated lazily.
        let memory = context.fabric.register(length.next_power_of_two(), Access::READ)?;
        let arena = dunlin_fabric::Arena::new(memory)?;
        let error = Err(PostError::Length { length, limit });
        let key = RegionKey(1);
        let data = Data::Buffer(arena.reserve(length as usize)?);
        let operation = Operation::Send { data, immediate: None, to: None };
        expect_eq!(station.post(queue_pair, 1, operation, true), error);
        // A refused request returns its buffer to the arena, so it can be reserved again.
        let data = Data::Buffer(arena.reserve(length as usize)?);
        let operation = Operation::Write { data, key, offset: 0, immediate: None };
        expect_eq!(station.post(queue_pair, 1, operation, true), error);
        let mut gather = Gather::default();
        for part in [length as usize - 1, 1] {
            gather.push(arena.reserve(part)?).map_err(|_| crate::Failure::new("a gather takes four"))?;
        }
        let operation = Operation::Send { data: Data::Gather(gather), immediate: None, to: None };
        expect_eq!(station.post(queue_pair, 1, operation, true), error);
        let into = arena.reserve(length as usize)?;
        let from = RemoteSlice { key, offset: 0, length: length as u32 };
        expect_eq!(station.post(queue_pair, 1, Operation::Read { from, into }, true), error);
        expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Ready));
    }
    context.meet_at(&mut station)
}

fn datagram_limit<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.config(Transport::UnreliableDatagram);
    let queue_pair = station.domain.create_queue_pair(&config)?;
    let remote = context.swap_endpoints(context.link(), &mut station, queue_pair)?;
    let handle = station.domain.create_address_handle(queue_pair, context.link(), &remote)?;
    let limit = context.fabric.capabilities().max_datagram;
    if role == Role::First {
        let data = Data::Buffer(station.buffer(&vec![1; limit as usize + 1])?);
        let operation = Operation::Send { data, immediate: None, to: Some(handle) };
        let error = PostError::Length { length: u64::from(limit) + 1, limit };
        expect_eq!(station.post(queue_pair, 1, operation, true), Err(error));
    }
    context.meet_at(&mut station)
}

/// Expects that an operation that the transport lacks is refused, and that the queue pair stays usable.
fn refuses<F: Fabric>(
    station: &mut Station<F>,
    queue_pair: QueuePairId,
    operation: Operation<'_, F::Memory>,
) -> Verdict {
    let what = format!("{operation:?}");
    let result = station.post(queue_pair, 1, operation, true);
    expect!(
        matches!(result, Err(PostError::Transport(_))),
        "{what} gave {result:?}, not PostError::Transport"
    );
    expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Ready));
    Ok(())
}

fn read_of<F: Fabric>(station: &Station<F>) -> Result<Operation<'static, F::Memory>, crate::Failure> {
    let from = RemoteSlice { key: RegionKey(1), offset: 0, length: 8 };
    Ok(Operation::Read { from, into: station.buffer(&[0; 8])? })
}

fn atomics<M: dunlin_fabric::Memory>() -> [Operation<'static, M>; 2] {
    let key = RegionKey(1);
    [
        Operation::FetchAdd { key, offset: 0, add: 1 },
        Operation::CompareSwap { key, offset: 0, expected: 0, swap: 1 },
    ]
}

fn wrong_on_uc<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.config(Transport::UnreliableConnection);
    let queue_pair = context.connect(&mut station, &config)?;
    let operation = read_of(&station)?;
    refuses(&mut station, queue_pair, operation)?;
    for operation in atomics() {
        refuses(&mut station, queue_pair, operation)?;
    }
    let data = Data::Buffer(station.buffer(b"x")?);
    let operation = Operation::Send { data, immediate: None, to: Some(AddressHandleId(1)) };
    refuses(&mut station, queue_pair, operation)?;
    context.meet_at(&mut station)
}

fn wrong_on_ud<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.config(Transport::UnreliableDatagram);
    let queue_pair = station.domain.create_queue_pair(&config)?;
    expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Ready), "UD needs no connecting");
    let remote = context.swap_endpoints(context.link(), &mut station, queue_pair)?;
    let handle = station.domain.create_address_handle(queue_pair, context.link(), &remote)?;
    let operation = read_of(&station)?;
    refuses(&mut station, queue_pair, operation)?;
    for operation in atomics() {
        refuses(&mut station, queue_pair, operation)?;
    }
    for immediate in [None, Some(1)] {
        let data = Data::Buffer(station.buffer(b"x")?);
        let operation = Operation::Write { data, key: RegionKey(1), offset: 0, immediate };
        refuses(&mut station, queue_pair, operation)?;
    }
    // A datagram without a receiver.
    let operation = send(&station, b"x")?;
    refuses(&mut station, queue_pair, operation)?;
    let data = Data::Buffer(station.buffer(b"x")?);
    let operation = Operation::Send { data, immediate: None, to: Some(AddressHandleId(987_654)) };
    expect_matches!(station.post(queue_pair, 1, operation, true), Err(PostError::NoSuch(_)));
    // An address handle that was destroyed.
    station.domain.destroy_address_handle(handle)?;
    let data = Data::Buffer(station.buffer(b"x")?);
    let operation = Operation::Send { data, immediate: None, to: Some(handle) };
    expect_matches!(station.post(queue_pair, 1, operation, true), Err(PostError::NoSuch(_)));
    expect_matches!(station.domain.destroy_address_handle(handle), Err(CreateError::NoSuch(_)));
    context.meet_at(&mut station)
}

fn handle_on_rc<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let data = Data::Buffer(station.buffer(b"x")?);
    let operation = Operation::Send { data, immediate: None, to: Some(AddressHandleId(1)) };
    refuses(&mut station, queue_pair, operation)?;
    context.meet_at(&mut station)
}

fn before_connect<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = station.domain.create_queue_pair(&config)?;
    expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Initialised));
    let operation = send(&station, b"early")?;
    expect_eq!(station.post(queue_pair, 1, operation, true), Err(PostError::NotConnected));
    station.receive_on(queue_pair, 2, 64)?;
    station.domain.destroy_queue_pair(queue_pair)?;
    expect!(station.arena.reserve(8 << 20).is_ok(), "destroying returns the buffers");
    Ok(())
}

fn no_such_handles<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = station.domain.create_queue_pair(&config)?;
    station.domain.destroy_queue_pair(queue_pair)?;
    for gone in [queue_pair, QueuePairId(queue_pair.0.wrapping_add(1000)), QueuePairId(u32::MAX)] {
        expect_eq!(station.domain.state(gone), None);
        expect_eq!(station.domain.send_room(gone), 0);
        let operation = send(&station, b"x")?;
        expect_matches!(station.post(gone, 1, operation, true), Err(PostError::NoSuch(_)));
        let target = ReceiveTarget::QueuePair(gone);
        expect_matches!(station.domain.post_receive(target, WorkId(1), None), Err(PostError::NoSuch(_)));
        expect_matches!(station.domain.destroy_queue_pair(gone), Err(CreateError::NoSuch(_)));
    }
    let target = ReceiveTarget::Shared(SharedReceiveQueueId(u32::MAX));
    expect_matches!(station.domain.post_receive(target, WorkId(1), None), Err(PostError::NoSuch(_)));
    let bad = dunlin_fabric::CompletionQueueId(u32::MAX);
    expect_eq!(station.domain.poll(bad, &mut Vec::new(), 16), 0);
    for wrong in [
        QueuePairConfig { send_completions: bad, ..config },
        QueuePairConfig { receive_completions: bad, ..config },
        QueuePairConfig { shared_receive: Some(SharedReceiveQueueId(u32::MAX)), ..config },
    ] {
        expect!(station.domain.create_queue_pair(&wrong).is_err(), "made of a queue that does not exist");
    }
    Ok(())
}

fn too_deep<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let limit = context.fabric.capabilities().max_queue_depth;
    let Some(over) = limit.checked_add(1) else { return Ok(()) };
    for config in [
        QueuePairConfig { max_send: over, ..station.reliable() },
        QueuePairConfig { max_receive: over, ..station.reliable() },
    ] {
        expect_matches!(station.domain.create_queue_pair(&config), Err(CreateError::Limit { .. }));
    }
    Ok(())
}

/// The content of a peer's endpoint is never trusted.
fn garbage_endpoints<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    for length in [0, 1, 7, 8, 64, 255, 256, 4096] {
        for fill in [None, Some(0), Some(0xff)] {
            let bytes = fill.map_or_else(|| pattern(length as u64, length), |byte| vec![byte; length]);
            let queue_pair = station.domain.create_queue_pair(&config)?;
            station.domain.endpoint(queue_pair, context.link())?;
            // Refused, or a connection without a peer; in either case without other effects.
            if station.domain.connect(queue_pair, context.link(), &Endpoint(bytes)).is_ok() {
                let operation = send(&station, b"nowhere")?;
                let _ = station.post(queue_pair, 1, operation, true);
                station.poll(station.sends);
            }
            station.domain.destroy_queue_pair(queue_pair)?;
        }
    }
    // A valid endpoint still works.
    context.connect(&mut station, &config)?;
    context.meet_at(&mut station)
}

fn register_nothing<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    expect_matches!(context.fabric.register(0, Access::READ), Err(RegisterError::Length { .. }));
    expect!(context.fabric.register(u64::MAX, Access::READ).is_err(), "there is not so much memory");
    Ok(())
}

fn zeroed<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    for length in [1usize, 64, 100, 4096, 100_000] {
        for _ in 0..3 {
            let region = context.region(length, Access::WRITE)?;
            expect_eq!(region.length(), length);
            expect!(crate::station::holds(&region, 0, &vec![0; length]), "{length} bytes are not all zero");
            region.copy_in(0, &vec![0xff; length]);
        }
    }
    Ok(())
}
