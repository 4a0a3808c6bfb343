//! One side of a measured queue pair, and the loop that posts requests.

use crate::messages::{Hello, VERSION};
use crate::spread::Connections;
use crate::{LARGEST, MOST_WINDOW, RatesError};
use dunlin_fabric::{
    Access, Arena, Buffer, Completion, CompletionQueueId, CompletionStatus, Data, Endpoint, Fabric, Host,
    Link as _, Nanos, Operation, PostError, QueuePairConfig, QueuePairId, Region, RegionKey, RemoteSlice,
    ThreadDomain, WaitMode, WorkId, WorkRequest,
};

/// Size of the remotely accessed memory, bytes: larger than a core's L1 cache, smaller than its L2.
pub(super) const AREA: usize = 512 * 1024;
pub(super) const LINE: u32 = 64;
/// Signaling interval: one WRITE in this number is signaled, so that its completion frees the send queue.
const SIGNALED: u32 = 16;
/// Number of posting rounds between two readings of the clock and polls of the completion queue.
const ROUNDS: u32 = 16;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// The parameters of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) window: u32,
    /// Duration, in nanoseconds.
    pub(super) slice: Nanos,
    /// Whether to stop after one pass over the memory.
    pub(super) once: bool,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) operations: u64,
    pub(super) nanos: u64,
}

impl Slice {
    /// Returns the operations per second.
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.nanos.max(1) as f64
    }
}

pub(super) struct End<F: Fabric> {
    pub(super) domain: F::Domain,
    completions: CompletionQueueId,
    queue_pair: QueuePairId,
    /// Further connections to the same side.
    pub(super) connections: Option<Connections>,
    /// The local memory that the other side READs or WRITEs.
    area: Region<F::Memory>,
    pub(super) arena: Arena<F::Memory>,
    /// The key of the other side's area.
    pub(super) key: RegionKey,
    pub(super) inline: u32,
    /// Payload of inline WRITEs, and destination of local reads of the area.
    pub(super) scratch: Vec<u8>,
    /// Buffers for READs that are not in use.
    free: Vec<Buffer<F::Memory>>,
    pub(super) arrived: Vec<Completion<F::Memory>>,
    place: u64,
    posted: u64,
    /// Number of posted requests whose completion is pending.
    under_way: u32,
    /// Whether the slice's last WRITE, which is signaled, was posted.
    closed: bool,
}

