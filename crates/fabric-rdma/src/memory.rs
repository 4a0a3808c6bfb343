//! Registered memory: pages of this process that the NIC has pinned.

use crate::device::Device;
use crate::sys;
use dunlin_fabric::{Access, AnyMemory, Memory, RegisterError};
use dunlin_fabric_control::Mapping;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The length from which all cores give memory its pages before the NIC pins it, in bytes.
const POPULATE_FROM: usize = 64 << 20;
/// The longest region, in bytes.
const MAX_REGION: u64 = 1 << 40;

/// A memory region of verbs: the NIC's access to a mapping, with two keys.
#[derive(Debug)]
pub struct Registration {
    raw: NonNull<sys::MemoryRegion>,
    local_key: u32,
    remote_key: u32,
    access: Access,
    mapping: Arc<Mapping>,
    device: Arc<Device>,
}

// SAFETY: the pointer is only used in the drop, and libibverbs may be called from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above; the other fields are numbers.
unsafe impl Sync for Registration {}

impl Registration {
    fn new(device: &Arc<Device>, mapping: &Arc<Mapping>, access: Access) -> Result<Self, RegisterError> {
        let mut flags = sys::ACCESS_LOCAL_WRITE;
        for (right, flag) in [
            (Access::READ, sys::ACCESS_REMOTE_READ),
            (Access::WRITE, sys::ACCESS_REMOTE_WRITE),
            (Access::ATOMIC, sys::ACCESS_REMOTE_ATOMIC),
        ] {
            if access.contains(right) {
                flags |= flag;
            }
        }
        // SAFETY: the protection domain belongs to an open device. The range is mapped, and stays so until
        // the region is deregistered, since this value keeps the mapping. The length is exact, so a peer gets
        // no other byte.
        let raw = unsafe {
            (device.library.reg_mr)(
                device.domain.as_ptr(),
                mapping.base().as_ptr().cast(),
                mapping.length(),
                flags,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            return Err(refused(mapping.length() as u64, io::Error::last_os_error()));
        };
        // SAFETY: just made.
        let (local_key, remote_key) = unsafe { (raw.as_ref().local_key, raw.as_ref().remote_key) };
        let (mapping, device) = (Arc::clone(mapping), Arc::clone(device));
        Ok(Registration { raw, local_key, remote_key, access, mapping, device })
    }

    /// Returns the key for a peer's work requests.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Returns the access that peers have.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns the address at a peer's offset 0.
    pub(crate) fn address(&self) -> u64 {
        self.mapping.base().as_ptr() as u64
    }

    pub(crate) fn length(&self) -> u64 {
        self.mapping.length() as u64
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made in `new`, deregistered only here.
        let code = unsafe { (self.device.library.dereg_mr)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::error!(error = %crate::device::errno(code), "memory cannot be deregistered");
        }
    }
}

/// Classifies a refusal. The kernel returns ENOMEM both if the pages would exceed the limit of locked memory
/// and if no memory is left.
fn refused(length: u64, source: io::Error) -> RegisterError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(limit) if source.raw_os_error() == Some(libc::ENOMEM) => {
            RegisterError::LockedMemory { length, limit }
        }
        _ => RegisterError::OutOfMemory { length, source },
    }
}

#[derive(Debug)]
struct Registrations {
    /// Made when the memory was registered, and not granted yet.
    fresh: Option<Arc<Registration>>,
    /// Those that grants of links hold.
    granted: Vec<Weak<Registration>>,
}

/// Memory registered with an [`RdmaFabric`](crate::RdmaFabric).
///
/// The NIC pins its pages, so all of them are allocated at once and count against the limit of locked memory
/// (`ulimit -l`). Each kind of access that is granted has its own memory region, which all grants of that
/// kind share. When the last of them is revoked, the region is deregistered. This side's own requests have one more,
/// which is pinned and counted as well. A peer that guesses the keys of
/// another peer's grants can use them, as on every device with one protection domain.
#[derive(Debug)]
pub struct RdmaMemory {
    mapping: Arc<Mapping>,
    access: Access,
    /// For this side's own requests. Memory that peers can change has it from its first
    /// [range](dunlin_fabric::RegionRange) on: such memory is otherwise only granted, and the keys of grants end with
    /// them.
    local: OnceLock<Registration>,
    registrations: Mutex<Registrations>,
    device: Arc<Device>,
}

