//! The application's face: a node in this process, and the regions that it has mapped.

use crate::acceptor::Acceptor;
use crate::calls::serve;
use crate::config::TierConfig;
use crate::error::{JoinError, RequestError};
use crate::keeper;
use crate::lmr::Lmr;
use crate::lock_owner::Owner;
use crate::node::Node;
use crate::qos::Class;
use crate::spec::Spec;
use dunlin_fabric::{Access, Capabilities, Fabric, Host, Nanos, Region, Signal, Task};
use dunlin_rpc::Server;
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::qos::QosError;
use dunlin_tier::{
    Grantee, Handle, Layout, Listing, LmrId, Name, NameError, NodeId, Principal, PrincipalError, Priority,
    RecordError, Rights,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The access to a node's arena that other nodes get.
pub(crate) fn arena_access(capabilities: &Capabilities) -> Access {
    let access = Access::READ.with(Access::WRITE);
    if capabilities.atomics { access.with(Access::ATOMIC) } else { access }
}

/// A running node. Dropped with the last [`Tier`] and the last [`Lmr`].
#[derive(Debug)]
pub(crate) struct Running<F: Fabric> {
    pub(crate) node: Arc<Node<F>>,
    server: Option<Server<F>>,
    tasks: Vec<Task>,
}

impl<F: Fabric> Drop for Running<F> {
    fn drop(&mut self) {
        self.node.over.store(true, Ordering::Release);
        self.node.keeper.raise();
        self.node.fencing.signal.raise();
        self.node.paths.clear();
        self.node.clients.iter().chain(&self.node.waiters).for_each(|clients| clients.clear());
        self.node.board.close();
        // Dropping a client waits, so no lock is held meanwhile.
        let mut links = self.node.links.lock().unwrap_or_else(PoisonError::into_inner);
        let unused: Vec<_> = links.iter_mut().map(std::mem::take).collect();
        drop(links);
        drop(unused);
        self.node.callers.iter().flatten().for_each(|clients| clients.clear());
        drop(self.server.take());
        self.tasks.drain(..).for_each(Task::join);
    }
}

/// A node of the memory tier in this process. Clones are the same node; all methods may be called from any thread.
///
/// The node ends when its last clone and its last region are dropped. Regions in its memory end with it.
#[derive(Debug)]
pub struct Tier<F: Fabric> {
    pub(crate) running: Arc<Running<F>>,
    principal: Principal,
    class: Class,
}

impl<F: Fabric> Clone for Tier<F> {
    fn clone(&self) -> Self {
        self.with_class(self.principal.clone(), self.class.clone())
    }
}

impl<F: Fabric> Tier<F> {
    /// Starts a node in this process. Other nodes of the list need not run yet.
    pub fn within(fabric: &F, config: TierConfig) -> Result<Self, JoinError> {
        let me = config.check()?;
        let principal = Principal::new(&config.principal)?;
        let arena = Region::new(fabric.register(config.memory, arena_access(fabric.capabilities()))?);
        let listener = fabric.listen(&config.nodes[usize::from(me.0)].memory)?;
        let node = Node::new(fabric, config, (me, principal.clone()), arena);
        let acceptor = Acceptor::new(&node, listener)?;
        // From here on, dropping `running` ends the threads.
        let mut running = Running { node: Arc::clone(&node), server: None, tasks: Vec::new() };
        running.tasks.push(fabric.host().spawn("tier-acceptor", Box::new(move || acceptor.run()))?);
        let server = serve(&node)?;
        let owner = Owner::new(&node, server.puller());
        running.server = Some(server);
        running.tasks.push(fabric.host().spawn("tier-locks", Box::new(move || owner.run()))?);
        running.tasks.push(fabric.host().spawn("tier-keeper", Box::new(move || keeper::run(&node)))?);
        let class = running.node.qos.class(fabric.host(), &principal);
        Ok(Tier { running: Arc::new(running), principal, class })
    }

    pub(crate) fn node(&self) -> &Arc<Node<F>> {
        &self.running.node
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.node().fabric
    }

    /// Returns a random number.
    pub(crate) fn draw(&self) -> u64 {
        self.node().fabric.host().random()
    }

    fn lmr(&self, handle: Handle, id: LmrId, length: u64) -> Lmr<F> {
        let (running, principal) = (Arc::clone(&self.running), self.principal.clone());
        Lmr { running, principal, class: self.class.clone(), handle, id, length }
    }

    fn with_class(&self, principal: Principal, class: Class) -> Tier<F> {
        Tier { running: Arc::clone(&self.running), principal, class }
    }

    /// Returns the same node with another principal, for which this process vouches: the regions that it makes and
    /// maps, and what is done with them, are in the name of that principal.
    pub fn acting_for(&self, principal: &str) -> Result<Tier<F>, PrincipalError> {
        let principal = Principal::new(principal)?;
        let class = self.node().qos.class(self.fabric().host(), &principal);
        Ok(self.with_class(principal, class))
    }

    /// Returns the same node with another priority: that of the regions that it makes and maps from then on (LITE
    /// section 6.2). The default is the highest one that the [`Share`](crate::Share) of the principal permits.
    ///
    /// # Errors
    /// The share permits only low priority.
    pub fn with_priority(&self, priority: Priority) -> Result<Tier<F>, QosError> {
        Ok(self.with_class(self.principal.clone(), self.class.with_priority(priority)?))
    }

    /// Returns the priority.
    pub fn priority(&self) -> Priority {
        self.class.priority
    }

    /// Returns the name of the principal.
    pub fn principal(&self) -> &str {
        self.principal.as_str()
    }

    pub(crate) fn caller(&self) -> &Principal {
        &self.principal
    }

    /// Returns this node's name.
    pub fn name(&self) -> &str {
        &self.node().config.node
    }

    /// Returns the name of the node that keeps a name: it knows the region of the name, and owns its lock and barrier.
    pub fn home(&self, name: impl AsRef<[u8]>) -> Result<&str, NameError> {
        let home = self.node().home_of(&Name::new(name)?);
        Ok(self.node().config.nodes.get(usize::from(home.0)).map_or("", |peer| &peer.name))
    }

    /// Returns the names of all nodes of the list.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.node().config.nodes.iter().map(|peer| peer.name.as_str())
    }

    /// Returns the bytes of this node's memory.
    pub fn memory(&self) -> u64 {
        self.node().arena.length() as u64
    }

    /// Lists regions with a name that were made at a node and to which this principal has a right: `from` is 0, then
    /// [`Listing::next`]. Blocks until [`TierConfig::timeout`] at most.
    pub fn list(&self, node: &str, from: u32) -> Result<Listing, RequestError> {
        let this = self.node();
        let to = this.config.number_of(node).ok_or_else(|| RequestError::NoNode(node.to_owned()))?;
        let request = Request::List { principal: self.principal.clone(), from };
        match this.demand(to, request, this.until())? {
            Reply::Listed(listing) => Ok(listing),
            _ => Err(this.misfit(to)),
        }
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
        let id = {
            let directory = &mut node.state().directory;
            let id = directory.reserve().map_err(refused)?;
            if let Err(error) = directory.charge(id, &self.principal, length, node.config.quota) {
                directory.forget(id);
                return Err(refused(error));
            }
            id
        };
        // Before the memory is allocated: a store that is lost from here on is noticed.
        let ticket = match node.state().handles.begin_map() {
            Ok(ticket) => ticket,
            Err(error) => {
                node.state().directory.forget(id);
                return Err(error.into());
            }
        };
        let made = self.allocate(id, length, &stores, until).and_then(|layout| {
            node.state().directory.create(id, name.clone(), layout.clone(), self.principal.clone(), node.me);
            for (to, rights) in grants {
                node.state().directory.grant(id, &self.principal, to, rights).map_err(refused)?;
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
        Ok(self.lmr(handle, id, length))
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
        let (handle, length) = node.map(id, &self.principal, rights, until)?;
        Ok(self.lmr(handle, id, length))
    }
}
