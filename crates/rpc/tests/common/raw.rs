//! A client without the engine. It performs the handshake itself, and writes arbitrary bytes.

use super::*;
use dunlin_fabric::{
    Access, Arena, Completion, Data, Endpoint, Fabric, Link, Operation, PostError, QueuePairConfig,
    QueuePairId, QueuePairState, ReceiveTarget, Region, RegionKey, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmDomain, ShmLink, ShmMemory};
use dunlin_wire::handshake::{
    Extension, Extensions, Hello, HelloReply, LaneReady, LaneRefused, MAX_VERSION, MIN_VERSION, OpenLane,
    Record, Token,
};
use dunlin_wire::{Direction, Header, Kind, LINE, Message, SingleLayout, TAG_OFFSET, TagKey};

/// Bytes before a ring.
pub const CONTROL: u64 = 64;
/// The size of both rings in bytes.
pub const RING: u32 = 16 * 1024;
/// The length of the longest message in bytes.
pub const LONGEST: usize = 8192;

/// Opens a control connection without a hello.
pub fn dial(fabric: &ShmFabric, address: &Address) -> ShmLink {
    fabric.dial(address, after(HANG / 2)).unwrap()
}

pub fn receive(link: &ShmLink) -> Option<Record> {
    let message = link.receive(after(HANG / 2)).ok()?;
    Some(Record::decode(&message).unwrap())
}

pub fn send(link: &ShmLink, record: &Record) {
    link.send(&record.encode().unwrap()).unwrap();
}

pub fn hello() -> Hello {
    Hello {
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        capabilities: 0,
        process_id: 1,
        service: String::new(),
        token: Token(Vec::new()),
        extensions: Extensions::default(),
    }
}

pub fn greet(fabric: &ShmFabric, address: &Address) -> (ShmLink, HelloReply) {
    let link = dial(fabric, address);
    send(&link, &Record::Hello(hello()));
    match receive(&link) {
        Some(Record::HelloReply(reply)) => (link, reply),
        other => panic!("{other:?} instead of a reply to the hello"),
    }
}

/// The client's half of a lane, before the server has its half.
pub struct Half {
    pub link: ShmLink,
    pub domain: ShmDomain,
    pub queue: dunlin_fabric::CompletionQueueId,
    pub queue_pair: QueuePairId,
    pub region: Region<ShmMemory>,
    pub open: OpenLane,
}

impl Half {
    pub fn new(fabric: &ShmFabric, address: &Address, plan: Plan) -> Half {
        let (link, _) = greet(fabric, address);
        Half::beside(fabric, &link, plan)
    }

    /// Makes a half on a connection that has lanes already.
    pub fn beside(fabric: &ShmFabric, link: &ShmLink, plan: Plan) -> Half {
        let link = link.clone();
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(4096, true).unwrap();
        let mut config = QueuePairConfig::reliable(queue, queue);
        (config.max_send, config.max_receive) = (1024, 1024);
        let queue_pair = domain.create_queue_pair(&config).unwrap();
        let region = Region::new(fabric.register(CONTROL + u64::from(RING), Access::WRITE).unwrap());
        let key = link.grant(region.memory(), Access::WRITE).unwrap();
        let endpoint = domain.endpoint(queue_pair, &link).unwrap();
        let credits = (plan.sharing == Sharing::Combined).then_some(Extension::Credits(8));
        let open = OpenLane {
            lane: 0,
            worker: 0,
            request_half: plan.request as u8,
            response_half: plan.response as u8,
            client_completion: plan.client as u8,
            server_completion: plan.server as u8,
            window: 64,
            ring_bytes: RING,
            rendezvous_above: plan.rendezvous_above,
            large: plan.large as u8,
            sharing: plan.sharing as u8,
            lease: plan.lease as u8,
            endpoint: endpoint.0,
            unreliable_endpoint: Vec::new(),
            datagram_endpoint: Vec::new(),
            region_keys: vec![key.0],
            extensions: Extensions(credits.into_iter().collect()),
        };
        Half { link, domain, queue, queue_pair, region, open }
    }

