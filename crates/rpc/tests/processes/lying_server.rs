//! Answers that a hostile or broken server can publish, write back, or leave out. Each call of its client
//! ends with the status that says what happened, by its deadline at the latest; a malformed answer never
//! becomes a result, and nothing hangs.
//!
//! The server is a process that performs the handshake itself and gives correct answers except for one lie.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{Process, add_role, ready};
use crate::common::raw::{CONTROL, LONGEST, RING, call, receive, send};
use crate::common::*;
use dunlin_fabric::{
    Access, Address, Data, Endpoint, Fabric, Link, Listener, Operation, QueuePairConfig, QueuePairId, Region,
    RegionKey, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmDomain, ShmFabric, ShmLink, ShmMemory};
use dunlin_rpc::*;
use dunlin_wire::handshake::{Extensions, HelloReply, LaneReady, MAX_VERSION, OpenLane, Record, Secret};
use dunlin_wire::{
    BatchBuilder, Descriptor, Direction, EntryMeta, Flags, Header, Kind, LINE, Message, SingleLayout,
    TAG_OFFSET, TagKey, Tags,
};
use std::time::Duration;

tests!(
    answers_that_are_right_are_taken,
    lengths_that_lie,
    answers_that_are_half_there,
    lines_that_mean_nothing,
    flags_and_times_that_mean_nothing,
    answers_to_calls_that_were_not_made,
    answers_both_ways,
    credits_and_threads_that_lie,
    batches_that_are_right_are_taken,
    batches_whose_counts_lie,
    batches_whose_lengths_lie,
    batches_of_calls_that_were_not_made,
    results_that_lie_elsewhere,
    lines_that_change_while_they_are_read,
    a_server_that_says_nothing,
    a_server_that_dies_while_clients_fetch,
);

/// Adds the roles of this file.
pub(crate) fn add_roles() {
    add_role("liar", liar);
}

/// A call's deadline, in nanoseconds.
const DEADLINE: u64 = 200_000_000;
const SECRET: [u8; 16] = [9; 16];
/// The offset of the mode word before the ring of requests (`path/half/hybrid.rs`).
const MODE_WORD: usize = 8;

fn plans() -> [Plan; 2] {
    [ResponseHalf::Fetch, ResponseHalf::FetchOrWrite].map(|half| Plan::new(RequestHalf::Write, half))
}

fn is_late(error: &CallError) -> bool {
    *error == CallError::MaybeExecuted(Cause::DeadlineExceeded)
}

/// A server that announces a large result says by that that the handler ran.
fn has_effect(error: &CallError) -> bool {
    matches!(error, CallError::MaybeExecuted(_) | CallError::Executed(_))
}

fn is_violation(error: &CallError) -> bool {
    has_effect(error) && error.cause() == Some(Cause::ProtocolViolation)
}

fn is_lost(error: &CallError) -> bool {
    has_effect(error) && error.cause() == Some(Cause::ConnectionLost)
}

/// Calls a server that tells this lie, from clients that fetch and from clients that fetch or have results
/// written back: one call, several at once, and one more at the end, perhaps over a new connection. `ends`
/// decides whether an outcome is allowed.
fn each(lie: &str, ends: impl Fn(Result<&[u8], CallError>) -> bool) {
    each_of(plans(), lie, ends);
}

fn each_of(plans: [Plan; 2], lie: &str, ends: impl Fn(Result<&[u8], CallError>) -> bool) {
    for plan in plans {
        println!("  {lie}, {:?}", plan.response);
        let address = unique("liar");
        let _server = Process::start("liar", &format!("{address} {lie}"));
        let config = ClientConfig { timeout: Duration::from_nanos(DEADLINE), window: 8, ..with_plan(plan) };
        let mut client = Client::connect(&fabric(), &address, config).unwrap();
        let payload = pattern(24, 1);
        let check = |outcome: Result<&[u8], CallError>| {
            let text = format!("{lie}: {outcome:?}");
            if let Ok(result) = outcome {
                assert_eq!(result, payload, "{lie}");
            }
            assert!(ends(outcome), "{text}");
        };
        check(client.call(ECHO, &payload).as_deref().map_err(|error| error.clone()));
        let gone = |error: &CallError| matches!(error, CallError::NotExecuted(_));
        let several: Vec<_> = (0..4).map(|_| client.submit_on(0, ECHO, &payload)).collect();
        for id in several {
            // Without a connection no call is sent until the next attempt is due.
            match id {
                Ok(id) => check(client.wait(id).as_deref().map_err(|error| error.clone())),
                Err(error) => assert!(gone(&error), "{lie}: {error}"),
            }
        }
        if let Err(error) = client.call(ECHO, &payload) {
            assert!(gone(&error) || ends(Err(error.clone())), "{lie}: {error}");
        }
    }
}

