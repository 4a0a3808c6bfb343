//! The interpretation of a seed: cluster, timing, faults, server and clients, drawn before anything runs.

pub(super) mod deployed;
mod grouped;
pub(super) mod members;
pub(super) mod tier;

use super::server::{POOLED, PULLED};
use dunlin_fabric::{Capabilities, Nanos, nanos};
use dunlin_fabric_sim::{
    ChanceTiming, Faults, History, MachineSettings, ModelTiming, Prices, Random, Settings, TimingSettings,
};
use dunlin_rnic_model::Profile;
use dunlin_rpc::{
    BackoffConfig, BatchCalls, Batching, ClientConfig, CompletionMode, CreditRenewal, FetchChoice, FirstRead,
    LargePayload, Lease, PROTOCOLS, Plan, Protocol, RequestPool, ServerConfig, Sharing,
};
use grouped::lease;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a client uses the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// One call at a time.
    Synchronous,
    /// A window of calls.
    Windowed,
    /// Batches.
    Batched,
    /// Futures on an executor.
    Asynchronous,
}

/// A disturbance by the director.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Kills the server's process; a new one listens after `back_after`.
    CrashServer { back_after: Nanos },
    /// Shuts the server down within `within`, and starts another.
    Shutdown { within: Nanos },
    /// Kills a client's process and starts another in its place.
    CrashClient(usize),
    /// Slows a machine's processors down for `lasts`.
    Slow { machine: usize, thousandths: u64, lasts: Nanos },
}

/// One client.
#[derive(Clone, Debug)]
pub(super) struct DrawnClient {
    pub(super) machine: usize,
    pub(super) config: ClientConfig,
    pub(super) style: Style,
    pub(super) calls: u64,
    /// Closes the connection after this number of calls, whatever is open.
    pub(super) quits_after: Option<u64>,
    /// The longest time that a call is given for itself, in nanoseconds; 0 if the client gives none.
    pub(super) own_times: Nanos,
    /// Threads of the client, which share its connection; one alone has it for itself.
    pub(super) threads: u64,
}

impl DrawnClient {
    /// Returns whether threads share the connection as FLOCK's do.
    pub(super) fn is_combined(&self) -> bool {
        self.threads > 1 && self.config.plan.is_some_and(|plan| plan.sharing == Sharing::Combined)
    }

    /// Draws the time of a call of its own, for half of the calls of a client that gives any.
    pub(super) fn own_time(&self, random: &mut Random) -> Option<Duration> {
        if self.own_times == 0 || random.one_in(2) {
            return None;
        }
        let time = if random.one_in(16) { 0 } else { random.below(self.own_times) };
        Some(Duration::from_nanos(time))
    }
}

/// The description of a run.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) seed: u64,
    pub(super) settings: Settings,
    pub(super) server: ServerConfig,
    pub(super) clients: Vec<DrawnClient>,
    /// Disturbances with their times since the start, in order.
    pub(super) acts: Vec<(Nanos, Act)>,
    /// Number of tasks that pull calls.
    pub(super) pullers: u64,
    /// A mask of the share of calls whose handler holds up its worker, and for how long in nanoseconds.
    pub(super) slow_ones: Option<(u64, Nanos)>,
}

/// By how much a client's calls may end after their deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lateness {
    /// For any call.
    pub(super) call: Nanos,
    /// For a call that may have to reconnect first.
    pub(super) connecting: Nanos,
}

/// Payload sizes around every boundary of the message layout, and some that use rendezvous.
const SIZES: [usize; 12] = [0, 8, 24, 25, 56, 57, 200, 1000, 4000, 4087, 4089, 9000];

/// Draws a payload size.
pub(super) fn size(random: &mut Random) -> usize {
    match random.below(40) {
        0 => 30_000 + random.below(60_000) as usize,
        _ => SIZES[random.below(SIZES.len() as u64) as usize],
    }
}

fn machines(random: &mut Random) -> Vec<MachineSettings> {
    let cores = |random: &mut Random| match random.below(2) {
        0 => None,
        _ => Some(1 + random.below(4) as u32),
    };
    (0..2 + random.below(2))
        .map(|_| {
            let skewed = random.one_in(3);
            MachineSettings {
                cores: cores(random),
                clock_offset: if skewed { random.below(1_000_000_000) } else { 0 },
                clock_drift: if skewed { random.below(200) } else { 0 },
            }
        })
        .collect()
}

