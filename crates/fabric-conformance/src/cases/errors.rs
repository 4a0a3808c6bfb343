//! Every error completion and its effects: the queue pair in error, the rest flushed, posts refused.

use super::{RC, UC, UD};
use crate::case::{Case, Need, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::{Failure, Verdict};
use crate::station::{Station, holds};
use crate::{expect, expect_eq, expect_matches};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, GrantError, Link, Opcode, Operation, PostError, QueuePairConfig,
    QueuePairState, RegionKey, RemoteSlice, RnrRetry, ThreadDomain, Transport,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    use CompletionStatus::{RemoteAccess, RemoteInvalidRequest};
    const BAD: RegionKey = RegionKey(0xdead_beef_0bad_cafe);
    const LENGTH: u64 = 100;
    all.extend([
        Case::pair("bad_key_write", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, _| write(s, BAD, 0, 8))
        }),
        Case::pair("a_bad_key_breaks_both_ends", &[RC], both_break),
        Case::pair("a_bad_key_while_the_other_end_connects", &[RC], breaks_while_connecting),
        Case::pair("bad_key_write_immediate", &[RC, Need::Immediate, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, _| {
                let data = Data::Buffer(s.buffer(b"bad")?);
                Ok(Operation::Write { data, key: BAD, offset: 0, immediate: Some(7) })
            })
        }),
        Case::pair("bad_key_read", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, READ, RemoteAccess, |s, _| read(s, BAD, 0, 8))
        }),
        Case::pair("bad_key_fetch_add", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteAccess, |_, _| Ok(fetch_add(BAD, 0)))
        }),
        Case::pair("bad_key_compare_swap", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteAccess, |_, _| Ok(compare_swap(BAD, 0)))
        }),
        Case::pair("key_zero", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, NONE, RemoteAccess, |s, _| write(s, RegionKey(0), 0, 8))
        }),
        Case::pair("key_next_to_a_good_one", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, key| write(s, RegionKey(key.0 ^ 1), 0, 8))
        }),
        Case::pair("write_past_the_end", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, key| write(s, key, LENGTH - 4, 8))
        }),
        Case::pair("write_beyond_the_end", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, key| write(s, key, 1 << 40, 8))
        }),
        Case::pair("write_offset_overflows", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, key| write(s, key, u64::MAX - 3, 8))
        }),
        Case::pair("read_past_the_end", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, READ, RemoteAccess, |s, key| read(s, key, LENGTH - 4, 8))
        }),
        Case::pair("read_offset_overflows", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, READ, RemoteAccess, |s, key| read(s, key, u64::MAX - 3, 8))
        }),
        Case::pair("atomic_past_the_end", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteAccess, |_, key| Ok(fetch_add(key, 96)))
        }),
        Case::pair("atomic_offset_overflows", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteAccess, |_, key| Ok(compare_swap(key, u64::MAX - 7)))
        }),
        Case::pair("write_without_permission", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, READ, RemoteAccess, |s, key| write(s, key, 0, 8))
        }),
        Case::pair("read_without_permission", &[RC, Need::Acknowledged], |c, r| {
            fails(c, r, WRITE, RemoteAccess, |s, key| read(s, key, 0, 8))
        }),
        Case::pair("atomic_without_permission", &[RC, Need::Atomics], |c, r| {
            fails(c, r, READ.with(WRITE), RemoteAccess, |_, key| Ok(fetch_add(key, 0)))
        }),
        Case::pair("write_on_an_atomic_grant", &[RC, Need::Atomics], |c, r| {
            fails(c, r, Access::ATOMIC, RemoteAccess, |s, key| write(s, key, 0, 8))
        }),
        Case::pair("misaligned_fetch_add", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteInvalidRequest, |_, key| Ok(fetch_add(key, 4)))
        }),
        Case::pair("misaligned_compare_swap", &[RC, Need::Atomics], |c, r| {
            fails(c, r, ALL, RemoteInvalidRequest, |_, key| Ok(compare_swap(key, 17)))
        }),
        Case::pair("key_of_another_link", &[RC, Need::Acknowledged], key_of_another_link),
        Case::pair("revoked_key", &[RC, Need::Acknowledged], revoked_key),
        Case::pair("granted_for_more_than_registered", &[RC], granted_for_more),
        Case::pair("receive_too_short", &[RC, Need::Acknowledged], receive_too_short),
        Case::pair("receiver_not_ready_counted", &[RC, Need::Acknowledged], not_ready_counted),
        Case::pair("receiver_not_ready_for_ever", &[RC, Need::Acknowledged], not_ready_for_ever),
        Case::pair("uc_send_without_receive_is_lost", &[UC], |c, r| {
            lost_without_receive(c, r, Transport::UnreliableConnection)
        }),
        Case::pair("ud_send_without_receive_is_lost", &[UD], |c, r| {
            lost_without_receive(c, r, Transport::UnreliableDatagram)
        }),
        Case::pair("uc_write_with_a_bad_key_is_lost", &[UC], uc_bad_key),
        Case::pair("read_longer_than_its_buffer", &[RC], read_longer),
    ]);
}

