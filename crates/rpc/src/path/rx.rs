//! The receiving end of a direction: finds the next message and moves it, whole and once, into private memory.

use super::{CONTROL_BYTES, MAX_MESSAGE, Violation};
use crate::mailbox::RingReader;
use crate::path::fetch::Fetcher;
use dunlin_fabric::{Buffer, Fabric, Host, Region, Work};
use dunlin_wire::{Kind, LINE, TAG_OFFSET, TagKey, Tags, parse_line};
use std::collections::VecDeque;

/// How many lines ahead of the one that is taken are asked for. Messages in one stream lie one behind the other,
/// so the way of a later line overlaps the work on this one.
const AHEAD: usize = 4;

/// Where messages come from.
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
    Fetch(Fetcher<F>),
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
    /// One line.
    Line([u8; LINE]),
    /// In the first so many bytes of the scratch buffer.
    Scratch(usize),
    /// In the first so many bytes of a buffer, which is to be given back.
    Buffer(Buffer<F::Memory>, usize),
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Rx<F: Fabric> {
    source: RxSource<F>,
    tags: TagKey,
    epoch: u32,
    sequence: u64,
    /// The tags of the next message.
    expected: Tags,
}

impl<F: Fabric> Rx<F> {
    pub(crate) fn new(source: RxSource<F>, tags: TagKey) -> Self {
        Rx { source, tags, epoch: 0, sequence: 0, expected: tags.tags(0, 0) }
    }

    /// Messages taken so far: the mark of a draining server.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    #[inline]
    fn next(&mut self) {
        self.sequence += 1;
        self.expected = self.tags.tags(self.epoch, self.sequence);
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

    /// The fetching end, if this is one.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        match &mut self.source {
            RxSource::Fetch(fetcher) => Some(fetcher),
            _ => None,
        }
    }

    /// The head to piggyback on the next message in the other direction.
    #[inline]
    pub(crate) fn tell_head(&mut self) -> u32 {
        match &mut self.source {
            RxSource::Ring { reader, .. } => reader.tell(),
            RxSource::Fetch(fetcher) => fetcher.reader.tell(),
            RxSource::Messages(_) => 0,
        }
    }

    /// Whether the head should be told without waiting for such a message.
    #[inline]
    pub(crate) fn head_overdue(&self) -> bool {
        match &self.source {
            RxSource::Ring { reader, .. } => reader.overdue(),
            RxSource::Fetch(fetcher) => fetcher.reader.overdue(),
            RxSource::Messages(_) => false,
        }
    }

    /// The next message, if it is there in full. `scratch` has [`MAX_MESSAGE`] bytes.
    #[inline]
    pub(crate) fn poll(&mut self, fabric: &F, scratch: &mut [u8]) -> Result<Option<Incoming<F>>, Violation> {
        loop {
            let found = match &mut self.source {
                RxSource::Ring { region, reader } => {
                    let at = CONTROL_BYTES + reader.position();
                    if region.load(at + TAG_OFFSET) != self.expected.first {
                        fabric.host().charge(Work::PollMiss, 1);
                        return Ok(None);
                    }
                    fabric.host().charge(Work::PollHit, 1);
                    region.prefetch(at + AHEAD * LINE);
                    match take_from_ring(region, reader, at, self.expected, scratch)? {
                        Some(found) => found,
                        None => return Ok(None),
                    }
                }
                RxSource::Messages(messages) => {
                    let Some(held) = messages.pop_front() else { return Ok(None) };
                    let bytes: &[u8] = match &held {
                        Held::Buffer(buffer) => buffer,
                        Held::Copied(bytes) => bytes,
                    };
                    let total = check(bytes, self.expected)?;
                    if total != bytes.len() {
                        return Err(Violation::Transfer("a message of another length than it says"));
                    }
                    match held {
                        Held::Buffer(buffer) => Some(Incoming::Buffer(buffer, total)),
                        Held::Copied(bytes) => {
                            scratch[..total].copy_from_slice(&bytes);
                            Some(Incoming::Scratch(total))
                        }
                    }
                }
                RxSource::Fetch(fetcher) => match fetcher.take(self.expected)? {
                    Some(found) => found,
                    None => return Ok(None),
                },
            };
            self.next();
            // `None` was a skip to the start of the ring.
            if let Some(incoming) = found {
                return Ok(Some(incoming));
            }
        }
    }
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

/// Takes the message at `at`, whose first tag was seen. Outer `None`: not complete yet; inner: it was a skip.
#[inline]
fn take_from_ring<F: Fabric>(
    region: &Region<F::Memory>,
    reader: &mut RingReader,
    at: usize,
    expected: Tags,
    scratch: &mut [u8],
) -> Result<Option<Option<Incoming<F>>>, Violation> {
    let line = region.line_out(at);
    let first = parse_line(&line, reader.to_end().min(MAX_MESSAGE))?;
    let total = first.total();
    let Some(trailing) = first.trailing_tag_offset() else {
        if first.header().kind == Kind::Skip {
            reader.skip();
            return Ok(Some(None));
        }
        reader.advance(LINE);
        return Ok(Some(Some(Incoming::Line(line))));
    };
    if region.load(at + trailing) != expected.trailing {
        return Ok(None);
    }
    // The line that was parsed stays the first one: a peer may have changed the ring's meanwhile.
    let (head, rest) = scratch[..total].split_at_mut(LINE);
    head.copy_from_slice(&line);
    region.copy_out(at + LINE, rest);
    reader.advance(total);
    Ok(Some(Some(Incoming::Scratch(total))))
}
