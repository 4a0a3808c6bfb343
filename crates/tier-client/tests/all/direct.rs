//! Regions that processes map directly.

use crate::common::{Child, HANG, Serving, attach, bytes_of, config, fabric, serve, tag, wait};
use dunlin_fabric::{Address, Fabric, Host, Link, RegionKey};
use dunlin_fabric_shm::{ShmFabric, ShmLink};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::message::Refusal;
use dunlin_tier::process::{
    ATTACH, Attached, DIRECT, Directed, LET_GO, MALLOC, Opened, Problem, ProcessRequest, REFUSED, SERVICE,
    direct_name,
};
use dunlin_tier_client::{AccessError, Direct, Lmr, NoDirect, OperationError, RequestError, Rights, Spec};
use dunlin_tier_node::ProcessLimits;
use std::time::{Duration, Instant};

const LENGTH: u64 = 300_000;
const ROLE: &str = "TIER_TEST_DIRECT";

fn pattern(seed: u64) -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 31 + seed) as u8).collect()
}

/// A node with 8 extents. Pieces of 64 KiB: regions have several.
fn node(what: &str) -> Serving {
    let tag = tag(what);
    let mut settings = config(&tag, &["one"], "one");
    (settings.piece, settings.extent) = (64 << 10, Some(1 << 20));
    settings.stop_timeout = Duration::from_millis(300);
    serve(settings, &tag, |_| {})
}

#[track_caller]
fn reason(direct: Result<Direct, RequestError>) -> NoDirect {
    match direct {
        Err(RequestError::NoDirect(reason)) => reason,
        other => panic!("mapped, or another error: {other:?}"),
    }
}

/// Returns the processes that keep a region.
#[track_caller]
fn holders(result: Result<(), RequestError>) -> Vec<u32> {
    match result {
        Err(RequestError::Refused { source: Refusal::InUse(holders), .. }) => {
            holders.named().iter().map(|holder| holder.process).collect()
        }
        other => panic!("not in use: {other:?}"),
    }
}

#[test]
fn bytes_are_those_that_requests_read_and_write() {
    let node = node("direct-bytes");
    let tier = attach(&node.address);
    let region = tier.malloc(LENGTH, Spec::here().direct()).unwrap();
    let direct = region.direct().unwrap();
    assert_eq!(direct.len(), LENGTH);
    direct.copy_in(0, &pattern(1)).unwrap();
    assert!(bytes_of(&region).unwrap() == pattern(1));
    region.write(0, &pattern(2)).unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    direct.copy_out(0, &mut bytes).unwrap();
    assert!(bytes == pattern(2));
    // A word beside the end of the first piece.
    direct.store((64 << 10) - 8, 41).unwrap();
    assert_eq!(region.fetch_add((64 << 10) - 8, 1).unwrap(), 41);
    assert_eq!(direct.load((64 << 10) - 8), Ok(42));
    assert!(direct.copy_out(LENGTH - 1, &mut [0; 2]).is_err() && direct.load(LENGTH).is_err());
    assert!(!direct.is_wanted_back());
    // The handle may end first.
    drop(region);
    assert_eq!(direct.load((64 << 10) - 8), Ok(42));
    let memory = node.node.memory();
    assert!(node.node.free_memory() + node.node.dirty_memory() < memory);
    drop(direct);
    wait("the memory", || (node.node.free_memory() == memory).then_some(()));
}

#[test]
fn a_handle_that_may_only_read_maps_bytes_that_cannot_be_stored() {
    let node = node("direct-rights");
    let (tier, other) = (attach(&node.address), attach(&node.address));
    let region = tier.malloc(LENGTH, Spec::here().named("direct/read").direct()).unwrap();
    region.write(0, &pattern(1)).unwrap();
    let view = other.map("direct/read", Rights::READ).unwrap();
    let direct = view.direct().unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    direct.copy_out(0, &mut bytes).unwrap();
    assert!(bytes == pattern(1));
    assert!(matches!(direct.store(0, 1), Err(AccessError::Denied { .. })));
    assert!(matches!(direct.copy_in(0, b"x"), Err(AccessError::Denied { .. })));
    let blind = other.map("direct/read", Rights::WRITE).unwrap();
    assert!(matches!(blind.direct(), Err(RequestError::Access(AccessError::Denied { .. }))));
    assert!(bytes_of(&region).unwrap() == pattern(1));
}

