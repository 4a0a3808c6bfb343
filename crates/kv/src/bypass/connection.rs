//! A client's READs of a server's memory: a reliable connection that carries only READs, and a control
//! connection for the handshake. One thread handles the server's end and takes no part in READs.

use super::cuckoo::{ENTRY_BYTES, WAYS};
use super::hopscotch::OVERFLOW;
use super::space::LINE;
use super::{HEADER_BYTES, Kind, Shape};
use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Access, Address, Arena, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, CreateError,
    DialError, Endpoint, Fabric, GrantError, Host, Link, LinkError, Listener, Nanos, Operation, PostError,
    QueuePairConfig, QueuePairId, ReadyList, RegionKey, RegisterError, RemoteSlice, Signal, Subscription,
    ThreadDomain, WaitMode, Wake, WorkId, WorkRequest,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// A memory of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Entries or slots.
    Index,
    /// Records or values to which the index points.
    Data,
}

/// The reason why a READ failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The server is gone.
    #[error("the server is gone")]
    PeerGone,
    /// The deadline passed; concurrent writes may have torn the bytes each time.
    #[error("the deadline passed after {attempts} attempts to read what was being written")]
    TimedOut {
        /// READs whose bytes were not consistent.
        attempts: u32,
    },
    /// The READ failed; the connection is unusable.
    #[error("a READ failed: {}", .0.describe())]
    Failed(CompletionStatus),
    /// The READ could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// No memory to READ into.
    #[error("there is no registered memory for {0} bytes")]
    OutOfMemory(usize),
}

/// One-sided READs of one partition's memory. The caller keeps offsets and lengths within the bounds of the
/// handshake.
pub(super) trait Reads {
    /// READs bytes; blocks until the READ is complete.
    fn read(&mut self, area: Area, offset: u64, into: &mut [u8]) -> Result<(), ReadError>;

    /// Counts an attempt that read inconsistent bytes and pauses, longer each time; fails after the deadline.
    fn pause(&mut self, attempt: &mut u32) -> Result<(), ReadError>;
}

