//! Frees, moves and revocations: the node that keeps a region's record drives the machine of `dunlin_tier::retire`
//! until all memory is taken back, or no node can touch it by a right that was revoked. The caller's thread drives for
//! a while, then the cleaner goes on.

use crate::error::RequestError;
use crate::keepers::{AllTold, Told};
use crate::node::{Node, SETTLE};
use dunlin_fabric::{Fabric, Host, Nanos, Signal, WithSources, nanos};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{
    Command, Ending, Grantee, Grants, Holder, Layout, Leaving, LmrId, Name, NodeId, Principal, Priority,
    RecordError, Retirement, Revoking, Rights,
};
use std::collections::BTreeSet;

/// The shortest and the longest pause between two rounds of requests, in nanoseconds.
const PAUSES: [Nanos; 2] = [20_000, 10_000_000];
/// The time for one request of a free, in nanoseconds.
const REQUEST: Nanos = 500_000_000;
/// The time for a request to a mapper that was silent for too long, in nanoseconds: its fence does not wait longer.
const LATE: Nanos = 100_000_000;

/// The effect on the nodes that have mapped a region.
#[derive(Debug)]
enum Aim {
    /// The region is gone.
    Free,
    /// It lives on at another place.
    Move,
    /// Principals have these grants only.
    Revoke(Grants),
}

/// The initiator of a move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mover<'a> {
    /// A master of the region.
    Master(&'a Principal),
    /// A node whose memory it shall leave.
    Store(NodeId),
}

/// A free that is under way, a move, or a revocation.
#[derive(Debug)]
pub(crate) struct Free {
    /// The region.
    pub(crate) id: LmrId,
    /// The id that owns the memory.
    memory: LmrId,
    /// The id of its fences. A move that is given up and tried again needs new ones.
    fence: LmrId,
    has_fenced: bool,
    aim: Aim,
    /// The nodes that store the region, and may have fenced others by this id.
    stores: Vec<NodeId>,
    machine: Retirement,
    /// Other nodes that keep the record, and have to forget it at the end.
    keepers: Vec<NodeId>,
    /// The bytes have their new place, of which other keepers have not heard: the memory is needed until then.
    is_published: bool,
    /// Another node orders the changes of the record: it ends this, or undoes it.
    is_deposed: bool,
    /// The name that its home has to forget.
    name: Option<Name>,
    /// Mappers that have not drained by then are fenced.
    silent_at: Nanos,
}

impl Free {
    fn new(
        (id, memory, fence): (LmrId, LmrId, LmrId),
        (aim, stores): (Aim, Vec<NodeId>),
        machine: Retirement,
        silent_at: Nanos,
    ) -> Free {
        let (has_fenced, is_published, is_deposed) = (false, false, false);
        let (keepers, name) = (Vec::new(), None);
        Free {
            id,
            memory,
            fence,
            has_fenced,
            aim,
            stores,
            machine,
            keepers,
            is_published,
            is_deposed,
            name,
            silent_at,
        }
    }

    /// Returns a node that the free waits for.
    fn waits_for(&self, node: NodeId) -> NodeId {
        self.machine.waits_for().into_iter().next().unwrap_or(node)
    }
}

impl<F: Fabric> Node<F> {
    /// Frees a region whose record this node keeps, in the name of a principal. Blocks for a little more than the time
    /// that mappers have to stop; a free that takes longer goes on by itself.
    pub(crate) fn free(&self, id: LmrId, by: Option<&Principal>) -> Result<(), Refusal> {
        if let Some(by) = by {
            self.clear_holders(id, Some(by))?;
        }
        let mut free = self.begin_free(id, by)?;
        let until = self.fabric.host().now().saturating_add(2 * nanos(self.config.stop_timeout));
        if self.drive(&mut free, until) {
            return if free.is_deposed { Err(RecordError::Unsettled.into()) } else { Ok(()) };
        }
        let waits = free.waits_for(self.me);
        self.leave_to_cleaner(free);
        Err(Refusal::Waits(waits))
    }

