//! The master's table of tasks, without I/O: the worker of each task, and the tasks that are repeated.

use crate::message::{Assignment, Piece, Report};
use dunlin_fabric::Nanos;
use std::collections::BTreeMap;

/// The most attempts at one task. A task that fails so often is not the fault of a worker that died.
const MAX_ATTEMPTS: u32 = 16;
/// The most names that a worker tries for a piece.
pub(crate) const MAX_NAMES: u32 = 16;
/// The most workers that one job knows, those that are gone included.
const MAX_WORKERS: usize = 65_536;

/// A split, or a run of sorted results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// A worker is at it, or holds its results in memory.
    With(u32),
    Done(Piece),
}

#[derive(Debug)]
struct Task {
    state: State,
    attempts: u32,
    /// The outputs that this one is merged from; none for the output of a reducer.
    inputs: Option<[u32; 2]>,
}

impl Task {
    fn new(inputs: Option<[u32; 2]>) -> Task {
        Task { state: State::Waiting, attempts: 0, inputs }
    }
}

#[derive(Debug)]
struct Worker {
    heard: Nanos,
    /// The number of its last request, with the answer: a request whose answer was lost is sent again.
    answered: Option<(u64, Assignment)>,
    /// The splits whose results it holds in memory.
    held: Vec<u32>,
    /// It has to make a piece before it maps more.
    is_full: bool,
    /// The number of pieces that it has reported.
    pieces: u32,
    is_gone: bool,
    has_ended: bool,
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Splits are mapped.
    Map,
    /// Partitions are reduced.
    Reduce,
    /// Sorted runs are merged, two by two.
    Merge,
    /// The result is complete.
    Done,
}

/// The tasks of a job.
#[derive(Debug)]
pub(crate) struct Schedule {
    splits: Vec<Task>,
    /// The buffers of workers, with the splits whose results each holds.
    buffers: BTreeMap<Piece, Vec<u32>>,
    /// The outputs of reducers, then those of merges. The last one is the result.
    outputs: Vec<Task>,
    partitions: u32,
    workers: Vec<Worker>,
    lease: Nanos,
    /// Nothing is assigned any more: workers end.
    ended: Option<Result<(), String>>,
    failure: Option<String>,
}

/// Returns the pairs of a merge in rounds: neighbours first, and one that is left over joins the next round.
fn pairs(partitions: u32) -> Vec<[u32; 2]> {
    let (mut level, mut next, mut merges) = ((0..partitions).collect::<Vec<u32>>(), partitions, Vec::new());
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| match pair {
                [one, other] => {
                    merges.push([*one, *other]);
                    next += 1;
                    next - 1
                }
                _ => pair[0],
            })
            .collect();
    }
    merges
}

impl Schedule {
    pub(crate) fn new(splits: u32, partitions: u32, lease: Nanos) -> Schedule {
        let outputs = (0..partitions).map(|_| None).chain(pairs(partitions).into_iter().map(Some));
        Schedule {
            splits: (0..splits).map(|_| Task::new(None)).collect(),
            buffers: BTreeMap::new(),
            outputs: outputs.map(Task::new).collect(),
            partitions,
            workers: Vec::new(),
            lease,
            ended: None,
            failure: None,
        }
    }

    /// Makes a worker known; returns its number, or nothing if there are too many.
    pub(crate) fn join(&mut self, now: Nanos) -> Option<u32> {
        if self.workers.len() >= MAX_WORKERS {
            return None;
        }
        let number = self.workers.len() as u32;
        self.workers.push(Worker {
            heard: now,
            answered: None,
            held: Vec::new(),
            is_full: false,
            pieces: 0,
            is_gone: false,
            has_ended: false,
        });
        Some(number)
    }

    /// A worker lives.
    pub(crate) fn alive(&mut self, worker: u32, now: Nanos) {
        if let Some(worker) = self.workers.get_mut(worker as usize) {
            worker.heard = now;
        }
    }

