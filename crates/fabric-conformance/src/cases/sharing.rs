//! Shared receive queues, shared completion queues, datagrams to several peers, atomics from several threads.

use super::operations::{receiver, sender};
use super::{RC, UD};
use crate::case::{Case, Need, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::{Failure, Verdict};
use crate::station::{Station, check_received, pattern};
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Host, Opcode, Operation, QueuePairConfig, QueuePairState,
    ReceiveTarget, RegionKey, Signal, ThreadDomain, Transport,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("shared_receive_queue", &[RC, Need::SharedReceiveQueue], shared_receive),
        Case::pair(
            "shared_receive_queue_outlives_a_queue_pair",
            &[RC, Need::SharedReceiveQueue, Need::Acknowledged],
            outlives,
        ),
        Case::pair(
            "shared_receive_queue_runs_dry",
            &[RC, Need::SharedReceiveQueue, Need::Acknowledged],
            runs_dry,
        ),
        Case::pair("shared_completion_queue", &[RC], shared_completions),
        Case::pair("ud_to_several_peers", &[UD], several_peers),
        Case::pair("atomics_from_two_peers", &[RC, Need::Atomics], two_peers),
    ]);
}

const PAIRS: usize = 4;
const EACH: u64 = 8;

fn shared_receive<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let mut pairs = Vec::new();
    let shared = if role == Role::Second {
        let shared = station.domain.create_shared_receive_queue(64)?;
        for id in 0..PAIRS as u64 * EACH {
            station.receive(ReceiveTarget::Shared(shared), id, 64)?;
        }
        Some(shared)
    } else {
        None
    };
    for _ in 0..PAIRS {
        let max_receive = if shared.is_some() { 0 } else { 16 };
        let config = QueuePairConfig { shared_receive: shared, max_receive, ..station.reliable() };
        pairs.push(context.connect(&mut station, &config)?);
    }
    if role == Role::First {
        for number in 0..EACH {
            for (at, pair) in pairs.iter().enumerate() {
                station.send(*pair, number, &[at as u8, number as u8], number + 1 == EACH)?;
            }
        }
        for _ in &pairs {
            station.sent(EACH - 1)?;
        }
        return context.meet_at(&mut station);
    }
    let mut next = [0; PAIRS];
    let mut used = BTreeSet::new();
    for _ in 0..PAIRS as u64 * EACH {
        let got = station.next(station.receives)?;
        expect_eq!(got.status, CompletionStatus::Success);
        let Some(at) = pairs.iter().position(|pair| *pair == got.queue_pair) else {
            return Err(Failure::new("a completion for a queue pair that is not ours"));
        };
        check_received::<F>(&got, &[at as u8, next[at]], 0)?;
        next[at] += 1;
        expect!(used.insert(got.id), "RECV {:?} was used twice", got.id);
    }
    context.meet_at(&mut station)
}

fn outlives<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let shared = station.domain.create_shared_receive_queue(16)?;
    let config = QueuePairConfig { shared_receive: Some(shared), max_receive: 0, ..station.reliable() };
    let [one, two] = [context.connect(&mut station, &config)?, context.connect(&mut station, &config)?];
    if role == Role::First {
        let data = Data::Buffer(station.buffer(b"bad")?);
        let key = RegionKey(0x0bad);
        station.post(one, 1, Operation::Write { data, key, offset: 0, immediate: None }, true)?;
        expect_eq!(station.next(station.sends)?.status, CompletionStatus::RemoteAccess);
        context.meet_at(&mut station)?;
        station.send(two, 2, b"alive", true)?;
        station.sent(2)?;
        return context.meet_at(&mut station);
    }
    for id in 0..4 {
        station.receive(ReceiveTarget::Shared(shared), id, 64)?;
    }
    context.meet_at(&mut station)?;
    station.until_error(one)?;
    expect_eq!(station.domain.state(two), Some(QueuePairState::Ready), "its neighbour");
    // The RECVs of a shared queue belong to no queue pair, so none is flushed.
    station.received(0, b"alive")?;
    context.meet_at(&mut station)
}

