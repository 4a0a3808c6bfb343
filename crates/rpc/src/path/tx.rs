//! Sending end of a direction.

use super::staging::{self, Staging};
use super::{HEAD_IMMEDIATE, MAX_MESSAGE, Violation};
use crate::mailbox::{Place, RingWriter};
use crate::path::datagram::Outlet;
use crate::path::listed::Listed;
use crate::path::lossy_ring::LossyRing;
use crate::path::staged::Staged;
use crate::path::{Cx, fetch, route};
use crate::plan::Notice;
use dunlin_fabric::{
    AddressHandleId, Buffer, Data, Fabric, Host, InlineLine, InlineWrite, Memory, Operation, PostError,
    QueuePairId, Region, RegionKey, ThreadDomain, Work, WorkRequest,
};
use dunlin_wire::{
    Descriptor, Flags, Header, INLINE_PAYLOAD, Kind, LINE, Line, SingleLayout, TagKey, Tags, encode_line,
    set_line_tag,
};

/// Distance of the prefetch ahead of a short message, in lines.
const LINES_AHEAD: u64 = InlineLine::LINES_AHEAD as u64;

/// A ring in the peer's memory, written by WRITEs that may be lost.
#[derive(Debug)]
pub(crate) struct Lossy {
    /// The peer's inbound region.
    pub(crate) key: RegionKey,
    /// Offset of the ring in that region.
    pub(crate) base: u64,
    /// Messages that may have to be rewritten.
    pub(crate) ring: LossyRing,
}

/// The sender's half of a protocol. Large state of rarely used variants is boxed, so that it takes no space
/// in every lane.
#[derive(Debug)]
pub(crate) enum TxHalf<F: Fabric> {
    /// SEND; the receiver's RECVs and the send queue bound it.
    Send,
    /// WRITE into the peer's ring.
    Write {
        /// The peer's inbound region.
        key: RegionKey,
        /// Offset of the ring in that region.
        base: u64,
        /// How the receiver notices a message.
        notice: Notice,
    },
    /// A datagram, which may be lost.
    Datagram(Outlet),
    /// WRITE into the peer's ring, which may be lost.
    Lossy(Box<Lossy>),
    /// WRITE into the zone of a lease, or an announcement for a READ.
    Staged(Box<Staged<F>>),
    /// A store to local memory that the peer READs.
    Publish {
        /// That region: the ring, followed by one table per level of metadata.
        region: Region<F::Memory>,
        /// Levels of metadata.
        metadata: u8,
        /// Bytes of the ring, and of each table: a line for each message that the ring can hold.
        ring_bytes: u32,
    },
}

/// The reason why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxError {
    /// No room now; progress of the peer will make room.
    Full,
    /// The queue pair is broken.
    Broken,
}

/// Returns the empty SEND that announces the WRITE before it.
const fn tell<M: Memory>() -> Operation<'static, M> {
    Operation::Send { data: Data::Inline(&[]), immediate: None, to: None }
}

mod behind;
mod leased;
mod own;

pub(crate) use self::own::OwnPayload;

/// The sending end. Fields that every message touches come first; they take at most two cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tx<F: Fabric> {
    half: TxHalf<F>,
    ring: RingWriter,
    tags: TagKey,
    sequence: u64,
    /// The tag of the next message's first line.
    next_tag: u64,
    epoch: u32,
    queue_pair: QueuePairId,
    /// Work requests since the last signaled one. The number is bounded, since only a signaled completion
    /// frees places of the send queue.
    unsignaled: u32,
    signal_every: u32,
    /// Signaled requests in flight; polling their completions frees places of the send queue and buffers.
    signaled: u32,
    lane: u16,
    /// The peer may sleep, and has RECVs for wake-ups.
    peer_sleeps: bool,
    /// Offset of the head in `control`.
    head_at: u8,
    /// The queue pair for head reports, which must not be lost.
    reports: QueuePairId,
    /// The number of requests that wait for the next one.
    listed: u16,
    /// Messages wait for [`post_listed`](Tx::post_listed), too.
    holds: bool,
    max_inline: usize,
    /// What few ends need, so that it takes little space in every lane.
    rare: Option<Box<Rare<F>>>,
    /// The local inbound region, whose control word the peer sets to the head it has reached.
    control: Region<F::Memory>,
}