    /// Takes a worker's report and gives it its next task. `number` counts the requests of the worker.
    pub(crate) fn ask(&mut self, worker: u32, number: u64, report: &Report, now: Nanos) -> Assignment {
        let Some(known) = self.workers.get_mut(worker as usize).filter(|worker| !worker.is_gone) else {
            return Assignment::Gone;
        };
        known.heard = now;
        match &known.answered {
            Some((last, answer)) if *last == number => return answer.clone(),
            Some((last, _)) if *last > number => return Assignment::Gone,
            _ => {}
        }
        self.take(worker, report);
        self.expire(now);
        let assignment = self.next(worker);
        let known = &mut self.workers[worker as usize];
        known.has_ended |= matches!(assignment, Assignment::End | Assignment::Failed(_));
        known.answered = Some((number, assignment.clone()));
        assignment
    }

    fn take(&mut self, worker: u32, report: &Report) {
        match report {
            Report::Nothing => {}
            Report::Mapped { split, is_full } => {
                let task = self.splits.get(*split as usize);
                let known = &mut self.workers[worker as usize];
                if task.is_some_and(|task| task.state == State::With(worker)) && !known.held.contains(split) {
                    known.held.push(*split);
                }
                known.is_full = *is_full;
            }
            Report::Flushed { piece } => {
                if piece.worker() != worker {
                    return;
                }
                let known = &mut self.workers[worker as usize];
                known.is_full = false;
                let held = std::mem::take(&mut known.held);
                self.reported(*piece);
                for split in &held {
                    self.splits[*split as usize].state = State::Done(*piece);
                }
                self.buffers.insert(*piece, held);
            }
            Report::Made { output, piece } => {
                if piece.worker() != worker {
                    return;
                }
                self.reported(*piece);
                if let Some(task) = self.outputs.get_mut(*output as usize)
                    && task.state == State::With(worker)
                {
                    task.state = State::Done(*piece);
                }
            }
            Report::Lost { piece } => {
                self.lost(*piece);
                self.give_up_outputs(worker);
            }
            Report::Failed { text } => self.fail(text.clone()),
        }
    }

    fn reported(&mut self, piece: Piece) {
        let worker = &mut self.workers[piece.worker() as usize];
        worker.pieces = worker.pieces.max(piece.number().saturating_add(1));
    }

    /// A piece cannot be read any more: its contents are made again.
    fn lost(&mut self, piece: Piece) {
        for split in self.buffers.remove(&piece).unwrap_or_default() {
            self.splits[split as usize].state = State::Waiting;
        }
        for task in &mut self.outputs {
            if task.state == State::Done(piece) {
                task.state = State::Waiting;
            }
        }
    }

    fn give_up_outputs(&mut self, worker: u32) {
        for task in &mut self.outputs {
            if task.state == State::With(worker) {
                task.state = State::Waiting;
            }
        }
    }

    /// Gives the tasks of workers that are silent for longer than the lease to others.
    pub(crate) fn expire(&mut self, now: Nanos) {
        for number in 0..self.workers.len() as u32 {
            if now.saturating_sub(self.workers[number as usize].heard) > self.lease {
                self.leave(number);
            }
        }
    }

    /// Has the tasks of a worker done again, unless it has ended with the job.
    pub(crate) fn leave(&mut self, number: u32) {
        let Some(worker) = self.workers.get_mut(number as usize) else { return };
        if worker.is_gone || worker.has_ended {
            return;
        }
        worker.is_gone = true;
        worker.held.clear();
        for task in &mut self.splits {
            if task.state == State::With(number) {
                task.state = State::Waiting;
            }
        }
        self.give_up_outputs(number);
    }

    /// Ends the job: workers hear of it with their next request.
    pub(crate) fn fail(&mut self, text: String) {
        if self.ended.is_none() {
            self.ended = Some(Err(text.clone()));
            self.failure.get_or_insert(text);
        }
    }

    /// The result has been taken: workers end.
    pub(crate) fn end(&mut self) {
        self.ended.get_or_insert(Ok(()));
    }

