//! Work of a node that is to be done at a time, and for which no thread waits: calls of processes that pause by their
//! priority, or wait for the limit of their principal, claims that wait for a view, and receivers that give up.

use dunlin_fabric::{Host, Nanos, Signal, Task};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most entries. One that finds no room is done at once.
const MAX_DELAYED: usize = 65_536;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// By time, and by a number that tells entries of one time apart.
    jobs: BTreeMap<(Nanos, u64), Job>,
    number: u64,
    /// The first entry starts the thread.
    is_started: bool,
    thread: Option<Task>,
    has_ended: bool,
}

/// The work that waits for its time.
pub(crate) struct Delays<H: Host> {
    state: Mutex<State>,
    changed: H::Signal,
}

impl<H: Host> std::fmt::Debug for Delays<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delays").field("jobs", &self.state().jobs.len()).finish_non_exhaustive()
    }
}

impl<H: Host> Delays<H> {
    pub(crate) fn new(host: &H) -> Arc<Self> {
        Arc::new(Delays { state: Mutex::default(), changed: host.signal() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there is room for work now: otherwise it is done at once.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state();
        !state.has_ended && state.jobs.len() < MAX_DELAYED
    }

    /// Has a thread of the node do something at a time, or soon after it, and at the end of the node. Does not block; `job`
    /// must not, either.
    pub(crate) fn at(self: &Arc<Self>, host: &H, time: Nanos, job: Job) {
        let mut state = self.state();
        if state.has_ended || state.jobs.len() >= MAX_DELAYED {
            drop(state);
            return job();
        }
        state.number += 1;
        let key = (time, state.number);
        let is_first = state.jobs.first_key_value().is_none_or(|(first, _)| key < *first);
        state.jobs.insert(key, job);
        let starts = !std::mem::replace(&mut state.is_started, true);
        drop(state);
        if starts {
            self.start(host);
        } else if is_first {
            self.changed.raise();
        }
    }

    fn start(self: &Arc<Self>, host: &H) {
        let (own, host_of) = (Arc::clone(self), host.clone());
        match host.spawn("tier-delays", Box::new(move || own.run(&host_of))) {
            Ok(thread) => self.state().thread = Some(thread),
            Err(error) => {
                tracing::warn!(target: "dunlin::tier", %error, "no thread for delayed calls: they begin at once");
                self.end();
            }
        }
    }

    fn run(&self, host: &H) {
        loop {
            let seen = self.changed.seen();
            let now = host.now();
            let (job, until) = {
                let mut state = self.state();
                if state.has_ended {
                    return;
                }
                match state.jobs.first_entry() {
                    Some(first) if first.key().0 <= now => (Some(first.remove()), now),
                    Some(first) => (None, first.key().0),
                    None => (None, Nanos::MAX),
                }
            };
            match job {
                Some(job) => job(),
                // A wait without a limit times out only when the host ends.
                None if !self.changed.wait(seen, until) && until == Nanos::MAX => return,
                None => {}
            }
        }
    }

    /// Does everything that waits, and ends the thread.
    pub(crate) fn end(&self) {
        let (jobs, thread) = {
            let mut state = self.state();
            state.has_ended = true;
            (std::mem::take(&mut state.jobs), state.thread.take())
        };
        self.changed.raise();
        jobs.into_values().for_each(|job| job());
        thread.into_iter().for_each(Task::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Fabric;
    use dunlin_fabric_sim::Sim;

    #[test]
    fn jobs_are_done_in_the_order_of_their_times_and_the_rest_at_the_end() {
        Sim::run(3, |sim| {
            let host = sim.host().clone();
            let (delays, done) = (Delays::new(&host), Arc::new(Mutex::new(Vec::new())));
            let begun = host.now();
            for at in [30, 10, 20, 1_000_000] {
                let (done, own) = (Arc::clone(&done), host.clone());
                let job = move || done.lock().unwrap().push((at, own.now() - begun));
                delays.at(&host, begun + at * 1000, Box::new(job));
            }
            host.sleep(begun + 100_000);
            let early = done.lock().unwrap().clone();
            assert_eq!(early.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [10, 20, 30]);
            assert!(
                early.iter().all(|(at, when)| (at * 1000..at * 1000 + 5_000).contains(when)),
                "{early:?}"
            );
            delays.end();
            assert_eq!(done.lock().unwrap().len(), 4);
            delays.at(
                &host,
                Nanos::MAX,
                Box::new({
                    let done = Arc::clone(&done);
                    move || done.lock().unwrap().clear()
                }),
            );
            assert!(done.lock().unwrap().is_empty(), "nothing waits after the end");
        })
        .unwrap();
    }
}
