//! Operations on shared memory make no system call in the thread that makes them: on regions of another process's node, and
//! on regions of the own one. A seccomp filter on the thread ends the process at the first call.
//!
//! The exception is a lock of the node that one of its own threads wants at the same moment: whoever finds it taken sleeps,
//! and is woken. The filter counts these calls, which are few; a call of each operation would be ten times as many as
//! the test admits.

#![allow(missing_docs, clippy::unwrap_used)]

#[cfg(target_arch = "x86_64")]
mod watched {
    use dunlin_fabric::Scheme;
    use dunlin_fabric_shm::{ShmConfig, ShmFabric};
    use dunlin_system_calls::{Process, UNEXPECTED, count_sleeps, end, ready, run, sleeps};
    use dunlin_tier_node::{Buffer, Lmr, Operations, Peer, Spec, Tier, TierConfig};
    use std::io::Read as _;
    use std::process::ExitStatus;

    /// Operations before the filter is installed, of each kind.
    const WARM_UP: u64 = 500;
    /// Operations with the filter, of each kind.
    const OPERATIONS: u64 = 10_000;
    /// Sleeps and wake-ups at locks of the node, together at most.
    const AT_LOCKS: u64 = OPERATIONS / 10;
    /// The exit statuses of a process that survived the filter.
    const WRONG: i32 = 3;
    const TOO_MANY: i32 = 4;
    const LENGTH: u64 = 200_000;
    const NAMES: [&str; 2] = ["user", "store"];

    /// The kinds of operations.
    const KINDS: [&str; 8] =
        ["write", "long write", "read", "long read", "fetch_add", "compare_swap", "list", "buffer"];

    pub(super) fn run_all() {
        run(
            &[("store", store), ("user", user), ("offender", offender)],
            &[("operations_make_no_system_call", operations_make_no_system_call)],
        );
    }

    /// Starts the node of a role. Its busy waits never sleep, however crowded the cores are.
    fn node(tag: &str, number: usize) -> Tier<ShmFabric> {
        let peers = NAMES.map(|name| {
            let Peer { calls, memory, .. } = Peer::named(Scheme::Shm, &format!("{tag}-{name}")).unwrap();
            Peer { name: name.to_owned(), calls, memory }
        });
        let mut config = TierConfig::new(peers.to_vec(), NAMES[number]);
        (config.memory, config.piece) = (2 << 20, 4096);
        let fabric = ShmFabric::new(ShmConfig { gives_way: false, ..ShmConfig::default() }).unwrap();
        Tier::within(&fabric, config).unwrap()
    }

    /// A node whose memory the other process uses, until its input ends.
    fn store(tag: &str) {
        let _node = node(tag, 1);
        ready().unwrap();
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
    }

    /// Makes the operations of one kind. Returns whether all had the right result.
    fn operate(
        kind: &str,
        region: &Lmr<ShmFabric>,
        buffer: &mut Buffer<ShmFabric>,
        rounds: std::ops::Range<u64>,
    ) -> bool {
        let mut bytes = [7; 20_000];
        rounds.into_iter().all(|round| {
            let offset = round * 4088 % 100_000;
            let word = LENGTH - 64;
            match kind {
                "write" => region.write(offset, &bytes[..64]).is_ok(),
                "long write" => region.write(offset, &bytes).is_ok(),
                "read" => region.read(offset, &mut bytes[..64]).is_ok_and(|()| bytes[0] == 7),
                "long read" => region.read(offset, &mut bytes).is_ok_and(|()| bytes[19_999] == 7),
                "fetch_add" => region.fetch_add(word, 1).is_ok_and(|old| old == round),
                "compare_swap" => {
                    region.compare_swap(word + 8, round, round + 1).is_ok_and(|old| old == round)
                }
                "list" => {
                    let (some, others) = bytes.split_at_mut(1000);
                    let list =
                        Operations::new().write(region, offset, some).read(region, offset + 5000, others);
                    let outcomes = list.fetch_add(region, word + 16, 1).run();
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

    /// Operates on a region of the other process's node or of the own one, and is watched.
    fn user(arguments: &str) {
        let [tag, place, kind] = arguments.split(',').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
        let node = node(tag, 0);
        let region = node.malloc(LENGTH, Spec::on(place)).unwrap();
        region.memset(0, LENGTH - 64, 7).unwrap();
        let mut buffer = node.buffer(4096).unwrap();
        assert!(operate(kind, &region, &mut buffer, 0..WARM_UP));
        // Lists allocate, and the filter takes the last free bytes of the heap: the heap grows before the filter watches.
        drop(std::hint::black_box(vec![1_u8; 64 << 10]));
        ready().unwrap();
        count_sleeps().unwrap();
        let right = operate(kind, &region, &mut buffer, WARM_UP..WARM_UP + OPERATIONS);
        let made = sleeps();
        end(match made.waits + made.wakes {
            _ if !right => WRONG,
            calls if calls > AT_LOCKS || made.barriers > 0 => TOO_MANY,
            _ => 0,
        })
    }

    /// Makes one system call with the filter installed.
    fn offender(_: &str) {
        ready().unwrap();
        count_sleeps().unwrap();
        let _ = std::fs::metadata("/");
        end(0)
    }

    /// Runs a role, and returns how it ended.
    fn ended(role: &str, arguments: &str) -> ExitStatus {
        let mut process = Process::start(role, arguments).unwrap();
        assert_eq!(process.line().unwrap(), "ready", "{role} {arguments}");
        process.wait().unwrap()
    }

    fn operations_make_no_system_call() {
        assert_eq!(ended("offender", "").code(), Some(UNEXPECTED), "the filter does not watch");
        for place in NAMES {
            for kind in KINDS {
                let tag = format!("system-calls-{}", std::process::id());
                let mut store = Process::start("store", &tag).unwrap();
                assert_eq!(store.line().unwrap(), "ready");
                let status = ended("user", &format!("{tag},{place},{kind}"));
                store.release();
                assert!(store.wait().unwrap().success());
                assert!(
                    status.success(),
                    "{kind} at {place} ended with {status}: {UNEXPECTED} is a system call, whose number is above; {TOO_MANY} is \
                 too many sleeps and wake-ups, {WRONG} is a wrong result"
                );
            }
        }
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    watched::run_all();
}
