//! The message of one call.

use super::lane::{ClientLane, SubmitError};
use super::slots::micros;
use crate::error::Cause;
use crate::path::Cx;
use crate::path::TxError;
use crate::path::call_id::CallEnds;
use crate::path::credits::Ask;
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use dunlin_wire::{Flags, Header, Kind};

impl<F: Fabric> ClientLane<F> {
    /// Sends a message with one call. The open batch was sent before.
    #[inline(always)]
    pub(super) fn send_call(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        payload: &[u8],
        flags: Flags,
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        if !self.is_plain {
            return self.send_full_call(cx, ends, payload, flags, timeout);
        }
        let header = self.header_of(cx.fabric, ends, flags, timeout)?;
        self.tx.single(cx, &header, payload)?;
        let sequence = self.tx.end.next_sequence() - 1;
        self.slots.take(header.call, timeout, sequence);
        self.slots.sent(sequence);
        Ok(header.call)
    }

    /// As [`send_call`](ClientLane::send_call), on any lane.
    #[inline(never)]
    fn send_full_call(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        payload: &[u8],
        flags: Flags,
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let (header, ask) = self.begin_call(cx.fabric, ends, flags, timeout)?;
        let posted = self.tx.single(cx, &header, payload);
        if posted.is_ok()
            && let Some(again) = &mut self.retransmit
        {
            again.keep(header.call, ends, header.flags, payload);
        }
        self.end_call(cx, (header, ask), timeout, posted)
    }

    /// Returns the header of the message of the next call.
    #[inline(always)]
    fn header_of(
        &self,
        fabric: &F,
        CallEnds { function, thread }: CallEnds,
        flags: Flags,
        timeout: Nanos,
    ) -> Result<Header, SubmitError> {
        let Some(call) = self.slots.next_call() else { return Err(Self::refuse(Cause::WindowFull)) };
        fabric.host().charge(Work::BuildMessage, 1);
        let (head, time) = (self.rx.head(), micros(timeout));
        Ok(Header { code: function, flags, call, thread, head, time, ..Header::new(Kind::Request) })
    }

    /// Returns the header of the message of a call, which is then posted and [ended](ClientLane::end_call).
    #[inline(always)]
    pub(super) fn begin_call(
        &mut self,
        fabric: &F,
        ends: CallEnds,
        flags: Flags,
        timeout: Nanos,
    ) -> Result<(Header, Ask), SubmitError> {
        let mut header = self.header_of(fabric, ends, flags, timeout)?;
        if let Some(hybrid) = &self.hybrid {
            let (mode, of) = hybrid.ask(ends.function, header.head);
            (header.flags, header.head) = (flags | mode, of);
        }
        let mut ask = Ask::No;
        if self.is_combined {
            ask = self.spend(1).ok_or(SubmitError::Full)?;
            header.credits = self.in_header(ask);
        }
        Ok((header, ask))
    }

    /// Takes the slot of a call whose message was posted, and returns its id. If it was not posted, the call does not
    /// exist.
    #[inline(always)]
    pub(super) fn end_call(
        &mut self,
        cx: &mut Cx<'_, F>,
        (header, ask): (Header, Ask),
        timeout: Nanos,
        posted: Result<(), TxError>,
    ) -> Result<u32, SubmitError> {
        if let Err(error) = posted {
            if self.is_combined {
                self.unspend(1, ask);
            }
            return Err(error.into());
        }
        let Header { call, code: function, thread, flags, .. } = header;
        let sequence = self.tx.end.next_sequence() - 1;
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.sent(call, function, flags, || cx.fabric.host().now());
        }
        self.slots.take(call, timeout, sequence);
        self.slots.sent(sequence);
        if self.is_combined {
            self.slots.set_thread(call, thread);
            // The request for credits may be a message behind this one.
            self.paid_for(cx, ask);
        }
        Ok(call)
    }
}
