//! Receiving end of a direction: finds the next message and copies it once, whole, into private memory.

use super::half::{Arrived, Fetcher, Keys, Receiver, RxHalf};
use super::local_ring::LocalRing;
use super::{MAX_MESSAGE, Violation};
use crate::grouped::Lease;
use crate::mailbox::RingReader;
use dunlin_fabric::{Buffer, Fabric, Host, Work};
use dunlin_wire::{Kind, LINE, ShortMessage, TAG_OFFSET, TagKey, Tags, parse_line, parse_short};
use std::ops::Range;

/// A message in private memory whose tags are verified.
pub(crate) enum Incoming<F: Fabric> {
    /// In the first bytes of the scratch buffer; the number is the length.
    Scratch(usize),
    /// In this range of a buffer, which the caller must give back.
    Buffer(Buffer<F::Memory>, Range<usize>),
}

impl<F: Fabric> Incoming<F> {
    /// Returns the cost of the message in a lane's turn, in lines.
    pub(crate) fn turn_cost(&self, scratch: &Scratch) -> usize {
        let (first, total) = match self {
            Incoming::Scratch(total) => (scratch.first(), *total),
            Incoming::Buffer(buffer, range) => (buffer.get(range.start), range.len()),
        };
        super::turn_cost(first.copied().unwrap_or(0), total)
    }
}

/// A buffer for the longest message: messages are copied here before they are processed.
pub(crate) type Scratch = [u8; MAX_MESSAGE];

/// Allocates a scratch buffer.
pub(crate) fn scratch() -> Box<Scratch> {
    Box::new([0; MAX_MESSAGE])
}

/// The receiving end. Every message touches all of its fields.
#[derive(Debug)]
pub(crate) struct Rx<F: Fabric> {
    half: RxHalf<F>,
    tags: TagKey,
    epoch: u32,
    sequence: u64,
    /// The first tag of the next message.
    expected: u64,
    /// Consecutive lines taken since the last empty poll.
    in_a_row: u32,
    /// For a ring with a completion per message: messages announced by completions and not taken yet. Bytes
    /// beyond them may be incomplete and written in any order. Otherwise always 1.
    due: u32,
    told_of: bool,
}

impl<F: Fabric> Rx<F> {
    /// Creates the receiving end; `told_of` if a completion announces each message to
    /// [`noticed`](Rx::noticed).
    pub(crate) fn new(half: RxHalf<F>, tags: TagKey, told_of: bool) -> Self {
        let expected = tags.first(0, 0);
        let due = u32::from(!told_of);
        Rx { half, tags, epoch: 0, sequence: 0, expected, in_a_row: 0, due, told_of }
    }

    /// Continues the ring at the zone of a lease: the next message is expected there, at its position in the ring.
    pub(crate) fn renew(&mut self, lease: &Lease) {
        if let Some(ring) = self.half.ring_mut() {
            ring.base = lease.base as u32;
        }
        self.epoch = lease.epoch;
        self.expected = self.tags.first(self.epoch, self.sequence);
        self.due = u32::from(!self.told_of);
    }

    /// Takes no message from the ring until the next lease.
    pub(crate) fn suspend(&mut self) {
        self.due = 0;
    }

    /// Returns whether another message waits behind the next one of a ring.
    pub(crate) fn waits_beyond(&self) -> bool {
        let Some(LocalRing { region, base, reader }) = self.half.ring() else { return false };
        let (base, position, to_end) = (*base as usize, reader.position(), reader.to_end());
        let Ok(first) = parse_line(&region.line_out(base + position), to_end.min(MAX_MESSAGE)) else {
            return false;
        };
        let is_at_end = first.header().kind == Kind::Skip || first.total() == to_end;
        let next = if is_at_end { 0 } else { position + first.total() };
        region.load(base + next + TAG_OFFSET) == self.tags.first(self.epoch, self.sequence + 1)
    }

    /// Advances the head past `lines` lines of the ring that were READ from the peer's copy of it.
    pub(crate) fn was_read(&mut self, lines: u32) {
        if let Some(ring) = self.half.ring_mut() {
            ring.reader.advance(lines as usize * LINE);
        }
    }

    /// Counts a message that was READ as taken.
    pub(crate) fn took_read(&mut self) {
        self.next();
    }

    /// Returns the lines from the head to the end of the ring; 0 without a ring.
    pub(crate) fn lines_to_end(&self) -> u32 {
        self.half.ring().map_or(0, |ring| (ring.reader.to_end() / LINE) as u32)
    }

    /// Records that the completion of a RECV has announced a message in the ring.
    #[inline]
    pub(crate) fn noticed(&mut self) {
        self.due = self.due.saturating_add(u32::from(self.told_of));
    }

