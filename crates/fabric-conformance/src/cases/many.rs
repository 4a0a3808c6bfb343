//! Many queue pairs, deep queues, late connecting.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::{Station, check_received, pattern};
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Host, Link, Opcode, Operation, QueuePairConfig, ReceiveTarget,
    RemoteSlice, Signal, ThreadDomain, WorkId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("two_hundred_queue_pairs", &[RC, Need::QueuePairs(200)], two_hundred),
        Case::pair("deepest_queues", &[RC], deepest),
        Case::pair("what_comes_before_we_connect_waits", &[RC], late_connect),
        Case::pair("long_run_of_messages", &[RC, Need::Acknowledged], long_run),
        Case::pair("queue_pairs_come_and_go", &[RC], come_and_go),
        Case::pair("grants_come_and_go", &[RC, Need::Acknowledged], grants_come_and_go),
        Case::pair("both_ways_at_once", &[RC, Need::Acknowledged], both_ways),
        Case::pair("many_reads_at_once", &[RC], many_reads),
        Case::pair("domain_moves_between_threads", &[RC], moves),
    ]);
}

fn two_hundred<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    const PAIRS: u64 = 200;
    const MESSAGES: u64 = 5;
    let mut station = Station::new(&context.fabric, context.deadline, 4096)?;
    let config = QueuePairConfig { max_send: 8, max_receive: 8, inbound_bytes: 4096, ..station.reliable() };
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let pair = context.connect(&mut station, &config)?;
        for number in 0..MESSAGES {
            station.receive_on(pair, number, 64)?;
        }
        pairs.push(pair);
    }
    let at: BTreeMap<_, _> = pairs.iter().enumerate().map(|(at, pair)| (*pair, at)).collect();
    expect_eq!(at.len() as u64, PAIRS, "queue pairs with one number");
    context.meet_at(&mut station)?;
    for number in 0..MESSAGES {
        for (at, pair) in pairs.iter().enumerate() {
            station.send(*pair, number, &pattern(at as u64 * 100 + number, 48), number + 1 == MESSAGES)?;
        }
    }
    let mut next = vec![0u64; pairs.len()];
    for _ in 0..PAIRS * MESSAGES {
        let got = station.next(station.receives)?;
        let Some(at) = at.get(&got.queue_pair).copied() else {
            return Err(Failure::new("a completion for a queue pair that is not ours"));
        };
        expect_eq!((got.id.0, got.status), (next[at], CompletionStatus::Success));
        check_received::<F>(&got, &pattern(at as u64 * 100 + next[at], 48), 0)?;
        next[at] += 1;
    }
    for _ in 0..PAIRS {
        station.sent(MESSAGES - 1)?;
    }
    context.meet_at(&mut station)
}

fn deepest<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let depth = context.fabric.capabilities().max_queue_depth;
    let mut station = Station::new(&context.fabric, context.deadline, depth.saturating_mul(2))?;
    let config = QueuePairConfig { max_send: depth, max_receive: depth, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        for id in 0..u64::from(depth) {
            station.domain.post_receive(ReceiveTarget::QueuePair(queue_pair), WorkId(id), None)?;
        }
        context.meet_at(&mut station)?;
        for id in 0..u64::from(depth) {
            station.received(id, b"")?;
        }
        return context.meet_at(&mut station);
    }
    context.meet_at(&mut station)?;
    for id in 0..u64::from(depth) {
        let operation = Operation::Send { data: Data::Inline(&[]), immediate: None, to: None };
        station.post(queue_pair, id, operation, true)?;
    }
    for id in 0..u64::from(depth) {
        station.sent(id)?;
    }
    context.meet_at(&mut station)
}

