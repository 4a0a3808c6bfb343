//! Regions of processes that move, and nodes and processes that are killed meanwhile. A child runs the test of that name
//! with its role in the environment.

use crate::common::{Child, HANG, attach, attach_address, bytes_of, config, serve, tag, wait};
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{AccessError, OperationError, RequestError, Rights, Spec, Tier};
use std::time::Duration;

const ROLE: &str = "TIER_TEST_MOVE_ROLE";
const TAG: &str = "TIER_TEST_MOVE_TAG";
const NAME: &str = "TIER_TEST_MOVE_NAME";

fn start(role: &str, tag: &str, name: &str) -> Child {
    Child::start("moves::child", &[(ROLE, role), (TAG, tag), (NAME, name)])
}

fn is_child() -> bool {
    std::env::var(ROLE).is_ok()
}

/// The children of the test below end with it: it kills them.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [tag, name] = [TAG, NAME].map(|variable| std::env::var(variable).unwrap());
    match role.as_str() {
        // Uses the region for ever, wherever it is.
        "user" => {
            let tier = attach(&attach_address(&tag, "one"));
            loop {
                let view = wait("the region", || tier.map(&name, Rights::READ.with(Rights::WRITE)).ok());
                while view.fetch_add(0, 1).is_ok() && view.read(0, &mut [0; 5000]).is_ok() {}
            }
        }
        other => panic!("no role {other}"),
    }
}

#[track_caller]
fn assert_moved<T: std::fmt::Debug>(result: Result<T, OperationError>) {
    assert!(matches!(result, Err(OperationError::Access(AccessError::Moved))), "{result:?}");
}

#[test]
fn regions_of_processes_move_and_their_handles_say_so() {
    if is_child() {
        return;
    }
    let tag = tag("moves");
    let nodes = ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {}));
    let (app, other) = (attach(&nodes[0].address), attach(&nodes[1].address));
    let bytes: Vec<u8> = (0..300_001u32).map(|at| (at * 7) as u8).collect();
    let mut region = app.malloc(bytes.len() as u64, Spec::on("one").named("m")).unwrap();
    region.write(0, &bytes).unwrap();
    for to in ["two", "one", "two"] {
        let view = other.map("m", Rights::READ.with(Rights::WRITE)).unwrap();
        assert!(matches!(view.move_to(to), Err(RequestError::Access(AccessError::Denied { .. }))));
        view.fetch_add(0, 0).unwrap();
        region.move_to(to).unwrap();
        assert_moved(view.read(0, &mut [0; 8]));
        assert_moved(view.fetch_add(0, 1));
        assert_moved(region.write(0, b"x"));
        region = app.map("m", Rights::ALL).unwrap();
        assert!(bytes_of(&region).unwrap() == bytes);
        wait("the bytes", || {
            (bytes_of(&other.map("m", Rights::READ).unwrap()).unwrap() == bytes).then_some(())
        });
    }
    assert!(matches!(region.move_to("three"), Err(RequestError::NoNode(node)) if node == "three"));
    let unnamed = app.malloc(10, Spec::here()).unwrap();
    assert!(matches!(unnamed.move_to("two"), Err(RequestError::Refused { .. })));
    unnamed.write(0, b"it stays").unwrap();
    region.free().unwrap();
}

fn is_not_copied(moved: &Result<(), RequestError>) -> bool {
    matches!(moved, Err(RequestError::Refused { source: Refusal::NotCopied, .. }))
}

/// The node that gets the region, or a process that uses it, is killed at any time of a move.
#[test]
fn a_move_under_kills_leaves_one_copy() {
    if is_child() {
        return;
    }
    let tag = tag("move-kills");
    let mut settings = config(&tag, &["one", "two"], "one");
    settings.timeout = Duration::from_secs(2);
    let one = serve(settings, &tag, |_| {});
    let app = attach(&one.address);
    // Names that the killed node does not keep.
    let names = (0..).map(|number| format!("m/{number}"));
    let mut names = names.filter(|name| one.node.home(name).unwrap() == "one");
    let bytes: Vec<u8> = (0..1_000_000u32).map(|at| (at * 13) as u8).collect();
    for round in 0..8 {
        let name = names.next().unwrap();
        let mut two = crate::processes::start("two", &tag);
        wait("the node", || Tier::attach(&attach_address(&tag, "two")).ok());
        let spec = Spec::on("one").named(&name).grant_anyone(Rights::ALL);
        let region = app.malloc(bytes.len() as u64, spec).unwrap();
        region.write(8, &bytes[8..]).unwrap();
        let mut user = start("user", &tag, &name);
        wait("the user", || (region.fetch_add(0, 0).unwrap() > 0).then_some(()));
        let kills_node = round % 2 == 0;
        let outcome = std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let begin = std::time::Instant::now();
                let mut moved = region.move_to("two");
                // The first bytes on a path to a node that has started again are lost with its former connection.
                while !kills_node && is_not_copied(&moved) && begin.elapsed() < HANG {
                    moved = app.map(&name, Rights::MASTER).unwrap().move_to("two");
                }
                moved
            });
            // Any time is right. These are within a move, before it and after it.
            std::thread::sleep(Duration::from_micros(700 * round));
            if kills_node {
                two.kill()
            } else {
                user.kill()
            }
            mover.join().unwrap()
        });
        let begin = std::time::Instant::now();
        let found = loop {
            // A move whose end nobody waited for goes on.
            let read = app.map(&name, Rights::ALL).map(|view| bytes_of(&view));
            match read {
                Ok(Ok(found)) => break Some(found),
                // The region was at the killed node.
                _ if kills_node && outcome.is_ok() => break None,
                other => assert!(begin.elapsed() < HANG, "{outcome:?}, {other:?}"),
            }
        };
        let found_at_one = found.is_some();
        assert!(found.is_none_or(|found| found[8..] == bytes[8..]), "round {round}: {outcome:?}");
        match &outcome {
            Ok(()) => {}
            Err(RequestError::Refused { source: Refusal::NotCopied | Refusal::InUse(_), .. }) => {
                assert!(kills_node, "round {round}: {outcome:?}");
            }
            Err(error) => assert!(kills_node && error.may_have_executed(), "{error:?}"),
        }
        drop((two, user));
        // A region whose bytes died with their node is lost, and its name stays taken until that node lives again.
        if found_at_one && let Ok(view) = app.map(&name, Rights::MASTER) {
            let freed = view.free();
            let waits = matches!(freed, Err(RequestError::Refused { source: Refusal::Waits(_), .. }));
            assert!(freed.is_ok() || waits, "{freed:?}");
        }
    }
}
