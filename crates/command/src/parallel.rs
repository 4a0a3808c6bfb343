//! Runs work on one thread per core.

use crate::interrupt::Interrupt;
use crate::output::Failure;
use crate::progress;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The interval at which a wait checks for signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs all `runs` and returns their outcomes in order. Blocks until all have ended or a signal arrives.
/// After a signal, the threads that still run end with the process.
pub fn all<T, O, E>(runs: Vec<T>, message: &str, run: fn(&T) -> Result<O, E>) -> Result<Vec<O>, Failure>
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
            match results.recv_timeout(CHECK_INTERVAL) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("a simulation panicked; its message stands above"));
                }
            }
        };
        outcomes[index] = Some(outcome.map_err(Failure::new)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(outcomes.into_iter().flatten().collect())
}

/// Outcomes, each with the index of its run.
type Results<O, E> = mpsc::Receiver<(usize, Result<O, E>)>;

/// Starts the threads. Each takes the next run until none is left.
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
