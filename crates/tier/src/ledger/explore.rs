//! All runs of a node whose process ends at any store: two tasks of processes and the cleaner interleave, a commit of the
//! ledger is lost, cut in two or whole, and the next life recovers, or ends while it does. The state machines are those of
//! the node; the order of their critical sections is that of `tier-node`.

use super::tests::Shared;
use super::{Entries, Ledger};
use crate::codec::Writer;
use crate::record::Recovered;
use crate::{
    AccessError, Command, Directory, Ending, Handle, HandleTable, Kind, Layout, LmrId, MapTicket, Name,
    Names, NodeId, Piece, Principal, Retirement, Rights, Slots, Space, SpaceError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

const ME: NodeId = NodeId(0);
const LENGTH: u64 = 64;
/// The node's memory: as many regions as any run has, and one more.
const MEMORY: u64 = 8 * LENGTH;
/// The tables of `tier-node`: processes, their handles, and memory that is to be taken back.
const PROCESS: u8 = b'P';
const PROCESS_HANDLE: u8 = b'p';
const SETTLING: u8 = b'R';

fn key_of(process: u8, number: u64) -> Vec<u8> {
    [&[PROCESS_HANDLE, process][..], &number.to_be_bytes()].concat()
}

fn settling_key(id: LmrId) -> Vec<u8> {
    Writer::new(SETTLING).id(id).bytes()
}

fn name(letter: u8) -> Name {
    Name::new([letter]).unwrap()
}

/// A task of a process, and its next critical section.
#[derive(Clone, Debug, Hash)]
enum Task {
    /// Makes a region, with a name or without.
    Make(u8, Option<u8>),
    Reserved(u8, Option<u8>, LmrId, (u64, u64)),
    Allocated(u8, Option<u8>, LmrId, (u64, u64), Layout),
    Created(u8, Option<u8>, LmrId, (u64, u64), Layout),
    Claimed(u8, Option<u8>, LmrId, (u64, u64), Layout),
    /// The name is taken: what there is goes.
    Undo(LmrId),
    UndoMemory(LmrId),
    UndoRecord(LmrId),
    /// A handle of the node for a process.
    Enter(u8, Option<u8>, Handle),
    /// The process got no number: its handle goes.
    Unmap(Vec<Handle>),
    Map(u8, u8),
    LookedUp(u8, u8, LmrId, (u64, u64)),
    Mapped(u8, u8, LmrId, (u64, u64), Layout),
    /// A process closes its first handle.
    Close(u8),
    /// A process frees a region by its name.
    Free(u8, u8),
    /// A process moves a region by its name.
    Move(u8, u8),
    Moving(u8, LmrId, LmrId, Retirement),
    MovingTo(u8, LmrId, LmrId, Retirement, LmrId),
    Copying(u8, LmrId, LmrId, Retirement, LmrId),
    Die(u8),
    Done,
}

/// A bug of the recovery, which the exploration has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Handles that no process has any more stay.
    KeepsUnclaimed,
    /// Frees that had begun are forgotten.
    ForgetsFrees,
    /// Ids without a region stay, with their memory.
    KeepsLeft,
    /// Memory that a freed region had left stays.
    KeepsUnknown,
    /// Handles of processes that may attach again are closed.
    ClosesClaimed,
}

/// A free, or the end of a move.
#[derive(Clone, Debug, Hash)]
struct Driven {
    id: LmrId,
    memory: LmrId,
    machine: Retirement,
    name: Option<Name>,
    moves: bool,
}

/// All that processes were told.
#[derive(Clone, Debug, Default, Hash)]
struct Told {
    /// Handles, by process and number, and the names of their regions.
    open: BTreeMap<(u8, u64), Option<u8>>,
    closed: BTreeSet<(u8, u64)>,
    made: BTreeSet<u8>,
    /// Names whose regions are being freed, or are.
    ending: BTreeSet<u8>,
    dead: BTreeSet<u8>,
}

