//! The receiving end of a direction: finds the next message and moves it, whole and once, into private memory.

use super::{CONTROL_BYTES, MAX_MESSAGE, Violation};
use crate::mailbox::RingReader;
use crate::path::datagram::Datagrams;
use crate::path::fetch::Fetcher;
use dunlin_fabric::{Buffer, Fabric, Host, Region, Work};
use dunlin_wire::{FirstLine, Flags, Kind, LINE, TAG_OFFSET, TagKey, Tags, parse_line};
use std::collections::VecDeque;
use std::ops::Range;

/// Lines in a row from which on they count as a stream: the next ones are likely to be there already, and to ask for one
/// that is not yet written, which takes it from the writer, is rare.
const STREAM_FROM: u32 = 5;
/// How far ahead of the line that it takes the reader of a stream asks for another.
const LINES_AHEAD: u64 = 2;

/// Where messages come from. Small: what is large of the rarer ways stands elsewhere.
#[derive(Debug)]
pub(crate) enum RxSource<F: Fabric> {
    /// A ring in our own region, behind its control line.
    Ring {
        /// The region.
        region: Region<F::Memory>,
        /// Where we are.
        reader: RingReader,
    },
    /// RECVs; the messages that were not looked at yet, at most as many as RECVs.
    Messages(VecDeque<Held<F>>),
    /// The peer's published ring.
    Fetch(Box<Fetcher<F>>),
    /// Datagrams, in any order.
    Datagrams(Box<Datagrams<F>>),
}

/// A message that came by SEND and waits for its turn.
#[derive(Debug)]
pub(crate) enum Held<F: Fabric> {
    /// In the RECV's buffer.
    Buffer(Buffer<F::Memory>),
    /// Copied out of it, because others need the RECV.
    Copied(Vec<u8>),
}

/// A message in private memory, its tags verified.
pub(crate) enum Incoming<F: Fabric> {
    /// In the first so many bytes of the scratch buffer.
    Scratch(usize),
    /// In these bytes of a buffer, which is to be given back.
    Buffer(Buffer<F::Memory>, Range<usize>),
}

impl<F: Fabric> Incoming<F> {
    /// What it counts for where lanes take turns.
    pub(crate) fn turn_cost(&self, scratch: &Scratch) -> usize {
        let (first, total) = match self {
            Incoming::Scratch(total) => (scratch.first(), *total),
            Incoming::Buffer(buffer, range) => (buffer.get(range.start), range.len()),
        };
        super::turn_cost(first.copied().unwrap_or(0), total)
    }
}

/// Where messages are copied to before anything else looks at them: room for the longest.
pub(crate) type Scratch = [u8; MAX_MESSAGE];

/// A scratch buffer.
pub(crate) fn scratch() -> Box<Scratch> {
    Box::new([0; MAX_MESSAGE])
}

/// The receiving end: all of it is touched by every message.
#[derive(Debug)]
pub(crate) struct Rx<F: Fabric> {
    source: RxSource<F>,
    tags: TagKey,
    epoch: u32,
    sequence: u64,
    /// The first tag of the next message.
    expected: u64,
    /// Lines taken since a look found none.
    in_a_row: u32,
    /// Of a ring whose messages are told of: messages told of and not taken. What lies in the ring beyond them may be
    /// there in part only, and in any order. Otherwise 1, always.
    due: u32,
    told_of: bool,
}

impl<F: Fabric> Rx<F> {
    /// The receiving end; `told_of` if [`noticed`](Rx::noticed) will be called for each message.
    pub(crate) fn new(source: RxSource<F>, tags: TagKey, told_of: bool) -> Self {
        let expected = tags.first(0, 0);
        let due = u32::from(!told_of);
        Rx { source, tags, epoch: 0, sequence: 0, expected, in_a_row: 0, due, told_of }
    }