fn answers_that_are_right_are_taken() {
    each("none", |outcome| outcome.is_ok());
}

fn lengths_that_lie() {
    // The client waits for the rest of a message that may still arrive.
    for length in [33u32, 100, 4000, 8000] {
        each(&format!("length={length}"), |outcome| {
            outcome.is_err_and(|error| is_late(&error) || is_violation(&error))
        });
    }
    for length in [LONGEST as u32, RING, 1 << 20, u32::MAX] {
        each(&format!("length={length}"), |outcome| outcome.is_err_and(|error| is_violation(&error)));
    }
}

fn answers_that_are_half_there() {
    for lie in ["tail", "tag", "half"] {
        each(lie, |outcome| outcome.is_err_and(|error| is_late(&error)));
    }
    each("canary", |outcome| outcome.is_err_and(|error| is_violation(&error)));
}

fn lines_that_mean_nothing() {
    for seed in 1..6 {
        each(&format!("noise={seed}"), |outcome| outcome.is_err());
    }
    each("kind", |outcome| outcome.is_err_and(|error| is_violation(&error)));
}

fn flags_and_times_that_mean_nothing() {
    for flags in [1u32, 2, 4, 8, 16, 32, 64, 128, 255] {
        // Some flags have another meaning, such as a result elsewhere. None makes a result of a malformed
        // answer.
        each(&format!("flags={flags}"), |_| true);
    }
    for time in [1, u32::MAX] {
        each(&format!("time={time}"), |outcome| outcome.is_ok());
    }
    each("code=65535", |outcome| outcome.is_err());
    for head in [4096u32, 1 << 30] {
        each(&format!("head={head}"), |outcome| outcome.is_err_and(|error| is_violation(&error)));
    }
}

fn answers_to_calls_that_were_not_made() {
    for id in [call(5, 9), call(4095, 1), u32::MAX] {
        // If answers may come in both ways, an unexpected one is dropped, and then the deadline passes.
        each(&format!("call={id}"), |outcome| {
            outcome.is_err_and(|error| is_late(&error) || is_violation(&error))
        });
    }
}

fn answers_both_ways() {
    each("both", |outcome| outcome.is_ok());
}

/// A combined client is granted what it did not ask for, is declined by each answer, or hears of a thread that it does
/// not have.
fn credits_and_threads_that_lie() {
    let combined = plans().map(|plan| Plan { sharing: Sharing::Combined, ..plan });
    each_of(combined, "none", |outcome| outcome.is_ok());
    each_of(combined, "credits=128", |outcome| outcome.is_ok());
    for thread in [1, 65_535] {
        each_of(combined, &format!("thread={thread}"), |outcome| {
            outcome.is_err_and(|error| is_violation(&error))
        });
    }
    // The last queue pair waits for credits, each call until its deadline.
    each_of(combined, "flags=1", |outcome| match outcome {
        Ok(_) => true,
        Err(error) => is_late(&error) || error == CallError::NotExecuted(Cause::DeadlineExceeded),
    });
}

fn batches_that_are_right_are_taken() {
    each("batch", |outcome| outcome.is_ok());
}

/// The count is larger or smaller than the number of entries, or zero.
fn batches_whose_counts_lie() {
    for count in [0u32, 2, 3, 128, u32::from(u16::MAX)] {
        each(&format!("batch_count={count}"), |outcome| outcome.is_err_and(|error| is_violation(&error)));
    }
    each("batch_of_two_count=1", |outcome| outcome.is_err_and(|error| is_violation(&error)));
}

/// The entry's length exceeds the batch, or the batch's length exceeds the limit of a message.
fn batches_whose_lengths_lie() {
    for length in [100u32, 8000, 1 << 20, u32::MAX] {
        each(&format!("batch_entry_length={length}"), |outcome| {
            outcome.is_err_and(|error| is_violation(&error))
        });
    }
    for length in [RING, 1 << 20, u32::MAX] {
        each(&format!("batch_length={length}"), |outcome| outcome.is_err_and(|error| is_violation(&error)));
    }
    // The client waits for the rest of a message that may still arrive.
    each("batch_length=4000", |outcome| outcome.is_err_and(|error| is_late(&error) || is_violation(&error)));
}