    /// Gives the half another queue pair, another grant of its region and another lane number.
    pub fn renew(&mut self, lane: u16) {
        self.domain.destroy_queue_pair(self.queue_pair).unwrap();
        self.link.revoke(RegionKey(self.open.region_keys[0]));
        let config = QueuePairConfig::reliable(self.queue, self.queue);
        self.queue_pair = self.domain.create_queue_pair(&config).unwrap();
        self.open.endpoint = self.domain.endpoint(self.queue_pair, &self.link).unwrap().0;
        self.open.region_keys = vec![self.link.grant(self.region.memory(), Access::WRITE).unwrap().0];
        self.open.lane = lane;
    }

    /// Closes the control connection.
    pub fn link_close(&self) {
        self.link.close();
    }

    /// Requests the lane.
    pub fn ask(&self) -> Result<LaneReady, LaneRefused> {
        send(&self.link, &Record::OpenLane(self.open.clone()));
        match receive(&self.link) {
            Some(Record::LaneReady(ready)) => Ok(ready),
            Some(Record::LaneRefused(refused)) => Err(refused),
            other => panic!("{other:?} instead of a lane"),
        }
    }
}

/// A client with a lane.
pub struct RawClient {
    pub fabric: ShmFabric,
    pub half: Half,
    pub ready: LaneReady,
    pub plan: Plan,
    pub tags: TagKey,
    answers: TagKey,
    /// The sequence of the next message to the server, and the ring offset that it belongs to.
    pub sequence: u64,
    pub position: usize,
    taken: u64,
    read_at: usize,
    received: Vec<Vec<u8>>,
}

impl RawClient {
    pub fn connect(fabric: &ShmFabric, address: &Address, plan: Plan) -> RawClient {
        let mut raw = RawClient::connect_deaf(fabric, address, plan);
        raw.listen();
        raw
    }

    /// Posts RECVs for the answers, if they arrive by completion.
    fn listen(&mut self) {
        let target = ReceiveTarget::QueuePair(self.half.queue_pair);
        if self.plan.response == ResponseHalf::Send {
            let memory = self.fabric.register(64 * LONGEST as u64, Access::LOCAL).unwrap();
            let arena = Arena::new(memory).unwrap();
            for _ in 0..64 {
                let buffer = arena.reserve(LONGEST).unwrap();
                self.half.domain.post_receive(target, WorkId(9), Some(buffer)).unwrap();
            }
        }
        if !matches!(self.plan.response, ResponseHalf::Send | ResponseHalf::Write) {
            for _ in 0..512 {
                self.half.domain.post_receive(target, WorkId(9), None).unwrap();
            }
        }
    }

    /// As [`connect`](RawClient::connect), but without RECVs, so that no answer is received.
    pub fn connect_deaf(fabric: &ShmFabric, address: &Address, plan: Plan) -> RawClient {
        RawClient::open_deaf(fabric, Half::new(fabric, address, plan), plan)
    }

    /// Opens the lane of a half.
    pub fn open(fabric: &ShmFabric, half: Half, plan: Plan) -> RawClient {
        let mut raw = RawClient::open_deaf(fabric, half, plan);
        raw.listen();
        raw
    }

    fn open_deaf(fabric: &ShmFabric, mut half: Half, plan: Plan) -> RawClient {
        let ready = half.ask().unwrap();
        half.domain.connect(half.queue_pair, &half.link, &Endpoint(ready.endpoint.clone())).unwrap();
        let lane = half.open.lane;
        RawClient {
            fabric: fabric.clone(),
            tags: TagKey::derive(&ready.secret.0, lane, Direction::ToServer),
            answers: TagKey::derive(&ready.secret.0, lane, Direction::ToClient),
            half,
            ready,
            plan,
            sequence: 0,
            position: 0,
            taken: 0,
            read_at: 0,
            received: Vec::new(),
        }
    }

