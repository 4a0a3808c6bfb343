//! Buffers of large payloads, whose lines the peer's cache keeps after a READ.
//!
//! A store to such a line waits until the peer's core gives it up. Three means avoid the wait. A buffer that is filled
//! before the peer is told of it is taken back: zeroing takes ownership of lines without a wait for their content, and
//! the next buffer is taken back in advance, while the thread would only wait for the peer. A payload that leaves in
//! pieces gets one of several buffers in rotation (`buffer_rotation.rs`), and stores past the caches where plain ones
//! are slow (`store_policy.rs`).

use crate::buffer_rotation::{BufferRotation, Residency, Rotation, Traffic};
use crate::memory::ShmMemory;
use crate::store_policy::{FillReports, Started, StorePolicyTuner};
use dunlin_fabric::{
    Buffer, BufferSource, Host, Nanos, PayloadBuffers, PayloadFilling, Pressure, RealHost, copy, copy_plainly,
};
use std::sync::{Arc, Weak};

/// Bytes from which a buffer that the peer has READ is taken back before it is filled.
const TAKE_BACK_FROM: usize = 4096;
/// Bytes up to which it is taken back: the peer's cache has already dropped most of a longer buffer.
const TAKE_BACK_UP_TO: usize = 1 << 20;
/// The longest buffer that is prepared in advance: two of them fit into a core's cache.
const SPARE_UP_TO: usize = 256 << 10;
/// The smallest arena where several buffers are used in rotation, in bytes: more than a core's caches hold.
/// Only its used pages take memory.
const ARENA_FOR_ROTATION: u64 = 4 << 20;

/// Takes memory that the peer has READ back from the peer's cache, before an application fills it: sets it to
/// zero. If the peer is another core, each store to such a line waits until that core gives the line up, and
/// the number of waiting stores is bounded by the store queue. Zeroing a block takes ownership of its lines
/// without a wait for their content.
fn take_back(bytes: &mut [u8]) {
    if (TAKE_BACK_FROM..=TAKE_BACK_UP_TO).contains(&bytes.len()) {
        bytes.fill(0);
    }
}

/// State that the payload buffers of a process share.
#[derive(Debug, Default)]
pub(crate) struct ProcessFills {
    traffic: Arc<Traffic>,
    reports: Arc<FillReports>,
}

/// Payload buffers of one direction of a connection on shared memory. One thread at a time uses it.
#[derive(Debug)]
pub struct ShmPayloads {
    process: Arc<ProcessFills>,
    /// A free buffer whose lines the local cache owns already.
    spare: Option<Buffer<ShmMemory>>,
    /// The buffers of payloads that leave in pieces, from the first one on.
    rotating: Option<Box<Rotating>>,
}

/// Buffers that are filled in rotation.
#[derive(Debug)]
struct Rotating {
    rotation: BufferRotation,
    stores: StorePolicyTuner,
    /// Free buffers, the longest unused first, with the byte count at which each was handed out.
    kept: Vec<(Buffer<ShmMemory>, u64)>,
    counts: Vec<u64>,
    /// Buffers in use.
    out: Vec<(Place, u64)>,
}

/// The place of a buffer, the same for any length. A weak reference keeps the identity of the memory, not its bytes.
#[derive(Debug)]
struct Place(Weak<ShmMemory>, u64);

impl Place {
    fn of(buffer: &Buffer<ShmMemory>) -> Self {
        Place(Arc::downgrade(buffer.memory()), buffer.offset())
    }

    fn is_of(&self, buffer: &Buffer<ShmMemory>) -> bool {
        self.1 == buffer.offset() && std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(buffer.memory()))
    }
}

/// The state of a payload while it is filled.
#[derive(Debug)]
pub struct ShmFilling {
    started: Started,
    /// When the buffer was reserved, until the first bytes are filled; `None` for a new buffer, which shows nothing.
    began: Option<Nanos>,
}

impl PayloadFilling for ShmFilling {
    fn began(&mut self, bytes: usize) {
        if let Some(began) = self.began.take() {
            self.started.took(bytes, RealHost.now().saturating_sub(began));
        }
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        if self.started.streams { copy::stream(to, from) } else { copy_plainly(to, from) }
    }
}

