//! All runs of one free, move or revocation with three nodes, two mappers and at most one crash: messages in any order,
//! any number of times, lost with the node that they go to; a coordinator that may take any mapper for silent at any
//! time. The mappers use the real [`HandleTable`], the coordinator the real [`Retirement`].

#![allow(clippy::disallowed_types)]

use super::{Command, Retirement};
use crate::access::Kind;
use crate::cut::Layout;
use crate::handles::{Handle, HandleTable, MapTicket, Operation};
use crate::place::{LmrId, NodeId, Piece};
use crate::rights::{Grantee, Grants, Principal, Rights};
use std::collections::{BTreeSet, HashSet};

/// The node that keeps the record.
const COORDINATOR: usize = 0;
/// The mappers. The first has the region mapped at the start, the second maps it during the run.
const MAPPERS: [usize; 2] = [1, 2];
const ID: LmrId = LmrId { node: NodeId(0), slot: 0, generation: 1 };

/// A deviation from the protocol. Exploration must find a run in which freed memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The coordinator treats a silent mapper as stopped.
    SilentIsStopped,
    /// The coordinator releases memory while it waits for mappers.
    ReleaseAtOnce,
    /// A mapper acknowledges with operations in flight.
    StopWithoutDraining,
    /// A mapper forgets a stop that overtakes the answer to its map request.
    StopForgotten,
    /// A mapper that was fenced keeps its handles when it reconnects.
    HandlesSurviveFence,
    /// The answer to a map request counts although the mapper was fenced and reconnected meanwhile.
    AnswerSurvivesFence,
    /// A mapper connects to the store after the record's node has answered its map request.
    ConnectAfterAnswer,
    /// A store acknowledges a fence and keeps the connection.
    FenceInName,
    /// A free does not wait for mappers whose answers are under way.
    ListedWithTheAnswer,
    /// The bytes of a region that moves are copied while mappers may write.
    CopyAtOnce,
    /// The memory that a region leaves is taken back before the region has its new place.
    LetGoAtOnce,
    /// A region that moves is mapped at its old place.
    MappedWhileMoving,
    /// The caller of a revocation is answered while mappers have operations in flight.
    RevokedAtOnce,
    /// A mapper forgets a restriction that overtakes the answer to its map request.
    RestrictionForgotten,
}

const BUGS: [Bug; 14] = [
    Bug::SilentIsStopped,
    Bug::ReleaseAtOnce,
    Bug::StopWithoutDraining,
    Bug::StopForgotten,
    Bug::HandlesSurviveFence,
    Bug::AnswerSurvivesFence,
    Bug::ConnectAfterAnswer,
    Bug::FenceInName,
    Bug::ListedWithTheAnswer,
    Bug::CopyAtOnce,
    Bug::LetGoAtOnce,
    Bug::MappedWhileMoving,
    Bug::RevokedAtOnce,
    Bug::RestrictionForgotten,
];

/// A message that is under way. A request and its execution are one step, since a request is sent again until its
/// acknowledgement arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Stopped(NodeId),
    Fenced(NodeId, NodeId),
    Released(NodeId),
    /// The answer to a map request of the mapper.
    Mapped(usize),
}

/// The second mapper's way to a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wish {
    NotYet,
    /// The map request is pending; its ticket.
    Asked((u64, u64)),
    /// Mapped, refused or freed.
    Over,
}

/// An operation that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Posted {
    store: usize,
    /// The connection that carries it still exists at the store.
    carried: bool,
    landed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mapper {
    table: HandleTable,
    handle: Option<Handle>,
    wish: Wish,
    posted: Option<Posted>,
    /// For each node: whether a connection to it exists, and the fences that the mapper knows of.
    connected: [bool; 3],
    known_fences: [Option<u8>; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    free: Option<Retirement>,
    listed: BTreeSet<NodeId>,
    mappers: [Mapper; 2],
    messages: BTreeSet<Message>,
    /// For each store: fences of each mapper.
    fences: [[u8; 2]; 3],
    released: [bool; 3],
    crashed: Option<usize>,
    moved: Moved,
    /// The caller of a revocation was told that it is done.
    revoked: bool,
    /// Freed memory was touched, a write was lost or came after its right had ended, or the region has no place.
    violated: bool,
}

/// The state of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Moved {
    NotYet,
    /// The bytes are copied.
    Copied,
    /// The region has its new place.
    Published,
    /// The region stays where it is.
    GivenUp,
}

