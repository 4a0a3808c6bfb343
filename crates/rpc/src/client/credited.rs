//! The client's end of a lane with credits (FLOCK section 5.1).

use super::lane::ClientLane;
use crate::path::credits::{Ask, GRANTED, MAX_CREDITS};
use dunlin_fabric::Fabric;
use dunlin_wire::{Flags, Header};

impl<F: Fabric> ClientLane<F> {
    /// Spends the credits of a message with this number of calls; `None` if there are not enough. A lane without
    /// credits has enough.
    pub(super) fn spend(&mut self, entries: u16) -> Option<Ask> {
        self.credits.as_mut().map_or(Some(Ask::No), |credits| credits.spend(entries))
    }

    #[cold]
    pub(super) fn unspend(&mut self, entries: u16, ask: Ask) {
        if let Some(credits) = &mut self.credits {
            credits.unspend(entries, ask);
        }
    }

    /// Returns whether the open batch may have another call.
    pub(super) fn has_credit(&self) -> bool {
        self.credits.as_ref().is_none_or(|credits| self.batch.count() < credits.available())
    }

    /// Returns whether the server has declined to let the lane send more.
    pub(crate) fn is_declined(&self) -> bool {
        self.credits.as_ref().is_some_and(|credits| !credits.is_active())
    }

    /// Takes the server's answer to a request for credits.
    pub(super) fn on_credits(&mut self, header: &Header) {
        let Some(credits) = &mut self.credits else { return };
        if header.flags.contains(Flags::CONTEXT_SWITCH) {
            credits.decline();
        }
        if header.credits & GRANTED != 0 {
            credits.grant(credits.renewal());
        }
    }
}

/// Returns the number that asks for credits in the header of a request: the median degree, 0 for no request.
pub(super) fn degree(ask: Ask) -> u8 {
    match ask {
        Ask::No => 0,
        Ask::Renew { degree } => degree.min(MAX_CREDITS) as u8,
    }
}
