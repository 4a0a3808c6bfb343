//! Read rendezvous: a large payload stays in the sender's registered memory. A descriptor of 24 bytes travels
//! in its place, and the receiver READs the payload into private memory. This takes one copy, and is safe
//! against a hostile peer, which cannot write to the receiver's memory and cannot change the copy.
//!
//! [`Pool`] supplies the buffers of both ends: granted memory to send from, and local memory to READ into. It
//! grows by whole arenas up to a limit and keeps them, so that a steady load maps no memory. Only at the
//! limit it releases arenas without buffers in use, with their grants, to map one of the length that is
//! needed. Mailboxes do not grow for large payloads.

use crate::tune::buffer_rotation::{BufferRotation, Residency, Rotation};
use dunlin_fabric::WithSources;
use dunlin_fabric::{Access, Arena, Buffer, Fabric, GrantError, Link, RegionKey};
use dunlin_wire::Descriptor;

/// The smallest arena that a pool maps, in bytes.
const FIRST_ARENA: u64 = 1 << 20;

/// Bytes from which a buffer that the peer has READ is taken back before it is filled.
const TAKE_BACK_FROM: usize = 4096;
/// Bytes up to which it is taken back: the peer's cache has already dropped most of a longer buffer.
const TAKE_BACK_UP_TO: usize = 1 << 20;
/// The longest buffer that is prepared in advance: two of them fit into a core's cache.
const SPARE_UP_TO: usize = 256 << 10;
/// The smallest arena where several buffers are used in rotation, in bytes: more than a core's caches hold.
/// Only its used pages take memory.
const ARENA_FOR_TURNS: u64 = 4 << 20;

/// Takes memory that the peer has READ back from the peer's cache, before an application fills it: sets it to
/// zero. If the peer is another core, each store to such a line waits until that core gives the line up, and
/// the number of waiting stores is bounded by the store queue. Zeroing a block takes ownership of its lines
/// without a wait for their content.
fn take_back(bytes: &mut [u8]) {
    if (TAKE_BACK_FROM..=TAKE_BACK_UP_TO).contains(&bytes.len()) {
        bytes.fill(0);
    }
}

#[derive(Debug)]
struct Part<F: Fabric> {
    arena: Arena<F::Memory>,
    key: Option<RegionKey>,
    length: u64,
}

/// Buffers for large payloads.
#[derive(Debug)]
pub(crate) struct Pool<F: Fabric> {
    parts: Vec<Part<F>>,
    /// The peer to which the memory is granted; `None` for memory that is only READ into.
    link: Option<F::Link>,
    mapped: u64,
    limit: u64,
    /// Revoked grants, reported to the peer with the next new grant: their memory is gone.
    ended: Vec<RegionKey>,
    /// The peer did not accept a grant in time, so that no other grant is tried.
    deaf: bool,
    /// A free buffer whose lines the local cache owns already.
    spare: Option<Buffer<F::Memory>>,
    /// Buffers that are filled in rotation, if the pool uses any.
    in_turn: Option<Box<InTurn<F>>>,
    /// The smallest arena to map, in bytes.
    smallest: u64,
}

/// Buffers that are filled in rotation.
#[derive(Debug)]
struct InTurn<F: Fabric> {
    turns: BufferRotation,
    /// Free buffers, the longest unused first, with the byte count at which each was handed out.
    kept: Vec<(Buffer<F::Memory>, u64)>,
    counts: Vec<u64>,
    /// Buffers in use, by the place that the peer knows.
    out: Vec<(Place, u64)>,
}

/// Grant key and offset of a buffer: the same for any length.
type Place = (u64, u64);

impl<F: Fabric> InTurn<F> {
    fn new(fabric: &F) -> Box<Self> {
        let turns = BufferRotation::new(fabric.shared());
        Box::new(InTurn { turns, kept: Vec::new(), counts: Vec::new(), out: Vec::new() })
    }

    /// Releases all kept buffers; returns whether there were any.
    fn clear(&mut self) -> bool {
        self.turns.give_up();
        let any = !self.kept.is_empty();
        self.kept.clear();
        any
    }
}

