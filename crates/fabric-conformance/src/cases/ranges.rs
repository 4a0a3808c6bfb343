//! Ranges of regions as the local side of requests: memory that peers may write. That ranges can be sent and written in
//! all sizes is part of the cases of `operations`.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::{Station, holds, pattern};
use crate::{expect, expect_eq, expect_matches};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Opcode, Operation, PostError, QueuePairId, RangeError, Region,
    RegionKey, RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};
use std::sync::Arc;

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::single("a_range_stays_in_its_region", &[], bounds),
        Case::pair("rc_read_into_a_region", &[RC], read_into),
        Case::pair("rc_read_into_a_region_longer_than_its_range", &[RC], read_longer),
        Case::pair("a_failed_read_into_a_region_leaves_it", &[RC, Need::Acknowledged], failed_read),
        Case::pair("ranges_in_lists", &[RC], in_lists),
        Case::pair("ranges_whose_region_is_dropped", &[RC], dropped),
        Case::pair("ranges_of_a_destroyed_queue_pair", &[RC], destroyed),
        Case::pair("a_range_that_the_peer_writes_meanwhile", &[RC], shared_source),
        Case::pair("reads_into_memory_that_the_peer_writes_meanwhile", &[RC], shared_destination),
    ]);
}

const BOTH: Access = Access::READ.with(Access::WRITE);

fn write<'a, F: Fabric>(
    region: &Region<F::Memory>,
    (from, length): (u64, u64),
    key: RegionKey,
    offset: u64,
) -> Result<Operation<'a, F::Memory>, Failure> {
    Ok(Operation::Write { data: Data::Region(region.range(from, length)?), key, offset, immediate: None })
}

fn read<'a, F: Fabric>(
    key: RegionKey,
    offset: u64,
    region: &Region<F::Memory>,
    (at, length): (u64, u32),
) -> Result<Operation<'a, F::Memory>, Failure> {
    let from = RemoteSlice { key, offset, length };
    Ok(Operation::ReadInto { from, into: region.range(at, length.into())? })
}

/// Waits for the success of a READ into a region.
fn was_read<F: Fabric>(station: &mut Station<F>, id: u64, length: u32) -> Verdict {
    let got = station.sent(id)?;
    expect_eq!((got.opcode, got.bytes), (Opcode::Read, length));
    expect!(got.buffer.is_none(), "a READ into a region gives no buffer back");
    Ok(())
}

fn bounds<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let region = context.region(100, BOTH)?;
    for (offset, length) in [(0, 100), (99, 1), (100, 0), (3, 0), (37, 41)] {
        let range = region.range(offset, length)?;
        expect_eq!((range.offset(), range.length() as u64), (offset, length));
    }
    for (offset, length) in [(0, 101), (100, 1), (101, 0), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, 0)] {
        let refused = region.range(offset, length).err();
        let outside = matches!(refused, Some(RangeError::Outside { offset: o, length: l, region: 100 })
            if (o, l) == (offset, length));
        expect!(outside, "{length} bytes at {offset} of 100: {refused:?}");
    }
    Ok(())
}

/// The target of READs holds `pattern(77, ..)` until the other role is done.
fn lend<F: Fabric>(context: &mut Context<F>, mut station: Station<F>, length: usize) -> Verdict {
    let region = context.region(length, BOTH)?;
    region.copy_in(0, &pattern(77, length));
    context.lend(&region, BOTH)?;
    context.meet_at(&mut station)?;
    expect!(holds(&region, 0, &pattern(77, length)), "a READ changes nothing");
    Ok(())
}

