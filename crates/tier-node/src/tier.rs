//! The application's face: a node in this process, and the regions that it has mapped.

use crate::acceptor::Acceptor;
use crate::calls::serve;
use crate::config::TierConfig;
use crate::error::{JoinError, OperationError, RequestError};
use crate::keeper;
use crate::lock_owner::Owner;
use crate::locks::{Guard, LockError};
use crate::node::Node;
use crate::path::{Change, Stop, Transfer};
use crate::spec::Spec;
use dunlin_fabric::{Access, Capabilities, Fabric, Host, Nanos, Region, Signal, Task, nanos};
use dunlin_rpc::Server;
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{
    AccessError, Cut, Grantee, Handle, Kind, Layout, LmrId, Name, NodeId, Principal, RecordError, Rights,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The access to a node's arena that other nodes get.
pub(crate) fn arena_access(capabilities: &Capabilities) -> Access {
    let access = Access::READ.with(Access::WRITE);
    if capabilities.atomics { access.with(Access::ATOMIC) } else { access }
}

/// A running node. Dropped with the last [`Tier`] and the last [`Lmr`].
#[derive(Debug)]
struct Running<F: Fabric> {
    node: Arc<Node<F>>,
    server: Option<Server<F>>,
    tasks: Vec<Task>,
}

impl<F: Fabric> Drop for Running<F> {
    fn drop(&mut self) {
        self.node.over.store(true, Ordering::Release);
        self.node.keeper.raise();
        self.node.fencing.signal.raise();
        self.node.paths.clear();
        self.node.clients.iter().for_each(|clients| clients.clear());
        drop(self.server.take());
        self.tasks.drain(..).for_each(Task::join);
    }
}

/// A node of the memory tier in this process. Clones are the same node; all methods may be called from any thread.
///
/// The node ends when its last clone and its last region are dropped. Regions in its memory end with it.
#[derive(Debug)]
pub struct Tier<F: Fabric>(Arc<Running<F>>);

impl<F: Fabric> Clone for Tier<F> {
    fn clone(&self) -> Self {
        Tier(Arc::clone(&self.0))
    }
}

impl<F: Fabric> Tier<F> {
    /// Starts a node in this process. Other nodes of the list need not run yet.
    pub fn within(fabric: &F, config: TierConfig) -> Result<Self, JoinError> {
        let me = config.check()?;
        let principal = Principal::new(&config.principal)?;
        let arena = Region::new(fabric.register(config.memory, arena_access(fabric.capabilities()))?);
        let listener = fabric.listen(&config.nodes[usize::from(me.0)].memory)?;
        let node = Node::new(fabric, config, me, principal, arena);
        let acceptor = Acceptor::new(&node, listener)?;
        // From here on, dropping `running` ends the threads.
        let mut running = Running { node: Arc::clone(&node), server: None, tasks: Vec::new() };
        running.tasks.push(fabric.host().spawn("tier-acceptor", Box::new(move || acceptor.run()))?);
        let server = serve(&node)?;
        let owner = Owner::new(&node, server.puller());
        running.server = Some(server);
        running.tasks.push(fabric.host().spawn("tier-locks", Box::new(move || owner.run()))?);
        running.tasks.push(fabric.host().spawn("tier-keeper", Box::new(move || keeper::run(&node)))?);
        Ok(Tier(Arc::new(running)))
    }

    fn node(&self) -> &Arc<Node<F>> {
        &self.0.node
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.node().fabric
    }

    /// Returns the bytes of this node's memory that are free and zeroed.
    pub fn free_memory(&self) -> u64 {
        self.node().state().space.free_bytes()
    }

    /// Returns the bytes of this node's memory that were freed and are not zeroed yet.
    pub fn dirty_memory(&self) -> u64 {
        self.node().state().space.dirty_bytes()
    }

    /// Allocates a zeroed region of `length` bytes (`LT_malloc`); this process's principal becomes its master. Blocks
    /// until [`TierConfig::timeout`] at most.
    pub fn malloc(&self, length: u64, spec: Spec) -> Result<Lmr<F>, RequestError> {
        let (node, until) = (self.node(), self.node().until());
        let name = spec.name.as_ref().map(Name::new).transpose()?;
        let stores = self.stores(&spec)?;
        let mut grants = Vec::with_capacity(spec.grants.len());
        for (to, rights) in &spec.grants {
            let to =
                to.as_ref().map_or(Ok(Grantee::Anyone), |to| Principal::new(to).map(Grantee::Principal))?;
            grants.push((to, *rights));
        }
        // The connections come first: a node that ends or fences this one from here on is noticed.
        node.know(&stores, until)?;
        let refused = |source: RecordError| RequestError::Refused {
            node: node.config.node.clone(),
            source: source.into(),
        };
        let id = node.state().directory.reserve().map_err(refused)?;
        // Before the memory is allocated: a store that is lost from here on is noticed.
        let ticket = match node.state().handles.begin_map() {
            Ok(ticket) => ticket,
            Err(error) => {
                node.state().directory.forget(id);
                return Err(error.into());
            }
        };
        let made = self.allocate(id, length, &stores, until).and_then(|layout| {
            node.state().directory.create(id, name.clone(), layout.clone(), node.principal.clone(), node.me);
            for (to, rights) in grants {
                node.state().directory.grant(id, &node.principal, to, rights).map_err(refused)?;
            }
            if let Some(name) = &name {
                self.claim(name, id, until)?;
            }
            Ok(layout)
        });
        let finished = match made {
            Ok(layout) => {
                node.state().handles.finish_map(ticket, id, Rights::ALL, layout).map_err(Into::into)
            }
            Err(error) => {
                node.state().handles.abandon_map(ticket);
                Err(error)
            }
        };
        let handle = finished.inspect_err(|_| self.undo(id, &stores, until))?;
        Ok(Lmr { running: Arc::clone(&self.0), handle, id, length })
    }

    /// Returns the nodes that shall store a region.
    fn stores(&self, spec: &Spec) -> Result<Vec<NodeId>, RequestError> {
        let node = self.node();
        if spec.nodes.is_empty() {
            return Ok(vec![node.me]);
        }
        let number = |name: &String| node.config.number_of(name).ok_or(RequestError::NoNode(name.clone()));
        spec.nodes.iter().map(number).collect()
    }

    /// Allocates the pieces of a region, in turns over the nodes.
    fn allocate(
        &self,
        owner: LmrId,
        length: u64,
        stores: &[NodeId],
        until: Nanos,
    ) -> Result<Layout, RequestError> {
        let (node, piece) = (self.node(), u64::from(self.node().config.piece));
        let count = length.div_ceil(piece);
        if length == 0 || count > dunlin_tier::cut::MAX_PIECES as u64 {
            return Err(RequestError::Length(length));
        }
        let turns = stores.len() as u64;
        let mut shares = Vec::with_capacity(stores.len());
        for (turn, store) in (0u64..).zip(stores) {
            // The pieces `turn`, `turn + turns`, ...; the region's last piece may be shorter.
            let pieces = count.saturating_sub(turn).div_ceil(turns);
            if pieces == 0 {
                break;
            }
            let has_last = (count - 1) % turns == turn;
            let share =
                if has_last { (pieces - 1) * piece + (length - (count - 1) * piece) } else { pieces * piece };
            let request = Request::Allocate { owner, length: share, piece: node.config.piece };
            let Reply::Allocated(layout) = node.demand(*store, request, until)? else {
                return Err(node.misfit(*store));
            };
            if layout.length() != share
                || layout.nodes() != [*store]
                || layout.pieces().len() as u64 != pieces
            {
                return Err(node.misfit(*store));
            }
            shares.push(layout);
        }
        let piece_at = |at: u64| shares[(at % turns) as usize].pieces()[(at / turns) as usize];
        Ok(Layout::new((0..count).map(piece_at).collect())?)
    }

    /// Claims a name at its home. A name whose region is gone, because its master's node ended, is taken over.
    fn claim(&self, name: &Name, id: LmrId, until: Nanos) -> Result<(), RequestError> {
        let (node, home) = (self.node(), self.node().home_of(name));
        let claim = || node.demand(home, Request::Claim { name: name.clone(), id }, until);
        let taken = match claim() {
            Err(RequestError::Refused { source: Refusal::Record(RecordError::Taken), node }) => {
                RequestError::Refused { node, source: RecordError::Taken.into() }
            }
            claimed => return claimed.map(|_| ()),
        };
        let Reply::Found(other) = node.demand(home, Request::Lookup { name: name.clone() }, until)? else {
            return Err(node.misfit(home));
        };
        match node.ask(other.node, Request::Exists { id: other }, until) {
            Ok(Reply::Flag(false)) => {}
            _ => return Err(taken),
        }
        node.demand(home, Request::Forget { name: name.clone(), id: other }, until)?;
        claim().map(|_| ())
    }

    /// Gives back everything that a failed `malloc` has taken, as far as nodes answer.
    fn undo(&self, id: LmrId, stores: &[NodeId], until: Nanos) {
        let node = self.node();
        match node.free(id, None) {
            // There is no record yet.
            Err(Refusal::Record(_)) => {}
            // Freed, or the keeper goes on.
            _ => return,
        }
        for store in stores {
            if let Err(error) = node.ask(*store, Request::Release { owner: id }, until) {
                tracing::warn!(target: "dunlin::tier", %error, "memory of a region that could not be made may be lost");
            }
        }
        node.state().directory.forget(id);
    }

    /// Maps a region by its name with exactly these rights (`LT_map`). Each call gives a new handle. Blocks until
    /// [`TierConfig::timeout`] at most.
    ///
    /// # Errors
    /// A region to which this process's principal has no right looks like an absent one.
    pub fn map(&self, name: impl AsRef<[u8]>, rights: Rights) -> Result<Lmr<F>, RequestError> {
        let name = Name::new(name)?;
        let (node, until) = (self.node(), self.node().until());
        let home = node.home_of(&name);
        let Reply::Found(id) = node.demand(home, Request::Lookup { name }, until)? else {
            return Err(node.misfit(home));
        };
        let (handle, length) = node.map(id, &node.principal, rights, until)?;
        Ok(Lmr { running: Arc::clone(&self.0), handle, id, length })
    }
}

/// Locks and barriers (section 7.2).
impl<F: Fabric> Tier<F> {
    /// Takes the lock of a name, which every node of the cluster knows by this name. Waits until [`TierConfig::timeout`]
    /// at most, behind those that asked before. The lock is given back when the guard is dropped.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over; the lock is not held then. [`Guard::is_poisoned`] is no error.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Result<Guard<F>, LockError> {
        self.node().lock(&Name::new(name)?, self.node().until())
    }

    /// As [`lock`](Tier::lock), and waits for at most `time`.
    pub fn lock_within(&self, name: impl AsRef<[u8]>, time: Duration) -> Result<Guard<F>, LockError> {
        let until = self.node().fabric.host().now().saturating_add(nanos(time));
        self.node().lock(&Name::new(name)?, until)
    }

    /// Takes a lock if it is free; `None` if another thread or node has it. Waits for no holder.
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> Result<Option<Guard<F>>, LockError> {
        self.node().try_lock(&Name::new(name)?)
    }

    /// Waits at the barrier of a name until as many callers as `members` wait there, on any nodes; then all go on, and
    /// the barrier can be used again. Waits until [`TierConfig::timeout`] at most.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over: the others still wait for as many callers.
    /// [`LockRefusal::Members`](dunlin_tier::lock::message::LockRefusal::Members) if callers name different numbers, and
    /// [`LockRefusal::Died`](dunlin_tier::lock::message::LockRefusal::Died) for all if the node of one dies.
    pub fn barrier(&self, name: impl AsRef<[u8]>, members: u16) -> Result<(), LockError> {
        self.node().meet(&Name::new(name)?, members, self.node().until())
    }

    /// As [`barrier`](Tier::barrier), and waits for at most `time`.
    pub fn barrier_within(
        &self,
        name: impl AsRef<[u8]>,
        members: u16,
        time: Duration,
    ) -> Result<(), LockError> {
        let until = self.node().fabric.host().now().saturating_add(nanos(time));
        self.node().meet(&Name::new(name)?, members, until)
    }
}

