//! Every operation on every transport that has it, in all sizes and forms, byte for byte.

use super::{RC, UC, UD};
use crate::case::{Case, Need, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::{Failure, Verdict};
use crate::station::{CompletionOf, Form, Station, check_received, holds, pattern};
use crate::{expect, expect_eq};
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    Access, AddressHandleId, AnyMemory, CompletionStatus, Data, Fabric, Memory as _, Opcode, Operation,
    QueuePairId, ReceiveTarget, Region, RemoteSlice, ThreadDomain, Transport, WorkId,
};
use std::sync::Arc;

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    use Transport::*;
    all.extend([
        Case::pair("rc_send", &[RC], |c, r| send(c, r, ReliableConnection, false)),
        Case::pair("rc_send_immediate", &[RC, Need::Immediate], |c, r| send(c, r, ReliableConnection, true)),
        Case::pair("uc_send", &[UC], |c, r| send(c, r, UnreliableConnection, false)),
        Case::pair("uc_send_immediate", &[UC, Need::Immediate], |c, r| {
            send(c, r, UnreliableConnection, true)
        }),
        Case::pair("ud_send", &[UD], |c, r| send(c, r, UnreliableDatagram, false)),
        Case::pair("ud_send_immediate", &[UD, Need::Immediate], |c, r| send(c, r, UnreliableDatagram, true)),
        Case::pair("rc_write", &[RC], |c, r| write(c, r, ReliableConnection, false)),
        Case::pair("rc_write_immediate", &[RC, Need::Immediate], |c, r| {
            write(c, r, ReliableConnection, true)
        }),
        Case::pair("uc_write", &[UC], |c, r| write(c, r, UnreliableConnection, false)),
        Case::pair("uc_write_immediate", &[UC, Need::Immediate], |c, r| {
            write(c, r, UnreliableConnection, true)
        }),
        Case::pair("rc_read", &[RC], read),
        Case::pair("rc_fetch_add", &[RC, Need::Atomics], fetch_add),
        Case::pair("rc_compare_swap", &[RC, Need::Atomics], compare_swap),
        Case::pair(
            "rc_fetch_add_beside_the_targets_processor",
            &[RC, Need::ProcessorAtomics],
            fetch_add_beside_processor,
        ),
        Case::pair("memory_of_another_fabric", &[RC, Need::Adopts], adopted),
    ]);
}

const MIB: usize = 1 << 20;
const SIZES: [usize; 9] = [0, 1, 31, 32, 63, 64, 65, 4096, MIB];
/// The number of times that a message of an unreliable transport is sent before it counts as undeliverable.
const TRIES: u32 = 12;
/// The time that a receiver waits for such a message. Long enough for a very busy machine, since a message
/// that was only slow would arrive twice.
const PATIENCE: u64 = 2000 * MILLISECOND;

/// Returns the sizes that a transport allows, including the longest datagram.
fn sizes<F: Fabric>(context: &Context<F>, transport: Transport) -> Vec<usize> {
    let capabilities = context.fabric.capabilities();
    let datagram = transport == Transport::UnreliableDatagram;
    let most = if datagram { capabilities.max_datagram } else { capabilities.max_message } as usize;
    let mut sizes: Vec<usize> = SIZES.into_iter().filter(|size| *size < most).collect();
    if datagram || most <= MIB {
        sizes.push(most);
    }
    sizes
}

/// Returns every size with every form in which it can be sent.
fn messages<F: Fabric>(context: &Context<F>, transport: Transport) -> Vec<(usize, Form)> {
    let max_inline = context.fabric.capabilities().max_inline;
    let forms = |size| Form::all(size, max_inline).into_iter().map(move |form| (size, form));
    sizes(context, transport).into_iter().flat_map(forms).collect()
}

fn headroom<F: Fabric>(context: &Context<F>, transport: Transport) -> usize {
    let datagram = transport == Transport::UnreliableDatagram;
    if datagram { context.fabric.capabilities().datagram_headroom as usize } else { 0 }
}

/// Makes a connected queue pair, or a datagram queue pair and the address handle for its datagrams.
fn open<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    transport: Transport,
) -> Result<(QueuePairId, Option<AddressHandleId>), Failure> {
    let config = station.config(transport);
    if transport != Transport::UnreliableDatagram {
        return Ok((context.connect(station, &config)?, None));
    }
    let queue_pair = station.domain.create_queue_pair(&config)?;
    let remote = context.swap_endpoints(context.link(), station, queue_pair)?;
    let handle = station.domain.create_address_handle(queue_pair, context.link(), &remote)?;
    Ok((queue_pair, Some(handle)))
}