/// The reason why a connection for READs could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control connection failed.
    #[error("the handshake failed")]
    Link(#[from] LinkError),
    /// The server's description of its tables is invalid.
    #[error("the server's tables cannot be understood: {0}")]
    Offer(&'static str),
    /// A queue pair could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The engine's connection, for PUTs, failed.
    #[error(transparent)]
    Engine(#[from] dunlin_rpc::ConnectError),
}

const MAGIC: [u8; 8] = *b"dunlinBP";
const VERSION: u16 = 1;
/// Most partitions of one server.
pub(super) const MAX_PARTITIONS: usize = 256;
const PARTITION_BYTES: usize = 48;
/// Most slots of a neighbourhood.
pub(super) const MAX_NEIGHBOURHOOD: u32 = 64;
/// A client's memory for READs, in bytes, which bounds one READ.
const READ_MEMORY: u64 = 4 << 20;
/// The usual size of the READ buffer, in bytes.
const USUAL_READ: usize = 4096;

/// A client's description of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) shape: Shape,
    pub(super) index: RegionKey,
    pub(super) data: RegionKey,
}

/// Encodes the server's first message to a client: its tables, and its endpoint of the connection.
fn encode_offer(partitions: &[Offered], endpoint: &Endpoint) -> Vec<u8> {
    let kind = partitions.first().map_or(0, |one| one.shape.kind as u8);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&(partitions.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(endpoint.0.len() as u16).to_le_bytes());
    for Offered { shape, index, data } in partitions {
        for number in
            [shape.places, shape.neighbourhood.into(), shape.index_bytes, shape.data_bytes, index.0, data.0]
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    bytes.extend_from_slice(&endpoint.0);
    bytes
}

/// Parses an offer; the error says why it is invalid.
fn parse_offer(bytes: &[u8]) -> Result<(Vec<Offered>, Endpoint), &'static str> {
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return Err("too short") };
    if head[..8] != MAGIC {
        return Err("not an offer of tables; is that the address for READs?");
    }
    if u16::from_le_bytes([head[8], head[9]]) != VERSION {
        return Err("another version");
    }
    let Some(kind) = Kind::from_wire(head[10]) else { return Err("an unknown kind of table") };
    let partitions = usize::from(u16::from_le_bytes([head[12], head[13]]));
    let endpoint = usize::from(u16::from_le_bytes([head[14], head[15]]));
    if partitions == 0 || partitions > MAX_PARTITIONS {
        return Err("no partitions, or too many");
    }
    if rest.len() != partitions * PARTITION_BYTES + endpoint {
        return Err("not as long as it says");
    }
    let (tables, endpoint) = rest.split_at(partitions * PARTITION_BYTES);
    let mut offered = Vec::with_capacity(partitions);
    for table in tables.chunks_exact(PARTITION_BYTES) {
        let number = |at: usize| super::number_at(table, at * 8);
        let (places, neighbourhood) = (number(0), number(1));
        let (slots, bytes) = match kind {
            Kind::Pilaf => (places.checked_mul(1), ENTRY_BYTES),
            Kind::Farm => {
                (places.checked_add(neighbourhood).and_then(|slots| slots.checked_add(OVERFLOW as u64)), LINE)
            }
        };
        let needed = slots
            .and_then(|slots| slots.checked_mul(bytes as u64))
            .and_then(|bytes| bytes.checked_add(HEADER_BYTES))
            .map(|bytes| if kind == Kind::Farm { bytes - LINE as u64 } else { bytes });
        let fits = needed.is_some_and(|needed| needed <= number(2));
        let ways = match kind {
            Kind::Pilaf => neighbourhood == WAYS as u64,
            Kind::Farm => (1..=u64::from(MAX_NEIGHBOURHOOD)).contains(&neighbourhood),
        };
        if places == 0 || !fits || !ways {
            return Err("a table that is larger than its memory, or of no size");
        }
        let shape = Shape {
            kind,
            places,
            neighbourhood: neighbourhood as u32,
            index_bytes: number(2),
            data_bytes: number(3),
        };
        offered.push(Offered { shape, index: RegionKey(number(4)), data: RegionKey(number(5)) });
    }
    Ok((offered, Endpoint(endpoint.to_vec())))
}

/// The client's end.
#[derive(Debug)]
pub(super) struct OneSided<F: Fabric> {
    fabric: F,
    link: F::Link,
    domain: F::Domain,
    completions: CompletionQueueId,
    queue_pair: QueuePairId,
    arena: Arena<F::Memory>,
    buffer: Option<Buffer<F::Memory>>,
    found: Vec<Completion<F::Memory>>,
    /// READs posted.
    posted: u64,
    /// A READ failed, or its completion was not awaited.
    broken: bool,
    timeout: Nanos,
}

impl<F: Fabric> OneSided<F> {
    /// Connects. Blocks until `until` at most.
    pub(super) fn connect(
        fabric: &F,
        address: &Address,
        timeout: Nanos,
        until: Nanos,
    ) -> Result<(Self, Vec<Offered>), ConnectError> {
        let link = fabric.dial(address, until)?;
        let offer = link.receive(until)?;
        let (offered, remote) = parse_offer(&offer).map_err(ConnectError::Offer)?;
        let mut domain = fabric.domain()?;
        let completions = domain.create_completion_queue(16, false)?;
        let queue_pair = domain.create_queue_pair(&config(completions))?;
        let endpoint = domain.endpoint(queue_pair, &link)?;
        link.send(&endpoint.0)?;
        domain.connect(queue_pair, &link, &remote)?;
        // The server's last message: it is connected, too.
        link.receive(until)?;
        let memory = fabric.register(READ_MEMORY, Access::LOCAL)?;
        let Ok(arena) = Arena::new(memory) else { return Err(ConnectError::Offer("memory to read into")) };
        let fabric = fabric.clone();
        let (buffer, found) = (None, Vec::with_capacity(4));
        let timeout = if timeout == 0 { Nanos::MAX } else { timeout };
        let one_sided = OneSided {
            fabric,
            link,
            domain,
            completions,
            queue_pair,
            arena,
            buffer,
            found,
            posted: 0,
            broken: false,
            timeout,
        };
        Ok((one_sided, offered))
    }