    /// Counts an announced message as taken.
    #[inline]
    fn taken(&mut self) {
        if self.told_of {
            self.due = self.due.saturating_sub(1);
        }
    }

    /// Returns the number of messages taken so far, including lost ones that later messages have overtaken. A
    /// draining server reports this number.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    #[inline]
    fn next(&mut self) {
        self.sequence += 1;
        self.expected = self.tags.first(self.epoch, self.sequence);
    }

    /// Returns both tags of the next message.
    #[inline]
    fn expected(&self) -> Tags {
        self.tags.tags(self.epoch, self.sequence)
    }

    /// Queues the message of a completed RECV. Gives back the buffer of a message that is not the peer's, or finds no
    /// room.
    pub(crate) fn deliver(&mut self, arrived: Arrived<F>) -> Result<(), Buffer<F::Memory>> {
        let keys = Keys { tags: self.tags, epoch: self.epoch, next: self.sequence };
        if let Some(sequence) = self.half.deliver(arrived, keys)? {
            self.sequence = self.sequence.max(sequence + 1);
        }
        Ok(())
    }

    /// Queues a copy of the message, so that the RECV is free at once: for a lane that takes no messages now,
    /// whose peer must not hold RECVs that other lanes need. Fails if `limit` messages are queued.
    pub(crate) fn deliver_copy(
        &mut self,
        buffer: &Buffer<F::Memory>,
        bytes: u32,
        limit: usize,
    ) -> Result<(), Violation> {
        self.half.deliver_copy(buffer.get(..bytes as usize).unwrap_or(buffer), limit)
    }

    /// Passes the buffers of RECVs that hold queued messages to `repost`: for a lane that takes no messages now,
    /// whose peer must not hold RECVs that other lanes need. Fails if more than `limit` messages are queued. Costs one
    /// check if there are none.
    pub(crate) fn release(
        &mut self,
        limit: usize,
        repost: impl FnMut(Buffer<F::Memory>),
    ) -> Result<(), Violation> {
        self.half.release(limit, repost)
    }

