//! Registered memory. The provider's code moves the bytes of peers' operations, on whichever thread makes progress, and does
//! not say when it is done with a range: an operation that has begun goes on after its key has ended. So pages that a peer
//! could reach are not another's until every endpoint is closed that was open when they were given up.

use crate::device::Device;
use crate::handles::{MemoryRegion, Remote};
use dunlin_fabric::{Access, Memory, RegisterError};
use dunlin_fabric_control::{Mapping, lock};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The longest region.
const MAX_REGION: u64 = 1 << 40;
/// Mappings that may wait for endpoints to close; their pages are the system's meanwhile.
pub(crate) const MAX_RETIRED: usize = 16 * 1024;

/// Which endpoints are open, and the mappings that wait for some of them to close.
#[derive(Debug, Default)]
pub(crate) struct Retired(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    open: BTreeSet<u64>,
    /// With the number that the next endpoint had when it was given up.
    mappings: Vec<(u64, Mapping)>,
}

impl Waiting {
    fn free(&mut self) {
        let oldest = self.open.first().copied().unwrap_or(u64::MAX);
        self.mappings.retain(|(before, _)| oldest < *before);
    }
}

impl Retired {
    /// An endpoint is open from now on; its number.
    pub(crate) fn opened(&self) -> u64 {
        let mut waiting = lock(&self.0);
        let number = waiting.next;
        waiting.next += 1;
        waiting.open.insert(number);
        number
    }

    /// It is closed.
    pub(crate) fn closed(&self, number: u64) {
        let mut waiting = lock(&self.0);
        waiting.open.remove(&number);
        waiting.free();
    }

    /// Keeps a mapping that peers could reach.
    fn retire(&self, mapping: Mapping) {
        mapping.empty();
        let mut waiting = lock(&self.0);
        let before = waiting.next;
        waiting.mappings.push((before, mapping));
        waiting.free();
    }

    /// Whether no more memory is to be granted until endpoints close.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).mappings.len() >= MAX_RETIRED
    }
}

/// Memory registered with an [`OfiFabric`](crate::OfiFabric). Nothing is pinned: pages come when they are touched.
#[derive(Debug)]
pub struct OfiMemory {
    /// `None` only while it is dropped.
    mapping: Option<Mapping>,
    base: NonNull<u8>,
    length: usize,
    access: Access,
    granted: AtomicBool,
    device: Arc<Device>,
}

// SAFETY: memory of the process, reached only through `Region`, `Arena`, the provider, and their rules.
unsafe impl Send for OfiMemory {}
// SAFETY: as above.
unsafe impl Sync for OfiMemory {}

impl OfiMemory {
    /// Zeroed memory.
    pub(crate) fn new(device: &Arc<Device>, length: u64, access: Access) -> Result<Self, RegisterError> {
        let bytes = usize::try_from(length)
            .ok()
            .filter(|bytes| *bytes > 0 && length <= MAX_REGION)
            .ok_or(RegisterError::Length { length, limit: MAX_REGION })?;
        let mapping = Mapping::new(bytes).map_err(|source| RegisterError::OutOfMemory { length, source })?;
        let (base, length) = (mapping.base(), mapping.length());
        let (granted, device) = (AtomicBool::new(false), Arc::clone(device));
        Ok(OfiMemory { mapping: Some(mapping), base, length, access, granted, device })
    }

    /// Whether it was registered with this device.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.device), device)
    }

    /// Lets peers use it under a key; see [`MemoryRegion::new`].
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
}

/// A grant: the key is good until it is dropped, and the memory stays until then.
#[derive(Debug)]
pub struct Grant {
    // The key ends before the memory does.
    region: MemoryRegion,
    memory: Arc<OfiMemory>,
}

impl Grant {
    pub(crate) fn new(memory: &Arc<OfiMemory>, access: Access, key: u64) -> std::io::Result<Self> {
        Ok(Grant { region: memory.export(access, key)?, memory: Arc::clone(memory) })
    }

    /// What peers call its first byte.
    pub(crate) fn remote(&self) -> Remote {
        let first = self.memory.base.as_ptr() as u64;
        // Else offsets count from the region's first byte.
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
