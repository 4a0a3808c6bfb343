//! The part of a sending end that knows no half: ring, tags, send queue, and requests that wait for the next one.

use super::listed::{self, Listed};
use super::staging::{self, Staging};
use super::tx::TxError;
use super::{Cx, HEAD_IMMEDIATE, Violation, route};
use crate::mailbox::RingWriter;
use crate::path::half::Facts;
use dunlin_fabric::{
    Buffer, Data, Fabric, Host, InlineWrite, Operation, PostError, QueuePairId, Region, RegionKey,
    ThreadDomain, Work, WorkRequest,
};
use dunlin_wire::{Descriptor, LINE, TagKey};

/// Returns the control word that reports a head: it is never 0.
const fn head_word(head: u32) -> u64 {
    1 << 32 | head as u64
}

/// The part of a sending end that all halves have. Fields that every message touches come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sending<F: Fabric> {
    pub(super) ring: RingWriter,
    pub(super) tags: TagKey,
    pub(super) sequence: u64,
    /// The tag of the next message's first line.
    pub(super) next_tag: u64,
    pub(super) epoch: u32,
    pub(super) queue_pair: QueuePairId,
    /// Work requests since the last signaled one. The number is bounded, since only a signaled completion frees places
    /// of the send queue.
    pub(super) unsignaled: u32,
    pub(super) signal_every: u32,
    /// Signaled requests in flight; polling their completions frees places of the send queue and buffers.
    signaled: u32,
    pub(super) lane: u16,
    /// The peer may sleep, and has RECVs for wake-ups.
    peer_sleeps: bool,
    /// The queue pair for head reports, which must not be lost.
    reports: QueuePairId,
    /// The number of requests that wait for the next one.
    pub(super) listed: u8,
    /// Messages wait for [`post_listed`](Sending::post_listed), too.
    pub(super) holds: bool,
    /// Messages go into a ring.
    pub(super) has_ring: bool,
    /// A message is a WRITE and a SEND that announces it.
    pub(super) is_announced: bool,
    pub(super) max_inline: u32,
    /// Offset of the head in `control`.
    head_at: u32,
    /// State that few ends need, so that it takes little space in every lane.
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
pub(crate) struct SendingParts<F: Fabric> {
    pub(crate) facts: Facts,
    pub(crate) queue_pair: QueuePairId,
    pub(crate) reports: QueuePairId,
    pub(crate) lane: u16,
    pub(crate) ring: RingWriter,
    pub(crate) tags: TagKey,
    pub(crate) max_send: u32,
    pub(crate) max_inline: u32,
    pub(crate) control: Region<F::Memory>,
    pub(crate) head_at: u32,
    pub(crate) peer_sleeps: bool,
}

impl<F: Fabric> Sending<F> {
    /// Returns the local inbound region.
    pub(crate) fn control(&self) -> &Region<F::Memory> {
        &self.control
    }

