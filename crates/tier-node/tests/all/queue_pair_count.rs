//! A count of queue pairs, for tests of this crate and of the library of processes.

use dunlin_fabric::interpose::{DomainHooks, Hooks, LinkHooks};
use dunlin_fabric::{CreateError, Fabric, Link, QueuePairConfig, QueuePairId, ThreadDomain};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the queue pairs that a node makes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicU32>);

impl Count {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<F: Fabric> Hooks<F> for Count {
    type Domain = Self;
    type Link = Self;

    fn domain_hooks(&self) -> Self {
        self.clone()
    }

    fn link_hooks(&self) -> Self {
        self.clone()
    }
}

impl<L: Link> LinkHooks<L> for Count {}

impl<D: ThreadDomain> DomainHooks<D> for Count {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        inner.create_queue_pair(config)
    }
}
