//! The engine on shared memory (LITE section 8.3, LITE-Graph-DSM): the same programs, whose messages are plain loads and
//! stores.
//!
//! ```text
//! page of member 0, member 1, ...    a line for each thread and parity of a step: step, messages, first, end
//! messages of even steps             a word for each vertex
//! messages of odd steps              a word for each vertex
//! data                               words for each vertex, after the last step
//! ```
//!
//! Ranges of members begin at multiples of the words of a page, so no page has two writers. In a step a member acquires the
//! pages of its messages, its threads store those that have changed, and the release and a barrier follow. Threads then
//! load messages where they lie.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::job::{Job, Outcome, Step, Watch};
use crate::local::{Local, is_sparse};
use crate::meeting::Meeting;
use crate::partition::Weights;
use crate::program::{Message, Plain, Program};
use crate::space::{PAGE_WORDS, SharedSpace, Space};
use crate::threads::{Meets, Stop, Totals, run_threads};
use dunlin_app_memory::MemoryConfig;
use dunlin_fabric::Host;
use dunlin_tier_node::{AnyLists, AnyServices};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Words of a line: agreement, step, messages, first vertex, end.
const LINE: usize = 8;

/// The places of words.
#[derive(Clone, Copy, Debug)]
struct Places {
    members: usize,
    /// Words of the messages of a step, whole pages.
    messages: usize,
    /// Words of the data of a vertex.
    each: usize,
}

impl Places {
    fn new<P: Program>(members: u16, vertices: u32) -> Places {
        let messages = (vertices as usize).next_multiple_of(PAGE_WORDS);
        Places { members: members.into(), messages, each: P::Data::BYTES.div_ceil(8) }
    }

    fn line(self, member: usize, thread: usize, step: u32) -> usize {
        member * PAGE_WORDS + (2 * thread + step as usize % 2) * LINE
    }

    fn message(self, step: u32, vertex: u32) -> usize {
        self.members * PAGE_WORDS + (step as usize % 2) * self.messages + vertex as usize
    }

    fn data(self, vertex: u32) -> usize {
        self.members * PAGE_WORDS + 2 * self.messages + vertex as usize * self.each
    }

    fn words(self) -> usize {
        self.data(0) + self.messages * self.each
    }
}

/// Returns the pages of a shared memory that a job with this program needs.
pub fn shared_pages<P: Program>(members: u16, vertices: u32) -> u32 {
    let words = Places::new::<P>(members, vertices).words();
    u32::try_from(words.div_ceil(PAGE_WORDS)).unwrap_or(u32::MAX).max(members.into())
}

/// The most threads of a member: each has two lines of its page.
const MAX_THREADS: u16 = (PAGE_WORDS / LINE / 2) as u16;

/// The state that the threads of a member share.
struct Member<S: Space, P: Program, H: Host> {
    space: Arc<S>,
    host: H,
    program: P,
    job: Job,
    watch: Arc<dyn Watch>,
    agreement: u64,
    places: Places,
    vertices: u32,
    /// The ranges of all threads, member by member.
    ranges: Vec<Range<u32>>,
    meeting: Meeting<H, GraphError>,
    scattering: AtomicU64,
    steps: AtomicU32,
    totals: Mutex<Totals<P::Data>>,
}

/// Cuts the vertices into the ranges of all threads; those of a member begin and end at pages of messages.
fn cut(weights: &Weights, job: &Job, vertices: u32) -> Vec<Range<u32>> {
    let threads = usize::from(job.threads);
    let fine = weights.cut(usize::from(job.members) * threads);
    let page = |vertex: u32| (vertex.next_multiple_of(PAGE_WORDS as u32)).min(vertices);
    fine.iter()
        .enumerate()
        .map(|(at, range)| {
            let member = &fine[at / threads * threads..][..threads];
            let bounds = page(member[0].start)..page(member[threads - 1].end);
            let start =
                if at % threads == 0 { bounds.start } else { range.start.clamp(bounds.start, bounds.end) };
            let end =
                if at % threads == threads - 1 { bounds.end } else { range.end.clamp(start, bounds.end) };
            start..end.max(start)
        })
        .collect()
}

