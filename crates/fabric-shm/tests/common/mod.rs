//! Two connected queue pairs in one process, for the tests of this crate.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its own part of it")]

use dunlin_fabric::{
    Access, Address, Completion, CompletionQueueId, Data, Endpoint, Fabric, Host, Link, Listener, Operation,
    PostError, QueuePairConfig, QueuePairId, RealHost, RegionKey, Scheme, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmConfig, ShmDomain, ShmFabric, ShmLink, ShmMemory};

/// A deadline that is long enough for every expected event.
pub fn soon() -> u64 {
    RealHost.now() + 10_000_000_000
}

/// Returns a name that no other test uses.
pub fn unique(what: &str) -> Address {
    let name = format!("test-{what}-{}-{:x}", std::process::id(), RealHost.random());
    Address::new(Scheme::Shm, &name).unwrap()
}

/// One side.
pub struct Side {
    pub link: ShmLink,
    pub domain: ShmDomain,
    pub queue: CompletionQueueId,
    pub queue_pair: QueuePairId,
}

impl Side {
    pub fn new(fabric: &ShmFabric, link: ShmLink, change: impl Fn(&mut QueuePairConfig)) -> Self {
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(1024, true).unwrap();
        let mut config = QueuePairConfig::reliable(queue, queue);
        change(&mut config);
        let queue_pair = domain.create_queue_pair(&config).unwrap();
        Side { link, domain, queue, queue_pair }
    }

    pub fn send_endpoint(&mut self) {
        let endpoint = self.domain.endpoint(self.queue_pair, &self.link).unwrap();
        self.link.send(&endpoint.0).unwrap();
    }

    pub fn connect(&mut self) {
        let endpoint = Endpoint(self.link.receive(soon()).unwrap());
        self.domain.connect(self.queue_pair, &self.link, &endpoint).unwrap();
    }

    pub fn post(&mut self, request: WorkRequest<'_, ShmMemory>) -> Result<(), PostError> {
        self.domain.post(self.queue_pair, request)
    }

    pub fn poll(&mut self) -> Vec<Completion<ShmMemory>> {
        let mut found = Vec::new();
        self.domain.poll(self.queue, &mut found, 1024);
        found
    }
}

/// Two connected sides.
pub struct Pair {
    pub fabric: ShmFabric,
    pub a: Side,
    pub b: Side,
}

impl Pair {
    pub fn new() -> Self {
        Pair::with(|_| {})
    }

    pub fn with(change: impl Fn(&mut QueuePairConfig)) -> Self {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        let address = unique("pair");
        let listener = fabric.listen(&address).unwrap();
        let dialled = fabric.dial(&address, soon()).unwrap();
        let accepted = listener.accept(soon()).unwrap();
        let mut a = Side::new(&fabric, dialled, &change);
        let mut b = Side::new(&fabric, accepted, &change);
        a.send_endpoint();
        b.send_endpoint();
        a.connect();
        b.connect();
        Pair { fabric, a, b }
    }

    /// Waits until all earlier messages on the links have arrived.
    pub fn settle(&self) {
        self.a.link.send(b"settle").unwrap();
        self.b.link.send(b"settle").unwrap();
        self.a.link.receive(soon()).unwrap();
        self.b.link.receive(soon()).unwrap();
    }
}

/// Returns a WRITE of inline parts.
pub fn write<'a>(
    id: u64,
    key: RegionKey,
    offset: u64,
    parts: &'a [&'a [u8]],
    signaled: bool,
) -> WorkRequest<'a, ShmMemory> {
    let operation = Operation::Write { data: Data::Inline(parts), key, offset, immediate: None };
    WorkRequest { id: WorkId(id), operation, signaled }
}

/// Polls until there is one completion.
pub fn poll_one(side: &mut Side) -> Completion<ShmMemory> {
    let until = soon();
    loop {
        let mut found = Vec::new();
        if side.domain.poll(side.queue, &mut found, 1) == 1 {
            return found.remove(0);
        }
        assert!(RealHost.now() < until, "no completion came");
        std::thread::yield_now();
    }
}

/// Returns an arena of memory without remote access.
pub fn local(fabric: &ShmFabric, length: u64) -> dunlin_fabric::Arena<ShmMemory> {
    dunlin_fabric::Arena::new(fabric.register(length, Access::LOCAL).unwrap()).unwrap()
}

