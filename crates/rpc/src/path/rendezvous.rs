//! Read rendezvous: a large payload stays in the sender's registered memory; a descriptor of 24 bytes travels in
//! its place, and the receiver READs the payload into private memory of its own. One copy, and safe against a
//! hostile peer, which can neither write to us nor change what we have copied.
//!
//! [`Pool`] hands out the buffers for both ends: of granted memory to send from, of local memory to READ into.
//! It grows by whole arenas when it has to, up to a limit, and keeps what it has, so that a steady load maps
//! nothing; only at the limit it gives arenas back that are free as a whole, and their grants, for one of the length
//! that is needed. Mailboxes do not grow for large payloads.

use crate::tune::turns::{Past, Turn, Turns};
use dunlin_fabric::{Access, Arena, Buffer, Fabric, GrantError, Link, RegionKey};
use dunlin_wire::Descriptor;

/// The smallest arena that a pool maps.
const FIRST_ARENA: u64 = 1 << 20;

/// From how many bytes on memory that the peer has READ is taken back before it is filled.
const TAKE_BACK_FROM: usize = 4096;
/// Up to how many: most of what is longer has left the peer's cache by itself.
const TAKE_BACK_UP_TO: usize = 1 << 20;
/// The longest buffer that is made ready before it is asked for: two of them fit into a core's cache.
const SPARE_UP_TO: usize = 256 << 10;
/// The smallest arena where buffers are filled by turns: what no peer keeps in the caches of a core. Only what is used of it takes
/// memory.
const ARENA_FOR_TURNS: u64 = 4 << 20;

/// Takes memory that the peer has READ back from its cache, before an application fills it: sets it to zero. Where the
/// peer is another core, each store to such a line waits for that core to give the line up, and an application's loop has
/// only as many under way as the queue of stores has room for. Setting a block to zero takes the lines without waiting for
/// what was in them. (64 KiB filled across distant cores: 10 us, or 2 us and then 1 us.)
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
    /// Whom the memory is granted to; `None` for memory that is only READ into.
    link: Option<F::Link>,
    mapped: u64,
    limit: u64,
    /// Grants that end with the next one that is made: the memory is gone.
    ended: Vec<RegionKey>,
    /// The peer did not take a grant, for which we have waited: no other is tried.
    deaf: bool,
    /// A buffer whose lines are with us already. Nobody's: it goes where there is need.
    spare: Option<Buffer<F::Memory>>,
    /// Buffers that are filled by turns, if some are.
    in_turn: Option<Box<InTurn<F>>>,
    /// The smallest arena that is mapped.
    smallest: u64,
}

/// Buffers that are filled by turns.
#[derive(Debug)]
struct InTurn<F: Fabric> {
    turns: Turns,
    /// Those that are free, the longest unused first, and at what count they were given out.
    kept: Vec<(Buffer<F::Memory>, u64)>,
    counts: Vec<u64>,
    /// Those that were given out, by what names them to the peer.
    out: Vec<(Place, u64)>,
}

/// What names a buffer to the peer, whatever its length.
type Place = (u64, u64);

impl<F: Fabric> InTurn<F> {
    fn new(fabric: &F) -> Box<Self> {
        let turns = Turns::new(fabric.shared());
        Box::new(InTurn { turns, kept: Vec::new(), counts: Vec::new(), out: Vec::new() })
    }

    /// Gives up all that are kept; says whether there were any.
    fn clear(&mut self) -> bool {
        self.turns.give_up();
        let any = !self.kept.is_empty();
        self.kept.clear();
        any
    }
}

