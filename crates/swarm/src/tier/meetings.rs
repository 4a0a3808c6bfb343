//! The model of locks and barriers: the threads that have a lock, those that wait, and the callers of each barrier.

use dunlin_fabric::Nanos;
use dunlin_tier::Epoch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bits of a fence number that count hand-overs within a node, and the most of them.
const HANDED_OVER: u64 = 0xff;
const MAX_HANDED_OVER: u64 = 16;
/// The bits of a fence number below the number of the view with which the owner began, under a directory.
const OWNER_SHIFT: u32 = 36;

/// The time until the owner of a barrier does not count a thread any more that has given up: that of messages, and
/// that of a machine which is cut off meanwhile.
const HEARD: Nanos = 200_000;
const HEARD_THROUGH_A_CUT: Nanos = 30_000_000;
/// The same where machines are cut off for longer than leases.
const HEARD_AFTER_A_LEASE: Nanos = 1_000_000_000;
/// The time until the first waiter of a node stands in the owner's queue, the first connection included.
const QUEUED: Nanos = 1_000_000;

/// A thread of a life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) node: usize,
    /// The number of the node's process.
    pub(super) life: u64,
    pub(super) number: usize,
}

/// The node that owns a lock, as a thread knows it that asks for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// One node of a fixed list.
    Node(usize),
    /// The node that the view says: that of the thread's node when it asked, or a later one, up to that when it had the
    /// lock.
    OfView { asked: Epoch, granted: Epoch },
}

/// A grant of a lock, as its thread saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) thread: Thread,
    /// When the thread asked for it, and when it had it.
    pub(super) asked: Nanos,
    pub(super) seen: Nanos,
    pub(super) fence: u64,
    pub(super) is_poisoned: bool,
    pub(super) owner: Owner,
}

impl Granted {
    /// Returns the number of the owner's life.
    fn life(&self) -> u64 {
        match self.owner {
            Owner::Node(_) => 0,
            Owner::OfView { .. } => self.fence >> OWNER_SHIFT,
        }
    }
}

/// The grants of a life of a lock's owner.
#[derive(Debug, Default)]
struct Grants {
    holder: Option<Granted>,
    /// The holder that was killed with the lock.
    dead: Option<Granted>,
    /// The largest fence number of a grant, and of one that found the lock poisoned.
    last: u64,
    last_poisoned: u64,
    /// The first grant: when it was seen, and the view of its thread's node then.
    first: Option<(Nanos, Epoch)>,
}

/// A thread that waits for a lock.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    asked: Nanos,
    thread: Thread,
    /// It may give up at any moment.
    is_short: bool,
}

/// The threads of one node, as users of one lock.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// Threads that have the lock, or are giving it back.
    busy: u32,
    /// When a thread last began to give it back.
    released: Nanos,
    /// When a thread last got it, went without it or had given it back.
    changed: Nanos,
}

#[derive(Debug)]
struct Lock {
    /// By the owner's life.
    grants: BTreeMap<u64, Grants>,
    /// In the order in which they asked.
    waiting: VecDeque<Waiting>,
    nodes: Vec<Use>,
    /// When the owner was killed: locks of its earlier life are nobody's. With a fixed list.
    reset: Nanos,
    /// The owner in a fixed list, once it is known.
    owner: Option<usize>,
}

/// A call of a barrier.
#[derive(Clone, Copy, Debug)]
struct Visit {
    begun: Nanos,
    /// None while it may be there: also of a thread that was killed.
    ended: Option<Nanos>,
}

#[derive(Debug)]
struct State {
    lives: Vec<u64>,
    locks: Vec<Lock>,
    barriers: Vec<Vec<Visit>>,
    /// From this time on nothing disturbs the run any more, until a disturbance moves it.
    quiet_from: Nanos,
    /// Lives of the directory, and the greatest number of a view.
    directories: BTreeSet<u64>,
    newest: u64,
    /// A life of the directory has begun to count again, since it heard of no node that had a view of the last one. So fence
    /// numbers begin again, too.
    has_forgotten: bool,
}

