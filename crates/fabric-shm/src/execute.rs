//! One-sided operations: the initiator's own processor executes them on memory that the peer has granted.

use crate::inbound::{Pieces, range_of};
use crate::large_read::LargeReads;
use crate::link::LinkShared;
use crate::memory::{Import, ShmMemory};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Gather, InlineLine, RegionKey, RegionRange, RemoteSlice, copy,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of keys that a queue pair caches, so that its data path takes no lock.
const REMEMBERED: usize = 8;

/// The bytes of an outgoing message, in one of several representations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The caller's parts.
    Parts(&'a [&'a [u8]]),
    /// One slice.
    One(&'a [u8]),
    /// Registered buffers.
    Gather(&'a Gather<ShmMemory>),
    /// Memory that peers may change meanwhile.
    Region(&'a RegionRange<ShmMemory>),
}

impl<'a> Source<'a> {
    /// Returns the bytes of the user's data.
    #[inline]
    pub(crate) fn of(data: &'a Data<'_, ShmMemory>) -> Self {
        match data {
            Data::Inline(parts) => Source::Parts(parts),
            Data::Buffer(buffer) => Source::One(buffer),
            Data::Gather(gather) => Source::Gather(gather),
            Data::Region(range) => Source::Region(range),
        }
    }

    /// Returns the total length.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        match self {
            Source::Parts(parts) => parts.iter().map(|p| p.len() as u64).sum(),
            Source::One(bytes) => bytes.len() as u64,
            Source::Gather(gather) => gather.iter().map(|b| b.len() as u64).sum(),
            Source::Region(range) => range.length() as u64,
        }
    }
}

impl Pieces for Source<'_> {
    fn pieces(&self, from: usize, length: usize, each: &mut dyn FnMut(&[u8])) {
        match self {
            Source::Parts(parts) => range_of(parts.iter().copied(), from, length, each),
            Source::One(bytes) => range_of(std::iter::once(*bytes), from, length, each),
            Source::Gather(gather) => range_of(gather.iter().map(|b| &b[..]), from, length, each),
            Source::Region(range) => private_pieces(range, from, length, each),
        }
    }
}

/// The longest piece of [`private_pieces`], in bytes.
const PRIVATE_PIECE: usize = 4096;

/// Calls `each` with private copies of pieces of a range, since no slice of it may be made.
#[inline(never)]
fn private_pieces(range: &RegionRange<ShmMemory>, from: usize, length: usize, each: &mut dyn FnMut(&[u8])) {
    let mut piece = [0; PRIVATE_PIECE];
    let end = range.length().min(from.saturating_add(length));
    for at in (from..end).step_by(PRIVATE_PIECE) {
        let wanted = (end - at).min(PRIVATE_PIECE);
        let copied = range.copy_out(at, &mut piece[..wanted]);
        each(&piece[..copied]);
    }
}

/// The grants of a link, cached for one queue pair.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ImportCache {
    /// The one that was used last.
    newest: Option<Arc<Import>>,
    /// Ordered by last use, the newest first.
    others: Vec<Arc<Import>>,
    large_reads: LargeReads,
}

impl ImportCache {
    /// Returns the granted memory with this key.
    #[inline(always)]
    fn get(&mut self, link: &Arc<LinkShared>, key: RegionKey) -> Option<&Import> {
        if self.newest.as_ref().is_none_or(|i| i.key() != key) {
            self.bring_forward(link, key)?;
        }
        self.newest.as_deref().filter(|i| !i.is_revoked())
    }

    #[inline(never)]
    fn bring_forward(&mut self, link: &Arc<LinkShared>, key: RegionKey) -> Option<()> {
        let import = match self.others.iter().position(|i| i.key() == key) {
            Some(at) => self.others.remove(at),
            None => {
                let import = link.import(key)?;
                self.others.retain(|i| !i.is_revoked());
                self.others.truncate(REMEMBERED - 2);
                import
            }
        };
        if let Some(before) = self.newest.replace(import)
            && !before.is_revoked()
        {
            self.others.insert(0, before);
        }
        Some(())
    }

    /// Returns the address of a range if `needed` access to it is granted.
    #[inline(always)]
    fn range(
        &mut self,
        link: &Arc<LinkShared>,
        key: RegionKey,
        offset: u64,
        length: u64,
        needed: Access,
    ) -> Result<*mut u8, CompletionStatus> {
        let import = self.get(link, key).ok_or(CompletionStatus::RemoteAccess)?;
        if !import.access().contains(needed) {
            return Err(CompletionStatus::RemoteAccess);
        }
        import.mapping().range(offset, length).ok_or(CompletionStatus::RemoteAccess)
    }

    /// Executes a WRITE. As in verbs, an empty one accesses nothing and its key is not checked.
    #[inline]
    pub(crate) fn write(
        &mut self,
        link: &Arc<LinkShared>,
        key: RegionKey,
        offset: u64,
        source: Source<'_>,
    ) -> Result<(), CompletionStatus> {
        let length = source.length();
        if length == 0 {
            return Ok(());
        }
        let start = self.range(link, key, offset, length, Access::WRITE)?;
        let mut at = start;
        // SAFETY: the range is valid for the length of all parts together, and their lengths add up to it, so
        // `at` stays inside.
        let mut put = |part: &[u8]| at = unsafe { put(part, at) };
        // In ascending order, so that the last 8 bytes of the message are written last.
        match source {
            Source::Parts(parts) => parts.iter().for_each(|part| put(part)),
            Source::One(bytes) => put(bytes),
            Source::Gather(gather) => gather.iter().for_each(|buffer| put(buffer)),
            // SAFETY: both are valid for that length, and no reference exists to either.
            Source::Region(range) => unsafe { copy::to_peer(range.start(), start, range.length()) },
        }
        Ok(())
    }