fn read_into<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const MOST: usize = 70_000;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, station, MOST + 64);
    }
    let key = context.borrow_key()?;
    let contents = pattern(77, MOST + 64);
    for access in [Access::LOCAL, Access::READ, BOTH] {
        let region = context.region(MOST + 200, access)?;
        if access != Access::LOCAL {
            // Its grant and the registration for this side's own requests do not disturb each other.
            use dunlin_fabric::Link;
            context.link().grant(region.memory(), access)?;
        }
        for (number, size) in [0, 1, 7, 8, 31, 63, 64, 65, 1000, 4097, MOST].into_iter().enumerate() {
            let (from, at) = ([0, 1, 40, 64][number % 4], [64, 67, 81, 100][number / 2 % 4]);
            region.copy_in(0, &vec![0xee; MOST + 200]);
            let operation = read::<F>(key, from as u64, &region, (at as u64, size as u32))?;
            // A READ makes a completion whether signaled or not.
            station.post(queue_pair, number as u64, operation, number % 2 == 0)?;
            was_read(&mut station, number as u64, size as u32)?;
            expect!(
                holds(&region, at, &contents[from..from + size]),
                "the contents of a READ of {size} differ"
            );
            expect!(holds(&region, 0, &vec![0xee; at]), "bytes before a READ of {size} were changed");
            let behind = vec![0xee; MOST + 200 - at - size];
            expect!(holds(&region, at + size, &behind), "bytes behind a READ of {size} were changed");
        }
    }
    context.meet_at(&mut station)
}

/// Verbs does not define the error, but it must be harmless: refused when posted, or a local error.
fn read_longer<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, station, 4096);
    }
    let key = context.borrow_key()?;
    let region = context.region(4096, BOTH)?;
    let from = RemoteSlice { key, offset: 0, length: 65 };
    let operation = Operation::ReadInto { from, into: region.range(64, 64)? };
    match station.post(queue_pair, 1, operation, true) {
        Err(error) => expect_matches!(error, PostError::Length { .. }),
        Ok(()) => {
            let got = station.next(station.sends)?;
            expect_eq!((got.id.0, got.opcode), (1, Opcode::Read));
            let status = got.status;
            expect_matches!(status, CompletionStatus::LocalLength | CompletionStatus::LocalProtection);
        }
    }
    expect!(holds(&region, 0, &[0; 4096]), "the READ went over the end of its range");
    context.meet_at(&mut station)
}

fn failed_read<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        return lend(context, station, 4096);
    }
    let key = context.borrow_key()?;
    let region = context.region(4096, BOTH)?;
    station.post(queue_pair, 0, read::<F>(key, 16, &region, (8, 8))?, true)?;
    was_read(&mut station, 0, 8)?;
    station.post(queue_pair, 1, read::<F>(key, 4090, &region, (0, 8))?, true)?;
    let got = station.next(station.sends)?;
    expect_eq!((got.id.0, got.opcode, got.status), (1, Opcode::Read, CompletionStatus::RemoteAccess));
    expect!(got.buffer.is_none(), "there was no buffer");
    expect!(holds(&region, 0, &[0; 8]), "a READ that fails changes nothing");
    expect!(holds(&region, 8, &pattern(77, 24)[16..]), "the READ before it");
    expect_eq!(
        station.post(queue_pair, 2, read::<F>(key, 0, &region, (0, 8))?, true),
        Err(PostError::QueuePairError)
    );
    context.meet_at(&mut station)
}

/// A list with all kinds of ranges: each operation sees those before it.
fn in_lists<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BYTES: usize = 3001;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(4 * BYTES, BOTH)?;
        for id in 0..20 {
            station.receive_on(queue_pair, id, BYTES)?;
        }
        context.lend(&region, BOTH)?;
        for id in 0..20 {
            let bytes = pattern(id, BYTES);
            station.received(id, &bytes[..100])?;
        }
        context.meet_at(&mut station)?;
        expect!(holds(&region, 5, &pattern(19, BYTES)), "the last WRITE");
        return Ok(());
    }
    let key = context.borrow_key()?;
    let source = context.region(BYTES + 3, BOTH)?;
    let destination = context.region(2 * BYTES + 7, BOTH)?;
    for round in 0..20 {
        let bytes = pattern(round, BYTES);
        source.copy_in(3, &bytes);
        let data = Data::Region(source.range(3, 100)?);
        let operations = [
            write::<F>(&source, (3, BYTES as u64), key, 5)?,
            read::<F>(key, 5, &destination, (7, BYTES as u32))?,
            Operation::Send { data, immediate: None, to: None },
            read::<F>(key, 6, &destination, (7 + BYTES as u64, 99))?,
        ];
        let mut list =
            operations.map(|operation| Some(WorkRequest { id: WorkId(round), operation, signaled: true }));
        station.domain.post_list(queue_pair, &mut list)?;
        expect_eq!(station.sent(round)?.opcode, Opcode::Write);
        was_read(&mut station, round, BYTES as u32)?;
        expect_eq!(station.sent(round)?.opcode, Opcode::Send);
        was_read(&mut station, round, 99)?;
        expect!(holds(&destination, 7, &bytes), "a READ came before the WRITE of its list");
        expect!(holds(&destination, 7 + BYTES, &bytes[1..100]), "the last READ of a list");
    }
    context.meet_at(&mut station)
}