impl ShmPayloads {
    pub(crate) fn new(process: Arc<ProcessFills>) -> Self {
        ShmPayloads { process, spare: None, rotating: None }
    }

    /// Reserves a buffer from mapped memory; gives the spare one up for it.
    fn mapped(
        spare: &mut Option<Buffer<ShmMemory>>,
        length: usize,
        from: &mut impl BufferSource<ShmMemory>,
    ) -> Option<Buffer<ShmMemory>> {
        from.mapped(length).or_else(|| spare.take().and_then(|_| from.mapped(length)))
    }
}

impl PayloadBuffers<ShmMemory> for ShmPayloads {
    type Filling = ShmFilling;

    fn reserve(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<ShmMemory>,
    ) -> Option<Buffer<ShmMemory>> {
        if let Some(mut spare) = self.spare.take()
            && spare.set_length(length)
        {
            return Some(spare);
        }
        let reserved = from.reserve(length, 0);
        let mut buffer =
            reserved.or_else(|| self.release(Pressure::Limit).then(|| from.reserve(length, 0))?)?;
        take_back(&mut buffer);
        Some(buffer)
    }

    fn reserve_in_pieces(
        &mut self,
        length: usize,
        from: &mut impl BufferSource<ShmMemory>,
    ) -> Option<(Buffer<ShmMemory>, ShmFilling)> {
        let ShmPayloads { process, spare, rotating } = self;
        let rotating = rotating.get_or_insert_with(|| Rotating::new(process));
        let (buffer, past) = rotating.reserve(length, spare, from)?;
        let began = (past != Residency::New).then(|| RealHost.now());
        Some((buffer, ShmFilling { started: rotating.stores.begin(past), began }))
    }

    fn filled(&mut self, filling: ShmFilling) {
        if let Some(rotating) = &mut self.rotating {
            rotating.stores.end(filling.started);
        }
    }

    fn sent(&mut self, length: usize, from: &mut impl BufferSource<ShmMemory>) {
        if (TAKE_BACK_FROM..=SPARE_UP_TO).contains(&length)
            && self.spare.is_none()
            && let Some(mut buffer) = from.mapped(length)
        {
            take_back(&mut buffer);
            self.spare = Some(buffer);
        }
    }

    fn release(&mut self, pressure: Pressure) -> bool {
        let spare = self.spare.take().is_some();
        match (pressure, &mut self.rotating) {
            (Pressure::Limit, Some(rotating)) => rotating.clear() || spare,
            _ => spare,
        }
    }
}

impl Rotating {
    fn new(process: &ProcessFills) -> Box<Self> {
        Box::new(Rotating {
            rotation: BufferRotation::new(Arc::clone(&process.traffic)),
            stores: StorePolicyTuner::new(Arc::clone(&process.reports)),
            kept: Vec::new(),
            counts: Vec::new(),
            out: Vec::new(),
        })
    }

    /// Releases all kept buffers; returns whether there were any.
    fn clear(&mut self) -> bool {
        self.rotation.give_up();
        let any = !self.kept.is_empty();
        self.kept.clear();
        any
    }

    /// Reserves one of the buffers, and returns its history. If buffers that the peer READ recently are slow to fill, it
    /// adds a buffer as long as mapped memory has room.
    fn reserve(
        &mut self,
        length: usize,
        spare: &mut Option<Buffer<ShmMemory>>,
        from: &mut impl BufferSource<ShmMemory>,
    ) -> Option<(Buffer<ShmMemory>, Residency)> {
        let now = self.rotation.fill(length);
        let mut new = None;
        // Collect the buffers that came back.
        while !self.out.is_empty()
            && let Some(buffer) = from.mapped(length)
        {
            let Some(known) = self.out.iter().position(|(place, _)| place.is_of(&buffer)) else {
                new = Some(buffer);
                break;
            };
            let (_, count) = self.out.swap_remove(known);
            let at = self.kept.partition_point(|kept| kept.1 <= count);
            self.kept.insert(at, (buffer, count));
        }
        let fits = |kept: &&(Buffer<ShmMemory>, u64)| kept.0.capacity() >= length;
        self.counts.clear();
        self.counts.extend(self.kept.iter().filter(fits).map(|kept| kept.1));
        let more = || {
            new = new.take().or_else(|| from.mapped(length));
            new.as_ref().map(Buffer::capacity)
        };
        let slow_lately = self.stores.is_slow_lately();
        let (buffer, past) = match self.rotation.next(now, &self.counts, slow_lately, more) {
            Rotation::Of(number, past) => {
                let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
                let place = fitting.map(|(place, _)| place).nth(number)?;
                let mut buffer = self.kept.remove(place).0;
                buffer.set_length(length);
                (buffer, past)
            }
            Rotation::More => {
                let new = match new.or_else(|| ShmPayloads::mapped(spare, length, from)) {
                    Some(new) => new,
                    None => self.map(length, from)?,
                };
                self.out.retain(|(place, _)| place.0.strong_count() > 0 && !place.is_of(&new));
                (new, Residency::New)
            }
        };
        self.out.push((Place::of(&buffer), now));
        Some((buffer, past))
    }

