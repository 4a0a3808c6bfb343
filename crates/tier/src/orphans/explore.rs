//! All runs of a search with the node of a region's record, a mapper and the store: the first two die and live again
//! without memory, an answer to a map request is under way for any time, and so is a WRITE of a life that has ended. The
//! mapper has a real [`HandleTable`], the store the real [`OrphanSearch`].

#![allow(clippy::disallowed_types)]

use super::{OrphanSearch, Question, Round};
use crate::access::Kind;
use crate::cut::Layout;
use crate::handles::{Handle, HandleTable, MapTicket, Operation};
use crate::place::{LmrId, NodeId, Piece};
use crate::rights::{Principal, Rights};
use std::collections::{BTreeSet, HashSet};

const RECORD: NodeId = NodeId(0);
const MAPPER: NodeId = NodeId(1);
const STORE: NodeId = NodeId(2);
const ID: LmrId = LmrId { node: RECORD, slot: 0, generation: 1 };
/// The most map requests and WRITEs of a run.
const MOST: u8 = 3;

/// A deviation from the protocol. Exploration must find a run in which memory is touched that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Only the node that made the region is asked.
    MakersOnly,
    /// Nodes are asked once, and stop nothing.
    AskedOnce,
    /// The mapper forgets that it has stopped a region when an answer is under way.
    StopForgotten,
    /// Connections of earlier lives stay.
    OtherLivesStay,
    /// A mapper that has unmapped the region and has a WRITE under way does not count as one that knows it.
    ClosingForgotten,
}

const BUGS: [Bug; 5] =
    [Bug::MakersOnly, Bug::AskedOnce, Bug::StopForgotten, Bug::OtherLivesStay, Bug::ClosingForgotten];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The node of the record has not lost it.
    has_record: bool,
    /// The life of the mapper.
    life: u64,
    table: HandleTable,
    ticket: Option<(u64, u64)>,
    /// The answer to the map request is under way.
    is_answered: bool,
    handle: Option<Handle>,
    /// The handle of the WRITE that is under way in the present life.
    writes: Option<Handle>,
    /// WRITEs under way to the store, by the lives that began them.
    under_way: BTreeSet<u64>,
    search: Option<OrphanSearch>,
    /// The answer to the present question is under way.
    answer: Option<(u64, bool)>,
    is_taken: bool,
    steps: u8,
}

fn layout() -> Layout {
    Layout::new(vec![Piece { node: STORE, extent: 0, length: 64, offset: 0 }]).unwrap()
}

fn start() -> World {
    World {
        has_record: true,
        life: 1,
        table: HandleTable::new(),
        ticket: None,
        is_answered: false,
        handle: None,
        writes: None,
        under_way: BTreeSet::new(),
        search: None,
        answer: None,
        is_taken: false,
        steps: 0,
    }
}

/// Carries out the question of the search at its node; returns the number of the node's process, and whether it knows the
/// region.
fn ask(world: &mut World, bug: Bug, node: NodeId, stops: bool) -> (u64, bool) {
    match node {
        RECORD => (u64::from(world.has_record), world.has_record),
        MAPPER => {
            let knows = world.table.has(ID) && !(bug == Bug::ClosingForgotten && world.handle.is_none());
            if stops && !knows && bug != Bug::StopForgotten {
                let _ = world.table.stop(ID, false);
            }
            (world.life, knows)
        }
        _ => (1, false),
    }
}

