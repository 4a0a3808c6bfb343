//! The sending end of a direction.

use super::staging::{self, Staging};
use super::{HEAD_IMMEDIATE, MAX_MESSAGE, Violation};
use crate::mailbox::{Place, RingWriter};
use crate::path::datagram::Outlet;
use crate::path::lossy_ring::LossyRing;
use crate::path::{fetch, route};
use crate::plan::Notice;
use dunlin_fabric::{
    AddressHandleId, Buffer, Data, Fabric, Host, InlineLine, InlineWrite, Memory, Operation, PostError,
    QueuePairId, Region, RegionKey, ThreadDomain, Work, WorkRequest,
};
use dunlin_wire::{
    Descriptor, Flags, Header, INLINE_PAYLOAD, Kind, LINE, SingleLayout, TagKey, Tags, encode_line,
    set_line_tag, write_line,
};

/// How far beyond a short message the writer asks for the next lines. Without that each store waits for its line, and
/// the processor's queue of stores is full of such. Much further is too far: the reader's processor looks ahead, too, and
/// takes lines away that are not yet written.
const LINES_AHEAD: u64 = 6;

/// A ring of the peer's that is written by WRITEs that may be lost.
#[derive(Debug)]
pub(crate) struct Lossy {
    /// The peer's inbound region.
    pub(crate) key: RegionKey,
    /// Where its ring starts.
    pub(crate) base: u64,
    /// What may have to be written again.
    pub(crate) ring: LossyRing,
}

/// How it sends. Small: what is large of the rarer ways stands elsewhere, so that it takes no room in every lane.
#[derive(Debug)]
pub(crate) enum TxHalf<F: Fabric> {
    /// SEND; the receiver's RECVs and the send queue bound it.
    Send,
    /// WRITE into the peer's ring.
    Write {
        /// The peer's inbound region.
        key: RegionKey,
        /// Where its ring starts.
        base: u64,
        /// How the receiver learns of it.
        notice: Notice,
    },
    /// A datagram, which may be lost.
    Datagram(Outlet),
    /// WRITE that may be lost into the peer's ring.
    Lossy(Box<Lossy>),
    /// Into a region of our own, which the peer READs.
    Publish {
        /// That region: the ring, and behind it as many tables of metadata as there are levels.
        region: Region<F::Memory>,
        /// Levels of metadata.
        metadata: u8,
        /// Bytes of the ring, and of each table: a line for each message that the ring can hold.
        ring_bytes: u32,
    },
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxError {
    /// No room now; the peer's progress will make some.
    Full,
    /// The queue pair is broken.
    Broken,
}

/// The operation that tells of a WRITE before it.
const fn tell<M: Memory>() -> Operation<'static, M> {
    Operation::Send { data: Data::Inline(&[]), immediate: None, to: None }
}

/// The sending end. What every message touches comes first: two cache lines at most.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tx<F: Fabric> {
    half: TxHalf<F>,
    ring: RingWriter,
    tags: TagKey,
    sequence: u64,
    /// The tag of its first line.
    next_tag: u64,
    epoch: u32,
    queue_pair: QueuePairId,
    /// Work requests since the last signaled one: a bounded run, since slots of the send queue come back only
    /// with a signaled completion.
    unsignaled: u32,
    signal_every: u32,
    /// Signaled requests that are out: slots of the send queue and buffers come back when their completions are polled.
    signaled: u32,
    lane: u16,
    /// The peer may sleep, and has RECVs for what shall wake it.
    peer_sleeps: bool,
    /// Where in `control` the head is.
    head_at: u8,
    /// Where reports of heads are posted, which must not be lost.
    reports: QueuePairId,
    max_inline: usize,
    /// For messages over `max_inline`, which have to lie in registered memory.
    staging: Staging<F>,
    /// Our inbound region, in which the peer sets a control word to the head it has reached.
    control: Region<F::Memory>,
}