impl RdmaMemory {
    /// Registers zeroed memory.
    pub(crate) fn new(device: &Arc<Device>, length: u64, access: Access) -> Result<Self, RegisterError> {
        let limit = MAX_REGION.min(device.attributes.max_memory_region);
        let bytes = usize::try_from(length)
            .ok()
            .filter(|bytes| *bytes > 0 && length <= limit)
            .ok_or(RegisterError::Length { length, limit })?;
        let mapping = Mapping::new(bytes).map_err(|source| RegisterError::OutOfMemory { length, source })?;
        RdmaMemory::of(device, mapping, access)
    }

    /// Registers memory that another fabric made.
    pub(crate) fn adopt(device: &Arc<Device>, memory: AnyMemory) -> Result<Self, RegisterError> {
        let (length, access) = (memory.length() as u64, memory.access());
        let limit = MAX_REGION.min(device.attributes.max_memory_region);
        if length == 0 || length > limit {
            return Err(RegisterError::Length { length, limit });
        }
        RdmaMemory::of(device, Mapping::adopt(memory), access)
    }

    fn of(device: &Arc<Device>, mapping: Mapping, access: Access) -> Result<Self, RegisterError> {
        if mapping.length() >= POPULATE_FROM {
            mapping.populate();
        }
        let mapping = Arc::new(mapping);
        let (local, fresh) = if access.changes() {
            (OnceLock::new(), Some(Arc::new(Registration::new(device, &mapping, access)?)))
        } else {
            (OnceLock::from(Registration::new(device, &mapping, Access::LOCAL)?), None)
        };
        let registrations = Mutex::new(Registrations { fresh, granted: Vec::new() });
        Ok(RdmaMemory { mapping, access, local, registrations, device: Arc::clone(device) })
    }

    /// Returns the key for this side's own work requests.
    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.local.get().map_or(0, |registration| registration.local_key)
    }

    /// Returns whether the memory was registered with this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Returns the registration for a grant of that access, which the memory's access must contain.
    pub(crate) fn registration(&self, access: Access) -> Result<Arc<Registration>, RegisterError> {
        let mut known = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        known.granted.retain(|registration| registration.strong_count() > 0);
        let found = known.granted.iter().filter_map(Weak::upgrade).find(|r| r.access() == access);
        if let Some(found) = found {
            return Ok(found);
        }
        let registration = match known.fresh.take_if(|fresh| fresh.access() == access) {
            Some(fresh) => fresh,
            None => Arc::new(Registration::new(&self.device, &self.mapping, access)?),
        };
        known.granted.push(Arc::downgrade(&registration));
        Ok(registration)
    }
}

// SAFETY: a mapping is page-aligned, and valid for reads and writes until the value is dropped.
unsafe impl Memory for RdmaMemory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }
    fn length(&self) -> usize {
        self.mapping.length()
    }
    fn access(&self) -> Access {
        self.access
    }
    fn prepare_local(&self) -> Result<(), RegisterError> {
        if self.local.get().is_some() {
            return Ok(());
        }
        // With the lock, so that threads do not pin the pages twice.
        let _known = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        if self.local.get().is_none() {
            let local = Registration::new(&self.device, &self.mapping, Access::LOCAL)?;
            self.local.get_or_init(|| local);
        }
        Ok(())
    }
    fn adopted(&self) -> Option<&AnyMemory> {
        self.mapping.adopted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_is_told_with_the_limit() {
        let error = refused(4096, io::Error::from_raw_os_error(libc::ENOMEM));
        let limited = rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_some();
        assert_eq!(matches!(error, RegisterError::LockedMemory { length: 4096, .. }), limited, "{error}");
        let error = refused(4096, io::Error::from_raw_os_error(libc::EINVAL));
        assert!(matches!(error, RegisterError::OutOfMemory { .. }));
    }
}
