//! RPC over datagrams, as small as it can be: senders with one request in flight each, and server threads with one queue
//! pair each, which take a request, answer it, and post its RECV again. It tells how much of the server's processors
//! goes into the verbs library.
//!
//! No message is lost here (there are as many RECVs as senders), so nothing is sent again, and nothing controls congestion.

use dunlin_fabric::{
    Access, Address, AddressHandleId, Arena, Completion, CompletionQueueId, Data, Endpoint, Fabric, Host,
    Link, Listener, Nanos, Operation, QueuePairConfig, QueuePairId, ReceiveTarget, Scheme, Signal, Site,
    Task, ThreadDomain, Transport, WaitMode, Waker, Work, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{
    MachineSettings, ModelTiming, Prices, RunError, Settings, Sim, SimDomain, SimLink, SimMemory, SimWaker,
    TimingSettings,
};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A load of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// The profile of all hosts.
    pub profile: String,
    /// Hosts of senders.
    pub client_hosts: usize,
    /// Senders, each a thread with one request in flight, dealt out over the server's threads.
    pub senders: usize,
    /// Threads of the server, on a core each.
    pub threads: usize,
    /// Bytes of a request and of its answer, at least 4.
    pub bytes: u32,
    /// From the start until it counts, in nanoseconds.
    pub warm_up: Nanos,
    /// For how long it counts.
    pub measured: Nanos,
    /// The virtual time after which the run is given up.
    pub limit: Nanos,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DatagramsOutcome {
    /// Requests answered.
    pub calls: u64,
    /// For how long they counted, in nanoseconds.
    pub time_ns: Nanos,
    /// The part of the server threads' time that went into the verbs library, polling in vain included.
    pub verbs_share: f64,
    /// The same, of the time in which they did not poll in vain.
    pub verbs_share_of_work: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Why it did not come to its end.
#[derive(Debug, Error)]
pub enum DatagramsError {
    /// It describes nothing that could run.
    #[error("{what} cannot be {value}")]
    Nothing {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// No such profile, or a bad one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The run did not end as it should.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A verbs call failed.
    #[error("a simulated thread cannot go on: {0}")]
    Verbs(String),
}

/// Completions that one poll takes at most.
const AT_ONCE: usize = 16;
/// Requests between two signaled ones.
const SIGNAL_EVERY: u64 = 16;
const FOREVER: Nanos = Nanos::MAX;

/// Where the time of server threads went.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    calls: u64,
    all: Nanos,
    verbs: Nanos,
    in_vain: Nanos,
}

#[derive(Default)]
struct Shared {
    spent: Spent,
    wakers: Vec<SimWaker>,
    error: Option<DatagramsError>,
}

/// What all threads of a run share. One of them runs at a time, so nobody ever waits for the lock.
#[derive(Clone, Default)]
struct Board {
    shared: Arc<Mutex<Shared>>,
    ready: Arc<AtomicU64>,
    phase: Arc<AtomicU64>,
}

const COUNTING: u64 = 1;
const OVER: u64 = 2;

impl Board {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> u64 {
        self.phase.load(Ordering::Relaxed)
    }

    /// Notes how a thread ended.
    fn ended(&self, result: Result<(), DatagramsError>) {
        if let Err(error) = result {
            self.lock().error.get_or_insert(error);
            self.phase.store(OVER, Ordering::Relaxed);
        }
    }
}

fn verbs(error: impl std::fmt::Display) -> DatagramsError {
    DatagramsError::Verbs(error.to_string())
}

/// A thread's datagram queue pair.
struct End {
    domain: SimDomain,
    pair: QueuePairId,
    sends: CompletionQueueId,
    receives: CompletionQueueId,
    arena: Arena<SimMemory>,
    /// Bytes in front of a message in its RECV.
    headroom: usize,
    bytes: usize,
    depth: u64,
    /// Sent, and known to be done.
    posted: u64,
    done: u64,
}

impl End {
    fn new(sim: &Sim, receives: usize, bytes: u32) -> Result<End, DatagramsError> {
        let mut domain = sim.domain().map_err(verbs)?;
        let depth = receives.max(64) as u32;
        let send_queue = domain.create_completion_queue(depth, false).map_err(verbs)?;
        let receive_queue = domain.create_completion_queue(depth, false).map_err(verbs)?;
        let config = QueuePairConfig {
            transport: Transport::UnreliableDatagram,
            max_send: depth,
            max_receive: depth,
            ..QueuePairConfig::reliable(send_queue, receive_queue)
        };
        let pair = domain.create_queue_pair(&config).map_err(verbs)?;
        let headroom = sim.capabilities().datagram_headroom as usize;
        let whole = (headroom + bytes as usize).next_power_of_two().max(64);
        let memory = sim.register((whole * receives) as u64, Access::LOCAL).map_err(verbs)?;
        let arena = Arena::new(memory).map_err(verbs)?;
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
            let buffer = end.arena.reserve(headroom + bytes as usize).map_err(verbs)?;
            end.domain
                .post_receive(ReceiveTarget::QueuePair(pair), WorkId(0), Some(buffer))
                .map_err(verbs)?;
        }
        Ok(end)
    }

    /// The way to the peer at the other end of a link.
    fn meet(&mut self, link: &SimLink) -> Result<AddressHandleId, DatagramsError> {
        let endpoint = self.domain.endpoint(self.pair, link).map_err(verbs)?;
        link.send(&endpoint.0).map_err(verbs)?;
        let remote = Endpoint(link.receive(FOREVER).map_err(verbs)?);
        self.domain.create_address_handle(self.pair, link, &remote).map_err(verbs)
    }

    fn send(&mut self, to: AddressHandleId, message: &[u8]) -> Result<(), DatagramsError> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(SIGNAL_EVERY);
        let data = Data::Inline(&[message]);
        let operation = Operation::Send { data, immediate: None, to: Some(to) };
        self.domain
            .post(self.pair, WorkRequest { id: WorkId(self.posted), operation, signaled })
            .map_err(verbs)
    }

    /// Looks for completions of what was sent, once half of the send queue may be taken.
    fn make_room(&mut self, found: &mut Vec<Completion<SimMemory>>) {
        if self.posted - self.done >= self.depth / 2 {
            self.domain.poll(self.sends, found, AT_ONCE);
            // Each stands for those before it too.
            self.done += found.len() as u64 * SIGNAL_EVERY;
            found.clear();
        }
    }

    fn recycle(&mut self, completion: Completion<SimMemory>) -> Result<(), DatagramsError> {
        let target = ReceiveTarget::QueuePair(self.pair);
        self.domain.post_receive(target, completion.id, completion.buffer).map_err(verbs)
    }
}