/// The sender's half for a message that may be lost: sends until the receiver has it.
pub(super) fn sender<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    mut post: impl FnMut(&mut Station<F>) -> Verdict,
) -> Verdict {
    loop {
        expect_eq!(context.hear_at(station)?, b"ready", "the roles have lost step");
        post(station)?;
        match &context.hear_at(station)?[..] {
            b"again" => {}
            b"got" => return Ok(()),
            other => return Err(Failure::new(format!("the roles have lost step: {other:?}"))),
        }
    }
}

/// The receiver's half: requests the message until it has arrived.
pub(super) fn receiver<F: Fabric, T>(
    context: &Context<F>,
    station: &mut Station<F>,
    transport: Transport,
    mut look: impl FnMut(&mut Station<F>) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let reliable = transport == Transport::ReliableConnection;
    for _ in 0..if reliable { 1 } else { TRIES } {
        context.tell(b"ready")?;
        let deadline = if reliable { context.deadline } else { context.now() + PATIENCE };
        if let Some(found) = station.look(deadline, &mut look)? {
            context.tell(b"got")?;
            return Ok(found);
        }
        if !reliable {
            context.tell(b"again")?;
        }
    }
    Err(Failure::new("the message did not arrive"))
}

fn immediate_of(number: usize, wanted: bool) -> Option<u32> {
    wanted.then_some(0xfeed_0000 | number as u32)
}

fn send<F: Fabric>(context: &mut Context<F>, role: Role, transport: Transport, immediate: bool) -> Verdict {
    let mut station = context.station()?;
    let (queue_pair, to) = open(context, &mut station, transport)?;
    let headroom = headroom(context, transport);
    for (number, (size, form)) in messages(context, transport).into_iter().enumerate() {
        let bytes = pattern(number as u64, size);
        let id = number as u64;
        let immediate = immediate_of(number, immediate);
        if role == Role::First {
            sender(context, &mut station, |station| {
                station.in_form(form, &bytes, |station, data| {
                    Ok(station.post(queue_pair, id, Operation::Send { data, immediate, to }, true)?)
                })?;
                let completion = station.sent(id)?;
                expect_eq!(completion.opcode, Opcode::Send);
                expect_eq!(completion.queue_pair, queue_pair);
                expect!(completion.buffer.is_none(), "a SEND gives no buffer back");
                Ok(())
            })?;
            continue;
        }
        // An empty message fits a RECV without a buffer; the other RECVs have room to spare.
        match size + headroom {
            0 => {
                let target = ReceiveTarget::QueuePair(queue_pair);
                station.domain.post_receive(target, WorkId(id), None)?;
            }
            room => station.receive_on(queue_pair, id, room + (number % 3) * 16)?,
        }
        let got: CompletionOf<F> =
            receiver(context, &mut station, transport, |station| Ok(station.take(station.receives)))?;
        expect_eq!(
            (got.id.0, got.status, got.immediate),
            (id, CompletionStatus::Success, immediate),
            "SEND of {size} as {form:?}"
        );
        expect_eq!(got.queue_pair, queue_pair);
        check_received::<F>(&got, &bytes, headroom)?;
    }
    context.meet_at(&mut station)
}