/// The part of a sending end that few messages need.
#[derive(Debug)]
struct Rare<F: Fabric> {
    /// For messages over `max_inline`, which must lie in registered memory.
    staging: Staging<F>,
    /// Requests that leave before the next one of this end, under one doorbell with it.
    list: Listed<F::Memory>,
}

/// The parts of a sending end.
pub(crate) struct TxParts<F: Fabric> {
    pub(crate) half: TxHalf<F>,
    pub(crate) queue_pair: QueuePairId,
    pub(crate) reports: QueuePairId,
    pub(crate) lane: u16,
    pub(crate) ring: RingWriter,
    pub(crate) tags: TagKey,
    pub(crate) max_send: u32,
    pub(crate) max_inline: usize,
    pub(crate) control: Region<F::Memory>,
    pub(crate) head_at: u8,
    pub(crate) peer_sleeps: bool,
}

impl<F: Fabric> Tx<F> {
    pub(crate) fn new(parts: TxParts<F>) -> Self {
        Tx {
            half: parts.half,
            queue_pair: parts.queue_pair,
            reports: parts.reports,
            lane: parts.lane,
            ring: parts.ring,
            tags: parts.tags,
            epoch: 0,
            sequence: 0,
            next_tag: parts.tags.first(0, 0),
            unsignaled: 0,
            signaled: 0,
            // Buffers of messages return only with signaled completions: one must come before all buffers are
            // in use.
            signal_every: (parts.max_send / 4).clamp(1, staging::AT_ONCE),
            max_inline: parts.max_inline,
            rare: None,
            control: parts.control,
            head_at: parts.head_at,
            peer_sleeps: parts.peer_sleeps,
            holds: false,
            listed: 0,
        }
    }

    /// Returns the sequence number of the next message, to be compared with the number that a draining server
    /// reports.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether send completions must be polled to get places of the send queue and buffers back.
    /// Nobody else polls for them, and all buffers may be in use.
    #[inline]
    pub(crate) fn awaits_completion(&self) -> bool {
        self.signaled > 0
    }

    /// Counts the completion of a signaled request.
    #[inline]
    pub(crate) fn completed(&mut self) {
        self.signaled = self.signaled.saturating_sub(1);
    }

    /// Takes a head that the peer has piggybacked.
    #[inline]
    pub(crate) fn on_head(&mut self, head: u32) -> Result<(), Violation> {
        if !self.has_ring() || self.ring.on_head(head) { Ok(()) } else { Err(Violation::Head) }
    }

    /// Returns whether messages go into a ring.
    #[inline]
    fn has_ring(&self) -> bool {
        !matches!(self.half, TxHalf::Send | TxHalf::Datagram(_))
    }

    /// Returns the bytes of the local memory that the peer READs.
    pub(crate) fn published_bytes(&self) -> usize {
        if let TxHalf::Publish { region, .. } = &self.half { region.length() } else { 0 }
    }

    /// Returns whether messages may be lost.
    pub(crate) fn is_lossy(&self) -> bool {
        matches!(self.half, TxHalf::Datagram(_) | TxHalf::Lossy(_))
    }

    /// Returns the queue pair for messages.
    #[inline]
    pub(crate) fn queue_pair(&self) -> QueuePairId {
        self.queue_pair
    }

    /// Returns the address handle for datagrams, if this end sends any.
    pub(crate) fn address_handle(&self) -> Option<AddressHandleId> {
        match &self.half {
            TxHalf::Datagram(outlet) => Some(outlet.to()),
            _ => None,
        }
    }

