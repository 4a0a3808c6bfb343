//! Tests the effects of network failures and bad settings on a fabric: the port goes down briefly and for
//! long, packets are lost, a completion queue overflows, the two ends have different MTUs, permission is
//! missing, too little memory may be locked, the other side has another version or hangs up.
//! `tests/guest/trials` makes the network: two Soft-RoCE devices at the ends of a pair of interfaces, so that
//! packets really travel between them.
//!
//! `rdma_trials DEVICE ADDRESS INTERFACE DEVICE ADDRESS INTERFACE [TRIAL...]`

use dunlin_fabric::*;
use dunlin_fabric_rdma::{DeviceChoice, OpenError, RdmaConfig, RdmaDomain, RdmaFabric, RdmaLink, RdmaMemory};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

type Trial = fn(&Place, &Place);
type Done = Completion<RdmaMemory>;

const TRIALS: &[(&str, Trial)] = &[
    ("a_pulled_cable_ends_links_and_reconnecting_works", pulled_cable),
    ("a_short_loss_of_the_port_is_survived", short_loss),
    ("a_lossy_network_loses_datagrams_and_no_reliable_message", lossy),
    ("a_completion_queue_that_overflows_breaks_its_queue_pairs", overflow),
    ("ends_with_different_mtus_agree", different_mtus),
    ("gids_of_one_kind_only", gid_kinds),
    ("a_wrong_device_port_or_gid_is_named", wrong_choice),
    ("another_version_is_named", another_version),
    ("a_listener_that_hangs_up_is_noticed", hangs_up),
    ("a_port_in_use_is_named", port_in_use),
    ("without_permission_the_error_says_so", no_permission),
    ("too_little_locked_memory_is_named", too_little_locked_memory),
];

/// The time after which an expected event counts as lost.
const HANG: Duration = Duration::from_secs(60);

/// One end of the network.
#[derive(Clone, Debug)]
struct Place {
    device: String,
    address: String,
    interface: String,
}

impl Place {
    fn config(&self) -> RdmaConfig {
        let device = DeviceChoice { device: Some(self.device.clone()), ..DeviceChoice::default() };
        RdmaConfig { device, ..RdmaConfig::default() }
    }

