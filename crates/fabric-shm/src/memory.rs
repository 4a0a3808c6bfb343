//! Mappings: this process's registered memory, and memory that a peer has granted.
//!
//! Memory for peers is a sealed memfd: it cannot shrink (no SIGBUS), cannot grow, and cannot be sealed
//! further. Memory granted for READ only is sealed against every write and every writable mapping except the
//! owner's, which is made before the seal. A descriptor opened read-only would be no protection, since it can
//! be reopened through `/proc`. Nothing has a name in a file system, so a killed process leaves nothing
//! behind.

use crate::adjacent::{HUGE_PAGE, at_adjacent, with_longest_pages};
use dunlin_fabric::{Access, Memory, Region, RegionKey, RegisterError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// The longest region that can be registered or imported, in bytes.
pub(crate) const MAX_REGION: u64 = 1 << 40;

/// One mapping, unmapped when dropped. Accessed only by atomics and by the racing copies of
/// `dunlin_fabric::copy`, since another process may write it at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    mapped: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and is only accessed through atomics, racing
// copies, and `Region` and `Arena` under their rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        if length >= HUGE_PAGE {
            let mapped = length.next_multiple_of(HUGE_PAGE);
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            // SAFETY: a new mapping at an address that the kernel chooses. The kernel reserves the huge pages
            // now, so touching them later cannot fail.
            let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) };
            if let Ok(base) = base {
                return Self::of(base, length, mapped);
            }
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        let mapping = Self::of(base, length, length)?;
        mapping.prefer_huge_pages();
        Ok(mapping)
    }

    pub(crate) fn shared(descriptor: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new shared mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, descriptor, 0)?
        };
        Self::of(base, length, length)
    }

    /// Maps a file for reads and writes: at `address` if there is one.
    ///
    /// # Errors
    /// `EXIST`: something is mapped at `address`.
    fn shared_at(address: Option<usize>, descriptor: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let Some(address) = address else { return Self::shared(descriptor, length, true) };
        let (place, protection) =
            (std::ptr::without_provenance_mut(address), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new shared mapping; the kernel replaces no other.
        let base = unsafe { rustix::mm::mmap(place, length, protection, flags, descriptor, 0)? };
        let mapping = Self::of(base, length, length)?;
        // Kernels before 4.17 take the address for a wish.
        if base.addr() == address { Ok(mapping) } else { Err(rustix::io::Errno::EXIST.into()) }
    }

    fn of(base: *mut std::ffi::c_void, length: usize, mapped: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))?;
        Ok(Mapping { base, length, mapped })
    }

    fn prefer_huge_pages(&self) {
        if self.mapped >= HUGE_PAGE {
            // SAFETY: the range is this value's own mapping, and the advice changes no contents. Systems
            // without transparent huge pages reject it without effect.
            let _ =
                unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, Advice::LinuxHugepage) };
        }
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of a range, or `None` if it is out of bounds. Cannot overflow.
    #[inline]
    pub(crate) fn range(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let limit = self.length as u64;
        if offset > limit || length > limit - offset {
            return None;
        }
        // SAFETY: in bounds, as just checked.
        Some(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Returns the aligned 8 bytes at an offset that this process, not a peer, chooses.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.length && self.length - offset >= 8);
        // SAFETY: in bounds and aligned. This process accesses such words only with atomics, and a peer's
        // access is outside Rust's memory model.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the aligned 4 bytes at an offset that this process, not a peer, chooses.
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.length && self.length - offset >= 4);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with exactly this range and unmapped only here; no borrow outlives the
        // value.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) } {
            tracing::warn!(%error, "a mapping cannot be unmapped");
        }
    }
}

/// Memory registered with a [`ShmFabric`](crate::ShmFabric).
///
/// Memory that peers may change is a memfd that they map too. Memory registered for READ only cannot be
/// changed by a peer, whatever it does. Memory registered for WRITE or ATOMIC can be changed by every peer
/// that was granted any access to it, READ included: the fabric at the peer refuses, but a hostile process
/// owns the descriptor. Memory that needs protection from that must be registered for READ only.
#[derive(Debug)]
pub struct ShmMemory {
    mapping: Mapping,
    access: Access,
    /// Needed for grants; `None` for memory that is never granted, or no longer.
    descriptor: Mutex<Option<OwnedFd>>,
}