/// The fate of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Free,
    /// It moves to memory that no mapper uses here.
    Move,
    /// The principal of the mappers loses its rights.
    Revoke,
}

struct Explorer {
    stores: Vec<usize>,
    /// Whether a node may crash.
    crash: bool,
    aim: Aim,
    bug: Bug,
}

/// Adds the state after a change, if that differs.
type Step<'a> = &'a mut dyn FnMut(&dyn Fn(&mut World));

/// The principal of the mappers.
fn user() -> Principal {
    Principal::new("user").unwrap()
}

/// The grants of a region after the revocation.
fn grants() -> Grants {
    let master = Principal::new("master").unwrap();
    let mut grants = Grants::of_creator(master.clone());
    grants.grant(&master, Grantee::Principal(user()), Rights::READ).unwrap();
    grants
}

fn node(number: usize) -> NodeId {
    NodeId(number as u16)
}

impl Explorer {
    fn layout(&self) -> Layout {
        let piece = |store: &usize| Piece { node: node(*store), extent: 0, length: 8, offset: 0 };
        Layout::new(self.stores.iter().map(piece).collect()).unwrap()
    }

    fn start(&self) -> World {
        let fresh = || Mapper {
            table: HandleTable::new(),
            handle: None,
            wish: Wish::NotYet,
            posted: None,
            connected: [false; 3],
            known_fences: [None; 3],
        };
        let mut first = fresh();
        let ticket = first.table.begin_map().unwrap();
        first.handle =
            Some(first.table.finish_map(ticket, ID, (&user(), Rights::ALL), self.layout()).unwrap());
        first.wish = Wish::Over;
        for store in &self.stores {
            first.connected[*store] = true;
            first.known_fences[*store] = Some(0);
        }
        World {
            free: None,
            listed: BTreeSet::from([node(MAPPERS[0])]),
            mappers: [first, fresh()],
            messages: BTreeSet::new(),
            fences: [[0; 2]; 3],
            released: [false; 3],
            crashed: None,
            moved: Moved::NotYet,
            revoked: false,
            violated: false,
        }
    }

    /// The operation that the model keeps as `posted`.
    fn permit(&self, mapper: &Mapper) -> Option<Operation> {
        Some(Operation { handle: mapper.handle?, layout: self.layout() })
    }

    fn next(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        let alive = |number: usize| world.crashed != Some(number);
        let mut step = |change: &dyn Fn(&mut World)| {
            let mut after = world.clone();
            change(&mut after);
            if after != *world {
                next.push(after);
            }
        };
        if self.crash && world.crashed.is_none() {
            for number in 0..3 {
                step(&|world| world.crashed = Some(number));
            }
        }
        if alive(COORDINATOR) {
            self.coordinate(world, &mut step);
        }
        for message in &world.messages {
            step(&|world| self.deliver(world, *message));
        }
        for (index, number) in MAPPERS.into_iter().enumerate() {
            if alive(number) {
                self.map(world, index, &mut step);
                self.operate(world, index, &mut step);
            }
            // An operation that has left lands also after its sender's crash.
            if let Some(posted) = world.mappers[index].posted
                && posted.carried
                && !posted.landed
                && alive(posted.store)
            {
                step(&|world| {
                    // A write that lands after the copy is lost.
                    let is_lost = matches!(world.moved, Moved::Copied | Moved::Published);
                    // So is one that comes after its right has ended.
                    world.violated |= world.released[posted.store] || is_lost || world.revoked;
                    world.mappers[index].posted = Some(Posted { landed: true, ..posted });
                });
            }
        }
        next
    }

