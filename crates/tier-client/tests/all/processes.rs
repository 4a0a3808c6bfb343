//! Real processes: two nodes, and applications of both. A child runs the test of that name with its role in the
//! environment.

use crate::common::{
    Child, attach, attach_address, bytes_of, config, count, keeper_address, serve, serve_kept, wait,
};
use dunlin_fabric_shm::KeeperServer;
use dunlin_tier_client::{OperationError, RequestError, Rights, Spec, Tier};
use std::time::Duration;

pub(crate) const ROLE: &str = "TIER_TEST_ROLE";
const TAG: &str = "TIER_TEST_TAG";

pub(crate) fn start(role: &str, tag: &str) -> Child {
    Child::start("processes::child", &[(ROLE, role), (TAG, tag)])
}

/// The children of the test below end with it: it kills them.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let tag = std::env::var(TAG).unwrap();
    let wait_for_end = || std::thread::sleep(Duration::from_secs(600));
    match role.as_str() {
        "one" | "two" => {
            let mut settings = config(&tag, &["one", "two"], &role);
            settings.timeout = Duration::from_secs(2);
            let _node = serve(settings, &tag, |_| {});
            wait_for_end();
        }
        "keeper-one" | "keeper-two" => {
            let (_, node) = role.split_once('-').unwrap();
            let mut keeper = KeeperServer::listen(&keeper_address(&tag, node)).unwrap();
            loop {
                keeper.serve(Duration::from_secs(600));
            }
        }
        "kept-one" | "kept-two" => {
            let (_, node) = role.split_once('-').unwrap();
            let mut settings = config(&tag, &["one", "two"], node);
            settings.timeout = Duration::from_secs(2);
            settings.stop_timeout = Duration::from_millis(100);
            settings.memory = u64::from(count("DUNLIN_TIER_KEPT_MIB", 8)) << 20;
            // Four extents: for all users, for direct mappings, and for the buffers of a process.
            settings.piece = 1 << 20;
            let _node = serve_kept(settings, &tag, |_| {}).unwrap();
            wait_for_end();
        }
        "kept-writer" => crate::kept_kills::write_for_ever(&tag),
        "writer" => {
            let tier = attach(&attach_address(&tag, "one"));
            let region = tier.malloc(300_000, Spec::on("two").named("shared")).unwrap();
            let _unnamed = ["one", "two"].map(|node| tier.malloc(500_000, Spec::on(node)).unwrap());
            region.write(64, &[7; 299_936]).unwrap();
            region.fetch_add(0, 1).unwrap();
            wait_for_end();
        }
        "reader" => {
            let tier = attach(&attach_address(&tag, "two"));
            let region = wait("the region", || tier.map("shared", Rights::READ.with(Rights::WRITE)).ok());
            wait("the writer", || (region.fetch_add(0, 0).unwrap() == 1).then_some(()));
            wait("its bytes", || {
                bytes_of(&region).unwrap()[64..].iter().all(|byte| *byte == 7).then_some(())
            });
            region.fetch_add(0, 1).unwrap();
            wait_for_end();
        }
        "server" => {
            let tier = attach(&attach_address(&tag, "two"));
            let calls = tier.register("killed", 1).unwrap();
            let mut buffer = [0; 64];
            loop {
                let request = calls.receive(&mut buffer).unwrap();
                if &buffer[..request.len()] == b"hold" {
                    wait_for_end();
                }
                let length = request.len();
                request.reply(&buffer[..length]).unwrap();
            }
        }
        "killed" => crate::kills::write_for_ever(&tag),
        "caller" => {
            let tier = attach(&attach_address(&tag, "one"));
            let mut answer = [0; 64];
            loop {
                tier.call("two", "stays", 1, &[7; 64], &mut answer).unwrap();
            }
        }
        other => panic!("no role {other}"),
    }
}

