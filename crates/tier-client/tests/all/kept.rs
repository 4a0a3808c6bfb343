//! Nodes whose memory and records a keeper holds: they are killed, and the next life goes on with them.

use crate::common::{
    Child, attach, attach_address, bytes_of, config, fabric, keeper_address, serve, serve_kept, tag, wait,
};
use crate::processes::{ROLE, start};
use dunlin_fabric::{KeeperError, MemoryKeeper as _, Region};
use dunlin_fabric_shm::{KeeperServer, ShmKeeper};
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{AccessError, Lmr, OperationError, RequestError, Rights, Spec, Tier};
use dunlin_tier_node::JoinError;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Whether this process is a child, which runs one of the roles only.
fn is_child() -> bool {
    std::env::var(ROLE).is_ok()
}

/// Starts the keeper of a node, and waits for it.
pub(crate) fn keeper(node: &str, tag: &str) -> Child {
    let keeper = start(&format!("keeper-{node}"), tag);
    wait("the keeper", || ShmKeeper::connect(&keeper_address(tag, node), Duration::ZERO).ok());
    keeper
}

/// Starts a node, and waits until processes attach.
pub(crate) fn node(node: &str, tag: &str) -> Child {
    let child = start(&format!("kept-{node}"), tag);
    wait("the node", || Tier::attach(&attach_address(tag, node)).ok());
    child
}

/// Kills a node, and starts its next life.
fn restart(child: &mut Child, name: &str, tag: &str) {
    child.kill();
    *child = node(name, tag);
}

/// The bytes that are in use, or not zeroed yet.
fn used(tier: &Tier) -> u64 {
    let status = tier.status().unwrap();
    status.memory - status.free
}

fn is_filled(region: &Lmr, byte: u8) -> bool {
    bytes_of(region).unwrap().iter().all(|one| *one == byte)
}

#[test]
fn handles_and_mappings_of_processes_outlive_their_node() {
    if is_child() {
        return;
    }
    let tag = tag("kept");
    let _keeper = keeper("one", &tag);
    let mut one = node("one", &tag);
    let address = attach_address(&tag, "one");
    let (here, other) = (attach(&address), attach(&address));
    let empty = used(&here);
    let named = here.malloc(300_000, Spec::here().named("named").grant_anyone(Rights::READ)).unwrap();
    named.write(0, &[1; 300_000]).unwrap();
    let unnamed = here.malloc(100_000, Spec::here()).unwrap();
    unnamed.write(0, &[2; 100_000]).unwrap();
    let view = other.map("named", Rights::READ).unwrap();
    let shared = here.malloc(4096, Spec::here().named("direct").direct()).unwrap();
    let direct = shared.direct().unwrap();
    direct.store(8, 40).unwrap();
    let mut buffer = here.buffer(100_000).unwrap();
    let before = used(&here);
    drop(here.malloc(4096, Spec::here()).unwrap());
    wait("the zeroed region", || (used(&here) == before).then_some(()));

    for life in 0..3 {
        one.kill();
        // The mapping is memory of this process: it works while there is no node.
        direct.store(16, 50 + life).unwrap();
        assert!(!direct.is_wanted_back());
        one = node("one", &tag);
        // Every one of them by the handle of before; no request has to be repeated.
        assert!(is_filled(&view, 1) && is_filled(&named, 1) && is_filled(&unnamed, 2), "life {life}");
        assert_eq!(shared.fetch_add(8, 1).unwrap(), 40 + life);
        assert_eq!((direct.load(8), shared.fetch_add(16, 0).unwrap()), (Ok(41 + life), 50 + life));
        assert!(matches!(view.write(0, b"x"), Err(OperationError::Access(AccessError::Denied { .. }))));
        buffer.copy_in(0, &[7; 100_000]).unwrap();
        unnamed.write_from(0, &mut buffer, ..).unwrap();
        assert!(is_filled(&unnamed, 7), "life {life}");
        unnamed.write(0, &[2; 100_000]).unwrap();
        unnamed.read_into(0, &mut buffer, ..50_000).unwrap();
        assert_eq!(
            (buffer.load(49_992), buffer.load(50_000)),
            (Ok(0x0202_0202_0202_0202), Ok(0x0707_0707_0707_0707))
        );
        assert_eq!(used(&here), before, "life {life}");
        // Names, and new memory, which is nobody else's.
        assert!(is_filled(&other.map("named", Rights::READ).unwrap(), 1));
        let taken = here.malloc(4096, Spec::here().named("named"));
        assert!(matches!(taken, Err(RequestError::Refused { .. })), "{taken:?}");
        let more = here.malloc(1 << 20, Spec::here()).unwrap();
        assert!(is_filled(&more, 0), "life {life}: memory is zeroed");
        more.write(0, &[9; 1 << 20]).unwrap();
        assert!(is_filled(&named, 1) && is_filled(&unnamed, 2), "life {life}");
        drop(more);
        wait("its end", || (used(&here) == before).then_some(()));
    }
    // A free waits for the mapping of an earlier life, and asks its process to let go. One that ends before the process
    // has found the node's next life is refused, and made again.
    std::thread::scope(|scope| {
        let freed = scope.spawn(|| {
            let mut region = shared;
            while let Err(error) = region.free() {
                assert!(matches!(error, RequestError::Refused { .. }), "{error:?}");
                region = wait("the region", || here.map("direct", Rights::ALL).ok());
            }
        });
        wait("the wish", || direct.is_wanted_back().then_some(()));
        drop(direct);
        freed.join().unwrap();
    });
    // Regions end as ever: with the last handle, by a free, and with their process.
    drop(unnamed);
    drop(buffer);
    drop(view);
    named.free().unwrap();
    wait("all memory", || (used(&here) == empty).then_some(()));
}

