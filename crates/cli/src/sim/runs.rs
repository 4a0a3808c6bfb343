//! Runs simulations, those of figures above all: each on one of as many threads as there are cores.

use super::hash;
use crate::interrupt::Interrupt;
use crate::output::Failure;
use crate::progress;
use dunlin_bench::report::Row;
use dunlin_rnic_model::Profile;
use dunlin_scenario::figures::{Drawing, Effort, Figure, Outcome, Point, Run};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A figure that was made.
pub(super) struct Made {
    pub(super) figure: Figure,
    /// The profiles that its runs go by, its own first, each with its hash.
    pub(super) profiles: Vec<(String, String)>,
    pub(super) points: Vec<Point>,
    pub(super) drawings: Vec<Drawing>,
}

/// How often we look whether a signal has come.
const LOOK: Duration = Duration::from_millis(100);

/// Makes figures. A signal ends it at once: threads that still simulate end with the process.
pub(super) fn make(figures: &[Figure], effort: Effort, message: &str) -> Result<Vec<Made>, Failure> {
    let plans: Vec<Vec<Run>> = figures.iter().map(|figure| figure.runs(effort)).collect();
    let profiles: Vec<Vec<(String, String)>> =
        figures.iter().zip(&plans).map(|(figure, plan)| profiles(figure, plan)).collect::<Result<_, _>>()?;
    let runs: Vec<Run> = plans.iter().flatten().cloned().collect();
    let mut outcomes = largest_first(runs, message)?.into_iter();
    let made = figures.iter().zip(plans).zip(profiles).map(|((figure, plan), profiles)| {
        let mine: Vec<Outcome> = outcomes.by_ref().take(plan.len()).collect();
        let (points, drawings) = (figure.points(effort, &mine), figure.drawings(effort, &mine));
        Made { figure: *figure, profiles, points, drawings }
    });
    Ok(made.collect())
}

/// The profiles that a figure's runs go by.
fn profiles(figure: &Figure, plan: &[Run]) -> Result<Vec<(String, String)>, Failure> {
    let mut names = vec![figure.profile];
    for name in plan.iter().filter_map(Run::profile) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let with_hash = |name: &str| Ok((name.to_owned(), hash(&Profile::built_in(name).map_err(Failure::new)?)));
    names.into_iter().map(with_hash).collect()
}

impl Made {
    /// Its profiles and their hashes in words.
    pub(super) fn profiles(&self) -> String {
        let each: Vec<String> = self.profiles.iter().map(|(name, hash)| format!("{name} {hash}")).collect();
        format!("{} {}", if each.len() == 1 { "profile" } else { "profiles" }, each.join(", "))
    }
}

/// Notes profiles and their hashes among the parameters of a document.
pub(super) fn set_profiles(parameters: &mut Row, made: &[Made]) {
    for (name, hash) in made.iter().flat_map(|made| &made.profiles) {
        parameters.set(&format!("profile_hash {name}"), hash.as_str());
    }
}

/// The outcomes of runs, in their order. They are made from the largest to the smallest, so that no core is left with a long one at the end.
fn largest_first(runs: Vec<Run>, message: &str) -> Result<Vec<Outcome>, Failure> {
    let mut runs: Vec<(usize, Run)> = runs.into_iter().enumerate().collect();
    runs.sort_by_key(|(_, run)| Reverse(run.size()));
    let places: Vec<usize> = runs.iter().map(|(place, _)| *place).collect();
    let outcomes = all(runs, message, |(_, run)| run.go().map_err(Box::new))?;
    let mut placed: Vec<(usize, Outcome)> = places.into_iter().zip(outcomes).collect();
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, outcome)| outcome).collect())
}

/// The outcomes of all runs, in their order, each made on one of as many threads as there are cores. A signal ends it at
/// once.
pub(crate) fn all<T, O, E>(
    runs: Vec<T>,
    message: &str,
    run: fn(&T) -> Result<O, E>,
) -> Result<Vec<O>, Failure>
where
    T: Send + Sync + 'static,
    O: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let interrupt = Interrupt::install()?;
    let runs = Arc::new(runs);
    let bar = progress::counting(runs.len() as u64, message);
    let results = start(&runs, run)?;
    let mut outcomes: Vec<Option<O>> = runs.iter().map(|_| None).collect();
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
    Ok(outcomes.into_iter().flatten().collect())
}

/// What threads made of runs, each with its place.
type Results<O, E> = mpsc::Receiver<(usize, Result<O, E>)>;

/// Has threads take the runs one after the other.
fn start<T, O, E>(runs: &Arc<Vec<T>>, run: fn(&T) -> Result<O, E>) -> Result<Results<O, E>, Failure>
where
    T: Send + Sync + 'static,
    O: Send + 'static,
    E: Send + 'static,
{
    let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let next = Arc::new(AtomicUsize::new(0));
    let (sender, results) = mpsc::channel();
    for _ in 0..threads {
        let (runs, next, sender) = (Arc::clone(runs), Arc::clone(&next), sender.clone());
        let body = move || {
            while let Some((index, work)) = take(&runs, &next) {
                if sender.send((index, run(work))).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("simulation".to_owned())
            .spawn(body)
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    }
    Ok(results)
}

fn take<'a, T>(runs: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, runs.get(index)?))
}