    /// Returns the reason why the job has failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn next(&mut self, worker: u32) -> Assignment {
        match &self.ended {
            Some(Ok(())) => return Assignment::End,
            Some(Err(text)) => return Assignment::Failed(text.clone()),
            None => {}
        }
        let Worker { held, is_full, .. } = &self.workers[worker as usize];
        if *is_full && !held.is_empty() {
            return Assignment::Flush;
        }
        if let Some(split) = self.splits.iter().position(|task| task.state == State::Waiting) {
            return match begin(&mut self.splits[split], worker) {
                Ok(()) => Assignment::Map { split: split as u32 },
                Err(()) => self.repeated(&format!("split {split}")),
            };
        }
        if !self.workers[worker as usize].held.is_empty() {
            return Assignment::Flush;
        }
        if self.phase() == Phase::Map {
            return Assignment::Wait;
        }
        let done = |output: &u32| match self.outputs[*output as usize].state {
            State::Done(piece) => Some(piece),
            _ => None,
        };
        for output in 0..self.outputs.len() {
            let task = &self.outputs[output];
            let pieces = match task.inputs {
                None => self.buffers.keys().copied().collect(),
                Some(inputs) => match inputs.iter().map(done).collect::<Option<Vec<Piece>>>() {
                    Some(pieces) => pieces,
                    None => continue,
                },
            };
            if task.state != State::Waiting {
                continue;
            }
            let is_merge = task.inputs.is_some();
            if begin(&mut self.outputs[output], worker).is_err() {
                return self.repeated(&format!("output {output}"));
            }
            let output = output as u32;
            return match is_merge {
                true => Assignment::Merge { output, pieces },
                false => Assignment::Reduce { output, pieces },
            };
        }
        Assignment::Wait
    }

    fn repeated(&mut self, task: &str) -> Assignment {
        let text = format!("{task} was begun {MAX_ATTEMPTS} times and never done");
        self.fail(text.clone());
        Assignment::Failed(text)
    }

    pub(crate) fn phase(&self) -> Phase {
        let is_done = |task: &Task| matches!(task.state, State::Done(_));
        let (reduces, merges) = self.outputs.split_at(self.partitions as usize);
        if self.result().is_some() {
            Phase::Done
        } else if !self.splits.iter().all(is_done) {
            Phase::Map
        } else if !reduces.iter().all(is_done) || merges.is_empty() {
            Phase::Reduce
        } else {
            Phase::Merge
        }
    }

    /// Returns the number of tasks that are done, and of all.
    pub(crate) fn progress(&self) -> (u32, u32) {
        let is_done = |task: &&Task| matches!(task.state, State::Done(_));
        let done = self.splits.iter().chain(&self.outputs).filter(is_done).count();
        // A split in the memory of a worker is mapped.
        let held: usize = self.workers.iter().map(|worker| worker.held.len()).sum();
        ((done + held) as u32, (self.splits.len() + self.outputs.len()) as u32)
    }

    /// Returns the piece that holds the result.
    pub(crate) fn result(&self) -> Option<Piece> {
        match self.outputs.last()?.state {
            State::Done(piece) => Some(piece),
            _ => None,
        }
    }

    /// The result cannot be read: it is made again.
    pub(crate) fn lost_result(&mut self) {
        if let Some(piece) = self.result() {
            self.lost(piece);
        }
    }

    /// Returns whether no worker has to hear of the end any more.
    pub(crate) fn has_nobody(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_gone || worker.has_ended)
    }

    /// Returns whether some worker lives.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.iter().any(|worker| !worker.is_gone)
    }

    /// Returns all pieces that workers may have made, also those that nobody reported.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        // A worker reports a piece before it makes the next one.
        let of = |(number, worker): (usize, &Worker)| {
            (0..worker.pieces.saturating_add(MAX_NAMES)).map(move |piece| Piece::new(number as u32, piece))
        };
        self.workers.iter().enumerate().flat_map(of)
    }
}

fn begin(task: &mut Task, worker: u32) -> Result<(), ()> {
    if task.attempts >= MAX_ATTEMPTS {
        return Err(());
    }
    task.attempts += 1;
    task.state = State::With(worker);
    Ok(())
}

#[cfg(test)]
mod tests;
