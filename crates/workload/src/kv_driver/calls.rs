//! Which operation a call belongs to, and which errors only ask for patience.

use dunlin_rpc::{CallError, CallId, Cause};

/// How long room for a call may be missing while nothing is in flight, ns: then something is wrong.
pub(super) const PATIENCE_NS: f64 = 2e9;

const NONE: (u64, Option<CallId>) = (0, None);

/// From calls in flight to numbers of the caller's, by the index that the engine gives each call.
#[derive(Debug, Default)]
pub(super) struct CallTable {
    entries: Vec<(u64, Option<CallId>)>,
}

impl CallTable {
    /// Notes what a call is about.
    #[inline]
    pub(super) fn set(&mut self, call: CallId, what: u64) {
        let index = call.index();
        if index >= self.entries.len() {
            self.entries.resize(index + 1, NONE);
        }
        self.entries[index] = (what, Some(call));
    }

    /// What a call is about; `None` if it is not one of ours.
    #[inline]
    pub(super) fn take(&mut self, call: CallId) -> Option<u64> {
        let entry = self.entries.get_mut(call.index())?;
        if entry.1 != Some(call) {
            return None;
        }
        entry.1 = None;
        Some(entry.0)
    }

    /// Everything in the table, which is empty then.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        let all = std::mem::take(&mut self.entries);
        all.into_iter().filter(|(_, call)| call.is_some()).map(|(what, _)| what).collect()
    }
}

/// Whether a call that was refused on this side will find room as results come back.
#[inline]
pub(super) fn wants_room(error: &CallError, in_flight: usize) -> bool {
    match error {
        CallError::NotExecuted(Cause::WindowFull) => true,
        CallError::NotExecuted(Cause::OutOfMemory) => in_flight > 0,
        _ => false,
    }
}