    /// Maps memory for a buffer; releases the kept buffers if there is no other memory.
    fn map(&mut self, length: usize, from: &mut impl BufferSource<ShmMemory>) -> Option<Buffer<ShmMemory>> {
        from.reserve(length, ARENA_FOR_ROTATION).or_else(|| {
            self.clear();
            from.reserve(length, ARENA_FOR_ROTATION)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer_rotation::EVICTED_AFTER;
    use dunlin_fabric::{Access, Arena, Memory};

    const MEBI: usize = 1 << 20;

    /// Memory of at most `limit` bytes, mapped by whole arenas.
    struct Source {
        arenas: Vec<Arena<ShmMemory>>,
        limit: usize,
    }

    impl Source {
        fn new(limit: usize) -> Self {
            Source { arenas: Vec::new(), limit }
        }
    }

    impl BufferSource<ShmMemory> for Source {
        fn mapped(&mut self, length: usize) -> Option<Buffer<ShmMemory>> {
            self.arenas.iter().find_map(|arena| arena.reserve(length).ok())
        }

        fn reserve(&mut self, length: usize, smallest: u64) -> Option<Buffer<ShmMemory>> {
            if let Some(buffer) = self.mapped(length) {
                return Some(buffer);
            }
            let mapped: usize = self.arenas.iter().map(|arena| arena.memory().length()).sum();
            let room = self.limit - mapped;
            let wanted = length.next_power_of_two().max(MEBI).max((smallest as usize).min(room));
            let memory = (wanted <= room).then(|| ShmMemory::new(wanted as u64, Access::LOCAL).unwrap())?;
            self.arenas.push(Arena::new(memory).unwrap());
            self.mapped(length)
        }
    }

    fn payloads() -> ShmPayloads {
        ShmPayloads::new(Arc::default())
    }

    /// Fills a payload in pieces, and returns the buffer with its history. Plain stores are slow or fast.
    fn fill(
        payloads: &mut ShmPayloads,
        source: &mut Source,
        length: usize,
        slow: bool,
    ) -> Option<(Buffer<ShmMemory>, Residency)> {
        let (buffer, mut filling) = payloads.reserve_in_pieces(length, source)?;
        let past = filling.started.past;
        filling.started.took(length, if slow && !filling.started.streams { Nanos::MAX } else { 0 });
        payloads.filled(filling);
        Some((buffer, past))
    }

    #[test]
    fn a_spare_serves_the_next_of_its_length_and_is_in_nobodys_way() {
        let (mut payloads, mut source) = (payloads(), Source::new(MEBI));
        payloads.sent(65_536, &mut source);
        assert!(payloads.spare.is_none(), "memory is not mapped for it");
        let first = payloads.reserve(65_536, &mut source).unwrap();
        payloads.sent(first.len(), &mut source);
        let ready = payloads.spare.as_ref().unwrap().offset();
        assert_ne!(ready, first.offset());
        assert_eq!(payloads.reserve(60_000, &mut source).unwrap().offset(), ready);
        assert!(payloads.spare.is_none());
        for unfit in [TAKE_BACK_FROM - 1, SPARE_UP_TO + 1] {
            payloads.sent(unfit, &mut source);
            assert!(payloads.spare.is_none());
        }
        drop(first);
        payloads.sent(65_536, &mut source);
        assert!(payloads.spare.is_some());
        assert_eq!(payloads.reserve(MEBI, &mut source).unwrap().len(), MEBI);
        assert!(payloads.spare.is_none());
    }

    #[test]
    fn buffers_within_the_bounds_are_taken_back() {
        let (mut payloads, mut source) = (payloads(), Source::new(4 * MEBI));
        for (length, taken) in [
            (TAKE_BACK_FROM - 1, false),
            (TAKE_BACK_FROM, true),
            (TAKE_BACK_UP_TO, true),
            (TAKE_BACK_UP_TO + 1, false),
        ] {
            source.reserve(length, 0).unwrap().fill(7);
            let buffer = payloads.reserve(length, &mut source).unwrap();
            assert!(buffer.iter().all(|byte| (*byte == 0) == taken), "{length}");
        }
    }

    #[test]
    fn buffers_are_filled_in_rotation() {
        const LENGTH: usize = 128 << 10;
        const ENOUGH: usize = EVICTED_AFTER as usize / LENGTH;
        let (mut payloads, mut source) = (payloads(), Source::new(8 * MEBI));
        let mut places = std::collections::BTreeSet::new();
        let mut next = |payloads: &mut ShmPayloads, source: &mut Source, length, slow| {
            let (buffer, past) = fill(payloads, source, length, slow).unwrap();
            assert_eq!(buffer.len(), length);
            places.insert(buffer.offset());
            (past, places.len())
        };
        assert_eq!(next(&mut payloads, &mut source, LENGTH, false), (Residency::New, 1));
        // One buffer suffices where recently READ buffers are not slow.
        let one = (0..100).all(|_| next(&mut payloads, &mut source, LENGTH, false) == (Residency::Lately, 1));
        assert!(one);
        let pasts: Vec<_> = (0..300).map(|_| next(&mut payloads, &mut source, LENGTH, true)).collect();
        assert!(pasts[290..].iter().all(|past| *past == (Residency::LongAgo, ENOUGH)), "{pasts:?}");
        // The buffers have room for shorter payloads and none for longer ones.
        assert_eq!(next(&mut payloads, &mut source, LENGTH - 1, true), (Residency::LongAgo, ENOUGH));
        assert_eq!(next(&mut payloads, &mut source, 2 * LENGTH, true).0, Residency::New);
        let rotating = payloads.rotating.as_ref().unwrap();
        assert_eq!((rotating.kept.len(), rotating.out.len()), (ENOUGH - 1, 2));
        // The kept buffers are given back at the limit, and not before.
        assert!(!payloads.release(Pressure::Mapping));
        assert!(payloads.release(Pressure::Limit) && !payloads.release(Pressure::Limit));
        assert!(payloads.rotating.as_ref().unwrap().kept.is_empty());
        assert!(source.arenas.iter().all(Arena::is_unused));
    }

    #[test]
    fn buffers_filled_while_others_are_read_are_new() {
        let (mut payloads, mut source) = (payloads(), Source::new(4 * MEBI));
        let held: Vec<_> = (0..4).map(|_| fill(&mut payloads, &mut source, MEBI, false).unwrap()).collect();
        assert!(held.iter().all(|(_, past)| *past == Residency::New));
        assert!(fill(&mut payloads, &mut source, MEBI, true).is_none());
        drop(held);
        assert_eq!(fill(&mut payloads, &mut source, MEBI, true).unwrap().1, Residency::LongAgo);
        assert!(payloads.rotating.as_ref().unwrap().out.len() <= 4);
        // Kept buffers also make room for other buffers in rotation.
        assert_eq!(fill(&mut payloads, &mut source, 4 * MEBI, true).unwrap().1, Residency::New);
    }

    /// Memory of a released arena may come again at the same address.
    #[test]
    fn places_of_released_memory_are_forgotten() {
        const LENGTH: usize = 128 << 10;
        let mut payloads = payloads();
        for _ in 0..10 {
            let mut source = Source::new(4 * MEBI);
            assert_eq!(fill(&mut payloads, &mut source, LENGTH, false).unwrap().1, Residency::New);
            assert_eq!(payloads.rotating.as_ref().unwrap().out.len(), 1);
            assert_eq!(fill(&mut payloads, &mut source, LENGTH, false).unwrap().1, Residency::Lately);
            payloads.release(Pressure::Limit);
        }
    }
}
