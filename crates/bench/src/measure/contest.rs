//! Runs several subjects in one contest: in each round, each has a slice of its floor and a slice of its
//! own.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use dunlin_floor::{Alternation, Floor, FloorError, FloorPair, Slice, alternate};

/// Runs one slice of a contestant.
type SliceOf<'a> = Box<dyn FnMut(&mut FloorPair) -> Result<Slice, FloorError> + 'a>;

/// One subject and its floor.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    pub(super) floor: Floor,
    pub(super) floor_duration: Duration,
    /// Runs one whole slice.
    pub(super) slice: SliceOf<'a>,
    pub(super) found: Vec<Alternation>,
}

/// Time limit of a contest. On a busy machine a round takes many times longer.
const LONGEST: Duration = Duration::from_secs(20);

/// Runs `rounds` rounds, or fewer if time runs out. In each round, every contestant has one slice of its
/// floor and one of its own.
pub(super) fn contest(
    pair: &mut FloorPair,
    contestants: &mut [Contestant<'_>],
    rounds: usize,
    progress: &ProgressBar,
) -> Result<(), FloorError> {
    let start = Instant::now();
    for _ in 0..rounds {
        if start.elapsed() > LONGEST {
            break;
        }
        for one in &mut *contestants {
            progress.set_message(one.name.clone());
            one.found.extend(alternate(pair, one.floor, one.floor_duration, 1, &mut one.slice, |_| {})?);
            progress.inc(1);
        }
    }
    Ok(())
}