/// Servers die with calls taken and waiting, and callers die in the middle of calls. Each call ends, nobody else notices.
#[test]
fn servers_and_callers_are_killed_at_any_time() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let tag = crate::common::tag("killed");
    let _nodes = ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {}));
    let [near, far] = ["one", "two"].map(|name| attach(&attach_address(&tag, name)));
    let stays = far.register("stays", 1).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok(request) = stays.receive(&mut buffer) {
            let length = request.len();
            let _ = request.reply(&buffer[..length]);
        }
    });
    for round in 0..12u8 {
        let (mut server, mut caller) = (start("server", &tag), start("caller", &tag));
        let call = |request: &[u8]| near.call("two", "killed", 1, request, &mut [0; 64]);
        wait("the server", || call(&[round]).ok());
        std::thread::scope(|scope| {
            let held = scope.spawn(|| call(b"hold"));
            let waits = scope.spawn(|| call(b"next"));
            std::thread::sleep(Duration::from_millis(5 + u64::from(round)));
            server.kill();
            caller.kill();
            for outcome in [held.join().unwrap(), waits.join().unwrap()] {
                // One of them was taken, the other one waited; which one, is by chance.
                let is_known = match outcome {
                    Ok(length) => length == 4,
                    Err(RequestError::Call { .. }) => true,
                    Err(_) => false,
                };
                assert!(is_known, "round {round}");
            }
        });
        let gone = wait("the end of the registration", || call(b"x").err());
        assert!(!gone.may_have_executed(), "{gone:?}");
        assert_eq!(near.call("two", "stays", 1, &[round; 8], &mut [0; 8]).unwrap(), 8);
    }
}

fn handles_of(tier: &Tier, process: u32) -> Option<u32> {
    let status = tier.status().unwrap();
    let found = status.processes.iter().find(|one| one.process == process);
    found.map(|one| one.handles)
}

/// The bytes that are in use, or not zeroed yet, at a node.
fn used(tier: &Tier) -> u64 {
    let status = tier.status().unwrap();
    status.memory - status.free
}

#[test]
fn applications_of_two_nodes_share_a_region_and_survive_each_other() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let tag = crate::common::tag("real");
    let (_one, mut two) = (start("one", &tag), start("two", &tag));
    let addresses = ["one", "two"].map(|node| attach_address(&tag, node));
    let attached = |at: usize| wait("a node", || Tier::attach(&addresses[at]).ok()).node().to_owned();
    assert_eq!([attached(0), attached(1)], ["one", "two"]);
    let here = addresses.each_ref().map(attach);
    let before = here.each_ref().map(used);

    let (mut writer, reader) = (start("writer", &tag), start("reader", &tag));
    let view = wait("the region", || here[0].map("shared", Rights::ALL).ok());
    wait("writer and reader", || (view.fetch_add(0, 0).unwrap() == 2).then_some(()));
    assert_eq!(handles_of(&here[0], writer.0.id()), Some(3));
    assert_eq!(handles_of(&here[1], reader.0.id()), Some(1));
    let during = here.each_ref().map(used);

    // The handles of a killed process go, and with them the regions without a name.
    writer.kill();
    wait("the end of the writer's handles", || handles_of(&here[0], writer.0.id()).is_none().then_some(()));
    wait("its memory on its own node", || (used(&here[0]) == before[0]).then_some(()));
    wait("its memory on the other node", || (used(&here[1]) < during[1]).then_some(()));
    assert!(used(&here[1]) > before[1], "the region with a name stays");
    assert_eq!(view.fetch_add(0, 5).unwrap(), 2);
    assert!(bytes_of(&view).unwrap()[64..].iter().all(|byte| *byte == 7));
    assert_eq!(handles_of(&here[1], reader.0.id()), Some(1), "another process keeps its handles");

    // A killed node: its own processes hear of it at once, those of other nodes with their next operation.
    let theirs = here[1].map("shared", Rights::READ).unwrap();
    two.kill();
    for _ in 0..3 {
        let error = theirs.read(0, &mut [0; 8]).unwrap_err();
        let is_call =
            matches!(&error, OperationError::Request(one) if matches!(**one, RequestError::Call { .. }));
        assert!(is_call, "{error:?}");
    }
    assert!(matches!(here[1].status(), Err(RequestError::Call { .. })));
    // On shared memory, the memory of a dead process takes WRITEs until its connection is seen to break.
    let error = wait("the end of the node", || view.write(0, b"into nothing").err());
    assert!(!matches!(error, OperationError::Access(dunlin_tier_client::AccessError::NoHandle)), "{error:?}");
    let own = here[0].malloc(4096, Spec::on("one")).unwrap();
    own.write(0, b"the own node goes on").unwrap();

    // The next life of the node knows none of its processes.
    let _two = start("two", &tag);
    wait("the next node", || match theirs.read(0, &mut [0; 8]) {
        Err(OperationError::Request(error)) if matches!(*error, RequestError::Detached) => Some(()),
        Err(_) => None,
        Ok(()) => panic!("a handle of a node that has ended"),
    });
    let again = attach(&addresses[1]);
    assert_eq!(handles_of(&again, reader.0.id()), None);
    wait("memory of the new node", || here[0].malloc(4096, Spec::on("two")).ok());
}