    /// Reads the head that the peer has written to the local control word.
    fn refresh_head(&mut self) {
        // The word is zero until the first report: a mark above the head's 32 bits shows that there is one.
        let word = self.control.load(self.head_at.into());
        if word >> 32 == 1 {
            // A peer that reports an invalid head here piggybacks one on its next message, which closes the
            // lane.
            self.ring.on_head(word as u32);
        }
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
        let Ok(Line(line)) = encode_line(header, payload, self.next_tag) else { return Err(TxError::Broken) };
        if let TxHalf::Write { key, base, notice: Notice::Polled } = &self.half
            && self.unsignaled + 1 < self.signal_every
            && self.listed == 0
            && LINE <= self.max_inline
            && let Some((at, ahead)) = self.ring.place_line(LINES_AHEAD)
        {
            cx.fabric.host().charge(Work::PostWork, 1);
            let write = InlineLine {
                id: route::outgoing(self.lane),
                line: &line,
                key: *key,
                offset: base + at as u64,
                ahead,
            };
            let posted = cx.domain.post_line(self.queue_pair, write);
            self.posted(posted, false)?;
        } else {
            self.line_otherwise(cx, &line)?;
        }
        self.ring.advance_line();
        self.next_message();
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
        let max_inline = std::mem::take(&mut self.max_inline);
        let sent = self.long_single(cx, header, payload);
        self.max_inline = max_inline;
        sent
    }

    /// Sends a line that is not the next of a stream of plain WRITEs.
    #[inline(never)]
    fn line_otherwise(&mut self, cx: &mut Cx<'_, F>, line: &[u8; LINE]) -> Result<(), TxError> {
        let tag = self.next_tag;
        let at = self.place(cx, LINE)?;
        if tag == self.next_tag {
            return self.put(cx, &[line], LINE, at, true);
        }
        // A `Skip` was sent first, with the tag that was meant for this line.
        let mut line = *line;
        set_line_tag(&mut line, self.next_tag);
        self.put(cx, &[&line], LINE, at, true)
    }