const NONE: Access = Access::LOCAL;
const READ: Access = Access::READ;
const WRITE: Access = Access::WRITE;
const ALL: Access = Access::READ.with(Access::WRITE).with(Access::ATOMIC);

type Built<F> = Result<Operation<'static, <F as Fabric>::Memory>, Failure>;

fn write<F: Fabric>(station: &Station<F>, key: RegionKey, offset: u64, length: usize) -> Built<F> {
    let data = Data::Buffer(station.buffer(&vec![0xbd; length])?);
    Ok(Operation::Write { data, key, offset, immediate: None })
}

fn read<F: Fabric>(station: &Station<F>, key: RegionKey, offset: u64, length: u32) -> Built<F> {
    let into = station.buffer(&vec![0xee; length as usize])?;
    Ok(Operation::Read { from: RemoteSlice { key, offset, length }, into })
}

fn fetch_add<M: dunlin_fabric::Memory>(key: RegionKey, offset: u64) -> Operation<'static, M> {
    Operation::FetchAdd { key, offset, add: 1 }
}

fn compare_swap<M: dunlin_fabric::Memory>(key: RegionKey, offset: u64) -> Operation<'static, M> {
    Operation::CompareSwap { key, offset, expected: 0x2222_2222_2222_2222, swap: 1 }
}

/// Posts an operation that has to fail, with others before and after it, and checks all effects.
fn break_it<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    queue_pair: dunlin_fabric::QueuePairId,
    operation: Operation<'static, F::Memory>,
    status: CompletionStatus,
) -> Verdict {
    let reads = matches!(operation, Operation::Read { .. });
    station.send(queue_pair, 1, b"before", false)?;
    // Unsignaled: a failure makes a completion nevertheless.
    station.post(queue_pair, 2, operation, false)?;
    let mut accepted = Vec::new();
    for id in 3..6 {
        let data = Data::Buffer(station.buffer(b"after")?);
        let after = Operation::Send { data, immediate: None, to: None };
        match station.post(queue_pair, id, after, id % 2 == 0) {
            Ok(()) => accepted.push(id),
            Err(error) => expect_eq!(error, PostError::QueuePairError, "a post after the error"),
        }
    }
    let got = station.next(station.sends)?;
    expect_eq!((got.id.0, got.status), (2, status), "the failed operation");
    expect_eq!(got.queue_pair, queue_pair);
    expect_eq!(got.buffer.is_some(), reads, "whether a buffer is given back");
    for id in accepted {
        let got = station.next(station.sends)?;
        expect_eq!((got.id.0, got.status), (id, CompletionStatus::Flushed), "what was posted behind it");
    }
    station.flushed_receives(100, 3)?;
    refused(station, queue_pair)?;
    context.tell(b"broken")
}

