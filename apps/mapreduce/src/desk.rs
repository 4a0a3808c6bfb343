//! The master's desk: answers the requests of workers, and waits for the result.

use crate::cluster::Cluster;
use crate::error::MapReduceError;
use crate::job::{Job, Outcome, Progress, Watch};
use crate::message::{Answer, Request};
use crate::piece::Run;
use crate::schedule::{Phase, Schedule};
use dunlin_fabric::{Host, Nanos, Signal, nanos};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which the master looks at the clock, at most.
const LOOK_EVERY: Nanos = 100_000_000;
/// The bytes of the result that are read at once.
const CHUNK: usize = 1 << 20;

struct State {
    schedule: Schedule,
    /// When the first worker came.
    begun: Option<Nanos>,
    /// When the phase before was done for the first time: map, reduce, merge.
    reached: [Option<Nanos>; 3],
    /// When there was a worker for the last time.
    manned: Nanos,
    error: Option<MapReduceError>,
}

/// The desk of a job.
pub(crate) struct Desk<H: Host> {
    host: H,
    job: Job,
    agreement: u64,
    watch: Arc<dyn Watch>,
    state: Mutex<State>,
    changed: H::Signal,
}

impl<H: Host> Desk<H> {
    pub(crate) fn new(host: &H, job: &Job, splits: u32, agreement: u64, watch: Arc<dyn Watch>) -> Self {
        let state = State {
            schedule: Schedule::new(splits, job.partitions, nanos(job.lease)),
            begun: None,
            reached: [None; 3],
            manned: host.now(),
            error: None,
        };
        Desk {
            host: host.clone(),
            job: job.clone(),
            agreement,
            watch,
            state: Mutex::new(state),
            changed: host.signal(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request. Does not block.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let now = self.host.now();
        let mut state = self.state();
        let before = (state.schedule.phase(), state.schedule.progress());
        let answer = match request {
            Request::Join { agreement } if *agreement != self.agreement => Answer::Disagree,
            Request::Join { .. } => {
                state.begun.get_or_insert(now);
                state.schedule.join(now).map_or(Answer::Full, |worker| Answer::Joined { worker })
            }
            Request::Ask { worker, number, report } => {
                Answer::Next(state.schedule.ask(*worker, *number, report, now))
            }
            Request::Alive { workers } => {
                workers.iter().for_each(|worker| state.schedule.alive(*worker, now));
                Answer::Heard
            }
            Request::Leave { worker } => {
                state.schedule.leave(*worker);
                Answer::Heard
            }
            Request::Tick => {
                self.tick(&mut state, now);
                Answer::Heard
            }
        };
        let phase = state.schedule.phase();
        let at = [Phase::Reduce, Phase::Merge, Phase::Done];
        for (reached, at) in state.reached.iter_mut().zip(at) {
            if phase >= at {
                reached.get_or_insert(now);
            }
        }
        let progress = state.schedule.progress();
        let has_ended = phase == Phase::Done || state.schedule.failure().is_some() || state.error.is_some();
        drop(state);
        if has_ended {
            self.changed.raise();
        }
        if before != (phase, progress) {
            self.watch.progress(Progress { phase, done: progress.0, tasks: progress.1 });
        }
        answer
    }

    fn tick(&self, state: &mut State, now: Nanos) {
        state.schedule.expire(now);
        if state.schedule.has_workers() {
            state.manned = now;
        }
        if self.watch.is_stopped() {
            self.fail(state, MapReduceError::Stopped);
        } else if now.saturating_sub(state.manned) > nanos(self.job.patience) {
            self.fail(state, MapReduceError::NoWorkers);
        }
    }

    fn fail(&self, state: &mut State, error: MapReduceError) {
        state.schedule.fail(error.to_string());
        state.error.get_or_insert(error);
    }

    /// The job cannot go on.
    pub(crate) fn give_up(&self, error: MapReduceError) {
        self.fail(&mut self.state(), error);
        self.changed.raise();
    }

    /// Waits until the result is there, or the job has failed. Looks at the clock meanwhile.
    fn wait(&self) -> Result<crate::message::Piece, MapReduceError> {
        let every = LOOK_EVERY.min(nanos(self.job.lease) / 4);
        loop {
            let seen = self.changed.seen();
            self.answer(&Request::Tick);
            {
                let mut state = self.state();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if let Some(text) = state.schedule.failure() {
                    return Err(MapReduceError::Task(text.to_owned()));
                }
                if let Some(piece) = state.schedule.result() {
                    return Ok(piece);
                }
            }
            self.changed.wait(seen, self.host.now().saturating_add(every));
        }
    }

    /// Waits for the result, passes its entries to `each` until that returns `false`, frees all pieces, and lets the
    /// workers end.
    pub(crate) fn lead<C: Cluster>(
        &self,
        cluster: &C,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Outcome, MapReduceError> {
        let mut outcome = Outcome::default();
        let result = loop {
            let piece = match self.wait() {
                Ok(piece) => piece,
                Err(error) => break Err(error),
            };
            // A result that is lost in the middle is made again: it is the same.
            let (mut number, mut is_stopped) = (0, false);
            let opened =
                cluster.open(piece).and_then(|bytes| Run::open(piece, bytes, (0, 1), self.agreement, CHUNK));
            let passed = opened.and_then(|run| {
                run.for_each(|key, value| {
                    number += 1;
                    if number > outcome.keys {
                        outcome.keys = number;
                        outcome.bytes += (key.len() + value.len()) as u64;
                        is_stopped = !each(key, value);
                    }
                    !is_stopped
                })
            });
            match passed {
                Err(error) if error.loss().is_some() => self.state().schedule.lost_result(),
                passed => break passed,
            }
        };
        let pieces: Vec<_> = self.state().schedule.pieces().collect();
        pieces.into_iter().for_each(|piece| cluster.free(piece));
        self.dismiss();
        result?;
        let state = self.state();
        let [mapped, reduced, merged] = state.reached.map(Option::unwrap_or_default);
        let between = |from: Nanos, to: Nanos| Duration::from_nanos(to.saturating_sub(from));
        outcome.mapping = between(state.begun.unwrap_or(mapped), mapped);
        outcome.reducing = between(mapped, reduced);
        outcome.merging = between(reduced, merged);
        Ok(outcome)
    }

    /// Waits until all workers have heard of the end, or are given up.
    fn dismiss(&self) {
        self.state().schedule.end();
        let until = self.host.now().saturating_add(2 * nanos(self.job.lease));
        loop {
            let now = self.host.now();
            {
                let mut state = self.state();
                state.schedule.expire(now);
                if state.schedule.has_nobody() || now >= until {
                    return;
                }
            }
            self.host.sleep(now.saturating_add(1_000_000));
        }
    }
}