    #[inline(never)]
    fn long_single(&mut self, cx: &mut Cx<'_, F>, header: &Header, payload: &[u8]) -> Result<(), TxError> {
        let Ok(layout) = SingleLayout::new(payload.len() as u32, MAX_MESSAGE) else {
            return Err(TxError::Broken);
        };
        if !layout.has_trailing_tag() {
            let Line(line) = encode_line(header, payload, self.next_tag).map_err(|_| TxError::Broken)?;
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
        if !self.has_ring() {
            return Ok(0);
        }
        match self.ring.place(total) {
            Some(Place { skip_at: None, at }) => Ok(at),
            _ => self.place_slowly(cx, total),
        }
    }

    #[inline(never)]
    fn place_slowly(&mut self, cx: &mut Cx<'_, F>, total: usize) -> Result<usize, TxError> {
        self.refresh_head();
        let (skip, alone) = match self.ring.place(total) {
            Some(Place { skip_at: None, at }) => return Ok(at),
            Some(Place { skip_at, .. }) => (skip_at, false),
            None => (self.ring.skip_ahead(total), true),
        };
        let Some(at) = skip else {
            // The messages that wait may be those that fill the ring.
            self.post_listed(cx.domain)?;
            return Err(TxError::Full);
        };
        // A `Skip` that no message follows at once needs a notification of its own.
        let flags = if alone { Flags::NONE } else { Flags::MORE };
        let header = Header { flags, ..Header::new(Kind::Skip) };
        let Ok(Line(line)) = encode_line(&header, &[], self.next_tag) else { return Err(TxError::Broken) };
        self.put(cx, &[&line], LINE, at, alone)?;
        self.ring.skip();
        self.next_message();
        let at = self.ring.place(total).map(|place| place.at);
        if at.is_none() {
            self.post_listed(cx.domain)?;
        }
        at.ok_or(TxError::Full)
    }

    /// Makes room for a message of `total` bytes and returns its tags. A message that is then not posted has
    /// no effect.
    #[inline]
    pub(crate) fn begin(&mut self, cx: &mut Cx<'_, F>, total: usize) -> Result<Tags, TxError> {
        self.place(cx, total)?;
        Ok(self.tags.tags(self.epoch, self.sequence))
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
        self.ring.advance(total);
        self.next_message();
    }

    /// Computes the tag of the next first line now, outside the latency of the next message.
    #[inline]
    fn next_message(&mut self) {
        self.sequence += 1;
        self.next_tag = self.tags.first(self.epoch, self.sequence);
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
        if self.listed > 0 || self.holds {
            return self.put_behind_listed(cx, parts, total, at, notify);
        }
        match &self.half {
            TxHalf::Write { key, base, notice: notice @ (Notice::Polled | Notice::Immediate) }
                if total <= self.max_inline =>
            {
                let (key, offset) = (*key, base + at as u64);
                let immediate = (*notice == Notice::Immediate && notify).then_some(self.lane as u32);
                let signaled = self.next_is_signaled(cx.fabric);
                let id = route::outgoing(self.lane);
                let ahead = self.ahead(total);
                let write = InlineWrite { id, parts, key, offset, immediate, signaled, ahead };
                let posted = cx.domain.post_write(self.queue_pair, write);
                self.posted(posted, signaled)
            }
            _ => self.put_otherwise(cx, parts, total, at, notify),
        }
    }

    #[inline(never)]
    fn put_otherwise(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        total: usize,
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        let operation = match &self.half {
            TxHalf::Publish { region, metadata, ring_bytes } => {
                let ring_bytes = *ring_bytes as usize;
                // The first line is written last: a READ that finds its tag finds all bytes that follow, in
                // whatever order it reads them.
                let Some((first, rest)) = parts.split_first() else { return Ok(()) };
                let (line, body) = first.split_at(first.len().min(LINE));
                let mut offset = at + line.len();
                for part in std::iter::once(&body).chain(rest) {
                    region.copy_in(offset, part);
                    offset += part.len();
                }
                region.copy_in(at, line);
                // The tables are written from last to first, so that a READ entry always names an existing
                // one.
                let slot = self.sequence as usize % (ring_bytes / LINE);
                for level in (0..usize::from(*metadata)).rev() {
                    let value = if level + 1 == usize::from(*metadata) {
                        at as u64 | (total as u64) << 32
                    } else {
                        slot as u64
                    };
                    let entry = fetch::entry(value, self.next_tag);
                    region.copy_in(fetch::entry_offset(ring_bytes, level, slot), &entry);
                }
                return Ok(());
            }
            TxHalf::Write { key, base, notice } => {
                let (key, offset) = (*key, base + at as u64);
                let notice = if notify { *notice } else { Notice::Polled };
                let data = self.data(cx.fabric, parts, total)?;
                let immediate = (notice == Notice::Immediate).then_some(self.lane as u32);
                let write = Operation::Write { data, key, offset, immediate };
                match notice {
                    Notice::Polled | Notice::Immediate => write,
                    Notice::LinkedSend => return self.post_with_notice(cx, write),
                    Notice::Send => {
                        // The SEND is signaled instead.
                        self.post_one(cx, write, false)?;
                        // If the SEND finds no room, the WRITE is repeated later: the peer ignores messages
                        // that were not announced.
                        tell()
                    }
                }
            }
            TxHalf::Datagram(_) => return self.put_datagram(cx, parts, total),
            TxHalf::Lossy(_) => return self.put_lossy(cx, parts, total, at),
            TxHalf::Staged(_) => return self.put_staged(cx, parts, total, at),
            TxHalf::Send => {
                Operation::Send { data: self.data(cx.fabric, parts, total)?, immediate: None, to: None }
            }
        };
        self.post_one(cx, operation, true)
    }

    fn put_datagram(&mut self, cx: &mut Cx<'_, F>, parts: &[&[u8]], total: usize) -> Result<(), TxError> {
        let data = self.data(cx.fabric, parts, total)?;
        let TxHalf::Datagram(outlet) = &self.half else { return Err(TxError::Broken) };
        cx.fabric.host().charge(Work::PostWork, 1);
        let signaled = outlet.next_is_signaled(self.signal_every);
        let operation =
            Operation::Send { data, immediate: Some(outlet.immediate(self.sequence)), to: Some(outlet.to()) };
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled };
        match cx.domain.post(self.queue_pair, request) {
            Ok(()) => {
                outlet.posted(signaled);
                self.signaled += u32::from(signaled);
                Ok(())
            }
            Err(PostError::QueueFull) => Err(TxError::Full),
            Err(_) => Err(TxError::Broken),
        }
    }