/// Senders wait while the shared queue is empty, and continue when RECVs are posted.
fn runs_dry<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let shared = station.domain.create_shared_receive_queue(16)?;
    let config = QueuePairConfig { shared_receive: Some(shared), max_receive: 0, ..station.reliable() };
    let pairs = [context.connect(&mut station, &config)?, context.connect(&mut station, &config)?];
    if role == Role::First {
        for pair in pairs {
            for id in 0..EACH {
                station.send(pair, id, &[id as u8; 20], true)?;
            }
        }
        context.tell(b"sent")?;
        for _ in 0..2 * EACH {
            expect_eq!(station.next(station.sends)?.status, CompletionStatus::Success);
        }
        return context.meet_at(&mut station);
    }
    expect_eq!(context.hear_at(&mut station)?, b"sent");
    station.rest(5 * MILLISECOND)?;
    let mut next = [0u8; 2];
    for id in 0..2 * EACH {
        station.receive(ReceiveTarget::Shared(shared), id, 64)?;
        let got = station.success(station.receives, id)?;
        let at = usize::from(got.queue_pair == pairs[1]);
        check_received::<F>(&got, &[next[at]; 20], 0)?;
        next[at] += 1;
    }
    expect_eq!(next.map(u64::from), [EACH; 2]);
    context.meet_at(&mut station)
}

fn shared_completions<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let queue = station.domain.create_completion_queue(1024, false)?;
    let config =
        QueuePairConfig { send_completions: queue, receive_completions: queue, ..station.reliable() };
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let pair = context.connect(&mut station, &config)?;
        for id in 0..EACH {
            station.receive_on(pair, 1000 + id, 64)?;
        }
        pairs.push(pair);
    }
    context.meet_at(&mut station)?;
    for number in 0..EACH {
        for pair in &pairs {
            station.send(*pair, number, &pattern(number, 40), true)?;
        }
    }
    let (mut sent, mut received) = ([0; PAIRS], [0; PAIRS]);
    for _ in 0..2 * PAIRS as u64 * EACH {
        let got = station.until("a completion in the shared queue", |station| {
            station.poll(queue);
            Ok(station.take(queue))
        })?;
        expect_eq!(got.status, CompletionStatus::Success);
        let Some(at) = pairs.iter().position(|pair| *pair == got.queue_pair) else {
            return Err(Failure::new("a completion for a queue pair that is not ours"));
        };
        if got.opcode == Opcode::Send {
            expect_eq!(got.id.0, sent[at], "order of SENDs of queue pair {at}");
            sent[at] += 1;
        } else {
            expect_eq!(got.id.0, 1000 + received[at], "order of RECVs of queue pair {at}");
            check_received::<F>(&got, &pattern(received[at], 40), 0)?;
            received[at] += 1;
        }
    }
    context.meet_at(&mut station)
}

/// One datagram queue pair exchanges messages with three.
fn several_peers<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const PEERS: usize = 3;
    const RECEIVES: u64 = 16;
    const UD: Transport = Transport::UnreliableDatagram;
    let mut station = context.station()?;
    let config = station.config(UD);
    let ours = if role == Role::First { 1 } else { PEERS };
    let mut pairs = Vec::new();
    for _ in 0..ours {
        pairs.push(station.domain.create_queue_pair(&config)?);
    }
    let mut handles = Vec::new();
    for number in 0..PEERS {
        let pair = pairs[number % ours];
        let remote = context.swap_endpoints(context.link(), &mut station, pair)?;
        handles.push(station.domain.create_address_handle(pair, context.link(), &remote)?);
    }
    let headroom = context.fabric.capabilities().datagram_headroom as usize;
    for number in 0..RECEIVES {
        for pair in &pairs {
            station.receive_on(*pair, number, headroom + 64)?;
        }
    }
    context.meet_at(&mut station)?;
    let mut known: Vec<Vec<u8>> = Vec::new();
    for number in 0..PEERS {
        let pair = pairs[number % ours];
        // In both directions.
        for (from, bytes) in [
            (Role::First, pattern(number as u64, 20 + number)),
            (Role::Second, pattern(100 + number as u64, 30 + number)),
        ] {
            if role == from {
                sender(context, &mut station, |station| {
                    let data = Data::Buffer(station.buffer(&bytes)?);
                    let to = Some(handles[number]);
                    station.post(pair, 1, Operation::Send { data, immediate: None, to }, true)?;
                    station.sent(1).map(|_| ())
                })?;
                continue;
            }
            let got = receiver(context, &mut station, UD, |station| {
                // A datagram that was late and sent again meanwhile arrives twice.
                let old = |got: &_| known.iter().any(|old| check_received::<F>(got, old, headroom).is_ok());
                Ok(std::iter::from_fn(|| station.take(station.receives)).find(|got| !old(got)))
            })?;
            expect_eq!(got.queue_pair, pair, "the datagram went to another queue pair");
            check_received::<F>(&got, &bytes, headroom)?;
            known.push(bytes);
        }
    }
    Ok(())
}