impl<F: Fabric> End<F> {
    /// Creates a queue pair, and memory that the other side can access. The returned greeting must be sent
    /// on the same link.
    pub(super) fn new(fabric: &F, link: &F::Link, access: Access) -> Result<(Self, Hello), RatesError> {
        let mut domain = fabric.domain()?;
        let completions = domain.create_completion_queue(2 * MOST_WINDOW, false)?;
        let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(completions, completions))?;
        let area = Region::new(fabric.register(AREA as u64, access)?);
        let RegionKey(key) = link.grant(area.memory(), access)?;
        let arena = u64::from(LARGEST) * u64::from(MOST_WINDOW) * 2;
        let arena = Arena::new(fabric.register(arena, Access::LOCAL)?)?;
        let Endpoint(endpoint) = domain.endpoint(queue_pair, link)?;
        let end = End {
            domain,
            completions,
            queue_pair,
            connections: None,
            area,
            arena,
            key: RegionKey(0),
            inline: fabric.capabilities().max_inline,
            scratch: vec![0x5a; AREA],
            free: Vec::new(),
            arrived: Vec::new(),
            place: 0,
            posted: 0,
            under_way: 0,
            closed: false,
        };
        Ok((end, Hello { version: VERSION, key, endpoint }))
    }

    /// Connects the queue pair to the other side, using its greeting.
    pub(super) fn connect(&mut self, link: &F::Link, theirs: &Hello) -> Result<(), RatesError> {
        if theirs.version != VERSION {
            return Err(RatesError::Foreign(format!("its version is {}, ours {VERSION}", theirs.version)));
        }
        self.key = RegionKey(theirs.key);
        Ok(self.domain.connect(self.queue_pair, link, &Endpoint(theirs.endpoint.clone()))?)
    }

    /// Writes the whole local area, which brings it into this core's cache.
    pub(super) fn rewrite(&mut self) {
        self.area.copy_in(0, &self.scratch);
    }

    /// Reads the whole local area.
    pub(super) fn look(&mut self) {
        self.area.copy_out(0, &mut self.scratch);
    }

    fn begin(&mut self, job: Job) -> Result<(), RatesError> {
        (self.place, self.posted, self.closed) = (0, 0, false);
        self.free.clear();
        if job.kind == Kind::Read {
            for _ in 0..job.window {
                self.free.push(self.arena.reserve(job.bytes as usize)?);
            }
        }
        Ok(())
    }

    /// Returns whether the job stops after one pass and has completed it.
    fn is_done(&self, job: Job) -> bool {
        job.once && self.posted >= AREA as u64 / u64::from(stride(job.bytes))
    }

    /// Posts one request if there is space. Returns whether it was posted.
    fn post(&mut self, job: Job, last: bool) -> Result<bool, RatesError> {
        let Job { kind, bytes, .. } = job;
        let offset = self.place;
        let signaled = last || self.posted.is_multiple_of(u64::from(SIGNALED));
        let operation = match kind {
            Kind::Read => {
                let Some(into) = self.free.pop() else { return Ok(false) };
                Operation::Read { from: RemoteSlice { key: self.key, offset, length: bytes }, into }
            }
            // Keep space for a signaled WRITE, so that a completion is always pending.
            Kind::Write if self.domain.send_room(self.queue_pair) <= u32::from(!signaled) => {
                return Ok(false);
            }
            Kind::Write if bytes <= self.inline => {
                let parts: &[&[u8]] = &[&self.scratch[..bytes as usize]];
                let data = Data::Inline(parts);
                let write = Operation::Write { data, key: self.key, offset, immediate: None };
                let request = WorkRequest { id: WorkId(0), operation: write, signaled };
                let posted = self.domain.post(self.queue_pair, request);
                return self.taken(posted, job, signaled);
            }
            Kind::Write => {
                let Ok(buffer) = self.arena.reserve(bytes as usize) else { return Ok(false) };
                Operation::Write { data: Data::Buffer(buffer), key: self.key, offset, immediate: None }
            }
        };
        let request = WorkRequest { id: WorkId(0), operation, signaled };
        let posted = self.domain.post(self.queue_pair, request);
        self.taken(posted, job, signaled || kind == Kind::Read)
    }

    fn taken(
        &mut self,
        posted: Result<(), PostError>,
        job: Job,
        completes: bool,
    ) -> Result<bool, RatesError> {
        match posted {
            Ok(()) => {}
            // The failed post consumed the buffer; replace it for READs.
            Err(PostError::QueueFull) => {
                if job.kind == Kind::Read {
                    self.free.push(self.arena.reserve(job.bytes as usize)?);
                }
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        self.posted += 1;
        self.under_way += u32::from(completes);
        self.place += u64::from(stride(job.bytes));
        if self.place + u64::from(job.bytes) > AREA as u64 {
            self.place = 0;
        }
        Ok(true)
    }

    /// Posts the last, signaled WRITE: its completion implies those of all earlier ones. Returns whether it
    /// has been posted.
    fn close(&mut self, job: Job) -> Result<bool, RatesError> {
        self.closed = self.closed || job.kind == Kind::Read || self.post(job, true)?;
        Ok(self.closed)
    }

    /// Processes completions and returns their number.
    fn poll(&mut self, job: Job) -> Result<usize, RatesError> {
        let count = self.domain.poll(self.completions, &mut self.arrived, MOST_WINDOW as usize);
        for completion in self.arrived.drain(..) {
            self.under_way -= 1;
            if completion.status != CompletionStatus::Success {
                let what = if job.kind == Kind::Read { "a READ" } else { "a WRITE" };
                return Err(RatesError::Failed { what, bytes: job.bytes, status: completion.status });
            }
            self.free.extend(completion.buffer);
        }
        Ok(count)
    }

    /// Waits for events, at most until `until`.
    pub(super) fn wait(&mut self, until: Nanos) {
        let armed = self.domain.arm(WaitMode::Busy);
        self.domain.wait(armed, until);
    }
}

/// Returns the distance between successive transfers of `bytes` bytes in the area; each starts on a cache
/// line.
fn stride(bytes: u32) -> u32 {
    bytes.next_multiple_of(LINE)
}

/// Runs a job on several queue pairs from this thread, until its time has passed or each has completed one
/// pass over its memory, and all completions have arrived.
pub(super) fn drive<F: Fabric>(
    host: &F::Host,
    ends: &mut [&mut End<F>],
    job: Job,
) -> Result<Slice, RatesError> {
    ends.iter_mut().try_for_each(|end| end.begin(job))?;
    let begin = host.now();
    let until = begin.saturating_add(job.slice);
    let (mut over, mut round) = (false, 0u32);
    loop {
        let mut busy = 0;
        for end in ends.iter_mut().filter(|_| !over) {
            if !end.is_done(job) && end.post(job, false)? {
                busy += 1;
            }
        }
        round = round.wrapping_add(1);
        let look = round.is_multiple_of(ROUNDS);
        if busy > 0 && job.window > 1 && !look {
            continue;
        }
        for end in ends.iter_mut() {
            busy += end.poll(job)?;
        }
        if busy > 0 && !look && !over {
            continue;
        }
        let now = host.now();
        over = over || (!job.once && now >= until) || ends.iter().all(|end| end.is_done(job));
        if over {
            let mut closed = true;
            for end in ends.iter_mut() {
                closed &= end.close(job)? && end.under_way == 0;
            }
            if closed {
                let operations = ends.iter().map(|end| end.posted).sum();
                return Ok(Slice { operations, nanos: now.saturating_sub(begin).max(1) });
            }
        }
        if busy == 0
            && let Some(end) = ends.iter_mut().find(|end| end.under_way > 0)
        {
            end.wait(now.saturating_add(1_000_000));
        }
    }
}