/// The right to write is revoked from all processes of the user. One of them has the memory mapped: it is asked to let
/// go, and the master hears that it has not.
#[test]
fn a_revocation_waits_for_the_processes_that_map_the_memory() {
    let node = node("direct-revoke");
    let (tier, other) = (attach(&node.address), attach(&node.address));
    let region = tier.malloc(LENGTH, Spec::here().named("direct/revoke").direct()).unwrap();
    let both = Rights::READ.with(Rights::WRITE);
    let view = other.map("direct/revoke", both).unwrap();
    let only_read = other.map("direct/revoke", Rights::READ).unwrap().direct().unwrap();
    let direct = view.direct().unwrap();
    direct.store(0, 1).unwrap();
    let me = tier.principal().to_owned();
    let drains = region.revoke(&me, Rights::WRITE).unwrap_err();
    assert!(matches!(drains, RequestError::Refused { source: Refusal::Drains(_), .. }), "{drains:?}");
    assert!(drains.may_have_executed() && direct.is_wanted_back() && !only_read.is_wanted_back());
    // The right has ended for everything that begins.
    let left = Rights::READ.with(Rights::MASTER);
    let region = tier.map("direct/revoke", left).unwrap();
    assert!(matches!(view.write(0, b"x"), Err(OperationError::Access(AccessError::Revoked))));
    drop(direct);
    assert_eq!(region.revoke(&me, Rights::WRITE).unwrap(), left);
    assert_eq!(only_read.load(0), Ok(1));
    drop(only_read);
    region.free().unwrap();
}

#[test]
fn regions_that_cannot_be_mapped_say_why() {
    let tag = tag("direct-why");
    let nodes = ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        settings.extent = Some(4 << 20);
        serve(settings, &tag, |config| config.users = [(rustix_user(), "alice".to_owned())].into())
    });
    let tier = attach(&nodes[0].address);
    assert_eq!(tier.principal(), "alice");
    assert_eq!(reason(tier.malloc(100, Spec::here()).unwrap().direct()), NoDirect::Shared);
    assert_eq!(reason(tier.malloc(100, Spec::on("two")).unwrap().direct()), NoDirect::Elsewhere);
    match tier.malloc(100, Spec::on("two").direct()) {
        Err(RequestError::NoDirect(NoDirect::Nodes)) => {}
        other => panic!("{other:?}"),
    }
    // The memory of another principal is refused, although that one grants all rights.
    let bob = nodes[0].node.acting_for("bob").unwrap();
    let spec = Spec::here().named("bobs").direct().grant_anyone(Rights::READ.with(Rights::WRITE));
    let bobs = bob.malloc(100, spec).unwrap();
    let view = tier.map("bobs", Rights::READ.with(Rights::WRITE)).unwrap();
    assert_eq!(reason(view.direct()), NoDirect::Shared);
    view.write(0, b"through the node").unwrap();
    // The last extent is for all users.
    match tier.malloc(100, Spec::here().direct()) {
        Err(RequestError::Refused { source: Refusal::OutOfMemory { wanted: 100 }, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(bobs);
}

fn rustix_user() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").unwrap().uid()
}

#[test]
fn a_free_and_a_move_ask_for_the_region_and_name_its_holders() {
    let tag = tag("direct-held");
    let [one, two] = ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        settings.extent = Some(4 << 20);
        settings.stop_timeout = Duration::from_millis(300);
        serve(settings, &tag, |_| {})
    });
    let (tier, other) = (attach(&one.address), attach(&one.address));
    let region = tier.malloc(LENGTH, Spec::here().named("held").direct()).unwrap();
    let views = [(); 2].map(|()| other.map("held", Rights::READ.with(Rights::WRITE)).unwrap());
    let directs = views.each_ref().map(|view| view.direct().unwrap());
    assert_eq!(other.status().unwrap().processes.iter().map(|process| process.direct).sum::<u32>(), 2);
    let own = std::process::id();
    assert_eq!(holders(region.move_to("two")), [own, own]);
    assert!(directs.iter().all(Direct::is_wanted_back));
    // Nothing has changed.
    directs[0].copy_in(0, &pattern(3)).unwrap();
    assert!(bytes_of(&region).unwrap() == pattern(3));
    // A region that another node's master frees.
    let far = attach(&two.address).map("held", Rights::ALL).unwrap();
    assert_eq!(holders(far.free()), [own, own]);
    assert!(bytes_of(&views[0]).unwrap() == pattern(3));
    let [first, second] = directs;
    drop(first);
    assert_eq!(holders(region.move_to("two")), [own]);
    // A holder that hears and lets go ends the wait.
    let (moved, waited) = std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let begin = Instant::now();
            (region.move_to("two"), begin.elapsed())
        });
        wait("the question", || second.is_wanted_back().then_some(()));
        drop(second);
        moving.join().unwrap()
    });
    moved.unwrap_or_else(|error| panic!("{error} after {waited:?}"));
    let view = other.map("held", Rights::READ).unwrap();
    assert!(bytes_of(&view).unwrap() == pattern(3));
    assert_eq!(reason(view.direct()), NoDirect::Elsewhere);
    other.map("held", Rights::ALL).unwrap().free().unwrap();
    let memory = one.node.memory();
    wait("the memory", || (one.node.free_memory() == memory).then_some(()));
}

