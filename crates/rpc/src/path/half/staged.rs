//! The requests of a lane under leases, kept by the client until the server is known to have taken them (ScaleRPC
//! sections 3.3 and 3.4).
//!
//! The client builds each request once, in a ring of its own memory that the server may READ. A request that has no
//! lease stays there and is announced. A request under a lease is also written into the zone, at the same offset; and
//! a lease that begins gets all requests that the server has not READ.
//!
//! Both copies have the same bytes except the tags. The tags of the zone depend on the epoch of the lease. The
//! server does not check the tags of requests that it READs, since it knows where each of them begins.
//!
//! This module keeps the state; `staged/posting.rs` posts.

mod posting;

use super::{Ends, Facts, Made, MakeError, Mechanism, Message, Notice, TxHalf};
use crate::grouped::tenant::{Tenant, Transmission};
use crate::grouped::{Lie, Mark, Word};
use dunlin_fabric::{Fabric, Region, RegionKey};
use dunlin_wire::{LINE, TAG_OFFSET, Tags};
use std::collections::VecDeque;

/// The mechanism, of lanes under leases in the place of `write` and `write_imm`.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        let (ring, granted) = ends.staged.take().ok_or(MakeError::Missing("there is no ring to be READ"))?;
        // The second region is the server's pool.
        let staged = Staged::new(ring, ends.ring_bytes, granted, ends.control, ends.second, facts.notice);
        Ok(ends.on_connection(TxHalf::Staged(Box::new(staged))))
    }
}

/// Offset of a client's word in its line at the server, behind the control word.
pub(crate) const WORD_AT: usize = 8;

/// A request that the server is not known to have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Offset in the ring, and in a zone.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) sequence: u64,
    /// The head of a server that has taken it.
    end: u64,
    /// The server is notified when it is written into a zone.
    notify: bool,
}

/// The client's requests and its leases.
#[derive(Debug)]
pub(crate) struct Staged<F: Fabric> {
    /// The ring that the server READs.
    region: Region<F::Memory>,
    /// The key under which the ring is granted.
    pub(crate) granted: RegionKey,
    /// The region of this client's line at the server, and the line's offset there.
    pub(crate) line: (RegionKey, usize),
    /// The region of the server's pool.
    pub(crate) pool: RegionKey,
    tenant: Tenant,
    /// Offset of the zone in the pool, during a lease.
    zone: Option<u64>,
    /// Bytes of the ring, and of a zone.
    ring_bytes: u32,
    /// How the server notices a request in a zone: by polling, or by immediate data.
    notice: Notice,
    kept: VecDeque<Kept>,
    /// The first of `kept` that is not written into the zone.
    written: usize,
    /// The tail of the ring, in lines since the beginning.
    tail: u64,
    /// The word has changed and is not written yet.
    is_word_due: bool,
}

impl<F: Fabric> Staged<F> {
    pub(crate) fn new(
        region: Region<F::Memory>,
        ring_bytes: u32,
        granted: RegionKey,
        line: (RegionKey, usize),
        pool: RegionKey,
        notice: Notice,
    ) -> Self {
        Staged {
            region,
            granted,
            line,
            pool,
            tenant: Tenant::new(),
            zone: None,
            ring_bytes,
            notice,
            kept: VecDeque::with_capacity(ring_bytes as usize / LINE),
            written: 0,
            tail: 0,
            is_word_due: false,
        }
    }

    /// Returns the ring, the key of the pool, and the zone's offset in it.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> (Region<F::Memory>, RegionKey, Option<u64>) {
        (self.region.clone(), self.pool, self.zone)
    }

    /// Lets the word be written again.
    #[cfg(test)]
    pub(crate) fn repeat_word(&mut self) {
        self.is_word_due = true;
    }

    /// Keeps a request whose place in the ring is free.
    fn keep(&mut self, Message { parts, total, at, notify }: Message<'_>, (sequence, end): (u64, u64)) {
        let mut to = at;
        for part in parts {
            self.region.copy_in(to, part);
            to += part.len();
        }
        self.kept.push_back(Kept { at, bytes: total, sequence, end, notify });
        self.tail = end;
        self.is_word_due |= self.tenant.built() == Transmission::Announce;
    }

    /// Forgets the requests that a server with this head has taken.
    pub(crate) fn taken(&mut self, head: u64) {
        while self.kept.front().is_some_and(|kept| kept.end <= head) {
            self.kept.pop_front();
            self.written = self.written.saturating_sub(1);
        }
    }

    /// Takes the mark of an answer, after its head. Returns the epoch of the lane.
    pub(crate) fn on_mark(&mut self, mark: Mark) -> Result<u32, Lie> {
        let news = self.tenant.on_mark(mark, !self.kept.is_empty())?;
        if let Some(zone) = news.granted {
            self.zone = Some(u64::from(zone) * u64::from(self.ring_bytes));
            self.written = 0;
        }
        if news.ended {
            self.zone = None;
            self.is_word_due = true;
        }
        Ok(self.tenant.epoch())
    }

    /// Lets all requests that are kept be written into the zone again, during a lease.
    pub(crate) fn write_again(&mut self) {
        self.written = 0;
    }

    /// Returns whether a request or a word waits to be written.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.is_word_due || (self.zone.is_some() && self.written < self.kept.len())
    }

    /// Returns the next request to be written into the zone, and the zone's offset in the pool.
    fn next(&self) -> Option<(Kept, u64)> {
        self.kept.get(self.written).copied().zip(self.zone)
    }

    /// Copies a request out of the ring, with the tags of its zone.
    fn copy(&self, kept: &Kept, tags: Tags, into: &mut [u8]) {
        let message = &mut into[..kept.bytes];
        self.region.copy_out(kept.at, message);
        if kept.bytes > LINE {
            message[kept.bytes - LINE + TAG_OFFSET..].copy_from_slice(&tags.trailing.to_le_bytes());
        }
        message[TAG_OFFSET..LINE].copy_from_slice(&tags.first.to_le_bytes());
    }

    /// Records that the request of [`next`](Staged::next) was written.
    fn wrote(&mut self) {
        self.written += 1;
    }

    /// Returns the word, if it has to be written.
    fn word(&self) -> Option<Word> {
        self.is_word_due.then(|| self.tenant.word(self.tail as u32))
    }

    /// Records that the word was written.
    fn wrote_word(&mut self) {
        self.is_word_due = false;
    }
}