    fn fabric(&self) -> RdmaFabric {
        RdmaFabric::new(self.config()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn address(&self, port: u16) -> Address {
        Address::new(Scheme::Rdma, &format!("{}:{port}", self.address)).expect("host and port")
    }
}

fn later(time: Duration) -> Nanos {
    RealHost.now() + time.as_nanos() as u64
}

/// A domain with one queue pair.
struct End {
    domain: RdmaDomain,
    queue: CompletionQueueId,
    queue_pair: QueuePairId,
    arena: Arena<RdmaMemory>,
    link: RdmaLink,
    found: Vec<Done>,
}

impl End {
    fn new(fabric: &RdmaFabric, link: RdmaLink, transport: Transport, depth: u32) -> Self {
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(depth, true).unwrap();
        let config = QueuePairConfig { transport, ..QueuePairConfig::reliable(queue, queue) };
        let queue_pair = domain.create_queue_pair(&config).unwrap();
        let arena = Arena::new(fabric.register(1 << 20, Access::LOCAL).unwrap()).unwrap();
        End { domain, queue, queue_pair, arena, link, found: Vec::new() }
    }

    fn endpoint(&mut self) -> Endpoint {
        self.domain.endpoint(self.queue_pair, &self.link).unwrap()
    }

    fn post_receive(&mut self, id: u64) {
        let buffer = self.arena.reserve(1200).unwrap();
        let target = ReceiveTarget::QueuePair(self.queue_pair);
        self.domain.post_receive(target, WorkId(id), Some(buffer)).unwrap();
    }

    fn send(&mut self, id: u64, bytes: &[u8], to: Option<AddressHandleId>) -> Result<(), PostError> {
        let operation = Operation::Send { data: Data::Inline(&[bytes]), immediate: None, to };
        self.domain.post(self.queue_pair, WorkRequest { id: WorkId(id), operation, signaled: true })
    }

    fn poll(&mut self) {
        self.domain.poll(self.queue, &mut self.found, 64);
    }

    fn state(&self) -> QueuePairState {
        self.domain.state(self.queue_pair).unwrap()
    }
}

/// Polls both ends until `look` returns true.
fn until(what: &str, ends: &mut [&mut End], mut look: impl FnMut(&mut [&mut End]) -> bool) {
    let begin = Instant::now();
    while !look(ends) {
        assert!(begin.elapsed() < HANG, "{what} did not come");
        ends.iter_mut().for_each(|end| end.poll());
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn links(first: &RdmaFabric, second: &RdmaFabric, at: &Place) -> (RdmaLink, RdmaLink) {
    let listener = first.listen(&at.address(0)).unwrap();
    let theirs = second.dial(&listener.address(), later(HANG)).unwrap();
    (listener.accept(later(HANG)).unwrap(), theirs)
}

fn connected(first: &RdmaFabric, second: &RdmaFabric, at: &Place) -> (End, End) {
    let (ours, theirs) = links(first, second, at);
    let mut one = End::new(first, ours, Transport::ReliableConnection, 512);
    let mut two = End::new(second, theirs, Transport::ReliableConnection, 512);
    let (first, second) = (one.endpoint(), two.endpoint());
    one.domain.connect(one.queue_pair, &one.link, &second).unwrap();
    two.domain.connect(two.queue_pair, &two.link, &first).unwrap();
    (one, two)
}

/// Sends one message in each direction.
fn exchange(one: &mut End, two: &mut End) {
    for id in [1000, 1001] {
        let (from, to) = if id == 1000 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
        to.post_receive(id);
        from.send(id, b"message", None).unwrap();
        until("a message", &mut [from, to], |ends| {
            ends.iter().all(|end| end.found.iter().any(|done| done.id == WorkId(id)))
        });
        for done in one.found.drain(..).chain(two.found.drain(..)) {
            assert_eq!(done.status, CompletionStatus::Success);
        }
    }
}

/// Runs a program of the guest.
fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

fn set_up(place: &Place, up: bool) {
    run("/usr/bin/ip", &["link", "set", &place.interface, if up { "up" } else { "down" }]);
    if up {
        // The kernel drops the route with the interface; see `tests/guest/trials`.
        run("sh", &["/tmp/routes"]);
    }
}

fn pulled_cable(first: &Place, second: &Place) {
    let (one, two) = (first.fabric(), second.fabric());
    let (mut here, mut there) = connected(&one, &two, first);
    exchange(&mut here, &mut there);
    here.post_receive(1);
    set_up(second, false);
    // One end has a request in flight; the other only waits.
    there.send(2, b"into the void", None).unwrap();
    let begin = Instant::now();
    until("the end of both queue pairs", &mut [&mut here, &mut there], |ends| {
        ends.iter().all(|end| end.state() == QueuePairState::Error && !end.found.is_empty())
    });
    println!("    noticed after {} ms", begin.elapsed().as_millis());
    assert!(matches!(here.found[0].status, CompletionStatus::Flushed), "{:?}", here.found);
    let status = there.found[0].status;
    assert!(matches!(status, CompletionStatus::Flushed | CompletionStatus::TransportRetry), "{status:?}");
    let error = there.link.receive(later(HANG)).unwrap_err();
    assert!(matches!(&error, LinkError::Device(why) if why.contains("is down")), "{error}");
    assert!(matches!(there.link.send(b"x"), Err(LinkError::Device(_))));
    // The control connection uses another network here, so either end may be the first to give up.
    let error = here.link.receive(later(HANG)).unwrap_err();
    assert!(matches!(&error, LinkError::Device(_) | LinkError::PeerGone(_)), "{error}");
    let error = two.dial(&first.address(9), later(Duration::from_secs(1))).unwrap_err();
    assert!(error.to_string().contains("is down"), "{error}");
    assert_eq!(there.send(3, b"x", None), Err(PostError::QueuePairError));
    set_up(second, true);
    let begin = Instant::now();
    while two.dial(&first.address(9), later(HANG)).is_err_and(|error| error.to_string().contains("is down")) {
        assert!(begin.elapsed() < HANG, "the port does not come up again");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (mut here, mut there) = connected(&one, &two, first);
    exchange(&mut here, &mut there);
}

fn short_loss(first: &Place, second: &Place) {
    let config = |place: &Place| RdmaConfig { port_patience: Duration::from_secs(30), ..place.config() };
    let (one, two) = (RdmaFabric::new(config(first)).unwrap(), RdmaFabric::new(config(second)).unwrap());
    let (mut here, mut there) = connected(&one, &two, first);
    exchange(&mut here, &mut there);
    there.post_receive(1);
    set_up(second, false);
    // Sent from the end whose interface has only lost its carrier. At the other end Soft-RoCE gives up at
    // once, since there is no route while the interface is down.
    here.send(2, b"later", None).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    set_up(second, true);
    until("the message", &mut [&mut here, &mut there], |ends| ends.iter().all(|end| !end.found.is_empty()));
    assert_eq!((there.found[0].id, there.found[0].status), (WorkId(1), CompletionStatus::Success));
    assert_eq!((here.found[0].id, here.found[0].status), (WorkId(2), CompletionStatus::Success));
    here.found.clear();
    there.found.clear();
    exchange(&mut here, &mut there);
}

fn lossy(first: &Place, second: &Place) {
    const LOSS: &str = "10%";
    const MESSAGES: u64 = 400;
    let (one, two) = (first.fabric(), second.fabric());
    let (mut here, mut there) = connected(&one, &two, first);
    let (ours, theirs) = links(&one, &two, first);
    let mut receiver = End::new(&one, ours, Transport::UnreliableDatagram, 512);
    let mut sender = End::new(&two, theirs, Transport::UnreliableDatagram, 512);
    let endpoint = receiver.endpoint();
    let to = sender.domain.create_address_handle(sender.queue_pair, &sender.link, &endpoint).unwrap();
    for place in [first, second] {
        run("/usr/bin/tc", &["qdisc", "add", "dev", &place.interface, "root", "netem", "loss", LOSS]);
    }
    // Reliable: all messages arrive, once and in order.
    let (mut posted, mut got, mut sent) = (0, 0, 0);
    for id in 0..64 {
        here.post_receive(id);
    }
    while got < MESSAGES || sent < MESSAGES {
        while posted < MESSAGES && posted < sent + 32 && posted < got + 32 {
            there.send(posted, &posted.to_le_bytes(), None).unwrap();
            posted += 1;
        }
        let before = got + sent;
        until("a reliable message", &mut [&mut here, &mut there], |ends| {
            ends.iter().any(|end| !end.found.is_empty())
        });
        for done in std::mem::take(&mut there.found) {
            assert_eq!((done.id, done.status), (WorkId(sent), CompletionStatus::Success));
            sent += 1;
        }
        for done in std::mem::take(&mut here.found) {
            assert_eq!(done.status, CompletionStatus::Success);
            assert_eq!(&done.buffer.unwrap()[..8], got.to_le_bytes());
            got += 1;
            here.post_receive(got + 63);
        }
        assert!(got + sent > before);
    }
    // Datagrams: some are lost, none arrives twice or damaged, nothing breaks.
    let mut seen = vec![false; MESSAGES as usize];
    let headroom = one.capabilities().datagram_headroom as usize;
    for id in 0..100 {
        receiver.post_receive(id);
    }
    for number in 0..MESSAGES {
        sender.send(number, &number.to_le_bytes(), Some(to)).unwrap();
        until("a datagram's departure", &mut [&mut sender, &mut receiver], |ends| !ends[0].found.is_empty());
        sender.found.clear();
        for done in std::mem::take(&mut receiver.found) {
            let buffer = done.buffer.unwrap();
            let bytes = buffer[headroom..headroom + 8].try_into().unwrap();
            assert!(!std::mem::replace(&mut seen[u64::from_le_bytes(bytes) as usize], true));
            receiver.post_receive(0);
        }
    }
    for place in [first, second] {
        run("/usr/bin/tc", &["qdisc", "del", "dev", &place.interface, "root"]);
    }
    let arrived = seen.iter().filter(|seen| **seen).count() as u64;
    println!(
        "    {MESSAGES} reliable messages and {arrived} of {MESSAGES} datagrams came through a loss of {LOSS}"
    );
    assert!(arrived < MESSAGES && arrived > MESSAGES / 2);
    for end in [&receiver, &sender, &here, &there] {
        assert_eq!(end.state(), QueuePairState::Ready);
    }
}

fn overflow(first: &Place, second: &Place) {
    let (one, two) = (first.fabric(), second.fabric());
    let (ours, theirs) = links(&one, &two, first);
    let mut here = End::new(&one, ours, Transport::ReliableConnection, 512);
    // Violates the rule that a completion queue is as deep as all queues that feed it.
    let mut there = End::new(&two, theirs, Transport::ReliableConnection, 1);
    let (first, second) = (here.endpoint(), there.endpoint());
    here.domain.connect(here.queue_pair, &here.link, &second).unwrap();
    there.domain.connect(there.queue_pair, &there.link, &first).unwrap();
    for id in 0..64 {
        here.post_receive(id);
    }
    for id in 0..64 {
        if there.send(id, b"one more", None).is_err() {
            break;
        }
    }
    let begin = Instant::now();
    // Not polled: no completion is taken from the queue until the device has reported the overflow.
    while two.capabilities().events && there.state() != QueuePairState::Error {
        assert!(begin.elapsed() < HANG, "the overflow was not told");
        std::thread::sleep(Duration::from_millis(300));
        there.poll();
    }
    until("the news at the other end", &mut [&mut here], |ends| ends[0].state() == QueuePairState::Error);
    assert_eq!(there.send(99, b"x", None), Err(PostError::QueuePairError));
    assert!(there.link.is_alive(), "only the queue pairs are broken");
}

fn different_mtus(first: &Place, second: &Place) {
    let mut small = first.config();
    small.device.mtu = Some(1024);
    let (one, two) = (RdmaFabric::new(small).unwrap(), second.fabric());
    assert_eq!((one.capabilities().max_datagram, two.capabilities().max_datagram), (1024, 4096));
    let (mut here, mut there) = connected(&one, &two, first);
    exchange(&mut here, &mut there);
    let (ours, theirs) = links(&one, &two, first);
    let mut receiver = End::new(&one, ours, Transport::UnreliableDatagram, 16);
    let mut sender = End::new(&two, theirs, Transport::UnreliableDatagram, 16);
    let (to_small, to_large) = (receiver.endpoint(), sender.endpoint());
    let error = sender.domain.create_address_handle(sender.queue_pair, &sender.link, &to_small).unwrap_err();
    assert!(error.to_string().contains("MTU"), "{error}");
    receiver.domain.create_address_handle(receiver.queue_pair, &receiver.link, &to_large).unwrap();
}

fn gid_kinds(first: &Place, second: &Place) {
    // Soft-RoCE has v2 only; a unit test shows that the other kind is refused. Here: the address of the
    // control connection is used even if another one was added first.
    run("/usr/bin/ip", &["addr", "add", "10.99.0.1/24", "dev", &first.interface]);
    let (one, two) = (first.fabric(), second.fabric());
    let (mut here, mut there) = connected(&one, &two, first);
    exchange(&mut here, &mut there);
    drop((here, there, one));
    run("/usr/bin/ip", &["addr", "del", "10.99.0.1/24", "dev", &first.interface]);
}

fn wrong_choice(first: &Place, _: &Place) {
    let open = |change: fn(&mut DeviceChoice)| {
        let mut config = first.config();
        change(&mut config.device);
        RdmaFabric::new(config).map(|_| ()).unwrap_err()
    };
    let error = open(|choice| choice.device = Some("mlx9_0".into()));
    assert!(matches!(&error, OpenError::NoSuchDevice { found, .. } if found.contains("rxe")), "{error}");
    let error = open(|choice| choice.port = Some(7));
    assert!(matches!(error, OpenError::NoActivePort { .. }), "{error}");
    let error = open(|choice| choice.gid_index = Some(200));
    assert!(matches!(error, OpenError::NoGid { port: 1, .. }), "{error}");
}

/// Serves one connection on a free port in another thread, by calling `serve`.
fn impostor(place: &Place, serve: impl FnOnce(std::net::TcpStream) + Send + 'static) -> Address {
    let listener = TcpListener::bind((place.address.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || serve(listener.accept().unwrap().0));
    place.address(port)
}

fn another_version(first: &Place, second: &Place) {
    let address = impostor(first, |mut socket| {
        let mut hello = 11u32.to_le_bytes().to_vec();
        hello.push(1);
        hello.extend(b"DunlinRD");
        hello.extend(77u16.to_le_bytes());
        socket.write_all(&hello).unwrap();
        let _ = socket.read(&mut [0; 64]);
    });
    let error = second.fabric().dial(&address, later(HANG)).unwrap_err();
    assert!(matches!(error, DialError::Version { theirs: 77, .. }), "{error}");
}

fn hangs_up(first: &Place, second: &Place) {
    let fabric = second.fabric();
    for (word, known) in [(&b""[..], false), (b"HTTP/1.1 400 Bad Request\r\n", true)] {
        let address = impostor(first, move |mut socket| socket.write_all(word).unwrap());
        let error = fabric.dial(&address, later(HANG)).unwrap_err();
        match error {
            DialError::NoGreeting { .. } if !known => {}
            DialError::WrongDoor { found, .. } if known => assert!(found.contains("HTTP"), "{found}"),
            other => panic!("{other}"),
        }
    }
    let address = impostor(first, |socket| {
        std::thread::sleep(Duration::from_secs(3));
        drop(socket);
    });
    let error = fabric.dial(&address, later(Duration::from_millis(300))).unwrap_err();
    assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
}

fn port_in_use(first: &Place, _: &Place) {
    let fabric = first.fabric();
    let listener = fabric.listen(&first.address(0)).unwrap();
    let error = fabric.listen(&listener.address()).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
}

/// Runs one trial again as a user without privileges.
fn as_nobody(arguments: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["as-nobody", arguments])
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn no_permission(_: &Place, _: &Place) {
    run("sh", &["-c", "chmod 600 /dev/infiniband/*"]);
    let said = as_nobody("open");
    run("sh", &["-c", "chmod 666 /dev/infiniband/*"]);
    assert!(said.contains("Permission denied") && said.contains("/dev/infiniband"), "{said}");
}

fn too_little_locked_memory(_: &Place, _: &Place) {
    let said = as_nobody("register");
    assert!(said.contains("LockedMemory { length: 4194304, limit: 1048576 }"), "{said}");
    assert!(said.contains("ulimit -l"), "{said}");
}

/// Runs in the process of [`as_nobody`]: prints its error.
fn nobody(what: &str) {
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: the structure is only read during the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    let error = match RdmaFabric::new(RdmaConfig::default()) {
        Ok(fabric) if what == "register" => match fabric.register(4 << 20, Access::READ) {
            Ok(_) => "registered".to_owned(),
            Err(error) => format!("{error:?} {error}"),
        },
        Ok(_) => "opened".to_owned(),
        Err(error) => format!("{error:?} {error}"),
    };
    println!("{error}");
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, what] = &arguments[..]
        && role == "as-nobody"
    {
        nobody(what);
        return ExitCode::SUCCESS;
    }
    let [device, address, interface, other, other_address, other_interface, only @ ..] = &arguments[..]
    else {
        eprintln!("rdma_trials DEVICE ADDRESS INTERFACE DEVICE ADDRESS INTERFACE [TRIAL...]");
        return ExitCode::FAILURE;
    };
    let place = |device: &String, address: &String, interface: &String| Place {
        device: device.clone(),
        address: address.clone(),
        interface: interface.clone(),
    };
    let (first, second) = (place(device, address, interface), place(other, other_address, other_interface));
    let mut failed = 0;
    for (name, trial) in TRIALS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let begin = Instant::now();
        let result = std::panic::catch_unwind(|| trial(&first, &second));
        if result.is_err() {
            // Restores the state that the next trial expects.
            run("/usr/bin/ip", &["link", "set", &first.interface, "up"]);
            set_up(&second, true);
            for place in [&first, &second] {
                let _ = Command::new("/usr/bin/tc")
                    .args(["qdisc", "del", "dev", &place.interface, "root"])
                    .status();
            }
        }
        let verdict = if result.is_ok() { "passed" } else { "FAILED" };
        println!("{name:<60} {verdict} {:>6} ms", begin.elapsed().as_millis());
        failed += usize::from(result.is_err());
    }
    println!("{failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
