//! Sending end of a direction.

use super::half::{Message, Sender, TxHalf};
use super::sending::{Sending, SendingParts};
use super::{Cx, MAX_MESSAGE, route};
use crate::mailbox::Place;
use dunlin_fabric::{AddressHandleId, Fabric, Host, InlineLine, PostError, ThreadDomain, Work, WorkRequest};
use dunlin_wire::{
    Flags, Header, INLINE_PAYLOAD, Kind, LINE, Line, SingleLayout, Tags, encode_line, set_line_tag,
};

/// The reason why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxError {
    /// No room now; progress of the peer will make room.
    Full,
    /// The queue pair is broken.
    Broken,
}

mod leased;
mod own;

pub(crate) use self::own::OwnPayload;

/// The sending end: the half of a protocol, and the part that all halves have. The fields that every message touches
/// take at most two cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tx<F: Fabric> {
    half: TxHalf<F>,
    pub(crate) end: Sending<F>,
}

impl<F: Fabric> Tx<F> {
    pub(crate) fn new(half: TxHalf<F>, parts: SendingParts<F>) -> Self {
        Tx { half, end: Sending::new(parts) }
    }

    /// Returns the bytes of the local memory that the peer READs.
    pub(crate) fn published_bytes(&self) -> usize {
        self.half.published_bytes()
    }

    /// Returns the address handle for datagrams, if this end sends any.
    pub(crate) fn address_handle(&self) -> Option<AddressHandleId> {
        self.half.address_handle()
    }

    /// Rewrites messages that may have been lost, as far as there is room; returns whether there were any.
    pub(crate) fn rewrite(&mut self, cx: &mut Cx<'_, F>) -> Result<bool, TxError> {
        self.end.post_listed(cx.domain)?;
        self.half.rewrite(&mut self.end, cx)
    }