    /// Returns the READs posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    fn read(&mut self, from: RemoteSlice, into: &mut [u8]) -> Result<(), ReadError> {
        if self.broken || !self.link.is_alive() {
            return Err(ReadError::PeerGone);
        }
        let mut buffer = match self.buffer.take() {
            Some(buffer) if buffer.capacity() >= into.len() => buffer,
            _ => {
                let wanted = into.len().max(USUAL_READ);
                self.arena.reserve(wanted).map_err(|_| ReadError::OutOfMemory(wanted))?
            }
        };
        buffer.set_length(into.len());
        self.posted += 1;
        let host = self.fabric.host().clone();
        host.charge(dunlin_fabric::Work::PostWork, 1);
        let operation = Operation::Read { from, into: buffer };
        let request = WorkRequest { id: WorkId(self.posted), operation, signaled: true };
        self.domain.post(self.queue_pair, request)?;
        let completion = self.wait_for_it()?;
        host.charge(dunlin_fabric::Work::PollCompletion, 1);
        match (completion.status, completion.buffer) {
            (CompletionStatus::Success, Some(buffer)) if buffer.len() == into.len() => {
                into.copy_from_slice(&buffer);
                self.buffer = Some(buffer);
                Ok(())
            }
            (status, _) => {
                self.broken = true;
                Err(ReadError::Failed(status))
            }
        }
    }

    fn wait_for_it(&mut self) -> Result<Completion<F::Memory>, ReadError> {
        let (mut until, mut looks) = (None, 0u32);
        loop {
            if self.domain.poll(self.completions, &mut self.found, 1) > 0
                && let Some(completion) = self.found.pop()
            {
                return Ok(completion);
            }
            let armed: Armed = self.domain.arm(WaitMode::Busy);
            if self.domain.poll(self.completions, &mut self.found, 1) > 0
                && let Some(completion) = self.found.pop()
            {
                self.domain.disarm(armed);
                return Ok(completion);
            }
            let until = *until.get_or_insert_with(|| self.fabric.host().now().saturating_add(self.timeout));
            looks += 1;
            let late = looks.is_multiple_of(LOOKS_AT_ONCE) && self.fabric.host().now() >= until;
            if late || !self.link.is_alive() {
                self.domain.disarm(armed);
                self.broken = true;
                return Err(if late { ReadError::TimedOut { attempts: 0 } } else { ReadError::PeerGone });
            }
            if self.domain.wait(armed, until) == Wake::TimedOut {
                // Treat the next empty poll as late.
                looks = LOOKS_AT_ONCE - 1;
            }
        }
    }

    /// Returns the READs of one partition, for one operation.
    pub(super) fn of<'a>(&'a mut self, partition: &Offered) -> PartitionReads<'a, F> {
        PartitionReads { index: partition.index, data: partition.data, reads: self, until: None }
    }
}

impl<F: Fabric> Drop for OneSided<F> {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// READs of one partition, for one operation, which has a deadline.
#[derive(Debug)]
pub(super) struct PartitionReads<'a, F: Fabric> {
    reads: &'a mut OneSided<F>,
    index: RegionKey,
    data: RegionKey,
    until: Option<Nanos>,
}

/// Polls between two reads of the clock.
const LOOKS_AT_ONCE: u32 = 64;
/// Attempts without a pause.
const ATTEMPTS_AT_ONCE: u32 = 16;
/// The longest pause between attempts, in nanoseconds.
const LONGEST_PAUSE: Nanos = 1_000_000;