impl<S: Space, P: Program, H: Host> Meets for Member<S, P, H> {
    type Host = H;

    fn meeting(&self) -> &Meeting<H, GraphError> {
        &self.meeting
    }
}

impl<S: Space, P: Program, H: Host> Member<S, P, H> {
    fn totals(&self) -> MutexGuard<'_, Totals<P::Data>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vertices of this member.
    fn own(&self) -> Range<u32> {
        let threads = usize::from(self.job.threads);
        let own = &self.ranges[usize::from(self.job.member) * threads..][..threads];
        own[0].start..own[threads - 1].end
    }

    /// Lets all threads of the member store words of some ranges, and waits until all members have released theirs.
    fn stored(
        &self,
        thread: usize,
        ranges: &[Range<usize>],
        store: impl FnOnce(&[AtomicU64]),
    ) -> Result<(), Stop> {
        let failed = |what| move |source| GraphError::Shared { what, source };
        let ranges: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        let held = match thread {
            0 => Some(self.space.acquire(&ranges).map_err(failed("an acquisition"))?),
            _ => None,
        };
        self.meeting.meet(|| Ok(()))?;
        store(self.space.words());
        self.meeting.meet(|| Ok(()))?;
        if let Some(held) = held {
            self.space.release(held, &ranges).map_err(failed("a release"))?;
            self.space.barrier().map_err(failed("a barrier"))?;
        }
        self.meeting.meet(|| Ok(()))?;
        Ok(())
    }
}

/// Runs a job on a shared memory as one of its members; all members call this with the same graph, program and
/// description. The memory has [`shared_pages`] pages or more, and nobody else uses it. Blocks until all have ended.
/// `Job::regions` has no meaning here.
///
/// # Errors
/// Another member differs, the memory fails, what it holds makes no sense, or the job was stopped. If a member has ended,
/// the others mostly hear of it as the home of pages that they acquire ([`HomeEnded`]), or from the barrier.
///
/// [`HomeEnded`]: dunlin_app_memory::MemoryError::HomeEnded
pub fn run_shared<S: Space, P: Program, H: Host>(
    host: &H,
    space: &Arc<S>,
    job: &Job,
    edges: Arc<Edges>,
    program: P,
    watch: Arc<dyn Watch>,
) -> Result<Outcome<P::Data>, GraphError> {
    job.check()?;
    let setting = |what, value, must| Err(GraphError::Setting { what, value, must });
    if job.threads > MAX_THREADS {
        return setting("the number of threads on shared memory", job.threads.into(), "1 to 32");
    }
    let (vertices, places) = (edges.vertices(), Places::new::<P>(job.members, edges.vertices()));
    if space.words().len() < places.words() {
        let what = "the number of words of the shared memory";
        return setting(what, space.words().len() as u64, "as many as shared_pages says");
    }
    let agreement = job.agreement(&edges, &program);
    let ranges = cut(&Weights::of(&edges), job, vertices);
    let begun = host.now();
    let member = Arc::new(Member {
        space: Arc::clone(space),
        host: host.clone(),
        meeting: Meeting::new(host, job.threads),
        program,
        job: job.clone(),
        watch,
        agreement,
        places,
        vertices,
        ranges,
        scattering: AtomicU64::new(0),
        steps: AtomicU32::new(0),
        totals: Mutex::default(),
    });
    run_threads(host, job.threads, &member, edges, |own, thread, edges| Worker::run(own, thread, edges))?;
    let (steps, mut totals) = (member.steps.load(Ordering::Relaxed), member.totals());
    Ok(totals.outcome(steps, begun))
}

