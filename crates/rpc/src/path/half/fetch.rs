//! `fetch`: the server stores responses in a ring in its own memory, and the client READs that ring until
//! they are there (RF-RPC section 3.1). `path/half/hybrid.rs` combines it with written-back responses.
//!
//! The client READs F bytes from the place of the next response. If the expected tag is there and the whole
//! message came along, the response took one READ; a longer message takes a second READ for the rest.
//! Otherwise the client READs again: these are the retries that RF-RPC bounds by R.
//!
//! With levels of metadata (Pilaf and FaRM in HatRPC, figures 3g and 3h) the client first READs an entry of a
//! table until it is the entry of the next response. An entry names the entry in the next table; the last one
//! names the response's place and length.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. One READ of 256 bytes for
//! each result, less at the end of the ring, which is reached four times; the server posts nothing. With metadata
//! the client READs lines of 64 bytes first, then the result with its exact length. A result of 8 KiB is fetched
//! after its announcement.
//!
//! ```text
//! Remote-fetch, client: posted_write 1040, posted_read 1024, posted_signaled 1040, posted_inline 1040, doorbells
//!   2064, bytes_posted 326272, completed_write 16, completed_read 1024
//! Remote-fetch, server: nothing
//! Remote-fetch, 8 KiB, client: posted_write 2064, posted_read 2048, posted_signaled 2080, posted_inline 2064,
//!   doorbells 4112, bytes_posted 8780416, completed_write 32, completed_read 2048
//! Remote-fetch, 8 KiB, server: posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608,
//!   completed_read 1024
//! Pilaf, client: posted_write 1040, posted_read 3072, posted_signaled 3088, posted_inline 1040, doorbells 4112,
//!   bytes_posted 262272, completed_write 16, completed_read 3072
//! Pilaf, server: nothing
//! Pilaf, 8 KiB, client: posted_write 2064, posted_read 4096, posted_signaled 4128, posted_inline 2064, doorbells
//!   6160, bytes_posted 8716416, completed_write 32, completed_read 4096
//! Pilaf, 8 KiB, server: posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608,
//!   completed_read 1024
//! FaRM, client: posted_write 1040, posted_read 2048, posted_signaled 2064, posted_inline 1040, doorbells 3088,
//!   bytes_posted 196736, completed_write 16, completed_read 2048
//! FaRM, server: nothing
//! FaRM, 8 KiB, client: posted_write 2064, posted_read 3072, posted_signaled 3104, posted_inline 2064, doorbells
//!   5136, bytes_posted 8650880, completed_write 32, completed_read 3072
//! FaRM, 8 KiB, server: posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608,
//!   completed_read 1024
//! ```

use super::protocol::Protocol;
use super::{
    Ends, Facts, Half, Made, MakeError, Mechanism, Message, Notice, Place, Receiver, RequestHalf,
    ResponseHalf, RxHalf, TxHalf,
};
use crate::mailbox::RingReader;
use crate::path::rx::{Scratch, Taken};
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, Incoming, MAX_MESSAGE, Violation, route, rx};
use dunlin_fabric::{
    Access, Arena, Buffer, Fabric, Operation, PostError, QueuePairId, Region, RegionKey, RemoteSlice,
    ThreadDomain, WorkRequest,
};
use dunlin_wire::{Kind, LINE, TAG_OFFSET, Tags, parse_line};

/// Results without metadata.
pub(super) struct Fetch;

impl Half for Fetch {
    const NAME: &'static str = "fetch";
    const RESPONSE: u8 = 4;
    const FACTS: Facts = Facts::reliable(Place::Published { metadata: 0 }, Notice::Polled);
}

/// Results behind one level of metadata.
pub(super) struct FetchIndexed;

impl Half for FetchIndexed {
    const NAME: &'static str = "fetch_indexed";
    const RESPONSE: u8 = 7;
    const FACTS: Facts = Facts::reliable(Place::Published { metadata: 1 }, Notice::Polled);
}

/// Results behind two levels of metadata.
pub(super) struct FetchIndexedTwice;

impl Half for FetchIndexedTwice {
    const NAME: &'static str = "fetch_indexed_twice";
    const RESPONSE: u8 = 8;
    const FACTS: Facts = Facts::reliable(Place::Published { metadata: 2 }, Notice::Polled);
}

