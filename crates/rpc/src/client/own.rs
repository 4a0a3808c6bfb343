//! Calls whose payload lies in registered memory of the thread that makes them (FLOCK section 4.1).

use super::lane::{ClientLane, SubmitError};
use crate::path::Cx;
use crate::path::call_id::CallEnds;
use crate::path::tx::OwnPayload;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_wire::Flags;

impl<F: Fabric> ClientLane<F> {
    /// Returns whether the lane sends from such memory. Where messages are kept to be sent again, or fetched, they are
    /// copied anyway; a lane that batches by itself decides when messages leave.
    pub(crate) fn takes_own(&self) -> bool {
        self.tx.takes_own() && self.retransmit.is_none() && self.hybrid.is_none() && self.batching.is_none()
    }

    /// Sends one call from its thread's memory, for a lane that [`takes_own`](ClientLane::takes_own): at once if it is
    /// `alone`, else with the next message of the lane or by [`send_open`](ClientLane::send_open), under one doorbell.
    /// It comes before the calls of the open batch, unless `behind` says that one of them is of the same thread. On an
    /// error the payload keeps its memory, unless the lane is broken.
    pub(crate) fn submit_own(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        own: &mut OwnPayload<F::Memory>,
        timeout: Nanos,
        (alone, behind): (bool, bool),
    ) -> Result<u32, SubmitError> {
        self.check_call(own.length)?;
        if own.length > self.rendezvous_above {
            return self.submit(cx, ends, own.bytes(), timeout);
        }
        // Without credits for both, the calls of the batch have been waiting longer.
        let behind = alone || behind || self.is_combined && !self.has_credit();
        self.tx.hold(!alone);
        let submitted = self.post_own(cx, ends, own, timeout, behind);
        self.tx.hold(false);
        submitted
    }

    fn post_own(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        own: &mut OwnPayload<F::Memory>,
        timeout: Nanos,
        behind: bool,
    ) -> Result<u32, SubmitError> {
        if behind && !self.batch.is_empty() {
            self.flush(cx)?;
        }
        let started = !self.batch.is_empty() && self.slots.has_started_unsent();
        let begun = self.begin_call(cx.fabric, ends, Flags::NONE, timeout)?;
        let posted = self.tx.own(cx, &begun.0, own);
        if posted.is_ok() && !self.batch.is_empty() {
            // Before the call has its slot: the sequence that the batch was to have is its own.
            let next = self.tx.end.next_sequence();
            self.slots.renumber(self.batch_sequence, next);
            self.batch_sequence = next;
        }
        let call = self.end_call(cx, begun, timeout, posted)?;
        if started {
            self.slots.has_unsent();
        }
        Ok(call)
    }
}
