//! Minimal RPC over datagrams: senders with one request in flight each, and server threads with one queue
//! pair each, which receive a request, answer it, and repost its RECV. Measures the share of the server's
//! processors that the verbs library uses.
//!
//! No message is lost, since there are as many RECVs as senders. There are no retransmissions and no
//! congestion control.

use crate::measured_run::{CourseError, FOREVER, MeasuredRun, Phase, cluster, cost_as, not_zero, thread};
use dunlin_fabric::{
    Access, Address, AddressHandleId, Arena, Completion, CompletionQueueId, Data, Endpoint, Fabric, Host,
    Link, Listener, Nanos, Operation, QueuePairConfig, QueuePairId, ReceiveTarget, Scheme, Signal, Site,
    Task, ThreadDomain, Transport, WaitMode, Waker, Work, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{Sim, SimDomain, SimLink, SimMemory, SimWaker};
use dunlin_rnic_model::Profile;
use std::sync::Arc;

/// A load of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Profile of all hosts.
    pub profile: String,
    /// Number of sender hosts.
    pub client_hosts: usize,
    /// Number of senders, each a thread with one request in flight, distributed over the server's threads.
    pub senders: usize,
    /// Threads of the server, each on its own core.
    pub threads: usize,
    /// Bytes of a request and of its answer, at least 4.
    pub bytes: u32,
    /// Time from the start to the measurement, in nanoseconds.
    pub warm_up: Nanos,
    /// Measured time, in nanoseconds.
    pub measured: Nanos,
    /// Virtual time after which the run is aborted, in nanoseconds.
    pub limit: Nanos,
}

/// The result of a datagram load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DatagramsOutcome {
    /// Answered requests.
    pub calls: u64,
    /// Measured time, in nanoseconds.
    pub time_ns: Nanos,
    /// Share of the server threads' time spent in the verbs library, empty polls included.
    pub verbs_share: f64,
    /// Share of the server threads' time without empty polls that the verbs library uses.
    pub verbs_share_of_work: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Most completions per poll.
const AT_ONCE: usize = 16;
/// Requests between two signaled ones.
const SIGNAL_EVERY: u64 = 16;

/// Time of server threads by activity.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    calls: u64,
    all: Nanos,
    verbs: Nanos,
    in_vain: Nanos,
}

#[derive(Debug, Default)]
struct Gathered {
    spent: Spent,
    wakers: Vec<SimWaker>,
}

/// A thread's datagram queue pair.
pub(crate) struct End {
    pub(crate) domain: SimDomain,
    pub(crate) pair: QueuePairId,
    pub(crate) sends: CompletionQueueId,
    pub(crate) receives: CompletionQueueId,
    arena: Arena<SimMemory>,
    /// Bytes before a message in its RECV.
    pub(crate) headroom: usize,
    bytes: usize,
    depth: u64,
    /// Numbers of messages sent, and of those known to be complete.
    pub(crate) posted: u64,
    pub(crate) done: u64,
}

impl End {
    /// Creates the queue pair with this number of RECVs posted, each of `bytes`.
    pub(crate) fn new(sim: &Sim, receives: usize, bytes: u32) -> Result<End, CourseError> {
        let mut domain = sim.domain().map_err(thread)?;
        let depth = receives.max(64) as u32;
        let send_queue = domain.create_completion_queue(depth, false).map_err(thread)?;
        let receive_queue = domain.create_completion_queue(depth, false).map_err(thread)?;
        let config = QueuePairConfig {
            transport: Transport::UnreliableDatagram,
            max_send: depth,
            max_receive: depth,
            ..QueuePairConfig::reliable(send_queue, receive_queue)
        };
        let pair = domain.create_queue_pair(&config).map_err(thread)?;
        let headroom = sim.capabilities().datagram_headroom as usize;
        let whole = (headroom + bytes as usize).next_power_of_two().max(64);
        let memory = sim.register((whole * receives) as u64, Access::LOCAL).map_err(thread)?;
        let arena = Arena::new(memory).map_err(thread)?;
        let mut end = End {
            domain,
            pair,
            sends: send_queue,
            receives: receive_queue,
            arena,
            headroom,
            bytes: bytes as usize,
            depth: depth.into(),
            posted: 0,
            done: 0,
        };
        for _ in 0..receives {
            let buffer = end.arena.reserve(headroom + bytes as usize).map_err(thread)?;
            end.domain
                .post_receive(ReceiveTarget::QueuePair(pair), WorkId(0), Some(buffer))
                .map_err(thread)?;
        }
        Ok(end)
    }

