//! The processes that are attached, their connections and their handles.

use super::ProcessConfig;
use super::buffers::Buffers;
use super::direct::{Directs, Given};
use super::locks::{LockTable, end_locks};
use super::service::Registered;
use crate::forward::Board;
use crate::kept::{KeptNumber, KeptProcess, PROCESS_HANDLE};
use crate::lives::{self, Life};
use crate::lmr::Lmr;
use crate::path_count::PathCount;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, PeerIdentity};
use dunlin_rpc::{ConnectionObserver, NotAdmitted, Token};
use dunlin_tier::process::{
    Attached, MAX_LISTED_PROCESSES, MemberStatus, NodeStatus, Problem, ProcessStatus, Ran, Secret,
};
use dunlin_tier::qos::Policy;
use dunlin_tier::{LmrId, Member, Principal, Priority, Slots};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The use that a process of the host makes of the node, by all its attachments.
#[derive(Debug, Default)]
pub(super) struct Usage {
    connections: AtomicU16,
    handles: AtomicU32,
    /// Requests that are being served.
    running: AtomicU16,
    /// Calls to services that are under way.
    calls: AtomicU32,
    /// Locks and barriers that it has or waits for.
    locks: AtomicU32,
    pub(super) buffers: AtomicU32,
    pub(super) buffer_bytes: AtomicU64,
}

/// A call to a service that is under way counts against the limit of its process.
#[derive(Debug)]
pub(super) struct Calling(Arc<Usage>);

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}

/// A lock or barrier that a process has or waits for counts against the limit of the process.
#[derive(Debug)]
pub(super) struct Locking(Arc<Usage>);

impl Drop for Locking {
    fn drop(&mut self) {
        self.0.locks.fetch_sub(1, Ordering::Release);
    }
}

/// Counters of the requests of an attachment.
#[derive(Debug, Default)]
struct Demand {
    operations: AtomicU64,
    bytes: AtomicU64,
    calls: AtomicU64,
}

/// An attachment of a process. Its handles are closed when its last connection ends.
#[derive(Debug)]
pub(super) struct Process<F: Fabric, P: Fabric> {
    pub(super) secret: Secret,
    /// Tells attachments apart, in the order in which they began.
    number: u64,
    demand: Demand,
    /// The priority that it said when it attached is low.
    is_low: AtomicBool,
    /// The node, acting for the principal of the process.
    pub(super) tier: Tier<F>,
    handles: Mutex<Slots<Arc<Lmr<F>>>>,
    /// Registered functions.
    pub(super) services: Mutex<Slots<Registered<F, P>>>,
    locks: Mutex<LockTable<F, P>>,
    pub(super) usage: Arc<Usage>,
    pub(super) directs: Directs<F, P>,
    pub(super) buffers: Buffers,
    pub(super) peer: PeerIdentity,
    /// Its life, if the kernel shows it.
    pub(super) life: Option<Life>,
}

/// A request of low priority that is in the pool.
#[derive(Debug)]
pub(super) struct InBackground<'a>(&'a AtomicU16);