/// A batch of the correct answer and another one, to a call that was never made or to the same call again.
/// The first answer counts. The other is dropped if answers may come in both ways, and otherwise ends the
/// connection. Without the correct answer the call stays unanswered.
fn batches_of_calls_that_were_not_made() {
    for id in [call(5, 9), call(4095, 1), u32::MAX] {
        each(&format!("batch_call={id}"), |outcome| {
            outcome.is_err_and(|error| is_late(&error) || is_violation(&error))
        });
        each(&format!("batch_and_call={id}"), |outcome| match outcome {
            Ok(_) => true,
            Err(error) => is_violation(&error),
        });
    }
    each("batch_twice", |outcome| match outcome {
        Ok(_) => true,
        Err(error) => is_violation(&error),
    });
}

fn results_that_lie_elsewhere() {
    for lie in ["elsewhere=0", "elsewhere=1"] {
        each(lie, |outcome| {
            outcome.is_err_and(|error| is_lost(&error) || is_violation(&error) || is_late(&error))
        });
    }
    // Longer than the client accepts.
    each("elsewhere=2", |outcome| outcome.is_err_and(|error| is_violation(&error)));
}

fn lines_that_change_while_they_are_read() {
    each("flicker", |_| true);
}

fn a_server_that_says_nothing() {
    each("silence", |outcome| outcome.is_err_and(|error| is_late(&error)));
}

fn a_server_that_dies_while_clients_fetch() {
    each("death", |outcome| outcome.is_err_and(|error| is_lost(&error)));
}

/// The server's end of a lane.
struct Lane {
    link: ShmLink,
    domain: ShmDomain,
    queue: dunlin_fabric::CompletionQueueId,
    queue_pair: QueuePairId,
    /// The ring that the client writes to, and the ring that it READs.
    requests: Region<ShmMemory>,
    published: Region<ShmMemory>,
    open: OpenLane,
    lie: String,
    /// Whether answers may also be written back.
    hybrid: bool,
    taken: u64,
    read_at: usize,
    to_publish: Way,
    to_write: Way,
    /// Requests whose answers were only published: their numbers, headers and payloads.
    only_published: Vec<(u64, Header, Vec<u8>)>,
}

/// The state of one direction of answers: the tags and place of the next one.
struct Way {
    key: TagKey,
    sequence: u64,
    place: usize,
}

impl Way {
    fn new(lane: u16, direction: Direction) -> Way {
        Way { key: TagKey::derive(&SECRET, lane, direction), sequence: 0, place: 0 }
    }

    fn tags(&self) -> Tags {
        self.key.tags(0, self.sequence)
    }

    /// Returns the place of an answer of `bytes` bytes.
    fn take(&mut self, bytes: usize) -> usize {
        let place = self.place;
        self.sequence += 1;
        self.place += bytes.next_multiple_of(LINE);
        assert!(self.place < RING as usize - LONGEST, "the liar does not skip");
        place
    }
}

impl Lane {
    /// Performs the handshake; `None` if the client disconnects before its end.
    fn accept(fabric: &ShmFabric, link: ShmLink, lie: &str) -> Option<Lane> {
        let Some(Record::Hello(_)) = receive(&link) else { return None };
        let reply = HelloReply {
            version: MAX_VERSION,
            capabilities: 0,
            workers: 1,
            functions: 1,
            max_payload: 1 << 20,
            session: 1,
            extensions: Extensions::default(),
        };
        send(&link, &Record::HelloReply(reply));
        let Some(Record::OpenLane(open)) = receive(&link) else { return None };
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(4096, true).unwrap();
        let mut config = QueuePairConfig::reliable(queue, queue);
        (config.max_send, config.max_receive) = (1024, 1024);
        let queue_pair = domain.create_queue_pair(&config).unwrap();
        let region = |bytes, access| Region::new(fabric.register(bytes, access).unwrap());
        let requests = region(CONTROL + u64::from(RING), Access::WRITE);
        let published = region(u64::from(RING), Access::READ);
        let keys = [
            link.grant(requests.memory(), Access::WRITE).unwrap(),
            link.grant(published.memory(), Access::READ).unwrap(),
        ];
        let endpoint = domain.endpoint(queue_pair, &link).unwrap();
        domain.connect(queue_pair, &link, &Endpoint(open.endpoint.clone())).unwrap();
        send(
            &link,
            &Record::LaneReady(LaneReady {
                lane: open.lane,
                worker: 0,
                window: open.window,
                max_batch_entries: u16::MAX,
                ring_bytes: RING,
                max_message_bytes: LONGEST as u32,
                secret: Secret(SECRET),
                endpoint: endpoint.0,
                unreliable_endpoint: Vec::new(),
                datagram_endpoint: Vec::new(),
                place: 0,
                region_keys: keys.map(|key| key.0).to_vec(),
                extensions: Extensions::default(),
            }),
        );
        let hybrid = open.response_half == ResponseHalf::FetchOrWrite as u8;
        let fetched = if hybrid { Direction::Fetched } else { Direction::ToClient };
        Some(Lane {
            to_publish: Way::new(open.lane, fetched),
            to_write: Way::new(open.lane, Direction::ToClient),
            link,
            domain,
            queue,
            queue_pair,
            requests,
            published,
            open,
            lie: lie.to_owned(),
            hybrid,
            taken: 0,
            read_at: 0,
            only_published: Vec::new(),
        })
    }