/// Error: no memory for a large payload now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<F: Fabric> Pool<F> {
    /// Creates a pool that maps at most `limit` bytes. With a link, the peer there can READ its buffers.
    pub(crate) fn new(link: Option<F::Link>, limit: u64) -> Self {
        Pool {
            parts: Vec::new(),
            link,
            mapped: 0,
            limit,
            ended: Vec::new(),
            deaf: false,
            spare: None,
            in_turn: None,
            smallest: FIRST_ARENA,
        }
    }

    /// Reserves a buffer that an application will fill: stores to its lines do not wait for the peer. Its
    /// content is undefined. Otherwise like [`reserve`](Pool::reserve).
    pub(crate) fn reserve_to_fill(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<Buffer<F::Memory>, Exhausted> {
        if let Some(mut spare) = self.spare.take()
            && spare.set_length(length)
        {
            return Ok(spare);
        }
        let mut buffer = self.reserve(fabric, length)?;
        take_back(&mut buffer);
        Ok(buffer)
    }

    /// Reserves one of the buffers that are filled in rotation, and returns its history. If buffers that the
    /// peer READ recently are slow to fill (`slow_lately`), it adds a buffer as long as mapped memory has
    /// room. Otherwise like [`reserve`](Pool::reserve).
    pub(crate) fn reserve_in_turn(
        &mut self,
        fabric: &F,
        length: usize,
        slow_lately: bool,
    ) -> Result<(Buffer<F::Memory>, Residency), Exhausted> {
        self.smallest = ARENA_FOR_TURNS;
        let mut of = self.in_turn.take().unwrap_or_else(|| InTurn::new(fabric));
        let reserved = self.reserve_of(fabric, length, slow_lately, &mut of);
        self.in_turn = Some(of);
        reserved
    }

    fn reserve_of(
        &mut self,
        fabric: &F,
        length: usize,
        slow_lately: bool,
        of: &mut InTurn<F>,
    ) -> Result<(Buffer<F::Memory>, Residency), Exhausted> {
        let now = of.turns.fill(length);
        let mut new = None;
        // Collect the buffers that came back.
        while !of.out.is_empty()
            && let Some(buffer) = self.free(length)
        {
            let known = self.place(&buffer).and_then(|place| of.out.iter().position(|out| out.0 == place));
            let Some(known) = known else {
                new = Some(buffer);
                break;
            };
            let (_, count) = of.out.swap_remove(known);
            let at = of.kept.partition_point(|kept| kept.1 <= count);
            of.kept.insert(at, (buffer, count));
        }
        let fits = |kept: &&(Buffer<F::Memory>, u64)| kept.0.capacity() >= length;
        of.counts.clear();
        of.counts.extend(of.kept.iter().filter(fits).map(|kept| kept.1));
        let more = || {
            new = new.take().or_else(|| self.free(length));
            new.as_ref().map(Buffer::capacity)
        };
        let (buffer, past) = match of.turns.next(now, &of.counts, slow_lately, more) {
            Rotation::Of(number, past) => {
                let fitting = of.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
                let place = fitting.map(|(place, _)| place).nth(number).ok_or(Exhausted)?;
                let mut buffer = of.kept.remove(place).0;
                buffer.set_length(length);
                (buffer, past)
            }
            Rotation::More => {
                let new = match new.or_else(|| self.free(length)) {
                    Some(new) => new,
                    None => self.reserve_but(fabric, length, of)?,
                };
                let known = |key| self.parts.iter().any(|part| part.key == Some(key));
                let place = self.place(&new);
                of.out.retain(|out| known(RegionKey(out.0.0)) && Some(out.0) != place);
                (new, Residency::New)
            }
        };
        of.out.extend(self.place(&buffer).map(|place| (place, now)));
        Ok((buffer, past))
    }

    /// Reserves a buffer; releases the kept buffers if there is no other memory.
    fn reserve_but(
        &mut self,
        fabric: &F,
        length: usize,
        of: &mut InTurn<F>,
    ) -> Result<Buffer<F::Memory>, Exhausted> {
        self.reserve(fabric, length).or_else(|_| {
            of.clear();
            self.reserve(fabric, length)
        })
    }

    /// Returns the place by which the peer knows a buffer.
    fn place(&self, buffer: &Buffer<F::Memory>) -> Option<Place> {
        self.descriptor(buffer).map(|descriptor| (descriptor.key, descriptor.offset))
    }

    /// Prepares the next buffer of about this length if mapped memory has room. Called after a payload was
    /// sent, when the thread would only wait for the peer.
    pub(crate) fn make_spare(&mut self, length: usize) {
        if (TAKE_BACK_FROM..=SPARE_UP_TO).contains(&length)
            && self.spare.is_none()
            && let Some(mut buffer) = self.free(length)
        {
            take_back(&mut buffer);
            self.spare = Some(buffer);
        }
    }

    /// Reserves a buffer from mapped memory.
    fn free(&self, length: usize) -> Option<Buffer<F::Memory>> {
        self.parts
            .iter()
            .filter(|part| part.length >= length as u64)
            .find_map(|part| part.arena.reserve(length).ok())
    }

    /// Reserves a buffer of `length` bytes. Maps memory, with a system call, if no arena has room; a steady
    /// load soon has all its memory. Near the limit it releases unused arenas to make room.
    pub(crate) fn reserve(&mut self, fabric: &F, length: usize) -> Result<Buffer<F::Memory>, Exhausted> {
        if let Some(buffer) = self.free(length) {
            return Ok(buffer);
        }
        if self.spare.take().is_some()
            && let Some(buffer) = self.free(length)
        {
            return Ok(buffer);
        }
        if self.deaf {
            return Err(Exhausted);
        }
        let exactly = (length as u64).max(1);
        let smallest = if self.smallest <= self.room() { self.smallest } else { FIRST_ARENA };
        let rounded = exactly.next_power_of_two().max(smallest);
        let doubling = rounded.max(self.mapped);
        let wanted = if doubling <= self.room() {
            doubling
        } else if self.make_room(rounded) {
            rounded
        } else if self.make_room(exactly) {
            exactly
        } else if self.in_turn.as_mut().is_some_and(|of| of.clear()) {
            return self.reserve(fabric, length);
        } else {
            return Err(Exhausted);
        };
        self.map(fabric, wanted, wanted < rounded)?.reserve(length).map_err(|_| Exhausted)
    }

    /// Returns the bytes that may still be mapped.
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.mapped)
    }

    /// Makes room to map `wanted` bytes by releasing unused arenas, the smallest first. Releases none if all
    /// of them would not suffice.
    fn make_room(&mut self, wanted: u64) -> bool {
        let unused = self.parts.iter().filter(|part| part.arena.is_unused()).map(|part| part.length);
        if wanted > self.room() + unused.sum::<u64>() {
            return false;
        }
        while wanted > self.room() {
            let unused = self.parts.iter().enumerate().filter(|(_, part)| part.arena.is_unused());
            let Some((smallest, _)) = unused.min_by_key(|(_, part)| part.length) else { return false };
            let part = self.parts.swap_remove(smallest);
            self.mapped -= part.length;
            self.ended.extend(part.key);
        }
        true
    }

    /// Maps an arena, and grants it if there is a peer; a `single` arena has room for one buffer only.
    fn map(&mut self, fabric: &F, length: u64, single: bool) -> Result<&Arena<F::Memory>, Exhausted> {
        let access = if self.link.is_some() { Access::READ } else { Access::LOCAL };
        let memory = fabric.register(length, access).map_err(|_| Exhausted)?;
        let arena = if single { Arena::single(memory) } else { Arena::new(memory) }.map_err(|_| Exhausted)?;
        let key = match self.link.clone() {
            Some(link) => Some(self.grant(&link, &arena)?),
            None => None,
        };
        self.mapped += length;
        self.parts.push(Part { arena, key, length });
        self.parts.last().map(|part| &part.arena).ok_or(Exhausted)
    }

    /// Grants an arena, then reports revoked grants to the peer. In this order, a peer that does not read
    /// delays the caller once, for a bounded time, and not once for each grant.
    fn grant(&mut self, link: &F::Link, arena: &Arena<F::Memory>) -> Result<RegionKey, Exhausted> {
        let granted = link.grant(arena.memory(), Access::READ).map_err(|error| {
            tracing::warn!(target: "dunlin::path", error = %WithSources(&error), "memory for a large payload could not be granted");
            self.deaf |= matches!(error, GrantError::Link(_));
            Exhausted
        });
        if !self.deaf {
            self.ended.drain(..).for_each(|key| link.revoke(key));
        }
        granted
    }

    /// Returns the keys of all granted arenas, for the end of their grants with the lane.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.parts.iter().filter_map(|part| part.key).chain(self.ended.iter().copied())
    }

    /// Returns whether the peer can READ a buffer where it lies.
    pub(crate) fn can_send(&self, buffer: &Buffer<F::Memory>) -> bool {
        self.link.is_none() || self.descriptor(buffer).is_some()
    }

    /// Returns the descriptor of a buffer of this pool; `None` for a buffer of another pool.
    pub(crate) fn descriptor(&self, buffer: &Buffer<F::Memory>) -> Option<Descriptor> {
        let part = self.parts.iter().find(|p| std::sync::Arc::ptr_eq(p.arena.memory(), buffer.memory()))?;
        Some(Descriptor { key: part.key?.0, offset: buffer.offset(), length: buffer.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::buffer_rotation::EVICTED_AFTER;
    use dunlin_fabric::{Address, Host, LinkError, Listener, Scheme};
    use dunlin_fabric_shm::{ShmConfig, ShmFabric, ShmLink};
    use proptest::prelude::*;

    const MEBI: usize = 1 << 20;

    fn fabric() -> ShmFabric {
        ShmFabric::new(ShmConfig::default()).unwrap()
    }

    /// Creates both ends of a link.
    fn links(fabric: &ShmFabric) -> (ShmLink, ShmLink) {
        let name = format!("pool-{}-{:x}", std::process::id(), fabric.host().random());
        let address = Address::new(Scheme::Shm, &name).unwrap();
        let listener = fabric.listen(&address).unwrap();
        let until = fabric.host().now() + 10_000_000_000;
        (fabric.dial(&address, until).unwrap(), listener.accept(until).unwrap())
    }

    #[test]
    fn what_is_free_is_given_back_for_what_is_larger() {
        let fabric = fabric();
        let mut pool: Pool<ShmFabric> = Pool::new(None, 8 * MEBI as u64);
        let held: Vec<_> = (0..8).map(|_| pool.reserve(&fabric, MEBI).unwrap()).collect();
        assert_eq!(pool.parts.iter().map(|part| part.length >> 20).collect::<Vec<_>>(), [1, 1, 2, 4]);
        assert_eq!(pool.reserve(&fabric, 5 * MEBI).unwrap_err(), Exhausted);
        assert_eq!(pool.parts.len(), 4, "nothing is given back in vain");
        drop(held);
        assert_eq!(pool.reserve(&fabric, 5 * MEBI).unwrap().len(), 5 * MEBI);
        assert_eq!(pool.mapped, 8 * MEBI as u64);
    }

    #[test]
    fn a_spare_serves_the_next_of_its_length_and_is_in_nobodys_way() {
        let fabric = fabric();
        let mut pool: Pool<ShmFabric> = Pool::new(None, MEBI as u64);
        pool.make_spare(65_536);
        assert!(pool.spare.is_none(), "memory is not mapped for it");
        let first = pool.reserve_to_fill(&fabric, 65_536).unwrap();
        pool.make_spare(first.len());
        let ready = pool.spare.as_ref().unwrap().offset();
        assert_ne!(ready, first.offset());
        assert_eq!(pool.reserve_to_fill(&fabric, 60_000).unwrap().offset(), ready);
        assert!(pool.spare.is_none());
        for unfit in [TAKE_BACK_FROM - 1, SPARE_UP_TO + 1] {
            pool.make_spare(unfit);
            assert!(pool.spare.is_none());
        }
        drop(first);
        pool.make_spare(65_536);
        assert!(pool.spare.is_some());
        assert_eq!(pool.reserve(&fabric, MEBI).unwrap().len(), MEBI);
        assert!(pool.spare.is_none());
    }

    #[test]
    fn what_is_in_use_stays_and_the_rest_makes_room() {
        let fabric = fabric();
        let mut pool: Pool<ShmFabric> = Pool::new(None, 8 * MEBI as u64);
        let mut held: Vec<_> = (0..8).map(|_| pool.reserve(&fabric, MEBI).unwrap()).collect();
        held[0].fill(7);
        held.truncate(1);
        // Seven MiB are free, which is no power of two.
        assert_eq!(pool.reserve(&fabric, 7 * MEBI).unwrap().len(), 7 * MEBI);
        assert!(held[0].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn buffers_are_filled_by_turns() {
        const LENGTH: usize = 128 << 10;
        const ENOUGH: usize = EVICTED_AFTER as usize / LENGTH;
        let fabric = fabric();
        let (link, _peer) = links(&fabric);
        let mut pool: Pool<ShmFabric> = Pool::new(Some(link), 8 * MEBI as u64);
        let mut places = std::collections::BTreeSet::new();
        let mut fill = |pool: &mut Pool<ShmFabric>, length, slow| {
            let (buffer, past) = pool.reserve_in_turn(&fabric, length, slow).unwrap();
            assert_eq!((buffer.len(), pool.descriptor(&buffer).is_some()), (length, true));
            places.insert(buffer.offset());
            (past, places.len())
        };
        assert_eq!(fill(&mut pool, LENGTH, true), (Residency::New, 1));
        // One buffer suffices where recently READ buffers are not slow.
        assert!((0..100).all(|_| fill(&mut pool, LENGTH, false) == (Residency::Lately, 1)));
        let pasts: Vec<_> = (0..100).map(|_| fill(&mut pool, LENGTH, true)).collect();
        assert!(pasts[90..].iter().all(|past| *past == (Residency::LongAgo, ENOUGH)), "{pasts:?}");
        // The buffers have room for shorter payloads and none for longer ones.
        assert_eq!(fill(&mut pool, LENGTH - 1, true), (Residency::LongAgo, ENOUGH));
        assert_eq!(fill(&mut pool, 2 * LENGTH, true).0, Residency::New);
        let of = pool.in_turn.as_ref().unwrap();
        assert_eq!((of.kept.len(), of.out.len()), (ENOUGH - 1, 2));
        // The pool releases the kept buffers if it needs their memory.
        assert_eq!(pool.reserve(&fabric, 8 * MEBI).unwrap().len(), 8 * MEBI);
        assert!(pool.in_turn.as_ref().unwrap().kept.is_empty());
    }

    #[test]
    fn what_is_filled_while_others_are_read_is_new() {
        let fabric = fabric();
        let (link, _peer) = links(&fabric);
        let mut pool: Pool<ShmFabric> = Pool::new(Some(link), 4 * MEBI as u64);
        let held: Vec<_> = (0..4).map(|_| pool.reserve_in_turn(&fabric, MEBI, false).unwrap()).collect();
        assert!(held.iter().all(|(_, past)| *past == Residency::New));
        assert_eq!(pool.reserve_in_turn(&fabric, MEBI, true).unwrap_err(), Exhausted);
        drop(held);
        assert_eq!(pool.reserve_in_turn(&fabric, MEBI, true).unwrap().1, Residency::LongAgo);
        assert!(pool.in_turn.as_ref().unwrap().out.len() <= 4);
        // Kept buffers also make room for other buffers in rotation.
        assert_eq!(pool.reserve_in_turn(&fabric, 4 * MEBI, true).unwrap().1, Residency::New);
    }

    /// A link bounds its grants: a pool that did not revoke the grants of released arenas would run out of
    /// grants.
    #[test]
    fn grants_end_with_their_memory() {
        let config = ShmConfig { max_grants_per_link: 8, ..ShmConfig::default() };
        let fabric = ShmFabric::new(config).unwrap();
        let (link, peer) = links(&fabric);
        let mut pool: Pool<ShmFabric> = Pool::new(Some(link), 2 * MEBI as u64);
        for _ in 0..20 {
            let small = [pool.reserve(&fabric, MEBI).unwrap(), pool.reserve(&fabric, MEBI).unwrap()];
            assert!(small.iter().all(|buffer| pool.descriptor(buffer).is_some()));
            drop(small);
            let large = pool.reserve(&fabric, 2 * MEBI).unwrap();
            assert_eq!(pool.descriptor(&large).unwrap().length, 2 * MEBI as u64);
        }
        assert!(pool.link.as_ref().unwrap().is_alive() && peer.is_alive());
        assert!(matches!(peer.receive(fabric.host().now()), Err(LinkError::TimedOut)));
    }

    #[test]
    fn a_peer_that_takes_no_grant_is_asked_once() {
        let fabric = fabric();
        let (link, peer) = links(&fabric);
        let mut pool: Pool<ShmFabric> = Pool::new(Some(link.clone()), 8 * MEBI as u64);
        let held = pool.reserve(&fabric, MEBI).unwrap();
        peer.close();
        while link.is_alive() {
            fabric.host().sleep(fabric.host().now() + 100_000);
        }
        assert_eq!(pool.reserve(&fabric, MEBI).unwrap_err(), Exhausted);
        assert!(pool.deaf && pool.mapped == MEBI as u64);
        // Memory that was granted before stays usable.
        drop(held);
        assert!(pool.reserve(&fabric, MEBI).is_ok());
        assert_eq!(pool.reserve(&fabric, 2 * MEBI).unwrap_err(), Exhausted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// The limit holds at every step, and once all buffers are free any length up to the limit can be
        /// reserved.
        #[test]
        fn the_limit_holds_and_all_of_it_can_be_had(
            limit in 1usize..20 * MEBI,
            steps in prop::collection::vec((0.0f64..=1.0, 0usize..8), 1..40),
            last in 0.0f64..=1.0,
        ) {
            let fabric = fabric();
            let mut pool: Pool<ShmFabric> = Pool::new(None, limit as u64);
            let mut held: Vec<(Buffer<_>, u8)> = Vec::new();
            let length_of = |part: f64| ((limit as f64 * part.powi(4)) as usize).clamp(1, limit);
            for (number, (part, keep)) in steps.into_iter().enumerate() {
                let length = length_of(part);
                let in_place = number.is_multiple_of(2);
                match if in_place { pool.reserve_to_fill(&fabric, length) } else { pool.reserve(&fabric, length) } {
                    Ok(mut buffer) => {
                        prop_assert_eq!(buffer.len(), length);
                        buffer[0] = number as u8;
                        buffer[length - 1] = number as u8;
                        held.push((buffer, number as u8));
                    }
                    Err(Exhausted) => prop_assert!(!held.is_empty(), "{} of {}", length, limit),
                }
                held.truncate(keep);
                if number % 3 == 0 {
                    pool.make_spare(length);
                }
                prop_assert!(pool.mapped <= limit as u64);
                prop_assert_eq!(pool.mapped, pool.parts.iter().map(|part| part.length).sum::<u64>());
                for (buffer, mark) in &held {
                    prop_assert_eq!([buffer[0], buffer[buffer.len() - 1]], [*mark, *mark]);
                }
            }
            held.clear();
            let length = ((limit as f64 * last) as usize).clamp(1, limit);
            prop_assert_eq!(pool.reserve(&fabric, length).unwrap().len(), length);
            prop_assert!(pool.mapped <= limit as u64);
        }
    }
}
