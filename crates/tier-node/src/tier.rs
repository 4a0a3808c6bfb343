//! The application's face: a node in this process, and the regions that it has mapped.

use crate::acceptor::Acceptor;
use crate::asynchronous::{AsyncConfig, Asynchronous};
use crate::calls::serve;
use crate::cleaner;
use crate::config::{Peer, TierConfig};
use crate::error::{JoinError, RequestError};
use crate::kept::Begun;
use crate::lmr::Lmr;
use crate::lock_owner::Owner;
use crate::members;
use crate::membership::{DirectoryClient, FixedList, Membership, Store, StoreConfig, StoreMembership};
use crate::node::Node;
use crate::path_count::{PathCount, PathReason};
use crate::paths::PathQueue;
use crate::qos::Class;
use crate::roster::{Current, Roster};
use crate::seats::{Seats, Use};
use crate::spec::Spec;
use dunlin_fabric::{Fabric, Host, KeeperError, MemoryKeeper, Nanos, Signal, Task, nanos};
use dunlin_rpc::Server;
use dunlin_tier::message::{Reply, Request};
use dunlin_tier::process::{NoDirect, Pages, PriorityStatus};
use dunlin_tier::qos::QosError;
use dunlin_tier::{
    Handle, Layout, Listing, LmrId, Name, NameError, NodeId, Principal, PrincipalError, Priority,
    RecordError, Rights, TableError, View,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// A running node. Dropped with the last [`Tier`] and the last [`Lmr`].
#[derive(Debug)]
pub(crate) struct Running<F: Fabric> {
    pub(crate) node: Arc<Node<F>>,
    server: Option<Server<F>>,
    tasks: Vec<Task>,
    /// The keeper serves no other node as long as this one runs.
    keeper: Mutex<Option<Box<dyn MemoryKeeper>>>,
}

impl<F: Fabric> Drop for Running<F> {
    fn drop(&mut self) {
        self.node.over.store(true, Ordering::Release);
        self.node.cleaner.raise();
        self.node.members.raise();
        self.node.rehoming.raise();
        self.node.fencing.signal.raise();
        self.node.paths.clear();
        self.node.places.clear();
        self.node.lanes.end();
        self.node.end_rings();
        self.node.delays.end();
        for of in [Use::Requests, Use::Waits] {
            self.node.seats.iter().for_each(|seats| seats.clear_one(of));
        }
        self.node.board.close();
        // Dropping a client waits, so no lock is held meanwhile.
        let mut links = self.node.links.lock().unwrap_or_else(PoisonError::into_inner);
        let unused: Vec<_> = links.iter_mut().map(std::mem::take).collect();
        drop(links);
        drop(unused);
        self.node.seats.iter().for_each(Seats::clear);
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

/// Returns a name that is [open](Name::is_open_to) to a principal. The node that vouches for the principal checks it, and
/// other nodes believe it.
pub(crate) fn open_name(name: impl AsRef<[u8]>, principal: &Principal) -> Result<Name, RequestError> {
    let name = Name::new(name)?;
    if name.is_open_to(principal) { Ok(name) } else { Err(RequestError::OtherOwner(name)) }
}

impl<F: Fabric> Clone for Tier<F> {
    fn clone(&self) -> Self {
        self.with_class(self.principal.clone(), self.class.clone())
    }
}

impl<F: Fabric> Tier<F> {
    /// Starts a node in this process. Other nodes of the list need not run yet. With a
    /// [directory](TierConfig::directory), blocks until the node is a member: [`TierConfig::timeout`] at most, and as long as the directory waits for others.
    pub fn within(fabric: &F, config: TierConfig) -> Result<Self, JoinError> {
        config.check()?;
        match config.directory.clone() {
            None => {
                let list = FixedList::new(&config.nodes, &config.node);
                Tier::within_membership(fabric, config, 0, Box::new(list))
            }
            Some(directory) => {
                let life = fabric.host().random();
                let own = config.own()?;
                let (identity, beat, token) = (own.identity(life), config.beat, config.token.clone());
                let client = DirectoryClient::new(fabric, directory, identity, beat, token);
                Tier::within_membership(fabric, config, life, Box::new(client))
            }
        }
    }

    /// Starts a node as [`within`](Tier::within), whose memory and records a keeper holds: regions, the handles of
    /// processes and those of other nodes are valid after the process of this node has ended in any way, and another one
    /// has begun with the same keeper and settings. Operations under way at the end fail, and may have been executed.
    /// Locks, barriers and registered services end with the process.
    ///
    /// # Errors
    /// The settings have a directory; the memory of the node is not shared memory ([`TierConfig::memory_source`] makes such
    /// for another fabric); the keeper holds the memory of another node, or a
    /// ledger that is damaged; or as [`within`](Tier::within).
    pub fn within_kept(
        fabric: &F,
        mut config: TierConfig,
        keeper: Box<dyn MemoryKeeper>,
    ) -> Result<Self, JoinError> {
        let reason = config.settle(fabric, false)?;
        if config.directory.is_some() {
            return Err(JoinError::KeptViews);
        }
        let begun = Begun::kept(fabric, &config, keeper)?;
        let list = FixedList::new(&config.nodes, &config.node);
        Tier::start(fabric, (config, reason), (begun, 0), Box::new(list))
    }

    /// Starts a node whose views come from a store with transactions, such as [etcd](StoreMembership). Blocks until the
    /// node is a member, [`TierConfig::timeout`] at most.
    pub fn within_store(
        fabric: &F,
        config: TierConfig,
        store: impl Store,
        settings: StoreConfig,
    ) -> Result<Self, JoinError> {
        let life = fabric.host().random();
        let membership = StoreMembership::new(fabric.host(), store, config.own()?.identity(life), settings);
        Tier::within_membership(fabric, config, life, Box::new(membership))
    }

    /// Starts a node whose views come from any source. `life` is the random number of this life of the node in
    /// the [`Identity`](dunlin_tier::membership::Identity) that the source reports.
    pub fn within_membership(
        fabric: &F,
        mut config: TierConfig,
        life: u64,
        membership: Box<dyn Membership>,
    ) -> Result<Self, JoinError> {
        let reason = config.settle(fabric, membership.period().is_some())?;
        let begun = Begun::alone(fabric, &config)?;
        Tier::start(fabric, (config, reason), (begun, life), membership)
    }

    fn start(
        fabric: &F,
        (config, reason): (TierConfig, PathReason),
        (begun, life): (Begun<F>, u64),
        mut membership: Box<dyn Membership>,
    ) -> Result<Self, JoinError> {
        let own: Peer = config.own()?.clone();
        let principal = Principal::new(&config.principal)?;
        let Begun { arena, lineage, ledger, number: earlier, keeper } = begun;
        // Before the node joins: a node that has the address has no other life.
        let listener = fabric.listen(&own.memory)?;
        let host = fabric.host();
        let until = host.now().saturating_add(nanos(config.timeout));
        let is_dynamic = membership.period().is_some();
        let (view, number) = if is_dynamic {
            members::join(host, &mut *membership, until)?
        } else {
            (membership.view(), membership.own().ok_or_else(|| JoinError::NotListed(own.name.clone()))?)
        };
        let me = number.number;
        let max_nodes = if is_dynamic { config.max_nodes } else { view.members.len() as u16 };
        let roster = Roster::new(Current::new(view, Some(number), max_nodes)?, max_nodes, is_dynamic);
        let incarnation = if is_dynamic { life } else { host.random() };
        let node = Node::new(
            fabric,
            (config, reason),
            (me, principal.clone()),
            (lineage, incarnation),
            roster,
            arena,
        );
        if let Some(ledger) = ledger {
            node.begin_keeping(ledger, earlier, &lineage)?;
        }
        let acceptor = Acceptor::new(&node, listener)?;
        // From here on, dropping `running` ends the threads.
        let mut running =
            Running { node: Arc::clone(&node), server: None, tasks: Vec::new(), keeper: Mutex::new(keeper) };
        running.tasks.push(fabric.host().spawn("tier-acceptor", Box::new(move || acceptor.run()))?);
        let server = serve(&node, &own.calls)?;
        let owner = Owner::new(&node, server.puller());
        running.server = Some(server);
        running.tasks.push(fabric.host().spawn("tier-locks", Box::new(move || owner.run()))?);
        if is_dynamic {
            let (renews, reports) = (Arc::clone(&node), Arc::clone(&node));
            let renew = move || members::run(&renews, membership);
            running.tasks.push(fabric.host().spawn("tier-members", Box::new(renew))?);
            let report = move || members::report_names(&reports);
            running.tasks.push(fabric.host().spawn("tier-names", Box::new(report))?);
        }
        running.tasks.push(fabric.host().spawn("tier-cleaner", Box::new(move || cleaner::run(&node)))?);
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

    pub(crate) fn lmr(&self, handle: Handle, id: LmrId, length: u64) -> Lmr<F> {
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

    /// Returns the same node with another priority: that of the regions that it makes and maps from then on, and of its
    /// calls to services (LITE section 6.2). The default is the highest one that the [`Share`](crate::Share) of the principal permits.
    ///
    /// # Errors
    /// The share permits only low priority.
    pub fn with_priority(&self, priority: Priority) -> Result<Tier<F>, QosError> {
        Ok(self.with_class(self.principal.clone(), self.class.with_priority(priority)?))
    }

    /// Returns the highest priority that the share of the principal permits.
    pub(crate) fn highest_priority(&self) -> Priority {
        self.class.highest()
    }

    /// Returns the priority.
    pub fn priority(&self) -> Priority {
        self.class.priority
    }

    /// Returns the name of the principal.
    pub fn principal(&self) -> &str {
        self.principal.as_str()
    }

    pub(crate) fn class(&self) -> &Class {
        &self.class
    }

    pub(crate) fn caller(&self) -> &Principal {
        &self.principal
    }

    /// Returns a name that is [open](Name::is_open_to) to this principal.
    pub(crate) fn open_name(&self, name: impl AsRef<[u8]>) -> Result<Name, RequestError> {
        open_name(name, &self.principal)
    }

    /// Returns this node's name.
    pub fn name(&self) -> &str {
        &self.node().config.node
    }

    /// Returns the name of the node that keeps a name: it knows the region of the name.
    pub fn home(&self, name: impl AsRef<[u8]>) -> Result<String, NameError> {
        Ok(self.node().name_of(self.node().home_of(&Name::new(name)?)))
    }

    /// Returns the name of the node that owns the lock and the barrier of a name. With a list of nodes, it is the name's
    /// [home](Tier::home); with a directory, one of the nodes that joined first.
    pub fn lock_home(&self, name: impl AsRef<[u8]>) -> Result<String, NameError> {
        Ok(self.node().name_of(self.node().lock_home_of(&Name::new(name)?)))
    }

    /// Returns the names of all nodes that are alive in this node's view: all of a list.
    pub fn nodes(&self) -> impl Iterator<Item = String> {
        let names: Vec<String> = self.view().alive().map(|member| member.identity.name.clone()).collect();
        names.into_iter()
    }

    /// Returns this node's view.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.node().roster.get().view)
    }

    /// Returns the last trouble with the membership, in words: the directory does not answer, for example. Calls and memory
    /// go on meanwhile.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.node().trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(trouble).filter(|text| !text.is_empty())
    }

    /// Returns the bytes of this node's memory.
    pub fn memory(&self) -> u64 {
        self.node().arena.length()
    }

    /// Returns the pages of this node's memory; `None` where the kernel does not report them. Reads a file of `/proc`.
    pub fn pages(&self) -> Option<Pages> {
        self.node().arena.pages()
    }

    /// Returns the number of the extents of this node's memory.
    pub fn extents(&self) -> usize {
        self.node().arena.files().len()
    }

    /// Returns the number of registrations that these are: on an RNIC, LITE's one (section 4.1).
    pub fn registrations(&self) -> usize {
        self.node().arena.registrations()
    }

    /// Lists regions with a name that were made at a node and to which this principal has a right: `from` is 0, then
    /// [`Listing::next`]. Blocks until [`TierConfig::timeout`] at most.
    pub fn list(&self, node: &str, from: u32) -> Result<Listing, RequestError> {
        let this = self.node();
        let to = this.roster.number_of(node).ok_or_else(|| RequestError::NoNode(node.to_owned()))?;
        let request = Request::List { principal: self.principal.clone(), from };
        match this.demand(to, request, this.until())? {
            Reply::Listed(listing) => Ok(listing),
            _ => Err(this.misfit(to)),
        }
    }

    /// Returns the names of the regions whose records no other node keeps, the first `most`, and the number of all. They end
    /// with the node, wherever their memory is.
    pub fn named_regions(&self, most: usize) -> (Vec<Name>, u64) {
        self.node().state().directory.first_names(most)
    }

    /// Returns whether a keeper, which lives, has the memory and the records of this node. Does not block.
    pub fn is_kept(&self) -> bool {
        let keeper = self.running.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = keeper.as_ref().is_some_and(|keeper| keeper.is_alive());
        lives && self.node().state().ledger.is_some()
    }

    /// Has the keeper forget the memory of this node, if it has one: regions end with the node. Blocks for 5 s at most.
    ///
    /// # Errors
    /// The keeper does not answer.
    pub fn end_keeping(&self) -> Result<(), KeeperError> {
        self.node().state().ledger = None;
        let keeper = self.running.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        keeper.map_or(Ok(()), |mut keeper| keeper.forget())
    }

    /// Returns the bytes of this node's memory of regions whose records are at other nodes.
    pub fn lent_memory(&self) -> u64 {
        let node = self.node();
        let state = node.state();
        state.space.lent(|owner| !state.directory.ends_here(owner))
    }

    /// Returns the number of regions that were made at this node, also of those without a name. A region that has moved
    /// counts twice.
    pub fn regions(&self) -> u64 {
        self.node().state().directory.used()
    }

    /// Returns the number of queue pairs to each other node (K in section 6.1), and the reason for it.
    pub fn path_count(&self) -> PathCount {
        let node = self.node();
        PathCount { count: node.config.paths, reason: node.path_reason.clone() }
    }

    /// Returns the operations and calls of a priority: counters of those that have begun, and operations that have a path or wait for one.
    pub fn operations(&self, priority: Priority) -> PriorityStatus {
        let [operations, bytes, calls] = self.node().qos.counted(priority);
        let PathQueue { under_way, waiting } = self.node().paths.queue(priority);
        PriorityStatus { operations, bytes, calls, under_way, waiting }
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
        let until = self.node().until();
        loop {
            match self.try_malloc(length, &spec, until) {
                // A node ended meanwhile, this region's or another one.
                Err(RequestError::Table(TableError::Interrupted)) if self.fabric().host().now() < until => {}
                made => return made,
            }
        }
    }

    fn try_malloc(&self, length: u64, spec: &Spec, until: Nanos) -> Result<Lmr<F>, RequestError> {
        let node = self.node();
        let name = spec.name.as_ref().map(|name| self.open_name(name)).transpose()?;
        let stores = self.stores(spec)?;
        let grants = spec.grants()?;
        if let (None, Some(_)) = (&name, spec.lease()) {
            let node = node.config.node.clone();
            return Err(RequestError::Refused { node, source: RecordError::NoName.into() });
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
        let memory = match spec.is_direct {
            true => {
                let tenant = spec.tenant.as_ref().unwrap_or(&self.principal);
                self.allocate_direct(tenant, id, length, &stores)
            }
            false => self.allocate(id, length, &stores, until),
        };
        let made = memory.and_then(|layout| {
            {
                let (now, directory) = (node.fabric.host().now(), &mut node.state().directory);
                directory.create(id, name.clone(), layout.clone(), self.principal.clone(), node.me);
                if spec.lease().is_some() {
                    directory.lease(id, &self.principal, spec.lease(), now).map_err(refused)?;
                }
            }
            for (to, rights) in grants {
                node.state().directory.grant(id, &self.principal, to, rights).map_err(refused)?;
            }
            Ok(layout)
        });
        let mapped = match made {
            Ok(layout) => {
                let whose = (&self.principal, Rights::ALL);
                node.state().handles.finish_map(ticket, id, whose, layout).map_err(Into::into)
            }
            Err(error) => {
                node.state().handles.abandon_map(ticket);
                Err(error)
            }
        };
        // The home gets the name last. From then on others map the region, and a failure here must not free it.
        let named = mapped.and_then(|handle| {
            let claimed = name.as_ref().map_or(Ok(()), |name| node.claim_name(name, id, until));
            if claimed.is_err() {
                node.unmap(handle);
            }
            claimed.map(|()| handle)
        });
        let handle = named.inspect_err(|_| node.undo(id, &stores, until))?;
        if spec.lease().is_some() {
            node.cleaner.raise();
        }
        Ok(self.lmr(handle, id, length))
    }

    /// Returns the nodes that shall store a region.
    fn stores(&self, spec: &Spec) -> Result<Vec<NodeId>, RequestError> {
        if spec.nodes.is_empty() {
            return Ok(vec![self.node().me]);
        }
        self.node().numbers_of(spec)
    }

    /// Allocates the pieces of a region in memory of this node that belongs to one user alone.
    fn allocate_direct(
        &self,
        tenant: &Principal,
        owner: LmrId,
        length: u64,
        stores: &[NodeId],
    ) -> Result<Layout, RequestError> {
        let node = self.node();
        if stores != [node.me] {
            return Err(NoDirect::Nodes.into());
        }
        if !node.arena.is_shared(&node.fabric) {
            return Err(NoDirect::Fabric.into());
        }
        if length == 0 || length.div_ceil(node.config.piece.into()) > dunlin_tier::cut::MAX_PIECES as u64 {
            return Err(RequestError::Length(length));
        }
        let made = node.allocate(Some(tenant), owner, length, node.config.piece);
        made.map_err(|source| RequestError::Refused { node: node.config.node.clone(), source })
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
        let memories = shares.iter().flat_map(|share| share.memories().iter().copied());
        Ok(Layout::new((0..count).map(piece_at).collect())?.in_memories(memories))
    }

    /// Starts threads for asynchronous operations on regions that this node has mapped: futures for any executor.
    ///
    /// # Errors
    /// A thread cannot be started, or their number is not 1 to 64.
    pub fn asynchronous(&self, config: AsyncConfig) -> std::io::Result<Asynchronous<Lmr<F>, F::Host>> {
        Asynchronous::start(self.fabric().host(), config, self.node().config.timeout)
    }

    /// Maps a region by its name with exactly these rights (`LT_map`). Each call gives a new handle. Blocks until
    /// [`TierConfig::timeout`] at most.
    ///
    /// # Errors
    /// A region to which this process's principal has no right looks like an absent one.
    pub fn map(&self, name: impl AsRef<[u8]>, rights: Rights) -> Result<Lmr<F>, RequestError> {
        let name = Name::new(name)?;
        let (node, until) = (self.node(), self.node().until());
        loop {
            let found = node.ask_home(&name, |_| Request::Lookup { name: name.clone() }, until)?;
            let (_, Reply::Found(id, keepers)) = found else { return Err(node.misfit(found.0)) };
            match node.map((id, &keepers), &self.principal, rights, until) {
                Ok((handle, mapped, length)) => {
                    let lmr = self.lmr(handle, mapped, length);
                    if rights.contains(Rights::MASTER) {
                        node.keep_too(&name, id, &keepers);
                    }
                    return Ok(lmr);
                }
                // The home knows of the region's node, alive, and this node does not, or the other way round.
                Err(error) if id.node != node.me && node.may_repeat(&error, until) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