    /// Executes a WRITE of parts with a total of `length` bytes, which is not zero. Returns `false`, with
    /// nothing written, if it is not permitted. The fast path for inline data.
    #[inline]
    pub(crate) fn write_parts(
        &mut self,
        link: &Arc<LinkShared>,
        key: RegionKey,
        offset: u64,
        parts: &[&[u8]],
        length: u64,
        ahead: u32,
    ) -> bool {
        let Ok(start) = self.range(link, key, offset, length, Access::WRITE) else { return false };
        let mut at = start;
        for part in parts {
            // SAFETY: as in `write`.
            at = unsafe { put(part, at) };
        }
        ask_ahead(start, length as usize, ahead);
        true
    }

    /// Executes a WRITE of a line. Returns `false`, with nothing written, if it is not permitted or not
    /// aligned.
    #[inline(always)]
    pub(crate) fn write_line(&mut self, link: &Arc<LinkShared>, line: &InlineLine<'_>) -> bool {
        let Ok(at) = self.range(link, line.key, line.offset, 64, Access::WRITE) else { return false };
        if !at.addr().is_multiple_of(64) {
            return false;
        }
        // SAFETY: aligned, valid for 64 bytes, and in memory to which no Rust reference exists, as in `put`.
        unsafe { copy::line_to_peer(line.line, at) };
        copy::demote(at);
        if line.ahead {
            // Repeats earlier prefetches, as `ask_ahead` does.
            copy::prefetch_behind(at);
        }
        true
    }

    pub(crate) fn read(
        &mut self,
        link: &Arc<LinkShared>,
        key: RegionKey,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), CompletionStatus> {
        if into.is_empty() {
            return Ok(());
        }
        let source = self.range(link, key, offset, into.len() as u64, Access::READ)?;
        // SAFETY: the source is valid for that length and the cache keeps its mapping; the destination is
        // exclusively borrowed.
        unsafe { self.large_reads.copy(source, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Executes a READ into a region.
    pub(crate) fn read_into(
        &mut self,
        link: &Arc<LinkShared>,
        from: RemoteSlice,
        into: &RegionRange<ShmMemory>,
    ) -> Result<(), CompletionStatus> {
        let length = from.length as usize;
        if length > into.length() {
            return Err(CompletionStatus::LocalLength);
        }
        if length == 0 {
            return Ok(());
        }
        let source = self.range(link, from.key, from.offset, from.length.into(), Access::READ)?;
        // SAFETY: both are valid for that length, and no reference exists to either.
        unsafe { self.large_reads.copy(source, into.start(), length) };
        Ok(())
    }

    /// Executes a FETCH_ADD or CMP_SWAP; returns the old value.
    pub(crate) fn atomic(
        &mut self,
        link: &Arc<LinkShared>,
        key: RegionKey,
        offset: u64,
        change: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<u64, CompletionStatus> {
        let target = self.range(link, key, offset, 8, Access::ATOMIC)?;
        if !target.addr().is_multiple_of(8) {
            return Err(CompletionStatus::RemoteInvalidRequest);
        }
        // SAFETY: valid for 8 bytes and aligned, as just checked; granted memory is only accessed by atomics
        // and racing copies.
        Ok(change(unsafe { AtomicU64::from_ptr(target.cast()) }))
    }
}

/// Prefetches the lines that the caller will write next, so that their transfer from the peer's cache
/// overlaps the current work. Repeats earlier prefetches, since the hardware prefetcher of the reader's
/// processor may have taken the lines since.
#[inline(always)]
fn ask_ahead(start: *const u8, written: usize, ahead: u32) {
    let mut next = written;
    while next < ahead as usize {
        copy::prefetch_to_write(start.wrapping_add(next));
        next += 64;
    }
}

/// Copies one part into granted memory; returns the address after it.
///
/// # Safety
/// The destination must be valid for the part's length, in memory to which no Rust reference exists. Granted
/// memory satisfies that: a `Buffer` cannot lie in memory that is registered for WRITE, not even within one
/// process.
#[inline]
unsafe fn put(part: &[u8], at: *mut u8) -> *mut u8 {
    // SAFETY: by the caller's contract; a whole aligned line takes the fast path.
    unsafe {
        match <&[u8; 64]>::try_from(part) {
            Ok(line) if at.addr().is_multiple_of(64) => copy::line_to_peer(line, at),
            _ => copy::to_peer(part.as_ptr(), at, part.len()),
        }
        at.add(part.len())
    }
}

/// Returns the change that FETCH_ADD makes.
pub(crate) fn fetch_add(add: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| word.fetch_add(add, Ordering::AcqRel)
}

/// Returns the change that CMP_SWAP makes.
pub(crate) fn compare_swap(expected: u64, swap: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| {
        word.compare_exchange(expected, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|old| old)
    }
}
