//! The effect of the service's hints on the store (HatRPC section 4.4).

use crate::store::{Commit, Durability};
use dunlin::hints::{FunctionHints, PerfGoal, Priority};
use std::time::Duration;

/// The interval between writes to disk if answers do not wait for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(100);
/// The number of reader slots without the hint `concurrency`.
const READERS: u32 = 128;
/// The maximum number of writes that wait for one transaction, each on a thread.
const WRITERS: u32 = 32;

/// The settings of the store and its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The number of LMDB's reader slots.
    pub max_readers: u32,
    /// The commit mode of PUTs.
    pub put: Commit,
    /// The commit mode of MULTIPUTs.
    pub multiput: Commit,
    /// The durability of writes.
    pub durability: Durability,
    /// The number of threads on which writes wait for the disk, if they do.
    pub writers: u16,
}

impl Tuning {
    /// Returns the tuning that the server's hints select:
    ///
    /// - The largest `concurrency` is the number of reader slots, since each client may have a read in
    ///   progress. It is also the number of writes that wait for a transaction, within limits.
    /// - `perf_goal = throughput` commits concurrent writes together; with any other goal each write is
    ///   committed separately and immediately.
    /// - `priority = low` on all functions that write selects [`Durability::Fast`]; otherwise answered writes
    ///   are on disk. No goal selects it, since that would silently trade data for speed.
    pub fn hinted(functions: &[FunctionHints]) -> Self {
        let concurrency = functions.iter().filter_map(|function| function.server.concurrency).max();
        let concurrency = concurrency.unwrap_or(READERS);
        let write = |name: &str| functions.iter().find(|function| function.name == name).map(|it| it.server);
        let writes = ["put", "multiput"].map(write);
        let commit = writes.map(|hints| match hints.and_then(|hints| hints.perf_goal) {
            Some(PerfGoal::Throughput) => Commit::Together,
            _ => Commit::Alone,
        });
        let later = writes.iter().all(|hints| hints.is_some_and(|it| it.priority == Some(Priority::Low)));
        Tuning {
            max_readers: concurrency,
            put: commit[0],
            multiput: commit[1],
            durability: match later {
                true => Durability::Fast { sync_every: SYNC_EVERY },
                false => Durability::Durable,
            },
            writers: concurrency.clamp(1, WRITERS) as u16,
        }
    }

    /// Selects or deselects [`Durability::Fast`].
    #[must_use]
    pub fn fast(self, fast: bool) -> Self {
        let durability = if fast { Durability::Fast { sync_every: SYNC_EVERY } } else { Durability::Durable };
        Tuning { durability, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hatkv::HAT_KV_SERVICE;
    use dunlin::hints::Hints;

    fn hinted(put: Hints, multiput: Hints) -> Tuning {
        Tuning::hinted(&[
            FunctionHints::new("get"),
            FunctionHints::new("put").server(put),
            FunctionHints::new("multiput").server(multiput),
        ])
    }

    #[test]
    fn hints_choose_readers_commits_and_syncs() {
        let own = Tuning::hinted(HAT_KV_SERVICE.functions);
        assert_eq!((own.max_readers, own.writers), (128, 32));
        assert_eq!(
            (own.put, own.multiput, own.durability),
            (Commit::Together, Commit::Together, Durability::Durable)
        );

        let none = hinted(Hints::NONE, Hints::NONE);
        assert_eq!((none.max_readers, none.put, none.durability), (128, Commit::Alone, Durability::Durable));

        let latency = Hints::NONE.perf_goal(PerfGoal::Latency).concurrency(3);
        let mixed = hinted(latency, Hints::NONE.perf_goal(PerfGoal::Throughput).priority(Priority::Low));
        assert_eq!((mixed.put, mixed.multiput), (Commit::Alone, Commit::Together));
        assert_eq!((mixed.max_readers, mixed.writers, mixed.durability), (3, 3, Durability::Durable));

        let low = Hints::NONE.priority(Priority::Low);
        assert!(matches!(hinted(low, low).durability, Durability::Fast { .. }));
        assert_eq!(hinted(low, low).fast(false).durability, Durability::Durable);
        assert!(matches!(own.fast(true).durability, Durability::Fast { .. }));
    }
}
