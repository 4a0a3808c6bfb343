//! The state of a node, and its answers to requests of other nodes.

use crate::acceptor::Fencing;
use crate::arena::{Arena, Place};
use crate::cleaner::Todo;
use crate::config::TierConfig;
use crate::delays::Delays;
use crate::direct::Holds;
use crate::error::RequestError;
use crate::forward::{Board, Links};
use crate::free::Mover;
use crate::kept::{KeptLedger, Lineage, StateGuard};
use crate::lanes::Lanes;
use crate::locks::Locks;
use crate::operate::Copy;
use crate::path::{Path, PathLinks};
use crate::path_count::PathReason;
use crate::paths::Paths;
use crate::qos::{Class, Qos};
use crate::rings::Rings;
use crate::roster::Roster;
use crate::seats::Seats;
use crate::services::Services;
use crate::steps::Steps;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, Work, nanos};
use dunlin_tier::cut::{MAX_PIECE, MAX_PIECES};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{
    Directory, Epoch, HandleTable, Layout, LmrId, Name, Names, NodeId, Operation, Piece, Principal,
    RecordError, Space, SpaceError,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) type SignalOf<F> = <<F as Fabric>::Host as Host>::Signal;

/// The life of another node, and its fences of this one, as of the last connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) incarnation: u64,
    pub(crate) fences: u64,
}

/// The state machines of a node.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) space: Space,
    pub(crate) directory: Directory,
    pub(crate) names: Names,
    pub(crate) handles: HandleTable,
    pub(crate) holds: Holds,
    /// For each node; `None` before the first connection.
    pub(crate) known: Vec<Option<Known>>,
    /// This node's fences of each node so far.
    pub(crate) fences: Vec<u64>,
    /// Regions whose memory is to be taken back, each at its time.
    pub(crate) settling: VecDeque<(Nanos, LmrId)>,
    /// Memory of other nodes' rings, with its bytes.
    pub(crate) rings: BTreeMap<LmrId, u64>,
    /// The ledger of a node whose memory outlives its process.
    pub(crate) ledger: Option<KeptLedger>,
}

impl State {
    /// Takes back the memory whose time has come; returns the time of the next.
    pub(crate) fn settle(&mut self, now: Nanos) -> Option<Nanos> {
        while let Some(&(due, owner)) = self.settling.front() {
            if now < due {
                return Some(due);
            }
            self.settling.pop_front();
            self.space.release(owner);
            self.rings.remove(&owner);
            self.keep_settling(owner, false);
        }
        None
    }

    /// Takes the memory of a region back at `due`. A repetition has no effect, and needs no place. Returns whether the
    /// cleaner has to hear of it: as long as other memory settles, it looks by itself.
    pub(crate) fn settle_later(&mut self, due: Nanos, owner: LmrId) -> bool {
        let is_first = self.settling.is_empty();
        if !self.settling.iter().any(|(_, settling)| *settling == owner) {
            self.settling.push_back((due, owner));
            self.keep_settling(owner, true);
        }
        is_first
    }
}