/// A process of the same test binary in a given role. Killed when dropped.
pub struct Child(std::process::Child);

const ROLE: &str = "DUNLIN_SHM_TEST_ROLE";
const ADDRESS: &str = "DUNLIN_SHM_TEST_ADDRESS";

impl Child {
    /// Runs the test of that name in `processes` in a new process, with its role and the address in the environment.
    pub fn start(test: &str, role: &str, address: &Address) -> Self {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&format!("processes::{test}"), "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ADDRESS, address.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Child(child)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for the process's end; returns whether it succeeded.
    pub fn succeeds(&mut self) -> bool {
        let until = soon();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(RealHost.now() < until, "the child does not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the role and the address, in a child process.
pub fn role() -> Option<(String, Address)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var(ADDRESS).unwrap().parse().unwrap()))
}

/// Dials until a server listens.
pub fn dial(fabric: &ShmFabric, address: &Address) -> ShmLink {
    let until = soon();
    loop {
        match fabric.dial(address, until) {
            Ok(link) => return link,
            Err(dunlin_fabric::DialError::NobodyListens { .. }) if RealHost.now() < until => {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns a SEND of inline parts.
pub fn send<'a>(
    id: u64,
    parts: &'a [&'a [u8]],
    immediate: Option<u32>,
    signaled: bool,
) -> WorkRequest<'a, ShmMemory> {
    let operation = Operation::Send { data: Data::Inline(parts), immediate, to: None };
    WorkRequest { id: WorkId(id), operation, signaled }
}

/// Posts a RECV.
pub fn receive(side: &mut Side, arena: &dunlin_fabric::Arena<ShmMemory>, id: u64, length: usize) {
    let buffer = arena.reserve(length).unwrap();
    let target = dunlin_fabric::ReceiveTarget::QueuePair(side.queue_pair);
    side.domain.post_receive(target, WorkId(id), Some(buffer)).unwrap();
}

/// A server domain with many queue pairs on one shared receive queue, and their clients in one domain.
pub struct Many {
    pub clients: dunlin_fabric_shm::ShmDomain,
    pub client_queue: dunlin_fabric::CompletionQueueId,
    pub client_pairs: Vec<dunlin_fabric::QueuePairId>,
    pub server: dunlin_fabric_shm::ShmDomain,
    pub server_queue: dunlin_fabric::CompletionQueueId,
    pub server_pairs: Vec<dunlin_fabric::QueuePairId>,
    pub shared: dunlin_fabric::SharedReceiveQueueId,
    pub fabric: ShmFabric,
    _links: Vec<dunlin_fabric_shm::ShmLink>,
}

pub fn many(count: usize) -> Many {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = unique("many");
    let listener = fabric.listen(&address).unwrap();
    let dialled = fabric.dial(&address, soon()).unwrap();
    let accepted = listener.accept(soon()).unwrap();
    let (mut clients, mut server) = (fabric.domain().unwrap(), fabric.domain().unwrap());
    let client_queue = clients.create_completion_queue(4096, true).unwrap();
    let server_queue = server.create_completion_queue(4096, true).unwrap();
    let shared = server.create_shared_receive_queue(4096).unwrap();
    let (mut client_pairs, mut server_pairs) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let client =
            clients.create_queue_pair(&QueuePairConfig::reliable(client_queue, client_queue)).unwrap();
        let mut config = QueuePairConfig::reliable(server_queue, server_queue);
        config.shared_receive = Some(shared);
        config.max_receive = 0;
        let pair = server.create_queue_pair(&config).unwrap();
        let theirs = clients.endpoint(client, &dialled).unwrap();
        dialled.send(&theirs.0).unwrap();
        let ours = server.endpoint(pair, &accepted).unwrap();
        accepted.send(&ours.0).unwrap();
        let theirs = Endpoint(accepted.receive(soon()).unwrap());
        server.connect(pair, &accepted, &theirs).unwrap();
        let ours = Endpoint(dialled.receive(soon()).unwrap());
        clients.connect(client, &dialled, &ours).unwrap();
        client_pairs.push(client);
        server_pairs.push(pair);
    }
    Many {
        clients,
        client_queue,
        client_pairs,
        server,
        server_queue,
        server_pairs,
        shared,
        fabric,
        _links: vec![dialled, accepted],
    }
}
