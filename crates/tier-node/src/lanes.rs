//! Threads that wait for the payloads of calls of processes: a long request goes into a ring, and a long result comes out
//! of one, while the threads that serve processes go on. Each node and priority has its own, so that nobody waits behind
//! payloads of a node that does not answer, or of low priority.

use dunlin_fabric::{Host, Nanos, Signal, Task};
use dunlin_tier::{NodeId, Priority};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Threads for a node and a priority: while one waits for the network, another one copies.
const THREADS: usize = 2;
/// Payloads that wait for a thread, for a node and a priority. A further request travels in its message.
const WAITING: usize = 64;

/// A payload. Gets `false` if no thread waits for it, since the node ends.
pub(crate) type Job = Box<dyn FnOnce(bool) + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a payload.
    idle: usize,
    started: usize,
    threads: Vec<Task>,
    running: Vec<ThreadId>,
    has_ended: bool,
}

struct Lane<H: Host> {
    queue: Mutex<Queue>,
    changed: H::Signal,
}

impl<H: Host> Lane<H> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread run a job; returns the job if none does.
    fn run(self: &Arc<Self>, host: &H, job: Job, waits: bool) -> Result<(), Job> {
        let starts = {
            let mut queue = self.queue();
            let is_full = queue.jobs.len() >= WAITING && !waits;
            if queue.has_ended || is_full {
                return Err(job);
            }
            queue.jobs.push_back(job);
            let starts = queue.idle == 0 && queue.started < THREADS;
            queue.started += usize::from(starts);
            starts
        };
        if !starts {
            self.changed.raise();
            return Ok(());
        }
        let own = Arc::clone(self);
        let spawned = host.spawn("tier-payload", Box::new(move || own.work()));
        let mut queue = self.queue();
        match spawned {
            Ok(thread) => queue.threads.push(thread),
            Err(error) => {
                queue.started -= 1;
                if queue.started == 0 {
                    tracing::warn!(target: "dunlin::tier", %error, "no thread for long payloads of calls");
                    return queue.jobs.pop_back().map_or(Ok(()), Err);
                }
            }
        }
        Ok(())
    }

    fn work(&self) {
        self.queue().running.push(std::thread::current().id());
        loop {
            let seen = self.changed.seen();
            let job = {
                let mut queue = self.queue();
                if queue.has_ended {
                    return;
                }
                let job = queue.jobs.pop_front();
                queue.idle += usize::from(job.is_none());
                job
            };
            match job {
                Some(job) => job(true),
                None => {
                    let is_raised = self.changed.wait(seen, Nanos::MAX);
                    self.queue().idle -= 1;
                    // A wait without a limit times out only when the host ends.
                    if !is_raised {
                        return;
                    }
                }
            }
        }
    }

    fn end(&self) {
        let (jobs, threads, own) = {
            let mut queue = self.queue();
            queue.has_ended = true;
            let own = queue.running.contains(&std::thread::current().id());
            (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.threads), own)
        };
        self.changed.raise();
        jobs.into_iter().for_each(|job| job(false));
        // A thread that has dropped the last user of its node does not wait for itself. Tasks of a
        // simulator share a thread: each ends after its job.
        if !own {
            threads.into_iter().for_each(Task::join);
        }
    }
}

type ByNode<H> = BTreeMap<(NodeId, Priority), Arc<Lane<H>>>;

/// The threads for payloads of a node.
pub(crate) struct Lanes<H: Host>(Mutex<Option<ByNode<H>>>);

impl<H: Host> std::fmt::Debug for Lanes<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}

impl<H: Host> Lanes<H> {
    pub(crate) fn new() -> Self {
        Lanes(Mutex::new(Some(BTreeMap::new())))
    }

    fn lanes(&self) -> MutexGuard<'_, Option<ByNode<H>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread run a job, which may block. Returns the job if the node ends, and if many wait, unless it `waits` in
    /// any case. Does not block.
    pub(crate) fn run(
        &self,
        host: &H,
        (to, priority): (NodeId, Priority),
        job: Job,
        waits: bool,
    ) -> Result<(), Job> {
        let lane = {
            let mut lanes = self.lanes();
            let Some(lanes) = &mut *lanes else { return Err(job) };
            let make = || Arc::new(Lane { queue: Mutex::default(), changed: host.signal() });
            Arc::clone(lanes.entry((to, priority)).or_insert_with(make))
        };
        lane.run(host, job, waits)
    }

    /// Gives all jobs up that wait, and waits for the threads.
    pub(crate) fn end(&self) {
        let lanes = self.lanes().take();
        lanes.into_iter().flat_map(BTreeMap::into_values).for_each(|lane| lane.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Fabric;
    use dunlin_fabric_sim::Sim;

    #[test]
    fn a_node_that_does_not_answer_holds_up_its_own_payloads_only() {
        Sim::run(5, |sim| {
            let host = sim.host().clone();
            let (lanes, done) = (Lanes::new(), Arc::new(Mutex::new(Vec::new())));
            let until = host.now() + 1_000_000;
            let run = |to: u16, number: usize, ends: Nanos, waits: bool| {
                let (done, own) = (Arc::clone(&done), host.clone());
                let job = move |runs: bool| {
                    if runs {
                        own.sleep(ends);
                    }
                    done.lock().unwrap().push((number, runs));
                };
                lanes.run(&host, (NodeId(to), Priority::High), Box::new(job), waits)
            };
            for number in 0..THREADS {
                assert!(run(1, number, until, false).is_ok());
            }
            host.sleep(host.now() + 10_000);
            for number in 0..WAITING {
                assert!(run(1, 100 + number, 0, false).is_ok());
            }
            assert!(run(1, 98, 0, false).is_err(), "too many wait");
            assert!(run(1, 99, 0, true).is_ok(), "a result has no other way");
            assert!(run(2, 50, 0, false).is_ok());
            host.sleep(host.now() + 10_000);
            assert_eq!(*done.lock().unwrap(), [(50, true)]);
            lanes.end();
            host.sleep(until + 10_000);
            let done = std::mem::take(&mut *done.lock().unwrap());
            assert_eq!(done.len(), 1 + THREADS + WAITING + 1);
            assert_eq!(
                done.iter().filter(|(_, runs)| *runs).count(),
                1 + THREADS,
                "those that waited are given up"
            );
            assert!(run(1, 0, 0, true).is_err());
        })
        .unwrap();
    }
}
