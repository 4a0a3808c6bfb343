//! Calls that wait for threads: those of the pool, or those that pull.

use super::deferred::Incoming;
use dunlin_fabric::host::{Parker, Unparker, park_adaptive};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use dunlin_wire::Status;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bounded queue of owned requests. An added request wakes one of the threads that sleep, the one that fell asleep
/// last: the others keep their cores, and sleep on.
#[derive(Debug)]
pub(crate) struct WaitingCalls<F: Fabric> {
    fabric: F,
    queue: Mutex<Queue<Incoming<F>, UnparkerOf<F>>>,
    /// Parkers that no thread uses: as many as have ever waited at the same time.
    parkers: Mutex<Vec<ParkerOf<F>>>,
    limit: usize,
    /// Nanoseconds for which a thread polls before it sleeps.
    spin: Nanos,
}

type ParkerOf<F> = <<F as Fabric>::Host as Host>::Parker;
type UnparkerOf<F> = <ParkerOf<F> as Parker>::Unparker;

impl<F: Fabric> WaitingCalls<F> {
    pub(crate) fn new(fabric: &F, limit: usize, spin: Duration) -> Self {
        WaitingCalls {
            fabric: fabric.clone(),
            queue: Mutex::default(),
            parkers: Mutex::default(),
            limit,
            spin: nanos(spin),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Incoming<F>, UnparkerOf<F>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parkers(&self) -> MutexGuard<'_, Vec<ParkerOf<F>>> {
        self.parkers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request; gives it back if the queue is full or closed. Requests whose deadline has passed make
    /// room.
    pub(crate) fn push(&self, incoming: Incoming<F>) -> Result<(), Incoming<F>> {
        let mut over = VecDeque::new();
        let pushed = {
            let mut queue = self.queue();
            if queue.waiting.len() >= self.limit {
                let (late, others) =
                    std::mem::take(&mut queue.waiting).into_iter().partition(Incoming::is_over);
                (over, queue.waiting) = (late, others);
            }
            if queue.waiting.len() >= self.limit { Err(incoming) } else { queue.push(incoming) }
        };
        over.into_iter().for_each(|late: Incoming<F>| late.refuse(Status::DeadlineExceeded));
        if let Some(sleeper) = pushed? {
            sleeper.unpark();
        }
        Ok(())
    }

    /// Takes the next request whose deadline has not passed, and refuses those before it. Blocks until
    /// `until` at most; returns `None` then or when the server ends.
    pub(crate) fn take(&self, until: Nanos) -> Option<Incoming<F>> {
        loop {
            let next = self.queue().waiting.pop_front();
            let next = match next {
                Some(next) => next,
                None => self.wait(until)?,
            };
            if !next.is_over() {
                return Some(next);
            }
            next.refuse(Status::DeadlineExceeded);
        }
    }

    /// Waits for a request.
    fn wait(&self, until: Nanos) -> Option<Incoming<F>> {
        let host = self.fabric.host();
        let spare = self.parkers().pop();
        let mut parker = spare.unwrap_or_else(|| host.parker());
        let mut place = None;
        let next = loop {
            {
                let mut queue = self.queue();
                if let Some(place) = place {
                    queue.leave(place);
                }
                let next = queue.waiting.pop_front();
                if next.is_some() || queue.closed || host.now() >= until {
                    break next;
                }
                place = Some(queue.sleep(parker.unparker()));
            }
            park_adaptive(host, &mut parker, self.spin, until);
        };
        // An unpark that comes late ends a later wait too early, which looks again.
        self.parkers().push(parker);
        next
    }

    /// Closes the queue: unblocks all takers and refuses the waiting requests.
    pub(crate) fn close(&self) {
        let (waiting, sleepers) = self.queue().close();
        for incoming in waiting {
            incoming.refuse(Status::Draining);
        }
        sleepers.into_iter().for_each(|(_, sleeper)| sleeper.unpark());
    }

    /// Returns whether the queue is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue().closed
    }
}

/// The state that the threads share, without the sleep itself.
#[derive(Debug)]
struct Queue<T, S> {
    waiting: VecDeque<T>,
    /// Threads that sleep, with the numbers of their sleeps.
    sleepers: Vec<(u64, S)>,
    /// The number of the next sleep.
    next: u64,
    closed: bool,
}

impl<T, S> Default for Queue<T, S> {
    fn default() -> Self {
        Queue { waiting: VecDeque::new(), sleepers: Vec::new(), next: 0, closed: false }
    }
}

impl<T, S> Queue<T, S> {
    /// Adds an entry, unless the queue is closed. Returns the thread to wake, which no longer counts as asleep.
    fn push(&mut self, entry: T) -> Result<Option<S>, T> {
        if self.closed {
            return Err(entry);
        }
        self.waiting.push_back(entry);
        Ok(self.sleepers.pop().map(|(_, sleeper)| sleeper))
    }

