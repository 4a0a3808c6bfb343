//! Mappings: registered memory of our own, and memory that a peer has granted to us.
//!
//! What peers may use is a sealed memfd: it cannot shrink under us (no SIGBUS), cannot grow, cannot be sealed
//! further; memory granted for READ only is sealed against every mapping and write but the owner's own mapping,
//! which is made before the seal. A descriptor opened read-only would be no protection: it can be reopened
//! through `/proc`. Nothing here has a name in a file system, so nothing is left behind by a killed process.

use dunlin_fabric::{Access, Memory, RegionKey, RegisterError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

/// The longest region that can be registered or imported.
pub(crate) const MAX_REGION: u64 = 1 << 40;

const HUGE_PAGE: usize = 2 << 20;

/// One mapping, unmapped when dropped. All access to it is by atomics, or by the racing copies of
/// `dunlin_fabric::copy`, since another process may write it at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    mapped: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and is only reached through atomics, racing copies,
// and `Region`, `Arena` and their rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        if length >= HUGE_PAGE {
            let mapped = length.next_multiple_of(HUGE_PAGE);
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            // SAFETY: a fresh mapping at an address of the kernel's choice. The kernel reserves the huge pages
            // now, so touching them later cannot fail.
            let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) };
            if let Ok(base) = base {
                return Self::of(base, length, mapped);
            }
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        let mapping = Self::of(base, length, length)?;
        mapping.prefer_huge_pages();
        Ok(mapping)
    }

    pub(crate) fn shared(descriptor: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, descriptor, 0)?
        };
        Self::of(base, length, length)
    }

    fn of(base: *mut std::ffi::c_void, length: usize, mapped: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))?;
        Ok(Mapping { base, length, mapped })
    }

    fn prefer_huge_pages(&self) {
        if self.mapped >= HUGE_PAGE {
            // SAFETY: the range is our own mapping; the advice changes no contents. It is only a wish: systems
            // without transparent huge pages refuse it and nothing is lost.
            let _ =
                unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, Advice::LinuxHugepage) };
        }
    }

    /// The length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The address of a range, or `None` if it is out of bounds, whatever the numbers.
    #[inline]
    pub(crate) fn range(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let limit = self.length as u64;
        if offset > limit || length > limit - offset {
            return None;
        }
        // SAFETY: in bounds, as just checked.
        Some(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// The aligned 8 bytes at an offset of our own choice.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.length && self.length - offset >= 8);
        // SAFETY: in bounds and aligned; all access of ours to such words is atomic, and a peer's is outside of
        // Rust's view.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The aligned 4 bytes at an offset of our own choice.
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.length && self.length - offset >= 4);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with exactly this range, unmapped only here, and nothing borrows from it longer
        // than the value lives.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) } {
            tracing::warn!(%error, "a mapping cannot be unmapped");
        }
    }
}

/// Memory registered with a [`ShmFabric`](crate::ShmFabric).
///
/// Memory that peers may change is a memfd that they map too. Memory registered for READ only cannot be changed
/// by a peer, whatever it does. Memory registered for WRITE or ATOMIC can be changed by every peer that was
/// granted any access to it, READ included: the fabric on the other side refuses, but a hostile process owns the
/// descriptor. Register memory that has to be safe from that for READ only.
#[derive(Debug)]
pub struct ShmMemory {
    mapping: Mapping,
    access: Access,
    /// Needed for grants; `None` for memory that is never granted, or not any more.
    descriptor: Mutex<Option<OwnedFd>>,
}

impl ShmMemory {
    /// Zeroed memory, its pages touched lazily.
    pub(crate) fn new(length: u64, access: Access) -> Result<Self, RegisterError> {
        let out_of_memory = |source: io::Error| RegisterError::OutOfMemory { length, source };
        let bytes = usize::try_from(length)
            .ok()
            .filter(|l| *l > 0 && length <= MAX_REGION)
            .ok_or(RegisterError::Length { length, limit: MAX_REGION })?;
        if access == Access::LOCAL {
            let mapping = Mapping::anonymous(bytes).map_err(out_of_memory)?;
            return Ok(ShmMemory { mapping, access, descriptor: Mutex::new(None) });
        }
        let (mapping, descriptor) = sealed(bytes, access).map_err(out_of_memory)?;
        Ok(ShmMemory { mapping, access, descriptor: Mutex::new(Some(descriptor)) })
    }

    /// The mapping.
    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A descriptor to hand to a peer.
    pub(crate) fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let descriptor = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        descriptor.as_ref().map(|d| d.try_clone()).transpose()
    }

    /// Gives up the descriptor: the memory stays, but cannot be granted again.
    pub(crate) fn close_descriptor(&self) {
        *self.descriptor.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

// SAFETY: a mapping is page-aligned, and valid for reads and writes until the value is dropped.
unsafe impl Memory for ShmMemory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }
    fn length(&self) -> usize {
        self.mapping.length
    }
    fn access(&self) -> Access {
        self.access
    }
}

