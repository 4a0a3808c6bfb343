//! A worker: asks the master for tasks, and does them.

use crate::cluster::{Bytes, Cluster};
use crate::error::MapReduceError;
use crate::input::Input;
use crate::job::{Job, Watch};
use crate::message::{Answer, Assignment, Piece, Report, Request};
use crate::piece::{Run, Table, chunk, merge, reduce, written};
use crate::program::Program;
use crate::schedule::{MAX_NAMES, Phase};
use dunlin_fabric::{Host, Nanos, Signal, Task, WithSources, nanos};
use dunlin_tier_node::RequestError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The shortest and the longest pause of a worker for which there is no task.
const PAUSES: [Nanos; 2] = [100_000, 2_000_000];

/// Returns whether a node did not answer, so that another one may.
fn is_unreachable(error: &RequestError) -> bool {
    matches!(error, RequestError::Connect { .. } | RequestError::Call { .. } | RequestError::Reported { .. })
}

/// The parts of a job that all threads of a process share.
pub(crate) struct Crew<C: Cluster, P, I> {
    pub(crate) cluster: C,
    pub(crate) job: Job,
    pub(crate) program: P,
    pub(crate) input: I,
    pub(crate) watch: Arc<dyn Watch>,
    pub(crate) agreement: u64,
}

/// The threads of a process that work for a job, and the numbers that the master knows them by.
struct Team<H: Host> {
    members: Mutex<Members>,
    changed: H::Signal,
    stop: AtomicBool,
}

#[derive(Default)]
struct Members {
    numbers: Vec<u32>,
    ended: usize,
    error: Option<MapReduceError>,
}

impl<H: Host> Team<H> {
    fn members(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works with several threads until the job has ended. The calling thread tells the master that they live.
pub(crate) fn work<C: Cluster, P: Program, I: Input>(
    crew: &Arc<Crew<C, P, I>>,
    threads: u16,
) -> Result<(), MapReduceError> {
    let host = crew.cluster.host().clone();
    let team: Arc<Team<C::Host>> =
        Arc::new(Team { members: Mutex::default(), changed: host.signal(), stop: AtomicBool::new(false) });
    let (mut tasks, mut started) = (Vec::new(), Ok(()));
    for _ in 0..threads {
        let (crew, own) = (Arc::clone(crew), Arc::clone(&team));
        let body = move || {
            let ended = Worker::run(&crew, &own);
            let mut members = own.members();
            members.ended += 1;
            if let Err(error) = ended {
                // The others end as well.
                own.stop.store(true, Ordering::Relaxed);
                members.error.get_or_insert(error);
            }
            drop(members);
            own.changed.raise();
        };
        match host.spawn("mapreduce", Box::new(body)) {
            Ok(task) => tasks.push(task),
            Err(error) => {
                team.stop.store(true, Ordering::Relaxed);
                started = Err(MapReduceError::Thread(error));
                break;
            }
        }
    }
    let every = nanos(crew.job.lease) / 4;
    let mut next = host.now().saturating_add(every);
    loop {
        let seen = team.changed.seen();
        let workers = {
            let members = team.members();
            if members.ended == tasks.len() {
                break;
            }
            members.numbers.clone()
        };
        if crew.watch.is_stopped() {
            team.stop.store(true, Ordering::Relaxed);
        }
        if host.now() >= next {
            next = host.now().saturating_add(every);
            // A master that does not answer is noticed by the workers.
            let _ = crew.cluster.ask(&Request::Alive { workers });
        }
        team.changed.wait(seen, next);
    }
    tasks.into_iter().for_each(Task::join);
    let error = team.members().error.take();
    match error {
        Some(error) => Err(error),
        None => started,
    }
}

struct Worker<'a, C: Cluster, P, I> {
    crew: &'a Crew<C, P, I>,
    number: u32,
    table: Table,
    /// The number of the next piece.
    pieces: u32,
    buffer: Vec<u8>,
}

impl<'a, C: Cluster, P: Program, I: Input> Worker<'a, C, P, I> {
    fn run(crew: &'a Crew<C, P, I>, team: &Team<C::Host>) -> Result<(), MapReduceError> {
        let number = match crew.cluster.ask(&Request::Join { agreement: crew.agreement })? {
            Answer::Joined { worker } => worker,
            Answer::Full => return Err(MapReduceError::TooManyWorkers),
            _ => return Err(MapReduceError::Disagree { job: crew.job.name.clone() }),
        };
        team.members().numbers.push(number);
        let table = Table::new(crew.job.partitions);
        let mut worker = Worker { crew, number, table, pieces: 0, buffer: Vec::new() };
        worker.tasks(team)
    }

    fn tasks(&mut self, team: &Team<C::Host>) -> Result<(), MapReduceError> {
        let host = self.crew.cluster.host();
        let (mut report, mut pause) = (Report::Nothing, PAUSES[0]);
        for number in 0u64.. {
            if team.stop.load(Ordering::Relaxed) {
                // Otherwise the master waits for the lease. It may have ended itself.
                let _ = self.crew.cluster.ask(&Request::Leave { worker: self.number });
                return Err(MapReduceError::Stopped);
            }
            let request = Request::Ask { worker: self.number, number, report };
            let assignment = self.ask(&request)?;
            report = match assignment {
                Assignment::Wait => {
                    host.sleep(host.now().saturating_add(pause));
                    pause = (2 * pause).min(PAUSES[1]);
                    report = Report::Nothing;
                    continue;
                }
                Assignment::End => return Ok(()),
                Assignment::Failed(text) => return Err(MapReduceError::Task(text)),
                Assignment::Gone => return Err(MapReduceError::GivenUp),
                task => self.guarded(&task),
            };
            pause = PAUSES[0];
        }
        Ok(())
    }

