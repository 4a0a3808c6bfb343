//! The cleaner: hands transactions on in order, and gives their room back.

use crate::error::LogError;
use crate::layout::{CLEANER, HEAD, SLOT, damaged, row_at};
use crate::record::Transaction;
use crate::regions::{Regions, SETTLE, WriterInfo, has_died, life_name};
use crate::window::Window;
use dunlin_fabric::{Host, Nanos};
use dunlin_tier_node::{AnyLmr, AnyTier, Rights};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

/// Bytes of the ring that are read at a time.
const READ_AHEAD: u64 = 64 << 10;
/// The part of the capacity that is cleaned before room is given back.
const PARTS: u64 = 8;
/// The bits of a lease above its count: the number of the cleaner.
const COUNT_ABOVE: u64 = u64::MAX << 32;

/// The cleaner of a log, which holds its lease. Dropping it gives the lease back.
pub struct Cleaner<T: AnyTier> {
    tier: T,
    name: String,
    regions: Regions<T>,
    window: Window,
    /// The lease: the number of this cleaner and a count.
    lease: u64,
    renewed: Nanos,
    head: u64,
    /// A place at which a transaction is missing, since a time.
    missing: Option<(u64, Nanos)>,
    /// Writers that were examined at holes.
    examined: usize,
}

impl<T: AnyTier> std::fmt::Debug for Cleaner<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Cleaner");
        shown.field("name", &self.name).field("head", &self.head).finish_non_exhaustive()
    }
}

/// The work of one call of [`Cleaner::clean`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Transactions that were handed on.
    pub transactions: u64,
    /// Bytes of the ring that were given back.
    pub bytes: u64,
    /// Bytes of closed holes among them.
    pub closed: u64,
    /// Bytes that were reserved and are not clean.
    pub left: u64,
    /// A hole that cannot be closed, because a writer may still write it.
    pub hole: Option<Hole>,
    /// A writer whose process or node has ended, and that was taken off the table. The hole that it left is closed by a
    /// later call, if it left one.
    pub ended: Option<WriterInfo>,
}

/// A hole in the log: room that was reserved and not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The first position.
    pub position: u64,
    /// The position of the next transaction, or the tail.
    pub end: u64,
    /// Writers that may own it.
    pub writers: Vec<WriterInfo>,
}

impl<T: AnyTier> Cleaner<T> {
    /// Opens a log for cleaning. If another cleaner has it, this waits for the lease's time, and takes over if the
    /// other one does nothing meanwhile. Needs READ and WRITE.
    ///
    /// # Errors
    /// [`LogError::Cleaning`] if another cleaner is active; there is no such log, it is damaged, or the tier fails.
    pub fn open(tier: &T, name: &str) -> Result<Self, LogError> {
        let regions = Regions::map(tier, name, Rights::READ.with(Rights::WRITE), Rights::READ)?;
        let lease = (regions.host.random() | (1 << 32)) & COUNT_ABOVE;
        let mut seen = 0;
        loop {
            // Unchanged for the lease's time: the holder has ended.
            let found = regions.metadata.compare_swap(CLEANER, seen, lease)?;
            if found == seen {
                break;
            }
            if seen != 0 && found != 0 {
                return Err(LogError::Cleaning { owner: (found >> 32) as u32 });
            }
            seen = found;
            if seen != 0 {
                regions.sleep(Duration::from_nanos(regions.lease()));
            }
        }
        let renewed = regions.host.now();
        let window = Window::new(READ_AHEAD);
        let (tier, name) = (tier.clone(), name.to_owned());
        let mut cleaner =
            Cleaner { tier, name, regions, window, lease, renewed, head: 0, missing: None, examined: 0 };
        cleaner.regions.words()?;
        // The device reads the word: a processor may see an old value.
        cleaner.head = cleaner.regions.metadata.fetch_add(HEAD, 0)?;
        Ok(cleaner)
    }

