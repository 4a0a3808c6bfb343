//! Write rendezvous, receiver's memory: areas of granted regions into which the peer WRITEs large payloads.
//!
//! The peer can write to its areas at any time, so each payload is copied to private memory before use, and
//! an area is reused only for the same peer. Areas have sizes of powers of two, and one size in each region.
//! Mapped memory is bounded and kept, so that a steady load maps no new memory.

use super::pool::Exhausted;
use dunlin_fabric::WithSources;
use dunlin_fabric::{Access, Fabric, GrantError, Link, Region, RegionKey};
use dunlin_wire::Descriptor;

/// The smallest area, in bytes.
const SMALLEST: u64 = 4096;
/// The smallest region, in bytes; smaller areas share a region.
const REGION: u64 = 256 << 10;

#[derive(Debug)]
struct Part<F: Fabric> {
    region: Region<F::Memory>,
    key: RegionKey,
    /// Bytes of each area.
    unit: u64,
    free: Vec<u32>,
    count: u32,
}

/// A place for one payload.
#[derive(Debug)]
pub(crate) struct WriteTarget<F: Fabric> {
    region: Region<F::Memory>,
    key: RegionKey,
    offset: u64,
    length: usize,
}

impl<F: Fabric> WriteTarget<F> {
    /// Returns the descriptor by which the peer addresses the area.
    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor { key: self.key.0, offset: self.offset, length: self.length as u64 }
    }

    /// Returns the bytes of the payload.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Copies the current content into private memory of the payload's length.
    pub(crate) fn copy_out(&self, into: &mut [u8]) {
        self.region.copy_out(self.offset as usize, into);
    }
}

/// The areas of one lane.
#[derive(Debug)]
pub(crate) struct WriteTargets<F: Fabric> {
    link: F::Link,
    parts: Vec<Part<F>>,
    mapped: u64,
    limit: u64,
    /// The peer did not accept a grant in time, so that no other grant is tried.
    deaf: bool,
}

impl<F: Fabric> WriteTargets<F> {
    /// Creates areas for the peer of `link`, of at most `limit` bytes in total.
    pub(crate) fn new(link: F::Link, limit: u64) -> Self {
        WriteTargets { link, parts: Vec::new(), mapped: 0, limit, deaf: false }
    }

    /// Returns the keys of all regions, for the end of their grants with the lane.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.parts.iter().map(|part| part.key)
    }

    /// Reserves an area for a payload of `length` bytes. Maps and grants memory if no area is free, which
    /// takes a system call and may block for the peer; a steady load soon has all its areas.
    pub(crate) fn reserve(&mut self, fabric: &F, length: usize) -> Result<WriteTarget<F>, Exhausted> {
        let rounded = (length as u64).next_power_of_two().max(SMALLEST);
        if let Some(area) = self.free(length) {
            return Ok(area);
        }
        if self.make_room(rounded.max(REGION)) {
            self.map(fabric, rounded)?;
        } else {
            // Near the limit, map exactly the needed size.
            let exactly = (length as u64).max(1).next_multiple_of(SMALLEST);
            let exactly = if exactly > self.limit { (length as u64).max(1) } else { exactly };
            if !self.make_room(exactly) {
                return Err(Exhausted);
            }
            self.map_region(fabric, exactly, 1)?;
        }
        self.free(length).ok_or(Exhausted)
    }

    /// Takes the smallest free area that is long enough.
    fn free(&mut self, length: usize) -> Option<WriteTarget<F>> {
        let fits = |part: &&mut Part<F>| part.unit >= length as u64 && !part.free.is_empty();
        let part = self.parts.iter_mut().filter(fits).min_by_key(|part| part.unit)?;
        let place = part.free.pop()?;
        let offset = u64::from(place) * part.unit;
        Some(WriteTarget { region: part.region.clone(), key: part.key, offset, length })
    }

    /// Returns an area to its region.
    pub(crate) fn give_back(&mut self, area: WriteTarget<F>) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.key == area.key) {
            part.free.push((area.offset / part.unit) as u32);
        }
    }

    /// Makes sure that `wanted` bytes may be mapped: revokes unused regions, the smallest first, until they
    /// fit.
    fn make_room(&mut self, wanted: u64) -> bool {
        let room = |areas: &Self| areas.limit.saturating_sub(areas.mapped);
        let unused = |part: &Part<F>| part.free.len() == part.count as usize;
        let spare: u64 = self.parts.iter().filter(|part| unused(part)).map(Part::length).sum();
        if wanted > room(self) + spare {
            return false;
        }
        while wanted > room(self) {
            let candidates = self.parts.iter().enumerate().filter(|(_, part)| unused(part));
            let Some((smallest, _)) = candidates.min_by_key(|(_, part)| part.length()) else { return false };
            let part = self.parts.swap_remove(smallest);
            self.mapped -= part.length();
            self.link.revoke(part.key);
        }
        true
    }

    fn map(&mut self, fabric: &F, unit: u64) -> Result<(), Exhausted> {
        self.map_region(fabric, unit, (REGION / unit).max(1) as u32)
    }

    fn map_region(&mut self, fabric: &F, unit: u64, count: u32) -> Result<(), Exhausted> {
        if self.deaf {
            return Err(Exhausted);
        }
        let memory = fabric.register(unit * u64::from(count), Access::WRITE).map_err(|_| Exhausted)?;
        let region = Region::new(memory);
        let key = self.link.grant(region.memory(), Access::WRITE).map_err(|error| {
            tracing::warn!(target: "dunlin::path", error = %WithSources(&error), "memory for a large payload could not be granted");
            self.deaf |= matches!(error, GrantError::Link(_));
            Exhausted
        })?;
        let free = (0..count).rev().collect();
        self.parts.push(Part { region, key, unit, free, count });
        self.mapped += unit * u64::from(count);
        Ok(())
    }
}