impl Drop for InBackground<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A request that is being served counts against the limit of its process.
#[derive(Debug)]
pub(super) struct Serving(Arc<Usage>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

impl<F: Fabric, P: Fabric> Process<F, P> {
    pub(super) fn services(&self) -> MutexGuard<'_, Slots<Registered<F, P>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, LockTable<F, P>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the priority that the process says, if it says one.
    fn set_priority(&self, priority: Option<Priority>) -> Result<(), Problem> {
        if let Some(priority) = priority {
            self.tier.with_priority(priority)?;
            self.is_low.store(priority == Priority::Low, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts a request about memory that has begun.
    pub(super) fn count(&self, bytes: u64) {
        self.demand.operations.fetch_add(1, Ordering::Relaxed);
        self.demand.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn status(&self, connections: u16) -> ProcessStatus {
        let Demand { operations, bytes, calls } = &self.demand;
        let [operations, bytes, calls] =
            [operations, bytes, calls].map(|count| count.load(Ordering::Relaxed));
        let (services, queued) = {
            let services = self.services();
            (services.len() as u16, services.values().map(Registered::queued).sum())
        };
        let calling = self.usage.calls.load(Ordering::Relaxed);
        ProcessStatus {
            number: self.number,
            process: self.peer.process.unwrap_or_default(),
            principal: self.tier.principal().to_owned(),
            priority: if self.is_low.load(Ordering::Relaxed) { Priority::Low } else { Priority::High },
            handles: self.handles().len() as u32,
            connections,
            direct: self.directs.len() as u32,
            operations,
            bytes,
            calls,
            under_way: calling.saturating_add(self.usage.running.load(Ordering::Relaxed).into()),
            queued,
            services,
            locks: self.usage.locks.load(Ordering::Relaxed),
        }
    }

    /// Begins to wait for a lock or barrier; `None` if the process has or waits for as many as the limit says.
    pub(super) fn locking(&self, limit: u32) -> Option<Locking> {
        let before = self.usage.locks.fetch_add(1, Ordering::Acquire);
        let locking = Locking(Arc::clone(&self.usage));
        (before < limit).then_some(locking)
    }

    pub(super) fn handles(&self) -> MutexGuard<'_, Slots<Arc<Lmr<F>>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the region of a handle of this process.
    pub(super) fn region(&self, handle: u64) -> Result<Arc<Lmr<F>>, Problem> {
        let region = self.handles().get(handle).map(Arc::clone);
        region.ok_or(Problem::Access(dunlin_tier::AccessError::NoHandle))
    }

    /// Closes a handle; returns its region.
    pub(super) fn close(&self, handle: u64) -> Option<Arc<Lmr<F>>> {
        let region = self.handles().remove(handle)?;
        self.buffers.remove(handle);
        self.tier.node().state().remove(&KeptNumber::key(PROCESS_HANDLE, &self.secret, handle));
        self.usage.handles.fetch_sub(1, Ordering::Relaxed);
        Some(region)
    }

    /// Checks that the process can have another handle.
    pub(super) fn check_room(&self, limit: u32) -> Result<(), Problem> {
        let has = self.usage.handles.load(Ordering::Relaxed);
        if has >= limit { Err(Problem::Handles(limit)) } else { Ok(()) }
    }

    /// Begins a call to a service; `None` if as many are under way as the limit says.
    pub(super) fn calling(&self, limit: u32) -> Option<Calling> {
        self.demand.calls.fetch_add(1, Ordering::Relaxed);
        let before = self.usage.calls.fetch_add(1, Ordering::Acquire);
        let calling = Calling(Arc::clone(&self.usage));
        (before < limit).then_some(calling)
    }

    /// Begins to serve a request that may take a thread or a path.
    pub(super) fn serving(&self, limit: u16) -> Result<Serving, Problem> {
        let before = self.usage.running.fetch_add(1, Ordering::Acquire);
        let serving = Serving(Arc::clone(&self.usage));
        if before >= limit { Err(Problem::Operations(limit)) } else { Ok(serving) }
    }
}

#[derive(Debug)]
struct Session<F: Fabric, P: Fabric> {
    peer: PeerIdentity,
    /// The principal that its token names.
    named: Option<Principal>,
    usage: Arc<Usage>,
    process: Option<(Secret, Arc<Process<F, P>>)>,
}

#[derive(Debug)]
struct State<F: Fabric, P: Fabric> {
    sessions: HashMap<u64, Session<F, P>>,
    /// Each process with the number of its connections.
    processes: BTreeMap<Secret, (Arc<Process<F, P>>, u16)>,
    /// By user and process id, while there are connections.
    usage: BTreeMap<(Option<u32>, Option<u32>), Arc<Usage>>,
}

/// The places where operations on bytes ran.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) at_once: AtomicU64,
    pub(super) later: AtomicU64,
    pub(super) pool: AtomicU64,
}

impl Counters {
    pub(super) fn ran(&self) -> Ran {
        let [at_once, later, pool] =
            [&self.at_once, &self.later, &self.pool].map(|count| count.load(Ordering::Relaxed));
        Ran { at_once, later, pool }
    }
}

/// The attached processes of a node.
#[derive(Debug)]
pub(super) struct Registry<F: Fabric, P: Fabric> {
    pub(super) tier: Tier<F>,
    pub(super) config: ProcessConfig,
    /// Calls to servers of this host.
    pub(super) board: Arc<Board<P>>,
    state: RwLock<State<F, P>>,
    /// The number of attachments so far.
    attached: AtomicU64,
    /// Requests of low priority that are in the pool.
    background: AtomicU16,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) counters: Arc<Counters>,
    /// The extents that processes were given.
    pub(super) given: Given,
    /// The node is to leave.
    pub(super) leaves: Arc<AtomicBool>,
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    pub(super) fn new(fabric: &P, tier: Tier<F>, config: ProcessConfig) -> Self {
        let state = State { sessions: HashMap::new(), processes: BTreeMap::new(), usage: BTreeMap::new() };
        let (answered, refused, attached) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let board = Arc::new(Board::new(fabric));
        let (state, counters) = (RwLock::new(state), Arc::default());
        let leaves = Arc::default();
        let given = Given::default();
        Registry {
            tier,
            config,
            board,
            state,
            attached,
            background: AtomicU16::new(0),
            answered,
            refused,
            counters,
            given,
            leaves,
        }
    }

    /// Begins to serve a request in the pool. Those of low priority have half of its threads at most, so that high priority
    /// does not wait behind them for a thread; in order of arrival, priorities have no effect. The library asks again after
    /// a refusal.
    pub(super) fn in_pool(&self, priority: Option<Priority>) -> Result<Option<InBackground<'_>>, Problem> {
        if priority != Some(Priority::Low) || self.tier.node().config.qos.policy == Policy::Arrival {
            return Ok(None);
        }
        let limit = (self.config.threads / 2).max(1);
        let before = self.background.fetch_add(1, Ordering::Acquire);
        let serving = InBackground(&self.background);
        if before >= limit { Err(Problem::Operations(limit)) } else { Ok(Some(serving)) }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<F, P>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<F, P>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process of a connection.
    pub(super) fn process(&self, session: u64) -> Result<Arc<Process<F, P>>, Problem> {
        let state = self.read();
        let attached = state.sessions.get(&session).and_then(|session| session.process.as_ref());
        attached.map(|(_, process)| Arc::clone(process)).ok_or(Problem::NotAttached)
    }

    /// Returns the process that has a secret.
    pub(super) fn process_of(&self, secret: Secret, peer: &PeerIdentity) -> Option<Arc<Process<F, P>>> {
        let state = self.read();
        let (process, _) = state.processes.get(&secret).filter(|(process, _)| process.peer == *peer)?;
        Some(Arc::clone(process))
    }

    /// Joins a connection to a process: a new one without a secret. Its requests say their priority, and that of the
    /// process is shown.
    ///
    /// # Errors
    /// The share of the principal does not permit the priority. The connection belongs to no process then.
    pub(super) fn attach(
        &self,
        session: u64,
        secret: Option<Secret>,
        priority: Option<Priority>,
    ) -> Result<Attached, Problem> {
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
                // Each connection presents the token, so that one that the node does not know any more ends with its
                // connections.
                let found = found.filter(|(process, _)| {
                    let now = self.acting_for(&session.peer, session.named.as_ref());
                    now.is_ok_and(|now| now.principal() == process.tier.principal())
                });
                let (process, connections) = found.ok_or(Problem::NotAttached)?;
                process.set_priority(priority)?;
                *connections += 1;
                (secret, Arc::clone(process))
            }
            None => {
                let mut secret = Secret::default();
                secret[..8].copy_from_slice(&self.tier.draw().to_le_bytes());
                secret[8..].copy_from_slice(&self.tier.draw().to_le_bytes());
                let process = Arc::new(self.new_process(session, secret, priority)?);
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
            is_kept: process.life.is_some() && self.tier.is_kept(),
            highest: process.tier.highest_priority(),
        })
    }

    /// Returns the principal that a token names; `None` without a token, where the user counts.
    ///
    /// # Errors
    /// The token is none of this node. The user does not count then.
    pub(super) fn named_by(&self, token: &Token) -> Result<Option<Principal>, NotAdmitted> {
        if token.0.is_empty() {
            return Ok(None);
        }
        let named = self.config.tokens.principal_of(token).cloned();
        named
            .map(Some)
            .ok_or_else(|| NotAdmitted::Unauthorised("its token names no principal at this node".to_owned()))
    }

    /// Returns the node, acting for the principal of a process: the one that its token names, or that of its user.
    pub(super) fn acting_for(
        &self,
        peer: &PeerIdentity,
        named: Option<&Principal>,
    ) -> Result<Tier<F>, Problem> {
        let user = peer.user.ok_or(Problem::Unknown)?;
        let principal = match named {
            Some(principal) => principal.as_str().to_owned(),
            None => self.config.users.get(&user).cloned().unwrap_or_else(|| format!("user-{user}")),
        };
        self.tier.acting_for(&principal).map_err(|_| Problem::Unknown)
    }

    /// Counts a connection of a process; returns the count to which it belongs.
    fn admit(state: &mut State<F, P>, peer: &PeerIdentity, limit: u16) -> Result<Arc<Usage>, String> {
        let usage = Arc::clone(state.usage.entry((peer.user, peer.process)).or_default());
        if usage.connections.load(Ordering::Relaxed) >= limit {
            return Err(format!("the process has {limit} connections to this node already"));
        }
        // Changed with the lock held only.
        usage.connections.fetch_add(1, Ordering::Relaxed);
        Ok(usage)
    }

    /// Counts a connection to the gateway.
    pub(super) fn admit_caller(&self, peer: &PeerIdentity) -> Result<(), String> {
        Self::admit(&mut self.write(), peer, self.config.limits.connections).map(drop)
    }

    /// A connection to the gateway has ended.
    pub(super) fn dismiss_caller(&self, peer: &PeerIdentity) {
        let mut state = self.write();
        let key = (peer.user, peer.process);
        let was_last =
            state.usage.get(&key).is_some_and(|usage| usage.connections.fetch_sub(1, Ordering::Relaxed) == 1);
        if was_last {
            state.usage.remove(&key);
        }
    }

    fn new_process(
        &self,
        session: &Session<F, P>,
        secret: Secret,
        priority: Option<Priority>,
    ) -> Result<Process<F, P>, Problem> {
        let (peer, usage) = (session.peer.clone(), Arc::clone(&session.usage));
        let tier = self.acting_for(&peer, session.named.as_ref())?;
        // Before anything is kept of a process that is refused.
        if let Some(priority) = priority {
            tier.with_priority(priority)?;
        }
        let life = peer.process.and_then(lives::life_of);
        if let (Some(life), Some(user)) = (life, peer.user) {
            let kept = KeptProcess { secret, life, user, principal: tier.principal().to_owned() };
            tier.node().state().put(&KeptProcess::key(&secret), &kept.value());
        }
        let handles = Slots::new(self.config.limits.handles, self.tier.draw() as u32);
        let process = self.process_with(secret, tier, handles, usage, (peer, life));
        process.set_priority(priority)?;
        Ok(process)
    }

    fn process_with(
        &self,
        secret: Secret,
        tier: Tier<F>,
        handles: Slots<Arc<Lmr<F>>>,
        usage: Arc<Usage>,
        (peer, life): (PeerIdentity, Option<Life>),
    ) -> Process<F, P> {
        let (limits, handles) = (&self.config.limits, Mutex::new(handles));
        let services = Mutex::new(Slots::new(limits.services.into(), self.tier.draw() as u32));
        let locks = Mutex::new(LockTable::new(limits.locks, self.tier.draw() as u32));
        let directs = Directs::new(secret);
        let buffers = Buffers::new(tier.principal(), self.tier.node().lineage.seed, &secret);
        let number = 1 + self.attached.fetch_add(1, Ordering::Relaxed);
        let demand = Demand::default();
        let is_low = AtomicBool::new(tier.priority() == Priority::Low);
        Process {
            secret,
            number,
            demand,
            is_low,
            tier,
            handles,
            services,
            locks,
            usage,
            directs,
            buffers,
            peer,
            life,
        }
    }

    /// Returns a number for a region that is the same for all processes of this node, and hides the id, which names
    /// nodes. The next life of the node gives it the same one.
    pub(super) fn region_number(&self, id: LmrId) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.tier.node().lineage.seed, id).hash(&mut hasher);
        hasher.finish()
    }

    /// Gives a region a handle of a process.
    pub(super) fn open(
        &self,
        process: &Process<F, P>,
        region: Lmr<F>,
    ) -> Result<u64, (Problem, Arc<Lmr<F>>)> {
        let limit = self.config.limits.handles;
        let behind = region.handle.number();
        let region = Arc::new(region);
        let before = process.usage.handles.fetch_add(1, Ordering::Relaxed);
        let inserted = if before < limit { process.handles().insert(region) } else { Err(region) };
        if let Ok(handle) = &inserted {
            let key = KeptNumber::key(PROCESS_HANDLE, &process.secret, *handle);
            self.tier.node().state().put(&key, &behind.to_le_bytes());
        }
        inserted.map_err(|region| {
            process.usage.handles.fetch_sub(1, Ordering::Relaxed);
            (Problem::Handles(limit), region)
        })
    }

    /// Describes the node.
    pub(super) fn status(&self) -> NodeStatus {
        let (free, dirty) = (self.tier.free_memory(), self.tier.dirty_memory());
        let state = self.read();
        let processes = state.processes.values().take(MAX_LISTED_PROCESSES);
        let processes = processes.map(|(process, connections)| process.status(*connections));
        let view = self.tier.view();
        // As long as a text of a message may be.
        let mut trouble = self.tier.trouble().unwrap_or_default();
        trouble.truncate(trouble.floor_char_boundary(255));
        let PathCount { count: paths, reason } = self.tier.path_count();
        let mut paths_reason = reason.to_string();
        paths_reason.truncate(paths_reason.floor_char_boundary(255));
        NodeStatus {
            node: self.tier.name().to_owned(),
            memory: self.tier.memory(),
            free,
            dirty,
            extents: self.tier.extents() as u16,
            registrations: self.tier.registrations() as u16,
            pages: self.tier.pages(),
            is_kept: self.tier.is_kept(),
            answered: self.answered.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ran: self.counters.ran(),
            regions: self.tier.regions(),
            paths,
            paths_reason,
            queue_pairs: self.tier.node().queue_pairs(),
            call_connections: self.tier.node().call_connections(),
            calls: self.tier.node().board.under_way() as u32,
            priorities: [Priority::Low, Priority::High].map(|priority| self.tier.operations(priority)),
            // Of the same view as the members below.
            nodes: view.alive().map(|member| member.identity.name.clone()).collect(),
            epoch: view.epoch.number,
            members: view.members.iter().map(status_of).collect(),
            trouble,
            processes: processes.collect(),
        }
    }
}