/// There is no memory for a large payload now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<F: Fabric> Pool<F> {
    /// A pool that maps at most `limit` bytes. With a link its buffers can be READ by the peer there.
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

    /// As [`reserve`](Pool::reserve), for an application that will fill it: stores to its lines need not wait for the
    /// peer. What is in it is undefined.
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

    /// As [`reserve`](Pool::reserve), of buffers that are filled by turns, with what became of it before. There are more of them as
    /// far as there is memory for them already, if such as were READ lately are slow to fill.
    pub(crate) fn reserve_in_turn(
        &mut self,
        fabric: &F,
        length: usize,
        slow_lately: bool,
    ) -> Result<(Buffer<F::Memory>, Past), Exhausted> {
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
    ) -> Result<(Buffer<F::Memory>, Past), Exhausted> {
        let now = of.turns.fill(length);
        let mut new = None;
        // Those that came back.
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
            Turn::Of(number, past) => {
                let fitting = of.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
                let place = fitting.map(|(place, _)| place).nth(number).ok_or(Exhausted)?;
                let mut buffer = of.kept.remove(place).0;
                buffer.set_length(length);
                (buffer, past)
            }
            Turn::More => {
                let new = match new.or_else(|| self.free(length)) {
                    Some(new) => new,
                    None => self.reserve_but(fabric, length, of)?,
                };
                let known = |key| self.parts.iter().any(|part| part.key == Some(key));
                let place = self.place(&new);
                of.out.retain(|out| known(RegionKey(out.0.0)) && Some(out.0) != place);
                (new, Past::New)
            }
        };
        of.out.extend(self.place(&buffer).map(|place| (place, now)));
        Ok((buffer, past))
    }

    /// As [`reserve`](Pool::reserve); those that are kept have to go if nothing else is left.
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

    /// What names a buffer to the peer.
    fn place(&self, buffer: &Buffer<F::Memory>) -> Option<Place> {
        self.descriptor(buffer).map(|descriptor| (descriptor.key, descriptor.offset))
    }

    /// Makes the next buffer of about this length ready, if the memory that there is has room for one: for the time after a
    /// payload has gone out, when there is nothing to do but to wait for the peer.
    pub(crate) fn make_spare(&mut self, length: usize) {
        if (TAKE_BACK_FROM..=SPARE_UP_TO).contains(&length)
            && self.spare.is_none()
            && let Some(mut buffer) = self.free(length)
        {
            take_back(&mut buffer);
            self.spare = Some(buffer);
        }
    }

    /// A free buffer of the memory that there is.
    fn free(&self, length: usize) -> Option<Buffer<F::Memory>> {
        self.parts
            .iter()
            .filter(|part| part.length >= length as u64)
            .find_map(|part| part.arena.reserve(length).ok())
    }

    /// A buffer of `length` bytes. Maps memory if the arenas there are have none free: a system call, but only
    /// until the pool has seen its load. Near the limit arenas of which nothing is in use make room for it.
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

    /// Bytes that may still be mapped.
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.mapped)
    }

    /// Sees to it that so much may be mapped, by giving arenas back of which nothing is in use; the largest stay if
    /// others will do. Gives none back if all of them would not do.
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

    /// Maps an arena, and grants it if there is a peer; one that is `single` has no room for more than one buffer.
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

    /// Grants an arena, and tells the peer which grants have ended. In this order: a peer that does not read makes
    /// us wait for a bounded time once, and not once for each.
    fn grant(&mut self, link: &F::Link, arena: &Arena<F::Memory>) -> Result<RegionKey, Exhausted> {
        let granted = link.grant(arena.memory(), Access::READ).map_err(|error| {
            tracing::warn!(target: "dunlin::path", %error, "memory for a large payload could not be granted");
            self.deaf |= matches!(error, GrantError::Link(_));
            Exhausted
        });
        if !self.deaf {
            self.ended.drain(..).for_each(|key| link.revoke(key));
        }
        granted
    }

    /// Whether the peer can be sent what is in a buffer, from where it lies.
    pub(crate) fn can_send(&self, buffer: &Buffer<F::Memory>) -> bool {
        self.link.is_none() || self.descriptor(buffer).is_some()
    }

    /// What names a buffer of this pool to the peer; `None` for one of another pool.
    pub(crate) fn descriptor(&self, buffer: &Buffer<F::Memory>) -> Option<Descriptor> {
        let part = self.parts.iter().find(|p| std::sync::Arc::ptr_eq(p.arena.memory(), buffer.memory()))?;
        Some(Descriptor { key: part.key?.0, offset: buffer.offset(), length: buffer.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::turns::GONE;
    use dunlin_fabric::{Address, Host, LinkError, Listener, Scheme};
    use dunlin_fabric_shm::{ShmConfig, ShmFabric, ShmLink};
    use proptest::prelude::*;

    const MEBI: usize = 1 << 20;

    fn fabric() -> ShmFabric {
        ShmFabric::new(ShmConfig::default()).unwrap()
    }

    /// Two ends of a link.
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
        // Seven are free, which is no power of two.
        assert_eq!(pool.reserve(&fabric, 7 * MEBI).unwrap().len(), 7 * MEBI);
        assert!(held[0].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn buffers_are_filled_by_turns() {
        const LENGTH: usize = 128 << 10;
        const ENOUGH: usize = GONE as usize / LENGTH;
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
        assert_eq!(fill(&mut pool, LENGTH, true), (Past::New, 1));
        // Where that is not slow one is enough.
        assert!((0..100).all(|_| fill(&mut pool, LENGTH, false) == (Past::Lately, 1)));
        let pasts: Vec<_> = (0..100).map(|_| fill(&mut pool, LENGTH, true)).collect();
        assert!(pasts[90..].iter().all(|past| *past == (Past::LongAgo, ENOUGH)), "{pasts:?}");
        // Shorter ones have room in them, and longer ones do not.
        assert_eq!(fill(&mut pool, LENGTH - 1, true), (Past::LongAgo, ENOUGH));
        assert_eq!(fill(&mut pool, 2 * LENGTH, true).0, Past::New);
        let of = pool.in_turn.as_ref().unwrap();
        assert_eq!((of.kept.len(), of.out.len()), (ENOUGH - 1, 2));
        // They are in nobody's way.
        assert_eq!(pool.reserve(&fabric, 8 * MEBI).unwrap().len(), 8 * MEBI);
        assert!(pool.in_turn.as_ref().unwrap().kept.is_empty());
    }

    #[test]
    fn what_is_filled_while_others_are_read_is_new() {
        let fabric = fabric();
        let (link, _peer) = links(&fabric);
        let mut pool: Pool<ShmFabric> = Pool::new(Some(link), 4 * MEBI as u64);
        let held: Vec<_> = (0..4).map(|_| pool.reserve_in_turn(&fabric, MEBI, false).unwrap()).collect();
        assert!(held.iter().all(|(_, past)| *past == Past::New));
        assert_eq!(pool.reserve_in_turn(&fabric, MEBI, true).unwrap_err(), Exhausted);
        drop(held);
        assert_eq!(pool.reserve_in_turn(&fabric, MEBI, true).unwrap().1, Past::LongAgo);
        assert!(pool.in_turn.as_ref().unwrap().out.len() <= 4);
        // What is kept makes room also for what is filled by turns.
        assert_eq!(pool.reserve_in_turn(&fabric, 4 * MEBI, true).unwrap().1, Past::New);
    }

    /// Grants are bounded by the link: a pool that did not end those of what it gives back would run out of them.
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
        // What it has been granted is as good as ever.
        drop(held);
        assert!(pool.reserve(&fabric, MEBI).is_ok());
        assert_eq!(pool.reserve(&fabric, 2 * MEBI).unwrap_err(), Exhausted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// The limit holds at every step, and when all is free anything up to the limit is served.
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
