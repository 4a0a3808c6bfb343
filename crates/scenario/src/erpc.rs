//! The baseline eRPC (NSDI'19) without Dunlin's engine: RPC over datagrams with several requests in flight,
//! session credits, RECVs posted in lists, congestion control by round-trip times with its processor time, and
//! retransmission by the client.
//!
//! A client thread has one session to one server thread. Each end has one datagram queue pair. Both ends post
//! SENDs in lists with one doorbell and RECVs in lists, and a message is not inline, because eRPC's header and
//! 64 bytes exceed its limit. All constants were fixed before the first run and are those of eRPC's public
//! source or paper; they are not tuned.

mod timely;

use crate::datagrams::End;
use crate::load::{FunctionOutcome, Latencies};
use crate::measured_run::{CourseError, FOREVER, MeasuredRun, Phase, cluster, cost_as, not_zero, thread};
use dunlin_fabric::{
    Access, Address, AddressHandleId, Arena, Completion, Data, Fabric, Host, Link, Listener, Nanos,
    Operation, ReceiveTarget, Scheme, Signal, Site, Task, ThreadDomain, WaitMode, Waker, Work, WorkId,
    WorkRequest,
};
use dunlin_fabric_sim::{NicCounters, Sim, SimLink, SimMemory, SimWaker};
use dunlin_rnic_model::{Parameter, Profile};
use std::collections::VecDeque;
use std::sync::Arc;
use timely::Timely;

/// A load of eRPC clients on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erpc {
    /// Profile of all hosts.
    pub profile: String,
    /// Number of client hosts.
    pub client_hosts: usize,
    /// Hardware threads of a client host; `None` for one for each thread.
    pub client_cores: Option<u32>,
    /// Number of client threads, each with a session of its own, distributed over hosts and server threads.
    pub clients: usize,
    /// Requests in flight of each client thread.
    pub in_flight: usize,
    /// Packets in flight of a session; [`SESSION_CREDITS`] in eRPC.
    pub credits: usize,
    /// Threads of the server, each on its own core.
    pub threads: usize,
    /// Payload bytes of a request and of its answer.
    pub bytes: u32,
    /// One answer in this number is dropped by the client, as if the network had lost it; 0 for none.
    pub loss: u64,
    /// Time from the start to the measurement, in nanoseconds.
    pub warm_up: Nanos,
    /// Measured time, in nanoseconds.
    pub measured: Nanos,
    /// Virtual time after which the run is aborted, in nanoseconds.
    pub limit: Nanos,
}

/// The result of an eRPC load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErpcOutcome {
    /// Answered requests and their latencies.
    pub all: FunctionOutcome,
    /// Measured time, in nanoseconds.
    pub time_ns: Nanos,
    /// Share of answers for which the rate was computed: their session is congested.
    pub congested: f64,
    /// Requests that were sent again.
    pub resent: u64,
    /// Requests that a server thread received twice and answered from its record.
    pub repeated: u64,
    /// Counters of the server's NIC during the measurement.
    pub nic: NicCounters,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Packets in flight of a session (`src/session.h`: `kSessionCredits`).
pub const SESSION_CREDITS: usize = 32;
/// Bytes of the header of a packet (`src/pkthdr.h`).
const HEADER: usize = 16;
/// Completions taken per poll, and SENDs per list (`ib_transport.h`: `kPostlist`).
const AT_ONCE: usize = 16;
/// SENDs from one signaled one to the next (`ib_transport.h`: `kUnsigBatch`).
const SIGNAL_EVERY: u64 = 64;
/// RECVs that are collected before they are posted (`ib_transport.h`: `kRecvSlack`).
const RECEIVES_AT_ONCE: usize = 32;
/// Time after which a request without an answer is sent again (section 5.3: 5 ms).
const RESEND_AFTER: Nanos = 5_000_000;
/// Time between two looks for such requests (`rpc.h`: `kRpcPktLossScanMs`).
const SCAN_EVERY: Nanos = 1_000_000;
/// Width of a slot of the timing wheel that paces packets (`timing_wheel.h`: 0.5 us).
const WHEEL_SLOT: Nanos = 500;
/// Processor time of congestion control for a call, in nanoseconds, with all bypasses: table 3 has 5.44 and
/// 4.96 million requests a second without and with it.
const CONTROL_NS: Nanos = 18;
/// Additional time where the rate is computed: table 3, 4.84 and 4.52 million with and without that bypass.
const RATE_NS: Nanos = 15;
/// Additional time where a packet goes through the timing wheel: table 3, 4.52 and 4.30 million.
const PACING_NS: Nanos = 11;
/// SENDs in the send queue (`ib_transport.h`: `kSQDepth`).
const SEND_QUEUE: u64 = 128;
/// Send buffers: enough for all SENDs that wait for a completion.
const SEND_BUFFERS: usize = 2 * SEND_QUEUE as usize;

