//! Pools of request rings that belong to their lanes until these close ([`RequestPool`]).

use super::Worker;
use crate::error::ConnectError;
use crate::server::config::RequestPool;
use dunlin_fabric::{Access, Fabric, Link, Region, RegionKey, ThreadDomain};

/// A pool of one principal: a user of this host, or the clients of other hosts.
#[derive(Debug)]
pub(crate) struct RingPool<F: Fabric> {
    user: Option<u32>,
    region: Region<F::Memory>,
    /// By ring: the lane that has it.
    holders: Box<[Option<u16>]>,
}

/// The place of a lane's ring in a pool.
pub(crate) struct PooledRing<F: Fabric> {
    pub(crate) region: Region<F::Memory>,
    pub(crate) key: RegionKey,
    /// Offset in the region, in bytes.
    pub(crate) base: u32,
    /// Bytes of a block.
    pub(crate) block: u32,
}

impl<F: Fabric> Worker<F> {
    /// Takes a free ring for the lane `index` of a connection, and grants the pool to the connection. Registers memory
    /// for the first lane of a principal.
    pub(crate) fn take_ring(
        &mut self,
        link: &F::Link,
        index: u16,
        settings: RequestPool,
    ) -> Result<PooledRing<F>, ConnectError> {
        let (fabric, ring_bytes) = (self.fabric.clone(), self.shared().config.max_ring_bytes);
        let user = link.peer().user;
        let place = match self.ring_pools.iter().position(|pool| pool.user == user) {
            Some(place) => place,
            None => {
                let region = Region::new(fabric.register(settings.bytes(ring_bytes), Access::WRITE)?);
                // No name of a region would say which lane was written to.
                self.domain.watch(&region);
                let holders = vec![None; settings.rings.into()].into();
                self.ring_pools.push(RingPool { user, region, holders });
                self.ring_pools.len() - 1
            }
        };
        let pool = &mut self.ring_pools[place];
        let Some(free) = pool.holders.iter().position(Option::is_none) else {
            return Err(ConnectError::Handshake("all rings of the server's pool are in use".into()));
        };
        let key = link.grant(pool.region.memory(), Access::WRITE)?;
        pool.holders[free] = Some(index);
        let base = free as u32 * ring_bytes;
        Ok(PooledRing { region: pool.region.clone(), key, base, block: settings.block })
    }

    /// Gives the ring of a lane back, if it has one. Its queue pairs must be destroyed: nothing of it arrives any more.
    pub(crate) fn give_back_ring(&mut self, index: u16) {
        for holder in self.ring_pools.iter_mut().flat_map(|pool| &mut pool.holders) {
            holder.take_if(|holder| *holder == index);
        }
    }
}
