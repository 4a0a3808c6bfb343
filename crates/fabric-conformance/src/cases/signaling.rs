//! Signaled and unsignaled work requests, and the slots of the send queue.

use super::RC;
use crate::Need;
use crate::case::{Case, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::Verdict;
use crate::station::pattern;
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Operation, PostError, QueuePairConfig, RegionKey, ThreadDomain,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("unsignaled_success_makes_no_completion", &[RC], no_completion),
        Case::pair("unsignaled_failure_completes", &[RC, Need::Acknowledged], failure_completes),
        Case::pair("signaled_completion_frees_the_slots_before_it", &[RC], slots),
        Case::pair("unsignaled_requests_fill_the_send_queue", &[RC], fills),
        Case::pair("buffers_return_to_their_arena", &[RC, Need::Acknowledged], buffers),
    ]);
}

fn no_completion<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 20;
    const UNSIGNALED: u64 = 7;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4096, Access::WRITE)?;
        let per_round = UNSIGNALED / 2 + 1;
        for id in 0..ROUNDS * per_round {
            station.receive_on(queue_pair, id, 64)?;
        }
        context.lend(&region, Access::WRITE)?;
        for id in 0..ROUNDS * per_round {
            station.success(station.receives, id)?;
        }
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for round in 0..ROUNDS {
        for number in 0..UNSIGNALED {
            let data = Data::Buffer(station.buffer(&pattern(number, 64))?);
            let operation = if number % 2 == 0 {
                Operation::Write { data, key, offset: 64 * number, immediate: None }
            } else {
                Operation::Send { data, immediate: None, to: None }
            };
            station.post(queue_pair, 1000 + number, operation, false)?;
        }
        station.send(queue_pair, round, b"signaled", true)?;
        // The first completion is that of the signaled request.
        station.sent(round)?;
    }
    context.meet_at(&mut station)?;
    expect!(station.take(station.sends).is_none(), "an unsignaled success made a completion");
    Ok(())
}

fn failure_completes<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let data = Data::Buffer(station.buffer(b"nowhere")?);
        let operation = Operation::Write { data, key: RegionKey(0x0bad), offset: 0, immediate: None };
        station.post(queue_pair, 5, operation, false)?;
        let got = station.next(station.sends)?;
        expect_eq!((got.id.0, got.status), (5, CompletionStatus::RemoteAccess));
    }
    context.meet_at(&mut station)
}

fn slots<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const DEPTH: u32 = 8;
    let mut station = context.station()?;
    let config = QueuePairConfig { max_send: DEPTH, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4096, Access::WRITE)?;
        context.lend(&region, Access::WRITE)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for round in 0..50 {
        expect_eq!(station.domain.send_room(queue_pair), DEPTH, "room at the start of round {round}");
        for number in 0..u64::from(DEPTH) {
            let data = Data::Buffer(station.buffer(&pattern(number, 16))?);
            let operation = Operation::Write { data, key, offset: 64 * number, immediate: None };
            station.post(queue_pair, number, operation, number + 1 == u64::from(DEPTH))?;
        }
        station.sent(u64::from(DEPTH) - 1)?;
    }
    context.meet_at(&mut station)
}

fn fills<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const DEPTH: u64 = 4;
    let mut station = context.station()?;
    let config = QueuePairConfig { max_send: DEPTH as u32, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4096, Access::WRITE)?;
        context.lend(&region, Access::WRITE)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for number in 0..=DEPTH {
        let data = Data::Buffer(station.buffer(b"unsignaled")?);
        let operation = Operation::Write { data, key, offset: 0, immediate: None };
        let posted = station.post(queue_pair, number, operation, false);
        expect_eq!(posted, if number < DEPTH { Ok(()) } else { Err(PostError::QueueFull) }, "post {number}");
    }
    station.rest(5 * MILLISECOND)?;
    expect_eq!(station.domain.send_room(queue_pair), 0, "nothing frees slots without a completion");
    let operation = Operation::Write { data: Data::Inline(&[]), key, offset: 0, immediate: None };
    expect_eq!(station.post(queue_pair, 9, operation, true), Err(PostError::QueueFull));
    context.meet_at(&mut station)
}

/// The whole arena can be reserved again once all requests are done, refused or flushed.
fn buffers<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let everything = |station: &crate::Station<F>| station.arena.reserve(8 << 20).is_ok();
    expect!(everything(&station), "an arena of 8 MiB holds a buffer of 8 MiB");
    for id in 0..32 {
        station.receive_on(queue_pair, id, 4096)?;
    }
    expect!(!everything(&station), "posted buffers are not free");
    context.meet_at(&mut station)?;
    for id in 0..16 {
        station.send(queue_pair, id, &pattern(id, 4096), id % 4 == 3)?;
    }
    for id in [3, 7, 11, 15] {
        station.sent(id)?;
    }
    for id in 0..16 {
        station.received(id, &pattern(id, 4096))?;
    }
    context.meet_at(&mut station)?;
    if role == Role::First {
        let data = Data::Buffer(station.buffer(b"nowhere")?);
        let operation = Operation::Write { data, key: RegionKey(0x0bad), offset: 0, immediate: None };
        station.post(queue_pair, 99, operation, false)?;
        expect_eq!(station.next(station.sends)?.status, CompletionStatus::RemoteAccess);
    }
    station.until_error(queue_pair)?;
    station.flushed_receives(16, 16)?;
    expect!(everything(&station), "some buffer was lost on the way");
    context.meet_at(&mut station)
}
