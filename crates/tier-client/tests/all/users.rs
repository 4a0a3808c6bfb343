//! Processes of two users on one node. Only root can start them: as another user the test has nothing to show, and says
//! so.

use crate::common::{
    Child, HANG, attach, attach_address, bytes_of, config, fabric, keeper_address, serve, tag, wait,
};
use dunlin_fabric::KeeperError;
use dunlin_fabric_shm::{AllowPolicy, KeeperServer, ShmConfig, ShmFabric, ShmKeeper};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{AttachConfig, AttachError, Lmr, RequestError, Rights, Spec, Tier};
use dunlin_tier_node::{ProcessConfig, ProcessServer};
use rustix::fs::Uid;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROLE: &str = "TIER_TEST_ROLE";
const TAG: &str = "TIER_TEST_TAG";
/// The user `nobody`.
const OTHER: u32 = 65_534;
/// The bytes of regions beside the one that the other user may write.
const CANARY: u8 = 0xa5;

fn no_such(result: Result<Lmr, RequestError>) -> bool {
    matches!(result, Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. }))
}

/// Runs as the other user.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let tag = std::env::var(TAG).unwrap();
    // Of this thread and of those that it starts from here on, as the kernel reports it for connections.
    let other = Uid::from_raw(OTHER);
    rustix::thread::set_thread_res_uid(other, other, other).unwrap();
    match role.as_str() {
        "refused" => {
            let config = AttachConfig { timeout: HANG, ..AttachConfig::new(attach_address(&tag, "one")) };
            let Err(error) = Tier::attach_with(&fabric(), config) else { panic!("let in") };
            assert!(matches!(error, AttachError::Connect(_)), "{error}");
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(&format!("user id {OTHER}")), "{cause}");
        }
        "keeps" => {
            let mut keeper = KeeperServer::listen(&keeper_address(&tag, "one")).unwrap();
            loop {
                keeper.serve(HANG);
            }
        }
        "kept" => {
            let refused = ShmKeeper::connect(&keeper_address(&tag, "one"), Duration::ZERO);
            assert!(matches!(refused, Err(KeeperError::User { .. })), "{refused:?}");
        }
        "admitted" => {
            let tier = attach(&attach_address(&tag, "one"));
            assert_eq!(tier.principal(), "guest");
            // A name without a grant sounds like a name that nobody has.
            assert!(no_such(tier.map("private", Rights::READ)));
            assert!(no_such(tier.map("nobody's", Rights::READ)));
            let seen = tier.list("one", 0).unwrap().regions;
            assert!(seen.iter().map(|region| region.name.as_bytes()).eq([b"common"]), "{seen:?}");

            // A function of another user, by a name of all, and by a name of that user.
            let mut answer = [0; 16];
            let length = tier.call("one", "owner's", 1, b"who am I?", &mut answer).unwrap();
            assert_eq!(&answer[..length], b"guest");
            let again = tier.register("owner's", 1).map(drop);
            assert!(matches!(again, Err(RequestError::Registered { .. })), "{again:?}");
            let refused = tier.call("one", "~user-0/own", 1, b"who am I?", &mut answer);
            assert!(matches!(refused, Err(RequestError::OtherOwner(_))), "{refused:?}");
            assert!(matches!(tier.register("~user-0/own", 2).map(drop), Err(RequestError::OtherOwner(_))));

            let common = tier.map("common", Rights::READ.with(Rights::WRITE)).unwrap();
            assert!(common.grant("guest", Rights::ALL).is_err());
            assert!(tier.map("common", Rights::READ).unwrap().free().is_err());
            common.write(0, &vec![1; common.len() as usize]).unwrap();
            assert!(common.write(1, &vec![1; common.len() as usize]).is_err());
            assert!(common.write(u64::MAX, &[1; 8]).is_err());

            let own = tier.malloc(4096, Spec::on("one").named("guest's")).unwrap();
            own.write(0, &[2; 4096]).unwrap();
            // Ends when the test is done with it.
            wait("the owner's word", || {
                let mut word = [0];
                common.read(0, &mut word).unwrap();
                (word == [3]).then_some(())
            });
            assert_eq!(bytes_of(&own).unwrap(), [2; 4096]);
        }
        other => panic!("no role {other}"),
    }
}

