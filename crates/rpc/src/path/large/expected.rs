//! The table of the announced payloads of a lane that are not complete.

use crate::path::Violation;

/// The state of announced payloads, by call.
#[derive(Debug)]
pub(super) struct Expected<T> {
    list: Vec<(u32, T)>,
    limit: usize,
}

impl<T> Expected<T> {
    /// Creates the table for a lane with window `window`.
    pub(super) fn new(window: u16) -> Self {
        Expected { list: Vec::new(), limit: 2 * window as usize + 64 }
    }

    pub(super) fn contains(&self, call: u32) -> bool {
        self.list.iter().any(|(expected, _)| *expected == call)
    }

    /// Adds a payload; returns its state.
    pub(super) fn put(&mut self, call: u32, state: T) -> Result<&mut T, Violation> {
        if self.list.len() >= self.limit || self.contains(call) {
            return Err(Violation::Transfer("more large payloads than the window allows are announced"));
        }
        let at = self.list.len();
        self.list.push((call, state));
        Ok(&mut self.list[at].1)
    }

    pub(super) fn get(&mut self, call: u32) -> Option<&mut T> {
        self.list.iter_mut().find_map(|(expected, state)| (*expected == call).then_some(state))
    }

    pub(super) fn remove(&mut self, call: u32) -> Option<T> {
        let at = self.list.iter().position(|(expected, _)| *expected == call)?;
        Some(self.list.swap_remove(at).1)
    }
}
