//! The model of all regions of a run: the bytes that a read may return, the rights, and the operations that must fail.
//!
//! Each thread has a slot of its own in each region, and writes it as a whole. Each word of a slot names the region,
//! the slot and the number of the write, so a word of a freed region, or of another slot, is known wherever it turns
//! up. The first word of a region is a counter. Once the right to write was taken away from a node, the slots of its
//! threads stay as they are.

use dunlin_fabric::Nanos;
use dunlin_tier_node::Rights;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The place of the first slot in a region.
pub(super) const SLOTS_AT: u64 = 64;
/// The time until the processor of the storing node sees a completed WRITE.
const LANDED: Nanos = 1_000_000;
/// Completed writes of a slot that are remembered with their times.
const REMEMBERED: usize = 64;

/// The writes of one thread to one region, numbered from 1.
#[derive(Debug, Default)]
struct Slot {
    /// The last write that was begun.
    begun: u32,
    is_under_way: bool,
    /// Completed writes with the times of their completions.
    completed: VecDeque<(Nanos, u32)>,
    /// Writes that may have been executed: their bytes may come late.
    uncertain: BTreeSet<u32>,
    /// Writes that were reported as not executed.
    not_executed: BTreeSet<u32>,
    /// Writes whose bytes were read before they ended.
    read_early: BTreeSet<u32>,
}

/// How a request about a region ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Maybe,
    Not,
}

/// The right of a node to write to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// It is as it was granted.
    Granted,
    /// It is being taken away, or may have been.
    Perhaps,
    /// It was taken away before this time.
    Revoked(Nanos),
}

#[derive(Debug)]
struct Region {
    creator: usize,
    /// The node that keeps the name.
    home: Option<usize>,
    rights: Vec<Rights>,
    /// For each node.
    writes: Vec<Writes>,
    /// Words of slots whose threads have no right to write any more, as they were read after that.
    frozen: BTreeMap<u64, u64>,
    length: u64,
    slot: usize,
    slots: Vec<Slot>,
    is_made: bool,
    /// The nodes that may store it now, and those that may have stored it at any time.
    stores: BTreeSet<usize>,
    ever: BTreeSet<usize>,
    /// Which of them is not known: moves overlapped, or may go on.
    is_unsure: bool,
    /// The nodes whose threads move it, or free it.
    movers: Vec<usize>,
    freers: Vec<usize>,
    /// The begin of the last move that has certainly changed the place, and ended.
    left_at: Nanos,
    free: End,
    /// A node that it needs has been killed: it may be gone, or out of reach.
    is_doomed: bool,
    adds_begun: u64,
    adds_not_executed: u64,
    adds_done: u64,
    /// The values before completed additions.
    sums: BTreeSet<u64>,
}

/// A move under way.
#[derive(Debug)]
pub(super) struct Moving {
    region: usize,
    node: usize,
    to: usize,
    begun: Nanos,
    /// If it succeeds, the place has certainly changed.
    leaves: bool,
    was_possible: bool,
}

/// The writes that a read has to return at least, and the time of its begin.
#[derive(Debug)]
pub(super) struct Floors(Vec<u32>, Nanos);

/// A thread of the run: its node and the number of its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) node: usize,
    pub(super) slot: usize,
}

/// The model of a run. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Model(Arc<Mutex<Vec<Region>>>);

fn word(region: usize, slot: usize, number: u32) -> u64 {
    (region as u64 + 1) << 40 | (slot as u64) << 32 | u64::from(number)
}

/// Returns the bytes of a write.
pub(super) fn bytes_of(region: usize, slot: usize, number: u32, length: usize) -> Vec<u8> {
    word(region, slot, number).to_le_bytes().repeat(length / 8)
}