    /// Returns the next request, of one line or two; `None` after the client has disconnected.
    fn request(&mut self) -> Option<(Header, Vec<u8>)> {
        let expected = TagKey::derive(&SECRET, self.open.lane, Direction::ToServer).tags(0, self.taken);
        let at = CONTROL as usize + self.read_at;
        while self.requests.load(at + TAG_OFFSET) != expected.first {
            if !self.link.is_alive() {
                return None;
            }
            self.domain.poll(self.queue, &mut Vec::new(), 64);
            self.answer_again();
            std::thread::yield_now();
        }
        let first = dunlin_wire::parse_line(&self.requests.line_out(at), LONGEST).unwrap();
        let mut bytes = vec![0; first.total()];
        self.requests.copy_out(at, &mut bytes);
        self.read_at += bytes.len();
        self.taken += 1;
        assert!(self.read_at < RING as usize - LONGEST, "the liar does not skip");
        let message = Message::parse(&bytes, LONGEST).unwrap();
        Some((*message.header(), message.body().to_vec()))
    }

    fn message(&self, header: &Header, payload: &[u8], tags: Tags) -> Vec<u8> {
        let layout = SingleLayout::new(payload.len() as u32, LONGEST).unwrap();
        let mut bytes = vec![0; LONGEST];
        bytes[LINE..LINE + payload.len()].copy_from_slice(payload);
        let total = layout.seal(&mut bytes, header, tags).unwrap();
        bytes.truncate(total);
        bytes
    }

    /// Returns a batch of answers to these calls, all with the same payload.
    fn batch(&self, calls: &[u32], payload: &[u8], tags: Tags) -> Vec<u8> {
        let mut bytes = vec![0; LONGEST];
        let mut batch = BatchBuilder::new(&mut bytes);
        for call in calls {
            batch.push(&EntryMeta { call: *call, ..EntryMeta::default() }, payload).unwrap();
        }
        let total = batch.finish(&Header::new(Kind::ResponseBatch), tags).unwrap();
        bytes.truncate(total);
        bytes
    }

    /// Publishes an answer.
    fn publish(&mut self, bytes: &[u8]) -> usize {
        let place = self.to_publish.take(bytes.len());
        // The first line is written last.
        if bytes.len() > LINE {
            self.published.copy_in(place + LINE, &bytes[LINE..]);
        }
        self.published.copy_in(place, &bytes[..bytes.len().min(LINE)]);
        place
    }

    /// WRITEs an answer into the client's ring.
    fn write(&mut self, bytes: &[u8]) {
        let parts = [bytes];
        let operation = Operation::Write {
            data: Data::Inline(&parts),
            key: RegionKey(self.open.region_keys[0]),
            offset: CONTROL + self.to_write.take(bytes.len()) as u64,
            immediate: None,
        };
        let _ = self.domain.post(self.queue_pair, WorkRequest { id: WorkId(7), operation, signaled: true });
    }

    /// Writes back published answers that the client's mode word now covers.
    fn answer_again(&mut self) {
        let word = self.requests.load(MODE_WORD);
        while self.hybrid && self.only_published.first().is_some_and(|published| published.0 < word) {
            let (_, request, payload) = self.only_published.remove(0);
            if let Some(bytes) = self.made_up(&request, &payload, self.to_write.tags()) {
                self.write(&bytes);
            }
        }
    }

    /// Answers a request, with the lie.
    fn answer(&mut self, request: Header, payload: Vec<u8>) {
        let number = self.taken - 1;
        let covered = request.flags.contains(Flags::MODE) || number < self.requests.load(MODE_WORD);
        let written = self.hybrid && covered;
        if (written || self.lie == "both" && self.hybrid)
            && let Some(bytes) = self.made_up(&request, &payload, self.to_write.tags())
        {
            self.write(&bytes);
        }
        if written {
            return;
        }
        let Some(bytes) = self.made_up(&request, &payload, self.to_publish.tags()) else { return };
        let place = self.publish(&bytes);
        if self.lie == "flicker" {
            for flip in 0..20_000u32 {
                // Words of the header.
                let at = place + 4 * (flip as usize % 6);
                let mut word = [0; 4];
                self.published.copy_out(at, &mut word);
                self.published.copy_in(at, &flip.wrapping_mul(0x9E37_79B9).to_le_bytes());
                self.published.copy_in(at, &word);
            }
        }
        self.only_published.push((number, request, payload));
    }

