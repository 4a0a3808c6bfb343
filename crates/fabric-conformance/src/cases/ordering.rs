//! The order of events on one queue pair, and the guarantees for readers of memory.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::{Station, holds, pattern};
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, Data, Fabric, Opcode, Operation, QueuePairId, ReceiveTarget, RegionKey, RemoteSlice,
    ThreadDomain, WorkId, WorkRequest,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("write_is_there_when_the_send_behind_it_arrives", &[RC], |c, r| {
            write_then(c, r, Behind::Send)
        }),
        Case::pair("write_is_there_when_the_immediate_behind_it_arrives", &[RC, Need::Immediate], |c, r| {
            write_then(c, r, Behind::Immediate)
        }),
        Case::pair("write_is_there_when_the_send_linked_to_it_arrives", &[RC], |c, r| {
            write_then(c, r, Behind::LinkedSend)
        }),
        Case::pair("read_sees_the_write_before_it", &[RC], read_after_write),
        Case::pair("sequence_in_one_line", &[RC, Need::Inline, Need::InOrderWrite], one_line),
        Case::pair("tag_of_a_long_write_is_last", &[RC, Need::InOrderWrite], tag_last),
        Case::pair("receives_complete_in_order", &[RC], receives_in_order),
        Case::pair("sends_complete_in_order", &[RC], sends_in_order),
        Case::pair("peer_writes_while_we_copy", &[RC], hostile_writes),
        Case::pair("owner_writes_while_peer_reads", &[RC], hostile_owner),
        Case::pair(
            "nothing_read_is_older_than_the_tag_of_its_first_line",
            &[RC, Need::WholeLineReads],
            tag_read_first,
        ),
    ]);
}

fn write<F: Fabric>(
    station: &mut Station<F>,
    queue_pair: QueuePairId,
    key: RegionKey,
    offset: u64,
    bytes: &[u8],
) -> Verdict {
    let data = Data::Buffer(station.buffer(bytes)?);
    let operation = Operation::Write { data, key, offset, immediate: None };
    Ok(station.post(queue_pair, 0, operation, false)?)
}

/// The request that announces a WRITE.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Send,
    Immediate,
    LinkedSend,
}