    /// Exchanges endpoints over a link; returns the peer's address handle.
    pub(crate) fn meet(&mut self, link: &SimLink) -> Result<AddressHandleId, CourseError> {
        let endpoint = self.domain.endpoint(self.pair, link).map_err(thread)?;
        link.send(&endpoint.0).map_err(thread)?;
        let remote = Endpoint(link.receive(FOREVER).map_err(thread)?);
        self.domain.create_address_handle(self.pair, link, &remote).map_err(thread)
    }

    fn send(&mut self, to: AddressHandleId, message: &[u8]) -> Result<(), CourseError> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(SIGNAL_EVERY);
        let data = Data::Inline(&[message]);
        let operation = Operation::Send { data, immediate: None, to: Some(to) };
        self.domain
            .post(self.pair, WorkRequest { id: WorkId(self.posted), operation, signaled })
            .map_err(thread)
    }

    /// Polls for send completions once half of the send queue may be occupied.
    fn make_room(&mut self, found: &mut Vec<Completion<SimMemory>>) {
        if self.posted - self.done >= self.depth / 2 {
            self.domain.poll(self.sends, found, AT_ONCE);
            // Each completion covers the unsignaled sends before it.
            self.done += found.len() as u64 * SIGNAL_EVERY;
            found.clear();
        }
    }

    fn recycle(&mut self, completion: Completion<SimMemory>) -> Result<(), CourseError> {
        let target = ReceiveTarget::QueuePair(self.pair);
        self.domain.post_receive(target, completion.id, completion.buffer).map_err(thread)
    }
}

impl Datagrams {
    fn check(&self) -> Result<(), CourseError> {
        not_zero([
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of senders", self.senders as u64),
            ("the number of server threads", self.threads as u64),
            ("the measured time", self.measured),
        ])?;
        if self.bytes < 4 {
            let (what, value) = ("the size of a request", self.bytes.into());
            return Err(CourseError::Nothing { what, value });
        }
        Ok(())
    }

    /// Runs the load.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<DatagramsOutcome, CourseError> {
        self.check()?;
        let mut settings = cluster(self.client_hosts + 1, self.senders + self.threads + 16, self.limit);
        cost_as(&mut settings, Profile::built_in(&self.profile)?, 1);
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Gathered>>| load.play(sim, course);
        let (gathered, trace_hash) = MeasuredRun::run(settings, seed, play)?;
        let Spent { calls, all, verbs, in_vain } = gathered.spent;
        let share = |of: Nanos, all: Nanos| of as f64 / all.max(1) as f64;
        Ok(DatagramsOutcome {
            calls,
            time_ns: all / self.threads as u64,
            verbs_share: share(verbs + in_vain, all),
            verbs_share_of_work: share(verbs, all.saturating_sub(in_vain)),
            trace_hash,
        })
    }

    fn play(&self, sim: &Sim, course: &Arc<MeasuredRun<Gathered>>) -> Result<(), CourseError> {
        let host = sim.host();
        let (news, start) = (host.signal(), host.signal());
        let mut tasks: Vec<Task> = Vec::new();
        for number in 0..self.threads {
            let address = Address::new(Scheme::Sim, &format!("datagrams-{number}")).map_err(thread)?;
            let listener = sim.listen(&address).map_err(thread)?;
            let mine = (self.senders + self.threads - 1 - number) / self.threads;
            let server =
                Server { sim: sim.clone(), course: Arc::clone(course), load: self.clone(), senders: mine };
            let news = news.clone();
            let body = move || {
                let course = Arc::clone(&server.course);
                course.ended(server.serve(&listener, &news));
                news.raise();
            };
            tasks.push(host.spawn("server", Box::new(body)).map_err(thread)?);
        }
        let processes: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        for number in 0..self.senders {
            let address =
                Address::new(Scheme::Sim, &format!("datagrams-{}", number % self.threads)).map_err(thread)?;
            let sim = processes[number % processes.len()].clone();
            let (course, bytes, start) = (Arc::clone(course), self.bytes, start.clone());
            let host = sim.host().clone();
            let body = move || {
                let result = send_on_and_on(&sim, &address, bytes, &course, &start);
                course.ended(result);
            };
            tasks.push(host.spawn("sender", Box::new(body)).map_err(thread)?);
        }
        loop {
            let seen = news.seen();
            if course.may_begin(self.threads) {
                break;
            }
            news.wait(seen, FOREVER);
        }
        start.raise();
        host.sleep(host.now() + self.warm_up);
        // Waiting threads are woken, so that all start to count at the same time.
        let wakers = std::mem::take(&mut course.gathered().wakers);
        course.count();
        wakers.iter().for_each(Waker::wake);
        host.sleep(host.now() + self.measured);
        course.end();
        wakers.iter().for_each(Waker::wake);
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }
}