/// The model of a run. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Meetings {
    state: Arc<Mutex<State>>,
    /// Nothing disturbs the run.
    is_calm: bool,
    /// The time until the owner of a barrier has heard of a thread that gave up, at the latest.
    heard: Nanos,
}

impl State {
    fn is_alive(&self, thread: Thread) -> bool {
        self.lives[thread.node] == thread.life
    }

    /// Returns the thread that a fresh grant has overtaken: the first one of another node, which was in the owner's queue
    /// before the thread of the grant can have been there.
    fn overtaken(&self, number: usize, granted: &Granted) -> Option<Waiting> {
        let (lock, own) = (&self.locks[number], granted.thread.node);
        let came = granted.asked.max(lock.nodes[own].released);
        if granted.fence & HANDED_OVER != 0 {
            return None;
        }
        (0..lock.nodes.len()).filter(|node| *node != own).find_map(|node| {
            let Use { busy: 0, changed, .. } = lock.nodes[node] else { return None };
            let first = lock.waiting.iter().find(|waiting| waiting.thread.node == node)?;
            let queued = first.asked.max(changed);
            let is_before = queued >= self.quiet_from && queued.saturating_add(QUEUED) < came;
            (is_before && !first.is_short).then_some(*first)
        })
    }
}

impl Meetings {
    /// A run with a fixed list of nodes.
    pub(super) fn new(nodes: usize, locks: usize, barriers: usize, is_calm: bool) -> Meetings {
        let lock = |_| Lock {
            grants: BTreeMap::new(),
            waiting: VecDeque::new(),
            nodes: vec![Use::default(); nodes],
            reset: 0,
            owner: None,
        };
        let state = State {
            lives: vec![0; nodes],
            locks: (0..locks).map(lock).collect(),
            barriers: vec![Vec::new(); barriers],
            quiet_from: if is_calm { 0 } else { Nanos::MAX },
            directories: BTreeSet::new(),
            newest: 0,
            has_forgotten: false,
        };
        Meetings { state: Arc::new(Mutex::new(state)), is_calm, heard: HEARD_THROUGH_A_CUT }
    }

