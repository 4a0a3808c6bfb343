//! Compares the engine's run-time tuning with fixed settings, on a grid of processing times, result sizes
//! and clients.
//!
//! A contestant that reconnects first runs the previous cell's load, so that each cell is a step change of
//! the workload.

mod batch;
mod fetch;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Client, ClientConfig, CompletionMode, Plan, RequestHalf, ResponseHalf};

use super::atb::named;
use super::atb::turns::{
    Compared, Describe, Entrant, LatencyLimit, Length, Sample, Verdict, rows, take_turns,
};
use super::peer::{Drive, ServiceKind, WORK, Work};
use super::session::{Served, Session};
use super::{MeasureError, Stop, progress_bar};
use dunlin_report::Row;
use dunlin_report::statistics::ratio;

pub use batch::{BatchTunerOptions, batch_tuner};
pub use fetch::fetch_tuner;

/// The cells of the grid, and the duration of each.
#[derive(Clone, Debug)]
pub struct TunerGrid {
    /// Processing times of the handler, in nanoseconds.
    pub processes: Vec<u32>,
    /// Sizes of the results in bytes, at most [`SMALL_LIMIT`](dunlin_rpc::SMALL_LIMIT): longer ones are
    /// large payloads.
    pub results: Vec<u32>,
    /// Numbers of clients, each with its own connection, all on one thread.
    pub clients: Vec<usize>,
    /// Slices per contestant and cell.
    pub rounds: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// Maximum number of clients.
const MOST_CLIENTS: usize = 128;
/// Number of slices after which a contestant reconnects to a new server. Memory addresses on both sides
/// affect the speed by some percent, as much as the measured differences.
const RENEWED_AFTER: usize = 8;
/// Duration of the previous cell's load and of this cell's, before a self-tuning contestant is measured: it
/// has 100 ms to settle.
const STEP: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// Warm-up of the other contestants, for their caches.
const WARM_UP: Duration = Duration::from_millis(2);
/// Time limit per cell.
const LONGEST: Duration = Duration::from_secs(30);

/// The measured call.
#[derive(Clone, Copy, Debug)]
struct Job {
    process_ns: u32,
    result: u32,
}

impl Job {
    /// Returns the request with the given stamp.
    fn work(self, stamp: u8) -> Work {
        Work { process_ns: self.process_ns, answer: self.result, stamp }
    }
}

/// Checks that `answer` is the right response to `work`.
fn check_answer(work: Work, answer: &[u8]) -> Result<(), String> {
    let ends = [answer.first(), answer.last()].into_iter().flatten();
    if answer.len() == work.answer as usize && ends.into_iter().all(|byte| *byte == work.stamp) {
        return Ok(());
    }
    Err("another answer than was asked for".to_owned())
}

/// Processes a client's completed calls and returns their number. Stores a wrong response in `failed`.
fn collect(client: &mut Client<ShmFabric>, work: Work, failed: &mut Option<String>) -> usize {
    client.collect(|_, outcome| {
        let checked = outcome.map_err(|error| error.to_string());
        if let Err(wrong) = checked.and_then(|answer| check_answer(work, answer)) {
            *failed = Some(wrong);
        }
    })
}

/// Returns the count of one kind divided by the sum of `others`.
fn ratio_of_kinds(samples: &[&Sample], one: usize, others: &[usize]) -> Option<f64> {
    let sum = |kind: usize| {
        let of = |sample: &&Sample| sample.kinds.get(kind).map_or(0, |kind| kind.operations);
        samples.iter().map(of).sum::<u64>() as f64
    };
    ratio(sum(one), others.iter().map(|kind| sum(*kind)).sum())
}

/// A contestant.
struct Contestant {
    name: String,
    /// Whether it is a rival of the self-tuning contestants.
    single: bool,
    /// Its latency limit, if any.
    limit: Option<LatencyLimit>,
    config: ClientConfig,
}

/// Returns the settings: requests are written, results use `response`, and both sides busy-wait.
fn config(response: ResponseHalf) -> ClientConfig {
    let plan = Plan::new(RequestHalf::Write, response).completion(CompletionMode::Busy, CompletionMode::Busy);
    ClientConfig { window: 4, ..ClientConfig::with_plan(plan) }
}

/// Clients on one thread.
trait Callers {
    fn new(clients: Vec<Client<ShmFabric>>) -> Self;

    fn into_clients(self) -> Vec<Client<ShmFabric>>;

    /// Makes calls with each client and waits for all results. Returns the number of calls.
    fn turn(&mut self, job: Job) -> Result<u64, String>;

    /// Adds the counts since the last call of this method to a slice's result.
    fn count(&mut self, sample: &mut Sample);

    fn play(&mut self, job: Job, time: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.turn(job)?;
        }
        Ok(())
    }
}

impl TunerGrid {
    fn check(&self, largest: u32) -> Result<(), MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if let Some(result) = self.results.iter().find(|result| **result > largest) {
            return wrong(format!(
                "a result of {result} bytes is over {largest}, and would travel another way"
            ));
        }
        match self.clients.iter().find(|clients| !(1..=MOST_CLIENTS).contains(*clients)) {
            Some(clients) => wrong(format!("1 to {MOST_CLIENTS} clients are possible, not {clients}")),
            None => Ok(()),
        }
    }

    fn cells(&self) -> impl Iterator<Item = (usize, Job)> + '_ {
        self.clients.iter().flat_map(move |clients| {
            let of = move |result: &u32| {
                let result = *result;
                self.processes.iter().map(move |process| (*clients, Job { process_ns: *process, result }))
            };
            self.results.iter().flat_map(of)
        })
    }
}