fn write_then<F: Fabric>(context: &mut Context<F>, role: Role, behind: Behind) -> Verdict {
    let immediate = behind == Behind::Immediate;
    const ROUNDS: u64 = 200;
    const LENGTH: usize = 10_000;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        for round in 0..ROUNDS {
            expect_eq!(context.hear_at(&mut station)?, b"next");
            if behind == Behind::LinkedSend {
                let data = Data::Buffer(station.buffer(&pattern(round, LENGTH))?);
                let write = Operation::Write { data, key, offset: 64, immediate: None };
                let data = Data::Buffer(station.buffer(&round.to_le_bytes())?);
                let send = Operation::Send { data, immediate: None, to: None };
                let mut list = [(write, false), (send, true)].map(|(operation, signaled)| {
                    Some(WorkRequest { id: WorkId(round), operation, signaled })
                });
                station.domain.post_list(queue_pair, &mut list)?;
                station.sent(round)?;
                continue;
            }
            write(&mut station, queue_pair, key, 64, &pattern(round, LENGTH))?;
            if immediate {
                let data = Data::Inline(&[]);
                let operation = Operation::Write { data, key, offset: 0, immediate: Some(round as u32) };
                station.post(queue_pair, round, operation, true)?;
            } else {
                station.send(queue_pair, round, &round.to_le_bytes(), true)?;
            }
            station.sent(round)?;
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(LENGTH + 128, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    for round in 0..ROUNDS {
        station.receive_on(queue_pair, round, 8)?;
        context.tell(b"next")?;
        let got = station.success(station.receives, round)?;
        if immediate {
            expect_eq!((got.opcode, got.immediate), (Opcode::ReceiveWriteImmediate, Some(round as u32)));
        }
        expect!(
            holds(&region, 64, &pattern(round, LENGTH)),
            "round {round}: the WRITE has not arrived before"
        );
    }
    context.meet_at(&mut station)
}

fn read_after_write<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BOTH: Access = Access::READ.with(Access::WRITE);
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(8192, BOTH)?;
        context.lend(&region, BOTH)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for round in 0..100 {
        let bytes = pattern(round, 3000);
        write(&mut station, queue_pair, key, 100, &bytes)?;
        let into = station.arena.reserve(3000)?;
        let from = RemoteSlice { key, offset: 100, length: 3000 };
        station.post(queue_pair, round, Operation::Read { from, into }, true)?;
        let got = station.sent(round)?;
        expect!(
            got.buffer.is_some_and(|buffer| *buffer == bytes[..]),
            "round {round}: an older state was read"
        );
    }
    context.meet_at(&mut station)
}

fn one_line<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const WRITES: u64 = 5000;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        for sequence in 1..=WRITES {
            let line: Vec<u8> = sequence.to_le_bytes().repeat(8);
            let data = Data::Inline(&[&line]);
            let operation = Operation::Write { data, key, offset: 64, immediate: None };
            station.post(queue_pair, sequence, operation, sequence % 32 == 0)?;
            if sequence % 32 == 0 {
                station.sent(sequence)?;
            }
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(256, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    let (mut last, mut seen) = (0, 0);
    while last < WRITES {
        let tag = station.until_word(&region, 64 + 56, |tag| tag != last)?;
        expect!(tag > last, "the tag went back from {last} to {tag}");
        let line = region.line_out(64);
        for word in line.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            expect!(word >= tag, "tag {tag} is there before another word, which is {word} still");
        }
        (last, seen) = (tag, seen + 1);
    }
    expect!(seen > 0 && holds(&region, 0, &[0; 64]) && holds(&region, 128, &[0; 128]));
    context.meet_at(&mut station)
}

fn tag_last<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 300;
    let lengths = [72usize, 128, 192, 1016, 1024, 1032, 4096, 65_536];
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let region = context.region(1 << 17, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    let key = context.borrow_key()?;
    let length_of = |round: u64| lengths[round as usize % lengths.len()];
    for round in 1..=ROUNDS {
        let length = length_of(round);
        let bytes = round.to_le_bytes().repeat(length / 8);
        if role == Role::First {
            // At a different offset for each length, with the end at a multiple of eight.
            let offset = (1 << 16) - length as u64;
            let data = Data::Buffer(station.buffer(&bytes)?);
            let operation = Operation::Write { data, key, offset, immediate: None };
            station.post(queue_pair, round, operation, true)?;
            station.sent(round)?;
            station.until_word(&region, 0, |word| word == round)?;
        } else {
            station.until_word(&region, (1 << 16) - 8, |tag| tag == round)?;
            expect!(
                holds(&region, (1 << 16) - length, &bytes),
                "the tag of a WRITE of {length} bytes was there before the rest"
            );
            let data = Data::Buffer(station.buffer(&round.to_le_bytes())?);
            let operation = Operation::Write { data, key, offset: 0, immediate: None };
            station.post(queue_pair, round, operation, true)?;
            station.sent(round)?;
        }
    }
    context.meet_at(&mut station)
}

fn receives_in_order<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const MESSAGES: u64 = 64;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        for id in 0..MESSAGES {
            station.receive_on(queue_pair, 1000 + id, 200)?;
        }
        context.meet_at(&mut station)?;
        for id in 0..MESSAGES {
            station.received(1000 + id, &pattern(id, 3 * id as usize))?;
        }
        return context.meet_at(&mut station);
    }
    context.meet_at(&mut station)?;
    for id in 0..MESSAGES {
        station.send(queue_pair, id, &pattern(id, 3 * id as usize), id + 1 == MESSAGES)?;
    }
    station.sent(MESSAGES - 1)?;
    context.meet_at(&mut station)
}

fn sends_in_order<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const REQUESTS: u64 = 100;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let atomics = context.fabric.capabilities().atomics.exist();
    let both = Access::READ.with(Access::WRITE);
    let access = if atomics { both.with(Access::ATOMIC) } else { both };
    if role == Role::Second {
        let region = context.region(1 << 16, access)?;
        for id in 0..REQUESTS {
            let target = ReceiveTarget::QueuePair(queue_pair);
            station.domain.post_receive(target, WorkId(id), None)?;
        }
        context.lend(&region, access)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    let mut opcodes = Vec::new();
    for id in 0..REQUESTS {
        let (operation, opcode) = match id % 4 {
            0 => {
                let data = Data::Buffer(station.buffer(&pattern(id, 5000))?);
                (Operation::Write { data, key, offset: 0, immediate: None }, Opcode::Write)
            }
            1 => (Operation::Send { data: Data::Inline(&[]), immediate: None, to: None }, Opcode::Send),
            2 if atomics => (Operation::FetchAdd { key, offset: 8, add: 1 }, Opcode::FetchAdd),
            _ => {
                let into = station.arena.reserve(4096)?;
                (Operation::Read { from: RemoteSlice { key, offset: 0, length: 4096 }, into }, Opcode::Read)
            }
        };
        opcodes.push(opcode);
        station.post(queue_pair, id, operation, true)?;
    }
    for (id, opcode) in opcodes.into_iter().enumerate() {
        let got = station.sent(id as u64)?;
        expect_eq!(got.opcode, opcode);
    }
    context.meet_at(&mut station)
}