    /// Returns the fetching end, if this is one.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        self.half.fetcher_mut()
    }

    /// Returns whether this is a fetching end without a READ in flight or to be processed.
    pub(crate) fn is_idle_fetcher(&self) -> bool {
        self.half.fetcher().is_some_and(|fetcher| !fetcher.is_busy())
    }

    /// Returns the READs so far, and how many of them found nothing.
    pub(crate) fn reads(&self) -> (u64, u64) {
        self.half.fetcher().map_or((0, 0), |fetcher| (fetcher.reads, fetcher.misses))
    }

    /// Returns the reading end of the ring, if messages come in one.
    #[inline(always)]
    fn reader(&self) -> Option<&RingReader> {
        // First by far the most frequent one, so that it costs one comparison.
        if let Some(ring) = self.half.ring() {
            return Some(&ring.reader);
        }
        self.other_reader()
    }

    #[inline(never)]
    fn other_reader(&self) -> Option<&RingReader> {
        self.half.reader()
    }

    /// Returns the head to piggyback on the next message in the other direction, or to report.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.reader().map_or(0, RingReader::head)
    }

    /// Records that the peer will see the current head. Do not call it for a head that travels on a request:
    /// a server that has no room for answers takes no requests, and waits for exactly this head.
    #[inline(always)]
    pub(crate) fn told(&mut self) {
        if let Some(ring) = self.half.ring_mut() {
            return ring.reader.told();
        }
        self.told_elsewhere();
    }

    #[inline(never)]
    fn told_elsewhere(&mut self) {
        if let Some(reader) = self.half.reader_mut() {
            reader.told();
        }
    }

    /// Returns whether a READ is in flight or completed but not processed.
    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        self.half.fetcher().is_some_and(Fetcher::is_busy)
    }

    /// Returns whether the head must be reported now, without waiting for a message that carries it.
    #[inline(always)]
    pub(crate) fn head_overdue(&self) -> bool {
        self.reader().is_some_and(RingReader::overdue)
    }

    /// Returns whether the peer does not know the current head.
    pub(crate) fn head_pending(&self) -> bool {
        self.reader().is_some_and(RingReader::head_pending)
    }

    /// Prefetches the next message's first line and the line behind it, which is read right after.
    #[inline]
    pub(crate) fn warm(&self) {
        if let Some(LocalRing { region, base, reader }) = self.half.ring() {
            region.prefetch(*base as usize + reader.position());
            region.prefetch(*base as usize + reader.position_ahead(1));
        }
    }

    /// Prefetches the handle that locates the ring's memory.
    #[inline]
    pub(crate) fn warm_region(&self) {
        if let Some(ring) = self.half.ring() {
            ring.region.prefetch_handle();
        }
    }

    /// Returns whether a message may be waiting. For rings this is one load.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        match self.half.ring() {
            Some(ring) => self.due > 0 && ring.is_waiting(self.expected),
            None => self.waits_elsewhere(),
        }
    }

    /// Takes the next message if it is one line in a ring: the short path for most messages, which are of this kind.
    #[inline(always)]
    pub(crate) fn next_line<'s>(
        &mut self,
        fabric: &F,
        scratch: &'s mut Scratch,
        kind: Kind,
    ) -> Result<Next<'s>, Violation> {
        let Some(LocalRing { region, base, reader }) = self.half.ring_mut() else {
            return Ok(if self.waits_elsewhere() { Next::Other } else { Next::Nothing });
        };
        let next = region.line(*base as usize + reader.position());
        if self.due == 0 || next.load::<TAG_OFFSET>() != self.expected {
            fabric.host().charge(Work::PollMiss, 1);
            self.in_a_row = 0;
            return Ok(Next::Nothing);
        }
        // A line that is not written yet would be taken away from the writer's cache, so only a stream is read ahead.
        if self.in_a_row < F::PREFETCH.stream_from {
            self.in_a_row += 1;
        } else if F::PREFETCH.read_lines > 0 {
            region.prefetch(*base as usize + reader.position_ahead(F::PREFETCH.read_lines as u32));
        }
        let Some(line) = scratch.first_chunk_mut::<LINE>() else { return Ok(Next::Nothing) };
        next.copy_out(line);
        let short = parse_short(line, kind)?;
        if short.is_none() && !is_line(line)? {
            return Ok(Next::Other);
        }
        fabric.host().charge(Work::PollHit, 1);
        reader.advance_line();
        self.taken();
        self.next();
        Ok(short.map_or(Next::Line(line), Next::Short))
    }

    #[inline(never)]
    fn waits_elsewhere(&self) -> bool {
        self.half.is_waiting(self.expected)
    }

    /// Takes the next message of any kind, if it is complete.
    #[inline(never)]
    pub(crate) fn poll(
        &mut self,
        fabric: &F,
        scratch: &mut Scratch,
    ) -> Result<Option<Incoming<F>>, Violation> {
        if !self.is_waiting() {
            fabric.host().charge(Work::PollMiss, 1);
            return Ok(None);
        }
        fabric.host().charge(Work::PollHit, 1);
        loop {
            let expected = self.expected();
            match self.half.take(expected, scratch)? {
                Taken::Nothing => return Ok(None),
                Taken::Skip { told_of } => {
                    self.next();
                    if told_of {
                        self.taken();
                    }
                    if self.due == 0 {
                        return Ok(None);
                    }
                }
                Taken::Message(incoming) => {
                    self.taken();
                    self.next();
                    return Ok(Some(incoming));
                }
                Taken::Counted(incoming) => return Ok(Some(incoming)),
            }
        }
    }
}

/// The result of a short poll.
pub(crate) enum Next<'s> {
    /// No message.
    Nothing,
    /// A message of the wanted kind that is one line.
    Short(ShortMessage<'s>),
    /// Another message of one line.
    Line(&'s [u8; LINE]),
    /// A message that needs [`Rx::poll`].
    Other,
}

/// Returns whether a message is one line, and to be taken as such.
#[inline(never)]
fn is_line(line: &[u8; LINE]) -> Result<bool, Violation> {
    let first = parse_line(line, MAX_MESSAGE)?;
    Ok(first.total() == LINE && first.header().kind != Kind::Skip)
}

/// The result of polling a source.
pub(crate) enum Taken<F: Fabric> {
    /// No message, or an incomplete one.
    Nothing,
    /// The sender left the rest of the ring unused: go on at its start.
    Skip {
        /// The skip has a completion of its own.
        told_of: bool,
    },
    /// A message.
    Message(Incoming<F>),
    /// A message whose sequence number was known when it was delivered.
    Counted(Incoming<F>),
}

/// Checks the first line of a private copy and those of its tags that are present; returns the total length.
pub(crate) fn check(bytes: &[u8], expected: Tags) -> Result<usize, Violation> {
    let Some(line) = bytes.first_chunk::<LINE>() else {
        return Err(Violation::Transfer("a message shorter than a line"));
    };
    let first = parse_line(line, MAX_MESSAGE)?;
    if let Some(whole) = bytes.get(..first.total()) {
        dunlin_wire::message::verify_tags(whole, expected)?;
    }
    Ok(first.total())
}
