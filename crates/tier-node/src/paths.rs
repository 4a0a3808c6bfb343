//! The paths of a node, each used by one thread at a time, and the threads that wait for one.

use crate::pool::Taken;
use dunlin_fabric::{Host, Nanos, Parker, Unparker, WaitMode};
use dunlin_tier::Priority;
use dunlin_tier::qos::{Entry, Flow, Policy, Turns, cost};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Empty polls of a thread that is near its turn, until it sleeps: a long operation may be before it.
const SPINS: u32 = 2_000;

type UnparkerOf<H> = <<H as Host>::Parker as Parker>::Unparker;

/// The outcome of [`Paths::enter`].
#[derive(Debug)]
pub(crate) enum Entered<T, H: Host> {
    /// A path.
    Path(Granted<T>),
    /// No path yet: [`Paths::wait`] for it.
    Wait(Seat<H>),
    /// The node ends.
    Closed,
}

/// A place for a path.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    /// A path, or the number of one to make: report it as [`failed`](Paths::failed) if that fails.
    pub(crate) taken: Taken<T>,
    /// Whether the time of the operation is of use.
    pub(crate) is_timed: bool,
}

/// A thread's place among the waiting ones.
#[derive(Debug)]
pub(crate) struct Seat<H: Host> {
    number: u32,
    flow: Flow,
    parker: H::Parker,
    is_awake: bool,
}

/// The state of a waiting thread.
#[derive(Debug)]
struct Waiter<T, H: Host> {
    unparker: UnparkerOf<H>,
    /// The parker, while no thread waits here.
    parker: Option<H::Parker>,
    priority: Priority,
    is_called: bool,
    granted: Option<Granted<T>>,
}

#[derive(Debug)]
struct State<T, H: Host> {
    turns: Turns,
    idle: Vec<T>,
    /// The numbers of the paths that are not made, the next one last.
    unmade: Vec<usize>,
    waiters: Vec<Waiter<T, H>>,
    /// Waiters without a thread.
    empty: Vec<u32>,
    /// Paths that come back are dropped.
    is_closed: bool,
    /// By priority.
    queues: [PathQueue; 2],
}

/// The operations of one priority at the paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathQueue {
    /// They have a path.
    pub(crate) under_way: u32,
    /// They wait for one.
    pub(crate) waiting: u32,
}

impl<T, H: Host> State<T, H> {
    fn take(&mut self) -> Option<Taken<T>> {
        self.idle.pop().map(Taken::Value).or_else(|| self.unmade.pop().map(Taken::Make))
    }

    fn granted(&mut self, priority: Priority) -> Option<Granted<T>> {
        let is_timed = self.turns.wants_trip(priority);
        let taken = self.take()?;
        self.queues[priority as usize].under_way += 1;
        Some(Granted { taken, is_timed })
    }
}

/// Paths that share one order of turns. No lock is held while a path is in use, or while a thread waits.
#[derive(Debug)]
struct Group<T, H: Host>(Mutex<State<T, H>>);

