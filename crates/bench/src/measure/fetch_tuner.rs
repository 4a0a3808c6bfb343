//! `bench fetch-tuner`: RF-RPC with the engine's own choice of ways, R and F, against fixed R and F and against plain replies, over a
//! grid of process times, result sizes and clients (RF-RPC section 3.2).
//!
//! Servers stay from cell to cell, and whoever connects plays the cell before first: so each cell is a step of the workload.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{
    CallId, Client, ClientConfig, CompletionMode, FetchChoice, Plan, RequestHalf, ResponseHalf, SMALL_LIMIT,
};

use super::atb::named;
use super::atb::turns::{
    Compared, Entrant, Length, Metric, Sample, Verdict, rows, set_throughput, take_turns,
};
use super::peer::{Drive, ServiceKind, WORK, Work};
use super::session::{Served, Session};
use super::{Findings, MeasureError, Stop, progress_bar};
use crate::report::{Row, rounded};
use crate::statistics::ratio;

/// What to measure.
#[derive(Clone, Debug)]
pub struct FetchTunerOptions {
    /// What the handler takes, in nanoseconds.
    pub processes: Vec<u32>,
    /// Bytes of the results, at most [`SMALL_LIMIT`]: longer ones travel another way.
    pub results: Vec<u32>,
    /// Clients, each with a connection of its own and one call under way, all on one thread.
    pub clients: Vec<usize>,
    /// Slices of each contestant and cell.
    pub rounds: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// The engine's own choice, and what it must not fall behind.
const TUNED: &str = "tuned";
const PLAIN: &str = "plain reply";
/// R and F of the others.
const RETRIES: [u32; 3] = [1, 5, 16];
const FETCH_BYTES: [u32; 3] = [256, 1024, 8192];
/// The most clients of the thread.
const MOST_CLIENTS: usize = 128;
/// Slices until a contestant connects anew: where its memory lies is worth some percent.
const RENEWED_AFTER: usize = 8;
/// How long the cell before is played, and then this one, until who tunes itself is measured: it has 100 ms to settle.
const STEP: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// What others have, for their caches.
const WARM_UP: Duration = Duration::from_millis(2);
/// The longest that one cell is measured.
const LONGEST: Duration = Duration::from_secs(30);

/// What is called.
#[derive(Clone, Copy, Debug)]
struct Job {
    process_ns: u32,
    result: u32,
}

/// Measures calls per second of each contestant in each cell of the grid. Rows have `process_ns`, `result_bytes`, `clients`, `protocol`,
/// `plan`, `throughput_ops`, `best` (the best of fixed R and F, and of plain replies), `ratio` to it and `plain_ratio` to plain replies,
/// medians over rounds with their quartiles; `fetched_share` of the results where they can go either way. Blocks for a second or
/// two for each cell.
///
/// # Errors
/// Options out of range; anything that fails.
pub fn fetch_tuner(session: &mut Session, options: &FetchTunerOptions) -> Result<Findings, MeasureError> {
    options.check()?;
    let contestants = contestants();
    let mut served = Vec::new();
    for _ in &contestants {
        served.push(session.serve(ServiceKind::Bytes, Drive::Busy)?);
    }
    let cells: Vec<(usize, Job)> = options.cells().collect();
    let progress = progress_bar(cells.len() * options.rounds * contestants.len());
    let mut findings = Findings::default();
    let mut verdicts =
        [Verdict::new(5, "the best of fixed R and F and plain replies"), Verdict::new(3, "plain replies")];
    let mut before = None;
    for (clients, job) in cells {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let shares: Vec<Cell<Option<f64>>> = contestants.iter().map(|_| Cell::new(None)).collect();
        let entrant = |((contestant, served), share)| {
            entrant(contestant, served, [before.unwrap_or(job), job], clients, options.slice, share)
        };
        let mut entrants: Vec<_> = contestants.iter().zip(&served).zip(&shares).map(entrant).collect();
        let length = Length { rounds: options.rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &options.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let head = Row::new()
            .with("process_ns", job.process_ns)
            .with("result_bytes", job.result)
            .with("clients", clients);
        let metric = Metric::Throughput(None);
        let compared = [
            Compared { metric, prefix: "", rival: None },
            Compared { metric, prefix: "plain_", rival: Some(PLAIN) },
        ];
        let describe =
            |row: &mut Row, samples: &[&Sample]| set_throughput(row, "throughput_ops", samples, None);
        let mut found = rows(&mut entrants, &head, &compared, &describe, &mut verdicts);
        drop(entrants);
        for (contestant, share) in contestants.iter().zip(&shares) {
            let name = contestant.name.as_str();
            for row in found.iter_mut().filter(|row| row.get("protocol").is_some_and(|word| word == name)) {
                row.set("fetched_share", share.get().map(rounded));
            }
        }
        findings.rows.extend(found);
        before = Some(job);
    }
    progress.finish_and_clear();
    findings.notes.extend(verdicts.iter().filter_map(|verdict| verdict.words("throughput, tuned")));
    Ok(findings)
}

impl FetchTunerOptions {
    fn check(&self) -> Result<(), MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if let Some(result) = self.results.iter().find(|result| **result > SMALL_LIMIT) {
            return wrong(format!(
                "a result of {result} bytes is over {SMALL_LIMIT}, and would travel another way"
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

/// Who takes part.
struct Contestant {
    name: String,
    /// A rival of who tunes itself.
    single: bool,
    config: ClientConfig,
}

fn contestants() -> Vec<Contestant> {
    let config = |response| {
        let plan =
            Plan::new(RequestHalf::Write, response).completion(CompletionMode::Busy, CompletionMode::Busy);
        ClientConfig { window: 4, ..ClientConfig::with_plan(plan) }
    };
    let tuned =
        Contestant { name: TUNED.to_owned(), single: false, config: config(ResponseHalf::FetchOrWrite) };
    let plain = Contestant { name: PLAIN.to_owned(), single: true, config: config(ResponseHalf::Write) };
    let fixed = RETRIES.into_iter().flat_map(|retries| FETCH_BYTES.map(|bytes| (retries, bytes)));
    let fixed = fixed.map(|(retries, bytes)| Contestant {
        name: format!("R {retries}, F {bytes}"),
        single: true,
        config: ClientConfig {
            fetch_choice: FetchChoice::Fixed { retries, bytes },
            ..config(ResponseHalf::FetchOrWrite)
        },
    });
    [tuned, plain].into_iter().chain(fixed).collect()
}

/// A contestant's part in a cell, after a step.
fn entrant<'a>(
    contestant: &'a Contestant,
    served: &'a Served,
    [before, job]: [Job; 2],
    clients: usize,
    slice: Duration,
    share: &'a Cell<Option<f64>>,
) -> Entrant<'a> {
    let mut callers = Callers::default();
    let mut taken = 0;
    let take = move |session: &mut Session| -> Result<Sample, MeasureError> {
        if taken % RENEWED_AFTER == 0 {
            session.disconnect(served, std::mem::take(&mut callers.clients))?;
            let connected = (0..clients).map(|_| session.connect(served, &contestant.config));
            callers = Callers::new(connected.collect::<Result<_, _>>()?);
            let parts = if contestant.single {
                [(before, Duration::ZERO), (job, WARM_UP)]
            } else {
                [(before, STEP[0]), (job, STEP[1])]
            };
            session.while_serving(served, |_, _| {
                parts
                    .into_iter()
                    .try_for_each(|(job, time)| callers.play(job, time))
                    .map_err(|reason| MeasureError::TypedCall { protocol: contestant.name.clone(), reason })
            })?;
        }
        taken += 1;
        let fetched = callers.results();
        let (found, _) = session
            .pair
            .subject_slice(served.index, &[], |pair| pair.count_subject(slice, || callers.turn(job)))?;
        share.set(share_of(fetched, callers.results()).or(share.get()));
        Ok(found.into())
    };
    Entrant::new(contestant.name.clone(), contestant.single, "Write, FetchOrWrite".to_owned(), Box::new(take))
}

/// Of the results between, the part that was fetched.
fn share_of(before: (u64, u64), after: (u64, u64)) -> Option<f64> {
    let (fetched, written) = (after.0.checked_sub(before.0)?, after.1.checked_sub(before.1)?);
    ratio(fetched as f64, (fetched + written) as f64)
}

/// Clients on one thread, each with one call under way.
#[derive(Default)]
struct Callers {
    clients: Vec<Client<ShmFabric>>,
    stamp: u8,
}

impl Callers {
    fn new(clients: Vec<Client<ShmFabric>>) -> Self {
        Callers { clients, stamp: 0 }
    }

    /// Results that were fetched and that were written back, where they can be either.
    fn results(&mut self) -> (u64, u64) {
        let results = self.clients.iter_mut().flat_map(|client| client.tuning()).map(|tuning| tuning.results);
        results.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    fn play(&mut self, job: Job, time: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.turn(job)?;
        }
        Ok(())
    }

    /// A call of each client; says how many that were.
    fn turn(&mut self, job: Job) -> Result<u64, String> {
        self.stamp = self.stamp.wrapping_add(1);
        let work = Work { process_ns: job.process_ns, answer: job.result, stamp: self.stamp };
        let request = work.encode();
        let right = |answer: &[u8]| {
            let ends = [answer.first(), answer.last()].into_iter().flatten();
            answer.len() == work.answer as usize && ends.into_iter().all(|byte| *byte == work.stamp)
        };
        let wrong = || "another answer than was asked for".to_owned();
        if let [client] = &mut self.clients[..] {
            let answer = client.call_on(0, WORK, &request).map_err(|error| error.to_string())?;
            return if right(&answer) { Ok(1) } else { Err(wrong()) };
        }
        for client in &mut self.clients {
            let _: CallId = client.submit_on(0, WORK, &request).map_err(|error| error.to_string())?;
        }
        let mut failed = None;
        let mut done = 0;
        while done < self.clients.len() {
            for client in &mut self.clients {
                done += client.collect(|_, outcome| match outcome {
                    Ok(answer) if right(answer) => {}
                    Ok(_) => failed = Some(wrong()),
                    Err(error) => failed = Some(error.to_string()),
                });
            }
        }
        failed.map_or(Ok(done as u64), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn options() -> FetchTunerOptions {
        FetchTunerOptions {
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
            options().cells().map(|(clients, job)| (clients, job.result, job.process_ns)).collect();
        assert_eq!(cells[..5], [(1, 32, 0), (1, 32, 500), (1, 4096, 0), (1, 4096, 500), (4, 32, 0)]);
        assert_eq!(cells.len(), 8);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(options().check().is_ok());
        assert!(FetchTunerOptions { results: vec![4097], ..options() }.check().is_err());
        assert!(FetchTunerOptions { clients: vec![0], ..options() }.check().is_err());
        assert!(FetchTunerOptions { clients: vec![129], ..options() }.check().is_err());
    }

    #[test]
    fn shares_are_of_what_came_between() {
        assert_eq!(share_of((10, 0), (40, 10)), Some(0.75));
        assert_eq!(share_of((10, 0), (10, 0)), None);
        // Who connected anew counts from the beginning.
        assert_eq!(share_of((10, 0), (4, 0)), None);
    }
}