/// A memory region (LMR) that this process has mapped. May be shared by threads. Dropping it unmaps it.
#[derive(Debug)]
pub struct Lmr<F: Fabric> {
    running: Arc<Running<F>>,
    handle: Handle,
    id: LmrId,
    length: u64,
}

impl<F: Fabric> Lmr<F> {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the length is zero, which no region has.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the rights of this handle.
    pub fn rights(&self) -> Result<Rights, AccessError> {
        Ok(self.running.node.state().handles.describe(self.handle)?.1)
    }

    /// Copies bytes at `offset` out of the region (`LT_read`). Blocks until they are there, or until
    /// [`TierConfig::timeout`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.running.node.transfer(self.handle, Kind::Read, offset, Transfer::Read(into))
    }

    /// Copies bytes into the region at `offset` (`LT_write`). Blocks until they are placed, or until
    /// [`TierConfig::timeout`]. Concurrent operations on the same bytes may interleave.
    ///
    /// Reads by other nodes see the bytes from then on. The node that stores them reads with its own processor, and may
    /// see them a few microseconds later: a completion does not say that the processor sees the data.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.running.node.transfer(self.handle, Kind::Write, offset, Transfer::Write(from))
    }

    /// Adds to the aligned word at `offset` and returns its old value (`LT_fetch-add`). Words are little-endian.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        self.change(offset, Change::Add(add))
    }

    /// Stores `swap` in the aligned word at `offset` if it is `expected`, and returns the old value.
    pub fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        self.change(offset, Change::Swap { expected, swap })
    }

    fn change(&self, offset: u64, change: Change) -> Result<u64, OperationError> {
        self.running.node.change_word(self.handle, self.id, offset, change)
    }

    /// Sets `length` bytes at `offset` to a value, by a command to the nodes that store them (section 7.1). The nodes
    /// carry it out one after the other. Blocks until [`TierConfig::timeout`] at most.
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        let node = &*self.running.node;
        node.operate(self.handle, Kind::Write, offset, length, |_, layout, deadline| {
            for cut in layout.cut(offset, length, u32::MAX) {
                let (owner, extent, offset, length) = (self.id, cut.extent, cut.offset, cut.length);
                let until = deadline.until(node.fabric.host());
                let request = Request::Set { owner, extent, offset, length, value };
                if let Err(error) = node.demand(cut.node, request, until) {
                    return Err(Stop::failed(Box::new(error)));
                }
            }
            Ok(Some(()))
        })
    }

    /// Copies `length` bytes at `offset` to `target` of another region or of the same one (`LT_memcpy`, `LT_memmove`):
    /// the nodes that store the source write them to the target (section 7.1), so they do not pass through this process.
    /// Overlapping ranges of one region are right. This handle needs READ, the other WRITE, and this process's principal
    /// both. Blocks until [`TierConfig::timeout`] at most.
    pub fn copy(&self, offset: u64, length: u64, to: &Lmr<F>, target: u64) -> Result<(), OperationError> {
        let node = &*self.running.node;
        // Both are checked here first; the target is checked again by the nodes that write.
        let (to_id, to_rights, to_length) = node.state().handles.describe(to.handle)?;
        if !to_rights.contains(Rights::WRITE) {
            return Err(AccessError::Denied { needs: Rights::WRITE, has: to_rights }.into());
        }
        if target > to_length || length > to_length - target {
            return Err(AccessError::OutOfBounds { offset: target, length, size: to_length }.into());
        }
        let backwards = to_id == self.id && target > offset;
        node.operate(self.handle, Kind::Read, offset, length, |_, layout, deadline| {
            let until = deadline.until(node.fabric.host());
            let copy = |cut: Cut| {
                let request = Request::Copy {
                    owner: self.id,
                    extent: cut.extent,
                    offset: cut.offset,
                    length: cut.length,
                    to: to_id,
                    target: target + cut.at,
                    backwards,
                    principal: node.principal.clone(),
                };
                match node.demand(cut.node, request, until) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Stop::failed(Box::new(error))),
                }
            };
            if backwards {
                let cuts: Vec<Cut> = layout.cut(offset, length, u32::MAX).collect();
                cuts.into_iter().rev().try_for_each(copy)?;
            } else {
                layout.cut(offset, length, u32::MAX).try_for_each(copy)?;
            }
            Ok(Some(()))
        })
    }

    /// Grants rights to a principal. This handle needs MASTER, and its principal the rights. Blocks until
    /// [`TierConfig::timeout`] at most.
    pub fn grant(&self, principal: &str, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Principal(Principal::new(principal)?), rights)
    }

    /// Grants rights to every principal; as [`grant`](Lmr::grant).
    pub fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Anyone, rights)
    }

    fn grant_to(&self, to: Grantee, rights: Rights) -> Result<(), RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, node.principal.clone());
        node.demand(id.node, Request::Grant { id, rights, by, to }, node.until())?;
        Ok(())
    }

    fn check_master(&self) -> Result<(), AccessError> {
        let has = self.rights()?;
        if has.contains(Rights::MASTER) {
            Ok(())
        } else {
            Err(AccessError::Denied { needs: Rights::MASTER, has })
        }
    }

    /// Frees the region for all (`LT_free`). This handle needs MASTER. Returns when no node can touch the memory any
    /// more and it was taken back. Blocks until [`TierConfig::timeout`] at most.
    ///
    /// # Errors
    /// [`Refusal::Waits`](dunlin_tier::message::Refusal::Waits): the region is gone for all, and its memory is kept until
    /// the node of that number answers or ends.
    pub fn free(self) -> Result<(), RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, node.principal.clone());
        node.demand(id.node, Request::Free { id, by }, node.until())?;
        Ok(())
    }

    /// Unmaps the region and tells the record's node (`LT_unmap`). Dropping does the same in the background. Blocks
    /// until [`TierConfig::timeout`] at most.
    pub fn unmap(self) -> Result<(), RequestError> {
        let node = &*self.running.node;
        let closed = node.state().handles.unmap(self.handle)?;
        if let Some(id) = closed {
            node.demand(id.node, Request::Unmap { id, mapper: node.me }, node.until())?;
        }
        Ok(())
    }
}

impl<F: Fabric> Drop for Lmr<F> {
    fn drop(&mut self) {
        // An unmapped handle is unknown, which is fine.
        let closed = self.running.node.state().handles.unmap(self.handle);
        if let Ok(Some(id)) = closed {
            self.running.node.report_unmapped(id);
        }
    }
}