impl<T, H: Host> Group<T, H> {
    fn new(numbers: std::ops::Range<usize>, by_weight: bool) -> Self {
        Group(Mutex::new(State {
            turns: Turns::new(numbers.len(), by_weight),
            idle: Vec::with_capacity(numbers.len()),
            unmade: numbers.rev().collect(),
            waiters: Vec::new(),
            empty: Vec::new(),
            is_closed: false,
            queues: Default::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<T, H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, host: &H, flow: Flow, cost: u64) -> Entered<T, H> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.is_closed {
            return Entered::Closed;
        }
        let priority = flow.priority;
        let number = state.empty.last().copied().unwrap_or(state.waiters.len() as u32);
        let is_awake = match state.turns.enter(flow, cost, number) {
            Entry::Granted => return state.granted(priority).map_or(Entered::Closed, Entered::Path),
            Entry::Near => true,
            Entry::Asleep => false,
        };
        state.queues[priority as usize].waiting += 1;
        let parker = match state.empty.pop().map(|empty| &mut state.waiters[empty as usize]) {
            Some(waiter) => {
                (waiter.priority, waiter.is_called) = (priority, false);
                waiter.parker.take()
            }
            None => None,
        };
        let parker = parker.unwrap_or_else(|| {
            let parker = host.parker();
            let unparker = parker.unparker();
            let (is_called, granted) = (false, None);
            state.waiters.push(Waiter { unparker, parker: None, priority, is_called, granted });
            parker
        });
        drop(guard);
        self.go_on();
        Entered::Wait(Seat { number, flow, parker, is_awake })
    }

    /// Takes a path that is there and has its turn; nothing waits.
    fn try_enter(&self, flow: Flow, cost: u64) -> Option<Granted<T>> {
        let mut state = self.state();
        if state.is_closed || state.idle.is_empty() || !state.turns.try_enter(flow, cost) {
            return None;
        }
        state.granted(flow.priority)
    }

    /// Takes an idle path for which `wanted` holds, if the flow has its turn; nothing waits.
    fn take_idle(&self, flow: Flow, wanted: impl Fn(&T) -> bool) -> Option<Granted<T>> {
        let mut state = self.state();
        let at = state.idle.iter().position(wanted)?;
        if state.is_closed || !state.turns.try_enter(flow, 0) {
            return None;
        }
        // The last one is granted.
        let last = state.idle.len() - 1;
        state.idle.swap(at, last);
        state.granted(flow.priority)
    }

    /// Gives free paths to waiting threads, and wakes those that have to be near.
    fn go_on(&self) {
        loop {
            let unparker = {
                let mut guard = self.state();
                let state = &mut *guard;
                if state.is_closed {
                    return;
                }
                let granted = state.turns.grant();
                let Some(next) = granted.or_else(|| state.turns.call()) else { return };
                let given = granted.and_then(|next| {
                    let priority = state.waiters[next as usize].priority;
                    state.queues[priority as usize].waiting -= 1;
                    state.granted(priority)
                });
                let waiter = &mut state.waiters[next as usize];
                match granted {
                    Some(_) => waiter.granted = given,
                    None => waiter.is_called = true,
                }
                waiter.unparker.clone()
            };
            unparker.unpark();
        }
    }

    /// Blocks until a path is there, or until `until`.
    fn wait(&self, host: &H, mut seat: Seat<H>, until: Nanos) -> Option<Granted<T>> {
        let mut spins = 0;
        loop {
            let mode = match seat.is_awake && spins < SPINS {
                true => WaitMode::Busy,
                false => WaitMode::Event,
            };
            spins += 1;
            let is_unparked = seat.parker.park(mode, until);
            if !is_unparked && mode == WaitMode::Busy && !spins.is_multiple_of(64) {
                continue;
            }
            let is_late = !is_unparked && host.now() >= until;
            let mut guard = self.state();
            let state = &mut *guard;
            let waiter = &mut state.waiters[seat.number as usize];
            let granted = waiter.granted.take();
            if granted.is_none() && !is_late {
                if waiter.is_called && !seat.is_awake {
                    (seat.is_awake, spins) = (true, 0);
                    state.turns.arrive(seat.flow, seat.number);
                    drop(guard);
                    self.go_on();
                }
                continue;
            }
            let mut goes_on = false;
            if granted.is_none() {
                state.queues[seat.flow.priority as usize].waiting -= 1;
                state.turns.forget(seat.flow, seat.number);
                goes_on = state.turns.has_waiters();
            }
            state.waiters[seat.number as usize].parker = Some(seat.parker);
            state.empty.push(seat.number);
            drop(guard);
            if goes_on {
                self.go_on();
            }
            return granted;
        }
    }

    /// Adds an operation to a path that one of the same priority has; returns whether it may: nobody waits.
    fn join(&self, priority: Priority) -> bool {
        let mut state = self.state();
        let may = !state.is_closed && !state.turns.has_waiters();
        state.queues[priority as usize].under_way += u32::from(may);
        may
    }

    /// An operation ends on a path that another one has still.
    fn part(&self, priority: Priority, trip: Option<Trip>) {
        let mut state = self.state();
        if let Some(Trip { now, cost, time }) = trip {
            state.turns.note(now, priority, cost, time);
        }
        state.queues[priority as usize].under_way -= 1;
    }

    /// A path comes back: it goes to the thread whose turn it is.
    fn leave(&self, priority: Priority, taken: Taken<T>, trip: Option<Trip>) {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(Trip { now, cost, time }) = trip {
            state.turns.note(now, priority, cost, time);
        }
        if state.is_closed {
            drop(guard);
            return drop(taken);
        }
        match taken {
            Taken::Value(path) => state.idle.push(path),
            Taken::Make(number) => state.unmade.push(number),
        }
        state.turns.leave(priority);
        state.queues[priority as usize].under_way -= 1;
        let goes_on = state.turns.has_waiters();
        drop(guard);
        if goes_on {
            self.go_on();
        }
    }
}

/// The time that an operation on a path took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    now: Nanos,
    cost: u64,
    time: Nanos,
}

impl Trip {
    /// Makes the trip of an operation on `bytes` bytes that took `time` until `now`.
    pub(crate) fn new(now: Nanos, bytes: u64, time: Nanos) -> Trip {
        Trip { now, cost: cost(bytes), time }
    }
}

/// The paths of a node.
#[derive(Debug)]
pub(crate) struct Paths<T, H: Host> {
    /// For all operations, or for those of high and of low priority.
    groups: Vec<Group<T, H>>,
}

impl<T, H: Host> Paths<T, H> {
    /// Makes room for `count` paths with the numbers from 0 on.
    pub(crate) fn new(count: u16, policy: Policy) -> Self {
        let count = usize::from(count);
        let groups = match policy {
            Policy::Reserved { low } => {
                let high = count - usize::from(low).min(count);
                vec![Group::new(0..high, false), Group::new(high..count, false)]
            }
            policy => vec![Group::new(0..count, policy == Policy::Shares)],
        };
        Paths { groups }
    }

