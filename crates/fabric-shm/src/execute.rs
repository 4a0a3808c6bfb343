//! One-sided operations, done by the initiator's own processor on memory that the peer has granted.

use crate::link::LinkShared;
use crate::memory::{Import, ShmMemory};
use dunlin_fabric::{Access, CompletionStatus, Data, RegionKey, copy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys that one queue pair used last, so that its data path takes no lock.
const REMEMBERED: usize = 8;

/// The grants of a link as one queue pair sees them.
#[derive(Debug, Default)]
pub(crate) struct ImportCache {
    /// The last used first.
    recent: Vec<Arc<Import>>,
}

impl ImportCache {
    /// The granted memory of that name.
    #[inline]
    fn get(&mut self, link: &LinkShared, key: RegionKey) -> Option<&Import> {
        if self.recent.first().is_none_or(|i| i.key() != key) {
            self.bring_forward(link, key)?;
        }
        self.recent.first().map(|i| &**i).filter(|i| !i.is_revoked())
    }

    #[inline(never)]
    fn bring_forward(&mut self, link: &LinkShared, key: RegionKey) -> Option<()> {
        if let Some(at) = self.recent.iter().position(|i| i.key() == key) {
            self.recent[..=at].rotate_right(1);
            return Some(());
        }
        let import = link.import(key)?;
        self.recent.retain(|i| !i.is_revoked());
        self.recent.truncate(REMEMBERED - 1);
        self.recent.insert(0, import);
        Some(())
    }

    /// The address of a range that may be used so.
    #[inline]
    fn range(
        &mut self,
        link: &LinkShared,
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

    /// WRITE. As in verbs, an empty one touches nothing and its key is not looked at.
    #[inline]
    pub(crate) fn write(
        &mut self,
        link: &LinkShared,
        key: RegionKey,
        offset: u64,
        data: &Data<'_, ShmMemory>,
    ) -> Result<(), CompletionStatus> {
        let length = data.length();
        if length == 0 {
            return Ok(());
        }
        let start = self.range(link, key, offset, length, Access::WRITE)?;
        let mut at = start;
        let mut put = |part: &[u8]| {
            // SAFETY: `start` is good for the length of all parts together, and the parts add up to it: `at` stays
            // inside. The mapping lives in the cache. A peer's granted memory is never a Rust reference, so the two
            // ranges are apart; even in one process a `Buffer` cannot lie in memory that is granted for WRITE.
            unsafe {
                if let Ok(line) = <&[u8; 64]>::try_from(part)
                    && at.addr().is_multiple_of(64)
                {
                    copy::line_to_peer(line, at);
                } else {
                    copy::to_peer(part.as_ptr(), at, part.len());
                }
                at = at.add(part.len());
            }
        };
        // In ascending order, so that the last 8 bytes of all come last.
        match data {
            Data::Inline(parts) => parts.iter().for_each(|part| put(part)),
            Data::Buffer(buffer) => put(buffer),
            Data::Gather(gather) => gather.iter().for_each(|buffer| put(buffer)),
        }
        Ok(())
    }

    /// READ.
    pub(crate) fn read(
        &mut self,
        link: &LinkShared,
        key: RegionKey,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), CompletionStatus> {
        if into.is_empty() {
            return Ok(());
        }
        let source = self.range(link, key, offset, into.len() as u64, Access::READ)?;
        // SAFETY: the source is good for that length and its mapping lives in the cache; the destination is
        // exclusively borrowed.
        unsafe { copy::from_peer(source, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// FETCH_ADD or CMP_SWAP: the old value.
    pub(crate) fn atomic(
        &mut self,
        link: &LinkShared,
        key: RegionKey,
        offset: u64,
        change: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<u64, CompletionStatus> {
        let target = self.range(link, key, offset, 8, Access::ATOMIC)?;
        if !target.addr().is_multiple_of(8) {
            return Err(CompletionStatus::RemoteInvalidRequest);
        }
        // SAFETY: good for 8 bytes and aligned, as just checked; granted memory is only touched by atomics and
        // racing copies.
        Ok(change(unsafe { AtomicU64::from_ptr(target.cast()) }))
    }
}

/// FETCH_ADD's change.
pub(crate) fn fetch_add(add: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| word.fetch_add(add, Ordering::AcqRel)
}

/// CMP_SWAP's change.
pub(crate) fn compare_swap(expected: u64, swap: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| {
        word.compare_exchange(expected, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|old| old)
    }
}