/// One thread of the server.
struct Server {
    sim: Sim,
    course: Arc<MeasuredRun<Gathered>>,
    load: Datagrams,
    senders: usize,
}

impl Server {
    fn serve<L>(self, listener: &L, news: &impl Signal) -> Result<(), CourseError>
    where
        L: Listener<Link = SimLink>,
    {
        let host = self.sim.host().clone();
        // Room for all requests that can be in flight.
        let mut end = End::new(&self.sim, self.senders.max(1) * 2, self.load.bytes)?;
        self.course.gathered().wakers.push(end.domain.waker());
        let mut links = Vec::new();
        for _ in 0..self.senders {
            let link = listener.accept(FOREVER).map_err(thread)?;
            let handle = end.meet(&link)?;
            // The sender includes this handle in its requests, to identify the receiver of the answer.
            link.send(&handle.0.to_le_bytes()).map_err(thread)?;
            links.push(link);
        }
        self.course.is_ready();
        news.raise();
        let mut found = Vec::with_capacity(AT_ONCE);
        let mut answer = vec![0u8; self.load.bytes as usize];
        let mut spent = Spent::default();
        let mut since = None;
        loop {
            match (self.course.phase(), since) {
                (Phase::Counting, None) => {
                    (since, spent) = (Some(self.sim.time()), Spent::default());
                }
                (Phase::Over, began) => {
                    if let Some(began) = began {
                        spent.all = self.sim.time() - began;
                        let mut gathered = self.course.gathered();
                        gathered.spent.calls += spent.calls;
                        gathered.spent.all += spent.all;
                        gathered.spent.verbs += spent.verbs;
                        gathered.spent.in_vain += spent.in_vain;
                    }
                    return Ok(());
                }
                _ => {}
            }
            host.checkpoint(Site::WorkerLoop);
            let armed = end.domain.arm(WaitMode::Busy);
            let before = self.sim.time();
            let count = end.domain.poll(end.receives, &mut found, AT_ONCE);
            if count == 0 {
                if self.course.phase() != Phase::Over {
                    // The thread would poll continuously; the simulator computes that cost from the elapsed
                    // time.
                    end.domain.wait(armed, FOREVER);
                }
                spent.in_vain += self.sim.time() - before;
                continue;
            }
            end.domain.disarm(armed);
            spent.verbs += self.sim.time() - before;
            for completion in found.drain(..) {
                spent.calls += 1;
                let Some(buffer) = &completion.buffer else { continue };
                let message = &buffer[end.headroom..];
                let handle = message.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                host.charge(Work::ParseMessage, 1);
                host.charge(Work::Dispatch, 1);
                host.charge(Work::BuildMessage, 1);
                host.charge(Work::CopyBytes, end.bytes as u32);
                answer[..4].copy_from_slice(&handle.to_le_bytes());
                let before = self.sim.time();
                end.send(AddressHandleId(handle), &answer)?;
                end.recycle(completion)?;
                spent.verbs += self.sim.time() - before;
            }
            let before = self.sim.time();
            end.make_room(&mut found);
            spent.verbs += self.sim.time() - before;
        }
    }
}

/// Runs one sender: a request, its answer, the next request.
fn send_on_and_on(
    sim: &Sim,
    address: &Address,
    bytes: u32,
    course: &MeasuredRun<Gathered>,
    start: &impl Signal,
) -> Result<(), CourseError> {
    let mut end = End::new(sim, 4, bytes)?;
    let link = sim.dial(address, FOREVER).map_err(thread)?;
    let to = end.meet(&link)?;
    let mut request = vec![0u8; bytes as usize];
    let name = link.receive(FOREVER).map_err(thread)?;
    request[..4].copy_from_slice(name.first_chunk::<4>().unwrap_or(&[0; 4]));
    start.wait(0, FOREVER);
    let mut found = Vec::new();
    while course.phase() != Phase::Over {
        end.send(to, &request)?;
        loop {
            let armed = end.domain.arm(WaitMode::Busy);
            if end.domain.poll(end.receives, &mut found, 1) > 0 {
                end.domain.disarm(armed);
                break;
            }
            // The server's threads stop with the requests that they have received, so later ones get no
            // answer.
            let until = sim.host().now() + 1_000_000;
            if end.domain.wait(armed, until) == dunlin_fabric::Wake::TimedOut && course.phase() == Phase::Over
            {
                return Ok(());
            }
        }
        for completion in found.drain(..) {
            end.recycle(completion)?;
        }
        end.make_room(&mut found);
    }
    Ok(())
}
