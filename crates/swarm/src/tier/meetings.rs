//! The model of locks and barriers: the threads that have a lock, those that wait, and the callers of each barrier.

use dunlin_fabric::Nanos;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bits of a fence number that count hand-overs within a node.
const HANDED_OVER: u64 = 0xff;

/// The time until the owner of a barrier does not count a thread any more that has given up: that of messages, and
/// that of a machine which is cut off meanwhile.
const HEARD: Nanos = 200_000;
const HEARD_THROUGH_A_CUT: Nanos = 30_000_000;

/// A thread of a life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) node: usize,
    /// The number of the node's process.
    pub(super) life: u64,
    pub(super) number: usize,
}

/// A grant of a lock, as its thread saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) thread: Thread,
    /// When the thread asked for it.
    pub(super) asked: Nanos,
    pub(super) fence: u64,
    pub(super) is_poisoned: bool,
    /// The node that owns the lock.
    pub(super) owner: usize,
}

#[derive(Debug, Default)]
struct Lock {
    holder: Option<Granted>,
    /// Threads that wait without a short time, in the order in which they asked, each with the time of that.
    waiting: VecDeque<(Nanos, Thread)>,
    /// The largest fence number of a grant, and of one that found the lock poisoned.
    last: u64,
    last_poisoned: u64,
    /// When the owner was killed: locks of its earlier life are nobody's.
    reset: Nanos,
    /// The owner, once it is known.
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
}

/// The model of a run. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Meetings {
    state: Arc<Mutex<State>>,
    /// Nothing disturbs the run.
    is_calm: bool,
}

impl Meetings {
    pub(super) fn new(nodes: usize, locks: usize, barriers: usize, is_calm: bool) -> Meetings {
        let locks = (0..locks).map(|_| Lock::default()).collect();
        let state = State { lives: vec![0; nodes], locks, barriers: vec![Vec::new(); barriers] };
        Meetings { state: Arc::new(Mutex::new(state)), is_calm }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            lock.waiting.retain(|(_, thread)| thread.node != node);
            if lock.owner == Some(node) {
                *lock = Lock {
                    reset: now,
                    owner: lock.owner,
                    waiting: std::mem::take(&mut lock.waiting),
                    ..Lock::default()
                };
            }
            // The next one has to find the lock poisoned, but nothing is wrong if the dead one had given it back.
            lock.holder = lock.holder.filter(|holder| holder.thread.node != node);
        }
    }

    /// A thread asks for a lock. With a short time it may give up at any moment, and stands in nobody's way.
    pub(super) fn asks(&self, lock: usize, thread: Thread, is_short: bool, now: Nanos) {
        let mut state = self.state();
        if state.lives[thread.node] == thread.life && !is_short {
            state.locks[lock].waiting.push_back((now, thread));
        }
    }

    /// A thread has not got a lock.
    pub(super) fn goes_without(&self, lock: usize, thread: Thread) {
        self.state().locks[lock].waiting.retain(|(_, other)| *other != thread);
    }

    /// A thread has got a lock.
    pub(super) fn granted(&self, number: usize, granted: Granted) -> Result<(), String> {
        let mut state = self.state();
        let thread = granted.thread;
        if state.lives[thread.node] != thread.life {
            return Ok(());
        }
        let lock = &mut state.locks[number];
        lock.owner = Some(granted.owner);
        let first = lock.waiting.iter().find(|(_, other)| other.node == thread.node).copied();
        lock.waiting.retain(|(_, other)| *other != thread);
        if granted.asked <= lock.reset {
            // Of an earlier life of the owner, perhaps.
            return Ok(());
        }
        let wrong = |what: String| Err(format!("lock {number} was granted to {granted:?}: {what}"));
        if self.is_calm && granted.is_poisoned {
            return wrong("it is poisoned, and nobody died".to_owned());
        }
        if self.is_calm
            && let Some((asked, first)) = first
            && asked < granted.asked
        {
            return wrong(format!("{first:?} has waited for it since {asked}"));
        }
        // A node hands a lock over among its threads without a word to the owner, which may have been killed.
        let is_handed_over = granted.fence & HANDED_OVER != 0;
        if lock.reset > 0 && is_handed_over && lock.last & !HANDED_OVER != granted.fence & !HANDED_OVER {
            return Ok(());
        }
        if granted.fence < lock.last_poisoned {
            // The owner took it for dead before it saw the grant.
            return Ok(());
        }
        if let Some(holder) = lock.holder
            && !granted.is_poisoned
        {
            return wrong(format!("{holder:?} has it"));
        }
        if granted.fence <= lock.last {
            return wrong(format!("there was a grant with the fence number {}", lock.last));
        }
        lock.last = granted.fence;
        if granted.is_poisoned {
            lock.last_poisoned = granted.fence;
        }
        lock.holder = Some(granted);
        Ok(())
    }

    /// A thread begins to give a lock back.
    pub(super) fn gives_back(&self, lock: usize, thread: Thread) {
        let holder = &mut self.state().locks[lock].holder;
        *holder = holder.filter(|holder| holder.thread != thread);
    }

    /// A thread comes to a barrier; returns the number of its visit.
    pub(super) fn comes(&self, barrier: usize, now: Nanos) -> usize {
        let visits = &mut self.state().barriers[barrier];
        visits.push(Visit { begun: now, ended: None });
        visits.len() - 1
    }

    /// A thread goes on without the others. The owner hears of that, or sees that the time is over, a little later.
    pub(super) fn gives_up(&self, barrier: usize, visit: usize, now: Nanos) {
        let heard = if self.is_calm { HEARD } else { HEARD_THROUGH_A_CUT };
        self.state().barriers[barrier][visit].ended = Some(now + heard);
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
        Granted { thread, asked: 10, fence, is_poisoned, owner: 0 }
    }

    fn meetings(is_calm: bool) -> Meetings {
        let meetings = Meetings::new(3, 1, 1, is_calm);
        (0..3).for_each(|node| meetings.begins(node, 1));
        meetings
    }

    #[test]
    fn a_second_holder_is_found() {
        let meetings = meetings(false);
        meetings.granted(0, granted(thread(1, 0), 1, false)).unwrap();
        assert!(meetings.granted(0, granted(thread(2, 0), 2, false)).is_err());
        meetings.granted(0, granted(thread(2, 0), 2, true)).unwrap();
        meetings.gives_back(0, thread(1, 0));
        assert!(meetings.granted(0, granted(thread(1, 0), 3, false)).is_err());
        meetings.gives_back(0, thread(2, 0));
        assert!(meetings.granted(0, granted(thread(1, 0), 2, false)).is_err(), "an old fence number");
        meetings.granted(0, granted(thread(1, 0), 3, false)).unwrap();
        meetings.killed(1, 20);
        meetings.granted(0, granted(thread(2, 0), 4, false)).unwrap();
        meetings.killed(0, 30);
        meetings.granted(0, Granted { asked: 31, ..granted(thread(2, 1), 1, false) }).unwrap();
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
        meetings.gives_back(0, thread(2, 0));
        meetings.granted(0, granted(thread(1, 0), 2 << 8, 10)).unwrap();
        meetings.gives_back(0, thread(1, 0));
        assert!(meetings.granted(0, granted(thread(1, 2), 3 << 8, 12)).is_err());
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
