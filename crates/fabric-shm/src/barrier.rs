//! A memory barrier on the processors of other processes, by `membarrier`.
//!
//! Producers store a message and then load the flags of its receiver, and the receiver sets a flag and then
//! polls for messages. Without a barrier between store and load on both sides, both can miss the other. A
//! fence in the producer would cost part of each message's time. The receiver executes the barrier for both
//! sides instead, once for each sleep: the kernel interrupts the processors that run a registered process.

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use std::sync::OnceLock;

/// Returns whether the barriers of all processes reach the threads of this process. Registers it at the first
/// call. A process without `membarrier` has to execute fences of its own.
pub(crate) fn is_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        let registered = membarrier_query().contains(needed)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        if !registered {
            tracing::info!(
                "the kernel gives this process no membarrier: threads that poll memory do not sleep"
            );
        }
        registered
    })
}

/// Executes a barrier on every processor that runs a registered process, and on this one. A thread that does
/// not run passes one when it is scheduled.
pub(crate) fn all_processors() {
    if let Err(error) = membarrier(MembarrierCommand::GlobalExpedited) {
        tracing::warn!(%error, "membarrier failed; a sleep may last until its bound");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_it_and_a_process_registers_once() {
        assert!(is_registered() && is_registered());
        all_processors();
    }
}
