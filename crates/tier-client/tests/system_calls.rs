//! Operations of an attached process make no system call but those of its waiting: a thread whose answer takes longer
//! than 20 us sleeps, and wakes the node's worker if that sleeps. So a request makes three calls at most (`futex` to
//! wake, `membarrier` and `futex` to sleep), and none while both are awake. A seccomp filter counts them, and ends
//! the process at any other call. The node's workers run as ever, and are traced.

#![allow(missing_docs, clippy::unwrap_used)]

use dunlin_system_calls::{Process, ready, run};
use std::io::Read as _;

#[cfg(target_arch = "x86_64")]
#[path = "all/nodes.rs"]
mod nodes;

#[cfg(target_arch = "x86_64")]
mod watched {
    use super::*;
    use crate::nodes::{HANG, config, start};
    use dunlin_fabric_shm::{ShmConfig, ShmFabric};
    use dunlin_system_calls::traced::{Calls, count_calls, end_count, threads_named};
    use dunlin_system_calls::{Sleeps, UNEXPECTED, count_sleeps, end, sleeps};
    use dunlin_tier_client::{AttachConfig, Buffer, Lmr, Operations, Spec, Tier};
    use dunlin_tier_node::TierConfig;
    use std::ops::Range;
    use std::process::ExitStatus;
    use std::sync::Barrier;

    /// Operations before the filter is installed, of each kind.
    const WARM_UP: u64 = 500;
    /// Operations with the filter, of each kind.
    const OPERATIONS: u64 = 10_000;
    /// The exit statuses of a process that survived the filter.
    const WRONG: i32 = 3;
    const TOO_MANY: i32 = 4;
    const LENGTH: u64 = 200_000;
    const NODES: [&str; 2] = ["own", "other"];
    const KINDS: [&str; 6] = ["write", "read", "fetch_add", "compare_swap", "list", "buffer"];

    pub(super) fn run_all() {
        run(
            &[("nodes", nodes), ("user", user), ("plain", plain), ("offender", offender)],
            &[
                ("operations_sleep_and_wake_at_most", operations_sleep_and_wake_at_most),
                (
                    "the_worker_sleeps_and_wakes_at_most_once_for_a_request",
                    the_worker_sleeps_and_wakes_at_most_once_for_a_request,
                ),
            ],
        );
    }

    /// Two nodes, of which the first one serves processes, until the input ends.
    fn nodes(tag: &str) {
        // Buffers of a process that has just ended may still be there.
        let settings = |name| TierConfig { memory: 64 << 20, ..config(tag, &NODES, name) };
        let serving = NODES.map(|name| start(settings(name), tag, |_| {}));
        println!("{}", serving[0].0);
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
    }

    /// Makes the operations of one kind. Returns whether all had the right result.
    fn operate(kind: &str, region: &Lmr<ShmFabric>, buffer: &mut Buffer, rounds: Range<u64>) -> bool {
        let (mut bytes, word) = ([7; 3000], LENGTH - 64);
        rounds.into_iter().all(|round| {
            let offset = round * 4088 % 100_000;
            match kind {
                "write" => region.write(offset, &bytes[..64]).is_ok(),
                "read" => region.read(offset, &mut bytes).is_ok_and(|()| bytes[2999] == 7),
                "fetch_add" => region.fetch_add(word, 1).is_ok_and(|old| old == round),
                "compare_swap" => {
                    region.compare_swap(word + 8, round, round + 1).is_ok_and(|old| old == round)
                }
                "list" => {
                    let (some, others) = bytes.split_at_mut(1000);
                    let list = Operations::new().write(region, offset, some);
                    let outcomes =
                        list.read(region, offset + 5000, others).fetch_add(region, word + 16, 1).run();
                    outcomes.is_ok_and(|outcomes| {
                        outcomes.iter().all(Result::is_ok)
                            && outcomes[2].as_ref().is_ok_and(|done| done.old() == Some(round))
                    })
                }
                _ => {
                    region.write_from(offset, buffer, 3..3003).is_ok()
                        && region.read_into(offset, buffer, 3..3003).is_ok()
                }
            }
        })
    }

