//! The processes that are attached, their connections and their handles.

use super::ProcessConfig;
use crate::lmr::Lmr;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, PeerIdentity};
use dunlin_rpc::ConnectionObserver;
use dunlin_tier::process::{Attached, MAX_LISTED_PROCESSES, NodeStatus, Problem, ProcessStatus, Secret};
use dunlin_tier::{LmrId, Slots};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A process. Its handles are closed when its last connection ends.
#[derive(Debug)]
pub(super) struct Process<F: Fabric> {
    /// The node, acting for the principal of the process.
    pub(super) tier: Tier<F>,
    handles: Mutex<Slots<Arc<Lmr<F>>>>,
    /// Requests that are being served.
    running: AtomicU16,
    peer: PeerIdentity,
}

/// A request that is being served counts against the limit of its process.
#[derive(Debug)]
pub(super) struct Serving<'a>(&'a AtomicU16);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<F: Fabric> Process<F> {
    pub(super) fn handles(&self) -> MutexGuard<'_, Slots<Arc<Lmr<F>>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the region of a handle of this process.
    pub(super) fn region(&self, handle: u64) -> Result<Arc<Lmr<F>>, Problem> {
        let region = self.handles().get(handle).map(Arc::clone);
        region.ok_or(Problem::Access(dunlin_tier::AccessError::NoHandle))
    }

    /// Begins to serve a request that takes a thread.
    pub(super) fn serving(&self, limit: u16) -> Result<Serving<'_>, Problem> {
        let before = self.running.fetch_add(1, Ordering::Acquire);
        let serving = Serving(&self.running);
        if before >= limit { Err(Problem::Operations(limit)) } else { Ok(serving) }
    }
}

#[derive(Debug)]
struct Session<F: Fabric> {
    peer: PeerIdentity,
    process: Option<(Secret, Arc<Process<F>>)>,
}

#[derive(Debug)]
struct State<F: Fabric> {
    sessions: HashMap<u64, Session<F>>,
    /// Each process with the number of its connections.
    processes: BTreeMap<Secret, (Arc<Process<F>>, u16)>,
    /// The number of connections by process id.
    connections: HashMap<u32, u16>,
}