impl Model {
    fn regions(&self) -> MutexGuard<'_, Vec<Region>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region that is about to be made; returns its number.
    pub(super) fn begin_making(
        &self,
        (creator, home): (usize, Option<usize>),
        stores: &[usize],
        rights: Vec<Rights>,
        (slots, slot): (usize, usize),
    ) -> usize {
        let mut regions = self.regions();
        let stores: BTreeSet<usize> = stores.iter().copied().collect();
        regions.push(Region {
            creator,
            home,
            writes: vec![Writes::Granted; rights.len()],
            frozen: BTreeMap::new(),
            rights,
            length: SLOTS_AT + (slots * slot) as u64,
            slot,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            is_made: false,
            ever: stores.clone(),
            stores,
            is_unsure: false,
            movers: Vec::new(),
            freers: Vec::new(),
            left_at: 0,
            free: End::Not,
            is_doomed: false,
            adds_begun: 0,
            adds_not_executed: 0,
            adds_done: 0,
            sums: BTreeSet::new(),
        });
        regions.len() - 1
    }

    pub(super) fn length(&self, region: usize) -> u64 {
        self.regions()[region].length
    }

    /// Notes that a region was made, or not.
    pub(super) fn made(&self, region: usize, is_made: bool) {
        let region = &mut self.regions()[region];
        region.is_made = is_made;
        if !is_made {
            // It was never seen by anybody, or is being taken back.
            region.free = End::Maybe;
        }
    }

    /// Returns the regions that were begun, and how many of them nobody has freed.
    pub(super) fn counts(&self) -> (usize, usize) {
        let regions = self.regions();
        let live = regions.iter().filter(|region| region.free == End::Not && !region.is_doomed);
        (regions.len(), live.count())
    }

    pub(super) fn rights(&self, region: usize, node: usize) -> Rights {
        self.regions()[region].rights[node]
    }

    /// Returns whether nothing has happened to a region that lets `map` fail.
    pub(super) fn must_be_there(&self, region: usize) -> bool {
        let region = &self.regions()[region];
        region.is_made && !region.is_doomed && region.free == End::Not && region.freers.is_empty()
    }