/// A node. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Node<F: Fabric> {
    pub(crate) fabric: F,
    pub(crate) config: TierConfig,
    /// The reason for the number of paths.
    pub(crate) path_reason: PathReason,
    pub(crate) me: NodeId,
    pub(crate) roster: Roster,
    /// The principal of the process, for regions of the node's own use.
    pub(crate) principal: Principal,
    /// The class of the node's own operations: locks and requests.
    pub(crate) class: Class,
    pub(crate) qos: Qos,
    pub(crate) steps: Steps<F::Host>,
    /// A random number of this process.
    pub(crate) incarnation: u64,
    /// Numbers that the next life has, too, if the memory outlives this one.
    pub(crate) lineage: Lineage,
    pub(crate) arena: Arena<F>,
    state: Mutex<State>,
    /// The clients of each node's service.
    pub(crate) seats: Vec<Seats<F>>,
    pub(crate) locks: Locks<F>,
    pub(crate) services: Arc<Services<F>>,
    pub(crate) rings: Rings,
    pub(crate) board: Arc<Board<F>>,
    /// The clients of the board, for each node.
    pub(crate) links: Mutex<Vec<Links<F>>>,
    pub(crate) paths: Paths<Box<Path<F>>, F::Host>,
    /// The places of commands to other nodes.
    pub(crate) places: Paths<(), F::Host>,
    /// Calls that do not go out yet.
    pub(crate) delays: Arc<Delays<F::Host>>,
    /// Threads for long payloads of calls of processes.
    pub(crate) lanes: Lanes<F::Host>,
    pub(crate) fencing: Fencing<SignalOf<F>>,
    pub(crate) path_links: PathLinks<F>,
    /// The last trouble with the membership, in words.
    pub(crate) trouble: Mutex<String>,
    /// Wakes the thread that renews the membership.
    pub(crate) members: SignalOf<F>,
    /// Another node has another view: the membership is to be renewed soon.
    pub(crate) is_other_view: AtomicBool,
    /// Wakes the thread that tells the homes of names.
    pub(crate) rehoming: SignalOf<F>,
    todo: Mutex<Todo>,
    pub(crate) cleaner: SignalOf<F>,
    pub(crate) over: AtomicBool,
}

/// The time from the last completion of an operation, or from the end of a fenced connection, until its bytes are
/// certainly placed, in nanoseconds. A completion says that the NIC has the bytes; the bus to the memory, which it does
/// not wait for, takes some microseconds at most.
pub(crate) const SETTLE: Nanos = 1_000_000;
/// The pause of a thread that waits for memory that another thread zeroes, in nanoseconds.
const CLEANED_SOON: Nanos = 50_000;
/// The longest block for the pieces of one region: an extent, as a rule. With one for each piece, 1 GiB takes 256.
const LONGEST_BLOCK: u64 = 64 << 20;
/// Bytes that `memset` sets with the lock held.
const SET_AT_ONCE: u64 = 64 << 10;
/// Bytes that are filled by one copy.
const ZEROES: [u8; 4096] = [0; 4096];

impl<F: Fabric> Node<F> {
    pub(crate) fn new(
        fabric: &F,
        (config, path_reason): (TierConfig, PathReason),
        (me, principal): (NodeId, Principal),
        (lineage, incarnation): (Lineage, u64),
        roster: Roster,
        arena: Arena<F>,
    ) -> Arc<Self> {
        let host = fabric.host();
        let most = usize::from(roster.max_nodes);
        let mut space = Space::new();
        for (_, _, length) in arena.registered() {
            space.add_extent(length);
        }
        let mut names = Names::default();
        if roster.is_dynamic {
            names.begin(roster.get().view.alive().map(|member| member.node));
        }
        let state = State {
            space,
            directory: Directory::new(me, lineage.generation),
            names,
            handles: HandleTable::new(),
            holds: Holds::default(),
            known: vec![None; most],
            fences: vec![0; most],
            settling: VecDeque::new(),
            rings: BTreeMap::new(),
            ledger: None,
        };
        let (qos, class) = Qos::new(&config.qos, &principal);
        Arc::new(Node {
            fabric: fabric.clone(),
            me,
            class,
            qos,
            steps: Steps::new(config.qos.policy),
            principal,
            roster,
            incarnation,
            lineage,
            arena,
            state: Mutex::new(state),
            seats: (0..most).map(|_| Seats::new(host)).collect(),
            locks: Locks::new(most),
            services: Arc::new(Services::new()),
            rings: Rings::new(most),
            board: Arc::new(Board::new(fabric)),
            links: Mutex::new((0..most).map(|_| Default::default()).collect()),
            paths: Paths::new(config.paths, config.qos.policy),
            places: Paths::new(config.paths, config.qos.policy),
            delays: Delays::new(host),
            lanes: Lanes::new(),
            fencing: Fencing::new(host.signal()),
            path_links: PathLinks::<F>::default(),
            trouble: Mutex::default(),
            members: host.signal(),
            is_other_view: AtomicBool::new(false),
            rehoming: host.signal(),
            todo: Mutex::default(),
            cleaner: host.signal(),
            over: AtomicBool::new(false),
            path_reason,
            config,
        })
    }

