//! The queue pairs of a pair of nodes (LITE section 6.1): their number does not depend on the processes that use them.

#[path = "../../../tier-node/tests/all/queue_pair_count.rs"]
mod queue_pair_count;

use self::queue_pair_count::Count;
use crate::common::{attach, config, fabric, serve, tag};
use dunlin_fabric::interpose::Interposed;
use dunlin_tier_client::EachCall;
use dunlin_tier_node::{Spec, TierConfig};
use std::sync::Arc;
use std::thread::spawn;

const PATHS: u16 = 2;
/// Those of messages of threads, which share them.
const THREADS: u32 = 4;
/// Those of the processes' calls, of their requests for locks, and of their waits.
const PROCESSES: u32 = 3;

/// Processes of a host operate on another node's memory, call a service there, and use its locks and barriers, each by
/// several threads, while threads of their node do the same.
#[test]
fn queue_pairs_do_not_grow_with_processes() {
    let (tag, made) = (tag("pairs"), Count::default());
    let names = ["alice", "bob"];
    let of = |name| TierConfig { paths: PATHS, ..config(&tag, &names, name) };
    let interposed = Interposed::with_hooks(fabric(), made.clone());
    let bob = dunlin_tier_node::Tier::within(&interposed, of("bob")).unwrap();
    let alice = serve(of("alice"), &tag, |_| {});
    let calls = Arc::new(bob.register("s", 1).unwrap());
    let servers: Vec<_> = (0..4)
        .map(|_| {
            let calls = Arc::clone(&calls);
            spawn(move || {
                let mut buffer = [0; 64];
                loop {
                    let request = calls.receive(&mut buffer).unwrap();
                    match request.len() {
                        0 => return request.reply(&[]),
                        length => request.reply(&buffer[..length]),
                    }
                }
            })
        })
        .collect();
    let at_bob = |name: &String| alice.node.lock_home(name).unwrap() == "bob";
    let lock = (0..).map(|number| format!("lock-{number}")).find(at_bob).unwrap();
    let meets = (0..).map(|number| format!("meets-{number}")).find(at_bob).unwrap();
    for processes in [1, 6] {
        let users: Vec<_> = (0..processes)
            .flat_map(|_| {
                let process = Arc::new(attach(&alice.address));
                [Arc::clone(&process), process]
            })
            .map(|process| {
                let (lock, meets) = (lock.clone(), meets.clone());
                spawn(move || {
                    let region = process.malloc(4096, Spec::on("bob")).unwrap();
                    for round in 0..20 {
                        region.write(64 * round, &[1; 64]).unwrap();
                        assert_eq!(process.call("bob", "s", 1, b"one", &mut [0; 8]).unwrap(), 3);
                        let each = EachCall { node: "bob", service: b"s", function: 1, request: b"two" };
                        process.call_each(crate::common::HANG, &[each, each]).unwrap();
                        drop(process.lock(&lock).unwrap());
                    }
                    process.barrier(&meets, 2 * processes).unwrap();
                })
            })
            .collect();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (alice, lock) = (alice.node.clone(), lock.clone());
                spawn(move || {
                    for _ in 0..20 {
                        assert_eq!(alice.call("bob", "s", 1, b"one", &mut [0; 8]).unwrap(), 3);
                        drop(alice.malloc(64, Spec::on("bob")).unwrap());
                        drop(alice.lock(&lock).unwrap());
                    }
                })
            })
            .collect();
        users.into_iter().chain(threads).for_each(|user| user.join().unwrap());
        let made = made.get();
        assert!(made <= u32::from(PATHS) + THREADS + PROCESSES, "{processes} processes: {made} queue pairs");
    }
    servers.iter().for_each(|_| assert_eq!(alice.node.call("bob", "s", 1, &[], &mut []).unwrap(), 0));
    servers.into_iter().for_each(|server| server.join().unwrap());
}