    /// Returns the reason why an operation that begins now must fail, on a handle that was mapped at `mapped_at`.
    pub(super) fn must_fail(
        &self,
        region: usize,
        (node, rights): (usize, Rights),
        mapped_at: Nanos,
    ) -> Option<&'static str> {
        let region = &self.regions()[region];
        if rights.contains(Rights::WRITE) && matches!(region.writes[node], Writes::Revoked(_)) {
            return Some("its right to write was revoked");
        }
        if region.free == End::Done {
            return Some("it was freed");
        }
        (region.left_at > mapped_at).then_some("it had moved")
    }

    /// Returns whether the right of a node to write was certainly not taken away, and whether it certainly was.
    pub(super) fn writes(&self, region: usize, node: usize) -> (bool, bool) {
        let writes = self.regions()[region].writes[node];
        (writes == Writes::Granted, matches!(writes, Writes::Revoked(_)))
    }

    pub(super) fn is_maker(&self, region: usize, node: usize) -> bool {
        self.regions()[region].creator == node
    }

    pub(super) fn begin_revoke(&self, region: usize, node: usize) {
        let writes = &mut self.regions()[region].writes[node];
        if *writes == Writes::Granted {
            *writes = Writes::Perhaps;
        }
    }

    /// Notes the end of a revocation that began when this one did, or later.
    pub(super) fn end_revoke(&self, region: usize, node: usize, now: Nanos) {
        let writes = &mut self.regions()[region].writes[node];
        if *writes == Writes::Perhaps {
            *writes = Writes::Revoked(now);
        }
    }

    /// Returns whether a region was freed for certain.
    pub(super) fn is_freed(&self, region: usize) -> bool {
        self.regions()[region].free == End::Done
    }

    pub(super) fn begin_write(&self, region: usize, slot: usize) -> (u32, usize) {
        let region = &mut self.regions()[region];
        let length = region.slot;
        let slot = &mut region.slots[slot];
        slot.begun += 1;
        slot.is_under_way = true;
        (slot.begun, length)
    }

    pub(super) fn end_write(&self, region: usize, slot: usize, end: End, now: Nanos) -> Result<(), String> {
        let slot_number = slot;
        let slot = &mut self.regions()[region].slots[slot];
        slot.is_under_way = false;
        let number = slot.begun;
        match end {
            End::Done => {
                if slot.completed.len() == REMEMBERED {
                    slot.completed.pop_front();
                }
                slot.completed.push_back((now, number));
            }
            End::Maybe => {
                slot.uncertain.insert(number);
            }
            End::Not => {
                slot.not_executed.insert(number);
                if slot.read_early.contains(&number) {
                    return Err(format!(
                        "write {number} to slot {slot_number} of region {region} was read, and its caller told that it was not executed"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the writes that a read by `node`, which begins at `now`, has to return at least.
    pub(super) fn begin_read(&self, region: usize, node: usize, now: Nanos) -> Floors {
        let region = &self.regions()[region];
        let by = if region.ever.contains(&node) { now.saturating_sub(LANDED) } else { now };
        let floor = |slot: &Slot| {
            let seen = slot.completed.iter().rev().find(|(at, _)| *at <= by);
            // Of writes that are not remembered, the oldest remembered one's predecessor.
            seen.map_or(0, |(_, number)| *number)
        };
        Floors(region.slots.iter().map(floor).collect(), now)
    }

    /// Checks bytes that were read at `offset`, a multiple of 8.
    pub(super) fn check_read(
        &self,
        region: usize,
        floors: &Floors,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let number = region;
        let region = &mut self.regions()[region];
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        for (at, found) in (offset..).step_by(8).zip(words) {
            let wrong = |why: String| Err(format!("region {number} at {at} has {found:#x}: {why}"));
            if at < SLOTS_AT {
                let most = region.adds_begun - region.adds_not_executed;
                if if at == 0 { found > most } else { found != 0 } {
                    return wrong(format!("no thread wrote that; at most {most} additions"));
                }
                continue;
            }
            let place = (at - SLOTS_AT) as usize / region.slot;
            let node = place * region.writes.len() / region.slots.len();
            if matches!(region.writes[node], Writes::Revoked(since) if since <= floors.1) {
                let before = *region.frozen.entry(at).or_insert(found);
                if before != found {
                    return wrong(format!(
                        "it had {before:#x} after the right of node {node} to write had ended"
                    ));
                }
            }
            let (slot, floor) = (&mut region.slots[place], floors.0[place]);
            let write = found as u32;
            if found == 0 && floor == 0 {
                continue;
            }
            if found != word(number, place, write) || found as u32 == 0 {
                return wrong(format!("that is no write of this slot, where write {floor} had ended"));
            }
            if write > slot.begun || slot.not_executed.contains(&write) {
                return wrong(format!("write {write} was not executed"));
            }
            if write < floor && !slot.uncertain.contains(&write) {
                return wrong(format!("write {floor} had ended, and is lost"));
            }
            if write == slot.begun && slot.is_under_way {
                slot.read_early.insert(write);
            }
        }
        Ok(())
    }

    pub(super) fn begin_add(&self, region: usize) {
        self.regions()[region].adds_begun += 1;
    }

    /// Notes the end of an addition of 1; `old` is the value that it returned.
    pub(super) fn end_add(&self, region: usize, end: End, old: u64) -> Result<(), String> {
        let number = region;
        let region = &mut self.regions()[region];
        match end {
            End::Done => {
                region.adds_done += 1;
                if !region.sums.insert(old) {
                    return Err(format!("two additions to region {number} found {old}"));
                }
                if old >= region.adds_begun - region.adds_not_executed {
                    return Err(format!("an addition to region {number} found {old}: more than was added"));
                }
            }
            End::Maybe => {}
            End::Not => region.adds_not_executed += 1,
        }
        Ok(())
    }

    /// Checks the counter of a region to which nobody adds.
    pub(super) fn check_counter(&self, region: usize, found: u64) -> Result<(), String> {
        let number = region;
        let region = &self.regions()[region];
        let range = region.adds_done..=region.adds_begun - region.adds_not_executed;
        if range.contains(&found) {
            return Ok(());
        }
        Err(format!("the counter of region {number} is {found}, and {range:?} additions were executed"))
    }

    pub(super) fn begin_move(&self, region: usize, node: usize, to: usize, begun: Nanos) -> Moving {
        let number = region;
        let region = &mut self.regions()[region];
        region.is_unsure |= !region.movers.is_empty();
        region.movers.push(node);
        region.ever.insert(to);
        let leaves = !region.stores.contains(&to);
        let was_possible = !region.stores.insert(to);
        Moving { region: number, node, to, begun, leaves, was_possible }
    }

    pub(super) fn end_move(&self, moving: &Moving, end: End) {
        let region = &mut self.regions()[moving.region];
        if let Some(place) = region.movers.iter().position(|node| *node == moving.node) {
            region.movers.swap_remove(place);
        }
        match end {
            End::Maybe => region.is_unsure = true,
            _ if region.is_unsure => {}
            End::Done => {
                region.stores = BTreeSet::from([moving.to]);
                if moving.leaves {
                    region.left_at = region.left_at.max(moving.begun);
                }
            }
            End::Not if !moving.was_possible => {
                region.stores.remove(&moving.to);
            }
            End::Not => {}
        }
    }

    pub(super) fn begin_free(&self, region: usize, node: usize) {
        self.regions()[region].freers.push(node);
    }

    pub(super) fn end_free(&self, region: usize, node: usize, end: End) {
        let region = &mut self.regions()[region];
        if let Some(place) = region.freers.iter().position(|freer| *freer == node) {
            region.freers.swap_remove(place);
        }
        region.free = match (region.free, end) {
            (End::Done, _) | (_, End::Done) => End::Done,
            (End::Maybe, _) | (_, End::Maybe) => End::Maybe,
            _ => End::Not,
        };
    }

    /// Notes that a node was killed, with its threads. If a keeper has its memory, regions outlive it, unless nobody knows
    /// whether they were made.
    pub(super) fn killed(&self, node: usize, slots: std::ops::Range<usize>, is_kept: bool) {
        for region in self.regions().iter_mut() {
            let uses = region.creator == node || region.home == Some(node) || region.stores.contains(&node);
            region.is_doomed |= uses && !(is_kept && region.is_made);
            for slot in &mut region.slots[slots.clone()] {
                if std::mem::take(&mut slot.is_under_way) {
                    slot.uncertain.insert(slot.begun);
                }
            }
            let (movers, freers) = (region.movers.len(), region.freers.len());
            region.movers.retain(|mover| *mover != node);
            region.freers.retain(|freer| *freer != node);
            // The record's node goes on.
            region.is_unsure |= region.movers.len() < movers;
            if region.freers.len() < freers && region.free == End::Not {
                region.free = End::Maybe;
            }
        }
    }

    /// Returns the regions that must be there, with the nodes that made them.
    pub(super) fn all_that_must_be_there(&self) -> Vec<(usize, usize)> {
        let count = self.regions().len();
        let there = (0..count).filter(|region| self.must_be_there(*region));
        there.map(|region| (region, self.regions()[region].creator)).collect()
    }

    /// Returns the regions that are there unless a free was executed whose caller does not know of it, with the nodes that
    /// made them.
    pub(super) fn all_that_may_be_freed(&self) -> Vec<(usize, usize)> {
        let regions = self.regions();
        let is_unsure = |region: &Region| region.is_made && !region.is_doomed && region.free == End::Maybe;
        let unsure = regions.iter().enumerate().filter(|(_, region)| is_unsure(region));
        unsure.map(|(number, region)| (number, region.creator)).collect()
    }

    /// Returns the regions of which record, name or bytes were perhaps lost with a node.
    pub(super) fn all_doomed(&self) -> Vec<usize> {
        let regions = self.regions();
        (0..regions.len()).filter(|region| regions[*region].is_doomed).collect()
    }
}
