//! Runs figures: each of their simulations on one of as many threads as there are cores.

use super::hash;
use crate::interrupt::Interrupt;
use crate::output::Failure;
use crate::progress;
use dunlin_rnic_model::Profile;
use dunlin_scenario::figures::{Effort, Figure, FigureError, Outcome, Point, Run};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A figure that was made.
pub(super) struct Made {
    pub(super) figure: Figure,
    /// Of its profile.
    pub(super) hash: String,
    pub(super) points: Vec<Point>,
}

/// How often we look whether a signal has come.
const LOOK: Duration = Duration::from_millis(100);

/// Makes figures. A signal ends it at once: threads that still simulate end with the process.
pub(super) fn make(figures: &[Figure], effort: Effort, message: &str) -> Result<Vec<Made>, Failure> {
    let interrupt = Interrupt::install()?;
    let hashes: Vec<String> = figures
        .iter()
        .map(|figure| Profile::built_in(figure.profile).map(|profile| hash(&profile)).map_err(Failure::new))
        .collect::<Result<_, _>>()?;
    let plans: Vec<Vec<Run>> = figures.iter().map(|figure| figure.runs(effort)).collect();
    let runs: Arc<Vec<Run>> = Arc::new(plans.iter().flatten().cloned().collect());
    let bar = progress::counting(runs.len() as u64, message);
    let results = start(&runs)?;
    let mut outcomes = vec![None; runs.len()];
    for _ in 0..runs.len() {
        let (index, outcome) = loop {
            interrupt.check()?;
            match results.recv_timeout(LOOK) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("a simulation panicked; what it said stands above"));
                }
            }
        };
        outcomes[index] = Some(outcome.map_err(Failure::new)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut outcomes = outcomes.into_iter().flatten();
    let made = figures.iter().zip(plans).zip(hashes).map(|((figure, plan), hash)| {
        let mine: Vec<Outcome> = outcomes.by_ref().take(plan.len()).collect();
        Made { figure: *figure, hash, points: figure.points(effort, &mine) }
    });
    Ok(made.collect())
}

type Results = mpsc::Receiver<(usize, Result<Outcome, FigureError>)>;

/// Has threads take the runs one after the other.
fn start(runs: &Arc<Vec<Run>>) -> Result<Results, Failure> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let next = Arc::new(AtomicUsize::new(0));
    let (sender, results) = mpsc::channel();
    for _ in 0..threads {
        let (runs, next, sender) = (Arc::clone(runs), Arc::clone(&next), sender.clone());
        let body = move || {
            while let Some((index, run)) = take(&runs, &next) {
                if sender.send((index, run.go())).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("figure".to_owned())
            .spawn(body)
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    }
    Ok(results)
}

fn take<'a>(runs: &'a [Run], next: &AtomicUsize) -> Option<(usize, &'a Run)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, runs.get(index)?))
}