    fn coordinate(&self, world: &World, step: Step<'_>) {
        let Some(free) = &world.free else {
            step(&|world| {
                let stores = self.stores.iter().map(|store| node(*store));
                let begin = if self.aim == Aim::Free { Retirement::new } else { Retirement::held };
                world.free = Some(begin(world.listed.iter().copied(), stores));
            });
            return;
        };
        if self.aim == Aim::Revoke && (free.is_harmless() || self.bug == Bug::RevokedAtOnce) {
            step(&|world| world.revoked = true);
        }
        if self.aim == Aim::Move {
            self.relocate(world, free, step);
            if world.moved == Moved::GivenUp {
                return;
            }
        }
        for command in free.commands() {
            step(&|world| self.execute(world, command));
            if let Command::Stop { mapper } = command {
                step(&|world| {
                    let free = world.free.as_mut().unwrap();
                    if self.bug == Bug::SilentIsStopped { free.stopped(mapper) } else { free.silent(mapper) }
                });
            }
        }
        if self.bug == Bug::ReleaseAtOnce {
            for store in &self.stores {
                step(&|world| self.execute(world, Command::Release { store: node(*store) }));
            }
        }
        if let Some(crashed) = world.crashed.filter(|crashed| self.stores.contains(crashed)) {
            step(&|world| world.free.as_mut().unwrap().lost(node(crashed)));
        }
    }

    /// Copies, publishes or gives up. The nodes that store the region copy, so all of them have to live.
    fn relocate(&self, world: &World, free: &Retirement, step: Step<'_>) {
        let is_crashed = world.crashed.is_some_and(|crashed| self.stores.contains(&crashed));
        match world.moved {
            Moved::NotYet => {
                if (free.is_harmless() || self.bug == Bug::CopyAtOnce) && !is_crashed {
                    step(&|world| world.moved = Moved::Copied);
                }
                if self.bug == Bug::LetGoAtOnce {
                    step(&|world| world.free.as_mut().unwrap().let_go());
                }
            }
            Moved::Copied => step(&|world| {
                world.moved = Moved::Published;
                world.free.as_mut().unwrap().let_go();
            }),
            Moved::Published | Moved::GivenUp => return,
        }
        step(&|world| world.moved = Moved::GivenUp);
    }

    /// Executes a request at the node that it goes to. A crashed node does nothing.
    fn execute(&self, world: &mut World, command: Command) {
        let alive = |world: &World, node: NodeId| world.crashed != Some(usize::from(node.0));
        let index_of = |mapper: NodeId| usize::from(mapper.0) - 1;
        match command {
            Command::Stop { mapper } if alive(world, mapper) => {
                let table = &mut world.mappers[index_of(mapper)].table;
                let before = table.clone();
                let drained = match self.aim {
                    Aim::Revoke => table.restrict(ID, &grants()).is_empty(),
                    aim => table.stop(ID, aim == Aim::Move),
                };
                let is_forgotten = matches!(self.bug, Bug::StopForgotten | Bug::RestrictionForgotten);
                if is_forgotten && before.is_empty() {
                    *table = before;
                }
                if drained || self.bug == Bug::StopWithoutDraining {
                    world.messages.insert(Message::Stopped(mapper));
                }
            }
            Command::Fence { store, mapper } if alive(world, store) => {
                let (at, index) = (usize::from(store.0), index_of(mapper));
                // A repetition concerns the same connections.
                if std::mem::replace(&mut world.fences[at][index], 1) == 0 && self.bug != Bug::FenceInName {
                    let mapper = &mut world.mappers[index];
                    mapper.connected[at] = false;
                    if let Some(posted) = mapper.posted.as_mut().filter(|posted| posted.store == at) {
                        posted.carried = false;
                    }
                }
                world.messages.insert(Message::Fenced(store, mapper));
            }
            Command::Release { store } if alive(world, store) => {
                world.released[usize::from(store.0)] = true;
                // Neither the old place nor the new one is the region's.
                world.violated |= self.aim == Aim::Move && world.moved != Moved::Published;
                world.messages.insert(Message::Released(store));
            }
            _ => {}
        }
    }

