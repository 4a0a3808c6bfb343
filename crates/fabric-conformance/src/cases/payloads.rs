//! The fabric's choice of buffers for large payloads: every byte arrives, buffers have their length, and all memory can
//! be had again.

use super::RC;
use crate::case::{Case, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::pattern;
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, Arena, Buffer, BufferSource, Fabric, Link, Operation, PayloadBuffers, PayloadFilling, Pressure,
    RegionKey, RemoteSlice,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("payloads_arrive_whole", &[RC], arrive),
        Case::single("payload_buffers_come_back", &[], come_back),
    ]);
}

const KIB: usize = 1 << 10;
/// Bytes after which a payload in pieces reports its progress.
const PIECE: usize = 32 * KIB;
/// The memory of the payloads, in bytes.
const MEMORY: usize = 2 << 20;

/// Memory of one arena. It counts as mapped once a buffer was reserved with the permission to map.
struct Source<F: Fabric> {
    arena: Arena<F::Memory>,
    is_mapped: bool,
}

impl<F: Fabric> Source<F> {
    fn new(context: &Context<F>) -> Result<Self, Failure> {
        let memory = context.fabric.register(MEMORY as u64, Access::READ)?;
        Ok(Source { arena: Arena::new(memory)?, is_mapped: false })
    }
}

impl<F: Fabric> BufferSource<F::Memory> for Source<F> {
    fn mapped(&mut self, length: usize) -> Option<Buffer<F::Memory>> {
        if self.is_mapped { self.arena.reserve(length).ok() } else { None }
    }

    fn reserve(&mut self, length: usize, _: u64) -> Option<Buffer<F::Memory>> {
        self.is_mapped = true;
        self.arena.reserve(length).ok()
    }
}

/// Returns a payload, whole or in pieces.
fn fill<F: Fabric>(
    payloads: &mut F::Payloads,
    source: &mut Source<F>,
    bytes: &[u8],
    in_pieces: bool,
) -> Result<Buffer<F::Memory>, Failure> {
    let none = || Failure::new("no buffer for a payload, and there is memory for it");
    if !in_pieces {
        let mut buffer = payloads.reserve(bytes.len(), source).ok_or_else(none)?;
        expect_eq!(buffer.len(), bytes.len(), "the length of a buffer");
        buffer.copy_from_slice(bytes);
        return Ok(buffer);
    }
    let (mut buffer, mut filling) = payloads.reserve_in_pieces(bytes.len(), source).ok_or_else(none)?;
    expect_eq!(buffer.len(), bytes.len(), "the length of a buffer");
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        let at = number * PIECE;
        filling.copy(&mut buffer[at..at + piece.len()], piece);
        filling.began(at + piece.len());
    }
    payloads.filled(filling);
    Ok(buffer)
}

fn arrive<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let lengths = [1, 4095, 4096, 100_001, 128 * KIB, 300 * KIB];
    // Enough payloads of each length that buffers are used again, two at a time.
    let payloads = lengths.into_iter().flat_map(|length| [length; 8]).enumerate();
    if role == Role::First {
        let key = RegionKey(context.hear_number()?);
        for (number, length) in payloads {
            let (id, offset) = (number as u64, context.hear_number()?);
            let into = station.arena.reserve(length)?;
            let from = RemoteSlice { key, offset, length: length as u32 };
            station.post(queue_pair, id, Operation::Read { from, into }, true)?;
            let Some(buffer) = station.sent(id)?.buffer else {
                return Err(Failure::new("a READ gives its buffer back"));
            };
            expect!(*buffer == pattern(id, length), "payload {number} of {length} bytes differs");
            context.tell_number(id)?;
        }
        return Ok(());
    }
    let mut source = Source::new(context)?;
    let mut choice = context.fabric.payloads();
    let key = context.link().grant(source.arena.memory(), Access::READ)?;
    context.tell_number(key.0)?;
    let mut before = None;
    for (number, length) in payloads {
        let bytes = pattern(number as u64, length);
        let buffer = fill(&mut choice, &mut source, &bytes, number % 3 > 0)?;
        context.tell_number(buffer.offset())?;
        choice.sent(length, &mut source);
        expect_eq!(context.hear_number()?, number as u64, "the roles have lost step");
        expect!(*buffer == *bytes, "a buffer in use was changed");
        before = Some(buffer);
    }
    drop(before);
    Ok(())
}

fn come_back<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut source = Source::new(context)?;
    let mut choice = context.fabric.payloads();
    for in_pieces in [false, true] {
        for round in 0..24 {
            let length = [5000, 64 * KIB, 256 * KIB][round % 3];
            drop(fill(&mut choice, &mut source, &pattern(round as u64, length), in_pieces)?);
            choice.sent(length, &mut source);
        }
        while choice.release(Pressure::Limit) {}
        expect!(source.arena.is_unused(), "buffers are kept at the limit of memory");
        // One payload takes all memory, so that a further one finds none.
        let all = fill(&mut choice, &mut source, &pattern(7, MEMORY), in_pieces)?;
        expect!(choice.reserve(1, &mut source).is_none(), "a buffer of memory that is in use");
        expect!(choice.reserve_in_pieces(1, &mut source).is_none(), "a buffer of memory that is in use");
        expect!(*all == pattern(7, MEMORY), "a buffer in use was changed");
        drop(all);
        while choice.release(Pressure::Limit) {}
    }
    Ok(())
}