    /// Sends one call or answer. Inlined, so that the header is built in registers rather than field by field
    /// in memory.
    #[inline(always)]
    pub(crate) fn single(
        &mut self,
        cx: &mut Cx<'_, F>,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        if payload.len() > INLINE_PAYLOAD {
            // A copy: a header whose address nobody takes stays in registers.
            let header = *header;
            return self.long_single(cx, &header, payload);
        }
        let Ok(Line(line)) = encode_line(header, payload, self.end.next_tag) else {
            return Err(TxError::Broken);
        };
        if let Some((key, base)) = self.half.plain_ring()
            && self.end.unsignaled + 1 < self.end.signal_every
            && self.end.listed == 0
            && LINE <= self.end.max_inline as usize
            && let Some((at, ahead)) = self.end.ring.place_line(F::PREFETCH.written_lines as u64)
        {
            cx.fabric.host().charge(Work::PostWork, 1);
            let write = InlineLine {
                id: route::outgoing(self.end.lane),
                line: &line,
                key,
                offset: base + at as u64,
                ahead,
            };
            let posted = cx.domain.post_line(self.end.queue_pair, write);
            self.end.posted(posted, false)?;
        } else {
            self.line_otherwise(cx, &line)?;
        }
        self.end.ring.advance_line();
        self.end.next_message();
        Ok(())
    }

    /// Sends a fragment of a large payload, always from registered memory: many fragments may wait, and a
    /// fabric that must keep inline data for later allocates memory for it.
    pub(crate) fn fragment(
        &mut self,
        cx: &mut Cx<'_, F>,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        let max_inline = std::mem::take(&mut self.end.max_inline);
        let sent = self.long_single(cx, header, payload);
        self.end.max_inline = max_inline;
        sent
    }

    /// Sends a line that is not the next of a stream of plain WRITEs.
    #[inline(never)]
    fn line_otherwise(&mut self, cx: &mut Cx<'_, F>, line: &[u8; LINE]) -> Result<(), TxError> {
        let tag = self.end.next_tag;
        let at = self.place(cx, LINE)?;
        if tag == self.end.next_tag {
            return self.put(cx, &[line], LINE, at, true);
        }
        // A `Skip` was sent first, with the tag that was meant for this line.
        let mut line = *line;
        set_line_tag(&mut line, self.end.next_tag);
        self.put(cx, &[&line], LINE, at, true)
    }

    #[inline(never)]
    fn long_single(&mut self, cx: &mut Cx<'_, F>, header: &Header, payload: &[u8]) -> Result<(), TxError> {
        let Ok(layout) = SingleLayout::new(payload.len() as u32, MAX_MESSAGE) else {
            return Err(TxError::Broken);
        };
        if !layout.has_trailing_tag() {
            let Line(line) = encode_line(header, payload, self.end.next_tag).map_err(|_| TxError::Broken)?;
            self.line_otherwise(cx, &line)?;
            self.sent(LINE);
            return Ok(());
        }
        let tags = self.begin(cx, layout.total())?;
        let Ok(first) = layout.first_line(header, tags.first) else { return Err(TxError::Broken) };
        let tail = layout.tail(tags.trailing);
        cx.fabric.host().charge(Work::CopyBytes, payload.len() as u32);
        self.post(cx, &[&first, payload, tail.as_bytes()], layout.total())
    }

    /// Returns the place of a message of `total` bytes; sends a `Skip` if it does not fit before the end of
    /// the ring.
    #[inline]
    fn place(&mut self, cx: &mut Cx<'_, F>, total: usize) -> Result<usize, TxError> {
        if !self.end.has_ring {
            return Ok(0);
        }
        match self.end.ring.place(total) {
            Some(Place { skip_at: None, at }) => Ok(at),
            _ => self.reserve_or_skip(cx, total),
        }
    }

    #[inline(never)]
    fn reserve_or_skip(&mut self, cx: &mut Cx<'_, F>, total: usize) -> Result<usize, TxError> {
        self.end.refresh_head();
        let (skip, alone) = match self.end.ring.place(total) {
            Some(Place { skip_at: None, at }) => return Ok(at),
            Some(Place { skip_at, .. }) => (skip_at, false),
            None => (self.end.ring.skip_ahead(total), true),
        };
        let Some(at) = skip else {
            // The messages that wait may be those that fill the ring.
            self.end.post_listed(cx.domain)?;
            return Err(TxError::Full);
        };
        // A `Skip` that no message follows at once needs a notification of its own.
        let flags = if alone { Flags::NONE } else { Flags::MORE };
        let header = Header { flags, ..Header::new(Kind::Skip) };
        let Ok(Line(line)) = encode_line(&header, &[], self.end.next_tag) else {
            return Err(TxError::Broken);
        };
        self.put(cx, &[&line], LINE, at, alone)?;
        self.end.ring.skip();
        self.end.next_message();
        let at = self.end.ring.place(total).map(|place| place.at);
        if at.is_none() {
            self.end.post_listed(cx.domain)?;
        }
        at.ok_or(TxError::Full)
    }

    /// Makes room for a message of `total` bytes and returns its tags. A message that is then not posted has
    /// no effect.
    #[inline]
    pub(crate) fn begin(&mut self, cx: &mut Cx<'_, F>, total: usize) -> Result<Tags, TxError> {
        self.place(cx, total)?;
        Ok(self.end.tags.tags(self.end.epoch, self.end.sequence))
    }

    /// Posts the message for which [`begin`](Tx::begin) made room.
    #[inline]
    pub(crate) fn post(&mut self, cx: &mut Cx<'_, F>, parts: &[&[u8]], total: usize) -> Result<(), TxError> {
        let at = self.place(cx, total)?;
        self.put(cx, parts, total, at, true)?;
        self.sent(total);
        Ok(())
    }

    #[inline]
    fn sent(&mut self, total: usize) {
        // Without a ring its counters advance unused.
        self.end.ring.advance(total);
        self.end.next_message();
    }

    /// Puts a message at its place; `notify` is false for a `Skip` without a notification.
    #[inline]
    fn put(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        total: usize,
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        let message = Message { parts, total, at, notify };
        if self.end.listed > 0 || self.end.holds {
            return self.put_slow_path(cx, message);
        }
        self.half.put(&mut self.end, cx, message)
    }

    /// Puts a message at its place with the requests that wait for it, under one doorbell unless the plan gives its
    /// messages two or none. It waits with them while messages are held.
    #[inline(never)]
    fn put_slow_path(&mut self, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let Message { parts, total, at, notify } = message;
        if self.half.gathers() {
            return self.gather(cx, message);
        }
        if self.end.holds {
            return self.list_message(cx, message);
        }
        if self.half.listed_inline(notify).is_none() {
            self.end.post_listed(cx.domain)?;
            return self.half.put(&mut self.end, cx, message);
        }
        let data = self.end.data(cx.fabric, parts, total)?;
        let (operation, announcement) = self.half.requests(&self.end, data, at, notify);
        let requests = 1 + u32::from(announcement.is_some());
        cx.fabric.host().charge(Work::PostWork, requests);
        let signaled = self.end.unsignaled + requests >= self.end.signal_every;
        let id = route::outgoing(self.end.lane);
        let last = match announcement {
            None => [Some(WorkRequest { id, operation, signaled }), None],
            Some(send) => [
                Some(WorkRequest { id, operation, signaled: false }),
                Some(WorkRequest { id, operation: send, signaled }),
            ],
        };
        let posted = self.end.post_list(cx.domain, last);
        if posted == Err(PostError::QueueFull) {
            // The requests that wait have room without the message, and only their completions make more.
            self.end.post_listed(cx.domain)?;
        }
        self.end.posted(posted, signaled)?;
        // `posted` counted one request.
        self.end.unsignaled += if signaled { 0 } else { requests - 1 };
        Ok(())
    }
}