    fn group(&self, priority: Priority) -> &Group<T, H> {
        match &self.groups[..] {
            [_, low] if priority == Priority::Low => low,
            groups => &groups[0],
        }
    }

    /// Asks for a path, for an operation on `bytes` bytes. Does not block.
    pub(crate) fn enter(&self, host: &H, flow: Flow, bytes: u64) -> Entered<T, H> {
        self.group(flow.priority).enter(host, flow, cost(bytes))
    }

    /// As [`enter`](Paths::enter), for a thread that must not wait: `None` without a path that is made, free, and next for
    /// this flow. Then nothing has changed.
    pub(crate) fn try_enter(&self, flow: Flow, bytes: u64) -> Option<(T, bool)> {
        match self.group(flow.priority).try_enter(flow, cost(bytes))? {
            Granted { taken: Taken::Value(path), is_timed } => Some((path, is_timed)),
            // An idle path was there.
            Granted { taken: Taken::Make(number), .. } => {
                self.failed(number, flow.priority);
                None
            }
        }
    }

    /// Takes an idle path for which `wanted` holds, among those of the flow's priority; `None` without one, or if other threads
    /// wait. Nothing waits.
    pub(crate) fn take_idle(&self, flow: Flow, wanted: impl Fn(&T) -> bool) -> Option<T> {
        match self.group(flow.priority).take_idle(flow, wanted)?.taken {
            Taken::Value(path) => Some(path),
            // An idle path was there.
            Taken::Make(number) => {
                self.failed(number, flow.priority);
                None
            }
        }
    }

    /// Waits for the path that was asked for, until `until` at most; then `None`.
    pub(crate) fn wait(&self, host: &H, seat: Seat<H>, until: Nanos) -> Option<Granted<T>> {
        self.group(seat.flow.priority).wait(host, seat, until)
    }

    /// Adds an operation to a path that one of the same priority has; returns whether it may: nobody waits for a path.
    pub(crate) fn join(&self, priority: Priority) -> bool {
        self.group(priority).join(priority)
    }

    /// Ends an operation on a path that another one has still.
    pub(crate) fn part(&self, priority: Priority, trip: Option<Trip>) {
        self.group(priority).part(priority, trip);
    }

