//! The buffers of processes: regions without a name, in extents of which all bytes belong to one process. Requests of the
//! process name places in them, and the node reads and writes there in place.

use super::registry::{Process, Registry, Usage};
use crate::error::RequestError;
use crate::lmr::Lmr;
use crate::node::Node;
use crate::spec::Spec;
use dunlin_fabric::{Fabric, RangeError};
use dunlin_tier::process::{Opened, Problem, Secret};
use dunlin_tier::{Kind, Principal};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of tenants that are processes.
const KIND: &str = "process";
/// The buffers of all processes of a principal take at most this fraction of the extents, 1 / `EXTENTS`. A process keeps an
/// extent until the process ends, however few bytes of it are in use.
const EXTENTS: u16 = 2;

/// The buffers of a process.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The user of the extents. No principal has its name. It is the same in each life of the node.
    pub(super) tenant: Principal,
    /// The tenants of all processes of the principal have names that begin so.
    family: String,
    /// By handle of the process.
    shares: Mutex<BTreeMap<u64, Share>>,
}

/// A buffer counts against the limits of its process.
#[derive(Debug)]
struct Share {
    usage: Arc<Usage>,
    bytes: u64,
}

impl Share {
    fn new(usage: &Arc<Usage>, bytes: u64) -> Share {
        usage.buffers.fetch_add(1, Ordering::Relaxed);
        usage.buffer_bytes.fetch_add(bytes, Ordering::Relaxed);
        Share { usage: Arc::clone(usage), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.usage.buffers.fetch_sub(1, Ordering::Relaxed);
        self.usage.buffer_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Buffers {
    /// Makes the buffers of the process of a principal that has a secret: none. The name of the tenant does not tell the
    /// secret.
    pub(super) fn new(principal: &str, seed: u64, secret: &Secret) -> Buffers {
        let number = |of: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            of(&mut hasher);
            hasher.finish()
        };
        let family = number(&|hasher| principal.hash(hasher));
        let own = number(&|hasher| (seed, secret).hash(hasher));
        let tenant = Principal::numbered(KIND, [family, own]);
        Buffers { tenant, family: format!("{KIND} {family:016x}"), shares: Mutex::default() }
    }

    fn shares(&self) -> MutexGuard<'_, BTreeMap<u64, Share>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle of the process is closed.
    pub(super) fn remove(&self, handle: u64) {
        drop(self.shares().remove(&handle));
    }

    /// All handles of the process are closed.
    pub(super) fn clear(&self) {
        self.shares().clear();
    }
}

impl<F: Fabric> Node<F> {
    /// Returns whether all bytes of a region lie in extents of one user.
    fn is_in_extents_of(&self, tenant: &Principal, region: &Lmr<F>) -> bool {
        let mut state = self.state();
        let Ok(operation) = state.handles.begin(region.handle, Kind::Read, 0, region.length) else {
            return false;
        };
        let pieces = operation.layout.pieces().iter();
        let is_so = pieces
            .clone()
            .all(|piece| piece.node == self.me && state.space.tenant(piece.extent) == Some(tenant));
        drop(state);
        self.end(operation);
        is_so
    }

    /// Makes the memory of a region usable as the local side of requests. The first time, an RNIC registers it, which takes
    /// about a second for some GiB: operations do not wait for that.
    fn prepare_local(&self, region: &Lmr<F>) -> Result<(), RequestError> {
        let operation = self.state().handles.begin(region.handle, Kind::Read, 0, region.length)?;
        let prepared = operation.layout.pieces().iter().try_for_each(|piece| {
            let place = self.arena.range(piece.extent, piece.offset, piece.length.into());
            match place.map(|(memory, at)| memory.range(at as u64, piece.length.into())) {
                Some(Err(RangeError::Register(source))) => Err(source.into()),
                // Operations find a place that does not exist, which no region of this node has.
                _ => Ok(()),
            }
        });
        self.end(operation);
        prepared
    }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Makes a buffer of a process.
    pub(super) fn buffer(&self, process: &Process<F, P>, length: u64) -> Result<Opened, Problem> {
        let (limits, usage) = (&self.config.limits, &process.usage);
        if length > limits.buffer_bytes {
            return Err(Problem::BufferBytes(limits.buffer_bytes));
        }
        // Counted first, so that threads of the process do not pass the limits together.
        let share = Share::new(usage, length);
        if usage.buffers.load(Ordering::Relaxed) > limits.buffers.into() {
            return Err(Problem::Buffers(limits.buffers));
        }
        if usage.buffer_bytes.load(Ordering::Relaxed) > limits.buffer_bytes {
            return Err(Problem::BufferBytes(limits.buffer_bytes));
        }
        process.check_room(limits.handles)?;
        self.check_extents(process, false)?;
        let region = process.tier.malloc(length, Spec::owned_by(process.buffers.tenant.clone()))?;
        if let Err(problem) = self.check_extents(process, true) {
            // Nobody got to know it.
            let _ = region.free();
            return Err(problem);
        }
        self.tier.node().prepare_local(&region)?;
        let region_number = self.region_number(region.id);
        let handle = self.open(process, region).map_err(|(problem, region)| {
            // Nobody got to know it.
            let _ = region.free_shared();
            problem
        })?;
        process.buffers.shares().insert(handle, share);
        if process.handles().get(handle).is_none() {
            // The process has ended meanwhile.
            process.buffers.remove(handle);
        }
        Ok(Opened { handle, length, region: region_number })
    }

    /// Checks the number of extents with buffers of a principal, before an allocation and after it. A process without an
    /// extent takes one with its first buffer.
    fn check_extents(&self, process: &Process<F, P>, has_taken: bool) -> Result<(), Problem> {
        let (state, buffers) = (self.tier.node().state(), &process.buffers);
        let most = (state.space.extents() / EXTENTS).max(1);
        let taken = state.space.extents_of(|tenant| tenant.as_str().starts_with(&buffers.family));
        let takes = !has_taken && state.space.extents_of(|tenant| *tenant == buffers.tenant) == 0;
        if taken + u16::from(takes) > most { Err(Problem::BufferExtents(most)) } else { Ok(()) }
    }

    /// Counts the buffers among the handles of a process that began in an earlier life of the node.
    pub(super) fn recover_buffers(&self, process: &Process<F, P>) {
        let regions: Vec<(u64, Arc<Lmr<F>>)> = {
            let handles = process.handles();
            handles.numbered().map(|(number, region)| (number, Arc::clone(region))).collect()
        };
        for (handle, region) in regions {
            if self.tier.node().is_in_extents_of(&process.buffers.tenant, &region) {
                process.buffers.shares().insert(handle, Share::new(&process.usage, region.length));
            }
        }
    }
}