/// Runs one thread of the second role, with its own link, domain and queue pair.
fn adder<F: Fabric>(context: &Context<F>, link: &F::Link, key: RegionKey) -> Result<Vec<u64>, Failure> {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect_over(link, &mut station, &config)?;
    let mut seen = Vec::new();
    for id in 0..ADDS {
        station.post(queue_pair, id, Operation::FetchAdd { key, offset: 0, add: 1 }, true)?;
        seen.push(station.sent(id)?.value);
        loop {
            // The same with CMP_SWAP, as where there is no FETCH_ADD.
            let expected = station_value(&mut station, queue_pair, key)?;
            let operation = Operation::CompareSwap { key, offset: 8, expected, swap: expected + 1 };
            station.post(queue_pair, id, operation, true)?;
            if station.sent(id)?.value == expected {
                break;
            }
        }
    }
    use dunlin_fabric::Link;
    link.send(b"added")?;
    // The other side closes first.
    let _ = link.receive(context.deadline);
    Ok(seen)
}

fn station_value<F: Fabric>(
    station: &mut Station<F>,
    queue_pair: dunlin_fabric::QueuePairId,
    key: RegionKey,
) -> Result<u64, Failure> {
    station.post(queue_pair, 77, Operation::FetchAdd { key, offset: 8, add: 0 }, true)?;
    Ok(station.sent(77)?.value)
}

const ADDS: u64 = 300;

fn two_peers<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    use dunlin_fabric::Link;
    let links = [context.another_link()?, context.another_link()?];
    if role == Role::First {
        let region = context.region(64, Access::ATOMIC)?;
        let mut stations = Vec::new();
        for link in &links {
            let key = link.grant(region.memory(), Access::ATOMIC)?;
            context.tell_number(key.0)?;
        }
        for link in &links {
            let mut station = context.station()?;
            let config = station.reliable();
            context.connect_over(link, &mut station, &config)?;
            stations.push(station);
        }
        for link in &links {
            expect_eq!(link.receive(context.deadline)?, b"added");
        }
        expect_eq!((region.load(0), region.load(8)), (2 * ADDS, 2 * ADDS), "the sums of two peers' atomics");
        for link in &links {
            link.send(b"thanks")?;
        }
        context.exchange(b"done")?;
        return Ok(());
    }
    let keys = [context.borrow_key()?, context.borrow_key()?];
    let host = context.fabric.host().clone();
    let results = Arc::new(Mutex::new(Vec::new()));
    let ended = host.signal();
    for (link, key) in links.into_iter().zip(keys) {
        let alone = Context::alone(&context.fabric, &context.address, context.deadline - context.now());
        let (results, ended) = (Arc::clone(&results), ended.clone());
        let body = move || {
            let result = adder(&alone, &link, key);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            ended.raise();
        };
        host.spawn("adder", Box::new(body))?;
    }
    loop {
        let seen = ended.seen();
        if results.lock().unwrap_or_else(PoisonError::into_inner).len() == 2 {
            break;
        }
        expect!(ended.wait(seen, context.deadline), "the adding threads did not end");
    }
    let mut all = Vec::new();
    for result in results.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        all.extend(result?);
    }
    all.sort_unstable();
    expect!(all.iter().copied().eq(0..2 * ADDS), "each FETCH_ADD sees a value that no other saw");
    context.exchange(b"done")?;
    Ok(())
}