/// Totals of the measurement.
#[derive(Debug, Default)]
struct Gathered {
    computed: u64,
    resent: u64,
    repeated: u64,
    nic: NicCounters,
    wakers: Vec<SimWaker>,
}

/// A packet's header: the handle by which the peer knows the receiver of the answer, the slot in the session,
/// and the number of the request in that slot.
#[derive(Clone, Copy)]
struct Header {
    handle: u32,
    slot: u32,
    number: u32,
}

impl Header {
    fn write(self, to: &mut [u8]) {
        for (place, word) in [self.handle, self.slot, self.number].into_iter().enumerate() {
            to[4 * place..4 * place + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn read(from: &[u8]) -> Header {
        let word = |place: usize| {
            let bytes = from.get(4 * place..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        Header { handle: word(0), slot: word(1), number: word(2) }
    }
}

/// A queue pair whose SENDs and RECVs are posted in lists.
struct Port {
    end: End,
    buffers: Arena<SimMemory>,
    bytes: usize,
    /// Packets to be posted, with their receivers.
    packets: Vec<(AddressHandleId, Header)>,
    /// RECVs to be posted.
    receives: Vec<Completion<SimMemory>>,
}

impl Port {
    fn new(sim: &Sim, receives: usize, bytes: u32) -> Result<Port, CourseError> {
        let bytes = bytes as usize + HEADER;
        let end = End::new(sim, (receives + RECEIVES_AT_ONCE).max(SEND_BUFFERS), bytes as u32)?;
        let whole = bytes.next_power_of_two().max(64);
        let memory = sim.register((whole * SEND_BUFFERS) as u64, Access::LOCAL).map_err(thread)?;
        let buffers = Arena::new(memory).map_err(thread)?;
        Ok(Port { end, buffers, bytes, packets: Vec::new(), receives: Vec::new() })
    }

    /// Posts the packets, [`AT_ONCE`] with each doorbell.
    fn post(&mut self, found: &mut Vec<Completion<SimMemory>>) -> Result<(), CourseError> {
        let mut packets = std::mem::take(&mut self.packets);
        for list in packets.chunks(AT_ONCE) {
            self.make_room(found);
            self.post_list(list)?;
        }
        packets.clear();
        self.packets = packets;
        Ok(())
    }

    /// Waits until a list of SENDs fits the send queue, as eRPC does.
    fn make_room(&mut self, found: &mut Vec<Completion<SimMemory>>) {
        while self.end.posted - self.end.done + AT_ONCE as u64 > SEND_QUEUE {
            let armed = self.end.domain.arm(WaitMode::Busy);
            let count = self.end.domain.poll(self.end.sends, found, AT_ONCE);
            found.clear();
            if count == 0 {
                self.end.domain.wait(armed, FOREVER);
                continue;
            }
            self.end.domain.disarm(armed);
            // Each completion covers the unsignaled sends before it.
            self.end.done += count as u64 * SIGNAL_EVERY;
        }
    }

    fn post_list(&mut self, mut list: &[(AddressHandleId, Header)]) -> Result<(), CourseError> {
        // By powers of two, with a doorbell each: the predictions were made so.
        while !list.is_empty() {
            let (now, later) = list.split_at(1 << list.len().ilog2());
            self.post_linked(now)?;
            list = later;
        }
        Ok(())
    }

    /// Posts packets with one doorbell.
    fn post_linked(&mut self, list: &[(AddressHandleId, Header)]) -> Result<(), CourseError> {
        let mut requests = [const { None }; AT_ONCE];
        for ((to, header), place) in list.iter().zip(&mut requests) {
            let mut buffer = self.buffers.reserve(self.bytes).map_err(thread)?;
            header.write(&mut buffer);
            self.end.posted += 1;
            let signaled = self.end.posted.is_multiple_of(SIGNAL_EVERY);
            let operation = Operation::Send { data: Data::Buffer(buffer), immediate: None, to: Some(*to) };
            *place = Some(WorkRequest { id: WorkId(self.end.posted), operation, signaled });
        }
        self.end.domain.post_list(self.end.pair, &mut requests[..list.len()]).map_err(thread)
    }

    /// Keeps a RECV until a list of them is full, then posts the list.
    fn recycle(&mut self, completion: Completion<SimMemory>) -> Result<(), CourseError> {
        self.receives.push(completion);
        if self.receives.len() < RECEIVES_AT_ONCE {
            return Ok(());
        }
        let target = ReceiveTarget::QueuePair(self.end.pair);
        for completion in self.receives.drain(..) {
            self.end.domain.post_receive(target, completion.id, completion.buffer).map_err(thread)?;
        }
        Ok(())
    }
}

impl Erpc {
    /// Runs the load.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<ErpcOutcome, CourseError> {
        not_zero([
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of client threads", self.clients as u64),
            ("the number of requests in flight", self.in_flight as u64),
            ("the number of credits", self.credits as u64),
            ("the number of server threads", self.threads as u64),
            ("the measured time", self.measured),
        ])?;
        let mut settings = cluster(self.client_hosts + 1, self.clients + self.threads + 16, self.limit);
        for machine in settings.machines.iter_mut().skip(1) {
            machine.cores = self.client_cores;
        }
        let profile = Profile::built_in(&self.profile)?;
        let link = profile.number(Parameter::LinkRate) * 1e9 / 8.0;
        cost_as(&mut settings, profile, 1);
        let latencies = Arc::new(Latencies::new());
        let (load, recorded) = (self.clone(), Arc::clone(&latencies));
        let play =
            move |sim: &Sim, course: &Arc<MeasuredRun<Gathered>>| load.play(sim, course, &recorded, link);
        let (gathered, trace_hash) = MeasuredRun::run(settings, seed, play)?;
        let all = latencies.outcome();
        Ok(ErpcOutcome {
            all,
            time_ns: self.measured,
            congested: gathered.computed as f64 / all.calls.max(1) as f64,
            resent: gathered.resent,
            repeated: gathered.repeated,
            nic: gathered.nic,
            trace_hash,
        })
    }

    fn play(
        &self,
        sim: &Sim,
        course: &Arc<MeasuredRun<Gathered>>,
        latencies: &Arc<Latencies>,
        link: f64,
    ) -> Result<(), CourseError> {
        let host = sim.host();
        let (news, start) = (host.signal(), host.signal());
        let mut tasks: Vec<Task> = Vec::new();
        for number in 0..self.threads {
            let address = Address::new(Scheme::Sim, &format!("erpc-{number}")).map_err(thread)?;
            let listener = sim.listen(&address).map_err(thread)?;
            let sessions = (self.clients + self.threads - 1 - number) / self.threads;
            let (sim, course, load, news) = (sim.clone(), Arc::clone(course), self.clone(), news.clone());
            let body = move || {
                course.ended(load.serve(&sim, &course, sessions, &listener, &news));
                news.raise();
            };
            tasks.push(host.spawn("server", Box::new(body)).map_err(thread)?);
        }
        let processes: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        for number in 0..self.clients {
            let address =
                Address::new(Scheme::Sim, &format!("erpc-{}", number % self.threads)).map_err(thread)?;
            let sim = processes[number % processes.len()].clone();
            let (course, load, start) = (Arc::clone(course), self.clone(), start.clone());
            let (latencies, host) = (Arc::clone(latencies), sim.host().clone());
            let body = move || {
                let played = Client::connect(&sim, &load, &address, &course, link).and_then(|client| {
                    start.wait(0, FOREVER);
                    client.play(&load, &course, &latencies)
                });
                course.ended(played);
            };
            tasks.push(host.spawn("client", Box::new(body)).map_err(thread)?);
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
        let nic = || sim.nic_counters(0, 0).unwrap_or_default();
        let before = nic();
        course.count();
        host.sleep(host.now() + self.measured);
        course.gathered().nic = nic().since(before);
        course.end();
        let wakers = std::mem::take(&mut course.gathered().wakers);
        wakers.iter().for_each(Waker::wake);
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Runs one thread of the server.
    fn serve<L>(
        &self,
        sim: &Sim,
        course: &MeasuredRun<Gathered>,
        sessions: usize,
        listener: &L,
        news: &impl Signal,
    ) -> Result<(), CourseError>
    where
        L: Listener<Link = SimLink>,
    {
        let host = sim.host();
        let slots = self.in_flight.min(self.credits);
        let mut port = Port::new(sim, sessions * slots * 2, self.bytes)?;
        course.gathered().wakers.push(port.end.domain.waker());
        let mut links = Vec::new();
        // The number of the last request of each slot, by the handle of the session.
        let mut last: Vec<Vec<u32>> = Vec::new();
        for _ in 0..sessions {
            let link = listener.accept(FOREVER).map_err(thread)?;
            let handle = port.end.meet(&link)?;
            link.send(&handle.0.to_le_bytes()).map_err(thread)?;
            last.resize_with(last.len().max(handle.0 as usize + 1), Vec::new);
            last[handle.0 as usize] = vec![0; slots];
            links.push(link);
        }
        course.is_ready();
        news.raise();
        let (mut found, mut completed) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        let mut repeated = 0;
        while course.phase() != Phase::Over {
            host.checkpoint(Site::WorkerLoop);
            let armed = port.end.domain.arm(WaitMode::Busy);
            if port.end.domain.poll(port.end.receives, &mut found, AT_ONCE) == 0 {
                if course.phase() != Phase::Over {
                    port.end.domain.wait(armed, FOREVER);
                }
                continue;
            }
            port.end.domain.disarm(armed);
            for completion in found.drain(..) {
                let Some(buffer) = &completion.buffer else { continue };
                let header = Header::read(&buffer[port.end.headroom..]);
                host.charge(Work::ParseMessage, 1);
                let number = last
                    .get_mut(header.handle as usize)
                    .and_then(|slots| slots.get_mut(header.slot as usize));
                if let Some(number) = number
                    && header.number >= *number
                {
                    match header.number == *number {
                        true => repeated += 1,
                        false => {
                            host.charge(Work::Dispatch, 1);
                            host.charge(Work::CopyBytes, self.bytes);
                        }
                    }
                    *number = header.number;
                    host.charge(Work::BuildMessage, 1);
                    port.packets.push((AddressHandleId(header.handle), header));
                }
                port.recycle(completion)?;
            }
            port.post(&mut completed)?;
        }
        course.gathered().repeated += repeated;
        Ok(())
    }
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Slot {
    number: u32,
    /// When the call was made.
    began: Nanos,
    /// When its packet was posted last; `None` while the packet waits for its time.
    sent: Option<Nanos>,
}

/// One client thread.
struct Client {
    sim: Sim,
    port: Port,
    to: AddressHandleId,
    /// The handle by which the server knows this client.
    handle: u32,
    timely: Timely,
    slots: Vec<Slot>,
    /// Slots whose packet is paced, in the order of their times.
    paced: VecDeque<(Nanos, usize)>,
    /// Time of the next look for overdue answers.
    scan: Nanos,
    computed: u64,
    resent: u64,
    answers: u64,
}

impl Client {
    fn connect(
        sim: &Sim,
        load: &Erpc,
        address: &Address,
        course: &MeasuredRun<Gathered>,
        link: f64,
    ) -> Result<Client, CourseError> {
        let mut port = Port::new(sim, 2 * load.in_flight, load.bytes)?;
        let control = sim.dial(address, FOREVER).map_err(thread)?;
        let to = port.end.meet(&control)?;
        let handle = control.receive(FOREVER).map_err(thread)?;
        let handle = handle.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        // A request needs one credit from its packet to its answer, so credits bound the requests in flight.
        let slots = vec![Slot { number: 0, began: 0, sent: None }; load.in_flight.min(load.credits)];
        course.gathered().wakers.push(port.end.domain.waker());
        Ok(Client {
            sim: sim.clone(),
            port,
            to,
            handle,
            timely: Timely::new(link),
            slots,
            paced: VecDeque::new(),
            scan: 0,
            computed: 0,
            resent: 0,
            answers: 0,
        })
    }

    fn play(
        mut self,
        load: &Erpc,
        course: &MeasuredRun<Gathered>,
        latencies: &Latencies,
    ) -> Result<(), CourseError> {
        let (mut found, mut completed) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        for slot in 0..self.slots.len() {
            self.begin(slot);
        }
        let (mut computed, mut resent) = (0, 0);
        while course.phase() != Phase::Over {
            self.release();
            self.resend();
            self.port.post(&mut completed)?;
            let armed = self.port.end.domain.arm(WaitMode::Busy);
            if self.port.end.domain.poll(self.port.end.receives, &mut found, AT_ONCE) == 0 {
                let due = self.due();
                if course.phase() != Phase::Over {
                    self.port.end.domain.wait(armed, due);
                }
                continue;
            }
            self.port.end.domain.disarm(armed);
            let mut control = 0;
            for completion in found.drain(..) {
                if let Some(buffer) = &completion.buffer {
                    let header = Header::read(&buffer[self.port.end.headroom..]);
                    self.answers += 1;
                    let is_lost = load.loss > 0 && self.answers.is_multiple_of(load.loss);
                    if !is_lost && let Some((began, took)) = self.answered(header) {
                        control += took;
                        if course.phase() == Phase::Counting {
                            latencies.record(self.sim.time().saturating_sub(began));
                        } else {
                            (computed, resent) = (self.computed, self.resent);
                        }
                        self.sim.host().charge(Work::CopyBytes, load.bytes);
                        control += self.begin(header.slot as usize);
                    }
                }
                self.port.recycle(completion)?;
            }
            self.sim.host().work(control);
        }
        let mut gathered = course.gathered();
        gathered.computed += self.computed - computed;
        gathered.resent += self.resent - resent;
        Ok(())
    }

    fn now(&self) -> Nanos {
        self.sim.host().glance()
    }

    /// Takes an answer. Returns the start of its call, and the time of congestion control.
    fn answered(&mut self, header: Header) -> Option<(Nanos, Nanos)> {
        self.sim.host().charge(Work::ParseMessage, 1);
        let now = self.now();
        let slot = self.slots.get(header.slot as usize)?;
        // A late answer to a request that was sent again has been taken already.
        let sent = slot.sent.filter(|_| slot.number == header.number)?;
        let began = slot.began;
        let computes = self.timely.sample(now.saturating_sub(sent), now);
        self.computed += u64::from(computes);
        Some((began, CONTROL_NS + if computes { RATE_NS } else { 0 }))
    }

    /// Makes the next call of a slot. Returns the time of congestion control.
    fn begin(&mut self, slot: usize) -> Nanos {
        self.sim.host().charge(Work::BuildMessage, 1);
        let began = self.sim.time();
        let Some(place) = self.slots.get_mut(slot) else { return 0 };
        *place = Slot { number: place.number + 1, began, sent: None };
        if self.timely.is_uncongested() {
            self.send(slot);
            return 0;
        }
        let now = self.now();
        let leaves = self.timely.leaves((self.port.bytes) as u32, now).next_multiple_of(WHEEL_SLOT);
        self.paced.push_back((leaves, slot));
        PACING_NS
    }

    fn send(&mut self, slot: usize) {
        let now = self.now();
        let (handle, place) = (self.handle, &mut self.slots[slot]);
        place.sent = Some(now);
        let header = Header { handle, slot: slot as u32, number: place.number };
        self.port.packets.push((self.to, header));
    }

    /// Sends the packets whose time has come.
    fn release(&mut self) {
        let now = self.now();
        while let Some(&(leaves, slot)) = self.paced.front() {
            if leaves > now {
                break;
            }
            self.paced.pop_front();
            self.send(slot);
        }
    }

    /// Returns when the thread has to act, whatever arrives.
    fn due(&self) -> Nanos {
        let oldest = self.slots.iter().filter_map(|slot| slot.sent).min();
        let resend = oldest.map_or(Nanos::MAX, |sent| (sent + RESEND_AFTER).max(self.scan));
        self.paced.front().map_or(resend, |(leaves, _)| resend.min(*leaves))
    }

    /// Sends requests again whose answers are overdue.
    fn resend(&mut self) {
        let now = self.now();
        if now < self.scan {
            return;
        }
        self.scan = now + SCAN_EVERY;
        for slot in 0..self.slots.len() {
            if self.slots[slot].sent.is_some_and(|sent| sent + RESEND_AFTER <= now) {
                self.resent += 1;
                self.send(slot);
            }
        }
    }
}