    /// Delivers a message. Messages to a crashed node vanish.
    fn deliver(&self, world: &mut World, message: Message) {
        world.messages.remove(&message);
        let coordinator = world.crashed != Some(COORDINATOR);
        match message {
            Message::Stopped(mapper) if coordinator => {
                world.free.as_mut().unwrap().stopped(mapper);
            }
            Message::Fenced(store, mapper) if coordinator => {
                world.free.as_mut().unwrap().fenced(store, mapper);
            }
            Message::Released(store) if coordinator => world.free.as_mut().unwrap().released(store),
            Message::Mapped(index) if world.crashed != Some(MAPPERS[index]) => {
                if self.bug == Bug::ListedWithTheAnswer {
                    world.listed.insert(node(MAPPERS[index]));
                }
                let mapper = &mut world.mappers[index];
                let Wish::Asked((losses, number)) = mapper.wish else { return };
                let current = mapper.table.begin_map().map_or(0, |ticket| ticket.of_model().0);
                let survives = self.bug == Bug::AnswerSurvivesFence;
                let ticket = MapTicket::for_model((if survives { current } else { losses }, number));
                // The ticket that told the current number of losses ends here, too.
                mapper.table.abandon_map(MapTicket::for_model((0, 0)));
                mapper.handle =
                    mapper.table.finish_map(ticket, ID, (&user(), Rights::ALL), self.layout()).ok();
                mapper.wish = Wish::Over;
            }
            _ => {}
        }
    }

    /// Connects mapper `index` to the stores, and maps the region.
    fn map(&self, world: &World, index: usize, step: Step<'_>) {
        let mapper = &world.mappers[index];
        for &store in &self.stores {
            let early = mapper.wish != Wish::NotYet || self.bug != Bug::ConnectAfterAnswer;
            if mapper.connected[store] || !early || world.crashed == Some(store) {
                continue;
            }
            step(&|world| {
                let fences = world.fences[store][index];
                let mapper = &mut world.mappers[index];
                let known = mapper.known_fences[store].replace(fences);
                if known.is_some_and(|known| known != fences) && self.bug != Bug::HandlesSurviveFence {
                    mapper.table.lose(node(store));
                }
                mapper.connected[store] = true;
            });
        }
        let connected = self.stores.iter().all(|store| mapper.known_fences[*store].is_some());
        let may_ask = connected || self.bug == Bug::ConnectAfterAnswer;
        let coordinator = world.crashed != Some(COORDINATOR);
        if mapper.wish == Wish::NotYet && may_ask && coordinator {
            step(&|world| {
                let mapper = &mut world.mappers[index];
                // Once a move is given up, the region is mapped where it was.
                let is_refused = world.free.is_some() && world.moved != Moved::GivenUp;
                if is_refused && !(self.aim == Aim::Move && self.bug == Bug::MappedWhileMoving) {
                    mapper.wish = Wish::Over;
                    return;
                }
                // The request and its treatment at the record's node are one step; the answer is under way.
                mapper.wish = Wish::Asked(mapper.table.begin_map().unwrap().of_model());
                if self.bug != Bug::ListedWithTheAnswer {
                    world.listed.insert(node(MAPPERS[index]));
                }
                world.messages.insert(Message::Mapped(index));
            });
        }
    }

    /// Posts operations of mapper `index`, and ends them.
    fn operate(&self, world: &World, index: usize, step: Step<'_>) {
        let mapper = &world.mappers[index];
        match mapper.posted {
            None => {
                let Some(handle) = mapper.handle else { return };
                for &store in self.stores.iter().filter(|store| mapper.connected[**store]) {
                    step(&|world| {
                        let mapper = &mut world.mappers[index];
                        if mapper.table.begin(handle, Kind::Write, 0, 8).is_ok() {
                            mapper.posted = Some(Posted { store, carried: true, landed: false });
                        }
                    });
                }
            }
            Some(posted) => {
                let ended = posted.landed || !posted.carried || world.crashed == Some(posted.store);
                if ended {
                    step(&|world| {
                        let mapper = &mut world.mappers[index];
                        if let Some(permit) = self.permit(mapper) {
                            mapper.table.end(permit);
                        }
                        mapper.posted = None;
                    });
                }
            }
        }
    }