/// On every fabric, whatever its completions report: a refused operation changes nothing at the target, and
/// both queue pairs break.
fn both_break<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4096, WRITE)?;
        context.lend(&region, WRITE)?;
        station.until_error(queue_pair)?;
        expect!((0..4096).step_by(8).all(|at| region.load(at) == 0), "what was refused was written");
        return refused(&mut station, queue_pair);
    }
    let key = context.borrow_key()?;
    let operation = write(&station, RegionKey(key.0 ^ 0xff), 0, 64)?;
    station.post(queue_pair, 1, operation, true)?;
    station.until_error(queue_pair)?;
    refused(&mut station, queue_pair)
}

/// The side that is connected first may break the queue pair while its peer is still connecting. The peer
/// then has a broken queue pair, which is not an error of connecting.
fn breaks_while_connecting<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 20;
    let mut station = context.station()?;
    let config = station.reliable();
    for round in 0..ROUNDS {
        let queue_pair = context.connect(&mut station, &config)?;
        if (round % 2 == 0) == (role == Role::First) {
            let operation = write(&station, RegionKey(0x0bad), 0, 64)?;
            station.post(queue_pair, 1, operation, true)?;
        }
        station.until_error(queue_pair)?;
        refused(&mut station, queue_pair)?;
        context.meet_at(&mut station)?;
        station.domain.destroy_queue_pair(queue_pair)?;
    }
    context.meet_at(&mut station)
}

/// Expects that the queue pair is in error and refuses posts.
fn refused<F: Fabric>(station: &mut Station<F>, queue_pair: dunlin_fabric::QueuePairId) -> Verdict {
    expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Error));
    let after = Operation::Send { data: Data::Buffer(station.buffer(b"late")?), immediate: None, to: None };
    expect_eq!(station.post(queue_pair, 50, after, true), Err(PostError::QueuePairError));
    Ok(())
}

/// Checks the target of a failed operation: it received the earlier message and nothing else, and its queue
/// pair is in error too.
fn broken_target<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    queue_pair: dunlin_fabric::QueuePairId,
) -> Verdict {
    station.received(100, b"before")?;
    expect_eq!(context.hear_at(station)?, b"broken");
    station.until_error(queue_pair)?;
    station.flushed_receives(101, 2)
}

fn three_receives<F: Fabric>(station: &mut Station<F>, queue_pair: dunlin_fabric::QueuePairId) -> Verdict {
    (100..103).try_for_each(|id| station.receive_on(queue_pair, id, 64))
}

/// Runs an operation that the target refuses, on a grant of `access`. The region was registered for all
/// access.
fn fails<F: Fabric>(
    context: &mut Context<F>,
    role: Role,
    access: Access,
    status: CompletionStatus,
    build: fn(&Station<F>, RegionKey) -> Built<F>,
) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    three_receives(&mut station, queue_pair)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        let operation = build(&station, key)?;
        break_it(context, &mut station, queue_pair, operation, status)?;
        return context.meet_at(&mut station);
    }
    // Not a multiple of a page: the region's length is the limit, not the page's.
    let atomics = context.fabric.capabilities().atomics.exist();
    let region = context.region(100, if atomics { ALL } else { READ.with(WRITE) })?;
    region.copy_in(0, &[0x22; 100]);
    if access == NONE {
        context.tell_number(0)?;
    } else {
        context.lend(&region, access)?;
    }
    broken_target(context, &mut station, queue_pair)?;
    expect!(holds(&region, 0, &[0x22; 100]), "the region was changed");
    context.meet_at(&mut station)
}

fn key_of_another_link<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let other = context.another_link()?;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect_over(&other, &mut station, &config)?;
    three_receives(&mut station, queue_pair)?;
    if role == Role::First {
        // The key is valid on the first link, but the queue pair is on the other.
        let key = context.borrow_key()?;
        let operation = write(&station, key, 0, 8)?;
        break_it(context, &mut station, queue_pair, operation, CompletionStatus::RemoteAccess)?;
        return context.meet_at(&mut station);
    }
    let region = context.region(100, WRITE)?;
    context.lend(&region, WRITE)?;
    broken_target(context, &mut station, queue_pair)?;
    expect!(holds(&region, 0, &[0; 100]), "the region was changed");
    context.meet_at(&mut station)
}