impl<F: Fabric> Part<F> {
    fn length(&self) -> u64 {
        self.unit * u64::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::{Address, Host, Listener, Scheme};
    use dunlin_fabric_shm::{ShmConfig, ShmFabric, ShmLink};
    use proptest::prelude::*;

    const MEBI: usize = 1 << 20;

    /// Creates a fabric and both ends of a link.
    fn links() -> (ShmFabric, ShmLink, ShmLink) {
        let fabric = ShmFabric::new(ShmConfig { max_grants_per_link: 16, ..ShmConfig::default() }).unwrap();
        let name = format!("areas-{}-{:x}", std::process::id(), fabric.host().random());
        let address = Address::new(Scheme::Shm, &name).unwrap();
        let listener = fabric.listen(&address).unwrap();
        let until = fabric.host().now() + 10_000_000_000;
        let (ours, theirs) = (fabric.dial(&address, until).unwrap(), listener.accept(until).unwrap());
        (fabric, ours, theirs)
    }

    #[test]
    fn a_steady_load_maps_nothing_and_areas_do_not_overlap() {
        let (fabric, link, _peer) = links();
        let mut areas: WriteTargets<ShmFabric> = WriteTargets::new(link, 8 * MEBI as u64);
        let mut mapped = 0;
        for round in 0..50 {
            let held: Vec<_> = (0..64).map(|_| areas.reserve(&fabric, 5000).unwrap()).collect();
            let mut places: Vec<_> = held.iter().map(|area| (area.key, area.offset)).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 64);
            held.into_iter().for_each(|area| areas.give_back(area));
            if round > 0 {
                assert_eq!(areas.mapped, mapped);
            }
            mapped = areas.mapped;
        }
    }

    /// A link bounds its grants: areas that did not revoke unused regions would run out of grants.
    #[test]
    fn what_is_free_is_given_back_for_what_is_larger() {
        let (fabric, link, peer) = links();
        let mut areas: WriteTargets<ShmFabric> = WriteTargets::new(link, 2 * MEBI as u64);
        for _ in 0..40 {
            let small = areas.reserve(&fabric, 100).unwrap();
            assert!(areas.reserve(&fabric, 2 * MEBI).is_err());
            areas.give_back(small);
            let large = areas.reserve(&fabric, 2 * MEBI).unwrap();
            assert_eq!(large.descriptor().length, 2 * MEBI as u64);
            assert!(areas.reserve(&fabric, 1).is_err());
            areas.give_back(large);
        }
        assert!(areas.link.is_alive() && peer.is_alive());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        /// The limit holds at every step, and once all areas are free any length up to the limit can be
        /// reserved.
        #[test]
        fn the_limit_holds_and_all_of_it_can_be_had(
            limit in 1usize..20 * MEBI,
            steps in prop::collection::vec((0.0f64..=1.0, 0usize..8), 1..40),
            last in 0.0f64..=1.0,
        ) {
            let (fabric, link, _peer) = links();
            let mut areas: WriteTargets<ShmFabric> = WriteTargets::new(link, limit as u64);
            let mut held: Vec<WriteTarget<ShmFabric>> = Vec::new();
            let length_of = |part: f64| ((limit as f64 * part.powi(4)) as usize).clamp(1, limit);
            for (part, keep) in steps {
                match areas.reserve(&fabric, length_of(part)) {
                    Ok(area) => {
                        prop_assert_eq!(area.length(), length_of(part));
                        held.push(area);
                    }
                    Err(Exhausted) => prop_assert!(!held.is_empty()),
                }
                prop_assert!(areas.mapped <= limit as u64);
                while held.len() > keep {
                    areas.give_back(held.remove(0));
                }
            }
            held.into_iter().for_each(|area| areas.give_back(area));
            prop_assert_eq!(areas.reserve(&fabric, length_of(last)).unwrap().length(), length_of(last));
        }
    }
}