    fn put_lossy(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        total: usize,
        at: usize,
    ) -> Result<(), TxError> {
        let data = self.data(cx.fabric, parts, total)?;
        let TxHalf::Lossy(lossy) = &mut self.half else { return Err(TxError::Broken) };
        lossy.ring.taken(self.ring.head());
        lossy.ring.keep(at, parts);
        let (key, offset) = (lossy.key, lossy.base + at as u64);
        let operation = Operation::Write { data, key, offset, immediate: None };
        self.post_one(cx, operation, true)?;
        if let TxHalf::Lossy(lossy) = &mut self.half {
            lossy.ring.posted(at, total, self.ring.tail_after(total));
        }
        Ok(())
    }

    /// Rewrites messages of a lossy ring that may have been lost, as far as there is room; returns whether
    /// there were any.
    pub(crate) fn rewrite(&mut self, cx: &mut Cx<'_, F>) -> Result<bool, TxError> {
        self.refresh_head();
        let head = self.ring.head();
        let TxHalf::Lossy(lossy) = &mut self.half else { return Ok(false) };
        lossy.ring.taken(head);
        lossy.ring.start_round();
        if lossy.ring.is_empty() {
            return Ok(false);
        }
        while let TxHalf::Lossy(lossy) = &self.half
            && let Some((at, bytes)) = lossy.ring.next()
        {
            let (key, offset) = (lossy.key, lossy.base + at as u64);
            let mut message = [0; MAX_MESSAGE];
            let message = &mut message[..bytes.len()];
            message.copy_from_slice(bytes);
            let parts: &[&[u8]] = &[message];
            let operation = match self.data(cx.fabric, parts, message.len()) {
                Ok(data) => Operation::Write { data, key, offset, immediate: None },
                Err(TxError::Full) => break,
                Err(error) => return Err(error),
            };
            match self.post_one(cx, operation, true) {
                Ok(()) => {}
                Err(TxError::Full) => break,
                Err(error) => return Err(error),
            }
            if let TxHalf::Lossy(lossy) = &mut self.half {
                lossy.ring.rewritten();
            }
        }
        Ok(true)
    }