    pub(super) fn new(parts: SendingParts<F>) -> Self {
        Sending {
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
            has_ring: parts.facts.needs_credit_update(),
            is_announced: parts.facts.is_announced(),
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
        if !self.has_ring || self.ring.on_head(head) { Ok(()) } else { Err(Violation::Head) }
    }

    /// Returns the queue pair for messages.
    #[inline]
    pub(crate) fn queue_pair(&self) -> QueuePairId {
        self.queue_pair
    }

    /// Reads the head that the peer has written to the local control word.
    pub(super) fn refresh_head(&mut self) {
        // The word is zero until the first report: a mark above the head's 32 bits shows that there is one.
        let word = self.control.load(self.head_at as usize);
        if word >> 32 == 1 {
            // A peer that reports an invalid head here piggybacks one on its next message, which closes the
            // lane.
            self.ring.on_head(word as u32);
        }
    }

    /// Computes the tag of the next first line now, outside the latency of the next message.
    #[inline]
    pub(super) fn next_message(&mut self) {
        self.sequence += 1;
        self.next_tag = self.tags.first(self.epoch, self.sequence);
    }

    /// Posts a single work request; it is signaled if one is due and `may` allows it.
    pub(super) fn post_one(
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

    /// Posts a request, or lists it behind those that wait.
    pub(super) fn post_or_list(
        &mut self,
        domain: &mut F::Domain,
        request: WorkRequest<'_, F::Memory>,
    ) -> Result<(), TxError> {
        if self.holds || self.listed > 0 {
            return self.list(domain, request);
        }
        domain.post(self.queue_pair, request).map_err(|error| match error {
            PostError::QueueFull => TxError::Full,
            _ => TxError::Broken,
        })
    }

    /// Counts a signaled request of a queue pair that lanes share.
    pub(super) fn posted_shared(&mut self, signaled: bool) {
        self.signaled += u32::from(signaled);
    }

    fn rare(&mut self) -> &mut Rare<F> {
        self.rare.get_or_insert_with(|| Box::new(Rare { staging: Staging::new(), list: Listed::new() }))
    }

    /// Returns the data of a message: inline, or in registered memory where the fabric takes no more inline.
    pub(super) fn data<'a>(
        &mut self,
        fabric: &F,
        parts: &'a [&'a [u8]],
        total: usize,
    ) -> Result<Data<'a, F::Memory>, TxError> {
        if total <= self.max_inline as usize {
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
    /// that are likely to be written next. Returns 0 if the fabric prefetches none, and unless the reader has consumed all of them: to take a
    /// line away from the reader costs more than the prefetch saves.
    #[inline]
    pub(super) fn ahead(&self, total: usize) -> u32 {
        let lines = F::PREFETCH.written_lines;
        if lines == 0 {
            return 0;
        }
        let wanted = total + total.max(lines * LINE);
        if self.ring.clear_ahead() >= (wanted / LINE) as u64 { wanted as u32 } else { 0 }
    }

    #[inline]
    pub(super) fn next_is_signaled(&self, fabric: &F) -> bool {
        fabric.host().charge(Work::PostWork, 1);
        self.unsignaled + 1 >= self.signal_every
    }

    #[inline]
    pub(super) fn posted(&mut self, posted: Result<(), PostError>, signaled: bool) -> Result<(), TxError> {
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
        self.notify_word(cx, to, head_word(head))
    }

    /// As [`report_head`](Sending::report_head), with this immediate data.
    pub(crate) fn report_head_with(
        &mut self,
        cx: &mut Cx<'_, F>,
        to: (RegionKey, usize),
        head: u32,
        immediate: Option<u32>,
    ) -> Result<(), TxError> {
        self.write_word(cx, to, head_word(head), immediate)
    }

    /// As [`write_word`](Sending::write_word), and wakes a peer that may sleep, with immediate data.
    pub(crate) fn notify_word(
        &mut self,
        cx: &mut Cx<'_, F>,
        to: (RegionKey, usize),
        word: u64,
    ) -> Result<(), TxError> {
        let immediate = self.peer_sleeps.then_some(HEAD_IMMEDIATE);
        self.write_word(cx, to, word, immediate)
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
        let apart = self.reports != self.queue_pair;
        let due = self.next_is_signaled(cx.fabric)
            && (!self.is_announced || self.unsignaled + 1 >= 2 * self.signal_every);
        let signaled = apart || due;
        let id = route::outgoing(self.lane);
        let posted = if word.len() <= self.max_inline as usize {
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

    /// Keeps a signaled request until the next one of this end is posted, or [`post_listed`](Sending::post_listed) is
    /// called. The caller counts its completion. Inline data is copied, at most [`listed::MAX_KEPT`] bytes.
    pub(crate) fn list(
        &mut self,
        domain: &mut F::Domain,
        request: WorkRequest<'_, F::Memory>,
    ) -> Result<(), TxError> {
        if self.listed as usize >= listed::MOST {
            self.post_listed(domain)?;
        }
        if domain.send_room(self.queue_pair) <= self.listed.into() {
            return Err(TxError::Full);
        }
        let list = &mut self.rare().list;
        list.push(request);
        self.listed = list.count() as u8;
        Ok(())
    }

    /// Returns whether requests wait.
    #[inline]
    pub(crate) fn has_listed(&self) -> bool {
        self.listed > 0
    }

    /// Posts the requests that wait, if there are any. Without room for all of them they go on waiting.
    #[inline]
    pub(crate) fn post_listed(&mut self, domain: &mut F::Domain) -> Result<(), TxError> {
        if self.listed == 0 {
            return Ok(());
        }
        self.post_list(domain, [None, None]).map_err(|error| match error {
            PostError::QueueFull => TxError::Full,
            _ => TxError::Broken,
        })
    }

    pub(super) fn post_list(
        &mut self,
        domain: &mut F::Domain,
        last: [Option<WorkRequest<'_, F::Memory>>; 2],
    ) -> Result<(), PostError> {
        let queue_pair = self.queue_pair;
        let list = &mut self.rare().list;
        let posted = list.post(domain, queue_pair, last);
        self.listed = list.count() as u8;
        posted
    }

    /// Makes room for requests in the list, so that those of a message are listed together or not at all.
    pub(super) fn make_list_room(&mut self, domain: &mut F::Domain, requests: u32) -> Result<(), TxError> {
        if u32::from(self.listed) + requests > listed::MOST as u32 {
            self.post_listed(domain)?;
        }
        if domain.send_room(self.queue_pair) < u32::from(self.listed) + requests {
            self.post_listed(domain)?;
            return Err(TxError::Full);
        }
        Ok(())
    }
}
