//! The client's end of a lane with credits (FLOCK section 5.1).

use super::lane::ClientLane;
use crate::path::credits::{Ask, GRANTED, MAX_CREDITS, renewal_immediate};
use crate::path::{Cx, TxError, Violation};
use dunlin_fabric::Fabric;
use dunlin_wire::{Flags, Header, Kind};

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

    /// Returns the number that asks for credits in the header of a request; 0 for no request.
    pub(super) fn in_header(&self, ask: Ask) -> u8 {
        self.credits.as_ref().map_or(0, |credits| credits.in_header(ask))
    }

    /// Records that a message was sent, and sends a request for credits that it did not carry.
    pub(super) fn paid_for(&mut self, cx: &mut Cx<'_, F>, ask: Ask) {
        let Some(credits) = &mut self.credits else { return };
        credits.sent(ask);
        if credits.owed().is_some() {
            // The message is on its way: an error of the lane reaches the caller as the outcome of the call.
            let _ = self.ask_apart(cx);
        }
    }

    /// Records that an operation on memory, whose credit is spent, is posted or will be, and sends the request for
    /// credits that it causes.
    pub(super) fn operated(&mut self, cx: &mut Cx<'_, F>, ask: Ask) {
        let Some(credits) = &mut self.credits else { return };
        credits.operated(ask);
        if credits.owed().is_some() {
            // As in `paid_for`.
            let _ = self.ask_apart(cx);
        }
    }

    /// Returns whether a request for credits waits for room.
    #[inline]
    pub(super) fn owes_request(&self) -> bool {
        self.credits.as_ref().is_some_and(|credits| credits.owed().is_some())
    }

    /// Sends a request for credits by immediate data, with a report of the head; one that tells of operations on memory
    /// as a message. Without room a later progress sends it.
    #[cold]
    pub(super) fn ask_apart(&mut self, cx: &mut Cx<'_, F>) -> Result<(), Violation> {
        let Some(degree) = self.credits.as_ref().and_then(|credits| credits.owed()) else { return Ok(()) };
        let (to, head) = (self.control_line, self.rx.head());
        let operations = self.credits.as_ref().map_or(0, |credits| credits.operations());
        let sent = match operations {
            0 => self.tx.end.report_head_with(cx, to, head, Some(renewal_immediate(degree))),
            code => {
                let credits = degree.min(MAX_CREDITS) as u8;
                let header = Header { code, credits, head, ..Header::new(Kind::Credit) };
                self.tx.single(cx, &header, &[])
            }
        };
        match sent {
            Ok(()) => {
                self.rx.told();
                if let Some(credits) = &mut self.credits {
                    credits.paid();
                }
                Ok(())
            }
            Err(TxError::Full) => Ok(()),
            Err(TxError::Broken) => Err(Violation::Broken),
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

    /// Returns whether the server has to send word about credits, which may come after all answers.
    #[inline]
    pub(super) fn awaits_word(&self) -> bool {
        self.is_combined && self.credits.as_ref().is_some_and(|credits| credits.awaits_word())
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