fn revoked_key<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    three_receives(&mut station, queue_pair)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        let operation = write(&station, key, 0, 8)?;
        station.post(queue_pair, 0, operation, true)?;
        station.sent(0)?;
        context.tell(b"revoke it")?;
        expect_eq!(context.hear_at(&mut station)?, b"revoked");
        let operation = write(&station, key, 8, 8)?;
        break_it(context, &mut station, queue_pair, operation, CompletionStatus::RemoteAccess)?;
        return context.meet_at(&mut station);
    }
    let region = context.region(100, WRITE)?;
    let key = context.lend(&region, WRITE)?;
    expect_eq!(context.hear_at(&mut station)?, b"revoke it");
    context.link().revoke(key);
    // A later grant does not make the old key valid again.
    let fresh = context.link().grant(region.memory(), WRITE)?;
    expect!(fresh != key, "a key is not used again");
    context.tell(b"revoked")?;
    broken_target(context, &mut station, queue_pair)?;
    expect!(holds(&region, 8, &[0; 92]), "the region was changed by the old key");
    context.meet_at(&mut station)
}

fn granted_for_more<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    if role == Role::First {
        for (registered, granted) in
            [(READ, WRITE), (WRITE, READ), (READ.with(WRITE), ALL), (NONE, READ), (READ, READ.with(WRITE))]
        {
            let region = context.region(4096, registered)?;
            let result = context.link().grant(region.memory(), granted);
            expect_matches!(result, Err(GrantError::Access));
            expect!(context.link().grant(region.memory(), registered).is_ok() || registered == NONE);
        }
    }
    context.exchange(b"done")?;
    Ok(())
}

fn receive_too_short<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        three_receives(&mut station, queue_pair)?;
        context.meet_at(&mut station)?;
        station.send(queue_pair, 1, &[7; 64], true)?;
        station.sent(1)?;
        station.send(queue_pair, 2, &[8; 65], false)?;
        let got = station.next(station.sends)?;
        expect_eq!((got.id.0, got.status), (2, CompletionStatus::RemoteOperation));
        station.flushed_receives(100, 3)?;
        refused(&mut station, queue_pair)?;
        return context.meet_at(&mut station);
    }
    for id in 100..104 {
        station.receive_on(queue_pair, id, 64)?;
    }
    context.meet_at(&mut station)?;
    station.received(100, &[7; 64])?;
    let got = station.next(station.receives)?;
    expect_eq!((got.id.0, got.status), (101, CompletionStatus::LocalLength));
    expect!(got.buffer.is_some(), "a RECV gives its buffer back, failed or not");
    station.flushed_receives(102, 2)?;
    station.until_error(queue_pair)?;
    context.meet_at(&mut station)
}

fn not_ready_counted<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = QueuePairConfig { rnr_retry: RnrRetry::Count(2), ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    context.meet_at(&mut station)?;
    if role == Role::First {
        three_receives(&mut station, queue_pair)?;
        station.send(queue_pair, 1, b"nobody takes it", true)?;
        let got = station.next(station.sends)?;
        expect_eq!((got.id.0, got.status), (1, CompletionStatus::ReceiverNotReady));
        station.flushed_receives(100, 3)?;
        refused(&mut station, queue_pair)?;
    } else {
        station.until_error(queue_pair)?;
    }
    context.meet_at(&mut station)
}

fn not_ready_for_ever<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = QueuePairConfig { rnr_retry: RnrRetry::Forever, ..station.reliable() };
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        for id in 0..3 {
            station.send(queue_pair, id, &[id as u8; 32], true)?;
        }
        context.tell(b"sent")?;
        for id in 0..3 {
            station.sent(id)?;
        }
    } else {
        expect_eq!(context.hear_at(&mut station)?, b"sent");
        station.rest(30 * MILLISECOND)?;
        expect_eq!(station.domain.state(queue_pair), Some(QueuePairState::Ready), "it waits, for ever");
        for id in 0..3 {
            station.receive_on(queue_pair, id, 32)?;
            station.received(id, &[id as u8; 32])?;
        }
    }
    context.meet_at(&mut station)
}