    /// Begins to free a region without a name, whose last handle is closed. The cleaner drives.
    pub(crate) fn free_unused(&self, id: LmrId) {
        if let Ok(free) = self.begin_free(id, None) {
            self.leave_to_cleaner(free);
        }
    }

    /// Begins to free a region whose lease has run out. A process that has it mapped directly is asked to let go first: then
    /// nothing is done yet.
    pub(crate) fn free_overdue(&self, id: LmrId) {
        match self.users_in_place(id) {
            Ok(holders) if holders.is_empty() => {}
            _ => return,
        }
        // A region that moves is freed afterwards.
        if let Ok(free) = self.begin_free(id, None) {
            tracing::info!(target: "dunlin::tier", region = ?free.name, "a lease has run out: the region is freed");
            self.leave_to_cleaner(free);
        }
    }

    fn leave_to_cleaner(&self, free: Free) {
        self.todo().frees.push(free);
        self.cleaner.raise();
    }

    fn begin_free(&self, id: LmrId, by: Option<&Principal>) -> Result<Free, Refusal> {
        let ending = self.state().directory.begin_free(id, by)?;
        Ok(self.freed(ending))
    }

    /// Goes on with a free that another keeper of the record had begun. The cleaner drives.
    pub(crate) fn resume_free(&self, id: LmrId) {
        let ending = self.state().directory.resume_free(id);
        ending.into_iter().for_each(|ending| self.go_on(ending));
    }

    /// Goes on with a free that has begun in an earlier life. The cleaner drives.
    pub(crate) fn go_on(&self, ending: Ending) {
        self.leave_to_cleaner(self.freed(ending));
    }

    fn freed(&self, ending: Ending) -> Free {
        let Ending { id, memory, mut machine, name, keepers, by_any } = ending;
        self.list_all(&mut machine, by_any);
        let (silent_at, fence, aim) = (self.silent_at(), memory, Aim::Free);
        let stores = Vec::new();
        Free { keepers, name, ..Free::new((id, memory, fence), (aim, stores), machine, silent_at) }
    }

    /// Counts all nodes as mappers of a region whose mappers are not known, the dead ones, too.
    fn list_all(&self, machine: &mut Retirement, by_any: bool) {
        if by_any {
            machine.listed(self.roster.get().view.members.iter().map(|member| member.node));
        }
    }

    /// Returns the time by which mappers have to stop.
    fn silent_at(&self) -> Nanos {
        self.fabric.host().now().saturating_add(nanos(self.config.stop_timeout))
    }