/// A thread of this process that lets go as soon as it is asked loses no store, and none lands in memory that is used
/// again.
#[test]
fn memory_of_a_freed_region_is_not_used_before_its_holder_lets_go() {
    let node = node("direct-free");
    let tier = attach(&node.address);
    for round in 0..20u64 {
        let region = tier.malloc(LENGTH, Spec::here().named("free").direct()).unwrap();
        let direct = tier.map("free", Rights::READ.with(Rights::WRITE)).unwrap().direct().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let begin = Instant::now();
                while !direct.is_wanted_back() {
                    assert!(begin.elapsed() < HANG, "nobody asks");
                    direct.copy_in(round * 1000, &[0xff; 9000]).unwrap();
                }
            });
            region.free().unwrap();
            let next = tier.malloc(LENGTH, Spec::here().direct()).unwrap();
            assert!(bytes_of(&next).unwrap().iter().all(|byte| *byte == 0), "round {round}");
        });
    }
}

/// The part of the process that is killed.
#[test]
fn holder() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let tier = attach(&address.parse().unwrap());
    let region = tier.map("killed", Rights::READ.with(Rights::WRITE)).unwrap();
    let direct = region.direct().unwrap();
    for number in 1u64.. {
        direct.store(0, number).unwrap();
        direct.copy_in(8, &[number as u8; 200_000]).unwrap();
    }
}

#[test]
fn a_process_that_is_killed_lets_go_and_its_extents_stay_its_users_until_then() {
    let node = node("direct-killed");
    let tier = attach(&node.address);
    for _ in 0..5 {
        let region = tier.malloc(LENGTH, Spec::here().named("killed").direct()).unwrap();
        let mut child = Child::start("direct::holder", &[(ROLE, &node.address.to_string())]);
        let direct = region.direct().unwrap();
        wait("stores of the process", || (direct.load(0).unwrap() > 3).then_some(()));
        drop(direct);
        assert_eq!(holders_of(&region), [child.0.id()]);
        child.kill();
        wait("the end of the process", || match region.move_to("one") {
            Ok(()) => Some(()),
            Err(error) => panic!("{error}"),
        });
        region.free().unwrap();
    }
    let memory = node.node.memory();
    wait("the memory", || (node.node.free_memory() == memory).then_some(()));
    // This process was given extents, too, and lives: another principal does not get them, and gets the others.
    let bob = node.node.acting_for("bob").unwrap();
    let mut bobs = Vec::new();
    let refused = loop {
        match bob.malloc(1 << 16, Spec::here().direct()) {
            Ok(region) => bobs.push(region),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, RequestError::Refused { source: Refusal::OutOfMemory { .. }, .. }),
        "{refused}"
    );
    // Of 8 extents, one is for all users, and one this process's.
    assert_eq!(bobs.len(), 6 * 16);
    tier.malloc(1 << 16, Spec::here().direct()).unwrap().direct().unwrap();
}

/// Frees a region that is held, and returns its holders.
#[track_caller]
fn holders_of(region: &Lmr) -> Vec<u32> {
    holders(region.move_to("one"))
}

/// A process without the library.
struct Raw {
    client: Client<ShmFabric>,
    attached: Attached,
}

impl Raw {
    fn attach(node: &Serving) -> Raw {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        let mut client = Client::connect(&fabric(), &node.address, config).unwrap();
        let attached =
            Self::send(&mut client, ATTACH, &ProcessRequest::Attach { secret: None, priority: None })
                .unwrap();
        Raw { client, attached: Attached::parse(&attached).unwrap() }
    }

