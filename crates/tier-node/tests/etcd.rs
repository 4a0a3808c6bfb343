//! Nodes on shared memory, and an etcd of three members on this machine, which are killed in turn. Run by
//! `./test etcd`.

use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{
    Etcd, EtcdConfig, JoinError, MembershipError, Peer, Spec, StoreConfig, Tier, TierConfig,
};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No step takes so long.
const HANG: Duration = Duration::from_secs(60);
/// The lease of a node.
const LEASE: Duration = Duration::from_secs(2);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An etcd of three members.
struct Members {
    directory: tempfile::TempDir,
    /// The ports for clients, and for the other members.
    ports: [(u16, u16); 3],
    running: [Option<Child>; 3],
}

impl Members {
    fn start() -> Members {
        let ports = [(); 3].map(|()| (free_port(), free_port()));
        let directory = tempfile::tempdir().unwrap();
        let mut members = Members { directory, ports, running: [const { None }; 3] };
        (0..3).for_each(|at| members.run(at));
        members
    }

    fn endpoints(&self) -> Vec<String> {
        self.ports.iter().map(|(client, _)| format!("http://127.0.0.1:{client}")).collect()
    }

    fn run(&mut self, at: usize) {
        let url = |port| format!("http://127.0.0.1:{port}");
        let name = |at| format!("member-{at}");
        let peers: Vec<String> = (0..3).map(|at| format!("{}={}", name(at), url(self.ports[at].1))).collect();
        let (client, peer) = (url(self.ports[at].0), url(self.ports[at].1));
        let mut command = Command::new("etcd");
        command.args(["--name", &name(at), "--data-dir"]).arg(self.directory.path().join(name(at)));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(",")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.running[at] = Some(child.expect("etcd: Debian has it as etcd-server"));
    }

    fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.running[at].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..3).for_each(|at| self.kill(at));
    }
}

fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

fn try_join(fabric: &ShmFabric, members: &Members, name: &str) -> Result<Tier<ShmFabric>, JoinError> {
    use dunlin_fabric::Fabric as _;
    let unique = format!("etcd-{}-{name}", std::process::id());
    let peer = Peer { name: name.to_owned(), ..Peer::named(Scheme::Shm, &unique).unwrap() };
    let mut config = TierConfig::new(vec![peer], name);
    config.memory = 1 << 18;
    config.timeout = Duration::from_secs(20);
    let place = EtcdConfig { endpoints: members.endpoints(), ..EtcdConfig::default() };
    let etcd = Etcd::new(fabric.host(), place).unwrap();
    Tier::within_store(fabric, config, etcd, StoreConfig { lease: LEASE, ..StoreConfig::default() })
}

fn join(fabric: &ShmFabric, members: &Members, name: &str) -> Tier<ShmFabric> {
    try_join(fabric, members, name).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// Waits until the nodes have one view, in which these are alive.
#[track_caller]
fn agree(tiers: &[&Tier<ShmFabric>], names: &[&str]) -> Duration {
    let begin = Instant::now();
    loop {
        let view = tiers[0].view();
        let is_so = tiers.iter().all(|tier| {
            let mut alive: Vec<String> = tier.nodes().collect();
            alive.sort();
            alive == names && tier.view() == view
        });
        if is_so {
            return begin.elapsed();
        }
        let views: Vec<_> =
            tiers.iter().map(|tier| (tier.nodes().collect::<Vec<_>>(), tier.trouble())).collect();
        assert!(begin.elapsed() < HANG, "{names:?}: {views:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn members_of_etcd_are_killed_in_turn_and_all_together() {
    let mut members = Members::start();
    let fabric = fabric();
    let [alice, bob] = ["alice", "bob"].map(|name| join(&fabric, &members, name));
    agree(&[&alice, &bob], &["alice", "bob"]);
    let region = alice.malloc(4096, Spec::on("bob").named("kept")).unwrap();
    for at in 0..3 {
        members.kill(at);
        region.write(0, b"goes on").unwrap();
        // Two members decide.
        let carol = join(&fabric, &members, "carol");
        agree(&[&alice, &bob, &carol], &["alice", "bob", "carol"]);
        drop(carol);
        let left = agree(&[&alice, &bob], &["alice", "bob"]);
        println!("without member {at}: a node joined, and left within {left:?}");
        members.run(at);
    }
    let before = (alice.view(), alice.view().named("bob").unwrap().incarnation);
    (0..3).for_each(|at| members.kill(at));
    let gone = Instant::now();
    while gone.elapsed() < Duration::from_secs(30) {
        region.write(0, b"goes on").unwrap();
        bob.lock("lock").unwrap().unlock().unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(alice.view(), before.0, "views stand still");
    let trouble = alice.trouble().expect("trouble");
    assert!(trouble.contains("store") && trouble.contains("127.0.0.1"), "{trouble}");
    (0..3).for_each(|at| members.run(at));
    let carol = join(&fabric, &members, "carol");
    agree(&[&alice, &bob, &carol], &["alice", "bob", "carol"]);
    assert_eq!(alice.view().named("bob").unwrap().incarnation, before.1, "nobody had to join again");
    region.write(0, b"goes on").unwrap();
}

#[test]
fn an_etcd_that_is_not_there_is_an_error_that_names_it() {
    let members =
        Members { directory: tempfile::tempdir().unwrap(), ports: [(1, 1); 3], running: [const { None }; 3] };
    let fabric = fabric();
    let unique = format!("etcd-{}-none", std::process::id());
    let mut config = TierConfig::new(vec![Peer::named(Scheme::Shm, &unique).unwrap()], &unique);
    config.memory = 1 << 18;
    config.timeout = Duration::from_millis(500);
    use dunlin_fabric::Fabric as _;
    let place = EtcdConfig { endpoints: members.endpoints(), ..EtcdConfig::default() };
    let etcd = Etcd::new(fabric.host(), place).unwrap();
    let error = Tier::within_store(&fabric, config, etcd, StoreConfig::default()).unwrap_err();
    let JoinError::Membership(MembershipError::Store(source)) = error else { panic!("{error:?}") };
    assert!(
        source.to_string().contains("http://127.0.0.1:1") || source.to_string().contains("transport"),
        "{source}"
    );
}
