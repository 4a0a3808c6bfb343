//! Prefetches the memory of upcoming events. These are hints: no result depends on them.

use crate::memory::SimMemory;
use crate::queues::{Action, Touched};
use crate::state::Network;
use dunlin_fabric::{Memory, copy};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cache lines of a queue pair that a message touches.
const QUEUE_PAIR_LINES: usize = 3;

impl Network {
    /// Prefetches a queue pair.
    #[inline]
    pub(crate) fn warm_queue_pair(&self, queue_pair: u32) {
        let Some(place) = self.queue_pairs.place(queue_pair) else { return };
        for line in 0..QUEUE_PAIR_LINES {
            copy::prefetch_to_write(place.cast::<u8>().wrapping_add(line * LINE));
        }
    }

    /// Prefetches for a packet's arrival: both queue pairs and the grant that its key names.
    #[inline]
    pub(crate) fn warm_arrival(&self, packet: u32) {
        let place = &self.packets[packet];
        self.warm_queue_pair(place.to);
        self.warm_queue_pair(place.from);
        if let Action::Write { key, .. } = place.action {
            self.links.warm(key.0 as u32);
        }
    }

    /// Returns where the bytes of a packet in flight will land.
    #[inline]
    fn landing(&self, packet: u32) -> Option<(&SimMemory, usize)> {
        let Action::Write { key, offset, .. } = self.packets[packet].action else { return None };
        Some((self.links.memory(key.0 as u32)?.memory(), offset as usize))
    }

    /// Prefetches the descriptor of that memory.
    #[inline]
    pub(crate) fn warm_memory(&self, packet: u32) {
        if let Some((memory, _)) = self.landing(packet) {
            copy::prefetch_to_read((&raw const *memory).cast());
        }
    }

    /// Prefetches that memory and its watching domain.
    #[inline]
    pub(crate) fn warm_landing(&self, packet: u32) {
        let Some((memory, offset)) = self.landing(packet) else { return };
        let first = memory.base().as_ptr().wrapping_add(offset);
        copy::prefetch_to_write(first);
        copy::prefetch_to_read(first.wrapping_add(LINE));
        if let Some(domain) = memory.watcher().and_then(|domain| self.domains.place(domain)) {
            copy::prefetch_to_write(domain.cast());
            copy::prefetch_to_read(domain.cast::<u8>().wrapping_add(LINE));
        }
    }

    /// Returns the task that waits for the landing, and the memory that it will touch.
    #[inline]
    pub(crate) fn waits_for_landing(&self, packet: u32) -> Option<(u32, &Touched)> {
        let (memory, _) = self.landing(packet)?;
        let domain = self.domains.get(memory.watcher()?)?;
        domain.waiting.map(|(waiter, _)| (waiter.task, &domain.touched))
    }
}