/// A request keeps the registration of its range: the caller's handles end before the request does.
fn dropped<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BYTES: usize = 9001;
    const ROUNDS: u64 = 40;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        // SENDs wait for RECVs where the fabric lets them.
        let they_wait = context.fabric.capabilities().acknowledged;
        let receive = |station: &mut Station<F>| -> Verdict {
            (0..ROUNDS).try_for_each(|id| station.receive_on(queue_pair, id, BYTES))
        };
        if !they_wait {
            receive(&mut station)?;
        }
        let region = context.region(BYTES * 2, BOTH)?;
        context.lend(&region, BOTH)?;
        context.meet_at(&mut station)?;
        if they_wait {
            receive(&mut station)?;
        }
        for id in 0..ROUNDS {
            station.received(id, &pattern(id, BYTES))?;
        }
        station.until_bytes(&region, 1, &pattern(ROUNDS - 1, BYTES))?;
        return context.meet_at(&mut station);
    }
    let key = context.borrow_key()?;
    let mut regions = Vec::new();
    for id in 0..ROUNDS {
        let region = context.region(BYTES + 1, BOTH)?;
        region.copy_in(1, &pattern(id, BYTES));
        let data = Data::Region(region.range(1, BYTES as u64)?);
        station.post(queue_pair, id, Operation::Send { data, immediate: None, to: None }, true)?;
        station.post(queue_pair, id, write::<F>(&region, (1, BYTES as u64), key, 1)?, false)?;
        let into = context.region(BYTES, BOTH)?;
        station.post(queue_pair, id, read::<F>(key, 1, &into, (0, BYTES as u32))?, true)?;
        regions.extend([region, into].map(|region| Arc::downgrade(region.memory())));
    }
    context.meet_at(&mut station)?;
    for id in 0..ROUNDS {
        expect_eq!(station.sent(id)?.opcode, Opcode::Send);
        was_read(&mut station, id, BYTES as u32)?;
    }
    context.meet_at(&mut station)?;
    // Completions return the memory.
    station.until("the end of the registrations", |_| {
        Ok(regions.iter().all(|region| region.strong_count() == 0).then_some(()))
    })
}

/// A queue pair is destroyed while it holds ranges whose other handles are gone: nothing is written afterwards, and the
/// registrations end.
fn destroyed<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const BYTES: usize = 9001;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        if !context.fabric.capabilities().acknowledged {
            // A SEND without a RECV would break the queue pairs.
            (0..20).try_for_each(|id| station.receive_on(queue_pair, id, BYTES))?;
        }
        return lend(context, station, BYTES);
    }
    let key = context.borrow_key()?;
    let kept = context.region(BYTES, BOTH)?;
    let mut regions = Vec::new();
    for id in 0..20 {
        let region = context.region(BYTES, BOTH)?;
        // Where the peer has no RECV, the first SEND and all behind it wait.
        let data = Data::Region(region.range(0, BYTES as u64)?);
        station.post(queue_pair, id, Operation::Send { data, immediate: None, to: None }, id % 2 == 0)?;
        station.post(queue_pair, id, read::<F>(key, 0, &region, (0, BYTES as u32))?, true)?;
        station.post(queue_pair, id, read::<F>(key, 0, &kept, (0, BYTES as u32))?, true)?;
        regions.push(Arc::downgrade(region.memory()));
    }
    station.domain.destroy_queue_pair(queue_pair)?;
    let stamp = pattern(5, BYTES);
    kept.copy_in(0, &stamp);
    context.meet_at(&mut station)?;
    station.until("the end of the registrations", |_| {
        Ok(regions.iter().all(|region| region.strong_count() == 0).then_some(()))
    })?;
    expect!(holds(&kept, 0, &stamp), "a destroyed queue pair wrote into a region");
    Ok(())
}

