//! The state of a server whose workers and clients on the same host have no core each.

use crate::plan::Occupancy;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether workers and clients of this host are more than its cores.
#[derive(Debug, Default)]
pub(crate) struct Oversubscription {
    /// The workers wait adaptively, even if all plans are busy.
    pub(crate) is_oversubscribed: AtomicBool,
    /// The occupancy that was last found oversubscribed, until it is logged.
    unlogged: Mutex<Option<Occupancy>>,
    logged: AtomicBool,
}

impl Oversubscription {
    /// Takes a new occupancy, and returns whether workers have to wait by another rule.
    pub(crate) fn set(&self, occupancy: Occupancy) -> bool {
        let crowded = !occupancy.fits();
        if crowded {
            *self.unlogged.lock().unwrap_or_else(PoisonError::into_inner) = Some(occupancy);
        }
        self.is_oversubscribed.swap(crowded, Ordering::Relaxed) != crowded
    }

    /// Logs, once for each server, that a worker does not wait as its plans say.
    pub(crate) fn log(&self) {
        if !self.logged.swap(true, Ordering::Relaxed)
            && let Some(occupancy) = *self.unlogged.lock().unwrap_or_else(PoisonError::into_inner)
        {
            tracing::warn!(target: "dunlin::server", "{occupancy}, although plans say busy");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata};

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<u32>>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "dunlin::server"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            *self.0.lock().unwrap() += 1;
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_server_that_is_oversubscribed_again_is_logged_once() {
        let (lines, state) = (Lines::default(), Oversubscription::default());
        let occupancy = |clients| Occupancy { workers: 1, clients, cores: 2 };
        tracing::subscriber::with_default(lines.clone(), || {
            for clients in [5, 6] {
                assert!(state.set(occupancy(clients)), "its workers have to wait by another rule");
                state.log();
                state.log();
                assert!(state.set(occupancy(1)));
            }
        });
        assert_eq!(*lines.0.lock().unwrap(), 1);
    }
}