/// Returns all worlds that one step leads to; the error is a violation.
fn next(world: &World, bug: Bug) -> Result<Vec<World>, &'static str> {
    let mut worlds = Vec::new();
    let mut step = |change: &dyn Fn(&mut World)| {
        let mut next = world.clone();
        change(&mut next);
        worlds.push(next);
    };
    if world.has_record {
        step(&|world| world.has_record = false);
    }
    if world.life == 1 {
        step(&|world| {
            world.life = 2;
            world.table = HandleTable::new();
            (world.ticket, world.handle, world.writes, world.is_answered) = (None, None, None, false);
        });
    }
    if world.ticket.is_none() && world.handle.is_none() && world.steps < MOST {
        step(&|world| {
            world.steps += 1;
            world.ticket = world.table.begin_map().ok().map(|ticket| ticket.of_model());
        });
    }
    if world.ticket.is_some() && world.has_record && !world.is_answered {
        step(&|world| world.is_answered = true);
    }
    if let Some(ticket) = world.ticket.filter(|_| world.is_answered) {
        step(&|world| {
            let principal = Principal::new("user").unwrap();
            (world.ticket, world.is_answered) = (None, false);
            let whose = (&principal, Rights::ALL);
            world.handle = world.table.finish_map(MapTicket::for_model(ticket), ID, whose, layout()).ok();
        });
    }
    if let Some(handle) = world.handle {
        if world.writes.is_none() && world.steps < MOST {
            let mut next = world.clone();
            if next.table.begin(handle, Kind::Write, 0, 8).is_ok() {
                next.steps += 1;
                next.writes = Some(handle);
                next.under_way.insert(next.life);
                worlds.push(next);
            }
        }
        let mut next = world.clone();
        let _ = next.table.unmap(handle);
        next.handle = None;
        worlds.push(next);
    }
    if let Some(handle) = world.writes {
        let mut next = world.clone();
        next.under_way.remove(&next.life);
        next.writes = None;
        let _ = next.table.end(Operation { handle, layout: layout() });
        worlds.push(next);
    }
    for life in world.under_way.iter().filter(|life| **life < world.life) {
        let mut next = world.clone();
        next.under_way.remove(life);
        worlds.push(next);
    }
    search_steps(world, bug, &mut worlds);
    if worlds.iter().any(|world| world.is_taken && !world.under_way.is_empty()) {
        return Err("memory is touched that was taken back");
    }
    Ok(worlds)
}

fn search_steps(world: &World, bug: Bug, worlds: &mut Vec<World>) {
    let mut next = world.clone();
    let Some(search) = &mut next.search else {
        if !world.is_taken {
            next.search = Some(OrphanSearch::new([ID], vec![RECORD, MAPPER, STORE]));
            worlds.push(next);
        }
        return;
    };
    let is_early = match bug {
        Bug::MakersOnly => search.round == Round::All,
        Bug::AskedOnce => search.round == Round::Stop,
        _ => false,
    };
    if let Some((life, knows)) = next.answer.take() {
        search.known(life, if knows { &[ID] } else { &[] });
    } else if let Some(orphans) =
        search.orphans().cloned().or_else(|| is_early.then(|| search.unknown.clone()))
    {
        next.is_taken = !orphans.is_empty();
        next.search = None;
    } else {
        match search.question() {
            Some(Question::Known { node, stops, ids }) => {
                let (life, knows) = ask(&mut next, bug, node, stops);
                next.answer = Some((life, knows && ids == [ID]));
            }
            Some(Question::OtherLives { node, life }) => {
                search.ended();
                if node == MAPPER && bug != Bug::OtherLivesStay {
                    next.under_way.retain(|of| *of == life);
                }
            }
            None => return,
        }
    }
    worlds.push(next);
}

/// Returns the number of states, or the first violation.
fn explore(bug: Bug) -> Result<(usize, usize), &'static str> {
    let (mut seen, mut open) = (HashSet::from([start()]), vec![start()]);
    while let Some(world) = open.pop() {
        for next in next(&world, bug)? {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    let taken = seen.iter().filter(|world| world.is_taken).count();
    Ok((seen.len(), taken))
}

#[test]
fn memory_of_orphans_is_touched_by_nobody() {
    let (states, taken) = explore(Bug::None).unwrap();
    assert!(states > 2000 && taken > 50, "{states} states, memory taken back in {taken}");
}

#[test]
fn each_rule_is_needed() {
    for bug in BUGS {
        assert!(explore(bug).is_err(), "{bug:?} is not found");
    }
}

#[test]
fn known_regions_stay_and_the_search_says_whether_others_may_follow() {
    let other = LmrId { slot: 1, ..ID };
    let nodes = vec![RECORD, MAPPER];
    let mut search = OrphanSearch::new([ID, other], nodes.clone());
    assert_eq!(search.question(), Some(Question::Known { node: RECORD, stops: false, ids: vec![ID, other] }));
    search.known(1, &[ID]);
    for stops in [false, true] {
        for node in &nodes {
            assert_eq!(search.question(), Some(Question::Known { node: *node, stops, ids: vec![other] }));
            search.known(7, &[]);
            if stops {
                assert_eq!(search.question(), Some(Question::OtherLives { node: *node, life: 7 }));
                search.ended();
            }
        }
    }
    assert_eq!((search.question(), search.orphans()), (None, Some(&BTreeSet::from([other]))));
    assert!(search.is_complete());
    let mut search = OrphanSearch::new([ID], nodes);
    (0..2).for_each(|_| search.known(1, &[]));
    assert!(search.is_complete() && search.orphans().is_none());
    search.known(1, &[ID]);
    assert!(!search.is_complete());
    assert_eq!(search.orphans(), Some(&BTreeSet::new()));
}
