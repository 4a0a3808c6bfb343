//! `fetch`: the server leaves responses in a ring of its own memory, and the client READs until they are there
//! (RF-RPC section 3.1; plain, or one of the two ways of `path/hybrid.rs`).
//!
//! The client READs F bytes from where the next response will begin. If the tag there is the expected one
//! and the whole message came along, that was one READ; a longer message costs a second one for the rest. Else
//! it READs again: that is the retry that RF-RPC bounds by R.
//!
//! With levels of metadata (Pilaf and FaRM as HatRPC has them, figures 3g and 3h) it READs an entry of a table first, and
//! again until the entry is that of the next response; the entry tells where an entry of the next table is, and the last
//! one where the response is and how long.

use super::{MAX_MESSAGE, Violation};
use crate::mailbox::RingReader;
use crate::path::rx::Taken;
use crate::path::{Incoming, route, rx};
use dunlin_fabric::{
    Arena, Buffer, Fabric, Operation, PostError, QueuePairId, RegionKey, RemoteSlice, ThreadDomain,
    WorkRequest,
};
use dunlin_wire::{Kind, LINE, TAG_OFFSET, Tags, parse_line};

/// What one READ brings (RF-RPC's F) where nobody chooses: most key-value results with their header.
const FETCH_BYTES: usize = 256;

/// An entry of a table of metadata: a line that ends with the tag of its message.
pub(crate) fn entry(value: u64, tag: u64) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(&value.to_le_bytes());
    line[TAG_OFFSET..].copy_from_slice(&tag.to_le_bytes());
    line
}

/// Where the entry of a table is, from the start of the ring.
pub(crate) const fn entry_offset(ring_bytes: usize, level: usize, slot: usize) -> usize {
    ring_bytes * (1 + level) + slot * LINE
}

#[derive(Debug)]
enum State<F: Fabric> {
    /// Nothing is under way; the buffer waits for the next READ.
    Idle(Option<Buffer<F::Memory>>),
    /// A READ is under way.
    Reading,
    /// A READ has come back.
    Arrived(Buffer<F::Memory>),
}

/// The fetching end.
#[derive(Debug)]
pub(crate) struct Fetcher<F: Fabric> {
    pub(crate) reader: RingReader,
    key: RegionKey,
    queue_pair: QueuePairId,
    lane: u16,
    state: State<F>,
    /// How much a READ of the ring takes: F.
    fetch_bytes: usize,
    /// How much the next one takes, once a long message was seen to begin or metadata has said.
    wanted: Option<usize>,
    /// How much the last one took.
    asked: usize,
    /// Whether the fabric's READs show lines whole, and if not, whether what is waited for was seen: the READ after that shows it as it is.
    whole: bool,
    seen: bool,
    ring_bytes: usize,
    /// Levels of metadata, and how many of them have told what they know of the next message.
    metadata: u8,
    known: u8,
    /// The slot of the next entry.
    slot: usize,
    /// Messages taken so far, skips included.
    sequence: u64,
    /// READs so far, and those among them that found nothing.
    pub(crate) reads: u64,
    pub(crate) misses: u64,
}

impl<F: Fabric> Fetcher<F> {
    /// `arena` gives the buffer that READs go to; `whole` says whether READs show lines whole
    /// ([`Capabilities::whole_line_reads`](dunlin_fabric::Capabilities::whole_line_reads)).
    pub(crate) fn new(
        ring_bytes: usize,
        metadata: u8,
        key: RegionKey,
        queue_pair: QueuePairId,
        lane: u16,
        whole: bool,
        arena: &Arena<F::Memory>,
    ) -> Result<Self, dunlin_fabric::ArenaError> {
        let buffer = arena.reserve(MAX_MESSAGE)?;
        Ok(Fetcher {
            reader: RingReader::new(ring_bytes),
            ring_bytes,
            metadata,
            known: 0,
            slot: 0,
            sequence: 0,
            key,
            queue_pair,
            lane,
            state: State::Idle(Some(buffer)),
            fetch_bytes: FETCH_BYTES,
            wanted: None,
            asked: 0,
            whole,
            seen: false,
            reads: 0,
            misses: 0,
        })
    }

    /// Has the next READ, and those after it, bring so many bytes: at least a line, at most a message.
    #[inline]
    pub(crate) fn set_fetch_bytes(&mut self, bytes: usize) {
        self.fetch_bytes = bytes.clamp(LINE, MAX_MESSAGE);
    }

