//! Memory that outlives the process which registered it, as with a keeper's process on a real machine.

use crate::memory::SimMemory;
use crate::shared::Shared;
use dunlin_fabric::{Address, AnyMemory, KeeperError, Memory as _, MemoryKeeper, Scheme};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A keeper of registered memory, which no event of the run ends. [`Sim::kept_by`](crate::Sim::kept_by) connects a process.
/// Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct SimKeeper(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    memory: Vec<Arc<SimMemory>>,
    /// The process that has the memory.
    owner: Option<u32>,
    /// Counts the processes that have had it.
    owners: u64,
}

impl SimKeeper {
    /// Makes a keeper that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a process of the run.
    pub(crate) fn connect(&self, shared: &Shared, process: u32) -> Result<SimKept, KeeperError> {
        let mut kept = self.lock();
        if kept.owner.is_some_and(|owner| is_alive(shared, owner)) {
            let address = Address::new(Scheme::Sim, "keeper");
            return Err(address.map_or(KeeperError::Private, KeeperError::Busy));
        }
        (kept.owner, kept.owners) = (Some(process), kept.owners + 1);
        let number = kept.owners;
        drop(kept);
        Ok(SimKept { keeper: self.clone(), number })
    }
}

impl SimKeeper {
    /// Ends the keeper: it forgets all memory.
    pub fn end(&self) {
        self.lock().memory.clear();
    }
}

fn is_alive(shared: &Shared, process: u32) -> bool {
    shared.try_lock().is_none_or(|state| state.processes[process as usize].alive)
}

/// A process's connection to its keeper.
#[derive(Debug)]
pub struct SimKept {
    keeper: SimKeeper,
    /// Its number among the owners.
    number: u64,
}

impl MemoryKeeper for SimKept {
    fn kept(&mut self) -> Result<Vec<AnyMemory>, KeeperError> {
        Ok(self.keeper.lock().memory.iter().map(|memory| AnyMemory::new(Arc::clone(memory))).collect())
    }

    fn keep(&mut self, memory: &AnyMemory) -> Result<(), KeeperError> {
        let memory = memory.downcast::<SimMemory>().filter(|memory| memory.access().changes());
        self.keeper.lock().memory.push(memory.ok_or(KeeperError::Private)?);
        Ok(())
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn forget(&mut self) -> Result<(), KeeperError> {
        self.keeper.lock().memory.clear();
        Ok(())
    }
}

impl Drop for SimKept {
    fn drop(&mut self) {
        let mut kept = self.keeper.lock();
        // A killed process's value may be dropped after the next one has connected.
        if kept.owners == self.number {
            kept.owner = None;
        }
    }
}