    /// The completion of a RECV has told of a message in the ring.
    #[inline]
    pub(crate) fn noticed(&mut self) {
        self.due = self.due.saturating_add(u32::from(self.told_of));
    }

    /// Such a message was taken.
    #[inline]
    fn taken(&mut self) {
        self.due = self.due.saturating_sub(u32::from(self.told_of));
    }

    /// Messages taken so far, lost ones that others have overtaken included: the mark of a draining server.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    #[inline]
    fn next(&mut self) {
        self.sequence += 1;
        self.expected = self.tags.first(self.epoch, self.sequence);
    }

    /// Both tags of the next message.
    #[inline]
    fn expected(&self) -> Tags {
        self.tags.tags(self.epoch, self.sequence)
    }

    /// A message that a RECV has taken.
    pub(crate) fn deliver(&mut self, buffer: Buffer<F::Memory>, bytes: u32) {
        if let RxSource::Messages(messages) = &mut self.source {
            let mut buffer = buffer;
            if buffer.set_length(bytes as usize) {
                messages.push_back(Held::Buffer(buffer));
            }
        }
    }

    /// A datagram that a RECV has taken, if it is one of the peer's. What is not comes back; so does what there is no room for.
    pub(crate) fn deliver_datagram(
        &mut self,
        buffer: Buffer<F::Memory>,
        bytes: u32,
        immediate: Option<u32>,
    ) -> Result<(), Buffer<F::Memory>> {
        let RxSource::Datagrams(datagrams) = &mut self.source else { return Err(buffer) };
        let keys = (self.tags, self.epoch, self.sequence);
        let sequence = datagrams.take(buffer, bytes, immediate, keys)?;
        self.sequence = self.sequence.max(sequence + 1);
        Ok(())
    }

    /// As [`deliver`](Rx::deliver), but copies the message, so that the RECV is free at once: for a lane that takes
    /// no messages now, whose peer shall not keep RECVs from others meanwhile. At most `limit` wait so.
    pub(crate) fn deliver_copy(
        &mut self,
        buffer: &Buffer<F::Memory>,
        bytes: u32,
        limit: usize,
    ) -> Result<(), Violation> {
        let RxSource::Messages(messages) = &mut self.source else { return Ok(()) };
        if messages.len() >= limit {
            return Err(Violation::Transfer("more messages than the window allows are waiting"));
        }
        messages.push_back(Held::Copied(buffer.get(..bytes as usize).unwrap_or(buffer).to_vec()));
        Ok(())
    }

    /// Copies the messages that still lie in the buffers of RECVs, and gives the buffers to `repost`: the lane takes
    /// no messages now, and its peer shall not keep RECVs from others. At most `limit` wait so. Costs one look where
    /// there is nothing to copy.
    pub(crate) fn copy_held(
        &mut self,
        limit: usize,
        mut repost: impl FnMut(Buffer<F::Memory>),
    ) -> Result<(), Violation> {
        let messages = match &mut self.source {
            RxSource::Messages(messages) => messages,
            // They are as good as lost, and will come again.
            RxSource::Datagrams(datagrams) => {
                std::iter::from_fn(|| datagrams.pop()).for_each(|(buffer, _)| repost(buffer));
                return Ok(());
            }
            RxSource::Ring { .. } | RxSource::Fetch(_) => return Ok(()),
        };
        // What was copied before lies in front of what came since.
        for held in messages.iter_mut().rev() {
            let Held::Buffer(buffer) = held else { break };
            let copied = Held::Copied(buffer.to_vec());
            if let Held::Buffer(buffer) = std::mem::replace(held, copied) {
                repost(buffer);
            }
        }
        if messages.len() > limit {
            return Err(Violation::Transfer("more messages than the window allows are waiting"));
        }
        Ok(())
    }

