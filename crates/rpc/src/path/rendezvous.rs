//! Read rendezvous: a large payload stays in the sender's registered memory; a descriptor of 24 bytes travels in
//! its place, and the receiver READs the payload into private memory of its own. One copy, and safe against a
//! hostile peer, which can neither write to us nor change what we have copied.
//!
//! [`Pool`] hands out the buffers for both ends: of granted memory to send from, of local memory to READ into.
//! It grows by whole arenas when it has to, up to a limit, and keeps what it has, so that a steady load maps
//! nothing; only at the limit it gives arenas back that are free as a whole, and their grants, for one of the length
//! that is needed. Mailboxes do not grow for large payloads.

use crate::tune::fill::Turns;
use dunlin_fabric::{Access, Arena, Buffer, Fabric, GrantError, Link, RegionKey};
use dunlin_wire::Descriptor;
use std::collections::VecDeque;

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
    /// Buffers that are filled by turns, the longest unused first. Nobody's, too.
    kept: VecDeque<Buffer<F::Memory>>,
    /// How many these are to be.
    turns: usize,
    /// The smallest arena that is mapped.
    smallest: u64,
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
            kept: VecDeque::new(),
            turns: 0,
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

    /// As [`reserve`](Pool::reserve), the one that has not been used for longest, so that the peer may have dropped its lines. Says
    /// whether it was used before.
    pub(crate) fn reserve_in_turn(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<(Buffer<F::Memory>, bool), Exhausted> {
        self.smallest = ARENA_FOR_TURNS;
        // Which is the one that came back last, if one did.
        self.kept.extend(self.free(length));
        if self.kept.len() > self.turns
            && let Some(mut longest) = self.kept.pop_front()
            && longest.set_length(length)
        {
            return Ok((longest, true));
        }
        Ok((self.reserve(fabric, length)?, false))
    }

    /// Has many buffers of this length filled by turns, as far as there is memory for them already, or few.
    pub(crate) fn take_turns(&mut self, turns: Turns, length: usize) {
        let buffers = ARENA_FOR_TURNS as usize / length.next_power_of_two();
        match turns {
            Turns::AsBefore => {}
            Turns::Many => self.turns = buffers.saturating_sub(2).max(1),
            Turns::Few => {
                self.turns = 0;
                self.kept.clear();
            }
        }
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
        } else if !self.kept.is_empty() {
            self.kept.clear();
            self.turns = 0;
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
