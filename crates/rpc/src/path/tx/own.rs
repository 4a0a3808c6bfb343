//! Messages from registered memory of the thread that made the call (FLOCK section 4.1), and messages that are held so
//! that they leave with it under one doorbell.

use super::{Tx, TxError};
use crate::path::half::{Message, Sender};
use crate::path::listed::MAX_KEPT;
use crate::path::{Cx, MAX_MESSAGE, route};
use dunlin_fabric::{Buffer, Data, Fabric, Host, Work, WorkRequest};
use dunlin_wire::{BODY_OFFSET, Header, SingleLayout};

/// One message from a thread's own memory in this number is signaled, so that the memory returns.
const SIGNAL_EVERY: u32 = 4;

/// A payload in registered memory, with room for the message around it: a header line before, and padding and the
/// trailing tag behind.
#[derive(Debug)]
pub(crate) struct OwnPayload<M: dunlin_fabric::Memory> {
    /// `None` once it was posted.
    pub(crate) buffer: Option<Buffer<M>>,
    /// The length of the payload in bytes.
    pub(crate) length: usize,
}

impl<M: dunlin_fabric::Memory> OwnPayload<M> {
    /// Returns the bytes of the message around a payload; `None` if it has a line of its own or is too long.
    pub(crate) fn message_bytes(length: usize) -> Option<usize> {
        let layout = SingleLayout::new(u32::try_from(length).ok()?, MAX_MESSAGE).ok()?;
        layout.has_trailing_tag().then(|| layout.total())
    }

    /// Copies a payload into a buffer of [`message_bytes`](OwnPayload::message_bytes).
    pub(crate) fn fill(buffer: &mut Buffer<M>, payload: &[u8]) {
        buffer[BODY_OFFSET..BODY_OFFSET + payload.len()].copy_from_slice(payload);
    }

    /// Returns the payload; nothing after it was posted.
    pub(crate) fn bytes(&self) -> &[u8] {
        let buffer = self.buffer.as_deref().unwrap_or_default();
        buffer.get(BODY_OFFSET..BODY_OFFSET + self.length).unwrap_or_default()
    }
}

impl<F: Fabric> Tx<F> {
    /// Returns whether messages can be posted from any registered memory, under one doorbell with others.
    pub(crate) fn takes_own(&self) -> bool {
        self.half.listed_inline(true).is_some()
    }

    /// Sets whether messages wait for the next one or for [`post_listed`](super::Sending::post_listed). Only for an end that
    /// [`takes_own`](Tx::takes_own) or [`gathers`](Tx::gathers).
    pub(crate) fn hold(&mut self, holds: bool) {
        self.end.holds = holds;
    }

    /// Sends one call from the memory that its payload is in. Without room, or if the lane is broken, the payload keeps
    /// its memory, unless the fabric refused a request that it had room for.
    pub(crate) fn own(
        &mut self,
        cx: &mut Cx<'_, F>,
        header: &Header,
        own: &mut OwnPayload<F::Memory>,
    ) -> Result<(), TxError> {
        let Ok(layout) = SingleLayout::new(own.length as u32, MAX_MESSAGE) else {
            return Err(TxError::Broken);
        };
        // With a `Skip` before it.
        let requests = 1 + u32::from(self.end.is_announced) + u32::from(self.end.has_ring);
        self.end.make_list_room(cx.domain, requests)?;
        let tags = self.begin(cx, layout.total())?;
        let at = self.place(cx, layout.total())?;
        let Some(mut buffer) = own.buffer.take() else { return Err(TxError::Broken) };
        if layout.seal(&mut buffer, header, tags) != Ok(buffer.len()) {
            return Err(TxError::Broken);
        }
        self.list_operation(cx, Data::Buffer(buffer), at, true, SIGNAL_EVERY)?;
        if !self.end.holds {
            // There is room: if the cx.fabric has less than it said, the message waits.
            match self.end.post_listed(cx.domain) {
                Ok(()) | Err(TxError::Full) => {}
                Err(TxError::Broken) => return Err(TxError::Broken),
            }
        }
        self.sent(layout.total());
        Ok(())
    }

    /// Returns whether messages that are [held](Tx::hold) leave under one doorbell.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.half.gathers()
    }

    /// Puts a message behind those that wait, and posts all of them unless they are held.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let max_inline = self.end.max_inline;
        self.end.max_inline = max_inline.min(MAX_KEPT as u32);
        let put = self.half.put(&mut self.end, cx, message);
        self.end.max_inline = max_inline;
        put?;
        if self.end.holds { Ok(()) } else { self.post_held(cx) }
    }

    /// Ends [`hold`](Tx::hold), and posts what waits. Without room for all of it the rest waits for the next message, or
    /// for another call.
    pub(crate) fn post_held(&mut self, cx: &mut Cx<'_, F>) -> Result<(), TxError> {
        self.end.holds = false;
        match self.end.post_listed(cx.domain) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(TxError::Broken) => Err(TxError::Broken),
        }
    }

    /// Puts a message into the list.
    pub(super) fn list_message(&mut self, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let Message { parts, total, at, notify } = message;
        self.end.make_list_room(cx.domain, 1 + u32::from(notify))?;
        let max_inline = self.end.max_inline;
        self.end.max_inline = max_inline.min(self.half.listed_inline(notify).unwrap_or(0) as u32);
        let data = self.end.data(cx.fabric, parts, total);
        self.end.max_inline = max_inline;
        let signal_every = self.end.signal_every;
        self.list_operation(cx, data?, at, notify, signal_every)
    }

    fn list_operation(
        &mut self,
        cx: &mut Cx<'_, F>,
        data: Data<'_, F::Memory>,
        at: usize,
        notify: bool,
        signal_every: u32,
    ) -> Result<(), TxError> {
        let (operation, announcement) = self.half.requests(&self.end, data, at, notify);
        let requests = 1 + u32::from(announcement.is_some());
        cx.fabric.host().charge(Work::PostWork, requests);
        let signaled = self.end.unsignaled + requests >= signal_every.min(self.end.signal_every);
        let id = route::outgoing(self.end.lane);
        let last = announcement.is_none();
        self.end.list(cx.domain, WorkRequest { id, operation, signaled: signaled && last })?;
        if let Some(operation) = announcement {
            self.end.list(cx.domain, WorkRequest { id, operation, signaled })?;
        }
        self.end.posted(Ok(()), signaled)?;
        self.end.unsignaled += if signaled { 0 } else { requests - 1 };
        Ok(())
    }
}