/// Permitted lateness with an exclusive core, in nanoseconds: work for other calls, short pre-emptions, clock
/// drift.
const UNDISTURBED: Nanos = 2_000_000;
/// By how much a call may begin late on an undisturbed server, in nanoseconds.
const BEGINS_LATE: Nanos = 100_000;
/// Clients with more calls than this make them for the choice of RF-RPC.
const MOST_CALLS: u64 = 1_000;
/// The server's machine; clients are on the others.
pub(super) const SERVER_MACHINE: usize = 0;
/// How long a client retries operations that must succeed once the run is calm.
pub(super) const PATIENCE: Nanos = 2_000_000_000;
/// Quanta of other threads that an exchange may have to wait for, on both sides together.
const QUANTA_OF_A_CALL: u64 = 8;
/// The time of calls of clients that do not want them to expire.
const LONG_TIMEOUT: Duration = Duration::from_millis(300);
/// How long faults continue.
const UNTIL: Nanos = 4_000_000;

/// Draws one of the model's clusters.
fn profile(random: &mut Random) -> Option<Arc<Profile>> {
    let names: Vec<_> = Profile::built_in_names().collect();
    let name = names.get(random.below(names.len() as u64) as usize)?;
    Profile::built_in(name).ok().map(Arc::new)
}

/// Draws the fabric's capabilities: usually all, otherwise those of a weaker kind of fabric.
fn capabilities(random: &mut Random) -> Capabilities {
    let all = Settings::default().capabilities;
    let (name, max_inline) = (all.name, all.max_inline);
    match random.below(12) {
        0 => Capabilities { cache_line_atomic_reads: false, ..all },
        1 => Capabilities { name, max_inline, ..Capabilities::IWARP },
        2 => Capabilities { name, max_inline, ..Capabilities::OFI },
        _ => all,
    }
}

fn settings(random: &mut Random, capabilities: Capabilities) -> Settings {
    let mut settings = Settings { machines: machines(random), capabilities, ..Settings::default() };
    settings.limit = settings.start + 30_000_000_000;
    settings.timing = TimingSettings::Chance(ChanceTiming {
        latency: 100 + random.below(2000),
        jitter: random.below(3000),
        landing: random.below(2000),
    });
    let modelled = random.one_in(4).then(|| profile(random)).flatten();
    if let Some(profile) = &modelled {
        settings.prices = Prices::of(profile);
        let machines = vec![(Arc::clone(profile), 1); settings.machines.len()];
        let switch_ns = random.one_in(2).then(|| random.below(2000));
        settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns, control_ns: 5_000 });
    }
    settings.spurious = random.below(20);
    settings.preemption = random.below(12);
    settings.prices.quantum = 20_000 << random.below(6);
    if random.one_in(8) {
        settings.capabilities.max_queue_depth = 1024;
    }
    if random.one_in(4) {
        settings.capabilities.max_inline = [0, 64, 512][random.below(3) as usize];
    }
    let mut rate = |often: u64, range: u64| if random.one_in(4) { often + random.below(range) } else { 0 };
    let loss = rate(3, 60);
    // The first retransmission of a lost message comes after 5 ms, and may be lost too.
    let lasts = if loss == 0 { UNTIL } else { 10 * UNTIL };
    let faults = Faults {
        loss,
        delay: rate(20, 300),
        delay_by: 0,
        queue_pair_error: rate(100, 3000),
        not_ready: rate(5, 100),
        refusal: rate(5, 100),
        stall: rate(50, 500),
        stall_by: 0,
        until: settings.start + lasts,
    };
    settings.faults = Faults { delay_by: random.below(100_000), stall_by: random.below(500_000), ..faults };
    settings
}