impl Datagrams {
    fn check(&self) -> Result<(), DatagramsError> {
        let wrong = |what, value: u64| Err(DatagramsError::Nothing { what, value });
        for (what, value) in [
            ("the number of client hosts", self.client_hosts),
            ("the number of senders", self.senders),
            ("the number of server threads", self.threads),
        ] {
            if value == 0 {
                return wrong(what, 0);
            }
        }
        if self.bytes < 4 {
            return wrong("the size of a request", self.bytes.into());
        }
        if self.measured == 0 {
            return wrong("the measured time", 0);
        }
        Ok(())
    }

    /// Runs it.
    ///
    /// # Errors
    /// A load of which nothing could come, and a run that did not end well.
    pub fn run(&self, seed: u64) -> Result<DatagramsOutcome, DatagramsError> {
        self.check()?;
        let profile = Arc::new(Profile::built_in(&self.profile)?);
        let hosts = self.client_hosts + 1;
        let defaults = Settings::default();
        let mut settings = Settings {
            machines: vec![MachineSettings::default(); hosts],
            limit: defaults.start.saturating_add(self.limit),
            max_tasks: self.senders + self.threads + 16,
            spurious: 0,
            preemption: 0,
            slack: 300,
            prices: Prices::of(&profile),
            ..defaults
        };
        settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
        let machines = vec![(Arc::clone(&profile), 1); hosts];
        settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
        let board = Board::default();
        let (load, played) = (self.clone(), board.clone());
        let report = Sim::run_with(settings, seed, move |sim| {
            let result = load.play(&sim, &played);
            played.ended(result);
        })?;
        let mut shared = board.lock();
        if let Some(error) = shared.error.take() {
            return Err(error);
        }
        let Spent { calls, all, verbs, in_vain } = shared.spent;
        let share = |of: Nanos, all: Nanos| of as f64 / all.max(1) as f64;
        Ok(DatagramsOutcome {
            calls,
            time_ns: all / self.threads as u64,
            verbs_share: share(verbs + in_vain, all),
            verbs_share_of_work: share(verbs, all.saturating_sub(in_vain)),
            trace_hash: report.trace_hash,
        })
    }