    /// The fetching end, if this is one.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        match &mut self.source {
            RxSource::Fetch(fetcher) => Some(fetcher),
            _ => None,
        }
    }

    /// READs so far, and those of them that found nothing.
    pub(crate) fn reads(&self) -> (u64, u64) {
        match &self.source {
            RxSource::Fetch(fetcher) => (fetcher.reads, fetcher.misses),
            _ => (0, 0),
        }
    }

    /// The head to piggyback on the next message in the other direction, or to report.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        match &self.source {
            RxSource::Ring { reader, .. } => reader.head(),
            RxSource::Fetch(fetcher) => fetcher.reader.head(),
            RxSource::Messages(_) | RxSource::Datagrams(_) => 0,
        }
    }

    /// The peer will see the head as it is now. Not so one that travels on a request: a server whose answers find no
    /// room takes no requests, and waits for this very head.
    #[inline]
    pub(crate) fn told(&mut self) {
        match &mut self.source {
            RxSource::Ring { reader, .. } => reader.told(),
            RxSource::Fetch(fetcher) => fetcher.reader.told(),
            RxSource::Messages(_) | RxSource::Datagrams(_) => {}
        }
    }

    /// Whether a READ is under way, or has come back and was not looked at.
    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        matches!(&self.source, RxSource::Fetch(fetcher) if fetcher.is_busy())
    }

    /// Whether the head should be told without waiting for such a message.
    #[inline]
    pub(crate) fn head_overdue(&self) -> bool {
        match &self.source {
            RxSource::Ring { reader, .. } => reader.overdue(),
            RxSource::Fetch(fetcher) => fetcher.reader.overdue(),
            RxSource::Messages(_) | RxSource::Datagrams(_) => false,
        }
    }

    /// Whether there is anything to tell at all.
    pub(crate) fn head_untold(&self) -> bool {
        match &self.source {
            RxSource::Ring { reader, .. } => reader.untold(),
            RxSource::Fetch(fetcher) => fetcher.reader.untold(),
            RxSource::Messages(_) | RxSource::Datagrams(_) => false,
        }
    }

    /// Asks for the line that the next message begins with, and the one behind it, which is looked at after that.
    #[inline]
    pub(crate) fn warm(&self) {
        if let RxSource::Ring { region, reader } = &self.source {
            region.prefetch(CONTROL_BYTES + reader.position());
            region.prefetch(CONTROL_BYTES + reader.position_ahead(1));
        }
    }

    /// Asks for what tells where that line is.
    #[inline]
    pub(crate) fn warm_region(&self) {
        if let RxSource::Ring { region, .. } = &self.source {
            region.prefetch_handle();
        }
    }

    /// Whether something may be there: one load where messages come into memory.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.source {
            RxSource::Ring { region, reader } => {
                self.due > 0 && region.load(CONTROL_BYTES + reader.position() + TAG_OFFSET) == self.expected
            }
            RxSource::Messages(messages) => !messages.is_empty(),
            RxSource::Fetch(fetcher) => fetcher.has_arrived(),
            RxSource::Datagrams(datagrams) => !datagrams.is_empty(),
        }
    }

    /// The next message, as far as it is one line that came into memory: the way of most, kept short.
    #[inline(always)]
    pub(crate) fn next_line(&mut self, fabric: &F, scratch: &mut Scratch) -> Result<Next, Violation> {
        let RxSource::Ring { region, reader } = &mut self.source else {
            return Ok(if self.is_waiting() { Next::Other } else { Next::Nothing });
        };
        let at = CONTROL_BYTES + reader.position();
        if self.due == 0 || region.load(at + TAG_OFFSET) != self.expected {
            fabric.host().charge(Work::PollMiss, 1);
            self.in_a_row = 0;
            return Ok(Next::Nothing);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row >= STREAM_FROM {
            region.prefetch(CONTROL_BYTES + reader.position_ahead(LINES_AHEAD));
        }
        let Some(line) = scratch.first_chunk_mut::<LINE>() else { return Ok(Next::Nothing) };
        region.copy_out(at, line);
        let first = parse_line(line, MAX_MESSAGE)?;
        if first.total() != LINE || first.header().kind == Kind::Skip {
            return Ok(Next::Other);
        }
        fabric.host().charge(Work::PollHit, 1);
        reader.advance(LINE);
        self.taken();
        self.next();
        Ok(Next::Line(first))
    }

    /// The next message, whatever it is, if it is there in full.
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
        if let RxSource::Datagrams(datagrams) = &mut self.source {
            return Ok(datagrams.pop().map(|(buffer, range)| Incoming::Buffer(buffer, range)));
        }
        loop {
            let expected = self.expected();
            let taken = match &mut self.source {
                RxSource::Ring { region, reader } => take_from_ring(region, reader, expected, scratch)?,
                RxSource::Messages(messages) => {
                    let Some(held) = messages.pop_front() else { return Ok(None) };
                    let bytes: &[u8] = match &held {
                        Held::Buffer(buffer) => buffer,
                        Held::Copied(bytes) => bytes,
                    };
                    let total = check(bytes, expected)?;
                    if total != bytes.len() {
                        return Err(Violation::Transfer("a message of another length than it says"));
                    }
                    match held {
                        Held::Buffer(buffer) => Taken::Message(Incoming::Buffer(buffer, 0..total)),
                        Held::Copied(bytes) => {
                            scratch[..total].copy_from_slice(&bytes);
                            Taken::Message(Incoming::Scratch(total))
                        }
                    }
                }
                RxSource::Fetch(fetcher) => fetcher.take(expected)?,
                RxSource::Datagrams(_) => return Ok(None),
            };
            match taken {
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
            }
        }
    }
}

