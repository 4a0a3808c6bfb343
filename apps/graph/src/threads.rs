//! The threads of a member, and the sum of their results.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::job::Outcome;
use crate::meeting::{Ended, Meeting};
use dunlin_fabric::{Host, Nanos, Task};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The sums of all threads of a member.
#[derive(Debug)]
pub(crate) struct Totals<D> {
    pub(crate) data: Vec<(Range<u32>, Vec<D>)>,
    pub(crate) messages: u64,
    pub(crate) gathered: u64,
    pub(crate) built: Nanos,
    pub(crate) stepped: Nanos,
}

impl<D> Default for Totals<D> {
    fn default() -> Self {
        Totals { data: Vec::new(), messages: 0, gathered: 0, built: 0, stepped: 0 }
    }
}

impl<D> Totals<D> {
    /// Takes the result of the member, whose job began at `begun`.
    pub(crate) fn outcome(&mut self, steps: u32, begun: Nanos) -> Outcome<D> {
        self.data.sort_by_key(|(range, _)| range.start);
        Outcome {
            first: self.data.first().map_or(0, |(range, _)| range.start),
            data: std::mem::take(&mut self.data).into_iter().flat_map(|(_, data)| data).collect(),
            steps,
            messages: self.messages,
            gathered: self.gathered,
            building: Duration::from_nanos(self.built.saturating_sub(begun)),
            stepping: Duration::from_nanos(self.stepped.saturating_sub(self.built)),
        }
    }
}

/// The reason why a thread ended early.
pub(crate) enum Stop {
    /// Another thread has failed.
    Ended,
    Failed(Box<GraphError>),
}

impl From<Ended> for Stop {
    fn from(_: Ended) -> Stop {
        Stop::Ended
    }
}

impl From<GraphError> for Stop {
    fn from(error: GraphError) -> Stop {
        Stop::Failed(Box::new(error))
    }
}

/// The state of a member, whose threads meet.
pub(crate) trait Meets: Send + Sync + 'static {
    type Host: Host;

    /// Returns the place where they meet.
    fn meeting(&self) -> &Meeting<Self::Host, GraphError>;
}

/// Runs the threads of a member, and waits for them.
///
/// # Errors
/// That of the first thread that failed.
pub(crate) fn run_threads<M: Meets>(
    host: &M::Host,
    threads: u16,
    member: &Arc<M>,
    edges: Arc<Edges>,
    body: fn(&M, u16, Arc<Edges>) -> Result<(), Stop>,
) -> Result<(), GraphError> {
    let mut tasks = Vec::new();
    for thread in 0..threads {
        let (own, edges) = (Arc::clone(member), Arc::clone(&edges));
        let run = move || {
            let mut ending = Ending { meeting: own.meeting(), is_well: false };
            match body(&own, thread, edges) {
                Ok(()) | Err(Stop::Ended) => {}
                Err(Stop::Failed(error)) => ending.meeting.fail(Some(*error)),
            }
            ending.is_well = true;
        };
        match host.spawn("graph", Box::new(run)) {
            Ok(task) => tasks.push(task),
            Err(error) => {
                member.meeting().fail(Some(error.into()));
                break;
            }
        }
    }
    drop(edges);
    tasks.into_iter().for_each(Task::join);
    match member.meeting().take_failure() {
        Some(failure) => Err(failure.unwrap_or(GraphError::Panicked)),
        None => Ok(()),
    }
}

/// Ends the meeting if a thread panics.
struct Ending<'a, H: Host> {
    meeting: &'a Meeting<H, GraphError>,
    is_well: bool,
}

impl<H: Host> Drop for Ending<'_, H> {
    fn drop(&mut self) {
        if !self.is_well {
            self.meeting.fail(None);
        }
    }
}