    /// Moves a region whose record this node keeps to the memory of one node, in the name of a master, or in that of a
    /// node whose memory it shall leave. Mappers stop, the nodes that store the region copy its bytes, and the record
    /// gets the new places in one step: until then the region stays where it is, whatever fails. Blocks for a little
    /// more than the time that mappers have to stop, and for the copy.
    pub(crate) fn relocate(&self, id: LmrId, mover: Mover<'_>, to: NodeId) -> Result<(), Refusal> {
        let by = match mover {
            Mover::Master(by) => Some(by),
            Mover::Store(_) => None,
        };
        self.clear_holders(id, by)?;
        // The caller's id is forgotten once the memory that it names is free: that of a move which has just ended.
        let leaving = self.state().directory.begin_move(id, by)?;
        let id = leaving.id;
        let nodes = leaving.layout.nodes();
        if nodes == [to] || matches!(mover, Mover::Store(from) if !nodes.contains(&from)) {
            self.state().directory.abandon_move(id);
            return Ok(());
        }
        let ids = {
            let directory = &mut self.state().directory;
            directory.reserve().and_then(|new| {
                directory.reserve().map(|fence| (new, fence)).inspect_err(|_| directory.forget(new))
            })
        };
        let (new, fence) = match ids {
            Ok(ids) => ids,
            Err(error) => {
                self.state().directory.abandon_move(id);
                return Err(error.into());
            }
        };
        let Leaving { memory, layout, mut machine, by_any, .. } = leaving;
        self.list_all(&mut machine, by_any);
        let (ids, aim) = ((id, memory, fence), (Aim::Move, layout.nodes()));
        let mut free = Free::new(ids, aim, machine, self.silent_at());
        // Nobody has this name: a user could not map the memory before it is the region's.
        let copier = Principal::numbered("move", [new.slot.into(), new.generation]);
        let copied = self.copy_away(&mut free, &layout, by.unwrap_or(&copier), (new, to));
        let moved = copied.and_then(|()| Ok(self.state().directory.finish_move(id, new)?));
        let host = self.fabric.host();
        self.end_fences(&free);
        match moved {
            Ok(is_shared) => {
                free.is_published = is_shared;
                if !is_shared {
                    free.machine.let_go();
                }
                if !self.drive(&mut free, host.now().saturating_add(REQUEST)) {
                    let untold = free.is_published.then(|| free.waits_for(self.me));
                    self.leave_to_cleaner(free);
                    return untold.map_or(Ok(()), |keeper| Err(Refusal::Untold(keeper)));
                }
                if free.is_deposed {
                    return Err(RecordError::Unsettled.into());
                }
                Ok(())
            }
            Err(error) => {
                self.state().directory.abandon_move(id);
                self.undo(new, &[to], self.until());
                if self.state().directory.keepers(id).is_some_and(|keepers| keepers.count() > 1) {
                    self.settle_later([id]);
                }
                Err(error)
            }
        }
    }

