//! The buffers for large payloads of both ends: granted memory to send from, and local memory to READ into. A pool
//! grows by whole arenas up to a limit and keeps them, so that a steady load maps no memory. Only at the
//! limit it releases arenas without buffers in use, with their grants, to map one of the length that is
//! needed. Mailboxes do not grow for large payloads. The fabric chooses among free buffers and prepares them
//! ([`PayloadBuffers`]).

use dunlin_fabric::WithSources;
use dunlin_fabric::{
    Access, Arena, Buffer, BufferSource, Fabric, GrantError, Link, PayloadBuffers, Pressure, RegionKey,
};
use dunlin_wire::Descriptor;

/// The smallest arena that a pool maps, in bytes.
const FIRST_ARENA: u64 = 1 << 20;

/// The state of a payload that is filled in pieces.
pub(crate) type Filling<F> = <<F as Fabric>::Payloads as PayloadBuffers<<F as Fabric>::Memory>>::Filling;

#[derive(Debug)]
struct Part<F: Fabric> {
    arena: Arena<F::Memory>,
    key: Option<RegionKey>,
    length: u64,
}

/// Buffers for large payloads.
#[derive(Debug)]
pub(crate) struct Pool<F: Fabric> {
    arenas: Arenas<F>,
    /// The fabric's choice among free buffers, from the first payload on that is filled in one.
    payloads: Option<F::Payloads>,
}

/// The memory of a pool.
#[derive(Debug)]
struct Arenas<F: Fabric> {
    parts: Vec<Part<F>>,
    /// The peer to which the memory is granted; `None` for memory that is only READ into.
    link: Option<F::Link>,
    mapped: u64,
    limit: u64,
    /// Revoked grants, reported to the peer with the next new grant: their memory is gone.
    ended: Vec<RegionKey>,
    /// The peer did not accept a grant in time, so that no other grant is tried.
    deaf: bool,
}

/// The memory of a pool, as the fabric sees it.
struct Source<'a, F: Fabric>(&'a F, &'a mut Arenas<F>);

impl<F: Fabric> BufferSource<F::Memory> for Source<'_, F> {
    fn mapped(&mut self, length: usize) -> Option<Buffer<F::Memory>> {
        self.1.free(length)
    }

    fn reserve(&mut self, length: usize, smallest: u64) -> Option<Buffer<F::Memory>> {
        self.1.free(length).or_else(|| self.1.reserve_more(self.0, length, smallest).ok())
    }
}

/// Error: no memory for a large payload now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<F: Fabric> Pool<F> {
    /// Creates a pool that maps at most `limit` bytes. With a link, the peer there can READ its buffers.
    pub(crate) fn new(link: Option<F::Link>, limit: u64) -> Self {
        let arenas = Arenas { parts: Vec::new(), link, mapped: 0, limit, ended: Vec::new(), deaf: false };
        Pool { arenas, payloads: None }
    }

    /// Returns the fabric's choice, and the memory from which it chooses.
    fn split<'a>(&'a mut self, fabric: &'a F) -> (&'a mut F::Payloads, Source<'a, F>) {
        let payloads = self.payloads.get_or_insert_with(|| fabric.payloads());
        (payloads, Source(fabric, &mut self.arenas))
    }

    /// Reserves a buffer of `length` bytes. Maps memory, with a system call, if no arena has room; a steady
    /// load soon has all its memory. Near the limit it releases unused arenas to make room.
    pub(crate) fn reserve(&mut self, fabric: &F, length: usize) -> Result<Buffer<F::Memory>, Exhausted> {
        let Pool { arenas, payloads } = self;
        if let Some(buffer) = arenas.free(length) {
            return Ok(buffer);
        }
        let mut release = |pressure| payloads.as_mut().is_some_and(|payloads| payloads.release(pressure));
        if release(Pressure::Mapping)
            && let Some(buffer) = arenas.free(length)
        {
            return Ok(buffer);
        }
        arenas.reserve_more(fabric, length, 0).or_else(|Exhausted| {
            if !release(Pressure::Limit) {
                return Err(Exhausted);
            }
            Source(fabric, arenas).reserve(length, 0).ok_or(Exhausted)
        })
    }

    /// Reserves a buffer that an application will fill, prepared as the fabric prefers. Its content is
    /// undefined. Otherwise like [`reserve`](Pool::reserve).
    pub(crate) fn reserve_to_fill(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<Buffer<F::Memory>, Exhausted> {
        let (payloads, mut source) = self.split(fabric);
        payloads.reserve(length, &mut source).ok_or(Exhausted)
    }

    /// Reserves a buffer that is sent while it is filled; [`filled`](Pool::filled) takes its state back.
    /// Otherwise like [`reserve_to_fill`](Pool::reserve_to_fill).
    pub(crate) fn reserve_in_pieces(
        &mut self,
        fabric: &F,
        length: usize,
    ) -> Result<(Buffer<F::Memory>, Filling<F>), Exhausted> {
        let (payloads, mut source) = self.split(fabric);
        payloads.reserve_in_pieces(length, &mut source).ok_or(Exhausted)
    }

    /// Takes the state of a payload back that was filled in pieces or given up.
    pub(crate) fn filled(&mut self, filling: Option<Filling<F>>) {
        if let (Some(payloads), Some(filling)) = (&mut self.payloads, filling) {
            payloads.filled(filling);
        }
    }

    /// Learns that a payload was sent, when the thread would only wait for the peer.
    pub(crate) fn sent(&mut self, fabric: &F, length: usize) {
        let (payloads, mut source) = self.split(fabric);
        payloads.sent(length, &mut source);
    }

    /// Returns the keys of all granted arenas, for the end of their grants with the lane.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.arenas.parts.iter().filter_map(|part| part.key).chain(self.arenas.ended.iter().copied())
    }

    /// Returns whether the peer can READ a buffer where it lies.
    pub(crate) fn can_send(&self, buffer: &Buffer<F::Memory>) -> bool {
        self.arenas.link.is_none() || self.descriptor(buffer).is_some()
    }

    /// Returns the descriptor of a buffer of this pool; `None` for a buffer of another pool.
    pub(crate) fn descriptor(&self, buffer: &Buffer<F::Memory>) -> Option<Descriptor> {
        let part =
            self.arenas.parts.iter().find(|p| std::sync::Arc::ptr_eq(p.arena.memory(), buffer.memory()))?;
        Some(Descriptor { key: part.key?.0, offset: buffer.offset(), length: buffer.len() as u64 })
    }
}

