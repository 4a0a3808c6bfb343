//! Lists of work requests, linked under one doorbell: which of them are posted, and in which order.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::{Station, pattern};
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, Data, Fabric, ListError, Opcode, Operation, PostError, QueuePairConfig, QueuePairId, RegionKey,
    RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("lists_of_several_lengths", &[RC], several_lengths),
        Case::pair("a_list_of_a_hundred_with_empty_places", &[RC], hundred),
        Case::pair("sends_of_a_list_arrive_in_order", &[RC], sends_in_order),
        Case::pair("operations_of_a_list_run_in_order", &[RC, Need::Atomics], operations_in_order),
        Case::pair("a_list_is_taken_whole_or_not_at_all", &[RC], whole_lists),
        Case::pair("a_list_stops_at_the_request_that_is_refused", &[RC], bad_in_the_middle),
        Case::pair("a_list_that_cannot_be_posted_keeps_its_requests", &[RC], kept_lists),
    ]);
}

/// Access of the regions of these cases.
const BOTH: Access = Access::READ.with(Access::WRITE);
/// Bytes of such a region.
const REGION: usize = 32 << 10;

type Place<F> = Option<WorkRequest<'static, <F as Fabric>::Memory>>;

/// Returns an unsignaled WRITE of a buffer.
fn write<F: Fabric>(
    station: &Station<F>,
    key: RegionKey,
    offset: u64,
    bytes: &[u8],
) -> Result<Place<F>, Failure> {
    let data = Data::Buffer(station.buffer(bytes)?);
    let operation = Operation::Write { data, key, offset, immediate: None };
    Ok(Some(WorkRequest { id: WorkId(offset), operation, signaled: false }))
}

/// READs bytes of the other role's region, after all that was posted before.
fn read<F: Fabric>(
    station: &mut Station<F>,
    queue_pair: QueuePairId,
    key: RegionKey,
    (offset, length): (u64, usize),
) -> Result<Vec<u8>, Failure> {
    let into = station.arena.reserve(length)?;
    let from = RemoteSlice { key, offset, length: length as u32 };
    station.post(queue_pair, u64::MAX, Operation::Read { from, into }, true)?;
    Ok(station.sent(u64::MAX)?.buffer.map(|buffer| buffer.to_vec()).unwrap_or_default())
}

/// Lends a region to the other role until that is done.
fn lend<F: Fabric>(context: &mut Context<F>, station: &mut Station<F>, access: Access) -> Verdict {
    let region = context.region(REGION, access)?;
    context.lend(&region, access)?;
    context.meet_at(station)
}

fn several_lengths<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BYTES: usize = 200;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, &mut station, BOTH);
    }
    let key = context.borrow_key()?;
    for length in [0, 1, 2, 3, 8, 9, 20, 31, 32, 33, 100] {
        let bytes: Vec<_> = (0..length).map(|place| pattern((length * 100 + place) as u64, BYTES)).collect();
        let mut list = Vec::new();
        for (place, bytes) in bytes.iter().enumerate() {
            list.push(write(&station, key, (place * BYTES) as u64, bytes)?);
        }
        // An empty place changes nothing.
        if length == 9 {
            list.insert(4, None);
            list.push(None);
        }
        station.domain.post_list(queue_pair, &mut list)?;
        expect!(list.iter().all(Option::is_none), "{length} requests: one is still in its place");
        let got = read(&mut station, queue_pair, key, (0, length.max(1) * BYTES))?;
        expect!(length == 0 || got == bytes.concat(), "{length} requests: other bytes have arrived");
    }
    context.meet_at(&mut station)
}

