//! Calls whose requests leave together.

use super::Client;
use crate::client::core::Holding;
use dunlin_fabric::Fabric;

impl<F: Fabric> Client<F> {
    /// Holds the requests of further calls.
    pub(crate) fn hold(&mut self) -> Holding {
        self.core.hold()
    }

    /// Posts the requests that are held.
    pub(crate) fn release(&mut self, holding: Holding) {
        self.core.release(holding);
    }
}