/// What a short look gave.
pub(crate) enum Next {
    /// Nothing is there.
    Nothing,
    /// A message of one line, in the first bytes of the scratch buffer.
    Line(FirstLine),
    /// Something that [`Rx::poll`] has to look at.
    Other,
}

/// What a look at a source gave.
pub(crate) enum Taken<F: Fabric> {
    /// Not there, or not in full.
    Nothing,
    /// The rest of the ring is not used: go on at its start.
    Skip {
        /// It was told of by itself.
        told_of: bool,
    },
    /// A message.
    Message(Incoming<F>),
}

/// Checks the first line of a private copy and its tags as far as they are there; answers the total length.
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

/// Takes the next message of a ring. Nothing is read ahead: a line that the peer has not written yet would be taken
/// away from it, and a stream of small calls then ran at two thirds of the speed. The writer asks ahead instead.
#[inline]
fn take_from_ring<F: Fabric>(
    region: &Region<F::Memory>,
    reader: &mut RingReader,
    expected: Tags,
    scratch: &mut Scratch,
) -> Result<Taken<F>, Violation> {
    let at = CONTROL_BYTES + reader.position();
    if region.load(at + TAG_OFFSET) != expected.first {
        return Ok(Taken::Nothing);
    }
    let (line, rest) = scratch.split_at_mut(LINE);
    region.copy_out(at, line);
    let Some(line) = line.first_chunk::<LINE>() else { return Ok(Taken::Nothing) };
    let first = parse_line(line, reader.to_end().min(MAX_MESSAGE))?;
    let Some(trailing) = first.trailing_tag_offset() else {
        if first.header().kind == Kind::Skip {
            reader.skip();
            return Ok(Taken::Skip { told_of: !first.header().flags.contains(Flags::MORE) });
        }
        reader.advance(LINE);
        return Ok(Taken::Message(Incoming::Scratch(LINE)));
    };
    if region.load(at + trailing) != expected.trailing {
        return Ok(Taken::Nothing);
    }
    // The line that was parsed stays the first one: a peer may have changed the ring's meanwhile.
    region.copy_out(at + LINE, &mut rest[..first.total() - LINE]);
    reader.advance(first.total());
    Ok(Taken::Message(Incoming::Scratch(first.total())))
}
