//! A shared memory whose pages come by faults, as LITE-DSM has them.

use dunlin_app_graph::{SharedSpace, Space};
use dunlin_app_memory::{Acquired, MemoryConfig, MemoryError, PAGE};
use dunlin_fabric::{Fabric as _, Nanos};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::Tier;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_WORDS: usize = PAGE / 8;

/// The space of the engine, with a fault and a READ of its own for each page that is not there.
pub(super) struct FaultingSpace {
    space: SharedSpace<Tier<Sim>>,
    sim: Sim,
    fault: Nanos,
    /// Pages that were charged.
    charged: AtomicU64,
}

impl FaultingSpace {
    pub(super) fn open(tier: &Tier<Sim>, config: &MemoryConfig, fault: Nanos) -> Result<Self, MemoryError> {
        let (space, sim) = (SharedSpace::open(tier, config)?, tier.fabric().clone());
        Ok(FaultingSpace { space, sim, fault, charged: AtomicU64::new(0) })
    }
}

impl Space for FaultingSpace {
    type Held<'a> = Acquired<'a, Tier<Sim>>;

    fn words(&self) -> &[AtomicU64] {
        self.space.words()
    }

    fn fetch(&self, words: Range<usize>) -> Result<(), MemoryError> {
        let mut at = words.start;
        while at < words.end {
            let end = (at / PAGE_WORDS + 1) * PAGE_WORDS;
            self.space.fetch(at..end.min(words.end))?;
            // Each page that any thread has fetched is charged once, to the thread that sees it first.
            let fetched = self.space.fetched();
            let before = self.charged.fetch_max(fetched, Ordering::Relaxed);
            self.sim.host().work(fetched.saturating_sub(before) * self.fault);
            at = end;
        }
        Ok(())
    }

    fn acquire(&self, ranges: &[Range<usize>]) -> Result<Acquired<'_, Tier<Sim>>, MemoryError> {
        self.space.acquire(ranges)
    }

    fn release(&self, held: Acquired<'_, Tier<Sim>>, ranges: &[Range<usize>]) -> Result<(), MemoryError> {
        self.space.release(held, ranges)
    }

    fn barrier(&self) -> Result<(), MemoryError> {
        self.space.barrier()
    }
}