/// Draws a protocol by the names of all: the one whose name, hashed with a drawn number, is the greatest. A further
/// protocol takes an equal part of the draws of each other one, and changes no other draw.
fn protocol(random: &mut Random) -> &'static Protocol {
    let number = random.below(u64::MAX);
    let hash = |name: &str| {
        let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = name.bytes().fold(number ^ 0xcbf2_9ce4_8422_2325, mixed);
        (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    PROTOCOLS.iter().max_by_key(|protocol| hash(protocol.name)).unwrap_or(&PROTOCOLS[0])
}

/// Draws a plan that is legal on the fabric.
fn plan(random: &mut Random, settings: &Settings) -> Plan {
    loop {
        let protocol = protocol(random);
        let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
        let mut plan = protocol.plan(modes[random.below(3) as usize]);
        plan.server = modes[random.below(3) as usize];
        if random.one_in(4) {
            plan.large = LargePayload::Pipelined;
        }
        if plan.check(&settings.capabilities).is_ok() {
            return plan;
        }
    }
}

fn client(random: &mut Random, settings: &Settings) -> DrawnClient {
    let usual = plan(random, settings);
    // Functions with a different plan, over the same connection.
    let functions = [POOLED, PULLED].into_iter().filter_map(|function| {
        let apart = random.one_in(4);
        apart.then(|| (function, plan(random, settings)))
    });
    let functions = functions.collect();
    let config = ClientConfig {
        window: 1 + random.below(64) as u16,
        ring_bytes: (16 * 1024) << random.below(2),
        // Some clients have short deadlines, so that calls expire.
        timeout: Duration::from_nanos(match random.one_in(4) {
            true => 30_000 + random.below(300_000),
            false => LONG_TIMEOUT.as_nanos() as Nanos,
        }),
        connect_timeout: Duration::from_millis(50),
        spin: Duration::from_nanos(random.below(40_000)),
        backoff: BackoffConfig { first: Duration::from_micros(50), longest: Duration::from_millis(5) },
        functions,
        ..ClientConfig::with_plan(usual)
    };
    let styles = [Style::Synchronous, Style::Windowed, Style::Windowed, Style::Batched, Style::Asynchronous];
    DrawnClient {
        machine: 1 + random.below(settings.machines.len() as u64 - 1) as usize,
        config,
        style: styles[random.below(styles.len() as u64) as usize],
        calls: 40 + random.below(80),
        quits_after: random.one_in(8).then(|| random.below(60)),
        own_times: 0,
        threads: 1,
    }
}

/// Draws how clients choose between fetching and written results. In one seed of sixteen all clients make
/// enough RF-RPC calls for the server to try both.
fn ways(random: &mut Random, settings: &mut Settings, clients: &mut [DrawnClient]) {
    let long = random.one_in(16);
    if long {
        // With shared cores a call can take milliseconds.
        settings.limit += 300_000_000_000;
    }
    for client in clients {
        client.config.fetch_choice = match random.below(4) {
            _ if long => FetchChoice::Tuned,
            0 | 1 => FetchChoice::Tuned,
            2 => FetchChoice::Enumerated,
            _ => FetchChoice::Fixed { retries: 1 + random.below(8) as u32, bytes: 64 << random.below(8) },
        };
        client.config.first_read = [FirstRead::WhenExpected, FirstRead::AtOnce][random.below(2) as usize];
        let Some(protocol) = Protocol::by_name("RF-RPC").filter(|_| long) else { continue };
        let mut plan = protocol.plan(CompletionMode::Busy);
        if random.one_in(2) {
            plan.server = CompletionMode::Adaptive;
        }
        if plan.check(&settings.capabilities).is_ok() {
            client.config.plan = Some(plan);
            client.config.functions.clear();
            client.calls *= 100;
        }
    }
}

/// Draws engine-flushed batches for one client of three.
fn batches(random: &mut Random, clients: &mut [DrawnClient]) {
    for client in clients {
        if !random.one_in(3) {
            continue;
        }
        let calls = match random.below(2) {
            0 => BatchCalls::Fixed(1 + random.below(128) as u16),
            _ => BatchCalls::WithinLatency {
                limit: Duration::from_nanos(random.below(1_000_000)),
                tolerance: random.below(1001) as f64 / 1000.0,
            },
        };
        let (bytes, timeout) =
            (1 + random.below(8192) as u32, Duration::from_nanos(random.below(10_000_000)));
        client.config.batching = Some(Batching { calls, bytes, timeout, ..Batching::default() });
        // Clients that send each call separately have no batches.
        if matches!(client.style, Style::Synchronous | Style::Windowed) && !random.one_in(8) {
            client.style = Style::Batched;
        }
    }
}

/// Draws batches of one to three calls, which fill all the time, for the clients of every second run whose queue pairs
/// break often.
fn full_batches(random: &mut Random, drawn: &mut Drawn) {
    if drawn.settings.faults.queue_pair_error == 0 || !random.one_in(2) {
        return;
    }
    drawn.settings.faults.queue_pair_error = 20 + random.below(200);
    for client in drawn.clients.iter_mut().filter(|client| client.threads == 1) {
        if client.style != Style::Asynchronous && random.one_in(2) {
            let calls = BatchCalls::Fixed(1 + random.below(3) as u16);
            let timeout = Duration::from_nanos(random.below(1_000_000));
            client.config.batching = Some(Batching { calls, bytes: 8192, timeout, ..Batching::default() });
            client.style = Style::Batched;
        }
    }
}

/// Lets nothing disturb or hold up the calls in every second run with threads that share connections, so that a call
/// which is forgotten is noticed. The long runs of RF-RPC stay as they are.
fn calm_threads(random: &mut Random, drawn: &mut Drawn) {
    let shares = drawn.clients.iter().any(|client| client.threads > 1);
    let is_long = drawn.clients.iter().any(|client| client.calls > MOST_CALLS);
    if !shares || is_long || drawn.has_groups() || !random.one_in(2) {
        return;
    }
    drawn.settings.faults = Faults::default();
    drawn.acts.clear();
    drawn.settings.machines.iter_mut().for_each(|machine| machine.cores = None);
    (drawn.slow_ones, drawn.pullers) = (None, 0);
    for client in &mut drawn.clients {
        client.config.timeout = LONG_TIMEOUT;
        client.own_times = 0;
    }
}

/// Draws times of single calls for every second client, and slow handlers for every second run.
fn deadlines(random: &mut Random, clients: &mut [DrawnClient]) -> Option<(u64, Nanos)> {
    for client in clients {
        if random.one_in(2) {
            client.own_times = 20_000 << random.below(10);
        }
    }
    random.one_in(2).then(|| ((8 << random.below(3)) - 1, 100_000 + random.below(400_000)))
}

/// Draws the clients whose threads share a connection: one client of three. In one run of three with such a
/// client nothing disturbs the run, so that no call may run out of time.
fn shared(random: &mut Random, drawn: &mut Drawn) {
    let mut is_shared = false;
    for client in &mut drawn.clients {
        if !random.one_in(3) || client.style == Style::Asynchronous {
            continue;
        }
        // Other policies are baselines.
        let other =
            Sharing::shared().find(|policy| *policy != Sharing::Combined).unwrap_or(Sharing::Combined);
        let sharing = [Sharing::Combined, Sharing::Combined, other][random.below(3) as usize];
        let shared = |plan: &mut Plan| *plan = plan.shared(sharing, plan.lease);
        client.config.plan.iter_mut().for_each(shared);
        client.config.functions.values_mut().for_each(shared);
        client.config.most_together = [1, 2, 64, 64][random.below(4) as usize];
        client.config.max_queue_pairs = [1, 1, 2, 64][random.below(4) as usize];
        client.config.credits = [1, 4, 32, 63][random.below(4) as usize];
        client.threads = 2 + random.below(4);
        is_shared = true;
    }
    if is_shared {
        drawn.server.max_active_queue_pairs = [1, 2, 4, 256][random.below(4) as usize];
    }
    if is_shared && random.one_in(3) {
        drawn.settings.faults = Faults::default();
        drawn.acts.clear();
        drawn.settings.machines.iter_mut().for_each(|machine| machine.cores = None);
    }
}

/// Draws how clients of FLOCK ask for credits, and how often their threads are assigned to queue pairs: mostly so often
/// that threads with calls in flight have to move. Half of these clients have more threads than queue pairs, and so few
/// credits that calls wait on the queue pair that their thread has to leave.
fn credits_and_moves(random: &mut Random, drawn: &mut Drawn) {
    let has_immediate = drawn.settings.capabilities.immediate;
    let mut leaves_calls = false;
    for client in drawn.clients.iter_mut().filter(|client| client.is_combined()) {
        if random.one_in(3) && has_immediate {
            client.config.credit_renewal = CreditRenewal::WriteImmediate;
        }
        if random.one_in(4) {
            continue;
        }
        client.config.thread_scheduling = Some(Duration::from_nanos(1_000 << random.below(8)));
        if random.one_in(2) {
            client.config.credits = 1 + random.below(2) as u16;
            client.config.max_queue_pairs = 2;
            client.threads = 3 + random.below(4);
            client.style = if client.config.batching.is_some() { client.style } else { Style::Windowed };
            leaves_calls = true;
        }
    }
    if leaves_calls {
        drawn.server.max_active_queue_pairs = 256;
    }
}

/// Draws the asynchronous clients whose clones share queue pairs: one of two. They are assigned to queue pairs so often
/// that clones with calls in flight have to move, and count as threads after a few requests.
fn clones(random: &mut Random, clients: &mut [DrawnClient]) {
    for client in clients.iter_mut().filter(|client| client.style == Style::Asynchronous) {
        let plans = client.config.plan.iter().chain(client.config.functions.values());
        // Leases that end are drawn for shared connections later.
        let is_leased = plans.into_iter().any(|plan| plan.lease == Lease::Slice);
        if random.one_in(2) || is_leased || client.calls > MOST_CALLS {
            continue;
        }
        let shared = |plan: &mut Plan| *plan = plan.shared(Sharing::Combined, plan.lease);
        client.config.plan.iter_mut().for_each(shared);
        client.config.functions.values_mut().for_each(shared);
        client.config.credits = [1, 4, 32, 63][random.below(4) as usize];
        client.config.max_queue_pairs = [1, 2, 2, 64][random.below(4) as usize];
        client.config.thread_scheduling = Some(Duration::from_nanos(1_000 << random.below(8)));
        client.threads = 2 + random.below(4);
    }
}

/// Draws from which length on requests leave from memory of their threads.
fn own_memory(random: &mut Random, drawn: &mut Drawn) {
    for client in drawn.clients.iter_mut().filter(|client| client.is_combined()) {
        client.config.own_memory_from = [0, 100, 1000, u32::MAX][random.below(4) as usize];
    }
}

/// Draws whether the request rings of all lanes lie in one region, and the blocks there. No lane is refused for it.
fn request_pool(random: &mut Random, server: &mut ServerConfig) {
    let block = [64, 256, 4096][random.below(3) as usize];
    server.request_pool = random.one_in(4).then_some(RequestPool { rings: 256, block });
}

fn acts(random: &mut Random, clients: usize, machines: usize) -> Vec<(Nanos, Act)> {
    let count = if random.one_in(3) { 0 } else { 1 + random.below(3) };
    let mut acts: Vec<(Nanos, Act)> = (0..count)
        .map(|_| {
            // Most interesting events happen early.
            let early = random.one_in(2);
            let at = random.below(if early { 300_000 } else { UNTIL });
            let act = match random.below(6) {
                0 | 1 => Act::CrashServer { back_after: random.below(2_000_000) },
                2 => Act::Shutdown { within: random.below(1_000_000) },
                3 | 4 => Act::CrashClient(random.below(clients as u64) as usize),
                _ => Act::Slow {
                    machine: random.below(machines as u64) as usize,
                    thousandths: 2_000 + random.below(30_000),
                    lasts: random.below(1_000_000),
                },
            };
            (at, act)
        })
        .collect();
    acts.sort_by_key(|(at, _)| *at);
    acts
}

impl Drawn {
    pub(super) fn from_seed(seed: u64, history: Option<History>) -> Self {
        let mut random = Random::new(seed, 7);
        let mut settings = settings(&mut random, capabilities(&mut Random::new(seed, 8)));
        settings.history = history;
        let server = ServerConfig {
            workers: 1 + random.below(3) as u16,
            window: 4 << random.below(5),
            pool_threads: 1 + random.below(3) as u16,
            max_waiting: 4 << random.below(8),
            spin: Duration::from_nanos(random.below(40_000)),
            hello_timeout: Duration::from_millis(20),
            ..ServerConfig::default()
        };
        let mut clients: Vec<_> = (0..1 + random.below(4)).map(|_| client(&mut random, &settings)).collect();
        ways(&mut Random::new(seed, 9), &mut settings, &mut clients);
        batches(&mut Random::new(seed, 10), &mut clients);
        let slow_ones = deadlines(&mut Random::new(seed, 11), &mut clients);
        let acts = acts(&mut random, clients.len(), settings.machines.len());
        let pullers = random.below(3);
        let mut drawn = Drawn { seed, settings, server, clients, acts, pullers, slow_ones };
        shared(&mut Random::new(seed, 12), &mut drawn);
        grouped::draw(&mut Random::new(seed, 13), &mut drawn);
        full_batches(&mut Random::new(seed, 14), &mut drawn);
        calm_threads(&mut Random::new(seed, 15), &mut drawn);
        credits_and_moves(&mut Random::new(seed, 16), &mut drawn);
        own_memory(&mut Random::new(seed, 17), &mut drawn);
        request_pool(&mut Random::new(seed, 18), &mut drawn.server);
        clones(&mut Random::new(seed, 19), &mut drawn.clients);
        grouped::share(&mut Random::new(seed, 20), &mut drawn);
        grouped::notify(&mut Random::new(seed, 21), &mut drawn);
        drawn
    }

    /// Returns the longest request of the calls that begin in the order in which a thread of this client made them, those
    /// at each worker for themselves: `None` unless no message is lost and no queue pair breaks. Longer requests are READ
    /// while others overtake them.
    pub(super) fn keeps_order(&self, client: &DrawnClient) -> Option<usize> {
        let plan = client.config.plan.filter(|_| client.is_combined() && self.is_undisturbed(client))?;
        Some(plan.rendezvous_above as usize)
    }

    /// Returns whether a client's calls within the usual time must be answered: no fault, no act, no core that
    /// threads share.
    pub(super) fn is_undisturbed(&self, client: &DrawnClient) -> bool {
        let has_cores = self.settings.machines.iter().all(|machine| machine.cores.is_none());
        let has_time = client.config.timeout >= LONG_TIMEOUT;
        has_cores && has_time && self.acts.is_empty() && self.settings.faults == Faults::default()
    }

    /// Returns how late a client's calls may be. Deadlines are local to the client: an undisturbed client
    /// keeps them whatever happens to the server, unless a call must wait for a reconnection.
    pub(super) fn lateness(&self, client: &DrawnClient) -> Lateness {
        let Faults { stall, stall_by, queue_pair_error, .. } = self.settings.faults;
        let disturbs = |act: &Act| matches!(act, Act::Slow { machine, .. } if *machine == client.machine);
        let breaks = |act: &Act| matches!(act, Act::CrashServer { .. } | Act::Shutdown { .. });
        let has_acts = |which: &dyn Fn(&Act) -> bool| self.acts.iter().any(|(_, act)| which(act));
        let has_core = self.settings.machines[client.machine].cores.is_none();
        let call = match stall == 0 && has_core && !has_acts(&disturbs) {
            true => UNDISTURBED,
            // A thread that waits for a core waits for the quanta of all others; a working thread may be
            // slow, stalled or pre-empted; a sleep ends after 20 ms at the latest.
            false => {
                let tasks = 16 + 2 * self.clients.len() as u64;
                40_000_000 + stall_by * 20 + self.settings.prices.quantum * tasks * 4
            }
        };
        let connects = queue_pair_error != 0 || has_acts(&breaks);
        // Each thread may have to wait for those that connect before it.
        let attempts = nanos(client.config.connect_timeout) * client.threads;
        let connecting = call + if connects { attempts } else { 0 };
        Lateness { call, connecting }
    }

    /// Returns by how much a call may begin after its deadline: a round of the worker's polls and the request's
    /// time on the network. Without limit if a thread of the server may lose its core, or if requests are delayed on
    /// their way. A thread that shares a connection has the calls of the others in the round. Runs with groups have more
    /// clients than others; large payloads of all may be ahead of the request on a
    /// profile's network.
    pub(super) fn begins_late_by(&self) -> Option<Nanos> {
        let Faults { stall, loss, delay, not_ready, .. } = self.settings.faults;
        let shares = self.settings.machines.iter().any(|machine| machine.cores.is_some());
        let slows = self.acts.iter().any(|(_, act)| matches!(act, Act::Slow { .. }));
        let calm = [stall, loss, delay, not_ready] == [0; 4];
        let times = match self.settings.timing {
            TimingSettings::Model(_) if self.has_groups() => self.clients.len() as Nanos,
            _ => 1,
        };
        let threads = self.clients.iter().map(|client| client.threads).max().unwrap_or(1);
        (calm && !shares && !slows).then_some(times * threads * BEGINS_LATE)
    }

    /// Returns how long a client retries each call that must succeed once the run is calm. On a core shared
    /// with spinning threads a thread runs once per round of quanta, and an exchange with sleeps needs one
    /// round per step. Calls with a shorter deadline may have to wait until the other threads are done.
    pub(super) fn patience(&self, client: &DrawnClient) -> Nanos {
        let Settings { machines, prices, limit, start, .. } = &self.settings;
        let shares =
            [SERVER_MACHINE, client.machine].iter().any(|machine| machines[*machine].cores.is_some());
        match shares && client.config.call_nanos() < prices.quantum * QUANTA_OF_A_CALL {
            true => (limit - start) / 2,
            false => PATIENCE,
        }
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults { loss, delay, queue_pair_error, not_ready, refusal, stall, .. } = self.settings.faults;
        let cores: Vec<String> = self
            .settings
            .machines
            .iter()
            .map(|machine| machine.cores.map_or("any".to_owned(), |cores| cores.to_string()))
            .collect();
        write!(f, "cores {}; {} workers;", cores.join("/"), self.server.workers)?;
        if let TimingSettings::Model(ModelTiming { machines, .. }) = &self.settings.timing
            && let Some((profile, _)) = machines.first()
        {
            write!(f, " times of {};", profile.name())?;
        }
        if self.has_groups() {
            let (group_size, group_slice) = (self.group_size(), Duration::from_nanos(self.slice()));
            let group_priorities = self.server.group_priorities;
            let priorities = if group_priorities { " by priority" } else { "" };
            write!(f, " groups of {group_size}{priorities} for {group_slice:?};")?;
        }
        for client in &self.clients {
            let plan = client.config.plan.unwrap_or_default();
            let name = plan.protocol().map_or("a protocol", |protocol| protocol.name);
            write!(f, " {name} {}/{} {:?}", plan.client, plan.server, client.style)?;
            if client.threads > 1 {
                let config = &client.config;
                let (threads, most, pairs) = (client.threads, config.most_together, config.max_queue_pairs);
                let (sharing, active) = (plan.sharing.name(), self.server.max_active_queue_pairs);
                write!(
                    f,
                    " {sharing} by {threads} threads on {pairs} of {active} queue pairs, {most} together, {} credits",
                    config.credits
                )?;
                if config.credit_renewal == CreditRenewal::WriteImmediate {
                    f.write_str(" asked for apart")?;
                }
                if config.own_memory_from != u32::MAX {
                    write!(f, ", their own memory from {} B", config.own_memory_from)?;
                }
                if let Some(interval) = config.thread_scheduling {
                    write!(f, ", assigned every {interval:?}")?;
                }
            }
            if plan.lease == Lease::Slice {
                f.write_str(" by turns")?;
            }
            if let Some(Batching { calls, bytes, timeout, .. }) = &client.config.batching {
                write!(f, " {calls:?} of {bytes} bytes or {timeout:?}")?;
            }
            for (function, plan) in &client.config.functions {
                let name = plan.protocol().map_or("a protocol", |protocol| protocol.name);
                let turns = if plan.lease == Lease::Slice { " by turns" } else { "" };
                write!(f, ", function {function} by {name} {}/{}{turns}", plan.client, plan.server)?;
            }
            f.write_str(";")?;
        }
        let faults = [
            ("loss", loss),
            ("delay", delay),
            ("queue pair errors", queue_pair_error),
            ("not ready", not_ready),
            ("refusals", refusal),
            ("stalls", stall),
        ];
        for (name, _) in faults.iter().filter(|(_, rate)| *rate != 0) {
            write!(f, " {name}")?;
        }
        for (at, act) in &self.acts {
            write!(f, " {act:?} at {at}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_clients_have_to_keep_their_deadlines_exactly() {
        let drawn: Vec<Drawn> = (0..200).map(|seed| Drawn::from_seed(seed, None)).collect();
        let all: Vec<Lateness> = drawn
            .iter()
            .flat_map(|drawn| drawn.clients.iter().map(|client| drawn.lateness(client)))
            .collect();
        let exact = all.iter().filter(|lateness| lateness.call == UNDISTURBED).count();
        let at_once = all.iter().filter(|lateness| lateness.connecting == UNDISTURBED).count();
        assert!(exact * 5 > all.len() && at_once * 20 > all.len(), "{exact}, {at_once} of {}", all.len());
    }

    #[test]
    fn only_who_has_less_time_than_the_quanta_of_others_waits_for_their_end() {
        let mut drawn = Drawn::from_seed(1, None);
        let mut client = drawn.clients[0].clone();
        let quanta = drawn.settings.prices.quantum * QUANTA_OF_A_CALL;
        for machine in &mut drawn.settings.machines {
            machine.cores = None;
        }
        client.config.timeout = Duration::from_nanos(quanta - 1);
        assert_eq!(drawn.patience(&client), PATIENCE);
        drawn.settings.machines[client.machine].cores = Some(1);
        assert!(drawn.patience(&client) > PATIENCE);
        client.config.timeout = Duration::from_nanos(quanta);
        assert_eq!(drawn.patience(&client), PATIENCE);
    }

    /// Enough runs have calls with times of their own, slow handlers, and a server that must begin in time.
    #[test]
    fn many_runs_look_for_calls_that_begin_late() {
        let looks = |seed: &u64| {
            let drawn = Drawn::from_seed(*seed, None);
            let own = drawn.clients.iter().any(|client| client.own_times > 0);
            own && drawn.slow_ones.is_some() && drawn.begins_late_by().is_some()
        };
        let count = (0..3000).filter(looks).count();
        assert!(count >= 10, "{count} of 3000");
    }

    /// Enough runs have threads that share a connection, under each policy, also without any disturbance.
    #[test]
    fn many_runs_have_threads_that_share() {
        let drawn: Vec<Drawn> = (0..300).map(|seed| Drawn::from_seed(seed, None)).collect();
        let runs = |which: &dyn Fn(&Drawn, &DrawnClient) -> bool| {
            let has = |drawn: &&Drawn| drawn.clients.iter().any(|client| which(drawn, client));
            drawn.iter().filter(has).count()
        };
        for sharing in Sharing::shared() {
            let mine = |client: &DrawnClient| client.config.plan.is_some_and(|plan| plan.sharing == sharing);
            assert!(runs(&|_, client| mine(client) && client.threads > 1) > 40, "{sharing:?}");
            assert!(runs(&|drawn, client| mine(client) && drawn.is_undisturbed(client)) > 5, "{sharing:?}");
        }
    }

    #[test]
    fn many_runs_have_clones_of_an_asynchronous_client() {
        let drawn: Vec<Drawn> = (0..300).map(|seed| Drawn::from_seed(seed, None)).collect();
        let runs = |which: &dyn Fn(&Drawn, &DrawnClient) -> bool| {
            let is = |drawn: &Drawn, client: &DrawnClient| {
                client.style == Style::Asynchronous && client.is_combined() && which(drawn, client)
            };
            drawn.iter().filter(|drawn| drawn.clients.iter().any(|client| is(drawn, client))).count()
        };
        assert!(runs(&|_, _| true) > 40);
        assert!(runs(&|drawn, client| drawn.is_undisturbed(client)) > 5);
    }

    #[test]
    fn each_protocol_is_drawn_about_as_often_as_any_other() {
        let mut random = Random::new(1, 1);
        let draws: Vec<_> = (0..300 * PROTOCOLS.len()).map(|_| protocol(&mut random).name).collect();
        for known in PROTOCOLS {
            let count = draws.iter().filter(|name| **name == known.name).count();
            assert!((200..400).contains(&count), "{}: {count} of 300", known.name);
        }
    }

    /// Enough runs have threads that share a connection which takes turns with others.
    #[test]
    fn many_runs_have_threads_that_share_by_turns() {
        let shares = |client: &DrawnClient| client.threads > 1 && client.is_grouped(u16::MAX);
        let has = |seed: &u64| Drawn::from_seed(*seed, None).clients.iter().any(shares);
        let count = (0..300).filter(has).count();
        assert!(count > 20, "{count} of 300");
    }

    #[test]
    fn some_seeds_have_the_times_of_a_profile_and_say_so() {
        let modelled = |seed: &u64| {
            let drawn = Drawn::from_seed(*seed, None);
            let is_modelled = matches!(drawn.settings.timing, TimingSettings::Model(_));
            assert_eq!(drawn.to_string().contains(" times of "), is_modelled, "{drawn}");
            is_modelled
        };
        let count = (0..200).filter(modelled).count();
        assert!((20..100).contains(&count), "{count} of 200");
    }
}