/// The attached processes of a node.
#[derive(Debug)]
pub(super) struct Registry<F: Fabric> {
    pub(super) tier: Tier<F>,
    pub(super) config: ProcessConfig,
    state: RwLock<State<F>>,
    /// Hides the ids of regions, which name nodes, from processes.
    numbers: RandomState,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl<F: Fabric> Registry<F> {
    pub(super) fn new(tier: Tier<F>, config: ProcessConfig) -> Self {
        let state =
            State { sessions: HashMap::new(), processes: BTreeMap::new(), connections: HashMap::new() };
        let (answered, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let numbers = RandomState::new();
        Registry { tier, config, state: RwLock::new(state), numbers, answered, refused }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<F>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<F>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process of a connection.
    pub(super) fn process(&self, session: u64) -> Result<Arc<Process<F>>, Problem> {
        let state = self.read();
        let attached = state.sessions.get(&session).and_then(|session| session.process.as_ref());
        attached.map(|(_, process)| Arc::clone(process)).ok_or(Problem::NotAttached)
    }

    /// Joins a connection to a process: a new one without a secret.
    pub(super) fn attach(&self, session: u64, secret: Option<Secret>) -> Result<Attached, Problem> {
        let mut state = self.write();
        let State { sessions, processes, .. } = &mut *state;
        let session = sessions.get_mut(&session).ok_or(Problem::NotAttached)?;
        if session.process.is_some() {
            return Err(Problem::Malformed);
        }
        let (secret, process) = match secret {
            Some(secret) => {
                // A secret is of use to the process alone that got it.
                let found = processes.get_mut(&secret).filter(|(process, _)| process.peer == session.peer);
                let (process, connections) = found.ok_or(Problem::NotAttached)?;
                *connections += 1;
                (secret, Arc::clone(process))
            }
            None => {
                let process = Arc::new(self.new_process(&session.peer)?);
                let mut secret = Secret::default();
                secret[..8].copy_from_slice(&self.tier.draw().to_le_bytes());
                secret[8..].copy_from_slice(&self.tier.draw().to_le_bytes());
                processes.insert(secret, (Arc::clone(&process), 1));
                (secret, process)
            }
        };
        session.process = Some((secret, Arc::clone(&process)));
        Ok(Attached {
            secret,
            operations: self.config.limits.operations,
            node: self.tier.name().to_owned(),
            principal: process.tier.principal().to_owned(),
        })
    }

    fn new_process(&self, peer: &PeerIdentity) -> Result<Process<F>, Problem> {
        let user = peer.user.ok_or(Problem::Unknown)?;
        let named = self.config.users.get(&user);
        let principal = named.cloned().unwrap_or_else(|| format!("user-{user}"));
        let tier = self.tier.acting_for(&principal).map_err(|_| Problem::Unknown)?;
        let handles = Slots::new(self.config.limits.handles, self.tier.draw() as u32);
        Ok(Process { tier, handles: Mutex::new(handles), running: AtomicU16::new(0), peer: peer.clone() })
    }

    /// Returns a number for a region that is the same for all processes of this node.
    pub(super) fn region_number(&self, id: LmrId) -> u64 {
        self.numbers.hash_one(id)
    }

    /// Gives a region a handle of a process.
    pub(super) fn open(&self, process: &Process<F>, region: Lmr<F>) -> Result<u64, (Problem, Arc<Lmr<F>>)> {
        let inserted = process.handles().insert(Arc::new(region));
        inserted.map_err(|region| (Problem::Handles(self.config.limits.handles), region))
    }

    /// Describes the node.
    pub(super) fn status(&self) -> NodeStatus {
        let (free, dirty) = (self.tier.free_memory(), self.tier.dirty_memory());
        let state = self.read();
        let processes = state.processes.values().take(MAX_LISTED_PROCESSES);
        let processes = processes.map(|(process, connections)| ProcessStatus {
            process: process.peer.process.unwrap_or_default(),
            principal: process.tier.principal().to_owned(),
            handles: process.handles().len() as u32,
            connections: *connections,
        });
        NodeStatus {
            node: self.tier.name().to_owned(),
            memory: self.tier.memory(),
            free,
            dirty,
            answered: self.answered.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            nodes: self.tier.nodes().map(str::to_owned).collect(),
            processes: processes.collect(),
        }
    }
}

impl<F: Fabric> ConnectionObserver for Registry<F> {
    fn opened(&self, session: u64, peer: &PeerIdentity) -> Result<(), String> {
        let mut state = self.write();
        if let Some(process) = peer.process {
            let limit = self.config.limits.connections;
            let connections = state.connections.entry(process).or_insert(0);
            if *connections >= limit {
                return Err(format!("the process has {limit} connections to this node already"));
            }
            *connections += 1;
        }
        state.sessions.insert(session, Session { peer: peer.clone(), process: None });
        Ok(())
    }

    fn closed(&self, session: u64) {
        let mut state = self.write();
        let State { sessions, processes, connections } = &mut *state;
        let Some(Session { peer, process }) = sessions.remove(&session) else { return };
        if let Some(process) = peer.process
            && let Some(count) = connections.get_mut(&process)
        {
            *count -= 1;
            if *count == 0 {
                connections.remove(&process);
            }
        }
        let Some((secret, process)) = process else { return };
        if let Some((_, connections)) = processes.get_mut(&secret) {
            *connections -= 1;
            if *connections > 0 {
                return;
            }
            processes.remove(&secret);
        }
        drop(state);
        // A request that is still being served keeps its region until it ends, and opens no handle any more.
        let regions = process.handles().take_all();
        tracing::info!(
            target: "dunlin::tier", process = process.peer.process, principal = process.tier.principal(),
            handles = regions.len(), "a process has ended; its handles are closed"
        );
    }
}