impl ShmMemory {
    /// Allocates zeroed memory whose pages are touched lazily.
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
        ShmMemory::sealed(bytes, access, None).map_err(out_of_memory)
    }

    fn sealed(length: usize, access: Access, address: Option<usize>) -> io::Result<Self> {
        let (mapping, descriptor) = sealed(length, access, address)?;
        Ok(ShmMemory { mapping, access, descriptor: Mutex::new(Some(descriptor)) })
    }

    /// As [`new`](ShmMemory::new) for each part. The addresses of those that peers can be granted follow each other.
    pub(crate) fn new_adjacent(lengths: &[u64], access: Access) -> Result<Vec<Self>, RegisterError> {
        let wrong = lengths.iter().find(|length| **length == 0 || **length > MAX_REGION);
        if let Some(length) = wrong {
            return Err(RegisterError::Length { length: *length, limit: MAX_REGION });
        }
        if access == Access::LOCAL {
            return lengths.iter().map(|length| ShmMemory::new(*length, access)).collect();
        }
        let make = |at: usize, address| ShmMemory::sealed(lengths[at] as usize, access, Some(address));
        let length = lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        at_adjacent(lengths, make).map_err(|source| RegisterError::OutOfMemory { length, source })
    }

    /// Maps parts of memory, each of which an earlier life of this process has registered, after the checks of a grant.
    /// Each part is a descriptor, its length, and the access. The addresses follow each other.
    pub(crate) fn adopt(parts: Vec<(OwnedFd, u64, Access)>) -> Result<Vec<Self>, ImportError> {
        for (descriptor, claimed, access) in &parts {
            check_grant(descriptor, *claimed, *access)?;
        }
        let lengths: Vec<u64> = parts.iter().map(|(_, length, _)| *length).collect();
        let map = |at: usize, address| {
            let mapping = Mapping::shared_at(Some(address), parts[at].0.as_fd(), lengths[at] as usize)?;
            mapping.prefer_huge_pages();
            Ok(mapping)
        };
        let mappings = at_adjacent(&lengths, map)?;
        let of = |((descriptor, _, access), mapping)| ShmMemory {
            mapping,
            access,
            descriptor: Mutex::new(Some(descriptor)),
        };
        Ok(parts.into_iter().zip(mappings).map(of).collect())
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns a descriptor to pass to a peer.
    pub(crate) fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let descriptor = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        descriptor.as_ref().map(|d| d.try_clone()).transpose()
    }

    /// Closes the descriptor. The memory stays, but cannot be granted again.
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

/// Makes a file of memory in reserved huge pages if there are enough, else in transparent ones if the kernel makes them.
fn sealed(length: usize, access: Access, address: Option<usize>) -> io::Result<(Mapping, OwnedFd)> {
    let (mapping, descriptor) = with_longest_pages(length as u64, |pages| match pages {
        Some(pages) => shared_file(length, MemfdFlags::HUGETLB | pages, address),
        None => {
            let made = shared_file(length, MemfdFlags::empty(), address)?;
            made.0.prefer_huge_pages();
            Ok(made)
        }
    })?;
    rustix::fs::fcntl_add_seals(&descriptor, seals_for(access))?;
    Ok((mapping, descriptor))
}