fn status_of(member: &Member) -> MemberStatus {
    MemberStatus {
        name: member.identity.name.clone(),
        address: member.identity.calls.clone(),
        incarnation: member.incarnation.number,
        state: member.state,
    }
}

impl<F: Fabric, P: Fabric> ConnectionObserver for Registry<F, P> {
    fn opened(&self, session: u64, peer: &PeerIdentity, _: &str, token: &Token) -> Result<(), NotAdmitted> {
        let named = self.named_by(token)?;
        let mut state = self.write();
        let usage = Self::admit(&mut state, peer, self.config.limits.connections)?;
        state.sessions.insert(session, Session { peer: peer.clone(), named, usage, process: None });
        Ok(())
    }

    fn closed(&self, session: u64) {
        let mut state = self.write();
        let Some(Session { peer, usage, process, .. }) = state.sessions.remove(&session) else { return };
        if usage.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            state.usage.remove(&(peer.user, peer.process));
        }
        let Some((secret, process)) = process else { return };
        // The receivers of this connection: a call that they get would be lost.
        let services: Vec<Registered<F, P>> = process.services().values().cloned().collect();
        services.iter().for_each(|one| one.leave(session));
        if let Some((_, connections)) = state.processes.get_mut(&secret) {
            *connections -= 1;
            if *connections > 0 {
                drop(state);
                // The process does not hear of locks and barriers, either, for which calls of this connection wait.
                return end_locks(&process, Some(session));
            }
            state.processes.remove(&secret);
        }
        drop(state);
        self.end_process(&process);
    }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Takes over a process of an earlier life of the node, which has no connection yet.
    pub(super) fn take_over(
        &self,
        secret: Secret,
        tier: Tier<F>,
        handles: Slots<Arc<Lmr<F>>>,
        (peer, life): (PeerIdentity, Life),
    ) -> Arc<Process<F, P>> {
        let mut state = self.write();
        let usage = Arc::clone(state.usage.entry((peer.user, peer.process)).or_default());
        usage.handles.fetch_add(handles.len() as u32, Ordering::Relaxed);
        let process = Arc::new(self.process_with(secret, tier, handles, usage, (peer, Some(life))));
        state.processes.insert(secret, (Arc::clone(&process), 0));
        process
    }

    /// Returns the processes that have not attached again.
    pub(super) fn absent(&self) -> Vec<(Secret, Option<Life>)> {
        let state = self.read();
        let absent = state.processes.iter().filter(|(_, (_, connections))| *connections == 0);
        absent.map(|(secret, (process, _))| (*secret, process.life)).collect()
    }

    /// Ends a process that has not attached again.
    pub(super) fn end_one(&self, secret: &Secret) {
        let mut state = self.write();
        if state.processes.get(secret).is_none_or(|(_, connections)| *connections > 0) {
            return;
        }
        let Some((process, _)) = state.processes.remove(secret) else { return };
        let key = (process.peer.user, process.peer.process);
        if state.usage.get(&key).is_some_and(|usage| usage.connections.load(Ordering::Relaxed) == 0) {
            state.usage.remove(&key);
        }
        drop(state);
        self.end_process(&process);
    }

    /// Ends a process that has no connection any more.
    fn end_process(&self, process: &Process<F, P>) {
        end_locks(process, None);
        process.services().take_all().iter().for_each(|one| one.end(process.tier.node()));
        process.directs.end(process.tier.node());
        // A request that is still being served keeps its region until it ends, and opens no handle any more.
        let regions = process.end_handles();
        process.usage.handles.fetch_sub(regions.len() as u32, Ordering::Relaxed);
        tracing::info!(
            target: "dunlin::tier", process = process.peer.process, principal = process.tier.principal(),
            handles = regions.len(), "a process has ended; its handles are closed"
        );
    }
}