    fn play(&self, sim: &Sim, board: &Board) -> Result<(), DatagramsError> {
        let host = sim.host();
        let (news, start) = (host.signal(), host.signal());
        let mut tasks: Vec<Task> = Vec::new();
        for number in 0..self.threads {
            let address = Address::new(Scheme::Sim, &format!("datagrams-{number}")).map_err(verbs)?;
            let listener = sim.listen(&address).map_err(verbs)?;
            let mine = (self.senders + self.threads - 1 - number) / self.threads;
            let server = Server { sim: sim.clone(), board: board.clone(), load: self.clone(), senders: mine };
            let news = news.clone();
            let body = move || {
                let board = server.board.clone();
                board.ended(server.serve(&listener, &news));
                news.raise();
            };
            tasks.push(host.spawn("server", Box::new(body)).map_err(verbs)?);
        }
        let processes: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        for number in 0..self.senders {
            let address =
                Address::new(Scheme::Sim, &format!("datagrams-{}", number % self.threads)).map_err(verbs)?;
            let sim = processes[number % processes.len()].clone();
            let (board, bytes, start) = (board.clone(), self.bytes, start.clone());
            let host = sim.host().clone();
            let body = move || {
                let result = send_on_and_on(&sim, &address, bytes, &board, &start);
                board.ended(result);
            };
            tasks.push(host.spawn("sender", Box::new(body)).map_err(verbs)?);
        }
        loop {
            let seen = news.seen();
            if board.ready.load(Ordering::Relaxed) >= self.threads as u64 || board.phase() == OVER {
                break;
            }
            news.wait(seen, FOREVER);
        }
        start.raise();
        host.sleep(host.now() + self.warm_up);
        // Who waits is roused, so that everybody counts from the same time on.
        let wakers = std::mem::take(&mut board.lock().wakers);
        board.phase.fetch_max(COUNTING, Ordering::Relaxed);
        wakers.iter().for_each(Waker::wake);
        host.sleep(host.now() + self.measured);
        board.phase.store(OVER, Ordering::Relaxed);
        wakers.iter().for_each(Waker::wake);
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }
}

/// One thread of the server.
struct Server {
    sim: Sim,
    board: Board,
    load: Datagrams,
    senders: usize,
}

impl Server {
    fn serve<L>(self, listener: &L, news: &impl Signal) -> Result<(), DatagramsError>
    where
        L: Listener<Link = SimLink>,
    {
        let host = self.sim.host().clone();
        // Room for all requests that can be under way.
        let mut end = End::new(&self.sim, self.senders.max(1) * 2, self.load.bytes)?;
        self.board.lock().wakers.push(end.domain.waker());
        let mut links = Vec::new();
        for _ in 0..self.senders {
            let link = listener.accept(FOREVER).map_err(verbs)?;
            let handle = end.meet(&link)?;
            // What the sender puts into its requests, so that we know whom to answer.
            link.send(&handle.0.to_le_bytes()).map_err(verbs)?;
            links.push(link);
        }
        self.board.ready.fetch_add(1, Ordering::Relaxed);
        news.raise();
        let mut found = Vec::with_capacity(AT_ONCE);
        let mut answer = vec![0u8; self.load.bytes as usize];
        let mut spent = Spent::default();
        let mut since = None;
        loop {
            match (self.board.phase(), since) {
                (COUNTING, None) => {
                    (since, spent) = (Some(self.sim.time()), Spent::default());
                }
                (OVER, began) => {
                    if let Some(began) = began {
                        spent.all = self.sim.time() - began;
                        let mut shared = self.board.lock();
                        shared.spent.calls += spent.calls;
                        shared.spent.all += spent.all;
                        shared.spent.verbs += spent.verbs;
                        shared.spent.in_vain += spent.in_vain;
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
                if self.board.phase() != OVER {
                    // It polls on and on: a simulator need not do that to know what it costs.
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

/// One sender: a request, its answer, the next request.
fn send_on_and_on(
    sim: &Sim,
    address: &Address,
    bytes: u32,
    board: &Board,
    start: &impl Signal,
) -> Result<(), DatagramsError> {
    let mut end = End::new(sim, 4, bytes)?;
    let link = sim.dial(address, FOREVER).map_err(verbs)?;
    let to = end.meet(&link)?;
    let mut request = vec![0u8; bytes as usize];
    let name = link.receive(FOREVER).map_err(verbs)?;
    request[..4].copy_from_slice(name.first_chunk::<4>().unwrap_or(&[0; 4]));
    start.wait(0, FOREVER);
    let mut found = Vec::new();
    while board.phase() != OVER {
        end.send(to, &request)?;
        loop {
            let armed = end.domain.arm(WaitMode::Busy);
            if end.domain.poll(end.receives, &mut found, 1) > 0 {
                end.domain.disarm(armed);
                break;
            }
            // The server's threads end with what they have taken; nobody waits for more than that.
            let until = sim.host().now() + 1_000_000;
            if end.domain.wait(armed, until) == dunlin_fabric::Wake::TimedOut && board.phase() == OVER {
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