    /// A run whose nodes have views of a directory, quiet between its disturbances.
    pub(super) fn of_views(nodes: usize, locks: usize, barriers: usize) -> Meetings {
        let meetings = Meetings::new(nodes, locks, barriers, false);
        meetings.state().quiet_from = 0;
        Meetings { heard: HEARD_AFTER_A_LEASE, ..meetings }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something disturbs the run until a time, at least.
    pub(super) fn disturbed(&self, until: Nanos) {
        let mut state = self.state();
        state.quiet_from = state.quiet_from.max(until);
    }

    /// A node has a view of a directory.
    pub(super) fn sees(&self, epoch: Epoch) {
        let mut state = self.state();
        let is_new = state.directories.insert(epoch.directory);
        state.has_forgotten |= is_new && epoch.number <= state.newest;
        state.newest = state.newest.max(epoch.number);
    }

    /// A node has begun a life. Reports of threads of its other lives do not count.
    pub(super) fn begins(&self, node: usize, life: u64) {
        self.state().lives[node] = life;
    }

    /// A node was killed with its threads.
    pub(super) fn killed(&self, node: usize, now: Nanos) {
        let mut state = self.state();
        state.lives[node] = 0;
        for lock in &mut state.locks {
            lock.waiting.retain(|waiting| waiting.thread.node != node);
            lock.nodes[node] = Use { changed: now, ..Use::default() };
            if lock.owner == Some(node) {
                lock.reset = now;
                lock.grants.clear();
            }
            for grants in lock.grants.values_mut() {
                if let Some(dead) = grants.holder.take_if(|holder| holder.thread.node == node) {
                    grants.dead = Some(dead);
                }
            }
        }
    }

    /// A thread asks for a lock. With a short time it may give up at any moment, and stands in nobody's way.
    pub(super) fn asks(&self, lock: usize, thread: Thread, is_short: bool, now: Nanos) {
        let mut state = self.state();
        if state.is_alive(thread) {
            state.locks[lock].waiting.push_back(Waiting { asked: now, thread, is_short });
        }
    }

    /// A thread has not got a lock.
    pub(super) fn goes_without(&self, lock: usize, thread: Thread, now: Nanos) {
        let mut state = self.state();
        if state.is_alive(thread) {
            let lock = &mut state.locks[lock];
            lock.waiting.retain(|waiting| waiting.thread != thread);
            lock.nodes[thread.node].changed = now;
        }
    }

    /// A thread has got a lock.
    pub(super) fn granted(&self, number: usize, granted: Granted) -> Result<(), String> {
        let mut state = self.state();
        let thread = granted.thread;
        if !state.is_alive(thread) {
            return Ok(());
        }
        let (overtaken, quiet_from) = (state.overtaken(number, &granted), state.quiet_from);
        let has_forgotten = state.has_forgotten;
        let lock = &mut state.locks[number];
        if let Owner::Node(owner) = granted.owner {
            lock.owner = Some(owner);
        }
        let is_first = |waiting: &&Waiting| waiting.thread.node == thread.node && !waiting.is_short;
        let first = lock.waiting.iter().find(is_first).copied();
        lock.waiting.retain(|waiting| waiting.thread != thread);
        let own = &mut lock.nodes[thread.node];
        (own.busy, own.changed) = (own.busy + 1, granted.seen);
        if granted.asked <= lock.reset || has_forgotten {
            // Of an earlier life of the owner, perhaps.
            return Ok(());
        }
        let wrong = |what: String| Err(format!("lock {number} was granted to {granted:?}: {what}"));
        if self.is_calm && granted.is_poisoned {
            return wrong("it is poisoned, and nobody died".to_owned());
        }
        if granted.fence & HANDED_OVER > MAX_HANDED_OVER {
            return wrong("its node handed it over too often".to_owned());
        }
        if let Some(first) = first
            && first.asked >= quiet_from
            && first.asked < granted.asked
        {
            return wrong(format!("{first:?} has waited for it longer"));
        }
        if let Some(other) = overtaken {
            return wrong(format!("{other:?} has waited for it longer, at the owner"));
        }
        if let Owner::OfView { asked, granted: view } = granted.owner {
            // Each node with this view knows the owner that grants it now.
            let later = lock.grants.range(granted.life() + 1..).find(|(_, grants)| {
                grants.first.is_some_and(|(seen, view)| seen < granted.asked && view <= asked)
            });
            if let Some((life, grants)) = later {
                return wrong(format!("the owner since view {life} has granted it: {grants:?}"));
            }
            let first = &mut lock.grants.entry(granted.life()).or_default().first;
            first.get_or_insert((granted.seen, view));
        }
        let grants = lock.grants.entry(granted.life()).or_default();
        // A node hands a lock over among its threads without a word to the owner, which may have been killed.
        let is_handed_over = granted.fence & HANDED_OVER != 0;
        if lock.reset > 0 && is_handed_over && grants.last & !HANDED_OVER != granted.fence & !HANDED_OVER {
            return Ok(());
        }
        if granted.fence < grants.last_poisoned {
            // The owner took it for dead before it saw the grant.
            return Ok(());
        }
        if granted.is_poisoned {
            grants.dead = None;
        }
        if let Some(dead) = grants.dead {
            return wrong(format!("it is not poisoned, and its holder {dead:?} died with it"));
        }
        if let Some(holder) = grants.holder
            && !granted.is_poisoned
        {
            return wrong(format!("{holder:?} has it"));
        }
        if granted.fence <= grants.last {
            return wrong(format!("there was a grant with the fence number {}", grants.last));
        }
        grants.last = granted.fence;
        if granted.is_poisoned {
            grants.last_poisoned = granted.fence;
        }
        grants.holder = Some(granted);
        Ok(())
    }

    /// A thread begins to give a lock back.
    pub(super) fn gives_back(&self, lock: usize, thread: Thread, now: Nanos) {
        let mut state = self.state();
        if state.is_alive(thread) {
            let lock = &mut state.locks[lock];
            lock.nodes[thread.node].released = now;
            for grants in lock.grants.values_mut() {
                grants.holder = grants.holder.filter(|holder| holder.thread != thread);
            }
        }
    }

    /// A thread has given a lock back.
    pub(super) fn gave_back(&self, lock: usize, thread: Thread, now: Nanos) {
        let mut state = self.state();
        if state.is_alive(thread) {
            let own = &mut state.locks[lock].nodes[thread.node];
            (own.busy, own.changed) = (own.busy.saturating_sub(1), now);
        }
    }

    /// A thread comes to a barrier; returns the number of its visit.
    pub(super) fn comes(&self, barrier: usize, now: Nanos) -> usize {
        let visits = &mut self.state().barriers[barrier];
        visits.push(Visit { begun: now, ended: None });
        visits.len() - 1
    }

    /// A thread goes on without the others. The owner hears of that, or sees that the time is over, a little later.
    pub(super) fn gives_up(&self, barrier: usize, visit: usize, now: Nanos) {
        let mut state = self.state();
        let quiet_from = state.quiet_from;
        let visit = &mut state.barriers[barrier][visit];
        let heard = if visit.begun >= quiet_from && now >= quiet_from { HEARD } else { self.heard };
        visit.ended = Some(now + heard);
    }

    /// A thread has passed a barrier of `members` members. All of them were there at one time since it came.
    pub(super) fn passes(
        &self,
        barrier: usize,
        visit: usize,
        members: u16,
        now: Nanos,
    ) -> Result<(), String> {
        let visits = &mut self.state().barriers[barrier];
        visits[visit].ended = Some(now);
        let begun = visits[visit].begun;
        let there = visits.iter().filter(|other| other.ended.is_none_or(|ended| ended >= begun)).count();
        if there >= usize::from(members) {
            return Ok(());
        }
        Err(format!("a thread passed barrier {barrier} of {members} members, and {there} were there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(node: usize, number: usize) -> Thread {
        Thread { node, life: 1, number }
    }

    fn granted(thread: Thread, fence: u64, is_poisoned: bool) -> Granted {
        Granted { thread, asked: 10, seen: 15, fence, is_poisoned, owner: Owner::Node(0) }
    }

    fn begun(meetings: Meetings) -> Meetings {
        (0..3).for_each(|node| meetings.begins(node, 1));
        meetings
    }

    fn meetings(is_calm: bool) -> Meetings {
        begun(Meetings::new(3, 1, 1, is_calm))
    }

    fn gives_back(meetings: &Meetings, thread: Thread, now: Nanos) {
        meetings.gives_back(0, thread, now);
        meetings.gave_back(0, thread, now);
    }

    #[test]
    fn a_second_holder_is_found() {
        let meetings = meetings(false);
        meetings.granted(0, granted(thread(1, 0), 256, false)).unwrap();
        assert!(meetings.granted(0, granted(thread(2, 0), 512, false)).is_err());
        meetings.granted(0, granted(thread(2, 0), 512, true)).unwrap();
        gives_back(&meetings, thread(1, 0), 16);
        assert!(meetings.granted(0, granted(thread(1, 0), 768, false)).is_err());
        gives_back(&meetings, thread(2, 0), 17);
        assert!(meetings.granted(0, granted(thread(1, 0), 512, false)).is_err(), "an old fence number");
        meetings.granted(0, granted(thread(1, 0), 768, false)).unwrap();
        meetings.killed(0, 30);
        meetings.granted(0, Granted { asked: 31, ..granted(thread(2, 1), 256, false) }).unwrap();
        gives_back(&meetings, thread(2, 1), 32);
        assert!(
            meetings.granted(0, Granted { asked: 31, ..granted(thread(2, 1), 512 + 17, false) }).is_err()
        );
    }

    #[test]
    fn a_dead_holder_that_nobody_hears_of_is_found() {
        let meetings = meetings(false);
        meetings.granted(0, granted(thread(1, 0), 256, false)).unwrap();
        meetings.killed(1, 20);
        assert!(meetings.granted(0, granted(thread(2, 0), 512, false)).is_err());
        meetings.granted(0, granted(thread(2, 0), 512, true)).unwrap();
        gives_back(&meetings, thread(2, 0), 21);
        meetings.granted(0, granted(thread(2, 0), 768, false)).unwrap();
    }

    #[test]
    fn a_thread_before_its_turn_is_found() {
        let meetings = meetings(true);
        for number in 0..3 {
            meetings.asks(0, thread(1, number), number == 0, 10 + number as u64);
        }
        meetings.asks(0, thread(2, 0), false, 13);
        let granted = |thread, fence, asked| Granted { asked, ..granted(thread, fence, false) };
        meetings.granted(0, granted(thread(2, 0), 1 << 8, 13)).unwrap();
        gives_back(&meetings, thread(2, 0), 14);
        meetings.granted(0, granted(thread(1, 0), 2 << 8, 10)).unwrap();
        gives_back(&meetings, thread(1, 0), 15);
        assert!(meetings.granted(0, granted(thread(1, 2), 3 << 8, 12)).is_err());
    }

    /// Node 1 waits since 10. A thread of node 2 that comes much later goes before it only by a hand-over.
    #[test]
    fn a_node_before_its_turn_is_found() {
        let late = 20 + QUEUED;
        for (fence, is_short, has_changed, is_right) in [
            (5 << 8, false, false, false),
            (5 << 8 | 1, false, false, true),
            (5 << 8, true, false, true),
            (5 << 8, false, true, true),
        ] {
            let meetings = meetings(true);
            meetings.asks(0, thread(1, 0), is_short, 10);
            if has_changed {
                meetings.goes_without(0, thread(1, 1), 21);
            }
            meetings.asks(0, thread(2, 0), false, late);
            let granted = Granted { asked: late, ..granted(thread(2, 0), fence, false) };
            assert_eq!(meetings.granted(0, granted).is_ok(), is_right, "{granted:?}");
        }
    }

    #[test]
    fn an_owner_that_a_later_one_has_followed_is_found() {
        let meetings = begun(Meetings::of_views(3, 1, 1));
        let epoch = |number| Epoch { number, directory: 1 };
        let granted = |node, life: u64, number: u64, (asked, seen), view| Granted {
            asked,
            seen,
            fence: life << OWNER_SHIFT | number << 8,
            owner: Owner::OfView { asked: epoch(view), granted: epoch(view) },
            ..granted(thread(node, 0), 0, false)
        };
        meetings.granted(0, granted(0, 3, 1, (10, 11), 3)).unwrap();
        // Another owner's life has a holder of its own.
        meetings.granted(0, granted(1, 5, 1, (12, 13), 5)).unwrap();
        assert!(meetings.granted(0, granted(2, 5, 2, (13, 14), 5)).is_err());
        gives_back(&meetings, thread(0, 0), 15);
        // With an older view a node may not know the next owner yet.
        meetings.granted(0, granted(2, 3, 2, (16, 17), 4)).unwrap();
        gives_back(&meetings, thread(2, 0), 18);
        assert!(meetings.granted(0, granted(2, 3, 3, (19, 20), 5)).is_err());
        [epoch(5), Epoch { number: 6, directory: 2 }].into_iter().for_each(|epoch| meetings.sees(epoch));
        assert!(meetings.granted(0, granted(2, 3, 3, (19, 20), 5)).is_err());
        meetings.sees(Epoch { number: 1, directory: 3 });
        meetings.granted(0, granted(2, 3, 3, (19, 20), 5)).unwrap();
    }

    #[test]
    fn an_early_passer_is_found() {
        let meetings = meetings(true);
        let (first, early) = (meetings.comes(0, 10), meetings.comes(0, 11));
        meetings.gives_up(0, first, 12);
        let late = meetings.comes(0, 13 + HEARD);
        assert!(meetings.passes(0, late, 3, 14 + HEARD).is_err());
        meetings.passes(0, early, 3, 14 + HEARD).unwrap();
    }
}
