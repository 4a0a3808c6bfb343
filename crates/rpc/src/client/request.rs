//! The message of one call.

use super::lane::{ClientLane, SubmitError};
use super::slots::micros;
use crate::error::Cause;
use crate::path::TxError;
use crate::path::call_id::CallEnds;
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use dunlin_wire::{Flags, Header, Kind};

impl<F: Fabric> ClientLane<F> {
    /// Sends a message with one call. The open batch was sent before.
    #[inline]
    pub(super) fn send_call(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        ends: CallEnds,
        payload: &[u8],
        flags: Flags,
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        self.send_call_by(fabric, domain, ends, flags, timeout, |lane, fabric, domain, header| {
            lane.tx.single(fabric, domain, header, payload)?;
            if let Some(again) = &mut lane.again {
                again.keep(header.call, ends, header.flags, payload);
            }
            Ok(())
        })
    }

    /// As [`send_call`](ClientLane::send_call), with a message that `post` posts under the header that it is given.
    #[inline(always)]
    pub(super) fn send_call_by(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        CallEnds { function, thread }: CallEnds,
        flags: Flags,
        timeout: Nanos,
        post: impl FnOnce(&mut Self, &F, &mut F::Domain, &Header) -> Result<(), TxError>,
    ) -> Result<u32, SubmitError> {
        let Some(call) = self.slots.next_call() else { return Err(Self::refuse(Cause::WindowFull)) };
        fabric.host().charge(Work::BuildMessage, 1);
        let (mut flags, mut head) = (flags, self.rx.head());
        if let Some(hybrid) = &self.hybrid {
            let (mode, of) = hybrid.ask(function, head);
            (flags, head) = (flags | mode, of);
        }
        let time = micros(timeout);
        let mut header =
            Header { code: function, flags, call, thread, head, time, ..Header::new(Kind::Request) };
        // A request for credits behind the message may be a message, too.
        let sequence = if self.is_combined {
            let ask = self.spend(1).ok_or(SubmitError::Full)?;
            header.credits = self.in_header(ask);
            if let Err(error) = post(self, fabric, domain, &header) {
                self.unspend(1, ask);
                return Err(error.into());
            }
            let sequence = self.tx.next_sequence() - 1;
            self.paid_for(fabric, domain, ask);
            sequence
        } else {
            post(self, fabric, domain, &header)?;
            self.tx.next_sequence() - 1
        };
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.sent(call, function, flags, || fabric.host().now());
        }
        self.slots.take(call, timeout, sequence);
        if self.is_combined {
            self.slots.set_thread(call, thread);
        }
        self.slots.sent(sequence);
        Ok(call)
    }
}