#[derive(Debug)]
struct World {
    memory: Shared,
    ledger: Ledger<Shared>,
    directory: Directory,
    names: Names,
    handles: HandleTable,
    space: Space,
    processes: BTreeMap<u8, Slots<Handle>>,
    tasks: Vec<Task>,
    // The work of the cleaner.
    unmapped: Vec<LmrId>,
    unused: Vec<LmrId>,
    frees: Vec<Driven>,
    settling: Vec<LmrId>,
    left: Vec<LmrId>,
    forgotten: Vec<LmrId>,
    told: Told,
    bug: Option<Bug>,
}

impl Clone for World {
    fn clone(&self) -> Self {
        let memory = self.memory.survives();
        let ledger = Ledger::open(memory.clone()).unwrap().expect("the identity is written");
        let World { directory, names, handles, space, processes, tasks, .. } = self;
        World {
            memory,
            ledger,
            directory: directory.clone(),
            names: names.clone(),
            handles: handles.clone(),
            space: space.clone(),
            processes: processes.clone(),
            tasks: tasks.clone(),
            unmapped: self.unmapped.clone(),
            unused: self.unused.clone(),
            frees: self.frees.clone(),
            settling: self.settling.clone(),
            left: self.left.clone(),
            forgotten: self.forgotten.clone(),
            told: self.told.clone(),
            bug: self.bug,
        }
    }
}

fn user(process: u8) -> Principal {
    Principal::new(if process == 0 { "alice" } else { "bob" }).unwrap()
}

impl World {
    /// A life of the node; the first one has two processes.
    fn begin(memory: Shared, mut ledger: Ledger<Shared>, life: u32) -> World {
        if life == 0 {
            ledger.put(b"I", b"identity");
            ledger.put(&[PROCESS, 0], &[]);
            ledger.put(&[PROCESS, 1], &[]);
            ledger.commit().unwrap();
        }
        let mut space = Space::new();
        space.add_extent(MEMORY).unwrap();
        World {
            memory,
            ledger,
            directory: Directory::new(ME, 1000),
            names: Names::default(),
            handles: HandleTable::new(),
            space,
            processes: (0..2).map(|process| (process, Slots::new(4, 100 + life))).collect(),
            tasks: Vec::new(),
            unmapped: Vec::new(),
            unused: Vec::new(),
            frees: Vec::new(),
            settling: Vec::new(),
            left: Vec::new(),
            forgotten: Vec::new(),
            told: Told::default(),
            bug: None,
        }
    }

    fn first() -> World {
        let memory = Shared::new(1 << 16);
        let mut world = World::begin(memory.clone(), Ledger::begin(memory).unwrap(), 0);
        world.watch();
        world
    }

    fn watch(&mut self) {
        self.directory.watch();
        self.names.watch();
        self.handles.watch();
        self.space.watch();
    }

    /// Ends a critical section.
    fn commit(&mut self) {
        self.directory.report(&mut self.ledger);
        self.names.report(&mut self.ledger);
        self.handles.report(&mut self.ledger);
        self.space.report(&mut self.ledger);
        self.ledger.commit().unwrap();
    }