    /// Asks the master; once more if the answer was lost: the master knows the number of the request.
    fn ask(&self, request: &Request) -> Result<Assignment, MapReduceError> {
        let answer = match self.crew.cluster.ask(request) {
            Err(MapReduceError::Master(_)) => self.crew.cluster.ask(request),
            answer => answer,
        };
        match answer? {
            Answer::Next(assignment) => Ok(assignment),
            _ => Err(MapReduceError::Disagree { job: self.crew.job.name.clone() }),
        }
    }

    /// Does a task. A failure ends the job, unless another worker's piece is missing. The functions of the program may
    /// panic.
    fn guarded(&mut self, task: &Assignment) -> Report {
        let done = catch_unwind(AssertUnwindSafe(|| self.task(task)));
        let text = match done {
            Ok(Ok(report)) => return report,
            Ok(Err(error)) => match error.loss() {
                Some(piece) => return Report::Lost { piece },
                None => WithSources(&error).to_string(),
            },
            Err(panic) => match panic.downcast::<String>() {
                Ok(text) => format!("the program panicked: {text}"),
                Err(panic) => {
                    format!("the program panicked: {}", panic.downcast::<&str>().map_or("", |text| *text))
                }
            },
        };
        let what = match task {
            Assignment::Map { split } => format!("split {split}"),
            Assignment::Flush => "the results of a worker".to_owned(),
            Assignment::Reduce { output, .. } => format!("partition {output}"),
            _ => "a merge".to_owned(),
        };
        Report::Failed { text: format!("{what} failed: {text}") }
    }

    fn task(&mut self, task: &Assignment) -> Result<Report, MapReduceError> {
        match task {
            Assignment::Map { split } => self.map(*split),
            Assignment::Flush => self.flush(),
            Assignment::Reduce { output, pieces } => self.reduce(*output, pieces),
            Assignment::Merge { output, pieces } => self.merge(*output, pieces),
            _ => Ok(Report::Nothing),
        }
    }

    fn map(&mut self, split: u32) -> Result<Report, MapReduceError> {
        let Worker { crew, table, buffer, .. } = self;
        let mut bytes = 0;
        crew.input.read(split, buffer, &mut |split| {
            bytes += split.bytes.len() as u64;
            crew.program.map(split, &mut |key, value| table.add(&crew.program, key, value));
        })?;
        crew.watch.worked(Phase::Map, bytes);
        match table.too_long {
            true => Err(MapReduceError::TooLong),
            false => Ok(Report::Mapped { split, is_full: table.bytes > crew.job.memory }),
        }
    }

    /// Makes a region. The home of its name may be a node that has ended: another name has another home.
    fn create(&mut self, length: u64) -> Result<(Piece, C::Bytes), MapReduceError> {
        let first = self.pieces;
        loop {
            let piece = Piece::new(self.number, self.pieces);
            self.pieces += 1;
            match self.crew.cluster.create(piece, length) {
                Err(MapReduceError::Create { source, .. })
                    if self.pieces - first < MAX_NAMES && is_unreachable(&source) => {}
                created => return Ok((piece, created?)),
            }
        }
    }

    fn store(&mut self, bytes: &[u8]) -> Result<Piece, MapReduceError> {
        let (piece, region) = self.create(bytes.len() as u64)?;
        region.write(0, bytes).map_err(written)?;
        Ok(piece)
    }

    fn flush(&mut self) -> Result<Report, MapReduceError> {
        let bytes = self.table.take(self.crew.agreement);
        Ok(Report::Flushed { piece: self.store(&bytes)? })
    }

    /// Opens the runs of a partition.
    fn open(&self, pieces: &[Piece], partition: (u32, u32)) -> Result<Vec<Run<C::Bytes>>, MapReduceError> {
        let (crew, chunk) = (self.crew, chunk(pieces.len()));
        let open =
            |piece: &Piece| Run::open(*piece, crew.cluster.open(*piece)?, partition, crew.agreement, chunk);
        pieces.iter().map(open).collect()
    }

    fn reduce(&mut self, output: u32, pieces: &[Piece]) -> Result<Report, MapReduceError> {
        let mut runs = self.open(pieces, (output, self.crew.job.partitions))?;
        let bytes = reduce(&self.crew.program, &mut runs, self.crew.agreement)?;
        self.crew.watch.worked(Phase::Reduce, runs.iter().map(|run| run.length).sum());
        drop(runs);
        Ok(Report::Made { output, piece: self.store(&bytes)? })
    }

    fn merge(&mut self, output: u32, pieces: &[Piece]) -> Result<Report, MapReduceError> {
        let runs: [Run<C::Bytes>; 2] = self
            .open(pieces, (0, 1))?
            .try_into()
            .map_err(|_| MapReduceError::Settings("a merge is of two outputs".to_owned()))?;
        let length = runs.iter().map(|run| run.length).sum();
        let (agreement, mut made) = (self.crew.agreement, None);
        let merged = merge(runs, agreement, |length| {
            let (piece, bytes) = self.create(length)?;
            made = Some(piece);
            Ok(bytes)
        });
        match (merged, made) {
            (Ok(_), Some(piece)) => {
                self.crew.watch.worked(Phase::Merge, length);
                Ok(Report::Made { output, piece })
            }
            (Err(error), made) => {
                made.into_iter().for_each(|piece| self.crew.cluster.free(piece));
                Err(error)
            }
            (Ok(_), None) => Ok(Report::Nothing),
        }
    }
}