fn sealed(length: usize, access: Access) -> io::Result<(Mapping, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = match rustix::fs::memfd_create(c"dunlin", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(c"dunlin", flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&descriptor, length as u64)?;
    let mapping = Mapping::shared(descriptor.as_fd(), length, true)?;
    mapping.prefer_huge_pages();
    rustix::fs::fcntl_add_seals(&descriptor, seals_for(access))?;
    Ok((mapping, descriptor))
}

fn seals_for(access: Access) -> SealFlags {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if access.changes() { size } else { size | SealFlags::FUTURE_WRITE }
}

/// Why a granted descriptor was refused.
#[derive(Debug, Error)]
pub(crate) enum ImportError {
    /// The descriptor's size is not what was said.
    #[error("the granted descriptor holds {actual} bytes, but {claimed} were announced")]
    Size {
        /// What was said.
        claimed: u64,
        /// What it is.
        actual: u64,
    },
    /// The size is out of range.
    #[error("a grant of {0} bytes is empty or over the limit")]
    Length(u64),
    /// Not a memfd, or its size or contents could still change.
    #[error("the granted descriptor lacks seals: it has {found:#x} and must have {wanted:#x}")]
    Seals {
        /// What it has.
        found: u32,
        /// What it must have.
        wanted: u32,
    },
    /// The system refused.
    #[error("the granted descriptor cannot be mapped: {0}")]
    System(#[from] io::Error),
}

/// Memory that the peer of one link has granted to us.
#[derive(Debug)]
pub(crate) struct Import {
    mapping: Mapping,
    access: Access,
    key: RegionKey,
    revoked: AtomicBool,
}

impl Import {
    /// Maps a granted descriptor after checking that it cannot change under us. `registered` is what the owner
    /// says the memory was registered for, which decides the seals it must carry.
    pub(crate) fn new(
        descriptor: &OwnedFd,
        claimed: u64,
        access: Access,
        registered: Access,
        key: RegionKey,
    ) -> Result<Self, ImportError> {
        let length = usize::try_from(claimed)
            .ok()
            .filter(|l| *l > 0 && claimed <= MAX_REGION)
            .ok_or(ImportError::Length(claimed))?;
        let status = rustix::fs::fstat(descriptor).map_err(io::Error::from)?;
        let actual = u64::try_from(status.st_size).unwrap_or(0);
        let wanted = seals_for(registered);
        // Files that cannot be sealed at all answer EINVAL: no seals.
        let found = rustix::fs::fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        if !found.contains(wanted) {
            return Err(ImportError::Seals { found: found.bits(), wanted: wanted.bits() });
        }
        if actual != claimed {
            return Err(ImportError::Size { claimed, actual });
        }
        let mapping = Mapping::shared(descriptor.as_fd(), length, access.changes())?;
        Ok(Import { mapping, access, key, revoked: AtomicBool::new(false) })
    }

    /// The mapping.
    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// What we may do.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Its name.
    #[inline]
    pub(crate) fn key(&self) -> RegionKey {
        self.key
    }

    /// Whether the owner has ended the grant.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Marks the grant as ended.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RegionKey = RegionKey(1);

    fn import(memory: &ShmMemory, length: u64, access: Access) -> Result<Import, ImportError> {
        Import::new(&memory.descriptor().unwrap().unwrap(), length, access, memory.access(), KEY)
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let memory = ShmMemory::new(5000, Access::READ.with(Access::WRITE)).unwrap();
        let import = import(&memory, 5000, Access::READ.with(Access::WRITE)).unwrap();
        memory.mapping().word(8).store(42, Ordering::Release);
        assert_eq!(import.mapping().word(8).load(Ordering::Acquire), 42);
        assert_eq!(import.mapping().length(), 5000);
    }

    #[test]
    fn read_only_memory_cannot_be_mapped_for_writing_by_anybody() {
        let memory = ShmMemory::new(4096, Access::READ).unwrap();
        let descriptor = memory.descriptor().unwrap().unwrap();
        assert!(Mapping::shared(descriptor.as_fd(), 4096, true).is_err());
        assert!(rustix::io::pwrite(&descriptor, b"x", 0).is_err());
        memory.mapping().word(0).store(7, Ordering::Release);
        assert_eq!(import(&memory, 4096, Access::READ).unwrap().mapping().word(0).load(Ordering::Acquire), 7);
    }

    #[test]
    fn wrong_sizes_and_missing_seals_are_refused() {
        let memory = ShmMemory::new(4096, Access::WRITE).unwrap();
        assert!(matches!(
            import(&memory, 8192, Access::WRITE),
            Err(ImportError::Size { claimed: 8192, actual: 4096 })
        ));
        assert!(matches!(import(&memory, 0, Access::WRITE), Err(ImportError::Length(0))));
        assert!(matches!(import(&memory, u64::MAX, Access::WRITE), Err(ImportError::Length(_))));
        let descriptor = memory.descriptor().unwrap().unwrap();
        let read_only = Import::new(&descriptor, 4096, Access::READ, Access::READ, KEY);
        assert!(
            matches!(read_only, Err(ImportError::Seals { .. })),
            "READ-only memory must be sealed against writes"
        );
        let loose = rustix::fs::memfd_create(c"loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(matches!(
            Import::new(&loose, 4096, Access::WRITE, Access::WRITE, KEY),
            Err(ImportError::Seals { .. })
        ));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(Import::new(&pipe, 4096, Access::WRITE, Access::WRITE, KEY).is_err());
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let memory = ShmMemory::new(4096, Access::LOCAL).unwrap();
        let mapping = memory.mapping();
        assert!(mapping.range(0, 4096).is_some());
        assert!(mapping.range(4096, 0).is_some());
        for (offset, length) in [(4096, 1), (0, 4097), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
            assert!(mapping.range(offset, length).is_none(), "{offset} {length}");
        }
    }

    #[test]
    fn large_memory_is_touched_lazily_and_sizes_are_bounded() {
        assert!(ShmMemory::new(1 << 36, Access::WRITE).is_ok());
        assert!(matches!(ShmMemory::new(0, Access::LOCAL), Err(RegisterError::Length { .. })));
        assert!(matches!(ShmMemory::new(u64::MAX, Access::LOCAL), Err(RegisterError::Length { .. })));
        let huge = ShmMemory::new(5 << 20, Access::LOCAL).unwrap();
        huge.mapping().word((5 << 20) - 8).store(1, Ordering::Release);
        assert_eq!(huge.length(), 5 << 20);
    }
}