fn write<F: Fabric>(context: &mut Context<F>, role: Role, transport: Transport, immediate: bool) -> Verdict {
    const MARGIN: usize = 128;
    let mut station = context.station()?;
    let (queue_pair, _) = open(context, &mut station, transport)?;
    let messages = messages(context, transport);
    let largest = messages.iter().map(|(size, _)| *size).max().unwrap_or(0);
    let offset_of = |number: usize| MARGIN + [0, 8, 1, 61][number % 4];
    if role == Role::First {
        let key = context.borrow_key()?;
        for (number, (size, form)) in messages.into_iter().enumerate() {
            let (id, bytes) = (number as u64, pattern(number as u64, size));
            let (offset, immediate) = (offset_of(number) as u64, immediate_of(number, immediate));
            sender(context, &mut station, |station| {
                station.in_form(form, &bytes, |station, data| {
                    let operation = Operation::Write { data, key, offset, immediate };
                    Ok(station.post(queue_pair, id, operation, true)?)
                })?;
                let completion = station.sent(id)?;
                expect_eq!(completion.opcode, Opcode::Write);
                Ok(())
            })?;
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(largest + 3 * MARGIN, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    for (number, (size, form)) in messages.into_iter().enumerate() {
        let (id, bytes) = (number as u64, pattern(number as u64, size));
        let offset = offset_of(number);
        let guard = vec![0x5a; MARGIN];
        region.copy_in(offset - MARGIN, &guard);
        region.copy_in(offset + size, &guard);
        if immediate {
            let target = ReceiveTarget::QueuePair(queue_pair);
            let buffer = if number % 2 == 0 { Some(station.buffer(b"untouched")?) } else { None };
            station.domain.post_receive(target, WorkId(id), buffer)?;
            let got: CompletionOf<F> =
                receiver(context, &mut station, transport, |station| Ok(station.take(station.receives)))?;
            expect_eq!(
                (got.id.0, got.status, got.opcode, got.immediate, got.bytes as usize),
                (
                    id,
                    CompletionStatus::Success,
                    Opcode::ReceiveWriteImmediate,
                    immediate_of(number, true),
                    size
                ),
                "WRITE_WITH_IMM of {size} as {form:?}"
            );
            expect_eq!(got.buffer.as_deref(), (number % 2 == 0).then_some(&b"untouched"[..]));
            expect!(holds(&region, offset, &bytes), "the bytes are there when the RECV completes");
        } else {
            station.domain.watch(&region);
            receiver(context, &mut station, transport, |_| Ok(holds(&region, offset, &bytes).then_some(())))?;
            station.domain.unwatch(&region);
        }
        expect!(holds(&region, offset - MARGIN, &guard), "bytes before the WRITE of {size} changed");
        expect!(holds(&region, offset + size, &guard), "bytes behind the WRITE of {size} changed");
    }
    context.meet_at(&mut station)
}

fn read<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let sizes = sizes(context, Transport::ReliableConnection);
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let contents = pattern(77, largest + 64);
    if role == Role::Second {
        let region = context.region(contents.len(), Access::READ)?;
        region.copy_in(0, &contents);
        context.lend(&region, Access::READ)?;
        // The target of one-sided operations does nothing until it is told that the case is done.
        expect_eq!(context.hear()?, b"done");
        expect!(holds(&region, 0, &contents), "a READ changes nothing");
        return Ok(());
    }
    let key = context.borrow_key()?;
    for (number, size) in sizes.into_iter().enumerate() {
        let (id, offset) = (number as u64, [0, 1, 40, 64][number % 4]);
        let mut into = station.arena.reserve(size + 10)?;
        into.fill(0xee);
        let from = RemoteSlice { key, offset: offset as u64, length: size as u32 };
        // A READ makes a completion whether signaled or not.
        station.post(queue_pair, id, Operation::Read { from, into }, number % 2 == 0)?;
        let got = station.sent(id)?;
        expect_eq!((got.opcode, got.bytes as usize), (Opcode::Read, size));
        let Some(buffer) = got.buffer else { return Err(Failure::new("a READ gives its buffer back")) };
        expect!(buffer[..size] == contents[offset..offset + size], "the contents of a READ of {size} differ");
        expect!(buffer[size..].iter().all(|b| *b == 0xee), "bytes behind a READ of {size} were changed");
    }
    context.tell(b"done")
}

fn fetch_add<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let adds = [1u64, 2, u64::MAX, 0, 1 << 63, 1 << 63, 41];
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(64, Access::ATOMIC)?;
        region.copy_in(0, &[0x11; 64]);
        region.store(24, 1000);
        context.lend(&region, Access::ATOMIC)?;
        expect_eq!(context.hear()?, b"done");
        let expected = adds.iter().fold(1000u64, |sum, add| sum.wrapping_add(*add));
        station.until_word(&region, 24, |word| word == expected)?;
        expect!(holds(&region, 0, &[0x11; 24]) && holds(&region, 32, &[0x11; 32]), "neighbours changed");
        return Ok(());
    }
    let key = context.borrow_key()?;
    let mut expected = 1000u64;
    for (number, add) in adds.into_iter().enumerate() {
        let operation = Operation::FetchAdd { key, offset: 24, add };
        station.post(queue_pair, number as u64, operation, number % 2 == 0)?;
        let got = station.sent(number as u64)?;
        expect_eq!((got.opcode, got.value), (Opcode::FetchAdd, expected), "the old value");
        expected = expected.wrapping_add(add);
    }
    context.tell(b"done")
}