/// A list that is as long as the send queue, with more places than that: SENDs, WRITEs and READs run and complete in
/// order. The next one uses the same memory.
fn hundred<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const LENGTH: u64 = 100;
    const ROUNDS: u64 = 6;
    let mut station = context.station()?;
    let config = QueuePairConfig { max_send: LENGTH as u32, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    let sends = |round: u64| (0..LENGTH).filter(|id| id % 3 == 0).map(move |id| round * LENGTH + id);
    if role == Role::Second {
        let region = context.region(REGION, BOTH)?;
        context.lend(&region, BOTH)?;
        for round in 0..ROUNDS {
            sends(round).try_for_each(|id| station.receive_on(queue_pair, id, 64))?;
            context.tell(b"next")?;
            for id in sends(round) {
                station.received(id, &pattern(id, 50))?;
            }
        }
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for round in 0..ROUNDS {
        expect_eq!(context.hear_at(&mut station)?, b"next");
        let mut list: Vec<Place<F>> = Vec::new();
        for number in 0..LENGTH {
            let id = round * LENGTH + number;
            let (offset, bytes) = (number * 64, pattern(id, 50));
            let operation = match number % 3 {
                0 => {
                    Operation::Send { data: Data::Buffer(station.buffer(&bytes)?), immediate: None, to: None }
                }
                1 => {
                    let data = Data::Buffer(station.buffer(&bytes)?);
                    Operation::Write { data, key, offset, immediate: None }
                }
                // The bytes that the request before it has written.
                _ => {
                    let from = RemoteSlice { key, offset: offset - 64, length: 50 };
                    Operation::Read { from, into: station.arena.reserve(50)? }
                }
            };
            list.push(Some(WorkRequest { id: WorkId(id), operation, signaled: true }));
            if number % 7 == 0 {
                list.push(None);
            }
        }
        station.domain.post_list(queue_pair, &mut list)?;
        expect!(list.iter().all(Option::is_none), "a request is still in its place");
        for number in 0..LENGTH {
            let id = round * LENGTH + number;
            let completion = station.sent(id)?;
            let read = completion.buffer.as_deref();
            expect_eq!(read, (number % 3 == 2).then(|| pattern(id - 1, 50)).as_deref(), "request {number}");
        }
    }
    context.meet_at(&mut station)
}

fn sends_in_order<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 20;
    const LENGTH: u64 = 12;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for round in 0..ROUNDS {
        let ids = round * LENGTH..(round + 1) * LENGTH;
        if role == Role::Second {
            for id in ids.clone() {
                station.receive_on(queue_pair, id, 500)?;
            }
            context.tell(b"next")?;
            for id in ids {
                station.received(id, &pattern(id, 1 + id as usize))?;
            }
            continue;
        }
        expect_eq!(context.hear_at(&mut station)?, b"next");
        let mut list = Vec::new();
        for id in ids.clone() {
            let data = Data::Buffer(station.buffer(&pattern(id, 1 + id as usize))?);
            let operation = Operation::Send { data, immediate: None, to: None };
            list.push(Some(WorkRequest {
                id: WorkId(id),
                operation,
                signaled: id % 5 == 0 || id + 1 == ids.end,
            }));
        }
        station.domain.post_list(queue_pair, &mut list)?;
        for id in ids.clone().filter(|id| id % 5 == 0 || id + 1 == ids.end) {
            station.sent(id)?;
        }
    }
    context.meet_at(&mut station)
}

/// Each operation of a list sees the effect of those before it, and completes in order.
fn operations_in_order<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, &mut station, BOTH.with(Access::ATOMIC));
    }
    let key = context.borrow_key()?;
    for round in 0..50u64 {
        let data = Data::Buffer(station.buffer(&round.to_le_bytes())?);
        let into = station.arena.reserve(8)?;
        let operations = [
            Operation::Write { data, key, offset: 64, immediate: None },
            Operation::FetchAdd { key, offset: 64, add: 5 },
            Operation::CompareSwap { key, offset: 64, expected: round + 5, swap: round + 9 },
            Operation::Read { from: RemoteSlice { key, offset: 64, length: 8 }, into },
        ];
        let mut list =
            operations.map(|operation| Some(WorkRequest { id: WorkId(round), operation, signaled: true }));
        station.domain.post_list(queue_pair, &mut list)?;
        for (opcode, value) in
            [(Opcode::Write, 0), (Opcode::FetchAdd, round), (Opcode::CompareSwap, round + 5)]
        {
            let completion = station.sent(round)?;
            expect_eq!((completion.opcode, completion.value), (opcode, value));
        }
        let read = station.sent(round)?;
        expect!(
            read.buffer.is_some_and(|buffer| *buffer == (round + 9).to_le_bytes()),
            "the READ came too early"
        );
    }
    context.meet_at(&mut station)
}