    fn send(
        client: &mut Client<ShmFabric>,
        function: u16,
        request: &ProcessRequest<'_>,
    ) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        match client.call(function, &bytes) {
            Ok(answer) => Ok(answer.to_vec()),
            Err(dunlin_rpc::CallError::Application { code: REFUSED, payload }) => {
                Err(Problem::parse(&payload).unwrap())
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn ask(&mut self, request: &ProcessRequest<'_>) -> Result<Vec<u8>, Problem> {
        Self::send(&mut self.client, request.function(), request)
    }

    fn malloc(&mut self, is_direct: bool) -> u64 {
        let (nodes, grants) = (Vec::new(), Vec::new());
        let request =
            ProcessRequest::Malloc { length: 4096, nodes, name: None, grants, lease: None, is_direct };
        assert_eq!(request.function(), MALLOC);
        Opened::parse(&self.ask(&request).unwrap()).unwrap().handle
    }
}

pub(crate) fn dial(fabric: &ShmFabric, node: &Serving) -> ShmLink {
    let name = direct_name(node.address.name());
    let address = Address::new(node.address.scheme(), &name).unwrap();
    fabric.dial(&address, fabric.host().now() + 10_000_000_000).unwrap()
}

#[test]
fn a_hostile_process_gets_no_memory_that_is_not_its_own() {
    let node = node("direct-hostile");
    let fabric = fabric();
    let tier = attach(&node.address);
    let canary = tier.malloc(LENGTH, Spec::here().direct()).unwrap();
    canary.write(0, &pattern(9)).unwrap();
    let ends = |link: &ShmLink| wait("the end of the connection", || (!link.is_alive()).then_some(()));
    // Secrets of nobody, and messages that are no secrets.
    for message in [&[][..], &[7; 16], &[0; 15], &[1; 17], &[0xff; 4000]] {
        let link = dial(&fabric, &node);
        link.send(message).unwrap();
        ends(&link);
        assert!(link.view(RegionKey(0)).is_none() && link.view(RegionKey(1)).is_none());
    }
    let mut raw = Raw::attach(&node);
    let (own, shared) = (raw.malloc(true), raw.malloc(false));
    // Without a connection for memory.
    let no = |reason| Err(Problem::NotDirect(reason));
    assert_eq!(raw.ask(&ProcessRequest::Direct { handle: own }), no(NoDirect::Line));
    let link = dial(&fabric, &node);
    link.send(&raw.attached.secret).unwrap();
    assert_eq!(link.receive(fabric.host().now() + 10_000_000_000).unwrap(), []);
    assert_eq!(raw.ask(&ProcessRequest::Direct { handle: shared }), no(NoDirect::Shared));
    for handle in [0, own ^ 2, own + (1 << 32), u64::MAX] {
        let refused = raw.ask(&ProcessRequest::Direct { handle });
        assert_eq!(refused, Err(Problem::Access(AccessError::NoHandle)));
    }
    let first = Directed::parse(&raw.ask(&ProcessRequest::Direct { handle: own }).unwrap()).unwrap();
    let second = Directed::parse(&raw.ask(&ProcessRequest::Direct { handle: own }).unwrap()).unwrap();
    assert_eq!((first.parts.len(), &first.parts), (1, &second.parts), "one grant for both");
    let view = link.view(RegionKey(first.parts[0].key)).unwrap();
    assert_eq!((view.length(), view.is_writable()), (1 << 20, true));
    // As many mappings as a process has handles, with one that it has made already.
    let limit = ProcessLimits::default().handles;
    for _ in 2..limit {
        raw.ask(&ProcessRequest::Direct { handle: own }).unwrap();
    }
    assert_eq!(raw.ask(&ProcessRequest::Direct { handle: own }), Err(Problem::Handles(limit)));
    // Numbers of mappings of others, and of none.
    let mut other = Raw::attach(&node);
    for number in [first.number, second.number, 0, u64::MAX] {
        let refused = other.ask(&ProcessRequest::LetGo { number });
        assert_eq!(refused, Err(Problem::Access(AccessError::NoHandle)));
    }
    assert_eq!(LET_GO, ProcessRequest::LetGo { number: 0 }.function());
    assert_eq!(DIRECT, ProcessRequest::Direct { handle: 0 }.function());
    raw.ask(&ProcessRequest::LetGo { number: first.number }).unwrap();
    assert!(raw.ask(&ProcessRequest::LetGo { number: first.number }).is_err(), "once");
    // Memory of the process stays in the extent; its own neighbours there are its own user's.
    let mut bytes = vec![0; view.length() as usize];
    view.copy_out(0, &mut bytes);
    drop(raw);
    assert!(bytes_of(&canary).unwrap() == pattern(9));
}

/// A node of its own process maps its regions, too.
#[test]
fn a_node_maps_its_own_regions() {
    let node = node("direct-own");
    let region = node.node.malloc(LENGTH, Spec::here().named("own")).unwrap();
    let direct = region.direct().unwrap();
    direct.copy_in(5, b"bytes").unwrap();
    let mut bytes = [0; 5];
    region.read(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    let tier = attach(&node.address);
    let again = node.node.map("own", Rights::ALL).unwrap();
    assert_eq!(holders(again.free()), [0]);
    assert!(direct.is_wanted_back());
    assert!(tier.map("own", Rights::READ).is_err(), "it is not granted to this user");
    drop(direct);
    region.free().unwrap();
}
