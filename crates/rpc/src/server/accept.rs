//! The server's side of the handshake: one control thread for all connections. It never waits for a single
//! client: each connection is a small state machine that advances when a record arrives.

use super::activity::QueuePair;
use super::clients::Clients;
use super::credited::LaneCredits;
use super::exposed::Grants;
use super::groups::ZONE_BYTES;
use super::inbox::{Command, Inbox, OpenCommand};
use super::open::refuse_with;
use super::open_lanes::Connection;
use super::slab::Slab;
use super::worker::Shared;
use crate::connect::records::send;
use crate::limits::{MAX_PLANS, RING_BYTES};
use crate::path::CONTROL_BYTES;
use crate::path::beside::Beside;
use crate::path::credits::MAX_CREDITS;
use crate::plan::{
    CompletionMode, LargePayload, Lease, Occupancy, Plan, PlanError, RequestHalf, ResponseHalf, Sharing,
};
use crate::service::{ConnectionObserver, NotAdmitted};
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Access, Endpoint, Fabric, Host, Link, Listener, Nanos, ReadyList, Region, RegionKey, Signal,
    Subscription, nanos,
};
use dunlin_wire::handshake::{
    Extension, Extensions, HandshakeError, Hello, HelloReply, MAX_VERSION, MIN_VERSION, OpenLane, Record,
    RefusalCode, Refused, negotiate,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The lanes of one connection are limited to two for each worker and plan, so that a client can renew a
/// lane.
const LANES_PER_WORKER: usize = 2 * MAX_PLANS;
/// The longest sleep of the control thread.
const LOOK_EVERY: Nanos = 200_000_000;
/// The most characters of a service's name in a refusal, whose text is bounded.
const SHOWN_NAME: usize = 24;
/// Records taken from one connection before the others are served.
const RECORDS_AT_ONCE: usize = 64;

/// State shared by the control thread and the server's handle.
#[derive(Debug)]
pub(crate) struct ControlState {
    /// The deadline of draining; 0 before draining starts.
    drain_until: AtomicU64,
    stop: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) next_worker: AtomicUsize,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) clients: Clients,
}

/// Counters of a server's connections since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that completed the hello exchange.
    pub accepted: u64,
    /// Connections that were refused or violated the handshake.
    pub refused: u64,
    /// Lanes requested.
    pub lanes: u64,
    /// Datagrams that were dropped: they belonged to no lane or found no room.
    pub stray_datagrams: u64,
}

impl ControlState {
    pub(crate) fn new() -> Self {
        ControlState {
            drain_until: AtomicU64::new(0),
            stop: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            next_worker: AtomicUsize::new(0),
            counters: Mutex::new(Counters::default()),
            clients: Clients::default(),
        }
    }

