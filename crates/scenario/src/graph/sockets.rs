//! The words of the memory tier over sockets: a request and an answer for each operation on another node, at the cost
//! of the model of sockets.

use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::Sockets;
use dunlin_tier::message::Refusal;
use dunlin_tier::{AccessError, RecordError, Rights};
use dunlin_tier_node::{AnyGuard, AnyLmr, AnyTier, LockError, OperationError, RequestError, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type HostOf = <Sim as Fabric>::Host;
type SignalOf = <HostOf as Host>::Signal;

/// Bytes of a request or an answer without data.
const SMALL: u32 = 64;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// A region, and the node that stores it.
#[derive(Clone)]
struct Stored {
    node: usize,
    bytes: Arc<Mutex<Vec<u8>>>,
}

/// The callers at a barrier, and how often it was passed.
#[derive(Clone, Copy, Default)]
struct Meeting {
    present: u16,
    passed: u64,
}

/// All nodes.
pub(super) struct Network {
    sockets: Sockets,
    regions: Mutex<BTreeMap<Vec<u8>, Stored>>,
    barriers: Mutex<BTreeMap<Vec<u8>, Meeting>>,
    locks: Mutex<BTreeSet<Vec<u8>>>,
    changed: SignalOf,
    /// The times until which the stack of each node sends and receives.
    busy: Mutex<Vec<[Nanos; 2]>>,
}

impl Network {
    pub(super) fn new(sims: &[Sim], sockets: Sockets) -> Arc<Network> {
        Arc::new(Network {
            sockets,
            regions: Mutex::default(),
            barriers: Mutex::default(),
            locks: Mutex::default(),
            changed: sims[0].host().signal(),
            busy: Mutex::new(vec![[0; 2]; sims.len()]),
        })
    }

    /// Takes the time of a message from one node to another, processors included.
    fn message(&self, sim: &Sim, from: usize, to: usize, bytes: u32) {
        let sockets = &self.sockets;
        sim.host().work(sockets.send(bytes));
        let end = {
            let (now, mut busy) = (sim.time(), locked(&self.busy));
            let end = now.max(busy[from][0]).max(busy[to][1]) + sockets.occupies(bytes);
            (busy[from][0], busy[to][1]) = (end, end);
            end
        };
        sim.host().sleep(end + sockets.latency());
        sim.host().work(sockets.receive(bytes));
    }

    /// Takes the time of a request and its answer, unless both ends are one node.
    fn ask(&self, sim: &Sim, from: usize, to: usize, request: u32, answer: u32) {
        if from != to {
            self.message(sim, from, to, request);
            self.message(sim, to, from, answer);
        }
    }
}

/// A node.
#[derive(Clone)]
pub(super) struct SocketTier {
    network: Arc<Network>,
    sim: Sim,
    host: HostOf,
    node: usize,
    node_name: String,
}

/// A mapped region.
pub(super) struct SocketLmr {
    tier: SocketTier,
    name: Vec<u8>,
    stored: Stored,
    length: u64,
}

/// A lock that is held.
pub(super) struct SocketGuard {
    tier: SocketTier,
    name: Vec<u8>,
}

impl SocketTier {
    pub(super) fn new(network: &Arc<Network>, sim: &Sim, node: usize) -> SocketTier {
        let (network, host, sim) = (Arc::clone(network), sim.host().clone(), sim.clone());
        SocketTier { network, sim, host, node, node_name: node_name(node) }
    }

    /// The first node owns all locks and barriers.
    fn ask_owner(&self) {
        self.network.ask(&self.sim, self.node, 0, SMALL, SMALL);
    }

    fn lmr(&self, name: &[u8], stored: Stored) -> SocketLmr {
        let length = locked(&stored.bytes).len() as u64;
        SocketLmr { tier: self.clone(), name: name.to_vec(), stored, length }
    }

    fn refused(&self, error: RecordError) -> RequestError {
        RequestError::Refused { node: self.node_name.clone(), source: Refusal::Record(error) }
    }
}

impl AnyTier for SocketTier {
    type Lmr = SocketLmr;
    type Guard = SocketGuard;
    type Host = HostOf;

    fn host(&self) -> &HostOf {
        &self.host
    }

    fn node_name(&self) -> &str {
        &self.node_name
    }

    fn node_names(&self) -> Result<Vec<String>, RequestError> {
        Ok((0..locked(&self.network.busy).len()).map(node_name).collect())
    }

    fn malloc(&self, length: u64, spec: Spec) -> Result<SocketLmr, RequestError> {
        let name = spec.name().unwrap_or_default();
        let stored = Stored { node: self.node, bytes: Arc::new(Mutex::new(vec![0; length as usize])) };
        let mut regions = locked(&self.network.regions);
        if regions.contains_key(name) {
            return Err(self.refused(RecordError::Taken));
        }
        regions.insert(name.to_vec(), stored.clone());
        drop(regions);
        Ok(self.lmr(name, stored))
    }

    fn map(&self, name: &[u8], _: Rights) -> Result<SocketLmr, RequestError> {
        let stored = locked(&self.network.regions).get(name).cloned();
        let stored = stored.ok_or_else(|| self.refused(RecordError::NoSuch))?;
        self.network.ask(&self.sim, self.node, stored.node, SMALL, SMALL);
        Ok(self.lmr(name, stored))
    }

    fn lock(&self, name: &[u8]) -> Result<SocketGuard, LockError> {
        loop {
            let seen = self.network.changed.seen();
            if let Some(guard) = self.try_lock(name)? {
                return Ok(guard);
            }
            self.network.changed.wait(seen, Nanos::MAX);
        }
    }

    fn lock_within(&self, name: &[u8], _: Duration) -> Result<SocketGuard, LockError> {
        self.lock(name)
    }

    fn try_lock(&self, name: &[u8]) -> Result<Option<SocketGuard>, LockError> {
        self.ask_owner();
        let is_free = locked(&self.network.locks).insert(name.to_vec());
        Ok(is_free.then(|| SocketGuard { tier: self.clone(), name: name.to_vec() }))
    }

    fn lock_home(&self, _: &[u8]) -> Result<String, RequestError> {
        Ok(node_name(0))
    }

    fn barrier(&self, name: &[u8], members: u16) -> Result<(), LockError> {
        let (network, sim) = (&self.network, &self.sim);
        if self.node != 0 {
            network.message(sim, self.node, 0, SMALL);
        }
        let round = {
            let mut barriers = locked(&network.barriers);
            let meeting = barriers.entry(name.to_vec()).or_default();
            let round = meeting.passed;
            meeting.present += 1;
            if meeting.present >= members {
                *meeting = Meeting { present: 0, passed: round + 1 };
            }
            round
        };
        network.changed.raise();
        loop {
            let seen = network.changed.seen();
            if locked(&network.barriers).get(name).is_none_or(|meeting| meeting.passed > round) {
                break;
            }
            network.changed.wait(seen, Nanos::MAX);
        }
        if self.node != 0 {
            network.message(sim, 0, self.node, SMALL);
        }
        Ok(())
    }

    fn barrier_within(&self, name: &[u8], members: u16, _: Duration) -> Result<(), LockError> {
        self.barrier(name, members)
    }
}

impl SocketLmr {
    /// Does something to bytes of the region.
    fn with<R>(
        &self,
        offset: u64,
        length: usize,
        act: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, OperationError> {
        let mut bytes = locked(&self.stored.bytes);
        let size = bytes.len() as u64;
        let end = offset.checked_add(length as u64).filter(|end| *end <= size);
        let Some(end) = end else {
            return Err(AccessError::OutOfBounds { offset, length: length as u64, size }.into());
        };
        Ok(act(&mut bytes[offset as usize..end as usize]))
    }

    fn ask(&self, request: usize, answer: usize) {
        let bytes = |length: usize| SMALL.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
        let SocketTier { network, sim, node, .. } = &self.tier;
        network.ask(sim, *node, self.stored.node, bytes(request), bytes(answer));
    }

    fn change(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, OperationError> {
        self.ask(0, 0);
        self.with(offset, 8, |place| {
            let mut word = [0; 8];
            word.copy_from_slice(place);
            let old = u64::from_le_bytes(word);
            place.copy_from_slice(&change(old).to_le_bytes());
            old
        })
    }
}

impl AnyLmr for SocketLmr {
    fn len(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.ask(0, into.len());
        self.with(offset, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.ask(from.len(), 0);
        self.with(offset, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        self.change(offset, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        self.change(offset, |old| if old == expected { swap } else { old })
    }

    fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.ask(0, 0);
        self.with(offset, usize::try_from(length).unwrap_or(usize::MAX), |bytes| bytes.fill(value))
    }

    fn grant_anyone(&self, _: Rights) -> Result<(), RequestError> {
        self.ask(0, 0);
        Ok(())
    }

    fn free(self) -> Result<(), RequestError> {
        self.ask(0, 0);
        locked(&self.tier.network.regions).remove(&self.name);
        Ok(())
    }
}

impl AnyGuard for SocketGuard {
    fn fence(&self) -> u64 {
        0
    }

    fn is_poisoned(&self) -> bool {
        false
    }

    fn unlock(self) -> Result<(), LockError> {
        Ok(())
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.tier.ask_owner();
        locked(&self.tier.network.locks).remove(&self.name);
        self.tier.network.changed.raise();
    }
}