    pub fn server_key(&self) -> RegionKey {
        RegionKey(self.ready.region_keys[0])
    }

    /// Posts a work request, and waits while the queue is full.
    pub fn post(&mut self, operation: impl Fn() -> Operation<'static, ShmMemory>) -> Result<(), PostError> {
        loop {
            let request = WorkRequest { id: WorkId(7), operation: operation(), signaled: true };
            match self.half.domain.post(self.half.queue_pair, request) {
                Err(PostError::QueueFull) => self.poll(),
                done => return done,
            }
            if self.is_closed() {
                return Err(PostError::QueuePairError);
            }
        }
    }

    /// WRITEs bytes at an offset of the server's ring.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.write(at, bytes, false);
    }

    /// As [`put`](RawClient::put), and notifies the server in the manner of the request half.
    pub fn put_told(&mut self, at: usize, bytes: &[u8]) {
        self.write(at, bytes, self.plan.request == RequestHalf::WriteImm);
        if matches!(self.plan.request, RequestHalf::WriteSend | RequestHalf::WriteSendChained) {
            self.send(&[]);
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8], immediate: bool) {
        let key = self.server_key();
        let parts = [bytes];
        let operation = Operation::Write {
            data: Data::Inline(&parts),
            key,
            offset: CONTROL + at as u64,
            immediate: immediate.then_some(0),
        };
        let request = WorkRequest { id: WorkId(7), operation, signaled: true };
        // A queue pair that the server has closed accepts no work: one of the correct outcomes.
        let _ = self.half.domain.post(self.half.queue_pair, request);
        self.poll();
    }

    /// WRITEs the mode word, which lies before the server's ring (`path/half/hybrid.rs`).
    pub fn put_mode_word(&mut self, word: u64) {
        let (key, bytes) = (self.server_key(), word.to_le_bytes());
        let parts = [&bytes[..]];
        let operation = Operation::Write { data: Data::Inline(&parts), key, offset: 8, immediate: None };
        let request = WorkRequest { id: WorkId(7), operation, signaled: true };
        let _ = self.half.domain.post(self.half.queue_pair, request);
        self.poll();
    }

    /// WRITEs a report of an unread ring with this immediate data.
    pub fn put_immediate(&mut self, immediate: u32) {
        let (key, bytes) = (self.server_key(), (1u64 << 32).to_le_bytes());
        let parts = [&bytes[..]];
        let operation =
            Operation::Write { data: Data::Inline(&parts), key, offset: 0, immediate: Some(immediate) };
        let request = WorkRequest { id: WorkId(7), operation, signaled: true };
        let _ = self.half.domain.post(self.half.queue_pair, request);
        self.poll();
    }

    /// SENDs bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        let parts = [bytes];
        let operation = Operation::Send { data: Data::Inline(&parts), immediate: None, to: None };
        let request = WorkRequest { id: WorkId(7), operation, signaled: true };
        let _ = self.half.domain.post(self.half.queue_pair, request);
        self.poll();
    }

    /// Returns the bytes of the next message, with correct tags.
    pub fn message(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let layout = SingleLayout::new(payload.len() as u32, LONGEST).unwrap();
        let mut bytes = vec![0; LONGEST];
        bytes[LINE..LINE + payload.len()].copy_from_slice(payload);
        let total = layout.seal(&mut bytes, header, self.tags.tags(0, self.sequence)).unwrap();
        bytes.truncate(total);
        bytes
    }

    /// Transfers bytes as the next message, in the manner of the request half.
    pub fn deliver(&mut self, bytes: &[u8]) {
        match self.plan.request {
            RequestHalf::Send => self.send(bytes),
            _ => self.put_told(self.position, bytes),
        }
        self.position = (self.position + bytes.len().next_multiple_of(LINE)) % RING as usize;
        self.sequence += 1;
    }

    /// Makes a well-formed call. Payloads must be short enough that no message needs a `Skip`.
    pub fn request(&mut self, function: u16, call: u32, payload: &[u8]) {
        let header = Header { code: function, call, ..Header::new(Kind::Request) };
        let bytes = self.message(&header, payload);
        assert!(self.position + bytes.len() <= RING as usize, "the raw client does not skip");
        self.deliver(&bytes);
    }

    /// Processes completions.
    pub fn poll(&mut self) {
        let mut found: Vec<Completion<ShmMemory>> = Vec::new();
        self.half.domain.poll(self.half.queue, &mut found, 64);
        for completion in found {
            if completion.opcode == dunlin_fabric::Opcode::Receive
                && let Some(buffer) = completion.buffer
                && completion.status == dunlin_fabric::CompletionStatus::Success
            {
                self.received.push(buffer[..completion.bytes as usize].to_vec());
            }
        }
    }

    /// Returns whether the queue pair works.
    pub fn is_ready(&mut self) -> bool {
        self.poll();
        self.half.domain.state(self.half.queue_pair) == Some(QueuePairState::Ready)
    }

    /// Returns whether the server has ended the lane.
    pub fn is_closed(&mut self) -> bool {
        !self.is_ready() || !self.half.link.is_alive()
    }

    /// Waits for the end of the lane.
    pub fn expect_closed(&mut self) {
        until("the server closed the lane", || self.is_closed());
    }

    fn try_answer(&mut self) -> Option<Vec<u8>> {
        self.poll();
        if self.plan.response == ResponseHalf::Send {
            return (!self.received.is_empty()).then(|| self.received.remove(0));
        }
        let expected = self.answers.tags(0, self.taken);
        let at = CONTROL as usize + self.read_at;
        if self.half.region.load(at + TAG_OFFSET) != expected.first {
            return None;
        }
        let line = self.half.region.line_out(at);
        let first = dunlin_wire::parse_line(&line, LONGEST).unwrap();
        if let Some(trailing) = first.trailing_tag_offset()
            && self.half.region.load(at + trailing) != expected.trailing
        {
            return None;
        }
        let mut bytes = vec![0; first.total()];
        self.half.region.copy_out(at, &mut bytes);
        self.read_at = (self.read_at + bytes.len()) % RING as usize;
        self.taken += 1;
        Some(bytes)
    }

    fn bytes_or_end(&mut self) -> Option<Vec<u8>> {
        let mut found = None;
        until("an answer came or the lane ended", || {
            found = self.try_answer();
            found.is_some() || self.is_closed()
        });
        found.or_else(|| self.try_answer())
    }

    /// Returns the bytes of the next answer.
    pub fn answer_bytes(&mut self) -> Vec<u8> {
        self.bytes_or_end().expect("an answer, but the lane ended")
    }

    /// Returns the header and payload of the next answer; `None` if the lane ended instead.
    pub fn answer_or_end(&mut self) -> Option<(Header, Vec<u8>)> {
        let found = self.bytes_or_end()?;
        let message = Message::parse(&found, LONGEST).unwrap();
        Some((*message.header(), message.body().to_vec()))
    }

    /// Returns the next answer.
    pub fn answer(&mut self) -> (Header, Vec<u8>) {
        self.answer_or_end().expect("an answer, but the lane ended")
    }

    /// Returns the status of the next answer, which must be for this call.
    pub fn status(&mut self, call: u32) -> Status {
        let (header, _) = self.answer();
        assert_eq!(header.call, call);
        Status::from_wire(header.code).unwrap()
    }

    /// Asserts that the lane is open and the next answer is that of a correct call.
    pub fn assert_goes_on(&mut self, call: u32) {
        self.request(ECHO, call, b"still here");
        let (header, payload) = self.answer();
        assert_eq!((header.call, header.code, &*payload), (call, 0, &b"still here"[..]));
    }
}

/// Returns a call id.
pub const fn call(slot: u32, generation: u32) -> u32 {
    generation << 12 | slot
}
