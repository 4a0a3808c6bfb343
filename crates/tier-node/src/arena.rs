//! The arena of a node: its memory for regions, in extents.
//!
//! Each extent is one registration, and each path of another node gets one grant for each. On an RNIC the whole arena is
//! one extent, since an RNIC slows down with the number of registrations (LITE section 2.4). On shared memory an extent
//! is a file of its own, so that a process can be given one without the others. A [`MemorySource`] makes such files for an
//! RNIC, which registers them.

use crate::config::TierConfig;
use crate::error::JoinError;
use crate::pages;
use dunlin_fabric::{
    Access, AnyMemory, Capabilities, Fabric, Host, Memory as _, Region, RegisterError, Task,
};
use dunlin_tier::process::Pages;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most extents of a node.
pub(crate) const MAX_EXTENTS: usize = 256;
/// The extents that a node has if the settings do not say, unless they would be shorter than [`SHORTEST`].
const USUAL_EXTENTS: u64 = 32;
/// The shortest extent that is chosen, in bytes: a huge page.
const SHORTEST: u64 = 2 << 20;
/// The bytes that a thread touches before it takes the next part: a huge page of 1 GiB is one fault anyway.
const PART: u64 = 16 << 20;
const PAGE: usize = 4096;

/// The access to a node's arena that other nodes get.
pub(crate) fn access(capabilities: &Capabilities) -> Access {
    let access = Access::READ.with(Access::WRITE);
    if capabilities.atomics.exist() { access.with(Access::ATOMIC) } else { access }
}

/// Hears how many bytes of a node's memory have pages, and how many there are.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl Progress {
    /// Wraps a function. Several threads call it, in any order, with numbers that may repeat.
    pub fn new(hear: impl Fn(u64, u64) + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(hear))
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// Makes the memory of a node by a fabric other than the one over which other nodes reach it. Memory of `fabric-shm` can be
/// kept by a keeper and mapped by processes, whichever NIC has registered it as well.
#[derive(Clone)]
pub struct MemorySource(Arc<Make>);

type Make = dyn Fn(u64, Access) -> Result<AnyMemory, RegisterError> + Send + Sync;

impl MemorySource {
    /// Takes memory from `fabric`.
    pub fn of<P: Fabric>(fabric: &P) -> MemorySource {
        let fabric = fabric.clone();
        MemorySource(Arc::new(move |length, access| {
            Ok(AnyMemory::new(Arc::new(fabric.register(length, access)?)))
        }))
    }
}

impl std::fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemorySource")
    }
}

/// Makes memory by the source of the settings, else by the fabric itself.
pub(crate) fn make<F: Fabric>(
    fabric: &F,
    config: &TierConfig,
    length: u64,
    access: Access,
) -> Result<AnyMemory, RegisterError> {
    match &config.memory_source {
        Some(MemorySource(make)) => make(length, access),
        None => Ok(AnyMemory::new(Arc::new(fabric.register(length, access)?))),
    }
}

/// Registers memory with a fabric, unless it has made it.
pub(crate) fn registered<F: Fabric>(
    fabric: &F,
    memory: AnyMemory,
) -> Result<Region<F::Memory>, RegisterError> {
    match memory.downcast::<F::Memory>() {
        Some(own) => Ok(Region::from(own)),
        None => fabric.adopt(memory).map(Region::new),
    }
}

#[derive(Debug)]
pub(crate) struct Arena<F: Fabric> {
    extents: Vec<Region<F::Memory>>,
}

impl<F: Fabric> Arena<F> {
    /// Registers the memory of a node, and gives all of it pages if the settings say so.
    pub(crate) fn new(fabric: &F, config: &TierConfig) -> Result<Self, JoinError> {
        let capabilities = fabric.capabilities();
        let longest = extent_length(config, capabilities.initiator_copies);
        let mut extents = Vec::new();
        let mut left = config.memory;
        while left > 0 {
            let length = left.min(longest);
            let memory = make(fabric, config, length, access(capabilities))?;
            extents.push(registered(fabric, memory)?);
            left -= length;
        }
        let arena = Arena { extents };
        if config.prefault {
            arena.check_available()?;
            arena.touch(fabric.host(), config)?;
        }
        Ok(arena)
    }

    /// Takes over the memory of an earlier life, which has its pages.
    pub(crate) fn adopt(extents: Vec<Region<F::Memory>>) -> Self {
        Arena { extents }
    }