    /// The next life begins, as `Node::begin_keeping` and `Registry::recover` do it; all in one commit.
    fn next_life(memory: Shared, told: &Told, bug: Option<Bug>, life: u32) -> World {
        let ledger = Ledger::open(memory.clone()).unwrap().expect("the identity is written");
        let mut world = World::begin(memory, ledger, life);
        (world.told, world.bug) = (told.clone(), bug);
        let all: Vec<(u8, Vec<u8>, Vec<u8>)> = [Directory::TABLE, Names::TABLE, HandleTable::TABLE]
            .into_iter()
            .chain(Space::TABLES)
            .flat_map(|table| {
                world.ledger.table(table).map(move |(key, value)| (table, key.to_vec(), value.to_vec()))
            })
            .collect();
        for (table, key, value) in &all {
            match *table {
                Directory::TABLE => world.directory.recover(key, value).unwrap(),
                Names::TABLE => world.names.recover(key, value).unwrap(),
                HandleTable::TABLE => world.handles.recover(key, value).unwrap(),
                table => world.space.recover(table, key, value).unwrap(),
            }
        }
        world.space.end_recovery();
        let (mut claimed, mut stale) = (BTreeSet::new(), Vec::new());
        let mut kept: BTreeMap<u8, Vec<(u64, Handle)>> = BTreeMap::new();
        for (key, value) in world.ledger.table(PROCESS_HANDLE) {
            let number = u64::from_be_bytes(key[1..].try_into().unwrap());
            let region = u64::from_le_bytes(value.try_into().unwrap());
            match world.ledger.has(&[PROCESS, key[0]]) {
                true => {
                    claimed.insert(region);
                    let handle = Handle::from_number(region);
                    if world.handles.describe(handle).is_ok() {
                        kept.entry(key[0]).or_default().push((number, handle));
                    }
                }
                false => stale.push([&[PROCESS_HANDLE][..], key].concat()),
            }
        }
        stale.iter().for_each(|key| world.ledger.remove(key));
        let settling: Vec<(Vec<u8>, LmrId)> = world
            .ledger
            .table(SETTLING)
            .map(|(key, _)| {
                let mut reader = crate::codec::Reader::new(key);
                (key.to_vec(), reader.id().unwrap())
            })
            .collect();
        world.watch();
        for (key, owner) in settling {
            world.space.release(owner);
            world.ledger.remove(&[&[SETTLING][..], &key].concat());
        }
        let World { space, directory, .. } = &mut world;
        if bug != Some(Bug::KeepsUnknown) {
            space.release_unknown(ME, |id| directory.exists(id));
        }
        let open: Vec<(Handle, LmrId)> = world.handles.handles().collect();
        for (handle, _) in open {
            let is_claimed = claimed.contains(&handle.number());
            let stays = match bug {
                Some(Bug::KeepsUnclaimed) => true,
                Some(Bug::ClosesClaimed) => false,
                _ => is_claimed,
            };
            if !stays {
                world.handles.unmap(handle).unwrap();
            }
        }
        let own: Vec<LmrId> = world.handles.handles().map(|(_, id)| id).collect();
        let Recovered { frees, left, .. } = world.directory.end_recovery(own);
        if bug != Some(Bug::ForgetsFrees) {
            frees.into_iter().for_each(|ending| world.begin_driving(ending));
        }
        if bug != Some(Bug::KeepsLeft) {
            world.left = left;
        }
        for (process, slots) in &mut world.processes {
            let kept = kept.remove(process).unwrap_or_default();
            *slots = Slots::recovered(4, 100 + life, kept);
            if !world.ledger.has(&[PROCESS, *process]) {
                slots.take_all();
            }
        }
        world.commit();
        // Processes that have ended do not attach again.
        let dead: Vec<u8> = world.told.dead.iter().copied().collect();
        world.tasks = dead.into_iter().map(Task::Die).collect();
        world
    }

    /// Returns the number of the cleaner's kinds of work.
    const CLEANING: usize = 7;

    /// Does a piece of the cleaner's work in one critical section; returns `false` if there is none of this kind.
    fn clean(&mut self, kind: usize) -> bool {
        match kind {
            0 => {
                let Some(id) = self.unmapped.pop() else { return false };
                if self.directory.unmap(id, ME) {
                    self.unused.push(id);
                }
            }
            1 => {
                let Some(id) = self.unused.pop() else { return false };
                if let Ok(ending) = self.directory.begin_free(id, None) {
                    self.begin_driving(ending);
                }
            }
            2 => {
                let Some(mut driven) = self.frees.pop() else { return false };
                if !self.drive(&mut driven) {
                    self.frees.push(driven);
                }
            }
            3 => {
                let Some(owner) = self.settling.pop() else { return false };
                self.space.release(owner);
                self.ledger.remove(&settling_key(owner));
            }
            4 => {
                let Some(id) = self.left.pop() else { return false };
                self.settle(id);
                self.forgotten.push(id);
            }
            5 => {
                let Some(id) = self.forgotten.pop() else { return false };
                self.directory.forget_left(id);
            }
            _ => {
                let Some(block) = self.space.next_dirty() else { return false };
                assert!(self.space.cleaned(block));
            }
        }
        self.commit();
        true
    }

    fn begin_driving(&mut self, Ending { id, memory, machine, name, .. }: Ending) {
        self.frees.push(Driven { id, memory, machine, name, moves: false });
    }

    fn settle(&mut self, owner: LmrId) {
        if !self.settling.contains(&owner) {
            self.settling.push(owner);
            self.ledger.put(&settling_key(owner), &[]);
        }
    }

