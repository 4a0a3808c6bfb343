//! Maps calls to operations, and classifies errors that only require waiting.

use dunlin_rpc::{CallError, CallId, Cause};

/// Maximum time without space for a call while nothing is in flight, ns. After it, the run fails.
pub(super) const PATIENCE_NS: f64 = 2e9;

const NONE: (u64, Option<CallId>) = (0, None);

/// Maps calls in flight to numbers of the caller, indexed by the engine's call index.
#[derive(Debug, Default)]
pub(super) struct CallTable {
    entries: Vec<(u64, Option<CallId>)>,
}

impl CallTable {
    /// Stores the number of a call.
    #[inline]
    pub(super) fn set(&mut self, call: CallId, what: u64) {
        let index = call.index();
        if index >= self.entries.len() {
            self.entries.resize(index + 1, NONE);
        }
        self.entries[index] = (what, Some(call));
    }

    /// Removes and returns the number of a call; `None` if the call is unknown.
    #[inline]
    pub(super) fn take(&mut self, call: CallId) -> Option<u64> {
        let entry = self.entries.get_mut(call.index())?;
        if entry.1 != Some(call) {
            return None;
        }
        entry.1 = None;
        Some(entry.0)
    }

    /// Removes and returns all numbers.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        let all = std::mem::take(&mut self.entries);
        all.into_iter().filter(|(_, call)| call.is_some()).map(|(what, _)| what).collect()
    }
}

/// Returns whether a locally refused call can succeed once results have arrived.
#[inline]
pub(super) fn wants_room(error: &CallError, in_flight: usize) -> bool {
    match error {
        CallError::NotExecuted(Cause::WindowFull) => true,
        CallError::NotExecuted(Cause::OutOfMemory) => in_flight > 0,
        _ => false,
    }
}