    /// Posts a single work request; it is signaled if one is due and `may` allows it.
    fn post_one(
        &mut self,
        cx: &mut Cx<'_, F>,
        operation: Operation<'_, F::Memory>,
        may: bool,
    ) -> Result<(), TxError> {
        let signaled = self.next_is_signaled(cx.fabric) && may;
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled };
        let posted = cx.domain.post(self.queue_pair, request);
        self.posted(posted, signaled)
    }

    /// Posts a WRITE and the SEND that announces it as one list.
    fn post_with_notice(
        &mut self,
        cx: &mut Cx<'_, F>,
        write: Operation<'_, F::Memory>,
    ) -> Result<(), TxError> {
        cx.fabric.host().charge(Work::PostWork, 2);
        let signaled = self.unsignaled + 2 >= self.signal_every;
        let id = route::outgoing(self.lane);
        let mut list = [
            Some(WorkRequest { id, operation: write, signaled: false }),
            Some(WorkRequest { id, operation: tell(), signaled }),
        ];
        let posted = cx.domain.post_list(self.queue_pair, &mut list);
        self.posted(posted.map_err(|refused| refused.error), signaled)?;
        // `posted` counted one request; the list has two.
        self.unsignaled += u32::from(!signaled);
        Ok(())
    }

    /// WRITEs a large payload to the place that the peer named. The WRITE is signaled, so that the payload's
    /// memory returns early. If there is no room, `payload` keeps the buffer.
    pub(crate) fn write_payload(
        &mut self,
        cx: &mut Cx<'_, F>,
        payload: &mut Option<Buffer<F::Memory>>,
        to: &Descriptor,
    ) -> Result<(), TxError> {
        self.post_listed(cx.domain)?;
        if cx.domain.send_room(self.queue_pair) == 0 {
            return Err(TxError::Full);
        }
        let Some(payload) = payload.take() else { return Ok(()) };
        cx.fabric.host().charge(Work::PostWork, 1);
        let (key, offset) = (RegionKey(to.key), to.offset);
        let operation = Operation::Write { data: Data::Buffer(payload), key, offset, immediate: None };
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled: true };
        let posted = cx.domain.post(self.queue_pair, request);
        // A refusal in spite of the room has consumed the payload.
        self.posted(posted, true).map_err(|_| TxError::Broken)
    }

    fn rare(&mut self) -> &mut Rare<F> {
        self.rare.get_or_insert_with(|| Box::new(Rare { staging: Staging::new(), list: Listed::new() }))
    }

    fn data<'a>(
        &mut self,
        fabric: &F,
        parts: &'a [&'a [u8]],
        total: usize,
    ) -> Result<Data<'a, F::Memory>, TxError> {
        if total <= self.max_inline {
            return Ok(Data::Inline(parts));
        }
        let mut buffer = self.rare().staging.reserve(fabric, total)?;
        let mut at = 0;
        for part in parts {
            buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Data::Buffer(buffer))
    }

    /// Returns how many bytes from the message's start the back-end may prefetch: the message and the lines
    /// that are likely to be written next. Returns 0 unless the reader has consumed all of them: to take a
    /// line away from the reader costs more than the prefetch saves.
    #[inline]
    fn ahead(&self, total: usize) -> u32 {
        let wanted = total + total.max(LINES_AHEAD as usize * LINE);
        if self.ring.clear_ahead() >= (wanted / LINE) as u64 { wanted as u32 } else { 0 }
    }

    #[inline]
    fn next_is_signaled(&self, fabric: &F) -> bool {
        fabric.host().charge(Work::PostWork, 1);
        self.unsignaled + 1 >= self.signal_every
    }

    #[inline]
    fn posted(&mut self, posted: Result<(), PostError>, signaled: bool) -> Result<(), TxError> {
        match posted {
            Ok(()) if signaled => {
                self.unsignaled = 0;
                self.signaled += 1;
                Ok(())
            }
            Ok(()) => {
                self.unsignaled += 1;
                Ok(())
            }
            Err(PostError::QueueFull) => Err(TxError::Full),
            Err(_) => Err(TxError::Broken),
        }
    }

    /// Reports how far the peer's messages were consumed: WRITEs the peer's control word. A peer that may
    /// sleep while it waits for room is woken with immediate data, which takes one of its RECVs.
    pub(crate) fn report_head(
        &mut self,
        cx: &mut Cx<'_, F>,
        to: (RegionKey, usize),
        head: u32,
    ) -> Result<(), TxError> {
        let immediate = self.peer_sleeps.then_some(HEAD_IMMEDIATE);
        self.report_head_with(cx, to, head, immediate)
    }

    /// As [`report_head`](Tx::report_head), with this immediate data.
    pub(crate) fn report_head_with(
        &mut self,
        cx: &mut Cx<'_, F>,
        to: (RegionKey, usize),
        head: u32,
        immediate: Option<u32>,
    ) -> Result<(), TxError> {
        self.write_word(cx, to, 1u64 << 32 | head as u64, immediate)
    }

    /// WRITEs a word of the peer's control line, after everything posted before.
    pub(crate) fn write_word(
        &mut self,
        cx: &mut Cx<'_, F>,
        (key, at): (RegionKey, usize),
        word: u64,
        immediate: Option<u32>,
    ) -> Result<(), TxError> {
        self.post_listed(cx.domain)?;
        let (word, offset) = (word.to_le_bytes(), at as u64);
        // Where messages are two requests each, the next message's SEND is signaled instead, if one follows
        // soon.
        let told = matches!(&self.half, TxHalf::Write { notice: Notice::Send | Notice::LinkedSend, .. });
        let apart = self.reports != self.queue_pair;
        let due = self.next_is_signaled(cx.fabric) && (!told || self.unsignaled + 1 >= 2 * self.signal_every);
        let signaled = apart || due;
        let id = route::outgoing(self.lane);
        let posted = if word.len() <= self.max_inline {
            let write = InlineWrite { id, parts: &[&word], key, offset, immediate, signaled, ahead: 0 };
            cx.domain.post_write(self.reports, write)
        } else {
            let parts: &[&[u8]] = &[&word];
            let data = self.data(cx.fabric, parts, word.len())?;
            let operation = Operation::Write { data, key, offset, immediate };
            cx.domain.post(self.reports, WorkRequest { id, operation, signaled })
        };
        if apart && posted.is_ok() {
            self.signaled += 1;
            return Ok(());
        }
        self.posted(posted, signaled)
    }
}
