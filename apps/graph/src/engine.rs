//! A member of a job: its regions, its threads, and their steps.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::job::{Job, Outcome, Step, Watch};
use crate::layout::{Header, Layout, name};
use crate::meeting::{Ended, Meeting};
use crate::partition::{Weights, overlap};
use crate::program::{Message, Plain, Program};
use crate::regions::{Access, Owned, Region, create, map};
use crate::worker::Worker;
use dunlin_fabric::{Host, Nanos};
use dunlin_tier_node::AnyTier;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The messages of a region in this step, as a member has read them.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) count: u32,
    /// The part of all vertices that may have messages.
    pub(crate) window: Range<u32>,
    /// The vertices that have one, unless they are many.
    pub(crate) few: Option<Vec<u32>>,
}

/// The sums of all threads of a member.
#[derive(Debug)]
pub(crate) struct Totals<D> {
    pub(crate) data: Vec<(Range<u32>, Vec<D>)>,
    pub(crate) messages: u64,
    pub(crate) gathered: u64,
    pub(crate) built: Nanos,
    pub(crate) stepped: Nanos,
}

/// The state that the threads of a member share.
pub(crate) struct Member<T: AnyTier, P: Program> {
    pub(crate) tier: T,
    pub(crate) program: P,
    pub(crate) job: Job,
    pub(crate) watch: Arc<dyn Watch>,
    pub(crate) agreement: u64,
    pub(crate) ranges: Vec<Range<u32>>,
    pub(crate) regions: Vec<Region<T::Lmr>>,
    /// The messages of all vertices, as far as they are read.
    pub(crate) cells: Vec<AtomicU64>,
    pub(crate) inboxes: Vec<RwLock<Inbox>>,
    pub(crate) meeting: Meeting<T::Host, GraphError>,
    pub(crate) scattering: AtomicU64,
    pub(crate) steps: AtomicU32,
    totals: Mutex<Totals<P::Data>>,
}

impl<T: AnyTier, P: Program> Member<T, P> {
    pub(crate) fn totals(&self) -> MutexGuard<'_, Totals<P::Data>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.tier.host().now()
    }

    /// Waits for all members. Each has one thread here.
    pub(crate) fn barrier(&self, which: &str) -> Result<(), GraphError> {
        barrier(&self.tier, &self.job, which)
    }

    /// Sums up the messages of a step, as all threads have read them.
    pub(crate) fn begin(&self, step: u32) -> Result<(), GraphError> {
        if self.watch.is_stopped() {
            return Err(GraphError::Stopped);
        }
        let count =
            |inbox: &RwLock<Inbox>| u64::from(inbox.read().unwrap_or_else(PoisonError::into_inner).count);
        let scattering = self.inboxes.iter().map(count).sum();
        self.scattering.store(scattering, Ordering::Relaxed);
        if scattering > 0 {
            self.totals().messages += scattering;
            self.steps.store(step, Ordering::Relaxed);
            self.watch.step(Step { number: step, scattering });
        }
        Ok(())
    }
}

pub(crate) fn barrier<T: AnyTier>(tier: &T, job: &Job, which: &str) -> Result<(), GraphError> {
    let barrier = format!("{}/{which}", job.name);
    tier.barrier_within(barrier.as_bytes(), job.members, job.patience)
        .map_err(|source| GraphError::Barrier { barrier, source: source.into() })
}

