//! Registered memory. The provider's code copies the bytes of peers' operations, in whichever thread makes
//! progress. It does not report when it is done with a range: an operation that has begun continues after its
//! key has ended. Pages that a peer could reach are therefore not reused until every endpoint that was open
//! when they were given up is closed.

use crate::device::Device;
use crate::handles::{MemoryRegion, Remote};
use dunlin_fabric::{Access, AnyMemory, Memory, RegisterError};
use dunlin_fabric_control::{Mapping, lock};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The longest region, in bytes.
const MAX_REGION: u64 = 1 << 40;
/// The maximum number of mappings that wait for endpoints to close. Their pages are returned to the system.
pub(crate) const MAX_RETIRED: usize = 16 * 1024;

/// The open endpoints, and the mappings that wait for some of them to close.
#[derive(Debug, Default)]
pub(crate) struct Retired(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    open: BTreeSet<u64>,
    /// Each with the number that the next endpoint had when the mapping was given up.
    mappings: Vec<(u64, Mapping)>,
}

impl Waiting {
    fn free(&mut self) {
        let oldest = self.open.first().copied().unwrap_or(u64::MAX);
        self.mappings.retain(|(before, _)| oldest < *before);
    }
}

impl Retired {
    /// Records a new open endpoint; returns its number.
    pub(crate) fn opened(&self) -> u64 {
        let mut waiting = lock(&self.0);
        let number = waiting.next;
        waiting.next += 1;
        waiting.open.insert(number);
        number
    }

    /// Records that an endpoint is closed.
    pub(crate) fn closed(&self, number: u64) {
        let mut waiting = lock(&self.0);
        waiting.open.remove(&number);
        waiting.free();
    }

    /// Keeps a mapping that peers could reach until the endpoints are closed.
    fn retire(&self, mapping: Mapping) {
        mapping.empty();
        let mut waiting = lock(&self.0);
        let before = waiting.next;
        waiting.mappings.push((before, mapping));
        waiting.free();
    }

    /// Returns whether no more memory may be granted until endpoints close.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).mappings.len() >= MAX_RETIRED
    }
}

/// Memory registered with an [`OfiFabric`](crate::OfiFabric). It is not pinned: pages are allocated when
/// touched.
#[derive(Debug)]
pub struct OfiMemory {
    /// `None` only during the drop.
    mapping: Option<Mapping>,
    base: NonNull<u8>,
    length: usize,
    access: Access,
    granted: AtomicBool,
    device: Arc<Device>,
}

// SAFETY: memory of the process, which only `Region`, `Arena` and the provider access, under their own rules.
unsafe impl Send for OfiMemory {}
// SAFETY: as above.
unsafe impl Sync for OfiMemory {}

impl OfiMemory {
    /// Allocates zeroed memory.
    pub(crate) fn new(device: &Arc<Device>, length: u64, access: Access) -> Result<Self, RegisterError> {
        let bytes = usize::try_from(length)
            .ok()
            .filter(|bytes| *bytes > 0 && length <= MAX_REGION)
            .ok_or(RegisterError::Length { length, limit: MAX_REGION })?;
        let mapping = Mapping::new(bytes).map_err(|source| RegisterError::OutOfMemory { length, source })?;
        Ok(OfiMemory::of(device, mapping, access))
    }

    /// Takes memory that another fabric made.
    pub(crate) fn adopt(device: &Arc<Device>, memory: AnyMemory) -> Result<Self, RegisterError> {
        let (length, access) = (memory.length() as u64, memory.access());
        if length == 0 || length > MAX_REGION {
            return Err(RegisterError::Length { length, limit: MAX_REGION });
        }
        Ok(OfiMemory::of(device, Mapping::adopt(memory), access))
    }

    fn of(device: &Arc<Device>, mapping: Mapping, access: Access) -> Self {
        let (base, length) = (mapping.base(), mapping.length());
        let (granted, device) = (AtomicBool::new(false), Arc::clone(device));
        OfiMemory { mapping: Some(mapping), base, length, access, granted, device }
    }

    /// Returns whether the memory was registered with this device.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.device), device)
    }

    /// Lets peers access the memory under a key; see [`MemoryRegion::new`].
    pub(crate) fn export(&self, access: Access, key: u64) -> std::io::Result<MemoryRegion> {
        self.granted.store(true, Ordering::Relaxed);
        let mapping = self.mapping.as_ref().ok_or_else(|| std::io::Error::other("it is gone"))?;
        self.device.register(mapping, access, key)
    }
}

impl Drop for OfiMemory {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take()
            && *self.granted.get_mut()
        {
            self.device.retired.retire(mapping);
        }
    }
}

// SAFETY: a mapping is page-aligned, and valid for reads and writes until the value is dropped.
unsafe impl Memory for OfiMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn length(&self) -> usize {
        self.length
    }
    fn access(&self) -> Access {
        self.access
    }
    fn adopted(&self) -> Option<&AnyMemory> {
        self.mapping.as_ref().and_then(Mapping::adopted)
    }
}

/// A grant. Its key is valid until it is dropped, and it keeps the memory until then.
#[derive(Debug)]
pub struct Grant {
    // Declared first: the key ends before the memory is dropped.
    region: MemoryRegion,
    memory: Arc<OfiMemory>,
}

impl Grant {
    pub(crate) fn new(memory: &Arc<OfiMemory>, access: Access, key: u64) -> std::io::Result<Self> {
        Ok(Grant { region: memory.export(access, key)?, memory: Arc::clone(memory) })
    }

    /// Returns the address and key by which peers access the first byte.
    pub(crate) fn remote(&self) -> Remote {
        let first = self.memory.base.as_ptr() as u64;
        // Otherwise offsets count from the region's first byte.
        let address = if self.memory.device.features.virtual_addresses { first } else { 0 };
        Remote { key: self.region.key(), address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_wait_for_the_endpoints_that_were_open() {
        let retired = Retired::default();
        let waiting = |retired: &Retired| lock(&retired.0).mappings.len();
        retired.retire(Mapping::new(4096).unwrap());
        assert_eq!(waiting(&retired), 0, "nobody can reach it");
        let (first, second) = (retired.opened(), retired.opened());
        retired.retire(Mapping::new(4096).unwrap());
        let third = retired.opened();
        retired.retire(Mapping::new(4096).unwrap());
        assert_eq!(waiting(&retired), 2);
        retired.closed(first);
        assert_eq!(waiting(&retired), 2);
        retired.closed(second);
        assert_eq!(waiting(&retired), 1, "the third endpoint was opened later");
        retired.closed(third);
        assert_eq!(waiting(&retired), 0);
    }
}
