//! Real processes: a directory and three nodes, which are killed. A child runs the test of that name with its role in the
//! environment.

use crate::common::{Child, HANG, attach, attach_address, config, fabric, serve, wait};
use dunlin_fabric::{Address, Scheme, WithSources};
use dunlin_tier_client::{
    MemberState, MemberStatus, NodeStatus, OperationError, RequestError, Rights, Spec, Tier,
};
use dunlin_tier_node::{DirectoryConfig, DirectoryServer, JoinError, MembershipError, TierConfig};
use std::time::Duration;

const ROLE: &str = "TIER_TEST_MEMBER";
const TAG: &str = "TIER_TEST_TAG";
/// Long enough that no node that lives is declared dead, however busy the machine is.
const LEASE: Duration = Duration::from_secs(3);
pub(crate) const NODES: [&str; 3] = ["one", "two", "three"];

pub(crate) fn start(role: &str, tag: &str) -> Child {
    Child::start("membership::child", &[(ROLE, role), (TAG, tag)])
}

fn directory_address(tag: &str) -> Address {
    Address::new(Scheme::Shm, &format!("tier-test-{tag}-directory")).unwrap()
}

fn settings(tag: &str, node: &str) -> TierConfig {
    TierConfig { directory: Some(directory_address(tag)), timeout: HANG, ..config(tag, &[node], node) }
}

/// The children of the tests below end with them: they kill them.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let tag = std::env::var(TAG).unwrap();
    if role == "directory" {
        let config = DirectoryConfig { lease: LEASE, ..DirectoryConfig::default() };
        let _directory = DirectoryServer::serve(&fabric(), &directory_address(&tag), config).unwrap();
        std::thread::sleep(Duration::from_secs(600));
    } else {
        let _node = serve(settings(&tag, &role), &tag, |_| {});
        std::thread::sleep(Duration::from_secs(600));
    }
}

struct Cluster {
    tag: String,
    directory: Child,
    nodes: Vec<Child>,
    /// Attachments to the first two nodes.
    tiers: [Tier; 2],
}

impl Cluster {
    fn start(what: &str) -> Cluster {
        let tag = crate::common::tag(what);
        let directory = start("directory", &tag);
        let nodes = NODES.iter().map(|node| start(node, &tag)).collect();
        let tiers = ["one", "two"].map(|node| {
            let address = attach_address(&tag, node);
            drop(wait("a node", || Tier::attach(&address).ok()));
            attach(&address)
        });
        for tier in &tiers {
            wait("all nodes", || (tier.status().unwrap().nodes.len() == 3).then_some(()));
        }
        // A node of the view may not know yet that it has joined. It serves names as soon as it does.
        make(&tiers[0], "at first");
        Cluster { tag, directory, nodes, tiers }
    }
}

fn member(status: &NodeStatus, name: &str) -> MemberStatus {
    status.members.iter().find(|member| member.name == name).unwrap().clone()
}

/// Waits until both nodes have a view in which that node has this state; returns the number of the first one's view.
pub(crate) fn await_state(tiers: &[Tier], node: &str, state: MemberState) -> u64 {
    for tier in tiers {
        wait("the next view", || (member(&tier.status().unwrap(), node).state == state).then_some(()));
    }
    tiers[0].status().unwrap().epoch
}

/// Makes regions at a node whose names have all nodes as their homes.
fn make(tier: &Tier, tag: &str) -> Vec<String> {
    let names: Vec<String> = (0..24).map(|number| format!("{tag}/{number}")).collect();
    for name in &names {
        let spec = Spec::here().named(name).grant_anyone(Rights::ALL);
        tier.malloc(64, spec).unwrap().write(0, name.as_bytes()).unwrap();
    }
    names
}

fn check(tier: &Tier, names: &[String]) {
    for name in names {
        let mut found = vec![0; name.len()];
        tier.map(name, Rights::READ).unwrap().read(0, &mut found).unwrap();
        assert_eq!(found, name.as_bytes());
    }
    let absent = tier.map("no such name", Rights::READ);
    assert!(matches!(absent, Err(RequestError::Refused { .. })), "{:?}", absent.err());
}