/// The mechanism.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[
        Protocol::row(
            "Remote-fetch",
            (RequestHalf::Write, ResponseHalf::Fetch),
            "RF-RPC: the client READs its result",
        ),
        Protocol::row(
            "Pilaf",
            (RequestHalf::Write, ResponseHalf::FetchIndexedTwice),
            "HatRPC's emulation: two READs of metadata, one of the result",
        ),
        Protocol::row(
            "FaRM",
            (RequestHalf::Write, ResponseHalf::FetchIndexed),
            "HatRPC's emulation: one READ of metadata, one of the result",
        ),
    ];

    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        let half = publisher(metadata(facts), ends)?;
        Ok(ends.on_connection(half))
    }

    fn receiver<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
        fetcher(metadata(facts), ends)
    }
}

const fn metadata(facts: Facts) -> u8 {
    if let Place::Published { metadata } = facts.place { metadata } else { 0 }
}

/// Makes the end that publishes.
pub(super) fn publisher<F: Fabric>(metadata: u8, ends: &mut Ends<'_, F>) -> Result<TxHalf<F>, MakeError> {
    let region = ends.published.take().ok_or(MakeError::Missing("there is no memory to fetch from"))?;
    Ok(TxHalf::Publish(Publisher { region, metadata, ring_bytes: ends.ring_bytes }))
}

/// Makes the end that fetches.
pub(super) fn fetcher<F: Fabric>(metadata: u8, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
    let fabric = ends.cx.fabric;
    let arena = Arena::new(fabric.register(MAX_MESSAGE as u64, Access::LOCAL)?)?;
    let ring_bytes = ends.ring_bytes as usize;
    let whole = fabric.capabilities().cache_line_atomic_reads;
    let fetcher = Fetcher::new(ring_bytes, metadata, ends.second, ends.queue_pair, ends.lane, whole, &arena)?;
    Ok(RxHalf::Fetch(Box::new(fetcher)))
}

/// The sending end: a store to local memory that the peer READs.
#[derive(Debug)]
pub(crate) struct Publisher<F: Fabric> {
    /// That memory: the ring, followed by one table per level of metadata.
    region: Region<F::Memory>,
    /// Levels of metadata.
    metadata: u8,
    /// Bytes of the ring, and of each table: a line for each message that the ring can hold.
    ring_bytes: u32,
}

impl<F: Fabric> super::Sender<F> for Publisher<F> {
    #[inline(never)]
    fn put(
        &mut self,
        end: &mut Sending<F>,
        _: &mut Cx<'_, F>,
        Message { parts, total, at, .. }: Message<'_>,
    ) -> Result<(), TxError> {
        let ring_bytes = self.ring_bytes as usize;
        // The first line is written last: a READ that finds its tag finds all bytes that follow, in whatever order it
        // reads them.
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        let (line, body) = first.split_at(first.len().min(LINE));
        let mut offset = at + line.len();
        for part in std::iter::once(&body).chain(rest) {
            self.region.copy_in(offset, part);
            offset += part.len();
        }
        self.region.copy_in(at, line);
        // The tables are written from last to first, so that a READ entry always names an existing one.
        let slot = end.sequence as usize % (ring_bytes / LINE);
        for level in (0..usize::from(self.metadata)).rev() {
            let is_last = level + 1 == usize::from(self.metadata);
            let value = if is_last { at as u64 | (total as u64) << 32 } else { slot as u64 };
            self.region.copy_in(entry_offset(ring_bytes, level, slot), &entry(value, end.next_tag));
        }
        Ok(())
    }

    fn published_bytes(&self) -> usize {
        self.region.length()
    }
}

/// Bytes of a READ (RF-RPC's F) where no tuning chooses them: enough for most key-value results with their
/// header.
const FETCH_BYTES: usize = 256;

/// Builds a metadata entry: a line that ends with the tag of its message.
fn entry(value: u64, tag: u64) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(&value.to_le_bytes());
    line[TAG_OFFSET..].copy_from_slice(&tag.to_le_bytes());
    line
}

/// Returns the offset of a metadata entry from the start of the ring.
const fn entry_offset(ring_bytes: usize, level: usize, slot: usize) -> usize {
    ring_bytes * (1 + level) + slot * LINE
}

#[derive(Debug)]
enum State<F: Fabric> {
    /// No READ is in flight; the buffer waits for the next one. It is missing after a READ that found no room.
    Idle(Option<Buffer<F::Memory>>),
    /// A READ is in flight.
    Reading,
    /// A READ has completed.
    Arrived(Buffer<F::Memory>),
}