    /// Takes rights of a region whose record this node keeps away from a principal, in the name of a master; returns
    /// those that it has left. Mappers end the handles of principals that had more, and drain. Blocks for a little more
    /// than the time that they have for that; a revocation that takes longer goes on by itself.
    pub(crate) fn revoke(
        &self,
        id: LmrId,
        by: &Principal,
        from: &Grantee,
        rights: Rights,
    ) -> Result<Rights, Refusal> {
        // The id of the fences comes first: without it nothing is changed.
        let fence = self.state().directory.reserve()?;
        let begun = self.state().directory.begin_revoke(id, by, from, rights);
        let Revoking { memory, mut machine, grants, left, stores, by_any } = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.state().directory.forget(fence);
                return Err(error.into());
            }
        };
        self.list_all(&mut machine, by_any);
        let (host, aim) = (self.fabric.host(), (Aim::Revoke(grants), stores));
        let mut free = Free::new((id, memory, fence), aim, machine, self.silent_at());
        let until = host.now().saturating_add(2 * nanos(self.config.stop_timeout));
        if !self.drive(&mut free, until) {
            let waits = free.waits_for(self.me);
            self.leave_to_cleaner(free);
            return Err(Refusal::Drains(waits));
        }
        if free.is_deposed {
            return Err(RecordError::Unsettled.into());
        }
        // The last bytes are in their place.
        host.sleep(host.now().saturating_add(SETTLE));
        Ok(left)
    }

    /// Has the stores forget the fences of a move or a revocation. One that does not answer keeps a few bytes.
    fn end_fences(&self, free: &Free) {
        if free.has_fenced {
            for store in &free.stores {
                let until = self.fabric.host().now().saturating_add(REQUEST);
                let _ = self.ask(*store, Request::Release { owner: free.fence }, until);
            }
        }
        self.state().directory.forget(free.fence);
    }

    /// Stops all mappers of a region, and copies its bytes to new memory.
    fn copy_away(
        &self,
        free: &mut Free,
        layout: &Layout,
        by: &Principal,
        (new, to): (LmrId, NodeId),
    ) -> Result<(), Refusal> {
        let (host, piece) = (self.fabric.host(), self.config.piece);
        let failed = |error: RequestError| match error {
            RequestError::Refused { source: source @ Refusal::OutOfMemory { .. }, .. } => source,
            error => {
                let error = WithSources(&error);
                tracing::warn!(target: "dunlin::tier", %error, "a region could not be moved");
                Refusal::NotCopied
            }
        };
        // Memory first: without it, nobody has to stop.
        let length = layout.length();
        let request = Request::Allocate { owner: new, length, piece };
        let places = match self.demand(to, request, self.until()).map_err(failed)? {
            Reply::Allocated(places) if places.length() == length && places.nodes() == [to] => places,
            _ => return Err(failed(self.misfit(to))),
        };
        // The nodes that store the bytes map it in the name of the master.
        {
            let directory = &mut self.state().directory;
            directory.create(new, None, places, by.clone(), self.me);
            directory.set_target(new);
        }
        let until = host.now().saturating_add(2 * nanos(self.config.stop_timeout));
        if !self.drive(free, until) {
            let nodes = free.machine.waits_for().into_iter();
            return Err(Refusal::InUse(nodes.map(|node| Holder { node, process: 0 }).collect()));
        }
        // The processors that copy see all that was written.
        host.sleep(host.now().saturating_add(SETTLE));
        let mut target = 0;
        for piece in layout.pieces() {
            let copy = Request::Copy {
                owner: free.memory,
                extent: piece.extent,
                offset: piece.offset,
                length: piece.length,
                to: new,
                target,
                backwards: false,
                principal: by.clone(),
                priority: Priority::High,
            };
            self.demand(piece.node, copy, self.until()).map_err(failed)?;
            target += u64::from(piece.length);
        }
        // So does the one of the node that has them now.
        host.sleep(host.now().saturating_add(SETTLE));
        Ok(())
    }

    /// Gives back everything that a region has taken which could not be made. The cleaner goes on with nodes that do not
    /// answer.
    pub(crate) fn undo(&self, id: LmrId, stores: &[NodeId], until: Nanos) {
        match self.free(id, None) {
            // There is no record yet.
            Err(Refusal::Record(_)) => {}
            // Freed, or the cleaner goes on.
            _ => return,
        }
        let mut away = BTreeSet::new();
        for store in stores {
            if let Err(error) = self.ask(*store, Request::Release { owner: id }, until) {
                tracing::info!(target: "dunlin::tier", %error, "memory of a region that could not be made is released later");
                away.insert(*store);
            }
        }
        if away.is_empty() {
            self.state().directory.forget(id);
        } else {
            self.todo().left.push((id, away));
            self.cleaner.raise();
        }
    }

    /// Sends the requests of a free until it is done, or until `until`; returns whether it is done. Those of a move and
    /// of a revocation end when no node can touch the memory any more, or not by the right.
    pub(crate) fn drive(&self, free: &mut Free, until: Nanos) -> bool {
        let (host, mut pause) = (self.fabric.host(), PAUSES[0]);
        loop {
            // Until then another keeper may take over without having heard of the free.
            if free.machine.has_gathered()
                && let Some(name) = free.name.take()
            {
                // A home that cannot be reached gives the name away later: it asks whether the region exists.
                let (home, id) = (self.home_of(&name), free.id);
                if let Err(error) = self.ask(home, Request::Forget { name, id }, host.now() + REQUEST) {
                    tracing::debug!(target: "dunlin::tier", %error, "a name is not forgotten yet");
                }
            }
            if free.is_published {
                self.publish_move(free);
            }
            let commands = free.machine.commands();
            for command in &commands {
                self.carry_out(free, *command);
            }
            if free.is_deposed {
                if !matches!(free.aim, Aim::Free) {
                    self.end_fences(free);
                }
                return true;
            }
            if free.machine.is_done() && self.forget_at_keepers(free) {
                match &free.aim {
                    Aim::Free => self.state().directory.forget(free.id),
                    Aim::Move => self.state().directory.forget_memory(free.memory),
                    // All nodes that store the region have ended.
                    Aim::Revoke(_) => self.end_fences(free),
                }
                return true;
            }
            let waits = free.machine.is_done() || free.is_published;
            if free.machine.commands().is_empty() && !waits {
                if matches!(free.aim, Aim::Revoke(_)) {
                    self.end_fences(free);
                }
                return true;
            }
            let now = host.now();
            if now >= until || self.is_over() {
                return false;
            }
            if free.machine.commands() == commands {
                host.sleep(now.saturating_add(pause).min(until));
                pause = (2 * pause).min(PAUSES[1]);
            }
        }
    }

    /// Tells other keepers the new places of a region that has moved. Then it is mapped again, and leaves its old memory.
    fn publish_move(&self, free: &mut Free) {
        match self.tell_keepers(free.id) {
            AllTold::Yes(_) => {
                free.is_published = false;
                free.machine.let_go();
                self.state().directory.end_move(free.id);
                self.settle_later([free.id]);
            }
            AllTold::No(_) => {}
            AllTold::Deposed => free.is_deposed = true,
        }
    }

    /// Has the other keepers forget a region that is freed; returns whether all have.
    fn forget_at_keepers(&self, free: &mut Free) -> bool {
        let id = free.id;
        free.keepers.retain(|keeper| {
            let until = self.fabric.host().now().saturating_add(REQUEST);
            self.roster.dead_in(*keeper).is_none()
                && !matches!(self.ask(*keeper, Request::Unkeep { id }, until), Ok(Reply::Done))
        });
        free.keepers.is_empty()
    }

    fn carry_out(&self, free: &mut Free, command: Command) {
        let (id, host) = (free.memory, self.fabric.host());
        let until = host.now().saturating_add(REQUEST);
        let epoch = self.roster.get().view.epoch;
        match command {
            Command::Gather { keeper } => match self.tell_keeper(free.id, keeper, false) {
                Told::Kept(mappers) => free.machine.gathered(keeper, mappers),
                Told::Lost => {
                    let all = self.roster.get();
                    free.machine.gathered(keeper, all.view.members.iter().map(|member| member.node));
                }
                Told::Deposed => {
                    self.deposed(free.id);
                    free.is_deposed = true;
                }
                Told::Silent => {}
            },
            // It had operations in flight, perhaps: the stores fence it.
            Command::Stop { mapper } if self.roster.dead_in(mapper).is_some() => free.machine.silent(mapper),
            // Its memory is out of reach for good: it comes back with another incarnation, and nobody maps this region.
            Command::Fence { store, .. } | Command::Release { store }
                if self.roster.dead_in(store).is_some() =>
            {
                free.machine.lost(store);
            }
            Command::Stop { mapper } => {
                let request = match &free.aim {
                    Aim::Free => Request::Stop { epoch, id, moves: false },
                    Aim::Move => Request::Stop { epoch, id, moves: true },
                    Aim::Revoke(grants) => Request::Restrict { epoch, id, grants: grants.clone() },
                };
                let time = if host.now() < free.silent_at { REQUEST } else { LATE };
                match self.ask(mapper, request, host.now().saturating_add(time)) {
                    Ok(Reply::Flag(true)) => free.machine.stopped(mapper),
                    // This node's own operations always end, and no fence concerns them.
                    _ if mapper == self.me => {}
                    Ok(Reply::Flag(false)) if host.now() < free.silent_at => {}
                    _ => free.machine.silent(mapper),
                }
            }
            Command::Fence { store, mapper } => {
                free.has_fenced = true;
                let fenced = self.ask(store, Request::Fence { id: free.fence, mapper }, until);
                if matches!(fenced, Ok(Reply::Flag(true))) {
                    free.machine.fenced(store, mapper);
                }
            }
            Command::Release { store } => {
                // A node that restarted knows of no memory of this region, which is as good.
                let released = self.ask(store, Request::Release { owner: id }, until);
                if matches!(released, Ok(Reply::Done)) {
                    free.machine.released(store);
                }
            }
        }
    }
}