    pub(crate) fn drain(&self, until: Nanos) {
        self.drain_until.store(until.max(1), Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
    }

    fn count(&self, what: impl FnOnce(&mut Counters)) {
        what(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

struct Session<F: Fabric> {
    link: F::Link,
    number: u64,
    hello_until: Nanos,
    /// `None` before its hello.
    connection: Option<Arc<Connection>>,
    /// The activity of the connection as long as it has lanes with credits. A connection whose lanes broke counts no
    /// more, so that its client can connect again.
    queue_pair: Weak<QueuePair>,
    grants: Grants,
}

/// All current connections.
struct Sessions<F: Fabric> {
    /// Their places are the numbers of `ready`.
    all: Slab<Session<F>>,
    /// The connections with something to receive. Only these are served.
    ready: ReadyList,
    /// Connections of which [`RECORDS_AT_ONCE`] were served.
    unfinished: Vec<u32>,
    /// The connections without a hello so far, by the deadline of their hello.
    silent: BTreeSet<(Nanos, u32)>,
}

impl<F: Fabric> Sessions<F> {
    /// Returns the number of connections whose hello was answered.
    fn greeted(&self) -> usize {
        self.all.len() - self.silent.len()
    }

    fn remove(&mut self, place: u32) -> Option<Session<F>> {
        let session = self.all.remove(place)?;
        self.silent.remove(&(session.hello_until, place));
        Some(session)
    }

    /// Takes the places of connections that have something to receive.
    fn take_ready(&mut self) -> Vec<u32> {
        let mut taken = std::mem::take(&mut self.unfinished);
        taken.extend(self.ready.take().into_iter().map(|place| place as u32));
        taken
    }
}

/// The control thread's state.
pub(crate) struct Control<F: Fabric> {
    pub(crate) fabric: F,
    pub(crate) listener: F::Listener,
    pub(crate) shared: Arc<Shared<F>>,
    pub(crate) state: Arc<ControlState>,
    pub(crate) workers: Vec<Arc<Inbox<F>>>,
    pub(crate) signal: <F::Host as Host>::Signal,
    pub(crate) observer: Option<Arc<dyn ConnectionObserver>>,
}

impl<F: Fabric> Control<F> {
    /// Runs until the server stops.
    pub(crate) fn run(self) {
        let mut sessions = Sessions {
            all: Slab::default(),
            ready: ReadyList::new(),
            unfinished: Vec::new(),
            silent: BTreeSet::new(),
        };
        let mut announced = false;
        self.listener.subscribe(self.signal.clone());
        let cores = self.cores();
        loop {
            let seen = self.signal.seen();
            // Load `stop` first: it is set after `drain_until`, and workers end only on a drain command.
            let stop = self.state.stop.load(Ordering::Acquire) != 0;
            let drain_until = self.state.drain_until.load(Ordering::Acquire);
            if drain_until != 0 && !announced {
                announced = true;
                self.announce_drain(&sessions.all, drain_until);
            }
            if stop {
                break;
            }
            let mut moved = false;
            while let Ok(Some(link)) = self.listener.try_accept() {
                moved = true;
                self.accept(&mut sessions, link, announced);
            }
            let now = self.fabric.host().now();
            for place in sessions.take_ready() {
                moved = true;
                self.serve_ready(&mut sessions, place);
            }
            self.end_silent(&mut sessions, now);
            self.state.connections.store(sessions.all.len(), Ordering::Release);
            if moved && let Some(cores) = cores {
                self.count_threads(sessions.greeted(), cores);
            }
            if !moved {
                let next = sessions.silent.first().map_or(Nanos::MAX, |(until, _)| until + 1);
                self.signal.wait(seen, next.min(now + LOOK_EVERY));
            }
        }
        for session in sessions.all.iter() {
            self.observe_end(session);
            if let Ok(goodbye) = Record::Goodbye.encode() {
                let _ = session.link.send(&goodbye);
            }
            session.link.close();
        }
        self.state.clients.clear();
    }

    /// Returns the cores that workers and clients share; `None` if clients run on other hosts.
    fn cores(&self) -> Option<u32> {
        if !self.fabric.capabilities().initiator_copies {
            return None;
        }
        let topology = self.fabric.host().topology();
        let cores: usize = topology.nodes().map(|node| topology.cores(node).map_or(0, <[u32]>::len)).sum();
        (cores > 0).then_some(cores as u32)
    }

    /// Lets the workers wait adaptively while there are more threads than cores.
    fn count_threads(&self, clients: usize, cores: u32) {
        let occupancy = Occupancy { workers: self.workers.len() as u32, clients: clients as u32, cores };
        if self.shared.oversubscription.set(occupancy) {
            self.workers.iter().for_each(|worker| worker.push(Command::Occupancy));
        }
    }

    fn announce_drain(&self, sessions: &Slab<Session<F>>, until: Nanos) {
        for session in sessions.iter() {
            if let Ok(drain) = Record::Drain.encode() {
                let _ = session.link.send(&drain);
            }
        }
        for worker in &self.workers {
            worker.push(Command::Drain { until });
        }
    }

    fn accept(&self, sessions: &mut Sessions<F>, link: F::Link, draining: bool) {
        let refusal = if draining {
            Some((RefusalCode::DRAINING, "the server is shutting down"))
        } else if sessions.all.len() >= self.shared.config.max_connections as usize {
            Some((RefusalCode::TOO_MANY, "the server has as many connections as it takes"))
        } else {
            None
        };
        if let Some((code, text)) = refusal {
            self.refuse(&link, code, text);
            return;
        }
        let number = self.fabric.host().random() | 1;
        let place = sessions.all.next_place();
        let hello_until = self.fabric.host().now().saturating_add(nanos(self.shared.config.hello_timeout));
        let mark = sessions.ready.mark(place.into());
        link.subscribe(Subscription { signal: self.signal.clone(), mark });
        let (queue_pair, grants) = (Weak::new(), Grants::default());
        sessions.all.insert(Session { link, number, hello_until, connection: None, queue_pair, grants });
        sessions.silent.insert((hello_until, place));
    }

    /// Serves a connection that has something to receive.
    fn serve_ready(&self, sessions: &mut Sessions<F>, place: u32) {
        let others = sessions.greeted();
        let Some(session) = sessions.all.get_mut(place) else { return };
        let served = self.serve(place, session, others);
        if session.connection.is_some() {
            sessions.silent.remove(&(session.hello_until, place));
        }
        match served {
            Ok(true) => {}
            Ok(false) => sessions.unfinished.push(place),
            Err(Over) => self.end(sessions, place),
        }
    }

    /// Ends the connections whose hello is overdue.
    fn end_silent(&self, sessions: &mut Sessions<F>, now: Nanos) {
        while let Some(&(until, place)) = sessions.silent.first()
            && until < now
        {
            if let Some(session) = sessions.all.get_mut(place) {
                self.refuse(&session.link, RefusalCode::MALFORMED, "no hello came in time");
            }
            self.end(sessions, place);
        }
    }

    fn refuse(&self, link: &F::Link, code: RefusalCode, text: &str) {
        tracing::info!(target: "dunlin::server", peer = ?link.peer(), text, "a connection is refused");
        self.state.count(|counters| counters.refused += 1);
        if let Ok(message) = Record::Refused(Refused { code, text: text.to_owned() }).encode() {
            let _ = link.send(&message);
        }
        link.close();
    }

    fn end(&self, sessions: &mut Sessions<F>, place: u32) {
        if let Some(session) = sessions.remove(place) {
            session.link.close();
            self.observe_end(&session);
            self.state.clients.leave(place);
            for worker in &self.workers {
                worker.push(Command::Close { session: session.number });
            }
        }
    }

    fn observe_end(&self, session: &Session<F>) {
        if let Some(observer) = self.observer.as_ref().filter(|_| session.connection.is_some()) {
            observer.closed(session.number);
        }
    }

    /// Handles the records of one connection, at most [`RECORDS_AT_ONCE`] before other connections are
    /// served. Returns whether those were all. `others` is the number of greeted connections.
    fn serve(&self, place: u32, session: &mut Session<F>, others: usize) -> Result<bool, Over> {
        for _ in 0..RECORDS_AT_ONCE {
            let message = match session.link.try_receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(true),
                Err(_) => return Err(Over),
            };
            let record = match Record::decode(&message) {
                Ok(record) => record,
                // Only the lane is refused.
                Err(error @ HandshakeError::UnknownExtension { lane: Some(lane), .. })
                    if session.connection.is_some() =>
                {
                    refuse_with(&session.link, lane, RefusalCode::UNKNOWN_EXTENSION, &error.to_string());
                    continue;
                }
                Err(error @ HandshakeError::UnknownExtension { .. }) => {
                    self.refuse(&session.link, RefusalCode::UNKNOWN_EXTENSION, &error.to_string());
                    return Err(Over);
                }
                Err(error) => {
                    self.refuse(&session.link, RefusalCode::MALFORMED, &error.to_string());
                    return Err(Over);
                }
            };
            match record {
                Record::Hello(hello) if session.connection.is_none() => {
                    self.greet(place, session, &hello, others)?
                }
                Record::OpenLane(open) if session.connection.is_some() => self.open(session, open),
                Record::Attach(attach) if session.connection.is_some() => {
                    let grant = session.grants.attach(&self.shared.exposed, &session.link, &attach.name);
                    send(&session.link, &Record::Grant(grant)).map_err(|_| Over)?;
                }
                Record::Goodbye => return Err(Over),
                Record::CloseLane { lane } if session.connection.is_some() => self.close_lane(session, lane),
                other => {
                    let text = format!("{:?} does not belong here", other.record_type());
                    self.refuse(&session.link, RefusalCode::MALFORMED, &text);
                    return Err(Over);
                }
            }
        }
        Ok(false)
    }

    fn greet(&self, place: u32, session: &mut Session<F>, hello: &Hello, others: usize) -> Result<(), Over> {
        let number = session.number;
        let config = &self.shared.config;
        let version = negotiate((hello.min_version, hello.max_version), (MIN_VERSION, MAX_VERSION));
        let refusal = match &version {
            Err(error) => Some((RefusalCode::VERSION, error.to_string())),
            Ok(_) if !config.token.is_empty() && !hello.token.matches(&config.token) => {
                Some((RefusalCode::UNAUTHORISED, "the token is not the right one".to_owned()))
            }
            Ok(_) if !config.serves(&hello.service) => {
                let shown = |name: &str| name.chars().take(SHOWN_NAME).collect::<String>();
                let (ours, theirs) = (shown(&config.service), shown(&hello.service));
                let text =
                    format!("this server serves '{}', not '{}'", ours.escape_debug(), theirs.escape_debug());
                Some((RefusalCode::UNKNOWN_SERVICE, text))
            }
            Ok(_) => None,
        };
        if let Some((code, text)) = refusal {
            self.refuse(&session.link, code, &text);
            return Err(Over);
        }
        let connections = others as u32 + 1;
        let mut extensions = vec![
            Extension::ActiveQueuePairs(config.max_active_queue_pairs),
            Extension::Connections(connections),
        ];
        extensions.extend(self.cores().map(|cores| Extension::Occupancy { clients: connections, cores }));
        let reply = Record::HelloReply(HelloReply {
            version: version.unwrap_or(MIN_VERSION),
            capabilities: 0,
            workers: self.workers.len() as u16,
            functions: self.shared.functions.len() as u32,
            max_payload: config.max_payload,
            session: number,
            extensions: Extensions(extensions),
        });
        // All that others see of the client stands before the reply: its first call follows that.
        let opened = self
            .observer
            .as_ref()
            .map_or(Ok(()), |one| one.opened(number, &session.link.peer(), &hello.service, &hello.token));
        if let Err(reason) = opened {
            let (code, text) = match reason {
                NotAdmitted::Refused(text) => (RefusalCode::TOO_MANY, text),
                NotAdmitted::Unauthorised(text) => (RefusalCode::UNAUTHORISED, text),
            };
            self.refuse(&session.link, code, &text);
            return Err(Over);
        }
        session.connection = Some(self.state.clients.enter(place, number, hello));
        self.state.count(|counters| counters.accepted += 1);
        send(&session.link, &reply).map_err(|_| Over)
    }

    fn open(&self, session: &mut Session<F>, open: OpenLane) {
        self.state.count(|counters| counters.lanes += 1);
        let lane = open.lane;
        match self.plan_lane(session, open) {
            Ok((worker, command)) => worker.push(Command::Open(Box::new(command))),
            Err((code, text)) => refuse_with(&session.link, lane, code, &text),
        }
    }

    /// Closes a lane at the request of its client. Its worker answers when it has given the lane back.
    fn close_lane(&self, session: &Session<F>, lane: u16) {
        let Some(connection) = &session.connection else { return };
        match connection.close(lane) {
            Ok(worker) => {
                let link = session.link.clone();
                self.workers[worker as usize].push(Command::CloseLane {
                    session: session.number,
                    number: lane,
                    link,
                });
            }
            Err((code, text)) => refuse_with(&session.link, lane, code, text),
        }
    }

    /// Checks an `OpenLane` request and registers the server's memory for it. Registration is slow, so it
    /// runs here and not on the worker.
    fn plan_lane(&self, session: &mut Session<F>, open: OpenLane) -> Result<Planned<'_, F>, Refusal> {
        let config = &self.shared.config;
        let number_of_worker = if open.worker == OpenLane::ANY_WORKER {
            self.state.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers.len()
        } else {
            open.worker as usize
        };
        let Some(worker) = self.workers.get(number_of_worker) else {
            return Err((RefusalCode::TOO_MANY, format!("there is no worker {}", open.worker)));
        };
        let plan = plan_of(&open)?;
        plan.check(self.fabric.capabilities()).map_err(|error: PlanError| {
            let is_lease = matches!(error, PlanError::LeaseWithout { .. });
            let code = if is_lease { RefusalCode::SHARING } else { RefusalCode::ILLEGAL_PLAN };
            (code, error.to_string())
        })?;
        if !RING_BYTES.contains(&open.ring_bytes) || !open.ring_bytes.is_power_of_two() {
            let text = format!(
                "a ring of {} bytes is not possible: a power of two from 16 KiB to 1 MiB is",
                open.ring_bytes
            );
            return Err((RefusalCode::ILLEGAL_PLAN, text));
        }
        if open.window == 0 {
            return Err((RefusalCode::ILLEGAL_PLAN, "a window of no calls is not possible".to_owned()));
        }
        let (client_key, staged) = match (open.region_keys.as_slice(), plan.lease) {
            (&[client_key], Lease::Forever) => (client_key, None),
            (&[client_key, staged], Lease::Slice) => (client_key, Some(RegionKey(staged))),
            (_, Lease::Forever) => {
                return Err((RefusalCode::MALFORMED, "one region has to be granted".to_owned()));
            }
            (_, Lease::Slice) => {
                return Err((RefusalCode::MALFORMED, "two regions have to be granted".to_owned()));
            }
        };
        let Some(connection) = session.connection.clone() else {
            return Err((RefusalCode::MALFORMED, "no hello came".to_owned()));
        };
        let credits = self.credits(session, connection.client, (&plan, &open.extensions))?;
        let admitted =
            connection.admit(open.lane, number_of_worker as u16, LANES_PER_WORKER * self.workers.len());
        let admission = admitted.map_err(|(code, text)| (code, text.to_owned()))?;
        let mut ring_bytes = open.ring_bytes.min(config.max_ring_bytes);
        if staged.is_some() {
            ring_bytes = ZONE_BYTES;
        }
        let register = |length: u64, access| {
            self.fabric
                .register(length, access)
                .map(Region::new)
                .map_err(|error| (RefusalCode::NO_MEMORY, WithSources(&error).to_string()))
        };
        let is_pooled = staged.is_some() || config.request_pool.is_some();
        let has_ring = plan.request.facts().has_ring() && !is_pooled;
        let ring = if has_ring { ring_bytes as u64 } else { 0 };
        let bytes = CONTROL_BYTES as u64 + ring;
        let region = staged.is_none().then(|| register(bytes, Access::WRITE)).transpose()?;
        let published = plan.response.facts().published_bytes(ring_bytes);
        let published = published.map(|bytes| register(bytes, Access::READ)).transpose()?;
        let mut secret = [0; 16];
        for half in secret.as_chunks_mut::<8>().0 {
            *half = self.fabric.host().random().to_le_bytes();
        }
        let command = OpenCommand {
            number: open.lane,
            link: session.link.clone(),
            plan,
            window: open.window.min(config.window),
            ring_bytes,
            client_ring_bytes: open.ring_bytes,
            endpoint: Endpoint(open.endpoint),
            beside: Beside {
                connected: Some(Endpoint(open.unreliable_endpoint)),
                unconnected: Some(Endpoint(open.datagram_endpoint)),
            },
            client_key: RegionKey(client_key),
            staged,
            region,
            published,
            secret,
            credits,
            admission,
        };
        Ok((worker, command))
    }
}

impl<F: Fabric> Control<F> {
    /// Creates the account of a lane with credits. Refuses a connection beyond those that the client may use.
    fn credits(
        &self,
        session: &mut Session<F>,
        client: u64,
        (plan, extensions): (&Plan, &Extensions),
    ) -> Result<Option<Box<LaneCredits>>, Refusal> {
        let is_apart = extensions.is_renewed_apart();
        let renewal = match (plan.has_credits(), extensions.credits().map(u16::from)) {
            (false, None) if !is_apart => return Ok(None),
            _ if is_apart && !self.fabric.capabilities().immediate => {
                let text = "credits cannot be asked for by immediate data, which the fabric lacks";
                return Err((RefusalCode::ILLEGAL_PLAN, text.to_owned()));
            }
            (true, Some(renewal)) if (1..=MAX_CREDITS).contains(&renewal) => renewal,
            _ => {
                let text =
                    "a lane that threads share by combining has 1 to 63 credits, and no other lane any";
                return Err((RefusalCode::ILLEGAL_PLAN, text.to_owned()));
            }
        };
        let activity = &self.shared.activity;
        let queue_pair = if session.queue_pair.strong_count() > 0 {
            activity.widen(client, &session.queue_pair)
        } else {
            Some(activity.open(client)).filter(|opened| opened.is_active())
        };
        let Some(queue_pair) = queue_pair else {
            let text = "the client has as many queue pairs as it may use now";
            return Err((RefusalCode::QUEUE_PAIRS, text.to_owned()));
        };
        session.queue_pair = Arc::downgrade(&queue_pair);
        Ok(Some(Box::new(LaneCredits::new(renewal, is_apart, queue_pair))))
    }
}

/// The worker that serves a lane, and the command that opens it.
type Planned<'a, F> = (&'a Arc<Inbox<F>>, OpenCommand<F>);

/// The reason why a lane is refused, as a code and as text.
type Refusal = (RefusalCode, String);

/// The connection has ended.
struct Over;

/// Returns the plan that a client asks for.
fn plan_of(open: &OpenLane) -> Result<Plan, Refusal> {
    let unknown = || (RefusalCode::ILLEGAL_PLAN, "a half or mode of the plan is unknown".to_owned());
    let without = |what: &str, number: u8| {
        (RefusalCode::SHARING, format!("this server does not have the {what} with number {number}"))
    };
    let sharing = Sharing::from_wire(open.sharing).ok_or_else(|| without("sharing policy", open.sharing))?;
    let lease = Lease::from_wire(open.lease).ok_or_else(|| without("lease", open.lease))?;
    Ok(Plan {
        request: RequestHalf::from_wire(open.request_half).ok_or_else(unknown)?,
        response: ResponseHalf::from_wire(open.response_half).ok_or_else(unknown)?,
        sharing,
        lease,
        client: CompletionMode::from_wire(open.client_completion).ok_or_else(unknown)?,
        server: CompletionMode::from_wire(open.server_completion).ok_or_else(unknown)?,
        large: LargePayload::from_wire(open.large).ok_or_else(unknown)?,
        rendezvous_above: open.rendezvous_above,
    })
}