impl<F: Fabric> Arenas<F> {
    /// Reserves a buffer from mapped memory.
    fn free(&self, length: usize) -> Option<Buffer<F::Memory>> {
        self.parts
            .iter()
            .filter(|part| part.length >= length as u64)
            .find_map(|part| part.arena.reserve(length).ok())
    }

    /// Reserves a buffer in memory that it maps, at least `smallest` bytes if the limit allows them.
    fn reserve_more(
        &mut self,
        fabric: &F,
        length: usize,
        smallest: u64,
    ) -> Result<Buffer<F::Memory>, Exhausted> {
        if self.deaf {
            return Err(Exhausted);
        }
        let exactly = (length as u64).max(1);
        let smallest = if smallest <= self.room() { smallest.max(FIRST_ARENA) } else { FIRST_ARENA };
        let rounded = exactly.next_power_of_two().max(smallest);
        let doubling = rounded.max(self.mapped);
        let wanted = if doubling <= self.room() {
            doubling
        } else if self.make_room(rounded) {
            rounded
        } else if self.make_room(exactly) {
            exactly
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
        assert_eq!(pool.arenas.parts.iter().map(|part| part.length >> 20).collect::<Vec<_>>(), [1, 1, 2, 4]);
        assert_eq!(pool.reserve(&fabric, 5 * MEBI).unwrap_err(), Exhausted);
        assert_eq!(pool.arenas.parts.len(), 4, "nothing is given back in vain");
        drop(held);
        assert_eq!(pool.reserve(&fabric, 5 * MEBI).unwrap().len(), 5 * MEBI);
        assert_eq!(pool.arenas.mapped, 8 * MEBI as u64);
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
        assert!(pool.arenas.link.as_ref().unwrap().is_alive() && peer.is_alive());
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
        assert!(pool.arenas.deaf && pool.arenas.mapped == MEBI as u64);
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
                    pool.sent(&fabric, length);
                }
                prop_assert!(pool.arenas.mapped <= limit as u64);
                prop_assert_eq!(pool.arenas.mapped, pool.arenas.parts.iter().map(|part| part.length).sum::<u64>());
                for (buffer, mark) in &held {
                    prop_assert_eq!([buffer[0], buffer[buffer.len() - 1]], [*mark, *mark]);
                }
            }
            held.clear();
            let length = ((limit as f64 * last) as usize).clamp(1, limit);
            prop_assert_eq!(pool.reserve(&fabric, length).unwrap().len(), length);
            prop_assert!(pool.arenas.mapped <= limit as u64);
        }
    }
}