fn other_user(role: &str, tag: &str) -> Child {
    Child::start("users::child", &[(ROLE, role), (TAG, tag)])
}

fn ended_well(mut child: Child) {
    let status = child.0.wait().unwrap();
    assert!(status.success(), "{status}: the reason stands above");
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: only root can start processes of another user");
    }
    root
}

#[test]
fn another_user_does_not_attach_by_default() {
    if std::env::var(ROLE).is_ok() || !is_root() {
        return;
    }
    let tag = tag("two-users");
    let node = serve(config(&tag, &["one"], "one"), &tag, |_| {});
    ended_well(other_user("refused", &tag));
    // The own user attaches afterwards as before.
    attach(&node.address).malloc(64, Spec::on("one")).unwrap();
}

#[test]
fn an_admitted_user_has_what_is_granted_and_no_byte_more() {
    if std::env::var(ROLE).is_ok() || !is_root() {
        return;
    }
    let tag = tag("admitted-user");
    let anyone = ShmFabric::new(ShmConfig { allow: AllowPolicy::Anyone, ..ShmConfig::default() }).unwrap();
    let node = dunlin_tier_node::Tier::within(&anyone, config(&tag, &["one"], "one")).unwrap();
    let mut processes = ProcessConfig::new(attach_address(&tag, "one"));
    processes.users = BTreeMap::from([(OTHER, "guest".to_owned())]);
    let _processes = ProcessServer::serve(&anyone, &node, processes).unwrap();

    let owner = attach(&attach_address(&tag, "one"));
    let regions = ["before", "common", "private"].map(|name| {
        let spec = Spec::on("one").named(name);
        let spec =
            if name == "common" { spec.grant("guest", Rights::READ.with(Rights::WRITE)) } else { spec };
        let region = owner.malloc(4096, spec).unwrap();
        region.write(0, &[CANARY; 4096]).unwrap();
        region
    });
    let [before, common, private] = &regions;

    let calls = owner.register("owner's", 1).unwrap();
    let _own = owner.register("~user-0/own", 1).unwrap();
    let guest = other_user("admitted", &tag);
    let request = calls.receive_within(&mut [0; 16], HANG).unwrap();
    let caller = request.caller().to_owned();
    request.reply(caller.as_bytes()).unwrap();
    wait("the guest's bytes", || (bytes_of(common).unwrap() == [1; 4096]).then_some(()));
    assert!(no_such(owner.map("guest's", Rights::READ)));
    for neighbour in [before, private] {
        assert_eq!(bytes_of(neighbour).unwrap(), [CANARY; 4096]);
    }
    common.write(0, &[3]).unwrap();
    ended_well(guest);
}

#[test]
fn a_keeper_serves_its_own_user_only() {
    if std::env::var(ROLE).is_ok() || !is_root() {
        return;
    }
    let [theirs, ours] = ["their-keeper", "our-keeper"].map(tag);
    let _keeper = other_user("keeps", &theirs);
    let connect = || ShmKeeper::connect(&keeper_address(&theirs, "one"), Duration::ZERO).unwrap_err();
    let refused =
        wait("the keeper", || Some(connect()).filter(|error| !matches!(error, KeeperError::Nobody(_))));
    assert!(matches!(refused, KeeperError::User { user: OTHER, .. }), "{refused:?}");

    let (mut keeper, ends) =
        (KeeperServer::listen(&keeper_address(&ours, "one")).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                keeper.serve(Duration::from_millis(10));
            }
        });
        let ended = other_user("kept", &ours).0.wait();
        ends.store(true, Ordering::Relaxed);
        assert!(ended.unwrap().success());
    });
}