/// Both sides change one word at the same time, each by its own means.
fn fetch_add_beside_processor<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ADDS: u64 = 3000;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(64, Access::ATOMIC)?;
        context.lend(&region, Access::ATOMIC)?;
        expect_eq!(context.hear()?, b"begin");
        for _ in 0..ADDS {
            region.fetch_add(8, 1);
        }
        expect_eq!(context.hear()?, b"done");
        expect_eq!(region.fetch_add(8, 0), 2 * ADDS, "the sum of both sides");
        expect_eq!(region.compare_swap(8, 2 * ADDS, 7), 2 * ADDS);
        expect_eq!(
            (region.compare_swap(8, 2 * ADDS, 8), region.load(8)),
            (7, 7),
            "only the expected value is replaced"
        );
        return Ok(());
    }
    let key = context.borrow_key()?;
    context.tell(b"begin")?;
    for number in 0..ADDS {
        station.post(queue_pair, number, Operation::FetchAdd { key, offset: 8, add: 1 }, true)?;
        station.sent(number)?;
    }
    context.tell(b"done")
}

fn compare_swap<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(64, Access::ATOMIC)?;
        region.copy_in(0, &[0x11; 64]);
        region.store(0, 5);
        context.lend(&region, Access::ATOMIC)?;
        expect_eq!(context.hear()?, b"done");
        station.until_word(&region, 0, |word| word == u64::MAX)?;
        expect!(holds(&region, 8, &[0x11; 56]), "neighbours changed");
        return Ok(());
    }
    let key = context.borrow_key()?;
    // Expected value, new value, and the value found.
    let steps = [(4, 9, 5u64), (5, 6, 5), (5, 7, 6), (6, u64::MAX, 6), (0, 1, u64::MAX)];
    for (number, (expected, swap, old)) in steps.into_iter().enumerate() {
        let operation = Operation::CompareSwap { key, offset: 0, expected, swap };
        station.post(queue_pair, number as u64, operation, number % 2 == 0)?;
        let got = station.sent(number as u64)?;
        expect_eq!((got.opcode, got.value), (Opcode::CompareSwap, old), "the old value");
    }
    context.tell(b"done")
}

fn adopted<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let (bytes, length) = (pattern(78, 3000), 8192);
    if role == Role::Second {
        let access = Access::READ.with(Access::WRITE);
        let made = HeapMemory::new(length, access).ok_or_else(|| Failure::new("no memory"))?;
        let made = Region::new(made);
        made.copy_in(64, &bytes);
        let region = Region::new(context.fabric.adopt(AnyMemory::new(Arc::clone(made.memory())))?);
        expect_eq!((region.length(), region.memory().access()), (length, access));
        let origin = region.memory().adopted().and_then(AnyMemory::downcast::<HeapMemory>);
        expect!(origin.is_some_and(|origin| Arc::ptr_eq(&origin, made.memory())), "it is the same memory");
        context.lend(&region, access)?;
        // The registration keeps the memory.
        let kept = Arc::downgrade(made.memory());
        drop(made);
        expect!(kept.strong_count() > 0, "the memory is gone while it is registered");
        station.until_bytes(&region, 4096, &bytes)?;
        expect!(holds(&region, 64, &bytes), "a READ changes nothing");
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    let into = station.arena.reserve(bytes.len())?;
    let from = RemoteSlice { key, offset: 64, length: bytes.len() as u32 };
    station.post(queue_pair, 1, Operation::Read { from, into }, true)?;
    let Some(read) = station.sent(1)?.buffer else {
        return Err(Failure::new("a READ gives its buffer back"));
    };
    expect!(read[..] == bytes[..], "the contents of a READ differ");
    let buffer = station.buffer(&bytes)?;
    let data = Data::Buffer(buffer);
    station.post(queue_pair, 2, Operation::Write { key, offset: 4096, data, immediate: None }, true)?;
    station.sent(2)?;
    // Without acknowledgements, a WRITE that is sent has not arrived; the end of the queue pair would stop it.
    context.meet_at(&mut station)
}