fn late_connect<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = station.domain.create_queue_pair(&config)?;
    let remote = context.swap_endpoints(context.link(), &mut station, queue_pair)?;
    if role == Role::First {
        station.domain.connect(queue_pair, context.link(), &remote)?;
        for id in 0..4 {
            station.send(queue_pair, id, &pattern(id, 100), true)?;
        }
        context.tell(b"sent")?;
        for id in 0..4 {
            station.sent(id)?;
        }
        return context.meet_at(&mut station);
    }
    for id in 0..4 {
        station.receive_on(queue_pair, id, 128)?;
    }
    expect_eq!(context.hear()?, b"sent");
    expect_eq!(station.poll(station.receives), 0, "nothing arrives before we connect");
    station.domain.connect(queue_pair, context.link(), &remote)?;
    for id in 0..4 {
        station.received(id, &pattern(id, 100))?;
    }
    context.meet_at(&mut station)
}

/// Rings wrap and slots are reused; no message is lost or duplicated.
fn long_run<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const MESSAGES: u64 = 10_000;
    const RECEIVES: u64 = 64;
    let length = |id: u64| (id * 71 % 700) as usize;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        for id in 0..RECEIVES {
            station.receive_on(queue_pair, id, 700)?;
        }
        context.meet_at(&mut station)?;
        for id in 0..MESSAGES {
            station.received(id, &pattern(id, length(id)))?;
            if id + RECEIVES < MESSAGES {
                station.receive_on(queue_pair, id + RECEIVES, 700)?;
            }
        }
        return context.meet_at(&mut station);
    }
    context.meet_at(&mut station)?;
    for id in 0..MESSAGES {
        let signaled = id % 16 == 15;
        station.send(queue_pair, id, &pattern(id, length(id)), signaled)?;
        // At most 64 requests after the last completion.
        if signaled && id > 64 {
            station.sent(id - 64)?;
        }
    }
    context.meet_at(&mut station)
}

fn come_and_go<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BOTH: Access = Access::READ.with(Access::WRITE);
    let mut station = context.station()?;
    let config = station.reliable();
    let mut numbers = Vec::new();
    for round in 0..60u64 {
        let pair = context.connect(&mut station, &config)?;
        expect!(!numbers.contains(&pair), "the number of a queue pair is used again too soon");
        numbers.push(pair);
        let region = context.region(256, BOTH)?;
        context.lend(&region, BOTH)?;
        let key = context.borrow_key()?;
        station.receive_on(pair, round, 64)?;
        context.meet_at(&mut station)?;
        let data = Data::Buffer(station.buffer(&pattern(round, 200))?);
        station.post(pair, 1, Operation::Write { data, key, offset: 8, immediate: None }, false)?;
        station.send(pair, 2, &round.to_le_bytes(), true)?;
        let got = station.sent(2)?;
        expect_eq!(got.opcode, Opcode::Send);
        station.received(round, &round.to_le_bytes())?;
        expect!(crate::station::holds(&region, 8, &pattern(round, 200)), "round {round}");
        context.meet_at(&mut station)?;
        // The sides alternate in being first.
        if (round % 2 == 0) == (role == Role::First) {
            station.domain.destroy_queue_pair(pair)?;
            context.tell(b"gone")?;
        } else {
            expect_eq!(context.hear_at(&mut station)?, b"gone");
            station.domain.destroy_queue_pair(pair)?;
        }
    }
    context.meet_at(&mut station)
}

/// Keys of ended grants stay invalid, however often their slots are reused.
fn grants_come_and_go<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const GRANTS: usize = 2000;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let region = context.region(64, Access::WRITE)?;
        let mut keys = BTreeSet::new();
        let link = context.link();
        let oldest = link.grant(region.memory(), Access::WRITE)?;
        let mut key = oldest;
        for _ in 0..GRANTS {
            expect!(keys.insert(key), "key {key:?} is used again");
            link.revoke(key);
            key = link.grant(region.memory(), Access::WRITE)?;
        }
        context.tell_number(oldest.0)?;
        context.tell_number(key.0)?;
        context.meet_at(&mut station)?;
        expect_eq!((region.load(0), region.load(8)), (7, 0), "what the new key and the oldest one wrote");
        return Ok(());
    }
    let [oldest, newest] = [context.borrow_key()?, context.borrow_key()?];
    for (id, key, offset, status) in
        [(1, newest, 0, CompletionStatus::Success), (2, oldest, 8, CompletionStatus::RemoteAccess)]
    {
        let data = Data::Buffer(station.buffer(&7u64.to_le_bytes())?);
        station.post(queue_pair, id, Operation::Write { data, key, offset, immediate: None }, true)?;
        let got = station.next(station.sends)?;
        expect_eq!((got.id.0, got.status), (id, status));
    }
    context.meet_at(&mut station)
}