    /// Whether a READ is under way, or has come back and was not looked at.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle(_))
    }

    /// Posts the next READ unless one is under way or has come back.
    #[inline]
    pub(crate) fn read(&mut self, domain: &mut F::Domain) -> Result<bool, Violation> {
        let State::Idle(buffer) = &mut self.state else { return Ok(false) };
        let Some(into) = buffer.take() else { return Ok(false) };
        let (offset, length) = if self.known < self.metadata {
            (entry_offset(self.ring_bytes, self.known.into(), self.slot), LINE)
        } else {
            (self.reader.position(), self.wanted.unwrap_or(self.fetch_bytes).min(self.reader.to_end()))
        };
        self.asked = length;
        let from = RemoteSlice { key: self.key, offset: offset as u64, length: length as u32 };
        let request = WorkRequest {
            id: route::fetch(self.lane),
            operation: Operation::Read { from, into },
            signaled: true,
        };
        match domain.post(self.queue_pair, request) {
            Ok(()) => {
                self.state = State::Reading;
                self.reads += 1;
                Ok(true)
            }
            Err(PostError::QueuePairError) => Err(Violation::Broken),
            Err(_) => Err(Violation::Transfer("a READ could not be posted")),
        }
    }

    /// The READ's completion.
    #[inline]
    pub(crate) fn arrived(&mut self, buffer: Buffer<F::Memory>) {
        if matches!(self.state, State::Reading) {
            self.state = State::Arrived(buffer);
        }
    }

    /// Gives a message's buffer back for the next READ.
    #[inline]
    pub(crate) fn give_back(&mut self, buffer: Buffer<F::Memory>) {
        self.state = State::Idle(Some(buffer));
    }

    /// Whether a READ has come back that nobody has looked at.
    #[inline]
    pub(crate) fn has_arrived(&self) -> bool {
        matches!(self.state, State::Arrived(_))
    }

    /// Takes what an entry of the next message says.
    fn learn(&mut self, value: u64) -> Result<(), Violation> {
        self.known += 1;
        if self.known < self.metadata {
            self.slot = value as usize;
            if self.slot >= self.ring_bytes / LINE {
                return Err(Violation::Transfer("metadata that names no entry"));
            }
            return Ok(());
        }
        let (place, length) = (value as u32 as usize, (value >> 32) as usize);
        let longest = self.reader.to_end().min(MAX_MESSAGE);
        if place != self.reader.position() || !(LINE..=longest).contains(&length) {
            return Err(Violation::Transfer("metadata that names no message"));
        }
        self.wanted = Some(length);
        Ok(())
    }

    fn next_message(&mut self) {
        self.wanted = None;
        self.seen = false;
        self.known = 0;
        self.sequence += 1;
        self.slot = self.sequence as usize % (self.ring_bytes / LINE);
    }

    /// Looks at what a READ brought.
    pub(crate) fn take(&mut self, expected: Tags) -> Result<Taken<F>, Violation> {
        let buffer = match std::mem::replace(&mut self.state, State::Idle(None)) {
            State::Arrived(buffer) => buffer,
            other => {
                self.state = other;
                return Ok(Taken::Nothing);
            }
        };
        let Some(line) = buffer.first_chunk::<LINE>() else {
            return Err(Violation::Transfer("a READ shorter than a line"));
        };
        let tag = line.last_chunk::<8>().map(|t| u64::from_le_bytes(*t));
        debug_assert_eq!(TAG_OFFSET + 8, LINE);
        if tag != Some(expected.first) {
            self.misses += 1;
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Nothing);
        }
        // Its other bytes may be older than its tag, which was there before the next READ begins.
        if !self.whole && !std::mem::replace(&mut self.seen, true) {
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Nothing);
        }
        if self.known < self.metadata {
            self.seen = false;
            let value = line.first_chunk::<8>().map_or(0, |value| u64::from_le_bytes(*value));
            self.learn(value)?;
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Nothing);
        }
        let first = parse_line(line, self.reader.to_end().min(MAX_MESSAGE))?;
        if first.header().kind == Kind::Skip {
            self.reader.skip();
            self.next_message();
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Skip { told_of: false });
        }
        let total = first.total();
        if total > self.asked {
            // The rest in a second READ; the first line is fetched again with it, so the message is of one moment.
            self.wanted = Some(total);
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Nothing);
        }
        let checked = rx::check(&buffer[..total], expected);
        if checked == Err(Violation::Message(dunlin_wire::Reject::TrailingTag)) {
            self.misses += 1;
            self.state = State::Idle(Some(buffer));
            return Ok(Taken::Nothing);
        }
        checked?;
        self.reader.advance(total);
        self.next_message();
        Ok(Taken::Message(Incoming::Buffer(buffer, 0..total)))
    }
}