    /// Operates on a region through the node, and is watched.
    fn user(arguments: &str) {
        let [address, place, kind] = arguments.split(',').collect::<Vec<_>>()[..] else {
            panic!("{arguments}")
        };
        // Busy waits never sleep, however crowded the cores are.
        let fabric = ShmFabric::new(ShmConfig { gives_way: false, ..ShmConfig::default() }).unwrap();
        let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address.parse().unwrap()) };
        let tier = Tier::attach_with(&fabric, config).unwrap();
        let region = tier.malloc(LENGTH, Spec::on(place)).unwrap();
        region.memset(0, LENGTH - 64, 7).unwrap();
        let mut buffer = tier.buffer(4096).unwrap();
        assert!(operate(kind, &region, &mut buffer, 0..WARM_UP));
        let requests = if kind == "buffer" { 2 * OPERATIONS } else { OPERATIONS };
        ready().unwrap();
        count_sleeps().unwrap();
        let right = operate(kind, &region, &mut buffer, WARM_UP..WARM_UP + OPERATIONS);
        let made = sleeps();
        // A quarter more covers long sleeps that were interrupted.
        let most = requests + requests / 4;
        let few = [made.waits, made.wakes, made.barriers].into_iter().all(|count| count <= most);
        end(match (right, few) {
            (true, true) => 0,
            (true, false) => TOO_MANY,
            (false, _) => WRONG,
        })
    }

    /// Operates as `user`, from the end of its input on, and is not watched: the worker of its node is.
    fn plain(arguments: &str) {
        let [address, place, kind] = arguments.split(',').collect::<Vec<_>>()[..] else {
            panic!("{arguments}")
        };
        let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address.parse().unwrap()) };
        let tier = Tier::attach_with(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap();
        let region = tier.malloc(LENGTH, Spec::on(place)).unwrap();
        region.memset(0, LENGTH - 64, 7).unwrap();
        let mut buffer = tier.buffer(4096).unwrap();
        assert!(operate(kind, &region, &mut buffer, 0..WARM_UP));
        ready().unwrap();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end(if operate(kind, &region, &mut buffer, WARM_UP..WARM_UP + OPERATIONS) { 0 } else { WRONG })
    }

    /// Counts the calls of all workers of the nodes while a process operates.
    fn count_of_workers(nodes: &Process, address: &str, place: &str, kind: &str) -> Calls {
        let mut user = Process::start("plain", &format!("{address},{place},{kind}")).unwrap();
        assert_eq!(user.line().unwrap(), "ready", "{kind} at {place}");
        let workers = threads_named(nodes.id(), "worker-0").unwrap();
        assert!(!workers.is_empty(), "the nodes have no worker of this name");
        let (mut all, began) = (Calls::default(), Barrier::new(workers.len() + 1));
        let wait = || {
            began.wait();
        };
        std::thread::scope(|scope| {
            let count = |thread: &i32| {
                let thread = *thread;
                scope.spawn(move || count_calls(thread, wait).unwrap())
            };
            let counts: Vec<_> = workers.iter().map(count).collect();
            wait();
            user.release();
            let ended = user.wait();
            workers.iter().for_each(|worker| end_count(nodes.id(), *worker).unwrap());
            counts.into_iter().for_each(|count| all.add(count.join().unwrap()));
            assert!(ended.unwrap().success(), "{kind} at {place}");
        });
        all
    }

    /// The worker of a node sleeps and wakes the process once for a request at most. It makes no other call for it, but to
    /// yield its core while it polls.
    fn the_worker_sleeps_and_wakes_at_most_once_for_a_request() {
        let mut nodes = Process::start("nodes", &format!("worker-calls-{}", std::process::id())).unwrap();
        let address = nodes.line().unwrap();
        for place in NODES {
            for kind in ["write", "read", "fetch_add", "list"] {
                let calls = count_of_workers(&nodes, &address, place, kind);
                println!("{kind} at {place}: {calls:?}");
                let Sleeps { waits, wakes, barriers } = calls.sleeps;
                // Half more covers the sleeps of workers without requests, of which there are more the longer the run takes:
                // beside builds up to a quarter. A second sleep for each request would be twice as many.
                let few =
                    [waits, wakes, barriers].into_iter().all(|made| made <= OPERATIONS + OPERATIONS / 2);
                // The ends of processes that were there before.
                let others: u64 = calls.others.values().sum();
                assert!(few && others <= OPERATIONS / 100, "{kind} at {place}: {calls:?}");
            }
        }
        nodes.release();
        assert!(nodes.wait().unwrap().success());
    }

    /// Makes one other system call with the filter installed.
    fn offender(_: &str) {
        ready().unwrap();
        count_sleeps().unwrap();
        let _ = std::fs::metadata("/");
        end(0)
    }

    fn operations_sleep_and_wake_at_most() {
        let mut offender = Process::start("offender", "").unwrap();
        assert_eq!(offender.line().unwrap(), "ready");
        assert_eq!(offender.wait().unwrap().code(), Some(UNEXPECTED), "the filter does not watch");
        let mut nodes = Process::start("nodes", &format!("system-calls-{}", std::process::id())).unwrap();
        let address = nodes.line().unwrap();
        for place in NODES {
            for kind in KINDS {
                // A rare call, as to wait for a lock that another thread has, is not in each attempt. One of every operation
                // is.
                let mut ended = Vec::new();
                while ended.len() < 3 && !ended.last().is_some_and(ExitStatus::success) {
                    let mut user = Process::start("user", &format!("{address},{place},{kind}")).unwrap();
                    assert_eq!(user.line().unwrap(), "ready", "{kind} at {place}");
                    ended.push(user.wait().unwrap());
                }
                assert!(
                    ended.last().is_some_and(ExitStatus::success),
                    "{kind} at {place} ended with {ended:?}: {UNEXPECTED} is another system call, whose number is above; \
                     {TOO_MANY} is more than one call of a kind for a request, {WRONG} is a wrong result"
                );
            }
        }
        nodes.release();
        assert!(nodes.wait().unwrap().success());
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    watched::run_all();
}