/// Runs a job on a shared memory of its own, which its members open for it under its name: mapped at `address`, or without
/// one in copies. Otherwise as [`run_shared`].
///
/// # Errors
/// As [`run_shared`], and if the memory cannot be opened: its name is taken, a node has no room, the process may not map it.
pub fn run_in_memory<T: AnyServices + AnyLists, P: Program>(
    tier: &T,
    address: Option<u64>,
    job: &Job,
    edges: Arc<Edges>,
    program: P,
    watch: Arc<dyn Watch>,
) -> Result<Outcome<P::Data>, GraphError> {
    job.check()?;
    let pages = shared_pages::<P>(job.members, edges.vertices());
    let mut config = MemoryConfig::new(job.name.clone(), pages, job.members, job.member);
    (config.patience, config.address) = (job.patience, address);
    let failed = |what| move |source| GraphError::Shared { what, source };
    let space = Arc::new(SharedSpace::open(tier, &config).map_err(failed("the opening"))?);
    let outcome = run_shared(tier.host(), &space, job, edges, program, watch)?;
    // The threads have ended, so nobody else has it.
    Arc::into_inner(space).map_or(Ok(()), SharedSpace::close).map_err(failed("the end"))?;
    Ok(outcome)
}

/// Returns the smallest range with both.
fn hull(one: &Range<u32>, other: &Range<u32>) -> Range<u32> {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other.clone(),
        (_, true) => one.clone(),
        _ => one.start.min(other.start)..one.end.max(other.end),
    }
}

/// A thread of a member.
struct Worker<'a, S: Space, P: Program, H: Host> {
    member: &'a Member<S, P, H>,
    thread: usize,
    local: Local<P>,
    /// The vertices that may have messages, by thread of all members.
    windows: Vec<Range<u32>>,
    /// Those that had some two steps before, whose words say now that they have none.
    before: [Vec<Range<u32>>; 2],
}