/// A list without room for its last request leaves no effect of its first, and can be posted later.
fn whole_lists<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const DEPTH: u64 = 8;
    let mut station = context.station()?;
    let config = QueuePairConfig { max_send: DEPTH as u32, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, &mut station, BOTH);
    }
    let key = context.borrow_key()?;
    let value = |station: &mut Station<F>| read(station, queue_pair, key, (64, 8));
    for _ in 1..DEPTH {
        let mut one = [write(&station, key, 64, &1u64.to_le_bytes())?];
        station.domain.post_list(queue_pair, &mut one)?;
    }
    let mut list = Vec::new();
    for number in [2u64, 3] {
        list.push(write(&station, key, 64, &number.to_le_bytes())?);
    }
    let full = Err(ListError { posted: 0, error: PostError::QueueFull });
    expect_eq!(station.domain.post_list(queue_pair, &mut list), full);
    expect!(list.iter().all(Option::is_some), "a request has left its place");
    // The last slot was kept for this.
    expect_eq!(value(&mut station)?, 1u64.to_le_bytes());
    expect_eq!(station.domain.post_list(queue_pair, &mut list), Ok(()));
    expect_eq!(value(&mut station)?, 3u64.to_le_bytes());
    let mut long = Vec::new();
    for number in 4..5 + DEPTH {
        long.push(write(&station, key, 64, &number.to_le_bytes())?);
    }
    expect_eq!(station.domain.post_list(queue_pair, &mut long), full, "more than the send queue has places");
    expect_eq!(value(&mut station)?, 3u64.to_le_bytes());
    context.meet_at(&mut station)
}

/// The requests before one that is refused are posted, those behind it are not and stay.
fn bad_in_the_middle<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const WORDS: u64 = 10;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, &mut station, BOTH);
    }
    let key = context.borrow_key()?;
    let limit = context.fabric.capabilities().max_inline;
    let too_long = vec![9; limit as usize + 1];
    let parts: &[&[u8]] = &[&too_long];
    for bad in [0, 1, 4, WORDS - 1] {
        let stamp = |word: u64| (bad * 100 + word + 1).to_le_bytes();
        let mut zero = [write(&station, key, 0, &[0; 8 * WORDS as usize])?];
        station.domain.post_list(queue_pair, &mut zero)?;
        let mut list = Vec::new();
        for word in 0..WORDS {
            let mut place: Option<WorkRequest<'_, F::Memory>> = write(&station, key, word * 8, &stamp(word))?;
            if word == bad
                && let Some(request) = &mut place
            {
                let data = Data::Inline(parts);
                request.operation = Operation::Write { data, key, offset: word * 8, immediate: None };
            }
            list.push(place);
        }
        let error = PostError::Inline { length: too_long.len(), limit };
        let refused = station.domain.post_list(queue_pair, &mut list);
        expect_eq!(refused, Err(ListError { posted: bad as usize, error }));
        for (place, word) in list.iter().zip(0..) {
            expect_eq!(
                place.is_some(),
                word > bad,
                "request {word} of a list whose request {bad} is refused"
            );
        }
        let there = |upto: u64| -> Vec<u8> {
            (0..WORDS)
                .flat_map(|word| if word < upto && word != bad { stamp(word) } else { [0; 8] })
                .collect()
        };
        expect_eq!(read(&mut station, queue_pair, key, (0, 8 * WORDS as usize))?, there(bad));
        // The others can be posted again.
        expect_eq!(station.domain.post_list(queue_pair, &mut list), Ok(()));
        expect_eq!(read(&mut station, queue_pair, key, (0, 8 * WORDS as usize))?, there(WORDS));
    }
    context.meet_at(&mut station)
}

/// Lists that are too long, or for a queue pair that cannot send.
fn kept_lists<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, &mut station, BOTH);
    }
    let key = context.borrow_key()?;
    let refused = |station: &mut Station<F>, to: QueuePairId, length: usize, error: PostError| -> Verdict {
        let mut list = Vec::new();
        for _ in 0..length {
            list.push(write(station, key, 0, &[7; 8])?);
        }
        expect_eq!(station.domain.post_list(to, &mut list), Err(ListError { posted: 0, error }));
        expect!(list.iter().all(Option::is_some), "{error}: a request has left its place");
        Ok(())
    };
    refused(&mut station, queue_pair, config.max_send as usize + 1, PostError::QueueFull)?;
    expect_eq!(read(&mut station, queue_pair, key, (0, 8))?, [0; 8]);
    let alone = station.domain.create_queue_pair(&config)?;
    refused(&mut station, alone, 3, PostError::NotConnected)?;
    station.domain.destroy_queue_pair(alone)?;
    refused(&mut station, alone, 3, PostError::NoSuch("queue pair"))?;
    context.meet_at(&mut station)?;
    station.until_error(queue_pair)?;
    refused(&mut station, queue_pair, 3, PostError::QueuePairError)
}