#[test]
fn a_process_that_ends_while_its_node_is_away_loses_its_handles() {
    if is_child() {
        return;
    }
    let tag = tag("kept-ends");
    let (_keeper, mut one, _two) = (keeper("one", &tag), node("one", &tag), start("two", &tag));
    wait("the other node", || Tier::attach(&attach_address(&tag, "two")).ok());
    let here = attach(&attach_address(&tag, "one"));
    let empty = used(&here);
    let region =
        here.malloc(crate::kept_kills::BYTES, Spec::here().named("kills").grant_anyone(Rights::ALL)).unwrap();
    let before = used(&here);
    let mut writer = start("kept-writer", &tag);
    wait("the writer", || (used(&here) > before).then_some(()));
    one.kill();
    writer.kill();
    let _one = node("one", &tag);
    wait("the memory of the writer", || {
        // A region with a name stays behind.
        let _ = here.map("moves", Rights::ALL).map(Lmr::free);
        (used(&here) == before).then_some(())
    });
    region.free().unwrap();
    wait("all memory", || (used(&here) == empty).then_some(()));
}

#[test]
fn handles_of_other_nodes_outlive_a_node() {
    if is_child() {
        return;
    }
    let tag = tag("kept-peers");
    let _keepers = ["one", "two"].map(|name| keeper(name, &tag));
    let [mut one, mut two] = ["one", "two"].map(|name| node(name, &tag));
    let [here, there] = ["one", "two"].map(|name| attach(&attach_address(&tag, name)));
    let empty = [used(&here), used(&there)];
    // Records and bytes at either node, and bytes of one region at both.
    let near = here.malloc(200_000, Spec::on("two").named("near").grant_anyone(Rights::ALL)).unwrap();
    let far = there.malloc(200_000, Spec::on("two").named("far").grant_anyone(Rights::ALL)).unwrap();
    let spread = here.malloc(9 << 20 >> 1, Spec::spread(["one", "two"])).unwrap();
    let view = here.map("far", Rights::ALL).unwrap();
    for (region, byte) in [(&near, 1), (&far, 2), (&spread, 3)] {
        region.memset(0, region.len(), byte).unwrap();
    }
    let whole = |life: u32| {
        for (region, byte) in [(&near, 1), (&far, 2), (&view, 2), (&spread, 3)] {
            // The first operation finds out that the connection has ended; it may have been executed, and a READ may be
            // asked for again.
            wait("the next life of a node", || bytes_of(region).ok());
            assert!(is_filled(region, byte), "life {life}");
        }
        let again = wait("the name", || here.map("far", Rights::READ).ok());
        assert!(is_filled(&again, 2), "life {life}");
    };
    for life in 0..3 {
        restart(&mut two, "two", &tag);
        whole(life);
        restart(&mut one, "one", &tag);
        whole(life);
        one.kill();
        restart(&mut two, "two", &tag);
        one = node("one", &tag);
        whole(life);
    }
    // Nothing is left of any of it.
    drop((near, view, spread));
    wait("a free of all nodes", || there.map("near", Rights::ALL).ok()).free().unwrap();
    far.free().unwrap();
    wait("all memory", || ([used(&here), used(&there)] == empty).then_some(()));
}