    /// Refuses memory that the machine does not have: the kernel would end a process of its choice.
    fn check_available(&self) -> Result<(), JoinError> {
        match (self.pages(), pages::available()) {
            (Some(Pages { small: wanted, .. }), Some(available)) if wanted > available => {
                Err(JoinError::Memory { wanted, available })
            }
            _ => Ok(()),
        }
    }

    /// Touches every page, by one thread for each core. Nobody else has the memory yet.
    fn touch<H: Host>(&self, host: &H, config: &TierConfig) -> Result<(), JoinError> {
        let parts: Vec<(Region<F::Memory>, u64)> = self
            .extents
            .iter()
            .flat_map(|extent| {
                let starts = (0..extent.length() as u64).step_by(PART as usize);
                starts.map(|start| (extent.clone(), start))
            })
            .collect();
        let (next, parts) = (Arc::new(AtomicU64::new(0)), Arc::new(parts));
        let touched = Arc::new(AtomicU64::new(0));
        let (all, progress) = (config.memory, config.progress.clone());
        let work = move || {
            while let Some((extent, start)) = parts.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                let end = extent.length().min((*start + PART) as usize);
                (*start as usize..end)
                    .step_by(PAGE)
                    .filter(|at| at + 8 <= end)
                    .for_each(|at| extent.store(at, 0));
                let length = end as u64 - start;
                let before = touched.fetch_add(length, Ordering::Relaxed);
                if let Some(Progress(hear)) = &progress {
                    hear(before + length, all);
                }
            }
        };
        let others = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let tasks: Vec<Task> = (0..others)
            .map(|_| host.spawn("tier-pages", Box::new(work.clone())))
            .collect::<Result<_, _>>()?;
        work();
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Returns an extent, if it exists.
    #[inline]
    pub(crate) fn extent(&self, number: u16) -> Option<&Region<F::Memory>> {
        self.extents.get(usize::from(number))
    }

    pub(crate) fn extents(&self) -> &[Region<F::Memory>] {
        &self.extents
    }

    /// Returns the extent that has a range of bytes.
    #[inline]
    pub(crate) fn range(&self, extent: u16, offset: u64, length: u64) -> Option<&Region<F::Memory>> {
        self.extent(extent).filter(|extent| {
            let whole = extent.length() as u64;
            offset <= whole && length <= whole - offset
        })
    }

    /// Returns the memory of an extent as its maker knows it: the file that a keeper holds and that processes map, where
    /// the node has one.
    pub(crate) fn file(extent: &Region<F::Memory>) -> AnyMemory {
        let made = extent.memory().adopted().cloned();
        made.unwrap_or_else(|| AnyMemory::new(Arc::clone(extent.memory())))
    }

    /// Returns whether other processes can map the memory: shared memory, registered by an RNIC or not.
    pub(crate) fn is_shared(&self, fabric: &F) -> bool {
        let first = self.extents.first();
        fabric.capabilities().initiator_copies
            || first.is_some_and(|extent| extent.memory().adopted().is_some())
    }

    /// Returns the bytes of all extents.
    pub(crate) fn length(&self) -> u64 {
        self.extents.iter().map(|extent| extent.length() as u64).sum()
    }

    /// Returns the pages that the kernel has given to the extents.
    pub(crate) fn pages(&self) -> Option<Pages> {
        let range = |extent: &Region<F::Memory>| {
            let base = extent.memory().base().addr().get();
            base..base + extent.length()
        };
        pages::of(&self.extents.iter().map(range).collect::<Vec<_>>())
    }
}

/// Returns the length of all extents but the last. `are_files`: extents are files of their own.
fn extent_length(config: &TierConfig, are_files: bool) -> u64 {
    match config.extent {
        Some(extent) => extent,
        None if are_files => {
            let least = u64::from(config.piece).max(SHORTEST);
            config.memory.div_ceil(USUAL_EXTENTS).max(least).next_power_of_two()
        }
        None => config.memory,
    }
}

/// Checks the setting of extents.
pub(crate) fn check(config: &TierConfig) -> Result<(), JoinError> {
    let Some(extent) = config.extent else { return Ok(()) };
    let out = |must| Err(JoinError::Setting { what: "extent", value: extent, must });
    if !extent.is_power_of_two() || extent < u64::from(config.piece) {
        return out("a power of two and at least one piece");
    }
    if config.memory.div_ceil(extent) > MAX_EXTENTS as u64 {
        return out("so long that the memory has at most 256 extents");
    }
    Ok(())
}
