//! Buffers for large payloads, prepared and filled in the way that suits a fabric.
//!
//! The engine owns the memory: it maps it, grants it and bounds it ([`BufferSource`]). The fabric chooses the buffer,
//! and the stores into it ([`PayloadBuffers`]). A NIC reads memory at one price, whoever wrote it and however, so
//! [`PlainPayloads`] takes any buffer and leaves its bytes alone. Where the peer's core READs, its cache keeps the
//! lines, and a fabric can avoid the wait for them.

use crate::arena::Buffer;
use crate::memory::Memory;
use std::fmt::Debug;

/// The memory from which [`PayloadBuffers`] takes buffers.
pub trait BufferSource<M: Memory> {
    /// Reserves a buffer of `length` bytes in memory that is mapped already; `None` if it has no room. Allocates
    /// nothing and makes no system call.
    fn mapped(&mut self, length: usize) -> Option<Buffer<M>>;

    /// As [`mapped`](BufferSource::mapped), and maps memory if there is no room, with a system call: at least `smallest`
    /// bytes as far as the limit allows them. `None` at the limit.
    fn reserve(&mut self, length: usize, smallest: u64) -> Option<Buffer<M>>;
}

/// The reason why free buffers are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Mapped memory has no room for a buffer, and more would have to be mapped.
    Mapping,
    /// No more memory can be mapped.
    Limit,
}

/// The payload buffers of one direction of a connection: which buffer a payload gets, and how it is filled. One thread at
/// a time uses it.
pub trait PayloadBuffers<M: Memory>: Debug + Send + 'static {
    /// The state of one payload while it is filled.
    type Filling: PayloadFilling;

    /// Reserves a buffer of `length` bytes that is filled before the peer is told of it. Its content is undefined.
    /// `None` if `from` has no memory.
    fn reserve(&mut self, length: usize, from: &mut impl BufferSource<M>) -> Option<Buffer<M>>;

    /// As [`reserve`](PayloadBuffers::reserve), for a payload that the peer READs while it is filled. The time of the
    /// first bytes may be measured from this call on.
    fn reserve_in_pieces(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<M>,
    ) -> Option<(Buffer<M>, Self::Filling)>;

    /// Takes the state back of a payload that is filled, or given up.
    fn filled(&mut self, filling: Self::Filling);

    /// Learns that a payload of `length` bytes was sent, so that the thread would only wait for the peer. May prepare a
    /// buffer for the next payload.
    fn sent(&mut self, length: usize, from: &mut impl BufferSource<M>);

    /// Gives back free buffers that are kept for later payloads. Returns whether there were any.
    fn release(&mut self, pressure: Pressure) -> bool;
}

/// The state of one payload while it is filled.
pub trait PayloadFilling: Debug + Send + 'static {
    /// Learns that the first `bytes` bytes are filled. Only the first call counts.
    fn began(&mut self, bytes: usize);

    /// Copies into the payload as many bytes as the shorter slice has.
    fn copy(&self, to: &mut [u8], from: &[u8]);
}

/// Copies with plain stores, as many bytes as the shorter slice has.
#[inline]
pub fn copy_plainly(to: &mut [u8], from: &[u8]) {
    let length = to.len().min(from.len());
    to[..length].copy_from_slice(&from[..length]);
}

/// Payload buffers for a NIC: any free buffer, as it is, and plain stores. Keeps nothing and reads no clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainPayloads;

/// The state of a payload of [`PlainPayloads`]: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainFilling;

impl<M: Memory> PayloadBuffers<M> for PlainPayloads {
    type Filling = PlainFilling;

    fn reserve(&mut self, length: usize, from: &mut impl BufferSource<M>) -> Option<Buffer<M>> {
        from.reserve(length, 0)
    }

    fn reserve_in_pieces(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<M>,
    ) -> Option<(Buffer<M>, PlainFilling)> {
        from.reserve(length, 0).map(|buffer| (buffer, PlainFilling))
    }

    fn filled(&mut self, _: PlainFilling) {}

    fn sent(&mut self, _: usize, _: &mut impl BufferSource<M>) {}

    fn release(&mut self, _: Pressure) -> bool {
        false
    }
}

impl PayloadFilling for PlainFilling {
    fn began(&mut self, _: usize) {}

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        copy_plainly(to, from);
    }
}

/// Distances at which the engine prefetches lines of a ring, in lines. They are physics of the fabric: a processor that
/// stores into the peer's ring waits for each line of it, and a NIC does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// A writer prefetches up to this many lines behind a message, as far as the reader is done with them
    /// ([`InlineWrite::ahead`](crate::InlineWrite::ahead), [`InlineLine::ahead`](crate::InlineLine::ahead)); 0 for none.
    pub written_lines: usize,
    /// In a stream of messages a reader prefetches the line at this distance; 0 for none.
    pub read_lines: usize,
    /// Lines in a row behind which a reader assumes a stream.
    pub stream_from: u32,
}

impl Prefetch {
    /// No prefetching, as suits a NIC: it posts WRITEs without touching the target, and places lines in the shared cache.
    pub const NONE: Prefetch = Prefetch { written_lines: 0, read_lines: 0, stream_from: 0 };
}