impl<F: Fabric> Reads for PartitionReads<'_, F> {
    fn read(&mut self, area: Area, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let key = match area {
            Area::Index => self.index,
            Area::Data => self.data,
        };
        if into.is_empty() {
            return Ok(());
        }
        self.reads.read(RemoteSlice { key, offset, length: into.len() as u32 }, into)
    }

    fn pause(&mut self, attempt: &mut u32) -> Result<(), ReadError> {
        *attempt += 1;
        if *attempt <= ATTEMPTS_AT_ONCE {
            return Ok(());
        }
        let host = self.reads.fabric.host();
        let now = host.now();
        let until = *self.until.get_or_insert(now.saturating_add(self.reads.timeout));
        if now >= until {
            return Err(ReadError::TimedOut { attempts: *attempt });
        }
        host.sleep((now + (1_000 * u64::from(*attempt)).min(LONGEST_PAUSE)).min(until));
        Ok(())
    }
}

fn config(completions: CompletionQueueId) -> QueuePairConfig {
    QueuePairConfig { max_send: 16, max_receive: 1, ..QueuePairConfig::reliable(completions, completions) }
}

/// Time limit for a client's endpoint message, in nanoseconds.
const HELLO: Nanos = 5_000_000_000;
/// The longest sleep of the control thread, in nanoseconds.
const LOOK_EVERY: Nanos = 200_000_000;

/// The control thread's state of a client.
struct Session<F: Fabric> {
    link: F::Link,
    queue_pair: QueuePairId,
    remote: Endpoint,
    /// Deadline for the client's endpoint message; `None` once it has arrived.
    hello: Option<Nanos>,
}

/// The server's end of all connections.
pub(super) struct Control<F: Fabric> {
    pub(super) fabric: F,
    pub(super) listener: F::Listener,
    /// For each partition: its table's shape, and the memory of index and data.
    pub(super) partitions: Vec<(Shape, [Arc<F::Memory>; 2])>,
    pub(super) signal: <F::Host as Host>::Signal,
    pub(super) over: Arc<AtomicBool>,
    pub(super) max_connections: usize,
}

impl<F: Fabric> Control<F> {
    /// Runs until the server ends.
    pub(super) fn run(self, mut domain: F::Domain, completions: CompletionQueueId) {
        let mut sessions: BTreeMap<u64, Session<F>> = BTreeMap::new();
        let (ready, mut next) = (ReadyList::new(), 0);
        self.listener.subscribe(self.signal.clone());
        while !self.over.load(Ordering::Acquire) {
            let seen = self.signal.seen();
            let now = self.fabric.host().now();
            while let Ok(Some(link)) = self.listener.try_accept() {
                if sessions.len() >= self.max_connections {
                    link.close();
                    continue;
                }
                next += 1;
                match self.greet(&mut domain, completions, link.clone()) {
                    Ok(session) => {
                        sessions.insert(next, Session { hello: Some(now + HELLO), ..session });
                        let mark = ready.mark(next);
                        link.subscribe(Subscription { signal: self.signal.clone(), mark });
                    }
                    Err(error) => {
                        tracing::warn!(target: "dunlin::bypass", error = %WithSources(&error), "a client could not be connected");
                        link.close();
                    }
                }
            }
            for number in ready.take() {
                let Some(session) = sessions.get_mut(&number) else { continue };
                if let Err(why) = hear::<F>(&mut domain, session) {
                    tracing::debug!(target: "dunlin::bypass", why, "a client is gone");
                    session.link.close();
                    let _ = domain.destroy_queue_pair(session.queue_pair);
                    sessions.remove(&number);
                }
            }
            sessions.retain(|_, session| {
                let late = session.hello.is_some_and(|until| now >= until);
                if late {
                    session.link.close();
                    let _ = domain.destroy_queue_pair(session.queue_pair);
                }
                !late
            });
            self.signal.wait(seen, now + LOOK_EVERY);
        }
        for session in sessions.into_values() {
            session.link.close();
            let _ = domain.destroy_queue_pair(session.queue_pair);
        }
    }