impl<S: Space, P: Program, H: Host> Worker<'_, S, P, H> {
    fn run(member: &Member<S, P, H>, thread: u16, edges: Arc<Edges>) -> Result<(), Stop> {
        let thread = usize::from(thread);
        let range = member.ranges[usize::from(member.job.member * member.job.threads) + thread].clone();
        let local = Local::start(&member.program, &edges, range)?;
        drop(edges);
        // In the first step of each parity all words change: none says that it is no message.
        let before = [member.ranges.clone(), member.ranges.clone()];
        let mut worker = Worker { member, thread, local, windows: Vec::new(), before };
        member.meeting.meet(|| {
            member.totals().built = member.host.now();
            Ok(())
        })?;
        let mut step = 0;
        while member.program.steps().is_none_or(|steps| step < steps) {
            step += 1;
            worker.publish(step)?;
            worker.receive(step)?;
            let scattering = member.scattering.load(Ordering::Relaxed);
            if P::CACHES && scattering == 0 {
                break;
            }
            let begun = worker.local.gathered;
            let words = member.space.words();
            let load = |source| words[member.places.message(step, source)].load(Ordering::Relaxed);
            if is_sparse::<P>(scattering, member.vertices.into()) {
                let windows = std::mem::take(&mut worker.windows);
                let senders = |one: &mut dyn FnMut(u32)| windows.iter().cloned().flatten().for_each(one);
                worker.local.push(&member.program, senders, load);
            } else {
                worker.local.pull(&member.program, load);
            }
            member.watch.worked(worker.local.gathered - begun, worker.local.data.len() as u64);
        }
        worker.end()
    }

    /// Stores the messages of this thread's vertices, and the line that says where they are.
    fn publish(&mut self, step: u32) -> Result<(), Stop> {
        let Worker { member, thread, local, .. } = self;
        let (places, own) = (member.places, member.own());
        let own_line = places.line(member.job.member.into(), 0, 0);
        let ranges =
            [own_line..own_line + PAGE_WORDS, places.message(step, own.start)..places.message(step, own.end)];
        member.stored(*thread, &ranges, |words| {
            let (mut count, mut window) = (0u64, None::<Range<u32>>);
            for (vertex, message) in local.rows.range.clone().zip(&local.outbox) {
                if !P::CACHES || *message != P::NONE {
                    count += 1;
                    window = Some(window.map_or(vertex, |window| window.start)..vertex + 1);
                }
                let (word, bits) = (&words[places.message(step, vertex)], message.to_bits());
                // A store of the same word makes its page one that changed.
                if word.load(Ordering::Relaxed) != bits {
                    word.store(bits, Ordering::Relaxed);
                }
            }
            let window = window.unwrap_or_default();
            let line = places.line(member.job.member.into(), *thread, step);
            let said = [member.agreement, step.into(), count, window.start.into(), window.end.into()];
            for (word, value) in words[line..].iter().zip(said) {
                word.store(value, Ordering::Relaxed);
            }
        })
    }

    /// Reads the lines of all threads, and has the messages that they name ready.
    fn receive(&mut self, step: u32) -> Result<(), Stop> {
        let Worker { member, thread, windows, before, .. } = self;
        let (places, threads) = (member.places, usize::from(member.job.threads));
        let failed = |source| GraphError::Shared { what: "a read of messages", source };
        if *thread == 0 {
            member.space.fetch(0..places.members * PAGE_WORDS).map_err(failed)?;
        }
        member.meeting.meet(|| Ok(()))?;
        let words = member.space.words();
        windows.clear();
        let mut scattering = 0;
        for (at, range) in member.ranges.iter().enumerate() {
            let line = places.line(at / threads, at % threads, step);
            let [agreement, of_step, count, first, end] =
                std::array::from_fn(|word| words[line + word].load(Ordering::Relaxed));
            let whose = || format!("member {}", at / threads);
            if agreement != member.agreement {
                return Err(GraphError::Disagree { region: whose() }.into());
            }
            let is_empty = count == 0 && end == 0;
            let is_within = first >= range.start.into() && end <= range.end.into() && first <= end;
            if of_step != step.into() || !is_empty && (!is_within || count > end - first) {
                let what = format!("{count} messages from {first} to {end} of step {of_step}, not of {step}");
                return Err(GraphError::Damaged { region: whose(), what }.into());
            }
            scattering += count;
            let window = first as u32..end as u32;
            let changed =
                hull(&std::mem::replace(&mut before[step as usize % 2][at], window.clone()), &window);
            windows.push(window);
            // Each thread fetches its share for all.
            if at % threads == *thread
                && !changed.is_empty()
                && at / threads != usize::from(member.job.member)
            {
                let range = places.message(step, changed.start)..places.message(step, changed.end);
                member.space.fetch(range).map_err(failed)?;
            }
        }
        member.meeting.meet(|| {
            if member.watch.is_stopped() {
                return Err(GraphError::Stopped);
            }
            member.scattering.store(scattering, Ordering::Relaxed);
            if scattering > 0 {
                member.totals().messages += scattering;
                member.steps.store(step, Ordering::Relaxed);
                member.watch.step(Step { number: step, scattering });
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Stores the data of this thread's vertices, and loads those of all if the member collects.
    fn end(mut self) -> Result<(), Stop> {
        let Worker { member, thread, local, .. } = &mut self;
        {
            let mut totals = member.totals();
            totals.gathered += local.gathered;
            totals.stepped = totals.stepped.max(member.host.now());
        }
        let (places, own) = (member.places, member.own());
        let mut bytes = vec![0; places.each * 8];
        let data = places.data(own.start)..places.data(own.end);
        member.stored(*thread, std::slice::from_ref(&data), |words| {
            for (vertex, data) in local.rows.range.clone().zip(&local.data) {
                data.put(&mut bytes[..P::Data::BYTES]);
                for (word, bytes) in words[places.data(vertex)..].iter().zip(bytes.as_chunks::<8>().0) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
                }
            }
        })?;
        if !member.job.collects {
            member.totals().data.push((local.rows.range.clone(), std::mem::take(&mut local.data)));
        } else if *thread == 0 {
            let failed = |source| GraphError::Shared { what: "a read of results", source };
            let all = places.data(0)..places.data(member.vertices);
            member.space.fetch(all.clone()).map_err(failed)?;
            let mut data = Vec::with_capacity(member.vertices as usize);
            for words in member.space.words()[all].chunks_exact(places.each) {
                for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *place = word.load(Ordering::Relaxed).to_le_bytes();
                }
                data.push(P::Data::take(&bytes[..P::Data::BYTES]));
            }
            member.totals().data.push((0..member.vertices, data));
        }
        Ok(())
    }
}