    /// Returns the number of states, or the first state in which freed memory is touched.
    fn explore(&self) -> Result<usize, Box<World>> {
        let start = self.start();
        let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
        while let Some(world) = open.pop() {
            let next = self.next(&world);
            if next.iter().all(|after| after.crashed != world.crashed) {
                self.check_end(&world);
            }
            for after in next {
                if after.violated {
                    return Err(Box::new(after));
                }
                if !seen.contains(&after) {
                    seen.insert(after.clone());
                    open.push(after);
                }
            }
        }
        Ok(seen.len())
    }

    /// In a state that only a crash can leave, the free or the revocation is done, and no handle of the region works.
    fn check_end(&self, world: &World) {
        if self.bug != Bug::None || world.crashed == Some(COORDINATOR) {
            return;
        }
        if world.moved == Moved::GivenUp {
            return;
        }
        let is_crashed = world.crashed.is_some_and(|crashed| self.stores.contains(&crashed));
        let is_done = if self.aim == Aim::Revoke { Retirement::is_harmless } else { Retirement::is_done };
        let ended = world.free.as_ref().is_some_and(is_done);
        assert!(ended || (self.aim == Aim::Move && is_crashed), "the free does not end: {world:#?}");
        for (mapper, number) in world.mappers.iter().zip(MAPPERS) {
            let mut table = mapper.table.clone();
            let usable = mapper.handle.is_some_and(|handle| table.begin(handle, Kind::Write, 0, 8).is_ok());
            // A mapper that is cut off may hold a handle; it loses the handle when it connects.
            let cut_off = self.stores.iter().all(|store| !mapper.connected[*store]);
            assert!(!usable || cut_off || world.crashed == Some(number), "a handle survives: {world:#?}");
        }
    }
}

/// The record's node, the first mapper or the second stores the region, and one node may crash. Or the region is
/// spread over two nodes, and none crashes: with a crash, that is a million states.
const CASES: [(&[usize], bool); 4] = [(&[0], true), (&[1], true), (&[2], true), (&[0, 2], false)];

fn explore(stores: &[usize], crash: bool, aim: Aim) {
    match (Explorer { stores: stores.to_vec(), crash, aim, bug: Bug::None }).explore() {
        Ok(states) => {
            println!("stores {stores:?}, {aim:?}: {states} states");
            assert!(states > 1000, "{states} states");
        }
        Err(world) => {
            panic!("freed memory is touched, bytes are lost, or a right outlives its end: {world:#?}")
        }
    }
}

#[test]
fn no_run_touches_freed_memory_and_every_free_ends() {
    CASES.into_iter().for_each(|(stores, crash)| explore(stores, crash, Aim::Free));
}

#[test]
fn no_run_of_a_move_loses_a_write_or_leaves_the_region_without_a_place() {
    // The spread region is among the long ones.
    CASES.into_iter().take(3).for_each(|(stores, crash)| explore(stores, crash, Aim::Move));
}

#[test]
fn no_run_of_a_revocation_lets_a_write_come_after_its_end() {
    CASES.into_iter().for_each(|(stores, crash)| explore(stores, crash, Aim::Revoke));
}

/// A million states, half a minute: `./test properties` runs it.
#[cfg(feature = "long-exploration")]
#[test]
fn no_run_touches_freed_memory_of_a_spread_region_when_a_node_crashes() {
    explore(&[0, 2], true, Aim::Free);
    explore(&[0, 2], false, Aim::Move);
    explore(&[0, 2], true, Aim::Revoke);
}

#[test]
fn every_planted_bug_is_found() {
    for bug in BUGS {
        let finds = |(stores, crash): (&[usize], bool)| {
            let aim = match bug {
                Bug::CopyAtOnce | Bug::LetGoAtOnce | Bug::MappedWhileMoving => Aim::Move,
                Bug::RevokedAtOnce | Bug::RestrictionForgotten => Aim::Revoke,
                _ => Aim::Free,
            };
            Explorer { stores: stores.to_vec(), crash, aim, bug }.explore().is_err()
        };
        assert!(CASES.into_iter().any(finds), "{bug:?} is not found");
    }
}
