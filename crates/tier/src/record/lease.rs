//! Leases of regions with a name: a region whose lease runs out is freed, unless a master has renewed it. LITE has no
//! counterpart: there a region lives until a master frees it.

use super::{Directory, RecordError};
use crate::place::LmrId;
use crate::rights::Principal;
use std::collections::BTreeSet;

/// The lease of a region, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) length: u64,
    /// By the clock of this life of the node.
    pub(super) end: u64,
}

impl Lease {
    /// Returns the lease of the same length that begins at `now`.
    pub(super) fn from(self, now: u64) -> Lease {
        Lease { end: now.saturating_add(self.length), ..self }
    }
}

/// The ends of all leases, the next one first.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases(BTreeSet<(u64, LmrId)>);

impl Leases {
    /// Puts one lease of a region in the place of another.
    pub(super) fn replace(&mut self, id: LmrId, old: Option<Lease>, new: Option<Lease>) {
        if let Some(old) = old {
            self.0.remove(&(old.end, id));
        }
        if let Some(new) = new {
            self.0.insert((new.end, id));
        }
    }
}

impl Directory {
    /// Gives a region with a name a lease of `length` nanoseconds that begins at `now`, in the name of `by`, a master.
    /// `None` takes the lease away. The next life of the node counts each lease from its first moment.
    pub fn lease(
        &mut self,
        id: LmrId,
        by: &Principal,
        length: Option<u64>,
        now: u64,
    ) -> Result<(), RecordError> {
        let record = self.live(id)?;
        record.check_master(by)?;
        if record.name.is_none() {
            return Err(RecordError::NoName);
        }
        let new = length.map(|length| Lease { length, end: now.saturating_add(length) });
        record.version += 1;
        let (id, old) = (record.id, std::mem::replace(&mut record.lease, new));
        self.leases.replace(id, old, new);
        Ok(())
    }

    /// Takes the lease of a region away in the name of the node: its free has begun, or it has lost its name.
    pub(super) fn end_lease(&mut self, id: LmrId) {
        if let Some(record) = self.any(id) {
            let (id, old) = (record.id, record.lease.take());
            self.leases.replace(id, old, None);
        }
    }

    /// Counts each lease of an earlier life from `now` on, with its whole length.
    pub fn begin_leases(&mut self, now: u64) {
        let me = self.node;
        let records = self.slots.iter_mut().filter_map(|slot| slot.record.as_mut());
        for record in records.filter(|record| record.keepers.first() == me && !record.ending) {
            let old = record.lease;
            record.lease = old.map(|lease| lease.from(now));
            self.leases.replace(record.id, old, record.lease);
        }
    }

    /// Returns the regions whose leases have run out by `now`. Each is returned until its free
    /// [begins](Directory::begin_free).
    pub fn overdue(&self, now: u64) -> impl Iterator<Item = LmrId> {
        self.leases.0.iter().map_while(move |(end, id)| (*end <= now).then_some(*id))
    }

    /// Returns the time at which the next lease runs out.
    pub fn next_lease_end(&self) -> Option<u64> {
        self.leases.0.first().map(|(end, _)| *end)
    }
}