/// Runs a job as one of its members; all members call this with the same graph, program and description. Blocks until
/// all have ended. Regions of this member are freed in the end, also after an error.
///
/// # Errors
/// Another member has died or differs, the tier fails, what regions hold makes no sense, or the job was stopped. The
/// others then end with an error too: at once if this member's process ends, otherwise after
/// [`patience`](Job::patience).
pub fn run<T: AnyTier, P: Program>(
    tier: &T,
    job: &Job,
    edges: Arc<Edges>,
    program: P,
    watch: Arc<dyn Watch>,
) -> Result<Outcome<P::Data>, GraphError> {
    job.check()?;
    let agreement = job.agreement(&edges, &program);
    let weights = Weights::of(&edges);
    let members = usize::from(job.members);
    let ranges = weights.cut(members * usize::from(job.threads));
    let parts = weights.cut(members * usize::from(job.regions()));
    drop(weights);
    let layout =
        |range: &Range<u32>| Layout { vertices: range.end - range.start, data: P::Data::BYTES as u64 };
    // Regions of this member: the others map them after the first barrier.
    let mut owned = Owned::new(tier);
    let of_member = usize::from(job.regions());
    for range in &parts[usize::from(job.member) * of_member..][..of_member] {
        if !range.is_empty() {
            let header = Header { agreement, step: 0, count: 0, first: 0, end: 0 };
            owned.names.push(create(tier, &name(&job.name, range), layout(range), &header)?);
        }
    }
    barrier(tier, job, "start")?;
    let mut regions = Vec::new();
    for (number, range) in parts.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        let is_own = number / of_member == usize::from(job.member);
        let sharing = ranges.iter().filter(|thread| !overlap(thread, range).is_empty()).count();
        let access = Access { is_own, is_shared: sharing > 1 };
        regions.push(map(tier, &name(&job.name, range), range.clone(), (layout(range), access), agreement)?);
    }
    let member = Arc::new(Member {
        tier: tier.clone(),
        cells: (0..edges.vertices()).map(|_| AtomicU64::new(P::NONE.to_bits())).collect(),
        inboxes: regions.iter().map(|_| RwLock::default()).collect(),
        meeting: Meeting::new(tier.host(), job.threads),
        program,
        job: job.clone(),
        watch,
        agreement,
        ranges,
        regions,
        scattering: AtomicU64::new(0),
        steps: AtomicU32::new(0),
        totals: Mutex::new(Totals { data: Vec::new(), messages: 0, gathered: 0, built: 0, stepped: 0 }),
    });
    let begun = member.now();
    let mut tasks = Vec::new();
    for thread in 0..job.threads {
        let (own, edges) = (Arc::clone(&member), Arc::clone(&edges));
        let body = Box::new(move || {
            let mut ending = Ending { member: &own, is_well: false };
            ending.is_well = match Worker::run(&own, thread, edges) {
                Ok(()) => true,
                Err(Stop::Failed(error)) => {
                    own.meeting.fail(Some(*error));
                    true
                }
                Err(Stop::Ended) => true,
            };
        });
        match tier.host().spawn("graph", body) {
            Ok(task) => tasks.push(task),
            Err(error) => {
                member.meeting.fail(Some(error.into()));
                break;
            }
        }
    }
    drop(edges);
    for task in tasks {
        task.join();
    }
    if let Some(failure) = member.meeting.take_failure() {
        return Err(failure.unwrap_or(GraphError::Panicked));
    }
    Ok(outcome(&member, begun))
}

fn outcome<T: AnyTier, P: Program>(member: &Member<T, P>, begun: Nanos) -> Outcome<P::Data> {
    let mut totals = member.totals();
    totals.data.sort_by_key(|(range, _)| range.start);
    let first = totals.data.first().map_or(0, |(range, _)| range.start);
    Outcome {
        first,
        data: std::mem::take(&mut totals.data).into_iter().flat_map(|(_, data)| data).collect(),
        steps: member.steps.load(Ordering::Relaxed),
        messages: totals.messages,
        gathered: totals.gathered,
        building: Duration::from_nanos(totals.built.saturating_sub(begun)),
        stepping: Duration::from_nanos(totals.stepped.saturating_sub(totals.built)),
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

/// Ends the meeting if a thread panics.
struct Ending<'a, T: AnyTier, P: Program> {
    member: &'a Member<T, P>,
    is_well: bool,
}

impl<T: AnyTier, P: Program> Drop for Ending<'_, T, P> {
    fn drop(&mut self) {
        if !self.is_well {
            self.member.meeting.fail(None);
        }
    }
}