    /// Gives a path back that was taken for an operation of this priority, with the operation's time if it is of use.
    pub(crate) fn give(&self, path: T, priority: Priority, trip: Option<Trip>) {
        self.group(priority).leave(priority, Taken::Value(path), trip);
    }

    /// The path of this number could not be made.
    pub(crate) fn failed(&self, number: usize, priority: Priority) {
        self.group(priority).leave(priority, Taken::Make(number), None);
    }

    /// Returns the operations of a priority that use a path, and those that wait for one.
    pub(crate) fn queue(&self, priority: Priority) -> PathQueue {
        self.group(priority).state().queues[priority as usize]
    }

    /// Drops all paths, those in use when they come back: at the end.
    pub(crate) fn clear(&self) {
        for group in &self.groups {
            let paths = {
                let mut state = group.state();
                state.is_closed = true;
                std::mem::take(&mut state.idle)
            };
            drop(paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::RealHost;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LOW: Flow = Flow { principal: 0, priority: Priority::Low, weight: 1 };
    const HIGH: Flow = Flow { principal: 0, priority: Priority::High, weight: 1 };

    fn value(granted: Granted<usize>) -> usize {
        match granted.taken {
            Taken::Value(path) | Taken::Make(path) => path,
        }
    }

    fn take(paths: &Paths<usize, RealHost>, flow: Flow) -> Option<usize> {
        match paths.enter(&RealHost, flow, 1) {
            Entered::Path(granted) => Some(value(granted)),
            Entered::Wait(seat) => paths.wait(&RealHost, seat, Nanos::MAX).map(value),
            Entered::Closed => None,
        }
    }

    #[test]
    fn a_thread_that_is_late_leaves_its_seat() {
        let paths = Paths::new(1, Policy::Shares);
        assert_eq!(take(&paths, LOW), Some(0));
        let queues =
            |paths: &Paths<usize, RealHost>| [Priority::Low, Priority::High].map(|one| paths.queue(one));
        let (none, used) = (PathQueue::default(), PathQueue { under_way: 1, waiting: 0 });
        assert_eq!(queues(&paths), [used, none]);
        for flow in [LOW, HIGH, LOW] {
            let Entered::Wait(seat) = paths.enter(&RealHost, flow, 1) else { panic!("a second path") };
            assert_eq!(paths.queue(flow.priority).waiting, 1);
            assert!(paths.wait(&RealHost, seat, 0).is_none());
        }
        assert_eq!(queues(&paths), [used, none]);
        paths.give(0, Priority::Low, None);
        assert_eq!(take(&paths, HIGH), Some(0));
        assert_eq!(queues(&paths), [none, used]);
        paths.failed(0, Priority::High);
        assert_eq!(take(&paths, LOW), Some(0));
        paths.clear();
        assert_eq!(take(&paths, LOW), None);
    }

    #[test]
    fn reserved_paths_are_used_by_their_priority_only() {
        let paths = Paths::new(3, Policy::Reserved { low: 1 });
        assert_eq!([HIGH, HIGH, LOW].map(|flow| take(&paths, flow)), [Some(0), Some(1), Some(2)]);
        paths.give(0, Priority::High, None);
        assert!(matches!(paths.enter(&RealHost, LOW, 1), Entered::Wait(_)));
        assert_eq!(take(&paths, HIGH), Some(0));
    }

    /// Threads hand two paths over: no path is used by two, and every thread comes to its end.
    #[test]
    fn paths_go_from_thread_to_thread() {
        for policy in [Policy::Arrival, Policy::Shares] {
            let paths = &Paths::new(2, policy);
            let users = &[AtomicUsize::new(0), AtomicUsize::new(0)];
            std::thread::scope(|scope| {
                for thread in 0..12 {
                    let flow = if thread % 3 == 0 { HIGH } else { LOW };
                    scope.spawn(move || {
                        for round in 0..500 {
                            let path = take(paths, flow).expect("a path");
                            assert_eq!(users[path].fetch_add(1, Ordering::Relaxed), 0);
                            if round % 50 == thread {
                                std::thread::yield_now();
                            }
                            users[path].fetch_sub(1, Ordering::Relaxed);
                            paths.give(path, flow.priority, None);
                        }
                    });
                }
            });
        }
    }
}
