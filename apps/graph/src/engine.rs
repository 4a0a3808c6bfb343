//! A member of a job: its regions, its threads, and their steps.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::job::{Job, Outcome, Step, Watch};
use crate::layout::{Header, Layout, name};
use crate::meeting::Meeting;
use crate::partition::{Weights, overlap};
use crate::program::{Message, Plain, Program};
use crate::regions::{Access, Owned, Region, create, map};
use crate::threads::{Meets, Totals, run_threads};
use crate::worker::Worker;
use dunlin_fabric::{Host, Nanos};
use dunlin_tier_node::AnyTier;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The messages of a region in this step, as a member has read them.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) count: u32,
    /// The part of all vertices that may have messages.
    pub(crate) window: Range<u32>,
    /// The vertices that have one, unless they are many.
    pub(crate) few: Option<Vec<u32>>,
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

impl<T: AnyTier, P: Program> Meets for Member<T, P> {
    type Host = T::Host;

    fn meeting(&self) -> &Meeting<T::Host, GraphError> {
        &self.meeting
    }
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
/// others then end with an error too: at once if this member's process ends while it waits at a barrier, otherwise
/// after [`patience`](Job::patience).
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
        totals: Mutex::default(),
    });
    let begun = member.now();
    run_threads(tier.host(), job.threads, &member, edges, |own, thread, edges| {
        Worker::run(own, thread, edges)
    })?;
    let (steps, mut totals) = (member.steps.load(Ordering::Relaxed), member.totals());
    Ok(totals.outcome(steps, begun))
}