    /// Returns the position up to which the log is clean.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Hands all transactions that are whole to `hand_on`, in the order of their positions, and gives their room back.
    /// The call does not wait if no transaction is whole. One exception: if a transaction has been missing for
    /// [`LogConfig::hole_time`](crate::LogConfig::hole_time) and its writer may still write it, the call waits for half of
    /// the lease's time. The transaction for which `hand_on` breaks stays in the log.
    ///
    /// Call it again within the lease's time, also if there is nothing to clean.
    ///
    /// # Errors
    /// [`LogError::LostLease`] if another cleaner has taken over; the log is damaged, or the tier fails. Transactions
    /// that were handed on since the room was last given back may be handed on again by the next cleaner.
    pub fn clean(
        &mut self,
        mut hand_on: impl FnMut(&Transaction<'_>) -> ControlFlow<()>,
    ) -> Result<Cleaned, LogError> {
        let mut cleaned = Cleaned::default();
        self.renew()?;
        let tail = self.regions.words()?.tail;
        let (mut position, mut stopped) = (self.head, false);
        while position < tail && !stopped {
            let Some(header) = self.window.at(&self.regions, position, tail)? else {
                self.give_back(position, &mut cleaned)?;
                if !self.examine_hole(tail, &mut cleaned)? {
                    cleaned.left = tail - position;
                    return Ok(cleaned);
                }
                position = self.head;
                continue;
            };
            if position + header.extent() > tail {
                return Err(damaged(format!("a transaction at {position} ends behind the tail {tail}")));
            }
            if !header.is_void() {
                stopped = hand_on(&self.window.transaction(header)).is_break();
            }
            if !stopped {
                cleaned.transactions += u64::from(!header.is_void());
                position += header.extent();
            }
            if position - self.head >= self.regions.shape.capacity / PARTS {
                self.give_back(position, &mut cleaned)?;
                self.renew()?;
            }
        }
        self.give_back(position, &mut cleaned)?;
        cleaned.left = tail.saturating_sub(position);
        Ok(cleaned)
    }

    /// Raises the count of the lease, if it is time.
    fn renew(&mut self) -> Result<(), LogError> {
        let now = self.regions.host.now();
        if now - self.renewed < self.regions.lease() / 4 {
            return Ok(());
        }
        let next = (self.lease & COUNT_ABOVE) | (self.lease.wrapping_add(1) & !COUNT_ABOVE);
        if self.regions.metadata.compare_swap(CLEANER, self.lease, next)? != self.lease {
            return Err(LogError::LostLease);
        }
        (self.lease, self.renewed) = (next, now);
        Ok(())
    }

    /// Moves the head.
    fn give_back(&mut self, to: u64, cleaned: &mut Cleaned) -> Result<(), LogError> {
        if to == self.head {
            return Ok(());
        }
        let found = self.regions.metadata.compare_swap(HEAD, self.head, to)?;
        if found < self.head {
            return Err(damaged(format!("the head went back from {} to {found}", self.head)));
        }
        if found != self.head {
            return Err(LogError::LostLease);
        }
        cleaned.bytes += to - self.head;
        (self.head, self.missing) = (to, None);
        Ok(())
    }

    /// Closes the hole at the head, if it has stood for long enough and no writer can own it. Returns whether the head
    /// moved.
    fn examine_hole(&mut self, tail: u64, cleaned: &mut Cleaned) -> Result<bool, LogError> {
        let (position, now) = (self.head, self.regions.host.now());
        match self.missing {
            Some((missing, since)) if missing == position => {
                if now - since < self.regions.hole_time() {
                    return Ok(false);
                }
            }
            _ => {
                self.missing = Some((position, now));
                return Ok(false);
            }
        }
        let end = self.window.next_whole(&self.regions, position, tail)?;
        if end == position {
            return Ok(false);
        }
        // A writer has one transaction under way, so a writer of a transaction behind the hole has nothing in it.
        let (mut innocent, mut at) = (BTreeSet::new(), end);
        while at < tail {
            match self.window.at(&self.regions, at, tail)? {
                Some(header) => {
                    innocent.insert(header.writer);
                    at += header.extent();
                }
                None => at = self.window.next_whole(&self.regions, at + SLOT, tail)?,
            }
        }
        // A row may become visible here after the reservation of its writer.
        self.regions.sleep(SETTLE);
        let table = self.regions.table()?;
        let mut writers: Vec<WriterInfo> = table.iter().flatten().cloned().collect();
        writers.retain(|writer| writer.watermark < end && !innocent.contains(&writer.id));
        // The part before the first place that a living writer may still write.
        let bound = writers.iter().map(|writer| writer.watermark).fold(end, u64::min);
        if bound <= position {
            writers.retain(|writer| writer.watermark <= position);
            let watched: Vec<&WriterInfo> = writers.iter().filter(|writer| writer.is_watched).collect();
            if !watched.is_empty() {
                // One for each call, since each takes time.
                let writer = watched[self.examined % watched.len()];
                self.examined = self.examined.wrapping_add(1);
                let row = table.iter().position(|row| row.as_ref() == Some(writer));
                if self.has_ended(row.unwrap_or_default(), writer.id)? {
                    cleaned.ended = Some(writer.clone());
                }
            }
            self.missing = Some((position, self.regions.host.now()));
            cleaned.hole = cleaned.ended.is_none().then_some(Hole { position, end, writers });
            return Ok(false);
        }
        if !bound.is_multiple_of(SLOT) {
            return Err(damaged(format!(
                "the table of writers has a watermark of {bound}, which is no position"
            )));
        }
        let end = bound;
        // A writer may have written the hole and left since it was read.
        self.regions.sleep(SETTLE);
        if self.window.next_whole(&self.regions, position, end)? != end {
            return Ok(false);
        }
        self.give_back(end, cleaned)?;
        cleaned.closed += end - position;
        Ok(true)
    }
}

impl<T: AnyTier> Cleaner<T> {
    /// Takes a writer off the table if its process or node has ended. Blocks for half of the lease's time if it lives.
    fn has_ended(&self, row: usize, id: u64) -> Result<bool, LogError> {
        let time = Duration::from_nanos(self.regions.lease() / 2);
        match self.tier.lock_within(life_name(&self.name, row, id).as_bytes(), time) {
            Ok(life) if has_died(&life, id) => Ok(self.regions.strike(row_at(row), id)?),
            Ok(_) | Err(_) => Ok(false),
        }
    }
}

impl<T: AnyTier> Drop for Cleaner<T> {
    fn drop(&mut self) {
        // If it fails, the lease ends by itself.
        let _ = self.regions.metadata.compare_swap(CLEANER, self.lease, 0);
    }
}