    /// Sends a client the tables and the server's endpoint of the connection.
    fn greet(
        &self,
        domain: &mut F::Domain,
        completions: CompletionQueueId,
        link: F::Link,
    ) -> Result<Session<F>, GreetError> {
        let mut offered = Vec::with_capacity(self.partitions.len());
        for (shape, memory) in &self.partitions {
            let [index, data] = memory;
            let (index, data) = (link.grant(index, Access::READ)?, link.grant(data, Access::READ)?);
            offered.push(Offered { shape: *shape, index, data });
        }
        let queue_pair = domain.create_queue_pair(&config(completions))?;
        let greeted = domain
            .endpoint(queue_pair, &link)
            .map_err(GreetError::from)
            .and_then(|endpoint| Ok(link.send(&encode_offer(&offered, &endpoint))?));
        match greeted {
            Ok(()) => Ok(Session { link, queue_pair, remote: Endpoint(Vec::new()), hello: None }),
            Err(error) => {
                let _ = domain.destroy_queue_pair(queue_pair);
                Err(error)
            }
        }
    }
}

#[derive(Debug, Error)]
enum GreetError {
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Takes a client's endpoint message; any further message is an error.
fn hear<F: Fabric>(domain: &mut F::Domain, session: &mut Session<F>) -> Result<(), &'static str> {
    loop {
        match session.link.try_receive() {
            Ok(None) => return Ok(()),
            Ok(Some(endpoint)) if session.hello.is_some() => {
                session.hello = None;
                session.remote = Endpoint(endpoint);
                domain
                    .connect(session.queue_pair, &session.link, &session.remote)
                    .map_err(|_| "its end of the connection cannot be used")?;
                session.link.send(&[]).map_err(|_| "it does not listen")?;
            }
            Ok(Some(_)) => return Err("it said something that nobody asked for"),
            Err(_) => return Err("its connection has ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offered(kind: Kind) -> Offered {
        let (places, neighbourhood) = (100, if kind == Kind::Pilaf { 3 } else { 8 });
        let index_bytes = if kind == Kind::Pilaf { 64 + 3200 } else { 64 + (107 + OVERFLOW as u64) * 64 };
        let shape = Shape { kind, places, neighbourhood, index_bytes, data_bytes: 5000 };
        Offered { shape, index: RegionKey(7), data: RegionKey(1 << 40) }
    }

    #[test]
    fn an_offer_is_understood_and_what_cannot_be_is_refused() {
        for kind in Kind::ALL {
            let (one, endpoint) = (offered(kind), Endpoint(vec![1, 2, 3]));
            let parsed = parse_offer(&encode_offer(&[one, one], &endpoint));
            assert_eq!(parsed, Ok((vec![one, one], endpoint.clone())));
            let wrong = |change: fn(&mut Shape)| {
                let mut wrong = one;
                change(&mut wrong.shape);
                assert!(parse_offer(&encode_offer(&[one, wrong], &endpoint)).is_err(), "{wrong:?}");
            };
            wrong(|shape| shape.places = 0);
            wrong(|shape| shape.places += 1);
            wrong(|shape| shape.places = u64::MAX / 16);
            wrong(|shape| shape.neighbourhood = 0);
            wrong(|shape| shape.neighbourhood = 1000);
            wrong(|shape| shape.index_bytes -= 1);
            assert!(parse_offer(&encode_offer(&[], &endpoint)).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_offer_is_parsed_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), honest in any::<bool>()) {
            if honest {
                let good = encode_offer(&[offered(Kind::Farm)], &Endpoint(vec![0; 20]));
                let cut = bytes.len().min(good.len());
                bytes[..cut].copy_from_slice(&good[..cut]);
            }
            if let Ok((offered, _)) = parse_offer(&bytes) {
                prop_assert!(!offered.is_empty());
            }
        }
    }
}