/// A process of another node that has mapped memory of the earlier life may be at a copy, for as long as it does not run.
#[test]
fn a_free_waits_for_a_stopped_node_across_a_restart() {
    if is_child() {
        return;
    }
    let tag = tag("kept-stopped");
    let _keepers = ["one", "two"].map(|name| keeper(name, &tag));
    let [mut one, two] = ["one", "two"].map(|name| node(name, &tag));
    let [here, there] = ["one", "two"].map(|name| attach(&attach_address(&tag, name)));
    let empty = used(&here);
    let region = here.malloc(4096, Spec::here().named("stopped").grant_anyone(Rights::ALL)).unwrap();
    let view = there.map("stopped", Rights::ALL).unwrap();
    view.write(0, &[5; 4096]).unwrap();
    let process = Pid::from_raw(two.0.id() as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    // All of its threads, each at its own time.
    wait("its stop", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", two.0.id())).unwrap();
        let mut stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
        stats.all(|stat| stat.contains(") T ")).then_some(())
    });
    let freed = region.free();
    let waits = matches!(freed, Err(RequestError::Refused { source: Refusal::Waits(_), .. }));
    assert!(waits, "{freed:?}");
    restart(&mut one, "one", &tag);
    // The next life goes on with the free, and fences the node, which connects no more: long enough to be tried.
    let tried = Instant::now();
    while tried.elapsed() < Duration::from_secs(4) {
        assert!(used(&here) > empty, "used again after {:?}, while it may be written", tried.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(process, Signal::CONT).unwrap();
    wait("the memory", || (used(&here) == empty).then_some(()));
    let gone = wait("the end of the region", || match view.write(0, &[6; 4096]) {
        Err(OperationError::Access(error)) => Some(error),
        Err(_) => None,
        Ok(()) => panic!("a region that was freed"),
    });
    assert_eq!(gone, AccessError::Gone);
}

#[test]
fn regions_are_gone_when_node_and_keeper_die() {
    if is_child() {
        return;
    }
    let tag = tag("kept-both");
    let mut keepers = ["one", "two"].map(|name| keeper(name, &tag));
    let (_one, mut two) = (node("one", &tag), node("two", &tag));
    let [here, there] = ["one", "two"].map(|name| attach(&attach_address(&tag, name)));
    let far = here.malloc(4096, Spec::on("two")).unwrap();
    let own = there.malloc(4096, Spec::on("two").named("own")).unwrap();
    two.kill();
    keepers[1].kill();
    keepers[1] = keeper("two", &tag);
    let _two = node("two", &tag);
    let error = own.read(0, &mut [0; 8]).unwrap_err();
    let is_detached =
        matches!(&error, OperationError::Request(one) if matches!(**one, RequestError::Detached));
    assert!(is_detached, "{error:?}");
    let gone = wait("the loss", || match far.read(0, &mut [0; 8]) {
        Err(OperationError::Access(error)) => Some(error),
        _ => None,
    });
    assert_eq!(gone, AccessError::Gone);
    wait("a new region of that name", || here.malloc(4096, Spec::on("two").named("own")).ok());
}

#[test]
fn other_nodes_settings_and_damaged_ledgers_are_refused() {
    if is_child() {
        return;
    }
    let tag = tag("kept-refused");
    let mut first = keeper("one", &tag);
    let settings = || config(&tag, &["one", "two"], "one");
    {
        // No process of the test may end with it, so the memory stays as a kill leaves it.
        let mut one = node("one", &tag);
        let here = attach(&attach_address(&tag, "one"));
        let busy = ShmKeeper::connect(&keeper_address(&tag, "one"), Duration::ZERO);
        assert!(matches!(busy, Err(KeeperError::Busy(_))), "a second node: {busy:?}");
        here.malloc(4096, Spec::here().named("a")).unwrap().write(0, &[7; 4096]).unwrap();
        one.kill();
    }
    let begin = |change: &dyn Fn(&mut dunlin_tier_node::TierConfig)| {
        let mut settings = settings();
        change(&mut settings);
        let keeper = ShmKeeper::connect(&keeper_address(&tag, "one"), Duration::MAX).unwrap();
        dunlin_tier_node::Tier::within_kept(&fabric(), settings, Box::new(keeper)).map(drop)
    };
    let other = begin(&|settings| settings.node = "two".into());
    assert!(matches!(&other, Err(JoinError::Kept { what: "the node", .. })), "{other:?}");
    let longer = begin(&|settings| settings.memory *= 2);
    assert!(matches!(&longer, Err(JoinError::Kept { what: "the memory", .. })), "{longer:?}");
    let extents = begin(&|settings| settings.extent = Some(8 << 20));
    assert!(matches!(&extents, Err(JoinError::Kept { what: "the length of extents", .. })), "{extents:?}");
    let moved = begin(&|settings| settings.nodes.reverse());
    assert!(matches!(&moved, Err(JoinError::Kept { .. })), "{moved:?}");
    let views = begin(&|settings| settings.directory = Some("shm:directory".parse().unwrap()));
    assert!(matches!(&views, Err(JoinError::KeptViews)), "{views:?}");

    // One bit of the ledger, somewhere in its head or in a record.
    for at in [3, 17, 19, 64 + 9, 128 + 9, 4096 + 40, 4096 + (1 << 30) + 40] {
        let mut keeper = ShmKeeper::connect(&keeper_address(&tag, "one"), Duration::MAX).unwrap();
        let ledger = Region::new(keeper.kept().unwrap().remove(0));
        let flip = || {
            let mut byte = [0];
            ledger.copy_out(at, &mut byte);
            ledger.copy_in(at, &[byte[0] ^ 4]);
        };
        flip();
        drop(keeper);
        let begun = begin(&|_| {});
        flip();
        match begun {
            Err(JoinError::Ledger { node, .. }) => assert_eq!(node, "one"),
            // The head, or the area, that is not in use.
            Ok(()) => assert!([64 + 9, 128 + 9, 4096 + 40].contains(&at), "byte {at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let one = serve_kept(settings(), &tag, |_| {}).unwrap();
    let again = attach(&one.address).map("a", Rights::READ).unwrap();
    assert!(is_filled(&again, 7), "the memory was refused, and not forgotten");
    drop((again, one));
    first.kill();
    let nobody = ShmKeeper::connect(&keeper_address(&tag, "one"), Duration::ZERO);
    assert!(matches!(nobody, Err(KeeperError::Nobody(_))), "{nobody:?}");
}

#[test]
fn a_node_without_a_keeper_says_so_to_its_processes() {
    if is_child() {
        return;
    }
    let tag = tag("kept-not");
    let mut keeper = KeeperServer::listen(&keeper_address(&tag, "one")).unwrap();
    assert_eq!((keeper.held(), keeper.serve(Duration::ZERO)), ((0, 0), None));
    let one = serve(config(&tag, &["one"], "one"), &tag, |_| {});
    let here = attach(&one.address);
    let region = here.malloc(4096, Spec::here()).unwrap();
    drop((one.processes, one.node));
    let error = region.read(0, &mut [0; 8]).unwrap_err();
    assert!(!error.may_have_executed(), "{error:?}");
}