    /// Returns an answer with the lie; `None` if the lie is silence.
    fn made_up(&self, request: &Header, payload: &[u8], tags: Tags) -> Option<Vec<u8>> {
        let (lie, number) = self.lie.split_once('=').unwrap_or((&self.lie, "0"));
        let number: u32 = number.parse().unwrap();
        let right = Header { call: request.call, ..Header::new(Kind::Response) };
        let mut bytes = self.message(&right, payload, tags);
        match lie {
            "silence" => return None,
            "death" => std::process::abort(),
            "credits" => bytes[12] = number as u8,
            "thread" => bytes[14..16].copy_from_slice(&(number as u16).to_le_bytes()),
            "length" => bytes[4..8].copy_from_slice(&number.to_le_bytes()),
            "tail" => {
                bytes = self.message(&right, &pattern(300, 2), tags);
                let end = bytes.len();
                bytes[end - 8..].fill(0);
            }
            "tag" => bytes[TAG_OFFSET..LINE].copy_from_slice(&(tags.first ^ 1).to_le_bytes()),
            "half" => bytes[LINE / 2..].fill(0),
            // The tag is correct, but covers a header that was never written.
            "canary" => bytes[..LINE / 2].fill(0),
            "noise" => {
                let mut state = u64::from(number);
                for byte in &mut bytes[..TAG_OFFSET] {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    *byte = state as u8;
                }
            }
            "kind" => {
                bytes = self.message(&Header { kind: Kind::Request, code: ECHO, ..right }, payload, tags)
            }
            "flags" => bytes[1] = number as u8,
            "time" => bytes = self.message(&Header { time: number, ..right }, payload, tags),
            "code" => bytes = self.message(&Header { code: number as u16, ..right }, payload, tags),
            "head" => bytes = self.message(&Header { head: number, ..right }, payload, tags),
            "call" => bytes = self.message(&Header { call: number, ..right }, payload, tags),
            "batch" => bytes = self.batch(&[request.call], payload, tags),
            "batch_count" => {
                bytes = self.batch(&[request.call], payload, tags);
                bytes[2..4].copy_from_slice(&(number as u16).to_le_bytes());
            }
            "batch_of_two_count" => {
                bytes = self.batch(&[request.call, call(5, 9)], payload, tags);
                bytes[2..4].copy_from_slice(&(number as u16).to_le_bytes());
            }
            "batch_entry_length" => {
                bytes = self.batch(&[request.call], payload, tags);
                bytes[LINE..LINE + 4].copy_from_slice(&number.to_le_bytes());
            }
            "batch_length" => {
                bytes = self.batch(&[request.call], payload, tags);
                bytes[4..8].copy_from_slice(&number.to_le_bytes());
            }
            "batch_call" => bytes = self.batch(&[number], payload, tags),
            "batch_and_call" => bytes = self.batch(&[request.call, number], payload, tags),
            "batch_twice" => bytes = self.batch(&[request.call; 2], payload, tags),
            "elsewhere" => {
                let (key, length) = match number {
                    0 => (u64::MAX, 5000),
                    1 => (self.open.region_keys[0], u64::from(RING) * 2),
                    _ => (1, u64::MAX),
                };
                let descriptor = Descriptor { key, offset: 0, length }.encode();
                bytes = self.message(&Header { flags: Flags::RENDEZVOUS, ..right }, &descriptor, tags);
            }
            _ => {}
        }
        Some(bytes)
    }
}

/// The role of a server that answers every client with the lie named in its arguments.
fn liar(arguments: &str) {
    let (address, lie) = arguments.split_once(' ').unwrap();
    let (fabric, address): (ShmFabric, Address) = (fabric(), address.parse().unwrap());
    let listener = fabric.listen(&address).unwrap();
    ready();
    // Until the test kills this process.
    loop {
        let Ok(link) = listener.accept(after(Duration::from_secs(60))) else { return };
        let Some(mut lane) = Lane::accept(&fabric, link, lie) else { continue };
        while let Some((request, payload)) = lane.request() {
            lane.answer(request, payload);
        }
    }
}