/// What a direction's sending end is made of.
pub(crate) struct TxParts<F: Fabric> {
    pub(crate) half: TxHalf<F>,
    pub(crate) queue_pair: QueuePairId,
    pub(crate) reports: QueuePairId,
    pub(crate) lane: u16,
    pub(crate) ring_bytes: usize,
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
            ring: RingWriter::new(parts.ring_bytes),
            tags: parts.tags,
            epoch: 0,
            sequence: 0,
            next_tag: parts.tags.first(0, 0),
            unsignaled: 0,
            signaled: 0,
            // Buffers of messages come back with signaled completions only: one must come before all are gone.
            signal_every: (parts.max_send / 4).clamp(1, staging::AT_ONCE),
            max_inline: parts.max_inline,
            staging: Staging::new(),
            control: parts.control,
            head_at: parts.head_at,
            peer_sleeps: parts.peer_sleeps,
        }
    }

    /// The sequence of the next message: what a draining server's mark is compared with.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether send completions should be polled for the slots and buffers that they give back: until they have come, since
    /// nobody else will look for them, and all buffers may be out.
    #[inline]
    pub(crate) fn awaits_completion(&self) -> bool {
        self.signaled > 0
    }

    /// The completion of a signaled request was polled.
    #[inline]
    pub(crate) fn completed(&mut self) {
        self.signaled = self.signaled.saturating_sub(1);
    }

    /// Takes a head that the peer has piggybacked.
    #[inline]
    pub(crate) fn on_head(&mut self, head: u32) -> Result<(), Violation> {
        if !self.has_ring() || self.ring.on_head(head) { Ok(()) } else { Err(Violation::Head) }
    }

    /// Whether messages go into a ring.
    #[inline]
    fn has_ring(&self) -> bool {
        !matches!(self.half, TxHalf::Send | TxHalf::Datagram(_))
    }

    /// Whether what it sends may be lost.
    pub(crate) fn is_lossy(&self) -> bool {
        matches!(self.half, TxHalf::Datagram(_) | TxHalf::Lossy(_))
    }

    /// Where it posts most of its messages.
    #[inline]
    pub(crate) fn queue_pair(&self) -> QueuePairId {
        self.queue_pair
    }

    /// Where its datagrams go, if it sends any.
    pub(crate) fn address_handle(&self) -> Option<AddressHandleId> {
        match &self.half {
            TxHalf::Datagram(outlet) => Some(outlet.to()),
            _ => None,
        }
    }

    /// Reads the head that the peer has written into our control word.
    fn refresh_head(&mut self) {
        // Zero until the first report: the word carries a mark above the 32 bits of the head.
        let word = self.control.load(self.head_at.into());
        if word >> 32 == 1 {
            // A lie here is one of the next message too, which ends the lane.
            self.ring.on_head(word as u32);
        }
    }

    /// Sends one call or answer. Always inline: a header that is built and taken apart in registers costs half of
    /// one that goes through memory field by field.
    #[inline(always)]
    pub(crate) fn single(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        if payload.len() > INLINE_PAYLOAD {
            return self.long_single(fabric, domain, header, payload);
        }
        let mut line = [0; LINE];
        if write_line(&mut line, header, payload, self.next_tag).is_err() {
            return Err(TxError::Broken);
        }
        if let TxHalf::Write { key, base, notice: Notice::Polled } = &self.half
            && self.unsignaled + 1 < self.signal_every
            && LINE <= self.max_inline
            && let Some((at, ahead)) = self.ring.place_line(LINES_AHEAD)
        {
            fabric.host().charge(Work::PostWork, 1);
            let write = InlineLine {
                id: route::outgoing(self.lane),
                line: &line,
                key: *key,
                offset: base + at as u64,
                ahead: if ahead { ((1 + LINES_AHEAD as usize) * LINE) as u32 } else { 0 },
            };
            let posted = domain.post_line(self.queue_pair, write);
            self.posted(posted, false)?;
        } else {
            self.line_otherwise(fabric, domain, &line)?;
        }
        self.sent(LINE);
        Ok(())
    }

    /// Sends a part of a large payload. Always from registered memory: many of them may wait, and a fabric that has to keep
    /// inline data for later takes memory of its own for it.
    pub(crate) fn fragment(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        let max_inline = std::mem::take(&mut self.max_inline);
        let sent = self.long_single(fabric, domain, header, payload);
        self.max_inline = max_inline;
        sent
    }

    /// A line that is not the next of a stream of plain WRITEs.
    #[inline(never)]
    fn line_otherwise(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        line: &[u8; LINE],
    ) -> Result<(), TxError> {
        let tag = self.next_tag;
        let at = self.place(fabric, domain, LINE)?;
        if tag == self.next_tag {
            return self.put(fabric, domain, &[line], LINE, at, true);
        }
        // A `Skip` went out before it, with the tag that was meant for this line.
        let mut line = *line;
        set_line_tag(&mut line, self.next_tag);
        self.put(fabric, domain, &[&line], LINE, at, true)
    }

    #[inline(never)]
    fn long_single(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        let Ok(layout) = SingleLayout::new(payload.len() as u32, MAX_MESSAGE) else {
            return Err(TxError::Broken);
        };
        if !layout.has_trailing_tag() {
            let line = encode_line(header, payload, self.next_tag).map_err(|_| TxError::Broken)?;
            self.line_otherwise(fabric, domain, &line)?;
            self.sent(LINE);
            return Ok(());
        }
        let tags = self.begin(fabric, domain, layout.total())?;
        let Ok(first) = layout.first_line(header, tags.first) else { return Err(TxError::Broken) };
        let tail = layout.tail(tags.trailing);
        fabric.host().charge(Work::CopyBytes, payload.len() as u32);
        self.post(fabric, domain, &[&first, payload, tail.as_bytes()], layout.total())
    }

    /// Where a message of `total` bytes goes; writes a `Skip` if it does not fit before the end.
    #[inline]
    fn place(&mut self, fabric: &F, domain: &mut F::Domain, total: usize) -> Result<usize, TxError> {
        if !self.has_ring() {
            return Ok(0);
        }
        match self.ring.place(total) {
            Some(Place { skip_at: None, at }) => Ok(at),
            _ => self.place_slowly(fabric, domain, total),
        }
    }

    #[inline(never)]
    fn place_slowly(&mut self, fabric: &F, domain: &mut F::Domain, total: usize) -> Result<usize, TxError> {
        self.refresh_head();
        let (skip, alone) = match self.ring.place(total) {
            Some(Place { skip_at: None, at }) => return Ok(at),
            Some(Place { skip_at, .. }) => (skip_at, false),
            None => (self.ring.skip_ahead(total), true),
        };
        let at = skip.ok_or(TxError::Full)?;
        let mut line = [0; LINE];
        // One that no message follows at once has to be noticed by itself.
        let flags = if alone { Flags::NONE } else { Flags::MORE };
        let header = Header { flags, ..Header::new(Kind::Skip) };
        if write_line(&mut line, &header, &[], self.next_tag).is_err() {
            return Err(TxError::Broken);
        }
        self.put(fabric, domain, &[&line], LINE, at, alone)?;
        self.ring.skip();
        self.next_message();
        self.ring.place(total).map(|place| place.at).ok_or(TxError::Full)
    }

    /// Tags for the next message, once there is room for `total` bytes. A message that is then not posted leaves
    /// no trace.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        total: usize,
    ) -> Result<Tags, TxError> {
        self.place(fabric, domain, total)?;
        Ok(self.tags.tags(self.epoch, self.sequence))
    }

    /// Posts the message that [`begin`](Tx::begin) made room for.
    #[inline]
    pub(crate) fn post(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
    ) -> Result<(), TxError> {
        let at = self.place(fabric, domain, total)?;
        self.put(fabric, domain, parts, total, at, true)?;
        self.sent(total);
        Ok(())
    }

    #[inline]
    fn sent(&mut self, total: usize) {
        // Without a ring the arithmetic counts on, unused.
        self.ring.advance(total);
        self.next_message();
    }

    /// The tag of the next first line is made now, off the next message's way.
    #[inline]
    fn next_message(&mut self) {
        self.sequence += 1;
        self.next_tag = self.tags.first(self.epoch, self.sequence);
    }

    /// Puts a message, or a `Skip` that nobody is told of, at its place.
    #[inline]
    fn put(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        match &self.half {
            TxHalf::Write { key, base, notice: notice @ (Notice::Polled | Notice::Immediate) }
                if total <= self.max_inline =>
            {
                let (key, offset) = (*key, base + at as u64);
                let immediate = (*notice == Notice::Immediate && notify).then_some(self.lane as u32);
                let signaled = self.next_is_signaled(fabric);
                let id = route::outgoing(self.lane);
                let ahead = self.ahead(total);
                let write = InlineWrite { id, parts, key, offset, immediate, signaled, ahead };
                let posted = domain.post_write(self.queue_pair, write);
                self.posted(posted, signaled)
            }
            _ => self.put_otherwise(fabric, domain, parts, total, at, notify),
        }
    }

    #[inline(never)]
    fn put_otherwise(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        let operation = match &self.half {
            TxHalf::Publish { region, metadata, ring_bytes } => {
                let ring_bytes = *ring_bytes as usize;
                // The first line comes last: a READ that finds its tag finds all that follows it, in whatever
                // order its bytes are read.
                let Some((first, rest)) = parts.split_first() else { return Ok(()) };
                let (line, body) = first.split_at(first.len().min(LINE));
                let mut offset = at + line.len();
                for part in std::iter::once(&body).chain(rest) {
                    region.copy_in(offset, part);
                    offset += part.len();
                }
                region.copy_in(at, line);
                // The tables from the last to the first: who has found an entry finds what it names.
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
                let data = self.data(fabric, parts, total)?;
                let immediate = (notice == Notice::Immediate).then_some(self.lane as u32);
                let write = Operation::Write { data, key, offset, immediate };
                match notice {
                    Notice::Polled | Notice::Immediate => write,
                    Notice::LinkedSend => return self.post_with_notice(fabric, domain, write),
                    Notice::Send => {
                        // The SEND is signaled in its stead.
                        self.post_one(fabric, domain, write, false)?;
                        // Without room for this one the WRITE is made again: nobody looks at what was not told of.
                        tell()
                    }
                }
            }
            TxHalf::Datagram(_) => return self.put_datagram(fabric, domain, parts, total),
            TxHalf::Lossy(_) => return self.put_lossy(fabric, domain, parts, total, at),
            TxHalf::Send => {
                Operation::Send { data: self.data(fabric, parts, total)?, immediate: None, to: None }
            }
        };
        self.post_one(fabric, domain, operation, true)
    }

    fn put_datagram(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
    ) -> Result<(), TxError> {
        let data = self.data(fabric, parts, total)?;
        let TxHalf::Datagram(outlet) = &self.half else { return Err(TxError::Broken) };
        fabric.host().charge(Work::PostWork, 1);
        let signaled = outlet.next_is_signaled(self.signal_every);
        let operation =
            Operation::Send { data, immediate: Some(outlet.immediate(self.sequence)), to: Some(outlet.to()) };
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled };
        match domain.post(self.queue_pair, request) {
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
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
        at: usize,
    ) -> Result<(), TxError> {
        let data = self.data(fabric, parts, total)?;
        let TxHalf::Lossy(lossy) = &mut self.half else { return Err(TxError::Broken) };
        lossy.ring.taken(self.ring.head());
        lossy.ring.keep(at, parts);
        let (key, offset) = (lossy.key, lossy.base + at as u64);
        let operation = Operation::Write { data, key, offset, immediate: None };
        self.post_one(fabric, domain, operation, true)?;
        if let TxHalf::Lossy(lossy) = &mut self.half {
            lossy.ring.posted(at, total, self.ring.tail() + (total / LINE) as u64);
        }
        Ok(())
    }

    /// Writes again what may have been lost of a ring, as far as there is room; says whether there was anything.
    pub(crate) fn rewrite(&mut self, fabric: &F, domain: &mut F::Domain) -> Result<bool, TxError> {
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
            let operation = match self.data(fabric, parts, message.len()) {
                Ok(data) => Operation::Write { data, key, offset, immediate: None },
                Err(TxError::Full) => break,
                Err(error) => return Err(error),
            };
            match self.post_one(fabric, domain, operation, true) {
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

    /// Posts one work request by itself, signaled if it `may` be and one is due.
    fn post_one(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        operation: Operation<'_, F::Memory>,
        may: bool,
    ) -> Result<(), TxError> {
        let signaled = self.next_is_signaled(fabric) && may;
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled };
        let posted = domain.post(self.queue_pair, request);
        self.posted(posted, signaled)
    }

    /// Posts a WRITE and the SEND that tells of it as a list.
    fn post_with_notice(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        write: Operation<'_, F::Memory>,
    ) -> Result<(), TxError> {
        fabric.host().charge(Work::PostWork, 2);
        let signaled = self.unsignaled + 2 >= self.signal_every;
        let id = route::outgoing(self.lane);
        let list = [
            WorkRequest { id, operation: write, signaled: false },
            WorkRequest { id, operation: tell(), signaled },
        ];
        let posted = domain.post_linked(self.queue_pair, list);
        self.posted(posted, signaled)?;
        // The SEND is counted like any other, and the WRITE with it.
        self.unsignaled += u32::from(!signaled);
        Ok(())
    }

    /// WRITEs a large payload where the peer has said. Signaled, so that its memory comes back as soon as can be. What could
    /// not be posted stays.
    pub(crate) fn write_payload(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        payload: &mut Option<Buffer<F::Memory>>,
        to: &Descriptor,
    ) -> Result<(), TxError> {
        if domain.send_room(self.queue_pair) == 0 {
            return Err(TxError::Full);
        }
        let Some(payload) = payload.take() else { return Ok(()) };
        fabric.host().charge(Work::PostWork, 1);
        let (key, offset) = (RegionKey(to.key), to.offset);
        let operation = Operation::Write { data: Data::Buffer(payload), key, offset, immediate: None };
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled: true };
        let posted = domain.post(self.queue_pair, request);
        // A refusal in spite of the room has taken the payload along.
        self.posted(posted, true).map_err(|_| TxError::Broken)
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
        let mut buffer = self.staging.reserve(fabric, total)?;
        let mut at = 0;
        for part in parts {
            buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Data::Buffer(buffer))
    }

    /// How far the ring is likely to be written soon, from the beginning of a message of `total` bytes: some lines, or as
    /// much again. Only as far as the reader is done with it: to take a line away from the reader costs more than asking for it
    /// saves.
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

    /// Tells the peer how far its messages were consumed, without a message: WRITEs its control word. A peer that
    /// may sleep while it waits for room has to be woken, which takes immediate data and a RECV of its.
    pub(crate) fn report_head(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        to: (RegionKey, usize),
        head: u32,
    ) -> Result<(), TxError> {
        let immediate = self.peer_sleeps.then_some(HEAD_IMMEDIATE);
        self.write_word(fabric, domain, to, 1u64 << 32 | head as u64, immediate)
    }

    /// WRITEs a word of the peer's control line, behind all that was posted before.
    pub(crate) fn write_word(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        (key, at): (RegionKey, usize),
        word: u64,
        immediate: Option<u32>,
    ) -> Result<(), TxError> {
        let (word, offset) = (word.to_le_bytes(), at as u64);
        // Where messages are two requests each, the next message's SEND is signaled in its stead, if there is one soon.
        let told = matches!(&self.half, TxHalf::Write { notice: Notice::Send | Notice::LinkedSend, .. });
        let apart = self.reports != self.queue_pair;
        let due = self.next_is_signaled(fabric) && (!told || self.unsignaled + 1 >= 2 * self.signal_every);
        let signaled = apart || due;
        let id = route::outgoing(self.lane);
        let posted = if word.len() <= self.max_inline {
            let write = InlineWrite { id, parts: &[&word], key, offset, immediate, signaled, ahead: 0 };
            domain.post_write(self.reports, write)
        } else {
            let parts: &[&[u8]] = &[&word];
            let data = self.data(fabric, parts, word.len())?;
            let operation = Operation::Write { data, key, offset, immediate };
            domain.post(self.reports, WorkRequest { id, operation, signaled })
        };
        if apart && posted.is_ok() {
            self.signaled += 1;
            return Ok(());
        }
        self.posted(posted, signaled)
    }
}