/// Runs the contestants alternately in each cell, with callers of type `C`. Returns the rows of [`rows`],
/// with `process_ns`, `result_bytes` and `clients` as first fields.
fn contest<C: Callers>(
    session: &mut Session,
    grid: &TunerGrid,
    contestants: &[Contestant],
    compared: &[Compared],
    describe: &Describe<'_>,
    verdicts: &mut [Verdict],
) -> Result<Vec<Row>, MeasureError> {
    let mut served = Vec::new();
    for _ in contestants {
        served.push(session.serve(ServiceKind::Bytes, Drive::Busy)?);
    }
    let cells: Vec<(usize, Job)> = grid.cells().collect();
    let progress = progress_bar(cells.len() * grid.rounds * contestants.len());
    let mut found = Vec::new();
    let mut before = None;
    for (clients, job) in cells {
        if grid.stop.load(Ordering::Relaxed) {
            break;
        }
        let jobs = [before.unwrap_or(job), job];
        let entrant = |(contestant, served)| entrant::<C>(contestant, served, jobs, clients, grid.slice);
        let mut entrants: Vec<_> = contestants.iter().zip(&served).map(entrant).collect();
        let length = Length { rounds: grid.rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &grid.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let head = Row::new()
            .with("process_ns", job.process_ns)
            .with("result_bytes", job.result)
            .with("clients", clients);
        found.extend(rows(&mut entrants, &head, compared, describe, verdicts));
        before = Some(job);
    }
    progress.finish_and_clear();
    Ok(found)
}

/// Creates a contestant's entrant for a cell, which begins with a step from the `before` job to `job`.
fn entrant<'a, C: Callers + 'a>(
    contestant: &'a Contestant,
    served: &'a Served,
    [before, job]: [Job; 2],
    clients: usize,
    slice: Duration,
) -> Entrant<'a> {
    let (mut callers, mut served) = (C::new(Vec::new()), served.clone());
    let mut taken = 0;
    let take = move |session: &mut Session| -> Result<Sample, MeasureError> {
        if taken % RENEWED_AFTER == 0 {
            let old = std::mem::replace(&mut callers, C::new(Vec::new()));
            session.disconnect(&served, old.into_clients())?;
            served = session.serve_anew(&served, ServiceKind::Bytes, Drive::Busy)?;
            let connected = (0..clients).map(|_| session.connect(&served, &contestant.config));
            callers = C::new(connected.collect::<Result<_, _>>()?);
            let parts = if contestant.single {
                [(before, Duration::ZERO), (job, WARM_UP)]
            } else {
                [(before, STEP[0]), (job, STEP[1])]
            };
            session.while_serving(&served, |_, _| {
                parts
                    .into_iter()
                    .try_for_each(|(job, time)| callers.play(job, time))
                    .map_err(|reason| MeasureError::TypedCall { protocol: contestant.name.clone(), reason })
            })?;
        }
        taken += 1;
        callers.count(&mut Sample::default());
        let (found, _) = session
            .pair
            .subject_slice(served.index, &[], |pair| pair.count_subject(slice, || callers.turn(job)))?;
        let mut sample = Sample::from(found);
        callers.count(&mut sample);
        Ok(sample)
    };
    let plan = contestant
        .config
        .plan
        .map_or_else(String::new, |plan| format!("{:?}, {:?}", plan.request, plan.response));
    Entrant::new(contestant.name.clone(), contestant.single, plan, Box::new(take)).within(contestant.limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn grid() -> TunerGrid {
        TunerGrid {
            processes: vec![0, 500],
            results: vec![32, 4096],
            clients: vec![1, 4],
            rounds: 2,
            slice: Duration::from_millis(1),
            stop: Arc::default(),
        }
    }

    #[test]
    fn each_cell_is_a_step_from_the_one_before() {
        let cells: Vec<_> =
            grid().cells().map(|(clients, job)| (clients, job.result, job.process_ns)).collect();
        assert_eq!(cells[..5], [(1, 32, 0), (1, 32, 500), (1, 4096, 0), (1, 4096, 500), (4, 32, 0)]);
        assert_eq!(cells.len(), 8);
    }

    #[test]
    fn cells_out_of_range_are_refused() {
        assert!(grid().check(4096).is_ok());
        assert!(grid().check(4095).is_err());
        assert!(TunerGrid { clients: vec![0], ..grid() }.check(4096).is_err());
        assert!(TunerGrid { clients: vec![129], ..grid() }.check(4096).is_err());
    }

    #[test]
    fn only_what_was_asked_for_is_an_answer() {
        let work = Job { process_ns: 0, result: 3 }.work(7);
        assert!(check_answer(work, &[7, 0, 7]).is_ok());
        assert!(check_answer(work, &[7, 7]).is_err());
        assert!(check_answer(work, &[7, 7, 6]).is_err());
        assert!(check_answer(Job { process_ns: 0, result: 0 }.work(7), &[]).is_ok());
    }
}