    /// Locks the state, for a few instructions. Nobody waits with the lock held.
    pub(crate) fn state(&self) -> StateGuard<'_> {
        StateGuard(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn name_of(&self, node: NodeId) -> String {
        self.roster.get().peer(node).map_or_else(|| node.to_string(), |peer| peer.name.clone())
    }

    pub(crate) fn until(&self) -> Nanos {
        self.fabric.host().now().saturating_add(nanos(self.config.timeout))
    }

    /// Returns the node that keeps a name.
    pub(crate) fn home_of(&self, name: &Name) -> NodeId {
        self.roster.home(name).unwrap_or(self.me)
    }

    /// Returns the node that owns the lock and the barrier of a name.
    pub(crate) fn lock_home_of(&self, name: &Name) -> NodeId {
        self.roster.lock_home(name).unwrap_or(self.me)
    }

    /// Returns the node that owns the lock and the barrier of a name, and the view that says so.
    pub(crate) fn lock_owner_of(&self, name: &Name) -> (NodeId, dunlin_tier::Epoch) {
        let view = Arc::clone(&self.roster.get().view);
        (view.lock_home(name).unwrap_or(self.me), view.epoch)
    }

    /// Ends an operation, and has its region reported if that closed an unmapped handle.
    pub(crate) fn end(&self, operation: Operation) {
        let closed = self.state().handles.end(operation);
        if let Some(id) = closed {
            self.report_unmapped(id);
        }
    }

    /// Has the cleaner tell the record's node that one handle of a region is closed.
    pub(crate) fn report_unmapped(&self, id: LmrId) {
        self.todo().unmapped.push(id);
        self.cleaner.raise();
    }

    /// Answers a request of any node, this one included. `slow` requests are answered in [`free`](crate::free).
    pub(crate) fn answer(&self, request: Request) -> Reply {
        self.try_answer(request).unwrap_or_else(Reply::Refused)
    }

    fn try_answer(&self, request: Request) -> Result<Reply, Refusal> {
        // A node that has joined with a later view than this node's is not known yet.
        let is_node = |node: NodeId| node.0 < self.roster.max_nodes;
        Ok(match request {
            Request::Claim { name, id, epoch } => {
                let mut state = self.state();
                self.check_home(&state, &name, false)?;
                if epoch != self.roster.get().view.epoch {
                    return Err(Refusal::Rehoming { epoch: self.roster.get().view.epoch.number });
                }
                state.names.claim(name, id, id.node)?;
                Reply::Done
            }
            Request::Lookup { name } => {
                let state = self.state();
                let found = state.names.lookup(&name);
                self.check_home(&state, &name, found.is_some())?;
                let (id, keepers) = found.ok_or(RecordError::NoSuch)?;
                Reply::Found(id, keepers)
            }
            Request::Forget { name, id } => {
                let mut state = self.state();
                // The new home hears of a region that is being freed, if at all, before it is whole.
                self.check_home(&state, &name, false)?;
                state.names.forget(&name, id);
                Reply::Done
            }
            Request::LetGo { id } => Reply::Held(self.ask_holders(id)),
            Request::Exists { id } => Reply::Flag(self.state().directory.exists(id)),
            Request::Allocate { owner, length, piece } => {
                Reply::Allocated(self.allocate(None, owner, length, piece)?)
            }
            Request::Ring { owner, length, least } => {
                Reply::Allocated(self.allocate_part(owner, length, least)?)
            }
            Request::Release { owner } => {
                let due = self.fabric.host().now().saturating_add(SETTLE);
                let is_first = self.state().settle_later(due, owner);
                self.fencing.forget(owner);
                if is_first {
                    self.cleaner.raise();
                }
                Reply::Done
            }
            Request::Map { id, wanted, mapper, principal } if is_node(mapper) => {
                let mapped = self.state().directory.map(id, &principal, wanted, mapper);
                if matches!(mapped, Err(RecordError::Moving)) {
                    self.ask_for_its_end(id);
                }
                Reply::Mapped(mapped?)
            }
            Request::Unmap { id, mapper } => {
                if self.state().directory.unmap(id, mapper) {
                    self.free_unused(id);
                }
                Reply::Done
            }
            Request::Grant { id, rights, by, to } => {
                self.check_orders(id)?;
                self.state().directory.grant(id, &by, to, rights)?;
                self.spread(id)?;
                Reply::Done
            }
            Request::AddKeeper { id, node } if is_node(node) => {
                self.add_keeper(id, node)?;
                Reply::Done
            }
            Request::Keep { id, version, epoch, from, is_new, record } if is_node(from) => {
                Reply::Kept(self.keep(id, (version, epoch), (from, is_new), &record)?)
            }
            Request::Record { epoch, .. } if self.is_behind(epoch) => {
                return Err(Refusal::Rehoming { epoch: self.roster.get().view.epoch.number });
            }
            Request::Record { id, .. } => {
                Reply::Record(self.state().directory.record_for(id).ok_or(RecordError::NoSuch)?)
            }
            Request::Unkeep { id } => {
                self.state().directory.forget(id);
                Reply::Done
            }
            Request::Revoke { id, rights, by, from } => {
                self.check_orders(id)?;
                return self.revoke(id, &by, &from, rights).map(Reply::Left);
            }
            Request::Lease { id, by, length } => {
                self.check_orders(id)?;
                let now = self.fabric.host().now();
                self.state().directory.lease(id, &by, length, now)?;
                let spread = self.spread(id);
                self.cleaner.raise();
                // A lease that has run out has ended the region, perhaps before the others heard of it.
                if !self.state().directory.has_ended(id) {
                    spread?;
                }
                Reply::Done
            }
            Request::Restrict { epoch, .. } | Request::Stop { epoch, .. } if self.is_behind(epoch) => {
                Reply::Flag(false)
            }
            Request::Restrict { id, grants, .. } => {
                let in_flight = self.state().handles.restrict(id, &grants);
                if !in_flight.is_empty() {
                    self.ask_holders_of(id, &in_flight);
                    self.settle_paths_soon();
                }
                Reply::Flag(in_flight.is_empty())
            }
            Request::Free { id, by } => {
                self.check_orders(id)?;
                return self.free(id, Some(&by)).map(|()| Reply::Done);
            }
            Request::Stop { id, moves, .. } => {
                let has_drained = self.state().handles.stop(id, moves);
                if !has_drained {
                    self.settle_paths_soon();
                }
                Reply::Flag(has_drained)
            }
            Request::Move { id, by, to } => {
                self.check_orders(id)?;
                return self.relocate(id, Mover::Master(&by), to).map(|()| Reply::Done);
            }
            Request::MoveAway { id, from, to } => {
                self.check_orders(id)?;
                return self.relocate(id, Mover::Store(from), to).map(|()| Reply::Done);
            }
            // Operations of this node on its own memory need no connection, so a fence could not stop them.
            Request::Fence { mapper, .. } if mapper == self.me => Reply::Flag(false),
            Request::Fence { id, mapper } => Reply::Flag(self.fencing.ask(mapper, id)),
            Request::FetchAdd { owner, extent, offset, add } => {
                Reply::Old(self.change((owner, extent, offset), |old| old.wrapping_add(add))?)
            }
            Request::CompareSwap { owner, extent, offset, expected, swap } => {
                let new = |old| if old == expected { swap } else { old };
                Reply::Old(self.change((owner, extent, offset), new)?)
            }
            Request::Set { owner, extent, offset, length, value } => {
                self.set((owner, extent, offset), length, value)?;
                Reply::Done
            }
            Request::Copy { owner, extent, offset, length, to, target, backwards, principal, priority } => {
                let principal = &principal;
                let whose = (principal, priority);
                self.copy(&Copy { owner, extent, offset, length, to, target, backwards, whose })?;
                Reply::Done
            }
            Request::Stores { epoch, owner } => return self.has_memory_of(epoch, owner),
            Request::Known { epoch, by_handle, stops, ids } => {
                return self.known(epoch, [by_handle, stops], &ids);
            }
            Request::Serves { service } => Reply::Flag(self.services.serves(&service)),
            Request::List { principal, from } => Reply::Listed(self.state().directory.list(&principal, from)),
            Request::Rehome { node, epoch, names, is_last } if is_node(node) => {
                self.rehome(node, epoch, names, is_last)
            }
            Request::Map { .. }
            | Request::Rehome { .. }
            | Request::AddKeeper { .. }
            | Request::Keep { .. } => return Err(Refusal::Malformed),
        })
    }

    /// Returns whether this node has an earlier view than another one: it may map regions as that says.
    fn is_behind(&self, epoch: Epoch) -> bool {
        let is_behind = epoch > self.roster.get().view.epoch;
        if is_behind {
            self.ask_for_view();
        }
        is_behind
    }

    /// Has the cleaner connect the paths on which an operation is under way that no thread may ever use again.
    pub(crate) fn settle_paths_soon(&self) {
        self.todo().settles_paths = true;
        self.cleaner.raise();
    }

    /// Allocates zeroed memory in pieces, all or nothing: in extents that users share, or in those of `tenant`. Zeroes
    /// released memory if there is no other.
    pub(crate) fn allocate(
        &self,
        tenant: Option<&Principal>,
        owner: LmrId,
        length: u64,
        piece: u32,
    ) -> Result<Layout, Refusal> {
        let count = length.div_ceil(u64::from(piece.max(1)));
        if piece == 0 || piece > MAX_PIECE || count == 0 || count > MAX_PIECES as u64 {
            return Err(Refusal::Malformed);
        }
        let (mut pieces, mut left) = (Vec::with_capacity(count as usize), length);
        let (piece, mut longest) = (u64::from(piece), LONGEST_BLOCK);
        let mut is_last_attempt = false;
        while left > 0 {
            // Several pieces in one block that has no bytes over. A tenant rather fills the extents that it has.
            let wanted = match tenant.is_none() && left > piece && piece.is_power_of_two() {
                true => longest.min(1 << left.ilog2()).max(piece),
                false => left.min(piece),
            };
            let allocated = match tenant {
                None => self.state().space.allocate(owner, wanted),
                Some(tenant) => self.state().space.allocate_for(tenant, owner, wanted),
            };
            match allocated {
                Ok(block) => {
                    let parts = (0..wanted).step_by(piece as usize);
                    pieces.extend(parts.map(|at| Piece {
                        node: self.me,
                        extent: block.extent,
                        length: (wanted - at).min(piece) as u32,
                        offset: block.offset + at,
                    }));
                    left -= wanted;
                    is_last_attempt = false;
                }
                Err(SpaceError::Full { .. }) if wanted > piece => longest = wanted / 2,
                Err(SpaceError::Full { dirty, .. }) if dirty > 0 => {
                    if !self.clean_one() {
                        // Another thread zeroes it.
                        let host = self.fabric.host();
                        host.sleep(host.now().saturating_add(CLEANED_SOON));
                    }
                }
                Err(SpaceError::Full { .. }) if self.wait_to_settle() => is_last_attempt = false,
                // Memory that settled meanwhile, or was zeroed by another thread, is there now.
                Err(SpaceError::Full { .. }) if !is_last_attempt => is_last_attempt = true,
                Err(_) => {
                    self.state().space.release(owner);
                    self.cleaner.raise();
                    return Err(Refusal::OutOfMemory { wanted: length });
                }
            }
        }
        let layout = Layout::new(pieces).map_err(|_| Refusal::Malformed)?;
        Ok(layout.in_memories([(self.me, self.lineage.memory)]))
    }

    /// Makes a region of this node for its own use, which has no name and lives as long as the node.
    pub(crate) fn make_internal(&self, length: u64) -> Result<LmrId, RequestError> {
        let refused = |source: Refusal| RequestError::Refused { node: self.config.node.clone(), source };
        let id = self.state().directory.reserve().map_err(|error| refused(error.into()))?;
        match self.allocate(None, id, length, self.config.piece) {
            Ok(layout) => {
                self.state().directory.create(id, None, layout, self.principal.clone(), self.me);
                Ok(id)
            }
            Err(error) => {
                self.state().directory.forget(id);
                Err(refused(error))
            }
        }
    }

    /// Zeroes one released block; returns `false` without one. The lock is not held meanwhile.
    pub(crate) fn clean_one(&self) -> bool {
        let Some(block) = self.state().space.next_dirty() else { return false };
        if let Some(place) = self.arena.range(block.extent, block.offset, block.length) {
            self.fill(place, block.length, 0);
        }
        self.state().space.cleaned(block)
    }

    /// Waits for memory that is to be taken back; returns `false` without any.
    fn wait_to_settle(&self) -> bool {
        let host = self.fabric.host();
        let due = self.state().settling.front().map(|(due, _)| *due);
        due.inspect(|due| host.sleep(*due)).is_some_and(|_| {
            self.state().settle(host.now());
            true
        })
    }

    fn fill(&self, (memory, start): Place<'_, F::Memory>, length: u64, value: u8) {
        let mut own = [0; ZEROES.len()];
        let source = if value == 0 {
            &ZEROES
        } else {
            own.fill(value);
            &own
        };
        let (mut at, end) = (start, start + length as usize);
        while at < end {
            let part = (end - at).min(source.len());
            memory.copy_in(at, &source[..part]);
            at += part;
        }
        self.fabric.host().charge(Work::CopyBytes, u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Changes a word in the name of all nodes. Where the fabric has no atomics, every atomic comes here. The lock keeps
    /// the word's block from being taken back meanwhile, and atomics apart.
    fn change(&self, place: (LmrId, u16, u64), new: impl FnOnce(u64) -> u64) -> Result<u64, Refusal> {
        let (owner, extent, offset) = place;
        if self.fabric.capabilities().atomics.exist() || !offset.is_multiple_of(8) {
            return Err(Refusal::Malformed);
        }
        let (memory, at) = self.arena.range(extent, offset, 8).ok_or(Refusal::NoPlace)?;
        let state = self.state();
        if !state.space.owns(owner, extent, offset, 8) {
            return Err(Refusal::NoPlace);
        }
        let old = memory.load(at);
        memory.store(at, new(old));
        Ok(old)
    }

    /// Sets bytes of a region to a value. Each part is set with the lock held, so a request that outlived its region
    /// changes nothing of the next one.
    fn set(&self, place: (LmrId, u16, u64), length: u32, value: u8) -> Result<(), Refusal> {
        let (owner, extent, offset) = place;
        let (memory, start) = self.arena.range(extent, offset, length.into()).ok_or(Refusal::NoPlace)?;
        if !self.state().space.owns(owner, extent, offset, length.into()) {
            return Err(Refusal::NoPlace);
        }
        let (mut done, length) = (0, u64::from(length));
        while done < length {
            let part = (length - done).min(SET_AT_ONCE);
            let state = self.state();
            if !state.space.owns(owner, extent, offset + done, part) {
                return Err(Refusal::NoPlace);
            }
            self.fill((memory, start + done as usize), part, value);
            drop(state);
            done += part;
        }
        Ok(())
    }
}