/// The fetching end of a direction.
#[derive(Debug)]
pub(crate) struct Fetcher<F: Fabric> {
    reader: RingReader,
    key: RegionKey,
    queue_pair: QueuePairId,
    lane: u16,
    state: State<F>,
    /// Where the buffer comes from. A READ that cannot be posted returns it to there.
    arena: Arena<F::Memory>,
    /// Bytes of a READ of the ring: F.
    fetch_bytes: usize,
    /// Bytes of the next READ, if known from the first line of a long message or from metadata.
    wanted: Option<usize>,
    /// Bytes of the last READ.
    asked: usize,
    /// Whether the fabric's READs return whole lines. If not, `seen` says whether the tag was seen: the READ
    /// after that returns the whole line.
    whole: bool,
    seen: bool,
    ring_bytes: usize,
    /// Levels of metadata, and how many of them were read for the next message.
    metadata: u8,
    known: u8,
    /// The slot of the next entry.
    slot: usize,
    /// Messages taken so far, including skips.
    sequence: u64,
    /// READs so far, and how many of them found nothing.
    pub(crate) reads: u64,
    pub(crate) misses: u64,
}

impl<F: Fabric> Fetcher<F> {
    /// Creates the fetching end. `arena` supplies the READs' buffer; `whole` says whether READs return whole
    /// lines ([`Capabilities::cache_line_atomic_reads`](dunlin_fabric::Capabilities::cache_line_atomic_reads)).
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
            arena: arena.clone(),
            fetch_bytes: FETCH_BYTES,
            wanted: None,
            asked: 0,
            whole,
            seen: false,
            reads: 0,
            misses: 0,
        })
    }

    /// Sets the bytes of the following READs: at least a line, at most the longest message.
    #[inline]
    pub(crate) fn set_fetch_bytes(&mut self, bytes: usize) {
        self.fetch_bytes = bytes.clamp(LINE, MAX_MESSAGE);
    }

    /// Returns whether a READ is in flight or completed but not processed.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle(_))
    }

    /// Posts the next READ unless one is in flight or completed but not processed, or the send queue is full. Returns
    /// whether it posted. A READ that found no room is left for the next time.
    #[inline]
    pub(crate) fn read(&mut self, domain: &mut F::Domain) -> Result<bool, Violation> {
        let State::Idle(buffer) = &mut self.state else { return Ok(false) };
        let Some(into) = buffer.take().or_else(|| self.arena.reserve(MAX_MESSAGE).ok()) else {
            return Ok(false);
        };
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
            // Its completions make room.
            Err(PostError::QueueFull) => Ok(false),
            Err(PostError::QueuePairError) => Err(Violation::Broken),
            Err(_) => Err(Violation::Transfer("a READ could not be posted")),
        }
    }

    /// Takes the buffer of a completed READ.
    #[inline]
    pub(crate) fn arrived(&mut self, buffer: Buffer<F::Memory>) {
        if matches!(self.state, State::Reading) {
            self.state = State::Arrived(buffer);
        }
    }

    /// Returns a message's buffer for the next READ.
    #[inline]
    pub(crate) fn give_back(&mut self, buffer: Buffer<F::Memory>) {
        self.state = State::Idle(Some(buffer));
    }

    /// Processes the value of a metadata entry of the next message.
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
}

impl<F: Fabric> Receiver<F> for Box<Fetcher<F>> {
    /// Returns whether a READ has completed and is not processed.
    #[inline]
    fn is_waiting(&self, _: u64) -> bool {
        matches!(self.state, State::Arrived(_))
    }

    /// Processes the bytes of a completed READ.
    fn take(&mut self, expected: Tags, _: &mut Scratch) -> Result<Taken<F>, Violation> {
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
        // The line's other bytes may be older than its tag, which was written before the next READ begins.
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
            // A second READ takes the whole message, including the first line, so that all bytes come from
            // one READ.
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

    #[inline]
    fn fetcher(&self) -> Option<&Fetcher<F>> {
        Some(self)
    }

    #[inline]
    fn fetcher_mut(&mut self) -> Option<&mut Fetcher<F>> {
        Some(self)
    }

    #[inline]
    fn reader(&self) -> Option<&RingReader> {
        Some(&self.reader)
    }

    #[inline]
    fn reader_mut(&mut self) -> Option<&mut RingReader> {
        Some(&mut self.reader)
    }
}