    /// A thread that found nothing goes to sleep. Returns the number of the sleep.
    fn sleep(&mut self, sleeper: S) -> u64 {
        let number = self.next;
        self.next += 1;
        self.sleepers.push((number, sleeper));
        number
    }

    /// A sleep is over, whoever ended it. The thread looks for an entry next, so a wake-up is not lost.
    fn leave(&mut self, number: u64) {
        self.sleepers.retain(|(other, _)| *other != number);
    }

    fn close(&mut self) -> (VecDeque<T>, Vec<(u64, S)>) {
        self.closed = true;
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.sleepers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_entry_wakes_the_thread_that_fell_asleep_last_and_no_other() {
        let mut queue = Queue::default();
        let sleeps: Vec<_> = ["first", "second", "third"].map(|thread| queue.sleep(thread)).into();
        queue.leave(sleeps[1]);
        assert_eq!(queue.push(1), Ok(Some("third")));
        assert_eq!(queue.push(2), Ok(Some("first")));
        assert_eq!(queue.push(3), Ok(None));
        let again = queue.sleep("first");
        assert_eq!(queue.close(), ([1, 2, 3].into(), vec![(again, "first")]));
        assert_eq!(queue.push(4), Err(4));
    }

    proptest! {
        /// Whatever threads do in whatever order: while all threads that are awake have looked since, no entry waits.
        #[test]
        fn no_entry_waits_while_all_threads_sleep(
            steps in prop::collection::vec((0u8..3, 0usize..4), 1..200),
        ) {
            let mut queue: Queue<u32, usize> = Queue::default();
            let (mut sleeps, mut called) = ([None; 4], BTreeSet::new());
            let (mut added, mut taken) = (0, 0);
            let look = |queue: &mut Queue<u32, usize>, thread: usize| match queue.waiting.pop_front() {
                Some(entry) => (None, Some(entry)),
                None => (Some(queue.sleep(thread)), None),
            };
            // Each thread looks when it is awake, is called, or its sleep ends by itself.
            for (step, thread) in steps {
                match step {
                    0 => {
                        if let Ok(Some(woken)) = queue.push(added) {
                            prop_assert!(sleeps[woken].is_some() && called.insert(woken));
                        }
                        added += 1;
                    }
                    _ if sleeps[thread].is_some() && step == 1 && !called.contains(&thread) => {}
                    _ => {
                        if let Some(number) = sleeps[thread].take() {
                            queue.leave(number);
                        }
                        called.remove(&thread);
                        let (sleep, entry) = look(&mut queue, thread);
                        sleeps[thread] = sleep;
                        if let Some(entry) = entry {
                            prop_assert_eq!(entry, taken);
                            taken += 1;
                        }
                    }
                }
                let sleeping = sleeps.iter().flatten().count();
                prop_assert_eq!(queue.sleepers.len() + called.len(), sleeping);
                // One of the awake threads may take it before a called one does.
                let all_sleep = sleeping == sleeps.len() && !queue.sleepers.is_empty();
                prop_assert!(!all_sleep || queue.waiting.len() <= called.len());
            }
        }
    }
}