/// A peer that writes to memory while this side copies from it causes torn bytes at most.
fn hostile_writes<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const LENGTH: usize = 8192;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        for round in 0..2000u64 {
            let length = 1 + (round as usize * 37) % LENGTH;
            let data = Data::Buffer(station.buffer(&vec![round as u8 | 1; length])?);
            let offset = ((round * 53) % (LENGTH - length + 1) as u64) & !7;
            let signaled = round % 32 == 31;
            let operation = Operation::Write { data, key, offset, immediate: None };
            station.post(queue_pair, round, operation, signaled)?;
            if signaled {
                station.sent(round)?;
            }
        }
        write(&mut station, queue_pair, key, LENGTH as u64, &1u64.to_le_bytes())?;
        return context.meet_at(&mut station);
    }
    let region = context.region(LENGTH + 64, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    let mut copy = vec![0; LENGTH];
    let mut sum = 0u64;
    station.until_word(&region, LENGTH, |word| {
        region.copy_out(0, &mut copy);
        region.copy_out(3, &mut copy[..777]);
        let line = region.line_out(128);
        sum = sum.wrapping_add(copy.iter().chain(&line).map(|b| u64::from(*b)).sum::<u64>());
        sum = sum.wrapping_add(region.load(256));
        word == 1
    })?;
    expect!(sum > 0, "the WRITEs were seen");
    context.meet_at(&mut station)
}

fn hostile_owner<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const LENGTH: usize = 8192;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        for round in 0..500 {
            let into = station.arena.reserve(LENGTH)?;
            let from = RemoteSlice { key, offset: 0, length: LENGTH as u32 };
            station.post(queue_pair, round, Operation::Read { from, into }, true)?;
            let got = station.sent(round)?;
            expect!(got.buffer.is_some_and(|buffer| buffer.len() == LENGTH));
        }
        context.tell(b"done")?;
        return context.meet_at(&mut station);
    }
    let region = context.region(LENGTH, Access::READ)?;
    context.lend(&region, Access::READ)?;
    let mut round = 0u8;
    let link = context.link();
    let message = station.until("the end", |_| {
        round = round.wrapping_add(1);
        region.copy_in(0, &[round; LENGTH]);
        region.store(64, u64::from(round));
        use dunlin_fabric::Link;
        Ok(link.try_receive()?)
    })?;
    expect_eq!(message, b"done");
    context.meet_at(&mut station)
}

/// The owner publishes in the order of results: the first line last, and in each line the last 8 bytes last.
/// No byte that a READ returns may be older than the last 8 bytes of its first line.
fn tag_read_first<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const LENGTH: usize = 8192;
    const LINE: usize = 64;
    const READS: usize = 60_000;
    /// The number of lines that change; the others are newer than all of them.
    const CHANGING: usize = 6;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        let lengths = [64, 256, 1024, 1088, 2048, 4224, LENGTH];
        let mut latest = 0;
        for (round, length) in lengths.into_iter().cycle().take(READS).enumerate() {
            let into = station.arena.reserve(length)?;
            let from = RemoteSlice { key, offset: 0, length: length as u32 };
            station.post(queue_pair, round as u64, Operation::Read { from, into }, true)?;
            let got = station.sent(round as u64)?;
            let Some(buffer) = got.buffer else { return Err(Failure::new("a READ without its buffer")) };
            let (words, _) = buffer.as_chunks::<8>();
            let tag = u64::from_le_bytes(words[LINE / 8 - 1]);
            let oldest = words.iter().fold(u64::MAX, |oldest, word| oldest.min(u64::from_le_bytes(*word)));
            expect!(
                oldest >= tag,
                "a READ of {length} bytes has {oldest}, and {tag} at the end of its first line"
            );
            latest = latest.max(tag);
        }
        expect!(latest > 0, "the owner's stores are seen");
        context.tell(b"done")?;
        return context.meet_at(&mut station);
    }
    let region = context.region(LENGTH, Access::READ)?;
    region.copy_in(0, &[u8::MAX; LENGTH]);
    region.copy_in(0, &[0; CHANGING * LINE]);
    context.lend(&region, Access::READ)?;
    let mut round = 0u64;
    let link = context.link();
    let message = station.until("the end", |_| {
        for _ in 0..200 {
            round += 1;
            let mut line = [0; LINE];
            line.as_chunks_mut::<8>().0.fill(round.to_le_bytes());
            (1..CHANGING).chain([0]).for_each(|changing| region.copy_in(changing * LINE, &line));
        }
        use dunlin_fabric::Link;
        Ok(link.try_receive()?)
    })?;
    expect_eq!(message, b"done");
    context.meet_at(&mut station)
}