/// A message to a receiver without a RECV completes at the sender and is not kept for a later RECV.
fn lost_without_receive<F: Fabric>(context: &mut Context<F>, role: Role, transport: Transport) -> Verdict {
    let mut station = context.station()?;
    let config = station.config(transport);
    let datagram = transport == Transport::UnreliableDatagram;
    let (queue_pair, to) = if datagram {
        let queue_pair = station.domain.create_queue_pair(&config)?;
        let remote = context.swap_endpoints(context.link(), &mut station, queue_pair)?;
        (queue_pair, Some(station.domain.create_address_handle(queue_pair, context.link(), &remote)?))
    } else {
        (context.connect(&mut station, &config)?, None)
    };
    context.meet_at(&mut station)?;
    let headroom = if datagram { context.fabric.capabilities().datagram_headroom as usize } else { 0 };
    if role == Role::First {
        let data = Data::Buffer(station.buffer(b"lost")?);
        station.post(queue_pair, 0, Operation::Send { data, immediate: None, to }, true)?;
        station.sent(0)?;
        context.tell(b"sent")?;
        loop {
            match &context.hear_at(&mut station)?[..] {
                b"send" => {
                    let data = Data::Buffer(station.buffer(b"taken")?);
                    station.post(queue_pair, 1, Operation::Send { data, immediate: None, to }, true)?;
                    station.sent(1)?;
                }
                _ => return context.meet_at(&mut station),
            }
        }
    }
    expect_eq!(context.hear_at(&mut station)?, b"sent");
    station.rest(30 * MILLISECOND)?;
    station.receive_on(queue_pair, 7, headroom + 64)?;
    let mut got = None;
    for _ in 0..5 {
        context.tell(b"send")?;
        let deadline = context.now() + 5000 * MILLISECOND;
        got = station.look(deadline, |station| Ok(station.take(station.receives)))?;
        if got.is_some() {
            break;
        }
    }
    let Some(got) = got else { return Err(Failure::new("no message arrives, with a RECV posted")) };
    crate::station::check_received::<F>(&got, b"taken", headroom)?;
    context.tell(b"thanks")?;
    context.meet_at(&mut station)
}

/// The target of an unreliable connection reports nothing, so the initiator sees success.
fn uc_bad_key<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.config(Transport::UnreliableConnection);
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let key = context.borrow_key()?;
        let bad = [(RegionKey(0xdead_beef_0bad_cafe), 0), (key, 96), (key, u64::MAX - 3)];
        for (id, (key, offset)) in bad.into_iter().enumerate() {
            let operation = write(&station, key, offset, 8)?;
            station.post(queue_pair, id as u64, operation, true)?;
            station.sent(id as u64)?;
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(100, WRITE)?;
    context.lend(&region, WRITE)?;
    context.meet_at(&mut station)?;
    station.rest(10 * MILLISECOND)?;
    expect!(holds(&region, 0, &[0; 100]), "the region was changed");
    Ok(())
}

/// Verbs does not define the error, but it must be harmless: refused when posted, or a local error.
fn read_longer<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4096, READ)?;
        region.copy_in(0, &[0x33; 4096]);
        context.lend(&region, READ)?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    let into = station.buffer(&[0xee; 64])?;
    let neighbour = station.buffer(&[0xee; 64])?;
    let from = RemoteSlice { key, offset: 0, length: 4096 };
    match station.post(queue_pair, 1, Operation::Read { from, into }, true) {
        Err(error) => expect_matches!(error, PostError::Length { .. }),
        Ok(()) => {
            let got = station.next(station.sends)?;
            expect_eq!((got.id.0, got.opcode), (1, Opcode::Read));
            let status = got.status;
            expect_matches!(status, CompletionStatus::LocalLength | CompletionStatus::LocalProtection);
            expect!(got.buffer.is_some(), "a READ gives its buffer back, failed or not");
        }
    }
    expect!(neighbour.iter().all(|b| *b == 0xee), "the READ went over the end of its buffer");
    context.meet_at(&mut station)
}
