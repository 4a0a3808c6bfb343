//! The periodic assignment of a handle's threads to its strands. Where there are more threads than strands, algorithm 1
//! of FLOCK (`threads.rs`) decides; otherwise each thread has a strand.

use super::places::Places;
use super::threads::{Load, SizeCounts, Sizes, ThreadScheduler, cost};
use crate::limits::{MAX_SEATS, MAX_STRANDS};
use dunlin_fabric::{Nanos, nanos};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Time between two schedulings if none is by size, in nanoseconds.
const INTERVAL: Nanos = 10_000_000;

/// The most requests between two looks of a thread at the clock.
const LOOK_EVERY: u32 = 1024;

/// A new assignment has to cost at most this part of the present one: otherwise threads with nearly equal loads
/// would move in each interval.
const WORTH_IT: (u128, u128) = (4, 5);

/// The loads of the threads, and when to schedule them next.
#[derive(Debug)]
pub(crate) struct Scheduling {
    counts: Box<[OnceLock<Arc<SizeCounts>>]>,
    /// Time between two schedulings.
    interval: Nanos,
    /// Threads are assigned by the sizes of their requests.
    by_size: bool,
    next: AtomicU64,
    state: Mutex<State>,
}

/// Reused memory, so that a scheduling does not allocate.
#[derive(Debug)]
struct State {
    scheduler: ThreadScheduler,
    last: Box<[Sizes]>,
    seats: Vec<u16>,
    loads: Vec<Load>,
    assigned: Vec<u16>,
    planned: Vec<u16>,
    active: Vec<u16>,
}

impl Scheduling {
    /// Creates the scheduling of a handle without threads, with this time between two schedulings by size. `None`:
    /// equal numbers of threads share each strand.
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        let (seats, strands) = (usize::from(MAX_SEATS), usize::from(MAX_STRANDS));
        Scheduling {
            counts: (0..MAX_SEATS).map(|_| OnceLock::new()).collect(),
            interval: interval.map_or(INTERVAL, nanos),
            by_size: interval.is_some(),
            next: AtomicU64::new(0),
            state: Mutex::new(State {
                scheduler: ThreadScheduler::new(MAX_SEATS),
                last: vec![Sizes::default(); seats].into(),
                seats: Vec::with_capacity(seats),
                loads: Vec::with_capacity(seats),
                assigned: Vec::with_capacity(seats),
                planned: Vec::with_capacity(seats),
                active: Vec::with_capacity(strands),
            }),
        }
    }

    /// Returns the place where a thread counts its requests; `None` for a number that is out of range.
    pub(crate) fn counts(&self, seat: u16) -> Option<Arc<SizeCounts>> {
        Some(Arc::clone(self.counts.get(usize::from(seat))?.get_or_init(Arc::default)))
    }

    /// Returns the number of requests between two looks of a thread at the clock: [`LOOK_EVERY`], and fewer for an
    /// interval below half a millisecond, which such a number of requests may take.
    pub(crate) fn look_every(&self) -> u32 {
        (self.interval >> 9).clamp(1, u64::from(LOOK_EVERY)) as u32
    }

    /// Returns whether a scheduling is due at `now`.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next.load(Ordering::Relaxed)
    }

    /// Assigns the threads to the active strands if that is due, unless another thread does. `random` places
    /// threads without requests, and is asked only where threads share strands: it may be a system call.
    pub(crate) fn run(&self, places: &Places, now: Nanos, random: impl FnOnce() -> u64) {
        let Ok(mut state) = self.state.try_lock() else { return };
        if !self.is_due(now) {
            return;
        }
        self.next.store(now.saturating_add(self.interval), Ordering::Relaxed);
        let State { scheduler, last, seats, loads, assigned, planned, active } = &mut *state;
        active.clear();
        active.extend(places.active());
        seats.clear();
        seats.extend((0..MAX_SEATS).filter(|seat| places.assigned(*seat).is_some()));
        loads.clear();
        assigned.clear();
        for &seat in &*seats {
            let counted =
                self.counts[usize::from(seat)].get().map(|counts| counts.since(&mut last[usize::from(seat)]));
            loads.push(counted.unwrap_or_default().load());
            assigned.push(places.assigned(seat).unwrap_or_default());
        }
        planned.clear();
        planned.extend_from_slice(assigned);
        let changes = if seats.len() <= active.len() {
            spread(active, planned)
        } else if !self.by_size {
            level(active, planned)
        } else {
            scheduler.assign(loads, active, planned, random()) > 0
                && is_worth_it(loads, (assigned, planned), active)
        };
        if changes {
            for (seat, strand) in seats.iter().zip(&*planned) {
                places.assign(*seat, Some(*strand));
            }
            places.changed();
        }
    }
}

/// Gives each thread a strand of its own: of threads on the same strand, or on one that is not active, all but the
/// first move. There are no more threads than strands. Returns whether any moves.
fn spread(active: &[u16], assigned: &mut [u16]) -> bool {
    let mut changes = false;
    for at in 0..assigned.len() {
        let own = assigned[at];
        if active.contains(&own) && !assigned[..at].contains(&own) {
            continue;
        }
        if let Some(free) = active.iter().find(|strand| !assigned.contains(strand)) {
            assigned[at] = *free;
            changes = true;
        }
    }
    changes
}