/// Makes and maps a file of memory. The kernel reserves huge pages with the mapping, for all later ones too, so touching
/// them cannot fail.
fn shared_file(length: usize, pages: MemfdFlags, address: Option<usize>) -> io::Result<(Mapping, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    let descriptor = match rustix::fs::memfd_create(c"dunlin", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(c"dunlin", flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&descriptor, length as u64)?;
    Ok((Mapping::shared_at(address, descriptor.as_fd(), length)?, descriptor))
}

fn seals_for(access: Access) -> SealFlags {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if access.changes() { size } else { size | SealFlags::FUTURE_WRITE }
}

/// The reason why a granted descriptor was refused.
#[derive(Debug, Error)]
pub(crate) enum ImportError {
    /// The descriptor's size differs from the announced size.
    #[error("the granted descriptor holds {actual} bytes, but {claimed} were announced")]
    Size {
        /// The announced size.
        claimed: u64,
        /// The descriptor's size.
        actual: u64,
    },
    /// The size is out of range.
    #[error("a grant of {0} bytes is empty or over the limit")]
    Length(u64),
    /// The descriptor is not a memfd, or its size or contents can still change.
    #[error("the granted descriptor lacks seals: it has {found:#x} and must have {wanted:#x}")]
    Seals {
        /// The descriptor's seals.
        found: u32,
        /// The required seals.
        wanted: u32,
    },
    /// A system call failed.
    #[error("the granted descriptor cannot be mapped")]
    System(#[from] io::Error),
}

/// Checks that size and seals of a descriptor are fixed, as those of memory registered for `registered`; returns its
/// length.
pub(crate) fn check_grant(
    descriptor: &OwnedFd,
    claimed: u64,
    registered: Access,
) -> Result<usize, ImportError> {
    let length = usize::try_from(claimed)
        .ok()
        .filter(|l| *l > 0 && claimed <= MAX_REGION)
        .ok_or(ImportError::Length(claimed))?;
    let status = rustix::fs::fstat(descriptor).map_err(io::Error::from)?;
    let actual = u64::try_from(status.st_size).unwrap_or(0);
    let wanted = seals_for(registered);
    // Files that cannot be sealed at all give EINVAL and count as without seals.
    let found = rustix::fs::fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
    if !found.contains(wanted) {
        return Err(ImportError::Seals { found: found.bits(), wanted: wanted.bits() });
    }
    if actual != claimed {
        return Err(ImportError::Size { claimed, actual });
    }
    Ok(length)
}

/// Memory that the peer of one link has granted to this side. Each WRITE reads all of it: one line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Import {
    mapping: Mapping,
    access: Access,
    key: RegionKey,
    revoked: AtomicBool,
}

impl Import {
    /// Maps a granted descriptor after checking that its size and seals are fixed. `registered` is the access
    /// that the owner claims to have registered the memory for; it determines the required seals.
    pub(crate) fn new(
        descriptor: &OwnedFd,
        claimed: u64,
        access: Access,
        registered: Access,
        key: RegionKey,
    ) -> Result<Self, ImportError> {
        let length = check_grant(descriptor, claimed, registered)?;
        let mapping = Mapping::shared(descriptor.as_fd(), length, access.changes())?;
        Ok(Import { mapping, access, key, revoked: AtomicBool::new(false) })
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    #[inline]
    pub(crate) fn key(&self) -> RegionKey {
        self.key
    }

    /// Returns whether the owner has ended the grant.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
    }
}

/// A peer's memory as a region of this process.
#[derive(Debug)]
struct Imported(Arc<Import>);

// SAFETY: the mapping is page-aligned and lives as long as the value. It is valid for writes only if the access says
// so: `ShmView`, the only owner of such values, checks that.
unsafe impl Memory for Imported {
    fn base(&self) -> NonNull<u8> {
        self.0.mapping.base
    }
    fn length(&self) -> usize {
        self.0.mapping.length
    }
    fn access(&self) -> Access {
        self.0.access
    }
}

/// Memory of a peer, mapped into this process: loads and stores without a queue pair. The peer may change it at any time.
///
/// No method blocks; all may be called from any thread. Methods panic if an offset is out of bounds, and those that
/// store if the memory was not granted for WRITE.
#[derive(Debug)]
pub struct ShmView(Region<Imported>);

impl ShmView {
    pub(crate) fn new(import: Arc<Import>) -> ShmView {
        ShmView(Region::new(Imported(import)))
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.0.length() as u64
    }

    /// Returns whether the memory was granted for WRITE.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.0.memory().access().changes()
    }

    /// Copies bytes out of the memory.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }

    /// Loads 8 aligned bytes, little-endian, with acquire order.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        self.0.load(offset)
    }

    /// Copies bytes into the memory, the last 8 bytes last.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(self.is_writable(), "the memory was granted for READ only");
        self.0.copy_in(offset, from);
    }

    /// Stores 8 aligned bytes, little-endian, with release order.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) {
        assert!(self.is_writable(), "the memory was granted for READ only");
        self.0.store(offset, value);
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
    fn a_view_is_the_memory_of_the_owner_and_refuses_stores_without_write() {
        let both = Access::READ.with(Access::WRITE);
        let memory = ShmMemory::new(4096, both).unwrap();
        let view = |access| ShmView::new(Arc::new(import(&memory, 4096, access).unwrap()));
        let (writer, reader) = (view(both), view(Access::READ));
        assert_eq!((writer.length(), writer.is_writable(), reader.is_writable()), (4096, true, false));
        writer.store(4088, 7);
        writer.copy_in(1, b"bytes");
        let mut bytes = [0; 5];
        reader.copy_out(1, &mut bytes);
        assert_eq!((&bytes, reader.load(4088)), (b"bytes", 7));
        assert_eq!(memory.mapping().word(4088).load(Ordering::Acquire), 7);
        let panics = |body: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
        assert!(panics(&|| reader.store(0, 1)) && panics(&|| reader.copy_in(0, b"x")));
        assert!(panics(&|| writer.copy_in(4092, b"12345")) && panics(&|| assert_eq!(writer.load(4096), 0)));
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

    /// Whether huge pages are reserved or not, all of this holds.
    #[test]
    fn memory_that_huge_pages_divide_is_shared_sealed_and_zeroed() {
        let length = 2 * HUGE_PAGE;
        for access in [Access::READ, Access::READ.with(Access::WRITE)] {
            let memory = ShmMemory::new(length as u64, access).unwrap();
            let import = import(&memory, length as u64, access).unwrap();
            for at in (0..length).step_by(4096) {
                assert_eq!(memory.mapping().word(at).load(Ordering::Acquire), 0);
            }
            memory.mapping().word(length - 8).store(7, Ordering::Release);
            assert_eq!(import.mapping().word(length - 8).load(Ordering::Acquire), 7);
            let descriptor = memory.descriptor().unwrap().unwrap();
            assert!(rustix::fs::ftruncate(&descriptor, 0).is_err(), "sealed");
            assert_eq!(Mapping::shared(descriptor.as_fd(), length, true).is_ok(), access.changes());
        }
    }

    /// Returns the length of the kernel's pages at an address of this process.
    fn kernel_page(address: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{address:x}-");
        let lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let size = lines.into_iter().find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// A machine without a free page of 1 GiB, as most are, gives shorter ones; see `with_longest_pages`.
    #[test]
    fn memory_of_a_gibibyte_has_a_page_of_that_length_where_one_is_free() {
        let free = || -> u64 {
            let file = "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages";
            std::fs::read_to_string(file).map_or(0, |text| text.trim().parse().unwrap())
        };
        let before = free();
        let memory = ShmMemory::new(1 << 30, Access::READ.with(Access::WRITE)).unwrap();
        let page = kernel_page(memory.base().as_ptr().addr());
        // Another test may have taken the last one.
        assert!(page == 1 << 30 || before == 0 || free() == 0, "{page} bytes, {before} pages were free");
        memory.mapping().word((1 << 30) - 8).store(7, Ordering::Release);
        let import = import(&memory, 1 << 30, Access::READ.with(Access::WRITE)).unwrap();
        assert_eq!(import.mapping().word((1 << 30) - 8).load(Ordering::Acquire), 7);
        assert_eq!(import.mapping().word(0).load(Ordering::Acquire), 0);
        assert_eq!(kernel_page(import.mapping().base.as_ptr().addr()), page);
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
