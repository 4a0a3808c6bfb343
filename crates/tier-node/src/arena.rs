//! The arena of a node: its memory for regions, in extents.
//!
//! On shared memory an extent is a file of its own, so that a process can be given one without the others. It is one
//! registration, and each path of another node gets a grant for it. An RNIC slows down with the number of registrations
//! (LITE section 2.4): there the whole arena is one registration and one grant. It is one extent, or the files of a
//! [`MemorySource`], whose addresses follow each other.

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

type Make = dyn Fn(&[u64], Access) -> Result<Vec<AnyMemory>, RegisterError> + Send + Sync;

impl MemorySource {
    /// Takes memory from `fabric`.
    pub fn of<P: Fabric>(fabric: &P) -> MemorySource {
        let fabric = fabric.clone();
        MemorySource(Arc::new(move |lengths, access| made_by(&fabric, lengths, access)))
    }
}

impl std::fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemorySource")
    }
}

fn made_by<F: Fabric>(fabric: &F, lengths: &[u64], access: Access) -> Result<Vec<AnyMemory>, RegisterError> {
    let parts = fabric.register_adjacent(lengths, access)?;
    Ok(parts.into_iter().map(|part| AnyMemory::new(Arc::new(part))).collect())
}

/// Makes parts of memory by the source of the settings, else by the fabric itself.
pub(crate) fn make<F: Fabric>(
    fabric: &F,
    config: &TierConfig,
    lengths: &[u64],
    access: Access,
) -> Result<Vec<AnyMemory>, RegisterError> {
    match &config.memory_source {
        Some(MemorySource(make)) => make(lengths, access),
        None => made_by(fabric, lengths, access),
    }
}

/// A part of the memory that belongs to one user, or to all.
#[derive(Debug)]
struct Extent<F: Fabric> {
    /// The memory as its maker knows it.
    file: AnyMemory,
    /// The registration that has it, and its place there in bytes.
    registration: Region<F::Memory>,
    start: u64,
}

impl<F: Fabric> Extent<F> {
    fn length(&self) -> u64 {
        self.file.length() as u64
    }
}

/// The place of bytes of a node: a registration, and the offset in it.
pub(crate) type Place<'a, M> = (&'a Region<M>, usize);

#[derive(Debug)]
pub(crate) struct Arena<F: Fabric> {
    extents: Vec<Extent<F>>,
}

impl<F: Fabric> Arena<F> {
    /// Registers the memory of a node, and gives all of it pages if the settings say so.
    pub(crate) fn new(fabric: &F, config: &TierConfig) -> Result<Self, JoinError> {
        let capabilities = fabric.capabilities();
        let are_files = capabilities.initiator_copies || config.memory_source.is_some();
        let longest = extent_length(config, are_files);
        let lengths: Vec<u64> =
            (0..config.memory).step_by(longest as usize).map(|at| longest.min(config.memory - at)).collect();
        let arena = Arena::of(fabric, make(fabric, config, &lengths, access(capabilities))?)?;
        if config.prefault {
            arena.check_available()?;
            arena.touch(fabric.host(), config)?;
        }
        Ok(arena)
    }

    /// Takes over memory, that of an earlier life with its pages: registers what the fabric has not made.
    pub(crate) fn of(fabric: &F, files: Vec<AnyMemory>) -> Result<Self, RegisterError> {
        let is_own = |file: &AnyMemory| file.downcast::<F::Memory>().is_some();
        let whole = if files.iter().any(is_own) { None } else { AnyMemory::joined(&files) };
        if let Some(whole) = whole {
            let whole = Region::new(fabric.adopt(whole)?);
            let mut start = 0;
            let extent = |file: AnyMemory| {
                let extent = Extent { registration: whole.clone(), start, file };
                start += extent.length();
                extent
            };
            return Ok(Arena { extents: files.into_iter().map(extent).collect() });
        }
        let extent = |file: AnyMemory| {
            let registration = match file.downcast::<F::Memory>() {
                Some(own) => Region::from(own),
                None => Region::new(fabric.adopt(file.clone())?),
            };
            Ok(Extent { registration, start: 0, file })
        };
        Ok(Arena { extents: files.into_iter().map(extent).collect::<Result<_, _>>()? })
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
        let parts: Vec<(Region<AnyMemory>, u64)> = self
            .extents
            .iter()
            .flat_map(|extent| {
                let starts = (0..extent.length()).step_by(PART as usize);
                starts.map(|start| (Region::new(extent.file.clone()), start))
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

    /// Returns the memory of all extents as its maker knows it: the files that a keeper holds and that processes map,
    /// where the node has such.
    pub(crate) fn files(&self) -> impl ExactSizeIterator<Item = &AnyMemory> {
        self.extents.iter().map(|extent| &extent.file)
    }

    /// Returns all extents in order, each with its registration, its start in that, and its length.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (&Region<F::Memory>, u64, u64)> {
        self.extents.iter().map(|extent| (&extent.registration, extent.start, extent.length()))
    }

    /// Returns the number of registrations.
    pub(crate) fn registrations(&self) -> usize {
        self.extents.iter().filter(|extent| extent.start == 0).count()
    }

    /// Returns the place of a range of bytes, if the extent has it.
    #[inline]
    pub(crate) fn range(&self, extent: u16, offset: u64, length: u64) -> Option<Place<'_, F::Memory>> {
        let extent = self.extents.get(usize::from(extent))?;
        let whole = extent.length();
        let exists = offset <= whole && length <= whole - offset;
        exists.then(|| (&extent.registration, (extent.start + offset) as usize))
    }

    /// Returns whether other processes can map the memory: shared memory, registered by an RNIC or not.
    pub(crate) fn is_shared(&self, fabric: &F) -> bool {
        let is_own = |extent: &Extent<F>| extent.file.downcast::<F::Memory>().is_some();
        fabric.capabilities().initiator_copies || !self.extents.first().is_some_and(is_own)
    }

    /// Returns the bytes of all extents.
    pub(crate) fn length(&self) -> u64 {
        self.extents.iter().map(Extent::length).sum()
    }

    /// Returns the pages that the kernel has given to the extents.
    pub(crate) fn pages(&self) -> Option<Pages> {
        let range = |extent: &Extent<F>| {
            let base = extent.file.base().addr().get();
            base..base + extent.file.length()
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