/// Bytes of a region that both roles access at once: long enough to be copied in several steps.
const RACED: usize = 20_001;

/// Returns whether each byte of a range is that of one of the patterns at its place.
fn is_mixture<F: Fabric>(region: &Region<F::Memory>, at: usize, patterns: &[Vec<u8>]) -> bool {
    let mut copy = vec![0; RACED];
    region.copy_out(at, &mut copy);
    copy.iter().enumerate().all(|(at, byte)| patterns.iter().any(|pattern| pattern[at] == *byte))
}

/// WRITEs one of two patterns after another over the other role's region, until that role has met.
fn write_in_turn<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    queue_pair: QueuePairId,
    key: RegionKey,
    mut check: impl FnMut() -> Verdict,
) -> Verdict {
    use dunlin_fabric::Link;
    let mut round = 0;
    loop {
        let data = Data::Buffer(station.buffer(&pattern(round % 2, RACED))?);
        station.post(queue_pair, round, Operation::Write { data, key, offset: 1, immediate: None }, true)?;
        station.sent(round)?;
        check()?;
        round += 1;
        if let Some(message) = context.link().try_receive()? {
            expect_eq!(message, b"here", "the roles have lost step");
            return context.tell(b"here");
        }
    }
}

/// The first role WRITEs from a range that the second changes at the same time.
fn shared_source<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let region = context.region(RACED + 8, BOTH)?;
    let patterns = [0, 1].map(|seed| pattern(seed, RACED));
    region.copy_in(1, &patterns[0]);
    context.lend(&region, BOTH)?;
    let key = context.borrow_key()?;
    if role == Role::Second {
        return write_in_turn(context, &mut station, queue_pair, key, || {
            expect!(is_mixture::<F>(&region, 1, &patterns), "a byte came that was never in the range");
            Ok(())
        });
    }
    for id in 0..200 {
        station.post(queue_pair, id, write::<F>(&region, (1, RACED as u64), key, 1)?, true)?;
        station.sent(id)?;
        expect!(is_mixture::<F>(&region, 1, &patterns), "a byte came that nobody wrote");
    }
    context.meet_at(&mut station)
}

/// The first role READs into a range that it has granted and that the second writes at the same time, and into ranges
/// that overlap.
fn shared_destination<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let region = context.region(RACED + 8, BOTH)?;
    let patterns = [0, 1, 2].map(|seed| pattern(seed, RACED));
    // The second role's memory is never written.
    region.copy_in(1, &patterns[if role == Role::Second { 2 } else { 0 }]);
    context.lend(&region, BOTH)?;
    let key = context.borrow_key()?;
    if role == Role::Second {
        write_in_turn(context, &mut station, queue_pair, key, || Ok(()))?;
        expect!(holds(&region, 1, &patterns[2]), "a READ changes nothing");
        return context.meet_at(&mut station);
    }
    for id in 0..200 {
        // The two ranges overlap, and both get the bytes of their places.
        let (half, more) = (RACED as u32 / 2, RACED as u32 / 4 * 3);
        let rest = RACED as u32 - half;
        station.post(queue_pair, id, read::<F>(key, 1, &region, (1, more))?, true)?;
        let offset = 1 + u64::from(half);
        station.post(queue_pair, id, read::<F>(key, offset, &region, (offset, rest))?, true)?;
        was_read(&mut station, id, more)?;
        was_read(&mut station, id, rest)?;
        expect!(is_mixture::<F>(&region, 1, &patterns), "a byte came that nobody wrote");
    }
    context.meet_at(&mut station)?;
    // Now that the peer is done, a READ wins.
    station.post(queue_pair, 0, read::<F>(key, 1, &region, (1, RACED as u32))?, true)?;
    was_read(&mut station, 0, RACED as u32)?;
    expect!(holds(&region, 1, &patterns[2]), "the contents of a READ differ");
    context.meet_at(&mut station)
}