/// Moves threads until no strand has two more than another. Returns whether any moves.
fn level(active: &[u16], assigned: &mut [u16]) -> bool {
    let mut changes = false;
    loop {
        let on = |strand: &u16| assigned.iter().filter(|of| *of == strand).count();
        let Some(emptiest) = active.iter().min_by_key(|strand| on(strand)) else { return changes };
        let fewest = on(emptiest);
        let has_to_move = |strand: &u16| !active.contains(strand) || on(strand) > fewest + 1;
        let Some(at) = assigned.iter().rposition(has_to_move) else { return changes };
        assigned[at] = *emptiest;
        changes = true;
    }
}

/// Returns whether a new assignment is so much better than the present one that threads should move.
fn is_worth_it(loads: &[Load], (present, planned): (&[u16], &[u16]), active: &[u16]) -> bool {
    let is_used =
        |strand: &u16| loads.iter().zip(present).any(|(load, of)| of == strand && load.requests > 0);
    if present.iter().any(|strand| !active.contains(strand)) || !active.iter().all(is_used) {
        return true;
    }
    let (present, planned) = (cost(loads, present, active), cost(loads, planned, active));
    planned * WORTH_IT.1 <= present * WORTH_IT.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduling() -> Scheduling {
        Scheduling::new(Some(Duration::from_nanos(INTERVAL)))
    }

    fn places(strands: u16, assigned: &[u16]) -> Places {
        let places = Places::new();
        (0..strands).for_each(|strand| places.activate(strand));
        for (seat, strand) in (0u16..).zip(assigned) {
            places.assign(seat, Some(*strand));
        }
        places
    }

    fn assigned(places: &Places) -> Vec<u16> {
        (0..MAX_SEATS).filter_map(|seat| places.assigned(seat)).collect()
    }

    #[test]
    fn short_intervals_are_looked_for_more_often() {
        let every = |interval| Scheduling::new(interval).look_every();
        assert_eq!([None, Some(Duration::from_millis(1)), Some(Duration::MAX)].map(every), [1024; 3]);
        assert_eq!([1, 1_000, 100_000].map(|nanos| every(Some(Duration::from_nanos(nanos)))), [1, 1, 195]);
    }

    #[test]
    fn threads_that_fit_get_a_strand_each() {
        let (scheduling, places) = (scheduling(), places(4, &[1, 1, 1, 9]));
        scheduling.run(&places, 0, || 0);
        assert_eq!((assigned(&places), places.epoch()), (vec![1, 0, 2, 3], 1));
        // Nothing is left to do, and the interval is not over.
        scheduling.run(&places, INTERVAL, || 0);
        places.assign(0, Some(0));
        scheduling.run(&places, INTERVAL + 1, || 0);
        assert_eq!((assigned(&places), places.epoch()), (vec![0, 0, 2, 3], 1));
    }

    #[test]
    fn threads_with_large_requests_move_apart_and_stay() {
        let (scheduling, places) = (scheduling(), places(2, &[0, 0, 1, 1]));
        let count = |sizes: [u32; 4]| {
            for (seat, bytes) in (0u16..).zip(sizes) {
                (0..100).for_each(|_| scheduling.counts(seat).unwrap().count(bytes));
            }
        };
        count([8192, 64, 64, 64]);
        scheduling.run(&places, 0, || 0);
        let moved = assigned(&places);
        assert_eq!((moved[1], moved[2], moved[3]), (moved[1], moved[1], moved[1]));
        assert_ne!(moved[0], moved[1]);
        let epoch = places.epoch();
        for round in 1..10 {
            count([8000, 63 + (round % 2) as u32, 64, 60]);
            scheduling.run(&places, round * INTERVAL, || 0);
        }
        assert_eq!((assigned(&places), places.epoch()), (moved, epoch), "nearly equal loads move nobody");
    }

    #[test]
    fn a_strand_without_requests_gets_threads() {
        let (scheduling, places) = (scheduling(), places(2, &[0, 0, 0]));
        for seat in 0..3 {
            (0..10).for_each(|_| scheduling.counts(seat).unwrap().count(64));
        }
        scheduling.run(&places, 0, || 0);
        assert_eq!(places.threads()[..2], [2, 1]);
        assert!(scheduling.counts(MAX_SEATS).is_none());
    }

    #[test]
    fn without_sizes_strands_have_equal_numbers_of_threads() {
        let (scheduling, places) = (Scheduling::new(None), places(3, &[1, 1, 1, 9, 1, 0, 1]));
        (0..100).for_each(|_| scheduling.counts(0).unwrap().count(8192));
        scheduling.run(&places, 0, || 0);
        assert_eq!((places.threads()[..3].to_vec(), places.epoch()), (vec![2, 3, 2], 1));
        scheduling.run(&places, INTERVAL, || 0);
        assert_eq!(places.epoch(), 1, "nobody moves without a reason");
    }
}