    /// Carries one command of a free out; returns whether it is done.
    fn drive(&mut self, driven: &mut Driven) -> bool {
        if let Some(name) = driven.name.take() {
            self.names.forget(&name, driven.id);
            return false;
        }
        match driven.machine.commands().first() {
            Some(Command::Stop { mapper }) => {
                assert!(self.handles.stop(driven.memory, driven.moves), "no operation is in flight");
                driven.machine.stopped(*mapper);
            }
            Some(Command::Release { store }) => {
                self.settle(driven.memory);
                driven.machine.released(*store);
            }
            Some(Command::Fence { .. } | Command::Gather { .. }) => unreachable!("one node, which answers"),
            None => {
                match driven.moves {
                    true => self.directory.forget_memory(driven.memory),
                    false => self.directory.forget(driven.id),
                }
                return true;
            }
        }
        false
    }

    fn allocate(&mut self, owner: LmrId) -> Option<Layout> {
        match self.space.allocate(owner, LENGTH) {
            Ok(block) => {
                let piece =
                    Piece { node: ME, extent: block.extent, length: LENGTH as u32, offset: block.offset };
                Some(Layout::new(vec![piece]).unwrap())
            }
            Err(SpaceError::Full { dirty, .. }) => {
                assert!(dirty > 0 || !self.settling.is_empty(), "memory has leaked: {}", self.said());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn ticket(&mut self) -> (u64, u64) {
        self.handles.begin_map().unwrap().of_model()
    }

    /// Runs the next critical section of a task.
    fn step(&mut self, at: usize) {
        let task = std::mem::replace(&mut self.tasks[at], Task::Done);
        self.tasks[at] = self.next(task);
        self.commit();
    }

    fn next(&mut self, task: Task) -> Task {
        match task {
            Task::Make(process, letter) => {
                let id = self.directory.reserve().unwrap();
                Task::Reserved(process, letter, id, self.ticket())
            }
            Task::Reserved(process, letter, id, ticket) => match self.allocate(id) {
                Some(layout) => Task::Allocated(process, letter, id, ticket, layout),
                None => Task::Reserved(process, letter, id, ticket),
            },
            Task::Allocated(process, letter, id, ticket, layout) => {
                self.directory.create(id, letter.map(name), layout.clone(), user(process), ME);
                Task::Created(process, letter, id, ticket, layout)
            }
            Task::Created(process, Some(letter), id, ticket, layout) => {
                match self.names.claim(name(letter), id, id.node) {
                    Ok(()) => Task::Claimed(process, Some(letter), id, ticket, layout),
                    Err(_) => {
                        self.handles.abandon_map(MapTicket::for_model(ticket));
                        Task::Undo(id)
                    }
                }
            }
            Task::Claimed(process, Some(letter), id, ticket, layout) => {
                self.directory.named(id);
                self.told.made.insert(letter);
                Task::Mapped(process, letter, id, ticket, layout)
            }
            Task::Created(process, None, id, ticket, layout)
            | Task::Claimed(process, None, id, ticket, layout) => {
                self.enter(process, None, id, ticket, layout)
            }
            Task::Mapped(process, letter, id, ticket, layout) => {
                self.enter(process, Some(letter), id, ticket, layout)
            }
            Task::Undo(id) => match self.directory.begin_free(id, None) {
                Ok(ending) => {
                    self.begin_driving(ending);
                    Task::Done
                }
                Err(_) => Task::UndoMemory(id),
            },
            Task::UndoMemory(id) => {
                self.settle(id);
                Task::UndoRecord(id)
            }
            Task::UndoRecord(id) => {
                self.directory.forget(id);
                Task::Done
            }
            Task::Enter(process, letter, handle) => {
                match self.processes.get_mut(&process).unwrap().insert(handle) {
                    Ok(number) => {
                        self.ledger.put(&key_of(process, number), &handle.number().to_le_bytes());
                        self.told.open.insert((process, number), letter);
                        Task::Done
                    }
                    Err(handle) => Task::Unmap(vec![handle]),
                }
            }
            Task::Unmap(mut handles) => {
                let handle = handles.pop().expect("there is one");
                self.unmapped.extend(self.handles.unmap(handle).ok().flatten());
                if handles.is_empty() { Task::Done } else { Task::Unmap(handles) }
            }
            Task::Map(process, letter) => match self.names.lookup(&name(letter)) {
                Some((id, _)) => Task::LookedUp(process, letter, id, self.ticket()),
                None => Task::Done,
            },
            Task::LookedUp(process, letter, id, ticket) => {
                match self.directory.map(id, &user(0), Rights::READ, ME) {
                    Ok(mapping) => Task::Mapped(process, letter, mapping.id, ticket, mapping.layout),
                    Err(_) => {
                        self.handles.abandon_map(MapTicket::for_model(ticket));
                        Task::Done
                    }
                }
            }
            Task::Close(process) => {
                let slots = self.processes.get_mut(&process).unwrap();
                let Some((number, _)) = slots.numbered().next() else { return Task::Done };
                let handle = slots.remove(number).expect("it is there");
                self.ledger.remove(&key_of(process, number));
                self.told.open.remove(&(process, number));
                self.told.closed.insert((process, number));
                Task::Unmap(vec![handle])
            }
            Task::Free(_, letter) => {
                let Some((id, _)) = self.names.lookup(&name(letter)) else { return Task::Done };
                if let Ok(ending) = self.directory.begin_free(id, Some(&user(0))) {
                    self.told.ending.insert(letter);
                    self.begin_driving(ending);
                }
                Task::Done
            }
            Task::Move(process, letter) => {
                let Some((id, _)) = self.names.lookup(&name(letter)) else { return Task::Done };
                match self.directory.begin_move(id, Some(&user(0))) {
                    Ok(leaving) => Task::Moving(process, leaving.id, leaving.memory, leaving.machine),
                    Err(_) => Task::Done,
                }
            }
            Task::Moving(process, id, memory, machine) => {
                let new = self.directory.reserve().unwrap();
                Task::MovingTo(process, id, memory, machine, new)
            }
            Task::MovingTo(process, id, memory, machine, new) => match self.allocate(new) {
                Some(places) => {
                    self.directory.create(new, None, places, user(process), ME);
                    self.directory.set_target(new);
                    Task::Copying(process, id, memory, machine, new)
                }
                None => Task::MovingTo(process, id, memory, machine, new),
            },
            Task::Copying(process, id, memory, mut machine, new) => {
                if let Some(Command::Stop { mapper }) = machine.commands().first() {
                    assert!(self.handles.stop(memory, true), "no operation is in flight");
                    machine.stopped(*mapper);
                    return Task::Copying(process, id, memory, machine, new);
                }
                self.directory.finish_move(id, new).unwrap();
                machine.let_go();
                self.frees.push(Driven { id, memory, machine, name: None, moves: true });
                Task::Done
            }
            Task::Die(process) => {
                self.told.dead.insert(process);
                let slots = self.processes.get_mut(&process).unwrap();
                for (number, _) in slots.numbered() {
                    self.ledger.remove(&key_of(process, number));
                }
                self.ledger.remove(&[PROCESS, process]);
                match slots.take_all() {
                    handles if handles.is_empty() => Task::Done,
                    handles => Task::Unmap(handles),
                }
            }
            Task::Done => Task::Done,
        }
    }

    /// The answer to a map request enters the table of the node.
    fn enter(
        &mut self,
        process: u8,
        letter: Option<u8>,
        id: LmrId,
        ticket: (u64, u64),
        layout: Layout,
    ) -> Task {
        let mapped = (&user(process), Rights::READ);
        match self.handles.finish_map(MapTicket::for_model(ticket), id, mapped, layout) {
            Ok(handle) => Task::Enter(process, letter, handle),
            Err(_) => {
                self.unmapped.push(id);
                Task::Done
            }
        }
    }

    /// Runs all tasks and the cleaner until nothing is left to do.
    fn settle_all(&mut self) {
        loop {
            let cleaned = (0..World::CLEANING).any(|kind| self.clean(kind));
            let next = self.tasks.iter().position(|task| !matches!(task, Task::Done));
            match next {
                Some(at) => self.step(at),
                None if !cleaned => return,
                None => {}
            }
        }
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.ledger.entries.hash(&mut hasher);
        (&self.tasks, &self.unmapped, &self.unused, &self.frees, &self.settling).hash(&mut hasher);
        (&self.left, &self.forgotten, &self.handles, &self.told).hash(&mut hasher);
        for slots in self.processes.values() {
            slots.numbered().for_each(|(number, handle)| (number, handle).hash(&mut hasher));
        }
        hasher.finish()
    }
}

impl World {
    /// Describes a life whose check fails.
    fn said(&self) -> String {
        let World { directory, names, handles, space, processes, told, .. } = self;
        format!("{told:?}\n{processes:?}\n{directory:?}\n{names:?}\n{handles:?}\n{space:?}")
    }

    /// Returns whether a region's bytes are in blocks that it owns.
    fn owns(&self, memory: LmrId, layout: &Layout) -> bool {
        let mut pieces = layout.pieces().iter();
        pieces.all(|piece| self.space.owns(memory, piece.extent, piece.offset, piece.length.into()))
    }

    /// Checks a life in which nothing is left to do.
    fn check(&mut self) {
        let mut regions = BTreeSet::new();
        for ((process, number), letter) in self.told.open.clone() {
            let handle = self.processes[&process].get(number).copied();
            if self.told.dead.contains(&process) {
                assert_eq!(handle, None, "the process has ended");
                continue;
            }
            let handle = handle.expect("a process was told of its handle");
            let is_ending = letter.is_some_and(|letter| self.told.ending.contains(&letter));
            match self.handles.begin(handle, Kind::Read, 0, LENGTH) {
                Ok(operation) => {
                    let (memory, _, _) = self.handles.describe(handle).unwrap();
                    assert!(!is_ending, "{}", self.said());
                    assert!(self.owns(memory, &operation.layout), "{}", self.said());
                    regions.insert(memory);
                    assert_eq!(self.handles.end(operation), None);
                }
                Err(AccessError::Moved) => {}
                Err(error) => assert!(is_ending && error == AccessError::Gone, "{error}"),
            }
        }
        for (process, number) in &self.told.closed {
            assert_eq!(self.processes[process].get(*number), None, "it was closed");
        }
        for letter in self.told.made.clone() {
            let found = self.names.lookup(&name(letter));
            if self.told.ending.contains(&letter) {
                assert_eq!(found, None, "it was freed");
                continue;
            }
            let (id, _) = found.expect("the region was made");
            let mapping = self.directory.map(id, &user(0), Rights::READ, ME).unwrap();
            assert!(self.owns(mapping.id, &mapping.layout), "{}", self.said());
            regions.insert(mapping.id);
            self.directory.unmap(id, ME);
        }
        let used = MEMORY - self.space.free_bytes() - self.space.dirty_bytes();
        assert_eq!((used, self.space.dirty_bytes()), (LENGTH * regions.len() as u64, 0), "{}", self.said());
    }

    /// Ends everything: nothing is left.
    fn end(mut self) {
        self.tasks = vec![Task::Die(0), Task::Die(1)];
        for letter in self.told.made.clone() {
            self.tasks.push(Task::Free(0, letter));
        }
        self.settle_all();
        assert_eq!((self.space.free_bytes(), self.directory.used()), (MEMORY, 0), "{}", self.said());
        let tables = [Space::TABLES[0], HandleTable::TABLE, PROCESS, PROCESS_HANDLE, SETTLING];
        for table in tables {
            assert_eq!(self.ledger.table(table).count(), 0, "{}", self.said());
        }
        // A name whose claim was kept, and whose record was not: the next claim takes it over.
        let stale: Vec<LmrId> =
            "xy".bytes().filter_map(|letter| Some(self.names.lookup(&name(letter))?.0)).collect();
        assert!(stale.into_iter().all(|id| !self.directory.exists(id)));
    }

    /// The work that may be done next: of a task, or of the cleaner.
    fn act(&mut self, action: usize) -> bool {
        match action.checked_sub(World::CLEANING) {
            None => self.clean(action),
            Some(at) if matches!(self.tasks[at], Task::Done) => false,
            Some(at) => {
                self.step(at);
                true
            }
        }
    }
}

#[derive(Debug, Default)]
struct Explored {
    states: usize,
    ends: usize,
    twice: usize,
}

/// The next life of what is left in memory, until nothing is left to do, and then everything is ended. It may end itself
/// after each of its sections.
fn live_on(memory: &Shared, told: &Told, bug: Option<Bug>, life: u32, explored: &mut Explored) {
    let mut world = World::next_life(memory.survives(), told, bug, life);
    if life == 1 {
        loop {
            let mut next = world.clone();
            if !(0..World::CLEANING + next.tasks.len()).any(|action| next.act(action)) {
                break;
            }
            live_on(&next.memory, &next.told, bug, 2, explored);
            explored.twice += 1;
            world = next;
        }
    }
    world.settle_all();
    world.check();
    world.end();
}

fn explore(before: Vec<Task>, tasks: Vec<Task>, bug: Option<Bug>) -> Explored {
    let mut first = World::first();
    first.tasks = before;
    first.settle_all();
    first.check();
    first.tasks = tasks;
    let (mut seen, mut open) = (BTreeSet::from([first.key()]), vec![first]);
    let mut explored = Explored::default();
    while let Some(world) = open.pop() {
        explored.states += 1;
        for action in 0..World::CLEANING + world.tasks.len() {
            let mut next = world.clone();
            next.memory.stores_left(u64::MAX);
            if !next.act(action) {
                continue;
            }
            let stores = u64::MAX - next.memory.left();
            // Nothing of the last write, the half of it, and all but its last word.
            for cut in BTreeSet::from([0, stores / 2, stores.saturating_sub(1)]) {
                let mut dying = world.clone();
                dying.memory.stores_left(cut);
                dying.act(action);
                let is_older =
                    Ledger::open(dying.memory.survives()).unwrap().unwrap().entries == world.ledger.entries;
                let told = if is_older && stores > 0 { &world.told } else { &dying.told };
                live_on(&dying.memory, told, bug, 1, &mut explored);
                explored.ends += 1;
            }
            if seen.insert(next.key()) {
                open.push(next);
            }
        }
    }
    explored
}

/// Tasks that run first, and two that processes run at the same time while the cleaner works.
fn pairs() -> Vec<(Vec<Task>, Vec<Task>)> {
    let x = b'x';
    let shared = || vec![Task::Make(0, Some(x)), Task::Map(1, x)];
    vec![
        (Vec::new(), vec![Task::Make(0, None), Task::Make(1, None)]),
        (Vec::new(), vec![Task::Make(0, Some(x)), Task::Make(0, Some(x))]),
        (shared(), vec![Task::Make(1, None), Task::Free(0, x)]),
        (vec![Task::Make(0, Some(x))], vec![Task::Map(1, x), Task::Free(0, x)]),
        (vec![Task::Make(0, None), Task::Make(1, None)], vec![Task::Close(0), Task::Close(1)]),
        (shared(), vec![Task::Close(1), Task::Free(0, x)]),
        (shared(), vec![Task::Die(0), Task::Map(1, x)]),
        (Vec::new(), vec![Task::Make(0, None), Task::Die(0)]),
        (shared(), vec![Task::Die(1), Task::Free(0, x)]),
        (shared(), vec![Task::Move(0, x), Task::Die(1)]),
        (vec![Task::Make(0, Some(x))], vec![Task::Move(0, x), Task::Map(1, x)]),
        (shared(), vec![Task::Move(0, x), Task::Free(0, x)]),
        (shared(), vec![Task::Move(0, x), Task::Make(1, None)]),
    ]
}

#[test]
fn no_end_of_the_process_loses_or_doubles_memory() {
    for (before, tasks) in pairs() {
        let said = format!("{tasks:?}");
        let explored = explore(before, tasks, None);
        println!("{said}: {explored:?}");
        let Explored { states, ends, twice } = explored;
        assert!(states > 15 && ends > states && twice > 0, "{said}: {explored:?}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    use Bug::*;
    for bug in [KeepsUnclaimed, ForgetsFrees, KeepsLeft, KeepsUnknown, ClosesClaimed] {
        let is_found = pairs()
            .into_iter()
            .any(|(before, tasks)| std::panic::catch_unwind(|| explore(before, tasks, Some(bug))).is_err());
        assert!(is_found, "{bug:?}");
    }
}