#[test]
fn a_killed_node_is_dead_in_the_next_view_and_its_next_life_joins() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let mut cluster = Cluster::start("member");
    let (tag, tiers) = (cluster.tag.clone(), &cluster.tiers);
    let names = make(&tiers[0], "kept");
    check(&tiers[1], &names);
    let there = tiers[0].malloc(4096, Spec::on("three")).unwrap();
    there.write(0, b"until it ends").unwrap();
    let before = tiers[0].status().unwrap();

    // Another node of the same name, at other addresses.
    let mut thief = settings(&tag, "three");
    thief.nodes = config(&format!("{tag}-thief"), &["three"], "three").nodes;
    thief.timeout = Duration::from_secs(1);
    let refused = wait("the refusal", || match dunlin_tier_node::Tier::within(&fabric(), thief.clone()) {
        Err(JoinError::Membership(error @ MembershipError::Refused(_))) => Some(error),
        Err(_) => None,
        Ok(_) => panic!("two nodes of one name"),
    });
    let text = WithSources(&refused).to_string();
    assert!(text.contains("there is a node three already"), "{text}");

    cluster.nodes[2].kill();
    let epoch = await_state(tiers, "three", MemberState::Dead);
    assert!(epoch > before.epoch);
    tiers.iter().for_each(|tier| check(tier, &names));
    match there.write(0, b"x") {
        Err(OperationError::Dead { node, epoch: at, may_have_executed: false }) => {
            assert!(node == "three" && at >= epoch, "{at}");
        }
        other => panic!("{other:?}"),
    }
    match tiers[1].malloc(64, Spec::on("three")).map(drop) {
        Err(RequestError::Dead { node, .. }) => assert_eq!(node, "three"),
        other => panic!("{other:?}"),
    }
    // A free of a region that it had stored ends, too.
    there.free().unwrap();

    cluster.nodes[2] = start("three", &tag);
    let epoch = await_state(tiers, "three", MemberState::Alive);
    let now = member(&tiers[0].status().unwrap(), "three");
    assert!(now.incarnation > member(&before, "three").incarnation && epoch >= now.incarnation);
    let third = attach_address(&tag, "three");
    drop(wait("the node's next life", || Tier::attach(&third).ok()));
    let third = attach(&third);
    check(&third, &names);
    tiers[1].malloc(64, Spec::on("three").named("again")).unwrap().write(0, b"again").unwrap();
    check(&third, &make(&third, "from the next life"));
}

#[test]
fn calls_and_memory_go_on_without_a_directory_and_views_with_the_next_one() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let mut cluster = Cluster::start("directory");
    let (tag, tiers) = (cluster.tag.clone(), &cluster.tiers);
    let before = tiers[0].status().unwrap();
    cluster.directory.kill();
    for tier in tiers {
        let trouble = || Some(tier.status().unwrap().trouble).filter(|trouble| !trouble.is_empty());
        let trouble = wait("the loss of the directory", trouble);
        assert!(trouble.contains("directory"), "{trouble}");
    }
    let names = make(&tiers[0], "without a directory");
    check(&tiers[1], &names);
    let region = tiers[1].malloc(4096, Spec::on("one")).unwrap();
    region.write(0, b"goes on").unwrap();
    tiers[0].lock("a lock").unwrap().unlock().unwrap();
    cluster.nodes[2].kill();
    let during = tiers[0].status().unwrap();
    assert_eq!((during.epoch, during.nodes.len()), (before.epoch, 3), "views stand still");

    cluster.directory = start("directory", &tag);
    let epoch = await_state(tiers, "three", MemberState::Dead);
    assert!(epoch > before.epoch);
    for tier in tiers {
        wait("the directory", || tier.status().unwrap().trouble.is_empty().then_some(()));
        let status = tier.status().unwrap();
        for node in ["one", "two"] {
            let (was, is) = (member(&before, node), member(&status, node));
            assert_eq!((is.state, is.incarnation), (MemberState::Alive, was.incarnation));
        }
    }
    tiers.iter().for_each(|tier| check(tier, &names));
    region.write(0, b"still goes on").unwrap();
    cluster.nodes[2] = start("three", &tag);
    await_state(tiers, "three", MemberState::Alive);
}