/// Both sides send large messages at the same time, as many as the queues accept: neither waits for the
/// other.
fn both_ways<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const MESSAGES: u64 = 60;
    const AT_ONCE: u64 = 4;
    let most = context.fabric.capabilities().max_message as usize;
    let length = |id: u64| [100_000, 1, 300_000, 5000][id as usize % 4].min(most);
    let seed = |role: Role, id: u64| id + if role == Role::First { 0 } else { 1000 };
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for id in 0..AT_ONCE {
        station.receive_on(queue_pair, id, length(id))?;
    }
    context.meet_at(&mut station)?;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < MESSAGES || received < MESSAGES {
        while posted < MESSAGES && posted - sent < AT_ONCE {
            station.send(queue_pair, posted, &pattern(seed(role, posted), length(posted)), true)?;
            posted += 1;
        }
        let (is_send, got) = station.until("a completion of either kind", |station| {
            let send = station.take(station.sends).map(|got| (true, got));
            Ok(send.or_else(|| station.take(station.receives).map(|got| (false, got))))
        })?;
        expect_eq!(got.status, CompletionStatus::Success);
        if is_send {
            expect_eq!(got.id.0, sent);
            sent += 1;
            continue;
        }
        expect_eq!(got.id.0, received);
        check_received::<F>(&got, &pattern(seed(role.other(), received), length(received)), 0)?;
        received += 1;
        let next = received + AT_ONCE - 1;
        if next < MESSAGES {
            drop(got);
            station.receive_on(queue_pair, next, length(next))?;
        }
    }
    context.meet_at(&mut station)
}

fn many_reads<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const READS: u64 = 100;
    const LENGTH: usize = 16 * 1024;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let contents = pattern(5, LENGTH + READS as usize);
    if role == Role::Second {
        let region = context.region(contents.len(), Access::READ)?;
        region.copy_in(0, &contents);
        context.lend(&region, Access::READ)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    for id in 0..READS {
        let into = station.arena.reserve(LENGTH)?;
        let from = RemoteSlice { key, offset: id, length: LENGTH as u32 };
        station.post(queue_pair, id, Operation::Read { from, into }, false)?;
    }
    for id in 0..READS as usize {
        let got = station.sent(id as u64)?;
        expect!(got.buffer.is_some_and(|buffer| *buffer == contents[id..id + LENGTH]), "READ {id} differs");
    }
    context.meet_at(&mut station)
}

/// A domain belongs to one thread at a time, but can move to another.
fn moves<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    const ROUNDS: u64 = 5;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for id in 0..ROUNDS {
        station.receive_on(queue_pair, id, 64)?;
    }
    context.meet_at(&mut station)?;
    let host = context.fabric.host().clone();
    for round in 0..ROUNDS {
        let slot = Arc::new(Mutex::new(None));
        let (there, ended) = (Arc::clone(&slot), host.signal());
        let raised = ended.clone();
        let body = move || {
            let mut station = station;
            let mut once = || -> Verdict {
                station.send(queue_pair, round, &pattern(round, 30), true)?;
                station.sent(round)?;
                station.received(round, &pattern(round, 30)).map(|_| ())
            };
            let verdict = once();
            *there.lock().unwrap_or_else(PoisonError::into_inner) = Some((station, verdict));
            raised.raise();
        };
        let seen = ended.seen();
        host.spawn("mover", Box::new(body))?;
        expect!(ended.wait(seen, context.deadline), "the thread did not end");
        let Some((back, verdict)) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Err(Failure::new("the thread has left nothing"));
        };
        verdict?;
        station = back;
    }
    context.meet_at(&mut station)
}
